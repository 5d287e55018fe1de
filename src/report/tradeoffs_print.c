// tradeoffs_print.c - see tradeoffs_print.h.
#include "report/tradeoffs_print.h"

#include "base/text.h"
#include "plan/plan.h"
#include "report/bench_print.h"

#include <inttypes.h>
#include <math.h>

static const char *agreement_name(enum agreement a) {
    return a == RULE_HOLDS     ? "holds"
           : a == RULE_DIFFERS ? "differs"
           : a == RULE_UNSEEN  ? "not measurable"
                               : "";
}

// ---------------------------------------------------------------- the table

static void print_head(const struct tradeoffs *t, const struct knobs *base, FILE *f) {
    const struct bench_row *b = &t->bench.rows[0];
    const struct machine *m = &t->bench.machine;
    const bool device = plan_wants_device(base);
    char bytes[TEXT_UNIT_BYTES];
    fprintf(f,
            "Baseline: model %s, batch.micro %" PRId64 " x batch.accum %" PRId64 " x seq %" PRId64
            " tokens, precision %s, %d thread%s, on %s%s.\n",
            base->model, base->batch_micro, base->batch_accum, base->seq,
            knob_choice(KNOB_precision, (int)base->precision), machine_threads(base),
            machine_threads(base) == 1 ? "" : "s",
            !device                  ? ""
            : m->gpu.measured_at > 0 ? m->gpu.device
                                     : "a GPU",
            !device ? m->hw.cpu : "");
    if (b->n_rounds > 0)
        fprintf(f,
                "It makes %.0f tokens/s, steps of %.2f ms (p50) and %.2f ms (p99%s), has a latency "
                "of %.2f ms for a sample (its micro-batch's time: ms/sample), takes %s, and its "
                "loss is %.4f after %lld steps.\n",
                b->metrics.tokens_per_s, 1e-6 * b->metrics.step_p50.value,
                1e-6 * b->metrics.step_p99.value,
                quantile_has_bound(&b->metrics.step_p99) ? "" : ", too few steps for a bound",
                b->metrics.ms_per_sample, text_bytes(bytes, (uint64_t)bench_memory(b)),
                b->loss_last, (long long)(t->bench.steps + t->bench.warmup));
    fprintf(
        f,
        "Ratios to it: the median of %d rounds in which both ran, and the 95 %% interval of these "
        "rounds' ratios. Loss: the difference after as many steps.\n\n",
        t->bench.rounds);
}

static void print_settings(const struct tradeoffs *t, FILE *f) {
    fputc('\n', f);
    for (size_t i = 1; i < t->grid.n; i++) {
        const struct grid_setting *s = &t->settings[i];
        fprintf(f, "- %s%s%s%s: %s\n", s->name, s->settings[0] ? " (`" : "", s->settings,
                s->settings[0] ? "`)" : "", t->findings[i].strategy->what);
    }
}

static void put_name(struct table *t, const struct strategy *s) {
    table_put(t, "%s%s%s", s->name, s->against ? ", against " : "", s->against ? s->against : "");
}

static void put_finding(struct table *t, const struct finding *x, const struct bench_row *r) {
    bool seen = r->n_rounds > 0;
    table_put(t, "%s%s%s%s%s", seen ? "" : "not measured: ", seen ? x->text : r->reason,
              x->busy[0] && x->text[0] ? "; " : "", x->busy[0] ? "busy meanwhile: " : "", x->busy);
}

// "0.93 (0.91-0.95)"
static void put_spread(struct table *t, const struct ratio *r) {
    if (isnan(r->median))
        table_text(t, "-");
    else if (isnan(r->low))
        table_put(t, "%.2f", r->median);
    else
        table_put(t, "%.2f (%.2f-%.2f)", r->median, r->low, r->high);
}

// Says "same bits" only when the loss is exactly equal. A small difference may be rounding.
static void put_loss(struct table *t, const struct finding *x) {
    if (x->other_batch)
        table_text(t, "other batch");
    else if (isnan(x->loss))
        table_text(t, "-");
    else if (x->loss == 0)
        table_text(t, "same bits");
    else
        table_put(t, "%+.1e", x->loss);
}

