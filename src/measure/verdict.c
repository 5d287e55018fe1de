// verdict.c - the sentence: parts of the step by size, then the first rule of a table that applies.
//
// The thresholds are where acting is worth a person's time: below a tenth of the step a part cannot
// repay the attempt, and a matmul within 80 % of the best measured rate has little left to give.
#include "measure/verdict.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const double WORTH_ACTING = 0.10, NEAR_BEST = 0.80;

struct view { // what a rule may look at
    const struct verdict_facts *f;
    double part[TIME_COUNT];              // fractions of wall
    double matmul_of_best, bytes_of_best; // 0: not known
};

static bool data_sync(const struct view *v) {
    return v->f->data_workers > 0 && v->f->data_prefetch == 0;
}
static bool data_slow(const struct view *v) {
    return v->f->data_workers > 0;
}
static bool threads_idle(const struct view *v) {
    return v->f->threads > 0 && v->f->threads < v->f->cpus;
}
static bool threads_crowded(const struct view *v) {
    return v->f->cpus > 0 && v->f->threads > v->f->cpus;
}
static bool matmul_slow(const struct view *v) {
    return v->matmul_of_best > 0 && v->matmul_of_best < NEAR_BEST;
}
static bool matmul_unknown(const struct view *v) {
    return !(v->matmul_of_best > 0);
}
static bool small_batch(const struct view *v) {
    // Fewer rows than this and a matmul does not reuse its weights enough to reach the best rate.
    return matmul_slow(v) && v->f->batch_micro > 0 && v->f->batch_micro * v->f->seq < 1024;
}
static bool splits_batch(const struct view *v) {
    return v->f->micro_batches > 1;
}
static bool many_ranks(const struct view *v) {
    return v->f->ranks > 1;
}
static bool always(const struct view *v) {
    (void)v;
    return true;
}

// In order: the first row whose part is large enough (or is the largest, where least is 0) and
// whose condition holds gives the advice. Cheap and safe knobs come first.
static const struct rule {
    enum time_part part;
    double least; // fraction of wall that makes the row apply; 0: only when it is the largest part
    bool (*applies)(const struct view *v);
    const char *knob, *why;
} rules[] = {
    {TIME_DATA_WAIT, 0.05, data_sync, "data.prefetch",
     "batches are made while the step waits; made ahead they cost nothing"},
    {TIME_DATA_WAIT, 0.05, data_slow, "data.workers", "one more thread makes batches sooner"},
    {TIME_COMM, 0.15, many_ranks, "batch.accum",
     "more micro-batches per step exchange gradients less often"},
    {TIME_MATMUL, 0, threads_idle, "threads", "CPUs of this process are idle"},
    {TIME_MATMUL, 0, threads_crowded, "threads", "more threads than CPUs take turns"},
    {TIME_MATMUL, 0, small_batch, "batch.micro",
     "larger matrices reuse each weight more and run nearer the best rate"},
    {TIME_MATMUL, 0, matmul_slow, "cpu.blas",
     "another matmul library may suit these shapes better"},
    {TIME_MATMUL, 0, matmul_unknown, NULL,
     "how fast this machine could be is not measured: haggle doctor measures it"},
    {TIME_MATMUL, 0, always, NULL,
     "the matmuls run near this machine's best rate: only less work would be faster"},
    {TIME_ATTENTION, 0, threads_idle, "threads", "CPUs of this process are idle"},
    {TIME_ATTENTION, 0, always, "seq",
     "attention grows with the square of the sequence (this changes what is trained)"},
    {TIME_OTHER, 0, threads_idle, "threads", "CPUs of this process are idle"},
    {TIME_OTHER, 0, threads_crowded, "threads", "more threads than CPUs take turns"},
    {TIME_OTHER, 0, splits_batch, "batch.micro",
     "fewer, larger micro-batches pass over the weights' gradients less often"},
    {TIME_OTHER, 0, always, NULL,
     "element-wise work is bound by memory: only less work would be faster"},
    {TIME_OPTIMIZER, 0, always, "batch.accum",
     "more tokens per update make updates rarer (this changes what is trained)"},
    {TIME_HOST, 0, threads_crowded, "threads", "more threads than CPUs take turns"},
    {TIME_HOST, 0, always, "batch.micro",
     "ops are too short for the work between them; larger ones amortize it"},
    {TIME_COMM, 0, always, "batch.accum",
     "more micro-batches per step exchange gradients less often"},
    {TIME_DATA_WAIT, 0, always, "data.prefetch", "batches made ahead cost nothing"},
};

