// verify.c - see verify.h. The order matters. Loss, logits and greedy tokens use the weights as
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

#include <math.h>
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

struct verifier {
    struct verify_result *out;
    const struct verify_limits *limits;
    double scale; // of the loss, and so of the gradients
    struct plan plan;
    struct engine *engine;
    struct session *s; // of the engine
    struct safetensors *ref;
    struct reference json;
    int32_t *tokens;                                   // [B][T+1]
    int32_t *inputs, *targets, *positions, *doc_start; // [B*T]
    int64_t B, T;
    struct err *e;
};

// ---------------------------------------------------------------- figures

static int add_figure(struct verifier *v, const char *name, double value, double limit) {
    struct verify_result *r = v->out;
    if (!array_room(&r->figures, r->n_figures, 1, &r->capacity, sizeof *r->figures, 16))
        return err_set(v->e, ERR_MEMORY, "out of memory while verifying");
    struct verify_figure *f = &r->figures[r->n_figures++];
    snprintf(f->name, sizeof f->name, "%s", name);
    f->value = value, f->limit = limit;
    f->ok = value <= limit; // false for NaN
    r->ok = r->ok && f->ok;
    return 0;
}

static void norms(const float *ours, double scale, const float *ref, int64_t n, double *diff,
                  double *norm) {
    double d = 0, s = 0;
    for (int64_t i = 0; i < n; i++) {
        double x = (double)ours[i] / scale - ref[i];
        d += x * x;
        s += (double)ref[i] * ref[i];
    }
    *diff = sqrt(d), *norm = sqrt(s);
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
            v->out->dir, name);
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
                         v->out->dir, name, (*out)[i], (long long)v->plan.shape.vocab);
    return rc;
}

static int find_sizes(struct verifier *v) {
    const struct safetensors_entry *t = safetensors_find(v->ref, "tokens");
    if (!t || t->rank != 2 || t->dims[0] < 1 || t->dims[1] < 2 || t->elements > (1 << 26))
        return err_set(v->e, ERR_FORMAT, "%s: ref.safetensors has no 'tokens' of shape [B, T+1]",
                       v->out->dir);
    v->B = v->out->batch = t->dims[0];
    v->T = v->out->seq = t->dims[1] - 1;
    return 0;
}

// ---------------------------------------------------------------- running

static int start(struct verifier *v, const struct knobs *base, unsigned how) {
    struct knobs k = *base;
    if (v->B > 65536 || v->T > 1048576)
        return err_set(v->e, ERR_FORMAT,
                       "%s: 'tokens' is [%lld, %lld]; accepted: up to [65536, 1048577]",
                       v->out->dir, (long long)v->B, (long long)v->T + 1);
    snprintf(k.model, sizeof k.model, "%s", v->out->dir);
    k.batch_micro = v->B, k.batch_accum = 1, k.seq = v->T;
    k.optim_decay_all = true; // the reference decays every parameter
    const struct safetensors_entry *greedy = safetensors_find(v->ref, "greedy");
    const struct plan_options o = {
        .knobs = &k,
        .programs = {PLAN_TRAIN, PLAN_EVAL, greedy ? PLAN_GENERATE : NULL},
        .generate_batch = v->B,
        .generate_seq = greedy && greedy->rank == 2 ? VERIFY_PROMPT + greedy->dims[1] : 0,
        .real = DTYPE_F32,
        .keep_gradients = true,
        .keep_logits = true};
    const struct engine_options run = {.reference = how & VERIFY_REFERENCE,
                                       .checking = how & VERIFY_CHECKING};
    TRY(plan_make(&v->plan, &o, v->e));
    TRY(engine_start(&v->engine, &run, &v->plan, v->e));
    v->s = v->engine->session;
    v->out->vocab = v->plan.shape.vocab;
    return 0;
}

static int split_tokens(struct verifier *v) {
    size_t n = (size_t)(v->B * v->T);
    TRY(read_ids(v, "tokens", v->B, v->T + 1, &v->tokens));
    v->inputs = calloc(4 * n + 1, sizeof *v->inputs);
    if (!v->inputs)
        return err_set(v->e, ERR_MEMORY, "out of memory while verifying");
    v->targets = v->inputs + n, v->positions = v->targets + n, v->doc_start = v->positions + n;
    for (int64_t b = 0; b < v->B; b++)
        for (int64_t t = 0; t < v->T; t++) {
            v->inputs[b * v->T + t] = v->tokens[b * (v->T + 1) + t];
            v->targets[b * v->T + t] = v->tokens[b * (v->T + 1) + t + 1];
            v->positions[b * v->T + t] = (int32_t)t;
        }
    return 0;
}

static int feed(void *arg, int micro, struct exec_batch *out, struct err *e) {
    const struct verifier *v = arg;
    (void)micro;
    (void)e;
    *out = (struct exec_batch){v->inputs, v->targets, v->positions, v->doc_start};
    return 0;
}

