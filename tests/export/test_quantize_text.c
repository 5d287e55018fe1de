// test_quantize_text.c - methods that look at text: what activations are measured, that awq and
// tuned come nearer to the source on records that they did not see, that tuning repeats, and that
// the divergence of one matrix is that of a folder where it alone is quantized.
#include "model/scratch.h"

#include "base/rng.h"
#include "export/quantize_folder.h"
#include "train/likeness.h"
#include "train/sensitive.h"

#include <math.h>

enum { SEQ = 32, RECORDS = 160, WHOLE = SENSITIVE_MOST / SEQ };

static void say(void *arg, enum log_level level, const char *text) {
    (void)arg, (void)level, (void)text;
}

static const char llama[] =
    "{\"model_type\":\"llama\",\"vocab_size\":96,\"hidden_size\":64,\"num_attention_heads\":4,"
    "\"num_key_value_heads\":2,\"num_hidden_layers\":2,\"intermediate_size\":96,"
    "\"tie_word_embeddings\":false,\"max_position_embeddings\":64}";
static const char gpt2[] =
    "{\"model_type\":\"gpt2\",\"vocab_size\":96,\"n_embd\":64,\"n_head\":4,\"n_layer\":2,"
    "\"n_positions\":64,\"n_inner\":128,\"activation_function\":\"gelu_new\"}";

// Random weights large enough for distributions that are not flat, and inputs of very different
// size: every eighth column of a norm is ten times the others.
static const char *make_model(const struct scratch *d, const char *config) {
    const char *folder = scratch_path(d, "model");
    char path[PATH_MAX];
    struct model_shape shape;
    struct model_param p;
    struct safetensors_writer *w;
    struct err e = {0};
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
        for (int64_t k = 0; k < n; k++)
            x[k] *= p.rank > 1 ? 5 : k % 8 == 0 ? 3 : 0.3f;
        assert_worked(safetensors_writer_put(w, x, (size_t)n * sizeof *x, &e), &e);
        free(x);
    }
    assert_worked(safetensors_writer_close(w, NULL, NULL, &e), &e);
    return folder;
}

static const char *make_text(const struct scratch *d, int records) {
    const char *path = scratch_path(d, "text.jsonl");
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    for (int i = 0; i < records; i++) {
        fprintf(f, "{\"input_ids\": [");
        for (int j = 0; j <= SEQ; j++) {
            const double u = rng_uniform(3, (uint64_t)i, (uint64_t)j);
            fprintf(f, "%s%d", j ? "," : "", (int)(95 * u * u));
        }
        fprintf(f, "]}\n");
    }
    assert_int_equal(fclose(f), 0);
    return path;
}

static struct knobs knobs_for(const char *folder, const char *text) {
    struct knobs k;
    knobs_init(&k);
    assert_true(strlen(folder) < sizeof k.model && strlen(text) < sizeof k.data_path);
    strcpy(k.model, folder);
    strcpy(k.data_path, text);
    strcpy(k.data_cache, "none");
    k.device = DEVICE_CPU, k.threads = 2, k.seq = SEQ;
    return k;
}

static const struct score_listener quiet = {.data = {.say = say}};

static double divergence(const struct score *data, const char *folder) {
    struct likeness l;
    struct err e = {0};
    assert_worked(likeness_measure(data, folder, &quiet, &l, &e), &e);
    return l.kl.value;
}

static struct quantize_folder asked(const struct scratch *d, const char *source, const char *name,
                                    enum quantize_method method) {
    return (struct quantize_folder){
        .source = source,
        .out_dir = scratch_path(d, name),
        .how = {.method = method, .storage = {.kind = STORAGE_INT4, .group = 32}},
        .listener = {NULL, say}};
}

static void write_folder(struct quantize_folder *q, struct quantize_summary *s) {
    struct err e = {0};
    assert_worked(pool_open(&q->pool, 2, 0, &e), &e);
    assert_worked(quantize_folder(q, s, &e), &e);
    pool_close(q->pool);
}

static double divergence_of(struct quantize_folder *q, const struct score *data) {
    struct quantize_summary s;
    char out[PATH_MAX];
    snprintf(out, sizeof out, "%s", q->out_dir);
    write_folder(q, &s);
    quantize_free(&s);
    return divergence(data, out);
}

// ---------------------------------------------------------------- activations

