// arena.h - the arena of an engine that keeps: its pages and the model's state stay from one load
// to the next.
//
// The weights and moments of a model stay if the next plan has them under the same names, with the
// same types, at the same places. They are then what earlier loads have trained, not the initial
// ones. Times do not depend on them, losses do, and the session says so (kept_weights). The state
// of a load that failed is never used again.
//
// On the host the arena is a range of addresses (base/range.h), used from its beginning. Pages
// beyond the present plan belong to earlier, larger plans. They stay while there is room for them.
// Every figure leaves them out, so that it equals that of a process that has run nothing else.
#ifndef HAGGLE_ENGINE_ARENA_H
#define HAGGLE_ENGINE_ARENA_H

#include "base/hash.h"
#include "base/range.h"
#include "plan/plan.h"

struct engine;
struct session;

struct arena {
    struct range *range; // on the host; NULL: none yet
    void *device;        // on a device, from the engine's backend; NULL: none
    uint64_t device_bytes;
    uint64_t range_used, device_used; // by any load so far: what lies beyond is zero
    uint64_t tail_bytes;              // resident beyond the plan that is loaded
    // `state`: a hash that identifies the model's state in the arena; "": none that may be used.
    // `next`: the hash of the state that the present load will leave.
    char state[HASH_TEXT_BYTES], next[HASH_TEXT_BYTES];
};

// Memory for a session whose plan and engine are set. The backend must be open. NULL in *out means
// that the executor takes its own. Sets s->kept_weights when the arena still holds the model's
// state. Clears all other persistent tensors.
int arena_take(struct arena *a, struct session *s, void **out, struct err *e);
void arena_give_device(struct arena *a, struct engine *g); // before its backend closes
void arena_close(struct arena *a, struct engine *g);

#endif
