// test_device.c - device turns of the executor on a device made of queues. Ops, copies, waits and
// records are only queued. They run later, in the worst order that streams and events allow.
// Training must give the same bits as on the host. A missing wait, a staging buffer filled too
// early, or a graph that forgets an event would change them.
#include "backend/cpu/cpu.h"
#include "base/rng.h"
#include "exec/exec.h"
#include "program/apply.h"
#include "program/check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

// ---------------------------------------------------------------- the device

enum { MAX_EVENTS = 256, MAX_COMMANDS = 1 << 16, MAX_MARKS = 4096, OP_NS = 1000 };
enum command_kind { RUN, WAIT, RECORD, LOAD };

struct command {
    enum command_kind kind;
    const struct op_call *call;
    int event;
    uint64_t version; // of the event: number of records so far
    void *to;
    const void *from;
    uint64_t bytes;
};

struct queue {
    struct command *list;
    int head, n;
};

struct graph {
    struct command list[512];
    int n;
};

// Calls that were made one. They run from the last to the first, which changes nothing only if they
// touch nothing that another of them writes.
struct joined {
    const struct op_call *calls;
    int n;
};

enum policy { COPY_LATE, COPY_EARLY, SHUFFLED, POLICIES };

struct lazy { // state of the backend
    struct backend *reference;
    struct queue queue[STREAM_COUNT];
    uint64_t recorded[MAX_EVENTS], done[MAX_EVENTS];
    bool captured[MAX_EVENTS]; // last recorded in a capture, so not usable outside of one
    int n_events;
    bool in_turn;
    enum policy policy;
    uint64_t drawn;
    struct graph *capture; // NULL: no capture is running
    int replays, loads;
    struct joined joined[256];
    int n_joined;
    uint64_t clock, begin, *marks; // each op takes OP_NS
};
static struct joined nothing; // what the calls after the first of joined ones are

static void push(struct lazy *d, enum op_stream stream, struct command c) {
    if (d->capture) {
        if (c.kind == RUN) { // a graph of one stream runs its ops in order
            assert_true(d->capture->n < 512);
            d->capture->list[d->capture->n++] = c;
        }
        return;
    }
    struct queue *q = &d->queue[stream];
    assert_true(q->n < MAX_COMMANDS);
    q->list[q->n++] = c;
    d->clock += c.kind == RUN && stream == STREAM_COMPUTE ? OP_NS : 0;
}

static void run_call(struct lazy *d, const struct op_call *call) {
    const struct joined alone = {call, 1}, *j = call->made ? call->made : &alone;
    struct err e = {0};
    for (int i = j->n - 1; i >= 0; i--)
        if (d->reference->run[call->op->kind](d->reference, &j->calls[i], &e) != 0)
            fail_msg("%s", e.text);
}

// Runs the first command of a stream. False if there is none or it has to wait.
static bool advance(struct lazy *d, int stream) {
    struct queue *q = &d->queue[stream];
    if (q->head == q->n)
        return false;
    const struct command *c = &q->list[q->head];
    if (c->kind == WAIT && d->done[c->event] < c->version)
        return false;
    if (c->kind == RECORD && d->done[c->event] < c->version)
        d->done[c->event] = c->version;
    if (c->kind == LOAD)
        memcpy(c->to, c->from, c->bytes), d->loads++;
    if (c->kind == RUN)
        run_call(d, c->call);
    if (++q->head == q->n)
        q->head = q->n = 0;
    return true;
}

// Runs one command of any stream. False if no stream can continue.
static bool step(struct lazy *d) {
    static const int orders[POLICIES][STREAM_COUNT] = {
        [COPY_LATE] = {STREAM_COMPUTE, STREAM_COMM, STREAM_COPY},
        [COPY_EARLY] = {STREAM_COPY, STREAM_COMM, STREAM_COMPUTE}};
    int first = d->policy == SHUFFLED ? (int)rng_below(5, 0, d->drawn++, STREAM_COUNT) : 0;
    for (int i = 0; i < STREAM_COUNT; i++)
        if (advance(d, d->policy == SHUFFLED ? (first + i) % STREAM_COUNT : orders[d->policy][i]))
            return true;
    return false;
}

