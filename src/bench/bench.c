// bench.c - a grid of configurations, measured in interleaved rounds.
//
// A round visits every configuration once, so a slow minute of the machine affects all of them.
// Figures are pooled over the rounds, and their spread between rounds is a column. Each visit forks
// a new process (trial_run) instead of using a worker that stays: a bench has few settings, and its
// losses and first steps are then those of a fresh run. The machine's rates are measured at the
// end, because measuring them starts threads, and forking must come first.
#include "bench/bench.h"

#include "base/clock.h"
#include "predict/predictor.h"
#include "predict/verdict_run.h"
#include "train/record.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void bench_refuse(struct bench_row *row, int rc, const char *reason) {
    row->rc = rc;
    snprintf(row->reason, sizeof row->reason, "%s", reason);
}

int bench_open(struct bench *b, const struct knobs *base, struct err *e) {
    b->rows = calloc(b->grid->n, sizeof *b->rows);
    if (!b->rows)
        return err_set(e, ERR_MEMORY, "out of memory for %zu configurations", b->grid->n);
    for (size_t i = 0; i < b->grid->n; i++) {
        struct bench_row *row = &b->rows[i];
        struct err why = {0};
        int rc = grid_knobs(b->grid, i, base, &row->knobs, &why);
        if (rc != 0) {
            bench_refuse(row, rc, why.text);
            continue;
        }
        TRY(samples_open(&row->step_ns, (size_t)b->steps * (size_t)b->rounds, e));
        row->rounds = calloc((size_t)b->rounds, sizeof *row->rounds);
        if (b->against && b->against[i] >= 0)
            row->beside = calloc((size_t)b->rounds, sizeof *row->beside);
        if (!row->rounds || (b->against && b->against[i] >= 0 && !row->beside))
            return err_set(e, ERR_MEMORY, "out of memory for %d rounds", b->rounds);
    }
    return 0;
}

void bench_close(struct bench *b) {
    for (size_t i = 0; b->rows && i < b->grid->n; i++) {
        samples_close(&b->rows[i].step_ns);
        free(b->rows[i].rounds);
        free(b->rows[i].beside);
    }
    free(b->rows);
}

// ---------------------------------------------------------------- measuring

// On a device: the bytes of the arena, without the process, which is on the host.
static uint64_t predicted_bytes(const struct bench_row *row, const struct trial_result *t) {
    uint64_t arena = 0;
    for (int c = 0; c < CLASS_COUNT; c++)
        arena += t->by_class[c];
    return plan_wants_device(&row->knobs) ? arena : t->memory_predicted_bytes;
}

// Sorts the steps of the trial.
static struct bench_round round_of(const struct bench_row *row, struct trial_result *t) {
    struct spread s;
    sample_spread_of(t->step_ns, (size_t)t->steps, &s);
    const bool seen = t->memory_measured_bytes > 0;
    return (struct bench_round){
        .tokens_per_s = (double)t->tokens / (1e-9 * (double)t->wall_ns),
        .step_p50_ms = s.median / 1e6,
        .memory_bytes = (double)(seen ? t->memory_measured_bytes : predicted_bytes(row, t)),
    };
}

static void add_trial(struct bench_row *row, struct trial_result *t) {
    struct trial_result *sum = &row->sum;
    for (int64_t i = 0; i < t->steps; i++)
        samples_add(&row->step_ns, t->step_ns[i]);
    row->rounds[row->n_rounds++] = round_of(row, t); // sorts, so it comes after samples_add
    sum->steps += t->steps;
    sum->wall_ns += t->wall_ns;
    sum->tokens += t->tokens;
    sum->real_tokens += t->real_tokens;
    sum->trained_tokens += t->trained_tokens;
    time_split_add(&sum->split, &t->split);
    if (t->memory_measured_bytes > sum->memory_measured_bytes)
        sum->memory_measured_bytes = t->memory_measured_bytes;
    memcpy(sum->by_class, t->by_class, sizeof sum->by_class);
    sum->cost = t->cost;
    sum->flops = t->flops;
    data_use_add(&sum->data, &t->data);
    energy_use_add(&sum->energy, &t->energy);
    others_add(&sum->others, &t->others);
    apart_join(&sum->cpus, &t->cpus);
    row->loss_first = t->loss_first;
    row->loss_last = t->loss_last;
}

static void record(struct bench *b, const struct bench_row *row, const struct trial_result *t,
                   double started_at) {
    char key[HASH_TEXT_BYTES];
    const char *peak_is;
    if (!b->store || b->unrecorded.code != 0)
        return;
    struct record r = {
        .origin = "bench",
        .key = record_key(&row->knobs, key, NULL) == 0 ? key : NULL,
        .outcome = record_outcome(t),
        .started_at = started_at,
        .predicted_step_s = NAN,
        .joules_per_token = energy_per(&t->energy, (double)t->tokens),
        .peak_flops_per_s = machine_peak(&b->machine, row->knobs.precision, &peak_is),
    };
    record_trial(b->store, &r, &row->knobs, t, NULL, &b->unrecorded);
}

