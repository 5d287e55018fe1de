// What is written to a store is read back: trials, samples, tunings, stages, filters, continuation,
// keys.
#include "scratch.h"

#include "store/schema.h"

#include <sys/wait.h>

static int count_one(void *arg, const struct store_trial *t) {
    (void)t;
    ++*(int *)arg;
    return 0;
}

static int count(struct store *s, struct store_filter f) {
    struct err e = {0};
    int n = 0;
    assert_int_equal(store_trials(s, &f, count_one, &n, &e), 0);
    return n;
}

// ---------------------------------------------------------------- trials

static int same_trial(void *arg, const struct store_trial *t) {
    const struct store_trial *want = arg;
#define SAME_int(a, b)     assert_int_equal(a, b)
#define SAME_opt(a, b)     assert_int_equal(a, b)
#define SAME_real(a, b)    assert_true((a) == (b) || (isnan(a) && isnan(b)))
#define SAME_text(a, b)    assert_string_equal(a, b)
#define SAME_lines         SAME_text
#define SAME_outcome(a, b) assert_int_equal(a, b)
#define SAME_split(a, b)                                                                           \
    for (int i = 0; i < TIME_COUNT; i++)                                                           \
    SAME_real((a).ms[i], (b).ms[i])
#define SAME_classes(a, b)  assert_memory_equal(&(a), &(b), sizeof(a))
#define X(kind, type, name) SAME_##kind(t->name, want->name);
    STORE_TRIAL_COLUMNS(X)
#undef X
    return 0;
}

// Every column of a kind gets a different value, so that a value in the wrong column is found.
static void fill(struct store_trial *t) {
    static char texts[64][16];
    int n = 0;
#define FILL_int(x)  (*(x) = 1000 + n)
#define FILL_opt(x)  (*(x) = 2000 + n)
#define FILL_real(x) (*(x) = 0.1 + n)

#define FILL_text(x) (snprintf(texts[n], sizeof texts[n], "text %d \xc3\xa4", n), *(x) = texts[n])

#define FILL_lines      FILL_text
#define FILL_outcome(x) (*(x) = OUTCOME_OVER_BUDGET)
#define FILL_split(x)                                                                              \
    for (int i = 0; i < TIME_COUNT; i++)                                                           \
    (x)->ms[i] = i == 2 ? NAN : 1.0 / (i + 3)
#define FILL_classes(x)                                                                            \
    for (int i = 0; i < CLASS_COUNT; i++)                                                          \
    (x)->bytes[i] = i == 1 ? 0 : (1ull << 40) + (uint64_t)i
#define X(kind, type, name)                                                                        \
    FILL_##kind(&t->name);                                                                         \
    n++;
    STORE_TRIAL_COLUMNS(X)
#undef X
    t->tuning = 0;
}

static void every_column_comes_back(void **state) {
    (void)state;
    struct store_trial full, empty;
    struct err e = {0};
    int64_t a = 0, b = 0;
    fill(&full);
    store_trial_init(&empty);
    struct store *s = scratch_store(STORE_WRITE);
    assert_int_equal(store_trial_add(s, &full, NULL, 0, &a, &e), 0);
    assert_int_equal(store_trial_add(s, &empty, NULL, 0, &b, &e), 0);
    assert_int_equal(store_trials(s, &(struct store_filter){.id = a}, same_trial, &full, &e), 0);
    store_close(s);
    s = scratch_store(STORE_READ);
    assert_int_equal(store_trials(s, &(struct store_filter){.id = a}, same_trial, &full, &e), 0);
    assert_int_equal(store_trials(s, &(struct store_filter){.id = b}, same_trial, &empty, &e), 0);
    assert_int_equal(count(s, (struct store_filter){0}), 2);
    assert_int_equal(store_trial_add(s, &full, NULL, 0, &a, &e), ERR_USAGE); // opened for reading
    store_close(s);
}

static void samples_come_back_to_the_bit(void **state) {
    (void)state;
    enum { N = 5000 };
    static double step_ns[N];
    struct store_trial t = scratch_trial(1);
    struct err e = {0};
    int64_t id;
    double *got;
    size_t n;
    for (int i = 0; i < N; i++)
        step_ns[i] = 1e6 / 3 + i * 0.1;
    struct store *s = scratch_store(STORE_WRITE);
    assert_int_equal(store_trial_add(s, &t, step_ns, N, &id, &e), 0);
    assert_int_equal(store_samples(s, id, &got, &n, &e), 0);
    assert_int_equal(n, N);
    assert_memory_equal(got, step_ns, sizeof step_ns);
    free(got);
    assert_int_equal(store_samples(s, id + 1, &got, &n, &e), 0); // no such trial: no samples
    assert_int_equal(n, 0);
    assert_null(got);
    assert_int_equal(store_trial_add(s, &t, step_ns, (size_t)STORE_SAMPLES_MOST + 1, &id, &e),
                     ERR_USAGE);
    store_close(s);
}

