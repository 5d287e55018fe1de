// evaluate.h - validation: the same windows every time, timed on their own.
//
// Place: trainer.c calls it between steps. It reads windows straight from the dataset (a loader has
// no way back to its beginning) into buffers taken once.
//
// Invariants: evaluation changes nothing that training reads; it covers samples 0 to
// eval.batches x batch.micro - 1 of the validation split, each once even when the split has fewer.
#ifndef HAGGLE_TRAIN_EVALUATE_H
#define HAGGLE_TRAIN_EVALUATE_H

#include "data/dataset.h"
#include "train/trainer.h"

struct evaluator;

uint64_t evaluator_plan_bytes(const struct session *s, const struct dataset *data);
// After session_start. *out is NULL, without error, when the data has no validation split.
int evaluator_open(struct evaluator **out, struct session *s, const struct dataset *data,
                   struct err *e);
void evaluator_close(struct evaluator *v); // NULL is accepted
// A stop request (stop may be NULL) ends it after the batch under way: out->complete is then false.
// between (may be NULL) is called before each batch: nothing of the arena but persistent tensors is in
// use then. Not 0 ends it.
int evaluator_run(struct evaluator *v, int64_t step, const volatile sig_atomic_t *stop,
                  exec_yield_fn *between, void *between_arg, struct train_eval *out, struct err *e);

#endif
