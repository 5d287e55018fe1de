// quantized.c - see quantized.h.
#include "model/quantized.h"
#include "model/names.h"

#include "base/array.h"
#include "base/file.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIG_MAX_BYTES = 16 << 20 };

bool quantized_can(const struct model_param *p) {
    return p->matrix && p->role != ROLE_WPE;
}

static const struct quantized_other *find_other(const struct quantized *s, const char *name) {
    for (size_t i = 0; i < s->n_others; i++)
        if (strcmp(s->others[i].name, name) == 0)
            return &s->others[i];
    return NULL;
}

struct storage quantized_as(const struct quantized *s, const struct model_param *p) {
    if (!quantized_any(s) || !quantized_can(p))
        return (struct storage){0};
    const struct quantized_other *other = find_other(s, p->name);
    return other ? other->storage : s->storage;
}

void quantized_turn(const struct model_shape *shape, struct model_param *p) {
    const bool table = p->role == ROLE_WTE || p->role == ROLE_WPE || p->role == ROLE_HEAD_W;
    if (!shape->in_out_weights || table || p->rank != 2)
        return;
    const int64_t in = p->dims[0];
    p->dims[0] = p->dims[1];
    p->dims[1] = in;
}

int quantized_add(struct quantized *s, const char *name, struct storage storage, struct err *e) {
    if (!array_room(&s->others, s->n_others, 1, &s->capacity, sizeof *s->others, 16))
        return err_set(e, ERR_MEMORY, "no memory for a list of weights");
    struct quantized_other *o = &s->others[s->n_others++];
    o->storage = storage;
    snprintf(o->name, sizeof o->name, "%s", name);
    return 0;
}

void quantized_free(struct quantized *s) {
    free(s->others);
    *s = (struct quantized){0};
}

// ---------------------------------------------------------------- reading

static bool find_param(const struct model_shape *shape, const char *name, struct model_param *p) {
    for (int64_t i = 0; model_param_at(shape, i, p); i++)
        if (strcmp(p->name, name) == 0)
            return true;
    return false;
}

static int read_others(struct json_reader *r, struct quantized *s,
                       const struct model_shape *shape) {
    const char *name, *how;
    char quoted[NAMES_QUOTE_BYTES], other[NAMES_QUOTE_BYTES];
    struct model_param p;
    TRY(json_enter_object(r));
    while (json_next_key(r, &name)) {
        TRY(json_read_string(r, &how, NULL));
        if (!find_param(shape, name, &p) || !quantized_can(&p))
            return json_fail(r, ERR_FORMAT, "\"other\" names %s, which is no matrix of the model",
                             names_quote(quoted, name));
        if (find_other(s, name))
            return json_fail(r, ERR_FORMAT, "\"other\" names %s twice", names_quote(quoted, name));
        const bool int8 = strcmp(how, "int8") == 0;
        if (!int8 && strcmp(how, "wide") != 0)
            return json_fail(r, ERR_UNSUPPORTED,
                             "\"other\" says %s for %s; accepted are: int8, wide",
                             names_quote(other, how), names_quote(quoted, name));
        TRY(r->rc = quantized_add(
                s, name, (struct storage){.kind = int8 ? STORAGE_INT8 : STORAGE_PLAIN}, r->e));
    }
    return r->rc;
}

// The members, each with the value that it has in the file.
struct members {
    bool has_group, has_version, has_format;
    int64_t group, version;
};

static int read_format(struct json_reader *r, struct quantized *s, struct members *m) {
    const char *text;
    char quoted[NAMES_QUOTE_BYTES];
    TRY(json_read_string(r, &text, NULL));
    m->has_format = true;
    if (strcmp(text, "int8") == 0)
        s->storage.kind = STORAGE_INT8;
    else if (strcmp(text, "int4") == 0)
        s->storage.kind = STORAGE_INT4;
    else
        return json_fail(r, ERR_UNSUPPORTED, "\"format\" is %s; accepted are: int8, int4",
                         names_quote(quoted, text));
    return 0;
}

static int read_method(struct json_reader *r) {
    const char *text;
    char quoted[NAMES_QUOTE_BYTES];
    TRY(json_read_string(r, &text, NULL));
    return strcmp(text, "haggle") == 0
               ? 0
               : json_fail(r, ERR_UNSUPPORTED,
                           "\"quant_method\" is %s; haggle reads only models that it has quantized "
                           "itself (\"haggle\")",
                           names_quote(quoted, text));
}

static int read_member(struct json_reader *r, const char *key, struct quantized *s,
                       const struct model_shape *shape, struct members *m) {
    char quoted[NAMES_QUOTE_BYTES];
    if (strcmp(key, "quant_method") == 0)
        return read_method(r);
    if (strcmp(key, "format") == 0)
        return read_format(r, s, m);
    if (strcmp(key, "minima") == 0)
        return json_read_bool(r, &s->storage.minima);
    if (strcmp(key, "other") == 0)
        return read_others(r, s, shape);
    if (strcmp(key, "group") == 0) {
        m->has_group = true;
        return json_read_i64(r, &m->group);
    }
    if (strcmp(key, "version") == 0) {
        m->has_version = true;
        return json_read_i64(r, &m->version);
    }
    return json_fail(r, ERR_UNSUPPORTED, "\"quantization_config\" has %s, which is not known",
                     names_quote(quoted, key));
}