static int sync(struct backend *b, struct err *e) {
    struct lazy *d = b->state;
    (void)e;
    while (step(d))
        continue;
    for (int i = 0; i < STREAM_COUNT; i++)
        if (d->queue[i].n)
            fail_msg("stream %d waits for an event that is never recorded", i);
    return 0;
}

static int record(struct backend *b, enum op_stream stream, int event, struct err *e) {
    struct lazy *d = b->state;
    (void)e;
    assert_in_range(event, 0, d->n_events - 1);
    d->captured[event] = d->capture != NULL;
    if (!d->capture)
        d->recorded[event]++;
    push(d, stream,
         (struct command){.kind = RECORD, .event = event, .version = d->recorded[event]});
    return 0;
}

static int wait(struct backend *b, enum op_stream stream, int event, struct err *e) {
    struct lazy *d = b->state;
    (void)e;
    assert_in_range(event, 0, d->n_events - 1);
    assert_true(d->captured[event] == (d->capture != NULL));
    push(d, stream, (struct command){.kind = WAIT, .event = event, .version = d->recorded[event]});
    return 0;
}

static int arrive(struct backend *b, int event, struct err *e) {
    struct lazy *d = b->state;
    (void)e;
    assert_in_range(event, 0, d->n_events - 1);
    assert_false(d->captured[event]);
    uint64_t version = d->recorded[event];
    while (d->done[event] < version)
        if (!step(d))
            fail_msg("the host waits for an event that is never recorded");
    return 0;
}

static int prepare(struct backend *b, int n_events, struct err *e) {
    struct lazy *d = b->state;
    (void)e;
    assert_true(n_events <= MAX_EVENTS);
    memset(d->recorded, 0, sizeof d->recorded);
    memset(d->done, 0, sizeof d->done);
    memset(d->captured, 0, sizeof d->captured);
    d->n_events = n_events;
    return 0;
}

// Turns are not nested: a turn that interrupts another leaves the clock alone.
static int turn_begin(struct backend *b, struct err *e) {
    struct lazy *d = b->state;
    (void)e;
    assert_false(d->in_turn);
    d->in_turn = true;
    d->begin = d->clock;
    return 0;
}

static int mark(struct backend *b, int index, struct err *e) {
    struct lazy *d = b->state;
    (void)e;
    assert_true(index >= 0 && index < MAX_MARKS);
    d->marks[index] = d->clock - d->begin;
    return 0;
}

static uint64_t mark_ns(struct backend *b, int index) {
    return ((struct lazy *)b->state)->marks[index];
}

static int turn_end(struct backend *b, struct err *e) {
    struct lazy *d = b->state;
    (void)e;
    assert_true(d->in_turn);
    d->in_turn = false;
    return 0;
}

static int run(struct backend *b, const struct op_call *call, struct err *e) {
    (void)e;
    push(b->state, call->op->stream, (struct command){.kind = RUN, .call = call});
    return 0;
}

static int join(struct backend *b, struct op_call *calls, int n, struct err *e) {
    struct lazy *d = b->state;
    (void)e;
    assert_true(n > 1 && d->n_joined < 256);
    d->joined[d->n_joined] = (struct joined){calls, n};
    for (int i = 1; i < n; i++)
        calls[i].made = &nothing;
    calls[0].made = &d->joined[d->n_joined++];
    return 0;
}

static int load(struct backend *b, void *device, const void *staging, uint64_t bytes,
                struct err *e) {
    (void)e;
    push(b->state, STREAM_COPY,
         (struct command){.kind = LOAD, .to = device, .from = staging, .bytes = bytes});
    return 0;
}

