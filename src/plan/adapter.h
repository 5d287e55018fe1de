// adapter.h - the adapter of a plan.
#ifndef HAGGLE_PLAN_ADAPTER_H
#define HAGGLE_PLAN_ADAPTER_H

#include "plan/plan.h"

// Sets p->adapter from the knobs, or from the folder lora.from, whose values the plan's knobs then
// get. Checks it, and which weights train, against the shape.
int plan_take_adapter(struct plan *p, struct err *e);
// The adapter that the knobs say, without lora.from. It is not checked.
int plan_adapter_of(struct adapter *out, const struct knobs *k, struct err *e);

#endif
