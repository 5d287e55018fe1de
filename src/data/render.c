// render.c - opens a renderer, and renders a line of each shape.
#include "data/render_impl.h"

#include "base/hash.h"
#include "base/utf8.h"
#include "data/lines.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

// Raised when the same options begin to give other tokens, so that older shards are not reused.
enum { RENDER_VERSION = 3 };

// Limits of memory and work for one line: a base plus a factor times the line's bytes.
enum { HEAP_LEAST_BYTES = 8 << 20, HEAP_FACTOR = 24, STEPS_LEAST = 200000, STEPS_FACTOR = 32 };

// ---------------------------------------------------------------- special tokens of the model

static int find_token(struct renderer *r, enum render_token which, int64_t id, const char *what,
                      int32_t *out, struct err *e) {
    const char *spelling = r->model.token[which];
    *out = -1;
    if (spelling != NULL && *spelling != '\0') {
        *out = tokenizer_find(r->tokenizer, spelling);
        if (*out < 0)
            return err_set(e, ERR_USAGE,
                           "the model's %s token is \"%.60s\", which the tokenizer does not have",
                           what, spelling);
    } else if (id >= 0) {
        if (id >= tokenizer_size(r->tokenizer))
            return err_set(e, ERR_USAGE,
                           "the model's %s token is id %" PRId64 "; the tokenizer has ids below %d",
                           what, id, (int)tokenizer_size(r->tokenizer));
        *out = (int32_t)id;
    }
    return 0;
}

// Used when no file names the end-of-text token: the usual spellings, if the tokenizer has just
// one.
static int usual_end(struct renderer *r, struct err *e) {
    static const char *const usual[] = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"};
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++) {
        int32_t id = tokenizer_find(r->tokenizer, usual[i]);
        if (id < 0 || !tokenizer_is_special(r->tokenizer, id))
            continue;
        if (r->eos >= 0)
            return err_set(
                e, ERR_USAGE,
                "the end-of-text token is not known, and the tokenizer has two candidates; add a "
                "tokenizer_config.json with \"eos_token\" to the model");
        r->eos = id;
    }
    if (r->eos < 0)
        return err_set(e, ERR_USAGE,
                       "the end-of-text token is not known; add a tokenizer_config.json with "
                       "\"eos_token\" to the model");
    return 0;
}

// Templates need the spelling of a token, also when the folder gives only its id.
static int spell_token(struct renderer *r, enum render_token which, int32_t id, struct err *e) {
    if (r->model.token[which] != NULL || id < 0)
        return 0;
    size_t bytes;
    const char *text = tokenizer_text(r->tokenizer, id, &bytes);
    if (bytes == 0)
        return 0;
    r->model.token[which] = region_printf(&r->region, "%.*s", (int)bytes, text);
    return r->model.token[which] ? 0 : err_set(e, ERR_MEMORY, "no memory for a renderer");
}

// A model without a tokenizer has no spellings. Its documents are ids that end as they end, so the
// end token is only what padding and samples begin with.
static void find_ids(struct renderer *r) {
    const int64_t end = r->model.eos_id;
    for (int i = 0; i < RENDER_TOKENS_NAMED; i++)
        r->model.token[i] = NULL;
    r->eos = end >= 0 && end < tokenizer_size(r->tokenizer) ? (int32_t)end : 0;
}

static int find_tokens(struct renderer *r, struct err *e) {
    int32_t bos;
    if (tokenizer_is_ids(r->tokenizer)) {
        find_ids(r);
        return 0;
    }
    TRY(find_token(r, RENDER_EOS, r->model.eos_id, "end-of-text", &r->eos, e));
    TRY(find_token(r, RENDER_BOS, r->model.bos_id, "beginning-of-text", &bos, e));
    if (r->eos < 0)
        TRY(usual_end(r, e));
    TRY(spell_token(r, RENDER_EOS, r->eos, e));
    TRY(spell_token(r, RENDER_BOS, bos, e));
    if (r->model.add_bos == 1 && bos < 0)
        return err_set(e, ERR_USAGE,
                       "the model's texts begin with a token, but \"bos_token\" is missing from "
                       "tokenizer_config.json");
    r->bos = r->model.add_bos == 1 ? bos : -1;
    return 0;
}

