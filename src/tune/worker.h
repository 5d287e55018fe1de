// worker.h - a worker: a process that stays and measures one configuration after another.
//
// Place: the tuner opens one (or one per device) and runs its trials there. A trial costs its steps
// but no start-up, because the process keeps threads, data, weights and memory between trials
// (engine/engine.h, train/trial.h). A configuration that is killed, crashes, hangs or runs out of
// memory costs only that trial: the next worker_run starts a new process.
//
// Compared with trial_run, which forks for each trial, times and memory are the same. Losses are
// not those of a new model if result.kept_weights is set.
//
// Invariants:
//   1. When a process is started (by worker_open, and by worker_run after one was lost), the caller
//      has no other threads and has opened no device. A fork copies only the calling thread, and
//      not the context of a device. Workers share nothing, so any number may be open.
//   2. A worker's process never outlives its owner, and ends with worker_close. It writes no files
//      except what a dataset caches.
//   3. When memory runs out, the kernel kills the worker's process first (oom_score_adj).
#ifndef HAGGLE_TUNE_WORKER_H
#define HAGGLE_TUNE_WORKER_H

#include "train/trial.h"

#include <sys/types.h>

struct worker;

// Looks at a trial's steps so far (with warm-up, oldest first). Returning true ends the trial, and
// `reason` then says why in words. Called in the owner's process as samples arrive: once per step,
// or once per some milliseconds if steps are short.
enum { WORKER_REASON_BYTES = 256 };
typedef bool worker_judge_fn(void *arg, const struct trial_sample *samples, int64_t n,
                             char reason[WORKER_REASON_BYTES]);

struct worker_options {
    // For tests that make a worker fail: called in the worker's process after each step. Else NULL.
    void (*fault)(void *arg, const struct knobs *k, int64_t step);
    void *fault_arg;
};

struct worker_job {
    const struct knobs *knobs;
    int64_t warmup, steps;
    // Not 0: the process is killed at once, and worker_run returns ERR_STOPPED. May be NULL.
    const volatile sig_atomic_t *stop;
    // A process that sends nothing for longer hangs: before the first step (while data is read, the
    // process does send), and between two steps. 0: no limit.
    uint64_t start_limit_ns, step_limit_ns;
    // clock_ns when the caller's time is over; 0: never. A process that is silent then is killed,
    // unless it may be in a step: it gets twice the longest step of this trial and a second, and
    // before the first step 10 s (60 s on a device).
    uint64_t end_ns;
    worker_judge_fn *judge; // may be NULL
    void *judge_arg;
};

// Starts the process at once, so that a failure is known at once.
int worker_open(struct worker **out, const struct worker_options *o, struct err *e);
void worker_close(struct worker *w); // NULL is accepted

// Measures one configuration. Returns 0 also when it was refused or its process was lost: see
// out->rc and out->reason. Steps that came before are in *out. out->ended_early is set if the judge
// ended it. Fails when no process could be started, and with ERR_STOPPED. Call trial_free(out) in
// every case.
int worker_run(struct worker *w, const struct worker_job *job, struct trial_result *out,
               struct err *e);

void worker_renew(struct worker *w); // ends the process; the next worker_run starts a new one

pid_t worker_pid(const struct worker *w);      // -1: no process at present
int64_t worker_starts(const struct worker *w); // processes started so far

#endif
