// calibrate.c - see calibrate.h.
#include "predict/calibrate.h"

#include "base/clock.h"
#include "hw/others.h"
#include "measure/energy.h"
#include "measure/sample.h"

#include <stdlib.h>
#include <string.h>

enum {
    MICRO_BATCHES = 2, // the first writes gradients, the second adds to them
    LAYERS_KEPT = 2,   // layers run in a model whose step takes long
    TURNS_LEAST = 3,
    TURNS_MOST = 24,
    GRAPH_TURNS_LEAST = 6,
    GRAPH_TURNS = 64,
    FILL_BLOCK = 1 << 16,
};
static const double SECONDS = 0.25, GRAPH_SECONDS = 0.1;
// While other programs are at work, a quiet moment is waited for: this many times as long as turns
// are timed otherwise.
static const double PATIENCE = 3;
// Ops of long turns are long and vary less: if a turn takes longer than this (seconds), two turns
// are enough.
static const double LONG_TURN = 1;
// FLOP of a turn above which layers are left out: about a second on two cores.
static const double FLOPS_WHOLE = 1e11;

struct work {
    struct plan plan;
    struct engine *engine;
    struct trace trace;
    struct collection *collection;
    const struct calibrate_options *o;
    int64_t layers;             // layers that are run
    int32_t *batch;             // made up: tokens (also targets), positions, document starts
    double outside[TURNS_MOST]; // seconds of a turn outside of ops
    struct energy_meter meter;  // a device's: it sees the device's other processes
    int busy_turns;             // of those that count
};

// ---------------------------------------------------------------- batches

static int feed(void *arg, int micro, struct exec_batch *out, struct err *e) {
    const struct work *w = arg;
    const int64_t rows = w->plan.knobs.batch_micro * w->plan.knobs.seq;
    (void)micro, (void)e;
    *out =
        (struct exec_batch){w->batch, w->batch + 1, w->batch + rows + 1, w->batch + 2 * rows + 1};
    return 0;
}

static int make_batch(struct work *w, struct err *e) {
    const int64_t rows = w->plan.knobs.batch_micro * w->plan.knobs.seq;
    w->batch = calloc((size_t)(3 * rows + 1), sizeof *w->batch);
    if (!w->batch)
        return err_set(e, ERR_MEMORY, "out of memory for a batch");
    for (int64_t i = 0; i <= rows; i++)
        w->batch[i] =
            (int32_t)((uint64_t)i * 2654435761u % 4294967291u % (uint64_t)w->plan.shape.vocab);
    for (int64_t i = 0; i < rows; i++)
        w->batch[rows + 1 + i] = (int32_t)(i % w->plan.knobs.seq);
    return 0;
}

// ---------------------------------------------------------------- weights

static int fill_tensor(struct work *w, int tensor, const float *values, void *typed,
                       struct err *e) {
    const struct tensor *t = &plan_program(&w->plan, PLAN_TRAIN)->tensors[tensor];
    const uint64_t width = dtype_bytes(t->dtype);
    const int64_t all = tensor_elements(t);
    dtype_convert(typed, t->dtype, values, DTYPE_F32, FILL_BLOCK);
    for (int64_t i = 0; i < all; i += FILL_BLOCK) {
        uint64_t n = (uint64_t)(all - i < FILL_BLOCK ? all - i : FILL_BLOCK);
        TRY(exec_write_part(w->engine->session->exec, plan_find(&w->plan, PLAN_TRAIN), tensor,
                            (uint64_t)i * width, typed, n * width, e));
    }
    return 0;
}

static bool layer_runs(const struct work *w, int layer) {
    return layer < w->layers || layer >= w->plan.shape.layers;
}

