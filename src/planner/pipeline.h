// pipeline.h - the parts of an estimate that follow from stages: the order of micro-batches, and
// which rank needs the most memory.
#ifndef HAGGLE_PLANNER_PIPELINE_H
#define HAGGLE_PLANNER_PIPELINE_H

#include "planner/estimate.h"

struct pipeline_times {
    int stages, chunks; // chunks of each stage
    bool gpipe;
    int64_t micro_batches;
    double message;             // seconds from a chunk to the next
    double *forward, *backward; // of each chunk of the model
    double *reduce;             // sums over replicas behind its last backward, beside other work
};

// Seconds from the first forward to the last backward, and how long the stage that waits least
// does nothing in them.
int planner_pipeline(const struct pipeline_times *t, double *seconds, double *bubble,
                     struct err *e);
// Layers of chunk k: as even as can be, fewer in the last ones.
int64_t planner_chunk_layers(int64_t layers, int chunks, int k);
// Fills by_class, peak_bytes and stage of the rank that needs most. p: the programs of a sample.
void planner_memory(const struct planner_setup *s, struct program *const *p, struct estimate *out);

#endif
