// tune.h - the search: which settings of the knobs serve a goal best under budgets for memory and
// latency. It predicts all settings first and measures those that are plausible.
//
// Place: api/tune.c gives a laboratory (how a setting is planned and measured on this machine), a
// recipe, a goal and budgets. It gets back every setting that was looked at, with its figures or
// the reason why it was not measured, the frontier, and the choice. The search prints nothing and
// writes nothing. It calls the laboratory at the end of every stage and every trial.
//
// Terms: a setting is a value for every knob. A trial, or visit, is one run of some steps of a
// setting. The recipe is the setting that was given.
//
// Invariants:
//   1. The mathematics stays: tokens per step, sequence length, optimizer and data are as in the
//      recipe. Only knobs marked tunable change, and what tune_request.allow names.
//   2. A setting is chosen only when it was measured, fits memory with head-room, and no budget is
//      known to be broken. Where the samples cannot bound a percentile, the choice says so.
//   3. The search reads no clock but the laboratory's, and no random number. So a search over a
//      made-up machine repeats to the bit.
#ifndef HAGGLE_TUNE_TUNE_H
#define HAGGLE_TUNE_TUNE_H

#include "hw/apart.h"
#include "knob/knob.h"
#include "measure/sample.h"
#include "measure/trace.h"
#include "tune/policy.h"

enum { TUNE_TEXT_BYTES = 512, TUNE_NAME_BYTES = 256 };

// ---------------------------------------------------------------- what is asked

enum tune_goal {
    TUNE_BULK,        // most tokens per second
    TUNE_INTERACTIVE, // least time per sample; with a latency budget: most tokens/s under it
    TUNE_HYBRID,      // most tokens per second while requests are answered between micro-batches
    TUNE_GOALS
};
const char *tune_goal_name(enum tune_goal g);

// What may change beside the tunable knobs. enum, name on the command line.
#define TUNE_ALLOW_LIST(X)                                                                         \
    X(ALLOW_PRECISION, "precision") /* element types of weights and activations */                 \
    X(ALLOW_STATE, "state")         /* types of the optimizer's moments (optim.state) */           \
    X(ALLOW_BATCH, "batch")         /* tokens per step: batch.micro x batch.accum */
enum tune_allow {
#define X(name, text) name,
    TUNE_ALLOW_LIST(X)
#undef X
        ALLOW_COUNT
};
const char *tune_allow_name(enum tune_allow a);

enum tune_percentile { TUNE_P50, TUNE_P95, TUNE_P99, TUNE_PERCENTILES };
double tune_percentile_of(enum tune_percentile p); // 0.5, ...

struct tune_request {
    enum tune_goal goal;
    uint64_t limit_ns[TUNE_PERCENTILES]; // of step times; 0: no limit
    uint64_t respond_ns; // TUNE_HYBRID: limit from a request to its answer; 0: no limit
    double answer_s;     // predicted turn of a request in a second model; 0: the bulk model answers
    double turn_s;       // predicted turn of a request in the bulk model; 0: not known
    double update_s; // the optimizer's part of a step, for which a request waits too; 0: not known
    double joules_per_token; // limit; 0: none
    uint64_t time_ns;        // for the whole search
    uint64_t begin_ns; // when the search's time began, by the laboratory's clock; 0: with tune_run
    unsigned allow;    // bits 1 << enum tune_allow
    int cpus;          // this process may use
    bool on_device;    // a GPU computes: its knobs have an effect, the CPU's have none
    double critical_samples;          // sequences per step; larger batches waste data; 0: not known
    const struct tune_policy *policy; // outlives the search; NULL: tune_policy_default
};

// ---------------------------------------------------------------- the laboratory

struct tune_plan {
    int rc; // 0: the setting can run; else a code, and the reason in words
    char reason[TUNE_TEXT_BYTES];
    uint64_t need_bytes, have_bytes; // have_bytes is what there is minus the head-room
    double step_s;                   // predicted; NaN: not known
    bool guessed; // step_s is from ops that were not timed with these threads and types
};

