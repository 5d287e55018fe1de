// estimate.c - see estimate.h. The samples: programs with few layers, their times and their bytes.
#include "planner/estimate.h"

#include "planner/pipeline.h"
#include "predict/predict.h"
#include "program/apply.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 2, MICROS = 3, ROWS_MOST = 1 << 28 };

struct planner_sample {
    struct planner_setup setup;
    struct program *p[SAMPLES]; // with SAMPLE_LAYERS and 2 * SAMPLE_LAYERS layers
};

int planner_devices(const struct planner_setup *s) {
    return s->tensor * s->pipe * s->data * s->context;
}

int64_t planner_tokens(const struct planner_setup *s) {
    return s->seq * s->micro * s->accum * s->data;
}

// ---------------------------------------------------------------- building

static int refuse(struct err *e, const char *what, int64_t n, const char *of, int64_t size) {
    return err_set(e, ERR_USAGE, "%s %lld does not divide the model's %lld %s", what, (long long)n,
                   (long long)size, of);
}

static int check(const struct planner_setup *s, struct err *e) {
    const struct model_shape *m = &s->shape;
    if (s->tensor < 1 || s->pipe < 1 || s->data < 1 || s->context < 1 || s->chunks < 1 ||
        s->micro < 1 || s->accum < 1 || s->seq < 1)
        return err_set(e, ERR_USAGE, "a size is below 1");
    if (s->micro > ROWS_MOST / s->seq)
        return err_set(e, ERR_USAGE,
                       "a micro-batch of %lld x %lld tokens is not planned; accepted: up to %d",
                       (long long)s->micro, (long long)s->seq, ROWS_MOST);
    if (m->heads % s->tensor != 0)
        return refuse(e, "tensor parallel", s->tensor, "heads", m->heads);
    if (m->ffn % s->tensor != 0)
        return refuse(e, "tensor parallel", s->tensor, "columns of the MLP", m->ffn);
    if (m->kv_heads % s->tensor != 0)
        return refuse(e, "tensor parallel", s->tensor, "key/value heads", m->kv_heads);
    if (m->vocab < s->tensor)
        return refuse(e, "tensor parallel", s->tensor, "tokens", m->vocab);
    if ((int64_t)s->pipe * s->chunks > m->layers)
        return err_set(e, ERR_USAGE, "%d stages of %d chunks are more than the model's %lld layers",
                       s->pipe, s->chunks, (long long)m->layers);
    if (s->seq % s->context != 0)
        return err_set(e, ERR_USAGE, "context parallel %d does not divide %lld tokens", s->context,
                       (long long)s->seq);
    if (s->sequence && s->micro * (s->seq / s->context) % s->tensor != 0)
        return err_set(e, ERR_USAGE,
                       "tensor parallel %d does not divide the %lld tokens of a micro-batch",
                       s->tensor, (long long)(s->micro * (s->seq / s->context)));
    return 0;
}

// Groups are lists of ranks, and a mesh has at most MESH_RANKS_MOST. A rank's share of what a data
// group divides hardly changes beyond that.
static int data_ranks(const struct planner_setup *s) {
    const int data = s->data * s->context, most = MESH_RANKS_MOST / s->tensor;
    return data < most ? data : most > 1 ? most : 1;
}

static int build(struct program **out, const struct planner_setup *s, int64_t layers,
                 struct err *e) {
    struct model_shape whole = s->shape, slice;
    const struct planner_profile *f = s->profile;
    const struct mesh mesh = mesh_make(data_ranks(s), s->tensor, 1, 0);
    const bool half = s->math != PLANNER_FP32;
    whole.layers = layers;
    whole.max_positions = s->seq / s->context;
    tensor_slice(&whole, &mesh, &slice);
    const struct apply a = {
        .micro_batches = s->accum < MICROS ? (int)s->accum : MICROS,
        .precision = !half                     ? DTYPE_F32
                     : s->math == PLANNER_FP16 ? DTYPE_F16
                                               : DTYPE_BF16,
        .logits_pad = 64,
        .recompute = {.kind = s->recompute, .every = 1, .bytes_per_flop = 0.01},
        .state = s->state,
        .fuse = {.norm = f->fused, .act = f->fused, .loss = f->loss, .optim = true},
        .fuse_qkv = true,
        .chosen = {.adapter = &s->adapter},
        .whole = &whole,
        .ranks = {.mesh = mesh,
                  .zero = data_ranks(s) > 1 ? s->zero : 0,
                  .prefetch = 1,
                  .bucket_bytes = f->bucket_mib << 20,
                  .overlap = f->overlap,
                  .every_micro = s->every_micro,
                  .sequence = s->tensor > 1 && s->sequence},
        .build = {.kind = BUILD_TRAIN,
                  .shape = &slice,
                  .batch = s->micro,
                  .seq = s->seq / s->context,
                  .real = DTYPE_F32,
                  .one_document = true}};
    return apply_program(out, "train", &a, e);
}

