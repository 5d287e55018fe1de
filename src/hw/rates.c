// rates.c - measured rates, kept between runs in one JSON file:
//     {"format": 2, "machines": {"<fingerprint>": {...}, ...}}
// The rates of GPUs are kept in the same way, in another file.
//
// One file may serve several machines (a home folder on a network) and several numbers of threads,
// so storing keeps the newest ENTRIES_MAX entries. The file is only a cache. If anything is wrong
// with it, the machine is measured again and nothing fails. Its numbers are checked like any
// untrusted input.
#include "hw/hw.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

// Format 2 also has products of 16-bit types. A file of format 1 is ignored and measured again.
enum { FORMAT = 2, GPU_FORMAT = 1, ENTRIES_MAX = 64, FILE_MAX_BYTES = 1 << 20 };

struct entry {
    char key[HW_FINGERPRINT_BYTES];
    union {
        struct hw_rates rates;
        struct hw_gpu_rates gpu;
    };
};

struct kind { // of a file
    int format;
    const char *member; // that has the entries
    void (*read)(struct json_reader *r, struct entry *out);
    bool (*plausible)(const struct entry *x);
    double (*measured_at)(const struct entry *x);
    void (*put)(const struct entry *x, struct json_writer *w);
};

void hw_fingerprint(const struct hw_machine *m, int threads, char out[HW_FINGERPRINT_BYTES]) {
    char text[1024];
    size_t used = 0;
#define ADD(...)                                                                                   \
    do {                                                                                           \
        int n_ = snprintf(text + used, sizeof text - used, __VA_ARGS__);                           \
        used = n_ < 0 || (size_t)n_ >= sizeof text - used ? sizeof text - 1 : used + (size_t)n_;   \
    } while (0)
    // Memory counts in whole GiB, because the kernel's share differs a little from boot to boot.
    // Available memory is left out: it changes all the time and no rate depends on it.
    ADD("%s;%s;%s;%d;%d;%d;%d;%d;%llu;%s;%d", m->cpu, m->arch, hw_isa_level_name(m->level),
        m->sockets, m->cores, m->cpus, m->usable_cpus, threads,
        (unsigned long long)(m->memory_bytes >> 30), m->huge_pages, m->n_nodes);
    for (int i = 0; i < m->n_caches; i++)
        ADD(";%d%c%llu*%d", m->caches[i].level, m->caches[i].kind,
            (unsigned long long)m->caches[i].bytes, m->caches[i].instances);
#define X(field, name) ADD(";%d", m->isa.field);
    HW_ISA_LIST(X)
#undef X
#undef ADD
    hash_of(text, used, out);
}

int hw_rates_path(char out[HW_PATH_BYTES], struct err *e) {
    return file_user_path(out, HW_PATH_BYTES, FILE_CACHE, "rates.json", e);
}

int hw_gpu_rates_path(char out[HW_PATH_BYTES], struct err *e) {
    return file_user_path(out, HW_PATH_BYTES, FILE_CACHE, "gpu_rates.json", e);
}

// ---------------------------------------------------------------- reading

static bool plausible(const struct hw_rates *r) {
    const double rates[] = {r->vector_flops, r->copy_bytes_per_s, r->memory_bytes_per_s,
                            r->fork_join_ns};
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++)
        if (!(rates[i] > 0 && rates[i] < 1e18))
            return false;
    const double products[] = {r->matmul_flops, r->matmul_bf16_flops, r->matmul_fp16_flops};
    for (size_t i = 0; i < sizeof products / sizeof *products; i++)
        if (!(products[i] >= 0 && products[i] < 1e18)) // 0 means unknown
            return false;
    return r->cpu_share >= 0 && r->cpu_share <= 1 && r->threads >= 1 && r->threads <= 1 << 20 &&
           r->measured_at >= 0;
}

