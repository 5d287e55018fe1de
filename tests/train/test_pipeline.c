// test_pipeline.c - the data pipeline's knobs in a run: the same bits with every value, and an
// effect where the metrics show it.
//
// The machine may be busy, so effects are larger than noise, and a run that was disturbed is
// repeated.
#include "harness.h"

#include "base/clock.h"
#include "measure/verdict.h"

enum { STEPS_MOST = 512, TRIES = 6 };

struct seen {
    int64_t steps;
    double losses[STEPS_MOST];
    uint64_t wait_ns[STEPS_MOST];
    struct data_use use[STEPS_MOST];
    struct train_result result;
    uint64_t loader_bytes, data_bytes; // planned; as requested from the accountant
};

static int on_step(void *arg, const struct train_step *step, struct err *e) {
    struct seen *s = arg;
    (void)e;
    assert_true(s->steps < STEPS_MOST);
    s->losses[s->steps] = step->loss;
    s->wait_ns[s->steps] = step->data_wait_ns;
    s->use[s->steps++] = step->data;
    return 0;
}

static void go(const struct run *r, struct seen *out) {
    struct at_work s;
    struct trainer *t = NULL;
    struct err e = {0};
    struct mem_line lines[16];
    struct plan_options so = {.knobs = &r->knobs, .programs = {PLAN_TRAIN}, .real = DTYPE_F32};
    struct trainer_options to = {.observer = {.arg = out, .on_step = on_step}};
    memset(out, 0, sizeof *out);
    assert_worked(at_work_plan(&s, &so, &e), &e);
    assert_worked(trainer_at_work(&t, &s, &to, &e), &e);
    assert_worked(trainer_run(t, &out->result, &e), &e);
    out->loader_bytes = s.plan.host.loader + s.plan.host.trace;
    const size_t n = mem_lines(s.engine->mem, lines, 16);
    for (size_t i = 0; i < n; i++)
        if (strcmp(lines[i].class_name, "data") == 0)
            out->data_bytes = lines[i].peak_bytes;
    trainer_close(t);
    at_work_close(&s);
}

static void set_number(struct run *r, const char *name, uint64_t value) {
    char text[96];
    snprintf(text, sizeof text, "%s=%llu", name, (unsigned long long)value);
    run_set(r, text);
}

// 100 windows of 16 columns, with one token before the text and one after it.
static void use_text(struct run *r, const struct scratch *s) {
    char text[16 * 100 - 1], path[300];
    struct err e = {0};
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)('a' + i * i / 11 % 19);
    snprintf(path, sizeof path, "%s/text.txt", s->dir);
    assert_worked(file_write_atomic(path, text, sizeof text, &e), &e);
    snprintf(r->knobs.data_path, sizeof r->knobs.data_path, "%s", path);
    run_set(r, "data.val=0");
}

static double wait_of(const struct seen *s, int64_t from, int64_t to) {
    double sum = 0;
    for (int64_t i = from; i < to; i++)
        sum += 1e-9 * (double)s->wait_ns[i];
    return sum;
}

// ---------------------------------------------------------------- the same bits

// Two and a half epochs with every setting, in one run and in two parts.
static void test_same_bits(void **state) {
    static const char *const settings[][4] = {
        {NULL},
        {"data.prefetch=0"},
        {"data.workers=4", "data.prefetch=5"},
        {"data.ram=1MiB"},
        {"data.ram=3000", "data.workers=3"},
        {"data.source_rate=400kB", "data.ram=4000", "data.workers=4", "data.prefetch=3"},
        {"data.source_rate=400kB", "data.prefetch=0"},
    };
    static struct run plain, r;
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        char name[32];
        snprintf(name, sizeof name, "bits-%zu", i);
        run_init(&r, *state, name);
        use_text(&r, *state);
        run_set(&r, "steps=120");
        for (int k = 0; k < 4 && settings[i][k] != NULL; k++)
            run_set(&r, settings[i][k]);
        if (i > 0) { // interrupted after 70 steps, with the cache half full
            r.stop_at = 70;
            run_go(&r);
            assert_failed(r.rc, ERR_STOPPED, &r.e, "saved");
            assert_memory_equal(r.losses, plain.losses, 70 * sizeof *r.losses);
            run_again(&r);
            assert_int_equal(r.first, 70);
        } else {
            run_go(&r);
            plain = r;
        }
        assert_ran(&r);
        assert_memory_equal(r.losses + (i > 0 ? 70 : 0), plain.losses + (i > 0 ? 70 : 0),
                            (i > 0 ? 50 : 120) * sizeof *r.losses);
        assert_same_tensors(r.dir, plain.dir, 120);
    }
}

