// hw.h - hardware as numbers: what this machine is, how fast it was measured to be, and the devices
// and links that the predictor walks programs on.
//
// Place in the flow: `machine` is read from CPUID, /proc and /sys; `rates` are measured once per
// machine and kept in a cache file; `device` and `link` are all the roofline needs, whether they
// come from rates or from a catalog of hardware that is not here. Nothing in this folder knows
// models, programs or backends: how fast a matrix product runs is asked of whoever has one, through
// a callback.
#ifndef HAGGLE_HW_HW_H
#define HAGGLE_HW_HW_H

#include "base/dtype.h"
#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/pool.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

// ---------------------------------------------------------------- for the predictor

struct hw_device {
    char name[64];
    double matmul_flops;      // per second, matrix products of training size
    double matmul_bf16_flops; // the same of 16-bit types; 0: as matmul_flops
    double matmul_fp16_flops;
    double memory_bytes_per_s; // streaming
    double op_overhead_s;      // that an op costs however small it is: launch, or fork and join
    uint64_t memory_bytes;
};

struct hw_link {
    char name[32];
    double bytes_per_s, latency_s;
};

// ---------------------------------------------------------------- this machine

// name in struct hw_isa, name for people. The order is the order of the fingerprint: append only.
#define HW_ISA_LIST(X)                                                                             \
    X(avx2, "avx2")                                                                                \
    X(fma, "fma")                                                                                  \
    X(f16c, "f16c")                                                                                \
    X(avx512f, "avx512f")                                                                          \
    X(avx512bw, "avx512bw")                                                                        \
    X(avx512dq, "avx512dq")                                                                        \
    X(avx512vl, "avx512vl")                                                                        \
    X(avx512_vnni, "avx512_vnni")                                                                  \
    X(avx512_bf16, "avx512_bf16")                                                                  \
    X(avx512_fp16, "avx512_fp16")                                                                  \
    X(amx_tile, "amx_tile")                                                                        \
    X(amx_bf16, "amx_bf16")                                                                        \
    X(amx_int8, "amx_int8")

// True only where both the CPU has the instructions and the kernel saves their registers.
struct hw_isa {
#define X(field, text) bool field;
    HW_ISA_LIST(X)
#undef X
};

// Instruction sets that kernels are compiled for, widest last.
enum hw_isa_level { HW_GENERIC, HW_AVX2, HW_AVX512, HW_ISA_LEVELS };

struct hw_cache {
    int level;
    char kind;      // 'd' data, 'i' instructions, 'u' both
    uint64_t bytes; // of one instance
    int instances;  // over the CPUs that are online
};

enum { HW_MAX_CACHES = 8, HW_MAX_NODES = 64 };

struct hw_node { // a NUMA node
    int id, cpus;
    uint64_t memory_bytes;
};

struct hw_machine {
    char cpu[128]; // "AMD EPYC 9654 96-Core Processor"; "unknown CPU" when nothing says
    char arch[16]; // "x86_64"
    char kernel[64];
    bool virtual_machine; // a hypervisor announces itself
    int sockets, cores;   // physical
    int cpus;             // logical, online
    int usable_cpus;      // by affinity and cgroup quota: what `threads: 0` takes
    struct hw_isa isa;
    enum hw_isa_level level;
    struct hw_cache caches[HW_MAX_CACHES];
    int n_caches;
    uint64_t memory_bytes, memory_available_bytes;
    char huge_pages[16]; // transparent ones: "always", "madvise", "never", "unknown"
    struct hw_node nodes[HW_MAX_NODES];
    int n_nodes; // at least 1
};

// Never fails: what cannot be read is 0 or "unknown". root is "" for this machine; tests give a
// folder that holds /proc and /sys of another (CPUID, affinity and memory are then still this
// machine's).
void hw_machine_read(struct hw_machine *m, const char *root);
void hw_isa_read(struct hw_isa *isa);
enum hw_isa_level hw_isa_level_of(const struct hw_isa *isa);
const char *hw_isa_level_name(enum hw_isa_level l); // "generic", "avx2", "avx512"
// Bytes of one instance of the data cache at a level, and of all instances together; 0 when there
// is none.
uint64_t hw_cache_bytes(const struct hw_machine *m, int level);
uint64_t hw_cache_total_bytes(const struct hw_machine *m, int level);

