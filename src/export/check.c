// check.c - reads an exported folder back as another program would. It checks every file's
// hash, compares every weight with the checkpoint's, then compares loss and logits of a session on
// the folder with those of a session on the checkpoint.
//
// Each figure has a limit that it must not exceed. Weights that were not rounded must be the same
// bits (limit 0). Weights rounded to 16 bits are compared with the checkpoint's after the same
// rounding, again with limit 0. The limits of loss and logits then only bound the cost of rounding.
// Half a unit in the last place of each weight is a relative error of 2^-9 (bf16) or 2^-12 (fp16),
// and a network of dozens of layers multiplies that by less than ten
// (measured on the built-in tiny: 4e-3 and 6e-4 of the logits' norm, 1e-5 of the loss).
#include "export/parts.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/rng.h"
#include "base/text.h"
#include "engine/engine.h"
#include "train/adapted.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// The prompt has two rows: one of small ids, as text has them, and one over the whole vocabulary.
enum { ROWS = 2, COLUMNS = 32, PROMPT_SEED = 20250101, HASH_CHUNK = 1 << 20 };

int export_add_figure(struct exporter *x, const char *name, double value, double limit) {
    struct export_result *r = x->out;
    if (r->n_figures == EXPORT_FIGURES_MOST)
        return err_set(x->e, ERR_INTERNAL, "an export has more than %d figures",
                       EXPORT_FIGURES_MOST);
    struct export_figure *f = &r->figures[r->n_figures++];
    *f = (struct export_figure){.value = value, .limit = limit};
    snprintf(f->name, sizeof f->name, "%s", name);
    f->ok = limit < 0 || value <= limit; // false for NaN
    r->ok = r->ok && f->ok;
    return 0;
}

// ---------------------------------------------------------------- files

static int hash_fd(int fd, const struct export_file *f, char out[HASH_TEXT_BYTES], bool *same) {
    struct stat st;
    char *buffer = malloc(HASH_CHUNK);
    struct hash *h = hash_new();
    ssize_t n = -1;
    *same = false;
    if (buffer != NULL && h != NULL && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
        (uint64_t)st.st_size == f->bytes) {
        while ((n = read(fd, buffer, HASH_CHUNK)) > 0 || (n < 0 && errno == EINTR))
            if (n > 0)
                hash_add(h, buffer, (size_t)n);
        hash_text(h, out);
        *same = n == 0 && strcmp(out, f->hash) == 0;
    }
    bool memory = buffer != NULL && h != NULL;
    hash_free(h);
    free(buffer);
    return memory ? 0 : ERR_MEMORY;
}

// Reads every file again, from the disk as far as the kernel allows.
static int check_files(struct exporter *x, char damaged[EXPORT_NAME_BYTES]) {
    int64_t bad = 0;
    char path[PATH_MAX], hash[HASH_TEXT_BYTES];
    damaged[0] = '\0';
    for (size_t i = 0; i < x->out->n_files; i++) {
        const struct export_file *f = &x->out->files[i];
        bool same = false;
        TRY(file_join(path, sizeof path, x->dir, f->name, x->e));
        int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        if (fd >= 0) {
            // The file is on the disk already: drop it from the page cache, so that it is read.
            posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
            int rc = hash_fd(fd, f, hash, &same);
            close(fd);
            if (rc != 0)
                return err_set(x->e, rc, "no memory to verify '%s'", path);
        }
        if (!same && bad++ == 0)
            snprintf(damaged, EXPORT_NAME_BYTES, "%s", f->name);
    }
    return export_add_figure(x, "files that are not as written", (double)bad, 0);
}

// ---------------------------------------------------------------- weights

struct pair {
    void *theirs, *wide, *ours; // EXPORT_BLOCK elements of up to 8 bytes each
};

