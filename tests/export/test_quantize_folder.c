// test_quantize_folder.c - a quantized folder runs: its logits are those of a folder with the same
// values written out, and near the source's; memory is what its format says; damage and misuse are
// refused.
#include "model/scratch.h"

#include "base/mem.h"
#include "base/rng.h"
#include "engine/engine.h"
#include "export/quantize_folder.h"
#include "model/load.h"
#include "program/check.h"

#include <math.h>

enum { ROWS = 2, COLUMNS = 24 };

static void say(void *arg, enum log_level level, const char *text) {
    (void)arg, (void)level, (void)text;
}

// Quantizes a folder into d/name.
static int quantize(const struct scratch *d, const char *source, const char *name,
                    struct storage storage, const char *keep, struct quantize_summary *out,
                    struct err *e) {
    struct quantize_folder q = {.source = source,
                                .out_dir = scratch_path(d, name),
                                .keep = keep,
                                .how = {.storage = storage},
                                .listener = {NULL, say}};
    assert_worked(pool_open(&q.pool, 2, 0, e), e);
    const int rc = quantize_folder(&q, out, e);
    pool_close(q.pool);
    return rc;
}

// ---------------------------------------------------------------- logits

struct prompt {
    int32_t inputs[ROWS * COLUMNS], targets[ROWS * COLUMNS], positions[ROWS * COLUMNS];
    int32_t doc_start[ROWS * COLUMNS];
};

static int feed(void *arg, int micro, struct exec_batch *out, struct err *e) {
    const struct prompt *p = arg;
    (void)micro, (void)e;
    *out = (struct exec_batch){p->inputs, p->targets, p->positions, p->doc_start};
    return 0;
}

struct answer {
    int64_t vocab;
    uint64_t weights; // bytes of the plan
    float *logits;
};

static struct answer ask(const char *folder, bool reference, enum precision precision) {
    struct knobs k;
    struct plan plan = {0};
    struct engine *engine = NULL;
    struct err e = {0};
    struct prompt p = {0};
    const struct plan_options o = {
        .knobs = &k, .programs = {PLAN_EVAL}, .real = DTYPE_F32, .keep_logits = true};
    const struct engine_options how = {.reference = reference};
    const double hyper[HYPER_COUNT] = {[HYPER_LOSS_FACTOR] = 1.0 / (ROWS * COLUMNS)};
    knobs_init(&k);
    assert_true(strlen(folder) < sizeof k.model);
    strcpy(k.model, folder);
    k.device = DEVICE_CPU, k.threads = 2, k.precision = precision;
    k.batch_micro = ROWS, k.batch_accum = 1, k.seq = COLUMNS;
    assert_worked(plan_make(&plan, &o, &e), &e);
    assert_worked(engine_start(&engine, &how, &plan, &e), &e);
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        p.inputs[i] = (int32_t)rng_below(1, 2, (uint64_t)i, (uint64_t)plan.shape.vocab);
        p.positions[i] = i % COLUMNS;
    }
    assert_worked(session_set_hyper(engine->session, hyper, &e), &e);
    assert_worked(session_run(engine->session, PLAN_EVAL, feed, &p, NULL, &e), &e);
    const int t = plan_tensor(&plan, PLAN_EVAL, NAME_LOGITS);
    const struct tensor *logits = &plan_program(&plan, PLAN_EVAL)->tensors[t];
    struct answer a = {.vocab = plan.shape.vocab, .weights = plan.layout.by_class[CLASS_WEIGHT]};
    const size_t n = (size_t)(ROWS * COLUMNS * a.vocab);
    void *raw = malloc(n * dtype_bytes(logits->dtype));
    a.logits = malloc(n * sizeof *a.logits);
    assert_true(logits->ld == a.vocab && raw && a.logits);
    assert_worked(exec_read(engine->session->exec, plan_find(&plan, PLAN_EVAL), t, raw,
                            n * dtype_bytes(logits->dtype), &e),
                  &e);
    dtype_convert(a.logits, DTYPE_F32, raw, logits->dtype, n);
    free(raw);
    engine_close(engine);
    plan_free(&plan);
    return a;
}

// The size of the difference in parts of the size of a.
static double distance(const struct answer *a, const struct answer *b) {
    double off = 0, size = 0;
    for (int64_t i = 0; i < ROWS * COLUMNS * a->vocab; i++) {
        off += pow((double)a->logits[i] - (double)b->logits[i], 2);
        size += pow((double)a->logits[i], 2);
    }
    return sqrt(off / size);
}

// ---------------------------------------------------------------- the same values, written out

