// tradeoffs.c - see tradeoffs.h.
#include "bench/tradeoffs.h"

#include "base/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define BASELINE "baseline"
#define SLOW     "slow source"
#define REPLICAS "data parallel"

// What rules say, as ranges of the ratio. A factor is met within a quarter.
#define ANY                                                                                        \
    { 0, INFINITY }
#define MORE                                                                                       \
    { 1, INFINITY }
#define LESS                                                                                       \
    { 0, 1 }
#define SAME                                                                                       \
    { 0.95, 1.05 }
#define A_LITTLE_MORE                                                                              \
    { 1, 1.15 }
#define A_LITTLE_LESS                                                                              \
    { 0.85, 1 }
#define A_THIRD_LESS                                                                               \
    { 0.60, 0.80 } // 2/3 to 3/4: a third less speed, or a third more time
#define MUCH_LESS                                                                                  \
    { 0, 0.75 }
#define TWICE                                                                                      \
    { 1.6, 2.5 }
#define HALF                                                                                       \
    { 0.4, 0.625 }

// name, settings, against, speed, memory, rule, what
static const struct strategy STRATEGIES[] = {
    {BASELINE, "", NULL, ANY, ANY, "", "the recipe as given"},
    {"larger micro-batch", "batch.micro*2 batch.accum/2", NULL, MORE, MORE, "faster, more memory",
     "the same tokens per step in half as many micro-batches"},
    {"accumulation", "batch.micro/2 batch.accum*2", NULL, LESS, LESS, "slower, less memory",
     "the same tokens per step in twice as many micro-batches"},
    {"twice the batch", "batch.micro*2", NULL, MORE, MORE,
     "more throughput, longer steps, more memory", "twice the tokens per step: other mathematics"},
    {"recompute selective", "recompute.mode=selective", NULL, A_LITTLE_LESS, LESS,
     "a little slower, less memory",
     "norms and activation functions are computed again in the backward"},
    {"recompute full", "recompute.mode=full recompute.every=1", NULL, A_THIRD_LESS, MUCH_LESS,
     "a third slower, much less memory", "only the inputs of blocks are kept"},
    {"recompute every 2", "recompute.mode=full recompute.every=2", "recompute full", MORE, MORE,
     "faster than full, more memory than full", "every second block is computed again"},
    {"bf16", "precision=bf16", NULL, TWICE, HALF, "twice as fast, half the memory",
     "weights and activations of 16 bits, with fp32 masters"},
    {"fp16", "precision=fp16", NULL, TWICE, HALF, "twice as fast, half the memory",
     "the same in fp16, with loss scaling"},
    {"logits in chunks", "logits.chunk=128", NULL, SAME, LESS, "the same speed, less memory",
     "the logits of 128 tokens at a time"},
    {"optimizer state bf16", "optim.state=bf16", NULL, SAME, LESS, "the same speed, less memory",
     "Adam's moments in 4 bytes per parameter instead of 8"},
    {"optimizer state int8", "optim.state=int8", NULL, SAME, LESS, "the same speed, less memory",
     "Adam's moments in about 2 bytes per parameter"},
    {"adapter", "lora.rank=16", NULL, MORE, LESS, "faster, less memory",
     "the weights stay and a low-rank adapter trains beside them: other mathematics"},
    {"no prefetch", "data.prefetch=0", NULL, LESS, ANY, "slower",
     "each batch is made when it is needed"},
    {"two data workers", "data.workers=2 data.prefetch=4", NULL, MORE, ANY, "faster",
     "two threads prepare batches, four steps ahead"},
    {SLOW, "data.source_rate={rate}", NULL, HALF, ANY, "half as fast",
     "a source that gives half the bytes per second that the baseline reads"},
    {SLOW ", prefetch", "data.source_rate={rate} data.prefetch=8", SLOW, MORE, ANY,
     "prefetching hides a slow source", "eight steps ahead of the same slow source"},
    {SLOW ", kept in memory", "data.source_rate={rate} data.ram=64MiB", SLOW, MORE, ANY,
     "a cache hides a slow source after the first epoch",
     "sequences stay in memory after their first use"},
    {"one thread", "threads=1", NULL, LESS, ANY, "slower", "one thread computes"},
    {"pinned threads", "cpu.pin=true", NULL, A_LITTLE_MORE, ANY, "a little faster",
     "each thread is bound to a CPU of its own"},
    {"no CUDA graphs", "cuda.graphs=false", NULL, LESS, ANY, "slower for small models",
     "every kernel is launched by itself"},
    {"norms unfused", "fuse.norm=false", NULL, LESS, ANY, "slower",
     "residual sum and norm as two ops"},
    {"activations unfused", "fuse.act=false", NULL, LESS, ANY, "slower",
     "bias and activation function as two ops"},
    {"loss unfused", "fuse.loss=false", NULL, LESS, MORE, "slower, more memory",
     "softmax, cross-entropy and its gradient as ops of their own"},
    {"optimizer unfused", "fuse.optim=false", NULL, LESS, ANY, "slower",
     "AdamW as a pass over memory for each of its parts"},
    {"QKV unfused", "fuse.qkv=false", NULL, LESS, ANY, "slower",
     "queries, keys and values by three products"},
    {REPLICAS, "parallel.data={ranks} batch.accum/{ranks}", NULL, MORE, MORE,
     "faster, and every rank holds the model",
     "ranks share the sequences of a step; memory is that of all of them"},
    {"ZeRO 1", "parallel.data={ranks} batch.accum/{ranks} zero.stage=1", REPLICAS, SAME, LESS,
     "as fast as data parallel, less memory", "ranks deal out the optimizer's state"},
    {"ZeRO 3", "parallel.data={ranks} batch.accum/{ranks} zero.stage=3", REPLICAS, LESS, LESS,
     "slower than data parallel, less memory",
     "ranks deal out weights and gradients too, and gather weights around their use"},
    {"tensor parallel", "parallel.tensor={ranks}", REPLICAS, LESS, LESS,
     "slower than data parallel, less memory", "ranks share every layer"},
    {"pipeline", "parallel.pipe={ranks}", REPLICAS, LESS, LESS,
     "slower than data parallel (its bubble), less memory",
     "ranks share the layers, pipe.schedule=1f1b"},
    {BASELINE " again", "", NULL, ANY, ANY, "",
     "the recipe as given: shows how far the figures of one recipe lie apart"},
};

