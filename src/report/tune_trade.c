// tune_trade.c - the trade that a search found, for people: the recipe as given next to the choice.
#include "report/tune_print.h"

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
    enum { SPEED, SAMPLE, P50, P99, MEMORY, ENERGY, ROWS };
    struct row rows[ROWS] = {{.label = "tokens/s"}, {.label = "time per sample"},
                             {.label = "step p50"}, {.label = "step p99"},
                             {.label = "memory"},   {.label = "energy per token"}};
    char text[TEXT_UNIT_BYTES];
    if (t->tune.chosen <= 0)
        return;
    for (int side = 0; side < 2; side++) {
        const struct tune_setting *s = &t->tune.settings[side ? t->tune.chosen : 0];
        fill_number(&rows[SPEED], side, tune_tokens_per_s(s), "", 0);
        fill_number(&rows[SAMPLE], side, s->n > 0 ? tune_ms_per_sample(s) : NAN, " ms", 2);
        fill_step(&rows[P50], side, s, 0.5);
        fill_step(&rows[P99], side, s, 0.99);
        fill_number(&rows[ENERGY], side, tune_joules_per_token(s), " J", 4);
        rows[MEMORY].value[side] = s->need_bytes > 0 ? (double)s->need_bytes : NAN;
        snprintf(rows[MEMORY].text[side], sizeof rows->text[side], "%s",
                 text_bytes(text, s->need_bytes));
    }
    fprintf(f, "\n%-*s %*s %*s\n", LABEL, "the trade", VALUE, "as given", VALUE, "chosen");
    for (int i = 0; i < ROWS; i++)
        if (i != ENERGY || isfinite(rows[i].value[0]) || isfinite(rows[i].value[1]))
            print_row(&rows[i], f);
}
