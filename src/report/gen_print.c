// gen_print.c - see gen_print.h.
#include "report/gen_print.h"

#include "base/text.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

enum { ROWS_FOR_PEOPLE = 15 };

// ---------------------------------------------------------------- words

static ERR_PRINTF(3, 4) void add(char *out, size_t *n, const char *format, ...) {
    va_list list;
    va_start(list, format);
    if (*n < GEN_SENTENCE_BYTES) {
        const int k = vsnprintf(out + *n, GEN_SENTENCE_BYTES - *n, format, list);
        *n += k > 0 ? (size_t)k : 0;
    }
    va_end(list);
}

const char *gen_goal(char out[GEN_SENTENCE_BYTES], const struct gen *g) {
    const struct gen_request *r = &g->request;
    const long long batch = (long long)r->space.values[GEN_BATCH][0];
    size_t n = 0;
    if (r->space.n[GEN_BATCH] > 1)
        add(out, &n,
            "most generated tokens/s, with as many texts side by side as the budgets allow");
    else if (batch > 1)
        add(out, &n, "most generated tokens/s with %lld texts side by side", batch);
    else
        add(out, &n, "least latency of a text, one at a time");
    add(out, &n, "; each has a prompt of %lld tokens and makes %lld", (long long)r->prompt,
        (long long)r->output);
    return out;
}

static const char *percent(char out[64], double ratio) {
    snprintf(out, 64, "%.1f %% %s", 100 * fabs(ratio - 1), ratio >= 1 ? "faster" : "slower");
    return out;
}

static void add_gain(char *out, size_t *n, const struct tune_turns *t) {
    char text[64];
    if (isnan(t->ratio))
        return;
    add(out, n, "%s than as given", percent(text, t->ratio));
    if (isfinite(t->low))
        add(out, n, " (95 %% interval %+.1f to %+.1f %%, %d rounds in turns)", 100 * (t->low - 1),
            100 * (t->high - 1), t->rounds);
    else
        add(out, n, " (too few rounds for an interval: %d)", t->rounds);
}

const char *gen_answer(char out[GEN_SENTENCE_BYTES], const struct gen *g) {
    size_t n = 0;
    out[0] = '\0';
    if (g->chosen < 0) {
        add(out, &n, "nothing was chosen: %s", g->why_none);
        return out;
    }
    const struct gen_setting *s = &g->settings[g->chosen],
                             *rival = g->rival >= 0 ? &g->settings[g->rival] : NULL;
    switch (g->why) {
    case TUNE_WHY_FASTER:
        add(out, &n, "%s: ", s->name);
        add_gain(out, &n, &g->gain);
        break;
    case TUNE_WHY_NEEDED:
        add(out, &n, "%s, because as given cannot be used (%s)", s->name,
            g->settings[0].reason[0] ? g->settings[0].reason : "it breaks a budget");
        if (g->gain.rounds > 0) {
            add(out, &n, "; it is ");
            add_gain(out, &n, &g->gain);
        }
        break;
    case TUNE_WHY_TOO_BUSY:
        add(out, &n, "the machine was too busy to tell: %d of %d trials were disturbed", g->busy,
            g->trials);
        break;
    default:
        add(out, &n, "keep what you have");
        if (rival && g->gain.rounds > 0) {
            add(out, &n, ": %s is ", rival->name);
            add_gain(out, &n, &g->gain);
            add(out, &n, isnan(g->gain.low) ? "; give more --time" : "");
        } else
            add(out, &n,
                rival ? ": there was no time to compare %s with it in turns; give more --time"
                      : ": no other setting can be chosen",
                rival ? rival->name : "");
    }
    return out;
}

const char *gen_budgets(char out[GEN_SENTENCE_BYTES], const struct gen *g) {
    size_t n = 0;
    out[0] = '\0';
    for (int l = 0; l < GEN_LIMITS && g->chosen >= 0; l++) {
        const struct gen_bound *b = &g->bounds[l];
        if (!b->asked)
            continue;
        add(out, &n, "%s: p%g %.4g ms of %zu, limit %.6g ms: %s\n",
            gen_limit_name((enum gen_limit)l), 100 * b->q.p, 1e-6 * b->q.value, b->q.n,
            1e-6 * (double)g->request.limit_ns[l],
            b->proven ? "proven at 95 %" : "provisional, not proven");
    }
    return out;
}

