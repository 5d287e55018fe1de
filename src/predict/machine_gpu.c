// machine_gpu.c - what a GPU reaches: rates of products, attention and copies, timed through the
// ops and with the kernels of a run, and known from then on (hw.h).
//
// Each figure is the median of a few calls by the device's own clock. Inputs are random, because a
// GPU at its power limit is faster on zeros. A figure for which there is no memory stays unknown.
#include "backend/plugin.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/rng.h"
#include "measure/sample.h"
#include "plan/plan.h"
#include "predict/machine.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

// Products large enough for the full rate. Smaller ones where memory is short, down to the least
// that still says something. Attention as in a model of 16 heads, of fewer sequences where memory
// is short.
enum { PRODUCT_SIZE = 8192, PRODUCT_LEAST = 4096, BATCH = 4, SEQ = 2048, HEADS = 16 };
enum { TRIALS = 7, LAUNCHES = 256, SMALL = 256 };
enum { COPY_BYTES = 256 << 20, COPY_LEAST = 64 << 20, HOST_BYTES = 64 << 20, FILL_BYTES = 2 << 20 };
static const uint64_t BUDGET_NS = 300000000;

// ---------------------------------------------------------------- what is known

// A plug-in that was built again is another one: its file has another size or time.
static void gpu_key(const struct hw_machine *m, const struct knobs *k, bool deterministic,
                    char out[HW_FINGERPRINT_BYTES]) {
    char text[4096], machine[HW_FINGERPRINT_BYTES], path[PLUGIN_PATH_BYTES], gpus[HW_GPUS_BYTES];
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    struct stat file = {0};
    hw_fingerprint(m, 0, machine);
    hw_gpus_read(gpus);
    plugin_find("cuda", path);
    (void)stat(path, &file);
    snprintf(text, sizeof text, "%s|%s|%.200s|%s|%" PRId64 "|%" PRId64 "|%d|%d|%d|%s", machine,
             gpus, visible ? visible : "all", path, (int64_t)file.st_size, (int64_t)file.st_mtime,
             (int)k->cuda_kernels, deterministic, k->cuda_tf32, k->cuda_cudnn);
    hash_of(text, strlen(text), out);
}

static bool load(struct hw_gpu_rates *r, const struct hw_machine *m, const struct knobs *k,
                 bool deterministic) {
    char path[HW_PATH_BYTES], key[HW_FINGERPRINT_BYTES];
    gpu_key(m, k, deterministic, key);
    return hw_gpu_rates_path(path, NULL) == 0 && hw_gpu_rates_load(r, path, key, NULL) == 0;
}

// A roofline needs products and a copy.
static bool enough(const struct hw_gpu_rates *r) {
    return r->matmul_flops > 0 && r->copy_bytes_per_s > 0;
}

bool machine_gpu_known(struct hw_gpu_rates *out, const struct hw_machine *m,
                       const struct knobs *k) {
    return load(out, m, k, k->cuda_deterministic) && enough(out);
}

static void use(struct machine *m, const struct knobs *k) {
    m->has_gpu = true;
    hw_device_from_gpu(&m->device, &m->gpu);
    m->peak_flops = machine_peak(m, k->precision, &m->peak_is);
    if (!load(&m->any_order, &m->hw, k, false))
        m->any_order = (struct hw_gpu_rates){0};
}

void machine_open_gpu(struct machine *m, const struct knobs *k) {
    if (machine_gpu_known(&m->gpu, &m->hw, k)) {
        use(m, k);
        m->cached = true;
    }
}

// ---------------------------------------------------------------- timing

struct gauge {
    struct backend *b;
    struct cuda_choice choice;
    struct hw_gpu_rates *r;
    char *why; // the first figure that is missing, and the reason; ERR_TEXT_BYTES
};

