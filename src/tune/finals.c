// finals.c - the choice: the few best settings are run in turns, changes that buy nothing are taken
// back, and what is left must beat the recipe as given.
//
//   1. contenders  the best settings by their visits so far, run in turns with the recipe as given
//   2. pruning     the best of them beside itself without one of its changes. A change without
//                  which it is not slower is taken back.
//   3. the duel    it and the recipe as given, alone, in new rounds. Only these rounds say what is
//                  gained: those before chose the setting, and who is chosen for being fast looks
//                  faster than it is.
//   4. the proof   that it keeps its latency budgets. The steps of the duel count in it. It comes
//                  last, because it takes all of the time that is left if it must.
//
// The recipe as given stays unless the other is better beyond the 95 % interval of the duel, or
// the recipe as given cannot be used at all.
#include "tune/tune_impl.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double cost_at(const struct tune *t, int i) {
    return tune_cost(t, &t->settings[i]);
}

bool setting_stands(const struct tune_setting *s) {
    return s->n > 0 && !s->doubtful && (s->outcome == TUNE_MEASURED || s->outcome == TUNE_SLOWER);
}

// Knobs that differ from the recipe. batch.micro and batch.accum, which change together, are one.
static int changes(const struct tune *t, int i) {
    int n = 0;
    bool factor = false;
    for (int id = 0; id < KNOB_COUNT; id++) {
        if (knobs_same(&t->settings[i].knobs, &t->settings[0].knobs, id))
            continue;
        if (knob_info(id)->flags & KNOB_FACTOR)
            factor = true;
        else
            n++;
    }
    return n + factor;
}

// ---------------------------------------------------------------- contenders

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

// The recipe as given always takes part, if it runs at all. The best few settings enter. The last
// seat is for the setting near them with the fewest changes that was not predicted to be slower.
// Bad luck may have kept it out, and without it the next search might choose another setting.
static int enter(struct rounds *r, struct err *e) {
    struct tune *t = r->t;
    const int best = tune_best(t), most = t->policy->finals.most_settings;
    if (t->settings[0].n > 0)
        TRY(rounds_seat(r, 0, e));
    for (int seat = 0; best >= 0 && seat <= most; seat++) {
        const bool last = seat == most;
        int next = -1;
        for (int i = 0; i < t->n; i++) {
            if (rounds_seat_of(r, i) >= 0 || !setting_stands(&t->settings[i]) ||
                cost_at(t, i) > cost_at(t, best) * (1 + near_enough(t, i, best, last)) ||
                (last && !(predicted_at(t, i) <=
                           predicted_at(t, best) * (1 + t->policy->rounds.equal_rel))))
                continue;
            const int more = next >= 0 && last ? changes(t, i) - changes(t, next) : 0;
            if (next < 0 || more < 0 || (more == 0 && cost_at(t, i) < cost_at(t, next)))
                next = i;
        }
        if (next < 0)
            return 0;
        TRY(rounds_seat(r, next, e));
    }
    return 0;
}

// The confidence of the k-th look at the rounds, if n comparisons are made: all looks and all
// comparisons together err as seldom as the policy says.
static double look_confidence(const struct rounds *r, int n) {
    const struct tune_policy *p = r->t->policy;
    const int look = (r->done - p->rounds.least_rounds) / p->rounds.between_rounds + 1;
    return sample_look_confidence(1 - (1 - p->confidence) / (n > 1 ? n : 1), look);
}

static bool time_to_look(const struct rounds *r) {
    const struct tune_policy *p = r->t->policy;
    return r->done >= p->rounds.least_rounds &&
           (r->done - p->rounds.least_rounds) % p->rounds.between_rounds == 0;
}

static void lose(struct rounds *r, int loser, double ratio) {
    struct tune_setting *s = &r->t->settings[r->seats[loser].at];
    r->seats[loser].out = true;
    if (s->outcome == TUNE_OVER)
        return;
    s->outcome = TUNE_SLOWER;
    snprintf(s->reason, sizeof s->reason, "%.1f %% slower than the best finalist, run in turns",
             100 * (ratio - 1));
}

