// yaml.c - recipes: a YAML mapping of scalars, flattened to dotted keys, each with its line.
//
// libyaml turns the text into events. This file walks them with a stack of at most DEPTH_MAX
// prefixes and no recursion. YAML features that a recipe does not need are refused. Limits bound
// the work for any file: bytes, entries (each key is compared with every earlier key to find
// duplicates), depth, and the length of one dotted key.
#include "base/yaml.h"

#include "base/array.h"
#include "base/file.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <yaml.h>

enum { FILE_MAX_BYTES = 1 << 20, ENTRIES_MAX = 4096, DEPTH_MAX = 8, KEY_MAX_BYTES = 256 };

struct walk {
    const char *name; // of the file
    struct region *region;
    struct err *e;
    yaml_parser_t *parser;
    struct yaml_entry *entries;
    size_t count, capacity;
    char key[KEY_MAX_BYTES];    // dotted path so far
    size_t ends[DEPTH_MAX + 1]; // length of the path of each open mapping
    int depth;
    bool flow;       // the outermost mapping is written { ... }, so a cut file is always noticed
    bool last_empty; // the last setting has nothing after its colon
};

static int line_of(yaml_mark_t mark) {
    return mark.line < 1000000000 ? (int)mark.line + 1 : 0;
}

// Whether a control character is at p: C0, DEL or C1 (two bytes in UTF-8). A terminal would act on
// it and not show it.
static bool is_control(const char *p) {
    unsigned char c = (unsigned char)p[0], next = (unsigned char)p[c != '\0'];
    return c < 0x20 || c == 0x7F || (c == 0xC2 && next >= 0x80 && next <= 0x9F);
}

static int fail_event(struct walk *w, const yaml_event_t *event, const char *format, ...)
    ERR_PRINTF(3, 4);

static int fail_event(struct walk *w, const yaml_event_t *event, const char *format, ...) {
    char sentence[ERR_TEXT_BYTES / 2];
    va_list args;
    va_start(args, format);
    if (vsnprintf(sentence, sizeof sentence, format, args) < 0)
        sentence[0] = '\0';
    va_end(args);
    for (char *p = sentence; *p; p++) // the sentence may quote a tag or key from the file
        if (is_control(p)) {
            if ((unsigned char)*p == 0xC2)
                p[1] = '?';
            *p = '?';
        }
    return err_set(w->e, ERR_FORMAT, "%.400s: line %d: %s", w->name, line_of(event->start_mark),
                   sentence);
}

static int fail_memory(struct walk *w) {
    return err_set(w->e, ERR_MEMORY, "%.400s: no memory for its settings", w->name);
}

// Reads the next event, which the caller deletes. On failure there is none to delete.
static int next_event(struct walk *w, yaml_event_t *event) {
    if (yaml_parser_parse(w->parser, event))
        return 0;
    const yaml_parser_t *p = w->parser;
    if (p->error == YAML_MEMORY_ERROR)
        return fail_memory(w);
    const char *problem = p->problem ? p->problem : "the text is not YAML";
    if (p->error == YAML_READER_ERROR)
        return err_set(w->e, ERR_FORMAT, "%.400s: byte %zu: %s", w->name, p->problem_offset,
                       problem);
    return err_set(w->e, ERR_FORMAT, "%.400s: line %d, column %zu: %s%s%s", w->name,
                   line_of(p->problem_mark), p->problem_mark.column + 1, problem,
                   p->context ? " " : "", p->context ? p->context : "");
}

static int check_plain(struct walk *w, const yaml_event_t *event) {
    const yaml_char_t *anchor = NULL, *tag = NULL;
    switch (event->type) {
    case YAML_SCALAR_EVENT:
        anchor = event->data.scalar.anchor, tag = event->data.scalar.tag;
        break;
    case YAML_MAPPING_START_EVENT:
        anchor = event->data.mapping_start.anchor, tag = event->data.mapping_start.tag;
        break;
    case YAML_SEQUENCE_START_EVENT:
        anchor = event->data.sequence_start.anchor, tag = event->data.sequence_start.tag;
        break;
    case YAML_ALIAS_EVENT:
        return fail_event(w, event, "aliases (*%.40s) are not accepted: write the value out",
                          (const char *)event->data.alias.anchor);
    default:
        break;
    }
    if (anchor)
        return fail_event(w, event, "anchors (&%.40s) are not accepted: write the value out",
                          (const char *)anchor);
    if (tag)
        return fail_event(w, event, "tags (%.40s) are not accepted: remove it", (const char *)tag);
    if (event->type == YAML_SCALAR_EVENT &&
        memchr(event->data.scalar.value, 0, event->data.scalar.length))
        return fail_event(w, event, "a value with a NUL character is not accepted");
    return 0;
}

