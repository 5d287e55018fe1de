// bench.c - haggle_bench_train and haggle_bench_tradeoffs: measure many configurations and print
// them.
#include "api/formats.h"

#include "base/clock.h"
#include "report/bench_print.h"
#include "report/bench_texts.h"
#include "report/tradeoffs_print.h"

#include <stdlib.h>
#include <string.h>

enum { WARMUP_DEFAULT = 2 };

// rounds, steps: the defaults.
static struct bench bench_of(const struct haggle_bench *o, int rounds, int64_t steps) {
    return (struct bench){.rounds = o->rounds > 0 ? o->rounds : rounds,
                          .steps = o->steps > 0 ? o->steps : steps,
                          .warmup = o->warmup >= 0 ? o->warmup : WARMUP_DEFAULT,
                          .stop = stop_flag()};
}

static bool put_head(struct call *c, const char *verb, const struct knobs *base,
                     const struct bench *b) {
    if (!call_json_begin(c, verb, base))
        return false;
    machine_put_json(&b->machine, &c->json);
    json_member_i64(&c->json, "rounds", b->rounds);
    json_member_i64(&c->json, "steps", b->steps);
    json_member_i64(&c->json, "warmup", b->warmup);
    return true;
}

// ---------------------------------------------------------------- a grid

static int report(struct bench *b, const struct knobs *base, enum haggle_format format,
                  double seconds, struct call *c, struct err *e) {
    TRY(bench_finish(b, base, seconds, e));
    bench_teach(b);
    if (c->out)
        TRY(bench_print(b, (enum table_format)format, c->out, e));
    if (put_head(c, "bench", base, b)) {
        json_put_key(&c->json, "rows");
        bench_put_json(b, &c->json);
        json_put_object_end(&c->json);
    }
    bench_say_best(b, &c->log);
    if (bench_rows_measured(b) > 0)
        return 0;
    return err_set(e, b->rows[0].rc, "nothing could be measured: %s", b->rows[0].reason);
}

// Takes stored rates of the machine: measuring them starts threads, and forking must come first.
static int open_store(struct bench *b, const struct knobs *base, const char *path, struct err *e) {
    TRY(machine_open(&b->machine, base, MACHINE_KNOWN, e));
    return store_open(&b->store, path, STORE_WRITE, e);
}

static int measure(struct bench *b, struct call *c, struct err *e) {
    const struct grid *g = b->grid;
    char name[GRID_NAME_BYTES];
    log_put(&c->log, LOG_INFO,
            "%zu configuration%s, %d round%s of %lld steps after %lld of warm-up%s%s", g->n,
            g->n == 1 ? "" : "s", b->rounds, b->rounds == 1 ? "" : "s", (long long)b->steps,
            (long long)b->warmup, g->n == 1 ? ": " : "", g->n == 1 ? grid_name(g, 0, name) : "");
    return bench_measure(b, &c->log, e);
}

static int bench_train(struct call *c, const struct knobs *base, const struct haggle_bench *o,
                       struct err *e) {
    enum { ROUNDS_DEFAULT = 3, STEPS_DEFAULT = 20 };
    struct grid grid;
    struct bench b = bench_of(o, ROUNDS_DEFAULT, STEPS_DEFAULT);
    uint64_t begin_ns = clock_ns();
    b.grid = &grid;
    int rc = grid_read(&grid, o->grid, o->n_grid, e);
    if (rc == 0)
        rc = bench_open(&b, base, e);
    if (rc == 0 && o->store && strcmp(o->store, "none") != 0)
        rc = open_store(&b, base, o->store, e);
    if (rc == 0)
        rc = measure(&b, c, e);
    // What was measured before a stop request is delivered too.
    if (rc == 0 || rc == ERR_STOPPED) {
        struct err late = {0};
        double seconds = 1e-9 * (double)(clock_ns() - begin_ns);
        int printed = report(&b, base, o->format, seconds, c, &late);
        if (rc == 0 && printed != 0)
            rc = err_set(e, printed, "%s", late.text);
    }
    if (rc == 0 && b.unrecorded.code != 0)
        rc = err_set(e, b.unrecorded.code, "%s", b.unrecorded.text);
    store_close(b.store);
    bench_close(&b);
    grid_free(&grid);
    return rc;
}

int haggle_bench_train(const struct haggle_config *config, const struct haggle_bench *bench,
                       const struct haggle_sink *sink, struct haggle_error *e) {
    struct call c;
    struct knobs k = config->knobs;
    call_begin(&c, sink);
    int rc = call_find_model(&c, &k, &c.err);
    if (rc == 0)
        rc = bench_train(&c, &k, bench, &c.err);
    return call_end(&c, rc, e);
}

