// summary.c - see summary.h.
#include "report/summary.h"

#include "base/text.h"
#include "report/ranks_print.h"
#include "report/requests_print.h"
#include "report/table.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static const char *end_name(enum train_end end) {
    return end == TRAIN_DONE       ? "done"
           : end == TRAIN_TIME     ? "time"
           : end == TRAIN_STOPPED  ? "stopped"
           : end == TRAIN_PATIENCE ? "patience"
           : end == TRAIN_DIVERGED ? "diverged"
                                   : "failed";
}

// ---------------------------------------------------------------- for people

// Batch times of the last validation, and the total time of all validations.
static void print_validation(const struct summary *s, FILE *f) {
    const struct train_eval *v = &s->result.eval;
    char p50[QUANTILE_TEXT_BYTES], p99[QUANTILE_TEXT_BYTES], all[TEXT_UNIT_BYTES];
    fprintf(f, "validated %s per batch\n          %s; %d validation%s took %s\n",
            quantile_text(p50, &v->batch_p50), quantile_text(p99, &v->batch_p99), s->validations,
            s->validations == 1 ? "" : "s", text_duration(all, 1e-9 * (double)s->result.eval_ns));
}

static void print_loss(const struct summary *s, FILE *f) {
    const struct train_result *r = &s->result;
    const char *why = r->end == TRAIN_TIME       ? "; out of time, the same command goes on"
                      : r->end == TRAIN_STOPPED  ? "; stopped on request"
                      : r->end == TRAIN_PATIENCE ? "; no better validation (stop.patience)"
                      : r->end == TRAIN_DIVERGED ? "; diverged"
                      : r->end == TRAIN_FAILED   ? "; failed"
                                                 : "";
    fprintf(f, "trained   %" PRId64 " step%s, to step %" PRId64 " of %" PRId64, r->steps_run,
            r->steps_run == 1 ? "" : "s", r->state.step, s->knobs->steps);
    if (isfinite(r->epoch))
        fprintf(f, ", %.3g passes over the data (epochs)", r->epoch);
    fprintf(f, "%s\n", why);
    if (r->steps_run > 0)
        fprintf(f, "loss      %.4f -> %.4f", r->metrics.loss_first, r->metrics.loss_last);
    if (r->eval.batches > 0)
        fprintf(f, "%s", r->steps_run > 0 ? ", validation" : "validation");
    if (r->eval.batches > 0 && s->validations > 1)
        fprintf(f, " %.4f ->", s->validation_first);
    if (r->eval.batches > 0)
        fprintf(f, " %.4f", r->eval.loss);
    if (r->steps_run > 0 || r->eval.batches > 0)
        fprintf(f, "\n");
    if (r->eval.batches > 0)
        print_validation(s, f);
    if (r->state.best.step > 0)
        fprintf(f, "best      validation %.4f, of step %" PRId64 "%s\n", r->state.best.loss,
                r->state.best.step,
                r->best[0] ? "; 'haggle export' and 'haggle generate' take it with --best" : "");
    if (r->state.skipped_steps > 0)
        fprintf(f, "skipped   %" PRId64 " step%s whose gradients were not finite; loss scale %g\n",
                r->state.skipped_steps, r->state.skipped_steps == 1 ? "" : "s",
                r->state.scale.value);
}

enum { STEPS_TEXT_BYTES = 64 };
// "steps 4 to 40": those that figures are about, counted from 1.
static void measured_text(char out[STEPS_TEXT_BYTES], const struct train_result *r) {
    const int64_t last = r->first_step + r->steps_run, first = r->first_step + r->warmup_steps + 1;
    if (first == last)
        snprintf(out, STEPS_TEXT_BYTES, "step %" PRId64, last);
    else
        snprintf(out, STEPS_TEXT_BYTES, "steps %" PRId64 " to %" PRId64, first, last);
}

static void print_speed(const struct summary *s, FILE *f) {
    const struct run_metrics *m = &s->result.metrics;
    char text[QUANTILE_TEXT_BYTES], a[TEXT_UNIT_BYTES], b[TEXT_UNIT_BYTES];
    char over[STEPS_TEXT_BYTES];
    measured_text(over, &s->result);
    fprintf(f, "speed     %.0f tokens/s computed, %.0f trained, over %s", m->tokens_per_s,
            m->trained_tokens_per_s, over);
    if (s->result.warmup_steps > 0)
        fprintf(f, " (the first %" PRId64 " left out)", s->result.warmup_steps);
    if (m->real_tokens < m->tokens)
        fprintf(
            f,
            "\n          %.1f %% of the computed tokens are padding: the rest of a sequence that "
            "no document fills",
            100 * (1 - (double)m->real_tokens / (double)m->tokens));
    fprintf(f, "\nstep      percentiles over ");
    if (m->step_p50.n < m->steps) // a very long run keeps the newest steps
        fprintf(f, "the last %zu of ", m->step_p50.n);
    fprintf(f, "%s\n", over);
    fprintf(f, "          %s\n", quantile_text(text, &m->step_p50));
    fprintf(f, "          %s\n", quantile_text(text, &m->step_p95));
    fprintf(f, "          %s\n", quantile_text(text, &m->step_p99));
    if (s->predicted_step_s > 0)
        fprintf(f, "          predicted %s, measured %s\n", text_duration(a, s->predicted_step_s),
                text_duration(b, 1e-9 * m->step_p50.value));
    fprintf(f, "latency   %.2f ms for a sample: its micro-batch's time (at %.0f tokens/s)\n",
            m->ms_per_sample, m->tokens_per_s);
}

