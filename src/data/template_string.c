// template_string.c - string methods of Python, on strings that keep their origins.
#include "data/template_ops.h"

#include <string.h>

// ---------------------------------------------------------------- characters

static size_t character_bytes(unsigned char first) {
    return first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

size_t ops_characters(const struct marked *s) {
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++)
        n += ((unsigned char)s->bytes[i] & 0xC0) != 0x80;
    return n;
}

size_t ops_byte_of_character(const struct marked *s, size_t character) {
    size_t at = 0;
    while (character > 0 && at < s->n) {
        at += character_bytes((unsigned char)s->bytes[at]);
        character--;
    }
    return at < s->n ? at : s->n;
}

// Returns the bytes of the character at p if str.strip() treats it as a blank, else 0. left > 0.
static size_t python_space(const char *p, size_t left) {
    const unsigned char *u = (const unsigned char *)p;
    if (u[0] == ' ' || (u[0] >= 9 && u[0] <= 13) || (u[0] >= 0x1C && u[0] <= 0x1F))
        return 1;
    if (u[0] == 0xC2 && left >= 2 && (u[1] == 0x85 || u[1] == 0xA0))
        return 2;
    if (left < 3 || u[0] < 0xE1 || u[0] > 0xE3)
        return 0;
    unsigned c = (unsigned)(u[0] & 15) << 12 | (unsigned)(u[1] & 63) << 6 | (u[2] & 63u);
    bool space = c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
                 c == 0x202F || c == 0x205F || c == 0x3000;
    return space ? 3 : 0;
}

// The same for a set of characters; set NULL: blanks.
static size_t in_set(const struct marked *set, const char *p, size_t left) {
    if (set == NULL)
        return python_space(p, left);
    size_t n = character_bytes((unsigned char)*p);
    for (size_t i = 0; i < set->n; i += character_bytes((unsigned char)set->bytes[i]))
        if (character_bytes((unsigned char)set->bytes[i]) == n && n <= left &&
            memcmp(set->bytes + i, p, n) == 0)
            return n;
    return 0;
}

// ---------------------------------------------------------------- arguments

const struct value *ops_argument(const struct ops_arguments *a, size_t position, const char *name) {
    if (position < a->n_positional)
        return &a->items[position];
    for (size_t i = a->n_positional; name != NULL && i < a->n; i++)
        if (a->name_bytes[i] == strlen(name) && memcmp(a->names[i], name, a->name_bytes[i]) == 0)
            return &a->items[i];
    return NULL;
}

// Returns the index of a name in a list separated by blanks, or SIZE_MAX.
static size_t name_index(const char *names, const char *name, size_t n) {
    for (size_t i = 0; *names != '\0'; i++) {
        size_t m = strcspn(names, " ");
        if (m == n && memcmp(names, name, n) == 0)
            return i;
        names += m + (names[m] == ' ');
    }
    return SIZE_MAX;
}

int ops_check_arguments(struct value_heap *h, const char *what, size_t n,
                        const struct ops_arguments *a, size_t most, const char *names) {
    bool good = a->n_positional <= most;
    for (size_t i = a->n_positional; i < a->n && good; i++) {
        size_t position = name_index(names, a->names[i], a->name_bytes[i]);
        good = position != SIZE_MAX && position >= a->n_positional;
    }
    return good ? 0
                : err_set(h->e, ERR_FORMAT, "%.*s with these arguments is not understood",
                          (int)(n < 40 ? n : 40), what);
}

static int need_text(struct value_heap *h, const struct ops_arguments *a, size_t position,
                     const char *name, const struct marked **out) {
    const struct value *v = ops_argument(a, position, name);
    *out = NULL;
    if (v == NULL || v->type != VALUE_STRING)
        return err_set(h->e, ERR_FORMAT, "a string is expected as argument %zu", position + 1);
    *out = v->s;
    return 0;
}

// Reads an optional string. None counts as not given.
static int optional_text(struct value_heap *h, const struct ops_arguments *a, size_t position,
                         const char *name, const struct marked **out) {
    const struct value *v = ops_argument(a, position, name);
    *out = NULL;
    if (v == NULL || v->type == VALUE_NONE)
        return 0;
    if (v->type != VALUE_STRING)
        return err_set(h->e, ERR_FORMAT, "a string is expected, not %s", value_type_name(v));
    *out = v->s;
    return 0;
}

