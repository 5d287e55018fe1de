// guest.c - see guest.h.
#include "train/guest.h"

#include "base/clock.h"
#include "base/hash.h"
#include "train/hyper.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

// KEPT: percentiles are over this many of the newest answers, many times the 299 that p99 needs.
enum { KEPT = 8192, RECENT = 256, LISTS = GUEST_KINDS + 1 };

struct guests {
    struct session *s;          // answers the requests: the second model's, if there is one
    struct train_state *second; // of the second model; NULL: none
    struct guest_source source;
    void (*told)(void *arg, const struct guest_sample *s, const struct guest_answer *a);
    void *told_arg;
    struct samples ns[LISTS];        // response times by kind; the last: of all kinds
    uint64_t looked_ns[GUEST_KINDS]; // when the run last took requests of the kind
    struct guest_report report;
};

const char *guest_kind_name(enum guest_kind kind) {
    return kind == GUEST_TRAIN ? "train" : "evaluate";
}

uint64_t guests_plan_bytes(void) {
    return LISTS * 2 * (uint64_t)KEPT * sizeof(double);
}

void guests_begin_second(struct train_state *st, const struct knobs *k) {
    static const char data[] = "requests"; // stands for the dataset, which has no content to hash
    *st = (struct train_state){0};
    hash_of(data, sizeof data - 1, st->dataset);
    loss_scale_start(&st->scale, k);
}

int guests_open(struct guests **out, struct session *s, struct train_state *second,
                const struct guest_source *source,
                void (*told)(void *arg, const struct guest_sample *s, const struct guest_answer *a),
                void *told_arg, struct err *e) {
    *out = NULL;
    struct guests *g = calloc(1, sizeof *g);
    if (g == NULL)
        return err_set(e, ERR_MEMORY, "no memory for requests");
    *g = (struct guests){.s = s->second != NULL ? s->second : s,
                         .second = s->second != NULL ? second : NULL,
                         .source = *source,
                         .told = told,
                         .told_arg = told_arg};
    const uint64_t begin_ns = clock_ns();
    g->report.on = true;
    g->report.all.worst_ns = NAN;
    for (int i = 0; i < GUEST_KINDS; i++) {
        g->report.kinds[i].worst_ns = NAN;
        g->looked_ns[i] = begin_ns;
    }
    for (int i = 0; i < LISTS; i++) {
        int rc = samples_open(&g->ns[i], KEPT, e);
        if (rc != 0) {
            guests_close(g);
            return rc;
        }
    }
    *out = g;
    return 0;
}

void guests_close(struct guests *g) {
    if (g == NULL)
        return;
    for (int i = 0; i < LISTS; i++)
        samples_close(&g->ns[i]);
    free(g);
}

// ---------------------------------------------------------------- one sample

static int feed(void *arg, int micro, struct exec_batch *out, struct err *e) {
    (void)micro;
    (void)e;
    *out = ((const struct guest_sample *)arg)->rows;
    return 0;
}

static int evaluate(struct guests *g, struct guest_sample *x, struct guest_answer *a,
                    struct err *e) {
    double results[RESULT_COUNT];
    if (g->second != NULL) {
        TRY(session_run(g->s, PLAN_EVAL, feed, x, NULL, e));
        TRY(session_get_results(g->s, results, NULL, e));
    } else {
        TRY(session_run(g->s, PLAN_GUEST_EVAL, feed, x, NULL, e));
        TRY(session_get_guest_results(g->s, results, e));
    }
    a->loss = results[RESULT_LOSS_SUM] / results[RESULT_TOKENS];
    return 0;
}

static int update(struct guests *g, const char *program, const struct hyper_step *at,
                  struct guest_sample *x, struct guest_answer *a, struct err *e) {
    double hyper[HYPER_COUNT], results[RESULT_COUNT], clip[CLIP_COUNT];
    hyper_fill(&g->s->plan->knobs, at, hyper);
    TRY(session_set_hyper(g->s, hyper, e));
    TRY(session_run(g->s, program, feed, x, NULL, e));
    TRY(session_get_results(g->s, results, clip, e));
    a->loss = results[RESULT_LOSS_SUM] / results[RESULT_TOKENS];
    a->lr = hyper[HYPER_LR];
    a->grad_norm = clip[CLIP_NORM];
    a->skipped = clip[CLIP_SKIP] != 0;
    g->report.updates += !a->skipped;
    return 0;
}

// A training sample without a second model: an update of the bulk model's weights.
static int train(struct guests *g, struct train_state *st, struct guest_sample *x,
                 struct guest_answer *a, struct err *e) {
    const struct hyper_step at = {.step = st->step,
                                  .update = hyper_updates(st) + 1,
                                  .guest = st->guest_updates + 1,
                                  .trained_tokens = x->trained_tokens,
                                  .loss_scale = st->scale.value};
    TRY(update(g, PLAN_GUEST_TRAIN, &at, x, a, e));
    st->guest_updates += !a->skipped;
    return 0;
}

