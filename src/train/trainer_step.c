// trainer_step.c - one step of training: takes its batch, meets the other ranks, runs the turn,
// counts what it showed.
#include "train/trainer_state.h"

#include "base/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

// While the trainer waits for data, it looks for requests this often, and for the end of its time.
static const uint64_t DATA_TURN_NS = 2000000, DATA_LOOK_NS = 50000000;
// The first step's data is waited for at least so long, whatever the limit of time is.
static const uint64_t FIRST_DATA_NS = 1000000000;
struct batch_feed {
    const struct loader_batch *batch;
};

static int feed(void *arg, int micro, struct exec_batch *out, struct err *e) {
    const struct loader_batch *b = ((const struct batch_feed *)arg)->batch;
    if (micro < 0 || micro >= b->micro_batches)
        return err_set(e, ERR_INTERNAL, "micro-batch %d was requested; the step has %" PRId64,
                       micro, b->micro_batches);
    const int64_t at = (int64_t)micro * b->rows;
    *out =
        (struct exec_batch){b->tokens + at, b->targets + at, b->positions + at, b->doc_start + at};
    return 0;
}

static bool measures_noise(const struct trainer *t) {
    return plan_find(t->plan, PLAN_NOISE) >= 0 && t->state.step % t->k->noise_every == 0;
}

// Each replica's first micro-batch and its step are a pair (noise.h). The sample is the mean of the
// pairs: of the squared norms, and of 1 / tokens, to which their noise is proportional. Replicas
// that take steps together have the step in common.
//
// The first micro-batch's gradients belong to its share of the step's loss, which is divided by the
// trained tokens of the whole step. This rescales their norm to the mean over the micro-batch's
// tokens. A replica whose first micro-batch trains nothing has no pair.
static int add_noise(struct trainer *t, const struct loader_batch *b, struct train_step *info,
                     struct err *e) {
    const struct mesh *mesh = &t->plan->ranks.mesh;
    const int replicas = mesh_size(mesh, AXIS_DATA);
    const bool apart = trainer_averages(t);
    double *first = t->norms, *step = t->norms + replicas;
    double small_square = 0, all_square = 0, per_small = 0, per_all = 0, pairs = 0;
    TRY(session_get_noise(t->s, first, step, e));
    for (int i = 0; i < replicas; i++) {
        const struct rank_batch *at = &t->meeting.all[mesh_peer(mesh, AXIS_DATA, i)].next;
        if (at->first <= 0)
            continue;
        const double small = (double)at->first,
                     all = (double)(apart ? at->all : b->step_trained_tokens),
                     norm = apart ? step[i] : info->grad_norm, own = first[i] * all / small;
        small_square += own * own, all_square += norm * norm;
        per_small += 1 / small, per_all += 1 / all;
        pairs++;
    }
    const struct noise_sample x = {
        .small_square = small_square / pairs,
        .all_square = all_square / pairs,
        .small_tokens = pairs / per_small,
        .all_tokens = pairs / per_all,
        .sequences = (double)(b->micro_batches * t->k->batch_micro * (apart ? 1 : replicas))};
    if (!noise_add(&t->noise, &x))
        return 0;
    noise_estimate_of(&t->noise, &t->r.noise);
    info->noise = &t->r.noise;
    return 0;
}

static int64_t count_trained(const struct loader_batch *b, int64_t rows) {
    int64_t n = 0;
    for (int64_t i = 0; i < rows; i++)
        n += b->targets[i] >= 0;
    return n;
}

// What the loss is divided by: the trained tokens of the step, or of this replica's part of it if
// it takes a step of its own.
static int64_t divisor(const struct trainer *t, const struct loader_batch *b) {
    return trainer_averages(t) ? count_trained(b, b->micro_batches * b->rows)
                               : b->step_trained_tokens;
}

