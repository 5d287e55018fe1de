// score_print.c - see score_print.h.
#include "report/score_print.h"

#include "report/table.h"
#include "train/score_text.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { DECIMALS = 4, DECIMALS_MOST = 9, FIGURES = 4 };

static const char *plural(uint64_t n) {
    return n == 1 ? "" : "s";
}

static const char *unit(const struct score *s, uint64_t n) {
    return s->records && s->sequences ? n == 1 ? "record or sequence" : "records and sequences"
           : s->sequences             ? n == 1 ? "sequence" : "sequences"
           : n == 1                   ? "record"
                                      : "records";
}

static void put_name(const struct score_sight *t, size_t i, FILE *f) {
    table_print_text(t->names[i], f);
    if (t->adapters[i] != NULL) {
        fputs(" with ", f);
        table_print_text(t->adapters[i], f);
    }
}

static void print_interval(double low, double high, int decimals, FILE *f) {
    if (isfinite(low))
        fprintf(f, " (95 %% interval %.*f to %.*f)", decimals, low, decimals, high);
}

// ---------------------------------------------------------------- what was scored

static void print_data(const struct score *s, FILE *f) {
    for (size_t i = 0; i < dataset_files(s->data); i++) {
        const struct shard *shard = dataset_file_shard(s->data, i);
        const bool plain = shard->shape == RENDER_AUTO;
        fprintf(f, "%-11s", i == 0 ? "data" : "");
        table_print_text(dataset_file_path(s->data, i), f);
        if (plain)
            fprintf(f, ": plain text, %" PRIu64 " bytes\n", shard->counts.source_bytes);
        else
            fprintf(f, ": %s, %" PRIu64 " record%s\n", render_shape_name(shard->shape),
                    shard->counts.documents, plural(shard->counts.documents));
    }
}

static void print_cut(const struct score *s, FILE *f) {
    const struct pack_stats *p = &s->stats;
    if (p->truncated > 0)
        fprintf(f,
                "cut off    %" PRIu64 " record%s longer than seq=%" PRId64 ": %" PRIu64
                " tokens, %" PRIu64 " of them to be scored\n",
                p->truncated, plural(p->truncated), s->knobs.seq, p->cut_columns, p->cut_trained);
    if (p->dropped > 0)
        fprintf(f, "dropped    %" PRIu64 " record%s longer than seq=%" PRId64 " (data.long=drop)\n",
                p->dropped, plural(p->dropped), s->knobs.seq);
    const uint64_t without = s->records ? s->n_units - s->scored_units - p->dropped : 0;
    if (without > 0 && !s->sequences)
        fprintf(f, "left out   %" PRIu64 " record%s without a token to score\n", without,
                plural(without));
}

static void print_scored(const struct score *s, FILE *f) {
    fprintf(f, "scored     %zu %s, %" PRIu64 " token%s", s->scored_units, unit(s, s->scored_units),
            s->tokens, plural(s->tokens));
    if (s->stats.used > s->tokens)
        fprintf(f, " of %" PRIu64, s->stats.used);
    if (s->speaks)
        fprintf(f, ", %" PRIu64 " bytes of text", s->bytes);
    fprintf(f, "; context of at most seq=%" PRId64 " tokens\n", s->knobs.seq);
    print_cut(s, f);
}

static void print_unit(const struct score *s, size_t n, FILE *f) {
    if (n < 2)
        fprintf(f, "One %s says nothing about others, so there is no interval.\n", unit(s, 1));
    else
        fprintf(f,
                "The intervals count the %zu %s, not their tokens, as independent of one "
                "another.\n",
                n, unit(s, n));
}

// ---------------------------------------------------------------- one model

static void print_one(const struct score_sight *t, const struct rate *loss, const struct rate *bits,
                      FILE *f) {
    const struct score *s = &t->scores[0];
    fputs("model      ", f);
    put_name(t, 0, f);
    fprintf(f, "\nloss       %.*f nats per token", DECIMALS, loss->value);
    print_interval(loss->low, loss->high, DECIMALS, f);
    fprintf(f, "\nperplexity %.*g", FIGURES, exp(loss->value));
    if (isfinite(loss->low))
        fprintf(f, " (95 %% interval %.*g to %.*g)", FIGURES, exp(loss->low), FIGURES,
                exp(loss->high));
    if (s->speaks) {
        fprintf(f, "\nbits/byte  %.*f", DECIMALS, bits->value);
        print_interval(bits->low, bits->high, DECIMALS, f);
    } else {
        fputs("\nbits/byte  not known: the data has token ids and the model no tokenizer", f);
    }
    fprintf(f, "\nspeed      %.0f tokens/s, %.1f s\n", (double)s->stats.used / s->seconds,
            s->seconds);
}

// ---------------------------------------------------------------- several models

