// tune_impl.h - functions that the files of this folder share.
#ifndef HAGGLE_TUNE_TUNE_IMPL_H
#define HAGGLE_TUNE_TUNE_IMPL_H

#include "measure/bound.h"
#include "measure/contest.h"
#include "tune/tune.h"

// ---------------------------------------------------------------- tune.c: settings

enum {
    TUNE_SETTINGS_MOST = 4096,
    // A GPU's energy counter moves every tenth of a second or so. Trials of four steps had half or
    // twice the joules of long ones.
    TUNE_METERED_LEAST_NS = 500000000
};
// Finds the setting with these knobs, or plans and adds it. Returns its index or a negative code.
int tune_add(struct tune *t, const struct knobs *k, enum tune_stage stage, struct err *e);
double tune_elapsed(const struct tune *t); // share of request.time_ns that has passed
double tune_left_s(const struct tune *t);  // seconds of it that are left; negative: it is over
// Share of the time for searching that has passed: all the time minus what finals.c keeps to prove
// that a budget is kept.
double tune_searched(const struct tune *t);
// What the goal minimizes, for a step of this length: seconds per token or per sample. NaN: not
// known.
double tune_predicted_cost(const struct tune *t, const struct knobs *k, double step_s);
// Sets request.update_s from the first setting that was measured. Other settings have as many
// weights, so their updates take about as long.
void tune_learn_update(struct tune *t, const struct tune_setting *s);
int64_t tune_samples_per_step(const struct knobs *k);

// ---------------------------------------------------------------- space.c: what could be tried

// The stage that changes a knob: STAGE_SPLIT for knobs that trade time for memory, STAGE_DATA or
// STAGE_FUSION. STAGE_COUNT: no stage does.
enum tune_stage space_stage(int id, const struct tune_request *r);
enum { SPACE_VALUES_MOST = 12, SPACE_VALUE_BYTES = 32 };
struct space_values {
    char text[SPACE_VALUES_MOST][SPACE_VALUE_BYTES];
    int n;
};
// Values worth trying for a knob of a setting. The first is the one it has.
void space_values(const struct knobs *k, int id, const struct tune_request *r,
                  struct space_values *out);
// Adds the product of all knobs of STAGE_SPLIT, fewest changes first, until planning has taken
// `share` of the time.
int space_core(struct tune *t, double share, struct err *e);

// ---------------------------------------------------------------- belief.c: what is expected

// What is known of the logarithm of a setting's cost, as a normal distribution.
struct belief {
    double mean, deviation;
};
// Fills out[t->n], one per setting. Fails with ERR_MEMORY or ERR_NUMERIC.
int belief_update(const struct tune *t, struct belief *out, struct err *e);
// Expected improvement on the cost `best`, relative to it.
double belief_gain(const struct belief *b, double best);

// ---------------------------------------------------------------- visit.c: one trial

// Steps at the start of a first visit that are not counted. On a device the second step captures
// the graphs and the third is the first to run them, in every trial. Only the steps after them are
// like those of a run.
enum { TUNE_WARM_STEPS = 2, TUNE_DEVICE_WARM_STEPS = 3 };

struct visit {
    int64_t steps; // at most; 0: until the figure is precise
    bool judged;   // may end early when another setting is certainly better
    bool long_run; // of a finalist: does not end early for being precise
    bool now;      // use nothing that was measured before
    bool recalled; // use only what was measured before; without that there is no visit
};
int visit_setting(struct tune *t, int i, const struct visit *v, struct err *e);
// Seconds of a typical step (tune_typical) in the visits number `from` and later.
double visit_typical(const struct tune_setting *s, int from);
// Adds what a trial measured to a setting.
int visit_keep(const struct tune_policy *p, struct tune_setting *s, const struct tune_measured *m,
               struct err *e);
// The cheapest measured setting that is not known to break a budget; -1: none.
int tune_best(const struct tune *t);
// Whether the percentile is proven under its limit, over it, or neither. Valid however often it is
// asked.
struct bound_verdict visit_bound(const struct tune *t, const struct tune_setting *s,
                                 const struct tune_limit *l);
// A typical step divided by the tightest limit; 0: there is no limit.
double visit_strain(const struct tune *t, const struct tune_setting *s);
// True if a budget is certainly broken; `why` then says which, in words.
bool visit_breaks_limit(const struct tune *t, const struct tune_setting *s,
                        char why[TUNE_TEXT_BYTES]);

