// gen_lab.c - see gen_lab.h. A child sends a struct, then its samples.
#include "tune/gen_lab.h"

#include "base/child.h"
#include "base/clock.h"
#include "base/rng.h"
#include "engine/engine.h"
#include "hw/others.h"
#include "infer/decoder.h"
#include "model/shape.h"
#include "plan/process.h"
#include "train/trial.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    TIMES_MOST = 1 << 16, // of a visit; the newest are kept
    WARM_TOKENS = 8       // of the first text: programs run some times before anything counts
};
static const uint64_t SILENCE_NS = 900000000000; // a child that says nothing for so long hangs

static int knobs_of(const struct gen_desk *d, const struct gen_point *p, struct knobs *k,
                    struct err *e) {
    char threads[16];
    *k = d->knobs[p->format];
    k->seq = d->prompt + d->output; // the recipe's is for training
    snprintf(threads, sizeof threads, "%d", p->threads);
    return p->threads > 0 ? knobs_set_at(k, KNOB_threads, threads, SET_BY_TUNER, e) : 0;
}

static int make_plan(const struct gen_point *p, const struct knobs *k, struct plan *out,
                     struct err *e) {
    const struct plan_options o = {
        .knobs = k,
        .programs = {PLAN_EXTEND},
        .extend = {.sequences = p->batch, .context = k->seq, .rows = p->chunk},
        .real = DTYPE_F32};
    struct model_shape shape;
    bool from_folder;
    if (p->chunk < p->batch)
        return err_set(e, ERR_USAGE,
                       "a turn of %lld tokens has no room for a token of each of %lld texts",
                       (long long)p->chunk, (long long)p->batch);
    TRY(model_shape_open(&shape, k->model, &from_folder, e));
    if (k->seq > model_shape_longest(&shape))
        return err_set(e, ERR_USAGE, "%lld tokens of prompt and text; %s has %lld positions",
                       (long long)k->seq, shape.name, (long long)model_shape_longest(&shape));
    TRY(plan_make(out, &o, e));
    plan_set_host(out, &(struct plan_host){.texts = decoder_bytes(out, TIMES_MOST)});
    process_estimate(out);
    return 0;
}

static int plan(void *arg, const struct gen_point *point, struct gen_plan *out, struct err *e) {
    const struct gen_desk *d = arg;
    struct knobs k;
    struct plan p = {.prefix = ""};
    struct err why = {0};
    TRY(knobs_of(d, point, &k, e));
    out->rc = make_plan(point, &k, &p, &why);
    if (out->rc == 0) {
        const struct plan_room room = plan_room(&p, p.device ? UINT64_MAX : plan_machine_room(),
                                                "the machine has left", false);
        out->need_bytes = plan_need_bytes(&p, p.device);
        out->have_bytes = room.bytes == UINT64_MAX ? 0 : room.bytes;
        if (out->have_bytes > 0)
            out->rc = plan_check_room(&p, p.device, out->need_bytes, &room, &why);
    }
    snprintf(out->reason, sizeof out->reason, "%.*s", TUNE_TEXT_BYTES - 1, why.text);
    plan_free(&p);
    return 0;
}

static uint64_t clock_of(void *arg) {
    (void)arg;
    return clock_ns();
}

// ---------------------------------------------------------------- in the child

struct load { // the texts that are being made
    const struct gen_desk *desk;
    struct decoder *decoder;
    struct sampling how;
    int32_t *prompt;
    int64_t vocab, batch;
    uint64_t stream, added; // of prompts
    int64_t ended;          // texts, in the newest turn
};

static int on_token(void *arg, void *tag, int32_t id, enum decoder_end end, struct err *e) {
    struct load *x = arg;
    (void)tag, (void)id, (void)e;
    x->ended += end != DECODER_GOES_ON;
    return 0;
}