#define COLUMNS(X)                                                                                 \
    X("model", "model", LEFT, put_cell_name(&table, t, i))                                         \
    X("tokens", "tokens", RIGHT, table_i64(&table, (int64_t)s->tokens))                            \
    X("loss per token", "loss", RIGHT, table_real(&table, loss.value, DECIMALS))                   \
    X("95 % interval", "loss_interval", LEFT, put_cell_interval(&table, &loss))                    \
    X("perplexity", "perplexity", RIGHT, table_significant(&table, exp(loss.value), FIGURES))      \
    X("bits per byte", "bits_per_byte", RIGHT, table_real(&table, bits.value, DECIMALS))           \
    X("95 % interval", "bits_interval", LEFT, put_cell_interval(&table, &bits))

static void put_cell_name(struct table *table, const struct score_sight *t, size_t i) {
    table_put(table, "%s%s%s", t->names[i], t->adapters[i] ? " with " : "",
              t->adapters[i] ? t->adapters[i] : "");
}

static void put_cell_interval(struct table *table, const struct rate *r) {
    if (isfinite(r->low))
        table_put(table, "%.*f to %.*f", DECIMALS, r->low, DECIMALS, r->high);
    else
        table_text(table, "");
}

static int print_table(const struct score_sight *t, FILE *f, struct err *e) {
    static const struct table_column columns[] = {COLUMNS(TABLE_COLUMN)};
    struct table table;
    int rc = 0;
    table_init(&table, columns, sizeof columns / sizeof *columns, TABLE_MARKDOWN,
               (struct table_style){.unknown = ""});
    for (size_t i = 0; rc == 0 && i < t->n; i++) {
        const struct score *s = &t->scores[i];
        struct rate loss, bits;
        rc = score_loss(s, &loss, e);
        if (rc == 0)
            rc = score_bits(s, &bits, e);
        if (rc != 0)
            break;
        table_row(&table);
        COLUMNS(TABLE_CELL)
    }
    if (rc == 0)
        rc = table_print(&table, f, e);
    table_free(&table);
    return rc;
}

// Enough decimals for two digits of the smallest of an interval's numbers that is not 0.
static int decimals_for(const struct rate *r) {
    const double all[] = {fabs(r->value), fabs(r->low), fabs(r->high)};
    int decimals = DECIMALS;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        while (all[i] > 0 && decimals < DECIMALS_MOST && all[i] < 9.5 * pow(10, -decimals))
            decimals++;
    return decimals;
}

// "0.0123 nats per token lower (95 % interval 0.0100 to 0.0146)": the interval's signs are those of
// the word before it.
static void print_difference(const struct score_comparison *c, FILE *f) {
    const struct rate *d = &c->difference;
    const bool lower = d->value < 0;
    const int decimals = decimals_for(d);
    fprintf(f, "%.*f %s %s", decimals, fabs(d->value),
            c->by == SCORE_BY_TOKEN ? "nats per token" : "bits per byte",
            lower ? "lower" : "higher");
    print_interval(lower ? -d->high : d->low, lower ? -d->low : d->high, decimals, f);
}

static void print_comparison(const struct score_sight *t, size_t i, FILE *f) {
    const struct score_comparison *c = &t->comparisons[i];
    const struct rate *d = &c->difference;
    const bool mixed = t->scores[0].records && t->scores[0].sequences;
    const char *units = c->by == SCORE_BY_BYTE && t->scores[0].sequences
                            ? mixed ? "records and stretches" : "stretches"
                            : unit(&t->scores[0], d->n);
    put_name(t, i, f);
    fputs(" against ", f);
    put_name(t, 0, f);
    if (c->by == SCORE_BY_BYTE)
        fputs(" (their tokens differ, so bits per byte of the same text are compared", f);
    if (c->by == SCORE_BY_BYTE && t->scores[0].sequences)
        fprintf(f, ", of plain text in stretches of %d bytes", SCORE_STRETCH_BYTES);
    if (c->by == SCORE_BY_BYTE)
        fputs(")", f);
    fputs(": ", f);
    if (c->ties == d->n) {
        fprintf(f, "the same in %s%zu %s", d->n == 1 ? "the " : "all ", d->n, units);
    } else {
        print_difference(c, f);
        fputs(!isfinite(d->low)        ? ". One record cannot tell two models apart"
              : rate_direction(d) != 0 ? ". The interval leaves out 0: the two models differ"
                                       : ". The interval holds 0: no difference is shown",
              f);
        fprintf(f, ". Lower in %zu of %zu %s, higher in %zu, the same in %zu", c->wins, d->n, units,
                c->losses, c->ties);
    }
    if (c->left_out > 0 && c->by == SCORE_BY_BYTE)
        fprintf(f,
                "; %zu left out, which one of the two does not read whole (data.long=split reads "
                "all, in pieces)",
                c->left_out);
    fputs(".\n", f);
}

static bool same_tokens(const struct score_sight *t) {
    for (size_t i = 1; i < t->n; i++)
        if (t->comparisons[i].by != SCORE_BY_TOKEN)
            return false;
    return true;
}

