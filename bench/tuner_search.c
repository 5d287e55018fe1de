// tuner_search.c - see tuner_search.h.
//
// A visit draws the recorded steps of its setting, starting at a random one of its visits. It takes
// the seconds of its steps and of its warm-up steps. What counts at any moment is the recorded cost
// of the setting that the search would name then: the best of those that keep the budget by what
// the search has seen. For the tuner at the end it is the setting that it chose. Costs come from
// other visits than those that are drawn from. A setting that breaks the budget in those visits
// does not count, however fast it is.
#include "tuner_search.h"

#include "base/rng.h"
#include "tune/tune_impl.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

enum { CURVE_MOST = 4096, VALUES_MOST = 16 };

struct curve {
    double at_s[CURVE_MOST], best[CURVE_MOST]; // recorded cost of the best so far
    int n;
};

struct replay {
    const struct record *r;
    const struct search_options *o;
    uint64_t seed, drawn;
    double now_s;
    struct curve *curve;
    double seen; // least cost that the search has seen
    int best;
};

static double recorded_cost(const struct replay *p, int point) {
    return point_cost(p->o->target, &p->r->points[point]);
}

static void draw(struct replay *p, int point, size_t most, double *step_ns) {
    const struct looks *x = &p->r->points[point].grid;
    size_t from = x->visits[rng_below(p->seed, 1, p->drawn++, (uint64_t)x->n_visits)].first;
    for (size_t i = 0; i < most; i++)
        step_ns[i] = x->step_ns[(from + i) % x->n];
}

static void mark(struct replay *p) {
    struct curve *c = p->curve;
    if (c->n < CURVE_MOST && (p->best >= 0 || c->n > 0)) {
        const bool keeps = p->best >= 0 && point_keeps(p->o->target, &p->r->points[p->best]);
        c->at_s[c->n] = p->now_s;
        c->best[c->n++] = keeps ? recorded_cost(p, p->best) : INFINITY;
    }
}

// ---------------------------------------------------------------- the tuner

static int plan(void *arg, const struct knobs *k, struct tune_plan *out, struct err *e) {
    struct replay *p = arg;
    int i = record_find(p->r, k);
    (void)e;
    out->step_s = i >= 0 ? p->r->points[i].predicted_s : NAN;
    out->need_bytes = out->have_bytes = 1;
    if (i < 0 || p->r->points[i].grid.n == 0) {
        out->rc = ERR_USAGE;
        snprintf(out->reason, sizeof out->reason, "not in the grid");
    }
    return 0;
}

static int measure(void *arg, const struct knobs *k, const struct tune_order *o,
                   struct tune_measured *out, struct err *e) {
    struct replay *p = arg;
    const int i = record_find(p->r, k);
    const size_t most = (size_t)o->steps;
    double *all = calloc(most + 1, sizeof *all);
    if (!all || i < 0)
        return err_set(e, ERR_MEMORY, "out of memory for a replay");
    draw(p, i, most, all);
    out->step_ns = all;
    p->now_s += 1e-9 * all[0] * (double)o->warmup;
    while (out->n < most) {
        p->now_s += 1e-9 * all[out->n];
        out->wall_ns += (uint64_t)all[out->n++];
        if (o->judge(o->judge_arg, all, out->n) != TUNE_GO_ON)
            break;
    }
    out->tokens = (uint64_t)(k->batch_micro * k->batch_accum * k->seq) * out->n;
    out->joules = NAN;
    out->split.wall_ns = out->split.ns[TIME_MATMUL] = out->wall_ns;
    return 0;
}

static void on_trial(void *arg, const struct tune *t, const struct tune_setting *s,
                     const struct tune_measured *m) {
    struct replay *p = arg;
    const int best = tune_best(t);
    (void)s, (void)m;
    p->best = best >= 0 ? record_find(p->r, &t->settings[best].knobs) : -1;
    mark(p);
}

static uint64_t replay_clock(void *arg) {
    return (uint64_t)(1e9 * ((struct replay *)arg)->now_s);
}

