// test_locale.c - a program that uses a locale with decimal commas: haggle reads and writes decimal
// points, and the program keeps its locale.
#include "haggle.h"

#include "train/harness.h"

#include "base/pool.h"
#include "skips.h"

#include <locale.h>
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

// Such a locale may not be installed. It is made if there is a tool for it.
static bool set_commas(const struct scratch *s) {
    static const char text[] = "comment_char %\nescape_char /\nLC_CTYPE\ncopy \"POSIX\"\n"
                               "END LC_CTYPE\nLC_NUMERIC\ndecimal_point \",\"\n"
                               "thousands_sep \".\"\ngrouping 3;3\nEND LC_NUMERIC\n";
    char source[PATH_MAX], locale[PATH_MAX], point[16];
    char *argv[] = {(char *)"localedef",
                    (char *)"-c",
                    (char *)"--quiet",
                    (char *)"-f",
                    (char *)"ANSI_X3.4-1968",
                    (char *)"-i",
                    source,
                    locale,
                    NULL};
    pid_t pid;
    int status = -1;
    snprintf(source, sizeof source, "%s/commas.src", s->dir);
    snprintf(locale, sizeof locale, "%s/commas", s->dir);
    assert_int_equal(file_write_atomic(source, text, sizeof text - 1, NULL), 0);
    if (posix_spawnp(&pid, argv[0], NULL, NULL, argv, environ) != 0 || waitpid(pid, &status, 0) < 0)
        return false;
    setenv("LOCPATH", s->dir, 1);
    if (!setlocale(LC_NUMERIC, "commas"))
        return false;
    snprintf(point, sizeof point, "%.1f", 0.5);
    return strcmp(point, "0,5") == 0;
}

static void check_config(struct haggle_config *c) {
    char value[64];
    struct haggle_error e = {0};
    assert_int_equal(haggle_config_set(c, "optim.lr", "0.25", &e), 0);
    assert_int_equal(haggle_config_get(c, "optim.lr", value, sizeof value, &e), 0);
    assert_string_equal(value, "0.25");
}

static void check_recipe(const struct scratch *s, struct haggle_config *c) {
    char path[PATH_MAX], value[64];
    struct haggle_config *back;
    struct haggle_error e = {0};
    snprintf(path, sizeof path, "%s/recipe.yaml", s->dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(haggle_config_write(c, f, &e), 0);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(haggle_config_new(&back, &e), 0);
    if (haggle_config_load_recipe(back, path, &e) != 0)
        fail_msg("%s", e.text);
    assert_int_equal(haggle_config_get(back, "optim.lr", value, sizeof value, &e), 0);
    assert_string_equal(value, "0.25");
    haggle_config_free(back);
}

static void check_show(struct haggle_config *c) {
    char *text = NULL;
    size_t n;
    struct haggle_error e = {0};
    FILE *f = open_memstream(&text, &n);
    const struct haggle_sink sink = {.json = f};
    assert_int_equal(haggle_show(c, 0, 0, &sink, &e), 0);
    fclose(f);
    struct region region = {0};
    struct json_reader r;
    json_reader_init(&r, "show", text, n, &region, NULL);
    json_skip(&r);
    assert_int_equal(json_finish(&r), 0);
    assert_non_null(strstr(text, "0.25"));
    region_free(&region);
    free(text);
}

static void write_half(void *arg, int thread, int threads) {
    (void)threads;
    snprintf((char *)arg + 8 * thread, 8, "%.1f", 0.5);
}

static void test_commas(void **state) {
    struct haggle_config *c;
    struct haggle_error e = {0};
    char own[8];
    if (!set_commas(*state))
        skip_because("no locale with commas, such as de_DE.UTF-8");
    assert_int_equal(haggle_config_new(&c, &e), 0);
    check_config(c);
    check_recipe(*state, c);
    check_show(c);
    haggle_config_free(c);
    snprintf(own, sizeof own, "%.1f", 0.5);
    assert_string_equal(own, "0,5"); // as the program's locale says
    setlocale(LC_NUMERIC, "C");
}

static void test_threads(void **state) {
    char texts[2][8];
    struct pool *p;
    struct err e = {0};
    if (!set_commas(*state))
        skip_because("no locale with commas, such as de_DE.UTF-8");
    assert_int_equal(pool_open(&p, 2, 0, &e), 0);
    pool_run(p, write_half, texts);
    pool_close(p);
    assert_string_equal(texts[0], "0,5"); // in the caller's thread
    assert_string_equal(texts[1], "0.5");
    setlocale(LC_NUMERIC, "C");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_commas, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_threads, scratch_setup, scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
