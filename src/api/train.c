// train.c - haggle_train: plan, say so, train, say what came of it.
//
// The order is what a person needs: everything that can refuse a run happens before anything is
// written, the memory plan is on the screen before memory is taken, and the result is printed even
// when the run was stopped.
#include "api/hybrid.h"
#include "api/summary.h"
#include "api/watch.h"

#include "base/file.h"
#include "base/text.h"
#include "predict/fit.h"
#include "report/perfetto.h"
#include "train/checkpoint.h"
#include "train/trial.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// The sample after training is for looking at; a large model must not make the user wait for it.
static const double SAMPLE_BUDGET_S = 10;

struct train_call {
    struct call *call;
    struct knobs knobs; // with run.dir filled in
    FILE *in, *answers; // of a hybrid run
    struct session session;
    struct hybrid hybrid;
    struct trainer *trainer;
    struct watch watch;
    struct summary summary;
};

// ---------------------------------------------------------------- before

// A refusal for memory says what would fit: with this machine's rates where they are known.
static void add_advice(const struct train_call *t, struct err *e) {
    const bool gpu = session_wants_device(&t->knobs);
    struct hw_device device = fit_nominal_device(gpu);
    struct machine machine;
    struct fit fit;
    char text[FIT_SENTENCE_BYTES];
    if (machine_open(&machine, &t->knobs, MACHINE_KNOWN, NULL) == 0 &&
        machine.device.matmul_flops > 0)
        device = machine.device;
    if (fit_find(t->trainer, &device, &fit, NULL) != 0)
        return;
    const size_t at = strlen(e->text);
    snprintf(e->text + at, sizeof e->text - at, ". %s", fit_sentence(&fit, text));
}

static void print_plan(const struct train_call *t, FILE *f) {
    const struct knobs *k = &t->knobs;
    const struct session *s = &t->session;
    char flops[TEXT_UNIT_BYTES], step[TEXT_UNIT_BYTES], bytes[TEXT_UNIT_BYTES];
    plan_print_model(f, s);
    fprintf(f, "data     %s\n", dataset_describe(trainer_dataset(t->trainer)));
    fprintf(f,
            "step     batch.micro %" PRId64 " x batch.accum %" PRId64 " x seq %" PRId64
            " = %" PRId64 " tokens, %sFLOP; %" PRId64 " steps\n",
            k->batch_micro, k->batch_accum, k->seq, k->batch_micro * k->batch_accum * k->seq,
            text_count(flops, session_step_flops(s).model), k->steps);
    if (t->summary.predicted_step_s > 0)
        fprintf(f, "predict  %s per step %s\n", text_duration(step, t->summary.predicted_step_s),
                t->summary.calibrated ? "by ops timed on this machine"
                                      : "by the roofline of this machine");
    hybrid_print_plan(&t->hybrid, s, f);
    fprintf(f, "run      %s, %d thread%s", k->run_dir, machine_threads(k),
            machine_threads(k) == 1 ? "" : "s");
    if (k->save_every > 0 || k->save_last)
        fprintf(f, ", checkpoints of %s", text_bytes(bytes, checkpoint_estimate_bytes(s)));
    fprintf(f, "\n");
    plan_print_memory(f, s, trainer_trace_bytes(t->trainer), false);
    fflush(f);
}

// What a knob cannot do beside the others is said, when somebody gave it a value of their own.
static void say_idle_knobs(const struct knobs *k, struct log *log) {
    char value[KNOB_VALUE_BYTES], initial[KNOB_VALUE_BYTES];
    for (int i = 0; i < KNOB_COUNT; i++) {
        const char *why = knobs_idle(k, i);
        if (why && strcmp(knobs_value(k, i, value), knob_default(i, initial)) != 0)
            log_put(log, LOG_WARN, "%s=%s has no effect here: %s", knob_info(i)->name, value, why);
    }
}

// The trace is written when all is done: that it can be is found out before anything is.
static int check_trace(const struct knobs *k, struct err *e) {
    struct file_writer w;
    if (!k->log_trace[0])
        return 0;
    if (file_is_dir(k->log_trace))
        return err_set(e, ERR_IO, "log.trace: '%s' is a folder; a file is needed", k->log_trace);
    int rc = file_writer_begin(&w, k->log_trace, e);
    if (rc != 0)
        return err_context(e, "log.trace");
    file_writer_abort(&w);
    return 0;
}

static int predict_step(struct train_call *t, const struct machine *m, struct err *e) {
    struct predicted p;
    TRY(plan_predict(&t->session, m, NULL, &p, e));
    t->summary.predicted_step_s = p.seconds;
    t->summary.calibrated = p.calibrated;
    return 0;
}

