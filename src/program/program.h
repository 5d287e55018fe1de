// program.h - a turn as plain data: tensors, ops, segments and their order.
//
// A program is everything one rank does in one turn (a training step, a validation batch, a
// generation step). It is built once per configuration (build.c, then the techniques that apply.c
// lists) and then only read: layout.c gives every tensor its bytes, predict/ walks it with clocks,
// exec/ walks it with a backend, print.c shows it, check.c proves it.
//
// Invariants (check.c holds them):
//   1. An op names tensors by index; a view names its root, and roots own the bytes.
//   2. Ops of a segment are in issue order; the order list says which segment runs when, for which
//      micro-batch, on which slot. Streams run their ops in issue order; across streams only the
//      waits that sync.c derived hold.
//   3. Within one life (see enum tensor_life) the first access to a tensor is a write.
//   4. Nothing the host knows per turn is in an op: it is in an input tensor (tokens, hyper, ...).
#ifndef HAGGLE_PROGRAM_PROGRAM_H
#define HAGGLE_PROGRAM_PROGRAM_H

#include "base/dtype.h"
#include "base/err.h"
#include "base/region.h"

#include <stdbool.h>
#include <stdint.h>

// ---------------------------------------------------------------- tensors

// enum, name for people and JSON
#define TENSOR_CLASS_LIST(X)                                                                       \
    X(CLASS_WEIGHT, "weights")                                                                     \
    X(CLASS_GRADIENT, "gradients")                                                                 \
    X(CLASS_OPTIMIZER, "optimizer")                                                                \
    X(CLASS_ACTIVATION, "activations")                                                             \
    X(CLASS_WORKSPACE, "workspace")                                                                \
    X(CLASS_INPUT, "data")                                                                         \
    X(CLASS_COMM, "communication")                                                                 \
    X(CLASS_KV, "kv cache")

enum tensor_class {
#define X(name, text) name,
    TENSOR_CLASS_LIST(X)
#undef X
        CLASS_COUNT
};
const char *tensor_class_name(enum tensor_class c);

// A life is the span over which a tensor's bytes must be its own.
enum tensor_life {
    LIFE_RUN,     // kept between turns; the same offset in every program of a set
    LIFE_TURN,    // one copy, from its first access in a turn to its last (gradients, sums over
                  // micro-batches)
    LIFE_SLOT,    // one copy per slot; a life per micro-batch (kept from a forward to its backward)
    LIFE_SEGMENT, // one copy; a life per run of a segment
};

// 256: what CUDA's allocators give, and a multiple of any cache line.
enum { TENSOR_MAX_RANK = 4, TENSOR_ALIGN = 256 };

struct tensor {
    const char *name; // logical; parameters carry their HF name
    enum dtype dtype;
    enum tensor_class cls;
    enum tensor_life life;
    int rank;
    int64_t shape[TENSOR_MAX_RANK]; // of the whole tensor, over all ranks
    int64_t begin[TENSOR_MAX_RANK]; // this rank's slice: first index ...
    int64_t local[TENSOR_MAX_RANK]; // ... and extent, per dimension; == shape when not sharded
    int64_t ld; // elements between rows (last-but-one dimension); the last dimension is contiguous
    int root;   // -1: owns bytes; else the tensor this is a view of (never itself a view)
    int64_t root_offset; // of a view, in elements of the root
    int slots;           // copies: 1 unless LIFE_SLOT
    int layer;           // the model layer it belongs to; -1 none
    bool trainable;      // of weights
    bool decay;          // of weights: weight decay applies
    bool replica;        // of weights: another rank counts its gradient in the global norm
    bool parts;          // of weights: not one itself, its views are the weights (qkv.c)
    int grad;            // of weights: the gradient's tensor, -1 none
    int master;          // of 16-bit weights that train: the tensor of full precision, -1 none
    uint64_t bytes;      // of one copy, unpadded (roots)
    uint64_t *offset;    // in the arena, one per slot; set by layout (roots and views), NULL before
};

// ---------------------------------------------------------------- ops

enum op_category {
    CAT_MATMUL,
    CAT_ATTENTION,
    CAT_OTHER,
    CAT_OPTIMIZER,
    CAT_DATA,
    CAT_COMM,
    CAT_COUNT
};

enum op_kind {
#define OP(kind, name, category, in, out, types_in, types_out, what) OP_##kind,
#include "program/ops.def"
#undef OP
    OP_COUNT
};

struct op_info {
    const char *name;
    enum op_category category;
    const char *in, *out;
    const char *types_in, *types_out; // letters of ops.def
    const char *what;
};
const struct op_info *op_info(enum op_kind kind);
// What r stands for beside f: float32 for 16-bit types, else the type itself.
enum dtype op_wide_type(enum dtype real);
const char *op_category_name(enum op_category c); // "matmul", "attention", "other", ...

enum op_stream { STREAM_COMPUTE, STREAM_COMM, STREAM_COPY, STREAM_COUNT };
const char *op_stream_name(enum op_stream s);

