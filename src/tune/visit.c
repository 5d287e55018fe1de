// visit.c - one trial of one setting: how long it takes, when it ends early, what it shows.
#include "tune/tune_impl.h"

#include "measure/bound.h"
#include "measure/contest.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct trial_state {
    const struct tune *t;
    const struct visit *v;
    const struct knobs *knobs;
    double best_cost;    // of the best other setting; NaN: none yet
    double least_s;      // run at least this long
    double sum, squares; // of the samples seen so far
    size_t n;
    // Samples of earlier visits, and samples over each limit in all visits. A bound that may be
    // asked again and again needs all samples.
    size_t before, over[TUNE_LIMITS_MOST];
    struct tune_limit limits[TUNE_LIMITS_MOST];
    int n_limits;
};

static double cost_of_step(const struct trial_state *j, double step_s) {
    return tune_predicted_cost(j->t, j->knobs, step_s);
}

static bool over_for_sure(const struct trial_state *j) {
    for (int i = 0; i < j->n_limits; i++)
        if (sample_bound_watch(j->before + j->n, j->over[i], tune_percentile_of(j->limits[i].p),
                               j->t->policy->confidence)
                .state == BOUND_OVER)
            return true;
    return false;
}

// The steps are so long, or so little time is left, that the visit ends with the steps it has.
static bool impatient(const struct trial_state *j) {
    const double all_s = 1e-9 * (double)j->t->request.time_ns;
    return tune_elapsed(j->t) >= 1 ||
           (!j->v->long_run && 1e-9 * j->sum >= j->t->policy->visit.patience_share * all_s);
}

// Settings are compared by medians. A few steps that another program slowed down keep the mean
// imprecise for long, but not the median.
static bool median_is_precise(const double *step_ns, size_t n, double precise) {
    double sorted[TUNE_VISIT_STEPS_ROOM];
    struct spread s;
    if (n > TUNE_VISIT_STEPS_ROOM)
        return true;
    memcpy(sorted, step_ns, n * sizeof *sorted);
    sample_spread_of(sorted, n, &s);
    return s.high95 - s.low95 < 2 * precise * s.median; // NaN where n is too small
}

static enum tune_go judge(void *arg, const double *step_ns, size_t n) {
    struct trial_state *j = arg;
    const struct tune_policy *p = j->t->policy;
    for (; j->n < n; j->n++) {
        double x = step_ns[j->n];
        j->sum += x;
        j->squares += x * x;
        for (int i = 0; i < j->n_limits; i++)
            j->over[i] += !(x <= j->limits[i].step_ns);
    }
    if (n < p->visit.least_steps)
        return impatient(j) ? TUNE_ENOUGH : TUNE_GO_ON;
    double mean = j->sum / (double)n, variance = j->squares / (double)n - mean * mean;
    double error = 2 * sqrt((variance > 0 ? variance : 0) / (double)(n - 1));
    if (over_for_sure(j))
        return TUNE_OVER_BUDGET;
    if (j->v->judged &&
        cost_of_step(j, 1e-9 * (mean - error)) > j->best_cost * (1 + p->visit.slower_rel))
        return TUNE_DOMINATED;
    const bool long_enough = !j->v->long_run && 1e-9 * j->sum >= j->least_s;
    const double precise = j->n_limits > 0 ? p->visit.precise_limit_rel : p->visit.precise_rel;
    if (long_enough &&
        (error < precise * mean || 1e-9 * j->sum > p->visit.long_most_ratio * j->least_s ||
         median_is_precise(step_ns, n, precise)))
        return TUNE_ENOUGH;
    return impatient(j) ? TUNE_ENOUGH : TUNE_GO_ON;
}

// ---------------------------------------------------------------- what it shows

// Waiting for data belongs to the setting. It comes now and then, so a median may miss it; hence
// the mean wait per step is added.
double visit_typical(const struct tune_setting *s, int from) {
    const struct time_split *x = &s->split;
    double wait = x->steps > 0 ? 1e-9 * (double)x->ns[TIME_DATA_WAIT] / (double)x->steps : 0;
    double mean = 1e-9 * (double)s->wall_ns / (double)s->n;
    double typical = tune_typical(s->step_ns, s->blocks + from, s->n_blocks - from);
    return isfinite(typical) ? fmin(typical + wait, fmax(mean, typical)) : mean;
}

// Makes room for the samples and the block of one more visit.
static int make_room(struct tune_setting *s, size_t n, struct err *e) {
    if (s->n + n > s->capacity) {
        size_t capacity = 2 * (s->n + n);
        double *more = realloc(s->step_ns, capacity * sizeof *more);
        if (!more)
            return err_set(e, ERR_MEMORY, "out of memory for %zu samples", capacity);
        s->step_ns = more;
        s->capacity = capacity;
    }
    if (s->n_blocks == s->blocks_capacity) {
        int capacity = 2 * s->blocks_capacity + 4;
        struct tune_block *more = realloc(s->blocks, (size_t)capacity * sizeof *more);
        if (!more)
            return err_set(e, ERR_MEMORY, "out of memory for %d visits", capacity);
        s->blocks = more;
        s->blocks_capacity = capacity;
    }
    return 0;
}

