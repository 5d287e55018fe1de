// run_read_log.c - reads log.jsonl as a stream, in two passes over the same bytes.
//
// The first pass only looks for the steps at which processes of the run began. A process that
// resumes at step s makes all later steps of earlier processes void. The second pass takes the
// steps that count. Neither pass sees lines that a running process appends meanwhile.
#include "report/run_read.h"

#include "base/json.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// The largest step accepted. knob.def allows 10^9; the rest is room for other writers.
static const int64_t STEP_MOST = (int64_t)1 << 40;
// The strings of parsed lines are freed together, once they take more than STRINGS_BYTES.
enum { STRINGS_BYTES = 1 << 18, BUFFER_BYTES = 1 << 18 };
// The smoothed loss averages over 1/50 of the run to each side.
enum { SMOOTH_PARTS = 50 };

// ---------------------------------------------------------------- lines of a file

struct lines {
    int fd;
    const char *path;
    char *buffer; // BUFFER_BYTES
    size_t at, end;
    uint64_t left; // bytes of the file not yet in the buffer
    bool too_long; // the line last returned is too long; what did not fit has been skipped
    bool torn;     // the line last returned is the last one and has no newline
};

static int refill(struct lines *l, struct err *e) {
    memmove(l->buffer, l->buffer + l->at, l->end - l->at);
    l->end -= l->at;
    l->at = 0;
    while (l->left > 0 && l->end < BUFFER_BYTES) {
        size_t want = BUFFER_BYTES - l->end;
        ssize_t n = read(l->fd, l->buffer + l->end, want < l->left ? want : (size_t)l->left);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set(e, ERR_IO, "%s cannot be read: %s", l->path, strerror(errno));
        if (n == 0) // the file has been truncated meanwhile
            l->left = 0;
        l->end += (size_t)n;
        l->left -= (uint64_t)n;
    }
    return 0;
}

// Returns 1 and the line without its newline, 0 at the end, a negative number on error.
static int next_line(struct lines *l, const char **line, size_t *bytes, struct err *e) {
    l->too_long = false;
    for (;;) {
        const char *start = l->buffer + l->at;
        const char *newline = memchr(start, '\n', l->end - l->at);
        if (!newline && l->left > 0 && l->end - l->at < BUFFER_BYTES) {
            TRY(refill(l, e));
            continue;
        }
        if (!newline && l->left > 0) { // it fills the buffer: far longer than any line of a log
            l->too_long = true;
            l->at = l->end;
            continue;
        }
        if (!newline && l->at == l->end && !l->too_long)
            return 0;
        l->torn = newline == NULL;
        *line = start;
        *bytes = newline ? (size_t)(newline - start) : l->end - l->at;
        l->at += *bytes + (newline ? 1 : 0);
        l->too_long = l->too_long || *bytes > RUN_LINE_BYTES;
        return 1;
    }
}

// ---------------------------------------------------------------- one record

enum event { EVENT_STEP, EVENT_START, EVENT_EVAL, EVENT_SAVE, EVENT_OTHER };

struct record { // a missing integer is -1, a missing number NaN, a missing text NULL
    enum event kind;
    int64_t step, steps, warmup_steps, parameters;
    double loss, lr, grad_norm, tokens_per_s, step_ms, data_wait_ms, time;
    double validation_loss, memory_predicted_bytes;
    bool skipped, empty;
    const char *event, *haggle, *model, *data, *device, *isa, *blas, *resumed_from;
};

