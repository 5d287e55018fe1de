// weights.c - the weights of a model folder as one set of names, whatever the number of files.
//
// If model.safetensors exists it is used, as in transformers. Otherwise the shards that
// model.safetensors.index.json names are used. The index is untrusted input, and it chooses which
// files are opened. Its values must therefore be plain file names that resolve inside the folder,
// and what it says about each tensor is compared with the shards. After weights_open returns 0,
// every name belongs to exactly one shard. Memory stays below 16 MiB plus four times the index, in
// addition to what each shard takes (see safetensors.c). For that reason the text is freed before
// names are compared.
#include "model/names.h"
#include "model/safetensors.h"

#include "base/checked.h"
#include "base/file.h"
#include "base/json.h"
#include "base/region.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum {
    INDEX_MAX_BYTES = 100000000,
    INDEX_TENSORS_MAX = 1000000,
    SHARDS_MAX = 10000,
    FILE_NAME_MAX = 255,
    LISTED_MIN_BYTES = 20, // "a":".safetensors",
    SCRATCH_BYTES = 1 << 20,
};

static const char single_name[] = "model.safetensors";
static const char index_name[] = "model.safetensors.index.json";

struct shard {
    const char *file; // name inside the folder
    struct safetensors *st;
    size_t first; // number of tensors in the shards before this one
};

struct weights {
    char dir[PATH_MAX];
    struct region region; // shards and their names
    struct shard *shards;
    size_t shard_count, shard_capacity, count;
    struct names names; // -> position over all shards; unused with a single file
};

// The content of the index, while it is compared with the shards.
struct index {
    char path[PATH_MAX];
    struct region strings; // tensor names; file names are kept once each, with the shards
    struct names files;    // -> shard
    struct listed {
        const char *tensor;
        uint32_t shard;
    } * listed;
    size_t count, capacity;
    bool has_total;
    int64_t total_bytes;
};

static int put_name(struct names *t, const char *name, uint32_t value, bool *fresh,
                    const char *path, struct err *e) {
    int rc = names_put(t, name, value, fresh, e);
    if (rc != 0)
        err_context(e, "%.400s", path);
    return rc;
}

// ---- the folder ----

static int add_shard(struct weights *w, const char *file, struct err *e) {
    void *grown =
        region_grow(&w->region, w->shards, w->shard_count, &w->shard_capacity, sizeof *w->shards);
    char *copy = region_copy(&w->region, file);
    if (grown == NULL || copy == NULL)
        return err_set(e, ERR_MEMORY, "no memory for the list of weight files");
    w->shards = grown;
    w->shards[w->shard_count++] = (struct shard){.file = copy};
    return 0;
}

static bool ends_with(const char *text, const char *ending) {
    size_t n = strlen(text), m = strlen(ending);
    return n >= m && strcmp(text + n - m, ending) == 0;
}

struct found {
    char pickle[FILE_NAME_MAX + 1], tensors[FILE_NAME_MAX + 1];
};

static int note_file(void *arg, const char *name) {
    static const char *const pickles[] = {".bin",    ".pt",   ".pth",           ".pkl",
                                          ".pickle", ".ckpt", ".bin.index.json"};
    struct found *f = arg;
    if (f->tensors[0] == '\0' && ends_with(name, ".safetensors"))
        snprintf(f->tensors, sizeof f->tensors, "%s", name);
    for (size_t i = 0; i < sizeof pickles / sizeof pickles[0]; i++)
        if (f->pickle[0] == '\0' && ends_with(name, pickles[i]))
            snprintf(f->pickle, sizeof f->pickle, "%s", name);
    return 0;
}

// The folder has no weights to open. The error says what is there and what is accepted.
static int explain_missing(const char *dir, struct err *e) {
    struct found f = {0};
    char quoted[NAMES_QUOTE_BYTES];
    TRY(file_list_dir(dir, note_file, &f, e));
    if (f.tensors[0] != '\0')
        return err_set(e, ERR_IO, "'%.300s' has %s but neither %s nor %s", dir,
                       names_quote(quoted, f.tensors), single_name, index_name);
    if (f.pickle[0] != '\0')
        return err_set(
            e, ERR_UNSUPPORTED,
            "'%.300s' has %s, a pickle file, which can run code when it is loaded; haggle reads "
            "safetensors only: convert the model to %s",
            dir, names_quote(quoted, f.pickle), single_name);
    return err_set(e, ERR_IO, "'%.300s' has no weights: neither %s nor %s", dir, single_name,
                   index_name);
}

// ---- reading the index ----

