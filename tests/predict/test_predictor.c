// test_predictor.c - step times from ops that were timed: tables and their files, estimates between
// measurements, and a made-up machine whose op times are known and must be found by the predictor.
#include "base/file.h"
#include "base/rng.h"
#include "predict/costs_fit.h"
#include "predict/predictor.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static const struct hw_device device = {.name = "test",
                                        .matmul_flops = 1e11,
                                        .memory_bytes_per_s = 1e10,
                                        .op_overhead_s = 1e-6,
                                        .memory_bytes = 1u << 30};

static void knobs_of(struct knobs *k, int64_t micro, int64_t accum) {
    struct err e = {0};
    knobs_init(k);
    k->device = DEVICE_CPU;
    k->threads = 1;
    k->seq = 32;
    k->batch_micro = micro;
    k->batch_accum = accum;
    assert_int_equal(knobs_set(k, "model", "tiny", SET_BY_COMMAND_LINE, &e), 0);
}

static void plan_of(struct plan *p, const struct knobs *k) {
    struct err e = {0};
    const struct plan_options o = {.knobs = k, .programs = {PLAN_TRAIN}, .real = DTYPE_F32};
    if (plan_make(p, &o, &e) != 0)
        fail_msg("%s", e.text);
}

enum { DIR_BYTES = 256 };
static void scratch_dir(char out[DIR_BYTES]) {
    assert_int_equal(file_make_temp_dir(out, DIR_BYTES, "predictor", NULL), 0);
}

// Where nothing was timed, the caller's roofline stands in: matrix products at the rate of their
// type, and the prediction says that it is known and not calibrated.
static void test_roof_of_each_type(void **state) {
    (void)state;
    struct hw_device roof = {.matmul_flops = 1e9, .memory_bytes_per_s = 1e15};
    double seconds[2][2];
    struct err e = {0};
    for (int fast = 0; fast < 2; fast++) {
        struct predictor *p;
        roof.matmul_bf16_flops = fast ? 4e9 : 0;
        assert_int_equal(predictor_open(&p, "", &e), 0);
        predictor_set_roof(p, &roof);
        for (int bf16 = 0; bf16 < 2; bf16++) {
            struct knobs k;
            struct plan plan;
            struct predicted out;
            knobs_of(&k, 2, 1);
            k.precision = bf16 ? PRECISION_BF16 : PRECISION_FP32;
            plan_of(&plan, &k);
            assert_int_equal(predictor_step(p, &plan, &out, &e), 0);
            assert_true(out.known && !out.calibrated && !out.borrowed);
            seconds[fast][bf16] = out.seconds;
            plan_free(&plan);
        }
        predictor_close(p);
    }
    assert_true(seconds[1][0] == seconds[0][0]);      // float32 does not use the rate of bf16
    assert_true(seconds[1][1] < 0.5 * seconds[0][1]); // most of a step are products
    assert_true(fabs(seconds[0][1] / seconds[0][0] - 1) < 0.2); // unknown: the rate of float32
}

// ---------------------------------------------------------------- a machine with known times

// Every kind has a different start-up time, arithmetic rate and memory rate, so that no table can
// know them beforehand.
static double true_s(const struct program *p, const struct op *op, const double *factor) {
    struct op_cost c = op_cost_of(p, op);
    const int k = (int)op->kind;
    double s = 1e-6 * (1 + k % 5) + c.flops / (1e10 * (2 + k % 7)) + c.bytes / (1e9 * (4 + k % 3));
    return factor ? s * factor[k] : s;
}

static double true_step_s(const struct program *p, const double *factor) {
    double sum = 0;
    for (int i = 0; i < p->n_order; i++) {
        const struct segment *seg = &p->segments[p->order[i].segment];
        for (int k = 0; k < seg->n_ops; k++)
            sum += true_s(p, &seg->ops[k], factor);
    }
    return sum;
}

// One turn on that machine, as a trace. noise: the relative deviation per op, with a large one now
// and then.
static void run_turn(const struct program *p, struct trace *t, int turn, double noise) {
    uint64_t now = 0, at = 0;
    trace_clear(t);
    trace_add_span(t, SPAN_DATA_WAIT, 0, 10);
    for (int i = 0; i < p->n_order; i++) {
        const struct segment *seg = &p->segments[p->order[i].segment];
        for (int k = 0; k < seg->n_ops; k++) {
            double u = rng_uniform(1, (uint64_t)turn, at++), s = true_s(p, &seg->ops[k], NULL);
            s *= 1 + noise * (2 * u - 1) + (noise > 0 && u < 0.1 ? 5 : 0);
            uint64_t end = now + (uint64_t)(1e9 * s + 0.5);
            trace_add_op(t, &seg->ops[k], p->order[i].segment, p->order[i].micro, now, end);
            now = end;
        }
    }
}

static void calibrate_when(struct predictor *p, const struct knobs *k, int turns, double noise,
                           bool busy) {
    struct plan s;
    struct mem *mem;
    struct trace t;
    struct collection *l;
    struct costs *c;
    struct err e = {0};
    int signatures = 0;
    plan_of(&s, k);
    assert_int_equal(mem_open(&mem, &e), 0);
    assert_int_equal(trace_open(&t, mem, 1 << 14, &e), 0);
    assert_int_equal(collection_open(&l, plan_program(&s, PLAN_TRAIN), &e), 0);
    for (int i = 0; i < turns; i++) {
        run_turn(plan_program(&s, PLAN_TRAIN), &t, i, noise);
        assert_int_equal(collection_add(l, &t, &e), 0);
    }
    assert_int_equal(predictor_costs(p, k, &c, &e), 0);
    assert_int_equal(collection_store(l, c, busy, &signatures, &e), 0);
    assert_in_range(signatures, 20, 200);
    collection_close(l);
    trace_close(&t);
    mem_close(mem);
    plan_free(&s);
}

