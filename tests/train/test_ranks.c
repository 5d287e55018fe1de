// test_ranks.c - ranks as threads train what one rank trains. Every layout is compared with one
// rank, every stage of ZeRO with plain data parallelism to the bit, and every program is checked:
// alone (check.c), together (check_world), and under the simulator, which would find ranks that
// wait for each other.
#include "ranks_job.h"

// ---------------------------------------------------------------- tests

static void test_data_parallel(void **state) {
    struct knobs k;
    base_knobs(&k, *state, "tiny", 127, 3);
    struct job *one = job_of(&k, "", 6);
    struct job *two = job_of(&k, "data=2 batch.accum=4", 6);
    assert_near(two, one, "two replicas");
    struct job *apart = job_of(&k, "data=2 batch.accum=4 late bucket=0", 6);
    assert_same(apart, two, "without overlap, in one bucket");
    check_together(&k, "data=2 batch.accum=4");
    job_end(one), job_end(two), job_end(apart);
}

static void test_zero(void **state) {
    static const char *const layouts[] = {"data=2 batch.accum=4",
                                          "data=4 batch.accum=2",
                                          "data=8 batch.accum=1",
                                          "data=2 batch.accum=4 micro",
                                          "data=2 batch.accum=4 precision=bf16",
                                          "data=2 batch.accum=4 optim.state=int8"};
    struct knobs k;
    base_knobs(&k, *state, "gpt2-124m", 127, 3);
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        struct job *plain = job_of(&k, layouts[i], 5);
        for (int stage = 1; stage <= 3; stage++) {
            char settings[200];
            snprintf(settings, sizeof settings, "%s zero=%d", layouts[i], stage);
            check_together(&k, settings);
            struct job *sharded = job_of(&k, settings, 5);
            assert_same(sharded, plain, settings);
            job_end(sharded);
        }
        job_end(plain);
    }
}

static void test_pipeline(void **state) {
    static const char *const layouts[] = {
        "pipe=2 schedule=gpipe",
        "pipe=2",
        "pipe=4",
        "data=2 pipe=2 batch.accum=4",
        "data=2 pipe=2 batch.accum=4 zero=1",
        "pipe=2 schedule=interleaved",
        "pipe=4 schedule=interleaved",
        "pipe=2 recompute.mode=full logits.chunk=7",
    };
    struct knobs k;
    base_knobs(&k, *state, "tiny", 127, 9);
    struct job *one = job_of(&k, "", 4);
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        check_together(&k, layouts[i]);
        struct job *staged = job_of(&k, layouts[i], 4);
        assert_near(staged, one, layouts[i]);
        job_end(staged);
    }
    job_end(one);
}

// What ranks load is the model, whatever they share.
static void test_load(void **state) {
    static const char *const layouts[] = {"tensor=4", "data=2 tensor=2 zero=1",
                                          "data=2 tensor=2 zero=3", "data=8 zero=3",
                                          "tensor=2 pipe=2"};
    static const char *const families[] = {"tiny", "gpt2-124m", "qwen3-0.6b"};
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        struct knobs k;
        base_knobs(&k, *state, families[f], 31, 3);
        struct job *one = job_of(&k, "", 0);
        for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
            struct job *ranks = job_of(&k, layouts[i], 0);
            assert_same(ranks, one, layouts[i]);
            job_end(ranks);
        }
        job_end(one);
    }
}

// Every byte that an op changes belongs to one of its outputs, and the bits are the same.
static void test_observed(void **state) {
    static const char *const layouts[] = {
        "data=2 batch.accum=2",
        "data=2 batch.accum=2 zero=1",
        "data=2 batch.accum=1 zero=2",
        "data=2 batch.accum=2 zero=3 micro",
        "pipe=2 batch.accum=4",
        "pipe=2 batch.accum=4 schedule=interleaved",
        "tensor=2 batch.accum=2 recompute.mode=full logits.chunk=7",
        "data=2 tensor=2 pipe=2 batch.accum=4 zero=1 precision=bf16 optim.state=int8",
        "tensor=2 sequence batch.accum=2",
        "tensor=4 sequence batch.accum=2 recompute.mode=selective logits.chunk=7",
        "data=2 tensor=2 sequence batch.accum=2 zero=3 recompute.mode=full",
        "data=2 tensor=2 sequence pipe=2 batch.accum=4 zero=1 precision=bf16 optim.state=int8",
    };
    struct knobs k;
    base_knobs(&k, *state, "tiny", 127, 5);
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        char observed[200];
        snprintf(observed, sizeof observed, "%s checking", layouts[i]);
        struct job *plain = job_of(&k, layouts[i], 2), *seen = job_of(&k, observed, 2);
        assert_same(seen, plain, observed);
        job_end(plain), job_end(seen);
    }
}

