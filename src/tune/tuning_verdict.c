// tuning_verdict.c - describes the choice of a search in sentences: what it gains, what it is bound
// by, whether larger micro-batches help, what other settings would cost, and what was not proven.
#include "base/text.h"
#include "predict/verdict_run.h"
#include "tune/tuning.h"

#include <math.h>

// The setting of the search with these knobs; NULL: the search did not look at it.
static const struct tune_setting *twin(const struct tuning *t, const struct knobs *k) {
    for (int i = 0; i < t->tune.n; i++)
        if (knobs_equal(&t->tune.settings[i].knobs, k))
            return &t->tune.settings[i];
    return NULL;
}

// How much longer a setting takes than the choice, as a share. Measured if the setting was
// measured, else predicted.
static double slower(const struct tuning *t, const struct tune_setting *s, bool *measured) {
    const struct tune_setting *c = &t->tune.settings[t->tune.chosen];
    *measured = s->n > 0;
    if (*measured)
        return tune_cost(&t->tune, s) / tune_cost(&t->tune, c) - 1;
    double samples = (double)(s->knobs.batch_micro * s->knobs.batch_accum) /
                     (double)(c->knobs.batch_micro * c->knobs.batch_accum);
    return s->predicted_s / c->predicted_s / samples - 1;
}

static void say_choice(struct tuning *t) {
    const struct tune_setting *c = &t->tune.settings[t->tune.chosen], *base = &t->tune.settings[0];
    if (t->tune.chosen == 0)
        sentences_add(&t->sentences, "the recipe as given is the best found: %.0f tokens/s",
                      tune_tokens_per_s(c));
    else if (isfinite(tune_tokens_per_s(base)))
        sentences_add(&t->sentences, "%.300s: %.0f tokens/s, %+.1f %% against the recipe as given",
                      c->name, tune_tokens_per_s(c),
                      100 * (tune_tokens_per_s(c) / tune_tokens_per_s(base) - 1));
    else
        sentences_add(&t->sentences, "%.200s: %.0f tokens/s (the recipe as given: %.150s)", c->name,
                      tune_tokens_per_s(c), base->reason);
}

// What the choice is bound by, in the words of train and bench.
static void say_bound(struct tuning *t) {
    const struct tune_setting *c = &t->tune.settings[t->tune.chosen];
    struct run_metrics m;
    struct samples ns = {0};
    struct plan p;
    struct step_cost cost = {0};
    struct trace trace = {.total = c->split};
    if (plan_run(&p, &c->knobs, NULL) == 0)
        plan_step_cost(&p, &cost);
    plan_free(&p);
    if (samples_open(&ns, c->n + 1, NULL) != 0)
        return;
    for (size_t i = 0; i < c->n; i++)
        samples_add(&ns, c->step_ns[i]);
    const struct metrics_input in = {.step_ns = &ns,
                                     .trace = &trace,
                                     .wall_ns = c->wall_ns,
                                     .tokens = c->tokens,
                                     .batch_micro = c->knobs.batch_micro,
                                     .samples_per_step =
                                         c->knobs.batch_micro * c->knobs.batch_accum};
    metrics_compute(&m, &in);
    verdict_run(&t->verdict, &m, &c->knobs, &cost, &t->machine);
    sentences_add(&t->sentences, "%s", t->verdict.text);
    samples_close(&ns);
}

static void say_growth(struct tuning *t) {
    const struct knobs *k = &t->tune.settings[t->tune.chosen].knobs;
    bool measured;
    if (t->request.goal != TUNE_BULK && !tune_has_limits(&t->request))
        return;
    for (int64_t m = 2 * k->batch_micro; k->batch_accum % (m / k->batch_micro) == 0; m *= 2) {
        struct knobs larger = *k;
        larger.batch_micro = m;
        larger.batch_accum = k->batch_accum / (m / k->batch_micro);
        const struct tune_setting *s = twin(t, &larger);
        if (!s)
            continue;
        const double cost = slower(t, s, &measured);
        if (s->outcome != TUNE_REFUSED && !(cost > 0)) // not known, or it is not slower
            continue;
        if (s->outcome == TUNE_REFUSED)
            sentences_add(&t->sentences, "a micro-batch of %lld does not fit: %.200s", (long long)m,
                          s->reason);
        else
            sentences_add(
                &t->sentences, "a larger micro-batch than %lld is slower (%lld: %+.1f %% time%s)",
                (long long)k->batch_micro, (long long)m, 100 * cost, measured ? "" : ", predicted");
        return;
    }
}

