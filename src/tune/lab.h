// lab.h - the laboratory of tune.h on this machine. It plans settings, predicts their times with
// the predictor, and measures them in the process of a worker (worker.h).
//
// Invariants: the calling process starts no threads and opens no device, so that a worker can be
// forked at any time. All computation is done in child processes, calibration too.
#ifndef HAGGLE_TUNE_LAB_H
#define HAGGLE_TUNE_LAB_H

#include "train/trial.h"
#include "tune/tune.h"

struct history;
struct lab;

struct lab_options {
    const struct knobs *knobs;         // the recipe's
    const volatile sig_atomic_t *stop; // may be NULL
    struct history *history;           // read before a trial, written after it; NULL: not kept
    uint64_t guest_bytes;              // memory for the requests of a hybrid run; 0: no requests
    // Time of the whole search. A share of it goes into timing the recipe's ops first, if they were
    // not timed before. 0: ops are not timed.
    double time_s;
    bool count_busy; // trials count also while other programs are at work
    bool all_types;  // also times the ops of other element types, which the search may choose
};

// Reads the data (which may take a while the first time) and plans the recipe.
int lab_open(struct lab **out, const struct lab_options *o, struct err *e);
void lab_close(struct lab *l); // NULL is accepted
struct tune_lab lab_table(struct lab *l);
// When the data had been read, by the table's clock. The search begins then.
uint64_t lab_begin_ns(const struct lab *l);

// Measures the gradient noise scale of the recipe (train/noise.h) in `steps` training steps from
// its initial weights, or those of its folder. The scale grows as a model learns. A recipe whose
// step is one micro-batch is split in two for it. After `seconds` the steps done so far must be
// enough.
int lab_noise(struct lab *l, int64_t steps, double seconds, struct noise_estimate *out,
              struct err *e);

uint64_t lab_second_bytes(const struct lab *l); // of the second model, which trials do not load
// The memory that settings may use, in words: "the budget of 6 GiB", "7.4 GiB available", ...
const char *lab_have_is(const struct lab *l);
// Bytes kept free beside a plan. Two processes never take exactly the same memory, so a setting
// that only just fits today may not fit tomorrow.
uint64_t lab_headroom_bytes(const struct lab *l);
// Why no energy is measured here; "" if it is.
const char *lab_no_meter(const struct lab *l);

#endif