struct tune_measured {
    int rc; // 0: steps were measured; else a code, and the reason in words
    char reason[TUNE_TEXT_BYTES];
    bool reused;     // an earlier search measured them
    double *step_ns; // malloc'd by the laboratory, freed by the search
    size_t n;
    uint64_t tokens, wall_ns; // of these steps, loader included
    struct time_split split;
    uint64_t memory_bytes; // measured peak; 0: not known
    double joules;         // NaN: no meter
    double busy;           // share of the time lost to other programs; NaN: they cannot be seen
    struct apart cpus;     // how far its threads were from each other; none: not known
};

enum tune_go { TUNE_GO_ON, TUNE_DOMINATED, TUNE_OVER_BUDGET, TUNE_ENOUGH };
// Called after every measured step with all samples of the trial so far. Says how to go on.
typedef enum tune_go tune_judge_fn(void *arg, const double *step_ns, size_t n);

struct tune_order {
    int64_t warmup, steps; // steps that are not counted; at most so many that are
    double step_s; // predicted; says how long to wait for a step before giving up; NaN: not known
    bool fresh;    // a finalist: do not use what earlier searches measured
    bool first;    // first visit to this setting
    bool now;      // use nothing that was measured before
    double left_s; // of the search's time; negative: it is over
    tune_judge_fn *judge;
    void *judge_arg;
};

struct tune;
struct tune_setting;

struct tune_lab {
    void *arg;
    int (*plan)(void *arg, const struct knobs *k, struct tune_plan *out, struct err *e);
    // Fails only when nothing can be measured any more (stopped, no processes). A setting that
    // fails is a result: out->rc.
    int (*measure)(void *arg, const struct knobs *k, const struct tune_order *o,
                   struct tune_measured *out, struct err *e);
    uint64_t (*clock_ns)(void *arg);
    // Gets what was measured of the setting before, without a trial. out->n stays 0 if nothing was.
    // May be NULL: nothing was ever measured before.
    int (*recall)(void *arg, const struct knobs *k, const struct tune_order *o,
                  struct tune_measured *out, struct err *e);
    // Both may be NULL, and get heard_arg. on_stage is called when the stage is over.
    void *heard_arg;
    void (*on_trial)(void *arg, const struct tune *t, const struct tune_setting *s,
                     const struct tune_measured *m);
    void (*on_stage)(void *arg, const struct tune *t, int stage);
};

// ---------------------------------------------------------------- what comes back

// The playbook. enum, name.
#define TUNE_STAGE_LIST(X)                                                                         \
    X(STAGE_PROFILE, "profile")                                                                    \
    X(STAGE_MEMORY, "memory")                                                                      \
    X(STAGE_LATENCY, "latency target")                                                             \
    X(STAGE_BATCH, "grow the batch")                                                               \
    X(STAGE_SPLIT, "micro-batch against accumulation")                                             \
    X(STAGE_COMM, "communication")                                                                 \
    X(STAGE_DATA, "data and threads")                                                              \
    X(STAGE_FUSION, "fusion")                                                                      \
    X(STAGE_FINALISTS, "finalists")
enum tune_stage {
#define X(name, text) name,
    TUNE_STAGE_LIST(X)
#undef X
        STAGE_COUNT
};
const char *tune_stage_name(enum tune_stage s);

enum tune_outcome {
    TUNE_PLANNED,  // predicted, not measured: not expected to be better
    TUNE_MEASURED, // may be chosen
    TUNE_REFUSED,  // does not fit, or is not accepted here
    TUNE_SLOWER,   // measured: another setting is better
    TUNE_OVER,     // a budget is broken, measured or predicted
    TUNE_FAILED,   // its process died, hung or reported an error
    TUNE_OUTCOMES
};
const char *tune_outcome_name(enum tune_outcome o);

