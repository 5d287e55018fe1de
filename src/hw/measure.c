// measure.c - how fast this machine is: multiply-adds in registers, streaming through memory, fork
// and join.
//
// Each figure is the best of several short trials. Other programs can only make a trial slower, so
// the best trial is nearest to what the hardware can do. All members of the pool work at once,
// because kernels also run that way.
#include "hw/hw.h"

#include "base/clock.h"
#include "hw/kernels.h"

#include <math.h>
#include <time.h>

enum {
    FMA_TRIALS = 5,
    STREAM_TRIALS_MIN = 3,
    STREAM_TRIALS_MAX = 12,
    FORK_JOIN_TRIALS_MIN = 9,
    FORK_JOIN_TRIALS_MAX = 400,
    // A few microseconds in total, which is short enough to fit between two interruptions.
    FORK_JOIN_TASKS = 50,
};
// Long enough for the CPU to raise its clock rate, but shorter than a time slice.
static const uint64_t FMA_TRIAL_NS = 12000000;
static const uint64_t STREAM_BUDGET_NS = 150000000; // per kernel
static const uint64_t FORK_JOIN_BUDGET_NS = 40000000;
static const uint64_t ARRAY_BYTES_MIN = 64ull << 20; // for each of three arrays
static const uint64_t ARRAY_BYTES_MAX = 512ull << 20;

static const struct hw_kernels *kernels_for(enum hw_isa_level level) {
    return level == HW_AVX512 ? &hw_kernels_avx512
           : level == HW_AVX2 ? &hw_kernels_avx2
                              : &hw_kernels_generic;
}

// Wall time and CPU time of all timed tasks. Members of the pool never sleep inside a task, so less
// CPU time than threads x wall time means that other processes used the CPUs.
struct stopwatch {
    struct pool *pool;
    double wall_ns, cpu_ns;
};

static double cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

// Runs a task on all members. Returns its time in nanoseconds, at least 1.
static double timed_run(struct stopwatch *w, pool_fn *fn, void *arg) {
    double cpu = cpu_ns();
    uint64_t begin = clock_ns();
    pool_run(w->pool, fn, arg);
    double ns = fmax(1, (double)(clock_ns() - begin));
    w->wall_ns += ns;
    w->cpu_ns += cpu_ns() - cpu;
    return ns;
}

// ---------------------------------------------------------------- multiply-adds

struct fma_task {
    const struct hw_kernels *kernels;
    long passes;
};

static void run_fma(void *arg, int thread, int threads) {
    const struct fma_task *t = arg;
    (void)thread, (void)threads;
    volatile float keep = t->kernels->fma(t->passes);
    (void)keep;
}

static double measure_vector_flops(const struct hw_kernels *kernels, struct stopwatch *watch) {
    struct fma_task t = {.kernels = kernels, .passes = 1 << 16};
    double best = 0;
    // A short run gives the number of passes for one trial. It also wakes up the vector units.
    uint64_t begin = clock_ns();
    run_fma(&t, 0, 1);
    uint64_t ns = clock_ns() - begin;
    double passes = (double)t.passes * (double)FMA_TRIAL_NS / (double)(ns > 1000 ? ns : 1000);
    t.passes = passes < 1e10 ? (long)passes + 1 : 10000000000;
    double flops = 2.0 * kernels->lanes * HW_CHAINS * (double)t.passes * pool_threads(watch->pool);
    for (int i = 0; i < FMA_TRIALS; i++)
        best = fmax(best, flops * 1e9 / timed_run(watch, run_fma, &t));
    return best;
}

// ---------------------------------------------------------------- streaming

struct stream_task {
    const struct hw_kernels *kernels;
    float *a, *b, *c;
    int64_t n; // floats per array
    int what;  // 0 first touch, 1 scale, 2 triad
};

static void run_stream(void *arg, int thread, int threads) {
    struct stream_task *t = arg;
    int64_t begin, end;
    pool_share(t->n, 1024, thread, threads, &begin, &end); // whole pages
    size_t n = (size_t)(end - begin);
    if (t->what == 0) {
        // Each member is the first to touch its share. On NUMA machines the share is then on that
        // member's node.
        for (int64_t i = begin; i < end; i++)
            t->a[i] = 0, t->b[i] = 1, t->c[i] = 2;
    } else if (t->what == 1) {
        t->kernels->scale(t->a + begin, t->b + begin, 3.0f, n);
    } else {
        t->kernels->triad(t->a + begin, t->b + begin, t->c + begin, 3.0f, n);
    }
}

static double best_rate(struct stopwatch *watch, struct stream_task *t, int what, double bytes) {
    double best = 0, total_ns = 0;
    t->what = what;
    for (int i = 0; i < STREAM_TRIALS_MAX; i++) {
        double ns = timed_run(watch, run_stream, t);
        best = fmax(best, bytes * 1e9 / ns);
        total_ns += ns;
        if (i + 1 >= STREAM_TRIALS_MIN && total_ns > (double)STREAM_BUDGET_NS)
            break;
    }
    return best;
}

