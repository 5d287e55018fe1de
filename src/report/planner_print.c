// planner_print.c - see planner_print.h.
#include "report/planner_print.h"

#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double GIB = 1073741824.0;

const char *planner_layout_text(const struct planner_setup *s, char out[160]) {
    static const char *const recompute[] = {"none", "selective", "full"};
    char parts[80] = "";
    size_t n = 0;
    if (s->data > 1)
        n += (size_t)snprintf(parts + n, sizeof parts - n, "data %d", s->data);
    if (s->data > 1 && s->zero > 0)
        n += (size_t)snprintf(parts + n, sizeof parts - n, " (ZeRO %d)", s->zero);
    if (s->tensor > 1)
        n +=
            (size_t)snprintf(parts + n, sizeof parts - n, "%stensor %d", n ? " x " : "", s->tensor);
    if (s->pipe > 1)
        n += (size_t)snprintf(parts + n, sizeof parts - n, "%spipe %d", n ? " x " : "", s->pipe);
    snprintf(out, 160, "%s; micro %lld x %lld; recompute %s", n ? parts : "one device",
             (long long)s->micro, (long long)s->accum, recompute[s->recompute]);
    return out;
}

static double usd_per_million(const struct planner_question *q, const struct planner_option *o) {
    return q->cluster.usd_per_hour > 0
               ? q->cluster.usd_per_hour / 3600 / planner_tokens_per_s(o) * 1e6
               : NAN;
}

// Devices at the most that they may draw: a bound, not a measurement.
static double kwh_per_million(const struct planner_question *q, const struct planner_option *o) {
    const double watts = q->cluster.device.tdp_w * cluster_devices(&q->cluster);
    return watts > 0 ? watts / 3.6e6 / planner_tokens_per_s(o) * 1e6 : NAN;
}

void planner_print_cluster(const struct planner_question *q, FILE *f) {
    const struct cluster *c = &q->cluster;
    char count[TEXT_UNIT_BYTES];
    fprintf(f, "%s: %d node%s of %d x %s, %g GiB each, %g GB/s between them", c->text, c->nodes,
            c->nodes == 1 ? "" : "s", c->per_node, c->device.name, c->device.memory_gib,
            c->device.link_gbps);
    if (c->nodes > 1)
        fprintf(f, ", %g GB/s of network per node", c->node_bytes_per_s / 1e9);
    fprintf(f, "\n%s: %s parameters, %lld tokens per sequence, method %s, profile %s (%s)\n",
            q->shape.name, text_count(count, (double)model_total_elements(&q->shape)),
            (long long)q->seq, planner_method_name(q->method), q->profile->name,
            q->profile->repositories < 2
                ? "default constants: fewer than two repositories in the fit"
                : "fitted");
    if (c->usd_per_hour > 0)
        fprintf(f, "price: %g USD per hour (%s)\n", c->usd_per_hour, c->price);
}

#define OPTION_COLUMNS(X)                                                                          \
    X("layout", "layout", LEFT, table_text(t, planner_layout_text(&o->setup, text)))               \
    X("tokens/s", "tokens_per_s", RIGHT, table_significant(t, planner_tokens_per_s(o), 3))         \
    X("step s", "step_s", RIGHT, table_significant(t, o->e.step_s, 3))                             \
    X("from", "low_s", RIGHT, table_significant(t, o->e.low_s, 3))                                 \
    X("to", "high_s", RIGHT, table_significant(t, o->e.high_s, 3))                                 \
    X("micro-batch s", "micro_s", RIGHT, table_significant(t, o->e.micro_s, 3))                    \
    X("MFU", "mfu", RIGHT, table_share(t, planner_mfu(q, o), 1))                                   \
    X("GiB", "gib", RIGHT, table_real(t, o->e.bytes / GIB, 1))                                     \
    X("USD/M tokens", "usd_per_million", RIGHT, table_significant(t, usd_per_million(q, o), 3))    \
    X("kWh/M at most", "kwh_per_million_bound", RIGHT,                                             \
      table_significant(t, kwh_per_million(q, o), 3))                                              \
    X(NULL, "data", RIGHT, table_i64(t, o->setup.data))                                            \
    X(NULL, "tensor", RIGHT, table_i64(t, o->setup.tensor))                                        \
    X(NULL, "pipe", RIGHT, table_i64(t, o->setup.pipe))                                            \
    X(NULL, "zero", RIGHT, table_i64(t, o->setup.zero))                                            \
    X(NULL, "micro", RIGHT, table_i64(t, o->setup.micro))                                          \
    X(NULL, "accum", RIGHT, table_i64(t, o->setup.accum))                                          \
    X("", "late", LEFT, table_text(t, o->late ? "over --p99" : ""))