static void read_rate(struct json_reader *r, const char *key, struct hw_rates *rates) {
    const struct {
        const char *key;
        double *out;
        bool may_be_null; // not known
    } numbers[] = {
        {"vector_flops", &rates->vector_flops, false},
        {"copy_bytes_per_s", &rates->copy_bytes_per_s, false},
        {"memory_bytes_per_s", &rates->memory_bytes_per_s, false},
        {"fork_join_ns", &rates->fork_join_ns, false},
        {"matmul_flops", &rates->matmul_flops, true},
        {"matmul_bf16_flops", &rates->matmul_bf16_flops, true},
        {"matmul_fp16_flops", &rates->matmul_fp16_flops, true},
        {"cpu_share", &rates->cpu_share, false},
        {"measured_at", &rates->measured_at, false},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (strcmp(key, numbers[i].key) == 0 &&
            !(numbers[i].may_be_null && json_peek(r) == JSON_NULL)) {
            json_read_double(r, numbers[i].out);
            return;
        }
    json_skip(r);
}

static void read_entry(struct json_reader *r, struct entry *out) {
    const char *key;
    json_enter_object(r);
    while (json_next_key(r, &key)) {
        struct hw_rates *rates = &out->rates;
        int64_t i = 0;
        const char *text = "";
        if (strcmp(key, "threads") == 0) {
            json_read_i64(r, &i);
            rates->threads = i >= 0 && i <= 1 << 20 ? (int)i : 0;
        } else if (strcmp(key, "isa") == 0) {
            json_read_string(r, &text, NULL);
            for (int l = 0; l < HW_ISA_LEVELS; l++)
                if (strcmp(text, hw_isa_level_name(l)) == 0)
                    rates->level = l;
        } else {
            read_rate(r, key, rates);
        }
    }
}

// Reads the entries of a cache file, at most ENTRIES_MAX. Implausible ones are left out.
static int read_entries(const struct kind *kind, const char *path, struct entry *entries, int *n,
                        struct err *e) {
    char *text;
    size_t bytes;
    *n = 0;
    TRY(file_read_all(path, FILE_MAX_BYTES, &text, &bytes, e));
    struct region strings = {0};
    struct json_reader r;
    const char *key;
    int64_t format = 0;
    json_reader_init(&r, path, text, bytes, &strings, e);
    json_enter_object(&r);
    while (json_next_key(&r, &key)) {
        if (strcmp(key, "format") == 0) {
            json_read_i64(&r, &format);
        } else if (strcmp(key, kind->member) == 0 && format == kind->format) {
            json_enter_object(&r);
            while (json_next_key(&r, &key)) {
                struct entry entry = {0};
                snprintf(entry.key, sizeof entry.key, "%.32s", key);
                kind->read(&r, &entry);
                if (*n < ENTRIES_MAX && kind->plausible(&entry))
                    entries[(*n)++] = entry;
            }
        } else {
            json_skip(&r);
        }
    }
    int rc = json_finish(&r);
    if (rc != 0)
        *n = 0;
    region_free(&strings);
    free(text);
    return rc;
}

static int load(const struct kind *kind, struct entry *out, const char *path, const char *key,
                struct err *e) {
    struct entry entries[ENTRIES_MAX];
    int n;
    TRY(read_entries(kind, path, entries, &n, e));
    for (int i = 0; i < n; i++)
        if (strcmp(entries[i].key, key) == 0) {
            *out = entries[i];
            return 0;
        }
    return err_set(e, ERR_IO, "%s has no rates for this machine yet", path);
}

// ---------------------------------------------------------------- writing

static void put_known(struct json_writer *w, const char *key, double x) {
    json_put_key(w, key);
    if (x > 0)
        json_put_double(w, x);
    else
        json_put_null(w);
}

void hw_rates_put_json(const struct hw_rates *r, struct json_writer *w) {
    json_put_object_begin(w);
    json_member_i64(w, "threads", r->threads);
    json_member_string(w, "isa", hw_isa_level_name(r->level));
    json_member_double(w, "vector_flops", r->vector_flops);
    json_member_double(w, "copy_bytes_per_s", r->copy_bytes_per_s);
    json_member_double(w, "memory_bytes_per_s", r->memory_bytes_per_s);
    json_member_double(w, "fork_join_ns", r->fork_join_ns);
    put_known(w, "matmul_flops", r->matmul_flops);
    put_known(w, "matmul_bf16_flops", r->matmul_bf16_flops);
    put_known(w, "matmul_fp16_flops", r->matmul_fp16_flops);
    json_member_double(w, "cpu_share", r->cpu_share);
    json_member_double(w, "measured_at", r->measured_at);
    json_put_object_end(w);
}

static int store(const struct kind *kind, const struct entry *x, const char *path, const char *key,
                 struct err *e) {
    struct entry entries[ENTRIES_MAX];
    int n = 0;
    if (!kind->plausible(x))
        return err_set(e, ERR_NUMERIC, "measured rates are not plausible and were not stored");
    (void)read_entries(kind, path, entries, &n, NULL); // a damaged file is replaced
    int at = 0;
    while (at < n && strcmp(entries[at].key, key) != 0)
        at++;
    if (at == ENTRIES_MAX) { // full: replaces the oldest entry
        at = 0;
        for (int i = 1; i < n; i++)
            if (kind->measured_at(&entries[i]) < kind->measured_at(&entries[at]))
                at = i;
    } else if (at == n) {
        n++;
    }
    entries[at] = *x;
    snprintf(entries[at].key, sizeof entries[at].key, "%.32s", key);

    TRY(file_make_parent(path, e));
    struct json_writer w;
    json_writer_to_buffer(&w, 1);
    json_put_object_begin(&w);
    json_member_i64(&w, "format", kind->format);
    json_member_object(&w, kind->member);
    for (int i = 0; i < n; i++) {
        json_put_key(&w, entries[i].key);
        kind->put(&entries[i], &w);
    }
    json_put_object_end(&w);
    json_put_object_end(&w);
    int rc = json_writer_finish(&w, e);
    if (rc == 0)
        rc = file_write_atomic(path, w.buffer, w.bytes, e);
    free(w.buffer);
    return rc;
}

// ---------------------------------------------------------------- of machines

static bool plausible_machine(const struct entry *x) {
    return plausible(&x->rates);
}

static double machine_measured_at(const struct entry *x) {
    return x->rates.measured_at;
}

static void put_machine(const struct entry *x, struct json_writer *w) {
    hw_rates_put_json(&x->rates, w);
}

static const struct kind machines = {
    FORMAT, "machines", read_entry, plausible_machine, machine_measured_at, put_machine};

int hw_rates_load(struct hw_rates *r, const char *path, const char *fingerprint, struct err *e) {
    struct entry x;
    TRY(load(&machines, &x, path, fingerprint, e));
    *r = x.rates;
    return 0;
}

int hw_rates_store(const struct hw_rates *r, const char *path, const char *fingerprint,
                   struct err *e) {
    const struct entry x = {.rates = *r};
    return store(&machines, &x, path, fingerprint, e);
}

// ---------------------------------------------------------------- of GPUs

static void read_gpu(struct json_reader *r, struct entry *out) {
    const char *key, *text;
    json_enter_object(r);
    while (json_next_key(r, &key)) {
        double *at = NULL;
#define X(name)                                                                                    \
    if (strcmp(key, #name) == 0)                                                                   \
        at = &out->gpu.name;
        HW_GPU_RATE_LIST(X)
#undef X
        if (strcmp(key, "device") == 0) {
            text = "";
            json_read_string(r, &text, NULL);
            snprintf(out->gpu.device, sizeof out->gpu.device, "%s", text);
        } else if (at && json_peek(r) != JSON_NULL) {
            json_read_double(r, at);
        } else {
            json_skip(r);
        }
    }
}

static bool plausible_gpu(const struct entry *x) {
#define X(name)                                                                                    \
    if (!(x->gpu.name >= 0 && x->gpu.name < 1e18))                                                 \
        return false;
    HW_GPU_RATE_LIST(X)
#undef X
    return x->gpu.device[0] && x->gpu.measured_at > 0;
}

static double gpu_measured_at(const struct entry *x) {
    return x->gpu.measured_at;
}

void hw_gpu_rates_put_json(const struct hw_gpu_rates *r, struct json_writer *w) {
    json_put_object_begin(w);
    json_member_string(w, "device", r->device);
#define X(name) put_known(w, #name, r->name);
    HW_GPU_RATE_LIST(X)
#undef X
    json_put_object_end(w);
}

static void put_gpu(const struct entry *x, struct json_writer *w) {
    hw_gpu_rates_put_json(&x->gpu, w);
}

static const struct kind gpus = {GPU_FORMAT,    "gpus",          read_gpu,
                                 plausible_gpu, gpu_measured_at, put_gpu};

int hw_gpu_rates_load(struct hw_gpu_rates *r, const char *path, const char *key, struct err *e) {
    struct entry x;
    TRY(load(&gpus, &x, path, key, e));
    *r = x.gpu;
    return 0;
}

int hw_gpu_rates_store(const struct hw_gpu_rates *r, const char *path, const char *key,
                       struct err *e) {
    const struct entry x = {.gpu = *r};
    return store(&gpus, &x, path, key, e);
}

// ---------------------------------------------------------------- both

int hw_rates_get(struct hw_rates *r, const struct hw_machine *m, struct pool *pool, struct mem *mem,
                 bool fresh, hw_matmul_fn *matmul, void *arg, bool *stored, struct err *e) {
    char path[HW_PATH_BYTES], key[HW_FINGERPRINT_BYTES];
    bool have_path = hw_rates_path(path, NULL) == 0;
    hw_fingerprint(m, pool_threads(pool), key);
    struct hw_rates out;
    bool found = have_path && !fresh && hw_rates_load(&out, path, key, NULL) == 0;
    bool changed = false;
    if (!found) {
        TRY(hw_rates_measure(&out, m, pool, mem, matmul, arg, e));
        changed = true;
    } else if (matmul && out.matmul_flops <= 0) { // measured before there was a backend
        TRY(hw_rates_measure_products(&out, matmul, arg, e));
        changed = true;
    }
    bool ok = have_path && out.cpu_share >= HW_CPU_SHARE_MIN &&
              (!changed || hw_rates_store(&out, path, key, NULL) == 0);
    if (stored)
        *stored = ok;
    *r = out;
    return 0;
}
