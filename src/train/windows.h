// windows.h - turns of several windows of a dataset, for programs that measure or tune a model.
//
// Place: what trains a model has the loader, which works ahead. Here a turn waits for its windows:
// they are few, and come from files that are tokenized already.
#ifndef HAGGLE_TRAIN_WINDOWS_H
#define HAGGLE_TRAIN_WINDOWS_H

#include "data/dataset.h"
#include "exec/exec.h"

enum { WINDOW_ARRAYS = 4 }; // tokens, targets, positions, doc_start

struct windows {
    const struct dataset *data;
    enum dataset_split split;
    int64_t batch, columns;         // windows of a turn, columns of each that are used
    int32_t *arrays[WINDOW_ARRAYS]; // [batch][columns]
    int32_t *whole;                 // a window as the dataset gives it
    void *scratch;
    int64_t trained; // columns of the turn with a target
};

int windows_open(struct windows *w, const struct dataset *data, enum dataset_split split,
                 int64_t batch, int64_t columns, struct err *e);
void windows_close(struct windows *w); // also after a failure
// Makes the turn that begins with that sample.
int windows_fetch(struct windows *w, uint64_t sample, struct err *e);
exec_feed_fn windows_feed; // arg: the windows

#endif
