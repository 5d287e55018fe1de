// search.c - see search.h.
#include "planner/search.h"

#include "base/array.h"
#include "model/family.h"
#include "plan/plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_TOKENS = 1 << 19, LORA_RANK = 16, MICRO_MOST = 64 };

static const char *const method_names[METHOD_COUNT] = {
#define X(name, text, what) text,
    PLANNER_METHOD_LIST(X)
#undef X
};
static const char *const family_names[LAYOUT_COUNT] = {
#define X(name, text) text,
    PLANNER_FAMILY_LIST(X)
#undef X
};

const char *planner_method_name(enum planner_method m) {
    return method_names[m];
}

const char *planner_family_name(enum planner_family f) {
    return family_names[f];
}

double planner_tokens_per_s(const struct planner_option *o) {
    return (double)planner_tokens(&o->setup) / o->e.step_s;
}

double planner_mfu(const struct planner_question *q, const struct planner_option *o) {
    return o->e.flops / o->e.step_s /
           (cost_peak(&q->cluster.device, q->math) * planner_devices(&o->setup));
}

static enum planner_family family_of(const struct planner_setup *s) {
    if (s->tensor > 1)
        return s->pipe > 1 ? LAYOUT_BOTH : LAYOUT_TENSOR;
    if (s->pipe > 1)
        return LAYOUT_PIPE;
    return s->data > 1 ? (enum planner_family)(LAYOUT_DATA + s->zero) : LAYOUT_DATA;
}

// ---------------------------------------------------------------- bounds

// Bytes that the weights and their state take at the least, from the number of elements alone.
static double least_bytes(const struct planner_setup *s) {
    const double all = (double)model_total_elements(&s->shape), data = s->data;
    const double share = all / s->tensor / s->pipe;
    const bool trains = s->adapter.rank == 0;
    const double element = s->math == PLANNER_FP32 ? 4 : 2;
    const double moments = s->state == STATE_INT8 ? 2 : s->state == STATE_BF16 ? 4 : 8;
    const double master = s->math == PLANNER_FP32 ? 0 : 4;
    double bytes = share * element / (s->zero == 3 ? data : 1);
    if (trains)
        bytes += share * 4 / (s->zero > 1 && (s->every_micro || s->accum == 1) ? data : 1) +
                 share * (master + moments) / (s->zero > 0 ? data : 1);
    // The largest stage has no fewer layers than the mean; embedding and head may lie elsewhere.
    return s->pipe > 1 ? bytes * 0.9 : bytes;
}

// ---------------------------------------------------------------- the list

struct search {
    const struct planner_question *q;
    struct planner_answer *a;
    double room;
    struct err *e;
};

static int keep(struct search *x, const struct planner_setup *s, const struct estimate *est) {
    struct planner_answer *a = x->a;
    if (!array_room(&a->options, (size_t)a->n, 1, &a->capacity, sizeof *a->options, 64))
        return err_set(x->e, ERR_MEMORY, "out of memory for layouts");
    a->options[a->n++] = (struct planner_option){
        .setup = *s,
        .e = *est,
        .family = family_of(s),
        .late = x->q->p99_s > 0 && est->high_s > x->q->p99_s,
    };
    return 0;
}

// Returns whether it fits, or a negative code.
static int try_one(struct search *x, const struct planner_setup *s) {
    struct planner_tried *t = &x->a->families[family_of(s)];
    struct estimate est;
    const double bound = least_bytes(s);
    t->listed++;
    if (bound > x->room) {
        t->bounded++;
        t->least_bytes = t->least_bytes > 0 ? fmin(t->least_bytes, bound) : bound;
        return 0;
    }
    struct err why = {0};
    const int rc = planner_estimate(s, &x->q->cluster, x->q->constants, &est, &why);
    if (rc == ERR_USAGE || rc == ERR_UNSUPPORTED)
        return 0; // the model cannot be divided so
    if (rc != 0) {
        *x->e = why;
        return rc;
    }
    t->estimated++;
    t->least_bytes = t->least_bytes > 0 ? fmin(t->least_bytes, est.bytes) : est.bytes;
    if (!est.fits)
        return 0;
    t->fit++;
    TRY(keep(x, s, &est));
    return 1;
}

