// test_lora.c - adapters and frozen weights: the base stays as it is, an adapter computes what the
// merged weights compute, nothing is made for what does not train, joined products compute what
// several do, dropout draws the same whichever way a step is divided, and a checkpoint belongs to
// its base.
#include "ranks_job.h"
#include "steps.h"

#include "backend/dropout.h"
#include "train/snapshot.h"

// ---------------------------------------------------------------- sessions

static void set(struct knobs *k, const char *words) {
    char copy[300], *rest = copy;
    struct err e = {0};
    snprintf(copy, sizeof copy, "%s", words);
    for (char *one; (one = strsep(&rest, " ")) != NULL;)
        if (*one)
            assert_worked(knobs_set_assignment(k, one, SET_BY_COMMAND_LINE, &e), &e);
}

static void open_words(struct at_work *s, const char *model, const char *words) {
    struct knobs k;
    struct err e = {0};
    steps_knobs(&k, model, 2, 2, 12);
    k.cpu_blas = CPU_BLAS_BUILTIN;
    set(&k, words);
    assert_worked(steps_open(s, &k, false, &e), &e);
}

static void take(struct at_work *s, int steps, double losses[]) {
    for (int n = 0; n < steps; n++)
        losses[n] = steps_take(s, n);
}

// A small GPT-2, which stores matrices [in, out] and has one for queries, keys and values.
static void make_gpt2(const struct scratch *x, char folder[320]) {
    struct model_shape s;
    struct err e = {0};
    snprintf(folder, 320, "%s/gpt2", x->dir);
    assert_worked(model_shape_builtin(&s, "gpt2-124m", &e), &e);
    s.vocab = 97, s.width = 24, s.layers = 2, s.heads = s.kv_heads = 3, s.head_dim = 8;
    s.ffn = 40, s.max_positions = 32, s.bos_id = s.eos_id = 0;
    write_model(folder, &s, POISON_NONE);
}

static const char *model_of(const struct scratch *x, int which, char folder[320]) {
    if (which == 0)
        return x->nano;
    make_gpt2(x, folder);
    return folder;
}

static bool is_same(const struct at_work *a, const struct at_work *b, const char *name) {
    const struct tensor *t;
    const void *x = steps_tensor(a, name, &t), *y = steps_tensor(b, name, NULL);
    return memcmp(x, y, (size_t)tensor_elements(t) * dtype_bytes(t->dtype)) == 0;
}

// ---------------------------------------------------------------- what trains

// After steps, exactly the tensors that train differ from those of a session that took none.
static void check_moves(const char *model, const char *words) {
    struct at_work a, b;
    struct model_param p;
    double losses[3];
    bool pair;
    int moved = 0, same = 0;
    open_words(&a, model, words);
    open_words(&b, model, words);
    take(&a, 3, losses);
    const struct chosen c = plan_chosen(&a.plan);
    for (int64_t i = 0; plan_param_at(&a.plan, i, &p, &pair); i++) {
        const bool trains = chosen_trains(&c, p.name, pair);
        // A norm's weight of 1 may round to where it was; a matrix does not.
        if (!trains && !is_same(&a, &b, p.name))
            fail_msg("%s: the frozen %s has changed", words, p.name);
        if (trains && p.matrix && is_same(&a, &b, p.name))
            fail_msg("%s: %s has not changed", words, p.name);
        moved += trains, same += !trains;
    }
    assert_true(moved > 0 && same > 0);
    at_work_close(&a);
    at_work_close(&b);
}

