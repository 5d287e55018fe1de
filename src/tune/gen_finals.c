// gen_finals.c - how a search for generation decides, in four steps as the search for training
// does:
//
//   1. contenders   the best settings and the one as given run in turns until one is surely best
//   2. pruning      changes that buy nothing are taken back
//   3. the duel     what is left and the setting as given, alone, in new rounds. Their number is
//                   fixed before the first of them, so one look at 95 % is one look.
//   4. the proof    that the choice keeps its budgets, with all of its times so far
//
// The setting as given stays unless the other is faster beyond the interval of the duel, or the
// setting as given cannot be used at all.
#include "tune/gen.h"

#include "base/text.h"
#include "measure/bound.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

// Shares of the time. Chosen, not measured.
static const double CONTEND_BY = 0.60, PRUNE_BY = 0.72, DUEL_BY = 0.90;
// Contenders cost at most this much more than the best.
static const double NEAR_REL = 0.08;
enum {
    CONTENDERS = 4,
    SEATS = CONTENDERS + 1,
    ROUNDS_LEAST = 6, // signed ranks of fewer have no 95 % interval
    DUEL_ROUNDS = 24, // most; more change an interval of a few percent little
    CONTEND_ROUNDS = 12,
    ATTEMPTS = 3 // choices that turn out to break a budget
};

struct seat {
    int at;
    bool out;
    double cost[CONTEST_MOST_BLOCKS]; // logarithms; NaN: the visit does not count
};

struct turns {
    struct gen *g;
    struct seat seats[SEATS];
    int n, done;
};

// ---------------------------------------------------------------- rounds

static bool stands(const struct gen *g, int i) {
    const struct gen_setting *s = &g->settings[i];
    return s->visits > 0 && s->outcome == TUNE_MEASURED && gen_strain(g, s) <= 1;
}

static bool runs(const struct gen *g, int i) {
    const struct gen_setting *s = &g->settings[i];
    return s->visits > 0 && s->outcome != TUNE_FAILED && s->outcome != TUNE_REFUSED;
}

static void seat(struct turns *r, int at) {
    for (int i = 0; i < r->n; i++)
        if (r->seats[i].at == at)
            return;
    if (r->n < SEATS && runs(r->g, at))
        r->seats[r->n++] = (struct seat){.at = at};
}

static double round_share(const struct turns *r) {
    double s = 0;
    for (int i = 0; i < r->n; i++)
        s += r->seats[i].out ? 0 : r->g->settings[r->seats[i].at].whole_s;
    return s / (1e-9 * (double)r->g->request.time_ns);
}

// Plays a round that ends by then. *whole is false if there is no time for it.
static int play(struct turns *r, double by, bool *whole, struct err *e) {
    *whole = r->done < CONTEST_MOST_BLOCKS && gen_elapsed(r->g) + round_share(r) <= by;
    for (int k = 0; *whole && k < r->n; k++) {
        struct seat *x = &r->seats[r->done % 2 ? r->n - 1 - k : k];
        x->cost[r->done] = NAN;
        if (x->out)
            continue;
        const int before = r->g->settings[x->at].visits;
        TRY(gen_visit(r->g, x->at, e));
        const struct gen_setting *s = &r->g->settings[x->at];
        if (s->visits > before)
            x->cost[r->done] = log(s->last);
        x->out = !runs(r->g, x->at) || (x->at != 0 && s->outcome == TUNE_OVER);
    }
    r->done += *whole;
    return 0;
}

static int pairs(const struct turns *r, int a, int b) {
    int n = 0;
    for (int i = 0; i < r->done; i++)
        n += isfinite(r->seats[a].cost[i] - r->seats[b].cost[i]);
    return n;
}

static void compare(const struct turns *r, int a, int b, double confidence, struct contest *out) {
    const struct contest_options o = {.confidence = confidence,
                                      .tolerance = r->g->policy->rounds.equal_rel};
    contest_rounds(out, r->seats[a].cost, r->seats[b].cost, (size_t)r->done, &o);
}

// How many times as much a costs as b, in the rounds of both.
static double lead(const struct turns *r, int b, int a) {
    double of[CONTEST_MOST_BLOCKS];
    size_t n = 0;
    for (int i = 0; i < r->done; i++) {
        const double x = r->seats[a].cost[i] - r->seats[b].cost[i];
        if (isfinite(x))
            of[n++] = x;
    }
    return n > 0 ? exp(sample_median(of, n))
                 : gen_cost(&r->g->settings[r->seats[a].at]) /
                       gen_cost(&r->g->settings[r->seats[b].at]);
}