static void write_out(const char *quantized, const char *folder, const char *source) {
    struct model_shape shape;
    struct model_param p;
    struct quantized q;
    struct weights *from;
    struct safetensors_writer *w;
    struct err e = {0};
    char path[PATH_MAX], *text;
    size_t bytes;
    bool is_dir;
    assert_worked(model_shape_open(&shape, quantized, &is_dir, &e), &e);
    assert_worked(quantized_read(&q, quantized, &shape, &e), &e);
    assert_true(quantized_any(&q));
    assert_worked(weights_open(&from, quantized, &e), &e);
    assert_worked(file_make_dirs(folder, &e), &e);
    snprintf(path, sizeof path, "%.4000s/config.json", source);
    assert_worked(file_read_all(path, 1 << 20, &text, &bytes, &e), &e);
    snprintf(path, sizeof path, "%.4000s/config.json", folder);
    assert_worked(file_write_atomic(path, text, bytes, &e), &e);
    free(text);
    snprintf(path, sizeof path, "%.4000s/model.safetensors", folder);
    assert_worked(safetensors_writer_open(&w, path, &e), &e);
    for (int64_t i = 0; model_param_at(&shape, i, &p); i++)
        assert_worked(safetensors_writer_declare(w, p.name, DTYPE_F32, p.rank, p.dims, &e), &e);
    for (int64_t i = 0; model_param_at(&shape, i, &p); i++) {
        const struct storage s = quantized_as(&q, &p);
        const int64_t n = p.dims[0] * (p.rank > 1 ? p.dims[1] : 1);
        float *x = malloc((size_t)n * sizeof *x);
        struct storage_parts parts;
        struct model_param turned = p;
        assert_non_null(x);
        quantized_turn(&shape, &turned);
        if (storage_layout(s, turned.dims[0], turned.dims[1], &parts)) {
            char *data = malloc(parts.bytes);
            float *row = malloc((size_t)turned.dims[1] * sizeof *row);
            const bool turns =
                turned.dims[1] != p.dims[1] ||
                (shape.in_out_weights && p.role != ROLE_WTE && p.role != ROLE_HEAD_W);
            assert_true(data && row);
            assert_worked(quantized_load(from, s, &turned, data, &e), &e);
            for (int64_t j = 0; j < turned.dims[0]; j++) {
                storage_read_row(s, &parts, data, j, 0, turned.dims[1], row);
                for (int64_t l = 0; l < turned.dims[1]; l++)
                    x[turns ? l * turned.dims[0] + j : j * turned.dims[1] + l] = row[l];
            }
            free(data), free(row);
        } else {
            const struct safetensors_entry *t = weights_find_param(from, &shape, &p, &e);
            assert_non_null(t);
            assert_worked(weights_read(from, t, 0, n, x, DTYPE_F32, &e), &e);
        }
        assert_worked(safetensors_writer_put(w, x, (size_t)n * sizeof *x, &e), &e);
        free(x);
    }
    assert_worked(safetensors_writer_close(w, NULL, NULL, &e), &e);
    weights_close(from);
    quantized_free(&q);
}

static uint64_t expected_bytes(const char *folder) {
    struct model_shape shape;
    struct model_param p;
    struct quantized q;
    struct err e = {0};
    uint64_t bytes = 0;
    bool is_dir;
    assert_worked(model_shape_open(&shape, folder, &is_dir, &e), &e);
    assert_worked(quantized_read(&q, folder, &shape, &e), &e);
    for (int64_t i = 0; model_param_at(&shape, i, &p); i++) {
        struct storage_parts parts;
        struct model_param turned = p;
        quantized_turn(&shape, &turned);
        bytes += storage_layout(quantized_as(&q, &p), turned.dims[0], turned.dims[1], &parts)
                     ? parts.bytes
                     : (uint64_t)(p.dims[0] * (p.rank > 1 ? p.dims[1] : 1)) * 4;
    }
    quantized_free(&q);
    return bytes;
}

