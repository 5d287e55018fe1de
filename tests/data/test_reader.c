// test_reader.c - the limit on the source and the windows kept in RAM. Batches are the same to the
// bit, the bytes from the source do not depend on timing, and waits end on request.
//
// Times are compared with a bound that arithmetic gives. Where something must be quick, it is
// compared with something that is slow by construction.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/hash.h"
#include "data/loader.h"
#include "data/reader.h"
#include "data/scratch.h"

#include <signal.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { STEPS = 60, SEQ = 24, BATCH = 3, MICROS = 2, SAMPLES = BATCH * MICROS };

static struct mem *mem_of(void) {
    struct mem *m;
    assert_int_equal(mem_open(&m, NULL), 0);
    return m;
}

static struct dataset *dataset_of(struct dataset_options o) {
    struct dataset *d;
    struct err e = {0};
    o.seed = 4;
    if (o.seq == 0)
        o.seq = SEQ;
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

static struct loader_options options_of(const struct dataset *d) {
    return (struct loader_options){.dataset = d,
                                   .batch = BATCH,
                                   .micro_batches = MICROS,
                                   .replicas = 1,
                                   .prefetch = 2,
                                   .workers = 1};
}

static uint64_t hash_of_batch(const struct loader_batch *b) {
    size_t bytes = (size_t)b->tokens_count * sizeof(int32_t);
    uint64_t h[4] = {hash_u64(b->tokens, bytes), hash_u64(b->targets, bytes),
                     hash_u64(b->positions, bytes), hash_u64(b->doc_start, bytes)};
    return hash_u64(h, sizeof h);
}

struct seen {
    uint64_t hash, source_bytes, hits, misses;
};

static void run(struct loader *l, struct seen *seen, int steps) {
    for (int i = 0; i < steps; i++) {
        struct loader_batch b;
        struct err e = {0};
        if (loader_next(l, &b, &e) != 0)
            fail_msg("%s", e.text);
        seen[i] = (struct seen){hash_of_batch(&b), b.use.source_bytes, b.use.cache_hits,
                                b.use.cache_misses};
        assert_true(b.use.cache_hits + b.use.cache_misses == SAMPLES);
        assert_true(b.use.cache_windows == loader_cache_windows(l));
        assert_true(b.use.source_wait_ns <= b.use.make_ns);
        loader_release(l);
    }
}

// ---------------------------------------------------------------- the same batches

// Computes the expected use: a window drawn for the cache is read from the source once.
static void expect_use(const struct dataset *d, uint64_t ram, struct seen *out) {
    struct mem *m = mem_of();
    const struct reader_options o = {.dataset = d, .ram = ram};
    struct reader r;
    assert_int_equal(reader_open(&r, &o, m, NULL), 0);
    for (int i = 0; i < STEPS; i++) {
        struct data_use use = {0};
        for (uint64_t k = 0; k < SAMPLES; k++)
            reader_plan(&r, (uint64_t)i * SAMPLES + k, &use);
        out[i].source_bytes = use.source_bytes;
        out[i].hits = use.cache_hits;
        out[i].misses = use.cache_misses;
    }
    reader_close(&r);
    mem_close(m);
}

static void same_batches(const struct dataset *d, bool repeats) {
    const uint64_t windows = dataset_windows(d, SPLIT_TRAIN);
    const uint64_t all = repeats ? windows * (dataset_kept_bytes(d) + 200) : 1 << 20;
    const uint64_t rams[] = {0, all / 3, all};
    struct seen plain[STEPS], seen[STEPS], expected[STEPS];
    for (int i = 0; i < 3; i++) {
        expect_use(d, rams[i], expected);
        for (int prefetch = 0; prefetch <= 4; prefetch = prefetch ? prefetch * 4 : 1)
            for (int workers = 1; workers <= 4; workers += prefetch ? 3 : 4)
                for (uint64_t rate = 0; rate <= 1000000; rate += 1000000) {
                    struct mem *m = mem_of();
                    struct loader_options o = options_of(d);
                    o.prefetch = prefetch;
                    o.workers = workers;
                    o.source_rate = rate;
                    const uint64_t without = loader_plan_bytes(&o);
                    o.ram = rams[i];
                    assert_true(loader_plan_bytes(&o) - without <= rams[i]);
                    struct loader *l = open_ok(&o, m);
                    assert_true(mem_bytes(m) == loader_plan_bytes(&o));
                    run(l, seen, STEPS);
                    if (i == 0 && prefetch == 0 && rate == 0)
                        memcpy(plain, seen, sizeof plain);
                    for (int k = 0; k < STEPS; k++) {
                        assert_true(seen[k].hash == plain[k].hash);
                        expected[k].hash = plain[k].hash;
                    }
                    assert_memory_equal(seen, expected, sizeof seen);
                    loader_close(l);
                    assert_true(mem_bytes(m) == 0);
                    // Resumed in the middle, with nothing kept yet, the batches are the same.
                    o.position = 20 * SAMPLES;
                    l = open_ok(&o, m);
                    run(l, seen, 10);
                    for (int k = 0; k < 10; k++)
                        assert_true(seen[k].hash == plain[20 + k].hash);
                    loader_close(l);
                    mem_close(m);
                }
        uint64_t hits = 0;
        for (int k = 0; k < STEPS; k++)
            hits += expected[k].hits;
        assert_true((hits > 0) == (i > 0 && repeats));
    }
}

static void test_same_batches_corpus(void **state) {
    (void)state;
    struct dataset *d = dataset_of((struct dataset_options){.validation_fraction = 0.1});
    same_batches(d, false);
    dataset_close(d);
}

static const char *text_file(void **state, const char *name, size_t bytes) {
    char *text = malloc(bytes);
    assert_non_null(text);
    for (size_t i = 0; i < bytes; i++)
        text[i] = (char)('a' + i * i / 7 % 23);
    const char *path = folder_file(*state, name, text, bytes);
    free(text);
    return path;
}

static const char *records_file(void **state, const char *name, int n) {
    char *text = calloc((size_t)n, 200);
    size_t at = 0;
    assert_non_null(text);
    for (int i = 0; i < n; i++)
        at += (size_t)sprintf(text + at, "{\"prompt\": \"%.*s\", \"completion\": \"%.*s\"}\n",
                              1 + i % 9, "questions", 1 + i * 5 % 17, "answers of any le");
    const char *path = folder_file(*state, name, text, at);
    free(text);
    return path;
}

static void test_same_batches_text(void **state) {
    const char *path = text_file(state, "t.txt", 3000);
    struct dataset *d = dataset_of((struct dataset_options){.paths = path});
    assert_true(dataset_windows(d, SPLIT_TRAIN) < STEPS * SAMPLES / 2);
    same_batches(d, true);
    dataset_close(d);
}

// Several documents per window, padding, untrained columns, two pools with weights.
static void test_same_batches_records(void **state) {
    char paths[600];
    snprintf(paths, sizeof paths, "%s:3,%s:1", records_file(state, "a.jsonl", 120),
             text_file(state, "t.txt", 700));
    struct dataset *d = dataset_of((struct dataset_options){.paths = paths});
    assert_true(dataset_stats(d, SPLIT_TRAIN).padding > 0);
    assert_true(dataset_windows(d, SPLIT_TRAIN) < STEPS * SAMPLES / 2);
    same_batches(d, true);
    dataset_close(d);
}

// Ids that need more than 16 bits, in the shard and in memory.
static void test_same_batches_wide(void **state) {
    enum { VOCAB = 70000 };
    char *json = malloc(VOCAB * 24 + 8192);
    assert_non_null(json);
    size_t at = (size_t)sprintf(
        json,
        "{\"version\": \"1.0\", \"added_tokens\": [], \"normalizer\": null, \"pre_tokenizer\": "
        "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, "
        "\"use_regex\": true}, \"post_processor\": null, \"decoder\": {\"type\": "
        "\"ByteLevel\"}, \"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, "
        "\"continuing_subword_prefix\": null, \"end_of_word_suffix\": null, \"fuse_unk\": "
        "false, \"byte_fallback\": false, \"vocab\": {");
    unsigned next = 256; // spells bytes as byte-level tokenizers do
    for (unsigned i = 0; i < VOCAB; i++) {
        const bool prints = (i > 32 && i < 127) || (i > 160 && i < 256 && i != 173);
        const unsigned letter = i < 256 && !prints ? next++ : i;
        if (i >= 256)
            at += (size_t)sprintf(json + at, ", \"aa%u\": %u", i, i);
        else if (letter < 128)
            at += (size_t)sprintf(json + at, "%s\"%s%c\": %u", i ? ", " : "",
                                  letter == '"' || letter == '\\' ? "\\" : "", (int)letter, i);
        else
            at += (size_t)sprintf(json + at, "%s\"%c%c\": %u", i ? ", " : "",
                                  (int)(0xc0 | letter >> 6), (int)(0x80 | (letter & 63)), i);
    }
    at += (size_t)sprintf(json + at, "}, \"merges\": []}}");
    const char *file = folder_file(*state, "tokenizer.json", json, at);
    const char *end = "{\"eos_token\": \"aa66000\"}";
    folder_file(*state, "tokenizer_config.json", end, strlen(end));
    at = 0;
    for (int i = 0; i < 60; i++) {
        at += (size_t)sprintf(json + at, "{\"input_ids\": [");
        for (int k = 0; k < 10 + i % 7; k++)
            at +=
                (size_t)sprintf(json + at, "%s%d", k ? ", " : "", (i * 7919 + k * 104729) % VOCAB);
        at += (size_t)sprintf(json + at, "]}\n");
    }
    const char *path = folder_file(*state, "ids.jsonl", json, at);
    free(json);
    struct knobs k;
    struct err e = {0};
    struct dataset *d;
    const struct shard_listener listener = {0};
    knobs_init(&k);
    snprintf(k.tokenizer, sizeof k.tokenizer, "%s", file);
    snprintf(k.data_path, sizeof k.data_path, "%s", path);
    snprintf(k.data_cache, sizeof k.data_cache, "none");
    k.seq = SEQ;
    k.data_val = 0;
    if (dataset_open_knobs(&d, &k, NULL, 0, &listener, &e) != 0)
        fail_msg("%s", e.text);
    assert_true(dataset_file_shard(d, 0)->wide);
    assert_true(dataset_kept_bytes(d) == 2 * SEQ * sizeof(int32_t));
    same_batches(d, true);
    dataset_close(d);
}

// ---------------------------------------------------------------- what the cache saves

static void test_epochs(void **state) {
    struct dataset *d =
        dataset_of((struct dataset_options){.paths = text_file(state, "t.txt", 40 * SEQ + 1)});
    const uint64_t windows = dataset_windows(d, SPLIT_TRAIN);
    const uint64_t entry = 16 + (dataset_kept_bytes(d) + 63) / 64 * 64;
    uint64_t first = 0;
    for (uint64_t w = 0; w < windows; w++)
        first += dataset_about(d, SPLIT_TRAIN, w).source_bytes;
    assert_true(first == windows * (SEQ + 1) * 2); // ids of bytes take 16 bits here
    for (uint64_t room = 0; room <= windows + 10; room += 13) {
        const struct reader_options o = {.dataset = d, .ram = room * entry + entry - 1};
        struct mem *m = mem_of();
        struct reader r;
        assert_int_equal(reader_open(&r, &o, m, NULL), 0);
        assert_true(r.windows == (room < windows ? room : windows));
        assert_true(mem_bytes(m) == r.windows * entry && mem_bytes(m) == reader_plan_bytes(&o));
        for (uint64_t epoch = 0; epoch < 3; epoch++) {
            struct data_use use = {0};
            for (uint64_t i = 0; i < windows; i++)
                reader_plan(&r, epoch * windows + i, &use);
            const uint64_t hits = epoch > 0 ? r.windows : 0;
            assert_true(use.cache_hits == hits && use.cache_misses == windows - hits);
            assert_true(use.source_bytes == (windows - hits) * (SEQ + 1) * 2);
        }
        reader_close(&r);
        mem_close(m);
    }
    dataset_close(d);
}

// Another seed keeps another subset; the same seed keeps the same one.
static void test_subset_is_drawn(void **state) {
    const char *path = text_file(state, "t.txt", 100 * SEQ - 1);
    unsigned char kept[3][100] = {{0}};
    for (int i = 0; i < 3; i++) {
        struct dataset *d;
        const struct dataset_options data = {.paths = path, .seed = i == 2 ? 9 : 8, .seq = SEQ};
        assert_int_equal(dataset_open(&d, &data, NULL), 0);
        const struct reader_options o = {.dataset = d,
                                         .ram = 30 * (16 + (dataset_kept_bytes(d) + 63) / 64 * 64)};
        struct mem *m = mem_of();
        struct reader r;
        assert_int_equal(reader_open(&r, &o, m, NULL), 0);
        int n = 0;
        assert_true(dataset_windows(d, SPLIT_TRAIN) == 100);
        for (uint64_t s = 0; s < 200; s++) {
            struct data_use use = {0};
            reader_plan(&r, s, &use);
            kept[i][dataset_about(d, SPLIT_TRAIN, s).window] |= use.cache_hits > 0;
        }
        for (int w = 0; w < 100; w++)
            n += kept[i][w];
        assert_int_equal(n, 30);
        reader_close(&r);
        mem_close(m);
        dataset_close(d);
    }
    assert_memory_equal(kept[0], kept[1], sizeof kept[0]);
    assert_memory_not_equal(kept[0], kept[2], sizeof kept[0]);
}

// With a cache, errors also come in order, and no worker waits for a window that could not be read.
static void test_errors(void **state) {
    const char *path = text_file(state, "t.txt", 400 * SEQ);
    for (int prefetch = 0; prefetch <= 6; prefetch += 3) {
        struct dataset *d = dataset_of(
            (struct dataset_options){.paths = path, .cache = folder_path(*state, "cache")});
        struct mem *m = mem_of();
        struct loader_options o = options_of(d);
        o.prefetch = prefetch;
        o.workers = 4;
        o.ram = 1 << 20;
        struct loader *l = open_ok(&o, m);
        struct seen seen[3];
        run(l, seen, 3);
        assert_int_equal(truncate(dataset_file_shard(d, 0)->path, 100), 0);
        struct loader_batch b;
        struct err e = {0};
        int rc = 0, delivered = 0;
        for (; rc == 0 && delivered < 100; delivered += rc == 0) {
            rc = loader_next(l, &b, &e);
            loader_release(l);
        }
        assert_int_equal(rc, ERR_MISMATCH);
        assert_true(delivered <= prefetch + 4);
        assert_int_equal(loader_next(l, &b, &e), ERR_MISMATCH);
        loader_close(l);
        mem_close(m);
        dataset_close(d);
    }
}

// ---------------------------------------------------------------- the limit

// Slots follow one another without gap or loss, over a second as well as over an hour.
static void test_slots_are_exact(void **state) {
    (void)state;
    struct dataset *d = dataset_of((struct dataset_options){0});
    const struct reader_options o = {.dataset = d, .source_rate = 30000};
    struct mem *m = mem_of();
    struct reader r;
    assert_int_equal(reader_open(&r, &o, m, NULL), 0);
    const uint64_t begin = clock_ns();
    uint64_t until = reader_reserve(&r, 30000), first = until;
    assert_true(until >= begin + 1000000000 - SOURCE_CREDIT_NS);
    for (int i = 0; i < 1000; i++)
        until = reader_reserve(&r, 300);
    assert_in_range(until - first, 10 * UINT64_C(1000000000) - 1000, 10 * UINT64_C(1000000000));
    assert_true(reader_reserve(&r, UINT64_MAX) > until); // no overflow
    reader_close(&r);
    const struct reader_options none = {.dataset = d};
    assert_int_equal(reader_open(&r, &none, m, NULL), 0);
    assert_true(reader_reserve(&r, 1 << 30) == 0);
    reader_close(&r);
    mem_close(m);
    dataset_close(d);
}

// Any number of threads together is never faster than the limit, and the threads sleep while they
// wait.
static void test_rate_is_shared(void **state) {
    (void)state;
    struct dataset *d = dataset_of((struct dataset_options){0});
    struct mem *m = mem_of();
    for (int workers = 1; workers <= 4; workers += 3) {
        struct loader_options o = options_of(d);
        struct seen seen[20];
        struct timespec cpu[2];
        uint64_t bytes = 0;
        o.workers = workers;
        o.prefetch = 4;
        o.source_rate = 20 * SAMPLES * (SEQ + 1) * 4; // 20 steps in a quarter of a second
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu[0]);
        const uint64_t begin = clock_ns();
        struct loader *l = open_ok(&o, m);
        run(l, seen, 20);
        const double seconds = 1e-9 * (double)(clock_ns() - begin);
        loader_close(l);
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu[1]);
        for (int i = 0; i < 20; i++)
            bytes += seen[i].source_bytes;
        const double least = (double)bytes / (double)o.source_rate - 1e-9 * SOURCE_CREDIT_NS;
        const double busy = (double)(cpu[1].tv_sec - cpu[0].tv_sec) +
                            1e-9 * (double)(cpu[1].tv_nsec - cpu[0].tv_nsec);
        print_message("%d workers: %.3f s for %.3f s of bytes, %.3f s of CPU time\n", workers,
                      seconds, (double)bytes / (double)o.source_rate, busy);
        assert_true(seconds >= least);
        assert_true(busy < 0.5 * seconds);
    }
    mem_close(m);
    dataset_close(d);
}

