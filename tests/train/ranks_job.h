// ranks_job.h - a run of all ranks as threads of this process, for tests that compare layouts:
// made-up batches, the weights of the whole model afterwards, and what every rank knows of each
// step.
#ifndef HAGGLE_TESTS_TRAIN_RANKS_JOB_H
#define HAGGLE_TESTS_TRAIN_RANKS_JOB_H

#include "harness.h"

#include "predict/predict.h"
#include "program/check.h"
#include "train/hyper.h"

#include <pthread.h>

enum { RANKS_MOST = 8, STEPS_MOST = 20 };

struct job { // one run of all ranks
    struct knobs knobs;
    struct plan_split split;
    int ranks;
    int steps;
    bool checking;
    struct comm_job *comm;
    float *weights; // of the whole model, in the order of model_param_at
    bool *given;    // of each weight: a rank has written it
    pthread_mutex_t lock;
    double losses[RANKS_MOST][STEPS_MOST], norms[RANKS_MOST][STEPS_MOST];
    int rc[RANKS_MOST];
    struct err e[RANKS_MOST];
};

struct rank {
    struct job *job;
    int rank, step;
    struct plan plan;
    struct engine *engine;
    int32_t *rows; // tokens (and targets, one further), positions, document starts
};

// ---------------------------------------------------------------- data

// Token i of a sample. Samples have documents of different lengths.
static inline int32_t token(uint64_t sample, int64_t i, int64_t vocab) {
    const uint64_t x = (sample * 1000003u + (uint64_t)i * 7919u) * 2654435761u;
    return (int32_t)(x >> 16) % (int32_t)vocab < 0 ? 0 : (int32_t)((x >> 16) % (uint64_t)vocab);
}

static inline int feed(void *arg, int micro, struct exec_batch *out, struct err *e) {
    struct rank *r = arg;
    const struct knobs *k = &r->plan.knobs;
    const int64_t T = k->seq, B = k->batch_micro, M = B * T, vocab = r->plan.shape.vocab;
    const uint64_t replicas = (uint64_t)mesh_size(&r->plan.ranks.mesh, AXIS_DATA),
                   me = (uint64_t)r->plan.ranks.mesh.at[AXIS_DATA];
    (void)e;
    int32_t *tokens = r->rows, *targets = tokens + M, *positions = targets + M,
            *starts = positions + M;
    for (int64_t b = 0; b < B; b++) {
        const uint64_t sample = (uint64_t)r->step * (uint64_t)plan_samples(&r->plan) +
                                ((uint64_t)micro * replicas + me) * (uint64_t)B + (uint64_t)b;
        const int64_t document = 5 + (int64_t)(sample % 7); // tokens of a document
        for (int64_t i = 0; i < T; i++) {
            tokens[b * T + i] = token(sample, i, vocab);
            targets[b * T + i] = i % 11 == 3 ? -1 : token(sample, i + 1, vocab);
            positions[b * T + i] = (int32_t)(i % document);
            starts[b * T + i] = (int32_t)(i / document * document);
        }
    }
    *out = (struct exec_batch){tokens, targets, positions, starts};
    return 0;
}

static inline int64_t trained_tokens(const struct plan *p) {
    int64_t n = 0;
    for (int64_t i = 0; i < p->knobs.seq; i++)
        n += i % 11 != 3;
    return n * plan_samples(p);
}

// ---------------------------------------------------------------- one rank

static inline int run_steps(struct rank *r, struct err *e) {
    struct job *j = r->job;
    struct session *s = r->engine->session;
    for (r->step = 0; r->step < j->steps; r->step++) {
        double hyper[HYPER_COUNT], results[RESULT_COUNT], clip[CLIP_COUNT];
        const struct hyper_step at = {.step = r->step,
                                      .update = r->step + 1,
                                      .trained_tokens = trained_tokens(&r->plan),
                                      .loss_scale = 1};
        hyper_fill(&j->knobs, &at, hyper);
        TRY(session_set_hyper(s, hyper, e));
        TRY(session_run(s, PLAN_TRAIN, feed, r, NULL, e));
        TRY(session_get_results(s, results, clip, e));
        if (results[RESULT_TOKENS] != (double)trained_tokens(&r->plan))
            return err_set(e, ERR_INTERNAL, "%g tokens trained", results[RESULT_TOKENS]);
        j->losses[r->rank][r->step] = results[RESULT_LOSS_SUM] / results[RESULT_TOKENS];
        j->norms[r->rank][r->step] = clip[CLIP_NORM];
    }
    return 0;
}