// ---------------------------------------------------------------- forget.c

// Measures the first setting again, where time allows. If it is much faster by now, another program
// used the machine at first and has ended. Settings measured at that time count as not measured,
// and *out is true.
int forget_the_slow(struct tune *t, bool *out, struct err *e);

// ---------------------------------------------------------------- rounds.c: run in turns

enum { ROUNDS_MOST = CONTEST_MOST_BLOCKS };
struct seat {
    int at;                   // setting
    int64_t steps;            // of one visit
    bool out;                 // lost, failed or over a budget: no longer visited
    double cost[ROUNDS_MOST]; // logarithm of the cost in each round; NaN: the visit does not count
    double apart_ns[ROUNDS_MOST]; // as in tune_block
    bool moved[ROUNDS_MOST];
    uint64_t tokens, wall_ns; // of the visits that count
    int quiet;                // how many visits count
};
struct rounds {
    struct tune *t;
    struct seat seats[TUNE_FINALISTS_ROOM];
    int n, done;
};
void rounds_begin(struct rounds *r, struct tune *t);
// Lets a setting take part, unless it cannot run.
int rounds_seat(struct rounds *r, int at, struct err *e);
int rounds_seat_of(const struct rounds *r, int at); // -1: it has no seat
double rounds_seconds(const struct rounds *r);      // that one round takes
// The share of the search's time that so many visits to a setting take.
double rounds_share(const struct tune *t, int at, int rounds);
// Plays a round. *whole is false if there was no time for it.
int rounds_play(struct rounds *r, bool *whole, struct err *e);
// Compares seat a with seat b by the rounds in which both count and the CPUs were equally far from
// each other. Where they were so at different distances, the answer holds at each of them.
void rounds_compare(const struct rounds *r, int a, int b, double confidence, struct contest *out);
// The same with the interval that is told to people: it must hold in the minutes that follow, too.
// Where other programs were seen it is wider by what a ratio drifts there. Fills of[] as
// rounds_states does.
int rounds_announce(const struct rounds *r, int a, int b, double confidence,
                    struct tune_state of[TUNE_STATES_MOST], struct contest *out);
int rounds_pairs(const struct rounds *r, int a, int b); // number of these rounds
double rounds_cost(const struct rounds *r, int i);      // of a seat
// The cheapest seat that is not out and may be chosen; -1: none. The recipe as given counts only
// with `with_given`.
int rounds_leader(const struct rounds *r, bool with_given);
// Fills tune_setting.turns of all seats, relative to the seat `base`.
void rounds_keep(const struct rounds *r, int base, double confidence);
// states.c: the same by distance, nearest first. Returns how many states there are.
int rounds_states(const struct rounds *r, int a, int b, double confidence,
                  struct tune_state of[TUNE_STATES_MOST], struct contest *out);
// The state of each round of the pair; negative: it does not count. Returns how many states there
// are.
int rounds_paired(const struct rounds *r, int a, int b, int state[ROUNDS_MOST]);
double setting_step_s(const struct tune_setting *s); // mean, of a setting that was measured
// Whether a setting may be chosen, as far as is known.
bool setting_stands(const struct tune_setting *s);

// ---------------------------------------------------------------- proof.c

enum proof {
    PROOF_UNDER,  // every percentile with a limit is proven under it
    PROOF_OPEN,   // time is up, and it is neither proven nor in doubt
    PROOF_DOUBTS, // far too many steps are over a limit; or too many, with no time for more
    PROOF_OVER    // a limit is certainly broken, or the setting failed
};
// Measures until every percentile with a limit is proven under it, one is proven over it, or time
// is up.
int proof_run(struct tune *t, int i, enum proof *out, struct err *e);

// ---------------------------------------------------------------- finals.c

// Compares the best settings with each other and with the recipe as given, and sets t->chosen. It
// stays -1 when no finalist keeps the budgets; their outcome is then TUNE_OVER, or they are
// doubtful.
int finals_run(struct tune *t, struct err *e);
// Chooses among doubtful settings, where no other setting can be chosen: the cheapest whose typical
// step keeps the limits.
void finals_take_doubtful(struct tune *t);
// Fills t->bounds: what the samples of the choice say of each percentile that has a limit.
void finals_bounds(struct tune *t);

// ---------------------------------------------------------------- frontier.c

// Marks the Pareto set of the measured settings by tokens/s, p99, memory and, where it was metered,
// energy.
void frontier_mark(struct tune *t);

#endif
