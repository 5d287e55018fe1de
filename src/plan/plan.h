// plan.h - a plan: what a run computes and how much memory it takes, as plain data.
//
//     knobs, model shape  ->  named programs, layout, bytes by class, FLOPs
//
// A plan opens no device and takes no arena, so it can be made for another machine. An engine
// (engine/engine.h) runs a plan. All other code only reads it: show, the refusal before a run, fit,
// the predictor and the tuner all get their answer from the same plan.
//
// Invariants:
//   1. A plan owns its programs and its second plan. plan_free frees both, also after a failed
//      plan_make.
//   2. After plan_make only plan_set_host and plan_set_process change a plan. They set the bytes
//      that the process takes beside the arena, which depend on open data and on measurements.
#ifndef HAGGLE_PLAN_PLAN_H
#define HAGGLE_PLAN_PLAN_H

#include "backend/cuda_needs.h"
#include "base/hash.h"
#include "knob/knob.h"
#include "model/quantized.h"
#include "model/shape.h"
#include "program/apply.h"
#include "program/layout.h"

// Programs by name. PLAN_EXTEND stands for several programs, "extend.1", "extend.2" and so on:
// turns of that many rows that extend sequences (program/extend.h). The interactive ones answer the
// requests of a hybrid run, beside its bulk training. PLAN_GUEST_EVAL is a guest (program.h) that
// may run between the micro-batches of PLAN_TRAIN, which yields when the plan has a guest or a
// second model. PLAN_GUEST_TRAIN is a separate step that runs between two bulk steps. PLAN_NOISE is
// a training step that also measures the gradient noise scale (program/noise.c). It is added when
// the plan has PLAN_TRAIN and the knobs noise.every and batch.accum ask for it. PLAN_AVERAGE makes
// replicas that train apart (comm.every) the same again (program/average.c). It is added to their
// PLAN_TRAIN. PLAN_GRADIENTS makes the gradients of all weights, to be read after the turn, of the
// divergence from logits that the host writes (NAME_TEACHER), and updates nothing. PLAN_POWERS is a
// validation that also adds up the squares of what each matrix is multiplied with (NAME_POWER).
#define PLAN_TRAIN       "train"
#define PLAN_EVAL        "eval"
#define PLAN_EXTEND      "extend"
#define PLAN_NOISE       "train with noise scale"
#define PLAN_AVERAGE     "average"
#define PLAN_GRADIENTS   "gradients"
#define PLAN_POWERS      "powers"
#define PLAN_GUEST_EVAL  "interactive.eval"
#define PLAN_GUEST_TRAIN "interactive.train"

enum { PLAN_NAME_BYTES = 32, PLAN_WANTED_MOST = 8, PLAN_PROGRAMS_MOST = 24 };

// What the programs of PLAN_EXTEND are made for.
struct plan_extend {
    int64_t sequences; // that have a cache; 0: one
    int64_t context;   // tokens of each in the cache; 0: as many as the knob seq
    int64_t rows;      // of the largest turn; 0: `sequences`
};

// How the ranks of a run share its work. plan_ranks.c says which splits are refused.
struct plan_split {
    int data, tensor, pipe; // ranks along each axis (program/mesh.h)
    int zero;               // stage of ZeRO, over the data axis
    enum apply_schedule schedule;
    int chunks;           // of a stage, for SCHEDULE_INTERLEAVED
    int64_t bucket_bytes; // of gradients that one collective sums; 0: all in one
    bool overlap;         // sums run during the backward, not after it
    bool every_micro;     // they run after every micro-batch, not once per step
    int prefetch;         // ZeRO 3: layers whose weights are gathered ahead of use
    bool sequence;        // a tensor group also shares the rows between its blocks
    int every;            // steps between two means of replicas that train apart; 0, 1: they do not
};

