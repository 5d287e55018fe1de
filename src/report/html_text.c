// html_text.c - see html_text.h.
#include "report/html_text.h"

#include <stdint.h>

// Decodes one character (RFC 3629: no overlong forms, no surrogates, nothing past 10FFFF). Returns
// the number of bytes read, at least 1. *code is U+FFFD when the bytes are not a character.
static size_t decode(const unsigned char *s, uint32_t *code) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t n = s[0] < 0x80 ? 1 : s[0] >> 5 == 6 ? 2 : s[0] >> 4 == 14 ? 3 : s[0] >> 3 == 30 ? 4 : 0;
    *code = 0xFFFD;
    if (n == 0)
        return 1;
    uint32_t c = n == 1 ? s[0] : s[0] & (0x7Fu >> n);
    for (size_t i = 1; i < n; i++) {
        if (s[i] >> 6 != 2) // the NUL at the end too
            return i;
        c = c << 6 | (s[i] & 0x3F);
    }
    if (c >= least[n] && c <= 0x10FFFF && !(c >= 0xD800 && c <= 0xDFFF))
        *code = c;
    return n;
}

static void put_code(FILE *f, uint32_t c) {
    if (c < 0x80) {
        fputc((int)c, f);
        return;
    }
    static const uint32_t lead[] = {0, 0xC0, 0xE0, 0xF0};
    int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3; // bytes after the first, six bits each
    fputc((int)(lead[more] | c >> 6 * more), f);
    while (more-- > 0)
        fputc((int)(0x80 | (c >> 6 * more & 0x3F)), f);
}

// HTML allows no control characters except tab and the line ends, and no noncharacters. Marks that
// change the direction of text are removed too: a name must not rearrange the page around it.
static uint32_t clean(uint32_t c) {
    if (c == '\n' || c == '\t' || c == '\r')
        return ' ';
    if (c < 0x20 || (c >= 0x7F && c < 0xA0) || (c & 0xFFFE) == 0xFFFE ||
        (c >= 0xFDD0 && c <= 0xFDEF) || (c >= 0x202A && c <= 0x202E) ||
        (c >= 0x2066 && c <= 0x2069))
        return 0xFFFD;
    return c;
}

void html_put_text(FILE *f, const char *text) {
    for (const unsigned char *s = (const unsigned char *)text; *s;) {
        uint32_t c;
        s += decode(s, &c);
        c = clean(c);
        const char *entity = c == '<'    ? "&lt;"
                             : c == '>'  ? "&gt;"
                             : c == '&'  ? "&amp;"
                             : c == '"'  ? "&quot;"
                             : c == '\'' ? "&#39;"
                                         : NULL;
        if (entity)
            fputs(entity, f);
        else
            put_code(f, c);
    }
}

void html_put_between(FILE *f, const char *before, const char *text, const char *after) {
    fputs(before, f);
    html_put_text(f, text);
    fputs(after, f);
}

void html_put_json_string(FILE *f, const char *text) {
    fputc('"', f);
    for (const unsigned char *s = (const unsigned char *)text; *s;) {
        uint32_t c;
        s += decode(s, &c);
        c = clean(c);
        if (c == '<' || c == '>' || c == '&' || c == '"' || c == '\\' || c == 0x2028 || c == 0x2029)
            fprintf(f, "\\u%04x", (unsigned)c);
        else
            put_code(f, c);
    }
    fputc('"', f);
}
