// blas.c - finds a BLAS library, makes it single-threaded, calls it.
//
// "auto" prefers builtin: it allocates nothing and gives the same bits for any number of threads,
// which no library promises. That costs 1-2 % of speed against the fastest library measured (oneDNN
// 2.6.3, matrix products of a GPT-2 124M step, two Zen 4 cores). The libraries stay selectable for
// comparison, and for machines whose vector unit the builtin kernels do not know.
#include "backend/cpu/blas.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

struct candidate {
    const char *kind, *file;
};

// In order of preference within a kind.
static const struct candidate candidates[] = {
    {"openblas", "/usr/lib/x86_64-linux-gnu/openblas-pthread/libopenblas.so.0"},
    {"openblas", "/usr/lib/aarch64-linux-gnu/openblas-pthread/libopenblas.so.0"},
    {"openblas", "/usr/lib/x86_64-linux-gnu/openblas-openmp/libopenblas.so.0"},
    {"openblas", "/usr/lib/x86_64-linux-gnu/openblas-serial/libopenblas.so.0"},
    {"openblas", "/usr/lib/aarch64-linux-gnu/openblas-serial/libopenblas.so.0"},
    {"openblas", "libopenblas.so.0"},
    {"onednn", "libdnnl.so.2"},
    {"onednn", "libdnnl.so.3"},
    {"blis", "/usr/lib/x86_64-linux-gnu/blis-pthread/libblis.so.4"},
    {"blis", "/usr/lib/x86_64-linux-gnu/blis-openmp/libblis.so.4"},
    {"blis", "libblis.so.4"},
};
enum { N_CANDIDATES = sizeof candidates / sizeof *candidates };

// dlsym returns functions as data pointers. ISO C has no cast for that, so the bytes are copied.
static bool find(void *library, const char *symbol, void *function, size_t bytes) {
    void *at = dlsym(library, symbol);
    if (!at)
        return false;
    memcpy(function, &at, bytes);
    return true;
}
#define FIND(library, symbol, function) find(library, symbol, &(function), sizeof(function))

struct team {
    void (*omp_set_num_threads)(int);
};

static void one_omp_thread(void *arg, int thread, int threads) {
    (void)thread, (void)threads;
    ((struct team *)arg)->omp_set_num_threads(1);
}

// OpenMP keeps its thread count per calling thread, OpenBLAS and BLIS keep it per process.
static void use_one_thread(void *library, struct pool *pool) {
    void (*set_int)(int), (*set_long)(int64_t);
    struct team team;
    if (FIND(library, "openblas_set_num_threads", set_int))
        set_int(1);
    if (FIND(library, "bli_thread_set_num_threads", set_long))
        set_long(1);
    if (FIND(library, "omp_set_num_threads", team.omp_set_num_threads))
        pool_run(pool, one_omp_thread, &team);
}

static void name_openblas(struct blas *b) {
    const char *(*config)(void), *(*core)(void);
    char version[32] = "";
    if (FIND(b->library, "openblas_get_config", config))
        (void)sscanf(config(), "OpenBLAS %31s", version);
    snprintf(b->name, sizeof b->name, "openblas %s (%s)", version,
             FIND(b->library, "openblas_get_corename", core) ? core() : "?");
}

static void name_blis(struct blas *b) {
    const char *(*version)(void), *(*arch_name)(int);
    int (*arch)(void);
    bool known = FIND(b->library, "bli_arch_query_id", arch) &&
                 FIND(b->library, "bli_arch_string", arch_name);
    snprintf(b->name, sizeof b->name, "blis %s (%s)",
             FIND(b->library, "bli_info_get_version_str", version) ? version() : "",
             known ? arch_name(arch()) : "?");
}

static void name_onednn(struct blas *b) {
    struct version { // the first fields of dnnl_version_t
        int major, minor, patch;
    };
    const struct version *(*version)(void);
    if (FIND(b->library, "dnnl_version", version))
        snprintf(b->name, sizeof b->name, "onednn %d.%d.%d", version()->major, version()->minor,
                 version()->patch);
    else
        snprintf(b->name, sizeof b->name, "onednn");
}

