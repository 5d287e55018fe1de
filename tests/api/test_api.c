// test_api.c - the public API as a client uses it: configs, errors, sinks, a run, a stop.
#include "haggle.h"

#include "base/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

// ---------------------------------------------------------------- streams in memory, a folder

struct capture {
    FILE *f;
    char *text;
    size_t bytes;
};

static void capture_open(struct capture *c) {
    *c = (struct capture){0};
    c->f = open_memstream(&c->text, &c->bytes);
    assert_non_null(c->f);
}

static const char *capture_text(struct capture *c) {
    fflush(c->f);
    return c->text;
}

static void capture_close(struct capture *c) {
    fclose(c->f);
    free(c->text);
}

static int setup(void **state) {
    char *path = malloc(256);
    *state = path;
    if (!path || file_make_temp_dir(path, 256, "api", NULL) != 0)
        return -1;
    setenv("XDG_CACHE_HOME", path, 1);
    haggle_clear_stop();
    return 0;
}

static int teardown(void **state) {
    int rc = file_remove_tree(*state, NULL);
    free(*state);
    return rc;
}

// A run small enough for a test, in the test's folder.
static struct haggle_config *small(void **state) {
    static const char *const settings[][2] = {
        {"seq", "16"}, {"batch.micro", "2"}, {"steps", "4"}, {"eval.every", "0"}, {"threads", "1"}};
    struct haggle_config *c;
    struct haggle_error e;
    assert_int_equal(haggle_config_new(&c, &e), 0);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        assert_int_equal(haggle_config_set(c, settings[i][0], settings[i][1], &e), 0);
    char dir[160];
    snprintf(dir, sizeof dir, "%s/run", (const char *)*state);
    assert_int_equal(haggle_config_set(c, "run.dir", dir, &e), 0);
    return c;
}

// ---------------------------------------------------------------- configs

static void test_config(void **state) {
    struct haggle_config *c;
    struct haggle_error e = {0};
    char value[HAGGLE_TEXT_BYTES], path[160];
    assert_int_equal(haggle_config_new(&c, &e), 0);
    assert_int_equal(haggle_config_set(c, "batch.micro", "7", &e), 0);
    assert_int_equal(haggle_config_get(c, "batch.micro", value, sizeof value, &e), 0);
    assert_string_equal(value, "7");
    assert_int_equal(e.code, 0);

    // A call that fails says so and changes nothing.
    assert_int_equal(haggle_config_set(c, "batch.micro", "0", &e), HAGGLE_ERR_USAGE);
    assert_int_equal(e.code, HAGGLE_ERR_USAGE);
    assert_non_null(strstr(e.text, "1 to 65536"));
    assert_int_equal(haggle_config_set(c, "batch.micor", "1", &e), HAGGLE_ERR_USAGE);
    assert_non_null(strstr(e.text, "batch.micro"));
    assert_int_equal(haggle_config_set(c, "batch.micro", "0", NULL), HAGGLE_ERR_USAGE);
    assert_int_equal(haggle_config_get(c, "batch.micro", value, sizeof value, &e), 0);
    assert_string_equal(value, "7");
    assert_int_equal(haggle_config_get(c, "nope", value, sizeof value, &e), HAGGLE_ERR_USAGE);
    assert_int_equal(haggle_config_get(c, "model", value, 2, &e), HAGGLE_ERR_USAGE);

    // What was written can be read back.
    snprintf(path, sizeof path, "%s/mine.yaml", (const char *)*state);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(haggle_config_write(c, f, &e), 0);
    fclose(f);
    struct haggle_config *again;
    assert_int_equal(haggle_config_new(&again, &e), 0);
    assert_int_equal(haggle_config_load_recipe(again, path, &e), 0);
    assert_int_equal(haggle_config_get(again, "batch.micro", value, sizeof value, &e), 0);
    assert_string_equal(value, "7");
    assert_int_equal(haggle_config_load_recipe(again, "/nowhere/x.yaml", &e), HAGGLE_ERR_IO);
    assert_non_null(strstr(e.text, "/nowhere/x.yaml"));
    haggle_config_free(again);
    haggle_config_free(c);
    haggle_config_free(NULL);
}