static bool is_busy(const struct turns *r, int i) {
    for (int k = 0; k < r->done; k++)
        if (!r->seats[i].out && isnan(r->seats[i].cost[k]))
            return true;
    return false;
}

// What the rounds say of seat a against seat b, as it is told to people.
static struct tune_turns tell(const struct turns *r, int a, int b, struct contest *c) {
    struct tune_turns t = {.rounds = pairs(r, a, b), .ratio = 1, .low = NAN, .high = NAN};
    if (a != b) {
        compare(r, a, b, r->g->policy->confidence, c);
        if (is_busy(r, a) || is_busy(r, b)) {
            c->low /= 1 + r->g->policy->duel.drift_rel;
            c->high *= 1 + r->g->policy->duel.drift_rel;
        }
        t.ratio = isfinite(c->speed_ratio) ? c->speed_ratio : lead(r, a, b);
        t.low = c->low, t.high = c->high;
    }
    t.tokens_per_s = gen_tokens_per_s(&r->g->settings[r->seats[b].at]) * t.ratio;
    return t;
}

static void keep_turns(const struct turns *r) {
    struct contest c;
    if (r->n == 0 || r->seats[0].at != 0)
        return;
    for (int i = 0; i < r->n; i++)
        if (pairs(r, i, 0) > 0)
            r->g->settings[r->seats[i].at].turns = tell(r, i, 0, &c);
}

// ---------------------------------------------------------------- contenders

static int changes(const struct gen *g, int i) {
    const struct gen_point *a = &g->settings[i].point, *b = &g->settings[0].point;
    return (a->format != b->format) + (a->threads != b->threads) + (a->chunk != b->chunk) +
           (a->batch != b->batch);
}

static int leader(const struct turns *r) {
    int best = -1;
    for (int i = 0; i < r->n; i++)
        if (!r->seats[i].out && r->seats[i].at != 0 && stands(r->g, r->seats[i].at) &&
            (best < 0 || lead(r, best, i) < 1))
            best = i;
    return best;
}

static void seat_contenders(struct turns *r) {
    const struct gen *g = r->g;
    double best = INFINITY;
    seat(r, 0);
    for (int i = 1; i < g->n; i++)
        if (stands(g, i))
            best = fmin(best, gen_cost(&g->settings[i]));
    for (int k = 0; k < CONTENDERS; k++) {
        int next = -1;
        for (int i = 1; i < g->n; i++) {
            bool seated = !stands(g, i) || gen_cost(&g->settings[i]) > (1 + NEAR_REL) * best;
            for (int j = 0; j < r->n; j++)
                seated |= r->seats[j].at == i;
            if (!seated && (next < 0 || gen_cost(&g->settings[i]) < gen_cost(&g->settings[next])))
                next = i;
        }
        if (next >= 0)
            seat(r, next);
    }
}

static int contend(struct turns *r, double by, struct err *e) {
    int looks = 0;
    for (bool whole = r->n > 2; whole && r->done < CONTEND_ROUNDS;) {
        int left = 0;
        TRY(play(r, by, &whole, e));
        const int best = leader(r);
        if (best < 0)
            return 0;
        if (!whole || r->done < ROUNDS_LEAST || (r->done - ROUNDS_LEAST) % 3 != 0)
            continue;
        const double confidence =
            1 - (1 - sample_look_confidence(r->g->policy->confidence, ++looks)) / r->n;
        for (int i = 0; i < r->n; i++) {
            struct contest c;
            if (i == best || r->seats[i].out || r->seats[i].at == 0)
                continue;
            compare(r, best, i, confidence, &c);
            r->seats[i].out = c.state == CONTEST_FASTER;
            left += !r->seats[i].out;
        }
        if (left == 0)
            return 0;
    }
    return 0;
}

// Whether one of two settings that are equally fast is to be preferred: its format is nearer to the
// model as given, or nothing says so and it is the faster one.
static bool is_better(const struct turns *r, int i, int than) {
    const struct gen *g = r->g;
    const int a = g->settings[r->seats[i].at].point.format,
              b = g->settings[r->seats[than].at].point.format;
    const double x = a == 0 ? 0 : g->request.formats[a].kl,
                 y = b == 0 ? 0 : g->request.formats[b].kl;
    return a != b && isfinite(x) && isfinite(y) ? x < y : lead(r, than, i) < 1;
}

