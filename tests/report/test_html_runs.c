// test_html_runs.c - runs read back from their folders: whole, resumed, killed and damaged. And
// their pages.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"
#include "data/scratch.h"
#include "report/html.h"
#include "report/html_figures.h"

#include <math.h>
#include <sys/stat.h>

#define START(step, more)                                                                          \
    "{\"event\":\"start\",\"haggle\":\"0.1.0\",\"model\":\"tiny\",\"parameters\":779392,"          \
    "\"data\":\"corpus\",\"device\":\"cpu\",\"step\":" #step ",\"steps\":100" more                 \
    ",\"time\":1e9}\n"

// ---------------------------------------------------------------- writing logs

struct text {
    FILE *f;
    char *bytes;
    size_t n;
};

static void text_open(struct text *t) {
    t->f = open_memstream(&t->bytes, &t->n);
    assert_non_null(t->f);
}

static void put_steps(struct text *t, int from, int to, double loss, double ms) {
    for (int i = from; i <= to; i++)
        fprintf(t->f,
                "{\"step\":%d,\"loss\":%.17g,\"lr\":0.001,\"grad_norm\":1.5,\"tokens\":%d,"
                "\"tokens_per_s\":640,\"step_ms\":%.17g,\"data_wait_ms\":1,\"time\":%d}\n",
                i, loss, 64 * i, ms + i, 1000000000 + i);
}

// A folder for one run, inside the folder of the test.
static const char *run_dir(struct folder *f, const char *name) {
    const char *dir = folder_path(f, name);
    assert_true(mkdir(dir, 0777) == 0 || file_is_dir(dir));
    return dir;
}

static void save(const char *dir, const char *name, const char *bytes, size_t n) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_int_equal(file_write_atomic(path, bytes, n, NULL), 0);
}

static void save_log(struct text *t, const char *dir) {
    fclose(t->f);
    save(dir, "log.jsonl", t->bytes, t->n);
    free(t->bytes);
}

static void read_run(struct run_read *r, const char *dir) {
    struct err e = {0};
    int rc = run_read_open(r, dir, &e);
    if (rc != 0)
        print_error("%s\n", e.text);
    assert_int_equal(rc, 0);
}

static bool says(const struct run_read *r, const char *part) {
    for (int i = 0; i < r->n_problems; i++)
        if (strstr(r->problems[i], part))
            return true;
    return false;
}

static char *page_of(struct run_read *runs, size_t n) {
    struct text t;
    text_open(&t);
    html_report(t.f, runs, n);
    assert_int_equal(fclose(t.f), 0);
    return t.bytes;
}

// ---------------------------------------------------------------- a run that ended well

static const char RESULT[] =
    "{\"verb\":\"train\",\"model\":{\"name\":\"tiny\"},"
    "\"machine\":{\"cpu\":\"A <b>CPU</b>\",\"usable_cpus\":2,\"caches\":[{\"level\":1}]},"
    "\"run\":{\"end\":\"done\",\"first_step\":0,\"step\":60,\"warmup_steps\":3,\"wall_s\":9.5,"
    "\"predicted_step_ms\":100,\"on_device\":false,\"loss_scale\":null},"
    "\"tokens_per_s\":1234.5,\"trained_tokens_per_s\":null,\"ms_per_sample\":11,\"utilization\":0."
    "9,"
    "\"time_split\":{\"matmul\":0.6,\"data_wait\":0.4,\"comm\":0},"
    "\"memory\":{\"predicted_bytes\":3000,\"measured_bytes\":3300,"
    "\"by_class\":{\"weights\":1000,\"activations\":2000}},"
    "\"mfu\":0.25,\"hfu\":-1,\"verdict\":{\"text\":\"mostly matmul\",\"knob\":\"batch.micro\"}}\n";

