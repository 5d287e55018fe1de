// verify.c - see verify.h. With several ranks each compares the parts that it holds, and the sums
// of their squares give the figures, so a figure means the same in every layout.
//
// The order matters. Loss, logits and greedy tokens use the weights as
// loaded. The AdamW steps come last because they change the weights. The first of them leaves the
// gradients to compare.
//
// The reference is float32. In float32 the greedy continuation must be the same, token by token.
// With 16 bits, a near tie may be decided the other way, and all later tokens are different then.
// So in 16 bits each token is chosen after the prefix of the reference, and the figure is the share
// of tokens that differ.
#include "train/verify.h"
#include "base/array.h"
#include "base/file.h"
#include "base/mem.h"
#include "model/safetensors.h"
#include "engine/engine.h"
#include "plan/adapter.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct reference { // ref.json
    double loss, grad_norm, losses[VERIFY_MAX_LOSSES];
    int n_losses;
    bool has_loss, has_grad_norm;
    double clip, lr, beta1, beta2, eps, decay;
};

// float32: the rounding error of the reference's sums, with room for another order of summation.
// bf16: three times what was measured (docs/numerics.md).
static const struct verify_limits limits[] = {
    // loss, logits, grad, norm, steps, greedy, small, noise
    [PRECISION_FP32] = {1e-5, 1e-4, 1e-4, 1e-4, 1e-3, 0, 1e-6, 1e-6},
    [PRECISION_BF16] = {5e-4, 3e-2, 6e-2, 6e-3, 1e-2, 0.1, 2e-4, 2e-5},
    [PRECISION_FP16] = {5e-5, 4e-3, 1e-2, 5e-4, 2.5e-3, 0.03, 2e-5, 2e-6},
};

const struct verify_limits *verify_limits(enum precision p) {
    return &limits[p];
}

// Errors of a whole model's gradients are many and nearly cancel in their norm. An adapter has few
// numbers, whose errors do not. With 16-bit weights PyTorch's norm is 1.3e-3 away
// (docs/numerics.md).
static const double ADAPTER_NORM_FP16 = 4e-3;

// Steps in 16 bits may be off by so many times what float32 steps are off by that begin with
// rounded weights. Their own rounding goes on in every step (docs/numerics.md).
static const double DRIFTS = 10;

struct sums {          // of one tensor, over the parts that ranks hold
    double diff, norm; // squares
    int64_t elements;
};

// What all ranks share.
struct job {
    struct verify_result *out;
    const struct knobs *knobs;
    unsigned how;
    const struct verify_limits *limits;
    double scale; // of the loss, and so of the gradients
    bool steps_only;
    enum dtype rounded; // that weights are rounded to before the steps; DTYPE_F32: not rounded
    double *path;       // gets the losses of the steps; NULL: not wanted
    double worst;       // loss of the steps
    struct plan_split split;
    struct reference json;
    int64_t B, T;
    const char *reference;      // the folder with ref.json: the model's, or lora.from
    struct model_param *params; // what trains
    int64_t n_params;
    pthread_mutex_t lock;
    struct sums *sums; // of the logits, then of each parameter's gradient; under the lock
};

struct verifier { // one rank
    struct job *job;
    struct comm *comm; // NULL: one rank
    struct plan plan;
    struct engine *engine;
    struct session *s; // of the engine
    struct safetensors *ref;
    int32_t *tokens;                                   // [B][T+1]
    int32_t *inputs, *targets, *positions, *doc_start; // [B*T]
    int64_t turn;                                      // of validation: a micro-batch per replica
    double loss, norm;                                 // of all ranks
    double worst;                                      // loss of the steps
    int64_t wrong, chosen;                             // greedy tokens; chosen 0: none
    struct err *e;
};

static double norm_limit(const struct job *j) {
    const bool adapter = j->knobs->lora_from[0] != '\0';
    return adapter && j->knobs->precision == PRECISION_FP16 ? ADAPTER_NORM_FP16 : j->limits->norm;
}

// ---------------------------------------------------------------- figures

static int add_figure(struct job *j, const char *name, double value, double limit, struct err *e) {
    struct verify_result *r = j->out;
    if (!array_room(&r->figures, r->n_figures, 1, &r->capacity, sizeof *r->figures, 16))
        return err_set(e, ERR_MEMORY, "out of memory while verifying");
    struct verify_figure *f = &r->figures[r->n_figures++];
    snprintf(f->name, sizeof f->name, "%s", name);
    f->value = value, f->limit = limit;
    f->ok = value <= limit; // false for NaN
    r->ok = r->ok && f->ok;
    return 0;
}

static void add_squares(struct sums *s, const float *ours, double scale, const float *ref,
                        int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        double x = (double)ours[i] / scale - ref[i];
        s->diff += x * x;
        s->norm += (double)ref[i] * ref[i];
    }
    s->elements += n;
}

