// show.c - haggle_show: prints the plan of a run without running it.
#include "api/api.h"

#include "api/talk.h"
#include "report/generation_print.h"
#include "serve/requests.h"
#include "train/buffers.h"

_Static_assert((int)HAGGLE_BRIEF == (int)PLAN_BRIEF && (int)HAGGLE_OPS == (int)PLAN_OPS &&
                   (int)HAGGLE_FULL == (int)PLAN_FULL,
               "haggle.h and report/plan_print.h mean the same");

struct show_call {
    struct call *call;
    struct plan plan;
    struct dataset *data; // NULL: it could not be opened
    struct buffers buffers;
    struct requests *requests; // NULL: the run answers none
    struct engine *engine;
    struct machine machine;
    struct predicted_answers answers;
    struct plan_view view;
    struct err refusal; // code 0: it fits, or that is not known
};

// Counts the buffers of the run. A plan is shown even when the data cannot be opened.
static int count_buffers(struct show_call *s, struct err *out) {
    const struct shard_listener quiet = {0};
    struct err e = {0};
    int rc = buffers_open_data(&s->data, &s->plan, &quiet, &e);
    s->buffers =
        (struct buffers){.data = s->data,
                         .trace_events = s->plan.knobs.log_trace[0] ? API_TRACE_EVENTS : 0,
                         .request_bytes = s->requests ? requests_plan_bytes(s->requests) : 0};
    if (rc != 0 && s->data) { // open, but its passes do not give a number of steps (epochs)
        *out = e;
        return rc;
    }
    s->view.data = s->data;
    if (rc == 0)
        rc = buffers_count(&s->buffers, &s->plan, &e);
    if (rc == 0)
        return 0;
    log_put(&s->call->log, LOG_WARN, "the data's buffers are not counted: %s", e.text);
    s->view.check.missing = "the buffers of the data are";
    return 0;
}

// Asks the engine, as train does. A plan is shown even when this machine cannot run it: its memory
// is then compared with the budget alone, and with what is left on the host.
static void check(struct show_call *s) {
    struct plan_check *c = &s->view.check;
    const int rc = ready_check(s->engine, &s->plan, &s->refusal);
    const bool asked = rc == 0 || rc == ERR_MEMORY;
    c->on_device = asked ? engine_on_device(s->engine) : s->plan.device;
    c->room = s->engine->room;
    if (asked)
        return;
    log_put(&s->call->log, LOG_WARN, "this would be refused here: %s", s->refusal.text);
    err_clear(&s->refusal);
    const struct mem_left host = mem_left(0);
    if (!c->on_device)
        c->room = plan_room(&s->plan, host.bytes, host.limit, true);
    else if (s->plan.knobs.memory > 0)
        c->room = plan_room(&s->plan, s->plan.knobs.memory, "", false);
    if (!c->on_device && s->plan.process_how == PLAN_UNKNOWN)
        c->missing = "what the process itself takes is";
    if (c->room.is)
        plan_check_room(&s->plan, c->on_device, plan_need_bytes(&s->plan, c->on_device), &c->room,
                        &s->refusal);
}

static int predict(struct show_call *s, struct err *e) {
    struct plan_view *v = &s->view;
    TRY(machine_open(&s->machine, &s->plan.knobs, MACHINE_MEASURE, e));
    TRY(predictor_open(&v->predictor, NULL, e));
    predictor_set_roof(v->predictor, &s->machine.device);
    v->roof = &s->machine.device;
    if (knobs_world(&s->plan.knobs) > 1) // how long ranks wait for each other is not predicted
        return 0;
    TRY(predictor_step(v->predictor, &s->plan, &v->step, e));
    if (!s->requests)
        return 0;
    v->answers = &s->answers;
    return predictor_answers(v->predictor, &s->plan, &s->answers, e);
}

static int print(struct show_call *s, enum plan_detail detail, struct err *e) {
    struct call *c = s->call;
    if (c->out)
        TRY(plan_print(&s->view, detail, c->out, e));
    if (call_json_begin(c, "show", &s->plan.knobs)) {
        plan_put_model_json(&s->plan, &c->json);
        machine_put_json(&s->machine, &c->json);
        plan_put_json(&s->view, &c->json);
        if (s->refusal.code != 0)
            call_json_error(&c->json, s->refusal.code, s->refusal.text);
        json_put_object_end(&c->json);
    }
    return 0;
}

