// range.h - large memory that grows in place: addresses are reserved once, pages are taken on use.
//
// Place: a process that runs one plan after another (engine/arena.h) keeps its arena here. The next
// plan, larger or smaller, reuses the pages that are already resident, at the same address. To take
// memory for a single plan, use mem.h.
//
// Invariants: the address never changes and is 2 MiB aligned. Bytes keep their values until
// range_trim releases them. Bytes are zero on first use and on the first use after a trim.
#ifndef HAGGLE_BASE_RANGE_H
#define HAGGLE_BASE_RANGE_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

struct range;

// Reserves `most` bytes of addresses. If the process's limits do not allow that, tries half, then
// half again, and so on. range_most returns the result. Uses no memory.
int range_open(struct range **out, size_t most, struct err *e);
void range_close(struct range *r);
size_t range_most(const struct range *r);
// Makes the first `bytes` readable and writable. ERR_MEMORY when that is more than range_most, or
// more than the machine has available in addition to the pages that are already resident here.
int range_use(struct range *r, size_t bytes, void **out, struct err *e);
// How many bytes from `from` (rounded up to 2 MiB) to the end are resident.
uint64_t range_resident_bytes(const struct range *r, size_t from);
// Releases the pages from `from` (rounded up to 2 MiB) to the end.
void range_trim(struct range *r, size_t from);

#endif
