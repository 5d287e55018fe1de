// schedule.c - see schedule.h.
#include "train/schedule.h"

#include <math.h>

// The share of the decay that is done at `step`, from 0 to 1. Step `from` is the last one at the
// full rate, step `last` the first one at the lowest rate.
static double progress(int64_t step, int64_t from, int64_t last) {
    if (step <= from)
        return 0;
    if (step >= last)
        return 1;
    return (double)(step - from) / (double)(last - from);
}

static double decay_line(double least, double done) {
    return 1 - (1 - least) * done;
}

double schedule_lr(const struct knobs *k, int64_t step) {
    const int64_t warmup = k->sched_warmup > 1 ? k->sched_warmup : 1, last = k->steps - 1;
    if (step > last)
        step = last;
    if (step < 0) // a run without steps
        step = 0;
    if (step + 1 < warmup)
        return k->optim_lr * ((double)(step + 1) / (double)warmup);
    int64_t from = warmup - 1; // the first step at the full rate
    double factor = 1;
    switch (k->sched_kind) {
    case SCHED_CONSTANT:
        break;
    case SCHED_LINEAR:
        factor = decay_line(k->sched_min, progress(step, from, last));
        break;
    case SCHED_COSINE: {
        // cos(pi) is exact, so the last step has sched.min to the last bit.
        double done = progress(step, from, last);
        factor = k->sched_min + (1 - k->sched_min) * 0.5 * (1 + cos(acos(-1.0) * done));
        break;
    }
    case SCHED_WSD: {
        int64_t stay = last - llround(k->sched_decay * (double)k->steps);
        factor = decay_line(k->sched_min, progress(step, stay > from ? stay : from, last));
        break;
    }
    }
    return k->optim_lr * factor;
}