// ---------------------------------------------------------------- strategies

// What formats trade when the model generates. A model that cannot is no reason to lose the table:
// `note` says why there are no rows, or why their divergence is not known.
struct texts_part {
    struct formats formats;
    struct tradeoffs_texts texts;
    char note[ERR_TEXT_BYTES + 64];
};

static int measure_texts(struct texts_part *x, struct call *c, const struct knobs *base,
                         const struct bench *b, struct err *e) {
    enum { PROMPT = 32, OUTPUT = 32 };
    static const double STEP_S = 0.05; // of a visit, for each step of a round: 0.5 s unless asked
    const struct formats_order o = {.likeness = true, .context = PROMPT + OUTPUT};
    struct err why = {0};
    int rc = formats_open(&x->formats, c, base, &o, &why);
    if (rc == 0 && x->formats.n > 1) {
        x->texts.desk = (struct gen_desk){
            .prompt = PROMPT, .output = OUTPUT, .seed = (uint64_t)base->seed, .stop = stop_flag()};
        memcpy(x->texts.desk.knobs, x->formats.knobs, sizeof x->formats.knobs);
        x->texts.formats = x->formats.list;
        x->texts.n_formats = x->formats.n;
        x->texts.rounds = b->rounds;
        x->texts.visit_s = STEP_S * (double)b->steps;
        log_put(&c->log, LOG_INFO, "%d formats, %d rounds of generating", x->formats.n - 1,
                b->rounds);
        rc = tradeoffs_texts_measure(&x->texts, &c->log, &why);
    }
    if (rc == ERR_STOPPED)
        return err_set(e, rc, "%s", why.text);
    if (rc != 0)
        snprintf(x->note, sizeof x->note, "Generating was not measured: %s.", why.text);
    else if (x->formats.shape)
        snprintf(x->note, sizeof x->note, "It is not measured here: the weights are random.");
    return 0;
}

static void print_texts(const struct texts_part *x, FILE *f, struct err *e) {
    if (x->texts.n > 0)
        (void)tradeoffs_texts_print(&x->texts, x->note[0] ? x->note : NULL, f, e);
    else if (x->note[0])
        fprintf(f, "\n%s\n", x->note);
}

static int report_tradeoffs(struct tradeoffs *t, const struct texts_part *x,
                            const struct knobs *base, enum haggle_format format, double seconds,
                            struct call *c, struct err *e) {
    const struct bench_row *baseline = &t->bench.rows[0];
    TRY(tradeoffs_finish(t, base, seconds, e));
    bench_teach(&t->bench);
    if (c->out)
        TRY(tradeoffs_print(t, base, (enum table_format)format, c->out, e));
    if (c->out && format == HAGGLE_MARKDOWN)
        print_texts(x, c->out, e);
    if (put_head(c, "bench tradeoffs", base, &t->bench)) {
        json_member_double(&c->json, "speed_noise", t->speed_noise);
        json_put_key(&c->json, "rows");
        tradeoffs_put_json(t, &c->json);
        json_put_key(&c->json, "generation");
        tradeoffs_texts_put_json(&x->texts, &c->json);
        json_member_string(&c->json, "generation_note", x->note[0] ? x->note : NULL);
        json_put_object_end(&c->json);
    }
    if (baseline->n_rounds > 0)
        return 0;
    return err_set(e, baseline->rc, "the baseline could not be measured: %s", baseline->reason);
}

static int bench_tradeoffs(struct tradeoffs *t, struct call *c, const struct knobs *base,
                           const struct haggle_bench *o, struct err *e) {
    struct err late = {0};
    uint64_t begin_ns = clock_ns();
    struct texts_part *x = calloc(1, sizeof *x);
    if (!x)
        return err_set(e, ERR_MEMORY, "out of memory for the formats");
    int rc = tradeoffs_open(t, base, e);
    if (rc != 0) {
        free(x);
        return rc;
    }
    log_put(&c->log, LOG_INFO, "%zu strategies, %d rounds of %lld steps after %lld of warm-up",
            t->grid.n, t->bench.rounds, (long long)t->bench.steps, (long long)t->bench.warmup);
    rc = bench_measure(&t->bench, &c->log, e);
    if (rc == 0 && tradeoffs_wants(o->only, TRADEOFFS_GENERATION) &&
        (c->wants_json || (c->out && o->format == HAGGLE_MARKDOWN))) // else unseen
        rc = measure_texts(x, c, &t->base, &t->bench, e);
    // What was measured before a stop request is delivered too.
    double seconds = 1e-9 * (double)(clock_ns() - begin_ns);
    int printed = 0;
    if (rc == 0 || rc == ERR_STOPPED)
        printed = report_tradeoffs(t, x, &t->base, o->format, seconds, c, &late);
    formats_close(&x->formats);
    free(x);
    return rc == 0 && printed != 0 ? err_set(e, printed, "%s", late.text) : rc;
}