size_t strategy_count(void) {
    return sizeof STRATEGIES / sizeof *STRATEGIES;
}

const struct strategy *strategy_at(size_t i) {
    return &STRATEGIES[i];
}

// ---------------------------------------------------------------- the rows

// A strategy with a knob that this build does not have is left out.
static bool all_known(const char *settings) {
    for (const char *at = settings; *at;) {
        char name[64];
        size_t n = strcspn(at, "=*/ "), end = strcspn(at, " ");
        snprintf(name, sizeof name, "%.*s", (int)n, at);
        if (knob_find(name) < 0)
            return false;
        at += end + (at[end] == ' ');
    }
    return true;
}

// Why a row would only repeat the baseline; NULL: it would not.
static const char *idle_reason(const struct knobs *base, const struct knobs *k) {
    struct knobs there = *k;
    bool same = true;
    if (!plan_wants_device(k)) // device=auto on a machine without one
        there.device = DEVICE_CPU;
    for (int id = 0; id < KNOB_COUNT; id++) {
        bool changed = !knobs_same(base, k, id);
        same = same && !changed;
        const char *idle = changed ? knobs_idle(&there, id) : NULL;
        if (idle)
            return idle;
    }
    return same ? "the recipe already has this setting" : NULL;
}

const char *strategy_settings(struct region *r, const struct strategy *s, uint64_t rate,
                              int64_t ranks) {
    const char *text = s->settings;
    const size_t bytes = strlen(text) + 128;
    char *out = region_alloc(r, bytes), number[32];
    size_t n = 0;
    if (!out)
        return NULL;
    for (const char *at = text; *at && n + sizeof number < bytes;) {
        const bool is_rate = strncmp(at, "{rate}", 6) == 0;
        const bool is_ranks = strncmp(at, "{ranks}", 7) == 0;
        if (!is_rate && !is_ranks) {
            out[n++] = *at++;
            continue;
        }
        snprintf(number, sizeof number, "%" PRIu64, is_rate ? rate : (uint64_t)ranks);
        n += (size_t)snprintf(out + n, bytes - n, "%s", number);
        at += is_rate ? 6 : 7;
    }
    out[n] = '\0';
    return out;
}

