// Files that are not a store, are damaged, newer, or forged: an error names the file, nothing
// crashes, and the file is not changed.
#include "scratch.h"

#include <sqlite3.h>

static char *slurp(const char *path, size_t *bytes) {
    char *data;
    struct err e = {0};
    if (file_read_all(path, 1 << 26, &data, bytes, &e) != 0)
        fail_msg("%s", e.text);
    return data;
}

static void spill(const char *path, const void *data, size_t bytes) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_true(bytes == 0 || fwrite(data, 1, bytes, f) == bytes);
    assert_int_equal(fclose(f), 0);
}

static int ignore_trial(void *arg, const struct store_trial *t) {
    // Every text can be read to its end.
    *(size_t *)arg += strlen(t->knobs) + strlen(t->reason) + strlen(t->model) + strlen(t->key);
    return 0;
}
static int ignore_tuning(void *arg, const struct store_tuning *t) {
    *(size_t *)arg += strlen(t->recipe) + strlen(t->verdict);
    return 0;
}
static int ignore_stage(void *arg, const struct store_stage *t) {
    *(size_t *)arg += strlen(t->decision);
    return 0;
}

// Does everything a reader does. Returns 0, or the first failure.
static int read_everything(const char *path, struct err *e) {
    struct store *s;
    size_t sum = 0, n;
    double *step_ns;
    TRY(store_open(&s, path, STORE_READ, e));
    int rc = store_trials(s, &(struct store_filter){0}, ignore_trial, &sum, e);
    if (rc == 0)
        rc = store_tunings(s, 0, NULL, ignore_tuning, &sum, e);
    for (int64_t i = 1; i <= 4 && rc == 0; i++) {
        rc = store_stages(s, i, ignore_stage, &sum, e);
        if (rc == 0)
            rc = store_samples(s, i, &step_ns, &n, e);
        if (rc == 0)
            free(step_ns);
    }
    store_close(s);
    return rc;
}

// Expects that the file is refused for reading and for writing, by name, and is not changed.
static void refused(const char *path, int code, const char *words) {
    size_t before_bytes, after_bytes;
    char *before = slurp(path, &before_bytes);
    for (int mode = STORE_READ; mode <= STORE_WRITE; mode++) {
        struct store *s = NULL;
        struct err e = {0};
        int rc = store_open(&s, path, (enum store_mode)mode, &e);
        store_close(s);
        if (rc != code || !strstr(e.text, words) || !strstr(e.text, path))
            fail_msg("'%s' gave %d: %s", words, rc, e.text);
    }
    char *after = slurp(path, &after_bytes);
    assert_int_equal(before_bytes, after_bytes);
    assert_memory_equal(before, after, before_bytes);
    free(before);
    free(after);
}

static void run_sql(const char *path, const char *sql) {
    sqlite3 *db;
    char *why = NULL;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    sqlite3_exec(db, "PRAGMA synchronous = OFF", NULL, NULL, NULL); // no power cut happens here
    if (sqlite3_exec(db, sql, NULL, NULL, &why) != SQLITE_OK)
        fail_msg("%s: %s", sql, why);
    sqlite3_close(db);
}

// Makes a store with some of everything. Adds to an existing one.
static void make_store(void) {
    static double step_ns[900];
    struct store *s = scratch_store(STORE_WRITE);
    struct store_tuning tuning = {
        .goal = "bulk", .budgets = "{}", .key = "k", .model = "tiny", .recipe = "seq: 64\n"};
    struct store_stage stage = {.name = "profile", .decision = "compute-bound"};
    struct err e = {0};
    int64_t id;
    for (int i = 0; i < 900; i++)
        step_ns[i] = 1e6 + i;
    assert_int_equal(store_tuning_begin(s, &tuning, &id, &e), 0);
    assert_int_equal(store_stage_add(s, id, &stage, &e), 0);
    for (int64_t i = 0; i < 6; i++) {
        struct store_trial t = scratch_trial(i);
        t.tuning = i & 1 ? id : 0;
        assert_int_equal(store_trial_add(s, &t, step_ns, 900, NULL, &e), 0);
    }
    store_close(s);
    assert_int_equal(read_everything(scratch_db, &e), 0);
}

// The same from a copy of its bytes: writing row by row waits for the disk each time.
static void copy_store(void) {
    static char *image;
    static size_t bytes;
    if (!image) {
        make_store();
        image = slurp(scratch_db, &bytes);
    }
    spill(scratch_db, image, bytes);
}