static void test_base_stays(void **state) {
    const struct scratch *x = *state;
    static const char *const words[] = {
        "lora.rank=2",
        "lora.rank=2 lora.targets=attention precision=bf16",
        "lora.rank=3 lora.rslora=true lora.dropout=0.2 optim.state=int8 recompute.mode=full",
        "lora.rank=2 lora.targets=mlp fuse.qkv=false fuse.act=false",
    };
    char folder[320];
    for (int m = 0; m < 2; m++)
        for (size_t i = 0; i < sizeof words / sizeof *words; i++)
            check_moves(model_of(x, m, folder), words[i]);
    check_moves(x->nano, "lora.rank=2 lora.targets=v_proj train.also=embed_tokens,layers.1.mlp");
    check_moves(x->nano, "lora.rank=2 train.freeze=lora_A");
    check_moves(x->nano, "train.freeze=embed_tokens,layers.0");
    check_moves(folder, "lora.rank=2 train.also=wpe,ln_f precision=bf16");
    check_moves(folder, "lora.rank=2 lora.targets=attn.c_proj train.also=ln_1.bias");
    check_moves(folder, "train.freeze=h.0,wte");
}

// ---------------------------------------------------------------- merged weights

static float *weight_of(const struct at_work *s, const char *name, const struct tensor **t) {
    return steps_tensor(s, name, t);
}

// W += scale B A, in the layout of W.
static void merge(const struct at_work *from, struct at_work *to) {
    const struct adapter *a = &from->plan.adapter;
    const struct model_shape *shape = &from->plan.shape;
    const int64_t r = a->rank;
    const double scale = adapter_scale(a);
    struct model_param p, pa, pb;
    int merged = 0;
    for (int64_t i = 0; model_param_at(shape, i, &p); i++) {
        int64_t in, out;
        if (!adapter_targets(a, shape, &p))
            continue;
        adapter_features(shape, &p, &in, &out);
        adapter_param(a, shape, &p, false, &pa);
        adapter_param(a, shape, &p, true, &pb);
        const float *A = weight_of(from, pa.name, NULL), *B = weight_of(from, pb.name, NULL);
        const struct tensor *t;
        float *W = weight_of(to, p.name, &t);
        for (int64_t o = 0; o < out; o++)
            for (int64_t k = 0; k < in; k++) {
                double sum = 0;
                for (int64_t j = 0; j < r; j++)
                    sum += (double)B[o * r + j] * A[j * in + k];
                W[shape->in_out_weights ? k * t->ld + o : o * t->ld + k] += (float)(scale * sum);
            }
        merged++;
    }
    assert_true(merged > 0);
}

static double validate_loss(struct at_work *s) {
    double results[RESULT_COUNT];
    struct err e = {0};
    struct steps_batch b = steps_make_batch(s, 77);
    b.rows = 0; // always its first rows
    assert_worked(session_run(s->s, PLAN_EVAL, steps_feed, &b, NULL, &e), &e);
    assert_worked(session_get_results(s->s, results, NULL, &e), &e);
    free(b.tokens);
    return results[RESULT_LOSS_SUM] / results[RESULT_TOKENS];
}

static void test_merged(void **state) {
    const struct scratch *x = *state;
    static const char *const words[] = {"lora.rank=2 lora.alpha=32",
                                        "lora.rank=3 lora.targets=attention lora.rslora=true",
                                        "lora.rank=2 lora.dropout=0.3 lora.alpha=8"};
    char folder[320];
    for (int m = 0; m < 2; m++)
        for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
            struct at_work a, b;
            double losses[4];
            open_words(&a, model_of(x, m, folder), words[i]);
            open_words(&b, model_of(x, m, folder), "");
            const double base = validate_loss(&b), first = validate_loss(&a);
            assert_true(first == base); // B is 0
            take(&a, 4, losses);
            merge(&a, &b);
            const double with = validate_loss(&a), merged = validate_loss(&b);
            if (!(fabs(with - merged) < 1e-5 * merged) || fabs(with - base) < 1e-4 * base)
                fail_msg("%s: the loss is %.9g with the adapter, %.9g merged, %.9g without",
                         words[i], with, merged, base);
            at_work_close(&a);
            at_work_close(&b);
        }
}

// ---------------------------------------------------------------- what is not made

