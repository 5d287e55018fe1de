// finals.c - the finalists: the few best settings, measured in turns until their order is certain;
// the choice among them; and the frontier of all measured settings.
//
// In turns, because a machine's speed changes over minutes: round i of one finalist is compared
// with round i of another. Among finalists that cannot be told apart from the best, the one with
// the fewest changes to the recipe is chosen.
#include "tune/tune_impl.h"

#include "measure/bound.h"
#include "measure/contest.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct finalist {
    int at;
    size_t first;    // sample with which the rounds begin
    int first_block; // visit with which they begin
    bool out;        // lost, failed or over a budget
};

struct finals {
    struct tune *t;
    int64_t given_steps; // of a visit to the recipe as given beside the finalists; 0: not visited
    struct finalist f[TUNE_FINALISTS_ROOM];
    int n, rounds;
    int64_t steps[TUNE_FINALISTS_ROOM]; // of one visit
    double *scratch;                    // for the steps of any finalist
};

static double cost_at(const struct tune *t, int i) {
    return tune_cost(t, &t->settings[i]);
}

// May be chosen, as far as is known.
static bool stands(const struct tune_setting *s) {
    return s->n > 0 && !s->doubtful && (s->outcome == TUNE_MEASURED || s->outcome == TUNE_SLOWER);
}

static double step_seconds(const struct tune_setting *s) {
    return fmax(1e-9 * (double)s->wall_ns / (double)s->n, 1e-9);
}

// Steps of one visit in a round.
static int64_t visit_steps(const struct tune *t, int i) {
    const struct tune_policy *p = t->policy;
    double visit_s =
        fmax(p->finals.round_share * 1e-9 * (double)t->request.time_ns, p->finals.round_least_s);
    return (int64_t)fmin(fmax(2, ceil(visit_s / step_seconds(&t->settings[i]))),
                         (double)p->finals.visit_most_steps);
}

static bool is_in(const struct finals *f, int i) {
    for (int k = 0; k < f->n; k++)
        if (f->f[k].at == i)
            return true;
    return false;
}

// The recipe as given runs beside the finalists, because the choice is compared with it and both
// should be measured in the same minutes. It does not if its steps are so long that they would take
// the finalists' time.
static void enter_given(struct finals *f) {
    const struct tune *t = f->t;
    int best = tune_best(t);
    if (!is_in(f, 0) && best >= 0 && t->settings[0].n > 0 &&
        t->settings[0].outcome != TUNE_FAILED &&
        (double)t->settings[0].wall_ns / (double)t->settings[0].n <
            t->policy->finals.given_most_ratio * (double)t->settings[best].wall_ns /
                (double)t->settings[best].n)
        f->given_steps = visit_steps(t, 0);
}

static void enter_one(struct finals *f, int i) {
    const struct tune_setting *s = &f->t->settings[i];
    f->f[f->n] = (struct finalist){.at = i, .first = s->n, .first_block = s->n_blocks};
    f->steps[f->n] = visit_steps(f->t, i);
    f->n++;
}

// Knobs that differ from the recipe.
static int changes(const struct tune *t, int i) {
    int n = 0;
    for (int id = 0; id < KNOB_COUNT; id++)
        n += !knobs_same(&t->settings[i].knobs, &t->settings[0].knobs, id);
    return n;
}

static double predicted_at(const struct tune *t, int i) {
    return tune_predicted_cost(t, &t->settings[i].knobs, t->settings[i].predicted_s);
}

// By how much a setting may have been slower than the best and still compete. More is allowed for
// the last seat if the micro-batch is the same: the other knobs seldom make as much difference as
// another program that was busy for seconds.
static double near_enough(const struct tune *t, int i, int best, bool last) {
    return last && t->settings[i].knobs.batch_micro == t->settings[best].knobs.batch_micro
               ? t->policy->finals.near_last_rel
               : t->policy->finals.near_rel;
}

