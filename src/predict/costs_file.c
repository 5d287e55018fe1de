// costs_file.c - keeps a table of costs between runs, in one JSON file per machine, device and
// build:
//     {"format": 1, "key": "...", "about": "...",
//      "ops": [{"op": "matmul", ..., "sizes": [...], "types": [...], "s": 1.2e-3}, ...],
//      "models": [{"model": "gpt2 ...", "outside": [3e-5, ...],
//                  "ratios": [{"op": "matmul", "type": "fp32", "log": [0.01, ...], "at": [...]},
//                             ...]}, ...],
//      "settings": [{"id": "...", "at": 1.7e9, "s": [0.04, ...], "spread": 0.02, "quiet": true,
//                    "parts": [...]}, ...],
//      "errors": {"ops": [0.03, ...], ...}}
//
// The numbers in the file are not trusted: every one is checked. Older files have "ratios" and
// "outside" that name no model. These are left out, because they may be another model's.
#include "predict/costs.h"

#include "base/file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FORMAT = 1, FILE_MAX_BYTES = 16 << 20 };
static const double LOG_MOST = 2.1; // just above the logarithm of RATIO_MOST in costs_learn.c

// ---------------------------------------------------------------- reading

static int kind_of(const char *name) {
    for (int i = 0; i < OP_COUNT; i++)
        if (strcmp(op_info((enum op_kind)i)->name, name) == 0)
            return i;
    return -1;
}

static int type_of(const char *name) {
    for (int i = 0; i < DTYPE_COUNT; i++)
        if (strcmp(dtype_text((enum dtype)i), name) == 0)
            return i;
    return strcmp(name, "none") == 0 ? DTYPE_COUNT : -1;
}

// Reads an array of integers. At most `most` are stored; the rest is skipped.
static void read_integers(struct json_reader *r, int64_t *out, int most) {
    int64_t x = 0;
    json_enter_array(r);
    for (int i = 0; json_next_element(r); i++) {
        json_read_i64(r, &x);
        if (i < most)
            out[i] = x;
    }
}

static int read_numbers(struct json_reader *r, double *out, int most) {
    int n = 0;
    double x = 0;
    json_enter_array(r);
    while (json_next_element(r)) {
        json_read_double(r, &x);
        if (n < most)
            out[n++] = x;
    }
    return n;
}

static void read_point(struct json_reader *r, struct costs *c) {
    struct cost_point p = {0};
    int64_t types[sizeof p.signature.types] = {0}, x = 0;
    const char *key, *text = "";
    bool small = true; // all numbers fit the fields they are stored in
    p.signature.kind = -1;
    json_enter_object(r);
    while (json_next_key(r, &key)) {
        if (strcmp(key, "op") == 0) {
            json_read_string(r, &text, NULL);
            p.signature.kind = kind_of(text);
        } else if (strcmp(key, "flags") == 0) {
            json_read_i64(r, &x);
            small = small && x >= 0 && x <= UINT32_MAX;
            p.signature.flags = (uint32_t)x;
        } else if (strcmp(key, "act") == 0) {
            json_read_i64(r, &x);
            small = small && x >= 0 && x <= INT32_MAX;
            p.signature.act = (int32_t)x;
        } else if (strcmp(key, "sizes") == 0) {
            read_integers(r, p.signature.sizes, SIZE_COUNT);
        } else if (strcmp(key, "types") == 0) {
            read_integers(r, types, (int)(sizeof types / sizeof *types));
        } else if (strcmp(key, "flops") == 0) {
            json_read_double(r, &p.flops);
        } else if (strcmp(key, "bytes") == 0) {
            json_read_double(r, &p.bytes);
        } else if (strcmp(key, "s") == 0) {
            json_read_double(r, &p.seconds);
        } else if (strcmp(key, "spread") == 0) {
            json_read_double(r, &p.spread);
        } else if (strcmp(key, "count") == 0) {
            json_read_i64(r, &p.count);
        } else if (strcmp(key, "busy") == 0) {
            json_read_bool(r, &p.busy);
        } else {
            json_skip(r);
        }
    }
    for (size_t i = 0; i < sizeof p.signature.types; i++) {
        small = small && types[i] >= 0 && types[i] <= UINT8_MAX &&
                signature_type_known((uint8_t)types[i]);
        p.signature.types[i] = (uint8_t)types[i];
    }
    if (r->rc == 0 && small && cost_point_plausible(&p))
        costs_add(c, &p, NULL);
}

