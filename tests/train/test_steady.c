// test_steady.c - nothing is allocated inside a step.
//
// This program replaces the allocator's functions and counts calls from any thread, from the end of
// one step's observer to the beginning of the next one's. That covers a whole step, including the
// loader's threads. A BLAS library may still allocate buffers in its first steps, so the count
// begins after them, and the strict runs use the built-in products.
#undef _FORTIFY_SOURCE
#include "harness.h"

#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>

static atomic_bool counting;
static atomic_long allocations;

static void seen(void) {
    if (atomic_load_explicit(&counting, memory_order_relaxed))
        atomic_fetch_add(&allocations, 1);
}

#if defined(__SANITIZE_ADDRESS__)
// The sanitizer's allocator cannot be replaced; its hooks count instead.
int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void *, size_t),
                                              void (*on_free)(const volatile void *));
static void on_malloc(const volatile void *p, size_t bytes) {
    (void)p;
    (void)bytes;
    seen();
}
static void on_free(const volatile void *p) {
    (void)p;
}
static void take_over(void) {
    assert_true(__sanitizer_install_malloc_and_free_hooks(on_malloc, on_free) > 0);
}
#else
// The C library's own names of the replaced functions.
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *p, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

void *malloc(size_t bytes) {
    seen();
    return __libc_malloc(bytes);
}
void *calloc(size_t n, size_t bytes) {
    seen();
    return __libc_calloc(n, bytes);
}
void *realloc(void *p, size_t bytes) {
    seen();
    return __libc_realloc(p, bytes);
}
int posix_memalign(void **out, size_t alignment, size_t bytes) {
    seen();
    *out = __libc_memalign(alignment, bytes);
    return *out != NULL ? 0 : 12;
}
void *aligned_alloc(size_t alignment, size_t bytes) {
    seen();
    return __libc_memalign(alignment, bytes);
}
void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) {
    seen();
    return (void *)syscall(SYS_mmap, at, bytes, protection, flags, fd, offset);
}
static void take_over(void) {}
#endif

struct steady {
    int64_t from; // earlier steps do not count
    int64_t counted, steps;
    char blamed[64];
};

static int on_step(void *arg, const struct train_step *step, struct err *e) {
    struct steady *s = arg;
    (void)e;
    atomic_store(&counting, false);
    long n = atomic_exchange(&allocations, 0);
    if (step->step > s->from) {
        s->steps++;
        s->counted += n;
        if (n > 0 && s->blamed[0] == '\0')
            snprintf(s->blamed, sizeof s->blamed, "%ld in step %lld", n, (long long)step->step);
    }
    atomic_store(&counting, step->step < step->steps);
    return 0;
}

static void check_steady(struct run *r, int64_t from) {
    struct at_work s;
    struct trainer *t;
    struct err e = {0};
    struct steady seen_here = {.from = from};
    struct plan_options so = {.knobs = &r->knobs, .programs = {PLAN_TRAIN}, .real = DTYPE_F32};
    const struct engine_options eo = {.reference = r->reference};
    struct trainer_options to = {.observer = {.arg = &seen_here, .on_step = on_step},
                                 .trace_events = 4096};
    assert_worked(at_work_plan(&s, &so, &e), &e);
    assert_worked(at_work_open(&s, &eo, &e), &e);
    assert_worked(trainer_at_work(&t, &s, &to, &e), &e);
    int rc = trainer_run(t, NULL, &e);
    atomic_store(&counting, false);
    assert_worked(rc, &e);
    assert_true(trace_count(trainer_trace(t)) > 0);
    trainer_close(t);
    at_work_close(&s);
    assert_int_equal(seen_here.steps, r->knobs.steps - from);
    if (seen_here.counted != 0)
        fail_msg("%lld allocations, %s", (long long)seen_here.counted, seen_here.blamed);
}

static void test_counts_at_all(void **state) {
    (void)state;
    atomic_store(&allocations, 0);
    atomic_store(&counting, true);
    void *volatile p = malloc(100);
    atomic_store(&counting, false);
    free(p);
    assert_true(atomic_exchange(&allocations, 0) >= 1);
}

static void test_builtin(void **state) {
    struct run r;
    run_init(&r, *state, "steady");
    run_set(&r, "steps=40");
    run_set(&r, "batch.accum=2");
    run_set(&r, "noise.every=3"); // two programs take turns
    run_set(&r, "data.workers=2");
    run_set(&r, "threads=2");
    // From the second step on, because the count starts in the middle of the first.
    check_steady(&r, 1);
}

static void test_without_prefetch(void **state) {
    struct run r;
    run_init(&r, *state, "steady-0");
    run_set(&r, "steps=40");
    run_set(&r, "data.prefetch=0");
    check_steady(&r, 1);
}

// With a cache of windows, and a source that the loader waits for.
static void test_kept_windows(void **state) {
    const struct scratch *s = *state;
    char text[1000], path[300];
    struct run r;
    struct err e = {0};
    run_init(&r, s, "steady-kept");
    memset(text, 'k', sizeof text);
    snprintf(path, sizeof path, "%s/text.txt", s->dir);
    assert_worked(file_write_atomic(path, text, sizeof text, &e), &e);
    snprintf(r.knobs.data_path, sizeof r.knobs.data_path, "%s", path);
    run_set(&r, "steps=80"); // more than two epochs
    run_set(&r, "data.ram=3000");
    run_set(&r, "data.source_rate=20kB");
    run_set(&r, "data.workers=2");
    check_steady(&r, 1);
}

static void test_reference(void **state) {
    struct run r;
    run_init(&r, *state, "steady-reference");
    run_set(&r, "steps=10");
    r.reference = true;
    check_steady(&r, 1);
}

static void test_blas_of_the_machine(void **state) {
    struct run r;
    run_init(&r, *state, "steady-blas");
    run_set(&r, "steps=40");
    run_set(&r, "cpu.blas=auto");
    run_set(&r, "threads=2");
    check_steady(&r, 3);
}

static void test_tiny(void **state) {
    struct run r;
    run_init(&r, *state, "steady-tiny");
    run_set(&r, "model=tiny");
    run_set(&r, "seq=32");
    run_set(&r, "steps=6");
    check_steady(&r, 1);
}

int main(void) {
    take_over();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counts_at_all),
        cmocka_unit_test(test_builtin),
        cmocka_unit_test(test_without_prefetch),
        cmocka_unit_test(test_kept_windows),
        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_blas_of_the_machine),
        cmocka_unit_test(test_tiny),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
