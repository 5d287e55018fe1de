// test_cpu_backend.c - what the table of cases does not cover: how backends open, what they refuse
// and with which message, values that are not finite, and the accuracy of the vector functions in
// their tails.
#include "backend/cpu/cpu.h"
#include "backend/cpu/kernels.h"

#include "model/shape.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct world {
    struct mem *mem;
    struct pool *pool;
    struct backend *backends[4]; // reference, then every instruction set there is
    int count;
};

static int setup(void **state) {
    static struct world w;
    static const char *const isas[] = {"generic", "avx2", "avx512"};
    struct err e = {0};
    if (mem_open(&w.mem, &e) != 0 || pool_open(&w.pool, 2, 0, &e) != 0 ||
        cpu_reference_open(&w.backends[0], w.mem, &e) != 0)
        return -1;
    w.count = 1;
    for (int i = 0; i < 3; i++)
        w.count +=
            cpu_backend_open(&w.backends[w.count], w.mem, w.pool,
                             &(struct cpu_options){.blas = "builtin", .isa = isas[i]}, &e) == 0;
    *state = &w;
    return 0;
}

static int teardown(void **state) {
    struct world *w = *state;
    for (int i = 0; i < w->count; i++)
        w->backends[i]->close(w->backends[i]);
    assert_int_equal(mem_bytes(w->mem), 0); // every backend gave its memory back
    pool_close(w->pool);
    mem_close(w->mem);
    return 0;
}

static struct operand f32(float *p, int64_t ld) {
    return (struct operand){.data = p, .ld = ld, .dtype = DTYPE_F32};
}

static struct operand i32(int32_t *p) {
    return (struct operand){.data = p, .ld = 1, .dtype = DTYPE_I32};
}

static int run(struct backend *b, const struct op *op, struct op_call *c, struct err *e) {
    c->op = op;
    return b->run[op->kind](b, c, e);
}

static void assert_error(int rc, int code, const struct err *e, const char *part) {
    assert_int_equal(rc, code);
    assert_int_equal(e->code, code);
    if (!strstr(e->text, part))
        fail_msg("'%s' does not say '%s'", e->text, part);
}

// ---------------------------------------------------------------- opening

// The info of a backend on the host. products[] has a text for each of its types and no other.
static void assert_host(const struct backend *b, unsigned types) {
    assert_false(b->info.device || b->info.streams || b->info.graphs);
    assert_int_equal(b->info.types, types);
    assert_true(b->info.memory_bytes == mem_machine_total_bytes());
    assert_true(strlen(b->info.text) > 0);
    for (int type = 0; type < DTYPE_COUNT; type++)
        assert_int_equal(b->products[type] != NULL, b->info.types >> type & 1);
}

static void test_open(void **state) {
    struct world *w = *state;
    struct backend *b;
    struct err e = {0};
    struct cpu_options options = {.blas = "auto", .isa = "auto"};
    assert_int_equal(cpu_backend_open(&b, w->mem, w->pool, &options, &e), 0);
    assert_true(strlen(b->products[DTYPE_F32]) > 0);
    assert_true(strlen(b->isa) > 0);
    assert_host(b, 1u << DTYPE_F32 | 1u << DTYPE_BF16 | 1u << DTYPE_F16);
    assert_host(w->backends[0],
                1u << DTYPE_F32 | 1u << DTYPE_F64 | 1u << DTYPE_BF16 | 1u << DTYPE_F16);
    assert_null(b->run[OP_LOAD]);
    assert_null(b->run[OP_ALL_REDUCE]);
    void *arena;
    assert_int_equal(b->arena_take(b, 1 << 20, &arena, &e), 0);
    memset(arena, 1, 1 << 20);
    b->arena_give(b, arena);
    b->close(b);
    assert_int_equal(cpu_backend_open(&b, w->mem, w->pool, NULL, &e), 0); // all defaults
    b->close(b);
    options.isa = "mmx";
    assert_error(cpu_backend_open(&b, w->mem, w->pool, &options, &e), ERR_USAGE, &e,
                 "amx, avx512_bf16, avx512, avx2, generic");
    options.isa = "auto";
    options.blas = "mkl";
    assert_error(cpu_backend_open(&b, w->mem, w->pool, &options, &e), ERR_USAGE, &e, "'mkl'");
}

// ---------------------------------------------------------------- refusals

