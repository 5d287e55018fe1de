// plan.c - haggle_plan: what to run on hardware that is not here, and predictions for tables of
// runs.
#include "api/api.h"

#include "base/text.h"
#include "planner/rows.h"
#include "planner/search.h"
#include "report/planner_print.h"

#include <stdlib.h>
#include <string.h>

static int named(const char *flag, const char *text, const char *const *names, int n, int *out,
                 struct err *e) {
    char list[256] = "";
    size_t used = 0;
    for (int i = 0; i < n; i++) {
        if (strcmp(text, names[i]) == 0) {
            *out = i;
            return 0;
        }
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", names[i]);
    }
    return err_set(e, ERR_USAGE, "--%s=%.60s is not accepted; accepted: %s", flag, text, list);
}

static int open_catalog(struct hardware *h, const struct haggle_plan *o, struct err *e) {
    TRY(hardware_open(h, e));
    return o->hardware ? hardware_read_file(h, o->hardware, e) : 0;
}

// ---------------------------------------------------------------- a table of runs

static int plan_rows(struct call *c, const struct haggle_plan *o, const struct hardware *h,
                     struct err *e) {
    struct rows rows;
    struct rows_counts n = {0};
    const struct planner_constants k = planner_constants_default();
    if (o->format != HAGGLE_CSV)
        return err_set(e, ERR_USAGE,
                       "--rows writes its table with predictions appended; accepted: "
                       "-o csv");
    int rc = rows_read_file(&rows, o->rows, e);
    if (rc == 0 && c->out)
        rc = rows_predict(&rows, h, &k, c->out, &n, e);
    if (rc == 0) {
        if (call_json_begin(c, "plan", NULL)) {
            json_member_i64(&c->json, "rows", n.rows);
            json_member_i64(&c->json, "usable", n.usable);
            json_member_i64(&c->json, "predicted", n.predicted);
            json_member_i64(&c->json, "usable_predicted", n.usable_predicted);
            json_put_object_end(&c->json);
        }
        log_put(&c->log, LOG_INFO, "%s", rows_rule);
        log_put(&c->log, LOG_INFO, "%d rows: %d usable, %d of them predicted; %d predicted in all",
                n.rows, n.usable, n.usable_predicted, n.predicted);
    }
    rows_free(&rows);
    return rc;
}

// ---------------------------------------------------------------- a question