// Puts elements of a weight into the whole. What several ranks hold must be the same on each.
static inline int give(struct job *j, int64_t at, const float *values, int64_t n, struct err *e) {
    int rc = 0;
    pthread_mutex_lock(&j->lock);
    for (int64_t i = 0; i < n; i++) {
        if (j->given[at + i] && memcmp(&j->weights[at + i], &values[i], sizeof *values) != 0)
            rc = err_set(e, ERR_INTERNAL, "ranks hold different weights");
        j->weights[at + i] = values[i];
        j->given[at + i] = true;
    }
    pthread_mutex_unlock(&j->lock);
    return rc;
}

// Writes this rank's parts of the weights to their places in the whole.
static inline int give_weights(struct rank *r, struct err *e) {
    const struct program *p = plan_program(&r->plan, PLAN_TRAIN);
    struct model_param param;
    int64_t offset = 0;
    for (int64_t i = 0; model_param_at(&r->plan.shape, i, &param); i++) {
        const int64_t all = param.dims[0] * (param.rank > 1 ? param.dims[1] : 1);
        int t = program_find(p, param.name);
        if (t >= 0 && p->tensors[t].master >= 0)
            t = p->tensors[t].master;
        if (t >= 0) {
            const struct tensor *x = &p->tensors[t];
            // Another rank has the master of a 16-bit weight without one.
            const int64_t n = x->dtype == DTYPE_F32 ? tensor_elements(x) : 0;
            float *values = malloc((size_t)n * sizeof *values + 1);
            int rc = values ? exec_read(r->engine->session->exec, plan_find(&r->plan, PLAN_TRAIN),
                                        t, values, (uint64_t)n * sizeof *values, e)
                            : err_set(e, ERR_MEMORY, "no memory");
            int64_t logical, run;
            for (int64_t at = 0; rc == 0 && at < n; at += run) {
                tensor_run(x, at, &logical, &run);
                rc = give(r->job, offset + logical, values + at, run, e);
            }
            free(values);
            TRY(rc);
        }
        offset += all;
    }
    return 0;
}

static inline int work(struct rank *r, struct comm *c, struct err *e) {
    const struct knobs *k = &r->job->knobs;
    const struct plan_options o = {.knobs = k,
                                   .programs = {PLAN_TRAIN},
                                   .real = DTYPE_F32,
                                   .split = &r->job->split,
                                   .rank = r->rank};
    TRY(plan_make(&r->plan, &o, e));
    r->rows = malloc(4 * (size_t)(k->batch_micro * k->seq) * sizeof *r->rows);
    if (!r->rows)
        return err_set(e, ERR_MEMORY, "no memory");
    const struct engine_options options = {.comm = c, .checking = r->job->checking};
    TRY(engine_start(&r->engine, &options, &r->plan, e));
    TRY(run_steps(r, e));
    return give_weights(r, e);
}

static inline void *begin(void *arg) {
    struct rank *r = arg;
    struct job *j = r->job;
    struct comm *c = j->ranks > 1 ? comm_job_rank(j->comm, r->rank) : NULL;
    j->rc[r->rank] = work(r, c, &j->e[r->rank]);
    if (j->rc[r->rank] != 0 && c)
        c->give_up(c, j->e[r->rank].text);
    if (c)
        c->close(c);
    engine_close(r->engine);
    plan_free(&r->plan);
    free(r->rows);
    return NULL;
}

// ---------------------------------------------------------------- a job