static void test_refusals(void **state) {
    struct world *w = *state;
    struct err e = {0};
    float x[64] = {0}, y[64] = {0};
    double hyper[HYPER_COUNT] = {0};
    int32_t ids[2] = {1, 9};
    for (int i = 0; i < w->count; i++) {
        struct backend *b = w->backends[i];
        struct op embed = {.kind = OP_EMBED, .m = 2, .n = 4, .k = 5};
        struct op_call c = {.in = {i32(ids), f32(x, 4)}, .out = {f32(y, 4)}};
        assert_error(run(b, &embed, &c, &e), ERR_USAGE, &e, "token id 9 of row 1");
        struct op loss = {.kind = OP_LOSS, .flags = OP_WITH_GRAD, .m = 2, .n = 4};
        c = (struct op_call){.in = {f32(x, 4), i32(ids), {hyper, 1, DTYPE_F64}},
                             .out = {f32(x, 4), f32(y, 1)}};
        x[0] = 3;
        assert_error(run(b, &loss, &c, &e), ERR_USAGE, &e, "target id 9 of row 1");
        assert_true(x[0] == 3); // nothing was overwritten
        struct op act = {.kind = OP_ACT, .m = 2, .n = 4};
        const enum dtype other = DTYPE_I32; // a type that no backend computes in
        c = (struct op_call){.in = {{x, 4, other}}, .out = {{y, 4, other}}};
        assert_error(run(b, &act, &c, &e), ERR_UNSUPPORTED, &e, "act");
        assert_non_null(strstr(e.text, dtype_text(other)));
        c.out[0].dtype = DTYPE_F32;
        assert_error(run(b, &act, &c, &e), ERR_MISMATCH, &e, "output 0 is fp32 where");
        c = (struct op_call){.in = {f32(x, 4)}};
        assert_error(run(b, &act, &c, &e), ERR_INTERNAL, &e, "output 0 is missing");
        act.act = ACT_SWIGLU + 1;
        c = (struct op_call){.in = {f32(x, 4)}, .out = {f32(y, 4)}};
        assert_error(run(b, &act, &c, &e), ERR_INTERNAL, &e, "activation");
        act.act = ACT_RELU;
        act.flags = OP_ACCUMULATE;
        assert_error(run(b, &act, &c, &e), ERR_UNSUPPORTED, &e, "cannot add");
        struct op rope = {.kind = OP_ROPE, .m = 1, .heads = 1, .head_dim = 3};
        c = (struct op_call){.in = {f32(x, 3), f32(x, 3)}, .out = {f32(y, 3)}};
        assert_error(run(b, &rope, &c, &e), ERR_USAGE, &e, "head dimension 3 is odd");
        struct op attention = {
            .kind = OP_ATTENTION, .batch = 1, .seq = 1, .heads = 3, .kv_heads = 2, .head_dim = 2};
        c = (struct op_call){.in = {f32(x, 6), f32(x, 4), f32(x, 4), i32(ids)},
                             .out = {f32(y, 6), f32(y, 1)}};
        assert_error(run(b, &attention, &c, &e), ERR_USAGE, &e, "3 query heads cannot share 2");
        struct op decode = {.kind = OP_ATTENTION_CACHED,
                            .m = 2,
                            .batch = 2,
                            .seq = 4,
                            .heads = 1,
                            .kv_heads = 1,
                            .head_dim = 2};
        int32_t sequences[] = {0, 1}, far[] = {1, 2};
        c = (struct op_call){.in = {f32(x, 2), f32(x, 2), f32(x, 2), i32(sequences), i32(ids)},
                             .out = {f32(y, 2)}};
        assert_error(run(b, &decode, &c, &e), ERR_USAGE, &e,
                     "position 9 of row 1 is not in [0, 4)");
        c.in[3] = i32(far);
        assert_error(run(b, &decode, &c, &e), ERR_USAGE, &e,
                     "sequence 2 of row 1 is not in [0, 2)");
        decode.kind = OP_KV_APPEND;
        c = (struct op_call){
            .in = {f32(x, 2), f32(x, 2), i32(sequences), i32(ids), f32(y, 2), f32(y, 2)},
            .out = {f32(y, 2), f32(y, 2)}};
        assert_error(run(b, &decode, &c, &e), ERR_USAGE, &e, "position 9");
        if (i > 0) {
            attention.heads = attention.kv_heads = 1;
            attention.head_dim = 257;
            c = (struct op_call){.in = {f32(x, 6), f32(x, 4), f32(x, 4)},
                                 .out = {f32(y, 6), f32(y, 1)}};
            assert_error(run(b, &attention, &c, &e), ERR_UNSUPPORTED, &e, "head dimension 257");
        }
    }
}

// ---------------------------------------------------------------- not finite, ties

