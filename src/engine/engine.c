// engine.c - see engine.h. Threads and backend, then the load of a plan. Other files: memory in
// engine_memory.c, what stays between loads in arena.c, the weights in fill.c.
#include "engine/engine.h"

#include "backend/cpu/cpu.h"
#include "backend/plugin.h"
#include "base/file.h"
#include "plan/process.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int engine_open(struct engine **out, const struct engine_options *o, struct err *e) {
    struct engine *g = calloc(1, sizeof *g);
    int rc = g ? mem_open(&g->mem, e) : err_set(e, ERR_MEMORY, "out of memory for an engine");
    if (rc != 0) {
        free(g);
        g = NULL;
    } else if (o) {
        g->options = *o;
    }
    *out = g;
    return rc;
}

// A load does not outlive its backend.
static void close_backend(struct engine *g) {
    engine_unload(g);
    arena_give_device(&g->arena, g);
    if (g->backend)
        g->backend->close(g->backend);
    g->backend = NULL;
}

static void close_pool(struct engine *g) {
    if (g->pool)
        pool_close(g->pool);
    g->pool = NULL;
}

void engine_close(struct engine *g) {
    if (!g)
        return;
    engine_unload(g);
    close_backend(g);
    close_pool(g);
    arena_close(&g->arena, g);
    mem_close(g->mem);
    free(g);
}

// ---------------------------------------------------------------- ready

bool engine_on_device(const struct engine *g) {
    return g->backend && g->backend->info.device;
}

bool engine_has_precision(const struct engine *g, enum precision p) {
    static const enum dtype types[] = {
        [PRECISION_FP32] = DTYPE_F32, [PRECISION_BF16] = DTYPE_BF16, [PRECISION_FP16] = DTYPE_F16};
    return g->backend->info.types >> types[p] & 1;
}

static int check_precision(const struct engine *g, const struct plan *p, struct err *e) {
    if (engine_has_precision(g, p->knobs.precision))
        return 0;
    char accepted[64] = "";
    for (int i = 0; i <= PRECISION_FP16; i++)
        if (engine_has_precision(g, (enum precision)i))
            snprintf(accepted + strlen(accepted), sizeof accepted - strlen(accepted), "%s%s",
                     *accepted ? ", " : "", knob_choice(KNOB_precision, i));
    return err_set(e, ERR_UNSUPPORTED, "precision=%s: the %s backend computes in %s",
                   knob_choice(KNOB_precision, (int)p->knobs.precision), g->backend->name,
                   accepted);
}

int engine_open_device(struct backend **out, const struct knobs *k, struct err *e) {
    char cache[PLUGIN_PATH_BYTES];
    const bool cached = file_user_path(cache, sizeof cache, FILE_CACHE, "cuda", NULL) == 0;
    const struct plugin_options o = {.tf32 = k->cuda_tf32,
                                     .plain = k->cuda_kernels == CUDA_KERNELS_PLAIN,
                                     .deterministic = k->cuda_deterministic,
                                     .cudnn = k->cuda_cudnn,
                                     .cache = cached ? cache : NULL};
    return plugin_open("cuda", &o, out, e);
}

static int open_backend(struct engine *g, const struct knobs *k, struct err *e) {
    if (g->options.reference)
        return cpu_reference_open(&g->backend, g->mem, e);
    if (plan_wants_device(k)) {
        int rc = engine_open_device(&g->backend, k, e);
        if (rc == 0)
            return 0;
        if (k->device == DEVICE_CUDA || rc != ERR_UNSUPPORTED)
            return err_context(e, "device=%s", knob_choice(KNOB_device, (int)k->device));
        err_clear(e); // device=auto, and the device cannot be used: take the CPU
    }
    const struct cpu_options o = {.blas = knob_choice(KNOB_cpu_blas, (int)k->cpu_blas),
                                  .isa = knob_choice(KNOB_cpu_isa, (int)k->cpu_isa)};
    return cpu_backend_open(&g->backend, g->mem, g->pool, &o, e);
}

// A library of matrix products allocates its buffers, one per thread, when it is first used. This
// uses it now, so that the buffers are counted. The product is as wide as the projection to the
// vocabulary, because buffers grow with the width, up to a limit that depends on the library
// (OpenBLAS: some 16,000 columns of a few hundred rows).
enum { WARM_ROWS = 64, WARM_DEPTH = 512, WARM_COLUMNS = 16384 };

