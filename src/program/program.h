// program.h - a turn as plain data: tensors, ops, segments and their order.
//
// A program is everything one rank does in one turn. A turn is a training step, a validation batch
// or a generation step. A program is built once per configuration (build.c, then the techniques
// that apply.c lists). After that it is only read: layout.c gives every tensor its bytes, predict/
// walks it with clocks, exec/ walks it with a backend, print.c shows it, check.c proves it correct.
//
// Invariants (check.c proves them):
//   1. An op names tensors by index. A view names its root. Only roots own bytes.
//   2. Ops of a segment are in issue order. The order list says which segment runs when, for which
//      micro-batch and on which slot. Each stream runs its ops in issue order. Across streams, only
//      the waits that sync.c derived give an order.
//   3. Within one life (see enum tensor_life) the first access to a tensor is a write.
//   4. Values that the host decides per turn are never stored in an op. They are in input tensors
//      (tokens, hyper, ...).
#ifndef HAGGLE_PROGRAM_PROGRAM_H
#define HAGGLE_PROGRAM_PROGRAM_H

#include "base/dtype.h"
#include "base/err.h"
#include "base/region.h"
#include "base/storage.h"
#include "program/mesh.h"

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

// A life is the time span during which no other tensor may use a tensor's bytes.
enum tensor_life {
    LIFE_RUN,     // kept between turns, at the same offset in every program of a set
    LIFE_TURN,    // one copy; alive from its first to its last access in a turn (gradients, sums
                  // over micro-batches)
    LIFE_SLOT,    // one copy per slot; one life per micro-batch, from its forward to its backward
    LIFE_SEGMENT, // one copy; one life per run of a segment
};

// 256 is the alignment CUDA's allocators give. It is a multiple of any cache line.
enum { TENSOR_MAX_RANK = 4, TENSOR_ALIGN = 256, OWN_NOTHING = -2 };

// Which part of a logical tensor a rank holds (share.c). First a slice along one dimension, of one
// or several spans: the columns of q, k and v in a packed projection are three. Then, of the
// elements of that slice in their order, those from `first` on.
enum { SHARE_SPANS_MOST = 3 };
struct tensor_share {
    int rank;
    int64_t shape[TENSOR_MAX_RANK]; // of the logical tensor
    int axis;                       // dimension of the spans; -1: all of it
    int n_spans;
    struct {
        int64_t begin, count;
    } spans[SHARE_SPANS_MOST];
    int64_t grain;        // every rank's spans begin and end at multiples of it
    int64_t first, count; // elements of the slice
};

struct tensor {
    const char *name;       // logical name; parameters carry their Hugging Face name
    enum dtype dtype;       // of its values; of a quantized weight: what it is computed in
    struct storage storage; // weights only, and never of views: which bytes hold the values
    enum tensor_class cls;
    enum tensor_life life;
    int rank;
    int64_t local[TENSOR_MAX_RANK]; // extent per dimension, on this rank
    // Weights and their optimizer state: which part of the logical tensor this is. NULL: all of it.
    const struct tensor_share *share;
    int64_t ld; // elements between rows (last-but-one dimension); the last dimension is contiguous
    int root;   // -1: owns bytes; else the tensor this is a view of (never itself a view)
    int64_t root_offset; // views: first element, counted in elements of the root
    int slots;           // copies: 1 unless LIFE_SLOT
    int layer;           // the model layer it belongs to; -1: none
    bool trainable;      // weights only
    bool adapter;        // weights only: one of an adapter's pair
    bool decay;          // weights only: weight decay applies
    bool replica;        // weights and their state: another rank has them too and speaks for both
    bool parts;          // weights only: not a logical weight itself, but made of such (`part`)
    bool part;           // weights only: this view of such a root is a logical weight
    int grad;            // weights only: the gradient's tensor; -1: none
    int master;          // trainable 16-bit weights: the full-precision tensor; -1: none
    int own;             // weights under ZeRO: the view that this rank updates; -1: all of it
    // Weights that several ranks of a replica hold: the group that sums their gradients; -1: none.
    int shared;
    // Weights of replicas: the weight lies at element dealt_at of a row that is dealt out to the
    // data axis, `dealt` elements to each rank (buckets.c). 0: no replicas.
    int64_t dealt_at, dealt;
    uint64_t bytes;   // of one copy, without padding (roots; 0 in views)
    uint64_t *offset; // in the arena, one per slot, for roots and views; NULL before layout
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
    const char *types_in, *types_out; // one letter per operand, see ops.def
    const char *what;
};
const struct op_info *op_info(enum op_kind kind);
// The type that letter r of ops.def means when f is `real`: float32 for 16-bit types, else `real`.
enum dtype op_wide_type(enum dtype real);
const char *op_category_name(enum op_category c); // "matmul", "attention", "other", ...

