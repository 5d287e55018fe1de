// test_pad.c - a padded vocabulary trains the same bits, writes the same files, and its padding
// stays zero.
#include "steps.h"

#include "knob/pair.h"
#include "train/snapshot.h"

enum { STEPS = 4, WIDE_VOCAB = 1111, GENERATED = 5 };

static void open_model(struct at_work *s, const char *model, int64_t pad, const char *settings,
                       bool reference) {
    struct err e = {0};
    struct knobs k;
    steps_knobs(&k, model, 2, 2, 12);
    assert_worked(knobs_set_list(&k, settings, "", false, SET_BY_COMMAND_LINE, &e), &e);
    k.logits_pad = pad;
    k.cpu_blas = CPU_BLAS_BUILTIN; // a library may sum in another order for other widths
    struct plan_options o = {.knobs = &k,
                             .programs = {PLAN_TRAIN, PLAN_EVAL, PLAN_EXTEND},
                             .extend = {.context = 2 * GENERATED},
                             .real = DTYPE_F32,
                             .keep_gradients = true};
    const struct engine_options eo = {.reference = reference};
    assert_worked(at_work_plan(s, &o, &e), &e);
    assert_worked(at_work_start(s, &eo, &e), &e);
}

static bool same_bits(const struct at_work *a, const struct at_work *b, const char *name) {
    const struct tensor *t, *u;
    const void *x = steps_tensor(a, name, &t), *y = steps_tensor(b, name, &u);
    assert_int_equal(tensor_elements(t), tensor_elements(u));
    return memcmp(x, y, (size_t)tensor_elements(t) * dtype_bytes(t->dtype)) == 0;
}

// Every gradient, weight, master and moment.
static void assert_same_state(const struct at_work *a, const struct at_work *b) {
    const struct program *p = plan_program(&a->plan, PLAN_TRAIN);
    int compared = 0;
    for (int t = 0; t < p->n_tensors; t++) {
        const struct tensor *x = &p->tensors[t];
        if (x->life != LIFE_RUN || x->parts ||
            (x->cls != CLASS_WEIGHT && x->cls != CLASS_OPTIMIZER && x->cls != CLASS_GRADIENT))
            continue;
        if (plan_tensor(&b->plan, PLAN_TRAIN, x->name) < 0)
            fail_msg("with padding there is no '%s'", x->name);
        if (!same_bits(a, b, x->name))
            fail_msg("'%s' differs", x->name);
        compared++;
    }
    assert_true(compared >= 4 * (int)model_param_count(&a->plan.shape));
}

// The padding of the head's weight, or of its gradient.
static void assert_zero_padding(const struct at_work *s, const char *prefix) {
    struct model_param head;
    const struct tensor *t;
    char name[200];
    const enum model_role role = s->plan.shape.tied ? ROLE_WTE : ROLE_HEAD_W;
    assert_true(model_param_get(&s->plan.shape, role, 0, &head));
    snprintf(name, sizeof name, "%s%s.padded", prefix, head.name);
    const unsigned char *at = steps_tensor(s, name, &t);
    const int64_t V = s->plan.shape.vocab, pad = s->plan.knobs.logits_pad;
    const size_t element = dtype_bytes(t->dtype);
    assert_int_equal(t->local[0], (V + pad - 1) / pad * pad);
    for (size_t i = (size_t)(V * t->ld) * element; i < (size_t)tensor_elements(t) * element; i++)
        assert_int_equal(at[i], 0);
}