static void test_special_values(void **state) {
    struct world *w = *state;
    struct err e = {0};
    for (int i = 0; i < w->count; i++) {
        struct backend *b = w->backends[i];
        for (int kind = ACT_GELU_TANH; kind <= ACT_RELU; kind++) {
            float h[6] = {NAN, INFINITY, -INFINITY, 1e30f, -1e30f, 0}, y[6],
                  dy[6] = {1, 1, 1, 1, 1, 1};
            struct op op = {.kind = OP_ACT, .m = 1, .n = 6, .act = kind};
            struct op_call c = {.in = {f32(h, 6)}, .out = {f32(y, 6)}};
            assert_int_equal(run(b, &op, &c, &e), 0);
            assert_true(isnan(y[0]) && y[3] == 1e30f && y[4] == 0 && y[5] == 0);
            op.kind = OP_ACT_BWD;
            c = (struct op_call){.in = {f32(dy, 6), f32(h, 6)}, .out = {f32(y, 6)}};
            assert_int_equal(run(b, &op, &c, &e), 0);
            assert_true(y[3] == 1 && y[4] == 0);
            assert_true(kind == ACT_RELU || isnan(y[0]));
        }
        float x[600];
        int32_t id;
        struct op top = {.kind = OP_ARGMAX, .m = 1, .n = 600};
        struct op_call c = {.in = {f32(x, 600)}, .out = {i32(&id)}};
        for (int j = 0; j < 600; j++)
            x[j] = NAN;
        assert_int_equal(run(b, &top, &c, &e), 0);
        assert_int_equal(id, 0); // all NaN: the first
        x[300] = -INFINITY;
        assert_int_equal(run(b, &top, &c, &e), 0);
        assert_int_equal(id, 300);
        x[420] = x[580] = 2;
        x[599] = 1;
        assert_int_equal(run(b, &top, &c, &e), 0);
        assert_int_equal(id, 420); // the first of equals
        // An infinite logit must reach the loss and the gradient, so that the update is skipped.
        float logits[5] = {0, INFINITY, 1, 2, 3}, row_loss;
        double hyper[HYPER_COUNT] = {[HYPER_LOSS_FACTOR] = 1};
        int32_t target = 0;
        struct op loss = {.kind = OP_LOSS, .flags = OP_WITH_GRAD, .m = 1, .n = 5};
        c = (struct op_call){.in = {f32(logits, 5), i32(&target), {hyper, 1, DTYPE_F64}},
                             .out = {f32(logits, 5), f32(&row_loss, 1)}};
        assert_int_equal(run(b, &loss, &c, &e), 0);
        assert_true(isnan(row_loss) && isnan(logits[1]));
    }
}

// clip_grad_norm_: factor = min(1, clip / (norm + 1e-6)); 0 turns clipping off; a norm that is not
// finite skips.
static void test_clip(void **state) {
    struct world *w = *state;
    struct err e = {0};
    for (int i = 0; i < w->count; i++) {
        double sq[2] = {9, 16}, hyper[HYPER_COUNT] = {[HYPER_CLIP] = 1}, clip[CLIP_COUNT];
        struct op op = {.kind = OP_CLIP, .n = 2};
        struct op_call c = {.in = {{sq, 1, DTYPE_F64}, {hyper, 1, DTYPE_F64}},
                            .out = {{clip, 1, DTYPE_F64}}};
        assert_int_equal(run(w->backends[i], &op, &c, &e), 0);
        assert_true(clip[CLIP_NORM] == 5 && clip[CLIP_FACTOR] == 1 / (5 + 1e-6) &&
                    clip[CLIP_SKIP] == 0);
        hyper[HYPER_CLIP] = 0;
        assert_int_equal(run(w->backends[i], &op, &c, &e), 0);
        assert_true(clip[CLIP_FACTOR] == 1 && clip[CLIP_SKIP] == 0);
        sq[1] = NAN;
        assert_int_equal(run(w->backends[i], &op, &c, &e), 0);
        assert_true(clip[CLIP_FACTOR] == 0 && clip[CLIP_SKIP] == 1);
    }
}

// ---------------------------------------------------------------- accuracy