struct plan_options {
    const struct knobs *knobs;              // copied
    const char *programs[PLAN_WANTED_MOST]; // names from above in any order; the rest NULL
    struct plan_extend extend;              // for PLAN_EXTEND
    enum dtype real;                        // DTYPE_F32; DTYPE_F64 for the reference backend
    bool keep_gradients, keep_logits;       // so that they can be read after a turn
    bool keep_row_loss;                     // of PLAN_EVAL: session_get_row_losses
    const struct knobs *second;             // of a second model (second.h); copied; NULL: none
    const struct plan_split *split;         // how ranks share the work; NULL: one rank alone
    int rank;                               // of the ranks of `split`
};

// Where the figure for the process itself comes from.
enum plan_how {
    PLAN_UNKNOWN,  // no measurement: 0, or what is resident now (process_estimate)
    PLAN_STORED,   // measured by an earlier process of this build on this machine (process.h)
    PLAN_MEASURED, // measured in this process, with the backend open
};

// Bytes of the process beside the arenas.
struct plan_host {
    uint64_t loader;   // batches made ahead, validation batches, samples of step times
    uint64_t trace;    // events of a trace
    uint64_t saving;   // the buffer of a checkpoint that is being written
    uint64_t requests; // requests of a hybrid run, and the samples of their times
    uint64_t texts;    // texts that are generated, and what chooses and says their tokens
    uint64_t tuning;   // codes, scales and their state while they are tuned (train/tuned.h)
};

// Floating-point operations of one training step in matrix products and attention. `model` counts
// each once; `hardware` also counts those that recomputation runs again.
struct step_flops {
    double model, hardware;
};

// Work of one training step by category of op. `logits` is the part that reads or writes the
// logits.
struct step_cost {
    struct op_cost all[CAT_COUNT], logits[CAT_COUNT];
    double attention_forward_flops; // the part of attention that is no backward
    int64_t head_dim;               // of attention; 0: the step has none
    int64_t bounded;                // ops of attention that are given document boundaries
    int64_t launches; // ops that a device starts one by one (those of the optimizer are joined)
};

struct plan {
    struct knobs knobs;
    struct model_shape shape;
    struct adapter adapter;     // of the knobs lora.*; rank 0: none
    struct plan_split split;    // of all ranks; all zero: one rank alone
    struct apply_ranks ranks;   // this rank's place in it
    struct model_shape slice;   // of this rank: `shape`, or its part of every layer
    struct quantized quantized; // which weights the folder holds quantized
    bool from_folder;           // weights come from the folder knobs.model; else they are random
    bool device;                // plan_wants_device of the knobs
    struct cuda_choice cuda;    // of a plan for a device
    struct program *programs[PLAN_PROGRAMS_MOST];
    int n_programs;
    struct layout layout;
    struct step_flops flops; // of PLAN_TRAIN; 0 without it
    struct plan *second;     // of the second model, which has a separate arena; NULL: none
    struct plan_host host;
    uint64_t process_bytes; // code, libraries, executor tables, what kernels have reserved
    enum plan_how process_how;
    char process_key[HASH_TEXT_BYTES]; // of the stored figure (process.h); "": not asked for yet
    // plan_like needs these to plan other knobs in the same way.
    const char *prefix; // of the programs' names: "" or "second."
    const char *wanted[PLAN_WANTED_MOST];
    struct plan_extend extend; // nothing is 0
    enum dtype real;
    bool keep_gradients, keep_logits, keep_row_loss;
};

int plan_make(struct plan *p, const struct plan_options *o, struct err *e);
// The programs of a run with these knobs: train, eval when there is validation, generate when a
// sample is wanted, the interactive programs or a second model for goal=hybrid.
int plan_run(struct plan *p, const struct knobs *k, struct err *e);
// The same for one of the ranks that the knobs ask for. plan_run plans rank 0.
int plan_run_rank(struct plan *p, const struct knobs *k, int rank, struct err *e);
// Other knobs, planned as `like` was: the same programs, the same second model.
int plan_like(struct plan *p, const struct plan *like, const struct knobs *k, struct err *e);
void plan_free(struct plan *p);

