// test_hostile_gguf.c - GGUF files that must be refused with a message that names the file and the
// reason, and unusual files that must be accepted. Every case also checks the heap limit and leaks
// (readers.h).
#include "readers.h"

#include "model/scratch.h"

#include "export/gguf.h"

// A file is made of pieces, so that a case can have any of them wrong.
struct making {
    unsigned char bytes[4096];
    size_t n;
};

static void put(struct making *m, const void *data, size_t bytes) {
    assert_true(m->n + bytes <= sizeof m->bytes);
    memcpy(m->bytes + m->n, data, bytes);
    m->n += bytes;
}

static void u32(struct making *m, uint32_t x) {
    put(m, &x, sizeof x);
}

static void u64(struct making *m, uint64_t x) {
    put(m, &x, sizeof x);
}

static void text(struct making *m, const char *s) {
    u64(m, strlen(s));
    put(m, s, strlen(s));
}

static void head(struct making *m, uint64_t tensors, uint64_t values) {
    m->n = 0;
    put(m, "GGUF", 4);
    u32(m, GGUF_VERSION);
    u64(m, tensors);
    u64(m, values);
}

static void tensor(struct making *m, const char *name, uint32_t rank, const uint64_t *dims,
                   uint32_t type, uint64_t offset) {
    text(m, name);
    u32(m, rank);
    for (uint32_t i = 0; i < rank && i < 6; i++)
        u64(m, dims[i]);
    u32(m, type);
    u64(m, offset);
}

static void data(struct making *m, size_t bytes) {
    static const unsigned char zeros[512];
    put(m, zeros, gguf_padding(m->n));
    put(m, zeros, bytes);
}

static void try(const struct scratch *d, const struct making *m, const char *parts) {
    const struct reader *r = &readers[READ_GGUF];
    struct err e = {0};
    const char *path = scratch_put(d, r->file, m->bytes, m->n);
    const int rc = reader_run(r, path, m->n, &e);
    if (parts == NULL) {
        assert_worked(rc, &e);
        return;
    }
    assert_failed(rc, &e, parts, parts);
    assert_failed(rc, &e, r->file, parts);
    assert_int_equal(r->read(path, NULL), rc);
}

// ---------------------------------------------------------------- the first bytes and values

static void test_first_bytes(void **state) {
    struct making m;
    head(&m, 0, 0);
    try(*state, &m, NULL);
    for (m.n = 0; m.n < 24; m.n++)
        try(*state, &m, "more");
    head(&m, 0, 0);
    m.bytes[0] = 'g';
    try(*state, &m, "no GGUF file");
    static const unsigned char versions[] = {0, 1, 2, 4, 255};
    for (size_t i = 0; i < sizeof versions; i++) {
        head(&m, 0, 0);
        m.bytes[4] = versions[i];
        try(*state, &m, "version|accepted: 3");
    }
    static const uint64_t counts[] = {1, 1000, UINT64_C(1) << 17, UINT64_C(1) << 63, UINT64_MAX};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        head(&m, counts[i], 0);
        try(*state, &m, "number of tensors");
        head(&m, 0, counts[i]);
        try(*state, &m, "number of values");
    }
    head(&m, 0, 0);
    put(&m, "x", 1);
    try(*state, &m, "the file has 25 bytes|accepted: 24");
}