static int find_row(const struct tradeoffs *t, const char *name) {
    for (size_t i = 0; i < t->grid.n; i++)
        if (strcmp(t->settings[i].name, name) == 0)
            return (int)i;
    return -1;
}

static const char *compared_with(const struct strategy *s) {
    return s->against ? s->against : BASELINE;
}

// An item of --only stands for every name that contains it.
static bool item_names(const char *item, size_t n, const char *name) {
    for (; strlen(name) >= n; name++)
        if (strncasecmp(name, item, n) == 0)
            return true;
    return false;
}

bool tradeoffs_wants(const char *only, const char *name) {
    const char *item;
    size_t n;
    for (const char *at = only; text_next_item(&at, &item, &n);)
        if (item_names(item, n, name))
            return true;
    return !only;
}

int tradeoffs_check_only(const char *only, struct err *e) {
    const char *item = "";
    size_t n = 0;
    bool found = !only;
    for (const char *at = only; text_next_item(&at, &item, &n);) {
        found = item_names(item, n, TRADEOFFS_GENERATION);
        for (size_t i = 0; i < strategy_count() && !found; i++)
            found = item_names(item, n, strategy_at(i)->name);
        if (!found)
            break;
    }
    if (found)
        return 0;
    return err_set(e, ERR_USAGE,
                   "--only: no strategy is called '%.*s'; accepted: names, or parts of them, such "
                   "as 'recompute', 'bf16', 'unfused' or 'ZeRO', and '" TRADEOFFS_GENERATION "'",
                   (int)n, item);
}

// Whether a strategy has a row. The baseline always has one, and so has a strategy that a wanted
// one is compared with.
static bool wanted(const char *only, size_t i) {
    const struct strategy *s = strategy_at(i);
    if (!s->settings[0] || tradeoffs_wants(only, s->name))
        return true;
    for (size_t k = i + 1; k < strategy_count(); k++)
        if (strategy_at(k)->against && strcmp(strategy_at(k)->against, s->name) == 0 &&
            wanted(only, k))
            return true;
    return false;
}

static int make_rows(struct tradeoffs *t, const struct knobs *base, uint64_t rate, struct err *e) {
    size_t n = 0;
    t->settings = calloc(strategy_count(), sizeof *t->settings);
    t->findings = calloc(strategy_count(), sizeof *t->findings);
    t->against = calloc(strategy_count(), sizeof *t->against);
    if (!t->settings || !t->findings || !t->against)
        return err_set(e, ERR_MEMORY, "out of memory for the strategies");
    for (size_t i = 0; i < strategy_count(); i++) {
        const struct strategy *s = strategy_at(i);
        if (!all_known(s->settings) || (t->ranks < 2 && strstr(s->settings, "{ranks}")) ||
            !wanted(t->only, i))
            continue;
        const char *settings = strategy_settings(&t->grid.region, s, rate, t->ranks);
        if (!settings)
            return err_set(e, ERR_MEMORY, "out of memory for the strategies");
        t->findings[n].strategy = s;
        t->settings[n++] = (struct grid_setting){s->name, settings};
    }
    t->grid.list = t->settings;
    t->grid.n = n;
    t->bench.grid = &t->grid;
    for (size_t i = 0; i < n; i++)
        t->against[i] = i == 0 ? -1 : find_row(t, compared_with(t->findings[i].strategy));
    t->bench.against = t->against;
    TRY(bench_open(&t->bench, base, e));
    for (size_t i = 1; i + 1 < n; i++) {
        struct bench_row *row = &t->bench.rows[i];
        const char *idle = row->rc == 0 ? idle_reason(base, &row->knobs) : NULL;
        if (idle)
            bench_refuse(row, ERR_USAGE, idle);
        else if (row->rc == 0 && rate == 0 && strstr(t->findings[i].strategy->settings, "{rate}"))
            bench_refuse(row, ERR_UNSUPPORTED, "the baseline could not be measured");
    }
    return 0;
}

