// fuzz_json.c - base/json.h: an accepted text can be written again and then reads the same.
#include "fuzz.h"

#include "base/json.h"

static void copy_value(struct json_reader *r, struct json_writer *w);

static void copy_number(struct json_reader *r, struct json_writer *w) {
    struct json_reader ahead = *r; // at the same place, to try an integer
    struct err e = {0};
    int64_t whole;
    double x;
    ahead.e = &e;
    if (json_read_i64(&ahead, &whole) == 0 && json_skip(r) == 0)
        json_put_i64(w, whole);
    else if (r->rc == 0 && json_read_double(r, &x) == 0)
        json_put_double(w, x);
}

static void copy_container(struct json_reader *r, struct json_writer *w, enum json_type type) {
    const char *key;
    if (type == JSON_ARRAY) {
        json_put_array_begin(w);
        json_enter_array(r);
        while (json_next_element(r))
            copy_value(r, w);
        json_put_array_end(w);
        return;
    }
    json_put_object_begin(w);
    json_enter_object(r);
    while (json_next_key(r, &key)) {
        json_put_key(w, key);
        copy_value(r, w);
    }
    json_put_object_end(w);
}

static void copy_value(struct json_reader *r, struct json_writer *w) {
    const char *text = NULL;
    size_t bytes = 0;
    bool flag;
    enum json_type type = json_peek(r);
    switch (type) {
    case JSON_NULL:
        json_read_null(r);
        json_put_null(w);
        break;
    case JSON_BOOL:
        json_read_bool(r, &flag);
        json_put_bool(w, flag);
        break;
    case JSON_NUMBER:
        copy_number(r, w);
        break;
    case JSON_STRING:
        json_read_string(r, &text, &bytes);
        FUZZ_CHECK(text != NULL && text[bytes] == '\0');
        json_put_string_n(w, text, bytes);
        break;
    case JSON_ARRAY:
    case JSON_OBJECT:
        copy_container(r, w, type);
        break;
    case JSON_INVALID:
        FUZZ_CHECK(r->rc < 0);
        break;
    }
}

// Reads the text and writes it again. NULL when it is refused.
static char *copy(const char *text, size_t bytes, int indent, struct err *e) {
    struct json_reader r;
    struct json_writer w;
    struct region strings = {0};
    struct err written = {0};
    json_reader_init(&r, "input", text, bytes, &strings, e);
    json_writer_to_buffer(&w, indent);
    copy_value(&r, &w);
    int rc = json_finish(&r);
    FUZZ_CHECK_RESULT(rc, e);
    FUZZ_CHECK(r.at >= r.text && r.at <= r.end);
    region_free(&strings);
    if (rc == 0)
        FUZZ_CHECK(json_writer_finish(&w, &written) == 0);
    if (rc != 0) {
        free(w.buffer);
        return NULL;
    }
    return w.buffer;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct err e = {0}, skipped = {0}, again = {0};
    struct json_reader r;
    char *own = malloc(bytes > 0 ? bytes : 1); // exact size, so that a read past the end is found
    FUZZ_CHECK(own != NULL);
    memcpy(own, data, bytes);
    json_reader_init(&r, "input", own, bytes, NULL, &skipped);
    json_skip(&r);
    int rc = json_finish(&r);
    FUZZ_CHECK_RESULT(rc, &skipped);
    char *once = copy(own, bytes, 0, &e);
    if (once != NULL) {
        FUZZ_CHECK(rc == 0); // a text that can be read can be skipped
        // May still differ from `once`: -1e-999 is written as -0 and then read as the integer 0.
        char *twice = copy(once, strlen(once), 0, &again);
        FUZZ_CHECK(twice != NULL);
        char *wide = copy(twice, strlen(twice), 2, &again);
        FUZZ_CHECK(wide != NULL);
        char *thrice = copy(wide, strlen(wide), 0, &again);
        FUZZ_CHECK(thrice != NULL && strcmp(twice, thrice) == 0);
        free(thrice);
        free(twice);
        free(wide);
    }
    free(once);
    free(own);
    return 0;
}
