// lookout.h - whether all ranks of a job are alive, and what each did last.
#ifndef HAGGLE_COMM_LOOKOUT_H
#define HAGGLE_COMM_LOOKOUT_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

enum { LOOKOUT_KEY_BYTES = 32 };

struct lookout;
struct lookout_options {
    int rank, world;
    const char *address; // rank 0: to listen on, NULL: 127.0.0.1; others: HOST:PORT
    unsigned char key[LOOKOUT_KEY_BYTES];
    uint64_t timeout_ns;
};

// Rank 0 listens, and lookout_address then says where. The others connect.
int lookout_open(struct lookout **out, const struct lookout_options *o, struct err *e);
const char *lookout_address(const struct lookout *l);
void lookout_note(struct lookout *l, const char *about);
bool lookout_failed(struct lookout *l, struct err *e);
void lookout_fail(struct lookout *l, const char *why);
int lookout_late(struct lookout *l, const int *missing, int n, uint64_t waited_ns, struct err *e);
void lookout_close(struct lookout *l);

#endif