int planner_print_options(const struct planner_question *q, const struct planner_answer *a,
                          enum table_format format, bool all, FILE *f, struct err *e) {
    static const struct table_column columns[] = {OPTION_COLUMNS(TABLE_COLUMN)};
    struct table table, *const t = &table;
    char text[160];
    table_init(t, columns, sizeof columns / sizeof *columns, format,
               (struct table_style){.unknown = "?", .digits = 9});
    for (int i = 0; i < a->n && (all || i < PLANNER_SHOWN); i++) {
        const struct planner_option *o = &a->options[i];
        table_row(t);
        OPTION_COLUMNS(TABLE_CELL)
    }
    const int rc = table_print(t, f, e);
    table_free(t);
    if (rc == 0 && format == TABLE_MARKDOWN && !all && a->n > PLANNER_SHOWN)
        fprintf(f, "%d more fit (-o csv or --explain has all)\n", a->n - PLANNER_SHOWN);
    return rc;
}

static void print_work(const struct planner_option *o, FILE *f) {
    if (o->setup.pipe > 1)
        fprintf(f, "its busiest stage works %.3g s of a step and waits %.3g s for others\n",
                o->e.compute_s, o->e.bubble_s);
    else
        fprintf(f,
                "a step computes for %.3g s and communicates for %.3g s, side by side where it "
                "can\n",
                o->e.compute_s, o->e.comm_s);
}

static void print_memory(const struct planner_option *o, FILE *f) {
    double sum = 0;
    fprintf(f, "memory of its neediest rank (stage %d), modelled:", o->e.stage);
    for (int i = 0; i < CLASS_COUNT; i++)
        if (o->e.by_class[i] > 0.005 * GIB) {
            fprintf(f, " %s %.1f,", tensor_class_name((enum tensor_class)i),
                    o->e.by_class[i] / GIB);
            sum += o->e.by_class[i];
        }
    fprintf(f, " allocator and driver %.1f GiB\n", (o->e.bytes - sum) / GIB);
}

static void print_family(const struct planner_question *q, const struct planner_answer *a, int f,
                         FILE *out) {
    const struct planner_tried *t = &a->families[f];
    if (t->listed == 0)
        return;
    fprintf(out, "- %s (%d layout%s, %d ruled out by bounds): ",
            planner_family_name((enum planner_family)f), t->listed, t->listed == 1 ? "" : "s",
            t->bounded);
    if (t->best < 0) {
        if (t->least_bytes > 0)
            fprintf(out, "do not fit; at least %.1f GiB of %g\n", t->least_bytes / GIB,
                    q->cluster.device.memory_gib);
        else
            fprintf(out, "cannot divide this model\n");
        return;
    }
    const struct planner_option *o = &a->options[t->best], *c = &a->options[0];
    char text[160];
    if (t->best == 0)
        fprintf(out, "the choice\n");
    else if (q->goal == PLANNER_BULK)
        fprintf(out, "%.0f %% fewer tokens/s at best (%s)\n",
                100 * (1 - planner_tokens_per_s(o) / planner_tokens_per_s(c)),
                planner_layout_text(&o->setup, text));
    else
        fprintf(out, "a micro-batch takes %.2f times as long at best (%s)\n",
                o->e.micro_s / c->e.micro_s, planner_layout_text(&o->setup, text));
}