// Drops the contenders that are certainly slower than the leader. True if each of the others is
// equal to the leader or slower for certain.
static bool order_is_sure(struct rounds *r) {
    const int best = rounds_leader(r, true);
    const double confidence = look_confidence(r, r->n - 1);
    bool open = false;
    for (int i = 0; best >= 0 && i < r->n; i++) {
        struct contest c;
        if (i == best || r->seats[i].out)
            continue;
        rounds_compare(r, best, i, confidence, &c);
        if (c.state == CONTEST_FASTER && c.high > 1 + r->t->policy->rounds.equal_rel)
            lose(r, i, c.speed_ratio);
        else if (c.state != CONTEST_EQUAL && c.state != CONTEST_FASTER)
            open = true;
    }
    return !open;
}

// The share of the time by which the rounds before the duel of setting `at` must end, so that it
// has its rounds.
static double duel_from(const struct tune *t, int at, double by) {
    const struct tune_policy *p = t->policy;
    if (at < 0 || t->settings[0].n == 0 || t->settings[at].n == 0 || t->request.time_ns == 0)
        return by;
    const double share =
        rounds_share(t, 0, p->duel.least_rounds) + rounds_share(t, at, p->duel.least_rounds);
    return fmax(fmin(by, p->time.duel_by_share - share), 0);
}

// The same for the setting that leads.
static double contend_until(const struct rounds *r) {
    const int best = rounds_leader(r, false);
    return duel_from(r->t, best < 0 ? -1 : r->seats[best].at, r->t->policy->time.contend_by_share);
}

static int contend(struct rounds *r, struct err *e) {
    struct tune *t = r->t;
    const struct tune_policy *p = t->policy;
    while (r->n > 1 && r->done < p->rounds.most_rounds && tune_searched(t) < contend_until(r)) {
        bool whole;
        TRY(rounds_play(r, &whole, e));
        if (!whole)
            return 0;
        t->compared = r->done >= p->rounds.compared_rounds;
        if (time_to_look(r) && order_is_sure(r)) {
            t->certain = true;
            return 0;
        }
    }
    return 0;
}

static bool others_measured(const struct tune *t, int but) {
    for (int i = 0; i < t->n; i++)
        if (i != but && t->settings[i].n > 0)
            return true;
    return false;
}

// Whether the lead of one seat on another may be luck: it is small, and the rounds do not show it.
static bool may_be_luck(const struct rounds *r, int leader, int i) {
    const struct tune_policy *p = r->t->policy;
    const double lead = rounds_cost(r, i) / rounds_cost(r, leader) - 1;
    struct contest c;
    if (lead <= p->rounds.equal_rel || r->t->certain)
        return lead <= p->rounds.equal_rel;
    rounds_compare(r, leader, i, p->finals.keep_change_confidence, &c);
    return lead <= p->finals.apart_rel && c.state != CONTEST_FASTER;
}

// A lead smaller than the noise is luck, and the next search would choose another setting. So among
// the settings within the noise of the leader those with the fewest changes remain. Of these the
// fastest is taken, or one that is equally fast and needs clearly less memory. The recipe as given
// is not one of them: it fights the duel. Returns a seat; -1: none.
static int pick(const struct rounds *r) {
    const struct tune *t = r->t;
    const struct tune_policy *p = t->policy;
    const int best = rounds_leader(r, false);
    if (best < 0)
        return -1;
    int taken = best, fewest = INT_MAX;
    for (int i = 0; i < r->n; i++)
        if (r->seats[i].at != 0 && !r->seats[i].out &&
            setting_stands(&t->settings[r->seats[i].at]) && may_be_luck(r, best, i) &&
            changes(t, r->seats[i].at) < fewest)
            fewest = changes(t, r->seats[i].at);
    for (int pass = 0; pass < 2; pass++) // the fastest, then one that is leaner
        for (int i = 0; i < r->n; i++) {
            const struct tune_setting *s = &t->settings[r->seats[i].at],
                                      *now = &t->settings[r->seats[taken].at];
            if (r->seats[i].at == 0 || r->seats[i].out || !setting_stands(s) ||
                changes(t, r->seats[i].at) > fewest || !may_be_luck(r, best, i))
                continue;
            const bool better =
                pass == 0
                    ? changes(t, r->seats[taken].at) > fewest ||
                          rounds_cost(r, i) < rounds_cost(r, taken)
                    : rounds_cost(r, i) <= rounds_cost(r, taken) * (1 + p->rounds.equal_rel) &&
                          (double)s->need_bytes < p->finals.leaner_ratio * (double)now->need_bytes;
            if (better)
                taken = i;
        }
    return taken;
}

