// likeness.c - see likeness.h.
#include "train/likeness.h"

#include "engine/engine.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ARRAYS = 4, SUMS = 4 }; // tokens, targets, positions, doc_start

struct side { // a model
    struct plan plan;
    struct engine *engine;
    int program, logits;
    enum dtype type;
    int64_t ld;
    char *raw;  // [T][ld] of its type
    float *row; // [V]
};

struct comparing {
    const struct score *data;
    const struct score_listener *l;
    struct side sides[2];
    int32_t *arrays[ARRAYS]; // [T] each
    void *scratch;
    // Per window: divergence, losses of both, tokens.
    double *sums[SUMS];
    uint64_t same;
    struct likeness *out;
    struct err *e;
};

// folder, precision: in place of the data's; NULL: the same.
static int open_side(struct comparing *x, struct side *s, const char *folder,
                     const char *precision) {
    struct knobs k;
    const struct plan_options o = {
        .knobs = &k, .programs = {PLAN_EVAL}, .real = DTYPE_F32, .keep_logits = true};
    const double hyper[HYPER_COUNT] = {[HYPER_LOSS_FACTOR] = 1};
    score_plan_knobs(x->data, &k);
    k.batch_micro = 1;
    if (folder)
        TRY(knobs_set_at(&k, KNOB_model, folder, SET_BY_PLANNER, x->e));
    if (precision)
        TRY(knobs_set_at(&k, KNOB_precision, precision, SET_BY_PLANNER, x->e));
    TRY(plan_make(&s->plan, &o, x->e));
    TRY(engine_start(&s->engine, NULL, &s->plan, x->e));
    TRY(session_set_hyper(s->engine->session, hyper, x->e));
    s->program = plan_find(&s->plan, PLAN_EVAL);
    s->logits = plan_tensor(&s->plan, PLAN_EVAL, NAME_LOGITS);
    const struct tensor *t = &s->plan.programs[s->program]->tensors[s->logits];
    s->type = t->dtype;
    s->ld = t->ld;
    s->raw = malloc(t->bytes + 1);
    s->row = malloc((size_t)t->ld * sizeof *s->row + 1);
    return s->raw && s->row
               ? 0
               : err_set(x->e, ERR_MEMORY, "out of memory for the logits of %" PRId64 " tokens",
                         x->data->knobs.seq);
}

static void close_side(struct side *s) {
    free(s->row);
    free(s->raw);
    engine_close(s->engine);
    plan_free(&s->plan);
}

static int take_memory(struct comparing *x) {
    const size_t T = (size_t)x->data->knobs.seq, windows = (size_t)x->data->windows;
    bool all = true;
    for (int i = 0; i < ARRAYS; i++)
        all &= (x->arrays[i] = calloc(T + 1, sizeof *x->arrays[i])) != NULL;
    for (int i = 0; i < SUMS; i++)
        all &= (x->sums[i] = calloc(windows + 1, sizeof *x->sums[i])) != NULL;
    all &= (x->scratch = malloc(dataset_scratch_bytes(x->data->data) + 1)) != NULL;
    if (!all)
        return err_set(x->e, ERR_MEMORY, "out of memory for comparing two models");
    dataset_scratch_clear(x->data->data, x->scratch);
    return 0;
}

static int feed(void *arg, int micro, struct exec_batch *out, struct err *e) {
    const struct comparing *x = arg;
    (void)micro;
    (void)e;
    *out = (struct exec_batch){x->arrays[0], x->arrays[1], x->arrays[2], x->arrays[3]};
    return 0;
}

static int compute(struct comparing *x, struct side *s) {
    struct session *session = s->engine->session;
    const struct tensor *t = &s->plan.programs[s->program]->tensors[s->logits];
    TRY(session_run(session, PLAN_EVAL, feed, x, NULL, x->e));
    return exec_read(session->exec, s->program, s->logits, s->raw, t->bytes, x->e);
}

// The logits of a column, its likeliest token, and the logarithm of the sum of their exponentials.
static double read_row(struct side *s, int64_t column, int64_t vocab, int64_t *top) {
    double sum = 0;
    dtype_convert(s->row, DTYPE_F32, s->raw + (size_t)(column * s->ld) * dtype_bytes(s->type),
                  s->type, (size_t)vocab);
    *top = 0;
    for (int64_t i = 1; i < vocab; i++)
        *top = s->row[i] > s->row[*top] ? i : *top;
    const double most = (double)s->row[*top];
    for (int64_t i = 0; i < vocab; i++)
        sum += exp((double)s->row[i] - most);
    return most + log(sum);
}

