// stop.c - the one thing this library remembers between calls: that it was asked to stop.
//
// A signal handler has no argument to carry a context in, so this is a global, the only mutable one.
#include "api/api.h"

static volatile sig_atomic_t requests;

int haggle_request_stop(void) {
    // Two is as many as anyone needs to tell apart; counting on could wrap.
    if (requests < 2)
        requests = requests + 1;
    return requests;
}

void haggle_clear_stop(void) {
    requests = 0;
}

const volatile sig_atomic_t *stop_flag(void) {
    return &requests;
}
