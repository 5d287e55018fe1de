// test_recipe.c - recipes written and read, the tables for people, and the recipes that ship with
// the project.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/rng.h"
#include "knob/knob.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char *recipe_text(const struct knobs *k, size_t *bytes) {
    char *text = NULL;
    FILE *f = open_memstream(&text, bytes);
    assert_non_null(f);
    assert_int_equal(knobs_write_recipe(k, f, NULL), 0);
    fclose(f);
    return text;
}

static void check_round_trip(const struct knobs *k) {
    size_t bytes;
    char *text = recipe_text(k, &bytes);
    struct knobs back;
    struct err e = {0};
    knobs_init(&back);
    if (knobs_load_recipe_text(&back, "text", text, bytes, &e) != 0)
        fail_msg("%s in\n%s", e.text, text);
    for (int i = 0; i < KNOB_COUNT; i++) {
        if (!knobs_same(k, &back, i))
            fail_msg("%s does not survive:\n%s", knob_info(i)->name, text);
        if (i != KNOB_steps || k->epochs == 0) // the recipe is complete
            assert_int_equal(back.by[i], SET_BY_RECIPE);
    }
    free(text);
}

static void test_round_trip_defaults(void **state) {
    (void)state;
    struct knobs k;
    knobs_init(&k);
    check_round_trip(&k);
}

static void random_string(uint64_t i, char *out) {
    static const char *const pieces[] = {"a", "\"", "\\", "#", ": ", " #",  "'", "é", "漢", "😀",
                                         "{", "- ", "~",  "|", "=",  "\\n", " ", "%", "@",  "yes"};
    uint64_t n = rng_below(7, 1, i, 12);
    out[0] = '\0';
    for (uint64_t j = 0; j < n; j++)
        strcat(out, pieces[rng_below(7, 2, i * 64 + j, sizeof pieces / sizeof *pieces)]);
}

// Random accepted values of every knob. The strings contain everything that YAML could misread.
static void test_round_trip_random(void **state) {
    (void)state;
    for (uint64_t round = 0; round < 300; round++) {
        struct knobs k;
        knobs_init(&k);
        for (int i = 0; i < KNOB_COUNT; i++) {
            const struct knob_info *info = knob_info(i);
            uint64_t draw = round * KNOB_COUNT + (uint64_t)i;
            double u = rng_uniform(7, 3, draw);
            char text[KNOB_VALUE_BYTES] = "";
            switch (info->type) {
            case KNOB_INT:
                snprintf(text, sizeof text, "%lld",
                         (long long)(info->least_int + (int64_t)(u * (double)(info->most_int / 2 -
                                                                              info->least_int))));
                break;
            case KNOB_FLOAT:
                snprintf(text, sizeof text, "%.17g",
                         info->least_float +
                             u * ((info->most_float < 1e6 ? info->most_float : 1e6) -
                                  info->least_float));
                break;
            case KNOB_BOOL:
                snprintf(text, sizeof text, "%s", u < 0.5 ? "true" : "false");
                break;
            case KNOB_CHOICE:
                snprintf(text, sizeof text, "%s", info->choices[(int)(u * info->n_choices)]);
                break;
            case KNOB_STRING:
                random_string(draw, text);
                break;
            case KNOB_PERIOD:
                snprintf(text, sizeof text, "%lld%s", (long long)(u * (double)info->most_int),
                         rng_below(7, 5, draw, 2) == 0 ? "" : "ms");
                break;
            case KNOB_BYTES:
                snprintf(text, sizeof text, "%llu",
                         (unsigned long long)rng_u64(7, 4, draw) >> rng_below(7, 5, draw, 64));
                break;
            case KNOB_DURATION:
                snprintf(text, sizeof text, "%lluns",
                         (unsigned long long)rng_u64(7, 4, draw) >> rng_below(7, 5, draw, 64));
                break;
            default:
                fail();
            }
            struct err e = {0};
            if (i == (round % 2 ? KNOB_steps : KNOB_epochs)) // one of the two decides
                continue;
            if (knobs_set_at(&k, i, text, SET_BY_TUNER, &e) != 0)
                fail_msg("%s", e.text);
        }
        check_round_trip(&k);
    }
}

