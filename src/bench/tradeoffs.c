// tradeoffs.c - see tradeoffs.h.
#include "bench/tradeoffs.h"

#include "base/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double SAME_SPEED = 0.05; // most noise at which two speeds can be called the same
#define BASELINE "baseline"
#define SLOW     "slow source"

enum { ANY = RULE_IS_SILENT };

// name, settings, against, speed, memory, rule, what
static const struct strategy STRATEGIES[] = {
    {BASELINE, "", NULL, 0, 0, "", "the recipe as given"},
    {"larger micro-batch", "batch.micro*2 batch.accum/2", NULL, 1, 1, "faster, more memory",
     "the same tokens per step in half as many micro-batches"},
    {"accumulation", "batch.micro/2 batch.accum*2", NULL, -1, -1, "slower, less memory",
     "the same tokens per step in twice as many micro-batches"},
    {"twice the batch", "batch.micro*2", NULL, 1, 1, "more throughput, longer steps, more memory",
     "twice the tokens per step: other mathematics"},
    {"recompute selective", "recompute.mode=selective", NULL, -1, -1,
     "a little slower, less memory",
     "norms and activation functions are computed again in the backward"},
    {"recompute full", "recompute.mode=full recompute.every=1", NULL, -1, -1,
     "a third slower, much less memory", "only the inputs of blocks are kept"},
    {"recompute every 2", "recompute.mode=full recompute.every=2", NULL, -1, -1,
     "half the price, half the gain of full", "every second block is computed again"},
    {"bf16", "precision=bf16", NULL, 1, -1, "twice as fast, half the memory",
     "weights and activations of 16 bits, with fp32 masters"},
    {"fp16", "precision=fp16", NULL, 1, -1, "twice as fast, half the memory",
     "the same in fp16, with loss scaling"},
    {"logits in chunks", "logits.chunk=128", NULL, 0, -1, "the same speed, less memory",
     "the logits of 128 tokens at a time"},
    {"optimizer state bf16", "optim.state=bf16", NULL, 0, -1, "the same speed, less memory",
     "Adam's moments in 4 bytes per parameter instead of 8"},
    {"optimizer state int8", "optim.state=int8", NULL, 0, -1,
     "the same speed, a quarter of the state", "Adam's moments in about 2 bytes per parameter"},
    {"no prefetch", "data.prefetch=0", NULL, -1, ANY, "slower",
     "each batch is made when it is needed"},
    {"two data workers", "data.workers=2 data.prefetch=4", NULL, 1, ANY, "faster",
     "two threads prepare batches, four steps ahead"},
    {SLOW, "data.source_rate={rate}", NULL, -1, ANY, "slower",
     "a source that gives half the bytes per second that the baseline reads"},
    {SLOW ", prefetch", "data.source_rate={rate} data.prefetch=8", SLOW, 1, ANY,
     "prefetching hides a slow source", "eight steps ahead of the same slow source"},
    {SLOW ", kept in memory", "data.source_rate={rate} data.ram=64MiB", SLOW, 1, 1,
     "a cache hides a slow source after the first epoch",
     "sequences stay in memory after their first use"},
    {"one thread", "threads=1", NULL, -1, ANY, "slower", "one thread computes"},
    {"pinned threads", "cpu.pin=true", NULL, 1, ANY, "a little faster, steadier",
     "each thread is bound to a CPU of its own"},
    {"no CUDA graphs", "cuda.graphs=false", NULL, -1, ANY, "slower for small models",
     "every kernel is launched by itself"},
    {"norms unfused", "fuse.norm=false", NULL, -1, ANY, "slower",
     "residual sum and norm as two ops"},
    {"activations unfused", "fuse.act=false", NULL, -1, ANY, "slower",
     "bias and activation function as two ops"},
    {"loss unfused", "fuse.loss=false", NULL, -1, 1, "slower, more memory",
     "softmax, cross-entropy and its gradient as ops of their own"},
    {"optimizer unfused", "fuse.optim=false", NULL, -1, ANY, "slower",
     "AdamW as a pass over memory for each of its parts"},
    {"QKV unfused", "fuse.qkv=false", NULL, -1, ANY, "slower",
     "queries, keys and values by three products"},
    {BASELINE " again", "", NULL, 0, 0, "",
     "the recipe as given: its difference from itself is the noise"},
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

static const char *fill_rate(struct region *r, const char *settings, uint64_t rate) {
    static const char mark[] = "{rate}";
    const char *at = strstr(settings, mark);
    if (!at)
        return settings;
    size_t bytes = strlen(settings) + 32;
    char *out = region_alloc(r, bytes);
    if (out)
        snprintf(out, bytes, "%.*s%" PRIu64 "%s", (int)(at - settings), settings, rate,
                 at + sizeof mark - 1);
    return out;
}

static int make_rows(struct tradeoffs *t, const struct knobs *base, uint64_t rate, struct err *e) {
    size_t n = 0;
    t->settings = calloc(strategy_count(), sizeof *t->settings);
    t->findings = calloc(strategy_count(), sizeof *t->findings);
    if (!t->settings || !t->findings)
        return err_set(e, ERR_MEMORY, "out of memory for the strategies");
    for (size_t i = 0; i < strategy_count(); i++) {
        const struct strategy *s = strategy_at(i);
        if (!all_known(s->settings))
            continue;
        const char *settings = fill_rate(&t->grid.region, s->settings, rate);
        if (!settings)
            return err_set(e, ERR_MEMORY, "out of memory for the strategies");
        t->findings[n].strategy = s;
        t->settings[n++] = (struct grid_setting){s->name, settings};
    }
    t->grid.list = t->settings;
    t->grid.n = n;
    t->bench.grid = &t->grid;
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

static int find_row(const struct tradeoffs *t, const char *name) {
    for (size_t i = 0; i < t->grid.n; i++)
        if (strcmp(t->settings[i].name, name) == 0)
            return (int)i;
    return -1;
}

static void compare(struct tradeoffs *t, size_t i) {
    struct finding *f = &t->findings[i];
    const struct bench_row *row = &t->bench.rows[i];
    const char *against = f->strategy->against ? f->strategy->against : BASELINE;
    f->against = i == 0 ? -1 : find_row(t, against);
    f->speed = f->p50 = (struct ratio){NAN, NAN, NAN};
    f->p99 = f->sample = f->memory = f->loss = NAN;
    if (f->against < 0)
        return;
    const struct bench_row *base = &t->bench.rows[f->against];
    if (row->n_rounds == 0 || base->n_rounds == 0)
        return;
    f->speed = bench_ratio(row, base, false);
    f->p50 = bench_ratio(row, base, true);
    f->p99 = row->metrics.step_p99.value / base->metrics.step_p99.value;
    f->sample = row->metrics.ms_per_sample / base->metrics.ms_per_sample;
    f->memory = bench_memory(row) / bench_memory(base);
    f->other_batch =
        row->sum.tokens * (uint64_t)base->sum.steps != base->sum.tokens * (uint64_t)row->sum.steps;
    f->loss = f->other_batch ? NAN : row->loss_last - base->loss_last;
}

// ---------------------------------------------------------------- judging

static int memory_direction(const struct tradeoffs *t, const struct finding *f) {
    // Memory comes in pages, so 1 % is no difference.
    double noise = fmax(t->memory_noise, 0.01);
    return f->memory > 1 + noise ? 1 : f->memory < 1 - noise ? -1 : 0;
}

static const char *speed_word(int d) {
    return d > 0 ? "faster" : d < 0 ? "slower" : "the same speed";
}

static const char *memory_word(int d) {
    return d > 0 ? "more memory" : d < 0 ? "less memory" : "the same memory";
}

// A measured direction contradicts any other expectation. No measured direction contradicts none.
static enum agreement agreement_of(int expected, int seen) {
    return expected == RULE_IS_SILENT || seen == expected ? RULE_HOLDS
           : seen == 0                                    ? RULE_UNSEEN
                                                          : RULE_DIFFERS;
}

static void judge(struct tradeoffs *t, size_t i) {
    struct finding *f = &t->findings[i];
    const struct strategy *s = f->strategy;
    f->agreement = RULE_NONE;
    if (!s->rule[0] || isnan(f->speed.median))
        return;
    int speed = ratio_direction(&f->speed, t->bench.rows[i].n_rounds, t->speed_noise),
        memory = memory_direction(t, f);
    // "The same speed" is a claim too, which needs a quiet machine.
    bool loud = s->speed == 0 && speed == 0 && !(t->speed_noise <= SAME_SPEED);
    enum agreement a = loud ? RULE_UNSEEN : agreement_of(s->speed, speed),
                   b = agreement_of(s->memory, memory);
    f->agreement = a == RULE_DIFFERS || b == RULE_DIFFERS ? RULE_DIFFERS
                   : a == RULE_UNSEEN || b == RULE_UNSEEN ? RULE_UNSEEN
                                                          : RULE_HOLDS;
    const struct data_use *data = &t->bench.rows[i].sum.data;
    if (data->cache_windows > 0 && data->cache_hits == 0) {
        f->agreement = RULE_UNSEEN;
        snprintf(f->text, sizeof f->text,
                 "no sequence was used twice: an epoch has %" PRIu64
                 " of them; try more steps or less data",
                 data->windows);
        return;
    }
    size_t at = 0;
    if (f->agreement == RULE_HOLDS)
        at += (size_t)snprintf(f->text, sizeof f->text, "as the rule says");
    if (a == RULE_DIFFERS)
        at += (size_t)snprintf(f->text, sizeof f->text, "differs: %s here (%.2fx), not %s",
                               speed_word(speed), f->speed.median, speed_word(s->speed));
    else if (a == RULE_UNSEEN)
        at += (size_t)snprintf(f->text, sizeof f->text,
                               "no measurable difference in speed (%.2fx; noise %.0f %%)",
                               f->speed.median, 100 * t->speed_noise);
    if (b == RULE_DIFFERS)
        snprintf(f->text + at, sizeof f->text - at, "%s%s here (%.2fx), not %s",
                 at ? "; " : "differs: ", memory_word(memory), f->memory, memory_word(s->memory));
    else if (b == RULE_UNSEEN)
        snprintf(f->text + at, sizeof f->text - at, "%sno measurable difference in memory",
                 at ? "; " : "");
}

void tradeoffs_judge(struct tradeoffs *t) {
    const struct finding *again = &t->findings[t->grid.n - 1];
    for (size_t i = 0; i < t->grid.n; i++)
        compare(t, i);
    t->speed_noise = ratio_noise(&again->speed);
    t->memory_noise = fabs(again->memory - 1);
    for (size_t i = 0; i < t->grid.n; i++)
        judge(t, i);
}

// ---------------------------------------------------------------- the whole benchmark

int tradeoffs_open(struct tradeoffs *t, const struct knobs *base, struct err *e) {
    uint64_t rate = 0;
    t->bench.there_and_back = true;
    TRY(probe_rate(base, &t->bench, &rate, e));
    return make_rows(t, base, rate, e);
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
}
