// test_precision.c - 16-bit weights with float32 masters, on the reference backend: which tensors have
// which type, what a checkpoint holds, and that a run goes on from it to the bit.
#include "harness.h"

#include "train/snapshot.h"

enum { BATCH = 2, SEQ = 16, ROWS = BATCH * SEQ };

struct tokens {
    int32_t data[4][ROWS]; // tokens, targets, positions, doc_start
};

static int feed(void *arg, int micro, struct exec_batch *out, struct err *e) {
    const struct tokens *t = arg;
    (void)micro;
    (void)e;
    *out = (struct exec_batch){t->data[0], t->data[1], t->data[2], t->data[3]};
    return 0;
}

static void open_session(struct session *s, const char *model, enum precision precision,
                         bool reference) {
    struct err e = {0};
    struct knobs k;
    knobs_init(&k);
    k.threads = 1, k.seq = SEQ, k.batch_micro = BATCH, k.device = DEVICE_CPU;
    k.precision = precision;
    snprintf(k.model, sizeof k.model, "%s", model);
    struct session_options o = {.knobs = &k,
                                .has = {[SESSION_TRAIN] = true, [SESSION_EVAL] = true},
                                .real = DTYPE_F32,
                                .reference = reference};
    assert_worked(session_plan(s, &o, &e), &e);
    int rc = session_start(s, &e);
    if (reference)
        assert_worked(rc, &e);
    else
        assert_failed(rc, ERR_UNSUPPORTED, &e, "precision=bf16|cpu|fp32");
}

static double step(struct session *s, int number) {
    struct err e = {0};
    struct tokens t;
    double results[RESULT_COUNT], h[HYPER_COUNT] = {[HYPER_LR] = 1e-4,
                                                    [HYPER_BETA1] = 0.9,
                                                    [HYPER_BETA2] = 0.95,
                                                    [HYPER_EPS] = 1e-8,
                                                    [HYPER_CLIP] = 1,
                                                    [HYPER_BIAS1] = 1 - pow(0.9, number + 1),
                                                    [HYPER_BIAS2] = 1 - pow(0.95, number + 1),
                                                    [HYPER_LOSS_FACTOR] = 1.0 / ROWS};
    for (int i = 0; i < ROWS; i++) {
        t.data[0][i] = (int32_t)((i * 7 + number) % s->shape.vocab);
        t.data[1][i] = (int32_t)((i * 5 + 1) % s->shape.vocab);
        t.data[2][i] = i % SEQ;
        t.data[3][i] = 0;
    }
    assert_worked(session_set_hyper(s, h, &e), &e);
    assert_worked(session_run(s, SESSION_TRAIN, feed, &t, NULL, &e), &e);
    assert_worked(session_get_results(s, results, NULL, &e), &e);
    return results[RESULT_LOSS_SUM] / results[RESULT_TOKENS];
}

static const struct tensor *find(const struct session *s, const char *name, void **data) {
    int t = session_find(s, SESSION_TRAIN, name);
    assert_true(t >= 0);
    *data = exec_host_address(s->exec, s->index[SESSION_TRAIN], t);
    return &s->programs[SESSION_TRAIN]->tensors[t];
}

// Every weight is its master's rounding; returns how many there are.
static int check_rounded(const struct session *s) {
    struct model_param p;
    int n = 0;
    for (int64_t i = 0; model_param_at(&s->shape, i, &p); i++, n++) {
        char name[200];
        void *weight, *master;
        snprintf(name, sizeof name, "master.%s", p.name);
        const struct tensor *w = find(s, p.name, &weight), *m = find(s, name, &master);
        assert_int_equal(w->dtype, DTYPE_BF16);
        assert_int_equal(m->dtype, DTYPE_F32);
        for (int64_t k = 0; k < tensor_elements(w); k++)
            assert_int_equal(((uint16_t *)weight)[k], dtype_f32_to_bf16(((float *)master)[k]));
    }
    return n;
}

