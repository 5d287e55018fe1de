// test_quantized.c - products with quantized weights and lookups in quantized tables: every format,
// element type and instruction set of this machine against the reference, which multiplies the
// exact values of the weight with x as it is.
//
// What may differ is that the fast kernels round x to 8 bits in blocks. The bound below follows
// from that rounding alone, and it holds for every element.
#include "backend/cpu/cpu.h"
#include "backend/cpu/quant.h"
#include "base/rng.h"
#include "model/shape.h"
#include "skips.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TEAMS = 3, ISAS = 5, PAD = 5 };
static const char *const isas[ISAS] = {"generic", "avx2", "avx512", "avx512_bf16", "amx"};

struct world {
    struct mem *mem;
    struct backend *reference;
    struct pool *pool[TEAMS];
    struct backend *cpu[ISAS][TEAMS]; // NULL: this CPU lacks the instructions
};

static int setup(void **state) {
    static struct world w;
    struct err e = {0};
    if (mem_open(&w.mem, &e) != 0 || cpu_reference_open(&w.reference, w.mem, &e) != 0)
        return -1;
    for (int t = 0; t < TEAMS; t++) {
        if (pool_open(&w.pool[t], t + 1, 0, &e) != 0)
            return -1;
        for (int i = 0; i < ISAS; i++) {
            const struct cpu_options o = {.blas = "builtin", .isa = isas[i]};
            const int rc = cpu_backend_open(&w.cpu[i][t], w.mem, w.pool[t], &o, &e);
            if (rc != 0 && rc != ERR_UNSUPPORTED)
                return -1;
        }
    }
    *state = &w;
    return 0;
}

static int teardown(void **state) {
    struct world *w = *state;
    for (int t = 0; t < TEAMS; t++) {
        for (int i = 0; i < ISAS; i++)
            if (w->cpu[i][t])
                w->cpu[i][t]->close(w->cpu[i][t]);
        pool_close(w->pool[t]);
    }
    w->reference->close(w->reference);
    mem_close(w->mem);
    return 0;
}

// ---------------------------------------------------------------- a weight

struct matrix {
    struct storage storage;
    struct storage_parts parts;
    int64_t rows, cols;
    char *data;
};

static void put_half(char *part, int64_t index, double value) {
    const uint16_t bits = dtype_f32_to_f16((float)value);
    memcpy(part + index * 2, &bits, sizeof bits);
}

// Any codes, scales and minima: a kernel must take them all. The bytes end where the memory does,
// so that a read behind them is found.
static struct matrix make_matrix(struct storage s, int64_t rows, int64_t cols, uint64_t seed) {
    struct matrix m = {.storage = s, .rows = rows, .cols = cols};
    assert_true(storage_layout(s, rows, cols, &m.parts));
    m.data = malloc(m.parts.bytes + 1);
    assert_non_null(m.data);
    for (uint64_t i = 0; i < m.parts.codes_bytes; i++) {
        const uint64_t code = rng_below(seed, 1, i, s.kind == STORAGE_INT8 ? 255 : 256);
        m.data[i] = (char)(s.kind == STORAGE_INT8 ? (int)code - 127 : (int)code);
    }
    for (int64_t i = 0; i < rows * m.parts.groups; i++) {
        const double scale = 0.01 + 0.05 * (double)rng_below(seed, 2, (uint64_t)i, 100) / 100;
        const float single = (float)scale;
        if (s.kind == STORAGE_INT8)
            memcpy(m.data + m.parts.scales + i * 4, &single, sizeof single);
        else
            put_half(m.data + m.parts.scales, i, scale);
        if (s.minima)
            put_half(m.data + m.parts.minima, i, -scale * 8 * rng_uniform(seed, 3, (uint64_t)i));
    }
    return m;
}

static struct operand operand_of(const struct matrix *m, enum dtype type) {
    return (struct operand){.data = m->data,
                            .ld = m->cols,
                            .dtype = type,
                            .rows = m->rows,
                            .cols = m->cols,
                            .storage = m->storage};
}

