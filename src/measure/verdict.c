// verdict.c - the sentence: the parts of the step by size, then the first rule of a table that
// applies.
//
// The thresholds mark where acting is worth a person's time. A part below a tenth of the step
// cannot repay the attempt. A matmul within 80 % of the best measured rate has little left to gain.
#include "measure/verdict.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define WORTH_ACTING 0.10 // in a table, where C takes no constant variable
static const double NEAR_BEST = 0.80, WORTH_NAMING = 0.05; // parts of a step on a device
// MOSTLY: a share above this counts as most of the time. If loader threads wait for the source for
// most of the time they take to make batches, the source is the limit, not the threads. BUSY:
// workers that are busy for less than this share of the time could make more batches, so only the
// timing is wrong.
static const double MOSTLY = 0.50, BUSY = 0.75;
// With fewer than MANY_ROWS rows a matmul hardly reuses its weights. Below FEW_ROWS this is certain
// even without a measured rate.
enum { MANY_ROWS = 1024, FEW_ROWS = 256 };
// On a device: fewer rows than DEVICE_ROWS leave multiprocessors idle in most products. LOSS: a
// part that would take this much less of the step at its best rate is worth a sentence. MUCH: bf16
// that is faster by this factor is worth its rounding to many.
enum { DEVICE_ROWS = 16384 };
static const double LOSS = 0.03, MUCH = 2;

struct view { // what a rule may look at
    const struct verdict_facts *f;
    uint64_t wall_ns;
    double part[TIME_COUNT];    // fractions of wall
    double logits;              // fraction of wall, estimated from sizes
    double of_best[TIME_COUNT]; // rates as shares of the best ones; 0: not known
    double at_best;             // the step at the best rates, as a fraction of wall; 0: not known
};

static bool data_sync(const struct view *v) {
    return v->f->data_workers > 0 && v->f->data_prefetch == 0;
}
static bool data_slow(const struct view *v) {
    return v->f->data_workers > 0;
}
static bool source_slow(const struct view *v) {
    return (double)v->f->data_source_wait_ns > MOSTLY * (double)v->f->data_make_ns;
}
static bool source_rereads(const struct view *v) {
    return source_slow(v) && v->f->data_repeats;
}
// The workers keep up on average but the step still waits: batches are made or taken unevenly. Also
// true if there are more workers than batches to fill.
static bool data_uneven(const struct view *v) {
    const struct verdict_facts *f = v->f;
    const int at_work =
        f->data_workers <= f->data_prefetch ? f->data_workers : f->data_prefetch + 1;
    return data_slow(v) && f->data_make_ns > 0 &&
           (f->data_workers > f->data_prefetch + 1 ||
            (double)f->data_make_ns < BUSY * (double)v->wall_ns * at_work);
}
static bool threads_idle(const struct view *v) {
    return v->f->threads > 0 && v->f->threads < v->f->cpus;
}
static bool threads_crowded(const struct view *v) {
    return v->f->cpus > 0 && v->f->threads > v->f->cpus;
}
static bool matmul_slow(const struct view *v) {
    return v->of_best[TIME_MATMUL] > 0 && v->of_best[TIME_MATMUL] < NEAR_BEST;
}
static bool matmul_unknown(const struct view *v) {
    return !(v->of_best[TIME_MATMUL] > 0);
}
static int64_t rows(const struct view *v) {
    return v->f->batch_micro * v->f->seq;
}
static bool small_batch(const struct view *v) {
    return matmul_slow(v) && rows(v) > 0 && rows(v) < MANY_ROWS;
}
static bool tiny_batch(const struct view *v) {
    return rows(v) > 0 && rows(v) < FEW_ROWS && v->of_best[TIME_MATMUL] < NEAR_BEST;
}
static bool logits_whole(const struct view *v) {
    return v->logits >= MOSTLY && (v->f->logits_chunk == 0 || v->f->logits_chunk >= rows(v));
}
static bool splits_batch(const struct view *v) {
    return v->f->micro_batches > 1;
}
static bool shares_layers(const struct view *v) {
    return v->f->tensor > 1;
}
static bool many_replicas(const struct view *v) {
    return v->f->replicas > 1;
}
static bool always(const struct view *v) {
    (void)v;
    return true;
}

