// requests.h - who asks during a hybrid run: standard input, and clients of a Unix socket.
//
// Place: api/ opens it, hands its guest_source to the trainer, closes it. A thread of its own reads
// lines, makes samples of them (request.h) and writes answers; the training thread takes ready samples
// and gives results back, under a lock that is never held while anything is read, tokenized or written.
//
// Every line gets one answer, a line of JSON, in the order in which answers are known:
//
//     {"id": 7, "evaluate": true, "loss": 3.1, "tokens": 11, "trained_tokens": 11, "waited_ms": 8.2,
//      "run_ms": 3.0, "step": 120}                with "lr" and "grad_norm" for "train": true
//     {"id": 7, "error": "..."}
//
// Invariants:
//   1. All buffers are taken when it begins: a client has one for a line and one for answers, at most
//      REQUESTS_CLIENTS clients are served, interactive.queue samples wait. When something is full,
//      nothing more is read from whoever fills it; nobody else waits for that.
//   2. The socket is its user's alone (mode 0600). A path where something else is, or where somebody
//      listens, is refused; what a killed run left behind is replaced. It is removed at the end.
//   3. When the run ends, each request that was sent before and not answered gets an error.
#ifndef HAGGLE_SERVE_REQUESTS_H
#define HAGGLE_SERVE_REQUESTS_H

#include "serve/request.h"

enum { REQUESTS_CLIENTS = 16 };

struct requests_options {
    struct request_options request;
    // File descriptors of interactive.stdin's requests and answers; -1: none. Stay the caller's.
    int in, out;
};

struct requests_counts {
    uint64_t lines, refused; // that came; that were answered with an error at once
    uint64_t ended;          // that heard of the end of the run
    uint64_t clients;        // of the socket
    uint64_t turned_away;    // that were too many
};

struct requests;

int requests_open(struct requests **out, const struct requests_options *o, struct err *e);
// Whether interactive.socket can be listened on, as far as that shows without making it.
int requests_check(const struct requests *r, struct err *e);
void requests_close(struct requests *r);                          // after end; NULL is accepted
uint64_t requests_plan_bytes(const struct requests *r);           // buffers and interactive.data
struct guest_source requests_source(struct requests *r);          // for trainer_options
struct requests_counts requests_counts(const struct requests *r); // after end

#endif
