// test_views.c - the Perfetto file is JSON with the right events; the live line fits.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/json.h"
#include "report/live.h"
#include "report/perfetto.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct seen {
    int events, steps, tracks, matmuls;
    double end[STREAM_COUNT + 1]; // end of the last event on each track
    double last_layer;
    char segment[64];
};

static void read_event(struct json_reader *r, struct seen *s) {
    const char *key, *ph = "", *name = "", *segment = "";
    double ts = -1, dur = -1, tid = -1, pid = -1, layer = -1;
    json_enter_object(r);
    while (json_next_key(r, &key)) {
        if (strcmp(key, "ph") == 0)
            json_read_string(r, &ph, NULL);
        else if (strcmp(key, "name") == 0)
            json_read_string(r, &name, NULL);
        else if (strcmp(key, "ts") == 0)
            json_read_double(r, &ts);
        else if (strcmp(key, "dur") == 0)
            json_read_double(r, &dur);
        else if (strcmp(key, "tid") == 0)
            json_read_double(r, &tid);
        else if (strcmp(key, "pid") == 0)
            json_read_double(r, &pid);
        else if (strcmp(key, "args") == 0) {
            json_enter_object(r);
            while (json_next_key(r, &key)) {
                if (strcmp(key, "layer") == 0)
                    json_read_double(r, &layer);
                else if (strcmp(key, "segment") == 0)
                    json_read_string(r, &segment, NULL);
                else
                    json_skip(r);
            }
        } else
            json_skip(r);
    }
    assert_true(pid == 3);
    if (strcmp(ph, "M") == 0) {
        s->tracks++;
        return;
    }
    assert_string_equal(ph, "X");
    assert_true(tid >= 0 && tid <= STREAM_COUNT && ts >= 0 && dur >= 0);
    assert_true(ts >= s->end[(int)tid] - 1e-9); // tracks do not overlap
    s->end[(int)tid] = ts + dur;
    s->events++;
    s->steps += strncmp(name, "step ", 5) == 0;
    if (strcmp(name, "matmul") == 0) {
        s->matmuls++;
        s->last_layer = layer;
        snprintf(s->segment, sizeof s->segment, "%s", segment);
    }
}

static void test_perfetto(void **state) {
    (void)state;
    struct mem *m;
    struct trace t;
    char dir[256], path[300];
    assert_int_equal(file_make_temp_dir(dir, sizeof dir, "trace", NULL), 0);
    snprintf(path, sizeof path, "%s/trace.json", dir);
    assert_int_equal(mem_open(&m, NULL), 0);
    assert_int_equal(trace_open(&t, m, 4096, NULL), 0);
    const struct op matmul = {.kind = OP_MATMUL, .stream = STREAM_COMPUTE, .layer = 11};
    const struct op send = {.kind = OP_SEND, .stream = STREAM_COMM, .layer = -1};
    uint64_t now = UINT64_C(987654321012345678); // a long uptime: the fraction must survive
    for (uint32_t step = 0; step < 300; step++) {
        trace_begin_step(&t, step, now);
        trace_add_span(&t, SPAN_DATA_WAIT, now, now + 10);
        trace_add_op(&t, &matmul, 1, 0, now + 10, now + 1011);
        trace_add_op(&t, &send, 0, 0, now + 10, now + 500);
        now += 1234;
        trace_end_step(&t, now);
    }
    const char *names[] = {"begin", "forward \"0\""};
    struct err e = {0};
    assert_int_equal(
        perfetto_write(&t, path,
                       &(struct perfetto_rank){.rank = 3, .segment_names = names, .n_segments = 2},
                       &e),
        0);
    char *text;
    size_t bytes;
    assert_int_equal(file_read_all(path, 1 << 24, &text, &bytes, &e), 0);
    struct region strings = {0};
    struct json_reader r;
    json_reader_init(&r, path, text, bytes, &strings, &e);
    struct seen s = {0};
    const char *key;
    json_enter_object(&r);
    while (json_next_key(&r, &key)) {
        if (strcmp(key, "traceEvents") != 0) {
            json_skip(&r);
            continue;
        }
        json_enter_array(&r);
        while (json_next_element(&r))
            read_event(&r, &s);
    }
    if (json_finish(&r) != 0)
        fail_msg("%s", e.text);
    assert_int_equal(s.events, 1200);
    assert_int_equal(s.steps, 300);
    assert_int_equal(s.matmuls, 300);
    assert_int_equal(s.tracks, 2 + STREAM_COUNT);
    assert_true(s.last_layer == 11);
    assert_string_equal(s.segment, "forward \"0\"");
    assert_true(fabs(s.end[STREAM_COMPUTE] - (299 * 1.234 + 1.011)) < 1e-6);
    region_free(&strings);
    free(text);
    assert_int_equal(file_remove_tree(dir, &e), 0);
    assert_int_equal(perfetto_write(&t, "/no/such/folder/t.json", &(struct perfetto_rank){0}, &e),
                     ERR_IO);
    trace_close(&t);
    mem_close(m);
}

