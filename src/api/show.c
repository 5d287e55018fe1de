// show.c - haggle_show: the plan of a run, without running it.
#include "api/hybrid.h"

#include "base/text.h"
#include "predict/predict.h"
#include "program/print.h"
#include "train/second.h"
#include "train/trainer.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

// One rank alone: nothing crosses a link, but the predictor wants one.
static struct hw_link no_link(void) {
    return (struct hw_link){.name = "none", .bytes_per_s = 1e9, .latency_s = 1e-6};
}

// What is known of times: from ops that were timed here, or by the roofline.
struct outlook {
    const struct machine *machine;
    struct predictor *predictor;
    struct predicted step;
};

static void print_prediction(const struct session *s, const struct outlook *o, FILE *f) {
    const struct program *train = s->programs[SESSION_TRAIN];
    const struct hw_device *d = &o->machine->device;
    const struct predicted *p = &o->step;
    char step[TEXT_UNIT_BYTES], speed[TEXT_UNIT_BYTES];
    double tokens = (double)(train->batch * train->seq) * train->micro_batches;
    if (!(p->seconds > 0)) {
        fprintf(f,
                "no predicted step: this machine has no device for device=%s, and none was timed\n",
                knob_info(KNOB_device)->choices[s->knobs.device]);
        return;
    }
    fprintf(f, "predicted step %s, %s tokens/s ", text_duration(step, p->seconds),
            text_count(speed, tokens / p->seconds));
    if (p->calibrated)
        fprintf(f,
                "(calibrated: %.0f %% of it from ops timed on this machine, %.0f %% from similar "
                "ones; within about %.0f %%)\n ",
                100 * p->share[COST_MEASURED], 100 * (1 - p->share[COST_MEASURED]),
                100 * p->spread);
    else
        fprintf(f, "(roofline of this machine: %.0f GFLOP/s, %.0f GB/s, %.1f us per op)\n ",
                1e-9 * d->matmul_flops, 1e-9 * d->memory_bytes_per_s, 1e6 * d->op_overhead_s);
    for (int i = 0; i < TIME_COUNT; i++)
        if (p->part_s[i] > 0)
            fprintf(f, " %s %.0f %%",
                    i == TIME_DATA_WAIT ? "data" : time_part_name((enum time_part)i),
                    100 * p->part_s[i] / p->seconds);
    fprintf(f, "\n");
}

static double op_seconds(const struct session *s, const struct outlook *o, const struct program *p,
                         const struct op *op) {
    struct hw_link none = no_link();
    return o->step.calibrated ? predictor_op(o->predictor, s, p, op)
                              : predict_op(p, op, &o->machine->device, &none);
}

// ---------------------------------------------------------------- a program, summed up by kind

struct kind_sum {
    int n;
    double flops, bytes, comm_bytes, seconds;
};

static void print_kind(FILE *f, const char *indent, const char *name, const struct kind_sum *k) {
    char flops[TEXT_UNIT_BYTES] = "", bytes[TEXT_UNIT_BYTES], time[TEXT_UNIT_BYTES];
    if (k->flops > 0)
        text_count(flops, k->flops);
    fprintf(f, "%s%-*s %5d %10s %12s %10s", indent, (int)(22 - strlen(indent)), name, k->n, flops,
            text_bytes(bytes, (uint64_t)k->bytes), text_duration(time, k->seconds));
    if (k->comm_bytes > 0)
        fprintf(f, "  sends %s", text_bytes(bytes, (uint64_t)k->comm_bytes));
    fprintf(f, "\n");
}

// Adds up a segment by kind of op; returns the sum of all.
static struct kind_sum sum_segment(const struct session *session, const struct program *p,
                                   const struct segment *s, const struct outlook *o,
                                   struct kind_sum kinds[OP_COUNT]) {
    struct kind_sum all = {0};
    memset(kinds, 0, OP_COUNT * sizeof *kinds);
    for (int i = 0; i < s->n_ops; i++) {
        struct op_cost c = op_cost_of(p, &s->ops[i]);
        double seconds = op_seconds(session, o, p, &s->ops[i]);
        struct kind_sum *to[2] = {&kinds[s->ops[i].kind], &all};
        for (int t = 0; t < 2; t++) {
            to[t]->n++;
            to[t]->flops += c.flops;
            to[t]->bytes += c.bytes;
            to[t]->comm_bytes += c.comm_bytes;
            to[t]->seconds += seconds;
        }
    }
    return all;
}

