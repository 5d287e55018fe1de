// sensitive.c - see sensitive.h.
#include "train/sensitive.h"

#include "engine/engine.h"
#include "model/load.h"
#include "train/rounded.h"
#include "train/windows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct asking {
    const struct score *data;
    const struct score_listener *l;
    struct sensitive *out;
    struct plan plan;
    struct engine *engine;
    struct windows windows;
    struct rounded *matrices;
    int n, logits;
    int64_t rows, vocab;      // of the logits
    float *source, *now;      // logits [rows][vocab]
    float *values, *original; // of a matrix
    struct err *e;
};

// ---------------------------------------------------------------- opening

static int open_source(struct asking *a, enum dataset_split split, const struct quantized *s) {
    struct knobs k = a->data->knobs;
    struct model_shape shape;
    bool folder;
    const double hyper[HYPER_COUNT] = {[HYPER_LOSS_FACTOR] = 1};
    const struct plan_options o = {
        .knobs = &k, .programs = {PLAN_EVAL}, .real = DTYPE_F32, .keep_logits = true};
    TRY(model_shape_open(&shape, k.model, &folder, a->e));
    struct model_param p;
    double matrices = 0, elements = 0;
    for (int64_t i = 0; model_param_at(&shape, i, &p); i++)
        if (!storage_plain(quantized_as(s, &p)))
            matrices++, elements += (double)p.dims[0] * (double)p.dims[1];
    double tokens = SENSITIVE_WORK / (2 * elements * (matrices + 1));
    tokens = fmin(fmax(tokens, SENSITIVE_LEAST), SENSITIVE_MOST);
    if ((double)k.seq > tokens)
        k.seq = (int64_t)tokens;
    student_knobs(&k, 1);
    k.batch_micro = (int64_t)tokens / k.seq;
    TRY(plan_make(&a->plan, &o, a->e));
    TRY(engine_start(&a->engine, NULL, &a->plan, a->e));
    TRY(session_set_hyper(a->engine->session, hyper, a->e));
    TRY(rounded_list(&a->matrices, &a->n, &a->plan, s, a->e));
    TRY(windows_open(&a->windows, a->data->data, split, k.batch_micro, k.seq, a->e));
    a->logits = plan_tensor(&a->plan, PLAN_EVAL, NAME_LOGITS);
    a->rows = k.batch_micro * k.seq, a->vocab = shape.vocab;
    return 0;
}

static int take_memory(struct asking *a) {
    const size_t logits = (size_t)(a->rows * a->vocab) * sizeof(float);
    const size_t most = (size_t)rounded_largest(a->matrices, a->n) * sizeof(float);
    a->source = malloc(logits);
    a->now = malloc(logits);
    a->values = malloc(most + 1);
    a->original = malloc(most + 1);
    a->out->all = calloc((size_t)a->n + 1, sizeof *a->out->all);
    return a->source && a->now && a->values && a->original && a->out->all
               ? 0
               : err_set(a->e, ERR_MEMORY, "out of memory to ask what each matrix does");
}

// ---------------------------------------------------------------- one matrix

static int compute(struct asking *a, float *out) {
    struct session *s = a->engine->session;
    TRY(session_run(s, PLAN_EVAL, windows_feed, &a->windows, NULL, a->e));
    return exec_read(s->exec, 0, a->logits, out, (uint64_t)(a->rows * a->vocab) * sizeof *out,
                     a->e);
}

struct comparing {
    const struct asking *a;
    double *sums; // of each row
};

static double log_sum(const float *x, int64_t n) {
    float most = x[0];
    double sum = 0;
    for (int64_t i = 1; i < n; i++)
        most = x[i] > most ? x[i] : most;
    for (int64_t i = 0; i < n; i++)
        sum += (double)expf(x[i] - most);
    return (double)most + log(sum);
}

static void compare_share(void *arg, int thread, int threads) {
    const struct comparing *c = arg;
    const struct asking *a = c->a;
    int64_t begin, end;
    pool_share(a->rows, 1, thread, threads, &begin, &end);
    for (int64_t row = begin; row < end; row++) {
        const float *x = a->source + row * a->vocab, *y = a->now + row * a->vocab;
        c->sums[row] = 0;
        if (a->windows.arrays[1][row] < 0)
            continue;
        const double p = log_sum(x, a->vocab), q = log_sum(y, a->vocab);
        for (int64_t i = 0; i < a->vocab; i++) {
            const double lp = (double)x[i] - p;
            c->sums[row] += exp(lp) * (lp - ((double)y[i] - q));
        }
    }
}

