// kept.c - see kept.h.
#include "train/kept.h"

#include "base/hash.h"
#include "base/pool.h"
#include "data/dataset.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>

// Copies of zeros to a device, at a time.
enum { ZERO_BYTES = 4 << 20, ZERO_GRAIN = 1 << 16 };

struct kept {
    struct mem *mem;
    struct pool *pool;
    struct backend *backend;
    struct knobs machine; // of pool and backend
    struct dataset *dataset;
    struct knobs data;   // of dataset
    struct range *range; // the arena on the host
    void *device_arena;  // or on a device, from `backend`
    uint64_t device_bytes;
    uint64_t range_used, device_used; // by any session so far: beyond, they are zero
    // What the arena holds: "" nothing of use. `next` is what the session at work will leave.
    char state[HASH_TEXT_BYTES], next[HASH_TEXT_BYTES];
};

int kept_open(struct kept **out, struct err *e) {
    *out = NULL;
    struct kept *k = calloc(1, sizeof *k);
    int rc = k ? mem_open(&k->mem, e) : err_set(e, ERR_MEMORY, "no memory for what is kept");
    if (rc != 0) {
        free(k);
        return rc;
    }
    *out = k;
    return 0;
}

static void close_backend(struct kept *k) {
    if (k->device_arena) {
        k->backend->arena_give(k->backend, k->device_arena);
        k->state[0] = '\0';
    }
    if (k->backend)
        k->backend->close(k->backend);
    k->device_arena = NULL;
    k->device_bytes = 0;
    k->backend = NULL;
}

static void close_pool(struct kept *k) {
    if (k->pool)
        pool_close(k->pool);
    k->pool = NULL;
}

void kept_close(struct kept *k) {
    if (!k)
        return;
    close_backend(k);
    close_pool(k);
    dataset_close(k->dataset);
    range_close(k->range);
    mem_close(k->mem);
    free(k);
}

// ---------------------------------------------------------------- threads and backend

static bool all_same(const struct knobs *a, const struct knobs *b, const int *ids, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!knobs_same(a, b, ids[i]))
            return false;
    return true;
}

void kept_lend(struct kept *k, struct session *s) {
    static const int threads[] = {KNOB_threads, KNOB_cpu_pin};
    static const int kernels[] = {KNOB_device, KNOB_cpu_blas, KNOB_cpu_isa};
    const bool same_pool =
        all_same(&k->machine, &s->knobs, threads, sizeof threads / sizeof *threads);
    if (!same_pool || !all_same(&k->machine, &s->knobs, kernels, sizeof kernels / sizeof *kernels))
        close_backend(k);
    if (!same_pool)
        close_pool(k);
    s->mem = k->mem;
    s->pool = k->pool;
    s->backend = k->backend;
}

void kept_adopt(struct kept *k, struct session *s) {
    k->pool = s->pool;
    k->backend = s->backend;
    k->machine = s->knobs;
}

void kept_return(struct kept *k, struct session *s) {
    if (s->mem == k->mem)
        s->mem = NULL;
    if (s->pool == k->pool)
        s->pool = NULL;
    if (s->backend == k->backend)
        s->backend = NULL;
    malloc_trim(0); // what the session's programs took would count as the next one's
}

// ---------------------------------------------------------------- the model's state

static bool is_state(const struct tensor *t) {
    return t->life == LIFE_RUN && t->root < 0 &&
           (t->cls == CLASS_WEIGHT || t->cls == CLASS_OPTIMIZER);
}

// What will be where: equal names, places and types are the same state.
static int name_state(const struct session *s, const char *where, char out[HASH_TEXT_BYTES],
                      struct err *e) {
    const struct program *p = s->programs[SESSION_TRAIN];
    struct hash *h = hash_new();
    if (!h)
        return err_set(e, ERR_MEMORY, "out of memory while naming the state of '%s'", p->name);
    hash_add(h, where, strlen(where));
    hash_add(h, s->knobs.model, strlen(s->knobs.model) + 1);
    for (int i = 0; i < p->n_tensors; i++) {
        const struct tensor *t = &p->tensors[i];
        if (!is_state(t))
            continue;
        hash_add(h, t->name, strlen(t->name) + 1);
        hash_add(h, &t->dtype, sizeof t->dtype);
        hash_add(h, &t->offset[0], sizeof t->offset[0]);
        hash_add(h, &t->bytes, sizeof t->bytes);
    }
    hash_text(h, out);
    hash_free(h);
    return 0;
}

struct clearing {
    unsigned char *at;
    int64_t bytes;
};

static void clear_task(void *arg, int thread, int threads) {
    const struct clearing *c = arg;
    int64_t begin, end;
    pool_share(c->bytes, ZERO_GRAIN, thread, threads, &begin, &end);
    memset(c->at + begin, 0, (size_t)(end - begin));
}

static int clear(struct session *s, void *at, uint64_t bytes, struct err *e) {
    struct clearing c = {at, (int64_t)bytes};
    if (!s->backend->copy_in) {
        pool_run(s->pool, clear_task, &c);
        return 0;
    }
    unsigned char *zeros = calloc(1, ZERO_BYTES);
    int rc = zeros ? 0 : err_set(e, ERR_MEMORY, "out of memory while clearing the arena");
    for (uint64_t done = 0; rc == 0 && done < bytes; done += ZERO_BYTES) {
        uint64_t n = bytes - done < ZERO_BYTES ? bytes - done : ZERO_BYTES;
        rc = s->backend->copy_in(s->backend, c.at + done, zeros, n, e);
    }
    free(zeros);
    return rc;
}

