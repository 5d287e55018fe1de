// test_decoder.c - texts side by side are the texts alone: any number of sequences, prompts of any
// length, chunks of any size, sequences that end and make room for others.
#include "at_work.h"
#include "expect.h"
#include "infer/decoder.h"
#include "knob/pair.h"

#include <string.h>

enum { CONTEXT = 48, TEXTS = 7, MOST = CONTEXT };

struct text {
    int32_t prompt[CONTEXT], made[MOST];
    int64_t n, most, n_made;
    enum decoder_end end;
};

static void make_texts(struct text texts[TEXTS]) {
    static const int64_t lengths[TEXTS] = {1, 30, 5, 17, 48, 2, 40},
                         most[TEXTS] = {20, 6, 30, 1, 9, 12, 40};
    memset(texts, 0, TEXTS * sizeof *texts);
    for (int i = 0; i < TEXTS; i++) {
        texts[i].n = lengths[i], texts[i].most = most[i];
        for (int64_t k = 0; k < lengths[i]; k++)
            texts[i].prompt[k] = (int32_t)((i * 31 + k * 17 + k * k) % 200);
    }
}

static int take(void *arg, void *tag, int32_t id, enum decoder_end end, struct err *e) {
    struct text *t = tag;
    (void)e;
    if (id >= 0)
        t->made[t->n_made++] = id;
    t->end = end;
    ++*(int *)arg;
    return 0;
}

static void run(struct session *s, struct text texts[TEXTS], double temperature,
                const int32_t *stop) {
    struct decoder *d;
    struct err e = {0};
    int next = 0, calls = 0, before;
    make_texts(texts);
    assert_worked(decoder_open(&d, s, 1000, &e), &e);
    const int64_t room = decoder_free(d);
    while (next < TEXTS || decoder_busy(d)) {
        for (; next < TEXTS && decoder_free(d) > 0; next++) {
            struct decoder_request r = {.prompt = texts[next].prompt,
                                        .n = texts[next].n,
                                        .most = texts[next].most,
                                        .how = {.temperature = temperature,
                                                .top_p = 1,
                                                .repeat_penalty = 1,
                                                .stream = (uint64_t)next},
                                        .tag = &texts[next]};
            if (stop)
                r.ends[r.n_ends++] = *stop;
            assert_worked(decoder_add(d, &r, &e), &e);
        }
        before = calls;
        assert_worked(decoder_turn(d, take, &calls, &e), &e);
        assert_true(calls >= before);
    }
    assert_int_equal(decoder_free(d), room);
    const struct decoder_times *t = decoder_times(d);
    int64_t prompts = 0, made = 0;
    for (int i = 0; i < TEXTS; i++)
        prompts += texts[i].n, made += texts[i].n_made + (texts[i].end == DECODER_ENDED);
    assert_int_equal(t->prompt_tokens, prompts);
    assert_int_equal(t->made_tokens, made);
    assert_int_equal(samples_count(&t->first), TEXTS);
    assert_int_equal(samples_count(&t->between), made - TEXTS);
    decoder_close(d);
}

static void open_model(struct at_work *w, struct plan_extend extend, bool reference) {
    struct err e = {0};
    struct knobs k;
    knobs_init(&k);
    assert_worked(
        knobs_set_list(&k, "model=tiny device=cpu seed=3", "", false, SET_BY_COMMAND_LINE, &e), &e);
    const struct plan_options o = {
        .knobs = &k, .programs = {PLAN_EXTEND}, .extend = extend, .real = DTYPE_F32};
    const struct engine_options eo = {.reference = reference};
    assert_worked(at_work_plan(w, &o, &e), &e);
    assert_worked(at_work_start(w, &eo, &e), &e);
}

static void assert_same_texts(const struct text *a, const struct text *b) {
    for (int i = 0; i < TEXTS; i++) {
        assert_int_equal(a[i].n_made, b[i].n_made);
        assert_memory_equal(a[i].made, b[i].made, (size_t)a[i].n_made * sizeof *a[i].made);
        assert_int_equal(a[i].end, b[i].end);
    }
}

