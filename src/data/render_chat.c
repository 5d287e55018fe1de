// render_chat.c - renders a conversation through its template and finds which text is trained.
//
// The template runs once over the whole conversation. Origins tell where the text of each message
// went. So the trained part is found in the exact text the model will see, also with templates that
// write the last turn differently from earlier ones:
//
//   ..<|im_end|>\n<|im_start|>assistant\nHello there!<|im_end|>\n<|im_start|>user\n..
//                                       ^~~~~~~~~~~~~~~~~~~~~~^
//
// The trained part begins where the generation prompt ends (the text the template writes when it
// asks the model to continue). It ends behind the token that ends a turn. Both are found at open by
// running the template on a small conversation. A template with {% generation %} marks the trained
// part itself.
#include "data/render_impl.h"

#include "base/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROBE_BYTES = 4 << 20, PROBE_STEPS = 300000, NAMES_BYTES = 400 };

// ---------------------------------------------------------------- running the template

static int run(const struct renderer *r, const struct template *t, struct value_heap *h,
               const struct value *messages, const struct value *tools, bool ask,
               struct template_output *out) {
    const char *const *names = render_token_names;
    struct template_variable v[4 + RENDER_TOKENS_NAMED] = {
        {"messages", *messages},
        {"tools", tools->type == VALUE_LIST ? *tools : value_none()},
        {"documents", value_none()},
        {"add_generation_prompt", value_bool(ask)},
    };
    for (int i = 0; i < RENDER_TOKENS_NAMED; i++) {
        const char *spelling = r->model.token[i];
        v[4 + i] = (struct template_variable){names[i], value_undefined(names[i])};
        if (spelling != NULL)
            TRY(value_string(h, spelling, strlen(spelling), ORIGIN_TEMPLATE, &v[4 + i].value));
    }
    return template_render(t, v, sizeof v / sizeof *v, h, out);
}

// ---------------------------------------------------------------- how turns are written

static int add_turn(struct value_heap *h, struct value_list *list, const char *role,
                    const char *content) {
    struct value message, key, v;
    uint32_t origin = (uint32_t)list->n + 1;
    TRY(value_dict_new(h, &message));
    TRY(value_string(h, "role", 4, ORIGIN_TEMPLATE, &key));
    TRY(value_string(h, role, strlen(role), ORIGIN_TEMPLATE, &v));
    TRY(value_dict_set(h, message.dict, key.s, v));
    TRY(value_string(h, "content", 7, ORIGIN_TEMPLATE, &key));
    TRY(value_string(h, content, strlen(content), origin, &v));
    TRY(value_dict_set(h, message.dict, key.s, v));
    return value_list_add(h, list, message);
}

// Renders a conversation. "u": a user's turn, "a": the assistant's, "s": a system message.
static int probe(const struct renderer *r, const struct template *t, struct value_heap *h,
                 const char *turns, bool ask, struct template_output *out) {
    struct value messages, tools = value_undefined("tools");
    TRY(value_list_new(h, &messages));
    for (; *turns != '\0'; turns++) {
        if (*turns == 's')
            TRY(add_turn(h, messages.list, "system", "Be brief."));
        else if (*turns == 'u')
            TRY(add_turn(h, messages.list, "user", "Which way?"));
        else
            TRY(add_turn(h, messages.list, "assistant", "This way."));
    }
    return run(r, t, h, &messages, &tools, ask, out);
}

// Finds the text that is added to a conversation when a turn is asked for.
static int find_prompt(struct renderer *r, struct value_heap *h, const char *turns) {
    struct template_output without, with;
    TRY(probe(r, r->chat, h, turns, false, &without));
    TRY(probe(r, r->chat, h, turns, true, &with));
    size_t n = without.text->n;
    if (with.text->n < n || memcmp(with.text->bytes, without.text->bytes, n) != 0)
        return 0; // it rewrites earlier text: then a turn begins with its text
    char *copy = region_alloc(&r->region, with.text->n - n + 1);
    if (copy == NULL)
        return err_set(h->e, ERR_MEMORY, "no memory for a renderer");
    memcpy(copy, with.text->bytes + n, with.text->n - n);
    r->turns.prompt = copy;
    r->turns.prompt_bytes = with.text->n - n;
    return 0;
}

// Returns the end of the last message's text; 0 when it was not written.
static size_t last_text(const struct marked *text, uint32_t origin) {
    size_t at = text->spans == NULL && text->origin == origin ? text->n : 0;
    for (size_t i = 0; i < text->n_spans; i++)
        if (text->spans[i].origin == origin)
            at = text->spans[i].end;
    return at;
}

