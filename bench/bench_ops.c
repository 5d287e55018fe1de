// bench_ops.c - the speed of single ops on the cases that their tests use, in every element type:
// microseconds of the CPU backend, and how many times as long the reference takes.
//
//   bench_ops [PART]    all cases whose name contains PART (matmul, "norm m=130"); without PART the
//                       largest case of each op. Uses as many threads as the process may use.
//
// The cases cover corner cases, not typical sizes. Use the figures to compare a kernel before and
// after a change.
#include "backend/cases.c"

#include "backend/cpu/cpu.h"
#include "base/clock.h"

#include <stdio.h>

static const uint64_t BUDGET_NS = 20000000; // per case, type and backend

static int64_t case_bytes(const struct case_run *r) {
    int64_t bytes = 0;
    for (int i = 0; i < r->n_in; i++)
        bytes += r->in[i].absent ? 0 : (int64_t)r->in[i].bytes;
    for (int i = 0; i < r->n_out; i++)
        bytes += r->out[i].absent || r->out[i].same_as >= 0 ? 0 : (int64_t)r->out[i].bytes;
    return bytes;
}

// Nanoseconds of the fastest call, because other programs can only slow a call down. 0: it fails.
static double time_case(struct backend *b, const struct case_run *r) {
    double best = 0;
    struct err e = {0};
    uint64_t start = clock_ns();
    if (!b->run[r->op.kind])
        return 0;
    for (int i = 0; i < 2 || clock_ns() - start < BUDGET_NS; i++) {
        uint64_t begin = clock_ns();
        if (b->run[r->op.kind](b, &r->call, &e) != 0)
            return 0;
        double ns = (double)(clock_ns() - begin);
        best = best == 0 || ns < best ? ns : best;
    }
    return best;
}

static void print_case(struct backend *cpu, struct backend *reference, size_t index) {
    static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    char name[256];
    case_name(case_at(index), name, sizeof name);
    printf("%s\n", name);
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        struct case_run r;
        struct err e = {0};
        if (case_open(&r, case_at(index), types[t], 1, reference, &e) != 0) {
            printf("    %-5s %s\n", dtype_text(types[t]), e.text);
            continue;
        }
        double fast = time_case(cpu, &r), plain = time_case(reference, &r);
        printf("    %-5s %10.2f us  %7.2f GB/s  reference x %.1f\n", dtype_text(types[t]),
               1e-3 * fast, fast > 0 ? (double)case_bytes(&r) / fast : 0,
               fast > 0 ? plain / fast : 0);
        case_close(&r);
    }
}

static size_t largest_case(enum op_kind kind, struct backend *reference) {
    size_t best = case_count();
    int64_t most = -1;
    for (size_t i = 0; i < case_count(); i++) {
        struct case_run r;
        struct err e = {0};
        if (case_at(i)->kind != kind || case_open(&r, case_at(i), DTYPE_F32, 1, reference, &e) != 0)
            continue;
        if (case_bytes(&r) > most)
            most = case_bytes(&r), best = i;
        case_close(&r);
    }
    return best;
}

int main(int argc, char **argv) {
    struct mem *mem;
    struct pool *pool;
    struct backend *cpu, *reference;
    struct err e = {0};
    if (mem_open(&mem, &e) != 0 || pool_open(&pool, pool_machine_cpus(), 0, &e) != 0 ||
        cpu_reference_open(&reference, mem, &e) != 0 ||
        cpu_backend_open(&cpu, mem, pool, NULL, &e) != 0) {
        fprintf(stderr, "bench_ops: %s\n", e.text);
        return 1;
    }
    printf("%s kernels, %d threads\n", cpu->isa, pool_threads(pool));
    for (size_t i = 0; argc > 1 && i < case_count(); i++) {
        char name[256];
        case_name(case_at(i), name, sizeof name);
        if (strstr(name, argv[1]))
            print_case(cpu, reference, i);
    }
    for (int k = 0; argc == 1 && k < OP_COUNT; k++) {
        size_t i = largest_case((enum op_kind)k, reference);
        if (i < case_count())
            print_case(cpu, reference, i);
    }
    cpu->close(cpu);
    reference->close(reference);
    pool_close(pool);
    mem_close(mem);
    return 0;
}
