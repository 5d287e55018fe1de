// hybrid.c - see hybrid.h.
#include "api/hybrid.h"

#include "base/text.h"
#include "predict/predict.h"
#include "train/second.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

int hybrid_open(struct hybrid *h, const struct session *s, FILE *in, FILE *answers,
                const struct shard_listener *listener, struct err *e) {
    *h = (struct hybrid){0};
    if (s->knobs.goal != GOAL_HYBRID)
        return 0;
    const bool streams = in != NULL && answers != NULL;
    const struct session *who = s->second ? &s->second->session : s; // answers
    const struct requests_options o = {
        .request = {.knobs = &who->knobs,
                    .model_dir = who->from_folder ? who->knobs.model : NULL,
                    .vocab = who->shape.vocab,
                    .listener = *listener},
        .in = streams ? fileno(in) : -1,
        .out = streams ? fileno(answers) : -1};
    if (streams)
        fflush(answers); // what is written by descriptor comes after it
    TRY(requests_open(&h->requests, &o, e));
    h->source = requests_source(h->requests);
    return 0;
}

int hybrid_check(const struct hybrid *h, struct err *e) {
    return h->requests != NULL ? requests_check(h->requests, e) : 0;
}

void hybrid_close(struct hybrid *h) {
    requests_close(h->requests);
    *h = (struct hybrid){0};
}

void hybrid_set_options(const struct hybrid *h, struct trainer_options *o) {
    if (h->requests == NULL)
        return;
    o->guests = &h->source;
    o->guest_bytes = requests_plan_bytes(h->requests);
}

// ---------------------------------------------------------------- how long

static double segment_seconds(const struct program *p, int segment, const struct machine *m) {
    const struct hw_link none = {.name = "none", .bytes_per_s = 1e9, .latency_s = 1e-6};
    double seconds = 0;
    for (int i = 0; i < p->segments[segment].n_ops; i++)
        seconds += predict_op(p, &p->segments[segment].ops[i], &m->device, &none);
    return seconds;
}

// Of a turn, and of its longest stretch without a yield point. Segments are few, entries many.
static double turn_seconds(const struct program *p, const struct machine *m, double *stretch) {
    enum { SEGMENTS = 16 };
    double by_segment[SEGMENTS], all = 0, since = 0;
    *stretch = 0;
    for (int i = 0; i < p->n_segments && i < SEGMENTS; i++)
        by_segment[i] = segment_seconds(p, i, m);
    for (int i = 0; i < p->n_order; i++) {
        const int segment = p->order[i].segment;
        const double seconds =
            segment < SEGMENTS ? by_segment[segment] : segment_seconds(p, segment, m);
        if (program_yields_at(p, p->order, i))
            since = 0;
        all += seconds;
        since += seconds;
        *stretch = since > *stretch ? since : *stretch;
    }
    return all;
}

void hybrid_predict(struct hybrid *h, const struct session *s, const struct machine *m) {
    double stretch, own;
    if (h->requests == NULL || m->device.matmul_flops <= 0)
        return;
    const double step = turn_seconds(s->programs[SESSION_TRAIN], m, &stretch);
    if (session_wants_device(&s->knobs)) // the next micro-batch has been sent before anybody looks
        stretch = fmin(2 * stretch, step);
    if (s->second) {
        const struct session *who = &s->second->session;
        h->evaluate_s = stretch + turn_seconds(who->programs[SESSION_EVAL], m, &own);
        h->train_s = stretch + turn_seconds(who->programs[SESSION_TRAIN], m, &own);
        return;
    }
    h->evaluate_s = stretch + turn_seconds(s->programs[SESSION_INTERACTIVE_EVAL], m, &own);
    h->train_s = step + turn_seconds(s->programs[SESSION_INTERACTIVE_TRAIN], m, &own);
}

