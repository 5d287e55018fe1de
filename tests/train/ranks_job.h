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
    bool checking;  // every op is observed
    bool whole;     // sequences of one document
    bool spoilt;    // the last rank's gradients are not finite
    int as, of;     // trains on the sequences of replica `as` of `of`; of 0: on all
    char what[16];  // of each weight is compared: "": itself; "adam.m.": its first moment
    bool validates; // after the steps, on as many sequences as a step has
    double scale;   // of the loss
    // In this step (-1: none) one rank's gradients get a number that is not finite.
    int bad_step, bad_rank;
    struct comm_job *comm;
    struct plan plans[RANKS_MOST];
    float *weights; // of the whole model, in the order of plan_param_at
    bool *given;    // of each weight: a rank has written it
    pthread_mutex_t lock;
    double losses[RANKS_MOST][STEPS_MOST], norms[RANKS_MOST][STEPS_MOST];
    bool skipped[RANKS_MOST][STEPS_MOST];
    // With noise.every every second step measures: each replica's norm of the first micro-batch;
    // that of the step, if replicas train apart.
    double first[RANKS_MOST][STEPS_MOST][RANKS_MOST], own[RANKS_MOST][STEPS_MOST][RANKS_MOST];
    double valid[RANKS_MOST]; // validation loss
    int rc[RANKS_MOST];
    struct err e[RANKS_MOST];
};

struct rank {
    struct job *job;
    int rank, step;
    int micro; // of a validation; in a step the program says
    struct plan *plan;
    struct engine *engine;
    int32_t *rows; // tokens (and targets, one further), positions, document starts
};

// ---------------------------------------------------------------- data

// Token i of a sample. Samples have documents of different lengths.
static inline int32_t token(uint64_t sample, int64_t i, int64_t vocab) {
    const uint64_t x = (sample * 1000003u + (uint64_t)i * 7919u) * 2654435761u;
    return (int32_t)((x >> 16) % (uint64_t)vocab);
}

// The weights' gradients so far, of which one element becomes an infinity.
static inline int spoil(struct rank *r, struct err *e) {
    static const char part[] = "mlp.down_proj.weight";
    const struct program *p = plan_program(r->plan, PLAN_TRAIN);
    for (int t = 0; t < p->n_tensors; t++) {
        const struct tensor *x = &p->tensors[t];
        if (x->cls != CLASS_GRADIENT || strncmp(x->name, "d.", 2) != 0 || !x->offset ||
            !strstr(x->name, part) || strchr(x->name, '@'))
            continue;
        float *at = exec_host_address(r->engine->session->exec, plan_find(r->plan, PLAN_TRAIN), t);
        at[tensor_elements(x) - 1] = INFINITY;
        return 0;
    }
    return err_set(e, ERR_INTERNAL, "rank %d has no gradient of %s", r->rank, part);
}

