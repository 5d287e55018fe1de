// costs.h - a table of how long ops take on one machine with one set of threads: measured times by
// signature (signature.h), interpolation between them, and corrections from whole steps.
//
// Place: calibrate.h fills a table, costs_file.c keeps it between runs, predictor.h looks up every
// op of a program.
//
// An estimate comes from the first of these that applies:
//   measured   this signature was timed;
//   between    the same op with other numbers of rows was timed: straight lines between the times;
//   fitted     the same kind with other widths was timed: time = a + b FLOP + c bytes, where no
//              coefficient is negative;
//   roofline   nothing similar was timed: arithmetic or bytes, whichever takes longer at the best
//              rates seen.
// The estimate is then multiplied by a correction: the median ratio of observed to estimated time
// of the op's kind and element type, over the latest steps.
//
// Invariants: estimates are positive and finite. They do not fall as rows grow, within and beyond
// what was measured, nor as FLOP and bytes grow if they are fitted.
#ifndef HAGGLE_PREDICT_COSTS_H
#define HAGGLE_PREDICT_COSTS_H

#include "hw/hw.h"
#include "predict/signature.h"

enum cost_how { COST_MEASURED, COST_BETWEEN, COST_FITTED, COST_ROOFLINE, COST_HOWS };

struct cost_point {
    struct op_signature signature;
    double flops, bytes;
    double seconds;
    double spread; // relative spread of the measurements
    int64_t count; // number of measurements
};

struct cost_estimate {
    double seconds;
    double spread; // relative: the likely error
    enum cost_how how;
};

// The newest COSTS_RATIOS ratios, as logarithms.
enum { COSTS_RATIOS = 15, COSTS_MOST_POINTS = 8192 };
struct cost_ratios {
    double log[COSTS_RATIOS];
    int64_t count; // ratios ever added
};

struct costs_memo; // estimates already made

struct costs {
    struct cost_point *points; // in the order in which they were measured
    int n, capacity;
    int *index; // hash table by signature, open addressing: index of a point + 1; 0: free
    size_t index_size;
    // By kind and element type; the last type is for ops without one.
    struct cost_ratios ratios[OP_COUNT][DTYPE_COUNT + 1];
    // Observed seconds of a step outside of ops, the newest COSTS_RATIOS.
    double outside_s[COSTS_RATIOS];
    int64_t outside_count;   // ever added
    struct hw_device device; // the roofline; a measured point that is faster raises its rates
    struct costs_memo *memo;
};

void costs_init(struct costs *c, const struct hw_device *device);
void costs_free(struct costs *c);
// Adds a measurement, or replaces that of the same signature. ERR_NUMERIC when it is not plausible.
int costs_add(struct costs *c, const struct cost_point *p, struct err *e);
const struct cost_point *costs_find(const struct costs *c, const struct op_signature *s);
// costs_estimate_raw is without the correction, costs_estimate with it.
struct cost_estimate costs_estimate_raw(struct costs *c, const struct program *p,
                                        const struct op *op);
struct cost_estimate costs_estimate(struct costs *c, const struct program *p, const struct op *op);

// Notes that a step took `observed` seconds in ops of this kind and type. The estimate without
// corrections was `raw`.
void costs_observe(struct costs *c, enum op_kind kind, enum dtype real, double observed,
                   double raw);
void costs_observe_outside(struct costs *c, double seconds);
double costs_correction(const struct costs *c, enum op_kind kind, enum dtype real); // 1: none
double costs_outside(const struct costs *c);                                        // 0: not known

// costs_file.c. The file is a cache: if it cannot be used, ops are measured again. Loading skips
// values that are not plausible or unknown to this build. ERR_IO: no such file. ERR_FORMAT: not a
// table, or a table with another key.
int costs_load(struct costs *c, const char *path, const char *key, struct err *e);
int costs_store(const struct costs *c, const char *path, const char *key, const char *about,
                struct err *e);

// For tests and files.
bool cost_point_plausible(const struct cost_point *p);

#endif
