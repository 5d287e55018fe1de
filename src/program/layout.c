// layout.c - assigns offsets.
//
// Persistent tensors come first, by class, matched by name over the programs of the set.
//
// Transient tensors are placed per program by greedy interval packing. An item is one copy of one
// tensor. Two items may share bytes only if all their lives are ordered by happens-before (walk.h).
// Items are placed one by one at the lowest offset that fits between the placed items they conflict
// with. Five orders of placement are tried and the tightest is kept, because no order is always
// best. The floor is the largest sum of bytes alive at once (program.live_bytes). If the best
// result is not close to the floor, similar orders are tried that place the topmost item earlier
// (squeeze).
//
// Tensors alive across a yield point (program.h) are all alive at that moment. They lie end to end,
// in front of the packed tensors of their program and of every guest.
//
// Few items are compared pair by pair. Many items are placed through taken.h, with one time axis
// per stream (struct lane). The offsets are the same.
#include "program/layout.h"
#include "base/hash.h"
#include "base/rng.h"
#include "program/taken.h"
#include "program/walk.h"

#include <stdlib.h>
#include <string.h>

// Limits of squeeze: the number of rounds, and the number of pairs of items over all rounds. They
// keep layout faster than the rest of planning. Up to TABLE_ITEMS items, a table says which pairs
// conflict (1 MB). With more items the search by time is faster, with fewer the table often is
// (docs/speed-log.md).
enum { SQUEEZE_ROUNDS = 1000, SQUEEZE_PAIRS = 12000000, TABLE_ITEMS = 1024 };

static uint64_t aligned(uint64_t bytes) {
    return (bytes + TENSOR_ALIGN - 1) / TENSOR_ALIGN * TENSOR_ALIGN;
}

// ---------------------------------------------------------------- transient tensors of one program

struct item {  // one copy of one tensor
    int index; // in packing.items
    int tensor, slot;
    const struct life *life; // its lives, ordered by time
    int n_lives;
    uint64_t bytes, offset; // bytes are rounded up to TENSOR_ALIGN
    uint64_t exact;         // bytes without rounding; the arena ends at the last item's exact end
    bool peak;              // alive at the moment when most bytes are alive
};

struct hole {
    uint64_t begin, end;
};

// The ops of one stream as a time axis. Two lives a and b conflict if, on some stream, an op
// touches b while a lasts, or the other way round. On a stream, a "lasts" from the first op that
// a's first ops do not wait for to the last op that does not wait for a's end, even if no op of
// that stream touches a. So a lane stores two spans per life: when it is touched and when it
// lasts. Placing an item asks which items are touched while it lasts, and which last while it is
// touched. If there is only one stream, both spans are the same.
struct lane {
    struct taken touched, lasting; // touched: only if there are several lanes
    struct span *touch, *last;     // per life
    int moments;                   // number of ops
};

struct packing {
    struct item *items, **order, **best_order;
    struct item **placed; // sorted by offset; used when pairs are compared
    int n_placed;
    struct hole *taken;
    uint64_t *best; // offsets of the best result
    bool *meet;     // [n * n]: which pairs conflict; NULL: too many items, lanes are used
    struct lane lanes[STREAM_COUNT];
    int n_lanes;             // number of streams that have ops
    const struct life *life; // the first of all lives, to which touch[0] and last[0] belong
    struct question question;
    int n;
    uint64_t height, target; // best height so far; no other order is tried at or below target
    uint64_t enough;         // no squeezing at or below this height
    uint64_t peak_bytes;     // aligned bytes of the items alive at the peak
    uint64_t best_ceiling;
};

static bool ask_conflict(const struct item *a, const struct item *b) {
    int i, j;
    return lives_meet(a->life, a->n_lives, b->life, b->n_lives, &i, &j);
}

