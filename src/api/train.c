// train.c - haggle_train: plans, prints the plan, trains, prints the result.
//
// Everything that can refuse a run happens before any file is written. The memory plan is on the
// screen before memory is taken. The result is printed even when the run was stopped.
#include "api/api.h"

#include "base/file.h"
#include "base/text.h"
#include "report/perfetto.h"
#include "report/plan_print.h"
#include "report/ranks_print.h"
#include "report/requests_print.h"
#include "report/summary.h"
#include "report/table.h"
#include "report/watch.h"
#include "train/buffers.h"
#include "train/checkpoint.h"
#include "train/crew.h"
#include "train/sample.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// Limit for the text sample after training, so that a large model does not make the user wait.
static const double SAMPLE_BUDGET_S = 10;

struct train_call {
    struct call *call;
    struct knobs knobs;    // with run.dir filled in
    FILE *in, *answers_to; // requests and answers of a hybrid run
    struct crew *crew;     // the other ranks, as threads; NULL: there are none
    struct comm *comm;     // connects this rank with the others; NULL: one rank
    struct plan plan;
    struct engine *engine;
    struct requests *requests; // NULL: the run answers none
    struct guest_source source;
    struct predicted predicted; // the step, before the run
    struct predicted_answers answers;
    struct trainer *trainer;
    struct watch watch;
    struct summary summary;
    struct sample sample; // length 0: none
    bool planning;        // between stop_plan_begin and stop_plan_end
    bool met;             // the other ranks know whether this one has opened the data
};

// ---------------------------------------------------------------- before

static void print_plan(const struct train_call *t, FILE *f) {
    const struct knobs *k = &t->knobs;
    const struct plan *p = &t->plan;
    char step[TEXT_UNIT_BYTES], bytes[TEXT_UNIT_BYTES], every[KNOB_VALUE_BYTES];
    char low[TEXT_UNIT_BYTES], high[TEXT_UNIT_BYTES], text[PREDICTED_TEXT_BYTES];
    const struct predicted *s = &t->predicted;
    plan_print_model(f, p);
    plan_print_step(f, p, trainer_dataset(t->trainer));
    ranks_print_plan(f, p, t->crew ? "threads of this process" : "processes over MPI");
    if (s->known)
        fprintf(f, "predict  %s per step (%s to %s): %s\n", text_duration(step, s->seconds),
                text_duration(low, s->low_s), text_duration(high, s->high_s),
                predicted_text(text, s));
    if (t->requests)
        requests_print_plan(p, &t->answers, f);
    fprintf(f, "run      %s, %d thread%s", k->run_dir, machine_threads(k),
            machine_threads(k) == 1 ? "" : "s");
    if (knobs_saves(k))
        fprintf(f, ", checkpoints of %s", text_bytes(bytes, checkpoint_estimate_bytes(p)));
    if (k->save_every != 0)
        fprintf(f, " every %s%s", knobs_value(k, KNOB_save_every, every),
                k->save_every > 0 ? " steps" : "");
    fprintf(f, "\n");
    const struct plan_check check = {.on_device = engine_on_device(t->engine),
                                     .room = t->engine->room};
    plan_print_memory(f, p, &check, false);
    fflush(f);
}

// The trace is written at the end. Checks first that it can be.
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

// Predicts the step, and the answers to requests, from ops timed here or from the roofline of m.
static int predict(struct train_call *t, const struct machine *m, bool answers, struct err *e) {
    struct predictor *p = NULL;
    TRY(predictor_open(&p, NULL, e));
    predictor_set_roof(p, &m->device);
    int rc = predictor_step(p, &t->plan, &t->predicted, e);
    if (rc == 0 && answers)
        rc = predictor_answers(p, &t->plan, &t->answers, e);
    predictor_close(p);
    t->summary.predicted_step_s = t->predicted.known ? t->predicted.seconds : 0;
    return rc;
}

// Called when training starts: from then on a stop request saves before the run ends.
static void end_planning(void *arg) {
    struct train_call *t = arg;
    if (t->planning)
        stop_plan_end();
    t->planning = false;
}

static void write_follower_trace(void *arg, int rank, const struct trainer *t,
                                 const struct plan *p);

// The other ranks begin when the data is open.
static int start_followers(struct train_call *t, const struct trainer_options *o, struct err *e) {
    const struct crew_options follow = {.knobs = &t->knobs,
                                        .data = trainer_dataset(t->trainer),
                                        .stop = o->stop,
                                        .trace_events = o->trace_events,
                                        .on_end = o->trace_events ? write_follower_trace : NULL,
                                        .arg = t->knobs.log_trace};
    if (t->crew)
        TRY(crew_start(t->crew, &follow, e));
    t->met = true;
    return crew_data(t->comm, 0, e);
}

