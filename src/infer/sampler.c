// sampler.c - see sampler.h.
#include "infer/sampler.h"

#include "base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct candidate {
    float logit, p;
    int32_t id;
};

struct sampler {
    int64_t vocab;
    struct candidate *heap;
    unsigned char *seen; // [vocab], all 0 between two calls
};

struct sampling sampling_of(const struct knobs *k) {
    return (struct sampling){.temperature = k->generate_temperature,
                             .top_k = k->generate_top_k,
                             .top_p = k->generate_top_p,
                             .min_p = k->generate_min_p,
                             .repeat_penalty = k->generate_repeat,
                             .seed = (uint64_t)k->seed};
}

bool sampling_is_greedy(const struct sampling *s) {
    return s->temperature <= 0 && s->repeat_penalty == 1;
}

int sampler_open(struct sampler **out, int64_t vocab, struct err *e) {
    struct sampler *s = *out = calloc(1, sizeof *s);
    if (s) {
        s->vocab = vocab;
        s->heap = calloc((size_t)vocab + 1, sizeof *s->heap);
        s->seen = calloc((size_t)vocab + 1, 1);
    }
    if (s && s->heap && s->seen)
        return 0;
    sampler_close(s);
    *out = NULL;
    return err_set(e, ERR_MEMORY, "out of memory for choosing among %lld tokens", (long long)vocab);
}

void sampler_close(struct sampler *s) {
    if (s) {
        free(s->heap);
        free(s->seen);
    }
    free(s);
}

uint64_t sampler_bytes(int64_t vocab) {
    return ((uint64_t)vocab + 1) * (sizeof(struct candidate) + 1);
}

// Each token is penalized once, however often it is there.
static void penalize(struct sampler *s, float penalty, float *logits, const int32_t *there,
                     int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const int32_t id = there[i];
        if (id < 0 || id >= s->vocab || s->seen[id])
            continue;
        s->seen[id] = 1;
        logits[id] = logits[id] > 0 ? logits[id] / penalty : logits[id] * penalty;
    }
    for (int64_t i = 0; i < n; i++)
        if (there[i] >= 0 && there[i] < s->vocab)
            s->seen[there[i]] = 0;
}

// ---------------------------------------------------------------- a heap, the likeliest first

static bool before(const struct candidate *a, const struct candidate *b) {
    return a->logit > b->logit || (a->logit == b->logit && a->id < b->id);
}

static void sift(struct candidate *h, int64_t n, int64_t at) {
    const struct candidate x = h[at];
    for (int64_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && before(&h[child + 1], &h[child]))
            child++;
        if (!before(&h[child], &x))
            break;
        h[at] = h[child];
    }
    h[at] = x;
}

// Takes the likeliest of h[0, n) and puts it behind the rest, at h[n - 1].
static void take_first(struct candidate *h, int64_t n) {
    const struct candidate first = h[0];
    h[0] = h[n - 1];
    h[n - 1] = first;
    if (n > 1)
        sift(h, n - 1, 0);
}

// Moves the likeliest candidates behind the others, in falling order from the end on: at most k of
// them, and no more than it takes for their probabilities to add up to p. Returns how many.
static int64_t take_likeliest(struct candidate *h, int64_t n, int64_t k, double p) {
    double sum = 0;
    int64_t taken = 0;
    for (int64_t i = n / 2 - 1; i >= 0; i--)
        sift(h, n, i);
    while (taken < n && taken < k && (taken == 0 || sum < p)) {
        take_first(h, n - taken);
        taken++;
        sum += (double)h[n - taken].p;
    }
    return taken;
}

// ---------------------------------------------------------------- a choice

// The probabilities of these candidates, without the common divisor, which is returned.
static double weigh(struct candidate *c, int64_t n, float top, double temperature) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        c[i].p = expf((float)((double)(c[i].logit - top) / temperature));
        sum += (double)c[i].p;
    }
    return sum;
}

static int32_t draw(const struct candidate *c, int64_t n, double least, double u) {
    double sum = 0, at = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)c[i].p >= least ? (double)c[i].p : 0;
    int32_t last = c[0].id;
    for (int64_t i = 0; i < n; i++) {
        if ((double)c[i].p < least)
            continue;
        at += (double)c[i].p;
        last = c[i].id;
        if (u * sum < at)
            break;
    }
    return last;
}

int sampler_choose(struct sampler *s, const struct sampling *how, float *logits,
                   const int32_t *there, int64_t n, int64_t position, int32_t *out, struct err *e) {
    static const uint64_t draws = 0x73616d706c657273; // keeps these draws apart from other uses
    const int64_t V = s->vocab;
    if (how->repeat_penalty != 1)
        penalize(s, (float)how->repeat_penalty, logits, there, n);
    int64_t best = 0;
    bool sound = true;
    for (int64_t i = 0; i < V; i++) {
        sound &= !isnan(logits[i]);
        best = logits[i] > logits[best] ? i : best;
    }
    if (!sound || isinf(logits[best]))
        return err_set(e, ERR_NUMERIC,
                       "the logits of token %lld are not finite: the model's "
                       "weights are damaged, or its precision is too small",
                       (long long)position);
    *out = (int32_t)best;
    if (how->temperature <= 0)
        return 0;
    const float top = logits[best];
    for (int64_t i = 0; i < V; i++)
        s->heap[i] = (struct candidate){logits[i], 0, (int32_t)i};
    struct candidate *c = s->heap;
    int64_t count = V;
    if (how->top_k > 0 && how->top_k < V) {
        count = take_likeliest(c, V, how->top_k, INFINITY);
        c += V - count;
    }
    const double sum = weigh(c, count, top, how->temperature);
    if (how->top_p < 1) {
        const int64_t kept = take_likeliest(c, count, count, how->top_p * sum);
        c += count - kept;
        count = kept;
    }
    // The likeliest has weight 1 before the division by the sum.
    *out =
        draw(c, count, how->min_p, rng_uniform(how->seed, draws ^ how->stream, (uint64_t)position));
    return 0;
}