static void test_tensor(void **state) {
    static const char *const layouts[] = {
        "tensor=2",
        "tensor=4",
        "tensor=8",
        "tensor=2 fuse.qkv=false",
        "tensor=2 recompute.mode=full logits.chunk=7",
        "data=2 tensor=2 batch.accum=4 zero=1",
        "data=2 tensor=2 batch.accum=4 zero=2",
        "data=2 tensor=2 batch.accum=4 zero=3",
        "tensor=2 pipe=2",
        "data=2 tensor=2 pipe=2 batch.accum=4 zero=1",
        "tensor=2 sequence",
        "tensor=8 sequence",
        "tensor=4 sequence recompute.mode=full logits.chunk=7",
        "tensor=2 sequence recompute.mode=full recompute.every=2",
        "tensor=2 sequence recompute.mode=selective recompute.ratio=0.01",
        "tensor=2 sequence fuse.qkv=false fuse.norm=false fuse.act=false fuse.loss=false",
        "data=2 tensor=2 sequence batch.accum=4",
        "data=2 tensor=2 sequence batch.accum=4 zero=1 late",
        "data=2 tensor=2 sequence batch.accum=4 zero=2 micro",
        "data=2 tensor=2 sequence batch.accum=4 zero=3",
        "tensor=2 sequence pipe=2 schedule=gpipe",
        "tensor=2 sequence pipe=2 schedule=interleaved logits.chunk=7",
        "data=2 tensor=2 sequence pipe=2 batch.accum=4 zero=1",
    };
    static const char *const families[] = {"tiny", "gpt2-124m", "qwen3-0.6b"};
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        struct knobs k;
        base_knobs(&k, *state, families[f], f == 1 ? 17 : 127, 4);
        struct job *one = job_of(&k, "", 4);
        for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
            check_together(&k, layouts[i]);
            struct job *sliced = job_of(&k, layouts[i], 4);
            assert_near(sliced, one, layouts[i]);
            job_end(sliced);
        }
        job_end(one);
    }
}

// The rows that ranks share cost them nothing but the order in which gradients of norms are summed.
static void test_sequence_bits(void **state) {
    struct knobs k;
    base_knobs(&k, *state, "gpt2-124m", 127, 3);
    k.optim_clip = 0;
    struct job *plain = job_of(&k, "tensor=4", 1), *shared = job_of(&k, "tensor=4 sequence", 1);
    assert_true(shared->losses[0][0] == plain->losses[0][0]);
    job_end(plain), job_end(shared);
}

static void plan_of(struct plan *p, const struct knobs *base, const char *settings) {
    struct job *j = job_new(base, settings, 0);
    struct err e = {0};
    const struct plan_options o = {
        .knobs = &j->knobs, .programs = {PLAN_TRAIN}, .real = DTYPE_F32, .split = &j->split};
    assert_worked(plan_make(p, &o, &e), &e);
    job_end(j);
}

// Bytes of the activations that a micro-batch keeps inside of layers: those as wide as the model,
// and the statistics of norms; and all others.
static void kept_bytes(const struct plan *p, uint64_t *between, uint64_t *inside) {
    const struct program *x = plan_program(p, PLAN_TRAIN);
    *between = *inside = 0;
    for (int i = 0; i < x->n_tensors; i++) {
        const struct tensor *t = &x->tensors[i];
        if (t->cls != CLASS_ACTIVATION || t->root >= 0 || t->layer < 0 ||
            t->layer >= p->shape.layers)
            continue;
        const bool wide = t->local[1] == p->shape.width || t->local[1] == 2;
        *(wide ? between : inside) += t->bytes;
    }
}

// Bytes that a tensor group moves for the layers' rows in a step. again: in a second run only.
static double moved_bytes(const struct plan *p, bool again) {
    const struct program *x = plan_program(p, PLAN_TRAIN);
    double sum = 0;
    for (int i = 0; i < x->n_order; i++) {
        const struct segment *s = &x->segments[x->order[i].segment];
        for (int k = 0; k < s->n_ops; k++) {
            const struct op *op = &s->ops[k];
            if (op_info(op->kind)->category == CAT_COMM && s->role != SEGMENT_UPDATE &&
                !!(op->flags & OP_AGAIN) == again)
                sum += op_cost_of(x, op).comm_bytes;
        }
    }
    return sum;
}

