// walk.c - unrolls programs, and computes vector clocks and lives. See walk.h.
#include "program/walk.h"

#include "base/array.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { WALK_REPEATS = 3, WALK_MAX_PERIOD = 512 };

static bool same_work(const struct order_entry *a, const struct order_entry *b) {
    return a->segment == b->segment && a->slot == b->slot;
}

// Returns how many entries from `at` on are whole repeats of order[at .. at+period).
static int repeat_length(const struct order_entry *order, int n, int at, int period) {
    int i = at + period;
    while (i < n && same_work(&order[i], &order[i - period]))
        i++;
    return (i - at) / period * period;
}

// Copies the order and cuts each long repetition to WALK_REPEATS periods.
static int shorten(const struct order_entry *order, int n, struct order_entry *out) {
    int kept = 0;
    for (int at = 0; at < n;) {
        int best_period = 0, best_length = 0;
        int max_period = (n - at) / (WALK_REPEATS + 1);
        if (max_period > WALK_MAX_PERIOD)
            max_period = WALK_MAX_PERIOD;
        for (int period = 1; period <= max_period; period++) {
            if (!same_work(&order[at], &order[at + period]))
                continue;
            int length = repeat_length(order, n, at, period);
            if (length > WALK_REPEATS * period) {
                best_period = period, best_length = length;
                break; // the shortest period cuts the most entries
            }
        }
        if (!best_period) {
            out[kept++] = order[at++];
            continue;
        }
        memcpy(out + kept, order + at, sizeof *out * (size_t)(WALK_REPEATS * best_period));
        kept += WALK_REPEATS * best_period;
        at += best_length;
    }
    return kept;
}

// Cutting separates forwards from their backwards. (segment, slot) alone says which belong
// together: a backward belongs to the latest forward on its (chunk, slot). So each forward gets a
// new micro-batch number and its backward the same one.
static int renumber_micro(const struct program *p, struct order_entry *order, int n) {
    int chunks = 1, slots = 1;
    for (int i = 0; i < p->n_segments; i++)
        if (p->segments[i].chunk >= chunks)
            chunks = p->segments[i].chunk + 1;
    for (int i = 0; i < n; i++)
        if (order[i].slot >= slots)
            slots = order[i].slot + 1;
    int *latest = calloc((size_t)chunks * (size_t)slots, sizeof *latest);
    if (!latest)
        return ERR_MEMORY;
    for (int i = 0; i < n; i++) {
        const struct segment *seg = &p->segments[order[i].segment];
        int *at = &latest[seg->chunk * slots + order[i].slot];
        if (seg->role == SEGMENT_FORWARD)
            *at = i;
        if (seg->role == SEGMENT_FORWARD || seg->role == SEGMENT_BACKWARD)
            order[i].micro = *at;
    }
    free(latest);
    return 0;
}

static size_t count_steps(const struct program *p, const struct order_entry *order, int n) {
    size_t steps = 0;
    for (int i = 0; i < n; i++)
        steps += (size_t)p->segments[order[i].segment].n_ops;
    return steps;
}

static int out_of_memory(const struct program *p, struct err *e) {
    return err_set(e, ERR_MEMORY, "out of memory while unrolling the program '%s'", p->name);
}

int walk_make(struct walk *w, const struct program *p, bool whole, struct err *e) {
    memset(w, 0, sizeof *w);
    w->order = malloc(sizeof *w->order * (size_t)(p->n_order + 1));
    int(*event)[STREAM_COUNT] = calloc((size_t)p->n_events + 1, sizeof *event);
    if (!w->order || !event)
        goto no_memory;
    if (whole && count_steps(p, p->order, p->n_order) <= WALK_MAX_STEPS) {
        memcpy(w->order, p->order, sizeof *w->order * (size_t)p->n_order);
        w->n_order = p->n_order;
    } else {
        w->n_order = shorten(p->order, p->n_order, w->order);
        if (renumber_micro(p, w->order, w->n_order) != 0)
            goto no_memory;
    }
    w->steps = malloc(sizeof *w->steps * (count_steps(p, w->order, w->n_order) + 1));
    if (!w->steps)
        goto no_memory;
    int count[STREAM_COUNT] = {0}, clock[STREAM_COUNT][STREAM_COUNT] = {{0}};
    for (int i = 0; i < w->n_order; i++) {
        const struct order_entry *entry = &w->order[i];
        const struct segment *seg = &p->segments[entry->segment];
        for (int k = 0; k < seg->n_ops; k++) {
            const struct op *op = &seg->ops[k];
            int *now = clock[op->stream];
            for (int a = 0; a < op->n_wait; a++)
                for (int s = 0; s < STREAM_COUNT; s++)
                    if (event[op->wait[a]][s] > now[s])
                        now[s] = event[op->wait[a]][s];
            struct walk_step *step = &w->steps[w->n_steps++];
            *step = (struct walk_step){.entry = i,
                                       .segment = entry->segment,
                                       .op = k,
                                       .micro = entry->micro,
                                       .slot = entry->slot,
                                       .index = ++count[op->stream]};
            memcpy(step->before, now, sizeof step->before);
            now[op->stream] = step->index;
            if (op->record >= 0)
                memcpy(event[op->record], now, sizeof event[0]);
        }
    }
    free(event);
    return 0;
no_memory:
    free(event);
    walk_free(w);
    return out_of_memory(p, e);
}