// A send ends when its receiver has the data, and what follows on the stream comm does not wait for
// that. So sends have a stream of their own.
enum op_stream { STREAM_COMPUTE, STREAM_COMM, STREAM_COPY, STREAM_SEND, STREAM_COUNT };
const char *op_stream_name(enum op_stream s);

enum op_flag {
    OP_ACCUMULATE = 1 << 0, // adds to its outputs, so it also reads them
    OP_IN_OUT = 1 << 1,     // matmul: W is stored [k,n]
    OP_RMS = 1 << 2,        // norm: no mean, no bias
    OP_INVERSE = 1 << 3,    // rope: rotate back
    OP_WITH_GRAD = 1 << 4,  // loss: overwrite the logits with their gradient
    OP_DECAY = 1 << 5,      // adamw: decay applies to this tensor
    OP_FIRST_GRAD = 1 << 6, // a micro-batch's first contribution to a weight's gradient:
                            // micro-batch 0 overwrites, later ones add
    OP_AGAIN = 1 << 7,      // a forward op that the backward repeats; not part of the model's FLOPs
    OP_LAST = 1 << 8,       // only the step's last micro-batch runs it (micro.c)
    OP_ENTER = 1 << 9,      // all_reduce in a forward: only its derivative exists (tensor.c)
    OP_PART = 1 << 10,      // embed: the table has rows from `first` on; other tokens give 0
    OP_FIRST_MICRO = 1 << 11, // only the step's first micro-batch runs it (micro.c)
};

enum { OP_MAX_IN = 8, OP_MAX_OUT = 5, OP_MAX_WAIT = 6 };
enum { OP_MAX_TENSORS = OP_MAX_IN + OP_MAX_OUT + 1 }; // inputs, outputs, scratch
enum { LOAD_NUMBERS = 4 };  // load: the output that the executor fills by itself
enum { ADAMW_BLOCK = 256 }; // adamw_int8: number of elements that share a scale

struct op {
    enum op_kind kind;
    enum op_stream stream;
    unsigned flags;
    int layer; // -1: before the layers (embedding, data); number of layers: after them (head, loss)
    int n_in, n_out;
    int in[OP_MAX_IN], out[OP_MAX_OUT]; // tensor indices; an absent optional input is -1
    int scratch; // tensor of bytes that its kernels use while they run (scratch.c); -1: none
    // Sizes. Which fields an op uses:
    //   matmul*              m n k
    //   rope                 m rows, heads, head_dim
    //   norm*                m rows, n columns; heads > 1: each row holds `heads` rows of n columns
    //   attention*           batch seq heads kv_heads head_dim
    //   *cached, kv_append   the same, and m rows; batch sequences have a cache of seq rows each
    //   adamw*, sqnorm, comm n elements
    //   loss         m rows, n columns; k columns with padding (0: none), which is 0 and stays 0
    //   loss_stats, loss_part  m rows, n columns here, k columns in all; batch parts
    //   all others           m rows, n columns; embed_dw: k rows of the table
    int64_t m, n, k;
    int64_t batch, seq, heads, kv_heads, head_dim;
    int64_t positions; // embed: rows of the position table; 0: none
    double scale;      // matmul, attention: factor; norm: epsilon; dropout: part that becomes 0
    int act;           // enum model_act
    uint32_t salt;     // adamw_bf16, adamw_int8, dropout: gives each tensor other random draws
    // Number of the first element, for the draws. embed, loss_stats, loss_part: of the first row or
    // column that this rank has. load: number of this replica; n is how many there are.
    int64_t first;
    // Communication: index of the group in the program. send and recv use the peer's rank and a
    // channel instead. Messages with the same (sender, receiver, channel) match in order.
    int group, peer, channel;
    // Set by sync.c: the event recorded after this op (-1: none) and the events it waits for.
    int record, n_wait, wait[OP_MAX_WAIT];
};

