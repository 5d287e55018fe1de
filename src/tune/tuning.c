// tuning.c - see tuning.h.
#include "tune/tuning.h"

#include "base/text.h"
#include "predict/predictor.h"

#include <math.h>
#include <stdlib.h>

// The trial that measures the gradient noise scale: its steps, and its share of the search's time.
// It may take three times as long if fewer than NOISE_LEAST steps are done by then.
enum { NOISE_STEPS = 40 };
static const double NOISE_SHARE = 0.1;

int tuning_predict_answers(struct tune_request *r, const struct knobs *k, struct err *e) {
    struct plan p;
    struct predictor *predictor = NULL;
    struct predicted_answers a;
    if (r->goal != TUNE_HYBRID)
        return 0;
    int rc = plan_run(&p, k, e);
    if (rc == 0)
        rc = predictor_open(&predictor, NULL, e);
    if (rc == 0)
        rc = predictor_answers(predictor, &p, &a, e);
    if (rc == 0) {
        r->answer_s = a.second_step_s;
        r->turn_s = p.second ? 0 : a.turn_s;
    }
    predictor_close(predictor);
    plan_free(&p);
    return rc;
}

int tuning_open(struct tuning *t, const struct tuning_options *o, struct err *e) {
    const struct lab_options lab = {.knobs = &t->base,
                                    .guest_bytes = o->request_bytes,
                                    .stop = o->stop,
                                    .count_busy = o->count_busy,
                                    .history = &t->history,
                                    .time_s = 1e-9 * (double)t->request.time_ns,
                                    .all_types = t->request.allow >> ALLOW_PRECISION & 1};
    char time[TEXT_UNIT_BYTES], room[TEXT_UNIT_BYTES];
    t->history.tune = &t->tune;
    t->history.machine = t->machine;
    TRY(history_check(o->store, e));
    TRY(lab_open(&t->lab, &lab, e));
    if (t->request.joules_per_token > 0 && lab_no_meter(t->lab)[0])
        return err_set(e, ERR_UNSUPPORTED,
                       "--energy=%g needs an energy meter, and this machine has none: %s",
                       t->request.joules_per_token, lab_no_meter(t->lab));
    t->request.begin_ns = lab_begin_ns(t->lab);
    TRY(tuning_predict_answers(&t->request, &t->base, e));
    log_put(t->log, LOG_INFO, "goal %s, %s to search; memory: %s, of which %s is head-room",
            tune_goal_name(t->request.goal), text_duration(time, 1e-9 * (double)t->request.time_ns),
            lab_have_is(t->lab), text_bytes(room, lab_headroom_bytes(t->lab)));
    if (t->request.answer_s > 0)
        log_put(t->log, LOG_INFO,
                "a second model answers requests: it takes %s of that memory, and %s per training "
                "sample",
                text_bytes(room, lab_second_bytes(t->lab)),
                text_duration(time, t->request.answer_s));
    return 0;
}

void tuning_close(struct tuning *t) {
    lab_close(t->lab);
    history_close(&t->history);
    tune_free(&t->tune);
    t->lab = NULL;
}

// ---------------------------------------------------------------- progress

static void on_trial(void *arg, const struct tune *tune, const struct tune_setting *s,
                     const struct tune_measured *m) {
    struct tuning *t = arg;
    char text[TUNE_NAME_BYTES + 96];
    if (m->rc != 0)
        snprintf(text, sizeof text, "trial %d: %s: %.60s", tune->trials, s->name, m->reason);
    else
        snprintf(text, sizeof text, "trial %d: %s: %.0f tokens/s, %zu steps%s", tune->trials,
                 s->name, tune_tokens_per_s(s), s->n, m->reused ? " (reused)" : "");
    log_live(t->log, text);
}

static void on_stage(void *arg, const struct tune *tune, int stage) {
    struct tuning *t = arg;
    if (t->log->live)
        log_live_end(t->log);
    log_put(t->log, LOG_INFO, "%-32s %s", tune_stage_name((enum tune_stage)stage),
            tune->stages[stage].text);
    history_stage(&t->history, stage);
}

// ---------------------------------------------------------------- the search

// If the batch may change, limits it: beyond the noise scale larger batches add little learning per
// step.
static int find_critical_batch(struct tuning *t, struct err *e) {
    struct noise_estimate *n = &t->noise;
    const double given = (double)knobs_samples(&t->base);
    char text[NOISE_TEXT_BYTES];
    if (!(t->request.allow >> ALLOW_BATCH & 1))
        return 0;
    struct err why = {0};
    const double all_s = 1e-9 * (double)t->request.time_ns;
    int rc = lab_noise(t->lab, NOISE_STEPS, NOISE_SHARE * all_s, n, &why);
    if (rc == ERR_STOPPED)
        return err_set(e, rc, "%s", why.text);
    if (rc != 0) { // the recipe does not run as it is, but other settings may
        t->request.critical_samples = given;
        log_put(t->log, LOG_WARN, "%s; larger batches are not tried", why.text);
        return 0;
    }
    log_put(t->log, LOG_INFO, "gradient noise scale: %s", noise_text(text, n));
    if (n->n < NOISE_LEAST) {
        t->request.critical_samples = given;
        log_put(t->log, LOG_WARN,
                "the noise scale needs %d steps, and only %lld fitted in 30 %% of the time; larger "
                "batches are not tried",
                NOISE_LEAST, (long long)n->n);
    }
    // The upper end of the interval: a batch is excluded only if it is surely too large.
    double most = isfinite(n->tokens_high) ? n->tokens_high : n->tokens;
    if (n->n >= NOISE_LEAST && most > 0 && n->tokens > 0)
        t->request.critical_samples = most / n->tokens * n->sequences;
    return 0;
}

int tuning_run(struct tuning *t, const struct tuning_options *o, struct err *e) {
    struct tune_lab lab = lab_table(t->lab);
    bool resumed;
    lab.heard_arg = t;
    lab.on_trial = on_trial;
    lab.on_stage = on_stage;
    TRY(history_open(&t->history, o->store, &t->base, &t->request, &resumed, e));
    if (resumed)
        log_put(t->log, LOG_INFO, "search %lld was not finished; continuing with its trials",
                (long long)t->history.id);
    TRY(find_critical_batch(t, e));
    const int rc = tune_run(&t->tune, &t->base, &t->request, &lab, e);
    if (t->log->live)
        log_live_end(t->log);
    if (t->tune.chosen >= 0)
        tuning_verdict(t);
    history_finish(&t->history, rc, t->sentences.lines);
    return rc;
}
