// range.h - large memory that grows in place: addresses reserved once, pages taken as they are used.
//
// Place: a process that runs one plan after another (train/kept.h) keeps its arena here, so that the
// next plan finds pages that are already there, at the same address, whether it needs more or fewer.
// mem.h stays the way to take memory for one plan.
//
// Invariants: the address never changes, and is 2 MiB aligned; bytes keep their values until
// range_trim lets them go, and are zero when they are used for the first time or again after that.
#ifndef HAGGLE_BASE_RANGE_H
#define HAGGLE_BASE_RANGE_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

struct range;

// Reserves `most` bytes of addresses, or half of that, or half again, as the process's limits allow:
// range_most says. Costs no memory.
int range_open(struct range **out, size_t most, struct err *e);
void range_close(struct range *r);
size_t range_most(const struct range *r);
// The first `bytes` may be read and written from now on. ERR_MEMORY when that is more than range_most, or
// more than the machine has available beside what is resident here already.
int range_use(struct range *r, size_t bytes, void **out, struct err *e);
// Of the bytes from `from` to the end: how many are resident. Whole pages: from is rounded up to 2 MiB.
uint64_t range_resident_bytes(const struct range *r, size_t from);
// Gives back the pages from `from` (rounded up to 2 MiB) to the end.
void range_trim(struct range *r, size_t from);

#endif
