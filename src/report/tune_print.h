// tune_print.h - a search for people and for programs: the settings as a table, the trade, the
// verdict.
#ifndef HAGGLE_REPORT_TUNE_PRINT_H
#define HAGGLE_REPORT_TUNE_PRINT_H

#include "report/table.h"
#include "tune/tuning.h"

void tune_print(const struct tuning *t, enum table_format format, FILE *f);
void tune_put_json(const struct tuning *t, struct json_writer *w); // members
// tune_trade.c: the recipe as given next to the choice, a row per figure.
void tune_print_trade(const struct tuning *t, FILE *f);

#endif
