// trainer.c - see trainer.h. The step loop.
//
// The order inside the loop: a step, its observer, then a checkpoint when one is due, then
// validation. A crash during validation then does not cost the steps before it. With save.best or
// stop.patience validation comes first, because the checkpoint holds what it has decided.
#include "train/trainer_state.h"

#include "base/text.h"
#include "train/snapshot.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The first steps touch memory and fill caches for the first time, so metrics leave them out. In a
// short run that is at most a quarter of the steps.
enum { WARMUP_STEPS = 3 };
// The CPUs' distance is not looked at again sooner than this.
static const uint64_t APART_LEAST_NS = 100000000;

void trainer_say(void *arg, enum log_level level, const char *text) {
    const struct train_observer *ob = &((const struct trainer *)arg)->o.observer;
    if (ob->on_message != NULL)
        ob->on_message(ob->arg, level, text);
}

// Whether a stop request may be followed at once. Several ranks follow it when they meet.
static bool stops_now(const struct trainer *t) {
    return t->meeting.world == 1 && trainer_stop_asked(t);
}

// One rank speaks and writes for all.
static bool leads(const struct trainer *t) {
    return t->meeting.rank == 0;
}

// ---------------------------------------------------------------- opening

static void tell_progress(void *arg, const struct shard_progress *p) {
    const struct train_observer *ob = &((const struct trainer *)arg)->o.observer;
    if (ob->on_progress != NULL)
        ob->on_progress(ob->arg, p);
}

static int open_data(struct trainer *t, struct err *e) {
    const struct shard_listener listener = {
        .arg = t, .say = trainer_say, .progress = tell_progress};
    if (t->o.data == NULL)
        TRY(buffers_open_data(&t->opened, t->plan, &listener, e));
    t->data = t->o.data != NULL ? t->o.data : t->opened;
    t->buffers = (struct buffers){
        .data = t->data, .trace_events = t->o.trace_events, .request_bytes = t->o.guest_bytes};
    memcpy(t->state.dataset, dataset_fingerprint(t->data), sizeof t->state.dataset);
    loss_scale_start(&t->state.scale, t->k);
    if (t->plan->second != NULL)
        guests_begin_second(&t->second, &t->plan->second->knobs);
    return buffers_count(&t->buffers, t->plan, e);
}

int trainer_open(struct trainer **out, struct plan *p, struct engine *g,
                 const struct trainer_options *o, struct err *e) {
    const struct knobs *k = &p->knobs;
    *out = NULL;
    if (plan_find(p, PLAN_TRAIN) < 0 || (k->eval_every > 0 && plan_find(p, PLAN_EVAL) < 0))
        return err_set(e, ERR_INTERNAL, "training needs a plan with programs to train%s",
                       k->eval_every > 0 ? " and to validate" : "");
    if (o->guests != NULL && p->second == NULL &&
        (plan_find(p, PLAN_GUEST_EVAL) < 0 || plan_find(p, PLAN_GUEST_TRAIN) < 0))
        return err_set(e, ERR_INTERNAL,
                       "requests need a plan with the interactive programs or a second model");
    struct trainer *t = calloc(1, sizeof *t);
    if (t == NULL)
        return err_set(e, ERR_MEMORY, "no memory for the trainer");
    t->plan = p;
    t->engine = g;
    t->k = k;
    t->o = *o;
    t->lock.fd = -1;
    t->saving = knobs_saves(k);
    t->saved_step = t->eval_step = t->sound_step = -1;
    t->loss_first = t->loss_last = t->r.eval.loss = NAN;
    noise_estimate_of(&t->noise, &t->r.noise); // no samples yet: not determined
    t->norms = calloc(2 * (size_t)mesh_size(&p->ranks.mesh, AXIS_DATA), sizeof *t->norms);
    int rc = t->norms != NULL ? open_data(t, e) : err_set(e, ERR_MEMORY, "no memory for norms");
    if (rc == 0)
        rc = trainer_check_care(t, e);
    if (rc == 0)
        rc = meet_open(&t->meeting, g->options.comm, e);
    if (rc == 0)
        rc = samples_open(&t->step_ns, buffers_sample_capacity(k), e);
    if (rc != 0) {
        trainer_close(t);
        return rc;
    }
    *out = t;
    return 0;
}

