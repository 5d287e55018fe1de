// data_print.h - a dataset in figures and samples, for people and for programs.
#ifndef HAGGLE_REPORT_DATA_PRINT_H
#define HAGGLE_REPORT_DATA_PRINT_H

#include "base/json.h"
#include "data/figures.h"

#include <stdio.h>

struct data_sight {
    const struct dataset *data;
    const struct data_figures *figures;
    int64_t seq, samples; // samples: documents to show
};

int data_print(const struct data_sight *t, FILE *f, struct err *e);
int data_put_json(const struct data_sight *t, struct json_writer *w, struct err *e); // members

#endif
