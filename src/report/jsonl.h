// jsonl.h - the training log: one JSON object per line, written at once.
//
// Place: the training loop writes a record every log.every steps, for people and for other tools.
//
// Invariant: a line is one write(2), so a crash can tear only the last line. Opening the log
// repairs it: a line that only lacks its newline is completed, a torn line is cut off.
#ifndef HAGGLE_REPORT_JSONL_H
#define HAGGLE_REPORT_JSONL_H

#include "base/err.h"
#include "base/json.h"

#include <stdint.h>

struct jsonl_record { // NaN: not measured, written as null
    int64_t step;
    double loss, lr, grad_norm;
    uint64_t tokens; // trained tokens of the run so far
    double tokens_per_s, step_ms, data_wait_ms;
    double time;            // wall seconds since the epoch
    double validation_loss; // left out when NaN
    bool has_noise;         // the next two are written; null: not determined
    double noise_tokens, noise_sequences;
};

struct jsonl {
    int fd;
    struct json_writer line; // its buffer is kept from line to line
    char path[1024];
};

// Creates the log or appends to it. *healed_bytes (may be NULL): the bytes of the torn line that
// was cut off.
int jsonl_open(struct jsonl *j, const char *path, uint64_t *healed_bytes, struct err *e);
int jsonl_put(struct jsonl *j, const struct jsonl_record *r, struct err *e);
// For other objects. begin returns a writer after `{`. end closes the object and writes the line.
struct json_writer *jsonl_begin(struct jsonl *j);
int jsonl_end(struct jsonl *j, struct err *e);
int jsonl_close(struct jsonl *j, struct err *e); // fsync and close

#endif