void trainer_close(struct trainer *t) {
    if (t == NULL)
        return;
    evaluator_close(t->evaluator);
    guests_close(t->guests);
    loader_close(t->loader);
    if (t->traced)
        trace_close(&t->trace);
    energy_close(&t->energy);
    samples_close(&t->step_ns);
    checkpoint_dir_close(t->checkpoints);
    rundir_unlock(&t->lock);
    dataset_close(t->opened);
    meet_close(&t->meeting);
    free(t->ranks);
    free(t->norms);
    free(t);
}

const struct trace *trainer_trace(const struct trainer *t) {
    return &t->trace;
}

uint64_t trainer_origin_ns(const struct trainer *t) {
    return t->origin_ns;
}

const struct buffers *trainer_buffers(const struct trainer *t) {
    return &t->buffers;
}

const struct dataset *trainer_dataset(const struct trainer *t) {
    return t->data;
}

// ---------------------------------------------------------------- before the first step

// The most saves still to come: those of save.every, those of best validations, and one at the end
// or at a stop request. By time there is at most one after each step.
static int64_t saves_ahead(const struct knobs *k) {
    const int64_t every = k->save_every,
                  best = k->save_best && k->eval_every > 0 ? k->steps / k->eval_every : 0;
    return (every > 0 ? k->steps / every : every < 0 ? k->steps : 0) + best + 1;
}

// ---------------------------------------------------------------- requests

static void tell_guest(void *arg, const struct guest_sample *x, const struct guest_answer *a) {
    const struct train_observer *ob = &((const struct trainer *)arg)->o.observer;
    if (ob->on_guest != NULL)
        ob->on_guest(ob->arg, x, a);
}

// Inside a step a second model may also train, because it shares nothing with the step.
int trainer_let_guests_in(void *arg, struct err *e) {
    struct trainer *t = arg;
    return guests_serve(t->guests, &t->state, t->plan->second != NULL, e);
}

static int open_guests(struct trainer *t, struct err *e) {
    TRY(guests_open(&t->guests, t->s, &t->second, t->o.guests, tell_guest, t, e));
    exec_on_yield(t->s->exec, trainer_let_guests_in, t);
    return 0;
}

static int begin_guests(struct trainer *t, struct err *e) {
    if (t->guests == NULL)
        return 0;
    t->guests_begun = true; // also if begin fails half-way: `end` cleans up
    return t->o.guests->begin(t->o.guests->arg, e);
}

static void end_guests(struct trainer *t) {
    if (t->guests == NULL)
        return;
    if (t->guests_begun)
        t->o.guests->end(t->o.guests->arg);
    guests_report(t->guests, &t->r.guests);
}

// ---------------------------------------------------------------- what may refuse the run

static int load_newest(struct trainer *t, char resumed_from[PATH_MAX], struct err *e) {
    struct train_state state = t->state;
    TRY(checkpoint_load_newest(t->checkpoints, t->s, t->state.dataset, &state, &t->second,
                               resumed_from, e));
    // Losses on other data are no measure, neither of the best nor of where the run began.
    if (strcmp(state.dataset, t->state.dataset) != 0) {
        state.best = (struct best_eval){0};
        state.watch = (struct loss_watch){0};
    }
    memcpy(state.dataset, t->state.dataset, sizeof state.dataset); // of the data in use now
    if (!loss_scale_valid(&state.scale, t->k))                     // saved in another precision
        loss_scale_start(&state.scale, t->k);
    t->state = state;
    return trainer_resume_care(t, e);
}