// ---------------------------------------------------------------- open and close

static void add_text(struct hash *h, const char *text) {
    hash_add(h, text != NULL ? text : "", text != NULL ? strlen(text) + 1 : 1);
}

static int make_fingerprint(struct renderer *r, const struct render_options *o, struct err *e) {
    struct hash *h = hash_new();
    if (h == NULL)
        return err_set(e, ERR_MEMORY, "no memory for a renderer");
    int32_t numbers[] = {RENDER_VERSION, (int32_t)r->loss, r->bos, r->eos};
    hash_add(h, numbers, sizeof numbers);
    add_text(h, tokenizer_fingerprint(r->tokenizer));
    add_text(h, r->template_name);
    add_text(h, r->model.chat_template);
    for (int i = 0; i < RENDER_TOKENS_NAMED; i++)
        add_text(h, r->model.token[i]);
    add_text(h, o->keys);
    add_text(h, r->system);
    hash_text(h, r->fingerprint);
    hash_free(h);
    return 0;
}

static int open_renderer(struct renderer *r, const struct render_options *o, struct err *e) {
    r->tokenizer = o->tokenizer;
    r->loss = o->loss;
    r->bos = r->eos = -1;
    r->system = region_copy(&r->region, o->system != NULL ? o->system : "");
    if (r->system == NULL)
        return err_set(e, ERR_MEMORY, "no memory for a renderer");
    TRY(record_keys_parse(&r->keys, o->keys, &r->region, e));
    TRY(render_model_read(&r->model, o->model_dir, &r->region, e));
    TRY(find_tokens(r, e));
    if (o->begin_with_end)
        r->bos = r->eos;
    TRY(render_specials_open(&r->specials, r->tokenizer, &r->region, e));
    TRY(render_chat_open(r, o->chat_template != NULL ? o->chat_template : "auto", e));
    return make_fingerprint(r, o, e);
}

int renderer_open(struct renderer **out, const struct render_options *o, struct err *e) {
    *out = NULL;
    struct renderer *r = calloc(1, sizeof *r);
    if (r == NULL)
        return err_set(e, ERR_MEMORY, "no memory for a renderer");
    int rc = open_renderer(r, o, e);
    if (rc != 0) {
        renderer_close(r);
        return rc;
    }
    *out = r;
    return 0;
}

void renderer_close(struct renderer *r) {
    if (r == NULL)
        return;
    template_close(r->chat);
    region_free(&r->region);
    free(r);
}

const char *renderer_template(const struct renderer *r) {
    return r->template_name;
}
int32_t renderer_end_of_text(const struct renderer *r) {
    return r->eos;
}
struct render_marks renderer_marks(const struct renderer *r) {
    return (struct render_marks){.source = r->chat != NULL ? r->model.chat_template : NULL,
                                 .bytes = r->model.chat_template_bytes,
                                 .own = r->own_template,
                                 .written = r->own_template ? r->model.chat_template : NULL,
                                 .written_bytes = r->model.chat_template_bytes,
                                 .begin = r->bos,
                                 .turn_end = r->chat != NULL ? r->turns.end : -1,
                                 .tail = r->chat != NULL && r->turns.end < 0 ? r->turns.tail : "",
                                 .eos = r->model.token[RENDER_EOS],
                                 .bos = r->model.token[RENDER_BOS]};
}

