// json.c - strict JSON (RFC 8259): a pull reader over a buffer, and a writer.
//
// The reader never recurses. It keeps the nesting as a depth and two bits per level, so deeply
// nested input costs one comparison.
//
// Invariants:
// - text <= at <= end at all times.
// - After the first error every call returns that error, and every output is a harmless value ("",
//   0, false). Callers therefore need only one check at the end of a loop.
// - When next_key or next_element returns true, the byte at `at` begins a value. A comma or bracket
//   there has already been refused.
#include "base/json.h"

#include "base/array.h"
#include "base/text.h"
#include "base/utf8.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 64, NUMBER_MAX_CHARS = 512 };

// ---- reading ----

void json_reader_init(struct json_reader *r, const char *name, const char *text, size_t bytes,
                      struct region *strings, struct err *e) {
    static const char nothing[1] = "";
    if (!text)
        text = nothing, bytes = 0;
    *r = (struct json_reader){.text = text,
                              .at = text,
                              .end = text + bytes,
                              .name = name ? name : "JSON",
                              .strings = strings,
                              .e = e};
}

// Line and column are computed only on an error, because counting while reading would slow down
// every valid file.
static int fail_at(struct json_reader *r, const char *where, int code, const char *format,
                   va_list args) ERR_PRINTF(4, 0);

static int fail_at(struct json_reader *r, const char *where, int code, const char *format,
                   va_list args) {
    if (r->rc)
        return r->rc;
    r->rc = code;
    size_t line = 1, column = 1;
    for (const char *p = r->text; p < where; p++) {
        if (*p == '\n')
            line++, column = 1;
        else if (((unsigned char)*p & 0xC0) != 0x80) // columns count characters, not bytes
            column++;
    }
    char sentence[ERR_TEXT_BYTES / 2];
    if (vsnprintf(sentence, sizeof sentence, format, args) < 0)
        sentence[0] = '\0';
    // The name is cut at 400 characters so that the reason always fits into the message.
    return err_set(r->e, code, "%.400s: line %zu, column %zu (byte %zu): %s", r->name, line, column,
                   (size_t)(where - r->text), sentence);
}

int json_fail(struct json_reader *r, int code, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int rc = fail_at(r, r->at, code, format, args);
    va_end(args);
    return rc;
}

static int fail_format(struct json_reader *r, const char *where, const char *format, ...)
    ERR_PRINTF(3, 4);

static int fail_format(struct json_reader *r, const char *where, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int rc = fail_at(r, where, ERR_FORMAT, format, args);
    va_end(args);
    return rc;
}

static int fail_expected(struct json_reader *r, const char *what) {
    if (r->at == r->end)
        return fail_format(r, r->at, "the text ends where %s should be", what);
    unsigned char c = (unsigned char)*r->at;
    if (c >= 0x20 && c < 0x7F)
        return fail_format(r, r->at, "expected %s, found '%c'", what, c);
    return fail_format(r, r->at, "expected %s, found byte 0x%02x", what, c);
}

static void skip_space(struct json_reader *r) {
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\n' || *r->at == '\r' || *r->at == '\t'))
        r->at++;
}

static enum json_type type_at(const struct json_reader *r) {
    if (r->at == r->end)
        return JSON_INVALID;
    switch (*r->at) {
    case 'n':
        return JSON_NULL;
    case 't':
    case 'f':
        return JSON_BOOL;
    case '"':
        return JSON_STRING;
    case '[':
        return JSON_ARRAY;
    case '{':
        return JSON_OBJECT;
    default:
        return *r->at == '-' || (*r->at >= '0' && *r->at <= '9') ? JSON_NUMBER : JSON_INVALID;
    }
}

enum json_type json_peek(struct json_reader *r) {
    if (r->rc)
        return JSON_INVALID;
    skip_space(r);
    enum json_type type = type_at(r);
    if (type == JSON_INVALID)
        fail_expected(r, "a value");
    return type;
}

static const char *const type_names[] = {
    [JSON_NULL] = "null",       [JSON_BOOL] = "true or false", [JSON_NUMBER] = "a number",
    [JSON_STRING] = "a string", [JSON_ARRAY] = "an array",     [JSON_OBJECT] = "an object",
};

// How many bytes of an unquoted word come next, at most 40.
static int word_bytes(const struct json_reader *r) {
    int n = 0;
    while (n < 40 && n < r->end - r->at && (isalnum((unsigned char)r->at[n]) || r->at[n] == '_'))
        n++;
    return n;
}

