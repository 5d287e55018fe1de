// gguf_write.c - makes the head of a GGUF file: its values and the list of its tensors.
//
// The head of the largest vocabularies has some 15 MB, so it is made in memory, and whoever checks
// the file can compare it byte for byte. Calls do not fail one by one: the first failure is kept
// and reported at the end.
#include "export/gguf.h"

#include "base/array.h"
#include "base/checked.h"

#include <stdlib.h>
#include <string.h>

enum { COUNTS_AT = 8, LEAST = 1 << 16 }; // where the two counts are

static void put(struct gguf_head *h, const void *data, size_t bytes) {
    if (h->rc != 0 || bytes == 0)
        return;
    if (!array_room(&h->data, h->n, bytes, &h->capacity, 1, LEAST)) {
        h->rc = ERR_MEMORY;
        return;
    }
    memcpy(h->data + h->n, data, bytes);
    h->n += bytes;
}

static void put_u32(struct gguf_head *h, uint32_t x) {
    put(h, &x, sizeof x);
}

static void put_u64(struct gguf_head *h, uint64_t x) {
    put(h, &x, sizeof x);
}

static void put_string(struct gguf_head *h, const char *text, size_t bytes) {
    put_u64(h, bytes);
    put(h, text, bytes);
}

static void put_key(struct gguf_head *h, const char *key, enum gguf_value_type type) {
    if (h->tensors > 0)
        h->rc = ERR_INTERNAL; // values come before tensors
    put_string(h, key, strlen(key));
    put_u32(h, type);
    h->values++;
}

void gguf_head_begin(struct gguf_head *h) {
    *h = (struct gguf_head){0};
    put(h, "GGUF", 4);
    put_u32(h, GGUF_VERSION);
    put_u64(h, 0);
    put_u64(h, 0);
}

void gguf_head_free(struct gguf_head *h) {
    free(h->data);
    *h = (struct gguf_head){0};
}

void gguf_put_u32(struct gguf_head *h, const char *key, uint32_t x) {
    put_key(h, key, GGUF_U32);
    put_u32(h, x);
}

void gguf_put_float(struct gguf_head *h, const char *key, float x) {
    put_key(h, key, GGUF_FLOAT);
    put(h, &x, sizeof x);
}

void gguf_put_bool(struct gguf_head *h, const char *key, bool x) {
    put_key(h, key, GGUF_BOOL);
    put(h, x ? "\1" : "\0", 1);
}

void gguf_put_text(struct gguf_head *h, const char *key, const char *text, size_t bytes) {
    put_key(h, key, GGUF_STRING);
    put_string(h, text, bytes);
}

void gguf_put_array(struct gguf_head *h, const char *key, enum gguf_value_type type, uint64_t n) {
    put_key(h, key, GGUF_ARRAY);
    put_u32(h, type);
    put_u64(h, n);
}

void gguf_put_element_text(struct gguf_head *h, const char *text, size_t bytes) {
    put_string(h, text, bytes);
}

void gguf_put_element(struct gguf_head *h, const void *x, size_t bytes) {
    put(h, x, bytes);
}

uint64_t gguf_padding(uint64_t bytes) {
    return (GGUF_ALIGNMENT - bytes % GGUF_ALIGNMENT) % GGUF_ALIGNMENT;
}

void gguf_put_tensor(struct gguf_head *h, const char *name, enum gguf_type type, int rank,
                     const int64_t *dims) {
    int64_t elements = 1;
    put_string(h, name, strlen(name));
    put_u32(h, (uint32_t)rank);
    for (int i = 0; i < rank; i++) {
        put_u64(h, (uint64_t)dims[i]);
        if (!checked_mul_i64(elements, dims[i], &elements))
            h->rc = ERR_INTERNAL; // a checked shape has no such sizes
    }
    put_u32(h, type);
    put_u64(h, h->data_bytes);
    if (strlen(name) >= GGUF_NAME_BYTES || dims[0] % gguf_block_elements(type) != 0)
        h->rc = ERR_INTERNAL;
    const uint64_t bytes = gguf_bytes(type, elements);
    h->data_bytes += bytes + gguf_padding(bytes);
    h->tensors++;
}

int gguf_head_end(struct gguf_head *h, struct err *e) {
    static const char zeros[GGUF_ALIGNMENT];
    put(h, zeros, gguf_padding(h->n));
    if (h->rc == ERR_MEMORY)
        return err_set(e, ERR_MEMORY, "no memory for the head of a GGUF file");
    if (h->rc != 0)
        return err_set(e, h->rc, "the head of a GGUF file was made in a wrong way");
    memcpy(h->data + COUNTS_AT, &h->tensors, sizeof h->tensors);
    memcpy(h->data + COUNTS_AT + sizeof h->tensors, &h->values, sizeof h->values);
    return 0;
}
