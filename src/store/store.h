// store.h - every trial and every tuning, in one SQLite file, written as it happens.
//
// Place: bench and tune write a row when a trial ends. tune looks for earlier trials before it
// measures. `haggle trials` and the report read. Only this folder contains SQL.
//
// Invariants:
//   1. A call that writes is one transaction, on disk when it returns. After kill -9 or a power cut
//      the file holds whole rows, including all that were reported as written.
//   2. Any number of processes may write at once. Each waits for the others, for at most half a
//      minute. A store belongs to the process that opened it: a child of fork must not use it (it
//      may _exit or exec).
//   3. A file that is not a store, is damaged, or was written by a newer haggle is refused with an
//      error that names it, and is not changed. Its contents are checked as untrusted input.
//   4. What was not measured is NaN (0 for bytes) in a row and NULL in the file, never 0.
//   5. Times are wall seconds since 1970. Every other unit is in the name.
#ifndef HAGGLE_STORE_STORE_H
#define HAGGLE_STORE_STORE_H

#include "base/err.h"
#include "base/hash.h"
#include "knob/knob.h"
#include "measure/trace.h"
#include "model/shape.h"
#include "program/program.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct store;

enum store_mode {
    STORE_READ,  // the file must exist
    STORE_WRITE, // the file is created if missing, with its folder
};

int store_open(struct store **out, const char *path, enum store_mode mode, struct err *e);
void store_close(struct store *s); // NULL is fine; an unfinished tuning can be continued later
const char *store_path(const struct store *s); // as given to store_open
const char *store_sqlite_version(void);        // "3.40.1"

enum { STORE_PATH_BYTES = 1024 };
// $XDG_DATA_HOME/haggle/trials.db, else ~/.local/share/haggle/trials.db; ERR_UNSUPPORTED without
// either.
int store_default_path(char out[STORE_PATH_BYTES], struct err *e);

// ---------------------------------------------------------------- trials

// Outcome of a trial. enum, name in the file. Append only.
#define STORE_OUTCOME_LIST(X)                                                                      \
    X(OUTCOME_MEASURED, "measured")                                                                \
    X(OUTCOME_REFUSED, "refused")         /* before it ran: does not fit, not supported */         \
    X(OUTCOME_FAILED, "failed")           /* while it ran */                                       \
    X(OUTCOME_DOMINATED, "dominated")     /* ended early: another setting is surely better */      \
    X(OUTCOME_OVER_BUDGET, "over_budget") /* a budget is surely exceeded */                        \
    X(OUTCOME_KILLED, "killed")           /* its process died */                                   \
    X(OUTCOME_STOPPED, "stopped")         /* on request */

enum store_outcome {
#define X(name, text) name,
    STORE_OUTCOME_LIST(X)
#undef X
        OUTCOME_COUNT
};
const char *store_outcome_name(enum store_outcome o);
int store_outcome_find(const char *name); // -1: none

struct store_split { // ms per step, by the parts of measure/trace.h; NaN: not known
    double ms[TIME_COUNT];
};
struct store_classes { // bytes of the arena by class
    uint64_t bytes[CLASS_COUNT];
};

// The columns of a trial: kind, C type, name. Kinds:
//   int               an integer
//   opt               an integer; 0 is NULL
//   real              a number; NaN is NULL
//   text              never NULL; a pointer that is valid while the row is visited
//   lines             a text of several lines
//   outcome           a name of STORE_OUTCOME_LIST
//   split, classes    JSON objects
// The struct, INSERT and SELECT come from this list. The table is in schema.c, which says how to
// add a column.
#define STORE_TRIAL_COLUMNS(X)                                                                     \
    X(opt, int64_t, tuning) /* 0: not part of a tuning */                                          \
    X(real, double, started_at)                                                                    \
    X(text, const char *, origin)  /* the verb: "bench", "tune" */                                 \
    X(text, const char *, key)     /* store_key: must be the same for reuse */                     \
    X(text, const char *, setting) /* store_setting: what was tried */                             \
    X(lines, const char *, knobs)  /* name=value lines: all that is not at its default */          \
    X(text, const char *, model)                                                                   \
    X(text, const char *, stage) /* of the tuning; "": none */                                     \
    X(outcome, enum store_outcome, outcome)                                                        \
    X(text, const char *, reason) /* may be "" */                                                  \
    X(int, int64_t, warmup)                                                                        \
    X(int, int64_t, steps) /* measured */                                                          \
    X(int, int64_t, tokens)                                                                        \
    X(int, int64_t, real_tokens)                                                                   \
    X(int, int64_t, trained_tokens)                                                                \
    X(real, double, wall_s)                                                                        \
    X(real, double, tokens_per_s)                                                                  \
    X(real, double, trained_tokens_per_s)                                                          \
    X(real, double, ms_per_sample)                                                                 \
    X(real, double, step_p50_ms)                                                                   \
    X(real, double, step_p95_ms)                                                                   \
    X(real, double, step_p99_ms)                                                                   \
    X(real, double, step_p50_upper95_ms) /* NULL: too few steps for a bound */                     \
    X(real, double, step_p95_upper95_ms)                                                           \
    X(real, double, step_p99_upper95_ms)                                                           \
    X(real, double, data_wait_ms)       /* per step */                                             \
    X(split, struct store_split, split) /* JSON, ms per step */                                    \
    X(opt, int64_t, memory_predicted_bytes)                                                        \
    X(opt, int64_t, memory_measured_bytes)                                                         \
    X(classes, struct store_classes, by_class) /* JSON, bytes */                                   \
    X(real, double, loss_first)                                                                    \
    X(real, double, loss_last)                                                                     \
    X(real, double, predicted_step_ms)                                                             \
    X(real, double, joules_per_token) /* NULL: no meter */                                         \
    X(real, double, utilization)                                                                   \
    X(real, double, mfu)                                                                           \
    X(real, double, hfu)                                                                           \
    X(real, double, busy)           /* share of the time lost to other programs; NULL: not seen */ \
    X(real, double, apart_least_ns) /* how far its threads were apart; NULL: no answer */          \
    X(real, double, apart_most_ns)