// Larger micro-batches and less recomputation need more memory: what follows a misfit is left out.
static int try_sizes(struct search *x, struct planner_setup *s) {
    static const enum recompute_kind kinds[] = {RECOMPUTE_FULL, RECOMPUTE_SELECTIVE,
                                                RECOMPUTE_NONE};
    const int64_t samples = x->a->tokens / s->seq / s->data;
    int64_t most = MICRO_MOST;
    for (size_t r = 0; r < sizeof kinds / sizeof *kinds; r++) {
        s->recompute = kinds[r];
        for (s->micro = 1; s->micro <= most; s->micro *= 2) {
            if (samples % s->micro != 0)
                break;
            s->accum = samples / s->micro;
            if (s->every_micro && s->accum == 1)
                break; // the same as once per step
            const int fits = try_one(x, s);
            if (fits < 0)
                return fits;
            if (!fits) {
                most = s->micro / 2;
                break;
            }
        }
        if (most < 1)
            break;
    }
    return 0;
}

static int try_zero(struct search *x, struct planner_setup *s) {
    const bool adapter = s->adapter.rank > 0;
    for (s->zero = 0; s->zero <= 3; s->zero++) {
        if (s->zero > 0 && s->data == 1)
            break;
        if (s->zero > 1 && (s->pipe > 1 || s->tensor > 1))
            break; // stages would move gradients and weights once per micro-batch
        if (s->zero == 3 && adapter)
            break;
        s->every_micro = false;
        TRY(try_sizes(x, s));
        // Summing after every micro-batch moves more and keeps less: only a rank's own gradients.
        s->every_micro = s->zero > 1;
        if (s->every_micro)
            TRY(try_sizes(x, s));
    }
    return 0;
}

static int try_all(struct search *x) {
    const struct planner_question *q = x->q;
    const int n = cluster_devices(&q->cluster);
    for (int tensor = 1; tensor <= q->cluster.per_node && tensor <= n; tensor *= 2)
        for (int pipe = 1; pipe <= n / tensor && pipe <= q->shape.layers && pipe <= 64; pipe *= 2) {
            struct planner_setup s = {.shape = q->shape,
                                      .seq = q->seq,
                                      .tensor = tensor,
                                      .pipe = pipe,
                                      .data = n / tensor / pipe,
                                      .context = 1,
                                      .chunks = 1,
                                      .sequence = tensor > 1,
                                      .math = q->math,
                                      .profile = q->profile};
            if (n % (tensor * pipe) != 0 || q->shape.heads % tensor != 0 ||
                q->shape.kv_heads % tensor != 0 || q->shape.ffn % tensor != 0)
                continue;
            if (x->a->tokens / s.seq % s.data != 0 || x->a->tokens / s.seq < s.data)
                continue;
            if (q->method == METHOD_LORA && (tensor > 1 || pipe > 1))
                continue; // frozen weights are whole on every rank
            s.state = q->method == METHOD_INT8_STATE   ? STATE_INT8
                      : q->method == METHOD_BF16_STATE ? STATE_BF16
                                                       : STATE_FP32;
            if (q->method == METHOD_LORA)
                s.adapter = (struct adapter){.rank = LORA_RANK, .alpha = LORA_RANK};
            TRY(try_zero(x, &s));
        }
    return 0;
}

// ---------------------------------------------------------------- the answer

// Budgets first; then the goal; then less memory, which is room for something else.
static int by_bulk(const void *a, const void *b) {
    const struct planner_option *x = a, *y = b;
    if (x->late != y->late)
        return x->late - y->late;
    if (x->e.step_s != y->e.step_s)
        return x->e.step_s < y->e.step_s ? -1 : 1;
    return (x->e.bytes > y->e.bytes) - (x->e.bytes < y->e.bytes);
}