static int prepare(struct train_call *t, struct err *e) {
    struct knobs *k = &t->knobs;
    struct machine machine;
    watch_init(&t->watch, k, &t->call->log, end_planning, t);
    stop_plan_begin();
    t->planning = true;
    TRY(check_trace(k, e));
    ready_say_builtin(k, &t->call->log);
    TRY(plan_run(&t->plan, k, e));
    TRY(engine_open(&t->engine, &(struct engine_options){.comm = t->comm}, e));
    const struct train_observer observer = watch_observer(&t->watch);
    const struct shard_listener listener = {
        .arg = observer.arg, .say = observer.on_message, .progress = observer.on_progress};
    TRY(requests_of_plan(&t->requests, &t->plan, t->in, t->answers_to, &listener, e));
    if (t->requests)
        TRY(requests_check(t->requests, e));
    struct trainer_options o = {.observer = observer,
                                .stop = stop_flag(),
                                .trace_events = k->log_trace[0] ? API_TRACE_EVENTS : 0};
    if (t->requests) {
        t->source = requests_source(t->requests);
        o.guests = &t->source;
        o.guest_bytes = requests_plan_bytes(t->requests);
    }
    int rc = trainer_open(&t->trainer, &t->plan, t->engine, &o, e);
    log_live_end(&t->call->log); // the line that showed the data's progress
    TRY(rc);
    // Before the others begin: ranks that are threads would be measured with this one.
    int fits = ready_check(t->engine, &t->plan, e);
    TRY(start_followers(t, &o, e));
    k->steps = t->plan.knobs.steps; // epochs may have decided them
    k->epochs = t->plan.knobs.epochs;
    memcpy(k->by, t->plan.knobs.by, sizeof k->by);
    fits = crew_ready(t->comm, fits, t->trainer, t->engine, &t->plan, e);
    if (fits != 0 && fits != ERR_MEMORY)
        return fits;
    TRY(machine_open(&machine, k, MACHINE_KNOWN, e));
    if (!t->comm) // how long ranks wait for each other is not predicted
        TRY(predict(t, &machine, t->requests != NULL, e));
    if (log_shows(&t->call->log, LOG_INFO))
        print_plan(t, t->call->log.stream);
    ready_warn_idle(k, &t->call->log);
    char warning[REQUESTS_TEXT_BYTES];
    if (t->requests && requests_warning(&t->answers, k, warning)[0])
        log_put(&t->call->log, LOG_WARN, "%s", warning);
    if (fits == ERR_MEMORY)
        ready_advise(t->engine, &t->plan, trainer_buffers(t->trainer), e);
    return fits;
}

// ---------------------------------------------------------------- after

// The trace of one rank. Several ranks count their times from the same moment.
static int write_rank_trace(const struct trainer *trainer, const struct plan *plan,
                            const char *path, struct err *e) {
    const struct program *p = plan_program(plan, PLAN_TRAIN);
    const char *names[64];
    const bool several = p->world > 1;
    struct perfetto_rank r = {.rank = p->rank,
                              .origin_ns = several ? trainer_origin_ns(trainer) : 0,
                              .segment_names = names,
                              .n_segments = p->n_segments < 64 ? p->n_segments : 64};
    for (int i = 0; i < r.n_segments; i++)
        names[i] = p->segments[i].name;
    char label[1024] = "";
    FILE *f = fmemopen(label, sizeof label, "w");
    if (f) { // without it the trace lacks a line
        ranks_print_traffic(f, plan);
        fclose(f);
    }
    r.label = label;
    return perfetto_write(trainer_trace(trainer), path, &r, e);
}

// On a follower's thread. A file that could not be written is missed when the files are joined.
static void write_follower_trace(void *arg, int rank, const struct trainer *t,
                                 const struct plan *p) {
    const char *path = arg;
    char own[PATH_MAX];
    if (perfetto_rank_path(own, sizeof own, path, rank, NULL) == 0)
        (void)write_rank_trace(t, p, own, NULL);
}

// all: every rank has written its part.
static int write_trace(const struct train_call *t, bool all, struct err *e) {
    const char *path = t->knobs.log_trace;
    if (!path[0])
        return 0;
    TRY(write_rank_trace(t->trainer, &t->plan, path, e));
    if (all && t->comm)
        TRY(perfetto_join(path, t->comm->world, e));
    log_put(&t->call->log, LOG_INFO, "trace of the last steps: %s (open it in ui.perfetto.dev)",
            path);
    return 0;
}