static int check_file_name(struct json_reader *r, const char *file) {
    char quoted[NAMES_QUOTE_BYTES];
    size_t n = strlen(file);
    if (n == 0 || n > FILE_NAME_MAX || strchr(file, '/') != NULL || strchr(file, '\\') != NULL ||
        strcmp(file, ".") == 0 || strcmp(file, "..") == 0)
        return json_fail(r, ERR_FORMAT,
                         "%s is not a plain file name; shards must be in the model's own folder",
                         names_quote(quoted, file));
    if (!ends_with(file, ".safetensors"))
        return json_fail(r, ERR_UNSUPPORTED,
                         "%s is not a .safetensors file, and haggle reads only those",
                         names_quote(quoted, file));
    return 0;
}

static int add_listed(struct json_reader *r, struct weights *w, struct index *x, const char *tensor,
                      const char *file) {
    uint32_t shard = (uint32_t)w->shard_count;
    bool fresh;
    TRY(check_file_name(r, file));
    if (!names_find(&x->files, file, &shard)) {
        if (w->shard_count == SHARDS_MAX)
            return json_fail(r, ERR_FORMAT, "the index names more than %d files", SHARDS_MAX);
        TRY(r->rc = add_shard(w, file, r->e));
        TRY(r->rc = put_name(&x->files, w->shards[shard].file, shard, &fresh, x->path, r->e));
    }
    if (x->count == INDEX_TENSORS_MAX)
        return json_fail(r, ERR_FORMAT, "the index names more than %d tensors", INDEX_TENSORS_MAX);
    if (x->count == x->capacity) {
        size_t wider = x->capacity + x->capacity / 2 + 64;
        size_t most = x->count + 1 + (size_t)(r->end - r->at) / LISTED_MIN_BYTES;
        if (wider > most) // the rest of the text cannot list more than this
            wider = most;
        void *p = realloc(x->listed, wider * sizeof *x->listed);
        if (p == NULL)
            return json_fail(r, ERR_MEMORY, "no memory for %zu names", wider);
        x->listed = p;
        x->capacity = wider;
    }
    x->listed[x->count++] = (struct listed){tensor, shard};
    return 0;
}

static int read_weight_map(struct json_reader *r, struct weights *w, struct index *x) {
    const char *tensor, *file;
    struct region *scratch = r->strings;
    int rc = json_enter_object(r);
    while (rc == 0) {
        r->strings = &x->strings;
        if (!json_next_key(r, &tensor))
            break;
        r->strings = scratch;
        rc = json_read_string(r, &file, NULL);
        if (rc == 0)
            rc = add_listed(r, w, x, tensor, file);
        if (scratch->bytes > SCRATCH_BYTES)
            region_free(scratch);
    }
    r->strings = scratch;
    return rc != 0 ? rc : r->rc;
}

static int read_index_metadata(struct json_reader *r, struct index *x) {
    const char *key;
    if (json_peek(r) != JSON_OBJECT)
        return json_skip(r);
    TRY(json_enter_object(r));
    while (json_next_key(r, &key)) {
        bool total = strcmp(key, "total_size") == 0;
        if (r->strings->bytes > SCRATCH_BYTES)
            region_free(r->strings);
        if (!total) {
            TRY(json_skip(r));
            continue;
        }
        if (x->has_total)
            return json_fail(r, ERR_FORMAT, "\"total_size\" is given twice");
        x->has_total = true;
        TRY(json_read_i64(r, &x->total_bytes));
    }
    return r->rc;
}

static int read_members(struct json_reader *r, struct weights *w, struct index *x) {
    const char *key;
    bool has_map = false, has_metadata = false;
    TRY(json_enter_object(r));
    while (json_next_key(r, &key)) {
        bool map = strcmp(key, "weight_map") == 0, metadata = strcmp(key, "metadata") == 0;
        if ((map && has_map) || (metadata && has_metadata))
            return json_fail(r, ERR_FORMAT, "\"%s\" is given twice", key);
        has_map = has_map || map;
        has_metadata = has_metadata || metadata;
        if (r->strings->bytes > SCRATCH_BYTES)
            region_free(r->strings);
        TRY(map ? read_weight_map(r, w, x) : metadata ? read_index_metadata(r, x) : json_skip(r));
    }
    TRY(json_finish(r));
    if (x->count == 0)
        return err_set(r->e, ERR_FORMAT, "%.400s: \"weight_map\" is missing or empty", x->path);
    return 0;
}

