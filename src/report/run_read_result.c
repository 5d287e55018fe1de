// run_read_result.c - reads result.json, which `haggle train` writes at the end of a run.
//
// Members are found by name, in any order. A member of the wrong type or with an impossible value
// is skipped, so that a run of another version can still be reported.
#include "report/run_read.h"

#include "base/file.h"
#include "base/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// A value that is not a number (null: not measured), negative or impossibly large is skipped.
static void take_double(struct json_reader *r, double *out) {
    double x = NAN;
    if (json_peek(r) != JSON_NUMBER)
        json_skip(r);
    else if (json_read_double(r, &x) == 0 && x >= 0 && x < 1e18)
        *out = x;
}

static void take_i64(struct json_reader *r, int64_t *out) {
    double x = NAN;
    take_double(r, &x);
    if (x <= 9e15) // exact in a double
        *out = (int64_t)x;
}

static void take_string(struct json_reader *r, char *out, size_t out_bytes) {
    const char *s = "";
    size_t n;
    if (json_peek(r) != JSON_STRING)
        json_skip(r);
    else if (json_read_string(r, &s, &n) == 0)
        run_copy(out, out_bytes, s);
}

struct member { // exactly one of the destinations is set
    const char *key;
    double *number;
    int64_t *integer;
    char *text;
    size_t text_bytes;
    bool *flag;
    void (*object)(struct json_reader *r, struct run_result *o);
};
#define TEXT(array) .text = array, .text_bytes = sizeof array

static void take_member(struct json_reader *r, struct run_result *o, const struct member *m) {
    if (m->number)
        take_double(r, m->number);
    else if (m->integer)
        take_i64(r, m->integer);
    else if (m->text)
        take_string(r, m->text, m->text_bytes);
    else if (m->flag && json_peek(r) == JSON_BOOL)
        json_read_bool(r, m->flag);
    else if (m->object && json_peek(r) == JSON_OBJECT && json_enter_object(r) == 0)
        m->object(r, o);
    else
        json_skip(r);
}

// The members of an object that has been entered. Members with other keys are skipped.
static void take_members(struct json_reader *r, struct run_result *o, const struct member *members,
                         size_t n) {
    const char *key;
    while (json_next_key(r, &key)) {
        size_t i = 0;
        while (i < n && strcmp(key, members[i].key) != 0)
            i++;
        if (i < n)
            take_member(r, o, &members[i]);
        else
            json_skip(r);
    }
}
#define TAKE(r, o, ...)                                                                            \
    take_members(r, o, (const struct member[]){__VA_ARGS__},                                       \
                 sizeof((const struct member[]){__VA_ARGS__}) / sizeof(struct member))

// An object of numbers under any names.
static int take_parts(struct json_reader *r, struct run_part *parts) {
    const char *key;
    int n = 0;
    while (json_next_key(r, &key)) {
        struct run_part part = {.amount = NAN};
        run_copy(part.name, sizeof part.name, key);
        take_double(r, &part.amount);
        if (n < RUN_PARTS_MOST && part.amount > 0)
            parts[n++] = part;
    }
    return n;
}

static void take_split(struct json_reader *r, struct run_result *o) {
    o->n_split = take_parts(r, o->split);
}

static void take_classes(struct json_reader *r, struct run_result *o) {
    o->n_memory = take_parts(r, o->memory);
}

static void take_memory(struct json_reader *r, struct run_result *o) {
    TAKE(r, o, {"predicted_bytes", .number = &o->memory_predicted},
         {"measured_bytes", .number = &o->memory_measured}, {"by_class", .object = take_classes});
}

static void take_run(struct json_reader *r, struct run_result *o) {
    TAKE(r, o, {"end", TEXT(o->end)}, {"first_step", .integer = &o->first_step},
         {"step", .integer = &o->step}, {"warmup_steps", .integer = &o->warmup_steps},
         {"predicted_step_ms", .number = &o->predicted_step_ms},
         {"on_device", .flag = &o->on_device});
}

static void take_machine(struct json_reader *r, struct run_result *o) {
    TAKE(r, o, {"cpu", TEXT(o->cpu)}, {"kernel", TEXT(o->kernel)},
         {"usable_cpus", .integer = &o->usable_cpus});
}

static void take_verdict(struct json_reader *r, struct run_result *o) {
    TAKE(r, o, {"text", TEXT(o->verdict)});
}

static void take_error(struct json_reader *r, struct run_result *o) {
    TAKE(r, o, {"text", TEXT(o->error)});
}

static void set_unknown(struct run_result *o) {
    *o = (struct run_result){0};
    o->predicted_step_ms = o->tokens_per_s = o->trained_tokens_per_s = o->ms_per_sample = NAN;
    o->utilization = o->mfu = o->hfu = o->memory_predicted = o->memory_measured = NAN;
}

static int parse(struct run_result *o, const char *text, size_t bytes, struct err *e) {
    struct json_reader r;
    struct region strings = {0};
    json_reader_init(&r, "result.json", text, bytes, &strings, e);
    json_enter_object(&r);
    TAKE(&r, o, {"tokens_per_s", .number = &o->tokens_per_s},
         {"trained_tokens_per_s", .number = &o->trained_tokens_per_s},
         {"ms_per_sample", .number = &o->ms_per_sample}, {"utilization", .number = &o->utilization},
         {"mfu", .number = &o->mfu}, {"hfu", .number = &o->hfu}, {"run", .object = take_run},
         {"machine", .object = take_machine}, {"verdict", .object = take_verdict},
         {"error", .object = take_error}, {"memory", .object = take_memory},
         {"time_split", .object = take_split});
    int rc = json_finish(&r);
    region_free(&strings);
    return rc;
}

void run_read_result(struct run_read *r, const char *path) {
    struct err why = {0};
    char *text = NULL;
    size_t bytes = 0;
    set_unknown(&r->result);
    if (!file_exists(path)) {
        run_problem(r, "There is no result.json: the run was killed or is still running. Missing "
                       "here: utilization, MFU, the time split, memory by class and the verdict.");
        return;
    }
    if (file_read_all(path, RUN_RESULT_BYTES, &text, &bytes, &why) != 0 ||
        parse(&r->result, text, bytes, &why) != 0) {
        set_unknown(&r->result); // half of a damaged file is not a result
        run_problem(r, "What result.json says is left out, because it could not be read: %.300s.",
                    why.text);
    } else {
        r->result.is_there = true;
    }
    free(text);
}