// The best few settings enter. The last seat is for the setting near them with the fewest changes
// that was not predicted to be slower. Bad luck may have kept it out, and without it the next
// search might choose another setting.
static void enter(struct finals *f) {
    struct tune *t = f->t;
    const int best = tune_best(t), most = t->policy->finals.most_settings;
    while (best >= 0 && f->n <= most && f->n < TUNE_FINALISTS_ROOM) {
        const bool last = f->n == most;
        int next = -1;
        for (int i = 0; i < t->n; i++) {
            if (is_in(f, i) || !stands(&t->settings[i]) ||
                cost_at(t, i) > cost_at(t, best) * (1 + near_enough(t, i, best, last)) ||
                (last && !(predicted_at(t, i) <=
                           predicted_at(t, best) * (1 + t->policy->finals.equal_rel))))
                continue;
            const int more = next >= 0 && last ? changes(t, i) - changes(t, next) : 0;
            if (next < 0 || more < 0 || (more == 0 && cost_at(t, i) < cost_at(t, next)))
                next = i;
        }
        if (next < 0)
            return;
        enter_one(f, next);
    }
}

static struct contest_side side(const struct finals *f, const struct finalist *x) {
    const struct tune_setting *s = &f->t->settings[x->at];
    return (struct contest_side){.step_ns = s->step_ns + x->first,
                                 .n = s->n - x->first,
                                 .rounds = (size_t)f->rounds,
                                 .tokens_per_step = 1 / tune_predicted_cost(f->t, &s->knobs, 1.0)};
}

// The cost of a finalist in the rounds; before them, in all visits.
static double rounds_cost(const struct finals *f, const struct finalist *x) {
    const struct tune_setting *s = &f->t->settings[x->at];
    return s->n_blocks > x->first_block
               ? tune_predicted_cost(f->t, &s->knobs, visit_typical(s, x->first_block))
               : cost_at(f->t, x->at);
}

static int leader(const struct finals *f) {
    int best = -1;
    for (int i = 0; i < f->n; i++)
        if (!f->f[i].out && (best < 0 || rounds_cost(f, &f->f[i]) < rounds_cost(f, &f->f[best])))
            best = i;
    return best;
}

static void lose(struct finals *f, int loser, double percent) {
    struct tune_setting *s = &f->t->settings[f->f[loser].at];
    f->f[loser].out = true;
    s->outcome = TUNE_SLOWER;
    snprintf(s->reason, sizeof s->reason, "%.1f %% slower than the best finalist, run in turns",
             percent);
}

// Drops the finalists that are certainly slower than the leader. True if each of the others is
// equal to the leader or slower for certain.
static bool order_is_sure(struct finals *f) {
    const struct tune_policy *p = f->t->policy;
    int best = leader(f);
    bool open = false;
    const int look = (f->rounds - p->finals.least_rounds) / p->finals.between_rounds + 1;
    // The error is shared out, so that all comparisons together are certain at the confidence.
    const double each = 1 - (1 - p->confidence) / (f->n > 1 ? f->n - 1 : 1);
    for (int i = 0; best >= 0 && i < f->n; i++) {
        if (i == best || f->f[i].out)
            continue;
        struct contest_side a = side(f, &f->f[best]), b = side(f, &f->f[i]);
        struct contest_options o = {.confidence = sample_look_confidence(each, look),
                                    .tolerance = p->finals.equal_rel,
                                    .figure = CONTEST_MEDIAN,
                                    .paired = true,
                                    .scratch = f->scratch};
        struct contest c;
        contest_hold(&c, &a, &b, &o);
        if (c.state == CONTEST_FASTER && c.high > 1 + p->finals.equal_rel)
            lose(f, i, 100 * (c.speed_ratio - 1));
        else if (c.state != CONTEST_EQUAL && c.state != CONTEST_FASTER)
            open = true;
    }
    return !open;
}

