// trials.c - haggle_trials: lists the tunings or the trials in the store.
#include "api/api.h"

#include "base/file.h"
#include "report/trials_print.h"

#include <stdlib.h>
#include <string.h>

// What the caller asked for.
struct wish {
    bool tunings; // list tunings; false: trials
    bool last;    // only trials of the newest tuning
    struct store_filter filter;
};

static int understand(struct wish *w, const struct haggle_trials *o, struct err *e) {
    *w = (struct wish){.filter = {.model = o->model, .outcome = o->outcome}};
    if (o->outcome && store_outcome_find(o->outcome) < 0) {
        char names[256] = "";
        for (int i = 0; i < OUTCOME_COUNT; i++) {
            size_t at = strlen(names);
            snprintf(names + at, sizeof names - at, "%s%s", i ? ", " : "",
                     store_outcome_name((enum store_outcome)i));
        }
        return err_set(e, ERR_USAGE, "outcome '%s' is not accepted; accepted: %s", o->outcome,
                       names);
    }
    if (!o->tuning) {
        w->tunings = !o->outcome; // tunings have no outcome, so all trials are meant
        return 0;
    }
    w->last = strcmp(o->tuning, "last") == 0;
    const bool none = strcmp(o->tuning, "none") == 0;
    w->filter.tuning = none ? STORE_OUTSIDE : 0;
    if (w->last || none || strcmp(o->tuning, "all") == 0)
        return 0;
    char *end;
    long long id = strtoll(o->tuning, &end, 10);
    if (*end || end == o->tuning || id < 1)
        return err_set(e, ERR_USAGE,
                       "tuning '%s' is not accepted; accepted: its number, 'last', 'all', or "
                       "'none' for trials outside any",
                       o->tuning);
    w->filter.tuning = id;
    return 0;
}

// ---------------------------------------------------------------- rows

static int read_rows(struct store *s, const struct wish *w, struct trials_rows *r, struct err *e) {
    int rc = w->tunings ? store_tunings(s, 0, w->filter.model, trials_add_tuning, r, e)
                        : store_trials(s, &w->filter, trials_add_trial, r, e);
    return r->failed ? err_set(e, ERR_MEMORY, "no memory for %zu rows", r->n) : rc;
}

// Prints the rows to c->out.
static int print_rows(struct call *c, struct store *s, const struct wish *w,
                      enum haggle_format format, struct trials_rows *r, struct err *e) {
    struct json_writer json;
    trials_rows_init(r, w->tunings ? TRIALS_TUNINGS : TRIALS_TRIALS, (enum table_format)format);
    if (format == HAGGLE_JSON) {
        json_writer_to_file(&json, c->out, 2);
        json_put_array_begin(&json);
        r->json = &json;
    }
    r->lines = format == HAGGLE_JSONL ? c->out : NULL;
    TRY(read_rows(s, w, r, e));
    if (format == HAGGLE_JSON) {
        json_put_array_end(&json);
        TRY(json_writer_finish(&json, e));
        fputc('\n', c->out);
        return 0;
    }
    return r->n > 0 || format == HAGGLE_CSV ? trials_print(r, c->out, e) : 0;
}

static int put_rows(struct call *c, struct store *s, const struct wish *w, struct err *e) {
    struct trials_rows r;
    trials_rows_init(&r, w->tunings ? TRIALS_TUNINGS : TRIALS_TRIALS, TABLE_JSON);
    r.json = &c->json;
    json_put_key(&c->json, w->tunings ? "tunings" : "trials");
    json_put_array_begin(&c->json);
    int rc = read_rows(s, w, &r, e);
    if (rc == 0)
        json_put_array_end(&c->json);
    trials_rows_free(&r);
    return rc;
}

static int count_trial(void *arg, const struct store_trial *t) {
    (void)t;
    ++*(size_t *)arg;
    return 0;
}

