// lines.c - a buffer that slides over a file from line to line.
//
// Invariants:
//   1. begin <= scanned <= end <= capacity.
//   2. buffer[begin, end) are the file's bytes from `offset`.
//   3. There is no line end in [begin, scanned). So each byte is searched once, however often the
//      buffer grows.
#include "data/lines.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WINDOW_BYTES = 1 << 20 };

struct lines {
    int fd;
    int rc; // the first error
    char *path;
    char *buffer;
    size_t begin, scanned, end, capacity;
    uint64_t offset;     // offset of buffer[begin] in the file
    uint64_t file_bytes; // at open
    uint64_t read_bytes; // so far
    uint64_t number;     // number of the line returned last
};

static int open_file(struct lines *l, const char *path, struct err *e) {
    // Without O_NONBLOCK, opening a FIFO would wait for a writer before it could be refused.
    l->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (l->fd < 0)
        return err_set(e, ERR_IO, "%s: cannot be opened: %s", path, strerror(errno));
    struct stat s;
    if (fstat(l->fd, &s) != 0)
        return err_set(e, ERR_IO, "%s: cannot be examined: %s", path, strerror(errno));
    if (!S_ISREG(s.st_mode))
        return err_set(e, ERR_FORMAT, "%s: is not a regular file", path);
    l->file_bytes = (uint64_t)s.st_size;
    posix_fadvise(l->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    l->path = strdup(path);
    bool small = l->file_bytes < WINDOW_BYTES - 1; // fits, with a byte to spare
    l->capacity = small ? (size_t)l->file_bytes + 2 : WINDOW_BYTES;
    l->buffer = malloc(l->capacity);
    if (l->path == NULL || l->buffer == NULL)
        return err_set(e, ERR_MEMORY, "%s: no memory to read lines", path);
    return 0;
}

int lines_open(struct lines **out, const char *path, struct err *e) {
    *out = NULL;
    struct lines *l = calloc(1, sizeof *l);
    if (l == NULL)
        return err_set(e, ERR_MEMORY, "%s: no memory to read lines", path);
    l->fd = -1;
    int rc = open_file(l, path, e);
    if (rc != 0) {
        lines_close(l);
        return rc;
    }
    *out = l;
    return 0;
}

void lines_close(struct lines *l) {
    if (l == NULL)
        return;
    if (l->fd >= 0)
        close(l->fd);
    free(l->path);
    free(l->buffer);
    free(l);
}

// Makes room behind `end`: moves the rest to the front, and grows the buffer when that is not
// enough.
static int make_room(struct lines *l, struct err *e) {
    if (l->begin > 0) {
        memmove(l->buffer, l->buffer + l->begin, l->end - l->begin);
        l->end -= l->begin;
        l->scanned -= l->begin;
        l->begin = 0;
    }
    if (l->end < l->capacity - 1)
        return 0;
    size_t wider = 2 * l->capacity; // at most twice the longest accepted line
    char *moved = realloc(l->buffer, wider);
    if (moved == NULL)
        return err_set(e, ERR_MEMORY, "%s: no memory for line %" PRIu64 ", beyond %zu bytes",
                       l->path, l->number + 1, l->capacity);
    l->buffer = moved;
    l->capacity = wider;
    return 0;
}

// Reads more. *more is false at the end of what the file had at open.
static int fill(struct lines *l, bool *more, struct err *e) {
    *more = l->read_bytes < l->file_bytes;
    if (!*more)
        return 0;
    TRY(make_room(l, e));
    size_t room = l->capacity - 1 - l->end; // one byte stays free behind the last line
    if (room > l->file_bytes - l->read_bytes)
        room = (size_t)(l->file_bytes - l->read_bytes);
    ssize_t n;
    do
        n = pread(l->fd, l->buffer + l->end, room, (off_t)l->read_bytes);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return err_set(e, ERR_IO, "%s: cannot be read at byte %" PRIu64 ": %s", l->path,
                       l->read_bytes, strerror(errno));
    if (n == 0)
        return err_set(e, ERR_IO,
                       "%s: shrank while it was read: it had %" PRIu64
                       " bytes and now ends at byte %" PRIu64,
                       l->path, l->file_bytes, l->read_bytes);
    l->end += (size_t)n;
    l->read_bytes += (uint64_t)n;
    return 0;
}

// Finds the end of the line at `begin`. *bytes is its length without LF, *step its length with LF.
static int find_line(struct lines *l, size_t *bytes, size_t *step, struct err *e) {
    for (;;) {
        const char *lf = memchr(l->buffer + l->scanned, '\n', l->end - l->scanned);
        l->scanned = lf != NULL ? (size_t)(lf - l->buffer) : l->end;
        *bytes = l->scanned - l->begin;
        *step = *bytes + 1;
        if (*bytes > LINES_MAX_BYTES)
            return err_set(e, ERR_FORMAT, "%s: line %" PRIu64 ": longer than %d bytes", l->path,
                           l->number + 1, LINES_MAX_BYTES);
        if (lf != NULL)
            return 0;
        bool more;
        TRY(fill(l, &more, e));
        if (!more) {
            *step = *bytes;
            return 0;
        }
    }
}

static int next(struct lines *l, const char **text, size_t *bytes, struct err *e) {
    size_t step;
    TRY(find_line(l, bytes, &step, e));
    if (step == 0) // nothing is left
        return 0;
    char *line = l->buffer + l->begin;
    if (step == *bytes)
        line[*bytes] = '\n'; // the readable byte behind a last line without LF
    if (l->number == 0 && *bytes >= 3 && memcmp(line, "\xEF\xBB\xBF", 3) == 0)
        line += 3, *bytes -= 3;
    if (*bytes > 0 && line[*bytes - 1] == '\r')
        (*bytes)--;
    l->begin += step;
    l->scanned = l->begin;
    l->offset += step;
    l->number++;
    *text = line;
    return 0;
}

int lines_next(struct lines *l, const char **text, size_t *bytes, uint64_t *number, struct err *e) {
    *text = NULL;
    *bytes = 0;
    if (l->rc != 0)
        return err_set(e, l->rc, "%s: could not be read to its end", l->path);
    l->rc = next(l, text, bytes, e);
    if (l->rc != 0)
        *text = NULL, *bytes = 0;
    *number = l->number;
    return l->rc;
}

uint64_t lines_offset(const struct lines *l) {
    return l->offset;
}