static void check_model(const struct scratch *d, const char *source, struct storage storage,
                        double near) {
    struct quantize_summary summary;
    struct err e = {0};
    char out[PATH_MAX], wide[PATH_MAX];
    snprintf(out, sizeof out, "%s/q", d->dir);
    snprintf(wide, sizeof wide, "%s/wide", d->dir);
    assert_worked(quantize(d, source, "q", storage, NULL, &summary, &e), &e);
    write_out(out, wide, source);
    struct answer original = ask(source, false, PRECISION_FP32),
                  exact = ask(wide, true, PRECISION_FP32), slow = ask(out, true, PRECISION_FP32),
                  fast = ask(out, false, PRECISION_FP32), narrow = ask(out, false, PRECISION_BF16);
    // The reference multiplies the very values, so this is the whole path but for fast kernels.
    assert_true(distance(&exact, &slow) < 1e-5);
    assert_true(distance(&exact, &fast) < 0.02); // x rounded to 8 bits, in every product
    assert_true(distance(&exact, &narrow) < 0.04);
    const double far = distance(&original, &fast);
    if (!(far < near && far > 0))
        fail_msg("%s: logits are %g away", source, far);
    assert_int_equal(fast.weights, expected_bytes(out));
    assert_true(summary.bytes_after < summary.bytes_before);
    assert_true(summary.worst_error >= summary.error && summary.error > 0);
    free(original.logits), free(exact.logits), free(slow.logits), free(fast.logits);
    free(narrow.logits);
    quantize_free(&summary);
    assert_worked(file_remove_tree(out, &e), &e);
    assert_worked(file_remove_tree(wide, &e), &e);
}

static int check_reference(void *arg, const char *name) {
    char source[PATH_MAX];
    snprintf(source, sizeof source, "%s/tests/reference/%.255s", HAGGLE_SOURCE_DIR, name);
    if (file_is_dir(source))
        check_model(arg, source, (struct storage){.kind = STORAGE_INT8}, 0.05);
    return 0;
}

// Every family: tied heads, biases, GPT-2's matrices, per-head norms.
static void test_every_family(void **state) {
    struct err e = {0};
    assert_worked(file_list_dir(HAGGLE_SOURCE_DIR "/tests/reference", check_reference, *state, &e),
                  &e);
}

// A model of random weights with rows of whole groups, but for one matrix of each layer.
static void make_model(const struct scratch *d, char folder[PATH_MAX]) {
    static const char config[] =
        "{\"model_type\":\"llama\",\"vocab_size\":96,\"hidden_size\":128,"
        "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"num_hidden_layers\":2,"
        "\"intermediate_size\":144,\"tie_word_embeddings\":true,\"max_position_embeddings\":64}";
    struct model_shape shape;
    struct model_param p;
    struct safetensors_writer *w;
    struct err e = {0};
    char path[PATH_MAX];
    snprintf(folder, PATH_MAX, "%s/model", d->dir);
    assert_worked(file_make_dirs(folder, &e), &e);
    snprintf(path, sizeof path, "%.200s/config.json", folder);
    assert_worked(file_write_atomic(path, config, strlen(config), &e), &e);
    assert_worked(model_shape_read_config(&shape, path, &e), &e);
    snprintf(path, sizeof path, "%.200s/model.safetensors", folder);
    assert_worked(safetensors_writer_open(&w, path, &e), &e);
    for (int64_t i = 0; model_param_at(&shape, i, &p); i++)
        assert_worked(safetensors_writer_declare(w, p.name, DTYPE_F32, p.rank, p.dims, &e), &e);
    for (int64_t i = 0; model_param_at(&shape, i, &p); i++) {
        const int64_t n = p.dims[0] * (p.rank > 1 ? p.dims[1] : 1);
        float *x = malloc((size_t)n * sizeof *x);
        assert_non_null(x);
        model_param_init(&p, 1, 0, n, x);
        assert_worked(safetensors_writer_put(w, x, (size_t)n * sizeof *x, &e), &e);
        free(x);
    }
    assert_worked(safetensors_writer_close(w, NULL, NULL, &e), &e);
}

static void test_formats(void **state) {
    char folder[PATH_MAX];
    make_model(*state, folder);
    for (int group = 32; group <= 128; group *= 2)
        for (int minima = 0; minima < 2; minima++)
            check_model(
                *state, folder,
                (struct storage){.kind = STORAGE_INT4, .group = (uint16_t)group, .minima = minima},
                0.25);
}

static void test_choice(void **state) {
    char folder[PATH_MAX];
    struct quantize_summary s;
    struct err e = {0};
    const struct storage int4 = {.kind = STORAGE_INT4, .group = 32};
    make_model(*state, folder);
    assert_worked(quantize(*state, folder, "q", int4, "layers.1.self_attn,up_proj", &s, &e), &e);
    int wide = 0, int8 = 0;
    for (size_t i = 0; i < s.stored.n_others; i++) {
        const struct quantized_other *o = &s.stored.others[i];
        const bool is_wide = storage_plain(o->storage), down = strstr(o->name, "down_proj");
        wide += is_wide, int8 += !is_wide;
        assert_int_equal(down, !is_wide); // 144 is no multiple of 32
    }
    assert_int_equal(int8, 2);
    assert_int_equal(wide, 4 + 2);
    assert_int_equal(s.matrices, 1 + 2 * 7 - 8);
    quantize_free(&s);
    assert_int_equal(quantize(*state, folder, "r", int4, "up_proj,nothing", &s, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "'nothing' names no matrix"));
    quantize_free(&s);
    assert_int_equal(quantize(*state, folder, "q", int4, NULL, &s, &e), ERR_USAGE); // not empty
    quantize_free(&s);
    assert_int_equal(quantize(*state, scratch_path(*state, "q"), "r", int4, NULL, &s, &e),
                     ERR_USAGE);
    assert_non_null(strstr(e.text, "quantized already"));
    quantize_free(&s);
    assert_int_equal(quantize(*state, "tiny", "r", int4, NULL, &s, &e), ERR_USAGE);
    quantize_free(&s);
    assert_false(file_exists(scratch_path(*state, "r")));
    assert_false(file_exists(scratch_path(*state, "r.tmp-export")));
}