static void test_whole(void **state) {
    struct folder *f = *state;
    const char *dir = run_dir(f, "whole");
    struct text t;
    struct run_read r;
    text_open(&t);
    fputs(START(0, ",\"warmup_steps\":3"), t.f);
    put_steps(&t, 1, 60, 3, 100);
    fputs("{\"event\":\"eval\",\"step\":30,\"validation_loss\":3.5,\"time\":1e9}\n"
          "{\"event\":\"eval\",\"step\":60,\"validation_loss\":3.25,\"time\":1e9}\n"
          "{\"event\":\"save\",\"step\":60,\"path\":\"x\",\"time\":1e9}\n",
          t.f);
    save_log(&t, dir);
    save(dir, "result.json", RESULT, sizeof RESULT - 1);
    static const char recipe[] = "model: \"ti # recipe\"   # command line\n"
                                 "steps: 100    # recipe\n"
                                 "optim:\n  lr: 0.0003   # default\n  clip: 1.0\n"
                                 "new.knob: 7\n";
    save(dir, "recipe.yaml", recipe, sizeof recipe - 1);
    read_run(&r, dir);
    const struct run_log *g = &r.log;
    assert_string_equal(r.name, "whole");
    assert_int_equal(r.n_problems, 0);
    assert_true(g->steps == 60 && g->first_step == 1 && g->last_step == 60 && g->damaged == 0);
    assert_string_equal(g->model, "tiny");
    assert_int_equal(g->steps_planned, 100);
    // Warm-up is in the curves but not in the percentiles. Of 104 to 160 ms, the 29th of 57 is 132.
    assert_true(g->warmup == 3 && g->p50.n == 57 && fabs(1e-6 * g->p50.value - 132) < 1e-9);
    assert_true(isnan(g->p95.upper95) && !isnan(g->p50.upper95));
    assert_true(g->columns->column[1].warmup && !g->columns->column[10].warmup);
    assert_true(g->evals == 2 && g->eval_last == 3.25 && g->eval_best_step == 60);
    assert_true(g->saves == 1 && g->loss_first == 3 && fabs(g->smooth_last - 3) < 1e-12);
    // An impossible value (a negative share) or one that was not measured is not known.
    assert_true(r.result.is_there && r.result.tokens_per_s == 1234.5 && isnan(r.result.hfu));
    assert_true(isnan(r.result.trained_tokens_per_s) && r.result.mfu == 0.25);
    assert_true(r.result.n_split == 2 && r.result.n_memory == 2);
    // Settings: defaults are left out, in any notation. The rest name their source. Names that this
    // version does not know are kept.
    assert_int_equal(r.n_settings, 3);
    assert_string_equal(r.settings[0].value, "ti # recipe");
    assert_string_equal(r.settings[0].by, "command line");
    assert_string_equal(r.settings[1].by, "recipe");
    assert_string_equal(r.settings[1].initial, "200");
    assert_string_equal(r.settings[2].name, "new.knob");

    char *page = page_of(&r, 1);
    for (const char *const *id = (const char *const[]){"loss", "lr", "norm", "times", "histogram",
                                                       "cdf", "split", "memory", NULL};
         *id; id++) {
        char figure[64];
        snprintf(figure, sizeof figure, "<figure id=\"%s\">", *id);
        assert_non_null(strstr(page, figure));
    }
    assert_non_null(strstr(page, "mostly matmul"));
    assert_non_null(strstr(page, "A &lt;b&gt;CPU&lt;/b&gt;"));
    assert_non_null(strstr(page, "132 ms"));
    assert_non_null(strstr(page, "over steps 4 to 60, n=57, no 95 % bound; need 59"));
    assert_non_null(strstr(page, "latency of a sample"));
    assert_null(strstr(page, "nan"));
    assert_null(strstr(page, "http://"));
    assert_null(strstr(page, "https://"));
    assert_null(strstr(page, " src="));
    free(page);
    run_read_close(&r);
}

// ---------------------------------------------------------------- resumed, killed

// Steps 1 to 50, killed. Resumed at 30 up to 45, killed. Resumed at 40 up to 60. Each step counts
// as it was trained last.
// A page of one run with steps of 101 to 160 ms, all equally frequent, and this result.
static char *page_with(const char *dir, const char *result, struct run_read *r) {
    struct text t;
    text_open(&t);
    fputs(START(0, ",\"warmup_steps\":3"), t.f);
    put_steps(&t, 1, 60, 3, 100);
    save_log(&t, dir);
    save(dir, "result.json", result, strlen(result));
    read_run(r, dir);
    return page_of(r, 1);
}

