// bench_print.h - rows of a benchmark for people and for programs.
#ifndef HAGGLE_REPORT_BENCH_PRINT_H
#define HAGGLE_REPORT_BENCH_PRINT_H

#include "base/json.h"
#include "bench/bench.h"
#include "report/table.h"

int bench_print(const struct bench *b, enum table_format format, FILE *f, struct err *e);
// Members of a row's object: measured, reason, the metrics, spread, rounds.
void bench_put_members(const struct bench_row *row, struct json_writer *w);
// Member `key`: an object with median, and low and high of the 95 % interval.
void bench_put_ratio(const struct ratio *r, const char *key, struct json_writer *w);
void bench_put_json(const struct bench *b, struct json_writer *w); // an array with a row each

#endif
