// test_html.c - the parts of a report: text stays text, axes have round ticks, long curves keep
// their extremes.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"
#include "report/html_text.h"
#include "report/run_read_columns.h"
#include "report/svg.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------- text

static char *written(void (*put)(FILE *, const char *), const char *text) {
    char *out = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&out, &bytes);
    assert_non_null(f);
    put(f, text);
    assert_int_equal(fclose(f), 0);
    return out;
}

static void expect_text(const char *in, const char *wanted) {
    char *out = written(html_put_text, in);
    assert_string_equal(out, wanted);
    free(out);
}

static void test_text(void **state) {
    (void)state;
    expect_text("tiny", "tiny");
    expect_text("", "");
    expect_text("<script>alert(1)</script>", "&lt;script&gt;alert(1)&lt;/script&gt;");
    expect_text("a\" onload='x' & b", "a&quot; onload=&#39;x&#39; &amp; b");
    expect_text("&lt;", "&amp;lt;");
    expect_text("Zürich 東京 \xF0\x9F\x98\x80", "Zürich 東京 \xF0\x9F\x98\x80");
    expect_text("a\nb\tc", "a b c");
    // Not UTF-8: a lone byte, a cut character, an overlong '<', a surrogate, a code past 10FFFF.
    expect_text("a\xFFz", "a\uFFFDz");
    expect_text("a\xE6\x9D", "a\uFFFD");
    expect_text("\xC0\xBCscript", "\uFFFDscript");
    expect_text("\xED\xA0\x80", "\uFFFD");
    expect_text("\xF4\x90\x80\x80", "\uFFFD");
    // Control characters, and marks that reverse the text after them.
    expect_text("\x01\x7F\x1B[31m", "\uFFFD\uFFFD\uFFFD[31m");
    expect_text("a\u202Eb", "a\uFFFDb");
}

static void test_json_string(void **state) {
    (void)state;
    char *out = written(html_put_json_string, "a\"\\</script><!-- &\n\x01");
    assert_string_equal(out, "\"a\\u0022\\u005c\\u003c/script\\u003e\\u003c!-- \\u0026 \uFFFD\"");
    free(out);
}

// For any bytes, no character gets through that could end an element, attribute or string.
static void test_text_of_any_bytes(void **state) {
    (void)state;
    uint64_t draw = 1;
    for (int round = 0; round < 2000; round++) {
        char in[24];
        size_t n = 1 + rng_below(7, 1, draw++, sizeof in - 1);
        for (size_t i = 0; i < n; i++)
            in[i] = (char)(1 + rng_below(7, 2, draw++, 255));
        in[n] = '\0';
        char *html = written(html_put_text, in), *json = written(html_put_json_string, in);
        assert_null(strpbrk(html, "<>\"'"));
        assert_null(strpbrk(json, "<>&"));
        assert_ptr_equal(strchr(json + 1, '"'), json + strlen(json) - 1);
        free(html);
        free(json);
    }
}

// ---------------------------------------------------------------- axes

static void check_scale(const struct svg_scale *s) {
    double ticks[SVG_TICKS_MOST];
    assert_true(isfinite(s->lo) && isfinite(s->hi) && s->lo < s->hi);
    for (int most = 2; most <= SVG_TICKS_MOST; most++) {
        int n = svg_ticks(s, most, ticks);
        assert_true(n >= 0 && n <= most);
        for (int i = 0; i < n; i++) {
            double slack = 1e-6 * (s->hi - s->lo);
            assert_true(ticks[i] >= s->lo - slack && ticks[i] <= s->hi + slack);
            assert_true(i == 0 || ticks[i] > ticks[i - 1]);
        }
    }
    assert_true(svg_place(s, s->lo) == 0 && svg_place(s, s->hi) == 1);
    assert_true(svg_place(s, NAN) == 0 && svg_place(s, INFINITY) == 1);
    assert_true(svg_place(s, -INFINITY) == 0);
}