int score_print(const struct score_sight *t, FILE *f, struct err *e) {
    struct rate loss, bits;
    print_data(&t->scores[0], f);
    TRY(score_loss(&t->scores[0], &loss, e));
    TRY(score_bits(&t->scores[0], &bits, e));
    // Models that read other tokens have other counts.
    for (size_t i = 0; i < (same_tokens(t) ? 1 : t->n); i++) {
        if (!same_tokens(t)) {
            put_name(t, i, f);
            fputs(":\n", f);
        }
        print_scored(&t->scores[i], f);
    }
    if (t->n == 1) {
        print_one(t, &loss, &bits, f);
    } else {
        fputc('\n', f);
        TRY(print_table(t, f, e));
        fputc('\n', f);
        for (size_t i = 1; i < t->n; i++)
            print_comparison(t, i, f);
    }
    print_unit(&t->scores[0], loss.n, f);
    return 0;
}

// ---------------------------------------------------------------- for programs

static void put_interval(struct json_writer *w, const char *key, double low, double high) {
    json_member_array(w, key);
    json_put_double(w, low);
    json_put_double(w, high);
    json_put_array_end(w);
}

static void put_rate(struct json_writer *w, const char *key, const char *interval,
                     const struct rate *r) {
    json_member_double(w, key, r->value);
    put_interval(w, interval, r->low, r->high);
}

static int put_model(const struct score_sight *t, size_t i, struct json_writer *w, struct err *e) {
    const struct score *s = &t->scores[i];
    struct rate loss, bits;
    TRY(score_loss(s, &loss, e));
    TRY(score_bits(s, &bits, e));
    json_put_object_begin(w);
    json_member_string(w, "model", t->names[i]);
    json_put_key(w, "adapter");
    if (t->adapters[i] != NULL)
        json_put_string(w, t->adapters[i]);
    else
        json_put_null(w);
    json_member_string(w, "weights", s->knobs.model);
    json_member_i64(w, "seq", s->knobs.seq);
    json_member_i64(w, "documents", (int64_t)s->documents);
    json_member_i64(w, "scored_units", (int64_t)s->scored_units);
    json_member_i64(w, "scored_tokens", (int64_t)s->tokens);
    json_member_i64(w, "tokens", (int64_t)s->stats.used);
    json_put_key(w, "scored_bytes");
    if (s->speaks)
        json_put_i64(w, (int64_t)s->bytes);
    else
        json_put_null(w);
    json_member_i64(w, "cut_documents", (int64_t)s->stats.truncated);
    json_member_i64(w, "cut_tokens", (int64_t)s->stats.cut_columns);
    json_member_i64(w, "cut_scored_tokens", (int64_t)s->stats.cut_trained);
    json_member_i64(w, "dropped_documents", (int64_t)s->stats.dropped);
    put_rate(w, "loss", "loss_interval", &loss);
    json_member_double(w, "perplexity", exp(loss.value));
    put_interval(w, "perplexity_interval", exp(loss.low), exp(loss.high));
    put_rate(w, "bits_per_byte", "bits_per_byte_interval", &bits);
    json_member_double(w, "seconds", s->seconds);
    json_put_object_end(w);
    return 0;
}

static void put_comparison(const struct score_sight *t, size_t i, struct json_writer *w) {
    const struct score_comparison *c = &t->comparisons[i];
    const int direction = rate_direction(&c->difference);
    json_put_object_begin(w);
    json_member_string(w, "model", t->names[i]);
    json_member_string(w, "against", t->names[0]);
    json_member_string(w, "measure", c->by == SCORE_BY_TOKEN ? "nats per token" : "bits per byte");
    put_rate(w, "difference", "difference_interval", &c->difference);
    json_member_string(w, "verdict",
                       direction < 0   ? "better"
                       : direction > 0 ? "worse"
                                       : "no difference shown");
    json_member_i64(w, "units", (int64_t)c->difference.n);
    json_member_i64(w, "wins", (int64_t)c->wins);
    json_member_i64(w, "losses", (int64_t)c->losses);
    json_member_i64(w, "ties", (int64_t)c->ties);
    json_member_i64(w, "left_out", (int64_t)c->left_out);
    json_put_object_end(w);
}

int score_put_json(const struct score_sight *t, struct json_writer *w, struct err *e) {
    const struct score *first = &t->scores[0];
    json_member_array(w, "files");
    for (size_t i = 0; i < dataset_files(first->data); i++)
        json_put_string(w, dataset_file_path(first->data, i));
    json_put_array_end(w);
    json_member_string(w, "unit",
                       first->records && first->sequences ? "record or sequence"
                       : first->sequences                 ? "sequence"
                                                          : "record");
    json_member_array(w, "models");
    for (size_t i = 0; i < t->n; i++)
        TRY(put_model(t, i, w, e));
    json_put_array_end(w);
    json_member_array(w, "comparisons");
    for (size_t i = 1; i < t->n; i++)
        put_comparison(t, i, w);
    json_put_array_end(w);
    return 0;
}
