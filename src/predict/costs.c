// costs.c - see costs.h.
#include "predict/costs.h"

#include "base/clock.h"
#include "predict/costs_fit.h"
#include "predict/predict.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// Relative errors of estimates for ops of tiny and gpt2-124m that were left out of their tables
// (docs/numerics.md).
static const double SPREAD_LEAST = 0.02, SPREAD_ONE = 0.4, SPREAD_ROOFLINE = 0.7;
// If an op is timed again and the logarithm of the ratio is larger than this, the time has changed:
// the machine was busy then, or is now.
static const double ANOTHER_TIME = 0.15;

enum { MEMO_SIZE = 4096 };
struct costs_memo {
    int n;
    struct {
        struct op_signature signature;
        struct cost_estimate estimate;
        bool used;
    } of[MEMO_SIZE];
};

void costs_init(struct costs *c, const struct hw_device *device) {
    memset(c, 0, sizeof *c);
    c->device = *device;
    c->now_s = clock_wall_s();
}

static void free_models(struct costs *c) {
    for (int i = 0; i < c->n_models; i++)
        free(c->models[i]);
    c->n_models = 0;
    c->model = NULL;
}

void costs_free(struct costs *c) {
    free_models(c);
    free(c->points);
    free(c->index);
    free(c->memo);
    free(c->settings);
    memset(c, 0, sizeof *c);
}

void costs_forget_ops(struct costs *c, const struct hw_device *device) {
    free_models(c);
    free(c->points);
    free(c->index);
    free(c->memo);
    c->points = NULL;
    c->index = NULL;
    c->memo = NULL;
    c->n = c->capacity = 0;
    c->index_size = 0;
    c->device = *device;
}

// ---------------------------------------------------------------- points

bool cost_seconds_plausible(double seconds) {
    return seconds > 0 && seconds < 1e6;
}

bool cost_point_plausible(const struct cost_point *p) {
    if (!(cost_seconds_plausible(p->seconds) && p->flops >= 0 && p->flops < 1e24 && p->bytes >= 0 &&
          p->bytes < 1e18 && p->spread >= 0 && p->spread < 100 && p->count >= 1))
        return false;
    if (p->signature.kind < 0 || p->signature.kind >= OP_COUNT)
        return false;
    for (size_t i = 0; i < sizeof p->signature.types; i++)
        if (!signature_type_known(p->signature.types[i]))
            return false;
    for (int i = 0; i < SIZE_COUNT; i++)
        if (p->signature.sizes[i] < 0 || p->signature.sizes[i] > (int64_t)1 << 48)
            return false;
    return true;
}

// The slot of a signature in the index, or the free slot where it would go.
static size_t slot_of(const struct costs *c, const struct op_signature *s) {
    size_t at = signature_hash(s) & (c->index_size - 1);
    while (c->index[at] && !signature_same(&c->points[c->index[at] - 1].signature, s))
        at = (at + 1) & (c->index_size - 1);
    return at;
}

const struct cost_point *costs_find(const struct costs *c, const struct op_signature *s) {
    int at = c->index_size ? c->index[slot_of(c, s)] : 0;
    return at ? &c->points[at - 1] : NULL;
}

static int build_index(struct costs *c, size_t size) {
    int *index = calloc(size, sizeof *index);
    if (!index)
        return ERR_MEMORY;
    free(c->index);
    c->index = index;
    c->index_size = size;
    for (int i = 0; i < c->n; i++)
        c->index[slot_of(c, &c->points[i].signature)] = i + 1;
    return 0;
}

// Makes room for one more point. A full table forgets its oldest quarter.
static int make_room(struct costs *c) {
    if (c->n == COSTS_MOST_POINTS) {
        const int drop = COSTS_MOST_POINTS / 4;
        c->n -= drop;
        memmove(c->points, c->points + drop, sizeof *c->points * (size_t)c->n);
        return build_index(c, c->index_size);
    }
    if (c->n == c->capacity) {
        int capacity = c->capacity ? 2 * c->capacity : 128;
        struct cost_point *grown = realloc(c->points, sizeof *grown * (size_t)capacity);
        if (!grown)
            return ERR_MEMORY;
        c->points = grown;
        c->capacity = capacity;
    }
    return 2 * (size_t)(c->n + 1) > c->index_size
               ? build_index(c, c->index_size ? 2 * c->index_size : 256)
               : 0;
}

static void forget_estimates(struct costs *c) {
    free(c->memo);
    c->memo = NULL;
}

int costs_add(struct costs *c, const struct cost_point *p, struct err *e) {
    if (!cost_point_plausible(p))
        return err_set(e, ERR_NUMERIC, "an op's measured time of %g s is not plausible",
                       p->seconds);
    forget_estimates(c);
    c->device.matmul_flops = fmax(c->device.matmul_flops, p->flops / p->seconds);
    c->device.op_overhead_s = fmin(c->device.op_overhead_s, p->seconds);
    const int known = c->index_size ? c->index[slot_of(c, &p->signature)] : 0;
    if (known) {
        struct cost_point *old = &c->points[known - 1];
        if (p->busy && !old->busy)
            return 0;
        if (fabs(log(p->seconds / old->seconds)) > ANOTHER_TIME)
            costs_forget_ratios(c, (enum op_kind)p->signature.kind, signature_real(&p->signature));
        *old = *p;
        return 0;
    }
    if (make_room(c) != 0)
        return err_set(e, ERR_MEMORY, "out of memory for the times of ops");
    c->points[c->n] = *p;
    c->index[slot_of(c, &p->signature)] = c->n + 1;
    c->n++;
    return 0;
}

