// cgroup.h - what a container allows: the tightest CPU quota and memory limit on the way from this
// process's control group to the root, for cgroup v2 or v1. Only pool.c and mem.c need this.
#ifndef HAGGLE_BASE_CGROUP_H
#define HAGGLE_BASE_CGROUP_H

#include <stdint.h>

double cgroup_cpu_quota(void); // in CPUs, such as 1.5; 0 when there is none
// Bytes allowed in total, and bytes still free within that limit. Page cache that can be dropped
// counts as free. Both are UINT64_MAX when there is no limit.
void cgroup_memory(uint64_t *limit_bytes, uint64_t *free_bytes);

#endif
