// metrics.c - computes the numbers of a run from samples, trace and counters, and writes them as
// JSON.
#include "measure/metrics.h"

#include <math.h>
#include <stdio.h>

static double per(double amount, double of) {
    return of > 0 ? amount / of : NAN;
}

void metrics_compute(struct run_metrics *out, const struct metrics_input *in) {
    static const double P[3] = {0.50, 0.95, 0.99};
    struct quantile q[3];
    samples_quantiles(in->step_ns, 0, P, 3, q);
    *out = (struct run_metrics){
        .steps = in->step_ns->seen,
        .tokens = in->tokens,
        .real_tokens = in->real_tokens,
        .trained_tokens = in->trained_tokens,
        .wall_s = (double)in->wall_ns / 1e9,
        .step_p50 = q[0],
        .step_p95 = q[1],
        .step_p99 = q[2],
        .data = in->data,
        .energy = in->energy,
        .loss_first = NAN,
        .loss_last = NAN,
        .mfu = NAN,
        .hfu = NAN,
    };
    out->tokens_per_s = per((double)in->tokens, out->wall_s);
    out->real_tokens_per_s = per((double)in->real_tokens, out->wall_s);
    out->trained_tokens_per_s = per((double)in->trained_tokens, out->wall_s);
    out->joules_per_token = energy_per(&in->energy, (double)in->tokens);
    out->joules_per_trained_token = energy_per(&in->energy, (double)in->trained_tokens);
    out->watts = energy_per(&in->energy, out->wall_s);
    out->ms_per_sample =
        per(q[0].value / 1e6 * (double)in->batch_micro, (double)in->samples_per_step);
    if (in->trace != NULL)
        trace_split(in->trace, &out->split);
    out->utilization = per((double)out->split.busy_ns, (double)out->split.wall_ns);
    double peak_flops = in->peak_flops_per_s * out->wall_s;
    if (in->model_flops_per_step > 0)
        out->mfu = per(in->model_flops_per_step * (double)out->steps, peak_flops);
    if (in->hardware_flops_per_step > 0)
        out->hfu = per(in->hardware_flops_per_step * (double)out->steps, peak_flops);
}

const char *metrics_energy_text(char out[METRICS_ENERGY_BYTES], const struct run_metrics *m) {
    const struct energy_use *e = &m->energy;
    char clock[64] = "";
    if (e->clock_mhz > 0)
        snprintf(clock, sizeof clock, ", at %.0f of %.0f MHz", e->clock_mhz, e->clock_most_mhz);
    if (isnan(m->joules_per_token) && e->meter[0])
        snprintf(out, METRICS_ENERGY_BYTES, "%s: too few steps, the meter has not moved", e->meter);
    else if (isnan(m->joules_per_token))
        snprintf(out, METRICS_ENERGY_BYTES, "no meter: %s", e->why);
    else
        snprintf(out, METRICS_ENERGY_BYTES,
                 "%.4g J/token, %.4g per trained token, %.4g W%s by %s%s%s", m->joules_per_token,
                 m->joules_per_trained_token, m->watts, clock, e->meter, e->why[0] ? "; " : "",
                 e->why);
    return out;
}

void data_use_add(struct data_use *sum, const struct data_use *more) {
    sum->source_bytes += more->source_bytes;
    sum->cache_hits += more->cache_hits;
    sum->cache_misses += more->cache_misses;
    sum->make_ns += more->make_ns;
    sum->source_wait_ns += more->source_wait_ns;
    sum->windows = more->windows;
    sum->cache_windows = more->cache_windows;
}

void metrics_add_class(struct run_metrics *m, const char *name, uint64_t bytes) {
    if (m->n_memory < METRICS_MAX_CLASSES)
        m->memory[m->n_memory++] = (struct metrics_class){name, bytes};
}

// 0 means "not known".
static void member_or_null(struct json_writer *w, const char *key, uint64_t value) {
    json_put_key(w, key);
    if (value == 0)
        json_put_null(w);
    else
        json_put_i64(w, (int64_t)value);
}

static void put_step_ms(struct json_writer *w, const struct run_metrics *m) {
    json_member_object(w, "step_ms");
    json_member_double(w, "p50", m->step_p50.value / 1e6);
    json_member_double(w, "p95", m->step_p95.value / 1e6);
    json_member_double(w, "p99", m->step_p99.value / 1e6);
    json_member_i64(w, "n", (int64_t)m->step_p50.n);
    json_member_double(w, "p50_upper95", m->step_p50.upper95 / 1e6);
    json_member_double(w, "p95_upper95", m->step_p95.upper95 / 1e6);
    json_member_double(w, "p99_upper95", m->step_p99.upper95 / 1e6);
    json_put_object_end(w);
}

