// predict.h - how long a turn takes, by walking programs with clocks instead of a backend.
//
// Every op takes the larger of its arithmetic over the device's rate and its bytes over the
// device's bandwidth, plus a fixed overhead (a roofline); messages and collectives take latency
// plus bytes over the link. Streams run in issue order and wait as sync.c derived, ranks wait for
// one another's messages, so overlap, bubbles and stragglers appear by themselves.
#ifndef HAGGLE_PREDICT_PREDICT_H
#define HAGGLE_PREDICT_PREDICT_H

#include "hw/hw.h"
#include "program/program.h"

enum { PREDICT_MAX_RANKS = 1024 };

struct rank_prediction {
    double end_s;                 // when its last op ends
    double busy_s[STREAM_COUNT];  // time each stream works
    double category_s[CAT_COUNT]; // work by kind, whatever the stream
    double idle_s;                // compute stream: end of the turn minus its work
};

struct prediction {
    double seconds; // of the slowest rank
    int n_ranks;
    struct rank_prediction *ranks; // malloc'd
};

// Time of one op alone on a device (communication: on the link).
double predict_op(const struct program *p, const struct op *op, const struct hw_device *d,
                  const struct hw_link *l);
// Ranks that are not given are taken to behave like those that are (a data-parallel world needs one
// program). A program set that would wait for ever is ERR_INTERNAL, naming the rank and the op.
int predict_programs(struct program *const *ranks, int n, const struct hw_device *device,
                     const struct hw_link *link, struct prediction *out, struct err *e);
// The same with other times of ops. Never negative.
typedef double predict_op_fn(void *arg, const struct program *p, const struct op *op);
int predict_programs_with(struct program *const *ranks, int n, predict_op_fn *op_s, void *arg,
                          struct prediction *out, struct err *e);
void prediction_free(struct prediction *p);

#endif
