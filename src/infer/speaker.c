// speaker.c - see speaker.h.
//
//   ids -> window -> bytes -> whole characters -> text without stop strings
//
// The window begins with the last token that was said. It gives the next one its neighbour: some
// decoders treat the first token of a text in another way.
#include "infer/speaker.h"

#include "base/array.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

struct buffer {
    char *data;
    size_t n, capacity;
};

struct stop {
    const char *text;
    size_t n, matched; // bytes of it at the end of the text so far
    uint16_t *fall;    // [n + 1]: the longest shorter match that is an end of this one
};

struct speaker {
    const struct tokenizer *t;
    struct stop stops[SPEAKER_STOPS_MOST];
    size_t n_stops;
    int32_t *window;
    int64_t n, most;
    bool context; // window[0] was said
    unsigned flags;
    struct buffer decoded, raw, text;
    size_t said; // bytes of `text` that the last piece had
    bool search, stopped;
};

// ---------------------------------------------------------------- open and close

static int copy_stop(struct stop *s, const char *text, struct err *e) {
    const size_t n = strlen(text);
    unsigned bytes;
    if (n == 0 || n > SPEAKER_STOP_BYTES)
        return err_set(e, ERR_USAGE, "a stop string has %zu bytes; accepted: 1 to %d", n,
                       SPEAKER_STOP_BYTES);
    for (size_t i = 0; i < n; i += bytes)
        if (utf8_decode((const uint8_t *)text + i, (const uint8_t *)text + n, &bytes) == UTF8_BAD)
            return err_set(e, ERR_USAGE, "the stop string '%.80s' is not UTF-8", text);
    s->text = strdup(text);
    s->fall = calloc(n + 1, sizeof *s->fall);
    s->n = n;
    if (!s->text || !s->fall)
        return err_set(e, ERR_MEMORY, "out of memory for a stop string");
    for (size_t i = 1, k = 0; i < n; i++) {
        while (k > 0 && text[i] != text[k])
            k = s->fall[k];
        k += text[i] == text[k];
        s->fall[i + 1] = (uint16_t)k;
    }
    return 0;
}

int speaker_open(struct speaker **out, const struct tokenizer *t, int64_t most,
                 const char *const *stops, size_t n_stops, struct err *e) {
    *out = NULL;
    if (n_stops > SPEAKER_STOPS_MOST)
        return err_set(e, ERR_USAGE, "%zu stop strings; accepted: up to %d", n_stops,
                       SPEAKER_STOPS_MOST);
    struct speaker *s = calloc(1, sizeof *s);
    int rc =
        s && (s->window = calloc((size_t)most + 1, sizeof *s->window))
            ? 0
            : err_set(e, ERR_MEMORY, "out of memory for a text of %lld tokens", (long long)most);
    for (size_t i = 0; rc == 0 && i < n_stops; i++)
        rc = copy_stop(&s->stops[s->n_stops++], stops[i], e);
    if (rc != 0) {
        speaker_close(s);
        return rc;
    }
    s->t = t, s->most = most;
    *out = s;
    return 0;
}

void speaker_close(struct speaker *s) {
    for (size_t i = 0; s && i < s->n_stops; i++) {
        free((char *)s->stops[i].text);
        free(s->stops[i].fall);
    }
    if (s) {
        free(s->window);
        free(s->decoded.data);
        free(s->raw.data);
        free(s->text.data);
    }
    free(s);
}

enum { PIECE_BYTES = 4096 }; // what the buffers of a speaker take, unless a piece is longer

uint64_t speaker_bytes(int64_t most) {
    return sizeof(struct speaker) + ((uint64_t)most + 1) * sizeof(int32_t) + PIECE_BYTES;
}

void speaker_begin(struct speaker *s, unsigned flags) {
    s->n = 0;
    s->context = s->stopped = s->search = false;
    s->flags = flags;
    s->decoded.n = s->raw.n = s->text.n = s->said = 0;
    for (size_t i = 0; i < s->n_stops; i++)
        s->stops[i].matched = 0;
}

// ---------------------------------------------------------------- ids to bytes

static int room(struct buffer *b, size_t more, struct err *e) {
    return array_room(&b->data, b->n, more, &b->capacity, 1, 256)
               ? 0
               : err_set(e, ERR_MEMORY, "out of memory for a text");
}

static int decode(struct speaker *s, int64_t n, struct err *e) {
    struct buffer *b = &s->decoded;
    b->n = 0;
    return tokenizer_decode(s->t, s->window, (size_t)n, s->flags, &b->data, &b->n, &b->capacity, e);
}

