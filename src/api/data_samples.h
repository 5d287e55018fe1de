// data_samples.h - single documents of a dataset as the model sees them: their text from its tokens, and
// which of them are trained.
//
// Place: data.c shows a few. Documents come from the files in turns; past the last one nothing is written.
#ifndef HAGGLE_API_DATA_SAMPLES_H
#define HAGGLE_API_DATA_SAMPLES_H

#include "base/json.h"
#include "data/dataset.h"

#include <stdio.h>

// For people: what is trained in colour, or between [[ and ]].
int data_print_sample(const struct dataset *d, int64_t index, bool color, FILE *f, struct err *e);
int data_put_sample(const struct dataset *d, int64_t index, struct json_writer *w, struct err *e);

#endif
