// test_adapter_reference.c - a model with an adapter compared with the references of whole models.
//
// For any pair (A, B), the base W - s B A with that adapter computes what W does, and the gradients
// of the pair follow from the reference's gradient G of W: dA = s B' G and dB = s G A'. So every
// reference folder gives one for an adapter, in which other programs computed all that is compared.
#include "references.h"

#include "knob/pair.h"
#include "model/adapter_file.h"
#include "model/load.h"

#include <math.h>
#include <string.h>

enum { RANK = 3, ELEMENTS_MOST = 1 << 17 };

struct made {
    char dir[256], base[300], adapter[300]; // a temporary folder, and two inside it
    const char *from;                       // the reference
    struct model_shape shape;
    struct adapter a;
    struct weights *weights;
    struct safetensors *ref;
    double squares; // of the gradients
};

static void worked(int rc, const struct err *e) {
    if (rc != 0)
        fail_msg("unexpected error %d: %s", rc, e->text);
}

// Small enough that W - s B A has about the size of W.
static float pair_value(const struct model_param *p, int64_t i) {
    return 0.05F * sinf((float)(i + 7 * p->layer + (int)p->role) * 1.7F);
}

static int give_pair(void *arg, const struct model_param *p, int64_t first, int64_t n, float *out,
                     struct err *e) {
    (void)arg, (void)e;
    for (int64_t i = 0; i < n; i++)
        out[i] = pair_value(p, first + i);
    return 0;
}

static float *read_all(struct safetensors *st, const char *name, int64_t n) {
    struct err e = {0};
    const struct safetensors_entry *t = safetensors_find(st, name);
    float *out = calloc((size_t)n, sizeof *out);
    assert_non_null(out);
    if (t == NULL || t->elements != n)
        fail_msg("the reference has no %s of %lld elements", name, (long long)n);
    worked(safetensors_read(st, t, 0, n, out, DTYPE_F32, &e), &e);
    return out;
}

// ---------------------------------------------------------------- the base

// Where element (from feature `in` to feature `out`) of a weight lies.
static int64_t at(const struct made *m, const struct model_param *w, int64_t in, int64_t out) {
    return m->shape.in_out_weights ? in * w->dims[1] + out : out * w->dims[1] + in;
}

static void subtract(const struct made *m, const struct model_param *w, float *values) {
    struct model_param a, b;
    const double scale = adapter_scale(&m->a);
    adapter_param(&m->a, &m->shape, w, false, &a);
    adapter_param(&m->a, &m->shape, w, true, &b);
    for (int64_t o = 0; o < b.dims[0]; o++)
        for (int64_t i = 0; i < a.dims[1]; i++) {
            double sum = 0;
            for (int64_t r = 0; r < RANK; r++)
                sum += (double)pair_value(&b, o * RANK + r) *
                       (double)pair_value(&a, r * a.dims[1] + i);
            values[at(m, w, i, o)] -= (float)(scale * sum);
        }
}

static void copy_config(const struct made *m) {
    char path[400], *text;
    size_t bytes;
    struct err e = {0};
    snprintf(path, sizeof path, "%s/config.json", m->from);
    worked(file_read_all(path, 1 << 20, &text, &bytes, &e), &e);
    snprintf(path, sizeof path, "%s/config.json", m->base);
    worked(file_write_atomic(path, text, bytes, &e), &e);
    free(text);
}

static void make_base(struct made *m) {
    struct safetensors_writer *w;
    struct model_param p;
    struct err e = {0};
    char path[400];
    static float values[ELEMENTS_MOST];
    copy_config(m);
    snprintf(path, sizeof path, "%s/model.safetensors", m->base);
    worked(safetensors_writer_open(&w, path, &e), &e);
    for (int64_t i = 0; model_param_at(&m->shape, i, &p); i++)
        worked(safetensors_writer_declare(w, p.name, DTYPE_F32, p.rank, p.dims, &e), &e);
    for (int64_t i = 0; model_param_at(&m->shape, i, &p); i++) {
        const int64_t n = p.dims[0] * (p.rank > 1 ? p.dims[1] : 1);
        const struct safetensors_entry *t = weights_find_param(m->weights, &m->shape, &p, &e);
        assert_non_null(t);
        assert_true(n <= ELEMENTS_MOST);
        worked(weights_read(m->weights, t, 0, n, values, DTYPE_F32, &e), &e);
        if (adapter_targets(&m->a, &m->shape, &p))
            subtract(m, &p, values);
        worked(safetensors_writer_put(w, values, (size_t)n * sizeof *values, &e), &e);
    }
    worked(safetensors_writer_close(w, NULL, NULL, &e), &e);
}