static int count_backward(const struct at_work *s, enum op_kind kind, int layer) {
    const struct program *p = plan_program(&s->plan, PLAN_TRAIN);
    int n = 0;
    for (int i = 0; i < p->n_segments; i++)
        for (int k = 0; p->segments[i].role == SEGMENT_BACKWARD && k < p->segments[i].n_ops; k++) {
            const struct op *op = &p->segments[i].ops[k];
            n += !(op->flags & OP_AGAIN) && (kind == OP_COUNT || op->kind == kind) &&
                 op->layer == layer;
        }
    return n;
}

static void plan_words(struct at_work *s, const char *model, const char *words) {
    struct knobs k;
    struct err e = {0};
    steps_knobs(&k, model, 2, 1, 12);
    set(&k, words);
    struct plan_split split;
    assert_worked(plan_split_of(&k, &split, &e), &e);
    const struct plan_options o = {
        .knobs = &k, .programs = {PLAN_TRAIN, PLAN_EVAL}, .real = DTYPE_F32, .split = &split};
    assert_worked(at_work_plan(s, &o, &e), &e);
}

// Nothing is computed below the lowest tensor that trains.
static void test_nothing_below(void **state) {
    const struct scratch *x = *state;
    struct at_work s;
    plan_words(&s, x->nano, "lora.rank=2 lora.targets=mlp");
    assert_int_equal(count_backward(&s, OP_ATTENTION_BWD, 0), 0);
    assert_int_equal(count_backward(&s, OP_ATTENTION_BWD, 1), 1);
    assert_int_equal(count_backward(&s, OP_EMBED_DW, -1), 0);
    // Of layer 0's products the backward has the adapters', and the inputs of down_proj's.
    assert_int_equal(count_backward(&s, OP_NORM_DX, 0) + count_backward(&s, OP_NORM_BWD, 0), 0);
    at_work_close(&s);
    plan_words(&s, x->nano, "lora.rank=2 lora.targets=attention");
    assert_int_equal(count_backward(&s, OP_NORM_DX, 0), 1); // of the norm before the MLP
    // q, k, v: one product for the three A's, and one for each B. o: two more.
    assert_int_equal(count_backward(&s, OP_MATMUL_DW, 0), 6);
    at_work_close(&s);
    plan_words(&s, x->nano, "train.freeze=embed_tokens,layers.0");
    assert_int_equal(count_backward(&s, OP_COUNT, 0), 0);
    assert_true(count_backward(&s, OP_COUNT, 1) > 0);
    at_work_close(&s);
}

// ---------------------------------------------------------------- one product for several A's

static int count_ops(const struct at_work *s, enum op_kind kind) {
    const struct program *p = plan_program(&s->plan, PLAN_TRAIN);
    int n = 0;
    for (int i = 0; i < p->n_segments; i++)
        for (int k = 0; k < p->segments[i].n_ops; k++)
            n += p->segments[i].ops[k].kind == kind;
    return n;
}

