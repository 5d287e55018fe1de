// stop.c - the one thing this library remembers between calls: that it was asked to stop.
//
// A signal handler has no argument to carry a context in, so these are globals, the only mutable
// ones.
#include "api/api.h"

#include <stdatomic.h>

static volatile sig_atomic_t requests;
static atomic_int planning; // runs that have not begun yet

int haggle_request_stop(void) {
    // Two is as many as anyone needs to tell apart; counting on could wrap.
    if (requests < 2)
        requests = requests + 1;
    // Nothing is in work: whoever asks need not wait for the end of a step, and quits.
    if (atomic_load(&planning) > 0)
        requests = 2;
    return requests;
}

void haggle_clear_stop(void) {
    requests = 0;
}

void stop_plan_begin(void) {
    atomic_fetch_add(&planning, 1);
}

void stop_plan_end(void) {
    atomic_fetch_sub(&planning, 1);
}

const volatile sig_atomic_t *stop_flag(void) {
    return &requests;
}
