// device_info.h - what a plan must know about the device that runs it, as plain data.
//
// An open backend fills it (member `info` of struct backend). It holds no pointers and needs no
// backend, so a catalog of hardware that is not here can fill it as well.
#ifndef HAGGLE_BACKEND_DEVICE_INFO_H
#define HAGGLE_BACKEND_DEVICE_INFO_H

#include "base/dtype.h"

#include <stdbool.h>
#include <stdint.h>

enum { DEVICE_TEXT_BYTES = 256 };

struct device_info {
    // true: the arena is in memory of the device, and the host reaches it by copies only.
    // false: it is the host's memory.
    bool device;
    // true: ops are enqueued, and streams run side by side. false: an op is complete when its
    // function returns, so a step takes the sum of its ops.
    bool streams;
    bool graphs;           // ops can be captured as a graph and replayed
    unsigned types;        // element types that weights and activations may have: bits 1 << dtype
    unsigned storages;     // storages besides plain that a weight may have: bits 1 << storage_kind
    uint64_t memory_bytes; // all memory, in use or not
    char text[DEVICE_TEXT_BYTES]; // for people: the device, or instruction set and library
};

#endif