// ---------------------------------------------------------------- a product

struct product {
    int64_t m, n, k;
    unsigned flags;
    bool bias, act;
    struct storage storage;
    enum dtype type;
};

struct values { // rows with gaps behind them
    void *data;
    int64_t rows, cols, ld;
    enum dtype type;
};

static double get(const struct values *v, int64_t i, int64_t j) {
    double x;
    dtype_convert(&x, DTYPE_F64,
                  (const char *)v->data + (size_t)(i * v->ld + j) * dtype_bytes(v->type), v->type,
                  1);
    return x;
}

static struct values make_values(int64_t rows, int64_t cols, int64_t gap, enum dtype type,
                                 uint64_t stream) {
    struct values v = {.rows = rows, .cols = cols, .ld = cols + gap, .type = type};
    v.data = malloc((size_t)(rows * v.ld) * dtype_bytes(type) + 1);
    assert_non_null(v.data);
    for (int64_t i = 0; i < rows * v.ld; i++) {
        const double x = rng_normal(7, stream, (uint64_t)i);
        dtype_convert((char *)v.data + (size_t)i * dtype_bytes(type), type, &x, DTYPE_F64, 1);
    }
    return v;
}

static struct operand values_operand(const struct values *v) {
    return (struct operand){
        .data = v->data, .ld = v->ld, .dtype = v->type, .rows = v->rows, .cols = v->cols};
}

// Runs the product on a backend and returns y, and the activation behind it, in `type`.
static void run(struct backend *b, const struct product *p, enum dtype type, const struct matrix *w,
                const struct values *x, const struct values *bias, struct values *y,
                struct values *a) {
    struct err e = {0};
    struct op op = op_make(p->act ? OP_MATMUL_ACT : OP_MATMUL);
    op.m = p->m, op.n = p->n, op.k = p->k;
    op.flags = p->flags;
    op.scale = 0.75;
    op.act = ACT_GELU_TANH;
    op.n_in = 3, op.n_out = p->act ? 2 : 1;
    *y = make_values(p->m, p->n, PAD, type, 50);
    *a = make_values(p->m, p->n, PAD, type, 60);
    struct op_call call = {
        .op = &op, .in = {values_operand(x), operand_of(w, type)}, .out = {values_operand(y)}};
    if (p->bias)
        call.in[2] = values_operand(bias);
    if (p->act)
        call.out[1] = values_operand(a);
    if (b->run[op.kind](b, &call, &e) != 0)
        fail_msg("%s: %s", b->name, e.text);
}

// The values of x, its bias and W in double, for the truth.
struct truth {
    double *y, *bound, *size; // what rounding x may change; the sum of magnitudes
};

static struct truth make_truth(const struct product *p, const struct matrix *w,
                               const struct values *x, const struct values *bias,
                               const struct values *before) {
    struct truth t = {calloc((size_t)(p->m * p->n) + 1, sizeof(double)),
                      calloc((size_t)(p->m * p->n) + 1, sizeof(double)),
                      calloc((size_t)(p->m * p->n) + 1, sizeof(double))};
    float *row = calloc((size_t)p->k + 1, sizeof *row);
    assert_true(t.y && t.bound && t.size && row);
    for (int64_t j = 0; j < p->n; j++) {
        storage_read_row(p->storage, &w->parts, w->data, j, 0, p->k, row);
        for (int64_t i = 0; i < p->m; i++) {
            double sum = 0, bound = 0, size = 0;
            for (int64_t at = 0; at < p->k; at += QUANT_BLOCK) {
                const int64_t end = at + QUANT_BLOCK < p->k ? at + QUANT_BLOCK : p->k;
                double largest = 0, weights = 0;
                for (int64_t l = at; l < end; l++) {
                    largest = fmax(largest, fabs(get(x, i, l)));
                    weights += fabs((double)row[l]);
                    size += fabs(get(x, i, l) * (double)row[l]);
                    sum += get(x, i, l) * (double)row[l];
                }
                bound += weights * largest / 127 / 2;
            }
            sum *= 0.75;
            sum += p->bias ? get(bias, 0, j) : 0;
            sum += p->flags & OP_ACCUMULATE ? get(before, i, j) : 0;
            t.y[i * p->n + j] = sum, t.bound[i * p->n + j] = 0.75 * bound;
            t.size[i * p->n + j] = size + fabs(sum);
        }
    }
    free(row);
    return t;
}