enum op_flag {
    OP_ACCUMULATE = 1 << 0, // outputs are added to, so they are read as well
    OP_IN_OUT = 1 << 1,     // matmul: W is stored [k,n]
    OP_RMS = 1 << 2,        // norm without mean and bias
    OP_INVERSE = 1 << 3,    // rope backwards
    OP_WITH_GRAD = 1 << 4,  // loss writes the gradient in place of the logits
    OP_DECAY = 1 << 5,      // adamw: decay applies to this tensor
    OP_FIRST_GRAD = 1 << 6, // the first contribution of a micro-batch to a weight's gradient:
                            // micro-batch 0 overwrites
    OP_AGAIN = 1 << 7,      // issued again in the backward: no work of the model's own
};

enum { OP_MAX_IN = 8, OP_MAX_OUT = 5, OP_MAX_WAIT = 6 };
enum { ADAMW_BLOCK = 256 }; // adamw_int8: elements that share a scale

struct op {
    enum op_kind kind;
    enum op_stream stream;
    unsigned flags;
    int layer; // -1: before the layers (embedding, data); L: after them (head, loss)
    int n_in, n_out;
    int in[OP_MAX_IN], out[OP_MAX_OUT]; // tensor indices; an absent optional input is -1
    // Sizes. Which fields an op uses:
    //   matmul*              m n k
    //   rope                 m rows, heads, head_dim
    //   norm*                m rows, n columns; heads: a row is that many rows of n (0: one)
    //   attention*           batch seq heads kv_heads head_dim (decode: seq = the cache's capacity)
    //   adamw*, sqnorm, comm n elements
    //   the others           m rows, n columns; embed_dw: k rows of the table
    int64_t m, n, k;
    int64_t batch, seq, heads, kv_heads, head_dim;
    int64_t positions; // embed: rows of the position table; 0: none
    double scale;      // matmul, attention: factor; norm: epsilon
    int act;           // enum model_act
    uint32_t salt;     // adamw_bf16, adamw_int8: keeps a tensor's random draws apart from others'
    // Communication: group index of the program; for send and recv the peer's rank, and a channel:
    // messages of one (sender, receiver, channel) match in order.
    int group, peer, channel;
    // Set by sync.c: event recorded after this op (-1 none) and events waited for before it.
    int record, n_wait, wait[OP_MAX_WAIT];
};

// ---------------------------------------------------------------- segments, order, programs

enum segment_role { SEGMENT_BEGIN, SEGMENT_FORWARD, SEGMENT_BACKWARD, SEGMENT_UPDATE };

struct segment {
    const char *name;
    enum segment_role role;
    int chunk; // pipeline chunk this is the forward or backward of; 0 otherwise
    struct op *ops;
    int n_ops;
    size_t capacity;
};

struct order_entry {
    int segment, micro, slot;
};

enum { PROGRAM_MAX_GROUPS = 8 };
struct comm_group {
    const char *name; // "data", "pipe", "tied", "world"
    int n_ranks;
    const int *ranks;
};

struct program {
    const char *name;     // "train", "eval", "generate", ...
    struct region region; // owns all that follows
    struct tensor *tensors;
    int n_tensors;
    size_t tensor_capacity;
    int *by_name;        // open addressing by the name's hash: a tensor's index + 1; 0 free
    size_t by_name_size; // a power of two, at least twice the names
    struct segment *segments;
    int n_segments;
    size_t segment_capacity;
    struct order_entry *order;
    int n_order;
    size_t order_capacity;
    int micro_batches, n_events;
    int64_t batch, seq; // of one micro-batch
    int rank, world;
    struct comm_group groups[PROGRAM_MAX_GROUPS];
    int n_groups;
    int failed; // first code of a constructor that ran out of memory; see program_finish
    // A program that yields lets a guest of its set run between two of its micro-batches
    // (program_yields_at): what is alive there is held, in bytes that no guest has.
    bool yields, guest;
    // Set by layout:
    uint64_t held_bytes; // of a program that yields: what lives across a yield point
    uint64_t held_by_class[CLASS_COUNT]; // the same without alignment
    uint64_t transient_bytes; // what the turn needs beyond the persistent tensors and the held ones
    uint64_t live_bytes; // largest sum of transient bytes alive at once: no layout can need less
    uint64_t peak_by_class[CLASS_COUNT]; // what that sum is made of
};

// Well-known tensors every program has under these names (program_find):
#define NAME_TOKENS    "in.tokens"    // [B*T] int32
#define NAME_TARGETS   "in.targets"   // [B*T] int32; negative: not trained
#define NAME_POSITIONS "in.positions" // [B*T] int32
#define NAME_DOC_START "in.doc_start" // [B*T] int32: first column of the row's own document
#define NAME_HYPER     "in.hyper"     // [HYPER_COUNT] float64
#define NAME_RESULTS   "out.results"  // [RESULT_COUNT] float64
#define NAME_GUEST     "guest." // in front of NAME_RESULTS in a guest: a turn it interrupts has its own
#define NAME_CLIP      "out.clip"  // [CLIP_COUNT] float64
#define NAME_NOISE     "out.noise" // [CLIP_COUNT] float64: the same of the first micro-batch alone
#define NAME_ROWS      "in.rows"   // [B] int32: row of each sequence that generation reads
#define NAME_IDS       "out.ids"   // [B] int32: generated
#define NAME_INV_FREQ  "const.inv_freq" // [D/2] float32
#define NAME_LOGITS    "logits"