// Finds the special token behind the text of the last turn. Without one, finds the text behind it.
static int find_end(struct renderer *r, struct value_heap *h, const char *turns) {
    struct template_output out;
    r->turns.end = -1;
    TRY(probe(r, r->chat, h, turns, false, &out));
    size_t begin = last_text(out.text, (uint32_t)strlen(turns)), end = out.text->n;
    if (begin == 0)
        return err_set(h->e, ERR_UNSUPPORTED,
                       "the chat template %s does not write the assistant's text",
                       r->template_name);
    for (size_t at = begin; at < end; at++) {
        const struct render_special *s = render_special_at(&r->specials, out.text, at);
        if (s != NULL) {
            r->turns.end = s->id;
            return 0;
        }
    }
    while (end > begin && strchr(" \t\r\n", out.text->bytes[end - 1]) != NULL)
        end--;
    char *copy = region_alloc(&r->region, end - begin + 1);
    if (copy == NULL)
        return err_set(h->e, ERR_MEMORY, "no memory for a renderer");
    memcpy(copy, out.text->bytes + begin, end - begin);
    r->turns.tail = copy;
    r->turns.tail_bytes = end - begin;
    return 0;
}

static int find_turns(struct renderer *r, struct value_heap *h) {
    struct err *told = h->e, quiet;
    struct template_output out;
    h->e = &quiet; // some templates require a system message
    bool system = probe(r, r->chat, h, "ua", false, &out) != 0 &&
                  probe(r, r->chat, h, "sua", false, &out) == 0;
    h->e = told;
    TRY(find_end(r, h, system ? "sua" : "ua"));
    return find_prompt(r, h, system ? "su" : "u");
}

// Returns the name of a known template that gives the same output, for display; NULL: none.
static const char *recognise(const struct renderer *r, struct value_heap *h) {
    static const char *const conversations[] = {"ua", "sua", "uaua", "suaua"};
    struct err *told = h->e, quiet;
    const struct template_known *k, *found = NULL;
    h->e = &quiet;
    for (size_t i = 0; found == NULL && (k = template_known_at(i)) != NULL; i++) {
        struct template *t;
        struct template_output a, b;
        if (template_open(&t, k->name, k->source, strlen(k->source), &quiet) != 0)
            continue;
        bool same = true;
        for (size_t c = 0; c < sizeof conversations / sizeof *conversations && same; c++)
            for (int ask = 0; ask < 2 && same; ask++)
                same = probe(r, r->chat, h, conversations[c], ask, &a) == 0 &&
                       probe(r, t, h, conversations[c], ask, &b) == 0 && a.text->n == b.text->n &&
                       memcmp(a.text->bytes, b.text->bytes, a.text->n) == 0;
        found = same ? k : NULL;
        template_close(t);
    }
    h->e = told;
    return found != NULL ? found->name : NULL;
}

// ---------------------------------------------------------------- choosing a template

static const char *known_names(char out[NAMES_BYTES]) {
    size_t used = 0;
    const struct template_known *k;
    for (size_t i = 0; (k = template_known_at(i)) != NULL && used + 20 < NAMES_BYTES; i++)
        used += (size_t)snprintf(out + used, NAMES_BYTES - used, "%s%s", i ? ", " : "", k->name);
    return out;
}

static int compile(struct renderer *r, const char *name, const char *source, size_t bytes,
                   struct err *e) {
    struct region scratch = {0};
    struct value_heap h = {
        .region = &scratch, .limit_bytes = PROBE_BYTES, .steps = PROBE_STEPS, .e = e};
    size_t blank = 0;
    while (blank < bytes && strchr(" \t\r\n", source[blank]) != NULL)
        blank++;
    if (blank == bytes)
        return err_set(e, ERR_UNSUPPORTED, "the chat template %s is empty", name);
    int rc = template_open(&r->chat, name, source, bytes, e);
    if (rc == 0)
        rc = find_turns(r, &h);
    const char *same = rc == 0 ? recognise(r, &h) : NULL;
    if (same != NULL)
        r->template_name = same;
    region_free(&scratch);
    return rc;
}

static int open_known(struct renderer *r, const struct template_known *k, struct err *e) {
    for (size_t i = 0; i < sizeof k->needs / sizeof *k->needs && k->needs[i] != NULL; i++) {
        int32_t id = tokenizer_find(r->tokenizer, k->needs[i]);
        if (id < 0 || !tokenizer_is_special(r->tokenizer, id))
            return err_set(
                e, ERR_USAGE,
                "the chat template %s writes %s, which is not a special token of this tokenizer",
                k->name, k->needs[i]);
    }
    r->template_name = k->name;
    r->model.chat_template = k->source;
    r->model.chat_template_bytes = strlen(k->source);
    return compile(r, k->name, k->source, strlen(k->source), e);
}