// ---------------------------------------------------------------- the adapter and its reference

static void make_adapter(const struct made *m) {
    const struct adapter_save o = {
        .adapter = &m->a, .shape = &m->shape, .dtype = DTYPE_F32, .read = give_pair};
    char path[400], *text;
    size_t bytes;
    struct err e = {0};
    snprintf(path, sizeof path, "%s/" ADAPTER_FILE, m->adapter);
    worked(adapter_save_weights(&o, path, NULL, NULL, &e), &e);
    worked(adapter_save_config(&o, &text, &bytes, &e), &e);
    snprintf(path, sizeof path, "%s/" ADAPTER_CONFIG, m->adapter);
    worked(file_write_atomic(path, text, bytes, &e), &e);
    free(text);
}

// The weight whose pair has the i-th tensor of the adapter.
static void weight_of(const struct made *m, const struct model_param *pair,
                      struct model_param *out) {
    assert_true(model_param_get(&m->shape, pair->role, pair->layer, out));
}

static void put_gradient(struct made *m, int64_t number, struct safetensors_writer *w) {
    struct model_param p, weight, a, b;
    char name[160];
    struct err e = {0};
    const double scale = adapter_scale(&m->a);
    assert_true(adapter_param_at(&m->a, &m->shape, number, &p));
    weight_of(m, &p, &weight);
    adapter_param(&m->a, &m->shape, &weight, false, &a);
    adapter_param(&m->a, &m->shape, &weight, true, &b);
    snprintf(name, sizeof name, "grad.%s", weight.name);
    const int64_t in = a.dims[1], out = b.dims[0];
    float *g = read_all(m->ref, name, in * out);
    for (int64_t k = 0; k < p.dims[0] * p.dims[1]; k++) {
        const int64_t r = number % 2 == 0 ? k / in : k % RANK,
                      feature = number % 2 == 0 ? k % in : k / RANK;
        double sum = 0;
        for (int64_t i = 0; number % 2 == 0 && i < out; i++)
            sum += (double)pair_value(&b, i * RANK + r) * (double)g[at(m, &weight, feature, i)];
        for (int64_t i = 0; number % 2 == 1 && i < in; i++)
            sum += (double)pair_value(&a, r * in + i) * (double)g[at(m, &weight, i, feature)];
        const float value = (float)(scale * sum);
        m->squares += (double)value * (double)value;
        worked(safetensors_writer_put(w, &value, sizeof value, &e), &e);
    }
    free(g);
}

static void copy_tensor(const struct made *m, struct safetensors_writer *w, const char *name) {
    struct err e = {0};
    const struct safetensors_entry *t = safetensors_find(m->ref, name);
    void *data = malloc(t->bytes);
    assert_non_null(data);
    worked(safetensors_read(m->ref, t, 0, t->elements, data, t->dtype, &e), &e);
    worked(safetensors_writer_put(w, data, t->bytes, &e), &e);
    free(data);
}

static double reference_loss(const struct made *m) {
    char path[400], *text;
    size_t bytes;
    struct err e = {0};
    snprintf(path, sizeof path, "%s/ref.json", m->from);
    worked(file_read_all(path, 1 << 20, &text, &bytes, &e), &e);
    const char *loss = strstr(text, "\"loss\":");
    assert_non_null(loss);
    const double value = strtod(loss + strlen("\"loss\":"), NULL);
    free(text);
    return value;
}

static void make_reference(struct made *m) {
    static const char *const copied[] = {"tokens", "logits", "greedy"};
    enum { COPIED = sizeof copied / sizeof *copied };
    struct safetensors_writer *w;
    struct model_param p;
    struct err e = {0};
    char path[400], name[160], text[200];
    snprintf(path, sizeof path, "%s/ref.safetensors", m->adapter);
    worked(safetensors_writer_open(&w, path, &e), &e);
    for (int i = 0; i < COPIED; i++) {
        const struct safetensors_entry *t = safetensors_find(m->ref, copied[i]);
        assert_non_null(t);
        worked(safetensors_writer_declare(w, t->name, t->dtype, t->rank, t->dims, &e), &e);
    }
    for (int64_t i = 0; adapter_param_at(&m->a, &m->shape, i, &p); i++) {
        snprintf(name, sizeof name, "grad.%s", p.name);
        worked(safetensors_writer_declare(w, name, DTYPE_F32, p.rank, p.dims, &e), &e);
    }
    for (int i = 0; i < COPIED; i++)
        copy_tensor(m, w, copied[i]);
    m->squares = 0;
    for (int64_t i = 0; i < adapter_param_count(&m->a, &m->shape); i++)
        put_gradient(m, i, w);
    worked(safetensors_writer_close(w, NULL, NULL, &e), &e);
    const int n = snprintf(text, sizeof text, "{\"loss\":%.17g,\"grad_norm\":%.17g}",
                           reference_loss(m), sqrt(m->squares));
    snprintf(path, sizeof path, "%s/ref.json", m->adapter);
    worked(file_write_atomic(path, text, (size_t)n, &e), &e);
}

