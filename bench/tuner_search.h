// tuner_search.h - a recorded grid, searched again without the machine: by the tuner, at random, and by a
// tree-structured Parzen estimator (Bergstra et al., 2011).
#ifndef HAGGLE_BENCH_TUNER_SEARCH_H
#define HAGGLE_BENCH_TUNER_SEARCH_H

#include "tuner_grid.h"

struct search_options {
    const struct target *target;
    double best_cost; // that a search should come near
    double time_s;    // the tuner is given
    double near;      // a share: 0.03
    int seeds;        // draws of the same samples
    FILE *curves;     // NULL: none are written
    const char *label;
};

void search_write_heading(FILE *curves);
// Prints, for each way to search, the measured seconds until the best so far stays near the best there is.
int search_record(const struct record *r, const struct search_options *o, struct err *e);

#endif
