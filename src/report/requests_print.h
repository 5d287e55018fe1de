// requests_print.h - the requests of a hybrid run: the predicted time of an answer, and the figures
// of all answers after the run.
#ifndef HAGGLE_REPORT_REQUESTS_PRINT_H
#define HAGGLE_REPORT_REQUESTS_PRINT_H

#include "base/json.h"
#include "predict/predictor.h"
#include "serve/requests.h"

#include <stdio.h>

// One line about the plan of a hybrid run.
void requests_print_plan(const struct plan *p, const struct predicted_answers *a, FILE *f);
// A sentence if the predicted time is longer than interactive.respond; otherwise "".
enum { REQUESTS_TEXT_BYTES = 512 };
const char *requests_warning(const struct predicted_answers *a, const struct knobs *k,
                             char out[REQUESTS_TEXT_BYTES]);
// Member "requests". a is NULL if the run answers none.
void requests_put_plan_json(const struct predicted_answers *a, struct json_writer *w);

void requests_print_result(const struct guest_report *g, const struct knobs *k, FILE *f);
// Member "requests". n is NULL if the run answers none.
void requests_put_result_json(const struct requests_counts *n, const struct predicted_answers *a,
                              const struct guest_report *g, const struct knobs *k,
                              struct json_writer *w);

#endif
