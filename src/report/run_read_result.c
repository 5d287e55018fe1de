// run_read_result.c - result.json, which `haggle train` leaves at the end of a run.
//
// Members are taken by name wherever they stand, one of the wrong type or outside what it can be is
// passed over: a report of a run of another version shows what it can.
#include "report/run_read.h"

#include "base/file.h"
#include "base/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// null and other types are passed over: "not measured".
static void take_double(struct json_reader *r, double *out) {
    double x = NAN;
    if (json_peek(r) != JSON_NUMBER)
        json_skip(r);
    else if (json_read_double(r, &x) == 0)
        *out = x;
}

static void take_i64(struct json_reader *r, int64_t *out) {
    double x = NAN;
    take_double(r, &x);
    if (x >= 0 && x <= 9e15) // exact in a double
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

struct member {
    const char *key;
    double *number;
    int64_t *integer;
    char *text;
    size_t text_bytes;
    bool *flag;
};

static void take_member(struct json_reader *r, const struct member *m) {
    if (m->number)
        take_double(r, m->number);
    else if (m->integer)
        take_i64(r, m->integer);
    else if (m->text)
        take_string(r, m->text, m->text_bytes);
    else if (json_peek(r) == JSON_BOOL)
        json_read_bool(r, m->flag);
    else
        json_skip(r);
}

// False: there is something else, which was passed over.
static bool enter_object(struct json_reader *r) {
    if (json_peek(r) == JSON_OBJECT)
        return json_enter_object(r) == 0;
    json_skip(r);
    return false;
}

// An object whose members of these names are wanted.
static void take_object(struct json_reader *r, const struct member *members, size_t n) {
    const char *key;
    if (!enter_object(r))
        return;
    while (json_next_key(r, &key)) {
        size_t i = 0;
        while (i < n && strcmp(key, members[i].key) != 0)
            i++;
        if (i < n)
            take_member(r, &members[i]);
        else
            json_skip(r);
    }
}
#define TAKE(r, ...)                                                                               \
    take_object(r, (const struct member[]){__VA_ARGS__},                                           \
                sizeof((const struct member[]){__VA_ARGS__}) / sizeof(struct member))

// An object of numbers under any names.
static int take_parts(struct json_reader *r, struct run_part *parts) {
    const char *key;
    int n = 0;
    if (!enter_object(r))
        return 0;
    while (json_next_key(r, &key)) {
        double x = NAN;
        char name[sizeof parts->name];
        run_copy(name, sizeof name, key);
        take_double(r, &x);
        if (n < RUN_PARTS_MOST && x > 0 && x < 1e18) {
            memcpy(parts[n].name, name, sizeof name);
            parts[n++].amount = x;
        }
    }
    return n;
}

static void take_memory(struct json_reader *r, struct run_result *out) {
    const char *key;
    if (!enter_object(r))
        return;
    while (json_next_key(r, &key)) {
        if (strcmp(key, "predicted_bytes") == 0)
            take_double(r, &out->memory_predicted);
        else if (strcmp(key, "measured_bytes") == 0)
            take_double(r, &out->memory_measured);
        else if (strcmp(key, "by_class") == 0)
            out->n_memory = take_parts(r, out->memory);
        else
            json_skip(r);
    }
}

static void take_run(struct json_reader *r, struct run_result *o) {
    TAKE(r, {"end", .text = o->end, .text_bytes = sizeof o->end},
         {"first_step", .integer = &o->first_step}, {"step", .integer = &o->step},
         {"warmup_steps", .integer = &o->warmup_steps}, {"wall_s", .number = &o->wall_s},
         {"eval_s", .number = &o->eval_s}, {"save_s", .number = &o->save_s},
         {"predicted_step_ms", .number = &o->predicted_step_ms},
         {"on_device", .flag = &o->on_device}, {"process_peak_bytes", .number = &o->process_peak});
}

static void take_top(struct json_reader *r, struct run_result *o, const char *key) {
    const struct member figures[] = {{"tokens_per_s", .number = &o->tokens_per_s},
                                     {"trained_tokens_per_s", .number = &o->trained_tokens_per_s},
                                     {"ms_per_sample", .number = &o->ms_per_sample},
                                     {"utilization", .number = &o->utilization},
                                     {"mfu", .number = &o->mfu},
                                     {"hfu", .number = &o->hfu}};
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
        if (strcmp(key, figures[i].key) == 0) {
            take_member(r, &figures[i]);
            return;
        }
    if (strcmp(key, "run") == 0)
        take_run(r, o);
    else if (strcmp(key, "machine") == 0)
        TAKE(r, {"cpu", .text = o->cpu, .text_bytes = sizeof o->cpu},
             {"kernel", .text = o->kernel, .text_bytes = sizeof o->kernel},
             {"usable_cpus", .integer = &o->usable_cpus});
    else if (strcmp(key, "verdict") == 0)
        TAKE(r, {"text", .text = o->verdict, .text_bytes = sizeof o->verdict},
             {"knob", .text = o->verdict_knob, .text_bytes = sizeof o->verdict_knob});
    else if (strcmp(key, "error") == 0)
        TAKE(r, {"text", .text = o->error, .text_bytes = sizeof o->error});
    else if (strcmp(key, "memory") == 0)
        take_memory(r, o);
    else if (strcmp(key, "time_split") == 0)
        o->n_split = take_parts(r, o->split);
    else
        json_skip(r);
}

static const struct run_result UNKNOWN = {
    .wall_s = NAN,
    .eval_s = NAN,
    .save_s = NAN,
    .predicted_step_ms = NAN,
    .tokens_per_s = NAN,
    .trained_tokens_per_s = NAN,
    .ms_per_sample = NAN,
    .utilization = NAN,
    .mfu = NAN,
    .hfu = NAN,
    .memory_predicted = NAN,
    .memory_measured = NAN,
    .process_peak = NAN,
};

// A figure that cannot be is not known.
static void check(struct run_result *o) {
    double *const figures[] = {&o->wall_s,
                               &o->eval_s,
                               &o->save_s,
                               &o->predicted_step_ms,
                               &o->tokens_per_s,
                               &o->trained_tokens_per_s,
                               &o->ms_per_sample,
                               &o->utilization,
                               &o->mfu,
                               &o->hfu,
                               &o->process_peak,
                               &o->memory_predicted,
                               &o->memory_measured};
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
        if (!(*figures[i] >= 0 && *figures[i] < 1e18))
            *figures[i] = NAN;
}

static int parse(struct run_result *o, const char *text, size_t bytes, struct err *e) {
    struct json_reader r;
    struct region strings = {0};
    const char *key;
    json_reader_init(&r, "result.json", text, bytes, &strings, e);
    json_enter_object(&r);
    while (json_next_key(&r, &key))
        take_top(&r, o, key);
    int rc = json_finish(&r);
    region_free(&strings);
    return rc;
}

void run_read_result(struct run_read *r, const char *path) {
    struct err why = {0};
    char *text = NULL;
    size_t bytes = 0;
    r->result = UNKNOWN;
    if (!file_exists(path)) {
        run_problem(r,
                    "There is no result.json: the run was killed, or is still going on. What only "
                    "its end tells is left out: utilization, MFU, the time split, memory by class "
                    "and the verdict.");
        return;
    }
    if (file_read_all(path, RUN_RESULT_BYTES, &text, &bytes, &why) != 0 ||
        parse(&r->result, text, bytes, &why) != 0) {
        r->result = UNKNOWN; // half of a damaged file is not a result
        run_problem(
            r, "What only result.json tells is left out, because it could not be read: %.300s.",
            why.text);
    } else {
        check(&r->result);
        r->result.is_there = true;
    }
    free(text);
}
