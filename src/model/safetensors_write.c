// safetensors_write.c - writes one weight file, durably and in one pass.
//
// All tensors are declared first, because the header comes before the data. Offsets follow from the
// order of declaration, so the data is written without seeking and the file's fingerprint is known
// at the end. The header is padded with spaces to a multiple of 8, as in the reference writer, so
// that data is aligned when the file is mapped. Until close returns 0, the target path keeps its
// old content (base/file.h). A file that several processes fill is reserved instead: its header is
// written, and its fingerprint is computed from what lies on the disk in the end.
#include "model/names.h"
#include "model/safetensors.h"

#include "base/checked.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/region.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct safetensors_writer {
    struct file_writer file;
    struct hash *hash;
    struct region region; // names and entries
    struct names names;
    struct safetensors_entry *entries;
    size_t count, capacity;
    uint64_t declared_bytes;
    bool header_written;
    bool reserved;        // others fill it (safetensors_fill.c)
    size_t current;       // the tensor that is being filled
    uint64_t current_put; // bytes already written to it
};

int safetensors_writer_open(struct safetensors_writer **out, const char *path, struct err *e) {
    *out = NULL;
    struct safetensors_writer *w = calloc(1, sizeof *w);
    if (w == NULL)
        return err_set(e, ERR_MEMORY, "no memory to write '%s'", path);
    w->hash = hash_new();
    int rc = w->hash != NULL ? file_writer_begin(&w->file, path, e)
                             : err_set(e, ERR_MEMORY, "no memory to write '%s'", path);
    if (rc != 0) {
        safetensors_writer_abort(w);
        return rc;
    }
    w->file.hash = w->hash;
    *out = w;
    return 0;
}

static void writer_free(struct safetensors_writer *w) {
    hash_free(w->hash);
    names_free(&w->names);
    region_free(&w->region);
    free(w);
}

void safetensors_writer_abort(struct safetensors_writer *w) {
    if (w == NULL)
        return;
    file_writer_abort(&w->file);
    writer_free(w);
}

static int declare(struct safetensors_writer *w, const char *name, enum dtype dtype, int rank,
                   const int64_t *dims, struct err *e) {
    struct safetensors_entry t = {.dtype = dtype, .rank = rank, .begin = w->declared_bytes};
    uint64_t elements = 1;
    if (w->header_written)
        return err_set(e, ERR_USAGE, "declared after the first data was written");
    if (name[0] == '\0' || strcmp(name, "__metadata__") == 0)
        return err_set(e, ERR_USAGE, "the name is empty or reserved by the format");
    if ((int)dtype < 0 || dtype >= DTYPE_COUNT || rank < 0 || rank > SAFETENSORS_MAX_RANK)
        return err_set(e, ERR_USAGE, "type %d or rank %d (0 to %d) is not accepted", (int)dtype,
                       rank, SAFETENSORS_MAX_RANK);
    for (int i = 0; i < rank; i++) {
        t.dims[i] = dims[i];
        if (dims[i] < 0 || !checked_mul_u64(elements, (uint64_t)dims[i], &elements))
            return err_set(e, ERR_USAGE, "dimension %d is %lld, or the product is too large", i,
                           (long long)dims[i]);
    }
    uint64_t declared_bytes;
    if (elements > INT64_MAX || !checked_mul_u64(elements, dtype_bytes(dtype), &t.bytes) ||
        !checked_add_u64(w->declared_bytes, t.bytes, &declared_bytes) || declared_bytes > INT64_MAX)
        return err_set(e, ERR_USAGE, "the file would exceed 2^63 bytes");
    t.elements = (int64_t)elements;
    t.dtype_name = dtype_safetensors(dtype);
    t.name = region_copy(&w->region, name);
    void *grown = region_grow(&w->region, w->entries, w->count, &w->capacity, sizeof *w->entries);
    if (t.name == NULL || grown == NULL)
        return err_set(e, ERR_MEMORY, "no memory for %zu tensors", w->count + 1);
    w->entries = grown;
    bool fresh;
    TRY(names_put(&w->names, t.name, (uint32_t)w->count, &fresh, e));
    if (!fresh)
        return err_set(e, ERR_USAGE, "the name was declared before");
    w->entries[w->count++] = t;
    w->declared_bytes = declared_bytes;
    return 0;
}

int safetensors_writer_declare(struct safetensors_writer *w, const char *name, enum dtype dtype,
                               int rank, const int64_t *dims, struct err *e) {
    char quoted[NAMES_QUOTE_BYTES];
    int rc = declare(w, name, dtype, rank, dims, e);
    if (rc != 0)
        err_context(e, "%s: tensor %s", w->file.path, names_quote(quoted, name));
    return rc;
}