// Seconds of one call of `repeat` in a row. The first trial also loads kernels and does not count.
static int time_call(struct backend *b, const struct op_call *call, int repeat, double *seconds,
                     struct err *e) {
    const bool own_clock = b->turn_begin && b->turn_end && b->busy_ns;
    const uint64_t start = clock_ns();
    double s[TRIALS];
    size_t n = 0;
    for (int i = -1; i < TRIALS && (n == 0 || clock_ns() - start < BUDGET_NS); i++) {
        const uint64_t begin = clock_ns();
        if (own_clock)
            TRY(b->turn_begin(b, e));
        for (int k = 0; k < repeat; k++)
            TRY(b->run[call->op->kind](b, call, e));
        if (own_clock)
            TRY(b->turn_end(b, e));
        TRY(b->sync(b, e));
        if (i >= 0)
            s[n++] = 1e-9 * (double)(own_clock ? b->busy_ns(b) : clock_ns() - begin) / repeat;
    }
    *seconds = sample_median(s, n);
    return *seconds > 0 ? 0 : err_set(e, ERR_UNSUPPORTED, "the device's clock stands still");
}

// The same with the kernels that a run would use. `rate`: of the work, per second.
static int rate_call(struct gauge *g, struct op_call *call, double work, double *rate,
                     struct err *e) {
    struct backend *b = g->b;
    double seconds = 0;
    if (!b->run[call->op->kind])
        return err_set(e, ERR_UNSUPPORTED, "the %s backend has no %s", b->name,
                       op_info(call->op->kind)->name);
    int rc = b->make ? b->make(b, call, e) : 0;
    if (rc == 0)
        rc = time_call(b, call, 1, &seconds, e);
    if (b->unmake)
        b->unmake(b, call);
    if (rc == 0)
        *rate = work / seconds;
    return rc;
}

// ---------------------------------------------------------------- memory

// At most half of what is free, so that libraries and other processes find room.
static int take(struct gauge *g, uint64_t bytes, char **out, struct err *e) {
    uint64_t left = 0, total = 0;
    void *arena;
    TRY(g->b->memory(g->b, &left, &total, e));
    if (bytes > left / 2)
        return err_set(e, ERR_MEMORY, "%" PRIu64 " MiB are needed and %" PRIu64 " MiB are free",
                       bytes >> 20, left >> 20);
    TRY(g->b->arena_take(g->b, bytes, &arena, e));
    *out = arena;
    return 0;
}

// Random numbers between -1 and 1, repeated every few megabytes.
static int fill(struct backend *b, char *to, uint64_t bytes, enum dtype type, struct err *e) {
    const uint64_t some = bytes < FILL_BYTES ? bytes : FILL_BYTES;
    const size_t n = some / dtype_bytes(type);
    float *values = malloc(n * sizeof *values);
    void *typed = malloc(some);
    int rc = values && typed ? 0 : err_set(e, ERR_MEMORY, "no memory for random numbers");
    for (size_t i = 0; rc == 0 && i < n; i++)
        values[i] = (float)rng_below(1, 1, i, 2001) / 1000.0f - 1.0f;
    if (rc == 0)
        dtype_convert(typed, type, values, DTYPE_F32, n);
    for (uint64_t at = 0; rc == 0 && at < bytes; at += some)
        rc = b->copy_in(b, to + at, typed, bytes - at < some ? bytes - at : some, e);
    free(values);
    free(typed);
    return rc;
}

// ---------------------------------------------------------------- products

static struct operand matrix(char *at, int64_t rows, int64_t cols, int64_t ld, enum dtype type) {
    return (struct operand){.data = at, .ld = ld, .dtype = type, .rows = rows, .cols = cols};
}

static struct operand scratch(char *at, uint64_t bytes) {
    return (struct operand){.data = bytes > 0 ? at : NULL,
                            .ld = (int64_t)bytes,
                            .dtype = DTYPE_U8,
                            .rows = 1,
                            .cols = (int64_t)bytes};
}

static struct op product_of(int64_t n) {
    struct op op = op_make(OP_MATMUL);
    op.m = op.n = op.k = n;
    op.scale = 1;
    return op;
}

