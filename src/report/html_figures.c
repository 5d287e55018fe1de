// html_figures.c - see html_figures.h.
#include "report/html_figures.h"

#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <time.h>

// ---------------------------------------------------------------- values

// Defines the function NAME_of, which reads one figure of the run `r`.
#define VALUE_OF(name, value)                                                                      \
    static double name##_of(const struct run_read *r) {                                            \
        return value;                                                                              \
    }
VALUE_OF(steps, (double)r->log.steps)
VALUE_OF(loss, r->log.smooth_last)
VALUE_OF(eval, r->log.eval_last)
// Without a result: the running rate of the log's last line, which is the same rate.
VALUE_OF(rate, r->result.is_there ? r->result.tokens_per_s : r->log.tokens_per_s_last)
VALUE_OF(trained_rate, r->result.trained_tokens_per_s)
VALUE_OF(sample, r->result.ms_per_sample)
VALUE_OF(p50, r->log.p50.value / 1e6)
VALUE_OF(p95, r->log.p95.value / 1e6)
VALUE_OF(p99, r->log.p99.value / 1e6)
VALUE_OF(predicted, r->result.predicted_step_ms)
VALUE_OF(utilization, r->result.utilization)
VALUE_OF(wait, r->log.step_ms > 0 ? r->log.wait_ms / r->log.step_ms : NAN)
VALUE_OF(mfu, r->result.mfu)
VALUE_OF(hfu, r->result.hfu)
VALUE_OF(memory_predicted,
         r->result.is_there ? r->result.memory_predicted : r->log.memory_predicted)
VALUE_OF(memory_measured, r->result.memory_measured)
VALUE_OF(skipped, (double)r->log.skipped.n)
VALUE_OF(wall, r->log.time_last - r->log.time_first)

// ---------------------------------------------------------------- notes

static const char *note_steps(char out[FIGURE_TEXT_BYTES], const struct run_read *r) {
    const struct run_log *g = &r->log;
    if (g->steps == 0)
        return "";
    snprintf(out, FIGURE_TEXT_BYTES, "%lld to %lld of %lld%s", (long long)g->first_step,
             (long long)g->last_step, (long long)g->steps_planned,
             g->processes > 1 ? ", resumed" : "");
    return out;
}

static const char *note_loss(char out[FIGURE_TEXT_BYTES], const struct run_read *r) {
    const struct run_log *g = &r->log;
    if (isnan(g->loss_last))
        return "";
    snprintf(out, FIGURE_TEXT_BYTES, "smoothed over ±%lld step%s; first %.4f, last %.4f",
             (long long)g->smooth_steps, g->smooth_steps == 1 ? "" : "s", g->loss_first,
             g->loss_last);
    return out;
}

static const char *note_eval(char out[FIGURE_TEXT_BYTES], const struct run_read *r) {
    const struct run_log *g = &r->log;
    if (g->evals == 0)
        return "";
    snprintf(out, FIGURE_TEXT_BYTES, "the last of %llu; best %.4f at step %lld",
             (unsigned long long)g->evals, g->eval_best, (long long)g->eval_best_step);
    return out;
}

const char *figure_steps(char out[FIGURE_TEXT_BYTES], const struct run_log *g) {
    const bool once = g->processes <= 1; // else every process has a warm-up of its own
    const long long first = (long long)g->first_step + (once ? (long long)g->warmup : 0);
    size_t at = (size_t)snprintf(out, FIGURE_TEXT_BYTES, "over steps %lld to %lld", first,
                                 (long long)g->last_step);
    if (!once && g->warmup > 0)
        snprintf(out + at, FIGURE_TEXT_BYTES - at, " without %llu of warm-up",
                 (unsigned long long)g->warmup);
    return out;
}

