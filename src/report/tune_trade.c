// tune_trade.c - the trade that a search found: the recipe as given next to the choice, a row for
// each figure, with its budget and whether the choice keeps it; see tune_words.h.
#include "report/tune_print.h"
#include "report/tune_words.h"

#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct trade { // being filled
    const struct tune *t;
    int at[2]; // settings: as given, the choice (as given if there is none)
    struct tune_trade *rows;
    int n;
};

static struct tune_trade *add(struct trade *x, const char *label, bool brief) {
    struct tune_trade *r = &x->rows[x->n++];
    *r = (struct tune_trade){.label = label, .value = {NAN, NAN}, .brief = brief};
    return r;
}

// What a change is of. Times of settings that did not run in turns cannot be compared.
enum kind { KIND_GOAL, KIND_TIME, KIND_OTHER };

static void say_change(const struct trade *x, struct tune_trade *r, enum kind kind) {
    const double ratio = r->value[1] / r->value[0];
    char text[TUNE_WORDS_BYTES];
    if (x->at[1] == 0 || !isfinite(ratio) || r->value[0] <= 0 ||
        (kind != KIND_OTHER && !tune_is_compared(x->t, x->at[1])))
        return;
    if (kind == KIND_GOAL)
        snprintf(r->change, sizeof r->change, "%.63s", tune_against(text, x->t, x->at[1]));
    else if (fabs(ratio - 1) < 0.0005)
        snprintf(r->change, sizeof r->change, "same");
    else if (ratio >= 3)
        snprintf(r->change, sizeof r->change, "%.1f times", ratio);
    else
        snprintf(r->change, sizeof r->change, "%+.1f %%", 100 * (ratio - 1));
}

// The budget, and whether the choice keeps it. If as given is over it, that is why it was changed.
static void say_kept(const struct trade *x, struct tune_trade *r, const char *budget, double limit,
                     const char *how) {
    const double mine = r->value[1];
    snprintf(r->budget, sizeof r->budget, "%s", budget);
    snprintf(r->kept, sizeof r->kept, "%s%s%s",
             !isfinite(mine) ? "not known"
             : mine <= limit ? "kept"
                             : "over",
             isfinite(mine) && mine <= limit ? how : "",
             x->at[1] != 0 && r->value[0] > limit ? "; as given: over" : "");
}

// ---------------------------------------------------------------- rows

static double predicted_speed(const struct tune_setting *s) {
    return (double)(s->knobs.batch_micro * s->knobs.batch_accum * s->knobs.seq) / s->predicted_s;
}

// If as given cannot run here, what it would reach is predicted, and so is what the choice costs.
static void say_predicted(const struct trade *x, struct tune_trade *r) {
    const struct tune_setting *a = &x->t->settings[x->at[0]], *b = &x->t->settings[x->at[1]];
    const double change = predicted_speed(b) / predicted_speed(a) - 1,
                 speed = tune_speed(x->t, x->at[1]) / (1 + change);
    if (a->n > 0 || !isfinite(speed))
        return;
    snprintf(r->text[0], sizeof r->text[0], "about %.0f", speed);
    if (fabs(change) < 0.005)
        snprintf(r->change, sizeof r->change, "none predicted");
    else
        snprintf(r->change, sizeof r->change, "%+.0f %%, predicted", 100 * change);
}

static void add_speed(struct trade *x) {
    struct tune_trade *r = add(x, "tokens per second", true);
    for (int k = 0; k < 2; k++) {
        r->value[k] = tune_speed(x->t, x->at[k]);
        if (isfinite(r->value[k]))
            snprintf(r->text[k], sizeof r->text[k], "%.0f", r->value[k]);
    }
    say_change(x, r, tune_by_sample(&x->t->request) ? KIND_TIME : KIND_GOAL);
    say_predicted(x, r);
}

static void add_sample(struct trade *x) {
    struct tune_trade *r = add(x, "latency of a sample", true);
    r->hint = "its micro-batch's time";
    for (int k = 0; k < 2; k++) {
        r->value[k] = tune_sample_ms(x->t, x->at[k]);
        if (isfinite(r->value[k]))
            snprintf(r->text[k], sizeof r->text[k], "%.4g ms", r->value[k]);
    }
    say_change(x, r, tune_by_sample(&x->t->request) ? KIND_GOAL : KIND_TIME);
}