static void filters_let_through_what_they_say(void **state) {
    (void)state;
    struct store *s = scratch_store(STORE_WRITE);
    struct store_tuning tuning = {.goal = "bulk", .budgets = "{}", .key = "key odd"};
    struct err e = {0};
    int64_t id;
    assert_int_equal(store_tuning_begin(s, &tuning, &id, &e), 0);
    for (int64_t i = 0; i < 10; i++) {
        struct store_trial t = scratch_trial(i);
        t.tuning = i < 4 ? id : 0;
        t.outcome = i == 3 ? OUTCOME_KILLED : OUTCOME_MEASURED;
        t.setting = i < 6 ? "one" : "other";
        t.model = i == 9 ? "large" : "tiny";
        assert_int_equal(store_trial_add(s, &t, NULL, 0, NULL, &e), 0);
    }
    assert_int_equal(count(s, (struct store_filter){0}), 10);
    assert_int_equal(count(s, (struct store_filter){.tuning = id}), 4);
    assert_int_equal(count(s, (struct store_filter){.tuning = STORE_OUTSIDE}), 6);
    assert_int_equal(count(s, (struct store_filter){.tuning = id + 1}), 0);
    assert_int_equal(count(s, (struct store_filter){.key = "key odd"}), 5);
    assert_int_equal(count(s, (struct store_filter){.key = "key odd", .setting = "one"}), 3);
    assert_int_equal(count(s, (struct store_filter){.outcome = "killed"}), 1);
    assert_int_equal(count(s, (struct store_filter){.model = "large", .tuning = id}), 0);
    assert_int_equal(count(s, (struct store_filter){.model = "large"}), 1);
    // A tuning that does not exist cannot have trials.
    struct store_trial t = scratch_trial(1);
    t.tuning = 77;
    assert_int_equal(store_trial_add(s, &t, NULL, 0, NULL, &e), ERR_USAGE);
    store_close(s);
}

static int stop_at_third(void *arg, const struct store_trial *t) {
    assert_int_equal(t->steps, *(int *)arg); // oldest first
    return ++*(int *)arg == 3 ? 42 : 0;
}

static void a_reader_may_stop(void **state) {
    (void)state;
    struct store *s = scratch_store(STORE_WRITE);
    struct err e = {0};
    int seen = 0;
    for (int64_t i = 0; i < 5; i++) {
        struct store_trial t = scratch_trial(i);
        assert_int_equal(store_trial_add(s, &t, NULL, 0, NULL, &e), 0);
    }
    assert_int_equal(store_trials(s, &(struct store_filter){0}, stop_at_third, &seen, &e), 42);
    assert_int_equal(seen, 3);
    store_close(s);
}

// ---------------------------------------------------------------- tunings

struct seen {
    int n;
    struct store_tuning last;
    char verdict[64], stages[128];
};

static int see_tuning(void *arg, const struct store_tuning *t) {
    struct seen *seen = arg;
    seen->n++;
    seen->last = *t;
    snprintf(seen->verdict, sizeof seen->verdict, "%s", t->verdict);
    return 0;
}

static int see_stage(void *arg, const struct store_stage *t) {
    struct seen *seen = arg;
    size_t at = strlen(seen->stages);
    snprintf(seen->stages + at, sizeof seen->stages - at, "%lld %s: %s; ", (long long)t->ordinal,
             t->name, t->decision);
    return 0;
}