// Two figures that show the same are one row.
static void test_twins(void **state) {
    struct folder *f = *state;
    struct run_read r;
    char *page = page_with(run_dir(f, "same"),
                           "{\"verb\":\"train\",\"tokens_per_s\":1234.5,\"trained_tokens_per_s\":"
                           "1234.45,\"ms_per_sample\":132,\"mfu\":0.25,\"hfu\":0.25}",
                           &r);
    assert_non_null(strstr(page, "<th scope=\"row\">tokens per second, all trained</th>"));
    assert_non_null(
        strstr(page, "<th scope=\"row\">median step (p50), also the latency of a sample</th>"));
    assert_non_null(strstr(page, "<th scope=\"row\">share of the peak rate (MFU, HFU)</th>"));
    assert_null(strstr(page, "trained tokens per second"));
    assert_null(strstr(page, ">latency of a sample<"));
    assert_null(strstr(page, "(HFU)"));
    free(page);
    run_read_close(&r);
    page = page_with(run_dir(f, "other"),
                     "{\"verb\":\"train\",\"tokens_per_s\":1234.5,\"trained_tokens_per_s\":900,"
                     "\"ms_per_sample\":33,\"mfu\":0.25,\"hfu\":0.3}",
                     &r);
    assert_non_null(strstr(page, "<th scope=\"row\">tokens per second</th>"));
    assert_non_null(strstr(page, "<th scope=\"row\">trained tokens per second</th>"));
    assert_non_null(strstr(page, "<th scope=\"row\">latency of a sample</th>"));
    assert_non_null(strstr(page, "(HFU)"));
    free(page);
    run_read_close(&r);
}

// The notes p50, p95 and p99 lie beside or above the bars, never on them.
static void test_notes(void **state) {
    struct folder *f = *state;
    struct run_read r;
    char *page = page_with(run_dir(f, "notes"), RESULT, &r);
    const char *begin = strstr(page, "<figure id=\"histogram\">");
    assert_non_null(begin);
    const char *end = strstr(begin, "</figure>");
    int notes = 0, bars = 0;
    for (const char *n = begin; (n = strstr(n, "<span class=\"note")) && n < end; n++, notes++) {
        double left, top;
        const bool before = strncmp(n, "<span class=\"note before\"", 25) == 0;
        assert_int_equal(sscanf(strstr(n, "left:"), "left:%lf%%;top:%lf", &left, &top), 2);
        left = 10 * left - (before ? 180 : 0); // in the drawing's units: 1000 by 1000
        for (const char *b = begin; (b = strstr(b, "<rect class=\"bin")) && b < end; b++, bars++) {
            double x, y, width;
            assert_int_equal(
                sscanf(strstr(b, "x=\""), "x=\"%lf\" y=\"%lf\" width=\"%lf", &x, &y, &width), 3);
            const bool across = x + width > left + 1 && x < left + 179;
            if (across && y < 10 * top + 95)
                fail_msg("a note at %.0f, %.0f lies on the bar at %.0f, %.0f", left, 10 * top, x,
                         y);
        }
    }
    assert_true(notes == 3 && bars > 30);
    free(page);
    run_read_close(&r);
}

static void test_resumed(void **state) {
    struct folder *f = *state;
    const char *dir = run_dir(f, "resumed");
    struct text t;
    struct run_read r;
    text_open(&t);
    fputs(START(0, ",\"warmup_steps\":2"), t.f);
    put_steps(&t, 1, 50, 5, 100);
    fputs("{\"event\":\"eval\",\"step\":50,\"validation_loss\":1,\"time\":1e9}\n", t.f);
    fputs(START(30, ",\"warmup_steps\":2,\"resumed_from\":\"c\""), t.f);
    put_steps(&t, 31, 45, 4, 200);
    fputs(START(40, ",\"warmup_steps\":2,\"resumed_from\":\"c\""), t.f);
    put_steps(&t, 41, 60, 3, 300);
    fputs("{\"step\":61,\"loss\":3,\"skipped\":true}\n", t.f);
    fputs("{\"step\":62,\"loss\":3,\"lr\"", t.f); // being written
    save_log(&t, dir);
    read_run(&r, dir);
    const struct run_log *g = &r.log;
    assert_true(g->steps == 61 && g->again == 20 + 5 && g->processes == 3);
    assert_true(g->torn && g->damaged == 0);
    assert_true(g->resumed.n == 2 && g->resumed.step[0] == 30 && g->resumed.step[1] == 40);
    assert_true(g->skipped.n == 1 && g->skipped.step[0] == 61);
    assert_int_equal(g->evals, 0); // the one in the log was of weights that were discarded
    for (int i = 0; i < g->columns->n; i++) {
        const struct column *c = &g->columns->column[i];
        double wanted = c->from <= 30 ? 5 : c->from <= 40 ? 4 : 3;
        assert_true(c->steps == 0 || (c->steps == 1 && c->value[COLUMN_LOSS].most == wanted));
    }
    assert_int_equal(g->warmup, 6);
    assert_true(says(&r, "25 steps were trained again"));
    assert_true(says(&r, "not finished"));
    assert_true(says(&r, "no result.json"));
    assert_true(says(&r, "no recipe.yaml"));
    char *page = page_of(&r, 1);
    assert_non_null(strstr(page, "class=\"line resume\""));
    assert_non_null(strstr(page, "class=\"line skip\""));
    assert_null(strstr(page, "<figure id=\"split\">"));
    assert_non_null(strstr(page, "no result.json"));
    free(page);
    run_read_close(&r);
}

