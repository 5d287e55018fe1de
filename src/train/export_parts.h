// export_parts.h - what the files of an export share; for no one else.
//
//   export.c         the order of things: checkpoint, source, folder, check, rename
//   export_write.c   weights: types, shards, index
//   export_files.c   all other files: config, tokenizer, card, haggle.json
//   export_check.c   reading back
//   export_bytes.c   the built-in byte tokenizer as a tokenizer.json
//   export_ids.c     ids of fixed texts by both tokenizers
#ifndef HAGGLE_TRAIN_EXPORT_PARTS_H
#define HAGGLE_TRAIN_EXPORT_PARTS_H

#include "model/load.h"
#include "train/export.h"

#define EXPORT_MANIFEST "haggle.json"
#define EXPORT_INDEX    "model.safetensors.index.json"
enum { EXPORT_VERSION = 1, EXPORT_BLOCK = 1 << 18 }; // elements converted at a time

struct export_item { // one tensor
    struct model_param param;
    enum dtype dtype;
    int64_t elements;
    int64_t shard; // from 0
};

struct exporter {
    const struct export_options *o;
    struct export_result *out;
    struct manifest manifest; // of the checkpoint
    struct model_shape shape;
    bool has_source;
    char source_name[128];         // what its config.json makes of its folder: "org/name", "name"
    bool bytes;                    // text was bytes: the built-in tokenizer is written
    char tokenizer_dir[PATH_MAX];  // whose tokenizer files are copied; "": none
    char tokenizer_file[PATH_MAX]; // its tokenizer.json, whatever it is called; "": none
    char dir[PATH_MAX];            // the folder in work
    struct weights *weights;       // the checkpoint's
    struct export_item *items;     // in the fixed order of parameters
    int64_t n_items, shards;
    struct err *e;
};

void export_say(const struct exporter *x, enum log_level level, const char *format, ...)
    ERR_PRINTF(3, 4);

// ---- export_write.c
// Types and shards of all tensors.
int export_plan_weights(struct exporter *x);
uint64_t export_weights_bytes(const struct exporter *x); // never less than they will take
int export_write_weights(struct exporter *x);

// ---- export_files.c
int export_note_file(struct exporter *x, const char *name, uint64_t bytes, const char *hash);
int export_write_file(struct exporter *x, const char *name, const void *data, size_t bytes);
uint64_t export_copied_bytes(const struct exporter *x); // of what is copied from other folders
int export_write_files(struct exporter *x);             // everything but the weights
// Reads dir/haggle.json: files into out->files, the step and the hash of the checkpoint's weights.
int export_read_manifest(struct exporter *x, const char *dir, int64_t *step,
                         char model_hash[HASH_TEXT_BYTES]);
bool export_has_tokenizer(const char *dir);

// ---- export_check.c
int export_check_folder(struct exporter *x);
int export_add_figure(struct exporter *x, const char *name, double value, double limit);

// ---- export_bytes.c
// tokenizer.json and tokenizer_config.json of the built-in byte tokenizer.
int export_write_byte_tokenizer(struct exporter *x);

// ---- export_ids.c
// Ids of fixed texts by the exported tokenizer.json against the source's (or the built-in one's).
int export_check_tokens(struct exporter *x);
// Member "texts" of a probe: what the exported tokenizer makes of the fixed texts.
int export_put_texts(struct exporter *x, struct json_writer *w);

#endif