// ---------------------------------------------------------------- how fast it is

struct hw_rates {
    int threads;             // that the figures below are for
    enum hw_isa_level level; // of the kernels that measured
    double
        vector_flops; // fp32 multiply-adds in registers, all threads; the roof of everything else
    double copy_bytes_per_s; // a = s*b: bytes read plus bytes written, arrays far beyond the caches
    double memory_bytes_per_s; // a = b + s*c, counted the same way
    double fork_join_ns;       // an empty task on the pool
    double matmul_flops;       // fp32; 0: nobody has measured
    double cpu_share;   // CPU time had / asked for meanwhile: below 1 others were working too
    double measured_at; // wall seconds
    double matmul_bf16_flops, matmul_fp16_flops; // 0: the backend has none, or nobody has measured
};

// Rates measured with less than this share of the CPUs are used but not kept: they are too low.
#define HW_CPU_SHARE_MIN 0.9

// Measures a matrix product of training size in an element type with the caller's backend. Returns 0
// and fills *flops_per_s, or an error; ERR_UNSUPPORTED for a 16-bit type leaves that rate unknown.
typedef int hw_matmul_fn(void *arg, enum dtype type, double *flops_per_s, struct err *e);

// Takes about half a second, most of it on bandwidth. Scratch memory comes from `mem` and is given
// back. matmul may be NULL.
int hw_rates_measure(struct hw_rates *r, const struct hw_machine *m, struct pool *pool,
                     struct mem *mem, hw_matmul_fn *matmul, void *arg, struct err *e);
// From the cache file when this machine, thread count and instruction set are in it, else measured
// and then stored. A cache that cannot be read or written is no error, nor is a machine too busy to
// be measured well: *stored says whether what is returned is in the cache. fresh: measure in any
// case.
int hw_rates_get(struct hw_rates *r, const struct hw_machine *m, struct pool *pool, struct mem *mem,
                 bool fresh, hw_matmul_fn *matmul, void *arg, bool *stored, struct err *e);
// All three products: what hw_rates_measure does last.
int hw_rates_measure_products(struct hw_rates *r, hw_matmul_fn *matmul, void *arg, struct err *e);
// Of products in a type; what is unknown of a 16-bit type is 0.
double hw_rates_products(const struct hw_rates *r, enum dtype type);
// This machine as the predictor sees it. Before matmul_flops is measured, half the vector peak
// stands in: what a good library reaches on middling sizes.
void hw_device_from_rates(struct hw_device *d, const struct hw_machine *m,
                          const struct hw_rates *r);

// The parts, for tests and doctor.
enum { HW_FINGERPRINT_BYTES = 33, HW_PATH_BYTES = 1024 };
// What the rates depend on: CPU, caches, instruction sets, memory, huge pages, threads.
void hw_fingerprint(const struct hw_machine *m, int threads, char out[HW_FINGERPRINT_BYTES]);
// $XDG_CACHE_HOME/haggle/rates.json, else ~/.cache/haggle/rates.json; ERR_UNSUPPORTED without
// either.
int hw_rates_path(char out[HW_PATH_BYTES], struct err *e);
// ERR_IO: no such file or entry; ERR_FORMAT: not a cache file.
int hw_rates_load(struct hw_rates *r, const char *path, const char *fingerprint, struct err *e);
int hw_rates_store(const struct hw_rates *r, const char *path, const char *fingerprint,
                   struct err *e);

// ---------------------------------------------------------------- for people and programs

void hw_print(FILE *f, const struct hw_machine *m, const struct hw_rates *r); // r may be NULL
// One object each: {"cpu": ..., "caches": [...]} and {"threads": ..., "vector_flops": ...}.
void hw_machine_put_json(const struct hw_machine *m, struct json_writer *w);
void hw_rates_put_json(const struct hw_rates *r, struct json_writer *w);

#endif
