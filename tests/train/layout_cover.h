// layout_cover.h - which settings test_layouts.c runs: every layout of 1, 2, 4 and 8 ranks, and
// rows of knobs such that every two values that can meet do meet in one of them (all-pairs
// testing). The rows are made by a greedy search with a fixed seed.
#ifndef HAGGLE_TESTS_TRAIN_LAYOUT_COVER_H
#define HAGGLE_TESTS_TRAIN_LAYOUT_COVER_H

#include "base/rng.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

// ---------------------------------------------------------------- layouts

struct layout_case {
    int data, tensor, pipe, zero;
    int schedule; // gpipe, 1f1b, interleaved
};
enum { LAYOUTS_MOST = 96 };
static const char *const schedule_names[] = {"gpipe", "1f1b", "interleaved"};

// Every factorization x schedule x stage of ZeRO. Stages vary fastest, stage 0 comes first.
static inline int list_layouts(struct layout_case out[LAYOUTS_MOST]) {
    int n = 0;
    for (int ranks = 1; ranks <= 8; ranks *= 2)
        for (int data = 1; data <= ranks; data *= 2)
            for (int tensor = 1; data * tensor <= ranks; tensor *= 2) {
                const int pipe = ranks / (data * tensor), schedules = pipe > 1 ? 3 : 1,
                          stages = data == 1  ? 1
                                   : pipe > 1 ? 2
                                              : 4;
                for (int s = 0; s < schedules; s++)
                    for (int zero = 0; zero < stages; zero++)
                        out[n++] = (struct layout_case){data, tensor, pipe, zero, s};
            }
    return n;
}

// "data=2 pipe=2 schedule=gpipe zero=1"
static inline const char *layout_words(const struct layout_case *l, char out[128]) {
    int n = snprintf(out, 128, "data=%d tensor=%d pipe=%d", l->data, l->tensor, l->pipe);
    if (l->pipe > 1)
        n += snprintf(out + n, 128 - (size_t)n, " schedule=%s", schedule_names[l->schedule]);
    snprintf(out + n, 128 - (size_t)n, " zero=%d", l->zero);
    return out;
}

// ---------------------------------------------------------------- factors

// The first six follow from the layout. A row has -1 where a factor has no effect.
enum factor {
    F_LAYOUT,
    F_DATA,
    F_TENSOR,
    F_PIPE,
    F_ZERO,
    F_SCHEDULE,
    F_ACCUM,
    F_STATE,
    F_MICRO,
    F_RECOMPUTE,
    F_PRECISION,
    F_CHUNK,
    F_DOCUMENTS,
    F_NORM,
    F_ACT,
    F_LOSS,
    F_OPTIM,
    F_QKV,
    F_BUCKET,
    F_OVERLAP,
    F_REDUCE,
    F_PREFETCH,
    F_SEQUENCE,
    F_VOCAB,
    F_FAMILY,
    F_COUNT
};
enum { COVER_VALUES_MOST = 256, COVER_ROWS_MOST = 640 };
// How many values each factor has; those of F_LAYOUT are counted when the list is there.
static const int factor_values[F_COUNT] = {
    [F_DATA] = 4,     [F_TENSOR] = 4,    [F_PIPE] = 4,   [F_ZERO] = 4,      [F_SCHEDULE] = 3,
    [F_ACCUM] = 2,    [F_STATE] = 3,     [F_MICRO] = 2,  [F_RECOMPUTE] = 3, [F_PRECISION] = 3,
    [F_CHUNK] = 2,    [F_DOCUMENTS] = 2, [F_NORM] = 2,   [F_ACT] = 2,       [F_LOSS] = 2,
    [F_OPTIM] = 2,    [F_QKV] = 2,       [F_BUCKET] = 3, [F_OVERLAP] = 2,   [F_REDUCE] = 2,
    [F_PREFETCH] = 3, [F_SEQUENCE] = 2,  [F_VOCAB] = 3,  [F_FAMILY] = 3};

struct cover {
    struct layout_case layouts[LAYOUTS_MOST];
    int n_layouts;
    bool each_layout; // a layout as a whole is a factor, too
    int first[F_COUNT + 1];
    bool open[COVER_VALUES_MOST][COVER_VALUES_MOST]; // pairs of values that no row has yet
    int n_open;
    int rows[COVER_ROWS_MOST][F_COUNT];
    int n_rows;
    uint64_t draws;
};

