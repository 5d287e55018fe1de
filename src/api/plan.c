// plan.c - a session before it runs, in words and in JSON: model, memory by class, predicted time.
#include "api/api.h"

#include "base/file.h"
#include "base/text.h"
#include "predict/predict.h"
#include "program/print.h"
#include "train/second.h"

#include <inttypes.h>
#include <string.h>

int plan_session(struct session *s, const struct knobs *k, struct err *e) {
    struct session_options o = {.knobs = k, .real = DTYPE_F32};
    struct model_shape shape;
    struct knobs second;
    bool from_folder = false;
    memset(s, 0, sizeof *s); // session_close is safe whatever happens here
    TRY(model_shape_open(&shape, k->model, &from_folder, e));
    o.has[SESSION_TRAIN] = true;
    o.has[SESSION_EVAL] = k->eval_every > 0;
    if (second_wanted(k)) {
        TRY(second_knobs(k, &second, e));
        o.second = &second;
    } else {
        o.has[SESSION_INTERACTIVE_EVAL] = o.has[SESSION_INTERACTIVE_TRAIN] = k->goal == GOAL_HYBRID;
    }
    if (k->generate_tokens > 0) {
        // The sample begins with one token, as documents do, and must leave room for it.
        int64_t length = k->generate_tokens + 1;
        o.has[SESSION_GENERATE] = true;
        o.generate_batch = 1;
        o.generate_seq = length < shape.max_positions ? length : shape.max_positions;
    }
    return session_plan(s, &o, e);
}

// ---------------------------------------------------------------- words

static const char *family_text(enum model_family f) {
    static const char *const names[FAMILY_COUNT] = {
#define X(name, type, arch) type,
        MODEL_FAMILY_LIST(X)
#undef X
    };
    return (int)f >= 0 && f < FAMILY_COUNT ? names[f] : "unknown";
}

static void print_model(FILE *f, const char *head, const struct session *s) {
    const struct model_shape *m = &s->shape;
    char count[TEXT_UNIT_BYTES];
    fprintf(f,
            "%-8s %s: %s parameters (%s), %" PRId64 " layers, width %" PRId64 ", %" PRId64
            " heads, vocabulary %" PRId64 ", %s\n",
            head, m->name, text_count(count, (double)model_total_elements(m)),
            family_text(m->family), m->layers, m->width, m->heads, m->vocab,
            s->from_folder ? "weights from its folder" : "random weights");
}

void plan_print_model(FILE *f, const struct session *s) {
    print_model(f, "model", s);
    if (s->second)
        print_model(f, "second", &s->second->session);
}

void plan_own_bytes(const struct session *s, uint64_t by_class[CLASS_COUNT]) {
    const struct program *p = NULL;
    memcpy(by_class, s->layout.by_class, CLASS_COUNT * sizeof *by_class);
    for (int i = 0; i < SESSION_PROGRAMS; i++)
        if (s->programs[i] && s->index[i] == s->layout.neediest)
            p = s->programs[i];
    // Persistent tensors never share: only the transient ones are counted anew.
    for (int c = 0; p && c < CLASS_COUNT; c++)
        by_class[c] -= p->peak_by_class[c] + (p->yields ? p->held_by_class[c] : 0);
    for (int i = 0; p && i < p->n_tensors; i++) {
        const struct tensor *t = &p->tensors[i];
        if (t->root < 0 && t->life != LIFE_RUN) // a view has no bytes of its own
            by_class[t->cls] += t->bytes * (uint64_t)t->slots;
    }
}

// Tensors share bytes over time: what a class takes at the peak may be a part of what it is.
static void print_classes_twice(FILE *f, const struct session *s) {
    const struct layout *l = &s->layout;
    uint64_t own[CLASS_COUNT];
    char a[TEXT_UNIT_BYTES], b[TEXT_UNIT_BYTES];
    plan_own_bytes(s, own);
    fprintf(f, "  %-14s %12s %12s   all tensors of the class; they share bytes over time\n", "",
            "then", "in all");
    for (int c = 0; c < CLASS_COUNT; c++)
        if (l->by_class[c] || own[c])
            fprintf(f, "  %-14s %12s %12s\n", tensor_class_name((enum tensor_class)c),
                    text_bytes(a, l->by_class[c]), text_bytes(b, own[c]));
    fprintf(f, "  %-14s %12s %12s   alignment and holes\n", "slack", text_bytes(a, l->slack_bytes),
            "");
    fprintf(f, "  %-14s %12s %12s   (%" PRIu64 " bytes)\n", "arena", text_bytes(a, l->arena_bytes),
            "", l->arena_bytes);
    program_print_held(l, f, "             ");
}

