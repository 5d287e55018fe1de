// tune_trade.c - the trade a search found, for people: a row a figure, as given beside chosen.
#include "api/tune.h"

#include "base/text.h"

#include <math.h>

enum { LABEL = 18, VALUE = 16 };

struct row {
    const char *label;
    double value[2]; // as given, chosen
    char text[2][48];
};

static void print_row(const struct row *r, FILE *f) {
    double change = r->value[1] / r->value[0] - 1;
    fprintf(f, "%-*s %*s %*s", LABEL, r->label, VALUE, r->text[0], VALUE, r->text[1]);
    if (isfinite(change) && fabs(change) >= 0.0005)
        fprintf(f, "   %+.1f %%", 100 * change);
    fputc('\n', f);
}

static void fill_number(struct row *r, int side, double x, const char *unit, int digits) {
    r->value[side] = x;
    if (isfinite(x))
        snprintf(r->text[side], sizeof r->text[side], "%.*f%s", digits, x, unit);
    else
        snprintf(r->text[side], sizeof r->text[side], "not measured");
}

static void fill_step(struct row *r, int side, const struct tune_setting *s, double p) {
    char text[TEXT_UNIT_BYTES];
    struct quantile q = tune_quantile(s, p);
    r->value[side] = q.value;
    if (q.n == 0)
        snprintf(r->text[side], sizeof r->text[side], "not measured");
    else
        snprintf(r->text[side], sizeof r->text[side], "%s%s", text_duration(text, 1e-9 * q.value),
                 quantile_has_bound(&q) ? "" : "?");
}

void tune_print_trade(const struct tuning *t, FILE *f) {
    char text[TEXT_UNIT_BYTES];
    if (t->tune.chosen <= 0)
        return;
    const struct tune_setting *s[2] = {&t->tune.settings[0], &t->tune.settings[t->tune.chosen]};
    struct row speed = {.label = "tokens/s"}, sample = {.label = "time per sample"},
               p50 = {.label = "step p50"}, p99 = {.label = "step p99"},
               memory = {.label = "memory"}, energy = {.label = "energy per token"};
    for (int side = 0; side < 2; side++) {
        fill_number(&speed, side, tune_tokens_per_s(s[side]), "", 0);
        fill_number(&sample, side, s[side]->n > 0 ? tune_ms_per_sample(s[side]) : NAN, " ms", 2);
        fill_step(&p50, side, s[side], 0.5);
        fill_step(&p99, side, s[side], 0.99);
        fill_number(&energy, side, tune_joules_per_token(s[side]), " J", 4);
        memory.value[side] = s[side]->need_bytes > 0 ? (double)s[side]->need_bytes : NAN;
        snprintf(memory.text[side], sizeof memory.text[side], "%s",
                 text_bytes(text, s[side]->need_bytes));
    }
    fprintf(f, "\n%-*s %*s %*s\n", LABEL, "the trade", VALUE, "as given", VALUE, "chosen");
    print_row(&speed, f);
    print_row(&sample, f);
    print_row(&p50, f);
    print_row(&p99, f);
    print_row(&memory, f);
    if (isfinite(energy.value[0]) || isfinite(energy.value[1]))
        print_row(&energy, f);
}
