// mem.h - large memory: every block has a name and a class, and the bytes in use are known by class
// at any time.
//
// Blocks come from mmap. They are 2 MiB aligned and advised to use huge pages, which gives fewer
// TLB misses and a faster first touch. Failure is ERR_MEMORY with the number of bytes requested.
// Thread-safe.
#ifndef HAGGLE_BASE_MEM_H
#define HAGGLE_BASE_MEM_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

struct mem; // the accounting of all blocks; one per run

struct mem_line { // one row of the table by class
    const char *class_name;
    uint64_t bytes, peak_bytes;
};

int mem_open(struct mem **out, struct err *e);
void mem_close(struct mem *m); // frees all blocks that were not given back
// class_name and name must outlive `m` (use string literals). Blocks of 64 MiB and more are also
// refused when the machine (or cgroup) has fewer bytes available: Linux would grant them and kill
// the process when they are first touched.
int mem_take(struct mem *m, const char *class_name, const char *name, size_t bytes, void **out,
             struct err *e);
void mem_give(struct mem *m, void *block);
uint64_t mem_bytes(struct mem *m);
uint64_t mem_peak_bytes(struct mem *m);
// Returns how many lines were written.
size_t mem_lines(struct mem *m, struct mem_line *lines, size_t capacity);

uint64_t mem_process_rss_bytes(void);      // now, from /proc/self/statm; 0 when unknown
uint64_t mem_process_peak_rss_bytes(void); // VmHWM; 0 when unknown
// Pages in the code of this program and of the math library, which the first steps would otherwise
// page in bit by bit. Resident memory then no longer grows because of code. Only advice to the
// kernel.
void mem_process_page_in_code(void);
int mem_process_reset_peak(void); // writes 5 to /proc/self/clear_refs; 0 on success
// What this process can still take, and the name of the tightest limit for messages. The limits are
// the machine's free memory, the cgroup, and the process's limits of addresses and data (ulimit -v,
// ulimit -d). `reserved`: addresses that the process has already reserved for this use. They do not
// count against the limit of addresses. bytes 0: unknown.
struct mem_left {
    uint64_t bytes;
    const char *limit;
};
struct mem_left mem_left(uint64_t reserved);
uint64_t mem_address_bytes(void); // addresses left by ulimit -v; UINT64_MAX: no limit
// MemTotal and MemAvailable, or what the cgroup allows where that is lower. 0 when unknown.
uint64_t mem_machine_total_bytes(void);
uint64_t mem_machine_available_bytes(void);

#endif