// The split that the knobs of a run ask for (split.c). ERR_USAGE if their sizes do not match.
int plan_split_of(const struct knobs *k, struct plan_split *out, struct err *e);
// The place of a rank in a split (plan_ranks.c). ERR_USAGE says what does not go together.
int plan_ranks(const struct plan_split *l, const struct knobs *k, const struct model_shape *shape,
               int rank, struct apply_ranks *out, struct err *e);
// Which weights of the plan train, and its adapter. It points into the plan.
struct chosen plan_chosen(const struct plan *p);
// The i-th tensor of the model, and then of its adapter. False past the end.
bool plan_param_at(const struct plan *p, int64_t i, struct model_param *out, bool *of_adapter);
int64_t plan_trained_elements(const struct plan *p); // of the model and its adapter
int64_t plan_samples(const struct plan *p);          // sequences of a step, over all replicas

// Rows of the programs of PLAN_EXTEND, ascending. Returns how many there are.
int plan_extend_rows(const struct plan *p, int64_t rows[PLAN_PROGRAMS_MOST]);
void plan_extend_name(int64_t rows, char out[PLAN_NAME_BYTES]);
// The index of a program in the plan and in the executor; -1: the plan does not have it.
int plan_find(const struct plan *p, const char *program);
struct program *plan_program(const struct plan *p, const char *program); // NULL: no such program
// The index of a tensor in a program of the plan; -1: no such program or tensor.
int plan_tensor(const struct plan *p, const char *program, const char *tensor);

// Whether these knobs ask for a device: device=cuda, or auto where this machine seems to have one.
bool plan_wants_device(const struct knobs *k);
enum dtype plan_real_type(const struct plan *p); // of weights and activations
void plan_step_cost(const struct plan *p, struct step_cost *out);
// Bytes by class of all tensors of the program that needs the most memory, as if no two tensors
// shared bytes. Every copy of a tensor counts.
void plan_own_bytes(const struct plan *p, uint64_t by_class[CLASS_COUNT]);

// ---------------------------------------------------------------- memory (plan_memory.c)

void plan_set_host(struct plan *p, const struct plan_host *h);
void plan_set_process(struct plan *p, uint64_t bytes, enum plan_how how);

uint64_t plan_arena_bytes(const struct plan *p);  // of both models
uint64_t plan_second_bytes(const struct plan *p); // the second model's arena; 0: none
// Both arenas, the buffers of the host, and the process: the peak of a run on the host.
uint64_t plan_total_bytes(const struct plan *p);
// Bytes that must be free before the run starts. On a device: the arenas, in the device's memory.
// On the host: plan_total_bytes.
uint64_t plan_need_bytes(const struct plan *p, bool on_device);

enum { PLAN_PARTS = CLASS_COUNT + 9 };
struct plan_part {
    const char *name;
    uint64_t bytes;
};
// plan_need_bytes by name. Returns how many parts there are.
int plan_parts(const struct plan *p, bool on_device, struct plan_part out[PLAN_PARTS]);

struct plan_room { // memory that a run may use
    uint64_t bytes;
    // For messages: "the budget (memory=)", "what the device has left", "what the machine has left"
    const char *is;
    bool spared; // 5 % of what is left is kept free and not in bytes
    // On a device: memory that was taken before the arena, by the driver's context, by libraries,
    // and by other programs. The driver's figure for a run is this and the arena.
    uint64_t taken_bytes;
};
// The plan's budget (memory=), or what is left where there is no budget or less is left than the
// budget. Without a budget `spare` keeps 5 % free.
struct plan_room plan_room(const struct plan *p, uint64_t left, const char *is, bool spare);
uint64_t plan_machine_room(void); // what is left on the host (mem_left), minus 5 %
// ERR_MEMORY, with the bytes by name, when `need` is more than room->bytes.
int plan_check_room(const struct plan *p, bool on_device, uint64_t need,
                    const struct plan_room *room, struct err *e);

#endif