static int compute(struct trainer *t, const struct loader_batch *b, struct train_step *info,
                   struct err *e) {
    double hyper[HYPER_COUNT], results[RESULT_COUNT], clip[CLIP_COUNT];
    const struct train_state *st = &t->state;
    const struct hyper_step at = {.step = st->step,
                                  .update = hyper_updates(st) + 1,
                                  .trained_tokens = divisor(t, b),
                                  .loss_scale = st->scale.value};
    struct batch_feed source = {b};
    hyper_fill(t->k, &at, hyper);
    info->lr = hyper[HYPER_LR];
    info->loss = info->grad_norm = NAN;
    info->empty = b->step_trained_tokens <= 0;
    if (info->empty) // no gradient, but running the step would still decay weights and moments
        return 0;
    TRY(session_set_hyper(t->s, hyper, e));
    const bool noise = measures_noise(t);
    TRY(session_run(t->s, noise ? PLAN_NOISE : PLAN_TRAIN, feed, &source, &t->trace, e));
    TRY(session_get_results(t->s, results, clip, e));
    if (results[RESULT_TOKENS] != (double)b->step_trained_tokens)
        return err_set(e, ERR_INTERNAL, "the step trained %g tokens; its batch has %" PRId64,
                       results[RESULT_TOKENS], b->step_trained_tokens);
    info->loss = results[RESULT_LOSS_SUM] / results[RESULT_TOKENS];
    info->grad_norm = clip[CLIP_NORM];
    info->loss_scale = st->scale.value;
    info->skipped = clip[CLIP_SKIP] != 0;
    if (noise && !info->skipped)
        TRY(add_noise(t, b, info, e));
    return 0;
}

int trainer_average(struct trainer *t, struct trace *trace, struct err *e) {
    TRY(session_run(t->s, PLAN_AVERAGE, NULL, NULL, trace, e));
    t->apart = false;
    return 0;
}

// The step after which replicas are the same again. It depends on the step's number alone, so that
// a resumed run goes on as if it had never ended.
static int64_t next_average(const struct trainer *t) {
    const int64_t every = t->k->comm_every, next = (t->state.step / every + 1) * every;
    return next < t->k->steps ? next : t->k->steps;
}

static int end_of_step(struct trainer *t, struct err *e) {
    if (!trainer_averages(t))
        return 0;
    t->apart = true;
    return t->state.step + 1 == next_average(t) ? trainer_average(t, &t->trace, e) : 0;
}

static void count(struct trainer *t, const struct loader_batch *b, const struct train_step *info) {
    struct train_state *st = &t->state;
    st->step++;
    st->position = loader_position(t->loader);
    st->tokens += (uint64_t)b->step_tokens;
    st->trained_tokens += (uint64_t)b->step_trained_tokens;
    st->skipped_steps += info->skipped;
    st->empty_steps += info->empty;
    // With a scaled loss (fp16), gradients that are not finite are handled by the scale: see
    // trainer_check_step.
    bool scaled = t->k->precision == PRECISION_FP16;
    if (!info->empty)
        t->not_finite = (info->skipped && !scaled) || !isfinite(info->loss) ? t->not_finite + 1 : 0;
    t->r.steps_run++;
    if (isnan(t->loss_first))
        t->loss_first = info->loss;
    if (!info->empty)
        t->loss_last = info->loss;
    struct pace *p = &t->pace;
    p->steps++;
    p->tokens += (uint64_t)b->step_tokens;
    p->real_tokens += (uint64_t)b->step_real_tokens;
    p->trained_tokens += (uint64_t)b->step_trained_tokens;
    data_use_add(&p->data, &b->use);
    data_use_add(&t->r.data, &b->use);
    p->paused_ns += p->pause_ns;
    p->pause_ns = 0;
    p->end_ns = info->begin_ns + info->step_ns;
    samples_add(&t->step_ns, (double)info->step_ns);
}

uint64_t trainer_pace_ns(const struct pace *p) {
    return p->end_ns - p->begin_ns - p->paused_ns;
}