static int by_tuner(struct replay *p, struct err *e) {
    const struct tune_lab lab = {.arg = p,
                                 .plan = plan,
                                 .measure = measure,
                                 .clock_ns = replay_clock,
                                 .heard_arg = p,
                                 .on_trial = on_trial};
    p->now_s = p->r->timing_s + p->r->planning_s;
    struct tune_request q = {.begin_ns = 1, // learning counts
                             .goal = p->o->target->goal,
                             .respond_ns = p->o->target->respond_ns,
                             .update_s = p->o->target->update_s,
                             .on_device = plan_wants_device(&p->r->points[0].knobs),
                             .time_ns = (uint64_t)(1e9 * p->o->time_s),
                             .cpus = (int)sysconf(_SC_NPROCESSORS_ONLN)};
    struct tune t;
    int rc = tune_run(&t, &p->r->points[0].knobs, &q, &lab, e);
    if (rc == 0 && t.chosen >= 0) {
        p->best = record_find(p->r, &t.settings[t.chosen].knobs);
        mark(p);
    }
    tune_free(&t);
    return rc;
}

// ---------------------------------------------------------------- the other searches

// A visit as long as the grid's. Longer visits under a budget, up to the 59 steps that a bound on
// p95 needs, made both searches slower.
static double try_point(struct replay *p, int i) {
    double steps[SAMPLES_MOST], sum = 0;
    size_t n = 0;
    draw(p, i, SAMPLES_MOST, steps);
    p->now_s += 1e-9 * steps[0] * visit_warmup(&p->r->points[i].knobs);
    while (n < SAMPLES_MOST && (sum < p->r->visit_s || n < 3))
        sum += 1e-9 * steps[n++];
    p->now_s += sum;
    const struct knobs *k = &p->r->points[i].knobs;
    const double cost =
        steps_keep(p->o->target, k, steps, n) ? visit_cost(p->o->target, k, steps, n) : INFINITY;
    if (cost < p->seen) {
        p->seen = cost;
        p->best = i;
    }
    mark(p);
    return cost;
}

static int at_random(struct replay *p, struct err *e) {
    (void)e;
    for (int k = 0; k < p->r->n; k++) {
        int i = (int)rng_permute(p->seed, 2, (uint64_t)k, (uint64_t)p->r->n);
        if (p->r->points[i].grid.n > 0)
            try_point(p, i);
    }
    return 0;
}

// The index of an axis's value in a configuration; the last axis changes fastest.
static size_t value_index(const struct record *r, int point, int axis) {
    size_t i = r->points[point].at;
    for (int a = r->axes.n_axes - 1; a > axis; a--)
        i /= r->axes.axes[a].n;
    return i % r->axes.axes[axis].n;
}

// Compares the better quarter of the tried settings with the rest. Each value of each knob counts
// by its share in both, plus one so that no value is impossible. The candidate with the largest
// ratio is next.
static int parzen_next(struct replay *p, const double *cost, const bool *tried, double *sorted) {
    const struct record *r = p->r;
    double good[GRID_AXES_MOST][VALUES_MOST], bad[GRID_AXES_MOST][VALUES_MOST], most = -INFINITY;
    const int axes = r->axes.n_axes;
    size_t n = 0;
    int next = -1;
    for (int i = 0; i < r->n; i++)
        if (tried[i])
            sorted[n++] = cost[i];
    sample_sort(sorted, n);
    const double limit = sorted[(n - 1) / 4];
    for (int a = 0; a < axes; a++)
        for (int v = 0; v < VALUES_MOST; v++)
            good[a][v] = bad[a][v] = 1;
    for (int i = 0; i < r->n; i++)
        for (int a = 0; tried[i] && a < axes; a++)
            (cost[i] <= limit ? good : bad)[a][value_index(r, i, a) % VALUES_MOST]++;
    for (int i = 0; i < r->n; i++) {
        double score = 1e-6 * rng_uniform(p->seed, 3, p->drawn++); // random tie-break
        if (tried[i])
            continue;
        for (int a = 0; a < axes; a++)
            score += log(good[a][value_index(r, i, a) % VALUES_MOST] /
                         bad[a][value_index(r, i, a) % VALUES_MOST]);
        if (score > most)
            most = score, next = i;
    }
    return next;
}