static int optional_count(struct value_heap *h, const struct ops_arguments *a, size_t position,
                          const char *name, size_t *out) {
    const struct value *v = ops_argument(a, position, name);
    *out = SIZE_MAX;
    if (v == NULL)
        return 0;
    if (v->type != VALUE_INT)
        return err_set(h->e, ERR_FORMAT, "a number is expected, not %s", value_type_name(v));
    if (v->i >= 0)
        *out = (size_t)v->i;
    return 0;
}

// ---------------------------------------------------------------- methods

static int strip(struct value_heap *h, const struct marked *s, const struct marked *set, bool left,
                 bool right, struct value *out) {
    size_t begin = 0, end = s->n;
    TRY(value_spend(h, 1 + (set != NULL ? set->n : 0) * s->n / 8));
    for (size_t n; left && begin < end && (n = in_set(set, s->bytes + begin, end - begin)) > 0;)
        begin += n;
    while (right && end > begin) {
        size_t last = end - 1;
        while (last > begin && ((unsigned char)s->bytes[last] & 0xC0) == 0x80)
            last--;
        if (in_set(set, s->bytes + last, end - last) == 0)
            break;
        end = last;
    }
    return value_slice(h, s, begin, end, out);
}

static int add_slice(struct value_heap *h, struct value_list *l, const struct marked *s,
                     size_t begin, size_t end) {
    struct value piece;
    TRY(value_spend(h, 1));
    TRY(value_slice(h, s, begin, end, &piece));
    return value_list_add(h, l, piece);
}

static int split_blanks(struct value_heap *h, const struct marked *s, size_t most,
                        struct value_list *l) {
    size_t at = 0, n;
    for (;;) {
        while (at < s->n && (n = python_space(s->bytes + at, s->n - at)) > 0)
            at += n;
        if (at == s->n)
            return 0;
        size_t begin = at;
        if (most-- == 0) // the rest is one piece, including blanks at its end
            return add_slice(h, l, s, begin, s->n);
        while (at < s->n && python_space(s->bytes + at, s->n - at) == 0)
            at += character_bytes((unsigned char)s->bytes[at]);
        TRY(add_slice(h, l, s, begin, at));
    }
}

static int split(struct value_heap *h, const struct marked *s, const struct marked *separator,
                 size_t most, struct value *out) {
    TRY(value_list_new(h, out));
    TRY(value_spend(h, 1 + s->n / 64));
    if (separator == NULL)
        return split_blanks(h, s, most, out->list);
    if (separator->n == 0)
        return err_set(h->e, ERR_FORMAT, "cannot split at an empty string");
    size_t at = 0;
    while (most-- > 0) {
        const char *found = memmem(s->bytes + at, s->n - at, separator->bytes, separator->n);
        if (found == NULL)
            break;
        TRY(add_slice(h, out->list, s, at, (size_t)(found - s->bytes)));
        at = (size_t)(found - s->bytes) + separator->n;
    }
    return add_slice(h, out->list, s, at, s->n);
}

// Returns the bytes of the line end at p, or 0. str.splitlines() knows more line ends than \n and
// \r. left > 0.
static size_t line_end(const char *p, size_t left) {
    const unsigned char *u = (const unsigned char *)p;
    if (left >= 2 && u[0] == '\r' && u[1] == '\n')
        return 2;
    if ((u[0] >= '\n' && u[0] <= '\r') || (u[0] >= 0x1C && u[0] <= 0x1E))
        return 1;
    if (left >= 2 && u[0] == 0xC2 && u[1] == 0x85)
        return 2;
    return left >= 3 && u[0] == 0xE2 && u[1] == 0x80 && (u[2] == 0xA8 || u[2] == 0xA9) ? 3 : 0;
}

static int split_lines(struct value_heap *h, const struct marked *s, bool keep_ends,
                       struct value *out) {
    TRY(value_list_new(h, out));
    TRY(value_spend(h, 1 + s->n / 64));
    for (size_t begin = 0; begin < s->n;) {
        size_t end = begin, n = 0;
        while (end < s->n && (n = line_end(s->bytes + end, s->n - end)) == 0)
            end++;
        TRY(add_slice(h, out->list, s, begin, keep_ends ? end + n : end));
        begin = end + n;
    }
    return 0;
}

