// render_model.c - reads what a model's folder says about text: chat template, special tokens.
//
// Missing files are skipped; existing files must be valid. The first file that gives a value wins,
// in this order:
//   chat template    chat_template.jinja, tokenizer_config.json
//   tokens           tokenizer_config.json, special_tokens_map.json, then ids from
//                    generation_config.json, config.json
//   beginning token  tokenizer_config.json's add_bos_token, else tokenizer.json's post-processor
#include "data/render_impl.h"

#include "base/file.h"
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

enum { CONFIG_MAX_BYTES = 16 << 20, TOKENIZER_MAX_BYTES = 100 << 20 };

const char *const render_token_names[RENDER_TOKENS_NAMED] = {"bos_token", "eos_token", "unk_token",
                                                             "pad_token"};

// Reads a file of the folder; *text is NULL when it does not exist.
static int read_file(const char *dir, const char *name, size_t most, char path[1200], char **text,
                     size_t *bytes, struct err *e) {
    *text = NULL;
    TRY(file_join(path, 1200, dir, name, e));
    return file_exists(path) ? file_read_all(path, most, text, bytes, e) : 0;
}

// ---------------------------------------------------------------- members

// Reads "spelling", {"content": "spelling", ..} or null.
static int read_token(struct json_reader *r, const char **out) {
    const char *key;
    switch (json_peek(r)) {
    case JSON_NULL:
        return json_read_null(r);
    case JSON_STRING:
        return json_read_string(r, out, NULL);
    case JSON_OBJECT:
        json_enter_object(r);
        while (json_next_key(r, &key)) {
            if (strcmp(key, "content") == 0)
                json_read_string(r, out, NULL);
            else
                json_skip(r);
        }
        return r->rc;
    default:
        return json_fail(r, ERR_FORMAT,
                         "expected a token: a string, or an object with \"content\"");
    }
}

// Reads one of [{"name": "default", "template": ".."}, ..].
static int read_named_template(struct json_reader *r, struct render_model *m) {
    const char *key, *name = "", *text = NULL;
    size_t bytes = 0;
    json_enter_object(r);
    while (json_next_key(r, &key)) {
        if (strcmp(key, "name") == 0)
            json_read_string(r, &name, NULL);
        else if (strcmp(key, "template") == 0)
            json_read_string(r, &text, &bytes);
        else
            json_skip(r);
    }
    if (r->rc == 0 && text != NULL && strcmp(name, "default") == 0) {
        m->chat_template = text;
        m->chat_template_bytes = bytes;
    }
    return r->rc;
}

static int read_template(struct json_reader *r, struct render_model *m) {
    switch (json_peek(r)) {
    case JSON_NULL:
        return json_read_null(r);
    case JSON_STRING:
        return json_read_string(r, &m->chat_template, &m->chat_template_bytes);
    case JSON_ARRAY:
        json_enter_array(r);
        while (json_next_element(r))
            read_named_template(r, m);
        if (r->rc == 0 && m->chat_template == NULL)
            return json_fail(r, ERR_FORMAT, "no chat template of the list is named \"default\"");
        return r->rc;
    default:
        return json_fail(r, ERR_FORMAT,
                         "chat_template: expected a string or a list of named templates");
    }
}

static void add_end(struct render_model *m, int64_t id) {
    bool there = id < 0 || id > INT32_MAX || m->n_ends == RENDER_ENDS_MOST;
    for (int i = 0; i < m->n_ends; i++)
        there |= m->ends[i] == id;
    if (!there)
        m->ends[m->n_ends++] = (int32_t)id;
}

// Reads an id, the first of a list of ids, or null. ends: NULL, or gets all of them.
static int read_id(struct json_reader *r, int64_t *out, struct render_model *ends) {
    int64_t id = -1;
    if (json_peek(r) == JSON_NULL)
        return json_read_null(r);
    if (json_peek(r) == JSON_ARRAY) {
        json_enter_array(r);
        for (bool first = true; json_next_element(r); first = false) {
            int64_t next = -1;
            json_read_i64(r, &next);
            id = first ? next : id;
            if (ends != NULL)
                add_end(ends, next);
        }
    } else {
        json_read_i64(r, &id);
        if (ends != NULL)
            add_end(ends, id);
    }
    if (r->rc == 0 && id < 0)
        return json_fail(r, ERR_FORMAT, "expected a token id, 0 or more");
    *out = *out < 0 ? id : *out;
    return r->rc;
}

// ---------------------------------------------------------------- files

static int read_flag(struct json_reader *r, int *out) {
    bool flag = false;
    if (json_peek(r) == JSON_NULL)
        return json_read_null(r);
    json_read_bool(r, &flag);
    *out = flag;
    return r->rc;
}

static int read_member(struct json_reader *r, const char *key, bool ids_only,
                       struct render_model *m) {
    if (strcmp(key, "eos_token_id") == 0)
        return ids_only ? read_id(r, &m->eos_id, m) : json_skip(r);
    if (strcmp(key, "bos_token_id") == 0)
        return ids_only ? read_id(r, &m->bos_id, NULL) : json_skip(r);
    if (ids_only)
        return json_skip(r);
    for (int i = 0; i < RENDER_TOKENS_NAMED; i++) {
        const char *spelling = NULL;
        if (strcmp(key, render_token_names[i]) != 0)
            continue;
        read_token(r, &spelling);
        if (m->token[i] == NULL)
            m->token[i] = spelling;
        return r->rc;
    }
    if (strcmp(key, "chat_template") == 0 && m->chat_template == NULL)
        return read_template(r, m);
    return strcmp(key, "add_bos_token") == 0 ? read_flag(r, &m->add_bos) : json_skip(r);
}

