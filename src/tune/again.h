// again.h - a finished search, rebuilt from what was recorded of it.
//
// Place: stored.c reads the store's rows. The report shows the result like a search that
// has just ended.
//
// Invariant: the result holds only what the rows say. What the store does not keep (settings that
// were never measured, the reasons for that) is missing, not made up.
#ifndef HAGGLE_TUNE_AGAIN_H
#define HAGGLE_TUNE_AGAIN_H

#include "tune/tune.h"

// Begins with the recipe as given, which becomes setting 0. The caller calls tune_free in every
// case.
int tune_again_begin(struct tune *t, const struct knobs *base, const struct tune_request *r,
                     struct err *e);
// Finds or adds the setting with these knobs. Returns its index or a negative code.
int tune_again_add(struct tune *t, const struct knobs *k, enum tune_stage stage, struct err *e);
// Adds one trial of setting i. If m->rc != 0 it failed, and m->reason says why.
int tune_again_visit(struct tune *t, int i, const struct tune_measured *m, struct err *e);
// After the last trial: finds broken budgets, the bounds of the choice (`chosen` -1: there is none)
// and the frontier.
void tune_again_end(struct tune *t, int chosen);

#endif
