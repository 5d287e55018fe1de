// score_text.c - see score_text.h.
#include "train/score_text.h"

#include "base/array.h"
#include "model/tokenizer.h"

#include <stdlib.h>
#include <string.h>

enum { RUN = 256 }; // tokens that are decoded together

struct cutter {
    const struct shard *s;
    const struct tokenizer *t;
    char *text;
    size_t capacity;
    uint64_t bytes; // of the text before
    uint64_t lead;  // of the first token, if it is not scored
    size_t border_capacity, n_borders;
};

static int length_of(struct cutter *c, const int32_t *ids, size_t n, size_t *length,
                     struct err *e) {
    int32_t known[RUN];
    size_t have = 0;
    *length = 0;
    for (size_t i = 0; i < n; i++)
        if (tokenizer_has(c->t, ids[i]))
            known[have++] = ids[i];
    return tokenizer_decode(c->t, known, have, TOKENIZER_CONTINUES, &c->text, length, &c->capacity,
                            e);
}

// A token that ends behind a border begins a stretch, or several if it is long.
static int take(struct cutter *c, struct score_text *x, uint64_t token, uint64_t end,
                struct err *e) {
    while (c->n_borders == 0 || end > c->n_borders * (uint64_t)SCORE_STRETCH_BYTES) {
        if (!array_room(&x->borders, c->n_borders, 2, &c->border_capacity, sizeof *x->borders, 64))
            return err_set(e, ERR_MEMORY, "out of memory for the stretches of a text");
        x->borders[c->n_borders++] = token;
    }
    return 0;
}

// Alone, a token that is a part of a character may be spelled with more bytes than it has. So the
// length of a run is that of all its tokens together, and the lengths of the single ones only say
// where in the run each ends.
static int cut_run(struct cutter *c, struct score_text *x, uint64_t first, size_t n,
                   struct err *e) {
    int32_t ids[RUN] = {0};
    size_t all, one, sum = 0;
    for (size_t i = 0; i < n; i++)
        ids[i] = shard_id(c->s, first + i);
    TRY(length_of(c, ids, n, &all, e));
    for (size_t i = 0; i < n; i++) {
        TRY(length_of(c, &ids[i], 1, &one, e));
        sum = sum + one < all ? sum + one : all;
        if (first + i == 0 && !shard_is_trained(c->s, 0))
            c->lead = sum;
        TRY(take(c, x, first + i, c->bytes + (i + 1 < n ? sum : all), e));
    }
    c->bytes += all;
    return 0;
}

int score_text_open(struct score_text *x, const struct shard *s, const struct tokenizer *t,
                    struct err *e) {
    struct cutter c = {.s = s, .t = t};
    const uint64_t tokens = s->counts.tokens;
    int rc = 0;
    *x = (struct score_text){0};
    for (uint64_t i = 0; rc == 0 && i < tokens; i += RUN)
        rc = cut_run(&c, x, i, (size_t)(tokens - i < RUN ? tokens - i : RUN), e);
    free(c.text);
    TRY(rc);
    x->n = c.n_borders;
    x->stretches = calloc(x->n + 1, sizeof *x->stretches);
    if (x->stretches == NULL)
        return err_set(e, ERR_MEMORY, "out of memory for the stretches of a text");
    if (x->n > 0)
        x->borders[x->n] = tokens;
    // The text is the same to all models, so a stretch weighs as many bytes for each.
    for (size_t k = 0; k < x->n; k++)
        x->stretches[k].bytes =
            k + 1 < x->n ? SCORE_STRETCH_BYTES : c.bytes - k * (uint64_t)SCORE_STRETCH_BYTES;
    if (x->n > 0)
        x->stretches[0].bytes -= c.lead < x->stretches[0].bytes ? c.lead : x->stretches[0].bytes;
    return 0;
}

void score_text_close(struct score_text *x) {
    free(x->stretches);
    free(x->borders);
    *x = (struct score_text){0};
}

// The last stretch that begins at or before the token.
static size_t stretch_at(const struct score_text *x, uint64_t token) {
    size_t low = 0, high = x->n;
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        if (x->borders[middle] <= token)
            low = middle;
        else
            high = middle;
    }
    return low;
}

void score_text_count(struct score_text *x, const struct shard *s, uint64_t first, uint64_t n) {
    const uint64_t end = first + n;
    for (size_t k = stretch_at(x, first); first < end; k++) {
        const uint64_t to = x->borders[k + 1] < end ? x->borders[k + 1] : end;
        x->stretches[k].tokens += shard_count_trained(s, first, to - first);
        first = to;
    }
}

void score_text_settle(struct score_text *x, const struct shard *s) {
    for (size_t k = 0; k < x->n; k++) {
        const uint64_t from = x->borders[k];
        const uint64_t all = shard_count_trained(s, from, x->borders[k + 1] - from);
        x->stretches[k].cut = x->stretches[k].tokens < all;
    }
}

void score_text_add(struct score_text *x, const float *losses, uint64_t first, uint64_t n) {
    size_t k = stretch_at(x, first);
    for (uint64_t i = 0; i < n; i++) {
        while (first + i >= x->borders[k + 1])
            k++;
        x->stretches[k].nats += (double)losses[i];
    }
}
