// test_packed.c - documents in one window do not affect each other: not in the loss, not in a
// gradient, not in a single bit.
// Where each window is one document, boundaries change no bit.
//
// A window is made by the real pipeline (records, best fit). Then everything outside one of its
// documents is changed, including padding. That document's losses, and the gradients from them, are
// compared with memcmp. The test also checks that it can fail: without document boundaries it does.
#include "harness.h"

#include "data/dataset.h"
#include "knob/pair.h"
#include "train/hyper.h"

enum { T = 48, MOST_PARAMS = 64 };

struct packed {
    struct at_work s;
    int32_t tokens[T], targets[T], positions[T], doc_start[T];
    int32_t begin, end; // columns of the document that is compared
    int32_t vocab;
};

static const char RECORDS[] = "{\"prompt\": \"one\", \"completion\": \"first answer\"}\n"
                              "{\"prompt\": \"two\", \"completion\": \"the second\"}\n"
                              "{\"prompt\": \"3\", \"completion\": \"third\"}\n";

static void make_window(struct packed *p, const struct scratch *s) {
    struct err e = {0};
    char path[320];
    struct dataset *d;
    snprintf(path, sizeof path, "%s/packed.jsonl", s->dir);
    assert_worked(file_write_atomic(path, RECORDS, sizeof RECORDS - 1, &e), &e);
    const struct dataset_options o = {.paths = path, .seed = 1, .seq = T};
    const struct dataset_window w = {p->tokens, p->targets, p->positions, p->doc_start};
    assert_worked(dataset_open(&d, &o, &e), &e);
    assert_int_equal(dataset_windows(d, SPLIT_TRAIN), 1);
    assert_true(dataset_about(d, SPLIT_TRAIN, 0).real < T); // with padding at the end
    char scratch[64];
    assert_true(dataset_scratch_bytes(d) <= sizeof scratch);
    assert_worked(dataset_fetch(d, SPLIT_TRAIN, 0, scratch, &w, &e), &e);
    dataset_close(d);
    p->begin = p->doc_start[20]; // the second document, which has one before it and one after it
    assert_true(p->begin > 0);
    for (p->end = p->begin; p->doc_start[p->end] == p->begin; p->end++)
        continue;
    assert_true(p->end < T - 8 && p->positions[p->end] == 0);
}

static void start(struct packed *p, const char *model, bool reference, const char *threads,
                  const char *data) {
    struct err e = {0};
    struct knobs k;
    knobs_init(&k);
    assert_worked(knobs_set_list(&k, data, "/nowhere", false, SET_BY_COMMAND_LINE, &e), &e);
    snprintf(k.model, sizeof k.model, "%s", model);
    k.batch_micro = 1;
    k.seq = T;
    k.optim_lr = 0; // so that the weights do not change
    assert_worked(knobs_set(&k, "threads", threads, SET_BY_COMMAND_LINE, &e), &e);
    assert_worked(knobs_set(&k, "device", "cpu", SET_BY_COMMAND_LINE, &e), &e);
    const struct plan_options o = {.knobs = &k,
                                   .programs = {PLAN_TRAIN, PLAN_EVAL},
                                   .real = DTYPE_F32,
                                   .keep_gradients = true};
    const struct engine_options eo = {.reference = reference};
    assert_worked(at_work_plan(&p->s, &o, &e), &e);
    assert_worked(at_work_start(&p->s, &eo, &e), &e);
    p->vocab = (int32_t)p->s.plan.shape.vocab;
    for (int t = 0; t < T; t++) {
        p->tokens[t] %= p->vocab;
        if (p->targets[t] >= 0)
            p->targets[t] %= p->vocab;
    }
}

static int feed(void *arg, int micro, struct exec_batch *out, struct err *e) {
    const struct packed *p = arg;
    (void)micro;
    (void)e;
    *out = (struct exec_batch){p->tokens, p->targets, p->positions, p->doc_start};
    return 0;
}

