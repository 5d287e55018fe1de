// err.c - the one way to report failure (see err.h for the contract).
//
// Invariants: the text is always NUL-terminated and never cut inside a UTF-8 sequence, because it
// ends up in JSON reports. Arguments may point into the struct that is being filled: everything is
// first formatted into a separate buffer.
#include "base/err.h"

#include <stdio.h>
#include <string.h>

// Removes an incomplete character at the end. vsnprintf cuts between bytes, which could leave
// invalid UTF-8.
static void trim_partial_utf8(char *text) {
    size_t n = strlen(text);
    size_t back = 0;
    while (back < 3 && back < n && ((unsigned char)text[n - 1 - back] & 0xC0) == 0x80)
        back++;
    if (back == n)
        return;
    unsigned char lead = (unsigned char)text[n - 1 - back];
    size_t want = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : lead >= 0xC0 ? 1 : 0;
    if (want > back)
        text[n - 1 - back] = '\0';
}

static void format_into(char out[ERR_TEXT_BYTES], const char *format, va_list args)
    ERR_PRINTF(2, 0);

static void format_into(char out[ERR_TEXT_BYTES], const char *format, va_list args) {
    int n = vsnprintf(out, ERR_TEXT_BYTES, format, args);
    if (n < 0)
        snprintf(out, ERR_TEXT_BYTES, "(a message that could not be formatted)");
    else if (n >= ERR_TEXT_BYTES)
        trim_partial_utf8(out);
}

int err_set(struct err *e, int code, const char *format, ...) {
    if (!e)
        return code;
    char text[ERR_TEXT_BYTES];
    va_list args;
    va_start(args, format);
    format_into(text, format, args);
    va_end(args);
    e->code = code;
    memcpy(e->text, text, strlen(text) + 1);
    return code;
}

int err_context(struct err *e, const char *format, ...) {
    // Without a struct there is no code to return. 0 would turn a failing path into a success.
    if (!e)
        return ERR_INTERNAL;
    char context[ERR_TEXT_BYTES], text[ERR_TEXT_BYTES];
    va_list args;
    va_start(args, format);
    format_into(context, format, args);
    va_end(args);
    if (e->code == 0) {
        e->code = ERR_INTERNAL;
        snprintf(e->text, sizeof e->text, "an error was reported without a reason");
    }
    size_t head = strlen(context), tail = strlen(e->text);
    // Too long for the buffer: the cause matters more than the context, so the context is cut.
    if (head + 2 + tail >= ERR_TEXT_BYTES && tail + 2 < ERR_TEXT_BYTES) {
        context[ERR_TEXT_BYTES - 1 - tail - 2] = '\0';
        trim_partial_utf8(context);
        head = strlen(context);
    }
    if (head + 2 + tail < ERR_TEXT_BYTES && head > 0) {
        memcpy(text, context, head);
        memcpy(text + head, ": ", 2);
        memcpy(text + head + 2, e->text, tail + 1);
        memcpy(e->text, text, head + 2 + tail + 1);
    }
    return e->code;
}

const char *err_name(int code) {
    switch (code) {
    case ERR_OK:
        return "OK";
#define X(name, value, phrase)                                                                     \
    case value:                                                                                    \
        return #name;
        ERR_LIST(X)
#undef X
    default:
        return "unknown";
    }
}

const char *err_phrase(int code) {
    switch (code) {
    case ERR_OK:
        return "no error";
#define X(name, value, phrase)                                                                     \
    case value:                                                                                    \
        return phrase;
        ERR_LIST(X)
#undef X
    default:
        return "unknown";
    }
}

void err_clear(struct err *e) {
    if (!e)
        return;
    e->code = ERR_OK;
    e->text[0] = '\0';
}
