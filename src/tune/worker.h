// worker.h - a process that stays and measures one configuration after another.
//
// Place: the tuner opens one (or one per device) and runs its trials there. A trial costs its steps and
// not a start-up, because the process keeps threads, data, weights and memory between trials
// (train/kept.h), and a configuration that is killed, crashes, hangs or runs out of memory costs that
// one trial: the next worker_run starts a new process by itself.
//
// Compared with trial_run, which forks for each trial: times and memory are the same figures; losses
// are not those of a fresh model where result.kept_weights says so.
//
// Invariants:
//   1. The caller has no other threads, and has opened no device, when a process is started (worker_open,
//      and worker_run after one was lost): a fork copies the calling thread only, and a device's
//      context not at all. Workers share nothing; any number may be open.
//   2. A worker's process never outlives its owner, and ends with worker_close. It writes no files but
//      what a dataset caches.
//   3. The process offers itself first to the kernel when memory runs out (oom_score_adj).
#ifndef HAGGLE_TUNE_WORKER_H
#define HAGGLE_TUNE_WORKER_H

#include "train/trial.h"

#include <sys/types.h>

struct worker;

// Looks at a trial's steps so far (warm-up included, oldest first); true: enough is known. `reason` says
// why, in words ("dominated by ..."). Called in the caller's process as samples come in: once per step,
// or once for the steps of some milliseconds where they are short.
enum { WORKER_REASON_BYTES = 256 };
typedef bool worker_judge_fn(void *arg, const struct trial_sample *samples, int64_t n,
                             char reason[WORKER_REASON_BYTES]);

struct worker_options {
    // For tests of what goes wrong: called in the worker's process after each step. NULL otherwise.
    void (*fault)(void *arg, const struct knobs *k, int64_t step);
    void *fault_arg;
};

struct worker_job {
    const struct knobs *knobs;
    int64_t warmup, steps;
    const volatile sig_atomic_t
        *stop; // not 0: the process is ended at once, ERR_STOPPED; may be NULL
    // Silence for longer is a hang: before the first step (data being read is no silence), and
    // between two. 0: no limit.
    uint64_t start_limit_ns, step_limit_ns;
    worker_judge_fn *judge; // may be NULL
    void *judge_arg;
};

// Starts the process, so that failing to is known at once.
int worker_open(struct worker **out, const struct worker_options *o, struct err *e);
void worker_close(struct worker *w); // NULL is accepted

// 0 also when the configuration was refused, or its process was lost: see out->rc and out->reason; steps
// that came before are in *out. out->ended_early when the judge had enough. Fails when no process
// could be made, and with ERR_STOPPED. trial_free(out) in every case.
int worker_run(struct worker *w, const struct worker_job *job, struct trial_result *out,
               struct err *e);

pid_t worker_pid(const struct worker *w);      // -1: none at present
int64_t worker_starts(const struct worker *w); // processes so far

#endif
