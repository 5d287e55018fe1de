// render_encode.c - turns text with origins into token ids.
//
// Special tokens are recognised only in the template's text. The text between two of them is
// encoded as one run of ordinary text, as Hugging Face does with a whole conversation. The ids are
// the same for the same text, with one exception: a special token spelled in a record stays text
// here.
#include "data/render_impl.h"

#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------- special tokens

static int compare_specials(const void *a, const void *b) {
    const struct render_special *x = a, *y = b;
    unsigned char c = (unsigned char)*x->spelling, d = (unsigned char)*y->spelling;
    if (c != d)
        return c < d ? -1 : 1;
    if (x->n != y->n)
        return x->n > y->n ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

// Finds out whether the tokenizer absorbs blanks around a token, by encoding an example.
static int find_strips(struct tokenizer_encoder *c, struct render_special *s, char *scratch,
                       struct err *e) {
    struct token_list with = {0}, without = {0};
    memcpy(scratch + 1, s->spelling, s->n);
    scratch[0] = scratch[s->n + 1] = '\n';
    int rc = tokenizer_encode(c, scratch + 1, s->n + 1, TOKENIZER_SPECIAL, &with, e);
    if (rc == 0)
        s->rstrip = with.n == 1 && with.ids[0] == s->id;
    if (rc == 0)
        rc = tokenizer_encode(c, scratch, s->n + 1, TOKENIZER_SPECIAL, &without, e);
    if (rc == 0)
        s->lstrip = without.n == 1 && without.ids[0] == s->id;
    token_list_free(&with);
    token_list_free(&without);
    return rc;
}

static int add_special(struct render_specials *s, size_t *capacity, const struct tokenizer *t,
                       int32_t id, struct region *r, struct err *e) {
    size_t bytes;
    const char *text = tokenizer_text(t, id, &bytes); // lives as long as the tokenizer
    if (bytes == 0)
        return 0;
    void *wider = region_grow(r, s->items, s->n, capacity, sizeof *s->items);
    if (wider == NULL)
        return err_set(e, ERR_MEMORY, "no memory for special tokens");
    s->items = wider;
    s->items[s->n++] = (struct render_special){.spelling = text, .n = bytes, .id = id};
    return 0;
}

static int find_all_strips(struct render_specials *s, const struct tokenizer *t, struct region *r,
                           struct err *e) {
    size_t longest = 0;
    for (size_t i = 0; i < s->n; i++)
        longest = s->items[i].n > longest ? s->items[i].n : longest;
    char *scratch = region_alloc(r, longest + 2);
    if (scratch == NULL)
        return err_set(e, ERR_MEMORY, "no memory for special tokens");
    struct tokenizer_encoder *c;
    TRY(tokenizer_encoder_open(&c, t, e));
    int rc = 0;
    for (size_t i = 0; i < s->n && rc == 0; i++)
        rc = find_strips(c, &s->items[i], scratch, e);
    tokenizer_encoder_close(c);
    return rc;
}

int render_specials_open(struct render_specials *s, const struct tokenizer *t, struct region *r,
                         struct err *e) {
    size_t capacity = 0;
    for (int32_t id = 0; id < tokenizer_size(t); id++)
        if (tokenizer_is_special(t, id))
            TRY(add_special(s, &capacity, t, id, r, e));
    if (s->n > 1)
        qsort(s->items, s->n, sizeof *s->items, compare_specials);
    size_t i = 0;
    for (unsigned b = 0; b < 256; b++) {
        s->first[b] = i;
        while (i < s->n && (unsigned char)*s->items[i].spelling == b)
            i++;
    }
    s->first[256] = s->n;
    return find_all_strips(s, t, r, e);
}

static const struct render_special *special_within(const struct render_specials *s, const char *at,
                                                   size_t left) {
    unsigned char b = (unsigned char)*at;
    for (size_t i = s->first[b]; i < s->first[b + 1]; i++)
        if (s->items[i].n <= left && memcmp(s->items[i].spelling, at, s->items[i].n) == 0)
            return &s->items[i];
    return NULL;
}

const struct render_special *render_special_at(const struct render_specials *s,
                                               const struct marked *text, size_t at) {
    if (at >= text->n)
        return NULL;
    struct marked_span span = marked_span_at(text, at);
    return span.origin == ORIGIN_TEMPLATE ? special_within(s, text->bytes + at, span.end - at)
                                          : NULL;
}

// ---------------------------------------------------------------- tokens

// Makes room for the flags of all tokens and sets those from `from` on to `trained`.
static int set_trained(struct rendered *out, size_t from, bool trained, struct err *e) {
    if (out->capacity < out->tokens.n) {
        size_t wider = out->tokens.n > SIZE_MAX / 2 ? out->tokens.n : 2 * out->tokens.n;
        unsigned char *moved = realloc(out->trained, wider);
        if (moved == NULL)
            return err_set(e, ERR_MEMORY, "no memory for %zu tokens", wider);
        out->trained = moved;
        out->capacity = wider;
    }
    if (out->tokens.n > from)
        memset(out->trained + from, trained, out->tokens.n - from);
    return 0;
}

int render_put_text(struct tokenizer_encoder *c, const char *text, size_t bytes, unsigned flags,
                    bool trained, struct rendered *out, struct err *e) {
    size_t from = out->tokens.n;
    if (bytes == 0)
        return 0;
    TRY(tokenizer_encode(c, text, bytes, flags, &out->tokens, e));
    return set_trained(out, from, trained, e);
}

int render_put_token(int32_t id, bool trained, struct rendered *out, struct err *e) {
    struct token_list *l = &out->tokens;
    if (l->n == l->capacity) {
        size_t wider = l->capacity ? 2 * l->capacity : 64;
        int32_t *moved =
            wider <= SIZE_MAX / sizeof *moved ? realloc(l->ids, wider * sizeof *moved) : NULL;
        if (moved == NULL)
            return err_set(e, ERR_MEMORY, "no memory for %zu tokens", wider);
        l->ids = moved;
        l->capacity = wider;
    }
    l->ids[l->n++] = id;
    return set_trained(out, l->n - 1, trained, e);
}

// Returns the bytes of the blank at p, or 0. Blanks are Unicode White_Space, as lstrip and rstrip
// of special tokens define them.
static size_t blank_at(const char *p, const char *end) {
    const unsigned char *u = (const unsigned char *)p;
    size_t left = (size_t)(end - p);
    if (left >= 1 && (u[0] == ' ' || (u[0] >= 9 && u[0] <= 13)))
        return 1;
    if (left >= 2 && u[0] == 0xC2 && (u[1] == 0x85 || u[1] == 0xA0))
        return 2;
    if (left < 3 || u[0] < 0xE1 || u[0] > 0xE3)
        return 0;
    unsigned code = (unsigned)(u[0] & 15) << 12 | (unsigned)(u[1] & 63) << 6 | (u[2] & 63u);
    return code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 ||
                   code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000
               ? 3
               : 0;
}

static size_t without_blanks_behind(const char *text, size_t begin, size_t end) {
    while (end > begin) {
        size_t last = end - 1;
        while (last > begin && ((unsigned char)text[last] & 0xC0) == 0x80)
            last--;
        if (blank_at(text + last, text + end) != end - last)
            break;
        end = last;
    }
    return end;
}

// Returns the first special token in [*at, end) of the template's text. *at moves to it, or to
// `end`.
static const struct render_special *
next_special(const struct render_specials *s, const struct marked *text, size_t *at, size_t end) {
    while (*at < end) {
        struct marked_span span = marked_span_at(text, *at);
        size_t stop = span.end < end ? span.end : end;
        for (; span.origin == ORIGIN_TEMPLATE && *at < stop; (*at)++) {
            const struct render_special *found = special_within(s, text->bytes + *at, stop - *at);
            if (found != NULL)
                return found;
        }
        *at = stop;
    }
    return NULL;
}

struct before {     // what comes before a stretch
    bool skip;      // a token that absorbs blanks
    unsigned flags; // how tokenizer_encode is to treat text that follows
};

// Encodes a stretch that is trained as a whole or not at all.
static int encode_stretch(struct tokenizer_encoder *c, const struct render_specials *s,
                          const struct marked *text, struct render_range w, bool trained,
                          struct before *before, struct rendered *out, struct err *e) {
    const char *bytes = text->bytes;
    for (size_t at = w.begin, begin = w.begin; begin < w.end; begin = at) {
        for (size_t n; before->skip && (n = blank_at(bytes + at, bytes + w.end)) > 0;)
            at += n;
        if (at == w.end)
            return 0;
        begin = at;
        before->skip = false;
        const struct render_special *found = next_special(s, text, &at, w.end);
        bool strip = found != NULL && found->lstrip;
        size_t end = strip ? without_blanks_behind(bytes, begin, at) : at;
        TRY(render_put_text(c, bytes + begin, end - begin, before->flags, trained, out, e));
        before->flags = end > begin ? TOKENIZER_CONTINUES : before->flags;
        if (found == NULL)
            return 0;
        TRY(render_put_token(found->id, trained, out, e));
        *before = (struct before){found->rstrip, TOKENIZER_INSIDE};
        at += found->n;
    }
    return 0;
}

int render_encode(struct tokenizer_encoder *c, const struct render_specials *s,
                  const struct marked *text, const struct render_range *trained, size_t n_trained,
                  struct rendered *out, struct err *e) {
    size_t at = 0;
    struct before last = {false, 0};
    for (size_t i = 0; i < n_trained; i++) {
        struct render_range before = {at, trained[i].begin};
        TRY(encode_stretch(c, s, text, before, false, &last, out, e));
        TRY(encode_stretch(c, s, text, trained[i], true, &last, out, e));
        at = trained[i].end;
    }
    struct render_range rest = {at, text->n};
    return encode_stretch(c, s, text, rest, false, &last, out, e);
}
