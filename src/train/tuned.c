// tuned.c - see tuned.h.
#include "train/tuned.h"

#include "base/clock.h"
#include "base/text.h"
#include "engine/engine.h"
#include "train/windows.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    STEP_TOKENS = 2048,     // of a step
    TURN_LOGITS = 64 << 20, // elements of a turn's logits at most, if a window is no more
    SCALE = 0,
    MINIMUM = 1,
    KINDS = 2
};

// Adam on scales and minima in units of what they began as: a step changes a scale by about RATE of
// itself, and a minimum by eight times that part of a scale, so that both move a value alike.
static const float RATE = 4e-3f, MINIMUM_RATE = 8, CODE_RATE = 1, MOVE_MOST = 4, BETA1 = 0.9f,
                   BETA2 = 0.99f;
// Of a matrix' root mean square gradient: a group that the text hardly uses is moved less.
static const float EPSILON = 0.5f;
static const double WARMUP = 0.05; // of the steps

// The trained numbers of a matrix, one of each kind per group.
struct trained {
    int64_t groups; // of the whole matrix
    float *begin;   // scales
    float *offset[KINDS], *sum[KINDS], *m[KINDS], *v[KINDS];
    float *least; // minima at the beginning
    // int4: what the codes are the rounding of, and the root mean square of its last gradients
    float *fine;
    double usual;
};

struct tuner {
    const struct tuned_options *o;
    struct tuned *out;
    struct plan plans[2]; // source, student
    struct engine *engines[2];
    struct windows windows;
    struct trained *trained; // [out->n]
    float *values;           // of the largest matrix
    void *logits;            // of a turn
    uint64_t turns;          // of a step
    struct err *e;
};

enum { SOURCE, STUDENT };

static bool minima(const struct rounded *r) {
    return r->storage.kind == STORAGE_INT4 && r->storage.minima;
}

// ---------------------------------------------------------------- opening

static int64_t turn_windows(const struct score *data) {
    const int64_t seq = data->knobs.seq, rows = TURN_LOGITS / data->vocab;
    const int64_t most = (rows < STEP_TOKENS ? rows : STEP_TOKENS) / seq;
    return most > 1 ? most : 1;
}

// What tuning takes beside the two engines.
static uint64_t host_bytes(const struct plan *p, const struct quantized *s, uint64_t logits) {
    struct model_param param;
    uint64_t sum = logits, largest = 0;
    for (int64_t i = 0; model_param_at(&p->shape, i, &param); i++) {
        const struct storage storage = quantized_as(s, &param);
        struct storage_parts parts;
        quantized_turn(&p->shape, &param);
        if (!storage_layout(storage, param.dims[0], param.dims[1], &parts))
            continue;
        const uint64_t elements = (uint64_t)(param.dims[0] * param.dims[1]);
        const uint64_t groups = (uint64_t)(param.dims[0] * parts.groups);
        const uint64_t numbers = 2 + 4 * (storage.minima ? KINDS : MINIMUM); // struct trained
        sum += parts.bytes + groups * numbers * sizeof(float);
        sum += storage.kind == STORAGE_INT4 ? elements * sizeof(float) : 0;
        largest = elements > largest ? elements : largest;
    }
    return sum + largest * sizeof(float);
}

static int open_engine(struct tuner *t, int which, const char *program) {
    struct knobs k = t->o->data->knobs;
    const struct plan_options o = {
        .knobs = &k, .programs = {program}, .real = DTYPE_F32, .keep_logits = which == SOURCE};
    const double hyper[HYPER_COUNT] = {[HYPER_LOSS_FACTOR] = 1};
    student_knobs(&k, turn_windows(t->o->data));
    if (which == STUDENT && k.memory > 0) { // the budget is for both
        const int64_t taken = (int64_t)plan_arena_bytes(&t->plans[SOURCE]);
        k.memory = (int64_t)k.memory > taken ? k.memory - taken : 1;
    }
    TRY(plan_make(&t->plans[which], &o, t->e));
    if (which == STUDENT) {
        const int logits = plan_tensor(&t->plans[SOURCE], PLAN_EVAL, NAME_LOGITS);
        const uint64_t bytes = t->plans[SOURCE].programs[0]->tensors[logits].bytes;
        plan_set_host(
            &t->plans[which],
            &(struct plan_host){.tuning = host_bytes(&t->plans[which], t->o->stored, bytes)});
    }
    TRY(engine_start(&t->engines[which], NULL, &t->plans[which], t->e));
    return session_set_hyper(t->engines[which]->session, hyper, t->e);
}