static bool conflict(const struct packing *k, const struct item *a, const struct item *b) {
    return k->meet[(size_t)a->index * (size_t)k->n + (size_t)b->index];
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

// Items alive at the peak first: they lie without gaps, and the others find room around them.
static int by_peak(const void *pa, const void *pb) {
    const struct item *a = *(const struct item *const *)pa, *b = *(const struct item *const *)pb;
    return a->peak != b->peak ? (a->peak ? -1 : 1) : by_bytes(pa, pb);
}

// For placement under a ceiling. Items alive at the peak are ordered by birth (gradients, as the
// backward makes them). The others are ordered from last to die to first to die and placed from the
// top down, so room becomes free from below, where it is needed.
static int by_end(const void *pa, const void *pb) {
    const struct item *a = *(const struct item *const *)pa, *b = *(const struct item *const *)pb;
    if (a->peak != b->peak)
        return a->peak ? -1 : 1;
    if (a->peak && a->life->first != b->life->first)
        return a->life->first - b->life->first;
    int x = a->life[a->n_lives - 1].last, y = b->life[b->n_lives - 1].last;
    return x != y ? y - x : by_bytes(pa, pb);
}

// The lowest offset at which `bytes` fit between the taken ranges, which are sorted by `begin`.
static uint64_t lowest_fit(const struct hole *taken, int n, uint64_t bytes) {
    uint64_t at = 0;
    for (int i = 0; i < n; i++) {
        if (taken[i].begin >= at + bytes)
            break;
        if (taken[i].end > at)
            at = taken[i].end;
    }
    return at;
}

// The highest offset that fits below the ceiling; UINT64_MAX: none.
static uint64_t highest_fit(const struct hole *taken, int n, uint64_t bytes, uint64_t ceiling) {
    uint64_t best = UINT64_MAX, at = 0;
    for (int i = 0; i <= n; i++) {
        uint64_t end = i < n && taken[i].begin < ceiling ? taken[i].begin : ceiling;
        if (end >= at + bytes)
            best = end - bytes;
        if (i < n && taken[i].end > at)
            at = taken[i].end;
    }
    return best;
}

// Where an item goes. If there is a ceiling (not 0), items that are not alive at the peak go as
// high as possible below it. All other items go as low as possible. This function compares pairs.
static uint64_t fit_by_pairs(const struct packing *k, const struct item *it, uint64_t ceiling) {
    struct hole *taken = k->taken;
    uint64_t at = UINT64_MAX;
    int n_taken = 0;
    for (int i = 0; i < k->n_placed; i++) {
        const struct item *other = k->placed[i];
        if (conflict(k, it, other))
            taken[n_taken++] = (struct hole){other->offset, other->offset + other->bytes};
    }
    if (ceiling && !it->peak)
        at = highest_fit(taken, n_taken, it->bytes, ceiling);
    return at != UINT64_MAX ? at : lowest_fit(taken, n_taken, it->bytes);
}

static void add_placed(struct packing *k, struct item *it) {
    int at = k->n_placed;
    if (it->bytes == 0)
        return;
    for (; at > 0 && k->placed[at - 1]->offset > it->offset; at--)
        k->placed[at] = k->placed[at - 1];
    k->placed[at] = it;
    k->n_placed++;
}

// The same by time: places an item through the lanes.
static int fit_by_time(struct packing *k, struct item *it, uint64_t ceiling, struct err *e) {
    const ptrdiff_t first = it->life - k->life, past = first + it->n_lives;
    uint64_t at = UINT64_MAX;
    k->question.n = 0;
    for (int i = 0; i < k->n_lanes; i++)
        for (ptrdiff_t l = first; l < past; l++) {
            question_add(&k->question, &k->lanes[i].lasting, k->lanes[i].touch[l]);
            if (k->n_lanes > 1)
                question_add(&k->question, &k->lanes[i].touched, k->lanes[i].last[l]);
        }
    if (ceiling && !it->peak)
        at = question_highest(&k->question, it->bytes, ceiling);
    if (at == UINT64_MAX)
        at = question_lowest(&k->question, it->bytes);
    it->offset = at;
    const struct run r = {at, at + it->bytes};
    for (int i = 0; i < k->n_lanes; i++)
        for (ptrdiff_t l = first; l < past; l++) {
            TRY(taken_add(&k->lanes[i].lasting, k->lanes[i].last[l], r, e));
            if (k->n_lanes > 1)
                TRY(taken_add(&k->lanes[i].touched, k->lanes[i].touch[l], r, e));
        }
    return 0;
}

// Places items in the packing's order and returns the height they reach. It stops once that exceeds
// the best height.
static int place(struct packing *k, uint64_t ceiling, uint64_t *height, struct err *e) {
    for (int i = 0; i < k->n_lanes; i++) {
        taken_clear(&k->lanes[i].lasting);
        if (k->n_lanes > 1)
            taken_clear(&k->lanes[i].touched);
    }
    *height = 0;
    k->n_placed = 0;
    for (int i = 0; i < k->n && *height <= k->height; i++) {
        struct item *it = k->order[i];
        if (k->meet) {
            it->offset = fit_by_pairs(k, it, ceiling);
            add_placed(k, it);
        } else
            TRY(fit_by_time(k, it, ceiling, e));
        if (it->offset + it->exact > *height)
            *height = it->offset + it->exact;
    }
    return 0;
}

// Finds the largest sum of live bytes over the issue order, and its parts by class.
static int find_peak(struct program *p, const struct lives *l, int n_steps, int *peak_step,
                     struct err *e) {
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
    *peak_step = at;
    memset(p->peak_by_class, 0, sizeof p->peak_by_class);
    for (int i = 0; i < l->n; i++)
        if (l->life[i].first <= at && at <= l->life[i].last) {
            const struct tensor *t = &p->tensors[l->life[i].tensor];
            p->peak_by_class[t->cls] += t->bytes;
        }
    return 0;
}

static void packing_free(struct packing *k) {
    free(k->items);
    free(k->order);
    free(k->best_order);
    free(k->placed);
    free(k->taken);
    free(k->best);
    free(k->meet);
    question_free(&k->question);
    for (int i = 0; i < k->n_lanes; i++) {
        taken_free(&k->lanes[i].touched);
        taken_free(&k->lanes[i].lasting);
        free(k->lanes[i].touch);
        free(k->lanes[i].last);
    }
}

static int packing_make(struct packing *k, const struct program *p, const struct lives *l,
                        int peak_step, struct err *e) {
    size_t room = (size_t)l->n + 1;
    k->items = calloc(room, sizeof *k->items);
    k->order = calloc(room, sizeof *k->order);
    k->best_order = calloc(room, sizeof *k->best_order);
    k->placed = calloc(room, sizeof *k->placed);
    k->taken = calloc(room, sizeof *k->taken);
    k->best = calloc(room, sizeof *k->best);
    if (!k->items || !k->order || !k->best_order || !k->placed || !k->taken || !k->best)
        return err_set(e, ERR_MEMORY, "out of memory while laying out '%s'", p->name);
    for (int i = 0; i < l->n;) {
        struct item *it = &k->items[k->n++];
        *it = (struct item){.index = k->n - 1,
                            .tensor = l->life[i].tensor,
                            .slot = l->life[i].slot,
                            .life = &l->life[i]};
        it->exact = p->tensors[it->tensor].bytes;
        it->bytes = aligned(it->exact);
        for (; i < l->n && l->life[i].tensor == it->tensor && l->life[i].slot == it->slot; i++) {
            it->n_lives++;
            it->peak = it->peak || (l->life[i].first <= peak_step && peak_step <= l->life[i].last);
        }
    }
    for (int i = 0; i < k->n; i++)
        k->peak_bytes += k->items[i].peak ? k->items[i].bytes : 0;
    k->height = UINT64_MAX;
    k->target = k->peak_bytes + k->peak_bytes / 256;
    k->enough = k->peak_bytes + k->peak_bytes / 64;
    return 0;
}

static int attempt(struct packing *k, uint64_t ceiling, struct err *e) {
    uint64_t height;
    TRY(place(k, ceiling, &height, e));
    if (height <= k->height) { // equal counts too: it lets squeeze move on to other orders
        k->height = height;
        k->best_ceiling = ceiling;
        for (int i = 0; i < k->n; i++)
            k->best[i] = k->items[i].offset;
        memcpy(k->best_order, k->order, sizeof *k->order * (size_t)k->n);
    }
    return 0;
}

static int table_pairs(struct packing *k, struct err *e) {
    size_t n = (size_t)k->n;
    if (!(k->meet = malloc(n * n + 1)))
        return err_set(e, ERR_MEMORY, "out of memory while laying out %d tensors", k->n);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j <= i; j++)
            k->meet[i * n + j] = k->meet[j * n + i] = ask_conflict(&k->items[i], &k->items[j]);
    return 0;
}