static int check_members(struct json_reader *r, struct quantized *s, const struct members *m) {
    if (!m->has_version || m->version != QUANTIZED_VERSION)
        return json_fail(r, ERR_UNSUPPORTED,
                         "the \"version\" of \"quantization_config\" is %lld; accepted: %d",
                         (long long)m->version, QUANTIZED_VERSION);
    if (!m->has_format)
        return json_fail(r, ERR_FORMAT, "\"quantization_config\" has no \"format\"");
    const bool int4 = s->storage.kind == STORAGE_INT4;
    if (int4 && m->group != 32 && m->group != 64 && m->group != 128)
        return json_fail(r, ERR_UNSUPPORTED,
                         "\"group\" is %lld; accepted with \"int4\" are: 32, 64, 128",
                         (long long)m->group);
    if (!int4 && (s->storage.minima || (m->has_group && m->group != 0)))
        return json_fail(r, ERR_UNSUPPORTED, "int8 has no groups and no minima");
    s->storage.group = (uint16_t)(int4 ? m->group : 0);
    return 0;
}

static int read_config(struct json_reader *r, struct quantized *s,
                       const struct model_shape *shape) {
    const char *key;
    struct members m = {0};
    bool method = false;
    uint32_t seen = 0;
    static const char *const once[] = {"quant_method", "version", "format",
                                       "group",        "minima",  "other"};
    TRY(json_enter_object(r));
    while (json_next_key(r, &key)) {
        for (size_t i = 0; i < sizeof once / sizeof *once; i++)
            if (strcmp(key, once[i]) == 0) {
                if (seen >> i & 1)
                    return json_fail(r, ERR_FORMAT, "\"%s\" is given twice", once[i]);
                seen |= 1u << i;
                method |= i == 0;
            }
        TRY(read_member(r, key, s, shape, &m));
    }
    TRY(r->rc);
    if (!method)
        return json_fail(r, ERR_FORMAT, "\"quantization_config\" has no \"quant_method\"");
    return check_members(r, s, &m);
}

static int read_file(struct json_reader *r, struct quantized *s, const struct model_shape *shape) {
    const char *key;
    bool found = false;
    TRY(json_enter_object(r));
    while (json_next_key(r, &key)) {
        if (strcmp(key, "quantization_config") != 0 || json_peek(r) == JSON_NULL) {
            TRY(json_skip(r));
            continue;
        }
        if (found)
            return json_fail(r, ERR_FORMAT, "\"quantization_config\" is given twice");
        found = true;
        TRY(read_config(r, s, shape));
    }
    return json_finish(r);
}

static int check_rows(const struct quantized *s, const struct model_shape *shape, struct err *e) {
    struct model_param p;
    char text[STORAGE_TEXT_BYTES];
    for (int64_t i = 0; model_param_at(shape, i, &p); i++) {
        const struct storage storage = quantized_as(s, &p);
        quantized_turn(shape, &p);
        if (!storage_plain(storage) && !storage_takes(storage, p.dims[1]))
            return err_set(e, ERR_MISMATCH,
                           "'%s' has rows of %lld elements, which are no whole groups of %s",
                           p.name, (long long)p.dims[1], storage_text(storage, text));
    }
    return 0;
}

int quantized_read(struct quantized *out, const char *dir, const struct model_shape *shape,
                   struct err *e) {
    char path[PATH_MAX], *text;
    size_t bytes;
    struct region strings = {0};
    struct json_reader r;
    *out = (struct quantized){0};
    TRY(file_join(path, sizeof path, dir, "config.json", e));
    TRY(file_read_all(path, CONFIG_MAX_BYTES, &text, &bytes, e));
    json_reader_init(&r, path, text, bytes, &strings, e);
    int rc = read_file(&r, out, shape);
    region_free(&strings);
    free(text);
    if (rc == 0 && (rc = check_rows(out, shape, e)) != 0)
        err_context(e, "%.300s", path);
    if (rc != 0)
        quantized_free(out);
    return rc;
}

// ---------------------------------------------------------------- writing

void quantized_put_json(const struct quantized *s, struct json_writer *w) {
    const bool int4 = s->storage.kind == STORAGE_INT4;
    json_put_object_begin(w);
    json_member_string(w, "quant_method", "haggle");
    json_member_i64(w, "version", QUANTIZED_VERSION);
    json_member_string(w, "format", int4 ? "int4" : "int8");
    if (int4) {
        json_member_i64(w, "group", s->storage.group);
        json_member_bool(w, "minima", s->storage.minima);
    }
    if (s->n_others > 0) {
        json_member_object(w, "other");
        for (size_t i = 0; i < s->n_others; i++)
            json_member_string(w, s->others[i].name,
                               storage_plain(s->others[i].storage) ? "wide" : "int8");
        json_put_object_end(w);
    }
    json_put_object_end(w);
}