// ---------------------------------------------------------------- segments, order, programs

enum segment_role { SEGMENT_BEGIN, SEGMENT_FORWARD, SEGMENT_BACKWARD, SEGMENT_UPDATE };

struct segment {
    const char *name;
    enum segment_role role;
    int chunk; // the pipeline chunk whose forward or backward this is; otherwise 0
    struct op *ops;
    int n_ops;
    size_t capacity;
};

struct order_entry {
    int segment, micro, slot;
};

enum { PROGRAM_MAX_GROUPS = 8 };
struct comm_group {
    const char *name; // for people: "data", "tensor", "tied", ...
    int n_ranks;
    const int *ranks;
    bool stages; // ranks of more than one stage of a pipeline
};

bool group_same(const struct comm_group *a, const struct comm_group *b); // the same members

struct program {
    const char *name;     // "train", "eval", "generate", ...
    struct region region; // owns the memory of everything below
    struct tensor *tensors;
    int n_tensors;
    size_t tensor_capacity;
    int *by_name;        // hash table (open addressing) by name: a tensor's index + 1; 0: free
    size_t by_name_size; // a power of two, at least twice the number of names
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
    int failed; // error code of the first constructor that failed; see program_finish
    // A program that yields lets a guest program of its set run between two of its micro-batches
    // (program_yields_at). The tensors alive at that point are "held": no guest may use their
    // bytes.
    bool yields, guest;
    // Set by layout:
    uint64_t held_bytes; // if it yields: bytes of the tensors alive across a yield point
    uint64_t held_by_class[CLASS_COUNT]; // the same by class, without alignment
    uint64_t transient_bytes;            // needed beyond the persistent and the held tensors
    uint64_t live_bytes; // largest sum of transient bytes alive at once; no layout can need less
    uint64_t peak_by_class[CLASS_COUNT]; // live_bytes by class
};

// Well-known tensors. Programs that have them use these names (program_find):
#define NAME_TOKENS    "in.tokens"    // [B*T] int32
#define NAME_TARGETS   "in.targets"   // [B*T] int32; negative: this token is not trained
#define NAME_POSITIONS "in.positions" // [B*T] int32
#define NAME_DOC_START "in.doc_start" // [B*T] int32: where the token's document begins, or absent
#define NAME_NUMBERS   "in.numbers"   // [B*T] int32: the row's number in the whole step, or absent
#define NAME_HYPER     "in.hyper"     // [HYPER_COUNT] float64
#define NAME_RESULTS   "out.results"  // [RESULT_COUNT] float64
#define NAME_GUEST     "guest."       // prefix of a guest's NAME_RESULTS, apart from the turn's
#define NAME_CLIP      "out.clip"     // [CLIP_COUNT] float64
#define NAME_NOISE     "out.noise"    // [CLIP_COUNT] float64: as out.clip, first micro-batch only
// [replicas] float64: the norms in out.noise of all replicas; those in out.clip, if they train
// apart
#define NAME_NOISE_ALL   "out.noise.replicas"
#define NAME_NOISE_STEPS "out.noise.steps"
#define NAME_ROWS        "in.rows"        // int32: rows that are asked for logits (extend.h)
#define NAME_INV_FREQ    "const.inv_freq" // [D/2] float32
#define NAME_AVERAGE     "const.average"  // [CLIP_COUNT] float64: the factor 1 / replicas
#define NAME_LOGITS      "logits"
#define NAME_TEACHER     "in.teacher" // [B*T, V]: logits that a program that learns them is given
#define NAME_POWER       "power."     // prefix, of a matrix: sums of squares of what it multiplies
#define NAME_ROW_LOSS    "row_loss"   // [B*T]: nats; 0 where nothing is trained