int renderer_ends(const struct renderer *r, int32_t out[RENDER_ENDS_MOST]) {
    int n = 0;
    const int32_t own[] = {r->eos, r->chat != NULL ? r->turns.end : -1};
    for (int i = 0; i < 2 + r->model.n_ends && n < RENDER_ENDS_MOST; i++) {
        const int32_t id = i < 2 ? own[i] : r->model.ends[i - 2];
        bool there = id < 0;
        for (int k = 0; k < n; k++)
            there |= out[k] == id;
        if (!there)
            out[n++] = id;
    }
    return n;
}

const char *renderer_fingerprint(const struct renderer *r) {
    return r->fingerprint;
}

int render_context_open(struct render_context **out, const struct renderer *r, struct err *e) {
    *out = NULL;
    struct render_context *c = calloc(1, sizeof *c);
    if (c == NULL)
        return err_set(e, ERR_MEMORY, "no memory for a renderer");
    c->r = r;
    int rc = tokenizer_encoder_open(&c->encoder, r->tokenizer, e);
    if (rc != 0) {
        free(c);
        return rc;
    }
    *out = c;
    return 0;
}

void render_context_close(struct render_context *c) {
    if (c == NULL)
        return;
    tokenizer_encoder_close(c->encoder);
    region_free(&c->region);
    free(c);
}

void rendered_free(struct rendered *d) {
    token_list_free(&d->tokens);
    free(d->trained);
    *d = (struct rendered){0};
}

// ---------------------------------------------------------------- lines

static void empty(struct rendered *out) {
    out->tokens.n = 0;
    out->trained_tokens = 0;
    out->end_trained = false;
}

// The first token of a document has nothing before it to be predicted from.
static void finish(struct rendered *out) {
    if (out->tokens.n > 0)
        out->trained[0] = 0;
    for (size_t i = 0; i < out->tokens.n; i++)
        out->trained_tokens += out->trained[i];
    if (out->trained_tokens == 0)
        out->end_trained = false;
}

static int put_document(struct render_context *c, const struct marked *prompt,
                        const struct marked *text, bool prompt_trained, struct rendered *out,
                        struct err *e) {
    if (c->r->bos >= 0)
        TRY(render_put_token(c->r->bos, prompt_trained, out, e));
    if (prompt != NULL)
        TRY(render_put_text(c->encoder, prompt->bytes, prompt->n, 0, prompt_trained, out, e));
    TRY(render_put_text(c->encoder, text->bytes, text->n,
                        prompt != NULL && prompt->n > 0 ? TOKENIZER_CONTINUES : 0, true, out, e));
    TRY(render_put_token(c->r->eos, true, out, e));
    out->end_trained = true;
    return 0;
}

int render_text(struct render_context *c, const char *text, size_t bytes, struct rendered *out,
                struct err *e) {
    empty(out);
    struct marked document = {.bytes = text, .n = bytes, .origin = ORIGIN_RECORD};
    int rc = put_document(c, NULL, &document, true, out, e);
    if (rc != 0) {
        empty(out);
        return rc;
    }
    finish(out);
    return 0;
}

static int put_ids(struct render_context *c, const struct record *record, struct rendered *out,
                   struct err *e) {
    bool all = c->r->loss == RENDER_LOSS_ALL || record->labels == NULL;
    int32_t size = tokenizer_size(c->r->tokenizer), last = -1;
    for (size_t i = 0; i < record->n_ids; i++) {
        int32_t id = record->ids[i];
        if (id < 0 || id >= size)
            return err_set(e, ERR_FORMAT, "input_ids[%zu] is %d; the %s of %d; accepted: 0 to %d",
                           i, (int)id,
                           tokenizer_is_ids(c->r->tokenizer) ? "model has a vocabulary"
                                                             : "tokenizer has a vocabulary",
                           (int)size, (int)size - 1);
        bool trained = all || record->labels[i] != -100;
        TRY(render_put_token(id, trained, out, e));
        last = trained ? id : last;
    }
    out->end_trained =
        last >= 0 && (last == c->r->eos || tokenizer_is_special(c->r->tokenizer, last));
    return 0;
}