static void print_brief(const struct session *s, const struct program *p, const struct outlook *o,
                        bool by_kind, FILE *f) {
    fprintf(f, "program %s: %" PRId64 " x %" PRId64 " tokens x %d micro-batch%s\n", p->name,
            p->batch, p->seq, p->micro_batches, p->micro_batches > 1 ? "es" : "");
    fprintf(f, "  %-20s %5s %10s %12s %10s\n", "", "ops", "FLOP", "bytes moved", "predicted");
    // Segments in the order they first run; each with how often it does.
    for (int at = 0; at < p->n_order; at++) {
        int segment = p->order[at].segment, runs = 0;
        bool seen = false;
        for (int i = 0; i < p->n_order; i++) {
            runs += p->order[i].segment == segment;
            seen = seen || (i < at && p->order[i].segment == segment);
        }
        if (seen || p->segments[segment].n_ops == 0)
            continue;
        struct kind_sum kinds[OP_COUNT];
        struct kind_sum all = sum_segment(s, p, &p->segments[segment], o, kinds);
        char name[64];
        snprintf(name, sizeof name, "%d x %s", runs, p->segments[segment].name);
        print_kind(f, "  ", name, &all);
        for (int k = 0; by_kind && k < OP_COUNT; k++)
            if (kinds[k].n > 0 && kinds[k].n < all.n)
                print_kind(f, "    ", op_info((enum op_kind)k)->name, &kinds[k]);
    }
}

// ---------------------------------------------------------------- the whole plan

static int print_programs(const struct session *s, const struct outlook *look,
                          enum haggle_detail detail, FILE *f, struct err *e) {
    const struct print_options o = {.full = detail == HAGGLE_FULL,
                                    .tensors = detail == HAGGLE_FULL};
    for (int i = 0; i < SESSION_PROGRAMS; i++) {
        if (!s->programs[i])
            continue;
        fprintf(f, "\n");
        if (detail == HAGGLE_BRIEF)
            print_brief(s, s->programs[i], look, i == SESSION_TRAIN && !s->lent, f);
        else
            TRY(program_print(s->programs[i], f, &o, e));
    }
    return 0;
}

static int print_plan(const struct session *s, const struct hybrid *h, const struct outlook *look,
                      FILE *f, uint64_t trace_bytes, enum haggle_detail detail, struct err *e) {
    const struct knobs *k = &s->knobs;
    char flops[TEXT_UNIT_BYTES];
    plan_print_model(f, s);
    fprintf(f,
            "step     batch.micro %" PRId64 " x batch.accum %" PRId64 " x seq %" PRId64
            " = %" PRId64 " tokens, %sFLOP\n",
            k->batch_micro, k->batch_accum, k->seq, k->batch_micro * k->batch_accum * k->seq,
            text_count(flops, session_step_flops(s).model));
    hybrid_print_plan(h, s, f);
    TRY(print_programs(s, look, detail, f, e));
    if (s->second)
        TRY(print_programs(&s->second->session, look, detail, f, e));
    program_print_again(s->programs[SESSION_TRAIN], f);
    fprintf(f, "\n");
    plan_print_memory(f, s, trace_bytes, true);
    fprintf(f, "\n");
    print_prediction(s, look, f);
    return 0;
}

