// tokenizer_encode.c - cuts text into pieces and passes each piece to tokenizer_bpe.c.
//
// Place: implements tokenizer_encode of tokenizer.h.
//
// The order of work is the same as in Hugging Face's code, because the ids must agree:
// 1. Added tokens that are matched in the original text are cut out.
// 2. The text between them is normalized. Added tokens that are matched in normalized text are cut
//    out of it.
// 3. The rest is split by each step of the pre-tokenizer in turn.
// A span goes through all steps as soon as it is found, so memory does not grow with the number of
// pieces.
#include "model/tokenizer_impl.h"

#include <stdlib.h>
#include <string.h>

struct tokenizer_encoder {
    const struct tokenizer *t;
    struct bpe *bpe;
    struct unicode_buffer normal, spare, changed[TOKENIZER_STEPS_MOST]; // by step
    const uint8_t *start;   // where the current call's text begins, also when it was changed
    size_t room;            // bytes that normalizers may still write
    unsigned flags;         // of the current call
    struct token_list *out; // of the current call
};

int tokenizer_encoder_open(struct tokenizer_encoder **out, const struct tokenizer *t,
                           struct err *e) {
    *out = NULL;
    struct tokenizer_encoder *c = calloc(1, sizeof *c);
    if (!c)
        return err_set(e, ERR_MEMORY, "no memory for an encoder");
    c->t = t;
    int rc = bpe_open(&c->bpe, t, e);
    if (rc != 0) {
        free(c);
        return rc;
    }
    *out = c;
    return 0;
}

void tokenizer_encoder_close(struct tokenizer_encoder *c) {
    if (!c)
        return;
    bpe_close(c->bpe);
    free(c->normal.data);
    free(c->spare.data);
    for (int i = 0; i < TOKENIZER_STEPS_MOST; i++)
        free(c->changed[i].data);
    free(c);
}

// ---------------------------------------------------------------- steps

static int run_steps(struct tokenizer_encoder *c, int step, const uint8_t *p, size_t n,
                     struct err *e);

// Turns the spans that a step finds (matches, and the text between them) into the spans that go to
// the next step.
struct joiner {
    struct tokenizer_encoder *c;
    const struct split_step *s;
    int next; // the step after this one
    const uint8_t *text;
    size_t begin, end; // a span held back, because the next one may join it
    bool held, held_match;
};

static int joiner_flush(struct joiner *j, struct err *e) {
    if (!j->held)
        return 0;
    j->held = false;
    return run_steps(j->c, j->next, j->text + j->begin, j->end - j->begin, e);
}

static int joiner_put(struct joiner *j, size_t begin, size_t end, bool match, struct err *e) {
    match ^= j->s->invert;
    bool join = false;
    switch (j->s->behavior) {
    case SPLIT_REMOVED:
        return match ? 0 : run_steps(j->c, j->next, j->text + begin, end - begin, e);
    case SPLIT_ISOLATED:
        return run_steps(j->c, j->next, j->text + begin, end - begin, e);
    case SPLIT_WITH_PREVIOUS: // a match joins a span that is not a match
        join = match && !j->held_match;
        break;
    case SPLIT_WITH_NEXT:
        join = !match && j->held_match;
        break;
    case SPLIT_CONTIGUOUS:
        join = match == j->held_match;
        break;
    }
    if (j->held && join) {
        j->end = end;
    } else {
        TRY(joiner_flush(j, e));
        j->begin = begin;
        j->end = end;
        j->held = true;
    }
    j->held_match = match;
    return 0;
}

static int split_pattern(struct joiner *j, size_t n, struct err *e) {
    struct pattern_scan scan;
    pattern_scan_begin(&scan, j->s->pattern, j->text, n, j->s->mapped);
    size_t from = 0, begin, end;
    int rc = 0;
    while (rc == 0 && pattern_scan_next(&scan, &begin, &end)) {
        if (from < begin)
            rc = joiner_put(j, from, begin, false, e);
        if (rc == 0)
            rc = joiner_put(j, begin, end, true, e);
        from = end;
    }
    int ended = pattern_scan_end(&scan, rc == 0 ? e : NULL);
    if (rc == 0)
        rc = ended;
    return rc == 0 && from < n ? joiner_put(j, from, n, false, e) : rc;
}

static bool char_matches(enum step_kind kind, uint32_t c) {
    return kind == STEP_DIGITS        ? unicode_is_numeric(c)
           : kind == STEP_PUNCTUATION ? unicode_is_punctuation(c)
                                      : unicode_is_space(c);
}

