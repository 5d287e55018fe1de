// layout.c - assigns offsets.
//
// Persistent tensors come first, by class, matched by name over the programs of the set. Transient
// ones (per program) are placed by greedy interval packing: two copies may share bytes only if all
// their lives are ordered by happens-before (walk.h). Items are placed one by one at the lowest
// offset that fits between the placed items they conflict with. Three orders of placement are tried
// and the tightest kept, because none is always best; the largest sum of live bytes is the floor
// all are measured against (program.live_bytes).
#include "program/layout.h"
#include "base/hash.h"
#include "program/walk.h"

#include <stdlib.h>
#include <string.h>

static uint64_t aligned(uint64_t bytes) {
    return (bytes + TENSOR_ALIGN - 1) / TENSOR_ALIGN * TENSOR_ALIGN;
}

// ---------------------------------------------------------------- transient tensors of one program

struct item { // one copy of one tensor
    int tensor, slot;
    const struct life *life; // its lives, in order of time
    int n_lives;
    uint64_t bytes, offset; // bytes aligned
    uint64_t exact;         // bytes that are written: the last tensor's end is the arena's
};

static bool conflict(const struct item *a, const struct item *b) {
    int i, j;
    return lives_meet(a->life, a->n_lives, b->life, b->n_lives, &i, &j);
}

static int span(const struct item *i) {
    return i->life[i->n_lives - 1].last - i->life[0].first + 1;
}

static int by_bytes(const void *pa, const void *pb) {
    const struct item *a = *(const struct item *const *)pa, *b = *(const struct item *const *)pb;
    if (a->bytes != b->bytes)
        return a->bytes > b->bytes ? -1 : 1;
    return a->life->first - b->life->first;
}

static int by_area(const void *pa, const void *pb) {
    const struct item *a = *(const struct item *const *)pa, *b = *(const struct item *const *)pb;
    double x = (double)a->bytes * span(a), y = (double)b->bytes * span(b);
    if (x != y)
        return x > y ? -1 : 1;
    return by_bytes(pa, pb);
}

static int by_span(const void *pa, const void *pb) {
    const struct item *a = *(const struct item *const *)pa, *b = *(const struct item *const *)pb;
    int x = span(a), y = span(b);
    return x != y ? y - x : by_bytes(pa, pb);
}

struct hole {
    uint64_t begin, end;
};

static int by_begin(const void *pa, const void *pb) {
    const struct hole *a = pa, *b = pb;
    return a->begin < b->begin ? -1 : a->begin > b->begin;
}

// Places items in the given order; returns the height reached. `taken` has room for n.
static uint64_t place(struct item **order, int n, struct hole *taken, uint64_t give_up) {
    uint64_t height = 0;
    for (int i = 0; i < n; i++) {
        int n_taken = 0;
        for (int j = 0; j < i; j++)
            if (order[j]->bytes && conflict(order[i], order[j]))
                taken[n_taken++] =
                    (struct hole){order[j]->offset, order[j]->offset + order[j]->bytes};
        qsort(taken, (size_t)n_taken, sizeof *taken, by_begin);
        uint64_t at = 0;
        for (int j = 0; j < n_taken; j++) {
            if (taken[j].begin >= at + order[i]->bytes)
                break;
            if (taken[j].end > at)
                at = taken[j].end;
        }
        order[i]->offset = at;
        if (at + order[i]->exact > height)
            height = at + order[i]->exact;
        if (height >= give_up)
            return height;
    }
    return height;
}

