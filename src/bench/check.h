// check.h - the result of `haggle knobs --check`: each value of a knob is compared with the next
// one. check.c makes it, report/check_print.c prints it.
#ifndef HAGGLE_BENCH_CHECK_H
#define HAGGLE_BENCH_CHECK_H

#include "bench/bench.h"
#include "bench/effects.h"

enum { CHECK_VALUES_MOST = 16, CHECK_PLACES = 6 };

struct check_pair {                     // value i compared with value i + 1
    struct ratio speed;                 // of the second to the first, by their own rounds
    char busy[OTHERS_TEXT_BYTES];       // what other programs took meanwhile; "": nothing notable
    double memory_bytes, planned_bytes; // second minus first; NaN: not known
    double loss;                        // second minus first; NaN: not known
};

struct check_place {
    unsigned place;
    bool looked, differs;
    char reason[ERR_TEXT_BYTES]; // why `looked` is false
};

struct check_knob {
    int id;
    char why_not[ERR_TEXT_BYTES]; // why it is not measured; "": it is measured
    char values[CHECK_VALUES_MOST][KNOB_VALUE_BYTES];
    int n_values;
    struct grid_setting settings[CHECK_VALUES_MOST]; // named by the values
    struct grid grid;
    struct bench bench; // a row per value
    struct check_pair pairs[CHECK_VALUES_MOST];
    struct check_place places[CHECK_PLACES];
    int n_places;
};

// The caller fills base, rounds, steps, warmup, stop and train.
struct check {
    struct knobs base;
    int rounds;
    int64_t steps, warmup;
    const volatile sig_atomic_t *stop;
    effects_train_fn *train;
    struct effects_dir dir; // of the sample files
    struct check_knob *knobs;
    int n;
};

// names: knobs or groups of knobs; none: all knobs. Call check_close in every case.
int check_run(struct check *c, const char *const *names, size_t n_names, struct log *log,
              struct err *e);
void check_close(struct check *c);
// Warns about each place where a knob should have an effect and has none.
void check_say_unseen(const struct check *c, struct log *log);

#endif