static void put_plan(struct call *c, const struct session *s, const struct hybrid *h,
                     const struct outlook *look, uint64_t trace_bytes) {
    struct json_writer *w = &c->json;
    const struct knobs *k = &s->knobs;
    double tokens = (double)(k->batch_micro * k->batch_accum * k->seq);
    uint64_t own[CLASS_COUNT];
    plan_own_bytes(s, own);
    call_json_begin(c, "show", k);
    plan_put_model_json(s, w);
    machine_put_json(look->machine, w);
    json_member_i64(w, "tokens_per_step", k->batch_micro * k->batch_accum * k->seq);
    json_member_double(w, "step_flops", session_step_flops(s).model);
    json_put_key(w, "layout");
    program_put_layout_json(&s->layout, w);
    program_put_again_json(s->programs[SESSION_TRAIN], w);
    json_put_key(w, "tensor_bytes"); // all of a class; layout has what is alive at the peak
    json_put_object_begin(w);
    for (int i = 0; i < CLASS_COUNT; i++)
        if (own[i] > 0)
            json_member_i64(w, tensor_class_name((enum tensor_class)i), (int64_t)own[i]);
    json_put_object_end(w);
    json_member_i64(w, "loader_bytes", (int64_t)(s->loader_bytes - trace_bytes));
    json_member_i64(w, "trace_bytes", (int64_t)trace_bytes);
    json_member_i64(w, "saving_bytes", (int64_t)s->saving_bytes);
    json_member_i64(w, "request_bytes", (int64_t)s->guest_bytes);
    if (s->second) {
        json_put_key(w, "second_layout");
        program_put_layout_json(&s->second->session.layout, w);
    }
    json_member_i64(w, "process_bytes", (int64_t)s->process_bytes);
    hybrid_put_plan_json(h, w);
    json_put_key(w, "predicted");
    json_put_object_begin(w);
    const double seconds = look->step.seconds > 0 ? look->step.seconds : NAN; // no such device here
    json_member_double(w, "step_ms", 1e3 * seconds);
    json_member_double(w, "tokens_per_s", tokens / seconds);
    json_member_bool(w, "calibrated", look->step.calibrated);
    json_member_double(w, "spread", look->step.calibrated ? look->step.spread : NAN);
    json_put_object_end(w);
    json_put_key(w, "programs");
    json_put_array_begin(w);
    for (int i = 0; i < SESSION_PROGRAMS; i++)
        if (s->programs[i])
            program_put_json(s->programs[i], w);
    for (int i = 0; s->second && i < SESSION_PROGRAMS; i++)
        if (s->second->session.programs[i])
            program_put_json(s->second->session.programs[i], w);
    json_put_array_end(w);
    json_put_object_end(w);
}

// The trainer knows what the data's buffers and the trace (returned) take. A plan can be shown
// without the data, too.
static uint64_t count_loader(struct call *c, struct session *s, const struct hybrid *h) {
    struct trainer_options o = {.trace_events = s->knobs.log_trace[0] ? PLAN_TRACE_EVENTS : 0};
    uint64_t trace_bytes = 0;
    struct trainer *t = NULL;
    struct err e = {0};
    hybrid_set_options(h, &o);
    if (trainer_open(&t, s, &o, &e) != 0)
        log_put(&c->log, LOG_WARN, "the data's buffers are not counted: %s", e.text);
    else
        trace_bytes = trainer_trace_bytes(t);
    trainer_close(t);
    if (s->process_bytes == 0)
        s->process_bytes = mem_process_rss_bytes();
    return trace_bytes;
}

static int show(struct call *c, const struct knobs *k, enum haggle_detail detail, struct err *e) {
    struct session s;
    struct machine m;
    struct outlook look = {.machine = &m};
    uint64_t trace_bytes = 0;
    struct hybrid h = {0};
    const struct shard_listener quiet = {0};
    int rc = plan_session(&s, k, e);
    if (rc == 0)
        rc = hybrid_open(&h, &s, NULL, NULL, &quiet, e);
    if (rc == 0) {
        trace_bytes = count_loader(c, &s, &h);
        rc = machine_open(&m, k, MACHINE_MEASURE, e);
    }
    if (rc == 0)
        rc = predictor_open(&look.predictor, NULL, e);
    if (rc == 0)
        rc = plan_predict(&s, &m, look.predictor, &look.step, e);
    if (rc == 0)
        hybrid_predict(&h, &s, &m);
    if (rc == 0 && c->out)
        rc = print_plan(&s, &h, &look, c->out, trace_bytes, detail, e);
    if (rc == 0 && c->wants_json)
        put_plan(c, &s, &h, &look, trace_bytes);
    predictor_close(look.predictor);
    hybrid_close(&h);
    session_close(&s);
    return rc;
}

int haggle_show(const struct haggle_config *config, enum haggle_detail detail,
                const struct haggle_sink *sink, struct haggle_error *e) {
    struct call c;
    call_begin(&c, sink);
    return call_end(&c, show(&c, &config->knobs, detail, &c.err), e);
}