void planner_print_choice(const struct planner_question *q, const struct planner_answer *a,
                          bool explain, FILE *f) {
    char text[160];
    if (a->chosen >= 0) {
        const struct planner_option *o = &a->options[a->chosen];
        fprintf(f, "\nchoice for %s: %s\n", q->goal == PLANNER_BULK ? "bulk" : "interactive",
                planner_layout_text(&o->setup, text));
        fprintf(f,
                "%.0f tokens/s; a step of %lld tokens takes %.3g s, 80 %% interval %.3g to %.3g "
                "(modelled)\n",
                planner_tokens_per_s(o), (long long)a->tokens, o->e.step_s, o->e.low_s,
                o->e.high_s);
        print_work(o, f);
        print_memory(o, f);
    }
    if (!explain && a->chosen >= 0)
        return;
    fprintf(f, "\nwhy not the others:\n");
    for (int i = 0; i < LAYOUT_COUNT; i++)
        print_family(q, a, i, f);
}

void planner_print_instead(const struct planner_instead *x, int n, FILE *f) {
    char text[160];
    fprintf(f, "\nwhat would fit instead:\n");
    for (int i = 0; i < n; i++) {
        if (x[i].best.e.step_s > 0)
            fprintf(f, "- %s: %.0f tokens/s, %.1f GiB (%s)\n", x[i].what,
                    planner_tokens_per_s(&x[i].best), x[i].best.e.bytes / GIB,
                    planner_layout_text(&x[i].best.setup, text));
        else if (x[i].least_bytes > 0)
            fprintf(f, "- not %s: at least %.1f GiB per device\n", x[i].what,
                    x[i].least_bytes / GIB);
        else
            fprintf(f, "- not %s: it cannot divide this model\n", x[i].what);
    }
}

void planner_put_json(const struct planner_question *q, const struct planner_answer *a,
                      struct json_writer *w) {
    char text[160];
    json_member_string(w, "cluster", q->cluster.text);
    json_member_string(w, "device", q->cluster.device.name);
    json_member_string(w, "profile", q->profile->name);
    json_member_string(w, "method", planner_method_name(q->method));
    json_member_i64(w, "tokens_per_step", a->tokens);
    json_member_i64(w, "chosen", a->chosen);
    json_member_array(w, "layouts");
    for (int i = 0; i < a->n; i++) {
        const struct planner_option *o = &a->options[i];
        json_put_object_begin(w);
        json_member_string(w, "layout", planner_layout_text(&o->setup, text));
        json_member_string(w, "label", "modelled");
        json_member_i64(w, "data", o->setup.data);
        json_member_i64(w, "tensor", o->setup.tensor);
        json_member_i64(w, "pipe", o->setup.pipe);
        json_member_i64(w, "zero", o->setup.zero);
        json_member_i64(w, "micro", o->setup.micro);
        json_member_i64(w, "accum", o->setup.accum);
        json_member_double(w, "tokens_per_s", planner_tokens_per_s(o));
        json_member_double(w, "step_s", o->e.step_s);
        json_member_double(w, "low_s", o->e.low_s);
        json_member_double(w, "high_s", o->e.high_s);
        json_member_double(w, "micro_s", o->e.micro_s);
        json_member_double(w, "mfu", planner_mfu(q, o));
        json_member_double(w, "bytes", o->e.bytes);
        json_member_object(w, "bytes_by_class");
        for (int c = 0; c < CLASS_COUNT; c++)
            json_member_double(w, tensor_class_name((enum tensor_class)c), o->e.by_class[c]);
        json_put_object_end(w);
        json_put_object_end(w);
    }
    json_put_array_end(w);
}
