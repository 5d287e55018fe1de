// pack.c - see pack.h.
#include "data/pack.h"

#include "base/array.h"

#include <stdlib.h>
#include <string.h>

enum { NONE = UINT32_MAX };

static int no_memory(struct err *e) {
    return err_set(e, ERR_MEMORY, "data: no memory to arrange the documents in windows");
}

static int add_piece(struct pack *p, uint32_t shard, uint64_t at, uint64_t columns, struct err *e) {
    if (!array_room(&p->pieces, p->n_pieces, 1, &p->piece_capacity, sizeof *p->pieces, 64))
        return no_memory(e);
    p->pieces[p->n_pieces++] = (struct pack_piece){at, shard, (uint32_t)columns};
    return 0;
}

static int add_window(struct pack *p, const struct pack_window *w, struct err *e) {
    // One more than there are: pack_build ends the list with a window of no pieces.
    if (!array_room(&p->windows, p->n_windows, 2, &p->window_capacity, sizeof *p->windows, 64))
        return no_memory(e);
    p->windows[p->n_windows++] = *w;
    return 0;
}

// ---------------------------------------------------------------- spans that are too long

// Keeps a piece that has a target. Counts the others.
static int keep_piece(struct pack *p, const struct pack_span *s, uint64_t from, uint64_t columns,
                      const struct pack_options *o, struct err *e) {
    if (o->trained(o->arg, s->shard, s->at + from, columns) == 0) {
        p->stats.untrained_pieces++;
        return 0;
    }
    return add_piece(p, s->shard, s->at + from, columns, e);
}

static int cut_span(struct pack *p, const struct pack_span *s, const struct pack_options *o,
                    struct err *e) {
    const uint64_t T = o->seq;
    enum data_long policy = o->long_;
    if (policy == DATA_LONG_AUTO)
        policy = s->splits ? DATA_LONG_SPLIT : DATA_LONG_TRUNCATE;
    if (s->columns <= T)
        return keep_piece(p, s, 0, s->columns, o, e);
    if (policy == DATA_LONG_DROP) {
        p->stats.dropped++;
        return 0;
    }
    if (policy == DATA_LONG_TRUNCATE) {
        p->stats.truncated++;
        p->stats.cut_columns += s->columns - T;
        p->stats.cut_trained += o->trained(o->arg, s->shard, s->at + T, s->columns - T);
        return keep_piece(p, s, 0, T, o, e);
    }
    for (uint64_t from = 0; from < s->columns; from += T) {
        uint64_t left = s->columns - from;
        TRY(keep_piece(p, s, from, left < T ? left : T, o, e));
    }
    return 0;
}

// ---------------------------------------------------------------- stream

// Makes the window over columns [begin, begin + T) of all spans laid end to end. *before is the
// number of columns in front of *span. Both move forward only, except for the last window.
static int stream_window(struct pack *p, const struct pack_span *const *spans, size_t n,
                         uint64_t begin, uint64_t repeated, size_t *span, uint64_t *before,
                         const struct pack_options *o, struct err *e) {
    struct pack_window w = {.first = p->n_pieces, .repeated = (uint32_t)repeated};
    while (*span > 0 && *before > begin)
        *before -= spans[--*span]->columns;
    while (begin - *before >= spans[*span]->columns)
        *before += spans[(*span)++]->columns;
    uint64_t from = begin - *before;
    for (size_t i = *span; i < n && w.columns < o->seq; i++, from = 0) {
        const struct pack_span *s = spans[i];
        uint64_t room = o->seq - w.columns, left = s->columns - from;
        uint64_t columns = left < room ? left : room;
        TRY(add_piece(p, s->shard, s->at + from, columns, e));
        uint64_t skip = repeated > w.columns ? repeated - w.columns : 0;
        if (skip < columns)
            w.trained +=
                (uint32_t)o->trained(o->arg, s->shard, s->at + from + skip, columns - skip);
        w.columns += (uint32_t)columns;
    }
    if (w.trained > 0)
        return add_window(p, &w, e);
    p->n_pieces = (size_t)w.first;
    p->stats.untrained_pieces++;
    return 0;
}

static int pack_stream(struct pack *p, const struct pack_span *const *spans, size_t n,
                       const struct pack_options *o, struct err *e) {
    uint64_t total = 0, before = 0;
    size_t span = 0;
    for (size_t i = 0; i < n; i++)
        total += spans[i]->columns;
    for (uint64_t begin = 0; begin < total; begin += o->seq) {
        uint64_t latest = total > o->seq ? total - o->seq : 0;
        uint64_t repeated = begin > latest ? begin - latest : 0;
        TRY(stream_window(p, spans, n, begin - repeated, repeated, &span, &before, o, e));
    }
    return 0;
}