static void describe(const struct trainer *t, const struct loader_batch *b,
                     struct train_step *info) {
    const struct knobs *k = t->k;
    const struct pace *p = &t->pace;
    info->step = t->state.step;
    info->steps = k->steps;
    info->warmup = t->r.steps_run <= t->warmup;
    info->tokens = b->step_tokens;
    info->real_tokens = b->step_real_tokens;
    info->trained_tokens = b->step_trained_tokens;
    info->ranks = t->meeting.world > 1 ? t->meeting.all : NULL;
    info->n_ranks = t->meeting.world;
    info->all_trained_tokens = t->state.trained_tokens;
    info->epoch = buffers_epochs(t->data, t->state.position);
    info->epochs =
        buffers_epochs(t->data, t->state.position + (uint64_t)(k->steps - t->state.step) *
                                                        (uint64_t)knobs_samples(k));
    info->data_wait_ns = b->wait_ns;
    info->data = b->use;
    info->elapsed_ns = clock_ns() - t->begin_ns;
    info->answer_p95_ns = NAN;
    if (t->guests != NULL)
        info->answered = guests_recent(t->guests, &info->answer_p95_ns);
    double s_per_step = 1e-9 * (double)trainer_pace_ns(p) / (double)p->steps;
    info->tokens_per_s = (double)p->tokens / (1e-9 * (double)trainer_pace_ns(p));
    info->eta_s = s_per_step * (double)(k->steps - t->state.step);
    if (k->time > 0) {
        double left = 1e-9 * ((double)k->time - (double)info->elapsed_ns);
        info->eta_s = left < info->eta_s ? (left > 0 ? left : 0) : info->eta_s;
    }
}

// A period of time counts from the end of the last save.
bool trainer_save_due_by_time(const struct trainer *t) {
    const int64_t every = t->k->save_every;
    return every < 0 && clock_ns() - t->save_ns >= (uint64_t)-every;
}

// Until when data is waited for (knob time); UINT64_MAX: no limit.
static uint64_t data_limit_ns(const struct trainer *t) {
    const uint64_t now_ns = clock_ns(), first_ns = now_ns + FIRST_DATA_NS;
    if (t->k->time == 0 || t->k->time > UINT64_MAX - t->begin_ns)
        return UINT64_MAX;
    const uint64_t end_ns = t->begin_ns + t->k->time;
    return t->r.steps_run == 0 && end_ns < first_ns ? first_ns : end_ns;
}

// Takes the next batch. Until it is ready, requests are answered as inside a step. loader_next
// handles a stop request. ERR_STOPPED with t->late: the run's time is over. Replicas that are apart
// wait as long as it takes.
static int next_batch(struct trainer *t, struct loader_batch *b, struct err *e) {
    const uint64_t limit_ns = data_limit_ns(t);
    const uint64_t turn_ns = t->guests != NULL ? DATA_TURN_NS : DATA_LOOK_NS;
    const bool looks = t->guests != NULL || limit_ns != UINT64_MAX || trainer_averages(t);
    while (looks && !t->apart && !trainer_stop_asked(t)) {
        const uint64_t now_ns = clock_ns(), left_ns = limit_ns > now_ns ? limit_ns - now_ns : 0;
        if (loader_wait(t->loader, left_ns < turn_ns ? left_ns : turn_ns))
            break;
        const uint64_t begin_ns = clock_ns();
        if (begin_ns >= limit_ns) {
            t->late = true;
            return err_set(e, ERR_STOPPED, "the time is over");
        }
        if (t->guests == NULL)
            continue;
        TRY(trainer_let_guests_in(t, e));
        loader_not_waited(t->loader, clock_ns() - begin_ns);
    }
    if (trainer_averages(t) && !t->apart && trainer_stop_asked(t))
        return err_set(e, ERR_STOPPED, "stopped while waiting for data");
    return loader_next(t->loader, b, e);
}

// What this rank will tell the others of its step.
static void note_step(struct trainer *t, uint64_t step_ns) {
    struct time_split split;
    trace_last(&t->trace, &split);
    t->last = (struct rank_step){.step_ns = step_ns,
                                 .waits_ns = split.ns[TIME_DATA_WAIT] + split.ns[TIME_COMM]};
}

static bool time_is_over(const struct trainer *t) {
    // At least one step: with a limit shorter than the start-up, a chain of runs must still
    // advance.
    return t->k->time > 0 && t->r.steps_run > 0 && clock_ns() - t->begin_ns >= t->k->time;
}