static inline int64_t elements(const struct job *j) {
    struct model_shape s;
    struct err e = {0};
    bool is_dir;
    assert_worked(model_shape_open(&s, j->knobs.model, &is_dir, &e), &e);
    return model_total_elements(&s);
}

static inline void job_run(struct job *j) {
    struct rank ranks[RANKS_MOST];
    pthread_t threads[RANKS_MOST];
    struct err e = {0};
    const int n = j->ranks;
    memset(ranks, 0, sizeof ranks);
    j->weights = calloc((size_t)elements(j), sizeof *j->weights);
    j->given = calloc((size_t)elements(j), sizeof *j->given);
    assert_true(j->weights && j->given);
    pthread_mutex_init(&j->lock, NULL);
    assert_worked(comm_job_open(&j->comm, n, 20000000000u, &e), &e);
    for (int i = 0; i < n; i++) {
        ranks[i] = (struct rank){.job = j, .rank = i};
        assert_int_equal(pthread_create(&threads[i], NULL, begin, &ranks[i]), 0);
    }
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    comm_job_close(j->comm);
    for (int64_t i = 0, all = elements(j); i < all && j->rc[0] == 0; i++)
        assert_true(j->given[i]); // every element is somewhere
    for (int i = 0; i < n; i++)
        if (j->rc[i] != 0)
            fail_msg("rank %d: %s", i, j->e[i].text);
    for (int i = 1; i < n; i++) // every rank knows the same
        for (int s = 0; s < j->steps; s++)
            assert_true(j->losses[i][s] == j->losses[0][s] && j->norms[i][s] == j->norms[0][s]);
}

static inline void job_end(struct job *j) {
    pthread_mutex_destroy(&j->lock);
    free(j->weights);
    free(j->given);
    free(j);
}

// A setting as words: axes and stage of a layout ("tensor=2", "zero=1"), and knobs.
static inline void set(struct knobs *k, struct plan_split *l, int *ranks, const char *settings) {
    static const char *const schedules[] = {"gpipe", "1f1b", "interleaved"};
    char copy[512], *rest = copy;
    struct err e = {0};
    *l = (struct plan_split){.data = 1,
                             .tensor = 1,
                             .pipe = 1,
                             .schedule = SCHEDULE_1F1B,
                             .chunks = 2,
                             .bucket_bytes = 16384, // several buckets
                             .overlap = true,
                             .prefetch = 1};
    snprintf(copy, sizeof copy, "%s", settings);
    for (char *one; (one = strsep(&rest, " ")) != NULL;) {
        const char *value = strchr(one, '=') ? strchr(one, '=') + 1 : "";
        if (strncmp(one, "data=", 5) == 0)
            l->data = atoi(value);
        else if (strncmp(one, "tensor=", 7) == 0)
            l->tensor = atoi(value);
        else if (strncmp(one, "pipe=", 5) == 0)
            l->pipe = atoi(value);
        else if (strncmp(one, "zero=", 5) == 0)
            l->zero = atoi(value);
        else if (strncmp(one, "bucket=", 7) == 0)
            l->bucket_bytes = atoi(value);
        else if (strcmp(one, "checking") == 0)
            continue;
        else if (strcmp(one, "late") == 0)
            l->overlap = false;
        else if (strcmp(one, "micro") == 0)
            l->every_micro = true;
        else if (strncmp(one, "schedule=", 9) == 0) {
            for (int i = 0; i < 3; i++)
                if (strcmp(value, schedules[i]) == 0)
                    l->schedule = (enum apply_schedule)i;
        } else if (*one)
            assert_worked(knobs_set_assignment(k, one, SET_BY_COMMAND_LINE, &e), &e);
    }
    *ranks = l->data * l->tensor * l->pipe;
}

static inline struct job *job_of(const struct knobs *base, const char *settings, int steps) {
    struct job *j = calloc(1, sizeof *j);
    assert_non_null(j);
    j->knobs = *base;
    j->steps = steps;
    j->checking = strstr(settings, "checking") != NULL;
    set(&j->knobs, &j->split, &j->ranks, settings);
    job_run(j);
    return j;
}

