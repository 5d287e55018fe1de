// grid.h - lists of values of knobs, and their product: the configurations of a benchmark.
//
//     batch.micro=1,2,4     three values
//     seq=64-512*2          64, 128, 256, 512
//     threads=1-4           1, 2, 3, 4;  1-9+4 is 1, 5, 9
//
// Or an explicit list of named configurations, each "knob=value knob*2 knob/2 ...", which change
// the recipe's values.
//
// Invariants: an unknown knob fails at once. A value that its knob refuses makes grid_knobs fail
// for that configuration only: in a measured grid the refusal is a result.
#ifndef HAGGLE_BENCH_GRID_H
#define HAGGLE_BENCH_GRID_H

#include "base/region.h"
#include "knob/knob.h"

enum { GRID_AXES_MOST = 16, GRID_MOST = 4096 };

struct grid_axis {
    int knob;
    const char **values;
    size_t n, capacity;
};

struct grid_setting {
    const char *name, *settings;
};

struct grid {
    const struct grid_setting *list; // owned by the caller; NULL: the product of the axes
    struct region region;
    struct grid_axis axes[GRID_AXES_MOST];
    int n_axes;
    size_t n; // configurations
};

// A knob that is given twice takes the later list. Call grid_free in every case.
int grid_read(struct grid *g, const char *const *assignments, size_t n, struct err *e);
// One configuration per setting; the list must outlive the grid.
void grid_from_list(struct grid *g, const struct grid_setting *list, size_t n);
void grid_free(struct grid *g);
// Applies one change after the other to *k: "knob=value" or, for whole numbers, "knob*2" and
// "knob/2". A division that leaves a remainder fails.
int grid_change(struct knobs *k, const char *settings, struct err *e);
// The value of an axis in configuration i; the last axis changes fastest.
const char *grid_value(const struct grid *g, size_t i, int axis);
// base with the values of configuration i.
int grid_knobs(const struct grid *g, size_t i, const struct knobs *base, struct knobs *out,
               struct err *e);
// Writes "batch.micro=4 seq=64", with the axes that vary (all if none does). Returns out.
enum { GRID_NAME_BYTES = 256 };
const char *grid_name(const struct grid *g, size_t i, char out[GRID_NAME_BYTES]);

#endif
