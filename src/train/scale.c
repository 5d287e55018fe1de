// scale.c - see scale.h.
#include "train/scale.h"

#include <math.h>

static double power_of_two(double x) {
    int exponent;
    frexp(x, &exponent);
    return ldexp(1, exponent - 1); // the largest power of two that is not above x
}

void loss_scale_start(struct loss_scale *s, const struct knobs *k) {
    *s = (struct loss_scale){.value = 1};
    if (k->precision == PRECISION_FP16)
        s->value = fmax(power_of_two(k->scale_start), k->scale_floor);
}

bool loss_scale_valid(const struct loss_scale *s, const struct knobs *k) {
    if (k->precision != PRECISION_FP16)
        return s->value == 1 && s->good_steps == 0;
    return isfinite(s->value) && s->value > 0 && s->value <= SCALE_MOST &&
           s->value == power_of_two(s->value) && s->good_steps >= 0;
}

int loss_scale_update(struct loss_scale *s, const struct knobs *k, bool finite, int64_t step,
                      struct err *e) {
    if (k->precision != PRECISION_FP16)
        return 0;
    if (finite) {
        if (++s->good_steps < k->scale_growth)
            return 0;
        s->good_steps = 0;
        if (2 * s->value <= SCALE_MOST)
            s->value *= 2;
        return 0;
    }
    s->good_steps = 0;
    if (s->value / 2 >= k->scale_floor) {
        s->value /= 2;
        return 0;
    }
    return err_set(e, ERR_NUMERIC,
                   "step %lld: gradients are not finite in fp16 even with a loss scale of %g, the "
                   "smallest that scale.floor=%g allows. Try precision=bf16, a lower optim.lr or a "
                   "longer sched.warmup",
                   (long long)step, s->value, k->scale_floor);
}
