// api.h - what the files of this folder share: the config behind the opaque name, a call at work,
// this machine as measured, a plan in words.
//
// Place in the flow: this folder implements include/haggle.h and may use every other one; nothing
// but src/cli and foreign programs use it. Errors inside are `struct err`; they become
// `struct haggle_error` in call_end, once.
#ifndef HAGGLE_API_API_H
#define HAGGLE_API_API_H

#include "base/c_locale.h"
#include "base/json.h"
#include "base/log.h"
#include "haggle.h"
#include "hw/hw.h"
#include "knob/knob.h"
#include "measure/metrics.h"
#include "measure/verdict.h"
#include "predict/predictor.h"
#include "train/session.h"
#include "train/trial.h"

#include <limits.h>
#include <signal.h>

struct haggle_config {
    struct knobs knobs;
    char recipe[PATH_MAX]; // "" when none was loaded; names run.dir
};

int api_error(struct haggle_error *out, const struct err *e); // copies; returns the code

// ---------------------------------------------------------------- call.c: one verb at work

struct call {
    locale_t locale; // of the caller, who gets it back
    FILE *out;       // may be NULL
    struct log log;
    bool wants_json;
    FILE *json_stream;
    struct json_writer json; // a buffer: the stream sees a whole object or none
    struct err err;
};

// From here to call_end, in one thread.
void call_begin(struct call *c, const struct haggle_sink *sink);
// Begins the JSON object with the members every result has: "haggle", "verb", "config".
void call_json_begin(struct call *c, const char *verb, const struct knobs *k);
void call_put_head(struct json_writer *w, const char *verb, const struct knobs *k); // elsewhere
// Member "error": for a verb that failed and still has a result to deliver.
void call_json_error(struct json_writer *w, int code, const char *text);
// Delivers JSON (or {"error": ...} when the verb failed before it had any), flushes, converts.
int call_end(struct call *c, int rc, struct haggle_error *e);

// stop.c: for trainer_options.stop.
const volatile sig_atomic_t *stop_flag(void);
// Between these nothing is in work that could be finished or saved: haggle_request_stop then
// returns 2 at once, on which a program quits. Calls nest.
void stop_plan_begin(void);
void stop_plan_end(void);

// ---------------------------------------------------------------- machine.c: where it runs

enum machine_how {
    MACHINE_KNOWN,   // figures from the cache or none: costs nothing
    MACHINE_MEASURE, // from the cache, else measured (about a second) and kept
    MACHINE_FRESH,   // measured now
};

struct machine {
    struct hw_machine hw;
    bool has_rates, cached;  // cached: measured by an earlier process
    struct hw_rates rates;   // of the thread count asked for
    struct hw_device device; // for the predictor; matmul_flops 0: not known
    double peak_flops;       // what MFU is a share of; 0: not known
    const char *peak_is;     // how that was found: "measured in registers"
};

// After work of so many seconds: measuring must not take longer than what it explains.
enum machine_how machine_how_after(double seconds);
// Without figures (has_rates false) it cannot fail.
int machine_open(struct machine *m, const struct knobs *k, enum machine_how how, struct err *e);
// The same for a device that is open: a large matrix product and a copy, through its own ops, in the
// element type of the run. What does not fit beside the run's memory stays unknown.
int machine_measure_device(struct machine *m, struct backend *b, enum dtype type, struct err *e);
// What MFU is a share of in a precision: the vector units' fp32 rate, or a measured product of bf16
// where the CPU has instructions for those and they are faster. 0: not known.
double machine_peak(const struct machine *m, enum precision p, const char **is);
int machine_threads(const struct knobs *k); // `threads`, with 0 resolved
void machine_put_json(const struct machine *m, struct json_writer *w);
// Square products of this size are what a layer of a small model has (2 GFLOP each): large enough
// that the library is at its plateau, small enough for a dozen trials in a blink.
enum { MACHINE_NAME_BYTES = 128, MACHINE_MATMUL_SIZE = 1024 };
struct machine_blas {
    char name[MACHINE_NAME_BYTES]; // what the backend says it is: "openblas 0.3.21 (SkylakeX)"
    char path[PATH_MAX];           // of the library; "" when there is none
    double flops_per_s;            // products of MACHINE_MATMUL_SIZE, as rates.matmul_flops
};
// Measures one choice of cpu.blas ("openblas", "builtin", ...). ERR_UNSUPPORTED when it is not here.
int machine_measure_blas(struct machine_blas *out, const struct knobs *k, const char *choice,
                         struct err *e);
// Measures the builtin products of an element type; name says how they are computed.
int machine_measure_products(struct machine_blas *out, const struct knobs *k, enum dtype type,
                             struct err *e);

// ---------------------------------------------------------------- plan.c: a session in words

// The programs of a run with these knobs: train, eval when there is validation, generate when a
// sample is wanted.
int plan_session(struct session *s, const struct knobs *k, struct err *e);
void plan_print_model(FILE *f, const struct session *s); // one line
// trace_bytes are part of s->loader_bytes. own: with a column of what each class is in all.
void plan_print_memory(FILE *f, const struct session *s, uint64_t trace_bytes, bool own);
// Bytes of all tensors by class, every copy counted, of the program that needs the most (train).
void plan_own_bytes(const struct session *s, uint64_t by_class[CLASS_COUNT]);
// Op events log.trace keeps at most: the newest few thousand steps of a small model, 32 bytes each.
enum { PLAN_TRACE_EVENTS = 1 << 20 };
void plan_put_model_json(const struct session *s, struct json_writer *w);
// A training step: from ops that were timed on this machine where there are such (out->calibrated), else
// by the roofline of m; seconds 0 when neither is known. p may be NULL: one is opened for the call.
int plan_predict(const struct session *s, const struct machine *m, struct predictor *p,
                 struct predicted *out, struct err *e);

// ---------------------------------------------------------------- verdict for train and bench

// The sentence about where the time of `m` went, with the facts of this run and machine.
void api_verdict(struct verdict *out, const struct run_metrics *m, const struct knobs *k,
                 const struct step_cost *cost, const struct machine *machine);

#endif