void hybrid_print_plan(const struct hybrid *h, const struct session *s, FILE *f) {
    const struct knobs *k = &s->knobs;
    char a[TEXT_UNIT_BYTES], b[TEXT_UNIT_BYTES], c[TEXT_UNIT_BYTES];
    if (h->requests == NULL)
        return;
    fprintf(f, "requests %s%s%s, up to %" PRId64 " x %" PRId64 " tokens each",
            k->interactive_stdin ? "standard input" : "",
            k->interactive_stdin && k->interactive_socket[0] ? " and " : "",
            k->interactive_socket[0] ? k->interactive_socket
            : !k->interactive_stdin  ? "from nowhere (interactive.stdin, interactive.socket)"
                                     : "",
            k->interactive_micro,
            s->second ? s->second->session.knobs.seq : knobs_interactive_seq(k));
    if (s->second)
        fprintf(f, " to the second model (%s)", k->interactive_recipe);
    if (h->evaluate_s > 0)
        fprintf(f, "; answered after at most %s (evaluate), %s (train) by the roofline",
                text_duration(a, h->evaluate_s), text_duration(b, h->train_s));
    if (k->interactive_respond > 0)
        fprintf(f, "; budget %s", text_duration(c, 1e-9 * (double)k->interactive_respond));
    fprintf(f, "\n");
}

const char *hybrid_warning(const struct hybrid *h, const struct knobs *k,
                           char out[HYBRID_TEXT_BYTES]) {
    const double budget_s = 1e-9 * (double)k->interactive_respond;
    char a[TEXT_UNIT_BYTES], b[TEXT_UNIT_BYTES];
    out[0] = '\0';
    if (h->requests == NULL || budget_s <= 0)
        return out;
    if (h->evaluate_s > budget_s) {
        // The stretch grows with the micro-batch, the request's own turn does not: a first guess.
        const double fits = (double)k->batch_micro * budget_s / h->evaluate_s;
        snprintf(out, HYBRID_TEXT_BYTES,
                 "interactive.respond=%s: an evaluation may wait %s for the bulk's micro-batch; "
                 "batch.micro=%lld, with batch.accum raised so that the step stays the same, would "
                 "come near it",
                 text_duration(a, budget_s), text_duration(b, h->evaluate_s),
                 fits > 1 ? (long long)fits : 1);
    } else if (h->train_s > budget_s && k->interactive_recipe[0]) {
        snprintf(out, HYBRID_TEXT_BYTES,
                 "interactive.respond=%s: evaluations are predicted to keep it; a training sample "
                 "takes up to %s: a lower batch.micro, a lower interactive.seq or a smaller second "
                 "model shorten that",
                 text_duration(a, budget_s), text_duration(b, h->train_s));
    } else if (h->train_s > budget_s) {
        snprintf(out, HYBRID_TEXT_BYTES,
                 "interactive.respond=%s: evaluations are predicted to keep it; a training sample "
                 "waits for the end of the step, up to %s: fewer tokens per step shorten that",
                 text_duration(a, budget_s), text_duration(b, h->train_s));
    }
    return out;
}

void hybrid_put_plan_json(const struct hybrid *h, struct json_writer *w) {
    json_put_key(w, "requests");
    if (h->requests == NULL) {
        json_put_null(w);
        return;
    }
    json_put_object_begin(w);
    json_member_double(w, "evaluate_longest_ms", h->evaluate_s > 0 ? 1e3 * h->evaluate_s : NAN);
    json_member_double(w, "train_longest_ms", h->train_s > 0 ? 1e3 * h->train_s : NAN);
    json_put_object_end(w);
}

// ---------------------------------------------------------------- what came of it

static void print_figures(const struct guest_figures *x, const char *what, FILE *f) {
    char text[QUANTILE_TEXT_BYTES], worst[TEXT_UNIT_BYTES];
    if (x->answered == 0)
        return;
    fprintf(f, "          %s: %s\n", what, quantile_text(text, &x->p50));
    fprintf(f, "          %*s  %s\n", (int)strlen(what), "", quantile_text(text, &x->p95));
    fprintf(f, "          %*s  %s, worst %s\n", (int)strlen(what), "", quantile_text(text, &x->p99),
            text_duration(worst, 1e-9 * x->worst_ns));
}