static void calibrate_by_traces(struct predictor *p, const struct knobs *k, int turns,
                                double noise) {
    calibrate_when(p, k, turns, noise, false);
}

static double error_of(struct predictor *p, const struct knobs *k, const double *factor,
                       struct predicted *out) {
    struct plan s;
    struct err e = {0};
    plan_of(&s, k);
    if (predictor_step(p, &s, out, &e) != 0)
        fail_msg("%s", e.text);
    double truth = true_step_s(plan_program(&s, PLAN_TRAIN), factor);
    plan_free(&s);
    return fabs(out->seconds / truth - 1);
}

static struct predictor *open_predictor(const char *dir) {
    struct predictor *p;
    struct err e = {0};
    assert_int_equal(predictor_open(&p, dir, &e), 0);
    return p;
}

// The seconds that a segment takes in one turn.
static double segment_s(const struct program *p, int segment, const double *factor) {
    double sum = 0;
    for (int i = 0; i < p->n_order; i++)
        for (int k = 0; p->order[i].segment == segment && k < p->segments[segment].n_ops; k++)
            sum += true_s(p, &p->segments[segment].ops[k], factor);
    return sum;
}

// Inside graphs all ops are faster than when timed one by one, in one segment more than in another.
static void test_segments_as_a_whole(void **state) {
    struct plan s;
    struct mem *mem;
    struct trace t;
    struct collection *l;
    struct costs c;
    const struct hw_device roof = {.matmul_flops = 1e12, .memory_bytes_per_s = 1e11};
    struct err e = {0};
    struct knobs k;
    (void)state;
    knobs_of(&k, 2, 2);
    plan_of(&s, &k);
    const struct program *p = plan_program(&s, PLAN_TRAIN);
    costs_init(&c, &roof);
    assert_int_equal(mem_open(&mem, &e), 0);
    assert_int_equal(trace_open(&t, mem, 1 << 14, &e), 0);
    assert_int_equal(collection_open(&l, p, &e), 0);
    for (int i = 0; i < 3; i++) {
        run_turn(p, &t, i, 0);
        assert_int_equal(collection_add(l, &t, &e), 0);
    }
    int last = p->order[p->n_order - 1].segment; // the update, whose ops occur in no other segment
    collection_scale(l, last, 0.5 * segment_s(p, last, NULL));
    assert_int_equal(collection_store(l, &c, false, NULL, &e), 0);
    double sum = 0, others = 0, expected = 0;
    for (int i = 0; i < p->n_segments; i++)
        for (int o = 0; o < p->segments[i].n_ops; o++) {
            const double seen = costs_estimate_raw(&c, p, &p->segments[i].ops[o]).seconds;
            if (i == last)
                sum += seen;
            else
                others += seen, expected += true_s(p, &p->segments[i].ops[o], NULL);
        }
    assert_true(fabs(sum / (0.5 * segment_s(p, last, NULL)) - 1) < 1e-3);
    assert_true(fabs(others / expected - 1) < 1e-3);
    collection_close(l);
    costs_free(&c);
    trace_close(&t);
    mem_close(mem);
    plan_free(&s);
}

static void test_measured_ops_add_up(void **state) {
    struct predictor *p = open_predictor("");
    struct predicted out;
    struct knobs k;
    (void)state;
    knobs_of(&k, 2, 2);
    error_of(p, &k, NULL, &out);
    assert_false(out.calibrated); // nothing is known yet
    assert_true(out.seconds > 0 && out.share[COST_ROOFLINE] > 0.99);
    calibrate_by_traces(p, &k, 3, 0);
    // The setting that was timed, and others that consist of the same ops.
    assert_true(error_of(p, &k, NULL, &out) < 0.001);
    assert_true(out.calibrated && out.share[COST_MEASURED] > 0.999);
    k.batch_accum = 7;
    assert_true(error_of(p, &k, NULL, &out) < 0.001);
    k.recompute_mode = RECOMPUTE_MODE_FULL;
    assert_true(error_of(p, &k, NULL, &out) < 0.001);
    // Another number of threads has another table.
    k.threads = 2;
    error_of(p, &k, NULL, &out);
    assert_false(out.calibrated);
    predictor_close(p);
}

// Times for one number of threads are used as a guess for another, until ops are timed with that
// number.
static void test_a_relative_stands_in(void **state) {
    struct predictor *p = open_predictor("");
    struct predicted two, one, pinned;
    struct predictor_known known;
    struct knobs k;
    struct err e = {0};
    (void)state;
    knobs_of(&k, 2, 2);
    k.threads = 2;
    calibrate_by_traces(p, &k, 3, 0);
    assert_true(error_of(p, &k, NULL, &two) < 0.001);
    k.cpu_pin = true;
    assert_true(error_of(p, &k, NULL, &pinned) < 0.001);
    assert_false(pinned.calibrated);
    k.cpu_pin = false;
    k.threads = 1;
    error_of(p, &k, NULL, &one);
    assert_true(one.seconds > 1.3 * two.seconds && one.seconds < 2 * two.seconds);
    assert_true(!one.calibrated && one.spread > two.spread);
    assert_int_equal(predictor_known(p, &k, &known, &e), 0);
    assert_int_equal(known.signatures, 0);
    calibrate_by_traces(p, &k, 3, 0); // forgets what was borrowed
    assert_true(error_of(p, &k, NULL, &one) < 0.001);
    assert_true(one.calibrated);
    predictor_close(p);
}

