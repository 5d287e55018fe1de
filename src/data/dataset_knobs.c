// dataset_knobs.c - opens a dataset from knobs: finds the tokenizer, the template and the cache.
#include "data/dataset_impl.h"

#include "base/file.h"
#include "base/pool.h"
#include "model/shape.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

// Values of the knobs that mean the built-in tokenizer and no cache.
#define TOKENIZER_BYTES "bytes"
#define TOKENIZER_IDS   "ids"
#define CACHE_NONE      "none"

// The choices of these knobs and the enums of render.h are the same lists.
_Static_assert((int)DATA_SHAPE_AUTO == (int)RENDER_AUTO &&
                   (int)DATA_SHAPE_TEXT == (int)RENDER_TEXT &&
                   (int)DATA_SHAPE_COMPLETION == (int)RENDER_COMPLETION &&
                   (int)DATA_SHAPE_MESSAGES == (int)RENDER_MESSAGES &&
                   (int)DATA_SHAPE_ALPACA == (int)RENDER_ALPACA &&
                   (int)DATA_SHAPE_SHAREGPT == (int)RENDER_SHAREGPT &&
                   (int)DATA_SHAPE_TOKENS == (int)RENDER_TOKENS,
               "data.shape lists the shapes of render.h");
_Static_assert((int)DATA_LOSS_COMPLETION == (int)RENDER_LOSS_COMPLETION &&
                   (int)DATA_LOSS_ALL == (int)RENDER_LOSS_ALL,
               "data.loss lists the losses of render.h");

static bool is_corpus(const struct knobs *k) {
    return k->data_path[0] == '\0' || strcmp(k->data_path, DATASET_SYNTHETIC) == 0;
}

// ---------------------------------------------------------------- the tokenizer

// Finds the tokenizer.json to read ("" for bytes) and its folder ("" for none). Where the model's
// folder has no tokenizer.json, file is "" and dir is not: records of ids can be read without one.
static int find_tokenizer(const struct knobs *k, const char *model_dir, char file[PATH_MAX],
                          char dir[PATH_MAX], struct err *e) {
    file[0] = dir[0] = '\0';
    if (strcmp(k->tokenizer, TOKENIZER_BYTES) == 0 || strcmp(k->tokenizer, TOKENIZER_IDS) == 0)
        return 0;
    if (k->tokenizer[0] != '\0' && !file_is_dir(k->tokenizer)) {
        const char *slash = strrchr(k->tokenizer, '/');
        snprintf(file, PATH_MAX, "%s", k->tokenizer);
        snprintf(dir, PATH_MAX, "%.*s", slash != NULL ? (int)(slash - k->tokenizer) : 1,
                 slash != NULL ? k->tokenizer : ".");
        if (dir[0] == '\0')
            strcpy(dir, "/");
        return 0;
    }
    const char *folder = k->tokenizer[0] != '\0' ? k->tokenizer : model_dir;
    if (folder == NULL)
        return 0;
    TRY(file_join(file, PATH_MAX, folder, "tokenizer.json", e));
    snprintf(dir, PATH_MAX, "%s", folder);
    if (file_exists(file))
        return 0;
    char other[PATH_MAX];
    const bool piece =
        file_join(other, sizeof other, folder, "tokenizer.model", NULL) == 0 && file_exists(other);
    if (k->tokenizer[0] == '\0' && is_corpus(k) && !piece) { // the corpus can be read as bytes
        file[0] = dir[0] = '\0';
        return 0;
    }
    file[0] = '\0';
    if (k->tokenizer[0] == '\0')
        return 0;
    return err_set(e, ERR_USAGE, "%s has no tokenizer.json; set tokenizer to such a file", folder);
}

// For records of ids of a model whose folder has no tokenizer.
static int open_ids(struct tokenizer **out, const char *folder, struct err *e) {
    char path[PATH_MAX], why[PATH_MAX + 400];
    struct model_shape shape;
    TRY(file_join(path, sizeof path, folder, "tokenizer.model", e));
    const bool piece = file_exists(path);
    TRY(file_join(path, sizeof path, folder, "config.json", e));
    TRY(model_shape_read_config(&shape, path, e));
    snprintf(why, sizeof why,
             "%s has no tokenizer.json%s; set tokenizer to such a file, or to " TOKENIZER_BYTES
             " for a model that reads bytes; without a tokenizer only records of ids (input_ids) "
             "can be read",
             folder, piece ? " (it has a tokenizer.model, a format that is not supported)" : "");
    return tokenizer_open_ids(out, (int32_t)shape.vocab, why, e);
}

// vocab 0: any.
static int open_tokenizer(struct tokenizer **out, const struct knobs *k, const char *model_dir,
                          int64_t vocab, char file[PATH_MAX], char dir[PATH_MAX], struct err *e) {
    *out = NULL;
    file[0] = dir[0] = '\0';
    if (strcmp(k->tokenizer, TOKENIZER_IDS) == 0)
        return tokenizer_open_ids(out, vocab > 0 ? (int32_t)vocab : INT32_MAX,
                                  "tokenizer=" TOKENIZER_IDS
                                  ": only records of ids (input_ids) can be read, not text",
                                  e);
    TRY(find_tokenizer(k, model_dir, file, dir, e));
    return file[0]  ? tokenizer_open(out, file, e)
           : dir[0] ? open_ids(out, dir, e)
                    : tokenizer_open_bytes(out, e);
}

