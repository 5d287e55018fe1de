// test_state.c - Adam's moments in fewer bytes: how many they take, that a run repeats and resumes
// to the bit, with float32 weights and with masters, and what is refused.
#include "steps.h"

#include "train/snapshot.h"

static const enum optim_state states[] = {OPTIM_STATE_FP32, OPTIM_STATE_BF16, OPTIM_STATE_INT8};
enum { STATES = sizeof states / sizeof *states };

// Wide enough that most matrices have 4096 elements, while some biases and norms do not.
static void make_wide(const struct scratch *x, char folder[320]) {
    snprintf(folder, 320, "%s/wide", x->dir);
    struct stat st;
    if (stat(folder, &st) != 0)
        make_nano(folder, 136, POISON_NONE);
}

static void open_state(struct at_work *s, const char *model, enum optim_state state,
                       enum precision precision) {
    struct err e = {0};
    struct knobs k;
    steps_knobs(&k, model, 2, 1, 12);
    k.optim_state = state, k.precision = precision;
    assert_worked(steps_open(s, &k, precision != PRECISION_FP32, &e), &e);
}

// ---------------------------------------------------------------- bytes

static uint64_t elements_of(const struct at_work *s, int64_t least) {
    struct model_param p;
    uint64_t sum = 0;
    for (int64_t i = 0; model_param_at(&s->plan.shape, i, &p); i++) {
        int64_t n = p.dims[0] * (p.rank > 1 ? p.dims[1] : 1);
        sum += n >= least ? (uint64_t)n : 0;
    }
    return sum;
}

static uint64_t blocks_of(const struct at_work *s) {
    struct model_param p;
    uint64_t sum = 0;
    for (int64_t i = 0; model_param_at(&s->plan.shape, i, &p); i++) {
        int64_t n = p.dims[0] * (p.rank > 1 ? p.dims[1] : 1);
        sum += n >= 4096 ? (uint64_t)(n + 255) / 256 : 0;
    }
    return sum;
}

static void test_bytes(void **state) {
    char wide[320];
    struct at_work s[STATES];
    uint64_t bytes[STATES];
    make_wide(*state, wide);
    for (int i = 0; i < STATES; i++) {
        open_state(&s[i], wide, states[i], PRECISION_FP32);
        bytes[i] = steps_class_bytes(&s[i], CLASS_OPTIMIZER);
        assert_int_equal(steps_class_bytes(&s[i], CLASS_WEIGHT),
                         steps_class_bytes(&s[0], CLASS_WEIGHT));
    }
    uint64_t all = elements_of(&s[0], 0), large = elements_of(&s[0], 4096);
    assert_true(large > 0 && large < all);
    assert_int_equal(bytes[0], 8 * all);
    assert_int_equal(bytes[1], 4 * all);
    assert_int_equal(bytes[2], 2 * large + 8 * blocks_of(&s[2]) + 8 * (all - large));
    // Layout gives each tensor what it needs plus alignment.
    const uint64_t *by_class = s[2].plan.layout.by_class;
    uint64_t tensors = (uint64_t)plan_program(&s[2].plan, PLAN_TRAIN)->n_tensors;
    assert_true(by_class[CLASS_OPTIMIZER] >= bytes[2] &&
                by_class[CLASS_OPTIMIZER] < bytes[2] + tensors * TENSOR_ALIGN);
    for (int i = 0; i < STATES; i++)
        at_work_close(&s[i]);
}

// For a model of ordinary size: 8, 4 and 2.03 bytes per parameter.
static void test_bytes_per_parameter(void **state) {
    (void)state;
    static const double expected[STATES] = {8, 4, 2.03125};
    for (int i = 0; i < STATES; i++) {
        struct err e = {0};
        struct knobs k;
        struct at_work s;
        steps_knobs(&k, "gpt2-124m", 1, 1, 16);
        k.optim_state = states[i];
        struct plan_options o = {.knobs = &k, .programs = {PLAN_TRAIN}, .real = DTYPE_F32};
        assert_worked(at_work_plan(&s, &o, &e), &e);
        double per = (double)steps_class_bytes(&s, CLASS_OPTIMIZER) / (double)elements_of(&s, 0);
        print_message("%s: %.4f bytes per parameter\n", knob_choice(KNOB_optim_state, i), per);
        assert_true(fabs(per - expected[i]) < 0.01);
        at_work_close(&s);
    }
}

// ---------------------------------------------------------------- steps

// The first step starts with moments of 0 and updates before it rounds, so its bits are the same.
// After it, rounding has a small effect.
static void test_close_to_fp32(void **state) {
    char wide[320];
    make_wide(*state, wide);
    for (int p = 0; p < 2; p++) {
        double losses[STATES][6];
        for (int i = 0; i < STATES; i++) {
            struct at_work s;
            open_state(&s, wide, states[i], (enum precision)p);
            for (int n = 0; n < 6; n++)
                losses[i][n] = steps_take(&s, n);
            at_work_close(&s);
        }
        for (int i = 1; i < STATES; i++) {
            assert_true(losses[i][0] == losses[0][0] && losses[i][1] == losses[0][1]);
            assert_true(losses[i][5] != losses[0][5]);
            double worst = 0;
            for (int n = 0; n < 6; n++)
                worst = fmax(worst, fabs(losses[i][n] / losses[0][n] - 1));
            print_message("%s weights, %s moments: losses of 6 steps within %.1e of fp32 moments\n",
                          knob_choice(KNOB_precision, p), knob_choice(KNOB_optim_state, i), worst);
            assert_true(worst < 1e-3);
        }
    }
}

