// alike.h - ranks that were started one by one may have been started differently. They are refused
// before they train: a rank with other settings or weights would spoil the sums of all others.
#ifndef HAGGLE_TRAIN_ALIKE_H
#define HAGGLE_TRAIN_ALIKE_H

#include "comm/comm.h"
#include "data/dataset.h"
#include "knob/knob.h"

// ERR_MISMATCH, with the rank and what differs, unless all ranks run the same build with the same
// knobs and start from the same model. Paths of model and data, threads and budgets may differ.
int alike_check(struct comm *c, const struct knobs *k, struct err *e);
// The same for the data that each has opened.
int alike_check_data(struct comm *c, const struct dataset *d, struct err *e);

#endif
