// client.h - one peer that sends lines and gets lines: standard input and output, or a client of a
// socket.
//
// Place: requests.c polls, and calls these when something may be read or written. Buffers have a
// fixed size. Nothing here blocks. A write has whole lines, and is no larger than what a pipe or a
// Unix socket takes whole, so that no reader gets a part of a line. The flags of standard output
// are not changed, because other processes share them.
#ifndef HAGGLE_SERVE_CLIENT_H
#define HAGGLE_SERVE_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Times of the reads that completed a line, kept while such lines wait here.
enum { CLIENT_STAMPS = 32 };
struct client_stamp {
    size_t end; // bytes in the buffer after this read
    uint64_t ns;
};

struct client {
    int in, out;    // out -1: answers are dropped
    bool used;      // this entry is in use
    bool socket;    // in and out are one descriptor, which client_close closes
    bool ended;     // no more input will come
    bool skipping;  // inside a line that is too long
    int waiting;    // samples in the queue
    char *line;     // input: whole lines and the beginning of one
    size_t n, most; // bytes in it; its size
    struct client_stamp stamps[CLIENT_STAMPS]; // oldest first
    int n_stamps;
    uint64_t ended_ns; // when input ended; completes a last line without a line end
    char *text;        // answers to write
    size_t text_n, text_most;
    int broken;    // errno of the write that failed; 0: answers can be written
    uint64_t lost; // answers that were not written because of that, or that no one read in time
};

// Keeps the buffers, which the caller sets: line with `most` + 1 bytes, text with `text_most`
// bytes.
void client_open(struct client *c, int in, int out, bool socket);
void client_close(struct client *c);

bool client_wants_input(const struct client *c);
// Reads what is available. False: the client is gone (the end of input does not count as that).
bool client_read(struct client *c);
void client_end(struct client *c); // no more input will come
// A whole line, without its end; text NULL: there is none yet. A line that does not fit is reported
// once with too_long and left out. client_took drops what was returned. The last line needs no end.
struct client_line {
    const char *text;
    size_t bytes, taken;
    bool too_long;
    // clock_ns when the line was complete. It may be earlier, never later, when more reads wait
    // than are remembered.
    uint64_t ns;
};
struct client_line client_line(struct client *c);
void client_took(struct client *c, const struct client_line *l);

// Appends an answer, a whole line. The caller has checked that there is room. Does nothing when
// answers are dropped.
void client_put(struct client *c, const char *text, size_t bytes);
// Writes whole lines. False: no process reads the answers any more (errno says why).
bool client_write(struct client *c);
// Drops the answers that are not written yet, and all later ones, and counts them as lost.
void client_break(struct client *c, int why);

#endif