static void test_lists(void **state) {
    (void)state;
    size_t n = haggle_knob_count();
    assert_true(n > 20);
    for (size_t i = 0; i < n; i++) {
        assert_non_null(haggle_knob_name(i));
        assert_true(strlen(haggle_knob_help(i)) > 10);
    }
    assert_null(haggle_knob_name(n));
    assert_null(haggle_knob_help(n));
    static const char *const names[] = {"train", "bench"};
    assert_string_equal(haggle_suggest("trian", names, 2), "train");
    assert_null(haggle_suggest("xyzzy", names, 2));
    assert_string_equal(haggle_code_name(HAGGLE_ERR_MEMORY), "ERR_MEMORY");
    assert_true(strlen(haggle_code_phrase(HAGGLE_ERR_STOPPED)) > 5);
    assert_true(strlen(haggle_version()) >= 5);

    struct capture page;
    struct haggle_error e;
    capture_open(&page);
    assert_int_equal(haggle_docs("knobs", page.f, &e), 0);
    assert_non_null(strstr(capture_text(&page), "batch.micro"));
    assert_int_equal(haggle_docs("ops", page.f, &e), 0);
    assert_non_null(strstr(capture_text(&page), "matmul_dw"));
    assert_int_equal(haggle_docs("nothing", page.f, &e), HAGGLE_ERR_USAGE);
    capture_close(&page);
}

// ---------------------------------------------------------------- verbs

static void test_train(void **state) {
    struct haggle_config *c = small(state);
    struct haggle_error e = {0};
    struct capture out, log, json;
    capture_open(&out);
    capture_open(&log);
    capture_open(&json);
    struct haggle_sink sink = {.out = out.f, .log = log.f, .json = json.f};
    assert_int_equal(haggle_train(c, &sink, &e), 0);
    assert_non_null(strstr(capture_text(&out), "trained   4 steps"));
    assert_non_null(strstr(capture_text(&log), "weights"));
    assert_non_null(strstr(capture_text(&json), "\"tokens_per_s\""));
    // Quiet: neither plan nor progress. A warning about a knob without effect stays.
    struct capture quiet;
    capture_open(&quiet);
    struct haggle_sink sink_quiet = {.log = quiet.f, .quiet = true};
    assert_int_equal(haggle_config_set(c, "sched.decay", "0.5", &e), 0);
    assert_int_equal(haggle_train(c, &sink_quiet, &e), 0);
    const char *kept = capture_text(&quiet);
    assert_int_equal(strncmp(kept, "warning: sched.decay", 20), 0);
    assert_null(strstr(kept, "weights"));
    assert_null(strstr(kept, "nothing to train"));
    capture_close(&quiet);
    // Again, with no output stream at all: the run is complete.
    assert_int_equal(haggle_train(c, NULL, &e), 0);
    capture_close(&out);
    capture_close(&log);
    capture_close(&json);
    haggle_config_free(c);
}

static void test_budget(void **state) {
    struct haggle_config *c = small(state);
    struct haggle_error e = {0};
    struct capture json;
    char path[160];
    capture_open(&json);
    struct haggle_sink sink = {.json = json.f};
    assert_int_equal(haggle_config_set(c, "memory", "1MiB", &e), 0);
    assert_int_equal(haggle_train(c, &sink, &e), HAGGLE_ERR_MEMORY);
    assert_non_null(strstr(e.text, "weights"));
    assert_non_null(strstr(e.text, "process"));
    assert_non_null(strstr(capture_text(&json), "\"ERR_MEMORY\""));
    snprintf(path, sizeof path, "%s/run", (const char *)*state);
    assert_false(file_exists(path)); // refused before anything was written
    capture_close(&json);
    haggle_config_free(c);
}

static void test_stop(void **state) {
    struct haggle_config *c = small(state);
    struct haggle_error e = {0};
    // A stop request before the run begins: it ends before its first step, and the request stays
    // until it is cleared.
    assert_int_equal(haggle_request_stop(), 1);
    assert_int_equal(haggle_request_stop(), 2);
    assert_int_equal(haggle_train(c, NULL, &e), HAGGLE_ERR_STOPPED);
    assert_int_equal(haggle_train(c, NULL, &e), HAGGLE_ERR_STOPPED);
    haggle_clear_stop();
    assert_int_equal(haggle_train(c, NULL, &e), 0);
    // No run and no plan is active any more, so the next stop request counts as the first.
    assert_int_equal(haggle_request_stop(), 1);
    haggle_clear_stop();
    haggle_config_free(c);
}

static void test_show_and_generate(void **state) {
    struct haggle_config *c = small(state);
    struct haggle_error e = {0};
    struct capture out;
    static const int32_t ids[] = {256, 83}, far[] = {100000};
    capture_open(&out);
    struct haggle_sink sink = {.out = out.f};
    assert_int_equal(haggle_show(c, HAGGLE_OPS, 0, &sink, &e), 0);
    assert_non_null(strstr(capture_text(&out), "program train"));
    struct haggle_prompt prompt = {.ids = ids, .n_ids = 2, .tokens = 3};
    assert_int_equal(haggle_generate(c, &prompt, &sink, &e), 0);
    prompt = (struct haggle_prompt){.text = "Story", .tokens = 3};
    assert_int_equal(haggle_generate(c, &prompt, &sink, &e), 0);
    assert_non_null(strstr(capture_text(&out), "\nStory"));
    prompt = (struct haggle_prompt){.ids = far, .n_ids = 1, .tokens = 3};
    assert_int_equal(haggle_generate(c, &prompt, &sink, &e), HAGGLE_ERR_USAGE);
    prompt = (struct haggle_prompt){.ids = ids, .n_ids = 0, .tokens = 3};
    assert_int_equal(haggle_generate(c, &prompt, &sink, &e), HAGGLE_ERR_USAGE);
    capture_close(&out);
    haggle_config_free(c);
}

