// cgroup.h - what a container allows: the tightest CPU quota and memory limit on the way from this
// process's control group to the root, cgroup v2 or v1. pool.c and mem.c ask; nobody else needs to.
#ifndef HAGGLE_BASE_CGROUP_H
#define HAGGLE_BASE_CGROUP_H

#include <stdint.h>

double cgroup_cpu_quota(void); // in CPUs, such as 1.5; 0 when there is none
// Bytes allowed in all, and bytes still free below that (page cache that can be dropped counts as
// free). UINT64_MAX when there is no limit.
void cgroup_memory(uint64_t *limit_bytes, uint64_t *free_bytes);

#endif