// ---------------------------------------------------------------- best fit

// Free room of the open windows. For each amount of room there is a stack of windows. The amounts
// that have a window are bits in a tree of 64-way nodes, so "the smallest room of at least n" is
// found in log64 T steps.
struct room {
    uint32_t *head;     // [T + 1]: newest window with that much room
    uint32_t *next;     // [windows]: the next window below it in its stack
    uint64_t *level[6]; // bit i of level l+1: word i of level l is not 0
    uint64_t words[6];
    int levels;
};

static int room_open(struct room *r, uint64_t seq, size_t windows, struct err *e) {
    uint64_t bits = seq + 1;
    *r = (struct room){0};
    r->head = malloc((seq + 1) * sizeof *r->head);
    r->next = malloc((windows > 0 ? windows : 1) * sizeof *r->next);
    if (r->head == NULL || r->next == NULL)
        return no_memory(e);
    memset(r->head, 0xff, (seq + 1) * sizeof *r->head);
    do {
        bits = (bits + 63) / 64;
        r->words[r->levels] = bits;
        r->level[r->levels] = calloc(bits, sizeof(uint64_t));
        if (r->level[r->levels++] == NULL)
            return no_memory(e);
    } while (bits > 1);
    return 0;
}

static void room_close(struct room *r) {
    free(r->head);
    free(r->next);
    for (int l = 0; l < r->levels; l++)
        free(r->level[l]);
}

static void room_push(struct room *r, uint64_t amount, uint32_t window) {
    r->next[window] = r->head[amount];
    r->head[amount] = window;
    for (int l = 0; l < r->levels; l++, amount /= 64)
        r->level[l][amount / 64] |= UINT64_C(1) << amount % 64;
}

static uint32_t room_pop(struct room *r, uint64_t amount) {
    uint32_t window = r->head[amount];
    r->head[amount] = r->next[window];
    if (r->head[amount] != (uint32_t)NONE)
        return window;
    for (int l = 0; l < r->levels; l++, amount /= 64) {
        r->level[l][amount / 64] &= ~(UINT64_C(1) << amount % 64);
        if (r->level[l][amount / 64] != 0)
            break;
    }
    return window;
}

// Returns the smallest amount of at least `least` that a window has; UINT64_MAX: none.
static uint64_t room_find(const struct room *r, uint64_t least) {
    uint64_t at = least;
    // Looks at the bits from `at` on in its word, then one level up from the next word on.
    for (int l = 0; l < r->levels && at / 64 < r->words[l]; l++, at = at / 64 + 1) {
        uint64_t word = r->level[l][at / 64] >> at % 64;
        if (word == 0)
            continue;
        at += (uint64_t)__builtin_ctzll(word);
        while (l-- > 0)
            at = at * 64 + (uint64_t)__builtin_ctzll(r->level[l][at]);
        return at;
    }
    return UINT64_MAX;
}

// Sorts the indices of the pieces, longest first, equal ones in order (a counting sort).
static int sort_pieces(const struct pack *p, uint64_t seq, size_t **out, struct err *e) {
    size_t *begin = calloc(seq + 2, sizeof *begin);
    *out = malloc((p->n_pieces > 0 ? p->n_pieces : 1) * sizeof **out);
    if (begin == NULL || *out == NULL) {
        free(begin);
        return no_memory(e);
    }
    for (size_t i = 0; i < p->n_pieces; i++)
        begin[seq - p->pieces[i].columns + 1]++;
    for (uint64_t c = 0; c <= seq; c++)
        begin[c + 1] += begin[c];
    for (size_t i = 0; i < p->n_pieces; i++)
        (*out)[begin[seq - p->pieces[i].columns]++] = i;
    free(begin);
    return 0;
}

// Sets window_of[k] to the window of the k-th longest piece. Returns the number of windows.
static size_t place_pieces(const struct pack *p, const size_t *order, uint64_t seq, struct room *r,
                           uint32_t *window_of) {
    size_t windows = 0;
    for (size_t k = 0; k < p->n_pieces; k++) {
        const uint64_t columns = p->pieces[order[k]].columns;
        uint64_t amount = room_find(r, columns);
        uint32_t window = amount == UINT64_MAX ? (uint32_t)windows++ : room_pop(r, amount);
        if (amount == UINT64_MAX)
            amount = seq;
        if (amount > columns) // a full window takes no more pieces
            room_push(r, amount - columns, window);
        window_of[k] = window;
    }
    return windows;
}

