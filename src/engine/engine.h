// engine.h - an engine runs plans. It has memory, threads, a backend, and executors for the loaded
// plan.
//
//               engine_open          engine_ready             engine_load
//     (nothing) ----------> EMPTY ---------------> READY ----------------> LOADED
//                                                  |  ^  ^                   |
//                                     engine_ready |  |  |   engine_unload   |
//                                                  +--+  +-------------------+
//     engine_close ends an engine in any state.
//
//   EMPTY    has only an accountant of memory (base/mem.h).
//   READY    has threads and a backend for the knobs of the plan it was made ready for. Another
//            plan reuses them where its knobs allow it; otherwise they are opened again.
//   LOADED   has the plan's arena, its executor and its weights: a session (session.h). A plan
//            with a second model has two.
//
// The engine owns all of this and frees it. A plan belongs to the caller and outlives its load.
//
// An engine that keeps (engine_options.keep) belongs to a process that runs many plans one after
// another (tune/worker.h). Between two loads it keeps the arena's pages and the model's state in
// them (arena.h), so that a trial costs its steps and no start-up. An engine that does not keep
// takes and gives back the arena with each load. `haggle train` uses such an engine.
#ifndef HAGGLE_ENGINE_ENGINE_H
#define HAGGLE_ENGINE_ENGINE_H

#include "backend/backend.h"
#include "base/mem.h"
#include "base/pool.h"
#include "engine/arena.h"
#include "engine/session.h"
#include "plan/plan.h"

struct engine_options {
    bool reference;    // the plain backend instead of the fast one
    bool checking;     // executors observe every op: slow, twice the arena, the same results
    bool keep;         // arena and weights stay for the next plan
    struct comm *comm; // connects this rank with the others; NULL: one rank
};

struct engine {
    struct engine_options options;
    struct mem *mem;
    // From READY on:
    struct pool *pool;
    struct backend *backend;
    struct knobs machine;  // pool and backend were opened for these
    struct plan_room room; // that engine_ready compared the plan with; is NULL: it did not
    // While LOADED:
    struct session *session;    // the plan's; NULL: nothing is loaded
    uint64_t device_free_bytes; // free on the device before the arena was taken
    struct arena arena;
};

int engine_open(struct engine **out, const struct engine_options *o, struct err *e);
void engine_close(struct engine *g); // NULL is accepted

// Opens threads and backend for the plan's knobs. Checks that the backend computes in the plan's
// precision. Measures the process into the plan (plan_set_process) and compares what the plan needs
// with what is available. ERR_MEMORY leaves the engine READY. Nothing is written and no arena is
// taken. May be called again.
int engine_ready(struct engine *g, struct plan *p, struct err *e);
// The first half of engine_load, for an engine that is READY: takes the arena and binds the
// programs. Weights are whatever the arena holds. For a client that fills them with other values.
int engine_bind(struct engine *g, struct plan *p, bool graphs, struct err *e);
// engine_ready and engine_bind, then fills the weights: initial ones, those of the model's folder,
// or those that an earlier load left (session->kept_weights). After a failure the memory taken so
// far stays until engine_unload, so that the caller can tell how far the load came.
int engine_load(struct engine *g, struct plan *p, struct err *e);
// For one plan: engine_open, then engine_load. On failure *out is NULL.
int engine_start(struct engine **out, const struct engine_options *o, struct plan *p,
                 struct err *e);
void engine_unload(struct engine *g); // nothing loaded: nothing happens
// To be called when all turns of the loaded plan were complete: a later load may then use the state
// they left.
void engine_state_sound(struct engine *g);

// The device alone, as a run with these knobs would open it; the caller closes it.
int engine_open_device(struct backend **out, const struct knobs *k, struct err *e);
bool engine_on_device(const struct engine *g); // the backend has its own memory
bool engine_has_precision(const struct engine *g, enum precision p);

// ---------------------------------------------------------------- memory (engine_memory.c)

// plan_total_bytes, plus the copy of the arenas that an engine with options.checking makes.
uint64_t engine_total_bytes(const struct engine *g, const struct plan *p);
// Like plan_need_bytes: on a device the arenas, on the host engine_total_bytes.
uint64_t engine_need_bytes(const struct engine *g, const struct plan *p);
// Memory that the plan may use: its budget (memory=), else what the device or the machine has left.
int engine_room(const struct engine *g, const struct plan *p, struct plan_room *out, struct err *e);
// Resident bytes now, without the pages that are kept from earlier loads.
uint64_t engine_resident_bytes(const struct engine *g);
// The peak since mem_process_reset_peak, without the pages of earlier and larger loads.
uint64_t engine_process_peak_bytes(const struct engine *g);
// Bytes of the device's memory taken since just before the arena was taken; 0: no device, or not
// known. The figure includes what other processes on the same device have taken.
uint64_t engine_device_bytes(const struct engine *g);

#endif