static void a_tuning_from_beginning_to_end(void **state) {
    (void)state;
    struct store *s = scratch_store(STORE_WRITE);
    struct store_tuning t = {.started_at = 5,
                             .goal = "interactive",
                             .budgets = "{\"p99_ms\": 80}",
                             .key = "k",
                             .model = "tiny",
                             .recipe = "seq: 64\n"};
    struct store_stage memory = {.ordinal = 1, .name = "memory", .decision = "none", .ended_at = 9};
    struct store_stage profile = {.ordinal = 0, .name = "profile", .decision = "compute-bound"};
    struct store_trial trial = scratch_trial(3);
    struct seen seen = {0};
    struct err e = {0};
    int64_t id, chosen;
    assert_int_equal(store_tuning_begin(s, &t, &id, &e), 0);
    trial.tuning = id;
    assert_int_equal(store_trial_add(s, &trial, NULL, 0, &chosen, &e), 0);
    trial.outcome = OUTCOME_REFUSED;
    assert_int_equal(store_trial_add(s, &trial, NULL, 0, NULL, &e), 0);
    assert_int_equal(store_stage_add(s, id, &memory, &e), 0);
    assert_int_equal(store_stage_add(s, id, &profile, &e), 0);
    memory.decision = "full"; // the same stage, decided again
    assert_int_equal(store_stage_add(s, id, &memory, &e), 0);
    assert_int_equal(store_stage_add(s, id + 1, &memory, &e), ERR_USAGE); // no such tuning

    assert_int_equal(store_tunings(s, 0, NULL, see_tuning, &seen, &e), 0);
    assert_int_equal(seen.n, 1);
    assert_int_equal(seen.last.state, TUNING_RUNNING);
    assert_true(seen.last.held);
    assert_true(isnan(seen.last.ended_at));
    assert_int_equal(store_tuning_finish(s, id, TUNING_DONE, chosen, "it is fast", "{}", &e), 0);
    assert_int_equal(store_tunings(s, id, "tiny", see_tuning, &seen, &e), 0);
    assert_int_equal(seen.n, 2);
    assert_int_equal(seen.last.state, TUNING_DONE);
    assert_false(seen.last.held);
    assert_int_equal(seen.last.chosen, chosen);
    assert_int_equal(seen.last.trials, 2);
    assert_int_equal(seen.last.measured, 1);
    assert_true(seen.last.ended_at > 1e9);
    assert_string_equal(seen.verdict, "it is fast");
    assert_int_equal(store_tunings(s, id, "large", see_tuning, &seen, &e), 0);
    assert_int_equal(seen.n, 2);
    assert_int_equal(store_stages(s, id, see_stage, &seen, &e), 0);
    assert_string_equal(seen.stages, "0 profile: compute-bound; 1 memory: full; ");
    assert_int_equal(store_tuning_finish(s, id + 1, TUNING_DONE, 0, "", "", &e), ERR_USAGE);
    assert_int_equal(store_tuning_finish(s, id, TUNING_DONE, 999, "", "", &e), ERR_USAGE);
    store_close(s);
}

static int64_t unfinished_of(struct store *s, const char *budgets, const char *recipe) {
    const struct store_tuning t = {
        .goal = "bulk", .budgets = budgets, .key = "k", .recipe = recipe};
    struct err e = {0};
    int64_t id;
    if (store_tuning_find_unfinished(s, &t, &id, &e) != 0)
        fail_msg("%s", e.text);
    return id;
}

static int64_t unfinished(struct store *s, const char *budgets) {
    return unfinished_of(s, budgets, "");
}

static void what_was_left_is_continued_and_what_runs_is_not(void **state) {
    (void)state;
    struct store *s = scratch_store(STORE_WRITE), *other = scratch_store(STORE_WRITE);
    struct store_tuning t = {.goal = "bulk", .budgets = "{}", .key = "k"};
    struct seen seen = {0};
    struct err e = {0};
    int64_t id, newer;
    assert_int_equal(unfinished(s, "{}"), 0);
    assert_int_equal(store_tuning_begin(s, &t, &id, &e), 0);
    assert_int_equal(unfinished(other, "{}"), 0); // another store works on it
    store_close(s);                               // like a process that dies
    assert_int_equal(unfinished(other, "{\"memory\": 1}"), 0);
    assert_int_equal(unfinished(other, "{}"), id);
    s = scratch_store(STORE_WRITE);
    assert_int_equal(unfinished(s, "{}"), 0); // the other store has it now
    assert_int_equal(store_tuning_finish(other, id, TUNING_STOPPED, 0, "", "", &e), 0);
    assert_int_equal(unfinished(s, "{}"), id);
    assert_int_equal(store_tunings(s, id, NULL, see_tuning, &seen, &e), 0);
    assert_int_equal(seen.last.state, TUNING_RUNNING);
    assert_true(isnan(seen.last.ended_at));
    // Of several tunings, the newest that is free.
    assert_int_equal(store_tuning_begin(other, &t, &newer, &e), 0);
    assert_int_equal(store_tuning_finish(other, newer, TUNING_STOPPED, 0, "", "", &e), 0);
    assert_int_equal(unfinished(other, "{}"), newer);
    assert_int_equal(store_tuning_finish(other, newer, TUNING_DONE, 0, "", "", &e), 0);
    assert_int_equal(store_tuning_finish(s, id, TUNING_DONE, 0, "", "", &e), 0);
    assert_int_equal(unfinished(s, "{}"), 0);
    store_close(s);
    store_close(other);
}

