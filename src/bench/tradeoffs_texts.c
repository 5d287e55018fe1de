// tradeoffs_texts.c - see tradeoffs_texts.h.
#include "bench/tradeoffs_texts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS_MOST = 64, CHUNK = 512, SIDE_BY_SIDE = 8 };

enum figure { TOKENS_PER_S, BETWEEN, FIRST, MEMORY, FIGURES };
struct side {
    double of[FIGURES][ROUNDS_MOST];
};

static double middle_of(const struct gen_measured *m, enum gen_limit l) {
    double *copy = malloc((m->n[l] + 1) * sizeof *copy);
    double x = NAN;
    if (copy && m->n[l] > 0) {
        memcpy(copy, m->ns[l], m->n[l] * sizeof *copy);
        x = 1e-6 * sample_median(copy, m->n[l]);
    }
    free(copy);
    return x;
}

// A visit. A format that fails is a row with its reason.
static int visit(struct tradeoffs_texts *t, struct texts_finding *x, int format, int round,
                 struct side *to, double *busy, struct err *e) {
    const int64_t all = x->batch * t->desk.prompt;
    struct gen_point p = {.format = format, .batch = x->batch, .chunk = CHUNK < all ? CHUNK : all};
    struct gen_measured m;
    TRY(gen_lab_measure(&t->desk, &p, t->visit_s, &m, e));
    if (m.rc != 0)
        snprintf(x->reason, sizeof x->reason, "%s", m.reason);
    else {
        to->of[TOKENS_PER_S][round] = (double)m.tokens / (1e-9 * (double)m.wall_ns);
        to->of[BETWEEN][round] = middle_of(&m, GEN_BETWEEN);
        to->of[FIRST][round] = middle_of(&m, GEN_FIRST);
        to->of[MEMORY][round] = (double)m.memory_bytes;
        *busy = fmax(*busy, isnan(m.busy) ? 0 : m.busy);
    }
    for (int l = 0; l < GEN_LIMITS; l++)
        free(m.ns[l]);
    return 0;
}

static double median_of(const struct side *s, enum figure f, int rounds) {
    double copy[ROUNDS_MOST];
    memcpy(copy, s->of[f], (size_t)rounds * sizeof *copy);
    return sample_median(copy, (size_t)rounds);
}

static void compare(struct texts_finding *x, const struct side *a, const struct side *given, int n,
                    double busy) {
    struct finding *f = &x->finding;
    f->speed = sample_ratio(a->of[TOKENS_PER_S], given->of[TOKENS_PER_S], (size_t)n);
    f->p50 = sample_ratio(a->of[BETWEEN], given->of[BETWEEN], (size_t)n);
    f->memory = sample_ratio(a->of[MEMORY], given->of[MEMORY], (size_t)n);
    x->tokens_per_s = median_of(a, TOKENS_PER_S, n);
    x->between_ms = median_of(a, BETWEEN, n);
    x->first_ms = median_of(a, FIRST, n);
    x->memory_bytes = median_of(a, MEMORY, n);
    x->given_tokens_per_s = median_of(given, TOKENS_PER_S, n);
    x->given_between_ms = median_of(given, BETWEEN, n);
    x->given_memory_bytes = median_of(given, MEMORY, n);
    if (busy > 0.05)
        snprintf(f->busy, sizeof f->busy, "other programs took up to %.0f %% of a visit",
                 100 * busy);
    finding_judge(f);
}

static int measure_row(struct tradeoffs_texts *t, struct texts_finding *x, struct err *e) {
    struct side *sides = calloc(2, sizeof *sides); // as given, the format
    double busy = 0;
    int rc = sides ? 0 : err_set(e, ERR_MEMORY, "out of memory for rounds"), n = 0;
    for (; rc == 0 && x->reason[0] == '\0' && n < t->rounds && n < ROUNDS_MOST; n++)
        for (int k = 0; rc == 0 && k < 2 && x->reason[0] == '\0'; k++) {
            const bool given = (k == 0) == (n % 2 == 0);
            rc = visit(t, x, given ? 0 : x->format, n, &sides[given ? 0 : 1], &busy, e);
        }
    if (rc == 0 && x->reason[0] == '\0')
        compare(x, &sides[1], &sides[0], n, busy);
    free(sides);
    return rc;
}

// The rule is that of bandwidth: to make a token of one text every weight is read once, so it takes
// as many bytes less time as the format has fewer; less where arithmetic is the limit.
static void add_row(struct tradeoffs_texts *t, int format, int64_t batch) {
    const struct gen_format *f = &t->formats[format], *given = &t->formats[0];
    struct texts_finding *x = &t->rows[t->n++];
    const double fewer =
        f->bytes > 0 && given->bytes > 0 ? (double)given->bytes / (double)f->bytes : NAN;
    x->format = format;
    x->batch = batch;
    x->kl = f->kl, x->low = f->low, x->high = f->high;
    x->finding.speed = x->finding.p50 = x->finding.memory = (struct ratio){NAN, NAN, NAN};
    snprintf(x->name, sizeof x->name, "%s, %lld text%s", f->name, (long long)batch,
             batch == 1 ? "" : "s side by side");
    snprintf(x->reason, sizeof x->reason, "%s", f->refused);
    if (isfinite(fewer))
        snprintf(x->rule, sizeof x->rule,
                 "faster, up to %.1fx (its weights have fewer bytes), "
                 "less memory",
                 fewer);
    else
        snprintf(x->rule, sizeof x->rule, "faster, less memory");
    x->strategy = (struct strategy){.name = x->name,
                                    .rule = x->rule,
                                    .speed = {1, isfinite(fewer) ? 1.1 * fewer : INFINITY},
                                    .memory = {0, 1}};
    x->finding.strategy = &x->strategy;
}

int tradeoffs_texts_measure(struct tradeoffs_texts *t, struct log *log, struct err *e) {
    t->n = 0;
    for (int i = 1; i < t->n_formats; i++) {
        add_row(t, i, 1);
        add_row(t, i, SIDE_BY_SIDE);
    }
    for (int i = 0; i < t->n; i++) {
        char line[2 * TRADEOFFS_NAME_BYTES];
        snprintf(line, sizeof line, "generating: %s", t->rows[i].name);
        log_live(log, line);
        TRY(measure_row(t, &t->rows[i], e));
    }
    log_live_end(log);
    return 0;
}
