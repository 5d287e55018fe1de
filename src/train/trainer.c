// trainer.c - the step loop. What it promises: trainer.h.
//
// Order inside the loop: a step, its observer, then a checkpoint when one is due, then validation
// (a crash during validation should not cost the steps before it).
#include "train/trainer.h"

#include "base/clock.h"
#include "base/text.h"
#include "data/loader.h"
#include "train/checkpoint.h"
#include "train/evaluate.h"
#include "train/hyper.h"
#include "train/kept.h"
#include "train/rundir.h"
#include "train/snapshot.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Not finite this often in a row is not an outlier: the weights or the learning rate are gone.
enum { NOT_FINITE_MOST = 10 };
// While data is waited for, requests are looked for this often.
static const uint64_t DATA_TURN_NS = 2000000;
// First steps touch memory and fill caches for the first time. Short runs give up a quarter at most.
enum { WARMUP_STEPS = 3 };

struct pace { // since the beginning, or since the end of warm-up
    uint64_t begin_ns, end_ns;
    uint64_t paused_ns, pause_ns; // validation and saving: before end_ns; after it
    uint64_t steps, tokens, real_tokens, trained_tokens;
    struct data_use data;
};

struct trainer {
    struct session *s;
    struct trainer_options o;
    struct dataset *data;
    struct loader *loader;
    struct rundir_lock lock;            // of run.dir, until the trainer is closed
    struct checkpoint_dir *checkpoints; // NULL: neither saved nor resumed
    struct evaluator *evaluator;        // NULL: none
    struct guests *guests;              // NULL: no requests
    bool guests_begun;
    struct samples step_ns;
    struct trace trace;
    bool traced;
    struct energy_meter energy;
    struct energy_lap lap; // over the steps of `pace`, without validation and saving

    struct train_state state;
    bool saving;
    bool asked; // by an observer, to stop
    uint64_t begin_ns;
    int64_t warmup, not_finite;
    int64_t saved_step, eval_step; // -1: none
    double loss_first, loss_last;
    struct noise_scale noise;
    struct pace pace;
    struct train_result r;
    struct err save_error; // of the last save; code 0: it worked
};

static void say(void *arg, enum log_level level, const char *text) {
    const struct train_observer *ob = &((const struct trainer *)arg)->o.observer;
    if (ob->on_message != NULL)
        ob->on_message(ob->arg, level, text);
}

static bool stop_asked(const struct trainer *t) {
    return t->asked || (t->o.stop != NULL && *t->o.stop != 0);
}

// ---------------------------------------------------------------- opening

static struct loader_options loader_of(const struct trainer *t, const struct knobs *k) {
    return (struct loader_options){.dataset = t->data,
                                   .split = SPLIT_TRAIN,
                                   .batch = k->batch_micro,
                                   .micro_batches = k->batch_accum,
                                   .replicas = 1,
                                   .prefetch = (int)k->data_prefetch,
                                   .workers = (int)k->data_workers,
                                   .position = t->state.position,
                                   .source_rate = k->data_source_rate,
                                   .ram = k->data_ram,
                                   .stop = t->o.stop};
}

// One sample per step, as far as there is a limit worth having.
static size_t sample_capacity(const struct knobs *k) {
    return k->steps < SAMPLES_DEFAULT_CAPACITY ? (size_t)k->steps + 1 : SAMPLES_DEFAULT_CAPACITY;
}

// Events of the trace: what the whole run can make, as far as that is less than the limit. A power
// of two, as trace_open would make it.
static size_t trace_capacity(const struct trainer *t, const struct session *s) {
    const struct program *p =
        s->programs[s->programs[SESSION_NOISE] ? SESSION_NOISE : SESSION_TRAIN];
    uint64_t per_step = SPAN_COUNT, events = 0;
    size_t size = 1;
    if (t->o.trace_events == 0)
        return 0;
    for (int i = 0; i < p->n_order; i++)
        per_step += (uint64_t)p->segments[p->order[i].segment].n_ops;
    events = (uint64_t)s->knobs.steps * per_step;
    if (events > t->o.trace_events)
        events = t->o.trace_events;
    while (size < events)
        size *= 2;
    return size;
}