static void print_split(const struct summary *s, FILE *f) {
    const struct run_metrics *m = &s->result.metrics;
    fprintf(f, "busy      %.1f %% of the time:", 100 * m->utilization);
    for (int i = 0; i < TIME_COUNT; i++)
        if (m->split.ns[i] > 0)
            fprintf(f, " %s %.1f %%", time_part_name((enum time_part)i),
                    100 * (double)m->split.ns[i] / (double)m->split.wall_ns);
    if (!isnan(m->mfu))
        fprintf(f, "; MFU %.1f %% of %.0f GFLOP/s %s", 100 * m->mfu, 1e-9 * s->machine.peak_flops,
                s->machine.peak_is);
    else if (s->past_roof)
        fprintf(f, "; MFU is not known: the run was faster than the measured rate of this machine; "
                   "'haggle doctor --fresh' measures it again");
    else if (s->result.on_device)
        fprintf(f, "; MFU is not measured after runs this short");
    else
        fprintf(f, "; MFU is not known: run 'haggle doctor' to measure this machine");
    fprintf(f, "\nverdict   %s\n", s->verdict.text);
}

// Only for data.ram or data.source_rate.
static void print_data(const struct summary *s, FILE *f) {
    const struct run_metrics *m = &s->result.metrics;
    const struct data_use *d = &m->data;
    char a[TEXT_UNIT_BYTES], b[TEXT_UNIT_BYTES];
    if (s->knobs->data_ram == 0 && s->knobs->data_source_rate == 0)
        return;
    fprintf(f, "data      %s from the source", text_bytes(a, d->source_bytes));
    if (m->wall_s > 0)
        fprintf(f, " (%s/s)", text_bytes(b, (uint64_t)((double)d->source_bytes / m->wall_s)));
    if (s->knobs->data_ram > 0)
        fprintf(f,
                "; %" PRIu64 " of %" PRIu64 " sequences from memory, which has room for %" PRIu64,
                d->cache_hits, d->cache_hits + d->cache_misses, d->cache_windows);
    fprintf(f, "\n");
}

static void print_memory(const struct summary *s, FILE *f) {
    const struct run_metrics *m = &s->result.metrics;
    char a[TEXT_UNIT_BYTES], b[TEXT_UNIT_BYTES];
    if (s->result.on_device) { // the arena is on the device, the process on the host
        char c[TEXT_UNIT_BYTES];
        fprintf(
            f, "memory    on the device: predicted %s, measured %s; the process on the host %s\n",
            text_bytes(a, m->memory_predicted_bytes),
            m->memory_measured_bytes ? text_bytes(b, m->memory_measured_bytes) : "unknown",
            s->result.process_peak_bytes ? text_bytes(c, s->result.process_peak_bytes) : "unknown");
        return;
    }
    fprintf(f, "memory    predicted %s, measured %s", text_bytes(a, m->memory_predicted_bytes),
            m->memory_measured_bytes ? text_bytes(b, m->memory_measured_bytes) : "unknown");
    if (m->memory_measured_bytes && m->memory_predicted_bytes)
        fprintf(f, " (%+.1f %%)",
                100 * ((double)m->memory_measured_bytes / (double)m->memory_predicted_bytes - 1));
    fprintf(f, "\n");
}

static void print_energy(const struct summary *s, FILE *f) {
    char text[METRICS_ENERGY_BYTES];
    fprintf(f, "energy    %s\n", metrics_energy_text(text, &s->result.metrics));
}

static void print_noise(const struct summary *s, FILE *f) {
    char text[NOISE_TEXT_BYTES];
    if (s->result.noise.n > 0)
        fprintf(f, "noise     gradient noise scale %s\n", noise_text(text, &s->result.noise));
}

void summary_print(const struct summary *s, FILE *f) {
    const struct train_result *r = &s->result;
    print_loss(s, f);
    if (r->metrics.steps > 0) {
        print_speed(s, f);
        requests_print_result(&s->result.guests, s->knobs, f);
        print_split(s, f);
        ranks_print_result(f, s->knobs, r);
        print_data(s, f);
        print_memory(s, f);
        print_energy(s, f);
        print_noise(s, f);
    }
    if (r->checkpoint[0])
        fprintf(f, "saved     %s\n", r->checkpoint);
    fprintf(f, "log       %s/log.jsonl\n", s->knobs->run_dir);
}