static int open_file(struct renderer *r, const char *path, struct err *e) {
    char *text = NULL;
    size_t bytes = 0;
    TRY(file_read_all(path, TEMPLATE_MAX_BYTES, &text, &bytes, e));
    char *copy = region_alloc(&r->region, bytes + 1);
    r->template_name = region_copy(&r->region, path);
    if (copy != NULL)
        memcpy(copy, text, bytes);
    free(text);
    if (copy == NULL || r->template_name == NULL)
        return err_set(e, ERR_MEMORY, "no memory for a renderer");
    r->model.chat_template = copy;
    r->model.chat_template_bytes = bytes;
    return compile(r, path, copy, bytes, e);
}

// The folder's template may be unusable, which matters to conversations only: the error is kept.
static int open_own(struct renderer *r, struct err *e) {
    struct err why = {0};
    r->own_template = true;
    r->template_name = r->model.chat_template_file;
    int rc = compile(r, r->model.chat_template_file, r->model.chat_template,
                     r->model.chat_template_bytes, &why);
    if (rc == ERR_MEMORY)
        return err_set(e, rc, "%s", why.text);
    if (rc == 0)
        return 0;
    char names[NAMES_BYTES];
    err_set(&r->chat_error, ERR_UNSUPPORTED,
            "the model's chat template cannot be used: %.400s; choose a similar one with "
            "data.template: %s, or a file that ends in .jinja",
            why.text, known_names(names));
    template_close(r->chat);
    r->chat = NULL;
    return 0;
}

static bool is_path(const char *name) {
    size_t n = strlen(name);
    return strchr(name, '/') != NULL || (n > 6 && strcmp(name + n - 6, ".jinja") == 0);
}

int render_chat_open(struct renderer *r, const char *name, struct err *e) {
    char names[NAMES_BYTES];
    if (strcmp(name, "auto") == 0)
        return r->model.chat_template != NULL ? open_own(r, e)
                                              : open_known(r, template_known_find("plain"), e);
    const struct template_known *k = template_known_find(name);
    if (k != NULL)
        return open_known(r, k, e);
    if (is_path(name))
        return open_file(r, name, e);
    return err_set(e, ERR_USAGE,
                   "\"%.60s\" is not a known chat template; accepted: auto (the model's own), %s, "
                   "or a file whose name ends in .jinja",
                   name, known_names(names));
}

// ---------------------------------------------------------------- what is trained

struct place { // position of a message's text in the rendered text
    size_t begin, end;
    size_t before, behind; // nearest text of other messages: where it ends, where it begins
};

// Finds the places of all messages. Messages whose text was not written have begin == end.
static int find_places(struct value_heap *h, const struct marked *text, struct place *places,
                       size_t n) {
    size_t last = SIZE_MAX, last_end = 0;
    struct marked_span whole = {.end = text->n, .origin = text->origin};
    const struct marked_span *spans = text->spans != NULL ? text->spans : &whole;
    size_t n_spans = text->spans != NULL ? text->n_spans : 1;
    for (size_t i = 0, begin = 0; i < n_spans; begin = spans[i++].end) {
        if (spans[i].origin == ORIGIN_TEMPLATE || spans[i].origin == ORIGIN_RECORD)
            continue;
        size_t m = spans[i].origin - 1;
        if (m >= n)
            return err_set(h->e, ERR_INTERNAL, "text of a message that does not exist");
        struct place *p = &places[m];
        if (p->end > p->begin && last != m)
            return err_set(h->e, ERR_UNSUPPORTED,
                           "the chat template writes message %zu in several places, so the trained "
                           "part is ambiguous",
                           m + 1);
        if (p->end == p->begin) {
            *p = (struct place){.begin = begin, .before = last_end, .behind = text->n};
            if (last != SIZE_MAX)
                places[last].behind = begin;
        }
        p->end = spans[i].end;
        last = m;
        last_end = p->end;
    }
    return 0;
}

// Finds where the trained part of a turn begins: behind the generation prompt, as far as it was
// written. Without a prompt, spaces in front of the text belong to the turn, because tokens begin
// with their space and the model has to produce it.
static int turn_begin(const struct renderer *r, struct value_heap *h, const struct marked *text,
                      const struct place *p, size_t *out) {
    size_t best = 0;
    *out = p->begin;
    for (size_t at = p->before; at < p->begin; at++) {
        size_t n = 0;
        while (n < r->turns.prompt_bytes && at + n < p->begin &&
               text->bytes[at + n] == r->turns.prompt[n])
            n++;
        TRY(value_spend(h, 1 + n / 64));
        if (n > 0 && n >= best) {
            best = n;
            *out = at + n;
        }
    }
    while (best == 0 && *out > p->before && text->bytes[*out - 1] == ' ')
        --*out;
    return 0;
}

