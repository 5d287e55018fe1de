// manifest.h - manifest.json, which describes a checkpoint. It is written last and trusted only
// when its hash matches.
//
// Place: checkpoint.c writes one per checkpoint. resume.c, export.c and source.c read them with
// manifest_read. No other code parses them.
//
// Invariants:
//   1. The first line holds a hash of every byte after it, so any changed bit is noticed.
//   2. The content is not trusted (base/json.h): every key occurs once, none is unknown, every
//      number is in its range.
//   3. File names come from a fixed list and are never paths.
#ifndef HAGGLE_TRAIN_MANIFEST_H
#define HAGGLE_TRAIN_MANIFEST_H

#include "base/hash.h"
#include "base/region.h"
#include "knob/knob.h"

#include "train/judge.h"
#include "train/scale.h"

#include <stdbool.h>
#include <stdint.h>

#define MANIFEST_NAME "manifest.json"
enum { MANIFEST_VERSION = 2, MANIFEST_MAX_BYTES = 1 << 20, MANIFEST_MODEL_BYTES = 256 };

// The files of a checkpoint: enum, name.
#define MANIFEST_FILE_LIST(X)                                                                      \
    X(MANIFEST_MODEL, "model.safetensors")                                                         \
    X(MANIFEST_OPTIMIZER, "optimizer.safetensors")                                                 \
    X(MANIFEST_CONFIG, "config.json")

enum manifest_file_id {
#define X(id, name) id,
    MANIFEST_FILE_LIST(X)
#undef X
        MANIFEST_FILES
};
const char *manifest_file_name(int id);
// The same in a checkpoint of an adapter, which has adapter_model.safetensors (model/adapter.h)
// instead of the first.
const char *manifest_name_of(int id, bool of_adapter);

struct manifest_file {
    uint64_t bytes;
    char hash[HASH_TEXT_BYTES];
};

// The progress of a run, apart from its tensors.
struct train_state {
    int64_t step;                  // steps done
    uint64_t position;             // samples consumed (data/loader.h)
    uint64_t tokens;               // tokens computed
    uint64_t trained_tokens;       // tokens with a target
    int64_t skipped_steps;         // steps whose gradients were not finite
    int64_t empty_steps;           // steps without a trained token
    int64_t guest_updates;         // updates by training requests (guest.h), beside the steps
    struct loss_scale scale;       // of the next step
    struct best_eval best;         // of the validations, if save.best or stop.patience asks
    struct loss_watch watch;       // of the steps
    char dataset[HASH_TEXT_BYTES]; // fingerprint of the data
};

struct manifest {
    struct train_state state;
    int64_t seed;
    char math[HASH_TEXT_BYTES];       // knobs_hash over KNOB_MATH
    char identity[HASH_TEXT_BYTES];   // of the model's shape: hash of its config.json
    char model[MANIFEST_MODEL_BYTES]; // the shape in words
    struct manifest_file files[MANIFEST_FILES];
    // Hash of the second model's manifest, which is in a folder beside the files; "": none.
    char second[HASH_TEXT_BYTES];
    // Of a checkpoint that holds an adapter: the weights it belongs to (checkpoint_base), and what
    // they are called. "": it holds a model.
    char base[HASH_TEXT_BYTES];
    const char *base_name;
    bool names_adapter;            // one of its files is that of an adapter; set by manifest_read
    const char *tool;              // "haggle 0.1.0"; after manifest_read it is in `strings`
    const char *knobs[KNOB_COUNT]; // values as knobs_value writes them; NULL: not in the file
    struct region strings;
};

// Writes durably (base/file.h).
int manifest_write(const struct manifest *m, const char *path, struct err *e);
// ERR_IO, ERR_FORMAT; ERR_UNSUPPORTED for another version. Call manifest_free afterwards, also
// after a failure.
int manifest_read(struct manifest *m, const char *path, struct err *e);
void manifest_free(struct manifest *m);
// Hash of a manifest's whole file.
int manifest_hash(const char *path, char out[HASH_TEXT_BYTES], struct err *e);
// Copies every knob's value into m (the texts are in m->strings) and sets m->math and m->seed.
int manifest_set_knobs(struct manifest *m, const struct knobs *k, struct err *e);

#endif