// Ops on the logits: the product has all columns, the loss those of the vocabulary.
static void check_ops(const struct at_work *s) {
    const struct program *p = plan_program(&s->plan, PLAN_TRAIN);
    const int logits = program_find(p, NAME_LOGITS);
    const int64_t V = s->plan.shape.vocab, columns = p->tensors[logits].local[1];
    int products = 0, losses = 0;
    assert_true(columns > V && columns % s->plan.knobs.logits_pad == 0);
    for (int i = 0; i < p->n_segments; i++)
        for (int k = 0; k < p->segments[i].n_ops; k++) {
            const struct op *op = &p->segments[i].ops[k];
            const bool loss = op->kind == OP_LOSS || op->kind == OP_LOG_SOFTMAX;
            if (op->kind == OP_MATMUL && program_root(p, op->out[0]) == logits) {
                assert_int_equal(op->n, columns);
                products++;
            } else if (loss && program_root(p, op->in[0]) == logits) {
                assert_true(op->n == V && op->k == columns);
                losses++;
            }
        }
    assert_true(products > 0 && losses >= products);
}

static double evaluate(struct at_work *s) {
    struct err e = {0};
    struct steps_batch b = steps_make_batch(s, STEPS);
    double results[RESULT_COUNT];
    assert_worked(session_run(s->s, PLAN_EVAL, steps_feed, &b, NULL, &e), &e);
    assert_worked(session_get_results(s->s, results, NULL, &e), &e);
    free(b.tokens);
    return results[RESULT_LOSS_SUM];
}

static void generate(struct at_work *s, int32_t tokens[2 * GENERATED]) {
    struct err e = {0};
    tokens[0] = 3;
    for (int32_t i = 0; i < GENERATED; i++) {
        const struct session_row row = {tokens[i], 0, i, .asked = true};
        assert_worked(session_extend(s->s, &row, 1, &tokens[i + 1], NULL, &e), &e);
    }
}

static void compare(const char *model, const char *settings, int64_t pad, bool reference) {
    struct at_work plain, padded;
    int32_t tokens[2][2 * GENERATED] = {{0}, {0}};
    open_model(&plain, model, 1, settings, reference);
    open_model(&padded, model, pad, settings, reference);
    check_ops(&padded);
    assert_true(plain.plan.flops.model == padded.plan.flops.model);
    for (int i = 0; i < STEPS; i++) {
        const double a = steps_take(&plain, i), b = steps_take(&padded, i);
        if (a != b)
            fail_msg("%s %s, step %d: loss %.17g, with padding %.17g", model, settings, i, a, b);
    }
    assert_same_state(&plain, &padded);
    assert_zero_padding(&padded, "");
    assert_zero_padding(&padded, "d.");
    assert_true(evaluate(&plain) == evaluate(&padded));
    generate(&plain, tokens[0]);
    generate(&padded, tokens[1]);
    assert_memory_equal(tokens[0], tokens[1], sizeof tokens[0]);
    at_work_close(&plain);
    at_work_close(&padded);
}

static const char *reference_model(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/tests/reference/%s", HAGGLE_SOURCE_DIR, name);
    return path;
}

static void test_same_bits(void **state) {
    (void)state;
    static const char *const models[] = {"gpt2-odd", "llama-bias", "qwen2", "qwen3"};
    static const char *const settings[] = {
        "",
        "precision=bf16 optim.state=int8",
        "precision=fp16 fuse.loss=false recompute.mode=full",
        "logits.chunk=5",
        "logits.chunk=1 fuse.loss=false fuse.optim=false",
    };
    for (size_t m = 0; m < sizeof models / sizeof *models; m++)
        for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
            compare(reference_model(models[m]), settings[i], 64, false);
            compare(reference_model(models[m]), settings[i], 7, true);
        }
}

// A vocabulary that is wider than the blocks in which kernels sum.
static void test_wide_vocabulary(void **state) {
    const struct scratch *s = *state;
    struct err e = {0};
    struct model_shape shape;
    char path[400];
    for (int tied = 0; tied < 2; tied++) {
        assert_worked(model_shape_builtin(&shape, "tiny", &e), &e);
        shape.vocab = WIDE_VOCAB, shape.tied = tied;
        shape.width = 16, shape.layers = 1;
        shape.heads = shape.kv_heads = 2, shape.head_dim = 8, shape.ffn = 32;
        snprintf(path, sizeof path, "%s/wide-%d", s->dir, tied);
        write_model(path, &shape, POISON_NONE);
        compare(path, "", 64, false);
        compare(path, "precision=bf16", 512, false);
    }
}