// ---------------------------------------------------------------- damaged, hostile

static void test_damaged(void **state) {
    struct folder *f = *state;
    const char *dir = run_dir(f, "damaged");
    struct text t;
    struct run_read r;
    text_open(&t);
    fputs("{\"event\":\"start\",\"model\":\"</script><script>alert(1)</script>\",\"step\":0,"
          "\"data\":\"x\\\"'<img src=x>\"}\n",
          t.f);
    put_steps(&t, 1, 10, 3, 100);
    // 1 to 5: not an object, not JSON, an impossible step, a string as step (so none), two values
    fputs("[1,2]\nnonsense \x01\xFF\n{\"step\":-4,\"loss\":1}\n{\"step\":\"7\",\"loss\":1}\n"
          "{\"step\":11}{\"step\":12}\n\n",
          t.f);                      // and 6: an empty line
    for (int i = 0; i < 300000; i++) // 7: longer than any buffer
        fputc('x', t.f);
    fputs("\n{\"step\":99999999999999999}\n", t.f); // 8
    // Members that are not numbers or too large count as not measured. Deep nesting and unknown
    // members are skipped.
    fputs("{\"step\":11,\"loss\":null,\"step_ms\":-5,\"lr\":1e300,\"grad_norm\":\"x\",\"new\":[[{}]"
          "]}\n",
          t.f);
    put_steps(&t, 12, 20, 3, 100);
    save_log(&t, dir);
    static const char result[] = "{\"tokens_per_s\":5,\"verdict\":{\"text\":\"cut off";
    save(dir, "result.json", result, sizeof result - 1);
    static const char recipe[] = "a: [";
    save(dir, "recipe.yaml", recipe, sizeof recipe - 1);
    read_run(&r, dir);
    assert_int_equal(r.log.damaged, 8);
    assert_true(r.log.steps == 20 && r.log.p50.n == 19);
    assert_false(r.result.is_there);
    assert_true(isnan(r.result.tokens_per_s)); // half a result is none
    assert_true(says(&r, "8 of 29 lines"));
    assert_true(says(&r, "What result.json says is left out"));
    assert_true(says(&r, "settings could not be read"));
    char *page = page_of(&r, 1);
    assert_null(strstr(page, "<script>alert"));
    assert_null(strstr(page, "<img"));
    assert_non_null(strstr(page, "&lt;script&gt;alert(1)"));
    free(page);
    run_read_close(&r);
}

// An empty log gives a page that says so. A folder without a log is refused, and so is a pipe.
static void test_nothing(void **state) {
    struct folder *f = *state;
    struct run_read r;
    struct err e = {0};
    const char *dir = run_dir(f, "nothing");
    assert_int_equal(run_read_open(&r, dir, &e), ERR_IO);
    assert_non_null(strstr(e.text, "no log.jsonl"));
    run_read_close(&r);
    assert_int_equal(run_read_open(&r, folder_path(f, "absent"), &e), ERR_IO);
    run_read_close(&r);
    save(dir, "log.jsonl", "", 0);
    read_run(&r, dir);
    assert_true(r.log.steps == 0 && says(&r, "no step yet"));
    char *page = page_of(&r, 1);
    assert_non_null(strstr(page, "nothing to draw"));
    assert_null(strstr(page, "nan"));
    free(page);
    run_read_close(&r);
    const char *pipes = run_dir(f, "pipes");
    char path[512];
    snprintf(path, sizeof path, "%s/log.jsonl", pipes);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(run_read_open(&r, pipes, &e), ERR_FORMAT);
    run_read_close(&r);
}

