// bench_predict.c - predicted against measured step time over a grid of settings.
//
// Settings are drawn from the product of knobs below. The machine is calibrated at a few
// micro-batches per (precision, threads, seq). Every setting is predicted from that, then measured
// in a forked process. Then half of the trials correct the predictions of the other half. Prints
// the median of |predicted / measured - 1|, Spearman's rank correlation, and the time of each
// part.
//
// usage: bench_predict [--model NAME] [--quick] [--settings N] [--seed N] [--verbose]
//                      [--device cuda] [--threads N] [--tokens N] [--least]
//        Without --model: tiny, then gpt2-124m. --tokens: most tokens of a step. --least: takes the
//        fastest step of a trial instead of the median one, for machines with other users.
#include "base/clock.h"
#include "base/file.h"
#include "base/rng.h"
#include "measure/sample.h"
#include "predict/predictor.h"
#include "train/trial.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LIST_MOST = 8, SETTINGS_MOST = 400 };

struct list {
    int n;
    int64_t of[LIST_MOST];
};

struct grid {
    const char *model;
    int settings;
    double trial_s;      // seconds of measured steps in a trial, about
    int64_t tokens_most; // per step
    struct list micro, accum, seq, chunk, recompute, precision, threads, state;
};

// The larger model has fewer and smaller settings: its steps take seconds on two cores.
static const struct grid small = {.model = "tiny",
                                  .settings = 100,
                                  .trial_s = 0.5,
                                  .tokens_most = 8192,
                                  .micro = {5, {1, 2, 4, 8, 16}},
                                  .accum = {4, {1, 2, 4, 8}},
                                  .seq = {2, {64, 128}},
                                  .chunk = {3, {0, 64, 256}},
                                  .recompute = {3, {0, 1, 2}},
                                  .precision = {2, {PRECISION_FP32, PRECISION_BF16}},
                                  .threads = {2, {1, 2}},
                                  .state = {2, {OPTIM_STATE_FP32, OPTIM_STATE_BF16}}};
static const struct grid large = {.model = "gpt2-124m",
                                  .settings = 30,
                                  .trial_s = 2.5,
                                  .tokens_most = 512,
                                  .micro = {4, {1, 2, 3, 4}},
                                  .accum = {3, {1, 2, 3}},
                                  .seq = {2, {64, 128}},
                                  .chunk = {2, {0, 64}},
                                  .recompute = {3, {0, 1, 2}},
                                  .precision = {2, {PRECISION_FP32, PRECISION_BF16}},
                                  .threads = {1, {2}},
                                  .state = {1, {OPTIM_STATE_FP32}}};

struct setting {
    struct knobs knobs;
    struct predicted predicted;
    double refined_s, measured_s;
    struct trial_result trial;
};

struct bench {
    struct grid grid;
    struct predictor *predictor;
    char dir[64]; // folder of the predictor's tables
    struct setting *settings;
    int n;
    bool verbose, cuda, least;
    int64_t threads, tokens; // instead of the grid's; 0: the grid's
    double calibrated_s, measured_s, planned_s, predicted_s;
};

static int make_plan(struct plan *p, const struct knobs *k, struct err *e) {
    const struct plan_options o = {.knobs = k, .programs = {PLAN_TRAIN}, .real = DTYPE_F32};
    return plan_make(p, &o, e);
}

// ---------------------------------------------------------------- settings

static int64_t draw(const struct list *l, uint64_t seed, uint64_t *at) {
    return l->of[rng_below(seed, 0, (*at)++, (uint64_t)l->n)];
}

static int base_knobs(const struct bench *b, struct knobs *k, struct err *e) {
    knobs_init(k);
    k->device = b->cuda ? DEVICE_CUDA : DEVICE_CPU;
    return knobs_set(k, "model", b->grid.model, SET_BY_COMMAND_LINE, e);
}

static int draw_settings(struct bench *b, uint64_t seed, struct err *e) {
    const struct grid *g = &b->grid;
    uint64_t at = 0;
    for (int tries = 0; b->n < g->settings && tries < 100 * g->settings; tries++) {
        struct knobs k;
        TRY(base_knobs(b, &k, e));
        k.batch_micro = draw(&g->micro, seed, &at);
        k.batch_accum = draw(&g->accum, seed, &at);
        k.seq = draw(&g->seq, seed, &at);
        k.logits_chunk = draw(&g->chunk, seed, &at);
        k.recompute_mode = (enum recompute_mode)draw(&g->recompute, seed, &at);
        k.precision = (enum precision)draw(&g->precision, seed, &at);
        k.threads = draw(&g->threads, seed, &at);
        k.optim_state = (enum optim_state)draw(&g->state, seed, &at);
        bool known = k.batch_micro * k.batch_accum * k.seq > g->tokens_most;
        for (int i = 0; i < b->n && !known; i++) {
            known = true;
            for (int id = 0; id < KNOB_COUNT; id++)
                known = known && knobs_same(&k, &b->settings[i].knobs, id);
        }
        if (!known)
            b->settings[b->n++].knobs = k;
    }
    return 0;
}