static int open_loader(struct trainer *t, struct err *e) {
    struct loader_options o = buffers_loader(&t->buffers, t->plan);
    o.position = t->state.position;
    o.stop = trainer_averages(t) ? NULL : t->o.stop; // next_batch looks, where it may
    TRY(loader_open(&t->loader, &o, t->engine->mem, e));
    if (t->k->data_ram > 0 && loader_cache_windows(t->loader) == 0 &&
        knobs_idle(t->k, KNOB_data_ram) == NULL)
        trainer_say(t, LOG_WARN,
                    dataset_windows(t->data, SPLIT_TRAIN) == DATASET_ENDLESS
                        ? "data.ram has no effect here: the built-in corpus in bytes never repeats"
                        : "data.ram has no effect here: it is too small for one sequence");
    return 0;
}

static int open_checkpoints(struct trainer *t, struct err *e) {
    const struct knobs *k = t->k;
    const struct checkpoint_options o = {.run_dir = k->run_dir,
                                         .keep = k->save_keep,
                                         .best = k->save_best,
                                         .save = t->saving,
                                         .resume = k->resume,
                                         .comm = t->meeting.comm,
                                         .listener = {.arg = t, .say = trainer_say}};
    if (!t->saving && !(k->resume && k->run_dir[0] != '\0'))
        return 0;
    TRY(checkpoint_dir_open(&t->checkpoints, &o, e));
    return t->saving ? checkpoint_check_space(t->checkpoints, t->plan, saves_ahead(k), e) : 0;
}

// The work of a step on all ranks.
static int count_flops(struct trainer *t, struct err *e) {
    struct step_flops *all = malloc((size_t)t->meeting.world * sizeof *all);
    int rc = all ? 0 : err_set(e, ERR_MEMORY, "out of memory for %d ranks", t->meeting.world);
    if (rc == 0)
        rc = comm_gather(t->meeting.comm, &t->plan->flops, sizeof *all, all, e);
    t->r.flops = (struct step_flops){0};
    for (int i = 0; rc == 0 && i < t->meeting.world; i++) {
        t->r.flops.model += all[i].model;
        t->r.flops.hardware += all[i].hardware;
    }
    free(all);
    t->origin_ns = clock_ns();
    return rc;
}

// What the steps need beside the loaded plan.
static int open_rest(struct trainer *t, struct err *e) {
    const struct knobs *k = t->k;
    TRY(open_loader(t, e));
    if (k->eval_every > 0)
        TRY(evaluator_open(&t->evaluator, t->s, t->data, e));
    if (k->eval_every > 0 && t->evaluator == NULL)
        trainer_say(t, LOG_WARN, "no validation: the data has no validation part (data.val=0)");
    TRY(trace_open(&t->trace, t->engine->mem, buffers_trace_capacity(&t->buffers, t->plan), e));
    t->traced = true;
    energy_open(&t->energy, &(struct energy_options){.device = engine_on_device(t->engine)});
    return t->o.guests != NULL ? open_guests(t, e) : 0;
}

// Everything that may refuse the run: memory (before anything is written or taken), the folder, the
// disk, the checkpoint. Ranks agree after each part, so that all go on or none.
static int prepare(struct trainer *t, char resumed_from[PATH_MAX], struct err *e) {
    const struct knobs *k = t->k;
    struct meeting *m = &t->meeting;
    const bool loaded = t->engine->session != NULL && t->engine->session->plan == t->plan &&
                        t->engine->session->exec != NULL;
    resumed_from[0] = '\0';
    if (!loaded)
        TRY(meet_agree(m, engine_ready(t->engine, t->plan, e), e));
    // The folder is locked even if nothing will be saved, because observers write their logs there
    // from on_start on. trainer_open does not lock it: a plan may be shown during another run.
    const bool locks = k->run_dir[0] != '\0' && leads(t);
    TRY(meet_agree(m, locks ? rundir_lock(&t->lock, k->run_dir, e) : 0, e));
    TRY(meet_agree(m, open_checkpoints(t, e), e));
    if (!loaded)
        TRY(meet_agree(m, engine_load(t->engine, t->plan, e), e));
    t->s = t->engine->session;
    if (k->resume && t->checkpoints != NULL)
        TRY(load_newest(t, resumed_from, e));
    if (resumed_from[0] != '\0')
        t->saved_step = t->state.step;
    TRY(meet_agree(m, open_rest(t, e), e));
    return count_flops(t, e);
}