// ---------------------------------------------------------------- other files

static void other_files_are_refused(void **state) {
    (void)state;
    uint64_t x = 1;
    char noise[20000];
    for (size_t i = 0; i < sizeof noise; i++)
        noise[i] = (char)((x = x * 6364136223846793005u + 1442695040888963407u) >> 56);
    spill(scratch_db, noise, sizeof noise);
    refused(scratch_db, ERR_FORMAT, "not a store of trials");
    spill(scratch_db, "x", 1);
    refused(scratch_db, ERR_FORMAT, "not a store of trials");
    memcpy(noise, "SQLite format 3", 16); // then noise
    spill(scratch_db, noise, sizeof noise);
    refused(scratch_db, ERR_FORMAT, "another program");
    unlink(scratch_db);
    run_sql(scratch_db, "CREATE TABLE mine (x); INSERT INTO mine VALUES (1)");
    refused(scratch_db, ERR_FORMAT, "another program");
    run_sql(scratch_db, "PRAGMA journal_mode = WAL");
    refused(scratch_db, ERR_FORMAT, "another program");
    unlink(scratch_db);
    run_sql(scratch_db, "PRAGMA application_id = 77; CREATE TABLE trial (id)");
    refused(scratch_db, ERR_FORMAT, "another program");
}

static void an_empty_file_is_a_new_store(void **state) {
    (void)state;
    struct err e = {0};
    spill(scratch_db, "", 0);
    assert_int_equal(read_everything(scratch_db, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "empty"));
    make_store();
}

static void a_newer_store_is_refused(void **state) {
    (void)state;
    make_store();
    run_sql(scratch_db, "PRAGMA user_version = 1000");
    refused(scratch_db, ERR_UNSUPPORTED, "newer haggle");
    run_sql(scratch_db, "PRAGMA user_version = -3");
    refused(scratch_db, ERR_FORMAT, "damaged");
    run_sql(scratch_db, "PRAGMA user_version = 3; PRAGMA journal_mode = WAL");
    refused(scratch_db, ERR_FORMAT, "write-ahead log");
    run_sql(scratch_db, "PRAGMA journal_mode = DELETE");
    assert_int_equal(read_everything(scratch_db, NULL), 0);
}

// ---------------------------------------------------------------- our application id, other tables

static void wrong_tables_are_refused(void **state) {
    (void)state;
    static const char *const edits[] = {
        "DROP TABLE sample",
        "DROP INDEX trial_by_setting",
        "ALTER TABLE trial DROP COLUMN mfu",
        "ALTER TABLE tuning RENAME TO tunings",
        "DROP TABLE stage; CREATE VIEW stage AS SELECT 1 AS tuning, 1 AS ordinal, 'x' AS name, 'y' "
        "AS decision, 1.0 AS started_at, 2.0 AS ended_at",
        "DROP TABLE sample; CREATE TABLE sample (trial INTEGER PRIMARY KEY, step_ns)",
    };
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        copy_store();
        run_sql(scratch_db, edits[i]);
        refused(scratch_db, ERR_FORMAT, "damaged");
    }
    unlink(scratch_db);
    run_sql(scratch_db, "PRAGMA application_id = 1751213932; PRAGMA user_version = 3");
    refused(scratch_db, ERR_FORMAT, "damaged");
    // Other objects beside the tables are accepted. Triggers do not run.
    copy_store();
    run_sql(scratch_db, "CREATE TABLE notes (x); CREATE TRIGGER t AFTER INSERT ON trial BEGIN "
                        "DELETE FROM trial; END");
    make_store();
    run_sql(scratch_db, "INSERT INTO notes SELECT 1 / (count(*) == 12) FROM trial");
}

// ---------------------------------------------------------------- values