static volatile sig_atomic_t stop_flag;

static void on_alarm(int signal) {
    (void)signal;
    stop_flag = 1;
}

// With a source that would take years, a request ends the wait, and so does closing. The
// interrupted batch can be requested again.
static void test_waits_end(void **state) {
    (void)state;
    struct dataset *d = dataset_of((struct dataset_options){0});
    struct mem *m = mem_of();
    const struct itimerval soon = {.it_value = {0, 30000}};
    struct sigaction action = {.sa_handler = on_alarm}, before;
    sigaction(SIGALRM, &action, &before);
    for (int prefetch = 0; prefetch <= 4; prefetch += 2) {
        struct loader_options o = options_of(d);
        struct loader_batch b;
        struct err e = {0};
        o.prefetch = prefetch;
        o.workers = 3;
        o.source_rate = 1;
        o.stop = &stop_flag;
        stop_flag = 0;
        struct loader *l = open_ok(&o, m);
        assert_int_equal(setitimer(ITIMER_REAL, &soon, NULL), 0);
        assert_int_equal(loader_next(l, &b, &e), ERR_STOPPED);
        assert_non_null(strstr(e.text, "waiting for data"));
        assert_int_equal(loader_next(l, &b, &e), ERR_STOPPED);
        assert_true(loader_position(l) == 0);
        loader_close(l); // returns at once, or this test times out
        // The interrupted step is delivered whole.
        struct seen plain, again;
        o.source_rate = 0;
        stop_flag = 0;
        l = open_ok(&o, m);
        run(l, &plain, 1);
        loader_close(l);
        o.source_rate = 3 * SAMPLES * (SEQ + 1);
        stop_flag = 1;
        l = open_ok(&o, m);
        const int rc = loader_next(l, &b, &e);
        stop_flag = 0;
        if (rc != 0) { // else this process was suspended for as long as the source needed
            assert_int_equal(rc, ERR_STOPPED);
            run(l, &again, 1);
            assert_memory_equal(&plain, &again, sizeof plain);
        }
        loader_close(l);
    }
    sigaction(SIGALRM, &before, NULL);
    mem_close(m);
    dataset_close(d);
}