// Half the bytes per second that the baseline reads.
static int probe_rate(const struct knobs *base, const struct bench *b, uint64_t *out,
                      struct err *e) {
    struct trial_options o = {.warmup = b->warmup, .steps = b->steps, .stop = b->stop};
    struct trial_result r;
    *out = 0;
    int rc = trial_run(base, &o, &r, e);
    if (rc == 0 && r.rc != 0)
        rc = err_set(e, r.rc, "the baseline cannot be measured: %s", r.reason);
    if (rc == 0 && r.wall_ns > 0)
        *out = (uint64_t)(0.5e9 * (double)r.data.source_bytes / (double)r.wall_ns);
    trial_free(&r);
    return rc;
}

// ---------------------------------------------------------------- ratios

// Memory comes in pages, and the peak of a process varies by some of them, whatever rounds say.
static const double PAGES = 0.01;

static void compare(struct tradeoffs *t, size_t i) {
    struct finding *f = &t->findings[i];
    const struct bench_row *row = &t->bench.rows[i];
    f->against = i == 0 ? -1 : find_row(t, compared_with(f->strategy));
    f->speed = f->p50 = f->memory = (struct ratio){NAN, NAN, NAN};
    f->p99 = f->sample = f->loss = NAN;
    if (f->against < 0)
        return;
    const struct bench_row *base = &t->bench.rows[f->against];
    if (row->n_rounds == 0 || base->n_rounds == 0)
        return;
    f->speed = bench_ratio(row, base, BENCH_SPEED);
    f->p50 = bench_ratio(row, base, BENCH_STEP);
    f->memory = bench_ratio(row, base, BENCH_MEMORY);
    f->memory.low = fmin(f->memory.low, f->memory.median * (1 - PAGES));
    f->memory.high = fmax(f->memory.high, f->memory.median * (1 + PAGES));
    if (!bench_busy(f->busy, row, base))
        f->busy[0] = '\0';
    f->p99 = row->metrics.step_p99.value / base->metrics.step_p99.value;
    // A micro-batch's part of the step, and the paired ratio of the steps.
    f->sample = f->p50.median * row->metrics.ms_per_sample / row->metrics.step_p50.value /
                (base->metrics.ms_per_sample / base->metrics.step_p50.value);
    f->other_batch =
        row->sum.tokens * (uint64_t)base->sum.steps != base->sum.tokens * (uint64_t)row->sum.steps;
    f->loss = f->other_batch ? NAN : row->loss_last - base->loss_last;
}

// ---------------------------------------------------------------- judging

// Holds: the interval lies in the range. Differs: it lies outside. Else it is too wide to say, or
// it is not known.
static enum agreement agreement_of(const struct range *rule, const struct ratio *seen) {
    const bool silent = rule->low <= 0 && isinf(rule->high);
    if (silent || (seen->low > rule->low && seen->high < rule->high))
        return RULE_HOLDS;
    return seen->high < rule->low || seen->low > rule->high ? RULE_DIFFERS : RULE_UNSEEN;
}

static const char *const WORDS[2][3] = {{"slower", "the same speed", "faster"},
                                        {"less memory", "the same memory", "more memory"}};

// "faster", "the same speed", "1.60x to 2.50x"
static const char *range_text(char out[48], const struct range *rule, bool memory) {
    const int d = rule->low >= 1 ? 1 : rule->high <= 1 ? -1 : 0;
    const bool factor =
        d > 0 ? rule->low > 1 || !isinf(rule->high) : d < 0 && (rule->high < 1 || rule->low > 0);
    if (factor)
        snprintf(out, 48, "%.2fx to %.2fx", rule->low, rule->high);
    return factor ? out : WORDS[memory][d + 1];
}