static int warm_library(struct engine *g, const struct plan *p, struct err *e) {
    const int64_t m = WARM_ROWS, k = WARM_DEPTH,
                  most = (int64_t)WARM_COLUMNS * pool_threads(g->pool);
    const int64_t other = p->second ? p->second->shape.vocab : 0;
    const int64_t widest = p->shape.vocab > other ? p->shape.vocab : other;
    const int64_t n = widest < most ? widest : most;
    if (engine_on_device(g) ||
        strncmp(g->backend->products[DTYPE_F32], "builtin", strlen("builtin")) == 0)
        return 0;
    float *x = calloc((size_t)(m * k + k * n + m * n), sizeof *x);
    if (!x)
        return err_set(e, ERR_MEMORY, "out of memory while the backend warms up");
    const struct operand in = {.data = x, .ld = k, .rows = m, .cols = k},
                         w = {.data = x + m * k, .ld = k, .rows = n, .cols = k},
                         out = {.data = x + m * k + k * n, .ld = n, .rows = m, .cols = n};
    const struct {
        enum op_kind kind;
        struct operand in[2], out;
    } products[] = {
        {OP_MATMUL, {in, w}, out}, {OP_MATMUL_DX, {out, w}, in}, {OP_MATMUL_DW, {in, out}, w}};
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < sizeof products / sizeof *products; i++) {
        struct op op = op_make(products[i].kind);
        op.m = m, op.n = n, op.k = k;
        op.scale = 1;
        const struct op_call call = {
            .op = &op, .in = {products[i].in[0], products[i].in[1]}, .out = {products[i].out}};
        rc = g->backend->run[op.kind](g->backend, &call, e);
    }
    free(x);
    return rc;
}

static bool all_same(const struct knobs *a, const struct knobs *b, const int *ids, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!knobs_same(a, b, ids[i]))
            return false;
    return true;
}

// The ranks on one machine share its CPUs.
static int open_pool(struct engine *g, const struct knobs *k, struct err *e) {
    const struct comm *c = g->options.comm;
    const int ranks = c ? c->local_world : 1, cpus = pool_machine_cpus() / ranks,
              threads = k->threads ? (int)k->threads
                        : cpus > 1 ? cpus
                                   : 1;
    return pool_open_beside(&g->pool, threads, k->cpu_pin, c ? c->local_rank : 0, ranks, e);
}

// Threads and backend for the plan's knobs. Open ones are reused if they were opened for the same
// knobs.
static int open_machine(struct engine *g, const struct plan *p, struct err *e) {
    static const int threads[] = {KNOB_threads,       KNOB_cpu_pin,         KNOB_ranks,
                                  KNOB_parallel_data, KNOB_parallel_tensor, KNOB_parallel_pipe};
    static const int kernels[] = {KNOB_device,    KNOB_cpu_blas,     KNOB_cpu_isa,
                                  KNOB_cuda_tf32, KNOB_cuda_kernels, KNOB_cuda_deterministic,
                                  KNOB_cuda_cudnn};
    const struct knobs *k = &p->knobs;
    const bool same_pool = all_same(&g->machine, k, threads, sizeof threads / sizeof *threads);
    if (!same_pool || !all_same(&g->machine, k, kernels, sizeof kernels / sizeof *kernels))
        close_backend(g);
    if (!same_pool)
        close_pool(g);
    // The new pool opens after the old one closes, because a pinned pool restores this thread's
    // CPUs when it closes.
    if (!g->pool)
        TRY(open_pool(g, k, e));
    g->machine = *k;
    if (g->backend)
        return 0;
    TRY(open_backend(g, k, e));
    TRY(warm_library(g, p, e));
    mem_process_page_in_code();
    return 0;
}