// A consumer that waits in several calls gets the same batch, and the whole wait is counted.
static void test_waits_in_turns(void **state) {
    (void)state;
    struct dataset *d = dataset_of((struct dataset_options){0});
    struct mem *m = mem_of();
    for (int prefetch = 0; prefetch <= 2; prefetch += 2) {
        struct loader_options o = options_of(d);
        struct seen plain, again;
        struct loader_batch b;
        o.prefetch = prefetch;
        struct loader *l = open_ok(&o, m);
        while (!loader_wait(l, 1000000)) {
        }
        run(l, &plain, 1);
        loader_close(l);
        o.source_rate = 5 * SAMPLES * (SEQ + 1); // takes at least a fifth of a second
        l = open_ok(&o, m);
        const uint64_t begin_ns = clock_ns();
        int turns = 0;
        while (!loader_wait(l, 1000000))
            turns++;
        const uint64_t waited_ns = clock_ns() - begin_ns;
        assert_true(turns > 0);
        assert_int_equal(loader_next(l, &b, NULL), 0);
        assert_true(b.wait_ns >= waited_ns && b.use.source_wait_ns > 0);
        assert_true(b.use.source_wait_ns <= b.use.make_ns);
        again = (struct seen){hash_of_batch(&b), b.use.source_bytes, b.use.cache_hits,
                              b.use.cache_misses};
        assert_memory_equal(&plain, &again, sizeof plain);
        assert_true(loader_wait(l, 0)); // a batch is out: loader_next will return an error
        loader_release(l);
        loader_close(l);
    }
    mem_close(m);
    dataset_close(d);
}