static int compare_param(struct exporter *x, struct weights *exported, const struct model_param *p,
                         const struct pair *b, int64_t *differ, enum dtype *type) {
    const struct safetensors_entry *a = weights_find_param(exported, &x->shape, p, x->e);
    if (a == NULL)
        return x->e != NULL ? x->e->code : ERR_FORMAT;
    size_t size = dtype_bytes(a->dtype);
    *type = a->dtype;
    for (int64_t at = 0; at < a->elements; at += EXPORT_BLOCK) {
        int64_t n = a->elements - at < EXPORT_BLOCK ? a->elements - at : EXPORT_BLOCK;
        TRY(weights_read(exported, a, at, n, b->theirs, a->dtype, x->e));
        TRY(export_read(x, p, at, n, b->wide));
        void *ours = a->dtype == DTYPE_F32 ? b->wide : b->ours;
        if (ours == b->ours)
            dtype_convert(b->ours, a->dtype, b->wide, DTYPE_F32, (size_t)n);
        if (memcmp(b->theirs, ours, (size_t)n * size) == 0)
            continue;
        for (int64_t i = 0; i < n; i++)
            *differ += memcmp((char *)b->theirs + (size_t)i * size, (char *)ours + (size_t)i * size,
                              size) != 0;
    }
    return 0;
}

// *narrowest: the type with the fewest digits among the exported tensors.
static int check_weights(struct exporter *x, enum dtype *narrowest) {
    struct weights *exported;
    struct pair b = {malloc(EXPORT_BLOCK * 8), malloc(EXPORT_BLOCK * 8), malloc(EXPORT_BLOCK * 8)};
    struct model_param p;
    enum dtype type = DTYPE_F32;
    int64_t differ = 0;
    bool bf16 = false, f16 = false;
    int rc = weights_open(&exported, x->dir, x->e);
    if (rc == 0 && (b.theirs == NULL || b.wide == NULL || b.ours == NULL))
        rc = err_set(x->e, ERR_MEMORY, "no memory to compare weights");
    for (int64_t i = 0; rc == 0 && model_param_at(&x->shape, i, &p); i++) {
        rc = compare_param(x, exported, &p, &b, &differ, &type);
        bf16 = bf16 || type == DTYPE_BF16;
        f16 = f16 || type == DTYPE_F16;
    }
    *narrowest = bf16 ? DTYPE_BF16 : f16 ? DTYPE_F16 : DTYPE_F32;
    if (exported != NULL)
        weights_close(exported);
    free(b.theirs);
    free(b.wide);
    free(b.ours);
    TRY(rc);
    return export_add_figure(x,
                             *narrowest == DTYPE_F32
                                 ? "weights that differ from the checkpoint's"
                                 : "weights that differ from the checkpoint's, rounded",
                             (double)differ, 0);
}

// ---------------------------------------------------------------- loss and logits

struct prompt {
    int64_t T;
    int32_t tokens[ROWS * (COLUMNS + 1)]; // [ROWS][T + 1]
    int32_t inputs[ROWS * COLUMNS], targets[ROWS * COLUMNS], positions[ROWS * COLUMNS];
    int32_t doc_start[ROWS * COLUMNS];
};

static void make_prompt(struct prompt *p, const struct model_shape *s) {
    const int64_t longest = model_shape_longest(s);
    *p = (struct prompt){.T = longest < COLUMNS ? longest : COLUMNS};
    for (int64_t b = 0; b < ROWS; b++) {
        int64_t most = b == 0 && s->vocab > 256 ? 256 : s->vocab;
        for (int64_t t = 0; t <= p->T; t++)
            p->tokens[b * (p->T + 1) + t] =
                (int32_t)rng_below(PROMPT_SEED, (uint64_t)b, (uint64_t)t, (uint64_t)most);
        for (int64_t t = 0; t < p->T; t++) {
            p->inputs[b * p->T + t] = p->tokens[b * (p->T + 1) + t];
            p->targets[b * p->T + t] = p->tokens[b * (p->T + 1) + t + 1];
            p->positions[b * p->T + t] = (int32_t)t;
        }
    }
}

static int feed(void *arg, int micro, struct exec_batch *out, struct err *e) {
    const struct prompt *p = arg;
    (void)micro;
    (void)e;
    *out = (struct exec_batch){p->inputs, p->targets, p->positions, p->doc_start};
    return 0;
}

