// test_hub.c - hub.h: names of models on the hub, found in a cache or answered with a command.
#include "model/hub.h"
#include "model/scratch.h"
#include "model/shape.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define COMMIT "607a30d783dfa663caf39e06633721c8d4cfcd7e"
#define REPO   "hub/models--org--My.Model-1"

static void make(const struct scratch *d, const char *name) {
    assert_int_equal(mkdir(scratch_path(d, name), 0777), 0);
}

// A cache as `hf download` leaves it.
static int setup(void **state) {
    assert_int_equal(scratch_setup(state), 0);
    const struct scratch *d = *state;
    static const char *const folders[] = {"hub", REPO, REPO "/refs", REPO "/snapshots",
                                          REPO "/snapshots/" COMMIT};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        make(d, folders[i]);
    scratch_text(d, REPO "/refs/main", COMMIT);
    scratch_text(d, REPO "/snapshots/" COMMIT "/config.json", "{\"model_type\":\"qwen3\"}");
    unsetenv("HF_HOME");
    setenv("HF_HUB_CACHE", scratch_path(d, "hub"), 1);
    return 0;
}

static void resolves(const char *name, const char *to) {
    char text[1024];
    struct err e = {0};
    bool replaced;
    snprintf(text, sizeof text, "%s", name);
    assert_worked(hub_resolve(text, sizeof text, &replaced, &e), &e);
    assert_string_equal(text, to ? to : name);
    assert_int_equal(replaced, to != NULL);
}

static void refused(const char *name, const char *says) {
    char text[1024];
    struct err e = {0};
    snprintf(text, sizeof text, "%s", name);
    assert_failed(hub_resolve(text, sizeof text, NULL, &e), &e, says, name);
    assert_string_equal(text, name);
}

static void test_found(void **state) {
    const struct scratch *d = *state;
    struct model_shape s;
    struct err e = {0};
    bool is_dir = false;
    const char *snapshot = scratch_path(d, REPO "/snapshots/" COMMIT);
    resolves("org/My.Model-1", snapshot);
    assert_worked(model_shape_open(&s, "org/My.Model-1", &is_dir, &e), &e);
    assert_true(is_dir);
    assert_string_equal(s.name, "org/My.Model-1");
    // The other places of the cache.
    unsetenv("HF_HUB_CACHE");
    setenv("HF_HOME", d->dir, 1);
    resolves("org/My.Model-1", snapshot);
    // The path must fit.
    char small[32] = "org/My.Model-1";
    assert_failed(hub_resolve(small, sizeof small, NULL, &e), &e, "at most 31", "a long path");
    assert_string_equal(small, "org/My.Model-1");
}

static void test_not_there(void **state) {
    (void)state;
    refused("org/other", "hf download org/other|huggingface-cli|hub");
    unsetenv("HF_HUB_CACHE");
    unsetenv("XDG_CACHE_HOME");
    char *home = getenv("HOME") ? strdup(getenv("HOME")) : NULL;
    unsetenv("HOME");
    refused("org/other", "set HF_HOME|hf download org/other");
    if (home)
        setenv("HOME", home, 1);
    free(home);
}

// Built-in names, folders, and what cannot be a name on the hub.
static void test_left_alone(void **state) {
    const struct scratch *d = *state;
    static const char *const names[] = {
        "tiny",      "tinny",     "",      "./org/name", "../org/name", "/org/name",
        "a/b/c",     "org/",      "/name", "org/../..",  "org/..",      "../name",
        ".git/name", "org/na me", "-o/rm", "org/na;me",  "org/n\nme",   "org/x.yaml"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        resolves(names[i], NULL);
    resolves(scratch_path(d, "hub"), NULL);
    char wide[200];
    memset(wide, 'a', sizeof wide - 1);
    wide[3] = '/';
    wide[sizeof wide - 1] = '\0';
    resolves(wide, NULL);
}

// A ref becomes part of a path: it cannot lead out of the cache.
static void test_hostile_refs(void **state) {
    const struct scratch *d = *state;
    static const char *const refs[] = {"../../..", "..",   ".",    "",    "\n",  "a/b",
                                       "/etc",     "a\nb", "a..b", "-rf", "a b", "\xff"};
    for (size_t i = 0; i < sizeof refs / sizeof *refs; i++) {
        scratch_text(d, REPO "/refs/main", refs[i]);
        refused("org/My.Model-1", "names no commit|hf download");
    }
    char wide[200];
    memset(wide, 'a', sizeof wide - 1);
    wide[sizeof wide - 1] = '\0';
    scratch_text(d, REPO "/refs/main", wide);
    refused("org/My.Model-1", "refs/main");
    scratch_text(d, REPO "/refs/main", "0123\n");
    refused("org/My.Model-1", "a snapshot that is not there");
    scratch_text(d, REPO "/refs/main", COMMIT "\r\n");
    resolves("org/My.Model-1", scratch_path(d, REPO "/snapshots/" COMMIT));
    assert_int_equal(unlink(scratch_path(d, REPO "/refs/main")), 0);
    refused("org/My.Model-1", "refs/main|hf download");
}

int main(void) {
#define CASE(test) cmocka_unit_test_setup_teardown(test, setup, scratch_teardown)
    const struct CMUnitTest tests[] = {CASE(test_found), CASE(test_not_there),
                                       CASE(test_left_alone), CASE(test_hostile_refs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