// ---------------------------------------------------------------- estimates

static double roofline(const struct costs *c, const struct op_signature *s, double flops,
                       double bytes) {
    const bool product = op_info(s->kind)->category == CAT_MATMUL;
    const double rate =
        product ? predict_products_rate(&c->device, signature_real(s)) : c->device.matmul_flops;
    return c->device.op_overhead_s + fmax(flops / rate, bytes / c->device.memory_bytes_per_s);
}

// Lists the times of the same op by rows, in ascending order.
static int list_family(const struct costs *c, const struct op_signature *s,
                       struct fit_knot knots[FIT_MOST_KNOTS], bool *busy) {
    const enum signature_size rows = signature_rows(s);
    int n = 0;
    for (int i = 0; i < c->n; i++) {
        const struct cost_point *p = &c->points[i];
        if (!signature_same_family(s, &p->signature))
            continue;
        if (n == FIT_MOST_KNOTS)
            break;
        *busy |= p->busy;
        int at = n++;
        for (; at > 0 && knots[at - 1].rows > (double)p->signature.sizes[rows]; at--)
            knots[at] = knots[at - 1];
        knots[at] = (struct fit_knot){(double)p->signature.sizes[rows], p->seconds,
                                      roofline(c, &p->signature, p->flops, p->bytes)};
    }
    return n;
}

static int list_class(const struct costs *c, const struct op_signature *s,
                      struct fit_row rows[FIT_MOST_ROWS]) {
    int n = 0;
    for (int i = c->n - 1; i >= 0 && n < FIT_MOST_ROWS; i--)
        if (signature_same_class(s, &c->points[i].signature))
            rows[n++] =
                (struct fit_row){c->points[i].flops, c->points[i].bytes, c->points[i].seconds};
    return n;
}

static struct cost_estimate estimate(const struct costs *c, const struct op_signature *s,
                                     const struct op_cost *cost) {
    const struct cost_point *exact = costs_find(c, s);
    if (exact)
        return (struct cost_estimate){exact->seconds, fmax(SPREAD_LEAST, exact->spread),
                                      COST_MEASURED, exact->busy};
    const double roof = roofline(c, s, cost->flops, cost->bytes);
    struct fit_knot knots[FIT_MOST_KNOTS];
    struct cost_estimate out = {.how = COST_BETWEEN};
    int n = list_family(c, s, knots, &out.busy);
    if (n > 0) {
        out.seconds = fit_between(knots, n, (double)s->sizes[signature_rows(s)], roof, &out.spread);
        return out;
    }
    struct fit_row rows[FIT_MOST_ROWS];
    struct fit_plane plane;
    out.how = COST_FITTED;
    n = list_class(c, s, rows);
    if (n == 1) // one time only tells how far this kind of op is from the roofline
        return (struct cost_estimate){roof * rows[0].seconds /
                                          roofline(c, s, rows[0].flops, rows[0].bytes),
                                      SPREAD_ONE, COST_FITTED, false};
    if (fit_plane_of(rows, n, &plane)) {
        out.seconds =
            plane.constant_s + plane.per_flop_s * cost->flops + plane.per_byte_s * cost->bytes;
        out.spread = plane.spread;
        if (out.seconds > 0)
            return out;
    }
    return (struct cost_estimate){fmax(roof, 1e-12), SPREAD_ROOFLINE, COST_ROOFLINE, false};
}

struct cost_estimate costs_estimate_raw(struct costs *c, const struct program *p,
                                        const struct op *op) {
    struct op_signature s;
    signature_of(p, op, &s);
    if (!c->memo)
        c->memo = calloc(1, sizeof *c->memo); // if that fails, estimates are only slower
    size_t at = signature_hash(&s) & (MEMO_SIZE - 1);
    while (c->memo && c->memo->of[at].used) {
        if (signature_same(&c->memo->of[at].signature, &s))
            return c->memo->of[at].estimate;
        at = (at + 1) & (MEMO_SIZE - 1);
    }
    struct op_cost cost = op_cost_of(p, op);
    struct cost_estimate out = estimate(c, &s, &cost);
    if (c->memo && c->memo->n < MEMO_SIZE / 2) {
        c->memo->of[at].signature = s;
        c->memo->of[at].estimate = out;
        c->memo->of[at].used = true;
        c->memo->n++;
    }
    return out;
}

struct cost_estimate costs_estimate(struct costs *c, const struct program *p, const struct op *op) {
    struct op_signature s;
    signature_of(p, op, &s);
    struct cost_estimate out = costs_estimate_raw(c, p, op);
    out.seconds *= costs_correction(c, op->kind, signature_real(&s));
    return out;
}
