// text.h - finds the files of the data: paths, folders, weights.
//
// Place: dataset.c turns each file into a shard. `paths` is a file, a folder (its *.txt and
// *.jsonl, sorted by name, without subfolders), or several of either separated by commas. Each may
// have a weight after a colon: "chat.jsonl:3,notes:1". If a file or folder with a comma or a colon
// in its name exists, the name is taken as it is.
//
// A pool is the data that is drawn with one weight. With weights, each entry of the list is a pool.
// Without weights, all data is one pool.
//
// Invariants: files are regular and not empty when listed. What this program cannot read as data
// (archives, tables, pickles) is refused by name instead of being trained on as text.
#ifndef HAGGLE_DATA_TEXT_H
#define HAGGLE_DATA_TEXT_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Weights are kept as whole millionths, so that a share is exact on every machine.
enum { TEXT_WEIGHT_UNIT = 1000000, TEXT_MOST_WEIGHT = 1000000 };

struct text_file {
    char *path;
    bool records;   // JSONL: one record per line; else one plain document
    uint64_t bytes; // > 0
    size_t pool;
};

struct text_list {
    struct text_file *files; // in the order of pools
    size_t n, capacity;
    uint64_t *weights; // [n_pools]
    size_t n_pools, weight_capacity;
    bool weighted;        // at least one weight was given
    size_t skipped_empty; // empty files found in folders
};

// shaped: records of a named shape are expected, so that only *.txt is a plain document. ERR_IO
// when a path does not exist. ERR_USAGE for an empty file, a folder without data, or a name or
// weight that is not accepted. The error names the path. Call text_list_close in any case.
int text_list_open(struct text_list *t, const char *paths, bool shaped, struct err *e);
void text_list_close(struct text_list *t);

#endif