// ---------------------------------------------------------------- between steps

// While a checkpoint is written, evaluations run: they change nothing that is saved. One that fails
// ends the run after the save. After a stop request none is started. However many requests arrive,
// a save takes at most twice its own time plus one queue of requests, because until it is done a
// crash costs all steps since the last one.
struct interlude {
    struct trainer *t;
    uint64_t begin_ns, guests_ns; // when the save began; time spent in requests since then
    int rc;
    struct err e;
};

static void let_guests_between(void *arg) {
    struct interlude *x = arg;
    const struct guests *g = x->t->guests;
    const uint64_t before_ns = guests_run_ns(g), own_ns = clock_ns() - x->begin_ns - x->guests_ns;
    if (x->rc != 0 || trainer_stop_asked(x->t) || x->guests_ns > own_ns)
        return;
    x->rc = guests_serve(x->t->guests, &x->t->state, false, &x->e);
    x->guests_ns += guests_run_ns(g) - before_ns;
}

// Ranks agree before a step that a save is due by time. One rank alone looks after the step.
static bool save_due(const struct trainer *t) {
    const int64_t every = t->k->save_every;
    return every > 0 ? t->state.step % every == 0
                     : t->save_agreed || (t->meeting.world == 1 && trainer_save_due_by_time(t));
}

// Whether the state is on disk. Someone may have removed what was saved. Rank 0 looks.
static int is_saved(struct trainer *t, bool *saved, struct err *e) {
    *saved = t->saved_step == t->state.step &&
             (!leads(t) || checkpoint_is_there(t->checkpoints, t->state.step));
    return meet_decide(&t->meeting, saved, e);
}

// Says that a save failed, and which earlier checkpoint is left.
static void say_not_saved(struct trainer *t, bool goes_on) {
    char text[ERR_TEXT_BYTES + PATH_MAX + 64], newest[PATH_MAX];
    checkpoint_newest_there(t->checkpoints, newest);
    snprintf(text, sizeof text, "%s. %s%s%s%s", t->save_error.text,
             newest[0] ? "The newest checkpoint is '" : "There is no earlier checkpoint", newest,
             newest[0] ? "'" : "", goes_on ? "; training goes on" : "");
    trainer_say(t, LOG_ERROR, text);
}

