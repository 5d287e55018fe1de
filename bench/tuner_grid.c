// tuner_grid.c - see tuner_grid.h.
#include "tuner_grid.h"

#include "base/clock.h"
#include "tune/tune_impl.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIRMED = 6, CONFIRM_ROUNDS = 5, VISIT_MOST = 64 };

double median_of(double *x, size_t n) {
    if (n == 0)
        return NAN;
    sample_sort(x, n);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

// ---------------------------------------------------------------- goals

double target_cost(const struct target *g, const struct knobs *k, double step_s) {
    return g->goal == TUNE_INTERACTIVE
               ? step_s / (double)k->batch_accum
               : step_s / (double)(k->batch_micro * k->batch_accum * k->seq);
}

double visit_cost(const struct target *g, const struct knobs *k, const double *step_ns, size_t n) {
    const struct tune_block all = {.n = n};
    return target_cost(g, k, tune_typical(step_ns, &all, 1));
}

// The steps that a setting is judged by: those of the second look, or else of the grid.
static const struct looks *judged(const struct point *p) {
    return p->again.n > 0 ? &p->again : &p->grid;
}

double point_cost(const struct target *g, const struct point *p) {
    const struct looks *l = judged(p);
    return target_cost(g, &p->knobs, tune_typical(l->step_ns, l->visits, l->n_visits));
}

double steps_over(const struct target *g, const struct knobs *k, const double *step_ns, size_t n) {
    const struct tune_request r = {.goal = g->goal,
                                   .respond_ns = g->respond_ns,
                                   .update_s = g->update_s,
                                   .on_device = plan_wants_device(k)};
    struct tune_limit limits[TUNE_LIMITS_MOST];
    const int n_limits = tune_limits(&r, k, limits);
    double most = n > 0 ? 0 : NAN;
    for (int i = 0; n > 0 && i < n_limits; i++) {
        size_t over = 0;
        for (size_t at = 0; at < n; at++)
            over += !(step_ns[at] <= limits[i].step_ns);
        most = fmax(most, (double)over / (1 - tune_percentile_of(limits[i].p)) / (double)n);
    }
    return most;
}

bool steps_keep(const struct target *g, const struct knobs *k, const double *step_ns, size_t n) {
    return steps_over(g, k, step_ns, n) <= 1;
}

bool point_keeps(const struct target *g, const struct point *p) {
    const struct looks *l = judged(p);
    return steps_keep(g, &p->knobs, l->step_ns, l->n);
}

// Two settings are not compared if only one had a second look: the other may just have been lucky.
static bool is_better(const struct target *g, const struct point *a, const struct point *b) {
    const bool again_a = a->again.n > 0, again_b = b->again.n > 0;
    return again_a != again_b ? again_a : point_cost(g, a) < point_cost(g, b);
}

int record_best(const struct record *r, const struct target *g) {
    int best = -1;
    for (int i = 0; i < r->n; i++)
        if (point_keeps(g, &r->points[i]) &&
            (best < 0 || is_better(g, &r->points[i], &r->points[best])))
            best = i;
    return best;
}

// ---------------------------------------------------------------- the settings

int record_plan(struct record *r, const char *const *axes, size_t n, int64_t samples,
                struct err *e) {
    struct knobs base;
    knobs_init(&base);
    base.eval_every = 0, base.generate_tokens = 0, base.save_last = false;
    TRY(grid_read(&r->axes, axes, n, e));
    r->points = calloc(r->axes.n, sizeof *r->points);
    if (!r->points)
        return err_set(e, ERR_MEMORY, "out of memory for %zu settings", r->axes.n);
    for (size_t i = 0; i < r->axes.n; i++) {
        struct point *p = &r->points[r->n];
        TRY(grid_knobs(&r->axes, i, &base, &p->knobs, e));
        if (samples > 0 && samples % p->knobs.batch_micro != 0)
            continue;
        if (samples > 0)
            p->knobs.batch_accum = samples / p->knobs.batch_micro;
        p->at = i;
        r->n++;
    }
    return r->n > 0 ? 0 : err_set(e, ERR_USAGE, "no micro-batch divides %lld", (long long)samples);
}

void record_free(struct record *r) {
    grid_free(&r->axes);
    free(r->points);
}

int record_find(const struct record *r, const struct knobs *k) {
    for (int i = 0; i < r->n; i++)
        if (knobs_equal(&r->points[i].knobs, k))
            return i;
    return -1;
}

// ---------------------------------------------------------------- measuring

struct patience {
    double least_s, sum_s;
    size_t seen;
};

static enum tune_go enough(void *arg, const double *step_ns, size_t n) {
    struct patience *b = arg;
    for (; b->seen < n; b->seen++)
        b->sum_s += 1e-9 * step_ns[b->seen];
    return n >= 3 && b->sum_s > b->least_s ? TUNE_ENOUGH : TUNE_GO_ON;
}

int visit_warmup(const struct knobs *k) {
    return plan_wants_device(k) ? TUNE_DEVICE_WARM_STEPS : TUNE_WARM_STEPS;
}

int record_visit(struct tune_lab *lab, const struct knobs *k, double seconds,
                 double step_ns[SAMPLES_MOST], size_t most, size_t *n, struct time_split *split,
                 struct err *e) {
    struct patience b = {.least_s = seconds};
    struct tune_order o = {.warmup = visit_warmup(k),
                           .steps = (int64_t)most,
                           .step_s = NAN,
                           .judge = enough,
                           .judge_arg = &b};
    struct tune_measured m = {0};
    int rc = lab->measure(lab->arg, k, &o, &m, e);
    if (rc == 0 && m.rc != 0)
        fprintf(stderr, "a setting failed: %s\n", m.reason);
    *n = rc == 0 && m.rc == 0 ? m.n : 0;
    if (*n > 0 && split)
        time_split_add(split, &m.split);
    for (size_t i = 0; i < *n; i++)
        step_ns[i] = m.step_ns[i];
    free(m.step_ns);
    return rc;
}

// Adds one visit. Steps that have no room are dropped.
static int look(struct looks *l, const struct point *p, const struct record *r,
                struct tune_lab *lab, struct time_split *split, struct err *e) {
    const size_t room = SAMPLES_MOST - l->n, most = room < VISIT_MOST ? room : VISIT_MOST;
    size_t got = 0;
    if (most == 0 || l->n_visits == GRID_ROUNDS_MOST)
        return 0;
    TRY(record_visit(lab, &p->knobs, r->visit_s, l->step_ns + l->n, most, &got, split, e));
    if (got > 0)
        l->visits[l->n_visits++] = (struct tune_block){.first = l->n, .n = got};
    l->n += got;
    return 0;
}

int record_predict(struct record *r, struct tune_lab *lab, struct err *e) {
    for (int i = 0; i < r->n; i++) {
        struct tune_plan plan = {.step_s = NAN};
        TRY(lab->plan(lab->arg, &r->points[i].knobs, &plan, e));
        r->points[i].predicted_s = plan.step_s;
    }
    return 0;
}

int record_measure(struct record *r, struct tune_lab *lab, struct err *e) {
    struct time_split split = {0};
    const uint64_t begin = clock_ns();
    for (int round = 0; round < r->rounds; round++)
        for (int k = 0; k < r->n; k++) {
            struct point *p = &r->points[round % 2 ? r->n - 1 - k : k];
            TRY(look(&p->grid, p, r, lab, &split, e));
        }
    r->seconds = 1e-9 * (double)(clock_ns() - begin);
    r->update_s =
        split.steps > 0 ? 1e-9 * (double)split.ns[TIME_OPTIMIZER] / (double)split.steps : 0;
    return 0;
}

// Marks the settings within `near` of the best.
static void mark_near(const struct record *r, const struct target *g, double near, bool *marked) {
    const int best = record_best(r, g);
    for (int i = 0; best >= 0 && i < r->n; i++)
        if (point_keeps(g, &r->points[i]))
            marked[i] |=
                point_cost(g, &r->points[i]) <= (1 + near) * point_cost(g, &r->points[best]);
}

int record_look_again(struct record *r, const struct second_look *s, struct tune_lab *lab,
                      struct err *e) {
    bool *marked = calloc((size_t)r->n, sizeof *marked);
    if (!marked)
        return err_set(e, ERR_MEMORY, "out of memory for %d settings", r->n);
    for (int i = 0; i < s->n_targets; i++)
        mark_near(r, &s->targets[i], s->near, marked);
    int rc = 0;
    for (int round = 0; rc == 0 && round < s->rounds; round++)
        for (int k = 0; rc == 0 && k < r->n; k++) {
            struct point *p = &r->points[round % 2 ? r->n - 1 - k : k];
            if (marked[p - r->points])
                rc = look(s->shared && round / 2 % 2 ? &p->grid : &p->again, p, r, lab, NULL, e);
        }
    free(marked);
    return rc;
}

// ---------------------------------------------------------------- files

static void save_looks(const struct looks *l, FILE *f) {
    fprintf(f, " %d", l->n_visits);
    for (int i = 0; i < l->n_visits; i++)
        fprintf(f, " %zu", l->visits[i].n);
    for (size_t i = 0; i < l->n; i++)
        fprintf(f, " %.0f", l->step_ns[i]);
}

int record_save(const struct record *r, const char *path, struct err *e) {
    FILE *f = fopen(path, "w");
    if (!f)
        return err_set(e, ERR_IO, "%s: cannot be written", path);
    fprintf(f, "%d %d %.9g %.9g %.9g %.9g %.9g %" PRIu64 "\n", r->n, r->rounds, r->visit_s,
            r->seconds, r->update_s, r->timing_s, r->planning_s, r->respond_ns);
    for (int i = 0; i < r->n; i++) {
        const struct point *p = &r->points[i];
        fprintf(f, "%zu %.9g", p->at, p->predicted_s);
        save_looks(&p->grid, f);
        save_looks(&p->again, f);
        fputc('\n', f);
    }
    return fclose(f) == 0 ? 0 : err_set(e, ERR_IO, "%s: cannot be written", path);
}

static bool load_looks(struct looks *l, FILE *f) {
    if (fscanf(f, "%d", &l->n_visits) != 1 || l->n_visits < 0 || l->n_visits > GRID_ROUNDS_MOST)
        return false;
    for (int i = 0; i < l->n_visits; i++) {
        l->visits[i].first = l->n;
        if (fscanf(f, "%zu", &l->visits[i].n) != 1 || l->visits[i].n > SAMPLES_MOST - l->n)
            return false;
        l->n += l->visits[i].n;
    }
    for (size_t i = 0; i < l->n; i++)
        if (fscanf(f, "%lg", &l->step_ns[i]) != 1)
            return false;
    return true;
}

static bool load_point(struct point *p, FILE *f) {
    size_t at;
    return fscanf(f, "%zu %lg", &at, &p->predicted_s) == 2 && at == p->at &&
           load_looks(&p->grid, f) && load_looks(&p->again, f);
}

static bool load_points(struct record *r, FILE *f) {
    int n;
    if (fscanf(f, "%d %d %lg %lg %lg %lg %lg %" SCNu64, &n, &r->rounds, &r->visit_s, &r->seconds,
               &r->update_s, &r->timing_s, &r->planning_s, &r->respond_ns) != 8 ||
        n != r->n)
        return false;
    for (int i = 0; i < n; i++)
        if (!load_point(&r->points[i], f))
            return false;
    return true;
}

int record_load(struct record *r, const char *path, struct err *e) {
    FILE *f = fopen(path, "r");
    const bool good = f && load_points(r, f);
    if (f)
        fclose(f);
    return good ? 0 : err_set(e, ERR_FORMAT, "%s: no record of these %d settings", path, r->n);
}

// ---------------------------------------------------------------- the best

static int best_few(const struct record *r, const struct target *g, int few[CONFIRMED]) {
    int n = 0;
    while (n < CONFIRMED) {
        int next = -1;
        for (int i = 0; i < r->n; i++) {
            bool in = !point_keeps(g, &r->points[i]);
            for (int k = 0; k < n; k++)
                in |= few[k] == i;
            if (!in && (next < 0 || is_better(g, &r->points[i], &r->points[next])))
                next = i;
        }
        if (next < 0)
            break;
        few[n++] = next;
    }
    return n;
}

int record_confirm_best(const struct record *r, const struct target *g, struct tune_lab *lab,
                        int *best, struct err *e) {
    int few[CONFIRMED];
    const int n = best_few(r, g, few);
    double costs[CONFIRMED][CONFIRM_ROUNDS], least = INFINITY;
    struct point *again = calloc(CONFIRMED, sizeof *again);
    int rc = again ? 0 : err_set(e, ERR_MEMORY, "out of memory for %d settings", CONFIRMED);
    for (int round = 0; rc == 0 && round < CONFIRM_ROUNDS; round++)
        for (int i = 0; rc == 0 && i < n; i++) {
            struct point *p = &again[i];
            double *steps = p->grid.step_ns + p->grid.n;
            size_t got = 0;
            p->knobs = r->points[few[i]].knobs;
            rc = record_visit(lab, &p->knobs, 4 * r->visit_s, steps, SAMPLES_MOST / CONFIRM_ROUNDS,
                              &got, NULL, e);
            costs[i][round] = visit_cost(g, &p->knobs, steps, got);
            p->grid.n += got;
        }
    *best = -1;
    for (int i = 0; rc == 0 && i < n; i++) {
        double cost = median_of(costs[i], CONFIRM_ROUNDS);
        if (point_keeps(g, &again[i]) && cost < least)
            least = cost, *best = few[i];
    }
    if (rc == 0 && *best < 0 && n > 0) // none kept the target this time: take the record's best
        *best = few[0];
    free(again);
    return rc;
}