static int compare_column(struct comparing *x, uint64_t window, int64_t column, int32_t target) {
    const int64_t V = x->data->vocab;
    int64_t top[2];
    double lse[2], kl = 0;
    for (int i = 0; i < 2; i++)
        lse[i] = read_row(&x->sides[i], column, V, &top[i]);
    const float *a = x->sides[0].row, *b = x->sides[1].row;
    for (int64_t i = 0; i < V; i++) {
        const double p = (double)a[i] - lse[0], q = (double)b[i] - lse[1];
        kl += exp(p) * (p - q);
    }
    if (!isfinite(kl) || !isfinite(lse[0]) || !isfinite(lse[1]))
        return err_set(x->e, ERR_NUMERIC,
                       "%s: a logit is not finite: its weights are damaged, or precision=%s is "
                       "too narrow for them",
                       x->sides[isfinite(lse[0]) ? 1 : 0].plan.knobs.model,
                       knob_choice(KNOB_precision, (int)x->data->knobs.precision));
    kl = kl > 0 ? kl : 0; // the sum's rounding
    x->sums[0][window] += kl;
    x->sums[1][window] += lse[0] - (double)a[target];
    x->sums[2][window] += lse[1] - (double)b[target];
    x->sums[3][window] += 1;
    x->same += top[0] == top[1];
    x->out->kl_largest = kl > x->out->kl_largest ? kl : x->out->kl_largest;
    x->out->tokens++;
    return 0;
}

static int compare_window(struct comparing *x, uint64_t window) {
    const struct dataset_window w = {x->arrays[0], x->arrays[1], x->arrays[2], x->arrays[3]};
    TRY(dataset_fetch(x->data->data, SPLIT_VALIDATION, window, x->scratch, &w, x->e));
    for (int i = 0; i < 2; i++)
        TRY(compute(x, &x->sides[i]));
    for (int64_t t = 0; t < x->data->knobs.seq; t++)
        if (w.targets[t] >= 0)
            TRY(compare_column(x, window, t, w.targets[t]));
    if (x->l->progress)
        x->l->progress(x->l->arg, window + 1, x->data->windows);
    return 0;
}

static int compare_all(struct comparing *x) {
    for (uint64_t i = 0; i < x->data->windows; i++) {
        if (x->l->stop && *x->l->stop)
            return err_set(x->e, ERR_STOPPED,
                           "stopped on request, after %" PRIu64 " of %" PRIu64 " windows", i,
                           x->data->windows);
        TRY(compare_window(x, i));
    }
    struct likeness *out = x->out;
    const size_t n = (size_t)x->data->windows;
    if (out->tokens == 0)
        return err_set(x->e, ERR_USAGE, "the data has no token that is scored");
    out->windows = x->data->windows;
    out->kl = rate_of(x->sums[0], x->sums[3], n);
    for (int i = 0; i < 2; i++)
        out->loss[i] = rate_of(x->sums[1 + i], x->sums[3], n);
    out->difference = rate_difference(x->sums[2], x->sums[3], x->sums[1], x->sums[3], n);
    out->same_top = (double)x->same / (double)out->tokens;
    return 0;
}

static int measure(const struct score *data, const char *other, const char *precision,
                   const struct score_listener *l, struct likeness *out, struct err *e) {
    struct comparing x = {.data = data, .l = l, .out = out, .e = e};
    *out = (struct likeness){0};
    for (int i = 0; i < 2; i++)
        x.sides[i].plan.prefix = "";
    int rc = take_memory(&x);
    if (rc == 0)
        rc = open_side(&x, &x.sides[0], NULL, NULL);
    if (rc == 0)
        rc = open_side(&x, &x.sides[1], other, precision);
    if (rc == 0 && x.sides[1].plan.shape.vocab != data->vocab)
        rc = err_set(e, ERR_MISMATCH,
                     "the two models have vocabularies of %" PRId64 " and %" PRId64 " tokens",
                     data->vocab, x.sides[1].plan.shape.vocab);
    if (rc == 0)
        rc = compare_all(&x);
    for (int i = 0; i < 2; i++)
        close_side(&x.sides[i]);
    for (int i = 0; i < ARRAYS; i++)
        free(x.arrays[i]);
    for (int i = 0; i < SUMS; i++)
        free(x.sums[i]);
    free(x.scratch);
    return rc;
}

int likeness_measure(const struct score *data, const char *other, const struct score_listener *l,
                     struct likeness *out, struct err *e) {
    return measure(data, other, NULL, l, out, e);
}

int likeness_of_precision(const struct score *data, const char *precision,
                          const struct score_listener *l, struct likeness *out, struct err *e) {
    return measure(data, NULL, precision, l, out, e);
}