// How many products fewer a layer has with fuse.qkv, in the forward. Of those, two are not the
// adapter's: q, k and v.
static void test_joined_ops(void **state) {
    const struct scratch *x = *state;
    static const struct {
        const char *words;
        int fewer, fewer_dw;
    } cases[] = {
        {"lora.rank=2", 2 + 3, 3}, // A's: two for q, k and v; one for gate and up
        {"lora.rank=2 precision=bf16 recompute.mode=full", 2 + 3, 3},
        {"lora.rank=2 lora.targets=attention", 2 + 2, 2},
        {"lora.rank=2 lora.targets=up_proj,v_proj,q_proj", 2 + 1, 1},
        {"lora.rank=2 lora.targets=k_proj,o_proj,down_proj,gate_proj", 2, 0},
        {"lora.rank=2 lora.dropout=0.1", 2, 0},               // each has its own input
        {"lora.rank=2 train.freeze=k_proj.lora_A", 2 + 2, 2}, // q with v, gate with up
        {"lora.rank=2 train.freeze=lora_A", 2 + 3, 0},        // none has a gradient
        {"lora.rank=2 train.freeze=q_proj.lora_B", 2 + 2, 2},
        {"lora.rank=3 ranks=2 zero.stage=1", 2 + 3, 3},
        {"lora.rank=3 ranks=2 zero.stage=1 optim.state=int8", 2, 0}, // 48 elements
        {"lora.rank=3 ranks=2 optim.state=int8", 2 + 3, 3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct at_work on, off;
        char words[300];
        snprintf(words, sizeof words, "%s fuse.qkv=false", cases[i].words);
        plan_words(&on, x->nano, cases[i].words);
        plan_words(&off, x->nano, words);
        const int layers = (int)on.plan.shape.layers;
        const bool again = strstr(words, "recompute") != NULL;
        const int fewer = count_ops(&off, OP_MATMUL) - count_ops(&on, OP_MATMUL),
                  fewer_dw = count_ops(&off, OP_MATMUL_DW) - count_ops(&on, OP_MATMUL_DW);
        if ((again ? fewer < cases[i].fewer * layers : fewer != cases[i].fewer * layers) ||
            fewer_dw != cases[i].fewer_dw * layers)
            fail_msg("%s: %d products fewer, and %d for gradients", cases[i].words, fewer,
                     fewer_dw);
        // The tensors that people and the optimizer know are the same. What this rank has of them
        // depends on how the buckets are filled.
        const bool alone = strstr(words, "ranks=") == NULL;
        assert_int_equal(count_ops(&off, OP_ADAMW), count_ops(&on, OP_ADAMW));
        assert_int_equal(count_ops(&off, OP_GRAD_SQNORM), count_ops(&on, OP_GRAD_SQNORM));
        assert_true(on.plan.flops.model == off.plan.flops.model);
        for (int c = CLASS_WEIGHT; alone && c <= CLASS_ACTIVATION; c++) {
            const uint64_t a = steps_class_bytes(&on, (enum tensor_class)c),
                           b = steps_class_bytes(&off, (enum tensor_class)c);
            if (a != b && (!again || c != CLASS_ACTIVATION))
                fail_msg("%s: %s have %llu bytes, apart %llu", cases[i].words,
                         tensor_class_name((enum tensor_class)c), (unsigned long long)a,
                         (unsigned long long)b);
        }
        at_work_close(&on);
        at_work_close(&off);
    }
}

static void write_files(struct at_work *s, const struct scratch *x, const char *name,
                        struct manifest_file files[MANIFEST_FILES], char dir[400]) {
    struct err e = {0};
    snprintf(dir, 400, "%s/joined-%s", x->dir, name);
    assert_worked(file_make_dirs(dir, &e), &e);
    assert_worked(snapshot_write(s->s, dir, NULL, files, &e), &e);
}

// Steps with one product and with several: the first loss has the same bits, later ones differ by
// the order of the sum for x's gradient. A checkpoint is the same file either way.
static void check_joined(const struct scratch *x, const char *words, double most) {
    static const int kinds[] = {MANIFEST_MODEL, MANIFEST_OPTIMIZER};
    struct manifest_file from[MANIFEST_FILES], again[MANIFEST_FILES];
    struct err e = {0};
    struct at_work on, off;
    double a[5], b[5], next[2], worst = 0;
    char other[300], dir[400], copy[400];
    snprintf(other, sizeof other, "%s fuse.qkv=false", words);
    open_words(&on, x->nano, words);
    open_words(&off, x->nano, other);
    take(&on, 5, a), take(&off, 5, b);
    assert_memory_equal(a, b, sizeof *a);
    for (int i = 0; i < 5; i++)
        worst = fmax(worst, fabs(a[i] / b[i] - 1));
    print_message("%s: losses within %.1e\n", words, worst);
    assert_true(worst <= most && a[4] != a[0]);
    write_files(&on, x, "on", from, dir);
    assert_worked(snapshot_read(off.s, dir, &e), &e);
    write_files(&off, x, "off", again, copy);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(from[kinds[i]].bytes, again[kinds[i]].bytes);
        assert_string_equal(from[kinds[i]].hash, again[kinds[i]].hash);
    }
    next[0] = steps_take(&on, 5), next[1] = steps_take(&off, 5);
    assert_memory_equal(&next[0], &next[1], sizeof *next);
    at_work_close(&on);
    at_work_close(&off);
}

