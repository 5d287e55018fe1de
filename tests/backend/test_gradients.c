// test_gradients.c - every backward op against central differences of its forward op, in float64 on
// the reference backend.
//
// With the scalar L = sum(weights * forward output), a backward op given dy = weights must return
// dL/dx. For each case of the table with a backward op, the matching forward case is opened, the
// backward's own inputs are copied into it, and elements of the differentiated inputs are moved by
// +-h.
#include "backend/cases.c"

#include "backend/cpu/cpu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

struct world {
    struct mem *mem;
    struct backend *reference;
};

static int setup(void **state) {
    static struct world w;
    struct err e = {0};
    if (mem_open(&w.mem, &e) != 0 || cpu_reference_open(&w.reference, w.mem, &e) != 0)
        return -1;
    *state = &w;
    return 0;
}

static int teardown(void **state) {
    struct world *w = *state;
    w->reference->close(w->reference);
    mem_close(w->mem);
    return 0;
}

// How a backward op relates to its forward op: which inputs they share, and which forward input
// each output of the backward is the gradient of.
struct rule {
    enum op_kind backward, forward;
    int dy;              // backward input that holds the gradient of forward output 0
    int from[OP_MAX_IN]; // per forward input: backward input with the same values, -1 for none
    int wrt[OP_MAX_OUT]; // per backward output: the forward input it is the gradient of
};

static const struct rule rules[] = {
    {OP_MATMUL_DX, OP_MATMUL, 0, {-1, 1, -1}, {0}},
    {OP_MATMUL_DW, OP_MATMUL, 1, {0, -1, -1}, {1, 2}},
    {OP_NORM_BWD, OP_NORM, 0, {1, 2, -1}, {0, 1, 2}},
    {OP_NORM_DX, OP_NORM, 0, {1, 2, -1}, {0}},
    {OP_NORM_DW, OP_NORM, 0, {1, -1, -1}, {1, 2}},
    {OP_ATTENTION_BWD, OP_ATTENTION, 0, {1, 2, 3, 6}, {0, 1, 2}},
    {OP_ACT_BWD, OP_ACT, 0, {1}, {0}},
    {OP_SWIGLU_BWD, OP_SWIGLU, 0, {1, 2}, {0, 1}},
    {OP_DROPOUT, OP_DROPOUT, 0, {-1, 1, 2}, {0}},
};

static double weighted_sum(const struct case_operand *y, const struct case_operand *weights) {
    double sum = 0;
    for (int64_t i = 0; i < y->rows; i++)
        for (int64_t j = 0; j < y->columns; j++)
            sum += case_get(y, i, j) * case_get(weights, i, j);
    return sum;
}

static double forward_at(struct world *w, struct case_run *f, struct case_operand *x, int64_t row,
                         int64_t column, double value, const struct case_operand *weights) {
    struct err e = {0};
    double before = case_get(x, row, column);
    case_set(x, row, column, value);
    assert_int_equal(w->reference->run[f->op.kind](w->reference, &f->call, &e), 0);
    case_set(x, row, column, before);
    return weighted_sum(&f->out[0], weights);
}

// Picks elements spread over all of x: the first, the last, and some at equal distances between.
static void check_elements(struct world *w, struct case_run *f, struct case_operand *x,
                           const struct case_operand *dx, const struct case_operand *weights,
                           const struct case_operand *dx_before, double sign, const char *name) {
    int64_t count = x->rows * x->columns, step = count / 23 + 1;
    double scale = 0;
    for (int64_t i = 0; i < count; i++)
        scale = fmax(scale, fabs(case_get(dx, i / x->columns, i % x->columns)));
    for (int64_t i = 0; i < count; i = i + step < count || i == count - 1 ? i + step : count - 1) {
        int64_t row = i / x->columns, column = i % x->columns;
        double at = case_get(x, row, column), h = 1e-5;
        double slope = (forward_at(w, f, x, row, column, at + h, weights) -
                        forward_at(w, f, x, row, column, at - h, weights)) /
                       (2 * h);
        double got = case_get(dx, row, column) - (dx_before ? case_get(dx_before, row, column) : 0);
        if (!(fabs(sign * got - slope) <= 1e-6 * fmax(1e-2, scale)))
            fail_msg("%s: gradient %" PRId64 ",%" PRId64 " is %.12g, differences give %.12g", name,
                     row, column, got, slope);
    }
}

// Whether an output of a case is added to.
static bool adds(const struct backend_case *c, int out) {
    return c->kind == OP_NORM_BWD && out == 0 ? c->options & CASE_IN_PLACE
                                              : c->flags & OP_ACCUMULATE;
}