// The fast backend equals the reference except for the order of sums: random draws do not depend on
// the backend.
static void test_backends_agree(void **state) {
    char wide[320];
    make_wide(*state, wide);
    for (int i = 1; i < STATES; i++) {
        struct at_work s[2];
        struct knobs k;
        struct err e = {0};
        steps_knobs(&k, wide, 2, 1, 12);
        k.optim_state = states[i];
        for (int r = 0; r < 2; r++)
            assert_worked(steps_open(&s[r], &k, r == 1, &e), &e);
        for (int n = 0; n < 4; n++) {
            double a = steps_take(&s[0], n), b = steps_take(&s[1], n);
            assert_true(fabs(a - b) < 2e-5 * b);
        }
        at_work_close(&s[0]);
        at_work_close(&s[1]);
    }
}

static void test_snapshot(void **state) {
    struct scratch *x = *state;
    char wide[320], dir[400];
    make_wide(x, wide);
    for (int p = 0; p < 2; p++)
        for (int i = 1; i < STATES; i++) {
            struct err e = {0};
            struct at_work a, b, other;
            struct manifest_file files[MANIFEST_FILES];
            snprintf(dir, sizeof dir, "%s/snapshot-%d-%d", x->dir, p, i);
            assert_worked(file_make_dirs(dir, &e), &e);
            open_state(&a, wide, states[i], (enum precision)p);
            for (int n = 0; n < 2; n++)
                steps_take(&a, n);
            assert_worked(snapshot_write(a.s, dir, NULL, files, &e), &e);
            open_state(&b, wide, states[i], (enum precision)p);
            assert_worked(snapshot_read(b.s, dir, &e), &e);
            const struct program *t = plan_program(&a.plan, PLAN_TRAIN);
            int narrow = 0;
            for (int n = 0; n < t->n_tensors; n++) {
                const struct tensor *m = &t->tensors[n];
                if (m->cls != CLASS_OPTIMIZER)
                    continue;
                narrow += dtype_bytes(m->dtype) < 4;
                assert_memory_equal(steps_tensor(&a, m->name, NULL),
                                    steps_tensor(&b, m->name, NULL), m->bytes);
            }
            assert_true(narrow > 4);
            for (int n = 2; n < 4; n++) {
                double on = steps_take(&a, n), resumed = steps_take(&b, n);
                assert_memory_equal(&on, &resumed, sizeof on);
            }
            steps_assert_same_weights(&a, &b);
            open_state(&other, wide, OPTIM_STATE_FP32, (enum precision)p);
            assert_failed(snapshot_read(other.s, dir, &e), ERR_MISMATCH, &e, "optimizer");
            at_work_close(&a);
            at_work_close(&b);
            at_work_close(&other);
        }
}

// ---------------------------------------------------------------- runs

// As a user would do it: stop and resume with other thread counts. Another optim.state is refused
// by name.
static void test_resume(void **state) {
    char wide[320];
    make_wide(*state, wide);
    for (int i = 1; i < STATES; i++) {
        struct run whole, parts;
        char name[32], set[40];
        snprintf(set, sizeof set, "optim.state=%s", knob_choice(KNOB_optim_state, i));
        for (int half = 0; half < 2; half++) {
            struct run *r = half ? &parts : &whole;
            snprintf(name, sizeof name, "%s-%d", half ? "parts" : "whole", i);
            run_init(r, *state, name);
            snprintf(r->knobs.model, sizeof r->knobs.model, "%s", wide);
            run_set(r, set);
            if (half)
                r->stop_at = 3, run_set(r, "threads=2");
            run_go(r);
            assert_int_equal(r->rc, half ? ERR_STOPPED : 0);
        }
        assert_int_equal(parts.last, 3);
        run_again(&parts);
        assert_ran(&parts);
        assert_int_equal(parts.first, 3);
        assert_same_tensors(whole.dir, parts.dir, 6);
        run_set(&parts, "optim.state=fp32");
        run_set(&parts, "steps=8");
        run_again(&parts);
        assert_failed(parts.rc, ERR_MISMATCH, &parts.e, "moments|optim.state=fp32|run.dir");
        assert_non_null(strstr(parts.e.text, set + strlen("optim.state=")));
    }
}

// Random draws do not depend on the time: the same command gives the same bits.
static void test_repeats(void **state) {
    char wide[320];
    make_wide(*state, wide);
    struct run a, b; // not an array, because GCC 12 warns that run_init's strings overlap
    for (int i = 0; i < 2; i++) {
        struct run *r = i ? &b : &a;
        run_init(r, *state, i ? "again-b" : "again-a");
        snprintf(r->knobs.model, sizeof r->knobs.model, "%s", wide);
        run_set(r, "optim.state=int8");
        run_go(r);
        assert_ran(r);
    }
    assert_same_tensors(a.dir, b.dir, 6);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes),         cmocka_unit_test(test_bytes_per_parameter),
        cmocka_unit_test(test_close_to_fp32), cmocka_unit_test(test_backends_agree),
        cmocka_unit_test(test_snapshot),      cmocka_unit_test(test_resume),
        cmocka_unit_test(test_repeats),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