// ---------------------------------------------------------------- calibration

static int calibrate_here(struct bench *b, struct err *e) {
    const struct grid *g = &b->grid;
    for (int p = 0; p < g->precision.n; p++)
        for (int t = 0; t < g->threads.n; t++)
            for (int s = 0; s < g->seq.n; s++)
                for (int o = 0; o < g->state.n; o++) {
                    struct knobs k;
                    struct calibrated c;
                    TRY(base_knobs(b, &k, e));
                    k.precision = (enum precision)g->precision.of[p];
                    k.threads = g->threads.of[t];
                    k.seq = g->seq.of[s];
                    k.optim_state = (enum optim_state)g->state.of[o];
                    // The optimizer state affects only the update: one micro-batch is enough.
                    int64_t most = o == 0 ? g->micro.of[g->micro.n - 1] : 1;
                    TRY(predictor_calibrate_span(b->predictor, &k, 1, most, &c, e));
                    if (b->verbose)
                        printf("  seq %lld %s: %lld layers, %d turns, %.2f s\n", (long long)k.seq,
                               knob_choice(KNOB_precision, (int)k.precision), (long long)c.layers,
                               c.turns, c.seconds);
                }
    return predictor_store(b->predictor, e);
}

// Runs in a forked process, which leaves the tables in b->dir. A GPU that was opened in this
// process could not be opened again in the processes of the trials.
static int calibrate(struct bench *b, struct err *e) {
    const uint64_t begin = clock_ns();
    int status = 0;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        struct err why = {0};
        int rc = predictor_open(&b->predictor, b->dir, &why);
        if (rc == 0)
            rc = calibrate_here(b, &why);
        if (rc != 0)
            fprintf(stderr, "bench_predict: %s\n", why.text);
        fflush(stdout);
        _exit(rc != 0);
    }
    if (child < 0 || waitpid(child, &status, 0) < 0 || status != 0)
        return err_set(e, ERR_INTERNAL, "the machine could not be calibrated");
    b->calibrated_s = 1e-9 * (double)(clock_ns() - begin);
    printf("calibrated in %.1f s\n", b->calibrated_s);
    return predictor_open(&b->predictor, b->dir, e);
}

// ---------------------------------------------------------------- predicting and measuring

static int predict(struct bench *b, struct setting *at, struct err *e) {
    struct plan p;
    uint64_t begin = clock_ns();
    int rc = make_plan(&p, &at->knobs, e);
    uint64_t planned = clock_ns();
    if (rc == 0)
        rc = predictor_step(b->predictor, &p, &at->predicted, e);
    b->planned_s += 1e-9 * (double)(planned - begin);
    b->predicted_s += 1e-9 * (double)(clock_ns() - planned);
    plan_free(&p);
    return rc;
}

static int measure(struct bench *b, struct setting *at, struct err *e) {
    double steps = b->grid.trial_s / at->predicted.seconds;
    const struct trial_options o = {.warmup = steps > 6 ? 2 : 1,
                                    .steps = steps < 3    ? 3
                                             : steps > 60 ? 60
                                                          : (int64_t)steps};
    const uint64_t begin = clock_ns();
    TRY(trial_run(&at->knobs, &o, &at->trial, e));
    b->measured_s += 1e-9 * (double)(clock_ns() - begin);
    if (at->trial.rc != 0)
        return err_set(e, at->trial.rc, "%s", at->trial.reason);
    double *ns = malloc(sizeof *ns * (size_t)at->trial.steps);
    if (!ns)
        return err_set(e, ERR_MEMORY, "out of memory");
    memcpy(ns, at->trial.step_ns, sizeof *ns * (size_t)at->trial.steps);
    at->measured_s = 1e-9 * sample_median(ns, (size_t)at->trial.steps);
    if (b->least)
        at->measured_s = 1e-9 * ns[0]; // the array is sorted
    free(ns);
    return 0;
}

static int learn(struct bench *b, const struct setting *from, struct err *e) {
    struct plan p;
    int rc = make_plan(&p, &from->knobs, e);
    const struct trial_result *t = &from->trial;
    const struct observed seen = {.step_ns = t->step_ns, .steps = t->steps, .split = t->split};
    if (rc == 0)
        rc = predictor_observe(b->predictor, &p, &seen, e);
    plan_free(&p);
    return rc;
}

// ---------------------------------------------------------------- figures