// Elements of NAME_HYPER: everything the host decides per turn. They are doubles because 1 - 0.999
// must not lose digits.
enum hyper {
    HYPER_LR,
    HYPER_BETA1,
    HYPER_BETA2,
    HYPER_EPS,
    HYPER_DECAY,
    HYPER_CLIP,
    HYPER_BIAS1,
    HYPER_BIAS2,
    HYPER_LOSS_FACTOR, // loss scale / number of trained tokens in the whole step
    HYPER_SCALE,       // the loss scale, which CLIP divides by; 0 means 1
    HYPER_DRAW,        // key of the step's random draws: a whole number below 2^53
    HYPER_COUNT
};
enum result { RESULT_LOSS_SUM, RESULT_TOKENS, RESULT_COUNT };
// CLIP_SKIP != 0: the gradients are not finite and the update is skipped.
enum clip { CLIP_FACTOR, CLIP_NORM, CLIP_SKIP, CLIP_COUNT };

// ---------------------------------------------------------------- making and changing programs

struct program *program_new(const char *name);
void program_free(struct program *p);
// Returns the first error of the construction, which is usually out of memory.
int program_finish(struct program *p, struct err *e);

// Adds a tensor and returns its index. When out of memory it returns -1 and sets p->failed. Later
// calls that use the -1 then do nothing, so builders need not check each call.
int program_tensor(struct program *p, const char *name, enum dtype dtype, enum tensor_class cls,
                   enum tensor_life life, int rank, const int64_t *shape);
int program_tensor_1d(struct program *p, const char *name, enum dtype dtype, enum tensor_class cls,
                      enum tensor_life life, int64_t n);
int program_tensor_2d(struct program *p, const char *name, enum dtype dtype, enum tensor_class cls,
                      enum tensor_life life, int64_t rows, int64_t cols);
// Views share their root's bytes. program_view_columns: columns [first, first+cols) of a 2-d
// tensor. program_view_flat: contiguous elements from `offset`, with the given shape.
int program_view_columns(struct program *p, const char *name, int of, int64_t first, int64_t cols);
int program_view_flat(struct program *p, const char *name, int of, int64_t offset, int rank,
                      const int64_t *shape);
int program_root(const struct program *p, int tensor); // the tensor that owns the bytes
// True for the tensors that checkpoints, the optimizer and users know by name: a root, unless it
// consists of parts (tensor.parts), or such a part.
bool program_logical(const struct program *p, int tensor);
// Makes a root a view of another tensor, from element `offset` on. Its own views follow.
void program_become_view(struct program *p, int tensor, int of, int64_t offset);
// Makes roots that are alike views of a new one, and returns it: one's rows behind the other's, or
// one's columns beside the other's. Weights become its parts.
int program_join(struct program *p, const char *name, const int *tensors, int n, bool columns);
int program_max_slots(const struct program *p);  // most copies that any tensor has, at least 1
int64_t tensor_elements(const struct tensor *t); // of this rank's slice
// Bytes of one copy without padding, also of views.
uint64_t tensor_bytes(const struct tensor *t);
// Makes a matrix [n, k] that owns its bytes a quantized one. Its rows must fit (storage_takes).
void program_set_storage(struct program *p, int tensor, struct storage s);
// Returns the first tensor of that name, or -1.
int program_find(const struct program *p, const char *name);

