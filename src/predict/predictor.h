// predictor.h - how long a training step will take on this machine, from ops that were timed on it.
//
// Place: opened once; the tuner and `show` ask it about planned sessions, calibration and every trial
// make it better. Tables of costs (costs.h) are kept per machine, device, threads, instruction set,
// library of products and build, each in a file of its own in the cache folder, read when first
// asked about.
//
// Invariants: a step is the sum of its ops on the host, and what streams and waits allow on a device,
// plus what steps were seen to take outside of ops. Without any measurement it is a roofline and says
// so; but where another table of the same device has times (other threads, pinned or not), they stand in,
// and `calibrated` is false. One thread.
#ifndef HAGGLE_PREDICT_PREDICTOR_H
#define HAGGLE_PREDICT_PREDICTOR_H

#include "predict/calibrate.h"
#include "train/trial.h"

struct predictor;

// dir: where tables are kept; NULL: haggle/ops in the user's cache folder, where there is one; "":
// nowhere. A table that cannot be read is one that is not there.
int predictor_open(struct predictor **out, const char *dir, struct err *e);
void predictor_close(struct predictor *p); // stores nothing; NULL is accepted
// Writes the tables that changed. Several processes may: the last one to store a table wins.
int predictor_store(struct predictor *p, struct err *e);

struct predicted {
    double seconds; // of a step
    double part_s[TIME_COUNT];
    double spread; // relative: about two thirds of steps lie within seconds * (1 +- spread)
    double share[COST_HOWS]; // of the time in ops, by where the estimates come from
    bool calibrated; // more than half of it from measured ops; else a roofline for the most part
};
// `planned` has a training program; session_plan is enough.
int predictor_step(struct predictor *p, const struct session *planned, struct predicted *out,
                   struct err *e);
// Seconds of one op of a planned session's programs, as predictor_step counts it; negative: an error.
double predictor_op(struct predictor *p, const struct session *planned,
                    const struct program *program, const struct op *op);

// Times the ops of one setting now (calibrate.h). o and out may be NULL. With a GPU this opens it: a process
// that forks trials afterwards calibrates in a process of its own, and shares the tables by dir.
int predictor_calibrate(struct predictor *p, const struct knobs *k,
                        const struct calibrate_options *o, struct calibrated *out, struct err *e);
// The same for the settings between two micro-batches: the least, the most, and every fourth doubling
// between them. What lies between is interpolated.
int predictor_calibrate_span(struct predictor *p, const struct knobs *k, int64_t least,
                             int64_t most, struct calibrated *out, struct err *e);

// What a trial of this setting showed. Kinds of ops that took next to nothing teach nothing, nor do trials
// whose steps differ so much that others must have been at work.
int predictor_observe(struct predictor *p, const struct session *planned,
                      const struct trial_result *seen, struct err *e);

// The table of these knobs' machine and device, for whoever timed ops by other means (collection_store).
// predictor_store will write it.
int predictor_costs(struct predictor *p, const struct knobs *k, struct costs **out, struct err *e);

// For doctor and show: what is known for these knobs' machine and device.
struct predictor_known {
    int signatures;           // timed
    int64_t steps;            // that corrected them: trials
    char path[HW_PATH_BYTES]; // of the table; "": nowhere
};
int predictor_known(struct predictor *p, const struct knobs *k, struct predictor_known *out,
                    struct err *e);

#endif