struct tune_block { // one visit
    uint64_t tokens, wall_ns;
    size_t first, n; // its samples in tune_setting.step_ns
    bool busy;       // other programs took part of the machine meanwhile
    bool moved;      // its CPUs moved nearer to each other or apart meanwhile
    double apart_ns; // how far they were from each other; NaN: not known, or moved
};

// The rounds in which the CPUs were equally far from each other. The nearest comes first.
struct tune_state {
    double apart_ns;         // typical of these rounds; NaN: not known
    int rounds;              // that count, and were held against each other
    double ratio, low, high; // as in tune_turns; NaN: one round says nothing
};
enum { TUNE_STATES_MOST = 4 };

// What running in turns with the recipe as given showed. If that cannot run, the choice stands in
// for it.
struct tune_turns {
    int rounds; // that count: others were quiet, the CPUs stayed; 0: it did not run in turns
    double ratio, low, high; // speed for the goal, as given = 1; 95 % interval; NaN: too few rounds
    double tokens_per_s;
    // Where they ran while the CPUs were at different distances, ratio is the mean over the rounds,
    // and low and high hold for each distance. 1 state, or 0 in old searches: nothing changed.
    struct tune_state states[TUNE_STATES_MOST];
    int n_states;
};

struct tune_setting {
    struct knobs knobs;
    char name[TUNE_NAME_BYTES]; // knobs that differ from the recipe; "as given": none
    enum tune_stage stage;      // that added it
    enum tune_outcome outcome;
    char reason[TUNE_TEXT_BYTES];
    uint64_t need_bytes, have_bytes;
    double predicted_s; // of a step; NaN: not known
    bool guessed;       // as in tune_plan
    // Measured, over all visits:
    double *step_ns;
    size_t n, capacity;
    struct tune_block *blocks;
    int n_blocks, blocks_capacity;
    int quiet;     // visits in which other programs were quiet, or could not be seen
    int well, ill; // visits that ended well; those that failed since the last of them
    struct tune_turns turns;
    uint64_t tokens, wall_ns, memory_bytes;
    double typical_s;              // of a step; see tune_typical
    uint64_t first_ns, visited_ns; // end of the first and of the last visit, laboratory's clock
    double joules;                 // of the visits that were metered; NaN: none was
    uint64_t joule_tokens, joule_ns;
    struct time_split split;
    bool doubtful; // it probably breaks a budget, but that is not proven
    bool frontier;
    int reused; // visits that an earlier search made
};

struct tune_decision { // of a stage, in words
    char text[TUNE_TEXT_BYTES];
    int trials;
    uint64_t ns;
    bool done;
};

// A latency budget as a limit on a percentile of a setting's step times. The limit on a request's
// wait becomes one on the p95 step, because the wait grows with the step (tune_wait_of).
struct tune_limit {
    enum tune_percentile p;
    bool respond;   // from request.respond_ns
    double step_ns; // 0 or less: no step is short enough
};
enum { TUNE_LIMITS_MOST = TUNE_PERCENTILES + 1 };
int tune_limits(const struct tune_request *r, const struct knobs *k,
                struct tune_limit out[TUNE_LIMITS_MOST]); // returns how many there are

// Why the choice is what it is. enum, name.
#define TUNE_WHY_LIST(X)                                                                           \
    X(TUNE_WHY_NONE, "none")     /* nothing was chosen */                                          \
    X(TUNE_WHY_FASTER, "faster") /* better than as given beyond the interval of their rounds */    \
    X(TUNE_WHY_NEEDED, "needed") /* as given does not run, or is not known to keep a budget */     \
    X(TUNE_WHY_BEST, "best")     /* as given is kept: the next best setting is worse */            \
    X(TUNE_WHY_EQUAL, "equal")   /* it is kept: nothing is better beyond the interval */           \
    X(TUNE_WHY_ALONE, "alone")   /* it is kept: no other setting can be chosen */                  \
    X(TUNE_WHY_TOO_BUSY, "too busy") /* it is kept: others were at work too often to tell */