static int take_trained(struct tuner *t, const struct rounded *r, struct trained *x) {
    const size_t n = (size_t)(r->param.dims[0] * r->parts.groups);
    bool all = true;
    x->groups = (int64_t)n;
    all &= (x->begin = calloc(n, sizeof(float))) != NULL;
    all &= (x->least = calloc(n, sizeof(float))) != NULL;
    for (int k = 0; k < (minima(r) ? KINDS : MINIMUM); k++) {
        float **const each[] = {&x->offset[k], &x->sum[k], &x->m[k], &x->v[k]};
        for (size_t i = 0; i < sizeof each / sizeof *each; i++)
            all &= (*each[i] = calloc(n, sizeof(float))) != NULL;
    }
    if (r->storage.kind == STORAGE_INT4)
        all &= (x->fine = malloc((size_t)rounded_elements(r) * sizeof(float))) != NULL;
    return all ? 0 : err_set(t->e, ERR_MEMORY, "out of memory to tune '%s'", r->param.name);
}

static void free_trained(struct trained *x) {
    for (int k = 0; k < KINDS; k++) {
        float *const each[] = {x->offset[k], x->sum[k], x->m[k], x->v[k]};
        for (size_t i = 0; i < sizeof each / sizeof *each; i++)
            free(each[i]);
    }
    free(x->begin);
    free(x->least);
    free(x->fine);
}

// ---------------------------------------------------------------- the first codes

struct beginning {
    const struct rounded *r;
    const struct quantize_options *how;
    const float *values;
    struct share {
        struct err e;
        float *row;
        int rc;
    } shares[64];
};

static void begin_share(void *arg, int thread, int threads) {
    struct beginning *b = arg;
    const struct rounded *r = b->r;
    const int64_t cols = r->param.dims[1];
    const int used = threads < 64 ? threads : 64;
    struct quantize_error sum = {0};
    int64_t begin, end;
    if (thread >= used)
        return;
    struct share *s = &b->shares[thread];
    s->row = malloc((size_t)cols * sizeof(float));
    s->rc = s->row ? 0 : err_set(&s->e, ERR_MEMORY, "out of memory for a row");
    pool_share(r->param.dims[0], 1, thread, used, &begin, &end);
    for (int64_t row = begin; s->rc == 0 && row < end; row++) {
        for (int64_t j = 0; j < cols; j++)
            s->row[j] = b->values[rounded_at(r, row, j)];
        s->rc = quantize_rows(b->how, &r->parts, cols, s->row, row, 1, r->bytes, &sum, &s->e);
    }
    free(s->row);
}

static float scale_of(const struct rounded *r, const char *part, int64_t group) {
    uint16_t half;
    float wide;
    if (r->parts.scale_type == DTYPE_F32) {
        memcpy(&wide, part + (size_t)group * sizeof wide, sizeof wide);
        return wide;
    }
    memcpy(&half, part + (size_t)group * sizeof half, sizeof half);
    return dtype_f16_to_f32(half);
}

