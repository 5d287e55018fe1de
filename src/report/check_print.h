// check_print.h - the result of `haggle knobs --check`, for people and as JSON.
#ifndef HAGGLE_REPORT_CHECK_PRINT_H
#define HAGGLE_REPORT_CHECK_PRINT_H

#include "base/json.h"
#include "bench/check.h"

#include <stdio.h>

void check_print(const struct check *c, FILE *f);
void check_put_json(const struct check *c, struct json_writer *w); // an array, an object per knob

#endif
