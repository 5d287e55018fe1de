// safetensors.c - opens and reads one weight file. The file is untrusted input.
//
// Layout: 8 bytes of little-endian header length N, N bytes of JSON, then data to the end of the
// file.
//
// After safetensors_open returns 0, the ranges of all tensors cover the data exactly (sorted, from
// 0 to the end, without holes or overlap), each range has the size that its shape and type require,
// and names are unique. Reading needs no further check.
//
// Memory is bounded by the header, which is bounded by the file. No allocation depends on a number
// that the file only claims. At any time less than 16 MiB plus four times the header is held. For
// that reason the header's text is freed before the names are indexed.
#include "model/safetensors.h"
#include "model/names.h"

#include "base/checked.h"
#include "base/json.h"
#include "base/region.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "tensor data is little-endian and is read without conversion");

enum {
    LENGTH_BYTES = 8,
    HEADER_MAX_BYTES = 100000000, // the limit of the format
    NAME_MAX_BYTES = 4096,
    TENSORS_MAX = 1000000, // the largest published models have about 100,000
    TENSOR_MIN_BYTES = 50, // "a":{"dtype":"U8","shape":[],"data_offsets":[0,1]}
    SCRATCH_BYTES = 1 << 20,
    CONVERT_BYTES = 64 << 10, // buffer on the stack for values of the file's type
};

struct safetensors {
    int fd;
    char *path;
    uint64_t data_start, data_bytes;
    struct safetensors_entry *entries;
    size_t count, capacity;
    struct region strings; // names and types
    struct names names;    // -> index in entries
};