// Of the seats whose distance from the leader may be luck, the one with the fewest changes; of
// several, the one that is_better.
static int pick(const struct turns *r) {
    const struct gen *g = r->g;
    int taken = leader(r);
    const int best = taken;
    for (int i = 0; best >= 0 && i < r->n; i++) {
        struct contest c;
        if (r->seats[i].out || r->seats[i].at == 0 || !stands(g, r->seats[i].at))
            continue;
        compare(r, best, i, g->policy->finals.keep_change_confidence, &c);
        const double behind = lead(r, best, i) - 1;
        const bool luck = behind <= g->policy->rounds.equal_rel ||
                          (behind <= g->policy->finals.apart_rel && c.state != CONTEST_FASTER);
        const int now = changes(g, r->seats[taken].at), then = changes(g, r->seats[i].at);
        if (luck && (then < now || (then == now && is_better(r, i, taken))))
            taken = i;
    }
    return taken;
}

// ---------------------------------------------------------------- pruning

// The setting in seat 0 in turns with itself without one of its changes each. One of these is taken
// if it keeps the budgets and seat 0 is not faster at 90 %. Then again, until nothing is taken
// back.
static int prune(struct gen *g, int *at, struct err *e) {
    while (changes(g, *at) > 1) {
        struct turns r = {.g = g};
        seat(&r, *at);
        for (int d = 0; d < GEN_DIMENSIONS; d++) {
            int back[GEN_DIMENSIONS];
            memcpy(back, g->settings[*at].at, sizeof back);
            back[d] = g->request.space.given[d];
            const int i = gen_add(g, back, e);
            TRY(i < 0 ? i : 0);
            if (i == *at || i == 0 || g->settings[i].outcome == TUNE_REFUSED)
                continue;
            if (g->settings[i].visits == 0)
                TRY(gen_visit(g, i, e));
            // What is far behind is needed without more rounds.
            if (stands(g, i) && gen_cost(&g->settings[i]) <= g->policy->finals.surely_slower_ratio *
                                                                 gen_cost(&g->settings[*at]))
                seat(&r, i);
        }
        for (bool whole = r.n > 1; whole && r.done < ROUNDS_LEAST + 2;)
            TRY(play(&r, PRUNE_BY, &whole, e));
        int taken = 0;
        for (int i = 1; i < r.n; i++) {
            struct contest c;
            compare(&r, 0, i, g->policy->finals.keep_change_confidence, &c);
            const bool slower = pairs(&r, 0, i) < ROUNDS_LEAST
                                    ? lead(&r, 0, i) > 1 + g->policy->rounds.equal_rel
                                    : c.state == CONTEST_FASTER;
            if (!r.seats[i].out && stands(g, r.seats[i].at) && !slower &&
                (taken == 0 || lead(&r, taken, i) < 1))
                taken = i;
        }
        if (taken == 0)
            return 0;
        *at = r.seats[taken].at;
    }
    return 0;
}

// ---------------------------------------------------------------- the duel

// So many rounds as fit. Rounds that do not count because others were busy are played again while
// there is time, which does not depend on how the duel stands.
static int duel(struct gen *g, int at, struct contest *c, int *played, struct err *e) {
    struct turns r = {.g = g};
    *c = (struct contest){.speed_ratio = NAN, .low = NAN, .high = NAN};
    *played = 0;
    g->gain = (struct tune_turns){.ratio = NAN, .low = NAN, .high = NAN};
    seat(&r, 0);
    seat(&r, at);
    if (r.n < 2)
        return 0;
    const double share = fmax(round_share(&r), 1e-9), left = DUEL_BY - gen_elapsed(g),
                 all = 1 - gen_elapsed(g);
    double rounds = floor(fmin(left / share, DUEL_ROUNDS));
    double by = DUEL_BY;
    if (rounds < ROUNDS_LEAST) // the duel comes before the proof
        by = 1, rounds = floor(fmin(all / share, ROUNDS_LEAST));
    for (bool whole = true;
         whole && pairs(&r, 0, 1) < (int)rounds && !r.seats[0].out && !r.seats[1].out;)
        TRY(play(&r, by, &whole, e));
    *played = r.done;
    if (pairs(&r, 0, 1) > 0)
        g->gain = tell(&r, 1, 0, c);
    if (pairs(&r, 0, 1) > 0)
        keep_turns(&r);
    return 0;
}

// ---------------------------------------------------------------- the proof