static const char *note_quantile(char out[FIGURE_TEXT_BYTES], const struct run_log *g,
                                 const struct quantile *q) {
    char bound[TEXT_UNIT_BYTES], over[FIGURE_TEXT_BYTES];
    if (q->n == 0)
        return "";
    figure_steps(over, g);
    if (isnan(q->upper95))
        snprintf(out, FIGURE_TEXT_BYTES, "%.80s, n=%zu, no 95 %% bound; need %zu", over, q->n,
                 q->n_needed);
    else
        snprintf(out, FIGURE_TEXT_BYTES, "%.80s, n=%zu, at most %s with 95 %% confidence", over,
                 q->n, text_duration(bound, 1e-9 * q->upper95));
    return out;
}
static const char *note_p50(char out[FIGURE_TEXT_BYTES], const struct run_read *r) {
    return note_quantile(out, &r->log, &r->log.p50);
}
static const char *note_p95(char out[FIGURE_TEXT_BYTES], const struct run_read *r) {
    return note_quantile(out, &r->log, &r->log.p95);
}
static const char *note_p99(char out[FIGURE_TEXT_BYTES], const struct run_read *r) {
    return note_quantile(out, &r->log, &r->log.p99);
}

static const char *note_sample(char out[FIGURE_TEXT_BYTES], const struct run_read *r) {
    if (!(r->result.ms_per_sample > 0 && r->result.tokens_per_s > 0))
        return "";
    snprintf(out, FIGURE_TEXT_BYTES, "its micro-batch's time, at %.0f tokens/s",
             r->result.tokens_per_s);
    return out;
}

static const char *note_predicted(char out[FIGURE_TEXT_BYTES], const struct run_read *r) {
    double ratio = 1e-6 * r->log.p50.value / r->result.predicted_step_ms;
    if (!(ratio > 0 && ratio < 1e6))
        return "";
    snprintf(out, FIGURE_TEXT_BYTES, "the median step takes %.2f times this", ratio);
    return out;
}

static const char *note_measured(char out[FIGURE_TEXT_BYTES], const struct run_read *r) {
    double more = r->result.memory_measured / r->result.memory_predicted - 1;
    if (!(fabs(more) < 1e6))
        return "";
    snprintf(out, FIGURE_TEXT_BYTES, "%+.1f %% against the prediction%s", 100 * more,
             r->result.on_device ? "; on the device" : "");
    return out;
}

// ---------------------------------------------------------------- the table

// clang-format off
static const struct figure figures[] = {
    {"steps", "steps", FIGURE_COUNT, steps_of, note_steps, .brief = true, .plain = "steps"},
    {"loss", "training loss", FIGURE_LOSS, loss_of, note_loss, .brief = true, .plain = "training loss"},
    {"validation_loss", "validation loss", FIGURE_LOSS, eval_of, note_eval, .brief = true,
     .plain = "validation loss"},
    {"tokens_per_s", "tokens/s", FIGURE_RATE, rate_of, NULL, .brief = true, .relative = true,
     .plain = "tokens per second"},
    {"trained_tokens_per_s", "trained tokens/s", FIGURE_RATE, trained_rate_of, NULL, .relative = true,
     .plain = "trained tokens per second", .twin = "tokens_per_s", .both = "tokens per second, all trained"},
    {"ms_per_sample", "latency of a sample", FIGURE_MS, sample_of, note_sample, .relative = true,
     .plain = "latency of a sample", .twin = "step_ms_p50", .both = "median step (p50), also the latency of a sample"},
    {"step_ms_p50", "step p50", FIGURE_MS, p50_of, note_p50, .brief = true, .relative = true,
     .plain = "median step (p50)"},
    {"step_ms_p95", "step p95", FIGURE_MS, p95_of, note_p95, .brief = true, .relative = true,
     .plain = "95 of 100 steps take at most (p95)"},
    {"step_ms_p99", "step p99", FIGURE_MS, p99_of, note_p99, .brief = true, .relative = true,
     .plain = "99 of 100 steps take at most (p99)"},
    {"predicted_step_ms", "step predicted", FIGURE_MS, predicted_of, note_predicted, .relative = true,
     .plain = "median step as predicted"},
    {"utilization", "utilization", FIGURE_PERCENT, utilization_of, NULL, .brief = true,
     .plain = "time spent computing"},
    {"data_wait", "data wait", FIGURE_PERCENT, wait_of, NULL, .plain = "time spent waiting for data"},
    {"mfu", "MFU", FIGURE_PERCENT, mfu_of, NULL, .brief = true, .plain = "share of the peak rate (MFU)"},
    {"hfu", "HFU", FIGURE_PERCENT, hfu_of, NULL, .plain = "the same with recomputation (HFU)",
     .twin = "mfu", .both = "share of the peak rate (MFU, HFU)"},
    {"memory_predicted_bytes", "memory predicted", FIGURE_BYTES, memory_predicted_of, NULL,
     .brief = true, .relative = true, .plain = "memory as predicted"},
    {"memory_measured_bytes", "memory measured", FIGURE_BYTES, memory_measured_of, note_measured,
     .brief = true, .relative = true, .plain = "memory as measured"},
    {"skipped_steps", "skipped steps", FIGURE_COUNT, skipped_of, NULL, .plain = "skipped steps"},
    {"wall_s", "from first to last record", FIGURE_SECONDS, wall_of, NULL,
     .plain = "from first to last log line"},
};
// clang-format on