static void test_joined(void **state) {
    check_joined(*state, "lora.rank=3", 1e-6);
    check_joined(*state, "lora.rank=2 train.also=norm optim.state=int8 recompute.mode=full", 1e-6);
    check_joined(*state, "lora.rank=2 precision=bf16 optim.state=bf16", 5e-4);
    check_joined(*state, "lora.rank=2 train.freeze=k_proj.lora_A", 1e-6);
}

// ---------------------------------------------------------------- bytes

static uint64_t elements_that_train(const struct at_work *s, bool matrices_of_adapter) {
    const struct chosen c = plan_chosen(&s->plan);
    struct model_param p;
    uint64_t sum = 0;
    bool pair;
    for (int64_t i = 0; plan_param_at(&s->plan, i, &p, &pair); i++)
        if (chosen_trains(&c, p.name, pair) && (!matrices_of_adapter || pair))
            sum += (uint64_t)(p.dims[0] * (p.rank > 1 ? p.dims[1] : 1));
    return sum;
}

// Gradients, moments and masters are those of what trains, to the byte.
static void test_bytes(void **state) {
    const struct scratch *x = *state;
    static const struct {
        const char *words;
        uint64_t state, weight; // bytes of an element
    } cases[] = {{"lora.rank=4", 8, 4},
                 {"lora.rank=4 precision=bf16", 12, 2},
                 {"lora.rank=4 precision=bf16 train.also=embed_tokens,norm", 12, 2},
                 {"lora.rank=4 optim.state=bf16", 4, 4},
                 {"train.freeze=layers.0 precision=bf16", 12, 2}};
    struct at_work s, whole;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        plan_words(&s, x->nano, cases[i].words);
        const uint64_t n = elements_that_train(&s, false), pairs = elements_that_train(&s, true);
        assert_true(n > 0 && (int64_t)n == plan_trained_elements(&s.plan));
        assert_int_equal(steps_class_bytes(&s, CLASS_OPTIMIZER), cases[i].state * n);
        assert_int_equal(steps_class_bytes(&s, CLASS_GRADIENT), 4 * n);
        assert_int_equal(steps_class_bytes(&s, CLASS_WEIGHT),
                         cases[i].weight * (pairs + (uint64_t)model_total_elements(&s.plan.shape)));
        at_work_close(&s);
    }
    plan_words(&whole, x->nano, "");
    plan_words(&s, x->nano, "lora.rank=2 logits.chunk=5 recompute.mode=selective");
    assert_true(plan_arena_bytes(&s.plan) < plan_arena_bytes(&whole.plan));
    at_work_close(&s);
    at_work_close(&whole);
}