static void test_scales(void **state) {
    (void)state;
    static const double ends[] = {-INFINITY, -1e300, -5,  -1e-9, 0,     1e-300,   1e-9,
                                  0.3,       2.5,    1e6, 1e18,  1e300, INFINITY, NAN};
    const int n = sizeof ends / sizeof *ends;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < n; k++) {
            struct svg_scale exact = svg_scale_exact(ends[i], ends[k]),
                             round = svg_scale_round(ends[i], ends[k], 5),
                             log = svg_scale_log(ends[i], ends[k]);
            check_scale(&exact);
            check_scale(&round);
            check_scale(&log);
        }
    struct svg_scale s = svg_scale_round(1.93, 5.81, 5);
    assert_true(s.lo == 1 && s.hi == 6);
    s = svg_scale_round(0, 0.00029, 5);
    assert_true(s.lo == 0 && fabs(s.hi - 3e-4) < 1e-12);
    s = svg_scale_log(0.03, 470);
    assert_true(s.log && fabs(s.lo - 0.02) < 1e-12 && fabs(s.hi - 500) < 1e-9);
    assert_true(fabs(svg_place(&s, sqrt(0.02 * 500)) - 0.5) < 1e-12);
    assert_false(svg_scale_log(-1, 100).log); // -1 has no logarithm
}

static void expect_ticks(struct svg_scale s, int most, int n, double first, double last) {
    double ticks[SVG_TICKS_MOST];
    assert_int_equal(svg_ticks(&s, most, ticks), n);
    assert_true(fabs(ticks[0] - first) <= 1e-9 * fabs(first));
    assert_true(fabs(ticks[n - 1] - last) <= 1e-9 * fabs(last));
}

static void test_ticks(void **state) {
    (void)state;
    expect_ticks(svg_scale_exact(0, 300), 8, 7, 0, 300);
    expect_ticks(svg_scale_exact(0, 1e6), 8, 6, 0, 1e6);
    expect_ticks(svg_scale_exact(3, 97), 8, 4, 20, 80);
    expect_ticks(svg_scale_exact(-1, 1), 5, 5, -1, 1);
    expect_ticks(svg_scale_log(1, 100), 7, 7, 1, 100);   // 1 2 5 10 20 50 100
    expect_ticks(svg_scale_log(1, 1e5), 7, 6, 1, 1e5);   // powers of ten
    expect_ticks(svg_scale_log(1, 1e11), 7, 6, 1, 1e10); // every other
}

static void expect_number(double value, double step, const char *wanted) {
    char out[SVG_NUMBER_BYTES];
    assert_string_equal(svg_number(out, value, step), wanted);
}

static void test_numbers(void **state) {
    (void)state;
    expect_number(0, 1, "0");
    expect_number(2, 0.5, "2");
    expect_number(2.5, 0.5, "2.5");
    expect_number(0.25, 0.05, "0.25");
    expect_number(200000, 50000, "200k");
    expect_number(1000000, 200000, "1M");
    expect_number(1500000, 500000, "1.5M");
    expect_number(1000, 500, "1000"); // short enough as it is
    expect_number(3e-4, 1e-4, "3e-4");
    expect_number(2.5e-4, 5e-5, "2.5e-4");
    expect_number(-20, 10, "-20");
    expect_number(5.79565, 0, "5.796");
    expect_number(NAN, 1, "not known");
    expect_number(1e300, 1, "too large");
}

// ---------------------------------------------------------------- long curves

static void add(struct columns *c, int64_t step, double ms) {
    struct column *at = columns_at(c, step);
    assert_non_null(at);
    column_see(at, step);
    column_add(at, COLUMN_STEP_MS, ms);
}