static int replace(struct value_heap *h, const struct marked *s, const struct marked *old,
                   const struct marked *new, size_t most, struct value *out) {
    struct marked_builder b = {0};
    struct value piece;
    size_t at = 0;
    if (old->n == 0)
        return err_set(h->e, ERR_FORMAT, "cannot replace an empty string");
    while (most-- > 0) {
        const char *found = memmem(s->bytes + at, s->n - at, old->bytes, old->n);
        if (found == NULL)
            break;
        TRY(value_spend(h, 1));
        TRY(value_slice(h, s, at, (size_t)(found - s->bytes), &piece));
        TRY(marked_add(h, &b, piece.s));
        TRY(marked_add(h, &b, new));
        at = (size_t)(found - s->bytes) + old->n;
    }
    TRY(value_slice(h, s, at, s->n, &piece));
    TRY(marked_add(h, &b, piece.s));
    return marked_finish(h, &b, out);
}

// Non-ASCII text would need the tables of Unicode, so it is refused.
int ops_change_case(struct value_heap *h, const struct marked *s, char how, struct value *out) {
    struct marked_builder b = {0};
    TRY(marked_add(h, &b, s));
    bool inside = false;
    for (size_t i = 0; i < b.n; i++) {
        char c = b.bytes[i];
        if ((unsigned char)c >= 0x80)
            return err_set(h->e, ERR_FORMAT, "cannot change the case of text that is not ASCII");
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        bool raise =
            how == 'u' || ((how == 't' || how == 'T') && !inside) || (how == 'c' && i == 0);
        if (letter)
            b.bytes[i] = (char)(raise ? c & ~0x20 : c | 0x20);
        // In Jinja a word begins after a blank, a dash or a bracket; in Python after any
        // non-letter.
        inside =
            how == 'T' ? python_space(&c, 1) == 0 && (c == '\0' || !strchr("-({[<", c)) : letter;
    }
    return marked_finish(h, &b, out);
}

static bool has_affix(const struct marked *s, const struct marked *affix, bool at_end) {
    return affix->n <= s->n &&
           memcmp(s->bytes + (at_end ? s->n - affix->n : 0), affix->bytes, affix->n) == 0;
}

static int affix(struct value_heap *h, const struct marked *s, const struct ops_arguments *args,
                 bool at_end, struct value *out) {
    const struct value *v = ops_argument(args, 0, NULL);
    *out = value_bool(false);
    if (v != NULL && v->type == VALUE_LIST) {
        for (size_t i = 0; i < v->list->n; i++)
            if (v->list->items[i].type == VALUE_STRING && has_affix(s, v->list->items[i].s, at_end))
                *out = value_bool(true);
        return 0;
    }
    const struct marked *text;
    TRY(need_text(h, args, 0, NULL, &text));
    *out = value_bool(has_affix(s, text, at_end));
    return 0;
}

static int remove_affix(struct value_heap *h, const struct marked *s,
                        const struct ops_arguments *args, bool at_end, struct value *out) {
    const struct marked *text;
    TRY(need_text(h, args, 0, NULL, &text));
    size_t n = has_affix(s, text, at_end) ? text->n : 0;
    return value_slice(h, s, at_end ? 0 : n, at_end ? s->n - n : s->n, out);
}

static int find(struct value_heap *h, const struct marked *s, const struct ops_arguments *args,
                bool count, struct value *out) {
    const struct marked *text;
    TRY(need_text(h, args, 0, NULL, &text));
    TRY(value_spend(h, 1 + s->n / 64));
    if (text->n == 0)
        return err_set(h->e, ERR_FORMAT, "cannot search for an empty string");
    const char *at = s->bytes, *found, *end = s->bytes + s->n;
    int64_t times = 0;
    while ((found = memmem(at, (size_t)(end - at), text->bytes, text->n)) != NULL && count) {
        times++;
        at = found + text->n;
    }
    struct marked before = {.bytes = s->bytes, .n = found != NULL ? (size_t)(found - s->bytes) : 0};
    *out = value_int(count ? times : found != NULL ? (int64_t)ops_characters(&before) : -1);
    return 0;
}