static int save(struct trainer *t, struct err *e) {
    bool moved; // no message: checkpoint_save has one about its folder
    const struct train_observer *ob = &t->o.observer;
    struct checkpoint_saved saved;
    struct interlude meanwhile = {.t = t, .begin_ns = clock_ns()};
    const struct pause between = {.let = t->guests != NULL ? let_guests_between : NULL,
                                  .arg = &meanwhile};
    energy_lap_end(&t->lap, &t->energy);
    err_clear(&t->save_error);
    saved.path[0] = '\0';
    saved.bytes = 0;
    trainer_saving_best(t);
    int rc = leads(t) ? rundir_lock_again(&t->lock, t->k->run_dir, &moved, &t->save_error) : 0;
    rc = meet_agree(&t->meeting, rc, &t->save_error);
    if (rc == 0)
        rc = checkpoint_save(t->checkpoints, t->s, &t->state, &t->second, &between, &saved,
                             &t->save_error);
    t->save_ns = clock_ns();
    const uint64_t ns = t->save_ns - meanwhile.begin_ns - meanwhile.guests_ns;
    t->r.save_ns += ns;
    t->pace.pause_ns += ns;
    const bool best = rc == 0 && t->better && t->state.best.kept;
    trainer_saved_best(t, rc);
    if (rc == 0) {
        t->r.saves++;
        t->saved_step = t->state.step;
        memcpy(t->r.checkpoint, saved.path, sizeof saved.path);
    } else {
        t->r.failed_saves++;
        say_not_saved(t, meanwhile.rc == 0 && t->r.end == TRAIN_FAILED && !t->data_failed);
    }
    const struct train_save told = {.step = t->state.step,
                                    .path = saved.path,
                                    .bytes = saved.bytes,
                                    .ns = ns,
                                    .best = best,
                                    .rc = rc,
                                    .error = rc ? t->save_error.text : ""};
    if (ob->on_save != NULL)
        TRY(trainer_heed(t, ob->on_save(ob->arg, &told, e), e));
    return meanwhile.rc != 0 ? err_set(e, meanwhile.rc, "%s", meanwhile.e.text) : 0;
}

// Whether to do now what is due now or was put off. It is put off while replicas are apart.
static bool comes_now(const struct trainer *t, bool due, bool *waits) {
    const bool now = (due || *waits) && !t->apart;
    *waits = (due || *waits) && !now;
    return now;
}

static int evaluate_if_due(struct trainer *t, struct err *e) {
    return t->evaluator != NULL &&
                   comes_now(t, t->state.step % t->k->eval_every == 0, &t->eval_waits) &&
                   !stops_now(t)
               ? trainer_evaluate(t, e)
               : 0;
}

static int after_step(struct trainer *t, const struct train_step *info, struct err *e) {
    const struct train_observer *ob = &t->o.observer;
    const bool judges = trainer_judges(t);
    if (ob->on_step != NULL)
        TRY(trainer_heed(t, ob->on_step(ob->arg, info, e), e));
    trainer_end_warmup(t);
    TRY(trainer_check_step(t, info, e));
    // Before the save, so that a checkpoint contains all updates made before the next step.
    if (t->guests != NULL)
        TRY(guests_serve(t->guests, &t->state, true, e));
    if (judges)
        TRY(evaluate_if_due(t, e));
    if (comes_now(t, save_due(t) || (t->better && t->k->save_best), &t->save_waits))
        TRY(save(t, e));
    return judges ? 0 : evaluate_if_due(t, e);
}

// A run that made no step has failed: the same command again would not get further.
static int end_late(struct trainer *t, struct err *e) {
    char text[160], limit[TEXT_UNIT_BYTES];
    text_duration(limit, 1e-9 * (double)t->k->time);
    if (t->r.steps_run == 0)
        return err_set(e, ERR_IO,
                       "no step was made: the data of step %" PRId64
                       " did not come within time=%s; the source of the data is too slow",
                       t->state.step + 1, limit);
    snprintf(text, sizeof text,
             "time=%s is over; the data of step %" PRId64 " did not come in time", limit,
             t->state.step + 1);
    trainer_say(t, LOG_WARN, text);
    return 0;
}

// Looks how far the CPUs are from each other, so often that it takes a thousandth of the time.
static void look_at_cpus(struct trainer *t, struct train_step *info) {
    const uint64_t begin_ns = clock_ns();
    if (begin_ns < t->apart_ns || plan_wants_device(t->k))
        return;
    info->apart_ns = apart_measure(t->engine->pool);
    apart_add(&t->r.cpus, info->apart_ns);
    const uint64_t now_ns = clock_ns(), pause_ns = 1000 * (now_ns - begin_ns);
    t->apart_ns = now_ns + (pause_ns > APART_LEAST_NS ? pause_ns : APART_LEAST_NS);
}

