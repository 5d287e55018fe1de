// export.h - a run's newest checkpoint as a folder that Hugging Face tools load, checked by reading
// it back.
//
// Place: api/export.c. A checkpoint already is the weights under their Hugging Face names; this adds
// what makes it a model for others: the source folder's own config.json and tokenizer, the element
// type they want, shards of the size they want, a card.
//
//   OUT_DIR/
//       config.json                       the source's, with element type and architecture set
//       model.safetensors                 or model-0000i-of-0000n.safetensors and their index
//       tokenizer.json, ...               copied; of a byte model, the built-in one as a file
//       generation_config.json, README.md
//       haggle.json                       which checkpoint it was, size and hash of every other file
//
// Invariants:
//   1. OUT_DIR appears whole, or not at all: all is written and checked in OUT_DIR.tmp-export, which
//      is renamed at the very end, and removed on any failure.
//   2. What is exported is what was trained: every element of every weight is compared with the
//      checkpoint's, rounded; logits and loss are those of sessions opened anew on both folders.
//   3. Tensors stream: no copy of the model in memory but the check's own session.
#ifndef HAGGLE_TRAIN_EXPORT_H
#define HAGGLE_TRAIN_EXPORT_H

#include "base/dtype.h"
#include "base/json.h"
#include "knob/knob.h"
#include "train/checkpoint.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>

enum { EXPORT_NAME_BYTES = 64 };

struct export_options {
    const char *run_dir; // or a checkpoint's folder; RUN/interactive: of its second model
    const char *out_dir;
    const char *source;        // folder the run was fine-tuned from; NULL: as the run remembers it
    bool as_source;            // each tensor in the type it had in the source; dtype otherwise
    enum dtype dtype;          // DTYPE_F32, DTYPE_BF16, DTYPE_F16
    uint64_t shard_bytes;      // of tensors per file; a larger tensor has a file of its own
    const struct knobs *knobs; // device, threads, memory of the check
    const char *probe;         // file for what the check computed (export_check.c); NULL: none
    struct checkpoint_listener listener;
    // For tests: called with the folder between writing and checking. NULL: nothing.
    int (*on_written)(void *arg, const char *dir, struct err *e);
    void *arg;
};

struct export_figure {
    char name[80];
    double value, limit; // limit < 0: for information
    bool ok;
};

struct export_file {
    char name[EXPORT_NAME_BYTES];
    uint64_t bytes;
    char hash[HASH_TEXT_BYTES];
};

enum { EXPORT_FIGURES_MOST = 16 };
struct export_result {
    char out_dir[PATH_MAX], checkpoint[PATH_MAX];
    char source[PATH_MAX]; // "" for a built-in shape
    int64_t step;
    const char *dtype; // "bf16", "as-source"
    int64_t shards;
    uint64_t bytes; // of all files
    struct export_file *files;
    size_t n_files, capacity;
    struct export_figure figures[EXPORT_FIGURES_MOST];
    size_t n_figures;
    bool ok; // every figure is within its limit
};

// ERR_USAGE when OUT_DIR is there and not empty, ERR_IO when the disk has no room, ERR_NUMERIC when
// the check finds a figure off or a weight cannot be written in the type asked for. Call export_free
// either way.
int export_run(const struct export_options *o, struct export_result *out, struct err *e);
// The check alone, on a folder that was exported before: against the checkpoint it was made of, which
// the run must still have. ERR_NUMERIC as above.
int export_check(const struct export_options *o, struct export_result *out, struct err *e);
void export_free(struct export_result *r);
void export_print(const struct export_result *r, FILE *f);
void export_put_json(const struct export_result *r, struct json_writer *w); // members of an object

// ERR_IO, with both figures, when the filesystem that would hold `path` has less than `bytes` free.
int export_check_space(const char *path, uint64_t bytes, struct err *e);

#endif