static void test_noise_and_outliers(void **state) {
    struct predictor *p = open_predictor("");
    struct predicted out;
    struct knobs k;
    (void)state;
    knobs_of(&k, 1, 2);
    calibrate_by_traces(p, &k, 15, 0.05);
    assert_true(error_of(p, &k, NULL, &out) < 0.02);
    predictor_close(p);
}

static void test_between_micro_batches(void **state) {
    struct predictor *p = open_predictor("");
    struct predicted out;
    struct knobs k;
    (void)state;
    for (int64_t micro = 1; micro <= 16; micro *= 4) {
        knobs_of(&k, micro, 2);
        calibrate_by_traces(p, &k, 3, 0);
    }
    for (int64_t micro = 1; micro <= 24; micro++) {
        knobs_of(&k, micro, 3);
        assert_true(error_of(p, &k, NULL, &out) < 0.01);
        assert_true(out.share[COST_ROOFLINE] == 0);
    }
    knobs_of(&k, 4, 2);
    k.logits_chunk = 40;
    assert_true(error_of(p, &k, NULL, &out) < 0.01);
    // Another sequence length: attention is estimated by a fit.
    knobs_of(&k, 4, 2);
    k.seq = 64;
    calibrate_by_traces(p, &k, 3, 0);
    k.seq = 48;
    assert_true(error_of(p, &k, NULL, &out) < 0.05);
    predictor_close(p);
}

// ---------------------------------------------------------------- trials

enum { TRIAL_STEPS = 9 };

struct trial {
    double step_ns[TRIAL_STEPS];
    struct observed seen; // its step_ns points to the array above
};

static void trial_of(const struct program *p, const double *factor, uint64_t at, double slow,
                     struct trial *out) {
    *out = (struct trial){.seen = {.step_ns = out->step_ns, .steps = TRIAL_STEPS}};
    struct time_split *split = &out->seen.split;
    for (int step = 0; step < TRIAL_STEPS; step++) {
        double all = 0;
        for (int i = 0; i < p->n_order; i++) {
            const struct segment *seg = &p->segments[p->order[i].segment];
            for (int k = 0; k < seg->n_ops; k++) {
                const struct op *op = &seg->ops[k];
                double s = true_s(p, op, factor) * slow;
                s *= 1 + 0.02 * (rng_uniform(2, at, (uint64_t)step) - 0.5);
                if (step == 4) // another program was running
                    s *= 3;
                split->kind_ns[op->kind] += (uint64_t)(1e9 * s);
                split->ns[time_part_of(op_info(op->kind)->category)] += (uint64_t)(1e9 * s);
                all += s;
            }
        }
        out->step_ns[step] = 1e9 * all;
        split->wall_ns += (uint64_t)(1e9 * all);
        split->steps++;
    }
}

static void observe(struct predictor *p, const struct knobs *k, const double *factor, uint64_t at,
                    double slow) {
    struct plan s;
    struct trial r;
    struct err e = {0};
    plan_of(&s, k);
    trial_of(plan_program(&s, PLAN_TRAIN), factor, at, slow, &r);
    assert_int_equal(predictor_observe(p, &s, &r.seen, &e), 0);
    plan_free(&s);
}

// How many times as long as alone an op takes inside a step. It follows from the op's name, so that
// other ops keep their factors when one is added.
static double factor_of(int kind) {
    unsigned h = 0;
    for (const char *c = op_info((enum op_kind)kind)->name; *c; c++)
        h = 31 * h + (unsigned char)*c;
    return 0.7 + 0.15 * (h % 7);
}

static void test_trials_correct(void **state) {
    struct predictor *p = open_predictor("");
    struct predicted out;
    struct predictor_known known;
    struct knobs k;
    struct err e = {0};
    double factor[OP_COUNT];
    (void)state;
    for (int i = 0; i < OP_COUNT; i++)
        factor[i] = factor_of(i);
    knobs_of(&k, 2, 2);
    calibrate_by_traces(p, &k, 3, 0);
    double before = error_of(p, &k, factor, &out);
    assert_true(before > 0.03);
    // A third of the trials ran on a busy machine.
    for (uint64_t i = 0; i < 15; i++) {
        k.batch_accum = 1 + (int64_t)(i % 3);
        observe(p, &k, factor, i, i / 3 % 3 == 1 ? 2.0 : 1.0);
    }
    for (int64_t accum = 1; accum <= 6; accum++) {
        k.batch_accum = accum;
        assert_true(error_of(p, &k, factor, &out) < 0.01);
    }
    assert_int_equal(predictor_known(p, &k, &known, &e), 0);
    assert_int_equal(known.steps, 15);
    assert_int_equal(known.settings, 3);
    assert_string_equal(known.path, "");
    predictor_close(p);
}

// Where ops are not timed one by one, the time of their part corrects all of them equally.
static void test_parts_correct(void **state) {
    struct predictor *p = open_predictor("");
    struct predicted out;
    struct knobs k;
    struct plan s;
    struct trial r;
    struct err e = {0};
    double factor[OP_COUNT];
    (void)state;
    for (int i = 0; i < OP_COUNT; i++)
        factor[i] = 1.5;
    knobs_of(&k, 1, 2);
    calibrate_by_traces(p, &k, 3, 0);
    plan_of(&s, &k);
    for (uint64_t i = 0; i < 5; i++) {
        trial_of(plan_program(&s, PLAN_TRAIN), factor, i, 1, &r);
        memset(r.seen.split.kind_ns, 0, sizeof r.seen.split.kind_ns);
        assert_int_equal(predictor_observe(p, &s, &r.seen, &e), 0);
    }
    plan_free(&s);
    assert_true(error_of(p, &k, factor, &out) < 0.01);
    predictor_close(p);
}