// Names the value that comes next. A word that only begins as null, true or false do is quoted.
static int fail_found(struct json_reader *r, const char *expected, enum json_type found) {
    static const char *const words[] = {"null", "true", "false"};
    const int n = word_bytes(r);
    bool known = found != JSON_NULL && found != JSON_BOOL;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        known = known || ((size_t)n == strlen(words[i]) && memcmp(r->at, words[i], (size_t)n) == 0);
    if (known)
        return fail_format(r, r->at, "expected %s, found %s", expected, type_names[found]);
    return fail_format(r, r->at, "expected %s, found '%.*s'", expected, n, r->at);
}

// Returns 0 when a value of this type comes next.
static int require(struct json_reader *r, enum json_type type) {
    enum json_type found = json_peek(r);
    if (r->rc)
        return r->rc;
    if (found != type)
        return fail_found(r, type_names[type], found);
    return 0;
}

static uint64_t level_bit(const struct json_reader *r) {
    return UINT64_C(1) << (r->depth - 1);
}

static int enter(struct json_reader *r, enum json_type type) {
    TRY(require(r, type));
    if (r->depth == DEPTH_MAX)
        return fail_format(r, r->at, "nested deeper than %d levels", DEPTH_MAX);
    r->at++;
    r->depth++;
    r->first_bits |= level_bit(r);
    if (type == JSON_OBJECT)
        r->object_bits |= level_bit(r);
    else
        r->object_bits &= ~level_bit(r);
    return 0;
}

int json_enter_object(struct json_reader *r) {
    return enter(r, JSON_OBJECT);
}
int json_enter_array(struct json_reader *r) {
    return enter(r, JSON_ARRAY);
}

// Moves past the comma to the next member or element. False when the container ended (the reader
// has then left it) or on an error.
static bool advance(struct json_reader *r, bool object) {
    if (r->rc)
        return false;
    if (r->depth == 0 || !!(r->object_bits & level_bit(r)) != object) {
        json_fail(r, ERR_INTERNAL, "the reader is not inside %s here",
                  object ? "an object" : "an array");
        return false;
    }
    skip_space(r);
    bool first = r->first_bits & level_bit(r);
    if (r->at < r->end && *r->at == (object ? '}' : ']')) {
        r->at++;
        r->depth--;
        return false;
    }
    if (!first) {
        if (r->at == r->end || *r->at != ',') {
            fail_expected(r, object ? "',' or '}'" : "',' or ']'");
            return false;
        }
        r->at++;
        skip_space(r);
    }
    r->first_bits &= ~level_bit(r);
    return true;
}

bool json_next_element(struct json_reader *r) {
    if (!advance(r, false))
        return false;
    // Checks that a value follows, which refuses "[1,]" and "[,". A caller that does not read the
    // value must not be able to step over the error.
    return json_peek(r) != JSON_INVALID;
}

// Reads one escape at p (after the backslash) and writes the character to *out. Returns the first
// byte after the escape, or NULL on error.
static const char *read_escape(struct json_reader *r, const char *p, uint32_t *out) {
    if (p == r->end) {
        fail_format(r, p, "the text ends inside a string");
        return NULL;
    }
    static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    const char *letter = *p ? strchr(letters, *p) : NULL;
    if (letter) {
        *out = (unsigned char)meanings[letter - letters];
        return p + 1;
    }
    if (*p != 'u') {
        fail_format(r, p - 1, "a backslash must be followed by one of \"\\/bfnrtu");
        return NULL;
    }
    int32_t high = text_hex(p + 1, r->end, 4);
    if (high < 0) {
        fail_format(r, p - 1, "\\u must be followed by four hex digits");
        return NULL;
    }
    if (high < 0xD800 || high > 0xDFFF) {
        *out = (uint32_t)high;
        return p + 5;
    }
    int32_t low = -1;
    if (high < 0xDC00 && r->end - p >= 11 && p[5] == '\\' && p[6] == 'u')
        low = text_hex(p + 7, r->end, 4);
    if (low < 0xDC00 || low > 0xDFFF) {
        fail_format(r, p - 1, "\\u%04x is half of a surrogate pair; the other half is missing",
                    (unsigned)high);
        return NULL;
    }
    *out = 0x10000 + ((uint32_t)(high - 0xD800) << 10) + (uint32_t)(low - 0xDC00);
    return p + 11;
}