// Under observation each op writes its outputs only, and the plan is what is written.
static void test_observed(void **state) {
    const struct scratch *x = *state;
    static const char *const words[] = {
        "lora.rank=2 lora.dropout=0.25",
        "lora.rank=2 lora.dropout=0.25 recompute.mode=full precision=bf16 logits.chunk=7",
        "lora.rank=3 fuse.qkv=false fuse.act=false fuse.norm=false fuse.optim=false",
        "lora.rank=2 lora.targets=v_proj,down_proj train.also=embed_tokens "
        "recompute.mode=selective",
        "train.freeze=layers.0,embed_tokens optim.state=int8"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        struct knobs k;
        struct err e = {0};
        struct at_work s, plain;
        double a[3], b[3];
        steps_knobs(&k, x->nano, 2, 2, 12);
        k.cpu_blas = CPU_BLAS_BUILTIN;
        set(&k, words[i]);
        const struct plan_options o = {.knobs = &k, .programs = {PLAN_TRAIN}, .real = DTYPE_F32};
        assert_worked(at_work_plan(&s, &o, &e), &e);
        assert_worked(at_work_start(&s, &(struct engine_options){.checking = true}, &e), &e);
        open_words(&plain, x->nano, words[i]);
        take(&s, 3, a), take(&plain, 3, b);
        assert_memory_equal(a, b, sizeof a);
        assert_int_equal(exec_checked(s.s->exec)->used_bytes, s.plan.layout.arena_bytes);
        at_work_close(&s);
        at_work_close(&plain);
    }
}

// ---------------------------------------------------------------- dropout

static void test_mask(void **state) {
    (void)state;
    enum { ROWS = 256, COLUMNS = 512 };
    static const double parts[] = {0.05, 0.1, 0.5, 0.9};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const struct dropout d = dropout_of(0x1234567890p3, 77, parts[i]),
                             other = dropout_of(0x1234567890p3, 78, parts[i]),
                             later = dropout_of(0x1234567891p3, 77, parts[i]);
        const double n = (double)ROWS * COLUMNS, sigma = sqrt(parts[i] * (1 - parts[i]) / n);
        double dropped = 0, sum = 0, both[4] = {0}; // with: the next row, column, op, step
        for (int r = 0; r < ROWS; r++) {
            const struct moments_key row = dropout_row(d, r), next = dropout_row(d, r + 1);
            for (int c = 0; c < COLUMNS; c++) {
                const float f = dropout_factor(d, row, c);
                assert_true(f == 0 || fabs((double)f * (1 - parts[i]) - 1) < 1e-6);
                dropped += f == 0, sum += (double)f;
                both[0] += f == 0 && dropout_factor(d, next, c) == 0;
                both[1] += f == 0 && dropout_factor(d, row, c + 1) == 0;
                both[2] += f == 0 && dropout_factor(other, dropout_row(other, r), c) == 0;
                both[3] += f == 0 && dropout_factor(later, dropout_row(later, r), c) == 0;
            }
        }
        assert_true(fabs(dropped / n - parts[i]) < 5 * sigma);
        assert_true(fabs(sum / n - 1) < 5 * sigma / (1 - parts[i]));
        for (int k = 0; k < 4; k++) // independent: as often as chance has it
            if (!(fabs(both[k] / n - parts[i] * parts[i]) < 6 * sigma))
                fail_msg("of %g, pair %d is dropped together in %g", parts[i], k, both[k] / n);
    }
}

static void test_dropout(void **state) {
    const struct scratch *x = *state;
    static const char *const same[] = {"recompute.mode=full", "recompute.mode=selective",
                                       "threads=1 logits.chunk=5"};
    char words[200];
    struct at_work a, b;
    double with[3], again[3], without[3];
    open_words(&a, x->nano, "lora.rank=2 lora.dropout=0.3");
    take(&a, 3, with);
    open_words(&b, x->nano, "lora.rank=2");
    take(&b, 3, without);
    assert_true(with[0] == without[0] && with[2] != without[2]); // B begins as 0
    at_work_close(&b);
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        snprintf(words, sizeof words, "lora.rank=2 lora.dropout=0.3 %s", same[i]);
        open_words(&b, x->nano, words);
        take(&b, 3, again);
        for (int n = 0; n < 3; n++)
            if (!(fabs(again[n] - with[n]) <= (i < 2 ? 0 : 1e-6) * with[n]))
                fail_msg("%s: loss %d is %.17g, else %.17g", same[i], n, again[n], with[n]);
        at_work_close(&b);
    }
    at_work_close(&a);
    // The same rows in other micro-batches draw the same.
    open_words(&b, x->nano, "lora.rank=2 lora.dropout=0.3 batch.micro=4 batch.accum=1");
    take(&b, 3, again);
    for (int n = 0; n < 3; n++)
        assert_true(fabs(again[n] - with[n]) < 2e-6 * with[n]);
    at_work_close(&b);
}

