// adapter_file.h - adapters as files: the folder that Hugging Face's PEFT reads and writes, with
// adapter_config.json and adapter_model.safetensors. Both files are untrusted input.
//
// A setting that changes what the model computes, and that haggle does not compute, is refused by
// name. So is every setting that is unknown here and not empty, because it may be of that kind.
#ifndef HAGGLE_MODEL_ADAPTER_FILE_H
#define HAGGLE_MODEL_ADAPTER_FILE_H

#include "base/dtype.h"
#include "base/hash.h"
#include "base/sentences.h"
#include "model/adapter.h"

#define ADAPTER_CONFIG "adapter_config.json"

enum { ADAPTER_BASE_BYTES = 512, ADAPTER_WHOLE_BYTES = 4096 };

// ---------------------------------------------------------------- reading

struct adapter_config {
    struct adapter adapter;
    bool by_pattern; // target_modules is a regular expression: targets follow from the tensors
    char base[ADAPTER_BASE_BYTES];   // name or folder of the base, as the file has it; informs only
    char whole[ADAPTER_WHOLE_BYTES]; // modules_to_save, separated by commas; "": none
};

// Reads an adapter_config.json for a model of this shape. Every setting is checked.
int adapter_config_read(struct adapter_config *out, const char *path, const struct model_shape *s,
                        struct err *e);
// True if the adapter replaces this weight of the base as a whole (modules_to_save).
bool adapter_config_replaces(const struct adapter_config *c, const struct model_param *weight);

// The same for a folder. Where target_modules is a regular expression, the tensors say what it
// matched.
int adapter_config_open(struct adapter_config *out, const char *dir, const struct model_shape *s,
                        struct err *e);

struct adapter_file;
// Opens a folder. After 0 the file has exactly the tensors that the settings ask for, with the
// right shapes and finite values.
int adapter_file_open(struct adapter_file **out, const char *dir, const struct model_shape *s,
                      struct err *e);
void adapter_file_close(struct adapter_file *f); // NULL is accepted
const struct adapter_config *adapter_file_config(const struct adapter_file *f);
// The type with the fewest digits among its tensors.
enum dtype adapter_file_narrowest(const struct adapter_file *f);
// Elements [first, first + n) of a tensor of the adapter, or of a weight that it replaces, as a
// floating-point type. Several threads may call this at once.
int adapter_file_read(struct adapter_file *f, const struct model_param *p, int64_t first, int64_t n,
                      void *out, enum dtype type, struct err *e);

// ---------------------------------------------------------------- writing

struct adapter_save {
    const struct adapter *adapter;
    const struct model_shape *shape;
    const char *base; // written as the base's name; NULL: none
    enum dtype dtype; // of the tensors
    // True for a weight of the base that was trained as a whole. NULL: none was.
    bool (*whole)(void *arg, const struct model_param *weight);
    // Elements [first, first + n) of a tensor of the adapter, or of a weight of the base.
    int (*read)(void *arg, const struct model_param *p, int64_t first, int64_t n, float *out,
                struct err *e);
    void *arg;
};

// ERR_UNSUPPORTED when PEFT's files cannot say what was trained.
int adapter_save_check(const struct adapter_save *o, struct err *e);
// The text of an adapter_config.json, malloc'd. It has only settings that PEFT 0.7 and all later
// releases know. The scale of rslora is written as an alpha, because some readers lack rslora.
int adapter_save_config(const struct adapter_save *o, char **text, size_t *bytes, struct err *e);
// An upper bound of the bytes of the tensors' file.
uint64_t adapter_save_bytes(const struct adapter_save *o);
// Writes the tensors. hash and bytes are the finished file's.
int adapter_save_weights(const struct adapter_save *o, const char *path, char hash[HASH_TEXT_BYTES],
                         uint64_t *bytes, struct err *e);
// What other programs do with the files that differs from what PEFT does, a sentence each.
void adapter_save_remarks(const struct adapter_save *o, struct sentences *out);

#endif
