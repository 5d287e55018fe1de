// What is kept between sessions of one process: on the host and on a device, whose memory is its own. The
// device here is the CPU's backend behind a door: copies in and out, and so many bytes of memory.
#include "train/harness.h"
#include "train/kept.h"
#include "train/trial.h"

#include "backend/cpu/cpu.h"
#include "base/pool.h"

enum { STEPS = 3, MIB = 1 << 20 };

static struct knobs knobs_of(const char *text) {
    struct knobs k;
    struct err e = {0};
    char copy[512], *rest = copy;
    knobs_init(&k);
    snprintf(copy, sizeof copy, "device=cpu seq=16 batch.micro=2 threads=1 %s", text);
    for (char *one; (one = strsep(&rest, " ")) != NULL;)
        if (*one)
            assert_worked(knobs_set_assignment(&k, one, SET_BY_COMMAND_LINE, &e), &e);
    return k;
}

static int measure(const char *text, struct kept *kept, struct trial_result *out, struct err *e) {
    const struct knobs k = knobs_of(text);
    const struct trial_options o = {.warmup = 0, .steps = STEPS};
    assert_worked(trial_open(out, &o, e), e);
    return trial_measure(&k, &o, kept, out, e);
}

// With what is kept, or as if nothing were.
static void assert_trial(struct kept *kept, const char *text, bool keeps) {
    struct trial_result a, b;
    struct err e = {0};
    assert_worked(measure(text, kept, &a, &e), &e);
    assert_int_equal(a.kept_weights, keeps);
    if (!keeps) {
        assert_worked(measure(text, NULL, &b, &e), &e);
        if (a.loss_first != b.loss_first || a.loss_last != b.loss_last)
            fail_msg("%s: losses %.17g to %.17g, alone %.17g to %.17g", text, a.loss_first,
                     a.loss_last, b.loss_first, b.loss_last);
        trial_free(&b);
    }
    trial_free(&a);
}

// ---------------------------------------------------------------- a device

struct door {
    uint64_t total, taken;
    int arenas, copies;
    int (*take)(struct backend *b, uint64_t bytes, void **out, struct err *e);
    void (*give)(struct backend *b, void *arena);
    uint64_t sizes[8];
    void *blocks[8];
};

static struct door door; // a backend's functions get nothing else to find it by

static int door_take(struct backend *b, uint64_t bytes, void **out, struct err *e) {
    TRY(door.take(b, bytes, out, e));
    for (int i = 0; i < 8; i++)
        if (!door.blocks[i]) {
            door.blocks[i] = *out, door.sizes[i] = bytes;
            door.taken += bytes;
            door.arenas++;
            return 0;
        }
    return err_set(e, ERR_INTERNAL, "the door knows 8 blocks");
}

static void door_give(struct backend *b, void *arena) {
    for (int i = 0; i < 8; i++)
        if (door.blocks[i] == arena) {
            door.taken -= door.sizes[i];
            door.blocks[i] = NULL;
        }
    door.give(b, arena);
}

static int door_copy(struct backend *b, void *to, const void *from, uint64_t bytes, struct err *e) {
    (void)b, (void)e;
    memcpy(to, from, bytes);
    door.copies++;
    return 0;
}

static int door_memory(struct backend *b, uint64_t *left, uint64_t *total, struct err *e) {
    (void)b, (void)e;
    *left = door.total - door.taken;
    *total = door.total;
    return 0;
}

// A keeper that already has the device open.
static struct kept *open_device(uint64_t bytes) {
    struct knobs k = knobs_of("");
    struct session s = {.knobs = k};
    struct kept *kept;
    struct err e = {0};
    const struct cpu_options o = {.blas = "auto", .isa = "auto"};
    door = (struct door){.total = bytes};
    assert_worked(kept_open(&kept, &e), &e);
    kept_lend(kept, &s); // its accountant
    assert_worked(pool_open(&s.pool, 1, 0, &e), &e);
    assert_worked(cpu_backend_open(&s.backend, s.mem, s.pool, &o, &e), &e);
    door.take = s.backend->arena_take;
    door.give = s.backend->arena_give;
    s.backend->arena_take = door_take;
    s.backend->arena_give = door_give;
    s.backend->copy_in = s.backend->copy_out = door_copy;
    s.backend->memory = door_memory;
    kept_adopt(kept, &s);
    return kept;
}

static void test_a_device_keeps_its_arena(void **state) {
    struct kept *kept = open_device((uint64_t)1024 * MIB);
    (void)state;
    assert_trial(kept, "batch.micro=4", false);
    assert_int_equal(door.arenas, 1);
    assert_trial(kept, "batch.micro=1", true); // smaller
    assert_trial(kept, "batch.micro=5", true); // larger, and there is room
    assert_int_equal(door.arenas, 1);
    assert_trial(kept, "precision=bf16", false); // other weights in the same arena
    assert_int_equal(door.arenas, 1);
    assert_trial(kept, "batch.micro=64", false); // a new arena, zero again
    assert_int_equal(door.arenas, 2);
    assert_trial(kept, "batch.micro=64 batch.accum=2", true);
    kept_close(kept);
    assert_int_equal(door.taken, 0);
}