// ---------------------------------------------------------------- ranks

static void test_replicas(void **state) {
    static const char *const layouts[] = {
        "data=2 batch.accum=4", "data=4 batch.accum=2 zero=1", "data=2 batch.accum=4 zero=2",
        "data=4 batch.accum=2 zero=2 micro checking",
        "data=2 batch.accum=4 zero=1 late bucket=0 checking validates"};
    static const char *const chosen[] = {
        "lora.rank=2 lora.dropout=0.2", "lora.rank=3 lora.targets=q_proj,down_proj train.also=norm",
        "train.freeze=layers.0,embed_tokens", "lora.rank=2 optim.state=int8 precision=bf16",
        "lora.rank=3 train.freeze=layers.1.mlp.up_proj.lora_A"};
    struct knobs base, k;
    base_knobs(&base, *state, "tiny", 127, 3);
    for (size_t c = 0; c < sizeof chosen / sizeof *chosen; c++) {
        k = base;
        set(&k, chosen[c]);
        struct job *one = job_of(&k, "", 4);
        for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
            if (k.precision != PRECISION_FP32 && strstr(layouts[i], "micro"))
                continue;
            struct job *j = job_of(&k, layouts[i], 4);
            assert_near(j, one, layouts[i]);
            job_end(j);
        }
        job_end(one);
    }
    // Replicas that train apart: their means are the same on each, which job_of checks.
    k = base;
    set(&k, chosen[0]);
    job_end(job_of(&k, "data=2 batch.accum=4 every=2", 4));
}

// ---------------------------------------------------------------- checkpoints

static void init_lora(struct run *r, const struct scratch *s, const char *name, const char *words) {
    run_init(r, s, name);
    set(&r->knobs, words);
}

// Another value for the last element of the last weight.
static void change_base(const struct scratch *s) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/model.safetensors", s->nano);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, -1, SEEK_END), 0);
    assert_int_equal(fputc(0x3c, f), 0x3c);
    assert_int_equal(fclose(f), 0);
}

static void test_resume(void **state) {
    const struct scratch *s = *state;
    static const char words[] = "lora.rank=2 lora.dropout=0.2 train.also=norm precision=bf16 "
                                "optim.state=int8 save.keep=9";
    struct run whole, part;
    struct safetensors *st;
    struct err e = {0};
    init_lora(&whole, s, "whole", words);
    run_go(&whole);
    assert_ran(&whole);
    init_lora(&part, s, "part", words);
    part.stop_at = 3;
    run_go(&part);
    assert_int_equal(part.rc, ERR_STOPPED);
    run_again(&part);
    assert_ran(&part);
    assert_int_equal(part.first, 3);
    for (int i = 3; i < 6; i++)
        assert_true(part.losses[i] == whole.losses[i]);
    assert_same_file(step_file(whole.dir, 6, "adapter_model.safetensors"),
                     step_file(part.dir, 6, "adapter_model.safetensors"));
    assert_same_file(step_file(whole.dir, 6, "optimizer.safetensors"),
                     step_file(part.dir, 6, "optimizer.safetensors"));
    assert_false(file_exists(step_file(whole.dir, 6, "model.safetensors")));
    // The adapter and the last norm, in float32, and nothing else.
    assert_worked(safetensors_open(&st, step_file(whole.dir, 6, "adapter_model.safetensors"), &e),
                  &e);
    assert_int_equal(safetensors_count(st), 2 * 7 * 2 + 1);
    assert_non_null(
        safetensors_find(st, "base_model.model.model.layers.1.mlp.down_proj.lora_B.weight"));
    assert_int_equal(safetensors_find(st, "base_model.model.model.norm.weight")->dtype, DTYPE_F32);
    safetensors_close(st);
}

