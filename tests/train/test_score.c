// test_score.c - the scores of records: the same as each record alone has, however they are packed
// and whichever way the loss is computed; which tokens and bytes count; what is cut; and which
// models can be compared.
#include "harness.h"

#include "train/evaluate.h"
#include "train/score.h"
#include "train/score_text.h"

static const char *const RECORDS[] = {
    "{\"prompt\": \"one\", \"completion\": \"first answer, which is longer than the window \"}\n",
    "{\"prompt\": \"two\", \"completion\": \"the \\u00e9\"}\n",
    "{\"prompt\": \"3\", \"completion\": \"third\"}\n",
    "{\"prompt\": \"a prompt that fills the whole window alone, without an answer\", "
    "\"completion\": \"cut\"}\n",
    "{\"prompt\": \"\", \"completion\": \"last\"}\n",
};
enum { RECORDS_N = sizeof RECORDS / sizeof *RECORDS, T = 32 };

static const struct score_listener quiet = {0};

static void data_file(const struct scratch *x, const char *name, size_t first, size_t n,
                      char path[320]) {
    char text[2000] = "";
    struct err e = {0};
    snprintf(path, 320, "%s/%s", x->dir, name);
    for (size_t i = first; i < first + n; i++)
        strncat(text, RECORDS[i], sizeof text - strlen(text) - 1);
    assert_worked(file_write_atomic(path, text, strlen(text), &e), &e);
}

static void make_knobs(struct knobs *k, const char *model, const char *data, const char *words) {
    char copy[300], *rest = copy;
    struct err e = {0};
    knobs_init(k);
    snprintf(k->model, sizeof k->model, "%s", model);
    snprintf(k->data_path, sizeof k->data_path, "%s", data);
    snprintf(copy, sizeof copy,
             "threads=1 device=cpu cpu.blas=builtin tokenizer=bytes data.cache=none seq=%d %s", T,
             words);
    for (char *one; (one = strsep(&rest, " ")) != NULL;)
        if (*one)
            assert_worked(knobs_set_assignment(k, one, SET_BY_COMMAND_LINE, &e), &e);
}

static void score_words(struct score *s, const char *model, const char *data, const char *words) {
    struct knobs k;
    struct err e = {0};
    make_knobs(&k, model, data, words);
    assert_worked(score_open(s, &k, &quiet, &e), &e);
    assert_worked(score_model(s, "", &quiet, &e), &e);
}

// The summed loss of a file with one record, as validation computes it.
static double alone(const struct scratch *x, size_t record) {
    char path[320];
    struct knobs k;
    struct err e = {0};
    struct at_work w;
    struct dataset *d;
    struct evaluator *v;
    struct train_eval out;
    const struct shard_listener nobody = {0};
    const double hyper[HYPER_COUNT] = {[HYPER_LOSS_FACTOR] = 1};
    data_file(x, "alone.jsonl", record, 1, path);
    make_knobs(&k, x->nano, path, "batch.micro=1");
    const struct plan_options o = {.knobs = &k, .programs = {PLAN_EVAL}, .real = DTYPE_F32};
    assert_worked(dataset_open_whole(&d, &k, NULL, 257, &nobody, &e), &e);
    assert_worked(at_work_plan(&w, &o, &e), &e);
    assert_worked(at_work_start(&w, NULL, &e), &e);
    assert_worked(session_set_hyper(w.s, hyper, &e), &e);
    assert_worked(evaluator_open(&v, w.s, d, &e), &e);
    assert_worked(evaluator_run(v, 0, NULL, NULL, NULL, &out, &e), &e);
    assert_true(out.complete && out.trained_tokens > 0);
    evaluator_close(v);
    at_work_close(&w);
    dataset_close(d);
    return out.loss * (double)out.trained_tokens;
}

static void assert_close(double x, double wanted, double tolerance, const char *what) {
    if (!(fabs(x - wanted) <= tolerance * fabs(wanted)))
        fail_msg("%s: %.9g is not %.9g", what, x, wanted);
}

// ---------------------------------------------------------------- figures

