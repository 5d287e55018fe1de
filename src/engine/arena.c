// arena.c - see arena.h.
#include "engine/arena.h"

#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>

enum { ZERO_GRAIN = 1 << 16 }; // smallest share of a thread that clears on the host

void arena_give_device(struct arena *a, struct engine *g) {
    if (!a->device)
        return;
    g->backend->arena_give(g->backend, a->device);
    a->device = NULL;
    a->device_bytes = 0;
    a->state[0] = '\0';
}

void arena_close(struct arena *a, struct engine *g) {
    arena_give_device(a, g);
    range_close(a->range);
    a->range = NULL;
}

// ---------------------------------------------------------------- the model's state

static bool is_state(const struct tensor *t) {
    return t->life == LIFE_RUN && t->root < 0 &&
           (t->cls == CLASS_WEIGHT || t->cls == CLASS_OPTIMIZER);
}

// A hash of every state tensor's name, type, place and size. Two loads with the same hash hold
// the same state.
static int name_state(const struct plan *plan, const char *where, char out[HASH_TEXT_BYTES],
                      struct err *e) {
    const struct program *p = plan_program(plan, PLAN_TRAIN);
    struct hash *h = hash_new();
    if (!h)
        return err_set(e, ERR_MEMORY, "out of memory while hashing the state of '%s'", p->name);
    hash_add(h, where, strlen(where));
    hash_add(h, plan->knobs.model, strlen(plan->knobs.model) + 1);
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

static int clear(struct engine *g, void *at, uint64_t bytes, struct err *e) {
    struct clearing c = {at, (int64_t)bytes};
    if (engine_on_device(g))
        return g->backend->clear(g->backend, at, bytes, e);
    pool_run(g->pool, clear_task, &c);
    return 0;
}

// A new arena is zero. In a used one this clears the persistent tensors that are not kept. All
// other tensors are written before they are read, in each turn.
static int clear_state(struct session *s, unsigned char *memory, uint64_t used, struct err *e) {
    const struct program *p = plan_program(s->plan, PLAN_TRAIN);
    const uint64_t all = s->plan->layout.persistent_bytes;
    if (!s->kept_weights)
        return clear(s->engine, memory, all < used ? all : used, e);
    for (int i = 0; i < p->n_tensors; i++) {
        const struct tensor *t = &p->tensors[i];
        if (t->life == LIFE_RUN && t->root < 0 && !is_state(t))
            TRY(clear(s->engine, memory + t->offset[0], t->bytes, e));
    }
    return 0;
}

// ---------------------------------------------------------------- pages

// Pages beyond this plan stay only if the plan fits beside them and they are at most a quarter of
// the memory that the machine has available.
static void keep_or_trim_tail(struct arena *a, const struct session *s) {
    const uint64_t arena_bytes = s->plan->layout.arena_bytes;
    const uint64_t tail = range_resident_bytes(a->range, arena_bytes);
    struct plan_room room;
    if (tail == 0)
        return;
    if (engine_room(s->engine, s->plan, &room, NULL) != 0 ||
        engine_need_bytes(s->engine, s->plan) + tail > room.bytes ||
        tail > mem_machine_available_bytes() / 4)
        range_trim(a->range, arena_bytes);
}

static int take_host(struct arena *a, struct session *s, void **out, struct err *e) {
    const uint64_t bytes = s->plan->layout.arena_bytes;
    if (!a->range) {
        // Under a limit of addresses (ulimit -v) half of them stay for everything else.
        const uint64_t total = mem_machine_total_bytes(), half = mem_address_bytes() / 2;
        const uint64_t most = total < half ? total : half;
        TRY(range_open(&a->range, (size_t)(most > bytes ? most : bytes), e));
    }
    if (bytes > range_most(a->range)) // too few addresses: the executor takes its own arena
        return 0;
    keep_or_trim_tail(a, s);
    TRY(range_use(a->range, (size_t)bytes, out, e));
    a->tail_bytes = range_resident_bytes(a->range, (size_t)bytes);
    return 0;
}

// A device's arena cannot grow in place. It is taken 50 % larger than needed when that is at most
// half of the free memory, because a search tries batches that grow step by step.
static int take_device(struct arena *a, struct session *s, void **out, struct err *e) {
    struct backend *b = s->engine->backend;
    const uint64_t bytes = s->plan->layout.arena_bytes;
    uint64_t left = 0, total;
    if (bytes > a->device_bytes)
        arena_give_device(a, s->engine);
    if (!a->device) {
        TRY(b->memory(b, &left, &total, e));
        const uint64_t take = bytes + bytes / 2 <= left / 2 ? bytes + bytes / 2 : bytes;
        TRY(b->arena_take(b, take, &a->device, e));
        a->device_bytes = take;
        a->device_used = 0;
    }
    *out = a->device;
    return 0;
}

int arena_take(struct arena *a, struct session *s, void **out, struct err *e) {
    const bool device = engine_on_device(s->engine);
    uint64_t *used = device ? &a->device_used : &a->range_used;
    *out = NULL;
    s->kept_weights = false;
    a->next[0] = '\0';
    a->tail_bytes = 0;
    if (s->engine->options.checking || plan_find(s->plan, PLAN_TRAIN) < 0)
        return 0;
    TRY(device ? take_device(a, s, out, e) : take_host(a, s, out, e));
    if (!*out)
        return 0;
    TRY(name_state(s->plan, device ? "device " : "host ", a->next, e));
    s->kept_weights = a->state[0] && strcmp(a->state, a->next) == 0;
    a->state[0] = '\0'; // until engine_state_sound says that all turns were complete
    TRY(clear_state(s, *out, *used, e));
    if (s->plan->layout.arena_bytes > *used)
        *used = s->plan->layout.arena_bytes;
    return 0;
}