// Figures of a row, then its ratios to the row it is compared with.
#define ROW(X)                                                                                     \
    X("strategy", NULL, LEFT, put_name(to, s))                                                     \
    X(NULL, "strategy", LEFT, table_text(to, t->settings[i].name))                                 \
    X(NULL, "settings", LEFT, table_text(to, t->settings[i].settings))                             \
    X(NULL, "against", LEFT, table_text(to, x->against < 0 ? "" : t->settings[x->against].name))   \
    X(NULL, "tokens_per_s", RIGHT, table_real(to, seen ? m->tokens_per_s : NAN, 0))                \
    X(NULL, "step_ms_p50", RIGHT, table_real(to, seen ? m->step_p50.value / 1e6 : NAN, 2))         \
    X(NULL, "step_ms_p99", RIGHT, table_real(to, seen ? m->step_p99.value / 1e6 : NAN, 2))         \
    X(NULL, "ms_per_sample", RIGHT, table_real(to, seen ? m->ms_per_sample : NAN, 2))              \
    X(NULL, "memory_bytes", RIGHT, table_real(to, seen ? bench_memory(r) : NAN, 0))                \
    X(NULL, "loss", RIGHT, table_real(to, seen ? r->loss_last : NAN, 4))                           \
    X("tokens/s", NULL, RIGHT, put_spread(to, &x->speed))                                          \
    X(NULL, "tokens_per_s_ratio", RIGHT, table_real(to, x->speed.median, 2))                       \
    X(NULL, "tokens_per_s_ratio_low", RIGHT, table_real(to, x->speed.low, 2))                      \
    X(NULL, "tokens_per_s_ratio_high", RIGHT, table_real(to, x->speed.high, 2))                    \
    X("step p50", NULL, RIGHT, put_spread(to, &x->p50))                                            \
    X(NULL, "step_p50_ratio", RIGHT, table_real(to, x->p50.median, 2))                             \
    X("step p99", "step_p99_ratio", RIGHT, table_real(to, x->p99, 2))                              \
    X("ms/sample", "ms_per_sample_ratio", RIGHT, table_real(to, x->sample, 2))                     \
    X("memory", "memory_ratio", RIGHT, table_real(to, x->memory.median, 2))                        \
    X("loss", NULL, RIGHT, put_loss(to, x))                                                        \
    X(NULL, "loss_difference", RIGHT, table_real(to, x->loss, 4))                                  \
    X("rule of thumb", "rule", LEFT, table_text(to, s->rule))                                      \
    X(NULL, "agreement", LEFT, table_text(to, agreement_name(x->agreement)))                       \
    X("here", NULL, LEFT, put_finding(to, x, r))                                                   \
    X(NULL, "finding", LEFT, table_text(to, x->text))                                              \
    X(NULL, "busy", LEFT, table_text(to, x->busy))                                                 \
    X(NULL, "reason", LEFT, table_text(to, r->reason))

static const struct table_column columns[] = {ROW(TABLE_COLUMN)};

static void put_cells(struct table *to, const struct tradeoffs *t, size_t i) {
    const struct finding *x = &t->findings[i];
    const struct strategy *s = x->strategy;
    const struct bench_row *r = &t->bench.rows[i];
    const struct run_metrics *m = &r->metrics;
    const bool seen = r->n_rounds > 0;
    table_row(to);
    ROW(TABLE_CELL)
}

// The baseline is a row for programs only. People find its figures above the table.
static int print_table(const struct tradeoffs *t, const struct knobs *base,
                       enum table_format format, FILE *f, struct err *e) {
    struct table table;
    table_init(&table, columns, sizeof columns / sizeof *columns, format,
               (struct table_style){.unknown = "-", .digits = 9, .compact = true, .whole = true});
    for (size_t i = table.people ? 1 : 0; i < t->grid.n; i++)
        put_cells(&table, t, i);
    if (table.people)
        print_head(t, base, f);
    int rc = table_print(&table, f, e);
    if (table.people)
        print_settings(t, f);
    table_free(&table);
    return rc;
}

// ---------------------------------------------------------------- JSON

static void put_row(const void *arg, size_t i, struct json_writer *w) {
    const struct tradeoffs *t = arg;
    const struct finding *x = &t->findings[i];
    json_put_object_begin(w);
    json_member_string(w, "strategy", t->settings[i].name);
    json_member_string(w, "settings", t->settings[i].settings);
    json_member_string(w, "what", x->strategy->what);
    json_member_string(w, "against", x->against >= 0 ? t->settings[x->against].name : NULL);
    json_member_object(w, "ratios");
    bench_put_ratio(&x->speed, "tokens_per_s", w);
    bench_put_ratio(&x->p50, "step_p50", w);
    json_member_double(w, "step_p99", x->p99);
    json_member_double(w, "ms_per_sample", x->sample);
    json_member_double(w, "memory", x->memory.median);
    json_put_object_end(w);
    json_member_double(w, "loss_difference", x->loss);
    json_member_bool(w, "same_tokens_per_step", !x->other_batch);
    json_member_string(w, "rule", x->strategy->rule);
    json_member_string(w, "agreement", agreement_name(x->agreement));
    json_member_string(w, "finding", x->text);
    json_member_string(w, "busy", x->busy[0] ? x->busy : NULL);
    bench_put_members(&t->bench.rows[i], w);
    json_put_object_end(w);
}

void tradeoffs_put_json(const struct tradeoffs *t, struct json_writer *w) {
    table_put_array(w, t->grid.n, put_row, t);
}

int tradeoffs_print(const struct tradeoffs *t, const struct knobs *base, enum table_format format,
                    FILE *f, struct err *e) {
    return format == TABLE_JSON || format == TABLE_JSONL
               ? table_print_json(format, t->grid.n, put_row, t, f, e)
               : print_table(t, base, format, f, e);
}

// ---------------------------------------------------------------- formats