// ---------------------------------------------------------------- workers and prefetch

// Four workers make four batches at once, so the fourth is being made while the source delivers the
// three before it. One worker begins the fourth when the third is done.
static void test_workers_side_by_side(void **state) {
    (void)state;
    struct dataset *d = dataset_of((struct dataset_options){0});
    struct mem *m = mem_of();
    const uint64_t beat_ns = 40000000;
    uint64_t fourth_ns[2] = {0, UINT64_MAX};
    for (int i = 0; i < 2; i++)
        for (int round = 0; round < 2; round++) { // uses the round with less disturbance
            struct loader_options o = options_of(d);
            struct loader_batch b;
            o.workers = i == 0 ? 4 : 1;
            o.prefetch = 4;
            o.source_rate = (uint64_t)(1e9 * SAMPLES * (SEQ + 1) / (double)beat_ns);
            struct loader *l = open_ok(&o, m);
            for (int k = 0; k < 4; k++) {
                assert_int_equal(loader_next(l, &b, NULL), 0);
                loader_release(l);
            }
            const uint64_t ns = b.use.make_ns;
            fourth_ns[i] = (i == 0) == (ns > fourth_ns[i]) ? ns : fourth_ns[i];
            loader_close(l);
        }
    print_message("the fourth batch was in work for %.0f ms with 4 workers, %.0f ms with 1\n",
                  1e-6 * (double)fourth_ns[0], 1e-6 * (double)fourth_ns[1]);
    assert_true(fourth_ns[0] > 2 * beat_ns && fourth_ns[1] < fourth_ns[0]);
    mem_close(m);
    dataset_close(d);
}

