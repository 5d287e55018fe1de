// lab.h - the laboratory of tune.h on this machine: settings are planned here and timed by the
// predictor, and measured in a worker's process.
//
// Invariants: the calling process starts no threads and opens no device, so that a worker can be forked
// at any time; whatever computes does so in a child (calibration too).
#ifndef HAGGLE_TUNE_LAB_H
#define HAGGLE_TUNE_LAB_H

#include "train/trial.h"
#include "tune/tune.h"

struct lab;

struct lab_options {
    const struct session_options *session; // the programs of a run, with the recipe's knobs
    const volatile sig_atomic_t *stop;     // may be NULL
    // What a trial came to, in full; `ended` says what ended it early (TUNE_GO_ON: nothing did). May be
    // NULL.
    void (*on_result)(void *arg, const struct knobs *k, const struct trial_result *r,
                      enum tune_go ended);
    void *on_result_arg;
    uint64_t guest_bytes; // that a hybrid run takes for requests; 0: it answers none
    // Of the whole search: the ops of the recipe are timed for a share of it first, where that was not done before.
    // 0: they are not.
    double time_s;
    bool all_types; // the ops of other element types too, which may be chosen
};

// Reads the data (which may take a while the first time) and plans the recipe.
int lab_open(struct lab **out, const struct lab_options *o, struct err *e);
void lab_close(struct lab *l); // NULL is accepted
struct tune_lab lab_table(struct lab *l);
// When the data had been read, by the table's clock: what came then is part of the search.
uint64_t lab_begin_ns(const struct lab *l);

// The gradient noise scale of the recipe, from `steps` of its training steps (from its initial weights, or
// those of its folder; it grows as a model learns). Steps of one micro-batch are split for it.
// After `seconds` those that there are must do.
int lab_noise(struct lab *l, int64_t steps, double seconds, struct noise_estimate *out,
              struct err *e);

uint64_t lab_second_bytes(const struct lab *l); // of a second model, which trials do not have
// What a setting may need: "the budget of 6 GiB", "7.4 GiB available", ...
const char *lab_have_is(const struct lab *l);
// Kept free beside a plan: a process is not the same to the byte twice, and a setting that only just
// fits does not fit tomorrow.
uint64_t lab_headroom_bytes(const struct lab *l);
// Why no energy is measured here; "" when it is.
const char *lab_no_meter(const struct lab *l);

#endif