// NAME_HYPER: all that the host decides per turn. Doubles: 1 - 0.999 must not lose its digits.
enum hyper {
    HYPER_LR,
    HYPER_BETA1,
    HYPER_BETA2,
    HYPER_EPS,
    HYPER_DECAY,
    HYPER_CLIP,
    HYPER_BIAS1,
    HYPER_BIAS2,
    HYPER_LOSS_FACTOR, // loss scale / trained tokens of the whole step
    HYPER_SCALE,       // the loss scale, which CLIP divides by; 0 means 1
    HYPER_DRAW,        // key of the step's random draws: a whole number below 2^53
    HYPER_COUNT
};
enum result { RESULT_LOSS_SUM, RESULT_TOKENS, RESULT_COUNT };
// CLIP_SKIP != 0: gradients not finite, update skipped.
enum clip { CLIP_FACTOR, CLIP_NORM, CLIP_SKIP, CLIP_COUNT };

// ---------------------------------------------------------------- making and changing programs

struct program *program_new(const char *name);
void program_free(struct program *p);
// Out of memory during construction surfaces here.
int program_finish(struct program *p, struct err *e);

// Adds an unsharded tensor (local = shape) and returns its index; -1 when out of memory (then
// p->failed is set and everything built on it is ignored, so builders need not check each call).
int program_tensor(struct program *p, const char *name, enum dtype dtype, enum tensor_class cls,
                   enum tensor_life life, int rank, const int64_t *shape);
int program_tensor_1d(struct program *p, const char *name, enum dtype dtype, enum tensor_class cls,
                      enum tensor_life life, int64_t n);
int program_tensor_2d(struct program *p, const char *name, enum dtype dtype, enum tensor_class cls,
                      enum tensor_life life, int64_t rows, int64_t cols);
// Views share their root's bytes: columns [first, first+cols) of a 2-d tensor; or `rows` x `cols`
// contiguous elements from `offset`.
int program_view_columns(struct program *p, const char *name, int of, int64_t first, int64_t cols);
int program_view_flat(struct program *p, const char *name, int of, int64_t offset, int rank,
                      const int64_t *shape);
int program_root(const struct program *p, int tensor); // the tensor that owns the bytes
// What checkpoints, the optimizer and a person know by its name: a root, or a part of a root of parts.
bool program_logical(const struct program *p, int tensor);
int64_t tensor_elements(const struct tensor *t); // of this rank's slice
// The first tensor of that name; -1: none.
int program_find(const struct program *p, const char *name);

// Returns the new segment's index.
int program_segment(struct program *p, const char *name, enum segment_role role);
// Appends an op (a copy) and returns its address until the next append to that segment; NULL when
// out of memory.
struct op *program_op(struct program *p, int segment, const struct op *op);
struct op op_make(enum op_kind kind); // zeroed, no tensors, record -1
// Of norms: rows of n columns that lie side by side in each of the m rows.
static inline int64_t op_norm_heads(const struct op *op) {
    return op->heads > 1 ? op->heads : 1;
}
void op_in(struct op *op, int tensor); // appends to in[]; -1 stands for an absent optional input
void op_out(struct op *op, int tensor);
void program_order(struct program *p, int segment, int micro, int slot);
// Whether another program may run before entry `at` of an order of this program (the whole one, or a
// walk's): the entry before it and this one work on different micro-batches.
bool program_yields_at(const struct program *p, const struct order_entry *order, int at);

// Which tensors an op touches, views resolved to roots, each once: OP_READ | OP_WRITE bits.
enum { OP_READ = 1, OP_WRITE = 2 };
struct op_access {
    int tensor; // root
    int how;
};
int op_accesses(const struct program *p, const struct op *op,
                struct op_access out[OP_MAX_IN + OP_MAX_OUT]);

// Cost of an op from its sizes (cost.c).
struct op_cost {
    double flops;      // multiply-adds counted as two
    double bytes;      // fewest bytes through memory: inputs read once, outputs written once
    double comm_bytes; // that this rank sends
};
struct op_cost op_cost_of(const struct program *p, const struct op *op);

// Promotes transient tensors that both a forward and a backward touch to LIFE_SLOT, with
// slots[chunk] copies (chunk of the segments that touch them); the others live inside one segment.
// Called after the last edit.
void program_settle_lives(struct program *p, const int *slots);
// Drops tensors that no op touches and renumbers.
int program_sweep(struct program *p, struct err *e);

#endif
