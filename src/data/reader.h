// reader.h - the loader's way to windows: through a limit on the source, and from windows kept in RAM.
//
// Place: loader.c has one reader, shared by its workers; the reader asks dataset.c.
//
// The limit (data.source_rate) is a token bucket in units of time: reading n bytes takes a slot of
// n / rate behind the slots given before, whoever they were given to, and the reader of those bytes
// waits until its slot is over. Idle time is credit for SOURCE_CREDIT_NS at most, which makes up for late
// wake-ups: no second has more than 1.02 seconds' bytes.
//
// The windows kept (data.ram) are a subset of an epoch's, drawn by the seed: as many as fit the bytes.
// The first sample that needs one of them reads it from the source and keeps it; later ones copy it.
//
// Invariants:
//   1. What a sample holds does not depend on rate or cache.
//   2. Which samples come from memory, and how many bytes from the source, is a function of the
//      opening position and the sample: reader_plan is called in the order of steps, and a sample that
//      comes from memory waits for the one that reads it, which is of the same or an earlier step.
//   3. All memory is taken, and touched, at open.
#ifndef HAGGLE_DATA_READER_H
#define HAGGLE_DATA_READER_H

#include "base/mem.h"
#include "data/dataset.h"
#include "measure/metrics.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

struct reader_options {
    const struct dataset *dataset; // outlives the reader
    enum dataset_split split;
    uint64_t source_rate; // bytes per second; 0: no limit
    uint64_t ram;         // bytes for windows kept, at most; 0: none
};

struct kept;

struct reader {
    struct reader_options o;
    uint64_t windows; // kept at most
    size_t window_bytes;
    struct mem *mem;
    struct kept *kept;    // [windows]
    unsigned char *bytes; // [windows][window_bytes]
    uint64_t free_ns;     // reader_plan's own: when the last slot given is over
    pthread_mutex_t lock;
    pthread_cond_t changed; // a window was kept, or stop
    bool stop;
};

enum { SOURCE_CREDIT_NS = 20000000 };

// Bytes of windows kept, with their table; at most o->ram.
uint64_t reader_plan_bytes(const struct reader_options *o);
int reader_open(struct reader *r, const struct reader_options *o, struct mem *m, struct err *e);
void reader_close(struct reader *r); // also after a failed open
void reader_stop(struct reader *r);  // wakes all who wait; they get ERR_STOPPED

// Adds what reading this sample will take to *use, and says what it is. One caller at a time, in the
// order of steps.
struct dataset_about reader_plan(struct reader *r, uint64_t sample, struct data_use *use);
// Takes the slot for that many bytes, after those planned before: the clock when they will be there,
// 0 without a limit. As reader_plan, one caller at a time.
uint64_t reader_reserve(struct reader *r, uint64_t bytes);
// Waits for it. asked (may be NULL): ERR_STOPPED soon after it is set.
int reader_wait(struct reader *r, uint64_t until_ns, const volatile sig_atomic_t *asked,
                struct err *e);
// Any thread. The sample's step was planned.
int reader_fetch(struct reader *r, uint64_t sample, void *scratch, const struct dataset_window *out,
                 struct err *e);

// Waits on a condition that runs on the monotonic clock, until that clock.
void reader_sleep(pthread_cond_t *c, pthread_mutex_t *lock, uint64_t until_ns);
void reader_cond_init(pthread_cond_t *c); // such a condition

#endif