// An arena that is taken anew is zero. Here: what persists and is not kept. The rest is written before it is
// read, in each turn.
static int clear_state(struct session *s, unsigned char *arena, uint64_t used, struct err *e) {
    const struct program *p = s->programs[SESSION_TRAIN];
    const uint64_t all = s->layout.persistent_bytes;
    if (!s->kept_weights)
        return clear(s, arena, all < used ? all : used, e);
    for (int i = 0; i < p->n_tensors; i++) {
        const struct tensor *t = &p->tensors[i];
        if (t->life == LIFE_RUN && t->root < 0 && !is_state(t))
            TRY(clear(s, arena + t->offset[0], t->bytes, e));
    }
    return 0;
}

void kept_state_sound(struct kept *k) {
    memcpy(k->state, k->next, sizeof k->state);
}

// ---------------------------------------------------------------- the arena

// Pages beyond this plan stay only where the plan fits beside them, and while they are not a large part
// of what others could use.
static void keep_or_give_tail(struct kept *k, const struct session *s) {
    const uint64_t tail = range_resident_bytes(k->range, s->layout.arena_bytes);
    const uint64_t available = mem_machine_available_bytes();
    struct session_memory m;
    if (tail == 0)
        return;
    if (session_memory(s, &m, NULL) != 0 || m.need + tail > m.have || tail > available / 4)
        range_trim(k->range, s->layout.arena_bytes);
}

static int host_arena(struct kept *k, struct session *s, void **out, struct err *e) {
    const uint64_t bytes = s->layout.arena_bytes;
    if (!k->range) {
        const uint64_t total = mem_machine_total_bytes();
        TRY(range_open(&k->range, (size_t)(total > bytes ? total : bytes), e));
    }
    if (bytes > range_most(k->range)) // few addresses: the session takes an arena of its own
        return 0;
    keep_or_give_tail(k, s);
    return range_use(k->range, (size_t)bytes, out, e);
}

// A device's arena cannot grow where it is. Half again as much where that is cheap, because batches that
// grow step by step are what a search tries.
static int device_arena(struct kept *k, struct session *s, void **out, struct err *e) {
    const uint64_t bytes = s->layout.arena_bytes;
    uint64_t left = 0, total;
    if (k->device_arena && bytes > k->device_bytes) {
        s->backend->arena_give(s->backend, k->device_arena);
        k->device_arena = NULL;
        k->device_bytes = 0;
        k->state[0] = '\0';
    }
    if (!k->device_arena) {
        TRY(s->backend->memory(s->backend, &left, &total, e));
        const uint64_t take = bytes + bytes / 2 <= left / 2 ? bytes + bytes / 2 : bytes;
        TRY(s->backend->arena_take(s->backend, take, &k->device_arena, e));
        k->device_bytes = take;
        k->device_used = 0;
    }
    *out = k->device_arena;
    return 0;
}

int kept_arena(struct kept *k, struct session *s, void **out, struct err *e) {
    const bool device = s->backend->memory != NULL;
    uint64_t *used = device ? &k->device_used : &k->range_used;
    *out = NULL;
    s->kept_weights = false;
    k->next[0] = '\0';
    if (s->options.checking || !s->programs[SESSION_TRAIN])
        return 0;
    TRY(device ? device_arena(k, s, out, e) : host_arena(k, s, out, e));
    if (!*out)
        return 0;
    TRY(name_state(s, device ? "device " : "host ", k->next, e));
    s->kept_weights = k->state[0] && strcmp(k->state, k->next) == 0;
    k->state[0] = '\0'; // until its turns are known to be complete
    TRY(clear_state(s, *out, *used, e));
    if (s->layout.arena_bytes > *used)
        *used = s->layout.arena_bytes;
    return 0;
}

uint64_t kept_resident_bytes(const struct kept *k) {
    return k->range ? range_resident_bytes(k->range, 0) : 0;
}

uint64_t kept_tail_bytes(const struct kept *k, uint64_t arena_bytes) {
    return k->range ? range_resident_bytes(k->range, (size_t)arena_bytes) : 0;
}

uint64_t kept_device_bytes(const struct kept *k) {
    return k->device_bytes;
}

// ---------------------------------------------------------------- data

// What the dataset is made of: all of data.* that changes what is trained, and where it is cached.
static bool same_data(const struct knobs *a, const struct knobs *b) {
    static const int more[] = {KNOB_model, KNOB_seed, KNOB_seq, KNOB_tokenizer, KNOB_data_cache};
    for (int id = 0; id < KNOB_COUNT; id++) {
        const struct knob_info *info = knob_info(id);
        if (strncmp(info->name, "data.", 5) == 0 && info->flags & KNOB_MATH &&
            !knobs_same(a, b, id))
            return false;
    }
    return all_same(a, b, more, sizeof more / sizeof *more);
}

int kept_dataset(struct kept *k, const struct session *s, const struct shard_listener *l,
                 struct dataset **out, struct err *e) {
    *out = NULL;
    if (k->dataset && !same_data(&k->data, &s->knobs)) {
        dataset_close(k->dataset);
        k->dataset = NULL;
    }
    if (!k->dataset)
        TRY(dataset_open_knobs(&k->dataset, &s->knobs, s->from_folder ? s->knobs.model : NULL,
                               s->shape.vocab, l, e));
    k->data = s->knobs;
    *out = k->dataset;
    return 0;
}