// What is kept between the blocks is a T-th. The bytes that ranks move stay the same, but for the
// gathers that are made again.
static void test_sequence_plan(void **state) {
    static const char *const families[] = {"tiny", "gpt2-124m"};
    for (size_t f = 0; f < sizeof families / sizeof *families; f++)
        for (int T = 2; T <= 8; T *= 2) {
            char settings[64];
            struct knobs k;
            struct plan plain, shared;
            uint64_t between, inside, between_shared, inside_shared;
            base_knobs(&k, *state, families[f], 127, 3);
            snprintf(settings, sizeof settings, "tensor=%d", T);
            plan_of(&plain, &k, settings);
            snprintf(settings, sizeof settings, "tensor=%d sequence", T);
            plan_of(&shared, &k, settings);
            kept_bytes(&plain, &between, &inside);
            kept_bytes(&shared, &between_shared, &inside_shared);
            assert_true(between > 0 && between_shared == between / (uint64_t)T);
            assert_int_equal(inside_shared, inside);
            assert_true(plan_arena_bytes(&shared) < plan_arena_bytes(&plain));
            const double rows =
                (double)(k.seq * k.batch_micro * k.batch_accum * plain.shape.width) * sizeof(float);
            assert_true(moved_bytes(&shared, false) == moved_bytes(&plain, false));
            assert_true(moved_bytes(&plain, true) == 0);
            assert_true(moved_bytes(&shared, true) == 2 * 3 * rows * (T - 1) / T);
            plan_free(&plain), plan_free(&shared);
        }
}

// Rows that a tensor group does not divide are refused.
static void test_sequence_refused(void **state) {
    struct knobs k;
    struct plan p;
    struct err e = {0};
    base_knobs(&k, *state, "tiny", 127, 3);
    struct job *j = job_new(&k, "tensor=4 sequence seq=13 batch.micro=2", 0);
    const struct plan_options o = {
        .knobs = &j->knobs, .programs = {PLAN_TRAIN}, .real = DTYPE_F32, .split = &j->split};
    assert_int_equal(plan_make(&p, &o, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "do not divide the 26 tokens of a micro-batch"));
    plan_free(&p);
    job_end(j);
}

// ---------------------------------------------------------------- replicas that train apart

// Replicas that train apart end as the mean of runs that each had one replica's sequences.
static void test_average(void **state) {
    static const char *const layouts[] = {"",
                                          "bucket=0",
                                          "bucket=1",
                                          "tensor=2 sequence",
                                          "pipe=2",
                                          "precision=bf16",
                                          "fuse.optim=false fuse.qkv=false",
                                          "optim.state=bf16"};
    static const char *const whats[] = {"", "adam.m.", "adam.v."};
    struct knobs k;
    base_knobs(&k, *state, "tiny", 127, 3);
    k.batch_accum = 2;
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
        for (size_t w = 0; w < sizeof whats / sizeof *whats; w++) {
            char settings[200];
            const float *a, *b;
            snprintf(settings, sizeof settings, "data=2 every=3 what=%s %s", whats[w], layouts[i]);
            check_together(&k, settings);
            struct job *both = job_of(&k, settings, 3);
            snprintf(settings, sizeof settings, "of=2 as=0 what=%s %s", whats[w], layouts[i]);
            struct job *first = job_of(&k, settings, 3);
            snprintf(settings, sizeof settings, "of=2 as=1 what=%s %s", whats[w], layouts[i]);
            struct job *second = job_of(&k, settings, 3);
            a = first->weights, b = second->weights;
            const bool narrow = *whats[w] && strstr(layouts[i], "optim.state=bf16");
            assert_true(memcmp(a, b, (size_t)elements(first) * sizeof *a) != 0);
            for (int64_t n = 0, all = elements(both); n < all; n++)
                if (fabsf(both->weights[n] - (a[n] + b[n]) * 0.5f) >
                    (narrow ? fabsf(both->weights[n]) * 0x1p-8f : 0))
                    fail_msg("%s: element %d of %sweights is %.9g, not the mean of %.9g and %.9g",
                             settings, (int)n, whats[w], (double)both->weights[n], (double)a[n],
                             (double)b[n]);
            job_end(both), job_end(first), job_end(second);
        }
}

// Steps between two means move nothing but the loss and a flag, and the mean is used: with one in
// every step, replicas train almost as if they summed gradients.
static void test_average_every(void **state) {
    struct knobs k;
    base_knobs(&k, *state, "tiny", 127, 3);
    struct job *plain = job_of(&k, "data=2 batch.accum=4", 6),
               *seldom = job_of(&k, "data=2 batch.accum=4 every=3", 6),
               *never = job_of(&k, "data=2 batch.accum=4 every=6", 6),
               *seen = job_of(&k, "data=2 batch.accum=4 every=3 checking", 6);
    assert_true(seldom->losses[0][0] == never->losses[0][0]);
    assert_true(fabs(seldom->losses[0][0] / plain->losses[0][0] - 1) < 1e-6);
    assert_true(seldom->losses[0][2] == never->losses[0][2]);
    assert_true(seldom->losses[0][3] != never->losses[0][3]); // after the first mean
    assert_true(fabs(seldom->losses[0][5] / plain->losses[0][5] - 1) < 0.05);
    assert_same(seen, seldom, "observed");
    job_end(plain), job_end(seldom), job_end(never), job_end(seen);
}

