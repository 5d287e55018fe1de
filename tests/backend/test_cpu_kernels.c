// test_cpu_kernels.c - the fast backend against the reference on every case: each instruction set
// the machine has, 1, 2 and 3 threads (equal to the bit), and each BLAS that is installed.
#include "backend/cases.c"

#include "backend/cpu/cpu.h"
#include "backend/cpu/kernels.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

struct world {
    struct mem *mem;
    struct backend *reference;
    struct case_run *truth; // of every case, by the reference in float64
};

static int setup(void **state) {
    static struct world w;
    struct err e = {0};
    *state = &w;
    w.truth = calloc(case_count(), sizeof *w.truth);
    if (!w.truth || mem_open(&w.mem, &e) != 0 || cpu_reference_open(&w.reference, w.mem, &e) != 0)
        return -1;
    for (size_t i = 0; i < case_count(); i++) {
        char name[256];
        case_name(case_at(i), name, sizeof name);
        int rc = case_open(&w.truth[i], case_at(i), DTYPE_F64, i, w.reference, &e);
        if (rc == 0)
            rc = w.reference->run[case_at(i)->kind](w.reference, &w.truth[i].call, &e);
        if (rc != 0) {
            print_error("reference: %s: %s\n", name, e.text);
            return -1;
        }
    }
    return 0;
}

static int teardown(void **state) {
    struct world *w = *state;
    for (size_t i = 0; i < case_count(); i++)
        case_close(&w->truth[i]);
    free(w->truth);
    w->reference->close(w->reference);
    mem_close(w->mem);
    return 0;
}

static void compare(struct world *w, size_t index, struct backend *fast, const char *label,
                    struct case_run *keep) {
    const struct backend_case *c = case_at(index);
    const struct case_run *truth = &w->truth[index];
    struct case_run run;
    struct err e = {0};
    char name[256], why[160];
    case_name(c, name, sizeof name);
    assert_int_equal(case_open_like(&run, c, DTYPE_F32, truth, &e), 0);
    int rc = fast->run[c->kind](fast, &run.call, &e);
    if (rc != 0)
        fail_msg("%s: %s: %s", label, name, e.text);
    if (!case_check_bounds(&run, why, sizeof why))
        fail_msg("%s: %s: %s", label, name, why);
    for (int i = 0; i < run.n_out; i++)
        if (!run.out[i].absent && !case_agree(&run.out[i], &truth->out[i], why, sizeof why))
            fail_msg("%s: %s: output %d: %s", label, name, i, why);
    if (keep)
        *keep = run;
    else
        case_close(&run);
}

// The reference's own float32 is held to the same standard as the fast kernels.
static void test_reference_f32(void **state) {
    struct world *w = *state;
    for (size_t i = 0; i < case_count(); i++)
        compare(w, i, w->reference, "reference fp32", NULL);
}

static void open_cpu(struct world *w, struct pool *pool, const char *isa, const char *blas,
                     struct backend **out, int *rc) {
    struct cpu_options options = {.blas = blas, .isa = isa};
    struct err e = {0};
    *rc = cpu_backend_open(out, w->mem, pool, &options, &e);
    if (*rc != 0 && *rc != ERR_UNSUPPORTED)
        fail_msg("%s, %s: %s", isa, blas, e.text);
}

static void check_isa(void **state, const char *isa) {
    struct world *w = *state;
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
            skip();
        }
        assert_string_equal(cpu_backend_isa(fast[t]), isa);
    }
    for (size_t i = 0; i < case_count(); i++) {
        struct case_run run[TEAMS];
        char label[64], name[256];
        for (int t = 0; t < TEAMS; t++) {
            snprintf(label, sizeof label, "%s, %d threads", isa, t + 1);
            compare(w, i, fast[t], label, &run[t]);
        }
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

static void test_generic(void **state) {
    check_isa(state, "generic");
}

static void test_avx2(void **state) {
    check_isa(state, "avx2");
}

static void test_avx512(void **state) {
    check_isa(state, "avx512");
}

static void test_blas(void **state) {
    struct world *w = *state;
    static const char *const names[] = {"openblas", "onednn", "blis"};
    struct pool *pool;
    struct err e = {0};
    assert_int_equal(pool_open(&pool, 2, 0, &e), 0);
    for (size_t b = 0; b < sizeof names / sizeof *names; b++) {
        struct backend *fast;
        int rc;
        open_cpu(w, pool, "auto", names[b], &fast, &rc);
        if (rc == ERR_UNSUPPORTED)
            continue;
        assert_non_null(strstr(cpu_backend_blas(fast), names[b]));
        for (size_t i = 0; i < case_count(); i++)
            if (case_at(i)->kind == OP_MATMUL || case_at(i)->kind == OP_MATMUL_DX ||
                case_at(i)->kind == OP_MATMUL_DW)
                compare(w, i, fast, names[b], NULL);
        fast->close(fast);
    }
    pool_close(pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference_f32), cmocka_unit_test(test_generic),
        cmocka_unit_test(test_avx2),          cmocka_unit_test(test_avx512),
        cmocka_unit_test(test_blas),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