// Where there is little memory no more is taken than the plan says, and what is kept counts as free.
static void test_a_device_that_is_nearly_full(void **state) {
    struct kept *kept = open_device((uint64_t)1024 * MIB);
    struct session s;
    struct knobs k = knobs_of("batch.micro=4");
    const struct session_options o = {.knobs = &k, .has = {true}, .real = DTYPE_F32, .kept = kept};
    struct trial_result r;
    struct err e = {0};
    (void)state;
    assert_worked(session_plan(&s, &o, &e), &e);
    const uint64_t arena = s.layout.arena_bytes;
    session_close(&s);
    door.total = arena + arena / 4;
    assert_trial(kept, "batch.micro=4", false);
    assert_int_equal(door.taken, arena);
    assert_trial(kept, "batch.micro=4", true);
    assert_int_equal(measure("batch.micro=64", kept, &r, &e), ERR_MEMORY);
    assert_non_null(strstr(e.text, "what the device has left"));
    assert_false(r.started);
    trial_free(&r);
    assert_int_equal(door.taken, arena); // refused before anything was given up
    assert_trial(kept, "batch.micro=4", true);
    kept_close(kept);
}

// The device's figure is the plan's, however large the arena that is kept.
static void test_device_bytes_are_the_plans(void **state) {
    struct kept *kept = open_device((uint64_t)1024 * MIB);
    (void)state;
    assert_trial(kept, "batch.micro=8", false);
    for (int micro = 1; micro <= 8; micro *= 2) {
        struct session s;
        struct knobs k = knobs_of("");
        struct err e = {0};
        k.batch_micro = micro;
        const struct session_options o = {
            .knobs = &k, .has = {true}, .real = DTYPE_F32, .kept = kept};
        assert_worked(session_plan(&s, &o, &e), &e);
        assert_worked(session_start(&s, &e), &e);
        assert_int_equal(session_device_bytes(&s), s.layout.arena_bytes);
        kept_state_sound(kept);
        session_close(&s);
    }
    kept_close(kept);
}

// ---------------------------------------------------------------- the host

// A trial with pinned threads narrows the calling thread's CPUs while it is there, and no longer.
static void test_pinned_threads_leave_no_trace(void **state) {
    struct kept *kept;
    struct err e = {0};
    const char *const settings[] = {"threads=0 cpu.pin=true", "threads=0 cpu.pin=false"};
    const int cpus = pool_machine_cpus();
    (void)state;
    assert_worked(kept_open(&kept, &e), &e);
    for (int i = 0; i < 4; i++) {
        struct session s;
        struct knobs k = knobs_of(settings[i % 2]);
        const struct session_options o = {
            .knobs = &k, .has = {true}, .real = DTYPE_F32, .kept = kept};
        assert_worked(session_plan(&s, &o, &e), &e);
        assert_worked(session_start(&s, &e), &e);
        assert_int_equal(pool_threads(s.pool), cpus);
        session_close(&s);
    }
    kept_close(kept);
    assert_int_equal(pool_machine_cpus(), cpus);
}

static void test_the_host_keeps(void **state) {
    struct kept *kept;
    struct err e = {0};
    (void)state;
    assert_worked(kept_open(&kept, &e), &e);
    assert_trial(kept, "", false);
    assert_true(kept_resident_bytes(kept) > 0);
    assert_trial(kept, "batch.micro=7", true);
    assert_trial(kept, "threads=2", true);
    assert_trial(kept, "optim.state=int8", false);
    assert_trial(kept, "", false);
    kept_close(kept);
    kept_close(NULL);
}

// A session that fails in a step leaves nothing to the next.
static int fail_at_two(void *arg, const struct trial_sample *sample, struct err *e) {
    (void)sample;
    return ++*(int *)arg == 2 ? err_set(e, ERR_IO, "for the test") : 0;
}

static void test_what_a_failure_leaves_is_not_used(void **state) {
    struct kept *kept;
    struct trial_result r;
    struct err e = {0};
    int steps = 0;
    const struct knobs k = knobs_of("");
    const struct trial_options o = {.steps = STEPS,
                                    .observer = {.arg = &steps, .on_step = fail_at_two}};
    (void)state;
    assert_worked(kept_open(&kept, &e), &e);
    assert_trial(kept, "", false);
    assert_worked(trial_open(&r, &o, &e), &e);
    assert_int_equal(trial_measure(&k, &o, kept, &r, &e), ERR_IO);
    assert_true(r.kept_weights && r.started);
    trial_free(&r);
    assert_trial(kept, "", false);
    kept_close(kept);
}

// Other data, the same data again: batches are those of the knobs.
static void test_data_is_that_of_the_knobs(void **state) {
    struct kept *kept;
    struct err e = {0};
    struct scratch *x = *state;
    char path[PATH_MAX], text[PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/text.txt", x->dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int i = 0; i < 2000; i++)
        fprintf(f, "line %d of a text of its own\n", i);
    assert_int_equal(fclose(f), 0);
    snprintf(text, sizeof text, "data.path=%s data.cache=none", path);
    assert_worked(kept_open(&kept, &e), &e);
    // Precisions in turns, so that weights are always the initial ones and losses tell the data.
    assert_trial(kept, "", false);
    snprintf(text + strlen(text), 32, " precision=bf16");
    assert_trial(kept, text, false);
    assert_trial(kept, "seed=3", false);
    assert_trial(kept, "seed=4 precision=bf16", false);
    assert_trial(kept, "seq=24", false);
    kept_close(kept);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_device_keeps_its_arena),
        cmocka_unit_test(test_a_device_that_is_nearly_full),
        cmocka_unit_test(test_device_bytes_are_the_plans),
        cmocka_unit_test(test_pinned_threads_leave_no_trace),
        cmocka_unit_test(test_the_host_keeps),
        cmocka_unit_test(test_what_a_failure_leaves_is_not_used),
        cmocka_unit_test_setup_teardown(test_data_is_that_of_the_knobs, scratch_setup,
                                        scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