// A training sample with a second model: a step of it, as in trainer.c.
static int train_second(struct guests *g, struct guest_sample *x, struct guest_answer *a,
                        struct err *e) {
    struct train_state *st = g->second;
    const struct hyper_step at = {.step = st->step,
                                  .update = hyper_updates(st) + 1,
                                  .trained_tokens = x->trained_tokens,
                                  .loss_scale = st->scale.value};
    TRY(update(g, PLAN_TRAIN, &at, x, a, e));
    st->step++;
    st->position += (uint64_t)g->s->plan->knobs.batch_micro;
    st->tokens += (uint64_t)(g->s->plan->knobs.batch_micro * g->s->plan->knobs.seq);
    st->trained_tokens += (uint64_t)x->trained_tokens;
    st->skipped_steps += a->skipped;
    // Gradients that are not finite at the scale's floor do not end the bulk run: the scale stays,
    // and the answer says that the step was skipped.
    loss_scale_update(&st->scale, &g->s->plan->knobs, !a->skipped, st->step, NULL);
    return 0;
}

static void keep_larger(uint64_t *most, uint64_t ns) {
    if (ns > *most)
        *most = ns;
}

static void note(struct guests *g, struct guest_figures *f, struct samples *list, uint64_t ns) {
    const uint64_t budget_ns = g->s->plan->knobs.interactive_respond;
    samples_add(list, (double)ns);
    f->answered++;
    f->late += budget_ns > 0 && ns > budget_ns;
    if (!((double)ns <= f->worst_ns))
        f->worst_ns = (double)ns;
}

static int serve(struct guests *g, struct train_state *st, struct guest_sample *x, struct err *e) {
    struct guest_answer a = {.loss = NAN, .lr = NAN, .grad_norm = NAN, .step = st->step};
    const uint64_t begin_ns = clock_ns();
    a.waited_ns = begin_ns > x->arrived_ns ? begin_ns - x->arrived_ns : 0;
    a.rc = x->kind == GUEST_EVALUATE ? evaluate(g, x, &a, e)
           : g->second != NULL       ? train_second(g, x, &a, e)
                                     : train(g, st, x, &a, e);
    a.own_step = g->second != NULL ? g->second->step : -1;
    a.run_ns = clock_ns() - begin_ns;
    a.error = a.rc != 0 && e != NULL ? e->text : "";
    g->report.run_ns += a.run_ns;
    keep_larger(&g->report.kinds[x->kind].run_ns, a.run_ns);
    keep_larger(&g->report.all.run_ns, a.run_ns);
    if (a.rc == 0) {
        note(g, &g->report.kinds[x->kind], &g->ns[x->kind], a.waited_ns + a.run_ns);
        note(g, &g->report.all, &g->ns[GUEST_KINDS], a.waited_ns + a.run_ns);
    }
    g->source.answer(g->source.arg, x, &a);
    if (g->told != NULL)
        g->told(g->told_arg, x, &a);
    return a.rc == 0 ? 0 : err_context(e, "a request to %s", guest_kind_name(x->kind));
}

// Notes how long the run took no requests. Every call of guests_serve begins and ends with this.
static void look(struct guests *g, bool train_too, bool begins) {
    const uint64_t now_ns = clock_ns();
    for (int i = 0; i < GUEST_KINDS; i++) {
        struct guest_figures *f = &g->report.kinds[i];
        if (i == GUEST_TRAIN && !train_too)
            continue;
        if (begins) {
            keep_larger(&f->gap_ns, now_ns - g->looked_ns[i]);
            keep_larger(&g->report.all.gap_ns, f->gap_ns);
        }
        g->looked_ns[i] = now_ns;
    }
}

int guests_serve(struct guests *g, struct train_state *st, bool train_too, struct err *e) {
    struct guest_sample x;
    look(g, train_too, true);
    for (int64_t i = 0; i < g->s->plan->knobs.interactive_queue; i++) {
        if (!g->source.next(g->source.arg, train_too, &x))
            break;
        TRY(serve(g, st, &x, e));
    }
    look(g, train_too, false);
    return 0;
}

// ---------------------------------------------------------------- figures

static void quantiles(struct guest_figures *f, struct samples *list) {
    static const double p[3] = {0.50, 0.95, 0.99};
    struct quantile q[3];
    samples_quantiles(list, 0, p, 3, q);
    f->p50 = q[0], f->p95 = q[1], f->p99 = q[2];
}

uint64_t guests_run_ns(const struct guests *g) {
    return g->report.run_ns;
}

void guests_report(struct guests *g, struct guest_report *out) {
    for (int i = 0; i < GUEST_KINDS; i++)
        quantiles(&g->report.kinds[i], &g->ns[i]);
    quantiles(&g->report.all, &g->ns[GUEST_KINDS]);
    *out = g->report;
}

uint64_t guests_recent(struct guests *g, double *p95_ns) {
    static const double p = 0.95;
    struct quantile q;
    samples_quantiles(&g->ns[GUEST_KINDS], RECENT, &p, 1, &q);
    *p95_ns = q.value;
    return g->report.all.answered;
}
