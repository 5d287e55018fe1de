// loader.h - step batches, made ahead of time by background threads.
//
// Place: the training loop takes one batch per step with loader_next and gives it back with
// loader_release. exec's LOAD op copies micro-batches out of it.
//
// Invariants:
//   1. All memory is taken at open (mem.h, class "data"): prefetch + 1 batches, one scratch area
//      per worker, and the windows kept in memory (reader.h).
//   2. The batches, their order and what they take from the source depend on the dataset, the
//      options' shape, ram and the position. They never depend on workers, prefetch, source_rate or
//      timing.
//   3. The position counts samples over all replicas. A loader opened at loader_position delivers
//      what this one would have delivered next.
//   4. There is one consumer and at most one batch out at a time. Workers block all signals. An
//      error in a worker is returned by the loader_next that would have delivered its batch, and by
//      every later one.
//
// With batch B, N micro-batches and R replicas, the step at position p uses the samples p .. p +
// N*R*B - 1. Micro-batch m of replica r has the rows p + (m*R + r)*B + [0, B). So a step holds the
// same samples however it is split into micro-batches and replicas.
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
    int replica, replicas; // number of this data-parallel replica, and how many; 0, 1 when alone
    int prefetch;          // steps ahead; 0: batches are made inside loader_next
    int workers;           // background threads, >= 1; without effect when prefetch is 0
    uint64_t position;     // samples consumed before the opening
    // The rest may stay zero.
    uint64_t source_rate; // bytes per second that may be read; 0: no limit
    uint64_t ram;         // bytes for windows kept in memory; 0: none
    // Set to non-zero: a waiting loader_next returns ERR_STOPPED soon. It may be called again.
    const volatile sig_atomic_t *stop;
};

struct loader_batch {
    // [N][B*T]: micro-batch m begins at m * rows.
    const int32_t *tokens, *targets, *positions, *doc_start;
    int64_t rows;           // B*T
    int64_t micro_batches;  // N
    uint64_t position;      // of the first sample
    int64_t tokens_count;   // N*B*T: what this replica computes on
    int64_t real_tokens;    // tokens that are not padding
    int64_t trained_tokens; // tokens that have a target
    // Of the step, over all replicas. The loss is a mean over step_trained_tokens.
    int64_t step_tokens, step_real_tokens, step_trained_tokens;
    struct data_use use; // what making the batch took
    // How long the caller waited for this batch (without prefetch: worked), counted from its first
    // loader_wait. Time reported by loader_not_waited is subtracted.
    uint64_t wait_ns;
};

struct loader;

// Bytes that loader_open will take.
uint64_t loader_plan_bytes(const struct loader_options *o);
int loader_open(struct loader **out, const struct loader_options *o, struct mem *m, struct err *e);
void loader_close(struct loader *l); // joins the workers; a batch still out becomes invalid

// Waits for the next batch for at most most_ns, for a consumer that has other work meanwhile. True:
// loader_next will not wait (without prefetch: not for the source), or will return an error.
bool loader_wait(struct loader *l, uint64_t most_ns);
// The consumer worked for ns since loader_wait; this is not waiting time.
void loader_not_waited(struct loader *l, uint64_t ns);
int loader_next(struct loader *l, struct loader_batch *out, struct err *e);
void loader_release(struct loader *l);
uint64_t loader_position(const struct loader *l);      // of the batch the next loader_next delivers
uint64_t loader_cache_windows(const struct loader *l); // how many windows fit in ram
int64_t loader_ready(struct loader *l); // batches made and waiting; call on the consumer's thread

#endif