// Types of the format that haggle does not compute with. Such tensors may be present, like the mask
// buffers of GPT-2. They are checked like all others, so that a type is no way around the range
// checks. Only reading them fails.
struct other_type {
    const char *name;
    int bits;
};
static const struct other_type other_types[] = {
    {"BOOL", 8},    {"I16", 16},    {"U16", 16}, {"U32", 32},    {"U64", 64},    {"F8_E5M2", 8},
    {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F4", 4},   {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"C64", 64},
};

// What the header says about one tensor, before it is checked.
struct claim {
    bool has_dtype, has_shape, has_offsets;
    uint64_t offsets[2];
    int bits;
};

// ---- header ----

// Reads a non-negative integer that is written as one. The format does not allow 2.0 or 1e3.
static int read_count(struct json_reader *r, uint64_t *out) {
    if (json_peek(r) == JSON_NUMBER) {
        const char *p = r->at;
        while (p < r->end && *p >= '0' && *p <= '9')
            p++;
        if (p == r->at || (p < r->end && (*p == '.' || *p == 'e' || *p == 'E')))
            return json_fail(r, ERR_FORMAT,
                             "sizes and offsets must be whole numbers, not negative");
    }
    int64_t x = 0;
    TRY(json_read_i64(r, &x));
    *out = (uint64_t)x;
    return 0;
}

static int read_dtype(struct json_reader *r, struct safetensors_entry *t, struct claim *c) {
    const char *name;
    char quoted[NAMES_QUOTE_BYTES];
    TRY(json_read_string(r, &name, NULL));
    int known = dtype_from_safetensors(name);
    t->dtype = known >= 0 ? (enum dtype)known : DTYPE_COUNT;
    if (known >= 0) {
        c->bits = 8 * (int)dtype_bytes(t->dtype);
        t->dtype_name = dtype_safetensors(t->dtype);
        return 0;
    }
    for (size_t i = 0; i < sizeof other_types / sizeof other_types[0]; i++)
        if (strcmp(other_types[i].name, name) == 0) {
            c->bits = other_types[i].bits;
            t->dtype_name = other_types[i].name;
            return 0;
        }
    return json_fail(r, ERR_FORMAT,
                     "type %s is not one of the safetensors types (F32, BF16, F16, ...)",
                     names_quote(quoted, name));
}

static int read_shape(struct json_reader *r, struct safetensors_entry *t) {
    uint64_t elements = 1;
    TRY(json_enter_array(r));
    while (json_next_element(r)) {
        uint64_t dim = 0;
        if (t->rank == SAFETENSORS_MAX_RANK)
            return json_fail(r, ERR_FORMAT, "a tensor has more than %d dimensions",
                             SAFETENSORS_MAX_RANK);
        TRY(read_count(r, &dim));
        if (!checked_mul_u64(elements, dim, &elements) || elements > INT64_MAX)
            return json_fail(r, ERR_FORMAT, "a tensor's dimensions multiply to more than 2^63");
        t->dims[t->rank++] = (int64_t)dim;
    }
    t->elements = (int64_t)elements;
    return r->rc;
}

static int read_offsets(struct json_reader *r, uint64_t offsets[2]) {
    int n = 0;
    TRY(json_enter_array(r));
    while (json_next_element(r)) {
        if (n == 2)
            return json_fail(r, ERR_FORMAT, "\"data_offsets\" has more than two numbers");
        TRY(read_count(r, &offsets[n++]));
    }
    if (r->rc == 0 && n != 2)
        return json_fail(r, ERR_FORMAT, "\"data_offsets\" has %d numbers; it must have two", n);
    return r->rc;
}

static int read_field(struct json_reader *r, const char *key, struct safetensors_entry *t,
                      struct claim *c) {
    struct {
        const char *key;
        bool *seen;
    } fields[] = {
        {"dtype", &c->has_dtype}, {"shape", &c->has_shape}, {"data_offsets", &c->has_offsets}};
    char quoted[NAMES_QUOTE_BYTES];
    int field = 0;
    while (field < 3 && strcmp(fields[field].key, key) != 0)
        field++;
    if (field == 3)
        return json_fail(r, ERR_FORMAT,
                         "a tensor has an unknown field %s; accepted: dtype, shape, data_offsets",
                         names_quote(quoted, key));
    if (*fields[field].seen)
        return json_fail(r, ERR_FORMAT, "\"%s\" is given twice", fields[field].key);
    *fields[field].seen = true;
    return field == 0   ? read_dtype(r, t, c)
           : field == 1 ? read_shape(r, t)
                        : read_offsets(r, c->offsets);
}

// Checks what the header says about one tensor, for consistency and against the file.
static int check_claim(struct json_reader *r, const struct safetensors *st,
                       struct safetensors_entry *t, const struct claim *c) {
    uint64_t bits, begin = c->offsets[0], end = c->offsets[1];
    if (!c->has_dtype || !c->has_shape || !c->has_offsets)
        return json_fail(r, ERR_FORMAT, "a tensor lacks \"%s\"",
                         !c->has_dtype   ? "dtype"
                         : !c->has_shape ? "shape"
                                         : "data_offsets");
    if (end < begin || end > st->data_bytes)
        return json_fail(r, ERR_FORMAT,
                         "data_offsets %llu to %llu are outside the %llu bytes of data in the file",
                         (unsigned long long)begin, (unsigned long long)end,
                         (unsigned long long)st->data_bytes);
    if (!checked_mul_u64((uint64_t)t->elements, (uint64_t)c->bits, &bits))
        return json_fail(r, ERR_FORMAT, "shape and type need more than 2^64 bits");
    if (bits % 8 != 0)
        return json_fail(r, ERR_FORMAT, "%lld elements of type %s do not fill whole bytes",
                         (long long)t->elements, t->dtype_name);
    if (end - begin != bits / 8)
        return json_fail(r, ERR_FORMAT, "shape and type need %llu bytes, data_offsets span %llu",
                         (unsigned long long)(bits / 8), (unsigned long long)(end - begin));
    t->begin = begin;
    t->bytes = end - begin;
    return 0;
}

static int add_entry(struct json_reader *r, struct safetensors *st,
                     const struct safetensors_entry *t) {
    if (st->count == TENSORS_MAX)
        return json_fail(r, ERR_FORMAT, "the file has more than %d tensors", TENSORS_MAX);
    if (st->count == st->capacity) {
        size_t wider = st->capacity + st->capacity / 2 + 16;
        size_t most = st->count + 1 + (size_t)(r->end - r->at) / TENSOR_MIN_BYTES;
        if (wider > most) // the rest of the header cannot describe more
            wider = most;
        void *p = realloc(st->entries, wider * sizeof *st->entries);
        if (p == NULL)
            return json_fail(r, ERR_MEMORY, "no memory for %zu tensor descriptions", wider);
        st->entries = p;
        st->capacity = wider;
    }
    st->entries[st->count++] = *t;
    return 0;
}

static int read_tensor(struct json_reader *r, struct safetensors *st, const char *name) {
    struct safetensors_entry t = {.name = name};
    struct claim c = {0};
    const char *key;
    size_t length = strlen(name);
    if (length == 0 || length > NAME_MAX_BYTES)
        return json_fail(r, ERR_FORMAT, "a tensor name has %zu bytes; accepted are 1 to %d", length,
                         NAME_MAX_BYTES);
    TRY(json_enter_object(r));
    while (json_next_key(r, &key))
        TRY(read_field(r, key, &t, &c));
    TRY(r->rc);
    TRY(check_claim(r, st, &t, &c));
    return add_entry(r, st, &t);
}

static int read_metadata(struct json_reader *r) {
    const char *key;
    TRY(json_enter_object(r));
    while (json_next_key(r, &key)) {
        if (json_peek(r) != JSON_STRING)
            return json_fail(r, ERR_FORMAT, "\"__metadata__\" may hold strings only");
        TRY(json_skip(r));
    }
    return r->rc;
}

static int read_members(struct json_reader *r, struct safetensors *st, struct region *scratch) {
    const char *name;
    char quoted[NAMES_QUOTE_BYTES];
    bool has_metadata = false;
    TRY(json_enter_object(r));
    for (;;) {
        // Names are kept. Keys and types inside a tensor are not kept, as they would take more
        // memory than the names.
        r->strings = &st->strings;
        if (!json_next_key(r, &name))
            break;
        r->strings = scratch;
        if (strcmp(name, "__metadata__") == 0) {
            if (has_metadata)
                return json_fail(r, ERR_FORMAT, "\"__metadata__\" is given twice");
            has_metadata = true;
            TRY(read_metadata(r));
        } else {
            int rc = read_tensor(r, st, name);
            if (rc != 0) {
                err_context(r->e, "tensor %s", names_quote(quoted, name));
                return rc;
            }
        }
        if (scratch->bytes > SCRATCH_BYTES)
            region_free(scratch);
    }
    return json_finish(r);
}

// ---- what holds for the tensors together ----

static int by_begin(const void *a, const void *b) {
    const struct safetensors_entry *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    // An empty tensor comes before the tensor that begins at the same byte.
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

static int check_tiling(const struct safetensors *st, struct err *e) {
    char quoted[NAMES_QUOTE_BYTES];
    uint64_t at = 0;
    for (size_t i = 0; i < st->count; i++) {
        const struct safetensors_entry *t = &st->entries[i];
        if (t->begin != at)
            return err_set(e, ERR_FORMAT,
                           "%s: tensor %s begins at byte %llu of the data, but %s ends at %llu: %s",
                           st->path, names_quote(quoted, t->name), (unsigned long long)t->begin,
                           i == 0 ? "the header" : "the one before", (unsigned long long)at,
                           t->begin > at ? "a hole" : "they overlap");
        at += t->bytes;
    }
    if (at != st->data_bytes)
        return err_set(e, ERR_FORMAT,
                       "%s: the tensors end at byte %llu of the data, which has %llu", st->path,
                       (unsigned long long)at, (unsigned long long)st->data_bytes);
    return 0;
}

static int index_names(struct safetensors *st, struct err *e) {
    char quoted[NAMES_QUOTE_BYTES];
    int rc = names_reserve(&st->names, st->count, e);
    for (size_t i = 0; rc == 0 && i < st->count; i++) {
        bool fresh;
        rc = names_put(&st->names, st->entries[i].name, (uint32_t)i, &fresh, e);
        if (rc == 0 && !fresh)
            rc = err_set(e, ERR_FORMAT, "tensor %s appears twice",
                         names_quote(quoted, st->entries[i].name));
    }
    if (rc != 0)
        err_context(e, "%s", st->path);
    return rc;
}

static int parse_header(struct safetensors *st, const char *text, size_t bytes, struct err *e) {
    struct json_reader r;
    struct region scratch = {0};
    json_reader_init(&r, st->path, text, bytes, &scratch, e);
    int rc = read_members(&r, st, &scratch);
    region_free(&scratch);
    return rc;
}

static int check_together(struct safetensors *st, struct err *e) {
    // Indexes names before sorting, so that a tensor that appears twice is reported as such and not
    // as an overlap.
    TRY(index_names(st, e));
    bool sorted = true;
    for (size_t i = 1; sorted && i < st->count; i++)
        sorted = by_begin(&st->entries[i - 1], &st->entries[i]) <= 0;
    if (!sorted) {
        names_free(&st->names);
        qsort(st->entries, st->count, sizeof *st->entries, by_begin);
        TRY(index_names(st, e));
    }
    return check_tiling(st, e);
}

// ---- the file ----

// Reads exactly `bytes` at `offset`. A file that has become shorter gives an error, and not a
// signal as with mmap.
static int read_at(const struct safetensors *st, void *out, size_t bytes, uint64_t offset,
                   struct err *e) {
    char *p = out;
    while (bytes > 0) {
        size_t step = bytes < (1u << 30) ? bytes : 1u << 30;
        ssize_t n = pread(st->fd, p, step, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set(e, ERR_IO, "cannot read '%s' at byte %llu: %s", st->path,
                           (unsigned long long)offset, strerror(errno));
        if (n == 0)
            return err_set(e, ERR_IO, "'%s' ends at byte %llu, but was longer when it was opened",
                           st->path, (unsigned long long)offset);
        p += n;
        bytes -= (size_t)n;
        offset += (uint64_t)n;
    }
    return 0;
}

int safetensors_refuse_pickle(const char *path, struct err *e) {
    static const char *const endings[] = {".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt"};
    const char *dot = strrchr(path, '.');
    for (size_t i = 0; dot != NULL && i < sizeof endings / sizeof endings[0]; i++)
        if (strcasecmp(dot, endings[i]) == 0)
            return err_set(
                e, ERR_UNSUPPORTED,
                "'%s' is a pickle file, which can run code when it is loaded; haggle reads "
                "safetensors only",
                path);
    return 0;
}

static int open_regular(struct safetensors *st, uint64_t *file_bytes, struct err *e) {
    struct stat info;
    // O_NONBLOCK: a pipe in place of the file must not block. It has no effect on regular files.
    do {
        st->fd = open(st->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    } while (st->fd < 0 && errno == EINTR);
    if (st->fd < 0 || fstat(st->fd, &info) != 0)
        return err_set(e, ERR_IO, "cannot open '%s': %s", st->path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return err_set(e, ERR_FORMAT, "'%s' is not a regular file", st->path);
    *file_bytes = (uint64_t)info.st_size;
    return 0;
}

static int load_header(struct safetensors *st, struct err *e) {
    uint64_t file_bytes = 0, n = 0;
    TRY(open_regular(st, &file_bytes, e));
    if (file_bytes < LENGTH_BYTES)
        return err_set(
            e, ERR_FORMAT,
            "%s: the file has %llu bytes; a safetensors file begins with 8 bytes of header length",
            st->path, (unsigned long long)file_bytes);
    TRY(read_at(st, &n, LENGTH_BYTES, 0, e));
    if (n < 2 || n > HEADER_MAX_BYTES)
        return err_set(e, ERR_FORMAT,
                       "%s: byte 0: the header length is %llu; accepted are 2 to %d (is this a "
                       "safetensors file?)",
                       st->path, (unsigned long long)n, HEADER_MAX_BYTES);
    if (n > file_bytes - LENGTH_BYTES)
        return err_set(
            e, ERR_FORMAT, "%s: byte 0: the header length is %llu, but only %llu bytes follow",
            st->path, (unsigned long long)n, (unsigned long long)(file_bytes - LENGTH_BYTES));
    st->data_start = LENGTH_BYTES + n;
    st->data_bytes = file_bytes - st->data_start;
    char *text = malloc((size_t)n);
    if (text == NULL)
        return err_set(e, ERR_MEMORY, "%s: no memory for a header of %llu bytes", st->path,
                       (unsigned long long)n);
    int rc = read_at(st, text, (size_t)n, LENGTH_BYTES, e);
    if (rc == 0)
        rc = parse_header(st, text, (size_t)n, e);
    free(text);
    return rc != 0 ? rc : check_together(st, e);
}

int safetensors_open(struct safetensors **out, const char *path, struct err *e) {
    *out = NULL;
    TRY(safetensors_refuse_pickle(path, e));
    struct safetensors *st = calloc(1, sizeof *st);
    if (st == NULL)
        return err_set(e, ERR_MEMORY, "no memory to open '%s'", path);
    st->fd = -1;
    st->path = strdup(path);
    int rc = st->path != NULL ? load_header(st, e)
                              : err_set(e, ERR_MEMORY, "no memory to open '%s'", path);
    if (rc != 0) {
        safetensors_close(st);
        return rc;
    }
    *out = st;
    return 0;
}

void safetensors_close(struct safetensors *st) {
    if (st == NULL)
        return;
    if (st->fd >= 0)
        close(st->fd);
    names_free(&st->names);
    region_free(&st->strings);
    free(st->entries);
    free(st->path);
    free(st);
}

uint64_t safetensors_data_start(const struct safetensors *st) {
    return st->data_start;
}

size_t safetensors_count(const struct safetensors *st) {
    return st->count;
}

const struct safetensors_entry *safetensors_at(const struct safetensors *st, size_t i) {
    return i < st->count ? &st->entries[i] : NULL;
}

const struct safetensors_entry *safetensors_find(const struct safetensors *st, const char *name) {
    uint32_t i;
    return names_find(&st->names, name, &i) ? &st->entries[i] : NULL;
}

// ---- data ----

int safetensors_read(struct safetensors *st, const struct safetensors_entry *t, int64_t first,
                     int64_t n, void *out, enum dtype out_type, struct err *e) {
    char quoted[NAMES_QUOTE_BYTES];
    if (first < 0 || n < 0 || first > t->elements || n > t->elements - first)
        return err_set(e, ERR_USAGE,
                       "%s: cannot read %lld elements from %lld of tensor %s, which has %lld",
                       st->path, (long long)n, (long long)first, names_quote(quoted, t->name),
                       (long long)t->elements);
    if (t->dtype == DTYPE_COUNT ||
        (t->dtype != out_type && !(dtype_is_floating(t->dtype) && dtype_is_floating(out_type))))
        return err_set(e, ERR_UNSUPPORTED, "%s: tensor %s has type %s, which cannot be read as %s",
                       st->path, names_quote(quoted, t->name), t->dtype_name, dtype_text(out_type));
    size_t from_bytes = dtype_bytes(t->dtype), to_bytes = dtype_bytes(out_type);
    uint64_t at = st->data_start + t->begin + (uint64_t)first * from_bytes;
    if (t->dtype == out_type)
        return read_at(st, out, (size_t)n * from_bytes, at, e);
    _Alignas(8) char buffer[CONVERT_BYTES];
    char *to = out;
    int64_t chunk = (int64_t)(sizeof buffer / from_bytes);
    while (n > 0) {
        int64_t step = n < chunk ? n : chunk;
        TRY(read_at(st, buffer, (size_t)step * from_bytes, at, e));
        dtype_convert(to, out_type, buffer, t->dtype, (size_t)step);
        to += (size_t)step * to_bytes;
        at += (uint64_t)step * from_bytes;
        n -= step;
    }
    return 0;
}
