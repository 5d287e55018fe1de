// check_guests.c - proves that a guest may run at the yield points of another program (check.h).
//
// It takes only the offsets from layout.c. What the interrupted program needs afterwards follows
// from its lives over the whole order. What the guest writes follows from its tensors. The two are
// compared byte by byte.
#include "program/check.h"
#include "program/walk.h"

#include <stdlib.h>

// The bytes [begin, end) of the arena that belong to a tensor.
struct place {
    uint64_t begin, end;
    int tensor;
};

struct places {
    struct place *list;
    int n;
};

static int places_make(struct places *out, const struct program *p, struct err *e) {
    size_t n = 1;
    for (int i = 0; i < p->n_tensors; i++)
        n += (size_t)p->tensors[i].slots;
    out->n = 0;
    out->list = malloc(sizeof *out->list * n);
    return out->list ? 0 : err_set(e, ERR_MEMORY, "out of memory while checking '%s'", p->name);
}

static void places_add(struct places *x, const struct program *p, int tensor, int slot) {
    const struct tensor *t = &p->tensors[tensor];
    if (t->bytes)
        x->list[x->n++] = (struct place){t->offset[slot], t->offset[slot] + t->bytes, tensor};
}

// Adds the persistent tensors that the program touches, or only those that it writes.
static void add_persistent(struct places *x, const struct program *p, bool only_written) {
    struct op_access access[OP_MAX_TENSORS];
    for (int t = 0; t < p->n_tensors; t++) {
        bool found = false;
        if (p->tensors[t].root >= 0 || p->tensors[t].life != LIFE_RUN)
            continue;
        for (int s = 0; s < p->n_segments && !found; s++)
            for (int k = 0; k < p->segments[s].n_ops && !found; k++) {
                const int n = op_accesses(p, &p->segments[s].ops[k], access);
                for (int i = 0; i < n; i++)
                    found = found ||
                            (access[i].tensor == t && (!only_written || access[i].how & OP_WRITE));
            }
        if (found)
            places_add(x, p, t, 0);
    }
}

static bool lives_at_yield(const struct program *p, const struct walk *w, const struct life *a) {
    for (int i = w->steps[a->first].entry + 1; i <= w->steps[a->last].entry; i++)
        if (program_yields_at(p, w->order, i))
            return true;
    return false;
}

// Lists what a program needs when it continues after a yield point.
static int list_needed(struct places *out, const struct program *p, struct err *e) {
    struct walk w = {0};
    struct lives l = {0};
    int rc = places_make(out, p, e);
    if (rc == 0)
        rc = walk_make(&w, p, true, e);
    if (rc == 0)
        rc = lives_make(&l, p, &w, e);
    for (int i = 0; rc == 0 && i < l.n; i++) // one per copy is enough; lives of a copy are adjacent
        if (lives_at_yield(p, &w, &l.life[i]) &&
            (out->n == 0 || out->list[out->n - 1].tensor != l.life[i].tensor ||
             out->list[out->n - 1].begin != p->tensors[l.life[i].tensor].offset[l.life[i].slot]))
            places_add(out, p, l.life[i].tensor, l.life[i].slot);
    if (rc == 0)
        add_persistent(out, p, false);
    lives_free(&l);
    walk_free(&w);
    return rc;
}

static int list_written(struct places *out, const struct program *p, struct err *e) {
    TRY(places_make(out, p, e));
    for (int t = 0; t < p->n_tensors; t++)
        for (int s = 0;
             p->tensors[t].root < 0 && p->tensors[t].life != LIFE_RUN && s < p->tensors[t].slots;
             s++)
            places_add(out, p, t, s);
    add_persistent(out, p, true);
    return 0;
}

static int by_place(const void *pa, const void *pb) {
    const struct place *a = pa, *b = pb;
    return a->begin < b->begin ? -1 : a->begin > b->begin;
}

static int compare_places(const struct program *p, struct places *needed,
                          const struct program *guest, struct places *written, struct err *e) {
    qsort(needed->list, (size_t)needed->n, sizeof *needed->list, by_place);
    qsort(written->list, (size_t)written->n, sizeof *written->list, by_place);
    for (int i = 0, at = 0; i < written->n; i++) {
        const struct place *w = &written->list[i];
        while (at < needed->n && needed->list[at].end <= w->begin)
            at++;
        if (at < needed->n && needed->list[at].begin < w->end)
            return err_set(e, ERR_INTERNAL,
                           "'%s' of the guest '%s' shares bytes with '%s', which '%s' needs after "
                           "a yield point",
                           guest->tensors[w->tensor].name, guest->name,
                           p->tensors[needed->list[at].tensor].name, p->name);
    }
    return 0;
}

int check_guests(struct program *const *programs, int n, struct err *e) {
    int rc = 0;
    for (int i = 0; i < n && rc == 0; i++) {
        struct places needed = {0};
        if (!programs[i]->yields)
            continue;
        rc = list_needed(&needed, programs[i], e);
        for (int k = 0; k < n && rc == 0; k++) {
            struct places written = {0};
            if (!programs[k]->guest)
                continue;
            rc = list_written(&written, programs[k], e);
            if (rc == 0)
                rc = compare_places(programs[i], &needed, programs[k], &written, e);
            free(written.list);
        }
        free(needed.list);
    }
    return rc;
}