int visit_keep(const struct tune_policy *p, struct tune_setting *s, const struct tune_measured *m,
               struct err *e) {
    if (m->n == 0)
        return 0;
    TRY(make_room(s, m->n, e));
    const bool busy = m->busy > p->busy.most_rel; // false where others cannot be seen
    memcpy(s->step_ns + s->n, m->step_ns, m->n * sizeof *m->step_ns);
    const bool moved = apart_changed(&m->cpus, p->states.apart_ratio);
    s->blocks[s->n_blocks++] = (struct tune_block){
        m->tokens, m->wall_ns, s->n, m->n, busy, moved, moved ? NAN : apart_typical_ns(&m->cpus)};
    s->quiet += !busy;
    if (isfinite(m->joules)) {
        s->joules = (s->joule_tokens > 0 ? s->joules : 0) + m->joules;
        s->joule_tokens += m->tokens;
        s->joule_ns += m->wall_ns;
    }
    s->n += m->n;
    s->tokens += m->tokens;
    s->wall_ns += m->wall_ns;
    s->reused += m->reused;
    if (m->memory_bytes > s->memory_bytes)
        s->memory_bytes = m->memory_bytes;
    time_split_add(&s->split, &m->split);
    s->typical_s = visit_typical(s, 0);
    return 0;
}

struct bound_verdict visit_bound(const struct tune *t, const struct tune_setting *s,
                                 const struct tune_limit *l) {
    size_t over = 0;
    for (size_t i = 0; i < s->n; i++)
        over += !(s->step_ns[i] <= l->step_ns);
    return sample_bound_watch(s->n, over, tune_percentile_of(l->p), t->policy->confidence);
}

bool visit_breaks_limit(const struct tune *t, const struct tune_setting *s,
                        char why[TUNE_TEXT_BYTES]) {
    struct tune_limit limits[TUNE_LIMITS_MOST];
    const int n = tune_limits(&t->request, &s->knobs, limits);
    for (int i = 0; i < n; i++) {
        const double of = tune_percentile_of(limits[i].p);
        if (visit_bound(t, s, &limits[i]).state != BOUND_OVER)
            continue;
        struct quantile q = tune_quantile(s, of);
        if (limits[i].respond)
            snprintf(why, TUNE_TEXT_BYTES,
                     "a request may wait %.4g ms (p%.0f, n=%zu), over the budget of %.4g ms",
                     1e3 * tune_wait_of(&t->request, &s->knobs, 1e-9 * q.value), 100 * of, q.n,
                     1e-6 * (double)t->request.respond_ns);
        else
            snprintf(why, TUNE_TEXT_BYTES, "p%.0f is %.4g ms (n=%zu), over the budget of %.4g ms",
                     100 * of, 1e-6 * q.value, q.n, 1e-6 * limits[i].step_ns);
        return true;
    }
    double joules = tune_joules_per_token(s);
    if (t->request.joules_per_token > 0 && joules > t->request.joules_per_token) {
        snprintf(why, TUNE_TEXT_BYTES, "energy is %.3g J per token, over the budget of %.3g",
                 joules, t->request.joules_per_token);
        return true;
    }
    return false;
}

double visit_strain(const struct tune *t, const struct tune_setting *s) {
    struct tune_limit limits[TUNE_LIMITS_MOST];
    const int n = tune_limits(&t->request, &s->knobs, limits);
    double most = 0;
    for (int i = 0; i < n; i++)
        most =
            fmax(most, limits[i].step_ns > 0 ? 1e9 * s->typical_s / limits[i].step_ns : INFINITY);
    return most;
}

// A process may be killed or stopped for reasons that are not its setting's. The recipe as given is
// what any other setting is held against, so once it has run, one failure does not rule it out.
static bool is_accident(const struct tune *t, const struct tune_setting *s) {
    return s == &t->settings[0] && s->well > 0 && s->ill == 1;
}

// Sets the outcome of a setting after a visit, and the reason for it.
static void settle(struct tune *t, int i, const struct tune_measured *m, double best_cost) {
    struct tune_setting *s = &t->settings[i];
    char why[TUNE_TEXT_BYTES];
    s->reason[0] = '\0';
    if (m->rc != 0 && s->n == 0) {
        s->outcome = m->rc == ERR_USAGE || m->rc == ERR_UNSUPPORTED ? TUNE_REFUSED : TUNE_FAILED;
        snprintf(s->reason, sizeof s->reason, "%s", m->reason);
    } else if (m->rc != 0 && !is_accident(t, s)) { // not chosen, even if earlier visits were good
        s->outcome = TUNE_FAILED;
        snprintf(s->reason, sizeof s->reason, "after %zu steps: %.400s", s->n, m->reason);
    } else if (visit_breaks_limit(t, s, why)) {
        s->outcome = TUNE_OVER;
        snprintf(s->reason, sizeof s->reason, "%s", why);
    } else if (tune_cost(t, s) > best_cost * (1 + t->policy->visit.slower_rel)) {
        s->outcome = TUNE_SLOWER;
        snprintf(s->reason, sizeof s->reason, "%.1f %% slower than the best at that time",
                 100 * (tune_cost(t, s) / best_cost - 1));
    } else {
        s->outcome = TUNE_MEASURED;
    }
}