uint64_t trainer_trace_bytes(const struct trainer *t) {
    return trace_capacity(t, t->s) * sizeof(struct trace_event);
}

int trainer_plan_memory(const struct trainer *t, struct session *s, struct err *e) {
    const struct loader_options loader = loader_of(t, &s->knobs);
    uint64_t bytes = loader_plan_bytes(&loader);
    if (bytes > UINT64_MAX / 2)
        return err_set(e, ERR_MEMORY,
                       "batch.accum=%" PRId64 " x batch.micro=%" PRId64 " x seq=%" PRId64
                       " tokens are more than can be addressed",
                       s->knobs.batch_accum, s->knobs.batch_micro, s->knobs.seq);
    if (s->knobs.eval_every > 0)
        bytes += evaluator_plan_bytes(s, t->data);
    bytes += 2 * sample_capacity(&s->knobs) * sizeof(double);
    s->trace_bytes = trace_capacity(t, s) * sizeof(struct trace_event);
    s->loader_bytes = bytes + s->trace_bytes;
    s->saving_bytes = t->saving ? SNAPSHOT_BUFFER_BYTES : 0;
    s->guest_bytes = t->o.guest_bytes > 0 ? t->o.guest_bytes + guests_plan_bytes() : 0;
    // Until session_ready knows better, with its libraries open: a plan without this would promise
    // less than the run takes.
    s->process_bytes = t->s->process_bytes ? t->s->process_bytes : session_resident_bytes(s);
    return 0;
}

static bool on_device(const struct session *s) {
    return s->backend != NULL && s->backend->memory != NULL;
}

int trainer_ready(struct trainer *t, struct err *e) {
    return session_ready(t->s, e);
}

static void tell_progress(void *arg, const struct shard_progress *p) {
    const struct train_observer *ob = &((const struct trainer *)arg)->o.observer;
    if (ob->on_progress != NULL)
        ob->on_progress(ob->arg, p);
}

static int open_data(struct trainer *t, struct err *e) {
    const struct session *s = t->s;
    const struct shard_listener listener = {.arg = t, .say = say, .progress = tell_progress};
    if (s->options.kept)
        TRY(kept_dataset(s->options.kept, s, &listener, &t->data, e));
    else
        TRY(dataset_open_knobs(&t->data, &s->knobs, s->from_folder ? s->knobs.model : NULL,
                               s->shape.vocab, &listener, e));
    memcpy(t->state.dataset, dataset_fingerprint(t->data), sizeof t->state.dataset);
    loss_scale_start(&t->state.scale, &t->s->knobs);
    return 0;
}

int trainer_open(struct trainer **out, struct session *s, const struct trainer_options *o,
                 struct err *e) {
    *out = NULL;
    if (s->programs[SESSION_TRAIN] == NULL ||
        (s->knobs.eval_every > 0 && s->programs[SESSION_EVAL] == NULL))
        return err_set(e, ERR_INTERNAL, "training needs a session with programs to train%s",
                       s->knobs.eval_every > 0 ? " and to validate" : "");
    if (o->guests != NULL && s->second == NULL &&
        (s->programs[SESSION_INTERACTIVE_EVAL] == NULL ||
         s->programs[SESSION_INTERACTIVE_TRAIN] == NULL))
        return err_set(e, ERR_INTERNAL,
                       "requests need a session with the interactive programs or a second model");
    struct trainer *t = calloc(1, sizeof *t);
    if (t == NULL)
        return err_set(e, ERR_MEMORY, "no memory for the trainer");
    t->s = s;
    t->o = *o;
    t->lock.fd = -1;
    t->saving = s->knobs.save_every > 0 || s->knobs.save_last;
    t->saved_step = t->eval_step = -1;
    t->loss_first = t->loss_last = t->r.eval.loss = NAN;
    noise_estimate_of(&t->noise, &t->r.noise); // of nothing: not determined
    int rc = open_data(t, e);
    if (rc == 0)
        rc = trainer_plan_memory(t, s, e);
    if (rc == 0)
        rc = samples_open(&t->step_ns, sample_capacity(&s->knobs), e);
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
    if (!t->s->options.kept)
        dataset_close(t->data);
    free(t);
}

