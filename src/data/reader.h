// reader.h - how the loader gets windows: from the source at a limited rate, or from windows kept
// in RAM.
//
// Place: loader.c has one reader, shared by its workers. The reader asks dataset.c.
//
// The limit (data.source_rate) is a token bucket in units of time. Reading n bytes takes a time
// slot of n / rate after all slots given before, to any worker. The worker that reads those bytes
// waits until its slot is over. Idle time counts as credit for at most SOURCE_CREDIT_NS, which
// makes up for late wake-ups: no second delivers more bytes than 1.02 seconds' worth.
//
// The windows kept (data.ram) are a subset of an epoch's windows, drawn by the seed: as many as fit
// in the bytes. The first sample that needs one of them reads it from the source and keeps it.
// Later samples copy it.
//
// Invariants:
//   1. What a sample holds does not depend on rate or cache.
//   2. Which samples come from memory, and how many bytes come from the source, is a function of
//      the opening position and the sample. reader_plan is called in the order of steps. A sample
//      that comes from memory waits for the sample that reads the window, which belongs to the same
//      step or an earlier one.
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
    uint64_t ram;         // most bytes for windows kept; 0: none
};

struct kept;

struct reader {
    struct reader_options o;
    uint64_t windows; // most windows kept
    size_t window_bytes;
    struct mem *mem;
    struct kept *kept;    // [windows]
    unsigned char *bytes; // [windows][window_bytes]
    uint64_t free_ns;     // when the last slot is over; set by reader_reserve
    pthread_mutex_t lock;
    pthread_cond_t changed; // a window was kept, or stop
    bool stop;
};

enum { SOURCE_CREDIT_NS = 20000000 };

// Bytes of windows kept, with their table; at most o->ram.
uint64_t reader_plan_bytes(const struct reader_options *o);
int reader_open(struct reader *r, const struct reader_options *o, struct mem *m, struct err *e);
void reader_close(struct reader *r); // also after a failed open
void reader_stop(struct reader *r);  // wakes all waiting threads; they get ERR_STOPPED

// Adds what reading this sample will take to *use, and returns what is known about its window.
// Called by one thread at a time, in the order of steps.
struct dataset_about reader_plan(struct reader *r, uint64_t sample, struct data_use *use);
// Takes the time slot for that many bytes, after those planned before. Returns the clock time at
// which they will be there, 0 without a limit. Called by one thread at a time, like reader_plan.
uint64_t reader_reserve(struct reader *r, uint64_t bytes);
// Waits until that time. asked (may be NULL): returns ERR_STOPPED soon after it is set.
int reader_wait(struct reader *r, uint64_t until_ns, const volatile sig_atomic_t *asked,
                struct err *e);
// Called by any thread, after the sample's step was planned.
int reader_fetch(struct reader *r, uint64_t sample, void *scratch, const struct dataset_window *out,
                 struct err *e);

// Waits on a condition until until_ns of the monotonic clock. reader_cond_init makes such a
// condition.
void reader_sleep(pthread_cond_t *c, pthread_mutex_t *lock, uint64_t until_ns);
void reader_cond_init(pthread_cond_t *c);

#endif
