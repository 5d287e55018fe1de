// schema.c - see schema.h.
//
// To add a column: append a step (ALTER TABLE trial ADD COLUMN ...) and a line to the list in
// store.h. Never change a step that was released: existing files were made with it.
#include "store/schema.h"

#include <string.h>

// STRICT: a column holds its type or NULL, so a newer version can read what an older one wrote.
static const char *const steps[] = {
    "CREATE TABLE tuning ("
    " id INTEGER PRIMARY KEY,"
    " started_at REAL NOT NULL,"
    " ended_at REAL,"
    " goal TEXT NOT NULL,"
    " budgets TEXT NOT NULL,"
    " key TEXT NOT NULL,"
    " model TEXT NOT NULL,"
    " recipe TEXT NOT NULL,"
    " state TEXT NOT NULL,"
    " chosen INTEGER REFERENCES trial(id),"
    " verdict TEXT NOT NULL"
    ") STRICT;"
    "CREATE TABLE stage ("
    " tuning INTEGER NOT NULL REFERENCES tuning(id),"
    " ordinal INTEGER NOT NULL,"
    " name TEXT NOT NULL,"
    " decision TEXT NOT NULL,"
    " started_at REAL,"
    " ended_at REAL,"
    " PRIMARY KEY (tuning, ordinal)"
    ") STRICT;"
    "CREATE TABLE trial ("
    " id INTEGER PRIMARY KEY,"
    " tuning INTEGER REFERENCES tuning(id),"
    " started_at REAL,"
    " origin TEXT NOT NULL,"
    " key TEXT NOT NULL,"
    " setting TEXT NOT NULL,"
    " knobs TEXT NOT NULL,"
    " model TEXT NOT NULL,"
    " stage TEXT NOT NULL,"
    " outcome TEXT NOT NULL,"
    " reason TEXT NOT NULL,"
    " warmup INTEGER NOT NULL,"
    " steps INTEGER NOT NULL,"
    " tokens INTEGER NOT NULL,"
    " real_tokens INTEGER NOT NULL,"
    " trained_tokens INTEGER NOT NULL,"
    " wall_s REAL,"
    " tokens_per_s REAL,"
    " trained_tokens_per_s REAL,"
    " ms_per_sample REAL,"
    " step_p50_ms REAL,"
    " step_p95_ms REAL,"
    " step_p99_ms REAL,"
    " step_p50_upper95_ms REAL,"
    " step_p95_upper95_ms REAL,"
    " step_p99_upper95_ms REAL,"
    " data_wait_ms REAL,"
    " split TEXT NOT NULL,"
    " memory_predicted_bytes INTEGER,"
    " memory_measured_bytes INTEGER,"
    " by_class TEXT NOT NULL,"
    " loss_first REAL,"
    " loss_last REAL,"
    " predicted_step_ms REAL,"
    " joules_per_token REAL,"
    " utilization REAL,"
    " mfu REAL,"
    " hfu REAL"
    ") STRICT;"
    // Separate from the trial, so that listing trials does not read the step times.
    "CREATE TABLE sample ("
    " trial INTEGER PRIMARY KEY REFERENCES trial(id),"
    " step_ns BLOB NOT NULL" // little-endian doubles
    ") STRICT;"
    "CREATE INDEX trial_by_setting ON trial (key, setting);"
    "CREATE INDEX trial_by_tuning ON trial (tuning);"
    "CREATE INDEX tuning_by_key ON tuning (key);",
    // How busy other programs were during a trial; what running in turns showed.
    "ALTER TABLE trial ADD COLUMN busy REAL;"
    "ALTER TABLE tuning ADD COLUMN turns TEXT NOT NULL DEFAULT '';",
    // How far a trial's threads were from each other (hw/apart.h).
    "ALTER TABLE trial ADD COLUMN apart_least_ns REAL;"
    "ALTER TABLE trial ADD COLUMN apart_most_ns REAL;",
};

const struct schema schema_current = {steps, sizeof steps / sizeof *steps};

// ---------------------------------------------------------------- which file this is

int schema_accepts(const struct store *s, const struct schema *schema, int64_t application_id,
                   int64_t version, struct err *e) {
    if (application_id != SCHEMA_APPLICATION_ID)
        return err_set(
            e, ERR_FORMAT,
            "'%s' is a database of another program, not a store of trials; it was not changed",
            s->path);
    if (version > schema->version)
        return err_set(e, ERR_UNSUPPORTED,
                       "'%s' was written by a newer haggle (table version %lld, this one knows "
                       "%d); it was not changed",
                       s->path, (long long)version, schema->version);
    if (version < 1)
        return err_set(e, ERR_FORMAT, "'%s' is damaged: table version %lld does not exist", s->path,
                       (long long)version);
    return 0;
}

