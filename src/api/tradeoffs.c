// tradeoffs.c - see tradeoffs.h.
#include "api/tradeoffs.h"

#include "base/clock.h"
#include "base/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS_DEFAULT = 5, STEPS_DEFAULT = 10, WARMUP_DEFAULT = 2 };
static const double SAME_SPEED = 0.05; // what a person would call the same
#define BASELINE "baseline"
#define SLOW     "slow source"

// clang-format off
static const struct strategy STRATEGIES[] = {
    {.name = BASELINE, .settings = "", .rule = "", .what = "the recipe as given"},
    {.name = "larger micro-batch", .settings = "batch.micro*2 batch.accum/2", .speed = 1, .memory = 1,
        .rule = "faster, more memory", .what = "the same tokens per step in half as many micro-batches"},
    {.name = "accumulation", .settings = "batch.micro/2 batch.accum*2", .speed = -1, .memory = -1,
        .rule = "slower, less memory", .what = "the same tokens per step in twice as many micro-batches"},
    {.name = "twice the batch", .settings = "batch.micro*2", .speed = 1, .memory = 1,
        .rule = "more throughput, longer steps, more memory", .what = "twice the tokens per step: other mathematics"},
    {.name = "recompute selective", .settings = "recompute.mode=selective", .speed = -1, .memory = -1,
        .rule = "a little slower, less memory", .what = "norms and activation functions are computed again in the backward"},
    {.name = "recompute full", .settings = "recompute.mode=full recompute.every=1", .speed = -1, .memory = -1,
        .rule = "a third slower, much less memory", .what = "only the inputs of blocks are kept"},
    {.name = "recompute every 2", .settings = "recompute.mode=full recompute.every=2", .speed = -1, .memory = -1,
        .rule = "half the price, half the gain of full", .what = "every second block is computed again"},
    {.name = "bf16", .settings = "precision=bf16", .speed = 1, .memory = -1,
        .rule = "twice as fast, half the memory", .what = "weights and activations of 16 bits, with fp32 masters"},
    {.name = "fp16", .settings = "precision=fp16", .speed = 1, .memory = -1,
        .rule = "twice as fast, half the memory", .what = "the same in fp16, with loss scaling"},
    {.name = "logits in chunks", .settings = "logits.chunk=128", .speed = 0, .memory = -1,
        .rule = "the same speed, less memory", .what = "the logits of 128 tokens at a time"},
    {.name = "optimizer state bf16", .settings = "optim.state=bf16", .speed = 0, .memory = -1,
        .rule = "the same speed, less memory", .what = "Adam's moments in 4 bytes per parameter instead of 8"},
    {.name = "optimizer state int8", .settings = "optim.state=int8", .speed = 0, .memory = -1,
        .rule = "the same speed, a quarter of the state", .what = "Adam's moments in about 2 bytes per parameter"},
    {.name = "no prefetch", .settings = "data.prefetch=0", .speed = -1, .memory = RULE_IS_SILENT,
        .rule = "slower", .what = "each batch is made when it is needed"},
    {.name = "two data workers", .settings = "data.workers=2 data.prefetch=4", .speed = 1, .memory = RULE_IS_SILENT,
        .rule = "faster", .what = "two threads prepare batches, four steps ahead"},
    {.name = SLOW, .settings = "data.source_rate={rate}", .speed = -1, .memory = RULE_IS_SILENT,
        .rule = "slower", .what = "a source that gives half the bytes per second that the baseline reads"},
    {.name = SLOW ", prefetch", .settings = "data.source_rate={rate} data.prefetch=8", .against = SLOW,
        .speed = 1, .memory = RULE_IS_SILENT, .rule = "prefetching hides a slow source",
        .what = "eight steps ahead of the same slow source"},
    {.name = SLOW ", kept in memory", .settings = "data.source_rate={rate} data.ram=64MiB", .against = SLOW,
        .speed = 1, .memory = 1, .rule = "a cache hides a slow source after the first epoch",
        .what = "sequences stay in memory after their first use"},
    {.name = "one thread", .settings = "threads=1", .speed = -1, .memory = RULE_IS_SILENT,
        .rule = "slower", .what = "one thread computes"},
    {.name = "pinned threads", .settings = "cpu.pin=true", .speed = 1, .memory = RULE_IS_SILENT,
        .rule = "a little faster, steadier", .what = "each thread is bound to a CPU of its own"},
    {.name = "no CUDA graphs", .settings = "cuda.graphs=false", .speed = -1, .memory = RULE_IS_SILENT,
        .rule = "slower for small models", .what = "every kernel is launched by itself"},
    {.name = "norms unfused", .settings = "fuse.norm=false", .speed = -1, .memory = RULE_IS_SILENT,
        .rule = "slower", .what = "residual sum and norm as two ops"},
    {.name = "activations unfused", .settings = "fuse.act=false", .speed = -1, .memory = RULE_IS_SILENT,
        .rule = "slower", .what = "bias and activation function as two ops"},
    {.name = "loss unfused", .settings = "fuse.loss=false", .speed = -1, .memory = 1,
        .rule = "slower, more memory", .what = "softmax, cross-entropy and its gradient as ops of their own"},
    {.name = "optimizer unfused", .settings = "fuse.optim=false", .speed = -1, .memory = RULE_IS_SILENT,
        .rule = "slower", .what = "AdamW as a pass over memory for each of its parts"},
    {.name = "QKV unfused", .settings = "fuse.qkv=false", .speed = -1, .memory = RULE_IS_SILENT,
        .rule = "slower", .what = "queries, keys and values by three products"},
    {.name = BASELINE " again", .settings = "", .rule = "", .what = "the recipe as given: its difference from itself is the noise"},
};
// clang-format on