// Makes f->scratch large enough for the samples of any finalist.
static int make_scratch(struct finals *f, struct err *e) {
    size_t most = 1;
    for (int i = 0; i < f->n; i++)
        most = f->t->settings[f->f[i].at].n > most ? f->t->settings[f->f[i].at].n : most;
    double *more = realloc(f->scratch, most * sizeof *more);
    if (!more)
        return err_set(e, ERR_MEMORY, "out of memory for %zu samples", most);
    f->scratch = more;
    return 0;
}

static bool others_measured(const struct finals *f) {
    for (int i = 0; i < f->t->n; i++)
        if (i != f->f[0].at && f->t->settings[i].n > 0)
            return true;
    return false;
}

static bool round_fits(const struct finals *f) {
    double round_s =
        f->given_steps > 0 ? (double)(f->given_steps + 1) * step_seconds(&f->t->settings[0]) : 0;
    for (int i = 0; i < f->n; i++)
        if (!f->f[i].out)
            round_s += (double)(f->steps[i] + 1) * step_seconds(&f->t->settings[f->f[i].at]);
    return round_s <= tune_left_s(f->t);
}

static int run_rounds(struct finals *f, struct err *e) {
    struct tune *t = f->t;
    const struct tune_policy *p = t->policy;
    t->certain = f->n == 1 && (others_measured(f) || t->n == 1) && !t->hurried && !t->unplanned;
    // A single finalist that only an earlier search measured is measured again: the machine may
    // have been busy with other programs then.
    if (f->n == 1 && t->settings[f->f[0].at].reused == t->settings[f->f[0].at].n_blocks) {
        struct visit v = {.steps = f->steps[0], .long_run = true};
        TRY(visit_setting(t, f->f[0].at, &v, e));
        if (!stands(&t->settings[f->f[0].at]))
            f->f[0].out = true;
    }
    while (f->n > 1 && f->rounds < p->finals.most_rounds &&
           tune_searched(t) < p->time.compare_by_share && round_fits(f)) {
        for (int i = 0; i < f->n; i++) {
            if (f->f[i].out)
                continue;
            struct visit v = {.steps = f->steps[i], .long_run = true};
            size_t before = t->settings[f->f[i].at].n;
            TRY(visit_setting(t, f->f[i].at, &v, e));
            const struct tune_setting *s = &t->settings[f->f[i].at];
            if (stands(s) && tune_elapsed(t) >= 1) // the round is not whole: those before it count
                return 0;
            // A visit that ended early (over budget, failed) cannot be paired.
            if (!stands(s) || s->n - before != (size_t)f->steps[i])
                f->f[i].out = true;
        }
        if (f->given_steps > 0) {
            struct visit v = {.steps = f->given_steps, .long_run = true};
            TRY(visit_setting(t, 0, &v, e));
        }
        f->rounds++;
        t->compared = f->rounds >= p->finals.compared_rounds;
        if (f->rounds < p->finals.least_rounds ||
            (f->rounds - p->finals.least_rounds) % p->finals.between_rounds != 0)
            continue;
        TRY(make_scratch(f, e));
        if (order_is_sure(f)) {
            t->certain = true;
            return 0;
        }
    }
    return 0;
}

// ---------------------------------------------------------------- the choice

static bool may_be_chosen(const struct finals *f, int i, double limit, int most_changes) {
    return !f->f[i].out && rounds_cost(f, &f->f[i]) <= limit &&
           changes(f->t, f->f[i].at) <= most_changes;
}

