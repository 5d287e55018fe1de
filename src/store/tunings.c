// tunings.c - tunings and their stages, and which process works on a tuning.
//
// A process that works on a tuning holds a lock on byte `id` of FILE.lock beside the store. The
// kernel releases the lock whenever the process dies. A number in a table would stay.
#include "store/store.h"

#include "base/clock.h"
#include "store/sql.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static const char *const states[TUNING_STATES] = {
#define X(name, text) text,
    STORE_STATE_LIST(X)
#undef X
};

const char *store_state_name(enum store_state s) {
    return (unsigned)s < TUNING_STATES ? states[s] : "unknown";
}

// ---------------------------------------------------------------- locks

static int open_lock(struct store *s, struct err *e) {
    char path[PATH_MAX + 16];
    if (s->lock_fd >= 0)
        return 0;
    snprintf(path, sizeof path, "%s.lock", s->path);
    s->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (s->lock_fd >= 0)
        return 0;
    return err_set(e, ERR_IO, "'%s' cannot be created: %s", path, strerror(errno));
}

// Uses locks of the open file, not of the process: two stores in one process exclude each other,
// too.
static bool set_lock(const struct store *s, int64_t tuning, short type) {
    struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)tuning, .l_len = 1};
    return fcntl(s->lock_fd, F_OFD_SETLK, &l) == 0;
}

// Looks through a separate handle, which also sees the locks of this store.
static bool is_held(const struct store *s, int64_t tuning) {
    char path[PATH_MAX + 16];
    struct flock l = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)tuning, .l_len = 1};
    snprintf(path, sizeof path, "%s.lock", s->path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool held = fd >= 0 && fcntl(fd, F_OFD_GETLK, &l) == 0 && l.l_type != F_UNLCK;
    if (fd >= 0)
        close(fd);
    return held;
}

// ---------------------------------------------------------------- writing

static int insert_tuning(struct store *s, const struct store_tuning *t, struct err *e) {
    sqlite3_stmt *st;
    const char *const texts[] = {t->goal,  t->budgets, t->key,
                                 t->model, t->recipe,  states[TUNING_RUNNING]};
    int rc = sql_prepare(s,
                         "INSERT INTO tuning (started_at, goal, budgets, key, model, recipe, "
                         "state, verdict) VALUES (?, ?, ?, ?, ?, ?, ?, '')",
                         &st, e);
    if (rc == 0) {
        int bound = sqlite3_bind_double(st, 1, t->started_at);
        for (int i = 0; i < 6 && bound == SQLITE_OK; i++)
            bound = bind_text(st, 2 + i, &texts[i]);
        rc = sql_run(s, st, bound, e);
    }
    sqlite3_finalize(st);
    return rc;
}

int store_tuning_begin(struct store *s, const struct store_tuning *t, int64_t *id, struct err *e) {
    *id = 0;
    TRY(open_lock(s, e));
    TRY(sql_begin(s, e));
    int rc = insert_tuning(s, t, e);
    int64_t number = rc == 0 ? sqlite3_last_insert_rowid(s->db) : 0; // else: an old id
    // Lock before other processes can see the row.
    if (rc == 0 && !set_lock(s, number, F_WRLCK))
        rc = err_set(e, ERR_IO, "'%s.lock' cannot be locked: %s", s->path, strerror(errno));
    rc = sql_end(s, rc, e);
    if (rc == 0)
        *id = number;
    else if (number > 0)
        set_lock(s, number, F_UNLCK);
    return rc;
}