// A trial on a busy machine says something about its own setting only, until a better one comes.
static void test_noisy_and_failed_trials(void **state) {
    struct predictor *p = open_predictor("");
    struct knobs k, other;
    struct plan s;
    struct trial r;
    struct predicted before, out;
    struct err e = {0};
    (void)state;
    knobs_of(&k, 1, 2);
    knobs_of(&other, 1, 3);
    calibrate_by_traces(p, &k, 3, 0);
    plan_of(&s, &k);
    // A trial that failed before its first step, or whose steps have no time split.
    trial_of(plan_program(&s, PLAN_TRAIN), NULL, 1, 2, &r);
    r.seen.steps = 0;
    assert_int_equal(predictor_observe(p, &s, &r.seen, &e), 0);
    r.seen.steps = TRIAL_STEPS, r.seen.split.steps = 0;
    assert_int_equal(predictor_observe(p, &s, &r.seen, &e), 0);
    error_of(p, &k, NULL, &out);
    assert_int_equal(out.from, FROM_OPS);
    error_of(p, &other, NULL, &before);
    trial_of(plan_program(&s, PLAN_TRAIN), NULL, 1, 2, &r);
    for (int i = 0; i < TRIAL_STEPS; i += 2)
        r.step_ns[i] *= 2.5;
    assert_int_equal(predictor_observe(p, &s, &r.seen, &e), 0);
    error_of(p, &k, NULL, &out);
    assert_true(out.from == FROM_SETTING && out.busy && out.high_s > 1.3 * out.seconds);
    error_of(p, &other, NULL, &out);
    assert_true(out.seconds == before.seconds && out.high_s == before.high_s);
    observe(p, &k, NULL, 1, 1);
    assert_true(error_of(p, &k, NULL, &out) < 0.01 && !out.busy && out.visits == 1);
    assert_int_equal(predictor_observe(p, &s, &r.seen, &e), 0);
    assert_true(error_of(p, &k, NULL, &out) < 0.01 && !out.busy && out.visits == 1);
    plan_free(&s);
    predictor_close(p);
}

// A ratio to a roofline, or to an outdated time, must not be applied to ops that are timed later.
static void test_corrections_keep_to_their_times(void **state) {
    struct predictor *p = open_predictor("");
    struct predicted out;
    struct costs *c;
    struct knobs k, other;
    struct err e = {0};
    double factor[OP_COUNT];
    (void)state;
    for (int i = 0; i < OP_COUNT; i++)
        factor[i] = 2;
    knobs_of(&k, 1, 2);
    knobs_of(&other, 1, 3);       // of the same ops, and not observed itself
    observe(p, &k, factor, 1, 1); // nothing is timed yet
    calibrate_by_traces(p, &k, 3, 0);
    assert_true(error_of(p, &other, NULL, &out) < 0.001);
    observe(p, &k, factor, 1, 1);
    assert_true(error_of(p, &other, factor, &out) < 0.02);
    calibrate_by_traces(p, &k, 3, 0); // the same times again: the corrections stay
    assert_true(error_of(p, &other, factor, &out) < 0.02);
    // The machine was busy then: ops take half the time now.
    assert_int_equal(predictor_costs(p, &k, &c, &e), 0);
    for (int i = 0; i < c->n; i++)
        c->points[i].seconds *= 2;
    calibrate_by_traces(p, &k, 3, 0);
    assert_true(error_of(p, &other, NULL, &out) < 0.001);
    predictor_close(p);
}

static struct costs *costs_of(struct predictor *p, const struct knobs *k) {
    struct costs *c;
    struct err e = {0};
    assert_int_equal(predictor_costs(p, k, &c, &e), 0);
    return c;
}

// What was measured is predicted as it was measured, whatever ops say, and with a narrow interval.
static void test_measured_settings(void **state) {
    struct predictor *p = open_predictor("");
    struct predicted out, other;
    struct knobs k, accum3;
    char text[PREDICTED_TEXT_BYTES];
    double slow[OP_COUNT];
    (void)state;
    for (int i = 0; i < OP_COUNT; i++)
        slow[i] = 1.7;
    knobs_of(&k, 2, 2);
    knobs_of(&accum3, 2, 3);
    // Even where no op was ever timed.
    observe(p, &k, slow, 1, 1);
    assert_true(error_of(p, &k, slow, &out) < 0.01 && out.from == FROM_SETTING && out.known);
    error_of(p, &accum3, slow, &other);
    assert_int_equal(other.from, FROM_ROOFLINE);
    assert_true(other.high_s / other.seconds > 2 && out.high_s / out.seconds < 1.1);
    calibrate_by_traces(p, &k, 3, 0);
    assert_true(error_of(p, &k, slow, &out) < 0.01);
    assert_true(fabs(out.ops_s * 1.7 / out.seconds - 1) < 0.01);
    assert_string_equal(predicted_text(text, &out),
                        "this setting was measured here once, 1.0 s ago");
    error_of(p, &accum3, NULL, &other);
    assert_int_equal(other.from, FROM_OPS);
    assert_true(out.high_s / out.low_s < other.high_s / other.low_s);
    // One visit in a busy hour does not move the median, but widens the interval.
    observe(p, &k, slow, 2, 1);
    observe(p, &k, slow, 3, 1.5);
    assert_true(error_of(p, &k, slow, &other) < 0.01 && other.visits == 3);
    assert_true(other.high_s > out.high_s && other.high_s > 1.2 * other.seconds);
    // Other data makes another setting.
    snprintf(k.data_path, sizeof k.data_path, "elsewhere.txt");
    error_of(p, &k, NULL, &out);
    assert_int_equal(out.from, FROM_OPS);
    predictor_close(p);
}

