// gguf_read.c - opens and reads a GGUF file, which is untrusted input.
//
// The head is walked once from its beginning. Every length is compared with what is left of the
// file before anything is read or allocated, so memory is bounded by the file. Strings that are
// values are kept; arrays are checked and skipped, and read again when someone asks.
#include "export/gguf.h"

#include "base/checked.h"
#include "base/region.h"
#include "base/utf8.h"
#include "model/names.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the format is little-endian");

enum {
    BUFFER_BYTES = 1 << 16,
    KEY_MOST = 65535,            // the limit of the format
    TEXT_MOST = 16 << 20,        // of a string; chat templates have some 10 KB
    VALUES_MOST = 1 << 16,       // files have some 30
    TENSORS_MOST = 1 << 16,      // 126 layers have some 1,200
    VALUE_LEAST = 8 + 1 + 4 + 1, // bytes of a value in the file
    TENSOR_LEAST = 8 + 1 + 4 + 8 + 4 + 8,
    ALIGNMENT_MOST = 1 << 20,
};

struct gguf {
    int fd;
    char *path;
    uint64_t size, data_start, alignment;
    struct region strings;
    struct gguf_value *values;
    struct gguf_tensor *tensors;
    size_t n_values, n_tensors;
    struct names keys, names;
};

static const struct {
    const char *name;
    size_t bytes; // 0: not of one size
} value_types[GGUF_VALUE_TYPES] = {
    [GGUF_U8] = {"u8", 1},       [GGUF_I8] = {"i8", 1},     [GGUF_U16] = {"u16", 2},
    [GGUF_I16] = {"i16", 2},     [GGUF_U32] = {"u32", 4},   [GGUF_I32] = {"i32", 4},
    [GGUF_FLOAT] = {"f32", 4},   [GGUF_BOOL] = {"bool", 1}, [GGUF_STRING] = {"string", 0},
    [GGUF_ARRAY] = {"array", 0}, [GGUF_U64] = {"u64", 8},   [GGUF_I64] = {"i64", 8},
    [GGUF_DOUBLE] = {"f64", 8},
};

// ---------------------------------------------------------------- bytes

