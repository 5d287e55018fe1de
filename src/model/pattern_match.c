// pattern_match.c - finds the matches of a pattern in a text, one after another.
//
// Place: tokenizer_encode.c splits text with it. Each match is one pass of the automaton. The next
// search begins where the last match ended, as in Oniguruma's iteration, empty matches included.
//
// Invariant: linear time. A search may read past the end of the match it finds. Without a loop that
// ends no match, it reads at most as many such characters as the automaton has states. With such a
// loop (may_run_ahead), every pair of state and place from which no match was found is remembered
// and not tried again. The whole text then costs at most states x bytes.
#include "model/pattern_impl.h"

#include <stdlib.h>

enum { AHEAD_FREE = 32, DEAD_BITS_MOST = 1 << 30 };

void pattern_scan_begin(struct pattern_scan *s, const struct pattern *p, const uint8_t *text,
                        size_t n, bool mapped) {
    *s = (struct pattern_scan){.p = p, .text = text, .n = n, .mapped = mapped};
}

static inline unsigned class_at(const struct pattern_scan *s, size_t i, unsigned *bytes) {
    const struct pattern *p = s->p;
    uint8_t b = s->text[i];
    *bytes = 1;
    if (s->mapped)
        return p->mapped[b];
    if (b < 0x80)
        return p->of_byte[b];
    uint32_t c = utf8_decode_wide(s->text + i, s->text + s->n, bytes);
    return c == UTF8_BAD ? p->of_byte[0x80] : p->pages[p->page_of[c >> 8]][c & 255];
}

static unsigned class_before(const struct pattern_scan *s, size_t i, unsigned *bytes) {
    const struct pattern *p = s->p;
    *bytes = 1;
    if (i == 0)
        return p->n_classes;
    if (s->mapped)
        return p->mapped[s->text[i - 1]];
    uint32_t c = utf8_decode_back(s->text, s->text + i, bytes);
    return c == UTF8_BAD ? p->of_byte[0x80] : p->pages[p->page_of[c >> 8]][c & 255];
}

// Fills s->around: for every place of the text, one bit for each lookaround that holds there.
static void look_around(struct pattern_scan *s) {
    const struct pattern *p = s->p;
    s->around = calloc(s->n + 1, 1);
    if (!s->around) {
        s->failed = true;
        return;
    }
    for (unsigned k = 0; k < p->n_around; k++) {
        const struct automaton *a = &p->around[k];
        bool forward = p->around_behind[k];
        unsigned state = a->start[p->n_classes], bytes;
        for (size_t i = forward ? 0 : s->n;;) {
            bool last = forward ? i == s->n : i == 0;
            unsigned class = last      ? p->n_classes
                             : forward ? class_at(s, i, &bytes)
                                       : class_before(s, i, &bytes);
            unsigned entry = a->table[state * a->stride + class];
            if (entry & 1)
                s->around[i] |= (uint8_t)(1u << k);
            state = entry >> 1;
            if (last)
                break;
            i = forward ? i + bytes : i - bytes;
        }
    }
}

static uint64_t *dead_word(struct pattern_scan *s, unsigned state, size_t i, uint64_t *bit) {
    size_t at = i * s->p->main.n_states + state;
    *bit = UINT64_C(1) << at % 64;
    return &s->dead[at / 64];
}

static bool is_dead(struct pattern_scan *s, unsigned state, size_t i) {
    uint64_t bit;
    return s->dead && (*dead_word(s, state, i, &bit) & bit);
}

static inline unsigned symbol_at(const struct pattern_scan *s, size_t i, unsigned *bytes) {
    unsigned class = i == s->n ? s->p->n_classes : class_at(s, i, bytes);
    return s->around ? class << s->p->n_around | s->around[i] : class;
}

// Remembers for later searches that no match was found from (state, i) up to `to`.
static void remember(struct pattern_scan *s, unsigned state, size_t i, size_t to) {
    const struct automaton *a = &s->p->main;
    unsigned bytes = 0;
    uint64_t bit;
    if (!s->dead) {
        if (s->n >= DEAD_BITS_MOST / a->n_states) {
            s->failed = true;
            return;
        }
        s->dead = calloc((s->n + 1) * a->n_states / 64 + 1, sizeof *s->dead);
        if (!s->dead) {
            s->failed = true;
            return;
        }
    }
    while (state && i <= to) {
        *dead_word(s, state, i, &bit) |= bit;
        if (i == s->n)
            break;
        state = a->table[state * a->stride + symbol_at(s, i, &bytes)] >> 1;
        i += bytes;
    }
}

// The end of the match that begins at `at`, or SIZE_MAX when there is none.
static size_t match_at(struct pattern_scan *s, size_t at) {
    const struct pattern *p = s->p;
    const struct automaton *a = &p->main;
    unsigned bytes = 0;
    unsigned state = a->start[a->looks_behind ? class_before(s, at, &bytes) : 0];
    size_t found = SIZE_MAX, i = at, from = at;
    unsigned from_state = state; // the state after the last match found
    bytes = 0;
    for (;;) {
        unsigned entry = a->table[state * a->stride + symbol_at(s, i, &bytes)];
        state = entry >> 1;
        if (entry & 1) {
            found = i;
            from = i + bytes;
            from_state = state;
        }
        if (state == 0 || i == s->n)
            break;
        i += bytes;
        if (p->may_run_ahead && is_dead(s, state, i))
            break;
    }
    s->steps += i - at + 1;
    if (p->may_run_ahead && from < i && i - from > AHEAD_FREE)
        remember(s, from_state, from, i);
    return found;
}

static void skip_char(struct pattern_scan *s) {
    unsigned bytes = 1;
    if (s->at < s->n)
        class_at(s, s->at, &bytes);
    s->at += bytes;
}

bool pattern_scan_next(struct pattern_scan *s, size_t *begin, size_t *end) {
    if (s->p->n_around > 0 && !s->around && !s->failed)
        look_around(s);
    while (s->at <= s->n && !s->failed) {
        size_t found = match_at(s, s->at);
        // An empty match right after the last match would be found forever.
        if (found == SIZE_MAX || (found == s->at && s->any && s->last_end == found)) {
            skip_char(s);
            continue;
        }
        *begin = s->at;
        *end = s->at = s->last_end = found;
        s->any = true;
        return true;
    }
    return false;
}

int pattern_scan_end(struct pattern_scan *s, struct err *e) {
    free(s->dead);
    free(s->around);
    s->dead = NULL;
    s->around = NULL;
    return s->failed ? err_set(e, ERR_MEMORY,
                               "no memory to search a text of %zu bytes for this pattern in linear "
                               "time; accepted: shorter texts",
                               s->n)
                     : 0;
}