static enum bound_state bound_of(const struct gen *g, int i, enum gen_limit l) {
    const struct gen_setting *s = &g->settings[i];
    size_t over = 0;
    for (size_t k = 0; k < s->n[l]; k++)
        over += s->ns[l][k] > (double)g->request.limit_ns[l];
    return sample_bound_watch(s->n[l], over, g->request.p, g->policy->confidence).state;
}

// Measures until each budget is proven or broken, or time is up. *good: it is not known to be
// broken, and not more often over than it may be.
static int prove(struct gen *g, int i, bool *good, struct err *e) {
    for (;;) {
        bool open = false;
        for (int l = 0; l < GEN_LIMITS; l++)
            open |= g->request.limit_ns[l] > 0 && bound_of(g, i, (enum gen_limit)l) == BOUND_OPEN;
        *good = stands(g, i);
        const double visit = g->settings[i].whole_s / (1e-9 * (double)g->request.time_ns);
        if (!open || g->settings[i].outcome != TUNE_MEASURED || gen_elapsed(g) + visit > 1)
            return 0;
        TRY(gen_visit(g, i, e));
    }
}

static void fill_bounds(struct gen *g) {
    g->provisional = false;
    for (int l = 0; l < GEN_LIMITS; l++) {
        struct gen_bound *b = &g->bounds[l];
        b->asked = g->request.limit_ns[l] > 0;
        b->q = gen_quantile(&g->settings[g->chosen], (enum gen_limit)l, g->request.p);
        b->proven = b->asked && bound_of(g, g->chosen, (enum gen_limit)l) == BOUND_UNDER;
        g->provisional |= b->asked && !b->proven;
    }
}

// ---------------------------------------------------------------- the choice

// Only figures of settings that ran in turns can be compared closely.
static void say_slower(const struct gen *g, struct gen_setting *s) {
    const struct gen_setting *c = &g->settings[g->chosen];
    const bool turns = s->turns.rounds > 0 && c->turns.rounds > 0;
    const double behind =
        turns ? c->turns.tokens_per_s / s->turns.tokens_per_s : gen_cost(s) / gen_cost(c);
    const char *how = turns ? "in turns" : "by a glance";
    if (behind >= 2)
        snprintf(s->reason, sizeof s->reason, "takes %.1f times as long per token %s", behind, how);
    else if (behind > 1 + g->policy->rounds.equal_rel)
        snprintf(s->reason, sizeof s->reason, "%.1f %% slower per token %s", 100 * (behind - 1),
                 how);
    else
        snprintf(s->reason, sizeof s->reason, "not surely faster than the choice %s", how);
}

static void mark_slower(struct gen *g) {
    for (int i = 0; i < g->n; i++) {
        struct gen_setting *s = &g->settings[i];
        if (s->outcome == TUNE_OVER || s->outcome == TUNE_FAILED || s->outcome == TUNE_REFUSED ||
            i == g->chosen)
            continue;
        if (s->visits == 0) {
            snprintf(s->reason, sizeof s->reason,
                     s->busy > 0 ? "measured only while other programs were busy"
                                 : "not measured: not beside a setting that looked best");
            continue;
        }
        const double strain = gen_strain(g, s);
        if (strain > 1) {
            s->outcome = TUNE_OVER;
            snprintf(s->reason, sizeof s->reason, "over a budget by %.0f %%, not proven",
                     100 * (strain - 1));
            continue;
        }
        s->outcome = TUNE_SLOWER;
        say_slower(g, s);
    }
}

// Decides between as given and setting `at`, -1: there is none. Returns a choice, -1: none.
static int decide(struct gen *g, int at, struct err *e) {
    const bool given = stands(g, 0);
    struct contest c;
    int played;
    g->rival = at;
    if (at < 0) {
        g->why = given ? TUNE_WHY_ALONE : TUNE_WHY_NONE;
        return given ? 0 : -1;
    }
    TRY(duel(g, at, &c, &played, e));
    if (!stands(g, at)) // the duel has shown it
        return -1;
    if (!stands(g, 0)) {
        g->why = TUNE_WHY_NEEDED;
        return at;
    }
    if (g->gain.rounds < ROUNDS_LEAST && played > 2 * g->gain.rounds) {
        g->why = TUNE_WHY_TOO_BUSY;
        return 0;
    }
    const bool faster = g->gain.low > 1 && g->gain.ratio >= 1 + g->policy->rounds.equal_rel;
    g->why = faster ? TUNE_WHY_FASTER : g->gain.high < 1 ? TUNE_WHY_BEST : TUNE_WHY_EQUAL;
    return faster ? at : 0;
}

