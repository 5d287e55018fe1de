// ready.c - whether a plan fits, with the same figures for haggle show and haggle train, and what
// would fit instead.
#include "api/api.h"

#include "plan/process.h"
#include "predict/fit.h"
#include "predict/predict.h"
#include "train/buffers.h"

#include <string.h>

int ready_check(struct engine *g, struct plan *p, struct err *e) {
    process_estimate(p);
    const int rc = engine_ready(g, p, e);
    // A process that has joined others holds an MPI library, too.
    const bool alone = !g->options.comm || g->options.comm->one_process;
    if (alone && (rc == 0 || rc == ERR_MEMORY))
        process_keep(p, engine_on_device(g));
    return rc;
}

static int count(void *arg, struct plan *p, struct err *e) {
    return buffers_count(arg, p, e);
}

// Plans the rank that needs the most. 0: `out` has it, and the caller frees it.
static int plan_neediest(const struct plan *p, const struct buffers *b, struct plan *out) {
    const int world = mesh_world(&p->ranks.mesh);
    struct plan one;
    uint64_t most = 0;
    int rank = 0, rc = 0;
    for (int i = 0; rc == 0 && i < world; i++) {
        rc = plan_run_rank(&one, &p->knobs, i, NULL);
        if (plan_arena_bytes(&one) > most) {
            most = plan_arena_bytes(&one);
            rank = i;
        }
        plan_free(&one);
    }
    struct buffers buffers = *b;
    rc = rc == 0 ? plan_run_rank(out, &p->knobs, rank, NULL) : rc;
    if (rc == 0 && (rc = buffers_count(&buffers, out, NULL)) == 0)
        plan_set_process(out, p->process_bytes, p->process_how);
    else
        plan_free(out);
    return rc;
}

// Without a budget the ranks on a machine share its memory.
static uint64_t room_of_rank(const struct engine *g, const struct plan *p) {
    const struct comm *c = g->options.comm;
    return c && p->knobs.memory == 0 ? g->room.bytes / (uint64_t)c->local_world : g->room.bytes;
}

static void advise(struct engine *g, const struct plan *p, const struct buffers *b, struct err *e) {
    struct hw_device device = predict_nominal_device(engine_on_device(g));
    struct buffers buffers = *b;
    struct machine machine;
    struct fit fit;
    char text[FIT_SENTENCE_BYTES];
    if (machine_open(&machine, &p->knobs, MACHINE_KNOWN, NULL) == 0 &&
        machine.device.matmul_flops > 0)
        device = machine.device;
    const struct fit_question q = {.plan = p,
                                   .have_bytes = room_of_rank(g, p),
                                   .on_device = engine_on_device(g),
                                   .types = g->backend->info.types,
                                   .device = &device,
                                   .count = count,
                                   .count_arg = &buffers};
    if (fit_find(&q, &fit, NULL) != 0)
        return;
    const size_t at = strlen(e->text);
    snprintf(e->text + at, sizeof e->text - at, ". %s", fit_sentence(&fit, text));
}

void ready_advise(struct engine *g, const struct plan *p, const struct buffers *b, struct err *e) {
    struct plan neediest;
    if (!g->backend || !g->room.is) // there was no memory to open it
        return;
    if (mesh_world(&p->ranks.mesh) == 1) {
        advise(g, p, b, e);
    } else if (plan_neediest(p, b, &neediest) == 0) {
        advise(g, &neediest, b, e);
        plan_free(&neediest);
    }
}

void ready_warn_idle(const struct knobs *k, struct log *log) {
    char value[KNOB_VALUE_BYTES], initial[KNOB_VALUE_BYTES];
    for (int i = 0; i < KNOB_COUNT; i++) {
        const char *why = knobs_idle(k, i);
        if (why && strcmp(knobs_value(k, i, value), knob_default(i, initial)) != 0)
            log_put(log, LOG_WARN, "%s=%s has no effect here: %s", knob_info(i)->name, value, why);
    }
}

void ready_say_builtin(const struct knobs *k, struct log *log) {
    const bool model = k->by[KNOB_model] == SET_BY_DEFAULT,
               data = k->by[KNOB_data_path] == SET_BY_DEFAULT;
    if (model && data)
        log_put(log, LOG_INFO,
                "no model and no data were given: the built-in model '%s' (random weights) and the "
                "built-in generated text are used; model= and data.path= choose others",
                k->model);
    else if (model)
        log_put(log, LOG_INFO,
                "no model was given: the built-in model '%s' (random weights) is used; model= "
                "chooses another",
                k->model);
    else if (data)
        log_put(log, LOG_INFO,
                "no data was given: the built-in generated text is used; data.path= chooses other "
                "data");
}
