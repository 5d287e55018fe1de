// bench_tuner.c - how good is what `haggle tune` chooses, and how quickly does it find it? Against a grid
// that is measured exhaustively, and against other ways to search the same grid.
//
// Three parts, in one run:
//   1. Every setting of the grid is measured, in two rounds there and back.
//   2. The tuner searches the same settings with SHARE of the time that took, on the machine; its choice and
//      the grid's best then run in turns, and the median ratio of their costs is the regret.
//   3. What was recorded is searched again without the machine, many times over with other draws of the same
//      samples: by the tuner, at random, and by a tree-structured Parzen estimator (Bergstra et al., 2011).
//      Printed: the measured seconds until the best so far is within 3 % of the grid's best, as quantiles,
//      and the curves with --curves FILE.
//
// usage: bench_tuner [--goal bulk|interactive] [--pairs N] [--seeds N] [--curves FILE] [--quick]
//                    [knob=value ...]     the recipe: tiny, 16 sequences of 64 tokens a step
#include "base/clock.h"
#include "base/rng.h"
#include "tune/lab.h"
#include "tune/tune.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { POINTS_MOST = 1024, SAMPLES_MOST = 256, AXES_MOST = 8, VALUES_MOST = 8, CURVE_MOST = 2048 };
static const double VISIT_S = 0.4, SHARE = 0.15, NEAR = 0.03;

struct axis {
    const char *knob;
    const char *values[VALUES_MOST]; // NULL ends them
};

// Knobs of one device that a person would think of. batch.accum follows from batch.micro.
static const struct axis AXES[] = {
    {"batch.micro", {"1", "2", "4", "8", "16"}},
    {"recompute.mode", {"none", "selective", "full"}},
    {"logits.chunk", {"0", "32"}},
    {"threads", {"0", "1"}},
    {"cpu.pin", {"false", "true"}},
    {"fuse.optim", {"true", "false"}},
};
enum { N_AXES = sizeof AXES / sizeof *AXES };

struct point {
    struct knobs knobs;
    int at[N_AXES];
    double predicted_s;
    double step_ns[SAMPLES_MOST];
    size_t n;
    double cost; // of all its samples
    bool runs;
};

struct grid {
    struct point *points;
    int n, best;
    double seconds; // that measuring it took
    enum tune_goal goal;
};

struct options {
    enum tune_goal goal;
    int pairs, seeds;
    bool quick;
    const char *curves;
    struct knobs base;
};

// ---------------------------------------------------------------- the grid

static double cost_of(const struct grid *g, const struct knobs *k, double step_s) {
    double samples = (double)(k->batch_micro * k->batch_accum);
    return g->goal == TUNE_INTERACTIVE ? step_s / (double)k->batch_accum
                                       : step_s / (samples * (double)k->seq);
}

static bool set_point(struct point *p, const struct knobs *base, const int at[N_AXES]) {
    const int64_t samples = base->batch_micro * base->batch_accum;
    p->knobs = *base;
    for (int a = 0; a < N_AXES; a++) {
        p->at[a] = at[a];
        if (knobs_set(&p->knobs, AXES[a].knob, AXES[a].values[at[a]], SET_BY_TUNER, NULL) != 0)
            return false;
    }
    p->knobs.batch_accum = samples / p->knobs.batch_micro;
    // Who set a value is not part of a setting; keep to what the search compares.
    return samples % p->knobs.batch_micro == 0;
}

static void build_grid(struct grid *g, const struct options *o) {
    int at[N_AXES] = {0};
    g->points = calloc(POINTS_MOST, sizeof *g->points);
    g->goal = o->goal;
    for (bool more = g->points != NULL; more;) {
        if (g->n < POINTS_MOST && set_point(&g->points[g->n], &o->base, at))
            g->n++;
        more = false;
        for (int a = N_AXES - 1; a >= 0 && !more; a--) {
            if (AXES[a].values[++at[a]] && !(o->quick && at[a] > 1))
                more = true;
            else
                at[a] = 0;
        }
    }
}

struct budget {
    double least_s, sum_s;
    size_t seen;
};

static enum tune_go enough(void *arg, const double *step_ns, size_t n) {
    struct budget *b = arg;
    for (; b->seen < n; b->seen++)
        b->sum_s += 1e-9 * step_ns[b->seen];
    return n >= 3 && b->sum_s > b->least_s ? TUNE_ENOUGH : TUNE_GO_ON;
}

