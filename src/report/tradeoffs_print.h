// tradeoffs_print.h - strategies compared with their baseline, for people and for programs.
#ifndef HAGGLE_REPORT_TRADEOFFS_PRINT_H
#define HAGGLE_REPORT_TRADEOFFS_PRINT_H

#include "base/json.h"
#include "bench/tradeoffs.h"
#include "bench/tradeoffs_texts.h"
#include "report/table.h"

int tradeoffs_print(const struct tradeoffs *t, const struct knobs *base, enum table_format format,
                    FILE *f, struct err *e);
void tradeoffs_put_json(const struct tradeoffs *t, struct json_writer *w); // an array of rows

// The formats, for people. note: why their divergence is not known; NULL: it is.
int tradeoffs_texts_print(const struct tradeoffs_texts *t, const char *note, FILE *f,
                          struct err *e);
void tradeoffs_texts_put_json(const struct tradeoffs_texts *t, struct json_writer *w); // an array

#endif
