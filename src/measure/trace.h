// trace.h - where a step's time went: a ring of op events, and exact totals by kind of cost.
//
// Place: exec/ adds an event per op, and the training loop a span per wait. metrics.h and verdict.h
// read the totals, report/perfetto.h reads the events.
//
// Invariants:
//   1. There is one writer. Adding an event is a few stores: no lock, no allocation, no clock. The
//      caller already has the times and passes them.
//   2. Totals are summed when an event is added. So they are exact even after the ring has wrapped,
//      or if it has no capacity at all (then there are totals but no events).
//   3. The parts of a split add up to its wall time: host is the time that no event accounts for.
#ifndef HAGGLE_MEASURE_TRACE_H
#define HAGGLE_MEASURE_TRACE_H

#include "base/err.h"
#include "base/mem.h"
#include "program/program.h"

#include <stdint.h>

// The parts of a step's time, chosen so that each can be acted on. enum, JSON key.
#define TIME_LIST(X)                                                                               \
    X(TIME_MATMUL, "matmul")                                                                       \
    X(TIME_ATTENTION, "attention")                                                                 \
    X(TIME_OTHER, "other")                                                                         \
    X(TIME_OPTIMIZER, "optimizer")                                                                 \
    X(TIME_COMM, "comm")                                                                           \
    X(TIME_DATA_WAIT, "data_wait")                                                                 \
    X(TIME_HOST, "host")

enum time_part {
#define X(name, text) name,
    TIME_LIST(X)
#undef X
        TIME_COUNT
};
const char *time_part_name(enum time_part part);
enum time_part time_part_of(enum op_category category);

struct time_split {
    uint64_t wall_ns;
    uint64_t ns[TIME_COUNT]; // sum == wall_ns
    uint64_t stage_ns;       // part of ns[TIME_COMM]: waits for other stages of a pipeline
    uint64_t busy_ns;        // the device works: matmul + attention + other + optimizer
    uint64_t steps;          // number of steps that the split covers
    // The same time by op kind, for ops that were timed one by one (ops in graphs are not).
    uint64_t kind_ns[OP_COUNT];
};

void time_split_add(struct time_split *sum, const struct time_split *more);

// What an event was: an op kind, or OP_COUNT + one of these.
enum trace_span {
    SPAN_DATA_WAIT,
    SPAN_HOST,
    SPAN_COMM_WAIT,
    SPAN_STAGE_WAIT, // a wait for another stage of a pipeline: its rows, or a sum over stages
    SPAN_STEP,
    SPAN_COUNT
};
const char *trace_event_name(unsigned what); // op's name, "data_wait", "host", "comm_wait", ...

struct trace_event { // 32 bytes: two per cache line
    uint64_t start_ns, duration_ns;
    uint32_t step;
    int32_t micro;   // -1: none
    uint16_t what;   // enum op_kind, or OP_COUNT + enum trace_span
    int16_t segment; // -1: none
    int16_t layer;   // -1: none
    uint8_t part;    // enum time_part
    uint8_t stream;  // enum op_stream
};

struct trace {
    struct trace_event *events; // ring; NULL when there is none
    uint64_t mask;              // capacity - 1; the capacity is a power of two
    uint64_t added;             // number of events in all; the newest `capacity` are kept
    uint32_t step;
    uint64_t step_start_ns;
    uint64_t part_ns[TIME_COUNT]; // of the current step
    uint64_t kind_ns[OP_COUNT], stage_ns;
    struct time_split last, total; // the last whole step; all steps since trace_clear
    struct mem *mem;
};

// capacity: number of events kept, rounded up to a power of two; 0: totals only. The ring is taken
// from m (class "trace").
int trace_open(struct trace *t, struct mem *m, size_t capacity, struct err *e);
void trace_close(struct trace *t);
void trace_clear(struct trace *t); // forgets events and totals (after warm-up)

void trace_begin_step(struct trace *t, uint32_t step, uint64_t now_ns);
void trace_end_step(struct trace *t, uint64_t now_ns);

// Records an event that no other event covers: its time counts in the split. Fills in `step`.
static inline void trace_add(struct trace *t, struct trace_event ev) {
    t->part_ns[ev.part] += ev.duration_ns;
    if (ev.what < OP_COUNT)
        t->kind_ns[ev.what] += ev.duration_ns;
    if (t->events != NULL) {
        ev.step = t->step;
        t->events[t->added++ & t->mask] = ev;
    }
}
// Shorthands: an op on its stream, and a span on the compute stream.
void trace_add_op(struct trace *t, const struct op *op, int segment, int micro, uint64_t start_ns,
                  uint64_t end_ns);
// An op of another stream that ran beside others: an event whose time does not count in the split.
void trace_add_beside(struct trace *t, const struct op *op, int segment, int micro,
                      uint64_t start_ns, uint64_t end_ns);
void trace_add_span(struct trace *t, enum trace_span span, uint64_t start_ns, uint64_t end_ns);

void trace_last(const struct trace *t, struct time_split *out);  // the last whole step
void trace_split(const struct trace *t, struct time_split *out); // all steps since trace_clear
// Events still kept, oldest first: index in [0, trace_count).
size_t trace_count(const struct trace *t);
const struct trace_event *trace_at(const struct trace *t, size_t index);

#endif
