// test_cuda_quantized.c - products with quantized weights and lookups in quantized tables on a CUDA
// device: every format and element type, few rows and many, with the plain kernel and with the one
// that is made for the call. The truth are the exact values of the weight, multiplied in double.
// Skipped, with the reason, where there is no device.
#include "backend/cuda_needs.h"
#include "backend/plugin.h"
#include "base/rng.h"
#include "model/shape.h"
#include "program/program.h"
#include "skips.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROOM = 64 << 20 };

struct world {
    struct backend *cuda; // NULL: no device
    char why[ERR_TEXT_BYTES];
    unsigned char *memory, *host; // of the device, and an image of it
    uint64_t used;
};

static int setup(void **state) {
    static struct world w;
    struct err e = {0};
    void *memory;
    *state = &w;
    const struct plugin_options o = {.deterministic = true};
    const int rc = plugin_open("cuda", &o, &w.cuda, &e);
    if (rc != 0) {
        snprintf(w.why, sizeof w.why, "%s", e.text);
        return rc == ERR_UNSUPPORTED ? 0 : -1;
    }
    w.host = malloc(ROOM);
    if (!w.host || w.cuda->arena_take(w.cuda, ROOM, &memory, &e) != 0)
        return -1;
    w.memory = memory;
    return 0;
}

static int teardown(void **state) {
    struct world *w = *state;
    if (w->cuda) {
        w->cuda->arena_give(w->cuda, w->memory);
        w->cuda->close(w->cuda);
    }
    free(w->host);
    return 0;
}

// Room for an operand; where it is in the image is what `data` says until on_device.
static unsigned char *take(struct world *w, uint64_t bytes) {
    unsigned char *at = w->host + w->used;
    w->used += (bytes + 2 * TENSOR_ALIGN - 1) / TENSOR_ALIGN * TENSOR_ALIGN;
    assert_true(w->used <= ROOM);
    return at;
}

static void on_device(struct world *w, struct operand *o) {
    if (o->data)
        o->data = w->memory + ((unsigned char *)o->data - w->host);
}

static void put(void *at, enum dtype type, int64_t i, double x) {
    dtype_convert((char *)at + (size_t)i * dtype_bytes(type), type, &x, DTYPE_F64, 1);
}

static double get(const void *at, enum dtype type, int64_t i) {
    double x;
    dtype_convert(&x, DTYPE_F64, (const char *)at + (size_t)i * dtype_bytes(type), type, 1);
    return x;
}

// Normal numbers, rows `gap` elements apart.
static struct operand normals(struct world *w, int64_t rows, int64_t cols, int64_t gap,
                              enum dtype type, uint64_t stream) {
    const int64_t ld = cols + gap;
    struct operand o =
        operand_plain(take(w, (uint64_t)(rows * ld) * dtype_bytes(type)), ld, type, rows, cols);
    for (int64_t i = 0; i < rows * ld; i++)
        put(o.data, type, i, rng_normal(7, stream, (uint64_t)i));
    return o;
}

// Any codes, scales and minima: a kernel must take them all.
static struct operand weight(struct world *w, struct storage s, int64_t rows, int64_t cols,
                             enum dtype type) {
    struct storage_parts parts;
    assert_true(storage_layout(s, rows, cols, &parts));
    char *data = (char *)take(w, parts.bytes);
    for (uint64_t i = 0; i < parts.codes_bytes; i++) {
        const uint64_t code = rng_below(3, 1, i, s.kind == STORAGE_INT8 ? 255 : 256);
        data[i] = (char)(s.kind == STORAGE_INT8 ? (int)code - 127 : (int)code);
    }
    for (int64_t i = 0; i < rows * parts.groups; i++) {
        const double scale = 0.01 + 0.05 * rng_uniform(3, 2, (uint64_t)i);
        put(data + parts.scales, parts.scale_type, i, scale);
        if (s.minima)
            put(data + parts.minima, parts.scale_type, i,
                -scale * 8 * rng_uniform(3, 3, (uint64_t)i));
    }
    return (struct operand){
        .data = data, .ld = cols, .dtype = type, .rows = rows, .cols = cols, .storage = s};
}

static void run(struct world *w, struct op_call *c, bool make) {
    struct err e = {0};
    struct backend *b = w->cuda;
    for (int i = 0; i < OP_MAX_IN; i++)
        on_device(w, &c->in[i]);
    for (int i = 0; i < OP_MAX_OUT; i++)
        on_device(w, &c->out[i]);
    if (b->copy_in(b, w->memory, w->host, w->used, &e) != 0 || (make && b->make(b, c, &e) != 0) ||
        b->run[c->op->kind](b, c, &e) != 0 || b->sync(b, &e) != 0 ||
        b->copy_out(b, w->host, w->memory, w->used, &e) != 0)
        fail_msg("%s", e.text);
    b->unmake(b, c);
}

