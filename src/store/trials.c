// trials.c - writes and reads trials and their step times.
#include "store/store.h"

#include "base/json.h"
#include "store/sql.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const outcomes[OUTCOME_COUNT] = {
#define X(name, text) text,
    STORE_OUTCOME_LIST(X)
#undef X
};

const char *store_outcome_name(enum store_outcome o) {
    return (unsigned)o < OUTCOME_COUNT ? outcomes[o] : "unknown";
}

int store_outcome_find(const char *name) {
    for (int i = 0; i < OUTCOME_COUNT; i++)
        if (strcmp(name, outcomes[i]) == 0)
            return i;
    return -1;
}

// ---------------------------------------------------------------- a row in which nothing is known

#define INIT_int(x)     (*(x) = 0)
#define INIT_opt(x)     (*(x) = 0)
#define INIT_real(x)    (*(x) = NAN)
#define INIT_text(x)    (*(x) = "")
#define INIT_lines(x)   (*(x) = "")
#define INIT_outcome(x) (*(x) = OUTCOME_FAILED)
#define INIT_split(x)   init_split(x)
#define INIT_classes(x) (*(x) = (struct store_classes){{0}})

static void init_split(struct store_split *s) {
    for (int i = 0; i < TIME_COUNT; i++)
        s->ms[i] = NAN;
}

void store_trial_init(struct store_trial *t) {
    t->id = 0;
#define X(kind, type, name) INIT_##kind(&t->name);
    STORE_TRIAL_COLUMNS(X)
#undef X
}

// ---------------------------------------------------------------- kinds other than plain values

static int bind_outcome(sqlite3_stmt *st, int i, const enum store_outcome *x) {
    return sqlite3_bind_text(st, i, store_outcome_name(*x), -1, SQLITE_STATIC);
}

static void read_outcome(struct sql_row *r, int i, enum store_outcome *out) {
    const char *text;
    *out = OUTCOME_FAILED;
    read_text(r, i, &text);
    int found = store_outcome_find(text);
    if (found < 0)
        read_wrong(r, i, "holds an outcome that is not known");
    else
        *out = (enum store_outcome)found;
}

static int bind_json(sqlite3_stmt *st, int i, struct json_writer *w) {
    json_put_object_end(w);
    if (json_writer_finish(w, NULL) != 0) {
        free(w->buffer);
        return SQLITE_NOMEM;
    }
    return sqlite3_bind_text(st, i, w->buffer, (int)w->bytes, free);
}

static int bind_split(sqlite3_stmt *st, int i, const struct store_split *x) {
    struct json_writer w;
    json_writer_to_buffer(&w, 0);
    json_put_object_begin(&w);
    for (int p = 0; p < TIME_COUNT; p++)
        if (isfinite(x->ms[p]))
            json_member_double(&w, time_part_name((enum time_part)p), x->ms[p]);
    return bind_json(st, i, &w);
}

static int bind_classes(sqlite3_stmt *st, int i, const struct store_classes *x) {
    struct json_writer w;
    json_writer_to_buffer(&w, 0);
    json_put_object_begin(&w);
    for (int c = 0; c < CLASS_COUNT; c++)
        if (x->bytes[c] > 0)
            json_member_i64(&w, tensor_class_name((enum tensor_class)c), (int64_t)x->bytes[c]);
    return bind_json(st, i, &w);
}

// Reads an object of numbers. An unknown name comes from another version and is skipped.
static void read_object(struct sql_row *r, int i, void (*put)(void *, const char *, double),
                        void *arg) {
    const char *text, *name;
    struct region region = {0};
    struct json_reader json;
    double x;
    read_text(r, i, &text);
    if (r->rc != 0)
        return;
    json_reader_init(&json, "", text, strlen(text), &region, NULL);
    json_enter_object(&json);
    while (json_next_key(&json, &name))
        if (json_read_double(&json, &x) == 0)
            put(arg, name, x);
    if (json_finish(&json) != 0)
        read_wrong(r, i, "is no JSON object of numbers");
    region_free(&region);
}