static int make_sample(struct train_call *t, struct err *e) {
    struct sample *sample = &t->sample;
    struct speech speech;
    int32_t *begin = NULL;
    size_t n = 0;
    if (plan_extend_rows(&t->plan, (int64_t[PLAN_PROGRAMS_MOST]){0}) == 0)
        return 0;
    TRY(speech_open(&speech, &t->knobs, e));
    int rc = speech_prompt(&speech, NULL, &begin, &n, e);
    if (rc == 0)
        rc = sample_make(sample, t->engine->session, &speech, begin, n, t->knobs.generate_tokens,
                         SAMPLE_BUDGET_S, e);
    free(begin);
    speech_close(&speech);
    return rc;
}

// Fewer steps do not say how long a typical one takes.
enum { STEPS_TO_TEACH = 5 };

// Two measurements of the same roof (the machine's peak rate) may differ by this factor.
static const double ROOF_SLACK = 1.05;

static void utilize(struct summary *s) {
    struct run_metrics *m = &s->result.metrics;
    if (!(s->machine.peak_flops > 0 && m->steps > 0))
        return;
    // The machine's rate is that of one rank's threads.
    const double ranks = s->result.n_ranks > 1 ? s->result.n_ranks : 1,
                 threads = machine_threads(s->knobs), cpus = pool_machine_cpus(),
                 teams = ranks * threads <= cpus ? ranks : fmax(1, cpus / threads);
    double per_flop = (double)m->steps / (m->wall_s * s->machine.peak_flops * teams);
    m->mfu = s->step_flops.model * per_flop;
    m->hfu = s->step_flops.hardware * per_flop;
}

// The rates of what has computed: the device, where device=auto found one.
static int open_machine(struct train_call *t, struct knobs *k, enum machine_how how,
                        struct err *e) {
    struct summary *s = &t->summary;
    if (!s->result.on_device)
        k->device = DEVICE_CPU;
    TRY(machine_open(&s->machine, k, how, e));
    if (!s->result.on_device || how == MACHINE_KNOWN)
        return 0;
    return machine_measure_device(&s->machine, t->engine->backend, k, e);
}

// MFU and the verdict need this machine's rates. They are measured after the run's memory has been
// recorded, and not after a failure or a stop request, when the process should end soon.
static int read_machine(struct train_call *t, bool ended_well, struct err *e) {
    struct summary *s = &t->summary;
    struct run_metrics *m = &s->result.metrics;
    enum machine_how how = ended_well ? machine_how_after(1e-9 * (double)s->result.wall_ns,
                                                          s->result.on_device, *stop_flag())
                                      : MACHINE_KNOWN;
    struct knobs k = t->knobs;
    TRY(open_machine(t, &k, how, e));
    utilize(s);
    // A run faster than the roof: the roof was measured on a busy machine. Measure it again.
    if (how == MACHINE_MEASURE && s->machine.cached && m->hfu > ROOF_SLACK) {
        TRY(open_machine(t, &k, MACHINE_FRESH, e));
        utilize(s);
    }
    s->past_roof = m->hfu > ROOF_SLACK;
    if (s->past_roof)
        m->mfu = m->hfu = NAN;
    if (!t->comm && s->machine.device.matmul_flops > 0 && s->predicted_step_s <= 0)
        TRY(predict(t, &s->machine, false, e));
    verdict_run(&s->verdict, m, &k, &s->cost, &s->machine);
    return 0;
}

// The predictor of this machine remembers how long the steps took. Answers to requests lengthen
// steps, and ranks wait for each other, so such runs teach nothing. A failure is ignored: the
// tables are a cache.
static void teach(const struct train_call *t) {
    const struct samples *s = t->requests || t->comm ? NULL : t->watch.step_ns;
    struct predictor *p = NULL;
    const size_t n = s ? samples_count(s) : 0;
    double *step_ns = n >= STEPS_TO_TEACH ? malloc(n * sizeof *step_ns) : NULL;
    if (!step_ns)
        return;
    const struct observed seen = {step_ns, (int64_t)samples_copy(s, 0, step_ns),
                                  t->summary.result.metrics.split, false};
    if (predictor_open(&p, NULL, NULL) == 0 && predictor_observe(p, &t->plan, &seen, NULL) == 0)
        predictor_store(p, NULL);
    predictor_close(p);
    free(step_ns);
}