static int begin_matrix(struct tuner *t, struct rounded *r, struct trained *x) {
    const struct quantize_options how = {.method = QUANTIZE_TUNED,
                                         .storage = r->storage,
                                         .power = powers_find(t->o->powers, r->param.name)};
    struct session *s = t->engines[STUDENT]->session;
    struct beginning b = {.r = r, .how = &how, .values = t->values};
    TRY(rounded_read(r, s, r->tensor, t->values, t->e));
    pool_run(t->engines[STUDENT]->pool, begin_share, &b);
    for (int i = 0; i < 64; i++)
        if (b.shares[i].rc != 0) {
            *t->e = b.shares[i].e;
            return err_context(t->e, "'%s'", r->param.name);
        }
    TRY(take_trained(t, r, x));
    for (int64_t i = 0; i < x->groups; i++) {
        x->begin[i] = scale_of(r, (const char *)r->bytes + r->parts.scales, i);
        x->least[i] = minima(r) ? scale_of(r, (const char *)r->bytes + r->parts.minima, i) : 0;
    }
    for (int64_t row = 0; x->fine && row < r->param.dims[0]; row++)
        for (int64_t j = 0; j < r->param.dims[1]; j++) {
            const int64_t g = row * r->parts.groups + j / r->storage.group;
            const float zero = minima(r) ? x->least[g] : -8 * x->begin[g];
            const float by = x->begin[g] > 0 ? 1 / x->begin[g] : 0;
            const float code = (t->values[rounded_at(r, row, j)] - zero) * by;
            x->fine[row * r->param.dims[1] + j] = fminf(fmaxf(code, -0.5f), 15.5f);
        }
    return rounded_put(r, s, t->values, t->e);
}

// ---------------------------------------------------------------- gradients of scales and minima

struct summing {
    struct rounded *r;
    struct trained *x;
    const float *gradient;
    float rate;         // of fine codes, in units of their usual gradient
    double squares[64]; // by thread
};

// What the scale of element [row, column] is multiplied with.
static float code_of(const struct rounded *r, int64_t row, int64_t column) {
    const uint8_t *codes =
        (const uint8_t *)r->bytes + r->parts.codes + (uint64_t)row * r->parts.row_bytes;
    if (r->storage.kind == STORAGE_INT8)
        return (float)((const int8_t *)codes)[column];
    const int64_t in = column % STORAGE_BLOCK, half = STORAGE_BLOCK / 2;
    const uint8_t pair = codes[column / STORAGE_BLOCK * half + in % half];
    return (float)(in < half ? pair & 15 : pair >> 4) - (r->storage.minima ? 0 : 8);
}

// Moves the fine codes of a row, straight through the rounding. Gradients are taken in units of the
// row's root mean square, or the matrix' where that is larger, and none counts for more than
// MOVE_MOST of it: rows of tokens that the text uses often have gradients a hundred times the
// usual. Not beyond what rounds to the first and the last code: from further away they would never
// come back. Returns the sum of the squares.
static double move_codes(struct summing *s, int64_t row) {
    const struct rounded *r = s->r;
    const int64_t cols = r->param.dims[1];
    const float *scales = s->x->begin + row * r->parts.groups;
    float *fine = s->x->fine + row * cols;
    double squares = 0;
    for (int64_t j = 0; j < cols; j++) {
        const double d =
            (double)(s->gradient[rounded_at(r, row, j)] * scales[j / r->storage.group]);
        squares += d * d;
    }
    const double unit = fmax(sqrt(squares / (double)cols), s->x->usual);
    const float by = s->x->usual > 0 ? (float)(1 / unit) : 0;
    for (int64_t j = 0; j < cols && isfinite(by); j++) {
        const float d = s->gradient[rounded_at(r, row, j)] * scales[j / r->storage.group] * by;
        const float move = s->rate * fminf(fmaxf(d, -MOVE_MOST), MOVE_MOST);
        fine[j] = fminf(fmaxf(fine[j] - move, -0.5f), 15.5f);
    }
    return squares;
}