static int show(struct show_call *s, const struct knobs *k, enum plan_detail detail, int rank,
                struct err *e) {
    const struct shard_listener quiet = {0};
    ready_say_builtin(k, &s->call->log);
    TRY(plan_run_rank(&s->plan, k, rank, e));
    TRY(engine_open(&s->engine, NULL, e));
    TRY(requests_of_plan(&s->requests, &s->plan, NULL, NULL, &quiet, e));
    TRY(count_buffers(s, e));
    check(s);
    if (s->refusal.code == ERR_MEMORY && s->data)
        ready_advise(s->engine, &s->plan, &s->buffers, &s->refusal);
    // Its threads may be pinned. The machine would then look smaller than it is.
    engine_close(s->engine);
    s->engine = NULL;
    TRY(predict(s, e));
    TRY(print(s, detail, e));
    ready_warn_idle(&s->plan.knobs, &s->call->log);
    if (s->refusal.code == 0)
        return 0;
    *e = s->refusal;
    return e->code;
}

// ---------------------------------------------------------------- a quantized folder

enum { SHOWN_CONTEXT = 4096 }; // tokens of a text, unless seq says otherwise or the model has fewer

static int is_quantized(const struct knobs *k, bool *out, struct err *e) {
    struct model_shape shape;
    struct quantized stored;
    bool folder;
    *out = false;
    TRY(model_shape_open(&shape, k->model, &folder, e));
    if (!folder)
        return 0;
    TRY(quantized_read(&stored, k->model, &shape, e));
    *out = quantized_any(&stored);
    quantized_free(&stored);
    return 0;
}

// It has no step, so the plan of making a text is shown.
static int show_generation(struct show_call *s, const struct knobs *given, enum plan_detail detail,
                           int rank, struct err *e) {
    struct knobs k = *given;
    struct model_shape shape;
    bool folder;
    struct call *c = s->call;
    if (rank != 0 || knobs_world(&k) > 1)
        return err_set(e, ERR_USAGE,
                       "model=%.300s is quantized, and ranks do not share one; accepted: the plan "
                       "of one process",
                       k.model);
    TRY(model_shape_open(&shape, k.model, &folder, e));
    if (k.by[KNOB_seq] == SET_BY_DEFAULT)
        k.seq = SHOWN_CONTEXT;
    if (k.seq > model_shape_longest(&shape))
        k.seq = model_shape_longest(&shape);
    const struct plan_options o = {.knobs = &k,
                                   .programs = {PLAN_EXTEND},
                                   .extend = {.sequences = 1,
                                              .context = k.seq,
                                              .rows = k.seq < TALK_CHUNK ? k.seq : TALK_CHUNK},
                                   .real = DTYPE_F32};
    TRY(plan_make(&s->plan, &o, e));
    TRY(engine_open(&s->engine, NULL, e));
    check(s);
    if (c->out)
        TRY(generation_print(&s->plan, &s->view.check, detail, c->out, e));
    if (call_json_begin(c, "show", &s->plan.knobs)) {
        plan_put_model_json(&s->plan, &c->json);
        generation_put_json(&s->plan, &s->view.check, &c->json);
        if (s->refusal.code != 0)
            call_json_error(&c->json, s->refusal.code, s->refusal.text);
        json_put_object_end(&c->json);
    }
    if (s->refusal.code == 0)
        return 0;
    *e = s->refusal;
    return e->code;
}

int haggle_show(const struct haggle_config *config, enum haggle_detail detail, int rank,
                const struct haggle_sink *sink, struct haggle_error *e) {
    struct call c;
    struct show_call s = {.call = &c, .view.plan = &s.plan};
    call_begin(&c, sink);
    struct knobs k = config->knobs;
    int rc = call_find_model(&c, &k, &c.err);
    bool quantized = false;
    if (rc == 0)
        rc = is_quantized(&k, &quantized, &c.err);
    if (rc == 0)
        rc = quantized ? show_generation(&s, &k, (enum plan_detail)detail, rank, &c.err)
                       : show(&s, &k, (enum plan_detail)detail, rank, &c.err);
    predictor_close(s.view.predictor);
    engine_close(s.engine);
    requests_close(s.requests);
    dataset_close(s.data);
    plan_free(&s.plan);
    return call_end(&c, rc, e);
}