struct answer {
    double loss;
    float *logits; // [ROWS * T][V]
};

static int read_answer(struct session *s, int64_t rows, struct answer *out, struct err *e) {
    const int t = plan_tensor(s->plan, PLAN_EVAL, NAME_LOGITS);
    const int64_t V = s->plan->shape.vocab;
    double results[RESULT_COUNT];
    if (t < 0)
        return err_set(e, ERR_INTERNAL, "the evaluation keeps no logits");
    const struct tensor *logits = &plan_program(s->plan, PLAN_EVAL)->tensors[t];
    const int64_t ld = logits->ld; // with the vocabulary's padding
    if (logits->local[0] != rows || ld < V || logits->dtype != DTYPE_F32)
        return err_set(e, ERR_INTERNAL, "the evaluation keeps other logits");
    out->logits = malloc((size_t)(rows * ld) * sizeof *out->logits);
    if (out->logits == NULL)
        return err_set(e, ERR_MEMORY, "no memory for %" PRId64 " logits", rows * ld);
    TRY(session_get_results(s, results, NULL, e));
    out->loss = results[RESULT_LOSS_SUM] / results[RESULT_TOKENS];
    TRY(exec_read(s->exec, plan_find(s->plan, PLAN_EVAL), t, out->logits,
                  (uint64_t)(rows * ld) * sizeof *out->logits, e));
    for (int64_t i = 1; i < rows && ld > V; i++)
        memmove(out->logits + i * V, out->logits + i * ld, (size_t)V * sizeof *out->logits);
    return 0;
}

static int take_model(const struct exporter *x, struct knobs *k, const char *dir) {
    char full[PATH_MAX];
    if (realpath(dir, full) == NULL || strlen(full) >= sizeof k->model)
        return err_set(x->e, ERR_USAGE, "'%.300s' does not exist or its full path is too long",
                       dir);
    strcpy(k->model, full); // absolute, because a folder may have the name of a built-in shape
    return 0;
}

int export_subject_knobs(const struct exporter *x, const struct export_subject *who,
                         struct knobs *k) {
    const struct export_adapter *a = &x->adapter;
    const bool adapted = export_is_adapter(x) && (who->checkpoint || !x->merges);
    const char *dir = who->checkpoint ? x->out->checkpoint : x->dir;
    bool found;
    *k = *x->o->knobs;
    k->precision = PRECISION_FP32;
    if (!adapted)
        return take_model(x, k, dir);
    if (who->checkpoint)
        TRY(adapted_find(dir, k, &found, x->e));
    else
        TRY(knobs_set_at(k, KNOB_lora_from, dir, SET_BY_PLANNER, x->e));
    k->seed = a->knobs.seed;
    if (a->base != NULL)
        return take_model(x, k, a->knobs.model);
    strcpy(k->model, a->knobs.model);
    return 0;
}

int export_subject_fill(const struct exporter *x, const struct export_subject *who,
                        struct session *s) {
    return export_is_adapter(x) && who->checkpoint ? adapted_fill(s, x->out->checkpoint, x->e) : 0;
}

// Runs the prompt in a new session, so that nothing is left from the one before.
static int ask(const struct exporter *x, bool checkpoint, const struct prompt *p,
               struct answer *out) {
    const struct export_subject who = {.checkpoint = checkpoint};
    struct knobs k;
    struct plan plan = {0};
    struct engine *engine = NULL;
    const struct plan_options o = {
        .knobs = &k, .programs = {PLAN_EVAL}, .real = DTYPE_F32, .keep_logits = true};
    double hyper[HYPER_COUNT] = {[HYPER_LOSS_FACTOR] = 1.0 / (double)(ROWS * p->T)};
    TRY(export_subject_knobs(x, &who, &k));
    k.batch_micro = ROWS, k.batch_accum = 1, k.seq = p->T;
    int rc = plan_make(&plan, &o, x->e);
    if (rc == 0)
        rc = engine_start(&engine, NULL, &plan, x->e);
    if (rc == 0)
        rc = export_subject_fill(x, &who, engine->session);
    if (rc == 0)
        rc = session_set_hyper(engine->session, hyper, x->e);
    if (rc == 0)
        rc = session_run(engine->session, PLAN_EVAL, feed, (void *)(uintptr_t)p, NULL, x->e);
    if (rc == 0)
        rc = read_answer(engine->session, ROWS * p->T, out, x->e);
    engine_close(engine);
    plan_free(&plan);
    return rc;
}

