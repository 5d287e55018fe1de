// ranks_print.h - what ranks do, for people and as JSON: the layout and its traffic before a run,
// and each rank's times and memory after it.
#ifndef HAGGLE_REPORT_RANKS_PRINT_H
#define HAGGLE_REPORT_RANKS_PRINT_H

#include "base/json.h"
#include "plan/plan.h"
#include "train/trainer.h"

#include <stdio.h>

// The layout, the pipeline's bubble by its formula, and what this rank sends in a step, beside the
// textbook's formula. Nothing for one rank. engine: "threads", "processes (MPI)"; NULL: not known.
void ranks_print_plan(FILE *f, const struct plan *p, const char *engine);
// Only what this rank sends.
void ranks_print_traffic(FILE *f, const struct plan *p);
// The arena of every rank, planned here. Nothing for one rank.
void ranks_print_bytes(FILE *f, const struct plan *p);
void ranks_put_plan_json(const struct plan *p, struct json_writer *w); // member "ranks"

// A table with a row per rank, and which rank is the slowest. Nothing for one rank.
void ranks_print_result(FILE *f, const struct knobs *k, const struct train_result *r);
void ranks_put_result_json(const struct knobs *k, const struct train_result *r,
                           struct json_writer *w); // member "ranks"; null for one rank

// The rank whose own work took longest in the step before this one; -1: one rank.
int ranks_slowest(const struct train_step *s, double *work_ms);
// The part of that step in which ranks waited for others or for data, on average; NaN: one rank.
double ranks_waiting(const struct train_step *s);

#endif