// Four times the last cache, so that at most a quarter of an array can stay in the cache. The
// limits bound the time, and the memory on small machines.
static uint64_t array_bytes(const struct hw_machine *m) {
    uint64_t bytes = 4 * hw_cache_total_bytes(m, 3);
    if (bytes == 0)
        bytes = 4 * hw_cache_total_bytes(m, 2);
    if (bytes > ARRAY_BYTES_MAX)
        bytes = ARRAY_BYTES_MAX;
    if (bytes < ARRAY_BYTES_MIN)
        bytes = ARRAY_BYTES_MIN;
    uint64_t most = m->memory_available_bytes / 12; // three arrays take a quarter of free memory
    if (most > 0 && bytes > most)
        bytes = most;
    return bytes & ~(uint64_t)4095;
}

static int measure_stream(struct hw_rates *r, const struct hw_machine *m,
                          const struct hw_kernels *kernels, struct stopwatch *watch,
                          struct mem *mem, struct err *e) {
    uint64_t bytes = array_bytes(m);
    void *block;
    TRY(mem_take(mem, "measuring", "hw.stream", 3 * bytes, &block, e));
    struct stream_task t = {.kernels = kernels, .n = (int64_t)(bytes / sizeof(float))};
    t.a = block;
    t.b = t.a + t.n;
    t.c = t.b + t.n;
    t.what = 0;
    pool_run(watch->pool, run_stream, &t);
    r->copy_bytes_per_s = best_rate(watch, &t, 1, 2.0 * (double)bytes);
    r->memory_bytes_per_s = best_rate(watch, &t, 2, 3.0 * (double)bytes);
    mem_give(mem, block);
    return 0;
}

// ---------------------------------------------------------------- fork and join

static void run_nothing(void *arg, int thread, int threads) {
    (void)arg, (void)thread, (void)threads;
}

static double measure_fork_join_ns(struct pool *pool) {
    double best = INFINITY;
    uint64_t start = clock_ns();
    for (int i = 0; i < FORK_JOIN_TRIALS_MAX; i++) {
        uint64_t begin = clock_ns();
        for (int j = 0; j < FORK_JOIN_TASKS; j++)
            pool_run(pool, run_nothing, NULL);
        uint64_t now = clock_ns();
        best = fmin(best, (double)(now - begin) / FORK_JOIN_TASKS);
        if (i + 1 >= FORK_JOIN_TRIALS_MIN && now - start > FORK_JOIN_BUDGET_NS)
            break;
    }
    return best;
}

// ---------------------------------------------------------------- products

static int measure_narrow(double *flops_per_s, hw_matmul_fn *matmul, void *arg, enum dtype type,
                          struct err *e) {
    *flops_per_s = 0;
    int rc = matmul(arg, type, flops_per_s, e);
    return rc == ERR_UNSUPPORTED ? 0 : rc;
}

int hw_rates_measure_products(struct hw_rates *r, hw_matmul_fn *matmul, void *arg, struct err *e) {
    TRY(matmul(arg, DTYPE_F32, &r->matmul_flops, e));
    TRY(measure_narrow(&r->matmul_bf16_flops, matmul, arg, DTYPE_BF16, e));
    return measure_narrow(&r->matmul_fp16_flops, matmul, arg, DTYPE_F16, e);
}

double hw_rates_products(const struct hw_rates *r, enum dtype type) {
    return type == DTYPE_BF16  ? r->matmul_bf16_flops
           : type == DTYPE_F16 ? r->matmul_fp16_flops
                               : r->matmul_flops;
}

// ---------------------------------------------------------------- all

int hw_rates_measure(struct hw_rates *r, const struct hw_machine *m, struct pool *pool,
                     struct mem *mem, hw_matmul_fn *matmul, void *arg, struct err *e) {
    struct hw_rates out = {.threads = pool_threads(pool), .level = m->level};
    const struct hw_kernels *kernels = kernels_for(m->level);
    struct stopwatch watch = {.pool = pool};
    out.vector_flops = measure_vector_flops(kernels, &watch);
    out.fork_join_ns = measure_fork_join_ns(pool);
    TRY(measure_stream(&out, m, kernels, &watch, mem, e));
    out.cpu_share = fmin(1, watch.cpu_ns / (watch.wall_ns * out.threads));
    if (matmul)
        TRY(hw_rates_measure_products(&out, matmul, arg, e));
    out.measured_at = clock_wall_s();
    *r = out;
    return 0;
}

void hw_device_from_rates(struct hw_device *d, const struct hw_machine *m,
                          const struct hw_rates *r) {
    *d = (struct hw_device){0};
    snprintf(d->name, sizeof d->name, "%.63s", m->cpu);
    d->matmul_flops = r->matmul_flops > 0 ? r->matmul_flops : 0.5 * r->vector_flops;
    d->matmul_bf16_flops = r->matmul_bf16_flops;
    d->matmul_fp16_flops = r->matmul_fp16_flops;
    d->memory_bytes_per_s = r->memory_bytes_per_s;
    d->op_overhead_s = 1e-9 * r->fork_join_ns;
    d->memory_bytes = m->memory_available_bytes;
}