enum { BURST = 4, ROUNDS = 4 };

// A consumer takes BURST batches at once, then works for as long as the source needs for `beats`
// batches. Returns the shortest wait of a round, the sum of all waits, and the rest of the time.
static void bursts(const struct dataset *d, int prefetch, double beats, uint64_t beat_ns,
                   uint64_t *least_ns, uint64_t *sum_ns, uint64_t *worked_ns) {
    struct mem *m = mem_of();
    struct loader_options o = options_of(d);
    o.prefetch = prefetch;
    o.workers = prefetch > 0 ? prefetch : 1;
    o.source_rate = (uint64_t)(1e9 * SAMPLES * (SEQ + 1) / (double)beat_ns);
    const uint64_t begin_ns = clock_ns(); // time of the first slot
    struct loader *l = open_ok(&o, m);
    *least_ns = UINT64_MAX;
    *sum_ns = 0;
    for (int round = 0; round < ROUNDS; round++) {
        const uint64_t work_ns = (uint64_t)(beats * (double)beat_ns);
        const struct timespec work = {(time_t)(work_ns / 1000000000), (long)(work_ns % 1000000000)};
        uint64_t waited_ns = 0;
        nanosleep(&work, NULL);
        for (int i = 0; i < BURST; i++) {
            struct loader_batch b;
            assert_int_equal(loader_next(l, &b, NULL), 0);
            waited_ns += b.wait_ns;
            loader_release(l);
        }
        *least_ns = waited_ns < *least_ns ? waited_ns : *least_ns;
        *sum_ns += waited_ns;
    }
    *worked_ns = clock_ns() - begin_ns - *sum_ns;
    loader_close(l);
    mem_close(m);
}

