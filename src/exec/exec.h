// exec.h - runs programs: walks the order with a backend over one arena.
//
// Everything is resolved when the executor opens (arena taken, every operand of every op bound to
// its address per slot), so a turn is a loop over prepared calls: nothing is allocated, looked up
// or decided inside it.
#ifndef HAGGLE_EXEC_EXEC_H
#define HAGGLE_EXEC_EXEC_H

#include "backend/backend.h"
#include "measure/trace.h"
#include "program/layout.h"

struct executor;

// Where LOAD ops get their micro-batch: arrays of B*T.
struct exec_batch {
    const int32_t *tokens, *targets, *positions, *doc_start;
};
typedef int exec_feed_fn(void *arg, int micro, struct exec_batch *out, struct err *e);

struct exec_options {
    struct program *const *programs; // laid out; outlive the executor
    int n_programs;
    const struct layout *layout;
    struct backend *backend; // outlives the executor
    // The caller's memory for it, of the backend and layout->arena_bytes or more; what persists in it is
    // as the caller wants it. NULL: the executor takes an arena of its own. Not with `checking`.
    void *arena;
    // Capture each (segment, slot) as a graph the first time it runs and replay it from then on,
    // where the backend can. All that changes from turn to turn is in input tensors, so a graph
    // stays right.
    bool graphs;
    // Run under observation (checking.c): slow, twice the memory, the same bits. Host memory only.
    bool checking;
    // Another executor of the same backend, whose turns this one's may interrupt at yield points: with an
    // arena of its own, any of its programs may. Neither has run anything yet. NULL: none.
    struct executor *beside;
};

// Takes the arena (zeroed), unless it is given one, and binds every op. An op the backend has no function for is
// ERR_UNSUPPORTED with its name.
int exec_open(struct executor **out, const struct exec_options *o, struct err *e);
void exec_close(struct executor *x);
// Bytes of an executor's own tables for these programs, before it is opened.
uint64_t exec_plan_bytes(struct program *const *programs, int n);

// Runs one turn of a program. feed may be NULL when the program loads nothing; trace may be NULL.
int exec_run(struct executor *x, int program, exec_feed_fn *feed, void *feed_arg,
             struct trace *trace, struct err *e);

// Runs the ops of a turn that `keep` says to, in order, on whatever the arena holds; each is timed as in
// exec_run. On the host, not under observation.
typedef bool exec_keep_fn(void *arg, const struct op *op);
int exec_run_kept(struct executor *x, int program, exec_keep_fn *keep, void *keep_arg,
                  exec_feed_fn *feed, void *feed_arg, struct trace *trace, struct err *e);

// Called at each yield point of a program that yields (program.h), from the thread that runs the turn.
// May run guests of the set, and nothing else of it, or programs of an executor beside it; not 0 ends the
// turn. fn NULL: nobody.
// On a device everything up to the micro-batch before the last is finished by then, so what a guest
// waits for is at most one micro-batch, which is under way.
typedef int exec_yield_fn(void *arg, struct err *e);
void exec_on_yield(struct executor *x, exec_yield_fn *fn, void *arg);

// Time the device was at work in the last turn, from its first op to its last; 0 when the backend
// does not say.
uint64_t exec_busy_ns(const struct executor *x);
// How many graphs have been captured so far.
int exec_graphs(const struct executor *x);

// What a checking executor has seen so far; NULL for any other. What it finds wrong ends the turn with
// ERR_INTERNAL: a write outside the op's outputs, an output that is left poisoned.
struct exec_check {
    uint64_t used_bytes; // of the arena: the highest byte that anything wrote, plus one
    uint64_t ops, lives; // ops looked at; lives that ended, and were poisoned
};
const struct exec_check *exec_checked(const struct executor *x);

// Runs only the ops of one category, in order, on whatever the arena holds: a step's matrix
// products by themselves are the floor its time is compared with. Weights keep their values as long
// as the category does not update them.
int exec_run_category(struct executor *x, int program, enum op_category category, struct err *e);

// Reads and writes persistent tensors (through the backend's copies). The whole slice of this rank.
int exec_read(struct executor *x, int program, int tensor, void *out, uint64_t bytes,
              struct err *e);
int exec_write(struct executor *x, int program, int tensor, const void *data, uint64_t bytes,
               struct err *e);
// A part of a tensor: bytes [at, at+bytes).
int exec_read_part(struct executor *x, int program, int tensor, uint64_t at, void *out,
                   uint64_t bytes, struct err *e);
int exec_write_part(struct executor *x, int program, int tensor, uint64_t at, const void *data,
                    uint64_t bytes, struct err *e);
// The arena, and the address of a tensor in it, when the host may touch it directly; NULL otherwise.
void *exec_host_arena(struct executor *x);
void *exec_host_address(struct executor *x, int program, int tensor);

#endif
