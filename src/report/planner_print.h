// planner_print.h - the answer of haggle plan: layouts with their figures, why others are not the
// choice, and what would fit.
#ifndef HAGGLE_REPORT_PLANNER_PRINT_H
#define HAGGLE_REPORT_PLANNER_PRINT_H

#include "base/json.h"
#include "planner/search.h"
#include "report/table.h"

enum { PLANNER_SHOWN = 12 }; // layouts in the table for people

// Of a method, or of more devices, when the question's own has no answer.
struct planner_instead {
    char what[160];
    struct planner_option best; // the fastest that fits; seconds 0: none
    double least_bytes;         // per device
};

void planner_print_cluster(const struct planner_question *q, FILE *f);
int planner_print_options(const struct planner_question *q, const struct planner_answer *a,
                          enum table_format format, bool all, FILE *f, struct err *e);
// The choice, its memory by class, and what the families need or lose.
void planner_print_choice(const struct planner_question *q, const struct planner_answer *a,
                          bool explain, FILE *f);
void planner_print_instead(const struct planner_instead *x, int n, FILE *f);
void planner_put_json(const struct planner_question *q, const struct planner_answer *a,
                      struct json_writer *w);
// "tp 4 x pp 2, micro 1 x 64, recompute full"
const char *planner_layout_text(const struct planner_setup *s, char out[160]);

#endif
