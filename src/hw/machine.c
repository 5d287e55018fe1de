// machine.c - what this machine is: CPUID for instructions, /proc and /sys for the rest.
//
// Any file may be missing (in containers, on unusual kernels) or have unexpected content. The value
// then stays "unknown" or 0. Every read is bounded by its buffer.
#include "hw/hw.h"

#include "base/file.h"

#include <cpuid.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

enum { TEXT_MAX_BYTES = 16 << 20, PATH_BYTES = 512 }; // /proc/cpuinfo has about 1.5 KiB per CPU

// ---------------------------------------------------------------- instructions

// XCR0: which register files the kernel saves on a context switch (Intel SDM vol. 1, 13.3).
static uint64_t saved_state(void) {
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

void hw_isa_read(struct hw_isa *isa) {
    uint32_t a, b, c, d;
    *isa = (struct hw_isa){0};
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE))
        return;
    uint64_t saved = saved_state();
    bool ymm = (saved & 0x6) == 0x6;          // SSE and AVX
    bool zmm = ymm && (saved & 0xE0) == 0xE0; // opmask, upper ZMM, ZMM16-31
    bool tile = (saved & 0x60000) == 0x60000; // AMX configuration and data
    isa->fma = ymm && (c & bit_FMA);
    isa->f16c = ymm && (c & bit_F16C);
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return;
    isa->avx2 = ymm && (b & bit_AVX2);
    isa->avx512f = zmm && (b & bit_AVX512F);
    isa->avx512bw = zmm && (b & bit_AVX512BW);
    isa->avx512dq = zmm && (b & bit_AVX512DQ);
    isa->avx512vl = zmm && (b & bit_AVX512VL);
    isa->avx512_vnni = zmm && (c & 1u << 11);
    isa->avx512_fp16 = zmm && (d & 1u << 23);
    isa->amx_bf16 = tile && (d & 1u << 22);
    isa->amx_tile = tile && (d & 1u << 24);
    isa->amx_int8 = tile && (d & 1u << 25);
    if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d))
        isa->avx512_bf16 = zmm && (a & 1u << 5);
}

// Must match the compile flags of *_avx2.c and *_avx512.c in CMakeLists.txt.
enum hw_isa_level hw_isa_level_of(const struct hw_isa *isa) {
    if (!(isa->avx2 && isa->fma && isa->f16c))
        return HW_GENERIC;
    if (isa->avx512f && isa->avx512bw && isa->avx512dq && isa->avx512vl)
        return HW_AVX512;
    return HW_AVX2;
}

const char *hw_isa_level_name(enum hw_isa_level l) {
    static const char *const names[HW_ISA_LEVELS] = {"generic", "avx2", "avx512"};
    return (int)l >= 0 && l < HW_ISA_LEVELS ? names[l] : "unknown";
}

static bool under_hypervisor(void) {
    uint32_t a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & 1u << 31);
}

// ---------------------------------------------------------------- small files

// The text of root/path without its last newline, malloc'd. NULL when it cannot be read.
static char *slurp(const char *root, const char *path) {
    char full[PATH_BYTES], *text;
    size_t bytes;
    int n = snprintf(full, sizeof full, "%s%s", root, path);
    if (n < 0 || (size_t)n >= sizeof full ||
        file_read_all(full, TEXT_MAX_BYTES, &text, &bytes, NULL) != 0)
        return NULL;
    if (bytes > 0 && text[bytes - 1] == '\n')
        text[bytes - 1] = '\0';
    return text;
}

static long read_number(const char *root, const char *path, long otherwise) {
    char *text = slurp(root, path);
    if (!text)
        return otherwise;
    char *end;
    errno = 0;
    long x = strtol(text, &end, 10);
    if (end == text || errno != 0)
        x = otherwise;
    free(text);
    return x;
}