// In one line: the arena of the second model, and what it is made of.
static void print_second(FILE *f, const struct session *s, const char *gap) {
    char a[TEXT_UNIT_BYTES];
    if (!s->second)
        return;
    const struct layout *l = &s->second->session.layout;
    const char *comma = "   ";
    fprintf(f, "  %-14s %12s%s", "second model", text_bytes(a, l->arena_bytes), gap);
    for (int c = 0; c < CLASS_COUNT; c++)
        if (l->by_class[c]) {
            fprintf(f, "%s%s %s", comma, tensor_class_name((enum tensor_class)c),
                    text_bytes(a, l->by_class[c]));
            comma = ", ";
        }
    fprintf(f, "%sslack %s (%" PRIu64 " bytes)\n", comma, text_bytes(a, l->slack_bytes),
            l->arena_bytes);
}

void plan_print_memory(FILE *f, const struct session *s, uint64_t trace_bytes, bool own) {
    char a[TEXT_UNIT_BYTES], b[TEXT_UNIT_BYTES];
    const char *gap = own ? "             " : ""; // the second column
    bool device = session_wants_device(&s->knobs);
    // The arenas of a device are checked there, when it is open.
    uint64_t total = session_predicted_bytes(s) - (device ? session_arena_bytes(s) : 0);
    uint64_t limit =
        s->knobs.memory && !device ? s->knobs.memory : mem_machine_available_bytes() / 20 * 19;
    fprintf(f, "memory at the fullest moment of a step\n");
    if (own)
        print_classes_twice(f, s);
    else
        program_print_layout(&s->layout, f);
    print_second(f, s, gap);
    fprintf(f, "  %-14s %12s%s   batches made ahead%s\n", "loader",
            text_bytes(a, s->loader_bytes - trace_bytes), gap,
            s->knobs.data_ram > 0 ? ", sequences kept (data.ram)" : "");
    if (trace_bytes > 0)
        fprintf(f, "  %-14s %12s%s   events of log.trace\n", "trace", text_bytes(a, trace_bytes),
                gap);
    if (s->saving_bytes > 0)
        fprintf(f, "  %-14s %12s%s   a checkpoint's buffer\n", "saving",
                text_bytes(a, s->saving_bytes), gap);
    if (s->guest_bytes > 0)
        fprintf(f, "  %-14s %12s%s   requests that wait, and what they are read into\n", "requests",
                text_bytes(a, s->guest_bytes), gap);
    fprintf(f, "  %-14s %12s%s   this program itself, %s libraries%s\n", "process",
            text_bytes(a, s->process_bytes), gap, s->backend ? "its" : "before",
            s->backend ? " and what kernels work in" : "");
    fprintf(f, "  %-14s %12s%s   of %s%s%s%s\n", device ? "host" : "total", text_bytes(a, total),
            gap, s->knobs.memory && !device ? "the budget memory=" : "", text_bytes(b, limit),
            s->knobs.memory && !device ? "" : " available (a twentieth left to others)",
            total > limit ? ": too much"
            : !device     ? ""
            : s->second   ? "; the arenas are on the device"
                          : "; the arena is on the device");
}

static void put_model(const struct session *s, const char *key, struct json_writer *w) {
    const struct model_shape *m = &s->shape;
    json_put_key(w, key);
    json_put_object_begin(w);
    json_member_string(w, "name", m->name);
    json_member_string(w, "family", family_text(m->family));
    json_member_i64(w, "parameters", model_total_elements(m));
    json_member_bool(w, "from_folder", s->from_folder);
    json_member_i64(w, "vocab", m->vocab);
    json_member_i64(w, "width", m->width);
    json_member_i64(w, "layers", m->layers);
    json_member_i64(w, "heads", m->heads);
    json_member_i64(w, "kv_heads", m->kv_heads);
    json_member_i64(w, "head_dim", m->head_dim);
    json_member_i64(w, "ffn", m->ffn);
    json_member_i64(w, "max_positions", m->max_positions);
    json_member_bool(w, "tied", m->tied);
    json_put_object_end(w);
}

