// requests.h - the sources of requests during a hybrid run: standard input, and clients of a Unix
// socket.
//
// Place: api/ opens it, hands its guest_source to the trainer, closes it. A separate thread reads
// lines, makes samples from them (request.h) and writes answers. The training thread takes ready
// samples and gives results back, under a lock that is never held during reading, tokenizing or
// writing.
//
// Every line gets one answer, a line of JSON, in the order in which answers become known:
//
//     {"id": 7, "evaluate": true, "loss": 3.1, "tokens": 11, "trained_tokens": 11,
//      "waited_ms": 8.2, "run_ms": 3.0, "step": 120}
//     {"id": 7, "error": "..."}
//
// Answers to "train" have "train": true, and also "lr" and "grad_norm".
//
// Invariants:
//   1. All buffers are allocated at the beginning: one for a line and one for answers per client,
//      for at most REQUESTS_CLIENTS clients and interactive.queue waiting samples. When a buffer is
//      full, reading from that client pauses; other clients do not wait for it.
//   2. Only the user can access the socket (mode 0600). A path where something else exists, or
//      where a process listens, is refused. A socket that a killed run left behind is replaced. The
//      socket is removed at the end.
//   3. When the run ends, each request that was sent before and not answered gets an error.
#ifndef HAGGLE_SERVE_REQUESTS_H
#define HAGGLE_SERVE_REQUESTS_H

#include "serve/request.h"

enum { REQUESTS_CLIENTS = 16 };

struct requests_options {
    struct request_options request;
    // File descriptors of interactive.stdin's requests and answers; -1: none. The caller closes
    // them.
    int in, out;
};

struct requests_counts {
    uint64_t lines, refused; // lines received; lines refused at once with an error
    uint64_t ended;          // requests answered with the error that the run ended
    uint64_t clients;        // clients of the socket
    uint64_t turned_away;    // clients refused because there were too many
    uint64_t lost;           // answers that standard output did not take
    int lost_why;            // errno
};

struct requests;

int requests_open(struct requests **out, const struct requests_options *o, struct err *e);
// The requests of a plan: *out is NULL when its goal is not hybrid. in and answers may be NULL; the
// model that answers is the second one, where there is one.
int requests_of_plan(struct requests **out, const struct plan *p, FILE *in, FILE *answers,
                     const struct shard_listener *listener, struct err *e);
// Checks whether interactive.socket can be used, as far as possible without creating it.
int requests_check(const struct requests *r, struct err *e);
void requests_close(struct requests *r);                 // after the source's end; NULL is accepted
uint64_t requests_plan_bytes(const struct requests *r);  // buffers and interactive.data
struct guest_source requests_source(struct requests *r); // for trainer_options
// ERR_IO with their number if standard output did not take all answers. After the source's end.
int requests_lost(const struct requests *r, struct err *e);
struct requests_counts requests_counts(const struct requests *r); // after the source's end

#endif