// Says what the list does not show.
static int say_others(struct call *c, struct store *s, const struct wish *w, size_t rows,
                      struct err *e) {
    size_t n = 0;
    if (rows == 0)
        log_put(&c->log, LOG_INFO, "'%s' has no %s%s", store_path(s),
                w->tunings ? "tuning" : "trial",
                w->filter.model || w->filter.outcome || w->filter.tuning ? " of that kind" : "");
    if (!w->tunings)
        return 0;
    struct store_filter outside = {.tuning = STORE_OUTSIDE, .model = w->filter.model};
    TRY(store_trials(s, &outside, count_trial, &n, e));
    if (n > 0)
        log_put(&c->log, LOG_INFO, "%zu trial%s outside any tuning: haggle trials none", n,
                n == 1 ? "" : "s");
    return 0;
}

// ---------------------------------------------------------------- the verb

static int show(struct call *c, struct store *s, const struct wish *w, enum haggle_format format,
                struct err *e) {
    struct trials_rows rows = {0};
    int rc = 0;
    if (call_json_begin(c, "trials", NULL))
        json_member_string(&c->json, "store", store_path(s));
    if (w->filter.tuning > 0)
        rc = trials_put_head(s, w->filter.tuning, format == HAGGLE_MARKDOWN ? c->out : NULL,
                             c->wants_json ? &c->json : NULL, e);
    if (rc == 0 && c->wants_json)
        rc = put_rows(c, s, w, e);
    if (rc == 0 && c->wants_json)
        json_put_object_end(&c->json);
    if (rc == 0 && c->out)
        rc = print_rows(c, s, w, format, &rows, e);
    if (rc == 0 && c->out)
        rc = say_others(c, s, w, rows.n, e);
    trials_rows_free(&rows);
    return rc;
}

static int take_first(void *arg, const struct store_tuning *t) { // they come newest first
    int64_t *id = arg;
    *id = *id ? *id : t->id;
    return 0;
}

static int find_last(struct wish *w, struct store *s, struct err *e) {
    if (!w->last)
        return 0;
    TRY(store_tunings(s, 0, w->filter.model, take_first, &w->filter.tuning, e));
    return w->filter.tuning
               ? 0
               : err_set(e, ERR_USAGE, "'%s' has no tuning%s%s", store_path(s),
                         w->filter.model ? " of " : "", w->filter.model ? w->filter.model : "");
}

// A list before the first search is empty. That is no failure.
static void show_none(struct call *c, const struct wish *w, enum haggle_format format,
                      const char *path) {
    if (call_json_begin(c, "trials", NULL)) {
        json_member_string(&c->json, "store", path);
        json_put_key(&c->json, w->tunings ? "tunings" : "trials");
        json_put_array_begin(&c->json);
        json_put_array_end(&c->json);
        json_put_object_end(&c->json);
    }
    if (c->out && format == HAGGLE_JSON)
        fputs("[]\n", c->out);
    log_put(&c->log, LOG_INFO, "nothing is recorded yet: 'haggle tune' records its trials in %s",
            path);
}

static int trials(struct call *c, const struct haggle_trials *o, struct err *e) {
    char path[STORE_PATH_BYTES];
    struct wish wish;
    struct store *s;
    TRY(understand(&wish, o, e));
    if (!o->store)
        TRY(store_default_path(path, e));
    if (!o->store && !wish.last && wish.filter.tuning <= 0 && !file_exists(path)) {
        show_none(c, &wish, o->format, path);
        return 0;
    }
    TRY(store_open(&s, o->store ? o->store : path, STORE_READ, e));
    int rc = find_last(&wish, s, e);
    if (rc == 0)
        rc = show(c, s, &wish, o->format, e);
    store_close(s);
    return rc;
}

int haggle_trials(const struct haggle_trials *options, const struct haggle_sink *sink,
                  struct haggle_error *e) {
    struct call c;
    call_begin(&c, sink);
    return call_end(&c, trials(&c, options, &c.err), e);
}
