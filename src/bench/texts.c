// texts.c - see texts.h. A child sends its figures through a pipe: a struct, then the samples.
#include "bench/texts.h"

#include "base/child.h"
#include "base/rng.h"
#include "engine/engine.h"
#include "infer/decoder.h"
#include "model/shape.h"
#include "plan/process.h"
#include "train/trial.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int texts_list_read(struct texts_list *l, const char *text, const char *what, struct err *e) {
    enum { MOST = 1 << 20 };
    l->n = 0;
    for (const char *at = text;; at++) {
        char *end;
        errno = 0;
        const long long x = strtoll(at, &end, 10);
        if (end == at || errno != 0 || x < 1 || x > MOST || (*end && *end != ','))
            return err_set(e, ERR_USAGE,
                           "%s=%.100s is not accepted; accepted: numbers from 1 to %d, separated "
                           "by commas",
                           what, text, MOST);
        if (l->n == TEXTS_LIST_MOST)
            return err_set(e, ERR_USAGE, "%s has more than %d values", what, TEXTS_LIST_MOST);
        l->values[l->n++] = x;
        if (!*end)
            return 0;
        at = end;
    }
}

// ---------------------------------------------------------------- rows

static int open_row(struct texts_bench *b, struct texts_row *r, struct err *e) {
    const size_t rounds = (size_t)b->rounds, first = rounds * (size_t)r->batch,
                 between = first * (size_t)(r->output > 1 ? r->output - 1 : 1);
    r->prefill = calloc(rounds, sizeof *r->prefill);
    r->decode = calloc(rounds, sizeof *r->decode);
    if (!r->prefill || !r->decode)
        return err_set(e, ERR_MEMORY, "out of memory for %d rounds", b->rounds);
    TRY(samples_open(&r->first, first, e));
    return samples_open(&r->between, between, e);
}

int texts_bench_open(struct texts_bench *b, const struct knobs *base, struct err *e) {
    const size_t points = b->prompts.n * b->outputs.n * b->batches.n;
    if (b->grid->n > GRID_MOST / points)
        return err_set(e, ERR_USAGE, "the grid has more than %d configurations", GRID_MOST);
    b->n = b->grid->n * points;
    b->rows = calloc(b->n, sizeof *b->rows);
    if (!b->rows)
        return err_set(e, ERR_MEMORY, "out of memory for %zu configurations", b->n);
    for (size_t i = 0; i < b->n; i++) {
        struct texts_row *r = &b->rows[i];
        struct err why = {0};
        r->config = i / points;
        r->prompt = b->prompts.values[i % points / (b->outputs.n * b->batches.n)];
        r->output = b->outputs.values[i % points / b->batches.n % b->outputs.n];
        r->batch = b->batches.values[i % b->batches.n];
        r->rc = grid_knobs(b->grid, r->config, base, &r->knobs, &why);
        if (r->rc != 0)
            snprintf(r->reason, sizeof r->reason, "%s", why.text);
        TRY(open_row(b, r, e));
    }
    return 0;
}

void texts_bench_close(struct texts_bench *b) {
    for (size_t i = 0; b->rows && i < b->n; i++) {
        struct texts_row *r = &b->rows[i];
        free(r->prefill);
        free(r->decode);
        samples_close(&r->first);
        samples_close(&r->between);
    }
    free(b->rows);
}

size_t texts_bench_measured(const struct texts_bench *b) {
    size_t n = 0;
    for (size_t i = 0; i < b->n; i++)
        n += b->rows[i].rc == 0;
    return n;
}

double texts_bench_median(const double *rates, int rounds) {
    double copy[1000];
    const size_t n = (size_t)rounds < sizeof copy / sizeof *copy ? (size_t)rounds : 1000;
    memcpy(copy, rates, n * sizeof *copy);
    return sample_median(copy, n);
}

double texts_bench_spread(const double *rates, int rounds) {
    double least = INFINITY, most = 0, sum = 0;
    for (int i = 0; i < rounds; i++) {
        least = fmin(least, rates[i]);
        most = fmax(most, rates[i]);
        sum += rates[i];
    }
    return rounds > 1 ? (most - least) / (sum / rounds) : NAN;
}

// ---------------------------------------------------------------- in the child

static int ignore_token(void *arg, void *tag, int32_t id, enum decoder_end end, struct err *e) {
    (void)arg, (void)tag, (void)id, (void)end, (void)e;
    return 0;
}