int planner_sample_make(struct planner_sample **out, const struct planner_setup *s, struct err *e) {
    *out = NULL;
    TRY(check(s, e));
    struct planner_sample *x = calloc(1, sizeof *x);
    if (!x)
        return err_set(e, ERR_MEMORY, "out of memory for a sample");
    x->setup = *s;
    int rc = 0;
    for (int i = 0; rc == 0 && i < SAMPLES; i++)
        rc = build(&x->p[i], s, SAMPLE_LAYERS * (i + 1), e);
    if (rc != 0) {
        planner_sample_free(x);
        return rc;
    }
    *out = x;
    return 0;
}

void planner_sample_free(struct planner_sample *s) {
    for (int i = 0; s && i < SAMPLES; i++)
        program_free(s->p[i]);
    free(s);
}

// ---------------------------------------------------------------- time

// Which part of a program's order is simulated.
enum part { PART_ALL, PART_WITHOUT_ONE, PART_FORWARD, PART_BACKWARD, PART_LAST, PART_REST, PARTS };

static bool in_part(const struct program *p, const struct order_entry *at, enum part part) {
    const enum segment_role role = p->segments[at->segment].role;
    const bool turn = role == SEGMENT_FORWARD || role == SEGMENT_BACKWARD;
    const int last = p->micro_batches - 1;
    switch (part) {
    case PART_ALL:
        return true;
    case PART_WITHOUT_ONE: // micro-batch 1 is neither the first nor, of three, the last
        return !(turn && at->micro == 1);
    case PART_FORWARD:
        return role == SEGMENT_FORWARD && at->micro == 0;
    case PART_BACKWARD: // one that neither overwrites nor reduces, if there is one
        return role == SEGMENT_BACKWARD && at->micro == (last > 1 ? 1 : 0);
    case PART_LAST:
        return role == SEGMENT_BACKWARD && at->micro == last;
    default:
        return !turn;
    }
}

struct times {
    double s[PARTS], compute[PARTS], comm[PARTS];
};

// Where the host is slower than the device, the device waits for it; it catches up at once.
static double with_host(double device, double host) {
    return pow(pow(device, 4) + pow(host, 4), 0.25);
}

static double host_s(const struct program *p, const struct costing *c) {
    double sum = 0;
    for (int i = 0; i < p->n_order; i++) {
        const struct segment *seg = &p->segments[p->order[i].segment];
        for (int k = 0; k < seg->n_ops; k++)
            sum += cost_host(c, &seg->ops[k]);
    }
    return sum;
}

static int time_part(struct program *p, enum part part, struct costing *c, struct times *out,
                     struct err *e) {
    struct program some = *p;
    struct prediction x;
    some.n_order = 0;
    some.order = calloc((size_t)p->n_order + 1, sizeof *some.order);
    if (!some.order)
        return err_set(e, ERR_MEMORY, "out of memory while predicting");
    for (int i = 0; i < p->n_order; i++)
        if (in_part(p, &p->order[i], part))
            some.order[some.n_order++] = p->order[i];
    struct program *one = &some;
    const int rc = predict_programs_with(&one, 1, cost_op, c, &x, e);
    const double host = rc == 0 ? host_s(&some, c) : 0;
    free(some.order);
    if (rc != 0)
        return rc;
    const double compute = x.ranks[0].busy_s[STREAM_COMPUTE], comm = x.ranks[0].busy_s[STREAM_COMM];
    // Communication beside computing takes units and bandwidth from it.
    const double hidden = fmax(0, compute + comm - x.seconds);
    out->s[part] = with_host(x.seconds + c->constants->x[COST_overlap_drag] * hidden, host);
    out->compute[part] = compute;
    out->comm[part] = comm;
    prediction_free(&x);
    return 0;
}