static double log_sum_exp(const float *row, int64_t n, int64_t *largest) {
    int64_t at = 0;
    double sum = 0;
    for (int64_t i = 1; i < n; i++)
        if (row[i] > row[at])
            at = i;
    for (int64_t i = 0; i < n; i++)
        sum += exp((double)row[i] - (double)row[at]);
    *largest = at;
    return (double)row[at] + log(sum);
}

struct distance {
    double logits; // L2 norm of the difference, divided by the L2 norm of the checkpoint's logits
    double kl;     // mean over the positions, in nats
    double top1;   // share of positions whose likeliest token differs
};

static void measure(const struct answer *a, const struct answer *b, int64_t rows, int64_t V,
                    struct distance *d) {
    double difference = 0, norm = 0, kl = 0, other = 0;
    for (int64_t r = 0; r < rows; r++) {
        const float *p = a->logits + r * V, *q = b->logits + r * V;
        int64_t best_p, best_q;
        double lp = log_sum_exp(p, V, &best_p), lq = log_sum_exp(q, V, &best_q);
        for (int64_t i = 0; i < V; i++) {
            double x = (double)p[i], y = (double)q[i];
            difference += (x - y) * (x - y);
            norm += x * x;
            kl += exp(x - lp) * ((x - lp) - (y - lq));
        }
        other += best_p != best_q;
    }
    d->logits = norm > 0 ? sqrt(difference / norm) : sqrt(difference);
    d->kl = fmax(kl / (double)rows, 0);
    d->top1 = other / (double)rows;
}

static int compare_answers(struct exporter *x, enum dtype narrowest, const struct prompt *p,
                           const struct answer *checkpoint, const struct answer *exported) {
    struct distance d;
    double limit = narrowest == DTYPE_BF16 ? 5e-2 : narrowest == DTYPE_F16 ? 1e-2 : 0;
    // W + scale B A is rounded once in float32, and the sums of a merged model have another order.
    if (limit == 0 && export_is_adapter(x) && (x->merges || x->adapter.adapter.rslora))
        limit = 1e-4;
    double loss_limit = limit / 5; // errors of single logits average out
    bool exact = limit == 0;
    double loss = fabs(exported->loss - checkpoint->loss) / fabs(checkpoint->loss);
    measure(checkpoint, exported, ROWS * p->T, x->shape.vocab, &d);
    TRY(export_add_figure(x, "loss on fixed tokens, relative difference",
                          exported->loss == checkpoint->loss ? 0 : loss, loss_limit));
    TRY(export_add_figure(x, "logits on fixed tokens, relative L2 of the difference", d.logits,
                          limit));
    TRY(export_add_figure(x, "KL divergence from the checkpoint, nats per token", d.kl,
                          exact ? 0 : -1));
    return export_add_figure(x, "share of tokens whose likeliest successor differs", d.top1,
                             exact ? 0 : -1);
}

// ---------------------------------------------------------------- the probe

static void put_rows(struct json_writer *w, const char *key, const int32_t *ids, int64_t columns) {
    json_member_array(w, key);
    for (int64_t b = 0; b < ROWS; b++) {
        json_put_array_begin(w);
        for (int64_t t = 0; t < columns; t++)
            json_put_i64(w, ids[b * columns + t]);
        json_put_array_end(w);
    }
    json_put_array_end(w);
}

