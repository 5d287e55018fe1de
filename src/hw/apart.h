// apart.h - how far the threads of a pool are from each other: how long a cache line takes from one
// to another and back.
//
// Place: a trial looks before, during and after its measured steps, so that the tuner compares
// settings only where the CPUs were equally far apart. train and bench report it, doctor prints it.
//
// Why: CPUs that share a cache answer each other in some 40 ns. CPUs on different parts of a
// processor take up to ten times as long, but may have more bandwidth together. A hypervisor moves
// virtual CPUs between the two, and a scheduler moves threads. No clock, counter or stolen time
// shows it, and the ratio of two settings' speeds changes with it (docs/tuner.md).
#ifndef HAGGLE_HW_APART_H
#define HAGGLE_HW_APART_H

#include "base/json.h"
#include "base/pool.h"

#include <stdbool.h>

struct apart {                // over several looks, nanoseconds of a round trip
    double least_ns, most_ns; // 0: no look had an answer
};

// One look: the mean over pairs of members, each with the fastest of a few hundred round trips.
// With two members there is one pair. With more, neighbours and members that are half the pool
// apart answer each other, at most 256 members. Takes 20 to 150 us, and a few ms at most where
// other programs hold a CPU. NaN: one thread, more threads than CPUs, or no pair answered. Must not
// be called while the pool runs a task.
double apart_measure(struct pool *p);

void apart_add(struct apart *a, double ns); // NaN and 0 add nothing
void apart_join(struct apart *a, const struct apart *more);
double apart_least_ns(const struct apart *a); // NaN: not known
double apart_most_ns(const struct apart *a);
double apart_typical_ns(const struct apart *a); // between the two
// Whether the most is more than `ratio` times the least: the CPUs moved between two looks.
bool apart_changed(const struct apart *a, double ratio);
// "apart_ns": {"least", "most"}, null where it is not known.
void apart_put_member(const struct apart *a, struct json_writer *w);

#endif
