// test_cuda_attention.c - attention by cuDNN: the scratch that is planned for it, on any machine;
// on a device sizes at which its backward is computed in parts, compared with the plain kernels,
// and what cuda.cudnn says and refuses. Other sizes are cases of test_cuda.c.
#include "backend/cuda_needs.h"
#include "backend/plugin.h"
#include "base/rng.h"
#include "skips.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

struct sizes {
    int64_t batch, seq, heads, kv_heads, head_dim;
};

static struct op op_of(enum op_kind kind, const struct sizes *n) {
    struct op op = op_make(kind);
    op.batch = n->batch, op.seq = n->seq;
    op.heads = n->heads, op.kv_heads = n->kv_heads, op.head_dim = n->head_dim;
    op.scale = 1 / sqrt((double)n->head_dim);
    return op;
}

// ---------------------------------------------------------------- scratch

static void test_scratch(void **state) {
    // What cuDNN 9.19 says it needs on an H200 for the whole op, without and with repeatable sums.
    static const struct {
        struct sizes n;
        uint64_t any, repeatable;
    } seen[] = {
        {{16, 1024, 12, 12, 64}, 256, 402653440},
        {{1, 1024, 12, 12, 64}, 256, 25166080},
        {{16, 1024, 25, 25, 64}, 256, 838861056},
        {{32, 1024, 14, 2, 64}, 117440768, 1056964864},
        {{4, 4096, 32, 8, 64}, 134217984, 4429185280},
        {{2, 4096, 32, 8, 128}, 134217984, 2281701632},
        {{2, 1000, 4, 2, 64}, 2048256, 18825472},
        {{1, 257, 2, 1, 80}, 164864, 656384},
        {{3, 33, 4, 2, 8}, 13056, 209664},
    };
    (void)state;
    for (size_t i = 0; i < sizeof seen / sizeof *seen; i++) {
        const struct op op = op_of(OP_ATTENTION_BWD, &seen[i].n);
        const uint64_t rows = (uint64_t)(op.batch * op.heads * op.seq), sums = 4 * rows,
                       dq = sums * (uint64_t)op.head_dim;
        const struct cuda_choice any = {.attention = true},
                                 repeatable = {.attention = true, .deterministic = true};
        assert_true(cuda_scratch_bytes(&op, DTYPE_BF16, &any) >= seen[i].any + sums + dq);
        const struct cuda_part part = cuda_attention_part(&op, &repeatable);
        assert_int_equal(op.batch % part.batch, 0);
        assert_int_equal(op.kv_heads % part.kv_heads, 0);
        const uint64_t parts = (uint64_t)(op.batch / part.batch * op.kv_heads / part.kv_heads);
        const uint64_t given = cuda_scratch_bytes(&op, DTYPE_F16, &repeatable);
        assert_true(given >= (seen[i].repeatable + sums) / parts);
        assert_true(given <= (3ull << 30) / 2);
    }
}

static void test_scratch_of_parts(void **state) {
    const struct cuda_choice c = {.attention = true, .deterministic = true};
    // One sequence at a time; half of the heads of one; and what cannot be divided further.
    struct op op = op_of(OP_ATTENTION_BWD, &(struct sizes){4, 4096, 32, 8, 64});
    struct cuda_part part = cuda_attention_part(&op, &c);
    assert_true(part.batch == 1 && part.kv_heads == 8);
    op = op_of(OP_ATTENTION_BWD, &(struct sizes){2, 4096, 64, 16, 64});
    part = cuda_attention_part(&op, &c);
    assert_true(part.batch == 1 && part.kv_heads == 8);
    op = op_of(OP_ATTENTION_BWD, &(struct sizes){6, 4096, 9, 3, 64});
    part = cuda_attention_part(&op, &c);
    assert_true(part.batch == 3 && part.kv_heads == 3);
    op = op_of(OP_ATTENTION_BWD, &(struct sizes){1, 32768, 8, 1, 64});
    part = cuda_attention_part(&op, &c);
    assert_true(part.batch == 1 && part.kv_heads == 1);
    op = op_of(OP_ATTENTION, &(struct sizes){4, 4096, 32, 8, 64});
    part = cuda_attention_part(&op, &c);
    assert_true(part.batch == 4 && part.kv_heads == 8);
    (void)state;
}

static void test_no_scratch(void **state) {
    const struct sizes n = {2, 128, 4, 2, 64}, wide = {2, 128, 4, 2, 136}, odd = {2, 128, 4, 2, 20},
                       one = {2, 1, 4, 2, 64};
    const struct cuda_choice c = {.attention = true}, plain = {.attention = true, .plain = true},
                             none = {.attention = cuda_wants_cudnn("none")};
    const struct op op = op_of(OP_ATTENTION_BWD, &n),
                    ops[] = {op_of(OP_ATTENTION_BWD, &wide), op_of(OP_ATTENTION_BWD, &odd),
                             op_of(OP_ATTENTION, &one)};
    (void)state;
    assert_true(cuda_scratch_bytes(&op, DTYPE_BF16, &c) > 0);
    assert_int_equal(cuda_scratch_bytes(&op, DTYPE_F32, &c), 0);
    assert_int_equal(cuda_scratch_bytes(&op, DTYPE_BF16, &plain), 0);
    assert_int_equal(cuda_scratch_bytes(&op, DTYPE_BF16, &none), 0);
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        assert_int_equal(cuda_scratch_bytes(&ops[i], DTYPE_BF16, &c), 0);
    assert_true(cuda_wants_cudnn(NULL) && cuda_wants_cudnn("") && cuda_wants_cudnn("auto"));
}

