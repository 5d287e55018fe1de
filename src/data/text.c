// text.c - see text.h.
#include "data/text.h"

#include "base/array.h"
#include "base/file.h"
#include "base/text.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

// Kinds of data files that are not supported. Training on them as text would only do harm. The
// second string says what to do.
static const struct {
    const char *suffix, *hint;
} foreign[] = {
    {".json", "give one JSON object per line in a .jsonl file (or set data.shape)"},
    {".parquet", "write it as .jsonl first"},
    {".arrow", "write it as .jsonl first"},
    {".csv", "write it as .jsonl first"},
    {".tsv", "write it as .jsonl first"},
    {".gz", "unpack it first"},
    {".bz2", "unpack it first"},
    {".xz", "unpack it first"},
    {".zst", "unpack it first"},
    {".zip", "unpack it first"},
    {".tar", "unpack it first"},
    {".pkl", "pickles can run code and are never opened; write it as .jsonl"},
    {".pickle", "pickles can run code and are never opened; write it as .jsonl"},
    {".pt", "pickles can run code and are never opened; write it as .jsonl"},
    {".pth", "pickles can run code and are never opened; write it as .jsonl"},
    {".npy", "write it as .jsonl with \"input_ids\" first"},
    {".npz", "write it as .jsonl with \"input_ids\" first"},
    {".bin", "write it as .jsonl with \"input_ids\" first"},
    {".safetensors", "these are weights; name the folder as the model instead"},
};

static int no_memory(struct err *e, const char *path) {
    return err_set(e, ERR_MEMORY, "%s: no memory to list the data", path);
}

static bool has_suffix(const char *name, const char *suffix) {
    size_t n = strlen(name), s = strlen(suffix);
    return n > s && strcasecmp(name + n - s, suffix) == 0;
}

static bool is_jsonl(const char *name) {
    return has_suffix(name, ".jsonl") || has_suffix(name, ".ndjson");
}

// ---------------------------------------------------------------- files and folders

struct visit {
    struct text_list *t;
    const char *folder;
    bool shaped;
    struct err *e;
};

static int check_name(const char *path, bool shaped, struct err *e) {
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        if (!has_suffix(path, foreign[i].suffix))
            continue;
        if (shaped && strcmp(foreign[i].suffix, ".json") == 0)
            continue;
        return err_set(e, ERR_USAGE, "%s: %s files are not accepted as data; %s", path,
                       foreign[i].suffix, foreign[i].hint);
    }
    return 0;
}

static int add_file(struct text_list *t, const char *path, bool shaped, bool named, struct err *e) {
    uint64_t bytes;
    TRY(check_name(path, shaped, e));
    struct stat st;
    if (stat(path, &st) != 0)
        return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return err_set(e, ERR_FORMAT, "%s: is not a regular file", path);
    bytes = (uint64_t)st.st_size;
    if (bytes == 0 && named)
        return err_set(e, ERR_USAGE, "%s: the file is empty", path);
    if (bytes == 0) {
        t->skipped_empty++;
        return 0;
    }
    char *copy = strdup(path);
    if (copy == NULL || !array_room(&t->files, t->n, 1, &t->capacity, sizeof *t->files, 16)) {
        free(copy);
        return no_memory(e, path);
    }
    t->files[t->n++] =
        (struct text_file){.path = copy,
                           .records = is_jsonl(path) || (shaped && !has_suffix(path, ".txt")),
                           .bytes = bytes,
                           .pool = t->n_pools - 1};
    return 0;
}

static int visit(void *arg, const char *name) {
    struct visit *v = arg;
    if (!has_suffix(name, ".txt") && !is_jsonl(name))
        return 0;
    char path[PATH_MAX];
    TRY(file_join(path, sizeof path, v->folder, name, v->e));
    if (file_is_dir(path))
        return 0;
    return add_file(v->t, path, v->shaped, false, v->e);
}

