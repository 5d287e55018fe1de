// record.h - one line of JSONL as a record: a text, a prompt and its completion, a conversation, or
// token ids.
//
// Place: between the JSON reader and render.c. A line is hostile until it has passed here.
//
// Invariants:
//   1. Every conversation, whatever its shape in the file, comes out as a list of objects with "role"
//      and "content", as chat templates expect it. Text of message k has origin k + 1.
//   2. Roles are of a fixed list and in order: system (or developer) first and once; then a user; an
//      assistant answers a user or a tool; a tool answers an assistant or follows a tool. Anything else
//      is refused: templates differ in what they silently make of it.
//   3. Members that a shape does not know are ignored, but a name that stands twice is refused.
#ifndef HAGGLE_DATA_RECORD_H
#define HAGGLE_DATA_RECORD_H

#include "data/render.h"
#include "data/template_value.h"

// Members by their usual name; a rename gives one another name in the file.
// enum, usual name, inside a message rather than at the top
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
    const char *actual[RECORD_KEY_COUNT]; // NULL: this name now means another member
};
// "prompt=question,completion=answer"; NULL or "": none. Names are copied into the region. ERR_USAGE
// names the members there are.
int record_keys_parse(struct record_keys *out, const char *renames, struct region *r,
                      struct err *e);

struct record {
    bool chat;
    struct value text;       // not chat: the text, or the prompt
    struct value completion; // not chat: the completion, undefined for a text
    struct value messages;   // chat: a list
    size_t context_messages; // of these, the first ones are context and never trained
    struct value tools;      // chat: as given, undefined when there are none
    int32_t *ids, *labels;   // token ids; labels NULL: all are trained
    size_t n_ids, n_labels;
};

// Which shape a line has. Errors of both functions say where in the line, not which line.
int record_detect(struct value_heap *h, const struct record_keys *keys, const char *text,
                  size_t bytes, enum render_shape *out);
// `system`: message for conversations without one; NULL or "": none.
int record_read(struct value_heap *h, const struct record_keys *keys, enum render_shape shape,
                const char *system, const char *text, size_t bytes, struct record *out);

#endif