// The sum of the loss over the columns [from, to), the only ones that are trained.
static double run(struct packed *p, const char *program, int from, int to) {
    struct err e = {0};
    double hyper[HYPER_COUNT], results[RESULT_COUNT];
    struct packed masked = *p;
    int trained = 0;
    for (int t = 0; t < T; t++) {
        if (t < from || t >= to)
            masked.targets[t] = -1;
        trained += masked.targets[t] >= 0;
    }
    const struct hyper_step at = {.update = 1, .trained_tokens = trained, .loss_scale = 1};
    hyper_fill(&p->s.plan.knobs, &at, hyper);
    assert_worked(session_set_hyper(p->s.s, hyper, &e), &e);
    assert_worked(session_run(p->s.s, program, feed, &masked, NULL, &e), &e);
    assert_worked(session_get_results(p->s.s, results, NULL, &e), &e);
    assert_int_equal(results[RESULT_TOKENS], trained);
    return results[RESULT_LOSS_SUM];
}

struct gradients {
    void *data[MOST_PARAMS];
    uint64_t bytes[MOST_PARAMS];
    char name[MOST_PARAMS][160];
    int n;
};

static void read_gradients(struct packed *p, struct gradients *g) {
    struct err e = {0};
    struct model_param param;
    g->n = 0;
    for (int64_t i = 0; model_param_at(&p->s.plan.shape, i, &param); i++, g->n++) {
        assert_true(g->n < MOST_PARAMS);
        snprintf(g->name[g->n], sizeof g->name[0], "d.%.150s", param.name);
        int t = plan_tensor(&p->s.plan, PLAN_TRAIN, g->name[g->n]);
        assert_true(t >= 0);
        const struct tensor *tensor = &plan_program(&p->s.plan, PLAN_TRAIN)->tensors[t];
        g->bytes[g->n] = (uint64_t)tensor_elements(tensor) * dtype_bytes(tensor->dtype);
        g->data[g->n] = malloc(g->bytes[g->n]);
        assert_non_null(g->data[g->n]);
        assert_worked(exec_read(p->s.s->exec, plan_find(&p->s.plan, PLAN_TRAIN), t, g->data[g->n],
                                g->bytes[g->n], &e),
                      &e);
    }
}

static void free_gradients(struct gradients *g) {
    for (int i = 0; i < g->n; i++)
        free(g->data[i]);
}

// The number of parameters whose gradients do not have the same bits.
static int differing(const struct gradients *a, const struct gradients *b) {
    int n = 0;
    for (int i = 0; i < a->n; i++)
        n += memcmp(a->data[i], b->data[i], a->bytes[i]) != 0;
    return n;
}

// Other tokens and targets everywhere outside the compared document.
static void change_others(struct packed *p) {
    for (int t = 0; t < T; t++) {
        if (t >= p->begin && t < p->end)
            continue;
        p->tokens[t] = (p->tokens[t] * 7 + 13) % p->vocab;
        p->targets[t] = p->targets[t] < 0 ? 5 : (p->targets[t] + 1) % p->vocab;
    }
}