// Of a device.
static bool without_graphs(const struct view *v) {
    return !v->f->graphs;
}
static bool bound_by_launches(const struct view *v) {
    return !v->f->graphs && v->f->launch_of_step > MOSTLY;
}
static bool bf16_faster(const struct view *v) {
    return v->f->best_bf16_flops_per_s > MUCH * v->f->best_matmul_flops_per_s && !matmul_unknown(v);
}
static double loss(const struct view *v, enum time_part part) {
    return v->of_best[part] > 0 ? v->part[part] * (1 - v->of_best[part]) : 0;
}
static bool attention_bounded(const struct view *v) {
    return v->f->documents && v->of_best[TIME_ATTENTION] < NEAR_BEST &&
           loss(v, TIME_ATTENTION) > LOSS;
}
static bool device_rows(const struct view *v) {
    return matmul_slow(v) && loss(v, TIME_MATMUL) > LOSS && rows(v) > 0 && rows(v) < DEVICE_ROWS;
}
static bool near_best(const struct view *v) {
    return v->at_best > NEAR_BEST;
}

// The first row that applies gives the advice: first of these tables, then of the one for the CPU
// or a device. A row applies if its part is large enough and its condition holds. Cheap and safe
// knobs come first.
static const struct rule {
    enum time_part part;
    double least; // smallest fraction of wall; 0: it must be the largest part; below 0: any
    bool (*applies)(const struct view *v);
    const char *knob, *why;
} shared_rules[] = {
    {TIME_DATA_WAIT, 0.05, data_sync, "data.prefetch",
     "batches are made while the step waits, but cost the step nothing when made ahead"},
    {TIME_DATA_WAIT, 0.05, source_rereads, "data.ram",
     "the data source is too slow, and sequences kept in memory are not read again in later "
     "epochs"},
    {TIME_DATA_WAIT, 0.05, source_slow, "data.source_rate",
     "the source delivers no more than this rate, and memory only helps with data that is read "
     "again"},
    {TIME_DATA_WAIT, 0.05, data_uneven, "data.prefetch",
     "the loader threads keep up on average, and more batches ahead bridge the gaps"},
    {TIME_DATA_WAIT, 0.05, data_slow, "data.workers", "one more thread makes batches sooner"},
    {TIME_COMM, 0.15, shares_layers, "parallel.tensor",
     "its ranks wait for each other in every layer: fewer of them, and more replicas or stages, "
     "wait less"},
    {TIME_COMM, 0.15, many_replicas, "batch.accum",
     "with more micro-batches per step, gradients are exchanged less often"},
    {TIME_COMM, 0, always, "batch.accum",
     "with more micro-batches per step, gradients are exchanged less often"},
    {TIME_DATA_WAIT, 0, always, "data.prefetch", "batches made ahead cost the step nothing"},
    {0},
};

static const struct rule cpu_rules[] = {
    {TIME_MATMUL, 0, threads_idle, "threads", "some CPUs of this process are idle"},
    {TIME_MATMUL, 0, threads_crowded, "threads", "more threads than CPUs have to take turns"},
    {TIME_MATMUL, 0, logits_whole, "logits.chunk",
     "most of the time goes to the projection to the vocabulary: chunks save its memory, not its "
     "time, and make room for a larger batch.micro"},
    {TIME_MATMUL, 0, tiny_batch, "batch.micro",
     "with so few tokens the weights are hardly reused, and more tokens cost little more time"},
    {TIME_MATMUL, 0, small_batch, "batch.micro",
     "larger matrices reuse each weight more and run closer to the best rate"},
    {TIME_MATMUL, 0, matmul_slow, "cpu.blas",
     "another matmul library may suit these shapes better"},
    {TIME_MATMUL, 0, matmul_unknown, NULL,
     "the best rate of this machine is not measured yet: run haggle doctor"},
    {TIME_MATMUL, 0, always, NULL,
     "the matmuls run near this machine's best rate: only less work would be faster"},
    {TIME_ATTENTION, 0, threads_idle, "threads", "some CPUs of this process are idle"},
    {TIME_ATTENTION, 0, always, "seq",
     "attention grows with the square of the sequence length (this changes what is trained)"},
    {TIME_OTHER, 0, threads_idle, "threads", "some CPUs of this process are idle"},
    {TIME_OTHER, 0, threads_crowded, "threads", "more threads than CPUs have to take turns"},
    {TIME_OTHER, 0, logits_whole, "logits.chunk",
     "most of the time goes to the projection to the vocabulary: chunks save its memory, not its "
     "time, and make room for a larger batch.micro"},
    {TIME_OTHER, 0, tiny_batch, "batch.micro",
     "with so few tokens the weights are hardly reused, and more tokens cost little more time"},
    {TIME_OTHER, 0, splits_batch, "batch.micro",
     "fewer, larger micro-batches pass over the weights' gradients less often"},
    {TIME_OTHER, 0, always, NULL,
     "element-wise work is limited by memory bandwidth: only less work would be faster"},
    {TIME_OPTIMIZER, 0, tiny_batch, "batch.micro",
     "an update costs the same for few tokens as for many (this changes what is trained)"},
    {TIME_OPTIMIZER, 0, always, "batch.accum",
     "with more tokens per update, updates are rarer (this changes what is trained)"},
    {TIME_HOST, 0, threads_crowded, "threads", "more threads than CPUs have to take turns"},
    {TIME_HOST, 0, always, "batch.micro",
     "ops are short compared with the host's work between them, and larger ops amortize it"},
    {0},
};