static int read_question(struct call *c, const struct knobs *given, const struct haggle_plan *o,
                         const struct hardware *h, struct planner_question *q,
                         const struct planner_constants *k, struct err *e) {
    static const char *const goals[] = {"bulk", "interactive"};
    static const char *const methods[] = {"full", "lora"};
    const char *profiles[16];
    int goal = 0, method = 0, profile = 0;
    bool folder = false;
    uint64_t ns = 0;
    struct knobs knobs = *given;
    *q = (struct planner_question){
        .math = PLANNER_BF16, .constants = k, .tokens = o->tokens_per_step};
    if (!o->cluster)
        return err_set(e, ERR_USAGE,
                       "which hardware? accepted: --cluster 8xa100-80g, 16x8xh100-80g, "
                       "2xaws-p5, ...");
    TRY(cluster_parse(&q->cluster, h, o->cluster, e));
    if (o->goal && strcmp(o->goal, "hybrid") == 0)
        return err_set(e, ERR_UNSUPPORTED,
                       "--goal=hybrid is not planned yet; accepted: bulk, "
                       "interactive, one after the other");
    TRY(named("goal", o->goal ? o->goal : "bulk", goals, 2, &goal, e));
    if (o->method && strcmp(o->method, "qlora") == 0)
        return err_set(e, ERR_UNSUPPORTED,
                       "--method=qlora is not planned yet: haggle does not "
                       "train on quantized weights; accepted: full, lora");
    TRY(named("method", o->method ? o->method : "full", methods, 2, &method, e));
    for (size_t i = 0; i < planner_profile_count() && i < 16; i++)
        profiles[i] = planner_profile_at(i)->name;
    TRY(named("framework", o->framework ? o->framework : "haggle", profiles,
              (int)planner_profile_count(), &profile, e));
    if (o->p99)
        TRY(text_parse_duration_ns(o->p99, &ns, e) != 0 ? err_context(e, "--p99") : 0);
    q->p99_s = (double)ns * 1e-9;
    q->goal = (enum planner_goal)goal;
    q->method = method ? METHOD_LORA : METHOD_FULL;
    q->profile = planner_profile_at((size_t)profile);
    if (o->shape)
        TRY(planner_shape_parse(&q->shape, o->shape, e));
    else {
        TRY(call_find_model(c, &knobs, e));
        TRY(model_shape_open(&q->shape, knobs.model, &folder, e));
        snprintf(q->model, sizeof q->model, "%.*s", (int)sizeof q->model - 1, knobs.model);
    }
    if (knobs.by[KNOB_precision] != SET_BY_DEFAULT)
        q->math = knobs.precision == PRECISION_FP32   ? PLANNER_FP32
                  : knobs.precision == PRECISION_FP16 ? PLANNER_FP16
                                                      : PLANNER_BF16;
    else if (q->cluster.device.bf16 <= 0)
        q->math = q->cluster.device.half_tflops > 0 ? PLANNER_FP16 : PLANNER_FP32;
    enum { SEQ = 4096 };
    const int64_t longest = model_shape_longest(&q->shape);
    q->seq = knobs.by[KNOB_seq] != SET_BY_DEFAULT ? knobs.seq : longest < SEQ ? longest : SEQ;
    return q->seq <= longest
               ? 0
               : err_set(e, ERR_USAGE,
                         "seq=%lld is more than the %lld positions of "
                         "%s; accepted: 1 to %lld",
                         (long long)q->seq, (long long)longest, q->shape.name, (long long)longest);
}

static int look(struct planner_instead *x, const struct planner_question *q, struct err *e) {
    struct planner_answer a;
    const int rc = planner_search(&a, q, e);
    if (rc == 0) {
        x->least_bytes = a.least_bytes;
        if (a.n > 0)
            x->best = a.options[0];
    }
    planner_answer_free(&a);
    return rc;
}

// Other methods on these devices, and more of them.
enum { INSTEAD_MOST = 8 };
static int look_around(const struct planner_question *q, struct planner_instead *x, int *n,
                       struct err *e) {
    *n = 0;
    for (int m = 0; m < METHOD_COUNT; m++) {
        struct planner_question other = *q;
        if (m == (int)q->method)
            continue;
        other.method = (enum planner_method)m;
        x[*n] = (struct planner_instead){0};
        snprintf(x[*n].what, sizeof x->what, "%s on %s", planner_method_name(other.method),
                 q->cluster.text);
        TRY(look(&x[(*n)++], &other, e));
    }
    for (int more = 2; more <= 8; more *= 2) {
        struct planner_question other = *q;
        other.cluster.nodes *= more;
        other.cluster.usd_per_hour *= more;
        if (other.cluster.nodes > 1 && other.cluster.node_bytes_per_s <= 0)
            break;
        x[*n] = (struct planner_instead){0};
        snprintf(x[*n].what, sizeof x->what, "%s on %dx%dx%s", planner_method_name(q->method),
                 other.cluster.nodes, other.cluster.per_node, q->cluster.device.name);
        TRY(look(&x[(*n)++], &other, e));
        if (x[*n - 1].best.e.step_s > 0)
            break;
    }
    return 0;
}

static int pin(struct call *c, const struct planner_question *q, const struct planner_answer *a,
               const char *save, struct err *e) {
    struct knobs k;
    struct err why = {0};
    knobs_init(&k);
    const int rc = planner_pin(q, &a->options[a->chosen], &k, &why);
    if (rc != 0) {
        log_put(&c->log, LOG_WARN, "no recipe: %s", why.text);
        return save ? err_set(e, rc, "--save %s: %s", save, why.text) : 0;
    }
    if (c->out) {
        char value[KNOB_VALUE_BYTES];
        fprintf(c->out, "\nrecipe: haggle train");
        for (int i = 0; i < KNOB_COUNT; i++)
            if (k.by[i] == SET_BY_RECIPE)
                fprintf(c->out, " %s=%s", knob_info(i)->name, knobs_value(&k, i, value));
        fprintf(c->out, "\n");
    }
    if (cluster_devices(&q->cluster) > 1 && q->cluster.device.arch != ARCH_CPU)
        log_put(&c->log, LOG_INFO,
                "plan only: ranks of haggle run on CPUs today, several GPUs are "
                "not there yet");
    return save ? knobs_save_recipe(&k, save, e) : 0;
}