// Trials of one model must not change what is known about another.
static void test_another_model_changes_nothing(void **state) {
    struct predictor *p = open_predictor("");
    struct predicted before[4], after;
    struct knobs k, small;
    double factor[OP_COUNT], others[OP_COUNT];
    struct err e = {0};
    (void)state;
    for (int i = 0; i < OP_COUNT; i++)
        factor[i] = 1.3, others[i] = 3;
    knobs_of(&k, 1, 2);
    assert_int_equal(knobs_set(&k, "model", "gpt2-124m", SET_BY_COMMAND_LINE, &e), 0);
    calibrate_by_traces(p, &k, 1, 0);
    for (int i = 0; i < 4; i++) { // three settings are measured, the last one is not
        k.batch_accum = 1 + i;
        if (i < 3)
            observe(p, &k, factor, (uint64_t)i, 1);
    }
    for (int i = 0; i < 4; i++) {
        k.batch_accum = 1 + i;
        assert_true(error_of(p, &k, factor, &before[i]) < 0.02);
    }
    knobs_of(&small, 2, 1);
    calibrate_by_traces(p, &small, 3, 0);
    for (uint64_t i = 0; i < 30; i++) {
        struct plan s;
        struct trial r;
        small.batch_accum = 1 + (int64_t)(i % 5);
        plan_of(&s, &small);
        trial_of(plan_program(&s, PLAN_TRAIN), others, i, 1, &r);
        r.seen.split.ns[TIME_HOST] += r.seen.split.wall_ns; // and a slow host
        assert_int_equal(predictor_observe(p, &s, &r.seen, &e), 0);
        plan_free(&s);
    }
    for (int i = 0; i < 4; i++) {
        k.batch_accum = 1 + i;
        assert_true(error_of(p, &k, factor, &after) < 0.02);
        assert_true(fabs(after.seconds / before[i].seconds - 1) < 0.001);
    }
    predictor_close(p);
}

static void test_old_corrections_fade(void **state) {
    struct predictor *p = open_predictor("");
    struct predicted out;
    struct knobs k, other;
    double factor[OP_COUNT];
    const double day = 24 * 3600;
    (void)state;
    for (int i = 0; i < OP_COUNT; i++)
        factor[i] = 1.5;
    knobs_of(&k, 1, 2);
    knobs_of(&other, 1, 3);
    calibrate_by_traces(p, &k, 3, 0);
    for (uint64_t i = 0; i < 15; i++)
        observe(p, &k, factor, i, 1);
    assert_true(error_of(p, &other, factor, &out) < 0.01);
    costs_of(p, &k)->now_s += day;
    assert_true(error_of(p, &other, factor, &out) < 0.01);
    costs_of(p, &k)->now_s += 60 * day;
    assert_true(error_of(p, &other, NULL, &out) < 0.001); // as the ops were timed
    assert_true(error_of(p, &k, factor, &out) < 0.01);    // a measurement does not fade
    assert_true(out.age_s > 60 * day);
    predictor_close(p);
}

// The interval is what earlier predictions deserve.
static void test_interval_from_errors(void **state) {
    struct predictor *p = open_predictor("");
    struct predicted first, out;
    struct knobs k;
    struct plan s;
    int inside = 0;
    (void)state;
    knobs_of(&k, 1, 1);
    calibrate_by_traces(p, &k, 3, 0);
    error_of(p, &k, NULL, &first);
    assert_true(first.errors == 0 && first.low_s < first.seconds && first.high_s > first.seconds);
    // Settings take 0.75 to 1.35 times as long as their ops: more than the ops' times vary.
    for (int i = 0; i < 40; i++) {
        const double slow = 0.75 + 0.6 * rng_uniform(7, 0, (uint64_t)i);
        knobs_of(&k, 1, 2 + i);
        error_of(p, &k, NULL, &out);
        plan_of(&s, &k);
        const double truth = slow * true_step_s(plan_program(&s, PLAN_TRAIN), NULL);
        plan_free(&s);
        inside += i >= 15 && truth > out.low_s && truth < out.high_s;
        observe(p, &k, NULL, (uint64_t)i, slow);
    }
    assert_int_equal(out.errors, COSTS_ERRORS);
    assert_true(out.high_s / out.seconds > 1.15); // no longer the spread of the ops
    assert_true(inside >= 18);                    // of 25
    predictor_close(p);
}

// A setting that was measured with threads whose ops were never timed is kept, and the times that
// stand in for its ops are not.
static void test_measured_beside_borrowed_ops(void **state) {
    char dir[DIR_BYTES];
    struct predicted out;
    struct predictor_known known;
    struct knobs k;
    struct err e = {0};
    double slow[OP_COUNT];
    (void)state;
    for (int i = 0; i < OP_COUNT; i++)
        slow[i] = 2.5;
    scratch_dir(dir);
    struct predictor *p = open_predictor(dir);
    knobs_of(&k, 2, 2);
    k.threads = 2;
    calibrate_by_traces(p, &k, 3, 0);
    k.threads = 1;
    observe(p, &k, slow, 1, 1);
    assert_int_equal(predictor_store(p, &e), 0);
    predictor_close(p);
    p = open_predictor(dir);
    assert_true(error_of(p, &k, slow, &out) < 0.01 && out.from == FROM_SETTING);
    assert_int_equal(predictor_known(p, &k, &known, &e), 0);
    assert_true(known.signatures == 0 && known.settings == 1 && known.steps == 0);
    calibrate_by_traces(p, &k, 3, 0); // stays when ops get times of their own
    assert_true(error_of(p, &k, slow, &out) < 0.01 && out.from == FROM_SETTING);
    predictor_close(p);
    assert_int_equal(file_remove_tree(dir, &e), 0);
}

// ---------------------------------------------------------------- arithmetic

