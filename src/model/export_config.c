// export_config.c - see export_config.h. The JSON reader finds where each value begins and ends.
// The text between the edits is copied unchanged.
#include "model/export_config.h"

#include "model/family.h"

#include "base/json.h"

#include <stdlib.h>
#include <string.h>

const char *export_config_dtype(enum dtype t) {
    switch (t) {
    case DTYPE_F32:
        return "float32";
    case DTYPE_F64:
        return "float64";
    case DTYPE_BF16:
        return "bfloat16";
    case DTYPE_F16:
        return "float16";
    default:
        return NULL;
    }
}

struct editor {
    struct json_reader r;
    const char *copied; // all text before this is already in `out`
    FILE *out;
    const char *architecture, *dtype;
    bool has_architecture, has_dtype, floats;
};

static void replace(struct editor *x, const char *begin, const char *text) {
    fwrite(x->copied, 1, (size_t)(begin - x->copied), x->out);
    fputs(text, x->out);
    x->copied = x->r.at;
}

// Reads the next value. *same says whether it is a list of exactly the one architecture.
static int read_architectures(struct editor *x, bool *same) {
    int count = 0;
    *same = true;
    if (json_peek(&x->r) != JSON_ARRAY) {
        *same = false;
        return json_skip(&x->r);
    }
    TRY(json_enter_array(&x->r));
    while (json_next_element(&x->r)) {
        const char *text = "";
        if (json_peek(&x->r) == JSON_STRING)
            TRY(json_read_string(&x->r, &text, NULL));
        else
            TRY(json_skip(&x->r));
        *same = *same && strcmp(text, x->architecture) == 0;
        count++;
    }
    *same = *same && count == 1;
    return x->r.rc;
}

static bool is_real(const char *key) {
    static const char *const keys[] = {"attention_dropout",  "attn_pdrop",        "embd_pdrop",
                                       "resid_pdrop",        "initializer_range", "rms_norm_eps",
                                       "layer_norm_epsilon", "rope_theta",        "factor",
                                       "low_freq_factor",    "high_freq_factor"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(keys[i], key) == 0)
            return true;
    return false;
}

static bool is_digits(const char *begin, const char *end) {
    const char *p = begin;
    while (p < end && *p >= '0' && *p <= '9')
        p++;
    return p == end && p > begin;
}

// Skips a value. With `floats` it changes the spelling of numbers, also inside nested objects.
static int pass(struct editor *x, const char *key) {
    const char *begin = x->r.at;
    if (!x->floats || json_peek(&x->r) != JSON_OBJECT) {
        TRY(json_skip(&x->r));
        if (x->floats && is_real(key) && is_digits(begin, x->r.at))
            replace(x, x->r.at, ".0");
        return 0;
    }
    TRY(json_enter_object(&x->r));
    while (json_next_key(&x->r, &key))
        TRY(pass(x, key));
    return x->r.rc;
}

static int edit_member(struct editor *x, const char *key) {
    const char *begin = x->r.at;
    char text[128];
    bool same;
    if (strcmp(key, "architectures") == 0) {
        x->has_architecture = true;
        TRY(read_architectures(x, &same));
        snprintf(text, sizeof text, "[\"%s\"]", x->architecture);
        if (!same)
            replace(x, begin, text);
        return 0;
    }
    TRY(pass(x, key));
    if (x->dtype == NULL || (strcmp(key, "dtype") != 0 && strcmp(key, "torch_dtype") != 0))
        return 0;
    x->has_dtype = true;
    snprintf(text, sizeof text, "\"%s\"", x->dtype);
    size_t n = strlen(text);
    if ((size_t)(x->r.at - begin) != n || memcmp(begin, text, n) != 0)
        replace(x, begin, text);
    return 0;
}

static int edit(struct editor *x, const char **inside) {
    const char *key;
    TRY(json_enter_object(&x->r));
    *inside = x->r.at;
    while (json_next_key(&x->r, &key))
        TRY(edit_member(x, key));
    TRY(json_finish(&x->r));
    fwrite(x->copied, 1, (size_t)(x->r.end - x->copied), x->out);
    return 0;
}

