// plan_print.c - see plan_print.h.
#include "report/plan_print.h"

#include "base/text.h"
#include "predict/predict.h"
#include "program/print.h"
#include "report/ranks_print.h"
#include "report/requests_print.h"
#include "train/buffers.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

// ---------------------------------------------------------------- words

static const char *family_text(enum model_family f) {
    static const char *const names[FAMILY_COUNT] = {
#define X(name, type, arch) type,
        MODEL_FAMILY_LIST(X)
#undef X
    };
    return (int)f >= 0 && f < FAMILY_COUNT ? names[f] : "unknown";
}

// "trains   an adapter of rank 8 on all, alpha 16, and lm_head: 1.20M parameters (0.96 %)"
static void print_trained(FILE *f, const struct plan *p) {
    const struct knobs *k = &p->knobs;
    const int64_t trained = plan_trained_elements(p), all = model_total_elements(&p->shape);
    char count[TEXT_UNIT_BYTES];
    if (p->adapter.rank == 0 && !k->train_freeze[0])
        return;
    fprintf(f, "trains   ");
    if (p->adapter.rank > 0)
        fprintf(f, "an adapter of rank %" PRId64 " on %s, %salpha %g, dropout %g%s%s", k->lora_rank,
                k->lora_targets[0] ? k->lora_targets : "all", k->lora_rslora ? "rslora, " : "",
                k->lora_alpha, k->lora_dropout, k->train_also[0] ? ", and " : "", k->train_also);
    fprintf(f, "%s%s%s: %s parameters (%.3g %%)\n",
            p->adapter.rank > 0 && k->train_freeze[0] ? ", " : "",
            k->train_freeze[0] ? "without " : "", k->train_freeze,
            text_count(count, (double)trained), 100.0 * (double)trained / (double)all);
}

static void print_model(FILE *f, const char *head, const struct plan *p) {
    const struct model_shape *m = &p->shape;
    char count[TEXT_UNIT_BYTES];
    fprintf(f,
            "%-8s %s: %s parameters (%s), %" PRId64 " layers, width %" PRId64 ", %" PRId64
            " heads, vocabulary %" PRId64 ", %s\n",
            head, m->name, text_count(count, (double)model_total_elements(m)),
            family_text(m->family), m->layers, m->width, m->heads, m->vocab,
            p->from_folder ? "weights from its folder" : "random weights");
    print_trained(f, p);
}

void plan_print_model(FILE *f, const struct plan *p) {
    print_model(f, "model", p);
    if (p->second)
        print_model(f, "second", p->second);
}

// How many passes over the data the steps make. A pass reads each sequence once.
static void print_passes(FILE *f, const struct knobs *k, const struct dataset *data) {
    const uint64_t windows = dataset_windows(data, SPLIT_TRAIN);
    const int64_t per_step = knobs_samples(k);
    fprintf(f, "steps    %" PRId64 " x %" PRId64 " sequence%s", k->steps, per_step,
            per_step == 1 ? "" : "s");
    if (windows == DATASET_ENDLESS)
        fprintf(f, "; the built-in corpus never repeats\n");
    else
        fprintf(f,
                " = %.3g passes over the data (epochs); a pass is %" PRIu64
                " windows (sequences of %" PRId64 " tokens)\n",
                buffers_epochs(data, (uint64_t)k->steps * (uint64_t)per_step), windows, k->seq);
}

void plan_print_step(FILE *f, const struct plan *p, const struct dataset *data) {
    const struct knobs *k = &p->knobs;
    char flops[TEXT_UNIT_BYTES];
    if (data)
        fprintf(f, "data     %s\n", dataset_describe(data));
    fprintf(f,
            "step     batch.micro %" PRId64 " x batch.accum %" PRId64 " x seq %" PRId64
            " = %" PRId64 " tokens, %sFLOP\n",
            k->batch_micro, k->batch_accum, k->seq, knobs_samples(k) * k->seq,
            text_count(flops, p->flops.model));
    if (data)
        print_passes(f, k, data);
}