static void test_between_never_falls(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 200; seed++) {
        struct fit_knot knots[FIT_MOST_KNOTS];
        int n = 1 + (int)rng_below(seed, 0, 0, 8);
        double rows = 1, spread;
        for (int i = 0; i < n; i++) { // noise strong enough that more rows may take less time
            rows += 1 + (double)rng_below(seed, 1, (uint64_t)i, 100);
            knots[i] = (struct fit_knot){
                rows, 1e-5 * (rows + 300 * rng_uniform(seed, 2, (uint64_t)i)), 1e-6 * rows};
        }
        double last = 0;
        for (double at = 1; at < 2 * rows; at += 0.5) {
            struct fit_knot copy[FIT_MOST_KNOTS];
            memcpy(copy, knots, sizeof copy);
            double s = fit_between(copy, n, at, 1e-6 * at, &spread);
            assert_true(isfinite(s) && s > 0 && spread > 0);
            assert_true(s >= last * (1 - 1e-12));
            last = s;
        }
    }
}

static void test_plane(void **state) {
    struct fit_row rows[40] = {{0}};
    struct fit_plane plane;
    (void)state;
    assert_false(fit_plane_of(rows, 0, &plane));
    for (int i = 0; i < 40; i++) {
        rows[i].flops = 1e6 * (1 + i * i);
        rows[i].bytes = 1e5 * (1 + 7 * (i % 9));
        rows[i].seconds = 3e-6 + 2e-11 * rows[i].flops + 1e-10 * rows[i].bytes;
    }
    assert_true(fit_plane_of(rows, 40, &plane));
    assert_true(fabs(plane.constant_s / 3e-6 - 1) < 1e-6);
    assert_true(fabs(plane.per_flop_s / 2e-11 - 1) < 1e-6);
    assert_true(fabs(plane.per_byte_s / 1e-10 - 1) < 1e-6);
    // Rows that a negative term would fit best: the term is 0 instead, so more work never takes
    // less time.
    for (int i = 0; i < 40; i++)
        rows[i].seconds = 1e-3 - 1e-9 * rows[i].bytes;
    assert_true(fit_plane_of(rows, 40, &plane));
    assert_true(plane.constant_s >= 0 && plane.per_flop_s >= 0 && plane.per_byte_s >= 0);
}

// ---------------------------------------------------------------- files

static void test_store_and_load(void **state) {
    char dir[DIR_BYTES];
    struct err e = {0};
    struct knobs k;
    struct predicted a, b;
    struct predictor_known known;
    (void)state;
    scratch_dir(dir);
    struct predictor *p = open_predictor(dir);
    knobs_of(&k, 2, 2);
    calibrate_by_traces(p, &k, 3, 0.1);
    double factor[OP_COUNT];
    for (int i = 0; i < OP_COUNT; i++)
        factor[i] = 1.2;
    for (uint64_t i = 0; i < 20; i++)
        observe(p, &k, factor, i, 1);
    error_of(p, &k, NULL, &a);
    assert_int_equal(predictor_store(p, &e), 0);
    predictor_close(p);
    p = open_predictor(dir);
    error_of(p, &k, NULL, &b);
    assert_true(fabs(a.seconds / b.seconds - 1) < 1e-12);
    assert_true(b.calibrated && a.spread == b.spread);
    assert_true(b.from == FROM_SETTING && b.visits == COSTS_VISITS && a.low_s == b.low_s);
    k.batch_accum = 3; // from ops and corrections
    error_of(p, &k, factor, &b);
    assert_true(b.from == FROM_OPS && b.errors == 1);
    assert_true(error_of(p, &k, factor, &b) < 0.05);
    k.batch_accum = 2;
    assert_int_equal(predictor_known(p, &k, &known, &e), 0);
    assert_true(known.signatures > 20 && known.steps == COSTS_RATIOS);
    assert_true(file_exists(known.path));
    // Damaged at any place: never a crash and never half a table.
    char *text;
    size_t bytes;
    assert_int_equal(file_read_all(known.path, 1 << 24, &text, &bytes, &e), 0);
    for (size_t cut = 0; cut < bytes; cut += 1 + bytes / 97) {
        assert_int_equal(file_write_atomic(known.path, text, cut, &e), 0);
        struct predictor *q = open_predictor(dir);
        error_of(q, &k, NULL, &b);
        assert_false(b.calibrated);
        predictor_close(q);
    }
    free(text);
    predictor_close(p);
    assert_int_equal(file_remove_tree(dir, &e), 0);
}

#define POINT(op, sizes, types, s)                                                                 \
    "{\"op\":\"" op "\",\"flags\":0,\"act\":0,\"sizes\":" sizes ",\"types\":" types                \
    ",\"flops\":1e6,\"bytes\":1e5,\"s\":" s ",\"spread\":0.1,\"count\":3}"

// The table leaves out all points but the last one, of which it ignores the extra sizes.
#define BAD_TIMES                                                                                  \
    POINT("add", "[4,4]", "[1]", "-1")                                                             \
    "," POINT("add", "[4,4]", "[1]", "0") "," POINT("add", "[4,4]", "[1]", "1e300")
#define BAD_OP POINT("nothing", "[4,4]", "[1]", "1")
#define BAD_SIZES                                                                                  \
    POINT("add", "[-4,4]", "[1]", "1") "," POINT("add", "[9000000000000000000]", "[1]", "1")
#define BAD_TYPES      POINT("add", "[4,4]", "[99]", "1") "," POINT("add", "[4,4]", "[-1]", "1")
#define TOO_MANY_SIZES POINT("add", "[1,2,3,4,5,6,7,8,9,10,11,12]", "[1]", "1")
#define BAD_POINTS     BAD_TIMES "," BAD_OP "," BAD_SIZES "," BAD_TYPES "," TOO_MANY_SIZES

