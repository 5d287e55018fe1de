// hw.h - hardware as numbers: what this machine is, how fast it was measured to be, and the devices
// and links for which the predictor computes times.
//
// Place in the flow: `machine` is read from CPUID, /proc and /sys. `rates` are measured once per
// machine and kept in a cache file. `device` and `link` are all that the roofline model needs. They
// come from rates, or from a catalog of other hardware. Code in this folder does not know models,
// programs or backends. To measure matrix products it calls the caller's backend through a
// callback.
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
    double matmul_flops;      // per second, for matrix products of training size
    double matmul_bf16_flops; // the same for 16-bit types; 0: as matmul_flops
    double matmul_fp16_flops;
    double attention_flops, attention_bwd_flops; // of 16-bit types; 0: as matmul_flops
    double memory_bytes_per_s;                   // streaming
    double op_overhead_s; // fixed cost of an op of any size: launch, or fork and join
    uint64_t memory_bytes;
};

struct hw_link {
    char name[32];
    double bytes_per_s, latency_s;
};

// ---------------------------------------------------------------- this machine

// Name in struct hw_isa, name for people. The fingerprint uses this order, so only append.
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

// True only when the CPU has the instructions and the kernel saves their registers.
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
    int instances;  // among the online CPUs
};

enum { HW_MAX_CACHES = 8, HW_MAX_NODES = 64 };

struct hw_node { // a NUMA node
    int id, cpus;
    uint64_t memory_bytes;
};

struct hw_machine {
    char cpu[128]; // "AMD EPYC 9654 96-Core Processor", or "unknown CPU"
    char arch[16]; // "x86_64"
    char kernel[64];
    bool virtual_machine; // CPUID reports a hypervisor
    int sockets, cores;   // physical
    int cpus;             // logical, online
    int usable_cpus;      // by affinity and cgroup quota; `threads: 0` uses this many
    struct hw_isa isa;
    enum hw_isa_level level;
    struct hw_cache caches[HW_MAX_CACHES];
    int n_caches;
    uint64_t memory_bytes, memory_available_bytes;
    char huge_pages[16]; // transparent huge pages: "always", "madvise", "never", "unknown"
    struct hw_node nodes[HW_MAX_NODES];
    int n_nodes; // at least 1
};

// Never fails: a value that cannot be read is 0 or "unknown". root is "" for this machine. Tests
// pass a folder with /proc and /sys of another machine. CPUID, affinity and memory then still come
// from this machine.
void hw_machine_read(struct hw_machine *m, const char *root);
void hw_isa_read(struct hw_isa *isa);
enum hw_isa_level hw_isa_level_of(const struct hw_isa *isa);
const char *hw_isa_level_name(enum hw_isa_level l); // "generic", "avx2", "avx512"
// Bytes of all instances of the data cache at a level together. 0 when there is no such cache.
uint64_t hw_cache_total_bytes(const struct hw_machine *m, int level);

// ---------------------------------------------------------------- how fast it is

struct hw_rates {
    int threads;             // used for all figures below
    enum hw_isa_level level; // of the kernels that measured
    double vector_flops;     // fp32 multiply-adds in registers, all threads: an upper limit
    // a = s*b: bytes read plus bytes written, with arrays much larger than the caches
    double copy_bytes_per_s;
    double memory_bytes_per_s; // a = b + s*c, counted the same way
    double fork_join_ns;       // an empty task on the pool
    double matmul_flops;       // fp32; 0: not measured
    double cpu_share;   // CPU time received / CPU time possible; below 1 other processes ran too
    double measured_at; // wall-clock seconds
    double matmul_bf16_flops, matmul_fp16_flops; // 0: not measured, or the backend has none
};

// Rates measured with less than this share of the CPU time are too low. They are used but not kept.
#define HW_CPU_SHARE_MIN 0.9

// Measures a matrix product of training size in an element type with the caller's backend. Fills
// *flops_per_s and returns 0, or returns an error. ERR_UNSUPPORTED for a 16-bit type leaves that
// rate unknown.
typedef int hw_matmul_fn(void *arg, enum dtype type, double *flops_per_s, struct err *e);

// Takes about half a second, most of it for bandwidth. Takes scratch memory from `mem` and gives it
// back. matmul may be NULL.
int hw_rates_measure(struct hw_rates *r, const struct hw_machine *m, struct pool *pool,
                     struct mem *mem, hw_matmul_fn *matmul, void *arg, struct err *e);
// Loads the rates from the cache file when it has this machine, number of threads and instruction
// set. Otherwise measures and stores them. With fresh it always measures. A cache that cannot be
// read or written is no error, and neither is a machine too busy for a good measurement. *stored
// says whether the returned rates are in the cache.
int hw_rates_get(struct hw_rates *r, const struct hw_machine *m, struct pool *pool, struct mem *mem,
                 bool fresh, hw_matmul_fn *matmul, void *arg, bool *stored, struct err *e);
