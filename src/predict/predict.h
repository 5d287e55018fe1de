// predict.h - predicts how long a turn takes, by simulating programs with clocks instead of running
// them.
//
// The time of an op is a roofline: its arithmetic at the device's rate or its bytes at the device's
// bandwidth, whichever takes longer, plus a fixed overhead. Messages and collectives take the
// link's latency plus their bytes at its bandwidth. Streams run in issue order and wait as sync.c
// derived. Ranks wait for each other's messages. So overlap, bubbles and stragglers follow from the
// simulation.
#ifndef HAGGLE_PREDICT_PREDICT_H
#define HAGGLE_PREDICT_PREDICT_H

#include "hw/hw.h"
#include "program/program.h"

enum { PREDICT_MAX_RANKS = 1024 };

struct rank_prediction {
    double end_s;                 // when its last op ends
    double busy_s[STREAM_COUNT];  // time each stream works
    double category_s[CAT_COUNT]; // work by category, over all streams
    double idle_s;                // end of the turn minus the work of the compute stream
};

struct prediction {
    double seconds; // of the slowest rank
    int n_ranks;
    struct rank_prediction *ranks; // freed by prediction_free
};

// A typical device, for predictions without measurements. Only ratios of such times mean anything.
struct hw_device predict_nominal_device(bool gpu);

// The device's rate for matrix products of an element type; what is unknown of a 16-bit type is the
// rate of float32.
double predict_products_rate(const struct hw_device *d, enum dtype type);
// Time of one op alone on a device; for communication, on the link. The link may be NULL if there
// is only one rank.
double predict_op(const struct program *p, const struct op *op, const struct hw_device *d,
                  const struct hw_link *l);
// Ranks that are not given are assumed to behave like those that are (a data-parallel world needs
// one program). If the programs would wait for each other forever, that is ERR_INTERNAL, naming the
// rank and the op.
int predict_programs(struct program *const *ranks, int n, const struct hw_device *device,
                     const struct hw_link *link, struct prediction *out, struct err *e);
// The same with another function for the times of ops, which must not be negative.
typedef double predict_op_fn(void *arg, const struct program *p, const struct op *op);
int predict_programs_with(struct program *const *ranks, int n, predict_op_fn *op_s, void *arg,
                          struct prediction *out, struct err *e);
void prediction_free(struct prediction *p);

#endif
