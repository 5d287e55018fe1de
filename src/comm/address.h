// address.h - at which address rank 0 listens when ranks are on several machines.
//
// A machine's host name often leads to its own loopback, and most machines have addresses that no
// other can reach (bridges of containers and virtual machines). So every rank lists the addresses
// of its machine, and rank 0 chooses.
#ifndef HAGGLE_COMM_ADDRESS_H
#define HAGGLE_COMM_ADDRESS_H

#include "base/err.h"

#include <stdint.h>

enum { ADDRESS_MOST = 12, ADDRESS_TEXT_BYTES = 48 };

struct address {
    uint8_t family;    // 4, 6
    uint8_t prefix;    // bits of the network
    uint8_t bytes[16]; // in network order; the first 4 of IPv4
};

struct addresses { // of a machine, IPv4 first
    int32_t n;
    struct address at[ADDRESS_MOST];
};

// Of interfaces that are up. Those of the machine alone (loopback) or of one wire are left out.
int address_list(struct addresses *out, struct err *e);
// The own address in a network that all ranks' machines are in. `all` is by rank, and rank 0's is
// the own one. An address that ranks elsewhere have, too, is a bridge that looks alike everywhere;
// `here` is the number of ranks on rank 0's machine. Without such a network: the own address from
// which the kernel would send to another machine. ERR_UNSUPPORTED if there is none.
int address_choose(char out[ADDRESS_TEXT_BYTES], const struct addresses *all, int world, int here,
                   struct err *e);

#endif