int gen_finals(struct gen *g, struct err *e) {
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        struct turns r = {.g = g};
        bool good;
        seat_contenders(&r);
        TRY(contend(&r, CONTEND_BY, e));
        keep_turns(&r);
        const int best = pick(&r);
        int at = best < 0 ? -1 : r.seats[best].at;
        if (at >= 0)
            TRY(prune(g, &at, e));
        const int choice = decide(g, at, e);
        if (choice < -1)
            return choice;
        if (choice < 0)
            continue;
        TRY(prove(g, choice, &good, e));
        if (!good) {
            if (g->settings[choice].outcome == TUNE_MEASURED)
                snprintf(g->settings[choice].reason, TUNE_TEXT_BYTES,
                         "more often over a budget than it may be");
            continue;
        }
        g->chosen = choice;
        break;
    }
    if (g->chosen < 0 && stands(g, 0)) {
        g->chosen = 0;
        g->why = TUNE_WHY_EQUAL;
    }
    if (g->chosen < 0) {
        g->why = TUNE_WHY_NONE;
        return 0;
    }
    fill_bounds(g);
    mark_slower(g);
    return 0;
}

// ---------------------------------------------------------------- a refusal

static size_t say_least(const struct gen *g, enum gen_limit l, char *out, size_t room) {
    const struct gen_setting *s = &g->settings[g->least[l]];
    const int n =
        snprintf(out, room, "%s of at most %.3g ms at p%g: the least here is %.3g ms, with %s",
                 gen_limit_name(l), 1e-6 * (double)g->request.limit_ns[l], 100 * g->request.p,
                 1e-6 * s->percentile[l], s->name);
    return n > 0 && (size_t)n < room ? (size_t)n : room - 1;
}

void gen_explain(struct gen *g) {
    char *out = g->why_none;
    const size_t room = sizeof g->why_none;
    size_t n = 0;
    int broken = 0;
    if (g->trials > 0 && g->busy == g->trials) {
        g->why_rc = ERR_BUSY;
        snprintf(out, room, "other programs were busy during all %d trials", g->trials);
        return;
    }
    for (int l = 0; l < GEN_LIMITS; l++) {
        const int i = g->least[l];
        if (g->request.limit_ns[l] == 0 || i < 0 ||
            g->settings[i].percentile[l] <= (double)g->request.limit_ns[l])
            continue;
        if (broken++ > 0)
            n += (size_t)snprintf(out + n, room - n, "; ");
        n += say_least(g, (enum gen_limit)l, out + n, room - n);
    }
    if (broken > 0) {
        g->why_rc = ERR_MEMORY;
        return;
    }
    const bool both = g->request.limit_ns[GEN_FIRST] > 0 && g->request.limit_ns[GEN_BETWEEN] > 0;
    if (g->least[GEN_FIRST] >= 0 &&
        (g->request.limit_ns[GEN_FIRST] > 0 || g->request.limit_ns[GEN_BETWEEN] > 0)) {
        g->why_rc = ERR_MEMORY;
        n = (size_t)snprintf(out, room, "%s",
                             both ? "each budget can be kept alone, but no setting keeps all: "
                                  : "settings that kept the budget did not keep it when they were "
                                    "measured longer: ");
        for (int l = 0; l < GEN_LIMITS; l++) {
            if (g->request.limit_ns[l] == 0 || g->least[l] < 0)
                continue;
            n += say_least(g, (enum gen_limit)l, out + n, room - n);
            if (both && l == 0)
                n += (size_t)snprintf(out + n, room - n, "; ");
        }
        return;
    }
    const struct gen_setting *lean = g->leanest >= 0 ? &g->settings[g->leanest] : NULL;
    const struct gen_setting *given = &g->settings[0];
    if (lean && lean->need_bytes > lean->have_bytes && lean->have_bytes > 0) {
        char need[TEXT_UNIT_BYTES], have[TEXT_UNIT_BYTES];
        g->why_rc = ERR_MEMORY;
        snprintf(out, room, "no setting fits %s: the least that any needs is %s, with %s",
                 text_bytes(have, lean->have_bytes), text_bytes(need, lean->need_bytes),
                 lean->name);
        return;
    }
    snprintf(out, room, "nothing could be measured: %s", given->reason);
}
