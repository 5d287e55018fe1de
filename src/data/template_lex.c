// template_lex.c - cuts the source of a chat template into tokens.
//
// Blanks around tags are the easiest thing to get wrong. The rules, with the options that
// transformers sets for Jinja:
//   - One line break behind %} or #} is removed.
//   - Blanks between the start of a line and {% or {# are removed.
//   - A minus sign inside a tag removes all blanks on its side. A plus sign keeps them.
//   - One line break at the end of the source is removed.
#include "data/template_parse.h"

#include "base/text.h"
#include "base/utf8.h"

#include <string.h>

struct lexer {
    const char *at, *end;
    unsigned line;
    bool line_starting; // the last consumed byte ended a line
    int brackets;       // open brackets inside a tag: a }} there closes dicts, not the tag
    struct region *r;
    struct template_token *tokens;
    size_t n, capacity;
    struct err *e;
};

static bool is_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}
static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}
static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static int no_memory(struct lexer *l) {
    return err_set(l->e, ERR_MEMORY, "no memory for a chat template");
}

static int add(struct lexer *l, enum template_token_kind kind, const char *bytes, size_t n) {
    struct template_token *tokens =
        region_grow(l->r, l->tokens, l->n, &l->capacity, sizeof *tokens);
    if (tokens == NULL)
        return no_memory(l);
    l->tokens = tokens;
    tokens[l->n++] = (struct template_token){.kind = kind, .line = l->line, .bytes = bytes, .n = n};
    return 0;
}

// Consumes n bytes and counts lines.
static void step(struct lexer *l, size_t n) {
    for (size_t i = 0; i < n; i++)
        l->line += l->at[i] == '\n';
    l->at += n;
    if (n > 0)
        l->line_starting = l->at[-1] == '\n';
}

// Consumes the end of a tag (two bytes), with its sign and the blanks it removes.
static void step_end(struct lexer *l, char sign, bool trims) {
    step(l, 2 + (sign != 0));
    if (sign == '-') {
        while (l->at < l->end && is_space(*l->at))
            step(l, 1);
    } else if (sign == 0 && trims && l->at < l->end && *l->at == '\n') {
        step(l, 1);
    }
}

// Returns the sign in front of the tag's end `mark` here (0: no sign), or -1 when no tag ends here.
static int end_sign(const struct lexer *l, const char *mark) {
    size_t left = (size_t)(l->end - l->at);
    if (left >= 2 && memcmp(l->at, mark, 2) == 0)
        return 0;
    if (left >= 3 && (*l->at == '-' || *l->at == '+') && memcmp(l->at + 1, mark, 2) == 0)
        return *l->at == '+' && mark[0] == '}' ? -1 : *l->at; // {{ 1 +}} does not end a tag
    return -1;
}

// ---------------------------------------------------------------- inside a tag

// Reads one escape as Python does; p is behind the backslash. Returns the bytes consumed, 0 for an
// escape that is not accepted. An unknown letter keeps its backslash.
static size_t unescape(const char *p, const char *end, char *out, size_t *n) {
    static const char pairs[] = "n\nt\tr\rb\bf\fv\va\a\\\\''\"\"";
    for (const char *at = pairs; *at != '\0'; at += 2)
        if (*p == at[0]) {
            out[(*n)++] = at[1];
            return 1;
        }
    if (*p == '\n')
        return 1; // the string continues on the next line
    int digits = *p == 'x' ? 2 : *p == 'u' ? 4 : 0;
    if (digits > 0) {
        int32_t code = text_hex(p + 1, end, digits);
        if (code < 0 || (code >= 0xD800 && code <= 0xDFFF))
            return 0;
        *n += utf8_encode((uint32_t)code, out + *n);
        return 1 + (size_t)digits;
    }
    if (is_digit(*p) || *p == 'U' || *p == 'N')
        return 0;
    out[(*n)++] = '\\';
    return (size_t)-1; // the character itself is read like any other
}

static int lex_string(struct lexer *l) {
    char quote = *l->at;
    const char *p = l->at + 1;
    while (p < l->end && *p != quote)
        p += *p == '\\' ? 2 : 1;
    if (p >= l->end)
        return err_set(l->e, ERR_UNSUPPORTED, "line %u: a string does not end", l->line);
    char *text = region_alloc(l->r, (size_t)(p - l->at));
    if (text == NULL)
        return no_memory(l);
    size_t n = 0;
    for (const char *q = l->at + 1; q < p;) {
        if (*q != '\\') {
            text[n++] = *q++;
            continue;
        }
        size_t consumed = unescape(q + 1, p, text, &n);
        if (consumed == 0)
            return err_set(l->e, ERR_UNSUPPORTED, "line %u: the escape \\%c is not understood",
                           l->line, q[1]);
        q += 1 + (consumed == (size_t)-1 ? 0 : consumed);
    }
    TRY(add(l, TOKEN_STRING, text, n));
    step(l, (size_t)(p + 1 - l->at));
    return 0;
}

static int lex_number(struct lexer *l, bool after_dot) {
    const char *p = l->at;
    enum template_token_kind kind = TOKEN_INT;
    while (p < l->end && is_digit(*p))
        p++;
    if (!after_dot && l->end - p >= 2 && *p == '.' && is_digit(p[1])) {
        kind = TOKEN_FLOAT;
        for (p++; p < l->end && is_digit(*p);)
            p++;
    }
    if (p < l->end && is_letter(*p))
        return err_set(l->e, ERR_UNSUPPORTED, "line %u: a number is followed by '%c'", l->line, *p);
    TRY(add(l, kind, l->at, (size_t)(p - l->at)));
    step(l, (size_t)(p - l->at));
    return 0;
}

