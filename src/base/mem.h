// mem.h - large memory: every block has a name and a class, and bytes are known by class at any
// time.
//
// Blocks come from mmap, 2 MiB aligned and advised to use huge pages (fewer TLB misses, faster
// first touch). Failure is a value: ERR_MEMORY with the bytes asked for. Thread-safe.
#ifndef HAGGLE_BASE_MEM_H
#define HAGGLE_BASE_MEM_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

struct mem; // the accountant; one per run

struct mem_line { // one row of the table by class
    const char *class_name;
    uint64_t bytes, peak_bytes;
};

int mem_open(struct mem **out, struct err *e);
void mem_close(struct mem *m); // frees what is still held
// class_name and name must outlive the accountant (string literals). Blocks of 64 MiB and more are
// also refused when the machine (or cgroup) has fewer bytes available: Linux would grant them and
// kill the process at first touch.
int mem_take(struct mem *m, const char *class_name, const char *name, size_t bytes, void **out,
             struct err *e);
void mem_give(struct mem *m, void *block);
uint64_t mem_bytes(struct mem *m);
uint64_t mem_peak_bytes(struct mem *m);
size_t mem_lines(struct mem *m, struct mem_line *lines,
                 size_t capacity); // returns how many were written

uint64_t mem_process_rss_bytes(void);      // now, from /proc/self/statm; 0 when unknown
uint64_t mem_process_peak_rss_bytes(void); // VmHWM
// Pages in the code of this program and of the mathematics library, which a step would page in
// bit by bit: what is resident afterwards is what will be. Advice only.
void mem_process_page_in_code(void);
int mem_process_reset_peak(void);       // writes 5 to /proc/self/clear_refs; 0 when that worked
uint64_t mem_machine_total_bytes(void); // MemTotal, or the cgroup limit where that is lower
uint64_t mem_machine_available_bytes(void);

#endif
