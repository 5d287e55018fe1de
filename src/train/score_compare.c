// score_compare.c - what the units of scores say: the rates of a model, and how two models differ.
#include "train/score.h"
#include "train/score_text.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// Columns over the units that count: what is summed, and what it is divided by, for two models.
struct columns {
    double *x, *w, *y, *v;
    size_t n;
};

static int take_columns(struct columns *c, size_t n, struct err *e) {
    *c = (struct columns){.x = malloc(4 * (n + 1) * sizeof(double))};
    if (c->x == NULL)
        return err_set(e, ERR_MEMORY, "out of memory for the scores of %zu records", n);
    c->w = c->x + n, c->y = c->w + n, c->v = c->y + n;
    return 0;
}

static double nats(const struct score_unit *u, bool by_byte) {
    return by_byte ? u->nats / log(2) : u->nats;
}

static double weight(const struct score_unit *u, bool by_byte) {
    return by_byte ? (double)u->bytes : (double)u->tokens;
}

static int rate(const struct score *s, bool by_byte, struct rate *out, struct err *e) {
    struct columns c;
    TRY(take_columns(&c, s->n_units, e));
    for (size_t i = 0; i < s->n_units; i++)
        if (s->units[i].tokens > 0) {
            c.x[c.n] = nats(&s->units[i], by_byte);
            c.w[c.n++] = weight(&s->units[i], by_byte);
        }
    *out = rate_of(c.x, c.w, c.n);
    free(c.x);
    return 0;
}

int score_loss(const struct score *s, struct rate *out, struct err *e) {
    return rate(s, false, out, e);
}

int score_bits(const struct score *s, struct rate *out, struct err *e) {
    return rate(s, true, out, e);
}

// ---------------------------------------------------------------- two models

// The same ids mean the same text only to models with one vocabulary.
static int check_ids(const struct score *a, const struct score *b, struct err *e) {
    const struct tokenizer *ta = dataset_tokenizer(a->data), *tb = dataset_tokenizer(b->data);
    if (!a->ids)
        return 0;
    if (a->speaks && b->speaks ? strcmp(tokenizer_fingerprint(ta), tokenizer_fingerprint(tb)) == 0
                               : a->vocab == b->vocab)
        return 0;
    return err_set(e, ERR_MISMATCH,
                   "the data has token ids, and %.300s and %.300s have different vocabularies "
                   "(%" PRId64 " and %" PRId64 " ids): an id is not the same text to both; "
                   "accepted: data with text",
                   a->knobs.model, b->knobs.model, a->vocab, b->vocab);
}

// Other tokens of the same text are compared record by record, if each is known to be the same.
static int check_texts(const struct score *a, const struct score *b, struct err *e) {
    if (!a->speaks || !b->speaks)
        return err_set(e, ERR_MISMATCH,
                       "%.300s and %.300s read the data as different tokens, and the text of %s is "
                       "not known: it has no tokenizer",
                       a->knobs.model, b->knobs.model, a->speaks ? "one" : "both");
    for (size_t i = 0; i < dataset_files(a->data); i++) {
        const struct shard *in_a = dataset_file_shard(a->data, i);
        const struct shard *in_b = dataset_file_shard(b->data, i);
        // A tokenizer may put a space in front of a text, which may be the first byte of a stretch.
        const size_t na = a->texts[i].n, nb = b->texts[i].n;
        if (in_a->counts.documents != in_b->counts.documents || na > nb + 1 || nb > na + 1)
            return err_set(e, ERR_MISMATCH,
                           "%s: %" PRIu64 " documents for %.300s and %" PRIu64
                           " for %.300s, or texts of different lengths, so they cannot be compared "
                           "one by one",
                           dataset_file_path(a->data, i), in_a->counts.documents, a->knobs.model,
                           in_b->counts.documents, b->knobs.model);
    }
    return 0;
}

int score_pair(const struct score *a, const struct score *b, enum score_pairing *out,
               struct err *e) {
    *out = strcmp(a->hash, b->hash) == 0 && a->knobs.seq == b->knobs.seq ? SCORE_BY_TOKEN
                                                                         : SCORE_BY_BYTE;
    if (dataset_files(a->data) != dataset_files(b->data))
        return err_set(e, ERR_INTERNAL, "two scores are of different files");
    TRY(check_ids(a, b, e));
    return *out == SCORE_BY_TOKEN ? 0 : check_texts(a, b, e);
}

// By bytes only units that both models read whole are the same text. A unit in which one of them
// scores nothing is no pair either.
static bool is_pair(const struct score_unit *x, const struct score_unit *y, bool by_byte) {
    if (x->tokens == 0 || y->tokens == 0)
        return false;
    return !by_byte || (!x->cut && !y->cut && x->bytes > 0 && y->bytes > 0);
}

static void count(struct score_comparison *out, const struct columns *c) {
    const size_t i = c->n;
    const double d = c->x[i] / c->w[i] - c->y[i] / c->v[i];
    out->ties += fabs(d) < SCORE_TIE;
    out->wins += d <= -SCORE_TIE;
    out->losses += d >= SCORE_TIE;
}

struct units {
    const struct score_unit *all;
    size_t n;
};

static struct units units_of(const struct score *s, size_t file, bool by_byte) {
    const struct score_text *text = &s->texts[file];
    if (by_byte && text->n > 0)
        return (struct units){text->stretches, text->n};
    return (struct units){s->units + s->first_unit[file],
                          s->first_unit[file + 1] - s->first_unit[file]};
}

static size_t most_pairs(const struct score *s, bool by_byte) {
    size_t n = 0;
    for (size_t i = 0; i < dataset_files(s->data); i++)
        n += units_of(s, i, by_byte).n;
    return n;
}

static void compare_file(const struct score *a, const struct score *b, size_t file,
                         struct columns *c, struct score_comparison *out) {
    const bool by_byte = out->by == SCORE_BY_BYTE;
    const struct units in_a = units_of(a, file, by_byte), in_b = units_of(b, file, by_byte);
    for (size_t i = 0; i < in_a.n && i < in_b.n; i++) {
        const struct score_unit *x = &in_a.all[i], *y = &in_b.all[i];
        if (!is_pair(x, y, by_byte)) {
            out->left_out += x->tokens > 0 || y->tokens > 0;
            continue;
        }
        c->x[c->n] = nats(x, by_byte), c->w[c->n] = weight(x, by_byte);
        c->y[c->n] = nats(y, by_byte), c->v[c->n] = weight(y, by_byte);
        count(out, c);
        c->n++;
    }
}

int score_compare(const struct score *a, const struct score *b, struct score_comparison *out,
                  struct err *e) {
    struct columns c;
    *out = (struct score_comparison){0};
    TRY(score_pair(a, b, &out->by, e));
    TRY(take_columns(&c, most_pairs(a, out->by == SCORE_BY_BYTE), e));
    for (size_t i = 0; i < dataset_files(a->data); i++)
        compare_file(a, b, i, &c, out);
    out->difference = rate_difference(c.x, c.w, c.y, c.v, c.n);
    free(c.x);
    if (c.n == 0)
        return err_set(e, ERR_MISMATCH,
                       "%.300s and %.300s read no record whole, so there is no text to compare "
                       "them on; accepted: a larger seq, or data.long=split",
                       a->knobs.model, b->knobs.model);
    return 0;
}
