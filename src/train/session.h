// session.h - a model at work: its shape, its programs over one arena, the backend that runs them.
//
// Two steps, so that memory is known before it is taken: session_plan builds and lays out the
// programs and touches nothing else (haggle show, budget checks, the tuner); session_start takes
// the memory and fills the weights. Training, verification and generation are clients.
#ifndef HAGGLE_TRAIN_SESSION_H
#define HAGGLE_TRAIN_SESSION_H

#include "base/log.h"
#include "exec/exec.h"
#include "knob/knob.h"
#include "model/shape.h"
#include "program/layout.h"

struct kept;
struct second;

// SESSION_NOISE is a training step that also measures the gradient noise scale (program/noise.c): part of
// the set whenever SESSION_TRAIN is and the knobs ask for it.
// The interactive ones are a hybrid run's: one sample beside the bulk configuration. Evaluation is a
// guest (program.h) that may run between micro-batches of SESSION_TRAIN, which yields when the set holds
// one; a training sample is a step of its own, between steps. Where a second model answers (second.h), this
// session has neither, and yields to that one.
enum session_program {
    SESSION_TRAIN,
    SESSION_EVAL,
    SESSION_GENERATE,
    SESSION_NOISE,
    SESSION_INTERACTIVE_EVAL,
    SESSION_INTERACTIVE_TRAIN,
    SESSION_PROGRAMS
};

struct session_options {
    const struct knobs *knobs;  // copied
    bool has[SESSION_PROGRAMS]; // which programs the set holds
    int64_t generate_batch,
        generate_seq; // of the generate program; 0: 1 and the model's or the recipe's length
    enum dtype real;  // DTYPE_F32; DTYPE_F64 with the reference backend
    bool reference;   // the plain backend instead of the fast one
    bool keep_gradients, keep_logits; // readable after a turn
    bool checking;     // an executor that observes every op: slow, twice the arena, the same bits
    struct kept *kept; // of a process that runs many sessions (kept.h); NULL: nothing is kept
    // Of a second model that answers requests beside this one (second_knobs); copied. NULL: none.
    const struct knobs *second;
};

struct session {
    struct knobs knobs;
    struct session_options options;
    struct model_shape shape;
    bool from_folder; // weights come from knobs.model as a folder, else from random init
    struct program *programs[SESSION_PROGRAMS]; // NULL: not in the set
    int index[SESSION_PROGRAMS];                // of the program in the executor; -1: not there
    struct layout layout;
    struct second *second; // beside this one, in an arena of its own; NULL: none
    bool lent;             // mem, pool and backend are those of the session that this one is beside
    // From here on set by session_start:
    struct mem *mem;
    struct pool *pool;
    struct backend *backend;
    struct executor *exec;
    uint64_t device_free_bytes; // of a device, before the arena was taken
    bool kept_weights;          // weights and moments are what a former session left
    uint64_t tail_bytes;        // resident, but of former sessions with larger arenas
    // For session_predicted_bytes. The process: what is resident before the arena is touched (code,
    // libraries, the executor's tables) and what kernels have reserved to work in.
    uint64_t process_bytes;
    uint64_t loader_bytes; // the caller's data buffers, with:
    uint64_t trace_bytes;  // events of a trace
    uint64_t saving_bytes; // the caller's buffer while it writes a checkpoint
    uint64_t guest_bytes;  // the caller's buffers for requests
};

int session_plan(struct session *s, const struct session_options *o, struct err *e);
// The first half of session_start, for a caller that wants to know whether it will work before it
// writes anything: threads, backend, precision, then session_check_memory. Takes none of what the plan
// needs. May be called again.
int session_ready(struct session *s, struct err *e);
int session_start(struct session *s, struct err *e);
void session_close(struct session *s); // also after a failed plan or start

// Whether session_start will look for a device: device=cuda, or auto where there seems to be one.
bool session_wants_device(const struct knobs *k);

enum dtype session_real_type(const struct session *s); // of weights and activations
// What has been taken of the device's memory since before the arena was; 0: no device, or not known.
// Other processes on the same device are in the figure.
uint64_t session_device_bytes(const struct session *s);

// Of both models' arenas, and of the second one's.
uint64_t session_arena_bytes(const struct session *s);
uint64_t session_second_bytes(const struct session *s);
// What the process will hold at its peak: arenas, data buffers, process.
uint64_t session_predicted_bytes(const struct session *s);
// The same by name; of a device what its memory holds: the arenas. Returns how many there are.
enum { SESSION_PARTS = CLASS_COUNT + 7 };
struct session_part {
    const char *name;
    uint64_t bytes;
};
int session_parts(const struct session *s, struct session_part out[SESSION_PARTS]);
// What is resident now, before the arena is there: without what is kept of former ones.
uint64_t session_resident_bytes(const struct session *s);
// What it has held at its peak since mem_process_reset_peak, without what is former sessions'.
uint64_t session_process_peak_bytes(const struct session *s);
struct session_memory {
    uint64_t need, have; // of a device: its own memory, which holds the arenas
    const char *have_is; // "the budget (memory=)", ...
};
// A machine keeps a twentieth of what it has left for others.
int session_memory(const struct session *s, struct session_memory *out, struct err *e);
// Whether the backend, which must be open (session_ready), computes in this precision.
bool session_has_precision(const struct session *s, enum precision p);
// ERR_MEMORY with bytes by name when the plan does not fit `memory` (or, when that is 0, what the
// machine has left).
int session_check_memory(const struct session *s, struct err *e);

// Inputs and results of a turn. `program` must be in the set.
int session_set_hyper(struct session *s, const double hyper[HYPER_COUNT], struct err *e);
int session_get_results(struct session *s, double results[RESULT_COUNT], double clip[CLIP_COUNT],
                        struct err *e);
// After a turn of SESSION_NOISE: the norm of the first micro-batch's gradients, which are of its share of
// the step's loss.
int session_get_noise(struct session *s, double *norm, struct err *e);
// The same of a program of its own results: SESSION_INTERACTIVE_EVAL.
int session_get_results_of(struct session *s, enum session_program program,
                           double results[RESULT_COUNT], struct err *e);
int session_run(struct session *s, enum session_program program, exec_feed_fn *feed, void *arg,
                struct trace *trace, struct err *e);

// Persistent tensors by logical name (weights, adam.m.*, adam.v.*, master.*): index in the program `in`, or
// -1.
int session_find(const struct session *s, enum session_program in, const char *name);

// Weights of 16 bits that train become their masters' rounding: after the masters were written.
int session_round_weights(struct session *s, struct err *e);

// Continues each of `batch` prompts greedily: tokens[batch][capacity], lengths[batch] grow by n
// (capacity is the generate program's seq). Needs SESSION_GENERATE in the set, batch <= its batch.
int session_generate(struct session *s, int32_t *tokens, int64_t capacity, int64_t *lengths,
                     int64_t batch, int64_t n, struct err *e);

// Floating-point operations of one training step in matrix products and attention: the model's own, and
// all that are run (with what is computed again).
struct step_flops {
    double model, hardware;
};
struct step_flops session_step_flops(const struct session *s);

#endif