static void values_that_are_not_theirs_are_refused(void **state) {
    (void)state;
    static const char *const edits[] = {
        "UPDATE trial SET reason = 'a' || char(0) || 'b' WHERE id = 3",
        "UPDATE trial SET outcome = 'splendid' WHERE id = 3",
        "UPDATE trial SET split = '{' WHERE id = 3",
        "UPDATE trial SET split = '[1]' WHERE id = 3",
        "UPDATE trial SET by_class = '{\"weights\": \"many\"}' WHERE id = 3",
        "UPDATE tuning SET state = 'asleep'",
        "UPDATE sample SET step_ns = x'0102030405' WHERE trial = 2",
        "UPDATE sample SET step_ns = x'' WHERE trial = 2",
        "UPDATE sample SET step_ns = x'000000000000f87f' WHERE trial = 2", // not a number
        "UPDATE sample SET step_ns = x'000000000000f0bf' WHERE trial = 2", // below 0
        "UPDATE sample SET step_ns = zeroblob(10000000) WHERE trial = 2",  // more than is accepted
        "UPDATE trial SET knobs = printf('%.*c', 40000000, 'x') WHERE id = 3",
    };
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        struct err e = {0};
        copy_store();
        run_sql(scratch_db, edits[i]);
        int rc = read_everything(scratch_db, &e);
        if (rc != ERR_FORMAT || !strstr(e.text, scratch_db))
            fail_msg("%s: %d %s", edits[i], rc, e.text);
    }
    // Names of another version are skipped. Numbers may have any value.
    static const char *const harmless[] = {
        "UPDATE trial SET split = '{\"warp\": 1}', by_class = '{\"weights\": -5}'",
        "UPDATE trial SET steps = -9223372036854775808, tokens_per_s = 9e999",
        "UPDATE trial SET knobs = printf('%.*c', 1000000, 'x')",
        "UPDATE trial SET model = CAST(x'fffe' AS TEXT), reason = '\x1b[2J'",
    };
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++) {
        struct err e = {0};
        copy_store();
        run_sql(scratch_db, harmless[i]);
        if (read_everything(scratch_db, &e) != 0)
            fail_msg("%s: %s", harmless[i], e.text);
    }
}

// ---------------------------------------------------------------- damage

// What a full disk or an incomplete copy leaves.
static void a_truncated_store_is_refused(void **state) {
    (void)state;
    size_t bytes;
    copy_store();
    char *whole = slurp(scratch_db, &bytes);
    assert_true(bytes > 16384);
    for (size_t cut = 1; cut < bytes; cut += cut < 200 ? 13 : 997) {
        spill(scratch_db, whole, cut);
        refused(scratch_db, ERR_FORMAT, "'");
    }
    free(whole);
}

// Any byte may have changed. Most damage is found, some cannot be (a digit of a number). Reading
// does no harm, and a refusal has a message.
static void changed_bytes_do_no_harm(void **state) {
    (void)state;
    enum { ROUNDS = 240 };
    size_t bytes;
    int found = 0;
    copy_store();
    char *whole = slurp(scratch_db, &bytes), *copy = malloc(bytes);
    assert_non_null(copy);
    for (uint64_t round = 0; round < ROUNDS; round++) {
        memcpy(copy, whole, bytes);
        uint64_t x = round * 0x9e3779b97f4a7c15u + 12345;
        for (int k = 0; k < 1 + (int)(round % 4); k++) {
            x ^= x >> 29, x *= 0xbf58476d1ce4e5b9u, x ^= x >> 32;
            // Half of them hit the structure: headers of pages, lists of cells and overflow.
            size_t at = (size_t)(x >> 8) % bytes;
            if (x & 1)
                at = at / 4096 * 4096 + at % 16;
            copy[at] = (char)(x >> 48);
        }
        spill(scratch_db, copy, bytes);
        struct err e = {0};
        if (read_everything(scratch_db, &e) != 0) {
            assert_true(e.code < 0 && strlen(e.text) > 20);
            found++;
        }
        struct store *s; // sometimes a writer, which may have to refuse half way
        if (round % 16 == 0 && store_open(&s, scratch_db, STORE_WRITE, &e) == 0) {
            struct store_trial t = scratch_trial(1);
            store_trial_add(s, &t, NULL, 0, NULL, &e);
            store_close(s);
        }
    }
    print_message("%d of %d were found\n", found, ROUNDS);
    assert_true(found > ROUNDS / 8);
    free(copy);
    free(whole);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_open, scratch_close)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(other_files_are_refused),
        TEST(an_empty_file_is_a_new_store),
        TEST(a_newer_store_is_refused),
        TEST(wrong_tables_are_refused),
        TEST(values_that_are_not_theirs_are_refused),
        TEST(a_truncated_store_is_refused),
        TEST(changed_bytes_do_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