static void check_model(const struct scratch *s, const char *model, bool reference,
                        const char *threads) {
    struct packed p = {0};
    struct gradients before, after, leaked;
    double rows[T], whole, others;
    make_window(&p, s);
    start(&p, model, reference, threads, "");
    whole = run(&p, PLAN_TRAIN, p.begin, p.end);
    read_gradients(&p, &before);
    others = run(&p, PLAN_EVAL, 0, p.begin);
    for (int t = p.begin; t < p.end; t++)
        rows[t] = run(&p, PLAN_EVAL, t, t + 1);

    const struct packed original = p;
    change_others(&p);
    assert_true(run(&p, PLAN_TRAIN, p.begin, p.end) == whole);
    read_gradients(&p, &after);
    for (int i = 0; i < before.n; i++)
        if (memcmp(before.data[i], after.data[i], before.bytes[i]) != 0)
            fail_msg("%s (%s): the gradient %s has seen another document", model,
                     reference ? "reference" : "fast", before.name[i]);
    for (int t = p.begin; t < p.end; t++)
        assert_true(run(&p, PLAN_EVAL, t, t + 1) == rows[t]);
    assert_true(run(&p, PLAN_EVAL, 0, p.begin) != others); // the other documents' loss did change

    // Without boundaries the same change affects the loss and every gradient.
    struct packed open = original;
    memset(open.doc_start, 0, sizeof open.doc_start);
    open.s = p.s;
    double seen = run(&open, PLAN_TRAIN, p.begin, p.end);
    read_gradients(&open, &leaked);
    assert_true(seen != whole);
    assert_true(differing(&before, &leaked) > before.n / 2);
    free_gradients(&before);
    free_gradients(&after);
    free_gradients(&leaked);
    at_work_close(&p.s);
}

static void test_llama(void **state) {
    const struct scratch *s = *state;
    check_model(s, s->nano, true, "1");
    check_model(s, s->nano, false, "1");
    check_model(s, s->nano, false, "2");
}

static void test_gpt2(void **state) {
    const struct scratch *s = *state;
    const char *model = HAGGLE_SOURCE_DIR "/tests/reference/gpt2-odd";
    check_model(s, model, true, "1");
    check_model(s, model, false, "2");
}

// A window that is one document, with padding: a program without boundaries gives the same bits.
// What the padding sees of the document is not trained, so nothing of it comes back.
static void check_one_document(const struct scratch *s, const char *model, bool reference,
                               const char *threads) {
    static const char *const data[] = {"", "data.path={dir}/data.jsonl data.pack=none"};
    struct gradients gradients[2];
    double loss[2], valid[2];
    for (int i = 0; i < 2; i++) {
        struct packed p = {0};
        make_window(&p, s);
        for (int t = 0; t < T; t++) { // the second document moves to column 0
            const bool inside = t < p.end - p.begin;
            p.tokens[t] = inside ? p.tokens[p.begin + t] : 0;
            p.targets[t] = inside ? p.targets[p.begin + t] : -1;
            p.positions[t] = inside ? t : 0;
            p.doc_start[t] = inside ? 0 : t;
        }
        p.end -= p.begin;
        start(&p, model, reference, threads, data[i]);
        assert_int_equal(plan_tensor(&p.s.plan, PLAN_TRAIN, NAME_DOC_START) >= 0, i == 0);
        valid[i] = run(&p, PLAN_EVAL, 0, p.end);
        loss[i] = run(&p, PLAN_TRAIN, 0, p.end);
        read_gradients(&p, &gradients[i]);
        at_work_close(&p.s);
    }
    assert_true(loss[0] > 0 && loss[0] == loss[1] && valid[0] == valid[1]);
    assert_int_equal(differing(&gradients[0], &gradients[1]), 0);
    for (int i = 0; i < 2; i++)
        free_gradients(&gradients[i]);
}

static void test_one_document(void **state) {
    const struct scratch *s = *state;
    const char *model = HAGGLE_SOURCE_DIR "/tests/reference/gpt2-odd";
    check_one_document(s, s->nano, false, "1");
    check_one_document(s, s->nano, true, "1");
    check_one_document(s, model, false, "2");
}