static void test_hostile_file(void **state) {
    static const struct {
        const char *text;
        int rc, points;
    } files[] = {
        {"{\"format\":1,\"key\":\"x\",\"ops\":[" POINT("add", "[4,4]", "[1,1]", "1e-3") "]}", 0, 1},
        {"{\"format\":1,\"key\":\"y\",\"ops\":[" POINT("add", "[4,4]", "[1,1]", "1e-3") "]}",
         ERR_FORMAT, 0},
        {"{\"format\":2,\"key\":\"x\",\"ops\":[]}", ERR_FORMAT, 0},
        {"{\"ops\":[" POINT("add", "[4,4]", "[1]", "1e-3") "],\"format\":1,\"key\":\"x\"}", 0, 0},
        {"{\"format\":1,\"key\":\"x\",\"ops\":[" BAD_POINTS ",{}]}", 0, 1},
        {"{\"format\":1,\"key\":\"x\",\"ops\":[1]}", ERR_FORMAT, 0},
        {"{\"format\":1,\"key\":\"x\",\"ops\":{}}", ERR_FORMAT, 0},
        {"[]", ERR_FORMAT, 0},
        {"", ERR_FORMAT, 0},
        {"{\"format\":1,\"key\":\"x\",\"ratios\":[{\"op\":\"add\",\"type\":\"fp32\",\"log\":[50]},"
         "{\"op\":\"add\",\"type\":\"what\",\"log\":[0.1]},{\"op\":\"add\",\"type\":\"fp32\","
         "\"log\":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]}],\"outside\":[-1,1e300,2]}",
         0, 0},
        // Written by an older haggle: times are kept, corrections that name no model are not.
        {"{\"format\":1,\"key\":\"x\",\"ops\":[" POINT(
             "add", "[4,4]", "[1,1]",
             "1e-3") "],\"ratios\":[{\"op\":\"add\",\"type\":\"fp32\",\"log\":[0.5]}],"
                     "\"outside\":[0.5]}",
         0, 1},
        {"{\"format\":1,\"key\":\"x\",\"models\":[{\"outside\":[1]},{\"model\":\"a\",\"outside\":"
         "[-1,1e300],\"ratios\":[{\"op\":\"add\",\"type\":\"fp32\",\"log\":[50],\"at\":[0]},"
         "{\"op\":\"add\",\"type\":\"fp32\",\"log\":[0.5]}]}]}",
         0, 0},
        {"{\"format\":1,\"key\":\"x\",\"models\":[7]}", ERR_FORMAT, 0},
        {"{\"format\":1,\"key\":\"x\",\"settings\":[{},{\"id\":\"short\",\"s\":[1]},"
         "{\"id\":\"0123456789abcdef0123456789abcdef\",\"s\":[1,-1]},"
         "{\"id\":\"0123456789abcdef0123456789abcdef\",\"s\":[1],\"parts\":[-1]}]}",
         0, 0},
        {"{\"format\":1,\"key\":\"x\",\"settings\":{}}", ERR_FORMAT, 0},
        {"{\"format\":1,\"key\":\"x\",\"errors\":{\"ops\":[1e300,-3],\"what\":[1]}}", 0, 0},
        {"{\"format\":1,\"key\":\"x\",\"errors\":[]}", ERR_FORMAT, 0},
    };
    char dir[DIR_BYTES], path[512];
    struct err e = {0};
    (void)state;
    scratch_dir(dir);
    snprintf(path, sizeof path, "%s/x.json", dir);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct costs c;
        costs_init(&c, &device);
        assert_int_equal(file_write_atomic(path, files[i].text, strlen(files[i].text), &e), 0);
        if (costs_load(&c, path, "x", &e) != files[i].rc || c.n != files[i].points)
            fail_msg("file %zu: %d points, %s", i, c.n, e.text);
        costs_use(&c, "a");
        assert_true(fabs(costs_correction(&c, OP_ADD, DTYPE_F32) - 1) < 1e-12);
        assert_true(costs_outside(&c) == 0 && c.n_settings == 0);
        assert_true(isfinite(costs_factor(&c, FROM_OPS, 0.1)));
        err_clear(&e);
        costs_free(&c);
    }
    assert_int_equal(file_remove_tree(dir, &e), 0);
}

static int count_file(void *arg, const char *name) {
    (void)name;
    ++*(int *)arg;
    return 0;
}

static void test_old_tables_go(void **state) {
    char dir[DIR_BYTES], path[512];
    struct knobs k;
    struct err e = {0};
    int files = 0;
    (void)state;
    scratch_dir(dir);
    for (int i = 0; i < 150; i++) {
        snprintf(path, sizeof path, "%s/%032d.json", dir, i);
        assert_int_equal(file_write_atomic(path, "{}", 2, &e), 0);
    }
    snprintf(path, sizeof path, "%s/notes.json", dir); // a file of another program
    assert_int_equal(file_write_atomic(path, "{}", 2, &e), 0);
    struct predictor *p = open_predictor(dir);
    knobs_of(&k, 1, 1);
    calibrate_by_traces(p, &k, 1, 0);
    assert_int_equal(predictor_store(p, &e), 0);
    assert_int_equal(file_list_dir(dir, count_file, &files, &e), 0);
    assert_int_equal(files, 128 + 1);
    assert_true(file_exists(path));
    struct predictor_known known;
    assert_int_equal(predictor_known(p, &k, &known, &e), 0);
    assert_true(file_exists(known.path));
    predictor_close(p);
    assert_int_equal(file_remove_tree(dir, &e), 0);
}