// At n layers, from the times at SAMPLE_LAYERS and twice as many.
static double at_layers(double less, double more, double n) {
    return less + (more - less) / SAMPLE_LAYERS * (n - SAMPLE_LAYERS);
}

// The part of a turn's time beside layers that comes before them: the embedding.
static double before_layers(const struct program *p, struct costing *c, enum segment_role role) {
    double before = 0, all = 0;
    for (int i = 0; i < p->n_segments; i++) {
        const struct segment *seg = &p->segments[i];
        if (seg->role != role)
            continue;
        for (int k = 0; k < seg->n_ops; k++) {
            const int layer = seg->ops[k].layer;
            if (layer >= 0 && layer < SAMPLE_LAYERS)
                continue;
            const double s = cost_op(c, p, &seg->ops[k]);
            all += s;
            before += layer < 0 ? s : 0;
        }
        break; // variants of a backward have the same ops
    }
    return all > 0 ? before / all : 0;
}

// One rank after another does the same: no pipeline.
static void alone(const struct planner_setup *s, const struct times t[SAMPLES],
                  struct estimate *out) {
    const double n = (double)s->shape.layers;
    double all[3], one[3];
    const double *of[SAMPLES][3] = {{t[0].s, t[0].compute, t[0].comm},
                                    {t[1].s, t[1].compute, t[1].comm}};
    for (int i = 0; i < 3; i++) {
        all[i] = at_layers(of[0][i][PART_ALL], of[1][i][PART_ALL], n);
        one[i] = at_layers(of[0][i][PART_ALL] - of[0][i][PART_WITHOUT_ONE],
                           of[1][i][PART_ALL] - of[1][i][PART_WITHOUT_ONE], n);
        all[i] += s->accum > MICROS ? one[i] * (double)(s->accum - MICROS) : 0;
    }
    out->step_s = all[0];
    out->compute_s = all[1];
    out->comm_s = all[2];
}

// What a chunk of so many layers takes; first and last ones have the embedding and the head.
static double chunk_s(const struct times t[SAMPLES], enum part part, double layers, double before,
                      bool first, bool last) {
    const double layer = (t[1].s[part] - t[0].s[part]) / SAMPLE_LAYERS,
                 rest = fmax(0, t[0].s[part] - SAMPLE_LAYERS * layer);
    return layer * layers + (first ? rest * before : 0) + (last ? rest * (1 - before) : 0);
}

// Communication that only the last micro-batch of a chunk has.
static double comm_beside(const struct times t[SAMPLES], double layers, bool first, bool last) {
    const double less = fmax(0, t[0].comm[PART_LAST] - t[0].comm[PART_BACKWARD]),
                 more = fmax(0, t[1].comm[PART_LAST] - t[1].comm[PART_BACKWARD]),
                 layer = (more - less) / SAMPLE_LAYERS,
                 rest = fmax(0, less - SAMPLE_LAYERS * layer);
    return fmax(0, layer * layers + (first || last ? rest / 2 : 0));
}

static int staged(const struct planner_setup *s, struct planner_sample const *x,
                  const struct times t[SAMPLES], struct costing *c, struct estimate *out,
                  struct err *e) {
    const int chunks = s->pipe * s->chunks;
    struct pipeline_times w = {
        .stages = s->pipe, .chunks = s->chunks, .gpipe = s->gpipe, .micro_batches = s->accum};
    w.forward = calloc(3 * (size_t)chunks, sizeof(double));
    if (!w.forward)
        return err_set(e, ERR_MEMORY, "out of memory for %d chunks", chunks);
    w.backward = w.forward + chunks;
    w.reduce = w.backward + chunks;
    const double f = before_layers(x->p[0], c, SEGMENT_FORWARD),
                 b = before_layers(x->p[0], c, SEGMENT_BACKWARD);
    double longest = 0;
    for (int k = 0; k < chunks; k++) {
        const double n = (double)planner_chunk_layers(s->shape.layers, chunks, k);
        const bool first = k == 0, last = k == chunks - 1;
        w.forward[k] = chunk_s(t, PART_FORWARD, n, f, first, last);
        w.backward[k] = chunk_s(t, PART_BACKWARD, n, b, first, last);
        // Sums over replicas run beside the backward of other chunks.
        w.reduce[k] = fmax(0, comm_beside(t, n, first, last) - w.backward[k]);
        out->micro_s += w.forward[k] + w.backward[k];
        longest = fmax(longest, n);
    }
    const double rows = (double)(s->micro * s->seq / s->context);
    const double element = s->math == PLANNER_FP32 ? 4 : 2;
    const double bytes = rows * (double)s->shape.width * element / s->tensor;
    w.message = cost_message(c, bytes);
    double rest = at_layers(t[0].s[PART_REST], t[1].s[PART_REST], longest * s->chunks);
    int rc = planner_pipeline(&w, &out->step_s, &out->bubble_s, e);
    out->compute_s = out->step_s - out->bubble_s;
    out->step_s += fmax(0, rest);
    out->micro_s += 2 * w.message * (chunks - 1);
    free(w.forward);
    return rc;
}