static int copy_in(struct backend *b, void *device, const void *host, uint64_t bytes,
                   struct err *e) {
    sync(b, e);
    memcpy(device, host, bytes);
    return 0;
}

static int copy_out(struct backend *b, void *host, const void *device, uint64_t bytes,
                    struct err *e) {
    sync(b, e);
    memcpy(host, device, bytes);
    return 0;
}

static int arena_take(struct backend *b, uint64_t bytes, void **out, struct err *e) {
    struct lazy *d = b->state;
    return d->reference->arena_take(d->reference, bytes, out, e);
}

static void arena_give(struct backend *b, void *arena) {
    struct lazy *d = b->state;
    d->reference->arena_give(d->reference, arena);
}

static int staging_take(struct backend *b, uint64_t bytes, void **out, struct err *e) {
    (void)b;
    *out = malloc(bytes + 1);
    return *out ? 0 : err_set(e, ERR_MEMORY, "staging");
}

static void staging_give(struct backend *b, void *staging) {
    (void)b;
    free(staging);
}

static int capture_begin(struct backend *b, unsigned streams, struct err *e) {
    struct lazy *d = b->state;
    assert_null(d->capture);
    assert_int_equal(streams, 1u << STREAM_COMPUTE);
    d->capture = calloc(1, sizeof *d->capture);
    return d->capture ? 0 : err_set(e, ERR_MEMORY, "graph");
}

static int capture_end(struct backend *b, void **graph, struct err *e) {
    struct lazy *d = b->state;
    (void)e;
    *graph = d->capture;
    d->capture = NULL;
    return 0;
}

static int graph_run(struct backend *b, void *graph, struct err *e) {
    struct lazy *d = b->state;
    const struct graph *g = graph;
    (void)e;
    for (int i = 0; i < g->n; i++)
        push(d, STREAM_COMPUTE, g->list[i]);
    d->replays++;
    return 0;
}

static void graph_free(struct backend *b, void *graph) {
    (void)b;
    free(graph);
}

static void open_lazy(struct backend *b, struct lazy *d, struct backend *reference,
                      enum policy policy) {
    *d = (struct lazy){.reference = reference, .policy = policy};
    for (int i = 0; i < STREAM_COUNT; i++) {
        d->queue[i].list = malloc(MAX_COMMANDS * sizeof *d->queue[i].list);
        assert_non_null(d->queue[i].list);
    }
    *b = (struct backend){.name = "lazy",
                          .info = {.device = true, .streams = true, .graphs = true},
                          .state = d,
                          .arena_take = arena_take,
                          .arena_give = arena_give,
                          .copy_in = copy_in,
                          .copy_out = copy_out,
                          .sync = sync,
                          .prepare = prepare,
                          .record = record,
                          .wait = wait,
                          .arrive = arrive,
                          .staging_take = staging_take,
                          .staging_give = staging_give,
                          .load = load,
                          .capture_begin = capture_begin,
                          .capture_end = capture_end,
                          .graph_run = graph_run,
                          .graph_free = graph_free,
                          .turn_begin = turn_begin,
                          .turn_end = turn_end,
                          .join = join};
    d->marks = calloc(MAX_MARKS, sizeof *d->marks);
    assert_non_null(d->marks);
    b->marks = MAX_MARKS, b->mark = mark, b->mark_ns = mark_ns;
    for (int i = 0; i < OP_COUNT; i++) {
        b->run[i] = reference->run[i] ? run : NULL;
        b->joins[i] = true;
    }
}

static void close_lazy(struct lazy *d) {
    for (int i = 0; i < STREAM_COUNT; i++)
        free(d->queue[i].list);
    free(d->marks);
}

// ---------------------------------------------------------------- training on it

enum { MICRO = 4, BATCH = 2, SEQ = 6, ROWS = BATCH * SEQ, TURNS = 4 };

struct outcome {
    unsigned char *bytes; // all weights, then the results of every turn
    size_t n;
    int graphs;
};