// ---------------------------------------------------------------- on a device

static struct backend *open_cuda(const char *cudnn) {
    struct backend *b = NULL;
    struct err e = {0};
    const struct plugin_options o = {.deterministic = true, .cudnn = cudnn};
    if (plugin_open("cuda", &o, &b, &e) != 0)
        skip_because("no CUDA backend: %s", e.text);
    return b;
}

static void test_library(void **state) {
    struct err e = {0};
    struct backend *none = open_cuda("none"), *b = NULL;
    (void)state;
    assert_non_null(strstr(none->info.text, "attention: plain kernels"));
    none->close(none);
    const char *missing = "/no/such/folder/libcudnn.so.9";
    const struct plugin_options o = {.cudnn = missing};
    assert_int_equal(plugin_open("cuda", &o, &b, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, missing));
}

// A sequence of calls on operands in device memory: packed q, k and v, and their gradients.
struct field {
    struct backend *b;
    struct sizes n;
    char *arena;
    int64_t rows, width, q, kv;
    uint64_t qkv_bytes, o_bytes, lse_bytes, start_bytes, scratch_bytes, at[16], used;
};

enum { QKV, DOUT, STARTS, O_PLAIN, O_MADE, LSE_PLAIN, LSE_MADE, D_PLAIN, D_MADE, SCRATCH };

static void put_piece(struct field *f, int piece, uint64_t bytes) {
    f->at[piece] = f->used;
    f->used += (bytes + TENSOR_ALIGN - 1) / TENSOR_ALIGN * TENSOR_ALIGN;
}

static uint16_t *draw(int64_t n, uint64_t stream) {
    uint16_t *x = malloc((size_t)n * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < n; i++)
        x[i] = dtype_f32_to_bf16((float)rng_normal(1, stream, (uint64_t)i));
    return x;
}

static void fill(struct field *f) {
    struct err e = {0};
    uint16_t *qkv = draw(f->rows * f->width, 1), *dout = draw(f->rows * f->q, 2);
    int32_t *start = malloc(f->start_bytes);
    assert_non_null(start);
    for (int64_t i = 0; i < f->rows; i++) // documents of 1000 tokens on average
        start[i] = i % f->n.seq == 0                         ? 0
                   : rng_below(1, 3, (uint64_t)i, 1000) == 0 ? (int32_t)(i % f->n.seq)
                                                             : start[i - 1];
    struct backend *b = f->b;
    assert_int_equal(b->copy_in(b, f->arena + f->at[QKV], qkv, f->qkv_bytes, &e), 0);
    assert_int_equal(b->copy_in(b, f->arena + f->at[DOUT], dout, f->o_bytes, &e), 0);
    assert_int_equal(b->copy_in(b, f->arena + f->at[STARTS], start, f->start_bytes, &e), 0);
    free(qkv);
    free(dout);
    free(start);
}

static void open_field(struct field *f, struct backend *b, const struct sizes *n) {
    const struct cuda_choice c = {.deterministic = true, .attention = true};
    const struct op op = op_of(OP_ATTENTION_BWD, n);
    struct err e = {0};
    void *arena;
    *f = (struct field){.b = b, .n = *n, .rows = n->batch * n->seq};
    f->q = n->heads * n->head_dim, f->kv = n->kv_heads * n->head_dim, f->width = f->q + 2 * f->kv;
    f->qkv_bytes = (uint64_t)(f->rows * f->width) * 2, f->o_bytes = (uint64_t)(f->rows * f->q) * 2;
    f->lse_bytes = (uint64_t)(f->rows * n->heads) * 4, f->start_bytes = (uint64_t)f->rows * 4;
    f->scratch_bytes = cuda_scratch_bytes(&op, DTYPE_BF16, &c);
    const uint64_t bytes[] = {
        [QKV] = f->qkv_bytes,        [DOUT] = f->o_bytes,      [STARTS] = f->start_bytes,
        [O_PLAIN] = f->o_bytes,      [O_MADE] = f->o_bytes,    [LSE_PLAIN] = f->lse_bytes,
        [LSE_MADE] = f->lse_bytes,   [D_PLAIN] = f->qkv_bytes, [D_MADE] = f->qkv_bytes,
        [SCRATCH] = f->scratch_bytes};
    for (int i = 0; i <= SCRATCH; i++)
        put_piece(f, i, bytes[i]);
    assert_int_equal(b->arena_take(b, f->used, &arena, &e), 0);
    f->arena = arena;
    fill(f);
}

static struct operand columns_of(struct field *f, int piece, int64_t first, int64_t columns,
                                 int64_t ld) {
    return (struct operand){
        f->arena + f->at[piece] + 2 * first, ld, DTYPE_BF16, f->rows, columns, {0}};
}

