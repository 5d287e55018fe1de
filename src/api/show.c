// show.c - haggle_show: the plan of a run, without running it.
#include "api/api.h"

#include "base/text.h"
#include "data/loader.h"
#include "predict/predict.h"
#include "program/print.h"

#include <inttypes.h>

// What the loader will take, from the knobs alone: the data itself need not be there yet.
static uint64_t loader_bytes(const struct knobs *k) {
    // Four int32 arrays per token (data/loader.h), prefetch + 1 batches.
    uint64_t rows = (uint64_t)k->batch_micro * (uint64_t)k->seq * (uint64_t)k->batch_accum;
    return 4 * sizeof(int32_t) * rows * ((uint64_t)k->data_prefetch + 1);
}

static int print_prediction(const struct session *s, const struct machine *m, FILE *f,
                            struct err *e) {
    struct prediction p = {0};
    struct hw_link none = {.name = "none", .bytes_per_s = 1e9, .latency_s = 1e-6};
    const struct program *train = s->programs[SESSION_TRAIN];
    TRY(predict_programs(&s->programs[SESSION_TRAIN], 1, &m->device, &none, &p, e));
    char step[TEXT_UNIT_BYTES], speed[TEXT_UNIT_BYTES];
    double tokens = (double)(train->batch * train->seq) * train->micro_batches;
    fprintf(f,
            "predicted step %s, %s tokens/s (roofline of this machine: %.0f GFLOP/s, %.0f GB/s, "
            "%.1f us per op)\n ",
            text_duration(step, p.seconds), text_count(speed, tokens / p.seconds),
            1e-9 * m->device.matmul_flops, 1e-9 * m->device.memory_bytes_per_s,
            1e6 * m->device.op_overhead_s);
    for (int c = 0; c < CAT_COUNT; c++)
        if (p.ranks[0].category_s[c] > 0)
            fprintf(f, " %s %.0f %%", op_category_name((enum op_category)c),
                    100 * p.ranks[0].category_s[c] / p.seconds);
    fprintf(f, "\n");
    prediction_free(&p);
    return 0;
}

static int print_plan(const struct session *s, const struct machine *m, FILE *f, bool full,
                      struct err *e) {
    const struct knobs *k = &s->knobs;
    struct print_options o = {.full = full, .tensors = full};
    char flops[TEXT_UNIT_BYTES];
    plan_print_model(f, s);
    fprintf(f,
            "step     batch.micro %" PRId64 " x batch.accum %" PRId64 " x seq %" PRId64
            " = %" PRId64 " tokens, %sFLOP\n",
            k->batch_micro, k->batch_accum, k->seq, k->batch_micro * k->batch_accum * k->seq,
            text_count(flops, session_step_flops(s)));
    for (int i = 0; i < SESSION_PROGRAMS; i++)
        if (s->programs[i]) {
            fprintf(f, "\n");
            TRY(program_print(s->programs[i], f, &o, e));
        }
    fprintf(f, "\n");
    plan_print_memory(f, s, loader_bytes(k));
    fprintf(f, "\n");
    return print_prediction(s, m, f, e);
}

static void put_plan(struct call *c, const struct session *s, const struct machine *m,
                     double seconds) {
    struct json_writer *w = &c->json;
    const struct knobs *k = &s->knobs;
    double tokens = (double)(k->batch_micro * k->batch_accum * k->seq);
    call_json_begin(c, "show", k);
    plan_put_model_json(s, w);
    machine_put_json(m, w);
    json_member_i64(w, "tokens_per_step", k->batch_micro * k->batch_accum * k->seq);
    json_member_double(w, "step_flops", session_step_flops(s));
    json_put_key(w, "layout");
    program_put_layout_json(&s->layout, w);
    json_member_i64(w, "loader_bytes", (int64_t)loader_bytes(k));
    json_put_key(w, "predicted");
    json_put_object_begin(w);
    json_member_double(w, "step_ms", 1e3 * seconds);
    json_member_double(w, "tokens_per_s", tokens / seconds);
    json_put_object_end(w);
    json_put_key(w, "programs");
    json_put_array_begin(w);
    for (int i = 0; i < SESSION_PROGRAMS; i++)
        if (s->programs[i])
            program_put_json(s->programs[i], w);
    json_put_array_end(w);
    json_put_object_end(w);
}

static int show(struct call *c, const struct knobs *k, bool full, struct err *e) {
    struct session s;
    struct machine m;
    double seconds = 0;
    int rc = plan_session(&s, k, e);
    if (rc == 0)
        rc = machine_open(&m, k, MACHINE_MEASURE, e);
    if (rc == 0)
        rc = plan_predict(&s, &m, &seconds, e);
    if (rc == 0 && c->out)
        rc = print_plan(&s, &m, c->out, full, e);
    if (rc == 0 && c->wants_json)
        put_plan(c, &s, &m, seconds);
    session_close(&s);
    return rc;
}

int haggle_show(const struct haggle_config *config, bool full, const struct haggle_sink *sink,
                struct haggle_error *e) {
    struct call c;
    call_begin(&c, sink);
    return call_end(&c, show(&c, &config->knobs, full, &c.err), e);
}