// Makes a block of values with the mean and deviation of the model's initial weights, quickly.
// Activations and gradients must be about as large as in training, because square roots and
// quotients of denormal numbers take longer. Updates were once too slow here because the weights of
// norms were small, too, and gradients vanished from layer to layer.
static void make_values(const struct model_param *p, float values[FILL_BLOCK]) {
    const float most = 1.7320508f * p->init_std; // uniform in +-sqrt(3) deviations
    for (int i = 0; i < FILL_BLOCK; i++)
        values[i] = p->init == INIT_ZERO ? 0
                    : p->init == INIT_ONE
                        ? 1
                        : most * 1e-3f * ((float)((uint32_t)i * 2654435761u % 2001u) - 1000);
}

// Weights of layers that are not run are not touched, so they take no memory.
static int fill_weights(struct work *w, struct err *e) {
    const struct program *p = plan_program(&w->plan, PLAN_TRAIN);
    float *values = malloc(FILL_BLOCK * sizeof *values);
    void *typed = malloc(FILL_BLOCK * dtype_bytes(DTYPE_F64));
    struct model_param param;
    int rc = values && typed ? 0 : err_set(e, ERR_MEMORY, "out of memory for weights");
    bool pair;
    for (int64_t i = 0; rc == 0 && plan_param_at(&w->plan, i, &param, &pair); i++) {
        const int t = program_find(p, param.name);
        if (t < 0)
            rc = err_set(e, ERR_INTERNAL, "no program knows the weight '%s'", param.name);
        if (rc != 0 || !layer_runs(w, p->tensors[t].layer))
            continue;
        make_values(&param, values);
        rc = fill_tensor(w, t, values, typed, e);
        if (rc == 0 && p->tensors[t].master >= 0)
            rc = fill_tensor(w, p->tensors[t].master, values, typed, e);
    }
    free(values);
    free(typed);
    return rc;
}

// The learning rate is 0: the update does all of its work but does not change the weights.
static int write_hyper(struct work *w, struct err *e) {
    const struct knobs *k = &w->plan.knobs;
    const double hyper[HYPER_COUNT] = {
        [HYPER_BETA1] = k->optim_beta1,
        [HYPER_BETA2] = k->optim_beta2,
        [HYPER_EPS] = k->optim_eps,
        [HYPER_DECAY] = k->optim_decay,
        [HYPER_CLIP] = k->optim_clip,
        [HYPER_BIAS1] = 1 - k->optim_beta1,
        [HYPER_BIAS2] = 1 - k->optim_beta2,
        [HYPER_LOSS_FACTOR] = 1.0 / (double)(k->batch_micro * k->seq * MICRO_BATCHES),
        [HYPER_SCALE] = 1,
        [HYPER_DRAW] = 1,
    };
    return session_set_hyper(w->engine->session, hyper, e);
}

// ---------------------------------------------------------------- turns

static double turn_flops(const struct program *p) {
    double sum = 0;
    for (int i = 0; i < p->n_order; i++) {
        const struct segment *s = &p->segments[p->order[i].segment];
        for (int k = 0; k < s->n_ops; k++)
            sum += op_cost_of(p, &s->ops[k]).flops;
    }
    return sum;
}

static size_t turn_ops(const struct program *p) {
    size_t n = 0;
    for (int i = 0; i < p->n_order; i++)
        n += (size_t)p->segments[p->order[i].segment].n_ops;
    return n;
}

static bool keep(void *arg, const struct op *op) {
    return layer_runs(arg, op->layer);
}

static int run_turn(struct work *w, struct err *e) {
    exec_feed_fn *source = w->o->feed ? w->o->feed : feed;
    void *arg = w->o->feed ? w->o->feed_arg : w;
    struct executor *exec = w->engine->session->exec;
    const int x = plan_find(&w->plan, PLAN_TRAIN);
    trace_clear(&w->trace);
    if (w->layers == w->plan.shape.layers)
        return exec_run(exec, x, source, arg, &w->trace, e);
    return exec_run_kept(exec, x, keep, w, source, arg, &w->trace, e);
}

