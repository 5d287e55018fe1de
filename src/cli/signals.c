// signals.c - Ctrl-C and kill: first a request to stop and save, then the end. While a run is only
// being planned there is nothing to save: the first one is the end (haggle_request_stop says 2).
#include "cli.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

// Only calls that are safe in a handler.
static void on_signal(int signal) {
    static const char text[] = "\nhaggle: stopping after this step; once more quits at once\n";
    if (haggle_request_stop() > 1)
        _exit(128 + signal);
    if (write(STDERR_FILENO, text, sizeof text - 1) < 0) {
        // Nobody is listening; the request stands all the same.
    }
}

void cli_catch_signals(void) {
    static const int caught[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, before;
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof caught / sizeof *caught; i++) {
        // nohup and `&` in a shell ignore some of them; they stay ignored.
        if (sigaction(caught[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(caught[i], &action, NULL);
    }
    // `haggle train 2>&1 | head` must not end the run between two checkpoints.
    signal(SIGPIPE, SIG_IGN);
    // A file-size limit is a failed write, which saving reports, not a reason to die.
    signal(SIGXFSZ, SIG_IGN);
}