// Initial weights are drawn by name and element.
static void test_initial_weights(void **state) {
    (void)state;
    struct at_work plain, padded;
    open_model(&plain, "tiny", 1, "", false);
    open_model(&padded, "tiny", 48, "", false);
    steps_assert_same_weights(&plain, &padded);
    assert_zero_padding(&padded, "");
    at_work_close(&plain);
    at_work_close(&padded);
}

// A multiple of what the vocabulary has already changes nothing.
static void test_no_padding(void **state) {
    (void)state;
    struct at_work s;
    open_model(&s, reference_model("gpt2-odd"), 277, "", false);
    const struct program *p = plan_program(&s.plan, PLAN_TRAIN);
    assert_int_equal(p->tensors[program_find(p, NAME_LOGITS)].local[1], 277);
    for (int t = 0; t < p->n_tensors; t++)
        assert_null(strstr(p->tensors[t].name, ".padded"));
    at_work_close(&s);
}

// ---------------------------------------------------------------- files

static void cross(const struct scratch *x, const char *model, const char *settings, int64_t from,
                  int64_t to) {
    static const int files[2] = {MANIFEST_MODEL, MANIFEST_OPTIMIZER};
    static int number;
    struct at_work a, b;
    struct err e = {0};
    struct manifest_file written[MANIFEST_FILES], again[MANIFEST_FILES];
    char dir[2][400];
    for (int i = 0; i < 2; i++) {
        snprintf(dir[i], sizeof dir[i], "%s/cross-%d-%d", x->dir, number, i);
        assert_worked(file_make_dirs(dir[i], &e), &e);
    }
    number++;
    open_model(&a, reference_model(model), from, settings, false);
    open_model(&b, reference_model(model), to, settings, false);
    steps_take(&a, 0);
    assert_worked(snapshot_write(a.s, dir[0], NULL, written, &e), &e);
    assert_worked(snapshot_read(b.s, dir[0], &e), &e);
    assert_worked(snapshot_write(b.s, dir[1], NULL, again, &e), &e);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(written[files[i]].bytes, again[files[i]].bytes);
        assert_string_equal(written[files[i]].hash, again[files[i]].hash);
    }
    assert_true(steps_take(&a, 1) == steps_take(&b, 1));
    steps_assert_same_weights(&a, &b);
    at_work_close(&a);
    at_work_close(&b);
}

static void test_checkpoints(void **state) {
    static const int64_t pads[][2] = {{1, 64}, {64, 1}, {16, 128}};
    for (size_t i = 0; i < sizeof pads / sizeof *pads; i++) {
        cross(*state, "gpt2-odd", "", pads[i][0], pads[i][1]);
        cross(*state, "llama-bias", "precision=bf16 optim.state=int8", pads[i][0], pads[i][1]);
    }
}

// As a user would do it: stop, change the knob, resume. The run is the one without padding.
static void test_resume(void **state) {
    struct run whole, part;
    run_init(&whole, *state, "pad-whole");
    run_init(&part, *state, "pad-part");
    run_set(&whole, "logits.pad=1");
    run_go(&whole);
    assert_ran(&whole);
    run_set(&part, "logits.pad=512");
    part.stop_at = 3;
    run_go(&part);
    assert_int_equal(part.rc, ERR_STOPPED);
    for (int i = 0; i < 3; i++)
        assert_true(part.losses[i] == whole.losses[i]);
    run_set(&part, "logits.pad=48");
    run_again(&part);
    assert_ran(&part);
    assert_int_equal(part.first, 3);
    for (int i = 3; i < 6; i++)
        assert_true(part.losses[i] == whole.losses[i]);
    assert_same_tensors(whole.dir, part.dir, 6);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),       cmocka_unit_test(test_wide_vocabulary),
        cmocka_unit_test(test_initial_weights), cmocka_unit_test(test_no_padding),
        cmocka_unit_test(test_checkpoints),     cmocka_unit_test(test_resume),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
