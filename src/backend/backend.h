// backend.h - what a device must supply to run programs: memory, and one function per op.
//
// A backend is a table of functions. An op whose slot in run[] is NULL is refused by name when a
// program is bound, so a new backend can start with ten functions. A kernel gets the op and the
// addresses of its tensors, nothing else. It never allocates and never branches on host state. The
// kernels of a stream are called in issue order.
#ifndef HAGGLE_BACKEND_BACKEND_H
#define HAGGLE_BACKEND_BACKEND_H

#include "backend/device_info.h"
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
    int64_t rows, cols;     // cols is the tensor's last dimension, rows the product of all others
    struct storage storage; // a quantized weight: rows x cols values in the bytes of base/storage.h
};

#ifndef __cplusplus // the CUDA plug-in makes none
// An operand whose values are stored one by one.
static inline struct operand operand_plain(void *data, int64_t ld, enum dtype dtype, int64_t rows,
                                           int64_t cols) {
    return (struct operand){.data = data, .ld = ld, .dtype = dtype, .rows = rows, .cols = cols};
}
#endif

struct op_call {
    const struct op *op;
    struct operand in[OP_MAX_IN], out[OP_MAX_OUT];
    struct operand scratch; // bytes that the kernels may use while they run
    void *made;             // what the backend made for this call (make); NULL: nothing
};

typedef int backend_op_fn(struct backend *b, const struct op_call *call, struct err *e);

// `info` says what a backend is. No code may conclude it from a function that is NULL.
//   info.device   copy_in, copy_out, clear and memory exist.
//   info.streams  sync and the functions from prepare to load exist. The device enqueues: run,
//                 record, wait and load return at once. Only sync, arrive, copy_in, copy_out
//                 and clear wait for the device.
//   info.graphs   The functions from capture_begin to graph_free exist.
struct backend {
    const char *name;        // "cpu", "reference", "cuda"
    struct device_info info; // filled when the backend opens, constant from then on
    // For people: the instruction set of the kernels ("avx512"), and for each element type what
    // computes its matrix products ("openblas 0.3.21 (SkylakeX)"; NULL: the type is not in
    // info.types). Valid until the backend closes.
    const char *isa, *products[DTYPE_COUNT];
    // For people: why slow kernels run where fast ones could be expected, after programs were
    // bound. NULL or "": nothing to say.
    const char *note;

    // Memory of the arena.
    int (*arena_take)(struct backend *b, uint64_t bytes, void **out, struct err *e);
    void (*arena_give)(struct backend *b, void *arena);
    int (*copy_in)(struct backend *b, void *device, const void *host, uint64_t bytes,
                   struct err *e);
    int (*copy_out)(struct backend *b, void *host, const void *device, uint64_t bytes,
                    struct err *e);
    int (*clear)(struct backend *b, void *device, uint64_t bytes, struct err *e); // to zero
    int (*memory)(struct backend *b, uint64_t *free_bytes, uint64_t *total_bytes, struct err *e);
    int (*sync)(struct backend *b, struct err *e); // waits until all streams are idle
    void (*close)(struct backend *b);
    backend_op_fn *run[OP_COUNT]; // LOAD stays NULL: the executor feeds batches
    void *state;

    // Makes a call ready. Called once for each call, when a program is bound, with the addresses it
    // will have. Refuses what run[] cannot take, so that no op is refused in the middle of a turn
    // (one run of a program), and may set call->made: operands that were checked, an algorithm that
    // was chosen, a plan of a library. May overwrite the call's outputs and scratch. `unmake` drops
    // it again. A call that was not made can be run as well, if more slowly. NULL: nothing is made.
    int (*make)(struct backend *b, struct op_call *call, struct err *e);
    void (*unmake)(struct backend *b, struct op_call *call);
    // Calls that follow one another on a stream, have one kind, and touch nothing that another of
    // them writes: `join` may make them one, so that the first does the work of all and the others
    // do nothing. It must not use their scratch, which they may share. Called after `make`, for the
    // kinds in `joins`.
    bool joins[OP_COUNT];
    int (*join)(struct backend *b, struct op_call *calls, int n, struct err *e);

    // Order between streams. `prepare` makes events 0 .. n_events-1, none of them recorded, and
    // drops the events of an earlier call. An executor calls it before its first turn. A wait is
    // for an event's most recent record, and passes when there was none. `arrive` makes the host
    // wait.
    int (*prepare)(struct backend *b, int n_events, struct err *e);
    int (*record)(struct backend *b, enum op_stream stream, int event, struct err *e);
    int (*wait)(struct backend *b, enum op_stream stream, int event, struct err *e);
    int (*arrive)(struct backend *b, int event, struct err *e);

    // Batches: host memory that the device can read by itself, and a copy from it on the copy
    // stream. The caller must not change the bytes until the copy is over: it records an event
    // after the load and calls arrive before it fills them again.
    int (*staging_take)(struct backend *b, uint64_t bytes, void **out, struct err *e);
    void (*staging_give)(struct backend *b, void *staging);
    int (*load)(struct backend *b, void *device, const void *staging, uint64_t bytes,
                struct err *e);

    // Graphs: between begin and end, ops are captured instead of run. `streams` has bit 1 << stream
    // for each stream that the ops use. A graph starts and ends as one piece on the compute stream.
    // After a failure in between, capture_end must still be called; it drops the capture.
    int (*capture_begin)(struct backend *b, unsigned streams, struct err *e);
    int (*capture_end)(struct backend *b, void **graph, struct err *e);
    int (*graph_run)(struct backend *b, void *graph, struct err *e);
    void (*graph_free)(struct backend *b, void *graph);

    // Time on the device. turn_begin starts a turn's clock on the compute stream. `mark` notes when
    // everything that was enqueued there so far is done; its index counts 0, 1, ... per turn and
    // stays below `marks`. After sync, mark_ns gives that time in ns since turn_begin. busy_ns is
    // the last turn's time from begin to end. All of it is optional: without mark and mark_ns,
    // `marks` is 0; the other functions may be NULL.
    int (*turn_begin)(struct backend *b, struct err *e);
    int (*turn_end)(struct backend *b, struct err *e);
    int marks;
    int (*mark)(struct backend *b, int index, struct err *e);
    uint64_t (*mark_ns)(struct backend *b, int index);
    uint64_t (*busy_ns)(struct backend *b);
};

#endif
