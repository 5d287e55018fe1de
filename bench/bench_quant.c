// bench_quant.c - products with quantized weights beside plain ones: how fast weights are read, and
// which part of the machine's read bandwidth that is.
//
//   bench_quant [THREADS] [PART]    PART: of a format's name ("int4", "bf16"). Shapes are those of
//                                   a Llama of 1.1B; rows are 1, 8 (decoding), 64, 512 (prefill).
//
// Each format reads several copies of a weight in turn, more than the caches hold, because a
// model's layers do that, too. Copies and bandwidth are measured in the same run, in turns, and the
// fastest pass counts, because other programs can only slow a pass down. With one thread, time is
// what the thread ran, so that time in which it waited for a core does not count.
#include "backend/cpu/cpu.h"
#include "base/clock.h"
#include "base/pool.h"
#include "base/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { COPIES_BYTES = 400 << 20, PASSES = 5 };

struct format {
    const char *name;
    struct storage storage;
    enum dtype type; // of x, and of a plain weight
};
static const struct format formats[] = {
    {"fp32", {0}, DTYPE_F32},
    {"bf16", {0}, DTYPE_BF16},
    {"int8", {.kind = STORAGE_INT8}, DTYPE_BF16},
    {"int4 g32", {.kind = STORAGE_INT4, .group = 32}, DTYPE_BF16},
    {"int4 g128", {.kind = STORAGE_INT4, .group = 128}, DTYPE_BF16},
    {"int4 g32 minima", {.kind = STORAGE_INT4, .group = 32, .minima = true}, DTYPE_BF16},
};
static const struct {
    int64_t n, k;
} shapes[] = {{2048, 2048}, {5632, 2048}, {2048, 5632}, {32000, 2048}};
static const int64_t rows[] = {1, 8, 64, 512};

// ---------------------------------------------------------------- reading

struct reading {
    const uint64_t *data;
    int64_t words;
    uint64_t sum[256];
};

static uint64_t now_ns(const struct pool *pool) {
    struct timespec t;
    if (pool_threads(pool) > 1 || clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) != 0)
        return clock_ns();
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

typedef uint64_t line __attribute__((vector_size(64)));

static void read_share(void *arg, int thread, int threads) {
    struct reading *r = arg;
    int64_t begin, end;
    line sum[4] = {0};
    pool_share(r->words / 8, 64, thread, threads, &begin, &end);
    const line *from = (const line *)(const void *)r->data;
    for (int64_t i = begin; i + 4 <= end; i += 4)
        for (int j = 0; j < 4; j++)
            sum[j] += from[i + j];
    sum[0] += sum[1] + sum[2] + sum[3];
    r->sum[thread % 256] = sum[0][0] + sum[0][7];
}

// Bytes per ns.
static double read_once(struct pool *pool, const void *data, int64_t bytes) {
    struct reading r = {.data = data, .words = bytes / 8};
    const uint64_t begin = now_ns(pool);
    pool_run(pool, read_share, &r);
    const uint64_t end = now_ns(pool);
    // The sum is used, so that the loop is not left out.
    return (double)bytes / (double)(end - begin + (r.sum[0] == 42));
}

// ---------------------------------------------------------------- products

static uint64_t bytes_of(const struct format *f, int64_t n, int64_t k) {
    struct storage_parts parts;
    return storage_layout(f->storage, n, k, &parts) ? parts.bytes
                                                    : (uint64_t)(n * k) * dtype_bytes(f->type);
}

static void fill(const struct format *f, char *to, int64_t n, int64_t k) {
    struct storage_parts parts;
    const float small = 0.01f;
    if (!storage_layout(f->storage, n, k, &parts)) {
        for (int64_t i = 0; i < n * k; i++)
            dtype_convert(to + (size_t)i * dtype_bytes(f->type), f->type, &small, DTYPE_F32, 1);
        return;
    }
    for (uint64_t i = 0; i < parts.codes_bytes; i++)
        to[i] = (char)(i * 37 % 251);
    const size_t width = dtype_bytes(parts.scale_type);
    for (uint64_t at = parts.scales; at + width <= parts.bytes; at += width)
        dtype_convert(to + at, parts.scale_type, &small, DTYPE_F32, 1);
}

struct bench {
    struct backend *cpu;
    struct pool *pool;
    char *weights, *x, *y;
};