static void rank(const double *x, double *ranks, int n) {
    for (int i = 0; i < n; i++) {
        ranks[i] = 0.5;
        for (int k = 0; k < n; k++)
            ranks[i] += x[k] < x[i] ? 1 : x[k] == x[i] ? 0.5 : 0;
    }
}

static double spearman(const double *x, const double *y, int n) {
    double a[SETTINGS_MOST], b[SETTINGS_MOST], mean = (n + 1) / 2.0, xy = 0, xx = 0, yy = 0;
    rank(x, a, n);
    rank(y, b, n);
    for (int i = 0; i < n; i++) {
        xy += (a[i] - mean) * (b[i] - mean);
        xx += (a[i] - mean) * (a[i] - mean);
        yy += (b[i] - mean) * (b[i] - mean);
    }
    return xx > 0 && yy > 0 ? xy / sqrt(xx * yy) : 0;
}

static void print_figures(const char *what, const double *predicted, const double *measured,
                          int n) {
    double errors[SETTINGS_MOST], bias = 0;
    for (int i = 0; i < n; i++) {
        errors[i] = fabs(predicted[i] / measured[i] - 1);
        bias += log(predicted[i] / measured[i]) / n;
    }
    double half = n > 0 ? sample_median(errors, (size_t)n) : 0;
    printf(
        "%-22s n %3d  median error %5.1f %%  90 %% within %5.1f %%  most %5.1f %%  bias %+5.1f %%  "
        "Spearman %.3f\n",
        what, n, 100 * half, 100 * errors[(int)(0.9 * (n - 1))], 100 * errors[n - 1],
        100 * expm1(bias), spearman(predicted, measured, n));
}

static void print_setting(const struct setting *s) {
    const struct knobs *k = &s->knobs;
    const struct predicted *p = &s->predicted;
    printf(
        "  micro %2lld accum %lld seq %3lld chunk %3lld %-9s %s threads %lld state %s: predicted "
        "%8.2f ms (+-%2.0f %%), measured %8.2f ms, %+5.1f %%\n",
        (long long)k->batch_micro, (long long)k->batch_accum, (long long)k->seq,
        (long long)k->logits_chunk, knob_choice(KNOB_recompute_mode, (int)k->recompute_mode),
        knob_choice(KNOB_precision, (int)k->precision), (long long)k->threads,
        knob_choice(KNOB_optim_state, (int)k->optim_state), 1e3 * p->seconds, 100 * p->spread,
        1e3 * s->measured_s, 100 * (p->seconds / s->measured_s - 1));
}

// Where time was predicted and where it went, over all settings.
static void print_parts(const struct bench *b) {
    for (int part = 0; part < TIME_COUNT; part++) {
        double predicted = 0, measured = 0, all = 0;
        for (int i = 0; i < b->n; i++) {
            const struct setting *s = &b->settings[i];
            const double wall = (double)s->trial.split.wall_ns;
            predicted += s->predicted.part_s[part] / s->measured_s;
            measured += (double)s->trial.split.ns[part] / wall;
            all += 1;
        }
        if (predicted + measured > 0)
            printf("  %-10s predicted %5.1f %%  measured %5.1f %% of a step\n",
                   time_part_name((enum time_part)part), 100 * predicted / all,
                   100 * measured / all);
    }
    for (int kind = 0; b->verbose && kind < OP_COUNT; kind++) {
        double measured = 0;
        for (int i = 0; i < b->n; i++)
            measured += (double)b->settings[i].trial.split.kind_ns[kind] /
                        (double)b->settings[i].trial.split.wall_ns / b->n;
        if (measured > 0.002)
            printf("    %-14s measured %5.1f %% of a step\n", op_info((enum op_kind)kind)->name,
                   100 * measured);
    }
}

static int run(struct bench *b, uint64_t seed, struct err *e) {
    double predicted[SETTINGS_MOST], measured[SETTINGS_MOST];
    b->settings = calloc(SETTINGS_MOST, sizeof *b->settings);
    if (!b->settings)
        return err_set(e, ERR_MEMORY, "out of memory");
    TRY(draw_settings(b, seed, e));
    printf("%s: %d settings\n", b->grid.model, b->n);
    TRY(calibrate(b, e));
    for (int i = 0; i < b->n; i++)
        TRY(predict(b, &b->settings[i], e));
    printf("planning %.2f ms, predicting %.3f ms a setting\n", 1e3 * b->planned_s / b->n,
           1e3 * b->predicted_s / b->n);
    for (int i = 0; i < b->n; i++) {
        TRY(measure(b, &b->settings[i], e));
        if (b->verbose)
            print_setting(&b->settings[i]);
        fflush(stdout);
    }
    printf("measured in %.1f s\n", b->measured_s);
    for (int i = 0; i < b->n; i++) {
        predicted[i] = b->settings[i].predicted.seconds;
        measured[i] = b->settings[i].measured_s;
    }
    print_parts(b);
    print_figures("calibrated", predicted, measured, b->n);
    int half = b->n / 2, n = 0;
    for (int i = 0; i < half; i++)
        TRY(learn(b, &b->settings[i], e));
    for (int i = half; i < b->n; i++, n++) {
        TRY(predict(b, &b->settings[i], e));
        predicted[n] = b->settings[i].predicted.seconds;
        measured[n] = b->settings[i].measured_s;
    }
    print_figures("refined by the others", predicted, measured, n);
    return predictor_store(b->predictor, e);
}

