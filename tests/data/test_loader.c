// test_loader.c - batches do not depend on workers, prefetch or timing; resume, errors, speed.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/hash.h"
#include "data/bytes.h"
#include "data/loader.h"
#include "data/scratch.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

static struct mem *mem_of(void) {
    struct mem *m;
    assert_int_equal(mem_open(&m, NULL), 0);
    return m;
}

static struct dataset *dataset_of(const char *paths, int64_t seq, double fraction) {
    struct dataset *d;
    struct err e = {0};
    struct dataset_options o = {
        .paths = paths, .seed = 4, .seq = seq, .validation_fraction = fraction};
    if (dataset_open(&d, &o, &e) != 0)
        fail_msg("%s", e.text);
    return d;
}

static struct loader *open_ok(const struct loader_options *o, struct mem *m) {
    struct loader *l;
    struct err e = {0};
    if (loader_open(&l, o, m, &e) != 0)
        fail_msg("%s", e.text);
    return l;
}

static uint64_t hash_of_batch(const struct loader_batch *b) {
    size_t bytes = (size_t)b->tokens_count * sizeof(int32_t);
    uint64_t h[4] = {hash_u64(b->tokens, bytes), hash_u64(b->targets, bytes),
                     hash_u64(b->positions, bytes), hash_u64(b->doc_start, bytes)};
    return hash_u64(h, sizeof h);
}

static void nap_us(long us) {
    struct timespec t = {0, us * 1000};
    nanosleep(&t, NULL);
}

enum { STEPS = 40 };

static void run(struct loader *l, uint64_t *hashes, int steps, bool naps) {
    for (int i = 0; i < steps; i++) {
        struct loader_batch b;
        struct err e = {0};
        uint64_t position = loader_position(l);
        assert_int_equal(loader_next(l, &b, &e), 0);
        assert_true(b.position == position);
        hashes[i] = hash_of_batch(&b);
        if (naps && i % 7 == 3)
            nap_us(300);
        assert_int_equal(loader_next(l, &b, &e), ERR_INTERNAL); // not before release
        loader_release(l);
        loader_release(l); // has no effect
    }
}

static void determinism(const char *paths) {
    struct dataset *d = dataset_of(paths, 48, 0.1);
    uint64_t expected[2][STEPS];
    for (int split = 0; split < 2; split++)
        for (int prefetch = 0; prefetch <= 4; prefetch = prefetch ? prefetch * 4 : 1)
            for (int workers = 1; workers <= 4; workers *= 2) {
                struct mem *m = mem_of();
                struct loader_options o = {.dataset = d,
                                           .split = (enum dataset_split)split,
                                           .batch = 3,
                                           .micro_batches = 5,
                                           .replicas = 1,
                                           .prefetch = prefetch,
                                           .workers = workers};
                struct loader *l = open_ok(&o, m);
                assert_true(mem_bytes(m) == loader_plan_bytes(&o));
                uint64_t hashes[STEPS];
                run(l, hashes, STEPS, prefetch > 0);
                if (prefetch == 0 && workers == 1)
                    memcpy(expected[split], hashes, sizeof hashes);
                assert_memory_equal(hashes, expected[split], sizeof hashes);
                assert_true(loader_position(l) == STEPS * 15);
                loader_close(l);
                assert_true(mem_bytes(m) == 0);
                // Resume in the middle.
                o.position = 15 * 17;
                l = open_ok(&o, m);
                run(l, hashes, STEPS - 17, false);
                assert_memory_equal(hashes, expected[split] + 17, (STEPS - 17) * sizeof *hashes);
                loader_close(l);
                mem_close(m);
            }
    assert_memory_not_equal(expected[0], expected[1], sizeof expected[0]);
    dataset_close(d);
}

static void test_determinism_corpus(void **state) {
    (void)state;
    determinism(NULL);
}

static void test_determinism_text(void **state) {
    char text[20000];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)(i * i >> 7);
    determinism(folder_file(*state, "t.txt", text, sizeof text));
}

