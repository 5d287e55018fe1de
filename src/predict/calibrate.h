// calibrate.h - times the ops of a training step under the conditions of a step: in the same order,
// in the same memory, through the same backend.
//
// Place: fills a table of costs for one setting of the knobs. A step is planned with two
// micro-batches (the first writes gradients, the others add to them), and a few turns of it are
// timed op by op. In a model whose step takes long, only two layers and the ops outside of layers
// are run. Layers are alike, and the content of the caches depends only on an op's neighbours. No
// data is read, no weights are loaded, nothing is written.
#ifndef HAGGLE_PREDICT_CALIBRATE_H
#define HAGGLE_PREDICT_CALIBRATE_H

#include "predict/costs.h"
#include "engine/engine.h"

struct calibrate_options {
    // About how long turns are timed. 0: a quarter of a second, but at least three turns (two if a
    // turn takes longer than a second).
    double seconds;
    int64_t layers; // to run; 0: all, or two if a step takes long
    // Source of batches; NULL: batches are made up, with one document per sequence.
    exec_feed_fn *feed;
    void *feed_arg;
    bool busy; // the caller knows that other programs are at work
};

struct calibrated {
    int signatures; // signatures timed
    int turns;      // turns timed
    int64_t layers; // layers run
    double seconds; // duration of the calibration, planning included
    bool busy;      // other programs were at work during most turns; the times say so, too
};

int calibrate_run(const struct knobs *k, const struct calibrate_options *o, struct costs *c,
                  struct calibrated *out, struct err *e);

// A collection gathers op times from the traces of turns that the caller runs, one turn at a time.
struct collection;
int collection_open(struct collection **out, const struct program *p, struct err *e);
void collection_close(struct collection *l);
// The trace must hold the events of exactly one turn. A turn whose ops differ from the first one's
// is ignored.
int collection_add(struct collection *l, const struct trace *t, struct err *e);
// Scales the times of a segment's ops so that they add up to turn_s, the segment's time in a turn
// in which its ops were not timed one by one (a graph, where ops follow each other sooner).
void collection_scale(struct collection *l, int segment, double turn_s);
// Stores the times: the median of each op over the turns, then the mean over ops of the same
// signature. busy: other programs were at work meanwhile. signatures may be NULL.
int collection_store(const struct collection *l, struct costs *c, bool busy, int *signatures,
                     struct err *e);

#endif