const struct trace *trainer_trace(const struct trainer *t) {
    return &t->trace;
}

const struct session *trainer_session(const struct trainer *t) {
    return t->s;
}

const struct dataset *trainer_dataset(const struct trainer *t) {
    return t->data;
}

// ---------------------------------------------------------------- before the first step

// Saves still to come: on the way, at the end, and one on request.
static int64_t saves_ahead(const struct knobs *k) {
    return (k->save_every > 0 ? k->steps / k->save_every : 0) + 1;
}

// ---------------------------------------------------------------- requests

static void tell_guest(void *arg, const struct guest_sample *x, const struct guest_answer *a) {
    const struct train_observer *ob = &((const struct trainer *)arg)->o.observer;
    if (ob->on_guest != NULL)
        ob->on_guest(ob->arg, x, a);
}

// Between validation batches: evaluations only, because the checkpoint of this step is written.
static int let_guests(void *arg, struct err *e) {
    struct trainer *t = arg;
    return guests_serve(t->guests, &t->state, false, e);
}

// Inside a step a second model may be trained: the step knows nothing of it.
static int let_guests_in(void *arg, struct err *e) {
    struct trainer *t = arg;
    return guests_serve(t->guests, &t->state, t->s->second != NULL, e);
}

static int open_guests(struct trainer *t, struct err *e) {
    TRY(guests_open(&t->guests, t->s, t->o.guests, tell_guest, t, e));
    exec_on_yield(t->s->exec, let_guests_in, t);
    return 0;
}

