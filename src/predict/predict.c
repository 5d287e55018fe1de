// predict.c - see predict.h. A discrete simulation: each rank advances until it needs something
// that another rank has not done yet. If no rank can advance and some are unfinished, the programs
// would deadlock.
#include "predict/predict.h"

#include "base/array.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

struct channel { // messages of one (from, to, channel), in order
    int from, to, channel;
    double *arrival;
    int n_sent, n_taken;
    size_t capacity;
};

struct meeting { // the k-th collective of a group
    const struct comm_group *group;
    int seq, arrived;
    double ready_s, end_s;
    bool done;
};

struct walker { // one rank
    const struct program *p;
    int entry, op;
    double stream_s[STREAM_COUNT];
    double *event_s;
    double **op_s;                // per segment: time of each op alone, computed once
    int next[PROGRAM_MAX_GROUPS]; // number of collectives done so far, by group
    bool arrived;                 // at the collective it waits for
    struct rank_prediction *out;
};

struct simulation {
    struct walker *walkers;
    int n;
    struct channel *channels;
    struct meeting *meetings;
    int n_channels, n_meetings;
    size_t channel_capacity, meeting_capacity;
    predict_op_fn *op_s;
    void *op_arg;
    struct err *e;
};

struct roofline {
    const struct hw_device *device;
    const struct hw_link *link;
};

double predict_products_rate(const struct hw_device *d, enum dtype type) {
    const double rate = type == DTYPE_BF16  ? d->matmul_bf16_flops
                        : type == DTYPE_F16 ? d->matmul_fp16_flops
                                            : 0;
    return rate > 0 ? rate : d->matmul_flops;
}

// Matrix products and attention run at the rate of their operands' type.
static double flops_rate(const struct program *p, const struct op *op, const struct hw_device *d) {
    const enum op_category category = op_info(op->kind)->category;
    if (op->n_in == 0 || op->in[0] < 0)
        return d->matmul_flops;
    const enum dtype type = p->tensors[op->in[0]].dtype;
    if (category == CAT_MATMUL)
        return predict_products_rate(d, type);
    const double attention =
        op->kind == OP_ATTENTION_BWD ? d->attention_bwd_flops : d->attention_flops;
    const bool narrow = type == DTYPE_BF16 || type == DTYPE_F16;
    return category == CAT_ATTENTION && narrow && attention > 0 ? attention : d->matmul_flops;
}

double predict_op(const struct program *p, const struct op *op, const struct hw_device *d,
                  const struct hw_link *l) {
    struct op_cost c = op_cost_of(p, op);
    if (op_info(op->kind)->category == CAT_COMM) {
        int hops = op->group >= 0 ? p->groups[op->group].n_ranks - 1 : 1;
        if (op->kind == OP_ALL_REDUCE)
            hops *= 2;
        return l ? hops * l->latency_s + c.comm_bytes / l->bytes_per_s : 0;
    }
    double compute = c.flops / flops_rate(p, op, d), memory = c.bytes / d->memory_bytes_per_s;
    return d->op_overhead_s + (compute > memory ? compute : memory);
}

static int no_memory(struct simulation *s) {
    return err_set(s->e, ERR_MEMORY, "out of memory while predicting");
}

static struct channel *find_channel(struct simulation *s, int from, int to, int channel) {
    for (int i = 0; i < s->n_channels; i++)
        if (s->channels[i].from == from && s->channels[i].to == to &&
            s->channels[i].channel == channel)
            return &s->channels[i];
    if (!array_room(&s->channels, (size_t)s->n_channels, 1, &s->channel_capacity,
                    sizeof *s->channels, 16))
        return NULL;
    s->channels[s->n_channels] = (struct channel){.from = from, .to = to, .channel = channel};
    return &s->channels[s->n_channels++];
}

static struct meeting *find_meeting(struct simulation *s, const struct comm_group *group, int seq) {
    for (int i = s->n_meetings - 1; i >= 0; i--)
        if (s->meetings[i].seq == seq && group_same(s->meetings[i].group, group))
            return &s->meetings[i];
    if (!array_room(&s->meetings, (size_t)s->n_meetings, 1, &s->meeting_capacity,
                    sizeof *s->meetings, 16))
        return NULL;
    s->meetings[s->n_meetings] = (struct meeting){.group = group, .seq = seq};
    return &s->meetings[s->n_meetings++];
}

