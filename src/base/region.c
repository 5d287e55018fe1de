// region.c - bump allocation in chunks that double up to 1 MiB.
//
// Invariants: the head of the list is the chunk that is being filled. An object larger than a
// quarter of the next chunk gets a separate chunk *behind* the head, so that one big array does not
// waste the rest of the current chunk. Memory comes from calloc and is handed out only once, so it
// is zero without a memset.
#include "base/region.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 16, CHUNK_MIN_BYTES = 4096, CHUNK_MAX_BYTES = 1 << 20, GROW_MIN = 8 };

struct region_chunk {
    struct region_chunk *next;
    size_t used, capacity; // of the bytes that follow this header
};

// malloc aligns to 16 bytes on every 64-bit platform. The header's size is a multiple of 16, so the
// data after it is aligned too.
_Static_assert(_Alignof(max_align_t) >= ALIGN, "malloc must align to 16");
enum { HEADER_BYTES = (sizeof(struct region_chunk) + ALIGN - 1) / ALIGN * ALIGN };

static unsigned char *chunk_data(struct region_chunk *c) {
    return (unsigned char *)c + HEADER_BYTES;
}

static struct region_chunk *chunk_new(size_t capacity) {
    struct region_chunk *c = calloc(1, HEADER_BYTES + capacity);
    if (c)
        c->capacity = capacity;
    return c;
}

void *region_alloc(struct region *r, size_t bytes) {
    if (bytes > SIZE_MAX / 2)
        return NULL;
    // Zero bytes still get a distinct address, because NULL means only "out of memory".
    size_t want = bytes ? (bytes + ALIGN - 1) / ALIGN * ALIGN : ALIGN;
    struct region_chunk *head = r->chunk;
    if (!head || head->capacity - head->used < want) {
        size_t next = head ? head->capacity * 2 : CHUNK_MIN_BYTES;
        if (next > CHUNK_MAX_BYTES)
            next = CHUNK_MAX_BYTES;
        if (want > next / 4 && head) {
            struct region_chunk *own = chunk_new(want);
            if (!own)
                return NULL;
            own->used = want;
            own->next = head->next;
            head->next = own;
            r->bytes += want;
            return chunk_data(own);
        }
        struct region_chunk *c = chunk_new(want > next ? want : next);
        if (!c)
            return NULL;
        c->next = head;
        r->chunk = head = c;
    }
    void *p = chunk_data(head) + head->used;
    head->used += want;
    r->bytes += want;
    return p;
}

char *region_copy(struct region *r, const char *text) {
    size_t n = strlen(text) + 1;
    char *p = region_alloc(r, n);
    if (p)
        memcpy(p, text, n);
    return p;
}

char *region_printf(struct region *r, const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    char *p = n < 0 ? NULL : region_alloc(r, (size_t)n + 1);
    if (p)
        vsnprintf(p, (size_t)n + 1, format, again);
    va_end(again);
    return p;
}

void *region_grow(struct region *r, void *old, size_t count, size_t *capacity,
                  size_t element_bytes) {
    if (old && count < *capacity)
        return old;
    size_t wider = count < GROW_MIN / 2 ? GROW_MIN : count * 2;
    size_t bytes;
    if (count > SIZE_MAX / 2 || __builtin_mul_overflow(wider, element_bytes, &bytes))
        return NULL;
    void *p = region_alloc(r, bytes);
    if (!p)
        return NULL;
    if (old && count)
        memcpy(p, old, count * element_bytes);
    *capacity = wider;
    return p;
}

void region_free(struct region *r) {
    struct region_chunk *c = r->chunk;
    while (c) {
        struct region_chunk *next = c->next;
        free(c);
        c = next;
    }
    r->chunk = NULL;
    r->bytes = 0;
}
