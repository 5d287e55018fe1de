// test_quantize.c - rounding to nearest: error bounds, the choice among scales, bad values; and
// what config.json says about a quantized folder, with a table of what is refused.
#include "scratch.h"

#include "base/rng.h"
#include "model/quantize.h"
#include "model/quantized.h"

#include <math.h>

static const struct storage formats[] = {
    {.kind = STORAGE_INT8},
    {.kind = STORAGE_INT4, .group = 32},
    {.kind = STORAGE_INT4, .group = 64},
    {.kind = STORAGE_INT4, .group = 128},
    {.kind = STORAGE_INT4, .group = 32, .minima = true},
    {.kind = STORAGE_INT4, .group = 128, .minima = true},
};
enum { FORMATS = sizeof formats / sizeof *formats, ROWS = 8, COLS = 256 };

struct rounded {
    struct storage_parts parts;
    char *matrix;
    float values[ROWS * COLS]; // read back
    struct quantize_error sum;
};

static struct rounded *round_values(struct storage s, const float *x) {
    struct rounded *r = calloc(1, sizeof *r);
    const struct quantize_options o = {.method = QUANTIZE_RTN, .storage = s};
    struct err e = {0};
    assert_non_null(r);
    assert_true(storage_layout(s, ROWS, COLS, &r->parts));
    r->matrix = calloc(1, r->parts.bytes);
    // In two calls, as two threads would.
    assert_worked(quantize_rows(&o, &r->parts, COLS, x, 0, 3, r->matrix, &r->sum, &e), &e);
    assert_worked(
        quantize_rows(&o, &r->parts, COLS, x + 3 * COLS, 3, ROWS - 3, r->matrix, &r->sum, &e), &e);
    assert_worked(storage_check(s, &r->parts, r->matrix, "w", &e), &e);
    for (int64_t i = 0; i < ROWS; i++)
        storage_read_row(s, &r->parts, r->matrix, i, 0, COLS, r->values + i * COLS);
    return r;
}

static void drop(struct rounded *r) {
    free(r->matrix);
    free(r);
}

// What each format may cost on normal values, in parts of their size.
static void test_error(void **state) {
    (void)state;
    static const double most[FORMATS] = {0.008, 0.09, 0.1, 0.115, 0.08, 0.1};
    static float x[ROWS * COLS];
    for (int i = 0; i < ROWS * COLS; i++)
        x[i] = 0.02f * (float)rng_normal(1, 2, (uint64_t)i);
    for (int f = 0; f < FORMATS; f++) {
        struct rounded *r = round_values(formats[f], x);
        double error = 0, power = 0;
        for (int i = 0; i < ROWS * COLS; i++) {
            error += pow((double)x[i] - (double)r->values[i], 2);
            power += pow((double)x[i], 2);
        }
        assert_true(sqrt(error / power) < most[f]);
        assert_true(sqrt(error / power) > most[f] / 4);
        // The reported sums are those of what was written.
        assert_true(fabs(r->sum.error / error - 1) < 1e-3);
        assert_true(fabs(r->sum.power / power - 1) < 1e-6);
        drop(r);
    }
}

// With minima, values that lie far off 0 are as fine as their range; without, int4 loses to it.
static void test_minima(void **state) {
    (void)state;
    static float x[ROWS * COLS];
    for (int i = 0; i < ROWS * COLS; i++)
        x[i] = 5 + (float)rng_uniform(1, 2, (uint64_t)i);
    struct rounded *plain = round_values(formats[1], x), *with = round_values(formats[4], x);
    for (int i = 0; i < ROWS * COLS; i++)
        assert_true(fabsf(x[i] - with->values[i]) < 0.05f);
    assert_true(with->sum.error < plain->sum.error / 20);
    drop(plain), drop(with);
}

// The scale that is chosen is no worse than the one that fits the largest value, for every group.
static void test_choice(void **state) {
    (void)state;
    static float x[ROWS * COLS];
    for (int i = 0; i < ROWS * COLS; i++) {
        const double u = rng_normal(3, 4, (uint64_t)i);
        x[i] = (float)(u * u * u); // heavy tails
    }
    for (int f = 1; f < 4; f++) {
        struct rounded *r = round_values(formats[f], x);
        const int group = formats[f].group;
        for (int at = 0; at < ROWS * COLS; at += group) {
            double largest = 0, chosen = 0, fitting = 0;
            for (int i = 0; i < group; i++)
                largest = fmax(largest, fabs((double)x[at + i]));
            const double scale = (double)dtype_f16_to_f32(dtype_f32_to_f16((float)(largest / 7)));
            for (int i = 0; i < group; i++) {
                const double v = (double)x[at + i], to = fmin(fmax(rint(v / scale), -8), 7) * scale;
                fitting += (v - to) * (v - to);
                chosen += pow(v - (double)r->values[at + i], 2);
            }
            assert_true(chosen <= fitting * 1.0001);
        }
        drop(r);
    }
}

