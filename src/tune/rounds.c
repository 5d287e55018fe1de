// rounds.c - settings run in turns, so that they can be compared.
//
// A machine's speed changes over minutes, and other programs come and go. So settings are compared
// within rounds: each round visits every setting once, and only figures of the same round are held
// against each other. The order of the visits is reversed from round to round, because the machine
// may become slower or faster within a round. A visit in which other programs were busy does not
// count, and neither does its pair with any other setting: the round is repeated by playing more.
// So it is with a visit during which the CPUs moved, and with a pair of visits between which they
// did (states.c).
#include "tune/tune_impl.h"

#include <math.h>

double setting_step_s(const struct tune_setting *s) {
    return fmax(1e-9 * (double)s->wall_ns / (double)s->n, 1e-9);
}

void rounds_begin(struct rounds *r, struct tune *t) {
    *r = (struct rounds){.t = t};
}

// Steps of one visit.
static int64_t visit_steps(const struct tune *t, int i) {
    const struct tune_policy *p = t->policy;
    const double visit_s =
        fmax(p->rounds.visit_share * 1e-9 * (double)t->request.time_ns, p->rounds.visit_least_s);
    return (int64_t)fmin(fmax(2, ceil(visit_s / setting_step_s(&t->settings[i]))),
                         (double)p->rounds.visit_most_steps);
}

double rounds_share(const struct tune *t, int at, int rounds) {
    const double seconds =
        rounds * (double)(visit_steps(t, at) + 1) * setting_step_s(&t->settings[at]);
    const double elapsed = tune_elapsed(t);
    // Time that is kept for the proof is not the search's.
    const double all = elapsed > 0 ? tune_searched(t) / elapsed : 1;
    return all * seconds / (1e-9 * (double)t->request.time_ns);
}

// A setting that was never measured gets a visit first, which also says how long its steps are.
int rounds_seat(struct rounds *r, int at, struct err *e) {
    struct tune *t = r->t;
    if (r->n == TUNE_FINALISTS_ROOM)
        return 0;
    if (t->settings[at].n == 0)
        TRY(visit_setting(t, at, &(struct visit){.judged = true}, e));
    if (t->settings[at].n == 0 || t->settings[at].outcome == TUNE_FAILED)
        return 0;
    r->seats[r->n++] = (struct seat){.at = at, .steps = visit_steps(t, at)};
    return 0;
}

int rounds_seat_of(const struct rounds *r, int at) {
    for (int i = 0; i < r->n; i++)
        if (r->seats[i].at == at)
            return i;
    return -1;
}

double rounds_seconds(const struct rounds *r) {
    double s = 0;
    for (int i = 0; i < r->n; i++)
        if (!r->seats[i].out)
            s += (double)(r->seats[i].steps + 1) * setting_step_s(&r->t->settings[r->seats[i].at]);
    return s;
}

// The recipe as given is compared with even if it breaks a budget.
static bool may_go_on(const struct tune_setting *s, int at) {
    return s->outcome != TUNE_FAILED && (at == 0 || setting_stands(s));
}

static int visit_seat(struct rounds *r, struct seat *x, struct err *e) {
    struct tune *t = r->t;
    const int before = t->settings[x->at].n_blocks;
    const struct visit v = {.steps = x->steps, .long_run = true};
    TRY(visit_setting(t, x->at, &v, e));
    const struct tune_setting *s = &t->settings[x->at];
    x->cost[r->done] = x->apart_ns[r->done] = NAN;
    x->moved[r->done] = false;
    if (!may_go_on(s, x->at))
        x->out = true;
    else if (s->n_blocks > before && !s->blocks[before].busy) {
        x->cost[r->done] = log(tune_predicted_cost(t, &s->knobs, visit_typical(s, before)));
        x->apart_ns[r->done] = s->blocks[before].apart_ns;
        x->moved[r->done] = s->blocks[before].moved;
        x->tokens += s->blocks[before].tokens;
        x->wall_ns += s->blocks[before].wall_ns;
        x->quiet++;
    }
    return 0;
}

int rounds_play(struct rounds *r, bool *whole, struct err *e) {
    *whole = false;
    if (r->done == ROUNDS_MOST || rounds_seconds(r) > tune_left_s(r->t))
        return 0;
    for (int k = 0; k < r->n; k++) {
        struct seat *x = &r->seats[r->done % 2 ? r->n - 1 - k : k];
        if (!x->out)
            TRY(visit_seat(r, x, e));
        else
            x->cost[r->done] = x->apart_ns[r->done] = NAN;
        if (tune_elapsed(r->t) >= 1 && k < r->n - 1) // the rounds before it count
            return 0;
    }
    r->done++;
    *whole = true;
    return 0;
}

