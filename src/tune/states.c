// states.c - rounds by how far the CPUs were from each other.
//
// A hypervisor moves virtual CPUs, and a scheduler moves threads: for tens of seconds they share a
// cache, and then they do not. The ratio of two settings is another one then (docs/tuner.md). So
// two visits are held against each other only if the CPUs were equally far apart in both, and a
// visit during which they moved does not count. Where rounds of several states count, what is said
// of two settings must hold in each of them: the interval reaches from the lowest to the highest of
// the states' own intervals.
//
// A state is found, not defined: the distances of all visits, sorted, are cut where one is more
// than apart_ratio times its neighbour. Settings with other threads have other distances, so visits
// are sorted among those with as many threads, pinned or not alike.
#include "tune/tune_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ANY = -1, NONE = -2 }; // the distance does not matter; the visit does not count

// ---------------------------------------------------------------- the state of a visit

static int threads_of(const struct rounds *r, int i) {
    const int64_t threads = r->t->settings[r->seats[i].at].knobs.threads;
    return threads > 0 ? (int)threads : r->t->request.cpus;
}

static bool same_place(const struct rounds *r, int i, int j) {
    return threads_of(r, i) == threads_of(r, j) &&
           knobs_same(&r->t->settings[r->seats[i].at].knobs, &r->t->settings[r->seats[j].at].knobs,
                      KNOB_cpu_pin);
}

// Where the sorted distances of the visits with seat i's threads are cut.
struct cuts {
    double at[TUNE_STATES_MOST - 1];
    int n;
    bool restless; // most visits saw a move, so that moving is how this machine is
};

