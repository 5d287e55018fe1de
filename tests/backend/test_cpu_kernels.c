// test_cpu_kernels.c - the fast backend against the reference on every case, in every element type:
// with each instruction set of this machine, with 1, 2 and 3 threads (equal to the bit), and with
// each BLAS library that is installed.
#include "backend/cases.c"

#include "backend/cpu/cpu.h"
#include "backend/cpu/kernels.h"
#include "backend/joined.h"
#include "skips.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

struct world {
    struct mem *mem;
    struct backend *reference;
    struct case_run *drawn; // every case in float64
    struct case_run *truth; // every case, run by the reference in float64
    enum dtype type;        // the inputs of `truth` are rounded to this type
};

static int setup(void **state) {
    static struct world w;
    struct err e = {0};
    *state = &w;
    w.drawn = calloc(case_count(), sizeof *w.drawn);
    w.truth = calloc(case_count(), sizeof *w.truth);
    w.type = DTYPE_COUNT;
    if (!w.drawn || !w.truth || mem_open(&w.mem, &e) != 0 ||
        cpu_reference_open(&w.reference, w.mem, &e) != 0)
        return -1;
    for (size_t i = 0; i < case_count(); i++)
        if (case_open(&w.drawn[i], case_at(i), DTYPE_F64, i, w.reference, &e) != 0) {
            print_error("%s\n", e.text);
            return -1;
        }
    return 0;
}

static int teardown(void **state) {
    struct world *w = *state;
    for (size_t i = 0; i < case_count(); i++) {
        case_close(&w->drawn[i]);
        case_close(&w->truth[i]);
    }
    free(w->drawn);
    free(w->truth);
    w->reference->close(w->reference);
    mem_close(w->mem);
    return 0;
}

// Makes the truth for inputs rounded to `type`. The tests of a type follow each other, so it is
// made once per type.
static void make_truth(struct world *w, enum dtype type) {
    struct err e = {0};
    for (size_t i = 0; i < case_count() && w->type != type; i++) {
        const struct backend_case *c = case_at(i);
        struct case_run held;
        char name[256];
        case_name(c, name, sizeof name);
        case_close(&w->truth[i]);
        if (case_open_like(&held, c, type, &w->drawn[i], &e) != 0 ||
            case_open_like(&w->truth[i], c, DTYPE_F64, &held, &e) != 0 ||
            w->reference->run[c->kind](w->reference, &w->truth[i].call, &e) != 0)
            fail_msg("reference: %s: %s", name, e.text);
        case_close(&held);
    }
    w->type = type;
}

// Runs a case on a backend; nothing outside its outputs may change.
static void run_case(struct world *w, size_t index, struct backend *fast, const char *label,
                     struct case_run *run) {
    const struct backend_case *c = case_at(index);
    struct err e = {0};
    char name[256], why[160];
    case_name(c, name, sizeof name);
    assert_int_equal(case_open_like(run, c, w->type, &w->truth[index], &e), 0);
    int rc = fast->run[c->kind](fast, &run->call, &e);
    if (rc != 0)
        fail_msg("%s: %s: %s", label, name, e.text);
    if (!case_check_bounds(run, why, sizeof why))
        fail_msg("%s: %s: %s", label, name, why);
}

// For ops that join two, the result of the second is compared with the truth that starts from what
// the first has stored.
static void judge(struct world *w, size_t index, const struct case_run *run, const char *label) {
    const struct case_run *truth = &w->truth[index];
    const bool joined = case_is_joined(run->op.kind);
    const int roundings = run->op.kind == OP_MATMUL_DX_ACT ? 2 : 1;
    struct case_run second = {0};
    struct err e = {0};
    char name[256], why[160];
    case_name(case_at(index), name, sizeof name);
    if (joined && case_run_second(&second, case_at(index), run, w->reference, &e) != 0)
        fail_msg("%s: %s", name, e.text);
    for (int i = 0; i < run->n_out; i++) {
        const struct case_operand *want = joined && i > 0 ? &second.out[i - 1] : &truth->out[i];
        if (!run->out[i].absent &&
            (!case_agree(&run->out[i], want, why, sizeof why) ||
             !case_is_rounded(&run->out[i], want, roundings, why, sizeof why)))
            fail_msg("%s: %s %s: output %d: %s", label, dtype_text(w->type), name, i, why);
    }
    case_close(&second);
}

// The two ops that an op joins must give the same bits, run one after the other on the same
// backend.
static void check_same_as_two(struct world *w, size_t index, struct backend *fast,
                              struct case_run *run) {
    const struct backend_case *c = case_at(index);
    struct case_run own;
    struct joined j;
    struct err e = {0};
    char name[256];
    case_name(c, name, sizeof name);
    assert_int_equal(case_open_like(&own, c, w->type, &w->truth[index], &e), 0);
    if (joined_split(&own.call, &j))
        for (int i = 0; i < 2; i++)
            if (fast->run[j.op[i].kind](fast, &j.call[i], &e) != 0)
                fail_msg("%s: %s", name, e.text);
    for (int o = 0; o < own.n_out; o++) {
        const int in = own.out[o].same_as;
        const struct case_operand *one = in < 0 ? &run->out[o] : &run->in[in],
                                  *two = in < 0 ? &own.out[o] : &own.in[in];
        if (!one->absent && memcmp(one->memory, two->memory, one->bytes) != 0)
            fail_msg("%s: output %d is not what the two ops give", name, o);
    }
    case_close(&own);
}