void hybrid_print_result(const struct guest_report *g, const struct knobs *k, FILE *f) {
    char a[TEXT_UNIT_BYTES];
    if (!g->on)
        return;
    fprintf(f,
            "requests  %" PRIu64 " answered (%" PRIu64 " evaluated, %" PRIu64
            " trained), %s of the run's time\n",
            g->all.answered, g->kinds[GUEST_EVALUATE].answered, g->kinds[GUEST_TRAIN].answered,
            text_duration(a, 1e-9 * (double)g->run_ns));
    print_figures(&g->kinds[GUEST_EVALUATE], "evaluate", f);
    print_figures(&g->kinds[GUEST_TRAIN], "train", f);
    if (k->interactive_respond > 0 && g->all.answered > 0)
        fprintf(f, "          budget %s %s: %" PRIu64 " of %" PRIu64 " answers took longer\n",
                text_duration(a, 1e-9 * (double)k->interactive_respond),
                g->all.late > 0 ? "broken" : "kept", g->all.late, g->all.answered);
}

static void put_figures(struct json_writer *w, const char *key, const struct guest_figures *x) {
    const struct quantile *q[3] = {&x->p50, &x->p95, &x->p99};
    static const char *const names[3] = {"p50", "p95", "p99"};
    json_put_key(w, key);
    json_put_object_begin(w);
    json_member_i64(w, "answered", (int64_t)x->answered);
    json_member_i64(w, "n", (int64_t)x->p50.n); // the newest, that percentiles are of
    json_member_i64(w, "late", (int64_t)x->late);
    json_member_double(w, "worst_ms", 1e-6 * x->worst_ns);
    for (int i = 0; i < 3; i++) {
        char upper[16];
        snprintf(upper, sizeof upper, "%s_upper95", names[i]);
        json_member_double(w, names[i], 1e-6 * q[i]->value);
        json_member_double(w, upper, 1e-6 * q[i]->upper95);
    }
    json_put_object_end(w);
}

void hybrid_put_result_json(const struct hybrid *h, const struct guest_report *g,
                            const struct knobs *k, struct json_writer *w) {
    json_put_key(w, "requests");
    if (!g->on || h->requests == NULL) {
        json_put_null(w);
        return;
    }
    const struct requests_counts n = requests_counts(h->requests);
    const bool budget = k->interactive_respond > 0 && g->all.answered > 0;
    json_put_object_begin(w);
    json_member_i64(w, "lines", (int64_t)n.lines);
    json_member_i64(w, "refused", (int64_t)n.refused);
    json_member_i64(w, "unanswered", (int64_t)n.ended);
    json_member_i64(w, "clients", (int64_t)n.clients);
    json_member_i64(w, "turned_away", (int64_t)n.turned_away);
    json_member_i64(w, "updates", g->updates);
    json_member_double(w, "seconds", 1e-9 * (double)g->run_ns);
    json_member_double(w, "evaluate_longest_ms", h->evaluate_s > 0 ? 1e3 * h->evaluate_s : NAN);
    json_member_double(w, "train_longest_ms", h->train_s > 0 ? 1e3 * h->train_s : NAN);
    json_member_double(w, "budget_ms",
                       k->interactive_respond > 0 ? 1e-6 * (double)k->interactive_respond : NAN);
    json_put_key(w, "budget_kept");
    if (budget)
        json_put_bool(w, g->all.late == 0);
    else
        json_put_null(w);
    put_figures(w, "all_ms", &g->all); // from a request to its answer
    put_figures(w, "evaluate_ms", &g->kinds[GUEST_EVALUATE]);
    put_figures(w, "train_ms", &g->kinds[GUEST_TRAIN]);
    json_put_object_end(w);
}
