// hardware.h - the catalog: devices, networks and nodes that a plan can be made for, as data.
//
// Place in the flow: data/hardware.csv, which is compiled in, and then files of the user's, become
// a catalog. A cluster is some nodes of a catalog's devices. costs.h computes times on one.
//
// Invariants:
//   1. A figure that no line gives is 0, and whoever needs it refuses by name.
//   2. Every figure is finite and within the range that figures[] in hardware.c gives it. Files are
//      hostile until read.
#ifndef HAGGLE_PLANNER_HARDWARE_H
#define HAGGLE_PLANNER_HARDWARE_H

#include "base/err.h"
#include "base/region.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HARDWARE_NAME_BYTES = 48 };

// Kinds of processors that have constants of their own (constants.def).
#define HARDWARE_ARCH_LIST(X)                                                                      \
    X(ARCH_VOLTA, "volta")                                                                         \
    X(ARCH_AMPERE, "ampere")                                                                       \
    X(ARCH_ADA, "ada")                                                                             \
    X(ARCH_HOPPER, "hopper")                                                                       \
    X(ARCH_BLACKWELL, "blackwell")                                                                 \
    X(ARCH_CDNA3, "cdna3")                                                                         \
    X(ARCH_CPU, "cpu")
enum hardware_arch {
#define X(name, text) name,
    HARDWARE_ARCH_LIST(X)
#undef X
        ARCH_COUNT
};

// The units are those of data/hardware.csv, whose head says what each figure is.
struct hardware_device {
    char name[HARDWARE_NAME_BYTES];
    enum hardware_arch arch;
    double memory_gib, memory_gbps;
    double fp32_tflops, tf32_tflops, half_tflops, fp8_tflops;
    double bf16; // 0: half_tflops is for float16 only
    double units, tdp_w, link_gbps, node_gpus, nic_gbits;
};

struct hardware_network {
    char name[HARDWARE_NAME_BYTES];
    double gbits, latency_us;
};

struct hardware_node {
    char name[HARDWARE_NAME_BYTES], device[HARDWARE_NAME_BYTES];
    double gpus, nic_gbits, usd_per_hour;
    char price[64]; // what kind of price, and its date
};

struct hardware {
    struct hardware_device *devices;
    struct hardware_network *networks;
    struct hardware_node *nodes;
    int n_devices, n_networks, n_nodes;
    size_t device_capacity, network_capacity, node_capacity;
};

// The catalog that is compiled in. The caller frees it, also after a failure.
int hardware_open(struct hardware *h, struct err *e);
// Adds a file's figures, which replace those that are there. Errors name file and line.
int hardware_read_file(struct hardware *h, const char *path, struct err *e);
int hardware_read_text(struct hardware *h, const char *name, const char *text, size_t bytes,
                       struct err *e);
void hardware_free(struct hardware *h);
const char *hardware_arch_name(enum hardware_arch a);

// The device of that name. ERR_USAGE names the nearest one, or all of them.
int hardware_find(const struct hardware *h, const char *name, struct hardware_device *out,
                  struct err *e);
// The same for names as people write them in tables: "A100-80GB-SXM", "H100", "V100-32GB (DGX-2)".
// *changed says what was taken instead of what was written, or is "".
int hardware_find_written(const struct hardware *h, const char *text, struct hardware_device *out,
                          char changed[96], struct err *e);

struct cluster {
    char text[96];
    struct hardware_device device;
    int nodes, per_node;     // nodes x per_node devices
    double node_bytes_per_s; // network of one node, in one direction; 0: there is none
    double latency_s;        // of a message between nodes
    double usd_per_hour;     // of all nodes; 0: not known
    char price[64];
};

static inline int cluster_devices(const struct cluster *c) {
    return c->nodes * c->per_node;
}

// "8xa100-80g": 8 devices, in nodes as large as the catalog says. "16x8xh100": 16 nodes of 8.
// "4xaws-p5": 4 nodes. "@400" behind it: that many Gbit/s per node; "@8xib-hdr": 8 ports of that
// network.
int cluster_parse(struct cluster *c, const struct hardware *h, const char *text, struct err *e);
// n devices in the nodes that the catalog has for them.
int cluster_make(struct cluster *c, const struct hardware_device *d, int n, struct err *e);

#endif