static void put_part(void *arg, const char *name, double x) {
    struct store_split *s = arg;
    for (int p = 0; p < TIME_COUNT; p++)
        if (strcmp(name, time_part_name((enum time_part)p)) == 0)
            s->ms[p] = x;
}

static void read_split(struct sql_row *r, int i, struct store_split *out) {
    init_split(out);
    read_object(r, i, put_part, out);
}

static void put_class(void *arg, const char *name, double x) {
    struct store_classes *s = arg;
    for (int c = 0; c < CLASS_COUNT; c++)
        if (strcmp(name, tensor_class_name((enum tensor_class)c)) == 0 && x >= 0 && x < 0x1p53)
            s->bytes[c] = (uint64_t)x;
}

static void read_classes(struct sql_row *r, int i, struct store_classes *out) {
    *out = (struct store_classes){{0}};
    read_object(r, i, put_class, out);
}

// ---------------------------------------------------------------- adding

static int bind_trial(sqlite3_stmt *st, const struct store_trial *t) {
    int i = 0, rc = SQLITE_OK;
#define X(kind, type, name)                                                                        \
    i++;                                                                                           \
    if (rc == SQLITE_OK)                                                                           \
        rc = bind_##kind(st, i, &t->name);
    STORE_TRIAL_COLUMNS(X)
#undef X
    return rc;
}

static int insert_trial(struct store *s, const struct store_trial *t, struct err *e) {
    sqlite3_stmt *st;
    // "NULL, ?, ?, ..." for the id and the columns, in the same order as the names.
#define X(kind, type, name) ", " #name
#define Y(kind, type, name) ", ?"
    int rc = sql_prepare(
        s,
        "INSERT INTO trial (id" STORE_TRIAL_COLUMNS(X) ") VALUES (NULL" STORE_TRIAL_COLUMNS(Y) ")",
        &st, e);
#undef X
#undef Y
    if (rc == 0)
        rc = sql_run(s, st, bind_trial(st, t), e);
    sqlite3_finalize(st);
    return rc;
}

_Static_assert(sizeof(double) == 8 && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "step times are stored as little-endian doubles");

static int insert_samples(struct store *s, int64_t trial, const double *step_ns, size_t n,
                          struct err *e) {
    sqlite3_stmt *st;
    int rc = sql_prepare(s, "INSERT INTO sample (trial, step_ns) VALUES (?, ?)", &st, e);
    if (rc == 0) {
        int bound = sqlite3_bind_int64(st, 1, trial);
        if (bound == SQLITE_OK)
            bound = sqlite3_bind_blob64(st, 2, step_ns, n * sizeof *step_ns, SQLITE_STATIC);
        rc = sql_run(s, st, bound, e);
    }
    sqlite3_finalize(st);
    return rc;
}

int store_trial_add(struct store *s, const struct store_trial *t, const double *step_ns, size_t n,
                    int64_t *id, struct err *e) {
    if (n > STORE_SAMPLES_MOST)
        return err_set(e, ERR_USAGE, "%zu step times of one trial; accepted: at most %d", n,
                       STORE_SAMPLES_MOST);
    TRY(sql_begin(s, e));
    int rc = insert_trial(s, t, e);
    int64_t number = sqlite3_last_insert_rowid(s->db);
    if (rc == 0 && n > 0)
        rc = insert_samples(s, number, step_ns, n, e);
    rc = sql_end(s, rc, e);
    if (rc == 0 && id)
        *id = number;
    return rc;
}

// ---------------------------------------------------------------- reading

static int read_trial(const struct store *s, sqlite3_stmt *st, struct store_trial *t,
                      struct err *e) {
    struct sql_row r = {s, st, e, 0};
    int i = 0;
    read_int(&r, i, &t->id);
#define X(kind, type, name) read_##kind(&r, ++i, &t->name);
    STORE_TRIAL_COLUMNS(X)
#undef X
    return r.rc;
}