// The loss of each position, and the logits of each row's last position. The logits of all
// positions would be gigabytes of text for a large vocabulary.
static void put_answer(struct json_writer *w, const struct prompt *p, const struct answer *a,
                       int64_t V) {
    json_member_double(w, "loss", a->loss);
    json_member_array(w, "losses");
    for (int64_t i = 0; i < ROWS * p->T; i++) {
        int64_t best;
        const float *row = a->logits + i * V;
        if (i % p->T == 0)
            json_put_array_begin(w);
        json_put_double(w, log_sum_exp(row, V, &best) - (double)row[p->targets[i]]);
        if (i % p->T == p->T - 1)
            json_put_array_end(w);
    }
    json_put_array_end(w);
    json_member_array(w, "last_logits");
    for (int64_t b = 0; b < ROWS; b++) {
        const float *row = a->logits + (b * p->T + p->T - 1) * V;
        json_put_array_begin(w);
        for (int64_t i = 0; i < V; i++)
            json_put_double(w, (double)row[i]);
        json_put_array_end(w);
    }
    json_put_array_end(w);
}

// Writes what another program needs to repeat the computation (scripts/check_export.py).
static int write_probe(struct exporter *x, const struct prompt *p, const struct answer *a) {
    struct json_writer w;
    if (x->o->probe == NULL)
        return 0;
    json_writer_to_buffer(&w, 0);
    json_put_object_begin(&w);
    json_member_string(&w, "haggle", HAGGLE_VERSION);
    put_rows(&w, "tokens", p->tokens, p->T + 1);
    put_answer(&w, p, a, x->shape.vocab);
    int rc = export_put_texts(x, &w);
    json_put_object_end(&w);
    if (rc == 0)
        rc = json_writer_finish(&w, x->e);
    if (rc == 0)
        rc = file_write_atomic(x->o->probe, w.buffer, w.bytes, x->e);
    free(w.buffer);
    return rc;
}

int export_probe_source(struct exporter *x) {
    struct prompt p;
    struct answer source = {0};
    if (x->o->probe == NULL)
        return 0;
    snprintf(x->dir, sizeof x->dir, "%s", x->tokenizer_dir);
    make_prompt(&p, &x->shape);
    int rc = ask(x, true, &p, &source);
    if (rc == 0)
        rc = write_probe(x, &p, &source);
    free(source.logits);
    return rc;
}

static int check_model(struct exporter *x, enum dtype narrowest) {
    struct prompt p;
    struct answer checkpoint = {0}, exported = {0};
    make_prompt(&p, &x->shape);
    int rc = ask(x, true, &p, &checkpoint);
    if (rc == 0)
        rc = ask(x, false, &p, &exported);
    if (rc == 0)
        rc = compare_answers(x, narrowest, &p, &checkpoint, &exported);
    if (rc == 0)
        rc = write_probe(x, &p, &exported);
    free(checkpoint.logits);
    free(exported.logits);
    return rc;
}

// ---------------------------------------------------------------- all

static int verdict(struct exporter *x, const char *damaged) {
    const struct export_result *r = x->out;
    size_t off = 0, first = 0;
    for (size_t i = r->n_figures; i-- > 0;)
        if (!r->figures[i].ok) {
            off++;
            first = i;
        }
    if (off == 0)
        return 0;
    const struct export_figure *f = &r->figures[first];
    return err_set(
        x->e, ERR_NUMERIC,
        "'%s' is not the checkpoint that was exported: %zu of %zu figures exceed their limits; the "
        "first is: %s%s%s: %.3g, limit %.3g",
        x->dir, off, r->n_figures, f->name, *damaged ? ", such as " : "", damaged, f->value,
        f->limit);
}

int export_check_folder(struct exporter *x) {
    enum dtype narrowest = DTYPE_F32;
    char damaged[EXPORT_NAME_BYTES];
    TRY(check_files(x, damaged));
    if (*damaged) // the model need not be loaded from a damaged file
        return verdict(x, damaged);
    TRY(export_writes_adapter(x) ? export_check_adapter(x) : check_weights(x, &narrowest));
    if (export_writes_adapter(x))
        narrowest = x->adapter.narrowest;
    TRY(check_model(x, narrowest));
    if (x->merges)
        TRY(export_compare_losses(x));
    TRY(export_check_tokens(x));
    return verdict(x, damaged);
}

