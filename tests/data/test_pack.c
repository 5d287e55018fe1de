// test_pack.c - packing: every column is placed once, little padding, the same result every time.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"
#include "data/pack.h"

#include <stdlib.h>
#include <string.h>

enum { TOKENS = 400000 };

struct world {
    unsigned char trained[TOKENS]; // trained[at]: whether token at + 1 is a target
    int used[TOKENS];
    struct pack_span spans[5000];
    size_t n;
};

static uint64_t count(const void *arg, uint32_t shard, uint64_t at, uint64_t columns) {
    const struct world *w = arg;
    uint64_t sum = 0;
    assert_int_equal(shard, 3);
    for (uint64_t i = 0; i < columns; i++)
        sum += w->trained[at + i];
    return sum;
}

// Makes n documents of 1 to `most` columns. The first part of each is not trained, and some are not
// trained at all.
static struct world *make_world(size_t n, uint64_t most, uint64_t seed) {
    struct world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    uint64_t at = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t columns = 1 + rng_below(seed, 1, i, most);
        uint64_t prompt = rng_below(seed, 2, i, columns + columns / 8 + 1);
        assert_true(at + columns < TOKENS);
        w->spans[i] = (struct pack_span){.at = at, .columns = columns, .shard = 3, .splits = i % 2};
        for (uint64_t c = 0; c < columns; c++)
            w->trained[at + c] = c >= prompt;
        at += columns + 1; // a document has one more token than columns
    }
    w->n = n;
    return w;
}

static const struct pack_span *span_at(const struct world *w, uint64_t at) {
    for (size_t i = 0; i < w->n; i++)
        if (at >= w->spans[i].at && at < w->spans[i].at + w->spans[i].columns)
            return &w->spans[i];
    return NULL;
}

// Checks that windows are whole and stats add up. Counts how often each column was trained.
static void check(struct world *w, const struct pack *p, const struct pack_options *o) {
    uint64_t used = 0, trained = 0, padding = 0;
    memset(w->used, 0, sizeof w->used);
    assert_int_equal(p->windows[0].first, 0);
    for (size_t i = 0; i < p->n_windows; i++) {
        const struct pack_window *x = &p->windows[i];
        uint32_t columns = 0, targets = 0;
        assert_true(x->first < x[1].first);
        for (uint64_t k = x->first; k < x[1].first; k++) {
            const struct pack_piece *piece = &p->pieces[k];
            const struct pack_span *s = span_at(w, piece->at);
            assert_non_null(s);
            assert_true(piece->columns > 0 && piece->at + piece->columns <= s->at + s->columns);
            for (uint32_t c = 0; c < piece->columns; c++, columns++) {
                if (columns < x->repeated || !w->trained[piece->at + c])
                    continue;
                targets++;
                w->used[piece->at + c]++;
            }
        }
        assert_int_equal(columns, x->columns);
        assert_int_equal(targets, x->trained);
        assert_true(columns <= o->seq && targets > 0);
        used += columns;
        trained += targets;
        padding += o->seq - columns;
    }
    assert_int_equal(p->windows[p->n_windows].first, p->n_pieces);
    assert_int_equal(p->stats.used, used);
    assert_int_equal(p->stats.used_trained, trained);
    assert_int_equal(p->stats.padding, padding);
    for (uint64_t i = 0; i < TOKENS; i++)
        assert_true(w->used[i] <= 1);
}

static struct pack build(struct world *w, uint64_t seq, enum data_pack mode, enum data_long long_) {
    const struct pack_options o = {
        .seq = seq, .mode = mode, .long_ = long_, .trained = count, .arg = w};
    struct pack p, again;
    struct err e = {0};
    if (pack_build(&p, w->spans, w->n, &o, &e) != 0)
        fail_msg("%s", e.text);
    check(w, &p, &o);
    assert_int_equal(pack_build(&again, w->spans, w->n, &o, NULL), 0);
    assert_int_equal(again.n_windows, p.n_windows);
    assert_memory_equal(again.pieces, p.pieces, p.n_pieces * sizeof *p.pieces);
    pack_free(&again);
    return p;
}

// Checks which columns of each document are trained: all, those below `seq`, or none of a long one.
static void check_coverage(const struct world *w, uint64_t seq, enum data_long long_, bool stream) {
    for (size_t i = 0; i < w->n; i++) {
        const struct pack_span *s = &w->spans[i];
        enum data_long policy = long_ != DATA_LONG_AUTO ? long_
                                : s->splits             ? DATA_LONG_SPLIT
                                                        : DATA_LONG_TRUNCATE;
        for (uint64_t c = 0; c < s->columns; c++) {
            bool there = stream || s->columns <= seq || policy == DATA_LONG_SPLIT ||
                         (policy == DATA_LONG_TRUNCATE && c < seq);
            assert_int_equal(w->used[s->at + c], there && w->trained[s->at + c]);
        }
    }
}