static inline int log_of(int n) {
    return n > 1 ? 1 + log_of(n / 2) : 0;
}

static inline uint64_t cover_draw(struct cover *c, int n) {
    return rng_below(8, 1, c->draws++, (uint64_t)n);
}

static inline void set_layout(const struct cover *c, int row[F_COUNT], int layout) {
    const struct layout_case *l = &c->layouts[layout];
    row[F_LAYOUT] = layout;
    row[F_DATA] = log_of(l->data);
    row[F_TENSOR] = log_of(l->tensor);
    row[F_PIPE] = log_of(l->pipe);
    row[F_ZERO] = l->data > 1 ? l->zero : -1;
    row[F_SCHEDULE] = l->pipe > 1 ? l->schedule : -1;
}

// Whether a factor has an effect, given the layout, the accumulation and the optimizer's state.
static inline bool matters(const struct cover *c, const int row[F_COUNT], enum factor f) {
    const struct layout_case *l = &c->layouts[row[F_LAYOUT]];
    switch (f) {
    case F_LAYOUT:
        return c->each_layout;
    case F_ZERO:
    case F_OVERLAP:
        return l->data > 1;
    case F_SCHEDULE:
        return l->pipe > 1;
    case F_BUCKET:
        return l->data > 1 && l->zero < 3;
    case F_REDUCE:
        return l->data > 1 && row[F_ACCUM] > 0;
    case F_PREFETCH:
        return l->zero == 3;
    case F_SEQUENCE:
        return l->tensor > 1;
    case F_OPTIM:
        return row[F_STATE] == 0;
    default:
        return true;
    }
}

// ---------------------------------------------------------------- pairs

static inline bool *pair_of(struct cover *c, int f, int v, int g, int w) {
    const int a = c->first[f] + v, b = c->first[g] + w;
    return f < g ? &c->open[a][b] : &c->open[b][a];
}

// The values of a factor that rows with this layout, accumulation and state can have: [from, to).
static inline void choices(const struct cover *c, const int row[F_COUNT], int f, int *from,
                           int *to) {
    const bool fixed = f <= F_STATE, none = !matters(c, row, (enum factor)f);
    *from = fixed ? row[f] : 0;
    *to = none ? *from : fixed ? row[f] + 1 : c->first[f + 1] - c->first[f];
}

// Opens all pairs that such rows can have.
static inline void open_pairs(struct cover *c, const int row[F_COUNT]) {
    for (int f = 0; f < F_COUNT; f++)
        for (int g = f + 1; g < F_COUNT; g++) {
            int v, v_end, w_begin, w_end;
            choices(c, row, f, &v, &v_end);
            choices(c, row, g, &w_begin, &w_end);
            for (; v < v_end; v++)
                for (int w = w_begin; w < w_end; w++) {
                    bool *open = pair_of(c, f, v, g, w);
                    c->n_open += !*open;
                    *open = true;
                }
        }
}

// How many open pairs value v of factor f would close, with what the row has so far.
static inline int gain(struct cover *c, const int row[F_COUNT], const bool set[F_COUNT], int f,
                       int v) {
    int n = 0;
    for (int g = 0; g < F_COUNT; g++)
        n += g != f && set[g] && row[g] >= 0 && *pair_of(c, f, v, g, row[g]);
    return n;
}

// Gives the factors that are not set yet, in random order, the values that close most pairs.
static inline int fill_row(struct cover *c, int row[F_COUNT], bool set[F_COUNT]) {
    int order[F_COUNT], total = 0;
    for (int i = 0; i < F_COUNT; i++) {
        const int k = (int)cover_draw(c, i + 1);
        order[i] = order[k];
        order[k] = i;
    }
    for (int early = 1; early >= 0; early--) // accumulation and state decide what matters
        for (int i = 0; i < F_COUNT; i++) {
            const int f = order[i], n = c->first[f + 1] - c->first[f];
            if (set[f] || (f <= F_STATE) != early)
                continue;
            set[f] = true;
            row[f] = -1;
            if (!matters(c, row, (enum factor)f))
                continue;
            int best = -1;
            for (int k = 0, from = (int)cover_draw(c, n); k < n; k++) {
                const int v = (from + k) % n, closes = gain(c, row, set, f, v);
                if (closes > best) {
                    best = closes;
                    row[f] = v;
                }
            }
        }
    for (int f = 0; f < F_COUNT; f++)
        total += row[f] >= 0 ? gain(c, row, set, f, row[f]) : 0;
    return total / 2;
}