// The source has more time than it needs, but batches are taken in bursts. With room for a burst
// there is no wait. A source that is too slow stays too slow with any prefetch.
static void test_prefetch_hides_jitter_only(void **state) {
    (void)state;
    struct dataset *d = dataset_of((struct dataset_options){0});
    const uint64_t beat_ns = 25000000;
    const double half = BURST / 2.0;
    uint64_t none, shallow, deep, short_none, short_deep, sums[5], worked;
    bursts(d, 0, 2 * BURST, beat_ns, &none, &sums[0], &worked);
    bursts(d, 1, 2 * BURST, beat_ns, &shallow, &sums[1], &worked);
    bursts(d, 2 * BURST, 2 * BURST, beat_ns, &deep, &sums[2], &worked);
    bursts(d, 0, half, beat_ns, &short_none, &sums[3], &worked);
    bursts(d, 2 * BURST, half, beat_ns, &short_deep, &sums[4], &worked);
    print_message(
        "wait of %d bursts: prefetch 0 %.0f ms, 1 %.0f ms, %d %.0f ms; with half the bytes "
        "needed %.0f and %.0f ms\n",
        ROUNDS, 1e-6 * (double)sums[0], 1e-6 * (double)sums[1], 2 * BURST, 1e-6 * (double)sums[2],
        1e-6 * (double)sums[3], 1e-6 * (double)sums[4]);
    // Without prefetch every batch is read while the consumer waits; with 1, all but those made
    // ahead.
    assert_true(none >= BURST * beat_ns - SOURCE_CREDIT_NS);
    assert_true(shallow >= (BURST - 2) * beat_ns - SOURCE_CREDIT_NS);
    assert_true(deep < shallow && deep < beat_ns);
    // Too slow a source: the wait is at least the time for the bytes minus the consumer's work.
    const uint64_t source_ns = BURST * ROUNDS * (beat_ns - 10) - SOURCE_CREDIT_NS;
    assert_true(sums[4] + worked >= source_ns);
    assert_true(short_none >= BURST * beat_ns - SOURCE_CREDIT_NS);
    dataset_close(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_batches_corpus),
        cmocka_unit_test_setup_teardown(test_same_batches_text, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_same_batches_records, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_same_batches_wide, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_epochs, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_subset_is_drawn, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_errors, folder_setup, folder_teardown),
        cmocka_unit_test(test_slots_are_exact),
        cmocka_unit_test(test_rate_is_shared),
        cmocka_unit_test(test_waits_end),
        cmocka_unit_test(test_waits_in_turns),
        cmocka_unit_test(test_workers_side_by_side),
        cmocka_unit_test(test_prefetch_hides_jitter_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