static int none_fits(const struct planner_question *q, const struct planner_answer *a,
                     struct err *e) {
    char text[160];
    if (a->n > 0)
        return err_set(e, ERR_MEMORY,
                       "no layout keeps --p99: at the upper end of its interval the fastest step "
                       "takes %.3g s (%s); accepted: a longer time, or fewer --tokens-per-step",
                       a->options[0].e.high_s, planner_layout_text(&a->options[0].setup, text));
    if (a->least_bytes > 0)
        return err_set(e, ERR_MEMORY,
                       "%s of %s does not fit %s: every layout needs at least %.1f GiB per device "
                       "of %g GiB",
                       planner_method_name(q->method), q->shape.name, q->cluster.text,
                       a->least_bytes / 1073741824.0, q->cluster.device.memory_gib);
    return err_set(e, ERR_USAGE,
                   "no layout divides %lld tokens per step over %d devices of %s; accepted: "
                   "--tokens-per-step a multiple of %lld",
                   (long long)a->tokens, cluster_devices(&q->cluster), q->cluster.text,
                   (long long)(q->seq * cluster_devices(&q->cluster)));
}

static int answer(struct call *c, const struct planner_question *q, const struct haggle_plan *o,
                  struct err *e) {
    struct planner_answer a;
    struct planner_instead instead[INSTEAD_MOST];
    int n = 0;
    const bool people = o->format == HAGGLE_MARKDOWN;
    int rc = planner_search(&a, q, e);
    if (rc == 0 && c->out && people)
        planner_print_cluster(q, c->out);
    if (rc == 0 && c->out && (a.n > 0 || !people)) {
        if (people)
            fputc('\n', c->out);
        rc = planner_print_options(q, &a, (enum table_format)o->format, o->explain || !people,
                                   c->out, e);
    }
    if (rc == 0 && c->out && people)
        planner_print_choice(q, &a, o->explain, c->out);
    if (rc == 0 && a.n == 0 && people) {
        rc = look_around(q, instead, &n, e);
        if (rc == 0 && c->out)
            planner_print_instead(instead, n, c->out);
    }
    if (rc == 0 && call_json_begin(c, "plan", NULL)) {
        planner_put_json(q, &a, &c->json);
        json_put_object_end(&c->json);
    }
    if (rc == 0)
        rc = a.chosen >= 0 ? (people ? pin(c, q, &a, o->save, e) : 0) : none_fits(q, &a, e);
    planner_answer_free(&a);
    return rc;
}

int haggle_plan(const struct haggle_config *config, const struct haggle_plan *o,
                const struct haggle_sink *sink, struct haggle_error *e) {
    struct call c;
    struct hardware h;
    struct planner_question q;
    const struct planner_constants k = planner_constants_default();
    call_begin(&c, sink);
    int rc = open_catalog(&h, o, &c.err);
    if (rc == 0 && o->format != HAGGLE_MARKDOWN && o->format != HAGGLE_CSV)
        rc = err_set(&c.err, ERR_USAGE,
                     "haggle plan writes md and csv; accepted: -o md, -o csv, or "
                     "--json FILE");
    if (rc == 0 && o->rows)
        rc = plan_rows(&c, o, &h, &c.err);
    else if (rc == 0 && (rc = read_question(&c, &config->knobs, o, &h, &q, &k, &c.err)) == 0)
        rc = answer(&c, &q, o, &c.err);
    hardware_free(&h);
    return call_end(&c, rc, e);
}