int gguf_read_raw(struct gguf *g, uint64_t at, void *out, size_t bytes, struct err *e) {
    if (at > g->size || bytes > g->size - at)
        return err_set(e, ERR_FORMAT,
                       "%s: %zu bytes at %" PRIu64 " are asked for, but the file has %" PRIu64,
                       g->path, bytes, at, g->size);
    while (bytes > 0) {
        const ssize_t n = pread(g->fd, out, bytes, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return err_set(e, ERR_IO, "cannot read '%s': %s", g->path,
                           n < 0 ? strerror(errno) : "it became shorter");
        out = (char *)out + n;
        at += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return 0;
}

// Reads the head from front to back.
struct walk {
    struct gguf *g;
    uint64_t at; // place of the next byte
    uint64_t buffer_at;
    size_t buffered;
    struct err *e;
    unsigned char buffer[BUFFER_BYTES];
};

static uint64_t left(const struct walk *w) {
    return w->g->size - w->at;
}

static int fail(struct walk *w, const char *what, uint64_t value, const char *accepted) {
    return err_set(w->e, ERR_FORMAT, "%s: at byte %" PRIu64 ": %s is %" PRIu64 "; accepted: %s",
                   w->g->path, w->at, what, value, accepted);
}

static int too_short(struct walk *w, const char *what, uint64_t bytes) {
    return err_set(w->e, ERR_FORMAT,
                   "%s: at byte %" PRIu64 ": %s needs %" PRIu64
                   " bytes, but the file has only %" PRIu64 " more",
                   w->g->path, w->at, what, bytes, left(w));
}

static int take(struct walk *w, const char *what, void *out, size_t bytes) {
    if (bytes > left(w))
        return too_short(w, what, bytes);
    while (bytes > 0) {
        const uint64_t inside = w->at - w->buffer_at;
        if (w->at < w->buffer_at || inside >= w->buffered) {
            w->buffered = left(w) < BUFFER_BYTES ? (size_t)left(w) : BUFFER_BYTES;
            w->buffer_at = w->at;
            const int rc = gguf_read_raw(w->g, w->at, w->buffer, w->buffered, w->e);
            if (rc != 0) {
                w->buffered = 0;
                return rc;
            }
            continue;
        }
        size_t n = w->buffered - (size_t)inside;
        n = n < bytes ? n : bytes;
        memcpy(out, w->buffer + inside, n);
        out = (char *)out + n;
        w->at += n;
        bytes -= n;
    }
    return 0;
}

static int take_u32(struct walk *w, const char *what, uint32_t *x) {
    return take(w, what, x, sizeof *x);
}

static int take_u64(struct walk *w, const char *what, uint64_t *x) {
    return take(w, what, x, sizeof *x);
}

// A string's length, compared with the file's.
static int take_length(struct walk *w, const char *what, uint64_t most, uint64_t *n) {
    TRY(take_u64(w, what, n));
    if (*n > most)
        return err_set(w->e, ERR_FORMAT,
                       "%s: at byte %" PRIu64 ": %s has %" PRIu64
                       " bytes; accepted: at most %" PRIu64,
                       w->g->path, w->at, what, *n, most);
    return *n > left(w) ? too_short(w, what, *n) : 0;
}

static bool is_utf8(const char *text, size_t n) {
    const uint8_t *p = (const uint8_t *)text, *end = p + n;
    unsigned bytes;
    for (; p < end; p += bytes)
        if (utf8_decode(p, end, &bytes) == UTF8_BAD)
            return false;
    return true;
}

static int take_text(struct walk *w, const char *what, uint64_t most, const char **out,
                     size_t *bytes) {
    uint64_t n;
    TRY(take_length(w, what, most, &n));
    char *text = region_alloc(&w->g->strings, (size_t)n + 1);
    if (text == NULL)
        return err_set(w->e, ERR_MEMORY, "no memory to read '%s'", w->g->path);
    TRY(take(w, what, text, (size_t)n));
    if (!is_utf8(text, (size_t)n))
        return err_set(w->e, ERR_FORMAT, "%s: at byte %" PRIu64 ": %s is not valid UTF-8",
                       w->g->path, w->at, what);
    *out = text;
    *bytes = (size_t)n;
    return 0;
}

// A name: not empty, no NUL inside, not seen before.
static int take_name(struct walk *w, const char *what, uint64_t most, struct names *seen,
                     size_t index, const char **out) {
    char quoted[NAMES_QUOTE_BYTES];
    size_t bytes;
    bool fresh;
    TRY(take_text(w, what, most, out, &bytes));
    if (bytes == 0 || strlen(*out) != bytes)
        return err_set(w->e, ERR_FORMAT, "%s: at byte %" PRIu64 ": %s is empty or has a NUL inside",
                       w->g->path, w->at, what);
    TRY(names_put(seen, *out, (uint32_t)index, &fresh, w->e));
    return fresh ? 0
                 : err_set(w->e, ERR_FORMAT, "%s: %s %s appears twice", w->g->path, what,
                           names_quote(quoted, *out));
}

// ---------------------------------------------------------------- values

static int take_scalar(struct walk *w, struct gguf_value *v) {
    union {
        uint64_t u;
        uint8_t u8;
        int8_t i8;
        uint16_t u16;
        int16_t i16;
        uint32_t u32;
        int32_t i32;
        int64_t i64;
        float f;
        double d;
    } x = {0};
    TRY(take(w, "a value", &x, value_types[v->type].bytes));
    const int64_t whole = v->type == GGUF_I8    ? x.i8
                          : v->type == GGUF_I16 ? x.i16
                          : v->type == GGUF_I32 ? x.i32
                                                : x.i64;
    const bool has_sign =
        v->type == GGUF_I8 || v->type == GGUF_I16 || v->type == GGUF_I32 || v->type == GGUF_I64;
    v->whole = has_sign ? (uint64_t)whole : x.u;
    v->number = v->type == GGUF_FLOAT    ? (double)x.f
                : v->type == GGUF_DOUBLE ? x.d
                : has_sign               ? (double)whole
                                         : (double)x.u;
    if (v->type == GGUF_BOOL && x.u > 1)
        return fail(w, "a bool", x.u, "0 and 1");
    return 0;
}

static int skip_array(struct walk *w, struct gguf_value *v) {
    char text[256];
    v->at = w->at;
    const size_t least = v->type == GGUF_STRING ? 8 : value_types[v->type].bytes;
    uint64_t bytes;
    if (!checked_mul_u64(v->n, least, &bytes) || bytes > left(w))
        return err_set(w->e, ERR_FORMAT,
                       "%s: at byte %" PRIu64 ": an array of %" PRIu64
                       " elements is claimed, but the file has only %" PRIu64 " more bytes",
                       w->g->path, w->at, v->n, left(w));
    if (v->type != GGUF_STRING) {
        w->at += bytes;
        return 0;
    }
    for (uint64_t i = 0; i < v->n; i++) {
        uint64_t n;
        TRY(take_length(w, "a string", TEXT_MOST, &n));
        if (n > sizeof text) { // tokens are short; the others are checked when they are read
            w->at += n;
            continue;
        }
        TRY(take(w, "a string", text, (size_t)n));
        if (!is_utf8(text, (size_t)n))
            return err_set(w->e, ERR_FORMAT,
                           "%s: at byte %" PRIu64 ": element %" PRIu64
                           " of an array is not valid UTF-8",
                           w->g->path, w->at, i);
    }
    return 0;
}

static int take_value(struct walk *w, size_t index) {
    struct gguf_value *v = &w->g->values[index];
    char quoted[NAMES_QUOTE_BYTES];
    uint32_t type;
    TRY(take_name(w, "a key", KEY_MOST, &w->g->keys, index, &v->key));
    TRY(take_u32(w, "a value's type", &type));
    v->array = type == GGUF_ARRAY;
    v->n = 1;
    if (v->array) {
        TRY(take_u32(w, "an array's type", &type));
        TRY(take_u64(w, "an array's length", &v->n));
    }
    if (type >= GGUF_VALUE_TYPES || type == GGUF_ARRAY)
        return err_set(w->e, ERR_FORMAT,
                       "%s: the value of %s has the type %" PRIu32
                       "; accepted: 0 to 8 and 10 to 12, and arrays (9) of these",
                       w->g->path, names_quote(quoted, v->key), type);
    v->type = (enum gguf_value_type)type;
    v->at = w->at;
    if (v->array)
        return skip_array(w, v);
    if (v->type == GGUF_STRING)
        return take_text(w, "a string", TEXT_MOST, &v->text, &v->bytes);
    return take_scalar(w, v);
}

static int find_alignment(struct walk *w) {
    const struct gguf_value *v = gguf_value_find(w->g, "general.alignment");
    w->g->alignment = GGUF_ALIGNMENT;
    if (v == NULL)
        return 0;
    if (v->array || v->type != GGUF_U32)
        return err_set(w->e, ERR_FORMAT, "%s: general.alignment is not a u32", w->g->path);
    w->g->alignment = v->whole;
    if (v->whole < 8 || v->whole > ALIGNMENT_MOST || (v->whole & (v->whole - 1)) != 0)
        return err_set(w->e, ERR_FORMAT,
                       "%s: general.alignment is %" PRIu64 "; accepted: powers of two from 8 to %d",
                       w->g->path, v->whole, ALIGNMENT_MOST);
    return 0;
}

// ---------------------------------------------------------------- tensors

static int take_dims(struct walk *w, struct gguf_tensor *t) {
    uint32_t rank;
    TRY(take_u32(w, "a tensor's rank", &rank));
    if (rank < 1 || rank > GGUF_RANK_MOST)
        return fail(w, "a tensor's rank", rank, "1 to 4");
    t->rank = (int)rank;
    t->elements = 1;
    for (int i = 0; i < GGUF_RANK_MOST; i++) {
        uint64_t n = 1;
        if (i < t->rank)
            TRY(take_u64(w, "a tensor's dimension", &n));
        if (n < 1 || n > INT64_MAX || !checked_mul_i64(t->elements, (int64_t)n, &t->elements))
            return fail(w, "a tensor's dimension", n,
                        "1 or more, with a product of less than 2^63");
        t->dims[i] = (int64_t)n;
    }
    return 0;
}

static int take_tensor(struct walk *w, size_t index, uint64_t *end) {
    struct gguf_tensor *t = &w->g->tensors[index];
    char quoted[NAMES_QUOTE_BYTES];
    uint32_t type;
    TRY(take_name(w, "a tensor's name", GGUF_NAME_BYTES - 1, &w->g->names, index, &t->name));
    TRY(take_dims(w, t));
    TRY(take_u32(w, "a tensor's type", &type));
    if (!gguf_type_known(type))
        return err_set(w->e, ERR_UNSUPPORTED,
                       "%s: tensor %s has the type %" PRIu32
                       "; accepted: 0 (f32), 1 (f16), 2 (q4_0), 8 (q8_0), 30 (bf16)",
                       w->g->path, names_quote(quoted, t->name), type);
    t->type = (enum gguf_type)type;
    if (t->dims[0] % gguf_block_elements(t->type) != 0)
        return err_set(w->e, ERR_FORMAT,
                       "%s: tensor %s has rows of %" PRId64
                       " elements; %s needs a multiple of %" PRId64,
                       w->g->path, names_quote(quoted, t->name), t->dims[0],
                       gguf_type_name(t->type), gguf_block_elements(t->type));
    TRY(take_u64(w, "a tensor's offset", &t->begin));
    if (t->begin != *end)
        return err_set(w->e, ERR_FORMAT,
                       "%s: tensor %s begins at %" PRIu64 " of the data; accepted: %" PRIu64
                       ", where the one before it ends",
                       w->g->path, names_quote(quoted, t->name), t->begin, *end);
    // At most 2^61 blocks of 4 bytes: more elements than a file can have do not overflow here.
    if (t->elements > INT64_MAX / 8 || (t->bytes = gguf_bytes(t->type, t->elements)) > w->g->size)
        return err_set(w->e, ERR_FORMAT,
                       "%s: tensor %s has %" PRId64 " elements, more than the file can hold",
                       w->g->path, names_quote(quoted, t->name), t->elements);
    *end += (t->bytes + w->g->alignment - 1) / w->g->alignment * w->g->alignment;
    return *end <= 2 * w->g->size + w->g->alignment
               ? 0
               : err_set(w->e, ERR_FORMAT, "%s: tensor %s ends behind the end of the file",
                         w->g->path, names_quote(quoted, t->name));
}

static int check_data(struct walk *w, uint64_t bytes) {
    struct gguf *g = w->g;
    char quoted[NAMES_QUOTE_BYTES];
    g->data_start = (w->at + g->alignment - 1) / g->alignment * g->alignment;
    for (size_t i = 0; i < g->n_tensors; i++) {
        const struct gguf_tensor *t = &g->tensors[i];
        if (g->data_start > g->size || t->begin > g->size - g->data_start ||
            t->bytes > g->size - g->data_start - t->begin)
            return err_set(w->e, ERR_FORMAT,
                           "%s: tensor %s needs bytes %" PRIu64 " to %" PRIu64
                           " of the file, which has %" PRIu64,
                           g->path, names_quote(quoted, t->name), g->data_start + t->begin,
                           g->data_start + t->begin + t->bytes, g->size);
    }
    const uint64_t end = g->n_tensors > 0 ? g->data_start + bytes : w->at;
    if (g->size != end)
        return err_set(w->e, ERR_FORMAT,
                       "%s: the file has %" PRIu64 " bytes; accepted: %" PRIu64
                       ", where the last tensor's padding ends",
                       g->path, g->size, end);
    return 0;
}

// ---------------------------------------------------------------- the head

static int take_count(struct walk *w, const char *what, uint64_t most, uint64_t each, size_t *out) {
    uint64_t n;
    TRY(take_u64(w, what, &n));
    if (n > most)
        return err_set(w->e, ERR_FORMAT, "%s: %s is %" PRIu64 "; accepted: at most %" PRIu64,
                       w->g->path, what, n, most);
    if (n * each > left(w))
        return too_short(w, what, n * each);
    *out = (size_t)n;
    return 0;
}

static int walk_head(struct walk *w) {
    struct gguf *g = w->g;
    char magic[4];
    uint32_t version;
    uint64_t end = 0;
    TRY(take(w, "the head", magic, sizeof magic));
    if (memcmp(magic, "GGUF", sizeof magic) != 0)
        return err_set(w->e, ERR_FORMAT, "%s: does not begin with GGUF: it is no GGUF file",
                       g->path);
    TRY(take_u32(w, "the version", &version));
    if (version != GGUF_VERSION)
        return err_set(w->e, ERR_UNSUPPORTED, "%s: the version is %" PRIu32 "; accepted: %d",
                       g->path, version, GGUF_VERSION);
    TRY(take_count(w, "the number of tensors", TENSORS_MOST, TENSOR_LEAST, &g->n_tensors));
    TRY(take_count(w, "the number of values", VALUES_MOST, VALUE_LEAST, &g->n_values));
    g->values = calloc(g->n_values + 1, sizeof *g->values);
    g->tensors = calloc(g->n_tensors + 1, sizeof *g->tensors);
    if (g->values == NULL || g->tensors == NULL)
        return err_set(w->e, ERR_MEMORY, "no memory to read '%s'", g->path);
    for (size_t i = 0; i < g->n_values; i++)
        TRY(take_value(w, i));
    TRY(find_alignment(w));
    for (size_t i = 0; i < g->n_tensors; i++)
        TRY(take_tensor(w, i, &end));
    return check_data(w, end);
}

static int open_file(struct gguf *g, struct err *e) {
    struct stat st;
    // O_NONBLOCK: if the path is a pipe, opening it must not wait.
    g->fd = open(g->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (g->fd < 0)
        return err_set(e, ERR_IO, "cannot open '%s': %s", g->path, strerror(errno));
    if (fstat(g->fd, &st) != 0 || !S_ISREG(st.st_mode))
        return err_set(e, ERR_FORMAT, "'%s' is not a regular file", g->path);
    g->size = (uint64_t)st.st_size;
    struct walk *w = calloc(1, sizeof *w);
    if (w == NULL)
        return err_set(e, ERR_MEMORY, "no memory to read '%s'", g->path);
    w->g = g;
    w->e = e;
    const int rc = walk_head(w);
    free(w);
    return rc;
}

int gguf_open(struct gguf **out, const char *path, struct err *e) {
    *out = NULL;
    struct gguf *g = calloc(1, sizeof *g);
    if (g == NULL)
        return err_set(e, ERR_MEMORY, "no memory to read '%s'", path);
    g->fd = -1;
    g->path = region_copy(&g->strings, path);
    const int rc =
        g->path != NULL ? open_file(g, e) : err_set(e, ERR_MEMORY, "no memory to read '%s'", path);
    if (rc != 0) {
        gguf_close(g);
        return rc;
    }
    *out = g;
    return 0;
}

void gguf_close(struct gguf *g) {
    if (g == NULL)
        return;
    if (g->fd >= 0)
        close(g->fd);
    names_free(&g->keys);
    names_free(&g->names);
    region_free(&g->strings);
    free(g->values);
    free(g->tensors);
    free(g);
}

// ---------------------------------------------------------------- what is inside

size_t gguf_value_count(const struct gguf *g) {
    return g->n_values;
}

const struct gguf_value *gguf_value_at(const struct gguf *g, size_t i) {
    return i < g->n_values ? &g->values[i] : NULL;
}

const struct gguf_value *gguf_value_find(const struct gguf *g, const char *key) {
    uint32_t i;
    return names_find(&g->keys, key, &i) ? &g->values[i] : NULL;
}

size_t gguf_tensor_count(const struct gguf *g) {
    return g->n_tensors;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i) {
    return i < g->n_tensors ? &g->tensors[i] : NULL;
}

const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, const char *name) {
    uint32_t i;
    return names_find(&g->names, name, &i) ? &g->tensors[i] : NULL;
}

uint64_t gguf_data_start(const struct gguf *g) {
    return g->data_start;
}

int gguf_read(struct gguf *g, const struct gguf_tensor *t, int64_t first, int64_t n, float *out,
              struct err *e) {
    enum { PIECE = 4096 }; // elements, a multiple of every block
    unsigned char bytes[PIECE * 4];
    const int64_t block = gguf_block_elements(t->type);
    if (first < 0 || n < 0 || first > t->elements || n > t->elements - first ||
        first % block != 0 || n % block != 0)
        return err_set(e, ERR_USAGE,
                       "%s: elements %" PRId64 " to %" PRId64 " of tensor %s cannot be read",
                       g->path, first, first + n, t->name);
    for (int64_t at = 0; at < n; at += PIECE) {
        const int64_t k = n - at < PIECE ? n - at : PIECE;
        TRY(gguf_read_raw(g, g->data_start + t->begin + gguf_bytes(t->type, first + at), bytes,
                          (size_t)gguf_bytes(t->type, k), e));
        gguf_decode(t->type, bytes, k, out + at);
    }
    return 0;
}

static int each_text(struct walk *w, const struct gguf_value *v,
                     int (*fn)(void *arg, uint64_t i, const char *text, size_t bytes), void *arg) {
    struct region scratch = w->g->strings;
    int rc = 0;
    w->g->strings = (struct region){0};
    for (uint64_t i = 0; rc == 0 && i < v->n; i++) {
        const char *text;
        size_t bytes;
        rc = take_text(w, "a string", TEXT_MOST, &text, &bytes);
        if (rc == 0)
            rc = fn(arg, i, text, bytes);
        if (i % 1024 == 1023)
            region_free(&w->g->strings);
    }
    region_free(&w->g->strings);
    w->g->strings = scratch;
    return rc;
}

int gguf_read_texts(struct gguf *g, const struct gguf_value *v,
                    int (*fn)(void *arg, uint64_t i, const char *text, size_t bytes), void *arg,
                    struct err *e) {
    if (!v->array || v->type != GGUF_STRING)
        return err_set(e, ERR_USAGE, "%s: the value is no array of strings", g->path);
    struct walk *w = calloc(1, sizeof *w);
    if (w == NULL)
        return err_set(e, ERR_MEMORY, "no memory to read '%s'", g->path);
    *w = (struct walk){.g = g, .at = v->at, .e = e};
    const int rc = each_text(w, v, fn, arg);
    free(w);
    return rc;
}
