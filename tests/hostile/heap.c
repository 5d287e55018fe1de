// heap.c - see heap.h. Not thread-safe, because the parsers use no threads.
#include "heap.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include <yaml.h>

static struct {
    size_t held, base, peak; // bytes
    long blocks, base_blocks;
    size_t calls;
    size_t fail_at; // number of the call that fails, counting down; 0: none
    bool fail_onwards, failed, yaml;
} heap;

void heap_watch(void) {
    heap.base = heap.peak = heap.held;
    heap.base_blocks = heap.blocks;
    heap.calls = 0;
}

size_t heap_peak_bytes(void) {
    return heap.peak - heap.base;
}
long heap_blocks(void) {
    return heap.blocks - heap.base_blocks;
}
size_t heap_calls(void) {
    return heap.calls;
}
bool heap_sees_yaml(void) {
    return heap.yaml;
}

void heap_fail(size_t n, bool onwards) {
    heap.fail_at = n;
    heap.fail_onwards = onwards;
    heap.failed = false;
}

bool heap_failed(void) {
    return heap.failed;
}

// Counts a call. Returns whether it must fail.
static bool fails(void) {
    heap.calls++;
    if (heap.fail_at == 0)
        return false;
    if (heap.fail_at > 1) {
        heap.fail_at--;
        return false;
    }
    heap.failed = true;
    heap.fail_at = heap.fail_onwards ? 1 : 0;
    return true;
}

static void *taken(void *p) {
    if (p == NULL)
        return NULL;
    heap.held += malloc_usable_size(p);
    heap.blocks++;
    if (heap.held > heap.peak)
        heap.peak = heap.held;
    return p;
}

static void given(void *p) {
    if (p == NULL)
        return;
    heap.held -= malloc_usable_size(p);
    heap.blocks--;
}

// The linker's --wrap needs these names.
void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *p, size_t bytes);
void __real_free(void *p);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *p, size_t bytes);
void __wrap_free(void *p);
char *__wrap_strdup(const char *text);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);

void *__wrap_malloc(size_t bytes) {
    return fails() ? NULL : taken(__real_malloc(bytes));
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes) {
    return fails() ? NULL : taken(__real_aligned_alloc(alignment, bytes));
}

void *__wrap_calloc(size_t count, size_t bytes) {
    return fails() ? NULL : taken(__real_calloc(count, bytes));
}

void *__wrap_realloc(void *p, size_t bytes) {
    if (fails())
        return NULL;
    size_t before = p != NULL ? malloc_usable_size(p) : 0;
    void *q = __real_realloc(p, bytes);
    if (q == NULL)
        return NULL;
    if (p != NULL) {
        heap.held -= before;
        heap.blocks--;
    }
    return taken(q);
}

void __wrap_free(void *p) {
    given(p);
    __real_free(p);
}

char *__wrap_strdup(const char *text) {
    size_t n = strlen(text) + 1;
    char *copy = __wrap_malloc(n);
    return copy != NULL ? memcpy(copy, text, n) : NULL;
}

// libyaml calls these functions by name through its shared library. These definitions replace them.
#define VISIBLE __attribute__((visibility("default")))
VISIBLE void *yaml_malloc(size_t bytes);
VISIBLE void *yaml_realloc(void *p, size_t bytes);
VISIBLE void yaml_free(void *p);
VISIBLE yaml_char_t *yaml_strdup(const yaml_char_t *text);

void *yaml_malloc(size_t bytes) {
    heap.yaml = true;
    return __wrap_malloc(bytes != 0 ? bytes : 1);
}

void *yaml_realloc(void *p, size_t bytes) {
    heap.yaml = true;
    return __wrap_realloc(p, bytes != 0 ? bytes : 1);
}

void yaml_free(void *p) {
    __wrap_free(p);
}

yaml_char_t *yaml_strdup(const yaml_char_t *text) {
    heap.yaml = true;
    return text != NULL ? (yaml_char_t *)__wrap_strdup((const char *)text) : NULL;
}
