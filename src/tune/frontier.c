// frontier.c - which settings no other setting beats in every figure.
#include "tune/tune_impl.h"

#include <math.h>
#include <stdlib.h>

// a is no worse than b in all figures and better in one. Energy counts only where both were
// metered.
static bool dominates(const struct tune_setting *a, const struct tune_setting *b, double p99_a,
                      double p99_b) {
    double speed_a = tune_tokens_per_s(a), speed_b = tune_tokens_per_s(b);
    double joules_a = tune_joules_per_token(a), joules_b = tune_joules_per_token(b);
    bool metered = isfinite(joules_a) && isfinite(joules_b);
    bool no_worse = speed_a >= speed_b && p99_a <= p99_b && a->need_bytes <= b->need_bytes &&
                    !(metered && joules_a > joules_b);
    bool better = speed_a > speed_b || p99_a < p99_b || a->need_bytes < b->need_bytes ||
                  (metered && joules_a < joules_b);
    return no_worse && better;
}

void frontier_mark(struct tune *t) {
    double *p99 = calloc((size_t)t->n, sizeof *p99);
    for (int i = 0; p99 && i < t->n; i++)
        p99[i] = t->settings[i].n > 0 ? tune_quantile(&t->settings[i], 0.99).value : NAN;
    for (int i = 0; p99 && i < t->n; i++) {
        struct tune_setting *s = &t->settings[i];
        s->frontier = s->n > 0 && s->outcome != TUNE_FAILED;
        for (int k = 0; k < t->n && s->frontier; k++)
            if (k != i && t->settings[k].n > 0 && t->settings[k].outcome != TUNE_FAILED &&
                dominates(&t->settings[k], s, p99[k], p99[i]))
                s->frontier = false;
    }
    free(p99);
}
