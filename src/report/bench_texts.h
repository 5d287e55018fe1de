// bench_texts.h - rows of `bench generate` for people and for programs.
#ifndef HAGGLE_REPORT_BENCH_TEXTS_H
#define HAGGLE_REPORT_BENCH_TEXTS_H

#include "bench/texts.h"
#include "report/table.h"

int bench_texts_print(const struct texts_bench *b, enum table_format format, FILE *f,
                      struct err *e);
void bench_texts_put_json(const struct texts_bench *b, struct json_writer *w); // an array

#endif
