// store.h - every trial and every tuning, in one SQLite file, written as it happens.
//
// Place: bench and tune write a row when a trial ends; tune asks for earlier ones before it measures;
// `haggle trials` and the report read. Only this folder knows SQL.
//
// Invariants:
//   1. A call that writes is one transaction, on disk when it returns: after kill -9 or a power cut
//      the file holds whole rows, and all of those that were reported as written.
//   2. Any number of processes may write at once: each waits for the other, for half a minute at
//      most. A store belongs to the process that opened it: a child of fork must not use it (it may
//      _exit or exec).
//   3. A file that is not a store, is damaged, or was written by a newer haggle is refused with a
//      sentence that names it, and left as it is. Its contents are checked as if a stranger had
//      written them.
//   4. What was not measured is NaN (0 for bytes) in a row and NULL in the file, never 0.
//   5. Times are wall seconds since 1970; every other unit is in the name.
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
    STORE_READ,  // the file must be there
    STORE_WRITE, // it is made when it is not, with its folder
};

int store_open(struct store **out, const char *path, enum store_mode mode, struct err *e);
void store_close(struct store *s); // NULL is fine; a tuning that is not finished can be continued
const char *store_path(const struct store *s); // as it was given
const char *store_sqlite_version(void);        // "3.40.1"

enum { STORE_PATH_BYTES = 1024 };
// $XDG_DATA_HOME/haggle/trials.db, else ~/.local/share/haggle/trials.db; ERR_UNSUPPORTED without
// either.
int store_default_path(char out[STORE_PATH_BYTES], struct err *e);

// ---------------------------------------------------------------- trials

// What became of a trial. enum, name in the file. Append only.
#define STORE_OUTCOME_LIST(X)                                                                      \
    X(OUTCOME_MEASURED, "measured")                                                                \
    X(OUTCOME_REFUSED, "refused")         /* before it ran: does not fit, not supported */         \
    X(OUTCOME_FAILED, "failed")           /* while it ran */                                       \
    X(OUTCOME_DOMINATED, "dominated")     /* ended early: another is surely better */              \
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

struct store_split { // per step, of the parts of measure/trace.h; NaN: not known
    double ms[TIME_COUNT];
};
struct store_classes { // of the arena
    uint64_t bytes[CLASS_COUNT];
};

// The columns of a trial: kind, C type, name. Kinds: int; opt (0 is NULL); real (NaN is NULL); text
// (never NULL; a pointer that is valid while the row is looked at); lines (such a text); outcome; split and classes (JSON
// objects). Struct, INSERT and SELECT come from this list; the table is in schema.c, which says how
// to add a column.
#define STORE_TRIAL_COLUMNS(X)                                                                     \
    X(opt, int64_t, tuning) /* 0: of none */                                                       \
    X(real, double, started_at)                                                                    \
    X(text, const char *, origin)  /* the verb: "bench", "tune" */                                 \
    X(text, const char *, key)     /* store_key: what must be the same for reuse */                \
    X(text, const char *, setting) /* store_setting: what was tried */                             \
    X(lines, const char *, knobs)  /* name=value lines: all that is not at its default */          \
    X(text, const char *, model)                                                                   \
    X(text, const char *, stage) /* of the tuning; "": none */                                     \
    X(outcome, enum store_outcome, outcome)                                                        \
    X(text, const char *, reason) /* "" when there is nothing to say */                            \
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
    X(real, double, step_p50_upper95_ms) /* NULL: steps do not allow a bound */                    \
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
    X(real, double, hfu)

struct store_trial {
    int64_t id; // given by the store
#define X(kind, type, name) type name;
    STORE_TRIAL_COLUMNS(X)
#undef X
};

// A row in which nothing is known yet: NaN, 0 and "".
void store_trial_init(struct store_trial *t);
enum { STORE_SAMPLES_MOST = 1 << 20 };
// Adds a trial with its raw step times (n may be 0); *id (may be NULL) becomes its number.
int store_trial_add(struct store *s, const struct store_trial *t, const double *step_ns, size_t n,
                    int64_t *id, struct err *e);

enum { STORE_OUTSIDE = -1 };
// For reuse: key and setting. What was measured holds; a refusal holds for its budget (memory=) alone,
// which is no part of a setting.
struct store_filter {    // zeroed: all trials
    int64_t id;          // 0: any
    int64_t tuning;      // 0: any; STORE_OUTSIDE: of none
    const char *key;     // NULL: any, as all below
    const char *setting; // with `key`: what was measured of it before
    const char *model, *outcome;
};
// Calls fn with each trial, oldest first; fn returning non-zero ends it and is returned. Pointers in
// the row are valid inside fn only, which must not use the store.
typedef int store_trial_fn(void *arg, const struct store_trial *t);
int store_trials(struct store *s, const struct store_filter *f, store_trial_fn *fn, void *arg,
                 struct err *e);
// The step times of a trial in the order they were measured, malloc'd; NULL and 0 when it has none.
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
    const char *key;             // as of its trials
    const char *model;
    const char *recipe; // YAML, complete: what it began from
    enum store_state state;
    int64_t chosen; // trial; 0: none yet
    const char *verdict;
    bool held;                // a process is at work on it; running and not held: it died
    int64_t trials, measured; // how many it has
};

struct store_stage {
    int64_t ordinal; // 0, 1, ...
    const char *name, *decision;
    double started_at, ended_at;
};

// Of t it reads started_at, goal, budgets, key, model and recipe. The tuning is this store's until it
// is finished or closed: no other process continues it meanwhile.
int store_tuning_begin(struct store *s, const struct store_tuning *t, int64_t *id, struct err *e);
// The newest tuning of the same key, goal, budgets and recipe as t that was stopped or whose process died;
// it is this store's from now on, and running. *id is 0 when there is none.
int store_tuning_find_unfinished(struct store *s, const struct store_tuning *t, int64_t *id,
                                 struct err *e);
// TUNING_DONE or TUNING_STOPPED. chosen 0: none.
int store_tuning_finish(struct store *s, int64_t id, enum store_state state, int64_t chosen,
                        const char *verdict, struct err *e);
// A stage that ended. One of the same ordinal is replaced: a tuning that goes on decides anew.
int store_stage_add(struct store *s, int64_t tuning, const struct store_stage *stage,
                    struct err *e);

// As store_trials, newest tuning first. id 0 and model NULL: all.
typedef int store_tuning_fn(void *arg, const struct store_tuning *t);
int store_tunings(struct store *s, int64_t id, const char *model, store_tuning_fn *fn, void *arg,
                  struct err *e);
typedef int store_stage_fn(void *arg, const struct store_stage *t);
int store_stages(struct store *s, int64_t tuning, store_stage_fn *fn, void *arg, struct err *e);

// ---------------------------------------------------------------- key.c: what may be compared

// Trials with the same key were measured on the same model shape, data, hardware and build: their
// figures may stand side by side, and be reused.
struct store_key_parts {
    const struct model_shape *shape;
    const char *data;     // whatever describes its lengths
    const char *hardware; // fingerprints of machine and device
    const char *build;    // build_id
};
int store_key(const struct store_key_parts *p, char out[HASH_TEXT_BYTES], struct err *e);
// What distinguishes one trial from another under a key: the knobs that speed or memory depend on,
// without those that are idle beside the others and without `model`, which is in the key as a shape.
int store_setting(const struct knobs *k, char out[HASH_TEXT_BYTES], struct err *e);
// All knobs that are not at their default, name=value with line breaks between; malloc'd.
int store_knobs_text(const struct knobs *k, char **out, struct err *e);

#endif
