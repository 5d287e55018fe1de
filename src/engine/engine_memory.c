// engine_memory.c - how much memory a plan needs on this engine, how much is available, and how
// much was taken.
#include "engine/engine.h"

// Resident pages on the host that are kept for the next load. The next arena reuses them, or gives
// them back before it takes others.
static uint64_t kept_bytes(const struct engine *g) {
    return g->arena.range ? range_resident_bytes(g->arena.range, 0) : 0;
}

uint64_t engine_total_bytes(const struct engine *g, const struct plan *p) {
    return plan_total_bytes(p) + (g->options.checking ? plan_arena_bytes(p) : 0);
}

uint64_t engine_need_bytes(const struct engine *g, const struct plan *p) {
    return engine_on_device(g) ? plan_need_bytes(p, true) : engine_total_bytes(g, p);
}

int engine_room(const struct engine *g, const struct plan *p, struct plan_room *out,
                struct err *e) {
    uint64_t left = 0, total;
    if (engine_on_device(g)) {
        TRY(g->backend->memory(g->backend, &left, &total, e));
        left += g->arena.device_bytes;
        *out = plan_room(p, left, "what the device has left", false);
        out->taken_bytes = total > left ? total - left : 0;
    } else {
        const struct mem_left host = mem_left(g->arena.range ? range_most(g->arena.range) : 0);
        *out = plan_room(p, host.bytes + kept_bytes(g), host.limit, true);
    }
    return 0;
}

uint64_t engine_resident_bytes(const struct engine *g) {
    const uint64_t all = mem_process_rss_bytes(), kept = kept_bytes(g);
    return all > kept ? all - kept : 0;
}

uint64_t engine_process_peak_bytes(const struct engine *g) {
    const uint64_t peak = mem_process_peak_rss_bytes(), tail = g->arena.tail_bytes;
    return peak > tail ? peak - tail : 0;
}

uint64_t engine_device_bytes(const struct engine *g) {
    uint64_t left, total;
    if (!g->session || !g->device_free_bytes ||
        g->backend->memory(g->backend, &left, &total, NULL) != 0)
        return 0;
    const uint64_t kept = g->arena.device_bytes, used = g->session->plan->layout.arena_bytes;
    left += kept > used ? kept - used : 0;
    return g->device_free_bytes > left ? g->device_free_bytes - left : 0;
}
