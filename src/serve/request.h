// request.h - one line of a hybrid run's requests: what is asked, and the sample as the model reads
// it.
//
// Place: requests.c takes lines from clients and passes them here; the trainer gets the rows. Lines
// are not trusted: everything is checked by base/json.h and data/record.h.
//
//     {"evaluate": RECORD, "id": 7}          the loss of a record
//     {"train": RECORD}                      one update with it
//     {"train": [RECORD, RECORD]}            several records together (interactive.micro at most)
//     {"evaluate": {"index": 3}}             record 3 of interactive.data
//
// RECORD is an object as in a .jsonl file. Its shape is data.shape, or is found from its members. A
// record is one document at the beginning of a row. A record that is too long is refused, never
// cut.
#ifndef HAGGLE_SERVE_REQUEST_H
#define HAGGLE_SERVE_REQUEST_H

#include "data/render.h"
#include "data/shard.h"
#include "knob/knob.h"
#include "train/guest.h"

enum { REQUEST_ID_BYTES = 64, REQUEST_ROWS = 4 };

struct request_id {
    enum { REQUEST_ID_NONE, REQUEST_ID_NUMBER, REQUEST_ID_STRING } type;
    int64_t number;
    char text[REQUEST_ID_BYTES + 1];
};

struct request {
    struct request_id id; // also set after an error, if the id came before the error
    enum guest_kind kind;
    int64_t tokens, trained_tokens;
};

struct request_options {
    const struct knobs *knobs; // outlive the reader
    const char *model_dir;     // NULL: the model is a built-in shape
    int64_t vocab;
    struct shard_listener listener; // gets progress while interactive.data is read
};

struct request_reader;

// Opens tokenizer and templates as for training data, and reads all of interactive.data.
int request_reader_open(struct request_reader **out, const struct request_options *o,
                        struct err *e);
void request_reader_close(struct request_reader *r); // NULL is accepted
// Bytes of interactive.data in memory.
uint64_t request_reader_bytes(const struct request_reader *r);
// Longest accepted line in bytes: room for interactive.micro records of interactive.seq tokens.
size_t request_line_most(const struct knobs *k);
int64_t request_columns(const struct knobs *k); // columns of one row array: micro x seq

// Reads a line into rows (tokens, targets, positions, document starts; request_columns each).
// ERR_USAGE or ERR_FORMAT with a message for the client. One thread at a time. rows NULL: reads
// only out->id.
int request_read(struct request_reader *r, const char *line, size_t bytes,
                 int32_t *const rows[REQUEST_ROWS], struct request *out, struct err *e);

#endif
