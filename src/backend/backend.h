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
};

struct op_call {
    const struct op *op;
    struct operand in[OP_MAX_IN], out[OP_MAX_OUT];
};

typedef int backend_op_fn(struct backend *b, const struct op_call *call, struct err *e);

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
};

#endif