static int time_product(struct gauge *g, char *arena, int64_t n, enum dtype type, double *rate,
                        struct err *e) {
    const struct op op = product_of(n);
    const uint64_t bytes = (uint64_t)(n * n) * dtype_bytes(type),
                   needs = cuda_scratch_bytes(&op, type, &g->choice);
    TRY(fill(g->b, arena, 2 * bytes, type, e));
    struct op_call call = {
        .op = &op,
        .in = {matrix(arena, n, n, n, type), matrix(arena + bytes, n, n, n, type)},
        .out = {matrix(arena + 2 * bytes, n, n, n, type)},
        .scratch = scratch(arena + 3 * bytes, needs)};
    return rate_call(g, &call, 2.0 * (double)n * (double)n * (double)n, rate, e);
}

// All types have the size for which there is memory in the widest.
static int measure_products(struct gauge *g, struct err *e) {
    const struct {
        enum dtype type;
        double *rate;
    } types[] = {{DTYPE_F32, &g->r->matmul_flops},
                 {DTYPE_BF16, &g->r->matmul_bf16_flops},
                 {DTYPE_F16, &g->r->matmul_fp16_flops}};
    char *arena = NULL;
    int64_t n = PRODUCT_SIZE;
    int rc;
    for (;; n /= 2) {
        const struct op op = product_of(n);
        rc = take(g, 12 * (uint64_t)(n * n) + cuda_scratch_bytes(&op, DTYPE_F32, &g->choice),
                  &arena, e);
        if (rc != ERR_MEMORY || n == PRODUCT_LEAST)
            break;
        err_clear(e);
    }
    TRY(rc);
    for (size_t i = 0; rc == 0 && i < sizeof types / sizeof *types; i++)
        if (g->b->info.types >> types[i].type & 1)
            rc = time_product(g, arena, n, types[i].type, types[i].rate, e);
    g->r->matmul_size = (double)n;
    g->b->arena_give(g->b, arena);
    return rc;
}

// ---------------------------------------------------------------- attention

// What a layer's attention reads and writes: q, k and v side by side, as fuse.qkv leaves them.
struct layer {
    int64_t rows, width, heads_width;
    uint64_t qkv, o, dout, lse, dqkv, scratch, bytes; // where each begins; of all
};

static struct op attention_of(enum op_kind kind, int64_t batch, int64_t head_dim) {
    struct op op = op_make(kind);
    op.batch = batch, op.seq = SEQ;
    op.heads = op.kv_heads = HEADS, op.head_dim = head_dim;
    op.scale = 1 / sqrt((double)head_dim);
    return op;
}

static struct layer layer_of(const struct op *op, uint64_t scratch_bytes) {
    struct layer l = {.rows = op->batch * op->seq, .heads_width = op->heads * op->head_dim};
    l.width = 3 * l.heads_width;
    const struct {
        uint64_t *at, bytes;
    } pieces[] = {{&l.qkv, (uint64_t)(l.rows * l.width) * 2},
                  {&l.o, (uint64_t)(l.rows * l.heads_width) * 2},
                  {&l.dout, (uint64_t)(l.rows * l.heads_width) * 2},
                  {&l.lse, (uint64_t)(l.rows * op->heads) * 4},
                  {&l.dqkv, (uint64_t)(l.rows * l.width) * 2},
                  {&l.scratch, scratch_bytes}};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        *pieces[i].at = l.bytes;
        l.bytes += (pieces[i].bytes + TENSOR_ALIGN - 1) / TENSOR_ALIGN * TENSOR_ALIGN;
    }
    return l;
}

static void set_heads(const struct layer *l, char *at, struct operand out[3]) {
    for (int i = 0; i < 3; i++)
        out[i] = matrix(at + 2 * i * l->heads_width, l->rows, l->heads_width, l->width, DTYPE_BF16);
}