// A lead smaller than the noise is luck, and the next search would choose another setting. So among
// the settings within the noise of the leader those with the fewest changes remain. Of these the
// fastest is chosen, or one that is equally fast and needs clearly less memory. No speed is given
// up for memory: every measured setting fits.
static int choose(const struct finals *f) {
    const struct tune *t = f->t;
    const struct tune_policy *p = t->policy;
    const int best = leader(f);
    if (best < 0)
        return -1;
    const double limit = rounds_cost(f, &f->f[best]) *
                         (1 + (t->certain ? p->finals.equal_rel : p->finals.apart_rel));
    int fewest = INT_MAX, fast = best, chosen;
    for (int i = 0; i < f->n; i++)
        if (may_be_chosen(f, i, limit, fewest))
            fewest = changes(t, f->f[i].at);
    for (int i = 0; i < f->n; i++)
        if (may_be_chosen(f, i, limit, fewest) &&
            (changes(t, f->f[fast].at) > fewest ||
             rounds_cost(f, &f->f[i]) < rounds_cost(f, &f->f[fast])))
            fast = i;
    chosen = fast;
    const double equal = fmin(limit, rounds_cost(f, &f->f[fast]) * (1 + p->finals.equal_rel));
    for (int i = 0; i < f->n; i++)
        if (may_be_chosen(f, i, equal, fewest) &&
            (double)t->settings[f->f[i].at].need_bytes <
                p->finals.leaner_ratio * (double)t->settings[f->f[chosen].at].need_bytes)
            chosen = i;
    return f->f[chosen].at;
}

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
        (double)more * step_seconds(&t->settings[best]) / (1e-9 * (double)t->request.time_ns);
    return share <= t->policy->time.proof_most_share ? share : 0;
}

double tune_searched(const struct tune *t) {
    return tune_elapsed(t) / (1 - proof_share(t));
}

enum proof {
    PROOF_UNDER,  // every percentile with a limit is proven under it
    PROOF_OPEN,   // time is up, and it is neither proven nor in doubt
    PROOF_DOUBTS, // far too many steps are over a limit; or too many, with no time for more
    PROOF_OVER    // a limit is certainly broken, or the setting failed
};

// Measures until every percentile with a limit is proven under it, one is proven over it, or time
// is up.
static int prove(struct tune *t, int i, enum proof *out, struct err *e) {
    const struct tune_policy *p = t->policy;
    struct tune_limit limits[TUNE_LIMITS_MOST];
    const int n = tune_limits(&t->request, &t->settings[i].knobs, limits);
    *out = PROOF_UNDER;
    for (int l = 0; l < n; l++) {
        for (int look = 1;; look++) {
            const struct tune_setting *s = &t->settings[i];
            const struct bound_verdict b = visit_bound(t, s, &limits[l]);
            if (b.state == BOUND_OVER || !stands(s)) {
                *out = PROOF_OVER;
                return 0;
            }
            if (b.state == BOUND_UNDER)
                break;
            const size_t needed = steps_needed(t, b, limits[l].p);
            size_t more = needed > s->n ? needed - s->n : p->proof.more_steps;
            double step_s = step_seconds(s);
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
            if (more > p->finals.visit_most_steps)
                more = p->finals.visit_most_steps;
            struct visit v = {.steps = (int64_t)(more < 2 ? 2 : more), .long_run = true};
            TRY(visit_setting(t, i, &v, e));
        }
    }
    return 0;
}

void finals_bounds(struct tune *t) {
    const struct tune_setting *s = &t->settings[t->chosen];
    struct tune_limit limits[TUNE_LIMITS_MOST];
    t->provisional = false;
    t->n_bounds = tune_limits(&t->request, &s->knobs, limits);
    for (int i = 0; i < t->n_bounds; i++) {
        struct tune_bound *b = &t->bounds[i];
        *b = (struct tune_bound){.p = limits[i].p,
                                 .respond = limits[i].respond,
                                 .limit_ns = limits[i].respond ? t->request.respond_ns
                                                               : t->request.limit_ns[limits[i].p],
                                 .q = tune_quantile(s, tune_percentile_of(limits[i].p))};
        // The search looked several times, so a 95 % bound of the last look alone does not hold
        // with 95 %. visit_bound does.
        b->proven =
            visit_bound(t, s, &limits[i]).state == BOUND_UNDER && b->q.upper95 <= limits[i].step_ns;
        if (b->respond) {
            b->q.value = 1e9 * tune_wait_of(&t->request, &s->knobs, 1e-9 * b->q.value);
            b->q.upper95 = 1e9 * tune_wait_of(&t->request, &s->knobs, 1e-9 * b->q.upper95);
        }
        t->provisional |= !b->proven;
    }
    // Without a figure nothing shows that the energy budget is kept.
    if (t->request.joules_per_token > 0 && !isfinite(tune_joules_per_token(s)))
        t->provisional = true;
}