// The feed uses one buffer and fills it again each time, as a loader may do.
struct source {
    int32_t data[4][ROWS];
    int turn;
    int64_t vocab;
};

static int feed(void *arg, int micro, struct exec_batch *out, struct err *e) {
    struct source *s = arg;
    (void)e;
    for (int i = 0; i < ROWS; i++) {
        uint64_t at = (uint64_t)((s->turn * MICRO + micro) * ROWS + i);
        s->data[0][i] = (int32_t)rng_below(9, 1, at, (uint64_t)s->vocab);
        s->data[1][i] = (int32_t)rng_below(9, 2, at, (uint64_t)s->vocab);
        s->data[2][i] = i % SEQ;
        s->data[3][i] = 0;
    }
    *out = (struct exec_batch){s->data[0], s->data[1], s->data[2], s->data[3]};
    return 0;
}

static struct model_shape small_shape(void) {
    struct model_shape s;
    struct err e = {0};
    assert_int_equal(model_shape_builtin(&s, "tiny", &e), 0);
    s.layers = 2, s.width = 16, s.heads = 2, s.kv_heads = 1, s.head_dim = 8, s.ffn = 24;
    s.vocab = 31, s.max_positions = 16;
    return s;
}

static void collect(struct outcome *out, const void *data, size_t bytes) {
    out->bytes = realloc(out->bytes, out->n + bytes);
    assert_non_null(out->bytes);
    memcpy(out->bytes + out->n, data, bytes);
    out->n += bytes;
}

// At each yield point, a guest of another length evaluates a separate batch.
struct guest {
    struct executor *x;
    const struct program *p;
    struct source source;
    struct outcome *out; // gets the results
    int n;
};

static int feed_guest(void *arg, int micro, struct exec_batch *out, struct err *e) {
    struct guest *g = arg;
    TRY(feed(&g->source, micro, out, e));
    g->source.turn++;
    return 0;
}

static int on_yield(void *arg, struct err *e) {
    struct guest *g = arg;
    double results[RESULT_COUNT];
    if (g->n++ % 3 == 2) // no request at this yield point
        return 0;
    TRY(exec_run(g->x, 1, feed_guest, g, NULL, e));
    TRY(exec_read(g->x, 1, program_find(g->p, NAME_GUEST NAME_RESULTS), results, sizeof results,
                  e));
    assert_int_equal((int)results[RESULT_TOKENS], ROWS / 2);
    collect(g->out, results, sizeof results);
    return 0;
}

static void set_weights(struct executor *x, const struct program *p, uint64_t seed) {
    struct err e = {0};
    float values[4096];
    for (int t = 0; t < p->n_tensors; t++) {
        int64_t n = tensor_elements(&p->tensors[t]);
        if (p->tensors[t].cls != CLASS_WEIGHT && t != program_find(p, NAME_INV_FREQ))
            continue;
        assert_true(n <= 4096);
        for (int64_t i = 0; i < n; i++)
            values[i] = (float)(0.3 * rng_normal(seed, (uint64_t)t, (uint64_t)i) + 0.2);
        assert_int_equal(exec_write(x, 0, t, values, (uint64_t)n * sizeof *values, &e), 0);
    }
}

static void set_hyper(struct executor *x, const struct program *p, int turn, int rows) {
    struct err e = {0};
    const double hyper[HYPER_COUNT] = {[HYPER_LR] = 0.01 * (turn + 1),
                                       [HYPER_BETA1] = 0.9,
                                       [HYPER_BETA2] = 0.95,
                                       [HYPER_EPS] = 1e-8,
                                       [HYPER_CLIP] = 1,
                                       [HYPER_BIAS1] = 0.1,
                                       [HYPER_BIAS2] = 0.05,
                                       [HYPER_LOSS_FACTOR] = 1.0 / rows};
    assert_int_equal(exec_write(x, 0, program_find(p, NAME_HYPER), hyper, sizeof hyper, &e), 0);
}

