// store.c - opens a store: examines the file, sets up SQLite, refuses what is not a store.
//
// The order matters. A file of another program is recognised from its first hundred bytes before
// SQLite reads it, because SQLite would create files for a write-ahead log beside it.
#include "store/store.h"

#include "base/file.h"
#include "store/schema.h"
#include "store/sql.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    BUSY_MS = 30000,            // how long one process waits for another
    VALUE_BYTES_MOST = 1 << 25, // longest text or blob: four times STORE_SAMPLES_MOST doubles
    HEADER_BYTES = 100, // header of a SQLite file; the offsets below are from its documented format
    HEADER_PAGE_BYTES = 16,
    HEADER_WRITE_VERSION = 18,
    HEADER_PAGES = 28,
    HEADER_USER_VERSION = 60,
    HEADER_APPLICATION_ID = 68,
};

int store_default_path(char out[STORE_PATH_BYTES], struct err *e) {
    int rc = file_user_path(out, STORE_PATH_BYTES, FILE_DATA, "trials.db", e);
    if (rc != 0)
        err_context(e, "no file was given for the store of trials");
    return rc;
}

// ---------------------------------------------------------------- before SQLite looks inside

static int64_t big_endian(const unsigned char *p) {
    return (int32_t)((uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3]);
}

static bool has_journal(const struct store *s) {
    char journal[PATH_MAX + 16];
    snprintf(journal, sizeof journal, "%s-journal", s->path);
    return file_exists(journal);
}

static int examine_header(const struct store *s, const unsigned char *header, struct err *e) {
    static const char magic[] = "SQLite format 3"; // with its NUL
    if (memcmp(header, magic, sizeof magic) != 0)
        return sql_fail(s, SQLITE_NOTADB, e);
    TRY(schema_accepts(s, &schema_current, big_endian(header + HEADER_APPLICATION_ID),
                       big_endian(header + HEADER_USER_VERSION), e));
    if (header[HEADER_WRITE_VERSION] != 1)
        return err_set(e, ERR_FORMAT,
                       "'%s' uses a write-ahead log, which a store of trials does not support; "
                       "undo it with: sqlite3 FILE 'PRAGMA journal_mode=DELETE'",
                       s->path);
    return 0;
}

// SQLite treats a file of one byte as empty and would write to it.
static bool is_shorter(const struct store *s, int64_t bytes) {
    struct stat st;
    return stat(s->path, &st) == 0 && st.st_size < bytes;
}

// Detects an incomplete copy or the result of a full disk. SQLite treats a partial last page as
// whole. Another process may be writing: it writes page 1 first, and removes the journal when all
// pages are there. So a file that is short, has no journal and is still short stays short.
static int examine_length(const struct store *s, const unsigned char *header, struct err *e) {
    int64_t page = header[HEADER_PAGE_BYTES] << 8 | header[HEADER_PAGE_BYTES + 1];
    int64_t bytes = (uint32_t)big_endian(header + HEADER_PAGES) * (page == 1 ? 65536 : page);
    if (!is_shorter(s, bytes) || has_journal(s) || !is_shorter(s, bytes))
        return 0;
    return err_set(e, ERR_FORMAT,
                   "'%s' is damaged: it is cut off, and should have %lld bytes; it was not "
                   "changed: move it away, or name another file",
                   s->path, (long long)bytes);
}

// Reads through SQLite's handle. Closing another handle would release the locks that this process
// holds on the file (POSIX semantics).
static int examine(const struct store *s, struct err *e) {
    unsigned char header[HEADER_BYTES] = {0};
    sqlite3_file *f = NULL;
    int rc = sqlite3_file_control(s->db, "main", SQLITE_FCNTL_FILE_POINTER, &f);
    if (rc != SQLITE_OK || !f || !f->pMethods)
        return sql_fail(s, SQLITE_CANTOPEN, e);
    // With a journal, the file may be half written, which SQLite undoes. An empty file is new.
    if (is_shorter(s, 1) || has_journal(s))
        return 0;
    rc = f->pMethods->xRead(f, header, sizeof header, 0);
    if (rc != SQLITE_OK && rc != SQLITE_IOERR_SHORT_READ) // short: the rest is zeros
        return sql_fail(s, rc, e);
    TRY(examine_header(s, header, e));
    return examine_length(s, header, e);
}

static int check_place(const struct store *s, enum store_mode mode, struct err *e) {
    struct stat st;
    if (stat(s->path, &st) == 0)
        return S_ISREG(st.st_mode) ? 0
                                   : err_set(e, ERR_USAGE, "'%s' is not a regular file", s->path);
    if (errno != ENOENT)
        return err_set(e, ERR_IO, "'%s' cannot be opened: %s", s->path, strerror(errno));
    if (mode == STORE_READ)
        return err_set(e, ERR_IO, "'%s' does not exist: no trial was recorded there", s->path);
    return 0;
}