static void test_records(void **state) {
    const struct scratch *x = *state;
    static const struct {
        const char *words;
        double tolerance;
    } ways[] = {
        {"", 1e-6},
        {"data.pack=none", 1e-6},
        {"data.pack=none batch.micro=1", 1e-6},
        {"batch.micro=3 threads=2", 1e-6},
        {"logits.chunk=5", 1e-6},
        {"fuse.loss=false", 1e-6},
        {"fuse.loss=false logits.chunk=7 fuse.qkv=false", 1e-6},
        {"logits.pad=64", 1e-6},
        {"precision=bf16", 5e-3},
        {"precision=fp16 fuse.loss=false", 1e-3},
    };
    double wanted[RECORDS_N];
    char path[320];
    for (size_t i = 0; i < RECORDS_N; i++)
        wanted[i] = i == 3 ? 0 : alone(x, i);
    data_file(x, "records.jsonl", 0, RECORDS_N, path);
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        struct score s;
        double sum = 0;
        score_words(&s, x->nano, path, ways[w].words);
        assert_int_equal(s.n_units, RECORDS_N);
        for (size_t i = 0; i < RECORDS_N; i++) {
            assert_close(s.units[i].nats, wanted[i], ways[w].tolerance, ways[w].words);
            sum += s.units[i].nats;
        }
        assert_close(s.nats, sum, 1e-12, ways[w].words);
        score_close(&s);
    }
}

// A session of the caller's, on the reference backend, where every op is observed.
static void test_session(void **state) {
    const struct scratch *x = *state;
    char path[320];
    struct score s, same;
    struct knobs k;
    struct err e = {0};
    struct at_work w;
    const struct engine_options eo = {.reference = true, .checking = true};
    const struct plan_options o = {
        .knobs = &k, .programs = {PLAN_EVAL}, .real = DTYPE_F32, .keep_row_loss = true};
    data_file(x, "records.jsonl", 0, RECORDS_N, path);
    score_words(&same, x->nano, path, "");
    make_knobs(&k, x->nano, path, "");
    assert_worked(score_open(&s, &k, &quiet, &e), &e);
    score_plan_knobs(&s, &k);
    assert_worked(at_work_plan(&w, &o, &e), &e);
    assert_worked(at_work_start(&w, &eo, &e), &e);
    assert_worked(score_session(&s, w.s, &quiet, &e), &e);
    for (size_t i = 0; i < s.n_units; i++)
        assert_close(s.units[i].nats, same.units[i].nats, 1e-6, "reference");
    at_work_close(&w);
    score_close(&s);
    score_close(&same);
}

static void test_what_counts(void **state) {
    const struct scratch *x = *state;
    char path[320];
    struct score s;
    data_file(x, "records.jsonl", 0, RECORDS_N, path);
    score_words(&s, x->nano, path, "");
    // The prompt is context. An end of text comes first and last, and has no byte.
    const struct score_unit *u = s.units;
    assert_true(u[1].tokens == 7 && u[1].bytes == 6 && !u[1].cut); // an e with an accent is 2 bytes
    assert_true(u[2].tokens == 6 && u[2].bytes == 5);
    assert_true(u[4].tokens == 5 && u[4].bytes == 4);
    assert_true(u[0].cut && u[0].tokens == T - 3 && u[0].bytes == T - 3);
    assert_true(u[3].cut && u[3].tokens == 0 && u[3].nats == 0);
    assert_int_equal(s.scored_units, 4);
    assert_int_equal(s.tokens, 7 + 6 + 5 + T - 3);
    assert_int_equal(s.bytes, s.tokens - 3);
    assert_true(s.records && !s.sequences && s.speaks && !s.ids);
    assert_int_equal(s.stats.truncated, 2);
    assert_int_equal(s.stats.cut_trained, 46 + 1 - (T - 3) + 4);
    score_close(&s);
    // Whole, in pieces.
    score_words(&s, x->nano, path, "data.long=split");
    assert_int_equal(s.scored_units, RECORDS_N);
    assert_true(s.units[0].tokens == 47 && s.units[0].bytes == 46 && !s.units[0].cut);
    assert_true(s.units[3].tokens == 4 && s.units[3].bytes == 3);
    assert_int_equal(s.stats.cut_columns, 0);
    score_close(&s);
    // Prompts too. Of a record's first token nothing is predicted.
    score_words(&s, x->nano, path, "data.loss=all seq=64");
    assert_int_equal(s.units[2].tokens, 1 + 5 + 1);
    assert_int_equal(s.units[2].bytes, 6);
    score_close(&s);
}

