// machine.c - see machine.h.
#include "predict/machine.h"

#include "backend/cpu/cpu.h"
#include "base/clock.h"
#include "plan/plan.h"

#include <math.h>
#include <string.h>

int machine_threads(const struct knobs *k) {
    const int64_t ranks = knobs_world(k), cpus = pool_machine_cpus() / ranks;
    return k->threads > 0 ? (int)k->threads : cpus > 1 ? (int)cpus : 1;
}

// ---------------------------------------------------------------- matrix products

enum { MATMUL_TRIALS_LEAST = 3 };
static const uint64_t MATMUL_BUDGET_NS = 200000000;

// A pool, an accountant of memory and a backend for the duration of a measurement.
struct bench_device {
    struct mem *mem;
    struct pool *pool;
    struct backend *backend;
};

static void device_close(struct bench_device *d) {
    if (d->backend)
        d->backend->close(d->backend);
    if (d->pool)
        pool_close(d->pool);
    if (d->mem)
        mem_close(d->mem);
    *d = (struct bench_device){0};
}

static int device_open(struct bench_device *d, const struct knobs *k, const char *blas,
                       struct err *e) {
    *d = (struct bench_device){0};
    struct cpu_options o = {.blas = blas, .isa = knob_choice(KNOB_cpu_isa, (int)k->cpu_isa)};
    TRY(mem_open(&d->mem, e));
    TRY(pool_open(&d->pool, machine_threads(k), k->cpu_pin, e));
    return cpu_backend_open(&d->backend, d->mem, d->pool, &o, e);
}

static int time_matmul(void *arg, enum dtype type, double *flops_per_s, struct err *e) {
    const struct bench_device *d = arg;
    const int64_t n = MACHINE_MATMUL_SIZE;
    void *block;
    if (!d->backend->run[OP_MATMUL])
        return err_set(e, ERR_UNSUPPORTED, "the %s backend has no matmul", d->backend->name);
    size_t bytes = (size_t)(n * n) * dtype_bytes(type);
    TRY(mem_take(d->mem, "measuring", "matmul", 3 * bytes, &block, e));
    char *x = block;
    // Small whole numbers, never denormal: some CPUs take longer for those.
    for (int64_t i = 0; i < 2 * n * n; i++) {
        float value = (float)(i % 7) - 3.0f;
        dtype_convert(x + (size_t)i * dtype_bytes(type), type, &value, DTYPE_F32, 1);
    }
    struct op op = op_make(OP_MATMUL);
    op.m = op.n = op.k = n;
    op.scale = 1;
    struct op_call call = {
        .op = &op, .in = {{x, n, type}, {x + bytes, n, type}}, .out = {{x + 2 * bytes, n, type}}};
    double best = 0;
    int rc = 0;
    uint64_t start = clock_ns();
    for (int i = 0; rc == 0; i++) {
        uint64_t begin = clock_ns();
        rc = d->backend->run[OP_MATMUL](d->backend, &call, e);
        uint64_t now = clock_ns();
        // The first product also pays for page faults and the library's buffers.
        if (i > 0 && now > begin)
            best = fmax(best, 2e9 * (double)n * (double)n * (double)n / (double)(now - begin));
        if (i >= MATMUL_TRIALS_LEAST && now - start > MATMUL_BUDGET_NS)
            break;
    }
    mem_give(d->mem, block);
    *flops_per_s = best;
    return rc;
}

// The file of the loaded library, from the kernel's list of mappings; "" for the builtin products.
// Libraries are opened at run time, and several may be installed.
static void find_path(const char *choice, char out[PATH_MAX]) {
    static const char *const files[][2] = {
        {"openblas", "libopenblas"}, {"blis", "libblis"}, {"onednn", "libdnnl"}};
    char line[PATH_MAX + 128];
    const char *part = NULL;
    out[0] = '\0';
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (strcmp(choice, files[i][0]) == 0)
            part = files[i][1];
    FILE *f = part ? fopen("/proc/self/maps", "re") : NULL;
    while (f && out[0] == '\0' && fgets(line, sizeof line, f)) {
        char *at = strchr(line, '/');
        if (!at || !strstr(at, part))
            continue;
        at[strcspn(at, "\n")] = '\0';
        snprintf(out, PATH_MAX, "%.*s", PATH_MAX - 1, at);
    }
    if (f)
        fclose(f);
}

