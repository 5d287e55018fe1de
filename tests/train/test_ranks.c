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
    };
    static const char *const families[] = {"tiny", "gpt2-124m", "qwen3-0.6b"};
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        struct knobs k;
        base_knobs(&k, *state, families[f], f == 1 ? 17 : 127, 3);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_load),   cmocka_unit_test(test_observed),
        cmocka_unit_test(test_tensor), cmocka_unit_test(test_data_parallel),
        cmocka_unit_test(test_zero),   cmocka_unit_test(test_pipeline),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