static void sum_share(void *arg, int thread, int threads) {
    struct summing *s = arg;
    const struct rounded *r = s->r;
    const int64_t cols = r->param.dims[1];
    const int64_t group = r->storage.kind == STORAGE_INT4 ? r->storage.group : cols;
    const int used = threads < 64 ? threads : 64;
    int64_t begin, end;
    if (thread >= used)
        return;
    pool_share(r->param.dims[0], 1, thread, used, &begin, &end);
    for (int64_t row = begin; row < end; row++) {
        for (int64_t g = 0; g < r->parts.groups; g++) {
            const int64_t index = row * r->parts.groups + g;
            float by_code = 0, all = 0;
            for (int64_t j = g * group; j < (g + 1) * group; j++) {
                const float d = s->gradient[rounded_at(r, row, j)];
                by_code += d * code_of(r, row, j);
                all += d;
            }
            // Of numbers in units of the first scale
            s->x->sum[SCALE][index] += by_code * s->x->begin[index];
            if (minima(r))
                s->x->sum[MINIMUM][index] += all * s->x->begin[index];
        }
        if (s->x->fine)
            s->squares[thread] += move_codes(s, row);
    }
}

static int add_gradients(struct tuner *t, float rate) {
    struct session *s = t->engines[STUDENT]->session;
    const struct program *p = t->plans[STUDENT].programs[0];
    for (int i = 0; i < t->out->n; i++) {
        struct rounded *r = &t->out->all[i];
        struct summing x = {.r = r, .x = &t->trained[i], .gradient = t->values, .rate = rate};
        double squares = 0;
        TRY(rounded_read(r, s, p->tensors[r->tensor].grad, t->values, t->e));
        pool_run(t->engines[STUDENT]->pool, sum_share, &x);
        for (int k = 0; k < 64; k++)
            squares += x.squares[k];
        t->trained[i].usual = sqrt(squares / (double)rounded_elements(r));
    }
    return 0;
}

// ---------------------------------------------------------------- a step

static int turn(struct tuner *t, uint64_t number, float rate, double *kl, double *tokens) {
    struct session *source = t->engines[SOURCE]->session, *student = t->engines[STUDENT]->session;
    const struct program *p = t->plans[SOURCE].programs[0];
    const int from = plan_tensor(&t->plans[SOURCE], PLAN_EVAL, NAME_LOGITS);
    const int to = plan_tensor(&t->plans[STUDENT], PLAN_GRADIENTS, NAME_TEACHER);
    const uint64_t bytes = p->tensors[from].bytes;
    double results[RESULT_COUNT];
    TRY(windows_fetch(&t->windows, number * (uint64_t)t->windows.batch, t->e));
    TRY(session_run(source, PLAN_EVAL, windows_feed, &t->windows, NULL, t->e));
    TRY(exec_read(source->exec, 0, from, t->logits, bytes, t->e));
    TRY(exec_write(student->exec, 0, to, t->logits, bytes, t->e));
    TRY(session_run(student, PLAN_GRADIENTS, windows_feed, &t->windows, NULL, t->e));
    TRY(session_get_results(student, results, NULL, t->e));
    if (!isfinite(results[RESULT_LOSS_SUM]))
        return err_set(t->e, ERR_NUMERIC,
                       "tuning: the divergence from the source is not finite; its weights are "
                       "damaged");
    *kl += results[RESULT_LOSS_SUM];
    *tokens += results[RESULT_TOKENS];
    return add_gradients(t, rate * CODE_RATE / (float)t->turns);
}

// The sums of a step are of all its tokens' losses: dividing them would change nothing, because
// Adam divides by the root of their squares.
static void step_kind(struct trained *x, int kind, float rate, uint64_t step) {
    const float fix1 = 1 - powf(BETA1, (float)step), fix2 = 1 - powf(BETA2, (float)step);
    float *m = x->m[kind], *v = x->v[kind], *g = x->sum[kind], *at = x->offset[kind];
    double squares = 0;
    for (int64_t i = 0; i < x->groups; i++) {
        m[i] = BETA1 * m[i] + (1 - BETA1) * g[i];
        v[i] = BETA2 * v[i] + (1 - BETA2) * g[i] * g[i];
        squares += (double)v[i];
        g[i] = 0;
    }
    const float usual = (float)sqrt(squares / (double)x->groups / (double)fix2);
    for (int64_t i = 0; i < x->groups && usual > 0; i++)
        at[i] -= rate * (m[i] / fix1) / (sqrtf(v[i] / fix2) + EPSILON * usual);
}