static void put_kl(struct table *to, const struct texts_finding *x) {
    if (isnan(x->kl))
        table_text(to, "-");
    else
        table_put(to, "%.2g", x->kl);
}

static void put_seen(struct table *to, const struct texts_finding *x) {
    const struct finding *f = &x->finding;
    table_put(to, "%s%s%s%s%s", x->reason[0] ? "not measured: " : "",
              x->reason[0] ? x->reason : f->text, f->busy[0] && f->text[0] ? "; " : "",
              f->busy[0] ? "busy meanwhile: " : "", f->busy);
}

#define TEXTS_ROW(X)                                                                               \
    X("format, generating", NULL, LEFT, table_text(to, x->name))                                   \
    X("tokens/s", NULL, RIGHT, put_spread(to, &x->finding.speed))                                  \
    X("between tokens", NULL, RIGHT, put_spread(to, &x->finding.p50))                              \
    X("memory", NULL, RIGHT, table_real(to, x->finding.memory.median, 2))                          \
    X("KL", NULL, RIGHT, put_kl(to, x))                                                            \
    X("rule of thumb", NULL, LEFT, table_text(to, x->rule))                                        \
    X("here", NULL, LEFT, put_seen(to, x))

static const struct table_column texts_columns[] = {TEXTS_ROW(TABLE_COLUMN)};

static void put_texts(struct table *to, const struct texts_finding *x) {
    table_row(to);
    TEXTS_ROW(TABLE_CELL)
}

// The absolute figures of as given: the first row that was measured with so many texts.
static void print_given(const struct tradeoffs_texts *t, int64_t batch, FILE *f) {
    char bytes[TEXT_UNIT_BYTES];
    for (int i = 0; i < t->n; i++) {
        const struct texts_finding *x = &t->rows[i];
        if (x->batch != batch || x->reason[0])
            continue;
        fprintf(f,
                "As given, %" PRId64 " text%s: %.1f tokens/s, %.2f ms between tokens (p50), %s.\n",
                batch, batch == 1 ? "" : "s", x->given_tokens_per_s, x->given_between_ms,
                text_bytes(bytes, (uint64_t)x->given_memory_bytes));
        return;
    }
}

int tradeoffs_texts_print(const struct tradeoffs_texts *t, const char *note, FILE *f,
                          struct err *e) {
    struct table table;
    if (t->n == 0)
        return 0;
    table_init(&table, texts_columns, sizeof texts_columns / sizeof *texts_columns, TABLE_MARKDOWN,
               (struct table_style){.unknown = "-", .compact = true, .whole = true});
    for (int i = 0; i < t->n; i++)
        put_texts(&table, &t->rows[i]);
    fprintf(f,
            "\nThe same model generates, with prompts of %" PRId64 " tokens and %" PRId64
            " made behind each. Ratios to the model as given, of %d rounds in turns.\n",
            t->desk.prompt, t->desk.output, t->rounds);
    print_given(t, t->rows[0].batch, f);
    print_given(t, t->rows[t->n - 1].batch, f);
    fprintf(f, "KL: nats per token from the model as given, on text that it made itself.%s%s\n\n",
            note ? " " : "", note ? note : "");
    const int rc = table_print(&table, f, e);
    table_free(&table);
    return rc;
}

static void put_texts_row(const void *arg, size_t i, struct json_writer *w) {
    const struct texts_finding *x = &((const struct tradeoffs_texts *)arg)->rows[i];
    json_put_object_begin(w);
    json_member_string(w, "strategy", x->name);
    json_member_i64(w, "batch", x->batch);
    json_member_object(w, "ratios");
    bench_put_ratio(&x->finding.speed, "tokens_per_s", w);
    bench_put_ratio(&x->finding.p50, "between", w);
    json_member_double(w, "memory", x->finding.memory.median);
    json_put_object_end(w);
    json_member_double(w, "tokens_per_s", x->reason[0] ? NAN : x->tokens_per_s);
    json_member_double(w, "between_ms", x->reason[0] ? NAN : x->between_ms);
    json_member_double(w, "first_ms", x->reason[0] ? NAN : x->first_ms);
    json_member_double(w, "memory_bytes", x->reason[0] ? NAN : x->memory_bytes);
    json_member_double(w, "given_tokens_per_s", x->reason[0] ? NAN : x->given_tokens_per_s);
    json_member_double(w, "kl", x->kl);
    json_member_double(w, "kl_low", x->low);
    json_member_double(w, "kl_high", x->high);
    json_member_string(w, "rule", x->rule);
    json_member_string(w, "agreement", agreement_name(x->finding.agreement));
    json_member_string(w, "finding", x->finding.text);
    json_member_string(w, "busy", x->finding.busy[0] ? x->finding.busy : NULL);
    json_member_string(w, "reason", x->reason[0] ? x->reason : NULL);
    json_put_object_end(w);
}

void tradeoffs_texts_put_json(const struct tradeoffs_texts *t, struct json_writer *w) {
    table_put_array(w, (size_t)t->n, put_texts_row, t);
}