// A search with another sequence length or precision is another search.
static void a_search_of_another_recipe_is_not_continued(void **state) {
    (void)state;
    struct store *s = scratch_store(STORE_WRITE);
    struct store_tuning t = {.goal = "bulk", .budgets = "{}", .key = "k", .recipe = "seq: 64\n"};
    struct err e = {0};
    int64_t id;
    assert_int_equal(store_tuning_begin(s, &t, &id, &e), 0);
    assert_int_equal(store_tuning_finish(s, id, TUNING_STOPPED, 0, "", "", &e), 0);
    assert_int_equal(unfinished_of(s, "{}", "seq: 32\n"), 0);
    assert_int_equal(unfinished_of(s, "{}", "seq: 64\n"), id);
    store_close(s);
}

// A tuning that fails to begin must not unlock the tuning of the last row that was written.
static void a_tuning_that_cannot_begin_gives_up_no_other(void **state) {
    (void)state;
    struct store *s = scratch_store(STORE_WRITE), *other = scratch_store(STORE_WRITE);
    struct store_tuning t = {.goal = "bulk", .budgets = "{}", .key = "k"};
    struct err e = {0};
    int64_t id, none;
    assert_int_equal(store_tuning_begin(s, &t, &id, &e), 0);
    t.started_at = NAN;
    assert_int_equal(store_tuning_begin(s, &t, &none, &e), ERR_USAGE);
    assert_int_equal(none, 0);
    assert_int_equal(unfinished(other, "{}"), 0);
    store_close(s);
    assert_int_equal(unfinished(other, "{}"), id);
    store_close(other);
}

static void a_tuning_whose_process_was_killed_is_continued(void **state) {
    (void)state;
    struct store_tuning t = {.goal = "bulk", .budgets = "{}", .key = "k"};
    struct err e = {0};
    struct seen seen = {0};
    int ends[2], status;
    int64_t id = 0;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        struct store *s = NULL;
        bool ok = store_open(&s, scratch_db, STORE_WRITE, &e) == 0 &&
                  store_tuning_begin(s, &t, &id, &e) == 0 &&
                  write(ends[1], &id, sizeof id) == sizeof id;
        while (ok)
            pause();
        _exit(1);
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], &id, sizeof id), sizeof id);
    close(ends[0]);
    struct store *s = scratch_store(STORE_WRITE);
    assert_int_equal(unfinished(s, "{}"), 0);
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    assert_int_equal(store_tunings(s, id, NULL, see_tuning, &seen, &e), 0);
    assert_true(seen.last.state == TUNING_RUNNING && !seen.last.held);
    assert_int_equal(unfinished(s, "{}"), id);
    assert_int_equal(store_tunings(s, id, NULL, see_tuning, &seen, &e), 0);
    assert_true(seen.last.held);
    store_close(s);
}

// ---------------------------------------------------------------- paths

static void a_store_is_made_with_its_folder(void **state) {
    (void)state;
    char path[STORE_PATH_BYTES], want[STORE_PATH_BYTES];
    struct store *s;
    struct err e = {0};
    setenv("XDG_DATA_HOME", scratch_dir, 1);
    assert_int_equal(store_default_path(path, &e), 0);
    snprintf(want, sizeof want, "%s/haggle/trials.db", scratch_dir);
    assert_string_equal(path, want);
    assert_int_equal(store_open(&s, path, STORE_READ, &e), ERR_IO);
    assert_non_null(strstr(e.text, path));
    assert_false(file_exists(path)); // reading creates nothing
    assert_int_equal(store_open(&s, path, STORE_WRITE, &e), 0);
    assert_string_equal(store_path(s), path);
    store_close(s);
    setenv("XDG_DATA_HOME", "relative", 1);
    setenv("HOME", "/home/someone", 1);
    assert_int_equal(store_default_path(path, &e), 0);
    assert_string_equal(path, "/home/someone/.local/share/haggle/trials.db");
    unsetenv("HOME");
    assert_int_equal(store_default_path(path, &e), ERR_UNSUPPORTED);
    assert_int_equal(store_open(&s, "", STORE_WRITE, &e), ERR_USAGE);
    assert_int_equal(store_open(&s, scratch_dir, STORE_WRITE, &e), ERR_USAGE);
}