// One statement serves every filter: a parameter that is NULL accepts all rows.
static int bind_filter(sqlite3_stmt *st, const struct store_filter *f) {
    const char *const texts[] = {f->key, f->setting, f->model, f->outcome};
    int rc = bind_opt(st, 1, &f->id);
    if (rc == SQLITE_OK)
        rc = bind_opt(st, 2, &f->tuning);
    for (int i = 0; i < 4 && rc == SQLITE_OK; i++)
        rc = sqlite3_bind_text(st, 3 + i, texts[i], -1, SQLITE_STATIC); // NULL binds NULL
    return rc;
}

#define X(kind, type, name) ", " #name
static const char select_all[] = "SELECT id" STORE_TRIAL_COLUMNS(X) " FROM trial ";
#undef X

static int prepare_select(struct store *s, const struct store_filter *f, sqlite3_stmt **st,
                          struct err *e) {
    char sql[2048];
    // Conditions are written so that SQLite uses an index where there is one.
    const char *tuning = f->tuning == STORE_OUTSIDE ? "(?2 AND tuning IS NULL)"
                         : f->tuning > 0            ? "tuning = ?2"
                                                    : "?2 IS NULL";
    int n =
        snprintf(sql, sizeof sql,
                 "%sWHERE %s AND %s AND %s AND %s AND (?5 IS NULL OR model = ?5)"
                 " AND (?6 IS NULL OR outcome = ?6) ORDER BY id",
                 select_all, f->id ? "id = ?1" : "?1 IS NULL", tuning,
                 f->key ? "key = ?3" : "?3 IS NULL", f->setting ? "setting = ?4" : "?4 IS NULL");
    if (n < 0 || (size_t)n >= sizeof sql)
        return err_set(e, ERR_INTERNAL, "the statement that reads trials is too long");
    TRY(sql_prepare(s, sql, st, e));
    int bound = bind_filter(*st, f);
    return bound == SQLITE_OK ? 0 : sql_fail(s, bound, e);
}

int store_trials(struct store *s, const struct store_filter *f, store_trial_fn *fn, void *arg,
                 struct err *e) {
    sqlite3_stmt *st = NULL;
    struct store_trial t;
    bool row;
    int rc = prepare_select(s, f, &st, e);
    while (rc == 0 && (rc = sql_step(s, st, &row, e)) == 0 && row) {
        rc = read_trial(s, st, &t, e);
        if (rc == 0)
            rc = fn(arg, &t);
    }
    sqlite3_finalize(st);
    return rc;
}

static int copy_samples(struct sql_row *r, double **out, size_t *n) {
    const void *data = sqlite3_column_blob(r->st, 0);
    size_t bytes = (size_t)sqlite3_column_bytes(r->st, 0);
    if (sqlite3_column_type(r->st, 0) != SQLITE_BLOB || bytes == 0 || bytes % sizeof **out != 0 ||
        bytes / sizeof **out > STORE_SAMPLES_MOST) {
        read_wrong(r, 0, "holds no step times");
        return r->rc;
    }
    *out = malloc(bytes);
    if (!data || !*out)
        return err_set(r->e, ERR_MEMORY, "no memory for %zu step times", bytes / sizeof **out);
    memcpy(*out, data, bytes);
    *n = bytes / sizeof **out;
    for (size_t i = 0; i < *n; i++)
        if (!((*out)[i] >= 0 && (*out)[i] < 1e18)) // thirty years
            read_wrong(r, 0, "holds a time that no step can take");
    if (r->rc != 0) {
        free(*out);
        *out = NULL, *n = 0;
    }
    return r->rc;
}

int store_samples(struct store *s, int64_t trial, double **step_ns, size_t *n, struct err *e) {
    sqlite3_stmt *st;
    bool row = false;
    *step_ns = NULL;
    *n = 0;
    int rc = sql_prepare(s, "SELECT step_ns FROM sample WHERE trial = ?", &st, e);
    if (rc == 0) {
        int bound = sqlite3_bind_int64(st, 1, trial);
        rc = bound == SQLITE_OK ? sql_step(s, st, &row, e) : sql_fail(s, bound, e);
    }
    if (rc == 0 && row) {
        struct sql_row r = {s, st, e, 0};
        rc = copy_samples(&r, step_ns, n);
    }
    sqlite3_finalize(st);
    return rc;
}