// The forward comes first: the backward reads what it has written.
static int time_attention(struct gauge *g, int64_t batch, int64_t head_dim, double *forward_rate,
                          double *backward_rate, struct err *e) {
    const struct op forward = attention_of(OP_ATTENTION, batch, head_dim),
                    backward = attention_of(OP_ATTENTION_BWD, batch, head_dim);
    const uint64_t needs[] = {cuda_scratch_bytes(&forward, DTYPE_BF16, &g->choice),
                              cuda_scratch_bytes(&backward, DTYPE_BF16, &g->choice)};
    const struct layer l = layer_of(&backward, needs[0] > needs[1] ? needs[0] : needs[1]);
    const double pairs = (double)(batch * HEADS) * SEQ * (SEQ + 1.0) / 2;
    char *arena;
    TRY(take(g, l.bytes, &arena, e));
    const struct operand o = matrix(arena + l.o, l.rows, l.heads_width, l.heads_width, DTYPE_BF16),
                         lse = matrix(arena + l.lse, batch * HEADS, SEQ, SEQ, DTYPE_F32);
    struct op_call call = {
        .op = &forward, .out = {o, lse}, .scratch = scratch(arena + l.scratch, needs[0])};
    set_heads(&l, arena + l.qkv, call.in);
    int rc = fill(g->b, arena, l.lse, DTYPE_BF16, e);
    if (rc == 0)
        rc = rate_call(g, &call, 4 * pairs * (double)head_dim, forward_rate, e);
    call = (struct op_call){.op = &backward, .scratch = scratch(arena + l.scratch, needs[1])};
    call.in[0] = matrix(arena + l.dout, l.rows, l.heads_width, l.heads_width, DTYPE_BF16);
    set_heads(&l, arena + l.qkv, call.in + 1);
    call.in[4] = o, call.in[5] = lse;
    set_heads(&l, arena + l.dqkv, call.out);
    if (rc == 0)
        rc = rate_call(g, &call, 10 * pairs * (double)head_dim, backward_rate, e);
    g->b->arena_give(g->b, arena);
    return rc;
}

static int measure_attention(struct gauge *g, int64_t head_dim, double *forward, double *backward,
                             struct err *e) {
    int rc;
    if (!(g->b->info.types >> DTYPE_BF16 & 1))
        return 0;
    for (int64_t batch = BATCH;; batch /= 2) {
        rc = time_attention(g, batch, head_dim, forward, backward, e);
        if (rc != ERR_MEMORY || batch == 1)
            return rc;
        err_clear(e);
    }
}

static int measure_attention_64(struct gauge *g, struct err *e) {
    return measure_attention(g, 64, &g->r->attention_64_flops, &g->r->attention_64_bwd_flops, e);
}

static int measure_attention_128(struct gauge *g, struct err *e) {
    return measure_attention(g, 128, &g->r->attention_128_flops, &g->r->attention_128_bwd_flops, e);
}

// ---------------------------------------------------------------- copies and launches

static struct op_call copy_call(const struct op *op, char *from, char *to) {
    return (struct op_call){.op = op,
                            .in = {matrix(from, op->m, op->n, op->n, DTYPE_F32)},
                            .out = {matrix(to, op->m, op->n, op->n, DTYPE_F32)}};
}

static int time_copies(struct gauge *g, char *arena, uint64_t bytes, struct err *e) {
    struct op op = op_make(OP_COPY);
    op.m = 1, op.n = (int64_t)(bytes / sizeof(float));
    struct op_call call = copy_call(&op, arena, arena + bytes);
    TRY(fill(g->b, arena, bytes, DTYPE_F32, e));
    TRY(rate_call(g, &call, 2.0 * (double)bytes, &g->r->copy_bytes_per_s, e));
    op.n = SMALL, op.flags = OP_ACCUMULATE; // adds, because a plain copy is no kernel
    call = copy_call(&op, arena, arena + bytes);
    int rc = g->b->make ? g->b->make(g->b, &call, e) : 0;
    if (rc == 0)
        rc = time_call(g->b, &call, LAUNCHES, &g->r->launch_s, e);
    if (g->b->unmake)
        g->b->unmake(g->b, &call);
    return rc;
}