static int render_record(struct render_context *c, enum render_shape shape, struct value_heap *h,
                         const char *text, size_t bytes, struct rendered *out) {
    struct record record;
    TRY(record_read(h, &c->r->keys, shape, c->r->system, text, bytes, &record));
    if (record.chat)
        return render_chat(c, h, &record, out);
    if (shape == RENDER_TOKENS)
        return put_ids(c, &record, out, h->e);
    if (record.completion.type != VALUE_STRING)
        return put_document(c, NULL, record.text.s, true, out, h->e);
    return put_document(c, record.text.s, record.completion.s, c->r->loss == RENDER_LOSS_ALL, out,
                        h->e);
}

static struct value_heap heap_for(struct render_context *c, size_t bytes, struct err *e) {
    region_free(&c->region);
    return (struct value_heap){.region = &c->region,
                               .limit_bytes = HEAP_LEAST_BYTES + HEAP_FACTOR * bytes,
                               .steps = STEPS_LEAST + STEPS_FACTOR * (int64_t)bytes,
                               .e = e};
}

static int check_length(size_t bytes, struct err *e) {
    return bytes > LINES_MAX_BYTES ? err_set(e, ERR_FORMAT, "longer than %d bytes", LINES_MAX_BYTES)
                                   : 0;
}

static bool is_blank(const char *text, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if (text[i] != ' ' && text[i] != '\t' && text[i] != '\r' && text[i] != '\n')
            return false;
    return true;
}

int render_detect(struct render_context *c, const char *name, uint64_t line, const char *text,
                  size_t bytes, enum render_shape *out, struct err *e) {
    struct err own;
    e = e != NULL ? e : &own;
    *out = RENDER_AUTO;
    struct value_heap h = heap_for(c, bytes, e);
    int rc = check_length(bytes, e);
    if (rc == 0)
        rc = record_detect(&h, &c->r->keys, text, bytes, out);
    region_free(&c->region);
    return rc == 0 ? 0 : err_context(e, "%s: line %" PRIu64, name, line);
}

int render_is_chat(struct render_context *c, const char *text, size_t bytes, bool *out,
                   struct err *e) {
    struct value_heap h = heap_for(c, bytes, e);
    struct record record;
    enum render_shape shape;
    int rc = check_length(bytes, e);
    if (rc == 0)
        rc = record_detect(&h, &c->r->keys, text, bytes, &shape);
    if (rc == 0)
        rc = record_read(&h, &c->r->keys, shape, c->r->system, text, bytes, &record);
    *out = rc == 0 && record.chat;
    region_free(&c->region);
    return rc;
}

int render_line(struct render_context *c, enum render_shape shape, const char *name, uint64_t line,
                const char *text, size_t bytes, struct rendered *out, struct err *e) {
    struct err own; // err_context needs an err to put the context in
    e = e != NULL ? e : &own;
    empty(out);
    if (is_blank(text, bytes))
        return 0;
    struct value_heap h = heap_for(c, bytes, e);
    int rc = check_length(bytes, e);
    if (rc == 0)
        rc = render_record(c, shape, &h, text, bytes, out);
    region_free(&c->region);
    if (rc == 0) {
        finish(out);
        return 0;
    }
    empty(out);
    return err_context(e, "%s: line %" PRIu64, name, line);
}

// ---------------------------------------------------------------- what a model is to continue

int render_prompt(struct render_context *c, const char *text, size_t bytes, struct rendered *out,
                  struct err *e) {
    TRY(render_text(c, text, bytes, out, e));
    if (out->tokens.n > 1 && out->tokens.ids[out->tokens.n - 1] == c->r->eos)
        out->tokens.n--;
    return out->tokens.n > 0 ? 0
                             : err_set(e, ERR_USAGE,
                                       "the prompt is empty, and the model has no token to begin "
                                       "with");
}