// Every matching character is a separate match.
static int split_chars(struct joiner *j, size_t n, struct err *e) {
    size_t from = 0;
    for (size_t i = 0; i < n;) {
        unsigned bytes = 1;
        uint32_t c = j->s->mapped ? tokenizer_byte_char(j->text[i])
                                  : utf8_decode(j->text + i, j->text + n, &bytes);
        if (char_matches(j->s->kind, c)) {
            if (from < i)
                TRY(joiner_put(j, from, i, false, e));
            TRY(joiner_put(j, i, i + bytes, true, e));
            from = i + bytes;
        }
        i += bytes;
    }
    return from < n ? joiner_put(j, from, n, false, e) : 0;
}

// A piece for each character that stands for a space, and for what is in front of the first.
static int split_metaspace(struct tokenizer_encoder *c, int step, struct err *e) {
    const struct split_step *s = &c->t->steps[step];
    const struct unicode_buffer *b = &c->changed[step];
    size_t from = 0;
    for (size_t i = 1; i + s->text_bytes <= b->n; i++)
        if (b->data[i] == (uint8_t)s->text[0] && memcmp(b->data + i, s->text, s->text_bytes) == 0) {
            TRY(run_steps(c, step + 1, b->data + from, i - from, e));
            from = i;
        }
    return run_steps(c, step + 1, b->data + from, b->n - from, e);
}

static int write_metaspace(struct tokenizer_encoder *c, int step, const uint8_t *p, size_t n,
                           struct err *e) {
    const struct split_step *s = &c->t->steps[step];
    struct unicode_buffer *b = &c->changed[step];
    const bool there = *p == ' ' || (n >= s->text_bytes && memcmp(p, s->text, s->text_bytes) == 0);
    const bool begins = p == c->start;
    if (!there &&
        (s->prefix == PREFIX_ALWAYS ? !begins || !(c->flags & TOKENIZER_CONTINUES)
                                    : s->prefix == PREFIX_FIRST && begins &&
                                          !(c->flags & (TOKENIZER_CONTINUES | TOKENIZER_INSIDE))))
        TRY(unicode_buffer_add(b, s->text, s->text_bytes, e));
    for (size_t from = 0, i = 0; i <= n; i++) {
        if (i < n && p[i] != ' ')
            continue;
        TRY(unicode_buffer_add(b, p + from, i - from, e));
        if (i < n)
            TRY(unicode_buffer_add(b, s->text, s->text_bytes, e));
        from = i + 1;
    }
    return 0;
}

// Runs a step that changes text, and the steps after it on the changed text.
static int run_change(struct tokenizer_encoder *c, int step, const uint8_t *p, size_t n,
                      struct err *e) {
    const struct split_step *s = &c->t->steps[step];
    struct unicode_buffer *b = &c->changed[step];
    const uint8_t *start = c->start;
    b->n = 0;
    if (s->kind == STEP_METASPACE) {
        TRY(write_metaspace(c, step, p, n, e));
    } else {
        if (*p != ' ' && !(p == start && (c->flags & TOKENIZER_CONTINUES)))
            TRY(unicode_buffer_add(b, " ", 1, e));
        TRY(unicode_buffer_add(b, p, n, e));
    }
    c->start = p == start ? b->data : NULL;
    int rc = s->kind == STEP_METASPACE && s->split ? split_metaspace(c, step, e)
                                                   : run_steps(c, step + 1, b->data, b->n, e);
    c->start = start;
    return rc;
}

static int run_steps(struct tokenizer_encoder *c, int step, const uint8_t *p, size_t n,
                     struct err *e) {
    if (n == 0)
        return 0;
    if (step == c->t->n_steps)
        return bpe_encode(c->bpe, p, n, c->out, e);
    const struct split_step *s = &c->t->steps[step];
    if (s->kind == STEP_PREFIX || s->kind == STEP_METASPACE)
        return run_change(c, step, p, n, e);
    struct joiner j = {.c = c, .s = s, .next = step + 1, .text = p};
    TRY(s->kind == STEP_PATTERN ? split_pattern(&j, n, e) : split_chars(&j, n, e));
    return joiner_flush(&j, e);
}

// ---------------------------------------------------------------- added tokens

// Finds the longest added token at p. Returns its number of bytes, or 0 when there is none.
static size_t trie_longest(const struct trie *r, const uint8_t *p, const uint8_t *end,
                           int32_t *id) {
    size_t longest = 0;
    int32_t at = r->root[*p];
    for (size_t i = 0; at;) {
        i++;
        if (r->nodes[at].id >= 0) {
            *id = r->nodes[at].id;
            longest = i;
        }
        if (p + i == end)
            break;
        int32_t next = r->nodes[at].child;
        while (next && r->nodes[next].byte != p[i])
            next = r->nodes[next].sibling;
        at = next;
    }
    return longest;
}

