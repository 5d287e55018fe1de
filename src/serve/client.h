// client.h - one end that sends lines and gets lines: standard input and output, or a socket's client.
//
// Place: requests.c polls, and calls these when something may be read or written. Buffers have a fixed
// size; nothing here blocks (of standard output no more is written at once than a pipe takes whole, and
// its flags, which other processes share, stay as they are).
#ifndef HAGGLE_SERVE_CLIENT_H
#define HAGGLE_SERVE_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Reads that completed a line, and are remembered for the lines of theirs that wait here.
enum { CLIENT_STAMPS = 32 };
struct client_stamp {
    size_t end; // bytes of the buffer that had come with it
    uint64_t ns;
};

struct client {
    int in, out;    // out -1: answers go nowhere any more
    bool used;      // is one
    bool socket;    // in and out are one descriptor, which is ours to close
    bool ended;     // nothing more will come
    bool skipping;  // inside a line that is too long
    int waiting;    // samples in the queue
    char *line;     // what came: lines and the beginning of one
    size_t n, most; // bytes of it; room
    struct client_stamp stamps[CLIENT_STAMPS]; // oldest first
    int n_stamps;
    uint64_t ended_ns; // completes a last line that has no end
    char *text;        // answers to write
    size_t text_n, text_most;
};

// buffers: line_most + 1 bytes for lines, text_most for answers.
void client_open(struct client *c, int in, int out, bool socket);
void client_close(struct client *c);

bool client_wants_input(const struct client *c);
// Takes what is there. False: the client has vanished (an end of input is no such thing).
bool client_read(struct client *c);
void client_end(struct client *c); // nothing more will come
// A whole line, without its end; *text NULL: there is none yet. A line that does not fit is *too_long,
// once, and left out. client_took drops what was looked at. The last line of all needs no end.
struct client_line {
    const char *text;
    size_t bytes, taken;
    bool too_long;
    // clock_ns when it was whole; earlier, never later, where more reads wait here than are remembered.
    uint64_t ns;
};
struct client_line client_line(struct client *c);
void client_took(struct client *c, const struct client_line *l);

// Appends an answer; the caller has seen that there is room. Nothing when answers go nowhere.
void client_put(struct client *c, const char *text, size_t bytes);
bool client_write(struct client *c); // false: nobody reads any more

#endif
