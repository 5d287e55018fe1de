// stop.c - the stop request, the only state that the library keeps between calls.
//
// These are the library's only mutable globals: a signal handler has no argument that could carry
// a context.
#include "api/api.h"

#include <stdatomic.h>

static volatile sig_atomic_t requests;
static atomic_int planning; // runs that are planned and not yet training

int haggle_request_stop(void) {
    // Callers only tell 1 from more, and counting further could overflow.
    if (requests < 2)
        requests = requests + 1;
    // There is no step to wait for, so the caller may quit at once.
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