static void test_plain_text(void **state) {
    const struct scratch *x = *state;
    char path[320], text[100];
    struct err e = {0};
    struct score s;
    struct rate loss, bits;
    memset(text, 'a', sizeof text);
    snprintf(path, sizeof path, "%s/plain.txt", x->dir);
    assert_worked(file_write_atomic(path, text, sizeof text, &e), &e);
    score_words(&s, x->nano, path, "");
    assert_true(s.sequences && !s.records);
    assert_int_equal(s.scored_units, 4); // 101 targets in sequences of 32
    assert_int_equal(s.tokens, sizeof text + 1);
    assert_int_equal(s.bytes, sizeof text);
    assert_true(s.units[0].tokens == T && s.units[3].tokens == 101 - 3 * T);
    assert_worked(score_loss(&s, &loss, &e), &e);
    assert_worked(score_bits(&s, &bits, &e), &e);
    assert_true(loss.n == 4 && loss.low < loss.value && loss.value < loss.high);
    assert_close(loss.value, s.nats / 101, 1e-12, "loss");
    assert_close(bits.value, s.nats / 100 / log(2), 1e-12, "bits per byte");
    score_close(&s);
    // Shorter than a sequence.
    assert_worked(file_write_atomic(path, text, 3, &e), &e);
    score_words(&s, x->nano, path, "");
    assert_true(s.scored_units == 1 && s.tokens == 4 && s.bytes == 3);
    assert_worked(score_loss(&s, &loss, &e), &e);
    assert_true(isfinite(loss.value) && isnan(loss.low));
    score_close(&s);
}

// ---------------------------------------------------------------- two models

static void other_model(const struct scratch *x, enum poison poison, char folder[320]) {
    snprintf(folder, 320, "%s/other%d", x->dir, (int)poison);
    make_nano(folder, 24, poison);
}

static void test_compare(void **state) {
    const struct scratch *x = *state;
    char path[320], folder[320];
    struct score a, b, wide;
    struct score_comparison c;
    struct err e = {0};
    data_file(x, "records.jsonl", 0, RECORDS_N, path);
    other_model(x, POISON_NONE, folder);
    score_words(&a, x->nano, path, "");
    score_words(&b, folder, path, "data.pack=none seed=9");
    assert_worked(score_compare(&b, &a, &c, &e), &e);
    assert_true(c.by == SCORE_BY_TOKEN && c.left_out == 0);
    assert_int_equal(c.wins + c.losses + c.ties, 4);
    assert_int_equal(c.difference.n, 4);
    assert_close(c.difference.value, (b.nats - a.nats) / (double)a.tokens, 1e-9, "difference");
    // With itself.
    assert_worked(score_compare(&a, &a, &c, &e), &e);
    assert_true(c.ties == 4 && c.difference.value == 0 && rate_direction(&c.difference) == 0);
    // Another stretch of the same records is other text, unless records are whole.
    score_words(&wide, x->nano, path, "seq=60");
    assert_worked(score_compare(&wide, &a, &c, &e), &e);
    assert_true(c.by == SCORE_BY_BYTE && c.difference.n == 3 && c.left_out == 1);
    assert_int_equal(c.ties, 3);
    score_close(&wide);
    score_close(&a);
    score_close(&b);
}

// Sequences that end at other places are compared in stretches of the text, each of which has all
// of its tokens' losses.
static void test_stretches(void **state) {
    const struct scratch *x = *state;
    enum { BYTES = 5000 };
    char path[320], folder[320], text[BYTES];
    struct score a, b, c;
    struct score_comparison d, same;
    struct err e = {0};
    for (size_t i = 0; i < BYTES; i++) // one character of four has two bytes
        text[i] = "a \xc3\xa9."[i % 5];
    snprintf(path, sizeof path, "%s/long.txt", x->dir);
    assert_worked(file_write_atomic(path, text, sizeof text, &e), &e);
    other_model(x, POISON_NONE, folder);
    score_words(&a, x->nano, path, "");
    score_words(&b, x->nano, path, "seq=27");
    score_words(&c, folder, path, "");
    const struct score_text *t = &b.texts[0];
    assert_int_equal(t->n, 3);
    double nats = 0;
    uint64_t tokens = 0;
    for (size_t k = 0; k < t->n; k++) {
        assert_int_equal(t->stretches[k].bytes, k < 2 ? 2048 : BYTES - 2 * 2048);
        assert_false(t->stretches[k].cut);
        tokens += t->stretches[k].tokens;
        nats += t->stretches[k].nats;
    }
    assert_int_equal(tokens, BYTES + 1); // an end of text comes last
    assert_close(nats, b.nats, 1e-12, "stretches");
    assert_int_equal(t->borders[1], 1 + 2048); // and another first, which nothing predicts
    assert_worked(score_compare(&b, &a, &d, &e), &e);
    assert_true(d.by == SCORE_BY_BYTE && d.difference.n == 3 && d.left_out == 0);
    assert_close(d.difference.value, (b.nats - a.nats) / log(2) / BYTES, 1e-9, "bits per byte");
    assert_worked(score_compare(&c, &a, &same, &e), &e);
    assert_true(same.by == SCORE_BY_TOKEN && same.difference.n == 157);
    score_close(&b);
    // What seq cuts off belongs to no comparison.
    score_words(&b, x->nano, path, "data.long=truncate seq=60");
    assert_failed(score_compare(&b, &a, &d, &e), ERR_MISMATCH, &e, "read no record whole");
    score_close(&a);
    score_close(&b);
    score_close(&c);
}