static void test_all_modes(void **state) {
    (void)state;
    static const uint64_t seqs[] = {1, 2, 7, 63, 64, 65, 100, 128, 4097};
    for (size_t s = 0; s < sizeof seqs / sizeof *seqs; s++)
        for (int mode = DATA_PACK_BEST_FIT; mode <= DATA_PACK_NONE; mode++)
            for (int policy = DATA_LONG_AUTO; policy <= DATA_LONG_DROP; policy++) {
                struct world *w = make_world(300, 180, 5 + s);
                struct pack p = build(w, seqs[s], (enum data_pack)mode, (enum data_long)policy);
                check_coverage(w, seqs[s], (enum data_long)policy, mode == DATA_PACK_STREAM);
                assert_int_equal(p.stats.spans, 300);
                assert_true(p.stats.untrained > 10); // such documents exist and are in no window
                pack_free(&p);
                free(w);
            }
}

// Best fit: no window has room for all pieces of another one, and there is little padding.
static void test_best_fit_is_tight(void **state) {
    (void)state;
    struct world *w = make_world(3000, 200, 11);
    struct pack p = build(w, 512, DATA_PACK_BEST_FIT, DATA_LONG_AUTO);
    struct pack none = build(w, 512, DATA_PACK_NONE, DATA_LONG_AUTO);
    struct pack stream = build(w, 512, DATA_PACK_STREAM, DATA_LONG_AUTO);
    const uint64_t total = p.stats.used + p.stats.padding;
    assert_true(p.stats.padding * 200 < total);            // half a percent
    assert_true(none.stats.padding * 2 > none.stats.used); // without packing: more than a third
    assert_int_equal(stream.stats.padding, 0);
    assert_int_equal(p.stats.used_trained, none.stats.used_trained);
    // All windows but one are more than half full, as any-fit packing guarantees.
    size_t sparse = 0;
    for (size_t i = 0; i < p.n_windows; i++)
        sparse += p.windows[i].columns <= 256;
    assert_true(sparse <= 1);
    pack_free(&p);
    pack_free(&none);
    pack_free(&stream);
    free(w);
}

static void test_known_case(void **state) {
    (void)state;
    // Pieces of 6 5 4 3 2 columns in windows of 10: {6, 4}, {5, 3, 2}.
    static const uint64_t lengths[] = {4, 6, 2, 5, 3};
    struct world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    uint64_t at = 0;
    for (size_t i = 0; i < 5; i++) {
        w->spans[i] = (struct pack_span){.at = at, .columns = lengths[i], .shard = 3};
        memset(w->trained + at, 1, lengths[i]);
        at += lengths[i] + 1;
    }
    w->n = 5;
    struct pack p = build(w, 10, DATA_PACK_BEST_FIT, DATA_LONG_AUTO);
    static const uint32_t expected[] = {6, 4, 5, 3, 2};
    assert_int_equal(p.n_windows, 2);
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(p.pieces[i].columns, expected[i]);
    assert_int_equal(p.stats.padding, 0);
    pack_free(&p);
    w->n = 0;
    p = build(w, 10, DATA_PACK_BEST_FIT, DATA_LONG_AUTO);
    assert_int_equal(p.n_windows, 0);
    pack_free(&p);
    p = build(w, 10, DATA_PACK_STREAM, DATA_LONG_AUTO);
    assert_int_equal(p.n_windows, 0);
    pack_free(&p);
    free(w);
}

static void test_truncation_is_counted(void **state) {
    (void)state;
    struct world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->spans[0] = (struct pack_span){.at = 0, .columns = 30, .shard = 3};
    w->spans[1] = (struct pack_span){.at = 31, .columns = 8, .shard = 3};
    w->n = 2;
    memset(w->trained + 25, 1, 5); // all trained tokens are behind the first 20
    memset(w->trained + 31, 1, 8);
    struct pack p = build(w, 20, DATA_PACK_BEST_FIT, DATA_LONG_TRUNCATE);
    assert_int_equal(p.n_windows, 1);
    assert_int_equal(p.stats.truncated, 1);
    assert_int_equal(p.stats.cut_columns, 10);
    assert_int_equal(p.stats.cut_trained, 5);
    assert_int_equal(p.stats.untrained_pieces, 1); // the rest of it has no target
    pack_free(&p);
    p = build(w, 20, DATA_PACK_BEST_FIT, DATA_LONG_DROP);
    assert_int_equal(p.stats.dropped, 1);
    pack_free(&p);
    p = build(w, 20, DATA_PACK_BEST_FIT, DATA_LONG_SPLIT);
    assert_int_equal(p.stats.truncated + p.stats.dropped, 0);
    assert_int_equal(p.stats.used_trained, 13);
    pack_free(&p);
    free(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_modes),
        cmocka_unit_test(test_best_fit_is_tight),
        cmocka_unit_test(test_known_case),
        cmocka_unit_test(test_truncation_is_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