size_t strategy_count(void) {
    return sizeof STRATEGIES / sizeof *STRATEGIES;
}

const struct strategy *strategy_at(size_t i) {
    return &STRATEGIES[i];
}

// ---------------------------------------------------------------- the rows

// A knob that this build does not have: its strategy is no row at all.
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
    if (!session_wants_device(k)) // auto, where there is none
        there.device = DEVICE_CPU;
    for (int id = 0; id < KNOB_COUNT; id++) {
        bool changed = !knobs_same(base, k, id);
        same = same && !changed;
        const char *idle = changed ? knobs_idle(&there, id) : NULL;
        if (idle)
            return idle;
    }
    return same ? "the recipe has it so already" : NULL;
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
    struct trial_options o = {.warmup = b->warmup, .steps = b->steps, .stop = stop_flag()};
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
    // Pages come in pieces: a hundredth is no difference.
    double noise = fmax(t->memory_noise, 0.01);
    return f->memory > 1 + noise ? 1 : f->memory < 1 - noise ? -1 : 0;
}

static const char *speed_word(int d) {
    return d > 0 ? "faster" : d < 0 ? "slower" : "the same speed";
}

static const char *memory_word(int d) {
    return d > 0 ? "more memory" : d < 0 ? "less memory" : "the same memory";
}

// A direction that was measured contradicts any other expectation; one that was not contradicts none.
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
    // That two speeds are the same is a claim too: it takes a quiet machine.
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
                 "no sequence came twice: an epoch has %" PRIu64
                 " of them; more steps or less data",
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

// ---------------------------------------------------------------- the verb

static int report(struct tradeoffs *t, const struct knobs *base, enum haggle_format format,
                  double seconds, struct call *c, struct err *e) {
    TRY(bench_finish(&t->bench, base, seconds, e));
    tradeoffs_judge(t);
    if (c->out)
        TRY(tradeoffs_print(t, base, format, c->out, e));
    if (c->wants_json) {
        call_json_begin(c, "bench tradeoffs", base);
        machine_put_json(&t->bench.machine, &c->json);
        json_member_i64(&c->json, "rounds", t->bench.rounds);
        json_member_i64(&c->json, "steps", t->bench.steps);
        json_member_i64(&c->json, "warmup", t->bench.warmup);
        json_member_double(&c->json, "speed_noise", t->speed_noise);
        json_put_key(&c->json, "rows");
        tradeoffs_put_json(t, &c->json);
        json_put_object_end(&c->json);
    }
    if (t->bench.rows[0].n_rounds > 0)
        return 0;
    return err_set(e, t->bench.rows[0].rc, "the baseline could not be measured: %s",
                   t->bench.rows[0].reason);
}

static int run(struct tradeoffs *t, struct call *c, const struct knobs *base,
               const struct haggle_bench *o, struct err *e) {
    uint64_t begin_ns = clock_ns(), rate = 0;
    TRY(probe_rate(base, &t->bench, &rate, e));
    TRY(make_rows(t, base, rate, e));
    log_put(&c->log, LOG_INFO, "%zu strategies, %d rounds of %lld steps after %lld of warm-up",
            t->grid.n, t->bench.rounds, (long long)t->bench.steps, (long long)t->bench.warmup);
    int rc = bench_measure(&t->bench, c, e);
    if (rc != 0 && rc != ERR_STOPPED)
        return rc;
    // What was measured before a stop request is a result too.
    struct err late = {0};
    double seconds = 1e-9 * (double)(clock_ns() - begin_ns);
    int printed = report(t, base, o->format, seconds, c, &late);
    if (rc == 0 && printed != 0)
        return err_set(e, printed, "%s", late.text);
    return rc;
}

int haggle_bench_tradeoffs(const struct haggle_config *config, const struct haggle_bench *o,
                           const struct haggle_sink *sink, struct haggle_error *e) {
    struct call c;
    struct tradeoffs t = {.bench = {.rounds = o->rounds > 0 ? o->rounds : ROUNDS_DEFAULT,
                                    .steps = o->steps > 0 ? o->steps : STEPS_DEFAULT,
                                    .warmup = o->warmup >= 0 ? o->warmup : WARMUP_DEFAULT,
                                    .there_and_back = true}};
    t.bench.grid = &t.grid;
    call_begin(&c, sink);
    int rc = run(&t, &c, &config->knobs, o, &c.err);
    bench_close(&t.bench);
    grid_free(&t.grid);
    free(t.settings);
    free(t.findings);
    return call_end(&c, rc, e);
}