static void time_shape(const struct bench *b, const struct format *f, int64_t n, int64_t k) {
    const uint64_t bytes = bytes_of(f, n, k), apart = (bytes + 4095) / 4096 * 4096;
    const int copies = (int)(COPIES_BYTES / apart) > 0 ? (int)(COPIES_BYTES / apart) : 1;
    for (int i = 0; i < copies; i++)
        if (i == 0)
            fill(f, b->weights, n, k);
        else
            memcpy(b->weights + (uint64_t)i * apart, b->weights, bytes);
    printf("  %5lld x %-5lld %-16s %6.2f MB", (long long)n, (long long)k, f->name,
           (double)bytes / 1e6);
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        struct err e = {0};
        struct op op = op_make(OP_MATMUL);
        const int turns = rows[r] >= 64 ? 2 : copies;
        double best = 0, read = 0;
        op.m = rows[r], op.n = n, op.k = k, op.n_in = 2, op.n_out = 1;
        for (int pass = 0; pass < PASSES; pass++) {
            if (rows[r] == 1) {
                const double now = read_once(b->pool, b->weights, COPIES_BYTES / 2);
                read = now > read ? now : read;
            }
            const uint64_t begin = now_ns(b->pool);
            for (int i = 0; i < turns; i++) {
                const struct op_call c = {
                    .op = &op,
                    .in = {{.data = b->x, .ld = k, .dtype = f->type, .rows = op.m, .cols = k},
                           {.data = b->weights + (uint64_t)(i % copies) * apart,
                            .ld = k,
                            .dtype = f->type,
                            .rows = n,
                            .cols = k,
                            .storage = f->storage}},
                    .out = {{.data = b->y, .ld = n, .dtype = f->type, .rows = op.m, .cols = n}}};
                if (b->cpu->run[OP_MATMUL](b->cpu, &c, &e) != 0) {
                    printf(" %s\n", e.text);
                    return;
                }
            }
            const double ns = (double)(now_ns(b->pool) - begin) / turns;
            best = pass == 0 || ns < best ? ns : best;
        }
        if (rows[r] == 1)
            printf("  m=1: %6.1f us %5.1f GB/s %3.0f%%", best / 1e3, (double)bytes / best,
                   100 * (double)bytes / best / read);
        else
            printf("  m=%lld: %7.1f us %6.0f GFLOP/s", (long long)rows[r], best / 1e3,
                   2 * (double)(rows[r] * n) * (double)k / best);
    }
    printf("\n");
    fflush(stdout);
}

int main(int argc, char **argv) {
    struct bench b = {0};
    struct mem *mem;
    struct err e = {0};
    const int threads = argc > 1 && atoi(argv[1]) > 0 ? atoi(argv[1]) : pool_machine_cpus();
    if (mem_open(&mem, &e) != 0 || pool_open(&b.pool, threads, 0, &e) != 0 ||
        cpu_backend_open(&b.cpu, mem, b.pool, NULL, &e) != 0) {
        fprintf(stderr, "bench_quant: %s\n", e.text);
        return 1;
    }
    void *weights = NULL; // in large pages, as a model's
    if (mem_take(mem, "arena", "weights", COPIES_BYTES + (300 << 20), &weights, &e) != 0)
        return 1;
    b.weights = weights;
    b.x = calloc(512 * 5632, sizeof(float));
    b.y = calloc(512 * 32000, sizeof(float));
    if (!b.x || !b.y)
        return 1;
    for (int64_t i = 0; i < 512 * 5632; i++) // as bf16 or float32: small numbers
        ((uint16_t *)(void *)b.x)[i] = (uint16_t)(0x3c00 + rng_below(1, 2, (uint64_t)i, 512));
    memset(b.weights, 1, COPIES_BYTES);
    printf("%s, %d threads\n", b.cpu->info.text, threads);
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (size_t f = 0; f < sizeof formats / sizeof *formats; f++)
            if (argc < 3 || strstr(formats[f].name, argv[2]))
                time_shape(&b, &formats[f], shapes[s].n, shapes[s].k);
    b.cpu->close(b.cpu);
    pool_close(b.pool);
    mem_give(mem, b.weights);
    mem_close(mem);
    free(b.x), free(b.y);
    return 0;
}
