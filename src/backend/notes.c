// notes.c - see notes.h. A line is the check sum of the rest in hexadecimal, a tab, the key, a tab,
// the value, a line feed.
#include "backend/notes.h"

#include "base/file.h"

#include <ctype.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    SUM_BYTES = 16,
    LINE_BYTES = NOTE_BYTES + SUM_BYTES + 8,
    FILE_BYTES = 16 << 20, // a larger file is not read on
    PATH_BYTES = 1024,
    LOCK_TRIES = 100, // a millisecond apart
};

struct note {
    char *key, *value; // one piece of memory, that of the key
};

struct notes {
    int fd;     // -1: no file
    off_t read; // bytes of the file that were read
    struct note *notes;
    size_t n, room;
};

static bool keeps(const char *text) {
    return *text && !strpbrk(text, "\t\r\n");
}

static bool put(struct notes *n, const char *key, const char *value) {
    const size_t k = strlen(key) + 1, v = strlen(value) + 1;
    if (n->n == n->room) {
        const size_t room = n->room ? 2 * n->room : 64;
        struct note *grown = realloc(n->notes, room * sizeof *grown);
        if (!grown)
            return false;
        n->notes = grown;
        n->room = room;
    }
    char *copy = malloc(k + v);
    if (!copy)
        return false;
    memcpy(copy, key, k);
    memcpy(copy + k, value, v);
    n->notes[n->n++] = (struct note){copy, copy + k};
    return true;
}

static void sum_of(const char *rest, size_t bytes, char out[SUM_BYTES + 1]) {
    snprintf(out, SUM_BYTES + 1, "%016llx", (unsigned long long)hash_u64(rest, bytes));
}

// Takes a line without its line feed. A key that is known keeps its value.
static void take(struct notes *n, char *line, size_t bytes) {
    char sum[SUM_BYTES + 1];
    if (bytes < SUM_BYTES + 4 || bytes >= LINE_BYTES || memchr(line, '\0', bytes))
        return;
    char *key = line + SUM_BYTES + 1;
    line[bytes] = '\0';
    sum_of(key, bytes - SUM_BYTES - 1, sum);
    char *value = strchr(key, '\t');
    if (line[SUM_BYTES] != '\t' || memcmp(line, sum, SUM_BYTES) != 0 || !value)
        return;
    *value++ = '\0';
    if (keeps(key) && keeps(value) && !notes_find(n, key))
        put(n, key, value);
}

// Reads what was added to the file since the last time, up to its last whole line.
static void read_on(struct notes *n) {
    char buffer[16 * LINE_BYTES];
    bool skips = false; // inside a line that is too long
    while (n->read < FILE_BYTES) {
        const ssize_t got = pread(n->fd, buffer, sizeof buffer, n->read);
        if (got <= 0)
            return;
        char *at = buffer, *end = buffer + got, *feed;
        while ((feed = memchr(at, '\n', (size_t)(end - at)))) {
            if (!skips)
                take(n, at, (size_t)(feed - at));
            skips = false;
            at = feed + 1;
        }
        if (at == buffer && got == (ssize_t)sizeof buffer) {
            skips = true;
            at = end;
        }
        if (at == buffer)
            return;
        n->read += at - buffer;
    }
}

static void open_file(struct notes *n, const char *folder, const char *name) {
    char path[PATH_BYTES];
    struct err ignored = {0};
    const int begin = snprintf(path, sizeof path, "%s/", folder);
    if (begin < 0 || (size_t)begin + strlen(name) + sizeof ".notes" > sizeof path ||
        file_make_dirs(folder, &ignored) != 0)
        return;
    snprintf(path + begin, sizeof path - (size_t)begin, "%s.notes", name);
    for (char *c = path + begin; *c; c++)
        if (!isalnum((unsigned char)*c) && *c != '.')
            *c = '-';
    if (file_open_append(path, &n->fd, &ignored) != 0)
        n->fd = -1;
    else
        read_on(n);
}

int notes_open(struct notes **out, const char *folder, const char *name, struct err *e) {
    struct notes *n = calloc(1, sizeof *n);
    *out = n;
    if (!n)
        return err_set(e, ERR_MEMORY, "no memory for notes about a device");
    n->fd = -1;
    if (folder)
        open_file(n, folder, name);
    return 0;
}

void notes_close(struct notes *n) {
    if (!n)
        return;
    if (n->fd >= 0)
        close(n->fd);
    for (size_t i = 0; i < n->n; i++)
        free(n->notes[i].key);
    free(n->notes);
    free(n);
}

bool notes_kept(const struct notes *n) {
    return n->fd >= 0;
}

const char *notes_find(const struct notes *n, const char *key) {
    for (size_t i = 0; i < n->n; i++)
        if (strcmp(n->notes[i].key, key) == 0)
            return n->notes[i].value;
    return NULL;
}

// Waits a moment at most: the lock is held for a line, and without it a note is just not kept.
static bool lock(const struct notes *n) {
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    for (int i = 0; i < LOCK_TRIES; i++) {
        if (fcntl(n->fd, F_OFD_SETLK, &whole) == 0)
            return true;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return false;
}

static void unlock(const struct notes *n) {
    struct flock whole = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
    fcntl(n->fd, F_OFD_SETLK, &whole);
}

// Appends a line in one write. A file that was cut off in the middle of a line gets its line feed
// first.
static void append(struct notes *n, const char *key, const char *value) {
    char line[LINE_BYTES], sum[SUM_BYTES + 1], last = '\n';
    struct stat st;
    if (fstat(n->fd, &st) != 0 || st.st_size >= FILE_BYTES ||
        (st.st_size > 0 && pread(n->fd, &last, 1, st.st_size - 1) != 1))
        return;
    char *at = line;
    if (last != '\n')
        *at++ = '\n';
    char *rest = at + SUM_BYTES + 1;
    const int bytes = snprintf(rest, LINE_BYTES - SUM_BYTES - 3, "%s\t%s", key, value);
    sum_of(rest, (size_t)bytes, sum);
    memcpy(at, sum, SUM_BYTES);
    at[SUM_BYTES] = '\t';
    rest[bytes] = '\n';
    const size_t all = (size_t)(rest + bytes + 1 - line);
    if (write(n->fd, line, all) != (ssize_t)all)
        return; // the check sum tells a torn line
}

const char *notes_add(struct notes *n, const char *key, const char *value) {
    if (!keeps(key) || !keeps(value) || strlen(key) + strlen(value) + 2 > NOTE_BYTES)
        return NULL;
    const bool locked = n->fd >= 0 && lock(n);
    if (locked)
        read_on(n);
    if (!notes_find(n, key)) {
        if (locked)
            append(n, key, value);
        if (!put(n, key, value))
            value = NULL;
    }
    if (locked)
        unlock(n);
    return value ? notes_find(n, key) : NULL;
}
