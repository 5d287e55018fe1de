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
// of the op's kind and element type, over the latest trials of the same model. Corrections fade:
// an old trial counts less than "no correction".
//
// A table also remembers how long the steps of whole settings took, and how far predictions were
// from what was then measured. So a setting that was measured is predicted by its measurement, and
// a prediction's interval comes from earlier errors.
//
// Invariants: estimates are positive and finite. They do not fall as rows grow, within and beyond
// what was measured, nor as FLOP and bytes grow if they are fitted.
#ifndef HAGGLE_PREDICT_COSTS_H
#define HAGGLE_PREDICT_COSTS_H

#include "base/hash.h"
#include "hw/hw.h"
#include "measure/trace.h"
#include "model/shape.h"
#include "predict/signature.h"

enum cost_how { COST_MEASURED, COST_BETWEEN, COST_FITTED, COST_ROOFLINE, COST_HOWS };

struct cost_point {
    struct op_signature signature;
    double flops, bytes;
    double seconds;
    double spread; // relative spread of the measurements
    int64_t count; // number of measurements
    bool busy;     // other programs were at work meanwhile
};

struct cost_estimate {
    double seconds;
    double spread; // relative: the likely error
    enum cost_how how;
    bool busy; // from times of a busy machine
};

enum {
    COSTS_RATIOS = 15, // kept per kind and element type, the newest
    COSTS_MOST_POINTS = 8192,
    COSTS_MOST_MODELS = 16, // with corrections; the one that was observed longest ago is forgotten
    COSTS_MOST_SETTINGS = 512,
    COSTS_VISITS = 5,           // step times kept per setting, the newest
    COSTS_ERRORS = 32,          // kept per source, the newest
    COSTS_ERRORS_TO_JUDGE = 10, // fewer say little
    COSTS_MODEL_BYTES = 160,
};
struct cost_ratios {
    double log[COSTS_RATIOS]; // logarithms of ratios
    double at[COSTS_RATIOS];  // wall time of the trial
    int64_t count;            // ratios ever added
};

// What trials of one model said about the times of ops. It says nothing about another model.
struct cost_model {
    char name[COSTS_MODEL_BYTES]; // the sizes of the model
    // By kind and element type; the last type is for ops without one.
    struct cost_ratios ratios[OP_COUNT][DTYPE_COUNT + 1];
    // Observed seconds of a step outside of ops, the newest COSTS_RATIOS.
    double outside_s[COSTS_RATIOS];
    int64_t outside_count; // ever added
};

// A setting whose steps were measured.
struct cost_setting {
    char id[HASH_TEXT_BYTES];
    double at;                    // wall time of the newest visit
    double seconds[COSTS_VISITS]; // the typical step of each visit
    int64_t count;                // visits ever made
    double spread;                // relative, of the steps of the newest visit
    bool quiet;                   // false: the steps varied so much that the machine was busy
    double part_s[TIME_COUNT];    // of the newest visit
};

// Where a prediction of a step comes from.
enum cost_from { FROM_SETTING, FROM_OPS, FROM_RELATIVE, FROM_ROOFLINE, COST_FROMS };
struct cost_errors { // |log(measured / predicted)| of settings that were predicted, then measured
    double log[COSTS_ERRORS];
    int64_t count; // ever added
};

struct costs_memo; // estimates already made

struct costs {
    struct cost_point *points; // in the order in which they were measured
    int n, capacity;
    int *index; // hash table by signature, open addressing: index of a point + 1; 0: free
    size_t index_size;
    struct cost_model *models[COSTS_MOST_MODELS]; // the one that was observed last comes last
    int n_models;
    const struct cost_model *model; // whose corrections apply (costs_use); NULL: none
    struct cost_setting *settings;  // the one that was visited last comes last
    int n_settings;
    struct cost_errors errors[COST_FROMS];
    double now_s;            // wall time, for ages
    struct hw_device device; // the roofline; a measured point that is faster raises its rates
    struct costs_memo *memo;
};

void costs_init(struct costs *c, const struct hw_device *device);
void costs_free(struct costs *c);
// Adds a measurement, or replaces that of the same signature. One of a busy machine never replaces
// one of a quiet machine. ERR_NUMERIC when it is not plausible.
int costs_add(struct costs *c, const struct cost_point *p, struct err *e);
const struct cost_point *costs_find(const struct costs *c, const struct op_signature *s);
// costs_estimate_raw is without the correction, costs_estimate with it.
struct cost_estimate costs_estimate_raw(struct costs *c, const struct program *p,
                                        const struct op *op);
struct cost_estimate costs_estimate(struct costs *c, const struct program *p, const struct op *op);

// Forgets the times of ops and what was derived from them; settings and errors stay.
void costs_forget_ops(struct costs *c, const struct hw_device *device);

// costs_learn.c. What corrections belong to: the sizes of a model. Ops of two models differ in
// size, and in what they find in caches. Returns out.
const char *cost_model_name(char out[COSTS_MODEL_BYTES], const struct model_shape *m);
// Corrections of the named model apply from now on; none if it was not observed.
void costs_use(struct costs *c, const char *model);
// The same, for a model that is being observed. NULL: out of memory.
struct cost_model *costs_observed_model(struct costs *c, const char *model);
// Notes that a step of the model took `observed` seconds in ops of this kind and type. The estimate
// without corrections was `raw`.
void costs_observe(struct cost_model *m, enum op_kind kind, enum dtype real, double observed,
                   double raw, double at);
void costs_observe_outside(struct cost_model *m, double seconds);
double costs_correction(const struct costs *c, enum op_kind kind, enum dtype real); // 1: none
double costs_outside(const struct costs *c);                                        // 0: not known
// When an op takes another time than before, the corrections were made for the old time.
void costs_forget_ratios(struct costs *c, enum op_kind kind, enum dtype real);

// NULL: the setting was not measured.
const struct cost_setting *costs_find_setting(const struct costs *c, const char *id);
// The median of the visits, and how far they lie apart: half the logarithm of most / least.
double cost_setting_seconds(const struct cost_setting *s, double *apart);
// visit: its id, at, seconds[0], spread, quiet and part_s are used. A quiet visit replaces visits
// to a busy machine, which are kept only until then.
int costs_add_visit(struct costs *c, const struct cost_setting *visit, struct err *e);
void costs_add_error(struct costs *c, enum cost_from from, double log_ratio);
// The factor by which nine of ten predictions from this source are off at most. It comes from
// earlier errors if there are enough of them, else from `spread` (relative) and the largest error.
double costs_factor(const struct costs *c, enum cost_from from, double spread);
int cost_kept(int64_t count, int most); // how many of `count` values a ring of `most` holds

// costs_file.c. The file is a cache: if it cannot be used, ops are measured again. Loading skips
// values that are not plausible or unknown to this build. ERR_IO: no such file. ERR_FORMAT: not a
// table, or a table with another key.
int costs_load(struct costs *c, const char *path, const char *key, struct err *e);
// ops: whether the times of ops are written (not if they are borrowed).
int costs_store(const struct costs *c, const char *path, const char *key, const char *about,
                bool ops, struct err *e);

// For tests and files.
bool cost_point_plausible(const struct cost_point *p);
bool cost_seconds_plausible(double seconds);

#endif
