// tuning_verdict.c - describes the choice of a search in sentences: what it gains, what it is bound
// by, whether larger micro-batches help, what other settings would cost, and what was not proven.
#include "base/text.h"
#include "predict/verdict_run.h"
#include "tune/tune_impl.h"
#include "tune/tuning.h"

#include <math.h>
#include <stdio.h>

enum { GAIN_TEXT_BYTES = 128 };

// The setting of the search with these knobs; NULL: the search did not look at it.
static const struct tune_setting *twin(const struct tuning *t, const struct knobs *k) {
    for (int i = 0; i < t->tune.n; i++)
        if (knobs_equal(&t->tune.settings[i].knobs, k))
            return &t->tune.settings[i];
    return NULL;
}

// How much longer a setting takes than the choice, as a share, and how that is known.
static double slower(const struct tuning *t, const struct tune_setting *s, const char **how) {
    const struct tune_setting *c = &t->tune.settings[t->tune.chosen];
    if (s->turns.rounds > 0 && c->turns.rounds > 0) {
        *how = "";
        return c->turns.ratio / s->turns.ratio - 1;
    }
    if (s->n > 0) {
        *how = ", by a glance";
        return tune_cost(&t->tune, s) / tune_cost(&t->tune, c) - 1;
    }
    *how = ", predicted";
    double samples = (double)(s->knobs.batch_micro * s->knobs.batch_accum) /
                     (double)(c->knobs.batch_micro * c->knobs.batch_accum);
    return s->predicted_s / c->predicted_s / samples - 1;
}

// "+8.1 % (6.2 to 10.3, 95 % sure, 14 rounds)"
static const char *gain_text(char out[GAIN_TEXT_BYTES], const struct tune_turns *x) {
    if (isfinite(x->low))
        snprintf(out, GAIN_TEXT_BYTES, "%+.1f %% (%+.1f to %+.1f, 95 %% sure; %d rounds in turns)",
                 100 * (x->ratio - 1), 100 * (x->low - 1), 100 * (x->high - 1), x->rounds);
    else
        snprintf(out, GAIN_TEXT_BYTES, "%+.1f %% in %d round%s, too few for an interval",
                 100 * (x->ratio - 1), x->rounds, x->rounds == 1 ? "" : "s");
    return out;
}

// Why the recipe as given stays.
static void say_kept(struct tuning *t) {
    const struct tune *u = &t->tune;
    const struct tune_setting *rival = u->rival >= 0 ? &u->settings[u->rival] : NULL;
    const double speed = tune_tokens_per_s(&u->settings[0]);
    char gain[GAIN_TEXT_BYTES];
    if (u->why == TUNE_WHY_TOO_BUSY && u->busy == 0)
        sentences_add(&t->sentences,
                      "too few rounds count to tell, so nothing is changed: the CPUs moved nearer "
                      "to each other or apart too often, within trials or between them; try again "
                      "later, or give more --time");
    else if (u->why == TUNE_WHY_TOO_BUSY)
        sentences_add(&t->sentences,
                      "too busy to tell, so nothing is changed: other programs were at work in %d "
                      "of %d trials and took up to %.0f %% of the time; try again when the machine "
                      "is quieter, or give more --time",
                      u->busy, u->trials, 100 * u->busy_most);
    else if (!rival || rival->turns.rounds == 0)
        sentences_add(&t->sentences, "keep what you have, %.0f tokens/s: %s", speed,
                      u->why == TUNE_WHY_ALONE
                          ? "no setting that was measured comes near it"
                          : "there was no time to compare it with another one");
    else
        sentences_add(&t->sentences,
                      "keep what you have, %.0f tokens/s: the best other setting "
                      "(%.160s) %s, %s against as given",
                      speed, rival->name,
                      u->why == TUNE_WHY_BEST ? "is slower" : "is not faster beyond the noise",
                      gain_text(gain, &rival->turns));
}

static void say_choice(struct tuning *t) {
    const struct tune_setting *c = &t->tune.settings[t->tune.chosen], *base = &t->tune.settings[0];
    const double speed = tune_tokens_per_s(c);
    char gain[GAIN_TEXT_BYTES];
    if (t->tune.chosen == 0)
        say_kept(t);
    else if (t->tune.why == TUNE_WHY_FASTER || (base->turns.rounds > 0 && c->turns.rounds > 0))
        sentences_add(&t->sentences, "%.300s: %.0f tokens/s, %s against as given%s%.200s", c->name,
                      speed, gain_text(gain, &c->turns),
                      t->tune.why == TUNE_WHY_NEEDED && base->reason[0] ? "; as given: " : "",
                      t->tune.why == TUNE_WHY_NEEDED ? base->reason : "");
    else
        sentences_add(&t->sentences, "%.200s: %.0f tokens/s (as given: %.150s)", c->name, speed,
                      base->reason[0] ? base->reason : "it was not compared");
    if (t->tune.busy > 0 && t->tune.why != TUNE_WHY_TOO_BUSY)
        sentences_add(&t->sentences, "other programs were at work in %d of %d trials, %s",
                      t->tune.busy, t->tune.trials,
                      c->turns.rounds > 0 ? "which do not count in the comparison"
                                          : "so speeds are lower than on a quiet machine");
}