static int check_unique(const struct index *x, struct err *e) {
    char quoted[NAMES_QUOTE_BYTES];
    struct names tensors = {0};
    int rc = names_reserve(&tensors, x->count, e);
    for (size_t i = 0; rc == 0 && i < x->count; i++) {
        bool fresh;
        rc = put_name(&tensors, x->listed[i].tensor, (uint32_t)i, &fresh, x->path, e);
        if (rc == 0 && !fresh)
            rc = err_set(e, ERR_FORMAT, "%.400s: \"weight_map\" lists the tensor %s twice", x->path,
                         names_quote(quoted, x->listed[i].tensor));
    }
    names_free(&tensors);
    return rc;
}

static int read_index(struct weights *w, struct index *x, struct err *e) {
    char *text;
    size_t bytes;
    struct json_reader r;
    struct region scratch = {0};
    TRY(file_read_all(x->path, INDEX_MAX_BYTES, &text, &bytes, e));
    json_reader_init(&r, x->path, text, bytes, &scratch, e);
    int rc = read_members(&r, w, x);
    region_free(&scratch);
    free(text);
    return rc != 0 ? rc : check_unique(x, e);
}

// ---- opening what it names ----

static void parent_of(char *path) {
    char *slash = strrchr(path, '/');
    if (slash != NULL)
        *slash = '\0';
}

// Whether a resolved file may be read for this folder. It must be inside the folder, or in the
// cache that the folder is a snapshot of: <model>/snapshots/<commit>/x.safetensors links to
// <model>/blobs/<hash>.
static bool belongs(const char *real_dir, const char *real_file) {
    size_t n = strlen(real_dir);
    if (strncmp(real_file, real_dir, n) == 0 && real_file[n] == '/')
        return true;
    char model[PATH_MAX], holder[PATH_MAX];
    snprintf(model, sizeof model, "%s", real_dir);
    parent_of(model);
    if (!ends_with(model, "/snapshots"))
        return false;
    parent_of(model);
    snprintf(holder, sizeof holder, "%s", real_file);
    parent_of(holder);
    n = strlen(model);
    return strncmp(holder, model, n) == 0 && strcmp(holder + n, "/blobs") == 0;
}

static int open_shard(struct weights *w, struct shard *s, const char *index_path, struct err *e) {
    char path[PATH_MAX], real_dir[PATH_MAX], real_file[PATH_MAX], quoted[NAMES_QUOTE_BYTES];
    TRY(file_join(path, sizeof path, w->dir, s->file, e));
    if (realpath(w->dir, real_dir) == NULL || realpath(path, real_file) == NULL)
        return err_set(e, ERR_IO, "%.400s names the shard %s, which cannot be opened: %s",
                       index_path, names_quote(quoted, s->file), strerror(errno));
    if (!belongs(real_dir, real_file))
        return err_set(
            e, ERR_FORMAT,
            "%.400s names the shard %s, which is a link out of the model's folder: refused",
            index_path, names_quote(quoted, s->file));
    return safetensors_open(&s->st, path, e);
}

static const struct shard *shard_of_position(const struct weights *w, size_t i) {
    size_t low = 0, high = w->shard_count; // the last shard whose first is <= i
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (w->shards[middle].first <= i)
            low = middle;
        else
            high = middle;
    }
    return &w->shards[low];
}

static int index_shard(struct weights *w, const struct shard *s, struct err *e) {
    char quoted[NAMES_QUOTE_BYTES];
    for (size_t i = 0; i < safetensors_count(s->st); i++) {
        const char *name = safetensors_at(s->st, i)->name;
        bool fresh;
        uint32_t other;
        TRY(put_name(&w->names, name, (uint32_t)(s->first + i), &fresh, w->dir, e));
        if (!fresh && names_find(&w->names, name, &other))
            return err_set(e, ERR_FORMAT, "%.400s: tensor %s is both in %.64s and in %.64s", w->dir,
                           names_quote(quoted, name), shard_of_position(w, other)->file, s->file);
    }
    return 0;
}

static int check_listed(const struct weights *w, const struct index *x, struct err *e) {
    char quoted[NAMES_QUOTE_BYTES];
    uint64_t total = 0;
    for (size_t i = 0; i < x->count; i++) {
        const struct shard *s = &w->shards[x->listed[i].shard];
        const struct safetensors_entry *t = safetensors_find(s->st, x->listed[i].tensor);
        if (t == NULL)
            return err_set(e, ERR_FORMAT, "%.400s: tensor %s should be in %.64s, but is not",
                           x->path, names_quote(quoted, x->listed[i].tensor), s->file);
        if (!checked_add_u64(total, t->bytes, &total)) // possible with sparse files
            return err_set(e, ERR_FORMAT, "%.400s: the tensors have more than 2^64 bytes", x->path);
    }
    if (x->has_total && (x->total_bytes < 0 || (uint64_t)x->total_bytes != total))
        return err_set(e, ERR_FORMAT,
                       "%.400s: \"total_size\" says %lld bytes, the tensors it lists have %llu",
                       x->path, (long long)x->total_bytes, (unsigned long long)total);
    return 0;
}