static void add_sums(struct job *j, int64_t which, const struct sums *part) {
    pthread_mutex_lock(&j->lock);
    j->sums[which].diff += part->diff;
    j->sums[which].norm += part->norm;
    j->sums[which].elements += part->elements;
    pthread_mutex_unlock(&j->lock);
}

// ---------------------------------------------------------------- reading the reference

static int read_adamw(struct json_reader *r, struct reference *j) {
    const char *key;
    TRY(json_enter_object(r));
    while (json_next_key(r, &key)) {
        if (strcmp(key, "lr") == 0)
            json_read_double(r, &j->lr);
        else if (strcmp(key, "eps") == 0)
            json_read_double(r, &j->eps);
        else if (strcmp(key, "weight_decay") == 0)
            json_read_double(r, &j->decay);
        else if (strcmp(key, "betas") == 0) {
            double *beta[2] = {&j->beta1, &j->beta2};
            json_enter_array(r);
            for (int i = 0; json_next_element(r); i++)
                if (i < 2)
                    json_read_double(r, beta[i]);
                else
                    json_fail(r, ERR_FORMAT, "'betas' has more than two numbers");
        } else {
            json_skip(r);
        }
    }
    return r->rc;
}

static int read_losses(struct json_reader *r, struct reference *j) {
    TRY(json_enter_array(r));
    while (json_next_element(r)) {
        if (j->n_losses == VERIFY_MAX_LOSSES)
            return json_fail(r, ERR_FORMAT, "more than %d losses", VERIFY_MAX_LOSSES);
        json_read_double(r, &j->losses[j->n_losses++]);
    }
    return r->rc;
}

static int read_json(struct reference *j, const char *path, struct err *e) {
    char *text;
    size_t bytes;
    struct region strings = {0};
    struct json_reader r;
    const char *key;
    *j = (struct reference){
        .clip = 1.0, .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .decay = 0.1};
    TRY(file_read_all(path, 16 << 20, &text, &bytes, e));
    json_reader_init(&r, path, text, bytes, &strings, e);
    json_enter_object(&r);
    while (json_next_key(&r, &key)) {
        if (strcmp(key, "loss") == 0)
            json_read_double(&r, &j->loss), j->has_loss = true;
        else if (strcmp(key, "grad_norm") == 0)
            json_read_double(&r, &j->grad_norm), j->has_grad_norm = true;
        else if (strcmp(key, "clip") == 0)
            json_read_double(&r, &j->clip);
        else if (strcmp(key, "losses") == 0)
            read_losses(&r, j);
        else if (strcmp(key, "adamw") == 0)
            read_adamw(&r, j);
        else
            json_skip(&r);
    }
    int rc = json_finish(&r);
    region_free(&strings);
    free(text);
    if (rc == 0 && !j->has_loss)
        rc = err_set(e, ERR_FORMAT, "%s: no 'loss'", path);
    return rc;
}

// Reads a table of token ids. The file may hold them as int32 or int64.
static int read_ids(struct verifier *v, const char *name, int64_t rows, int64_t cols,
                    int32_t **out) {
    const struct safetensors_entry *t = safetensors_find(v->ref, name);
    if (!t || t->rank != 2 || (t->dtype != DTYPE_I32 && t->dtype != DTYPE_I64) ||
        (rows && t->dims[0] != rows) || (cols && t->dims[1] != cols))
        return err_set(
            v->e, ERR_FORMAT,
            "%s: ref.safetensors has no '%s' of the expected form (2 dimensions, integers)",
            v->job->out->dir, name);
    size_t n = (size_t)t->elements;
    *out = calloc(n + 1, sizeof **out);
    int64_t *wide = t->dtype == DTYPE_I64 ? calloc(n + 1, sizeof *wide) : NULL;
    int rc = !*out || (t->dtype == DTYPE_I64 && !wide)
                 ? err_set(v->e, ERR_MEMORY, "out of memory while verifying")
                 : 0;
    if (rc == 0)
        rc = safetensors_read(v->ref, t, 0, t->elements, wide ? (void *)wide : (void *)*out,
                              t->dtype, v->e);
    for (size_t i = 0; rc == 0 && wide && i < n; i++)
        (*out)[i] = wide[i] == (int32_t)wide[i] ? (int32_t)wide[i] : -1; // refused below
    free(wide);
    for (size_t i = 0; rc == 0 && i < n; i++)
        if ((*out)[i] < 0 || (*out)[i] >= v->plan.shape.vocab)
            rc = err_set(v->e, ERR_FORMAT, "%s: '%s' holds id %d; the model's vocabulary is %lld",
                         v->job->out->dir, name, (*out)[i], (long long)v->plan.shape.vocab);
    return rc;
}