// ---------------------------------------------------------------- pruning

enum { GROUPS_MOST = TUNE_FINALISTS_ROOM - 2 };
struct group { // changes that belong together
    int ids[KNOB_COUNT];
    int n;
};

static int groups_of(const struct tune *t, int at, struct group out[GROUPS_MOST]) {
    int n = 0, factor = -1;
    for (int id = 0; id < KNOB_COUNT; id++) {
        if (knobs_same(&t->settings[at].knobs, &t->settings[0].knobs, id))
            continue;
        const bool joined = knob_info(id)->flags & KNOB_FACTOR && factor >= 0;
        if (!joined && n == GROUPS_MOST)
            continue;
        struct group *g = &out[joined ? factor : n];
        if (!joined) {
            g->n = 0;
            if (knob_info(id)->flags & KNOB_FACTOR)
                factor = n;
            n++;
        }
        g->ids[g->n++] = id;
    }
    return n;
}

static void take_back(struct knobs *k, const struct knobs *base, int id) {
    char text[KNOB_VALUE_BYTES];
    if (knobs_set_at(k, id, knobs_value(base, id, text), SET_BY_TUNER, NULL) == 0)
        k->by[id] = base->by[id];
}

// The setting without some groups of its changes, and without those that have no effect then.
// Returns its index or a negative code.
static int without(struct tune *t, int at, const struct group *groups, int n, unsigned drop,
                   struct err *e) {
    struct knobs k = t->settings[at].knobs;
    const struct knobs base = t->settings[0].knobs;
    for (int g = 0; g < n; g++)
        for (int i = 0; drop >> g & 1 && i < groups[g].n; i++)
            take_back(&k, &base, groups[g].ids[i]);
    for (int id = 0; id < KNOB_COUNT; id++)
        if (!knobs_same(&k, &base, id) && knobs_idle(&k, id))
            take_back(&k, &base, id);
    return tune_add(t, &k, STAGE_FINALISTS, e);
}

// A setting that is known to be no alternative need not be run beside the other.
static bool is_hopeless(const struct tune *t, int i, int at) {
    const struct tune_setting *s = &t->settings[i], *c = &t->settings[at];
    const double most = t->policy->finals.surely_slower_ratio;
    if (s->outcome == TUNE_REFUSED || s->outcome == TUNE_FAILED || s->outcome == TUNE_OVER ||
        s->doubtful)
        return true;
    if (s->n == 0)
        return !s->guessed && predicted_at(t, i) > most * predicted_at(t, at);
    // A visit may have met other programs, so the prediction must agree.
    return s->quiet > 0 && c->quiet > 0 && cost_at(t, i) > most * cost_at(t, at) &&
           !(predicted_at(t, i) <= predicted_at(t, at) * (1 + t->policy->rounds.equal_rel));
}