// Says the window. Until a text has a first byte, the beginning is not over: a decoder may still
// take a space off.
static int say_window(struct speaker *s, struct err *e) {
    size_t before = 0;
    if (s->context) {
        TRY(decode(s, 1, e));
        before = s->decoded.n;
    }
    TRY(decode(s, s->n, e));
    if (s->decoded.n > before) {
        TRY(room(&s->raw, s->decoded.n - before, e));
        memcpy(s->raw.data + s->raw.n, s->decoded.data + before, s->decoded.n - before);
        s->raw.n += s->decoded.n - before;
    }
    if (s->context || s->decoded.n > 0) {
        s->window[0] = s->window[s->n - 1];
        s->n = 1;
        s->context = true;
        s->flags |= TOKENIZER_CONTINUES;
    }
    return 0;
}

// ---------------------------------------------------------------- bytes to text

// The bytes in front of a character that may still become whole. A lead byte never continues a
// character, so what is in front of it does not depend on what comes.
static size_t whole_bytes(const struct buffer *b) {
    for (size_t back = 1; back <= 3 && back <= b->n; back++) {
        const uint8_t c = (uint8_t)b->data[b->n - back];
        const size_t needs = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : c >= 0xC0 ? 2 : 1;
        if (needs > back)
            return b->n - back;
        if (needs > 1 || c < 0x80)
            break;
    }
    return b->n;
}

static int take_characters(struct speaker *s, size_t n, struct err *e) {
    if (n == 0)
        return 0;
    TRY(room(&s->text, 3 * n, e));
    s->text.n += utf8_repair(s->raw.data, n, s->text.data + s->text.n);
    memmove(s->raw.data, s->raw.data + n, s->raw.n - n);
    s->raw.n -= n;
    return 0;
}

// Looks for stop strings in text[from, ..). Returns how much of its end may be the beginning of
// one.
static size_t find_stops(struct speaker *s, size_t from) {
    size_t held = 0, longest = 0;
    for (size_t at = from; at < s->text.n; at++) {
        held = longest = 0;
        for (size_t i = 0; i < s->n_stops; i++) {
            struct stop *p = &s->stops[i];
            while (p->matched > 0 &&
                   (p->matched == p->n || p->text[p->matched] != s->text.data[at]))
                p->matched = p->fall[p->matched];
            p->matched += p->text[p->matched] == s->text.data[at];
            held = p->matched > held ? p->matched : held;
            longest = p->matched == p->n && p->n > longest ? p->n : longest;
        }
        if (longest > 0) {
            s->text.n = at + 1 - longest;
            s->stopped = true;
            return 0;
        }
    }
    for (size_t i = 0; from == s->text.n && i < s->n_stops; i++)
        held = s->stops[i].matched > held ? s->stops[i].matched : held;
    return held;
}

// The text that is certain. What is left of it after the last piece was held back then.
static int take_piece(struct speaker *s, bool last, struct speaker_piece *out, struct err *e) {
    size_t held = 0;
    if (s->said > 0)
        memmove(s->text.data, s->text.data + s->said, s->text.n - s->said);
    s->text.n -= s->said;
    const size_t from = s->text.n;
    TRY(take_characters(s, last ? s->raw.n : whole_bytes(&s->raw), e));
    if (s->search)
        held = find_stops(s, from);
    s->said = s->text.n - (last ? 0 : held);
    *out = (struct speaker_piece){
        .text = s->text.data ? s->text.data : "", .bytes = s->said, .stopped = s->stopped};
    return 0;
}

// ---------------------------------------------------------------- a text

int speaker_say(struct speaker *s, const int32_t *ids, int64_t n, bool search,
                struct speaker_piece *out, struct err *e) {
    *out = (struct speaker_piece){.text = "", .stopped = s->stopped};
    if (s->stopped)
        return 0;
    s->search = search;
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] < 0 || !tokenizer_has(s->t, ids[i]) || tokenizer_is_special(s->t, ids[i]))
            continue;
        if (s->n > s->most)
            return err_set(e, ERR_INTERNAL, "a text has more tokens than its speaker has room for");
        s->window[s->n++] = ids[i];
    }
    const int64_t old = s->context;
    if (s->n > old && !tokenizer_is_open(s->t, s->window[s->n - 1]))
        TRY(say_window(s, e));
    return take_piece(s, false, out, e);
}

int speaker_finish(struct speaker *s, struct speaker_piece *out, struct err *e) {
    *out = (struct speaker_piece){.text = "", .stopped = s->stopped};
    if (s->stopped)
        return 0;
    if (s->n > (int64_t)s->context)
        TRY(say_window(s, e));
    return take_piece(s, true, out, e);
}

void speaker_print(const char *text, size_t bytes, bool terminal, FILE *f) {
    const uint8_t *p = (const uint8_t *)text, *end = p + bytes;
    unsigned width;
    if (!terminal)
        fwrite(text, 1, bytes, f);
    for (; terminal && p < end; p += width) {
        const uint32_t c = utf8_decode(p, end, &width);
        if (c == '\n' || c == '\t' || (c >= 0x20 && c != 0x7f && !(c >= 0x80 && c < 0xa0)))
            fwrite(p, 1, width, f);
        else
            fprintf(f, "\\x%02x", (unsigned)c);
    }
}
