// reader.c - see reader.h.
#include "data/reader.h"

#include "base/clock.h"
#include "base/rng.h"

#include <stdatomic.h>
#include <string.h>

static const uint64_t RAM_STREAM = 0x72616d;     // "ram": which windows are kept
static const uint64_t ASKED_EVERY_NS = 50000000; // longest delay until a request to stop is seen
static const double FOREVER_NS = 1e18;           // 30 years; keeps sums inside 64 bits
static const uint64_t NOBODY = UINT64_MAX;

enum kept_state { KEPT_EMPTY, KEPT_FULL, KEPT_FAILED };

struct kept {
    uint64_t sample; // the sample that reads the window, or NOBODY; written by reader_plan
    _Atomic(int) state;
};

// ---------------------------------------------------------------- opening and closing

// Bytes of the table's entry and of the window, rounded up so that each window starts at a multiple
// of 64.
static uint64_t entry_bytes(const struct reader_options *o) {
    return sizeof(struct kept) + (dataset_kept_bytes(o->dataset) + 63) / 64 * 64;
}

static uint64_t kept_windows(const struct reader_options *o) {
    const uint64_t all = dataset_windows(o->dataset, o->split);
    const uint64_t fit = o->ram / entry_bytes(o);
    if (all == DATASET_ENDLESS) // an endless split uses no window twice
        return 0;
    return fit < all ? fit : all;
}

uint64_t reader_plan_bytes(const struct reader_options *o) {
    return kept_windows(o) * entry_bytes(o);
}

int reader_open(struct reader *r, const struct reader_options *o, struct mem *m, struct err *e) {
    *r = (struct reader){.o = *o, .mem = m, .windows = kept_windows(o)};
    r->window_bytes = (size_t)(entry_bytes(o) - sizeof(struct kept));
    r->free_ns = clock_ns();
    pthread_mutex_init(&r->lock, NULL);
    reader_cond_init(&r->changed);
    const uint64_t bytes = reader_plan_bytes(o);
    void *block;
    if (bytes == 0)
        return 0;
    if (bytes > SIZE_MAX / 2)
        return err_set(e, ERR_MEMORY, "data.ram=%llu: more than can be addressed",
                       (unsigned long long)o->ram);
    TRY(mem_take(m, "data", "windows kept in memory", (size_t)bytes, &block, e));
    // Touch the memory now: a run must not find out in its second hour that the memory is missing.
    memset(block, 0, (size_t)bytes);
    r->bytes = block;
    r->kept = (struct kept *)(void *)(r->bytes + r->windows * r->window_bytes);
    for (uint64_t i = 0; i < r->windows; i++) {
        r->kept[i].sample = NOBODY;
        atomic_init(&r->kept[i].state, KEPT_EMPTY);
    }
    return 0;
}

void reader_close(struct reader *r) {
    if (r->bytes != NULL)
        mem_give(r->mem, r->bytes);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    r->bytes = NULL;
}