// ---------------------------------------------------------------- the estimate

// FLOPs of the model in one micro-batch of one rank, without what is computed again. A rank of a
// context group attends from its part of the rows to all of them.
static double model_flops(const struct program *p, int context) {
    double sum = 0;
    for (int i = 0; i < p->n_order; i++) {
        const struct segment *seg = &p->segments[p->order[i].segment];
        for (int k = 0; p->order[i].micro == 0 && k < seg->n_ops; k++) {
            const enum op_category kind = op_info(seg->ops[k].kind)->category;
            if ((kind == CAT_MATMUL || kind == CAT_ATTENTION) && !(seg->ops[k].flags & OP_AGAIN))
                sum += op_cost_of(p, &seg->ops[k]).flops * (kind == CAT_ATTENTION ? context : 1);
        }
    }
    return sum;
}

int planner_sample_estimate(const struct planner_sample *x, const struct cluster *cluster,
                            const struct planner_constants *k, struct estimate *out,
                            struct err *e) {
    const struct planner_setup *s = &x->setup;
    struct costing c = {.cluster = cluster,
                        .constants = k,
                        .profile = s->profile,
                        .math = s->math,
                        .tensor = s->tensor,
                        .data = s->data * s->context,
                        .context = s->context,
                        .stages = s->pipe};
    struct times t[SAMPLES] = {0};
    *out = (struct estimate){0};
    if (planner_devices(s) > cluster_devices(cluster))
        return err_set(e, ERR_USAGE, "%d ranks are more than the %d devices of %s",
                       planner_devices(s), cluster_devices(cluster), cluster->text);
    for (int i = 0; i < SAMPLES; i++)
        for (int part = 0; part < PARTS; part++)
            if ((s->pipe > 1) == (part > PART_WITHOUT_ONE) || part == PART_FORWARD ||
                part == PART_BACKWARD)
                TRY(time_part(x->p[i], (enum part)part, &c, &t[i], e));
    const double n = (double)s->shape.layers;
    if (s->pipe > 1) {
        TRY(staged(s, x, t, &c, out, e));
    } else {
        alone(s, t, out);
        out->micro_s = at_layers(t[0].s[PART_FORWARD] + t[0].s[PART_BACKWARD],
                                 t[1].s[PART_FORWARD] + t[1].s[PART_BACKWARD], n);
    }
    const double devices = planner_devices(s);
    out->step_s *= 1 + k->x[COST_straggler] * log2(devices);
    out->step_s += k->x[COST_step_s];
    out->low_s = out->step_s * k->x[COST_interval_low];
    out->high_s = out->step_s * k->x[COST_interval_high];
    // A rank's program has the FLOPs of its slice, of all layers.
    out->flops = at_layers(model_flops(x->p[0], s->context), model_flops(x->p[1], s->context), n) *
                 s->tensor * s->context * s->data * (double)s->accum;
    planner_memory(s, x->p, out);
    out->bytes =
        out->peak_bytes * (1 + k->x[COST_allocator_share]) + k->x[COST_context_gib] * 1073741824.0;
    out->fits = out->bytes <= cluster->device.memory_gib * 1073741824.0;
    return 0;
}

int planner_estimate(const struct planner_setup *s, const struct cluster *c,
                     const struct planner_constants *k, struct estimate *out, struct err *e) {
    struct planner_sample *x;
    TRY(planner_sample_make(&x, s, e));
    const int rc = planner_sample_estimate(x, c, k, out, e);
    planner_sample_free(x);
    return rc;
}
