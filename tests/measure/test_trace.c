// test_trace.c - totals are exact whatever the ring keeps; the verdict; the JSON of the metrics.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "measure/metrics.h"
#include "measure/verdict.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int open_mem(void **state) {
    struct mem *m;
    int rc = mem_open(&m, NULL);
    *state = m;
    return rc;
}
static int close_mem(void **state) {
    mem_close(*state);
    return 0;
}

static struct op op_of(enum op_kind kind, int layer) {
    struct op op = {.kind = kind, .stream = STREAM_COMPUTE, .layer = layer};
    return op;
}

static void test_split_adds_up(void **state) {
    struct trace t;
    assert_int_equal(trace_open(&t, *state, 5, NULL), 0);
    assert_int_equal(t.mask, 7);
    const struct op matmul = op_of(OP_MATMUL, 3), attention = op_of(OP_ATTENTION, 3);
    const struct op norm = op_of(OP_NORM, -1), adamw = op_of(OP_ADAMW, -1);
    const struct op reduce = op_of(OP_ALL_REDUCE, -1);
    for (uint32_t step = 0; step < 3; step++) {
        uint64_t at = 1000 + 10000 * (uint64_t)step;
        trace_begin_step(&t, step, at);
        trace_add_span(&t, SPAN_DATA_WAIT, at, at + 100);
        trace_add_op(&t, &matmul, 1, 0, at + 100, at + 2100);
        trace_add_op(&t, &attention, 1, 0, at + 2200, at + 2500);
        trace_add_op(&t, &norm, 1, 0, at + 2500, at + 2550);
        trace_add_op(&t, &reduce, 2, 0, at + 2600, at + 3000);
        trace_add_op(&t, &adamw, 3, 0, at + 3000, at + 3700);
        trace_add_span(&t, SPAN_HOST, at + 3700, at + 3800);
        trace_end_step(&t, at + 4000);
    }
    struct time_split s;
    trace_last(&t, &s);
    assert_int_equal(s.steps, 1);
    assert_int_equal(s.wall_ns, 4000);
    assert_int_equal(s.ns[TIME_DATA_WAIT], 100);
    assert_int_equal(s.ns[TIME_MATMUL], 2000);
    assert_int_equal(s.ns[TIME_ATTENTION], 300);
    assert_int_equal(s.ns[TIME_OTHER], 50);
    assert_int_equal(s.ns[TIME_COMM], 400);
    assert_int_equal(s.ns[TIME_OPTIMIZER], 700);
    assert_int_equal(s.ns[TIME_HOST], 450);
    assert_int_equal(s.busy_ns, 3050);
    assert_int_equal(s.kind_ns[OP_MATMUL], 2000);
    assert_int_equal(s.kind_ns[OP_NORM], 50);
    assert_int_equal(s.kind_ns[OP_ALL_REDUCE], 400);
    assert_int_equal(s.kind_ns[OP_ADD], 0);
    trace_split(&t, &s);
    assert_int_equal(s.steps, 3);
    assert_int_equal(s.wall_ns, 12000);
    assert_int_equal(s.kind_ns[OP_MATMUL], 6000);
    uint64_t sum = 0;
    for (int i = 0; i < TIME_COUNT; i++)
        sum += s.ns[i];
    assert_int_equal(sum, s.wall_ns);

    assert_int_equal(t.added, 24);
    assert_int_equal(trace_count(&t), 8); // wrapped: the newest 8, oldest first
    assert_string_equal(trace_event_name(trace_at(&t, 1)->what), "matmul");
    assert_int_equal(trace_at(&t, 0)->step, 2);
    assert_int_equal(trace_at(&t, 1)->layer, 3);
    assert_string_equal(trace_event_name(trace_at(&t, 7)->what), "step");
    assert_string_equal(trace_event_name(60000), "unknown");
    trace_clear(&t);
    assert_int_equal(trace_count(&t), 0);
    trace_split(&t, &s);
    assert_int_equal(s.steps, 0);
    trace_close(&t);
}

static void test_no_ring(void **state) {
    struct trace t;
    assert_int_equal(trace_open(&t, *state, 0, NULL), 0);
    const struct op matmul = op_of(OP_MATMUL, 0);
    trace_begin_step(&t, 0, 0);
    for (int i = 0; i < 1000; i++)
        trace_add_op(&t, &matmul, 0, 0, 0, 5);
    trace_end_step(&t, 4000); // the events exceed the wall time, so the wall time grows
    struct time_split s;
    trace_split(&t, &s);
    assert_int_equal(s.ns[TIME_MATMUL], 5000);
    assert_int_equal(s.wall_ns, 5000);
    assert_int_equal(s.ns[TIME_HOST], 0);
    assert_int_equal(trace_count(&t), 0);
    trace_close(&t);
}