struct writer {
    char *out;
    size_t bytes, at;
};

ERR_PRINTF(2, 3) static void put(struct writer *w, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(w->out + w->at, w->bytes - w->at, format, args);
    va_end(args);
    if (n > 0)
        w->at += (size_t)n < w->bytes - w->at ? (size_t)n : w->bytes - w->at - 1;
}

static const struct rule *choose(const struct view *v, enum time_part dominant) {
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        const struct rule *r = &rules[i];
        bool large = r->least > 0 ? v->part[r->part] >= r->least : r->part == dominant;
        if (large && r->applies(v))
            return r;
    }
    return NULL;
}

// Parts in falling order; those under a tenth are left to "the rest" after the first.
static void put_parts(struct writer *w, const struct view *v, const enum time_part *order) {
    double named = 0;
    for (int i = 0; i < TIME_COUNT; i++) {
        enum time_part part = order[i];
        if (i > 0 && v->part[part] < WORTH_ACTING)
            break;
        put(w, "%s%.0f %% %s", i ? ", " : "", 100 * v->part[part], time_part_name(part));
        if (part == TIME_MATMUL && v->matmul_of_best > 0)
            put(w, " at %.0f %% of the best rate", 100 * v->matmul_of_best);
        if (part == TIME_OTHER && v->bytes_of_best > 0)
            put(w, " at %.0f %% of memory bandwidth", 100 * v->bytes_of_best);
        named += v->part[part];
    }
    if (named < 0.995)
        put(w, ", the rest %.0f %%", 100 * (1 - named));
}

// A rate above the best one known means that the best was measured on a busier machine: then this is
// the best.
static double share(double rate, double best) {
    return rate < best ? rate / best : 1;
}

void verdict_of(struct verdict *out, const struct time_split *split,
                const struct verdict_facts *facts) {
    *out = (struct verdict){.dominant = TIME_HOST};
    struct writer w = {out->text, sizeof out->text, 0};
    if (split->steps == 0 || split->wall_ns == 0) {
        put(&w, "nothing was measured: no step has completed");
        return;
    }
    struct view v = {.f = facts};
    enum time_part order[TIME_COUNT];
    for (int i = 0; i < TIME_COUNT; i++) {
        v.part[i] = (double)split->ns[i] / (double)split->wall_ns;
        int j = i; // insertion: seven entries
        for (; j > 0 && v.part[order[j - 1]] < v.part[i]; j--)
            order[j] = order[j - 1];
        order[j] = (enum time_part)i;
    }
    if (facts->best_matmul_flops_per_s > 0)
        v.matmul_of_best = share(facts->matmul_flops_per_s, facts->best_matmul_flops_per_s);
    if (facts->best_bytes_per_s > 0)
        v.bytes_of_best = share(facts->other_bytes_per_s, facts->best_bytes_per_s);

    out->dominant = order[0];
    out->fraction = v.part[order[0]];
    put_parts(&w, &v, order);
    const struct rule *r = choose(&v, out->dominant);
    if (r != NULL) {
        out->knob = r->knob;
        out->why = r->why;
        if (r->knob != NULL)
            put(&w, "; first knob to try: %s (%s)", r->knob, r->why);
        else
            put(&w, "; %s", r->why);
    }
}