static int find_sizes(struct verifier *v) {
    struct job *j = v->job;
    const struct safetensors_entry *t = safetensors_find(v->ref, "tokens");
    if (!t || t->rank != 2 || t->dims[0] < 1 || t->dims[1] < 2 || t->elements > (1 << 26))
        return err_set(v->e, ERR_FORMAT, "%s: ref.safetensors has no 'tokens' of shape [B, T+1]",
                       j->out->dir);
    j->B = j->out->batch = t->dims[0];
    j->T = j->out->seq = t->dims[1] - 1;
    if (j->B > 65536 || j->T > 1048576)
        return err_set(v->e, ERR_FORMAT,
                       "%s: 'tokens' is [%lld, %lld]; accepted: up to [65536, 1048577]",
                       j->out->dir, (long long)j->B, (long long)j->T + 1);
    return 0;
}

// ---------------------------------------------------------------- running

// The sequences of the reference are one step. Replicas and micro-batches share them.
static int64_t micro_batches(const struct job *j) {
    return j->split.data * j->split.tensor * j->split.pipe > 1 ? j->knobs->batch_accum : 1;
}

static int start(struct verifier *v) {
    struct job *j = v->job;
    struct knobs k = *j->knobs;
    const int64_t accum = micro_batches(j), parts = accum * j->split.data;
    const bool whole = j->split.tensor == 1 && j->split.pipe == 1 && j->split.zero < 3;
    snprintf(k.model, sizeof k.model, "%s", j->out->dir);
    if (j->B % parts != 0)
        return err_set(v->e, ERR_USAGE,
                       "%s: the reference has %lld sequence%s, which parallel.data=%d x "
                       "batch.accum=%lld do not divide; accepted: a product that divides %lld, or "
                       "parallel.tensor and parallel.pipe, whose ranks share a sequence",
                       j->out->dir, (long long)j->B, j->B == 1 ? "" : "s", j->split.data,
                       (long long)accum, (long long)j->B);
    k.batch_micro = j->B / parts, k.batch_accum = accum, k.seq = j->T;
    k.optim_decay_all = true; // the reference decays every parameter
    k.lora_dropout = 0, k.by[KNOB_lora_dropout] = SET_BY_PLANNER; // and drops nothing
    const struct safetensors_entry *greedy = safetensors_find(v->ref, "greedy");
    const struct plan_options o = {
        .knobs = &k,
        .programs = {PLAN_TRAIN, j->steps_only ? NULL : PLAN_EVAL,
                     !j->steps_only && greedy && whole ? PLAN_EXTEND : NULL},
        .extend = {.sequences = j->B,
                   .context = greedy && greedy->rank == 2 ? VERIFY_PROMPT + greedy->dims[1] : 0,
                   .rows = VERIFY_PROMPT},
        .real = DTYPE_F32,
        .keep_gradients = true,
        .keep_logits = true,
        .split = &j->split,
        .rank = v->comm ? v->comm->rank : 0};
    const struct engine_options run = {.reference = j->how & VERIFY_REFERENCE,
                                       .checking = j->how & VERIFY_CHECKING,
                                       .comm = v->comm};
    TRY(plan_make(&v->plan, &o, v->e));
    TRY(engine_start(&v->engine, &run, &v->plan, v->e));
    v->s = v->engine->session;
    return 0;
}

static int split_tokens(struct verifier *v) {
    const int64_t B = v->job->B, T = v->job->T;
    size_t n = (size_t)(B * T);
    TRY(read_ids(v, "tokens", B, T + 1, &v->tokens));
    v->inputs = calloc(4 * n + 1, sizeof *v->inputs);
    if (!v->inputs)
        return err_set(v->e, ERR_MEMORY, "out of memory while verifying");
    v->targets = v->inputs + n, v->positions = v->targets + n, v->doc_start = v->positions + n;
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0; t < T; t++) {
            v->inputs[b * T + t] = v->tokens[b * (T + 1) + t];
            v->targets[b * T + t] = v->tokens[b * (T + 1) + t + 1];
            v->positions[b * T + t] = (int32_t)t;
        }
    return 0;
}

// The first row of a micro-batch of this replica, as in data/loader.h.
static int64_t first_row(const struct verifier *v, int64_t micro) {
    const struct mesh *m = &v->plan.ranks.mesh;
    return (micro * mesh_size(m, AXIS_DATA) + m->at[AXIS_DATA]) * v->plan.knobs.batch_micro *
           v->job->T;
}

static int feed(void *arg, int micro, struct exec_batch *out, struct err *e) {
    const struct verifier *v = arg;
    const int64_t at = first_row(v, v->turn + micro);
    (void)e;
    *out =
        (struct exec_batch){v->inputs + at, v->targets + at, v->positions + at, v->doc_start + at};
    return 0;
}

