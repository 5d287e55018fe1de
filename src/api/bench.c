// bench.c - haggle_bench_train: a grid of configurations, measured in interleaved rounds.
//
// A round visits every configuration once, so a slow minute of the machine falls on all of them
// alike; figures are pooled over the rounds, and their spread between rounds is a column. Each
// visit is a process of its own (trial_run), not a worker that stays: a bench is asked about few settings,
// and its losses and first steps are then those of a fresh run. The
// machine's own rates are read at the end: measuring them starts threads, and forks come first.
#include "api/bench.h"

#include "base/clock.h"
#include "train/record.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS_DEFAULT = 3, STEPS_DEFAULT = 20, WARMUP_DEFAULT = 2 };
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

// Of a device: its arena alone, without the process, which is the host's.
static uint64_t predicted_bytes(const struct bench_row *row, const struct trial_result *t) {
    uint64_t arena = 0;
    for (int c = 0; c < CLASS_COUNT; c++)
        arena += t->by_class[c];
    return session_wants_device(&row->knobs) ? arena : t->memory_predicted_bytes;
}

static void add_trial(struct bench_row *row, struct trial_result *t) {
    struct trial_result *sum = &row->sum;
    struct spread s;
    for (int64_t i = 0; i < t->steps; i++)
        samples_add(&row->step_ns, t->step_ns[i]);
    sample_spread_of(t->step_ns, (size_t)t->steps, &s); // sorts: after the samples were taken
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
    // On a device the process's peak is not what was predicted: better unknown than compared.
    if (t->memory_measured_bytes > sum->memory_measured_bytes && !session_wants_device(&row->knobs))
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

static int visit(struct bench *b, size_t i, int round, struct call *c, struct err *e) {
    struct trial_options o = {.warmup = b->warmup, .steps = b->steps, .stop = stop_flag()};
    struct bench_row *row = &b->rows[i];
    struct trial_result t;
    char name[GRID_NAME_BYTES], text[GRID_NAME_BYTES + 64];
    snprintf(text, sizeof text, "round %d of %d: %s", round + 1, b->rounds,
             grid_name(b->grid, i, name));
    bool live = log_live(&c->log, text) != 0;
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
        log_put(&c->log, LOG_INFO, "%s: %.0f tokens/s", text,
                row->rounds[row->n_rounds - 1].tokens_per_s);
    else if (rc == 0 && !live)
        log_put(&c->log, LOG_INFO, "%s: not measured", text);
    trial_free(&t);
    return rc;
}

int bench_measure(struct bench *b, struct call *c, struct err *e) {
    int rc = 0;
    for (int round = 0; round < b->rounds && rc == 0; round++)
        for (size_t at = 0; at < b->grid->n && rc == 0; at++) {
            bool back = b->there_and_back && round % 2 == 1;
            size_t i = back ? b->grid->n - 1 - at : at;
            if (b->rows[i].rc == 0) // one that was refused would be refused again
                rc = visit(b, i, round, c, e);
        }
    if (c->log.live)
        log_live_end(&c->log);
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
    TRY(machine_open(&b->machine, base, machine_how_after(seconds), e));
    for (size_t i = 0; i < b->grid->n; i++)
        compute(b, &b->rows[i]);
    return 0;
}

static size_t rows_measured(const struct bench *b) {
    size_t n = 0;
    for (size_t i = 0; i < b->grid->n; i++)
        n += b->rows[i].n_rounds > 0;
    return n;
}

// ---------------------------------------------------------------- one row beside another

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

// Tokens per second of each step, so that configurations of different step sizes compare.
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

// Steps of one round share its luck, so their number alone proves little: a difference must also
// show in every round.
static bool surely_faster(const struct bench_row *a, const struct bench_row *b) {
    struct spread x, y;
    for (int i = 0; i < a->n_rounds && i < b->n_rounds; i++)
        if (a->rounds[i].tokens_per_s <= b->rounds[i].tokens_per_s)
            return false;
    return speed_spread(a, &x) && speed_spread(b, &y) && sample_compare(&x, &y) == COMPARE_HIGHER;
}

static void say_best(const struct bench *b, struct log *log) {
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
                sure ? "" : "; with these samples that is no difference");
    }
    struct verdict v;
    const struct bench_row *row = &b->rows[best];
    api_verdict(&v, &row->metrics, &row->knobs, &row->sum.cost, &b->machine);
    log_put(log, LOG_INFO, "%s", v.text);
}