// A step holds the same samples however it is split, and all replicas agree on its trained tokens.
static void test_splits_of_a_step(void **state) {
    char text[1111];
    memset(text, 'q', sizeof text);
    struct dataset *d = dataset_of(folder_file(*state, "t.txt", text, sizeof text), 10, 0);
    struct mem *m = mem_of();
    static const int shapes[][3] = {{8, 1, 1}, {4, 2, 1}, {1, 8, 1},
                                    {4, 1, 2}, {2, 2, 2}, {1, 2, 4}};
    for (int step = 0; step < 30; step++) {
        int64_t expected = -1;
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            int64_t sum = 0;
            for (int r = 0; r < shapes[s][2]; r++) {
                struct loader_options o = {.dataset = d,
                                           .batch = shapes[s][0],
                                           .micro_batches = shapes[s][1],
                                           .replica = r,
                                           .replicas = shapes[s][2],
                                           .position = 8 * (uint64_t)step};
                struct loader *l = open_ok(&o, m);
                struct loader_batch b;
                assert_int_equal(loader_next(l, &b, NULL), 0);
                if (expected < 0)
                    expected = b.step_trained_tokens;
                assert_int_equal(b.step_trained_tokens, expected);
                int64_t targets = 0;
                for (int64_t i = 0; i < b.tokens_count; i++)
                    targets += b.targets[i] >= 0;
                assert_int_equal(targets, b.trained_tokens);
                assert_int_equal(b.rows, shapes[s][0] * 10);
                sum += targets;
                assert_true(loader_position(l) == 8 * (uint64_t)(step + 1));
                loader_close(l);
            }
            assert_int_equal(sum, expected);
        }
    }
    mem_close(m);
    dataset_close(d);
}

static void test_errors_surface_in_order(void **state) {
    char text[50000];
    memset(text, 'e', sizeof text);
    const char *path = folder_file(*state, "t.txt", text, sizeof text);
    for (int prefetch = 0; prefetch <= 4; prefetch += 2) {
        struct dataset *d;
        struct dataset_options data = {
            .paths = path, .seed = 4, .seq = 100, .cache = folder_path(*state, "cache")};
        assert_int_equal(dataset_open(&d, &data, NULL), 0);
        struct mem *m = mem_of();
        struct loader_options o = {.dataset = d,
                                   .batch = 2,
                                   .micro_batches = 1,
                                   .replicas = 1,
                                   .prefetch = prefetch,
                                   .workers = 3};
        struct loader *l = open_ok(&o, m);
        struct loader_batch b;
        struct err e = {0};
        for (int i = 0; i < 3; i++) {
            assert_int_equal(loader_next(l, &b, &e), 0);
            loader_release(l);
        }
        assert_int_equal(truncate(dataset_file_shard(d, 0)->path, 100), 0);
        int rc = 0, delivered = 0;
        while (rc == 0 && delivered < 100) {
            rc = loader_next(l, &b, &e);
            if (rc == 0) {
                loader_release(l);
                delivered++;
            }
        }
        assert_int_equal(rc, ERR_MISMATCH);
        assert_true(delivered <= prefetch + 4);
        assert_non_null(strstr(e.text, ".shard: had"));
        err_clear(&e);
        assert_int_equal(loader_next(l, &b, &e), ERR_MISMATCH); // and again
        assert_non_null(strstr(e.text, ".shard: had"));
        loader_close(l);
        mem_close(m);
        dataset_close(d);
    }
}

static void test_options_refused(void **state) {
    char text[5000];
    memset(text, 'o', sizeof text);
    struct dataset *d = dataset_of(NULL, 64, 0);
    struct dataset *t = dataset_of(folder_file(*state, "t.txt", text, sizeof text), 64, 0);
    struct mem *m = mem_of();
    const struct loader_options good = {
        .dataset = d, .batch = 1, .micro_batches = 1, .replicas = 1, .prefetch = 1, .workers = 1};
    struct loader_options bad[9];
    for (int i = 0; i < 9; i++)
        bad[i] = good;
    bad[0].batch = 0;
    bad[1].micro_batches = -1;
    bad[2].replica = 1;
    bad[3].replicas = 0;
    bad[4].prefetch = -1;
    bad[5].prefetch = LOADER_MAX_PREFETCH + 1;
    bad[6].workers = 0;
    bad[7].dataset = t;
    bad[7].split = SPLIT_VALIDATION;
    bad[8].batch = INT64_MAX / 2;
    for (int i = 0; i < 9; i++) {
        struct loader *l;
        struct err e = {0};
        assert_int_equal(loader_open(&l, &bad[i], m, &e), i == 8 ? ERR_MEMORY : ERR_USAGE);
        assert_null(l);
        assert_true(e.text[0] != '\0');
    }
    assert_true(mem_bytes(m) == 0);
    mem_close(m);
    dataset_close(d);
    dataset_close(t);
}