// Largest sum of live bytes over issue order, and what it is made of.
static int find_peak(struct program *p, const struct lives *l, int n_steps, struct err *e) {
    int64_t *change = calloc((size_t)n_steps + 2, sizeof *change);
    if (!change)
        return err_set(e, ERR_MEMORY, "out of memory while laying out '%s'", p->name);
    for (int i = 0; i < l->n; i++) {
        int64_t bytes = (int64_t)p->tensors[l->life[i].tensor].bytes;
        change[l->life[i].first] += bytes;
        change[l->life[i].last + 1] -= bytes;
    }
    int64_t live = 0, peak = 0;
    int at = 0;
    for (int i = 0; i <= n_steps; i++) {
        live += change[i];
        if (live > peak)
            peak = live, at = i;
    }
    free(change);
    p->live_bytes = (uint64_t)peak;
    memset(p->peak_by_class, 0, sizeof p->peak_by_class);
    for (int i = 0; i < l->n; i++)
        if (l->life[i].first <= at && at <= l->life[i].last) {
            const struct tensor *t = &p->tensors[l->life[i].tensor];
            p->peak_by_class[t->cls] += t->bytes;
        }
    return 0;
}

// Offsets relative to the start of the transient region; layout_set shifts them.
static int layout_transient(struct program *p, struct err *e) {
    struct walk w = {0};
    struct lives l = {0};
    struct item *items = NULL, **order = NULL;
    struct hole *taken = NULL;
    uint64_t *best = NULL;
    int n = 0, rc = walk_make(&w, p, false, e);
    if (rc == 0)
        rc = lives_make(&l, p, &w, e);
    if (rc == 0)
        rc = find_peak(p, &l, w.n_steps, e);
    if (rc != 0)
        goto done;
    size_t room = (size_t)l.n + 1;
    items = calloc(room, sizeof *items);
    order = calloc(room, sizeof *order);
    taken = calloc(room, sizeof *taken);
    best = calloc(room, sizeof *best);
    if (!items || !order || !taken || !best) {
        rc = err_set(e, ERR_MEMORY, "out of memory while laying out '%s'", p->name);
        goto done;
    }
    for (int i = 0; i < l.n;) {
        struct item *it = &items[n];
        *it = (struct item){.tensor = l.life[i].tensor, .slot = l.life[i].slot, .life = &l.life[i]};
        it->exact = p->tensors[it->tensor].bytes;
        it->bytes = aligned(it->exact);
        while (i < l.n && l.life[i].tensor == it->tensor && l.life[i].slot == it->slot)
            i++, it->n_lives++;
        n++;
    }
    int (*const orders[])(const void *, const void *) = {by_bytes, by_area, by_span};
    p->transient_bytes = UINT64_MAX;
    for (size_t k = 0; k < sizeof orders / sizeof *orders; k++) {
        for (int i = 0; i < n; i++)
            order[i] = &items[i];
        qsort(order, (size_t)n, sizeof *order, orders[k]);
        uint64_t height = place(order, n, taken, p->transient_bytes);
        if (height >= p->transient_bytes)
            continue;
        p->transient_bytes = height;
        for (int i = 0; i < n; i++)
            best[i] = items[i].offset;
        if (height <= p->live_bytes + p->live_bytes / 64)
            break; // within alignment's reach of the floor
    }
    if (n == 0)
        p->transient_bytes = 0;
    for (int i = 0; i < n; i++)
        p->tensors[items[i].tensor].offset[items[i].slot] = best[i];
done:
    free(best);
    free(taken);
    free(order);
    free(items);
    lives_free(&l);
    walk_free(&w);
    return rc;
}

// ---------------------------------------------------------------- persistent tensors of a set

struct named { // open addressing by name
    const struct tensor *t;
    const char *program;
    uint64_t offset;
};

static int agree(const struct named *a, const struct tensor *b, const char *program,
                 struct err *e) {
    const struct tensor *t = a->t;
    bool same = t->dtype == b->dtype && t->rank == b->rank && t->cls == b->cls;
    for (int i = 0; same && i < t->rank; i++)
        same =
            t->shape[i] == b->shape[i] && t->begin[i] == b->begin[i] && t->local[i] == b->local[i];
    if (same)
        return 0;
    return err_set(e, ERR_MISMATCH,
                   "tensor '%s' differs between the programs '%s' and '%s' of one set: switching "
                   "between them would need a reload",
                   t->name, a->program, program);
}

