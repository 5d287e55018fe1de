// loader.c - the ring of step batches between the workers and the training loop.
//
// Step n (0 is the first after the opening position) lives in slot n % slots. A slot goes through
// these states:
//   free     -> claimed  by a worker, in step order
//   claimed  -> ready    by the same worker
//   ready    -> out      by loader_next
//   out      -> free     by loader_release
// Every transition happens under one mutex, `lock`, which is never held while a batch is made.
// Steps are claimed in order but may become ready out of order. loader_next waits for the next step
// in order.
//
// What a step takes from the source is planned when the step is claimed, by one worker at a time
// (`claiming`). So the plan does not depend on which worker is faster. A worker that waits for a
// free slot holds `claiming`; the other workers have nothing to claim either. Lock order: claiming,
// then lock.
#include "data/loader.h"

#include "base/c_locale.h"
#include "base/checked.h"
#include "base/clock.h"
#include "data/reader.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_BYTES = 64 };
static const uint64_t STOP_EVERY_NS = 50000000; // longest delay until a request to stop is seen

struct slot {
    struct loader_batch batch;
    int32_t *tokens, *targets, *positions, *doc_start;
    struct data_use use; // as planned
    int64_t trained, real;
    uint64_t arrival_ns; // when the source will have delivered the step; 0: at once
    bool ready;
    int rc; // result of making the batch; `e` has the message
    struct err e;
};

struct worker {
    struct loader *loader;
    void *scratch;
    pthread_t thread;
};

struct loader {
    struct loader_options o;
    uint64_t seq;
    struct mem *mem;
    void *block;
    struct slot *slots;
    uint64_t n_slots;
    struct worker *workers;
    int n_workers, n_started; // scratch areas; running threads
    struct reader reader;

    pthread_mutex_t claiming, lock;
    pthread_cond_t free_cond, ready_cond;
    // Under `lock`:
    uint64_t claimed, released; // steps
    int n_running;              // workers that have begun
    bool stop;
    uint64_t planned; // steps; under `claiming`, without prefetch used by the consumer only
    // Used by the consumer only:
    uint64_t delivered;
    uint64_t waits_since_ns; // when waiting for the next batch began; 0: not yet
    bool out;
};

// ---------------------------------------------------------------- memory

struct sizes {
    uint64_t array_bytes, slot_bytes, scratch_bytes, total_bytes;
    uint64_t slots;
    int workers;
};