static void say_recompute(struct tuning *t) {
    const struct tune_setting *c = &t->tune.settings[t->tune.chosen];
    const bool none = c->knobs.recompute_mode == RECOMPUTE_MODE_NONE;
    struct knobs k = c->knobs;
    char a[TEXT_UNIT_BYTES], b[TEXT_UNIT_BYTES];
    bool measured;
    k.recompute_mode = none ? RECOMPUTE_MODE_FULL : RECOMPUTE_MODE_NONE;
    const struct tune_setting *s = twin(t, &k);
    if (!s)
        return;
    if (!none && s->outcome == TUNE_REFUSED)
        sentences_add(&t->sentences, "it fits only with recomputation (without it: %.200s)",
                      s->reason);
    const double cost = slower(t, s, &measured);
    if (none && isfinite(cost) && s->outcome != TUNE_REFUSED)
        sentences_add(&t->sentences,
                      "recomputation is not needed: it would cost %.0f %% time%s and reduce memory "
                      "from %s to %s",
                      100 * cost, measured ? "" : " (predicted)", text_bytes(a, c->need_bytes),
                      text_bytes(b, s->need_bytes));
}

static void say_limits(struct tuning *t) {
    char q[QUANTILE_TEXT_BYTES];
    for (int i = 0; i < t->tune.n_bounds; i++) {
        const struct tune_bound *b = &t->tune.bounds[i];
        const char *what = !b->respond ? ""
                           : t->tune.request.answer_s > 0
                               ? "response time (computing the answer is predicted), "
                               : "response time, ";
        if (b->proven)
            sentences_add(&t->sentences, "%s%s: under the budget of %.4g ms", what,
                          quantile_text(q, &b->q), 1e-6 * (double)b->limit_ns);
        else if (quantile_has_bound(&b->q))
            sentences_add(&t->sentences,
                          "%s%s: not proven to be under the budget of %.4g ms, so the choice is "
                          "provisional",
                          what, quantile_text(q, &b->q), 1e-6 * (double)b->limit_ns);
        else
            sentences_add(&t->sentences, "%sp%.0f unbounded, n=%zu: the choice is provisional",
                          what, 100 * tune_percentile_of(b->p), b->q.n);
    }
    if (t->tune.request.joules_per_token > 0 &&
        !isfinite(tune_joules_per_token(&t->tune.settings[t->tune.chosen])))
        sentences_add(&t->sentences,
                      "the energy of the choice was not measured, so the choice is provisional");
}

void tuning_verdict(struct tuning *t) {
    const struct knobs *k = &t->tune.settings[t->tune.chosen].knobs;
    const double samples = (double)(k->batch_micro * k->batch_accum);
    say_choice(t);
    say_bound(t);
    say_growth(t);
    say_recompute(t);
    say_limits(t);
    if (t->request.critical_samples > 0 && samples > t->request.critical_samples)
        sentences_add(&t->sentences,
                      "%.0f sequences per step are more than the critical batch of about %.0f: "
                      "larger batches add little learning per step",
                      samples, t->request.critical_samples);
    if (t->tune.forgotten > 0)
        sentences_add(&t->sentences,
                      "the machine was busy at first (steps took %.1f times as long): %d setting%s "
                      "measured then count%s as not measured",
                      t->tune.slowed, t->tune.forgotten, t->tune.forgotten == 1 ? "" : "s",
                      t->tune.forgotten == 1 ? "s" : "");
    if (t->tune.hurried || t->tune.unplanned)
        sentences_add(&t->sentences, "some promising settings were not tried; give more --time");
    else if (!t->tune.certain)
        sentences_add(&t->sentences,
                      t->tune.compared
                          ? "the finalists were too close to tell apart in the time given"
                          : "there was no time to compare the finalists");
}