static struct named *lookup(struct named *table, size_t size, const char *name) {
    size_t i = hash_u64(name, strlen(name)) & (size - 1);
    while (table[i].t && strcmp(table[i].t->name, name) != 0)
        i = (i + 1) & (size - 1);
    return &table[i];
}

static int layout_persistent(struct program *const *programs, int n, struct layout *out,
                             struct err *e) {
    size_t count = 1, size = 16;
    for (int i = 0; i < n; i++)
        count += (size_t)programs[i]->n_tensors;
    while (size < 2 * count)
        size *= 2;
    struct named *table = calloc(size, sizeof *table);
    if (!table)
        return err_set(e, ERR_MEMORY, "out of memory while laying out %d programs", n);
    int rc = 0;
    uint64_t at = 0;
    for (int cls = 0; cls < CLASS_COUNT && rc == 0; cls++)
        for (int i = 0; i < n && rc == 0; i++)
            for (int k = 0; k < programs[i]->n_tensors && rc == 0; k++) {
                struct tensor *t = &programs[i]->tensors[k];
                if (t->life != LIFE_RUN || t->root >= 0 || (int)t->cls != cls)
                    continue;
                struct named *slot = lookup(table, size, t->name);
                if (slot->t) {
                    rc = agree(slot, t, programs[i]->name, e);
                } else {
                    *slot = (struct named){t, programs[i]->name, at};
                    at += aligned(t->bytes);
                    out->by_class[cls] += t->bytes;
                }
                t->offset[0] = slot->offset;
            }
    free(table);
    out->persistent_bytes = at;
    return rc;
}

static int take_offsets(struct program *p, struct err *e) {
    for (int i = 0; i < p->n_tensors; i++) {
        struct tensor *t = &p->tensors[i];
        if (t->root >= 0) // a view has as many copies as its root
            t->slots = p->tensors[t->root].slots, t->life = p->tensors[t->root].life;
        t->offset = region_alloc(&p->region, sizeof *t->offset * (size_t)t->slots);
        if (!t->offset)
            return err_set(e, ERR_MEMORY, "out of memory while laying out '%s'", p->name);
    }
    return 0;
}

static void shift_and_resolve(struct program *p, uint64_t base) {
    for (int i = 0; i < p->n_tensors; i++) {
        struct tensor *t = &p->tensors[i];
        if (t->root < 0 && t->life != LIFE_RUN)
            for (int s = 0; s < t->slots; s++)
                t->offset[s] += base;
    }
    for (int i = 0; i < p->n_tensors; i++) {
        struct tensor *t = &p->tensors[i];
        if (t->root >= 0)
            for (int s = 0; s < t->slots; s++)
                t->offset[s] = p->tensors[t->root].offset[s] +
                               (uint64_t)t->root_offset * dtype_bytes(t->dtype);
    }
}

int layout_set(struct program *const *programs, int n, struct layout *out, struct err *e) {
    memset(out, 0, sizeof *out);
    for (int i = 0; i < n; i++)
        TRY(take_offsets(programs[i], e));
    TRY(layout_persistent(programs, n, out, e));
    for (int i = 0; i < n; i++) {
        TRY(layout_transient(programs[i], e));
        if (programs[i]->transient_bytes > out->transient_bytes) {
            out->transient_bytes = programs[i]->transient_bytes;
            out->neediest = i;
        }
    }
    for (int i = 0; i < n; i++)
        shift_and_resolve(programs[i], out->persistent_bytes);
    out->arena_bytes = out->persistent_bytes + out->transient_bytes;
    uint64_t named = 0;
    for (int c = 0; c < CLASS_COUNT; c++) {
        if (n > 0)
            out->by_class[c] += programs[out->neediest]->peak_by_class[c];
        named += out->by_class[c];
    }
    out->slack_bytes = out->arena_bytes > named ? out->arena_bytes - named : 0;
    return 0;
}
