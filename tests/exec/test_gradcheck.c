// test_gradcheck.c - compares gradients of whole models with central differences of the loss, in
// float64. It covers every family, with odd vocabularies, widths, head counts and lengths, masked
// targets, several documents per row and several micro-batches. It needs no reference data.
#include "backend/cpu/cpu.h"
#include "base/rng.h"
#include "exec/exec.h"
#include "program/apply.h"
#include "program/check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

struct model { // one shape at work in float64
    struct model_shape shape;
    struct program *p;
    struct layout layout;
    struct mem *mem;
    struct backend *backend;
    struct executor *x;
    int64_t rows; // B*T of a micro-batch
    int micro;
    int32_t *tokens, *targets, *positions, *doc_start; // [micro][rows]
    int64_t trained;
};

static void make_batch(struct model *m, int64_t batch, int64_t seq, uint64_t seed) {
    size_t n = (size_t)(m->rows * m->micro);
    m->tokens = calloc(4 * n, sizeof *m->tokens);
    assert_non_null(m->tokens);
    m->targets = m->tokens + n, m->positions = m->targets + n, m->doc_start = m->positions + n;
    m->trained = 0;
    (void)batch;
    for (size_t i = 0; i < n; i++) {
        int64_t t = (int64_t)i % seq,
                cut = seq > 4 ? seq / 2 : 0; // two documents per row if there is room
        int64_t start = cut && t >= cut ? cut : 0;
        m->tokens[i] = (int32_t)rng_below(seed, 1, i, (uint64_t)m->shape.vocab);
        bool masked = rng_below(seed, 3, i, 4) == 0 && i + 1 < n;
        m->targets[i] = masked ? -1 : (int32_t)rng_below(seed, 2, i, (uint64_t)m->shape.vocab);
        m->positions[i] = (int32_t)(t - start);
        m->doc_start[i] = (int32_t)start;
        m->trained += !masked;
    }
}

static int feed(void *arg, int micro, struct exec_batch *out, struct err *e) {
    const struct model *m = arg;
    int64_t at = m->rows * micro;
    (void)e;
    *out =
        (struct exec_batch){m->tokens + at, m->targets + at, m->positions + at, m->doc_start + at};
    return 0;
}

static void open_built(struct model *m, struct model_shape shape, int64_t batch, int64_t seq,
                       int micro, const struct chosen *chosen, bool fused, bool teacher) {
    struct err e = {0};
    *m = (struct model){.shape = shape, .rows = batch * seq, .micro = micro};
    struct apply a = {.build = {.kind = BUILD_TRAIN,
                                .shape = &m->shape,
                                .batch = batch,
                                .seq = seq,
                                .real = DTYPE_F64,
                                .teacher = teacher,
                                .keep_gradients = true},
                      .only_gradients = teacher,
                      .micro_batches = micro,
                      .fuse = {fused, fused, fused, fused},
                      .fuse_qkv = fused,
                      .chosen = *chosen};
    if (model_shape_check(&m->shape, &e) != 0 || apply_program(&m->p, "train", &a, &e) != 0 ||
        layout_set(&m->p, 1, &m->layout, &e) != 0 ||
        check_layout(m->p, m->layout.arena_bytes, &e) != 0 || mem_open(&m->mem, &e) != 0 ||
        cpu_reference_open(&m->backend, m->mem, &e) != 0 ||
        exec_open(
            &m->x,
            &(struct exec_options){
                .programs = &m->p, .n_programs = 1, .layout = &m->layout, .backend = m->backend},
            &e) != 0)
        fail_msg("%s: %s", shape.name, e.text);
    for (int t = 0; t < m->p->n_tensors; t++) {
        const struct tensor *w = &m->p->tensors[t];
        double *at = exec_host_address(m->x, 0, t);
        // Larger than a real init, and nothing at 0 or 1, so that every term of every gradient
        // matters.
        bool fill = w->cls == CLASS_WEIGHT && program_logical(m->p, t);
        for (int64_t i = 0; fill && i < tensor_elements(w); i++)
            at[i] = 0.3 * rng_normal(7, (uint64_t)t, (uint64_t)i) + (w->rank == 1 ? 0.8 : 0.0);
    }
    int freq = program_find(m->p, NAME_INV_FREQ);
    if (freq >= 0)
        model_rope_frequencies(&m->shape, exec_host_address(m->x, 0, freq));
    make_batch(m, batch, seq, 11);
}

static void open_model(struct model *m, struct model_shape shape, int64_t batch, int64_t seq,
                       int micro, const struct chosen *chosen, bool fused) {
    open_built(m, shape, batch, seq, micro, chosen, fused, false);
}

static void close_model(struct model *m) {
    exec_close(m->x);
    m->backend->close(m->backend);
    mem_close(m->mem);
    program_free(m->p);
    free(m->tokens);
}

