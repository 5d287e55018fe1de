// test_rooms.c - programs that the engine does not run yet. They must build, lay out, simulate,
// print and pass every check, which proves that the design has room for them. And every check must
// fail when the property it checks is broken.
#include "predict/predict.h"
#include "program/apply.h"
#include "program/check.h"
#include "program/layout.h"
#include "program/print.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { MAX_RANKS = 8 };

// Makes all stages alike: head and embedding of this shape cost almost nothing compared with a
// layer.
static struct model_shape even_shape(int64_t layers) {
    struct model_shape s;
    struct err e = {0};
    assert_int_equal(model_shape_builtin(&s, "tiny", &e), 0);
    s.layers = layers;
    s.vocab = 8;
    s.tied = true;
    return s;
}

static const struct hw_device device = {
    .name = "test", .matmul_flops = 1e12, .memory_bytes_per_s = 1e11, .memory_bytes = 1u << 30};
static const struct hw_link fast_link = {"fast", 1e15, 0}, slow_link = {"slow", 1e10, 1e-5};

struct world {
    struct program *ranks[MAX_RANKS];
    struct layout layouts[MAX_RANKS];
    int n;
};

static void build_world(struct world *w, struct apply a) {
    struct err e = {0};
    const int *size = a.ranks.mesh.size;
    w->n = mesh_world(&a.ranks.mesh);
    for (int r = 0; r < w->n; r++) {
        a.ranks.mesh = mesh_make(size[AXIS_DATA], size[AXIS_TENSOR], size[AXIS_PIPE], r);
        if (apply_program(&w->ranks[r], "train", &a, &e) != 0)
            fail_msg("rank %d: %s", r, e.text);
        if (layout_set(&w->ranks[r], 1, &w->layouts[r], &e) != 0)
            fail_msg("rank %d: %s", r, e.text);
        if (check_program(w->ranks[r], &e) != 0 ||
            check_layout(w->ranks[r], w->layouts[r].arena_bytes, &e) != 0)
            fail_msg("rank %d: %s", r, e.text);
        // The layout is compact: within 5 % of the largest sum of live tensors. (1F1B without
        // fusion, with two micro-batches in flight: 6.6 %, of which 1 % are tensors that were sent
        // and keep their bytes until their receiver has them.)
        const double limit = a.fuse.act ? 1.05 : 1.07;
        assert_true((double)w->ranks[r]->transient_bytes <=
                    limit * (double)w->ranks[r]->live_bytes);
    }
    if (check_world(w->ranks, w->n, &e) != 0)
        fail_msg("%s", e.text);
}

static void free_world(struct world *w) {
    for (int r = 0; r < w->n; r++)
        program_free(w->ranks[r]);
}

static double simulate(const struct world *w, const struct hw_link *link, double *idle_share) {
    struct prediction p;
    struct err e = {0};
    double idle = 0;
    if (predict_programs(w->ranks, w->n, &device, link, &p, &e) != 0)
        fail_msg("%s", e.text);
    for (int r = 0; r < p.n_ranks; r++)
        idle += p.ranks[r].idle_s;
    double seconds = p.seconds;
    if (idle_share)
        *idle_share = idle / (p.n_ranks * p.seconds);
    prediction_free(&p);
    return seconds;
}

static void print_all(const struct world *w, const char *must_show) {
    char *text = NULL;
    size_t bytes = 0;
    struct err e = {0};
    FILE *f = open_memstream(&text, &bytes);
    assert_non_null(f);
    for (int r = 0; r < w->n; r++) {
        assert_int_equal(program_print(w->ranks[r], f,
                                       &(struct print_options){.full = true, .tensors = true}, &e),
                         0);
        assert_int_equal(program_print(w->ranks[r], f, NULL, &e), 0);
    }
    fclose(f);
    assert_non_null(strstr(text, must_show));
    free(text);
}

static uint64_t class_bytes(const struct program *p, enum tensor_class c) {
    uint64_t n = 0;
    for (int i = 0; i < p->n_tensors; i++)
        if (p->tensors[i].cls == c && p->tensors[i].root < 0 && p->tensors[i].life == LIFE_RUN)
            n += p->tensors[i].bytes;
    return n;
}

