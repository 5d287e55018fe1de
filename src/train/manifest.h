// manifest.h - what a checkpoint says about itself: manifest.json, written last and believed only
// when it verifies.
//
// Place: checkpoint.c writes one per checkpoint and reads them back; nobody else parses them.
//
// Invariants: the first line holds a hash of every byte after it, so a changed bit anywhere in the
// file is seen; the rest is read as hostile input (base/json.h), every key once, none unknown, every
// number in its range; file names come from a fixed list and are never paths.
#ifndef HAGGLE_TRAIN_MANIFEST_H
#define HAGGLE_TRAIN_MANIFEST_H

#include "base/hash.h"
#include "base/region.h"
#include "knob/knob.h"

#include "train/scale.h"

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

struct manifest_file {
    uint64_t bytes;
    char hash[HASH_TEXT_BYTES];
};

// Where a run stands, besides its tensors.
struct train_state {
    int64_t step;                  // steps done
    uint64_t position;             // samples consumed (data/loader.h)
    uint64_t tokens;               // computed on
    uint64_t trained_tokens;       // of these, with a target
    int64_t skipped_steps;         // gradients were not finite
    int64_t empty_steps;           // had nothing to train on
    int64_t guest_updates;         // by training requests (guest.h), beside the steps
    struct loss_scale scale;       // of the next step
    char dataset[HASH_TEXT_BYTES]; // fingerprint of the data
};

struct manifest {
    struct train_state state;
    int64_t seed;
    char math[HASH_TEXT_BYTES];       // knobs_hash over KNOB_MATH
    char identity[HASH_TEXT_BYTES];   // of the model's shape: hash of its config.json
    char model[MANIFEST_MODEL_BYTES]; // the same for people
    struct manifest_file files[MANIFEST_FILES];
    // Of the manifest of the second model, which is in a folder of its own beside the files; "": none.
    char second[HASH_TEXT_BYTES];
    const char *tool;              // "haggle 0.1.0", in strings when read
    const char *knobs[KNOB_COUNT]; // values as knobs_value writes them; NULL: not in the file
    struct region strings;
};

// Durable (base/file.h).
int manifest_write(const struct manifest *m, const char *path, struct err *e);
// ERR_IO, ERR_FORMAT; ERR_UNSUPPORTED for another version. Call manifest_free either way.
int manifest_read(struct manifest *m, const char *path, struct err *e);
void manifest_free(struct manifest *m);
// Hash of a manifest's file, every byte.
int manifest_hash(const char *path, char out[HASH_TEXT_BYTES], struct err *e);
// Puts every knob's value in m (texts live in m->strings) and their hash.
int manifest_set_knobs(struct manifest *m, const struct knobs *k, struct err *e);

#endif
