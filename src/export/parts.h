// parts.h - what the files of this folder share. Private to them.
//
//   export.c         the order of things: checkpoint, source, folder, check, rename
//   write.c   weights: types, shards, index
//   files.c   all other files: config, tokenizer, card, haggle.json
//   check.c   reading the folder back
//   adapter.c an adapter: its base, its files, and the two merged
//   losses.c  the loss on data before and after merging
//   chat.c    the chat template and end tokens that the run used
//   bytes.c   the built-in byte tokenizer as a tokenizer.json
//   ids.c     ids of fixed texts by both tokenizers
//   quantize_folder.c a folder again, with its matrices quantized
#ifndef HAGGLE_EXPORT_PARTS_H
#define HAGGLE_EXPORT_PARTS_H

#include "model/load.h"
#include "export/export.h"
#include "model/adapter_file.h"
#include "model/adapter_merge.h"

#define EXPORT_MANIFEST "haggle.json"
#define EXPORT_INDEX    "model.safetensors.index.json"
enum { EXPORT_VERSION = 1, EXPORT_BLOCK = 1 << 18 }; // elements converted at a time

struct export_item { // one tensor
    struct model_param param;
    enum dtype dtype;
    int64_t elements;
    int64_t shard; // from 0
};

struct export_chat {
    char *source, *eos, *bos; // as JSON texts; NULL: what the copied files say stays
    int32_t ends[2];          // of a document, of an assistant's turn
    size_t n_ends;
};

// A checkpoint of an adapter. adapter.rank 0: it holds a model.
struct export_adapter {
    struct adapter adapter;
    struct knobs knobs;          // the run's: model, seed, lora.*, train.*; the others are defaults
    struct model_shape shape;    // of the base
    struct safetensors *trained; // the checkpoint's tensors
    struct weights *base;        // NULL: a built-in shape, whose weights follow from the seed
    struct adapter_merge *merge; // NULL: the adapter is written as it is
    struct adapter_save save;
    enum dtype narrowest; // of the exported adapter's tensors
};

struct exporter {
    const struct export_options *o;
    struct export_result *out;
    struct manifest manifest; // of the checkpoint
    struct model_shape shape;
    bool has_source;
    char source_name[128];         // model_shape.name of the source: "org/name", "name"
    bool bytes;                    // the run read text as bytes: write the built-in tokenizer
    char tokenizer_dir[PATH_MAX];  // folder whose tokenizer files are copied; "": none
    char tokenizer_file[PATH_MAX]; // its tokenizer.json, maybe under another name; "": none
    char dir[PATH_MAX];            // the folder that is being written or checked
    struct weights *weights;       // the checkpoint's; NULL: it holds an adapter
    bool merges;                   // an adapter is written as a whole model
    struct export_adapter adapter;
    struct export_item *items; // in the fixed order of parameters
    int64_t n_items, shards;
    struct export_chat chat;
    struct err *e;
};

// ---- export.c
// The folder to write, without slashes behind it, into `path`. ERR_USAGE when it is not new or
// empty.
int export_check_target(const char *given, char path[PATH_MAX], struct err *e);
// Makes the temporary folder beside the target, empty and locked. What a crash left there is
// removed.
int export_open_folder(const char *target, const struct checkpoint_listener *listener,
                       char dir[PATH_MAX], int *fd, struct err *e);
// Gives it its name when rc is 0, else removes it. Returns rc, or why it could not get its name.
int export_close_folder(const char *dir, const char *target,
                        const struct checkpoint_listener *listener, int fd, int rc, struct err *e);

// ---- write.c
// Chooses the type and the shard of every tensor.
int export_plan_weights(struct exporter *x);
uint64_t export_weights_bytes(const struct exporter *x); // an upper bound
int export_write_weights(struct exporter *x);

// ---- adapter.c
// Opens the tensors of the checkpoint; then, when the source is known, those of an adapter's base.
int export_open_trained(struct exporter *x);
int export_open_base(struct exporter *x);
void export_close_adapter(struct exporter *x);
bool export_is_adapter(const struct exporter *x);     // the checkpoint holds one
bool export_writes_adapter(const struct exporter *x); // and it is written as one
// Elements of a weight of the model that is exported.
int export_read(struct exporter *x, const struct model_param *p, int64_t first, int64_t n,
                float *out);
int export_write_adapter(struct exporter *x);
int export_check_adapter(struct exporter *x);

// ---- files.c
int export_note_file(struct exporter *x, const char *name, uint64_t bytes, const char *hash);
int export_write_file(struct exporter *x, const char *name, const void *data, size_t bytes);
uint64_t export_copied_bytes(const struct exporter *x); // of what is copied from other folders
int export_write_files(struct exporter *x);             // everything but the weights
bool export_has_file(const char *dir, const char *name);
// Reads dir/haggle.json: the files into out->files, the step, and the hash of the checkpoint's
// weights.
int export_read_manifest(struct exporter *x, const char *dir, int64_t *step,
                         char model_hash[HASH_TEXT_BYTES]);
bool export_has_tokenizer(const char *dir);
// Copies what belongs to a model beside weights and config.json, from x->out->source.
int export_copy_beside(struct exporter *x);
// A tokenizer_config.json for a tokenizer.json without one. *text is malloc'd.
int export_tokenizer_class(struct exporter *x, char **text, size_t *bytes);

// ---- check.c
int export_check_folder(struct exporter *x);
// A model to ask: a folder, with or without an adapter.
struct export_subject {
    bool checkpoint; // what the run trained; false: what was exported
};
// The knobs of a session on it. Compute is in float32, with the user's choice of device.
int export_subject_knobs(const struct exporter *x, const struct export_subject *who,
                         struct knobs *k);
// What a session needs beside what its plan says. Call it when the plan is loaded.
int export_subject_fill(const struct exporter *x, const struct export_subject *who,
                        struct session *s);
int export_add_figure(struct exporter *x, const char *name, double value, double limit);

// ---- losses.c
// Measures the loss on validation data before and after merging. Without such data it says so.
int export_compare_losses(struct exporter *x);

// ---- chat.c
// Finds out what the run used. Where that is what the copied files say, x->chat has no source.
int export_find_chat(struct exporter *x);
void export_free_chat(struct exporter *x);
// Puts the end tokens into the text of a config.json or a generation_config.json (a list).
int export_edit_ends(struct exporter *x, const char *name, bool list, char **text, size_t *bytes);
// Writes tokenizer_config.json with the template, if it has to be written.
int export_write_template(struct exporter *x);

// ---- bytes.c
// tokenizer.json and tokenizer_config.json of the built-in byte tokenizer.
int export_write_byte_tokenizer(struct exporter *x);

// ---- ids.c
// Compares the ids of fixed texts by the exported tokenizer.json with those of the source's
// tokenizer (or of the built-in one).
int export_check_tokens(struct exporter *x);
// Writes the member "texts" of a probe: the ids of the fixed texts by the exported tokenizer.
int export_put_texts(struct exporter *x, struct json_writer *w);

#endif
