// apply.h - one call from a configuration to a finished program.
#ifndef HAGGLE_PROGRAM_APPLY_H
#define HAGGLE_PROGRAM_APPLY_H

#include "program/build.h"
#include "program/recompute.h"
#include "program/state.h"

enum apply_schedule { SCHEDULE_GPIPE, SCHEDULE_1F1B, SCHEDULE_INTERLEAVED };

// How this rank shares the work with others. All zero: one rank alone.
struct apply_ranks {
    int world, rank;
    int stages; // pipeline depth; 0 or 1: none
    int chunks; // per rank, for SCHEDULE_INTERLEAVED
    enum apply_schedule schedule;
    bool shard_weights; // ZeRO 3 over the whole world
    int prefetch;       // layers whose weights are gathered ahead of use
};

// Which groups of ops run as one; false: as the ops they are made of, each a pass over memory.
struct fuse_rule {
    bool norm;  // residual + norm
    bool act;   // bias + activation
    bool loss;  // softmax + cross-entropy + their gradient in place
    bool optim; // AdamW with the clip's factor
};

struct apply {
    struct build build;
    int micro_batches;
    struct apply_ranks ranks;
    enum dtype precision; // a 16-bit type for weights and activations; any other: as built
    int64_t logits_chunk; // rows of logits at a time; 0: all of a micro-batch
    struct recompute_rule recompute;
    enum state_type state; // of Adam's moments
    struct fuse_rule fuse; // other moments than fp32 have the fused update only
    bool fuse_qkv;         // one product for queries, keys and values
    bool noise;            // measure the first micro-batch's gradients; needs two, on one rank
    int lora_rank;         // 0: all weights train
    double lora_scale;     // alpha / rank
    bool yields;           // between micro-batches, to guests of its set
};

// Builds, edits, orders, synchronises and checks. The program is the caller's to free.
int apply_program(struct program **out, const char *name, const struct apply *a, struct err *e);

// The techniques, in the order apply.c calls them. Each edits the program and nothing else.

// lora.c: freezes every weight and adds a trainable pair beside each matrix of a layer: y += scale
// (x A') B'.
int lora_apply(struct program *p, int forward, int rank, double scale, struct err *e);
// qkv.c: the projections to queries, keys and values become one product (on) or three.
int qkv_apply(struct program *p, int forward, bool on, struct err *e);
// logits.c: the head and the loss run in chunks of rows. backward: -1 when there is none.
int logits_apply(struct program *p, int forward, int backward, int64_t chunk, struct err *e);
// precision.c: tensors that are float type `from` become `to`, where an op's letters allow it.
int precision_apply(struct program *p, enum dtype from, enum dtype to, struct err *e);
// zero.c: weights live as this rank's shards of flat groups; gathered into windows ahead of use,
// gradients scattered.
int zero_apply(struct program *p, int forward, int backward, const struct apply_ranks *r,
               struct err *e);

// Segments of the model's chunks on this rank; without a pipeline one chunk.
enum { APPLY_MAX_CHUNKS = 16 };
struct apply_chunks {
    int n;
    int forward[APPLY_MAX_CHUNKS], backward[APPLY_MAX_CHUNKS];
    int first[APPLY_MAX_CHUNKS],
        more[APPLY_MAX_CHUNKS];  // variants of backward: overwrite or add to gradients
    int slots[APPLY_MAX_CHUNKS]; // micro-batches in flight
};
// pipeline.c: keeps this rank's layers, sends and receives what crosses, and says how many
// micro-batches are in flight.
int pipeline_cut(struct program *p, int forward, int backward, const struct apply_ranks *r,
                 int64_t layers, int micro_batches, struct apply_chunks *out, struct err *e);
// Emits the schedule's order of (chunk, micro-batch) between begin and update.
int pipeline_order(struct program *p, const struct apply_ranks *r, const struct apply_chunks *c,
                   struct err *e);

// fuse.c: every segment; runs of ops become one, or fused ops become runs.
int fuse_apply(struct program *p, const struct fuse_rule *rule, struct err *e);
// noise.c: a segment with the norm of the gradients as they are, in NAME_NOISE; returns its index.
int noise_apply(struct program *p, int update, struct err *e);

// micro.c: variants of each backward, and the plain order of one rank alone.
int micro_variants(struct program *p, struct apply_chunks *c, struct err *e);
// after_first: a segment between the first micro-batch's backward and the second; -1: none.
void micro_order(struct program *p, const struct apply_chunks *c, int after_first);
// Appends one run of a chunk's forward or backward; the backward's variant follows from the
// micro-batch.
void micro_order_forward(struct program *p, const struct apply_chunks *c, int chunk, int micro,
                         int slot);
void micro_order_backward(struct program *p, const struct apply_chunks *c, int chunk, int micro,
                          int slot);

// Removes segments' ops that were cut into others (keeps indices stable).
void apply_empty_segment(struct program *p, int segment);

#endif