static void test_bench(void **state) {
    struct haggle_config *c = small(state);
    struct haggle_error e = {0};
    struct capture out;
    static const char *const grid[] = {"batch.micro=1,0"};
    struct haggle_bench b = {
        .grid = grid, .n_grid = 1, .rounds = 2, .steps = 2, .warmup = 1, .format = HAGGLE_CSV};
    capture_open(&out);
    struct haggle_sink sink = {.out = out.f};
    assert_int_equal(haggle_bench_train(c, &b, &sink, &e), 0);
    assert_non_null(strstr(capture_text(&out), "\n1,"));
    assert_non_null(strstr(capture_text(&out), "is not accepted"));
    // If no row is left there is no result, and the error gives the reason.
    b.n_grid = 0;
    assert_int_equal(haggle_config_set(c, "memory", "1MiB", &e), 0);
    assert_int_equal(haggle_bench_train(c, &b, &sink, &e), HAGGLE_ERR_MEMORY);
    assert_non_null(strstr(e.text, "nothing could be measured"));
    capture_close(&out);
    haggle_config_free(c);
}

struct heard {
    char text[2][256];
    int calls[2], most;
};

static int hear(void *arg, size_t prompt, const char *text, size_t bytes) {
    struct heard *h = arg;
    assert_true(prompt < 2 && strlen(h->text[prompt]) + bytes < sizeof h->text[prompt]);
    strncat(h->text[prompt], text, bytes);
    return ++h->calls[prompt] == h->most;
}

// The callback hears each text whole, in parts, and can end it.
static void test_texts(void **state) {
    static const char *const prompts[] = {"ab", "The second"};
    struct haggle_prompt p = {.texts = prompts, .n_texts = 2, .tokens = 60};
    struct haggle_config *c;
    struct haggle_error e = {0};
    struct capture out;
    struct heard all = {.most = 1000}, some = {.most = 4};
    (void)state;
    assert_int_equal(haggle_config_new(&c, &e), 0);
    assert_int_equal(haggle_config_set(c, "model", "tiny", &e), 0);
    assert_int_equal(haggle_config_set(c, "device", "cpu", &e), 0);
    assert_int_equal(haggle_config_set(c, "generate.temperature", "1", &e), 0);
    for (int i = 0; i < 2; i++) {
        capture_open(&out);
        const struct haggle_sink sink = {.out = out.f};
        p.said = hear;
        p.said_arg = i ? &some : &all;
        assert_int_equal(haggle_generate(c, &p, &sink, &e), 0);
        for (int k = 0; k < 2; k++) {
            const struct heard *h = p.said_arg;
            assert_int_equal(strncmp(h->text[k], prompts[k], strlen(prompts[k])), 0);
            assert_non_null(strstr(capture_text(&out), h->text[k]));
        }
        capture_close(&out);
    }
    assert_true(all.calls[0] > 4 && all.calls[1] > 4);
    assert_true(some.calls[0] <= 5 && strlen(some.text[0]) < strlen(all.text[0]));
    assert_int_equal(strncmp(some.text[1], all.text[1], strlen(some.text[1])), 0);

    // A conversation from a stream.
    static char lines[] = "Hello\n/reset\nHello\n";
    FILE *in = fmemopen(lines, sizeof lines - 1, "r");
    struct capture json;
    capture_open(&out);
    capture_open(&json);
    const struct haggle_sink sink = {.out = out.f, .json = json.f};
    const struct haggle_chat chat = {.tokens = 6};
    assert_int_equal(haggle_chat(c, &chat, in, &sink, &e), HAGGLE_ERR_USAGE); // no template
    assert_int_equal(haggle_config_set(c, "data.template", "plain", &e), 0);
    assert_int_equal(haggle_chat(c, &chat, in, &sink, &e), 0);
    assert_non_null(strstr(capture_text(&json), "\"turns\""));
    capture_close(&out);
    capture_close(&json);
    fclose(in);
    haggle_config_free(c);
}

int main(void) {
#define IN_FOLDER(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        // first, because it forks, which is only safe before a process has had threads
        IN_FOLDER(test_bench),
        IN_FOLDER(test_config),
        cmocka_unit_test(test_lists),
        IN_FOLDER(test_train),
        IN_FOLDER(test_budget),
        IN_FOLDER(test_stop),
        IN_FOLDER(test_show_and_generate),
        IN_FOLDER(test_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