const char *gen_mark(const struct gen *g, int i) {
    const struct gen_setting *s = &g->settings[i];
    return i == g->chosen ? "chosen" : s->turns.rounds > 0 ? "in turns" : s->visits ? "glance" : "";
}

const char *gen_format_name(const struct gen *g, int i) {
    return g->request.formats[g->settings[i].point.format].name;
}

static int class_of(const struct gen *g, int i) {
    const struct gen_setting *s = &g->settings[i];
    return i == g->chosen ? 0 : i == 0 ? 1 : s->turns.rounds > 0 ? 2 : s->visits > 0 ? 3 : 4;
}

// Settings are few, so the place is found by counting.
int gen_place(const struct gen *g, int k) {
    for (int i = 0; i < g->n; i++) {
        int before = 0;
        for (int j = 0; j < g->n; j++) {
            const int a = class_of(g, j), b = class_of(g, i);
            const double x = gen_speed(&g->settings[j]), y = gen_speed(&g->settings[i]);
            before += a < b || (a == b && (x > y || (!(x < y) && j < i)));
        }
        if (before == k)
            return i;
    }
    return -1;
}

// ---------------------------------------------------------------- the table

static double latency_s(const struct gen *g, int i) {
    return g->settings[i].point.batch == 1 ? (double)g->request.output / gen_speed(&g->settings[i])
                                           : NAN;
}

static void put_turns(struct table *to, const struct gen_setting *s) {
    if (s->turns.rounds == 0)
        table_text(to, "");
    else if (isnan(s->turns.low))
        table_put(to, "%+.1f %%", 100 * (s->turns.ratio - 1));
    else
        table_put(to, "%+.1f %% (%+.1f to %+.1f)", 100 * (s->turns.ratio - 1),
                  100 * (s->turns.low - 1), 100 * (s->turns.high - 1));
}

static void put_kl(struct table *to, const struct gen *g, int i) {
    if (g->settings[i].point.format == 0)
        table_text(to, "0");
    else
        table_significant(to, g->request.formats[g->settings[i].point.format].kl, 3);
}

static void put_percentile(struct table *to, const struct gen *g, const struct gen_setting *s,
                           enum gen_limit l) {
    table_percentile(to, s->visits ? 1e-6 * s->percentile[l] : NAN,
                     s->n[l] >= sample_bound_needs(g->request.p));
}

#define ROW(X)                                                                                     \
    X("", "mark", LEFT, table_text(to, gen_mark(g, i)))                                            \
    X("setting", "setting", LEFT, table_text(to, s->name))                                         \
    X(NULL, "format", LEFT, table_text(to, gen_format_name(g, i)))                                 \
    X(NULL, "batch", RIGHT, table_i64(to, s->point.batch))                                         \
    X(NULL, "chunk", RIGHT, table_i64(to, s->point.chunk))                                         \
    X(NULL, "threads", RIGHT, table_i64(to, s->point.threads))                                     \
    X("weights", "weight_bytes", RIGHT,                                                            \
      table_bytes(to, g->request.formats[s->point.format].bytes))                                  \
    X("KL", "kl", RIGHT, put_kl(to, g, i))                                                         \
    X("tokens/s", "tokens_per_s", RIGHT, table_real(to, gen_speed(&g->settings[i]), 1))            \
    X("vs as given", NULL, RIGHT, put_turns(to, s))                                                \
    X(NULL, "ratio", RIGHT, table_real(to, s->turns.rounds ? s->turns.ratio : NAN, 3))             \
    X(NULL, "ratio_low", RIGHT, table_real(to, s->turns.rounds ? s->turns.low : NAN, 3))           \
    X(NULL, "ratio_high", RIGHT, table_real(to, s->turns.rounds ? s->turns.high : NAN, 3))         \
    X("text ms", "text_ms", RIGHT, table_real(to, 1e3 * latency_s(g, i), 1))                       \
    X("first ms", "first_ms", RIGHT, put_percentile(to, g, s, GEN_FIRST))                          \
    X("between ms", "between_ms", RIGHT, put_percentile(to, g, s, GEN_BETWEEN))                    \
    X("memory", "memory_bytes", RIGHT,                                                             \
      table_bytes(to, s->memory_bytes ? s->memory_bytes : s->need_bytes))                          \
    X("why not", "reason", LEFT, table_text(to, i == g->chosen ? "" : s->reason))