static void take(struct tune *t, int at) {
    t->chosen = at;
    t->settings[at].outcome = TUNE_MEASURED;
    t->settings[at].reason[0] = '\0';
    finals_bounds(t);
}

static void refuse(struct tune *t, int at) {
    struct tune_setting *s = &t->settings[at];
    char why[TUNE_TEXT_BYTES];
    if (s->outcome == TUNE_FAILED)
        return;
    s->outcome = TUNE_OVER;
    if (visit_breaks_limit(t, s, why))
        snprintf(s->reason, sizeof s->reason, "%s", why);
}

static int compete(struct finals *f, struct err *e) {
    struct tune *t = f->t;
    enter(f);
    enter_given(f);
    TRY(run_rounds(f, e));
    for (int at = choose(f); at >= 0; at = choose(f)) {
        enum proof proof;
        TRY(prove(t, at, &proof, e));
        if (proof == PROOF_UNDER || proof == PROOF_OPEN) {
            take(t, at);
            return 0;
        }
        for (int i = 0; i < f->n; i++)
            if (f->f[i].at == at)
                f->f[i].out = true;
        if (proof == PROOF_OVER)
            refuse(t, at);
        else
            t->settings[at].doubtful = true;
    }
    return 0;
}

int finals_run(struct tune *t, struct err *e) {
    struct finals f = {.t = t};
    int rc = compete(&f, e);
    free(f.scratch);
    return rc;
}

void finals_take_doubtful(struct tune *t) {
    int best = -1;
    for (int i = 0; i < t->n; i++) {
        struct tune_setting *s = &t->settings[i];
        if (!s->doubtful || s->outcome == TUNE_FAILED)
            continue;
        // A typical step over the limit breaks the budget, however few steps there are.
        if (visit_strain(t, s) > 1) {
            s->outcome = TUNE_OVER;
            snprintf(s->reason, sizeof s->reason,
                     "a typical step is %.3g times as long as the budget allows (n=%zu)",
                     visit_strain(t, s), s->n);
        } else if (best < 0 || cost_at(t, i) < cost_at(t, best))
            best = i;
    }
    if (best >= 0)
        take(t, best);
}

// ---------------------------------------------------------------- the frontier

// a is no worse than b in all figures and better in one. Energy counts only where both were
// metered.
static bool dominates(const struct tune_setting *a, const struct tune_setting *b, double p99_a,
                      double p99_b) {
    double speed_a = tune_tokens_per_s(a), speed_b = tune_tokens_per_s(b);
    double joules_a = tune_joules_per_token(a), joules_b = tune_joules_per_token(b);
    bool metered = isfinite(joules_a) && isfinite(joules_b);
    bool no_worse = speed_a >= speed_b && p99_a <= p99_b && a->need_bytes <= b->need_bytes &&
                    !(metered && joules_a > joules_b);
    bool better = speed_a > speed_b || p99_a < p99_b || a->need_bytes < b->need_bytes ||
                  (metered && joules_a < joules_b);
    return no_worse && better;
}

void frontier_mark(struct tune *t) {
    double *p99 = calloc((size_t)t->n, sizeof *p99);
    for (int i = 0; p99 && i < t->n; i++)
        p99[i] = t->settings[i].n > 0 ? tune_quantile(&t->settings[i], 0.99).value : NAN;
    for (int i = 0; p99 && i < t->n; i++) {
        struct tune_setting *s = &t->settings[i];
        s->frontier = s->n > 0 && s->outcome != TUNE_FAILED;
        for (int k = 0; k < t->n && s->frontier; k++)
            if (k != i && t->settings[k].n > 0 && t->settings[k].outcome != TUNE_FAILED &&
                dominates(&t->settings[k], s, p99[k], p99[i]))
                s->frontier = false;
    }
    free(p99);
}
