// record.h - reads one line of JSONL as a record: a text, a prompt and its completion, a
// conversation, or token ids.
//
// Place: between the JSON reader and render.c. A line is not trusted until it is checked here.
//
// Invariants:
//   1. Every conversation, whatever its shape in the file, becomes a list of objects with "role"
//      and "content", as chat templates expect. The text of message k has origin k + 1
//      (template_value.h).
//   2. Roles come from a fixed list and in a fixed order. A system (or developer) message is first,
//      and only once. Then comes a user. An assistant answers a user or a tool. A tool answers an
//      assistant or follows a tool. Anything else is refused, because templates differ in how they
//      silently treat it.
//   3. Members that a shape does not know are ignored. A name that appears twice is refused.
#ifndef HAGGLE_DATA_RECORD_H
#define HAGGLE_DATA_RECORD_H

#include "data/render.h"
#include "data/template_value.h"

// Members by their usual name. A rename (data.keys) gives a member another name in the file.
// enum, usual name, whether it is inside a message rather than at the top
#define RECORD_KEYS(X)                                                                             \
    X(KEY_TEXT, "text", false)                                                                     \
    X(KEY_PROMPT, "prompt", false)                                                                 \
    X(KEY_COMPLETION, "completion", false)                                                         \
    X(KEY_MESSAGES, "messages", false)                                                             \
    X(KEY_INSTRUCTION, "instruction", false)                                                       \
    X(KEY_INPUT, "input", false)                                                                   \
    X(KEY_OUTPUT, "output", false)                                                                 \
    X(KEY_CONVERSATIONS, "conversations", false)                                                   \
    X(KEY_SYSTEM, "system", false)                                                                 \
    X(KEY_TOOLS, "tools", false)                                                                   \
    X(KEY_INPUT_IDS, "input_ids", false)                                                           \
    X(KEY_LABELS, "labels", false)                                                                 \
    X(KEY_ROLE, "role", true)                                                                      \
    X(KEY_CONTENT, "content", true)                                                                \
    X(KEY_FROM, "from", true)                                                                      \
    X(KEY_VALUE, "value", true)

enum record_key {
#define X(name, text, nested) name,
    RECORD_KEYS(X)
#undef X
        RECORD_KEY_COUNT
};

struct record_keys {
    const char *actual[RECORD_KEY_COUNT]; // NULL: a rename gave this name to another member
};
// Parses "prompt=question,completion=answer"; NULL or "": no renames. Names are copied into the
// region. ERR_USAGE lists the members that exist.
int record_keys_parse(struct record_keys *out, const char *renames, struct region *r,
                      struct err *e);

struct record {
    bool chat;
    struct value text;       // not chat: the text or the prompt
    struct value completion; // not chat: the completion, undefined for a text
    struct value messages;   // chat: a list
    size_t context_messages; // the first messages, which are context and never trained
    struct value tools;      // chat: as given, undefined when there are none
    int32_t *ids, *labels;   // token ids; labels NULL: all are trained
    size_t n_ids, n_labels;
};

// Finds which shape a line has. Errors of both functions give the place in the line, not its
// number.
int record_detect(struct value_heap *h, const struct record_keys *keys, const char *text,
                  size_t bytes, enum render_shape *out);
// `system`: system message for conversations without one; NULL or "": none.
int record_read(struct value_heap *h, const struct record_keys *keys, enum render_shape shape,
                const char *system, const char *text, size_t bytes, struct record *out);

#endif