static void check_case(struct world *w, size_t index, const struct rule *rule) {
    const struct backend_case *c = case_at(index);
    struct backend_case fc = *c;
    struct case_run b, f, before;
    struct err e = {0};
    char name[256];
    case_name(c, name, sizeof name);
    fc.kind = rule->forward;
    fc.flags &= ~(unsigned)OP_ACCUMULATE;
    fc.options &= ~(unsigned)CASE_IN_PLACE;
    fc.options &= ~(unsigned)CASE_BARE; // a bias is differentiated too
    assert_int_equal(case_open(&b, c, DTYPE_F64, index, w->reference, &e), 0);
    assert_int_equal(case_open(&before, c, DTYPE_F64, index, w->reference, &e), 0);
    assert_int_equal(case_open(&f, &fc, DTYPE_F64, index, w->reference, &e), 0);
    for (int i = 0; i < f.n_in; i++)
        if (rule->from[i] >= 0 && !f.in[i].absent && !b.in[rule->from[i]].absent)
            copy_values(&f.in[i], &b.in[rule->from[i]]);
    if (c->kind == OP_MATMUL_DX || c->kind == OP_MATMUL_DW)
        f.op.scale = b.op.scale;
    int rc = w->reference->run[c->kind](w->reference, &b.call, &e);
    if (rc != 0)
        fail_msg("%s: %s", name, e.text);
    for (int i = 0; i < b.n_out; i++)
        if (!b.out[i].absent)
            check_elements(w, &f, &f.in[rule->wrt[i]], &b.out[i], &before.in[rule->dy],
                           adds(c, i) ? &before.out[i] : NULL, 1, name);
    case_close(&b);
    case_close(&before);
    case_close(&f);
}

static bool small_enough(const struct backend_case *c) {
    return c->m * c->n * (c->k + 1) < 300000 &&
           c->batch * c->seq * c->seq * c->heads * c->head_dim < 600000;
}

static void test_backward_ops(void **state) {
    struct world *w = *state;
    int checked[OP_COUNT] = {0};
    for (size_t i = 0; i < case_count(); i++)
        for (size_t r = 0; r < sizeof rules / sizeof *rules; r++)
            if (case_at(i)->kind == rules[r].backward && small_enough(case_at(i))) {
                check_case(w, i, &rules[r]);
                checked[rules[r].backward]++;
            }
    for (size_t r = 0; r < sizeof rules / sizeof *rules; r++)
        assert_true(checked[rules[r].backward] >= 4);
}

// The gradient of a bias, which is added to every row, is the sum of each column.
static void test_bias_db(void **state) {
    struct world *w = *state;
    struct backend_case c = {.kind = OP_BIAS_DB, .m = 13, .n = 9},
                        fc = {.kind = OP_MATMUL, .m = 13, .n = 9, .k = 3};
    struct case_run b, f;
    struct err e = {0};
    assert_int_equal(case_open(&b, &c, DTYPE_F64, 1, w->reference, &e), 0);
    assert_int_equal(case_open(&f, &fc, DTYPE_F64, 2, w->reference, &e), 0);
    assert_int_equal(w->reference->run[OP_BIAS_DB](w->reference, &b.call, &e), 0);
    check_elements(w, &f, &f.in[2], &b.out[0], &b.in[0], NULL, 1, "bias_db");
    case_close(&b);
    case_close(&f);
}

static void test_embed_dw(void **state) {
    struct world *w = *state;
    struct backend_case c = {.kind = OP_EMBED_DW, .m = 17, .n = 5, .k = 7}, fc = c;
    struct case_run b, f;
    struct err e = {0};
    fc.kind = OP_EMBED;
    for (int table = 0; table < 2; table++) { // of tokens, of positions
        c.k = table == 0 ? 7 : 6;
        assert_int_equal(case_open(&f, &fc, DTYPE_F64, 2, w->reference, &e), 0);
        assert_int_equal(case_open(&b, &c, DTYPE_F64, 1, w->reference, &e), 0);
        copy_values(&b.in[0], &f.in[2 * table]);
        assert_int_equal(w->reference->run[OP_EMBED_DW](w->reference, &b.call, &e), 0);
        check_elements(w, &f, &f.in[2 * table + 1], &b.out[0], &b.in[1], NULL, 1, "embed_dw");
        case_close(&b);
        case_close(&f);
    }
}