static void read_ratios(struct json_reader *r, struct cost_model *m) {
    struct cost_ratios ratios = {0};
    const char *key, *text = "";
    int kind = -1, type = -1, n = 0, times = 0;
    bool plausible = true;
    json_enter_object(r);
    while (json_next_key(r, &key)) {
        if (strcmp(key, "op") == 0) {
            json_read_string(r, &text, NULL);
            kind = kind_of(text);
        } else if (strcmp(key, "type") == 0) {
            json_read_string(r, &text, NULL);
            type = type_of(text);
        } else if (strcmp(key, "log") == 0) {
            n = read_numbers(r, ratios.log, COSTS_RATIOS);
        } else if (strcmp(key, "at") == 0) {
            times = read_numbers(r, ratios.at, COSTS_RATIOS);
        } else {
            json_skip(r);
        }
    }
    for (int i = 0; i < n; i++)
        plausible = plausible && fabs(ratios.log[i]) <= LOG_MOST;
    ratios.count = n;
    if (r->rc == 0 && plausible && n == times && kind >= 0 && type >= 0)
        m->ratios[kind][type] = ratios;
}

// The name comes before all other members.
static void read_model(struct json_reader *r, struct costs *c) {
    const char *key, *text = "";
    double outside[COSTS_RATIOS];
    struct cost_model *m = NULL;
    json_enter_object(r);
    while (json_next_key(r, &key)) {
        if (!m && strcmp(key, "model") == 0) {
            json_read_string(r, &text, NULL);
            m = r->rc == 0 && strlen(text) < COSTS_MODEL_BYTES ? costs_observed_model(c, text)
                                                               : NULL;
        } else if (m && strcmp(key, "ratios") == 0) {
            json_enter_array(r);
            while (json_next_element(r))
                read_ratios(r, m);
        } else if (m && strcmp(key, "outside") == 0) {
            int n = read_numbers(r, outside, COSTS_RATIOS);
            for (int i = 0; i < n; i++)
                costs_observe_outside(m, outside[i]);
        } else {
            json_skip(r);
        }
    }
}

static void read_setting(struct json_reader *r, struct costs *c) {
    const char *key, *id = "";
    double seconds[COSTS_VISITS];
    struct cost_setting s = {.quiet = false};
    int n = 0;
    bool plausible;
    json_enter_object(r);
    while (json_next_key(r, &key)) {
        if (strcmp(key, "id") == 0)
            json_read_string(r, &id, NULL);
        else if (strcmp(key, "at") == 0)
            json_read_double(r, &s.at);
        else if (strcmp(key, "s") == 0)
            n = read_numbers(r, seconds, COSTS_VISITS);
        else if (strcmp(key, "spread") == 0)
            json_read_double(r, &s.spread);
        else if (strcmp(key, "quiet") == 0)
            json_read_bool(r, &s.quiet);
        else if (strcmp(key, "parts") == 0)
            read_numbers(r, s.part_s, TIME_COUNT);
        else
            json_skip(r);
    }
    plausible = s.spread >= 0 && s.spread < 100 && strlen(id) == HASH_TEXT_BYTES - 1;
    for (int i = 0; i < TIME_COUNT; i++)
        plausible = plausible && s.part_s[i] >= 0 && s.part_s[i] < 1e6;
    for (int i = 0; i < n; i++)
        plausible = plausible && cost_seconds_plausible(seconds[i]);
    snprintf(s.id, sizeof s.id, "%s", id);
    for (int i = 0; r->rc == 0 && plausible && i < n; i++) {
        s.seconds[0] = seconds[i];
        costs_add_visit(c, &s, NULL);
    }
}

static const char *const FROM[COST_FROMS] = {"setting", "ops", "relative", "roofline"};

static void read_errors(struct json_reader *r, struct costs *c) {
    const char *key;
    double errors[COSTS_ERRORS];
    json_enter_object(r);
    while (json_next_key(r, &key)) {
        int from = 0;
        while (from < COST_FROMS && strcmp(key, FROM[from]) != 0)
            from++;
        const int n = read_numbers(r, errors, COSTS_ERRORS);
        for (int i = 0; from < COST_FROMS && i < n; i++)
            costs_add_error(c, (enum cost_from)from, errors[i]);
    }
}

static int read_all(struct json_reader *r, struct costs *c, const char *expected) {
    const char *key, *text = "";
    int64_t format = 0;
    bool same = false;
    json_enter_object(r);
    while (json_next_key(r, &key)) {
        if (strcmp(key, "format") == 0) {
            json_read_i64(r, &format);
        } else if (strcmp(key, "key") == 0) {
            json_read_string(r, &text, NULL);
            same = strcmp(text, expected) == 0;
        } else if (!(same && format == FORMAT)) { // both come before all other members
            json_skip(r);
        } else if (strcmp(key, "ops") == 0) {
            json_enter_array(r);
            while (json_next_element(r))
                read_point(r, c);
        } else if (strcmp(key, "models") == 0) {
            json_enter_array(r);
            while (json_next_element(r))
                read_model(r, c);
        } else if (strcmp(key, "settings") == 0) {
            json_enter_array(r);
            while (json_next_element(r))
                read_setting(r, c);
        } else if (strcmp(key, "errors") == 0) {
            read_errors(r, c);
        } else {
            json_skip(r);
        }
    }
    TRY(json_finish(r));
    return same && format == FORMAT
               ? 0
               : err_set(r->e, ERR_FORMAT, "%s holds the times of another machine or build",
                         r->name);
}

