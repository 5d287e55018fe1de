// test_fit.c - the advice in a refusal is true. Each change keeps the tokens per step, fits the
// budget that refused, runs within it, and trains the same losses where it says so. A run that is
// refused has written nothing.
#include "train/harness.h"

#include "predict/fit.h"
#include "predict/predict.h"
#include "train/buffers.h"
#include "skips.h"

#include <malloc.h>

struct case_of { // a run at a budget
    struct at_work s;
    struct trainer *t;
    struct knobs knobs;
};

static void open_case(struct case_of *c, const struct knobs *k, uint64_t memory, struct err *e) {
    const struct trainer_options to = {0};
    c->knobs = *k;
    c->knobs.memory = memory;
    struct plan_options so = {.knobs = &c->knobs, .programs = {PLAN_TRAIN}, .real = DTYPE_F32};
    assert_worked(at_work_plan(&c->s, &so, e), e);
    assert_worked(trainer_at_work(&c->t, &c->s, &to, e), e);
}

static void close_case(struct case_of *c) {
    trainer_close(c->t);
    at_work_close(&c->s);
}

// The built-in tiny model. Most of its memory is activations.
static void tiny_knobs(struct knobs *k) {
    struct err e = {0};
    static const char *const settings[] = {
        "model=tiny",       "device=cpu",   "threads=1",    "batch.micro=8",   "batch.accum=2",
        "seq=64",           "steps=1",      "eval.every=0", "save.last=false", "sched.warmup=0",
        "cpu.blas=builtin", "resume=false", "save.every=0"};
    knobs_init(k);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        assert_worked(knobs_set_assignment(k, settings[i], SET_BY_COMMAND_LINE, &e), &e);
}

static uint64_t need_of(const struct knobs *k) {
    struct case_of c;
    struct err e = {0};
    struct plan_room room;
    open_case(&c, k, 0, &e);
    assert_worked(at_work_ready(&c.s, NULL, &e), &e);
    assert_worked(engine_room(c.s.engine, &c.s.plan, &room, &e), &e);
    const uint64_t need = engine_need_bytes(c.s.engine, &c.s.plan);
    close_case(&c);
    return need;
}

static int count(void *arg, struct plan *p, struct err *e) {
    return buffers_count(arg, p, e);
}

static void find(const struct knobs *k, uint64_t memory, struct fit *out) {
    const struct hw_device device = predict_nominal_device(false);
    struct case_of c;
    struct err e = {0};
    open_case(&c, k, memory, &e);
    assert_failed(
        at_work_ready(&c.s, NULL, &e), ERR_MEMORY, &e,
        "the budget (memory=)|weights|gradients|optimizer|activations|slack|loader|process");
    assert_null(c.s.engine->session); // nothing was taken
    struct buffers buffers = *trainer_buffers(c.t);
    struct plan_room room;
    assert_worked(engine_room(c.s.engine, &c.s.plan, &room, &e), &e);
    const struct fit_question q = {.plan = &c.s.plan,
                                   .have_bytes = room.bytes,
                                   .on_device = engine_on_device(c.s.engine),
                                   .types = c.s.engine->backend->info.types,
                                   .device = &device,
                                   .count = count,
                                   .count_arg = &buffers};
    assert_worked(fit_find(&q, out, &e), &e);
    close_case(&c);
}

struct seen {
    double loss;
};

static int on_step(void *arg, const struct train_step *step, struct err *e) {
    (void)e;
    ((struct seen *)arg)->loss = step->loss;
    return 0;
}

