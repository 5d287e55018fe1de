// costs.h - how long ops take on one machine with one set of threads: measured times by signature,
// what lies between them, and how steps corrected them.
//
// Place: calibrate.h fills a table, costs_file.c keeps it between runs, predictor.h asks it for every
// op of a program.
//
// An estimate comes from the first of these that has one:
//   measured   this very signature was timed;
//   between    the same op with more and fewer rows was: straight lines between those times;
//   fitted     the same kind with other widths was: time = a + b FLOP + c bytes, none negative;
//   roofline   nothing like it was: the larger of arithmetic and bytes over the best rates seen.
// Then it is multiplied by what steps showed: the median ratio of observed to estimated time of the
// op's kind and element type, over the latest steps.
//
// Invariants: estimates are positive and finite. They grow with rows between and beyond what was
// measured, and with FLOP and bytes where they are fitted.
#ifndef HAGGLE_PREDICT_COSTS_H
#define HAGGLE_PREDICT_COSTS_H

#include "hw/hw.h"
#include "predict/signature.h"

enum cost_how { COST_MEASURED, COST_BETWEEN, COST_FITTED, COST_ROOFLINE, COST_HOWS };

struct cost_point {
    struct op_signature signature;
    double flops, bytes;
    double seconds;
    double spread; // of its measurements, relative
    int64_t count; // how many there were
};

struct cost_estimate {
    double seconds;
    double spread; // relative: how far off it may well be
    enum cost_how how;
};

// Ratios are kept as logarithms; the newest COSTS_RATIOS of them.
enum { COSTS_RATIOS = 15, COSTS_MOST_POINTS = 8192 };
struct cost_ratios {
    double log[COSTS_RATIOS];
    int64_t count; // ever
};

struct costs_memo; // estimates already made

struct costs {
    struct cost_point *points; // in the order they were measured
    int n, capacity;
    int *index; // open addressing by signature: a point's place + 1
    size_t index_size;
    // By kind and element type (the last: ops without one).
    struct cost_ratios ratios[OP_COUNT][DTYPE_COUNT + 1];
    // Seconds of a step outside its ops, newest COSTS_RATIOS, as observed.
    double outside_s[COSTS_RATIOS];
    int64_t outside_count;
    struct hw_device device; // the roofline; rates that measured points exceed give way to them
    struct costs_memo *memo;
};

void costs_init(struct costs *c, const struct hw_device *device);
void costs_free(struct costs *c);
// Adds a measurement, or replaces the one of the same signature. ERR_NUMERIC when it is not plausible.
int costs_add(struct costs *c, const struct cost_point *p, struct err *e);
const struct cost_point *costs_find(const struct costs *c, const struct op_signature *s);
// Without corrections, then with them.
struct cost_estimate costs_estimate_raw(struct costs *c, const struct program *p,
                                        const struct op *op);
struct cost_estimate costs_estimate(struct costs *c, const struct program *p, const struct op *op);

// A step took `observed` seconds in ops of this kind and type, for which `raw` was estimated.
void costs_observe(struct costs *c, enum op_kind kind, enum dtype real, double observed,
                   double raw);
void costs_observe_outside(struct costs *c, double seconds);
double costs_correction(const struct costs *c, enum op_kind kind, enum dtype real); // 1: none
double costs_outside(const struct costs *c);                                        // 0: not known

// costs_file.c. The file is a cache: what is wrong with it means measuring again. Loading leaves out
// what is not plausible and what this build does not know; ERR_IO: no such file, ERR_FORMAT: not a
// table, or one of another key.
int costs_load(struct costs *c, const char *path, const char *key, struct err *e);
int costs_store(const struct costs *c, const char *path, const char *key, const char *about,
                struct err *e);

// For tests and files.
bool cost_point_plausible(const struct cost_point *p);

#endif
