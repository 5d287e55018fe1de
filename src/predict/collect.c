// collect.c - see calibrate.h. Times of a program's ops, from the traces of its turns.
//
// An event does not name its op, only the op's kind, segment, layer and micro-batch. Events come in
// issue order. So a walk over the program's order beside the events finds the op of each event, and
// skips ops that were not run or not timed.
#include "predict/calibrate.h"

#include "measure/sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TURNS_MOST = 32 };

struct collection {
    const struct program *p;
    const struct op **ops; // one per event of the first turn
    int *segments;         // the segment of each op
    int n;                 // events
    double *s[TURNS_MOST]; // for each turn, seconds per event
    int turns;
};

int collection_open(struct collection **out, const struct program *p, struct err *e) {
    *out = calloc(1, sizeof **out);
    if (!*out)
        return err_set(e, ERR_MEMORY, "out of memory for the times of ops");
    (*out)->p = p;
    return 0;
}

void collection_close(struct collection *l) {
    if (!l)
        return;
    for (int i = 0; i < l->turns; i++)
        free(l->s[i]);
    free(l->ops);
    free(l->segments);
    free(l);
}

static bool fits(const struct trace_event *ev, const struct op *op, const struct order_entry *at) {
    return ev->what == op->kind && ev->segment == at->segment && ev->micro == at->micro &&
           ev->layer == op->layer;
}

// Walks the order and the events together. Returns the number of events whose op was found.
static int match(const struct program *p, const struct trace *t, const struct op **ops,
                 int *segments, double *s) {
    const size_t events = trace_count(t);
    size_t next = 0;
    int n = 0;
    for (int i = 0; i < p->n_order; i++) {
        const struct segment *seg = &p->segments[p->order[i].segment];
        for (int k = 0; k < seg->n_ops; k++) {
            while (next < events && trace_at(t, next)->what >= OP_COUNT) // spans
                next++;
            if (next == events)
                return n;
            if (!fits(trace_at(t, next), &seg->ops[k], &p->order[i]))
                continue;
            ops[n] = &seg->ops[k];
            segments[n] = p->order[i].segment;
            s[n++] = 1e-9 * (double)trace_at(t, next++)->duration_ns;
        }
    }
    return n;
}

int collection_add(struct collection *l, const struct trace *t, struct err *e) {
    const size_t most = trace_count(t) + 1;
    if (l->turns == TURNS_MOST)
        return 0;
    const struct op **ops = calloc(most, sizeof *ops);
    int *segments = calloc(most, sizeof *segments);
    double *s = calloc(most, sizeof *s);
    const bool room = ops && segments && s;
    int n = room ? match(l->p, t, ops, segments, s) : 0;
    bool first = l->turns == 0;
    bool same = first || (n == l->n && memcmp(ops, l->ops, sizeof *ops * (size_t)n) == 0);
    int rc = room ? 0 : err_set(e, ERR_MEMORY, "out of memory for the times of ops");
    if (rc == 0 && n > 0 && same) {
        l->s[l->turns++] = s;
        s = NULL;
        if (first) {
            l->ops = ops;
            l->segments = segments;
            l->n = n;
            ops = NULL;
            segments = NULL;
        }
    }
    free(ops);
    free(segments);
    free(s);
    return rc;
}

static void sort_turns(const struct collection *l, int event, double turns[TURNS_MOST]) {
    for (int t = 0; t < l->turns; t++)
        turns[t] = l->s[t][event];
    sample_sort(turns, (size_t)l->turns);
}

// The median. With an even number of turns it is the lower one, because an op that is slow now and
// then is slowed down by other processes.
static double event_median(const struct collection *l, const double turns[TURNS_MOST]) {
    return turns[(l->turns - 1) / 2];
}

void collection_scale(struct collection *l, int segment, double turn_s) {
    double sum = 0, turns[TURNS_MOST];
    for (int i = 0; i < l->n; i++)
        if (l->segments[i] == segment) {
            sort_turns(l, i, turns);
            sum += event_median(l, turns);
        }
    for (int i = 0; i < l->n; i++)
        for (int t = 0; t < l->turns && l->segments[i] == segment && sum > 0 && turn_s > 0; t++)
            l->s[t][i] *= turn_s / sum;
}

struct group { // ops of one signature
    struct cost_point point;
    double sum_s, sum_spread;
    int ops;
};

// Adds one event's median over the turns.
static void add_event(const struct collection *l, int event, struct group *g) {
    double turns[TURNS_MOST];
    sort_turns(l, event, turns);
    g->sum_s += event_median(l, turns);
    g->sum_spread += turns[3 * l->turns / 4] - turns[l->turns / 4];
    g->ops++;
}

static struct group *group_of(struct group *groups, int *n, const struct program *p,
                              const struct op *op) {
    struct op_signature s;
    signature_of(p, op, &s);
    for (int i = *n - 1; i >= 0; i--)
        if (signature_same(&groups[i].point.signature, &s))
            return &groups[i];
    struct op_cost cost = op_cost_of(p, op);
    groups[*n] = (struct group){
        .point = {.signature = s, .flops = cost.flops, .bytes = cost.bytes, .count = 1}};
    return &groups[(*n)++];
}

int collection_store(const struct collection *l, struct costs *c, bool busy, int *signatures,
                     struct err *e) {
    struct group *groups = calloc((size_t)l->n + 1, sizeof *groups);
    int n = 0, rc = 0;
    if (!groups)
        return err_set(e, ERR_MEMORY, "out of memory for the times of ops");
    for (int i = 0; i < l->n; i++)
        add_event(l, i, group_of(groups, &n, l->p, l->ops[i]));
    for (int i = 0; rc == 0 && i < n; i++) {
        struct group *g = &groups[i];
        g->point.seconds = fmax(g->sum_s / g->ops, 1e-9); // at least a tick of the clock
        g->point.spread = fmin(g->sum_spread / (2 * fmax(g->sum_s, 1e-9)), 10);
        g->point.count = (int64_t)g->ops * l->turns;
        g->point.busy = busy;
        rc = costs_add(c, &g->point, e);
    }
    if (signatures)
        *signatures = n;
    free(groups);
    return rc;
}
