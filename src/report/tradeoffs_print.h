// tradeoffs_print.h - strategies compared with their baseline, for people and for programs.
#ifndef HAGGLE_REPORT_TRADEOFFS_PRINT_H
#define HAGGLE_REPORT_TRADEOFFS_PRINT_H

#include "base/json.h"
#include "bench/tradeoffs.h"
#include "report/table.h"

int tradeoffs_print(const struct tradeoffs *t, const struct knobs *base, enum table_format format,
                    FILE *f, struct err *e);
void tradeoffs_put_json(const struct tradeoffs *t, struct json_writer *w); // an array of rows

#endif