static void test_refused_resume(void **state) {
    const struct scratch *s = *state;
    static const struct {
        const char *words, *says;
    } other[] = {{"lora.rank=4", "lora.rank=2|lora.rank=4"},
                 {"lora.rank=2 lora.alpha=4", "lora.alpha=16|lora.alpha=4"},
                 {"lora.rank=2 train.also=norm", "train.also="},
                 {"lora.rank=2 lora.targets=mlp", "lora.targets=all|lora.targets=mlp"},
                 {"", "holds an adapter|trains a whole model"}};
    struct run r;
    char before[80];
    init_lora(&r, s, "refused", "lora.rank=2");
    run_go(&r);
    assert_ran(&r);
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        init_lora(&r, s, "refused", other[i].words);
        run_set(&r, "steps=8");
        run_go(&r);
        assert_failed(r.rc, ERR_MISMATCH, &r.e, other[i].says);
    }
    struct manifest m;
    struct err e = {0};
    assert_worked(manifest_read(&m, step_file(r.dir, 6, "manifest.json"), &e), &e);
    snprintf(before, sizeof before, "with weights %.8s", m.base);
    manifest_free(&m);
    change_base(s);
    init_lora(&r, s, "refused", "lora.rank=2");
    run_set(&r, "steps=8");
    run_go(&r);
    assert_failed(r.rc, ERR_MISMATCH, &r.e, "holds an adapter of");
    assert_failed(r.rc, ERR_MISMATCH, &r.e, before);
    assert_failed(r.rc, ERR_MISMATCH, &r.e, "but the base here is");
    // A built-in model is its name and seed.
    for (int seed = 1; seed <= 2; seed++) {
        init_lora(&r, s, "builtin", "model=tiny seq=16 lora.rank=2");
        r.knobs.seed = seed;
        r.knobs.steps = 2 + 2 * seed;
        run_go(&r);
        if (seed == 1)
            assert_ran(&r);
        else
            assert_failed(r.rc, ERR_MISMATCH, &r.e, "holds an adapter of 'tiny'");
    }
}

// ---------------------------------------------------------------- what is refused

static void test_refused(void **state) {
    const struct scratch *x = *state;
    static const struct {
        const char *words, *says;
    } cases[] = {
        {"lora.rank=2 lora.targets=q_proj,c_attn",
         "c_attn|accepted are all, attention, mlp, q_proj"},
        {"lora.rank=2 lora.targets=lm_head", "lm_head|no linear layer"},
        {"lora.rank=9", "rank 9|from 16 to 8 features"},
        {"train.also=norm", "train.also=norm|lora.rank is 0"},
        {"lora.rank=2 train.also=lm_head", "its head is the embedding"},
        {"lora.rank=2 train.also=head", "train.also=head|no weight of that name"},
        {"train.freeze=layers.7", "train.freeze=layers.7|no weight of that name"},
        {"train.freeze=model", "nothing to train"},
        {"lora.rank=2 train.also=norm train.freeze=model.norm", "both name 'model.norm.weight'"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct knobs k;
        struct err e = {0};
        struct at_work s;
        steps_knobs(&k, x->nano, 1, 1, 8);
        set(&k, cases[i].words);
        const struct plan_options o = {.knobs = &k, .programs = {PLAN_TRAIN}, .real = DTYPE_F32};
        const int rc = at_work_plan(&s, &o, &e);
        assert_failed(rc, ERR_USAGE, &e, cases[i].says);
        at_work_close(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_base_stays, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_merged, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_nothing_below, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_joined_ops, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_joined, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_bytes, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_observed, scratch_setup, scratch_teardown),
        cmocka_unit_test(test_mask),
        cmocka_unit_test_setup_teardown(test_dropout, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_replicas, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_resume, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_refused_resume, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_refused, scratch_setup, scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