// Runs a trial of row i and adds it to the row. With `pair` it goes there instead: it is the visit
// beside one of another row.
static int visit(struct bench *b, size_t i, int round, struct bench_round *pair,
                 struct others *seen, struct log *log, struct err *e) {
    struct trial_options o = {.warmup = b->warmup, .steps = b->steps, .stop = b->stop};
    struct bench_row *row = &b->rows[i];
    struct trial_result t;
    char name[GRID_NAME_BYTES], text[GRID_NAME_BYTES + 64];
    snprintf(text, sizeof text, "round %d of %d: %s", round + 1, b->rounds,
             grid_name(b->grid, i, name));
    bool live = log_live(log, text) != 0;
    double started_at = clock_wall_s();
    int rc = trial_run(&row->knobs, &o, &t, e);
    if (rc == 0)
        record(b, row, &t, started_at);
    if (rc == 0 && t.rc != 0 && !pair)
        bench_refuse(row, t.rc, t.reason);
    else if (rc == 0 && t.rc == 0 && !pair)
        add_trial(row, &t);
    else if (rc == 0 && t.rc == 0)
        *pair = round_of(row, &t), others_add(seen, &t.others);
    if (rc == 0 && !pair)
        row->sum.memory_predicted_bytes = predicted_bytes(row, &t);
    if (rc == 0 && !live && !pair && t.rc == 0)
        log_put(log, LOG_INFO, "%s: %.0f tokens/s", text,
                row->rounds[row->n_rounds - 1].tokens_per_s);
    else if (rc == 0 && !live && !pair)
        log_put(log, LOG_INFO, "%s: not measured", text);
    trial_free(&t);
    return rc;
}

static int visit_pair(struct bench *b, size_t i, int round, struct log *log, struct err *e) {
    struct bench_row *row = &b->rows[i];
    const int against = row->beside ? b->against[i] : -1;
    const bool paired = against >= 0 && b->rows[against].rc == 0;
    struct bench_round *pair = paired ? &row->beside[row->n_rounds] : NULL;
    for (int turn = 0; turn < 2; turn++)
        if ((turn + round) % 2 == 1)
            TRY(visit(b, i, round, NULL, NULL, log, e));
        else if (paired && row->rc == 0)
            TRY(visit(b, (size_t)against, round, pair, &row->sum.others, log, e));
    return 0;
}

int bench_measure(struct bench *b, struct log *log, struct err *e) {
    int rc = 0;
    for (int round = 0; round < b->rounds && rc == 0; round++)
        for (size_t at = 0; at < b->grid->n && rc == 0; at++) {
            bool back = b->there_and_back && round % 2 == 1;
            size_t i = back ? b->grid->n - 1 - at : at;
            if (b->rows[i].rc == 0) // a refused row would be refused again
                rc = visit_pair(b, i, round, log, e);
        }
    if (log->live)
        log_live_end(log);
    return rc;
}

// ---------------------------------------------------------------- figures

static double rounds_spread(const struct bench_row *row) {
    if (row->n_rounds < 2)
        return NAN;
    double least = INFINITY, most = 0, sum = 0;
    for (int i = 0; i < row->n_rounds; i++) {
        least = fmin(least, row->rounds[i].tokens_per_s);
        most = fmax(most, row->rounds[i].tokens_per_s);
        sum += row->rounds[i].tokens_per_s;
    }
    return (most - least) / (sum / row->n_rounds);
}

static void compute(struct bench *b, struct bench_row *row) {
    const struct trial_result *t = &row->sum;
    const struct knobs *k = &row->knobs;
    if (row->n_rounds == 0) {
        if (row->rc == 0)
            bench_refuse(row, ERR_STOPPED, "stopped before it was measured");
        return;
    }
    struct trace trace = {.total = t->split};
    const char *peak_is;
    struct metrics_input in = trial_metrics_input(t, k, &row->step_ns, &trace);
    in.peak_flops_per_s = machine_peak(&b->machine, k->precision, &peak_is);
    metrics_compute(&row->metrics, &in);
    row->metrics.memory_predicted_bytes = t->memory_predicted_bytes;
    row->metrics.memory_measured_bytes = t->memory_measured_bytes;
    for (int c = 0; c < CLASS_COUNT; c++)
        metrics_add_class(&row->metrics, tensor_class_name((enum tensor_class)c), t->by_class[c]);
    row->metrics.loss_first = row->loss_first;
    row->metrics.loss_last = row->loss_last;
    row->utilization = row->metrics.utilization;
    row->spread = rounds_spread(row);
}

