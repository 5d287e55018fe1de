// taken.h - which bytes are taken when: what layout.c asks where a tensor fits.
//
// Time is cut into moments 0 .. n-1. What is added takes a range of bytes over some spans of
// moments; a question names spans too and is about all bytes that were added to any moment of them.
#ifndef HAGGLE_PROGRAM_TAKEN_H
#define HAGGLE_PROGRAM_TAKEN_H

#include "base/err.h"
#include "base/region.h"

#include <stdint.h>

struct span {
    int first, last; // moments, both within
};

struct run { // of bytes
    uint64_t begin, end;
};

struct run_set { // sorted; apart from one another
    struct run *run;
    int n, capacity;
};

struct run_cursor;
struct taken {
    int leaves;                  // moments, rounded up to a power of two
    struct run_set *over, *some; // [2 * leaves], see taken.c
    struct run_cursor *cursors;
    int n_cursors;
    struct region region; // the runs
};

// For questions of up to max_spans spans.
int taken_make(struct taken *t, int moments, int max_spans, struct err *e);
void taken_clear(struct taken *t);
void taken_free(struct taken *t);
int taken_add(struct taken *t, const struct span *spans, int n, struct run r, struct err *e);
// The lowest offset at which so many bytes are free during all spans.
uint64_t taken_lowest(struct taken *t, const struct span *spans, int n, uint64_t bytes);
// The highest such offset below the ceiling; UINT64_MAX: none.
uint64_t taken_highest(struct taken *t, const struct span *spans, int n, uint64_t bytes,
                       uint64_t ceiling);

#endif
