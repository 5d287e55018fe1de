// steps.h - a session that takes a few optimizer steps on made-up batches, and its results. It is
// for tests that compare two configurations.
#ifndef HAGGLE_TESTS_TRAIN_STEPS_H
#define HAGGLE_TESTS_TRAIN_STEPS_H

#include "harness.h"

#include "base/rng.h"

struct steps_batch {
    int32_t *tokens, *targets, *positions, *doc_start; // [rows of all micro-batches]
    int64_t rows;                                      // of one micro-batch
    int64_t trained;
};

// Rows of `seq` tokens. The second half of each row is a separate document. Rows are trained up to
// different lengths (the first row of a step not at all, if there are several), and every fifth
// target is masked. Row r of step n is the same however rows are grouped into micro-batches.
static inline struct steps_batch steps_make_batch(const struct at_work *s, int number) {
    const int64_t T = s->plan.knobs.seq,
                  all = s->plan.knobs.batch_micro * s->plan.knobs.batch_accum * T;
    struct steps_batch b = {.rows = s->plan.knobs.batch_micro * T};
    int32_t *block = malloc((size_t)(4 * all) * sizeof *block);
    assert_non_null(block);
    b.tokens = block, b.targets = block + all, b.positions = block + 2 * all;
    b.doc_start = block + 3 * all;
    for (int64_t i = 0; i < all; i++) {
        int64_t column = i % T, start = column >= T / 2 ? T / 2 : 0;
        uint64_t at = (uint64_t)i + 1000003u * (uint64_t)number;
        uint64_t row = (uint64_t)(i / T) + 1009u * (uint64_t)number;
        int64_t length = i < T && all > T ? 0 : T - (int64_t)rng_below(11, 4, row, (uint64_t)T);
        bool skip = column >= length || rng_below(11, 3, at, 5) == 0;
        b.tokens[i] = (int32_t)rng_below(11, 1, at, (uint64_t)s->plan.shape.vocab);
        b.targets[i] = skip ? -1 : (int32_t)rng_below(11, 2, at, (uint64_t)s->plan.shape.vocab);
        b.positions[i] = (int32_t)(column - start);
        b.doc_start[i] = (int32_t)start;
        b.trained += !skip;
    }
    return b;
}

static inline int steps_feed(void *arg, int micro, struct exec_batch *out, struct err *e) {
    const struct steps_batch *b = arg;
    int64_t at = micro * b->rows;
    (void)e;
    *out =
        (struct exec_batch){b->tokens + at, b->targets + at, b->positions + at, b->doc_start + at};
    return 0;
}

static inline void steps_knobs(struct knobs *k, const char *model, int64_t micro, int64_t accum,
                               int64_t seq) {
    knobs_init(k);
    k->threads = 2, k->device = DEVICE_CPU;
    k->batch_micro = micro, k->batch_accum = accum, k->seq = seq;
    snprintf(k->model, sizeof k->model, "%s", model);
}

static inline int steps_open(struct at_work *s, const struct knobs *k, bool reference,
                             struct err *e) {
    const struct plan_options o = {
        .knobs = k, .programs = {PLAN_TRAIN, PLAN_EVAL}, .real = DTYPE_F32};
    const struct engine_options eo = {.reference = reference};
    TRY(at_work_plan(s, &o, e));
    return at_work_start(s, &eo, e);
}

// The loss of step `number`.
static inline double steps_take_at(struct at_work *s, int number, double lr) {
    struct err e = {0};
    struct steps_batch b = steps_make_batch(s, number);
    double results[RESULT_COUNT], h[HYPER_COUNT] = {[HYPER_LR] = lr,
                                                    [HYPER_BETA1] = 0.9,
                                                    [HYPER_BETA2] = 0.95,
                                                    [HYPER_EPS] = 1e-8,
                                                    [HYPER_DECAY] = 0.1,
                                                    [HYPER_CLIP] = 1,
                                                    [HYPER_BIAS1] = 1 - pow(0.9, number + 1),
                                                    [HYPER_BIAS2] = 1 - pow(0.95, number + 1),
                                                    [HYPER_LOSS_FACTOR] = 1.0 / (double)b.trained,
                                                    [HYPER_DRAW] = 1e9 + number};
    assert_worked(session_set_hyper(s->s, h, &e), &e);
    assert_worked(session_run(s->s, PLAN_TRAIN, steps_feed, &b, NULL, &e), &e);
    assert_worked(session_get_results(s->s, results, NULL, &e), &e);
    free(b.tokens);
    return results[RESULT_LOSS_SUM] / results[RESULT_TOKENS];
}

static inline double steps_take(struct at_work *s, int number) {
    return steps_take_at(s, number, 1e-3);
}

static inline void *steps_tensor(const struct at_work *s, const char *name,
                                 const struct tensor **out) {
    int t = plan_tensor(&s->plan, PLAN_TRAIN, name);
    if (t < 0)
        fail_msg("the training program has no '%s'", name);
    if (out)
        *out = &plan_program(&s->plan, PLAN_TRAIN)->tensors[t];
    return exec_host_address(s->s->exec, plan_find(&s->plan, PLAN_TRAIN), t);
}

// Checks that every weight of a equals that of b to the bit.
static inline void steps_assert_same_weights(const struct at_work *a, const struct at_work *b) {
    struct model_param p;
    for (int64_t i = 0; model_param_at(&a->plan.shape, i, &p); i++) {
        const struct tensor *t;
        const void *x = steps_tensor(a, p.name, &t), *y = steps_tensor(b, p.name, NULL);
        if (memcmp(x, y, (size_t)tensor_elements(t) * dtype_bytes(t->dtype)) != 0)
            fail_msg("%s differs", p.name);
    }
}

// The L2 norm of the difference of a parameter's gradients (they need keep_gradients), and of a's
// gradient.
static inline void steps_compare_gradient(const struct at_work *a, const struct at_work *b,
                                          const char *parameter, double *diff, double *norm) {
    char name[200];
    const struct tensor *t;
    double d = 0, n = 0;
    snprintf(name, sizeof name, "d.%s", parameter);
    const float *x = steps_tensor(a, name, &t), *y = steps_tensor(b, name, NULL);
    for (int64_t k = 0; k < tensor_elements(t); k++) {
        d += ((double)x[k] - y[k]) * ((double)x[k] - y[k]);
        n += (double)x[k] * x[k];
    }
    *diff = sqrt(d), *norm = sqrt(n);
}

// The bytes of all tensors of a class in the training program, every copy counted.
static inline uint64_t steps_class_bytes(const struct at_work *s, enum tensor_class cls) {
    const struct program *p = plan_program(&s->plan, PLAN_TRAIN);
    uint64_t bytes = 0;
    for (int i = 0; i < p->n_tensors; i++)
        if (p->tensors[i].root < 0 && p->tensors[i].cls == cls)
            bytes += p->tensors[i].bytes * (uint64_t)p->tensors[i].slots;
    return bytes;
}

#endif
