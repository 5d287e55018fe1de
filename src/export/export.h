// export.h - writes a run's newest checkpoint as a folder that Hugging Face tools load, and checks
// it by reading it back.
//
// Place: api/export.c calls it. A checkpoint already has the weights under their Hugging Face
// names. An export adds what other tools need: the config.json and tokenizer of the source folder
// (the folder that the run was fine-tuned from), the element type and the shard size that the user
// wants, and a model card.
//
//   OUT_DIR/
//       config.json                       the source's, with element type and architecture set
//       model.safetensors                 or model-0000i-of-0000n.safetensors and their index
//       tokenizer.json, ...               copied; for a byte model the built-in one as a file
//       generation_config.json, README.md
//       haggle.json                       which checkpoint it was, size and hash of all other files
//
// A run that trained an adapter gives the folder that PEFT reads: adapter_config.json and
// adapter_model.safetensors instead of config.json and weights. With merge it gives a whole model,
// whose weights are the base's plus the adapter's product.
//
// Invariants:
//   1. OUT_DIR appears whole or not at all. All files are written and checked in
//      OUT_DIR.tmp-export, which is renamed at the very end and removed on any failure.
//   2. What is exported is what was trained. Every element of every weight is compared with the
//      checkpoint's, rounded. Logits and loss are compared between two new sessions, one on each
//      folder.
//   3. Tensors stream: the only copy of the model in memory is the one in the check's session.
#ifndef HAGGLE_EXPORT_EXPORT_H
#define HAGGLE_EXPORT_EXPORT_H

#include "base/dtype.h"
#include "base/json.h"
#include "base/sentences.h"
#include "export/gguf.h"
#include "knob/knob.h"
#include "train/checkpoint.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>

enum { EXPORT_NAME_BYTES = 64 };

struct export_options {
    const char *run_dir; // or a checkpoint's folder; RUN/interactive: the run's second model
    bool best;           // of a run, the checkpoint of the best validation, not the newest
    const char *out_dir;
    const char *source;        // the source folder; NULL: the one the checkpoint names
    bool as_source;            // each tensor in its type in the source; false: all in dtype
    enum dtype dtype;          // DTYPE_F32, DTYPE_BF16, DTYPE_F16
    uint64_t shard_bytes;      // most bytes of tensors per file; a larger tensor gets its own file
    const struct knobs *knobs; // device, threads, memory of the check
    bool merge;                // write an adapter and its base as one model
    const char *data;          // validation data for the loss of a merge; NULL: the run's
    const char *probe;         // file for what the check computed (check.c); NULL: none
    enum gguf_type gguf;       // of export_gguf: the type of matrices
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
    // Of a merge, on validation data, in float32. tokens 0: not measured.
    double loss_before, loss_after;
    int64_t loss_tokens;
    struct sentences remarks; // what other programs do with what was written
    // Of a GGUF file, whose path is out_dir. architecture NULL: it is a folder.
    const char *architecture, *tokenizer;
    int64_t tensors;
    bool chat; // it has a chat template
};

// RUN/interactive is not a folder. It stands for the second model in the run's newest checkpoint,
// whose folder goes to out. Any other path: out is "".
int export_find_second(const char *path, const struct checkpoint_listener *listener,
                       char out[PATH_MAX], struct err *e);

// ERR_USAGE when OUT_DIR exists and is not empty. ERR_IO when the disk has no room. ERR_NUMERIC
// when a figure of the check exceeds its limit, or a weight is not finite in the requested type.
// Call export_free afterwards, also after a failure.
int export_run(const struct export_options *o, struct export_result *out, struct err *e);
// Writes a GGUF file (gguf.h) to out_dir, which must not exist, and reads it back. run_dir may also
// be a Hugging Face folder. ERR_UNSUPPORTED, by name, for what llama.cpp cannot represent. Options
// of the folder (dtype, shards, data) are not looked at.
int export_gguf(const struct export_options *o, struct export_result *out, struct err *e);
// The check alone, for a folder that was exported before. It compares with the checkpoint that was
// exported, which the run must still have. ERR_NUMERIC as above.
int export_check(const struct export_options *o, struct export_result *out, struct err *e);
void export_free(struct export_result *r);
void export_print(const struct export_result *r, FILE *f);
void export_put_json(const struct export_result *r, struct json_writer *w); // members of an object

// ERR_IO, with both figures, when the filesystem that would hold `path` has less than `bytes` free.
int export_check_space(const char *path, uint64_t bytes, struct err *e);

#endif