static const struct storage formats[] = {
    {.kind = STORAGE_INT8},
    {.kind = STORAGE_INT4, .group = 32},
    {.kind = STORAGE_INT4, .group = 64},
    {.kind = STORAGE_INT4, .group = 128},
    {.kind = STORAGE_INT4, .group = 32, .minima = true},
    {.kind = STORAGE_INT4, .group = 64, .minima = true},
    {.kind = STORAGE_INT4, .group = 128, .minima = true},
};
enum { FORMATS = sizeof formats / sizeof *formats };

struct product {
    int64_t m, n, k, gap;
    unsigned flags;
    bool bias, act;
};

static double unit(enum dtype type) { // half a unit in the last place, relative
    return type == DTYPE_BF16 ? 0x1p-8 : type == DTYPE_F16 ? 0x1p-11 : 0x1p-23;
}

// Every element, and every gap behind a row. Returns how many are wrong, after naming the first.
static int check_product(struct world *w, const struct product *p, struct storage s,
                         enum dtype type, bool make) {
    struct storage_parts parts;
    char text[STORAGE_TEXT_BYTES];
    struct op op = op_make(p->act ? OP_MATMUL_ACT : OP_MATMUL);
    op.m = p->m, op.n = p->n, op.k = p->k, op.scale = 0.75, op.flags = p->flags;
    op.act = ACT_GELU_TANH, op.n_in = 3, op.n_out = p->act ? 2 : 1;
    w->used = 0;
    const struct cuda_choice choice = {.deterministic = true};
    const uint64_t scratch = cuda_scratch_bytes(&op, type, &choice);
    struct op_call c = {.op = &op};
    c.in[0] = normals(w, p->m, p->k, p->gap, type, 10);
    c.in[1] = weight(w, s, p->n, p->k, type);
    if (p->bias)
        c.in[2] = normals(w, 1, p->n, 0, type, 20);
    c.out[0] = normals(w, p->m, p->n, p->gap, type, 50);
    if (p->act)
        c.out[1] = normals(w, p->m, p->n, p->gap, type, 60);
    c.scratch = operand_plain(take(w, scratch), (int64_t)scratch, DTYPE_U8, 1, (int64_t)scratch);
    on_device(w, &c.scratch);
    const int64_t ld = p->n + p->gap;
    const struct op_call host = c;
    char *before = malloc((size_t)(p->m * ld) * dtype_bytes(type));
    float *row = malloc((size_t)p->k * sizeof *row);
    double *x = malloc((size_t)(p->m * p->k) * sizeof *x);
    assert_true(before && row && x && storage_layout(s, p->n, p->k, &parts));
    memcpy(before, c.out[0].data, (size_t)(p->m * ld) * dtype_bytes(type));
    for (int64_t i = 0; i < p->m * p->k; i++)
        x[i] = get(host.in[0].data, type, i / p->k * (p->k + p->gap) + i % p->k);
    run(w, &c, make);
    int wrong = 0;
    for (int64_t j = 0; j < ld; j++) {
        if (j < p->n)
            storage_read_row(s, &parts, host.in[1].data, j, 0, p->k, row);
        for (int64_t i = 0; i < p->m; i++) {
            const double got = get(host.out[0].data, type, i * ld + j),
                         old = get(before, type, i * ld + j);
            if (j >= p->n) {
                wrong += got != old;
                continue;
            }
            double sum = 0, size = 0;
            for (int64_t k = 0; k < p->k; k++) {
                sum += x[i * p->k + k] * (double)row[k];
                size += fabs(x[i * p->k + k] * (double)row[k]);
            }
            sum = 0.75 * sum + (p->flags & OP_ACCUMULATE ? old : 0);
            // Plain kernels store the product before they add the bias, and so round it twice.
            const double before_bias = fabs(sum);
            sum += p->bias ? get(host.in[2].data, type, j) : 0;
            const double most =
                3e-6 * size + 1.01 * unit(type) * (fabs(sum) + (p->bias ? before_bias : 0)) + 1e-7;
            if (!(fabs(got - sum) <= most) && wrong++ == 0)
                print_error("%s %s m=%d n=%d k=%d %s: y[%d][%d] is %g, not %g: off %g of %g\n",
                            storage_text(s, text), dtype_text(type), (int)p->m, (int)p->n,
                            (int)p->k, make ? "made" : "plain", (int)i, (int)j, got, sum,
                            fabs(got - sum), most);
            const double a = p->act ? get(host.out[1].data, type, i * ld + j) : 0,
                         u = 0.7978845608028654 * (got + 0.044715 * got * got * got),
                         want = 0.5 * got * (1 + tanh(u));
            wrong += p->act && !(fabs(a - want) <= 4 * unit(type) * fabs(want) + 1e-5);
        }
    }
    free(before), free(row), free(x);
    return wrong;
}