static int set_hyper(struct verifier *v, int step) {
    const struct job *job = v->job;
    const struct reference *j = &job->json;
    double h[HYPER_COUNT] = {[HYPER_LR] = j->lr,
                             [HYPER_BETA1] = j->beta1,
                             [HYPER_BETA2] = j->beta2,
                             [HYPER_EPS] = j->eps,
                             [HYPER_DECAY] = j->decay,
                             [HYPER_CLIP] = j->clip,
                             [HYPER_BIAS1] = 1.0 - pow(j->beta1, step + 1),
                             [HYPER_BIAS2] = 1.0 - pow(j->beta2, step + 1),
                             [HYPER_LOSS_FACTOR] = job->scale / (double)(job->B * job->T),
                             [HYPER_SCALE] = job->scale,
                             [HYPER_DRAW] = step};
    return session_set_hyper(v->s, h, v->e);
}

// Reads a tensor of the engine as float32. The caller frees *out.
static int read_tensor(struct verifier *v, const char *in, int t, float **out) {
    const struct tensor *x = &plan_program(&v->plan, in)->tensors[t];
    const int64_t n = tensor_elements(x);
    void *raw = malloc((size_t)n * dtype_bytes(x->dtype) + 1);
    *out = malloc((size_t)n * sizeof **out + 1);
    int rc =
        raw && *out ? 0 : err_set(v->e, ERR_MEMORY, "out of memory while comparing '%s'", x->name);
    if (rc == 0)
        rc = exec_read(v->s->exec, plan_find(&v->plan, in), t, raw,
                       (uint64_t)n * dtype_bytes(x->dtype), v->e);
    if (rc == 0)
        dtype_convert(*out, DTYPE_F32, raw, x->dtype, (size_t)n);
    free(raw);
    return rc;
}

// Adds elements [at, at + n) of a tensor of the reference to the sums.
static int compare(struct verifier *v, const struct safetensors_entry *r, int64_t at,
                   const float *ours, double scale, int64_t n, struct sums *sums) {
    float *ref = malloc((size_t)n * sizeof *ref + 1);
    int rc = ref ? safetensors_read(v->ref, r, at, n, ref, DTYPE_F32, v->e)
                 : err_set(v->e, ERR_MEMORY, "out of memory while comparing '%s'", r->name);
    if (rc == 0)
        add_squares(sums, ours, scale, ref, n);
    free(ref);
    return rc;
}

static const struct safetensors_entry *find_ref(struct verifier *v, const char *name, int64_t n) {
    const struct safetensors_entry *r = safetensors_find(v->ref, name);
    if (r && r->elements == n)
        return r;
    err_set(v->e, ERR_FORMAT, "%s: ref.safetensors has no '%s' of %lld elements", v->job->out->dir,
            name, (long long)n);
    return NULL;
}

// This rank's rows and columns of the logits of a validation turn.
static int compare_logits(struct verifier *v) {
    const struct job *j = v->job;
    const struct mesh *m = &v->plan.ranks.mesh;
    const int t = plan_tensor(&v->plan, PLAN_EVAL, NAME_LOGITS);
    const int64_t V = v->plan.shape.vocab, rows = v->plan.knobs.batch_micro * j->T,
                  own = v->plan.slice.vocab,
                  column = V * m->at[AXIS_TENSOR] / mesh_size(m, AXIS_TENSOR);
    struct sums sums = {0};
    float *ours = NULL;
    if (t < 0) // another stage has them
        return 0;
    const struct safetensors_entry *r = find_ref(v, "logits", j->B * j->T * V);
    int rc = r ? read_tensor(v, PLAN_EVAL, t, &ours) : ERR_FORMAT;
    const int64_t at = first_row(v, v->turn), ld = plan_program(&v->plan, PLAN_EVAL)->tensors[t].ld;
    for (int64_t i = 0; rc == 0 && i < rows; i++)
        rc = compare(v, r, (at + i) * V + column, ours + i * ld, 1, own, &sums);
    free(ours);
    if (rc == 0)
        add_sums(v->job, 0, &sums);
    return rc;
}

static int check_forward(struct verifier *v) {
    double results[RESULT_COUNT], loss = 0, tokens = 0;
    TRY(set_hyper(v, 0));
    for (v->turn = 0; v->turn < micro_batches(v->job); v->turn++) {
        TRY(session_run(v->s, PLAN_EVAL, feed, v, NULL, v->e));
        TRY(session_get_results(v->s, results, NULL, v->e));
        loss += results[RESULT_LOSS_SUM];
        tokens += results[RESULT_TOKENS];
        if (safetensors_find(v->ref, "logits"))
            TRY(compare_logits(v));
    }
    v->turn = 0;
    v->loss = loss / tokens;
    return 0;
}