int store_tuning_finish(struct store *s, int64_t id, enum store_state state, int64_t chosen,
                        const char *verdict, const char *turns, struct err *e) {
    sqlite3_stmt *st;
    double now = clock_wall_s();
    TRY(sql_begin(s, e));
    int rc = sql_prepare(s,
                         "UPDATE tuning SET ended_at = ?, state = ?, chosen = ?, verdict = ?, "
                         "turns = ? WHERE id = ?",
                         &st, e);
    if (rc == 0) {
        int bound = bind_real(st, 1, &now);
        bound = bound ? bound : bind_text(st, 2, &(const char *){store_state_name(state)});
        bound = bound ? bound : bind_opt(st, 3, &chosen);
        bound = bound ? bound : bind_text(st, 4, &verdict);
        bound = bound ? bound : bind_text(st, 5, &turns);
        bound = bound ? bound : bind_int(st, 6, &id);
        rc = sql_run(s, st, bound, e);
    }
    if (rc == 0 && sqlite3_changes(s->db) != 1)
        rc = err_set(e, ERR_USAGE, "'%s' has no tuning %lld", s->path, (long long)id);
    sqlite3_finalize(st);
    rc = sql_end(s, rc, e);
    if (rc == 0 && s->lock_fd >= 0)
        set_lock(s, id, F_UNLCK);
    return rc;
}

int store_stage_add(struct store *s, int64_t tuning, const struct store_stage *stage,
                    struct err *e) {
    sqlite3_stmt *st;
    TRY(sql_begin(s, e));
    int rc = sql_prepare(s,
                         "INSERT OR REPLACE INTO stage (tuning, ordinal, name, decision, "
                         "started_at, ended_at) VALUES (?, ?, ?, ?, ?, ?)",
                         &st, e);
    if (rc == 0) {
        int bound = bind_int(st, 1, &tuning);
        bound = bound ? bound : bind_int(st, 2, &stage->ordinal);
        bound = bound ? bound : bind_text(st, 3, &stage->name);
        bound = bound ? bound : bind_text(st, 4, &stage->decision);
        bound = bound ? bound : bind_real(st, 5, &stage->started_at);
        bound = bound ? bound : bind_real(st, 6, &stage->ended_at);
        rc = sql_run(s, st, bound, e);
    }
    sqlite3_finalize(st);
    return sql_end(s, rc, e);
}

// ---------------------------------------------------------------- continuing

// Runs inside a transaction: no other process can take or finish a tuning meanwhile.
static int take_unfinished(struct store *s, const struct store_tuning *t, int64_t *id,
                           struct err *e) {
    const char *const texts[] = {t->key, t->goal, t->budgets, t->recipe};
    const int n = (int)(sizeof texts / sizeof *texts);
    sqlite3_stmt *st;
    bool row;
    int rc = sql_prepare(s,
                         "SELECT id FROM tuning WHERE key = ? AND goal = ? AND budgets = ? AND "
                         "recipe = ? AND state <> 'done' ORDER BY id DESC",
                         &st, e);
    int bound = SQLITE_OK;
    for (int i = 0; rc == 0 && i < n && bound == SQLITE_OK; i++)
        bound = bind_text(st, 1 + i, &texts[i]);
    if (bound != SQLITE_OK)
        rc = sql_fail(s, bound, e);
    while (rc == 0 && *id == 0 && (rc = sql_step(s, st, &row, e)) == 0 && row) {
        int64_t found = sqlite3_column_int64(st, 0);
        if (set_lock(s, found, F_WRLCK))
            *id = found;
    }
    sqlite3_finalize(st);
    if (rc != 0 || *id == 0)
        return rc;
    rc =
        sql_prepare(s, "UPDATE tuning SET state = 'running', ended_at = NULL WHERE id = ?", &st, e);
    if (rc == 0)
        rc = sql_run(s, st, bind_int(st, 1, id), e);
    sqlite3_finalize(st);
    return rc;
}

int store_tuning_find_unfinished(struct store *s, const struct store_tuning *t, int64_t *id,
                                 struct err *e) {
    *id = 0;
    TRY(open_lock(s, e));
    TRY(sql_begin(s, e));
    int rc = sql_end(s, take_unfinished(s, t, id, e), e);
    if (rc != 0 && *id != 0) {
        set_lock(s, *id, F_UNLCK);
        *id = 0;
    }
    return rc;
}

