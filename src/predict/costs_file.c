// costs_file.c - keeps a table of costs between runs, in one JSON file per machine, device and
// build:
//     {"format": 1, "key": "...", "about": "...",
//      "ops": [{"op": "matmul", ..., "sizes": [...], "types": [...], "s": 1.2e-3}, ...],
//      "ratios": [{"op": "matmul", "type": "fp32", "log": [0.01, ...]}, ...],
//      "outside": [3e-5, ...]}
//
// The numbers in the file are not trusted: every one is checked.
#include "predict/costs.h"

#include "base/file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FORMAT = 1, FILE_MAX_BYTES = 16 << 20 };
static const double LOG_MOST = 2.1; // just above the logarithm of RATIO_MOST in costs.c

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
        } else {
            json_skip(r);
        }
    }
    for (size_t i = 0; i < sizeof p.signature.types; i++) {
        small = small && types[i] >= 0 && types[i] <= DTYPE_COUNT;
        p.signature.types[i] = (uint8_t)types[i];
    }
    if (r->rc == 0 && small && cost_point_plausible(&p))
        costs_add(c, &p, NULL);
}

static void read_ratios(struct json_reader *r, struct costs *c) {
    struct cost_ratios ratios = {0};
    const char *key, *text = "";
    int kind = -1, type = -1, n = 0;
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
        } else {
            json_skip(r);
        }
    }
    for (int i = 0; i < n; i++)
        plausible = plausible && fabs(ratios.log[i]) <= LOG_MOST;
    ratios.count = n;
    if (r->rc == 0 && plausible && kind >= 0 && type >= 0)
        c->ratios[kind][type] = ratios;
}

static int read_all(struct json_reader *r, struct costs *c, const char *expected) {
    const char *key, *text = "";
    int64_t format = 0;
    bool same = false;
    double outside[COSTS_RATIOS];
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
        } else if (strcmp(key, "ratios") == 0) {
            json_enter_array(r);
            while (json_next_element(r))
                read_ratios(r, c);
        } else if (strcmp(key, "outside") == 0) {
            int n = read_numbers(r, outside, COSTS_RATIOS);
            for (int i = 0; i < n; i++)
                costs_observe_outside(c, outside[i]);
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
    json_put_object_end(w);
}

static int kept(int64_t count) {
    return count < COSTS_RATIOS ? (int)count : (int)COSTS_RATIOS;
}

static void put_ratios(struct json_writer *w, const struct costs *c) {
    json_put_array_begin(w);
    for (int kind = 0; kind < OP_COUNT; kind++)
        for (int type = 0; type <= DTYPE_COUNT; type++) {
            const struct cost_ratios *r = &c->ratios[kind][type];
            if (r->count == 0)
                continue;
            json_put_object_begin(w);
            json_member_string(w, "op", op_info((enum op_kind)kind)->name);
            json_member_string(w, "type",
                               type == DTYPE_COUNT ? "none" : dtype_text((enum dtype)type));
            json_member_array(w, "log");
            for (int i = 0; i < kept(r->count); i++)
                json_put_double(w, r->log[i]);
            json_put_array_end(w);
            json_put_object_end(w);
        }
    json_put_array_end(w);
}

int costs_store(const struct costs *c, const char *path, const char *key, const char *about,
                struct err *e) {
    struct json_writer w;
    json_writer_to_buffer(&w, 0);
    json_put_object_begin(&w);
    json_member_i64(&w, "format", FORMAT);
    json_member_string(&w, "key", key);
    json_member_string(&w, "about", about);
    json_member_array(&w, "ops");
    for (int i = 0; i < c->n; i++)
        put_point(&w, &c->points[i]);
    json_put_array_end(&w);
    json_put_key(&w, "ratios");
    put_ratios(&w, c);
    json_member_array(&w, "outside");
    for (int i = 0; i < kept(c->outside_count); i++)
        json_put_double(&w, c->outside_s[i]);
    json_put_array_end(&w);
    json_put_object_end(&w);
    int rc = json_writer_finish(&w, e);
    if (rc == 0)
        rc = file_write_atomic(path, w.buffer, w.bytes, e);
    free(w.buffer);
    return rc;
}
