// mem.c - large memory: every block has a name and a class, and the bytes in use are known by class
// at any time.
//
// The counts are the bytes requested, without rounding up to pages, because they must equal what
// the layout plans to the byte. One mutex covers the lists. Blocks are few (arenas, maps) and are
// taken during set-up, never inside a step.
#include "base/mem.h"

#include "base/cgroup.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

// The size of a huge page on x86-64, and on arm64 with 4 KiB pages.
static const size_t HUGE_BYTES = (size_t)2 << 20;
// Smaller requests are granted without checking available memory in /proc.
static const size_t CHECKED_BYTES = (size_t)64 << 20;

struct block {
    struct block *next;
    struct line *line;
    const char *name;
    void *address;
    size_t bytes, mapped_bytes;
};

struct line {
    struct line *next;
    struct mem_line row;
};

struct mem {
    pthread_mutex_t lock;
    struct block *blocks;
    struct line *lines; // in order of first use
    uint64_t bytes, peak_bytes;
};

int mem_open(struct mem **out, struct err *e) {
    *out = NULL;
    struct mem *m = calloc(1, sizeof *m);
    if (!m || pthread_mutex_init(&m->lock, NULL) != 0) {
        free(m);
        return err_set(e, ERR_MEMORY, "no memory for the memory accountant");
    }
    *out = m;
    return 0;
}

void mem_close(struct mem *m) {
    if (!m)
        return;
    for (struct block *b = m->blocks, *next; b; b = next) {
        next = b->next;
        munmap(b->address, b->mapped_bytes);
        free(b);
    }
    for (struct line *l = m->lines, *next; l; l = next) {
        next = l->next;
        free(l);
    }
    pthread_mutex_destroy(&m->lock);
    free(m);
}

// The line of a class, created on first use. NULL when out of memory. The caller holds the lock.
static struct line *find_line(struct mem *m, const char *class_name) {
    struct line **p = &m->lines;
    for (; *p; p = &(*p)->next)
        if (strcmp((*p)->row.class_name, class_name) == 0)
            return *p;
    struct line *l = calloc(1, sizeof *l);
    if (l)
        l->row.class_name = class_name;
    *p = l;
    return l;
}

// Maps `mapped` bytes at a 2 MiB boundary: maps one huge page more and unmaps both ends.
static void *map_aligned(size_t mapped) {
    size_t wide = mapped + HUGE_BYTES;
    unsigned char *raw =
        mmap(NULL, wide, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED)
        return NULL;
    size_t head = (size_t)(-(uintptr_t)raw & (HUGE_BYTES - 1));
    unsigned char *aligned = raw + head;
    if (head)
        munmap(raw, head);
    if (wide - head - mapped)
        munmap(aligned + mapped, wide - head - mapped);
    // Only advice: where transparent huge pages are off this fails, which does no harm.
    madvise(aligned, mapped, MADV_HUGEPAGE);
    return aligned;
}

static int fail_take(struct err *e, const char *class_name, const char *name, size_t bytes) {
    const struct mem_left left = mem_left(0);
    char want[TEXT_UNIT_BYTES], have[TEXT_UNIT_BYTES];
    return err_set(e, ERR_MEMORY, "no memory for %s (%s): %s asked for, %s is %s", name, class_name,
                   text_bytes(want, bytes), left.limit, text_bytes(have, left.bytes));
}

int mem_take(struct mem *m, const char *class_name, const char *name, size_t bytes, void **out,
             struct err *e) {
    *out = NULL;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (bytes > SIZE_MAX / 2)
        return fail_take(e, class_name, name, bytes);
    // Linux grants more memory than it has and kills the process when the memory is first touched.
    // Refusing here turns that into an ordinary error.
    if (bytes >= CHECKED_BYTES) {
        const uint64_t left = mem_left(0).bytes;
        if (left && bytes > left)
            return fail_take(e, class_name, name, bytes);
    }
    size_t mapped = bytes ? (bytes + page - 1) / page * page : page;
    void *address = map_aligned(mapped);
    struct block *b = address ? malloc(sizeof *b) : NULL;
    if (!b) {
        if (address)
            munmap(address, mapped);
        return fail_take(e, class_name, name, bytes);
    }
    pthread_mutex_lock(&m->lock);
    struct line *l = find_line(m, class_name);
    if (l) {
        *b = (struct block){m->blocks, l, name, address, bytes, mapped};
        m->blocks = b;
        l->row.bytes += bytes;
        if (l->row.bytes > l->row.peak_bytes)
            l->row.peak_bytes = l->row.bytes;
        m->bytes += bytes;
        if (m->bytes > m->peak_bytes)
            m->peak_bytes = m->bytes;
    }
    pthread_mutex_unlock(&m->lock);
    if (!l) {
        munmap(address, mapped);
        free(b);
        return fail_take(e, class_name, name, bytes);
    }
    *out = address;
    return 0;
}

void mem_give(struct mem *m, void *block) {
    if (!block)
        return;
    pthread_mutex_lock(&m->lock);
    struct block **p = &m->blocks;
    while (*p && (*p)->address != block)
        p = &(*p)->next;
    struct block *b = *p;
    if (b) {
        *p = b->next;
        b->line->row.bytes -= b->bytes;
        m->bytes -= b->bytes;
    }
    pthread_mutex_unlock(&m->lock);
    if (b)
        munmap(b->address, b->mapped_bytes);
    free(b);
}