static void test_side_by_side(void **state) {
    (void)state;
    static const struct plan_extend settings[] = {{1, CONTEXT, 0},  {1, CONTEXT, 16},
                                                  {3, CONTEXT, 0},  {3, CONTEXT, 5},
                                                  {7, CONTEXT, 64}, {5, CONTEXT, 33}};
    static struct text alone[2][TEXTS], beside[TEXTS];
    int32_t stop = -1;
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        struct at_work w;
        open_model(&w, settings[i], false);
        for (int drawn = 0; drawn < 2; drawn++) {
            run(w.s, i ? beside : alone[drawn], drawn, NULL);
            if (i)
                assert_same_texts(alone[drawn], beside);
        }
        // A token in the middle of a text as its end: it is not part of the text.
        stop = stop < 0 ? alone[1][2].made[10] : stop;
        run(w.s, beside, 1, &stop);
        for (int k = 0; k < TEXTS; k++) {
            int64_t n = 0;
            while (n < alone[1][k].n_made && alone[1][k].made[n] != stop)
                n++;
            assert_int_equal(beside[k].n_made, n);
            assert_int_equal(beside[k].end,
                             n < alone[1][k].n_made ? DECODER_ENDED : alone[1][k].end);
            assert_memory_equal(beside[k].made, alone[1][k].made, (size_t)n * sizeof(int32_t));
        }
        at_work_close(&w);
    }
    // A prompt as long as the cache gives one token, and so does a request of one.
    assert_int_equal(alone[0][4].n_made, 1);
    assert_int_equal(alone[0][4].end, DECODER_FULL);
    assert_int_equal(alone[0][6].n_made, CONTEXT - 40 + 1);
    assert_int_equal(alone[0][6].end, DECODER_FULL);
    assert_int_equal(alone[0][3].n_made, 1);
    assert_int_equal(alone[0][3].end, DECODER_LENGTH);
}

static int64_t make(struct decoder *d, const int32_t *prompt, int64_t n, struct text *out) {
    struct err e = {0};
    int calls = 0;
    const int64_t before = decoder_times(d)->prompt_tokens;
    const struct decoder_request r = {
        .prompt = prompt, .n = n, .most = 6, .how = {.repeat_penalty = 1}, .tag = out};
    out->n_made = 0;
    assert_worked(decoder_add(d, &r, &e), &e);
    while (decoder_busy(d))
        assert_worked(decoder_turn(d, take, &calls, &e), &e);
    return decoder_times(d)->prompt_tokens - before;
}

// Prompts that begin as earlier ones did, or as their texts went on, are computed from there on,
// and give the texts of a cache that is empty.
static void test_cached(void **state) {
    (void)state;
    static const struct {
        int64_t own, n; // first tokens of prompt `of` and its text; tokens in all
        int of;
        int64_t computed;
    } cases[] = {{0, 12, 0, 12}, {12, 20, 0, 8}, {12, 12, 0, 1}, {15, 22, 0, 7},
                 {0, 9, 1, 9},   {3, 9, 0, 6},   {12, 30, 0, 27}};
    int32_t first[CONTEXT];
    struct at_work w;
    struct decoder *d;
    struct err e = {0};
    open_model(&w, (struct plan_extend){2, CONTEXT, 8}, false);
    assert_worked(decoder_open(&d, w.s, 100, &e), &e);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static struct text with, without;
        int32_t prompt[CONTEXT];
        struct decoder *empty;
        for (int64_t k = 0; k < cases[i].n; k++)
            prompt[k] = k < cases[i].own ? first[k] : (int32_t)((40 * i + 3 * (size_t)k + 1) % 250);
        const int64_t computed = make(d, prompt, cases[i].n, &with);
        assert_int_equal(computed, cases[i].computed);
        struct at_work fresh;
        open_model(&fresh, (struct plan_extend){2, CONTEXT, 8}, false);
        assert_worked(decoder_open(&empty, fresh.s, 100, &e), &e);
        assert_int_equal(make(empty, prompt, cases[i].n, &without), cases[i].n);
        assert_int_equal(with.n_made, without.n_made);
        assert_memory_equal(with.made, without.made, (size_t)with.n_made * sizeof *with.made);
        decoder_close(empty);
        at_work_close(&fresh);
        if (i == 0) { // what later prompts begin with: this prompt and its text
            memcpy(first, prompt, 12 * sizeof *first);
            memcpy(first + 12, with.made, 6 * sizeof *first);
        }
    }
    assert_true(decoder_times(d)->cached_tokens > 0);
    decoder_close(d);
    at_work_close(&w);
}

static void test_refused(void **state) {
    (void)state;
    struct at_work w;
    struct decoder *d;
    struct err e = {0};
    const int32_t ids[CONTEXT + 1] = {1, 2, 3};
    open_model(&w, (struct plan_extend){1, CONTEXT, 0}, true);
    assert_worked(decoder_open(&d, w.s, 1, &e), &e);
    struct decoder_request r = {.prompt = ids, .n = CONTEXT + 1, .most = 1};
    assert_error(decoder_add(d, &r, &e), ERR_USAGE, &e, "49 tokens and the cache has room for 48");
    r.n = 0;
    assert_error(decoder_add(d, &r, &e), ERR_USAGE, &e, "empty");
    r.n = 3;
    assert_worked(decoder_add(d, &r, &e), &e);
    assert_error(decoder_add(d, &r, &e), ERR_INTERNAL, &e, "in use");
    decoder_close(d);
    const struct session_row far[] = {{1, 0, CONTEXT, true}, {1, 1, 0, true}, {1, 0, -1, true}};
    int32_t id;
    for (int i = 0; i < 3; i++)
        assert_error(session_extend(w.s, &far[i], 1, &id, NULL, &e), ERR_INTERNAL, &e,
                     "outside of the cache: 1 sequences of 48 tokens");
    at_work_close(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_side_by_side),
        cmocka_unit_test(test_cached),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
