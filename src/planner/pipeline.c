// pipeline.c - see pipeline.h. Each turn of a chunk is one op, with a receive before it and a send
// behind it; the order is that of program/pipeline.c, and the simulator that of predict/.
#include "planner/pipeline.h"

#include "predict/predict.h"
#include "program/apply.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// How often the pattern of a schedule repeats in a simulation; it is periodic from then on.
enum { PERIODS = 3 };

int64_t planner_chunk_layers(int64_t layers, int chunks, int k) {
    return layers / chunks + (k < layers % chunks);
}

// ---------------------------------------------------------------- time

static struct op part(enum op_kind kind, enum op_stream stream) {
    struct op op = op_make(kind);
    op.stream = stream;
    return op;
}

enum way { WAY_FORWARD, WAY_BACKWARD, WAY_LAST, WAYS };
enum { EVENT_IN, EVENT_DONE, EVENTS };

// A turn of chunk k of the model: waits for its neighbour, works, tells the other neighbour.
// op.first says which time the work takes.
static int add_turn(struct program *p, const struct pipeline_times *t, int k, enum way way) {
    const int all = t->stages * t->chunks, step = way == WAY_FORWARD ? 1 : -1;
    const int from = k - step, to = k + step, backward = way == WAY_FORWARD ? 0 : all;
    const int segment =
        program_segment(p, "turn", way == WAY_FORWARD ? SEGMENT_FORWARD : SEGMENT_BACKWARD);
    struct op in = part(OP_RECV, STREAM_COMM), work = part(OP_COPY, STREAM_COMPUTE),
              out = part(OP_SEND, STREAM_SEND);
    work.first = (int64_t)(way == WAY_LAST ? WAY_BACKWARD : way) * all + k;
    work.record = EVENT_DONE;
    if (from >= 0 && from < all) {
        in.peer = from % t->stages;
        in.channel = backward + k;
        in.record = EVENT_IN;
        program_op(p, segment, &in);
        work.wait[work.n_wait++] = EVENT_IN;
    }
    program_op(p, segment, &work);
    if (to >= 0 && to < all) {
        out.peer = to % t->stages;
        out.channel = backward + to;
        out.wait[out.n_wait++] = EVENT_DONE;
        program_op(p, segment, &out);
    }
    if (way == WAY_LAST) {
        struct op sum = part(OP_COPY, STREAM_COPY);
        sum.first = (int64_t)WAY_LAST * all + k;
        sum.wait[sum.n_wait++] = EVENT_DONE;
        program_op(p, segment, &sum);
    }
    return segment;
}

static int make_stage(struct program **out, const struct pipeline_times *t, int stage, int micros,
                      struct err *e) {
    struct apply_chunks c = {.n = t->chunks};
    const struct apply_ranks r = {.mesh = mesh_make(1, 1, t->stages, stage),
                                  .chunks = t->chunks,
                                  .schedule = t->gpipe        ? SCHEDULE_GPIPE
                                              : t->chunks > 1 ? SCHEDULE_INTERLEAVED
                                                              : SCHEDULE_1F1B};
    struct program *p = program_new("stages");
    if (!p)
        return err_set(e, ERR_MEMORY, "out of memory for a stage");
    *out = p;
    p->micro_batches = micros;
    p->rank = stage;
    p->world = t->stages;
    p->n_events = EVENTS;
    for (int i = 0; i < t->chunks; i++) {
        const int k = i * t->stages + stage;
        c.forward[i] = add_turn(p, t, k, WAY_FORWARD);
        c.backward[i] = c.first[i] = c.more[i] = add_turn(p, t, k, WAY_BACKWARD);
        c.last[i] = add_turn(p, t, k, WAY_LAST);
        c.slots[i] = pipeline_slots(&r, micros);
    }
    return pipeline_order(p, &r, &c, e);
}

static double turn_s(void *arg, const struct program *p, const struct op *op) {
    const struct pipeline_times *t = arg;
    (void)p;
    if (op->kind != OP_COPY)
        return op->kind == OP_SEND ? t->message : 0;
    const int all = t->stages * t->chunks, way = (int)(op->first / all);
    const double *times = way == WAY_FORWARD ? t->forward
                          : way == WAY_LAST  ? t->reduce
                                             : t->backward;
    return times[op->first % all];
}

