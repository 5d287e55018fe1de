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

enum { ROUNDS_COMPARED = 1000, ROUNDS_TO_JUDGE = 3 };

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
        if (!row->rounds)
            return err_set(e, ERR_MEMORY, "out of memory for %d rounds", b->rounds);
    }
    return 0;
}

void bench_close(struct bench *b) {
    for (size_t i = 0; b->rows && i < b->grid->n; i++) {
        samples_close(&b->rows[i].step_ns);
        free(b->rows[i].rounds);
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

static void add_trial(struct bench_row *row, struct trial_result *t) {
    struct trial_result *sum = &row->sum;
    struct spread s;
    for (int64_t i = 0; i < t->steps; i++)
        samples_add(&row->step_ns, t->step_ns[i]);
    sample_spread_of(t->step_ns, (size_t)t->steps, &s); // sorts, so it comes after samples_add
    row->rounds[row->n_rounds++] = (struct bench_round){
        .tokens_per_s = (double)t->tokens / (1e-9 * (double)t->wall_ns),
        .step_p50_ms = 1e-6 * s.median,
    };
    sum->steps += t->steps;
    sum->wall_ns += t->wall_ns;
    sum->tokens += t->tokens;
    sum->real_tokens += t->real_tokens;
    sum->trained_tokens += t->trained_tokens;
    time_split_add(&sum->split, &t->split);
    // On a device the peak of the process cannot be compared with the prediction, so it stays
    // unknown.
    if (t->memory_measured_bytes > sum->memory_measured_bytes && !plan_wants_device(&row->knobs))
        sum->memory_measured_bytes = t->memory_measured_bytes;
    memcpy(sum->by_class, t->by_class, sizeof sum->by_class);
    sum->cost = t->cost;
    sum->flops = t->flops;
    data_use_add(&sum->data, &t->data);
    energy_use_add(&sum->energy, &t->energy);
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

static int visit(struct bench *b, size_t i, int round, struct log *log, struct err *e) {
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
    if (rc == 0 && t.rc != 0)
        bench_refuse(row, t.rc, t.reason);
    else if (rc == 0)
        add_trial(row, &t);
    if (rc == 0)
        row->sum.memory_predicted_bytes = predicted_bytes(row, &t);
    if (rc == 0 && !live && t.rc == 0)
        log_put(log, LOG_INFO, "%s: %.0f tokens/s", text,
                row->rounds[row->n_rounds - 1].tokens_per_s);
    else if (rc == 0 && !live)
        log_put(log, LOG_INFO, "%s: not measured", text);
    trial_free(&t);
    return rc;
}

int bench_measure(struct bench *b, struct log *log, struct err *e) {
    int rc = 0;
    for (int round = 0; round < b->rounds && rc == 0; round++)
        for (size_t at = 0; at < b->grid->n && rc == 0; at++) {
            bool back = b->there_and_back && round % 2 == 1;
            size_t i = back ? b->grid->n - 1 - at : at;
            if (b->rows[i].rc == 0) // a refused row would be refused again
                rc = visit(b, i, round, log, e);
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
    TRY(machine_open(&b->machine, base, machine_how_after(seconds, b->stop && *b->stop), e));
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
                                      row->sum.split};
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

struct ratio bench_ratio(const struct bench_row *row, const struct bench_row *to, bool latency) {
    double r[ROUNDS_COMPARED];
    int n = 0;
    for (int i = 0; i < row->n_rounds && i < to->n_rounds && n < ROUNDS_COMPARED; i++)
        r[n++] = latency ? row->rounds[i].step_p50_ms / to->rounds[i].step_p50_ms
                         : row->rounds[i].tokens_per_s / to->rounds[i].tokens_per_s;
    if (n == 0)
        return (struct ratio){NAN, NAN, NAN};
    const double median = sample_median(r, (size_t)n);
    return (struct ratio){median, r[0], r[n - 1]};
}

double ratio_noise(const struct ratio *r) {
    return fmax(fabs(r->low - 1), fabs(r->high - 1));
}

int ratio_direction(const struct ratio *r, int rounds, double noise) {
    if (rounds < ROUNDS_TO_JUDGE || !(fabs(r->median - 1) > noise))
        return 0;
    return r->low > 1 ? 1 : r->high < 1 ? -1 : 0;
}

double bench_memory(const struct bench_row *row) {
    uint64_t seen = row->sum.memory_measured_bytes;
    return (double)(seen ? seen : row->sum.memory_predicted_bytes);
}

// ---------------------------------------------------------------- the sentence at the end

// The tokens/s of each step, so that configurations with different step sizes can be compared.
static bool speed_spread(const struct bench_row *row, struct spread *out) {
    size_t n = samples_count(&row->step_ns);
    double *speed = malloc(n * sizeof *speed);
    if (!speed || n == 0) {
        free(speed);
        return false;
    }
    double tokens = (double)row->sum.tokens / (double)row->sum.steps;
    n = samples_copy(&row->step_ns, 0, speed);
    for (size_t i = 0; i < n; i++)
        speed[i] = 1e9 * tokens / speed[i];
    sample_spread_of(speed, n, out);
    free(speed);
    return true;
}

// The steps of one round share the same slow or fast moment of the machine, so many steps alone
// prove little. A difference must also show in every round.
static bool surely_faster(const struct bench_row *a, const struct bench_row *b) {
    struct spread x, y;
    for (int i = 0; i < a->n_rounds && i < b->n_rounds; i++)
        if (a->rounds[i].tokens_per_s <= b->rounds[i].tokens_per_s)
            return false;
    return speed_spread(a, &x) && speed_spread(b, &y) && sample_compare(&x, &y) == COMPARE_HIGHER;
}

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
        bool sure = surely_faster(x, y);
        log_put(log, LOG_INFO, "most tokens/s: %s, %.1f %% more than %s%s",
                grid_name(b->grid, (size_t)best, name), more,
                grid_name(b->grid, (size_t)second, other),
                sure ? "" : ", which is within the noise");
    }
    struct verdict v;
    const struct bench_row *row = &b->rows[best];
    verdict_run(&v, &row->metrics, &row->knobs, &row->sum.cost, &b->machine);
    log_put(log, LOG_INFO, "%s", v.text);
}