static int loop(struct trainer *t, struct err *e) {
    const struct knobs *k = t->k;
    struct train_step info;
    unsigned flags;
    t->r.end = TRAIN_FAILED; // unless it is set below
    t->save_ns = clock_ns();
    while (t->state.step < k->steps) {
        if (trainer_patience_over(t)) {
            t->r.end = TRAIN_PATIENCE;
            trainer_say_patience(t);
            return 0;
        }
        energy_lap_begin(&t->lap, &t->energy); // no effect unless a pause or the warm-up ended it
        const int rc = trainer_step(t, &info, &flags, e);
        energy_poll(&t->energy, clock_ns());
        if (rc == 0)
            look_at_cpus(t, &info);
        if (rc == ERR_STOPPED && flags != 0) {
            err_clear(e);
            t->r.end = flags & MEET_STOP ? TRAIN_STOPPED : TRAIN_TIME;
            return t->r.end == TRAIN_TIME && flags & MEET_LATE ? end_late(t, e) : 0;
        }
        TRY(rc);
        TRY(after_step(t, &info, e));
    }
    t->r.end = TRAIN_DONE;
    return 0;
}

// The last validation, unless the last step had one.
static int evaluate_last(struct trainer *t, struct err *e) {
    return t->evaluator != NULL && t->r.end != TRAIN_STOPPED && t->eval_step != t->state.step
               ? trainer_evaluate(t, e)
               : 0;
}

// The last checkpoint and the last validation, in the same order as in the loop. When the time is
// over, what was trained is saved first in any case, and once more if it proves to be the best.
static int wind_up(struct trainer *t, struct err *e) {
    const struct knobs *k = t->k;
    const struct train_state *st = &t->state;
    if (t->r.end == TRAIN_DONE && t->r.steps_run > 0 && st->skipped_steps > 0 &&
        hyper_updates(st) == 0)
        return err_set(e, ERR_NUMERIC,
                       "nothing was trained: gradients were not finite in all %" PRId64
                       " steps, so no weight has changed. Try %s",
                       st->skipped_steps,
                       k->precision == PRECISION_FP16 ? "more steps or a lower scale.start"
                                                      : "precision=fp32 or other weights");
    const bool first = trainer_judges(t) && t->r.end != TRAIN_TIME;
    if (first)
        TRY(evaluate_last(t, e));
    bool saved = !t->saving || t->r.steps_run == 0 || (t->r.end == TRAIN_DONE && !k->save_last);
    if (!saved)
        TRY(is_saved(t, &saved, e));
    if (!saved && !(t->better && k->save_best))
        TRY(save(t, e));
    if (!first)
        TRY(evaluate_last(t, e));
    if (t->better && k->save_best)
        TRY(save(t, e));
    return 0;
}

// Data that cannot be read leaves the weights as the last step made them. They are saved before the
// run ends. Returns rc, with a text that says where they are.
static int save_after_failure(struct trainer *t, int rc, struct err *given) {
    struct err own = {0}, *e = given != NULL ? given : &own;
    char cause[ERR_TEXT_BYTES];
    const int64_t step = t->state.step;
    bool saved = !t->saving || t->r.steps_run == 0;
    // An average that the run would not have made without the failure is better than lost steps.
    if (!saved && t->apart && trainer_average(t, NULL, NULL) != 0)
        saved = true; // the ranks have lost each other, and so nothing can be saved
    if (!saved && is_saved(t, &saved, NULL) == 0 && !saved)
        save(t, NULL); // a request or an observer that fails now is not what ended the run
    snprintf(cause, sizeof cause, "%s", e->text);
    if (!t->saving)
        return err_set(e, rc, "%s. Nothing was saved (save.every=0 save.last=false)", cause);
    if (t->saved_step != step)
        return err_set(e, rc, "%s. The run could not be saved at step %" PRId64 ": %s", cause, step,
                       t->save_error.code != 0 ? t->save_error.text : "no step was done");
    return err_set(e, rc,
                   "%s. The run is saved at step %" PRId64 " of %" PRId64
                   "; when the data can be read again, the same command continues from there",
                   cause, step, t->k->steps);
}