static int read_config(const char *dir, const char *name, bool ids_only, struct region *r,
                       struct render_model *m, struct err *e) {
    char path[1200], *text;
    size_t bytes = 0;
    bool had_template = m->chat_template != NULL;
    TRY(read_file(dir, name, CONFIG_MAX_BYTES, path, &text, &bytes, e));
    if (text == NULL)
        return 0;
    struct json_reader j;
    json_reader_init(&j, path, text, bytes, r, e);
    json_enter_object(&j);
    const char *key;
    while (json_next_key(&j, &key))
        read_member(&j, key, ids_only, m);
    int rc = json_finish(&j);
    free(text);
    if (rc == 0 && !had_template && m->chat_template != NULL) {
        m->chat_template_file = region_copy(r, path);
        if (m->chat_template_file == NULL)
            return err_set(e, ERR_MEMORY, "%s: no memory to read it", path);
    }
    return rc;
}

static int read_jinja(const char *dir, struct region *r, struct render_model *m, struct err *e) {
    char path[1200], *text;
    size_t bytes = 0;
    TRY(read_file(dir, "chat_template.jinja", TEMPLATE_MAX_BYTES, path, &text, &bytes, e));
    if (text == NULL)
        return 0;
    char *copy = region_alloc(r, bytes + 1);
    m->chat_template_file = region_copy(r, path);
    if (copy != NULL)
        memcpy(copy, text, bytes);
    free(text);
    if (copy == NULL || m->chat_template_file == NULL)
        return err_set(e, ERR_MEMORY, "%s: no memory to read it", path);
    m->chat_template = copy;
    m->chat_template_bytes = bytes;
    return 0;
}

// ---------------------------------------------------------------- tokenizer.json's post-processor

// Reads {"SpecialToken": {"id": "<|begin_of_text|>", ..}} in front of {"Sequence": ..}: its
// spelling.
static int read_piece(struct json_reader *r, bool *at_front, const char **bos) {
    const char *key;
    json_enter_object(r);
    while (json_next_key(r, &key)) {
        if (strcmp(key, "SpecialToken") != 0) {
            *at_front = false;
            json_skip(r);
            continue;
        }
        json_enter_object(r);
        while (json_next_key(r, &key)) {
            if (strcmp(key, "id") == 0 && *at_front && *bos == NULL)
                json_read_string(r, bos, NULL);
            else
                json_skip(r);
        }
    }
    return r->rc;
}

// Reads the post-processor, or each of a sequence of them. The JSON reader limits nesting to 64
// levels.
static int read_processor(struct json_reader *r, const char **bos) {
    const char *key;
    if (json_peek(r) != JSON_OBJECT)
        return json_skip(r);
    json_enter_object(r);
    while (json_next_key(r, &key)) {
        bool single = strcmp(key, "single") == 0, several = strcmp(key, "processors") == 0;
        if ((!single && !several) || json_peek(r) != JSON_ARRAY) {
            json_skip(r);
            continue;
        }
        bool at_front = true;
        json_enter_array(r);
        while (json_next_element(r)) {
            if (several)
                read_processor(r, bos);
            else if (json_peek(r) == JSON_OBJECT)
                read_piece(r, &at_front, bos);
            else
                json_skip(r);
        }
    }
    return r->rc;
}

// Reads one member of tokenizer.json, which was checked when the tokenizer was opened.
static int read_post_processor(const char *dir, struct region *r, struct render_model *m,
                               struct err *e) {
    char path[1200], *text;
    size_t bytes = 0;
    TRY(read_file(dir, "tokenizer.json", TOKENIZER_MAX_BYTES, path, &text, &bytes, e));
    if (text == NULL)
        return 0;
    struct json_reader j;
    const char *key, *bos = NULL;
    json_reader_init(&j, path, text, bytes, r, e);
    json_enter_object(&j);
    while (json_next_key(&j, &key)) {
        if (strcmp(key, "post_processor") == 0)
            read_processor(&j, &bos);
        else
            json_skip(&j);
    }
    int rc = json_finish(&j);
    free(text);
    if (rc == 0 && bos != NULL) {
        m->add_bos = 1;
        m->token[RENDER_BOS] = bos;
    }
    return rc;
}

int render_model_read(struct render_model *out, const char *dir, struct region *r, struct err *e) {
    *out = (struct render_model){.eos_id = -1, .bos_id = -1, .add_bos = -1};
    if (dir == NULL)
        return 0;
    TRY(read_jinja(dir, r, out, e));
    TRY(read_config(dir, "tokenizer_config.json", false, r, out, e));
    TRY(read_config(dir, "special_tokens_map.json", false, r, out, e));
    TRY(read_config(dir, "generation_config.json", true, r, out, e));
    TRY(read_config(dir, "config.json", true, r, out, e));
    return out->add_bos < 0 ? read_post_processor(dir, r, out, e) : 0;
}
