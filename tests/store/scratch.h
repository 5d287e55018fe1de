// scratch.h - a temporary folder for a test of the store, and rows to put in a store.
#ifndef HAGGLE_TESTS_STORE_SCRATCH_H
#define HAGGLE_TESTS_STORE_SCRATCH_H

#include "base/file.h"
#include "store/store.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char scratch_dir[256];
static char scratch_db[288]; // the store that most tests use; not made yet

static int scratch_open(void **state) {
    (void)state;
    assert_int_equal(file_make_temp_dir(scratch_dir, sizeof scratch_dir, "store", NULL), 0);
    snprintf(scratch_db, sizeof scratch_db, "%s/trials.db", scratch_dir);
    return 0;
}

static int scratch_close(void **state) {
    (void)state;
    assert_int_equal(file_remove_tree(scratch_dir, NULL), 0);
    return 0;
}

static inline struct store *scratch_store(enum store_mode mode) {
    struct store *s = NULL;
    struct err e = {0};
    int rc = store_open(&s, scratch_db, mode, &e);
    if (rc != 0)
        fail_msg("%s", e.text);
    return s;
}

// A row that has its number in several columns, so that a torn row would contradict itself.
static inline struct store_trial scratch_trial(int64_t i) {
    static const char *const keys[] = {"key even", "key odd"};
    struct store_trial t;
    store_trial_init(&t);
    t.started_at = 1e9 + (double)i;
    t.origin = "test";
    t.key = keys[i & 1];
    t.setting = "a setting";
    t.knobs = "batch.micro=2\nseq=64\n";
    t.model = "tiny";
    t.outcome = OUTCOME_MEASURED;
    t.steps = i;
    t.tokens = 7 * i;
    t.tokens_per_s = 0.5 * (double)i;
    t.loss_last = (double)i;
    return t;
}

#endif
