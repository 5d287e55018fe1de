// text.h - text files as data: a plain file is one document, a line of a JSONL file is one.
//
// Place: dataset.c cuts the documents in windows. `paths` is a file, a folder (its *.txt and
// *.jsonl, sorted by name, not its subfolders), or several of either separated by commas. A JSONL
// line is an object whose "text" is the document; its other members are checked and ignored.
//
// Invariants: plain files are mapped, never copied, and their bytes are taken as they are (any
// encoding). A mapped file whose size changes during the run is an error of text_files_check, not a
// crash of the mapping. No document is empty.
#ifndef HAGGLE_DATA_TEXT_H
#define HAGGLE_DATA_TEXT_H

#include "base/err.h"
#include "base/file.h"
#include "base/hash.h"

#include <stddef.h>
#include <stdint.h>

struct text_file {
    char *path;
    uint64_t bytes;      // when it was opened
    struct file_map map; // of a plain file; empty for JSONL, which is ...
    char *decoded;       // ... unescaped into memory of its own
};

struct text_document {
    const unsigned char *data;
    size_t bytes; // > 0
    size_t file;
};

struct text_files {
    struct text_file *files;
    size_t n_files, file_capacity;
    struct text_document *documents;
    size_t count, capacity;
    uint64_t bytes;       // of all documents
    size_t skipped_empty; // empty files found in folders, empty texts of JSONL
};

// ERR_IO for what cannot be read, ERR_USAGE for an empty file or a folder without text, ERR_FORMAT
// for a bad JSONL line; names the path (and line).
int text_files_open(struct text_files *t, const char *paths, struct err *e);
void text_files_close(struct text_files *t);
// ERR_MISMATCH when the document's file no longer has the size that was mapped.
int text_files_check(const struct text_files *t, size_t document, struct err *e);
// Identifies the contents: each file's size and documents, and of plain files the first and last
// MiB, of JSONL all text, in order. Paths and times are left out, so a copy elsewhere is the same
// data.
int text_files_fingerprint(const struct text_files *t, char out[HASH_TEXT_BYTES], struct err *e);

#endif
