// signals.c - Ctrl-C and kill: the first signal asks the run to stop and save, the second ends the
// process. While a run is only being planned there is nothing to save, so the first signal ends the
// process (haggle_request_stop returns 2).
#include "cli.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t quiet; // another rank says it

// Calls only functions that are safe in a signal handler.
static void on_signal(int signal) {
    static const char text[] =
        "\nhaggle: stopping after this step; a second signal quits at once\n";
    if (haggle_request_stop() > 1)
        _exit(128 + signal);
    if (!quiet && write(STDERR_FILENO, text, sizeof text - 1) < 0) {
        // stderr is closed. The stop request still holds.
    }
}

void cli_catch_signals(bool speaks) {
    quiet = !speaks;
    static const int caught[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, before;
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof caught / sizeof *caught; i++) {
        // A signal that is already ignored (nohup, `&` in a shell) stays ignored.
        if (sigaction(caught[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(caught[i], &action, NULL);
    }
    // `haggle train 2>&1 | head` must not end the run between two checkpoints.
    signal(SIGPIPE, SIG_IGN);
    // With a file-size limit a write then fails, which saving reports. The process goes on.
    signal(SIGXFSZ, SIG_IGN);
}
