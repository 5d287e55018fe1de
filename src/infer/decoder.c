// decoder.c - see decoder.h.
#include "infer/decoder.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

struct sequence {
    bool used;
    struct decoder_request request; // its prompt is tokens
    int32_t *tokens;                // [context]: prompt and text
    int64_t length, cached;         // tokens; of these, in the cache
    uint64_t added_ns, last_ns;     // last_ns: of the newest token
};

struct decoder {
    struct session *s;
    int64_t n, context, most_rows;
    struct sequence *sequences;
    int32_t *tokens; // of all sequences
    struct session_row *rows;
    int64_t *asked; // sequence of each row that is asked, in their order
    int32_t *ids;   // what session_extend returns for them
    float *logits;  // the same; memory for all sequences
    struct sampler *sampler;
    int64_t next; // sequence whose prompt goes first in the next turn
    struct decoder_times times;
};

int decoder_open(struct decoder **out, struct session *s, size_t most, struct err *e) {
    const struct plan_extend *x = &s->plan->extend;
    const int64_t vocab = s->plan->shape.vocab;
    struct decoder *d = *out = calloc(1, sizeof *d);
    if (!d)
        return err_set(e, ERR_MEMORY, "out of memory for generation");
    d->s = s;
    d->n = x->sequences, d->context = x->context, d->most_rows = x->rows;
    d->sequences = calloc((size_t)d->n, sizeof *d->sequences);
    d->tokens = calloc((size_t)(d->n * d->context), sizeof *d->tokens);
    d->rows = calloc((size_t)d->most_rows, sizeof *d->rows);
    d->asked = calloc((size_t)d->n, sizeof *d->asked);
    d->ids = calloc((size_t)d->n, sizeof *d->ids);
    d->logits = calloc((size_t)(d->n * vocab), sizeof *d->logits);
    int rc = d->sequences && d->tokens && d->rows && d->asked && d->ids && d->logits
                 ? 0
                 : err_set(e, ERR_MEMORY, "out of memory for %lld sequences of %lld tokens",
                           (long long)d->n, (long long)d->context);
    if (rc == 0)
        rc = sampler_open(&d->sampler, vocab, e);
    if (rc == 0)
        rc = samples_open(&d->times.first, most > 0 ? most : 1, e);
    if (rc == 0)
        rc = samples_open(&d->times.between, most > 0 ? most : 1, e);
    for (int64_t i = 0; rc == 0 && i < d->n; i++)
        d->sequences[i].tokens = d->tokens + i * d->context;
    if (rc != 0) {
        decoder_close(d);
        *out = NULL;
    }
    return rc;
}

void decoder_close(struct decoder *d) {
    if (!d)
        return;
    samples_close(&d->times.first);
    samples_close(&d->times.between);
    sampler_close(d->sampler);
    free(d->logits);
    free(d->ids);
    free(d->asked);
    free(d->rows);
    free(d->tokens);
    free(d->sequences);
    free(d);
}

int64_t decoder_free(const struct decoder *d) {
    int64_t n = 0;
    for (int64_t i = 0; i < d->n; i++)
        n += !d->sequences[i].used;
    return n;
}

bool decoder_busy(const struct decoder *d) {
    return decoder_free(d) < d->n;
}

struct decoder_times *decoder_times(struct decoder *d) {
    return &d->times;
}

uint64_t decoder_bytes(const struct plan *p, size_t most) {
    const struct plan_extend *x = &p->extend;
    const uint64_t n = (uint64_t)x->sequences, vocab = (uint64_t)p->shape.vocab;
    return sizeof(struct decoder) + (uint64_t)x->rows * sizeof(struct session_row) +
           n * (sizeof(struct sequence) + sizeof(int64_t) + sizeof(int32_t)) +
           n * (uint64_t)x->context * sizeof(int32_t) + n * vocab * sizeof(float) +
           sampler_bytes(p->shape.vocab) + 4 * (uint64_t)(most > 0 ? most : 1) * sizeof(double);
}

// How many tokens of the prompt are in the sequence's cache. The last one is computed again,
// because its logits are asked for.
static int64_t cached_part(const struct sequence *q, const struct decoder_request *r) {
    const int64_t most = q->cached < r->n - 1 ? q->cached : r->n - 1;
    int64_t n = 0;
    while (n < most && q->tokens[n] == r->prompt[n])
        n++;
    return n;
}

// The free sequence whose cache has most of the prompt; of several, the one that loses least.
static int64_t choose_free(const struct decoder *d, const struct decoder_request *r,
                           int64_t *cached) {
    int64_t best = d->n;
    *cached = 0;
    for (int64_t i = 0; i < d->n; i++) {
        const struct sequence *q = &d->sequences[i];
        if (q->used)
            continue;
        const int64_t part = cached_part(q, r);
        if (best == d->n || part > *cached ||
            (part == *cached && q->cached < d->sequences[best].cached)) {
            best = i;
            *cached = part;
        }
    }
    return best;
}