// Every text of the round from its prompt, `most` tokens each.
static int run_all(struct decoder *d, const struct texts_row *r, const int32_t *prompts,
                   int64_t most, struct err *e) {
    for (int64_t i = 0; i < r->batch; i++) {
        const struct decoder_request q = {.prompt = prompts + i * r->prompt,
                                          .n = r->prompt,
                                          .most = most,
                                          .how = sampling_of(&r->knobs)};
        TRY(decoder_add(d, &q, e));
    }
    while (decoder_busy(d))
        TRY(decoder_turn(d, ignore_token, NULL, e));
    return 0;
}

static double rate(int64_t tokens, uint64_t ns) {
    return tokens > 0 && ns > 0 ? 1e9 * (double)tokens / (double)ns : NAN;
}

static void keep_samples(struct samples *to, const struct samples *from, double *scratch) {
    const size_t n = samples_copy(from, 0, scratch);
    for (size_t i = 0; i < n; i++)
        samples_add(to, scratch[i]);
}

struct desk { // what the rounds of a row work with
    struct decoder *decoder;
    int32_t *prompts;
    double *scratch; // for the samples of a round
    int64_t vocab;
};

// round -1 warms up.
static int run_round(struct desk *desk, struct texts_row *r, int round, struct err *e) {
    struct decoder *d = desk->decoder;
    struct decoder_times *t = decoder_times(d);
    int32_t *prompts = desk->prompts;
    for (int64_t i = 0; i < r->batch * r->prompt; i++)
        prompts[i] = (int32_t)rng_below((uint64_t)r->knobs.seed, (uint64_t)round + 2, (uint64_t)i,
                                        (uint64_t)desk->vocab);
    samples_clear(&t->first);
    samples_clear(&t->between);
    t->prompt_tokens = t->decode_tokens = 0;
    t->prompt_ns = t->decode_ns = 0;
    TRY(run_all(d, r, prompts, 1, e));
    if (round >= 0) {
        r->prefill[round] = rate(t->prompt_tokens, t->prompt_ns);
        keep_samples(&r->first, &t->first, desk->scratch);
    }
    t->decode_tokens = 0;
    t->decode_ns = 0;
    if (r->output > 1)
        TRY(run_all(d, r, prompts, r->output, e));
    if (round >= 0) {
        r->decode[round] = rate(t->decode_tokens, t->decode_ns);
        keep_samples(&r->between, &t->between, desk->scratch);
    }
    return 0;
}

static int run_rounds(struct texts_bench *b, struct texts_row *r, struct session *session,
                      struct err *e) {
    const size_t most = (size_t)(r->batch * r->output);
    struct desk d = {.prompts = calloc((size_t)(r->batch * r->prompt), sizeof *d.prompts),
                     .scratch = calloc(most, sizeof *d.scratch),
                     .vocab = session->plan->shape.vocab};
    int rc = d.prompts && d.scratch ? decoder_open(&d.decoder, session, most, e)
                                    : err_set(e, ERR_MEMORY, "out of memory for prompts");
    for (int round = -1; rc == 0 && round < b->rounds; round++)
        rc = run_round(&d, r, round, e);
    decoder_close(d.decoder);
    free(d.prompts);
    free(d.scratch);
    return rc;
}

static int measure(struct texts_bench *b, struct texts_row *r, struct err *e) {
    struct plan p = {.prefix = ""};
    struct engine *g = NULL;
    const int64_t all = r->batch * r->prompt;
    const struct plan_options o = {.knobs = &r->knobs,
                                   .programs = {PLAN_EXTEND},
                                   .extend = {.sequences = r->batch,
                                              .context = r->prompt + r->output,
                                              .rows = b->chunk < all ? b->chunk : all},
                                   .real = DTYPE_F32};
    struct model_shape shape;
    bool from_folder;
    TRY(model_shape_open(&shape, r->knobs.model, &from_folder, e));
    if (o.extend.context > model_shape_longest(&shape))
        return err_set(e, ERR_USAGE, "%lld tokens of prompt and text; %s has %lld positions",
                       (long long)o.extend.context, shape.name,
                       (long long)model_shape_longest(&shape));
    r->knobs.seq = o.extend.context; // the recipe's seq is for training
    int rc = plan_make(&p, &o, e);
    if (rc == 0) {
        const uint64_t most = (uint64_t)(r->batch * r->output);
        plan_set_host(&p, &(struct plan_host){.texts = decoder_bytes(&p, most)});
        process_estimate(&p);
        rc = engine_start(&g, NULL, &p, e);
    }
    if (rc == 0)
        rc = run_rounds(b, r, g->session, e);
    if (rc == 0) {
        const bool device = engine_on_device(g);
        r->planned_bytes = plan_need_bytes(&p, device);
        r->measured_bytes = device ? engine_device_bytes(g) : engine_process_peak_bytes(g);
        r->cache_bytes = p.layout.by_class[CLASS_KV];
        r->threads = pool_threads(g->pool);
    }
    engine_close(g);
    plan_free(&p);
    return rc;
}