static void print_sample(const struct train_call *t, FILE *f) {
    const struct text_job *s = &t->sample.job;
    if (s->n_ids == 0)
        return;
    bool whole = s->n_ids >= t->knobs.generate_tokens || s->end == DECODER_ENDED;
    fprintf(f, "sample%s%s\n", whole ? "" : " (cut short)",
            s->text ? "" : " (ids, because the model has no tokenizer)");
    sample_print(s, true, f);
}

static void put_sample(const struct train_call *t, struct json_writer *w) {
    if (!table_member_object(w, "sample", t->sample.job.n_ids > 0))
        return;
    sample_put_json(&t->sample.job, w);
    json_put_object_end(w);
}

// outcome: how the run ended; code 0: without an error.
static void put_result(const struct train_call *t, const struct err *outcome,
                       struct json_writer *w) {
    call_put_head(w, "train", &t->knobs);
    plan_put_model_json(&t->plan, w);
    ranks_put_plan_json(&t->plan, w);
    summary_put_json(&t->summary, w);
    put_sample(t, w);
    const struct requests_counts n =
        t->requests ? requests_counts(t->requests) : (struct requests_counts){0};
    requests_put_result_json(t->requests ? &n : NULL, &t->answers, &t->summary.result.guests,
                             &t->knobs, w);
    if (outcome->code != 0)
        call_json_error(w, outcome->code, outcome->text);
    json_put_object_end(w);
}

// Writes result.json next to the log, for the report. A run that had nothing left to train keeps
// the earlier one, which has figures.
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
    if (c->out) {
        summary_print(&t->summary, c->out);
        ranks_print_traffic(c->out, &t->plan);
        print_sample(t, c->out);
    }
    // As with the log, a full disk does not make the run fail.
    if (save_result(t, outcome, &lost) != 0)
        log_put(&c->log, LOG_WARN, "%s; the report of this run will lack its result", lost.text);
    if (c->wants_json)
        put_result(t, outcome, &c->json);
}

// ---------------------------------------------------------------- the verb

// The work after the run goes on after a failure. The first failure is returned, later ones are
// logged.
static void note(struct train_call *t, struct err *first, int rc, const struct err *why) {
    if (rc != 0 && first->code == 0)
        *first = *why;
    else if (rc != 0)
        log_put(&t->call->log, LOG_ERROR, "%s", why->text);
}

// mpirun decides how many ranks there are.
static int take_started(struct knobs *k, const struct comm_started *by, struct err *e) {
    const int64_t asked = knobs_world(k), layer = k->parallel_tensor * k->parallel_pipe;
    char text[32];
    const bool open = k->ranks == 0 && k->parallel_data == 0;
    if (by->world > 1 && k->comm_engine == COMM_ENGINE_THREAD)
        return err_set(e, ERR_USAGE,
                       "comm.engine=thread: ranks are threads of one process, and %s has started "
                       "%d; accepted: comm.engine=mpi, or no %s",
                       by->by, by->world, by->by);
    if (open ? by->world % layer != 0 : asked != by->world)
        return err_set(e, ERR_USAGE,
                       "%s has started %d process%s, and the knobs ask for %s%lld ranks; accepted: "
                       "%s -n %lld, or other ranks and parallel.*",
                       by->by, by->world, by->world == 1 ? "" : "es", open ? "a multiple of " : "",
                       (long long)asked, by->by, (long long)asked);
    snprintf(text, sizeof text, "%d", by->world);
    return k->ranks == 0 ? knobs_set_at(k, KNOB_ranks, text, SET_BY_PLANNER, e) : 0;
}

static void say_lost(void *arg, const char *why) {
    const struct haggle_sink *sink = arg;
    struct haggle_error e = {.code = ERR_RANK};
    snprintf(e.text, sizeof e.text, "%s", why);
    sink->lost(&e);
}