// ---------------------------------------------------------------- telling

static void print_figure(FILE *f, const struct export_figure *x) {
    if (x->limit < 0)
        fprintf(f, "       %-54s %9.2e\n", x->name, x->value);
    else
        fprintf(f, "  %-4s %-54s %9.2e  (limit %g)\n", x->ok ? "ok" : "OFF", x->name, x->value,
                x->limit);
}

static void print_first(const struct export_result *r, FILE *f) {
    char bytes[TEXT_UNIT_BYTES];
    text_bytes(bytes, r->bytes);
    if (r->architecture == NULL)
        fprintf(f, "%s: step %" PRId64 " of %s, %zu files, %s\n", r->out_dir, r->step,
                r->checkpoint, r->n_files + 1, bytes);
    else
        fprintf(f,
                "%s: %s of %s, %" PRId64 " tensors, %s, %s\n  tokenizer: %s; chat template: %s\n",
                r->out_dir, r->architecture, r->checkpoint, r->tensors, r->dtype, bytes,
                r->tokenizer, r->chat ? "yes" : "none");
}

void export_print(const struct export_result *r, FILE *f) {
    print_first(r, f);
    for (size_t i = 0; i < r->n_figures; i++)
        print_figure(f, &r->figures[i]);
    if (r->loss_tokens > 0)
        fprintf(f,
                "  loss on %" PRId64 " tokens of validation data: %.6f before merging, %.6f "
                "after\n",
                r->loss_tokens, r->loss_before, r->loss_after);
    const char *at = r->remarks.lines, *sentence;
    size_t n;
    while (sentences_next(&at, &sentence, &n))
        fprintf(f, "  note: %.*s\n", (int)n, sentence);
    if (r->architecture != NULL)
        fprintf(f, "  %s\n", r->ok ? "read back as it is in the source" : "NOT what was exported");
    else
        fprintf(f, "  %s\n", r->ok ? "read back as it was trained" : "NOT what was trained");
}

void export_put_json(const struct export_result *r, struct json_writer *w) {
    json_member_string(w, "out_dir", r->out_dir);
    json_member_string(w, "checkpoint", r->checkpoint);
    json_member_i64(w, "step", r->step);
    json_member_i64(w, "bytes", (int64_t)r->bytes);
    if (r->architecture != NULL) {
        json_member_string(w, "architecture", r->architecture);
        json_member_string(w, "type", r->dtype);
        json_member_string(w, "tokenizer", r->tokenizer);
        json_member_i64(w, "tensors", r->tensors);
        json_member_bool(w, "chat_template", r->chat);
    }
    json_member_array(w, "files");
    for (size_t i = 0; i < r->n_files; i++) {
        json_put_object_begin(w);
        json_member_string(w, "name", r->files[i].name);
        json_member_i64(w, "bytes", (int64_t)r->files[i].bytes);
        json_member_string(w, "hash", r->files[i].hash);
        json_put_object_end(w);
    }
    json_put_array_end(w);
    json_member_array(w, "figures");
    for (size_t i = 0; i < r->n_figures; i++) {
        const struct export_figure *x = &r->figures[i];
        json_put_object_begin(w);
        json_member_string(w, "name", x->name);
        json_member_double(w, "value", x->value);
        json_put_key(w, "limit");
        if (x->limit >= 0)
            json_put_double(w, x->limit);
        else
            json_put_null(w);
        json_member_bool(w, "ok", x->ok);
        json_put_object_end(w);
    }
    json_put_array_end(w);
    if (r->loss_tokens > 0) {
        json_member_object(w, "merge");
        json_member_i64(w, "tokens", r->loss_tokens);
        json_member_double(w, "loss_before", r->loss_before);
        json_member_double(w, "loss_after", r->loss_after);
        json_put_object_end(w);
    }
    sentences_put_json(r->remarks.lines, "remarks", w);
    json_member_bool(w, "ok", r->ok);
}
