// score_print.h - the scores of models on data, and how they differ, for people and for programs.
#ifndef HAGGLE_REPORT_SCORE_PRINT_H
#define HAGGLE_REPORT_SCORE_PRINT_H

#include "base/json.h"
#include "train/score.h"

#include <stdio.h>

struct score_sight {
    size_t n; // models
    const struct score *scores;
    const char *const *names;                   // as the user gave them
    const char *const *adapters;                // of each model; NULL: none
    const struct score_comparison *comparisons; // [i]: of model i with the first; [0] is not used
};

int score_print(const struct score_sight *t, FILE *f, struct err *e);
int score_put_json(const struct score_sight *t, struct json_writer *w, struct err *e); // members

#endif