static int add_member(struct value_heap *h, struct value *message, const char *name,
                      const char *text, size_t n, uint32_t origin) {
    struct value key, value;
    TRY(value_string(h, name, strlen(name), ORIGIN_TEMPLATE, &key));
    TRY(value_string(h, text, n, origin, &value));
    return value_dict_set(h, message->dict, key.s, value);
}

static int add_turns(struct value_heap *h, const struct render_turn *turns, size_t n,
                     struct value *messages) {
    TRY(value_list_new(h, messages));
    for (size_t i = 0; i < n; i++) {
        struct value message;
        char *valid = value_alloc(h, 3 * turns[i].bytes + 1);
        if (valid == NULL)
            return err_context(h->e, "turn %zu", i + 1);
        const size_t bytes = utf8_repair(turns[i].text, turns[i].bytes, valid);
        TRY(value_dict_new(h, &message));
        TRY(add_member(h, &message, "role", turns[i].role, strlen(turns[i].role), ORIGIN_RECORD));
        TRY(add_member(h, &message, "content", valid, bytes, (uint32_t)i + 1));
        TRY(value_list_add(h, messages->list, message));
    }
    return 0;
}

int render_ask(struct render_context *c, const struct render_turn *turns, size_t n,
               struct rendered *out, struct err *e) {
    size_t bytes = 0;
    struct value messages;
    empty(out);
    for (size_t i = 0; i < n; i++)
        bytes += turns[i].bytes;
    struct value_heap h = heap_for(c, bytes, e);
    int rc = check_length(bytes, e);
    if (rc == 0)
        rc = add_turns(&h, turns, n, &messages);
    if (rc == 0)
        rc = render_chat_ask(c, &h, &messages, out);
    region_free(&c->region);
    if (rc != 0)
        empty(out);
    return rc;
}

static bool is_message(const struct value *v) {
    const struct value *role = v->type == VALUE_DICT ? value_dict_get(v->dict, "role", 4) : NULL,
                       *text = role != NULL ? value_dict_get(v->dict, "content", 7) : NULL;
    return text != NULL && role->type == VALUE_STRING && text->type == VALUE_STRING;
}

static int ask_record(struct render_context *c, struct value_heap *h, const struct value *record,
                      struct rendered *out) {
    const bool object = record->type == VALUE_DICT;
    const struct value *messages = object ? value_dict_get(record->dict, "messages", 8) : NULL,
                       *prompt = object ? value_dict_get(record->dict, "prompt", 6) : NULL;
    if (prompt != NULL && prompt->type == VALUE_STRING && messages == NULL)
        return render_prompt(c, prompt->s->bytes, prompt->s->n, out, h->e);
    bool sound =
        prompt == NULL && messages != NULL && messages->type == VALUE_LIST && messages->list->n > 0;
    for (size_t i = 0; sound && i < messages->list->n; i++)
        sound = is_message(&messages->list->items[i]);
    if (!sound)
        return err_set(h->e, ERR_FORMAT,
                       "accepted: {\"prompt\": \"..\"}, or {\"messages\": [{\"role\": \"user\", "
                       "\"content\": \"..\"}, ..]}");
    return render_chat_ask(c, h, messages, out);
}

int render_ask_line(struct render_context *c, const char *name, uint64_t line, const char *text,
                    size_t bytes, struct rendered *out, struct err *e) {
    struct value record;
    struct json_reader r;
    empty(out);
    struct value_heap h = heap_for(c, bytes, e);
    int rc = check_length(bytes, e);
    if (rc == 0) {
        json_reader_init(&r, "", text, bytes, h.region, e);
        rc = value_read_json(&h, &r, ORIGIN_RECORD, &record);
        if (rc == 0)
            rc = json_finish(&r);
        else if (r.rc != 0)
            rc = r.rc;
    }
    if (rc == 0)
        rc = ask_record(c, &h, &record, out);
    region_free(&c->region);
    if (rc == 0)
        return 0;
    empty(out);
    return err_context(e, "%s: line %" PRIu64, name, line);
}