// How many of a group's ranks take part in this simulation.
static int present(const struct simulation *s, const struct comm_group *g) {
    int n = 0;
    for (int i = 0; i < s->n; i++)
        for (int k = 0; k < g->n_ranks; k++)
            n += s->walkers[i].p->rank == g->ranks[k];
    return n;
}

static int send(struct simulation *s, struct walker *w, const struct op *op, double end) {
    struct channel *c = find_channel(s, w->p->rank, op->peer, op->channel);
    if (!c)
        return no_memory(s);
    if (!array_room(&c->arrival, (size_t)c->n_sent, 1, &c->capacity, sizeof *c->arrival, 16))
        return no_memory(s);
    c->arrival[c->n_sent++] = end;
    return 0;
}

// Sets *end. Returns 0, 1 if the op cannot run yet, or a negative error code.
static int run_op(struct simulation *s, struct walker *w, const struct op *op, double time,
                  double start, double *end) {
    *end = start + time;
    if (op->kind == OP_SEND)
        return send(s, w, op, *end);
    if (op->kind == OP_RECV) {
        struct channel *c = find_channel(s, op->peer, w->p->rank, op->channel);
        if (!c)
            return no_memory(s);
        if (c->n_taken == c->n_sent)
            return 1;
        double arrival = c->arrival[c->n_taken++];
        *end = arrival > start ? arrival : start;
        return 0;
    }
    if (op_info(op->kind)->category != CAT_COMM)
        return 0;
    const struct comm_group *g = &w->p->groups[op->group];
    struct meeting *m = find_meeting(s, g, w->next[op->group]);
    if (!m)
        return no_memory(s);
    if (!w->arrived) {
        w->arrived = true;
        m->ready_s = start > m->ready_s ? start : m->ready_s;
        m->end_s = m->ready_s + time;
        m->done = ++m->arrived >= present(s, g);
    }
    if (!m->done)
        return 1;
    w->arrived = false;
    w->next[op->group]++;
    *end = m->end_s;
    return 0;
}

// Advances one rank as far as possible. Returns the number of ops that ran, or a negative error
// code.
static int advance(struct simulation *s, struct walker *w) {
    int ran = 0;
    for (; w->entry < w->p->n_order; w->entry++, w->op = 0) {
        const struct segment *seg = &w->p->segments[w->p->order[w->entry].segment];
        for (; w->op < seg->n_ops; w->op++, ran++) {
            const struct op *op = &seg->ops[w->op];
            double start = w->stream_s[op->stream], end;
            for (int i = 0; i < op->n_wait; i++)
                if (w->event_s[op->wait[i]] > start)
                    start = w->event_s[op->wait[i]];
            int rc = run_op(s, w, op, w->op_s[w->p->order[w->entry].segment][w->op], start, &end);
            if (rc != 0)
                return rc < 0 ? rc : ran;
            w->stream_s[op->stream] = end;
            if (op->record >= 0)
                w->event_s[op->record] = end;
            w->out->busy_s[op->stream] += end - start;
            w->out->category_s[op_info(op->kind)->category] += end - start;
        }
    }
    return ran;
}

static int simulate(struct simulation *s) {
    for (;;) {
        int ran = 0, unfinished = -1;
        for (int i = 0; i < s->n; i++) {
            int rc = advance(s, &s->walkers[i]);
            if (rc < 0)
                return rc;
            ran += rc;
            if (s->walkers[i].entry < s->walkers[i].p->n_order)
                unfinished = i;
        }
        if (unfinished < 0)
            return 0;
        if (ran == 0) {
            const struct walker *w = &s->walkers[unfinished];
            const struct segment *seg = &w->p->segments[w->p->order[w->entry].segment];
            return err_set(s->e, ERR_INTERNAL,
                           "the ranks wait for each other: rank %d waits at '%s' of '%s'",
                           w->p->rank, op_info(seg->ops[w->op].kind)->name, seg->name);
        }
    }
}

