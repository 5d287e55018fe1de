// requests_print.c - see requests_print.h.
#include "report/requests_print.h"

#include "base/text.h"
#include "measure/sample.h"
#include "report/table.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

// ---------------------------------------------------------------- before the run

void requests_print_plan(const struct plan *p, const struct predicted_answers *a, FILE *f) {
    const struct knobs *k = &p->knobs;
    char text[TEXT_UNIT_BYTES], more[TEXT_UNIT_BYTES];
    fprintf(f, "requests %s%s%s, up to %" PRId64 " x %" PRId64 " tokens each",
            k->interactive_stdin ? "standard input" : "",
            k->interactive_stdin && k->interactive_socket[0] ? " and " : "",
            k->interactive_socket[0] ? k->interactive_socket
            : !k->interactive_stdin  ? "from nowhere (interactive.stdin, interactive.socket)"
                                     : "",
            k->interactive_micro, p->second ? p->second->knobs.seq : knobs_interactive_seq(k));
    if (p->second)
        fprintf(f, " to the second model (%s)", k->interactive_recipe);
    if (a->known)
        fprintf(f, "; typically answered within %s (evaluate), %s (train), predicted by %s",
                text_duration(text, a->evaluate_s), text_duration(more, a->train_s),
                a->calibrated ? "ops timed on this machine" : "the roofline");
    if (k->interactive_respond > 0)
        fprintf(f, "; budget %s", text_duration(text, 1e-9 * (double)k->interactive_respond));
    fprintf(f, "\n");
}

const char *requests_warning(const struct predicted_answers *p, const struct knobs *k,
                             char out[REQUESTS_TEXT_BYTES]) {
    const double budget_s = 1e-9 * (double)k->interactive_respond;
    char a[TEXT_UNIT_BYTES], b[TEXT_UNIT_BYTES];
    out[0] = '\0';
    if (!p->known || budget_s <= 0)
        return out;
    if (p->evaluate_s > budget_s) {
        // A first guess: the wait grows with the micro-batch, the time to compute the answer does
        // not.
        const double fits = (double)k->batch_micro * budget_s / p->evaluate_s;
        snprintf(out, REQUESTS_TEXT_BYTES,
                 "interactive.respond=%s: an evaluation may wait %s for a micro-batch to end; "
                 "try batch.micro=%lld, and raise batch.accum to keep the tokens per step",
                 text_duration(a, budget_s), text_duration(b, p->evaluate_s),
                 fits > 1 ? (long long)fits : 1);
    } else if (p->train_s > budget_s && k->interactive_recipe[0]) {
        snprintf(out, REQUESTS_TEXT_BYTES,
                 "interactive.respond=%s: evaluations are predicted to keep it; a training sample "
                 "takes up to %s: a lower batch.micro, a lower interactive.seq or a smaller second "
                 "model shorten that",
                 text_duration(a, budget_s), text_duration(b, p->train_s));
    } else if (p->train_s > budget_s) {
        snprintf(out, REQUESTS_TEXT_BYTES,
                 "interactive.respond=%s: evaluations are predicted to keep it; a training sample "
                 "waits for the end of the step, up to %s: fewer tokens per step shorten that",
                 text_duration(a, budget_s), text_duration(b, p->train_s));
    }
    return out;
}

static void put_typical(const struct predicted_answers *a, struct json_writer *w) {
    json_member_double(w, "evaluate_typical_ms", a->known ? 1e3 * a->evaluate_s : NAN);
    json_member_double(w, "train_typical_ms", a->known ? 1e3 * a->train_s : NAN);
}

void requests_put_plan_json(const struct predicted_answers *a, struct json_writer *w) {
    if (!table_member_object(w, "requests", a != NULL))
        return;
    put_typical(a, w);
    json_put_object_end(w);
}

// ---------------------------------------------------------------- after the run

static void print_figures(const struct guest_figures *x, const char *what, FILE *f) {
    char text[QUANTILE_TEXT_BYTES], worst[TEXT_UNIT_BYTES], gap[TEXT_UNIT_BYTES];
    if (x->answered == 0)
        return;
    fprintf(f, "          %s: %s\n", what, quantile_text(text, &x->p50));
    fprintf(f, "          %*s  %s\n", (int)strlen(what), "", quantile_text(text, &x->p95));
    fprintf(f, "          %*s  %s, worst %s\n", (int)strlen(what), "", quantile_text(text, &x->p99),
            text_duration(worst, 1e-9 * x->worst_ns));
    fprintf(f, "          %*s  longest time to the next yield point %s, longest computation %s\n",
            (int)strlen(what), "", text_duration(gap, 1e-9 * (double)x->gap_ns),
            text_duration(worst, 1e-9 * (double)x->run_ns));
}

void requests_print_result(const struct guest_report *g, const struct knobs *k, FILE *f) {
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
    json_member_object(w, key);
    json_member_i64(w, "answered", (int64_t)x->answered);
    json_member_i64(w, "n", (int64_t)x->p50.n); // the newest ones, in the percentiles
    json_member_i64(w, "late", (int64_t)x->late);
    json_member_double(w, "worst_ms", x->worst_ns / 1e6);
    for (int i = 0; i < 3; i++) {
        char upper[16];
        snprintf(upper, sizeof upper, "%s_upper95", names[i]);
        json_member_double(w, names[i], q[i]->value / 1e6);
        json_member_double(w, upper, q[i]->upper95 / 1e6);
    }
    json_member_double(w, "longest_gap_ms", (double)x->gap_ns / 1e6);
    json_member_double(w, "longest_run_ms", (double)x->run_ns / 1e6);
    json_put_object_end(w);
}

void requests_put_result_json(const struct requests_counts *n, const struct predicted_answers *a,
                              const struct guest_report *g, const struct knobs *k,
                              struct json_writer *w) {
    if (!table_member_object(w, "requests", g->on && n != NULL))
        return;
    json_member_i64(w, "lines", (int64_t)n->lines);
    json_member_i64(w, "refused", (int64_t)n->refused);
    json_member_i64(w, "unanswered", (int64_t)n->ended);
    json_member_i64(w, "clients", (int64_t)n->clients);
    json_member_i64(w, "turned_away", (int64_t)n->turned_away);
    json_member_i64(w, "lost", (int64_t)n->lost);
    json_member_i64(w, "updates", g->updates);
    json_member_double(w, "seconds", (double)g->run_ns / 1e9);
    put_typical(a, w);
    json_member_double(w, "budget_ms",
                       k->interactive_respond > 0 ? 1e-6 * (double)k->interactive_respond : NAN);
    if (k->interactive_respond > 0 && g->all.answered > 0)
        json_member_bool(w, "budget_kept", g->all.late == 0);
    else
        json_member_null(w, "budget_kept");
    put_figures(w, "all_ms", &g->all); // time from a request to its answer
    put_figures(w, "evaluate_ms", &g->kinds[GUEST_EVALUATE]);
    put_figures(w, "train_ms", &g->kinds[GUEST_TRAIN]);
    json_put_object_end(w);
}