// Another model in a separate arena, trained at each yield point of x.
struct second {
    struct guest guest;
    struct program *p;
    struct layout layout;
};

static int on_yield_second(void *arg, struct err *e) {
    struct guest *g = &((struct second *)arg)->guest;
    double results[RESULT_COUNT];
    if (g->n++ % 3 == 2)
        return 0;
    set_hyper(g->x, g->p, g->source.turn, ROWS / 2);
    TRY(exec_run(g->x, 0, feed_guest, g, NULL, e));
    TRY(exec_read(g->x, 0, program_find(g->p, NAME_RESULTS), results, sizeof results, e));
    assert_int_equal((int)results[RESULT_TOKENS], ROWS / 2);
    collect(g->out, results, sizeof results);
    return 0;
}

static void open_second(struct second *s, struct executor *x, struct backend *b, bool graphs,
                        struct outcome *out) {
    struct err e = {0};
    struct model_shape shape = small_shape();
    shape.layers = 1;
    const struct apply a = {
        .build = {.kind = BUILD_TRAIN, .shape = &shape, .batch = 1, .seq = SEQ, .real = DTYPE_F32},
        .micro_batches = 1};
    if (apply_program(&s->p, "second", &a, &e) != 0 || layout_set(&s->p, 1, &s->layout, &e) != 0 ||
        exec_open(&s->guest.x,
                  &(struct exec_options){.programs = &s->p,
                                         .n_programs = 1,
                                         .layout = &s->layout,
                                         .backend = b,
                                         .graphs = graphs,
                                         .beside = x},
                  &e) != 0)
        fail_msg("%s", e.text);
    s->guest.p = s->p;
    s->guest.out = out;
    s->guest.source.vocab = shape.vocab;
    set_weights(s->guest.x, s->p, 8);
    exec_on_yield(x, on_yield_second, s);
}

static void close_second(struct second *s) {
    exec_close(s->guest.x);
    program_free(s->p);
}

// Each op takes OP_NS, so the time of a segment in a turn is known, also where a graph ran several
// of them.
static void check_times(const struct program *p, const struct trace *t) {
    for (int s = 0; s < p->n_segments; s++) {
        double ops = 0, ns = 0;
        for (int i = 0; i < p->n_order; i++)
            for (int k = 0; p->order[i].segment == s && k < p->segments[s].n_ops; k++)
                ops += p->segments[s].ops[k].stream == STREAM_COMPUTE;
        for (size_t i = 0; i < trace_count(t); i++)
            if (trace_at(t, i)->segment == s)
                ns += (double)trace_at(t, i)->duration_ns;
        if (fabs(ns - ops * OP_NS) > 1e-3 * ops * OP_NS)
            fail_msg("%s took %g ns, not %g", p->segments[s].name, ns, ops * OP_NS);
    }
}

// Rank 0: all weights train.
static struct adapter adapter;