// Sorts the pieces by window. Inside a window the longest comes first.
static int group_pieces(struct pack *p, const size_t *order, const uint32_t *window_of,
                        size_t windows, struct err *e) {
    uint64_t *at = calloc(windows + 1, sizeof *at);
    struct pack_piece *grouped = malloc((p->n_pieces > 0 ? p->n_pieces : 1) * sizeof *grouped);
    int rc = at == NULL || grouped == NULL ? no_memory(e) : 0;
    for (size_t k = 0; rc == 0 && k < p->n_pieces; k++)
        at[window_of[k] + 1]++;
    for (size_t w = 0; rc == 0 && w < windows; w++) {
        at[w + 1] += at[w];
        rc = add_window(p, &(struct pack_window){.first = at[w]}, e);
    }
    for (size_t k = 0; rc == 0 && k < p->n_pieces; k++)
        grouped[at[window_of[k]]++] = p->pieces[order[k]];
    free(at);
    if (rc != 0) {
        free(grouped);
        return rc;
    }
    free(p->pieces);
    p->pieces = grouped;
    p->piece_capacity = p->n_pieces > 0 ? p->n_pieces : 1;
    return 0;
}

static int pack_best_fit(struct pack *p, const struct pack_options *o, struct err *e) {
    struct room room = {0};
    size_t *order = NULL;
    uint32_t *window_of = malloc((p->n_pieces > 0 ? p->n_pieces : 1) * sizeof *window_of);
    int rc = window_of == NULL ? no_memory(e) : 0;
    if (rc == 0 && p->n_pieces >= (uint32_t)NONE)
        rc = err_set(e, ERR_UNSUPPORTED, "data: %zu pieces are more than can be packed; at most %u",
                     p->n_pieces, (uint32_t)NONE - 1);
    if (rc == 0)
        rc = sort_pieces(p, o->seq, &order, e);
    if (rc == 0)
        rc = room_open(&room, o->seq, p->n_pieces, e);
    if (rc == 0) {
        size_t windows = place_pieces(p, order, o->seq, &room, window_of);
        rc = group_pieces(p, order, window_of, windows, e);
    }
    room_close(&room);
    free(order);
    free(window_of);
    return rc;
}

// ---------------------------------------------------------------- all

static void count_windows(struct pack *p, const struct pack_options *o) {
    for (size_t w = 0; w < p->n_windows; w++) {
        struct pack_window *x = &p->windows[w];
        if (o->mode != DATA_PACK_STREAM) {
            x->columns = x->trained = 0;
            for (uint64_t i = x->first; i < x[1].first; i++) {
                const struct pack_piece *piece = &p->pieces[i];
                x->columns += piece->columns;
                x->trained += (uint32_t)o->trained(o->arg, piece->shard, piece->at, piece->columns);
            }
        }
        p->stats.used += x->columns;
        p->stats.used_trained += x->trained;
        p->stats.padding += o->seq - x->columns;
    }
}

static int place(struct pack *p, const struct pack_span *const *spans, size_t n,
                 const struct pack_options *o, struct err *e) {
    if (o->mode == DATA_PACK_STREAM)
        return pack_stream(p, spans, n, o, e);
    for (size_t i = 0; i < n; i++)
        TRY(cut_span(p, spans[i], o, e));
    if (o->mode == DATA_PACK_BEST_FIT)
        return pack_best_fit(p, o, e);
    for (size_t i = 0; i < p->n_pieces; i++)
        TRY(add_window(p, &(struct pack_window){.first = i}, e));
    return 0;
}

int pack_build(struct pack *out, const struct pack_span *spans, size_t n,
               const struct pack_options *o, struct err *e) {
    *out = (struct pack){0};
    const struct pack_span **kept = malloc((n > 0 ? n : 1) * sizeof *kept);
    size_t n_kept = 0;
    if (kept == NULL)
        return no_memory(e);
    for (size_t i = 0; i < n; i++) {
        uint64_t trained = o->trained(o->arg, spans[i].shard, spans[i].at, spans[i].columns);
        out->stats.columns += spans[i].columns;
        out->stats.trained += trained;
        if (trained > 0)
            kept[n_kept++] = &spans[i];
    }
    out->stats.spans = n;
    out->stats.untrained = n - n_kept;
    int rc = place(out, kept, n_kept, o, e);
    free(kept);
    if (rc == 0)
        rc = add_window(out, &(struct pack_window){.first = out->n_pieces}, e);
    if (rc != 0)
        return rc;
    out->n_windows--;
    count_windows(out, o);
    return 0;
}

void pack_free(struct pack *p) {
    free(p->pieces);
    free(p->windows);
    *p = (struct pack){0};
}
