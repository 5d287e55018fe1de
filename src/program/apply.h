// apply.h - one call from a configuration to a finished program.
#ifndef HAGGLE_PROGRAM_APPLY_H
#define HAGGLE_PROGRAM_APPLY_H

#include "model/chosen.h"
#include "program/build.h"
#include "program/recompute.h"
#include "program/state.h"

enum apply_schedule { SCHEDULE_GPIPE, SCHEDULE_1F1B, SCHEDULE_INTERLEAVED };

// How ranks share the work. All zero: one rank alone.
struct apply_ranks {
    struct mesh mesh;
    int chunks; // of a stage, for SCHEDULE_INTERLEAVED
    // Per chunk of the model: the layer after its last one. NULL: chunks are even in predicted
    // time.
    const int64_t *ends;
    enum apply_schedule schedule;
    int zero;             // stage of ZeRO, over the data axis
    int prefetch;         // ZeRO 3: number of layers whose weights are gathered ahead of use
    int64_t bucket_bytes; // most bytes of gradients that one collective moves; 0: no limit
    bool overlap;         // gradients are reduced during the backward, not after it
    bool every_micro;     // they are reduced after every micro-batch, not once per step
    bool sequence;        // a tensor group also shares the rows between its blocks
    bool apart;           // replicas sum no gradients (average.c)
};

// Which groups of ops run as one fused op. False: they run as separate ops, each with one pass
// over memory.
struct fuse_rule {
    bool norm;  // residual + norm
    bool act;   // bias + activation
    bool loss;  // softmax + cross-entropy + their gradient in place
    bool optim; // clipping factor + AdamW
};

struct apply {
    struct build build;
    int micro_batches;
    struct apply_ranks ranks;
    const struct model_shape *whole; // of all ranks; NULL: build.shape
    enum dtype precision; // a 16-bit type for weights and activations; any other: as built
    int64_t logits_chunk; // rows of logits at a time; 0: all rows of a micro-batch
    int64_t logits_pad;   // their columns are a multiple of this; 0, 1: those of the vocabulary
    bool logits_pad_sums; // sums over the columns run over the padding, too (pad.c)
    struct recompute_rule recompute;
    enum state_type state; // type of Adam's moments
    struct fuse_rule fuse; // fuse.optim is ignored (on) when the moments are not fp32
    bool fuse_qkv;         // one product for queries, keys and values; for A's of an adapter
    bool noise;            // also tell the norm of the first micro-batch of each replica
    bool only_gradients;   // the step ends with the gradients: no norm, no update
    bool average;          // of the replicas of a training program, and nothing else (average.c)
    struct chosen chosen;  // which weights train, and the adapter; all zero: all weights
    bool yields;           // lets guests of its set run between micro-batches
    scratch_fn *scratch;   // bytes that an op's kernels need while they run; NULL: none
    const void *scratch_arg;
};

// Builds, edits, orders, synchronises and checks a program. The caller frees it.
int apply_program(struct program **out, const char *name, const struct apply *a, struct err *e);

// The techniques, in the order in which apply.c calls them. Each edits only the program.

// lora.c: freezes the weights that do not train and adds an adapter's pairs (A, B) beside matrices
// of layers: y += scale (x A') B'.
int lora_apply(struct program *p, int forward, const struct apply *a, struct err *e);
// qkv.c: makes the projections to queries, keys and values one product (on) or three (off).
int qkv_apply(struct program *p, int forward, bool on, struct err *e);
// tensor.c: this rank's slice of a model, which build.c builds; the sums that make the slices one
// model (tensor_apply, in the forward; OP_ENTER only if it is derived); and what remains after the
// derivative.
void tensor_slice(const struct model_shape *whole, const struct mesh *m, struct model_shape *out);
int tensor_apply(struct program *p, int forward, const struct apply_ranks *r,
                 const struct model_shape *whole, const struct model_shape *slice, struct err *e);
int tensor_finish(struct program *p, int forward, int backward, const struct apply_ranks *r,
                  const struct model_shape *whole, struct err *e);
// pad.c: columns of the logits beyond the vocabulary. backward is -1 if there is none.
int pad_apply(struct program *p, int forward, int backward, int64_t multiple, bool sums,
              struct err *e);
// logits.c: runs the head and the loss in chunks of rows. backward is -1 if there is none.
int logits_apply(struct program *p, int forward, int backward, int64_t chunk, struct err *e);
// precision.c: changes tensors of float type `from` to `to` where the letters in ops.def allow it.
int precision_apply(struct program *p, enum dtype from, enum dtype to, struct err *e);
// The segments of the model's chunks on this rank. Without a pipeline there is one chunk.
enum { APPLY_MAX_CHUNKS = 16 };
struct apply_chunks {
    int n;
    int forward[APPLY_MAX_CHUNKS], backward[APPLY_MAX_CHUNKS];
    int first[APPLY_MAX_CHUNKS]; // variant of backward that overwrites the gradients
    int more[APPLY_MAX_CHUNKS];  // variant of backward that adds to them
    int last[APPLY_MAX_CHUNKS];  // the same for the last micro-batch, with reductions
    int slots[APPLY_MAX_CHUNKS]; // micro-batches in flight
    int reduce, gather;          // run before and after the update
};
// pipeline.c: keeps this rank's layers, adds sends and receives where tensors cross a cut, and
// fills out->slots. backward is -1 in a program that does not train.
int pipeline_cut(struct program *p, int forward, int backward, const struct apply_ranks *r,
                 const struct build *b, const struct model_shape *whole, struct apply_chunks *out,
                 struct err *e);
// The most micro-batches in flight on this rank, over all of its chunks.
int pipeline_slots(const struct apply_ranks *r, int micro_batches);
// Appends the schedule's order of (chunk, micro-batch) between begin and update.
int pipeline_order(struct program *p, const struct apply_ranks *r, const struct apply_chunks *c,
                   struct err *e);

// buckets.c: sums gradients over the data axis, and deals out optimizer state (ZeRO 1), gradients
// (ZeRO 2) and weights (ZeRO 3). c is NULL in programs that do not train: they have the same
// weights.
int buckets_apply(struct program *p, const struct apply_ranks *r, int forward,
                  struct apply_chunks *c, struct err *e);

// average.c: instead of a step, the program makes weights and moments their mean over replicas.
int average_apply(struct program *p, const struct apply_ranks *r, int update, struct err *e);

// fuse.c: in every segment, joins neighbouring ops into one or splits fused ops.
int fuse_apply(struct program *p, const struct fuse_rule *rule, struct err *e);
// noise.c: sums the squares of the gradients that a chunk's backward makes. Before buckets.c.
struct apply_noise {
    int n;       // tensors that are known
    int squares; // of this rank's weights
    int *at;     // of a weight: its place in them
    int *kept;   // of a weight that several ranks hold: its gradient then; -1: others
};
int noise_apply(struct program *p, const struct apply_chunks *c, struct apply_noise *out,
                struct err *e);
// After the update: adds a segment that makes norms of them. Returns its index.
int noise_finish(struct program *p, const struct apply_noise *x, const struct apply_ranks *r,
                 struct err *e);

// micro.c: adds the variants of each backward. micro_order is the plain order of one rank.
int micro_variants(struct program *p, struct apply_chunks *c, struct err *e);
void micro_order(struct program *p, const struct apply_chunks *c);
// Appends one run of a chunk's forward or backward. The micro-batch decides the backward's variant.
void micro_order_forward(struct program *p, const struct apply_chunks *c, int chunk, int micro,
                         int slot);
void micro_order_backward(struct program *p, const struct apply_chunks *c, int chunk, int micro,
                          int slot);

#endif