static int open_ranks(struct train_call *t, const struct haggle_sink *sink, struct err *e) {
    struct knobs *k = &t->knobs;
    const struct comm_started by = comm_started();
    struct plan_split split;
    char text[32];
    const bool threads = by.world < 2 && (by.world == 0 || k->comm_engine == COMM_ENGINE_THREAD);
    if (!threads)
        TRY(take_started(k, &by, e));
    TRY(plan_split_of(k, &split, e));
    const int world = split.data * split.tensor * split.pipe;
    if (world == 1)
        return 0;
    if (threads && k->comm_engine == COMM_ENGINE_MPI)
        return err_set(e, ERR_USAGE,
                       "comm.engine=mpi: %d ranks are %d processes, and this is one; accepted: "
                       "mpirun -n %d, or comm.engine=thread",
                       world, world, world);
    // What was left to the number of ranks is decided now. Recipes and checkpoints then say it.
    snprintf(text, sizeof text, "%d", world);
    TRY(knobs_set_at(k, KNOB_ranks, text, SET_BY_PLANNER, e));
    snprintf(text, sizeof text, "%d", split.data);
    TRY(knobs_set_at(k, KNOB_parallel_data, text, SET_BY_PLANNER, e));
    if (!threads) {
        struct comm_lost lost = {0};
        if (sink && sink->lost)
            lost = (struct comm_lost){say_lost, (void *)(uintptr_t)sink};
        return crew_join(&t->comm, k, world, &lost, e);
    }
    TRY(crew_open(&t->crew, world, k->comm_timeout, e));
    t->comm = crew_leader(t->crew);
    return 0;
}

static int run(struct train_call *t, struct err *e) {
    struct summary *s = &t->summary;
    struct err why = {0};
    s->knobs = &t->knobs;
    s->step_flops = t->plan.flops;
    plan_step_cost(&t->plan, &s->cost);
    int rc = trainer_run(t->trainer, &s->result, e);
    if (rc == 0)
        err_clear(e); // note() looks at the code to see whether there is a failure already
    s->step_flops = s->result.flops; // of all ranks
    s->validation_first = t->watch.validation_first;
    s->validations = t->watch.validations;
    if (rc != 0 && rc != ERR_STOPPED && s->result.steps_run == 0)
        return rc; // refused: there is no result to deliver
    // From here on a failure must not hide how the run ended, nor lose its result. The trace is
    // written after a run that diverged too.
    const bool all = train_ended_together(rc, s->result.end) && crew_done(t->comm, NULL) == 0;
    note(t, e, write_trace(t, all, &why), &why);
    if (t->requests)
        note(t, e, requests_lost(t->requests, &why), &why);
    if (rc == 0)
        note(t, e, make_sample(t, &why), &why);
    note(t, e, read_machine(t, rc == 0, &why), &why);
    if (rc == 0)
        teach(t);
    deliver(t, e);
    return e->code;
}

// The run of a rank that is a process and not the first. It writes and prints nothing.
static int follow(struct train_call *t, struct err *e) {
    const struct crew_options o = {.knobs = &t->knobs,
                                   .stop = stop_flag(),
                                   .trace_events = t->knobs.log_trace[0] ? API_TRACE_EVENTS : 0,
                                   .on_end = t->knobs.log_trace[0] ? write_follower_trace : NULL,
                                   .arg = t->knobs.log_trace};
    const int rc = crew_follow(t->comm, &o, e);
    t->comm = NULL;
    return rc == ERR_STOPPED ? 0 : rc;
}

static int lead(struct train_call *t, struct err *e) {
    int rc = prepare(t, e);
    if (rc != 0 && t->comm && !t->crew && !t->met)
        (void)crew_data(t->comm, rc, NULL);
    return rc == 0 ? run(t, e) : rc;
}

// Before the memory of the engine, which other ranks may still read.
static void leave_ranks(struct train_call *t, bool failed, const char *why) {
    if (t->crew)
        crew_close(t->crew, failed, why);
    else
        crew_leave(t->comm, failed, why);
}

int haggle_train(const struct haggle_config *config, const struct haggle_sink *sink,
                 struct haggle_error *e) {
    struct call c;
    struct train_call t = {.call = &c, .knobs = config->knobs};
    if (sink) {
        t.in = sink->in;
        t.answers_to = sink->answers;
    }
    call_begin(&c, sink);
    int rc = knobs_name_run(&t.knobs, config->recipe[0] ? config->recipe : NULL, &c.err);
    if (rc == 0)
        rc = call_find_model(&c, &t.knobs, &c.err);
    if (rc == 0)
        rc = open_ranks(&t, sink, &c.err);
    const bool follows = t.comm && t.comm->rank > 0;
    if (rc == 0)
        rc = follows ? follow(&t, &c.err) : lead(&t, &c.err);
    leave_ranks(&t, !train_ended_together(rc, t.summary.result.end), c.err.text);
    end_planning(&t);
    int closed = watch_close(&t.watch, rc == 0 ? &c.err : NULL);
    rc = rc != 0 ? rc : closed;
    sample_free(&t.sample);
    trainer_close(t.trainer);
    requests_close(t.requests);
    engine_close(t.engine);
    plan_free(&t.plan);
    return call_end(&c, rc, e);
}
