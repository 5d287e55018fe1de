// test_verdict.c - runs that are slow on purpose get the right verdict: a slow source, a huge
// vocabulary, a tiny batch. No test depends on measured times: the dominant part is larger by a
// factor that a busy machine cannot cause.
#include "haggle.h"

#include "train/harness.h"

struct verdict_seen {
    char *json;
    char bound[64], knob[64];
};

// The text of a member inside "verdict".
static void member(const char *json, const char *name, char out[64]) {
    char key[64];
    const char *at = strstr(json, "\"verdict\":");
    assert_non_null(at);
    snprintf(key, sizeof key, "\"%s\": \"", name);
    out[0] = '\0';
    if ((at = strstr(at, key)) != NULL)
        sscanf(at + strlen(key), "%63[^\"]", out);
}

static void train(const struct scratch *s, const char *const *settings, struct verdict_seen *out) {
    struct haggle_config *c;
    struct haggle_error e = {0};
    size_t bytes;
    char dir[300];
    out->json = NULL;
    FILE *f = open_memstream(&out->json, &bytes);
    assert_non_null(f);
    assert_int_equal(haggle_config_new(&c, &e), 0);
    snprintf(dir, sizeof dir, "%s/run", s->dir);
    const char *const always[] = {"model",           s->nano, "run.dir",      dir,
                                  "tokenizer",       "bytes", "data.cache",   "none",
                                  "eval.every",      "0",     "save.last",    "false",
                                  "generate.tokens", "0",     "resume",       "false",
                                  "device",          "cpu",   "sched.warmup", "2"};
    for (size_t i = 0; i < sizeof always / sizeof *always; i += 2)
        assert_int_equal(haggle_config_set(c, always[i], always[i + 1], &e), 0);
    for (; settings[0] != NULL; settings += 2)
        if (haggle_config_set(c, settings[0], settings[1], &e) != 0)
            fail_msg("%s", e.text);
    const struct haggle_sink sink = {.json = f};
    if (haggle_train(c, &sink, &e) != 0)
        fail_msg("%s", e.text);
    fclose(f);
    haggle_config_free(c);
    member(out->json, "bound", out->bound);
    member(out->json, "knob", out->knob);
    char text[64];
    member(out->json, "text", text);
    print_message("%s... -> %s\n", text, out->knob);
}

static void check(const struct scratch *s, const char *const *settings, const char *bounds,
                  const char *knob) {
    struct verdict_seen v;
    train(s, settings, &v);
    if (strstr(bounds, v.bound) == NULL || v.bound[0] == '\0' || strcmp(v.knob, knob) != 0)
        fail_msg("bound by '%s' (expected of: %s), knob '%s' (expected %s)", v.bound, bounds,
                 v.knob, knob);
    free(v.json);
}

// A step of the small model takes a millisecond. Here reading its bytes takes fifty.
static void test_slow_source(void **state) {
    const struct scratch *s = *state;
    char path[300], text[1600];
    struct err e = {0};
    memset(text, 'x', sizeof text);
    snprintf(path, sizeof path, "%s/text.txt", s->dir);
    assert_worked(file_write_atomic(path, text, sizeof text, &e), &e);
    // 34 bytes per sequence, two sequences per step.
    const char *const ahead_of_nothing[] = {
        "seq", "16",    "batch.micro", "2", "data.prefetch", "0", "data.source_rate",
        "700", "steps", "8",           NULL};
    check(s, ahead_of_nothing, "data", "data.prefetch");
    // Data that is read once cannot come from memory. Data that is read again can.
    const char *const once[] = {"seq", "16",    "batch.micro", "2", "data.source_rate",
                                "700", "steps", "8",           NULL};
    check(s, once, "data", "data.source_rate");
    char few[300]; // 20 sequences: eight steps of four are more than an epoch
    snprintf(few, sizeof few, "%s/few.txt", s->dir);
    assert_worked(file_write_atomic(few, text, 320, &e), &e);
    const char *const again[] = {"seq",      "16", "batch.micro",      "4",    "data.path", few,
                                 "data.val", "0",  "data.source_rate", "1000", "steps",     "8",
                                 NULL};
    check(s, again, "data", "data.ram");
    // With data.ram the source is no longer the limit after the first epoch.
    const char *const kept[] = {"seq",      "16",        "batch.micro",
                                "32",       "data.path", path,
                                "data.val", "0",         "data.source_rate",
                                "100000",   "data.ram",  "1MiB",
                                "steps",    "40",        NULL};
    struct verdict_seen v;
    train(s, kept, &v);
    const char *data = strstr(v.json, "\"data\": {");
    assert_non_null(data);
    assert_non_null(strstr(data, "\"cache_windows\": 101,"));
    assert_non_null(strstr(data, "\"windows\": 101,"));
    free(v.json);
}

static void test_huge_vocabulary(void **state) {
    const struct scratch *s = *state;
    char dir[300];
    struct err e = {0};
    struct model_shape shape;
    assert_worked(model_shape_builtin(&shape, "tiny", &e), &e);
    shape.width = 16;
    shape.layers = 1;
    shape.heads = 2;
    shape.kv_heads = 1;
    shape.head_dim = 8;
    shape.ffn = 16;
    shape.max_positions = 64;
    shape.vocab = 20000;
    snprintf(dir, sizeof dir, "%s/huge", s->dir);
    write_model(dir, &shape, POISON_NONE);
    const char *const huge[] = {"model", dir, "seq", "32", "batch.micro", "8", "steps", "6", NULL};
    check(s, huge, "compute, memory bandwidth", "logits.chunk");
}

static void test_tiny_batch(void **state) {
    const char *const tiny[] = {"model", "tiny",  "seq", "8", "batch.micro",
                                "1",     "steps", "12",  NULL};
    check(*state, tiny, "compute, memory bandwidth, optimizer, host", "batch.micro");
}

static int setup(void **state) {
    if (scratch_setup(state) != 0)
        return -1;
    // An empty cache: no rates of this machine.
    setenv("XDG_CACHE_HOME", ((struct scratch *)*state)->dir, 1);
    haggle_clear_stop();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slow_source),
        cmocka_unit_test(test_huge_vocabulary),
        cmocka_unit_test(test_tiny_batch),
    };
    return cmocka_run_group_tests(tests, setup, scratch_teardown);
}
