// record.c - reads a line: finds its members, checks their values, brings conversations to one
// form.
#include "data/record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    bool nested;
} known[RECORD_KEY_COUNT] = {
#define X(id, text, nested) {text, nested},
    RECORD_KEYS(X)
#undef X
};

// What a member holds, in the words of JSON.
static const char *found(const struct value *v) {
    return v->type == VALUE_NONE ? "null" : value_type_name(v);
}

// ---------------------------------------------------------------- names of members

static int unknown_key(const char *name, size_t n, struct err *e) {
    char list[300];
    size_t used = 0;
    for (int k = 0; k < RECORD_KEY_COUNT; k++)
        used +=
            (size_t)snprintf(list + used, sizeof list - used, "%s%s", k ? ", " : "", known[k].name);
    return err_set(e, ERR_USAGE,
                   "data.keys: \"%.*s\" is not a member that can be renamed; accepted: %s, each as "
                   "\"usual=name in the file\"",
                   (int)(n < 60 ? n : 60), name, list);
}

static int rename_one(struct record_keys *keys, const char *entry, size_t n, struct region *r,
                      struct err *e) {
    while (n > 0 && *entry == ' ')
        entry++, n--;
    while (n > 0 && entry[n - 1] == ' ')
        n--;
    const char *equal = memchr(entry, '=', n);
    size_t usual = equal != NULL ? (size_t)(equal - entry) : 0;
    if (usual == 0 || usual + 1 == n)
        return err_set(e, ERR_USAGE,
                       "data.keys: \"%.*s\" is not a rename; accepted: \"usual=name in the file\", "
                       "such as \"prompt=question,completion=answer\"",
                       (int)(n < 60 ? n : 60), entry);
    for (int k = 0; k < RECORD_KEY_COUNT; k++) {
        if (strlen(known[k].name) != usual || memcmp(known[k].name, entry, usual) != 0)
            continue;
        char *name = region_printf(r, "%.*s", (int)(n - usual - 1), equal + 1);
        if (name == NULL)
            return err_set(e, ERR_MEMORY, "no memory for the names of members");
        keys->actual[k] = name;
        return 0;
    }
    return unknown_key(entry, usual, e);
}

int record_keys_parse(struct record_keys *out, const char *renames, struct region *r,
                      struct err *e) {
    for (int k = 0; k < RECORD_KEY_COUNT; k++)
        out->actual[k] = known[k].name;
    if (renames != NULL && strlen(renames) > 4096)
        return err_set(e, ERR_USAGE, "data.keys: the renames are longer than 4096 bytes");
    for (const char *at = renames; at != NULL && *at != '\0';) {
        size_t n = strcspn(at, ",");
        TRY(rename_one(out, at, n, r, e));
        at += n + (at[n] == ',');
    }
    // A name that a rename uses loses its usual meaning: with messages=conversations,
    // "conversations" is no longer sharegpt.
    struct record_keys given = *out;
    for (int k = 0; k < RECORD_KEY_COUNT; k++)
        for (int other = 0; other < RECORD_KEY_COUNT; other++) {
            if (other == k || known[k].nested != known[other].nested ||
                strcmp(given.actual[k], given.actual[other]) != 0)
                continue;
            if (given.actual[k] != known[k].name && given.actual[other] != known[other].name)
                return err_set(e, ERR_USAGE, "data.keys: \"%s\" cannot be both %s and %s",
                               given.actual[k], known[k].name, known[other].name);
            if (given.actual[k] == known[k].name)
                out->actual[k] = NULL;
        }
    return 0;
}

static int find_key(const struct record_keys *keys, const char *name, bool nested) {
    for (int k = 0; k < RECORD_KEY_COUNT; k++)
        if (known[k].nested == nested && keys->actual[k] != NULL &&
            strcmp(keys->actual[k], name) == 0)
            return k;
    return -1;
}

static const char *spelt(const struct record_keys *keys, enum record_key k) {
    return keys->actual[k] != NULL ? keys->actual[k] : known[k].name;
}

