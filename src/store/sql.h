// sql.h - what the files of this folder share: the open store, statements with checked results.
//
// Place: below store.h, above sqlite3.h. Nothing outside src/store includes it but its tests.
#ifndef HAGGLE_STORE_SQL_H
#define HAGGLE_STORE_SQL_H

#include "store/store.h"

#include <limits.h>
#include <sqlite3.h>

struct store {
    sqlite3 *db;
    char path[PATH_MAX]; // as it was given
    bool writable;
    int lock_fd; // of the tunings that are ours; -1: none yet
};

// A sentence about what SQLite said, with the file's name; returns its code.
int sql_fail(const struct store *s, int rc, struct err *e);
// One statement, or several without results.
int sql_exec(struct store *s, const char *sql, struct err *e);
int sql_prepare(struct store *s, const char *sql, sqlite3_stmt **out, struct err *e);
// *row: there is one. sqlite3_finalize in every case.
int sql_step(struct store *s, sqlite3_stmt *st, bool *row, struct err *e);
// The first column of the first row of a statement.
int sql_integer(struct store *s, const char *sql, int64_t *out, struct err *e);
// The lock for writing is taken at once: a transaction that begins by reading could find it gone.
int sql_begin(struct store *s, struct err *e);
// Commits when rc is 0, else rolls back; returns what became of it.
int sql_end(struct store *s, int rc, struct err *e);

// Binding, by kind of STORE_TRIAL_COLUMNS. rc of SQLite.
int bind_int(sqlite3_stmt *st, int i, const int64_t *x);
int bind_opt(sqlite3_stmt *st, int i, const int64_t *x);
int bind_real(sqlite3_stmt *st, int i, const double *x);
int bind_text(sqlite3_stmt *st, int i, const char *const *x);
#define bind_lines bind_text

// Reading: the first column that is not what it should be fails the row, by name.
struct sql_row {
    const struct store *s;
    sqlite3_stmt *st;
    struct err *e;
    int rc;
};
// rc: what is wrong, as half a sentence.
void read_wrong(struct sql_row *r, int i, const char *what);
void read_int(struct sql_row *r, int i, int64_t *out);
void read_opt(struct sql_row *r, int i, int64_t *out);
void read_real(struct sql_row *r, int i, double *out);
void read_text(struct sql_row *r, int i, const char **out);
#define read_lines read_text

#endif
