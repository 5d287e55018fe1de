// sql.h - shared by the files of this folder: the open store, statements with checked results.
//
// Place: below store.h, above sqlite3.h. Outside src/store only its tests include it.
#ifndef HAGGLE_STORE_SQL_H
#define HAGGLE_STORE_SQL_H

#include "store/store.h"

#include <limits.h>
#include <sqlite3.h>

struct store {
    sqlite3 *db;
    char path[PATH_MAX]; // as given by the caller
    bool writable;
    bool updatable; // may bring an older file up to date
    int lock_fd;    // has the locks of the tunings this store works on; -1: none yet
};

// Sets a message about an SQLite error, with the file's name. Returns the error code.
int sql_fail(const struct store *s, int rc, struct err *e);
// Runs one or several statements without results.
int sql_exec(struct store *s, const char *sql, struct err *e);
int sql_prepare(struct store *s, const char *sql, sqlite3_stmt **out, struct err *e);
// *row: there is a row. Call sqlite3_finalize in every case.
int sql_step(struct store *s, sqlite3_stmt *st, bool *row, struct err *e);
// Runs a statement without results. bound: SQLite's code for binding its parameters.
int sql_run(struct store *s, sqlite3_stmt *st, int bound, struct err *e);
// Returns the first column of the first row of a statement.
int sql_integer(struct store *s, const char *sql, int64_t *out, struct err *e);
// Takes the write lock at once: a transaction that begins with reading may fail to get it later.
int sql_begin(struct store *s, struct err *e);
// Commits when rc is 0, else rolls back. Returns the result.
int sql_end(struct store *s, int rc, struct err *e);

// Binds a value, by kind of STORE_TRIAL_COLUMNS. Returns SQLite's code.
int bind_int(sqlite3_stmt *st, int i, const int64_t *x);
int bind_opt(sqlite3_stmt *st, int i, const int64_t *x);
int bind_real(sqlite3_stmt *st, int i, const double *x);
int bind_text(sqlite3_stmt *st, int i, const char *const *x);
#define bind_lines bind_text

// Reads a column. The first column with a wrong value fails the row; the error names the column.
struct sql_row {
    const struct store *s;
    sqlite3_stmt *st;
    struct err *e;
    int rc;
};
// Fails the row. what: the end of a sentence that begins with the column.
void read_wrong(struct sql_row *r, int i, const char *what);
void read_int(struct sql_row *r, int i, int64_t *out);
void read_opt(struct sql_row *r, int i, int64_t *out);
void read_real(struct sql_row *r, int i, double *out);
void read_text(struct sql_row *r, int i, const char **out);
#define read_lines read_text

#endif