static int visit(struct tune_lab *lab, const struct knobs *k, double seconds, double *step_ns,
                 size_t most, size_t *n, struct err *e) {
    struct budget b = {.least_s = seconds};
    struct tune_order o = {
        .warmup = 2, .steps = (int64_t)most, .step_s = NAN, .judge = enough, .judge_arg = &b};
    struct tune_measured m = {0};
    int rc = lab->measure(lab->arg, k, &o, &m, e);
    if (rc == 0 && m.rc != 0)
        fprintf(stderr, "a setting failed: %s\n", m.reason);
    *n = rc == 0 && m.rc == 0 ? m.n : 0;
    for (size_t i = 0; i < *n; i++)
        step_ns[i] = m.step_ns[i];
    free(m.step_ns);
    return rc;
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, size_t n) {
    qsort(x, n, sizeof *x, compare_doubles);
    return n == 0 ? NAN : n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

static double median_step(const double *step_ns, size_t n) {
    double copy[SAMPLES_MOST];
    memcpy(copy, step_ns, n * sizeof *copy);
    return 1e-9 * median(copy, n);
}

static int measure_grid(struct grid *g, struct tune_lab *lab, struct err *e) {
    uint64_t begin = clock_ns();
    for (int round = 0; round < 2; round++)
        for (int k = 0; k < g->n; k++) {
            struct point *p = &g->points[round ? g->n - 1 - k : k];
            size_t got = 0, room = SAMPLES_MOST / 2;
            TRY(visit(lab, &p->knobs, VISIT_S, p->step_ns + p->n, room, &got, e));
            p->n += got;
        }
    g->seconds = 1e-9 * (double)(clock_ns() - begin);
    g->best = -1;
    for (int i = 0; i < g->n; i++) {
        struct point *p = &g->points[i];
        struct tune_plan plan = {.step_s = NAN};
        TRY(lab->plan(lab->arg, &p->knobs, &plan, e));
        p->predicted_s = plan.step_s;
        p->runs = p->n > 0;
        p->cost = cost_of(g, &p->knobs, median_step(p->step_ns, p->n));
        if (p->runs && (g->best < 0 || p->cost < g->points[g->best].cost))
            g->best = i;
    }
    return 0;
}

static int find_point(const struct grid *g, const struct knobs *k) {
    for (int i = 0; i < g->n; i++)
        if (knobs_equal(&g->points[i].knobs, k))
            return i;
    return -1;
}

// ---------------------------------------------------------------- the tuner on the machine

struct within { // the laboratory, for settings of the grid alone
    const struct grid *g;
    struct tune_lab inner;
};

static int within_plan(void *arg, const struct knobs *k, struct tune_plan *out, struct err *e) {
    struct within *w = arg;
    if (find_point(w->g, k) < 0) {
        out->rc = ERR_USAGE;
        snprintf(out->reason, sizeof out->reason, "not in the grid");
        return 0;
    }
    return w->inner.plan(w->inner.arg, k, out, e);
}

static int within_measure(void *arg, const struct knobs *k, const struct tune_order *o,
                          struct tune_measured *out, struct err *e) {
    struct within *w = arg;
    return w->inner.measure(w->inner.arg, k, o, out, e);
}

static uint64_t within_clock(void *arg) {
    struct within *w = arg;
    return w->inner.clock_ns(w->inner.arg);
}

static int tune_live(const struct grid *g, struct tune_lab *lab, const struct options *o,
                     int *chosen, struct err *e) {
    struct within w = {.g = g, .inner = *lab};
    const struct tune_lab table = {
        .arg = &w, .plan = within_plan, .measure = within_measure, .clock_ns = within_clock};
    struct tune_request r = {.goal = g->goal,
                             .time_ns = (uint64_t)(1e9 * SHARE * g->seconds),
                             .cpus = (int)sysconf(_SC_NPROCESSORS_ONLN)};
    struct tune t;
    (void)o;
    int rc = tune_run(&t, &g->points[0].knobs, &r, &table, e);
    *chosen = rc == 0 && t.chosen >= 0 ? find_point(g, &t.settings[t.chosen].knobs) : -1;
    if (rc == 0)
        printf("tuner    %.1f s (%.0f %% of the grid's), %d trials: %s%s\n",
               1e-9 * (double)(t.end_ns - t.begin_ns),
               100e-9 * (double)(t.end_ns - t.begin_ns) / g->seconds, t.trials,
               t.chosen >= 0 ? t.settings[t.chosen].name : t.why_none,
               t.certain ? "" : " (order not certain)");
    tune_free(&t);
    return rc;
}

static int regret(const struct grid *g, struct tune_lab *lab, int chosen, int pairs,
                  struct err *e) {
    double ratios[64], steps[SAMPLES_MOST];
    size_t n = 0, got = 0;
    const struct knobs *k[2] = {&g->points[chosen].knobs, &g->points[g->best].knobs};
    for (int i = 0; i < pairs && i < 64; i++) {
        double cost[2];
        for (int side = 0; side < 2; side++) {
            int which = (i + side) % 2; // there and back
            TRY(visit(lab, k[which], 2 * VISIT_S, steps, SAMPLES_MOST, &got, e));
            cost[which] = cost_of(g, k[which], median_step(steps, got));
        }
        ratios[n++] = cost[0] / cost[1];
    }
    double least = INFINITY, most = 0;
    for (size_t i = 0; i < n; i++)
        least = fmin(least, ratios[i]), most = fmax(most, ratios[i]);
    printf("regret   %+.1f %% (median of %zu pairs, %+.1f to %+.1f %%)\n",
           100 * (median(ratios, n) - 1), n, 100 * (least - 1), 100 * (most - 1));
    return 0;
}

// ---------------------------------------------------------------- searching what was recorded

struct curve {
    double at_s[CURVE_MOST],
        best[CURVE_MOST]; // measured seconds; cost of the best so far, as recorded
    int n;
};

struct replay {
    const struct grid *g;
    uint64_t seed, drawn;
    double now_s;
    struct curve *curve;
    double seen; // least cost seen, by what the search saw
    int best;
};

// One visit: a block of recorded steps from a random place on.
static size_t draw(struct replay *r, int point, size_t most, double *step_ns) {
    const struct point *p = &r->g->points[point];
    size_t from = rng_below(r->seed, 1, r->drawn++, p->n);
    for (size_t i = 0; i < most; i++)
        step_ns[i] = p->step_ns[(from + i) % p->n];
    return most;
}

// What a search believes to be best is what its user gets: its recorded cost is what counts.
static void note(struct replay *r, int point, double cost) {
    struct curve *c = r->curve;
    if (cost < r->seen) {
        r->seen = cost;
        r->best = point;
    }
    if (c->n < CURVE_MOST) {
        c->at_s[c->n] = r->now_s;
        c->best[c->n++] = r->g->points[r->best].cost;
    }
}

static int replay_plan(void *arg, const struct knobs *k, struct tune_plan *out, struct err *e) {
    struct replay *r = arg;
    int i = find_point(r->g, k);
    (void)e;
    out->step_s = i >= 0 ? r->g->points[i].predicted_s : NAN;
    out->need_bytes = out->have_bytes = 1;
    if (i < 0 || !r->g->points[i].runs) {
        out->rc = ERR_USAGE;
        snprintf(out->reason, sizeof out->reason, "not in the grid");
    }
    return 0;
}

static int replay_measure(void *arg, const struct knobs *k, const struct tune_order *o,
                          struct tune_measured *out, struct err *e) {
    struct replay *r = arg;
    int i = find_point(r->g, k);
    size_t most = (size_t)o->steps;
    double *all = calloc(most + 8, sizeof *all);
    if (!all || i < 0)
        return err_set(e, ERR_MEMORY, "out of memory for a replay");
    draw(r, i, most, all);
    out->step_ns = all;
    r->now_s += 1e-9 * all[0] * (double)o->warmup;
    while (out->n < most) {
        r->now_s += 1e-9 * all[out->n];
        out->wall_ns += (uint64_t)all[out->n++];
        if (o->judge(o->judge_arg, all, out->n) != TUNE_GO_ON)
            break;
    }
    out->tokens = (uint64_t)(k->batch_micro * k->batch_accum * k->seq) * out->n;
    out->joules = NAN;
    out->split.wall_ns = out->split.ns[TIME_MATMUL] = out->wall_ns;
    note(r, i, cost_of(r->g, k, 1e-9 * (double)out->wall_ns / (double)out->n));
    return 0;
}

static uint64_t replay_clock(void *arg) {
    return (uint64_t)(1e9 * ((struct replay *)arg)->now_s);
}

static int replay_tuner(struct replay *r, struct err *e) {
    const struct tune_lab lab = {
        .arg = r, .plan = replay_plan, .measure = replay_measure, .clock_ns = replay_clock};
    struct tune_request q = {.goal = r->g->goal,
                             .time_ns = (uint64_t)(1e9 * SHARE * r->g->seconds),
                             .cpus = (int)sysconf(_SC_NPROCESSORS_ONLN)};
    struct tune t;
    int rc = tune_run(&t, &r->g->points[0].knobs, &q, &lab, e);
    tune_free(&t);
    return rc;
}

// A visit as the grid's: VISIT_S and two steps of warm-up.
static double try_point(struct replay *r, int i) {
    double step, sum = 0;
    size_t n = 0;
    draw(r, i, 1, &step);
    r->now_s += 2e-9 * step;
    while (sum < VISIT_S || n < 3) {
        draw(r, i, 1, &step);
        sum += 1e-9 * step;
        n++;
    }
    r->now_s += sum;
    double cost = cost_of(r->g, &r->g->points[i].knobs, sum / (double)n);
    note(r, i, cost);
    return cost;
}

static void replay_random(struct replay *r) {
    for (int k = 0; k < r->g->n; k++) {
        int i = (int)rng_permute(r->seed, 2, (uint64_t)k, (uint64_t)r->g->n);
        if (r->g->points[i].runs)
            try_point(r, i);
    }
}

// The better quarter of what was tried against the rest: each value of each knob by its share in both (with
// one for every value, so that none is impossible); the candidate with the largest ratio is next.
static int parzen_next(struct replay *r, const double *cost, const bool *tried, int n_tried) {
    const struct grid *g = r->g;
    double good[N_AXES][VALUES_MOST], bad[N_AXES][VALUES_MOST], sorted[POINTS_MOST];
    int n = 0, next = -1;
    for (int i = 0; i < g->n; i++)
        if (tried[i])
            sorted[n++] = cost[i];
    qsort(sorted, (size_t)n, sizeof *sorted, compare_doubles);
    double limit = sorted[(n_tried - 1) / 4];
    for (int a = 0; a < N_AXES; a++)
        for (int v = 0; v < VALUES_MOST; v++)
            good[a][v] = bad[a][v] = 1;
    for (int i = 0; i < g->n; i++)
        for (int a = 0; tried[i] && a < N_AXES; a++)
            (cost[i] <= limit ? good : bad)[a][g->points[i].at[a]]++;
    double best = -INFINITY;
    for (int i = 0; i < g->n; i++) {
        double score = 1e-6 * rng_uniform(r->seed, 3, r->drawn++); // ties by draw
        if (tried[i] || !g->points[i].runs)
            continue;
        for (int a = 0; a < N_AXES; a++)
            score += log(good[a][g->points[i].at[a]] / bad[a][g->points[i].at[a]]);
        if (score > best)
            best = score, next = i;
    }
    return next;
}

static void replay_parzen(struct replay *r) {
    enum { FIRST = 10 };
    double cost[POINTS_MOST];
    bool tried[POINTS_MOST] = {false};
    for (int k = 0; k < r->g->n; k++) {
        int i = k < FIRST ? (int)rng_permute(r->seed, 4, (uint64_t)k, (uint64_t)r->g->n)
                          : parzen_next(r, cost, tried, k);
        if (i < 0)
            return;
        cost[i] = r->g->points[i].runs ? try_point(r, i) : INFINITY;
        tried[i] = true;
    }
}

// Measured seconds after which the best so far stays within NEAR of the grid's best; NaN: never.
static double seconds_to_near(const struct grid *g, const struct curve *c) {
    double limit = g->points[g->best].cost * (1 + NEAR);
    for (int i = c->n; i > 0; i--)
        if (c->best[i - 1] > limit)
            return i < c->n ? c->at_s[i] : NAN;
    return c->n > 0 ? c->at_s[0] : NAN;
}

static int replay_all(const struct grid *g, const struct options *o, struct err *e) {
    static const char *const names[] = {"tuner", "random", "parzen"};
    FILE *f = o->curves ? fopen(o->curves, "w") : NULL;
    struct curve *c = calloc(1, sizeof *c);
    if (!c)
        return err_set(e, ERR_MEMORY, "out of memory for a curve");
    if (f)
        fprintf(f, "search,seed,seconds,cost_over_best\n");
    printf("\nmeasured seconds until the best so far stays within %.0f %% of the grid's best, %d "
           "draws\n",
           100 * NEAR, o->seeds);
    for (int how = 0; how < 3; how++) {
        double *at = calloc((size_t)o->seeds, sizeof *at);
        int n = 0, never = 0, rc = 0;
        for (int s = 0; at && s < o->seeds && rc == 0; s++) {
            struct replay r = {.g = g, .seed = (uint64_t)s + 1, .curve = c, .seen = INFINITY};
            c->n = 0;
            rc = how == 0 ? replay_tuner(&r, e) : 0;
            if (how == 1)
                replay_random(&r);
            if (how == 2)
                replay_parzen(&r);
            double t = seconds_to_near(g, c);
            if (isnan(t))
                never++;
            else
                at[n++] = t;
            for (int i = 0; f && i < c->n; i++)
                fprintf(f, "%s,%d,%.4f,%.5f\n", names[how], s + 1, c->at_s[i],
                        c->best[i] / g->points[g->best].cost);
        }
        if (rc != 0)
            return rc;
        qsort(at, (size_t)n, sizeof *at, compare_doubles);
        printf("  %-8s median %6.1f s, 90 %% within %6.1f s, never %d\n", names[how],
               n ? at[n / 2] : NAN, n ? at[(int)(0.9 * (n - 1))] : NAN, never);
        free(at);
    }
    free(c);
    if (f)
        fclose(f);
    return 0;
}

// ---------------------------------------------------------------- all of it

static int read_options(struct options *o, int argc, char **argv, struct err *e) {
    *o = (struct options){.pairs = 7, .seeds = 20};
    knobs_init(&o->base);
    o->base.seq = 64, o->base.batch_micro = 1, o->base.batch_accum = 16;
    o->base.eval_every = 0, o->base.generate_tokens = 0, o->base.save_last = false;
    for (int i = 1; i < argc; i++) {
        const char *next = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--quick") == 0)
            o->quick = true;
        else if (strcmp(argv[i], "--goal") == 0)
            o->goal = strcmp(next, "interactive") == 0 ? TUNE_INTERACTIVE : TUNE_BULK, i++;
        else if (strcmp(argv[i], "--pairs") == 0)
            o->pairs = atoi(next), i++;
        else if (strcmp(argv[i], "--seeds") == 0)
            o->seeds = atoi(next), i++;
        else if (strcmp(argv[i], "--curves") == 0)
            o->curves = next, i++;
        else
            TRY(knobs_set_assignment(&o->base, argv[i], SET_BY_COMMAND_LINE, e));
    }
    return 0;
}

static int run(const struct options *o, struct err *e) {
    struct session_options so = {
        .knobs = &o->base, .has = {[SESSION_TRAIN] = true}, .real = DTYPE_F32};
    struct lab_options lo = {.session = &so, .calibrate = true, .calibrate_s = 1};
    struct lab *lab = NULL;
    struct grid g = {0};
    int chosen = -1;
    build_grid(&g, o);
    TRY(lab_open(&lab, &lo, e));
    struct tune_lab table = lab_table(lab);
    printf("%s, goal %s, %d settings\n", o->base.model, tune_goal_name(o->goal), g.n);
    int rc = measure_grid(&g, &table, e);
    if (rc == 0 && g.best < 0)
        rc = err_set(e, ERR_INTERNAL, "no setting could be measured");
    if (rc == 0) {
        printf("grid     %.1f s; best:", g.seconds);
        for (int a = 0; a < N_AXES; a++)
            printf(" %s=%s", AXES[a].knob, AXES[a].values[g.points[g.best].at[a]]);
        printf(", %.3g %s\n", 1e3 * g.points[g.best].cost,
               o->goal == TUNE_INTERACTIVE ? "ms per sample" : "ms per token");
        rc = tune_live(&g, &table, o, &chosen, e);
    }
    if (rc == 0 && chosen >= 0)
        rc = regret(&g, &table, chosen, o->pairs, e);
    lab_close(lab);
    if (rc == 0)
        rc = replay_all(&g, o, e);
    free(g.points);
    return rc;
}

int main(int argc, char **argv) {
    struct options o;
    struct err e = {0};
    int rc = read_options(&o, argc, argv, &e);
    if (rc == 0)
        rc = run(&o, &e);
    if (rc != 0)
        fprintf(stderr, "bench_tuner: %s\n", e.text);
    return rc == 0 ? 0 : 1;
}