// Rows of the tokens [from, to) of each sequence, the last of which is asked. Returns how many.
static int64_t greedy_rows(const struct verifier *v, const int32_t *tokens, int64_t capacity,
                           int64_t from, int64_t to, struct session_row *rows) {
    int64_t n = 0;
    for (int64_t b = 0; b < v->job->B; b++)
        for (int64_t t = from; t < to; t++)
            rows[n++] = (struct session_row){tokens[b * capacity + t], (int32_t)b, (int32_t)t,
                                             .asked = t == to - 1};
    return n;
}

// In float32 the text runs free; with 16 bits each token follows the reference's prefix.
static int compare_greedy(struct verifier *v, const int32_t *expected, int64_t n, int32_t *tokens,
                          struct session_row *rows, int32_t *ids) {
    const int64_t B = v->job->B, T = v->job->T, capacity = VERIFY_PROMPT + n;
    const int64_t prompt = T + 1 < VERIFY_PROMPT ? T + 1 : VERIFY_PROMPT;
    const bool exact = v->job->limits->greedy == 0;
    for (int64_t b = 0; b < B; b++)
        memcpy(tokens + b * capacity, v->tokens + b * (T + 1), (size_t)prompt * sizeof *tokens);
    for (int64_t i = 0; i < n; i++) {
        const int64_t to = prompt + i,
                      count = greedy_rows(v, tokens, capacity, i > 0 ? to - 1 : 0, to, rows);
        TRY(session_extend(v->s, rows, count, ids, NULL, v->e));
        for (int64_t b = 0; b < B; b++) {
            v->wrong += ids[b] != expected[b * n + i];
            tokens[b * capacity + to] = exact ? ids[b] : expected[b * n + i];
        }
    }
    v->chosen = B * n;
    return 0;
}

static int check_greedy(struct verifier *v) {
    const int64_t B = v->job->B, n = v->plan.extend.context - VERIFY_PROMPT;
    // Every replica would choose the same.
    if (plan_extend_rows(&v->plan, (int64_t[PLAN_PROGRAMS_MOST]){0}) == 0 ||
        (v->comm && v->comm->rank > 0))
        return 0;
    int32_t *expected = NULL, *tokens = calloc((size_t)(B * (VERIFY_PROMPT + n)), sizeof *tokens),
            *ids = calloc((size_t)B, sizeof *ids);
    struct session_row *rows = calloc((size_t)(B * VERIFY_PROMPT), sizeof *rows);
    int rc = tokens && ids && rows ? 0 : err_set(v->e, ERR_MEMORY, "out of memory while verifying");
    if (rc == 0)
        rc = read_ids(v, "greedy", B, n, &expected);
    if (rc == 0)
        rc = compare_greedy(v, expected, n, tokens, rows, ids);
    free(rows);
    free(ids);
    free(tokens);
    free(expected);
    return rc;
}

// This rank's part of the gradient of a parameter. What several ranks hold is compared once.
static int compare_gradient(struct verifier *v, const struct model_param *param, int64_t number) {
    const struct program *p = plan_program(&v->plan, PLAN_TRAIN);
    const int w = program_find(p, param->name);
    if (w < 0)
        return 0;
    const struct tensor *weight = &p->tensors[w],
                        *part = weight->own >= 0 ? &p->tensors[weight->own] : weight;
    const bool again = v->plan.ranks.zero == 0 && v->plan.ranks.mesh.at[AXIS_DATA] > 0;
    char name[160];
    struct sums sums = {0};
    float *ours = NULL;
    int64_t logical, run;
    if (weight->replica || weight->grad < 0 || again)
        return 0;
    snprintf(name, sizeof name, "grad.%s", param->name);
    const struct safetensors_entry *r =
        find_ref(v, name, param->dims[0] * (param->rank > 1 ? param->dims[1] : 1));
    int rc = r ? read_tensor(v, PLAN_TRAIN, weight->grad, &ours) : ERR_FORMAT;
    for (int64_t at = 0; rc == 0 && at < tensor_elements(part); at += run) {
        tensor_run(part, at, &logical, &run);
        rc = compare(v, r, logical, ours + at, v->job->scale, run, &sums);
    }
    free(ours);
    if (rc == 0)
        add_sums(v->job, 1 + number, &sums);
    return rc;
}

