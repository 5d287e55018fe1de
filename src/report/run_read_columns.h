// run_read_columns.h - a curve of any length in bounded memory: one column per few steps, with the
// least, the greatest and the mean of each quantity.
//
// Place: run_read_log.c adds one record per step, in any order. html_plots.c draws the columns.
//
// Invariants:
//   1. A column covers `width` steps, a power of two. When a step lies beyond the last column,
//      neighbours are merged and the width doubles. So memory is fixed and one pass is enough. A
//      run of up to COLUMNS_MOST steps keeps every step. A longer run keeps at least half as many
//      columns, about one per pixel of a plot.
//   2. Merging keeps extremes: a single slow step among a million stays visible.
//   3. A value that is not finite, or too large to add up, is not counted in n.
#ifndef HAGGLE_REPORT_RUN_READ_COLUMNS_H
#define HAGGLE_REPORT_RUN_READ_COLUMNS_H

#include <stdbool.h>
#include <stdint.h>

enum { COLUMNS_MOST = 1024 };

// The quantities of a step that have a column each.
enum column_value { COLUMN_LOSS, COLUMN_GRAD_NORM, COLUMN_STEP_MS, COLUMN_WAIT_MS, COLUMN_VALUES };

struct column_stat {
    double least, most, sum;
    uint64_t n; // values; 0: the other fields have no meaning
};

struct column {
    int64_t from, to; // first and last step seen
    uint64_t steps;   // seen; 0: the column is empty
    struct column_stat value[COLUMN_VALUES];
    double lr;          // of the last step seen; NaN: none
    double smooth;      // loss, by columns_smooth; NaN: none
    int64_t eval_step;  // of the last validation; 0: none
    double eval_loss;   // its loss
    uint32_t skipped;   // steps that updated nothing
    bool warmup;        // holds a warm-up step
    double warm_most;   // slowest warm-up step, ms; 0: none
    double steady_most; // slowest other step, ms; 0: none
};

struct columns {
    struct column column[COLUMNS_MOST];
    int64_t base, width; // column i covers `width` steps from base + i * width
    int n;               // columns in use, empty ones between them included
};

void columns_init(struct columns *c, int64_t base);
// The column of a step >= base. May double the width. NULL for a step before base.
struct column *columns_at(struct columns *c, int64_t step);
void column_add(struct column *c, enum column_value which, double value);
// Counts the step itself: from, to, steps.
void column_see(struct column *c, int64_t step);
// Fills `smooth`: the weighted mean loss around each column. Weights fall linearly to 0 at `steps`
// steps to both sides (at the ends of the curve: to one side). Returns the last one; NaN: none.
double columns_smooth(struct columns *c, int64_t steps);
double column_mean(const struct column_stat *s); // NaN when n is 0

#endif
