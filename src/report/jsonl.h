// jsonl.h - the training log: one JSON object per line, appended and flushed as it happens.
//
// Place: the training loop writes a record every log.every steps; people tail it, other tools read
// it.
//
// Invariants: a line is one write(2) of whole bytes, so a crash can tear only the last one; opening
// heals that (completes a line that only lacks its newline, cuts off one that is torn).
#ifndef HAGGLE_REPORT_JSONL_H
#define HAGGLE_REPORT_JSONL_H

#include "base/err.h"
#include "base/json.h"

#include <stdint.h>

struct jsonl_record { // NaN: not measured, written as null
    int64_t step;
    double loss, lr, grad_norm;
    uint64_t tokens; // trained on so far in the run
    double tokens_per_s, step_ms, data_wait_ms;
    double time;            // wall seconds since the epoch
    double validation_loss; // left out when NaN
    bool has_noise;         // the two that follow are written, null when not determined
    double noise_tokens, noise_sequences;
};

struct jsonl {
    int fd;
    struct json_writer line; // its buffer is kept from line to line
    char path[1024];
};

// Creates or appends. *healed_bytes (may be NULL): bytes of a torn line cut off.
int jsonl_open(struct jsonl *j, const char *path, uint64_t *healed_bytes, struct err *e);
int jsonl_put(struct jsonl *j, const struct jsonl_record *r, struct err *e);
// For other objects: begin returns a writer inside `{`; end closes the object and writes the line.
struct json_writer *jsonl_begin(struct jsonl *j);
int jsonl_end(struct jsonl *j, struct err *e);
int jsonl_close(struct jsonl *j, struct err *e); // fsync and close

#endif