static void put_number(const struct rounded *r, char *part, int64_t group, float x) {
    const uint16_t half = dtype_f32_to_f16(x);
    if (r->parts.scale_type == DTYPE_F32)
        memcpy(part + (size_t)group * sizeof x, &x, sizeof x);
    else
        memcpy(part + (size_t)group * sizeof half, &half, sizeof half);
}

struct rounding {
    struct rounded *r;
    const struct trained *x;
};

static void round_share(void *arg, int thread, int threads) {
    const struct rounding *c = arg;
    const struct rounded *r = c->r;
    const int64_t cols = r->param.dims[1];
    int64_t begin, end;
    pool_share(r->param.dims[0], 1, thread, threads, &begin, &end);
    for (int64_t row = begin; row < end; row++) {
        uint8_t *to = (uint8_t *)r->bytes + r->parts.codes + (uint64_t)row * r->parts.row_bytes;
        for (int64_t at = 0; at < cols; at += STORAGE_BLOCK) {
            uint8_t codes[STORAGE_BLOCK];
            for (int64_t j = 0; j < STORAGE_BLOCK; j++) {
                const float code = rintf(c->x->fine[row * cols + at + j]);
                codes[j] = (uint8_t)fminf(fmaxf(code, 0), 15);
            }
            storage_pack_block(codes, to + at / 2);
        }
    }
}

// A scale stays between a half of what it was and twice that: far more than tuning ever wants.
static int put_matrix(struct tuner *t, struct rounded *r, const struct trained *x) {
    char *scales = (char *)r->bytes + r->parts.scales, *least = (char *)r->bytes + r->parts.minima;
    for (int64_t i = 0; i < x->groups; i++) {
        put_number(r, scales, i, x->begin[i] * fminf(fmaxf(1 + x->offset[SCALE][i], 0.5f), 2));
        if (minima(r))
            put_number(r, least, i, x->least[i] + x->offset[MINIMUM][i] * x->begin[i]);
    }
    struct rounding codes = {r, x};
    if (x->fine)
        pool_run(t->engines[STUDENT]->pool, round_share, &codes);
    return rounded_put(r, t->engines[STUDENT]->session, t->values, t->e);
}

static float rate_at(uint64_t step, uint64_t steps) {
    const double at = (double)step / (double)steps;
    const double rise = at < WARMUP ? at / WARMUP : 1;
    return RATE * (float)(rise * 0.5 * (1 + cos(3.14159265358979 * at)));
}

static int step(struct tuner *t, uint64_t number, uint64_t steps, double *kl, double *tokens) {
    const float rate = rate_at(number + 1, steps);
    for (uint64_t i = 0; i < t->turns; i++) {
        if (t->o->l->stop && *t->o->l->stop)
            return err_set(t->e, ERR_STOPPED,
                           "stopped on request, after %" PRIu64 " of %" PRIu64 " steps of tuning",
                           number, steps);
        TRY(turn(t, number * t->turns + i, rate, kl, tokens));
    }
    for (int i = 0; i < t->out->n; i++) {
        step_kind(&t->trained[i], SCALE, rate, number + 1);
        if (minima(&t->out->all[i]))
            step_kind(&t->trained[i], MINIMUM, rate * MINIMUM_RATE, number + 1);
        TRY(put_matrix(t, &t->out->all[i], &t->trained[i]));
    }
    return 0;
}

static void say_time(const struct tuner *t, uint64_t steps, uint64_t ns) {
    char text[200], time[TEXT_UNIT_BYTES];
    const struct shard_listener *l = &t->o->l->data;
    if (!l->say)
        return;
    snprintf(text, sizeof text,
             "tuning scales: %" PRIu64 " steps of %lld tokens, about %s by the first one", steps,
             (long long)(t->turns * (uint64_t)(t->windows.batch * t->windows.columns)),
             text_duration(time, 1e-9 * (double)ns * (double)steps));
    l->say(l->arg, LOG_INFO, text);
}

