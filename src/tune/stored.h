// stored.h - a finished search, rebuilt from the rows of the store.
//
// Place: api/report.c asks for a tuning by number. report/ shows it like a search that has just
// ended. What the rows do not hold is listed as missing and not made up (again.h).
#ifndef HAGGLE_TUNE_STORED_H
#define HAGGLE_TUNE_STORED_H

#include "base/region.h"
#include "base/sentences.h"
#include "store/store.h"
#include "tune/tune.h"

struct stored_memory { // planned bytes of a setting
    bool known;
    uint64_t by_class[CLASS_COUNT];
    uint64_t second_bytes; // of a second model, which has a separate arena
};

struct stored_trial;
struct stored_span;

struct stored {
    struct region region; // texts, spans and trials
    struct store *store;
    int64_t id, chosen;
    enum store_state state;
    char *goal, *budgets, *model, *recipe;
    char *turns;   // JSON; "": none
    char *verdict; // one sentence per line; older stores have a single line
    struct knobs base;
    struct tune tune;
    struct stored_memory given, of_choice;
    struct sentences missing;
    uint64_t memory_budget, second_bytes;
    int unreadable; // trials with knobs that this build does not know
    struct stored_span *spans;
    size_t n_spans, spans_capacity;
    struct stored_trial *trials;
    size_t n, capacity;
    struct err err; // set by a callback
};

// tuning: a number, or "last". path: NULL for the user's store. Call stored_close in every case.
int stored_open(struct stored *s, const char *tuning, const char *path, struct err *e);
void stored_close(struct stored *s);

#endif