// All ranks' programs together: messages and collectives match, and nobody waits for ever.
static inline void check_together(const struct knobs *base, const char *settings) {
    const struct hw_device device = {
        .name = "test", .matmul_flops = 1e12, .memory_bytes_per_s = 1e11, .op_overhead_s = 1e-6};
    const struct hw_link link = {"link", 1e10, 1e-6};
    struct knobs k = *base;
    struct plan_split split;
    struct plan plans[RANKS_MOST];
    struct program *programs[RANKS_MOST];
    struct prediction prediction;
    struct err e = {0};
    int n;
    set(&k, &split, &n, settings);
    for (int i = 0; i < n; i++) {
        const struct plan_options o = {.knobs = &k,
                                       .programs = {PLAN_TRAIN, PLAN_EVAL},
                                       .real = DTYPE_F32,
                                       .split = &split,
                                       .rank = i};
        assert_worked(plan_make(&plans[i], &o, &e), &e);
    }
    for (int which = 0; which < 2; which++) {
        for (int i = 0; i < n; i++)
            programs[i] = plan_program(&plans[i], which ? PLAN_EVAL : PLAN_TRAIN);
        assert_worked(check_world(programs, n, &e), &e);
        assert_worked(predict_programs(programs, n, &device, &link, &prediction, &e), &e);
        prediction_free(&prediction);
    }
    for (int i = 0; i < n; i++)
        plan_free(&plans[i]);
}

static inline void assert_near(const struct job *a, const struct job *b, const char *what) {
    const int64_t n = elements(a);
    for (int s = 0; s < a->steps; s++) {
        const double limit = s == 0 ? 1e-6 : 1e-4;
        if (!(fabs(a->losses[0][s] / b->losses[0][s] - 1) <= limit))
            fail_msg("%s: loss of step %d is %.9g, with one rank %.9g", what, s + 1,
                     a->losses[0][s], b->losses[0][s]);
    }
    double most = 0;
    for (int64_t i = 0; i < n; i++)
        most = fmax(most, fabs((double)a->weights[i] - (double)b->weights[i]));
    if (!(most < 2e-3))
        fail_msg("%s: weights differ by %g", what, most);
}

static inline void assert_same(const struct job *a, const struct job *b, const char *what) {
    for (int s = 0; s < a->steps; s++)
        if (a->losses[0][s] != b->losses[0][s] || a->norms[0][s] != b->norms[0][s])
            fail_msg("%s: step %d differs: loss %.17g and %.17g, norm %.17g and %.17g", what, s + 1,
                     a->losses[0][s], b->losses[0][s], a->norms[0][s], b->norms[0][s]);
    if (memcmp(a->weights, b->weights, (size_t)elements(a) * sizeof *a->weights) != 0)
        fail_msg("%s: weights differ", what);
}

// ---------------------------------------------------------------- the model

// 17 layers, 8 key/value heads, a vocabulary that nothing divides, norms smaller than a block.
static inline void base_knobs(struct knobs *k, const struct scratch *s, const char *family,
                              int64_t vocab, int64_t layers) {
    struct model_shape shape;
    struct err e = {0};
    assert_worked(model_shape_builtin(&shape, family, &e), &e);
    shape.vocab = vocab;
    shape.layers = layers;
    shape.heads = shape.kv_heads = 8;
    shape.head_dim = 4;
    shape.width = 32;
    shape.ffn = 48;
    shape.max_positions = 64;
    shape.bos_id = shape.eos_id = 0;
    assert_worked(model_shape_check(&shape, &e), &e);
    knobs_init(k);
    snprintf(k->model, sizeof k->model, "%.200s/%s-%d", s->dir, family, (int)vocab);
    write_model(k->model, &shape, POISON_NONE);
    k->seq = 24;
    k->batch_micro = 1;
    k->batch_accum = 8;
    k->threads = 1;
    k->device = DEVICE_CPU;
    k->cpu_blas = CPU_BLAS_BUILTIN;
    k->optim_lr = 3e-3;
    k->sched_warmup = 2;
}

#endif
