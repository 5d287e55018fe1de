// bench_planner.c - how well haggle plan predicts published runs, and the fit of its constants.
//
//   bench_planner FILE.csv            errors by repository, with the constants as they are
//   bench_planner FILE.csv --fit      fits constants.def on the file, prints it and both errors
//   bench_planner FILE.csv --rows     also every row with its residual
//
// A repository with FEW usable rows or more counts as much as any other; all others together count
// as one. The error of a row is |predicted / measured - 1|. Left out: the constants are fitted on
// all repositories but one, which is then predicted, in turn for each. The fit is weighted least
// squares on logarithms whose weights make it the mean absolute error (iteratively reweighted), by
// Gauss and Newton's method with numeric derivatives, held near the start by a weak prior.
#include "planner/rows.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FEW = 5, ROUNDS = 8, GROUPS_MOST = 128 };

struct point {
    struct row_setup row;
    struct planner_sample *sample;
    int line, group;
    double bytes, by_class[CLASS_COUNT];
};

struct group {
    char name[64];
    int n;
};

struct bench {
    struct point *points;
    int n;
    struct group groups[GROUPS_MOST];
    int n_groups;
    int unpredicted, failed, failed_fit, ran, ran_unfit;
};

static void die(const struct err *e) {
    fprintf(stderr, "%s\n", e->text);
    exit(1);
}

static int group_of(struct bench *b, const char *name) {
    for (int i = 0; i < b->n_groups; i++)
        if (strcmp(b->groups[i].name, name) == 0)
            return i;
    if (b->n_groups == GROUPS_MOST)
        return GROUPS_MOST - 1;
    snprintf(b->groups[b->n_groups].name, sizeof b->groups[0].name, "%s", name);
    return b->n_groups++;
}

static void load(struct bench *b, const struct rows *r, const struct hardware *h) {
    b->points = calloc((size_t)r->n + 1, sizeof *b->points);
    const struct planner_constants k = planner_constants_default();
    for (int i = 0; i < r->n; i++) {
        struct point p = {.line = r->rows[i].line};
        struct estimate x;
        struct err e = {0};
        if (row_setup(&r->rows[i], h, &p.row, &e) != 0)
            continue;
        if (row_settle(&p.row, h, &k, &p.sample, &x, &e) != 0) {
            b->unpredicted += p.row.usable;
            fprintf(stderr, "line %d: %s\n", p.line, e.text);
            continue;
        }
        p.bytes = x.peak_bytes;
        memcpy(p.by_class, x.by_class, sizeof x.by_class);
        b->failed += p.row.failed;
        b->failed_fit += p.row.failed && x.fits;
        b->ran += p.row.usable;
        b->ran_unfit += p.row.usable && !x.fits;
        if (!p.row.usable) {
            planner_sample_free(p.sample);
            continue;
        }
        p.group = group_of(b, p.row.repository);
        b->groups[p.group].n++;
        b->points[b->n++] = p;
    }
}

// What a row weighs: all repositories the same, and the small ones together as one.
static double weight(const struct bench *b, int group) {
    int small = 0;
    for (int i = 0; i < b->n_groups; i++)
        small += b->groups[i].n < FEW ? b->groups[i].n : 0;
    return 1.0 / (b->groups[group].n < FEW ? small : b->groups[group].n);
}

static void predict(const struct bench *b, const struct planner_constants *k, double *out) {
    for (int i = 0; i < b->n; i++) {
        struct estimate x;
        struct err e = {0};
        if (planner_sample_estimate(b->points[i].sample, &b->points[i].row.cluster, k, &x, &e) != 0)
            die(&e);
        out[i] = x.step_s;
    }
}

// ---------------------------------------------------------------- the fit