int haggle_bench_tradeoffs(const struct haggle_config *config, const struct haggle_bench *o,
                           const struct haggle_sink *sink, struct haggle_error *e) {
    enum { ROUNDS_DEFAULT = 5, STEPS_DEFAULT = 10 };
    struct call c;
    struct tradeoffs t = {.bench = bench_of(o, ROUNDS_DEFAULT, STEPS_DEFAULT), .only = o->only};
    struct knobs k = config->knobs;
    call_begin(&c, sink);
    int rc = call_find_model(&c, &k, &c.err);
    if (rc == 0)
        rc = bench_tradeoffs(&t, &c, &k, o, &c.err);
    tradeoffs_close(&t);
    return call_end(&c, rc, e);
}

// ---------------------------------------------------------------- texts

static int report_texts(const struct texts_bench *b, const struct knobs *base,
                        enum haggle_format format, struct call *c, struct err *e) {
    struct machine machine;
    if (c->out)
        TRY(bench_texts_print(b, (enum table_format)format, c->out, e));
    TRY(machine_open(&machine, base, MACHINE_KNOWN, e));
    if (call_json_begin(c, "bench generate", base)) {
        machine_put_json(&machine, &c->json);
        json_member_i64(&c->json, "rounds", b->rounds);
        json_member_i64(&c->json, "chunk", b->chunk);
        json_put_key(&c->json, "rows");
        bench_texts_put_json(b, &c->json);
        json_put_object_end(&c->json);
    }
    if (texts_bench_measured(b) > 0)
        return 0;
    return err_set(e, b->rows[0].rc, "nothing could be measured: %s", b->rows[0].reason);
}

static int bench_texts(struct texts_bench *b, struct grid *grid, struct call *c,
                       const struct knobs *base, const struct haggle_bench_texts *o,
                       struct err *e) {
    const char *const prompts = o->prompt_tokens ? o->prompt_tokens : "512",
                      *const outputs = o->output_tokens ? o->output_tokens : "128",
                      *const batches = o->batch ? o->batch : "1";
    TRY(grid_read(grid, o->grid, o->n_grid, e));
    TRY(texts_list_read(&b->prompts, prompts, "--prompt-tokens", e));
    TRY(texts_list_read(&b->outputs, outputs, "--output-tokens", e));
    TRY(texts_list_read(&b->batches, batches, "--batch", e));
    TRY(texts_bench_open(b, base, e));
    log_put(&c->log, LOG_INFO, "%zu configuration%s, %d round%s after one of warm-up", b->n,
            b->n == 1 ? "" : "s", b->rounds, b->rounds == 1 ? "" : "s");
    const int rc = texts_bench_measure(b, &c->log, e);
    if (rc != 0 && rc != ERR_STOPPED)
        return rc;
    // What was measured before a stop request is delivered too.
    struct err late = {0};
    const int printed = report_texts(b, base, o->format, c, &late);
    return rc == 0 && printed != 0 ? err_set(e, printed, "%s", late.text) : rc;
}

int haggle_bench_generate(const struct haggle_config *config, const struct haggle_bench_texts *o,
                          const struct haggle_sink *sink, struct haggle_error *e) {
    enum { ROUNDS_DEFAULT = 5, CHUNK_DEFAULT = 512 };
    struct call c;
    struct grid grid = {0};
    struct texts_bench b = {.grid = &grid,
                            .rounds = o->rounds > 0 ? o->rounds : ROUNDS_DEFAULT,
                            .chunk = o->chunk > 0 ? o->chunk : CHUNK_DEFAULT,
                            .stop = stop_flag()};
    struct knobs k = config->knobs;
    call_begin(&c, sink);
    int rc = call_find_model(&c, &k, &c.err);
    if (rc == 0)
        rc = bench_texts(&b, &grid, &c, &k, o, &c.err);
    texts_bench_close(&b);
    grid_free(&grid);
    return call_end(&c, rc, e);
}