size_t figure_count(void) {
    return sizeof figures / sizeof *figures;
}

const struct figure *figure_at(size_t i) {
    return &figures[i];
}

const char *figure_text(char out[FIGURE_TEXT_BYTES], const struct figure *g, double value) {
    char unit[TEXT_UNIT_BYTES];
    if (!(fabs(value) < 1e18))
        snprintf(out, FIGURE_TEXT_BYTES, "not known");
    else if (g->kind == FIGURE_COUNT || g->kind == FIGURE_RATE)
        snprintf(out, FIGURE_TEXT_BYTES, "%.0f", value);
    else if (g->kind == FIGURE_LOSS)
        snprintf(out, FIGURE_TEXT_BYTES, fabs(value) < 1e4 ? "%.4f" : "%.4g", value);
    else if (g->kind == FIGURE_PERCENT)
        snprintf(out, FIGURE_TEXT_BYTES, "%.1f %%", 100 * value);
    else if (g->kind == FIGURE_BYTES)
        snprintf(out, FIGURE_TEXT_BYTES, "%s", text_bytes(unit, (uint64_t)value));
    else
        snprintf(out, FIGURE_TEXT_BYTES, "%s",
                 text_duration(unit, g->kind == FIGURE_MS ? 1e-3 * value : value));
    return out;
}

const char *figure_ratio(char out[FIGURE_TEXT_BYTES], const struct figure *g, double value,
                         double first) {
    double more = value / first - 1;
    out[0] = '\0';
    if (g->relative && first > 0 && value >= 0 && more < 1e6)
        snprintf(out, FIGURE_TEXT_BYTES, "%+.1f %%", 100 * more);
    return out;
}

const char *figure_compare(char out[RUN_SENTENCE_BYTES], const struct run_read *a,
                           const struct run_read *b) {
    const struct spread *x = &a->log.spread, *y = &b->log.spread;
    double more = y->median / x->median - 1;
    enum comparison c = sample_compare(y, x);
    if (c == COMPARE_UNKNOWN)
        snprintf(out, RUN_SENTENCE_BYTES, "%.150s and %.150s: too few steps to compare step times.",
                 a->name, b->name);
    else if (c == COMPARE_SAME)
        snprintf(out, RUN_SENTENCE_BYTES,
                 "%.150s and %.150s: the median step times cannot be told apart; their 95 %% "
                 "intervals overlap.",
                 a->name, b->name);
    else if (more > 1)
        snprintf(
            out, RUN_SENTENCE_BYTES,
            "The median step of %.150s takes %.2f times that of %.150s; the 95 %% intervals of "
            "the medians do not overlap.",
            b->name, 1 + more, a->name);
    else
        snprintf(out, RUN_SENTENCE_BYTES,
                 "The median step of %.150s takes %.1f %% %s than that of %.150s; the 95 %% "
                 "intervals of the medians do not overlap.",
                 b->name, 100 * fabs(more), c == COMPARE_LOWER ? "less" : "more", a->name);
    return out;
}

const char *figure_time(char out[FIGURE_TEXT_BYTES], double seconds) {
    struct tm tm;
    time_t t = seconds > 0 && seconds < 1e11 ? (time_t)seconds : 0;
    if (t == 0 || !gmtime_r(&t, &tm) ||
        !strftime(out, FIGURE_TEXT_BYTES, "%Y-%m-%d %H:%M UTC", &tm))
        snprintf(out, FIGURE_TEXT_BYTES, "not known");
    return out;
}