// A trainer on packed records mixed with plain text resumes to the bit, in steps and epochs, with
// any number of workers. It reports how many tokens were real.
static void test_run_on_records(void **state) {
    const struct scratch *s = *state;
    struct run whole, part;
    struct err e = {0};
    char path[320], plain[320], text[8000], *at = text;
    snprintf(path, sizeof path, "%s/run.jsonl", s->dir);
    snprintf(plain, sizeof plain, "%s/run.txt", s->dir);
    for (int i = 0; i < 40; i++)
        at += sprintf(at, "{\"prompt\": \"q%d\", \"completion\": \"%.*s\"}\n", i, 1 + i * 7 % 23,
                      "answers come in many lengths, as here");
    assert_worked(file_write_atomic(path, text, (size_t)(at - text), &e), &e);
    assert_worked(file_write_atomic(plain, text, 700, &e), &e);
    run_init(&whole, s, "records-whole");
    run_init(&part, s, "records-part");
    for (struct run *r = &whole; r != NULL; r = r == &whole ? &part : NULL) {
        snprintf(r->knobs.data_path, sizeof r->knobs.data_path, "%s:3,%s:0.5", path, plain);
        run_set(r, "steps=40"); // more than two epochs of either
        run_set(r, "seq=32");
        run_set(r, "eval.every=20");
    }
    run_go(&whole);
    assert_ran(&whole);
    const struct train_state *st = &whole.result.state;
    assert_true(st->trained_tokens < st->tokens); // prompts and padding are not trained
    assert_int_equal(st->empty_steps, 0);
    assert_true(whole.result.metrics.real_tokens < whole.result.metrics.tokens);
    assert_true(whole.result.metrics.real_tokens > whole.result.metrics.trained_tokens);
    assert_true(whole.eval.batches > 0 && isfinite(whole.eval.loss));
    assert_true(whole.losses[39] < 0.8 * whole.losses[0]);
    part.stop_at = 17;
    run_go(&part);
    assert_failed(part.rc, ERR_STOPPED, &part.e, "after step 17");
    run_set(&part, "data.workers=3");
    run_set(&part, "data.prefetch=4");
    run_again(&part);
    assert_ran(&part);
    for (int i = 17; i < 40; i++)
        assert_true(part.losses[i] == whole.losses[i]);
    assert_same_tensors(whole.dir, part.dir, 40);
}

// Token ids that the model does not have are refused before anything is tokenized. So is a folder
// with text that cannot be read.
static void test_vocabulary(void **state) {
    const struct scratch *s = *state;
    const char *folder = HAGGLE_SOURCE_DIR "/tests/reference/gpt2-odd";
    const struct shard_listener nobody = {0};
    struct dataset *d;
    struct knobs k;
    struct err e = {0};
    knobs_init(&k);
    snprintf(k.data_path, sizeof k.data_path, "%s/nowhere.txt", s->dir);
    assert_failed(dataset_open_knobs(&d, &k, NULL, 256, &nobody, &e), ERR_MISMATCH, &e,
                  "has 257 ids|a vocabulary of 256");
    assert_failed(dataset_open_knobs(&d, &k, NULL, 257, &nobody, &e), ERR_IO, &e, "nowhere.txt");
    // Without a tokenizer there is no text. That is known when text comes.
    assert_failed(dataset_open_knobs(&d, &k, folder, 277, &nobody, &e), ERR_IO, &e, "nowhere.txt");
    snprintf(k.data_path, sizeof k.data_path, "%s/words.txt", s->dir);
    FILE *f = fopen(k.data_path, "w");
    assert_non_null(f);
    fputs("some words", f);
    fclose(f);
    assert_failed(dataset_open_knobs(&d, &k, folder, 277, &nobody, &e), ERR_USAGE, &e,
                  "gpt2-odd has no tokenizer.json|set tokenizer");
    snprintf(k.data_path, sizeof k.data_path, "%s/nowhere.txt", s->dir);
    assert_worked(knobs_set(&k, "tokenizer", "bytes", SET_BY_COMMAND_LINE, &e), &e);
    assert_failed(dataset_open_knobs(&d, &k, folder, 277, &nobody, &e), ERR_IO, &e, "nowhere.txt");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_llama),        cmocka_unit_test(test_gpt2),
        cmocka_unit_test(test_one_document), cmocka_unit_test(test_run_on_records),
        cmocka_unit_test(test_vocabulary),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
