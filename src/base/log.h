// log.h - messages to people, on stderr. One log per context, no globals. Results go to stdout or
// --json instead.
#ifndef HAGGLE_BASE_LOG_H
#define HAGGLE_BASE_LOG_H

#include "base/err.h"

#include <stdbool.h>
#include <stdio.h>

enum log_level { LOG_INFO, LOG_WARN, LOG_ERROR };

struct log {
    FILE *stream;         // NULL: silent
    bool color;           // bold yellow "warning:", bold red "error:"
    bool live;            // a live line is on screen and must be cleared before a message
    enum log_level least; // lower messages are dropped; the live line counts as LOG_INFO
};

// True when a message of this level would be shown. Lets the caller avoid building costly messages.
bool log_shows(const struct log *l, enum log_level level);
// Chooses color from isatty(stream), NO_COLOR and TERM=dumb.
void log_init(struct log *l, FILE *stream);
void log_put(struct log *l, enum log_level level, const char *format, ...) ERR_PRINTF(3, 4);
// Rewrites the live line and returns 1. Does nothing and returns 0 when the stream is not a
// terminal or LOG_INFO is not shown.
int log_live(struct log *l, const char *text);
void log_live_end(struct log *l); // writes a newline after the last live line

#endif