// Checks the string that starts at r->at (a quote), and unescapes it into `out` unless that is
// NULL. Moves r->at behind the closing quote. Unescaping never makes the text longer (the six bytes
// of \u0800 become three), so `out` needs at most the raw bytes.
static int scan_string(struct json_reader *r, char *out, size_t *out_bytes, bool *has_nul) {
    const char *p = r->at + 1;
    size_t n = 0;
    *has_nul = false;
    for (;;) {
        const char *run = p;
        while (p < r->end && (unsigned char)*p >= 0x20 && (unsigned char)*p < 0x80 && *p != '"' &&
               *p != '\\')
            p++;
        if (out)
            memcpy(out + n, run, (size_t)(p - run));
        n += (size_t)(p - run);
        if (p == r->end)
            return fail_format(r, p, "the text ends inside a string");
        unsigned char c = (unsigned char)*p;
        if (c == '"')
            break;
        if (c == '\\') {
            uint32_t code = 0;
            p = read_escape(r, p + 1, &code);
            if (!p)
                return r->rc;
            char utf8[4];
            size_t length = utf8_encode(code, utf8);
            if (out)
                memcpy(out + n, utf8, length);
            n += length;
            if (code == 0)
                *has_nul = true;
        } else if (c < 0x20) {
            return fail_format(r, p, "control character 0x%02x in a string must be escaped", c);
        } else {
            unsigned length;
            if (utf8_decode((const uint8_t *)p, (const uint8_t *)r->end, &length) == UTF8_BAD)
                return fail_format(r, p, "byte 0x%02x in a string is not valid UTF-8", c);
            if (out)
                memcpy(out + n, p, length);
            n += length;
            p += length;
        }
    }
    r->at = p + 1;
    *out_bytes = n;
    return 0;
}

static int take_string(struct json_reader *r, const char **out, size_t *out_bytes) {
    *out = "";
    if (out_bytes)
        *out_bytes = 0;
    // The string is checked first and copied second. Memory is taken only for a valid string, and
    // exactly as much as it needs.
    const char *start = r->at;
    size_t bytes = 0;
    bool has_nul = false;
    TRY(scan_string(r, NULL, &bytes, &has_nul));
    const char *after = r->at;
    r->at = start;
    if (has_nul && !out_bytes)
        return fail_format(r, start, "a string with \\u0000 inside is not accepted here");
    char *copy = r->strings ? region_alloc(r->strings, bytes + 1) : NULL;
    if (!copy)
        return json_fail(r, ERR_MEMORY, "no memory for a string of %zu bytes", bytes);
    if (after - start == (ptrdiff_t)bytes + 2) { // no escapes: the raw bytes are the string
        memcpy(copy, start + 1, bytes);
        r->at = after;
    } else {
        TRY(scan_string(r, copy, &bytes, &has_nul));
    }
    copy[bytes] = '\0';
    *out = copy;
    if (out_bytes)
        *out_bytes = bytes;
    return 0;
}

static int skip_string(struct json_reader *r) {
    size_t bytes;
    bool has_nul;
    return scan_string(r, NULL, &bytes, &has_nul);
}

// Moves to the next member's value. With `key` NULL the key is skipped and not kept.
static bool next_member(struct json_reader *r, const char **key) {
    if (key)
        *key = "";
    if (!advance(r, true))
        return false;
    if (r->at == r->end || *r->at != '"') {
        fail_expected(r, "a key in double quotes");
        return false;
    }
    if (key ? take_string(r, key, NULL) : skip_string(r))
        return false;
    skip_space(r);
    if (r->at == r->end || *r->at != ':') {
        fail_expected(r, "':' after a key");
        return false;
    }
    r->at++;
    return json_peek(r) != JSON_INVALID;
}

bool json_next_key(struct json_reader *r, const char **key) {
    const char *ignored;
    return next_member(r, key ? key : &ignored);
}

int json_read_string(struct json_reader *r, const char **out, size_t *out_bytes) {
    *out = "";
    if (out_bytes)
        *out_bytes = 0;
    TRY(require(r, JSON_STRING));
    return take_string(r, out, out_bytes);
}

static bool digit_at(const char *p, const char *end) {
    return p < end && *p >= '0' && *p <= '9';
}