// Predicts again, after all models were learnt: the settings that were learnt, then the others.
static int predict_again(struct bench *b, struct err *e) {
    double predicted[SETTINGS_MOST], measured[SETTINGS_MOST];
    const int half = b->n / 2;
    predictor_close(b->predictor);
    b->predictor = NULL;
    TRY(predictor_open(&b->predictor, b->dir, e));
    for (int i = 0; i < b->n; i++) {
        TRY(predict(b, &b->settings[i], e));
        predicted[i] = b->settings[i].predicted.seconds;
        measured[i] = b->settings[i].measured_s;
    }
    printf("%s, after all models were learnt\n", b->grid.model);
    print_figures("settings learnt from", predicted, measured, half);
    print_figures("other settings", predicted + half, measured + half, b->n - half);
    return 0;
}

static int bench(struct bench *b, const struct grid *g, const struct bench *like, uint64_t seed,
                 struct err *e) {
    *b = *like;
    b->grid = *g;
    if (like->grid.settings > 0 && like->grid.settings < SETTINGS_MOST)
        b->grid.settings = like->grid.settings;
    if (b->threads > 0)
        b->grid.threads = (struct list){1, {b->threads}};
    if (b->tokens > 0)
        b->grid.tokens_most = b->tokens;
    return run(b, seed, e);
}

static void close_bench(struct bench *b) {
    for (int i = 0; b->settings && i < b->n; i++)
        trial_free(&b->settings[i].trial);
    free(b->settings);
    predictor_close(b->predictor);
}

int main(int argc, char **argv) {
    struct bench like = {0};
    struct grid grids[2] = {small, large};
    struct bench benches[2] = {{.n = 0}};
    const char *model = NULL;
    uint64_t seed = 1;
    bool quick = false;
    struct err e = {0};
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (strcmp(argv[i], "--model") == 0 && more)
            model = argv[++i];
        else if (strcmp(argv[i], "--settings") == 0 && more)
            like.grid.settings = atoi(argv[++i]);
        else if (strcmp(argv[i], "--seed") == 0 && more)
            seed = (uint64_t)atoll(argv[++i]);
        else if (strcmp(argv[i], "--device") == 0 && more)
            like.cuda = strcmp(argv[++i], "cuda") == 0;
        else if (strcmp(argv[i], "--threads") == 0 && more)
            like.threads = atoll(argv[++i]);
        else if (strcmp(argv[i], "--tokens") == 0 && more)
            like.tokens = atoll(argv[++i]);
        else if (strcmp(argv[i], "--least") == 0)
            like.least = true;
        else if (strcmp(argv[i], "--quick") == 0)
            quick = true;
        else if (strcmp(argv[i], "--verbose") == 0)
            like.verbose = true;
        else {
            fprintf(stderr,
                    "usage: bench_predict [--model NAME] [--quick] [--settings N] [--seed N] "
                    "[--device cuda] [--verbose] [--threads N] [--tokens N] [--least]\n");
            return 2;
        }
    }
    if (quick && like.grid.settings == 0)
        like.grid.settings = 12;
    int rc = file_make_temp_dir(like.dir, sizeof like.dir, "predict", &e);
    for (int i = 0; rc == 0 && i < 2; i++) {
        struct knobs k;
        struct plan p;
        if (model && i == 1)
            break;
        if (model) { // its size decides which grid is used
            knobs_init(&k);
            rc = knobs_set(&k, "model", model, SET_BY_COMMAND_LINE, &e);
            if (rc == 0)
                rc = make_plan(&p, &k, &e);
            if (rc == 0 && p.flops.model > 1e11)
                grids[0] = large;
            plan_free(&p);
            grids[0].model = model;
        }
        if (rc == 0)
            rc = bench(&benches[i], &grids[i], &like, seed, &e);
    }
    for (int i = 0; rc == 0 && i < 2; i++)
        if (benches[i].n > 0)
            rc = predict_again(&benches[i], &e);
    for (int i = 0; i < 2; i++)
        close_bench(&benches[i]);
    if (like.dir[0])
        file_remove_tree(like.dir, NULL);
    if (rc != 0)
        fprintf(stderr, "bench_predict: %s\n", e.text);
    return rc != 0;
}