static int join(struct value_heap *h, const struct marked *separator,
                const struct ops_arguments *args, struct value *out) {
    const struct value *given = ops_argument(args, 0, NULL);
    struct marked_builder b = {0};
    struct value list;
    if (given == NULL)
        return err_set(h->e, ERR_FORMAT, "join needs an argument");
    TRY(ops_elements(h, given, &list));
    for (size_t i = 0; i < list.list->n; i++) {
        if (i > 0)
            TRY(marked_add(h, &b, separator));
        TRY(value_write_text(h, &list.list->items[i], &b));
    }
    return marked_finish(h, &b, out);
}

static int is_kind(struct value_heap *h, const struct marked *s, bool digits, struct value *out) {
    bool all = s->n > 0, ascii = true;
    TRY(value_spend(h, 1 + s->n / 64));
    for (size_t i = 0, n; i < s->n && all; i += n) {
        unsigned char c = (unsigned char)s->bytes[i];
        n = character_bytes(c);
        ascii = ascii && c < 0x80;
        all =
            digits ? c >= 0x80 || (c >= '0' && c <= '9') : python_space(s->bytes + i, s->n - i) > 0;
    }
    if (digits && all && !ascii) // other scripts have digits, too, which only a table knows
        return err_set(h->e, ERR_FORMAT, "isdigit does not support text that is not ASCII");
    *out = value_bool(all);
    return 0;
}

// Checks the arguments of a method, by position and by name.
static int check_method(struct value_heap *h, const struct marked *method,
                        const struct ops_arguments *args) {
    static const struct {
        const char *name;
        size_t most;
        const char *names;
    } known[] = {
        {"strip", 1, "chars"},
        {"lstrip", 1, "chars"},
        {"rstrip", 1, "chars"},
        {"split", 2, "sep maxsplit"},
        {"replace", 3, "old new count"},
        {"startswith", 1, ""},
        {"endswith", 1, ""},
        {"removeprefix", 1, ""},
        {"removesuffix", 1, ""},
        {"upper", 0, ""},
        {"lower", 0, ""},
        {"title", 0, ""},
        {"capitalize", 0, ""},
        {"splitlines", 1, "keepends"},
        {"find", 1, ""},
        {"count", 1, ""},
        {"join", 1, ""},
        {"isdigit", 0, ""},
        {"isspace", 0, ""},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (marked_equals(method, known[i].name))
            return ops_check_arguments(h, method->bytes, method->n, args, known[i].most,
                                       known[i].names);
    return err_set(h->e, ERR_FORMAT, "the method %.*s of a string is not understood",
                   (int)(method->n < 40 ? method->n : 40), method->bytes);
}

int ops_string_method(struct value_heap *h, const struct marked *s, const char *name, size_t n,
                      const struct ops_arguments *args, struct value *out) {
    const struct marked *text, *other;
    size_t count;
    struct marked method = {.bytes = name, .n = n};
    TRY(check_method(h, &method, args));
#define IS(spelling) marked_equals(&method, spelling)
    if (IS("strip") || IS("lstrip") || IS("rstrip")) {
        TRY(optional_text(h, args, 0, "chars", &text));
        return strip(h, s, text, name[0] != 'r', name[0] != 'l', out);
    }
    if (IS("split")) {
        TRY(optional_text(h, args, 0, "sep", &text));
        TRY(optional_count(h, args, 1, "maxsplit", &count));
        return split(h, s, text, count, out);
    }
    if (IS("replace")) {
        TRY(need_text(h, args, 0, "old", &text));
        TRY(need_text(h, args, 1, "new", &other));
        TRY(optional_count(h, args, 2, "count", &count));
        return replace(h, s, text, other, count, out);
    }
    if (IS("startswith") || IS("endswith"))
        return affix(h, s, args, name[0] == 'e', out);
    if (IS("removeprefix") || IS("removesuffix"))
        return remove_affix(h, s, args, IS("removesuffix"), out);
    if (IS("upper") || IS("lower") || IS("title") || IS("capitalize"))
        return ops_change_case(h, s, name[0], out);
    if (IS("splitlines")) {
        const struct value *keep = ops_argument(args, 0, "keepends");
        return split_lines(h, s, keep != NULL && ops_truth(keep), out);
    }
    if (IS("find") || IS("count"))
        return find(h, s, args, IS("count"), out);
    if (IS("join"))
        return join(h, s, args, out);
    return is_kind(h, s, IS("isdigit"), out); // or isspace
#undef IS
}
