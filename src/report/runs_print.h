// runs_print.h - figures of training runs read from their folders, for people and for programs.
#ifndef HAGGLE_REPORT_RUNS_PRINT_H
#define HAGGLE_REPORT_RUNS_PRINT_H

#include "base/json.h"
#include "report/run_read.h"

#include <stdio.h>

void runs_print(const struct run_read *runs, size_t n, FILE *f);
void runs_put_json(const struct run_read *runs, size_t n, struct json_writer *w); // an array

#endif
