// test_requests_print.c - what a hybrid run's result says about its requests.
#include "report/requests_print.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

// Percentiles cover fewer answers than there were. Both numbers are printed.
static void test_of_how_many(void **state) {
    struct knobs k;
    struct err e = {0};
    struct requests *requests = NULL;
    const struct predicted_answers longest = {0};
    struct json_writer w;
    (void)state;
    knobs_init(&k);
    assert_int_equal(knobs_set_assignment(&k, "goal=hybrid", SET_BY_COMMAND_LINE, &e), 0);
    const struct requests_options o = {.request = {.knobs = &k, .vocab = 320}, .in = -1, .out = -1};
    assert_int_equal(requests_open(&requests, &o, &e), 0);
    const struct quantile q = {.p = 0.5, .value = 2e6, .upper95 = 3e6, .n = 8192, .n_needed = 5};
    const struct guest_figures some = {
        .answered = 10000, .worst_ns = 9e6, .p50 = q, .p95 = q, .p99 = q};
    const struct guest_report g = {.on = true, .kinds = {some, some}, .all = some};
    const struct requests_counts n = requests_counts(requests);
    json_writer_to_buffer(&w, 0);
    json_put_object_begin(&w);
    requests_put_result_json(&n, &longest, &g, &k, &w);
    json_put_object_end(&w);
    assert_int_equal(json_writer_finish(&w, &e), 0);
    const char *at = w.buffer;
    for (int i = 0; i < 3; i++, at++) {
        at = strstr(at, "\"answered\":10000,\"n\":8192,");
        if (at == NULL)
            fail_msg("%s", w.buffer);
    }
    free(w.buffer);
    requests_close(requests);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_of_how_many)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
