// sql.c - statements with checked results, and messages for SQLite's codes.
#include "store/sql.h"

#include <math.h>
#include <string.h>

int sql_fail(const struct store *s, int rc, struct err *e) {
    const char *why = s->db ? sqlite3_errmsg(s->db) : sqlite3_errstr(rc);
    switch (rc & 0xff) {
    case SQLITE_CORRUPT:
        return err_set(
            e, ERR_FORMAT,
            "'%s' is damaged (%s); it was not changed: move it away, or name another file", s->path,
            why);
    case SQLITE_NOTADB:
        return err_set(e, ERR_FORMAT,
                       "'%s' is not a store of trials (not an SQLite database); it was not changed",
                       s->path);
    case SQLITE_ERROR: // no such table or column: our statements are valid, the file is not
        return err_set(e, ERR_FORMAT, "'%s' does not have the tables of a store of trials (%s)",
                       s->path, why);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return err_set(e, ERR_IO, "'%s' is locked by another process for too long (%s)", s->path,
                       why);
    case SQLITE_NOMEM:
        return err_set(e, ERR_MEMORY, "no memory to read or write '%s'", s->path);
    case SQLITE_TOOBIG:
        return err_set(e, ERR_FORMAT, "'%s': a value is larger than a store accepts (%s)", s->path,
                       why);
    case SQLITE_CONSTRAINT:
        return err_set(e, ERR_USAGE, "'%s' does not accept the row (%s)", s->path, why);
    default: // full, read-only, cannot be opened, I/O error
        return err_set(e, ERR_IO, "'%s' cannot be read or written: %s", s->path, why);
    }
}

int sql_exec(struct store *s, const char *sql, struct err *e) {
    int rc = sqlite3_exec(s->db, sql, NULL, NULL, NULL);
    return rc == SQLITE_OK ? 0 : sql_fail(s, rc, e);
}

int sql_prepare(struct store *s, const char *sql, sqlite3_stmt **out, struct err *e) {
    *out = NULL;
    int rc = sqlite3_prepare_v2(s->db, sql, -1, out, NULL);
    return rc == SQLITE_OK ? 0 : sql_fail(s, rc, e);
}

int sql_step(struct store *s, sqlite3_stmt *st, bool *row, struct err *e) {
    int rc = sqlite3_step(st);
    *row = rc == SQLITE_ROW;
    return rc == SQLITE_ROW || rc == SQLITE_DONE ? 0 : sql_fail(s, rc, e);
}

int sql_run(struct store *s, sqlite3_stmt *st, int bound, struct err *e) {
    bool row;
    return bound == SQLITE_OK ? sql_step(s, st, &row, e) : sql_fail(s, bound, e);
}

int sql_integer(struct store *s, const char *sql, int64_t *out, struct err *e) {
    sqlite3_stmt *st;
    bool row = false;
    int rc = sql_prepare(s, sql, &st, e);
    if (rc == 0)
        rc = sql_step(s, st, &row, e);
    *out = row ? sqlite3_column_int64(st, 0) : 0;
    sqlite3_finalize(st);
    return rc;
}

int sql_begin(struct store *s, struct err *e) {
    if (!s->writable)
        return err_set(e, ERR_USAGE, "'%s' was opened for reading", s->path);
    return sql_exec(s, "BEGIN IMMEDIATE", e);
}

int sql_end(struct store *s, int rc, struct err *e) {
    if (rc == 0)
        rc = sql_exec(s, "COMMIT", e);
    if (rc != 0 && !sqlite3_get_autocommit(s->db)) // some errors have already rolled back
        sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
    return rc;
}

// ---------------------------------------------------------------- binding

int bind_int(sqlite3_stmt *st, int i, const int64_t *x) {
    return sqlite3_bind_int64(st, i, *x);
}

int bind_opt(sqlite3_stmt *st, int i, const int64_t *x) {
    return *x == 0 ? sqlite3_bind_null(st, i) : sqlite3_bind_int64(st, i, *x);
}

int bind_real(sqlite3_stmt *st, int i, const double *x) {
    return isnan(*x) ? sqlite3_bind_null(st, i) : sqlite3_bind_double(st, i, *x);
}

int bind_text(sqlite3_stmt *st, int i, const char *const *x) {
    return sqlite3_bind_text(st, i, *x ? *x : "", -1, SQLITE_STATIC);
}

// ---------------------------------------------------------------- reading

void read_wrong(struct sql_row *r, int i, const char *what) {
    if (r->rc == 0)
        r->rc = err_set(r->e, ERR_FORMAT, "'%s' is damaged: column %s %s", r->s->path,
                        sqlite3_column_name(r->st, i), what);
}

void read_int(struct sql_row *r, int i, int64_t *out) {
    *out = 0;
    if (sqlite3_column_type(r->st, i) != SQLITE_INTEGER)
        read_wrong(r, i, "holds no whole number");
    else
        *out = sqlite3_column_int64(r->st, i);
}

void read_opt(struct sql_row *r, int i, int64_t *out) {
    *out = 0;
    if (sqlite3_column_type(r->st, i) != SQLITE_NULL)
        read_int(r, i, out);
}

void read_real(struct sql_row *r, int i, double *out) {
    int type = sqlite3_column_type(r->st, i);
    *out = NAN;
    if (type == SQLITE_FLOAT || type == SQLITE_INTEGER)
        *out = sqlite3_column_double(r->st, i);
    else if (type != SQLITE_NULL)
        read_wrong(r, i, "holds no number");
}

// Reads the text before asking for its length, as SQLite requires.
void read_text(struct sql_row *r, int i, const char **out) {
    *out = "";
    if (sqlite3_column_type(r->st, i) != SQLITE_TEXT) {
        read_wrong(r, i, "holds no text");
        return;
    }
    const char *text = (const char *)sqlite3_column_text(r->st, i);
    if (!text)
        r->rc = r->rc ? r->rc : sql_fail(r->s, SQLITE_NOMEM, r->e);
    else if (strlen(text) != (size_t)sqlite3_column_bytes(r->st, i))
        read_wrong(r, i, "has a NUL in its text");
    else
        *out = text;
}