static int prepare(struct train_call *t, struct err *e) {
    struct knobs *k = &t->knobs;
    struct machine machine;
    watch_init(&t->watch, k, &t->call->log);
    TRY(check_trace(k, e));
    TRY(plan_session(&t->session, k, e));
    const struct train_observer observer = watch_observer(&t->watch);
    const struct shard_listener listener = {
        .arg = observer.arg, .say = observer.on_message, .progress = observer.on_progress};
    TRY(hybrid_open(&t->hybrid, &t->session, t->in, t->answers, &listener, e));
    TRY(hybrid_check(&t->hybrid, e));
    struct trainer_options o = {.observer = observer,
                                .stop = stop_flag(),
                                .trace_events = k->log_trace[0] ? PLAN_TRACE_EVENTS : 0};
    hybrid_set_options(&t->hybrid, &o);
    int rc = trainer_open(&t->trainer, &t->session, &o, e);
    log_live_end(&t->call->log); // of the data's progress
    TRY(rc);
    int fits = trainer_ready(t->trainer, e);
    if (fits != 0 && fits != ERR_MEMORY)
        return fits;
    TRY(machine_open(&machine, k, MACHINE_KNOWN, e));
    TRY(predict_step(t, &machine, e));
    hybrid_predict(&t->hybrid, &t->session, &machine);
    if (log_shows(&t->call->log, LOG_INFO))
        print_plan(t, t->call->log.stream);
    say_idle_knobs(k, &t->call->log);
    char warning[HYBRID_TEXT_BYTES];
    if (hybrid_warning(&t->hybrid, k, warning)[0])
        log_put(&t->call->log, LOG_WARN, "%s", warning);
    if (fits == ERR_MEMORY && t->session.backend)
        add_advice(t, e);
    return fits;
}

// ---------------------------------------------------------------- after

static int write_trace(const struct train_call *t, struct err *e) {
    const struct program *p = t->session.programs[SESSION_TRAIN];
    const char *names[64];
    int n = p->n_segments < 64 ? p->n_segments : 64;
    if (!t->knobs.log_trace[0])
        return 0;
    for (int i = 0; i < n; i++)
        names[i] = p->segments[i].name;
    TRY(perfetto_write(trainer_trace(t->trainer), t->knobs.log_trace, 0, names, n, e));
    log_put(&t->call->log, LOG_INFO, "trace of the last steps: %s (open it in ui.perfetto.dev)",
            t->knobs.log_trace);
    return 0;
}

static int make_sample(struct train_call *t, struct err *e) {
    struct sample *sample = &t->summary.sample;
    struct speech speech;
    int32_t *begin = NULL;
    size_t n = 0;
    if (!t->session.programs[SESSION_GENERATE])
        return 0;
    TRY(speech_open(&speech, &t->knobs, e));
    int rc = speech_prompt(&speech, NULL, &begin, &n, e);
    if (rc == 0)
        rc = sample_make(sample, &t->session, begin, n, t->knobs.generate_tokens,
                         renderer_end_of_text(speech.renderer), SAMPLE_BUDGET_S, e);
    if (rc == 0)
        rc = sample_spell(sample, speech.tokenizer, n, e);
    free(begin);
    speech_close(&speech);
    return rc;
}

// What two measurements of the same roof may differ by.
static const double ROOF_SLACK = 1.05;

static void utilize(struct summary *s) {
    struct run_metrics *m = &s->result.metrics;
    if (!(s->machine.peak_flops > 0 && m->steps > 0))
        return;
    double per_flop = (double)m->steps / (m->wall_s * s->machine.peak_flops);
    m->mfu = s->step_flops.model * per_flop;
    m->hfu = s->step_flops.hardware * per_flop;
}

// MFU and the verdict need this machine's rates. They are measured after the run's own memory has
// been recorded, and never when somebody waits for the process to end.
static int read_machine(struct train_call *t, bool ended_well, struct err *e) {
    struct summary *s = &t->summary;
    struct run_metrics *m = &s->result.metrics;
    enum machine_how how =
        ended_well ? machine_how_after(1e-9 * (double)s->result.wall_ns) : MACHINE_KNOWN;
    TRY(machine_open(&s->machine, &t->knobs, how, e));
    if (s->result.on_device && how == MACHINE_MEASURE)
        TRY(machine_measure_device(&s->machine, t->session.backend, session_real_type(&t->session),
                                   e));
    utilize(s);
    // A roof that a run passes was measured while others had the machine: again, or it is none.
    if (how == MACHINE_MEASURE && s->machine.cached && m->hfu > ROOF_SLACK) {
        TRY(machine_open(&s->machine, &t->knobs, MACHINE_FRESH, e));
        utilize(s);
    }
    s->past_roof = m->hfu > ROOF_SLACK;
    if (s->past_roof)
        m->mfu = m->hfu = NAN;
    if (s->machine.device.matmul_flops > 0 && s->predicted_step_s <= 0) // not known when it began
        TRY(predict_step(t, &s->machine, e));
    api_verdict(&s->verdict, m, &t->knobs, &s->cost, &s->machine);
    return 0;
}

