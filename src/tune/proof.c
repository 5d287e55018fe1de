// proof.c - proving that a setting keeps its latency budgets, and how much of the time that takes.
#include "tune/tune_impl.h"

#include "measure/bound.h"

// Steps in all with which the proof is complete if no step to come is over the limit; 0: it is
// already decided.
static size_t steps_needed(const struct tune *t, struct bound_verdict b, enum tune_percentile p) {
    return b.state == BOUND_OPEN
               ? sample_watch_needs(b.n, b.over, tune_percentile_of(p), t->policy->confidence)
               : 0;
}

// Share of the time that the proof for the best setting so far still takes, if no step is over. 0
// for a proof that takes too much of the time: the search is then worth more.
static double proof_share(const struct tune *t) {
    int best = tune_best(t);
    size_t more = 0;
    struct tune_limit limits[TUNE_LIMITS_MOST];
    const int n = best >= 0 ? tune_limits(&t->request, &t->settings[best].knobs, limits) : 0;
    for (int i = 0; i < n; i++) {
        const struct tune_setting *s = &t->settings[best];
        const size_t needed = steps_needed(t, visit_bound(t, s, &limits[i]), limits[i].p);
        if (needed > s->n && needed - s->n > more)
            more = needed - s->n;
    }
    if (more == 0 || t->request.time_ns == 0)
        return 0;
    double share =
        (double)more * setting_step_s(&t->settings[best]) / (1e-9 * (double)t->request.time_ns);
    return share <= t->policy->time.proof_most_share ? share : 0;
}

double tune_searched(const struct tune *t) {
    return tune_elapsed(t) / (1 - proof_share(t));
}

int proof_run(struct tune *t, int i, enum proof *out, struct err *e) {
    const struct tune_policy *p = t->policy;
    struct tune_limit limits[TUNE_LIMITS_MOST];
    const int n = tune_limits(&t->request, &t->settings[i].knobs, limits);
    *out = PROOF_UNDER;
    for (int l = 0; l < n; l++) {
        for (int look = 1;; look++) {
            const struct tune_setting *s = &t->settings[i];
            const struct bound_verdict b = visit_bound(t, s, &limits[l]);
            if (b.state == BOUND_OVER || !setting_stands(s)) {
                *out = PROOF_OVER;
                return 0;
            }
            if (b.state == BOUND_UNDER)
                break;
            const size_t needed = steps_needed(t, b, limits[l].p);
            size_t more = needed > s->n ? needed - s->n : p->proof.more_steps;
            double step_s = setting_step_s(s);
            double left_s =
                (p->time.prove_by_share - tune_elapsed(t)) * 1e-9 * (double)t->request.time_ns;
            const bool fits = (double)more * step_s <= left_s;
            const double allowed = (1 - tune_percentile_of(limits[l].p)) * (double)b.n;
            if ((!fits && (double)b.over > allowed) ||
                (b.over >= p->proof.doubt_least_steps &&
                 (double)b.over > p->proof.doubt_ratio * allowed)) {
                *out = PROOF_DOUBTS;
                return 0;
            }
            if (left_s < 2 * step_s || look > p->proof.most_looks) {
                *out = PROOF_OPEN;
                break;
            }
            if (!fits)
                more = (size_t)(left_s / step_s);
            if (more > s->n && s->n >= p->proof.doubling_from_steps) // then look for doubts again
                more = s->n;
            if (more > p->rounds.visit_most_steps)
                more = p->rounds.visit_most_steps;
            struct visit v = {.steps = (int64_t)(more < 2 ? 2 : more), .long_run = true};
            TRY(visit_setting(t, i, &v, e));
        }
    }
    return 0;
}
