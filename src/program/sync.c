// sync.c - derives record and wait from what ops read and write, so that no technique writes
// synchronisation.
//
// An op must wait for work on another stream if it reads what that work writes, or overwrites what
// that work reads or writes. A segment is stored once and runs many times. So a wait names an event
// and means the event's most recent record. At the point of issue that is the needed run of the
// recording op or a later one, never an earlier one.
//
// The pass walks the program with the waits found so far and adds the missing ones. An added wait
// can also satisfy other dependencies, so the pass repeats until nothing is missing. In practice
// that takes two passes. It gives up after 64.
#include "program/sync.h"
#include "program/walk.h"

#include <stdlib.h>
#include <string.h>

struct touch { // the latest access of a kind on one stream
    int index, segment, op;
};

struct history {                     // accesses to one copy of a tensor
    struct touch write;              // latest write, on stream write_stream
    int write_stream;                // -1: not written in this turn
    struct touch read[STREAM_COUNT]; // reads since the latest write
};

static void need(struct touch *needed, const struct walk_step *step, int stream,
                 const struct touch *t) {
    if (t->index > step->before[stream] && t->index > needed[stream].index)
        needed[stream] = *t;
}

static int add_wait(struct program *p, const struct walk_step *step, const struct touch *on,
                    struct err *e) {
    struct op *from = &p->segments[on->segment].ops[on->op];
    struct op *to = &p->segments[step->segment].ops[step->op];
    if (from->record < 0)
        from->record = p->n_events++;
    for (int i = 0; i < to->n_wait; i++)
        if (to->wait[i] == from->record)
            return 0; // added earlier in this pass, after the walk was made
    if (to->n_wait == OP_MAX_WAIT)
        return err_set(e, ERR_INTERNAL, "op '%s' of segment '%s' needs more than %d waits",
                       op_info(to->kind)->name, p->segments[step->segment].name, OP_MAX_WAIT);
    to->wait[to->n_wait++] = from->record;
    return 1;
}

// One pass; returns how many waits were added, or a negative code.
static int pass(struct program *p, struct err *e) {
    struct walk w;
    TRY(walk_make(&w, p, false, e));
    int max_slots = program_max_slots(p), added = 0;
    size_t n = (size_t)p->n_tensors * (size_t)max_slots;
    struct history *all = calloc(n + 1, sizeof *all);
    if (!all) {
        walk_free(&w);
        return err_set(e, ERR_MEMORY, "out of memory while ordering the program '%s'", p->name);
    }
    for (size_t i = 0; i < n; i++)
        all[i].write_stream = -1;
    struct op_access access[OP_MAX_TENSORS];
    for (int i = 0; i < w.n_steps && added >= 0; i++) {
        const struct walk_step *step = &w.steps[i];
        const struct op *op = walk_op(p, step);
        struct touch needed[STREAM_COUNT] = {{0}};
        int n_access = op_accesses(p, op, access);
        for (int a = 0; a < n_access; a++) {
            const struct tensor *t = &p->tensors[access[a].tensor];
            int slot = t->life == LIFE_SLOT ? step->slot : 0;
            struct history *h = &all[access[a].tensor * max_slots + slot];
            if (h->write_stream >= 0 && h->write_stream != (int)op->stream)
                need(needed, step, h->write_stream, &h->write);
            struct touch now = {step->index, step->segment, step->op};
            if (access[a].how & OP_WRITE) {
                for (int s = 0; s < STREAM_COUNT; s++)
                    if (s != (int)op->stream)
                        need(needed, step, s, &h->read[s]);
                memset(h->read, 0, sizeof h->read);
                h->write = now;
                h->write_stream = (int)op->stream;
            } else {
                h->read[op->stream] = now;
            }
        }
        for (int s = 0; s < STREAM_COUNT && added >= 0; s++) {
            if (needed[s].index == 0)
                continue;
            int rc = add_wait(p, step, &needed[s], e);
            added = rc < 0 ? rc : added + rc;
        }
    }
    free(all);
    walk_free(&w);
    return added;
}

int sync_derive(struct program *p, struct err *e) {
    for (int i = 0; i < 64; i++) {
        int added = pass(p, e);
        if (added <= 0)
            return added;
    }
    return err_set(e, ERR_INTERNAL, "no stable set of waits was found for the program '%s'",
                   p->name);
}