// ---------------------------------------------------------------- SQLite

// Only our own statements on our own tables run, nothing that the file's schema asks for. FULL: a
// commit is on disk. DELETE: the rollback journal, because packaged versions of SQLite are older
// than a correction to the write-ahead log.
static int configure(struct store *s, struct err *e) {
    sqlite3_busy_timeout(s->db, BUSY_MS);
    sqlite3_extended_result_codes(s->db, 1);
    sqlite3_limit(s->db, SQLITE_LIMIT_LENGTH, VALUE_BYTES_MOST);
    sqlite3_db_config(s->db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    sqlite3_db_config(s->db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
    sqlite3_db_config(s->db, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, NULL);
    sqlite3_db_config(s->db, SQLITE_DBCONFIG_ENABLE_VIEW, 0, NULL);
    return sql_exec(s,
                    "PRAGMA cell_size_check = ON; PRAGMA mmap_size = 0; PRAGMA foreign_keys = ON;"
                    "PRAGMA journal_mode = DELETE; PRAGMA synchronous = FULL",
                    e);
}

static int check_table(struct store *s, const char *sql, struct err *e) {
    sqlite3_stmt *st;
    bool row = false;
    int rc = sql_prepare(s, sql, &st, e);
    if (rc == 0)
        rc = sql_step(s, st, &row, e);
    const char *text = row ? (const char *)sqlite3_column_text(st, 0) : NULL;
    if (rc == 0 && (!text || strcmp(text, "ok") != 0))
        rc = err_set(
            e, ERR_FORMAT,
            "'%s' is damaged (%.200s); it was not changed: move it away, or name another file",
            s->path, text ? text : "no answer");
    sqlite3_finalize(st);
    return rc;
}

// Skips the step times, which are most of the file: their pages are checked when they are read.
static int check_pages(struct store *s, struct err *e) {
    TRY(check_table(s, "PRAGMA quick_check(tuning)", e));
    TRY(check_table(s, "PRAGMA quick_check(stage)", e));
    return check_table(s, "PRAGMA quick_check(trial)", e);
}

// The file is opened for writing where that is allowed, also for reading: what a killed process
// left half done must be undone first. SQLite gives ":memory:" and similar names a special meaning,
// which "./:memory:" does not have.
static int open_database(struct store *s, enum store_mode mode, struct err *e) {
    char name[PATH_MAX + 2];
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_FULLMUTEX |
                (mode == STORE_WRITE ? SQLITE_OPEN_CREATE : 0);
    snprintf(name, sizeof name, "%s%s", s->path[0] == '/' ? "" : "./", s->path);
    int rc = sqlite3_open_v2(name, &s->db, flags, NULL);
    if (rc != SQLITE_OK)
        return sql_fail(s, rc, e);
    TRY(examine(s, e));
    // A reader, too, brings an older file up to date where it may.
    s->updatable = access(s->path, W_OK) == 0;
    TRY(configure(s, e));
    TRY(schema_bring(s, &schema_current, e));
    if (mode == STORE_READ)
        TRY(sql_exec(s, "PRAGMA query_only = ON", e));
    TRY(schema_check(s, &schema_current, e));
    return check_pages(s, e);
}

static int set_path(struct store *s, const char *path, struct err *e) {
    if (!path[0])
        return err_set(e, ERR_USAGE, "the name of the store of trials is empty");
    if (strlen(path) >= sizeof s->path - sizeof "./-journal")
        return err_set(e, ERR_USAGE, "the path '%.80s...' is longer than %zu bytes", path,
                       sizeof s->path - sizeof "./-journal" - 1);
    strcpy(s->path, path);
    return 0;
}

int store_open(struct store **out, const char *path, enum store_mode mode, struct err *e) {
    *out = NULL;
    struct store *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(e, ERR_MEMORY, "no memory for a store of trials");
    s->lock_fd = -1;
    s->writable = mode == STORE_WRITE;
    int rc = set_path(s, path, e);
    if (rc == 0)
        rc = check_place(s, mode, e);
    if (rc == 0 && s->writable)
        rc = file_make_parent(s->path, e);
    if (rc == 0)
        rc = open_database(s, mode, e);
    if (rc != 0) {
        store_close(s);
        return rc;
    }
    *out = s;
    return 0;
}

void store_close(struct store *s) {
    if (!s)
        return;
    sqlite3_close(s->db);
    if (s->lock_fd >= 0)
        close(s->lock_fd);
    free(s);
}

const char *store_path(const struct store *s) {
    return s->path;
}

const char *store_sqlite_version(void) {
    return sqlite3_libversion();
}