// guests NULL: none. apart: at yield points another model is trained. trace NULL: not timed.
static void train_with(struct outcome *out, struct backend *b, bool graphs, struct outcome *guests,
                       bool apart, struct trace *trace) {
    struct err e = {0};
    struct model_shape shape = small_shape();
    struct program *set[2], *p;
    struct layout layout;
    struct executor *x;
    const int programs = guests && !apart ? 2 : 1;
    struct second second = {0};
    struct apply a = {.build = {.kind = BUILD_TRAIN,
                                .shape = &shape,
                                .batch = BATCH,
                                .seq = SEQ,
                                .real = DTYPE_F32},
                      .micro_batches = MICRO,
                      .fuse = {.norm = true, .act = true, .loss = true, .optim = true},
                      .chosen = {.adapter = &adapter},
                      .yields = guests != NULL};
    struct apply beside = {.build = {.kind = BUILD_EVAL,
                                     .shape = &shape,
                                     .batch = 1,
                                     .seq = SEQ,
                                     .real = DTYPE_F32,
                                     .guest = true},
                           .micro_batches = 1};
    *out = (struct outcome){0};
    if (apply_program(&set[0], "train", &a, &e) != 0 ||
        (programs > 1 && apply_program(&set[1], "guest", &beside, &e) != 0) ||
        layout_set(set, programs, &layout, &e) != 0 || check_guests(set, programs, &e) != 0 ||
        exec_open(&x,
                  &(struct exec_options){.programs = set,
                                         .n_programs = programs,
                                         .layout = &layout,
                                         .backend = b,
                                         .graphs = graphs},
                  &e) != 0)
        fail_msg("%s", e.text);
    p = set[0];
    struct guest guest = {
        .x = x, .p = programs > 1 ? set[1] : NULL, .source = {.vocab = shape.vocab}};
    if (guests) {
        *guests = (struct outcome){0};
        guest.out = guests;
        exec_on_yield(x, on_yield, &guest);
    }
    if (guests && apart)
        open_second(&second, x, b, graphs, guests);
    set_weights(x, p, 7);
    struct source source = {.vocab = shape.vocab};
    for (; source.turn < TURNS; source.turn++) {
        double results[RESULT_COUNT];
        int from = program_find(p, NAME_RESULTS);
        set_hyper(x, p, source.turn, MICRO * ROWS);
        if (trace)
            trace_clear(trace);
        if (exec_run(x, 0, feed, &source, trace, &e) != 0 ||
            exec_read(x, 0, from, results, sizeof results, &e) != 0)
            fail_msg("%s", e.text);
        assert_int_equal((int)results[RESULT_TOKENS], MICRO * ROWS);
        if (trace)
            check_times(p, trace);
        collect(out, results, sizeof results);
    }
    float values[4096];
    for (int t = 0; t < p->n_tensors; t++) {
        uint64_t bytes = (uint64_t)tensor_elements(&p->tensors[t]) * sizeof *values;
        if (p->tensors[t].cls != CLASS_WEIGHT || p->tensors[t].root >= 0)
            continue;
        assert_int_equal(exec_read(x, 0, t, values, bytes, &e), 0);
        collect(out, values, bytes);
    }
    out->graphs = exec_graphs(x);
    if (guests && apart)
        close_second(&second);
    exec_close(x);
    for (int i = 0; i < programs; i++)
        program_free(set[i]);
    assert_int_equal(guest.n + second.guest.n, guests ? TURNS * (MICRO - 1) : 0);
}

static void train(struct outcome *out, struct backend *b, bool graphs, struct outcome *guests) {
    train_with(out, b, graphs, guests, false, NULL);
}

static void check_lazy(void) {
    struct mem *mem;
    struct backend *reference;
    struct err e = {0};
    struct outcome truth, got;
    assert_int_equal(mem_open(&mem, &e), 0);
    assert_int_equal(cpu_reference_open(&reference, mem, &e), 0);
    train(&truth, reference, true, NULL);
    assert_int_equal(truth.graphs, 0); // the host has none
    for (int policy = 0; policy < POLICIES; policy++)
        for (int graphs = 0; graphs < 2; graphs++) {
            struct backend b;
            struct lazy d;
            open_lazy(&b, &d, reference, (enum policy)policy);
            train(&got, &b, graphs, NULL);
            assert_int_equal(got.n, truth.n);
            if (memcmp(got.bytes, truth.bytes, truth.n) != 0)
                fail_msg("policy %d, %s: the result differs from the host's", policy,
                         graphs ? "graphs" : "no graphs");
            // Each is captured once: what comes before the first batch; the first
            // micro-batch; those in the middle; the last one with the update.
            assert_int_equal(got.graphs, graphs ? 4 : 0);
            int runs = TURNS * (1 + MICRO);
            assert_int_equal(d.replays, graphs ? runs - 4 : 0);
            assert_int_equal(d.loads, TURNS * MICRO * (adapter.dropout > 0 ? 5 : 4));
            assert_true(d.n_joined > 0);
            free(got.bytes);
            close_lazy(&d);
        }
    free(truth.bytes);
    reference->close(reference);
    assert_int_equal(mem_bytes(mem), 0);
    mem_close(mem);
}

