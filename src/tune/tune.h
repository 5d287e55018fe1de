// tune.h - the bargain: under budgets for memory and latency, which settings of the knobs serve a goal
// best, found by predicting first and measuring what is plausible.
//
// Place: api/tune.c gives a laboratory (how a setting is planned and measured here), a recipe, a goal
// and budgets; what comes back is every setting that was looked at, with its figures or the reason why
// it was not measured, the frontier, and the choice. This folder prints nothing and writes nothing: the
// laboratory hears of every stage and every trial as it happens.
//
// Invariants:
//   1. The mathematics stays: tokens per step, sequence length, optimizer and data are the recipe's.
//      Only knobs marked tunable move; what else may move is in tune_request.allow.
//   2. A setting is chosen only when it was measured, fits memory with head-room, and no budget is
//      known to be broken. Where the samples cannot bound a percentile, the choice says so.
//   3. Nothing here reads a clock or a random number: the laboratory's clock is the only one, so a
//      search over a made-up machine repeats to the bit.
#ifndef HAGGLE_TUNE_TUNE_H
#define HAGGLE_TUNE_TUNE_H

#include "knob/knob.h"
#include "measure/sample.h"
#include "measure/trace.h"

enum { TUNE_TEXT_BYTES = 512, TUNE_NAME_BYTES = 256 };

// ---------------------------------------------------------------- what is asked

enum tune_goal {
    TUNE_BULK,        // most tokens per second
    TUNE_INTERACTIVE, // least time per sample; with a latency budget: most tokens/s under it
    TUNE_HYBRID,      // most tokens per second while requests are answered between micro-batches
    TUNE_GOALS
};
const char *tune_goal_name(enum tune_goal g);

// What beyond the tunable knobs may move. enum, name on the command line.
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
    uint64_t limit_ns[TUNE_PERCENTILES]; // of a step; 0: none
    uint64_t respond_ns;                 // from a request to its answer, of TUNE_HYBRID; 0: none
    double answer_s; // a request's own turn where a second model answers; 0: the bulk's model does
    double turn_s;   // its own turn in the bulk's model, predicted; 0: not known
    double update_s; // of a step, the optimizer's part, for which a request waits too; 0: not known
    double joules_per_token; // 0: no limit
    uint64_t time_ns;        // for the whole search
    uint64_t begin_ns;       // of the laboratory's clock: when that began; 0: with tune_run
    unsigned allow;          // bits 1 << enum tune_allow
    int cpus;                // this process may use
    bool on_device;          // a GPU computes: its knobs have an effect, the CPU's none
    double critical_samples; // sequences per step beyond which data is wasted; 0: not known
};

// ---------------------------------------------------------------- the laboratory

struct tune_plan {
    int rc; // 0: can be run; else why not
    char reason[TUNE_TEXT_BYTES];
    uint64_t need_bytes, have_bytes; // head-room is taken off what there is
    double step_s;                   // predicted; NaN: not known
    bool guessed;                    // from ops that were not timed with these threads and types
};

struct tune_measured {
    int rc; // 0: steps were measured; else why not
    char reason[TUNE_TEXT_BYTES];
    bool reused;     // from an earlier search
    double *step_ns; // malloc'd by the laboratory, freed by the search
    size_t n;
    uint64_t tokens, wall_ns; // of these steps, loader included
    struct time_split split;
    uint64_t memory_bytes; // measured peak; 0: not known
    double joules;         // NaN: no meter
};

enum tune_go { TUNE_GO_ON, TUNE_DOMINATED, TUNE_OVER_BUDGET, TUNE_ENOUGH };
// Asked after every measured step, with all samples of the trial so far.
typedef enum tune_go tune_judge_fn(void *arg, const double *step_ns, size_t n);

struct tune_order {
    int64_t warmup, steps; // at most
    double step_s;         // predicted: how long to wait for one before giving up; NaN: not known
    bool fresh;            // a finalist: what earlier searches measured will not do
    bool first;            // look at this setting
    bool now;              // nothing that was measured before will do
    double left_s;         // of the time for the search; negative: it is over
    tune_judge_fn *judge;
    void *judge_arg;
};

struct tune;
struct tune_setting;

struct tune_lab {
    void *arg;
    int (*plan)(void *arg, const struct knobs *k, struct tune_plan *out, struct err *e);
    // Fails only when nothing can be measured any more (stopped, no processes): a setting that
    // fails is a result.
    int (*measure)(void *arg, const struct knobs *k, const struct tune_order *o,
                   struct tune_measured *out, struct err *e);
    uint64_t (*clock_ns)(void *arg);
    // What was measured of it before, at no cost; out->n stays 0 where nothing was. May be NULL: there is no such.
    int (*recall)(void *arg, const struct knobs *k, const struct tune_order *o,
                  struct tune_measured *out, struct err *e);
    // Both may be NULL. A stage is heard of when it is over.
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
    TUNE_PLANNED,  // predicted, not measured: nothing spoke for it
    TUNE_MEASURED, // on the way to the choice
    TUNE_REFUSED,  // does not fit, or is not accepted here
    TUNE_SLOWER,   // measured, and ended early: another is surely better
    TUNE_OVER,     // a budget is broken, measured or predicted
    TUNE_FAILED,   // its process died, hung or reported an error
    TUNE_OUTCOMES
};
const char *tune_outcome_name(enum tune_outcome o);