static int lex_operator(struct lexer *l) {
    static const char *const two[] = {"==", "!=", ">=", "<=", "//", "**"};
    size_t n = 1;
    for (size_t i = 0; i < sizeof two / sizeof *two; i++)
        if (l->end - l->at >= 2 && memcmp(l->at, two[i], 2) == 0)
            n = 2;
    if (n == 1 && (*l->at == '\0' || strchr("+-*/%~[](){}<>=.:|,", *l->at) == NULL))
        return err_set(l->e, ERR_UNSUPPORTED, "line %u: unexpected byte 0x%02x", l->line,
                       (unsigned char)*l->at);
    if (strchr("([{", *l->at) != NULL)
        l->brackets++;
    if (strchr(")]}", *l->at) != NULL && --l->brackets < 0)
        return err_set(l->e, ERR_UNSUPPORTED, "line %u: '%c' closes nothing", l->line, *l->at);
    TRY(add(l, TOKEN_OPERATOR, l->at, n));
    step(l, n);
    return 0;
}

static int lex_tag(struct lexer *l, bool print) {
    const char *mark = print ? "}}" : "%}";
    l->brackets = 0;
    while (l->at < l->end) {
        int sign = l->brackets == 0 ? end_sign(l, mark) : -1;
        if (sign >= 0) {
            TRY(add(l, print ? TOKEN_PRINT_END : TOKEN_BLOCK_END, mark, 2));
            step_end(l, (char)sign, !print);
            return 0;
        }
        const struct template_token *last = &l->tokens[l->n - 1];
        bool after_dot = last->kind == TOKEN_OPERATOR && last->bytes[0] == '.';
        if (is_space(*l->at)) {
            step(l, 1);
        } else if (is_letter(*l->at)) {
            size_t n = 1;
            while (l->at + n < l->end && (is_letter(l->at[n]) || is_digit(l->at[n])))
                n++;
            TRY(add(l, TOKEN_NAME, l->at, n));
            step(l, n);
        } else if (is_digit(*l->at)) {
            TRY(lex_number(l, after_dot));
        } else if (*l->at == '"' || *l->at == '\'') {
            TRY(lex_string(l));
        } else {
            TRY(lex_operator(l));
        }
    }
    return err_set(l->e, ERR_UNSUPPORTED, "line %u: a tag does not end with %s", l->line, mark);
}

// ---------------------------------------------------------------- outside of tags

static int lex_comment(struct lexer *l) {
    bool sign_first = l->end - l->at > 2 && (l->at[2] == '-' || l->at[2] == '+');
    for (step(l, sign_first ? 3 : 2); l->end - l->at >= 2; step(l, 1)) {
        int sign = end_sign(l, "#}");
        if (sign < 0)
            continue;
        step_end(l, (char)sign, true);
        return 0;
    }
    return err_set(l->e, ERR_UNSUPPORTED, "line %u: a comment does not end with #}", l->line);
}

// Adds the text up to the tag at `tag`, without the blanks that the tag removes.
static int add_text(struct lexer *l, const char *tag) {
    const char *begin = l->at, *end = tag;
    char sign = l->end - tag > 2 ? tag[2] : 0;
    if (tag < l->end && sign == '-') {
        while (end > begin && is_space(end[-1]))
            end--;
    } else if (tag < l->end && sign != '+' && tag[1] != '{') {
        const char *line = end;
        while (line > begin && is_space(line[-1]) && line[-1] != '\n')
            line--;
        if (line == begin ? l->line_starting : line[-1] == '\n')
            end = line;
    }
    if (end > begin)
        TRY(add(l, TOKEN_TEXT, begin, (size_t)(end - begin)));
    step(l, (size_t)(tag - l->at));
    return 0;
}

static int lex_source(struct lexer *l) {
    while (l->at < l->end) {
        const char *tag = l->at;
        while (tag < l->end &&
               !(*tag == '{' && l->end - tag >= 2 && strchr("{%#", tag[1]) && tag[1] != '\0'))
            tag++;
        TRY(add_text(l, tag));
        if (l->at == l->end)
            break;
        if (tag[1] == '#') {
            TRY(lex_comment(l));
            continue;
        }
        TRY(add(l, tag[1] == '{' ? TOKEN_PRINT : TOKEN_BLOCK, tag, 2));
        bool sign = l->end - tag > 2 && (tag[2] == '-' || tag[2] == '+');
        step(l, sign ? 3 : 2);
        TRY(lex_tag(l, tag[1] == '{'));
    }
    return add(l, TOKEN_END, l->end, 0);
}

int template_lex(const char *source, size_t bytes, struct region *r, struct template_token **out,
                 struct err *e) {
    char *copy = region_alloc(r, bytes + 1);
    if (copy == NULL)
        return err_set(e, ERR_MEMORY, "no memory for a chat template");
    size_t n = 0;
    for (size_t i = 0; i < bytes; i++) { // CRLF and CR become LF
        if (source[i] == '\r' && i + 1 < bytes && source[i + 1] == '\n')
            continue;
        copy[n++] = source[i] == '\r' ? '\n' : source[i];
    }
    if (n > 0 && copy[n - 1] == '\n')
        n--;
    struct lexer l = {
        .at = copy, .end = copy + n, .line = 1, .line_starting = true, .r = r, .e = e};
    TRY(lex_source(&l));
    *out = l.tokens;
    return 0;
}