static void test_provenance_comment(void **state) {
    (void)state;
    struct knobs k;
    size_t bytes;
    knobs_init(&k);
    assert_int_equal(knobs_set(&k, "batch.micro", "8", SET_BY_COMMAND_LINE, NULL), 0);
    assert_int_equal(knobs_set(&k, "batch.accum", "2", SET_BY_TUNER, NULL), 0);
    char *text = recipe_text(&k, &bytes);
    assert_non_null(strstr(text, "\nbatch:\n  micro: 8 "));
    assert_non_null(strstr(text, "# command line\n  accum: 2 "));
    assert_non_null(strstr(text, "# tuner\n"));
    assert_non_null(strstr(text, "\nmodel: \"tiny\" "));
    free(text);
}

static int load(struct knobs *k, const char *text, struct err *e) {
    knobs_init(k);
    return knobs_load_recipe_text(k, "my.yaml", text, strlen(text), e);
}

static void test_load(void **state) {
    (void)state;
    struct knobs k;
    struct err e = {0};
    assert_int_equal(load(&k, "batch: {micro: 2}\nbatch.accum: 3\nmodel: gpt2-124m\n", &e), 0);
    assert_int_equal(k.batch_micro, 2);
    assert_int_equal(k.batch_accum, 3);
    assert_string_equal(k.model, "gpt2-124m");
    assert_int_equal(k.by[KNOB_batch_micro], SET_BY_RECIPE);
    assert_int_equal(k.by[KNOB_seq], SET_BY_DEFAULT);
    assert_int_equal(load(&k, "", &e), 0);
}

