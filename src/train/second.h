// second.h - a second model that answers a hybrid run's requests (interactive.recipe): its own shape,
// weights, optimizer and arena, planned in the same memory as the bulk's.
//
// Place: api/ makes its knobs from the recipe and names them in session_options; session.c plans and
// starts it with the bulk's session, on the same threads and backend; guest.c runs it and counts its steps
// here; checkpoint.c and resume.c keep it beside the bulk's tensors.
//
// Invariants:
//   1. Nothing it does touches the bulk's arena: losses and weights of the bulk are the same to the bit
//      however many requests train.
//   2. A training request is a step of it, as `haggle train` would make one of that sample: schedule, bias
//      correction, loss scale and random draws count its own steps.
#ifndef HAGGLE_TRAIN_SECOND_H
#define HAGGLE_TRAIN_SECOND_H

#include "train/manifest.h"
#include "train/session.h"

struct second {
    struct session session; // SESSION_TRAIN and SESSION_EVAL, interactive.micro x interactive.seq
    struct train_state state;
};

// Reads interactive.recipe of a hybrid run's knobs. *out is the recipe's model and mathematics; requests
// (interactive.*), threads, kernels and device are the bulk's. ERR_USAGE naming the file: it is a hybrid's
// itself, or wants another device.
int second_knobs(const struct knobs *bulk, struct knobs *out, struct err *e);
// The other way round: a recipe that a hybrid run may name, of the knobs that second_knobs made.
void second_recipe(const struct knobs *k, struct knobs *out);
// Whether these knobs name a second model.
bool second_wanted(const struct knobs *bulk);
void second_begin(struct second *x); // state: no step yet

#endif
