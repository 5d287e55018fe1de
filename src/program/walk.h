// walk.h - a program unrolled in issue order, with what must have happened before each op.
//
// sync.c, layout.c and check.c all ask the same two questions: which op touches which copy of which
// tensor, and does A happen before B? A walk answers both. Time is a vector clock: for every
// stream, how many of its ops are known to be finished when this op starts. That follows from the
// stream's order and from the waits that sync.c derived.
#ifndef HAGGLE_PROGRAM_WALK_H
#define HAGGLE_PROGRAM_WALK_H

#include "program/program.h"

struct walk_step {
    int entry; // index in walk.order
    int segment, op;
    int micro, slot;
    int index;                // of this op on its stream, from 1
    int before[STREAM_COUNT]; // number of ops of each stream that are finished when it starts
};

struct walk {
    struct walk_step *steps;
    int n_steps;
    struct order_entry *order; // the order that was walked
    int n_order;
};

// whole: walk every entry of the order. Otherwise a repeating pattern is walked only three times.
// That is enough for layout: a life spans at most the in-flight depth, and the pattern repeats only
// when every slot is back where it was. So any two lives that can meet in the whole order meet in
// the shortened one. check.c walks the whole order and so tests that claim. Above WALK_MAX_STEPS op
// runs a whole walk would take gigabytes, so it is shortened too.
enum { WALK_MAX_STEPS = 1 << 21 };
int walk_make(struct walk *w, const struct program *p, bool whole, struct err *e);
void walk_free(struct walk *w);

static inline const struct op *walk_op(const struct program *p, const struct walk_step *s) {
    return &p->segments[s->segment].ops[s->op];
}

// A life is one time span during which a copy of a tensor must keep its bytes. Lives of the same
// copy are ordered by time.
struct life {
    int tensor, slot;              // the tensor is a transient root
    int first, last;               // steps
    int first_index[STREAM_COUNT]; // first op on each stream that touches it; 0: none
    int last_index[STREAM_COUNT];  // last op on each stream that touches it; 0: none
    int before[STREAM_COUNT];      // ops of each stream finished before the first op touches it
};

struct lives {
    struct life *life; // sorted by (tensor, slot, first)
    int n;
};

int lives_make(struct lives *l, const struct program *p, const struct walk *w, struct err *e);
void lives_free(struct lives *l);
// Whether any life of one copy may overlap any life of another. *at_a and *at_b get the first such
// pair. Lives of one copy do not overlap (check_layout proves it), so one pass is enough.
bool lives_meet(const struct life *a, int n_a, const struct life *b, int n_b, int *at_a, int *at_b);
// Whether all ops that touch a life have finished when a step starts. A stream's clock only
// advances. So if one step of a stream knows that a life has ended, all later steps of that stream
// do.
static inline bool life_ended(const struct life *a, const struct walk_step *s) {
    for (int i = 0; i < STREAM_COUNT; i++)
        if (a->last_index[i] > s->before[i])
            return false;
    return true;
}
// True if all ops that touch a have finished before any op that touches b starts.
static inline bool life_before(const struct life *a, const struct life *b) {
    for (int s = 0; s < STREAM_COUNT; s++)
        if (a->last_index[s] > b->before[s])
            return false;
    return true;
}

#endif