static int add_text(struct load *x, int64_t most, struct err *e) {
    const struct gen_desk *d = x->desk;
    for (int64_t i = 0; i < d->prompt; i++)
        x->prompt[i] = (int32_t)rng_below(
            d->seed, x->stream, x->added * (uint64_t)d->prompt + (uint64_t)i, (uint64_t)x->vocab);
    const struct decoder_request q = {
        .prompt = x->prompt, .n = d->prompt, .most = most, .how = x->how};
    x->added++;
    return decoder_add(x->decoder, &q, e);
}

// Where each text stands when the load begins: at equal distances from their ends.
static int begin_texts(struct load *x, struct err *e) {
    const int64_t output = x->desk->output;
    for (int64_t i = 0; i < x->batch; i++) {
        const int64_t most = WARM_TOKENS + output * i / x->batch;
        TRY(add_text(x, most < output ? most : output, e));
    }
    return 0;
}

// A turn. A new text takes the place of each that has ended.
static int turn(struct load *x, struct err *e) {
    x->ended = 0;
    TRY(decoder_turn(x->decoder, on_token, x, e));
    for (int64_t i = 0; i < x->ended; i++)
        TRY(add_text(x, x->desk->output, e));
    return 0;
}

static int run_load(struct load *x, double seconds, struct gen_measured *out, struct err *e) {
    struct decoder_times *t = decoder_times(x->decoder);
    struct others_mark from, to;
    struct others others = {0};
    int rc = begin_texts(x, e);
    // Until each has begun, and one ends.
    while (rc == 0 && (samples_count(&t->first) < (size_t)x->batch || x->ended == 0))
        rc = turn(x, e);
    samples_clear(&t->first);
    samples_clear(&t->between);
    others_mark(&from, NULL);
    const uint64_t begin = clock_ns();
    int64_t texts = 0;
    while (rc == 0 && (texts == 0 || 1e-9 * (double)(clock_ns() - begin) < seconds)) {
        do
            rc = turn(x, e);
        while (rc == 0 && x->ended == 0);
        texts += x->ended;
    }
    out->wall_ns = clock_ns() - begin;
    others_mark(&to, NULL);
    others_between(&others, &from, &to);
    out->tokens = (uint64_t)(texts * x->desk->output);
    out->busy = others_share(&others);
    return rc;
}

static int run_decoder(const struct gen_desk *d, const struct gen_point *p, struct engine *g,
                       double seconds, struct gen_measured *out, double *ns[GEN_LIMITS],
                       struct err *e) {
    struct load x = {.desk = d,
                     .how = sampling_of(&d->knobs[p->format]),
                     .prompt = calloc((size_t)d->prompt, sizeof *x.prompt),
                     .vocab = g->session->plan->shape.vocab,
                     .batch = p->batch,
                     .stream = d->visits + 1};
    int rc = x.prompt ? decoder_open(&x.decoder, g->session, TIMES_MOST, e)
                      : err_set(e, ERR_MEMORY, "out of memory for prompts");
    if (rc == 0)
        rc = run_load(&x, seconds, out, e);
    for (int l = 0; rc == 0 && l < GEN_LIMITS; l++) {
        const struct decoder_times *t = decoder_times(x.decoder);
        const struct samples *s = l == GEN_FIRST ? &t->first : &t->between;
        ns[l] = malloc((samples_count(s) + 1) * sizeof **ns);
        if (!ns[l])
            rc = err_set(e, ERR_MEMORY, "out of memory for the times of tokens");
        else
            out->n[l] = samples_copy(s, 0, ns[l]);
    }
    decoder_close(x.decoder);
    free(x.prompt);
    return rc;
}

static int measure_here(const struct gen_desk *d, const struct gen_point *point, double seconds,
                        struct gen_measured *out, double *ns[GEN_LIMITS], struct err *e) {
    struct plan p = {.prefix = ""};
    struct engine *g = NULL;
    struct knobs k;
    TRY(knobs_of(d, point, &k, e));
    int rc = make_plan(point, &k, &p, e);
    if (rc == 0)
        rc = engine_start(&g, NULL, &p, e);
    if (rc == 0)
        rc = run_decoder(d, point, g, seconds, out, ns, e);
    if (rc == 0) {
        const bool device = engine_on_device(g);
        out->memory_bytes = device ? engine_device_bytes(g) : engine_process_peak_bytes(g);
        if (device) // the host's other programs do not compute there
            out->busy = NAN;
    }
    engine_close(g);
    plan_free(&p);
    return rc;
}

