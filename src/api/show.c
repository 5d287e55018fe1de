// show.c - haggle_show: prints the plan of a run without running it.
#include "api/api.h"

#include "plan/process.h"
#include "report/plan_print.h"
#include "serve/requests.h"
#include "train/buffers.h"

_Static_assert((int)HAGGLE_BRIEF == (int)PLAN_BRIEF && (int)HAGGLE_OPS == (int)PLAN_OPS &&
                   (int)HAGGLE_FULL == (int)PLAN_FULL,
               "haggle.h and report/plan_print.h mean the same");

// Counts the memory of the data's buffers and of the process. A plan is shown even when the data
// cannot be opened.
static void count_host(struct call *c, struct plan *p, const struct requests *r) {
    const struct shard_listener quiet = {0};
    struct dataset *data = NULL;
    struct err e = {0};
    int rc = buffers_open_data(&data, p, &quiet, &e);
    const struct buffers b = {.data = data,
                              .trace_events = p->knobs.log_trace[0] ? API_TRACE_EVENTS : 0,
                              .request_bytes = r ? requests_plan_bytes(r) : 0};
    if (rc == 0)
        rc = buffers_count(&b, p, &e);
    if (rc != 0)
        log_put(&c->log, LOG_WARN, "the data's buffers are not counted: %s", e.text);
    dataset_close(data);
    process_estimate(p);
}

static int print(struct call *c, const struct plan_view *v, const struct machine *m,
                 enum plan_detail detail, struct err *e) {
    if (c->out)
        TRY(plan_print(v, detail, c->out, e));
    if (call_json_begin(c, "show", &v->plan->knobs)) {
        plan_put_model_json(v->plan, &c->json);
        machine_put_json(m, &c->json);
        plan_put_json(v, &c->json);
        json_put_object_end(&c->json);
    }
    return 0;
}

static int show(struct call *c, const struct knobs *k, enum plan_detail detail, struct err *e) {
    const struct shard_listener quiet = {0};
    struct plan p;
    struct machine m;
    struct requests *requests = NULL;
    struct predicted_answers answers;
    struct plan_view v = {.plan = &p, .roof = &m.device};
    int rc = plan_run(&p, k, e);
    if (rc == 0)
        rc = requests_of_plan(&requests, &p, NULL, NULL, &quiet, e);
    if (rc == 0) {
        count_host(c, &p, requests);
        rc = machine_open(&m, k, MACHINE_MEASURE, e);
    }
    if (rc == 0)
        rc = predictor_open(&v.predictor, NULL, e);
    if (rc == 0) {
        predictor_set_roof(v.predictor, &m.device);
        rc = predictor_step(v.predictor, &p, &v.step, e);
    }
    if (rc == 0 && requests) {
        rc = predictor_answers(v.predictor, &p, &answers, e);
        v.answers = &answers;
    }
    if (rc == 0)
        rc = print(c, &v, &m, detail, e);
    predictor_close(v.predictor);
    requests_close(requests);
    plan_free(&p);
    return rc;
}

int haggle_show(const struct haggle_config *config, enum haggle_detail detail,
                const struct haggle_sink *sink, struct haggle_error *e) {
    struct call c;
    struct knobs k = config->knobs;
    call_begin(&c, sink);
    int rc = call_find_model(&c, &k, &c.err);
    if (rc == 0)
        rc = show(&c, &k, (enum plan_detail)detail, &c.err);
    return call_end(&c, rc, e);
}