// The members of a record: the key in the log and the place in struct record.
enum kind { KIND_INTEGER, KIND_NUMBER, KIND_TEXT, KIND_FLAG };
static const enum json_type TYPE_OF_KIND[] = {JSON_NUMBER, JSON_NUMBER, JSON_STRING, JSON_BOOL};
#define MEMBER(kind, field)                                                                        \
    { #field, KIND_##kind, offsetof(struct record, field) }
static const struct member {
    const char *key;
    enum kind kind;
    size_t at;
} members[] = {MEMBER(INTEGER, step),
               MEMBER(INTEGER, steps),
               MEMBER(INTEGER, warmup_steps),
               MEMBER(INTEGER, parameters),
               MEMBER(NUMBER, loss),
               MEMBER(NUMBER, lr),
               MEMBER(NUMBER, grad_norm),
               MEMBER(NUMBER, tokens_per_s),
               MEMBER(NUMBER, step_ms),
               MEMBER(NUMBER, data_wait_ms),
               MEMBER(NUMBER, time),
               MEMBER(NUMBER, validation_loss),
               MEMBER(NUMBER, memory_predicted_bytes),
               MEMBER(FLAG, skipped),
               MEMBER(FLAG, empty),
               MEMBER(TEXT, event),
               MEMBER(TEXT, haggle),
               MEMBER(TEXT, model),
               MEMBER(TEXT, data),
               MEMBER(TEXT, device),
               MEMBER(TEXT, isa),
               MEMBER(TEXT, blas),
               MEMBER(TEXT, resumed_from)};
enum { MEMBERS = sizeof members / sizeof *members };

// A value of another type is skipped. So is null, which means: not measured.
static void take_member(struct json_reader *r, struct record *v, const char *key) {
    size_t i = 0, bytes; // a NUL inside a text ends it, which does no harm here
    while (i < MEMBERS && strcmp(key, members[i].key) != 0)
        i++;
    if (i == MEMBERS || json_peek(r) != TYPE_OF_KIND[members[i].kind]) {
        json_skip(r);
        return;
    }
    void *to = (char *)v + members[i].at;
    if (members[i].kind == KIND_INTEGER)
        json_read_i64(r, to);
    else if (members[i].kind == KIND_NUMBER)
        json_read_double(r, to);
    else if (members[i].kind == KIND_TEXT)
        json_read_string(r, to, &bytes);
    else
        json_read_bool(r, to);
}

static enum event event_of(const char *name) { // NULL: a step
    return !name                        ? EVENT_STEP
           : strcmp(name, "start") == 0 ? EVENT_START
           : strcmp(name, "eval") == 0  ? EVENT_EVAL
           : strcmp(name, "save") == 0  ? EVENT_SAVE
                                        : EVENT_OTHER;
}

static bool parse(struct record *v, const char *line, size_t bytes, struct region *strings) {
    struct json_reader r;
    const char *key;
    *v = (struct record){0};
    for (size_t i = 0; i < MEMBERS; i++) {
        void *to = (char *)v + members[i].at;
        if (members[i].kind == KIND_INTEGER)
            *(int64_t *)to = -1;
        else if (members[i].kind == KIND_NUMBER)
            *(double *)to = NAN;
    }
    if (strings->bytes > STRINGS_BYTES)
        region_free(strings);
    json_reader_init(&r, "log.jsonl", line, bytes, strings, NULL);
    json_enter_object(&r);
    while (json_next_key(&r, &key))
        take_member(&r, v, key);
    if (json_finish(&r) != 0)
        return false;
    v->kind = event_of(v->event);
    bool has_step = v->kind == EVENT_STEP || v->kind == EVENT_START || v->kind == EVENT_EVAL;
    return !has_step || (v->step >= 0 && v->step <= STEP_MOST);
}

// ---------------------------------------------------------------- the first pass

struct reading {
    struct run_read *run;
    struct lines lines;
    struct region strings;
    uint64_t file_bytes;
    int64_t starts[RUN_STARTS_MOST]; // the step at which each process began; after void_steps: the
                                     // last of its steps that counts
    size_t n_starts;
    int64_t base; // the least step; -1: none seen
    // Used by the second pass only.
    size_t part;         // processes seen so far
    int64_t warmup_left; // warm-up steps of this process still to come
};

static int rewind_lines(struct reading *d, struct err *e) {
    struct lines *l = &d->lines;
    if (lseek(l->fd, 0, SEEK_SET) != 0)
        return err_set(e, ERR_IO, "%s cannot be read: %s", l->path, strerror(errno));
    l->at = l->end = 0;
    l->left = d->file_bytes;
    return 0;
}

static void lower_base(struct reading *d, int64_t step) {
    if (d->base < 0 || step < d->base)
        d->base = step;
}

static int survey(struct reading *d, struct err *e) {
    const char *line;
    size_t bytes;
    int rc;
    TRY(rewind_lines(d, e));
    while ((rc = next_line(&d->lines, &line, &bytes, e)) > 0) {
        struct record v;
        d->run->log.lines++;
        // Only the first step needs parsing here, because a log may begin at any step.
        if (d->lines.too_long || (d->base >= 0 && !memmem(line, bytes, "\"event\"", 7)) ||
            !parse(&v, line, bytes, &d->strings))
            continue;
        if (v.kind == EVENT_START || v.kind == EVENT_STEP)
            lower_base(d, v.step);
        if (v.kind == EVENT_START && d->n_starts < RUN_STARTS_MOST)
            d->starts[d->n_starts++] = v.step;
    }
    return rc;
}

// starts[i] becomes the last step of process i that counts: the least start of a later process.
static void void_steps(struct reading *d) {
    int64_t least = INT64_MAX;
    for (size_t i = d->n_starts; i-- > 0;) {
        int64_t begins = d->starts[i];
        d->starts[i] = least;
        least = begins < least ? begins : least;
    }
}

// ---------------------------------------------------------------- the second pass

static void mark(struct run_marks *m, int64_t step) {
    if (m->n < RUN_MARKS_MOST)
        m->step[m->n] = step;
    m->n++;
}

static void take_time(struct run_log *g, double time) {
    if (!(time > 0 && time < 1e11)) // 1e11 s is in the year 5138
        return;
    if (isnan(g->time_first))
        g->time_first = time;
    g->time_last = time;
}

static void copy_if(char *out, size_t out_bytes, const char *text) {
    if (text)
        run_copy(out, out_bytes, text);
}

static void take_start(struct reading *d, const struct record *v) {
    struct run_log *g = &d->run->log;
    d->part++;
    g->processes++;
    if (v->resumed_from || v->step > 0)
        mark(&g->resumed, v->step);
    d->warmup_left = v->warmup_steps >= 0 ? v->warmup_steps : d->run->result.warmup_steps;
    copy_if(g->haggle, sizeof g->haggle, v->haggle);
    copy_if(g->model, sizeof g->model, v->model);
    copy_if(g->data, sizeof g->data, v->data);
    copy_if(g->device, sizeof g->device, v->device);
    copy_if(g->isa, sizeof g->isa, v->isa);
    copy_if(g->blas, sizeof g->blas, v->blas);
    g->parameters = v->parameters >= 0 ? v->parameters : g->parameters;
    g->steps_planned = v->steps >= 0 ? v->steps : g->steps_planned;
    if (v->memory_predicted_bytes > 0 && v->memory_predicted_bytes < 1e18)
        g->memory_predicted = v->memory_predicted_bytes;
}

static bool counts(const struct reading *d, int64_t step) {
    return d->part == 0 || d->part > d->n_starts || step <= d->starts[d->part - 1];
}

static void take_eval(struct reading *d, const struct record *v) {
    struct run_log *g = &d->run->log;
    struct column *c = counts(d, v->step) ? columns_at(g->columns, v->step) : NULL;
    if (!c || !(fabs(v->validation_loss) < 1e100))
        return;
    c->eval_step = v->step > 0 ? v->step : 1;
    c->eval_loss = v->validation_loss;
    g->evals++;
    g->eval_last = v->validation_loss;
    if (!(g->eval_best <= v->validation_loss)) {
        g->eval_best = v->validation_loss;
        g->eval_best_step = v->step;
    }
}

static void take_loss(struct run_log *g, struct column *c, const struct record *v) {
    if (!(fabs(v->loss) < 1e100))
        return;
    if (isnan(g->loss_first))
        g->loss_first = v->loss;
    g->loss_last = v->loss;
    column_add(c, COLUMN_LOSS, v->loss);
}

static void take_times(struct reading *d, struct column *c, const struct record *v) {
    struct run_log *g = &d->run->log;
    bool warm = d->warmup_left > 0;
    if (!(v->step_ms >= 0 && v->step_ms < 1e12))
        return;
    column_add(c, COLUMN_STEP_MS, v->step_ms);
    g->step_ms += v->step_ms;
    if (warm) {
        c->warmup = true;
        c->warm_most = fmax(c->warm_most, v->step_ms);
        g->warmup++;
    } else {
        c->steady_most = fmax(c->steady_most, v->step_ms);
        samples_add(&g->step_ns, 1e6 * v->step_ms);
    }
    if (v->data_wait_ms >= 0 && v->data_wait_ms < 1e12) {
        column_add(c, COLUMN_WAIT_MS, v->data_wait_ms);
        g->wait_ms += v->data_wait_ms;
    }
}

static void take_step(struct reading *d, const struct record *v) {
    struct run_log *g = &d->run->log;
    bool is_last = counts(d, v->step);
    struct column *c = is_last ? columns_at(g->columns, v->step) : NULL;
    g->again += !is_last;
    g->damaged += is_last && !c; // the step lies before the start of its process
    if (c) {
        g->first_step = g->steps == 0 || v->step < g->first_step ? v->step : g->first_step;
        g->last_step = g->steps == 0 || v->step > g->last_step ? v->step : g->last_step;
        g->steps++;
        column_see(c, v->step);
        take_loss(g, c, v);
        take_times(d, c, v);
        column_add(c, COLUMN_GRAD_NORM, v->grad_norm);
        if (fabs(v->lr) < 1e100)
            c->lr = v->lr;
        if (v->tokens_per_s >= 0)
            g->tokens_per_s_last = v->tokens_per_s;
        g->empty += v->empty;
        c->skipped += v->skipped;
        if (v->skipped)
            mark(&g->skipped, v->step);
    }
    d->warmup_left -= d->warmup_left > 0;
}

static int collect(struct reading *d, struct err *e) {
    struct run_log *g = &d->run->log;
    const char *line;
    size_t bytes;
    int rc;
    TRY(rewind_lines(d, e));
    while ((rc = next_line(&d->lines, &line, &bytes, e)) > 0) {
        struct record v;
        if (d->lines.too_long || !parse(&v, line, bytes, &d->strings)) {
            // A last line without newline is still being written, or was cut off by a crash.
            g->torn = d->lines.torn;
            g->damaged += !d->lines.torn;
            continue;
        }
        take_time(g, v.time);
        if (v.kind == EVENT_START)
            take_start(d, &v);
        else if (v.kind == EVENT_EVAL)
            take_eval(d, &v);
        else if (v.kind == EVENT_STEP)
            take_step(d, &v);
        g->saves += v.kind == EVENT_SAVE;
    }
    return rc;
}

// ---------------------------------------------------------------- all

static int open_log(struct lines *l, const char *path, uint64_t *bytes, struct err *e) {
    struct stat st;
    // Non-blocking: opening a pipe of that name must not hang before the check below refuses it.
    l->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (l->fd < 0 || fstat(l->fd, &st) != 0)
        return err_set(e, ERR_IO, "%s cannot be read: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return err_set(e, ERR_FORMAT, "%s is not a regular file", path);
    l->path = path;
    l->buffer = malloc(BUFFER_BYTES);
    *bytes = (uint64_t)st.st_size;
    return l->buffer ? 0 : err_set(e, ERR_MEMORY, "no memory to read %s", path);
}

static int open_stores(struct run_log *g, uint64_t lines, struct err *e) {
    // At most one sample per line, and at most as many as the trainer keeps.
    uint64_t most = lines < SAMPLES_DEFAULT_CAPACITY ? lines : SAMPLES_DEFAULT_CAPACITY;
    g->columns = malloc(sizeof *g->columns);
    if (!g->columns)
        return err_set(e, ERR_MEMORY, "no memory for the curves of a run");
    return samples_open(&g->step_ns, most > 0 ? (size_t)most : 1, e);
}

static void sum_up(struct run_log *g) {
    static const double p[3] = {0.50, 0.95, 0.99};
    struct quantile q[3];
    samples_quantiles(&g->step_ns, 0, p, 3, q);
    g->p50 = q[0];
    g->p95 = q[1];
    g->p99 = q[2];
    samples_spread(&g->step_ns, 0, &g->spread);
    g->smooth_steps = g->steps > SMOOTH_PARTS ? (int64_t)(g->steps / SMOOTH_PARTS) : 1;
    g->smooth_last = columns_smooth(g->columns, g->smooth_steps);
}

static void say(struct run_read *r) {
    const struct run_log *g = &r->log;
    if (g->damaged > 0)
        run_problem(r, "%llu of %llu lines of log.jsonl are damaged and were left out.",
                    (unsigned long long)g->damaged, (unsigned long long)g->lines);
    if (g->torn)
        run_problem(r, "The last line of log.jsonl is not finished and was left out.");
    if (g->again > 0)
        run_problem(r,
                    "%llu steps were trained again after the run resumed from an earlier "
                    "checkpoint. Only their last training is shown.",
                    (unsigned long long)g->again);
    if (g->empty > 0)
        run_problem(r, "%llu steps had no trained token and computed nothing.",
                    (unsigned long long)g->empty);
    if (g->steps == 0)
        run_problem(r, "The log has no step yet, so there is nothing to draw.");
    if (r->result.is_there && g->processes > 1)
        run_problem(
            r,
            "The run was resumed. Throughput, utilization, MFU, the time split, memory and the "
            "verdict describe its last part, steps %lld to %lld. Curves and step times cover the "
            "whole run.",
            (long long)r->result.first_step + 1, (long long)r->result.step);
}

int run_read_log(struct run_read *r, const char *path, struct err *e) {
    struct run_log *g = &r->log;
    struct reading *d = calloc(1, sizeof *d);
    if (!d)
        return err_set(e, ERR_MEMORY, "no memory to read %s", path);
    d->run = r;
    d->base = -1;
    d->lines.fd = -1;
    g->time_first = g->time_last = g->loss_first = g->loss_last = g->smooth_last = NAN;
    g->eval_last = g->eval_best = g->tokens_per_s_last = g->memory_predicted = NAN;
    int rc = open_log(&d->lines, path, &d->file_bytes, e);
    if (rc == 0)
        rc = survey(d, e);
    if (rc == 0)
        rc = open_stores(g, g->lines, e);
    if (rc == 0) {
        void_steps(d);
        columns_init(g->columns, d->base >= 0 ? d->base : 0);
        rc = collect(d, e);
    }
    if (rc == 0) {
        sum_up(g);
        say(r);
    }
    if (d->lines.fd >= 0)
        close(d->lines.fd);
    free(d->lines.buffer);
    region_free(&d->strings);
    free(d);
    return rc;
}
