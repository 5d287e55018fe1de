// cgroup.c - reads the limits of this process's control groups.
//
// /proc/self/cgroup names the group. The group's files are under /sys/fs/cgroup: either v2, or one
// v1 hierarchy per controller, where v2 may be mounted as "unified". Inside a container the named
// path may not exist below the mount. The walk then reaches the root, which is the container's own
// group. A missing or unreadable file means no limit.
#include "base/cgroup.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 1024, TEXT_BYTES = 8192 };

// Reads the first bytes of a small file and NUL-terminates them. False when nothing was read.
static bool read_text(const char *path, char *text, size_t text_bytes) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    size_t used = 0;
    ssize_t n;
    while (used + 1 < text_bytes && (n = read(fd, text + used, text_bytes - 1 - used)) > 0)
        used += (size_t)n;
    close(fd);
    text[used] = '\0';
    return used > 0;
}

static bool read_in(const char *dir, const char *file, char *text, size_t text_bytes) {
    char path[PATH_BYTES];
    int n = snprintf(path, sizeof path, "%s/%s", dir, file);
    return n > 0 && (size_t)n < sizeof path && read_text(path, text, text_bytes);
}

// True when the comma-separated list contains the word. The list of v2 is empty and matches "".
static bool list_has(const char *list, size_t list_bytes, const char *word) {
    size_t n = strlen(word);
    if (n == 0)
        return list_bytes == 0;
    for (const char *p = list, *end = list + list_bytes; p < end;) {
        const char *comma = memchr(p, ',', (size_t)(end - p));
        const char *stop = comma ? comma : end;
        if ((size_t)(stop - p) == n && memcmp(p, word, n) == 0)
            return true;
        p = stop + 1;
    }
    return false;
}

// This process's path in the hierarchy of `controller` ("" is v2), from the line
// "id:controllers:path".
static bool own_path(const char *controller, char path[PATH_BYTES]) {
    char text[TEXT_BYTES];
    if (!read_text("/proc/self/cgroup", text, sizeof text))
        return false;
    char *rest = text;
    for (char *line; (line = strsep(&rest, "\n"));) {
        char *list = strchr(line, ':');
        char *name = list ? strchr(list + 1, ':') : NULL;
        if (!name || !list_has(list + 1, (size_t)(name - list - 1), controller))
            continue;
        size_t n = strlen(name + 1);
        if (n >= PATH_BYTES || strstr(name, "/.."))
            return false;
        memcpy(path, name + 1, n + 1);
        return true;
    }
    return false;
}

typedef void visit_fn(void *arg, const char *dir);

// Calls visit for the group's folder and each folder above it, up to the mount itself.
static void walk(const char *mount, const char *controller, visit_fn *visit, void *arg) {
    char path[PATH_BYTES], dir[PATH_BYTES];
    if (!own_path(controller, path))
        return;
    for (;;) {
        int n = snprintf(dir, sizeof dir, "%s%s", mount, path);
        if (n > 0 && (size_t)n < sizeof dir)
            visit(arg, dir);
        char *slash = strrchr(path, '/');
        if (!slash || path[0] == '\0')
            return;
        *slash = '\0';
    }
}

static void visit_cpu_v2(void *arg, const char *dir) {
    double *least = arg;
    char text[128], quota[64];
    double period;
    if (!read_in(dir, "cpu.max", text, sizeof text) ||
        sscanf(text, "%63s %lf", quota, &period) != 2 || strcmp(quota, "max") == 0)
        return;
    double cpus = period > 0 ? strtod(quota, NULL) / period : 0;
    if (cpus > 0 && (*least == 0 || cpus < *least))
        *least = cpus;
}

static void visit_cpu_v1(void *arg, const char *dir) {
    double *least = arg;
    char quota[64], period[64];
    if (!read_in(dir, "cpu.cfs_quota_us", quota, sizeof quota) ||
        !read_in(dir, "cpu.cfs_period_us", period, sizeof period))
        return;
    double q = strtod(quota, NULL), p = strtod(period, NULL); // a quota of -1 means no quota
    if (q > 0 && p > 0 && (*least == 0 || q / p < *least))
        *least = q / p;
}

double cgroup_cpu_quota(void) {
    double least = 0;
    walk("/sys/fs/cgroup", "", visit_cpu_v2, &least);
    walk("/sys/fs/cgroup/unified", "", visit_cpu_v2, &least);
    walk("/sys/fs/cgroup/cpu", "cpu", visit_cpu_v1, &least);
    walk("/sys/fs/cgroup/cpu,cpuacct", "cpu", visit_cpu_v1, &least);
    return least;
}

struct memory_limits {
    uint64_t limit, free;
};

// The value of "key N" in a memory.stat text, 0 when absent.
static uint64_t stat_value(const char *text, const char *key) {
    size_t n = strlen(key);
    for (const char *p = text; p; p = strchr(p, '\n')) {
        p += *p == '\n';
        if (strncmp(p, key, n) == 0 && p[n] == ' ')
            return strtoull(p + n + 1, NULL, 10);
    }
    return 0;
}

static void visit_memory(struct memory_limits *m, const char *dir, const char *limit_file,
                         const char *usage_file, const char *cache_key) {
    char text[TEXT_BYTES];
    if (!read_in(dir, limit_file, text, sizeof text) || text[0] < '0' || text[0] > '9')
        return; // "max": no limit
    uint64_t limit = strtoull(text, NULL, 10);
    if (limit >= UINT64_C(1) << 62) // v1 writes "no limit" as the largest multiple of a page
        return;
    if (limit < m->limit)
        m->limit = limit;
    if (!read_in(dir, usage_file, text, sizeof text))
        return;
    uint64_t used = strtoull(text, NULL, 10);
    uint64_t cache =
        read_in(dir, "memory.stat", text, sizeof text) ? stat_value(text, cache_key) : 0;
    used = cache < used ? used - cache : 0;
    uint64_t left = used < limit ? limit - used : 0;
    if (left < m->free)
        m->free = left;
}

static void visit_memory_v2(void *arg, const char *dir) {
    visit_memory(arg, dir, "memory.max", "memory.current", "inactive_file");
}

static void visit_memory_v1(void *arg, const char *dir) {
    visit_memory(arg, dir, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file");
}

void cgroup_memory(uint64_t *limit_bytes, uint64_t *free_bytes) {
    struct memory_limits m = {UINT64_MAX, UINT64_MAX};
    walk("/sys/fs/cgroup", "", visit_memory_v2, &m);
    walk("/sys/fs/cgroup/unified", "", visit_memory_v2, &m);
    walk("/sys/fs/cgroup/memory", "memory", visit_memory_v1, &m);
    *limit_bytes = m.limit;
    *free_bytes = m.free;
}