static int divergence(struct asking *a, double *out) {
    struct comparing c = {a, malloc((size_t)a->rows * sizeof *c.sums)};
    double sum = 0;
    if (!c.sums)
        return err_set(a->e, ERR_MEMORY, "out of memory for divergences");
    pool_run(a->engine->pool, compare_share, &c);
    for (int64_t i = 0; i < a->rows; i++)
        sum += c.sums[i];
    free(c.sums);
    *out = a->windows.trained > 0 && sum > 0 ? sum / (double)a->windows.trained : 0;
    return isfinite(sum)
               ? 0
               : err_set(a->e, ERR_NUMERIC, "a logit is not finite: the weights of %s are damaged",
                         a->plan.knobs.model);
}

static int ask(struct asking *a, struct rounded *r, struct weights *from,
               struct sensitive_matrix *out) {
    struct session *s = a->engine->session;
    TRY(quantized_load(from, r->storage, &r->param, r->bytes, a->e));
    TRY(rounded_read(r, s, r->tensor, a->original, a->e));
    TRY(rounded_put(r, s, a->values, a->e));
    TRY(compute(a, a->now));
    TRY(rounded_write(r, s, a->original, a->e));
    *out = (struct sensitive_matrix){.elements = rounded_elements(r)};
    snprintf(out->name, sizeof out->name, "%s", r->param.name);
    return divergence(a, &out->kl);
}

// ---------------------------------------------------------------- all

static int by_kl(const void *x, const void *y) {
    const struct sensitive_matrix *a = x, *b = y;
    return a->kl > b->kl ? -1 : a->kl < b->kl ? 1 : strcmp(a->name, b->name);
}

static int ask_all(struct asking *a, const char *dir) {
    struct weights *from;
    TRY(weights_open(&from, dir, a->e));
    int rc = windows_fetch(&a->windows, 0, a->e);
    if (rc == 0)
        rc = compute(a, a->source);
    for (int i = 0; rc == 0 && i < a->n; i++) {
        if (a->l->stop && *a->l->stop)
            rc = err_set(a->e, ERR_STOPPED, "stopped on request, after %d of %d matrices", i, a->n);
        if (rc == 0)
            rc = ask(a, &a->matrices[i], from, &a->out->all[a->out->n++]);
        if (rc == 0 && a->l->progress)
            a->l->progress(a->l->arg, (uint64_t)i + 1, (uint64_t)a->n);
    }
    weights_close(from);
    a->out->tokens = (uint64_t)a->windows.trained;
    for (int i = 0; rc == 0 && i < a->out->n; i++)
        a->out->sum += a->out->all[i].kl;
    qsort(a->out->all, (size_t)a->out->n, sizeof *a->out->all, by_kl);
    return rc;
}

int sensitive_measure(struct sensitive *out, const struct score *data, enum dataset_split split,
                      const char *dir, const struct score_listener *l, struct err *e) {
    struct asking a = {.data = data, .l = l, .out = out, .plan = {.prefix = ""}, .e = e};
    struct model_shape shape;
    struct quantized stored = {0};
    bool folder;
    *out = (struct sensitive){0};
    int rc = model_shape_open(&shape, dir, &folder, e);
    if (rc == 0)
        rc = quantized_read(&stored, dir, &shape, e);
    if (rc == 0)
        rc = open_source(&a, split, &stored);
    if (rc == 0)
        rc = take_memory(&a);
    if (rc == 0)
        rc = ask_all(&a, dir);
    rounded_free(a.matrices, a.n);
    windows_close(&a.windows);
    engine_close(a.engine);
    plan_free(&a.plan);
    quantized_free(&stored);
    free(a.source);
    free(a.now);
    free(a.values);
    free(a.original);
    return rc;
}

void sensitive_free(struct sensitive *s) {
    free(s->all);
    *s = (struct sensitive){0};
}

// ---------------------------------------------------------------- what should be wider

static int by_gain(const void *x, const void *y) {
    const struct sensitive_matrix *a = x, *b = y;
    const double gain_a = a->kl / (double)a->elements, gain_b = b->kl / (double)b->elements;
    return gain_a > gain_b ? -1 : gain_a < gain_b ? 1 : by_kl(x, y);
}

int sensitive_choose(struct sensitive *s, double kl, double limit, int least) {
    double left = s->sum;
    int n = 0;
    qsort(s->all, (size_t)s->n, sizeof *s->all, by_gain);
    while (n < s->n && s->sum > 0 && (n < least || kl * left / s->sum > limit))
        left -= s->all[n++].kl;
    return n;
}