static void test_columns(void **state) {
    (void)state;
    struct columns *c = malloc(sizeof *c);
    assert_non_null(c);
    // Nothing is merged while there is a column for each step.
    columns_init(c, 1);
    for (int64_t i = 1; i <= COLUMNS_MOST; i++)
        add(c, i, (double)i);
    assert_int_equal(c->width, 1);
    assert_int_equal(c->n, COLUMNS_MOST);
    assert_true(c->column[41].from == 42 && c->column[41].value[COLUMN_STEP_MS].most == 42);
    add(c, COLUMNS_MOST + 1, 0);
    assert_int_equal(c->width, 2);
    assert_int_equal(c->n, COLUMNS_MOST / 2 + 1);
    assert_true(c->column[0].from == 1 && c->column[0].to == 2 && c->column[0].steps == 2);
    assert_true(column_mean(&c->column[0].value[COLUMN_STEP_MS]) == 1.5);

    // A million steps: no step is lost, and the slow one and the fast one are still visible.
    columns_init(c, 1);
    const int64_t n = 1000000;
    for (int64_t i = 1; i <= n; i++)
        add(c, i, i == 543210 ? 3000 : i == 77777 ? 1 : 100);
    uint64_t steps = 0;
    double most = 0, least = INFINITY, sum = 0;
    for (int i = 0; i < c->n; i++) {
        const struct column_stat *s = &c->column[i].value[COLUMN_STEP_MS];
        assert_true(c->column[i].steps > 0 && c->column[i].steps == s->n);
        assert_true(i == 0 || c->column[i].from == c->column[i - 1].to + 1);
        steps += c->column[i].steps;
        most = fmax(most, s->most);
        least = fmin(least, s->least);
        sum += s->sum;
    }
    assert_true(c->n > COLUMNS_MOST / 2 - 64 && c->n <= COLUMNS_MOST);
    assert_true(steps == (uint64_t)n && most == 3000 && least == 1);
    assert_true(sum == 100.0 * (double)(n - 2) + 3001);

    // Steps in any order, with gaps, and very far apart. No column lies before the base.
    columns_init(c, 10);
    add(c, 5000000000, 1);
    add(c, 10, 2);
    assert_null(columns_at(c, 9));
    assert_true(c->column[0].steps == 1 && c->column[c->n - 1].steps == 1);
    assert_true(c->column[0].value[COLUMN_STEP_MS].most == 2);

    // A value that is not finite, or too large to be added up, is not counted.
    columns_init(c, 0);
    add(c, 0, NAN);
    add(c, 0, INFINITY);
    add(c, 0, 1e200);
    assert_true(c->column[0].steps == 3 && c->column[0].value[COLUMN_STEP_MS].n == 0);
    assert_true(isnan(column_mean(&c->column[0].value[COLUMN_STEP_MS])));
    free(c);
}

static void test_smooth(void **state) {
    (void)state;
    struct columns *c = malloc(sizeof *c);
    assert_non_null(c);
    columns_init(c, 1);
    assert_true(isnan(columns_smooth(c, 10)));
    for (int64_t i = 1; i <= 100; i++) {
        struct column *at = columns_at(c, i);
        column_see(at, i);
        if (i != 50) // a step without loss is a gap and does not change its neighbours
            column_add(at, COLUMN_LOSS, 3 + (i % 2 ? 0.5 : -0.5));
    }
    double last = columns_smooth(c, 8);
    assert_true(fabs(last - 3) < 0.1);
    assert_true(isnan(c->column[49].smooth) && fabs(c->column[48].smooth - 3) < 0.1);
    // Smoothed over one step, the loss is that of the step.
    last = columns_smooth(c, 1);
    assert_true(last == 2.5 && c->column[0].smooth == 3.5);
    free(c);
}

// ---------------------------------------------------------------- drawing

static void test_drawing(void **state) {
    (void)state;
    char *out = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&out, &bytes);
    assert_non_null(f);
    struct svg_plot p = {.id = "x",
                         .title = "X",
                         .unit = "",
                         .x_unit = "step",
                         .describe = "a <b> & \"c\"",
                         .x = svg_scale_exact(0, 10),
                         .y = svg_scale_exact(0, 1)};
    const struct svg_point v[] = {{0, 0}, {5, 0.5}, {6, NAN}, {7, 1}, {8, NAN}, {10, 9}};
    svg_begin(f, &p);
    svg_line(f, &p, "c0", v, 6);
    svg_band(f, &p, "c1", v, v, 6);
    svg_bar(f, &p, "c2", 1, 2, 0.25);
    svg_labels(f);
    svg_note(f, &p, 5, 0.5, "<i>");
    svg_end(f, &p);
    fclose(f);
    // Gaps interrupt the line. A lone point is a dot. Points outside are moved to the edge.
    assert_non_null(strstr(out, "d=\"M0 1000L500 500M700 0h0M1000 0h0\""));
    assert_non_null(strstr(out, "x=\"100\" y=\"750\" width=\"100\" height=\"250\""));
    assert_non_null(strstr(out, "a &lt;b&gt; &amp; &quot;c&quot;"));
    assert_non_null(strstr(out, "&lt;i&gt;"));
    assert_null(strstr(out, "nan"));
    free(out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_json_string),
        cmocka_unit_test(test_text_of_any_bytes),
        cmocka_unit_test(test_scales),
        cmocka_unit_test(test_ticks),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_columns),
        cmocka_unit_test(test_smooth),
        cmocka_unit_test(test_drawing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