static int smaller_first(const void *x, const void *y) {
    const double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static void cut(struct cuts *out, const struct rounds *r, int i) {
    double ns[TUNE_FINALISTS_ROOM * ROUNDS_MOST];
    int n = 0, moved = 0, quiet = 0;
    *out = (struct cuts){.n = 0};
    for (int j = 0; j < r->n; j++)
        for (int k = 0; same_place(r, i, j) && k < r->done; k++) {
            const struct seat *x = &r->seats[j];
            quiet += isfinite(x->cost[k]);
            moved += isfinite(x->cost[k]) && x->moved[k];
            if (isfinite(x->cost[k]) && isfinite(x->apart_ns[k]))
                ns[n++] = x->apart_ns[k];
        }
    out->restless = 2 * moved > quiet;
    if (out->restless)
        return;
    qsort(ns, (size_t)n, sizeof *ns, smaller_first);
    for (int k = 1; k < n && out->n < TUNE_STATES_MOST - 1; k++)
        if (ns[k] > r->t->policy->states.apart_ratio * ns[k - 1])
            out->at[out->n++] = ns[k];
}

static int state_of_visit(const struct cuts *c, const struct seat *x, int k) {
    int state = 0;
    if (!isfinite(x->cost[k]) || (x->moved[k] && !c->restless))
        return NONE;
    if (c->n == 0)
        return ANY;
    if (!isfinite(x->apart_ns[k]))
        return NONE;
    for (int i = 0; i < c->n; i++)
        state += x->apart_ns[k] >= c->at[i];
    return state;
}

// ---------------------------------------------------------------- the state of a round

// A setting with one thread has no distance: the state is then the other's.
static int state_of_pair(int a, int b) {
    return a == NONE || b == NONE ? NONE
           : a == ANY             ? (b == ANY ? 0 : b)
           : b == ANY || a == b   ? a
                                  : NONE;
}

int rounds_paired(const struct rounds *r, int a, int b, int state[ROUNDS_MOST]) {
    struct cuts of_a, of_b;
    int count[TUNE_STATES_MOST] = {0}, name[TUNE_STATES_MOST], seen = 0, n = 0;
    cut(&of_a, r, a);
    cut(&of_b, r, b);
    for (int k = 0; k < r->done; k++) {
        state[k] = state_of_pair(state_of_visit(&of_a, &r->seats[a], k),
                                 state_of_visit(&of_b, &r->seats[b], k));
        if (state[k] >= 0)
            seen += count[state[k]]++ == 0;
    }
    for (int s = 0; s < TUNE_STATES_MOST; s++)
        name[s] = seen == 1 ? 0 : count[s] >= r->t->policy->states.least_rounds ? n++ : NONE;
    for (int k = 0; k < r->done; k++)
        state[k] = state[k] >= 0 ? name[state[k]] : NONE;
    return seen == 1 ? 1 : n;
}

// ---------------------------------------------------------------- comparing

struct contestants {
    double a[ROUNDS_MOST], b[ROUNDS_MOST];
    size_t n;
};

static void add(struct contestants *x, double a, double b) {
    x->a[x->n] = a;
    x->b[x->n++] = b;
}

static void compare(const struct contestants *x, double confidence, struct contest *out) {
    const struct contest_options o = {.confidence = confidence};
    contest_rounds(out, x->a, x->b, x->n, &o);
}

static double typical_ns(const struct rounds *r, int a, int b, const int *state, int s) {
    double ns[2 * ROUNDS_MOST];
    size_t n = 0;
    for (int k = 0; k < r->done; k++)
        for (int side = 0; state[k] == s && side < 2; side++) {
            const double x = r->seats[side ? b : a].apart_ns[k];
            if (isfinite(x))
                ns[n++] = x;
        }
    return sample_median(ns, n);
}

// Middle and interval of one state, as far as its own rounds give them.
static void look_at(const struct contestants *x, double confidence, struct tune_state *out) {
    double log_ratio[ROUNDS_MOST];
    struct contest c;
    compare(x, confidence, &c);
    for (size_t k = 0; k < x->n; k++)
        log_ratio[k] = x->b[k] - x->a[k];
    out->rounds = (int)x->n;
    out->low = c.low;
    out->high = c.high;
    out->ratio = isfinite(c.speed_ratio) ? c.speed_ratio : exp(sample_median(log_ratio, x->n));
}

// A state with too few rounds for an interval of its own is taken to be as noisy as all states
// together are around their middles. A middle of n rounds is then off by sqrt(all / n) times as
// much as one of all rounds. Middles were taken from the same rounds, one per state, which hides
// some of the noise: all / (all - states).
static void borrow_width(const struct rounds *r, int a, int b, const int *state,
                         struct tune_state *of, int n, double confidence) {
    struct contestants x = {.n = 0};
    struct contest c;
    for (int k = 0; k < r->done; k++)
        if (state[k] >= 0)
            add(&x, r->seats[a].cost[k] + log(of[state[k]].ratio), r->seats[b].cost[k]);
    compare(&x, confidence, &c);
    const double half = 0.5 * log(c.high / c.low), all = (double)x.n;
    for (int s = 0; s < n; s++) {
        const double factor = exp(half * sqrt(all / of[s].rounds * all / (all - n)));
        if (isfinite(of[s].low) || !isfinite(factor))
            continue;
        of[s].low = of[s].ratio / factor;
        of[s].high = of[s].ratio * factor;
    }
}

int rounds_states(const struct rounds *r, int a, int b, double confidence,
                  struct tune_state of[TUNE_STATES_MOST], struct contest *out) {
    const double near = 1 + r->t->policy->rounds.equal_rel;
    int state[ROUNDS_MOST], all = 0;
    const int n = rounds_paired(r, a, b, state);
    *out = (struct contest){.speed_ratio = NAN, .low = NAN, .high = NAN};
    for (int s = 0; s < n; s++) {
        struct contestants x = {.n = 0};
        for (int k = 0; k < r->done; k++)
            if (state[k] == s)
                add(&x, r->seats[a].cost[k], r->seats[b].cost[k]);
        look_at(&x, confidence, &of[s]);
        of[s].apart_ns = typical_ns(r, a, b, state, s);
        all += of[s].rounds;
    }
    if (n > 1)
        borrow_width(r, a, b, state, of, n, confidence);
    double log_ratio = 0, low = INFINITY, high = 0;
    for (int s = 0; s < n; s++) {
        log_ratio += log(of[s].ratio) * of[s].rounds / all;
        low = isnan(of[s].low) ? NAN : fmin(low, of[s].low);
        high = isnan(of[s].high) ? NAN : fmax(high, of[s].high);
    }
    if (n == 0 || !isfinite(low) || !isfinite(high))
        return n;
    *out = (struct contest){.speed_ratio = exp(log_ratio), .low = low, .high = high};
    out->state = low > 1                           ? CONTEST_FASTER
                 : high < 1                        ? CONTEST_SLOWER
                 : low >= 1 / near && high <= near ? CONTEST_EQUAL
                                                   : CONTEST_UNDECIDED;
    return n;
}

void tune_put_states(const struct tune_turns *x, struct json_writer *w) {
    json_member_array(w, "states");
    for (int s = 0; s < x->n_states; s++) {
        json_put_object_begin(w);
        json_member_double(w, "apart_ns", x->states[s].apart_ns);
        json_member_i64(w, "rounds", x->states[s].rounds);
        json_member_double(w, "ratio", x->states[s].ratio);
        json_member_double(w, "low", x->states[s].low);
        json_member_double(w, "high", x->states[s].high);
        json_put_object_end(w);
    }
    json_put_array_end(w);
}