static void test_values(void **state) {
    struct making m;
    static const uint32_t types[] = {13, 99, UINT32_MAX};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        head(&m, 0, 1);
        text(&m, "k");
        u32(&m, types[i]);
        u64(&m, 0);
        try(*state, &m, "\"k\"|type");
        head(&m, 0, 1);
        text(&m, "k");
        u32(&m, GGUF_ARRAY);
        u32(&m, types[i]);
        u64(&m, 0);
        try(*state, &m, "\"k\"|type");
    }
    head(&m, 0, 1);
    text(&m, "k");
    u32(&m, GGUF_ARRAY);
    u32(&m, GGUF_ARRAY);
    u64(&m, 1);
    try(*state, &m, "\"k\"|arrays (9)");
    static const uint64_t lengths[] = {2, 1 << 20, UINT64_C(1) << 32, UINT64_MAX - 7, UINT64_MAX};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        head(&m, 0, 1); // a key
        u64(&m, lengths[i]);
        u64(&m, 0);
        try(*state, &m, "a key");
        head(&m, 0, 1); // a string
        text(&m, "k");
        u32(&m, GGUF_STRING);
        u64(&m, lengths[i]);
        try(*state, &m, "a string");
        head(&m, 0, 1); // arrays of numbers and of strings
        text(&m, "k");
        u32(&m, GGUF_ARRAY);
        u32(&m, i % 2 ? GGUF_STRING : GGUF_U64);
        u64(&m, lengths[i]);
        u64(&m, 0);
        try(*state, &m, "array");
        head(&m, 0, 1); // a string of an array
        text(&m, "k");
        u32(&m, GGUF_ARRAY);
        u32(&m, GGUF_STRING);
        u64(&m, 1);
        u64(&m, lengths[i]);
        try(*state, &m, "a string");
    }
    head(&m, 0, 1);
    text(&m, "");
    put(&m, "\0\0\0\0\0\0", 6);
    try(*state, &m, "a key is empty");
    head(&m, 0, 1);
    u64(&m, 3);
    put(&m, "a\0b\0\0\0\0\0", 8);
    try(*state, &m, "a key|NUL");
    head(&m, 0, 2);
    for (int i = 0; i < 2; i++) {
        text(&m, "same");
        put(&m, "\0\0\0\0\1", 5);
    }
    try(*state, &m, "\"same\" appears twice");
    head(&m, 0, 1);
    text(&m, "k\xff");
    put(&m, "\0\0\0\0\1", 5);
    try(*state, &m, "UTF-8");
    head(&m, 0, 1);
    text(&m, "k");
    u32(&m, GGUF_BOOL);
    put(&m, "\2", 1);
    try(*state, &m, "a bool is 2");
}

static void test_alignment(void **state) {
    struct making m;
    static const uint32_t wrong[] = {0, 1, 3, 4, 24, 1u << 31, UINT32_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        head(&m, 0, 1);
        text(&m, "general.alignment");
        u32(&m, GGUF_U32);
        u32(&m, wrong[i]);
        try(*state, &m, "general.alignment|powers of two");
    }
    head(&m, 0, 1);
    text(&m, "general.alignment");
    u32(&m, GGUF_STRING);
    text(&m, "32");
    try(*state, &m, "general.alignment is not a u32");
}

// ---------------------------------------------------------------- tensors