static uint64_t round_up(uint64_t bytes) {
    return (bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
}

// Returns false when a product overflows. The caller reports it as memory that is not available.
static bool plan(const struct loader_options *o, struct sizes *s) {
    *s = (struct sizes){.slots = (uint64_t)o->prefetch + 1,
                        .workers = o->prefetch > 0 ? o->workers : 1};
    uint64_t ids, bytes, scratch_total, slot_total;
    if (!checked_mul_u64((uint64_t)o->batch, (uint64_t)dataset_seq(o->dataset), &ids) ||
        ids > INT32_MAX || !checked_mul_u64(ids, (uint64_t)o->micro_batches, &ids) ||
        !checked_mul_u64(ids, sizeof(int32_t), &bytes) || bytes > UINT64_MAX / 8)
        return false;
    s->array_bytes = round_up(bytes);
    s->slot_bytes = 4 * s->array_bytes;
    s->scratch_bytes = round_up(dataset_scratch_bytes(o->dataset));
    return checked_mul_u64(s->slot_bytes, s->slots, &slot_total) &&
           checked_mul_u64(s->scratch_bytes, (uint64_t)s->workers, &scratch_total) &&
           checked_add_u64(slot_total, scratch_total, &s->total_bytes) &&
           s->total_bytes <= SIZE_MAX / 2;
}

static struct reader_options reader_of(const struct loader_options *o) {
    return (struct reader_options){
        .dataset = o->dataset, .split = o->split, .source_rate = o->source_rate, .ram = o->ram};
}

uint64_t loader_plan_bytes(const struct loader_options *o) {
    const struct reader_options reader = reader_of(o);
    struct sizes s;
    uint64_t bytes;
    return plan(o, &s) && checked_add_u64(s.total_bytes, reader_plan_bytes(&reader), &bytes)
               ? bytes
               : UINT64_MAX;
}

// ---------------------------------------------------------------- making a batch

static uint64_t samples_per_step(const struct loader_options *o) {
    return (uint64_t)o->batch * (uint64_t)o->micro_batches * (uint64_t)o->replicas;
}

// Row b of micro-batch m in the step at `position`.
static uint64_t sample_of(const struct loader_options *o, uint64_t position, uint64_t m,
                          uint64_t b) {
    return position + (m * (uint64_t)o->replicas + (uint64_t)o->replica) * (uint64_t)o->batch + b;
}

// Called in the order of steps, once for each.
static void plan_step(struct loader *l, uint64_t step, struct slot *s) {
    const struct loader_options *o = &l->o;
    const uint64_t position = o->position + step * samples_per_step(o);
    const uint64_t windows = dataset_windows(o->dataset, o->split);
    s->use = (struct data_use){.windows = windows == DATASET_ENDLESS ? 0 : windows,
                               .cache_windows = l->reader.windows};
    s->trained = s->real = 0;
    for (uint64_t m = 0; m < (uint64_t)o->micro_batches; m++)
        for (uint64_t b = 0; b < (uint64_t)o->batch; b++) {
            const struct dataset_about about =
                reader_plan(&l->reader, sample_of(o, position, m, b), &s->use);
            s->trained += about.trained;
            s->real += about.real;
        }
    s->arrival_ns = reader_reserve(&l->reader, s->use.source_bytes);
    l->planned = step + 1;
}

static int make_batch(struct loader *l, uint64_t step, struct slot *s, void *scratch,
                      const volatile sig_atomic_t *asked, struct err *e) {
    const struct loader_options *o = &l->o;
    // Without workers the consumer may have waited for the source already.
    const bool waited = o->prefetch == 0 && l->waits_since_ns != 0;
    const uint64_t begin_ns = waited ? l->waits_since_ns : clock_ns();
    const uint64_t batch = (uint64_t)o->batch, micros = (uint64_t)o->micro_batches;
    const uint64_t replicas = (uint64_t)o->replicas, per_step = samples_per_step(o);
    const uint64_t position = o->position + step * per_step;
    TRY(reader_wait(&l->reader, s->arrival_ns, asked, e));
    const uint64_t arrived_ns = s->arrival_ns > 0 ? clock_ns() : begin_ns;
    for (uint64_t m = 0; m < micros; m++) {
        for (uint64_t b = 0; b < batch; b++) {
            const uint64_t at = (m * batch + b) * l->seq, sample = sample_of(o, position, m, b);
            const struct dataset_window w = {s->tokens + at, s->targets + at, s->positions + at,
                                             s->doc_start + at};
            TRY(reader_fetch(&l->reader, sample, scratch, &w, e));
        }
    }
    struct dataset_about step_about = {.trained = s->trained, .real = s->real};
    if (replicas > 1) {
        step_about = (struct dataset_about){0};
        for (uint64_t i = 0; i < per_step; i++) {
            const struct dataset_about about = dataset_about(o->dataset, o->split, position + i);
            step_about.trained += about.trained;
            step_about.real += about.real;
        }
    }
    const int64_t tokens = (int64_t)(batch * micros * l->seq);
    s->batch = (struct loader_batch){.tokens = s->tokens,
                                     .targets = s->targets,
                                     .positions = s->positions,
                                     .doc_start = s->doc_start,
                                     .rows = (int64_t)(batch * l->seq),
                                     .micro_batches = o->micro_batches,
                                     .position = position,
                                     .tokens_count = tokens,
                                     .real_tokens = s->real,
                                     .trained_tokens = s->trained,
                                     .step_tokens = tokens * (int64_t)replicas,
                                     .step_real_tokens = step_about.real,
                                     .step_trained_tokens = step_about.trained,
                                     .use = s->use};
    s->batch.use.source_wait_ns = arrived_ns - begin_ns;
    s->batch.use.make_ns = clock_ns() - begin_ns;
    return 0;
}

// Claims and plans the next step for this worker. False: the loader stops.
static bool claim(struct loader *l, uint64_t *step) {
    pthread_mutex_lock(&l->claiming);
    pthread_mutex_lock(&l->lock);
    while (!l->stop && l->claimed - l->released >= l->n_slots)
        pthread_cond_wait(&l->free_cond, &l->lock);
    const bool stop = l->stop;
    if (!stop)
        *step = l->claimed++;
    pthread_mutex_unlock(&l->lock);
    if (!stop)
        plan_step(l, *step, &l->slots[*step % l->n_slots]);
    pthread_mutex_unlock(&l->claiming);
    return !stop;
}

static void *work(void *arg) {
    struct worker *w = arg;
    struct loader *l = w->loader;
    uint64_t step;
    c_locale_enter();
    pthread_mutex_lock(&l->lock);
    l->n_running++;
    pthread_cond_signal(&l->ready_cond);
    pthread_mutex_unlock(&l->lock);
    while (claim(l, &step)) {
        struct slot *s = &l->slots[step % l->n_slots];
        s->rc = make_batch(l, step, s, w->scratch, NULL, &s->e);
        pthread_mutex_lock(&l->lock);
        s->ready = true;
        // Steps after a failed one are never delivered, so no worker needs to claim more. Steps in
        // progress may come before the failed one; their workers finish them.
        if (s->rc != 0) {
            l->stop = true;
            pthread_cond_signal(&l->free_cond);
        }
        pthread_cond_signal(&l->ready_cond);
        pthread_mutex_unlock(&l->lock);
    }
    return NULL;
}

// ---------------------------------------------------------------- opening and closing

static int check_options(const struct loader_options *o, struct err *e) {
    if (o->batch < 1 || o->micro_batches < 1)
        return err_set(e, ERR_USAGE,
                       "loader: batch.micro=%lld, batch.accum=%lld: both must be at least 1",
                       (long long)o->batch, (long long)o->micro_batches);
    if (o->replicas < 1 || o->replica < 0 || o->replica >= o->replicas)
        return err_set(e, ERR_USAGE, "loader: replica %d of %d is not accepted", o->replica,
                       o->replicas);
    if (o->prefetch < 0 || o->prefetch > LOADER_MAX_PREFETCH)
        return err_set(e, ERR_USAGE, "loader: data.prefetch=%d is not accepted; accepted: 0 to %d",
                       o->prefetch, LOADER_MAX_PREFETCH);
    if (o->prefetch > 0 && (o->workers < 1 || o->workers > LOADER_MAX_WORKERS))
        return err_set(e, ERR_USAGE, "loader: data.workers=%d is not accepted; accepted: 1 to %d",
                       o->workers, LOADER_MAX_WORKERS);
    if (dataset_windows(o->dataset, o->split) == 0)
        return err_set(e, ERR_USAGE,
                       "loader: the data has no validation split; set data.val above 0");
    return 0;
}

static int start_workers(struct loader *l, struct err *e) {
    // Workers inherit this mask and block all signals: other threads handle them.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int cause = 0;
    for (int i = 0; i < l->n_workers && cause == 0; i++) {
        cause = pthread_create(&l->workers[i].thread, NULL, work, &l->workers[i]);
        if (cause == 0) {
            l->n_started++;
            pthread_setname_np(l->workers[i].thread, "haggle-data");
        }
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (cause != 0)
        return err_set(e, ERR_MEMORY, "loader: worker %d of %d could not be started: %s",
                       l->n_started + 1, l->n_workers, strerror(cause));
    // Wait until all threads run: what a thread allocates at its start is then outside the steps.
    pthread_mutex_lock(&l->lock);
    while (l->n_running < l->n_started)
        pthread_cond_wait(&l->ready_cond, &l->lock);
    pthread_mutex_unlock(&l->lock);
    return 0;
}

int loader_open(struct loader **out, const struct loader_options *o, struct mem *m, struct err *e) {
    *out = NULL;
    TRY(check_options(o, e));
    struct sizes sizes;
    if (!plan(o, &sizes))
        return err_set(
            e, ERR_MEMORY,
            "loader: %lld x %lld sequences of %lld tokens are more than can be addressed",
            (long long)o->micro_batches, (long long)o->batch, (long long)dataset_seq(o->dataset));
    struct loader *l = calloc(1, sizeof *l);
    if (l == NULL)
        return err_set(e, ERR_MEMORY, "loader: no memory to open it");
    l->o = *o;
    l->seq = (uint64_t)dataset_seq(o->dataset);
    l->mem = m;
    l->n_slots = sizes.slots;
    l->n_workers = sizes.workers;
    pthread_mutex_init(&l->claiming, NULL);
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->free_cond, NULL);
    reader_cond_init(&l->ready_cond);

    const struct reader_options reader = reader_of(o);
    int rc = reader_open(&l->reader, &reader, m, e);
    l->slots = calloc(l->n_slots, sizeof *l->slots);
    l->workers = calloc((size_t)l->n_workers, sizeof *l->workers);
    if (rc == 0 && (l->slots == NULL || l->workers == NULL))
        rc = err_set(e, ERR_MEMORY, "loader: no memory for %llu slots and %d workers",
                     (unsigned long long)l->n_slots, l->n_workers);
    if (rc == 0)
        rc = mem_take(m, "data", "prefetched batches", (size_t)sizes.total_bytes, &l->block, e);
    if (rc == 0) {
        char *at = l->block;
        for (uint64_t i = 0; i < l->n_slots; i++, at += sizes.slot_bytes) {
            struct slot *s = &l->slots[i];
            s->tokens = (int32_t *)(void *)at;
            s->targets = (int32_t *)(void *)(at + sizes.array_bytes);
            s->positions = (int32_t *)(void *)(at + 2 * sizes.array_bytes);
            s->doc_start = (int32_t *)(void *)(at + 3 * sizes.array_bytes);
        }
        for (int i = 0; i < l->n_workers; i++, at += sizes.scratch_bytes) {
            l->workers[i] = (struct worker){.loader = l, .scratch = at};
            dataset_scratch_clear(o->dataset, at);
        }
        if (o->prefetch > 0)
            rc = start_workers(l, e);
    }
    if (rc != 0) {
        loader_close(l);
        return rc;
    }
    *out = l;
    return 0;
}

void loader_close(struct loader *l) {
    if (l == NULL)
        return;
    pthread_mutex_lock(&l->lock);
    l->stop = true;
    pthread_cond_broadcast(&l->free_cond);
    pthread_mutex_unlock(&l->lock);
    reader_stop(&l->reader);
    for (int i = 0; i < l->n_started; i++)
        pthread_join(l->workers[i].thread, NULL);
    reader_close(&l->reader);
    pthread_cond_destroy(&l->ready_cond);
    pthread_cond_destroy(&l->free_cond);
    pthread_mutex_destroy(&l->lock);
    pthread_mutex_destroy(&l->claiming);
    if (l->block != NULL)
        mem_give(l->mem, l->block);
    free(l->slots);
    free(l->workers);
    free(l);
}

// ---------------------------------------------------------------- the consumer's side

// Makes the batch in the caller's thread. A request to stop keeps the plan of the step for the next
// call.
static int make_now(struct loader *l, struct slot *s, struct err *e) {
    if (s->rc != 0)
        return 0;
    if (l->planned == l->delivered)
        plan_step(l, l->delivered, s);
    const int rc = make_batch(l, l->delivered, s, l->workers[0].scratch, l->o.stop, &s->e);
    if (rc == ERR_STOPPED)
        return err_set(e, rc, "%s", s->e.text);
    s->rc = rc;
    return 0;
}

static int await_ready(struct loader *l, const struct slot *s, struct err *e) {
    const volatile sig_atomic_t *asked = l->o.stop;
    bool stopped = false;
    pthread_mutex_lock(&l->lock);
    while (!s->ready && !stopped) {
        if (asked == NULL)
            pthread_cond_wait(&l->ready_cond, &l->lock);
        else if (!(stopped = *asked != 0))
            reader_sleep(&l->ready_cond, &l->lock, clock_ns() + STOP_EVERY_NS);
    }
    pthread_mutex_unlock(&l->lock);
    return stopped ? err_set(e, ERR_STOPPED, "stopped while waiting for data") : 0;
}

bool loader_wait(struct loader *l, uint64_t most_ns) {
    const uint64_t now_ns = clock_ns(), until_ns = now_ns + most_ns;
    struct slot *s = &l->slots[l->delivered % l->n_slots];
    if (l->out)
        return true; // loader_next reports the error
    if (l->waits_since_ns == 0)
        l->waits_since_ns = now_ns;
    if (l->o.prefetch == 0) {
        if (s->rc == 0 && l->planned == l->delivered)
            plan_step(l, l->delivered, s);
        reader_wait(&l->reader, s->arrival_ns < until_ns ? s->arrival_ns : until_ns, NULL, NULL);
        return s->rc != 0 || clock_ns() >= s->arrival_ns;
    }
    pthread_mutex_lock(&l->lock);
    while (!s->ready && clock_ns() < until_ns)
        reader_sleep(&l->ready_cond, &l->lock, until_ns);
    const bool ready = s->ready;
    pthread_mutex_unlock(&l->lock);
    return ready;
}

void loader_not_waited(struct loader *l, uint64_t ns) {
    if (l->waits_since_ns != 0)
        l->waits_since_ns += ns;
}

int loader_next(struct loader *l, struct loader_batch *out, struct err *e) {
    if (l->out)
        return err_set(e, ERR_INTERNAL,
                       "loader: a batch was requested before the previous one was released");
    const uint64_t begin_ns = l->waits_since_ns != 0 ? l->waits_since_ns : clock_ns();
    struct slot *s = &l->slots[l->delivered % l->n_slots];
    TRY(l->o.prefetch == 0 ? make_now(l, s, e) : await_ready(l, s, e));
    if (s->rc != 0) // stays ready: every later call finds the same error here
        return err_set(e, s->rc, "%s", s->e.text);
    *out = s->batch;
    out->wait_ns = clock_ns() - begin_ns;
    l->waits_since_ns = 0;
    l->delivered++;
    l->out = true;
    return 0;
}

void loader_release(struct loader *l) {
    if (!l->out)
        return;
    l->out = false;
    if (l->o.prefetch == 0)
        return;
    pthread_mutex_lock(&l->lock);
    l->slots[(l->delivered - 1) % l->n_slots].ready = false;
    l->released++;
    pthread_cond_signal(&l->free_cond);
    pthread_mutex_unlock(&l->lock);
}

uint64_t loader_position(const struct loader *l) {
    return l->o.position + l->delivered * samples_per_step(&l->o);
}

uint64_t loader_cache_windows(const struct loader *l) {
    return l->reader.windows;
}

int64_t loader_ready(struct loader *l) {
    int64_t ready = 0;
    pthread_mutex_lock(&l->lock);
    for (uint64_t i = 0; i < l->n_slots; i++)
        ready += l->slots[i].ready && l->slots[i].rc == 0;
    pthread_mutex_unlock(&l->lock);
    return ready - (l->out && l->o.prefetch > 0);
}
