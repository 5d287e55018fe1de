// host.h - a source of requests in the thread that trains, for tests of hybrid runs.
#ifndef HAGGLE_TESTS_TRAIN_HOST_H
#define HAGGLE_TESTS_TRAIN_HOST_H

#include "harness.h"

enum { ROWS_MOST = 256, ANSWERS_MOST = 1 << 15 };

// A source in the same thread. It says when it has a request, and remembers the answers.
struct host {
    struct guest_source source;
    int64_t rows;
    int32_t tokens[ROWS_MOST], targets[ROWS_MOST], positions[ROWS_MOST], starts[ROWS_MOST];
    int per_call;          // evaluations ready at each question
    bool only_inside;      // and none where a training sample might run
    int64_t train_after;   // a training sample after every this many steps; 0: none
    const struct run *run; // the run whose steps are counted
    int64_t trained_at;    // the step after which the last training sample was given
    int left;              // evaluations left in this call
    int n, begun, ended;   // answers; calls
    // Answers to training samples; answers given where only evaluations may run.
    int n_train, n_inside;
    struct guest_answer answers[ANSWERS_MOST];
    enum guest_kind kinds[ANSWERS_MOST];
};

static inline int host_begin(void *arg, struct err *e) {
    struct host *h = arg;
    (void)e;
    h->begun++;
    return 0;
}

static inline bool host_next(void *arg, bool train, struct guest_sample *out) {
    struct host *h = arg;
    enum guest_kind kind = GUEST_EVALUATE;
    assert_int_equal(h->begun, h->ended + 1);
    if ((train && h->only_inside) || h->n >= ANSWERS_MOST / 2)
        return false;
    if (train && h->train_after > 0 && h->run->last % h->train_after == 0 &&
        h->trained_at != h->run->last) {
        kind = GUEST_TRAIN;
        h->trained_at = h->run->last;
    } else if (h->left-- <= 0) {
        h->left = h->per_call;
        return false;
    }
    h->n_inside += !train;
    *out = (struct guest_sample){.kind = kind,
                                 .arrived_ns = 1,
                                 .rows = {h->tokens, h->targets, h->positions, h->starts},
                                 .tokens = h->rows,
                                 .trained_tokens = h->rows};
    return true;
}

static inline void host_answer(void *arg, const struct guest_sample *s,
                               const struct guest_answer *a) {
    struct host *h = arg;
    assert_true(h->n < ANSWERS_MOST);
    h->n_train += s->kind == GUEST_TRAIN;
    h->kinds[h->n] = s->kind;
    h->answers[h->n++] = *a;
}

static inline void host_end(void *arg) {
    ((struct host *)arg)->ended++;
}

// Prepares a source whose samples have `rows` columns. Every `seq` of them are a document.
static inline void host_init(struct host *h, int64_t rows, int64_t seq) {
    *h = (struct host){
        .source = {.begin = host_begin, .next = host_next, .answer = host_answer, .end = host_end},
        .rows = rows,
        .trained_at = -1};
    h->source.arg = h;
    assert_true(rows <= ROWS_MOST);
    for (int64_t i = 0; i < rows; i++) {
        h->tokens[i] = (int32_t)(i * 37 % 256);
        h->targets[i] = (int32_t)((i + 1) * 37 % 256);
        h->positions[i] = (int32_t)(i % seq);
        h->starts[i] = 0;
    }
}

static inline void assert_same_losses(const struct run *a, const struct run *b, int64_t steps) {
    for (int64_t i = 0; i < steps; i++)
        if (memcmp(&a->losses[i], &b->losses[i], sizeof(double)) != 0)
            fail_msg("step %lld: %.17g and %.17g", (long long)i + 1, a->losses[i], b->losses[i]);
}

// Runs both, the second with every op observed. Its requests must not change what the run trains.
static inline void run_alone_and_with(struct run *plain, struct run *with, int64_t steps) {
    with->checking = true;
    run_go(plain);
    run_go(with);
    assert_ran(plain);
    assert_ran(with);
    assert_same_losses(plain, with, steps);
    assert_same_tensors(plain->dir, with->dir, steps);
    assert_true(plain->eval.loss == with->eval.loss);
}

#endif
