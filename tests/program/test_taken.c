// test_taken.c - bytes over time: every answer is compared with a search through all additions.
#include "base/rng.h"
#include "program/taken.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>

enum { MOST = 400, SPANS = 3 };

struct added {
    struct span s;
    struct run r;
};

static uint64_t draw(uint64_t *at, uint64_t below) {
    return rng_below(7, 1, (*at)++, below);
}

static struct span draw_span(uint64_t *at, int moments) {
    int a = (int)draw(at, (uint64_t)moments), b = (int)draw(at, (uint64_t)moments);
    if (draw(at, 3) == 0) // most tensors are short-lived
        return a < b ? (struct span){a, b} : (struct span){b, a};
    b = a + (int)draw(at, 4);
    return (struct span){a, b < moments ? b : moments - 1};
}

static bool is_free(const struct added *all, int n, const struct span *s, int n_spans, uint64_t at,
                    uint64_t bytes) {
    for (int i = 0; i < n; i++)
        for (int k = 0; k < n_spans; k++)
            if (all[i].s.first <= s[k].last && s[k].first <= all[i].s.last &&
                all[i].r.begin < at + bytes && at < all[i].r.end)
                return false;
    return true;
}

static void test_against_search(void **state) {
    (void)state;
    uint64_t draws = 0;
    const int sizes[] = {1, 2, 7, 64, 1000};
    for (size_t z = 0; z < sizeof sizes / sizeof *sizes; z++) {
        struct err e = {0};
        struct taken t;
        struct question q;
        static struct added all[MOST];
        assert_int_equal(taken_make(&t, sizes[z], &e), 0);
        assert_int_equal(question_make(&q, SPANS, &e), 0);
        for (int n = 0; n < MOST; n++) {
            if (n % 100 == 99) { // cleared bytes are free again
                taken_clear(&t);
                for (int i = 0; i < n; i++)
                    all[i].r = (struct run){0, 0};
            }
            struct span s[SPANS + 1];
            int n_spans = 1 + (int)draw(&draws, SPANS);
            uint64_t bytes = 1 + draw(&draws, 12), ceiling = draw(&draws, 200), want = 0;
            q.n = 0;
            for (int i = 0; i < n_spans; i++) {
                s[i] = draw_span(&draws, sizes[z]);
                question_add(&q, &t, s[i]);
            }
            question_add(&q, &t, (struct span){1, 0}); // an empty span
            struct run_cursor *cursors = q.cursors;
            uint64_t lowest = question_lowest(&q, bytes);
            while (!is_free(all, n, s, n_spans, want, bytes))
                want++;
            assert_int_equal(lowest, want);
            uint64_t highest = question_highest(&q, bytes, ceiling);
            want = UINT64_MAX;
            for (uint64_t at = 0; at + bytes <= ceiling; at++)
                if (is_free(all, n, s, n_spans, at, bytes))
                    want = at;
            assert_int_equal(highest, want);
            assert_ptr_equal(q.cursors, cursors);
            // Half of the time add where it fits, otherwise anywhere, also over taken bytes.
            uint64_t at = draw(&draws, 2) ? lowest : draw(&draws, 100);
            all[n] = (struct added){s[0], {at, at + bytes}};
            assert_int_equal(taken_add(&t, s[0], all[n].r, &e), 0);
        }
        question_free(&q);
        taken_free(&t);
    }
}

static void test_nothing(void **state) {
    (void)state;
    struct err e = {0};
    struct taken t;
    struct question q;
    assert_int_equal(taken_make(&t, 10, &e), 0);
    assert_int_equal(question_make(&q, 1, &e), 0);
    assert_int_equal(taken_add(&t, (struct span){3, 2}, (struct run){0, 10}, &e), 0); // no time
    assert_int_equal(taken_add(&t, (struct span){0, 9}, (struct run){5, 5}, &e), 0);  // no bytes
    question_add(&q, &t, (struct span){0, 9});
    assert_int_equal(q.n, 0);
    assert_int_equal(question_lowest(&q, 4), 0);
    assert_int_equal(question_highest(&q, 4, 10), 6);
    assert_true(question_highest(&q, 11, 10) == UINT64_MAX);
    question_free(&q);
    taken_free(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_search),
        cmocka_unit_test(test_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