static double loss_of(const struct knobs *k) {
    struct seen seen = {0};
    malloc_trim(0); // as in a new process: pages that the search freed must not count for the run
    struct at_work s;
    struct trainer *t;
    struct err e = {0};
    const struct trainer_options to = {.observer = {.arg = &seen, .on_step = on_step}};
    struct plan_options so = {.knobs = k, .programs = {PLAN_TRAIN}, .real = DTYPE_F32};
    assert_worked(at_work_plan(&s, &so, &e), &e);
    assert_worked(trainer_at_work(&t, &s, &to, &e), &e);
    assert_worked(trainer_run(t, NULL, &e), &e);
    assert_true(k->memory == 0 || engine_total_bytes(s.engine, &s.plan) <= k->memory);
    trainer_close(t);
    at_work_close(&s);
    return seen.loss;
}

// ---------------------------------------------------------------- tests

// Budgets from nearly enough to half of what is needed.
static void test_advice_holds(void **state) {
    (void)state;
    static const int percent[] = {95, 80, 65, 50};
    struct knobs k;
    tiny_knobs(&k);
    uint64_t need = need_of(&k);
    double loss = loss_of(&k);
    int found = 0;
    for (size_t i = 0; i < sizeof percent / sizeof *percent; i++) {
        struct fit fit;
        char text[FIT_SENTENCE_BYTES];
        uint64_t budget = need / 100 * (uint64_t)percent[i];
        find(&k, budget, &fit);
        fit_sentence(&fit, text);
        print_message("%d %%: %s\n", percent[i], text);
        for (int c = 0; c < fit.n; c++) {
            const struct fit_change *change = &fit.changes[c];
            assert_true(change->bytes <= budget);
            assert_true(c == 0 || change->seconds >= fit.changes[c - 1].seconds);
            assert_int_equal(change->knobs.batch_micro * change->knobs.batch_accum,
                             k.batch_micro * k.batch_accum);
            assert_int_equal(change->knobs.memory, budget);
            assert_non_null(strstr(text, change->text));
            struct knobs taken = change->knobs;
            if (UNDER_SANITIZER) // a sanitizer's memory grows from run to run
                taken.memory = 0;
            double other = loss_of(&taken);
            if (!change->math && !(fabs(other - loss) <= 1e-6 * loss))
                fail_msg("%s: loss %.9g, before %.9g", change->text, other, loss);
        }
        found += fit.n;
    }
    assert_true(found >= (UNDER_SANITIZER ? 1 : 6));
}

// If no single change is enough, two changes are found together.
static void test_combinations(void **state) {
    (void)state;
    struct knobs k;
    struct fit fit;
    if (UNDER_SANITIZER) // the budget lies between two plans, and the process grows
        skip_because("a sanitizer's memory would be counted");
    tiny_knobs(&k);
    uint64_t need = need_of(&k);
    find(&k, need / 100 * 95, &fit);
    find(&k, fit.least.bytes - (1 << 16), &fit); // just below the best that one change can do
    assert_true(fit.n >= 1);
    for (int c = 0; c < fit.n; c++)
        assert_true(fit.changes[c].knobs_changed >= 2);
}

static void test_nothing_fits(void **state) {
    (void)state;
    struct knobs k;
    struct fit fit;
    char text[FIT_SENTENCE_BYTES];
    tiny_knobs(&k);
    find(&k, 4 << 20, &fit); // more than the weights, less than weights and moments
    assert_int_equal(fit.n, 0);
    assert_int_equal(fit.seq, -1);
    assert_true(fit.least.bytes > 4 << 20 && fit.least.bytes < fit.need);
    assert_non_null(strstr(fit_sentence(&fit, text), "No change"));
    assert_non_null(strstr(text, fit.least.text));
    assert_non_null(strstr(text, "Use a smaller model or more memory"));
}

// A shorter seq is advised only when it is enough.
static void test_shorter_fits(void **state) {
    (void)state;
    struct knobs k;
    struct fit fit;
    char text[FIT_SENTENCE_BYTES], seq[32];
    if (UNDER_SANITIZER)
        skip();
    tiny_knobs(&k);
    find(&k, 4 << 20, &fit);
    find(&k, fit.least.bytes + FIT_MARGIN_BYTES - (1 << 16), &fit);
    assert_int_equal(fit.n, 0);
    assert_in_range(fit.seq, 1, k.seq / 2);
    snprintf(seq, sizeof seq, "It fits with seq=%d", (int)fit.seq);
    assert_non_null(strstr(fit_sentence(&fit, text), seq));
    struct knobs shorter = fit.least.knobs;
    shorter.seq = fit.seq;
    assert_true(need_of(&shorter) <= fit.have);
}