// Refuses a value that would stay valid, but shorter, if the file were cut at the end of a line.
static int check_whole(struct walk *w, const yaml_event_t *event) {
    yaml_scalar_style_t style = event->data.scalar.style;
    if (style == YAML_LITERAL_SCALAR_STYLE || style == YAML_FOLDED_SCALAR_STYLE)
        return fail_event(w, event, "a block of text (| or >) is not accepted: write it in quotes");
    if (style == YAML_PLAIN_SCALAR_STYLE && event->start_mark.line != event->end_mark.line)
        return fail_event(w, event, "a value continues on the next line: write it in quotes");
    return 0;
}

static int add_entry(struct walk *w, const yaml_event_t *key_event, const char *value) {
    for (size_t i = 0; i < w->count; i++)
        if (strcmp(w->entries[i].key, w->key) == 0)
            return fail_event(w, key_event, "'%s' is set twice (first on line %d)", w->key,
                              w->entries[i].line);
    if (w->count == ENTRIES_MAX)
        return fail_event(w, key_event, "more than %d settings", ENTRIES_MAX);
    struct yaml_entry *entries =
        region_grow(w->region, w->entries, w->count, &w->capacity, sizeof *entries);
    char *key = region_copy(w->region, w->key);
    char *copy = region_copy(w->region, value);
    if (!entries || !key || !copy)
        return fail_memory(w);
    w->entries = entries;
    w->entries[w->count++] = (struct yaml_entry){key, copy, line_of(key_event->start_mark)};
    return 0;
}

struct joined { // the items of a sequence, separated by commas
    char *text;
    size_t bytes, capacity, items;
};

static int join_item(struct walk *w, const yaml_event_t *event, struct joined *j) {
    TRY(check_plain(w, event));
    if (event->type != YAML_SCALAR_EVENT)
        return fail_event(w, event, "'%s' may list plain values only", w->key);
    TRY(check_whole(w, event));
    const yaml_char_t *item = event->data.scalar.value;
    size_t n = event->data.scalar.length;
    // An item's value may be on the next line. If the file were cut there, the item would look
    // empty.
    if (n == 0 && event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE)
        return fail_event(w, event, "an item of '%s' has no value; write '' for an empty one",
                          w->key);
    // The list becomes one comma-separated value, so an item with a comma would look like two.
    if (memchr(item, ',', n))
        return fail_event(w, event, "an item of '%s' contains a comma", w->key);
    if (!array_room(&j->text, j->bytes, n + 2, &j->capacity, 1, 0)) // 2: a comma and the NUL
        return fail_memory(w);
    if (j->items++)
        j->text[j->bytes++] = ',';
    memcpy(j->text + j->bytes, item, n);
    j->bytes += n;
    j->text[j->bytes] = '\0';
    return 0;
}

// Reads a sequence of scalars whose start has been read, and adds it under the current key.
static int read_sequence(struct walk *w, const yaml_event_t *key) {
    struct joined joined = {0};
    int rc = 0;
    for (bool more = true; more && rc == 0;) {
        yaml_event_t event;
        rc = next_event(w, &event);
        if (rc)
            break;
        if (event.type == YAML_SEQUENCE_END_EVENT)
            more = false;
        else
            rc = join_item(w, &event, &joined);
        yaml_event_delete(&event);
    }
    if (rc == 0)
        rc = add_entry(w, key, joined.text ? joined.text : "");
    free(joined.text);
    return rc;
}

// Appends ".part" to the path of the innermost open mapping.
static int set_key(struct walk *w, const yaml_event_t *event) {
    const char *part = (const char *)event->data.scalar.value;
    size_t n = event->data.scalar.length, at = w->ends[w->depth];
    if (n == 0)
        return fail_event(w, event, "a key is empty");
    for (size_t i = 0; i < n; i++)
        if (is_control(part + i))
            return fail_event(w, event, "the key '%.40s' has a control character", part);
    if (at + n + 2 > KEY_MAX_BYTES)
        return fail_event(w, event, "the key '%.40s...' is longer than %d characters", part,
                          KEY_MAX_BYTES - 2);
    if (at > 0)
        w->key[at++] = '.';
    memcpy(w->key + at, part, n);
    w->key[at + n] = '\0';
    return 0;
}