// ---------------------------------------------------------------- the verb

static int report(struct bench *b, const struct knobs *base, enum haggle_format format,
                  double seconds, struct call *c, struct err *e) {
    TRY(bench_finish(b, base, seconds, e));
    if (c->out)
        TRY(bench_print(b, format, c->out, e));
    if (c->wants_json) {
        call_json_begin(c, "bench", base);
        machine_put_json(&b->machine, &c->json);
        json_member_i64(&c->json, "rounds", b->rounds);
        json_member_i64(&c->json, "steps", b->steps);
        json_member_i64(&c->json, "warmup", b->warmup);
        json_put_key(&c->json, "rows");
        bench_put_json(b, &c->json);
        json_put_object_end(&c->json);
    }
    say_best(b, &c->log);
    if (rows_measured(b) > 0)
        return 0;
    return err_set(e, b->rows[0].rc, "nothing could be measured: %s", b->rows[0].reason);
}

// Rates as they are known: measuring them starts threads, and forks come first.
static int open_store(struct bench *b, const struct knobs *base, const char *path, struct err *e) {
    TRY(machine_open(&b->machine, base, MACHINE_KNOWN, e));
    return store_open(&b->store, path, STORE_WRITE, e);
}

static int bench_train(struct call *c, const struct knobs *base, const struct haggle_bench *o,
                       struct err *e) {
    struct grid grid;
    struct bench b = {.grid = &grid,
                      .rounds = o->rounds > 0 ? o->rounds : ROUNDS_DEFAULT,
                      .steps = o->steps > 0 ? o->steps : STEPS_DEFAULT,
                      .warmup = o->warmup >= 0 ? o->warmup : WARMUP_DEFAULT};
    uint64_t begin_ns = clock_ns();
    int rc = grid_read(&grid, o->grid, o->n_grid, e);
    if (rc == 0)
        rc = bench_open(&b, base, e);
    if (rc == 0 && o->store)
        rc = open_store(&b, base, o->store, e);
    if (rc == 0) {
        char name[GRID_NAME_BYTES];
        log_put(&c->log, LOG_INFO,
                "%zu configuration%s, %d round%s of %lld steps after %lld of warm-up%s%s", grid.n,
                grid.n == 1 ? "" : "s", b.rounds, b.rounds == 1 ? "" : "s", (long long)b.steps,
                (long long)b.warmup, grid.n == 1 ? ": " : "",
                grid.n == 1 ? grid_name(&grid, 0, name) : "");
        rc = bench_measure(&b, c, e);
    }
    // What was measured before a stop request is a result too.
    if (rc == 0 || rc == ERR_STOPPED) {
        struct err late = {0};
        double seconds = 1e-9 * (double)(clock_ns() - begin_ns);
        int printed = report(&b, base, o->format, seconds, c, &late);
        if (rc == 0 && printed != 0) {
            rc = printed;
            if (e)
                *e = late;
        }
    }
    if (rc == 0 && b.unrecorded.code != 0) {
        rc = b.unrecorded.code;
        if (e)
            *e = b.unrecorded;
    }
    store_close(b.store);
    bench_close(&b);
    grid_free(&grid);
    return rc;
}

int haggle_bench_train(const struct haggle_config *config, const struct haggle_bench *bench,
                       const struct haggle_sink *sink, struct haggle_error *e) {
    struct call c;
    call_begin(&c, sink);
    return call_end(&c, bench_train(&c, &config->knobs, bench, &c.err), e);
}