static inline void close_pairs(struct cover *c, const int row[F_COUNT]) {
    for (int f = 0; f < F_COUNT; f++)
        for (int g = f + 1; g < F_COUNT; g++)
            if (row[f] >= 0 && row[g] >= 0) {
                bool *open = pair_of(c, f, row[f], g, row[g]);
                c->n_open -= *open;
                *open = false;
            }
}

static inline int factor_of(const struct cover *c, int value) {
    int f = 0;
    while (value >= c->first[f + 1])
        f++;
    return f;
}

// Some open pair, to begin a row with.
static inline void some_pair(struct cover *c, int *a, int *b) {
    const int n = c->first[F_COUNT];
    for (int from = (int)cover_draw(c, n * n), i = 0; i < n * n; i++) {
        *a = (from + i) % (n * n) / n, *b = (from + i) % n;
        if (c->open[*a][*b])
            return;
    }
}

// A row with the pair (a, b) and this layout. Returns the pairs it closes; 0: they do not go
// together.
static inline int try_row(struct cover *c, int layout, int a, int b, int row[F_COUNT]) {
    const int f = factor_of(c, a), g = factor_of(c, b), v = a - c->first[f], w = b - c->first[g];
    bool set[F_COUNT] = {0};
    set_layout(c, row, layout);
    for (int i = 0; i <= F_SCHEDULE; i++) {
        set[i] = true;
        if ((i == f && row[i] != v) || (i == g && row[i] != w))
            return 0;
    }
    // Unless the pair says otherwise: where the most factors matter.
    row[F_ACCUM] = f == F_ACCUM ? v : g == F_ACCUM ? w : 1;
    row[F_STATE] = f == F_STATE ? v : g == F_STATE ? w : 0;
    set[F_ACCUM] = f == F_REDUCE || g == F_REDUCE;
    set[F_STATE] = f == F_OPTIM || g == F_OPTIM;
    if (!matters(c, row, (enum factor)f) || !matters(c, row, (enum factor)g))
        return 0;
    row[f] = v, row[g] = w;
    set[f] = set[g] = true;
    return fill_row(c, row, set);
}

static inline void cover_make(struct cover *c, bool each_layout) {
    memset(c, 0, sizeof *c);
    c->n_layouts = list_layouts(c->layouts);
    c->each_layout = each_layout;
    for (int f = 0; f < F_COUNT; f++)
        c->first[f + 1] = c->first[f] + (f == F_LAYOUT ? c->n_layouts : factor_values[f]);
    for (int l = 0; l < c->n_layouts; l++)
        for (int accum = 0; accum < 2; accum++)
            for (int state = 0; state < 3; state++) {
                int row[F_COUNT] = {0};
                set_layout(c, row, l);
                row[F_ACCUM] = accum, row[F_STATE] = state;
                open_pairs(c, row);
            }
    while (c->n_open > 0 && c->n_rows < COVER_ROWS_MOST) {
        int best = 0, a = 0, b = 0, row[F_COUNT];
        some_pair(c, &a, &b);
        for (int i = 0, from = (int)cover_draw(c, c->n_layouts); i < c->n_layouts; i++) {
            const int closes = try_row(c, (from + i) % c->n_layouts, a, b, row);
            if (closes > best) {
                best = closes;
                memcpy(c->rows[c->n_rows], row, sizeof row);
            }
        }
        if (best == 0)
            return; // the caller finds pairs that are still open
        close_pairs(c, c->rows[c->n_rows++]);
    }
}

// ---------------------------------------------------------------- rows as words

enum { WORDS_BYTES = 800 };