void plan_put_model_json(const struct session *s, struct json_writer *w) {
    put_model(s, "model", w);
    if (s->second)
        put_model(&s->second->session, "second_model", w);
}

// ---------------------------------------------------------------- figures

static int predict_roofline(const struct session *s, const struct machine *m, struct predicted *out,
                            struct err *e) {
    struct prediction p = {0};
    struct hw_link none = {.name = "none", .bytes_per_s = 1e9, .latency_s = 1e-6}; // one rank
    memset(out, 0, sizeof *out);
    if (!(m->device.matmul_flops > 0))
        return 0;
    TRY(predict_programs(&s->programs[SESSION_TRAIN], 1, &m->device, &none, &p, e));
    out->seconds = p.seconds;
    for (int c = 0; c < CAT_COUNT; c++)
        out->part_s[time_part_of((enum op_category)c)] += p.ranks[0].category_s[c];
    out->share[COST_ROOFLINE] = 1;
    prediction_free(&p);
    return 0;
}

int plan_predict(const struct session *s, const struct machine *m, struct predictor *p,
                 struct predicted *out, struct err *e) {
    struct predictor *own = NULL;
    int rc = p ? 0 : predictor_open(&own, NULL, e);
    if (rc == 0)
        rc = predictor_step(p ? p : own, s, out, e);
    predictor_close(own);
    TRY(rc);
    return out->calibrated ? 0 : predict_roofline(s, m, out, e);
}

static double share(double part, double of) {
    return of > 0 ? part / of : 0;
}

void api_verdict(struct verdict *out, const struct run_metrics *m, const struct knobs *k,
                 const struct step_cost *cost, const struct machine *machine) {
    const struct op_cost *matmul = &cost->all[CAT_MATMUL], *other = &cost->all[CAT_OTHER];
    const double samples = (double)k->steps * (double)k->batch_micro * (double)k->batch_accum;
    struct verdict_facts facts = {
        .threads = machine_threads(k),
        .cpus = machine->hw.usable_cpus,
        .batch_micro = k->batch_micro,
        .micro_batches = k->batch_accum,
        .seq = k->seq,
        .logits_of_matmul = share(cost->logits[CAT_MATMUL].flops, matmul->flops),
        .logits_of_other = share(cost->logits[CAT_OTHER].bytes, other->bytes),
        .logits_chunk = k->logits_chunk,
        .data_workers = (int)k->data_workers,
        .data_prefetch = (int)k->data_prefetch,
        .data_make_ns = m->data.make_ns,
        .data_source_wait_ns = m->data.source_wait_ns,
        .data_repeats = m->data.windows > 0 && samples > (double)m->data.windows &&
                        m->data.cache_windows < m->data.windows,
        .ranks = 1};
    double steps = (double)m->split.steps;
    double matmul_s = 1e-9 * (double)m->split.ns[TIME_MATMUL];
    double other_s = 1e-9 * (double)m->split.ns[TIME_OTHER];
    if (matmul_s > 0)
        facts.matmul_flops_per_s = matmul->flops * steps / matmul_s;
    if (other_s > 0)
        facts.other_bytes_per_s = other->bytes * steps / other_s;
    facts.matmul_flops_per_byte = share(matmul->flops, matmul->bytes);
    // The predictor's stand-in for a rate that was not measured is none to judge by.
    facts.best_matmul_flops_per_s =
        machine->has_rates
            ? hw_rates_products(&machine->rates, k->precision == PRECISION_BF16   ? DTYPE_BF16
                                                 : k->precision == PRECISION_FP16 ? DTYPE_F16
                                                                                  : DTYPE_F32)
            : machine->device.matmul_flops;
    facts.best_bytes_per_s = machine->device.memory_bytes_per_s;
    verdict_of(out, &m->split, &facts);
}