// A turn as in a step, with what the host writes before it and reads after it. *outside gets the
// seconds spent outside of ops.
static int run_step(struct work *w, double *outside, struct err *e) {
    double results[RESULT_COUNT], clip[CLIP_COUNT];
    uint64_t busy = 0;
    const uint64_t begin = clock_ns();
    TRY(write_hyper(w, e));
    TRY(run_turn(w, e));
    TRY(session_get_results(w->engine->session, results, clip, e));
    const uint64_t wall = clock_ns() - begin;
    for (int i = 0; i < TIME_COUNT; i++)
        busy += w->trace.part_ns[i];
    const uint64_t device_busy = exec_busy_ns(w->engine->session->exec);
    if (device_busy > 0)
        busy = device_busy;
    *outside = wall > busy ? 1e-9 * (double)(wall - busy) : 0;
    return 0;
}

static double median(double *values, int n) {
    sample_sort(values, (size_t)n);
    return values[n / 2];
}

static bool others_between_marks(const struct others_mark *from) {
    struct others_mark now;
    struct others others;
    others_mark(&now, NULL);
    others_between(&others, from, &now);
    return others_notable(&others);
}

// The turns that count are spread over the whole time. A row of short ones could all fall into a
// tenth of a second in which another process used the machine. Turns in which one did are left out
// for as long as PATIENCE allows.
static int run_turns(struct work *w, struct calibrated *out, struct err *e) {
    const bool device = w->engine->backend->info.streams;
    const double most = w->o->seconds > 0 ? w->o->seconds : SECONDS;
    const uint64_t start = clock_ns();
    TRY(run_turn(w, e)); // touches memory for the first time
    const uint64_t begin = clock_ns();
    const double turn = 1e-9 * (double)(begin - start);
    const int least = turn > LONG_TURN ? 2 : TURNS_LEAST;
    for (double passed = 0; out->turns < TURNS_MOST && (out->turns < least || passed < most);) {
        struct others_mark before;
        others_mark(&before, NULL);
        TRY(run_step(w, &w->outside[out->turns], e));
        const bool busy = !device && others_between_marks(&before);
        passed = 1e-9 * (double)(clock_ns() - begin);
        if ((out->turns >= least && passed < most * (out->turns + 1) / TURNS_MOST) ||
            (busy && passed < PATIENCE * most))
            continue;
        TRY(collection_add(w->collection, &w->trace, e));
        out->turns++;
        w->busy_turns += busy;
    }
    return 0;
}

static int bind(struct work *w, bool graphs, struct err *e) {
    TRY(engine_bind(w->engine, &w->plan, graphs, e));
    TRY(fill_weights(w, e));
    return write_hyper(w, e);
}

// Seconds of a segment in the turn traced last. With graphs an event's time is a share of its
// graph's time.
static double traced_segment(const struct work *w, int segment) {
    uint64_t sum = 0;
    for (size_t i = 0; i < trace_count(&w->trace); i++) {
        const struct trace_event *ev = trace_at(&w->trace, i);
        if (ev->segment == segment && ev->stream == STREAM_COMPUTE && ev->part != TIME_DATA_WAIT)
            sum += ev->duration_ns;
    }
    return 1e-9 * (double)sum;
}

// A busy machine's time outside of ops is better than none, and worse than any other.
static void observe_outside(const struct work *w, struct costs *c, bool busy, double seconds) {
    char name[COSTS_MODEL_BYTES];
    struct cost_model *m = costs_observed_model(c, cost_model_name(name, &w->plan.shape));
    if (m && !(busy && m->outside_count > 0)) // NULL: out of memory, the time stays unknown
        costs_observe_outside(m, seconds);
}