static double unit(enum dtype type) { // half a unit in the last place, relative
    return type == DTYPE_BF16 ? 0x1p-8 : type == DTYPE_F16 ? 0x1p-11 : 0x1p-23;
}

static void judge(const char *who, const struct product *p, const struct values *y,
                  const struct truth *t, bool exact) {
    char text[STORAGE_TEXT_BYTES];
    for (int64_t i = 0; i < p->m; i++)
        for (int64_t j = 0; j < p->n; j++) {
            const int64_t at = i * p->n + j;
            const double got = get(y, i, j), off = fabs(got - t->y[at]),
                         most = (exact ? 0 : 1.0001 * t->bound[at]) + 2e-6 * t->size[at] +
                                unit(p->type) * (fabs(t->y[at]) + t->bound[at]);
            if (!(off <= most))
                fail_msg("%s: %s m=%d n=%d k=%d %s: y[%d][%d] is %g, not %g: off %g of %g", who,
                         storage_text(p->storage, text), (int)p->m, (int)p->n, (int)p->k,
                         dtype_text(p->type), (int)i, (int)j, got, t->y[at], off, most);
        }
}

// Nothing behind a row may change.
static void check_gaps(const char *who, const struct values *y, uint64_t stream) {
    struct values before = make_values(y->rows, y->cols, PAD, y->type, stream);
    for (int64_t i = 0; i < y->rows; i++)
        for (int64_t j = y->cols; j < y->ld; j++)
            if (get(y, i, j) != get(&before, i, j))
                fail_msg("%s wrote behind row %d", who, (int)i);
    free(before.data);
}