// SQLite gives some names a special meaning. Here they are files.
static void a_name_is_a_file(void **state) {
    (void)state;
    char before[PATH_MAX];
    struct store *s;
    struct err e = {0};
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(scratch_dir), 0);
    assert_int_equal(store_open(&s, ":memory:", STORE_WRITE, &e), 0);
    store_close(s);
    assert_true(file_exists(":memory:"));
    assert_int_equal(chdir(before), 0);
}

// ---------------------------------------------------------------- keys

static void keys_tell_apart_what_cannot_be_compared(void **state) {
    (void)state;
    struct model_shape shape;
    struct err e = {0};
    char key[6][HASH_TEXT_BYTES];
    assert_int_equal(model_shape_builtin(&shape, "tiny", &e), 0);
    struct store_key_parts p = {.shape = &shape, .data = "d", .hardware = "h", .build = "b"};
    assert_int_equal(store_key(&p, key[0], &e), 0);
    assert_int_equal(store_key(&p, key[1], &e), 0);
    assert_string_equal(key[0], key[1]);
    p.data = "dh", p.hardware = ""; // the same letters, divided differently
    assert_int_equal(store_key(&p, key[1], &e), 0);
    p.data = "d", p.hardware = "h2";
    assert_int_equal(store_key(&p, key[2], &e), 0);
    p.hardware = "h", p.build = "b2";
    assert_int_equal(store_key(&p, key[3], &e), 0);
    p.build = "b", shape.layers++;
    assert_int_equal(store_key(&p, key[4], &e), 0);
    p.data = "", shape.layers--;
    assert_int_equal(store_key(&p, key[5], &e), 0);
    for (int i = 0; i < 6; i++)
        for (int k = 0; k < i; k++)
            assert_string_not_equal(key[i], key[k]);
}

static void set(struct knobs *k, const char *assignment) {
    struct err e = {0};
    if (knobs_set_assignment(k, assignment, SET_BY_COMMAND_LINE, &e) != 0)
        fail_msg("%s", e.text);
}

static void settings_are_what_speed_depends_on(void **state) {
    (void)state;
    struct knobs k;
    struct err e = {0};
    char first[HASH_TEXT_BYTES], now[HASH_TEXT_BYTES];
    knobs_init(&k);
    assert_int_equal(store_setting(&k, first, &e), 0);
    static const char *const same[] = {"optim.lr=1e-5", "run.dir=elsewhere", "eval.every=1",
                                       "seed=9", "recompute.every=3"}; // no effect with mode=none
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        set(&k, same[i]);
        assert_int_equal(store_setting(&k, now, &e), 0);
        assert_string_equal(first, now);
    }
    set(&k, "noise.every=1"); // no effect with batch.accum=1
    assert_int_equal(store_setting(&k, now, &e), 0);
    assert_string_equal(first, now);
    static const char *const other[] = {"batch.micro=3", "recompute.mode=full", "threads=1",
                                        "batch.accum=2", "noise.every=7"};
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        set(&k, other[i]);
        assert_int_equal(store_setting(&k, now, &e), 0);
        assert_string_not_equal(first, now);
        memcpy(first, now, sizeof first);
    }
}

static void knobs_are_written_as_lines(void **state) {
    (void)state;
    struct knobs k;
    struct err e = {0};
    char *text;
    knobs_init(&k);
    assert_int_equal(store_knobs_text(&k, &text, &e), 0);
    assert_string_equal(text, "");
    free(text);
    set(&k, "seq=64");
    set(&k, "data.system=a b\\c=d");
    set(&k, "batch.micro=2");
    set(&k, "threads=0"); // at its default, although it was set
    assert_int_equal(store_knobs_text(&k, &text, &e), 0);
    assert_string_equal(text, "seq=64\nbatch.micro=2\ndata.system=a b\\c=d");
    free(text);
}

// ---------------------------------------------------------------- versions