// Checks the number at r->at against the grammar and moves r->at behind it.
static int scan_number(struct json_reader *r) {
    const char *p = r->at, *end = r->end;
    if (p < end && *p == '-')
        p++;
    if (!digit_at(p, end))
        return fail_format(r, p, "'-' must be followed by a digit");
    if (*p == '0' && digit_at(p + 1, end))
        return fail_format(r, p, "a number must not begin with 0");
    while (digit_at(p, end))
        p++;
    if (p < end && *p == '.') {
        p++;
        if (!digit_at(p, end))
            return fail_format(r, p, "a decimal point must be followed by a digit");
        while (digit_at(p, end))
            p++;
    }
    if (p < end && (*p == 'e' || *p == 'E')) {
        p++;
        if (p < end && (*p == '+' || *p == '-'))
            p++;
        if (!digit_at(p, end))
            return fail_format(r, p, "an exponent must have a digit");
        while (digit_at(p, end))
            p++;
    }
    if (p - r->at > NUMBER_MAX_CHARS)
        return fail_format(r, r->at, "a number of %zu characters; at most %d are accepted",
                           (size_t)(p - r->at), NUMBER_MAX_CHARS);
    r->at = p;
    return 0;
}

// Copies the number's characters and NUL-terminates them, so that strtod cannot run past the end of
// the buffer.
static int take_number(struct json_reader *r, char copy[NUMBER_MAX_CHARS + 1], const char **start) {
    TRY(require(r, JSON_NUMBER));
    *start = r->at;
    TRY(scan_number(r));
    size_t n = (size_t)(r->at - *start);
    memcpy(copy, *start, n);
    copy[n] = '\0';
    return 0;
}

int json_read_double(struct json_reader *r, double *out) {
    char copy[NUMBER_MAX_CHARS + 1];
    const char *start;
    *out = 0;
    TRY(take_number(r, copy, &start));
    double x = strtod(copy, NULL);
    if (!isfinite(x))
        return fail_format(r, start, "number too large for a double");
    *out = x;
    return 0;
}

int json_read_i64(struct json_reader *r, int64_t *out) {
    char copy[NUMBER_MAX_CHARS + 1];
    const char *start;
    *out = 0;
    TRY(take_number(r, copy, &start));
    // value = digits x 10^scale, computed in integers. A double would lose the last digits of large
    // ids.
    char digits[NUMBER_MAX_CHARS];
    int n = 0, scale = 0;
    const char *p = copy;
    bool negative = *p == '-', fraction = false;
    if (negative)
        p++;
    for (; *p && *p != 'e' && *p != 'E'; p++) {
        if (*p == '.') {
            fraction = true;
            continue;
        }
        if (fraction)
            scale--;
        if (n > 0 || *p != '0')
            digits[n++] = *p;
    }
    if (*p) {
        bool minus = p[1] == '-';
        p += p[1] == '-' || p[1] == '+' ? 2 : 1;
        int exponent = 0;
        for (; *p; p++)
            if (exponent < 100000) // far beyond 512 digits, so a larger one makes no difference
                exponent = exponent * 10 + (*p - '0');
        scale += minus ? -exponent : exponent;
    }
    while (scale < 0 && n > 0 && digits[n - 1] == '0')
        n--, scale++;
    if (n == 0)
        return 0;
    if (scale < 0)
        return fail_format(r, start, "expected a whole number, found %.40s", copy);
    uint64_t x = 0;
    bool fits = n + scale <= 19; // 10^19 - 1 fits 64 bits
    if (fits) {
        for (int i = 0; i < n + scale; i++)
            x = x * 10 + (i < n ? (uint64_t)(digits[i] - '0') : 0);
        fits = x <= (uint64_t)INT64_MAX + (negative ? 1 : 0);
    }
    if (!fits)
        return fail_format(r, start, "%.40s is outside the range of 64-bit integers", copy);
    *out = negative ? (int64_t)(0 - x) : (int64_t)x;
    return 0;
}

static int take_word(struct json_reader *r, const char *word) {
    size_t n = strlen(word);
    if ((size_t)(r->end - r->at) < n || memcmp(r->at, word, n) != 0)
        return fail_format(r, r->at, "expected null, true or false");
    r->at += n;
    return 0;
}

int json_read_bool(struct json_reader *r, bool *out) {
    *out = false;
    TRY(require(r, JSON_BOOL));
    bool yes = *r->at == 't';
    TRY(take_word(r, yes ? "true" : "false"));
    *out = yes;
    return 0;
}

