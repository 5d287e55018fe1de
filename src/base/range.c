// range.c - see range.h.
//
// Reserved addresses have no access rights, so they use no memory, not even on a machine that does
// not overcommit. Access is granted from the front and never revoked.
#include "base/range.h"

#include "base/mem.h"
#include "base/text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const size_t HUGE_BYTES = (size_t)2 << 20;   // as in mem.c
static const size_t LEAST_BYTES = (size_t)64 << 20; // a smaller reservation is not useful
// Pages per call of mincore, with one byte each on the stack.
enum { LOOK_PAGES = 4096 };

struct range {
    unsigned char *raw, *base; // base: the first 2 MiB boundary in raw
    size_t raw_bytes, most, usable;
};

static size_t up(size_t bytes) {
    return (bytes + HUGE_BYTES - 1) & ~(HUGE_BYTES - 1);
}

int range_open(struct range **out, size_t most, struct err *e) {
    *out = NULL;
    struct range *r = calloc(1, sizeof *r);
    if (!r)
        return err_set(e, ERR_MEMORY, "no memory to reserve addresses");
    r->raw = MAP_FAILED;
    most = most < LEAST_BYTES ? LEAST_BYTES : most > SIZE_MAX / 4 ? SIZE_MAX / 4 : up(most);
    for (; r->raw == MAP_FAILED && most >= LEAST_BYTES; most = up(most / 2)) {
        r->most = most;
        r->raw_bytes = most + HUGE_BYTES;
        r->raw =
            mmap(NULL, r->raw_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (most == LEAST_BYTES)
            break;
    }
    if (r->raw == MAP_FAILED) {
        free(r);
        return err_set(e, ERR_MEMORY, "cannot reserve addresses: %s", strerror(errno));
    }
    r->base = r->raw + ((size_t)(-(uintptr_t)r->raw) & (HUGE_BYTES - 1));
    madvise(r->base, r->most, MADV_HUGEPAGE); // only advice, as in mem.c
    *out = r;
    return 0;
}

void range_close(struct range *r) {
    if (!r)
        return;
    munmap(r->raw, r->raw_bytes);
    free(r);
}

size_t range_most(const struct range *r) {
    return r->most;
}

static int refuse(size_t bytes, uint64_t have, struct err *e) {
    char a[TEXT_UNIT_BYTES], b[TEXT_UNIT_BYTES];
    return err_set(e, ERR_MEMORY, "no memory for an arena: %s asked for, %s available",
                   text_bytes(a, bytes), text_bytes(b, have));
}

int range_use(struct range *r, size_t bytes, void **out, struct err *e) {
    *out = NULL;
    const uint64_t resident = range_resident_bytes(r, 0), left = mem_machine_available_bytes();
    if (bytes > r->most)
        return refuse(bytes, r->most, e);
    // Refused here, because the kernel would not refuse: it would kill the process later.
    if (left && bytes > resident && bytes - resident > left)
        return refuse(bytes, left + resident, e);
    if (up(bytes) > r->usable) {
        if (mprotect(r->base, up(bytes), PROT_READ | PROT_WRITE) != 0)
            return refuse(bytes, left, e);
        r->usable = up(bytes);
    }
    *out = r->base;
    return 0;
}

uint64_t range_resident_bytes(const struct range *r, size_t from) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char there[LOOK_PAGES];
    uint64_t pages = 0;
    for (size_t at = up(from); at < r->usable; at += LOOK_PAGES * page) {
        size_t n = r->usable - at < LOOK_PAGES * page ? r->usable - at : LOOK_PAGES * page;
        if (mincore(r->base + at, n, there) != 0)
            return 0;
        for (size_t i = 0; i < n / page; i++)
            pages += there[i] & 1;
    }
    return pages * page;
}

void range_trim(struct range *r, size_t from) {
    if (up(from) < r->usable)
        madvise(r->base + up(from), r->usable - up(from), MADV_DONTNEED);
}
