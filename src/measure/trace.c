// trace.c - opening, closing and reading the trace; adding is inline in trace.h.
#include "measure/trace.h"

#include <string.h>

const char *time_part_name(enum time_part part) {
    static const char *const names[] = {
#define X(name, text) text,
        TIME_LIST(X)
#undef X
    };
    return (unsigned)part < TIME_COUNT ? names[part] : "unknown";
}

enum time_part time_part_of(enum op_category category) {
    static const enum time_part parts[CAT_COUNT] = {
        [CAT_MATMUL] = TIME_MATMUL,       [CAT_ATTENTION] = TIME_ATTENTION,
        [CAT_OPTIMIZER] = TIME_OPTIMIZER, [CAT_DATA] = TIME_DATA_WAIT,
        [CAT_COMM] = TIME_COMM,           [CAT_OTHER] = TIME_OTHER};
    return category < CAT_COUNT ? parts[category] : TIME_OTHER;
}

static const struct {
    const char *name;
    enum time_part part;
} spans[SPAN_COUNT] = {
    [SPAN_DATA_WAIT] = {"data_wait", TIME_DATA_WAIT},
    [SPAN_HOST] = {"host", TIME_HOST},
    [SPAN_COMM_WAIT] = {"comm_wait", TIME_COMM},
    [SPAN_STAGE_WAIT] = {"stage_wait", TIME_COMM},
    [SPAN_STEP] = {"step", TIME_HOST},
};

const char *trace_event_name(unsigned what) {
    if (what < OP_COUNT)
        return op_info((enum op_kind)what)->name;
    return what - OP_COUNT < SPAN_COUNT ? spans[what - OP_COUNT].name : "unknown";
}

int trace_open(struct trace *t, struct mem *m, size_t capacity, struct err *e) {
    *t = (struct trace){.mem = m};
    if (capacity == 0)
        return 0;
    if (capacity > SIZE_MAX / 4 / sizeof *t->events)
        return err_set(e, ERR_USAGE, "trace: a capacity of %zu events is over the limit of %zu",
                       capacity, SIZE_MAX / 4 / sizeof *t->events);
    size_t size = 1;
    while (size < capacity)
        size *= 2;
    void *ring;
    TRY(mem_take(m, "trace", "trace events", size * sizeof *t->events, &ring, e));
    t->events = ring;
    t->mask = size - 1;
    return 0;
}

void trace_close(struct trace *t) {
    if (t->events != NULL)
        mem_give(t->mem, t->events);
    *t = (struct trace){0};
}

static void forget_step(struct trace *t) {
    memset(t->part_ns, 0, sizeof t->part_ns);
    memset(t->kind_ns, 0, sizeof t->kind_ns);
    t->stage_ns = 0;
}

void trace_clear(struct trace *t) {
    t->added = 0;
    t->last = t->total = (struct time_split){0};
    forget_step(t);
}

void trace_begin_step(struct trace *t, uint32_t step, uint64_t now_ns) {
    t->step = step;
    t->step_start_ns = now_ns;
    forget_step(t);
}

void time_split_add(struct time_split *sum, const struct time_split *more) {
    sum->wall_ns += more->wall_ns;
    sum->stage_ns += more->stage_ns;
    sum->busy_ns += more->busy_ns;
    sum->steps += more->steps;
    for (int i = 0; i < TIME_COUNT; i++)
        sum->ns[i] += more->ns[i];
    for (int i = 0; i < OP_COUNT; i++)
        sum->kind_ns[i] += more->kind_ns[i];
}

static struct trace_event span_event(const struct trace *t, enum trace_span span, uint64_t start_ns,
                                     uint64_t end_ns) {
    return (struct trace_event){.start_ns = start_ns,
                                .duration_ns = end_ns - start_ns,
                                .step = t->step,
                                .micro = -1,
                                .what = (uint16_t)(OP_COUNT + (unsigned)span),
                                .segment = -1,
                                .layer = -1,
                                .part = (uint8_t)spans[span].part,
                                .stream = STREAM_COMPUTE};
}

void trace_end_step(struct trace *t, uint64_t now_ns) {
    struct time_split s = {
        .wall_ns = now_ns - t->step_start_ns, .stage_ns = t->stage_ns, .steps = 1};
    uint64_t covered = 0;
    for (int i = 0; i < TIME_HOST; i++) {
        s.ns[i] = t->part_ns[i];
        covered += t->part_ns[i];
    }
    // Host time is the remainder, including the spans of the host. Events may read the clock
    // slightly outside the step. The wall time then grows, so that the parts always add up to it.
    if (covered > s.wall_ns)
        s.wall_ns = covered;
    s.ns[TIME_HOST] = s.wall_ns - covered;
    s.busy_ns = s.ns[TIME_MATMUL] + s.ns[TIME_ATTENTION] + s.ns[TIME_OTHER] + s.ns[TIME_OPTIMIZER];

    memcpy(s.kind_ns, t->kind_ns, sizeof s.kind_ns);
    t->last = s;
    time_split_add(&t->total, &s);

    if (t->events != NULL)
        t->events[t->added++ & t->mask] = span_event(t, SPAN_STEP, t->step_start_ns, now_ns);
}

static struct trace_event op_event(const struct op *op, int segment, int micro, uint64_t start_ns,
                                   uint64_t end_ns) {
    return (struct trace_event){.start_ns = start_ns,
                                .duration_ns = end_ns - start_ns,
                                .micro = micro,
                                .what = (uint16_t)op->kind,
                                .segment = (int16_t)segment,
                                .layer = (int16_t)op->layer,
                                .part = (uint8_t)time_part_of(op_info(op->kind)->category),
                                .stream = (uint8_t)op->stream};
}

void trace_add_op(struct trace *t, const struct op *op, int segment, int micro, uint64_t start_ns,
                  uint64_t end_ns) {
    trace_add(t, op_event(op, segment, micro, start_ns, end_ns));
}

void trace_add_beside(struct trace *t, const struct op *op, int segment, int micro,
                      uint64_t start_ns, uint64_t end_ns) {
    if (t->events == NULL)
        return;
    struct trace_event *ev = &t->events[t->added++ & t->mask];
    *ev = op_event(op, segment, micro, start_ns, end_ns);
    ev->step = t->step;
}

void trace_add_span(struct trace *t, enum trace_span span, uint64_t start_ns, uint64_t end_ns) {
    trace_add(t, span_event(t, span, start_ns, end_ns));
    t->stage_ns += span == SPAN_STAGE_WAIT ? end_ns - start_ns : 0;
}

void trace_last(const struct trace *t, struct time_split *out) {
    *out = t->last;
}
void trace_split(const struct trace *t, struct time_split *out) {
    *out = t->total;
}

size_t trace_count(const struct trace *t) {
    if (t->events == NULL)
        return 0;
    return t->added <= t->mask ? (size_t)t->added : (size_t)t->mask + 1;
}

const struct trace_event *trace_at(const struct trace *t, size_t index) {
    return &t->events[(t->added - trace_count(t) + index) & t->mask];
}