// ---------------------------------------------------------------- a line's members

// The JSON reader reports "line 1" for every line. Removes it: the caller adds the real line
// number.
static int json_failed(struct json_reader *r) {
    static const char noise[] = ": line 1, ";
    if (r->e != NULL && strncmp(r->e->text, noise, sizeof noise - 1) == 0)
        memmove(r->e->text, r->e->text + sizeof noise - 1,
                strlen(r->e->text) - (sizeof noise - 1) + 1);
    return r->rc;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

// Names at the top of a line, kept to find one that appears twice.
struct names {
    const char **items;
    size_t n, capacity;
};

static int add_name(struct value_heap *h, struct names *l, const char *name) {
    if (value_make_room(h, &l->items, l->n, &l->capacity, sizeof *l->items, 16) != 0)
        return err_context(h->e, "names of members");
    l->items[l->n++] = name;
    return 0;
}

static int refuse_twice(struct value_heap *h, struct names *l) {
    if (l->n > 1)
        qsort(l->items, l->n, sizeof *l->items, compare_names);
    for (size_t i = 1; i < l->n; i++)
        if (strcmp(l->items[i - 1], l->items[i]) == 0)
            return err_set(h->e, ERR_FORMAT, "the member \"%.60s\" appears twice", l->items[i]);
    return 0;
}

static int read_ids(struct value_heap *h, struct json_reader *r, const char *name, int32_t **out,
                    size_t *n) {
    size_t capacity = 0;
    TRY(json_enter_array(r));
    while (json_next_element(r)) {
        int64_t id;
        if (json_read_i64(r, &id) != 0)
            break;
        if (id < INT32_MIN || id > INT32_MAX)
            return json_fail(r, ERR_FORMAT, "%s: %lld is not a token id", name, (long long)id);
        if (value_make_room(h, out, *n, &capacity, sizeof **out, 64) != 0)
            return err_context(h->e, "%s", name);
        (*out)[(*n)++] = (int32_t)id;
    }
    return r->rc;
}

// Members of the line that the shapes know. Those not in `wanted` (a bit per key) are only marked
// as present.
struct members {
    struct value value[RECORD_KEY_COUNT];
    bool present[RECORD_KEY_COUNT];
    struct names names;
};

static int read_member(struct value_heap *h, struct json_reader *r, int key, struct members *m,
                       struct record *ids) {
    if (key == KEY_INPUT_IDS)
        return read_ids(h, r, "input_ids", &ids->ids, &ids->n_ids);
    if (key == KEY_LABELS)
        return read_ids(h, r, "labels", &ids->labels, &ids->n_labels);
    return value_read_json(h, r, ORIGIN_RECORD, &m->value[key]);
}

static int read_members(struct value_heap *h, struct json_reader *r, const struct record_keys *keys,
                        unsigned wanted, struct members *m, struct record *ids) {
    for (int k = 0; k < RECORD_KEY_COUNT; k++)
        m->value[k] = value_undefined(known[k].name);
    if (json_peek(r) != JSON_OBJECT && r->rc == 0)
        json_fail(r, ERR_FORMAT, "expected an object, {\"..\": ..}");
    json_enter_object(r);
    const char *name;
    while (json_next_key(r, &name)) {
        TRY(add_name(h, &m->names, name));
        int key = find_key(keys, name, false);
        if (key >= 0)
            m->present[key] = true;
        if (key >= 0 && (wanted >> key & 1))
            TRY(read_member(h, r, key, m, ids));
        else
            json_skip(r);
    }
    TRY(json_finish(r));
    return refuse_twice(h, &m->names);
}

static int parse(struct value_heap *h, const struct record_keys *keys, const char *text,
                 size_t bytes, unsigned wanted, struct members *m, struct record *ids) {
    struct json_reader r;
    json_reader_init(&r, "", text, bytes, h->region, h->e);
    int rc = read_members(h, &r, keys, wanted, m, ids);
    if (r.rc != 0)
        return json_failed(&r);
    return rc;
}

// ---------------------------------------------------------------- which shape

// The members that identify a shape, and all members it may have.
static const struct {
    enum record_key need[2];
    unsigned all;
} shapes[RENDER_SHAPES] = {
    [RENDER_TEXT] = {{KEY_TEXT, KEY_TEXT}, 1u << KEY_TEXT},
    [RENDER_COMPLETION] = {{KEY_PROMPT, KEY_COMPLETION},
                           1u << KEY_PROMPT | 1u << KEY_COMPLETION | 1u << KEY_TOOLS},
    [RENDER_MESSAGES] = {{KEY_MESSAGES, KEY_MESSAGES}, 1u << KEY_MESSAGES | 1u << KEY_TOOLS},
    [RENDER_ALPACA] = {{KEY_INSTRUCTION, KEY_OUTPUT},
                       1u << KEY_INSTRUCTION | 1u << KEY_INPUT | 1u << KEY_OUTPUT |
                           1u << KEY_SYSTEM},
    [RENDER_SHAREGPT] = {{KEY_CONVERSATIONS, KEY_CONVERSATIONS},
                         1u << KEY_CONVERSATIONS | 1u << KEY_SYSTEM | 1u << KEY_TOOLS},
    [RENDER_TOKENS] = {{KEY_INPUT_IDS, KEY_INPUT_IDS}, 1u << KEY_INPUT_IDS | 1u << KEY_LABELS},
};

const char *render_shape_name(enum render_shape s) {
    static const char *const names[RENDER_SHAPES] = {"auto",   "text",     "completion", "messages",
                                                     "alpaca", "sharegpt", "tokens"};
    return (unsigned)s < RENDER_SHAPES ? names[s] : "unknown";
}

static int no_shape(struct value_heap *h, const struct members *m) {
    char list[200] = "none";
    size_t used = 0;
    for (size_t i = 0; i < m->names.n && used + 50 < sizeof list; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%.40s", i ? ", " : "",
                                 m->names.items[i]);
    return err_set(
        h->e, ERR_FORMAT,
        "no known shape: its members are %s%s; shapes are text (text), completion "
        "(prompt, completion), messages (messages), alpaca (instruction, output), sharegpt "
        "(conversations), tokens (input_ids); data.keys can rename members",
        list, used + 50 >= sizeof list ? ", .." : "");
}

int record_detect(struct value_heap *h, const struct record_keys *keys, const char *text,
                  size_t bytes, enum render_shape *out) {
    struct members m = {0};
    struct record ids = {0};
    *out = RENDER_AUTO;
    TRY(parse(h, keys, text, bytes, 0, &m, &ids));
    for (int s = RENDER_TEXT; s < RENDER_SHAPES; s++) {
        if (!m.present[shapes[s].need[0]] || !m.present[shapes[s].need[1]])
            continue;
        if (*out != RENDER_AUTO)
            return err_set(h->e, ERR_FORMAT,
                           "has the members of the shapes %s and %s; choose one with data.shape",
                           render_shape_name(*out), render_shape_name((enum render_shape)s));
        *out = (enum render_shape)s;
    }
    return *out == RENDER_AUTO ? no_shape(h, &m) : 0;
}

// ---------------------------------------------------------------- conversations

static const struct {
    const char *name, *role;
} roles[] = {
    {"system", "system"},
    {"developer", "developer"},
    {"user", "user"},
    {"assistant", "assistant"},
    {"tool", "tool"},
    {"function", "tool"},
    // sharegpt only
    {"human", "user"},
    {"gpt", "assistant"},
    {"chatgpt", "assistant"},
    {"bot", "assistant"},
    {"model", "assistant"},
    {"observation", "tool"},
};
enum { OPENAI_ROLES = 6, ALL_ROLES = sizeof roles / sizeof *roles };

// Returns the role as templates spell it. It is the template's text, not the record's, because it
// stands inside special marks.
static const char *role_of(const struct marked *s, size_t accepted) {
    for (size_t i = 0; i < accepted; i++)
        if (marked_equals(s, roles[i].name))
            return roles[i].role;
    return NULL;
}

// Sets the origin of all text that a message holds.
static void set_origin(struct value *v, uint32_t origin) {
    if (v->type == VALUE_STRING) {
        ((struct marked *)v->s)->origin = origin; // made while reading this line and not shared
    } else if (v->type == VALUE_LIST) {
        for (size_t i = 0; i < v->list->n; i++)
            set_origin(&v->list->items[i], origin);
    } else if (v->type == VALUE_DICT) {
        for (size_t i = 0; i < v->dict->n; i++) {
            ((struct marked *)v->dict->pairs[i].key)->origin = origin;
            set_origin(&v->dict->pairs[i].value, origin);
        }
    }
}

// Joins [{"type": "text", "text": ".."}, ..] to one string.
static int join_parts(struct value_heap *h, const struct value_list *parts, size_t message,
                      struct value *out) {
    struct marked_builder b = {0};
    for (size_t i = 0; i < parts->n; i++) {
        const struct value *part = &parts->items[i], *type = NULL, *text = NULL;
        if (part->type == VALUE_DICT) {
            type = value_dict_get(part->dict, "type", 4);
            text = value_dict_get(part->dict, "text", 4);
        }
        if (type == NULL || type->type != VALUE_STRING || !marked_equals(type->s, "text") ||
            text == NULL || text->type != VALUE_STRING)
            return err_set(h->e, ERR_FORMAT,
                           "message %zu: part %zu of its content is not "
                           "{\"type\": \"text\", \"text\": \"..\"}; other kinds are not accepted",
                           message, i + 1);
        TRY(marked_add(h, &b, text->s));
    }
    return marked_finish(h, &b, out);
}

static int read_content(struct value_heap *h, const struct value_dict *d, const char *name,
                        bool may_be_missing, size_t message, struct value *out) {
    const struct value *content = value_dict_get(d, name, strlen(name));
    if ((content == NULL || content->type == VALUE_NONE) && may_be_missing) {
        *out = value_none();
        return 0;
    }
    if (content == NULL)
        return err_set(h->e, ERR_FORMAT, "message %zu has no \"%s\"", message, name);
    *out = *content;
    if (content->type == VALUE_LIST)
        return join_parts(h, content->list, message, out);
    if (content->type != VALUE_STRING)
        return err_set(h->e, ERR_FORMAT, "message %zu: \"%s\" is %s; a string is expected", message,
                       name, found(content));
    return 0;
}

static int set_member(struct value_heap *h, struct value_dict *d, const char *name,
                      struct value v) {
    struct value key;
    TRY(value_string(h, name, strlen(name), ORIGIN_TEMPLATE, &key));
    return value_dict_set(h, d, key.s, v);
}

static int add_message(struct value_heap *h, struct value_list *list, const char *role,
                       struct value content, const struct value_dict *rest,
                       const char *const taken[2]) {
    struct value made, name;
    if (content.type == VALUE_STRING)
        set_origin(&content, (uint32_t)list->n + 1);
    TRY(value_dict_new(h, &made));
    TRY(value_string(h, role, strlen(role), ORIGIN_TEMPLATE, &name));
    TRY(set_member(h, made.dict, "role", name));
    TRY(set_member(h, made.dict, "content", content));
    for (size_t i = 0; rest != NULL && i < rest->n; i++) { // tool_calls, name, reasoning_content ..
        struct value_pair *p = &rest->pairs[i];
        if (marked_equals(p->key, taken[0]) || marked_equals(p->key, taken[1]) ||
            marked_equals(p->key, "role") || marked_equals(p->key, "content"))
            continue;
        set_origin(&p->value, (uint32_t)list->n + 1);
        TRY(value_dict_set(h, made.dict, p->key, p->value));
    }
    return value_list_add(h, list, made);
}

static int convert_message(struct value_heap *h, const struct value *given, const char *role_name,
                           const char *content_name, size_t accepted, size_t number,
                           struct value_list *out) {
    if (given->type != VALUE_DICT)
        return err_set(h->e, ERR_FORMAT, "message %zu is %s; an object is expected", number,
                       found(given));
    const struct value *role = value_dict_get(given->dict, role_name, strlen(role_name));
    if (role == NULL || role->type != VALUE_STRING)
        return err_set(h->e, ERR_FORMAT, "message %zu has no \"%s\" that is a string", number,
                       role_name);
    const char *known_role = role_of(role->s, accepted);
    if (known_role == NULL)
        return err_set(h->e, ERR_FORMAT, "message %zu: \"%s\" is \"%.40s\"; accepted: %s", number,
                       role_name, role->s->bytes,
                       accepted == ALL_ROLES ? "human, gpt, system, user, assistant, tool"
                                             : "system, developer, user, assistant, tool");
    const struct value *calls = value_dict_get(given->dict, "tool_calls", 10);
    struct value content;
    TRY(read_content(h, given->dict, content_name, calls != NULL && calls->type == VALUE_LIST,
                     number, &content));
    const char *const taken[2] = {role_name, content_name};
    return add_message(h, out, known_role, content, given->dict, taken);
}

static int convert_list(struct value_heap *h, const struct value *given, const char *what,
                        const char *role_name, const char *content_name, size_t accepted,
                        struct value_list *out) {
    if (given->type != VALUE_LIST)
        return err_set(h->e, ERR_FORMAT, "\"%s\" is %s; a list of messages is expected", what,
                       found(given));
    for (size_t i = 0; i < given->list->n; i++)
        TRY(convert_message(h, &given->list->items[i], role_name, content_name, accepted, i + 1,
                            out));
    return 0;
}

static bool may_follow(const char *role, const char *before) {
    bool after_user = before != NULL && strcmp(before, "user") == 0;
    bool after_tool = before != NULL && strcmp(before, "tool") == 0;
    bool after_assistant = before != NULL && strcmp(before, "assistant") == 0;
    if (strcmp(role, "system") == 0 || strcmp(role, "developer") == 0)
        return before == NULL;
    if (strcmp(role, "user") == 0)
        return !after_user;
    if (strcmp(role, "assistant") == 0)
        return after_user || after_tool;
    return after_assistant || after_tool;
}

static int check_order(struct value_heap *h, const struct value_list *messages) {
    const char *before = NULL;
    if (messages->n == 0)
        return err_set(h->e, ERR_FORMAT, "the conversation has no messages");
    for (size_t i = 0; i < messages->n; i++) {
        const char *role = messages->items[i].dict->pairs[0].value.s->bytes; // add_message: first
        if (!may_follow(role, before))
            return err_set(h->e, ERR_FORMAT,
                           "roles out of order: message %zu has role %s %s%s; expected: an "
                           "optional system message first, then user and assistant in turn",
                           i + 1, role, before != NULL ? "after role " : "at the beginning",
                           before != NULL ? before : "");
        before = role;
    }
    return 0;
}

static bool is_system(const struct value *v) {
    return v->type == VALUE_STRING && v->s->n > 0;
}

// Puts a system message in front where the conversation does not contain one.
static int begin_conversation(struct value_heap *h, const struct value *own, const char *first_role,
                              const char *otherwise, struct record *out) {
    TRY(value_list_new(h, &out->messages));
    if (own->type != VALUE_UNDEFINED && own->type != VALUE_NONE && own->type != VALUE_STRING)
        return err_set(h->e, ERR_FORMAT, "\"system\" is %s; a string is expected", found(own));
    static const char *const none[2] = {"", ""};
    if (is_system(own))
        return add_message(h, out->messages.list, "system", *own, NULL, none);
    bool has_one = first_role != NULL &&
                   (strcmp(first_role, "system") == 0 || strcmp(first_role, "developer") == 0);
    if (has_one || otherwise == NULL || *otherwise == '\0')
        return 0;
    struct value content;
    TRY(value_string(h, otherwise, strlen(otherwise), ORIGIN_RECORD, &content));
    return add_message(h, out->messages.list, "system", content, NULL, none);
}

// Returns the role of a list's first message. The list is not checked yet; NULL when it has none.
static const char *first_role(const struct value *list, const char *role_name, size_t accepted) {
    if (list->type != VALUE_LIST || list->list->n == 0 || list->list->items[0].type != VALUE_DICT)
        return NULL;
    const struct value *role =
        value_dict_get(list->list->items[0].dict, role_name, strlen(role_name));
    return role != NULL && role->type == VALUE_STRING ? role_of(role->s, accepted) : NULL;
}

// ---------------------------------------------------------------- a record of each shape

static int need_member(struct value_heap *h, const struct members *m,
                       const struct record_keys *keys, enum record_key k) {
    if (m->present[k])
        return 0;
    return err_set(h->e, ERR_FORMAT, "has no member \"%s\"", spelt(keys, k));
}

static int need_string(struct value_heap *h, const struct members *m,
                       const struct record_keys *keys, enum record_key k) {
    TRY(need_member(h, m, keys, k));
    if (m->value[k].type != VALUE_STRING)
        return err_set(h->e, ERR_FORMAT, "\"%s\" is %s; a string is expected", spelt(keys, k),
                       found(&m->value[k]));
    return 0;
}

static int read_messages(struct value_heap *h, const struct members *m,
                         const struct record_keys *keys, enum record_key list_key,
                         enum record_key role, enum record_key content, const char *system,
                         struct record *out) {
    size_t accepted = role == KEY_FROM ? ALL_ROLES : OPENAI_ROLES;
    const struct value *list = &m->value[list_key];
    TRY(need_member(h, m, keys, list_key));
    out->chat = true;
    TRY(begin_conversation(h, &m->value[KEY_SYSTEM], first_role(list, spelt(keys, role), accepted),
                           system, out));
    TRY(convert_list(h, list, spelt(keys, list_key), spelt(keys, role), spelt(keys, content),
                     accepted, out->messages.list));
    return check_order(h, out->messages.list);
}

static int read_alpaca(struct value_heap *h, const struct members *m,
                       const struct record_keys *keys, const char *system, struct record *out) {
    static const char *const none[2] = {"", ""};
    const struct value *input = &m->value[KEY_INPUT];
    TRY(need_string(h, m, keys, KEY_INSTRUCTION));
    TRY(need_string(h, m, keys, KEY_OUTPUT));
    struct marked_builder b = {0};
    TRY(marked_add(h, &b, m->value[KEY_INSTRUCTION].s));
    if (m->present[KEY_INPUT] && input->type != VALUE_NONE) {
        TRY(need_string(h, m, keys, KEY_INPUT));
        if (input->s->n > 0) {
            TRY(marked_add_bytes(h, &b, "\n\n", 2, ORIGIN_RECORD));
            TRY(marked_add(h, &b, input->s));
        }
    }
    struct value user;
    TRY(marked_finish(h, &b, &user));
    out->chat = true;
    TRY(begin_conversation(h, &m->value[KEY_SYSTEM], NULL, system, out));
    TRY(add_message(h, out->messages.list, "user", user, NULL, none));
    return add_message(h, out->messages.list, "assistant", m->value[KEY_OUTPUT], NULL, none);
}

static int read_completion(struct value_heap *h, const struct members *m,
                           const struct record_keys *keys, const char *system, struct record *out) {
    const struct value *prompt = &m->value[KEY_PROMPT], *completion = &m->value[KEY_COMPLETION];
    TRY(need_member(h, m, keys, KEY_PROMPT));
    TRY(need_member(h, m, keys, KEY_COMPLETION));
    if (prompt->type != VALUE_LIST && completion->type != VALUE_LIST) {
        TRY(need_string(h, m, keys, KEY_PROMPT));
        TRY(need_string(h, m, keys, KEY_COMPLETION));
        out->text = *prompt;
        out->completion = *completion;
        return 0;
    }
    const char *role = spelt(keys, KEY_ROLE), *content = spelt(keys, KEY_CONTENT);
    struct value no_system = value_undefined("system");
    out->chat = true;
    TRY(begin_conversation(h, &no_system, first_role(prompt, role, OPENAI_ROLES), system, out));
    TRY(convert_list(h, prompt, spelt(keys, KEY_PROMPT), role, content, OPENAI_ROLES,
                     out->messages.list));
    out->context_messages = out->messages.list->n;
    TRY(convert_list(h, completion, spelt(keys, KEY_COMPLETION), role, content, OPENAI_ROLES,
                     out->messages.list));
    if (out->context_messages == out->messages.list->n)
        return err_set(h->e, ERR_FORMAT, "\"%s\" has no messages", spelt(keys, KEY_COMPLETION));
    return check_order(h, out->messages.list);
}

static int check_tokens(struct value_heap *h, const struct members *m,
                        const struct record_keys *keys, const struct record *out) {
    TRY(need_member(h, m, keys, KEY_INPUT_IDS));
    if (!m->present[KEY_LABELS])
        return 0;
    if (out->n_ids != out->n_labels)
        return err_set(h->e, ERR_FORMAT, "%zu input_ids and %zu labels; the counts must be equal",
                       out->n_ids, out->n_labels);
    for (size_t i = 0; i < out->n_ids; i++)
        if (out->labels[i] != -100 && out->labels[i] != out->ids[i])
            return err_set(h->e, ERR_FORMAT,
                           "labels[%zu] is %d; accepted: -100 (not trained) or input_ids[%zu], %d",
                           i, out->labels[i], i, out->ids[i]);
    return 0;
}

static int read_shape(struct value_heap *h, const struct members *m, const struct record_keys *keys,
                      enum render_shape shape, const char *system, struct record *out) {
    switch (shape) {
    case RENDER_TEXT:
        TRY(need_string(h, m, keys, KEY_TEXT));
        out->text = m->value[KEY_TEXT];
        return 0;
    case RENDER_COMPLETION:
        return read_completion(h, m, keys, system, out);
    case RENDER_MESSAGES:
        return read_messages(h, m, keys, KEY_MESSAGES, KEY_ROLE, KEY_CONTENT, system, out);
    case RENDER_ALPACA:
        return read_alpaca(h, m, keys, system, out);
    case RENDER_SHAREGPT:
        return read_messages(h, m, keys, KEY_CONVERSATIONS, KEY_FROM, KEY_VALUE, system, out);
    case RENDER_TOKENS:
        return check_tokens(h, m, keys, out);
    default:
        return err_set(h->e, ERR_INTERNAL, "no shape was chosen");
    }
}

int record_read(struct value_heap *h, const struct record_keys *keys, enum render_shape shape,
                const char *system, const char *text, size_t bytes, struct record *out) {
    struct members m = {0};
    *out = (struct record){.text = value_undefined("text"),
                           .completion = value_undefined("completion"),
                           .messages = value_undefined("messages"),
                           .tools = value_undefined("tools")};
    unsigned wanted = (unsigned)shape < RENDER_SHAPES ? shapes[shape].all : 0;
    TRY(parse(h, keys, text, bytes, wanted, &m, out));
    TRY(read_shape(h, &m, keys, shape, system, out));
    if (out->chat && m.value[KEY_TOOLS].type == VALUE_LIST)
        out->tools = m.value[KEY_TOOLS];
    else if (out->chat && m.value[KEY_TOOLS].type > VALUE_NONE)
        return err_set(h->e, ERR_FORMAT, "\"tools\" is %s; a list is expected",
                       found(&m.value[KEY_TOOLS]));
    return 0;
}