static void check_product(struct world *w, const struct product *p) {
    const struct matrix weight = make_matrix(p->storage, p->n, p->k, (uint64_t)(p->n * 31 + p->k));
    struct values x = make_values(p->m, p->k, PAD, p->type, 10),
                  bias = make_values(1, p->n, 0, p->type, 20),
                  before = make_values(p->m, p->n, PAD, p->type, 50), y, a, plain = {0};
    const struct truth t = make_truth(p, &weight, &x, &bias, &before);
    run(w->reference, p, p->type, &weight, &x, &bias, &y, &a);
    judge("reference", p, &y, &t, true);
    free(y.data), free(a.data);
    for (int i = 0; i < ISAS; i++) {
        struct values one = {0}, one_act = {0};
        for (int team = 0; w->cpu[i][team < TEAMS ? team : 0] && team < TEAMS; team++) {
            run(w->cpu[i][team], p, p->type, &weight, &x, &bias, &y, &a);
            if (team == 0) {
                judge(isas[i], p, &y, &t, false);
                check_gaps(isas[i], &y, 50);
                one = y, one_act = a;
                continue;
            }
            const size_t bytes = (size_t)(p->m * y.ld) * dtype_bytes(p->type);
            if (memcmp(one.data, y.data, bytes) != 0 || memcmp(one_act.data, a.data, bytes) != 0)
                fail_msg("%s: other bits with %d threads", isas[i], team + 1);
            free(y.data), free(a.data);
        }
        if (!one.data)
            continue;
        // Integers are exact, so instruction sets differ by the order of float sums only.
        for (int64_t r = 0; plain.data && r < p->m; r++)
            for (int64_t c = 0; c < p->n; c++)
                assert_true(fabs(get(&plain, r, c) - get(&one, r, c)) <=
                            2e-6 * t.size[r * p->n + c] +
                                2 * unit(p->type) * fabs(get(&one, r, c)));
        if (plain.data)
            free(one.data);
        else
            plain = one;
        free(one_act.data);
    }
    free(plain.data), free(x.data), free(bias.data), free(before.data), free(weight.data);
    free(t.y), free(t.bound), free(t.size);
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

static const int64_t row_counts[] = {1, 2, 7, 8, 13, 29, 37};
static const int64_t column_counts[] = {1, 6, 33, 70};

static void check_type(void **state, enum dtype type) {
    // In units of 32 elements, or of elements for int8, where any number is accepted.
    static const int64_t groups[] = {1, 3, 5}, odd[] = {1, 31, 32, 65, 300, 513, 2200};
    for (int f = 0; f < FORMATS; f++) {
        const bool int8 = formats[f].kind == STORAGE_INT8;
        const int n_ks = int8 ? 7 : 4;
        for (int ki = 0; ki < n_ks; ki++) {
            const int64_t k = int8     ? odd[ki]
                              : ki < 3 ? groups[ki] * formats[f].group
                                       : 2048 + 512 + 3 * formats[f].group;
            for (size_t r = 0; r < sizeof row_counts / sizeof *row_counts; r++)
                for (size_t c = 0; c < sizeof column_counts / sizeof *column_counts; c++) {
                    if (k > 1000 && (r + c) % 3 != 0) // the longest rows: a third of the sizes
                        continue;
                    const struct product p = {.m = row_counts[r],
                                              .n = column_counts[c],
                                              .k = k,
                                              .flags = (r + c) % 2 ? (unsigned)OP_ACCUMULATE : 0,
                                              .bias = c % 2 == 0,
                                              .act = (r + c) % 2 == 0 && ki % 2 == 0,
                                              .storage = formats[f],
                                              .type = type};
                    check_product(*state, &p);
                }
        }
    }
}

static void test_fp32(void **state) {
    check_type(state, DTYPE_F32);
}
static void test_bf16(void **state) {
    check_type(state, DTYPE_BF16);
}
static void test_fp16(void **state) {
    check_type(state, DTYPE_F16);
}

// A text must not depend on the texts beside it: with few rows, each row has the bits that it has
// alone, and each column those it has without the columns behind it.
static void test_neighbours(void **state) {
    struct world *w = *state;
    static const int64_t counts[] = {2, 3, 5, 8, 13, 16},
                         ks[] = {512 + 128, 4 * 512, 9 * 512 + 384};
    for (int f = 0; f < FORMATS; f++)
        for (size_t r = 0; r < 6; r++) {
            struct product p = {
                .m = counts[r], .n = 37, .k = ks[r % 3], .storage = formats[f], .type = DTYPE_F32};
            const struct matrix weight = make_matrix(p.storage, p.n, p.k, 5);
            struct values x = make_values(p.m, p.k, 0, p.type, 10), all, some, a;
            for (int i = 0; i < ISAS; i++) {
                if (!w->cpu[i][1])
                    continue;
                p.m = counts[r], p.n = 37;
                run(w->cpu[i][1], &p, p.type, &weight, &x, NULL, &all, &a);
                free(a.data);
                for (int64_t row = 0; row < counts[r]; row++) {
                    struct values one = x;
                    one.data = (float *)x.data + row * p.k;
                    one.rows = p.m = 1;
                    p.n = 1 + row * 5 % 37;
                    run(w->cpu[i][1], &p, p.type, &weight, &one, NULL, &some, &a);
                    if (memcmp((float *)all.data + row * all.ld, some.data,
                               (size_t)p.n * sizeof(float)) != 0)
                        fail_msg("%s: row %d of %d differs from the same alone", isas[i], (int)row,
                                 (int)counts[r]);
                    free(some.data), free(a.data);
                }
                free(all.data);
            }
            free(x.data), free(weight.data);
        }
}

// More rows of x than the threads' scratch holds at a time.
static void test_parts(void **state) {
    struct world *w = *state;
    const struct product p = {
        .m = 150, .n = 40, .k = 8192, .storage = formats[1], .type = DTYPE_BF16};
    check_product(w, &p);
}

// What docs/numerics.md says about the cost of rounding x.
static void test_accuracy(void **state) {
    struct world *w = *state;
    for (int f = 0; f < FORMATS; f++)
        for (int64_t m = 1; m <= 16; m += 15) {
            const struct product p = {
                .m = m, .n = 256, .k = 2048, .storage = formats[f], .type = DTYPE_F32};
            const struct matrix weight = make_matrix(p.storage, p.n, p.k, 5);
            struct values x = make_values(m, p.k, 0, DTYPE_F32, 10), y, a, z, b;
            run(w->reference, &p, p.type, &weight, &x, NULL, &y, &a);
            for (int i = 0; i < ISAS; i++) {
                double error = 0, power = 0;
                if (!w->cpu[i][1])
                    continue;
                run(w->cpu[i][1], &p, p.type, &weight, &x, NULL, &z, &b);
                for (int64_t r = 0; r < m; r++)
                    for (int64_t c = 0; c < p.n; c++) {
                        error += pow(get(&y, r, c) - get(&z, r, c), 2);
                        power += pow(get(&y, r, c), 2);
                    }
                assert_true(sqrt(error / power) < 0.007);
                assert_true(sqrt(error / power) > 0.001); // it is rounded
                free(z.data), free(b.data);
            }
            free(x.data), free(y.data), free(a.data), free(weight.data);
        }
}

// One element that is not finite: its row of y is not finite, and no other is touched.
static void test_not_finite(void **state) {
    struct world *w = *state;
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int f = 0; f < FORMATS; f += FORMATS - 1)
        for (int64_t m = 2; m <= 12; m += 10)
            for (size_t v = 0; v < 3; v++) {
                const struct product p = {
                    .m = m, .n = 40, .k = 640, .storage = formats[f], .type = DTYPE_F32};
                const struct matrix weight = make_matrix(p.storage, p.n, p.k, 5);
                struct values x = make_values(m, p.k, 0, DTYPE_F32, 10), y, a;
                ((float *)x.data)[p.k + 600] = bad[v];
                for (int i = 0; i < ISAS; i++) {
                    if (!w->cpu[i][1])
                        continue;
                    run(w->cpu[i][1], &p, p.type, &weight, &x, NULL, &y, &a);
                    for (int64_t r = 0; r < m; r++)
                        for (int64_t c = 0; c < p.n; c++)
                            assert_int_equal(isfinite(get(&y, r, c)) != 0, r != 1);
                    free(y.data), free(a.data);
                }
                free(x.data), free(weight.data);
            }
}