int json_read_null(struct json_reader *r) {
    TRY(require(r, JSON_NULL));
    return take_word(r, "null");
}

int json_skip(struct json_reader *r) {
    int outside = r->depth;
    do {
        switch (json_peek(r)) {
        case JSON_NULL:
            take_word(r, "null");
            break;
        case JSON_BOOL:
            take_word(r, *r->at == 't' ? "true" : "false");
            break;
        case JSON_NUMBER:
            scan_number(r);
            break;
        case JSON_STRING:
            skip_string(r);
            break;
        case JSON_ARRAY:
            json_enter_array(r);
            break;
        case JSON_OBJECT:
            json_enter_object(r);
            break;
        case JSON_INVALID:
            break;
        }
        // Leaves every container that ends here. Stops in front of the next value of the first
        // container that continues.
        while (!r->rc && r->depth > outside) {
            bool object = r->object_bits & level_bit(r);
            if (object ? next_member(r, NULL) : json_next_element(r))
                break;
        }
    } while (!r->rc && r->depth > outside);
    return r->rc;
}

int json_finish(struct json_reader *r) {
    if (r->rc)
        return r->rc;
    if (r->depth != 0)
        return json_fail(r, ERR_INTERNAL, "the reader stopped inside %s",
                         r->object_bits & level_bit(r) ? "an object" : "an array");
    skip_space(r);
    if (r->at != r->end)
        return fail_expected(r, "nothing more after the value");
    return 0;
}

// ---- writing ----

void json_writer_to_file(struct json_writer *w, FILE *f, int indent) {
    *w = (struct json_writer){.f = f, .indent = indent};
}

void json_writer_to_buffer(struct json_writer *w, int indent) {
    *w = (struct json_writer){.indent = indent};
}

static void put(struct json_writer *w, const char *s, size_t n) {
    if (w->failed)
        return;
    if (w->f) {
        if (n && fwrite(s, 1, n, w->f) != n)
            w->failed = ERR_IO;
        w->bytes += n;
        return;
    }
    if (!array_room(&w->buffer, w->bytes, n + 1, &w->capacity, 1, 256)) { // 1: the NUL
        w->failed = ERR_MEMORY;
        return;
    }
    memcpy(w->buffer + w->bytes, s, n);
    w->bytes += n;
    w->buffer[w->bytes] = '\0';
}

static void put_newline(struct json_writer *w) {
    static const char spaces[] = "                                ";
    if (w->indent <= 0)
        return;
    put(w, "\n", 1);
    for (size_t left = (size_t)w->depth * (size_t)w->indent; left > 0;) {
        size_t n = left < sizeof spaces - 1 ? left : sizeof spaces - 1;
        put(w, spaces, n);
        left -= n;
    }
}

static uint64_t writer_bit(const struct json_writer *w) {
    return UINT64_C(1) << (w->depth - 1);
}

// Writes what goes in front of a value or key: nothing after a key or at the top level, else the
// comma and the line break.
static void put_separator(struct json_writer *w) {
    if (w->after_key) {
        w->after_key = false;
        return;
    }
    if (w->depth == 0)
        return;
    if (w->has_element_bits & writer_bit(w))
        put(w, ",", 1);
    w->has_element_bits |= writer_bit(w);
    put_newline(w);
}

static void open_container(struct json_writer *w, const char *bracket) {
    put_separator(w);
    if (w->depth == DEPTH_MAX) {
        w->failed = w->failed ? w->failed : ERR_INTERNAL;
        return;
    }
    put(w, bracket, 1);
    w->depth++;
    w->has_element_bits &= ~writer_bit(w);
}

static void close_container(struct json_writer *w, const char *bracket) {
    if (w->failed)
        return;
    if (w->depth == 0 || w->after_key) {
        w->failed = ERR_INTERNAL;
        return;
    }
    bool any = w->has_element_bits & writer_bit(w);
    w->depth--;
    if (any)
        put_newline(w);
    put(w, bracket, 1);
}

void json_put_object_begin(struct json_writer *w) {
    open_container(w, "{");
}
void json_put_object_end(struct json_writer *w) {
    close_container(w, "}");
}
void json_put_array_begin(struct json_writer *w) {
    open_container(w, "[");
}
void json_put_array_end(struct json_writer *w) {
    close_container(w, "]");
}