static int set_hyper(struct verifier *v, int step) {
    const struct reference *j = &v->json;
    double h[HYPER_COUNT] = {[HYPER_LR] = j->lr,
                             [HYPER_BETA1] = j->beta1,
                             [HYPER_BETA2] = j->beta2,
                             [HYPER_EPS] = j->eps,
                             [HYPER_DECAY] = j->decay,
                             [HYPER_CLIP] = j->clip,
                             [HYPER_BIAS1] = 1.0 - pow(j->beta1, step + 1),
                             [HYPER_BIAS2] = 1.0 - pow(j->beta2, step + 1),
                             [HYPER_LOSS_FACTOR] = v->scale / (double)(v->B * v->T),
                             [HYPER_SCALE] = v->scale,
                             [HYPER_DRAW] = step};
    return session_set_hyper(v->s, h, v->e);
}

// Compares a tensor of the engine with one of the reference. Each is read in one piece.
static int compare(struct verifier *v, const char *in, const char *ours, double scale,
                   const char *ref, double *diff, double *norm) {
    int t = plan_tensor(&v->plan, in, ours);
    const struct safetensors_entry *r = safetensors_find(v->ref, ref);
    if (t < 0)
        return err_set(v->e, ERR_FORMAT, "%s: the model has no tensor '%s'", v->out->dir, ours);
    int64_t n = tensor_elements(&plan_program(&v->plan, in)->tensors[t]);
    enum dtype type = plan_program(&v->plan, in)->tensors[t].dtype;
    if (!r || r->elements != n)
        return err_set(v->e, ERR_FORMAT, "%s: ref.safetensors has no '%s' of %lld elements",
                       v->out->dir, ref, (long long)n);
    float *a = malloc((size_t)n * sizeof *a + 1), *b = malloc((size_t)n * sizeof *b + 1);
    int rc = a && b ? 0 : err_set(v->e, ERR_MEMORY, "out of memory while comparing '%s'", ours);
    if (rc == 0) // b first holds the engine's tensor, in that tensor's type
        rc = exec_read(v->s->exec, plan_find(&v->plan, in), t, b, (uint64_t)n * dtype_bytes(type),
                       v->e);
    if (rc == 0)
        dtype_convert(a, DTYPE_F32, b, type, (size_t)n);
    if (rc == 0)
        rc = safetensors_read(v->ref, r, 0, n, b, DTYPE_F32, v->e);
    if (rc == 0)
        norms(a, scale, b, n, diff, norm);
    free(a);
    free(b);
    return rc;
}

static int check_forward(struct verifier *v) {
    double results[RESULT_COUNT], diff, norm;
    TRY(set_hyper(v, 0));
    TRY(session_run(v->s, PLAN_EVAL, feed, v, NULL, v->e));
    TRY(session_get_results(v->s, results, NULL, v->e));
    double loss = results[RESULT_LOSS_SUM] / results[RESULT_TOKENS];
    TRY(add_figure(v, "loss", fabs(loss - v->json.loss) / fabs(v->json.loss), v->limits->loss));
    if (!safetensors_find(v->ref, "logits"))
        return 0;
    TRY(compare(v, PLAN_EVAL, NAME_LOGITS, 1, "logits", &diff, &norm));
    return add_figure(v, "logits", diff / norm, v->limits->logits);
}

static int check_greedy(struct verifier *v) {
    if (!plan_program(&v->plan, PLAN_GENERATE))
        return 0;
    int32_t *expected = NULL, *tokens = NULL;
    int64_t *lengths = NULL, n = plan_program(&v->plan, PLAN_GENERATE)->seq - VERIFY_PROMPT,
            wrong = 0;
    int64_t capacity = VERIFY_PROMPT + n,
            prompt = v->T + 1 < VERIFY_PROMPT ? v->T + 1 : VERIFY_PROMPT;
    int rc = read_ids(v, "greedy", v->B, n, &expected);
    if (rc == 0) {
        tokens = calloc((size_t)(v->B * capacity), sizeof *tokens);
        lengths = calloc((size_t)v->B, sizeof *lengths);
        rc = tokens && lengths ? 0 : err_set(v->e, ERR_MEMORY, "out of memory while verifying");
    }
    for (int64_t b = 0; rc == 0 && b < v->B; b++) {
        memcpy(tokens + b * capacity, v->tokens + b * (v->T + 1), (size_t)prompt * sizeof *tokens);
        lengths[b] = prompt;
    }
    bool exact = v->limits->greedy == 0;
    for (int64_t i = 0; rc == 0 && i < n; i += exact ? n : 1) {
        rc = session_generate(v->s, tokens, capacity, lengths, v->B, exact ? n : 1, v->e);
        for (int64_t b = 0; rc == 0 && b < v->B; b++)
            for (int64_t k = i; k < (exact ? n : i + 1); k++) {
                int32_t *token = &tokens[b * capacity + prompt + k];
                wrong += *token != expected[b * n + k];
                *token = expected[b * n + k];
            }
    }
    if (rc == 0)
        rc = add_figure(v, "greedy tokens that differ, share",
                        v->B * n > 0 ? (double)wrong / (double)(v->B * n) : 0, v->limits->greedy);
    free(lengths);
    free(tokens);
    free(expected);
    return rc;
}