static int open_shards(struct weights *w, const struct index *x, struct err *e) {
    for (size_t i = 0; i < w->shard_count; i++) {
        struct shard *s = &w->shards[i];
        TRY(open_shard(w, s, x->path, e));
        s->first = w->count;
        w->count += safetensors_count(s->st);
        if (w->count > UINT32_MAX)
            return err_set(e, ERR_FORMAT, "%.400s: the shards hold too many tensors", x->path);
    }
    TRY(names_reserve(&w->names, w->count, e));
    for (size_t i = 0; i < w->shard_count; i++)
        TRY(index_shard(w, &w->shards[i], e));
    return check_listed(w, x, e);
}

static int open_index(struct weights *w, struct err *e) {
    struct index x = {0};
    int rc = file_join(x.path, sizeof x.path, w->dir, index_name, e);
    if (rc == 0)
        rc = read_index(w, &x, e);
    if (rc == 0)
        rc = open_shards(w, &x, e);
    names_free(&x.files);
    region_free(&x.strings);
    free(x.listed);
    return rc;
}

static int open_single(struct weights *w, const char *path, struct err *e) {
    TRY(add_shard(w, single_name, e));
    TRY(safetensors_open(&w->shards[0].st, path, e));
    w->count = safetensors_count(w->shards[0].st);
    return 0;
}

static int open_folder(struct weights *w, const char *dir, struct err *e) {
    char single[PATH_MAX], index[PATH_MAX];
    if (!file_is_dir(dir))
        return err_set(e, ERR_IO, "model folder '%.300s' does not exist or is not a folder", dir);
    TRY(file_join(single, sizeof single, dir, single_name, e));
    TRY(file_join(index, sizeof index, dir, index_name, e));
    snprintf(w->dir, sizeof w->dir, "%s", dir);
    TRY(file_refuse_dead_link(single, e));
    TRY(file_refuse_dead_link(index, e));
    if (file_exists(single))
        return open_single(w, single, e);
    return file_exists(index) ? open_index(w, e) : explain_missing(dir, e);
}

int weights_open(struct weights **out, const char *dir, struct err *e) {
    *out = NULL;
    struct weights *w = calloc(1, sizeof *w);
    if (w == NULL)
        return err_set(e, ERR_MEMORY, "no memory to open '%.300s'", dir);
    int rc = open_folder(w, dir, e);
    if (rc != 0) {
        weights_close(w);
        return rc;
    }
    *out = w;
    return 0;
}

void weights_close(struct weights *w) {
    if (w == NULL)
        return;
    for (size_t i = 0; i < w->shard_count; i++)
        safetensors_close(w->shards[i].st);
    names_free(&w->names);
    region_free(&w->region);
    free(w);
}

// ---- using them ----

size_t weights_count(const struct weights *w) {
    return w->count;
}

const struct safetensors_entry *weights_at(const struct weights *w, size_t i) {
    if (i >= w->count)
        return NULL;
    const struct shard *s = shard_of_position(w, i);
    return safetensors_at(s->st, i - s->first);
}

const struct safetensors_entry *weights_find(const struct weights *w, const char *name) {
    uint32_t i;
    if (w->shard_count == 1)
        return safetensors_find(w->shards[0].st, name);
    return names_find(&w->names, name, &i) ? weights_at(w, i) : NULL;
}

int weights_read(struct weights *w, const struct safetensors_entry *t, int64_t first, int64_t n,
                 void *out, enum dtype out_type, struct err *e) {
    for (size_t i = 0; i < w->shard_count; i++) {
        struct safetensors *st = w->shards[i].st;
        // The entries of a file are one array. The pointer is inside the array of the file that has
        // the tensor.
        const struct safetensors_entry *begin = safetensors_at(st, 0);
        if (begin != NULL && (uintptr_t)t >= (uintptr_t)begin &&
            (uintptr_t)t < (uintptr_t)(begin + safetensors_count(st)))
            return safetensors_read(st, t, first, n, out, out_type, e);
    }
    return err_set(e, ERR_INTERNAL, "'%.300s': the tensor belongs to another folder", w->dir);
}