static void put_split(struct json_writer *w, const struct time_split *s) {
    const double wall_ns = (double)s->wall_ns;
    json_member_object(w, "time_split"); // fractions of the wall time; their sum is 1
    for (int i = 0; i < TIME_COUNT; i++)
        json_member_double(w, time_part_name((enum time_part)i), per((double)s->ns[i], wall_ns));
    json_put_object_end(w);
    json_member_object(w, "time_split_ms"); // per step
    for (int i = 0; i < TIME_COUNT; i++)
        json_member_double(w, time_part_name((enum time_part)i),
                           per((double)s->ns[i] / 1e6, (double)s->steps));
    json_member_double(w, "wall", per(wall_ns / 1e6, (double)s->steps));
    json_put_object_end(w);
}

static void put_data(struct json_writer *w, const struct run_metrics *m) {
    const struct data_use *d = &m->data;
    json_member_object(w, "data"); // of the measured steps
    json_member_i64(w, "source_bytes", (int64_t)d->source_bytes);
    json_member_double(w, "source_bytes_per_s", per((double)d->source_bytes, m->wall_s));
    json_member_i64(w, "cache_hits", (int64_t)d->cache_hits); // counted in windows
    json_member_i64(w, "cache_misses", (int64_t)d->cache_misses);
    json_member_i64(w, "cache_windows", (int64_t)d->cache_windows);
    member_or_null(w, "windows", d->windows); // of an epoch
    json_member_double(w, "make_ms", per((double)d->make_ns / 1e6, (double)m->steps)); // per step
    json_member_double(w, "source_wait_ms", per((double)d->source_wait_ns / 1e6, (double)m->steps));
    json_put_object_end(w);
}

// Unknown values are null. `why` says why, or what the meter does not see.
static void put_energy(struct json_writer *w, const struct run_metrics *m) {
    const struct energy_use *e = &m->energy;
    json_member_object(w, "energy"); // of the measured steps
    json_member_string(w, "meter", e->meter[0] ? e->meter : NULL);
    json_member_string(w, "why", e->why[0] ? e->why : NULL);
    json_member_double(w, "joules", energy_per(e, 1));
    json_member_double(w, "joules_per_token", m->joules_per_token);
    json_member_double(w, "joules_per_trained_token", m->joules_per_trained_token);
    json_member_double(w, "watts", m->watts);
    json_member_double(w, "clock_mhz", e->clock_mhz > 0 ? e->clock_mhz : NAN);
    json_member_double(w, "clock_most_mhz", e->clock_most_mhz > 0 ? e->clock_most_mhz : NAN);
    json_put_object_end(w);
}

void metrics_put_members(const struct run_metrics *m, struct json_writer *w) {
    json_member_i64(w, "steps", (int64_t)m->steps);
    json_member_double(w, "wall_s", m->wall_s);
    json_member_i64(w, "tokens", (int64_t)m->tokens);
    json_member_i64(w, "real_tokens", (int64_t)m->real_tokens);
    json_member_i64(w, "trained_tokens", (int64_t)m->trained_tokens);
    json_member_double(w, "tokens_per_s", m->tokens_per_s);
    json_member_double(w, "real_tokens_per_s", m->real_tokens_per_s);
    json_member_double(w, "trained_tokens_per_s", m->trained_tokens_per_s);
    put_step_ms(w, m);
    json_member_double(w, "ms_per_sample", m->ms_per_sample);
    json_member_double(w, "utilization", m->utilization);
    put_split(w, &m->split);

    put_data(w, m);
    json_member_object(w, "memory");
    member_or_null(w, "predicted_bytes", m->memory_predicted_bytes);
    member_or_null(w, "measured_bytes", m->memory_measured_bytes);
    json_member_object(w, "by_class");
    for (int i = 0; i < m->n_memory; i++)
        json_member_i64(w, m->memory[i].name, (int64_t)m->memory[i].bytes);
    json_put_object_end(w);
    json_put_object_end(w);

    json_member_object(w, "loss");
    json_member_double(w, "first", m->loss_first);
    json_member_double(w, "last", m->loss_last);
    json_put_object_end(w);
    json_member_double(w, "mfu", m->mfu);
    json_member_double(w, "hfu", m->hfu);
    json_member_string(w, "mfu_formula",
                       "model FLOPs per step (forward + backward; mfu without recompute, hfu with "
                       "it) x steps / wall time / peak");
    put_energy(w, m);
}
