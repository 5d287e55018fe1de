// lookout_net.h - the sockets of a lookout: addresses as text, listening, connecting, all with an
// end.
#ifndef HAGGLE_COMM_LOOKOUT_NET_H
#define HAGGLE_COMM_LOOKOUT_NET_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LOOKOUT_ADDRESS_BYTES = 80 }; // "127.0.0.1:41234", "[fe80::1%eth0]:41234"

// Listens at a free port of `host`, a name or a number. shown: the address for others.
int lookout_listen(const char *host, int *fd, char shown[LOOKOUT_ADDRESS_BYTES], struct err *e);
// Makes a connection that does not block.
int lookout_connect(const char *address, uint64_t until_ns, int *fd, struct err *e);
// A connection that waits to be accepted, or -1; errno says why.
int lookout_accept(int listener);
// Waits until fd is ready for `events`. False when the time is over.
bool lookout_ready(int fd, short events, uint64_t until_ns);
// Bytes moved; 0: none at the moment; -1: the connection has ended.
long lookout_send(int fd, const void *data, size_t bytes);
long lookout_recv(int fd, void *data, size_t bytes);

#endif
