// evaluate.h - validation: the same windows every time, timed apart from training.
//
// Place: trainer.c calls it between steps. It reads windows directly from the dataset, because a
// loader cannot go back to its beginning. Its buffers are allocated once.
//
// Invariants:
//   1. Evaluation changes nothing that training reads.
//   2. It covers samples 0 to eval.batches x batch.micro - 1 of the validation split, or all of
//      them when the split has fewer. Each sample counts once.
#ifndef HAGGLE_TRAIN_EVALUATE_H
#define HAGGLE_TRAIN_EVALUATE_H

#include "data/dataset.h"
#include "train/trainer.h"

struct evaluator;

// Bytes of the evaluator's buffers.
uint64_t evaluator_plan_bytes(const struct knobs *k, const struct dataset *data);
// *out is NULL, without error, when the data has no validation split.
int evaluator_open(struct evaluator **out, struct session *s, const struct dataset *data,
                   struct err *e);
void evaluator_close(struct evaluator *v); // NULL is accepted
// Receives the losses of the columns of a window, 0 where nothing is trained.
typedef int evaluator_rows_fn(void *arg, uint64_t sample, const float *losses, struct err *e);
// From now on evaluator_run tells `fn` of every window, if the session's plan keeps the losses of
// rows (plan_options.keep_row_loss). For one rank.
int evaluator_on_rows(struct evaluator *v, evaluator_rows_fn *fn, void *arg, struct err *e);
// A stop request (stop may be NULL) ends it after the present batch: out->complete is then false.
// `between` (may be NULL) is called before each batch, when only persistent tensors of the arena
// are in use. If it fails, evaluation ends with its error.
int evaluator_run(struct evaluator *v, int64_t step, const volatile sig_atomic_t *stop,
                  exec_yield_fn *between, void *between_arg, struct train_eval *out, struct err *e);

#endif
