// api.h - what the files of this folder share: struct haggle_config, and what every verb begins and
// ends with.
//
// Place in the flow: this folder implements include/haggle.h and may use every other folder. Only
// src/cli and programs that link the library use it. Inside, an error is a `struct err`; call_end
// turns it into a `struct haggle_error`.
#ifndef HAGGLE_API_API_H
#define HAGGLE_API_API_H

#include "base/c_locale.h"
#include "base/json.h"
#include "base/log.h"
#include "engine/engine.h"
#include "haggle.h"
#include "knob/knob.h"
#include "predict/machine.h"
#include "predict/predictor.h"
#include "predict/verdict_run.h"
#include "plan/plan.h"

#include <limits.h>
#include <signal.h>

struct haggle_config {
    struct knobs knobs;
    char recipe[PATH_MAX]; // path of the recipe, which names run.dir; "": none was loaded
};

int api_error(struct haggle_error *out, const struct err *e); // copies *e; returns its code

// ---------------------------------------------------------------- call.c: one call of a verb

struct call {
    locale_t locale; // the caller's, which call_end restores
    FILE *out;       // may be NULL
    struct log log;
    bool wants_json;
    FILE *json_stream;
    struct json_writer json; // to memory: the stream gets a whole object or nothing
    struct err err;
};

// call_begin and call_end are called in the same thread. sink may be NULL.
void call_begin(struct call *c, const struct haggle_sink *sink);
// Writes a message to the log. For listeners of other folders; log is a struct log.
void call_say(void *log, enum log_level level, const char *text);
// Replaces a model's name on the Hugging Face hub by its folder in the local cache, and says so.
int call_find_model(struct call *c, struct knobs *k, struct err *e);
// If the caller wants JSON, begins the object with the members that every result has: "haggle",
// "verb", "config". Returns whether it did.
bool call_json_begin(struct call *c, const char *verb, const struct knobs *k);
void call_put_head(struct json_writer *w, const char *verb, const struct knobs *k); // to any writer
// Member "error": for a verb that failed and still has a result to deliver.
void call_json_error(struct json_writer *w, int code, const char *text);
// Delivers the JSON object, or {"error": ...} when the verb failed before its object was whole.
// Flushes the streams, and copies the error to *e. Returns the code.
int call_end(struct call *c, int rc, struct haggle_error *e);

// ---------------------------------------------------------------- find.c: a trained model

// k->model may be a run's folder: it becomes the folder of its newest checkpoint, or of its best
// one. RUN/interactive is the second model in the newest. Anything else stays as it is. It comes
// first, because RUN/interactive looks like ORG/NAME.
int call_find_checkpoint(struct call *c, struct knobs *k, bool best, struct err *e);
// If k->model is a checkpoint of an adapter, `adapter` gets its folder, and the knobs its base. "":
// another model.
int call_find_adapter(struct knobs *k, char adapter[PATH_MAX], struct err *e);

// ---------------------------------------------------------------- ready.c: before a run

// Opens the engine for the plan and says whether it fits (engine_ready). The figure for the process
// comes from the store or is measured, and then stored. ERR_MEMORY: it does not fit.
struct buffers;
int ready_check(struct engine *g, struct plan *p, struct err *e);
// Adds what would fit to a refusal for memory. Uses this machine's rates if they are known.
void ready_advise(struct engine *g, const struct plan *p, const struct buffers *b, struct err *e);
// Warns about knobs that are not at their default and have no effect with the other settings.
void ready_warn_idle(const struct knobs *k, struct log *log);

// Says which of model and data are the built-in ones because none was given.
void ready_say_builtin(const struct knobs *k, struct log *log);

// tune_gen.c: haggle_tune with the goal "generate".
int tune_generate(struct call *c, const struct haggle_config *config, const struct haggle_tune *o,
                  struct err *e);
// tune.c: called before a search, so that bad paths do not cost minutes. store: there is one.
int tune_check_outputs(const struct haggle_tune *o, bool store, struct err *e);

// stop.c: for trainer_options.stop.
const volatile sig_atomic_t *stop_flag(void);
// Between these calls there is no work that could be finished or saved: haggle_request_stop returns
// 2 at once, and a program then quits. Calls nest.
void stop_plan_begin(void);
void stop_plan_end(void);

// Most op events that log.trace keeps, at 32 bytes each: the newest few thousand steps of a small
// model.
enum { API_TRACE_EVENTS = 1 << 20 };

#endif