static const struct table_column columns[] = {ROW(TABLE_COLUMN)};

static void put_cells(struct table *to, const struct gen *g, int i) {
    const struct gen_setting *s = &g->settings[i];
    table_row(to);
    ROW(TABLE_CELL)
}

static void print_formats(const struct gen *g, FILE *out) {
    char bytes[TEXT_UNIT_BYTES];
    for (int i = 1; i < g->request.space.n[GEN_FORMAT]; i++) {
        const struct gen_format *f = &g->request.formats[i];
        fprintf(out, "- %s: %s", f->name,
                f->bytes ? text_bytes(bytes, f->bytes) : "its bytes are not known");
        if (isfinite(f->kl))
            fprintf(out, ", KL %.3g nats per token (", f->kl);
        if (isfinite(f->low))
            fprintf(out, "95 %% interval %.3g to %.3g, ", f->low, f->high);
        if (isfinite(f->kl))
            fprintf(out, "limit %g)", f->limit);
        fprintf(out, "%s%s\n", f->refused[0] ? ". Not admitted: " : "", f->refused);
    }
}

static int print_table(const struct gen *g, enum table_format format, FILE *out, struct err *e) {
    struct table table;
    int shown = 0, i;
    table_init(&table, columns, sizeof columns / sizeof *columns, format,
               (struct table_style){.unknown = "", .digits = 9});
    for (int k = 0; (i = gen_place(g, k)) >= 0; k++) {
        if (table.people && (shown == ROWS_FOR_PEOPLE || g->settings[i].visits == 0) && i != 0)
            continue;
        put_cells(&table, g, i);
        shown++;
    }
    const int rc = table_print(&table, out, e);
    if (table.people && shown < g->n)
        fprintf(out,
                "\n%d more settings were planned, refused or looked at; --output csv has all.\n",
                g->n - shown);
    table_free(&table);
    return rc;
}

static void put_one(const void *arg, size_t k, struct json_writer *w);

int gen_print(const struct gen *g, const struct gen_facts *f, enum table_format format, FILE *out,
              struct err *e) {
    char text[GEN_SENTENCE_BYTES];
    if (format == TABLE_JSON || format == TABLE_JSONL)
        return table_print_json(format, (size_t)g->n, put_one, g, out, e);
    if (format != TABLE_MARKDOWN)
        return print_table(g, format, out, e);
    fprintf(out, "Goal: %s.\n", gen_goal(text, g));
    if (f->likeness)
        fprintf(out, "%s\n", f->likeness);
    print_formats(g, out);
    fprintf(out,
            "first, between: p%g of the time to the first token and between tokens, of texts that "
            "generate while prompts come in.\n\n",
            100 * g->request.p);
    TRY(print_table(g, format, out, e));
    fprintf(out, "\nAnswer: %s.\n", gen_answer(text, g));
    fputs(gen_budgets(text, g), out);
    if (f->commands)
        fprintf(out, "\n%s", f->commands);
    if (f->saved_as)
        fprintf(out, "\nRecipe: %s\n", f->saved_as);
    if (f->report_as)
        fprintf(out, "Page: %s\n", f->report_as);
    return 0;
}

// ---------------------------------------------------------------- JSON

static void put_turns_json(const char *key, const struct tune_turns *t, struct json_writer *w) {
    if (!table_member_object(w, key, t->rounds > 0))
        return;
    json_member_double(w, "ratio", t->ratio);
    json_member_double(w, "low", t->low);
    json_member_double(w, "high", t->high);
    json_member_i64(w, "rounds", t->rounds);
    json_put_object_end(w);
}