static void steps_run_in_order_and_all_or_none(void **state) {
    (void)state;
    static const char *const steps[] = {
        "CREATE TABLE a (x INTEGER) STRICT; INSERT INTO a VALUES (1)",
        "ALTER TABLE a ADD COLUMN y TEXT; UPDATE a SET y = 'two' WHERE x = 1",
        "CREATE TABLE b AS SELECT y FROM a",
        "INSERT INTO nowhere VALUES (1)",
    };
    struct store s = {.writable = true, .lock_fd = -1, .path = "test"};
    struct schema schema = {steps, 1};
    struct err e = {0};
    int64_t n;
    assert_int_equal(sqlite3_open(":memory:", &s.db), SQLITE_OK);
    assert_int_equal(schema_bring(&s, &schema, &e), 0);
    schema.version = 4; // the last step fails: none of the others is kept
    assert_int_equal(schema_bring(&s, &schema, &e), ERR_FORMAT);
    assert_int_equal(sql_integer(&s, "PRAGMA user_version", &n, &e), 0);
    assert_int_equal(n, 1);
    assert_int_not_equal(sql_integer(&s, "SELECT count(y) FROM a", &n, NULL), 0);
    schema.version = 3;
    s.writable = false; // a reader does not update a file
    assert_int_equal(schema_bring(&s, &schema, &e), ERR_UNSUPPORTED);
    s.writable = true;
    assert_int_equal(schema_bring(&s, &schema, &e), 0);
    assert_int_equal(sql_integer(&s, "SELECT count(*) FROM b WHERE y = 'two'", &n, &e), 0);
    assert_int_equal(n, 1);
    schema.version = 2; // as an older program sees the file
    assert_int_equal(schema_bring(&s, &schema, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "newer haggle"));
    sqlite3_close(s.db);
}

// A file of the first version is brought up to date by whoever opens it, also to read.
static void an_older_file_is_brought_up_to_date(void **state) {
    (void)state;
    const struct schema first = {schema_current.steps, 1};
    struct store old = {.writable = true, .lock_fd = -1, .path = "old"}, *s;
    struct err e = {0};
    int64_t n;
    assert_int_equal(sqlite3_open(scratch_db, &old.db), SQLITE_OK);
    assert_int_equal(schema_bring(&old, &first, &e), 0);
    assert_int_equal(sql_exec(&old,
                              "INSERT INTO tuning (started_at, goal, budgets, key, model, recipe, "
                              "state, verdict) VALUES (1, 'bulk', '{}', 'k', 'm', 'r', 'done', "
                              "'v')",
                              &e),
                     0);
    assert_int_equal(sql_exec(&old,
                              "INSERT INTO trial (started_at, origin, key, setting, knobs, model, "
                              "stage, outcome, reason, split, by_class, warmup, steps, tokens, "
                              "real_tokens, trained_tokens) VALUES (1, 'tune', 'k', 's', '', 'm', "
                              "'', 'failed', '', '{}', '{}', 0, 0, 0, 0, 0)",
                              &e),
                     0);
    sqlite3_close(old.db);
    assert_int_equal(store_open(&s, scratch_db, STORE_READ, &e), 0);
    assert_int_equal(sql_integer(s, "SELECT count(*) FROM tuning WHERE turns = ''", &n, &e), 0);
    assert_int_equal(n, 1);
    assert_int_equal(sql_integer(s,
                                 "SELECT count(*) FROM trial WHERE apart_least_ns IS NULL AND "
                                 "apart_most_ns IS NULL AND busy IS NULL",
                                 &n, &e),
                     0);
    assert_int_equal(n, 1);
    assert_int_equal(sql_begin(s, NULL), ERR_USAGE); // it is still a reader
    store_close(s);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_open, scratch_close)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(every_column_comes_back),
        TEST(samples_come_back_to_the_bit),
        TEST(filters_let_through_what_they_say),
        TEST(a_reader_may_stop),
        TEST(a_tuning_from_beginning_to_end),
        TEST(what_was_left_is_continued_and_what_runs_is_not),
        TEST(a_search_of_another_recipe_is_not_continued),
        TEST(a_tuning_that_cannot_begin_gives_up_no_other),
        TEST(a_tuning_whose_process_was_killed_is_continued),
        TEST(a_store_is_made_with_its_folder),
        TEST(a_name_is_a_file),
        TEST(keys_tell_apart_what_cannot_be_compared),
        TEST(settings_are_what_speed_depends_on),
        TEST(knobs_are_written_as_lines),
        TEST(steps_run_in_order_and_all_or_none),
        TEST(an_older_file_is_brought_up_to_date),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
