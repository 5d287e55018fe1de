// calibrate.h - times the ops of a training step where they will run: in the step's own order, on the
// step's own memory, through the backend.
//
// Place: fills a costs table for one setting of the knobs. A step is planned with two micro-batches (the
// first writes gradients, the others add to them) and a few turns of it are timed op by op. Of a deep
// model two layers are run, and all that is not in a layer: layers are alike, and what an op finds
// in the caches depends on its neighbours. No data is read, no weights are loaded, nothing is written.
#ifndef HAGGLE_PREDICT_CALIBRATE_H
#define HAGGLE_PREDICT_CALIBRATE_H

#include "predict/costs.h"
#include "train/session.h"

struct calibrate_options {
    double
        seconds; // to spend on turns, about; 0: a quarter of a second, or three turns; two of long ones
    int64_t layers; // to run; 0: all, or two where a step takes long
    // Batches; NULL: made up, with a document per sequence.
    exec_feed_fn *feed;
    void *feed_arg;
};

struct calibrated {
    int signatures; // timed
    int turns;      // that were timed
    int64_t layers; // that were run
    double seconds; // it took, planning included
};

int calibrate_run(const struct knobs *k, const struct calibrate_options *o, struct costs *c,
                  struct calibrated *out, struct err *e);

// Turns that someone else ran: adds their ops to a collection, one turn at a time.
struct collection;
int collection_open(struct collection **out, const struct program *p, struct err *e);
void collection_close(struct collection *l);
// The events of one turn, and of nothing else. Turns with other ops than the first's are left out.
int collection_add(struct collection *l, const struct trace *t, struct err *e);
// A segment took this long in a turn in which its ops were not timed one by one (a graph, where they follow one
// another sooner): its ops, as they were timed, are scaled to add up to that.
void collection_scale(struct collection *l, int segment, double turn_s);
// The median of each op's times over the turns, then the mean over ops of the same signature.
int collection_store(const struct collection *l, struct costs *c, int *signatures, struct err *e);

#endif