// Counts the steps of a stream, among its n, that may run before life a has ended.
static int count_unaware(const struct life *a, const struct walk *w, const int *steps, int n) {
    int low = 0, high = n;
    while (low < high) {
        int mid = low + (high - low) / 2;
        if (life_ended(a, &w->steps[steps[mid]]))
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

// Adds the lane of a stream, if the stream has ops. Moments are the indices of its ops, from 0.
static int add_lane(struct packing *k, int stream, const struct program *p, const struct walk *w,
                    const struct lives *l, int *steps, struct err *e) {
    int n = 0;
    for (int i = 0; i < w->n_steps; i++)
        if ((int)walk_op(p, &w->steps[i])->stream == stream)
            steps[n++] = i;
    if (n == 0)
        return 0;
    struct lane *lane = &k->lanes[k->n_lanes++];
    lane->touch = malloc(sizeof *lane->touch * ((size_t)l->n + 1));
    lane->last = malloc(sizeof *lane->last * ((size_t)l->n + 1));
    if (!lane->touch || !lane->last)
        return err_set(e, ERR_MEMORY, "out of memory while laying out '%s'", p->name);
    for (int i = 0; i < l->n; i++) {
        const struct life *a = &l->life[i];
        const int touches = a->first_index[stream]; // 0: none; the span 0 .. -1 is then empty
        lane->touch[i] = (struct span){touches ? touches - 1 : 0, a->last_index[stream] - 1};
        lane->last[i] = (struct span){a->before[stream], count_unaware(a, w, steps, n) - 1};
    }
    lane->moments = n;
    return taken_make(&lane->lasting, n, e);
}

static int make_lanes(struct packing *k, const struct program *p, const struct walk *w,
                      const struct lives *l, struct err *e) {
    int rc = 0, most = 1;
    int *steps = malloc(sizeof *steps * ((size_t)w->n_steps + 1));
    if (!steps)
        return err_set(e, ERR_MEMORY, "out of memory while laying out '%s'", p->name);
    k->life = l->life;
    for (int s = 0; s < STREAM_COUNT && rc == 0; s++)
        rc = add_lane(k, s, p, w, l, steps, e);
    free(steps);
    for (int i = 0; i < k->n_lanes && k->n_lanes > 1 && rc == 0; i++)
        rc = taken_make(&k->lanes[i].touched, k->lanes[i].moments, e);
    for (int i = 0; i < k->n; i++)
        most = k->items[i].n_lives > most ? k->items[i].n_lives : most;
    return rc != 0 ? rc : question_make(&k->question, 2 * STREAM_COUNT * most, e);
}

static void move_item(struct item **order, int from, int to) {
    struct item *moved = order[from];
    if (to < from)
        memmove(&order[to + 1], &order[to], sizeof *order * (size_t)(from - to));
    else
        memmove(&order[from], &order[from + 1], sizeof *order * (size_t)(to - from));
    order[to] = moved;
}

// Tries orders near the best one: an item that reaches the top is placed earlier, and another item
// is moved. The choices are pseudo-random but the same each time.
static int squeeze(struct packing *k, struct err *e) {
    const double pairs = (double)k->n * k->n;
    const int rounds =
        pairs * SQUEEZE_ROUNDS < SQUEEZE_PAIRS ? SQUEEZE_ROUNDS : (int)(SQUEEZE_PAIRS / pairs);
    for (int r = 0; r < rounds && k->height > k->enough; r++) {
        const uint64_t n = (uint64_t)k->n, round = (uint64_t)r;
        int top = 0;
        memcpy(k->order, k->best_order, sizeof *k->order * n);
        while (top < k->n && k->best[k->order[top]->index] + k->order[top]->exact != k->height)
            top++;
        if (top == k->n)
            return 0;
        if (top > 0)
            move_item(k->order, top, (int)rng_below(1, 1, round, (uint64_t)top));
        move_item(k->order, (int)rng_below(1, 2, round, n), (int)rng_below(1, 3, round, n));
        TRY(attempt(k, k->best_ceiling, e));
    }
    return 0;
}

// Whether a life crosses a yield point: one of the order entries it spans, after the first, is one.
static bool crosses_yield(const struct program *p, const struct walk *w, const struct life *a) {
    for (int i = w->steps[a->first].entry + 1; i <= w->steps[a->last].entry; i++)
        if (program_yields_at(p, w->order, i))
            return true;
    return false;
}

// Places the copies that have a life across a yield point, and removes their lives from the list.
// The rest is packed behind them.
static void hold(struct program *p, const struct walk *w, struct lives *l) {
    int kept = 0;
    for (int i = 0, next; i < l->n; i = next) {
        const struct life *a = &l->life[i];
        bool held = false;
        for (next = i;
             next < l->n && l->life[next].tensor == a->tensor && l->life[next].slot == a->slot;
             next++)
            held = held || crosses_yield(p, w, &l->life[next]);
        if (!held) {
            memmove(&l->life[kept], a, sizeof *a * (size_t)(next - i));
            kept += next - i;
            continue;
        }
        struct tensor *t = &p->tensors[a->tensor];
        t->offset[a->slot] = p->held_bytes;
        p->held_bytes += aligned(t->bytes);
        p->held_by_class[t->cls] += t->bytes;
    }
    l->n = kept;
}

// Sets offsets relative to the start of the transient region. layout_set shifts them later. Packed
// tensors begin behind the held ones.
static int layout_transient(struct program *p, bool guests, struct err *e) {
    int (*const orders[])(const void *, const void *) = {by_bytes, by_area, by_span, by_peak,
                                                         by_end};
    struct walk w = {0};
    struct lives l = {0};
    struct packing k = {0};
    int peak_step = 0, rc = walk_make(&w, p, false, e);
    if (rc == 0)
        rc = lives_make(&l, p, &w, e);
    p->held_bytes = 0;
    memset(p->held_by_class, 0, sizeof p->held_by_class);
    if (rc == 0 && p->yields && guests)
        hold(p, &w, &l);
    if (rc == 0)
        rc = find_peak(p, &l, w.n_steps, &peak_step, e);
    if (rc == 0)
        rc = packing_make(&k, p, &l, peak_step, e);
    if (rc == 0)
        rc = k.n <= TABLE_ITEMS ? table_pairs(&k, e) : make_lanes(&k, p, &w, &l, e);
    for (size_t o = 0; rc == 0 && o < sizeof orders / sizeof *orders && k.height > k.target; o++) {
        for (int i = 0; i < k.n; i++)
            k.order[i] = &k.items[i];
        qsort(k.order, (size_t)k.n, sizeof *k.order, orders[o]);
        rc = attempt(&k, orders[o] == by_end ? k.peak_bytes : 0, e);
    }
    if (rc == 0)
        rc = squeeze(&k, e);
    if (rc == 0) {
        p->transient_bytes = k.n ? k.height : 0;
        for (int i = 0; i < k.n; i++)
            p->tensors[k.items[i].tensor].offset[k.items[i].slot] = p->held_bytes + k.best[i];
    }
    packing_free(&k);
    lives_free(&l);
    walk_free(&w);
    return rc;
}

// ---------------------------------------------------------------- persistent tensors of a set

struct named { // entry of a hash table by name (open addressing)
    const struct tensor *t;
    const char *program;
    uint64_t offset;
};

static int agree(const struct named *a, const struct tensor *b, const char *program,
                 struct err *e) {
    const struct tensor *t = a->t;
    bool same = t->dtype == b->dtype && storage_same(t->storage, b->storage) &&
                t->rank == b->rank && t->cls == b->cls && !t->share == !b->share &&
                (!t->share || share_same(t->share, b->share));
    for (int i = 0; same && i < t->rank; i++)
        same = t->local[i] == b->local[i];
    if (same)
        return 0;
    return err_set(
        e, ERR_MISMATCH,
        "tensor '%s' differs in type, storage or shape between the programs '%s' and '%s', "
        "which share one arena",
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

// Returns the yielding program that holds the most bytes, or NULL if no program yields. Guests lie
// behind its held bytes, whichever program they interrupt.
static const struct program *find_holder(struct program *const *programs, int n) {
    const struct program *most = NULL;
    for (int i = 0; i < n; i++)
        if (programs[i]->yields && (!most || programs[i]->held_bytes > most->held_bytes))
            most = programs[i];
    return most;
}

// Returns the program whose held bytes lie before p's packed tensors; NULL: none.
static const struct program *held_before(const struct program *p, const struct program *holder) {
    return p->yields ? p : p->guest ? holder : NULL;
}

// Where a program's packed tensors end, counted from the start of the transient region.
static uint64_t extent(const struct program *p, const struct program *holder) {
    const struct program *before = held_before(p, holder);
    return (before ? before->held_bytes : 0) + p->transient_bytes;
}

int layout_set(struct program *const *programs, int n, struct layout *out, struct err *e) {
    bool guests = false; // false: what runs at yield points uses another arena
    memset(out, 0, sizeof *out);
    for (int i = 0; i < n; i++) {
        TRY(take_offsets(programs[i], e));
        guests = guests || programs[i]->guest;
    }
    TRY(layout_persistent(programs, n, out, e));
    for (int i = 0; i < n; i++)
        TRY(layout_transient(programs[i], guests, e));
    const struct program *holder = find_holder(programs, n);
    out->held_bytes = holder ? holder->held_bytes : 0;
    for (int i = 0; i < n; i++)
        if (extent(programs[i], holder) > out->transient_bytes) {
            out->transient_bytes = extent(programs[i], holder);
            out->neediest = i;
        }
    for (int i = 0; i < n; i++) // offsets of a yielding program already include its held bytes
        shift_and_resolve(programs[i],
                          out->persistent_bytes + (programs[i]->guest ? out->held_bytes : 0));
    out->arena_bytes = out->persistent_bytes + out->transient_bytes;
    uint64_t named = 0;
    for (int c = 0; c < CLASS_COUNT; c++) {
        const struct program *p = n > 0 ? programs[out->neediest] : NULL;
        const struct program *before = p ? held_before(p, holder) : NULL;
        if (p)
            out->by_class[c] += p->peak_by_class[c];
        if (before)
            out->by_class[c] += before->held_by_class[c];
        named += out->by_class[c];
    }
    out->slack_bytes = out->arena_bytes > named ? out->arena_bytes - named : 0;
    return 0;
}