uint64_t mem_bytes(struct mem *m) {
    pthread_mutex_lock(&m->lock);
    uint64_t n = m->bytes;
    pthread_mutex_unlock(&m->lock);
    return n;
}

uint64_t mem_peak_bytes(struct mem *m) {
    pthread_mutex_lock(&m->lock);
    uint64_t n = m->peak_bytes;
    pthread_mutex_unlock(&m->lock);
    return n;
}

size_t mem_lines(struct mem *m, struct mem_line *lines, size_t capacity) {
    size_t n = 0;
    pthread_mutex_lock(&m->lock);
    for (struct line *l = m->lines; l && n < capacity; l = l->next)
        lines[n++] = l->row;
    pthread_mutex_unlock(&m->lock);
    return n;
}

// ---- the process and the machine ----

// The value of "Key:   123 kB" in a file of /proc, in bytes. 0 when it is missing.
static uint64_t read_kb(const char *path, const char *key) {
    FILE *f = fopen(path, "re");
    if (!f)
        return 0;
    char line[256];
    size_t n = strlen(key);
    uint64_t bytes = 0;
    while (fgets(line, sizeof line, f)) {
        if (strncmp(line, key, n) == 0 && line[n] == ':') {
            bytes = strtoull(line + n + 1, NULL, 10) * 1024;
            break;
        }
    }
    fclose(f);
    return bytes;
}

uint64_t mem_process_rss_bytes(void) {
    FILE *f = fopen("/proc/self/statm", "re");
    if (!f)
        return 0;
    unsigned long long size, resident;
    int n = fscanf(f, "%llu %llu", &size, &resident);
    fclose(f);
    return n == 2 ? (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}

uint64_t mem_process_peak_rss_bytes(void) {
    return read_kb("/proc/self/status", "VmHWM");
}

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 // since Linux 5.14; older kernels refuse it, which does no harm
#endif

// Pages in the read-only segments of one loaded object, if it is libm or contains this code.
static int page_in(struct dl_phdr_info *info, size_t size, void *arg) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), self = (uintptr_t)arg;
    bool wanted = strstr(info->dlpi_name, "/libm.so") != NULL;
    (void)size;
    // Pass 0 decides whether the object is wanted. Pass 1 pages in all of its segments.
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < info->dlpi_phnum; i++) {
            const ElfW(Phdr) *h = &info->dlpi_phdr[i];
            uintptr_t begin = info->dlpi_addr + h->p_vaddr, end = begin + h->p_memsz;
            if (h->p_type != PT_LOAD || h->p_flags & PF_W)
                continue;
            if (pass == 0)
                wanted = wanted || (self >= begin && self < end);
            else if (wanted)
                madvise((void *)(begin & -page), end - (begin & -page), MADV_POPULATE_READ);
        }
    return 0;
}

void mem_process_page_in_code(void) {
    dl_iterate_phdr(page_in, (void *)(uintptr_t)&mem_process_page_in_code);
}

int mem_process_reset_peak(void) {
    int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return ERR_UNSUPPORTED;
    ssize_t n = write(fd, "5", 1);
    close(fd);
    return n == 1 ? 0 : ERR_UNSUPPORTED;
}

uint64_t mem_machine_total_bytes(void) {
    uint64_t limit, left, total = read_kb("/proc/meminfo", "MemTotal");
    cgroup_memory(&limit, &left);
    return total == 0 || limit < total ? (limit == UINT64_MAX ? 0 : limit) : total;
}

uint64_t mem_machine_available_bytes(void) {
    uint64_t limit, left, available = read_kb("/proc/meminfo", "MemAvailable");
    cgroup_memory(&limit, &left);
    return available == 0 || left < available ? (left == UINT64_MAX ? 0 : left) : available;
}

// What a limit of the process leaves. `key` of /proc/self/status says what counts against it.
static uint64_t limit_left(int resource, const char *key) {
    struct rlimit limit;
    if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return UINT64_MAX;
    const uint64_t used = read_kb("/proc/self/status", key);
    return limit.rlim_cur > used ? limit.rlim_cur - used : 0;
}

uint64_t mem_address_bytes(void) {
    return limit_left(RLIMIT_AS, "VmSize");
}

struct mem_left mem_left(uint64_t reserved) {
    uint64_t limit, group, addresses = mem_address_bytes();
    cgroup_memory(&limit, &group);
    if (addresses != UINT64_MAX)
        addresses += reserved;
    const uint64_t machine = read_kb("/proc/meminfo", "MemAvailable");
    const struct mem_left all[] = {
        {machine ? machine : UINT64_MAX, "what the machine has left"},
        {group, "what the control group (cgroup) of this process leaves"},
        {addresses, "what the limit of addresses (ulimit -v) leaves"},
        {limit_left(RLIMIT_DATA, "VmData"), "what the limit of data (ulimit -d) leaves"}};
    struct mem_left least = all[0];
    for (size_t i = 1; i < sizeof all / sizeof *all; i++)
        if (all[i].bytes < least.bytes)
            least = all[i];
    if (least.bytes == UINT64_MAX)
        least.bytes = 0;
    return least;
}