static int begin_guests(struct trainer *t, struct err *e) {
    if (t->guests == NULL)
        return 0;
    t->guests_begun = true; // also when it fails half-way: end takes back what there is
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

// Everything that may refuse the run: memory, before anything is written or taken, the folder, the disk,
// the checkpoint.
static int prepare(struct trainer *t, char resumed_from[PATH_MAX], struct err *e) {
    struct session *s = t->s;
    const struct knobs *k = &s->knobs;
    resumed_from[0] = '\0';
    if (s->exec == NULL)
        TRY(trainer_ready(t, e));
    // Also when nothing will be saved: observers write their logs there from on_start on. Not in
    // trainer_open, which only plans: a plan may be shown while a run is on.
    if (k->run_dir[0] != '\0')
        TRY(rundir_lock(&t->lock, k->run_dir, e));
    if (t->saving || (k->resume && k->run_dir[0] != '\0')) {
        const struct checkpoint_options o = {.run_dir = k->run_dir,
                                             .keep = k->save_keep,
                                             .save = t->saving,
                                             .resume = k->resume,
                                             .listener = {.arg = t, .say = say}};
        TRY(checkpoint_dir_open(&t->checkpoints, &o, e));
        if (t->saving)
            TRY(checkpoint_check_space(t->checkpoints, s, saves_ahead(k), e));
    }
    if (s->exec == NULL)
        TRY(session_start(s, e));
    if (k->resume && t->checkpoints != NULL) {
        struct train_state state = t->state;
        TRY(checkpoint_load_newest(t->checkpoints, s, t->state.dataset, &state, resumed_from, e));
        memcpy(state.dataset, t->state.dataset, sizeof state.dataset); // of the data in use now
        if (!loss_scale_valid(&state.scale, &s->knobs))                // saved in another precision
            loss_scale_start(&state.scale, &s->knobs);
        t->state = state;
    }
    if (resumed_from[0] != '\0')
        t->saved_step = t->state.step;
    const struct loader_options loader = loader_of(t, k);
    TRY(loader_open(&t->loader, &loader, s->mem, e));
    if (k->data_ram > 0 && loader_cache_windows(t->loader) == 0 &&
        knobs_idle(k, KNOB_data_ram) == NULL)
        say(t, LOG_WARN,
            dataset_windows(t->data, SPLIT_TRAIN) == DATASET_ENDLESS
                ? "data.ram has no effect here: the built-in corpus in bytes never repeats"
                : "data.ram has no effect here: it is less than one sequence takes");
    if (k->eval_every > 0)
        TRY(evaluator_open(&t->evaluator, s, t->data, e));
    if (k->eval_every > 0 && t->evaluator == NULL)
        say(t, LOG_WARN, "no validation: the data has no part for it (data.val=0)");
    TRY(trace_open(&t->trace, s->mem, trace_capacity(t, s), e));
    t->traced = true;
    energy_open(&t->energy, &(struct energy_options){.device = on_device(s)});
    return t->o.guests != NULL ? open_guests(t, e) : 0;
}

// ---------------------------------------------------------------- one step

struct batch_feed {
    const struct loader_batch *batch;
};

static int feed(void *arg, int micro, struct exec_batch *out, struct err *e) {
    const struct loader_batch *b = ((const struct batch_feed *)arg)->batch;
    if (micro < 0 || micro >= b->micro_batches)
        return err_set(e, ERR_INTERNAL, "micro-batch %d was asked for; the step has %" PRId64,
                       micro, b->micro_batches);
    const int64_t at = (int64_t)micro * b->rows;
    *out =
        (struct exec_batch){b->tokens + at, b->targets + at, b->positions + at, b->doc_start + at};
    return 0;
}

static bool measures_noise(const struct trainer *t) {
    return t->s->programs[SESSION_NOISE] != NULL && t->state.step % t->s->knobs.noise_every == 0;
}

// The first micro-batch's gradients are of its share of the step's loss, a sum over the trained tokens of the
// whole step; its own mean is over its own.
static int add_noise(struct trainer *t, const struct loader_batch *b, struct train_step *info,
                     struct err *e) {
    const double all = (double)b->step_trained_tokens;
    double norm, small = 0;
    TRY(session_get_noise(t->s, &norm, e));
    for (int64_t i = 0; i < b->rows; i++)
        small += b->targets[i] >= 0;
    const double own = small > 0 ? norm * all / small : NAN;
    const struct noise_sample x = {.small_square = own * own,
                                   .all_square = info->grad_norm * info->grad_norm,
                                   .small_tokens = small,
                                   .all_tokens = all,
                                   .sequences =
                                       (double)(b->micro_batches * t->s->knobs.batch_micro)};
    if (!noise_add(&t->noise, &x))
        return 0;
    noise_estimate_of(&t->noise, &t->r.noise);
    info->noise = &t->r.noise;
    return 0;
}

static int compute(struct trainer *t, const struct loader_batch *b, struct train_step *info,
                   struct err *e) {
    double hyper[HYPER_COUNT], results[RESULT_COUNT], clip[CLIP_COUNT];
    const struct train_state *st = &t->state;
    const struct hyper_step at = {.step = st->step,
                                  .update = hyper_updates(st) + 1,
                                  .trained_tokens = b->step_trained_tokens,
                                  .loss_scale = st->scale.value};
    struct batch_feed source = {b};
    hyper_fill(&t->s->knobs, &at, hyper);
    info->lr = hyper[HYPER_LR];
    info->loss = info->grad_norm = NAN;
    info->empty = b->step_trained_tokens <= 0;
    if (info->empty) // no gradient: running it would still decay weights and moments
        return 0;
    TRY(session_set_hyper(t->s, hyper, e));
    const bool noise = measures_noise(t);
    TRY(session_run(t->s, noise ? SESSION_NOISE : SESSION_TRAIN, feed, &source, &t->trace, e));
    TRY(session_get_results(t->s, results, clip, e));
    if (results[RESULT_TOKENS] != (double)b->trained_tokens)
        return err_set(e, ERR_INTERNAL, "the step trained %g tokens; its batch has %" PRId64,
                       results[RESULT_TOKENS], b->trained_tokens);
    info->loss = results[RESULT_LOSS_SUM] / results[RESULT_TOKENS];
    info->grad_norm = clip[CLIP_NORM];
    info->loss_scale = st->scale.value;
    info->skipped = clip[CLIP_SKIP] != 0;
    if (noise && !info->skipped)
        TRY(add_noise(t, b, info, e));
    return 0;
}

static void count(struct trainer *t, const struct loader_batch *b, const struct train_step *info) {
    struct train_state *st = &t->state;
    st->step++;
    st->position = loader_position(t->loader);
    st->tokens += (uint64_t)b->tokens_count;
    st->trained_tokens += (uint64_t)b->step_trained_tokens;
    st->skipped_steps += info->skipped;
    st->empty_steps += info->empty;
    // Where the loss is scaled, gradients that are not finite are the scale's business (check_finite).
    bool scaled = t->s->knobs.precision == PRECISION_FP16;
    if (!info->empty)
        t->not_finite = (info->skipped && !scaled) || !isfinite(info->loss) ? t->not_finite + 1 : 0;
    t->r.steps_run++;
    if (isnan(t->loss_first))
        t->loss_first = info->loss;
    if (!info->empty)
        t->loss_last = info->loss;
    struct pace *p = &t->pace;
    p->steps++;
    p->tokens += (uint64_t)b->tokens_count;
    p->real_tokens += (uint64_t)b->real_tokens;
    p->trained_tokens += (uint64_t)b->trained_tokens;
    data_use_add(&p->data, &b->use);
    data_use_add(&t->r.data, &b->use);
    p->paused_ns += p->pause_ns;
    p->pause_ns = 0;
    p->end_ns = info->begin_ns + info->step_ns;
    samples_add(&t->step_ns, (double)info->step_ns);
}

static uint64_t pace_ns(const struct pace *p) {
    return p->end_ns - p->begin_ns - p->paused_ns;
}

static void describe(const struct trainer *t, const struct loader_batch *b,
                     struct train_step *info) {
    const struct knobs *k = &t->s->knobs;
    const struct pace *p = &t->pace;
    const uint64_t windows = dataset_windows(t->data, SPLIT_TRAIN);
    info->step = t->state.step;
    info->steps = k->steps;
    info->warmup = t->r.steps_run <= t->warmup;
    info->tokens = b->tokens_count;
    info->real_tokens = b->real_tokens;
    info->trained_tokens = b->trained_tokens;
    info->all_trained_tokens = t->state.trained_tokens;
    info->epoch = windows == DATASET_ENDLESS ? NAN : (double)t->state.position / (double)windows;
    info->data_wait_ns = b->wait_ns;
    info->data = b->use;
    info->elapsed_ns = clock_ns() - t->begin_ns;
    info->answer_p95_ns = NAN;
    if (t->guests != NULL)
        info->answered = guests_recent(t->guests, &info->answer_p95_ns);
    double s_per_step = 1e-9 * (double)pace_ns(p) / (double)p->steps;
    info->tokens_per_s = (double)p->tokens / (1e-9 * (double)pace_ns(p));
    info->eta_s = s_per_step * (double)(k->steps - t->state.step);
    if (k->time > 0) {
        double left = 1e-9 * ((double)k->time - (double)info->elapsed_ns);
        info->eta_s = left < info->eta_s ? (left > 0 ? left : 0) : info->eta_s;
    }
}

// The next batch. As long as it is not there requests are answered, as inside a step; a request to stop
// is loader_next's business.
static int next_batch(struct trainer *t, struct loader_batch *b, struct err *e) {
    while (t->guests != NULL && !stop_asked(t) && !loader_wait(t->loader, DATA_TURN_NS)) {
        const uint64_t begin_ns = clock_ns();
        TRY(let_guests_in(t, e));
        loader_not_waited(t->loader, clock_ns() - begin_ns);
    }
    return loader_next(t->loader, b, e);
}

static int run_step(struct trainer *t, struct train_step *info, struct err *e) {
    struct loader_batch b;
    *info = (struct train_step){.begin_ns = clock_ns(),
                                .step_ns_samples = &t->step_ns,
                                .trace = &t->trace,
                                .energy = &t->energy};
    if (t->pace.steps == 0) {
        t->pace.begin_ns = info->begin_ns;
        t->pace.pause_ns = 0; // of the last warm-up step: before the beginning
    }
    trace_begin_step(&t->trace, (uint32_t)t->state.step, info->begin_ns);
    TRY(next_batch(t, &b, e));
    const uint64_t here_ns = clock_ns(); // requests that were answered meanwhile are no wait
    trace_add_span(&t->trace, SPAN_DATA_WAIT, here_ns - b.wait_ns, here_ns);
    int rc = compute(t, &b, info, e);
    const uint64_t end_ns = clock_ns();
    trace_end_step(&t->trace, end_ns);
    info->step_ns = end_ns - info->begin_ns;
    if (rc == 0) {
        count(t, &b, info);
        describe(t, &b, info);
    } else {
        err_context(e, "step %" PRId64, t->state.step + 1);
    }
    loader_release(t->loader);
    return rc;
}

// Percentiles, split and throughput begin anew when the warm-up is over. A run that ends before has
// the warm-up in them, and says that it left out nothing.
static void end_warmup(struct trainer *t) {
    if (t->warmup == 0 || t->r.steps_run != t->warmup)
        return;
    samples_clear(&t->step_ns);
    trace_clear(&t->trace);
    t->pace = (struct pace){0};
    t->lap = (struct energy_lap){0};
    t->r.warmup_steps = t->warmup;
}

// ---------------------------------------------------------------- between steps

// An observer that returns ERR_STOPPED asks; any other code ends the run.
static int heed(struct trainer *t, int rc, struct err *e) {
    if (rc != ERR_STOPPED)
        return rc;
    t->asked = true;
    err_clear(e);
    return 0;
}

// While a checkpoint is written: evaluations, which change nothing of what is saved. One that fails ends
// the run, after the save. Whoever wants the run to end waits for no request. However many come, a save takes
// twice its own time at most, and one queue: until it is done a crash costs the steps since the last one.
struct interlude {
    struct trainer *t;
    uint64_t begin_ns, guests_ns; // guests_ns: of them, theirs
    int rc;
    struct err e;
};

static void let_guests_between(void *arg) {
    struct interlude *x = arg;
    const struct guests *g = x->t->guests;
    const uint64_t before_ns = guests_run_ns(g), own_ns = clock_ns() - x->begin_ns - x->guests_ns;
    if (x->rc != 0 || stop_asked(x->t) || x->guests_ns > own_ns)
        return;
    x->rc = guests_serve(x->t->guests, &x->t->state, false, &x->e);
    x->guests_ns += guests_run_ns(g) - before_ns;
}

static int save(struct trainer *t, struct err *e) {
    const struct train_observer *ob = &t->o.observer;
    struct checkpoint_saved saved;
    struct interlude meanwhile = {.t = t, .begin_ns = clock_ns()};
    const struct pause between = {.let = t->guests != NULL ? let_guests_between : NULL,
                                  .arg = &meanwhile};
    char text[ERR_TEXT_BYTES + 64];
    energy_lap_end(&t->lap, &t->energy);
    err_clear(&t->save_error);
    int rc = checkpoint_save(t->checkpoints, t->s, &t->state, &between, &saved, &t->save_error);
    const uint64_t ns = clock_ns() - meanwhile.begin_ns - meanwhile.guests_ns;
    t->r.save_ns += ns;
    t->pace.pause_ns += ns;
    if (rc == 0) {
        t->r.saves++;
        t->saved_step = t->state.step;
        memcpy(t->r.checkpoint, saved.path, sizeof saved.path);
    } else {
        t->r.failed_saves++;
        snprintf(text, sizeof text, "%s. Earlier checkpoints are intact%s", t->save_error.text,
                 meanwhile.rc == 0 ? "; training goes on" : "");
        say(t, LOG_ERROR, text);
    }
    const struct train_save told = {.step = t->state.step,
                                    .path = saved.path,
                                    .bytes = saved.bytes,
                                    .ns = ns,
                                    .rc = rc,
                                    .error = rc ? t->save_error.text : ""};
    if (ob->on_save != NULL)
        TRY(heed(t, ob->on_save(ob->arg, &told, e), e));
    return meanwhile.rc != 0 ? err_set(e, meanwhile.rc, "%s", meanwhile.e.text) : 0;
}

static int evaluate(struct trainer *t, struct err *e) {
    const struct train_observer *ob = &t->o.observer;
    struct train_eval *v = &t->r.eval;
    energy_lap_end(&t->lap, &t->energy);
    TRY(evaluator_run(t->evaluator, t->state.step, t->o.stop, t->guests != NULL ? let_guests : NULL,
                      t, v, e));
    t->r.eval_ns += v->total_ns;
    t->pace.pause_ns += v->total_ns;
    t->eval_step = t->state.step;
    return ob->on_eval != NULL ? heed(t, ob->on_eval(ob->arg, v, e), e) : 0;
}

static int check_finite(struct trainer *t, const struct train_step *info, struct err *e) {
    if (!info->empty)
        TRY(loss_scale_update(&t->state.scale, &t->s->knobs, !info->skipped, t->state.step, e));
    if (t->not_finite < NOT_FINITE_MOST)
        return 0;
    return err_set(
        e, ERR_NUMERIC,
        "loss or gradients were not finite in %d steps in a row, the last of them step %" PRId64
        ": the run has diverged. Try a lower optim.lr, a longer sched.warmup, or "
        "optim.clip=1",
        NOT_FINITE_MOST, t->state.step);
}

static int after_step(struct trainer *t, const struct train_step *info, struct err *e) {
    const struct train_observer *ob = &t->o.observer;
    const struct knobs *k = &t->s->knobs;
    if (ob->on_step != NULL)
        TRY(heed(t, ob->on_step(ob->arg, info, e), e));
    end_warmup(t);
    TRY(check_finite(t, info, e));
    if (t->guests !=
        NULL) // before the save, so that a checkpoint has all that came before the next step
        TRY(guests_serve(t->guests, &t->state, true, e));
    if (k->save_every > 0 && t->state.step % k->save_every == 0)
        TRY(save(t, e));
    if (t->evaluator != NULL && t->state.step % k->eval_every == 0 && !stop_asked(t))
        TRY(evaluate(t, e));
    return 0;
}

static int loop(struct trainer *t, struct err *e) {
    const struct knobs *k = &t->s->knobs;
    struct train_step info;
    t->r.end = TRAIN_FAILED; // until something else is known
    while (t->state.step < k->steps) {
        if (stop_asked(t)) {
            t->r.end = TRAIN_STOPPED;
            return 0;
        }
        // One step at least: a limit shorter than the start-up must not stall a chain of runs.
        if (k->time > 0 && t->r.steps_run > 0 && clock_ns() - t->begin_ns >= k->time) {
            t->r.end = TRAIN_TIME;
            return 0;
        }
        energy_lap_begin(&t->lap, &t->energy); // after a pause or the warm-up; else it is running
        const int rc = run_step(t, &info, e);
        energy_poll(&t->energy, clock_ns());
        if (rc == ERR_STOPPED && stop_asked(t)) { // while it waited for data: the step is not begun
            err_clear(e);
            t->r.end = TRAIN_STOPPED;
            return 0;
        }
        TRY(rc);
        TRY(after_step(t, &info, e));
    }
    t->r.end = TRAIN_DONE;
    return 0;
}

// The last checkpoint and the last validation; saved first, as in the loop.
static int wind_up(struct trainer *t, struct err *e) {
    const struct knobs *k = &t->s->knobs;
    bool wanted = t->saving && (t->r.end != TRAIN_DONE || k->save_last);
    if (wanted && t->r.steps_run > 0 && t->saved_step != t->state.step)
        TRY(save(t, e));
    if (t->evaluator != NULL && t->r.end != TRAIN_STOPPED && t->eval_step != t->state.step)
        TRY(evaluate(t, e));
    return 0;
}

// What the caller hears when nothing broke: 0, or that the state was not saved, or that it stopped.
static int conclude(const struct trainer *t, struct err *e) {
    const struct knobs *k = &t->s->knobs;
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
                   "; saved: the same command goes on from there",
                   step, k->steps);
}