static int simulate(const struct pipeline_times *t, int micros, double *seconds, double *busy,
                    struct err *e) {
    struct program **stages = calloc((size_t)t->stages, sizeof(struct program *));
    struct prediction x;
    int rc = stages ? 0 : err_set(e, ERR_MEMORY, "out of memory for %d stages", t->stages);
    for (int i = 0; rc == 0 && i < t->stages; i++)
        rc = make_stage(&stages[i], t, i, micros, e);
    if (rc == 0)
        rc = predict_programs_with(stages, t->stages, turn_s, (void *)(uintptr_t)t, &x, e);
    if (rc == 0) {
        *seconds = x.seconds;
        *busy = 0;
        for (int i = 0; i < t->stages; i++)
            *busy = fmax(*busy, x.ranks[i].busy_s[STREAM_COMPUTE]);
        prediction_free(&x);
    }
    for (int i = 0; stages && i < t->stages; i++)
        program_free(stages[i]);
    free(stages);
    return rc;
}

int planner_pipeline(const struct pipeline_times *t, double *seconds, double *bubble,
                     struct err *e) {
    const int64_t period = t->stages, most = period * PERIODS;
    if (t->chunks > APPLY_MAX_CHUNKS)
        return err_set(e, ERR_USAGE, "%d chunks per stage are not accepted; accepted: 1 to %d",
                       t->chunks, APPLY_MAX_CHUNKS);
    int64_t sim = t->micro_batches;
    if (sim > most)
        sim = most + sim % period;
    double busy;
    TRY(simulate(t, (int)sim, seconds, &busy, e));
    if (sim < t->micro_batches) {
        double before, busy_before;
        TRY(simulate(t, (int)(sim - period), &before, &busy_before, e));
        const double more = (double)(t->micro_batches - sim) / (double)period;
        *seconds += more * (*seconds - before);
        busy += more * (busy - busy_before);
    }
    *bubble = *seconds - busy;
    return 0;
}

// ---------------------------------------------------------------- memory

struct bytes {
    double stays[CLASS_COUNT]; // for the run, or over several micro-batches
    double slot[CLASS_COUNT];  // for each micro-batch in flight
    double turn[CLASS_COUNT];  // the most that are alive at once inside a segment
};

// Where a tensor belongs: 0 before the layers, 1 in them, 2 behind them.
static int place(const struct tensor *t, int layers) {
    return t->layer < 0 ? 0 : t->layer < layers ? 1 : 2;
}

// The largest sum of the temporaries of a segment, by first and last use in issue order.
static void peak_of_turns(const struct program *p, double out[CLASS_COUNT]) {
    double most = 0;
    double *alive = calloc((size_t)p->n_tensors + 1, sizeof *alive);
    int *last = calloc((size_t)p->n_tensors + 1, sizeof *last);
    for (int i = 0; alive && last && i < p->n_segments; i++) {
        const struct segment *seg = &p->segments[i];
        double sum = 0, by[CLASS_COUNT] = {0};
        struct op_access a[OP_MAX_TENSORS];
        memset(alive, 0, ((size_t)p->n_tensors + 1) * sizeof *alive);
        for (int k = 0; k < seg->n_ops; k++)
            for (int j = op_accesses(p, &seg->ops[k], a); j-- > 0;)
                last[a[j].tensor] = k;
        for (int k = 0; k < seg->n_ops; k++) {
            const int n = op_accesses(p, &seg->ops[k], a);
            for (int j = 0; j < n; j++) {
                const struct tensor *t = &p->tensors[a[j].tensor];
                if (t->life != LIFE_SEGMENT || alive[a[j].tensor] > 0)
                    continue;
                alive[a[j].tensor] = (double)t->bytes;
                sum += (double)t->bytes;
                by[t->cls] += (double)t->bytes;
            }
            if (sum > most) {
                most = sum;
                memcpy(out, by, sizeof by);
            }
            for (int j = 0; j < n; j++) {
                const struct tensor *t = &p->tensors[a[j].tensor];
                if (t->life != LIFE_SEGMENT || last[a[j].tensor] != k || alive[a[j].tensor] <= 0)
                    continue;
                alive[a[j].tensor] = 0;
                sum -= (double)t->bytes;
                by[t->cls] -= (double)t->bytes;
            }
        }
    }
    free(alive);
    free(last);
}

