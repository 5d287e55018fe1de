// again.h - a search that is over, put together again from what was recorded of it.
//
// Place: api/tune_again.c reads the store's rows; the report shows the result as it shows a search that
// has just ended.
//
// Invariant: only what the rows say is in it. What a search knows and rows do not (settings that were
// never measured, why one was left) is missing, not made up.
#ifndef HAGGLE_TUNE_AGAIN_H
#define HAGGLE_TUNE_AGAIN_H

#include "tune/tune.h"

// The recipe as given becomes setting 0. tune_free in every case.
int tune_again_begin(struct tune *t, const struct knobs *base, const struct tune_request *r,
                     struct err *e);
// The setting with these knobs, its index; or a negative code.
int tune_again_add(struct tune *t, const struct knobs *k, enum tune_stage stage, struct err *e);
// One trial of it; m->rc != 0: it failed for m->reason.
int tune_again_visit(struct tune *t, int i, const struct tune_measured *m, struct err *e);
// After the last: budgets that are broken, bounds of the choice (-1: none), the frontier.
void tune_again_end(struct tune *t, int chosen);

#endif
