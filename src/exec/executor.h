// executor.h - the state of the executor, for the files of this folder.
#ifndef HAGGLE_EXEC_EXECUTOR_H
#define HAGGLE_EXEC_EXECUTOR_H

#include "exec/comm_stream.h"
#include "exec/exec.h"

struct bound_segment { // one per (segment, slot)
    struct op_call *calls;
    int n_calls;
};

// Calls [begin, end) of a bound segment.
struct span {
    int bound; // index of the bound segment
    int begin, end;
    int after; // number of order entries after the piece's first
    // Measured op by op before the capture. A replay's time is divided in these proportions.
    uint64_t part_ns[TIME_COUNT];
};

// All calls of a turn from one LOAD, which needs the host, to the next. They can become one graph.
// Micro-batches that do the same share a piece.
struct piece {
    struct span *spans;
    int n_spans;
    size_t span_capacity;
    void *graph; // NULL: not captured yet
    int runs;
};

// A turn on a device is a list of LOADs and pieces.
struct item {
    int entry;       // of the order; the first one of a piece
    bool first;      // nothing of that entry comes before
    int load, piece; // call of the entry's segment, or index of a piece; the other is -1
};

struct bound_program {
    const struct program *p;
    struct bound_segment *segments; // [segment * slots + slot]
    int slots;                      // number of slots that the order uses
    // On a device; NULL on the host.
    struct item *items;
    struct piece *pieces;
    int n_items, n_pieces;
    size_t item_capacity, piece_capacity;
};

// Batches pass through two buffers of pinned memory, used alternately.
enum { STAGING_BUFFERS = 2 };
// One event for each of the last two yield points. They come after the buffers' events.
enum { YIELD_EVENTS = 2 };

struct timed {           // what ended at a time mark
    const struct op *op; // NULL: a whole piece, or if piece is NULL too, work of other turns
    struct piece *piece;
    struct span *span; // the op's
    bool typical;      // not the first run, which also loads kernels
    int entry;         // of the order: the op's, or the first of the piece
};

struct device {
    bool graphs;
    int n_graphs;
    // Events of the backend. Those before first_event belong to the executor that this one is
    // beside. From first_event on: n_events for normal runs, n_events for captures, then those of
    // the buffers, then those of the yield points.
    int first_event;
    int n_events; // of the program that has the most
    unsigned char *staging[STAGING_BUFFERS];
    uint64_t staging_bytes;
    int next_staging;
    struct timed *timed; // [backend->marks]
    int n_timed;
    int n_yields; // number of yield points in this turn so far
    int guests;   // number of guest turns at the last yield point
};

struct checking; // checking.c

struct executor {
    struct backend *backend;
    unsigned char *arena;
    void *own_arena;           // the same, when this executor took it; else NULL
    struct checking *checking; // NULL: not observed; else it owns the arena
    struct bound_program *programs;
    int n_programs;
    struct device device;     // used if backend->info.streams
    struct comm_stream *comm; // NULL: one rank
    exec_yield_fn *yield;     // called at yield points; NULL: none
    void *yield_arg;
    bool interrupted;        // a turn is interrupted at a yield point
    struct executor *beside; // the executor whose turns this one may interrupt; NULL: none
};

int device_open(struct executor *x, bool graphs, struct err *e);
void device_close(struct executor *x); // also after a failed open
int device_run(struct executor *x, int program, exec_feed_fn *feed, void *feed_arg,
               struct trace *trace, struct err *e);

// Calls the yield function if entry `at` of a turn's order is a yield point. *yielded (may be NULL)
// says whether it was.
int exec_yield(struct executor *x, const struct program *p, int at, bool *yielded, struct err *e);

// Runs a LOAD on the host.
int host_load(struct executor *x, const struct op_call *call, int micro, exec_feed_fn *feed,
              void *arg, struct err *e);

// Takes the arena with guards around it. Call it before programs are bound.
int checking_open(struct executor *x, const struct exec_options *o, struct err *e);
void checking_close(struct executor *x); // also after a failed open
int checking_run(struct executor *x, int program, exec_feed_fn *feed, void *feed_arg,
                 struct trace *trace, struct err *e);

#endif
