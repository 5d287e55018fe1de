// tuner_grid.h - settings that are all measured, so that what a search finds can be judged: the record
// that bench_tuner.c compares with and tuner_search.c searches again.
#ifndef HAGGLE_BENCH_TUNER_GRID_H
#define HAGGLE_BENCH_TUNER_GRID_H

#include "api/grid.h"
#include "tune/lab.h"

enum { SAMPLES_MOST = 2048, ROUNDS_MOST = 128 };

struct looks {
    double step_ns[SAMPLES_MOST]; // of all visits, one after the other
    size_t n;                     // 0: none, or it does not run
    struct tune_block visits[ROUNDS_MOST];
    int n_visits;
};

struct point {
    struct knobs knobs;
    size_t at;          // its configuration in the grid's axes
    double predicted_s; // before anything was measured
    struct looks
        grid; // what searches draw from: of all, and more of those that are close to the best
    struct looks again; // what a setting is judged by, where it may be among the best
};

struct record {
    struct grid axes;
    struct point *points;
    int n;
    double visit_s; // of measured steps
    int rounds;
    double seconds;      // that measuring all of it took
    double update_s;     // of a step the optimizer's part, on average
    double timing_s;     // that a search spends on timing ops,
    double planning_s;   // and on planning all settings, before its first trial
    uint64_t respond_ns; // what requests may wait, chosen when all of it had been measured
};

// A goal, and what must be kept.
struct target {
    enum tune_goal goal;
    uint64_t respond_ns; // 0: nothing
    double update_s;     // of a step, for which a request waits too
};

// The product of the axes; batch.accum follows from batch.micro where `samples` of a step are given.
int record_plan(struct record *r, const char *const *axes, size_t n, int64_t samples,
                struct err *e);
void record_free(struct record *r);
// How long their steps take, by the laboratory's predictor.
int record_predict(struct record *r, struct tune_lab *lab, struct err *e);
// All of it, in rounds there and back.
int record_measure(struct record *r, struct tune_lab *lab, struct err *e);
// Those within `near` of the best for a target in so many more rounds. Of hundreds that differ by less than
// two visits of one do, the best is the luckiest: it is no measure of a search that drew the same luck. With `shared`
// searches draw from every other visit: of what is drawn from, too, few visits would say who is the luckiest.
struct second_look {
    const struct target *targets;
    int n_targets;
    double near;
    int rounds;
    bool shared;
};
int record_look_again(struct record *r, const struct second_look *s, struct tune_lab *lab,
                      struct err *e);
// As a file, so that searches can be tried on it later, on any machine: the same axes read it again.
int record_save(const struct record *r, const char *path, struct err *e);
int record_load(struct record *r, const char *path, struct err *e);
int record_find(const struct record *r, const struct knobs *k); // -1: not in it

int visit_warmup(
    const struct knobs *k); // steps of a visit that are not counted, as the tuner has them at first
// Measured steps for `seconds`, three at least; *n is 0 when the setting failed. split may be NULL: else theirs are
// added.
int record_visit(struct tune_lab *lab, const struct knobs *k, double seconds,
                 double step_ns[SAMPLES_MOST], size_t most, size_t *n, struct time_split *split,
                 struct err *e);

// What the goal makes small, as tune.h has it, for a step of so many seconds.
double target_cost(const struct target *g, const struct knobs *k, double step_s);
double visit_cost(const struct target *g, const struct knobs *k, const double *step_ns, size_t n);
// Of its typical step, by the second look where there was one; NaN: not known.
double point_cost(const struct target *g, const struct point *p);
// Steps over a limit against how many its percentile allows, of the limit where that is most: 1 is as many. NaN: no
// steps.
double steps_over(const struct target *g, const struct knobs *k, const double *step_ns, size_t n);
// Whether a percentile keeps its limit, as far as these steps say; of a point by the record.
bool steps_keep(const struct target *g, const struct knobs *k, const double *step_ns, size_t n);
bool point_keeps(const struct target *g, const struct point *p);
// The best by the record alone, of those that were looked at again: -1, none keeps the target.
int record_best(const struct record *r, const struct target *g);
// The few best by the record run in turns again: the luck of two visits out of hundreds is not the best.
int record_confirm_best(const struct record *r, const struct target *g, struct tune_lab *lab,
                        int *best, struct err *e);

double median_of(double *x, size_t n); // sorts x; NaN without any

#endif
