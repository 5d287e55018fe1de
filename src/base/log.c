// log.c - messages to people, on one stream, with an optional live line.
//
// A message is written whole under the stream's lock, so lines of several threads do not mix. The
// live line is rewritten in place with \r and \033[K. It is cut to the terminal's width, because a
// line that wraps cannot be rewritten.
#include "base/log.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { DEFAULT_COLUMNS = 80 };

// A terminal that understands escape sequences.
static bool is_terminal(FILE *stream) {
    const char *term = getenv("TERM");
    int fd = stream ? fileno(stream) : -1;
    return fd >= 0 && isatty(fd) && term && *term && strcmp(term, "dumb") != 0;
}

void log_init(struct log *l, FILE *stream) {
    // See no-color.org: any non-empty value turns colors off.
    const char *no_color = getenv("NO_COLOR");
    *l = (struct log){.stream = stream, .color = is_terminal(stream) && !(no_color && *no_color)};
}

bool log_shows(const struct log *l, enum log_level level) {
    return l && l->stream && level >= l->least;
}

void log_put(struct log *l, enum log_level level, const char *format, ...) {
    if (!log_shows(l, level))
        return;
    const char *open = "", *word = "", *close = "";
    if (level == LOG_WARN)
        word = "warning:", open = "\033[1;33m";
    else if (level == LOG_ERROR)
        word = "error:", open = "\033[1;31m";
    if (!l->color)
        open = "";
    else if (*word)
        close = "\033[0m";
    flockfile(l->stream);
    if (l->live)
        fputs("\r\033[K", l->stream);
    l->live = false;
    if (*word)
        fprintf(l->stream, "%s%s%s ", open, word, close);
    va_list args;
    va_start(args, format);
    vfprintf(l->stream, format, args);
    va_end(args);
    fputc('\n', l->stream);
    fflush(l->stream);
    funlockfile(l->stream);
}

static int columns_of(FILE *stream) {
    struct winsize size;
    if (ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        return size.ws_col;
    return DEFAULT_COLUMNS;
}

// Length in bytes of the longest prefix that fills at most `columns`. UTF-8 continuation bytes and
// color sequences take no column. Stops at a line break.
static size_t fit(const char *text, int columns) {
    int used = 0;
    size_t i = 0;
    while (text[i] && text[i] != '\n' && text[i] != '\r') {
        if (text[i] == '\033' && text[i + 1] == '[') {
            i += 2;
            while (text[i] && (text[i] < '@' || text[i] > '~'))
                i++;
            if (text[i])
                i++;
            continue;
        }
        if (((unsigned char)text[i] & 0xC0) != 0x80 && ++used > columns)
            break;
        i++;
    }
    return i;
}

int log_live(struct log *l, const char *text) {
    if (!log_shows(l, LOG_INFO) || !is_terminal(l->stream))
        return 0;
    // One column stays free, because a character in the last column makes some terminals wrap.
    size_t n = fit(text, columns_of(l->stream) - 1);
    flockfile(l->stream);
    fputs("\r\033[K", l->stream);
    fwrite(text, 1, n, l->stream);
    if (text[n] && memchr(text, '\033', n)) // the cut part may have contained the color's reset
        fputs("\033[0m", l->stream);
    fflush(l->stream);
    l->live = true;
    funlockfile(l->stream);
    return 1;
}

void log_live_end(struct log *l) {
    if (!l || !l->stream || !l->live)
        return;
    flockfile(l->stream);
    fputc('\n', l->stream);
    fflush(l->stream);
    l->live = false;
    funlockfile(l->stream);
}
