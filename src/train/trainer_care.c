// trainer_care.c - what validations and losses decide about a run: which checkpoint is the best,
// when patience ends, when the run has diverged.
//
// All ranks decide from the same figures: the loss of a step is that of all ranks, and rank 0's
// figure of a validation counts for all.
#include "train/trainer_state.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

// So many steps in a row that are not finite are no outliers: the run has diverged.
enum { NOT_FINITE_MOST = 10 };

int trainer_heed(struct trainer *t, int rc, struct err *e) {
    if (rc != ERR_STOPPED)
        return rc;
    t->asked = true;
    err_clear(e);
    return 0;
}

int trainer_check_care(const struct trainer *t, struct err *e) {
    const struct knobs *k = t->k;
    const char *what = k->save_best ? "save.best" : "stop.patience";
    if (!trainer_judges(t))
        return 0;
    return dataset_windows(t->data, SPLIT_VALIDATION) > 0
               ? 0
               : err_set(e, ERR_USAGE,
                         "%s looks at validations, and the data has no validation part; accepted: "
                         "data.val above 0, or data.val_path",
                         what);
}

// ---------------------------------------------------------------- validation

static int judge(struct trainer *t, struct train_eval *v, struct err *e) {
    double loss = v->loss;
    t->better = false;
    v->judged = trainer_judges(t) && v->complete && t->r.steps_run > 0;
    if (!v->judged)
        return 0;
    TRY(comm_share(t->meeting.comm, &loss, sizeof loss, e));
    t->best_before = t->state.best;
    t->better = v->best = best_see(&t->state.best, v->step, loss);
    return 0;
}

// Between validation batches only evaluations run, because the checkpoint of this step may already
// be written.
static int let_guests(void *arg, struct err *e) {
    struct trainer *t = arg;
    return guests_serve(t->guests, &t->state, false, e);
}

int trainer_evaluate(struct trainer *t, struct err *e) {
    const struct train_observer *ob = &t->o.observer;
    struct train_eval *v = &t->r.eval;
    energy_lap_end(&t->lap, &t->energy);
    const int rc =
        evaluator_run(t->evaluator, t->state.step, t->meeting.world == 1 ? t->o.stop : NULL,
                      t->guests != NULL ? let_guests : NULL, t, v, e);
    // Or a request failed; an evaluation changes no weights either. Of several ranks, one that
    // fails here leaves the others.
    t->data_failed = rc != 0 && t->meeting.world == 1;
    TRY(rc);
    t->r.eval_ns += v->total_ns;
    t->pace.pause_ns += v->total_ns;
    t->eval_step = t->state.step;
    TRY(judge(t, v, e));
    return ob->on_eval != NULL ? trainer_heed(t, ob->on_eval(ob->arg, v, e), e) : 0;
}

// ---------------------------------------------------------------- the best checkpoint

static void found_sound(struct trainer *t, int64_t step) {
    t->sound_step = step;
    if (t->checkpoints != NULL)
        checkpoint_sound(t->checkpoints, step);
}

int trainer_resume_care(struct trainer *t, struct err *e) {
    struct best_eval *b = &t->state.best;
    char text[200];
    if (t->state.step > 0 && t->state.watch.high == 0)
        found_sound(t, t->state.step);
    bool there = !b->kept || t->meeting.rank != 0 || checkpoint_is_there(t->checkpoints, b->step);
    TRY(meet_decide(&t->meeting, &there, e));
    if (there)
        return 0;
    snprintf(text, sizeof text,
             "the checkpoint of step %" PRId64 ", which had the best validation loss (%.4g), is "
             "gone; the next validation counts as the best",
             b->step, b->loss);
    trainer_say(t, LOG_WARN, text);
    *b = (struct best_eval){0};
    return 0;
}

void trainer_saving_best(struct trainer *t) {
    if (t->better && t->k->save_best)
        t->state.best.kept = true;
}

// One that could not be saved is not the best that there is: the one before is, and stays.
void trainer_saved_best(struct trainer *t, int rc) {
    if (!t->better || !t->state.best.kept)
        return;
    t->better = false;
    if (rc == 0) {
        found_sound(t, t->state.step); // its validation says so
    } else {
        t->state.best = t->best_before;
        t->state.best.waited = 0;
    }
}

// ---------------------------------------------------------------- patience

bool trainer_patience_over(const struct trainer *t) {
    return t->k->stop_patience > 0 && t->state.best.waited >= t->k->stop_patience;
}