static void test_edges(void **state) {
    (void)state;
    static float x[ROWS * COLS];
    for (int f = 0; f < FORMATS; f++) {
        memset(x, 0, sizeof x);
        x[COLS] = 1e-30f; // smaller than any float16
        x[2 * COLS] = 60000;
        struct rounded *r = round_values(formats[f], x);
        for (int i = 0; i < COLS; i++)
            assert_true(r->values[i] == 0 && fabsf(r->values[COLS + i]) <= 1e-30f);
        assert_true(fabsf(r->values[2 * COLS] - 60000) < 60000 * 0.1f);
        drop(r);
        const struct quantize_options o = {.storage = formats[f]};
        struct storage_parts parts;
        struct quantize_error sum = {0};
        struct err e = {0};
        assert_true(storage_layout(formats[f], ROWS, COLS, &parts));
        char *matrix = calloc(1, parts.bytes);
        x[COLS + 7] = NAN;
        assert_int_equal(quantize_rows(&o, &parts, COLS, x, 0, ROWS, matrix, &sum, &e),
                         ERR_NUMERIC);
        assert_failed(ERR_NUMERIC, &e, "element [1, 7]", "NaN");
        x[COLS + 7] = 1e6f; // too large for a float16, not for a float32
        e = (struct err){0};
        assert_int_equal(quantize_rows(&o, &parts, COLS, x, 0, ROWS, matrix, &sum, &e),
                         f == 0 ? 0 : ERR_NUMERIC);
        x[COLS + 7] = 0;
        free(matrix);
    }
}

static void test_methods(void **state) {
    (void)state;
    enum quantize_method m = QUANTIZE_METHODS;
    struct err e = {0};
    assert_worked(quantize_find_method("rtn", &m, &e), &e);
    assert_int_equal(m, QUANTIZE_RTN);
    assert_int_equal(quantize_find_method("gptq", &m, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "rtn"));
}

// ---------------------------------------------------------------- config.json

#define LLAMA                                                                                      \
    "{\"model_type\":\"llama\",\"vocab_size\":64,\"hidden_size\":64,\"num_attention_heads\":2,"    \
    "\"num_hidden_layers\":2,\"intermediate_size\":96,\"quantization_config\":"
#define HEAD "{\"quant_method\":\"haggle\",\"version\":1,"

static int read_text(const struct scratch *d, const char *text, struct quantized *q,
                     struct err *e) {
    struct model_shape shape;
    TRY(model_shape_read_config(&shape, scratch_text(d, "config.json", text), e));
    return quantized_read(q, d->dir, &shape, e);
}

static void test_config(void **state) {
    struct quantized q;
    struct err e = {0};
    struct model_shape shape;
    struct model_param p;
    assert_worked(read_text(*state, LLAMA "null}", &q, &e), &e);
    assert_false(quantized_any(&q));
    assert_worked(read_text(*state,
                            LLAMA HEAD
                            "\"format\":\"int4\",\"group\":32,\"minima\":true,\"other\":{"
                            "\"lm_head.weight\":\"wide\","
                            "\"model.layers.1.mlp.up_proj.weight\":\"int8\"}}}",
                            &q, &e),
                  &e);
    assert_worked(model_shape_read_config(&shape, scratch_path(*state, "config.json"), &e), &e);
    int wide = 0, int8 = 0, int4 = 0;
    for (int64_t i = 0; model_param_at(&shape, i, &p); i++) {
        const struct storage s = quantized_as(&q, &p);
        wide += storage_plain(s), int8 += s.kind == STORAGE_INT8, int4 += s.kind == STORAGE_INT4;
        assert_true(s.kind != STORAGE_INT4 || (s.group == 32 && s.minima));
        assert_true(!storage_plain(s) || !p.matrix || p.role == ROLE_HEAD_W);
    }
    assert_int_equal(int8, 1);
    assert_int_equal(int4, 1 + 2 * 7 - 1); // embedding, layers, without one
    assert_int_equal(wide, 1 + 2 * 2 + 1); // head, norms
    // What is written reads back the same.
    struct json_writer w;
    char text[4096];
    json_writer_to_buffer(&w, 0);
    quantized_put_json(&q, &w);
    assert_worked(json_writer_finish(&w, &e), &e);
    snprintf(text, sizeof text, LLAMA "%s}", w.buffer);
    struct quantized again;
    assert_worked(read_text(*state, text, &again, &e), &e);
    assert_true(storage_same(q.storage, again.storage) && again.n_others == 2);
    for (size_t i = 0; i < 2; i++) {
        assert_string_equal(q.others[i].name, again.others[i].name);
        assert_true(storage_same(q.others[i].storage, again.others[i].storage));
    }
    free(w.buffer);
    quantized_free(&q), quantized_free(&again);
}