static int check_vocab(const struct tokenizer *t, const char *file, int64_t vocab, struct err *e) {
    if (vocab <= 0 || tokenizer_size(t) <= vocab)
        return 0;
    return err_set(e, ERR_MISMATCH,
                   "the tokenizer %s has %" PRId32
                   " ids, but the model has a vocabulary of %" PRId64
                   "; set tokenizer to the one that belongs to the model",
                   file[0] ? file : TOKENIZER_BYTES, tokenizer_size(t), vocab);
}

// ---------------------------------------------------------------- the dataset

// Returns NULL to keep the data in memory.
static const char *find_cache(const struct knobs *k, char path[PATH_MAX],
                              const struct shard_listener *l) {
    struct err e = {0};
    if (strcmp(k->data_cache, CACHE_NONE) == 0)
        return NULL;
    if (k->data_cache[0] != '\0')
        return k->data_cache;
    if (shard_default_cache(path, PATH_MAX, &e) == 0)
        return path;
    if (l->say != NULL)
        l->say(l->arg, LOG_WARN, e.text);
    return NULL;
}

static int open_renderer(struct renderer **out, const struct knobs *k, const struct tokenizer *t,
                         const char *dir, struct err *e) {
    const struct render_options o = {.tokenizer = t,
                                     .model_dir = dir[0] ? dir : NULL,
                                     .chat_template = k->data_template,
                                     .shape = (enum render_shape)k->data_shape,
                                     .loss = (enum render_loss)k->data_loss,
                                     .keys = k->data_keys,
                                     .system = k->data_system,
                                     .begin_with_end = dir[0] == '\0'};
    return renderer_open(out, &o, e);
}

int dataset_open_renderer(struct tokenizer **t, struct renderer **r, const struct knobs *k,
                          const char *model_dir, int64_t vocab, struct err *e) {
    char file[PATH_MAX], dir[PATH_MAX];
    *r = NULL;
    TRY(open_tokenizer(t, k, model_dir, vocab, file, dir, e));
    int rc = open_renderer(r, k, *t, dir, e);
    if (rc != 0) {
        tokenizer_close(*t);
        *t = NULL;
    }
    return rc;
}

enum reading { AS_TRAINING, WHOLE, DIVIDED };

// fraction: of the validation split.
static int open_with(struct dataset **out, const struct knobs *k, const char *model_dir,
                     int64_t vocab, enum reading how, double fraction,
                     const struct shard_listener *listener, struct err *e) {
    char file[PATH_MAX], dir[PATH_MAX], cache[PATH_MAX];
    struct tokenizer *t = NULL;
    struct renderer *r = NULL;
    *out = NULL;
    struct dataset_options o = {.paths = k->data_path,
                                .seed = (uint64_t)k->seed,
                                .seq = k->seq,
                                .validation_fraction = fraction,
                                .validation_paths = how == DIVIDED ? NULL : k->data_val_path,
                                .whole = how == WHOLE,
                                .by_text = how == DIVIDED,
                                .shape = (enum render_shape)k->data_shape,
                                .pack = k->data_pack,
                                .long_ = k->data_long,
                                .bad = k->data_bad,
                                .threads = k->threads > 0 ? (int)k->threads : pool_machine_cpus(),
                                .listener = *listener};
    int rc = open_tokenizer(&t, k, model_dir, vocab, file, dir, e);
    if (rc == 0)
        rc = check_vocab(t, file, vocab, e);
    if (rc == 0 && (file[0] || !is_corpus(k))) { // the corpus in bytes needs none of it
        rc = open_renderer(&r, k, t, dir, e);
        o.tokenizer = t;
        o.renderer = r;
        o.cache = find_cache(k, cache, listener);
    }
    if (rc == 0)
        rc = dataset_open(out, &o, e);
    if (rc == 0 && r != NULL) {
        (*out)->own_tokenizer = t;
        (*out)->own_renderer = r;
        return 0;
    }
    if (r != NULL)
        renderer_close(r);
    tokenizer_close(t);
    return rc;
}

int dataset_open_knobs(struct dataset **out, const struct knobs *k, const char *model_dir,
                       int64_t vocab, const struct shard_listener *listener, struct err *e) {
    return open_with(out, k, model_dir, vocab, AS_TRAINING, k->data_val, listener, e);
}

int dataset_open_whole(struct dataset **out, const struct knobs *k, const char *model_dir,
                       int64_t vocab, const struct shard_listener *listener, struct err *e) {
    return open_with(out, k, model_dir, vocab, WHOLE, k->data_val, listener, e);
}

int dataset_open_divided(struct dataset **out, const struct knobs *k, double validation_fraction,
                         const char *model_dir, int64_t vocab,
                         const struct shard_listener *listener, struct err *e) {
    return open_with(out, k, model_dir, vocab, DIVIDED, validation_fraction, listener, e);
}