static int by_latency(const void *a, const void *b) {
    const struct planner_option *x = a, *y = b;
    if (x->late != y->late)
        return x->late - y->late;
    if (x->e.micro_s != y->e.micro_s)
        return x->e.micro_s < y->e.micro_s ? -1 : 1;
    return by_bulk(a, b);
}

// Tokens of a step: as many as asked for, else a power of two of sequences for each device, so that
// each may be a replica and micro-batches of many sizes divide its part.
static int64_t tokens_of(const struct planner_question *q) {
    const int64_t n = cluster_devices(&q->cluster);
    int64_t each = 1;
    while (2 * each * n * q->seq <= DEFAULT_TOKENS)
        each *= 2;
    return q->tokens > 0 ? q->tokens : each * n * q->seq;
}

int planner_search(struct planner_answer *a, const struct planner_question *q, struct err *e) {
    *a = (struct planner_answer){.chosen = -1};
    struct search x = {q, a, q->cluster.device.memory_gib * 1073741824.0, e};
    if (q->tokens > 0 && (q->tokens < q->seq || q->tokens % q->seq != 0))
        return err_set(e, ERR_USAGE,
                       "--tokens-per-step=%lld; accepted: a multiple of seq (%lld), as %lld",
                       (long long)q->tokens, (long long)q->seq,
                       (long long)((q->tokens / q->seq + 1) * q->seq));
    a->tokens = tokens_of(q);
    TRY(try_all(&x));
    if (a->n > 0)
        qsort(a->options, (size_t)a->n, sizeof *a->options,
              q->goal == PLANNER_BULK ? by_bulk : by_latency);
    a->chosen = a->n > 0 && !a->options[0].late ? 0 : -1;
    for (int f = 0; f < LAYOUT_COUNT; f++) {
        struct planner_tried *t = &a->families[f];
        t->best = -1;
        for (int i = a->n - 1; i >= 0; i--)
            if (a->options[i].family == (enum planner_family)f)
                t->best = i;
        if (t->least_bytes > 0)
            a->least_bytes =
                a->least_bytes > 0 ? fmin(a->least_bytes, t->least_bytes) : t->least_bytes;
    }
    return 0;
}

void planner_answer_free(struct planner_answer *a) {
    free(a->options);
    *a = (struct planner_answer){.chosen = -1};
}

// ---------------------------------------------------------------- the recipe

static int set(struct knobs *k, const char *name, const char *value, struct err *e) {
    return knobs_set(k, name, value, SET_BY_RECIPE, e);
}

static int set_number(struct knobs *k, const char *name, int64_t n, struct err *e) {
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)n);
    return set(k, name, text, e);
}

int planner_pin(const struct planner_question *q, const struct planner_option *o, struct knobs *k,
                struct err *e) {
    static const char *const recompute[] = {"none", "selective", "full"}, *const state[] = {"fp32",
                                                                                            "bf16",
                                                                                            "int8"};
    const struct planner_setup *s = &o->setup;
    struct plan_split split;
    struct apply_ranks ranks;
    if (!q->model[0])
        return err_set(e, ERR_UNSUPPORTED, "a shape by number has no name for a recipe");
    if (s->context > 1 || s->quantized || s->math == PLANNER_FP8)
        return err_set(e, ERR_UNSUPPORTED, "plan only: haggle does not run it");
    TRY(set(k, "model", q->model, e));
    TRY(set_number(k, "seq", s->seq, e));
    TRY(set(k, "precision",
            s->math == PLANNER_FP32   ? "fp32"
            : s->math == PLANNER_FP16 ? "fp16"
                                      : "bf16",
            e));
    TRY(set_number(k, "batch.micro", s->micro, e));
    TRY(set_number(k, "batch.accum", s->accum, e));
    TRY(set(k, "recompute.mode", recompute[s->recompute], e));
    TRY(set(k, "optim.state", state[s->state], e));
    TRY(set_number(k, "lora.rank", s->adapter.rank, e));
    TRY(set_number(k, "ranks", planner_devices(s), e));
    TRY(set_number(k, "parallel.data", s->data, e));
    TRY(set_number(k, "parallel.tensor", s->tensor, e));
    TRY(set_number(k, "parallel.pipe", s->pipe, e));
    TRY(set(k, "parallel.sequence", s->sequence ? "true" : "false", e));
    TRY(set_number(k, "zero.stage", s->zero, e));
    TRY(set(k, "comm.reduce", s->every_micro ? "micro" : "step", e));
    TRY(plan_split_of(k, &split, e));
    return plan_ranks(&split, k, &q->shape, 0, &ranks, e);
}