// Rounds the float32 weights that this rank holds.
static int round_weights(struct verifier *v) {
    const struct program *p = plan_program(&v->plan, PLAN_TRAIN);
    const enum dtype type = v->job->rounded;
    int rc = 0;
    for (int t = 0; rc == 0 && t < p->n_tensors; t++) {
        const struct tensor *x = &p->tensors[t];
        const size_t n = (size_t)tensor_elements(x);
        float *values;
        if (x->cls != CLASS_WEIGHT || x->life != LIFE_RUN || x->root >= 0)
            continue;
        rc = read_tensor(v, PLAN_TRAIN, t, &values);
        void *narrow = malloc(n * dtype_bytes(type) + 1);
        if (rc == 0 && !narrow)
            rc = err_set(v->e, ERR_MEMORY, "out of memory while verifying");
        if (rc == 0) {
            dtype_convert(narrow, type, values, DTYPE_F32, n);
            dtype_convert(values, DTYPE_F32, narrow, type, n);
            rc = exec_write(v->s->exec, plan_find(&v->plan, PLAN_TRAIN), t, values,
                            n * sizeof *values, v->e);
        }
        free(narrow);
        free(values);
    }
    return rc;
}

static int check_steps(struct verifier *v) {
    const struct reference *ref = &v->job->json;
    double results[RESULT_COUNT], clip[CLIP_COUNT];
    int n = ref->n_losses > 0 ? ref->n_losses : 1; // at least one turn, for the gradients
    for (int i = 0; i < n; i++) {
        TRY(set_hyper(v, i));
        TRY(session_run(v->s, PLAN_TRAIN, feed, v, NULL, v->e));
        TRY(session_get_results(v->s, results, clip, v->e));
        double loss = results[RESULT_LOSS_SUM] / results[RESULT_TOKENS];
        for (int64_t k = 0; i == 0 && v->job->rounded == DTYPE_F32 && k < v->job->n_params; k++)
            TRY(compare_gradient(v, &v->job->params[k], k));
        if (i == 0)
            v->norm = clip[CLIP_NORM];
        if (i < ref->n_losses) {
            double off = fabs(loss - ref->losses[i]) / fabs(ref->losses[i]);
            v->worst = off > v->worst || isnan(off) ? off : v->worst;
            if (v->job->path && (!v->comm || v->comm->rank == 0))
                v->job->path[i] = loss;
        }
    }
    return 0;
}

// ---------------------------------------------------------------- the figures, from all ranks

static int gradient_figures(struct job *j, struct err *e) {
    const double global = j->json.grad_norm;
    for (int64_t i = 0; i < j->n_params; i++) {
        const struct sums *s = &j->sums[1 + i];
        const struct model_param p = j->params[i];
        const int64_t all = p.dims[0] * (p.rank > 1 ? p.dims[1] : 1);
        char label[160];
        if (s->elements != all)
            return err_set(e, ERR_INTERNAL,
                           "ranks have %lld of %lld elements of the gradient of "
                           "'%s'",
                           (long long)s->elements, (long long)all, p.name);
        const double norm = sqrt(s->norm);
        bool noise = j->json.has_grad_norm && norm < j->limits->small * global;
        snprintf(label, sizeof label, "grad %.120s%s", p.name,
                 noise ? " (noise: against the global norm)" : "");
        TRY(add_figure(j, label, sqrt(s->diff) / (noise ? global : norm),
                       noise ? j->limits->noise : j->limits->grad, e));
    }
    return 0;
}

static int make_figures(struct job *j, const struct verifier *v, struct err *e) {
    const struct reference *ref = &j->json;
    char label[64];
    TRY(add_figure(j, "loss", fabs(v->loss - ref->loss) / fabs(ref->loss), j->limits->loss, e));
    if (j->sums[0].elements > 0)
        TRY(add_figure(j, "logits", sqrt(j->sums[0].diff / j->sums[0].norm), j->limits->logits, e));
    if (v->chosen > 0)
        TRY(add_figure(j, "greedy tokens that differ, share", (double)v->wrong / (double)v->chosen,
                       j->limits->greedy, e));
    TRY(gradient_figures(j, e));
    if (ref->has_grad_norm)
        TRY(add_figure(j, "gradient norm", fabs(v->norm - ref->grad_norm) / ref->grad_norm,
                       norm_limit(j), e));
    snprintf(label, sizeof label, "%d AdamW steps, worst loss", ref->n_losses);
    return ref->n_losses ? add_figure(j, label, v->worst, j->limits->steps, e) : 0;
}

// What a checking executor has seen, of all ranks.
static void note_checked(struct verifier *v) {
    const struct exec_check *seen = exec_checked(v->s->exec);
    struct verify_result *out = v->job->out;
    if (!seen)
        return;
    pthread_mutex_lock(&v->job->lock);
    out->checked.ops += seen->ops;
    out->checked.lives += seen->lives;
    out->checked.used_bytes += seen->used_bytes;
    out->arena_bytes += v->plan.layout.arena_bytes;
    pthread_mutex_unlock(&v->job->lock);
}