_Noreturn static void be_child(int fd, const struct gen_desk *d, const struct gen_point *p,
                               double seconds) {
    struct err e = {0};
    struct gen_measured m = {.busy = NAN};
    double *ns[GEN_LIMITS] = {0};
    m.rc = measure_here(d, p, seconds, &m, ns, &e);
    if (m.rc != 0)
        snprintf(m.reason, sizeof m.reason, "%.*s", TUNE_TEXT_BYTES - 1,
                 e.text[0] ? e.text : err_phrase(m.rc));
    bool sent = child_send(fd, &m, sizeof m);
    for (int l = 0; l < GEN_LIMITS && m.rc == 0; l++)
        sent = sent && child_send(fd, ns[l], m.n[l] * sizeof(double));
    _exit(sent ? 0 : 1);
}

// ---------------------------------------------------------------- in the parent

static bool receive(int fd, void *out, size_t bytes, const struct gen_desk *d) {
    return child_receive(fd, out, bytes, d->stop, clock_ns() + SILENCE_NS) == bytes;
}

static bool receive_all(int fd, const struct gen_desk *d, struct gen_measured *out) {
    if (!receive(fd, out, sizeof *out, d))
        return false;
    out->reason[sizeof out->reason - 1] = '\0';
    for (int l = 0; l < GEN_LIMITS; l++)
        out->ns[l] = NULL;
    for (int l = 0; l < GEN_LIMITS && out->rc == 0; l++) {
        if (out->n[l] > TIMES_MOST)
            return false;
        out->ns[l] = malloc((out->n[l] + 1) * sizeof(double));
        if (!out->ns[l] || !receive(fd, out->ns[l], out->n[l] * sizeof(double), d))
            return false;
    }
    return true;
}

static void drop(struct gen_measured *out) {
    for (int l = 0; l < GEN_LIMITS; l++) {
        free(out->ns[l]);
        out->ns[l] = NULL;
        out->n[l] = 0;
    }
}

int gen_lab_measure(struct gen_desk *d, const struct gen_point *p, double seconds,
                    struct gen_measured *out, struct err *e) {
    int ends[2];
    const uint64_t begin = clock_ns();
    *out = (struct gen_measured){.busy = NAN};
    d->visits++;
    if (pipe(ends) != 0)
        return err_set(e, ERR_IO, "cannot make a pipe: %s", strerror(errno));
    const pid_t child = child_fork(ends);
    if (child < 0)
        return err_set(e, ERR_MEMORY, "cannot start a process: %s", strerror(errno));
    if (child == 0)
        be_child(ends[1], d, p, seconds);
    const bool whole = receive_all(ends[0], d, out), stopped = d->stop && *d->stop;
    if (!whole)
        kill(child, SIGKILL);
    const int status = child_wait(child);
    close(ends[0]);
    out->whole_s = 1e-9 * (double)(clock_ns() - begin);
    if (!whole || stopped)
        drop(out);
    if (stopped)
        return err_set(e, ERR_STOPPED, "stopped on request");
    if (!whole) {
        struct trial_result ended = {0};
        trial_explain(&ended, status);
        out->rc = ended.rc != 0 ? ended.rc : ERR_INTERNAL;
        snprintf(out->reason, sizeof out->reason, "%.*s", TUNE_TEXT_BYTES - 1, ended.reason);
    }
    return 0;
}

static int measure(void *arg, const struct gen_point *p, double seconds, struct gen_measured *out,
                   struct err *e) {
    return gen_lab_measure(arg, p, seconds, out, e);
}

static void on_visit(void *arg, const struct gen *g, int setting) {
    const struct gen_desk *d = arg;
    if (d->on_visit)
        d->on_visit(d->on_visit_arg, g, setting);
}

struct gen_lab gen_lab_of(struct gen_desk *d) {
    return (struct gen_lab){d, plan, measure, clock_of, on_visit};
}
