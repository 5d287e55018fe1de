// hyper.c - see hyper.h.
#include "train/hyper.h"
#include "train/schedule.h"

#include "base/rng.h"

#include <math.h>

// Streams of random draws (base/rng.h) for rounding optimizer state: "optim" and "guest" in ASCII.
static const uint64_t STREAM_OPTIM = 0x6f7074696d;
static const uint64_t STREAM_GUEST = 0x6775657374;

// 1 - beta^t. For beta near 1 the plain difference loses digits; expm1 keeps them all. beta = 0
// gives log 0 = -inf, and so 1.
static double bias_correction(double beta, int64_t t) {
    return -expm1((double)(t > 1 ? t : 1) * log(beta));
}

int64_t hyper_updates(const struct train_state *st) {
    return st->step - st->skipped_steps - st->empty_steps + st->guest_updates;
}

// Steps and requests draw from different streams, so a request changes no draw of a step.
static uint64_t draw_key(const struct knobs *k, const struct hyper_step *at) {
    const uint64_t seed = (uint64_t)k->seed;
    return at->guest > 0 ? rng_u64(seed, STREAM_GUEST, (uint64_t)at->guest)
                         : rng_u64(seed, STREAM_OPTIM, (uint64_t)at->step);
}

void hyper_fill(const struct knobs *k, const struct hyper_step *at, double out[HYPER_COUNT]) {
    out[HYPER_LR] = schedule_lr(k, at->step);
    out[HYPER_BETA1] = k->optim_beta1;
    out[HYPER_BETA2] = k->optim_beta2;
    out[HYPER_EPS] = k->optim_eps;
    out[HYPER_DECAY] = k->optim_decay;
    out[HYPER_CLIP] = k->optim_clip;
    out[HYPER_BIAS1] = bias_correction(k->optim_beta1, at->update);
    out[HYPER_BIAS2] = bias_correction(k->optim_beta2, at->update);
    out[HYPER_LOSS_FACTOR] =
        at->trained_tokens > 0 ? at->loss_scale / (double)at->trained_tokens : 0;
    out[HYPER_SCALE] = at->loss_scale;
    out[HYPER_DRAW] = (double)(draw_key(k, at) >> 11);
}