// ---------------------------------------------------------------- running

static void measure(struct trainer *t) {
    const struct session *s = t->s;
    const struct knobs *k = &s->knobs;
    const struct pace *p = &t->pace;
    struct run_metrics *m = &t->r.metrics;
    const struct step_flops flops = session_step_flops(s);
    struct energy_use energy;
    energy_use_of(&energy, &t->energy, p->steps > 0 ? t->lap.joules : NAN);
    const struct metrics_input in = {.step_ns = &t->step_ns,
                                     .trace = t->traced ? &t->trace : NULL,
                                     .wall_ns = p->steps > 0 ? pace_ns(p) : 0,
                                     .tokens = p->tokens,
                                     .real_tokens = p->real_tokens,
                                     .trained_tokens = p->trained_tokens,
                                     .data = p->data,
                                     .batch_micro = k->batch_micro,
                                     .samples_per_step = k->batch_micro * k->batch_accum,
                                     .model_flops_per_step = flops.model,
                                     .hardware_flops_per_step = flops.hardware,
                                     .peak_flops_per_s = t->o.peak_flops_per_s,
                                     .energy = energy};
    metrics_compute(m, &in);
    m->loss_first = t->loss_first;
    m->loss_last = t->loss_last;
    struct session_part parts[SESSION_PARTS];
    const int n = session_parts(s, parts);
    t->r.on_device = on_device(s);
    t->r.process_peak_bytes = session_process_peak_bytes(s);
    m->memory_predicted_bytes =
        t->r.on_device ? session_arena_bytes(s) : session_predicted_bytes(s);
    m->memory_measured_bytes = t->r.on_device ? session_device_bytes(s) : t->r.process_peak_bytes;
    for (int i = 0; i < n; i++)
        metrics_add_class(m, parts[i].name, parts[i].bytes);
}

