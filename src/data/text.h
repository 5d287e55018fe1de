// text.h - which files the data is: paths, folders, weights.
//
// Place: dataset.c turns each file into a shard. `paths` is a file, a folder (its *.txt and *.jsonl,
// sorted by name, not its subfolders), or several of either separated by commas, each with a weight
// behind a colon if it should have one: "chat.jsonl:3,notes:1". A name that has a comma or a colon
// in it and exists is meant as it stands.
//
// A pool is what is drawn from with one weight: an entry of the list when there are weights, else
// everything together.
//
// Invariants: files are regular and not empty when listed; what this program cannot read as data
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
    bool records;   // JSONL: a record per line; else one plain document
    uint64_t bytes; // > 0
    size_t pool;
};

struct text_list {
    struct text_file *files; // by pool
    size_t n, capacity;
    uint64_t *weights; // [n_pools]
    size_t n_pools, weight_capacity;
    bool weighted;        // a weight was given
    size_t skipped_empty; // empty files found in folders
};

// shaped: records of a named shape are expected, so that only *.txt is a plain document. ERR_IO for
// what is not there, ERR_USAGE for an empty file, a folder without data, a name or weight that is
// not accepted; names the path. Call text_list_close either way.
int text_list_open(struct text_list *t, const char *paths, bool shaped, struct err *e);
void text_list_close(struct text_list *t);

#endif
