// tradeoffs_print.c - the table of strategies as Markdown, CSV, JSON and JSON lines.
#include "api/tradeoffs.h"

#include "base/text.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { CELL = 64 };

static const char *agreement_name(enum agreement a) {
    return a == RULE_HOLDS     ? "holds"
           : a == RULE_DIFFERS ? "differs"
           : a == RULE_UNSEEN  ? "not measurable"
                               : "";
}

// "0.93 ±0.02": the larger distance of a round from the median.
static const char *ratio_text(char out[CELL], const struct ratio *r) {
    if (isnan(r->median))
        snprintf(out, CELL, "-");
    else
        snprintf(out, CELL, "%.2f ±%.2f", r->median, fmax(r->high - r->median, r->median - r->low));
    return out;
}

static const char *plain_ratio(char out[CELL], double x) {
    if (isnan(x))
        snprintf(out, CELL, "-");
    else
        snprintf(out, CELL, "%.2f", x);
    return out;
}

// Numbers that repeat to the bit are the same; others differ by rounding, or truly.
static const char *loss_text(char out[CELL], const struct finding *f) {
    if (f->other_batch)
        snprintf(out, CELL, "other batch");
    else if (isnan(f->loss))
        snprintf(out, CELL, "-");
    else if (f->loss == 0)
        snprintf(out, CELL, "same bits");
    else
        snprintf(out, CELL, "%+.1e", f->loss);
    return out;
}

// ---------------------------------------------------------------- Markdown

static void print_head(const struct tradeoffs *t, const struct knobs *base, FILE *f) {
    const struct bench_row *b = &t->bench.rows[0];
    char bytes[TEXT_UNIT_BYTES];
    fprintf(f,
            "Baseline: model %s, batch.micro %" PRId64 " x batch.accum %" PRId64 " x seq %" PRId64
            " tokens, precision %s, %d thread%s, on %s.\n",
            base->model, base->batch_micro, base->batch_accum, base->seq,
            knob_choice(KNOB_precision, (int)base->precision), machine_threads(base),
            machine_threads(base) == 1 ? "" : "s", t->bench.machine.hw.cpu);
    if (b->n_rounds > 0)
        fprintf(f,
                "It makes %.0f tokens/s, steps of %.2f ms (p50) and %.2f ms (p99%s), %.2f "
                "ms/sample, takes %s, and its loss is %.4f after %lld steps.\n",
                b->metrics.tokens_per_s, 1e-6 * b->metrics.step_p50.value,
                1e-6 * b->metrics.step_p99.value,
                quantile_has_bound(&b->metrics.step_p99) ? "" : ", too few steps for a bound",
                b->metrics.ms_per_sample, text_bytes(bytes, (uint64_t)bench_memory(b)),
                b->loss_last, (long long)(t->bench.steps + t->bench.warmup));
    fprintf(f,
            "Ratios to it, the median of %d rounds ± the round furthest from it; the baseline "
            "differs from itself by up to %.1f %%. Loss: the difference after as many steps.\n\n",
            t->bench.rounds, 100 * t->speed_noise);
}

static void print_row(const struct tradeoffs *t, size_t i, FILE *f) {
    const struct finding *x = &t->findings[i];
    const struct bench_row *row = &t->bench.rows[i];
    char cell[6][CELL];
    fprintf(f, "| %s%s%s ", x->strategy->name, x->strategy->against ? ", against " : "",
            x->strategy->against ? x->strategy->against : "");
    if (row->n_rounds == 0) {
        fprintf(f, "| - | - | - | - | - | - | %s | not measured: ", x->strategy->rule);
        bench_put_markdown(row->reason, f);
        fprintf(f, " |\n");
        return;
    }
    fprintf(f, "| %s | %s | %s | %s | %s | %s | %s | %s |\n", ratio_text(cell[0], &x->speed),
            ratio_text(cell[1], &x->p50), plain_ratio(cell[2], x->p99),
            plain_ratio(cell[3], x->sample), plain_ratio(cell[4], x->memory), loss_text(cell[5], x),
            x->strategy->rule, x->text);
}

static void print_markdown(const struct tradeoffs *t, const struct knobs *base, FILE *f) {
    print_head(t, base, f);
    fprintf(f, "| strategy | tokens/s | step p50 | step p99 | ms/sample | memory | loss | rule of "
               "thumb | here |\n|---|--:|--:|--:|--:|--:|--:|---|---|\n");
    for (size_t i = 1; i < t->grid.n; i++)
        print_row(t, i, f);
    fputc('\n', f);
    for (size_t i = 1; i < t->grid.n; i++) {
        const struct grid_setting *s = &t->settings[i];
        fprintf(f, "- %s%s%s%s: %s\n", s->name, s->settings[0] ? " (`" : "", s->settings,
                s->settings[0] ? "`)" : "", t->findings[i].strategy->what);
    }
}

// ---------------------------------------------------------------- CSV