void reader_stop(struct reader *r) {
    pthread_mutex_lock(&r->lock);
    r->stop = true;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

// ---------------------------------------------------------------- planning

// Returns the entry of a window if it is one of those kept, else NULL. The permutation selects the
// subset and numbers it at once, so nothing needs to be stored.
static struct kept *place_of(const struct reader *r, uint64_t window, uint64_t *at) {
    const struct dataset *d = r->o.dataset;
    const uint64_t all = dataset_windows(d, r->o.split);
    if (r->windows == 0)
        return NULL;
    *at = r->windows < all ? rng_permute(dataset_seed(d), RAM_STREAM, window, all) : window;
    return *at < r->windows ? &r->kept[*at] : NULL;
}

struct dataset_about reader_plan(struct reader *r, uint64_t sample, struct data_use *use) {
    const struct dataset_about about = dataset_about(r->o.dataset, r->o.split, sample);
    uint64_t at;
    struct kept *k = place_of(r, about.window, &at);
    if (k != NULL && k->sample != NOBODY) {
        use->cache_hits++;
        return about;
    }
    if (k != NULL)
        k->sample = sample;
    use->cache_misses++;
    use->source_bytes += about.source_bytes;
    return about;
}

uint64_t reader_reserve(struct reader *r, uint64_t bytes) {
    if (r->o.source_rate == 0)
        return 0;
    const uint64_t earliest_ns = clock_ns() - SOURCE_CREDIT_NS;
    double ns = 1e9 * (double)bytes / (double)r->o.source_rate;
    if (r->free_ns < earliest_ns)
        r->free_ns = earliest_ns;
    r->free_ns += (uint64_t)(ns < FOREVER_NS ? ns : FOREVER_NS);
    return r->free_ns;
}

// ---------------------------------------------------------------- waiting

void reader_cond_init(pthread_cond_t *c) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(c, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

void reader_sleep(pthread_cond_t *c, pthread_mutex_t *lock, uint64_t until_ns) {
    const struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000),
                                   .tv_nsec = (long)(until_ns % 1000000000)};
    pthread_cond_timedwait(c, lock, &until);
}

int reader_wait(struct reader *r, uint64_t until_ns, const volatile sig_atomic_t *asked,
                struct err *e) {
    bool stopped = false;
    if (until_ns == 0)
        return 0;
    pthread_mutex_lock(&r->lock);
    for (uint64_t now_ns; !stopped && (now_ns = clock_ns()) < until_ns;) {
        const uint64_t next_ns = now_ns + ASKED_EVERY_NS;
        stopped = r->stop || (asked != NULL && *asked != 0);
        if (!stopped)
            reader_sleep(&r->changed, &r->lock,
                         asked != NULL && next_ns < until_ns ? next_ns : until_ns);
    }
    pthread_mutex_unlock(&r->lock);
    return stopped ? err_set(e, ERR_STOPPED, "stopped while waiting for data") : 0;
}

// ---------------------------------------------------------------- reading

static void set_state(struct reader *r, struct kept *k, enum kept_state state) {
    pthread_mutex_lock(&r->lock);
    atomic_store_explicit(&k->state, (int)state, memory_order_release);
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

// Waits until the window has been read. The worker that reads it has this step or an earlier one.
static int await_kept(struct reader *r, struct kept *k) {
    int state = atomic_load_explicit(&k->state, memory_order_acquire);
    if (state != KEPT_EMPTY)
        return state;
    pthread_mutex_lock(&r->lock);
    while (!r->stop &&
           (state = atomic_load_explicit(&k->state, memory_order_acquire)) == KEPT_EMPTY)
        pthread_cond_wait(&r->changed, &r->lock);
    pthread_mutex_unlock(&r->lock);
    return state;
}

int reader_fetch(struct reader *r, uint64_t sample, void *scratch, const struct dataset_window *out,
                 struct err *e) {
    const struct dataset *d = r->o.dataset;
    uint64_t at = 0;
    struct kept *k = NULL;
    if (r->windows > 0)
        k = place_of(r, dataset_about(d, r->o.split, sample).window, &at);
    if (k == NULL)
        return dataset_fetch(d, r->o.split, sample, scratch, out, e);
    unsigned char *bytes = r->bytes + at * r->window_bytes;
    if (k->sample != sample && await_kept(r, k) == KEPT_FULL) {
        dataset_fetch_kept(d, r->o.split, sample, bytes, out);
        return 0;
    }
    // Also reached when the window's reader failed or the loader stops: then this step is not
    // delivered.
    int rc = dataset_fetch(d, r->o.split, sample, scratch, out, e);
    if (k->sample == sample) {
        if (rc == 0)
            dataset_keep(d, out, bytes);
        set_state(r, k, rc == 0 ? KEPT_FULL : KEPT_FAILED);
    }
    return rc;
}