void trainer_say_patience(struct trainer *t) {
    const struct best_eval *b = &t->state.best;
    char text[300], best[80] = "none was a number";
    if (b->step > 0)
        snprintf(best, sizeof best, "the best is %.4g, of step %" PRId64, b->loss, b->step);
    snprintf(text, sizeof text,
             "the last %" PRId64 " validation%s had no better loss (%s), so the run ends at step "
             "%" PRId64 " of %" PRId64 "; a stop.patience above %" PRId64 " goes on",
             b->waited, b->waited == 1 ? "" : "s", best, t->state.step, t->k->steps, b->waited);
    trainer_say(t, LOG_INFO, text);
}

// ---------------------------------------------------------------- a run that diverges

// Losses show nothing bad. Gradients that the scale of fp16 handles are nothing bad.
static bool is_calm(const struct trainer *t) {
    return t->not_finite == 0 && t->state.watch.high == 0;
}

void trainer_end_care(struct trainer *t) {
    if (t->saved_step >= 0 && t->sound_step != t->saved_step && is_calm(t))
        found_sound(t, t->saved_step);
}

enum { SEEN_BYTES = 300, ADVICE_BYTES = 200 };

static void describe_seen(char out[SEEN_BYTES], const struct trainer *t, double loss) {
    const struct loss_watch *w = &t->state.watch;
    if (t->not_finite >= NOT_FINITE_MOST)
        snprintf(out, SEEN_BYTES,
                 "loss or gradients were not finite in %d steps in a row, the last of them step "
                 "%" PRId64,
                 NOT_FINITE_MOST, t->state.step);
    else
        snprintf(out, SEEN_BYTES,
                 "since step %" PRId64 " the loss has nearly always been above %.4g, in step "
                 "%" PRId64 " it is %.4g; it began at %.4g, and its lowest level was %.4g",
                 w->since, loss_watch_limit(w), t->state.step, loss, w->began, w->low);
}

static void advise(char out[ADVICE_BYTES], const struct knobs *k) {
    char clip[64] = "";
    if (k->optim_clip == 0)
        snprintf(clip, sizeof clip, ", or optim.clip=1 (now 0: no clipping)");
    snprintf(out, ADVICE_BYTES,
             "Try a lower optim.lr, such as %.3g (half), a longer sched.warmup (now %" PRId64
             " steps)%s",
             0.5 * k->optim_lr, k->sched_warmup, clip);
}

// Checkpoints of diverged weights are set aside, so that the next run goes on from a sound one or,
// if the run had none from its first step on, begins anew.
static int end_diverged(struct trainer *t, double loss, struct err *e) {
    char seen[SEEN_BYTES], advice[ADVICE_BYTES], path[PATH_MAX] = "";
    t->r.end = TRAIN_DIVERGED;
    const bool began_here = t->r.first_step == 0 && t->sound_step < 0;
    describe_seen(seen, t, loss);
    advise(advice, t->k);
    if (t->checkpoints != NULL && t->sound_step >= 0)
        checkpoint_there(t->checkpoints, t->sound_step, path);
    if (t->checkpoints != NULL && (path[0] != '\0' || began_here))
        checkpoint_set_diverged_aside(t->checkpoints, t->sound_step);
    if (path[0] == '\0')
        return err_set(e, ERR_NUMERIC,
                       "%s: the run has diverged. %s. No checkpoint is known to be sound%s", seen,
                       advice, began_here ? ", so the next run begins anew" : "");
    return err_set(e, ERR_NUMERIC,
                   "%s: the run has diverged. %s. The checkpoint '%.300s' is sound; the next run "
                   "in this run.dir goes on from it",
                   seen, advice, path);
}

// The weights that a checkpoint holds are those that the step after it computes with.
int trainer_check_step(struct trainer *t, const struct train_step *info, struct err *e) {
    struct train_state *st = &t->state;
    if (info->empty)
        return 0;
    TRY(loss_scale_update(&st->scale, t->k, !info->skipped, st->step, e));
    // Weights that no step has changed give a finite loss unless they, or the data, are broken.
    // Ten steps would tell no more.
    if (!isfinite(info->loss) && hyper_updates(st) == 0)
        return err_set(e, ERR_NUMERIC,
                       "the loss of step %" PRId64 " is %s before any update: the model's weights "
                       "do not fit its configuration, or precision=%s is too narrow for them",
                       st->step, isnan(info->loss) ? "not a number (NaN)" : "infinite",
                       knob_choice(KNOB_precision, (int)t->k->precision));
    loss_watch_see(&st->watch, st->step, info->loss);
    if (is_calm(t) && t->saved_step >= 0 && t->saved_step < st->step &&
        t->sound_step != t->saved_step)
        found_sound(t, t->saved_step);
    const bool diverged = t->not_finite >= NOT_FINITE_MOST || loss_watch_diverged(&st->watch);
    return diverged && t->k->stop_diverged ? end_diverged(t, info->loss, e) : 0;
}