static int count_ops(const struct program *p, enum op_kind kind) {
    int n = 0;
    for (int i = 0; i < p->n_order; i++) {
        const struct segment *s = &p->segments[p->order[i].segment];
        for (int k = 0; k < s->n_ops; k++)
            n += s->ops[k].kind == kind;
    }
    return n;
}

// Every test runs without and with fused qkv products.
static bool fused;

static struct apply training(const struct model_shape *s, int micro_batches) {
    return (struct apply){
        .build = {.kind = BUILD_TRAIN, .shape = s, .batch = 2, .seq = 64, .real = DTYPE_F32},
        .micro_batches = micro_batches,
        .fuse = {.norm = true, .act = true, .loss = true, .optim = true},
        .fuse_qkv = fused};
}

// Gradients are reduced after each micro-batch, as weights are gathered.
#define ZERO3(n) .mesh.size = {[AXIS_DATA] = (n)}, .zero = 3, .overlap = true, .every_micro = true

// ---------------------------------------------------------------- one rank

static void test_one_rank(void **state) {
    (void)state;
    const char *const names[] = {"tiny", "gpt2-124m", "qwen2-0.5b", "qwen3-0.6b", "llama-1b"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (int accum = 1; accum <= 3; accum++) {
            struct model_shape s;
            struct err e = {0};
            struct world w;
            assert_int_equal(model_shape_builtin(&s, names[i], &e), 0);
            build_world(&w, training(&s, accum));
            uint64_t weights = class_bytes(w.ranks[0], CLASS_WEIGHT);
            assert_int_equal(weights, (uint64_t)model_total_elements(&s) * 4);
            assert_int_equal(class_bytes(w.ranks[0], CLASS_OPTIMIZER), 2 * weights);
            assert_true(simulate(&w, &fast_link, NULL) > 0);
            free_world(&w);
        }
}

// Thousands of micro-batches cost only a longer list: the segments do not grow, and layout stays
// fast.
static void test_many_micro_batches(void **state) {
    (void)state;
    struct model_shape s = even_shape(4);
    struct world few, many, most;
    build_world(&few, training(&s, 3));
    build_world(&many, training(&s, 5000));
    build_world(&most, training(&s, 65536)); // as many as the knob accepts
    assert_int_equal(most.layouts[0].arena_bytes, few.layouts[0].arena_bytes);
    free_world(&most);
    assert_int_equal(many.ranks[0]->n_segments, few.ranks[0]->n_segments);
    assert_int_equal(many.ranks[0]->n_order, 2 + 2 * 5000);
    assert_int_equal(many.layouts[0].arena_bytes, few.layouts[0].arena_bytes);
    free_world(&few);
    free_world(&many);
}

// ---------------------------------------------------------------- the five rooms

static void test_zero3(void **state) {
    (void)state;
    struct model_shape s = even_shape(6);
    struct apply a = training(&s, 3);
    a.ranks = (struct apply_ranks){ZERO3(4), .prefetch = 2};
    struct world whole, sharded;
    build_world(&sharded, a);
    a.ranks = (struct apply_ranks){0};
    build_world(&whole, a);
    uint64_t all = class_bytes(whole.ranks[0], CLASS_WEIGHT),
             part = class_bytes(sharded.ranks[0], CLASS_WEIGHT);
    // A quarter plus padding: a bucket is a layer, and a share is a multiple of 256 elements.
    assert_true(part >= all / 4 && part < all / 4 + 1024 * (uint64_t)(s.layers * 9 + 4));
    uint64_t optimizer = 0;
    for (int r = 0; r < 4; r++)
        optimizer += class_bytes(sharded.ranks[r], CLASS_OPTIMIZER);
    assert_int_equal(optimizer, 2 * all); // each element on one rank
    // Every layer is gathered in the forward and again in the backward, for each micro-batch.
    assert_true(count_ops(sharded.ranks[0], OP_ALL_GATHER) >= 2 * 3 * (int)s.layers);
    assert_true(count_ops(sharded.ranks[0], OP_REDUCE_SCATTER) >= 3 * (int)s.layers);
    // Prefetch hides communication that is exposed without it.
    double with = simulate(&sharded, &slow_link, NULL);
    a.ranks = (struct apply_ranks){ZERO3(4), .prefetch = 0};
    struct world eager;
    build_world(&eager, a);
    assert_true(with < simulate(&eager, &slow_link, NULL));
    assert_true(eager.layouts[0].arena_bytes <
                sharded.layouts[0].arena_bytes); // prefetch costs the bytes of its windows
    print_all(&sharded, "all_gather");
    free_world(&eager);
    free_world(&whole);
    free_world(&sharded);
}

static void test_1f1b(void **state) {
    (void)state;
    enum { P = 4, M = 64 };
    struct model_shape s = even_shape(16);
    struct apply a = training(&s, M);
    a.ranks = (struct apply_ranks){.mesh.size = {[AXIS_PIPE] = P}, .schedule = SCHEDULE_1F1B};
    struct world w, gpipe;
    double idle;
    build_world(&w, a);
    for (int r = 0; r < P; r++) {
        int slots = 1;
        for (int t = 0; t < w.ranks[r]->n_tensors; t++)
            slots = w.ranks[r]->tensors[t].slots > slots ? w.ranks[r]->tensors[t].slots : slots;
        assert_int_equal(slots, P - r); // micro-batches in flight: stages from this one to the last
    }
    simulate(&w, &fast_link, &idle);
    double bubble = (double)(P - 1) / (M + P - 1); // Narayanan et al., 2021
    assert_true(fabs(idle - bubble) < 0.02);
    // GPipe has the same bubble but keeps every micro-batch's activations.
    a.ranks.schedule = SCHEDULE_GPIPE;
    build_world(&gpipe, a);
    simulate(&gpipe, &fast_link, &idle);
    assert_true(fabs(idle - bubble) < 0.02);
    assert_true(gpipe.layouts[0].transient_bytes > 4 * w.layouts[0].transient_bytes);
    print_all(&w, "send");
    free_world(&gpipe);
    free_world(&w);
}

static void test_interleaved(void **state) {
    (void)state;
    enum { P = 4, V = 2, M = 16 };
    struct model_shape s = even_shape(16);
    struct apply a = training(&s, M);
    a.ranks = (struct apply_ranks){
        .mesh.size = {[AXIS_PIPE] = P}, .chunks = V, .schedule = SCHEDULE_INTERLEAVED};
    struct world w, plain;
    double idle, idle_plain;
    build_world(&w, a);
    a.ranks.schedule = SCHEDULE_1F1B;
    build_world(&plain, a);
    simulate(&w, &fast_link, &idle);
    simulate(&plain, &fast_link, &idle_plain);
    assert_true(fabs(idle_plain - (double)(P - 1) / (M + P - 1)) < 0.03);
    assert_true(fabs(idle - (double)(P - 1) / (V * M + P - 1)) <
                0.03); // the bubble shrinks by the chunks
    assert_true(count_ops(w.ranks[1], OP_SEND) >
                count_ops(plain.ranks[1], OP_SEND)); // and messages multiply
    print_all(&w, "chunk");
    free_world(&plain);
    free_world(&w);
}

// Weights that are views of a root, both ways: three weights of one root, or columns of one weight.
// Shards, stages and adapters handle all of them.
static void test_shared_roots(void **state) {
    (void)state;
    static const char *const names[] = {"gpt2-124m", "qwen2-0.5b", "qwen3-0.6b"};
    const struct apply_ranks ranks[] = {
        {ZERO3(4), .prefetch = 2},
        {.mesh.size = {[AXIS_PIPE] = 4}, .schedule = SCHEDULE_1F1B},
        {.mesh.size = {[AXIS_PIPE] = 4}, .chunks = 2, .schedule = SCHEDULE_INTERLEAVED}};
    for (int i = 0; i < 9; i++) {
        struct model_shape s;
        struct err e = {0};
        struct world w;
        assert_int_equal(model_shape_builtin(&s, names[i / 3], &e), 0);
        s.layers = 8, s.vocab = 64;
        struct apply a = training(&s, 4);
        a.ranks = ranks[i % 3];
        a.precision = i % 2 ? DTYPE_BF16 : DTYPE_F32;
        build_world(&w, a);
        int products = 0, updates = 0, adding = 0;
        uint64_t weights = 0;
        for (int r = 0; r < w.n; r++) {
            products += count_ops(w.ranks[r], OP_MATMUL) + count_ops(w.ranks[r], OP_MATMUL_ACT);
            updates += count_ops(w.ranks[r], OP_ADAMW);
            weights += class_bytes(w.ranks[r], CLASS_WEIGHT);
            for (int k = 0; k < w.ranks[r]->n_segments; k++)
                for (int n = 0; n < w.ranks[r]->segments[k].n_ops; n++) {
                    const struct op *op = &w.ranks[r]->segments[k].ops[n];
                    adding += op->kind == OP_MATMUL_DW && op->flags & OP_ACCUMULATE;
                }
        }
        int others = s.act == ACT_SWIGLU ? 4 : 3, copies = i % 3 == 0 ? 4 : 1; // copies of the work
        assert_int_equal(products, 4 * copies * (8 * (others + (fused ? 1 : 3)) + 1));
        uint64_t all = (uint64_t)model_total_elements(&s) * (i % 2 ? 2 : 4);
        if (i % 3 == 0) { // windows are written once and the scatter sums; the rest is padding
            assert_int_equal(adding, 0);
            assert_true(weights >= all && weights < all + 4096 * 8);
        } else { // a tied embedding exists on two stages
            assert_true(updates == model_param_count(&s) + s.tied);
            assert_true(weights ==
                        all + (s.tied ? (uint64_t)(s.vocab * s.width) * (i % 2 ? 2 : 4) : 0));
        }
        free_world(&w);
    }
}

static void test_decode(void **state) {
    (void)state;
    struct model_shape s;
    struct err e = {0};
    assert_int_equal(model_shape_builtin(&s, "llama-1b", &e), 0);
    struct apply a = {.build = {.kind = BUILD_EXTEND,
                                .shape = &s,
                                .batch = 8,
                                .seq = 2048,
                                .rows = 8,
                                .real = DTYPE_F32},
                      .fuse_qkv = fused};
    struct world w;
    build_world(&w, a);
    uint64_t kv =
        2u * 16 * 8 * 2048 * 8 * 64 * 4; // k and v, layers, batch, capacity, kv heads, head, bytes
    assert_int_equal(class_bytes(w.ranks[0], CLASS_KV), kv);
    assert_true(simulate(&w, &fast_link, NULL) > 0);
    print_all(&w, "attention_cached");
    // Together with a program of more rows: one arena, weights and cache once.
    struct apply g = a;
    g.build.rows = 128;
    struct program *set[2] = {w.ranks[0], NULL};
    struct layout both;
    assert_int_equal(apply_program(&set[1], "extend.128", &g, &e), 0);
    assert_int_equal(layout_set(set, 2, &both, &e), 0);
    assert_int_equal(both.by_class[CLASS_WEIGHT], w.layouts[0].by_class[CLASS_WEIGHT]);
    assert_int_equal(both.by_class[CLASS_KV], kv);
    int a_wte = program_find(set[0], "model.embed_tokens.weight"),
        b_wte = program_find(set[1], "model.embed_tokens.weight");
    assert_int_equal(set[0]->tensors[a_wte].offset[0], set[1]->tensors[b_wte].offset[0]);
    for (int i = 0; i < 2; i++)
        assert_int_equal(check_layout(set[i], both.arena_bytes, &e), 0);
    program_free(set[1]);
    free_world(&w);
}

static int scales_of(const struct program *p, uint64_t *bytes) {
    int n = 0;
    *bytes = 0;
    for (int i = 0; i < p->n_tensors; i++) {
        const struct tensor *t = &p->tensors[i];
        if (strncmp(t->name, "adam.scales.", 12) != 0)
            continue;
        assert_int_equal(t->dtype, DTYPE_F32);
        assert_int_equal(t->share->count, 2 * t->local[0]); // m and v
        assert_int_equal(t->share->first % 2, 0);
        *bytes += t->bytes;
        n++;
    }
    return n;
}

// Narrow moments of shards: each rank has whole blocks of the logical tensor.
static void test_narrow_state(void **state) {
    (void)state;
    struct model_shape s = even_shape(6);
    struct apply a = training(&s, 2);
    a.ranks = (struct apply_ranks){ZERO3(4), .prefetch = 2};
    struct world wide, w;
    build_world(&wide, a);
    uint64_t fp32 = class_bytes(wide.ranks[0], CLASS_OPTIMIZER);
    a.state = STATE_BF16;
    build_world(&w, a);
    assert_int_equal(2 * class_bytes(w.ranks[0], CLASS_OPTIMIZER), fp32);
    assert_true(count_ops(w.ranks[0], OP_ADAMW) == 0 && count_ops(w.ranks[0], OP_ADAMW_BF16) > 6);
    free_world(&w);
    a.state = STATE_INT8;
    build_world(&w, a);
    int adamw = count_ops(wide.ranks[0], OP_ADAMW), int8 = count_ops(w.ranks[0], OP_ADAMW_INT8);
    assert_true(int8 >= 6 && int8 + count_ops(w.ranks[0], OP_ADAMW) == adamw);
    for (int r = 0; r < 4; r++) {
        uint64_t scales = 0, large = 0, small = 0;
        const int own = scales_of(w.ranks[r], &scales);
        const struct segment *u = NULL;
        for (int i = 0; i < w.ranks[r]->n_segments; i++)
            if (w.ranks[r]->segments[i].role == SEGMENT_UPDATE)
                u = &w.ranks[r]->segments[i];
        assert_non_null(u);
        for (int i = 0; i < u->n_ops; i++) {
            const struct op *op = &u->ops[i];
            if (op->kind == OP_ADAMW_INT8)
                large += (uint64_t)op->n;
            else if (op->kind == OP_ADAMW)
                small += (uint64_t)op->n;
        }
        assert_int_equal(class_bytes(w.ranks[r], CLASS_OPTIMIZER), 2 * large + scales + 8 * small);
        assert_true(scales >= large / 32 && scales < large / 32 + 8 * (uint64_t)own);
    }
    assert_true(simulate(&w, &fast_link, NULL) <= simulate(&wide, &fast_link, NULL));
    print_all(&w, "adamw_int8");
    free_world(&w);
    free_world(&wide);
}

static void test_lora(void **state) {
    (void)state;
    struct model_shape s = even_shape(4);
    struct apply a = training(&s, 2);
    struct world whole, lora;
    build_world(&whole, a);
    const struct adapter adapter = {.rank = 8, .alpha = 16};
    a.chosen.adapter = &adapter;
    build_world(&lora, a);
    const struct program *p = lora.ranks[0];
    int64_t C = s.width, QD = s.heads * s.head_dim, KD = s.kv_heads * s.head_dim, F = s.ffn;
    int64_t pairs =
        4 * 8 *
        ((C + QD) + 2 * (C + KD) + (QD + C) + 2 * (C + F) + (F + C)); // layers, rank, in + out
    assert_int_equal(class_bytes(p, CLASS_OPTIMIZER), (uint64_t)pairs * 2 * 4);
    for (int i = 0; i < p->n_tensors; i++)
        if (p->tensors[i].cls == CLASS_GRADIENT)
            assert_non_null(strstr(p->tensors[i].name, "lora"));
    assert_true(lora.layouts[0].arena_bytes < whole.layouts[0].arena_bytes);
    assert_true(simulate(&lora, &fast_link, NULL) < simulate(&whole, &fast_link, NULL));
    print_all(&lora, "lora_A");
    free_world(&lora);
    free_world(&whole);
}

static int count_all(const struct world *w, enum op_kind kind) {
    int n = 0;
    for (int r = 0; r < w->n; r++)
        n += count_ops(w->ranks[r], kind);
    return n;
}

// Fusion runs after the cuts. It joins ops across gathers, never across stages. The ops that it
// splits still build, lay out and pass the checks in every room.
static void test_fusion(void **state) {
    (void)state;
    enum { L = 8, P = 4, M = 8 };
    const struct {
        struct apply_ranks ranks;
        int lora, joined; // add_norm per micro-batch
        struct recompute_rule recompute;
    } rooms[] = {
        {{.zero = 0}, 0, 2 * L, {0}},
        {{ZERO3(4), .prefetch = 2}, 0, 4 * 2 * L, {0}},
        {{.mesh.size = {[AXIS_PIPE] = P}, .schedule = SCHEDULE_1F1B}, 0, 2 * L - (P - 1), {0}},
        {{.mesh.size = {[AXIS_PIPE] = 2}, .chunks = 2, .schedule = SCHEDULE_INTERLEAVED},
         0,
         2 * L - 3,
         {0}},
        {{.zero = 0}, 4, 2 * L, {0}},
        {{.zero = 0},
         0,
         2 * L + L,
         {.kind = RECOMPUTE_FULL}}, // x.mid and its norm are computed again
    };
    struct model_shape s = even_shape(L);
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++) {
        struct apply a = training(&s, M);
        struct world on, off;
        const struct adapter adapter = {.rank = rooms[i].lora, .alpha = rooms[i].lora};
        a.ranks = rooms[i].ranks, a.chosen.adapter = &adapter;
        a.recompute = rooms[i].recompute;
        build_world(&on, a);
        a.fuse = (struct fuse_rule){0};
        build_world(&off, a);
        assert_int_equal(count_all(&on, OP_ADD_NORM), M * rooms[i].joined);
        assert_int_equal(count_all(&off, OP_ADD_NORM), 0);
        assert_int_equal(count_all(&off, OP_ADAM_STEP), count_all(&on, OP_ADAMW));
        assert_int_equal(count_all(&off, OP_LOG_SOFTMAX_BWD), count_all(&on, OP_LOSS));
        assert_int_equal(count_all(&off, OP_ACT_BWD), count_all(&on, OP_SWIGLU_BWD));
        assert_int_equal(count_all(&off, OP_ACT), count_all(&on, OP_SWIGLU));
        assert_int_equal(count_all(&off, OP_LOSS) + count_all(&off, OP_ADAMW) +
                             count_all(&off, OP_SWIGLU) + count_all(&off, OP_SWIGLU_BWD),
                         0);
        assert_true(simulate(&off, &fast_link, NULL) > simulate(&on, &fast_link, NULL));
        for (int r = 0; r < on.n; r++)
            assert_true(off.ranks[r]->live_bytes >= on.ranks[r]->live_bytes);
        free_world(&off);
        free_world(&on);
    }
}

