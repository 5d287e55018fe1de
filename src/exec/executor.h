// executor.h - the executor's own state, for the files of this folder.
#ifndef HAGGLE_EXEC_EXECUTOR_H
#define HAGGLE_EXEC_EXECUTOR_H

#include "exec/exec.h"

// A run of ops without a LOAD between them: what can be one graph. A LOAD needs the host.
struct piece {
    int begin, end; // calls [begin, end) of the segment
    void *graph;    // NULL: not captured (yet)
    int runs;
    // Measured op by op before the capture: how a replay's time is divided.
    uint64_t part_ns[TIME_COUNT];
};

struct bound_segment { // one per (segment, slot)
    struct op_call *calls;
    int n_calls;
    struct piece *pieces; // of a device; NULL on the host
    int n_pieces;
};

struct bound_program {
    const struct program *p;
    struct bound_segment *segments; // [segment * slots + slot]
    int slots;                      // most slots any order entry uses
};

// Batches pass through two buffers of pinned memory, used in turns.
enum { STAGING_BUFFERS = 2 };
// Of the last two yield points, behind the buffers' events.
enum { YIELD_EVENTS = 2 };

struct timed {           // what ended at a mark
    const struct op *op; // NULL: a whole piece; without a piece: something else
    struct piece *piece;
    bool typical; // not the first run, which loads kernels
    int segment, micro;
};

struct device {
    bool graphs;
    int n_graphs;
    int first_event; // of the backend's: those before it are an executor's that this one is beside
    int n_events;    // of the program with the most; as many again are for captures, then the
                     // buffers', then the yield points'
    unsigned char *staging[STAGING_BUFFERS];
    uint64_t staging_bytes;
    int next_staging;
    struct timed *timed; // [backend->marks]
    int n_timed;
    int n_yields; // yield points of this turn so far
    int guests;   // turns of guests at the last one
};

struct checking; // checking.c

struct executor {
    struct backend *backend;
    unsigned char *arena;
    bool lent;                 // the arena is the caller's
    struct checking *checking; // NULL: not observed; else it owns the arena
    struct bound_program *programs;
    int n_programs;
    struct device device; // when backend->prepare is not NULL
    exec_yield_fn *yield; // NULL: nobody wants to know
    void *yield_arg;
    bool interrupted;        // a turn is, and a guest's runs
    struct executor *beside; // whose turns this one's may interrupt; NULL: none
};

int device_open(struct executor *x, bool graphs, struct err *e);
void device_close(struct executor *x); // also after a failed open
int device_run(struct executor *x, int program, exec_feed_fn *feed, void *feed_arg,
               struct trace *trace, struct err *e);

// Calls the hook where entry `at` of a turn's order is a yield point. *yielded (may be NULL): it was.
int exec_yield(struct executor *x, const struct program *p, int at, bool *yielded, struct err *e);

// The host's LOAD.
int host_load(struct executor *x, const struct op_call *call, int micro, exec_feed_fn *feed,
              void *arg, struct err *e);

// Takes the arena with room around it, before programs are bound.
int checking_open(struct executor *x, const struct exec_options *o, struct err *e);
void checking_close(struct executor *x); // also after a failed open
int checking_run(struct executor *x, int program, exec_feed_fn *feed, void *feed_arg,
                 struct trace *trace, struct err *e);

#endif
