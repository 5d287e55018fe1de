// loader.h - step batches, made ahead of time by background threads.
//
// Place: the training loop takes one batch per step with loader_next and gives it back with
// loader_release; exec's LOAD op copies micro-batches out of it.
//
// Invariants:
//   1. All memory is taken at open (mem.h, class "data"): prefetch + 1 batches, one scratch per
//      worker, and the windows kept (reader.h).
//   2. The batches, their order and what they take from the source depend on the dataset, the
//      options' shape, ram and the position, never on workers, prefetch, source_rate or timing.
//   3. The position is a count of samples over all replicas; a loader opened at loader_position
//      delivers what this one would have delivered next.
//   4. One consumer, one batch out at a time. Workers block all signals; an error in a worker is
//      returned by the loader_next that would have delivered its batch, and by every later one.
//
// Step s at position p with B, N and R replicas uses samples p .. p + N*R*B - 1: micro-batch m of
// replica r has rows p + (m*R + r)*B + [0, B). So one step holds the same samples for every way of
// splitting it in micro-batches and replicas.
#ifndef HAGGLE_DATA_LOADER_H
#define HAGGLE_DATA_LOADER_H

#include "base/mem.h"
#include "data/dataset.h"
#include "measure/metrics.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

enum { LOADER_MAX_PREFETCH = 1024, LOADER_MAX_WORKERS = 256 };

struct loader_options {
    const struct dataset *dataset; // outlives the loader
    enum dataset_split split;
    int64_t batch;         // B: rows of a micro-batch
    int64_t micro_batches; // N: per step, on this replica
    int replica, replicas; // this data-parallel replica, of how many; 0, 1 when alone
    int prefetch;          // steps ahead; 0: batches are made inside loader_next
    int workers;           // background threads, >= 1; without effect when prefetch is 0
    uint64_t position;     // samples consumed before
    // What follows may stay zero.
    uint64_t source_rate; // bytes per second that may be read; 0: no limit
    uint64_t ram;         // bytes for windows that are kept; 0: none
    // Not 0: a loader_next that waits returns ERR_STOPPED soon, and may be called again.
    const volatile sig_atomic_t *stop;
};

struct loader_batch {
    // [N][B*T]: micro-batch m begins at m * rows.
    const int32_t *tokens, *targets, *positions, *doc_start;
    int64_t rows;                // B*T
    int64_t micro_batches;       // N
    uint64_t position;           // of its first sample
    int64_t tokens_count;        // N*B*T: what this replica computes on
    int64_t real_tokens;         // of these, not padding
    int64_t trained_tokens;      // of these, with a target
    int64_t step_trained_tokens; // over all replicas: the loss is a mean over these
    struct data_use use;         // what making it took
    // The caller waited (or, without prefetch, worked) this long, since its first loader_wait for it and
    // without what it did meanwhile (loader_not_waited).
    uint64_t wait_ns;
};

struct loader;

// Bytes loader_open will take, before it does.
uint64_t loader_plan_bytes(const struct loader_options *o);
int loader_open(struct loader **out, const struct loader_options *o, struct mem *m, struct err *e);
void loader_close(struct loader *l); // stops and joins the workers; a batch still out becomes void

// Waits at most so long for the next batch, for a consumer with other things to do meanwhile. True:
// loader_next will not wait (without prefetch, for the source), or knows why it fails.
bool loader_wait(struct loader *l, uint64_t most_ns);
void loader_not_waited(struct loader *l,
                       uint64_t ns); // since loader_wait: the consumer was at work
int loader_next(struct loader *l, struct loader_batch *out, struct err *e);
void loader_release(struct loader *l);
uint64_t loader_position(const struct loader *l);      // of the batch the next loader_next delivers
uint64_t loader_cache_windows(const struct loader *l); // that ram has room for
int64_t loader_ready(struct loader *l);                // made and waiting; consumer's thread only

#endif