static void test_lazy(void **state) {
    (void)state;
    check_lazy();
    // Dropout reads numbers that the host writes beside each batch.
    adapter = (struct adapter){.rank = 2, .alpha = 8, .dropout = 0.25};
    check_lazy();
    adapter = (struct adapter){0};
}

// A turn's time is divided among its segments, op by op and when graphs are replayed.
static void test_times(void **state) {
    (void)state;
    struct mem *mem;
    struct backend *reference, b;
    struct lazy d;
    struct trace trace;
    struct err e = {0};
    assert_int_equal(mem_open(&mem, &e), 0);
    assert_int_equal(cpu_reference_open(&reference, mem, &e), 0);
    assert_int_equal(trace_open(&trace, mem, 1 << 14, &e), 0);
    for (int graphs = 0; graphs < 2; graphs++) {
        struct outcome got;
        open_lazy(&b, &d, reference, COPY_LATE);
        train_with(&got, &b, graphs, NULL, false, &trace);
        assert_int_equal(got.graphs, graphs ? 4 : 0);
        assert_true(!graphs || d.replays > 0);
        free(got.bytes);
        close_lazy(&d);
    }
    trace_close(&trace);
    reference->close(reference);
    assert_int_equal(mem_bytes(mem), 0);
    mem_close(mem);
}

// A guest that runs between micro-batches sees its weights and its batch and changes nothing else,
// whatever the device has not finished when it is enqueued.
static void compare_guests(bool apart, int graphs_of_step) {
    struct mem *mem;
    struct backend *reference;
    struct err e = {0};
    struct outcome alone, truth, got, answers, heard;
    assert_int_equal(mem_open(&mem, &e), 0);
    assert_int_equal(cpu_reference_open(&reference, mem, &e), 0);
    train(&alone, reference, true, NULL);
    train_with(&truth, reference, true, &answers, apart, NULL);
    assert_int_equal(truth.n, alone.n);
    assert_memory_equal(truth.bytes, alone.bytes, alone.n);
    assert_int_equal(answers.n, TURNS * (MICRO - 1) * 2 / 3 * RESULT_COUNT * sizeof(double));
    for (int policy = 0; policy < POLICIES; policy++)
        for (int graphs = 0; graphs < 2; graphs++) {
            struct backend b;
            struct lazy d;
            open_lazy(&b, &d, reference, (enum policy)policy);
            train_with(&got, &b, graphs, &heard, apart, NULL);
            assert_int_equal(got.n, truth.n);
            if (memcmp(got.bytes, truth.bytes, truth.n) != 0)
                fail_msg("policy %d, %s: guests changed the training result", policy,
                         graphs ? "graphs" : "no graphs");
            assert_int_equal(heard.n, answers.n);
            if (memcmp(heard.bytes, answers.bytes, answers.n) != 0)
                fail_msg("policy %d, %s: guests got different answers", policy,
                         graphs ? "graphs" : "no graphs");
            assert_int_equal(got.graphs, graphs ? graphs_of_step : 0);
            free(got.bytes);
            free(heard.bytes);
            close_lazy(&d);
        }
    free(alone.bytes);
    free(truth.bytes);
    free(answers.bytes);
    reference->close(reference);
    mem_close(mem);
}

static void test_guests(void **state) {
    (void)state;
    compare_guests(false, 6); // 4, and the guest's begin and forward
}

static void test_second_executor(void **state) {
    (void)state;
    compare_guests(true, 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lazy), cmocka_unit_test(test_times),
                                       cmocka_unit_test(test_guests),
                                       cmocka_unit_test(test_second_executor)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