// Measures products in all three types. This is the last part of hw_rates_measure.
int hw_rates_measure_products(struct hw_rates *r, hw_matmul_fn *matmul, void *arg, struct err *e);
// The rate of products in a type. 0 when the rate of a 16-bit type is unknown.
double hw_rates_products(const struct hw_rates *r, enum dtype type);
// This machine as the predictor sees it. If matmul_flops was not measured, half the vector peak is
// used, which a good library reaches on medium sizes.
void hw_device_from_rates(struct hw_device *d, const struct hw_machine *m,
                          const struct hw_rates *r);

// The parts of hw_rates_get, for tests and doctor.
enum { HW_FINGERPRINT_BYTES = 33, HW_PATH_BYTES = 1024 };
// A hash of everything that the rates depend on: CPU, caches, instruction sets, memory, huge pages,
// threads.
void hw_fingerprint(const struct hw_machine *m, int threads, char out[HW_FINGERPRINT_BYTES]);
// $XDG_CACHE_HOME/haggle/rates.json, else ~/.cache/haggle/rates.json. ERR_UNSUPPORTED when neither
// XDG_CACHE_HOME nor HOME is set.
int hw_rates_path(char out[HW_PATH_BYTES], struct err *e);
// ERR_IO: no such file or entry. ERR_FORMAT: not a cache file.
int hw_rates_load(struct hw_rates *r, const char *path, const char *fingerprint, struct err *e);
int hw_rates_store(const struct hw_rates *r, const char *path, const char *fingerprint,
                   struct err *e);

// ---------------------------------------------------------------- what a GPU reaches

// Rates of a GPU, measured through the backend that training uses. Name in the struct and in JSON.
// Attention has heads of 64 and of 128 columns; its FLOPs are those of pairs that are not masked.
#define HW_GPU_RATE_LIST(X)                                                                        \
    X(matmul_flops) /* fp32, rounded to TF32 where cuda.tf32 asks for it */                        \
    X(matmul_bf16_flops)                                                                           \
    X(matmul_fp16_flops)                                                                           \
    X(attention_64_flops)                                                                          \
    X(attention_64_bwd_flops)                                                                      \
    X(attention_128_flops)                                                                         \
    X(attention_128_bwd_flops)                                                                     \
    X(copy_bytes_per_s) /* from and to its own memory, bytes read plus bytes written */            \
    X(host_bytes_per_s) /* from pinned memory of the host */                                       \
    X(launch_s)         /* an op that does next to nothing, one of many in a row */                \
    X(matmul_size)      /* rows, columns and depth of the products */                              \
    X(measured_at)      /* wall-clock seconds */

enum { HW_GPU_TEXT_BYTES = 256, HW_GPUS_BYTES = 1000 };
struct hw_gpu_rates {
    char device[HW_GPU_TEXT_BYTES]; // the device and its libraries, in the backend's words
#define X(name) double name;        // 0: not measured
    HW_GPU_RATE_LIST(X)
#undef X
};

// The models of the GPUs here and their driver, from the driver's files, without opening a GPU.
// "": none.
void hw_gpus_read(char out[HW_GPUS_BYTES]);
double hw_gpu_products(const struct hw_gpu_rates *r, enum dtype type); // 0: not known
// Attention in a 16-bit type, for heads of so many columns.
double hw_gpu_attention(const struct hw_gpu_rates *r, int64_t head_dim, bool backward);
void hw_device_from_gpu(struct hw_device *d, const struct hw_gpu_rates *r);
// Beside the machine's rates, in gpu_rates.json. A key stands for GPU, driver, plug-in and kernels.
int hw_gpu_rates_path(char out[HW_PATH_BYTES], struct err *e);
int hw_gpu_rates_load(struct hw_gpu_rates *r, const char *path, const char *key, struct err *e);
int hw_gpu_rates_store(const struct hw_gpu_rates *r, const char *path, const char *key,
                       struct err *e);
void hw_gpu_rates_put_json(const struct hw_gpu_rates *r, struct json_writer *w); // an object

// ---------------------------------------------------------------- for people and programs

void hw_print(FILE *f, const struct hw_machine *m, const struct hw_rates *r); // r may be NULL
// Write one object each: {"cpu": ..., "caches": [...]} and {"threads": ..., "vector_flops": ...}.
void hw_machine_put_json(const struct hw_machine *m, struct json_writer *w);
void hw_rates_put_json(const struct hw_rates *r, struct json_writer *w);

#endif