static void test_cost_of_adding(void **state) {
    struct trace t;
    assert_int_equal(trace_open(&t, *state, 1 << 14, NULL), 0);
    const struct op matmul = op_of(OP_MATMUL, 0);
    double best = 1e9;
    for (int round = 0; round < 20; round++) {
        uint64_t begin = clock_ns();
        for (uint64_t i = 0; i < 100000; i++)
            trace_add_op(&t, &matmul, 1, (int)i, i, i + 3);
        double each = (double)(clock_ns() - begin) / 100000;
        best = each < best ? each : best;
    }
    print_message("trace_add_op: %.1f ns\n", best);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_true(best < 20);
#endif
    trace_close(&t);
}

static struct time_split split_of(const double fraction[TIME_COUNT]) {
    struct time_split s = {.wall_ns = 100000000, .steps = 10};
    for (int i = 0; i < TIME_COUNT; i++)
        s.ns[i] = (uint64_t)(1e8 * fraction[i]);
    return s;
}

static void test_verdicts(void **state) {
    (void)state;
    static const struct {
        double part[TIME_COUNT]; // matmul attention other optimizer comm data_wait host
        struct verdict_facts facts;
        enum time_part dominant;
        const char *knob, *contains;
    } cases[] = {
        {{.6, .1, .1, .1, 0, .08, .02},
         {.data_workers = 1},
         TIME_MATMUL,
         "data.prefetch",
         "60 % matmul"},
        {{.3, .1, .1, .1, 0, .38, .02},
         {.data_workers = 1, .data_prefetch = 2},
         TIME_DATA_WAIT,
         "data.workers",
         "38 % data_wait"},
        // A source that is too slow: data that is read again can be kept in memory, otherwise the
        // source's rate is the limit.
        {{.3, .1, .1, .1, 0, .38, .02},
         {.data_workers = 1,
          .data_prefetch = 2,
          .data_make_ns = 90000000,
          .data_source_wait_ns = 80000000,
          .data_repeats = true},
         TIME_DATA_WAIT,
         "data.ram",
         "bound by data: 38 % data_wait"},
        {{.3, .1, .1, .1, 0, .38, .02},
         {.data_workers = 1,
          .data_prefetch = 2,
          .data_make_ns = 90000000,
          .data_source_wait_ns = 80000000},
         TIME_DATA_WAIT,
         "data.source_rate",
         "38 % data_wait"},
        {{.3, .1, .1, .1, 0, .38, .02},
         {.data_workers = 1,
          .data_make_ns = 90000000,
          .data_source_wait_ns = 80000000,
          .data_repeats = true},
         TIME_DATA_WAIT,
         "data.prefetch",
         "38 % data_wait"},
        // Threads that keep up on average, threads that do not, and threads without a batch to
        // fill.
        {{.3, .1, .1, .1, 0, .38, .02},
         {.data_workers = 2, .data_prefetch = 2, .data_make_ns = 100000000},
         TIME_DATA_WAIT,
         "data.prefetch",
         "bridge the gaps"},
        {{.3, .1, .1, .1, 0, .38, .02},
         {.data_workers = 2, .data_prefetch = 2, .data_make_ns = 190000000},
         TIME_DATA_WAIT,
         "data.workers",
         "one more thread"},
        {{.3, .1, .1, .1, 0, .38, .02},
         {.data_workers = 8, .data_prefetch = 1, .data_make_ns = 190000000},
         TIME_DATA_WAIT,
         "data.prefetch",
         "38 % data_wait"},
        // The projection to the vocabulary, unless it is already in chunks. Otherwise few rows.
        {{.6, .05, .3, .03, 0, 0, .02},
         {.batch_micro = 8, .seq = 128, .logits_of_matmul = .9, .logits_of_other = .5},
         TIME_MATMUL,
         "logits.chunk",
         "bound by compute"},
        {{.3, .05, .6, .03, 0, 0, .02},
         {.batch_micro = 8, .seq = 128, .logits_of_matmul = .9, .logits_of_other = .5},
         TIME_OTHER,
         "logits.chunk",
         "bound by memory bandwidth"},
        {{.6, .05, .3, .03, 0, 0, .02},
         {.batch_micro = 1,
          .seq = 128,
          .logits_of_matmul = .9,
          .logits_of_other = .5,
          .logits_chunk = 32},
         TIME_MATMUL,
         "batch.micro",
         "bound by compute"},
        {{.6, .05, .3, .03, 0, 0, .02},
         {.batch_micro = 1, .seq = 128, .logits_of_matmul = .3, .logits_of_other = .5},
         TIME_MATMUL,
         "batch.micro",
         "few tokens"},
        {{.2, .1, .1, .55, 0, .03, .02},
         {.batch_micro = 1, .seq = 32},
         TIME_OPTIMIZER,
         "batch.micro",
         "bound by optimizer"},
        // By the roofline these products wait for memory.
        {{.7, .1, .1, .05, 0, .03, .02},
         {.batch_micro = 1,
          .seq = 128,
          .matmul_flops_per_byte = 5,
          .matmul_flops_per_s = 4e10,
          .best_matmul_flops_per_s = 1e11,
          .best_bytes_per_s = 1e10},
         TIME_MATMUL,
         "batch.micro",
         "bound by memory bandwidth"},
        {{.7, .1, .1, .05, 0, .03, .02}, {.threads = 1, .cpus = 4}, TIME_MATMUL, "threads", "CPUs"},
        {{.7, .1, .1, .05, 0, .03, .02},
         {.threads = 8, .cpus = 4},
         TIME_MATMUL,
         "threads",
         "turns"},
        {{.7, .1, .1, .05, 0, .03, .02},
         {.threads = 4,
          .cpus = 4,
          .batch_micro = 1,
          .seq = 128,
          .matmul_flops_per_s = 4e10,
          .best_matmul_flops_per_s = 1e11},
         TIME_MATMUL,
         "batch.micro",
         "at 40 % of the best rate"},
        {{.7, .1, .1, .05, 0, .03, .02},
         {.threads = 4,
          .cpus = 4,
          .batch_micro = 8,
          .seq = 512,
          .matmul_flops_per_s = 9e10,
          .best_matmul_flops_per_s = 1e11},
         TIME_MATMUL,
         NULL,
         "near this machine's best"},
        {{.2, .6, .1, .05, 0, .03, .02},
         {.threads = 2, .cpus = 2},
         TIME_ATTENTION,
         "seq",
         "60 % attention"},
        {{.2, .1, .1, .55, 0, .03, .02},
         {.replicas = 1},
         TIME_OPTIMIZER,
         "batch.accum",
         "55 % optimizer"},
        {{.2, .1, .1, .05, 0, .03, .52}, {.replicas = 1}, TIME_HOST, "batch.micro", "52 % host"},
        {{.5, .1, .1, .05, .2, .03, .02}, {.replicas = 4}, TIME_MATMUL, "batch.accum", "20 % comm"},
        {{.5, .1, .1, .05, .2, .03, .02},
         {.replicas = 2, .tensor = 2},
         TIME_MATMUL,
         "parallel.tensor",
         "20 % comm"},
        {{.2, .1, .6, .05, 0, .03, .02},
         {.other_bytes_per_s = 5e9, .best_bytes_per_s = 1e10},
         TIME_OTHER,
         NULL,
         "50 % of memory bandwidth"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct verdict v;
        struct time_split s = split_of(cases[i].part);
        verdict_of(&v, &s, &cases[i].facts);
        if (v.dominant != cases[i].dominant || (v.knob == NULL) != (cases[i].knob == NULL) ||
            (v.knob != NULL && strcmp(v.knob, cases[i].knob) != 0) ||
            strstr(v.text, cases[i].contains) == NULL)
            fail_msg("case %zu: %s (knob %s)", i, v.text, v.knob ? v.knob : "none");
    }
    struct verdict v;
    struct time_split none = {0};
    struct verdict_facts facts = {0};
    verdict_of(&v, &none, &facts);
    assert_null(v.knob);
    assert_string_equal(v.bound, "");
    assert_non_null(strstr(v.text, "nothing was measured"));
}

// A device of 100 TFLOP/s in products, 50 in attention and 1 TB/s. Its verdicts speak of the
// distance to these, and never of a shorter sequence.
#define DEVICE(with_graphs, micro, batches, ...)                                                   \
    {                                                                                              \
        .device = true, .graphs = (with_graphs), .batch_micro = (micro),                           \
        .micro_batches = (batches), .seq = 1024, .best_matmul_flops_per_s = 1e14,                  \
        .best_attention_flops_per_s = 5e13, .best_bytes_per_s = 1e12, __VA_ARGS__                  \
    }
#define NEAR                                                                                       \
    .matmul_flops_per_s = 9.2e13, .attention_flops_per_s = 4.5e13, .other_bytes_per_s = 8e11,      \
    .optimizer_bytes_per_s = 9e11

static void test_device_verdicts(void **state) {
    (void)state;
    static const struct {
        double part[TIME_COUNT]; // matmul attention other optimizer comm data_wait host
        struct verdict_facts facts;
        const char *knob, *contains;
    } cases[] = {
        {{.71, .15, .08, .05, 0, 0, .01},
         DEVICE(true, 16, 1, NEAR),
         NULL,
         "bound by compute: matrix products 71 % of the step at 92 % of the best rate here, "
         "attention 15 % at 90 %, other ops 8 % at 80 % of a copy's bandwidth, the optimizer 5 % "
         "at 90 % of a copy's bandwidth, the rest 1 %; at the best rates here the step would take "
         "90 % of its time; the step runs near the best rates here: only less work would be "
         "faster"},
        // Attention that is far from its best: only document boundaries can be dropped.
        {{.2, .6, .1, .05, 0, 0, .05},
         DEVICE(true, 16, 1, .matmul_flops_per_s = 9e13, .attention_flops_per_s = 2e13,
                .other_bytes_per_s = 8e11, .documents = true),
         "data.pack",
         "attention 60 % of the step at 40 % of the best rate here, matrix products 20 % at 90 %"},
        {{.2, .6, .1, .05, 0, 0, .05},
         DEVICE(true, 16, 1, .matmul_flops_per_s = 9e13, .attention_flops_per_s = 2e13,
                .other_bytes_per_s = 8e11),
         NULL,
         "no setting is known"},
        {{.7, .01, .2, .05, 0, 0, .04},
         DEVICE(true, 16, 1, .matmul_flops_per_s = 9e13, .attention_flops_per_s = 2e13,
                .other_bytes_per_s = 8e11, .documents = true),
         NULL,
         "near the best rates"},
        // Small matrices, and large ones that are slow all the same.
        {{.7, .1, .1, .05, 0, 0, .05},
         DEVICE(true, 1, 1, .matmul_flops_per_s = 5e13, .attention_flops_per_s = 4e13),
         "batch.micro",
         "larger matrices"},
        {{.7, .1, .1, .05, 0, 0, .05},
         DEVICE(true, 16, 1, .matmul_flops_per_s = 5e13, .attention_flops_per_s = 4e13),
         NULL,
         "at 50 % of the best rate here"},
        // A device that waits for the host.
        {{.5, .1, .1, .05, 0, 0, .25},
         DEVICE(false, 16, 1, NEAR),
         "cuda.graphs",
         "between kernels"},
        {{.7, .1, .1, .05, 0, 0, .05},
         DEVICE(false, 16, 1, NEAR, .launch_of_step = .8),
         "cuda.graphs",
         "one by one takes most of the step"},
        {{.7, .1, .1, .05, 0, 0, .05},
         DEVICE(true, 16, 1, NEAR, .launch_of_step = .8),
         NULL,
         "near the best"},
        {{.5, .1, .1, .05, 0, 0, .25},
         DEVICE(true, 16, 8, NEAR),
         "batch.micro",
         "waiting for the host 25 %"},
        {{.2, .1, .1, .05, 0, .5, .05},
         DEVICE(true, 16, 1, NEAR, .data_workers = 1),
         "data.prefetch",
         "waiting for data 50 % of the step"},
        // fp32 where bf16 is much faster.
        {{.8, .1, .05, .05, 0, 0, 0},
         DEVICE(true, 16, 1, NEAR, .best_bf16_flops_per_s = 7e14),
         "precision",
         "several times as fast"},
        {{.8, .1, .05, .05, 0, 0, 0},
         DEVICE(true, 16, 1, NEAR, .best_bf16_flops_per_s = 1.5e14),
         NULL,
         "near the best"},
        // The price of repeatable sums, where it is known.
        {{.6, .3, .05, .05, 0, 0, 0},
         DEVICE(true, 16, 1, NEAR, .order_of_step = .071),
         NULL,
         "cuda.deterministic=true costs about 7 %"},
        // Nothing was measured here.
        {{.6, .3, .05, .05, 0, 0, 0}, {.device = true, .graphs = true}, NULL, "run haggle doctor"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct verdict v;
        const struct time_split s = split_of(cases[i].part);
        verdict_of(&v, &s, &cases[i].facts);
        if ((v.knob == NULL) != (cases[i].knob == NULL) ||
            (v.knob != NULL && strcmp(v.knob, cases[i].knob) != 0) ||
            strstr(v.text, cases[i].contains) == NULL)
            fail_msg("case %zu: %s (knob %s)", i, v.text, v.knob ? v.knob : "none");
        assert_null(strstr(v.text, "first knob to try: seq"));
        assert_true(strlen(v.text) < VERDICT_TEXT_BYTES - 1);
    }
}

static void test_metrics_json(void **state) {
    struct samples samples;
    struct trace t;
    assert_int_equal(samples_open(&samples, 1000, NULL), 0);
    assert_int_equal(trace_open(&t, *state, 0, NULL), 0);
    const struct op matmul = op_of(OP_MATMUL, 0);
    for (uint64_t i = 0; i < 100; i++) {
        trace_begin_step(&t, (uint32_t)i, 0);
        trace_add_op(&t, &matmul, 0, 0, 0, 6000000);
        trace_end_step(&t, 8000000);
        samples_add(&samples, 8e6 + (double)i);
    }
    const struct data_use use = {.source_bytes = 2000, .cache_hits = 3, .cache_misses = 4};
    struct metrics_input in = {.step_ns = &samples,
                               .trace = &t,
                               .wall_ns = 1000000000,
                               .tokens = 102400,
                               .real_tokens = 102400,
                               .trained_tokens = 100000,
                               .data = use,
                               .batch_micro = 4,
                               .samples_per_step = 16,
                               .model_flops_per_step = 1e9,
                               .peak_flops_per_s = 1e12};
    struct run_metrics m;
    metrics_compute(&m, &in);
    assert_true(fabs(m.tokens_per_s - 102400) < 1e-6);
    assert_true(fabs(m.ms_per_sample - 8.000049 * 4 / 16) < 1e-9);
    assert_true(fabs(m.utilization - 0.75) < 1e-12);
    assert_true(fabs(m.mfu - 0.1) < 1e-12);
    assert_true(isnan(m.hfu));
    metrics_add_class(&m, "weights", 1000);
    metrics_add_class(&m, "data", 24);
    m.memory_predicted_bytes = 1024;
    m.loss_first = 5.5;

    struct json_writer w;
    json_writer_to_buffer(&w, 0);
    json_put_object_begin(&w);
    metrics_put_members(&m, &w);
    json_put_object_end(&w);
    assert_int_equal(json_writer_finish(&w, NULL), 0);
    static const char *const parts[] = {
        "\"tokens_per_s\":102400",
        "\"trained_tokens_per_s\":100000",
        "\"step_ms\":{\"p50\":8.000049",
        "\"n\":100",
        "\"p99_upper95\":null",
        "\"p95_upper95\":8.0000",
        "\"utilization\":0.75",
        "\"time_split\":{\"matmul\":0.75,\"attention\":0",
        "\"host\":0.25",
        "\"time_split_ms\":{\"matmul\":6",
        "\"data\":{\"source_bytes\":2000,\"source_bytes_per_s\":2000,\"cache_hits\":3",
        "\"predicted_bytes\":1024",
        "\"measured_bytes\":null",
        "\"by_class\":{\"weights\":1000,\"data\":24}",
        "\"loss\":{\"first\":5.5,\"last\":null}",
        "\"hfu\":null",
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strstr(w.buffer, parts[i]) == NULL)
            fail_msg("%s is not in %s", parts[i], w.buffer);
    struct region r = {0};
    struct json_reader reader;
    json_reader_init(&reader, "metrics", w.buffer, w.bytes, &r, NULL);
    json_skip(&reader);
    assert_int_equal(json_finish(&reader), 0);
    region_free(&r);
    free(w.buffer);
    trace_close(&t);
    samples_close(&samples);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_split_adds_up, open_mem, close_mem),
        cmocka_unit_test_setup_teardown(test_no_ring, open_mem, close_mem),
        cmocka_unit_test_setup_teardown(test_cost_of_adding, open_mem, close_mem),
        cmocka_unit_test(test_verdicts),
        cmocka_unit_test(test_device_verdicts),
        cmocka_unit_test_setup_teardown(test_metrics_json, open_mem, close_mem),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