// Close at any moment: with workers waiting or working, before the first batch or with one out.
static void test_close_any_time(void **state) {
    (void)state;
    struct dataset *d = dataset_of(NULL, 256, 0);
    struct mem *m = mem_of();
    for (int i = 0; i < 60; i++) {
        struct loader_options o = {.dataset = d,
                                   .batch = 4,
                                   .micro_batches = 4,
                                   .replicas = 1,
                                   .prefetch = 1 + i % 5,
                                   .workers = 1 + i % 4};
        struct loader *l = open_ok(&o, m);
        struct loader_batch b;
        for (int j = 0; j < i % 3; j++) {
            if (j > 0)
                loader_release(l);
            assert_int_equal(loader_next(l, &b, NULL), 0);
        }
        assert_true(loader_ready(l) >= 0 && loader_ready(l) <= o.prefetch + 1);
        if (i % 2)
            nap_us(100);
        loader_close(l);
    }
    loader_close(NULL);
    mem_close(m);
    dataset_close(d);
}

static _Atomic(int) wrong_thread;
static pthread_t main_thread;
static void on_signal(int signal) {
    (void)signal;
    if (!pthread_equal(pthread_self(), main_thread))
        wrong_thread = 1;
}

static void test_workers_block_signals(void **state) {
    (void)state;
    main_thread = pthread_self();
    struct sigaction action = {.sa_handler = on_signal}, before;
    sigaction(SIGUSR1, &action, &before);
    struct dataset *d = dataset_of(NULL, 256, 0);
    struct mem *m = mem_of();
    struct loader_options o = {
        .dataset = d, .batch = 4, .micro_batches = 4, .replicas = 1, .prefetch = 2, .workers = 3};
    struct loader *l = open_ok(&o, m);
    for (int i = 0; i < 200; i++) {
        struct loader_batch b;
        kill(getpid(), SIGUSR1);
        assert_int_equal(loader_next(l, &b, NULL), 0);
        loader_release(l);
    }
    assert_int_equal(wrong_thread, 0);
    loader_close(l);
    sigaction(SIGUSR1, &before, NULL);
    mem_close(m);
    dataset_close(d);
}

// The speed is printed, not checked: it depends on the machine.
static double speed(const char *paths, int prefetch, int workers) {
    struct dataset *d = dataset_of(paths, 256, 0);
    struct mem *m = mem_of();
    struct loader_options o = {.dataset = d,
                               .batch = 8,
                               .micro_batches = 4,
                               .replicas = 1,
                               .prefetch = prefetch,
                               .workers = workers};
    struct loader *l = open_ok(&o, m);
    struct loader_batch b;
    double best = 0;
    for (int round = 0; round < 5; round++) {
        uint64_t begin = clock_ns(), tokens = 0;
        for (int i = 0; i < 100; i++) {
            assert_int_equal(loader_next(l, &b, NULL), 0);
            tokens += (uint64_t)b.tokens_count;
            loader_release(l);
        }
        assert_int_equal(tokens, 100 * 4 * 8 * 256); // every round does the same amount of work
        double rate = (double)tokens / 1e6 / (1e-9 * (double)(clock_ns() - begin));
        best = rate > best ? rate : best;
    }
    loader_close(l);
    mem_close(m);
    dataset_close(d);
    return best;
}

static void test_speed(void **state) {
    char *text = malloc(4 << 20);
    assert_non_null(text);
    memset(text, 's', 4 << 20);
    const char *path = folder_file(*state, "t.txt", text, 4 << 20);
    free(text);
    double inside = speed(NULL, 0, 1), ahead = speed(NULL, 2, 1), files = speed(path, 0, 1);
    print_message(
        "million tokens/s: corpus %.0f in one thread, %.0f through a worker, %.0f through "
        "two; text %.0f\n",
        inside, ahead, speed(NULL, 4, 2), files);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_determinism_corpus),
        cmocka_unit_test_setup_teardown(test_determinism_text, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_splits_of_a_step, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_errors_surface_in_order, folder_setup,
                                        folder_teardown),
        cmocka_unit_test_setup_teardown(test_options_refused, folder_setup, folder_teardown),
        cmocka_unit_test(test_close_any_time),
        cmocka_unit_test(test_workers_block_signals),
        cmocka_unit_test_setup_teardown(test_speed, folder_setup, folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