// The gradient of a rotation is the inverse rotation.
static void test_rope_inverse(void **state) {
    struct world *w = *state;
    struct backend_case c = {.kind = OP_ROPE,
                             .flags = OP_INVERSE,
                             .m = 9,
                             .heads = 2,
                             .head_dim = 6},
                        fc = c;
    struct case_run b, f;
    struct err e = {0};
    fc.flags = 0;
    assert_int_equal(case_open(&b, &c, DTYPE_F64, 1, w->reference, &e), 0);
    assert_int_equal(case_open(&f, &fc, DTYPE_F64, 2, w->reference, &e), 0);
    copy_values(&f.in[1], &b.in[1]);
    assert_int_equal(w->reference->run[OP_ROPE](w->reference, &b.call, &e), 0);
    check_elements(w, &f, &f.in[0], &b.out[0], &b.in[0], NULL, 1, "rope");
    case_close(&b);
    case_close(&f);
}

// LOSS and LOSS_KL write their own gradient: factor x the slope of the sum of row losses.
static void check_loss_gradient(struct world *w, enum op_kind kind) {
    struct backend_case c = {.kind = kind,
                             .flags = OP_WITH_GRAD,
                             .options = CASE_UNTRAINED | CASE_PAD,
                             .m = 11,
                             .n = 13};
    struct case_run b, f;
    struct err e = {0};
    assert_int_equal(case_open(&b, &c, DTYPE_F64, 1, w->reference, &e), 0);
    assert_int_equal(w->reference->run[kind](w->reference, &b.call, &e), 0);
    c.flags = 0;
    assert_int_equal(case_open(&f, &c, DTYPE_F64, 1, w->reference, &e), 0);
    for (int64_t i = 0; i < c.m; i++)
        for (int64_t j = 0; j < c.n; j++) {
            double at = case_get(&f.in[0], i, j), h = 1e-5, sum[2] = {0, 0};
            for (int s = 0; s < 2; s++) {
                case_set(&f.in[0], i, j, at + (s ? -h : h));
                assert_int_equal(w->reference->run[kind](w->reference, &f.call, &e), 0);
                for (int64_t r = 0; r < c.m; r++)
                    sum[s] += case_get(&f.out[1], 0, r);
            }
            case_set(&f.in[0], i, j, at);
            double slope = (sum[0] - sum[1]) / (2 * h) * hyper[HYPER_LOSS_FACTOR];
            if (!(fabs(slope - case_get(&b.out[0], i, j)) <= 1e-8))
                fail_msg("%s: gradient %d,%d is %g, differences give %g", op_info(kind)->name,
                         (int)i, (int)j, case_get(&b.out[0], i, j), slope);
        }
    case_close(&b);
    case_close(&f);
}

static void test_loss_gradient(void **state) {
    check_loss_gradient(*state, OP_LOSS);
    check_loss_gradient(*state, OP_LOSS_KL);
}

// The divergence of a distribution from itself is 0, and so is its gradient; from another one it is
// above 0, whatever is added to a row of logits.
static void test_divergence(void **state) {
    struct world *w = *state;
    struct backend_case c = {.kind = OP_LOSS_KL, .flags = OP_WITH_GRAD, .m = 5, .n = 17};
    struct case_run r;
    struct err e = {0};
    for (int same = 0; same < 2; same++) {
        assert_int_equal(case_open(&r, &c, DTYPE_F64, 1, w->reference, &e), 0);
        for (int64_t i = 0; same && i < c.m; i++)
            for (int64_t j = 0; j < c.n; j++)
                case_set(&r.in[1], i, j, case_get(&r.in[0], i, j) + 3);
        assert_int_equal(w->reference->run[OP_LOSS_KL](w->reference, &r.call, &e), 0);
        for (int64_t i = 0; i < c.m; i++) {
            const double kl = case_get(&r.out[1], 0, i);
            assert_true(same ? fabs(kl) < 1e-12 : kl > 1e-3);
            for (int64_t j = 0; same && j < c.n; j++)
                assert_true(fabs(case_get(&r.out[0], i, j)) < 1e-12);
        }
        case_close(&r);
    }
}

