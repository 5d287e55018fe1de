// exec.h - runs programs: walks the order with a backend over one arena.
//
// Everything is resolved when the executor opens: the arena is taken, and every operand of every op
// is bound to its address per slot. So a turn is a loop over prepared calls. Nothing is allocated,
// looked up or decided inside it.
#ifndef HAGGLE_EXEC_EXEC_H
#define HAGGLE_EXEC_EXEC_H

#include "backend/backend.h"
#include "comm/comm.h"
#include "measure/trace.h"
#include "program/layout.h"

struct executor;

// A micro-batch for a LOAD op: arrays of B*T. LOAD copies those that the program has.
struct exec_batch {
    const int32_t *tokens, *targets, *positions, *doc_start;
};
typedef int exec_feed_fn(void *arg, int micro, struct exec_batch *out, struct err *e);

struct exec_options {
    struct program *const *programs; // already laid out; must outlive the executor
    int n_programs;
    const struct layout *layout;
    struct backend *backend; // must outlive the executor
    // An arena owned by the caller: the backend's memory, at least layout->arena_bytes. Persistent
    // tensors in it keep their values. NULL: the executor takes an arena. Not allowed with
    // `checking`.
    void *arena;
    // If the backend can: captures each (segment, slot) as a graph after it first ran, and replays
    // it from then on. A graph stays valid, because everything that changes between turns is in
    // input tensors.
    bool graphs;
    // Runs under observation (checking.c): slow, twice the memory, the same bits. Host memory only.
    bool checking;
    // Another executor of the same backend. Turns of this executor may interrupt its turns at yield
    // points. This executor has a separate arena, so any of its programs may run there. Neither
    // executor may have run anything yet. NULL: none.
    struct executor *beside;
    struct comm *comm; // connects this rank with the others; NULL: the programs are of one rank
};

// Takes a zeroed arena, unless the options give one, and binds every op. If the backend has no
// function for an op, returns ERR_UNSUPPORTED with the op's name.
int exec_open(struct executor **out, const struct exec_options *o, struct err *e);
void exec_close(struct executor *x);
// Bytes of the tables that an executor will need for these programs.
uint64_t exec_plan_bytes(struct program *const *programs, int n);

// Runs one turn of a program. feed may be NULL if the program loads nothing. trace may be NULL.
int exec_run(struct executor *x, int program, exec_feed_fn *feed, void *feed_arg,
             struct trace *trace, struct err *e);

// Runs those ops of a turn for which `keep` returns true, in order, on whatever the arena holds.
// Each is timed as in exec_run. Only on the host, and not under observation.
typedef bool exec_keep_fn(void *arg, const struct op *op);
int exec_run_kept(struct executor *x, int program, exec_keep_fn *keep, void *keep_arg,
                  exec_feed_fn *feed, void *feed_arg, struct trace *trace, struct err *e);

// Sets a function that is called at each yield point of a program that yields (program.h), from the
// thread that runs the turn. It may run guests of the set or programs of an executor beside this
// one, and nothing else. A return value other than 0 ends the turn. fn NULL: no function. On a
// device, everything before the micro-batch that was enqueued last is finished by then. So a guest
// waits for at most one micro-batch, which is already running.
typedef int exec_yield_fn(void *arg, struct err *e);
void exec_on_yield(struct executor *x, exec_yield_fn *fn, void *arg);

// Time from the first to the last op of the last turn on the device; 0 if the backend does not
// report it.
uint64_t exec_busy_ns(const struct executor *x);
// Number of graphs captured so far.
int exec_graphs(const struct executor *x);

// What a checking executor has seen so far; NULL for any other executor. An error it finds ends the
// turn with ERR_INTERNAL: a write outside the op's outputs, or an output that still holds poison.
struct exec_check {
    uint64_t used_bytes; // bytes of the arena in use: the highest byte written, plus one
    uint64_t ops, lives; // number of ops checked; number of lives that ended and were poisoned
};
const struct exec_check *exec_checked(const struct executor *x);

// Runs only the ops of one category, in order, on whatever the arena holds. The time of a step's
// matrix products alone is the minimum that its time is compared with. Weights keep their values
// unless the category updates them.
int exec_run_category(struct executor *x, int program, enum op_category category, struct err *e);

// Read and write persistent tensors (through the backend's copies): this rank's whole slice.
int exec_read(struct executor *x, int program, int tensor, void *out, uint64_t bytes,
              struct err *e);
int exec_write(struct executor *x, int program, int tensor, const void *data, uint64_t bytes,
               struct err *e);
// The same for a part of a tensor: bytes [at, at+bytes).
int exec_read_part(struct executor *x, int program, int tensor, uint64_t at, void *out,
                   uint64_t bytes, struct err *e);
int exec_write_part(struct executor *x, int program, int tensor, uint64_t at, const void *data,
                    uint64_t bytes, struct err *e);
// The arena, and the address of a tensor in it, if the host may touch it directly; otherwise NULL.
void *exec_host_arena(struct executor *x);
void *exec_host_address(struct executor *x, int program, int tensor);

#endif