static void compare(struct world *w, size_t index, struct backend *fast, const char *label) {
    struct case_run run;
    run_case(w, index, fast, label, &run);
    judge(w, index, &run, label);
    case_close(&run);
}

// The reference in float32 and 16-bit types must be as exact as the fast kernels.
static void check_reference(void **state, enum dtype type) {
    struct world *w = *state;
    make_truth(w, type);
    for (size_t i = 0; i < case_count(); i++)
        compare(w, i, w->reference, "reference");
}

static void open_cpu(struct world *w, struct pool *pool, const char *isa, const char *blas,
                     struct backend **out, int *rc) {
    struct cpu_options options = {.blas = blas, .isa = isa};
    struct err e = {0};
    *rc = cpu_backend_open(out, w->mem, pool, &options, &e);
    if (*rc != 0 && *rc != ERR_UNSUPPORTED)
        fail_msg("%s, %s: %s", isa, blas, e.text);
}

static void check_isa(void **state, const char *isa, enum dtype type) {
    struct world *w = *state;
    make_truth(w, type);
    enum { TEAMS = 3 };
    struct pool *pool[TEAMS];
    struct backend *fast[TEAMS];
    for (int t = 0; t < TEAMS; t++) {
        int rc;
        struct err e = {0};
        assert_int_equal(pool_open(&pool[t], t + 1, 0, &e), 0);
        open_cpu(w, pool[t], isa, "builtin", &fast[t], &rc);
        if (rc == ERR_UNSUPPORTED) {
            pool_close(pool[t]);
            skip_because("this CPU lacks %s", isa);
        }
        bool products = strcmp(isa, "avx512_bf16") == 0 || strcmp(isa, "amx") == 0;
        assert_string_equal(fast[t]->isa, products ? "avx512" : isa);
        assert_true(strncmp(fast[t]->products[DTYPE_BF16], isa, strlen(isa)) == 0);
        assert_int_equal(products, !strstr(fast[t]->products[DTYPE_BF16], "widened"));
        assert_non_null(strstr(fast[t]->products[DTYPE_F16], "widened"));
    }
    for (size_t i = 0; i < case_count(); i++) {
        struct case_run run[TEAMS];
        char label[64], name[256];
        for (int t = 0; t < TEAMS; t++) {
            snprintf(label, sizeof label, "%s, %d threads", isa, t + 1);
            run_case(w, i, fast[t], label, &run[t]);
        }
        if (joined_split(&run[0].call, &(struct joined){0}))
            check_same_as_two(w, i, fast[0], &run[0]);
        judge(w, i, &run[0], isa); // the others must be the same to the bit
        case_name(case_at(i), name, sizeof name);
        for (int t = 1; t < TEAMS; t++)
            for (int o = 0; o < run[0].n_out; o++) {
                const struct case_operand *a = &run[0].out[o], *b = &run[t].out[o];
                for (int64_t row = 0; row < a->rows && !a->absent; row++)
                    if (memcmp(element(a, a->memory, row, 0), element(b, b->memory, row, 0),
                               (size_t)a->columns * dtype_bytes(a->dtype)) != 0)
                        fail_msg("%s: %s: output %d differs between 1 and %d threads", isa, name, o,
                                 t + 1);
            }
        for (int t = 0; t < TEAMS; t++)
            case_close(&run[t]);
    }
    for (int t = 0; t < TEAMS; t++) {
        fast[t]->close(fast[t]);
        pool_close(pool[t]);
    }
}

static void test_blas(void **state) {
    struct world *w = *state;
    static const char *const names[] = {"openblas", "onednn", "blis"};
    struct pool *pool;
    struct err e = {0};
    make_truth(w, DTYPE_F32);
    assert_int_equal(pool_open(&pool, 2, 0, &e), 0);
    for (size_t b = 0; b < sizeof names / sizeof *names; b++) {
        struct backend *fast;
        int rc;
        open_cpu(w, pool, "auto", names[b], &fast, &rc);
        if (rc == ERR_UNSUPPORTED)
            continue;
        assert_non_null(strstr(fast->products[DTYPE_F32], names[b]));
        for (size_t i = 0; i < case_count(); i++)
            if (op_info(case_at(i)->kind)->category == CAT_MATMUL)
                compare(w, i, fast, names[b]);
        fast->close(fast);
    }
    pool_close(pool);
}

#define TESTS(name, type)                                                                          \
    static void test_reference_##name(void **state) {                                              \
        check_reference(state, type);                                                              \
    }                                                                                              \
    static void test_generic_##name(void **state) {                                                \
        check_isa(state, "generic", type);                                                         \
    }                                                                                              \
    static void test_avx2_##name(void **state) {                                                   \
        check_isa(state, "avx2", type);                                                            \
    }                                                                                              \
    static void test_avx512_##name(void **state) {                                                 \
        check_isa(state, "avx512", type);                                                          \
    }
#define ENTRIES(name)                                                                              \
    cmocka_unit_test(test_reference_##name), cmocka_unit_test(test_generic_##name),                \
        cmocka_unit_test(test_avx2_##name), cmocka_unit_test(test_avx512_##name)
TESTS(f32, DTYPE_F32)
TESTS(bf16, DTYPE_BF16)
TESTS(f16, DTYPE_F16)

static void test_pairs(void **state) {
    check_isa(state, "avx512_bf16", DTYPE_BF16);
}

static void test_tiles(void **state) {
    check_isa(state, "amx", DTYPE_BF16);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ENTRIES(f32),
        cmocka_unit_test(test_blas),
        ENTRIES(bf16),
        cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_tiles),
        ENTRIES(f16),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