int machine_measure_blas(struct machine_blas *out, const struct knobs *k, const char *choice,
                         enum dtype type, struct err *e) {
    struct bench_device d;
    int rc = device_open(&d, k, choice, e);
    if (rc == 0) {
        snprintf(out->name, sizeof out->name, "%s", d.backend->products[type]);
        find_path(choice, out->path);
        rc = time_matmul(&d, type, &out->flops_per_s, e);
    }
    device_close(&d);
    return rc;
}

// ---------------------------------------------------------------- the machine

// Measuring takes one to three seconds, longer on a busy machine and on a GPU, where a library
// prepares kernels. Rates of a busy machine are not
// stored (hw/), so this may happen every time.
static const double MEASURING_S = 3, MEASURING_GPU_S = 8;

enum machine_how machine_how_after(double seconds, bool device, bool stopped) {
    const double least = device ? MEASURING_GPU_S : MEASURING_S;
    return seconds >= least && !stopped ? MACHINE_MEASURE : MACHINE_KNOWN;
}

static bool load_known(struct machine *m, const struct knobs *k) {
    char path[HW_PATH_BYTES], key[HW_FINGERPRINT_BYTES];
    hw_fingerprint(&m->hw, machine_threads(k), key);
    return hw_rates_path(path, NULL) == 0 && hw_rates_load(&m->rates, path, key, NULL) == 0;
}

double machine_peak(const struct machine *m, enum precision p, const char **is) {
    static const char product[] = "reached by a large bf16 product here";
    const struct hw_isa *isa = &m->hw.isa;
    if (m->has_gpu) {
        *is = "reached by a large matrix product here";
        return hw_gpu_products(&m->gpu, p == PRECISION_BF16   ? DTYPE_BF16
                                        : p == PRECISION_FP16 ? DTYPE_F16
                                                              : DTYPE_F32);
    }
    if (!m->has_rates) {
        *is = m->peak_is;
        return m->peak_flops;
    }
    // With special instructions for bf16, the fp32 rate in registers is no upper limit.
    bool own = p == PRECISION_BF16 && (isa->avx512_bf16 || isa->amx_bf16);
    bool higher = own && m->rates.matmul_bf16_flops > m->rates.vector_flops;
    *is = higher ? product : "measured in registers";
    return higher ? m->rates.matmul_bf16_flops : m->rates.vector_flops;
}

int machine_open(struct machine *m, const struct knobs *k, enum machine_how how, struct err *e) {
    memset(m, 0, sizeof *m);
    hw_machine_read(&m->hw, "");
    if (plan_wants_device(k)) { // the CPU's rates say nothing about this run
        if (how != MACHINE_FRESH)
            machine_open_gpu(m, k);
        return 0;
    }
    if (how != MACHINE_FRESH)
        m->has_rates = load_known(m, k);
    m->cached = m->has_rates;
    // Stored rates without a matrix product are incomplete and measured again.
    if (how == MACHINE_FRESH ||
        (how == MACHINE_MEASURE && !(m->has_rates && m->rates.matmul_flops > 0))) {
        struct bench_device d;
        int rc = device_open(&d, k, knob_choice(KNOB_cpu_blas, (int)k->cpu_blas), e);
        if (rc == 0)
            rc = hw_rates_get(&m->rates, &m->hw, d.pool, d.mem, how == MACHINE_FRESH, time_matmul,
                              &d, NULL, e);
        device_close(&d);
        TRY(rc);
        m->has_rates = true;
        m->cached = false;
    }
    if (m->has_rates) {
        hw_device_from_rates(&m->device, &m->hw, &m->rates);
        m->peak_flops = machine_peak(m, k->precision, &m->peak_is);
    }
    return 0;
}

void machine_put_json(const struct machine *m, struct json_writer *w) {
    json_put_key(w, "machine");
    hw_machine_put_json(&m->hw, w);
    json_put_key(w, "rates");
    if (m->has_rates)
        hw_rates_put_json(&m->rates, w);
    else
        json_put_null(w);
    json_put_key(w, "gpu_rates");
    if (m->has_gpu)
        hw_gpu_rates_put_json(&m->gpu, w);
    else
        json_put_null(w);
}
