// tuner_grid.h - a grid of settings that are all measured, to judge what a search finds.
// bench_tuner.c compares with this record, and tuner_search.c searches it again.
#ifndef HAGGLE_BENCH_TUNER_GRID_H
#define HAGGLE_BENCH_TUNER_GRID_H

#include "bench/grid.h"
#include "tune/lab.h"

enum { SAMPLES_MOST = 2048, GRID_ROUNDS_MOST = 128 };

struct looks {
    double step_ns[SAMPLES_MOST]; // of all visits, one after the other
    size_t n;                     // 0: not measured, or the setting does not run
    struct tune_block visits[GRID_ROUNDS_MOST];
    int n_visits;
};

struct point {
    struct knobs knobs;
    size_t at;          // index of the configuration in the grid's axes
    double predicted_s; // before anything was measured
    struct looks grid;  // what searches draw from; longer for settings close to the best
    struct looks again; // what a setting is judged by, if it may be among the best
};

struct record {
    struct grid axes;
    struct point *points;
    int n;
    double visit_s; // seconds of measured steps per visit
    int rounds;
    double seconds;      // time that measuring the grid took
    double update_s;     // the optimizer's part of a step, on average
    double timing_s;     // time that a search spends on timing ops before its first trial
    double planning_s;   // and on planning all settings
    uint64_t respond_ns; // time budget for requests, chosen after all settings were measured
};

// A goal and its budget.
struct target {
    enum tune_goal goal;
    uint64_t respond_ns; // 0: no budget
    double update_s;     // the optimizer's part of a step, which a request waits for too
};

// The product of the axes. With `samples` (sequences per step), batch.accum follows from
// batch.micro.
int record_plan(struct record *r, const char *const *axes, size_t n, int64_t samples,
                struct err *e);
void record_free(struct record *r);
// Predicts the step times with the laboratory's predictor.
int record_predict(struct record *r, struct tune_lab *lab, struct err *e);
// Measures all settings, in rounds that alternate in direction.
int record_measure(struct record *r, struct tune_lab *lab, struct err *e);
// Measures the settings within `near` of the best for a target in more rounds. Among hundreds of
// settings that differ by less than two visits of one setting do, the best one is the luckiest,
// and a search that draws the same visits would share that luck. With `shared`, every
// other pair of rounds goes to the visits that searches draw from: with few of those, a search
// would find the luckiest setting too.
struct second_look {
    const struct target *targets;
    int n_targets;
    double near;
    int rounds;
    bool shared;
};
int record_look_again(struct record *r, const struct second_look *s, struct tune_lab *lab,
                      struct err *e);
// Saves the record, so that it can be searched later on any machine. Load it with the same axes.
int record_save(const struct record *r, const char *path, struct err *e);
int record_load(struct record *r, const char *path, struct err *e);
int record_find(const struct record *r, const struct knobs *k); // -1: not in the record

// Steps of a visit that are not counted: as many as in the tuner's first trial of a setting.
int visit_warmup(const struct knobs *k);
// Measures steps for `seconds`, at least three. *n is 0 when the setting failed. The time split is
// added to *split unless it is NULL.
int record_visit(struct tune_lab *lab, const struct knobs *k, double seconds,
                 double step_ns[SAMPLES_MOST], size_t most, size_t *n, struct time_split *split,
                 struct err *e);

// The cost that the goal makes small (see tune.h), for a step of step_s seconds.
double target_cost(const struct target *g, const struct knobs *k, double step_s);
double visit_cost(const struct target *g, const struct knobs *k, const double *step_ns, size_t n);
// The cost of a setting's typical step, from the second look if there was one; NaN: not known.
double point_cost(const struct target *g, const struct point *p);
// Steps over a limit, divided by how many its percentile allows: 1 is just allowed. Takes the limit
// with the largest value. NaN: no steps.
double steps_over(const struct target *g, const struct knobs *k, const double *step_ns, size_t n);
// Whether these steps (for a point: the recorded ones) keep every limit.
bool steps_keep(const struct target *g, const struct knobs *k, const double *step_ns, size_t n);
bool point_keeps(const struct target *g, const struct point *p);
// The best setting by the record, among those with a second look; -1: none keeps the target.
int record_best(const struct record *r, const struct target *g);
// Runs the best few of the record in turns again, because the record's best may just be lucky.
int record_confirm_best(const struct record *r, const struct target *g, struct tune_lab *lab,
                        int *best, struct err *e);

double median_of(double *x, size_t n); // sorts x; NaN when n is 0

#endif