// ---------------------------------------------------------------- the checks fail when they should

static void remove_op(struct segment *s, int at) {
    memmove(&s->ops[at], &s->ops[at + 1], sizeof *s->ops * (size_t)(s->n_ops - at - 1));
    s->n_ops--;
}

static struct op *find_op(struct program *p, enum op_kind kind, struct segment **segment, int *at) {
    for (int s = 0; s < p->n_segments; s++)
        for (int i = 0; i < p->segments[s].n_ops; i++)
            if (p->segments[s].ops[i].kind == kind) {
                *segment = &p->segments[s], *at = i;
                return &p->segments[s].ops[i];
            }
    fail_msg("no such op");
    return NULL;
}

static void test_checks_catch(void **state) {
    (void)state;
    struct model_shape s = even_shape(8);
    struct apply a = training(&s, 8);
    struct world w;
    struct err e = {0};
    struct segment *seg;
    int at;
    a.ranks = (struct apply_ranks){.mesh.size = {[AXIS_PIPE] = 4}, .schedule = SCHEDULE_1F1B};

    build_world(&w, a); // a send without a receive
    find_op(w.ranks[2], OP_RECV, &seg, &at);
    remove_op(seg, at);
    assert_int_equal(check_world(w.ranks, 4, &e), ERR_INTERNAL);
    assert_int_equal(check_program(w.ranks[2], &e), ERR_INTERNAL); // and a read that nothing wrote
    assert_non_null(strstr(e.text, "which nothing wrote"));
    struct prediction p;
    find_op(w.ranks[1], OP_SEND, &seg, &at); // ranks that wait forever
    remove_op(seg, at);
    assert_int_equal(predict_programs(w.ranks, 2, &device, &fast_link, &p, &e), ERR_INTERNAL);
    free_world(&w);

    build_world(&w, a); // sizes that differ
    w.ranks[1]->tensors[find_op(w.ranks[1], OP_RECV, &seg, &at)->out[0]].local[0]--;
    assert_int_equal(check_world(w.ranks, 4, &e), ERR_INTERNAL);
    free_world(&w);

    build_world(&w, a); // a missing wait
    find_op(w.ranks[1], OP_SEND, &seg, &at)->n_wait = 0;
    assert_int_equal(check_program(w.ranks[1], &e), ERR_INTERNAL);
    assert_non_null(strstr(e.text, "without waiting"));
    free_world(&w);

    a.ranks = (struct apply_ranks){0}; // two live tensors on the same bytes
    build_world(&w, a);
    struct program *q = w.ranks[0];
    int x = program_find(q, "h.0.norm1"), y = program_root(q, program_find(q, "h.0.q"));
    assert_true(x >= 0 && y >= 0);
    q->tensors[y].offset[0] = q->tensors[x].offset[0];
    assert_int_equal(check_layout(q, w.layouts[0].arena_bytes, &e), ERR_INTERNAL);
    assert_non_null(strstr(e.text, "share bytes"));
    q->tensors[y].offset[0] = w.layouts[0].arena_bytes; // and outside the arena
    assert_int_equal(check_layout(q, w.layouts[0].arena_bytes, &e), ERR_INTERNAL);
    free_world(&w);

    struct apply small = training(&s, 1), large = training(&s, 1); // a set whose programs disagree
    struct model_shape wide = s;
    wide.ffn *= 2;
    large.build.shape = &wide;
    struct program *set[2];
    struct layout l;
    assert_int_equal(apply_program(&set[0], "a", &small, &e), 0);
    assert_int_equal(apply_program(&set[1], "b", &large, &e), 0);
    assert_int_equal(layout_set(set, 2, &l, &e), ERR_MISMATCH);
    program_free(set[0]);
    program_free(set[1]);
}