// Writes the edited text, with the missing members in front of its first member.
static int join(const struct editor *x, char *edited, size_t bytes, size_t inside, char **out,
                size_t *out_bytes) {
    FILE *f = open_memstream(out, out_bytes);
    if (f == NULL)
        return ERR_MEMORY;
    fwrite(edited, 1, inside, f);
    if (!x->has_architecture)
        fprintf(f, "\n  \"architectures\": [\"%s\"],", x->architecture);
    // Every release of transformers reads "torch_dtype". Older ones do not know "dtype".
    if (!x->has_dtype && x->dtype != NULL)
        fprintf(f, "\n  \"torch_dtype\": \"%s\",", x->dtype);
    fwrite(edited + inside, 1, bytes - inside, f);
    return fclose(f) == 0 ? 0 : ERR_MEMORY;
}

int export_config_edit(const char *name, const char *text, size_t bytes, enum model_family family,
                       const char *dtype, bool floats, char **out, size_t *out_bytes,
                       struct err *e) {
    struct region strings = {0};
    struct editor x = {.copied = text,
                       .architecture = family_architecture(family),
                       .dtype = dtype,
                       .floats = floats};
    const char *inside = text;
    char *edited = NULL;
    size_t edited_bytes = 0;
    *out = NULL;
    x.out = open_memstream(&edited, &edited_bytes);
    if (x.out == NULL)
        return err_set(e, ERR_MEMORY, "no memory for the text of '%s'", name);
    json_reader_init(&x.r, name, text, bytes, &strings, e);
    int rc = edit(&x, &inside);
    if (fclose(x.out) != 0 && rc == 0)
        rc = err_set(e, ERR_MEMORY, "no memory for the text of '%s'", name);
    // Edits come only after the opening bracket, so `inside` is the same in both texts.
    if (rc == 0 && join(&x, edited, edited_bytes, (size_t)(inside - text), out, out_bytes) != 0)
        rc = err_set(e, ERR_MEMORY, "no memory for the text of '%s'", name);
    if (rc != 0) {
        free(*out);
        *out = NULL;
    }
    free(edited);
    region_free(&strings);
    return rc;
}

struct member { // where the value of a member lies in the text
    const char *begin, *end;
    const char *inside; // behind the object's opening bracket
    bool found, null, any;
};

static int find_member(struct json_reader *r, const char *wanted, struct member *m) {
    const char *key;
    *m = (struct member){0};
    TRY(json_enter_object(r));
    m->inside = r->at;
    while (json_next_key(r, &key)) {
        const bool is = strcmp(key, wanted) == 0;
        const char *begin = r->at;
        const bool null = json_peek(r) == JSON_NULL;
        TRY(json_skip(r));
        m->any = true;
        if (is)
            *m = (struct member){begin, r->at, m->inside, true, null, true};
    }
    return json_finish(r);
}

int export_config_set(const char *name, const char *text, size_t bytes, const char *key,
                      const char *value, bool only_missing, char **out, size_t *out_bytes,
                      struct err *e) {
    struct region strings = {0};
    struct json_reader r;
    struct member m;
    *out = NULL;
    json_reader_init(&r, name, text, bytes, &strings, e);
    int rc = find_member(&r, key, &m);
    region_free(&strings);
    TRY(rc);
    FILE *f = open_memstream(out, out_bytes);
    if (f == NULL)
        return err_set(e, ERR_MEMORY, "no memory for the text of '%s'", name);
    const char *to = text + bytes;
    if (m.found && only_missing && !m.null) {
        fwrite(text, 1, bytes, f);
    } else if (m.found) {
        fprintf(f, "%.*s%s", (int)(m.begin - text), text, value);
        fwrite(m.end, 1, (size_t)(to - m.end), f);
    } else {
        fprintf(f, "%.*s\n  \"%s\": %s%s", (int)(m.inside - text), text, key, value,
                m.any ? "," : "\n");
        fwrite(m.inside, 1, (size_t)(to - m.inside), f);
    }
    if (fclose(f) == 0)
        return 0;
    free(*out);
    *out = NULL;
    return err_set(e, ERR_MEMORY, "no memory for the text of '%s'", name);
}

