// check.h - every knob's values against their neighbours, measured and looked at: the result of
// `haggle knobs --check`, between the code that makes it and the code that prints it.
#ifndef HAGGLE_API_CHECK_H
#define HAGGLE_API_CHECK_H

#include "api/bench.h"
#include "api/effects.h"

enum { CHECK_VALUES_MOST = 16, CHECK_PLACES = 6 };

struct check_pair {                     // value i beside value i + 1
    struct ratio speed;                 // of the second to the first
    int direction;                      // of that, beyond noise: -1, 0, 1
    double memory_bytes, planned_bytes; // second less first; NaN: not known
    double loss;                        // the same
};

struct check_place {
    unsigned place;
    bool looked, differs;
    char reason[ERR_TEXT_BYTES]; // not looked: why
};

struct check_knob {
    int id;
    char why_not[ERR_TEXT_BYTES]; // it is not measured; "": it is
    char values[CHECK_VALUES_MOST][KNOB_VALUE_BYTES];
    int n_values;
    struct grid_setting settings[CHECK_VALUES_MOST]; // named by the values
    struct grid grid;
    struct bench bench; // a row per value
    struct check_pair pairs[CHECK_VALUES_MOST];
    struct check_place places[CHECK_PLACES];
    int n_places;
};

struct check {
    struct knobs base;
    char dir[PATH_MAX]; // of sample files
    struct check_knob *knobs;
    int n;
    int rounds;
    int64_t steps, warmup;
    double noise; // largest |ratio - 1| of one configuration to itself
};

void check_print(const struct check *c, FILE *f);
void check_put_json(const struct check *c, struct json_writer *w); // an array, an object per knob

#endif