// Relative error of each function over its whole range, against libm in double; results so small
// that a sigmoid in them is no longer a normal number are compared absolutely.
static void test_accuracy(void **state) {
    struct world *w = *state;
    struct err e = {0};
    enum { N = 60001 };
    float *x = malloc(N * sizeof *x), *one = malloc(N * sizeof *one), *y = malloc(N * sizeof *y);
    assert_true(x && one && y);
    for (int i = 0; i < N; i++) {
        x[i] = (float)(i - N / 2) / (N / 2) * 40;
        one[i] = 1;
    }
    for (int i = 1; i < w->count; i++) {
        double worst[3] = {0, 0, 0};
        for (int which = 0; which < 3; which++) {
            struct op op = {.kind = which == 2 ? OP_SWIGLU : OP_ACT, .m = 1, .n = N};
            op.act = which == 0 ? ACT_GELU_TANH : ACT_GELU_ERF;
            struct op_call c = {.in = {f32(x, N), f32(one, N)}, .out = {f32(y, N)}};
            assert_int_equal(run(w->backends[i], &op, &c, &e), 0);
            for (int j = 0; j < N; j++) {
                double h = (double)x[j], want;
                if (which == 0) // as h sigmoid(2u): 1 + tanh(u) itself has no digits left near -1
                    want = h / (1 + exp(-2 * 0.79788456080286535588 * (h + 0.044715 * h * h * h)));
                else if (which == 1)
                    want = 0.5 * h * erfc(-h * 0.70710678118654752440);
                else
                    want = h / (1 + exp(-h));
                double error = fabs((double)y[j] - want) / fmax(fabs(want), 1e-31);
                worst[which] = fmax(worst[which], error);
            }
        }
        // SiLU is exp, one addition and one division: 2 ulp. The exponents of the GELUs carry the
        // rounding of u and x^2 into the tails, less so where multiplication and addition are
        // fused.
        bool fused = strcmp(w->backends[i]->isa, "generic") != 0;
        if (worst[2] > 2.5e-7 || worst[0] > 2e-5 || worst[1] > (fused ? 6e-7 : 1e-5))
            fail_msg("%s: relative error of gelu tanh %.2e, gelu erf %.2e, silu %.2e",
                     w->backends[i]->isa, worst[0], worst[1], worst[2]);
        print_message("%s: relative error of gelu tanh %.2e, gelu erf %.2e, silu %.2e\n",
                      w->backends[i]->isa, worst[0], worst[1], worst[2]);
    }
    free(x);
    free(one);
    free(y);
}

// ---------------------------------------------------------------- 16-bit elements

static const struct cpu_kernels *kernels_of(const struct backend *b, int type) {
    const char *isa = b->isa;
#if defined(__x86_64__)
    if (strcmp(isa, "avx512") == 0)
        return cpu_kernels_avx512[type];
    if (strcmp(isa, "avx2") == 0)
        return cpu_kernels_avx2[type];
#endif
    return strcmp(isa, "generic") == 0 ? cpu_kernels_generic[type] : NULL;
}

static bool same_float(float a, float b) {
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

// The bits of a 16-bit number that a float32 with `bits` rounds to; any NaN is 0x7fff.
static unsigned rounded(int type, uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return isnan(x) ? 0x7fff : type == KERNEL_BF16 ? dtype_f32_to_bf16(x) : dtype_f32_to_f16(x);
}

static unsigned got_bits(int type, uint16_t y) {
    return isnan(type == KERNEL_BF16 ? dtype_bf16_to_f32(y) : dtype_f16_to_f32(y)) ? 0x7fff : y;
}

// Every 16-bit number widened; around each of them the float32 numbers where rounding decides: the
// number itself, half way to the next, and the float32 neighbours of both.
static void test_conversions(void **state) {
    struct world *w = *state;
    enum { N = 1 << 16, NEAR = 6 };
    uint16_t *narrow = malloc(N * NEAR * sizeof *narrow);
    float *wide = malloc(N * NEAR * sizeof *wide);
    uint32_t *bits = malloc(N * NEAR * sizeof *bits);
    assert_true(narrow && wide && bits);
    for (int i = 1; i < w->count; i++)
        for (int type = KERNEL_BF16; type <= KERNEL_F16; type++) {
            const struct cpu_kernels *k = kernels_of(w->backends[i], type);
            assert_non_null(k);
            for (int j = 0; j < N; j++)
                narrow[j] = (uint16_t)j;
            k->widen(wide, narrow, N);
            uint32_t half = type == KERNEL_BF16 ? 0x8000 : 0x1000;
            for (int j = 0; j < N; j++) {
                float want = type == KERNEL_BF16 ? dtype_bf16_to_f32((uint16_t)j)
                                                 : dtype_f16_to_f32((uint16_t)j);
                if (!same_float(wide[j], want))
                    fail_msg("%s: 0x%04x of type %d is %g, not %g", k->name, (unsigned)j, type,
                             (double)wide[j], (double)want);
                uint32_t at;
                memcpy(&at, &want, sizeof at);
                for (uint32_t n = 0; n < NEAR; n++)
                    bits[j * NEAR + (int)n] = at + (n / 3) * half + n % 3 - 1;
            }
            memcpy(wide, bits, N * NEAR * sizeof *wide);
            k->narrow(narrow, wide, N * NEAR - 3); // a tail too
            for (int j = 0; j < N * NEAR - 3; j++)
                if (got_bits(type, narrow[j]) != rounded(type, bits[j]))
                    fail_msg("%s: type %d: float32 0x%08x becomes 0x%04x, not 0x%04x", k->name,
                             type, (unsigned)bits[j], (unsigned)narrow[j], rounded(type, bits[j]));
        }
    free(narrow);
    free(wide);
    free(bits);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open),           cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_special_values), cmocka_unit_test(test_clip),
        cmocka_unit_test(test_accuracy),       cmocka_unit_test(test_conversions),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
