// session.h - a plan that is loaded in an engine: its turns, inputs, results and weights.
//
// Place: engine_load makes sessions and engine_unload ends them. Training, verification, generation
// and calibration are clients. Programs are named as in plan.h.
#ifndef HAGGLE_ENGINE_SESSION_H
#define HAGGLE_ENGINE_SESSION_H

#include "exec/exec.h"
#include "plan/plan.h"

struct engine;

struct session {
    struct plan *plan;     // the caller's
    struct engine *engine; // holds this load
    struct executor *exec;
    bool kept_weights;          // weights and moments are what an earlier load left
    struct session *second;     // of the second model; NULL: none
    struct extender *extender;  // extend.c; NULL: no sequence was extended yet
    char base[HASH_TEXT_BYTES]; // of the weights beside an adapter (train/adapted.h); "": not known
};

// Runs one turn of a program of the plan. feed and trace may be NULL, as in exec_run.
int session_run(struct session *s, const char *program, exec_feed_fn *feed, void *arg,
                struct trace *trace, struct err *e);

// Inputs and results of a turn.
int session_set_hyper(struct session *s, const double hyper[HYPER_COUNT], struct err *e);
int session_get_results(struct session *s, double results[RESULT_COUNT], double clip[CLIP_COUNT],
                        struct err *e);
// After a turn of PLAN_EVAL in a plan that keeps them (plan_options.keep_row_loss): the loss of
// each of its rows, batch x seq values, in nats; 0 for a row without a target.
int session_get_row_losses(struct session *s, float *out, struct err *e);
// After a turn of PLAN_NOISE: per replica, the norm of the first micro-batch's gradients. They are
// gradients of that micro-batch's share of the step's loss. And the norm of the step, of replicas
// that train apart; others leave `step` alone.
int session_get_noise(struct session *s, double *first, double *step, struct err *e);
// The results of PLAN_GUEST_EVAL, which are kept apart from those of PLAN_TRAIN.
int session_get_guest_results(struct session *s, double results[RESULT_COUNT], struct err *e);

// Fills the weights (fill.c), from the model's folder or with initial values, and the tensors that
// never change.
int session_fill(struct session *s, struct err *e);

// Elements [first, first + n) of a weight that trains, or of a tensor of the adapter.
typedef int session_values_fn(void *arg, const struct model_param *p, int64_t first, int64_t n,
                              float *out, struct err *e);
// Gives every tensor that a checkpoint of such a run holds (model/chosen.h) other values, and its
// master too (put.c).
int session_put(struct session *s, session_values_fn *values, void *arg, struct err *e);

// A token of a sequence (extend.c). Its key and value go into the sequence's cache at `position`,
// and it attends to all positions up to its own, which earlier rows must have filled.
struct session_row {
    int32_t token, sequence, position;
    bool asked; // its logits are wanted; of a sequence, one row at most in a call
};
// Runs n rows through the programs of PLAN_EXTEND, in as few turns as fit. ids gets the likeliest
// next token of each row that is asked, in their order. logits: NULL, or [asked][vocabulary] that
// gets their logits. Allocates nothing after the first call.
int session_extend(struct session *s, const struct session_row *rows, int64_t n, int32_t *ids,
                   float *logits, struct err *e);

void session_free_extender(struct session *s);

#endif