// ---------------------------------------------------------------- for programs

static void put_validation(const struct summary *s, struct json_writer *w) {
    const struct train_eval *v = &s->result.eval;
    if (!table_member_object(w, "validation", v->batches > 0))
        return;
    json_member_double(w, "loss", v->loss);
    json_member_double(w, "loss_first", s->validation_first);
    json_member_i64(w, "step", v->step);
    json_member_i64(w, "validations", s->validations);
    json_member_i64(w, "batches", v->batches); // the last one's, as all up to trained_tokens
    json_member_double(w, "batch_ms_p50", v->batch_p50.value / 1e6);
    json_member_double(w, "batch_ms_p99", v->batch_p99.value / 1e6);
    json_member_double(w, "batch_ms_p99_upper95", v->batch_p99.upper95 / 1e6);
    json_member_double(w, "seconds", (double)v->total_ns / 1e9);
    json_member_double(w, "data_seconds", (double)v->data_ns / 1e9);
    json_member_i64(w, "tokens", v->tokens);
    json_member_i64(w, "trained_tokens", v->trained_tokens);
    json_member_double(w, "all_seconds", (double)s->result.eval_ns / 1e9);
    json_put_object_end(w);
}

static void put_run(const struct summary *s, struct json_writer *w) {
    const struct train_result *r = &s->result;
    json_member_object(w, "run");
    json_member_string(w, "dir", s->knobs->run_dir);
    json_member_string(w, "end", end_name(r->end));
    json_member_i64(w, "first_step", r->first_step);
    json_member_i64(w, "steps_run", r->steps_run);
    json_member_i64(w, "step", r->state.step);
    json_member_i64(w, "steps", s->knobs->steps);
    json_member_double(w, "epoch", r->epoch); // passes over the data; null: it never repeats
    json_member_i64(w, "warmup_steps", r->warmup_steps);
    // Those that tokens/s, percentiles and the rest are about.
    const bool measured = r->metrics.steps > 0;
    json_member_double(w, "measured_first_step",
                       measured ? (double)(r->first_step + r->warmup_steps + 1) : NAN);
    json_member_double(w, "measured_last_step",
                       measured ? (double)(r->first_step + r->steps_run) : NAN);
    json_member_i64(w, "skipped_steps", r->state.skipped_steps);
    json_member_double(w, "loss_scale", r->state.scale.value);
    json_member_i64(w, "trained_tokens", (int64_t)r->state.trained_tokens);
    json_member_i64(w, "source_bytes", (int64_t)r->data.source_bytes); // includes warm-up
    json_member_double(w, "validation_loss", r->eval.batches > 0 ? r->eval.loss : NAN);
    json_member_double(w, "wall_s", (double)r->wall_ns / 1e9);
    json_member_double(w, "eval_s", (double)r->eval_ns / 1e9);
    json_member_double(w, "save_s", (double)r->save_ns / 1e9);
    json_member_double(w, "predicted_step_ms",
                       s->predicted_step_s > 0 ? 1e3 * s->predicted_step_s : NAN);
    json_member_double(w, "step_flops", s->step_flops.model);
    json_member_bool(w, "on_device", r->on_device); // if true, memory is the device's
    apart_put_member(&r->cpus, w);
    json_member_double(w, "process_peak_bytes",
                       r->process_peak_bytes ? (double)r->process_peak_bytes : NAN);
    json_member_string(w, "checkpoint", r->checkpoint[0] ? r->checkpoint : NULL);
    json_put_object_end(w);
}

static void put_best(const struct summary *s, struct json_writer *w) {
    const struct best_eval *b = &s->result.state.best;
    if (!table_member_object(w, "best", b->step > 0))
        return;
    json_member_double(w, "validation_loss", b->loss);
    json_member_i64(w, "step", b->step);
    json_member_i64(w, "validations_since", b->waited);
    json_member_string(w, "checkpoint", s->result.best[0] ? s->result.best : NULL);
    json_put_object_end(w);
}

static void put_noise(const struct summary *s, struct json_writer *w) {
    if (!table_member_object(w, "noise_scale", s->result.noise.n > 0))
        return;
    noise_put_members(&s->result.noise, w);
    json_put_object_end(w);
}

void summary_put_json(const struct summary *s, struct json_writer *w) {
    machine_put_json(&s->machine, w);
    put_run(s, w);
    put_validation(s, w);
    put_best(s, w);
    metrics_put_members(&s->result.metrics, w);
    put_noise(s, w);
    ranks_put_result_json(s->knobs, &s->result, w);
    json_member_object(w, "verdict");
    json_member_string(w, "text", s->verdict.text);
    json_member_string(w, "bound", s->verdict.bound);
    json_member_string(w, "knob", s->verdict.knob);
    json_put_object_end(w);
}