static void test_log_softmax_bwd(void **state) {
    struct world *w = *state;
    struct backend_case c = {.kind = OP_LOG_SOFTMAX_BWD, .m = 7, .n = 13}, fc = c;
    struct case_run b, f;
    struct err e = {0};
    fc.kind = OP_LOG_SOFTMAX;
    assert_int_equal(case_open(&b, &c, DTYPE_F64, 1, w->reference, &e), 0);
    assert_int_equal(case_open(&f, &fc, DTYPE_F64, 2, w->reference, &e), 0);
    assert_int_equal(w->reference->run[OP_LOG_SOFTMAX](w->reference, &f.call, &e), 0);
    copy_values(&b.in[1], &f.out[0]);
    assert_int_equal(w->reference->run[OP_LOG_SOFTMAX_BWD](w->reference, &b.call, &e), 0);
    check_elements(w, &f, &f.in[0], &b.out[0], &b.in[0], NULL, 1, "log_softmax_bwd");
    case_close(&b);
    case_close(&f);
}

// The loss in steps gives the same row losses and gradient as the op LOSS, also for masked rows.
static void test_loss_in_steps(void **state) {
    struct world *w = *state;
    static const enum op_kind kinds[] = {OP_LOSS, OP_LOG_SOFTMAX, OP_NLL, OP_NLL_BWD,
                                         OP_LOG_SOFTMAX_BWD};
    struct case_run r[5];
    struct err e = {0};
    char why[160];
    for (int i = 0; i < 5; i++) {
        struct backend_case c = {.kind = kinds[i], .options = CASE_UNTRAINED, .m = 11, .n = 13};
        c.flags = i == 0 ? OP_WITH_GRAD : 0;
        assert_int_equal(case_open(&r[i], &c, DTYPE_F64, 3, w->reference, &e), 0);
    }
    copy_values(&r[1].in[0], &r[0].in[0]); // logits
    copy_values(&r[2].in[1], &r[0].in[1]); // targets
    copy_values(&r[3].in[0], &r[0].in[1]);
    for (int i = 0; i < 5; i++) {
        if (i == 2)
            copy_values(&r[2].in[0], &r[1].out[0]);
        if (i == 4)
            copy_values(&r[4].in[0], &r[3].out[0]), copy_values(&r[4].in[1], &r[1].out[0]);
        assert_int_equal(w->reference->run[kinds[i]](w->reference, &r[i].call, &e), 0);
    }
    if (!case_agree(&r[2].out[0], &r[0].out[1], why, sizeof why) ||
        !case_agree(&r[4].out[0], &r[0].out[0], why, sizeof why))
        fail_msg("the loss in steps is another one: %s", why);
    for (int i = 0; i < 5; i++)
        case_close(&r[i]);
}

// AdamW in passes gives the same as the op ADAMW.
static void test_adamw_in_passes(void **state) {
    struct world *w = *state;
    static const enum op_kind kinds[] = {OP_ADAMW,  OP_GRAD_SCALE, OP_ADAM_DECAY,
                                         OP_ADAM_M, OP_ADAM_V,     OP_ADAM_STEP};
    struct case_run r[6];
    struct err e = {0};
    char why[160];
    for (int i = 0; i < 6; i++) {
        struct backend_case c = {.kind = kinds[i], .flags = OP_DECAY, .n = 31};
        assert_int_equal(case_open(&r[i], &c, DTYPE_F64, 3, w->reference, &e), 0);
    }
    copy_values(&r[1].in[0], &r[0].in[0]); // g
    copy_values(&r[2].in[0], &r[0].in[3]); // w
    copy_values(&r[3].in[3], &r[0].in[4]); // m
    copy_values(&r[4].in[3], &r[0].in[5]); // v
    for (int i = 0; i < 6; i++) {
        if (i == 3 || i == 4)
            copy_values(&r[i].in[0], &r[1].out[0]);
        if (i == 5) {
            copy_values(&r[5].in[0], &r[3].out[0]);
            copy_values(&r[5].in[3], &r[4].out[0]);
            copy_values(&r[5].in[4], &r[2].out[0]);
        }
        assert_int_equal(w->reference->run[kinds[i]](w->reference, &r[i].call, &e), 0);
    }
    if (!case_agree(&r[5].out[0], &r[0].out[0], why, sizeof why) ||
        !case_agree(&r[3].out[0], &r[0].out[1], why, sizeof why) ||
        !case_agree(&r[4].out[0], &r[0].out[2], why, sizeof why))
        fail_msg("AdamW in passes is another one: %s", why);
    for (int i = 0; i < 6; i++)
        case_close(&r[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_backward_ops),    cmocka_unit_test(test_bias_db),
        cmocka_unit_test(test_embed_dw),        cmocka_unit_test(test_rope_inverse),
        cmocka_unit_test(test_loss_gradient),   cmocka_unit_test(test_divergence),
        cmocka_unit_test(test_log_softmax_bwd), cmocka_unit_test(test_loss_in_steps),
        cmocka_unit_test(test_adamw_in_passes),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