static int start(struct trainer *t, const char *resumed_from, struct err *e) {
    const struct train_observer *ob = &t->o.observer;
    const struct knobs *k = &t->s->knobs;
    int64_t ahead = k->steps > t->state.step ? k->steps - t->state.step : 0;
    char text[160];
    t->warmup = ahead / 4 < WARMUP_STEPS ? ahead / 4 : WARMUP_STEPS;
    t->r.first_step = t->state.step;
    const struct train_start told = {.session = t->s,
                                     .dataset = t->data,
                                     .state = t->state,
                                     .steps = k->steps,
                                     .warmup_steps = t->warmup,
                                     .resumed_from = resumed_from[0] != '\0' ? resumed_from : NULL,
                                     .checkpoint_bytes =
                                         t->saving ? checkpoint_estimate_bytes(t->s) : 0,
                                     .energy = &t->energy};
    TRY(begin_guests(t, e)); // may refuse the run; observers write from on_start on
    if (ob->on_start != NULL)
        TRY(heed(t, ob->on_start(ob->arg, &told, e), e));
    if (ahead == 0 && k->steps > 0) {
        snprintf(text, sizeof text,
                 "nothing to train: step %" PRId64 " of %" PRId64 " is done; raise steps to go on",
                 t->state.step, k->steps);
        say(t, LOG_INFO, text);
    }
    return 0;
}

int trainer_run(struct trainer *t, struct train_result *out, struct err *e) {
    const struct train_observer *ob = &t->o.observer;
    char resumed_from[PATH_MAX];
    if (t->loader != NULL)
        return err_set(e, ERR_INTERNAL, "a trainer runs once");
    t->begin_ns = clock_ns();
    mem_process_reset_peak(); // where that is not possible the peak is the process's
    int rc = prepare(t, resumed_from, e);
    if (rc == 0)
        rc = start(t, resumed_from, e);
    if (rc == 0)
        rc = loop(t, e);
    energy_lap_end(&t->lap, &t->energy); // steps alone
    if (rc == 0)
        rc = wind_up(t, e);
    if (rc != 0)
        t->r.end = TRAIN_FAILED;
    else
        rc = conclude(t, e);
    end_guests(t);
    measure(t);
    t->r.state = t->state;
    t->r.wall_ns = clock_ns() - t->begin_ns;
    if (ob->on_end != NULL)
        ob->on_end(ob->arg, &t->r);
    if (out != NULL)
        *out = t->r;
    return rc;
}