// Calls fn for each number in a list such as "0-3,8,10-11", the kernel's format for sets of CPUs
// and nodes.
static void each_in_list(const char *text, void (*fn)(void *arg, int i), void *arg) {
    enum { MOST = 1 << 16 }; // CPUs; Linux supports at most 8192
    while (text && *text) {
        char *end;
        long a = strtol(text, &end, 10);
        if (end == text || a < 0 || a > MOST)
            return;
        long b = a;
        if (*end == '-') {
            text = end + 1;
            b = strtol(text, &end, 10);
            if (end == text || b < a || b > MOST)
                return;
        }
        for (long i = a; i <= b; i++)
            fn(arg, (int)i);
        if (*end != ',')
            return;
        text = end + 1;
    }
}

struct list_count {
    int n, first;
};

static void count_one(void *arg, int i) {
    struct list_count *c = arg;
    if (c->n++ == 0)
        c->first = i;
}

static struct list_count count_list(const char *text) {
    struct list_count c = {0, -1};
    each_in_list(text, count_one, &c);
    return c;
}

// Parses a cache size as /sys writes it: "32K", "1024K", "32M".
static uint64_t parse_cache_size(const char *text) {
    char *end;
    errno = 0;
    unsigned long long x = strtoull(text, &end, 10);
    if (end == text || errno != 0 || x > 1ull << 40)
        return 0;
    return *end == 'K' ? x << 10 : *end == 'M' ? x << 20 : *end == 'G' ? x << 30 : x;
}

// ---------------------------------------------------------------- CPUs and caches

static void copy_text(char *out, size_t bytes, const char *text, size_t length) {
    size_t used = 0;
    // Some vendors pad the name with runs of spaces.
    for (size_t i = 0; i < length && used + 1 < bytes; i++)
        if (text[i] != ' ' || (used > 0 && out[used - 1] != ' '))
            out[used++] = text[i] >= ' ' && text[i] < 127 ? text[i] : '?';
    while (used > 0 && out[used - 1] == ' ')
        used--;
    out[used] = '\0';
}

static void read_cpu_name(struct hw_machine *m, const char *root) {
    snprintf(m->cpu, sizeof m->cpu, "unknown CPU");
    char *text = slurp(root, "/proc/cpuinfo");
    const char *line = text ? strstr(text, "model name") : NULL;
    const char *colon = line ? strchr(line, ':') : NULL;
    if (colon)
        copy_text(m->cpu, sizeof m->cpu, colon + 1, strcspn(colon + 1, "\n"));
    free(text);
}

enum { PACKAGES_MAX = 64 };

struct topology {
    const char *root;
    int cpus, cores; // cores counts the CPUs that are the first of their siblings
    int packages[PACKAGES_MAX], n_packages;
};

static void count_cpu(void *arg, int cpu) {
    struct topology *t = arg;
    char path[PATH_BYTES];
    t->cpus++;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    char *siblings = slurp(t->root, path);
    int first = count_list(siblings).first;
    free(siblings);
    t->cores += first < 0 || first == cpu;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/physical_package_id", cpu);
    int package = (int)read_number(t->root, path, 0);
    for (int i = 0; i < t->n_packages; i++)
        if (t->packages[i] == package)
            return;
    if (t->n_packages < PACKAGES_MAX)
        t->packages[t->n_packages++] = package;
}

struct cache_walk {
    const char *root;
    int index;
    int instances; // CPUs that are the first to share the cache
};

static void count_cache(void *arg, int cpu) {
    struct cache_walk *w = arg;
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cache/index%d/shared_cpu_list", cpu,
             w->index);
    char *shared = slurp(w->root, path);
    w->instances += count_list(shared).first == cpu;
    free(shared);
}

// Reads the caches of the first online CPU, and how many of each there are. If CPUs differ (big and
// small cores), the first one stands for all.
static void read_caches(struct hw_machine *m, const char *root, const char *online, int first) {
    for (int i = 0; i < HW_MAX_CACHES; i++) {
        char path[PATH_BYTES];
        struct hw_cache *c = &m->caches[m->n_caches];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cache/index%d/size", first, i);
        char *size = slurp(root, path);
        if (!size)
            break;
        c->bytes = parse_cache_size(size);
        free(size);
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cache/index%d/level", first, i);
        c->level = (int)read_number(root, path, 0);
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cache/index%d/type", first, i);
        char *type = slurp(root, path);
        c->kind = type && *type == 'D' ? 'd' : type && *type == 'I' ? 'i' : 'u';
        free(type);
        struct cache_walk w = {root, i, 0};
        each_in_list(online, count_cache, &w);
        c->instances = w.instances > 0 ? w.instances : 1;
        if (c->bytes > 0 && c->level > 0)
            m->n_caches++;
    }
}

