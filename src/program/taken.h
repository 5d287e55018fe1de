// taken.h - which bytes are taken at which time. layout.c asks it where a tensor fits.
//
// Time is divided into moments 0 .. n-1. Each addition takes a range of bytes over a span of
// moments. A question collects the bytes that were added at any moment of some spans, from one
// struct taken or several, and then says where other bytes fit.
#ifndef HAGGLE_PROGRAM_TAKEN_H
#define HAGGLE_PROGRAM_TAKEN_H

#include "base/err.h"
#include "base/region.h"

#include <stdint.h>

struct span {
    int first, last; // moments, both included; last < first: empty
};

struct run { // bytes [begin, end)
    uint64_t begin, end;
};

struct run_set { // sorted; runs do not touch
    struct run *run;
    int n, capacity;
};

struct taken {
    int leaves;                  // number of moments, rounded up to a power of two
    struct run_set *over, *some; // [2 * leaves], see taken.c
    struct region region;        // owns the runs
};

int taken_make(struct taken *t, int moments, struct err *e);
void taken_clear(struct taken *t);
void taken_free(struct taken *t);
int taken_add(struct taken *t, struct span s, struct run r, struct err *e);

struct run_cursor { // a set that a question reads, and the position in it
    const struct run *run;
    int n, at;
};

struct question {
    struct run_cursor *cursors;
    int n;
};
int question_make(struct question *q, int max_spans, struct err *e);
void question_free(struct question *q);
void question_add(struct question *q, const struct taken *t, struct span s); // n = 0: starts anew
// The lowest offset at which `bytes` bytes are free.
uint64_t question_lowest(struct question *q, uint64_t bytes);
// The highest such offset that fits below the ceiling; UINT64_MAX: none.
uint64_t question_highest(struct question *q, uint64_t bytes, uint64_t ceiling);

#endif