static int check_gradients(struct verifier *v) {
    struct model_param p;
    double diff, norm, global = v->json.grad_norm;
    for (int64_t i = 0; model_param_at(&v->plan.shape, i, &p); i++) {
        char ours[160], ref[160], label[160];
        snprintf(ours, sizeof ours, "d.%s", p.name);
        snprintf(ref, sizeof ref, "grad.%s", p.name);
        if (!safetensors_find(v->ref, ref))
            return err_set(v->e, ERR_FORMAT, "%s: ref.safetensors has no '%s'", v->out->dir, ref);
        TRY(compare(v, PLAN_TRAIN, ours, v->scale, ref, &diff, &norm));
        bool noise = v->json.has_grad_norm && norm < v->limits->small * global;
        snprintf(label, sizeof label, "grad %.120s%s", p.name,
                 noise ? " (noise: against the global norm)" : "");
        TRY(add_figure(v, label, diff / (noise ? global : norm),
                       noise ? v->limits->noise : v->limits->grad));
    }
    return 0;
}

static int check_steps(struct verifier *v) {
    double results[RESULT_COUNT], clip[CLIP_COUNT], worst = 0;
    int n = v->json.n_losses > 0 ? v->json.n_losses : 1; // at least one turn, for the gradients
    for (int i = 0; i < n; i++) {
        TRY(set_hyper(v, i));
        TRY(session_run(v->s, PLAN_TRAIN, feed, v, NULL, v->e));
        TRY(session_get_results(v->s, results, clip, v->e));
        double loss = results[RESULT_LOSS_SUM] / results[RESULT_TOKENS];
        if (i == 0) {
            TRY(check_gradients(v));
            if (v->json.has_grad_norm)
                TRY(add_figure(v, "gradient norm",
                               fabs(clip[CLIP_NORM] - v->json.grad_norm) / v->json.grad_norm,
                               v->limits->norm));
        }
        if (i < v->json.n_losses) {
            double off = fabs(loss - v->json.losses[i]) / fabs(v->json.losses[i]);
            worst = off > worst || isnan(off) ? off : worst;
        }
    }
    char label[64];
    snprintf(label, sizeof label, "%d AdamW steps, worst loss", v->json.n_losses);
    return v->json.n_losses ? add_figure(v, label, worst, v->limits->steps) : 0;
}

static int verify(struct verifier *v, const struct knobs *k, unsigned how) {
    char path[1024];
    TRY(file_join(path, sizeof path, v->out->dir, "ref.json", v->e));
    TRY(read_json(&v->json, path, v->e));
    TRY(file_join(path, sizeof path, v->out->dir, "ref.safetensors", v->e));
    TRY(safetensors_open(&v->ref, path, v->e));
    TRY(find_sizes(v));
    TRY(start(v, k, how));
    TRY(split_tokens(v));
    TRY(check_forward(v));
    TRY(check_greedy(v));
    TRY(check_steps(v));
    if (exec_checked(v->s->exec)) {
        v->out->checked = *exec_checked(v->s->exec);
        v->out->arena_bytes = v->plan.layout.arena_bytes;
    }
    if (v->out->ok)
        return 0;
    size_t off = 0;
    for (size_t i = 0; i < v->out->n_figures; i++)
        off += !v->out->figures[i].ok;
    return err_set(v->e, ERR_NUMERIC, "%s: %zu of %zu figures exceed their limits", v->out->dir,
                   off, v->out->n_figures);
}

int verify_folder(const char *dir, const struct knobs *k, unsigned how, struct verify_result *out,
                  struct err *e) {
    memset(out, 0, sizeof *out);
    if (strlen(dir) >= sizeof out->dir)
        return err_set(e, ERR_USAGE, "%s: the path is longer than %zu bytes", dir,
                       sizeof out->dir - 1);
    snprintf(out->dir, sizeof out->dir, "%s", dir);
    out->ok = true;
    out->precision = k->precision;
    struct verifier v = {.out = out,
                         .limits = &limits[k->precision],
                         .scale = k->precision == PRECISION_FP16 ? VERIFY_FP16_SCALE : 1,
                         .e = e};
    int rc = verify(&v, k, how);
    engine_close(v.engine);
    plan_free(&v.plan);
    if (v.ref)
        safetensors_close(v.ref);
    free(v.tokens);
    free(v.inputs);
    return rc;
}

void verify_free(struct verify_result *r) {
    free(r->figures);
    memset(r, 0, sizeof *r);
}

static void print_figure(FILE *f, const struct verify_figure *x) {
    fprintf(f, "  %-4s %-44s %9.2e  (limit %.0e)\n", x->ok ? "ok" : "OFF", x->name, x->value,
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