static void disturb(char *bytes, size_t n, int places, uint64_t *draw) {
    for (int i = 0; i < places; i++, ++*draw)
        bytes[rng_below(3, 1, *draw, n)] = (char)rng_below(3, 2, *draw, 256);
}

// Bytes of a good log are changed at random. There is always a page.
static void test_any_bytes(void **state) {
    struct folder *f = *state;
    const char *dir = run_dir(f, "any");
    uint64_t draw = 0;
    for (int round = 0; round < 60; round++) {
        struct text t;
        struct run_read r;
        text_open(&t);
        fputs(START(0, ""), t.f);
        put_steps(&t, 1, 30, 3, 100);
        fclose(t.f);
        disturb(t.bytes, t.n, 20, &draw);
        save(dir, "log.jsonl", t.bytes, t.n);
        memcpy(t.bytes, RESULT, sizeof RESULT - 1);
        disturb(t.bytes, sizeof RESULT - 1, 3, &draw);
        save(dir, "result.json", t.bytes, sizeof RESULT - 1);
        free(t.bytes);
        read_run(&r, dir);
        assert_true(r.log.steps + r.log.damaged + r.log.torn >= 20);
        char *page = page_of(&r, 1);
        assert_non_null(strstr(page, "</html>"));
        free(page);
        run_read_close(&r);
    }
}

// ---------------------------------------------------------------- long, several

static void test_long(void **state) {
    struct folder *f = *state;
    const char *dir = run_dir(f, "long");
    struct text t;
    struct run_read r;
    const int n = 50000;
    text_open(&t);
    fputs(START(0, ""), t.f);
    for (int i = 1; i <= n; i++)
        fprintf(t.f,
                "{\"step\":%d,\"loss\":%.9f,\"lr\":%.9g,\"grad_norm\":%.6f,\"step_ms\":%.6f,"
                "\"data_wait_ms\":%.6f}\n",
                i, 2 + rng_uniform(5, 1, (uint64_t)i), 1e-3 / i, rng_uniform(5, 2, (uint64_t)i),
                i == 31234 ? 9000 : 50 + rng_uniform(5, 3, (uint64_t)i),
                rng_uniform(5, 4, (uint64_t)i));
    save_log(&t, dir);
    read_run(&r, dir);
    assert_true(r.log.steps == (uint64_t)n && r.log.columns->n <= COLUMNS_MOST);
    char *page = page_of(&r, 1);
    assert_true(strlen(page) < 500000); // a longer log does not make the page longer
    assert_non_null(strstr(page, "the slowest 9.0 s"));
    assert_non_null(strstr(page, "9000")); // a value for the cursor
    free(page);
    run_read_close(&r);
}

static void test_several(void **state) {
    struct folder *f = *state;
    struct run_read runs[12];
    for (int i = 0; i < 12; i++) {
        char name[16];
        struct text t;
        snprintf(name, sizeof name, "run%d", i);
        const char *dir = run_dir(f, name);
        text_open(&t);
        fputs(START(0, ""), t.f);
        put_steps(&t, 1, 30, 3, i == 2 ? 300 : 100);
        save_log(&t, dir);
        read_run(&runs[i], dir);
    }
    char *page = page_of(runs, 12), sentence[RUN_SENTENCE_BYTES];
    assert_non_null(strstr(page, "run0, run1 and 10 more"));
    assert_non_null(strstr(page, "run11"));
    assert_non_null(strstr(page, "c3 dash")); // the twelfth run has the fourth colour again
    assert_non_null(strstr(figure_compare(sentence, &runs[0], &runs[2]), "run2 takes 2.73 times"));
    assert_non_null(strstr(figure_compare(sentence, &runs[2], &runs[0]), "63.4 % less"));
    assert_non_null(strstr(figure_compare(sentence, &runs[0], &runs[1]), "cannot be told apart"));
    free(page);
    for (int i = 0; i < 12; i++)
        run_read_close(&runs[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_whole, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_twins, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_notes, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_resumed, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_damaged, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_nothing, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_any_bytes, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_long, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_several, folder_setup, folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