int visit_setting(struct tune *t, int i, const struct visit *v, struct err *e) {
    struct tune_setting *s = &t->settings[i];
    int best = tune_best(t);
    double budget_s = 1e-9 * (double)t->request.time_ns;
    const struct tune_policy *p = t->policy;
    struct trial_state state = {.t = t, .v = v, .knobs = &s->knobs};
    state.best_cost = best >= 0 && best != i ? tune_cost(t, &t->settings[best]) : NAN;
    state.before = s->n;
    state.n_limits = tune_limits(&t->request, &s->knobs, state.limits);
    for (int k = 0; k < state.n_limits; k++)
        state.over[k] = visit_bound(t, s, &state.limits[k]).over;
    state.least_s =
        fmin(fmax(p->visit.least_share * budget_s, p->visit.floor_s), p->visit.ceiling_s);
    const bool slow =
        s->predicted_s * (double)p->visit.least_steps > p->visit.patience_share * budget_s;
    if (t->request.joules_per_token > 0)
        state.least_s = fmax(state.least_s, 1e-9 * TUNE_METERED_LEAST_NS);
    const int warmup = t->request.on_device ? TUNE_DEVICE_WARM_STEPS
                       : s->n > 0           ? 1
                                            : TUNE_WARM_STEPS;
    struct tune_order o = {.warmup = slow ? 1 : warmup,
                           .steps = v->steps > 0 ? v->steps : p->visit.most_steps,
                           .step_s = s->predicted_s,
                           .fresh = v->long_run,
                           .first = s->n == 0,
                           .now = v->now || t->slowed > 0,
                           .left_s = tune_left_s(t),
                           .judge = judge,
                           .judge_arg = &state};
    struct tune_measured m = {.joules = NAN, .busy = NAN};
    int rc = (v->recalled ? t->lab.recall : t->lab.measure)(t->lab.arg, &s->knobs, &o, &m, e);
    if (v->recalled && m.n == 0)
        return rc;
    if (rc == 0)
        rc = visit_keep(p, s, &m, e);
    if (rc == 0) {
        t->trials++;
        t->busy += m.n > 0 && s->blocks[s->n_blocks - 1].busy;
        t->busy_now = m.n > 0 && s->blocks[s->n_blocks - 1].busy;
        t->busy_most = fmax(t->busy_most, m.busy);
        t->moved += m.n > 0 && !t->busy_now && s->blocks[s->n_blocks - 1].moved;
        if (knobs_same(&s->knobs, &t->settings[0].knobs, KNOB_threads) &&
            knobs_same(&s->knobs, &t->settings[0].knobs, KNOB_cpu_pin))
            apart_join(&t->cpus, &m.cpus);
        t->reused += m.reused;
        if (m.rc != 0 && t->failed_rc == 0)
            t->failed_rc = m.rc;
        tune_learn_update(t, s);
        s->visited_ns = t->lab.clock_ns(t->lab.arg);
        if (s->first_ns == 0)
            s->first_ns = s->visited_ns;
        s->well += m.rc == 0;
        s->ill = m.rc == 0 ? 0 : s->ill + 1;
        settle(t, i, &m, state.best_cost);
        if (t->lab.on_trial)
            t->lab.on_trial(t->lab.heard_arg, t, s, &m);
    }
    free(m.step_ns);
    return rc;
}

// ---------------------------------------------------------------- comparing

// More steps are over a limit than its percentile allows. They may be too few to prove that the
// limit is broken, but it probably is.
static bool seems_over(const struct tune *t, const struct tune_setting *s) {
    struct tune_limit limits[TUNE_LIMITS_MOST];
    const int n = tune_limits(&t->request, &s->knobs, limits);
    for (int i = 0; i < n; i++)
        if ((double)visit_bound(t, s, &limits[i]).over >
            (1 - tune_percentile_of(limits[i].p)) * (double)s->n)
            return true;
    return false;
}

// A setting that seems over a limit is the best only if all are. Else other settings would be
// called slower than one that cannot be chosen. Measured: searches of a record of `tiny` (hybrid)
// stay near the best after 2.9 s instead of 13.0 s (docs/speed-log.md).
int tune_best(const struct tune *t) {
    int best = -1;
    bool best_over = false;
    for (int i = 0; i < t->n; i++) {
        const struct tune_setting *s = &t->settings[i];
        if (s->n == 0 || s->doubtful || (s->outcome != TUNE_MEASURED && s->outcome != TUNE_SLOWER))
            continue;
        if (!(tune_cost(t, s) > 0)) // no usable time
            continue;
        const bool over = seems_over(t, s);
        if (best < 0 ||
            (over != best_over ? best_over : tune_cost(t, s) < tune_cost(t, &t->settings[best])))
            best = i, best_over = over;
    }
    return best;
}