static int by_number(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct fit {
    int n; // fitted constants
    int which[COST_COUNT];
    double *slope; // of the logarithm of row i by constant j, in units of the scale
    double *base;  // logarithm of predicted / measured
};

static double scale_of(enum planner_constant c) {
    const struct planner_constant_info *i = planner_constant_info(c);
    return i->least > 0 ? 0 : i->most; // 0: the logarithm is what moves
}

static double moved(enum planner_constant c, double x, double by) {
    const struct planner_constant_info *i = planner_constant_info(c);
    const double scale = scale_of(c), to = scale > 0 ? x + by * scale : x * exp(by);
    return to < i->least ? i->least : to > i->most ? i->most : to;
}

static double distance(enum planner_constant c, double from, double to) {
    const double scale = scale_of(c);
    return scale > 0 ? (to - from) / scale : log(to / from);
}

static struct planner_constants start_constants(void) {
    struct planner_constants k = planner_constants_default();
    for (int i = 0; i < COST_COUNT; i++) {
        const struct planner_constant_info *c = planner_constant_info((enum planner_constant)i);
        k.x[i] = c->fitted ? c->start : c->value;
    }
    return k;
}

static void derive(const struct bench *b, struct fit *f, const struct planner_constants *k) {
    enum { PART = 50 }; // of the scale
    double *s = calloc((size_t)b->n, sizeof *s);
    predict(b, k, s);
    for (int i = 0; i < b->n; i++)
        f->base[i] = log(s[i] / b->points[i].row.measured_s);
    for (int j = 0; j < f->n; j++) {
        struct planner_constants other = *k;
        const enum planner_constant c = (enum planner_constant)f->which[j];
        double by = 1.0 / PART;
        other.x[c] = moved(c, k->x[c], by);
        if (fabs(distance(c, k->x[c], other.x[c])) < by / 2)
            other.x[c] = moved(c, k->x[c], -by);
        by = distance(c, k->x[c], other.x[c]);
        predict(b, &other, s);
        for (int i = 0; i < b->n; i++)
            f->slope[i * f->n + j] = (log(s[i] / b->points[i].row.measured_s) - f->base[i]) / by;
    }
    free(s);
}

// Goes down the quadratic x a x / 2 - y x inside a box, one coordinate after another.
static void descend(const double *a, const double *y, const double *low, const double *high,
                    double *x, int n) {
    enum { SWEEPS = 200 };
    for (int sweep = 0; sweep < SWEEPS; sweep++)
        for (int i = 0; i < n; i++) {
            double rest = y[i];
            for (int j = 0; j < n; j++)
                rest -= j != i ? a[i * n + j] * x[j] : 0;
            x[i] = fmax(low[i], fmin(high[i], rest / a[i * n + i]));
        }
}

// What a deviation from the start costs, in errors of a repository. Shares of a peak are known
// better than times of a host.
static double prior_of(enum planner_constant c) {
    return strcmp(planner_constant_info(c)->unit, "share") == 0 ? 0.4 : 0.08;
}

// The best constants near k where row i changes as its slopes say.
static void step(const struct bench *b, const struct fit *f, const struct planner_constants *k,
                 double reach, struct planner_constants *out) {
    double a[COST_COUNT * COST_COUNT], y[COST_COUNT], x[COST_COUNT] = {0};
    double low[COST_COUNT], high[COST_COUNT];
    for (int j = 0; j < f->n; j++) {
        const enum planner_constant c = (enum planner_constant)f->which[j];
        low[j] = distance(c, k->x[c], moved(c, k->x[c], -reach));
        high[j] = distance(c, k->x[c], moved(c, k->x[c], reach));
    }
    for (int round = 0; round < 30; round++) {
        memset(a, 0, sizeof a);
        memset(y, 0, sizeof y);
        for (int i = 0; i < b->n; i++) {
            const double *g = &f->slope[i * f->n];
            double r = f->base[i];
            for (int j = 0; j < f->n; j++)
                r += g[j] * x[j];
            const double w = weight(b, b->points[i].group) / fmax(fabs(r), 0.03);
            for (int j = 0; j < f->n; j++) {
                y[j] -= w * g[j] * f->base[i];
                for (int l = 0; l < f->n; l++)
                    a[j * f->n + l] += w * g[j] * g[l];
            }
        }
        for (int j = 0; j < f->n; j++) {
            const enum planner_constant c = (enum planner_constant)f->which[j];
            const double prior = prior_of(c);
            a[j * f->n + j] += prior;
            y[j] += prior * distance(c, k->x[c], planner_constant_info(c)->start);
        }
        descend(a, y, low, high, x, f->n);
    }
    *out = *k;
    for (int j = 0; j < f->n; j++)
        out->x[f->which[j]] = moved((enum planner_constant)f->which[j], k->x[f->which[j]], x[j]);
}

// ---------------------------------------------------------------- errors

struct errors {
    double mean; // over repositories, the small ones together
    double by_group[GROUPS_MOST], bias[GROUPS_MOST];
    double median_row;
};

static void measure(const struct bench *b, const double *s, struct errors *out) {
    double *all = calloc((size_t)b->n + 1, sizeof *all);
    memset(out, 0, sizeof *out);
    double total = 0;
    for (int i = 0; i < b->n; i++) {
        const struct point *p = &b->points[i];
        const double ratio = s[i] / p->row.measured_s, off = fabs(ratio - 1),
                     w = weight(b, p->group);
        out->mean += w * off;
        total += w;
        out->by_group[p->group] += off / b->groups[p->group].n;
        out->bias[p->group] += (ratio - 1) / b->groups[p->group].n;
        all[i] = off;
    }
    out->mean /= total;
    qsort(all, (size_t)b->n, sizeof *all, by_number);
    out->median_row = b->n ? all[b->n / 2] : 0;
    free(all);
}

static void print_errors(const struct bench *b, const double *s, const char *what) {
    struct errors x;
    measure(b, s, &x);
    printf("\n%s: mean error %.1f %% (repositories weigh the same), median row %.1f %%\n\n", what,
           100 * x.mean, 100 * x.median_row);
    printf("| repository | rows | mean error | bias |\n|---|---:|---:|---:|\n");
    for (int i = 0; i < b->n_groups; i++)
        printf("| %s | %d | %.1f %% | %+.1f %% |\n", b->groups[i].name, b->groups[i].n,
               100 * x.by_group[i], 100 * x.bias[i]);
}

static void print_rows(const struct bench *b, const double *s) {
    for (int i = 0; i < b->n; i++) {
        const struct point *p = &b->points[i];
        const struct planner_setup *u = &p->row.setup;
        printf("row %d %s %s %s gpus=%d L=%lld h=%lld heads=%lld seq=%lld tp=%d pp=%d vp=%d dp=%d "
               "cp=%d mb=%lld ga=%lld z=%d sp=%d rc=%d math=%d measured=%.4g predicted=%.4g "
               "ratio=%.3f gb=%.1f pgb=%.1f",
               p->line, p->row.repository, u->profile->name, p->row.cluster.device.name,
               planner_devices(u), (long long)u->shape.layers, (long long)u->shape.width,
               (long long)u->shape.heads, (long long)u->seq, u->tensor, u->pipe, u->chunks, u->data,
               u->context, (long long)u->micro, (long long)u->accum, u->zero, u->sequence,
               (int)u->recompute, (int)u->math, p->row.measured_s, s[i], s[i] / p->row.measured_s,
               p->row.measured_gb, p->bytes / 1e9);
        for (int c = 0; c < CLASS_COUNT; c++)
            printf(" class%d=%.1f", c, p->by_class[c] / 1e9);
        printf("\n");
    }
}

static void print_constants(const struct planner_constants *k) {
    printf("\nconstants:\n");
    for (int i = 0; i < COST_COUNT; i++) {
        const struct planner_constant_info *c = planner_constant_info((enum planner_constant)i);
        printf("CONSTANT(%s, %.4g, %g, %g, %g, %s, \"%s\", \"%s\")\n", c->name, k->x[i], c->start,
               c->least, c->most, c->fitted ? "FITTED" : "FIXED", c->unit, c->meaning);
    }
}

// Fits k from where it is. Returns the mean error that remains.
static double fit(const struct bench *b, struct planner_constants *k, int rounds) {
    struct fit f = {0};
    struct errors x;
    double *s = calloc((size_t)b->n + 1, sizeof *s);
    for (int i = 0; i < COST_COUNT; i++)
        if (planner_constant_info((enum planner_constant)i)->fitted)
            f.which[f.n++] = i;
    f.slope = calloc((size_t)b->n * COST_COUNT, sizeof *f.slope);
    f.base = calloc((size_t)b->n + 1, sizeof *f.base);
    predict(b, k, s);
    measure(b, s, &x);
    double best = x.mean, reach = 0.7;
    for (int round = 0; round < rounds; round++) {
        struct planner_constants next;
        bool better = false;
        derive(b, &f, k);
        for (int half = 0; !better && half < 4; half++, reach /= 2) {
            step(b, &f, k, reach, &next);
            predict(b, &next, s);
            measure(b, s, &x);
            better = x.mean < best - 1e-4;
        }
        if (!better)
            break;
        best = x.mean;
        *k = next;
        reach = fmin(0.7, reach * 4);
    }
    free(f.slope);
    free(f.base);
    free(s);
    return best;
}

// Repositories with few rows are left out together.
static bool left_with(const struct bench *b, int group, int out) {
    return group == out || (b->groups[group].n < FEW && b->groups[out].n < FEW);
}

// Predicts each repository with constants that were fitted without it, from the start. Of large
// repositories a part of the rows is enough to fit the others' constants beside.
static void leave_out(const struct bench *b, double *out) {
    enum { MANY = 100, THIN = 4, LEFT_ROUNDS = 4 };
    bool done[GROUPS_MOST] = {false};
    for (int g = 0; g < b->n_groups; g++) {
        struct bench rest = *b;
        struct planner_constants k = start_constants();
        if (done[g])
            continue;
        rest.points = calloc((size_t)b->n + 1, sizeof *rest.points);
        rest.n = 0;
        for (int i = 0; i < b->n_groups; i++)
            rest.groups[i].n = 0;
        for (int i = 0; i < b->n; i++) {
            const struct point *p = &b->points[i];
            if (left_with(b, p->group, g) || (b->groups[p->group].n > MANY && i % THIN != 0))
                continue;
            rest.groups[p->group].n++;
            rest.points[rest.n++] = *p;
        }
        const double error = fit(&rest, &k, LEFT_ROUNDS);
        fprintf(stderr, "without %s%s: %.1f %% on the others\n", b->groups[g].name,
                b->groups[g].n < FEW ? " and all of few rows" : "", 100 * error);
        for (int i = 0; i < b->n; i++) {
            struct estimate x;
            struct err e = {0};
            const struct point *p = &b->points[i];
            if (!left_with(b, p->group, g))
                continue;
            if (planner_sample_estimate(p->sample, &p->row.cluster, &k, &x, &e) != 0)
                die(&e);
            out[i] = x.step_s;
        }
        for (int i = 0; i < b->n_groups; i++)
            done[i] |= left_with(b, i, g);
        free(rest.points);
    }
}

// Bounds that a tenth of the ratios measured / predicted lie outside of, at either end.
static void print_interval(const struct bench *b, const double *s) {
    double *ratio = calloc((size_t)b->n + 1, sizeof *ratio), low, high;
    int inside = 0;
    for (int i = 0; i < b->n; i++)
        ratio[i] = b->points[i].row.measured_s / s[i];
    qsort(ratio, (size_t)b->n, sizeof *ratio, by_number);
    low = ratio[b->n / 10];
    high = ratio[b->n - 1 - b->n / 10];
    for (int i = 0; i < b->n; i++)
        inside += ratio[i] >= low && ratio[i] <= high;
    printf(
        "\n80 %% of rows: measured is %.3f to %.3f of predicted (high/low %.2f; %d of %d rows)\n",
        low, high, high / low, inside, b->n);
    free(ratio);
}

int main(int argc, char **argv) {
    struct bench b = {0};
    struct rows rows;
    struct hardware h;
    struct err e = {0};
    bool wants_fit = false, wants_rows = false;
    if (argc < 2) {
        fprintf(stderr, "usage: bench_planner FILE.csv [--fit] [--rows]\n");
        return 2;
    }
    for (int i = 2; i < argc; i++) {
        wants_fit |= strcmp(argv[i], "--fit") == 0;
        wants_rows |= strcmp(argv[i], "--rows") == 0;
    }
    if (hardware_open(&h, &e) != 0 || rows_read_file(&rows, argv[1], &e) != 0)
        die(&e);
    load(&b, &rows, &h);
    struct planner_constants k = planner_constants_default();
    double *s = calloc((size_t)b.n + 1, sizeof *s), *left = calloc((size_t)b.n + 1, sizeof *left);
    printf("%d rows, %d usable with a prediction, %d usable without\n", rows.n, b.n, b.unpredicted);
    printf("of %d rows that ran out of memory %d are said to fit; of %d that ran %d are not\n",
           b.failed, b.failed_fit, b.ran, b.ran_unfit);
    if (wants_fit) {
        k = start_constants();
        fit(&b, &k, ROUNDS);
        predict(&b, &k, s);
        print_constants(&k);
        fflush(stdout);
        leave_out(&b, left);
    } else {
        predict(&b, &k, s);
    }
    print_errors(&b, s, "in sample");
    if (wants_fit) {
        print_errors(&b, left, "left out");
        print_interval(&b, left);
    }
    if (wants_rows)
        print_rows(&b, s);
    for (int i = 0; i < b.n; i++)
        planner_sample_free(b.points[i].sample);
    free(b.points);
    free(s);
    free(left);
    rows_free(&rows);
    hardware_free(&h);
    return 0;
}