// Says once that the end has to wait until replicas are the same again.
static void put_off_end(struct trainer *t) {
    char text[200];
    if (t->end_waits || !(trainer_stop_asked(t) || time_is_over(t)))
        return;
    t->end_waits = true;
    snprintf(text, sizeof text,
             "the run ends after step %" PRId64
             ", where the weights of its replicas are averaged (comm.every=%" PRId64 ")",
             next_average(t), t->k->comm_every);
    trainer_say(t, LOG_INFO, text);
}

// Takes the next batch and meets the other ranks. ERR_STOPPED: the run ends here, and *flags says
// why. A code of one rank that could not read its data is the same on all.
static int take_batch(struct trainer *t, struct loader_batch *b, unsigned *flags, struct err *e) {
    if (t->apart)
        put_off_end(t);
    *flags = t->apart ? 0 : trainer_stop_asked(t) ? MEET_STOP : time_is_over(t) ? MEET_TIME : 0;
    int got = *flags == 0 ? next_batch(t, b, e) : 0;
    const bool taken = *flags == 0 && got == 0;
    if (got == ERR_STOPPED && (trainer_stop_asked(t) || t->late)) {
        *flags = t->late ? MEET_LATE : MEET_STOP;
        got = 0;
        err_clear(e);
    }
    if (trainer_save_due_by_time(t))
        *flags |= MEET_SAVE;
    struct rank_batch next = {0};
    if (taken && plan_find(t->plan, PLAN_NOISE) >= 0)
        next = (struct rank_batch){.first = count_trained(b, b->rows),
                                   .all = count_trained(b, b->micro_batches * b->rows)};
    const int rc = meet(&t->meeting, got, flags, &t->last, &next, e);
    t->data_failed = rc != 0 && !t->meeting.lost;
    t->save_agreed = *flags & MEET_SAVE;
    *flags &= ~(unsigned)MEET_SAVE;
    if (taken && (rc != 0 || *flags != 0))
        loader_release(t->loader);
    return rc != 0 ? rc : *flags != 0 ? err_set(e, ERR_STOPPED, "the run ends here") : 0;
}

int trainer_step(struct trainer *t, struct train_step *info, unsigned *flags, struct err *e) {
    struct loader_batch b;
    *info = (struct train_step){.begin_ns = clock_ns(),
                                .step_ns_samples = &t->step_ns,
                                .trace = &t->trace,
                                .energy = &t->energy,
                                .apart_ns = NAN};
    if (t->pace.steps == 0) {
        t->pace.begin_ns = info->begin_ns;
        t->pace.pause_ns = 0; // a pause after the last warm-up step lies before the beginning
    }
    trace_begin_step(&t->trace, (uint32_t)t->state.step, info->begin_ns);
    TRY(take_batch(t, &b, flags, e));
    // Time spent in requests is no wait for data, so the span is b.wait_ns long and ends here.
    const uint64_t here_ns = clock_ns();
    trace_add_span(&t->trace, SPAN_DATA_WAIT, here_ns - b.wait_ns, here_ns);
    int rc = compute(t, &b, info, e);
    if (rc == 0)
        rc = end_of_step(t, e);
    const uint64_t end_ns = clock_ns();
    trace_end_step(&t->trace, end_ns);
    info->step_ns = end_ns - info->begin_ns;
    note_step(t, info->step_ns);
    if (rc == 0) {
        count(t, &b, info);
        describe(t, &b, info);
    } else {
        err_context(e, "step %" PRId64, t->state.step + 1);
    }
    loader_release(t->loader);
    return rc;
}

// Percentiles, split of time and throughput start again when the warm-up is over. For a run that
// ends before, they include the warm-up, and warmup_steps is 0.
void trainer_end_warmup(struct trainer *t) {
    if (t->warmup == 0 || t->r.steps_run != t->warmup)
        return;
    samples_clear(&t->step_ns);
    trace_clear(&t->trace);
    t->pace = (struct pace){0};
    t->lap = (struct energy_lap){0};
    t->r.cpus = (struct apart){0};
    t->r.warmup_steps = t->warmup;
}