void rounds_compare(const struct rounds *r, int a, int b, double confidence, struct contest *out) {
    struct tune_state of[TUNE_STATES_MOST];
    rounds_states(r, a, b, confidence, of, out);
}

static bool met_others(const struct rounds *r, int i) {
    for (int k = 0; k < r->done; k++)
        if (!r->seats[i].out && isnan(r->seats[i].cost[k]))
            return true;
    return false;
}

int rounds_announce(const struct rounds *r, int a, int b, double confidence,
                    struct tune_state of[TUNE_STATES_MOST], struct contest *out) {
    const int n = rounds_states(r, a, b, confidence, of, out);
    const double drift = met_others(r, a) || met_others(r, b) ? r->t->policy->duel.drift_rel : 0;
    out->low /= 1 + drift;
    out->high *= 1 + drift;
    for (int s = 0; s < n; s++)
        of[s].low /= 1 + drift, of[s].high *= 1 + drift;
    return n;
}

int rounds_pairs(const struct rounds *r, int a, int b) {
    int state[ROUNDS_MOST], n = 0;
    rounds_paired(r, a, b, state);
    for (int i = 0; i < r->done; i++)
        n += state[i] >= 0;
    return n;
}

// Median of a seat's logarithms of cost; NaN: no visit counts.
static double middle(const struct seat *x, int rounds) {
    double of[ROUNDS_MOST];
    size_t n = 0;
    for (int k = 0; k < rounds; k++)
        if (isfinite(x->cost[k]))
            of[n++] = x->cost[k];
    return sample_median(of, n);
}

// Median of these less those of another seat, in the rounds that count; NaN: none does.
static double middle_less(const struct rounds *r, int i, int less) {
    int state[ROUNDS_MOST];
    double of[ROUNDS_MOST];
    size_t n = 0;
    if (i == less)
        return 0;
    rounds_paired(r, i, less, state);
    for (int k = 0; k < r->done; k++)
        if (state[k] >= 0)
            of[n++] = r->seats[i].cost[k] - r->seats[less].cost[k];
    return sample_median(of, n);
}

// Seats are compared through the one with the most rounds that count, within these rounds: the
// machine may have been slower in the others.
double rounds_cost(const struct rounds *r, int i) {
    int most = 0;
    for (int k = 1; k < r->n; k++)
        most = r->seats[k].quiet > r->seats[most].quiet ? k : most;
    const double log_cost = middle_less(r, i, most) + middle(&r->seats[most], r->done);
    return isfinite(log_cost) ? exp(log_cost) : tune_cost(r->t, &r->t->settings[r->seats[i].at]);
}

int rounds_leader(const struct rounds *r, bool with_given) {
    int best = -1;
    for (int i = 0; i < r->n; i++)
        if (!r->seats[i].out && setting_stands(&r->t->settings[r->seats[i].at]) &&
            (with_given || r->seats[i].at != 0) &&
            (best < 0 || rounds_cost(r, i) < rounds_cost(r, best)))
            best = i;
    return best;
}

// Tokens per second of the seat `base` are those of its visits that count. Those of the others
// follow from their ratios, so that the figures agree with the comparison.
void rounds_keep(const struct rounds *r, int base, double confidence) {
    struct tune *t = r->t;
    const struct seat *b = &r->seats[base];
    const double base_speed =
        b->wall_ns > 0 ? (double)b->tokens / (1e-9 * (double)b->wall_ns) : NAN;
    const struct knobs *of_base = &t->settings[b->at].knobs;
    for (int i = 0; i < r->n && isfinite(base_speed); i++) {
        struct tune_setting *s = &t->settings[r->seats[i].at];
        struct tune_turns turns = {.rounds = rounds_pairs(r, i, base), .low = NAN, .high = NAN};
        struct contest c;
        if (turns.rounds == 0)
            continue;
        turns.n_states = rounds_announce(r, i, base, confidence, turns.states, &c);
        turns.ratio = i == base                 ? 1
                      : isfinite(c.speed_ratio) ? c.speed_ratio
                                                : rounds_cost(r, base) / rounds_cost(r, i);
        if (i != base)
            turns.low = c.low, turns.high = c.high;
        // The goal may be the time of a sample. Then speed for the goal is not tokens per second.
        const double per_goal =
                         tune_predicted_cost(t, of_base, 1) / tune_predicted_cost(t, &s->knobs, 1),
                     per_token = (double)tune_samples_per_step(&s->knobs) * (double)s->knobs.seq /
                                 ((double)tune_samples_per_step(of_base) * (double)of_base->seq);
        turns.tokens_per_s = base_speed * turns.ratio / per_goal * per_token;
        s->turns = turns;
    }
}