static void test_load_errors(void **state) {
    (void)state;
    static const struct {
        const char *text, *says[3];
    } cases[] = {
        {"batch:\n  mirco: 2\n", {"my.yaml:2: ", "batch.mirco", "'batch.micro'"}},
        {"model: tiny\n\nbatch:\n  micro: 0\n", {"my.yaml:4: ", "batch.micro='0'", "1 to 65536"}},
        {"batch: 4\n", {"my.yaml:1: ", "group", "batch.micro"}},
        {"batch:\n  micro: [1, 2]\n", {"my.yaml:", "whole number"}},
        {"model: [\n", {"my.yaml:"}},
        {"steps: 1\nsteps: 2\n", {"my.yaml", "2", "steps"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct knobs k, fresh;
        struct err e = {0};
        knobs_init(&fresh);
        assert_true(load(&k, cases[i].text, &e) < 0);
        for (int j = 0; j < 3 && cases[i].says[j]; j++)
            if (!strstr(e.text, cases[i].says[j]))
                fail_msg("'%s' does not say '%s'", e.text, cases[i].says[j]);
        assert_true(knobs_equal(&k, &fresh)); // nothing was set
        assert_true(load(&k, cases[i].text, NULL) < 0);
    }
}

static void test_files(void **state) {
    (void)state;
    char dir[256], path[512];
    assert_int_equal(file_make_temp_dir(dir, sizeof dir, "knob", NULL), 0);
    snprintf(path, sizeof path, "%s/recipe.yaml", dir);
    struct knobs k, back;
    struct err e = {0};
    knobs_init(&k);
    knobs_init(&back);
    assert_int_equal(knobs_set(&k, "seq", "77", SET_BY_RECIPE, &e), 0);
    assert_int_equal(knobs_save_recipe(&k, path, &e), 0);
    assert_int_equal(knobs_load_recipe(&back, path, &e), 0);
    assert_true(knobs_equal(&k, &back));
    assert_int_equal(file_remove_tree(dir, &e), 0);
    assert_true(knobs_load_recipe(&back, path, &e) < 0);
    assert_non_null(strstr(e.text, path));
    assert_true(knobs_save_recipe(&k, path, &e) < 0);
}

static int load_shipped(void *arg, const char *name) {
    (void)arg;
    size_t n = strlen(name);
    if (n < 5 || strcmp(name + n - 5, ".yaml") != 0)
        return 0;
    char path[1024];
    struct knobs k;
    struct err e = {0};
    snprintf(path, sizeof path, "%s/recipes/%s", HAGGLE_SOURCE_DIR, name);
    knobs_init(&k);
    if (knobs_load_recipe(&k, path, &e) != 0)
        fail_msg("%s", e.text);
    // A shipped recipe sets no knob without an effect.
    for (int i = 0; i < KNOB_COUNT; i++)
        if (k.by[i] == SET_BY_RECIPE && knobs_idle(&k, i))
            fail_msg("%s sets %s, which has no effect: %s", name, knob_info(i)->name,
                     knobs_idle(&k, i));
    return 0;
}

static void test_shipped_recipes(void **state) {
    (void)state;
    struct err e = {0};
    if (file_list_dir(HAGGLE_SOURCE_DIR "/recipes", load_shipped, NULL, &e) != 0)
        fail_msg("%s", e.text);
}

static void test_tables(void **state) {
    (void)state;
    struct knobs k;
    knobs_init(&k);
    assert_int_equal(knobs_set(&k, "seq", "77", SET_BY_PLANNER, NULL), 0);
    for (int only_changed = 0; only_changed < 2; only_changed++) {
        char *text = NULL;
        size_t bytes;
        FILE *f = open_memstream(&text, &bytes);
        bool selected[KNOB_COUNT];
        for (int i = 0; i < KNOB_COUNT; i++)
            selected[i] = !only_changed || k.by[i] != SET_BY_DEFAULT;
        assert_int_equal(knobs_print(&k, selected, f, NULL), 0);
        fclose(f);
        for (int i = 0; i < KNOB_COUNT; i++)
            if (!only_changed)
                assert_non_null(strstr(text, knob_info(i)->name));
        assert_non_null(strstr(text, "planner"));
        assert_true(only_changed == !strstr(text, "\noptim.lr "));
        free(text);
    }
    char *text = NULL;
    size_t bytes;
    FILE *f = open_memstream(&text, &bytes);
    assert_int_equal(knobs_write_markdown(f, NULL), 0);
    fclose(f);
    int bars = 0;
    for (char *line = strstr(text, "| knob |"); line && *line; line = strchr(line, '\n') + 1) {
        int n = 0;
        for (char *p = line; *p != '\n'; p++)
            n += *p == '|';
        assert_int_equal(n, 8);
        bars++;
    }
    assert_int_equal(bars, KNOB_COUNT + 2);
    free(text);
    // A full disk is reported.
    FILE *full = fopen("/dev/full", "w");
    if (full) {
        struct err e = {0};
        assert_int_equal(knobs_write_markdown(full, &e), ERR_IO);
        const bool none[KNOB_COUNT] = {false};
        assert_int_equal(knobs_print(&k, none, full, &e), ERR_IO);
        assert_int_equal(knobs_write_recipe(&k, full, &e), ERR_IO);
        fclose(full);
    }
}

static void test_json(void **state) {
    (void)state;
    struct knobs k;
    knobs_init(&k);
    assert_int_equal(knobs_set(&k, "time", "1500ms", SET_BY_RECIPE, NULL), 0);
    struct json_writer w;
    json_writer_to_buffer(&w, 0);
    knobs_put_json(&k, &w);
    assert_int_equal(json_writer_finish(&w, NULL), 0);
    struct region strings = {0};
    struct json_reader r;
    struct err e = {0};
    json_reader_init(&r, "knobs", w.buffer, w.bytes, &strings, &e);
    json_enter_object(&r);
    const char *key;
    int n = 0;
    while (json_next_key(&r, &key)) {
        assert_string_equal(key, knob_info(n++)->name);
        double x = 0;
        if (strcmp(key, "time") == 0) {
            json_read_double(&r, &x);
            assert_true(x == 1.5);
        } else {
            json_skip(&r);
        }
    }
    assert_int_equal(json_finish(&r), 0);
    assert_int_equal(n, KNOB_COUNT);
    free(w.buffer);
    json_writer_to_buffer(&w, 1);
    bool all[KNOB_COUNT];
    assert_int_equal(knobs_select(NULL, 0, all, &e), 0);
    knobs_put_json_table(&k, all, &w);
    assert_int_equal(json_writer_finish(&w, NULL), 0);
    json_reader_init(&r, "table", w.buffer, w.bytes, &strings, &e);
    json_skip(&r);
    assert_int_equal(json_finish(&r), 0);
    free(w.buffer);
    region_free(&strings);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip_defaults),
        cmocka_unit_test(test_round_trip_random),
        cmocka_unit_test(test_provenance_comment),
        cmocka_unit_test(test_load),
        cmocka_unit_test(test_load_errors),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_shipped_recipes),
        cmocka_unit_test(test_tables),
        cmocka_unit_test(test_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