// ---------------------------------------------------------------- a slow source

static double wait_share(const struct seen *s) {
    const struct time_split *t = &s->result.metrics.split;
    return (double)t->ns[TIME_DATA_WAIT] / (double)t->wall_ns;
}

static void use_larger_batches(struct run *r) {
    run_set(r, "seq=64");
    run_set(r, "batch.micro=8");
    run_set(r, "steps=120");
    run_set(r, "save.every=0");
    run_set(r, "save.last=false");
}

// A source at half the speed that the same run reaches without a limit: about half of the time is
// data_wait, with any prefetch depth.
static void test_half_the_speed_needed(void **state) {
    static struct seen free_run, slow;
    const char *const depths[] = {"data.prefetch=2", "data.prefetch=16"};
    for (int i = 0; i < 2; i++) {
        double share = 0;
        for (int attempt = 0; attempt < TRIES && share < 0.25; attempt++) {
            struct run r;
            run_init(&r, *state, "half");
            use_larger_batches(&r);
            run_set(&r, depths[i]);
            go(&r, &free_run);
            const struct run_metrics *m = &free_run.result.metrics;
            assert_true(free_run.result.data.source_bytes == 120 * 8 * 65);
            set_number(&r, "data.source_rate",
                       (uint64_t)(0.5 * (double)m->data.source_bytes / m->wall_s));
            go(&r, &slow);
            share = wait_share(&slow);
            print_message(
                "%s: data_wait %.1f %% without a limit, %.1f %% at half the speed needed\n",
                depths[i], 100 * wait_share(&free_run), 100 * share);
            // Never faster than the source. The metrics also show how long threads wait.
            assert_true(1e-9 * (double)slow.result.wall_ns >=
                        (double)slow.result.data.source_bytes / (double)r.knobs.data_source_rate -
                            0.03);
            assert_true(slow.result.metrics.data.source_wait_ns > 0);
            assert_memory_equal(slow.losses, free_run.losses, 120 * sizeof *slow.losses);
        }
        assert_true(share >= 0.25);
    }
}

// Two epochs from a slow source. Without a cache the second epoch waits like the first. With a
// cache for all windows it reads nothing, with one for half of them it reads half.
static void test_ram_in_the_second_epoch(void **state) {
    const int64_t epoch = 50; // steps; two sequences each, 100 windows
    static struct seen s;
    double waits[3][2];
    for (int i = 0; i < 3; i++) {
        struct run r;
        run_init(&r, *state, "ram");
        use_text(&r, *state);
        run_set(&r, "save.every=0");
        run_set(&r, "save.last=false");
        set_number(&r, "steps", 2 * (uint64_t)epoch);
        set_number(&r, "data.source_rate", 100 * 34 * 2); // an epoch in half a second
        set_number(&r, "data.ram", i == 0 ? 0 : 100 * 80 / (i == 1 ? 1 : 2));
        go(&r, &s);
        const struct data_use *d = &s.result.data;
        uint64_t second = 0;
        assert_true(d->windows == 100);
        for (int64_t k = epoch; k < 2 * epoch; k++)
            second += s.use[k].source_bytes;
        const uint64_t kept = i == 0 ? 0 : i == 1 ? 100 : 50;
        assert_true(d->cache_windows == kept && d->cache_hits == kept);
        assert_true(d->cache_misses == 200 - kept && second == (100 - kept) * 34);
        waits[i][0] = wait_of(&s, 0, epoch);
        waits[i][1] = wait_of(&s, epoch, 2 * epoch);
        print_message("%3d %% of the windows kept: waited %.3f s in the first epoch, %.3f s in the "
                      "second\n",
                      (int)kept, waits[i][0], waits[i][1]);
        // The plan has exactly what the loader requested. The samples of step times are extra.
        assert_true(s.data_bytes == s.loader_bytes - 2 * (size_t)(2 * epoch + 1) * sizeof(double));
    }
    assert_true(waits[1][1] < 0.3 * waits[1][0]);
    assert_true(waits[1][1] < 0.3 * waits[0][1]);
    assert_true(waits[2][1] < 0.8 * waits[0][1]);
}