// One turn with learning rate 0: computes loss and gradients, leaves the weights unchanged.
static double loss_of(struct model *m) {
    struct err e = {0};
    double *hyper = exec_host_address(m->x, 0, program_find(m->p, NAME_HYPER));
    double *results = exec_host_address(m->x, 0, program_find(m->p, NAME_RESULTS));
    memset(hyper, 0, HYPER_COUNT * sizeof *hyper);
    hyper[HYPER_BIAS1] = hyper[HYPER_BIAS2] = 1, hyper[HYPER_EPS] = 1e-8;
    hyper[HYPER_LOSS_FACTOR] = 1.0 / (double)m->trained;
    if (exec_run(m->x, 0, feed, m, NULL, &e) != 0)
        fail_msg("%s", e.text);
    assert_int_equal((int64_t)results[RESULT_TOKENS], m->trained);
    return results[RESULT_LOSS_SUM] / (double)m->trained;
}

static void check_tensor(struct model *m, int t, double *worst) {
    const struct tensor *w = &m->p->tensors[t];
    int64_t n = tensor_elements(w), probes = n < 12 ? n : 12;
    double *at = exec_host_address(m->x, 0, t), *g = exec_host_address(m->x, 0, w->grad);
    double *kept = malloc((size_t)n * sizeof *kept), largest = 0;
    assert_non_null(kept);
    loss_of(m);
    memcpy(kept, g, (size_t)n * sizeof *kept);
    for (int64_t i = 0; i < n; i++)
        largest = fabs(kept[i]) > largest ? fabs(kept[i]) : largest;
    for (int64_t k = 0; k < probes; k++) {
        int64_t i = probes == n ? k : (int64_t)rng_below(5, (uint64_t)t, (uint64_t)k, (uint64_t)n);
        double was = at[i], h = 1e-5;
        at[i] = was + h;
        double up = loss_of(m);
        at[i] = was - h;
        double down = loss_of(m);
        at[i] = was;
        double numeric = (up - down) / (2 * h), off = fabs(numeric - kept[i]);
        // Central differences in float64 have a rounding error of about 1e-16/h and an error of
        // order h^2 from curvature. An absolute difference of 1e-10 is noise.
        double bound = 1e-6 * largest + 2e-9;
        if (off > bound)
            fail_msg("%s: d loss / d %s[%lld] is %.12g, differences say %.12g", m->shape.name,
                     w->name, (long long)i, kept[i], numeric);
        *worst = off / (largest + 1e-12) > *worst ? off / (largest + 1e-12) : *worst;
    }
    free(kept);
}

static void check_built(struct model_shape shape, int64_t batch, int64_t seq, int micro,
                        const struct chosen *chosen, bool fused, bool teacher) {
    struct model m;
    double worst = 0;
    int checked = 0;
    open_built(&m, shape, batch, seq, micro, chosen, fused, teacher);
    for (int64_t i = 0; teacher && i < m.rows * m.shape.vocab; i++)
        ((double *)exec_host_address(m.x, 0, program_find(m.p, NAME_TEACHER)))[i] =
            2 * rng_normal(9, 1, (uint64_t)i);
    for (int t = 0; t < m.p->n_tensors; t++)
        if (m.p->tensors[t].cls == CLASS_WEIGHT && m.p->tensors[t].grad >= 0 &&
            program_logical(m.p, t)) {
            check_tensor(&m, t, &worst);
            checked++;
        }
    print_message("%-12s %d x %d x %d%s%s: %d tensors, worst %.1e\n", shape.name, (int)batch,
                  (int)seq, micro, chosen_has_adapter(chosen) ? " LoRA" : "",
                  fused ? "" : " unfused", checked, worst);
    assert_true(checked > 0);
    close_model(&m);
}

static void check_gradients(struct model_shape shape, int64_t batch, int64_t seq, int micro,
                            const struct chosen *chosen, bool fused) {
    check_built(shape, batch, seq, micro, chosen, fused, false);
}

static void check_chosen(struct model_shape shape, int64_t batch, int64_t seq, int micro,
                         const struct chosen *chosen) {
    check_gradients(shape, batch, seq, micro, chosen, true);
    check_gradients(shape, batch, seq, micro, chosen, false);
}

// All weights train.
static void check_model(struct model_shape shape, int64_t batch, int64_t seq, int micro) {
    check_chosen(shape, batch, seq, micro, &(struct chosen){0});
}

static struct model_shape gpt2(void) {
    return (struct model_shape){.name = "gpt2",
                                .family = FAMILY_GPT2,
                                .vocab = 37,
                                .width = 15,
                                .layers = 2,
                                .heads = 3,
                                .kv_heads = 3,
                                .head_dim = 5,
                                .ffn = 22,
                                .max_positions = 9,
                                .tied = true,
                                .norm = NORM_LAYER,
                                .act = ACT_GELU_TANH,
                                .norm_eps = 1e-5f,
                                .learned_positions = true,
                                .qkv_bias = true,
                                .out_bias = true,
                                .mlp_bias = true,
                                .packed_qkv = true,
                                .in_out_weights = true,
                                .init_std = 0.02f,
                                .bos_id = -1,
                                .eos_id = -1};
}