// The result of a run that did not fail: 0, or that the last save failed, or that it was stopped.
static int conclude(const struct trainer *t, struct err *e) {
    const struct knobs *k = t->k;
    const int64_t step = t->state.step;
    if (t->save_error.code != 0) {
        err_set(e, t->save_error.code, "%s", t->save_error.text);
        err_context(e, "%s at step %" PRId64 " of %" PRId64,
                    t->r.end == TRAIN_STOPPED ? "stopped on request" : "the run ended", step,
                    k->steps);
        return t->save_error.code;
    }
    if (t->r.end != TRAIN_STOPPED)
        return 0;
    if (!t->saving)
        return err_set(e, ERR_STOPPED,
                       "stopped on request after step %" PRId64 " of %" PRId64
                       "; nothing was saved (save.every=0 save.last=false)",
                       step, k->steps);
    if (t->saved_step != step) // before the first step
        return err_set(e, ERR_STOPPED, "stopped on request before the first step");
    return err_set(e, ERR_STOPPED,
                   "stopped on request after step %" PRId64 " of %" PRId64
                   " and saved; the same command continues from there",
                   step, k->steps);
}

// ---------------------------------------------------------------- running

static void measure(struct trainer *t) {
    const struct knobs *k = t->k;
    const struct pace *p = &t->pace;
    struct run_metrics *m = &t->r.metrics;
    struct energy_use energy;
    energy_use_of(&energy, &t->energy, p->steps > 0 ? t->lap.joules : NAN);
    const struct metrics_input in = {.step_ns = &t->step_ns,
                                     .trace = t->traced ? &t->trace : NULL,
                                     .wall_ns = p->steps > 0 ? trainer_pace_ns(p) : 0,
                                     .tokens = p->tokens,
                                     .real_tokens = p->real_tokens,
                                     .trained_tokens = p->trained_tokens,
                                     .data = p->data,
                                     .batch_micro = k->batch_micro,
                                     .samples_per_step = k->batch_micro * k->batch_accum,
                                     .model_flops_per_step = t->r.flops.model,
                                     .hardware_flops_per_step = t->r.flops.hardware,
                                     .peak_flops_per_s = t->o.peak_flops_per_s,
                                     .energy = energy};
    metrics_compute(m, &in);
    m->loss_first = t->loss_first;
    m->loss_last = t->loss_last;
    struct plan_part parts[PLAN_PARTS];
    t->r.on_device = engine_on_device(t->engine);
    const int n = plan_parts(t->plan, t->r.on_device, parts);
    t->r.process_peak_bytes = engine_process_peak_bytes(t->engine);
    m->memory_predicted_bytes = engine_need_bytes(t->engine, t->plan);
    m->memory_measured_bytes =
        t->r.on_device ? engine_device_bytes(t->engine) : t->r.process_peak_bytes;
    for (int i = 0; i < n; i++)
        metrics_add_class(m, parts[i].name, parts[i].bytes);
}

// What each rank has measured, on every rank. A run without these figures is still a run.
static void report_ranks(struct trainer *t, struct err *e) {
    const struct run_metrics *m = &t->r.metrics;
    const struct rank_report own = {.step_p50_ns = m->step_p50.value,
                                    .step_p95_ns = m->step_p95.value,
                                    .split = m->split,
                                    .arena_bytes = plan_arena_bytes(t->plan),
                                    .predicted_bytes = m->memory_predicted_bytes,
                                    .measured_bytes = m->memory_measured_bytes};
    const int world = t->meeting.world;
    if (world == 1)
        return;
    t->ranks = calloc((size_t)world, sizeof *t->ranks);
    if (t->ranks && comm_gather(t->meeting.comm, &own, sizeof own, t->ranks, e) == 0) {
        t->r.ranks = t->ranks;
        t->r.n_ranks = world;
    }
    // What was measured is one process with all its ranks.
    uint64_t others = 0;
    for (int i = 1; t->r.ranks && leads(t) && t->meeting.comm->one_process && i < world; i++)
        others += t->ranks[i].predicted_bytes;
    if (others > 0) {
        t->r.metrics.memory_predicted_bytes += others;
        metrics_add_class(&t->r.metrics, "other ranks", others);
    }
}

