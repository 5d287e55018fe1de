// test_requests.c - the queue between clients and the run: since when a line waits, and the order
// of answers. The test is both the client, at the other ends of two pipes, and the training thread.
#include "serve/requests.h"

#include "base/clock.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { LINES_MOST = 4096 };
static const uint64_t PATIENCE_NS = 20000000000;

struct fixture {
    struct knobs knobs;
    struct requests *requests;
    struct guest_source source;
    int in[2], out[2];
    FILE *answers;
    uint64_t sent_ns[LINES_MOST]; // for each line: time before it was written
    int sent;
};

static void worked(int rc, const struct err *e) {
    if (rc != 0)
        fail_msg("unexpected error %d: %s", rc, e->text);
}

static int setup(void **state) {
    struct fixture *f = calloc(1, sizeof *f);
    struct err e = {0};
    assert_non_null(f);
    knobs_init(&f->knobs);
    worked(knobs_set_assignment(&f->knobs, "goal=hybrid", SET_BY_COMMAND_LINE, &e), &e);
    worked(knobs_set_assignment(&f->knobs, "interactive.seq=16", SET_BY_COMMAND_LINE, &e), &e);
    assert_int_equal(pipe(f->in), 0);
    assert_int_equal(pipe(f->out), 0);
    f->answers = fdopen(f->out[0], "r");
    assert_non_null(f->answers);
    const struct requests_options o = {
        .request = {.knobs = &f->knobs, .vocab = 320}, .in = f->in[0], .out = f->out[1]};
    worked(requests_open(&f->requests, &o, &e), &e);
    f->source = requests_source(f->requests);
    worked(f->source.begin(f->source.arg, &e), &e);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    f->source.end(f->source.arg);
    requests_close(f->requests);
    fclose(f->answers);
    close(f->in[0]);
    close(f->in[1]);
    close(f->out[1]);
    free(f);
    return 0;
}

static void ask(struct fixture *f) {
    char line[80];
    const int n =
        snprintf(line, sizeof line, "{\"evaluate\": {\"text\": \"ab\"}, \"id\": %d}\n", f->sent);
    assert_true(f->sent < LINES_MOST);
    f->sent_ns[f->sent++] = clock_ns();
    assert_int_equal(write(f->in[1], line, (size_t)n), n);
}

static struct guest_sample take(struct fixture *f) {
    const uint64_t until_ns = clock_ns() + PATIENCE_NS;
    struct guest_sample x;
    while (!f->source.next(f->source.arg, true, &x)) {
        if (clock_ns() > until_ns)
            fail_msg("no sample came");
        usleep(50);
    }
    return x;
}

static void answer(struct fixture *f, const struct guest_sample *x) {
    const struct guest_answer a = {.error = "", .loss = 1, .own_step = -1};
    f->source.answer(f->source.arg, x, &a);
}

static int heard(struct fixture *f) {
    char line[512];
    int id;
    assert_non_null(fgets(line, sizeof line, f->answers));
    if (sscanf(line, "{\"id\":%d,", &id) != 1 && sscanf(line, "{\"id\": %d,", &id) != 1)
        fail_msg("an answer without its id: %s", line);
    return id;
}

// A client that always has `flight` lines in flight, each written separately. No wait is counted
// from a time before the line `slack` lines earlier was sent.
static void pipeline(struct fixture *f, int flight, int slack, int lines) {
    for (int i = 0; i < flight; i++)
        ask(f);
    for (int i = 0; i < lines; i++) {
        const struct guest_sample x = take(f);
        const int since = i < slack ? 0 : i - slack;
        if (x.arrived_ns < f->sent_ns[since])
            fail_msg("line %d waits since %.3f ms before line %d was sent", i,
                     1e-6 * (double)(f->sent_ns[since] - x.arrived_ns), since);
        assert_true(x.arrived_ns <= clock_ns());
        answer(f, &x);
        assert_int_equal(heard(f), i);
        ask(f);
    }
}

static void test_a_line_waits_since_it_came(void **state) {
    pipeline(*state, 32, 0, 400);
}

// More reads than are remembered: neighbours share a time, and it is dropped with its lines.
static void test_many_lines_wait_here(void **state) {
    pipeline(*state, 300, 2 * 300, 2400);
}

// Slots have no order. Answers that become known together are sent in the order of completion.
static void test_answers_in_their_order(void **state) {
    enum { TOGETHER = 8 };
    struct fixture *f = *state;
    struct guest_sample x[TOGETHER];
    for (int round = 0; round < 20; round++) {
        const int first = f->sent;
        for (int i = 0; i < TOGETHER; i++)
            ask(f);
        for (int i = 0; i < TOGETHER; i++)
            x[i] = take(f);
        for (int i = TOGETHER; i-- > 0;)
            answer(f, &x[i]);
        for (int i = TOGETHER; i-- > 0;)
            assert_int_equal(heard(f), first + i);
    }
}

// Stops the run and returns how many answers were lost.
static uint64_t lost(struct fixture *f, struct err *e) {
    f->source.end(f->source.arg);
    const uint64_t n = requests_counts(f->requests).lost;
    const int rc = requests_lost(f->requests, e);
    assert_int_equal(rc, n > 0 ? ERR_IO : 0);
    return n;
}

// Answers that the other side does not read are counted, and what it got are whole lines.
static void test_answers_that_nobody_reads(void **state) {
    struct fixture *f = *state;
    struct err e = {0};
    char *text = calloc(1, 1 << 20), whole[64];
    size_t bytes = 0, lines = 0;
    uint64_t answered = 0;
    assert_non_null(text);
    // The pipe takes 64 KiB, the run's buffer about as much. The input pipe must never be full.
    for (int i = 0; i < 1200; i++) {
        struct guest_sample x = {0};
        ask(f);
        for (int k = 0; k < 20 && !f->source.next(f->source.arg, true, &x); k++)
            usleep(50);
        if (x.ticket != NULL)
            answer(f, &x), answered++;
    }
    const uint64_t gone = lost(f, &e);
    if (gone == 0)
        fail_msg("no answer was lost, %d were asked for", f->sent);
    snprintf(whole, sizeof whole, "%d answers were lost", (int)gone);
    assert_non_null(strstr(e.text, whole));
    assert_non_null(strstr(e.text, "not read within a second"));
    bytes = (size_t)read(f->out[0], text, (1 << 20) - 1);
    for (size_t i = 0; i < bytes; i++)
        lines += text[i] == '\n';
    assert_int_equal(text[bytes - 1], '\n'); // the last line is whole
    assert_true(lines + gone <= (size_t)f->sent && lines + gone >= answered);
    free(text);
}

static void test_a_reader_that_is_gone(void **state) {
    struct fixture *f = *state;
    struct err e = {0};
    signal(SIGPIPE, SIG_IGN);
    close(f->out[0]);
    for (int i = 0; i < 5; i++) {
        ask(f);
        const struct guest_sample x = take(f);
        answer(f, &x);
    }
    assert_int_equal(lost(f, &e), 5);
    assert_non_null(strstr(e.text, "5 answers were lost: the standard output is no longer read"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_line_waits_since_it_came, setup, teardown),
        cmocka_unit_test_setup_teardown(test_many_lines_wait_here, setup, teardown),
        cmocka_unit_test_setup_teardown(test_answers_in_their_order, setup, teardown),
        cmocka_unit_test_setup_teardown(test_answers_that_nobody_reads, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_reader_that_is_gone, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