// Finds where it ends: behind the token that ends a turn, if one comes before another message's
// text.
static size_t turn_end(const struct renderer *r, const struct marked *text, const struct place *p) {
    size_t tail = r->turns.end < 0 ? r->turns.tail_bytes : 0;
    if (tail > 0 && p->behind - p->end >= tail &&
        memcmp(text->bytes + p->end, r->turns.tail, tail) == 0)
        return p->end + tail;
    for (size_t at = p->end; at < p->behind; at++) {
        const struct render_special *s = render_special_at(&r->specials, text, at);
        if (s != NULL && s->id == r->turns.end)
            return at + s->n;
    }
    return p->end;
}

static bool is_assistant(const struct value *message) {
    const struct value *role = value_dict_get(message->dict, "role", 4);
    return role != NULL && marked_equals(role->s, "assistant");
}

static int add_range(struct value_heap *h, struct render_range *ranges, size_t *n, size_t begin,
                     size_t end) {
    if (*n > 0 && begin < ranges[*n - 1].end)
        return err_set(h->e, ERR_UNSUPPORTED,
                       "the chat template does not write the messages in their order, so the "
                       "trained part is ambiguous");
    ranges[(*n)++] = (struct render_range){begin, end};
    return 0;
}

// Finds the trained ranges of the text; at most one per message or per generation block.
static int find_trained(const struct renderer *r, struct value_heap *h, const struct record *record,
                        const struct template_output *out, struct render_range **ranges,
                        size_t *n) {
    const struct value_list *messages = record->messages.list;
    size_t context_end = 0, most = messages->n + out->n_generation;
    struct place *places = value_alloc(h, messages->n * sizeof *places);
    *ranges = value_alloc(h, most * sizeof **ranges);
    if (places == NULL || *ranges == NULL)
        return err_context(h->e, "what is trained");
    TRY(find_places(h, out->text, places, messages->n));
    for (size_t i = 0; i < record->context_messages; i++)
        context_end = places[i].end > context_end ? places[i].end : context_end;
    if (template_marks_generation(r->chat)) {
        for (size_t i = 0; i < out->n_generation; i++)
            if (out->generation[i].begin >= context_end)
                TRY(add_range(h, *ranges, n, out->generation[i].begin, out->generation[i].end));
        return 0;
    }
    for (size_t i = record->context_messages; i < messages->n; i++) {
        size_t begin;
        if (!is_assistant(&messages->items[i]) || places[i].end == places[i].begin)
            continue;
        TRY(turn_begin(r, h, out->text, &places[i], &begin));
        TRY(add_range(h, *ranges, n, begin, turn_end(r, out->text, &places[i])));
    }
    return 0;
}

// A conversation that ends with the assistant ends with a trained end token: the template's, or
// else the token that ends documents.
static int finish_conversation(const struct renderer *r, const struct record *record,
                               struct rendered *out, struct err *e) {
    const struct value_list *messages = record->messages.list;
    size_t last = out->tokens.n;
    while (last > 0 && !out->trained[last - 1])
        last--;
    if (last == 0)
        return 0;
    int32_t id = out->tokens.ids[last - 1];
    out->end_trained = id == r->eos || tokenizer_is_special(r->tokenizer, id);
    if (out->end_trained || !is_assistant(&messages->items[messages->n - 1]))
        return 0;
    out->end_trained = true;
    return render_put_token(r->eos, true, out, e);
}

int render_chat(struct render_context *c, struct value_heap *h, const struct record *record,
                struct rendered *out) {
    const struct renderer *r = c->r;
    struct template_output text;
    struct render_range *ranges;
    size_t n = 0;
    if (r->chat == NULL)
        return err_set(h->e, r->chat_error.code, "%s", r->chat_error.text);
    TRY(run(r, r->chat, h, &record->messages, &record->tools, false, &text));
    TRY(find_trained(r, h, record, &text, &ranges, &n));
    TRY(render_encode(c->encoder, &r->specials, text.text, ranges, n, out, h->e));
    TRY(finish_conversation(r, record, out, h->e));
    if (r->loss == RENDER_LOSS_ALL && out->tokens.n > 0)
        memset(out->trained, 1, out->tokens.n);
    return 0;
}

int render_chat_ask(struct render_context *c, struct value_heap *h, const struct value *messages,
                    struct rendered *out) {
    const struct renderer *r = c->r;
    const struct value tools = value_undefined("tools");
    struct template_output text;
    if (r->chat == NULL)
        return err_set(h->e, r->chat_error.code, "%s", r->chat_error.text);
    TRY(run(r, r->chat, h, messages, &tools, true, &text));
    return render_encode(c->encoder, &r->specials, text.text, NULL, 0, out, h->e);
}