// *version 0: the file is empty so far.
static int look(struct store *s, const struct schema *schema, int64_t *version, struct err *e) {
    int64_t id, objects;
    TRY(sql_integer(s, "PRAGMA application_id", &id, e));
    TRY(sql_integer(s, "PRAGMA user_version", version, e));
    TRY(sql_integer(s, "SELECT count(*) FROM sqlite_schema", &objects, e));
    if (id == 0 && *version == 0 && objects == 0)
        return 0;
    return schema_accepts(s, schema, id, *version, e);
}

// Runs inside a transaction: what was seen before it may have been unfinished work of another
// process.
static int bring(struct store *s, const struct schema *schema, struct err *e) {
    int64_t version;
    char sql[96];
    TRY(look(s, schema, &version, e));
    for (int64_t i = version; i < schema->version; i++)
        TRY(sql_exec(s, schema->steps[i], e));
    snprintf(sql, sizeof sql, "PRAGMA application_id = %d; PRAGMA user_version = %d",
             SCHEMA_APPLICATION_ID, schema->version);
    return sql_exec(s, sql, e);
}

int schema_bring(struct store *s, const struct schema *schema, struct err *e) {
    int64_t version;
    TRY(sql_exec(s, "BEGIN", e)); // one state of the file: another process may be making it
    TRY(sql_end(s, look(s, schema, &version, e), e));
    if (version == schema->version)
        return 0;
    if (!s->writable && !(version > 0 && s->updatable))
        return version == 0
                   ? err_set(e, ERR_FORMAT, "'%s' is empty: no trial was recorded there", s->path)
                   : err_set(e, ERR_UNSUPPORTED,
                             "'%s' has table version %lld, this haggle reads %d; record a trial "
                             "there to update it",
                             s->path, (long long)version, schema->version);
    const bool writable = s->writable;
    s->writable = true;
    int rc = sql_begin(s, e);
    if (rc == 0)
        rc = sql_end(s, bring(s, schema, e), e);
    s->writable = writable;
    return rc;
}

// ---------------------------------------------------------------- checking the tables

// Checks that an object of the schema exists in the file with exactly this SQL.
static int check_object(struct store *s, sqlite3_stmt *found, const char *name, const char *sql,
                        struct err *e) {
    bool row = false;
    sqlite3_reset(found);
    int rc = sqlite3_bind_text(found, 1, name, -1, SQLITE_STATIC);
    if (rc != SQLITE_OK)
        return sql_fail(s, rc, e);
    TRY(sql_step(s, found, &row, e));
    const char *text = row ? (const char *)sqlite3_column_text(found, 0) : NULL;
    if (!text || strcmp(text, sql) != 0)
        return err_set(e, ERR_FORMAT,
                       "'%s' is damaged: its %s differs from that of a store of trials", s->path,
                       name);
    return 0;
}

static int compare(struct store *s, struct store *model, struct err *e) {
    sqlite3_stmt *wanted = NULL, *found = NULL;
    bool row = false;
    int rc =
        sql_prepare(model, "SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL", &wanted, e);
    if (rc == 0)
        rc = sql_prepare(s, "SELECT sql FROM sqlite_schema WHERE name = ?", &found, e);
    while (rc == 0 && (rc = sql_step(model, wanted, &row, e)) == 0 && row)
        rc = check_object(s, found, (const char *)sqlite3_column_text(wanted, 0),
                          (const char *)sqlite3_column_text(wanted, 1), e);
    sqlite3_finalize(wanted);
    sqlite3_finalize(found);
    return rc;
}

// Running the same steps in memory gives the expected schema, so there is no second list to keep.
int schema_check(struct store *s, const struct schema *schema, struct err *e) {
    struct store model = {.writable = true, .lock_fd = -1};
    snprintf(model.path, sizeof model.path, "%s", s->path);
    int rc = sqlite3_open_v2(":memory:", &model.db, SQLITE_OPEN_READWRITE, NULL);
    rc = rc == SQLITE_OK ? bring(&model, schema, e) : sql_fail(&model, rc, e);
    if (rc == 0)
        rc = compare(s, &model, e);
    sqlite3_close(model.db);
    return rc;
}