static int by_parzen(struct replay *p, struct err *e) {
    enum { FIRST = 10 };
    const size_t n = (size_t)p->r->n;
    double *cost = calloc(2 * n, sizeof *cost);
    bool *tried = calloc(n, sizeof *tried);
    for (int k = 0; cost && tried && k < p->r->n; k++) {
        int i = k < FIRST ? (int)rng_permute(p->seed, 4, (uint64_t)k, n)
                          : parzen_next(p, cost, tried, cost + n);
        tried[i] = true;
        cost[i] = p->r->points[i].grid.n > 0 ? try_point(p, i) : INFINITY;
    }
    const bool done = cost && tried;
    free(cost);
    free(tried);
    return done ? 0 : err_set(e, ERR_MEMORY, "out of memory for %zu settings", n);
}

// ---------------------------------------------------------------- all searches

// Measured seconds until the best so far is near for the first time; infinity: never.
static double seconds_to_near(const struct search_options *o, const struct curve *c) {
    const double limit = o->best_cost * (1 + o->near);
    for (int i = 0; i < c->n; i++)
        if (c->best[i] <= limit)
            return c->at_s[i];
    return INFINITY;
}

// Measured seconds until it stays near: a search that measures again may name another for a while.
static double seconds_to_stay(const struct search_options *o, const struct curve *c) {
    const double limit = o->best_cost * (1 + o->near);
    for (int i = c->n; i > 0; i--)
        if (c->best[i - 1] > limit)
            return i < c->n ? c->at_s[i] : INFINITY;
    return c->n > 0 ? c->at_s[0] : INFINITY;
}

// How much more than the grid's best the best so far costs when the tuner's time is over.
static double regret_in_time(const struct search_options *o, const struct curve *c) {
    double cost = INFINITY;
    for (int i = 0; i < c->n && c->at_s[i] <= o->time_s * 1.001; i++)
        cost = c->best[i];
    return cost / o->best_cost - 1;
}

void search_write_heading(FILE *curves) {
    fprintf(curves, "target,search,seed,seconds,cost_over_best\n");
}

struct way {
    const char *name;
    int (*search)(struct replay *p, struct err *e);
};

static int try_way(const struct record *r, const struct search_options *o, const struct way *w,
                   struct curve *c, struct err *e) {
    double *at = calloc(3 * (size_t)o->seeds + 1, sizeof *at), *stays = at + o->seeds,
           *regrets = stays + o->seeds;
    int n = 0, rc = at ? 0 : err_set(e, ERR_MEMORY, "out of memory for %d draws", o->seeds);
    for (int s = 0; rc == 0 && s < o->seeds; s++) {
        struct replay p = {
            .r = r, .o = o, .seed = (uint64_t)s + 1, .curve = c, .seen = INFINITY, .best = -1};
        c->n = 0;
        rc = w->search(&p, e);
        at[s] = seconds_to_near(o, c);
        stays[s] = seconds_to_stay(o, c);
        regrets[s] = regret_in_time(o, c);
        n += isfinite(stays[s]);
        for (int i = 0; o->curves && i < c->n; i++)
            fprintf(o->curves, "%s,%s,%d,%.4f,%.5f\n", o->label, w->name, s + 1, c->at_s[i],
                    c->best[i] / o->best_cost);
    }
    if (rc == 0) {
        const int half = o->seeds / 2, most = (int)(0.9 * (o->seeds - 1));
        sample_sort(at, (size_t)o->seeds);
        sample_sort(stays, (size_t)o->seeds);
        sample_sort(regrets, (size_t)o->seeds);
        printf("  %-8s near after %6.1f s (90 %%: %6.1f), to stay after %6.1f (%6.1f), not to stay "
               "%2d of %d; after %.0f s %+.1f %% (%+.1f %%)\n",
               w->name, at[half], at[most], stays[half], stays[most], o->seeds - n, o->seeds,
               o->time_s, 100 * regrets[half], 100 * regrets[most]);
    }
    free(at);
    return rc;
}

int search_record(const struct record *r, const struct search_options *o, struct err *e) {
    static const struct way ways[] = {
        {"tuner", by_tuner}, {"random", at_random}, {"parzen", by_parzen}};
    struct curve *c = calloc(1, sizeof *c);
    int rc = c ? 0 : err_set(e, ERR_MEMORY, "out of memory for a curve");
    printf(
        "seconds  measured, until the best so far is within %.0f %% of the grid's best, as medians "
        "(and for 90 %%):\n",
        100 * o->near);
    for (size_t i = 0; rc == 0 && i < sizeof ways / sizeof *ways; i++)
        rc = try_way(r, o, &ways[i], c, e);
    free(c);
    return rc;
}