// Inside a graph ops follow each other sooner than when each is timed. Short ops gain most, so
// every segment is scaled separately. Several turns are run because the clocks of an idle device
// need a while to rise.
static int run_graphs(struct work *w, double *outside_s, struct err *e) {
    const int segments = plan_program(&w->plan, PLAN_TRAIN)->n_segments;
    double outside[GRAPH_TURNS],
        *seconds = calloc((size_t)segments * GRAPH_TURNS + 1, sizeof *seconds);
    int rc = seconds ? bind(w, true, e) : err_set(e, ERR_MEMORY, "out of memory for times");
    for (int i = 0; rc == 0 && i < 2; i++) // the first turns run op by op, before graphs are made
        rc = run_step(w, &outside[i], e);
    int n = 0;
    const uint64_t begin = clock_ns();
    while (rc == 0 && n < GRAPH_TURNS &&
           (n < GRAPH_TURNS_LEAST || 1e-9 * (double)(clock_ns() - begin) < GRAPH_SECONDS)) {
        rc = run_step(w, &outside[n], e);
        for (int s = 0; rc == 0 && s < segments; s++)
            seconds[s * GRAPH_TURNS + n] = traced_segment(w, s);
        n++;
    }
    for (int s = 0; rc == 0 && s < segments; s++)
        collection_scale(w->collection, s, median(seconds + (size_t)s * GRAPH_TURNS, n));
    if (rc == 0)
        *outside_s = median(outside, n);
    free(seconds);
    return rc;
}

static int work_run(struct work *w, struct costs *c, struct calibrated *out, struct err *e) {
    const struct program *p = plan_program(&w->plan, PLAN_TRAIN);
    TRY(engine_open(&w->engine, NULL, e));
    TRY(engine_ready(w->engine, &w->plan, e));
    const bool device = w->engine->backend->info.streams;
    w->layers = w->plan.shape.layers;
    int64_t most = w->o->layers > 0 ? w->o->layers : turn_flops(p) > FLOPS_WHOLE ? LAYERS_KEPT : 0;
    if (!device && most > 0 && most < w->layers)
        w->layers = most;
    out->layers = w->layers;
    TRY(make_batch(w, e));
    TRY(trace_open(&w->trace, w->engine->mem, turn_ops(p) + 16, e));
    TRY(collection_open(&w->collection, p, e));
    TRY(bind(w, false, e));
    if (device)
        energy_open(&w->meter, &(struct energy_options){.device = true});
    const double begin_s = clock_wall_s();
    TRY(run_turns(w, out, e));
    double outside_s = median(w->outside, out->turns);
    if (device && w->plan.knobs.cuda_graphs)
        TRY(run_graphs(w, &outside_s, e));
    struct others others = {.seconds = clock_wall_s() - begin_s};
    others_of_device(&others, energy_device_disturbed(&w->meter, begin_s));
    out->busy = w->o->busy || (device ? others_notable(&others) : 2 * w->busy_turns > out->turns);
    observe_outside(w, c, out->busy, outside_s);
    return collection_store(w->collection, c, out->busy, &out->signatures, e);
}

int calibrate_run(const struct knobs *k, const struct calibrate_options *o, struct costs *c,
                  struct calibrated *out, struct err *e) {
    const struct calibrate_options none = {0};
    const uint64_t begin = clock_ns();
    struct knobs two = *k;
    struct work *w = calloc(1, sizeof *w);
    memset(out, 0, sizeof *out);
    if (!w)
        return err_set(e, ERR_MEMORY, "out of memory while measuring ops");
    two.batch_accum = MICRO_BATCHES;
    w->o = o ? o : &none;
    const struct plan_options po = {.knobs = &two, .programs = {PLAN_TRAIN}, .real = DTYPE_F32};
    int rc = plan_make(&w->plan, &po, e);
    if (rc == 0)
        rc = work_run(w, c, out, e);
    energy_close(&w->meter);
    collection_close(w->collection);
    trace_close(&w->trace);
    free(w->batch);
    engine_close(w->engine);
    plan_free(&w->plan);
    free(w);
    out->seconds = 1e-9 * (double)(clock_ns() - begin);
    return rc;
}
