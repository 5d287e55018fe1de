// chat.c - the chat template and the end tokens of an export: those that the run was trained with.
//
// A run may use a template that its model's folder does not have: a named one, a .jinja file, or
// "plain" where the folder has none. Programs that load the export, haggle among them, must write
// conversations as they were trained, and stop where the model learned to stop.
#include "export/parts.h"
#include "train/checkpoint_dir.h"

#include "base/file.h"
#include "base/json.h"
#include "data/dataset.h"
#include "data/lines.h"
#include "data/render.h"
#include "data/text.h"
#include "model/export_config.h"

#include <stdlib.h>
#include <string.h>

enum { CONFIG_MOST_BYTES = 16 << 20 };

static const char *knob(const struct exporter *x, int id) {
    return x->manifest.knobs[id] != NULL ? x->manifest.knobs[id] : "";
}

// ---------------------------------------------------------------- conversations

// Lines do not end with a NUL.
static bool is_blank(const char *text, size_t bytes) {
    while (bytes > 0 && memchr(" \t\r\n", text[bytes - 1], 4) != NULL)
        bytes--;
    return bytes == 0;
}

static int first_is_chat(struct render_context *c, const char *path, bool *chat, struct err *e) {
    struct lines *l;
    const char *text;
    size_t bytes;
    uint64_t number;
    TRY(lines_open(&l, path, e));
    int rc = lines_next(l, &text, &bytes, &number, e);
    while (rc == 0 && text != NULL && is_blank(text, bytes))
        rc = lines_next(l, &text, &bytes, &number, e);
    if (rc == 0 && text != NULL)
        rc = render_is_chat(c, text, bytes, chat, e);
    lines_close(l);
    return rc;
}

// Whether the run's data has conversations. That is known from data.shape, or from the first record
// of each file.
static int has_chat(const struct exporter *x, const struct renderer *r, bool *chat, struct err *e) {
    const char *shape = knob(x, KNOB_data_shape), *paths = knob(x, KNOB_data_path);
    struct text_list list = {0};
    struct render_context *c;
    *chat = strcmp(shape, "messages") == 0 || strcmp(shape, "alpaca") == 0 ||
            strcmp(shape, "sharegpt") == 0;
    if (*chat || paths[0] == '\0' || strcmp(paths, DATASET_SYNTHETIC) == 0)
        return 0;
    TRY(render_context_open(&c, r, e));
    int rc = text_list_open(&list, paths, false, e);
    for (size_t i = 0; rc == 0 && !*chat && i < list.n; i++)
        if (list.files[i].records)
            rc = first_is_chat(c, list.files[i].path, chat, e);
    text_list_close(&list);
    render_context_close(c);
    return rc;
}

// ---------------------------------------------------------------- what the run used

static int quote(char **out, const char *text, size_t bytes, struct err *e) {
    struct json_writer w;
    *out = NULL;
    if (text == NULL)
        return 0;
    json_writer_to_buffer(&w, 0);
    json_put_string_n(&w, text, bytes);
    int rc = json_writer_finish(&w, e);
    if (rc == 0 && (*out = calloc(1, w.bytes + 1)) == NULL)
        rc = err_set(e, ERR_MEMORY, "no memory for a chat template");
    if (rc == 0)
        memcpy(*out, w.buffer, w.bytes);
    free(w.buffer);
    return rc;
}

static int keep_template(struct exporter *x, const char *text, size_t bytes) {
    struct export_chat *c = &x->chat;
    if (text == NULL)
        return 0;
    c->text = malloc(bytes + 1);
    if (c->text == NULL)
        return err_set(x->e, ERR_MEMORY, "no memory for a chat template");
    memcpy(c->text, text, bytes);
    c->text_bytes = bytes;
    return 0;
}