static void check_powers(const struct powers *p, const struct model_shape *shape) {
    struct model_param param;
    for (int64_t i = 0; model_param_at(shape, i, &param); i++) {
        const float *mean = powers_find(p, param.name);
        double sum = 0;
        if (!quantized_can(&param) || param.role == ROLE_WTE)
            continue;
        quantized_turn(shape, &param);
        assert_non_null(mean);
        for (int64_t j = 0; j < param.dims[1]; j++) {
            assert_true(mean[j] >= POWER_LEAST);
            sum += (double)mean[j];
        }
        assert_true(fabs(sum / (double)param.dims[1] - 1) < 0.02);
    }
    assert_null(powers_find(p, "model.norm.weight"));
}

static void check_method(struct scratch *d, const char *config) {
    const char *folder = make_model(d, config), *text = make_text(d, RECORDS);
    const struct knobs k = knobs_for(folder, text);
    struct score data;
    struct powers powers, few;
    struct tuned tuned, again;
    struct model_shape shape;
    struct quantized stored;
    struct err e = {0};
    int64_t matrices;
    bool is_dir;
    char source[PATH_MAX];
    snprintf(source, sizeof source, "%s", folder);
    assert_worked(model_shape_open(&shape, source, &is_dir, &e), &e);
    assert_worked(score_open_divided(&data, &k, 0.25, &quiet, &e), &e);
    assert_worked(powers_measure(&powers, &data, UINT64_MAX / 2, &quiet, &e), &e);
    assert_worked(powers_measure(&few, &data, 1, &quiet, &e), &e);
    assert_true(few.tokens < powers.tokens);
    check_powers(&powers, &shape);
    check_powers(&few, &shape);

    struct quantize_folder rtn = asked(d, source, "rtn", QUANTIZE_RTN);
    const double plain = divergence_of(&rtn, &data);
    struct quantize_folder awq = asked(d, source, "awq", QUANTIZE_AWQ);
    awq.powers = &powers;
    const double aware = divergence_of(&awq, &data);

    struct quantize_folder best = asked(d, source, "tuned", QUANTIZE_TUNED);
    assert_worked(quantize_choose(&best, &shape, &stored, &matrices, &e), &e);
    const struct tuned_options o = {
        .data = &data, .stored = &stored, .powers = &powers, .tokens = 40 * 2048, .l = &quiet};
    assert_worked(tuned_train(&tuned, &o, &e), &e);
    assert_int_equal(tuned.steps, 40);
    assert_int_equal(tuned.n, matrices);
    best.powers = &powers, best.tuned = &tuned;
    const double trained = divergence_of(&best, &data);
    print_message("%s: rtn %.4g, awq %.4g, tuned %.4g\n", shape.name, plain, aware, trained);
    assert_true(aware < 0.9 * plain);
    assert_true(trained < 0.5 * plain);
    assert_true(tuned.kl_last < tuned.kl_first);

    tuned_free(&tuned);
    // The same data, seed and threads give the same bytes.
    struct tuned_options few_steps = o;
    few_steps.tokens = 3 * 2048;
    assert_worked(tuned_train(&tuned, &few_steps, &e), &e);
    assert_worked(tuned_train(&again, &few_steps, &e), &e);
    for (int i = 0; i < tuned.n; i++) {
        const struct rounded *r = &tuned.all[i];
        const void *bytes = tuned_bytes(&again, r->param.name, r->storage);
        assert_non_null(bytes);
        assert_memory_equal(bytes, r->bytes, r->parts.bytes);
        assert_null(tuned_bytes(&again, r->param.name, (struct storage){.kind = STORAGE_INT8}));
    }
    tuned_free(&tuned), tuned_free(&again);
    powers_free(&powers), powers_free(&few);
    quantized_free(&stored);
    score_close(&data);
}

static void test_llama(void **state) {
    check_method(*state, llama);
}

// Its matrices are [in, out], and one is the projections to q, k and v.
static void test_gpt2(void **state) {
    check_method(*state, gpt2);
}

// A stop request ends tuning, and what it has is freed.
static void test_stop(void **state) {
    const char *folder = make_model(*state, llama), *text = make_text(*state, RECORDS);
    const struct knobs k = knobs_for(folder, text);
    const volatile sig_atomic_t stop = 1;
    struct score_listener l = quiet;
    struct quantize_folder q = asked(*state, k.model, "never", QUANTIZE_TUNED);
    struct score data;
    struct powers powers;
    struct tuned tuned;
    struct sensitive sensitive;
    struct quantized stored;
    struct model_shape shape;
    struct err e = {0};
    int64_t matrices;
    bool is_dir;
    l.stop = &stop;
    assert_worked(model_shape_open(&shape, k.model, &is_dir, &e), &e);
    assert_worked(quantize_choose(&q, &shape, &stored, &matrices, &e), &e);
    assert_worked(score_open_divided(&data, &k, 0.25, &quiet, &e), &e);
    assert_int_equal(powers_measure(&powers, &data, 1000, &l, &e), ERR_STOPPED);
    powers_free(&powers);
    const struct tuned_options o = {.data = &data, .stored = &stored, .tokens = 2048, .l = &l};
    assert_int_equal(tuned_train(&tuned, &o, &e), ERR_STOPPED);
    tuned_free(&tuned);
    assert_int_equal(
        sensitive_measure(&sensitive, &data, SPLIT_TRAIN, scratch_path(*state, "none"), &l, &e),
        ERR_IO);
    sensitive_free(&sensitive);
    quantized_free(&stored);
    score_close(&data);
}