int engine_ready(struct engine *g, struct plan *p, struct err *e) {
    TRY(open_machine(g, p, e));
    const struct comm *c = g->options.comm;
    if (c && c->one_process && c->local_rank > 0) // the first rank counts what all have in common
        plan_set_process(p, mem_bytes(g->mem) + process_table_bytes(p), PLAN_MEASURED);
    else if (p->process_how != PLAN_MEASURED) // kernels will touch all that they have reserved
        process_measured(p, engine_resident_bytes(g) + mem_bytes(g->mem) + process_table_bytes(p));
    TRY(check_precision(g, p, e));
    if (p->second && check_precision(g, p->second, e) != 0)
        return err_context(e, "interactive.recipe=%s", p->knobs.interactive_recipe);
    TRY(engine_room(g, p, &g->room, e));
    return plan_check_room(p, engine_on_device(g), engine_need_bytes(g, p), &g->room, e);
}

// ---------------------------------------------------------------- load

static int open_session(struct engine *g, struct plan *p, bool graphs, struct executor *beside,
                        struct session **out, struct err *e) {
    struct session *s = *out = calloc(1, sizeof *s);
    void *memory = NULL;
    if (!s)
        return err_set(e, ERR_MEMORY, "out of memory for a session");
    s->plan = p;
    s->engine = g;
    // An engine keeps one arena, the plan's. A second model takes a new one with each load.
    if (g->options.keep && !beside)
        TRY(arena_take(&g->arena, s, &memory, e));
    const struct exec_options o = {.programs = p->programs,
                                   .n_programs = p->n_programs,
                                   .layout = &p->layout,
                                   .backend = g->backend,
                                   .arena = memory,
                                   .graphs = graphs,
                                   .checking = g->options.checking,
                                   .beside = beside,
                                   .comm = g->options.comm};
    return exec_open(&s->exec, &o, e);
}

struct touched {
    unsigned char *arena;
    int64_t bytes;
};

static void touch_task(void *arg, int thread, int threads) {
    enum { PAGE = 4096 };
    const struct touched *t = arg;
    int64_t begin, end;
    pool_share(t->bytes, PAGE, thread, threads, &begin, &end);
    for (int64_t i = begin; i < end; i += PAGE)
        ((volatile unsigned char *)t->arena)[i] = 0;
}

// The bulk model's first step touches all of its arena. A second model's first request may come an
// hour later, so this touches its pages now: a lack of memory shows at the start, and the pages are
// part of what is measured.
static void touch(struct session *s) {
    struct touched t = {exec_host_arena(s->exec), (int64_t)s->plan->layout.arena_bytes};
    if (t.arena && !s->engine->options.checking)
        pool_run(s->engine->pool, touch_task, &t);
}

int engine_bind(struct engine *g, struct plan *p, bool graphs, struct err *e) {
    uint64_t total;
    engine_unload(g);
    g->device_free_bytes = 0;
    if (engine_on_device(g))
        TRY(g->backend->memory(g->backend, &g->device_free_bytes, &total, e));
    g->device_free_bytes += g->arena.device_bytes;
    TRY(open_session(g, p, graphs, NULL, &g->session, e));
    struct session *s = g->session;
    if (p->second)
        TRY(open_session(g, p->second, graphs, s->exec, &s->second, e));
    return 0;
}

int engine_load(struct engine *g, struct plan *p, struct err *e) {
    engine_unload(g);
    TRY(engine_ready(g, p, e));
    TRY(engine_bind(g, p, p->knobs.cuda_graphs, e));
    TRY(session_fill(g->session, e));
    if (!p->second)
        return 0;
    touch(g->session->second);
    return session_fill(g->session->second, e);
}

int engine_start(struct engine **out, const struct engine_options *o, struct plan *p,
                 struct err *e) {
    TRY(engine_open(out, o, e));
    const int rc = engine_load(*out, p, e);
    if (rc != 0) {
        engine_close(*out);
        *out = NULL;
    }
    return rc;
}

static void close_session(struct session *s) {
    if (!s)
        return;
    close_session(s->second);
    session_free_extender(s);
    exec_close(s->exec);
    free(s);
}

void engine_unload(struct engine *g) {
    if (!g->session)
        return;
    close_session(g->session);
    g->session = NULL;
    g->arena.tail_bytes = 0;
    malloc_trim(0); // else freed tables of this load would count as memory of the next plan
}

void engine_state_sound(struct engine *g) {
    memcpy(g->arena.state, g->arena.next, sizeof g->arena.state);
}
