// adapter.h - the adapter of a plan.
#ifndef HAGGLE_PLAN_ADAPTER_H
#define HAGGLE_PLAN_ADAPTER_H

#include "plan/plan.h"

// Sets p->adapter from the knobs, or from the folder lora.from, whose values the plan's knobs then
// get. Checks it, and which weights train, against the shape.
int plan_take_adapter(struct plan *p, struct err *e);

#endif