void walk_free(struct walk *w) {
    free(w->steps);
    free(w->order);
    memset(w, 0, sizeof *w);
}

static int compare_lives(const void *pa, const void *pb) {
    const struct life *a = pa, *b = pb;
    if (a->tensor != b->tensor)
        return a->tensor < b->tensor ? -1 : 1;
    if (a->slot != b->slot)
        return a->slot < b->slot ? -1 : 1;
    return a->first < b->first ? -1 : a->first > b->first;
}

int lives_make(struct lives *l, const struct program *p, const struct walk *w, struct err *e) {
    memset(l, 0, sizeof *l);
    // open[t*max_slots + s]: the current life of that copy, and the micro-batch or entry it belongs
    // to.
    struct open {
        int life, owner;
    } *open = NULL;
    int max_slots = program_max_slots(p);
    size_t capacity = 0;
    open = malloc(sizeof *open * (size_t)p->n_tensors * (size_t)max_slots + 1);
    if (!open)
        goto no_memory;
    for (int i = 0; i < p->n_tensors * max_slots; i++)
        open[i] = (struct open){-1, -1};
    struct op_access access[OP_MAX_TENSORS];
    for (int i = 0; i < w->n_steps; i++) {
        const struct walk_step *step = &w->steps[i];
        const struct op *op = walk_op(p, step);
        int n = op_accesses(p, op, access);
        for (int a = 0; a < n; a++) {
            const struct tensor *t = &p->tensors[access[a].tensor];
            if (t->life == LIFE_RUN)
                continue;
            int slot = t->life == LIFE_SLOT ? step->slot : 0;
            int owner = t->life == LIFE_TURN ? 0 : t->life == LIFE_SLOT ? step->micro : step->entry;
            struct open *o = &open[access[a].tensor * max_slots + slot];
            if (o->life < 0 || o->owner != owner) {
                if (!array_room(&l->life, (size_t)l->n, 1, &capacity, sizeof *l->life, 16))
                    goto no_memory;
                l->life[l->n] = (struct life){.tensor = access[a].tensor, .slot = slot, .first = i};
                memcpy(l->life[l->n].before, step->before, sizeof step->before);
                *o = (struct open){l->n++, owner};
            }
            struct life *life = &l->life[o->life];
            life->last = i;
            life->last_index[op->stream] = step->index;
            if (!life->first_index[op->stream])
                life->first_index[op->stream] = step->index;
            for (int s = 0; s < STREAM_COUNT; s++)
                if (step->before[s] < life->before[s])
                    life->before[s] = step->before[s];
        }
    }
    free(open);
    if (l->n)
        qsort(l->life, (size_t)l->n, sizeof *l->life, compare_lives);
    return 0;
no_memory:
    free(open);
    lives_free(l);
    return out_of_memory(p, e);
}

bool lives_meet(const struct life *a, int n_a, const struct life *b, int n_b, int *at_a,
                int *at_b) {
    // Both lists are ordered by time. So the lives of b that come before a[i] are the first ones of
    // b, and at least as many come before a[i+1].
    for (int i = 0, j = 0; i < n_a; i++) {
        while (j < n_b && life_before(&b[j], &a[i]))
            j++;
        if (j < n_b && !life_before(&a[i], &b[j])) {
            *at_a = i, *at_b = j;
            return true;
        }
    }
    return false;
}

void lives_free(struct lives *l) {
    free(l->life);
    memset(l, 0, sizeof *l);
}