// "+4.1 % (+2.0 to +6.2)"
static const char *state_text(char out[GAIN_TEXT_BYTES], const struct tune_state *s) {
    const int n = snprintf(out, GAIN_TEXT_BYTES, "%+.1f %%", 100 * (s->ratio - 1));
    if (isfinite(s->low))
        snprintf(out + n, GAIN_TEXT_BYTES - (size_t)n, " (%+.1f to %+.1f)", 100 * (s->low - 1),
                 100 * (s->high - 1));
    return out;
}

// How far the CPUs were from each other in the rounds that count, where that changed in the search.
static void say_apart(struct tuning *t) {
    const struct tune *u = &t->tune;
    const int of = u->chosen > 0 ? u->chosen : u->rival;
    const struct tune_turns *x = of > 0 ? &u->settings[of].turns : NULL;
    const double ratio = u->policy->states.apart_ratio;
    char gain[GAIN_TEXT_BYTES];
    if (!x || x->n_states == 0)
        return;
    for (int i = 0; x->n_states > 1 && i < x->n_states; i++)
        sentences_add(&t->sentences,
                      "in %d rounds the CPUs were %s (a cache line goes from one to the other and "
                      "back in %.0f ns): %s against as given",
                      x->states[i].rounds,
                      i == 0                 ? "near each other"
                      : i == x->n_states - 1 ? "far apart"
                                             : "farther apart",
                      x->states[i].apart_ns, state_text(gain, &x->states[i]));
    if (x->n_states == 1 && apart_changed(&u->cpus, ratio) && x->states[0].apart_ns > 0)
        sentences_add(&t->sentences,
                      "in all rounds that count a cache line went from one CPU to the other and "
                      "back in %.0f ns; in this search it also took %.0f ns, because the CPUs were "
                      "moved, and there another setting may be the faster one",
                      x->states[0].apart_ns,
                      x->states[0].apart_ns > ratio * u->cpus.least_ns ? u->cpus.least_ns
                                                                       : u->cpus.most_ns);
    if (u->moved > 0)
        sentences_add(&t->sentences,
                      "the CPUs moved nearer to each other or apart during %d of %d trials, which "
                      "do not count in the comparison",
                      u->moved, u->trials);
}

// A knob that the search could have tried and did not. Others are no advice after a search: it
// knows better, or it never looks at them.
static bool is_untried(const struct tuning *t, const char *knob) {
    const int id = knob_find(knob);
    if (id < 0 || space_stage(id, &t->request) == STAGE_COUNT)
        return false;
    for (int i = 1; i < t->tune.n; i++)
        if (!knobs_same(&t->tune.settings[i].knobs, &t->tune.settings[0].knobs, id))
            return false;
    return true;
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
    if (t->verdict.knob && !is_untried(t, t->verdict.knob)) {
        t->verdict.text[t->verdict.advice_at] = '\0';
        t->verdict.knob = NULL;
    }
    sentences_add(&t->sentences, "%s", t->verdict.text);
    samples_close(&ns);
}

static void say_growth(struct tuning *t) {
    const struct knobs *k = &t->tune.settings[t->tune.chosen].knobs;
    const char *how = "";
    if (t->request.goal != TUNE_BULK && !tune_has_limits(&t->request))
        return;
    for (int64_t m = 2 * k->batch_micro; k->batch_accum % (m / k->batch_micro) == 0; m *= 2) {
        struct knobs larger = *k;
        larger.batch_micro = m;
        larger.batch_accum = k->batch_accum / (m / k->batch_micro);
        const struct tune_setting *s = twin(t, &larger);
        if (!s)
            continue;
        const double cost = slower(t, s, &how);
        if (s->outcome != TUNE_REFUSED && !(cost > 0)) // not known, or it is not slower
            continue;
        if (s->outcome == TUNE_REFUSED)
            sentences_add(&t->sentences, "a micro-batch of %lld does not fit: %.200s", (long long)m,
                          s->reason);
        else
            sentences_add(&t->sentences,
                          "a larger micro-batch than %lld is slower (%lld: %+.1f %% time%s)",
                          (long long)k->batch_micro, (long long)m, 100 * cost, how);
        return;
    }
}

static void say_recompute(struct tuning *t) {
    const struct tune_setting *c = &t->tune.settings[t->tune.chosen];
    const bool none = c->knobs.recompute_mode == RECOMPUTE_MODE_NONE;
    struct knobs k = c->knobs;
    char a[TEXT_UNIT_BYTES], b[TEXT_UNIT_BYTES];
    const char *how = "";
    k.recompute_mode = none ? RECOMPUTE_MODE_FULL : RECOMPUTE_MODE_NONE;
    const struct tune_setting *s = twin(t, &k);
    if (!s)
        return;
    if (!none && s->outcome == TUNE_REFUSED)
        sentences_add(&t->sentences, "it fits only with recomputation (without it: %.200s)",
                      s->reason);
    const double cost = slower(t, s, &how);
    if (none && cost > 0 && s->outcome != TUNE_REFUSED)
        sentences_add(&t->sentences,
                      "recomputation is not needed: it would reduce memory from %s to %s and cost "
                      "%.0f %% time%s",
                      text_bytes(a, c->need_bytes), text_bytes(b, s->need_bytes), 100 * cost, how);
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
    const double samples = (double)knobs_samples(k);
    say_choice(t);
    say_apart(t);
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
    else if (t->tune.why == TUNE_WHY_NEEDED && !t->tune.certain)
        sentences_add(&t->sentences,
                      t->tune.compared
                          ? "the finalists were too close to tell apart in the time given"
                          : "there was no time to compare the finalists");
}