// Writes the ids of the value in the text (an id or a list), and says which of `ids` it has.
static int read_ids(struct json_reader *r, const int32_t *ids, size_t n, bool *has, FILE *f) {
    const bool list = json_peek(r) == JSON_ARRAY;
    if (json_peek(r) == JSON_NULL)
        return json_read_null(r);
    if (list)
        TRY(json_enter_array(r));
    while (!list || json_next_element(r)) {
        int64_t id;
        TRY(json_read_i64(r, &id));
        fprintf(f, "%lld, ", (long long)id);
        for (size_t i = 0; i < n; i++)
            has[i] = has[i] || ids[i] == id;
        if (!list)
            break;
    }
    return r->rc;
}

int export_config_ids(const char *name, const char *text, size_t bytes, const char *key,
                      const int32_t *ids, size_t n, bool list, char **out, size_t *out_bytes,
                      struct err *e) {
    struct region strings = {0};
    struct json_reader r;
    struct member m;
    bool has[8] = {false}, all = true;
    char *value = NULL;
    size_t value_bytes = 0;
    if (n == 0 || n > sizeof has)
        return err_set(e, ERR_INTERNAL, "%s: %zu ids", name, n);
    FILE *f = open_memstream(&value, &value_bytes);
    if (f == NULL)
        return err_set(e, ERR_MEMORY, "no memory for the text of '%s'", name);
    json_reader_init(&r, name, text, bytes, &strings, e);
    int rc = find_member(&r, key, &m);
    fputc('[', f);
    if (rc == 0 && m.found) {
        json_reader_init(&r, name, m.begin, (size_t)(m.end - m.begin), &strings, e);
        rc = read_ids(&r, ids, n, has, f);
    }
    size_t last = 0;
    for (size_t i = 0; i < n; i++) {
        all = all && has[i];
        last = has[i] ? last : i;
    }
    for (size_t i = 0; i < n; i++)
        if (!has[i])
            fprintf(f, "%d%s", ids[i], i == last ? "]" : ", ");
    if (fclose(f) != 0 && rc == 0)
        rc = err_set(e, ERR_MEMORY, "no memory for the text of '%s'", name);
    char one[16];
    snprintf(one, sizeof one, "%d", ids[0]);
    // With only_missing nothing changes in a text that has all ids.
    const bool keep = list ? all : has[0];
    if (rc == 0)
        rc = export_config_set(name, text, bytes, key, list && strchr(value, ',') ? value : one,
                               keep, out, out_bytes, e);
    free(value);
    region_free(&strings);
    return rc;
}

static int put_tokens(struct json_reader *r, FILE *f) {
    static const char *const keys[] = {"bos_token_id", "eos_token_id", "pad_token_id"};
    const char *key;
    TRY(json_enter_object(r));
    while (json_next_key(r, &key)) {
        const char *begin = r->at;
        bool null = json_peek(r) == JSON_NULL, wanted = false;
        TRY(json_skip(r));
        for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
            wanted = wanted || strcmp(key, keys[i]) == 0;
        if (wanted && !null)
            fprintf(f, ",\n  \"%s\": %.*s", key, (int)(r->at - begin), begin);
    }
    return json_finish(r);
}

int export_config_generation(const char *name, const char *text, size_t bytes, char **out,
                             size_t *out_bytes, struct err *e) {
    struct region strings = {0};
    struct json_reader r;
    *out = NULL;
    FILE *f = open_memstream(out, out_bytes);
    if (f == NULL)
        return err_set(e, ERR_MEMORY, "no memory for a generation_config.json");
    json_reader_init(&r, name, text, bytes, &strings, e);
    fprintf(f, "{\n  \"_from_model_config\": true");
    int rc = put_tokens(&r, f);
    fprintf(f, "\n}\n");
    if (fclose(f) != 0 && rc == 0)
        rc = err_set(e, ERR_MEMORY, "no memory for a generation_config.json");
    if (rc != 0) {
        free(*out);
        *out = NULL;
    }
    region_free(&strings);
    return rc;
}
