// trainer_state.h - what the files of the trainer share. Private to them.
//
//   trainer.c        opens a run, prepares it, loops over its steps, saves, validates and ends it
//   trainer_step.c   one step: its data, the meeting of the ranks, the turn, what it showed
//   trainer_care.c   validation, the best one, the end of patience, a run that has diverged
#ifndef HAGGLE_TRAIN_TRAINER_STATE_H
#define HAGGLE_TRAIN_TRAINER_STATE_H

#include "base/clock.h"
#include "data/loader.h"
#include "train/buffers.h"
#include "train/checkpoint.h"
#include "train/evaluate.h"
#include "train/hyper.h"
#include "train/meet.h"
#include "train/rundir.h"
#include "train/trainer.h"

struct pace { // since the beginning, or since the end of warm-up
    uint64_t begin_ns, end_ns;
    uint64_t paused_ns, pause_ns; // validation and saving: before end_ns; after it
    uint64_t steps, tokens, real_tokens, trained_tokens;
    struct data_use data;
};

struct trainer {
    struct plan *plan;     // the caller's
    struct engine *engine; // the caller's
    struct session *s;     // of the plan in the engine; NULL until it is loaded
    const struct knobs *k; // the plan's
    struct trainer_options o;
    struct dataset *opened; // opened by this trainer; NULL: the caller's is used
    const struct dataset *data;
    struct buffers buffers;
    struct loader *loader;
    struct rundir_lock lock;            // of run.dir, until the trainer is closed
    struct checkpoint_dir *checkpoints; // NULL: the run neither saves nor resumes
    struct evaluator *evaluator;        // NULL: no validation
    struct guests *guests;              // NULL: no requests
    bool guests_begun;
    struct samples step_ns;
    struct trace trace;
    bool traced;
    struct energy_meter energy;
    struct energy_lap lap; // over the steps of `pace`, without validation and saving

    struct meeting meeting; // with the other ranks
    struct rank_step last;  // this rank's last step
    bool save_agreed;       // the ranks agreed that a checkpoint is due by time
    // Replicas that train apart (comm.every) have taken steps since they were the same. Until they
    // are again, nothing is saved or validated and the run does not end.
    bool apart, save_waits, eval_waits, end_waits;
    struct rank_report *ranks; // of all ranks, at the end; NULL: one rank

    struct train_state state;
    struct train_state second; // of the second model, if there is one
    bool saving;
    bool asked;         // an observer has asked to stop
    uint64_t apart_ns;  // when to look again how far the CPUs are from each other
    bool late;          // the limit of time passed while the trainer waited for data
    bool data_failed;   // data could not be read; the weights are those of the last step
    uint64_t begin_ns;  // when the run began
    uint64_t origin_ns; // when all ranks were prepared
    uint64_t save_ns;   // when the last save ended, or the first step began
    int64_t warmup, not_finite;
    int64_t saved_step, eval_step; // -1: none
    int64_t sound_step; // newest checkpoint whose weights are known to be sound; -1: none
    bool better;        // the validation of this step is the best so far, and is not saved yet
    struct best_eval best_before; // of it, if `better`
    double loss_first, loss_last;
    struct noise_scale noise;
    double *norms; // of it, in this step: of each replica's first micro-batch, and of its step
    struct pace pace;
    struct train_result r;
    struct err save_error; // of the last save; code 0: it succeeded
};

static inline bool trainer_stop_asked(const struct trainer *t) {
    return t->asked || (t->o.stop != NULL && *t->o.stop != 0);
}

// Whether replicas take steps of their own.
static inline bool trainer_averages(const struct trainer *t) {
    return plan_find(t->plan, PLAN_AVERAGE) >= 0;
}

// Whether validations decide anything.
static inline bool trainer_judges(const struct trainer *t) {
    return t->k->save_best || t->k->stop_patience > 0;
}

void trainer_say(void *arg, enum log_level level, const char *text);
// Answers requests inside a step, or while data is waited for.
int trainer_let_guests_in(void *arg, struct err *e);

// ---------------------------------------------------------------- one step (trainer_step.c)

// ERR_STOPPED: the run ends before this step, and *flags says why (meet.h).
int trainer_step(struct trainer *t, struct train_step *info, unsigned *flags, struct err *e);
// To be called after each step: percentiles and throughput start again when the warm-up is over.
void trainer_end_warmup(struct trainer *t);
// Makes replicas that train apart the same again.
int trainer_average(struct trainer *t, struct trace *trace, struct err *e);
bool trainer_save_due_by_time(const struct trainer *t);
uint64_t trainer_pace_ns(const struct pace *p); // of its steps, without validation and saving

// ---------------------------------------------------------------- care (trainer_care.c)

// ERR_USAGE if save.best or stop.patience is set and the data has no validation part.
int trainer_check_care(const struct trainer *t, struct err *e);
// To be called when a checkpoint was loaded: whether it is sound, and the best one still there.
int trainer_resume_care(struct trainer *t, struct err *e);
int trainer_evaluate(struct trainer *t, struct err *e);
// To be called before and after a save: the checkpoint says whether it is the best one.
void trainer_saving_best(struct trainer *t);
void trainer_saved_best(struct trainer *t, int rc);
// To be called when the run has ended: no later step will show whether the last save is sound.
void trainer_end_care(struct trainer *t);
bool trainer_patience_over(const struct trainer *t);
void trainer_say_patience(struct trainer *t);
// To be called after each step. ERR_NUMERIC: the weights are no good, or have diverged.
int trainer_check_step(struct trainer *t, const struct train_step *info, struct err *e);
// An observer that returns ERR_STOPPED asks to stop. Any other code ends the run at once.
int trainer_heed(struct trainer *t, int rc, struct err *e);

#endif