// Plays rounds until the setting in seat 0 is faster for certain than every other, or equal.
static int play_out(struct rounds *r, struct err *e) {
    const struct tune_policy *p = r->t->policy;
    while (r->n > 1 && r->done < p->rounds.most_rounds &&
           tune_searched(r->t) < duel_from(r->t, r->seats[0].at, p->time.prune_by_share)) {
        bool whole, open = false;
        TRY(rounds_play(r, &whole, e));
        if (!whole)
            return 0;
        if (!time_to_look(r))
            continue;
        for (int i = 1; i < r->n; i++) {
            struct contest c;
            rounds_compare(r, 0, i, look_confidence(r, r->n - 1), &c);
            if (c.state == CONTEST_FASTER)
                r->seats[i].out = true;
            open |= c.state == CONTEST_UNDECIDED && !r->seats[i].out;
        }
        if (!open)
            return 0;
    }
    return 0;
}

// Whether the setting in seat 0 is faster than that in seat i: beyond the interval, or by much in
// the few rounds that count. Without any such round the change is not needed: what is predicted to
// be much slower without it is not asked about (is_hopeless).
static bool is_needed(const struct rounds *r, int i) {
    const struct tune_policy *p = r->t->policy;
    const enum tune_outcome outcome = r->t->settings[r->seats[i].at].outcome;
    struct contest c;
    if (outcome == TUNE_FAILED || outcome == TUNE_OVER)
        return true;
    rounds_compare(r, 0, i, p->finals.keep_change_confidence, &c);
    if (c.state == CONTEST_UNDECIDED && rounds_pairs(r, 0, i) >= p->rounds.compared_rounds)
        return rounds_cost(r, i) > (1 + p->finals.near_rel) * rounds_cost(r, 0);
    return c.state == CONTEST_FASTER;
}

// The rounds of the contenders have shown already that setting `at` is faster than setting i.
static bool is_shown(const struct rounds *contenders, int at, int i) {
    const int a = rounds_seat_of(contenders, at), b = rounds_seat_of(contenders, i);
    struct contest c;
    if (a < 0 || b < 0)
        return false;
    rounds_compare(contenders, a, b, contenders->t->policy->confidence, &c);
    return c.state == CONTEST_FASTER;
}

// Runs setting *at in turns with itself without some of its changes. If that is not slower, it
// takes its place and *done is true.
static int take_back_all(struct tune *t, const struct group *groups, int n, unsigned drop, int *at,
                         bool *done, struct err *e) {
    struct rounds r;
    const int all = without(t, *at, groups, n, drop, e);
    *done = false;
    if (all < 0)
        return all;
    if (all == 0 || all == *at || is_hopeless(t, all, *at))
        return 0;
    rounds_begin(&r, t);
    TRY(rounds_seat(&r, *at, e));
    TRY(rounds_seat(&r, all, e));
    if (r.n < 2)
        return 0;
    TRY(play_out(&r, e));
    *done = !is_needed(&r, 1) && setting_stands(&t->settings[all]);
    if (*done)
        *at = all;
    return 0;
}

// Takes back the changes of setting *at without which it is not slower. Usually one change is the
// gain and all others are idle, so all that are in doubt are tried together first. If that is
// slower, each is tried alone, and those that can each be taken back are taken back together.
static int prune(struct tune *t, const struct rounds *contenders, int *at, struct err *e) {
    struct group groups[GROUPS_MOST];
    int reverted[GROUPS_MOST];
    const int n = groups_of(t, *at, groups);
    struct rounds r;
    unsigned doubt = 0, drop = 0;
    bool done = false;
    int best = -1;
    for (int g = 0; g < n && n > 1; g++) {
        const int i = reverted[g] = without(t, *at, groups, n, 1u << g, e);
        if (i < 0)
            return i;
        if (i != 0 && i != *at && !is_hopeless(t, i, *at) && !is_shown(contenders, *at, i))
            doubt |= 1u << g;
    }
    if (doubt & (doubt - 1)) // more than one
        TRY(take_back_all(t, groups, n, doubt, at, &done, e));
    if (doubt == 0 || done)
        return 0;
    rounds_begin(&r, t);
    TRY(rounds_seat(&r, *at, e));
    for (int g = 0; g < n && r.n > 0; g++)
        if (doubt >> g & 1)
            TRY(rounds_seat(&r, reverted[g], e));
    if (r.n < 2)
        return 0;
    TRY(play_out(&r, e));
    for (int g = 0; g < n; g++) {
        const int seat = doubt >> g & 1 ? rounds_seat_of(&r, reverted[g]) : -1;
        if (seat < 1 || is_needed(&r, seat))
            continue;
        drop |= 1u << g;
        if (best < 0 || rounds_cost(&r, seat) < rounds_cost(&r, best))
            best = seat;
    }
    if (best < 0)
        return 0;
    const int single = r.seats[best].at;
    if (drop & (drop - 1) && drop != doubt)
        TRY(take_back_all(t, groups, n, drop, at, &done, e));
    if (!done && setting_stands(&t->settings[single]))
        *at = single;
    return 0;
}