// Rows of zeros have a scale of 0, and tiny ones a scale whose inverse is infinite.
static void test_small_rows(void **state) {
    struct world *w = *state;
    const struct product p = {.m = 9, .n = 33, .k = 96, .storage = formats[1], .type = DTYPE_F32};
    const struct matrix weight = make_matrix(p.storage, p.n, p.k, 5);
    struct values x = make_values(p.m, p.k, 0, DTYPE_F32, 10), y, a;
    for (int64_t i = 0; i < p.m * p.k; i++)
        ((float *)x.data)[i] *= i < p.k ? 0 : 1e-41f;
    for (int i = 0; i < ISAS; i++) {
        if (!w->cpu[i][1])
            continue;
        run(w->cpu[i][1], &p, p.type, &weight, &x, NULL, &y, &a);
        for (int64_t r = 0; r < p.m; r++)
            for (int64_t c = 0; c < p.n; c++)
                assert_true(fabs(get(&y, r, c)) < 1e-36);
        free(y.data), free(a.data);
    }
    free(x.data), free(weight.data);
}

// ---------------------------------------------------------------- tables, refusals, bytes

static void test_embed(void **state) {
    struct world *w = *state;
    struct err e = {0};
    const int32_t ids[3] = {4, 0, 6}, positions[3] = {1, 0, 1};
    static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    for (int f = 0; f < FORMATS; f++)
        for (int type = 0; type < 3; type++)
            for (int placed = 0; placed < 2; placed++) {
                const int64_t n = 5 * 128;
                const struct matrix table = make_matrix(formats[f], 7, n, 9);
                struct values places = make_values(2, n, 0, types[type], 3), want, got;
                struct op op = op_make(OP_EMBED);
                op.m = 3, op.n = n, op.k = 7, op.positions = 2;
                op.n_in = 4, op.n_out = 1;
                for (int b = 0; b <= ISAS; b++) {
                    struct backend *backend = b == 0 ? w->reference : w->cpu[b - 1][1];
                    struct values *to = b == 0 ? &want : &got;
                    if (!backend)
                        continue;
                    *to = make_values(3, n, PAD, types[type], 5);
                    struct op_call c = {.op = &op,
                                        .in = {{.data = (void *)(uintptr_t)ids,
                                                .ld = 3,
                                                .dtype = DTYPE_I32,
                                                .rows = 1,
                                                .cols = 3},
                                               operand_of(&table, types[type])},
                                        .out = {values_operand(to)}};
                    if (placed) {
                        c.in[2] = c.in[0];
                        c.in[2].data = (void *)(uintptr_t)positions;
                        c.in[3] = values_operand(&places);
                    }
                    assert_int_equal(backend->run[OP_EMBED](backend, &c, &e), 0);
                    for (int64_t i = 0; b > 0 && i < 3; i++)
                        for (int64_t j = 0; j < n; j++)
                            assert_true(get(&want, i, j) == get(&got, i, j));
                    if (b > 0)
                        free(got.data);
                }
                free(want.data), free(places.data), free(table.data);
            }
}