// GPT-2 stores its matrices [in, out]; a quantized one is [out, in], tables stay as they are.
static void test_turn(void **state) {
    (void)state;
    struct model_shape s;
    struct model_param p;
    struct err e = {0};
    assert_worked(model_shape_builtin(&s, "gpt2-124m", &e), &e);
    assert_true(model_param_get(&s, ROLE_QKV_W, 0, &p));
    quantized_turn(&s, &p);
    assert_true(p.dims[0] == 2304 && p.dims[1] == 768);
    assert_true(model_param_get(&s, ROLE_WTE, 0, &p));
    quantized_turn(&s, &p);
    assert_true(p.dims[0] == 50257 && p.dims[1] == 768);
    assert_true(model_param_get(&s, ROLE_WPE, 0, &p));
    assert_false(quantized_can(&p));
}

static void test_hostile_config(void **state) {
    static const struct {
        const char *text, *parts;
    } bad[] = {
        {LLAMA "{\"quant_method\":\"gptq\",\"bits\":4}}", "quantization_config|another tool"},
        {LLAMA "{\"bits\":4}}", "quantization_config"},
        {LLAMA "7}", "quantization_config"},
        {LLAMA "[]}", "quantization_config"},
        {LLAMA "{\"quant_method\":\"haggle\",\"format\":\"int8\"}}", "version"},
        {LLAMA "{\"quant_method\":\"haggle\",\"version\":2,\"format\":\"int8\"}}", "version|2"},
        {LLAMA "{\"quant_method\":\"haggle\",\"version\":\"1\",\"format\":\"int8\"}}", ""},
        {LLAMA HEAD "\"group\":32}}", "format"},
        {LLAMA HEAD "\"format\":\"int2\"}}", "int2|int8, int4"},
        {LLAMA HEAD "\"format\":4}}", ""},
        {LLAMA HEAD "\"format\":\"int4\"}}", "group|32, 64, 128"},
        {LLAMA HEAD "\"format\":\"int4\",\"group\":48}}", "48|32, 64, 128"},
        {LLAMA HEAD "\"format\":\"int4\",\"group\":-32}}", "-32"},
        {LLAMA HEAD "\"format\":\"int4\",\"group\":4294967328}}", "4294967328"},
        {LLAMA HEAD "\"format\":\"int4\",\"group\":32.5}}", ""},
        {LLAMA HEAD "\"format\":\"int8\",\"group\":32}}", "no groups"},
        {LLAMA HEAD "\"format\":\"int8\",\"minima\":true}}", "no groups and no minima"},
        {LLAMA HEAD "\"format\":\"int4\",\"group\":64}}", "down_proj|96|whole groups"},
        {LLAMA HEAD "\"format\":\"int8\",\"desc_act\":true}}", "desc_act"},
        {LLAMA HEAD "\"format\":\"int8\",\"format\":\"int8\"}}", "format|twice"},
        {LLAMA HEAD "\"format\":\"int8\",\"other\":[]}}", ""},
        {LLAMA HEAD "\"format\":\"int8\",\"other\":{\"x\":\"wide\"}}}", "\"x\"|no matrix"},
        {LLAMA HEAD "\"format\":\"int8\",\"other\":{\"model.norm.weight\":\"wide\"}}}",
         "model.norm.weight|no matrix"},
        {LLAMA HEAD "\"format\":\"int8\",\"other\":{\"lm_head.weight\":\"int4\"}}}",
         "int4|int8, wide"},
        {LLAMA HEAD "\"format\":\"int8\",\"other\":{\"lm_head.weight\":\"wide\","
                    "\"lm_head.weight\":\"wide\"}}}",
         "twice"},
        {LLAMA HEAD "\"format\":\"int8\"},\"quantization_config\":null}", "twice"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct quantized q = {0};
        struct err e = {0};
        const int rc = read_text(*state, bad[i].text, &q, &e);
        if (rc == 0)
            fail_msg("accepted: %s", bad[i].text);
        assert_failed(rc, &e, bad[i].parts, bad[i].text);
        assert_true(q.others == NULL);
    }
}

// ---------------------------------------------------------------- the tensors of a folder

// A matrix [4, 64] in a file, as `tensors` says.
struct file_tensor {
    const char *name;
    enum dtype dtype;
    int rank;
    int64_t dims[2];
};

static int load(const struct scratch *d, struct storage s, const struct file_tensor *tensors, int n,
                const void *data, void *out, struct err *e) {
    struct safetensors_writer *w;
    struct weights *folder;
    const struct model_param p = {.name = "w", .rank = 2, .dims = {4, 64}, .matrix = true};
    assert_worked(safetensors_writer_open(&w, scratch_path(d, "model.safetensors"), e), e);
    for (int i = 0; i < n; i++)
        assert_worked(safetensors_writer_declare(w, tensors[i].name, tensors[i].dtype,
                                                 tensors[i].rank, tensors[i].dims, e),
                      e);
    for (int i = 0; i < n; i++)
        assert_worked(
            safetensors_writer_put(
                w, data,
                (size_t)(tensors[i].dims[0] * (tensors[i].rank > 1 ? tensors[i].dims[1] : 1)) *
                    dtype_bytes(tensors[i].dtype),
                e),
            e);
    assert_worked(safetensors_writer_close(w, NULL, NULL, e), e);
    assert_worked(weights_open(&folder, d->dir, e), e);
    const int rc = quantized_load(folder, s, &p, out, e);
    weights_close(folder);
    return rc;
}

static void test_hostile_tensors(void **state) {
    static const struct storage int4 = {.kind = STORAGE_INT4, .group = 32, .minima = true};
    static const struct file_tensor good[3] = {{"w.q", DTYPE_U8, 2, {4, 32}},
                                               {"w.scales", DTYPE_F16, 2, {4, 2}},
                                               {"w.minima", DTYPE_F16, 2, {4, 2}}};
    static const struct {
        int which;
        struct file_tensor instead;
        const char *parts;
    } bad[] = {
        {0, {"w.q", DTYPE_I8, 2, {4, 32}}, "w.q|I8|U8"},
        {0, {"w.q", DTYPE_U8, 2, {4, 64}}, "w.q|[4, 32]"},
        {0, {"w.q", DTYPE_U8, 2, {32, 4}}, "w.q|[4, 32]"},
        {0, {"w.q", DTYPE_U8, 1, {128, 0}}, "w.q|[4, 32]"},
        {0, {"w.qq", DTYPE_U8, 2, {4, 32}}, "no tensor|w.q|int4 g32 minima"},
        {1, {"w.scales", DTYPE_F32, 2, {4, 2}}, "w.scales|F32|F16"},
        {1, {"w.scales", DTYPE_F16, 2, {4, 1}}, "w.scales|[4, 2]"},
        {1, {"w.scales", DTYPE_F16, 2, {5, 2}}, "w.scales|[4, 2]"},
        {1, {"scales", DTYPE_F16, 2, {4, 2}}, "no tensor|w.scales"},
        {2, {"w.minima", DTYPE_BF16, 2, {4, 2}}, "w.minima|BF16|F16"},
        {2, {"w.minima", DTYPE_F16, 2, {2, 2}}, "w.minima|[4, 2]"},
        {2, {"w.least", DTYPE_F16, 2, {4, 2}}, "no tensor|w.minima"},
    };
    char data[4096] = {0}, out[4096];
    struct err e = {0};
    assert_worked(load(*state, int4, good, 3, data, out, &e), &e);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct file_tensor all[3] = {good[0], good[1], good[2]};
        all[bad[i].which] = bad[i].instead;
        e = (struct err){0};
        const int rc = load(*state, int4, all, 3, data, out, &e);
        assert_failed(rc, &e, bad[i].parts, bad[i].instead.name);
    }
    const uint16_t nan = 0x7e00;
    memcpy(data + 6, &nan, 2); // the same bytes are codes, scales and minima
    e = (struct err){0};
    assert_int_equal(load(*state, int4, good, 3, data, out, &e), ERR_NUMERIC);
    assert_failed(ERR_NUMERIC, &e, "'w'|scale 3", "NaN");
    static const struct storage int8 = {.kind = STORAGE_INT8};
    static const struct file_tensor bytes[2] = {{"w.q", DTYPE_I8, 2, {4, 64}},
                                                {"w.scales", DTYPE_F32, 1, {4, 0}}};
    memset(data, 0, sizeof data);
    e = (struct err){0};
    assert_worked(load(*state, int8, bytes, 2, data, out, &e), &e);
    data[40] = -128;
    assert_int_equal(load(*state, int8, bytes, 2, data, out, &e), ERR_NUMERIC);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_error),
        cmocka_unit_test(test_minima),
        cmocka_unit_test(test_choice),
        cmocka_unit_test(test_edges),
        cmocka_unit_test(test_methods),
        cmocka_unit_test_setup_teardown(test_config, scratch_setup, scratch_teardown),
        cmocka_unit_test(test_turn),
        cmocka_unit_test_setup_teardown(test_hostile_config, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_hostile_tensors, scratch_setup, scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
