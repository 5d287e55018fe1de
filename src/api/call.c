// call.c - what every verb begins and ends with: streams, the JSON object, the caller's error.
#include "api/api.h"

#include "model/hub.h"
#include "report/table.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

// haggle.h repeats the codes so that it can be read alone. These keep it equal to base/err.h.
_Static_assert((int)HAGGLE_ERR_USAGE == (int)ERR_USAGE && (int)HAGGLE_ERR_IO == (int)ERR_IO &&
                   (int)HAGGLE_ERR_FORMAT == (int)ERR_FORMAT &&
                   (int)HAGGLE_ERR_MEMORY == (int)ERR_MEMORY &&
                   (int)HAGGLE_ERR_UNSUPPORTED == (int)ERR_UNSUPPORTED &&
                   (int)HAGGLE_ERR_MISMATCH == (int)ERR_MISMATCH &&
                   (int)HAGGLE_ERR_NUMERIC == (int)ERR_NUMERIC &&
                   (int)HAGGLE_ERR_STOPPED == (int)ERR_STOPPED &&
                   (int)HAGGLE_ERR_INTERNAL == (int)ERR_INTERNAL &&
                   (int)HAGGLE_ERR_BUSY == (int)ERR_BUSY && (int)HAGGLE_ERR_RANK == (int)ERR_RANK,
               "haggle.h and base/err.h list the same codes");
_Static_assert((int)HAGGLE_MARKDOWN == (int)TABLE_MARKDOWN && (int)HAGGLE_CSV == (int)TABLE_CSV &&
                   (int)HAGGLE_JSON == (int)TABLE_JSON && (int)HAGGLE_JSONL == (int)TABLE_JSONL,
               "haggle.h and report/table.h list the same formats");

int api_error(struct haggle_error *out, const struct err *e) {
    if (out) {
        out->code = e->code;
        snprintf(out->text, sizeof out->text, "%s", e->text);
    }
    return e->code;
}

const char *haggle_version(void) {
    return HAGGLE_VERSION;
}

const char *haggle_code_name(int code) {
    return err_name(code);
}

const char *haggle_code_phrase(int code) {
    return err_phrase(code);
}

void call_begin(struct call *c, const struct haggle_sink *sink) {
    *c = (struct call){.locale = c_locale_enter()};
    log_init(&c->log, sink ? sink->log : NULL);
    c->log.least = sink && sink->quiet ? LOG_WARN : LOG_INFO;
    if (!sink)
        return;
    c->out = sink->out;
    c->json_stream = sink->json;
    c->wants_json = sink->json != NULL;
    if (c->wants_json)
        json_writer_to_buffer(&c->json, 2);
}

void call_put_head(struct json_writer *w, const char *verb, const struct knobs *k) {
    json_put_object_begin(w);
    json_member_string(w, "haggle", HAGGLE_VERSION);
    json_member_string(w, "verb", verb);
    if (k) {
        json_put_key(w, "config");
        knobs_put_json(k, w);
    }
}

void call_say(void *log, enum log_level level, const char *text) {
    log_put(log, level, "%s", text);
}

int call_find_model(struct call *c, struct knobs *k, struct err *e) {
    char given[KNOB_STRING_BYTES];
    bool replaced;
    strcpy(given, k->model);
    TRY(hub_resolve(k->model, sizeof k->model, &replaced, e));
    if (replaced)
        log_put(&c->log, LOG_INFO, "model %s: the snapshot %s", given, k->model);
    return 0;
}

bool call_json_begin(struct call *c, const char *verb, const struct knobs *k) {
    if (c->wants_json)
        call_put_head(&c->json, verb, k);
    return c->wants_json;
}

void call_json_error(struct json_writer *w, int code, const char *text) {
    json_member_object(w, "error");
    json_member_string(w, "code", err_name(code));
    json_member_string(w, "text", text);
    json_put_object_end(w);
}

static void put_error(struct json_writer *w, int code, const char *text) {
    json_put_object_begin(w);
    json_member_string(w, "haggle", HAGGLE_VERSION);
    call_json_error(w, code, text);
    json_put_object_end(w);
}

int haggle_error_write_json(const struct haggle_error *e, FILE *f) {
    struct json_writer w;
    json_writer_to_file(&w, f, 2);
    put_error(&w, e->code, e->text);
    int rc = json_writer_finish(&w, NULL);
    return rc != 0 || fputc('\n', f) == EOF || fflush(f) != 0 ? ERR_IO : 0;
}

// A result that could not be written makes the verb fail, unless it has failed already.
static int deliver(struct call *c, int rc) {
    struct err e = {0};
    int lost = 0;
    if (c->wants_json) {
        // A verb that failed halfway through its object delivers only the error.
        if (rc != 0 && (c->json.bytes == 0 || c->json.depth != 0)) {
            free(c->json.buffer);
            json_writer_to_buffer(&c->json, 2);
            put_error(&c->json, c->err.code, c->err.text);
        }
        lost = json_writer_finish(&c->json, &e);
        if (lost == 0 &&
            (fwrite(c->json.buffer, 1, c->json.bytes, c->json_stream) != c->json.bytes ||
             fputc('\n', c->json_stream) == EOF || fflush(c->json_stream) != 0))
            lost = err_set(&e, ERR_IO, "the JSON result could not be written: %s", strerror(errno));
        free(c->json.buffer);
    }
    if (c->out && (fflush(c->out) != 0 || ferror(c->out)) && lost == 0)
        lost = err_set(&e, ERR_IO, "the result could not be written: %s", strerror(errno));
    if (rc == 0 && lost != 0)
        c->err = e;
    return rc != 0 ? rc : lost;
}

int call_end(struct call *c, int rc, struct haggle_error *e) {
    if (rc != 0 && c->err.code == 0) // a callee returned a code without a sentence
        err_set(&c->err, rc, "%s", err_phrase(rc));
    rc = deliver(c, rc);
    c_locale_leave(c->locale);
    return rc == 0 ? 0 : api_error(e, &c->err);
}
