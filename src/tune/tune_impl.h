// tune_impl.h - what the files of this folder share.
#ifndef HAGGLE_TUNE_TUNE_IMPL_H
#define HAGGLE_TUNE_TUNE_IMPL_H

#include "measure/bound.h"
#include "tune/tune.h"

// ---------------------------------------------------------------- tune.c: settings

enum {
    TUNE_SETTINGS_MOST = 4096,
    // A GPU's counter of energy moves every tenth of a second or so: of a few short steps it says nothing.
    TUNE_METERED_LEAST_NS = 500000000
};
// The setting with these knobs, planned when it is new; its index, or a negative code.
int tune_add(struct tune *t, const struct knobs *k, enum tune_stage stage, struct err *e);
double tune_elapsed(const struct tune *t); // share of request.time_ns that has passed
double tune_left_s(const struct tune *t);  // of it; negative: more has passed
// The same of the time that is for searching: finals.c keeps some for the proof that a budget is kept.
double tune_searched(const struct tune *t);
// What the goal makes small, as predicted from a step's time; NaN: not known.
double tune_predicted_cost(const struct tune *t, const struct knobs *k, double step_s);
// request.update_s from the first setting that was measured: others have as many weights, and about the same.
void tune_learn_update(struct tune *t, const struct tune_setting *s);
int64_t tune_samples_per_step(const struct knobs *k);

// ---------------------------------------------------------------- space.c: what could be tried

// Which stage moves a knob: STAGE_SPLIT for what trades time for memory, STAGE_DATA, STAGE_FUSION;
// STAGE_COUNT: none does.
enum tune_stage space_stage(int id, const struct tune_request *r);
enum { SPACE_VALUES_MOST = 12, SPACE_VALUE_BYTES = 32 };
struct space_values {
    char text[SPACE_VALUES_MOST][SPACE_VALUE_BYTES];
    int n;
};
// Values worth trying for a knob of a setting, its own among them.
void space_values(const struct knobs *k, int id, const struct tune_request *r,
                  struct space_values *out);
// Adds the product of all knobs of STAGE_SPLIT, fewest changes first, until `share` of the time is
// spent on planning.
int space_core(struct tune *t, double share, struct err *e);

// ---------------------------------------------------------------- belief.c: what is expected

// Of each setting, from what was measured: the logarithm of its cost, as a normal distribution.
struct belief {
    double mean, deviation;
};
// One per setting, into out[t->n]; NaN where nothing can be said. ERR_MEMORY.
int belief_update(const struct tune *t, struct belief *out, struct err *e);
// Expected improvement on `best`, as a share of it.
double belief_gain(const struct belief *b, double best);

// ---------------------------------------------------------------- visit.c: one trial

// Steps of a first visit that are not counted. On a device the second captures its graphs and the third is the first to run
// them, in every trial: the steps after them are those of a run.
enum { TUNE_WARM_STEPS = 2, TUNE_DEVICE_WARM_STEPS = 3 };

struct visit {
    int64_t steps; // at most; 0: as many as the figure needs
    bool judged;   // may be ended early when another is surely better
    bool long_run; // a finalist: no early end for being precise enough
    bool now;      // nothing that was measured before
    bool recalled; // nothing else; where there is nothing, no visit
};
int visit_setting(struct tune *t, int i, const struct visit *v, struct err *e);
// Seconds of a typical step of the visits from this one on.
double visit_typical(const struct tune_setting *s, int from);
// Adds what a trial measured to a setting.
int visit_keep(struct tune_setting *s, const struct tune_measured *m, struct err *e);
int tune_best(
    const struct tune *t); // of the measured that keep the budgets as far as known; -1: none
// Whether a limit is kept, or broken: valid however often it is asked.
struct bound_verdict visit_bound(const struct tune_setting *s, const struct tune_limit *l);
// A typical step, as a share of the tightest limit.
double visit_strain(const struct tune *t, const struct tune_setting *s);
// The budget that is broken for sure, in words; false when none is.
bool visit_breaks_limit(const struct tune *t, const struct tune_setting *s,
                        char why[TUNE_TEXT_BYTES]);

// ---------------------------------------------------------------- forget.c

// Looks again at what was measured first, where time allows. When it is much faster by now somebody else has left
// the machine: what is as slow as it was is as good as never measured, and *out is true.
int forget_the_slow(struct tune *t, bool *out, struct err *e);

// ---------------------------------------------------------------- finals.c

// t->chosen stays -1 when none of the finalists keeps the budgets; they are then known to be over.
int finals_run(struct tune *t, struct err *e);
// A proven one goes before a faster one that time cannot prove and that does not look as if it could be: where
// there is nothing else, the best of those.
void finals_take_doubtful(struct tune *t);
// Of the choice: what its samples say of each percentile that has a limit.
void finals_bounds(struct tune *t);
// Pareto set over tokens/s, p99, memory and, where it was metered, energy, among what was measured.
void frontier_mark(struct tune *t);

#endif
