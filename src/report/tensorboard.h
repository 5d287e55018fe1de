// tensorboard.h - scalars as a TensorBoard event file.
//
// Place: written beside the JSONL log when the user asks for it. The format is TFRecord (length,
// masked CRC-32C, data, masked CRC-32C) around Event messages. Their few protobuf fields are
// encoded here, without a protobuf library.
//
// Invariants: a record is written whole. A reader stops cleanly at one torn by a crash. Each run of
// the program opens a new file, as TensorBoard expects.
#ifndef HAGGLE_REPORT_TENSORBOARD_H
#define HAGGLE_REPORT_TENSORBOARD_H

#include "base/err.h"

#include <stdint.h>

struct tensorboard {
    int fd;
    char path[1024];
};

enum { TENSORBOARD_TAG_BYTES = 200 }; // longest tag

// Creates dir and its parents, and in it events.out.tfevents.<time>.<host>.<pid>.<number>.
int tensorboard_open(struct tensorboard *t, const char *dir, struct err *e);
int tensorboard_put(struct tensorboard *t, const char *tag, int64_t step, double value,
                    struct err *e);
int tensorboard_close(struct tensorboard *t, struct err *e);

#endif