static void put_tensor(struct json_writer *j, const struct safetensors_entry *t) {
    json_put_key(j, t->name);
    json_put_object_begin(j);
    json_member_string(j, "dtype", t->dtype_name);
    json_member_array(j, "shape");
    for (int i = 0; i < t->rank; i++)
        json_put_i64(j, t->dims[i]);
    json_put_array_end(j);
    json_member_array(j, "data_offsets");
    json_put_i64(j, (int64_t)t->begin);
    json_put_i64(j, (int64_t)(t->begin + t->bytes));
    json_put_array_end(j);
    json_put_object_end(j);
}

static int write_header(struct safetensors_writer *w, struct err *e) {
    static const char spaces[8] = "        ";
    struct json_writer j;
    json_writer_to_buffer(&j, 0);
    json_put_object_begin(&j);
    // transformers refuses files that do not say which framework wrote them.
    json_member_object(&j, "__metadata__");
    json_member_string(&j, "format", "pt");
    json_put_object_end(&j);
    for (size_t i = 0; i < w->count; i++)
        put_tensor(&j, &w->entries[i]);
    json_put_object_end(&j);
    int rc = json_writer_finish(&j, e);
    size_t padding = (8 - j.bytes % 8) % 8;
    uint64_t length = j.bytes + padding;
    if (rc == 0)
        rc = file_writer_put(&w->file, &length, sizeof length, e);
    if (rc == 0)
        rc = file_writer_put(&w->file, j.buffer, j.bytes, e);
    if (rc == 0)
        rc = file_writer_put(&w->file, spaces, padding, e);
    free(j.buffer);
    w->header_written = rc == 0;
    return rc;
}

// Moves past tensors that are full, which includes empty ones.
static void skip_full(struct safetensors_writer *w) {
    while (w->current < w->count && w->current_put == w->entries[w->current].bytes) {
        w->current++;
        w->current_put = 0;
    }
}

int safetensors_writer_put(struct safetensors_writer *w, const void *data, size_t bytes,
                           struct err *e) {
    char quoted[NAMES_QUOTE_BYTES];
    if (!w->header_written)
        TRY(write_header(w, e));
    skip_full(w);
    if (bytes == 0)
        return 0;
    if (w->current == w->count)
        return err_set(e, ERR_USAGE, "%s: %zu bytes were put after the last tensor was full",
                       w->file.path, bytes);
    const struct safetensors_entry *t = &w->entries[w->current];
    if (bytes > t->bytes - w->current_put)
        return err_set(e, ERR_USAGE,
                       "%s: %zu bytes were put into tensor %s, which has room for %llu more",
                       w->file.path, bytes, names_quote(quoted, t->name),
                       (unsigned long long)(t->bytes - w->current_put));
    TRY(file_writer_put(&w->file, data, bytes, e));
    w->current_put += bytes;
    return 0;
}

int safetensors_writer_reserve(struct safetensors_writer *w, struct err *e) {
    if (w->header_written)
        return err_set(e, ERR_INTERNAL, "'%s' was reserved after data was put", w->file.path);
    TRY(write_header(w, e));
    TRY(file_writer_reserve(&w->file, w->file.bytes + w->declared_bytes, e));
    w->reserved = true;
    return 0;
}

const char *safetensors_writer_unfinished(const struct safetensors_writer *w) {
    return w->file.tmp;
}

// Opened anew: what other machines wrote to a network filesystem is seen by an open that comes
// after their close.
static int read_back(const struct safetensors_writer *w, char *hash, struct err *e) {
    const int fd = open(w->file.tmp, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return err_set(e, ERR_IO, "cannot open '%s': %s", w->file.tmp, strerror(errno));
    const int rc = file_hash(fd, w->file.tmp, w->file.bytes, hash, e);
    close(fd);
    return rc;
}

int safetensors_writer_close(struct safetensors_writer *w, char *hash, uint64_t *bytes,
                             struct err *e) {
    char quoted[NAMES_QUOTE_BYTES];
    if (!w->header_written)
        TRY(write_header(w, e));
    skip_full(w);
    if (!w->reserved && w->current != w->count)
        return err_set(e, ERR_USAGE, "%s: tensor %s got %llu of its %llu bytes", w->file.path,
                       names_quote(quoted, w->entries[w->current].name),
                       (unsigned long long)w->current_put,
                       (unsigned long long)w->entries[w->current].bytes);
    if (hash != NULL && w->reserved)
        TRY(read_back(w, hash, e));
    else if (hash != NULL)
        hash_text(w->hash, hash);
    if (bytes != NULL)
        *bytes = w->file.bytes;
    TRY(file_writer_end(&w->file, e));
    writer_free(w);
    return 0;
}