static void read_cpus(struct hw_machine *m, const char *root) {
    struct topology t = {.root = root};
    char *online = slurp(root, "/sys/devices/system/cpu/online");
    each_in_list(online, count_cpu, &t);
    int first = t.cpus > 0 ? count_list(online).first : 0;
    m->cpus = t.cpus > 0 ? t.cpus : m->usable_cpus;
    m->cores = t.cores > 0 ? t.cores : m->cpus;
    m->sockets = t.n_packages > 0 ? t.n_packages : 1;
    read_caches(m, root, t.cpus > 0 ? online : "0", first);
    free(online);
}

uint64_t hw_cache_total_bytes(const struct hw_machine *m, int level) {
    for (int i = 0; i < m->n_caches; i++)
        if (m->caches[i].level == level && m->caches[i].kind != 'i')
            return m->caches[i].bytes * (uint64_t)m->caches[i].instances;
    return 0;
}

// ---------------------------------------------------------------- memory

// In "always [madvise] never" the word in brackets is the active setting.
static void read_huge_pages(struct hw_machine *m, const char *root) {
    snprintf(m->huge_pages, sizeof m->huge_pages, "unknown");
    char *text = slurp(root, "/sys/kernel/mm/transparent_hugepage/enabled");
    const char *open = text ? strchr(text, '[') : NULL;
    const char *close = open ? strchr(open, ']') : NULL;
    if (close)
        copy_text(m->huge_pages, sizeof m->huge_pages, open + 1, (size_t)(close - open - 1));
    free(text);
}

struct node_walk {
    const char *root;
    struct hw_machine *m;
};

static void read_node(void *arg, int id) {
    struct node_walk *w = arg;
    if (w->m->n_nodes == HW_MAX_NODES)
        return;
    struct hw_node *node = &w->m->nodes[w->m->n_nodes++];
    char path[PATH_BYTES];
    node->id = id;
    snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", id);
    char *text = slurp(w->root, path);
    node->cpus = count_list(text).n;
    free(text);
    snprintf(path, sizeof path, "/sys/devices/system/node/node%d/meminfo", id);
    text = slurp(w->root, path);
    const char *total = text ? strstr(text, "MemTotal:") : NULL;
    if (total) {
        unsigned long long kib = strtoull(total + strlen("MemTotal:"), NULL, 10);
        node->memory_bytes = kib < 1ull << 50 ? kib << 10 : 0;
    }
    free(text);
}

void hw_machine_read(struct hw_machine *m, const char *root) {
    *m = (struct hw_machine){0};
    struct utsname name;
    if (uname(&name) == 0) {
        copy_text(m->arch, sizeof m->arch, name.machine, strlen(name.machine));
        copy_text(m->kernel, sizeof m->kernel, name.release, strlen(name.release));
    }
    hw_isa_read(&m->isa);
    m->level = hw_isa_level_of(&m->isa);
    m->virtual_machine = under_hypervisor();
    m->usable_cpus = pool_machine_cpus();
    m->memory_bytes = mem_machine_total_bytes();
    m->memory_available_bytes = mem_machine_available_bytes();
    read_cpu_name(m, root);
    read_cpus(m, root);
    read_huge_pages(m, root);
    char *nodes = slurp(root, "/sys/devices/system/node/online");
    struct node_walk w = {root, m};
    each_in_list(nodes, read_node, &w);
    free(nodes);
    if (m->n_nodes == 0) {
        m->n_nodes = 1;
        m->nodes[0] = (struct hw_node){0, m->cpus, m->memory_bytes};
    }
}
