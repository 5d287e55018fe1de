// gguf_parts.h - what the files of this folder that make a GGUF file share. Private to them.
//
//   gguf_export.c   the order of things: source, plan, write, read back, rename
//   gguf_model.c    which tensors and numbers a model becomes, and what cannot be written
//   gguf_vocab.c    which tables a tokenizer becomes, and what cannot be written
#ifndef HAGGLE_EXPORT_GGUF_PARTS_H
#define HAGGLE_EXPORT_GGUF_PARTS_H

#include "export/gguf.h"
#include "export/parts.h"
#include "model/family.h"
#include "model/tokenizer.h"

// How the rows of a tensor lie in the source.
enum gguf_order {
    GGUF_ROWS,      // as in the file: [out, in], or a vector
    GGUF_COLUMNS,   // the source has [in, out] (GPT-2): a row is a column there
    GGUF_ROTARY,    // rows of a head interleave its two halves (architecture llama)
    GGUF_FREQUENCY, // not in the source: factors of the rotary frequencies
};

struct gguf_item { // one tensor of the file
    struct model_param param;
    char name[GGUF_NAME_BYTES];
    enum gguf_type type;
    enum gguf_order order;
    int64_t rows, columns;
    int64_t head; // GGUF_ROTARY: rows of a head
};

// ERR_UNSUPPORTED when llama.cpp has no such model. The message says which part, and what to do.
int gguf_model_check(const struct model_shape *s, struct err *e);
const char *gguf_model_architecture(const struct model_shape *s); // "llama"
void gguf_model_put(struct gguf_head *h, const struct model_shape *s);
// The tensors of a model, in the order of its parameters; `wanted` is the type of the matrices. The
// list is malloc'd.
int gguf_model_items(const struct model_shape *s, enum gguf_type wanted, struct gguf_item **out,
                     int64_t *n, struct err *e);
// Rows that are read at a time: a multiple of what the order needs.
int64_t gguf_model_band(const struct gguf_item *t);
// Reads rows [first, first + n) of a tensor, as the file has them. scratch has room for as many
// elements as out.
int gguf_model_read(struct exporter *x, const struct gguf_item *t, int64_t first, int64_t n,
                    float *out, float *scratch);

struct gguf_vocabulary {
    const struct tokenizer *tokenizer; // NULL: the model has none
    int64_t size;                      // ids of the model
    int32_t begin, end, turn_end;      // ids; -1: none
    bool add_begin;                    // texts begin with the first one
    const char *chat_template;         // with its bytes; NULL: none
    size_t template_bytes;
};
// Adds the tables. ERR_UNSUPPORTED when llama.cpp has no such tokenizer. What it does differently
// is added to notes.
int gguf_vocab_put(struct gguf_head *h, const struct gguf_vocabulary *v, const char **kind,
                   struct sentences *notes, struct err *e);

#endif
