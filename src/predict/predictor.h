// predictor.h - predicts how long a training step will take on this machine, from ops that were
// timed on it.
//
// Place: opened once. The tuner, `show` and a hybrid run ask it about plans. Calibration and every
// trial improve it. There is one table of costs (costs.h) per machine, device, thread count,
// instruction set, library of matrix products and build. Each is a file in the cache folder, read
// when it is first needed.
//
// Invariants:
//   1. On the host the time of a step is the sum of its ops. On a device it is what streams and
//      waits allow. Both add the observed time outside of ops.
//   2. A setting that was measured is predicted by its measurement. What is learnt from one model
//      never changes the prediction of another.
//   3. Without any measurement the prediction is a roofline and says so. If another table of the
//      same device has times (other threads, pinned or not), these are borrowed, and `calibrated`
//      is false.
//   4. A predictor is used by one thread only.
#ifndef HAGGLE_PREDICT_PREDICTOR_H
#define HAGGLE_PREDICT_PREDICTOR_H

#include "predict/calibrate.h"
#include "measure/trace.h"

struct predictor;

// dir: the folder of the tables. NULL: haggle/ops in the user's cache folder, if there is one. "":
// tables are not kept. A table that cannot be read counts as missing.
int predictor_open(struct predictor **out, const char *dir, struct err *e);
void predictor_close(struct predictor *p); // stores nothing; NULL is accepted
// Writes the tables that changed. Several processes may do so: the last one to store a table wins.
int predictor_store(struct predictor *p, struct err *e);

// Sets the roofline that is used where nothing is calibrated, for a caller that knows the rates of
// the machine better than the cache. To be called before the first prediction.
void predictor_set_roof(struct predictor *p, const struct hw_device *roof);

struct predicted {
    double seconds;       // of a step
    double low_s, high_s; // nine of ten predictions from this source were that near
    enum cost_from from;
    int64_t visits; // FROM_SETTING: how often the setting was measured, and when last
    double age_s;
    bool busy;      // ... and only when its steps varied much
    int64_t errors; // earlier predictions from this source that were then measured
    double ops_s;   // the sum of its ops; `seconds` unless the setting was measured
    double part_s[TIME_COUNT];
    double share[COST_HOWS]; // shares of the time in ops, by the source of the estimates
    double busy_share;       // of the time in ops: from ops timed while other programs were at work
    double spread;           // relative: the likely error of the ops' sum, by how they were timed
    bool calibrated; // more than half of the ops from measurements with these threads and kernels
    bool borrowed;   // more than half of the ops from measurements with other threads or kernels
    // Measured, calibrated, borrowed, or from a measured roofline. Else only ratios of predictions
    // mean anything.
    bool known;
};
// The plan must have PLAN_TRAIN.
int predictor_step(struct predictor *p, const struct plan *plan, struct predicted *out,
                   struct err *e);
// Where a prediction comes from and how good its interval is, in words: "measured here 3 times,
// last 2 hours ago". Returns out.
enum { PREDICTED_TEXT_BYTES = 240 };
const char *predicted_text(char out[PREDICTED_TEXT_BYTES], const struct predicted *p);
// Seconds of one op of a plan's programs, as predictor_step counts it. Negative: an error.
double predictor_op(struct predictor *p, const struct plan *plan, const struct program *program,
                    const struct op *op);

// The longest response times of a hybrid run's requests.
struct predicted_answers {
    double evaluate_s, train_s; // from a request to its answer: the longest wait plus its turn
    double turn_s;              // the turn of an evaluation alone
    double second_step_s;       // a training sample of the second model; 0: there is none
    bool calibrated, known;     // as in struct predicted, for the training step
};
// The plan must be that of a hybrid run. The longest wait of an evaluation is the longest time
// between two yield points of the step. A training sample waits for a whole step. With a second
// model it waits only as long as an evaluation.
int predictor_answers(struct predictor *p, const struct plan *plan, struct predicted_answers *out,
                      struct err *e);

// Times the ops of one setting now (calibrate.h). o and out may be NULL. With device=cuda this
// opens the GPU. A process that forks trials afterwards must therefore calibrate in a child
// process, which shares the tables through dir.
int predictor_calibrate(struct predictor *p, const struct knobs *k,
                        const struct calibrate_options *o, struct calibrated *out, struct err *e);
// The same for a range of batch.micro: the least, the most, and values between them that grow by a
// factor of four. Settings in between are interpolated.
int predictor_calibrate_span(struct predictor *p, const struct knobs *k, int64_t least,
                             int64_t most, struct calibrated *out, struct err *e);

// Remembers how long the steps of this setting took, and corrects the ops of its model. Kinds of
// ops that took almost no time are ignored. A trial whose steps differ so much that another process
// must have been running corrects nothing, and is forgotten at the next trial of its setting.
struct observed {
    const double *step_ns;
    int64_t steps;
    struct time_split split; // of all steps
    bool busy;               // other programs were at work meanwhile
};
int predictor_observe(struct predictor *p, const struct plan *plan, const struct observed *seen,
                      struct err *e);

// The table for these knobs' machine and device, for a caller that timed ops itself
// (collection_store). predictor_store will write it.
int predictor_costs(struct predictor *p, const struct knobs *k, struct costs **out, struct err *e);

// For doctor and show: what is known for these knobs' machine and device.
struct predictor_known {
    int signatures;           // signatures timed
    int64_t steps;            // trials that corrected them, of the model with most
    int settings;             // settings whose steps were measured
    char path[HW_PATH_BYTES]; // of the table; "": not kept
};
int predictor_known(struct predictor *p, const struct knobs *k, struct predictor_known *out,
                    struct err *e);

#endif