// Tensors share bytes over time, so a class may take fewer bytes at the peak than all its tensors.
static void print_classes_twice(FILE *f, const struct plan *p) {
    const struct layout *l = &p->layout;
    uint64_t own[CLASS_COUNT];
    char a[TEXT_UNIT_BYTES], b[TEXT_UNIT_BYTES];
    plan_own_bytes(p, own);
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

// One line: the second model's arena, and its bytes by class.
static void print_second(FILE *f, const struct plan *p, const char *gap) {
    char a[TEXT_UNIT_BYTES];
    if (!p->second)
        return;
    const struct layout *l = &p->second->layout;
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

static void print_part(FILE *f, const char *name, uint64_t bytes, const char *gap,
                       const char *what) {
    char text[TEXT_UNIT_BYTES];
    if (bytes > 0)
        fprintf(f, "  %-14s %12s%s   %s\n", name, text_bytes(text, bytes), gap, what);
}

// "total  38.06 MiB   of 21.45 GiB, what the machine has left (5 % kept free)"
static void print_sum(FILE *f, const char *name, uint64_t bytes, const char *gap,
                      const struct plan_check *c) {
    const struct plan_room *room = &c->room;
    char a[TEXT_UNIT_BYTES], b[TEXT_UNIT_BYTES];
    fprintf(f, "  %-14s %12s%s", name, text_bytes(a, bytes), gap);
    if (room->is)
        fprintf(f, "   of %s, %s%s%s", text_bytes(b, room->bytes), room->is,
                room->spared ? " (5 % kept free)" : "", bytes > room->bytes ? ": too much" : "");
    else
        fprintf(f, "   (the memory of the device is not known here)");
    if (c->missing && !(room->is && bytes > room->bytes))
        fprintf(f, "; at least, because %s not known", c->missing);
    fprintf(f, "\n");
}

void plan_print_memory(FILE *f, const struct plan *p, const struct plan_check *c, bool own) {
    static const char *const process[] = {
        [PLAN_UNKNOWN] = "this program itself, before libraries",
        [PLAN_STORED] = "this program itself, its libraries and what kernels work in (measured by "
                        "an earlier run)",
        [PLAN_MEASURED] = "this program itself, its libraries and what kernels work in",
    };
    const char *gap = own ? "             " : ""; // the second column
    fprintf(f, "memory at the fullest moment of a %s\n",
            plan_program(p, PLAN_TRAIN) ? "step" : "turn");
    if (own)
        print_classes_twice(f, p);
    else
        program_print_layout(&p->layout, f);
    print_second(f, p, gap);
    print_part(f, "loader", p->host.loader, gap,
               p->knobs.data_ram > 0 ? "batches made ahead, sequences kept (data.ram)"
                                     : "batches made ahead");
    print_part(f, "trace", p->host.trace, gap, "events of log.trace");
    print_part(f, "saving", p->host.saving, gap, "a checkpoint's buffer");
    print_part(f, "requests", p->host.requests, gap,
               "requests that wait, and what they are read into");
    print_part(f, "texts", p->host.texts, gap, "texts that are generated, choosing their tokens");
    print_part(f, "process", p->process_bytes, gap, process[p->process_how]);
    if (c->on_device)
        print_part(f, "host", plan_total_bytes(p) - plan_arena_bytes(p), gap,
                   "beside the device's memory");
    print_sum(f, c->on_device ? "on the device" : "total", plan_need_bytes(p, c->on_device), gap,
              c);
    if (c->on_device)
        print_part(f, "beside it", c->room.taken_bytes, gap,
                   "taken on the device before: CUDA's context, libraries, other programs");
}

static void put_model(const struct plan *p, const char *key, struct json_writer *w) {
    const struct model_shape *m = &p->shape;
    json_member_object(w, key);
    json_member_string(w, "name", m->name);
    json_member_string(w, "family", family_text(m->family));
    json_member_i64(w, "parameters", model_total_elements(m));
    json_member_i64(w, "trained_parameters", plan_trained_elements(p));
    json_member_bool(w, "from_folder", p->from_folder);
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

void plan_put_model_json(const struct plan *p, struct json_writer *w) {
    put_model(p, "model", w);
    if (p->second)
        put_model(p->second, "second_model", w);
}

// ---------------------------------------------------------------- predicted

static void print_prediction(const struct plan_view *v, FILE *f) {
    const struct program *train = plan_program(v->plan, PLAN_TRAIN);
    const struct predicted *p = &v->step;
    char step[TEXT_UNIT_BYTES], low[TEXT_UNIT_BYTES], high[TEXT_UNIT_BYTES], speed[TEXT_UNIT_BYTES],
        text[PREDICTED_TEXT_BYTES];
    double tokens = (double)(train->batch * train->seq) * train->micro_batches;
    if (!p->known && train->world > 1) {
        fprintf(f, "no predicted step: how long ranks wait for each other is not predicted\n");
        return;
    }
    if (!p->known) {
        fprintf(f,
                "no predicted step: this machine has no device=%s, and its ops were never timed\n",
                knob_choice(KNOB_device, (int)v->plan->knobs.device));
        return;
    }
    fprintf(f, "predicted step %s (%s to %s), %s tokens/s: %s\n ", text_duration(step, p->seconds),
            text_duration(low, p->low_s), text_duration(high, p->high_s),
            text_count(speed, tokens / p->seconds), predicted_text(text, p));
    if (p->from == FROM_ROOFLINE)
        fprintf(f, " %.0f GFLOP/s, %.0f GB/s, %.1f us per op:", 1e-9 * v->roof->matmul_flops,
                1e-9 * v->roof->memory_bytes_per_s, 1e6 * v->roof->op_overhead_s);
    for (int i = 0; i < TIME_COUNT; i++)
        if (p->part_s[i] > 0)
            fprintf(f, " %s %.0f %%",
                    i == TIME_DATA_WAIT ? "data" : time_part_name((enum time_part)i),
                    100 * p->part_s[i] / p->seconds);
    if (p->from == FROM_SETTING)
        fprintf(f, "; its ops would add up to %s", text_duration(step, p->ops_s));
    fprintf(f, "\n");
}

// ---------------------------------------------------------------- a program, summed by kind of op

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
static struct kind_sum sum_segment(const struct plan_view *v, const struct plan *plan,
                                   const struct program *p, const struct segment *s,
                                   struct kind_sum kinds[OP_COUNT]) {
    struct kind_sum all = {0};
    memset(kinds, 0, OP_COUNT * sizeof *kinds);
    for (int i = 0; i < s->n_ops; i++) {
        struct op_cost c = op_cost_of(p, &s->ops[i]);
        double seconds = predictor_op(v->predictor, plan, p, &s->ops[i]);
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

static void print_brief(const struct plan_view *v, const struct plan *plan, const struct program *p,
                        bool by_kind, FILE *f) {
    fprintf(f, "program %s: %" PRId64 " x %" PRId64 " tokens x %d micro-batch%s\n", p->name,
            p->batch, p->seq, p->micro_batches, p->micro_batches > 1 ? "es" : "");
    fprintf(f, "  %-20s %5s %10s %12s %10s\n", "", "ops", "FLOP", "bytes moved", "predicted");
    // Segments in the order in which they first run, each with its number of runs.
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
        struct kind_sum all = sum_segment(v, plan, p, &p->segments[segment], kinds);
        char name[64];
        snprintf(name, sizeof name, "%d x %s", runs, p->segments[segment].name);
        print_kind(f, "  ", name, &all);
        for (int k = 0; by_kind && k < OP_COUNT; k++)
            if (kinds[k].n > 0 && kinds[k].n < all.n)
                print_kind(f, "    ", op_info((enum op_kind)k)->name, &kinds[k]);
    }
}

// ---------------------------------------------------------------- the whole plan

static int print_programs(const struct plan_view *v, const struct plan *p, enum plan_detail detail,
                          FILE *f, struct err *e) {
    const struct print_options o = {.full = detail == PLAN_FULL, .tensors = detail == PLAN_FULL};
    const struct program *train = plan_program(v->plan, PLAN_TRAIN);
    for (int i = 0; i < p->n_programs; i++) {
        fprintf(f, "\n");
        if (detail == PLAN_BRIEF)
            print_brief(v, p, p->programs[i], p->programs[i] == train, f);
        else
            TRY(program_print(p->programs[i], f, &o, e));
    }
    return 0;
}

int plan_print(const struct plan_view *v, enum plan_detail detail, FILE *f, struct err *e) {
    const struct plan *p = v->plan;
    plan_print_model(f, p);
    plan_print_step(f, p, v->data);
    ranks_print_plan(f, p, NULL);
    ranks_print_bytes(f, p);
    if (v->answers)
        requests_print_plan(p, v->answers, f);
    TRY(print_programs(v, p, detail, f, e));
    if (p->second)
        TRY(print_programs(v, p->second, detail, f, e));
    program_print_again(plan_program(p, PLAN_TRAIN), f);
    fprintf(f, "\n");
    plan_print_memory(f, p, &v->check, true);
    fprintf(f, "\n");
    print_prediction(v, f);
    return 0;
}

// ---------------------------------------------------------------- JSON

static void put_programs(const struct plan *p, struct json_writer *w) {
    for (int i = 0; i < p->n_programs; i++)
        program_put_json(p->programs[i], w);
    if (p->second)
        put_programs(p->second, w);
}

static void put_check(const struct plan *p, const struct plan_check *c, struct json_writer *w) {
    const uint64_t need = plan_need_bytes(p, c->on_device);
    json_member_i64(w, "need_bytes", (int64_t)need);
    json_member_bool(w, "need_whole", c->missing == NULL); // false: at least need_bytes
    if (c->room.is) {
        json_member_i64(w, "have_bytes", (int64_t)c->room.bytes);
        json_member_string(w, "have_is", c->room.is);
        if (c->on_device)
            json_member_i64(w, "device_taken_bytes", (int64_t)c->room.taken_bytes);
    } else {
        json_member_null(w, "have_bytes");
        json_member_null(w, "have_is");
    }
    if (c->room.is && (c->missing == NULL || need > c->room.bytes))
        json_member_bool(w, "fits", need <= c->room.bytes);
    else
        json_member_null(w, "fits");
}

static void put_memory(const struct plan *p, struct json_writer *w) {
    static const char *const how[] = {
        [PLAN_UNKNOWN] = "unknown", [PLAN_STORED] = "stored", [PLAN_MEASURED] = "measured"};
    uint64_t own[CLASS_COUNT];
    plan_own_bytes(p, own);
    json_put_key(w, "layout");
    program_put_layout_json(&p->layout, w);
    program_put_again_json(plan_program(p, PLAN_TRAIN), w);
    json_member_object(w, "tensor_bytes"); // all tensors; "layout" has those alive at the peak
    for (int i = 0; i < CLASS_COUNT; i++)
        if (own[i] > 0)
            json_member_i64(w, tensor_class_name((enum tensor_class)i), (int64_t)own[i]);
    json_put_object_end(w);
    json_member_i64(w, "loader_bytes", (int64_t)p->host.loader);
    json_member_i64(w, "trace_bytes", (int64_t)p->host.trace);
    json_member_i64(w, "saving_bytes", (int64_t)p->host.saving);
    json_member_i64(w, "request_bytes", (int64_t)p->host.requests);
    json_member_i64(w, "text_bytes", (int64_t)p->host.texts);
    if (p->second) {
        json_put_key(w, "second_layout");
        program_put_layout_json(&p->second->layout, w);
    }
    json_member_i64(w, "process_bytes", (int64_t)p->process_bytes);
    json_member_string(w, "process_from", how[p->process_how]);
}

void plan_put_json(const struct plan_view *v, struct json_writer *w) {
    const struct knobs *k = &v->plan->knobs;
    const double tokens = (double)(knobs_samples(k) * k->seq);
    const double seconds = v->step.known ? v->step.seconds : NAN; // unknown without the device
    char text[PREDICTED_TEXT_BYTES];
    json_member_i64(w, "tokens_per_step", knobs_samples(k) * k->seq);
    json_member_double(w, "step_flops", v->plan->flops.model);
    json_member_i64(w, "steps", k->steps);
    json_member_double(w, "epochs", // null: the data never repeats, or is not known
                       v->data ? buffers_epochs(v->data, (uint64_t)(k->steps * knobs_samples(k)))
                               : NAN);
    ranks_put_plan_json(v->plan, w);
    put_memory(v->plan, w);
    put_check(v->plan, &v->check, w);
    requests_put_plan_json(v->answers, w);
    json_member_object(w, "predicted");
    json_member_double(w, "step_ms", 1e3 * seconds);
    json_member_double(w, "step_ms_low", v->step.known ? 1e3 * v->step.low_s : NAN);
    json_member_double(w, "step_ms_high", v->step.known ? 1e3 * v->step.high_s : NAN);
    json_member_double(w, "tokens_per_s", tokens / seconds);
    json_member_string(w, "from", v->step.known ? predicted_text(text, &v->step) : NULL);
    json_member_bool(w, "measured", v->step.from == FROM_SETTING);
    json_member_bool(w, "calibrated", v->step.calibrated);
    json_member_double(w, "spread", v->step.calibrated ? v->step.spread : NAN);
    json_put_object_end(w);
    json_member_array(w, "programs");
    put_programs(v->plan, w);
    json_put_array_end(w);
}