enum tune_why {
#define X(name, text) name,
    TUNE_WHY_LIST(X)
#undef X
        TUNE_WHYS
};
const char *tune_why_name(enum tune_why w);

struct tune_bound { // of a percentile of the choice
    enum tune_percentile p;
    bool respond; // of a request's wait; else of a step
    uint64_t limit_ns;
    struct quantile q;
    bool proven; // its upper bound is under the limit, however often the search looked
};

struct tune {
    struct tune_request request;
    const struct tune_policy *policy; // request.policy, or the default
    struct tune_lab lab;
    struct tune_setting *settings; // [0] is the recipe as given
    int n, capacity;
    struct tune_decision stages[STAGE_COUNT];
    int chosen; // -1: none
    enum tune_why why;
    int rival;         // the setting that the choice was compared with at the end; -1: none
    bool provisional;  // a budget of the choice is not proven
    bool certain;      // the order of the finalists is certain
    bool compared;     // there was time to compare the finalists
    int explored;      // settings that were measured because they looked best
    bool hurried;      // promising settings were not measured for lack of time
    bool unplanned;    // time was too short to plan all settings close to the recipe
    double slowed;     // steps took this many times as long while another program used the machine;
                       // 0: no such program was noticed
    int forgotten;     // settings measured then, which count as not measured (forget.c)
    int busy;          // visits while other programs were at work
    bool busy_now;     // the last visit was one of them
    int moved;         // quiet visits during which the CPUs moved
    struct apart cpus; // over the visits with as many threads as the recipe
    double busy_most;  // the largest share of a visit's time that they took; NaN: they are not seen
    int failed_rc;     // of the first trial that failed; 0: none did
    struct tune_bound bounds[TUNE_LIMITS_MOST];
    int n_bounds;
    uint64_t begin_ns, end_ns; // by the laboratory's clock
    int trials, reused;        // reused: trials that earlier searches made
    char why_none[TUNE_TEXT_BYTES];
};

// Runs the search. Returns 0 also when nothing could be chosen (out->chosen < 0, out->why_none says
// why). With ERR_STOPPED *out holds what was found so far. The caller calls tune_free in every
// case.
int tune_run(struct tune *out, const struct knobs *base, const struct tune_request *r,
             const struct tune_lab *lab, struct err *e);
void tune_free(struct tune *t);
int tune_why_rc(const struct tune *t); // error code of the reason why nothing was chosen

// ---------------------------------------------------------------- figures of a setting

double tune_tokens_per_s(const struct tune_setting *s); // NaN: not measured
double tune_ms_per_sample(const struct tune_setting *s);
struct quantile tune_quantile(const struct tune_setting *s, double p);
double tune_joules_per_token(const struct tune_setting *s); // NaN: not metered, or too briefly
// The longest wait of a request, in seconds, with steps of this length. The parts are:
//   - the micro-batch under way; on a device also the next one, which the host has already sent;
//   - the optimizer's update, which may follow;
//   - the request's own turn: predicted for a second model, if that answers; else one sample of the
//     bulk model, or what is predicted for its turn where that is longer (interactive.micro,
//     interactive.seq).
double tune_wait_of(const struct tune_request *r, const struct knobs *k, double step_s);
// The typical step in seconds, by which settings are compared: the lower quartile over visits of
// the median of each visit. Visits while others were busy count only if there is no other. Other
// programs on the machine only ever make steps longer, by half and for seconds at a time, and it is
// chance which setting is being measured then. A mean would say more about those programs than
// about the setting.
double tune_typical(const double *step_ns, const struct tune_block *visits, int n);
// What the goal minimizes, for a typical step: seconds per token or per sample. NaN: not measured.
double tune_cost(const struct tune *t, const struct tune_setting *s);
// "states": what the rounds showed at each distance of the CPUs.
void tune_put_states(const struct tune_turns *x, struct json_writer *w);
bool tune_has_limits(const struct tune_request *r);

#endif
