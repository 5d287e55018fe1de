// knobs_check.c - haggle_knobs_check: measures whether every knob has an effect on this machine.
#include "api/knobs_check.h"

#include "api/api.h"

#include "report/check_print.h"

enum { ROUNDS_DEFAULT = 5, STEPS_DEFAULT = 8, WARMUP = 2 };

// ---------------------------------------------------------------- for observations

int knobs_check_train(const struct knobs *k, FILE *out, FILE *log, struct err *e) {
    struct haggle_error why = {0};
    struct haggle_sink sink = {.out = out, .log = log};
    struct haggle_config c = {.knobs = *k};
    int rc = haggle_train(&c, &sink, &why);
    return rc == 0 ? 0 : err_set(e, rc, "%s", why.text);
}

// ---------------------------------------------------------------- the verb

static void deliver(const struct check *c, struct call *call) {
    if (call->out)
        check_print(c, call->out);
    if (call_json_begin(call, "knobs --check", &c->base)) {
        json_member_i64(&call->json, "rounds", c->rounds);
        json_member_i64(&call->json, "steps", c->steps);
        json_put_key(&call->json, "knobs");
        check_put_json(c, &call->json);
        json_put_object_end(&call->json);
    }
    check_say_unseen(c, &call->log);
}

int haggle_knobs_check(const struct haggle_config *config, const struct haggle_check *o,
                       const struct haggle_sink *sink, struct haggle_error *e) {
    struct call call;
    struct check c = {.base = config->knobs,
                      .rounds = o->rounds > 0 ? o->rounds : ROUNDS_DEFAULT,
                      .steps = o->steps > 0 ? o->steps : STEPS_DEFAULT,
                      .warmup = WARMUP,
                      .stop = stop_flag(),
                      .train = knobs_check_train};
    call_begin(&call, sink);
    // Without a live line, trials are not logged: they would be hundreds of lines.
    if (!call.log.live && call.log.least < LOG_WARN)
        call.log.least = LOG_WARN;
    int rc = call_find_model(&call, &c.base, &call.err);
    if (rc == 0)
        rc = check_run(&c, o->knobs, o->n_knobs, &call.log, &call.err);
    if (rc == 0)
        deliver(&c, &call);
    check_close(&c);
    return call_end(&call, rc, e);
}