// ---------------------------------------------------------------- refusals

static int plan_it(const char *folder, const char *program, struct err *e) {
    struct knobs k;
    struct plan plan = {0};
    const struct plan_options o = {.knobs = &k, .programs = {program}, .real = DTYPE_F32};
    knobs_init(&k);
    strcpy(k.model, folder);
    k.device = DEVICE_CPU, k.seq = 16;
    const int rc = plan_make(&plan, &o, e);
    plan_free(&plan);
    return rc;
}

static void test_refusals(void **state) {
    char folder[PATH_MAX], out[PATH_MAX];
    struct quantize_summary s;
    struct err e = {0};
    struct weights *w;
    struct model_shape shape;
    struct model_param p;
    bool is_dir;
    make_model(*state, folder);
    assert_worked(
        quantize(*state, folder, "q", (struct storage){.kind = STORAGE_INT8}, NULL, &s, &e), &e);
    snprintf(out, sizeof out, "%s", s.out_dir);
    quantize_free(&s);
    assert_int_equal(plan_it(out, PLAN_TRAIN, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "is quantized (int8)"));
    assert_worked(plan_it(out, PLAN_EXTEND, &e), &e);
    // Readers of whole weights say what they found.
    assert_worked(model_shape_open(&shape, out, &is_dir, &e), &e);
    assert_worked(weights_open(&w, out, &e), &e);
    assert_true(model_param_get(&shape, ROLE_UP_W, 1, &p));
    assert_null(weights_find_param(w, &shape, &p, &e));
    assert_non_null(strstr(e.text, "up_proj.weight' is quantized"));
    weights_close(w);
}

// What no constructor builds: a view of a quantized weight, one that trains, one with IN_OUT.
static void test_programs(void **state) {
    (void)state;
    for (int broken = 0; broken < 4; broken++) {
        struct program *p = program_new("test");
        struct err e = {0};
        const int x = program_tensor_2d(p, "x", DTYPE_F32, CLASS_INPUT, LIFE_RUN, 2, 64),
                  w = program_tensor_2d(p, "w", DTYPE_F32, CLASS_WEIGHT, LIFE_RUN, 3, 64),
                  y = program_tensor_2d(p, "y", DTYPE_F32, CLASS_WORKSPACE, LIFE_SEGMENT, 2, 3);
        const int s = program_segment(p, "forward", SEGMENT_FORWARD);
        program_set_storage(p, w, (struct storage){.kind = STORAGE_INT4, .group = 64});
        assert_int_equal(tensor_bytes(&p->tensors[w]), 128 + 64);
        struct op op = op_make(OP_MATMUL);
        op.m = 2, op.n = 3, op.k = 64;
        op_in(&op, x);
        op_in(&op, broken == 1 ? program_view_flat(p, "v", w, 0, 2, (int64_t[]){3, 64}) : w);
        op_in(&op, -1);
        op_out(&op, y);
        op.flags = broken == 2 ? OP_IN_OUT : 0;
        p->tensors[w].trainable = broken == 3;
        program_op(p, s, &op);
        program_order(p, s, 0, 0);
        assert_worked(program_finish(p, &e), &e);
        const int rc = check_program(p, &e);
        assert_int_equal(rc != 0, broken != 0);
        if (rc != 0)
            assert_non_null(strstr(e.text, "int4 g64"));
        // Bytes that are really read: codes, scales, x, y.
        if (broken == 0)
            assert_true(op_cost_of(p, &p->segments[s].ops[0]).bytes ==
                        192 + 2 * 64 * 4 + 2 * 3 * 4);
        program_free(p);
    }
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_setup, scratch_teardown)
    const struct CMUnitTest tests[] = {TEST(test_every_family), TEST(test_formats),
                                       TEST(test_choice), TEST(test_refusals),
                                       cmocka_unit_test(test_programs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