// Like \w in Rust, which includes the two joiners.
static bool is_word(uint32_t c) {
    return unicode_is_alphanumeric(c) || c == 0x200C || c == 0x200D;
}

static bool stands_alone(const uint8_t *text, const uint8_t *end, const uint8_t *from,
                         const uint8_t *to) {
    unsigned bytes;
    return (from == text || !is_word(utf8_decode_back(text, from, &bytes))) &&
           (to == end || !is_word(utf8_decode(to, end, &bytes)));
}

static int plain_text(struct tokenizer_encoder *c, const uint8_t *p, size_t n, struct err *e) {
    return run_steps(c, 0, p, n, e);
}

typedef int text_fn(struct tokenizer_encoder *c, const uint8_t *p, size_t n, struct err *e);

// Cuts added tokens out of a text: the leftmost first, and the longest at each place. `between`
// gets the rest.
static int cut_added(struct tokenizer_encoder *c, const struct trie *r, const uint8_t *text,
                     size_t n, text_fn *between, struct err *e) {
    const uint8_t *end = text + n, *from = text, *spaces_end = text;
    unsigned bytes;
    for (const uint8_t *p = text; p < end;) {
        int32_t id = -1;
        size_t length = r->root[*p] ? trie_longest(r, p, end, &id) : 0;
        if (length == 0) {
            p++;
            continue;
        }
        const uint8_t *start = p, *stop = p + length;
        unsigned flags = c->t->tokens[id].flags;
        p = stop;
        if ((flags & TOKEN_IS_SPECIAL) && !(c->flags & TOKENIZER_SPECIAL))
            continue;
        if ((flags & TOKEN_SINGLE_WORD) && !stands_alone(text, end, start, stop))
            continue;
        while ((flags & TOKEN_LSTRIP) && start > from &&
               unicode_is_space(utf8_decode_back(from, start, &bytes)))
            start -= bytes;
        // A run of spaces is walked only once, even if many tokens inside it strip what follows.
        if ((flags & TOKEN_RSTRIP) && stop < spaces_end)
            stop = spaces_end;
        while ((flags & TOKEN_RSTRIP) && stop < end &&
               unicode_is_space(utf8_decode(stop, end, &bytes)))
            spaces_end = stop += bytes;
        if (from < start)
            TRY(between(c, from, (size_t)(start - from), e));
        TRY(token_list_reserve(c->out, 1, e));
        c->out->ids[c->out->n++] = id;
        from = stop;
    }
    return from < end ? between(c, from, (size_t)(end - from), e) : 0;
}

static int normalized_text(struct tokenizer_encoder *c, const uint8_t *p, size_t n, struct err *e) {
    const uint8_t *start = c->start;
    if (c->t->n_normal > 0 && !tokenizer_is_normal(c->t, p, n)) {
        struct normal_run run = {.joined = p == start && (c->flags & TOKENIZER_CONTINUES),
                                 .most = c->room};
        TRY(tokenizer_normalize(c->t, p, n, &run, &c->normal, &c->spare, e));
        c->room -= run.longest;
        c->start = p == start && run.kept ? c->normal.data : NULL;
        p = c->normal.data;
        n = c->normal.n;
    }
    int rc = n == 0 ? 0 : cut_added(c, &c->t->normalized, p, n, plain_text, e);
    c->start = start;
    return rc;
}

int tokenizer_encode(struct tokenizer_encoder *c, const char *text, size_t bytes, unsigned flags,
                     struct token_list *out, struct err *e) {
    if (bytes == 0)
        return 0;
    if (c->t->no_text)
        return err_set(e, ERR_USAGE, "%s", c->t->no_text);
    size_t before = out->n;
    c->flags = flags;
    c->out = out;
    c->start = (const uint8_t *)text;
    c->room = bytes > (SIZE_MAX - TOKENIZER_GROWTH_ROOM) / TOKENIZER_GROWTH_MOST
                  ? SIZE_MAX
                  : TOKENIZER_GROWTH_MOST * bytes + TOKENIZER_GROWTH_ROOM;
    int rc = cut_added(c, &c->t->as_is, (const uint8_t *)text, bytes, normalized_text, e);
    if (rc != 0)
        out->n = before;
    return rc;
}