// ---------------------------------------------------------------- comparing

static void open_made(struct made *m, const char *from, const char *targets, bool rslora) {
    char path[400];
    struct err e = {0};
    *m = (struct made){.from = from, .a = {.rank = RANK, .alpha = 4, .rslora = rslora}};
    snprintf(m->a.targets, sizeof m->a.targets, "%s", targets);
    worked(file_make_temp_dir(m->dir, sizeof m->dir, "adapter", &e), &e);
    snprintf(m->base, sizeof m->base, "%s/base", m->dir);
    snprintf(m->adapter, sizeof m->adapter, "%s/adapter", m->dir);
    worked(file_make_dirs(m->base, &e), &e);
    worked(file_make_dirs(m->adapter, &e), &e);
    worked(model_shape_open(&m->shape, from, NULL, &e), &e);
    worked(weights_open(&m->weights, from, &e), &e);
    snprintf(path, sizeof path, "%s/ref.safetensors", from);
    worked(safetensors_open(&m->ref, path, &e), &e);
}

static void close_made(struct made *m) {
    struct err e = {0};
    weights_close(m->weights);
    safetensors_close(m->ref);
    worked(file_remove_tree(m->dir, &e), &e);
}

static void compare(const struct made *m, enum precision precision, unsigned how,
                    const char *ranks) {
    struct knobs k;
    struct verify_result r;
    struct err e = {0};
    knobs_init(&k);
    k.threads = 2, k.device = DEVICE_CPU, k.precision = precision;
    snprintf(k.lora_from, sizeof k.lora_from, "%s", m->adapter);
    worked(knobs_set_list(&k, ranks, "", false, SET_BY_RECIPE, &e), &e);
    const int rc = verify_folder(m->base, &k, how, &r, &e);
    if (rc != 0)
        print_message("%s\n", e.text);
    if (rc == 0 || rc == ERR_NUMERIC)
        verify_print(&r, stdout, rc != 0);
    fflush(stdout);
    assert_int_equal(rc, 0);
    // Loss, logits, greedy tokens, the norm, and a gradient for each tensor of the adapter.
    assert_int_equal(r.n_figures, 4 + adapter_param_count(&m->a, &m->shape));
    verify_free(&r);
}

static void run(const char *name, const char *targets, bool rslora) {
    char from[300];
    struct made m;
    snprintf(from, sizeof from, HAGGLE_SOURCE_DIR "/tests/reference/%s", name);
    open_made(&m, from, targets, rslora);
    make_base(&m);
    make_adapter(&m);
    make_reference(&m);
    compare(&m, PRECISION_FP32, VERIFY_REFERENCE, "");
    compare(&m, PRECISION_FP32, 0, "");
    compare(&m, PRECISION_FP32, VERIFY_CHECKING, "");
    compare(&m, PRECISION_BF16, 0, "");
    if (safetensors_find(m.ref, "tokens")->dims[0] % 2 == 0) { // a sequence for each
        compare(&m, PRECISION_FP32, 0, "comm.engine=thread parallel.data=2");
        compare(&m, PRECISION_FP32, 0, "comm.engine=thread parallel.data=2 zero.stage=2");
    }
    close_made(&m);
}

static void test_all_layers(void **state) {
    (void)state;
    run("gpt2-odd", "", false);
    run("llama3-scaled", "", true);
    run("llama-bias", "", false);
    run("qwen2", "", false);
    run("qwen3", "", true);
}

static void test_some_layers(void **state) {
    (void)state;
    run("gpt2-odd", "attn.c_proj,c_fc", true);
    run("gpt2-odd", "c_attn", false);
    run("llama3-scaled", "q_proj,v_proj", false);
    run("qwen3", "k_proj,down_proj", true);
    run("qwen2", "mlp", false);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_layers),
        cmocka_unit_test(test_some_layers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