static void set_heads(struct field *f, int piece, struct operand out[3]) {
    out[0] = columns_of(f, piece, 0, f->q, f->width);
    out[1] = columns_of(f, piece, f->q, f->kv, f->width);
    out[2] = columns_of(f, piece, f->q + f->kv, f->kv, f->width);
}

static void run_one(struct field *f, struct op_call *c, bool made) {
    struct err e = {0};
    struct backend *b = f->b;
    c->scratch = (struct operand){f->arena + f->at[SCRATCH],
                                  (int64_t)f->scratch_bytes,
                                  DTYPE_U8,
                                  1,
                                  (int64_t)f->scratch_bytes,
                                  {0}};
    if ((made && b->make(b, c, &e) != 0) || b->run[c->op->kind](b, c, &e) != 0 ||
        b->sync(b, &e) != 0)
        fail_msg("%s", e.text);
    b->unmake(b, c);
}

// Forward and backward. The backward reads the forward of the other kind of kernels, because a
// program may mix them.
static void run_both(struct field *f, bool made) {
    const int o = made ? O_MADE : O_PLAIN, lse = made ? LSE_MADE : LSE_PLAIN;
    const struct op forward = op_of(OP_ATTENTION, &f->n), backward = op_of(OP_ATTENTION_BWD, &f->n);
    struct operand start = {f->arena + f->at[STARTS], f->rows, DTYPE_I32, 1, f->rows, {0}},
                   stats = {f->arena + f->at[lse], 1, DTYPE_F32, 1, f->rows * f->n.heads, {0}};
    struct op_call c = {.op = &forward, .out = {columns_of(f, o, 0, f->q, f->q), stats}};
    set_heads(f, QKV, c.in);
    c.in[3] = start;
    run_one(f, &c, made);
    stats.data = f->arena + f->at[LSE_PLAIN];
    c = (struct op_call){.op = &backward};
    c.in[0] = columns_of(f, DOUT, 0, f->q, f->q);
    set_heads(f, QKV, &c.in[1]);
    c.in[4] = columns_of(f, O_PLAIN, 0, f->q, f->q);
    c.in[5] = stats, c.in[6] = start;
    set_heads(f, made ? D_MADE : D_PLAIN, c.out);
    run_one(f, &c, made);
}

// Mean square of the difference of bf16 columns, relative to that of the plain kernel's.
static double difference(struct field *f, int plain, int made, uint64_t bytes, int64_t width,
                         int64_t first, int64_t columns) {
    struct err e = {0};
    uint16_t *a = malloc(bytes), *b = malloc(bytes);
    double error = 0, power = 0;
    assert_true(a && b);
    assert_int_equal(f->b->copy_out(f->b, a, f->arena + f->at[plain], bytes, &e), 0);
    assert_int_equal(f->b->copy_out(f->b, b, f->arena + f->at[made], bytes, &e), 0);
    for (int64_t i = 0; i < f->rows; i++)
        for (int64_t j = first; j < first + columns; j++) {
            const double x = (double)dtype_bf16_to_f32(a[i * width + j]),
                         off = (double)dtype_bf16_to_f32(b[i * width + j]) - x;
            error += off * off, power += x * x;
        }
    free(a);
    free(b);
    assert_true(power > 0);
    return error / power;
}

static void check_large(struct backend *b, const struct sizes *n) {
    struct field f;
    open_field(&f, b, n);
    run_both(&f, false);
    run_both(&f, true);
    const double off[] = {
        difference(&f, O_PLAIN, O_MADE, f.o_bytes, f.q, 0, f.q),
        difference(&f, D_PLAIN, D_MADE, f.qkv_bytes, f.width, 0, f.q),
        difference(&f, D_PLAIN, D_MADE, f.qkv_bytes, f.width, f.q, f.kv),
        difference(&f, D_PLAIN, D_MADE, f.qkv_bytes, f.width, f.q + f.kv, f.kv),
    };
    print_message("%d heads of %d: differences o %.1e, dq %.1e, dk %.1e, dv %.1e\n", (int)n->heads,
                  (int)n->head_dim, off[0], off[1], off[2], off[3]);
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        assert_true(off[i] < 4e-5); // as in cases.c; NaN is not less
    b->arena_give(b, f.arena);
}

static void test_parts(void **state) {
    struct backend *b = open_cuda("auto");
    (void)state;
    print_message("%s\n", b->info.text);
    check_large(b, &(struct sizes){2, 4096, 32, 8, 16});  // a sequence at a time
    check_large(b, &(struct sizes){1, 4096, 48, 12, 16}); // half of the heads at a time
    if (*b->note)
        print_message("%s\n", b->note);
    // Before Hopper cuDNN has no backward for documents.
    if (strstr(b->info.text, "attention: cuDNN") && !strstr(b->info.text, "sm_8"))
        assert_string_equal(b->note, "");
    b->close(b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scratch),    cmocka_unit_test(test_scratch_of_parts),
        cmocka_unit_test(test_no_scratch), cmocka_unit_test(test_library),
        cmocka_unit_test(test_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