// Reads the members of the mapping just entered and of all mappings inside it.
static int read_mappings(struct walk *w) {
    while (w->depth > 0) {
        yaml_event_t key, value;
        TRY(next_event(w, &key));
        if (key.type == YAML_MAPPING_END_EVENT) {
            yaml_event_delete(&key);
            w->depth--;
            continue;
        }
        int rc = check_plain(w, &key);
        if (rc == 0 && key.type != YAML_SCALAR_EVENT)
            rc = fail_event(w, &key, "a key must be a plain word");
        if (rc == 0)
            rc = set_key(w, &key);
        if (rc == 0)
            rc = next_event(w, &value);
        if (rc) {
            yaml_event_delete(&key);
            return rc;
        }
        rc = check_plain(w, &value);
        w->last_empty = false;
        if (rc == 0 && value.type == YAML_SCALAR_EVENT) {
            w->last_empty =
                value.data.scalar.style == YAML_PLAIN_SCALAR_STYLE && value.data.scalar.length == 0;
            rc = check_whole(w, &value);
            if (rc == 0)
                rc = add_entry(w, &key, (const char *)value.data.scalar.value);
        } else if (rc == 0 && value.type == YAML_SEQUENCE_START_EVENT) {
            rc = read_sequence(w, &key);
        } else if (rc == 0 && w->depth == DEPTH_MAX) {
            rc = fail_event(w, &value, "nested deeper than %d levels", DEPTH_MAX);
        } else if (rc == 0) { // a mapping, because nothing else can follow a key
            w->depth++;
            w->ends[w->depth] = strlen(w->key);
        }
        yaml_event_delete(&key);
        yaml_event_delete(&value);
        TRY(rc);
    }
    return 0;
}

static int read_stream(struct walk *w) {
    bool had_document = false;
    for (;;) {
        yaml_event_t event;
        TRY(next_event(w, &event));
        yaml_event_type_t type = event.type;
        int rc = check_plain(w, &event);
        if (rc == 0 && type == YAML_DOCUMENT_START_EVENT && had_document)
            rc = fail_event(w, &event, "a second document begins; one is accepted");
        else if (rc == 0 && (type == YAML_SEQUENCE_START_EVENT ||
                             (type == YAML_SCALAR_EVENT && event.data.scalar.length > 0)))
            rc = fail_event(w, &event, "expected settings of the form 'key: value'");
        if (type == YAML_MAPPING_START_EVENT)
            w->flow = event.data.mapping_start.style == YAML_FLOW_MAPPING_STYLE;
        yaml_event_delete(&event);
        TRY(rc);
        if (type == YAML_STREAM_END_EVENT)
            return 0;
        if (type == YAML_DOCUMENT_START_EVENT)
            had_document = true;
        if (type == YAML_MAPPING_START_EVENT) {
            w->depth = 1;
            w->ends[1] = 0;
            TRY(read_mappings(w));
        }
    }
}

// Refuses a valid text that may be the beginning of a longer one. A run with half of its settings
// is worse than no run.
static int check_end(const struct walk *w, const char *text, size_t bytes) {
    if (w->count == 0)
        return 0;
    const struct yaml_entry *last = &w->entries[w->count - 1];
    if (w->last_empty)
        return err_set(
            w->e, ERR_FORMAT,
            "%.400s: line %d: the text ends after '%s:', as if cut off; write \"\" for an "
            "empty value",
            w->name, last->line, last->key);
    if (!w->flow && text[bytes - 1] != '\n' && text[bytes - 1] != '\r')
        return err_set(w->e, ERR_FORMAT,
                       "%.400s: byte %zu: the last line ('%s') does not end with a newline, as if "
                       "cut off: add one",
                       w->name, bytes, last->key);
    return 0;
}

int yaml_read_text(const char *name, const char *text, size_t bytes, struct region *r,
                   struct yaml_entry **entries, size_t *count, struct err *e) {
    *entries = NULL;
    *count = 0;
    if (bytes > FILE_MAX_BYTES)
        return err_set(e, ERR_FORMAT, "%s: %zu bytes; at most %d are accepted", name, bytes,
                       FILE_MAX_BYTES);
    yaml_parser_t parser;
    struct walk w = {.name = name, .region = r, .e = e, .parser = &parser};
    if (!yaml_parser_initialize(&parser))
        return fail_memory(&w);
    yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&parser, (const unsigned char *)(bytes ? text : ""), bytes);
    int rc = read_stream(&w);
    yaml_parser_delete(&parser);
    if (rc == 0)
        rc = check_end(&w, text, bytes);
    if (rc)
        return rc;
    *entries = w.entries;
    *count = w.count;
    return 0;
}

int yaml_read_file(const char *path, struct region *r, struct yaml_entry **entries, size_t *count,
                   struct err *e) {
    *entries = NULL;
    *count = 0;
    char *text;
    size_t bytes;
    TRY(file_read_all(path, FILE_MAX_BYTES, &text, &bytes, e));
    int rc = yaml_read_text(path, text, bytes, r, entries, count, e);
    free(text);
    return rc;
}