// Products run at the rate that was measured for their element type.
static void test_rates_by_type(void **state) {
    (void)state;
    static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    struct hw_device known = device;
    known.matmul_bf16_flops = 4e12; // fp16 is not known, so it counts as fp32
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct model_shape shape = even_shape(2);
        struct apply a = training(&shape, 1);
        struct world w;
        a.precision = types[i];
        build_world(&w, a);
        const struct program *p = w.ranks[0];
        int faster = 0;
        for (int s = 0; s < p->n_segments; s++)
            for (int k = 0; k < p->segments[s].n_ops; k++) {
                const struct op *op = &p->segments[s].ops[k];
                double plain = predict_op(p, op, &device, &fast_link);
                double own = predict_op(p, op, &known, &fast_link);
                assert_true(own == plain || op_info(op->kind)->category == CAT_MATMUL);
                assert_true(own <= plain);
                faster += own < plain;
            }
        assert_int_equal(faster > 0, types[i] == DTYPE_BF16);
        free_world(&w);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_rank),     cmocka_unit_test(test_many_micro_batches),
        cmocka_unit_test(test_zero3),        cmocka_unit_test(test_1f1b),
        cmocka_unit_test(test_interleaved),  cmocka_unit_test(test_decode),
        cmocka_unit_test(test_narrow_state), cmocka_unit_test(test_lora),
        cmocka_unit_test(test_fusion),       cmocka_unit_test(test_shared_roots),
        cmocka_unit_test(test_checks_catch), cmocka_unit_test(test_rates_by_type),
    };
    int failed = cmocka_run_group_tests_name("apart", tests, NULL, NULL);
    fused = true;
    return failed + cmocka_run_group_tests_name("fused", tests, NULL, NULL);
}