// Micro-batches of a step: one, or enough for a first, a middle and a last one and for two or more
// on each stage's way.
static inline int row_accum(const struct cover *c, const int row[F_COUNT]) {
    const int pipe = c->layouts[row[F_LAYOUT]].pipe;
    return row[F_ACCUM] == 0 ? 1 : pipe == 1 ? 3 : pipe == 8 ? pipe : 2 * pipe;
}

static inline void put(char *out, const char *word) {
    const size_t n = strlen(out);
    snprintf(out + n, WORDS_BYTES - n, "%s%s", n ? " " : "", word);
}

// What one rank alone has, too. Its accumulation is that of all replicas.
static inline void numbers_of(const int row[F_COUNT], char *out) {
    static const char *const words[F_COUNT][3] = {
        [F_STATE] = {"optim.state=fp32", "optim.state=bf16", "optim.state=int8"},
        [F_MICRO] = {"batch.micro=1", "batch.micro=2"},
        [F_RECOMPUTE] = {"recompute.mode=none", "recompute.mode=selective", "recompute.mode=full"},
        [F_PRECISION] = {"precision=fp32", "precision=bf16", "precision=fp16 scale=1024"},
        [F_CHUNK] = {"logits.chunk=0", "logits.chunk=5"},
        [F_DOCUMENTS] = {"whole", ""},
        [F_NORM] = {"fuse.norm=true", "fuse.norm=false"},
        [F_ACT] = {"fuse.act=true", "fuse.act=false"},
        [F_LOSS] = {"fuse.loss=true", "fuse.loss=false"},
        [F_OPTIM] = {"fuse.optim=true", "fuse.optim=false"},
        [F_QKV] = {"fuse.qkv=true", "fuse.qkv=false"},
    };
    *out = '\0';
    for (int f = 0; f < F_COUNT; f++)
        if (words[f][0] && row[f] >= 0 && *words[f][row[f]])
            put(out, words[f][row[f]]);
}

static inline void one_rank_words(const struct cover *c, const int row[F_COUNT], char *out) {
    char accum[64];
    numbers_of(row, out);
    snprintf(accum, sizeof accum, "batch.accum=%d",
             row_accum(c, row) * c->layouts[row[F_LAYOUT]].data);
    put(out, accum);
}

static inline void row_words(const struct cover *c, const int row[F_COUNT], char *out) {
    static const char *const words[F_COUNT][3] = {
        [F_BUCKET] = {"bucket=1", "bucket=150000", "bucket=0"},
        [F_OVERLAP] = {"", "late"},
        [F_REDUCE] = {"", "micro"},
        [F_PREFETCH] = {"prefetch=0", "prefetch=1", "prefetch=3"},
        [F_SEQUENCE] = {"", "sequence"},
    };
    char text[128];
    numbers_of(row, out);
    snprintf(text, sizeof text, "batch.accum=%d", row_accum(c, row));
    put(out, text);
    put(out, layout_words(&c->layouts[row[F_LAYOUT]], text));
    for (int f = 0; f < F_COUNT; f++)
        if (words[f][0] && row[f] >= 0 && *words[f][row[f]])
            put(out, words[f][row[f]]);
}

// The same run in other ways that must not change a bit: without ZeRO, sums at another time and in
// one bucket, the other order of micro-batches, nothing computed again. Returns false if it is the
// same.
static inline bool twin_of(const struct cover *c, const int row[F_COUNT],
                           struct layout_case *layout, char *out) {
    const struct layout_case *l = &c->layouts[row[F_LAYOUT]];
    int other[F_COUNT];
    char text[128];
    memcpy(other, row, sizeof other);
    other[F_RECOMPUTE] = 0;
    *layout = *l;
    layout->zero = 0;
    if (l->pipe > 1 && l->schedule < 2)
        layout->schedule = !l->schedule;
    numbers_of(other, out);
    snprintf(text, sizeof text, "batch.accum=%d", row_accum(c, row));
    put(out, text);
    put(out, layout_words(layout, text));
    if (l->data > 1)
        put(out, row[F_OVERLAP] > 0 ? "bucket=0" : "bucket=0 late");
    if (row[F_REDUCE] > 0)
        put(out, "micro");
    if (row[F_SEQUENCE] > 0)
        put(out, "sequence");
    return l->data > 1 || row[F_RECOMPUTE] > 0 || layout->schedule != l->schedule;
}

#endif