static int add_path(struct text_list *t, const char *path, bool shaped, struct err *e) {
    struct stat st;
    if (stat(path, &st) != 0)
        return err_set(e, ERR_IO, "%s: %s", path,
                       errno == ENOENT ? "there is no such file or folder" : strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return add_file(t, path, shaped, true, e);
    size_t before = t->n;
    struct visit v = {t, path, shaped, e};
    TRY(file_list_dir(path, visit, &v, e));
    if (t->n == before)
        return err_set(e, ERR_USAGE, "%s: the folder holds no .txt or .jsonl file with text", path);
    return 0;
}

// ---------------------------------------------------------------- the list

static int add_pool(struct text_list *t, uint64_t weight, const char *path, struct err *e) {
    if (!array_room(&t->weights, t->n_pools, 1, &t->weight_capacity, sizeof *t->weights, 16))
        return no_memory(e, path);
    t->weights[t->n_pools++] = weight;
    return 0;
}

// Removes ":weight" from the entry. *weight is 0 when there is none.
static int take_weight(char *entry, uint64_t *weight, struct err *e) {
    char *colon = strrchr(entry, ':');
    double value;
    *weight = 0;
    if (colon == NULL || colon == entry || file_exists(entry))
        return 0;
    if (strspn(colon + 1, "0123456789.+-eE") != strlen(colon + 1) || colon[1] == '\0')
        return 0; // part of a file name, which is looked up as it is
    if (text_parse_double(colon + 1, &value, NULL) != 0 || !(value >= 1.0 / TEXT_WEIGHT_UNIT) ||
        value > TEXT_MOST_WEIGHT)
        return err_set(e, ERR_USAGE,
                       "data.path: the weight '%s' of '%.*s' is not accepted; accepted: a number "
                       "above 0 and up to %d",
                       colon + 1, (int)(colon - entry), entry, TEXT_MOST_WEIGHT);
    *weight = (uint64_t)llround(value * TEXT_WEIGHT_UNIT);
    *colon = '\0';
    return 0;
}

// Entries are read twice: the first pass finds out whether any has a weight, which decides what a
// pool is.
static int add_entry(struct text_list *t, char *entry, bool shaped, bool counting, struct err *e) {
    uint64_t weight;
    TRY(take_weight(entry, &weight, e));
    if (counting) {
        t->weighted = t->weighted || weight > 0;
        return 0;
    }
    if (t->weighted || t->n_pools == 0)
        TRY(add_pool(t, weight > 0 ? weight : TEXT_WEIGHT_UNIT, entry, e));
    return add_path(t, entry, shaped, e);
}

static int each_entry(struct text_list *t, const char *paths, bool shaped, bool counting,
                      struct err *e) {
    char *copy = strdup(paths), *rest = NULL;
    int rc = 0;
    if (copy == NULL)
        return no_memory(e, paths);
    if (file_exists(paths))
        rc = add_entry(t, copy, shaped, counting, e);
    else
        for (char *entry = strtok_r(copy, ",", &rest); entry != NULL && rc == 0;
             entry = strtok_r(NULL, ",", &rest))
            rc = add_entry(t, entry, shaped, counting, e);
    free(copy);
    return rc;
}

static uint64_t common_divisor(uint64_t a, uint64_t b) {
    while (b != 0) {
        uint64_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

int text_list_open(struct text_list *t, const char *paths, bool shaped, struct err *e) {
    *t = (struct text_list){0};
    TRY(each_entry(t, paths, shaped, true, e));
    TRY(each_entry(t, paths, shaped, false, e));
    if (t->n == 0)
        return err_set(e, ERR_USAGE, "data.path '%s' names no file", paths);
    uint64_t divisor = 0;
    for (size_t i = 0; i < t->n_pools; i++)
        divisor = common_divisor(t->weights[i], divisor);
    for (size_t i = 0; i < t->n_pools; i++)
        t->weights[i] /= divisor;
    return 0;
}

void text_list_close(struct text_list *t) {
    for (size_t i = 0; i < t->n; i++)
        free(t->files[i].path);
    free(t->files);
    free(t->weights);
    *t = (struct text_list){0};
}