struct store_trial {
    int64_t id; // set by the store
#define X(kind, type, name) type name;
    STORE_TRIAL_COLUMNS(X)
#undef X
};

// Sets a row in which nothing is known yet: NaN, 0 and "".
void store_trial_init(struct store_trial *t);
enum { STORE_SAMPLES_MOST = 1 << 20 };
// Adds a trial with its raw step times (n may be 0); *id (may be NULL) becomes its number.
int store_trial_add(struct store *s, const struct store_trial *t, const double *step_ns, size_t n,
                    int64_t *id, struct err *e);

enum { STORE_OUTSIDE = -1 };
// For reuse, give key and setting. A measured trial can be reused. A refusal applies only to its
// budget (memory=), which is not part of a setting.
struct store_filter {    // zeroed: all trials
    int64_t id;          // 0: any
    int64_t tuning;      // 0: any; STORE_OUTSIDE: trials without a tuning
    const char *key;     // NULL: any, as for all below
    const char *setting; // with `key`: finds earlier trials of this setting
    const char *model, *outcome;
};
// Calls fn for each trial, oldest first. A non-zero result of fn ends the loop and is returned.
// Pointers in the row are valid only inside fn, which must not use the store.
typedef int store_trial_fn(void *arg, const struct store_trial *t);
int store_trials(struct store *s, const struct store_filter *f, store_trial_fn *fn, void *arg,
                 struct err *e);
// Returns the step times of a trial in the order of measurement, malloc'd; NULL and 0 if it has
// none.
int store_samples(struct store *s, int64_t trial, double **step_ns, size_t *n, struct err *e);

// ---------------------------------------------------------------- tunings

#define STORE_STATE_LIST(X)                                                                        \
    X(TUNING_RUNNING, "running") /* or its process died: see `held` */                             \
    X(TUNING_DONE, "done")                                                                         \
    X(TUNING_STOPPED, "stopped") /* on request */

enum store_state {
#define X(name, text) name,
    STORE_STATE_LIST(X)
#undef X
        TUNING_STATES
};
const char *store_state_name(enum store_state s);

struct store_tuning {
    int64_t id;
    double started_at, ended_at; // ended_at: NaN while it runs
    const char *goal;            // "bulk", ...
    const char *budgets;         // JSON
    const char *key;             // the same as of its trials
    const char *model;
    const char *recipe; // YAML, complete: the recipe it started from
    enum store_state state;
    int64_t chosen; // id of a trial; 0: none yet
    const char *verdict;
    const char *turns;        // JSON: what running in turns showed; "": nothing, or an older search
    bool held;                // a process works on it; running but not held: its process died
    int64_t trials, measured; // number of its trials
};

struct store_stage {
    int64_t ordinal; // 0, 1, ...
    const char *name, *decision;
    double started_at, ended_at;
};

// Reads started_at, goal, budgets, key, model and recipe of t. The tuning belongs to this store
// until it is finished or the store is closed: no other process continues it meanwhile.
int store_tuning_begin(struct store *s, const struct store_tuning *t, int64_t *id, struct err *e);
// Finds the newest tuning with the same key, goal, budgets and recipe as t that was stopped or
// whose process died. It is set to running and belongs to this store from now on. *id is 0 when
// there is none.
int store_tuning_find_unfinished(struct store *s, const struct store_tuning *t, int64_t *id,
                                 struct err *e);
// state: TUNING_DONE or TUNING_STOPPED. chosen 0: none.
int store_tuning_finish(struct store *s, int64_t id, enum store_state state, int64_t chosen,
                        const char *verdict, const char *turns, struct err *e);
// Adds a stage that ended. It replaces a stage with the same ordinal: a continued tuning decides
// again.
int store_stage_add(struct store *s, int64_t tuning, const struct store_stage *stage,
                    struct err *e);

// Like store_trials, newest tuning first. id 0 and model NULL: all.
typedef int store_tuning_fn(void *arg, const struct store_tuning *t);
int store_tunings(struct store *s, int64_t id, const char *model, store_tuning_fn *fn, void *arg,
                  struct err *e);
typedef int store_stage_fn(void *arg, const struct store_stage *t);
int store_stages(struct store *s, int64_t tuning, store_stage_fn *fn, void *arg, struct err *e);

// ---------------------------------------------------------------- key.c: what may be compared

// Trials with the same key were measured on the same model shape, data, hardware and build. Their
// figures can be compared and reused.
struct store_key_parts {
    const struct model_shape *shape;
    const char *data;     // any text that describes the lengths of the data
    const char *hardware; // fingerprints of machine and device
    const char *build;    // build_id
};
int store_key(const struct store_key_parts *p, char out[HASH_TEXT_BYTES], struct err *e);
// Hashes what distinguishes one trial from another under a key: the knobs that speed or memory
// depend on. It leaves out knobs that have no effect beside the others, and `model`, which is in
// the key as a shape.
int store_setting(const struct knobs *k, char out[HASH_TEXT_BYTES], struct err *e);
// Lists all knobs that are not at their default as name=value, separated by line breaks; malloc'd.
int store_knobs_text(const struct knobs *k, char **out, struct err *e);

#endif