static inline int feed(void *arg, int micro, struct exec_batch *out, struct err *e) {
    struct rank *r = arg;
    const struct knobs *k = &r->plan->knobs;
    const int64_t T = k->seq, B = k->batch_micro, M = B * T, vocab = r->plan->shape.vocab;
    const bool part = r->job->of > 0;
    const int n = mesh_size(&r->plan->ranks.mesh, AXIS_DATA),
              at = r->plan->ranks.mesh.at[AXIS_DATA];
    const uint64_t replicas = (uint64_t)(part ? r->job->of : n),
                   me = (uint64_t)(part ? r->job->as : at),
                   samples = (uint64_t)(plan_samples(r->plan) / n) * replicas;
    if (r->step == r->job->bad_step && r->rank == r->job->bad_rank && micro == k->batch_accum - 1)
        TRY(spoil(r, e));
    int32_t *tokens = r->rows, *targets = tokens + M, *positions = targets + M,
            *starts = positions + M;
    for (int64_t b = 0; b < B; b++) {
        const uint64_t sample = (uint64_t)r->step * samples +
                                ((uint64_t)micro * replicas + me) * (uint64_t)B + (uint64_t)b;
        const int64_t document = r->job->whole ? T : 5 + (int64_t)(sample % 7); // its tokens
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
    const bool apart = r->plan->ranks.apart;
    const int replicas = apart ? mesh_size(&r->plan->ranks.mesh, AXIS_DATA) : 1;
    for (r->step = 0; r->step < j->steps; r->step++) {
        double hyper[HYPER_COUNT], results[RESULT_COUNT], clip[CLIP_COUNT];
        const struct hyper_step at = {.step = r->step,
                                      .update = r->step + 1,
                                      .trained_tokens = trained_tokens(r->plan) / replicas,
                                      .loss_scale = j->scale};
        hyper_fill(&j->knobs, &at, hyper);
        if (j->spoilt && r->rank == j->ranks - 1)
            hyper[HYPER_LOSS_FACTOR] = NAN;
        TRY(session_set_hyper(s, hyper, e));
        const bool noise = r->step % 2 == 0 && plan_find(r->plan, PLAN_NOISE) >= 0;
        TRY(session_run(s, noise ? PLAN_NOISE : PLAN_TRAIN, feed, r, NULL, e));
        TRY(session_get_results(s, results, clip, e));
        if (noise)
            TRY(session_get_noise(s, j->first[r->rank][r->step], j->own[r->rank][r->step], e));
        if (results[RESULT_TOKENS] != (double)trained_tokens(r->plan))
            return err_set(e, ERR_INTERNAL, "%g tokens trained", results[RESULT_TOKENS]);
        j->losses[r->rank][r->step] = results[RESULT_LOSS_SUM] / results[RESULT_TOKENS];
        j->norms[r->rank][r->step] = clip[CLIP_NORM];
        j->skipped[r->rank][r->step] = clip[CLIP_SKIP] != 0;
        if (apart && ((r->step + 1) % j->split.every == 0 || r->step + 1 == j->steps))
            TRY(session_run(s, PLAN_AVERAGE, NULL, NULL, NULL, e));
    }
    return 0;
}

static inline int feed_valid(void *arg, int micro, struct exec_batch *out, struct err *e) {
    (void)micro;
    return feed(arg, ((const struct rank *)arg)->micro, out, e);
}

// On the sequences of the step that would come next.
static inline int validate(struct rank *r, struct err *e) {
    double loss = 0, tokens = 0, results[RESULT_COUNT];
    r->step = r->job->steps;
    for (r->micro = 0; r->micro < r->plan->knobs.batch_accum; r->micro++) {
        TRY(session_run(r->engine->session, PLAN_EVAL, feed_valid, r, NULL, e));
        TRY(session_get_results(r->engine->session, results, NULL, e));
        loss += results[RESULT_LOSS_SUM];
        tokens += results[RESULT_TOKENS];
    }
    r->job->valid[r->rank] = loss / tokens;
    return 0;
}

// Planned bytes are written bytes.
static inline int check_bytes(const struct rank *r, struct err *e) {
    const uint64_t planned = r->plan->layout.arena_bytes,
                   seen = exec_checked(r->engine->session->exec)->used_bytes;
    return seen == planned ? 0
                           : err_set(e, ERR_INTERNAL, "the plan is %llu bytes, written were %llu",
                                     (unsigned long long)planned, (unsigned long long)seen);
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
    const struct program *p = plan_program(r->plan, PLAN_TRAIN);
    struct model_param param;
    int64_t offset = 0;
    bool pair;
    for (int64_t i = 0; plan_param_at(r->plan, i, &param, &pair); i++) {
        const int64_t all = param.dims[0] * (param.rank > 1 ? param.dims[1] : 1);
        char name[200];
        snprintf(name, sizeof name, "%s%s", r->job->what, param.name);
        int t = program_find(p, name);
        if (t >= 0 && p->tensors[t].master >= 0)
            t = p->tensors[t].master;
        if (t >= 0) {
            const struct tensor *x = &p->tensors[t];
            // Another rank has the master of a 16-bit weight that trains and has none here.
            const bool has = x->dtype == DTYPE_F32 || x->cls == CLASS_OPTIMIZER || !x->trainable;
            const int64_t n = has ? tensor_elements(x) : 0;
            float *values = malloc((size_t)n * sizeof *values + 1),
                  *stored = malloc((size_t)n * sizeof *stored + 1);
            int rc = values && stored
                         ? exec_read(r->engine->session->exec, plan_find(r->plan, PLAN_TRAIN), t,
                                     stored, (uint64_t)n * dtype_bytes(x->dtype), e)
                         : err_set(e, ERR_MEMORY, "no memory");
            int64_t logical, run;
            if (rc == 0)
                dtype_convert(values, DTYPE_F32, stored, x->dtype, (size_t)n);
            free(stored);
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
    r->rows = malloc(4 * (size_t)(k->batch_micro * k->seq) * sizeof *r->rows);
    if (!r->rows)
        return err_set(e, ERR_MEMORY, "no memory");
    const struct engine_options options = {.comm = c, .checking = r->job->checking};
    TRY(engine_start(&r->engine, &options, r->plan, e));
    TRY(run_steps(r, e));
    if (r->job->validates)
        TRY(validate(r, e));
    if (r->job->checking && r->job->steps > 0)
        TRY(check_bytes(r, e));
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
    free(r->rows);
    return NULL;
}

// ---------------------------------------------------------------- a job

// Of the model and its adapter.
static inline int64_t elements(const struct job *j) {
    struct model_param param;
    int64_t sum = 0;
    bool pair;
    for (int64_t i = 0; plan_param_at(&j->plans[0], i, &param, &pair); i++)
        sum += param.dims[0] * (param.rank > 1 ? param.dims[1] : 1);
    return sum;
}

static inline void *make_plan(void *arg) {
    struct rank *r = arg;
    struct job *j = r->job;
    const struct plan_options o = {.knobs = &j->knobs,
                                   .programs = {PLAN_TRAIN, j->validates ? PLAN_EVAL : NULL},
                                   .real = DTYPE_F32,
                                   .split = &j->split,
                                   .rank = r->rank};
    j->rc[r->rank] = plan_make(r->plan, &o, &j->e[r->rank]);
    return NULL;
}

static inline void each_rank(struct rank *ranks, int n, void *(*fn)(void *)) {
    pthread_t threads[RANKS_MOST];
    for (int i = 0; i < n; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, fn, &ranks[i]), 0);
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
}

// The error of a job; NULL: none. Every rank has the same, or is told of it.
static inline const struct err *job_error(const struct job *j) {
    for (int i = 0; i < j->ranks; i++)
        if (j->rc[i] != 0)
            return &j->e[i];
    return NULL;
}

static inline void job_plan(struct job *j) {
    struct rank ranks[RANKS_MOST];
    for (int i = 0; i < j->ranks; i++)
        ranks[i] = (struct rank){.job = j, .rank = i, .plan = &j->plans[i]};
    each_rank(ranks, j->ranks, make_plan);
}

// All ranks' programs together: messages and collectives match, and nobody waits for ever. Returns
// the predicted seconds of a program.
static inline double job_check(struct job *j, const char *name, const char *settings) {
    const struct hw_device device = {
        .name = "test", .matmul_flops = 1e12, .memory_bytes_per_s = 1e11, .op_overhead_s = 1e-6};
    const struct hw_link link = {"link", 1e10, 1e-6};
    struct program *programs[RANKS_MOST];
    struct prediction prediction;
    struct err e = {0};
    for (int i = 0; i < j->ranks; i++)
        programs[i] = plan_program(&j->plans[i], name);
    if (check_world(programs, j->ranks, &e) != 0 ||
        predict_programs(programs, j->ranks, &device, &link, &prediction, &e) != 0)
        fail_msg("%s: %s", settings, e.text);
    const double seconds = prediction.seconds;
    prediction_free(&prediction);
    return seconds;
}

static inline void job_train(struct job *j, const char *settings) {
    struct rank ranks[RANKS_MOST];
    struct err e = {0};
    const int n = j->ranks;
    j->weights = calloc((size_t)elements(j), sizeof *j->weights);
    j->given = calloc((size_t)elements(j), sizeof *j->given);
    assert_true(j->weights && j->given);
    pthread_mutex_init(&j->lock, NULL);
    assert_worked(comm_job_open(&j->comm, n, 20000000000u, &e), &e);
    for (int i = 0; i < n; i++)
        ranks[i] = (struct rank){.job = j, .rank = i, .plan = &j->plans[i]};
    each_rank(ranks, n, begin);
    comm_job_close(j->comm);
    for (int i = 0; i < n; i++)
        if (j->rc[i] != 0)
            fail_msg("%s: rank %d: %s", settings, i, j->e[i].text);
    for (int64_t i = 0, all = elements(j); i < all; i++)
        assert_true(j->given[i]); // every element is somewhere
    for (int i = 1; i < n; i++) { // every rank knows the same
        if (!j->spoilt)
            assert_memory_equal(j->losses[i], j->losses[0], sizeof j->losses[0]);
        if (j->split.every < 2) // else each replica has its own
            assert_memory_equal(j->norms[i], j->norms[0], sizeof j->norms[0]);
        assert_memory_equal(j->skipped[i], j->skipped[0], sizeof j->skipped[0]);
        assert_memory_equal(j->first[i], j->first[0], sizeof j->first[0]);
        assert_memory_equal(j->own[i], j->own[0], sizeof j->own[0]);
        assert_true(j->valid[i] == j->valid[0]);
    }
}

static inline void job_end(struct job *j) {
    for (int i = 0; i < j->ranks; i++)
        plan_free(&j->plans[i]);
    if (j->weights)
        pthread_mutex_destroy(&j->lock);
    free(j->weights);
    free(j->given);
    free(j);
}

static inline bool takes(const char *word, const char *name, const char **value) {
    const size_t n = strlen(name);
    *value = word + n;
    return strncmp(word, name, n) == 0;
}

// One word of a setting.
static inline void set_word(struct job *j, const char *word) {
    static const char *const schedules[] = {"gpipe", "1f1b", "interleaved"};
    const struct {
        const char *name;
        int *to;
    } numbers[] = {{"data=", &j->split.data},
                   {"tensor=", &j->split.tensor},
                   {"pipe=", &j->split.pipe},
                   {"zero=", &j->split.zero},
                   {"chunks=", &j->split.chunks},
                   {"prefetch=", &j->split.prefetch},
                   {"bad_step=", &j->bad_step},
                   {"bad_rank=", &j->bad_rank},
                   {"every=", &j->split.every},
                   {"as=", &j->as},
                   {"of=", &j->of}};
    const struct {
        const char *name;
        bool *to, value;
    } switches[] = {{"checking", &j->checking, true},
                    {"spoilt", &j->spoilt, true},
                    {"whole", &j->whole, true},
                    {"validates", &j->validates, true},
                    {"late", &j->split.overlap, false},
                    {"micro", &j->split.every_micro, true},
                    {"sequence", &j->split.sequence, true}};
    const char *value;
    struct err e = {0};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (takes(word, numbers[i].name, &value)) {
            *numbers[i].to = atoi(value);
            return;
        }
    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++)
        if (strcmp(word, switches[i].name) == 0) {
            *switches[i].to = switches[i].value;
            return;
        }
    if (takes(word, "bucket=", &value)) {
        j->split.bucket_bytes = atoi(value);
    } else if (takes(word, "what=", &value)) {
        snprintf(j->what, sizeof j->what, "%s", value);
    } else if (takes(word, "scale=", &value)) {
        j->scale = atof(value);
    } else if (takes(word, "schedule=", &value)) {
        for (int i = 0; i < 3; i++)
            if (strcmp(value, schedules[i]) == 0)
                j->split.schedule = (enum apply_schedule)i;
    } else if (*word) {
        assert_worked(knobs_set_assignment(&j->knobs, word, SET_BY_COMMAND_LINE, &e), &e);
    }
}

// A job that has not begun. A setting is words: sizes of a layout ("tensor=2", "zero=1"), how a job
// is run ("checking"), and knobs.
static inline struct job *job_new(const struct knobs *base, const char *settings, int steps) {
    struct job *j = calloc(1, sizeof *j);
    char copy[1024], *rest = copy;
    assert_non_null(j);
    assert_true(steps <= STEPS_MOST && strlen(settings) < sizeof copy);
    j->knobs = *base;
    j->steps = steps;
    j->scale = 1;
    j->bad_step = -1;
    j->split = (struct plan_split){.data = 1,
                                   .tensor = 1,
                                   .pipe = 1,
                                   .schedule = SCHEDULE_1F1B,
                                   .chunks = 2,
                                   .bucket_bytes = 16384, // several buckets
                                   .overlap = true,
                                   .prefetch = 1};
    snprintf(copy, sizeof copy, "%s", settings);
    for (char *one; (one = strsep(&rest, " ")) != NULL;)
        set_word(j, one);
    j->ranks = j->split.data * j->split.tensor * j->split.pipe;
    assert_true(j->ranks >= 1 && j->ranks <= RANKS_MOST);
    for (int i = 0; i < j->ranks; i++)
        j->plans[i].prefix = "";
    return j;
}

static inline struct job *job_of(const struct knobs *base, const char *settings, int steps) {
    struct job *j = job_new(base, settings, steps);
    job_plan(j);
    if (job_error(j))
        fail_msg("%s: %s", settings, job_error(j)->text);
    job_train(j, settings);
    return j;
}

// The programs of all ranks, checked without a run.
static inline void check_together(const struct knobs *base, const char *settings) {
    struct job *j = job_new(base, settings, 0);
    j->validates = true;
    job_plan(j);
    if (job_error(j))
        fail_msg("%s: %s", settings, job_error(j)->text);
    job_check(j, PLAN_TRAIN, settings);
    job_check(j, PLAN_EVAL, settings);
    job_end(j);
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

// 8 key/value heads, norms smaller than a block, and if the caller wants: 17 layers, a vocabulary
// that nothing divides.
static inline void base_shape(struct model_shape *shape, const char *family, int64_t vocab,
                              int64_t layers) {
    struct err e = {0};
    assert_worked(model_shape_builtin(shape, family, &e), &e);
    shape->vocab = vocab;
    shape->layers = layers;
    shape->heads = shape->kv_heads = 8;
    shape->head_dim = 4;
    shape->width = 32;
    shape->ffn = 48;
    shape->max_positions = 64;
    shape->bos_id = shape->eos_id = 0;
}

// The knobs of a run of this shape, whose weights are written to the scratch folder.
static inline void shape_knobs(struct knobs *k, const struct scratch *s, const char *name,
                               const struct model_shape *shape) {
    struct err e = {0};
    assert_worked(model_shape_check(shape, &e), &e);
    knobs_init(k);
    snprintf(k->model, sizeof k->model, "%.200s/%.80s", s->dir, name);
    write_model(k->model, shape, POISON_NONE);
    k->seq = 24;
    k->batch_micro = 1;
    k->batch_accum = 8;
    k->threads = 1;
    k->device = DEVICE_CPU;
    k->cpu_blas = CPU_BLAS_BUILTIN;
    k->optim_lr = 3e-3;
    k->sched_warmup = 2;
}

static inline void base_knobs(struct knobs *k, const struct scratch *s, const char *family,
                              int64_t vocab, int64_t layers) {
    struct model_shape shape;
    char name[80];
    base_shape(&shape, family, vocab, layers);
    snprintf(name, sizeof name, "%s-%d", family, (int)vocab);
    shape_knobs(k, s, name, &shape);
}

#endif