static void test_full_table_forgets_the_oldest(void **state) {
    struct costs c;
    struct err e = {0};
    struct cost_point p = {.flops = 1, .bytes = 1, .seconds = 1e-3, .count = 1};
    (void)state;
    costs_init(&c, &device);
    p.signature.kind = OP_ADD;
    for (int i = 1; i <= COSTS_MOST_POINTS + 1; i++) {
        p.signature.sizes[SIZE_M] = i;
        assert_int_equal(costs_add(&c, &p, &e), 0);
    }
    assert_in_range(c.n, 1, COSTS_MOST_POINTS);
    assert_non_null(costs_find(&c, &p.signature));
    p.signature.sizes[SIZE_M] = 1;
    assert_null(costs_find(&c, &p.signature));
    p.seconds = NAN;
    assert_int_equal(costs_add(&c, &p, &e), ERR_NUMERIC);
    costs_free(&c);
}

// Ops that were timed while other programs were at work are used until there are better times, and
// they are known as such in the next process, too.
static void test_busy_times_are_passing(void **state) {
    char dir[DIR_BYTES], text[PREDICTED_TEXT_BYTES];
    struct predictor *p;
    struct predicted out;
    struct knobs k;
    struct err e = {0};
    struct costs *c;
    (void)state;
    assert_int_equal(file_make_temp_dir(dir, sizeof dir, "predictor", &e), 0);
    knobs_of(&k, 2, 2);
    p = open_predictor(dir);
    calibrate_when(p, &k, 3, 0, true);
    error_of(p, &k, NULL, &out);
    assert_true(out.calibrated && out.busy_share == 1);
    assert_non_null(strstr(predicted_text(text, &out), "while other programs were busy"));
    assert_int_equal(predictor_store(p, &e), 0);
    predictor_close(p);
    p = open_predictor(dir);
    error_of(p, &k, NULL, &out);
    assert_true(out.calibrated && out.busy_share == 1);
    k.batch_micro = 3; // between sizes, if at all
    calibrate_when(p, &k, 3, 0, true);
    k.batch_micro = 4;
    error_of(p, &k, NULL, &out);
    assert_true(out.busy_share > 0.99);
    k.batch_micro = 2;
    calibrate_by_traces(p, &k, 3, 0);
    error_of(p, &k, NULL, &out);
    assert_true(out.busy_share == 0);
    assert_null(strstr(predicted_text(text, &out), "busy"));
    assert_int_equal(predictor_costs(p, &k, &c, &e), 0);
    struct cost_point quiet = c->points[0], busy = quiet;
    quiet.busy = false, busy.busy = true, busy.seconds *= 2;
    assert_int_equal(costs_add(c, &quiet, &e), 0);
    assert_int_equal(costs_add(c, &busy, &e), 0);
    assert_true(costs_find(c, &busy.signature)->seconds == quiet.seconds);
    predictor_close(p);
    assert_int_equal(file_remove_tree(dir, &e), 0);
}

// ---------------------------------------------------------------- the real thing

static void test_calibrates_this_machine(void **state) {
    struct predictor *p = open_predictor("");
    struct calibrated c;
    struct predicted out;
    struct knobs k;
    struct err e = {0};
    (void)state;
    for (int precision = PRECISION_FP32; precision <= PRECISION_BF16; precision++)
        for (int layers = 0; layers <= 2; layers += 2) {
            knobs_of(&k, 2, 1);
            k.precision = (enum precision)precision;
            const struct calibrate_options o = {.seconds = 0.01, .layers = layers};
            if (predictor_calibrate(p, &k, &o, &c, &e) != 0)
                fail_msg("%s", e.text);
            assert_true(c.signatures > 20 && c.turns >= 3);
            assert_int_equal(c.layers, layers ? layers : 4);
            k.batch_accum = 3;
            k.recompute_mode = RECOMPUTE_MODE_FULL;
            error_of(p, &k, NULL, &out);
            assert_true(out.share[COST_MEASURED] > 0.99);
            k.batch_micro = 3, k.logits_chunk = 16;
            error_of(p, &k, NULL, &out);
            assert_true(out.calibrated && out.share[COST_ROOFLINE] == 0);
        }
    assert_int_equal(predictor_calibrate_span(p, &k, 1, 8, &c, &e), 0);
    knobs_of(&k, 1, 1);
    k.seq = 100000;
    assert_int_not_equal(predictor_calibrate(p, &k, NULL, NULL, &e), 0);
    predictor_close(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_roof_of_each_type),
        cmocka_unit_test(test_segments_as_a_whole),
        cmocka_unit_test(test_measured_ops_add_up),
        cmocka_unit_test(test_a_relative_stands_in),
        cmocka_unit_test(test_noise_and_outliers),
        cmocka_unit_test(test_between_micro_batches),
        cmocka_unit_test(test_trials_correct),
        cmocka_unit_test(test_parts_correct),
        cmocka_unit_test(test_noisy_and_failed_trials),
        cmocka_unit_test(test_corrections_keep_to_their_times),
        cmocka_unit_test(test_measured_settings),
        cmocka_unit_test(test_another_model_changes_nothing),
        cmocka_unit_test(test_old_corrections_fade),
        cmocka_unit_test(test_interval_from_errors),
        cmocka_unit_test(test_measured_beside_borrowed_ops),
        cmocka_unit_test(test_between_never_falls),
        cmocka_unit_test(test_plane),
        cmocka_unit_test(test_store_and_load),
        cmocka_unit_test(test_hostile_file),
        cmocka_unit_test(test_old_tables_go),
        cmocka_unit_test(test_full_table_forgets_the_oldest),
        cmocka_unit_test(test_busy_times_are_passing),
        cmocka_unit_test(test_calibrates_this_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