struct sent {
    int rc, threads;
    char reason[ERR_TEXT_BYTES];
    uint64_t planned_bytes, measured_bytes, cache_bytes;
    size_t n_first, n_between;
};

_Noreturn static void be_child(int fd, struct texts_bench *b, struct texts_row *r) {
    struct err e = {0};
    struct sent s = {.rc = measure(b, r, &e),
                     .threads = r->threads,
                     .planned_bytes = r->planned_bytes,
                     .measured_bytes = r->measured_bytes,
                     .cache_bytes = r->cache_bytes,
                     .n_first = samples_count(&r->first),
                     .n_between = samples_count(&r->between)};
    if (s.rc != 0)
        snprintf(s.reason, sizeof s.reason, "%s", e.text[0] ? e.text : err_phrase(s.rc));
    const size_t rounds = (size_t)b->rounds * sizeof(double);
    const bool sent = child_send(fd, &s, sizeof s) && child_send(fd, r->prefill, rounds) &&
                      child_send(fd, r->decode, rounds) &&
                      child_send(fd, r->first.values, s.n_first * sizeof(double)) &&
                      child_send(fd, r->between.values, s.n_between * sizeof(double));
    _exit(sent ? 0 : 1);
}

// ---------------------------------------------------------------- in the parent

static bool receive(int fd, void *out, size_t bytes, const volatile sig_atomic_t *stop) {
    return child_receive(fd, out, bytes, stop, UINT64_MAX) == bytes;
}

static bool receive_samples(int fd, struct samples *s, size_t n,
                            const volatile sig_atomic_t *stop) {
    if (n > s->capacity || !receive(fd, s->values, n * sizeof(double), stop))
        return false;
    s->seen = n;
    return true;
}

static bool receive_row(int fd, struct texts_bench *b, struct texts_row *r) {
    struct sent s;
    const size_t rounds = (size_t)b->rounds * sizeof(double);
    if (!receive(fd, &s, sizeof s, b->stop))
        return false;
    r->rc = s.rc;
    r->threads = s.threads;
    r->planned_bytes = s.planned_bytes;
    r->measured_bytes = s.measured_bytes;
    r->cache_bytes = s.cache_bytes;
    memcpy(r->reason, s.reason, sizeof r->reason);
    return receive(fd, r->prefill, rounds, b->stop) && receive(fd, r->decode, rounds, b->stop) &&
           receive_samples(fd, &r->first, s.n_first, b->stop) &&
           receive_samples(fd, &r->between, s.n_between, b->stop);
}

static int measure_row(struct texts_bench *b, struct texts_row *r, struct err *e) {
    int ends[2];
    if (pipe(ends) != 0)
        return err_set(e, ERR_IO, "cannot make a pipe: %s", strerror(errno));
    const pid_t child = child_fork(ends);
    if (child < 0)
        return err_set(e, ERR_MEMORY, "cannot start a process: %s", strerror(errno));
    if (child == 0)
        be_child(ends[1], b, r);
    const bool whole = receive_row(ends[0], b, r), stopped = !whole && b->stop && *b->stop;
    if (stopped)
        kill(child, SIGKILL);
    const int status = child_wait(child);
    close(ends[0]);
    if (stopped)
        return err_set(e, ERR_STOPPED, "stopped on request");
    if (!whole) {
        struct trial_result ended = {0};
        trial_explain(&ended, status);
        r->rc = ended.rc;
        snprintf(r->reason, sizeof r->reason, "%s", ended.reason);
    }
    return 0;
}

int texts_bench_measure(struct texts_bench *b, struct log *log, struct err *e) {
    int rc = 0;
    for (size_t i = 0; i < b->n; i++) {
        struct texts_row *r = &b->rows[i];
        char name[GRID_NAME_BYTES], text[GRID_NAME_BYTES + 128];
        if (rc == 0 && b->stop && *b->stop)
            rc = err_set(e, ERR_STOPPED, "stopped on request");
        if (rc != 0 && r->rc == 0) {
            r->rc = ERR_STOPPED;
            snprintf(r->reason, sizeof r->reason, "stopped before it was measured");
        }
        if (r->rc != 0)
            continue;
        snprintf(text, sizeof text, "%zu of %zu: %s, prompt %lld, output %lld, batch %lld", i + 1,
                 b->n, grid_name(b->grid, r->config, name), (long long)r->prompt,
                 (long long)r->output, (long long)r->batch);
        log_live(log, text);
        rc = measure_row(b, r, e);
        if (rc != 0) {
            r->rc = rc;
            snprintf(r->reason, sizeof r->reason, "%s", e->text);
        }
    }
    log_live_end(log);
    return rc;
}