struct tune_block { // one visit
    uint64_t tokens, wall_ns;
    size_t first, n; // its samples
};
enum { TUNE_BLOCKS_MOST = 64 };

struct tune_setting {
    struct knobs knobs;
    char name[TUNE_NAME_BYTES]; // what differs from the recipe; "as given"
    enum tune_stage stage;      // that brought it in
    enum tune_outcome outcome;
    char reason[TUNE_TEXT_BYTES];
    uint64_t need_bytes, have_bytes;
    double predicted_s; // of a step; NaN
    bool guessed;       // as in tune_plan
    // Measured, over all visits:
    double *step_ns;
    size_t n, capacity;
    struct tune_block blocks[TUNE_BLOCKS_MOST];
    int n_blocks;
    uint64_t tokens, wall_ns, memory_bytes;
    double typical_s;              // of a step; see tune_typical
    uint64_t first_ns, visited_ns; // when first, when last
    double joules;                 // of the visits that were metered; NaN: none
    uint64_t joule_tokens, joule_ns;
    struct time_split split;
    bool doubtful; // its samples speak against a budget, and do not prove it
    bool frontier;
    int reused; // visits that came from an earlier search
};

struct tune_decision { // of a stage
    char text[TUNE_TEXT_BYTES];
    int trials;
    uint64_t ns;
    bool done;
};

// Budgets of latency, as limits on a percentile of a setting's steps. What a request may wait is one on
// its p95: a step is as many waits as it has micro-batches.
struct tune_limit {
    enum tune_percentile p;
    bool respond;   // from request.respond_ns
    double step_ns; // 0 or less: no step is that short
};
enum { TUNE_LIMITS_MOST = TUNE_PERCENTILES + 1 };
int tune_limits(const struct tune_request *r, const struct knobs *k,
                struct tune_limit out[TUNE_LIMITS_MOST]); // how many there are

struct tune_bound { // of a percentile of the choice
    enum tune_percentile p;
    bool respond; // of what a request waits; else of a step
    uint64_t limit_ns;
    struct quantile q;
    bool proven; // its upper bound is under the limit
};

struct tune {
    struct tune_request request;
    struct tune_lab lab;
    struct tune_setting *settings; // [0] is the recipe as given
    int n, capacity;
    struct tune_decision stages[STAGE_COUNT];
    int chosen;                // -1: none
    bool provisional, certain; // a budget is not proven; the order of the finalists is sure
    bool compared;             // there was time to compare them
    int explored;              // settings that were measured because they looked best
    bool hurried;              // settings were left that should have been measured
    bool unplanned; // or that should have been planned: some are one change away from the recipe
    double
        slowed; // how many times as long steps were while somebody else had the machine; 0: nobody
    int forgotten; // settings measured then, which count as not measured (forget.c)
    int failed_rc; // of the first trial that failed; 0: none did
    struct tune_bound bounds[TUNE_LIMITS_MOST];
    int n_bounds;
    uint64_t begin_ns, end_ns; // of the laboratory's clock
    int trials, reused;        // reused: of them, from earlier searches
    char why_none[TUNE_TEXT_BYTES];
};

// Runs the playbook. 0 also when nothing could be chosen (out->chosen < 0, out->why_none says why);
// ERR_STOPPED keeps what there is. tune_free in every case.
int tune_run(struct tune *out, const struct knobs *base, const struct tune_request *r,
             const struct tune_lab *lab, struct err *e);
void tune_free(struct tune *t);
int tune_why_rc(const struct tune *t); // why nothing was chosen, as a code

// ---------------------------------------------------------------- figures of a setting

double tune_tokens_per_s(const struct tune_setting *s); // NaN: not measured
double tune_ms_per_sample(const struct tune_setting *s);
struct quantile tune_quantile(const struct tune_setting *s, double p);
double tune_joules_per_token(const struct tune_setting *s); // NaN: no meter, or not for long enough
// What a request may wait, at most, with steps of this length: the rest of a micro-batch, on a device with the
// one that the host had already sent, and the update where that follows; then its own turn, which is one
// sample of the micro-batch, or what is predicted where that is longer (interactive.micro, interactive.seq), or a
// second model's where that answers.
double tune_wait_of(const struct tune_request *r, const struct knobs *k, double step_s);
// What settings are compared by. What others do on a machine only ever adds to a step, for seconds at a time
// and by half of it, and to whichever setting is being measured then: so each visit is taken for its
// median, and of the visits the lower quartile.
double tune_typical(const double *step_ns, const struct tune_block *visits, int n);
// What the goal makes small, of a typical step: seconds per token or per sample. NaN: not measured.
double tune_cost(const struct tune *t, const struct tune_setting *s);
bool tune_has_limits(const struct tune_request *r);

#endif