// One replica's gradients that are not finite skip the update on all. No gradients are summed.
static void test_average_skips(void **state) {
    struct knobs k;
    base_knobs(&k, *state, "tiny", 127, 3);
    struct job *begin = job_of(&k, "", 0),
               *skipped = job_of(&k, "data=2 every=3 batch.accum=1 spoilt", 2);
    const size_t bytes = (size_t)elements(begin) * sizeof *begin->weights;
    assert_true(memcmp(begin->weights, skipped->weights, bytes) == 0);
    job_end(begin), job_end(skipped);
    struct plan p;
    plan_of(&p, &k, "data=2 every=3 batch.accum=1");
    const struct program *x = plan_program(&p, PLAN_TRAIN);
    int summed = 0;
    for (int s = 0; s < x->n_segments; s++)
        for (int i = 0; i < x->segments[s].n_ops; i++) {
            const struct op *op = &x->segments[s].ops[i];
            if (op->kind != OP_ALL_REDUCE)
                continue;
            const struct tensor *t = &x->tensors[op->out[0]];
            assert_true(tensor_elements(t) <= RESULT_COUNT);
            summed += t->root == program_find(x, NAME_CLIP) && t->root_offset == CLIP_SKIP;
        }
    assert_int_equal(summed, 1);
    plan_free(&p);
}

static void test_average_refused(void **state) {
    static const struct {
        const char *settings, *why;
    } cases[] = {{"data=2 every=2 zero=1", "accepted: zero.stage=0"},
                 {"data=2 every=2 optim.state=int8", "accepted: optim.state=fp32, bf16"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct knobs k;
        struct plan p;
        struct err e = {0};
        base_knobs(&k, *state, "tiny", 127, 3);
        struct job *j = job_new(&k, cases[i].settings, 0);
        const struct plan_options o = {
            .knobs = &j->knobs, .programs = {PLAN_TRAIN}, .real = DTYPE_F32, .split = &j->split};
        assert_int_equal(plan_make(&p, &o, &e), ERR_USAGE);
        assert_non_null(strstr(e.text, cases[i].why));
        plan_free(&p);
        job_end(j);
    }
}

// A padded vocabulary gives the same bits in every layout, also where the ranks' parts of the
// vocabulary differ in size, or two stages share it.
static void test_padded(void **state) {
    static const char *const layouts[] = {
        "tensor=2",
        "tensor=4 sequence recompute.mode=full logits.chunk=7",
        "data=2 tensor=2 batch.accum=2 zero=3 precision=bf16 optim.state=int8",
        "data=2 batch.accum=2 zero=1",
        "data=2 batch.accum=1 zero=2",
        "data=4 batch.accum=2 micro zero=3",
        "pipe=2 batch.accum=4",
        "pipe=2 batch.accum=4 schedule=interleaved noise.every=2",
        "data=2 pipe=2 batch.accum=4",
        "data=2 tensor=2 pipe=2 batch.accum=4 zero=1 noise.every=2",
        "data=2 batch.accum=2 every=2",
    };
    static const char *const families[] = {"gpt2-124m", "llama-8b"}; // with and without a tied head
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        struct knobs k;
        base_knobs(&k, *state, families[f], 127, 4);
        for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
            char settings[200];
            struct job *plain = job_of(&k, layouts[i], 3);
            snprintf(settings, sizeof settings, "%s logits.pad=48", layouts[i]);
            check_together(&k, settings);
            struct job *padded = job_of(&k, settings, 3);
            assert_same(padded, plain, settings);
            assert_memory_equal(padded->first, plain->first, sizeof plain->first);
            snprintf(settings, sizeof settings, "%s logits.pad=48 checking", layouts[i]);
            struct job *seen = job_of(&k, settings, 3);
            assert_same(seen, plain, settings);
            job_end(plain), job_end(padded), job_end(seen);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_average),          cmocka_unit_test(test_average_every),
        cmocka_unit_test(test_average_skips),    cmocka_unit_test(test_average_refused),
        cmocka_unit_test(test_sequence_bits),    cmocka_unit_test(test_sequence_plan),
        cmocka_unit_test(test_sequence_refused), cmocka_unit_test(test_load),
        cmocka_unit_test(test_observed),         cmocka_unit_test(test_tensor),
        cmocka_unit_test(test_data_parallel),    cmocka_unit_test(test_zero),
        cmocka_unit_test(test_pipeline),         cmocka_unit_test(test_padded),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