// ---------------------------------------------------------------- the duel

// The interval is narrow enough: a hundredth, or a tenth of the difference.
static bool is_precise(const struct tune_policy *p, const struct tune_state *c) {
    const double half = 0.5 * (c->high - c->low),
                 wanted =
                     fmin(fmax(p->duel.precise_rel, p->duel.precise_of_gain * fabs(c->ratio - 1)),
                          p->duel.precise_most_rel);
    return isfinite(half) && half <= wanted;
}

static bool all_precise(const struct tune_policy *p, const struct tune_state *of, int n) {
    for (int s = 0; s < n; s++)
        if (!is_precise(p, &of[s]))
            return false;
    return n > 0;
}

// Each look at the rounds has its share of the error, so that the interval of the last look holds
// the truth as often as it says.
static int duel(struct tune *t, int at, struct rounds *r, struct contest *c, double *confidence,
                struct err *e) {
    const struct tune_policy *p = t->policy;
    struct tune_state of[TUNE_STATES_MOST];
    int looks = 0, looked = -1; // at so many rounds that count
    *confidence = p->confidence;
    rounds_begin(r, t);
    TRY(rounds_seat(r, 0, e));
    TRY(rounds_seat(r, at, e));
    *c = (struct contest){.speed_ratio = NAN, .low = NAN, .high = NAN};
    // Its first rounds may take time that was kept for the proof: an unproven budget is said to be
    // one, but without these rounds nothing is known of the gain.
    while (r->n == 2 && !r->seats[0].out && !r->seats[1].out &&
           (r->done < p->duel.least_rounds ? tune_elapsed(t) : tune_searched(t)) <
               p->time.duel_by_share) {
        bool whole;
        TRY(rounds_play(r, &whole, e));
        if (!whole)
            break;
        const int pairs = rounds_pairs(r, 0, 1);
        if (pairs < p->duel.least_rounds || pairs == looked ||
            (pairs - p->duel.least_rounds) % p->rounds.between_rounds)
            continue;
        looked = pairs;
        const double confidence_now = sample_look_confidence(p->confidence, ++looks);
        if (all_precise(p, of, rounds_states(r, 1, 0, confidence_now, of, c)))
            break;
    }
    if (r->n < 2)
        return 0;
    // Too few rounds for a look before the time was up: this one is the only one.
    if (looks > 0)
        *confidence = sample_look_confidence(p->confidence,
                                             looked == rounds_pairs(r, 0, 1) ? looks : looks + 1);
    rounds_announce(r, 1, 0, *confidence, of, c);
    return 0;
}

// ---------------------------------------------------------------- the choice

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

