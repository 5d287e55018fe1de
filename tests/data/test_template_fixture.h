// test_template_fixture.h - runs templates on one set of variables, and compares tables of results.
#ifndef HAGGLE_TESTS_DATA_TEST_TEMPLATE_FIXTURE_H
#define HAGGLE_TESTS_DATA_TEST_TEMPLATE_FIXTURE_H

#include "data/template.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LIMIT_BYTES = 32 << 20, LIMIT_STEPS = 2000000 };

// Variables of every test, as JSON.
static const char variables[] =
    "{\"s\":\"  H\\u00e9llo w\\u00f6rld\\n "
    "\",\"t\":\"a,b,,c\",\"n\":7,\"f\":2.5,\"l\":[1,2,3,\"x\"],"
    "\"d\":{\"a\":1,\"b\":{\"c\":[1,2]},\"e\":\"\\\"q\\\"\\n\"},\"e\":\"\",\"z\":null,\"y\":true,"
    "\"m\":[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":\"yo\","
    "\"k\":1}]}";

struct run {
    struct region region;
    struct template *t;
    struct template_output out;
    struct err e;
};

static inline int run(struct run *r, const char *source, size_t bytes) {
    memset(r, 0, sizeof *r);
    struct value_heap h = {
        .region = &r->region, .limit_bytes = LIMIT_BYTES, .steps = LIMIT_STEPS, .e = &r->e};
    struct json_reader j;
    struct value all;
    struct template_variable v[16];
    json_reader_init(&j, "variables", variables, strlen(variables), &r->region, &r->e);
    assert_int_equal(value_read_json(&h, &j, ORIGIN_RECORD, &all), 0);
    for (size_t i = 0; i < all.dict->n; i++)
        v[i] = (struct template_variable){all.dict->pairs[i].key->bytes, all.dict->pairs[i].value};
    int rc = template_open(&r->t, "test", source, bytes, &r->e);
    return rc != 0 ? rc : template_render(r->t, v, all.dict->n, &h, &r->out);
}
static inline void done(struct run *r) {
    template_close(r->t);
    region_free(&r->region);
}

struct template_case {
    const char *source, *expected;
};
static inline void expect_texts(const struct template_case *cases, size_t n_cases) {
    for (size_t i = 0; i < n_cases; i++) {
        struct run r;
        if (run(&r, cases[i].source, strlen(cases[i].source)) != 0)
            fail_msg("%s\n%s", cases[i].source, r.e.text);
        size_t n = strlen(cases[i].expected);
        if (r.out.text->n != n || memcmp(r.out.text->bytes, cases[i].expected, n) != 0)
            fail_msg("%s\nexpected: %s\ngot: %.*s", cases[i].source, cases[i].expected,
                     (int)r.out.text->n, r.out.text->bytes);
        done(&r);
    }
}

// `expected` is part of the error.
static inline void expect_refusals(const struct template_case *cases, size_t n_cases) {
    for (size_t i = 0; i < n_cases; i++) {
        struct run r;
        int rc = run(&r, cases[i].source, strlen(cases[i].source));
        if (rc >= 0 || rc != r.e.code || strstr(r.e.text, cases[i].expected) == NULL)
            fail_msg("%s\nexpected: %s\ngot %d: %s", cases[i].source, cases[i].expected, rc,
                     r.e.text);
        done(&r);
    }
}

// Shows the record's text in <>.
static inline void expect_origins(const struct template_case *cases, size_t n_cases) {
    for (size_t i = 0; i < n_cases; i++) {
        struct run r;
        if (run(&r, cases[i].source, strlen(cases[i].source)) != 0)
            fail_msg("%s\n%s", cases[i].source, r.e.text);
        char shown[256];
        size_t n = 0;
        bool inside = false;
        for (size_t k = 0; k <= r.out.text->n; k++) {
            bool record =
                k < r.out.text->n && marked_span_at(r.out.text, k).origin == ORIGIN_RECORD;
            if (record != inside)
                shown[n++] = record ? '<' : '>';
            inside = record;
            if (k < r.out.text->n)
                shown[n++] = r.out.text->bytes[k];
        }
        shown[n] = '\0';
        assert_string_equal(shown, cases[i].expected);
        done(&r);
    }
}

#endif
