// client.c - see client.h.
#include "serve/client.h"

#include "base/clock.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

void client_open(struct client *c, int in, int out, bool socket) {
    char *line = c->line, *text = c->text;
    const size_t most = c->most, text_most = c->text_most;
    *c = (struct client){.in = in,
                         .out = out,
                         .used = true,
                         .socket = socket,
                         .ended = in < 0,
                         .line = line,
                         .most = most,
                         .text = text,
                         .text_most = text_most};
}

void client_close(struct client *c) {
    if (c->used && c->socket)
        close(c->in >= 0 ? c->in : c->out);
    c->used = false;
    c->in = c->out = -1;
    c->n = c->text_n = 0;
}

// ---------------------------------------------------------------- in

bool client_wants_input(const struct client *c) {
    return c->used && !c->ended && c->n < c->most;
}

// When there is no room, the two neighbours nearest in time are merged. So a full buffer of short
// lines costs little precision, and the oldest time always leaves with its lines. The merged stamp
// keeps the older time, so that no wait is counted too short.
static void add_stamp(struct client *c) {
    if (c->n_stamps == CLIENT_STAMPS) {
        int at = 0;
        for (int i = 1; i + 1 < c->n_stamps; i++)
            if (c->stamps[i + 1].ns - c->stamps[i].ns < c->stamps[at + 1].ns - c->stamps[at].ns)
                at = i;
        c->stamps[at].end = c->stamps[at + 1].end;
        c->n_stamps--;
        memmove(&c->stamps[at + 1], &c->stamps[at + 2],
                (size_t)(c->n_stamps - at - 1) * sizeof *c->stamps);
    }
    c->stamps[c->n_stamps++] = (struct client_stamp){c->n, clock_ns()};
}

static uint64_t stamp_of(const struct client *c, size_t end) {
    for (int i = 0; i < c->n_stamps; i++)
        if (c->stamps[i].end >= end)
            return c->stamps[i].ns;
    return c->ended_ns;
}

static void drop_stamps(struct client *c, size_t bytes) {
    int kept = 0;
    for (int i = 0; i < c->n_stamps; i++)
        if (c->stamps[i].end > bytes)
            c->stamps[kept++] = (struct client_stamp){c->stamps[i].end - bytes, c->stamps[i].ns};
    c->n_stamps = kept;
}

bool client_read(struct client *c) {
    const size_t before = c->n;
    const ssize_t n = c->socket ? recv(c->in, c->line + c->n, c->most - c->n, MSG_DONTWAIT)
                                : read(c->in, c->line + c->n, c->most - c->n);
    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return true;
    if (n < 0 && c->socket)
        return false;
    if (n <= 0) { // EIO: another process group has the terminal's foreground
        client_end(c);
        return true;
    }
    c->n += (size_t)n;
    if (memchr(c->line + before, '\n', (size_t)n) != NULL)
        add_stamp(c);
    return true;
}

void client_end(struct client *c) {
    c->ended = true;
    c->ended_ns = clock_ns();
}

struct client_line client_line(struct client *c) {
    struct client_line l = {0};
    const char *end = memchr(c->line, '\n', c->n);
    if (c->skipping) {
        c->skipping = end == NULL && !c->ended;
        l.taken = end != NULL ? (size_t)(end - c->line) + 1 : c->n;
        client_took(c, &l);
        end = memchr(c->line, '\n', c->n);
        l.taken = 0;
        if (c->skipping)
            return l;
    }
    if (end != NULL) {
        l.text = c->line;
        l.bytes = (size_t)(end - c->line);
        l.taken = l.bytes + 1;
        l.ns = stamp_of(c, l.taken);
    } else if (c->n == c->most) {
        l.too_long = c->skipping = true;
        l.taken = c->n;
    } else if (c->ended && c->n > 0) {
        l.text = c->line;
        l.bytes = l.taken = c->n;
        l.ns = c->ended_ns;
    }
    if (l.text != NULL && l.bytes > 0 && l.text[l.bytes - 1] == '\r')
        l.bytes--;
    return l;
}

void client_took(struct client *c, const struct client_line *l) {
    memmove(c->line, c->line + l->taken, c->n - l->taken);
    c->n -= l->taken;
    drop_stamps(c, l->taken);
}

// ---------------------------------------------------------------- out

void client_put(struct client *c, const char *text, size_t bytes) {
    c->lost += c->broken != 0;
    if (c->out < 0 || bytes > c->text_most - c->text_n)
        return;
    memcpy(c->text + c->text_n, text, bytes);
    c->text_n += bytes;
}

// The bytes of the whole lines that fit into one write.
static size_t whole_lines(const struct client *c) {
    const size_t most = c->text_n < PIPE_BUF ? c->text_n : PIPE_BUF;
    const char *end = memrchr(c->text, '\n', most);
    return end != NULL ? (size_t)(end - c->text) + 1 : most;
}

void client_break(struct client *c, int why) {
    for (size_t i = 0; i < c->text_n; i++)
        c->lost += c->text[i] == '\n';
    c->broken = why != 0 ? why : EPIPE;
    c->out = -1;
    c->text_n = 0;
}

bool client_write(struct client *c) {
    const size_t bytes = whole_lines(c);
    const ssize_t n = c->socket ? send(c->out, c->text, bytes, MSG_DONTWAIT | MSG_NOSIGNAL)
                                : write(c->out, c->text, bytes);
    if (n < 0)
        return errno == EINTR || errno == EAGAIN;
    memmove(c->text, c->text + n, c->text_n - (size_t)n);
    c->text_n -= (size_t)n;
    return true;
}
