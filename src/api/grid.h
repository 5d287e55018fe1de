// grid.h - value lists of knobs, and their product: the configurations a benchmark measures.
//
//     batch.micro=1,2,4     three values
//     seq=64-512*2          64, 128, 256, 512
//     threads=1-4           1, 2, 3, 4;  1-9+4 is 1, 5, 9
//
// Or an explicit list of named configurations, each "knob=value knob*2 knob/2 ...": what a strategy
// changes, whatever the recipe has.
//
// Invariants: a name that is no knob fails at once; a value that its knob refuses is a
// configuration with a reason (grid_knobs fails), because in a measured grid that is a result.
#ifndef HAGGLE_API_GRID_H
#define HAGGLE_API_GRID_H

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
    const struct grid_setting *list; // the caller's; NULL: the product of the axes
    struct region region;
    struct grid_axis axes[GRID_AXES_MOST];
    int n_axes;
    size_t n; // configurations
};

// A knob that is given twice takes the later list. grid_free in every case.
int grid_read(struct grid *g, const char *const *assignments, size_t n, struct err *e);
// One configuration per setting; the list must outlive the grid.
void grid_from_list(struct grid *g, const struct grid_setting *list, size_t n);
void grid_free(struct grid *g);
// One change after the other over what is in *k: "knob=value", and of whole numbers "knob*2" and
// "knob/2", which fails where it leaves a remainder.
int grid_change(struct knobs *k, const char *settings, struct err *e);
// The value of an axis in configuration i; the last axis changes fastest.
const char *grid_value(const struct grid *g, size_t i, int axis);
// base with the values of configuration i.
int grid_knobs(const struct grid *g, size_t i, const struct knobs *base, struct knobs *out,
               struct err *e);
// "batch.micro=4 seq=64", of the axes that vary (all when none does); returns out.
enum { GRID_NAME_BYTES = 256 };
const char *grid_name(const struct grid *g, size_t i, char out[GRID_NAME_BYTES]);

#endif
