// quantize_folder.h - writes a model folder again with its matrices quantized (model/quantize.h),
// and checks it by reading it back.
//
//   OUT_DIR/
//       config.json          the source's, with "quantization_config" (model/quantized.h)
//       model.safetensors    NAME.q, NAME.scales, NAME.minima; vectors as in the source
//       tokenizer.json, ...  copied
//
// Invariants:
//   1. OUT_DIR appears whole or not at all: it is written and checked beside its place.
//   2. Tensors stream: one matrix is in memory at a time, rounded, and some of its rows as they
//      were.
#ifndef HAGGLE_EXPORT_QUANTIZE_FOLDER_H
#define HAGGLE_EXPORT_QUANTIZE_FOLDER_H

#include "base/json.h"
#include "base/pool.h"
#include "base/sentences.h"
#include "model/quantize.h"
#include "model/quantized.h"
#include "train/checkpoint.h"
#include "train/powers.h"
#include "train/tuned.h"

#include <limits.h>
#include <signal.h>
#include <stdio.h>

struct quantize_folder {
    const char *source;  // a model's folder
    const char *out_dir; // new or empty
    const char *keep;    // weights that stay wide: names as in train.also, by commas; NULL: none
    const char *wider;   // weights that are int8 in an int4 folder, as above; NULL: none
    struct quantize_options how;
    const struct powers *powers; // for the methods that want them; NULL: not known
    const struct tuned *tuned;   // matrices whose bytes are chosen already; NULL: none
    struct pool *pool;
    struct checkpoint_listener listener;
    const volatile sig_atomic_t *stop; // set: nothing is written; NULL: never
    // Called with the folder when it is written and read back, before it gets its name; NULL: not.
    int (*check)(void *arg, const char *dir, struct err *e);
    void *check_arg;
};

struct quantize_summary {
    char out_dir[PATH_MAX];
    struct quantize_options how;
    const char *wider;                  // the caller's list
    struct quantized stored;            // what went to config.json
    int64_t matrices;                   // in the format asked for
    uint64_t bytes_before, bytes_after; // of all weights
    double error;                       // relative, of all quantized matrices together
    char worst[128];                    // the matrix with the largest relative error
    double worst_error;
};

// Which matrices of the model are stored how: those that are kept, those that are wider, those
// whose rows are no whole groups. `matrices`: how many are in the format asked for. ERR_USAGE when
// a list names nothing, or when none is left.
int quantize_choose(const struct quantize_folder *q, const struct model_shape *shape,
                    struct quantized *out, int64_t *matrices, struct err *e);

// Call quantize_free afterwards, also after a failure.
int quantize_folder(const struct quantize_folder *q, struct quantize_summary *out, struct err *e);
void quantize_free(struct quantize_summary *s);
void quantize_print(const struct quantize_summary *s, FILE *f);
void quantize_put_json(const struct quantize_summary *s, struct json_writer *w); // members

#endif
