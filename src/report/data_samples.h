// data_samples.h - single documents of a dataset as the model sees them: the text of their tokens,
// and which tokens are trained.
//
// Place: data_print.c shows a few. Documents are taken from the files in turn. An index past the
// last document writes nothing.
#ifndef HAGGLE_REPORT_DATA_SAMPLES_H
#define HAGGLE_REPORT_DATA_SAMPLES_H

#include "base/json.h"
#include "data/dataset.h"

#include <stdio.h>

// For people: trained text is in colour, or between [[ and ]].
int data_print_sample(const struct dataset *d, int64_t index, bool color, FILE *f, struct err *e);
int data_put_sample(const struct dataset *d, int64_t index, struct json_writer *w, struct err *e);

#endif