static struct model_shape llama(void) {
    return (struct model_shape){.name = "llama",
                                .family = FAMILY_LLAMA,
                                .vocab = 29,
                                .width = 11,
                                .layers = 2,
                                .heads = 4,
                                .kv_heads = 2,
                                .head_dim = 6,
                                .ffn = 13,
                                .max_positions = 64,
                                .norm = NORM_RMS,
                                .act = ACT_SWIGLU,
                                .norm_eps = 1e-5f,
                                .rope = {.theta = 10000},
                                .init_std = 0.02f,
                                .bos_id = -1,
                                .eos_id = -1};
}

static void test_gpt2(void **state) {
    (void)state;
    struct model_shape s = gpt2();
    check_model(s, 2, 7, 1);
    check_model(s, 1, 9, 2);
    check_model(s, 3, 1, 1);
    s.act = ACT_GELU_ERF, s.scale_by_layer = true, s.tied = false;
    check_model(s, 2, 5, 1);
    s.act = ACT_RELU, s.unscaled_attention = true;
    check_model(s, 1, 6, 1);
}

static void test_llama(void **state) {
    (void)state;
    struct model_shape s = llama();
    check_model(s, 2, 7, 1); // untied, grouped heads, head_dim independent of width
    s.tied = true;
    s.rope = (struct model_rope){.theta = 500,
                                 .llama3 = true,
                                 .factor = 8,
                                 .low_freq_factor = 1,
                                 .high_freq_factor = 4,
                                 .original_max_positions = 16};
    check_model(s, 1, 8, 3);
    s.qkv_bias = s.out_bias = s.mlp_bias = true;
    check_model(s, 2, 3, 1);
}

static void test_qwen(void **state) {
    (void)state;
    struct model_shape s = llama();
    snprintf(s.name, sizeof s.name, "qwen2");
    s.family = FAMILY_QWEN2, s.qkv_bias = true, s.tied = true;
    check_model(s, 2, 6, 1);
    snprintf(s.name, sizeof s.name, "qwen3");
    s.family = FAMILY_QWEN3, s.qkv_bias = false, s.qk_norm = true, s.heads = 3, s.kv_heads = 1,
    s.head_dim = 4;
    check_model(s, 2, 7, 2);
    s.tied = false, s.vocab = 1;
    check_model(s, 1, 5, 1);
}

// Adapters with dropout, whose draws do not change from turn to turn; some weights in full beside
// them, some frozen.
static void test_chosen(void **state) {
    (void)state;
    const struct adapter all = {.rank = 3, .alpha = 2.1},
                         some = {.rank = 2, .alpha = 3, .dropout = 0.3, .targets = "v_proj,mlp"},
                         gpt = {.rank = 2, .alpha = 1.4, .dropout = 0.2, .rslora = true};
    check_chosen(llama(), 2, 6, 2, &(struct chosen){.adapter = &all});
    check_chosen(llama(), 2, 6, 2, &(struct chosen){&some, "norm,layers.1.mlp", "lora_A"});
    check_chosen(llama(), 1, 7, 1, &(struct chosen){NULL, NULL, "layers.0,embed_tokens"});
    check_chosen(gpt2(), 1, 5, 1, &(struct chosen){.adapter = &all});
    check_chosen(gpt2(), 2, 5, 2, &(struct chosen){&gpt, "wpe,ln_2.bias", "c_proj.lora_B"});
    check_chosen(gpt2(), 1, 5, 1, &(struct chosen){NULL, NULL, "ln_1.weight,c_attn,wte"});
}

// The divergence from a teacher's logits, in the program that ends with the gradients.
static void test_teacher(void **state) {
    (void)state;
    const struct chosen all = {0};
    check_built(gpt2(), 2, 5, 1, &all, true, true);
    check_built(llama(), 1, 6, 1, &all, false, true);
    check_built(llama(), 2, 6, 1, &all, true, true);
}

// The same samples as one micro-batch of 4 and as 4 of 1 give the same loss and the same gradients.
static void test_accumulation(void **state) {
    (void)state;
    struct model whole, split;
    open_model(&whole, llama(), 4, 6, 1, &(struct chosen){0}, true);
    open_model(&split, llama(), 1, 6, 4, &(struct chosen){0}, true);
    double a = loss_of(&whole), b = loss_of(&split);
    assert_true(fabs(a - b) <= 1e-14 * fabs(a));
    for (int t = 0; t < whole.p->n_tensors; t++) {
        const struct tensor *w = &whole.p->tensors[t];
        if (w->cls != CLASS_WEIGHT || w->grad < 0)
            continue;
        int other = program_find(split.p, w->name);
        double *x = exec_host_address(whole.x, 0, w->grad),
               *y = exec_host_address(split.x, 0, split.p->tensors[other].grad);
        double diff = 0, norm = 0;
        for (int64_t i = 0; i < tensor_elements(w); i++)
            diff += (x[i] - y[i]) * (x[i] - y[i]), norm += x[i] * x[i];
        assert_true(sqrt(diff) <= 1e-12 * sqrt(norm));
    }
    close_model(&whole);
    close_model(&split);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt2),         cmocka_unit_test(test_llama),
        cmocka_unit_test(test_qwen),         cmocka_unit_test(test_chosen),
        cmocka_unit_test(test_accumulation), cmocka_unit_test(test_teacher),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