static int note_marks(struct exporter *x, const struct renderer *r) {
    const struct render_marks m = renderer_marks(r);
    struct export_chat *c = &x->chat;
    struct err why = {0};
    bool chat = false;
    c->begin = m.begin;
    const char *name = knob(x, KNOB_data_template);
    const bool named = name[0] != '\0' && strcmp(name, "auto") != 0;
    const bool unknown = has_chat(x, r, &chat, &why) != 0;
    if (m.own || chat || named)
        c->turn_end = m.turn_end;
    c->ends[c->n_ends++] = renderer_end_of_text(r);
    if (m.turn_end >= 0 && m.turn_end != c->ends[0] && (chat || named || (unknown && m.own)))
        c->ends[c->n_ends++] = m.turn_end;
    if (m.own) // it is copied with its folder
        return keep_template(x, m.written, m.written_bytes);
    if (unknown && !named) {
        checkpoint_say(&x->o->listener, LOG_WARN,
                       "no chat template is written, because it is not known whether the run "
                       "trained on conversations: %s",
                       why.text);
        return 0;
    }
    if (m.source == NULL || (!chat && !named))
        return 0;
    TRY(keep_template(x, m.source, m.bytes));
    TRY(quote(&c->source, m.source, m.bytes, x->e));
    TRY(quote(&c->eos, m.eos, m.eos != NULL ? strlen(m.eos) : 0, x->e));
    return quote(&c->bos, m.bos, m.bos != NULL ? strlen(m.bos) : 0, x->e);
}

int export_find_chat(struct exporter *x) {
    struct tokenizer *t = NULL;
    struct renderer *r = NULL;
    struct err why = {0};
    x->chat.begin = x->chat.turn_end = -1;
    if (!x->bytes && x->tokenizer_file[0] == '\0')
        return 0; // ids, or a tokenizer that haggle cannot read
    struct render_options o = {
        .model_dir = x->bytes ? NULL : x->tokenizer_dir,
        .chat_template = knob(x, KNOB_data_template)[0] ? knob(x, KNOB_data_template) : "auto",
        .keys = knob(x, KNOB_data_keys),
        .system = knob(x, KNOB_data_system),
        .begin_with_end = x->bytes};
    int rc =
        x->bytes ? tokenizer_open_bytes(&t, &why) : tokenizer_open(&t, x->tokenizer_file, &why);
    o.tokenizer = t;
    if (rc == 0)
        rc = renderer_open(&r, &o, &why);
    if (rc == 0)
        rc = note_marks(x, r);
    else if (strcmp(o.chat_template, "auto") != 0)
        rc = err_set(x->e, rc,
                     "the run's chat template cannot be exported: %.500s; put the file back, or "
                     "name a folder that has a tokenizer with --source",
                     why.text);
    else // a tokenizer that only other programs can read is copied as it is
        rc = 0;
    renderer_close(r);
    tokenizer_close(t);
    return rc;
}

void export_free_chat(struct exporter *x) {
    free(x->chat.text);
    free(x->chat.source);
    free(x->chat.eos);
    free(x->chat.bos);
}

// ---------------------------------------------------------------- files

// Replaces a text by what an edit made of it.
static int take(int rc, char **text, size_t *bytes, char *edited, size_t edited_bytes) {
    if (rc != 0)
        return rc;
    free(*text);
    *text = edited;
    *bytes = edited_bytes;
    return 0;
}

int export_edit_ends(struct exporter *x, const char *name, bool list, char **text, size_t *bytes) {
    const struct export_chat *c = &x->chat;
    char *edited = NULL;
    size_t n = 0;
    if (c->n_ends == 0)
        return 0;
    int rc = export_config_ids(name, *text, *bytes, "eos_token_id", c->ends, list ? c->n_ends : 1,
                               list, &edited, &n, x->e);
    return take(rc, text, bytes, edited, n);
}

int export_write_template(struct exporter *x) {
    static const char name[] = "tokenizer_config.json";
    const struct export_chat *c = &x->chat;
    const struct {
        const char *key, *value;
        bool only_missing;
    } members[] = {{"bos_token", c->bos, true},
                   {"eos_token", c->eos, true},
                   {"chat_template", c->source, false}};
    char path[PATH_MAX], *text = NULL;
    size_t bytes = 0;
    if (c->source == NULL || x->bytes)
        return 0;
    int rc = file_join(path, sizeof path, x->tokenizer_dir, name, x->e);
    if (rc == 0 && file_exists(path))
        rc = file_read_all(path, CONFIG_MOST_BYTES, &text, &bytes, x->e);
    else if (rc == 0)
        rc = export_tokenizer_class(x, &text, &bytes);
    for (size_t i = 0; rc == 0 && i < sizeof members / sizeof *members; i++) {
        char *edited = NULL;
        size_t n = 0;
        if (members[i].value == NULL)
            continue;
        rc = export_config_set(name, text, bytes, members[i].key, members[i].value,
                               members[i].only_missing, &edited, &n, x->e);
        rc = take(rc, &text, &bytes, edited, n);
    }
    if (rc == 0)
        rc = export_write_file(x, name, text, bytes);
    free(text);
    return rc;
}
