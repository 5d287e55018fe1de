// gen_lab.h - the laboratory of a search for generation on this machine: plans settings, and
// measures each visit in a process of its own.
//
// A process per visit costs the time to load the model. In return its luck with memory pages is
// part of what is compared, its peak of memory is its own, and one that dies costs a visit. A visit
// keeps `batch` texts going (gen.h). The first ones are made shorter, so that they end one after
// the other at equal distances. Then every stretch between two ends is alike: it has the tokens of
// one text and one prompt. The figures are those of whole stretches, from the first end on.
#ifndef HAGGLE_TUNE_GEN_LAB_H
#define HAGGLE_TUNE_GEN_LAB_H

#include "tune/gen.h"

#include <signal.h>

struct gen_desk {
    struct knobs knobs[GEN_VALUES_MOST]; // of each format: the model's folder, its precision
    int64_t prompt, output;
    uint64_t seed;                     // of the prompts, which are random ids
    const volatile sig_atomic_t *stop; // may be NULL
    void (*on_visit)(void *arg, const struct gen *g, int setting); // may be NULL
    void *on_visit_arg;
    uint64_t visits; // so far
};

// The desk outlives the laboratory. The process has no other threads while a visit runs.
struct gen_lab gen_lab_of(struct gen_desk *d);
// One visit, for callers that compare settings without a search.
int gen_lab_measure(struct gen_desk *d, const struct gen_point *p, double seconds,
                    struct gen_measured *out, struct err *e);

#endif