// ---------------------------------------------------------------- one matrix

static void test_sensitive(void **state) {
    const struct scratch *d = *state;
    const char *folder = make_model(d, llama), *text = make_text(d, WHOLE);
    const struct knobs k = knobs_for(folder, text);
    struct quantize_folder q = asked(d, k.model, "all", QUANTIZE_RTN);
    struct quantize_summary s;
    struct score data;
    struct sensitive found;
    struct err e = {0};
    char out[PATH_MAX], keep[4096] = "";
    snprintf(out, sizeof out, "%s", q.out_dir);
    assert_worked(score_open(&data, &k, &quiet, &e), &e);
    assert_int_equal(data.windows, WHOLE);
    write_folder(&q, &s);
    quantize_free(&s);
    assert_worked(sensitive_measure(&found, &data, SPLIT_VALIDATION, out, &quiet, &e), &e);
    assert_int_equal(found.tokens, WHOLE * SEQ);
    double sum = 0;
    for (int i = 0; i < found.n; i++) {
        sum += found.all[i].kl;
        assert_true(i == 0 || found.all[i].kl <= found.all[i - 1].kl);
    }
    assert_true(fabs(sum - found.sum) < 1e-9 * sum);
    for (int i = 1; i < found.n; i++)
        snprintf(keep + strlen(keep), sizeof keep - strlen(keep), "%s%s", i > 1 ? "," : "",
                 found.all[i].name);
    struct quantize_folder one = asked(d, k.model, "one", QUANTIZE_RTN);
    one.keep = keep;
    const double alone = divergence_of(&one, &data);
    print_message("alone %.5g, in a folder %.5g\n", found.all[0].kl, alone);
    // A folder's products also round what they multiply, to 8 bits.
    assert_true(fabs(found.all[0].kl / alone - 1) < 0.1);

    // The fewer that are left, the lower the limit that they allow.
    const double kl = 2 * found.sum;
    const int none = sensitive_choose(&found, kl, 2 * kl, 0),
              all = sensitive_choose(&found, kl, 0, 1);
    const int half = sensitive_choose(&found, kl, kl / 2, 1);
    assert_int_equal(none, 0);
    assert_int_equal(all, found.n);
    assert_true(half >= 1 && half < found.n);
    double left = 0;
    for (int i = half; i < found.n; i++)
        left += found.all[i].kl;
    assert_true(left <= found.sum / 2 && left + found.all[half - 1].kl > found.sum / 2);
    sensitive_free(&found);
    score_close(&data);
}

// What --wider names is int8 in an int4 folder, and takes more bytes.
static void test_wider(void **state) {
    const char *folder = make_model(*state, llama);
    char source[PATH_MAX];
    struct quantize_summary s;
    struct err e = {0};
    snprintf(source, sizeof source, "%s", folder);
    struct quantize_folder q = asked(*state, source, "a", QUANTIZE_RTN);
    write_folder(&q, &s);
    const uint64_t before = s.bytes_after;
    assert_int_equal(s.stored.n_others, 0);
    quantize_free(&s);
    q = asked(*state, source, "b", QUANTIZE_RTN);
    q.wider = "down_proj";
    write_folder(&q, &s);
    assert_int_equal(s.stored.n_others, 2);
    for (int i = 0; i < 2; i++) {
        assert_non_null(strstr(s.stored.others[i].name, "down_proj"));
        assert_int_equal(s.stored.others[i].storage.kind, STORAGE_INT8);
    }
    assert_true(s.bytes_after > before);
    quantize_free(&s);
    q = asked(*state, source, "c", QUANTIZE_RTN);
    q.wider = "nothing";
    assert_int_equal(quantize_folder(&q, &s, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "--wider: 'nothing' names no matrix"));
    quantize_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_llama, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_gpt2, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_stop, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_sensitive, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_wider, scratch_setup, scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