int bench_finish(struct bench *b, const struct knobs *base, double seconds, struct err *e) {
    const enum machine_how how = machine_how_after(seconds, false, b->stop && *b->stop);
    TRY(machine_open(&b->machine, base, how, e));
    for (size_t i = 0; i < b->grid->n; i++)
        compute(b, &b->rows[i]);
    return 0;
}

size_t bench_rows_measured(const struct bench *b) {
    size_t n = 0;
    for (size_t i = 0; i < b->grid->n; i++)
        n += b->rows[i].n_rounds > 0;
    return n;
}

static void teach_row(struct predictor *p, const struct bench_row *row) {
    const size_t n = samples_count(&row->step_ns);
    double *step_ns = malloc((n + 1) * sizeof *step_ns);
    struct plan plan;
    if (step_ns && plan_run(&plan, &row->knobs, NULL) == 0) {
        const struct observed seen = {step_ns, (int64_t)samples_copy(&row->step_ns, 0, step_ns),
                                      row->sum.split, others_notable(&row->sum.others)};
        predictor_observe(p, &plan, &seen, NULL);
    }
    if (step_ns)
        plan_free(&plan); // also when planning failed half-way
    free(step_ns);
}

void bench_teach(const struct bench *b) {
    struct predictor *p = NULL;
    if (predictor_open(&p, NULL, NULL) == 0) {
        for (size_t i = 0; i < b->grid->n; i++)
            if (b->rows[i].n_rounds > 0)
                teach_row(p, &b->rows[i]);
        predictor_store(p, NULL);
    }
    predictor_close(p);
}

// ---------------------------------------------------------------- comparing two rows

static double figure_of(const struct bench_round *r, enum bench_figure figure) {
    return figure == BENCH_SPEED  ? r->tokens_per_s
           : figure == BENCH_STEP ? r->step_p50_ms
                                  : r->memory_bytes;
}

struct ratio bench_ratio(const struct bench_row *row, const struct bench_row *to,
                         enum bench_figure figure) {
    const int rounds = row->beside || row->n_rounds < to->n_rounds ? row->n_rounds : to->n_rounds;
    double *values = malloc(2 * ((size_t)rounds + 1) * sizeof *values);
    struct ratio out = {NAN, NAN, NAN};
    size_t n = 0;
    for (int i = 0; values && i < rounds; i++) {
        const double a = figure_of(&row->rounds[i], figure),
                     b = figure_of(row->beside ? &row->beside[i] : &to->rounds[i], figure);
        if (b > 0) { // else the visit beside it failed
            values[n] = a;
            values[rounds + (int)n++] = b;
        }
    }
    if (n > 0)
        out = sample_ratio(values, values + rounds, n);
    free(values);
    return out;
}

const char *bench_busy(char out[OTHERS_TEXT_BYTES], const struct bench_row *row,
                       const struct bench_row *to) {
    struct others both = row->sum.others;
    others_add(&both, &to->sum.others);
    return others_notable(&both) ? others_text(out, &both) : NULL;
}

double bench_memory(const struct bench_row *row) {
    uint64_t seen = row->sum.memory_measured_bytes;
    return (double)(seen ? seen : row->sum.memory_predicted_bytes);
}

// ---------------------------------------------------------------- the sentence at the end

void bench_say_best(const struct bench *b, struct log *log) {
    int best = -1, second = -1;
    for (size_t i = 0; i < b->grid->n; i++) {
        const struct bench_row *row = &b->rows[i];
        if (row->n_rounds == 0)
            continue;
        if (best < 0 || row->metrics.tokens_per_s > b->rows[best].metrics.tokens_per_s)
            second = best, best = (int)i;
        else if (second < 0 || row->metrics.tokens_per_s > b->rows[second].metrics.tokens_per_s)
            second = (int)i;
    }
    if (best < 0)
        return;
    char name[GRID_NAME_BYTES], other[GRID_NAME_BYTES];
    if (second >= 0) {
        const struct bench_row *x = &b->rows[best], *y = &b->rows[second];
        double more = 100 * (x->metrics.tokens_per_s / y->metrics.tokens_per_s - 1);
        const struct ratio r = bench_ratio(x, y, BENCH_SPEED);
        char busy[OTHERS_TEXT_BYTES];
        log_put(log, LOG_INFO, "most tokens/s: %s, %.1f %% more than %s%s",
                grid_name(b->grid, (size_t)best, name), more,
                grid_name(b->grid, (size_t)second, other),
                isnan(r.low)               ? ", by too few rounds to be sure"
                : ratio_direction(&r) <= 0 ? ", which is within the noise of their rounds"
                                           : "");
        if (bench_busy(busy, x, y))
            log_put(log, LOG_WARN, "the machine was busy meanwhile: %s", busy);
    }
    struct verdict v;
    const struct bench_row *row = &b->rows[best];
    verdict_run(&v, &row->metrics, &row->knobs, &row->sum.cost, &b->machine);
    log_put(log, LOG_INFO, "%s", v.text);
}