static void test_refusals(void **state) {
    struct world *w = *state;
    struct err e = {0};
    float x[64] = {0}, y[64] = {0};
    const struct matrix weight = make_matrix(formats[1], 2, 32, 1);
    struct backend *backends[2] = {w->reference, w->cpu[0][0]};
    for (int i = 0; i < 2; i++) {
        struct op op = op_make(OP_MATMUL_DX);
        op.m = 1, op.n = 2, op.k = 32;
        op.n_in = 3, op.n_out = 1;
        struct op_call c = {
            .op = &op,
            .in = {{.data = x, .ld = 2, .rows = 1, .cols = 2}, operand_of(&weight, DTYPE_F32)},
            .out = {{.data = y, .ld = 32, .rows = 1, .cols = 32}}};
        assert_int_equal(backends[i]->run[OP_MATMUL_DX](backends[i], &c, &e), ERR_UNSUPPORTED);
        assert_non_null(strstr(e.text, "matmul_dx: input 1 is kept in int4 g32"));
        op.kind = OP_MATMUL;
        op.flags = OP_IN_OUT;
        c.in[0].ld = c.in[0].cols = 32, c.out[0].ld = c.out[0].cols = 2;
        assert_int_equal(backends[i]->run[OP_MATMUL](backends[i], &c, &e), ERR_INTERNAL);
        op.flags = 0;
        assert_int_equal(backends[i]->run[OP_MATMUL](backends[i], &c, &e), 0);
        c.in[1].storage.group = 48;
        assert_int_equal(backends[i]->run[OP_MATMUL](backends[i], &c, &e), ERR_INTERNAL);
    }
    free(weight.data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fp32),       cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_fp16),       cmocka_unit_test(test_neighbours),
        cmocka_unit_test(test_parts),      cmocka_unit_test(test_accuracy),
        cmocka_unit_test(test_not_finite), cmocka_unit_test(test_small_rows),
        cmocka_unit_test(test_embed),      cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
