// taken.c - see taken.h.
//
// A segment tree over time. Every node stands for a stretch of moments and keeps two sets of bytes:
//
//   over   bytes added for all of its stretch (and not for all of its parent's)
//   some   bytes added for any part of its stretch
//
// A span of moments is covered by a few whole nodes, at most two per level. Their ancestors are
// covered in part. Adding puts the bytes into `over` of the whole nodes and into `some` of both
// kinds. A question reads `some` of the whole nodes and `over` of the others. Tensors lie side by
// side, so the sets are a few long runs however many tensors there are. Placing one of n tensors
// costs O(log n) instead of a comparison with every tensor that it conflicts with.
#include "program/taken.h"

#include <stdlib.h>
#include <string.h>

enum { NODES_PER_LEVEL = 4, LEVELS = 32 }; // one span has two whole and two partial nodes per level

int taken_make(struct taken *t, int moments, struct err *e) {
    memset(t, 0, sizeof *t);
    t->leaves = 1;
    while (t->leaves < moments)
        t->leaves *= 2;
    size_t nodes = 2 * (size_t)t->leaves;
    t->over = calloc(nodes, sizeof *t->over);
    t->some = calloc(nodes, sizeof *t->some);
    if (t->over && t->some)
        return 0;
    taken_free(t);
    return err_set(e, ERR_MEMORY, "out of memory while placing tensors over %d moments", moments);
}

void taken_clear(struct taken *t) {
    memset(t->over, 0, 2 * (size_t)t->leaves * sizeof *t->over);
    memset(t->some, 0, 2 * (size_t)t->leaves * sizeof *t->some);
    region_free(&t->region);
    memset(&t->region, 0, sizeof t->region);
}

void taken_free(struct taken *t) {
    free(t->over);
    free(t->some);
    region_free(&t->region);
    memset(t, 0, sizeof *t);
}

// ---------------------------------------------------------------- adding

// Returns the first run, from index `from` on, that ends at `at` or above.
static int first_ending(const struct run *run, int from, int n, uint64_t at) {
    int low = from, high = n;
    while (low < high) {
        int mid = low + (high - low) / 2;
        if (run[mid].end >= at)
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

static int make_room(struct taken *t, struct run_set *set) {
    if (set->n < set->capacity)
        return 0;
    int capacity = set->capacity ? 2 * set->capacity : 1;
    struct run *grown = region_alloc(&t->region, sizeof *grown * (size_t)capacity);
    if (!grown)
        return ERR_MEMORY;
    if (set->n)
        memcpy(grown, set->run, sizeof *grown * (size_t)set->n);
    set->run = grown;
    set->capacity = capacity;
    return 0;
}

// Adds a run to a set. Runs that touch become one.
static int join(struct taken *t, struct run_set *set, struct run r) {
    int at = first_ending(set->run, 0, set->n, r.begin), past = at;
    while (past < set->n && set->run[past].begin <= r.end)
        past++;
    if (past == at) {
        TRY(make_room(t, set));
        memmove(&set->run[at + 1], &set->run[at], sizeof r * (size_t)(set->n - at));
        set->run[at] = r;
        set->n++;
        return 0;
    }
    if (set->run[at].begin > r.begin)
        set->run[at].begin = r.begin;
    set->run[at].end = set->run[past - 1].end > r.end ? set->run[past - 1].end : r.end;
    memmove(&set->run[at + 1], &set->run[past], sizeof r * (size_t)(set->n - past));
    set->n -= past - at - 1;
    return 0;
}

// Recursive. The depth is the logarithm of the number of moments.
static int add(struct taken *t, int node, int first, int last, struct span s, struct run r) {
    TRY(join(t, &t->some[node], r));
    if (s.first <= first && last <= s.last) // leaves need no `over`: they are never partial
        return first < last ? join(t, &t->over[node], r) : 0;
    int middle = first + (last - first) / 2;
    if (s.first <= middle)
        TRY(add(t, 2 * node, first, middle, s, r));
    return s.last > middle ? add(t, 2 * node + 1, middle + 1, last, s, r) : 0;
}

int taken_add(struct taken *t, struct span s, struct run r, struct err *e) {
    if (s.last < s.first || r.begin == r.end)
        return 0;
    return add(t, 1, 0, t->leaves - 1, s, r) == 0
               ? 0
               : err_set(e, ERR_MEMORY, "out of memory while placing tensors");
}

// ---------------------------------------------------------------- asking

int question_make(struct question *q, int max_spans, struct err *e) {
    q->n = 0;
    q->cursors = malloc(sizeof *q->cursors * NODES_PER_LEVEL * LEVELS * ((size_t)max_spans + 1));
    return q->cursors ? 0 : err_set(e, ERR_MEMORY, "out of memory while placing tensors");
}

void question_free(struct question *q) {
    free(q->cursors);
    q->cursors = NULL;
}

static void take_cursor(struct question *q, const struct run_set *set) {
    if (set->n)
        q->cursors[q->n++] = (struct run_cursor){set->run, set->n, 0};
}

static void gather(struct question *q, const struct taken *t, int node, int first, int last,
                   struct span s) {
    if (!t->some[node].n)
        return; // nothing below either
    if (s.first <= first && last <= s.last) {
        take_cursor(q, &t->some[node]);
        return;
    }
    take_cursor(q, &t->over[node]);
    int middle = first + (last - first) / 2;
    if (s.first <= middle)
        gather(q, t, 2 * node, first, middle, s);
    if (s.last > middle)
        gather(q, t, 2 * node + 1, middle + 1, last, s);
}

void question_add(struct question *q, const struct taken *t, struct span s) {
    if (s.last >= s.first)
        gather(q, t, 1, 0, t->leaves - 1, s);
}

// Goes round over the sets. Each set moves the offset past what is in the way, until no set moves
// it any more. Cursors only move forward.
uint64_t question_lowest(struct question *q, uint64_t bytes) {
    uint64_t at = 0;
    for (int i = 0, agreed = 0; agreed < q->n; i = i + 1 < q->n ? i + 1 : 0) {
        struct run_cursor *c = &q->cursors[i];
        const uint64_t before = at;
        if (c->at < c->n && c->run[c->at].end <= at)
            c->at = first_ending(c->run, c->at + 1, c->n, at + 1);
        for (; c->at < c->n && c->run[c->at].begin < at + bytes; c->at++)
            at = c->run[c->at].end > at ? c->run[c->at].end : at;
        agreed = at == before ? agreed + 1 : 1; // after a move only this set agrees
    }
    return at;
}

uint64_t question_highest(struct question *q, uint64_t bytes, uint64_t ceiling) {
    if (bytes > ceiling)
        return UINT64_MAX;
    for (int i = 0; i < q->n; i++)
        q->cursors[i].at = q->cursors[i].n - 1;
    uint64_t at = ceiling - bytes;
    for (int i = 0, agreed = 0; agreed < q->n; i = i + 1 < q->n ? i + 1 : 0) {
        struct run_cursor *c = &q->cursors[i];
        const uint64_t before = at;
        int past = first_ending(c->run, 0, c->at + 1, at + bytes); // this run may begin below
        if (past < c->at)
            c->at = past;
        for (; c->at >= 0 && c->run[c->at].end > at; c->at--) {
            if (c->run[c->at].begin >= at + bytes)
                continue;
            if (c->run[c->at].begin < bytes)
                return UINT64_MAX;
            at = c->run[c->at].begin - bytes;
        }
        agreed = at == before ? agreed + 1 : 1;
    }
    return at;
}