static int start(struct trainer *t, const char *resumed_from, struct err *e) {
    const struct train_observer *ob = &t->o.observer;
    const struct knobs *k = t->k;
    const bool over = k->steps <= t->state.step, ends = over || trainer_patience_over(t);
    int64_t ahead = ends ? 0 : k->steps - t->state.step;
    char text[160];
    t->warmup = ahead / 4 < WARMUP_STEPS ? ahead / 4 : WARMUP_STEPS;
    t->r.first_step = t->state.step;
    const struct train_start told = {.session = t->s,
                                     .dataset = t->data,
                                     .state = t->state,
                                     .steps = t->state.step + ahead,
                                     .warmup_steps = t->warmup,
                                     .resumed_from = resumed_from[0] != '\0' ? resumed_from : NULL,
                                     .checkpoint_bytes =
                                         t->saving ? checkpoint_estimate_bytes(t->plan) : 0,
                                     .energy = &t->energy};
    TRY(begin_guests(t, e)); // may refuse the run, so it comes before observers write files
    if (ob->on_start != NULL)
        TRY(trainer_heed(t, ob->on_start(ob->arg, &told, e), e));
    if (over && k->steps > 0) {
        snprintf(text, sizeof text,
                 "nothing to train: step %" PRId64 " of %" PRId64
                 " is done; raise steps to train further",
                 t->state.step, k->steps);
        trainer_say(t, LOG_INFO, text);
    }
    return 0;
}

int trainer_run(struct trainer *t, struct train_result *out, struct err *e) {
    const struct train_observer *ob = &t->o.observer;
    char resumed_from[PATH_MAX];
    if (t->loader != NULL)
        return err_set(e, ERR_INTERNAL, "a trainer runs once");
    t->begin_ns = clock_ns();
    mem_process_reset_peak(); // if it fails, the peak is that of the whole process
    int rc = prepare(t, resumed_from, e);
    if (rc == 0)
        rc = start(t, resumed_from, e);
    if (rc == 0)
        rc = loop(t, e);
    energy_lap_end(&t->lap, &t->energy); // before wind_up: the lap covers steps only
    if (rc == 0)
        rc = wind_up(t, e);
    if (rc != 0 && t->data_failed)
        rc = save_after_failure(t, rc, e);
    trainer_end_care(t);
    if (rc != 0 && t->r.end != TRAIN_DIVERGED)
        t->r.end = TRAIN_FAILED;
    else if (rc == 0)
        rc = conclude(t, e);
    end_guests(t);
    measure(t);
    if (train_ended_together(rc, t->r.end)) // else the other ranks may be gone
        report_ranks(t, NULL);
    if (t->r.checkpoint[0] != '\0' && leads(t) &&
        !checkpoint_is_there(t->checkpoints, t->saved_step))
        t->r.checkpoint[0] = '\0'; // removed after it was written
    t->r.best[0] = '\0';
    if (t->state.best.kept && t->checkpoints != NULL && leads(t))
        checkpoint_there(t->checkpoints, t->state.best.step, t->r.best);
    t->r.state = t->state;
    t->r.epoch = buffers_epochs(t->data, t->state.position);
    t->r.wall_ns = clock_ns() - t->begin_ns;
    if (ob->on_end != NULL)
        ob->on_end(ob->arg, &t->r);
    if (out != NULL)
        *out = t->r;
    return rc;
}