static void test_refused(void **state) {
    const struct scratch *x = *state;
    char path[320], folder[320];
    struct score a, b;
    struct knobs k;
    struct err e = {0};
    enum score_pairing by;
    static const char ids[] = "{\"input_ids\": [5, 6, 7, 256]}\n{\"input_ids\": [8, 9]}\n";
    snprintf(path, sizeof path, "%s/ids.jsonl", x->dir);
    assert_worked(file_write_atomic(path, ids, sizeof ids - 1, &e), &e);
    struct model_shape s;
    assert_worked(model_shape_open(&s, x->nano, &(bool){false}, &e), &e);
    s.vocab = 300;
    snprintf(folder, sizeof folder, "%s/wide", x->dir);
    write_model(folder, &s, POISON_NONE);
    score_words(&a, x->nano, path, "tokenizer=ids");
    assert_true(a.ids && !a.speaks && a.tokens == 4);
    score_words(&b, folder, path, "tokenizer=ids");
    assert_failed(score_pair(&b, &a, &by, &e), ERR_MISMATCH, &e,
                  "different vocabularies (300 and 320 ids)|accepted: data with text");
    score_close(&b);
    make_knobs(&k, folder, path, "tokenizer=bytes"); // of 257 ids, and they are the same text
    assert_worked(score_open(&b, &k, &quiet, &e), &e);
    assert_true(b.speaks && b.bytes == 3);
    score_close(&b);
    score_close(&a);

    // Data without a scored token, the built-in corpus, weights that are not finite.
    data_file(x, "cut.jsonl", 3, 1, path);
    make_knobs(&k, x->nano, path, "");
    assert_failed(score_open(&a, &k, &quiet, &e), ERR_USAGE, &e, "none of its 1 documents");
    score_close(&a);
    make_knobs(&k, x->nano, "synthetic", "");
    assert_failed(score_open(&a, &k, &quiet, &e), ERR_USAGE, &e, "the built-in corpus has no end");
    score_close(&a);
    data_file(x, "records.jsonl", 0, RECORDS_N, path);
    other_model(x, POISON_HUGE, folder);
    make_knobs(&k, folder, path, "");
    assert_worked(score_open(&a, &k, &quiet, &e), &e);
    assert_failed(score_model(&a, "", &quiet, &e), ERR_NUMERIC, &e, "records.jsonl|not finite");
    score_close(&a);
}

static void test_stop(void **state) {
    const struct scratch *x = *state;
    char path[320];
    struct score s;
    struct knobs k;
    struct err e = {0};
    const volatile sig_atomic_t stop = 1;
    const struct score_listener l = {.stop = &stop};
    data_file(x, "records.jsonl", 0, RECORDS_N, path);
    make_knobs(&k, x->nano, path, "");
    assert_worked(score_open(&s, &k, &l, &e), &e);
    assert_failed(score_model(&s, "", &l, &e), ERR_STOPPED, &e, "after 0 of ");
    score_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_records),     cmocka_unit_test(test_session),
        cmocka_unit_test(test_what_counts), cmocka_unit_test(test_plain_text),
        cmocka_unit_test(test_compare),     cmocka_unit_test(test_refused),
        cmocka_unit_test(test_stretches),   cmocka_unit_test(test_stop),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