static int time_ops(struct simulation *s, struct walker *w) {
    w->op_s = calloc((size_t)w->p->n_segments + 1, sizeof *w->op_s);
    if (!w->op_s)
        return no_memory(s);
    for (int i = 0; i < w->p->n_segments; i++) {
        const struct segment *seg = &w->p->segments[i];
        w->op_s[i] = calloc((size_t)seg->n_ops + 1, sizeof **w->op_s);
        if (!w->op_s[i])
            return no_memory(s);
        for (int k = 0; k < seg->n_ops; k++)
            w->op_s[i][k] = s->op_s(s->op_arg, w->p, &seg->ops[k]);
    }
    return 0;
}

static void forget(struct walker *w) {
    for (int i = 0; w->op_s && i < w->p->n_segments; i++)
        free(w->op_s[i]);
    free(w->op_s);
    free(w->event_s);
}

int predict_programs_with(struct program *const *ranks, int n, predict_op_fn *op_s, void *arg,
                          struct prediction *out, struct err *e) {
    memset(out, 0, sizeof *out);
    if (n < 1 || n > PREDICT_MAX_RANKS)
        return err_set(e, ERR_USAGE, "cannot predict %d ranks; accepted: 1 to %d", n,
                       PREDICT_MAX_RANKS);
    struct simulation s = {.n = n, .op_s = op_s, .op_arg = arg, .e = e};
    s.walkers = calloc((size_t)n, sizeof *s.walkers);
    out->ranks = calloc((size_t)n, sizeof *out->ranks);
    out->n_ranks = n;
    int rc = s.walkers && out->ranks ? 0 : no_memory(&s);
    for (int i = 0; rc == 0 && i < n; i++) {
        s.walkers[i] = (struct walker){.p = ranks[i], .out = &out->ranks[i]};
        s.walkers[i].event_s = calloc((size_t)ranks[i]->n_events + 1, sizeof(double));
        rc = s.walkers[i].event_s ? 0 : no_memory(&s);
        if (rc == 0)
            rc = time_ops(&s, &s.walkers[i]);
    }
    if (rc == 0)
        rc = simulate(&s);
    for (int i = 0; rc == 0 && i < n; i++) {
        struct rank_prediction *r = &out->ranks[i];
        for (int k = 0; k < STREAM_COUNT; k++)
            if (s.walkers[i].stream_s[k] > r->end_s)
                r->end_s = s.walkers[i].stream_s[k];
        out->seconds = r->end_s > out->seconds ? r->end_s : out->seconds;
    }
    for (int i = 0; rc == 0 && i < n; i++)
        out->ranks[i].idle_s = out->seconds - out->ranks[i].busy_s[STREAM_COMPUTE];
    for (int i = 0; s.walkers && i < n; i++)
        forget(&s.walkers[i]);
    for (int i = 0; i < s.n_channels; i++)
        free(s.channels[i].arrival);
    free(s.channels);
    free(s.meetings);
    free(s.walkers);
    if (rc != 0)
        prediction_free(out);
    return rc;
}

static double by_roofline(void *arg, const struct program *p, const struct op *op) {
    const struct roofline *r = arg;
    return predict_op(p, op, r->device, r->link);
}

int predict_programs(struct program *const *ranks, int n, const struct hw_device *device,
                     const struct hw_link *link, struct prediction *out, struct err *e) {
    struct roofline r = {device, link};
    return predict_programs_with(ranks, n, by_roofline, &r, out, e);
}

struct hw_device predict_nominal_device(bool gpu) {
    return gpu ? (struct hw_device){.name = "a GPU",
                                    .matmul_flops = 2e14,
                                    .memory_bytes_per_s = 2e12,
                                    .op_overhead_s = 4e-6}
               : (struct hw_device){.name = "a CPU",
                                    .matmul_flops = 2e11,
                                    .memory_bytes_per_s = 2e10,
                                    .op_overhead_s = 2e-6};
}

void prediction_free(struct prediction *p) {
    free(p->ranks);
    memset(p, 0, sizeof *p);
}