// Where the weights alone are too large, no setting is tried but an adapter, whose base needs no
// masters.
static void test_weights_alone(void **state) {
    (void)state;
    struct knobs k;
    struct fit fit;
    char text[FIT_SENTENCE_BYTES];
    tiny_knobs(&k);
    find(&k, 1 << 20, &fit);
    assert_true(fit.planned > 0 && fit.planned <= 3);
    assert_non_null(strstr(fit_sentence(&fit, text), "The weights alone take 2.97 MiB"));
    assert_null(strstr(text, "seq"));
    assert_null(strstr(text, "An adapter (LoRA)")); // it was tried, and is too large as well
    assert_int_equal(fit.adapter.knobs.lora_rank, 16);
}

// Where an adapter fits, the advice says what it needs, and that is true. It is no advice for a run
// that has one.
static void test_adapter_fits(void **state) {
    (void)state;
    struct knobs k, adapter;
    struct fit fit;
    struct err e = {0};
    char text[FIT_SENTENCE_BYTES];
    tiny_knobs(&k);
    adapter = k;
    assert_worked(knobs_set_assignment(&adapter, "lora.rank=16", SET_BY_COMMAND_LINE, &e), &e);
    const uint64_t budget = need_of(&adapter) + 2 * FIT_MARGIN_BYTES;
    assert_true(budget < need_of(&k));
    find(&k, budget, &fit);
    assert_non_null(strstr(fit_sentence(&fit, text), "An adapter (LoRA)"));
    assert_non_null(strstr(text, fit.adapter.text));
    assert_non_null(strstr(fit.adapter.text, "lora.rank=16"));
    assert_true(fit.adapter.bytes + FIT_MARGIN_BYTES <= budget);
    struct knobs taken = fit.adapter.knobs;
    if (UNDER_SANITIZER)
        taken.memory = 0;
    assert_true(isfinite(loss_of(&taken))); // within the budget
    find(&adapter, need_of(&adapter) / 100 * 90, &fit);
    assert_null(strstr(fit_sentence(&fit, text), "An adapter"));
}

// An element type that the backend lacks is never advised.
static void test_precision(void **state) {
    (void)state;
    struct knobs k;
    struct fit fit;
    struct case_of c;
    struct err e = {0};
    tiny_knobs(&k);
    open_case(&c, &k, 0, &e);
    assert_worked(at_work_ready(&c.s, NULL, &e), &e);
    bool has = engine_has_precision(c.s.engine, PRECISION_BF16);
    close_case(&c);
    for (uint64_t share = 4; share < 10; share++) {
        find(&k, need_of(&k) / 10 * share, &fit);
        for (int i = 0; i < fit.n; i++)
            assert_true(has || fit.changes[i].knobs.precision == PRECISION_FP32);
    }
}

static void test_refused_run_writes_nothing(void **state) {
    const struct scratch *scratch = *state;
    struct run r;
    run_init(&r, scratch, "refused");
    run_set(&r, "memory=1MiB");
    run_go(&r);
    assert_failed(r.rc, ERR_MEMORY, &r.e, "the run needs|process");
    assert_false(file_exists(r.dir));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_advice_holds),  cmocka_unit_test(test_combinations),
        cmocka_unit_test(test_nothing_fits),  cmocka_unit_test(test_shorter_fits),
        cmocka_unit_test(test_weights_alone), cmocka_unit_test(test_adapter_fits),
        cmocka_unit_test(test_precision),     cmocka_unit_test(test_refused_run_writes_nothing),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