int costs_load(struct costs *c, const char *path, const char *key, struct err *e) {
    char *text;
    size_t bytes;
    TRY(file_read_all(path, FILE_MAX_BYTES, &text, &bytes, e));
    const struct hw_device device = c->device;
    struct region strings = {0};
    struct json_reader r;
    json_reader_init(&r, path, text, bytes, &strings, e);
    int rc = read_all(&r, c, key);
    if (rc != 0) { // do not use half a table
        costs_free(c);
        costs_init(c, &device);
    }
    region_free(&strings);
    free(text);
    return rc;
}

// ---------------------------------------------------------------- writing

static void put_point(struct json_writer *w, const struct cost_point *p) {
    const struct op_signature *s = &p->signature;
    json_put_object_begin(w);
    json_member_string(w, "op", op_info((enum op_kind)s->kind)->name);
    json_member_i64(w, "flags", s->flags);
    json_member_i64(w, "act", s->act);
    json_member_array(w, "sizes");
    for (int i = 0; i < SIZE_COUNT; i++)
        json_put_i64(w, s->sizes[i]);
    json_put_array_end(w);
    json_member_array(w, "types");
    for (size_t i = 0; i < sizeof s->types; i++)
        json_put_i64(w, s->types[i]);
    json_put_array_end(w);
    json_member_double(w, "flops", p->flops);
    json_member_double(w, "bytes", p->bytes);
    json_member_double(w, "s", p->seconds);
    json_member_double(w, "spread", p->spread);
    json_member_i64(w, "count", p->count);
    if (p->busy)
        json_member_bool(w, "busy", true);
    json_put_object_end(w);
}

// The values of a ring, oldest first.
static void put_ring(struct json_writer *w, const char *key, const double *values, int64_t count,
                     int most) {
    json_member_array(w, key);
    for (int64_t i = count - cost_kept(count, most); i < count; i++)
        json_put_double(w, values[i % most]);
    json_put_array_end(w);
}

static void put_model(struct json_writer *w, const struct cost_model *m) {
    json_put_object_begin(w);
    json_member_string(w, "model", m->name);
    put_ring(w, "outside", m->outside_s, m->outside_count, COSTS_RATIOS);
    json_member_array(w, "ratios");
    for (int kind = 0; kind < OP_COUNT; kind++)
        for (int type = 0; type <= DTYPE_COUNT; type++) {
            const struct cost_ratios *r = &m->ratios[kind][type];
            if (r->count == 0)
                continue;
            json_put_object_begin(w);
            json_member_string(w, "op", op_info((enum op_kind)kind)->name);
            json_member_string(w, "type",
                               type == DTYPE_COUNT ? "none" : dtype_text((enum dtype)type));
            put_ring(w, "log", r->log, r->count, COSTS_RATIOS);
            put_ring(w, "at", r->at, r->count, COSTS_RATIOS);
            json_put_object_end(w);
        }
    json_put_array_end(w);
    json_put_object_end(w);
}

static void put_setting(struct json_writer *w, const struct cost_setting *s) {
    json_put_object_begin(w);
    json_member_string(w, "id", s->id);
    json_member_double(w, "at", s->at);
    put_ring(w, "s", s->seconds, s->count, COSTS_VISITS);
    json_member_double(w, "spread", s->spread);
    json_member_bool(w, "quiet", s->quiet);
    put_ring(w, "parts", s->part_s, TIME_COUNT, TIME_COUNT);
    json_put_object_end(w);
}

int costs_store(const struct costs *c, const char *path, const char *key, const char *about,
                bool ops, struct err *e) {
    struct json_writer w;
    json_writer_to_buffer(&w, 0);
    json_put_object_begin(&w);
    json_member_i64(&w, "format", FORMAT);
    json_member_string(&w, "key", key);
    json_member_string(&w, "about", about);
    json_member_array(&w, "ops");
    for (int i = 0; ops && i < c->n; i++)
        put_point(&w, &c->points[i]);
    json_put_array_end(&w);
    json_member_array(&w, "models");
    for (int i = 0; ops && i < c->n_models; i++)
        put_model(&w, c->models[i]);
    json_put_array_end(&w);
    json_member_array(&w, "settings");
    for (int i = 0; i < c->n_settings; i++)
        put_setting(&w, &c->settings[i]);
    json_put_array_end(&w);
    json_member_object(&w, "errors");
    for (int i = 0; i < COST_FROMS; i++)
        put_ring(&w, FROM[i], c->errors[i].log, c->errors[i].count, COSTS_ERRORS);
    json_put_object_end(&w);
    json_put_object_end(&w);
    int rc = json_writer_finish(&w, e);
    if (rc == 0)
        rc = file_write_atomic(path, w.buffer, w.bytes, e);
    free(w.buffer);
    return rc;
}