static int verify(struct verifier *v) {
    char path[1024];
    TRY(file_join(path, sizeof path, v->job->reference, "ref.safetensors", v->e));
    TRY(safetensors_open(&v->ref, path, v->e));
    TRY(start(v));
    TRY(split_tokens(v));
    if (v->job->rounded != DTYPE_F32)
        TRY(round_weights(v));
    if (!v->job->steps_only) {
        TRY(check_forward(v));
        TRY(check_greedy(v));
    }
    TRY(check_steps(v));
    note_checked(v);
    return comm_agree(v->comm, 0, NULL, 0, v->e); // all have added their parts
}

static int verify_rank(void *arg, struct comm *c, struct err *e) {
    struct job *j = arg;
    struct verifier v = {.job = j, .comm = c, .plan = {.prefix = ""}, .e = e};
    int rc = verify(&v);
    if (rc == 0 && (!c || c->rank == 0)) {
        j->worst = v.worst;
        rc = j->steps_only ? 0 : make_figures(j, &v, e);
    }
    if (c && rc != 0)
        c->give_up(c, e->text);
    if (c)
        c->close(c); // before the memory that other ranks may still read
    engine_close(v.engine);
    plan_free(&v.plan);
    if (v.ref)
        safetensors_close(v.ref);
    free(v.tokens);
    free(v.inputs);
    return rc;
}

// The weights that train, whose gradients the reference has.
static int list_params(struct job *j, struct err *e) {
    struct plan p = {.knobs = *j->knobs, .prefix = ""};
    struct model_param param;
    bool folder, pair;
    TRY(model_shape_open(&p.shape, j->out->dir, &folder, e));
    TRY(plan_take_adapter(&p, e));
    const struct chosen chosen = plan_chosen(&p);
    const int64_t most = model_param_count(&p.shape) + adapter_param_count(&p.adapter, &p.shape);
    j->out->vocab = p.shape.vocab;
    j->params = calloc((size_t)most + 1, sizeof *j->params);
    j->sums = calloc((size_t)most + 1, sizeof *j->sums);
    if (!j->params || !j->sums)
        return err_set(e, ERR_MEMORY, "out of memory while verifying");
    for (int64_t i = 0; plan_param_at(&p, i, &param, &pair); i++)
        if (chosen_trains(&chosen, param.name, pair))
            j->params[j->n_params++] = param;
    return 0;
}

// The reference, its sizes, and room for the sums.
static int prepare(struct job *j, struct err *e) {
    char path[1024];
    struct verifier v = {.job = j, .e = e};
    TRY(file_join(path, sizeof path, j->reference, "ref.json", e));
    TRY(read_json(&j->json, path, e));
    TRY(file_join(path, sizeof path, j->reference, "ref.safetensors", e));
    TRY(safetensors_open(&v.ref, path, e));
    const int rc = find_sizes(&v);
    safetensors_close(v.ref);
    TRY(rc);
    TRY(plan_split_of(j->knobs, &j->split, e));
    j->split.every = 1; // the reference's gradients are those of all sequences
    return list_params(j, e);
}

static int run_job(struct job *j, struct err *e) {
    pthread_mutex_init(&j->lock, NULL);
    const int rc = comm_job_run(j->split.data * j->split.tensor * j->split.pipe,
                                j->knobs->comm_timeout, verify_rank, j, e);
    pthread_mutex_destroy(&j->lock);
    return rc;
}

// A path of steps may lead away from another one however small the first difference is: that of the
// weights, which 16 bits cannot hold. So before steps in 16 bits are called wrong, this compares
// two paths in float32: from the weights as they are, and from the weights rounded once.
static int allow_drift(const struct job *done, struct err *e) {
    struct verify_result *out = done->out;
    struct verify_figure *steps = &out->figures[out->n_figures - 1];
    struct knobs k = *done->knobs;
    double path[VERIFY_MAX_LOSSES] = {0};
    if (done->json.n_losses == 0 || steps->ok || !isfinite(steps->value) ||
        k.precision == PRECISION_FP32)
        return 0;
    k.precision = PRECISION_FP32;
    struct job j = *done;
    j.knobs = &k;
    j.scale = 1;
    j.how &= ~(unsigned)VERIFY_CHECKING; // what was observed is about 16 bits
    j.steps_only = true;
    j.path = path;
    TRY(run_job(&j, e));
    memcpy(j.json.losses, path, sizeof path);
    j.rounded = done->knobs->precision == PRECISION_BF16 ? DTYPE_BF16 : DTYPE_F16;
    TRY(run_job(&j, e));
    const size_t at = strlen(steps->name);
    snprintf(steps->name + at, sizeof steps->name - at, " (rounded weights alone: %.1e)", j.worst);
    steps->limit = fmax(steps->limit, DRIFTS * j.worst);
    steps->ok = steps->value <= steps->limit;
    out->ok = true;
    for (size_t i = 0; i < out->n_figures; i++)
        out->ok = out->ok && out->figures[i].ok;
    return 0;
}