static void test_types(void **state) {
    struct scratch *x = *state;
    struct session wide, half;
    open_session(&wide, x->nano, PRECISION_FP32, true);
    open_session(&half, x->nano, PRECISION_BF16, true);
    const struct program *p = half.programs[SESSION_TRAIN], *q = wide.programs[SESSION_TRAIN];
    uint64_t bytes[2][CLASS_COUNT] = {{0}};
    for (int i = 0; i < p->n_tensors; i++)
        bytes[0][p->tensors[i].cls] += p->tensors[i].bytes;
    for (int i = 0; i < q->n_tensors; i++)
        bytes[1][q->tensors[i].cls] += q->tensors[i].bytes;
    // Weights halve, gradients stay, the optimizer's two moments get a third companion.
    assert_int_equal(2 * bytes[0][CLASS_WEIGHT], bytes[1][CLASS_WEIGHT]);
    assert_int_equal(bytes[0][CLASS_GRADIENT], bytes[1][CLASS_GRADIENT]);
    assert_int_equal(2 * bytes[0][CLASS_OPTIMIZER], 3 * bytes[1][CLASS_OPTIMIZER]);
    assert_true(bytes[0][CLASS_ACTIVATION] < bytes[1][CLASS_ACTIVATION]);
    assert_true(check_rounded(&half) > 5);
    session_close(&wide);
    session_close(&half);
}

// An update far below a bfloat16's last bit must not be lost: it adds up in the master.
static void test_small_steps_add_up(void **state) {
    struct scratch *x = *state;
    struct session s;
    void *weight, *master;
    open_session(&s, x->nano, PRECISION_BF16, true);
    const struct tensor *w = find(&s, "model.embed_tokens.weight", &weight);
    find(&s, "master.model.embed_tokens.weight", &master);
    int64_t n = tensor_elements(w), moved = 0, changed = 0;
    float *before = malloc((size_t)n * sizeof *before);
    uint16_t *rounded = malloc((size_t)n * sizeof *rounded);
    assert_true(before && rounded);
    memcpy(before, master, (size_t)n * sizeof *before);
    memcpy(rounded, weight, (size_t)n * sizeof *rounded);
    step(&s, 0);
    for (int64_t i = 0; i < n; i++) {
        moved += ((float *)master)[i] != before[i];
        changed += ((uint16_t *)weight)[i] != rounded[i];
    }
    assert_true(moved > 0 && changed < moved);
    assert_true(check_rounded(&s) > 5);
    free(before);
    free(rounded);
    session_close(&s);
}

static void test_checkpoint(void **state) {
    struct scratch *x = *state;
    struct err e = {0};
    struct session a, b, wide;
    struct manifest_file files[MANIFEST_FILES];
    char dir[400], path[500];
    snprintf(dir, sizeof dir, "%s/snapshot", x->dir);
    assert_worked(file_make_dirs(dir, &e), &e);
    open_session(&a, x->nano, PRECISION_BF16, true);
    for (int i = 0; i < 3; i++)
        step(&a, i);
    assert_worked(snapshot_write(&a, dir, files, &e), &e);
    // The model file is the masters under the weights' own names: any precision can go on from it.
    struct safetensors *st;
    assert_worked(file_join(path, sizeof path, dir, manifest_file_name(MANIFEST_MODEL), &e), &e);
    assert_worked(safetensors_open(&st, path, &e), &e);
    const struct safetensors_entry *entry = safetensors_find(st, "model.embed_tokens.weight");
    assert_non_null(entry);
    assert_int_equal(entry->dtype, DTYPE_F32);
    safetensors_close(st);
    open_session(&b, x->nano, PRECISION_BF16, true);
    assert_worked(snapshot_read(&b, dir, &e), &e);
    check_rounded(&b);
    for (int i = 3; i < 6; i++) {
        double on = step(&a, i), resumed = step(&b, i);
        assert_memory_equal(&on, &resumed, sizeof on);
    }
    open_session(&wide, x->nano, PRECISION_FP32, true);
    assert_worked(snapshot_read(&wide, dir, &e), &e);
    session_close(&a);
    session_close(&b);
    session_close(&wide);
}

static void test_refused_where_not_computed(void **state) {
    struct scratch *x = *state;
    struct session s;
    open_session(&s, x->nano, PRECISION_BF16, false);
    session_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_small_steps_add_up),
        cmocka_unit_test(test_checkpoint),
        cmocka_unit_test(test_refused_where_not_computed),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