int decoder_add(struct decoder *d, const struct decoder_request *r, struct err *e) {
    if (decoder_free(d) == 0)
        return err_set(e, ERR_INTERNAL, "all %lld sequences are in use", (long long)d->n);
    if (r->n < 1)
        return err_set(e, ERR_USAGE, "the prompt is empty; at least one token is needed");
    if (r->n > d->context)
        return err_set(e, ERR_USAGE,
                       "the prompt has %lld tokens and the cache has room for %lld of a sequence; "
                       "accepted: a shorter prompt, or more room",
                       (long long)r->n, (long long)d->context);
    int64_t cached;
    struct sequence *q = &d->sequences[choose_free(d, r, &cached)];
    int32_t *tokens = q->tokens;
    *q = (struct sequence){.used = true,
                           .request = *r,
                           .tokens = tokens,
                           .length = r->n,
                           .cached = cached,
                           .added_ns = clock_ns()};
    d->times.cached_tokens += cached;
    memcpy(tokens, r->prompt, (size_t)r->n * sizeof *tokens);
    q->request.prompt = NULL;
    return 0;
}

static bool in_prompt(const struct sequence *q) {
    return q->used && q->cached + 1 < q->length;
}

// Rows for the tokens of a sequence that are not in the cache yet, as many as fit.
static int64_t add_rows(struct decoder *d, int64_t sequence, int64_t at, int64_t *asked) {
    struct sequence *q = &d->sequences[sequence];
    while (at < d->most_rows && q->cached < q->length) {
        const int64_t position = q->cached++;
        const bool last = q->cached == q->length;
        d->rows[at++] = (struct session_row){q->tokens[position], (int32_t)sequence,
                                             (int32_t)position, .asked = last};
        if (last)
            d->asked[(*asked)++] = sequence;
    }
    return at;
}

// One token of every text, then prompts, the longest waiting one first. Rows of a sequence are in
// the order of their positions.
static int64_t fill_turn(struct decoder *d, int64_t *asked, int64_t *of_prompts) {
    int64_t n = 0;
    *asked = *of_prompts = 0;
    for (int64_t i = 0; i < d->n; i++)
        if (d->sequences[i].used && !in_prompt(&d->sequences[i]) &&
            d->sequences[i].length > d->sequences[i].request.n)
            n = add_rows(d, i, n, asked);
    const int64_t texts = n;
    for (int64_t k = 0; k < d->n && n < d->most_rows; k++) {
        const int64_t i = (d->next + k) % d->n;
        const struct sequence *q = &d->sequences[i];
        if (q->used && q->length == q->request.n)
            n = add_rows(d, i, n, asked);
        if (n == d->most_rows)
            d->next = q->used && q->cached < q->length ? i : (i + 1) % d->n;
    }
    *of_prompts = n - texts;
    return n;
}

static bool is_end(const struct decoder_request *r, int32_t id) {
    for (int i = 0; i < r->n_ends; i++)
        if (r->ends[i] == id)
            return true;
    return false;
}

static int take_token(struct decoder *d, struct sequence *q, int32_t id, uint64_t now,
                      decoder_token_fn *fn, void *arg, struct err *e) {
    const struct decoder_request *r = &q->request;
    const bool first = q->length == r->n, ended = is_end(r, id);
    samples_add(first ? &d->times.first : &d->times.between,
                (double)(now - (first ? q->added_ns : q->last_ns)));
    q->last_ns = now;
    d->times.made_tokens++;
    enum decoder_end end = ended                             ? DECODER_ENDED
                           : q->length + 1 - r->n >= r->most ? DECODER_LENGTH
                           : q->length >= d->context         ? DECODER_FULL
                                                             : DECODER_GOES_ON;
    if (!ended && q->length < d->context)
        q->tokens[q->length++] = id;
    const int rc = fn(arg, r->tag, ended ? -1 : id, end, e);
    if (rc < 0)
        return rc;
    if (rc == DECODER_STOP || end != DECODER_GOES_ON)
        q->used = false;
    return 0;
}

int decoder_turn(struct decoder *d, decoder_token_fn *fn, void *arg, struct err *e) {
    int64_t asked, of_prompts;
    const int64_t n = fill_turn(d, &asked, &of_prompts), vocab = d->s->plan->shape.vocab;
    if (n == 0)
        return 0;
    bool greedy = true;
    for (int64_t i = 0; i < asked; i++)
        greedy &= sampling_is_greedy(&d->sequences[d->asked[i]].request.how);
    const uint64_t begin = clock_ns();
    TRY(session_extend(d->s, d->rows, n, d->ids, greedy ? NULL : d->logits, e));
    for (int64_t i = 0; i < asked; i++) {
        const struct sequence *q = &d->sequences[d->asked[i]];
        if (!sampling_is_greedy(&q->request.how))
            TRY(sampler_choose(d->sampler, &q->request.how, d->logits + i * vocab, q->tokens,
                               q->length, q->length, &d->ids[i], e));
    }
    const uint64_t now = clock_ns();
    if (of_prompts > 0) {
        d->times.prompt_ns += now - begin;
        d->times.prompt_tokens += of_prompts;
    } else {
        d->times.decode_ns += now - begin;
        d->times.decode_tokens += asked;
    }
    for (int64_t i = 0; i < asked; i++)
        TRY(take_token(d, &d->sequences[d->asked[i]], d->ids[i], now, fn, arg, e));
    return 0;
}