// The text and the note of a percentile in ns.
static void fill_quantile(struct tune_trade *r, int side, const struct quantile *q) {
    char a[TEXT_UNIT_BYTES];
    r->value[side] = q->value;
    if (q->n == 0)
        return;
    r->unbounded[side] = !quantile_has_bound(q);
    snprintf(r->text[side], sizeof r->text[side], "%s", text_duration(a, 1e-9 * q->value));
    if (r->unbounded[side])
        snprintf(r->note[side], sizeof r->note[side], "n=%zu, unbounded: needs %zu", q->n,
                 q->n_needed);
    else
        snprintf(r->note[side], sizeof r->note[side], "n=%zu, at most %s (95 %%)", q->n,
                 text_duration(a, 1e-9 * q->upper95));
}

static bool is_proven(const struct tune *t, enum tune_percentile p, bool respond) {
    for (int i = 0; i < t->n_bounds; i++)
        if (t->bounds[i].p == p && t->bounds[i].respond == respond)
            return t->bounds[i].proven;
    return false;
}

static void say_limit(struct trade *x, struct tune_trade *r, enum tune_percentile p, bool respond,
                      uint64_t limit_ns) {
    char text[TEXT_UNIT_BYTES], budget[48];
    if (limit_ns == 0)
        return;
    snprintf(budget, sizeof budget, "at most %s", text_duration(text, 1e-9 * (double)limit_ns));
    say_kept(x, r, budget, (double)limit_ns,
             is_proven(x->t, p, respond) ? ", 95 % sure" : ", not proven");
}

static void add_percentile(struct trade *x, enum tune_percentile p) {
    static const char *const labels[TUNE_PERCENTILES] = {"step time p50", "step time p95",
                                                         "step time p99"};
    const uint64_t limit_ns = x->t->request.limit_ns[p];
    struct tune_trade *r = add(x, labels[p], p != TUNE_P95 || limit_ns > 0);
    for (int k = 0; k < 2; k++) {
        const struct quantile q = tune_quantile(&x->t->settings[x->at[k]], tune_percentile_of(p));
        fill_quantile(r, k, &q);
    }
    say_change(x, r, KIND_TIME);
    say_limit(x, r, p, false, limit_ns);
}

// The wait as the budget for answers counts it (from the p95 step), also when there is no budget.
static void add_wait(struct trade *x) {
    const struct tune_request *request = &x->t->request;
    struct tune_trade *r = add(x, "a request waits, p95", true);
    for (int k = 0; k < 2; k++) {
        const struct tune_setting *s = &x->t->settings[x->at[k]];
        struct quantile q = tune_quantile(s, 0.95);
        q.value = 1e9 * tune_wait_of(request, &s->knobs, 1e-9 * q.value);
        q.upper95 = 1e9 * tune_wait_of(request, &s->knobs, 1e-9 * q.upper95);
        fill_quantile(r, k, &q);
    }
    say_change(x, r, KIND_TIME);
    say_limit(x, r, TUNE_P95, true, request->respond_ns);
}

static void add_memory(struct trade *x, uint64_t budget, bool planned) {
    struct tune_trade *r = add(x, planned ? "memory planned" : "memory measured", planned);
    char text[TEXT_UNIT_BYTES];
    for (int k = 0; k < 2; k++) {
        const struct tune_setting *s = &x->t->settings[x->at[k]];
        const uint64_t bytes = planned ? s->need_bytes : s->memory_bytes;
        if (bytes == 0)
            continue;
        r->value[k] = (double)bytes;
        snprintf(r->text[k], sizeof r->text[k], "%s", text_bytes(text, bytes));
    }
    say_change(x, r, KIND_OTHER);
    if (budget > 0 && planned) {
        const uint64_t have = x->t->settings[x->at[1]].have_bytes; // minus head-room
        say_kept(x, r, text_bytes(text, budget), (double)(have > 0 ? have : budget), "");
    }
}

