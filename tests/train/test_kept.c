// test_kept.c - what an engine keeps from one load to the next, and a desk from one trial to the
// next, on the host and on a device with separate memory. The device here is the CPU backend behind
// a layer that copies in and out and limits the bytes of memory.
#include "train/harness.h"
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

static struct trial_desk open_desk(bool keep) {
    struct trial_desk d;
    struct err e = {0};
    assert_worked(trial_desk_open(&d, keep, &e), &e);
    return d;
}

static int measure(const char *text, struct trial_desk *d, struct trial_result *out,
                   struct err *e) {
    const struct knobs k = knobs_of(text);
    const struct trial_options o = {.warmup = 0, .steps = STEPS};
    assert_worked(trial_open(out, &o, e), e);
    return trial_measure(d, &k, &o, out, e);
}

// Runs with what is kept, or as if nothing were kept.
static void assert_trial(struct trial_desk *d, const char *text, bool keeps) {
    struct trial_result a, b;
    struct err e = {0};
    assert_worked(measure(text, d, &a, &e), &e);
    assert_int_equal(a.kept_weights, keeps);
    if (!keeps) {
        struct trial_desk alone = open_desk(false);
        assert_worked(measure(text, &alone, &b, &e), &e);
        trial_desk_close(&alone);
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

static struct door door; // global, because a backend's functions get no other pointer to it

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

static int door_clear(struct backend *b, void *at, uint64_t bytes, struct err *e) {
    (void)b, (void)e;
    memset(at, 0, bytes);
    return 0;
}

static int door_memory(struct backend *b, uint64_t *left, uint64_t *total, struct err *e) {
    (void)b, (void)e;
    *left = door.total - door.taken;
    *total = door.total;
    return 0;
}

// A desk whose engine already has the device open, for the machine in knobs_of.
static struct trial_desk open_device(uint64_t bytes) {
    struct trial_desk d = open_desk(true);
    struct engine *g = d.engine;
    struct err e = {0};
    const struct cpu_options o = {.blas = "auto", .isa = "auto"};
    door = (struct door){.total = bytes};
    g->machine = knobs_of("");
    assert_worked(pool_open(&g->pool, 1, 0, &e), &e);
    assert_worked(cpu_backend_open(&g->backend, g->mem, g->pool, &o, &e), &e);
    door.take = g->backend->arena_take;
    door.give = g->backend->arena_give;
    g->backend->arena_take = door_take;
    g->backend->arena_give = door_give;
    g->backend->copy_in = g->backend->copy_out = door_copy;
    g->backend->clear = door_clear;
    g->backend->memory = door_memory;
    g->backend->info.device = true;
    return d;
}

static void plan_of(struct plan *p, const struct knobs *k) {
    struct err e = {0};
    const struct plan_options o = {.knobs = k, .programs = {PLAN_TRAIN}, .real = DTYPE_F32};
    assert_worked(plan_make(p, &o, &e), &e);
}

static void test_a_device_keeps_its_arena(void **state) {
    struct trial_desk desk = open_device((uint64_t)1024 * MIB);
    (void)state;
    assert_trial(&desk, "batch.micro=4", false);
    assert_int_equal(door.arenas, 1);
    assert_trial(&desk, "batch.micro=1", true); // smaller
    assert_trial(&desk, "batch.micro=5", true); // larger, and there is room
    assert_int_equal(door.arenas, 1);
    assert_trial(&desk, "precision=bf16", false); // other weights in the same arena
    assert_int_equal(door.arenas, 1);
    assert_trial(&desk, "batch.micro=64", false); // a new arena, zero again
    assert_int_equal(door.arenas, 2);
    assert_trial(&desk, "batch.micro=64 batch.accum=2", true);
    trial_desk_close(&desk);
    assert_int_equal(door.taken, 0);
}

// Where memory is short, no more is taken than the plan says, and what is kept counts as free.
static void test_a_device_that_is_nearly_full(void **state) {
    struct trial_desk desk = open_device((uint64_t)1024 * MIB);
    struct plan p;
    const struct knobs k = knobs_of("batch.micro=4");
    struct trial_result r;
    struct err e = {0};
    (void)state;
    plan_of(&p, &k);
    const uint64_t arena = p.layout.arena_bytes;
    plan_free(&p);
    door.total = arena + arena / 4;
    assert_trial(&desk, "batch.micro=4", false);
    assert_int_equal(door.taken, arena);
    assert_trial(&desk, "batch.micro=4", true);
    assert_int_equal(measure("batch.micro=64", &desk, &r, &e), ERR_MEMORY);
    assert_non_null(strstr(e.text, "what the device has left"));
    assert_false(r.started);
    trial_free(&r);
    assert_int_equal(door.taken, arena); // refused before anything was given back
    assert_trial(&desk, "batch.micro=4", true);
    trial_desk_close(&desk);
}

// The device's figure is that of the plan, even if the kept arena is larger.
static void test_device_bytes_are_the_plans(void **state) {
    struct trial_desk desk = open_device((uint64_t)1024 * MIB);
    (void)state;
    assert_trial(&desk, "batch.micro=8", false);
    for (int micro = 1; micro <= 8; micro *= 2) {
        struct plan p;
        struct knobs k = knobs_of("");
        struct err e = {0};
        k.batch_micro = micro;
        plan_of(&p, &k);
        assert_worked(engine_load(desk.engine, &p, &e), &e);
        assert_int_equal(engine_device_bytes(desk.engine), p.layout.arena_bytes);
        engine_state_sound(desk.engine);
        engine_unload(desk.engine);
        plan_free(&p);
    }
    trial_desk_close(&desk);
}

// ---------------------------------------------------------------- the host

// A trial with pinned threads restricts the calling thread's CPUs only while it runs.
static void test_pinned_threads_leave_no_trace(void **state) {
    struct trial_desk desk = open_desk(true);
    struct err e = {0};
    const char *const settings[] = {"threads=0 cpu.pin=true", "threads=0 cpu.pin=false"};
    const int cpus = pool_machine_cpus();
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct plan p;
        const struct knobs k = knobs_of(settings[i % 2]);
        plan_of(&p, &k);
        assert_worked(engine_load(desk.engine, &p, &e), &e);
        assert_int_equal(pool_threads(desk.engine->pool), cpus);
        engine_unload(desk.engine);
        plan_free(&p);
    }
    trial_desk_close(&desk);
    assert_int_equal(pool_machine_cpus(), cpus);
}

// Loads a plan and sets its first weight. Returns whether weights were kept, and the old value.
static float load_and_set(struct engine *g, float value, bool sound, bool *kept) {
    const struct knobs k = knobs_of("");
    struct plan p;
    struct model_param param;
    struct err e = {0};
    float was;
    plan_of(&p, &k);
    assert_worked(engine_load(g, &p, &e), &e);
    struct session *s = g->session;
    assert_ptr_equal(s->plan, &p);
    assert_true(model_param_at(&p.shape, 0, &param));
    const int t = plan_tensor(&p, PLAN_TRAIN, param.name);
    assert_worked(exec_read_part(s->exec, 0, t, 0, &was, sizeof was, &e), &e);
    assert_worked(exec_write_part(s->exec, 0, t, 0, &value, sizeof value, &e), &e);
    *kept = s->kept_weights;
    if (sound)
        engine_state_sound(g);
    engine_unload(g);
    assert_null(g->session);
    plan_free(&p);
    return was;
}

// Weights are kept if the engine keeps and the load before was declared sound. Otherwise they are
// the initial ones.
static void test_only_sound_state_is_kept(void **state) {
    (void)state;
    for (int keep = 0; keep < 2; keep++) {
        struct trial_desk desk = open_desk(keep);
        bool kept;
        const float initial = load_and_set(desk.engine, 7, true, &kept);
        assert_true(!kept && initial != 7);
        const float second = load_and_set(desk.engine, 8, false, &kept);
        assert_true(kept == keep && second == (keep ? 7 : initial));
        const float third = load_and_set(desk.engine, 9, true, &kept);
        assert_true(!kept && third == initial);
        assert_int_equal(desk.engine->arena.range != NULL, keep);
        trial_desk_close(&desk);
    }
}

static void test_the_host_keeps(void **state) {
    struct trial_desk desk = open_desk(true);
    (void)state;
    assert_trial(&desk, "", false);
    assert_true(range_resident_bytes(desk.engine->arena.range, 0) > 0);
    assert_trial(&desk, "batch.micro=7", true);
    assert_trial(&desk, "threads=2", true);
    assert_trial(&desk, "optim.state=int8", false);
    assert_trial(&desk, "", false);
    trial_desk_close(&desk);
    engine_close(NULL);
}

// A trial that fails in a step leaves nothing for the next one.
static int fail_at_two(void *arg, const struct trial_sample *sample, struct err *e) {
    (void)sample;
    return ++*(int *)arg == 2 ? err_set(e, ERR_IO, "for the test") : 0;
}

static void test_what_a_failure_leaves_is_not_used(void **state) {
    struct trial_desk desk = open_desk(true);
    struct trial_result r;
    struct err e = {0};
    int steps = 0;
    const struct knobs k = knobs_of("");
    const struct trial_options o = {.steps = STEPS,
                                    .observer = {.arg = &steps, .on_step = fail_at_two}};
    (void)state;
    assert_trial(&desk, "", false);
    assert_worked(trial_open(&r, &o, &e), &e);
    assert_int_equal(trial_measure(&desk, &k, &o, &r, &e), ERR_IO);
    assert_true(r.kept_weights && r.started);
    trial_free(&r);
    assert_trial(&desk, "", false);
    trial_desk_close(&desk);
}

// Other data, then the first data again: batches are those of the knobs.
static void test_data_is_that_of_the_knobs(void **state) {
    struct trial_desk desk = open_desk(true);
    struct scratch *x = *state;
    char path[PATH_MAX], text[PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/text.txt", x->dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int i = 0; i < 2000; i++)
        fprintf(f, "line %d of a text of its own\n", i);
    assert_int_equal(fclose(f), 0);
    snprintf(text, sizeof text, "data.path=%s data.cache=none", path);
    // The precision alternates, so that weights are always the initial ones and the losses depend
    // only on the data.
    assert_trial(&desk, "", false);
    snprintf(text + strlen(text), 32, " precision=bf16");
    assert_trial(&desk, text, false);
    assert_trial(&desk, "seed=3", false);
    assert_trial(&desk, "seed=4 precision=bf16", false);
    assert_trial(&desk, "seq=24", false);
    trial_desk_close(&desk);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_device_keeps_its_arena),
        cmocka_unit_test(test_a_device_that_is_nearly_full),
        cmocka_unit_test(test_device_bytes_are_the_plans),
        cmocka_unit_test(test_pinned_threads_leave_no_trace),
        cmocka_unit_test(test_only_sound_state_is_kept),
        cmocka_unit_test(test_the_host_keeps),
        cmocka_unit_test(test_what_a_failure_leaves_is_not_used),
        cmocka_unit_test_setup_teardown(test_data_is_that_of_the_knobs, scratch_setup,
                                        scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