// What was seen, unless it is what the rule says.
static void say(struct finding *f, bool memory, enum agreement a) {
    const struct ratio *r = memory ? &f->memory : &f->speed;
    const struct range *rule = memory ? &f->strategy->memory : &f->strategy->speed;
    const size_t at = strlen(f->text);
    char *to = f->text + at, wanted[48];
    const size_t room = sizeof f->text - at;
    const char *what = memory ? "memory" : "speed", *comma = at ? "; " : "";
    if (a == RULE_HOLDS)
        return;
    if (isnan(r->low))
        snprintf(to, room, "%stoo few rounds to judge the %s (%.2fx)", comma, what, r->median);
    else if (ratio_direction(r) == 0)
        snprintf(to, room, "%sno measurable difference in %s (%.2fx to %.2fx)", comma, what, r->low,
                 r->high);
    else
        snprintf(to, room, "%s%s here: %.2fx (%.2fx to %.2fx), %s %s", comma,
                 WORDS[memory][ratio_direction(r) + 1], r->median, r->low, r->high,
                 a == RULE_DIFFERS ? "not" : "where the rule says",
                 range_text(wanted, rule, memory));
}

void finding_judge(struct finding *f) {
    const struct strategy *s = f->strategy;
    f->agreement = RULE_NONE;
    f->text[0] = '\0';
    if (!s->rule[0] || isnan(f->speed.median))
        return;
    const enum agreement a = agreement_of(&s->speed, &f->speed),
                         b = agreement_of(&s->memory, &f->memory);
    f->agreement = a == RULE_DIFFERS || b == RULE_DIFFERS ? RULE_DIFFERS
                   : a == RULE_UNSEEN || b == RULE_UNSEEN ? RULE_UNSEEN
                                                          : RULE_HOLDS;
    if (f->agreement == RULE_HOLDS)
        snprintf(f->text, sizeof f->text, "as the rule says");
    say(f, false, a);
    say(f, true, b);
}

static void judge(struct tradeoffs *t, size_t i) {
    struct finding *f = &t->findings[i];
    finding_judge(f);
    const struct data_use *data = &t->bench.rows[i].sum.data;
    if (f->agreement == RULE_NONE || data->cache_windows == 0 || data->cache_hits > 0)
        return;
    f->agreement = RULE_UNSEEN;
    snprintf(f->text, sizeof f->text,
             "no sequence was used twice: an epoch has %" PRIu64
             " of them; try more steps or less data",
             data->windows);
}

void tradeoffs_judge(struct tradeoffs *t) {
    const struct finding *again = &t->findings[t->grid.n - 1];
    for (size_t i = 0; i < t->grid.n; i++) {
        compare(t, i);
        judge(t, i);
    }
    t->speed_noise = fmax(fabs(again->speed.low - 1), fabs(again->speed.high - 1));
}

// ---------------------------------------------------------------- the whole benchmark

int tradeoffs_open(struct tradeoffs *t, const struct knobs *base, struct err *e) {
    uint64_t rate = 0;
    static const int of_layout[] = {KNOB_ranks, KNOB_parallel_data, KNOB_parallel_tensor,
                                    KNOB_parallel_pipe};
    char value[KNOB_VALUE_BYTES];
    t->bench.there_and_back = true;
    t->ranks = knobs_world(base);
    t->base = *base;
    for (size_t i = 0; i < sizeof of_layout / sizeof *of_layout; i++)
        TRY(knobs_set_at(&t->base, of_layout[i], knob_default(of_layout[i], value), SET_BY_DEFAULT,
                         e));
    TRY(tradeoffs_check_only(t->only, e));
    TRY(probe_rate(&t->base, &t->bench, &rate, e));
    return make_rows(t, &t->base, rate, e);
}

int tradeoffs_finish(struct tradeoffs *t, const struct knobs *base, double seconds, struct err *e) {
    TRY(bench_finish(&t->bench, base, seconds, e));
    tradeoffs_judge(t);
    return 0;
}

void tradeoffs_close(struct tradeoffs *t) {
    bench_close(&t->bench);
    grid_free(&t->grid);
    free(t->settings);
    free(t->findings);
    free(t->against);
}