// ---------------------------------------------------------------- a shape by number

int planner_shape_parse(struct model_shape *s, const char *text, struct err *e) {
    struct model_shape m = {.norm_eps = 1e-5f, .init_std = 0.02f, .bos_id = -1, .eos_id = -1};
    const struct {
        const char *name;
        int64_t *at, most;
    } numbers[] = {
        {"layers", &m.layers, 4096},    {"hidden", &m.width, 1 << 18}, {"heads", &m.heads, 4096},
        {"kv", &m.kv_heads, 4096},      {"ffn", &m.ffn, 1 << 20},      {"vocab", &m.vocab, 1 << 22},
        {"head", &m.head_dim, 1 << 12},
    };
    bool plain = false;
    for (const char *at = text; *at;) {
        const size_t n = strcspn(at, ","), key = strcspn(at, "=,");
        const size_t all = sizeof numbers / sizeof *numbers;
        size_t i = 0;
        while (i < all &&
               (strlen(numbers[i].name) != key || strncmp(numbers[i].name, at, key) != 0))
            i++;
        char *end = NULL;
        const long long value = key < n ? strtoll(at + key + 1, &end, 10) : 0;
        if (n == 9 && strncmp(at, "mlp=plain", n) == 0)
            plain = true;
        else if (i == all || end != at + n || value < 1 || value > numbers[i].most)
            return err_set(e, ERR_USAGE,
                           "--shape: '%.*s' is not accepted; accepted: layers, hidden, heads, ffn, "
                           "vocab, kv, head with a number, as layers=80,hidden=8192, and mlp=plain",
                           (int)n, at);
        else
            *numbers[i].at = value;
        at += n + (at[n] == ',');
    }
    if (!m.layers || !m.width || !m.heads)
        return err_set(e, ERR_USAGE,
                       "--shape: layers, hidden and heads are needed, as "
                       "layers=80,hidden=8192,heads=64");
    if (m.width % m.heads != 0 && !m.head_dim)
        return err_set(e, ERR_USAGE,
                       "--shape: %lld heads do not divide hidden=%lld; accepted: "
                       "another number, or head=N",
                       (long long)m.heads, (long long)m.width);
    m.head_dim = m.head_dim ? m.head_dim : m.width / m.heads;
    m.kv_heads = m.kv_heads ? m.kv_heads : m.heads;
    m.vocab = m.vocab ? m.vocab : plain ? 50257 : 32000;
    // A gated MLP has three matrices: 8/3 of the width makes them as many elements as two of 4.
    m.ffn = m.ffn ? m.ffn : plain ? 4 * m.width : (8 * m.width / 3 + 255) / 256 * 256;
    m.max_positions = 1 << 20;
    family_set_switches(&m, plain ? FAMILY_GPT2 : FAMILY_LLAMA);
    m.rope.theta = plain ? 0 : 1e4;
    m.tied = plain;
    snprintf(m.name, sizeof m.name, "a shape by number");
    TRY(model_shape_check(&m, e) != 0 ? err_context(e, "--shape") : 0);
    *s = m;
    return 0;
}