int verify_folder(const char *dir, const struct knobs *k, unsigned how, struct verify_result *out,
                  struct err *e) {
    struct err own = {0};
    memset(out, 0, sizeof *out);
    if (strlen(dir) >= sizeof out->dir)
        return err_set(e, ERR_USAGE, "%s: the path is longer than %zu bytes", dir,
                       sizeof out->dir - 1);
    snprintf(out->dir, sizeof out->dir, "%s", dir);
    out->ok = true;
    out->precision = k->precision;
    struct job j = {.out = out,
                    .knobs = k,
                    .how = how,
                    .reference = k->lora_from[0] != '\0' ? k->lora_from : out->dir,
                    .limits = &limits[k->precision],
                    .scale = k->precision == PRECISION_FP16 ? VERIFY_FP16_SCALE : 1,
                    .rounded = DTYPE_F32};
    e = e ? e : &own;
    if ((k->lora_rank > 0 && !k->lora_from[0]) || k->train_freeze[0])
        return err_set(e, ERR_USAGE,
                       "%s: the reference has a gradient for every weight, so all must train; "
                       "accepted: lora.rank=0 or an adapter with a reference (lora.from), and an "
                       "empty train.freeze",
                       dir);
    int rc = prepare(&j, e);
    if (rc == 0)
        rc = run_job(&j, e);
    if (rc == 0)
        rc = allow_drift(&j, e);
    free(j.sums);
    free(j.params);
    TRY(rc);
    if (out->ok)
        return 0;
    size_t off = 0;
    for (size_t i = 0; i < out->n_figures; i++)
        off += !out->figures[i].ok;
    return err_set(e, ERR_NUMERIC, "%s: %zu of %zu figures exceed their limits", dir, off,
                   out->n_figures);
}

void verify_free(struct verify_result *r) {
    free(r->figures);
    memset(r, 0, sizeof *r);
}

static void print_figure(FILE *f, const struct verify_figure *x) {
    fprintf(f, "  %-4s %-44s %9.2e  (limit %.1e)\n", x->ok ? "ok" : "OFF", x->name, x->value,
            x->limit);
}

void verify_print(const struct verify_result *r, FILE *f, bool all) {
    const struct verify_figure *worst = NULL;
    size_t n = 0;
    fprintf(f, "%s: batch %lld x %lld, vocabulary %lld, %s\n", r->dir, (long long)r->batch,
            (long long)r->seq, (long long)r->vocab, knob_choice(KNOB_precision, (int)r->precision));
    for (size_t i = 0; i < r->n_figures; i++) {
        const struct verify_figure *x = &r->figures[i];
        bool gradient = strncmp(x->name, "grad ", 5) == 0;
        if (all || !gradient || !x->ok)
            print_figure(f, x);
        if (gradient && ++n && (!worst || x->value / x->limit > worst->value / worst->limit))
            worst = x;
    }
    if (!all && worst) {
        fprintf(f, "  %zu gradients, the worst:\n", n);
        print_figure(f, worst);
    }
    if (r->checked.ops > 0)
        fprintf(f,
                "  checked: %llu ops wrote only their outputs, %llu tensor lives ended; bytes "
                "written: %llu of %llu\n",
                (unsigned long long)r->checked.ops, (unsigned long long)r->checked.lives,
                (unsigned long long)r->checked.used_bytes, (unsigned long long)r->arena_bytes);
    fprintf(f, "  %s\n", r->ok ? "all figures agree" : "does NOT agree with the reference");
}

void verify_put_json(const struct verify_result *r, struct json_writer *w) {
    json_put_object_begin(w);
    json_member_string(w, "dir", r->dir);
    json_member_bool(w, "ok", r->ok);
    json_member_i64(w, "batch", r->batch);
    json_member_i64(w, "seq", r->seq);
    if (r->checked.ops > 0) {
        json_member_object(w, "checked");
        json_member_i64(w, "ops", (int64_t)r->checked.ops);
        json_member_i64(w, "lives", (int64_t)r->checked.lives);
        json_member_i64(w, "used_bytes", (int64_t)r->checked.used_bytes);
        json_member_i64(w, "arena_bytes", (int64_t)r->arena_bytes);
        json_put_object_end(w);
    }
    json_member_array(w, "figures");
    for (size_t i = 0; i < r->n_figures; i++) {
        json_put_object_begin(w);
        json_member_string(w, "name", r->figures[i].name);
        json_member_double(w, "value", r->figures[i].value);
        json_member_double(w, "limit", r->figures[i].limit);
        json_member_bool(w, "ok", r->figures[i].ok);
        json_put_object_end(w);
    }
    json_put_array_end(w);
    json_put_object_end(w);
}
