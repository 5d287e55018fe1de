// log.h - messages to people: one sink per context, no globals. Results go elsewhere (stdout,
// --json); this is stderr.
#ifndef HAGGLE_BASE_LOG_H
#define HAGGLE_BASE_LOG_H

#include "base/err.h"

#include <stdbool.h>
#include <stdio.h>

enum log_level { LOG_INFO, LOG_WARN, LOG_ERROR };

struct log {
    FILE *stream;         // NULL: silent
    bool color;           // bold yellow "warning:", bold red "error:"
    bool live;            // a live line is on screen: clear it before a message
    enum log_level least; // messages below are dropped, and with LOG_INFO the live line
};

// True when a message of this level would be shown: what is costly to make need not be made.
bool log_shows(const struct log *l, enum log_level level);
// color is chosen from isatty(stream), NO_COLOR and TERM=dumb.
void log_init(struct log *l, FILE *stream);
void log_put(struct log *l, enum log_level level, const char *format, ...) ERR_PRINTF(3, 4);
// Rewrites the live line (TTY only, and only when LOG_INFO is shown; elsewhere does nothing and
// returns 0). Returns 1 when shown.
int log_live(struct log *l, const char *text);
void log_live_end(struct log *l); // newline after the last live line

#endif