// ---------------------------------------------------------------- reading

static void read_state(struct sql_row *r, int i, enum store_state *out) {
    const char *text;
    read_text(r, i, &text);
    *out = TUNING_RUNNING;
    for (int k = 0; k < TUNING_STATES; k++)
        if (strcmp(text, states[k]) == 0) {
            *out = (enum store_state)k;
            return;
        }
    read_wrong(r, i, "holds a state that is not known");
}

static int read_tuning(const struct store *s, sqlite3_stmt *st, struct store_tuning *t,
                       struct err *e) {
    struct sql_row r = {s, st, e, 0};
    read_int(&r, 0, &t->id);
    read_real(&r, 1, &t->started_at);
    read_real(&r, 2, &t->ended_at);
    read_text(&r, 3, &t->goal);
    read_text(&r, 4, &t->budgets);
    read_text(&r, 5, &t->key);
    read_text(&r, 6, &t->model);
    read_text(&r, 7, &t->recipe);
    read_state(&r, 8, &t->state);
    read_opt(&r, 9, &t->chosen);
    read_text(&r, 10, &t->verdict);
    read_text(&r, 11, &t->turns);
    read_int(&r, 12, &t->trials);
    read_int(&r, 13, &t->measured);
    t->held = r.rc == 0 && t->state == TUNING_RUNNING && is_held(s, t->id);
    return r.rc;
}

int store_tunings(struct store *s, int64_t id, const char *model, store_tuning_fn *fn, void *arg,
                  struct err *e) {
    sqlite3_stmt *st;
    struct store_tuning t;
    bool row;
    int rc = sql_prepare(s,
                         "SELECT id, started_at, ended_at, goal, budgets, key, model, recipe, "
                         "state, chosen, verdict, turns,"
                         " (SELECT count(*) FROM trial WHERE trial.tuning = tuning.id),"
                         " (SELECT count(*) FROM trial WHERE trial.tuning = tuning.id AND outcome "
                         "= 'measured') "
                         "FROM tuning WHERE (?1 IS NULL OR id = ?1) AND (?2 IS NULL OR model = ?2) "
                         "ORDER BY id DESC",
                         &st, e);
    if (rc == 0) {
        int bound = bind_opt(st, 1, &id);
        bound = bound ? bound : sqlite3_bind_text(st, 2, model, -1, SQLITE_STATIC);
        rc = bound == SQLITE_OK ? 0 : sql_fail(s, bound, e);
    }
    while (rc == 0 && (rc = sql_step(s, st, &row, e)) == 0 && row) {
        rc = read_tuning(s, st, &t, e);
        if (rc == 0)
            rc = fn(arg, &t);
    }
    sqlite3_finalize(st);
    return rc;
}

int store_stages(struct store *s, int64_t tuning, store_stage_fn *fn, void *arg, struct err *e) {
    sqlite3_stmt *st;
    bool row;
    int rc = sql_prepare(s,
                         "SELECT ordinal, name, decision, started_at, ended_at FROM stage WHERE "
                         "tuning = ? ORDER BY ordinal",
                         &st, e);
    if (rc == 0) {
        int bound = bind_int(st, 1, &tuning);
        rc = bound == SQLITE_OK ? 0 : sql_fail(s, bound, e);
    }
    while (rc == 0 && (rc = sql_step(s, st, &row, e)) == 0 && row) {
        struct sql_row r = {s, st, e, 0};
        struct store_stage stage;
        read_int(&r, 0, &stage.ordinal);
        read_text(&r, 1, &stage.name);
        read_text(&r, 2, &stage.decision);
        read_real(&r, 3, &stage.started_at);
        read_real(&r, 4, &stage.ended_at);
        rc = r.rc == 0 ? fn(arg, &stage) : r.rc;
    }
    sqlite3_finalize(st);
    return rc;
}
