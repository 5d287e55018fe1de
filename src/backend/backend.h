// backend.h - what a device must supply to run programs: memory, and one function per op.
//
// A backend is a table. Slots a backend leaves NULL are refused when a program is bound, with the
// op's name, so a new backend can start with ten functions. Kernels are told nothing but the op and
// where its tensors are; they never allocate, never branch on host state, and are called in issue
// order for the op's stream.
#ifndef HAGGLE_BACKEND_BACKEND_H
#define HAGGLE_BACKEND_BACKEND_H

#include "base/err.h"
#include "program/program.h"

#include <stddef.h>
#include <stdint.h>

struct backend;

// A tensor as a kernel sees it.
struct operand {
    void *data; // NULL: the optional input is absent
    int64_t ld; // elements between rows
    enum dtype dtype;
    int64_t rows, cols; // of the tensor: cols is its last dimension, rows all others
};

struct op_call {
    const struct op *op;
    struct operand in[OP_MAX_IN], out[OP_MAX_OUT];
};

typedef int backend_op_fn(struct backend *b, const struct op_call *call, struct err *e);

// What follows `run` is for a device with memory and streams of its own. All of it is optional: a
// member that is NULL means the host's behaviour, where an op is complete when its function returns.
// A device enqueues: run, record, wait and load return at once, and only sync, arrive and the copies
// of persistent tensors wait for the device.
struct backend {
    const char *name;
    // Memory of the arena. `host` backends hand out memory the host may touch directly; others fill
    // copy_in and copy_out.
    int (*arena_take)(struct backend *b, uint64_t bytes, void **out, struct err *e);
    void (*arena_give)(struct backend *b, void *arena);
    int (*copy_in)(struct backend *b, void *device, const void *host, uint64_t bytes,
                   struct err *e);
    int (*copy_out)(struct backend *b, void *host, const void *device, uint64_t bytes,
                    struct err *e);
    int (*sync)(struct backend *b,
                struct err *e); // all streams idle; NULL: ops are complete when they return
    void (*close)(struct backend *b);
    backend_op_fn *run[OP_COUNT]; // LOAD stays NULL: the executor feeds batches
    void *state;

    // Element types of weights and activations that run[] computes in: bits 1 << dtype.
    unsigned types;

    // Whether an op's sizes are within what run[] takes, asked once when a program is bound, so that
    // nothing is refused in the middle of a turn. NULL: all are.
    int (*accepts)(const struct backend *b, const struct op *op, struct err *e);

    // One line about the device and its libraries, for people.
    const char *(*describe)(const struct backend *b);
    int (*memory)(struct backend *b, uint64_t *free_bytes, uint64_t *total_bytes, struct err *e);

    // Order between streams: `prepare` makes events 0 .. n_events-1, none of them recorded (an executor
    // does, before its first turn; those of an earlier one are gone); a wait means an event's most
    // recent record, and passes when there was none. `arrive` is a wait of the host.
    int (*prepare)(struct backend *b, int n_events, struct err *e);
    int (*record)(struct backend *b, enum op_stream stream, int event, struct err *e);
    int (*wait)(struct backend *b, enum op_stream stream, int event, struct err *e);
    int (*arrive)(struct backend *b, int event, struct err *e);

    // Batches: host memory the device can read by itself, and a copy from it on the copy stream.
    // The bytes must stay as they are until the copy is over (record after it, arrive before reuse).
    int (*staging_take)(struct backend *b, uint64_t bytes, void **out, struct err *e);
    void (*staging_give)(struct backend *b, void *staging);
    int (*load)(struct backend *b, void *device, const void *staging, uint64_t bytes,
                struct err *e);

    // Graphs: between begin and end ops are recorded instead of run. `streams` has bit 1 << stream
    // for each stream the ops use; a graph starts and ends as one piece on the compute stream.
    // After a failure in between, capture_end must still be called; it drops what there is.
    int (*capture_begin)(struct backend *b, unsigned streams, struct err *e);
    int (*capture_end)(struct backend *b, void **graph, struct err *e);
    int (*graph_run)(struct backend *b, void *graph, struct err *e);
    void (*graph_free)(struct backend *b, void *graph);

    // Time on the device. turn_begin starts a turn's clock on the compute stream; `mark` notes the
    // time when all that was enqueued there before is done (index 0, 1, ... per turn, at most
    // marks); after sync mark_ns gives it, in ns since turn_begin. busy_ns is the last turn's time
    // from begin to end.
    int (*turn_begin)(struct backend *b, struct err *e);
    int (*turn_end)(struct backend *b, struct err *e);
    int marks;
    int (*mark)(struct backend *b, int index, struct err *e);
    uint64_t (*mark_ns)(struct backend *b, int index);
    uint64_t (*busy_ns)(struct backend *b);
};

#endif