// OpenBLAS without threads of its own gives out its buffers without a lock. Two threads that call
// it may get the same one, and then both products are wrong.
static bool is_serial(void *library) {
    const char *(*config)(void);
    return FIND(library, "openblas_get_config", config) && strstr(config(), "SINGLE_THREADED");
}

static bool open_candidate(struct blas *b, const struct candidate *c, struct pool *pool) {
    // NODELETE: these libraries keep memory and thread-local state that do not survive unloading.
    *b = (struct blas){.library = dlopen(c->file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)};
    if (!b->library)
        return false;
    bool onednn = strcmp(c->kind, "onednn") == 0;
    if ((pool_threads(pool) > 1 && is_serial(b->library)) ||
        (onednn ? !FIND(b->library, "dnnl_sgemm", b->dnnl_sgemm)
                : !FIND(b->library, "cblas_sgemm", b->cblas_sgemm))) {
        blas_close(b);
        return false;
    }
    use_one_thread(b->library, pool);
    if (onednn)
        name_onednn(b);
    else if (strcmp(c->kind, "blis") == 0)
        name_blis(b);
    else
        name_openblas(b);
    return true;
}

static int use_builtin(struct blas *b) {
    *b = (struct blas){0};
    snprintf(b->name, sizeof b->name, "builtin");
    return 0;
}

int blas_open(struct blas *b, const char *name, const struct cpu_kernels *kernels,
              struct pool *pool, struct err *e) {
    bool automatic = !name || strcmp(name, "auto") == 0, known = false;
    if ((automatic && kernels->width >= 8) || (!automatic && strcmp(name, "builtin") == 0))
        return use_builtin(b);
    for (size_t i = 0; i < N_CANDIDATES; i++) {
        if (!automatic && strcmp(name, candidates[i].kind) != 0)
            continue;
        known = true;
        if (open_candidate(b, &candidates[i], pool))
            return 0;
    }
    if (automatic)
        return use_builtin(b);
    if (!known)
        return err_set(e, ERR_USAGE,
                       "BLAS '%s' is not one of auto, openblas, blis, onednn, builtin", name);
    char tried[512] = "";
    for (size_t i = 0, at = 0; i < N_CANDIDATES && at < sizeof tried; i++)
        if (strcmp(name, candidates[i].kind) == 0)
            at += (size_t)snprintf(tried + at, sizeof tried - at, "%s%s", at ? ", " : "",
                                   candidates[i].file);
    return err_set(e, ERR_UNSUPPORTED,
                   "BLAS '%s' was not found, or computes with one thread only; looked for %s", name,
                   tried);
}

void blas_close(struct blas *b) {
    if (b->library)
        dlclose(b->library);
    b->library = NULL;
}

bool blas_gemm(const struct blas *b, const struct gemm_args *g) {
    // Products with a vector go to the builtin kernels: libraries switch to other code there, and
    // it is no faster.
    if (!b->library || g->m < 2 || g->n < 2 || g->k < 1)
        return false;
    float beta = g->accumulate ? 1 : 0;
    const float *bias = g->bias;
    float *c = g->c;
    if (bias) { // every row of C starts as the bias, and the product is added to it
        for (int64_t i = 0; i < g->m; i++)
            for (int64_t j = 0; j < g->n; j++)
                c[i * g->ldc + j] = bias[j] + (g->accumulate ? c[i * g->ldc + j] : 0);
        beta = 1;
    }
    if (b->dnnl_sgemm)
        return b->dnnl_sgemm(g->ta ? 'T' : 'N', g->tb ? 'T' : 'N', g->m, g->n, g->k, g->alpha, g->a,
                             g->lda, g->b, g->ldb, beta, g->c, g->ldc) == 0;
    if (g->m > INT_MAX || g->n > INT_MAX || g->k > INT_MAX || g->lda > INT_MAX ||
        g->ldb > INT_MAX || g->ldc > INT_MAX)
        return false;
    enum { ROW_MAJOR = 101, PLAIN = 111, TRANSPOSED = 112 }; // values from cblas.h
    b->cblas_sgemm(ROW_MAJOR, g->ta ? TRANSPOSED : PLAIN, g->tb ? TRANSPOSED : PLAIN, (int)g->m,
                   (int)g->n, (int)g->k, g->alpha, g->a, (int)g->lda, g->b, (int)g->ldb, beta, g->c,
                   (int)g->ldc);
    return true;
}
