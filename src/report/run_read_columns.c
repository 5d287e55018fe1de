// run_read_columns.c - see run_read_columns.h.
#include "report/run_read_columns.h"

#include <math.h>
#include <stdlib.h>

// Larger values are not counted: sums of smaller ones always fit a double.
static const double VALUE_MOST = 1e100;

static const struct column EMPTY = {.lr = NAN, .smooth = NAN, .eval_loss = NAN};

void columns_init(struct columns *c, int64_t base) {
    c->base = base;
    c->width = 1;
    c->n = 0;
    for (int i = 0; i < COLUMNS_MOST; i++)
        c->column[i] = EMPTY;
}

static void merge_stat(struct column_stat *a, const struct column_stat *b) {
    if (b->n == 0)
        return;
    if (a->n == 0) {
        *a = *b;
        return;
    }
    a->least = fmin(a->least, b->least);
    a->most = fmax(a->most, b->most);
    a->sum += b->sum;
    a->n += b->n;
}

// b holds the later steps.
static void merge(struct column *a, const struct column *b) {
    if (b->steps > 0) {
        a->from = a->steps > 0 ? a->from : b->from;
        a->to = b->to;
    }
    a->steps += b->steps;
    for (int v = 0; v < COLUMN_VALUES; v++)
        merge_stat(&a->value[v], &b->value[v]);
    a->lr = isnan(b->lr) ? a->lr : b->lr;
    if (b->eval_step > 0) {
        a->eval_step = b->eval_step;
        a->eval_loss = b->eval_loss;
    }
    a->skipped += b->skipped;
    a->warmup = a->warmup || b->warmup;
    a->warm_most = fmax(a->warm_most, b->warm_most);
    a->steady_most = fmax(a->steady_most, b->steady_most);
}

static void halve(struct columns *c) {
    for (int i = 0; i < COLUMNS_MOST / 2; i++) {
        struct column joined = c->column[2 * i];
        merge(&joined, &c->column[2 * i + 1]);
        c->column[i] = joined;
    }
    for (int i = COLUMNS_MOST / 2; i < COLUMNS_MOST; i++)
        c->column[i] = EMPTY;
    c->width *= 2;
    c->n = (c->n + 1) / 2;
}

struct column *columns_at(struct columns *c, int64_t step) {
    if (step < c->base)
        return NULL;
    // Unsigned, because the distance of two steps may exceed INT64_MAX. The width ends at 2^53.
    uint64_t ahead = (uint64_t)step - (uint64_t)c->base;
    while (ahead / (uint64_t)c->width >= COLUMNS_MOST)
        halve(c);
    int i = (int)(ahead / (uint64_t)c->width);
    if (c->n <= i)
        c->n = i + 1;
    return &c->column[i];
}

void column_add(struct column *c, enum column_value which, double value) {
    if (!(fabs(value) <= VALUE_MOST))
        return;
    const struct column_stat one = {.least = value, .most = value, .sum = value, .n = 1};
    merge_stat(&c->value[which], &one);
}

void column_see(struct column *c, int64_t step) {
    c->from = c->steps == 0 || step < c->from ? step : c->from;
    c->to = c->steps == 0 || step > c->to ? step : c->to;
    c->steps++;
}

double column_mean(const struct column_stat *s) {
    return s->n > 0 ? s->sum / (double)s->n : NAN;
}

double columns_smooth(struct columns *c, int64_t steps) {
    double last = NAN, reach = fmax((double)steps, 1) / (double)c->width;
    int most = (int)fmin(ceil(reach), COLUMNS_MOST);
    for (int i = 0; i < c->n; i++) {
        double sum = 0, weight = 0;
        for (int k = i - most; k <= i + most; k++) {
            if (k < 0 || k >= c->n || c->column[k].value[COLUMN_LOSS].n == 0)
                continue;
            double w = fmax(1 - abs(k - i) / fmax(reach, 1), 0);
            sum += w * column_mean(&c->column[k].value[COLUMN_LOSS]);
            weight += w;
        }
        c->column[i].smooth = c->column[i].value[COLUMN_LOSS].n > 0 ? sum / weight : NAN;
        if (!isnan(c->column[i].smooth))
            last = c->column[i].smooth;
    }
    return last;
}