// Bytes of a tensor in the framework whose profile this is, where they are not ours.
static double bytes_in(const struct planner_setup *s, const struct tensor *t) {
    enum { BITS = 17 }; // of four weights that lie in 4 bits, with their scales
    const bool half = s->math != PLANNER_FP32;
    // What products of 8 bits read again in the backward is kept in 8 bits: two fifths of a block.
    if (s->math == PLANNER_FP8 && t->life == LIFE_SLOT && t->cls == CLASS_ACTIVATION &&
        t->layer >= 0)
        return (double)t->bytes * 0.8;
    if (s->quantized && t->cls == CLASS_WEIGHT && !t->trainable && t->rank == 2 && t->layer >= 0)
        return (double)t->bytes * BITS / 64;
    if (s->profile->pure && half && t->cls == CLASS_GRADIENT && t->dtype == DTYPE_F32)
        return (double)t->bytes / 2;
    if (s->profile->pure && half && strncmp(t->name, "master.", strlen("master.")) == 0)
        return 0;
    return (double)t->bytes;
}

static void count(const struct planner_setup *s, const struct program *p, int layers,
                  struct bytes out[3]) {
    memset(out, 0, 3 * sizeof *out);
    for (int i = 0; i < p->n_tensors; i++) {
        const struct tensor *t = &p->tensors[i];
        if (t->root >= 0 || t->life == LIFE_SEGMENT)
            continue;
        struct bytes *b = &out[place(t, layers)];
        if (t->life == LIFE_SLOT)
            b->slot[t->cls] += bytes_in(s, t);
        else
            b->stays[t->cls] += bytes_in(s, t);
    }
    peak_of_turns(p, out[1].turn);
    // Attention that writes its scores keeps softmax, mask and what is left of it: 2 + 1 + 2 bytes
    // (Korthikanti et al., 2022). Where blocks are computed again only one layer does.
    const double length = (double)s->seq / s->context, heads = (double)s->shape.heads / s->tensor;
    const double scores = 5 * (double)s->micro * heads * length * length;
    if (!s->profile->flash && s->recompute == RECOMPUTE_NONE)
        out[1].slot[CLASS_ACTIVATION] += scores * layers;
    else if (!s->profile->flash)
        out[1].turn[CLASS_WORKSPACE] += scores;
}

static double sum_of(const double by[CLASS_COUNT]) {
    double sum = 0;
    for (int i = 0; i < CLASS_COUNT; i++)
        sum += by[i];
    return sum;
}

void planner_memory(const struct planner_setup *s, struct program *const *p, struct estimate *out) {
    struct bytes less[3], more[3];
    count(s, p[0], SAMPLE_LAYERS, less);
    count(s, p[1], 2 * SAMPLE_LAYERS, more);
    const int all = s->pipe * s->chunks;
    out->peak_bytes = 0;
    for (int stage = 0; stage < s->pipe; stage++) {
        const struct apply_ranks r = {.mesh = mesh_make(1, 1, s->pipe, stage),
                                      .chunks = s->chunks,
                                      .schedule = s->gpipe        ? SCHEDULE_GPIPE
                                                  : s->chunks > 1 ? SCHEDULE_INTERLEAVED
                                                                  : SCHEDULE_1F1B};
        const double micros = (double)(s->accum < 4096 ? s->accum : 4096);
        const double slots = s->pipe > 1 ? pipeline_slots(&r, (int)micros) : 1;
        double by[CLASS_COUNT] = {0}, layers = 0;
        for (int i = 0; i < s->chunks; i++)
            layers += (double)planner_chunk_layers(s->shape.layers, all, i * s->pipe + stage);
        for (int k = 0; k < CLASS_COUNT; k++) {
            double rest[3], slot[3]; // what a class has beside layers, by place
            by[k] = more[1].turn[k];
            for (int i = 0; i < 3; i++) {
                // Buckets lie outside of layers and grow with their number all the same.
                const double grows = (more[i].stays[k] - less[i].stays[k]) / SAMPLE_LAYERS,
                             kept = (more[i].slot[k] - less[i].slot[k]) / SAMPLE_LAYERS;
                by[k] += grows * layers + kept * layers * slots / s->chunks;
                rest[i] = less[i].stays[k] - SAMPLE_LAYERS * grows;
                slot[i] = less[i].slot[k] - SAMPLE_LAYERS * kept;
            }
            if (s->pipe == 1)
                by[k] += rest[1];
            if (stage == 0)
                by[k] += rest[0] + slot[0] * slots;
            if (stage == s->pipe - 1) // whose last chunk goes back at once, but in GPipe
                by[k] += rest[2] + slot[2] * (s->profile->copies || s->gpipe ? slots : 1);
        }
        if (sum_of(by) > out->peak_bytes) {
            out->peak_bytes = sum_of(by);
            memcpy(out->by_class, by, sizeof by);
            out->stage = stage;
        }
    }
}