static void put_one(const void *arg, size_t k, struct json_writer *w) {
    const struct gen *g = arg;
    const int i = gen_place(g, (int)k);
    const struct gen_setting *s = &g->settings[i];
    json_put_object_begin(w);
    json_member_string(w, "setting", s->name);
    json_member_string(w, "mark", gen_mark(g, i));
    json_member_string(w, "format", gen_format_name(g, i));
    json_member_i64(w, "batch", s->point.batch);
    json_member_i64(w, "chunk", s->point.chunk);
    json_member_i64(w, "threads", s->point.threads);
    json_member_string(w, "outcome", tune_outcome_name(s->outcome));
    json_member_string(w, "reason", s->reason[0] ? s->reason : NULL);
    json_member_double(w, "tokens_per_s", gen_speed(&g->settings[i]));
    json_member_double(w, "text_s", latency_s(g, i));
    json_member_double(w, "first_ms", s->visits ? 1e-6 * s->percentile[GEN_FIRST] : NAN);
    json_member_i64(w, "first_n", (int64_t)s->n[GEN_FIRST]);
    json_member_double(w, "between_ms", s->visits ? 1e-6 * s->percentile[GEN_BETWEEN] : NAN);
    json_member_i64(w, "between_n", (int64_t)s->n[GEN_BETWEEN]);
    table_member_opt(w, "memory_planned_bytes", (int64_t)s->need_bytes);
    table_member_opt(w, "memory_measured_bytes", (int64_t)s->memory_bytes);
    json_member_i64(w, "visits", s->visits);
    json_member_i64(w, "busy_visits", s->busy);
    json_member_bool(w, "frontier", s->frontier);
    put_turns_json("in_turns", &s->turns, w);
    json_put_object_end(w);
}

static void put_format(const void *arg, size_t i, struct json_writer *w) {
    const struct gen_format *f = &((const struct gen *)arg)->request.formats[i];
    json_put_object_begin(w);
    json_member_string(w, "name", f->name);
    table_member_opt(w, "weight_bytes", (int64_t)f->bytes);
    json_member_double(w, "kl", f->kl);
    json_member_double(w, "kl_low", f->low);
    json_member_double(w, "kl_high", f->high);
    json_member_double(w, "kl_limit", i == 0 ? NAN : f->limit);
    json_member_double(w, "seconds", f->seconds);
    json_member_string(w, "refused", f->refused[0] ? f->refused : NULL);
    json_put_object_end(w);
}

static void put_budget(const struct gen *g, enum gen_limit l, const char *key,
                       struct json_writer *w) {
    const struct gen_bound *b = &g->bounds[l];
    if (!table_member_object(w, key, g->request.limit_ns[l] > 0))
        return;
    json_member_double(w, "limit_ms", 1e-6 * (double)g->request.limit_ns[l]);
    json_member_double(w, "p", g->request.p);
    json_member_double(w, "ms", g->chosen >= 0 ? 1e-6 * b->q.value : NAN);
    json_member_i64(w, "n", g->chosen >= 0 ? (int64_t)b->q.n : 0);
    json_member_bool(w, "proven", g->chosen >= 0 && b->proven);
    json_member_double(w, "least_ms",
                       g->least[l] >= 0 ? 1e-6 * g->settings[g->least[l]].percentile[l] : NAN);
    json_member_string(w, "least_by", g->least[l] >= 0 ? g->settings[g->least[l]].name : NULL);
    json_put_object_end(w);
}

void gen_put_json(const struct gen *g, const struct gen_facts *f, struct json_writer *w) {
    char text[GEN_SENTENCE_BYTES];
    json_member_string(w, "goal", "generate");
    json_member_string(w, "optimised", gen_goal(text, g));
    json_member_i64(w, "prompt_tokens", g->request.prompt);
    json_member_i64(w, "output_tokens", g->request.output);
    json_member_string(w, "likeness", f->likeness);
    json_member_string(w, "answer", gen_answer(text, g));
    json_member_string(w, "why", tune_why_name(g->why));
    json_member_string(w, "chosen", g->chosen >= 0 ? g->settings[g->chosen].name : NULL);
    json_member_string(w, "rival", g->rival >= 0 ? g->settings[g->rival].name : NULL);
    put_turns_json("gain", &g->gain, w);
    json_member_bool(w, "provisional", g->provisional);
    put_budget(g, GEN_FIRST, "first_token", w);
    put_budget(g, GEN_BETWEEN, "between_tokens", w);
    table_member_opt(w, "memory_budget_bytes", (int64_t)f->memory_budget);
    json_member_i64(w, "trials", g->trials);
    json_member_i64(w, "busy_trials", g->busy);
    json_member_double(w, "seconds", 1e-9 * (double)(g->end_ns - g->begin_ns));
    json_member_string(w, "commands", f->commands);
    json_member_string(w, "recipe", f->saved_as);
    json_put_key(w, "formats");
    table_put_array(w, (size_t)g->request.space.n[GEN_FORMAT], put_format, g);
    json_put_key(w, "settings");
    table_put_array(w, (size_t)g->n, put_one, g);
}