// A wait for data ends when the run is asked to stop, and the steps before it are saved.
static void test_stop_while_waiting(void **state) {
    static const char *const depths[] = {"data.prefetch=0", "data.prefetch=2"};
    static struct run r;
    for (int i = 0; i < 2; i++) {
        char name[32];
        snprintf(name, sizeof name, "stop-%d", i);
        run_init(&r, *state, name);
        run_set(&r, depths[i]);
        run_set(&r, "data.source_rate=170"); // a fifth of a second each
        run_set(&r, "steps=1000000");
        r.flag_at = 5;
        const uint64_t begin = clock_ns();
        run_go(&r);
        assert_failed(r.rc, ERR_STOPPED, &r.e, "stopped on request|saved");
        assert_true(r.last >= 5 && r.last < 5 + 5);
        assert_int_equal(r.saves, 1);
        assert_true(clock_ns() - begin < 30000000000u);
    }
}

// A wait for data ends with the run's time, and the steps before it are saved. Without a step the
// run has failed.
static void test_time_while_waiting(void **state) {
    static const char *const depths[] = {"data.prefetch=0", "data.prefetch=2"};
    static struct run r;
    for (int i = 0; i < 4; i++) {
        char name[32];
        snprintf(name, sizeof name, "time-%d", i);
        run_init(&r, *state, name);
        run_set(&r, depths[i % 2]);
        // A batch takes a fifth of a second, or a minute.
        run_set(&r, i < 2 ? "data.source_rate=170" : "data.source_rate=1");
        run_set(&r, "steps=1000000");
        run_set(&r, i < 2 ? "time=700ms" : "time=1100ms");
        const uint64_t begin = clock_ns();
        run_go(&r);
        assert_true(clock_ns() - begin < 10000000000u);
        if (i < 2) {
            assert_ran(&r);
            assert_int_equal(r.result.end, TRAIN_TIME);
            assert_true(r.last >= 1 && r.last <= 8);
            assert_int_equal(r.saves, 1);
        } else {
            assert_failed(r.rc, ERR_IO, &r.e, "no step was made|time=1.1 s|too slow");
        }
    }
}

// epochs decides the number of steps: each window of the data is read that often.
static void test_epochs(void **state) {
    static struct run r;
    static const struct {
        const char *epochs;
        double passes;
    } cases[] = {{"epochs=2", 2}, {"epochs=0.5", 0.5}, {"epochs=1e-6", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[32];
        snprintf(name, sizeof name, "epochs-%zu", i);
        run_init(&r, *state, name);
        use_text(&r, *state);
        r.knobs.by[KNOB_steps] = SET_BY_DEFAULT;
        run_set(&r, "batch.accum=2");
        run_set(&r, cases[i].epochs);
        run_go(&r);
        assert_ran(&r);
        // Rounded up to a whole step of 4 windows, of the 100 that the data fills.
        assert_int_equal(r.last, cases[i].passes > 0 ? (int)ceil(25 * cases[i].passes) : 1);
        assert_true(r.result.epoch >= cases[i].passes && r.result.epoch < cases[i].passes + 0.05);
        assert_true(fabs(r.lrs[r.last - 1] / (3e-3 * r.knobs.sched_min) - 1) < 1e-3 || r.last == 1);
    }
    run_init(&r, *state, "endless");
    r.knobs.by[KNOB_steps] = SET_BY_DEFAULT;
    run_set(&r, "epochs=1");
    run_go(&r);
    assert_failed(r.rc, ERR_USAGE, &r.e, "epochs=1|never repeats|set steps, or data.path");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_half_the_speed_needed),
        cmocka_unit_test(test_ram_in_the_second_epoch),
        cmocka_unit_test(test_stop_while_waiting),
        cmocka_unit_test(test_time_while_waiting),
        cmocka_unit_test(test_epochs),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