// Bytes that are not UTF-8 (in a file name or a broken sample) become U+FFFD, so that the reader
// accepts everything this writer writes.
static void put_quoted(struct json_writer *w, const char *s, size_t n) {
    const unsigned char *p = (const unsigned char *)s, *end = p + n;
    put(w, "\"", 1);
    while (p < end) {
        const unsigned char *run = p;
        unsigned length;
        while (p < end && *p >= 0x20 && *p != '"' && *p != '\\' &&
               utf8_decode(p, end, &length) != UTF8_BAD)
            p += length;
        put(w, (const char *)run, (size_t)(p - run));
        if (p == end)
            break;
        static const char special[] = "\"\\\n\r\t", letters[] = "\"\\nrt";
        const char *known = *p ? strchr(special, *p) : NULL;
        char escape[8];
        if (known) {
            put(w, "\\", 1);
            put(w, &letters[known - special], 1);
        } else if (*p < 0x20) {
            snprintf(escape, sizeof escape, "\\u%04x", *p);
            put(w, escape, 6);
        } else {
            put(w, "\xEF\xBF\xBD", 3);
        }
        p++;
    }
    put(w, "\"", 1);
}

void json_put_key(struct json_writer *w, const char *key) {
    if (w->after_key) {
        w->failed = w->failed ? w->failed : ERR_INTERNAL;
        return;
    }
    put_separator(w);
    put_quoted(w, key, strlen(key));
    put(w, ": ", w->indent > 0 ? 2 : 1);
    w->after_key = true;
}

void json_put_string_n(struct json_writer *w, const char *s, size_t bytes) {
    put_separator(w);
    put_quoted(w, s, bytes);
}

void json_put_string(struct json_writer *w, const char *s) {
    if (s)
        json_put_string_n(w, s, strlen(s));
    else
        json_put_null(w);
}

static void put_text(struct json_writer *w, const char *s) {
    put_separator(w);
    put(w, s, strlen(s));
}

void json_put_double(struct json_writer *w, double x) {
    if (!isfinite(x)) {
        json_put_null(w);
        return;
    }
    char text[40];
    // Tries the fewest digits first. 15 digits always survive decimal -> double -> decimal, and 17
    // always survive double -> decimal -> double (IEEE 754 section 5.12).
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, x);
        if (strtod(text, NULL) == x)
            break;
    }
    put_text(w, text);
}

void json_put_i64(struct json_writer *w, int64_t x) {
    char text[24];
    snprintf(text, sizeof text, "%" PRId64, x);
    put_text(w, text);
}

void json_put_bool(struct json_writer *w, bool x) {
    put_text(w, x ? "true" : "false");
}
void json_put_null(struct json_writer *w) {
    put_text(w, "null");
}

void json_member_string(struct json_writer *w, const char *key, const char *s) {
    json_put_key(w, key);
    json_put_string(w, s);
}

void json_member_double(struct json_writer *w, const char *key, double x) {
    json_put_key(w, key);
    json_put_double(w, x);
}

void json_member_i64(struct json_writer *w, const char *key, int64_t x) {
    json_put_key(w, key);
    json_put_i64(w, x);
}

void json_member_bool(struct json_writer *w, const char *key, bool x) {
    json_put_key(w, key);
    json_put_bool(w, x);
}

void json_member_null(struct json_writer *w, const char *key) {
    json_put_key(w, key);
    json_put_null(w);
}

void json_member_object(struct json_writer *w, const char *key) {
    json_put_key(w, key);
    json_put_object_begin(w);
}

void json_member_array(struct json_writer *w, const char *key) {
    json_put_key(w, key);
    json_put_array_begin(w);
}

int json_writer_finish(struct json_writer *w, struct err *e) {
    put(w, "", 0); // makes an empty buffer NUL-terminated too
    if (!w->failed && (w->depth != 0 || w->after_key))
        w->failed = ERR_INTERNAL;
    if (!w->failed && w->f && (fflush(w->f) != 0 || ferror(w->f)))
        w->failed = ERR_IO;
    switch (w->failed) {
    case 0:
        return 0;
    case ERR_IO:
        return err_set(e, ERR_IO, "JSON could not be written: is the disk full?");
    case ERR_MEMORY:
        return err_set(e, ERR_MEMORY, "no memory for JSON text beyond %zu bytes", w->bytes);
    default:
        return err_set(e, ERR_INTERNAL, "JSON was written with unbalanced brackets or keys");
    }
}