static const struct rule device_rules[] = {
    {TIME_HOST, -1, bound_by_launches, "cuda.graphs",
     "launching kernels one by one takes most of the step, and a graph launches many at once"},
    {TIME_HOST, 0.10, without_graphs, "cuda.graphs",
     "the device waits for the host between kernels, and a graph launches many at once"},
    {TIME_HOST, 0.10, splits_batch, "batch.micro",
     "the device waits for the host between micro-batches: fewer, larger ones wait less often"},
    {TIME_HOST, 0.10, always, "batch.micro",
     "the device waits for the host between steps, and larger steps wait less often (this changes "
     "what is trained)"},
    {TIME_MATMUL, 0, bf16_faster, "precision",
     "products in bf16 are several times as fast on this device (this changes the numbers)"},
    {TIME_ATTENTION, -1, attention_bounded, "data.pack",
     "attention is faster without document boundaries: none has one document per sequence (this "
     "changes what is trained)"},
    {TIME_MATMUL, WORTH_ACTING, device_rows, "batch.micro",
     "larger matrices run closer to the best rate"},
    {TIME_MATMUL, -1, matmul_unknown, NULL,
     "the best rates of this device are not measured yet: run haggle doctor"},
    {TIME_OPTIMIZER, 0, always, "batch.accum",
     "with more tokens per update, updates are rarer (this changes what is trained)"},
    {TIME_MATMUL, -1, near_best, NULL,
     "the step runs near the best rates here: only less work would be faster"},
    {TIME_MATMUL, -1, always, NULL,
     "no setting is known that would bring it nearer to the best rates"},
    {0},
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

static const struct rule *choose_from(const struct rule *r, const struct view *v,
                                      enum time_part dominant) {
    for (; r->applies; r++) {
        bool large = r->least > 0   ? v->part[r->part] >= r->least
                     : r->least < 0 ? true
                                    : r->part == dominant;
        if (large && r->applies(v))
            return r;
    }
    return NULL;
}

static const struct rule *choose(const struct view *v, enum time_part dominant) {
    const struct rule *r = choose_from(shared_rules, v, dominant);
    return r ? r : choose_from(v->f->device ? device_rules : cpu_rules, v, dominant);
}

// Writes the parts in falling order. After the first, parts under a tenth are left to "the rest".
static void put_parts(struct writer *w, const struct view *v, const enum time_part *order) {
    double named = 0;
    for (int i = 0; i < TIME_COUNT; i++) {
        enum time_part part = order[i];
        if (i > 0 && v->part[part] < WORTH_ACTING)
            break;
        put(w, "%s%.0f %% %s", i ? ", " : "", 100 * v->part[part], time_part_name(part));
        if (part == TIME_MATMUL && v->of_best[TIME_MATMUL] > 0)
            put(w, " at %.0f %% of the best rate", 100 * v->of_best[TIME_MATMUL]);
        if (part == TIME_OTHER && v->of_best[TIME_OTHER] > 0)
            put(w, " at %.0f %% of memory bandwidth", 100 * v->of_best[TIME_OTHER]);
        named += v->part[part];
    }
    if (named < 0.995)
        put(w, ", the rest %.0f %%", 100 * (1 - named));
}

// The same for a run on a device, with the distance to the best rates.
static void put_device_parts(struct writer *w, const struct view *v, const enum time_part *order) {
    static const char *const names[TIME_COUNT] = {
        [TIME_MATMUL] = "matrix products",   [TIME_ATTENTION] = "attention",
        [TIME_OTHER] = "other ops",          [TIME_OPTIMIZER] = "the optimizer",
        [TIME_COMM] = "communication",       [TIME_DATA_WAIT] = "waiting for data",
        [TIME_HOST] = "waiting for the host"};
    double named = 0;
    bool said = false; // what the shares of a best rate are about
    for (int i = 0; i < TIME_COUNT; i++) {
        const enum time_part part = order[i];
        const bool bytes = part == TIME_OTHER || part == TIME_OPTIMIZER;
        if (i > 0 && v->part[part] < WORTH_NAMING)
            break;
        put(w, "%s%s %.0f %%%s", i ? ", " : "", names[part], 100 * v->part[part],
            i ? "" : " of the step");
        if (v->of_best[part] > 0)
            put(w, " at %.0f %%%s", 100 * v->of_best[part],
                bytes   ? " of a copy's bandwidth"
                : !said ? " of the best rate here"
                        : "");
        said = said || (v->of_best[part] > 0 && !bytes);
        named += v->part[part];
    }
    if (named < 0.995)
        put(w, ", the rest %.0f %%", 100 * (1 - named));
    if (v->at_best > 0)
        put(w, "; at the best rates here the step would take %.0f %% of its time",
            100 * v->at_best);
    if (v->f->order_of_step > LOSS)
        put(w, "; cuda.deterministic=true costs about %.0f %% of the step",
            100 * v->f->order_of_step);
}

// Share of the best rate. A rate above the best known one means that the best was measured on a
// busier machine. Then this rate is the best.
static double share(double rate, double best) {
    return rate < best ? rate / best : 1;
}

// What the device computes at the best rates, one after the other, and nothing else. Not known if a
// large part's distance is not.
static double at_best(const struct view *v) {
    double sum = 0;
    for (int i = TIME_MATMUL; i <= TIME_OPTIMIZER; i++) {
        if (!(v->of_best[i] > 0) && v->part[i] >= WORTH_ACTING)
            return 0;
        sum += v->part[i] * (v->of_best[i] > 0 ? v->of_best[i] : 1);
    }
    return v->of_best[TIME_MATMUL] > 0 ? sum : 0;
}

// For matmuls the roofline decides, if it is known: matmuls that do less work per byte than the
// machine could are waiting for memory.
static const char *bound_of(enum time_part dominant, const struct verdict_facts *f) {
    static const char *const bounds[TIME_COUNT] = {
        [TIME_MATMUL] = "compute",         [TIME_ATTENTION] = "compute",
        [TIME_OTHER] = "memory bandwidth", [TIME_HOST] = "host",
        [TIME_OPTIMIZER] = "optimizer",    [TIME_COMM] = "communication",
        [TIME_DATA_WAIT] = "data"};
    const bool waits = f->best_bytes_per_s > 0 && f->matmul_flops_per_byte > 0 &&
                       f->matmul_flops_per_byte * f->best_bytes_per_s < f->best_matmul_flops_per_s;
    return dominant == TIME_MATMUL && waits ? bounds[TIME_OTHER] : bounds[dominant];
}

void verdict_of(struct verdict *out, const struct time_split *split,
                const struct verdict_facts *facts) {
    *out = (struct verdict){.dominant = TIME_HOST, .bound = ""};
    struct writer w = {out->text, sizeof out->text, 0};
    if (split->steps == 0 || split->wall_ns == 0) {
        put(&w, "nothing was measured: no step has completed");
        return;
    }
    struct view v = {.f = facts, .wall_ns = split->wall_ns};
    enum time_part order[TIME_COUNT];
    for (int i = 0; i < TIME_COUNT; i++) {
        v.part[i] = (double)split->ns[i] / (double)split->wall_ns;
        int j = i; // insertion: seven entries
        for (; j > 0 && v.part[order[j - 1]] < v.part[i]; j--)
            order[j] = order[j - 1];
        order[j] = (enum time_part)i;
    }
    if (facts->best_matmul_flops_per_s > 0)
        v.of_best[TIME_MATMUL] = share(facts->matmul_flops_per_s, facts->best_matmul_flops_per_s);
    if (facts->best_bytes_per_s > 0)
        v.of_best[TIME_OTHER] = share(facts->other_bytes_per_s, facts->best_bytes_per_s);
    if (facts->device && facts->best_bytes_per_s > 0)
        v.of_best[TIME_OPTIMIZER] = share(facts->optimizer_bytes_per_s, facts->best_bytes_per_s);
    if (facts->best_attention_flops_per_s > 0)
        v.of_best[TIME_ATTENTION] =
            share(facts->attention_flops_per_s, facts->best_attention_flops_per_s);
    v.at_best = facts->device ? at_best(&v) : 0;

    v.logits =
        v.part[TIME_MATMUL] * facts->logits_of_matmul + v.part[TIME_OTHER] * facts->logits_of_other;
    out->dominant = order[0];
    out->fraction = v.part[order[0]];
    out->bound = bound_of(order[0], facts);
    put(&w, "bound by %s: ", out->bound);
    (facts->device ? put_device_parts : put_parts)(&w, &v, order);
    const struct rule *r = choose(&v, out->dominant);
    out->advice_at = w.at;
    if (r != NULL) {
        out->knob = r->knob;
        out->why = r->why;
        if (r->knob != NULL)
            put(&w, "; first knob to try: %s (%s)", r->knob, r->why);
        else
            put(&w, "; %s", r->why);
    }
}
