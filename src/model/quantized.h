// quantized.h - which weights of a model folder are quantized, and how: the member
// "quantization_config" of its config.json.
//
//     "quantization_config": {
//         "quant_method": "haggle", "version": 1,
//         "format": "int4", "group": 32, "minima": false,
//         "other": {"model.layers.0.mlp.down_proj.weight": "int8", "lm_head.weight": "wide"}
//     }
//
// Every matrix is in the format, but for those that "other" names: they are int8, or "wide" (16 or
// 32 bits, as any weight). Vectors and GPT-2's table of positions are always wide. In the weight
// files, a quantized matrix NAME [out, in] is two or three tensors, which are the parts of
// base/storage.h: NAME.q (I8 [out, in], or U8 [out, in / 2]), NAME.scales (F32 [out], or F16
// [out, groups]) and with minima NAME.minima (F16 [out, groups]).
//
// The file is untrusted: everything is checked against the shape, and what is unknown is refused.
#ifndef HAGGLE_MODEL_QUANTIZED_H
#define HAGGLE_MODEL_QUANTIZED_H

#include "base/json.h"
#include "base/storage.h"
#include "model/safetensors.h"
#include "model/shape.h"

enum { QUANTIZED_VERSION = 1 };

struct quantized_other {
    char name[128]; // of a parameter
    struct storage storage;
};

// All zero: nothing is quantized.
struct quantized {
    struct storage storage; // of every matrix that is not listed
    struct quantized_other *others;
    size_t n_others, capacity;
};

// Reads what dir/config.json says. A folder that is not quantized gives an empty struct.
int quantized_read(struct quantized *out, const char *dir, const struct model_shape *shape,
                   struct err *e);
void quantized_free(struct quantized *s);
static inline bool quantized_any(const struct quantized *s) {
    return s && !storage_plain(s->storage);
}
// Whether a parameter can be quantized at all: a matrix that a product or the embedding reads.
bool quantized_can(const struct model_param *p);
// How a parameter is stored. `s` may be NULL.
struct storage quantized_as(const struct quantized *s, const struct model_param *p);
// The dimensions of a parameter as a quantized matrix: [out, in] in every family.
void quantized_turn(const struct model_shape *shape, struct model_param *p);
// Adds a matrix that is stored in another way.
int quantized_add(struct quantized *s, const char *name, struct storage storage, struct err *e);
// Writes the object of quantization_config.
void quantized_put_json(const struct quantized *s, struct json_writer *w);

// ---------------------------------------------------------------- the tensors (quantized_file.c)

enum { QUANTIZED_TENSORS = 3, QUANTIZED_NAME_BYTES = 160 };

// The tensors of a quantized matrix in a file. Returns how many: 2, or 3 with minima.
struct quantized_tensor {
    char name[QUANTIZED_NAME_BYTES];
    enum dtype dtype;
    int rank;
    int64_t dims[2];
    uint64_t at, bytes; // inside the matrix in memory (base/storage.h)
};
int quantized_tensors(struct storage s, const struct model_param *turned,
                      struct quantized_tensor out[QUANTIZED_TENSORS]);
// Whether the weights hold this parameter as a quantized one, whatever the configuration says.
bool quantized_holds(const struct weights *w, const char *param);
// Reads a quantized matrix as a whole and checks it: types, dimensions, scales, minima, codes.
int quantized_load(struct weights *w, struct storage s, const struct model_param *turned, void *out,
                   struct err *e);

#endif