static void take(struct tune *t, int at, enum tune_why why) {
    t->chosen = at;
    t->why = why;
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

static int prove(struct tune *t, int at, enum proof *out, struct err *e) {
    TRY(proof_run(t, at, out, e));
    if (*out == PROOF_OVER)
        refuse(t, at);
    else if (*out == PROOF_DOUBTS)
        t->settings[at].doubtful = true;
    return 0;
}

// Says why a setting was not taken although it may look faster than the recipe as given.
static void say_not_enough(struct tune *t, int at, const struct contest *c, int pairs) {
    struct tune_setting *s = &t->settings[at];
    s->outcome = TUNE_SLOWER;
    if (isfinite(c->low))
        snprintf(s->reason, sizeof s->reason,
                 "not faster than as given beyond the interval: %+.1f %% (%+.1f to %+.1f)",
                 100 * (c->speed_ratio - 1), 100 * (c->low - 1), 100 * (c->high - 1));
    else
        snprintf(s->reason, sizeof s->reason,
                 "%d round%s with as given count%s, too few to say whether it is faster", pairs,
                 pairs == 1 ? "" : "s", pairs == 1 ? "s" : "");
}

static bool has_limits(const struct tune_request *r) {
    return tune_has_limits(r) || r->respond_ns > 0;
}

static bool is_refused(enum proof p) {
    return p == PROOF_OVER || p == PROOF_DOUBTS;
}

// Keeps the recipe as given, if it keeps its budgets. A setting that is proven to keep them is
// preferred to a recipe that is not.
static int keep_given(struct tune *t, int rival, enum tune_why why, struct err *e) {
    enum proof proof, of_rival = PROOF_OPEN;
    TRY(prove(t, 0, &proof, e));
    if (proof != PROOF_UNDER && has_limits(&t->request) && setting_stands(&t->settings[rival]))
        TRY(prove(t, rival, &of_rival, e));
    const bool rival_stands = setting_stands(&t->settings[rival]);
    if (proof == PROOF_UNDER || (proof == PROOF_OPEN && !(rival_stands && of_rival == PROOF_UNDER)))
        take(t, 0, why);
    else if (rival_stands)
        take(t, rival, TUNE_WHY_NEEDED);
    return 0;
}

// Takes a setting if nothing speaks against its budgets. Otherwise the next one is tried.
static int take_proven(struct tune *t, int at, enum tune_why why, struct err *e) {
    enum proof proof;
    TRY(prove(t, at, &proof, e));
    if (is_refused(proof))
        t->rival = -1;
    else
        take(t, at, why);
    return 0;
}

// The machine may have become faster or slower since the contenders ran. Their speeds stay in
// proportion to that of the recipe as given.
static void rescale(struct tune *t, const struct rounds *r, double by) {
    for (int i = 0; i < t->n && isfinite(by); i++)
        if (t->settings[i].turns.rounds > 0 && rounds_seat_of(r, i) < 0)
            t->settings[i].turns.tokens_per_s *= by;
}

// The contenders' rounds also chose the setting: each comparison has only its share of the error.
static double contenders_confidence(const struct rounds *r) {
    return 1 - (1 - r->t->policy->confidence) / (r->n > 2 ? r->n - 1 : 1);
}

// Chooses between setting `at`, which keeps its budgets as far as is known, and the recipe as
// given.
static int settle(struct tune *t, const struct rounds *contenders, int at, struct err *e) {
    const struct tune_policy *p = t->policy;
    const bool free_to_keep = setting_stands(&t->settings[0]);
    const int given = rounds_seat_of(contenders, 0), seat = rounds_seat_of(contenders, at);
    struct contest c = {.speed_ratio = NAN};
    struct tune_state of[TUNE_STATES_MOST];
    struct rounds r;
    t->rival = at;
    if (given < 0) { // the recipe as given cannot run
        if (seat >= 0)
            rounds_keep(contenders, seat, contenders_confidence(contenders));
        return take_proven(t, at, TUNE_WHY_NEEDED, e);
    }
    rounds_keep(contenders, given, contenders_confidence(contenders));
    if (seat >= 0) {
        rounds_compare(contenders, seat, given, p->confidence, &c);
        if (free_to_keep && (c.state == CONTEST_SLOWER || c.state == CONTEST_EQUAL)) {
            say_not_enough(t, at, &c, rounds_pairs(contenders, seat, given));
            return keep_given(t, at, c.state == CONTEST_SLOWER ? TUNE_WHY_BEST : TUNE_WHY_EQUAL, e);
        }
    }
    if (!free_to_keep) { // the duel only says what is gained
        enum proof proof;
        TRY(prove(t, at, &proof, e));
        if (is_refused(proof))
            return 0;
    }
    double confidence;
    TRY(duel(t, at, &r, &c, &confidence, e));
    const int pairs = r.n == 2 ? rounds_pairs(&r, 0, 1) : 0;
    const bool too_busy = !isfinite(c.low) && r.n == 2 && r.done > 2 * pairs;
    // Without time for a duel the contenders' rounds decide.
    if (!isfinite(c.low) && !too_busy && seat >= 0)
        rounds_announce(contenders, seat, given, contenders_confidence(contenders), of, &c);
    else if (pairs > 0) {
        const double before = t->settings[0].turns.tokens_per_s;
        rounds_keep(&r, 0, confidence);
        rescale(t, &r, t->settings[0].turns.tokens_per_s / before);
    }
    if (!setting_stands(&t->settings[at])) { // it failed, or broke a budget in the end
        t->rival = -1;
        return 0; // the next one is tried
    }
    if (!free_to_keep || !setting_stands(&t->settings[0]))
        return take_proven(t, at, TUNE_WHY_NEEDED, e);
    if (c.low > 1 && c.speed_ratio >= 1 + p->rounds.equal_rel)
        return take_proven(t, at, TUNE_WHY_FASTER, e);
    say_not_enough(t, at, &c, pairs);
    return keep_given(t, at, too_busy ? TUNE_WHY_TOO_BUSY : TUNE_WHY_EQUAL, e);
}

// The contenders are all slower than the recipe as given for certain: it is kept without a duel.
static int keep_best(struct tune *t, const struct rounds *r, struct err *e) {
    const int given = rounds_seat_of(r, 0);
    int next = -1;
    for (int i = 0; i < r->n; i++)
        if (i != given && r->seats[i].out && setting_stands(&t->settings[r->seats[i].at]) &&
            (next < 0 || rounds_cost(r, i) < rounds_cost(r, next)))
            next = i;
    if (given < 0 || next < 0 || rounds_leader(r, true) != given || rounds_leader(r, false) >= 0)
        return 0;
    t->rival = r->seats[next].at;
    rounds_keep(r, given, contenders_confidence(r));
    return keep_given(t, t->rival, TUNE_WHY_BEST, e);
}

// A single finalist that only an earlier search measured is measured again: the machine may have
// been busy with other programs then.
static int look_again(struct tune *t, int at, struct err *e) {
    const struct tune_setting *s = &t->settings[at];
    const struct visit v = {.steps = 0, .long_run = false, .now = true};
    return s->reused == s->n_blocks ? visit_setting(t, at, &v, e) : 0;
}

int finals_run(struct tune *t, struct err *e) {
    struct rounds *r = calloc(1, sizeof *r);
    int rc = r ? 0 : err_set(e, ERR_MEMORY, "out of memory for the finalists");
    if (rc == 0) {
        rounds_begin(r, t);
        rc = enter(r, e);
    }
    const bool alone = rc == 0 && rounds_leader(r, false) < 0; // nothing beside as given
    if (rc == 0 && r->n == 1) {
        t->certain =
            (others_measured(t, r->seats[0].at) || t->n == 1) && !t->hurried && !t->unplanned;
        rc = look_again(t, r->seats[0].at, e);
    }
    if (rc == 0)
        rc = contend(r, e);
    if (rc == 0)
        rc = keep_best(t, r, e);
    for (int seat = 0; rc == 0 && t->chosen < 0 && (seat = pick(r)) >= 0;) {
        int at = r->seats[seat].at;
        r->seats[seat].out = true;
        rc = prune(t, r, &at, e);
        if (rc == 0)
            rc = settle(t, r, at, e);
    }
    if (rc == 0 && t->chosen < 0 && setting_stands(&t->settings[0]) && alone) {
        enum proof proof;
        rc = prove(t, 0, &proof, e);
        if (rc == 0 && !is_refused(proof))
            take(t, 0, TUNE_WHY_ALONE);
    }
    free(r);
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
        take(t, best, TUNE_WHY_NEEDED);
}