// outcome: how it ended; code 0: well.
static void put_result(const struct train_call *t, const struct err *outcome,
                       struct json_writer *w) {
    call_put_head(w, "train", &t->knobs);
    plan_put_model_json(&t->session, w);
    summary_put_json(&t->summary, w);
    hybrid_put_result_json(&t->hybrid, &t->summary.result.guests, &t->knobs, w);
    if (outcome->code != 0)
        call_json_error(w, outcome->code, outcome->text);
    json_put_object_end(w);
}

// result.json stays beside the log, for the report. A run that had nothing left to train keeps the
// one that has figures.
static int save_result(const struct train_call *t, const struct err *outcome, struct err *e) {
    struct json_writer w;
    char path[PATH_MAX];
    TRY(file_join(path, sizeof path, t->knobs.run_dir, WATCH_RESULT, e));
    if (t->summary.result.steps_run == 0 && file_exists(path))
        return 0;
    json_writer_to_buffer(&w, 2);
    put_result(t, outcome, &w);
    int rc = json_writer_finish(&w, e);
    if (rc == 0) {
        w.buffer[w.bytes] = '\n'; // in place of the NUL
        rc = file_write_atomic(path, w.buffer, w.bytes + 1, e);
    }
    free(w.buffer);
    return rc;
}

static void deliver(struct train_call *t, const struct err *outcome) {
    struct call *c = t->call;
    struct err lost = {0};
    if (c->out)
        summary_print(&t->summary, c->out);
    // As with the log: a disk that is full is no reason to call a run failed.
    if (save_result(t, outcome, &lost) != 0)
        log_put(&c->log, LOG_WARN, "%s; the report of this run will lack its result", lost.text);
    if (c->wants_json)
        put_result(t, outcome, &c->json);
}

// ---------------------------------------------------------------- the verb

// Steps after the run do not depend on each other: the first failure is what is returned, others
// are said.
static void note(struct train_call *t, struct err *first, int rc, const struct err *why) {
    if (rc != 0 && first->code == 0)
        *first = *why;
    else if (rc != 0)
        log_put(&t->call->log, LOG_ERROR, "%s", why->text);
}

static int run(struct train_call *t, struct err *e) {
    struct summary *s = &t->summary;
    struct err why = {0};
    s->knobs = &t->knobs;
    s->step_flops = session_step_flops(&t->session);
    trial_step_cost(&t->session, &s->cost);
    int rc = trainer_run(t->trainer, &s->result, e);
    if (rc == 0)
        err_clear(e); // what follows tells by the code whether there is a failure already
    s->validation_first = t->watch.validation_first;
    s->validations = t->watch.validations;
    if (rc != 0 && rc != ERR_STOPPED && s->result.steps_run == 0)
        return rc; // refused: there is nothing to tell but why
    // From here on a failure must not hide how the run itself ended, nor lose its result. A run
    // that diverged is one whose trace somebody wants to see.
    note(t, e, write_trace(t, &why), &why);
    if (rc == 0)
        note(t, e, make_sample(t, &why), &why);
    note(t, e, read_machine(t, rc == 0, &why), &why);
    deliver(t, e);
    return e->code;
}

int haggle_train(const struct haggle_config *config, const struct haggle_sink *sink,
                 struct haggle_error *e) {
    struct call c;
    struct train_call t = {.call = &c, .knobs = config->knobs};
    if (sink) {
        t.in = sink->in;
        t.answers = sink->answers;
    }
    call_begin(&c, sink);
    int rc = knobs_name_run(&t.knobs, config->recipe[0] ? config->recipe : NULL, &c.err);
    if (rc == 0)
        rc = prepare(&t, &c.err);
    if (rc == 0)
        rc = run(&t, &c.err);
    int closed = watch_close(&t.watch, rc == 0 ? &c.err : NULL);
    rc = rc != 0 ? rc : closed;
    sample_free(&t.summary.sample);
    trainer_close(t.trainer);
    hybrid_close(&t.hybrid);
    session_close(&t.session);
    return call_end(&c, rc, e);
}
