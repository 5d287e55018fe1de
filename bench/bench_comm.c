// bench_comm.c - how long ranks take to sum a vector: ranks as threads, or, under mpirun, as
// processes.
//
//   bench_comm                      2 ranks that are threads
//   mpirun -n 2 bench_comm          as many processes
//
// Each row: bytes, the best and the median time of an all_reduce, of a reduce_scatter and of an
// all_gather on rank 0.
#include "comm/comm.h"

#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>

enum { ROUNDS = 200 };
static const int64_t sizes[] = {256, 4096, 65536, 1 << 20, 16 << 20};

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int one(struct comm *c, int kind, int world, float *x, int64_t n, struct err *e) {
    float *part = x + n / c->world * c->rank;
    return kind == 0   ? c->all_reduce(c, world, x, n, DTYPE_F32, e)
           : kind == 1 ? c->reduce_scatter(c, world, x, part, n, DTYPE_F32, false, e)
                       : c->all_gather(c, world, part, x, n, DTYPE_F32, e);
}

static int measure(struct comm *c, int kind, int world, float *x, int64_t n, struct err *e) {
    double us[ROUNDS];
    const int rounds = n > 1 << 19 ? ROUNDS / 10 : ROUNDS;
    for (int i = 0; i < rounds; i++) {
        TRY(comm_agree(c, 0, NULL, 0, e)); // all begin together
        const uint64_t begin_ns = clock_ns();
        TRY(one(c, kind, world, x, n, e));
        us[i] = 1e-3 * (double)(clock_ns() - begin_ns);
    }
    qsort(us, (size_t)rounds, sizeof *us, ascending);
    if (c->rank == 0)
        printf("  %10.1f %10.1f", us[0], us[rounds / 2]);
    return 0;
}

static int run(void *arg, struct comm *c, struct err *e) {
    int ranks[COMM_RANKS_MOST], world, rc = 0;
    (void)arg;
    for (int i = 0; i < c->world; i++)
        ranks[i] = i;
    TRY(c->group(c, ranks, c->world, &world, e));
    if (c->rank == 0)
        printf("%d ranks, engine %s: best and median, us\n%10s  %21s  %21s  %21s\n", c->world,
               c->name, "bytes", "all_reduce", "reduce_scatter", "all_gather");
    for (size_t i = 0; rc == 0 && i < sizeof sizes / sizeof *sizes; i++) {
        const int64_t n = sizes[i] / c->world * c->world;
        float *x = malloc((size_t)n * sizeof *x);
        if (!x)
            return err_set(e, ERR_MEMORY, "out of memory");
        for (int64_t k = 0; k < n; k++)
            x[k] = 1e-3f;
        if (c->rank == 0)
            printf("%10lld", (long long)n * 4);
        for (int kind = 0; rc == 0 && kind < 3; kind++)
            rc = measure(c, kind, world, x, n, e);
        if (c->rank == 0)
            printf("\n");
        free(x);
    }
    c->close(c);
    return rc;
}

int main(void) {
    struct err e = {0};
    struct comm *c;
    const struct comm_started by = comm_started();
    int rc = 0;
    if (by.world > 1) {
        rc = comm_join(&c, by.world, 60000000000u, &(struct comm_lost){0}, &e);
        rc = rc == 0 ? run(NULL, c, &e) : rc;
    } else {
        rc = comm_job_run(2, 60000000000u, run, NULL, &e);
    }
    if (rc != 0)
        fprintf(stderr, "%s\n", e.text);
    return rc != 0;
}
