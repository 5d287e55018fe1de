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
    void (*element)(struct json_reader *r, struct run_result *o); // an object in an array
};
#define TEXT(array) .text = array, .text_bytes = sizeof array

static void take_elements(struct json_reader *r, struct run_result *o, const struct member *m) {
    while (json_next_element(r))
        if (json_peek(r) == JSON_OBJECT && json_enter_object(r) == 0)
            m->element(r, o);
        else
            json_skip(r);
}

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
    else if (m->element && json_peek(r) == JSON_ARRAY && json_enter_array(r) == 0)
        take_elements(r, o, m);
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

// Ranks beyond RUN_RANKS_MOST are read over.
static void take_rank(struct json_reader *r, struct run_result *o) {
    struct run_rank over, *x = o->n_ranks < RUN_RANKS_MOST ? &o->ranks[o->n_ranks++] : &over;
    *x = (struct run_rank){.step_ms = NAN, .work_ms = NAN, .exposed_ms = NAN, .data_wait_ms = NAN};
    TAKE(r, o, {"rank", .integer = &x->rank}, {"data", .integer = &x->data},
         {"tensor", .integer = &x->tensor}, {"pipe", .integer = &x->pipe},
         {"step_ms_p50", .number = &x->step_ms}, {"work_ms", .number = &x->work_ms},
         {"exposed_communication_ms", .number = &x->exposed_ms},
         {"data_wait_ms", .number = &x->data_wait_ms}, {"arena_bytes", .number = &x->arena_bytes},
         {"planned_bytes", .number = &x->planned_bytes},
         {"process_peak_bytes", .number = &x->peak_bytes});
}

static void take_traffic(struct json_reader *r, struct run_result *o) {
    struct run_traffic over,
        *x = o->n_traffic < RUN_TRAFFIC_MOST ? &o->traffic[o->n_traffic++] : &over;
    *x = (struct run_traffic){.bytes = NAN, .textbook = NAN};
    TAKE(r, o, {"op", TEXT(x->op)}, {"group", TEXT(x->group)}, {"calls", .integer = &x->calls},
         {"bytes_sent", .number = &x->bytes}, {"textbook_bytes", .number = &x->textbook});
}

static void take_layout(struct json_reader *r, struct run_result *o) {
    TAKE(r, o, {"world", .integer = &o->world}, {"bubble_formula", .number = &o->bubble},
         {"communication", .element = take_traffic});
}

static void take_best(struct json_reader *r, struct run_result *o) {
    TAKE(r, o, {"checkpoint", TEXT(o->best)});
}

static void take_error(struct json_reader *r, struct run_result *o) {
    TAKE(r, o, {"text", TEXT(o->error)});
}

static void set_unknown(struct run_result *o) {
    *o = (struct run_result){0};
    o->predicted_step_ms = o->tokens_per_s = o->trained_tokens_per_s = o->ms_per_sample = NAN;
    o->waited_for_stages = NAN;
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
         {"error", .object = take_error}, {"best", .object = take_best},
         {"memory", .object = take_memory}, {"time_split", .object = take_split},
         {"ranks", .object = take_layout}, {"rank_results", .element = take_rank},
         {"slowest_rank", .integer = &o->slowest},
         {"waited_for_stages", .number = &o->waited_for_stages});
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