static const struct live_numbers numbers = {.step = 120,
                                            .total_steps = 1000,
                                            .loss = 2.34567,
                                            .lr = 3e-4,
                                            .grad_norm = 0.87,
                                            .tokens_per_s = 12345,
                                            .times_of = 120,
                                            .step_p50_ms = 41.2,
                                            .step_p99_ms = 60,
                                            .data_wait = 0.012,
                                            .memory_bytes = 1610612736,
                                            .eta_s = 247};

static void test_live_fits(void **state) {
    (void)state;
    char text[LIVE_TEXT_BYTES];
    for (int columns = 1; columns <= 200; columns++)
        assert_true(strlen(live_format(text, &numbers, columns)) <= (size_t)columns);
    static const int shown[] = {60, 80, 100, 120};
    for (int i = 0; i < 4; i++)
        print_message("%s\n", live_format(text, &numbers, shown[i]));
    assert_non_null(strstr(live_format(text, &numbers, 110), "norm 0.87")); // all of it fits
    assert_non_null(strstr(live_format(text, &numbers, 60), "loss 2.346"));
    assert_null(strstr(live_format(text, &numbers, 60), "norm"));
    static const char *const all[] = {"step 120/1000", "loss 2.346", "lr 0.0003",
                                      "norm 0.87",     "tok/s",      "last 120: p50 41.2 p99 60 ms",
                                      "wait 1%",       "1.50 GiB",   "eta 4m 07s"};
    live_format_plain(text, &numbers);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strstr(text, all[i]) == NULL)
            fail_msg("%s is not in %s", all[i], text);
    // Of several ranks: who has the most work, and how long they wait for each other.
    struct live_numbers ranks = numbers;
    ranks.slowest_rank = 3, ranks.slowest_ms = 12, ranks.ranks_wait = 0.83;
    assert_non_null(strstr(live_format_plain(text, &ranks),
                           "slowest rank 3 12.0 ms  ranks wait 83%  1.50 GiB"));
    struct live_numbers unknown = {.step = 3,
                                   .loss = NAN,
                                   .lr = NAN,
                                   .grad_norm = NAN,
                                   .tokens_per_s = NAN,
                                   .step_p50_ms = NAN,
                                   .step_p99_ms = NAN,
                                   .data_wait = NAN,
                                   .eta_s = NAN};
    assert_string_equal(live_format(text, &unknown, 80), "step 3");
    struct live_numbers wild = {.step = INT64_MAX,
                                .total_steps = INT64_MAX,
                                .loss = -1e300,
                                .lr = 1e300,
                                .grad_norm = INFINITY,
                                .tokens_per_s = 1e300,
                                .step_p50_ms = 1e300,
                                .step_p99_ms = INFINITY,
                                .data_wait = 1e300,
                                .memory_bytes = UINT64_MAX,
                                .eta_s = 1e300};
    for (int columns = 1; columns <= 200; columns++)
        assert_true(strlen(live_format(text, &wild, columns)) <= (size_t)columns);
    live_format_plain(text, &wild);
}

static void test_plain_lines(void **state) {
    (void)state;
    char *out = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&out, &bytes);
    assert_non_null(stream);
    struct log log;
    log_init(&log, stream);
    struct live live;
    live_init(&live, &log, 10);
    struct live_numbers n = numbers;
    n.total_steps = 35;
    for (n.step = 1; n.step <= 33; n.step++)
        live_show(&live, &n, (uint64_t)n.step * 1000000000);
    n.step = 33; // stopped early: the last state is not lost
    live_end(&live, &n);
    n.step = 35;
    live_show(&live, &n, 1);
    live_end(&live, &n);
    fclose(stream);
    int lines = 0;
    for (const char *p = out; (p = strchr(p, '\n')) != NULL; p++)
        lines++;
    assert_int_equal(lines, 5); // 10, 20, 30, 33, 35
    assert_non_null(strstr(out, "step 33/35"));
    assert_null(strchr(out, '\r'));
    free(out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_perfetto),
        cmocka_unit_test(test_live_fits),
        cmocka_unit_test(test_plain_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