static void add_energy(struct trade *x, bool metered) {
    const double limit = x->t->request.joules_per_token;
    struct tune_trade *r = add(x, "energy per token", metered || limit > 0);
    char budget[48];
    for (int k = 0; k < 2; k++) {
        r->value[k] = tune_joules_per_token(&x->t->settings[x->at[k]]);
        if (isfinite(r->value[k]))
            snprintf(r->text[k], sizeof r->text[k], "%.3g J", r->value[k]);
        else if (x->t->settings[x->at[k]].n > 0)
            snprintf(r->text[k], sizeof r->text[k], "%s",
                     metered ? "not metered for long enough" : "no meter");
    }
    say_change(x, r, KIND_OTHER);
    snprintf(budget, sizeof budget, "at most %.3g J", limit);
    if (limit > 0)
        say_kept(x, r, budget, limit, "");
}

int tune_trade_rows(const struct tune *t, uint64_t memory_budget,
                    struct tune_trade rows[TUNE_TRADE_MOST]) {
    struct trade x = {.t = t, .at = {0, t->chosen > 0 ? t->chosen : 0}, .rows = rows};
    bool metered = false;
    for (int i = 0; i < t->n; i++)
        metered |= isfinite(tune_joules_per_token(&t->settings[i]));
    if (t->n == 0)
        return 0;
    add_speed(&x);
    add_sample(&x);
    for (int p = 0; p < TUNE_PERCENTILES; p++)
        add_percentile(&x, (enum tune_percentile)p);
    if (t->request.goal == TUNE_HYBRID)
        add_wait(&x);
    add_memory(&x, memory_budget, true);
    add_memory(&x, memory_budget, false);
    add_energy(&x, metered);
    return x.n;
}

// ---------------------------------------------------------------- for people

static void put_text(struct table *table, const struct tune_trade *r, int side) {
    table_put(table, "%s%s", r->text[side][0] ? r->text[side] : "not measured",
              r->unbounded[side] ? "?" : "");
}

// A choice that is as given needs no second column.
#define ROW(X)                                                                                     \
    X("the trade", NULL, LEFT, table_text(table, r->label))                                        \
    X("as given", NULL, RIGHT, put_text(table, r, 0))                                              \
    X("chosen", NULL, RIGHT, if (changed) put_text(table, r, 1); else table_text(table, ""))       \
    X("change", NULL, RIGHT, table_text(table, r->change))                                         \
    X("budget", NULL, RIGHT, table_text(table, r->budget))                                         \
    X("", NULL, LEFT, table_text(table, r->kept))

static const struct table_column columns[] = {ROW(TABLE_COLUMN)};

// Nothing was traded and nothing was asked for: the table of the settings says it all.
static bool has_budget(const struct tune_trade *rows, int n) {
    for (int i = 0; i < n; i++)
        if (rows[i].budget[0])
            return true;
    return false;
}

void tune_print_trade(const struct tuning *t, FILE *f) {
    struct tune_trade rows[TUNE_TRADE_MOST];
    const int n = tune_trade_rows(&t->tune, t->base.memory, rows);
    const bool changed = t->tune.chosen > 0;
    bool unbounded = false;
    struct table trade, *table = &trade;
    if (t->tune.chosen < 0 || (!changed && !has_budget(rows, n)))
        return;
    table_init(table, columns, sizeof columns / sizeof *columns, TABLE_MARKDOWN,
               (struct table_style){0});
    for (int i = 0; i < n; i++) {
        const struct tune_trade *r = &rows[i];
        if (!r->brief)
            continue;
        unbounded |= r->unbounded[0] || (changed && r->unbounded[1]);
        table_row(table);
        ROW(TABLE_CELL)
    }
    fputc('\n', f);
    (void)table_print(table, f, NULL);
    table_free(table);
    if (unbounded)
        fprintf(f, "%s\n", tune_unbounded_note);
    for (int i = 0; i < n; i++)
        if (rows[i].hint)
            fprintf(f, "%s: %s\n", rows[i].label, rows[i].hint);
    if (t->tune.busy > 0)
        fprintf(f, "step times: of all steps, also while other programs were busy\n");
}