static void check_type(struct world *w, enum dtype type) {
    static const struct product products[] = {
        {.m = 1, .n = 40, .k = 128, .bias = true},
        {.m = 1, .n = 1100, .k = 2048, .flags = OP_ACCUMULATE},
        {.m = 2, .n = 33, .k = 896, .gap = 16, .act = true},
        {.m = 7, .n = 257, .k = 384, .bias = true, .act = true},
        {.m = 8, .n = 300, .k = 1152, .gap = 8, .bias = true, .flags = OP_ACCUMULATE},
        {.m = 13, .n = 70, .k = 2560, .bias = true},
        {.m = 16, .n = 520, .k = 640, .gap = 3},
        {.m = 17, .n = 130, .k = 256, .bias = true},
        {.m = 70, .n = 129, .k = 896, .gap = 8, .bias = true, .flags = OP_ACCUMULATE},
        {.m = 150, .n = 200, .k = 1280, .gap = 16, .bias = true, .act = true},
        {.m = 300, .n = 72, .k = 128, .gap = 1},
    };
    int wrong = 0, n = 0;
    if (!w->cuda)
        skip_because("no CUDA backend: %s", w->why);
    for (int f = 0; f < FORMATS; f++)
        for (size_t i = 0; i < sizeof products / sizeof *products; i++)
            for (int make = 0; make < 2; make++, n++)
                wrong += check_product(w, &products[i], formats[f], type, make);
    print_message("%s: %d products, %d elements wrong\n", dtype_text(type), n, wrong);
    assert_int_equal(wrong, 0);
}

static void test_fp32(void **state) {
    check_type(*state, DTYPE_F32);
}
static void test_bf16(void **state) {
    check_type(*state, DTYPE_BF16);
}
static void test_fp16(void **state) {
    check_type(*state, DTYPE_F16);
}

// The row of a table, rounded once after its position is added. Ids out of range make NaN.
static void test_embed(void **state) {
    static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    static const int32_t ids[4] = {4, 0, 9, 6}, positions[4] = {1, 0, 1, 1};
    struct world *w = *state;
    if (!w->cuda)
        skip_because("no CUDA backend: %s", w->why);
    for (int f = 0; f < FORMATS; f++)
        for (int t = 0; t < 3; t++)
            for (int how = 0; how < 4; how++) { // placed, made
                const int64_t n = 5 * 128;
                struct storage_parts parts;
                struct op op = op_make(OP_EMBED);
                op.m = 4, op.n = n, op.k = 7, op.positions = 2, op.n_in = 4, op.n_out = 1;
                w->used = 0;
                struct op_call c = {.op = &op};
                c.in[0] = operand_plain(take(w, sizeof ids), 4, DTYPE_I32, 1, 4);
                memcpy(c.in[0].data, ids, sizeof ids);
                c.in[1] = weight(w, formats[f], 7, n, types[t]);
                if (how & 1) {
                    c.in[2] = operand_plain(take(w, sizeof positions), 4, DTYPE_I32, 1, 4);
                    memcpy(c.in[2].data, positions, sizeof positions);
                    c.in[3] = normals(w, 2, n, 0, types[t], 3);
                }
                c.out[0] = normals(w, 4, n, 16, types[t], 5);
                const struct op_call host = c;
                run(w, &c, how >> 1);
                assert_true(storage_layout(formats[f], 7, n, &parts));
                for (int64_t i = 0; i < 4; i++)
                    for (int64_t j = 0; j < n; j++) {
                        const double got = get(host.out[0].data, types[t], i * (n + 16) + j);
                        float x;
                        if (ids[i] == 9) {
                            assert_true(isnan(got));
                            continue;
                        }
                        storage_read_row(formats[f], &parts, host.in[1].data, ids[i], j, 1, &x);
                        const double place =
                            how & 1 ? get(host.in[3].data, types[t], positions[i] * n + j) : 0;
                        assert_true(fabs(got - ((double)x + place)) <=
                                    1.001 * unit(types[t]) * fabs((double)x + place) + 1e-7);
                    }
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fp32),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_fp16),
        cmocka_unit_test(test_embed),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