static int train(struct tuner *t) {
    const uint64_t per = (uint64_t)(t->windows.batch * t->windows.columns);
    const uint64_t begin = clock_ns();
    t->turns = per < STEP_TOKENS ? (STEP_TOKENS + per - 1) / per : 1;
    const uint64_t steps = (t->o->tokens + t->turns * per - 1) / (t->turns * per);
    const uint64_t tenth = steps / 10 > 0 ? steps / 10 : 1;
    double kl[2] = {0}, tokens[2] = {0};
    for (uint64_t i = 0; i < steps; i++) {
        double some_kl = 0, some = 0;
        TRY(step(t, i, steps, &some_kl, &some));
        for (int end = 0; end < 2; end++)
            if (end ? i + tenth >= steps : i < tenth)
                kl[end] += some_kl, tokens[end] += some;
        if (i == 0)
            say_time(t, steps, clock_ns() - begin);
        if (t->o->l->progress)
            t->o->l->progress(t->o->l->arg, i + 1, steps);
    }
    t->out->kl_first = tokens[0] > 0 ? kl[0] / tokens[0] : 0;
    t->out->kl_last = tokens[1] > 0 ? kl[1] / tokens[1] : 0;
    t->out->steps = steps;
    t->out->tokens = steps * t->turns * per;
    t->out->seconds = 1e-9 * (double)(clock_ns() - begin);
    return 0;
}

static int tune(struct tuner *t) {
    struct tuned *out = t->out;
    TRY(open_engine(t, SOURCE, PLAN_EVAL));
    TRY(open_engine(t, STUDENT, PLAN_GRADIENTS));
    TRY(rounded_list(&out->all, &out->n, &t->plans[STUDENT], t->o->stored, t->e));
    TRY(windows_open(&t->windows, t->o->data->data, SPLIT_TRAIN, t->plans[0].knobs.batch_micro,
                     t->plans[0].knobs.seq, t->e));
    const int logits = plan_tensor(&t->plans[SOURCE], PLAN_EVAL, NAME_LOGITS);
    t->logits = malloc(t->plans[SOURCE].programs[0]->tensors[logits].bytes + 1);
    t->values = malloc((size_t)rounded_largest(out->all, out->n) * sizeof *t->values + 1);
    t->trained = calloc((size_t)out->n + 1, sizeof *t->trained);
    if (!t->logits || !t->values || !t->trained)
        return err_set(t->e, ERR_MEMORY, "out of memory to tune %d matrices", out->n);
    for (int i = 0; i < out->n; i++)
        TRY(begin_matrix(t, &out->all[i], &t->trained[i]));
    return train(t);
}

int tuned_train(struct tuned *out, const struct tuned_options *o, struct err *e) {
    struct tuner t = {.o = o, .out = out, .e = e};
    *out = (struct tuned){0};
    t.plans[0].prefix = t.plans[1].prefix = "";
    const int rc = tune(&t);
    for (int i = 0; t.trained && i < out->n; i++)
        free_trained(&t.trained[i]);
    free(t.trained);
    free(t.values);
    free(t.logits);
    windows_close(&t.windows);
    for (int i = 0; i < 2; i++) {
        engine_close(t.engines[i]);
        plan_free(&t.plans[i]);
    }
    return rc;
}

void tuned_free(struct tuned *t) {
    rounded_free(t->all, t->n);
    *t = (struct tuned){0};
}

const void *tuned_bytes(const struct tuned *t, const char *name, struct storage storage) {
    for (int i = 0; t && i < t->n; i++)
        if (strcmp(t->all[i].param.name, name) == 0)
            return storage_same(t->all[i].storage, storage) ? t->all[i].bytes : NULL;
    return NULL;
}
