// second.h - knobs of a second model that answers a hybrid run's requests (interactive.recipe).
//
// The second model has a separate shape, weights, optimizer and arena. One memory budget covers
// both models.
//
// Place: plan.c plans it from these knobs as plan->second. The engine loads both plans on the same
// threads and backend. guest.c runs it and counts its steps. checkpoint.c and resume.c keep it
// beside the bulk model's tensors.
//
// Invariants:
//   1. It never touches the bulk model's arena: losses and weights of the bulk model are the same
//      to the bit however many requests train.
//   2. A training request is one step of it, as `haggle train` would do with that sample: schedule,
//      bias correction, loss scale and random draws count the second model's steps.
#ifndef HAGGLE_PLAN_SECOND_H
#define HAGGLE_PLAN_SECOND_H

#include "knob/knob.h"

// Reads the recipe that interactive.recipe names. *out gets the model and mathematics of that
// recipe. Its requests (interactive.*), threads, kernels and device are those of the bulk run.
// ERR_USAGE, naming the file, when it is a hybrid recipe itself or wants another device.
int second_knobs(const struct knobs *bulk, struct knobs *out, struct err *e);
// The reverse: from knobs that second_knobs made, a recipe that interactive.recipe may name.
void second_recipe(const struct knobs *k, struct knobs *out);
// Whether these knobs name a second model.
bool second_wanted(const struct knobs *bulk);

#endif