static void put_number(double x, FILE *f) {
    if (isfinite(x))
        fprintf(f, "%.9g", x);
    fputc(',', f);
}

static void print_csv(const struct tradeoffs *t, FILE *f) {
    fprintf(f, "strategy,settings,against,tokens_per_s,step_ms_p50,step_ms_p99,ms_per_sample,"
               "memory_bytes,loss,tokens_per_s_ratio,tokens_per_s_ratio_low,"
               "tokens_per_s_ratio_high,step_p50_ratio,step_p99_ratio,ms_per_sample_ratio,"
               "memory_ratio,loss_difference,rule,agreement,finding,reason\n");
    for (size_t i = 0; i < t->grid.n; i++) {
        const struct finding *x = &t->findings[i];
        const struct bench_row *r = &t->bench.rows[i];
        bool seen = r->n_rounds > 0;
        const double numbers[] = {seen ? r->metrics.tokens_per_s : NAN,
                                  seen ? 1e-6 * r->metrics.step_p50.value : NAN,
                                  seen ? 1e-6 * r->metrics.step_p99.value : NAN,
                                  seen ? r->metrics.ms_per_sample : NAN,
                                  seen ? bench_memory(r) : NAN,
                                  seen ? r->loss_last : NAN,
                                  x->speed.median,
                                  x->speed.low,
                                  x->speed.high,
                                  x->p50.median,
                                  x->p99,
                                  x->sample,
                                  x->memory,
                                  x->loss};
        const char *texts[] = {x->strategy->rule, agreement_name(x->agreement), x->text};
        bench_put_csv(t->settings[i].name, f);
        fputc(',', f);
        bench_put_csv(t->settings[i].settings, f);
        fputc(',', f);
        bench_put_csv(x->against >= 0 ? t->settings[x->against].name : "", f);
        fputc(',', f);
        for (size_t n = 0; n < sizeof numbers / sizeof *numbers; n++)
            put_number(numbers[n], f);
        for (size_t n = 0; n < sizeof texts / sizeof *texts; n++) {
            bench_put_csv(texts[n], f);
            fputc(',', f);
        }
        bench_put_csv(r->reason, f);
        fputc('\n', f);
    }
}

// ---------------------------------------------------------------- JSON

static void put_ratio(struct json_writer *w, const char *key, const struct ratio *r) {
    json_put_key(w, key);
    json_put_object_begin(w);
    json_member_double(w, "median", r->median);
    json_member_double(w, "low", r->low);
    json_member_double(w, "high", r->high);
    json_put_object_end(w);
}

static void put_row(const struct tradeoffs *t, size_t i, struct json_writer *w) {
    const struct finding *x = &t->findings[i];
    json_put_object_begin(w);
    json_member_string(w, "strategy", t->settings[i].name);
    json_member_string(w, "settings", t->settings[i].settings);
    json_member_string(w, "what", x->strategy->what);
    json_put_key(w, "against");
    if (x->against >= 0)
        json_put_string(w, t->settings[x->against].name);
    else
        json_put_null(w);
    json_put_key(w, "ratios");
    json_put_object_begin(w);
    put_ratio(w, "tokens_per_s", &x->speed);
    put_ratio(w, "step_p50", &x->p50);
    json_member_double(w, "step_p99", x->p99);
    json_member_double(w, "ms_per_sample", x->sample);
    json_member_double(w, "memory", x->memory);
    json_put_object_end(w);
    json_member_double(w, "loss_difference", x->loss);
    json_member_bool(w, "same_tokens_per_step", !x->other_batch);
    json_member_string(w, "rule", x->strategy->rule);
    json_member_string(w, "agreement", agreement_name(x->agreement));
    json_member_string(w, "finding", x->text);
    bench_put_members(&t->bench.rows[i], w);
    json_put_object_end(w);
}

void tradeoffs_put_json(const struct tradeoffs *t, struct json_writer *w) {
    json_put_array_begin(w);
    for (size_t i = 0; i < t->grid.n; i++)
        put_row(t, i, w);
    json_put_array_end(w);
}

int tradeoffs_print(const struct tradeoffs *t, const struct knobs *base, enum haggle_format format,
                    FILE *f, struct err *e) {
    struct json_writer w;
    switch (format) {
    case HAGGLE_CSV:
        print_csv(t, f);
        break;
    case HAGGLE_JSON:
        json_writer_to_file(&w, f, 2);
        tradeoffs_put_json(t, &w);
        TRY(json_writer_finish(&w, e));
        fputc('\n', f);
        break;
    case HAGGLE_JSONL:
        for (size_t i = 0; i < t->grid.n; i++) {
            json_writer_to_file(&w, f, 0);
            put_row(t, i, &w);
            TRY(json_writer_finish(&w, e));
            fputc('\n', f);
        }
        break;
    default:
        print_markdown(t, base, f);
    }
    return ferror(f) ? err_set(e, ERR_IO, "the table could not be written") : 0;
}
