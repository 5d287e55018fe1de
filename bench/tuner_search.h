// tuner_search.h - searches a recorded grid without the machine: by the tuner, at random, and by a
// tree-structured Parzen estimator (Bergstra et al., 2011).
#ifndef HAGGLE_BENCH_TUNER_SEARCH_H
#define HAGGLE_BENCH_TUNER_SEARCH_H

#include "tuner_grid.h"

struct search_options {
    const struct target *target;
    double best_cost; // the cost that a search should come near
    double time_s;    // the tuner's time budget
    double near;      // how near, as a share: 0.03
    int seeds;        // draws of the same samples
    FILE *curves;     // NULL: none are written
    const char *label;
};

void search_write_heading(FILE *curves);
// Prints for each search the measured seconds until the best so far stays near the grid's best.
int search_record(const struct record *r, const struct search_options *o, struct err *e);

#endif