// Returns the new segment's index.
int program_segment(struct program *p, const char *name, enum segment_role role);
// Appends a copy of the op and returns its address, valid until the next append to that segment.
// NULL when out of memory.
struct op *program_op(struct program *p, int segment, const struct op *op);
// The group of the ranks that differ from this one only on these axes. Returns its index, or -1 if
// this rank is alone in it.
int program_group(struct program *p, const struct mesh *m, unsigned axes, const char *name);
int program_group_of(struct program *p, const int *ranks, int n, const char *name);
// Empties a segment and returns what it was, for passes that write its ops anew.
struct segment program_take_ops(struct program *p, int segment);
struct op op_make(enum op_kind kind); // zeroed, no tensors, record -1
// For norms: how many rows of n columns each of the m rows holds.
static inline int64_t op_norm_heads(const struct op *op) {
    return op->heads > 1 ? op->heads : 1;
}
// A LOAD numbers the rows of a micro-batch within the whole step, in which replicas take
// micro-batches in turns (data/loader.h): n of them, from row `at` on. They count modulo 2^32.
static inline void op_number_rows(const struct op *load, int micro, int64_t at, int64_t n,
                                  int32_t *out) {
    const uint32_t first = (uint32_t)((micro * load->n + load->first) * load->m + at);
    for (int64_t i = 0; i < n; i++)
        out[i] = (int32_t)(first + (uint32_t)i);
}
void op_in(struct op *op, int tensor); // appends to in[]; -1 means an absent optional input
void op_out(struct op *op, int tensor);
void program_order(struct program *p, int segment, int micro, int slot);
// Whether another program may run before entry `at` of `order` (the program's whole order, or a
// walk's order). True in a program that yields, where that entry and the one before it belong to
// different micro-batches.
bool program_yields_at(const struct program *p, const struct order_entry *order, int at);

// Lists the tensors an op touches, each once, with views resolved to roots and OP_READ | OP_WRITE.
enum { OP_READ = 1, OP_WRITE = 2 };
struct op_access {
    int tensor; // root
    int how;
};
int op_accesses(const struct program *p, const struct op *op, struct op_access out[OP_MAX_TENSORS]);

// Parts of logical tensors (share.c). Each returns the share in the program's memory, or NULL when
// that is full.
const struct tensor_share *share_make(struct program *p, const struct tensor_share *s);
// Elements [first, first + count) of the tensor's own elements on this rank.
const struct tensor_share *share_cut(struct program *p, int tensor, int64_t first, int64_t count);
int64_t share_all(const struct tensor_share *s); // elements of the logical tensor
bool share_same(const struct tensor_share *a, const struct tensor_share *b);
// Element `at` of the part, in its order on this rank, is element *logical of the logical tensor.
// The next elements follow there, too: *n of them with this one.
void share_run(const struct tensor_share *s, int64_t at, int64_t *logical, int64_t *n);
// The same for every tensor: one that is not shared is its own logical tensor.
void tensor_run(const struct tensor *t, int64_t at, int64_t *logical, int64_t *n);
// The logical tensor's dimensions. Returns how many.
int tensor_whole(const struct tensor *t, int64_t shape[TENSOR_MAX_RANK]);
// The share of a tensor with `width` elements for each block of `block` elements of this one.
// False, and that on every rank, if a block is divided between ranks.
bool share_blocks(const struct tensor_share *s, int64_t block, int64_t width,
                  struct tensor_share *out);

// Cost of an op from its sizes (cost.c).
struct op_cost {
    double flops;      // multiply-adds counted as two
    double bytes;      // fewest bytes through memory: inputs read once, outputs written once
    double comm_bytes; // bytes that this rank sends
};
struct op_cost op_cost_of(const struct program *p, const struct op *op);

// Gives every transient tensor its life. Tensors that a forward and a backward both touch become
// LIFE_SLOT with slots[chunk] copies, where chunk belongs to the segments that touch them. All
// others live inside one segment. Call it after the last edit.
void program_settle_lives(struct program *p, const int *slots);
// Bytes of memory that the kernels of an op need while they run.
typedef uint64_t scratch_fn(const void *arg, const struct program *p, const struct op *op);
// scratch.c: gives each op the scratch that `bytes` says. After program_settle_lives.
int scratch_apply(struct program *p, scratch_fn *bytes, const void *arg, struct err *e);
// Drops tensors that no op touches and renumbers.
int program_sweep(struct program *p, struct err *e);

#endif