// Through the copy stream, on which the device's clock does not count: by the host's clock.
static int time_loads(struct gauge *g, char *arena, struct err *e) {
    struct backend *b = g->b;
    double s[TRIALS];
    void *staging;
    TRY(b->staging_take(b, HOST_BYTES, &staging, e));
    memset(staging, 1, HOST_BYTES);
    int rc = 0;
    for (int i = -1; rc == 0 && i < TRIALS; i++) {
        const uint64_t begin = clock_ns();
        rc = b->load(b, arena, staging, HOST_BYTES, e);
        if (rc == 0)
            rc = b->sync(b, e);
        if (i >= 0)
            s[i] = 1e-9 * (double)(clock_ns() - begin);
    }
    b->staging_give(b, staging);
    if (rc == 0)
        g->r->host_bytes_per_s = HOST_BYTES / sample_median(s, TRIALS);
    return rc;
}

static int measure_copies(struct gauge *g, struct err *e) {
    char *arena = NULL;
    uint64_t bytes = COPY_BYTES;
    int rc;
    while ((rc = take(g, 2 * bytes, &arena, e)) == ERR_MEMORY && bytes > COPY_LEAST) {
        err_clear(e);
        bytes /= 2;
    }
    TRY(rc);
    rc = time_copies(g, arena, bytes, e);
    if (rc == 0)
        rc = time_loads(g, arena, e);
    g->b->arena_give(g->b, arena);
    return rc;
}

// ---------------------------------------------------------------- all

// A figure that this device has no memory or no kernel for is left out. Other failures end it.
static int measure(struct gauge *g, struct err *e) {
    static const struct {
        const char *what;
        int (*run)(struct gauge *g, struct err *e);
    } figures[] = {{"matrix products", measure_products},
                   {"attention, heads of 64", measure_attention_64},
                   {"attention, heads of 128", measure_attention_128},
                   {"copies", measure_copies}};
    struct err own;
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) {
        own = (struct err){0};
        const int rc = figures[i].run(g, &own);
        if (rc != 0 && rc != ERR_MEMORY && rc != ERR_UNSUPPORTED)
            return err_set(e, rc, "measuring %s: %s", figures[i].what, own.text);
        if (rc != 0 && !g->why[0])
            snprintf(g->why, ERR_TEXT_BYTES, "%s: %.*s", figures[i].what, ERR_TEXT_BYTES / 2,
                     own.text);
    }
    return 0;
}

int machine_measure_device(struct machine *m, struct backend *b, const struct knobs *k,
                           struct err *e) {
    char path[HW_PATH_BYTES], key[HW_FINGERPRINT_BYTES];
    struct hw_gpu_rates r = {.measured_at = clock_wall_s()};
    struct gauge g = {.b = b,
                      .choice = {.plain = k->cuda_kernels == CUDA_KERNELS_PLAIN,
                                 .deterministic = k->cuda_deterministic,
                                 .attention = cuda_wants_cudnn(k->cuda_cudnn)},
                      .r = &r,
                      .why = m->gpu_lacks};
    if (m->has_gpu && strcmp(m->gpu.device, b->info.text) == 0)
        return 0;
    m->gpu_lacks[0] = '\0';
    m->has_gpu = m->cached = false;
    snprintf(r.device, sizeof r.device, "%s", b->info.text);
    TRY(measure(&g, e));
    if (!enough(&r))
        return 0;
    gpu_key(&m->hw, k, k->cuda_deterministic, key);
    // What lacks memory now may have it next time.
    if (!m->gpu_lacks[0] && hw_gpu_rates_path(path, NULL) == 0)
        (void)hw_gpu_rates_store(&r, path, key, NULL); // a cache: nothing is lost
    m->gpu = r;
    use(m, k);
    return 0;
}