static void test_tensors(void **state) {
    struct making m;
    static const struct {
        const char *name;
        uint32_t rank;
        uint64_t dims[6];
        uint32_t type;
        uint64_t offset;
        size_t data;
        const char *parts;
    } cases[] = {
        {"t", 1, {8}, GGUF_F32, 0, 32, NULL},
        {"t", 4, {1, 2, 2, 2}, GGUF_F32, 0, 32, NULL},
        {"t", 2, {32, 1}, GGUF_Q8_0, 0, 64, NULL},
        {"t", 0, {0}, GGUF_F32, 0, 32, "rank is 0"},
        {"t", 5, {1, 1, 1, 1, 1}, GGUF_F32, 0, 32, "rank is 5"},
        {"t", UINT32_MAX, {1, 1, 1, 1, 1, 1}, GGUF_F32, 0, 32, "rank is 4294967295"},
        {"t", 1, {0}, GGUF_F32, 0, 32, "dimension is 0"},
        {"t", 2, {8, 0}, GGUF_F32, 0, 32, "dimension is 0"},
        {"t", 1, {UINT64_C(1) << 63}, GGUF_F32, 0, 32, "dimension|2^63"},
        {"t", 1, {UINT64_MAX}, GGUF_F32, 0, 32, "dimension|2^63"},
        {"t", 2, {UINT64_C(1) << 32, UINT64_C(1) << 31}, GGUF_F32, 0, 32, "dimension|2^63"},
        {"t", 2, {UINT64_C(1) << 32, UINT64_C(1) << 30}, GGUF_F32, 0, 32, "more than the file"},
        {"t", 1, {INT64_MAX - 31}, GGUF_Q8_0, 0, 32, "more than the file"},
        {"t", 1, {8}, 3, 0, 32, "type 3|accepted"},
        {"t", 1, {8}, UINT32_MAX, 0, 32, "type 4294967295|accepted"},
        {"t", 1, {8}, GGUF_Q8_0, 0, 32, "rows of 8|multiple of 32"},
        {"t", 2, {8, 4}, GGUF_Q4_0, 0, 32, "rows of 8|multiple of 32"},
        {"t", 1, {8}, GGUF_F32, 32, 64, "begins at 32|accepted: 0"},
        {"t", 1, {8}, GGUF_F32, UINT64_MAX - 31, 32, "begins at|accepted: 0"},
        {"t", 1, {9}, GGUF_F32, 0, 32, "needs bytes|64"},
        {"t", 1, {8}, GGUF_F32, 0, 31, "needs bytes"},
        {"t", 1, {7}, GGUF_F32, 0, 31, "padding"},
        {"t", 1, {8}, GGUF_F32, 0, 33, "padding"},
        {"", 1, {8}, GGUF_F32, 0, 32, "tensor's name is empty"},
        {"0123456789012345678901234567890123456789012345678901234567890123",
         1,
         {8},
         GGUF_F32,
         0,
         32,
         "64 bytes|at most 63"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        head(&m, 1, 0);
        tensor(&m, cases[i].name, cases[i].rank, cases[i].dims, cases[i].type, cases[i].offset);
        data(&m, cases[i].data);
        try(*state, &m, cases[i].parts);
    }
    for (int same = 0; same < 2; same++) { // two tensors
        head(&m, 2, 0);
        tensor(&m, "a", 1, (uint64_t[]){1}, GGUF_F32, 0);
        tensor(&m, same ? "a" : "b", 1, (uint64_t[]){1}, GGUF_F32, 32);
        data(&m, 64);
        try(*state, &m, same ? "\"a\" appears twice" : NULL);
    }
    head(&m, 2, 0); // the second one over the first
    tensor(&m, "a", 1, (uint64_t[]){1}, GGUF_F32, 0);
    tensor(&m, "b", 1, (uint64_t[]){1}, GGUF_F32, 0);
    data(&m, 64);
    try(*state, &m, "\"b\" begins at 0|accepted: 32");
}

// Thousands of values and names in one file stay within the heap limit.
static void test_many(void **state) {
    const struct reader *r = &readers[READ_GGUF];
    struct gguf_head h;
    struct err e = {0};
    char name[32];
    gguf_head_begin(&h);
    for (int i = 0; i < 20000; i++) {
        snprintf(name, sizeof name, "k%d", i);
        gguf_put_u32(&h, name, 1);
    }
    for (int i = 0; i < 20000; i++) {
        snprintf(name, sizeof name, "t%d", i);
        gguf_put_tensor(&h, name, GGUF_F32, 1, (int64_t[]){8});
    }
    assert_worked(gguf_head_end(&h, &e), &e);
    const size_t bytes = h.n + (size_t)h.data_bytes;
    char *whole = calloc(1, bytes);
    assert_non_null(whole);
    memcpy(whole, h.data, h.n);
    gguf_head_free(&h);
    const char *path = scratch_put(*state, r->file, whole, bytes);
    assert_worked(reader_run(r, path, bytes, &e), &e);
    free(whole);
}

int main(void) {
#define IN_SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_setup, scratch_teardown)
    const struct CMUnitTest tests[] = {
        IN_SCRATCH(test_first_bytes), IN_SCRATCH(test_values), IN_SCRATCH(test_alignment),
        IN_SCRATCH(test_tensors),     IN_SCRATCH(test_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
