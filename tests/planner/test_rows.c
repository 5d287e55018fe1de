// test_rows.c - tables of runs: hostile files, what a row says, what is assumed, what is appended.
#include "base/file.h"
#include "planner/rows.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define HEAD                                                                                       \
    "source,framework,model,params_b,layers,hidden,heads,kv_heads,ffn,vocab,seq,gpu,gpus,tp,pp,"   \
    "vp,dp,cp,zero,seqpar,microbatch,globalbatch,recompute,precision,step_s,"                      \
    "tokens_per_s_per_gpu,mem_gb,notes\n"
#define GOOD                                                                                       \
    "a/b file,fsdp,X,6.7,32,4096,32,32,16384,50368,2048,A100-80GB-SXM,8,1,1,,8,1,3,0,2,64,full,"   \
    "bf16,,2500,,\"quoted, with \"\"quotes\"\"\"\n"

static int read_text(struct rows *r, const char *text, struct err *e) {
    const size_t n = strlen(text);
    char *copy = malloc(n + 1);
    assert_non_null(copy);
    memcpy(copy, text, n + 1);
    return rows_read_text(r, "t.csv", copy, n, e);
}

static void refuse(const char *text, const char *says) {
    struct rows r;
    struct err e = {0};
    assert_int_equal(read_text(&r, text, &e), ERR_FORMAT);
    if (!strstr(e.text, says))
        fail_msg("'%s' does not say '%s'", e.text, says);
    rows_free(&r);
}

static void hostile_files_are_refused(void **state) {
    (void)state;
    refuse("", "the column 'layers' is missing");
    refuse("layers,hidden\n", "the column 'heads' is missing");
    refuse("layers,hidden,heads,gpu,gpus,layers\n", "'layers' is there twice");
    refuse(HEAD "a,b\n", "t.csv:2: 2 fields where the head has 28");
    refuse(HEAD "\"a,b\n", "t.csv:3: a quoted field does not end");
    refuse("layers,\"hidden\"x,heads,gpu,gpus\n", "goes on behind its closing quote");
    char *many = calloc(1, 400);
    assert_non_null(many);
    memset(many, ',', 300);
    refuse(many, "more than 256 fields");
    free(many);
    struct rows r;
    struct err e = {0};
    char *nul = calloc(1, 8);
    assert_non_null(nul);
    assert_int_equal(rows_read_text(&r, "t.csv", nul, 8, &e), ERR_FORMAT);
    rows_free(&r);
}

// Every prefix and every changed byte either reads or is refused; none may crash.
static void damaged_files_do_not_crash(void **state) {
    static const char text[] = HEAD GOOD;
    struct hardware h;
    struct err e = {0};
    (void)state;
    assert_int_equal(hardware_open(&h, &e), 0);
    for (size_t n = 0; n < sizeof text; n++)
        for (int way = 0; way < 3; way++) {
            char copy[sizeof text];
            memcpy(copy, text, sizeof text);
            if (way == 0)
                copy[n] = '\0';
            else if (n + 1 < sizeof text)
                copy[n] = way == 1 ? '"' : '9';
            struct rows r;
            struct row_setup s;
            if (read_text(&r, copy, &e) == 0)
                for (int i = 0; i < r.n; i++)
                    row_setup(&r.rows[i], &h, &s, &e);
            rows_free(&r);
        }
    hardware_free(&h);
}

// Sizes at their limits are refused or estimated; no sum of bytes overflows.
static void huge_sizes_are_survived(void **state) {
    static const char line[] = "a,fsdp,X,,4096,262144,4096,4096,1048576,4194304,4194304,H200,65536,"
                               "1,1,,65536,1,3,0,1048576,1073741824,full,bf16,1,,,\n";
    struct hardware h;
    struct rows r;
    struct rows_counts n;
    struct err e = {0};
    char text[1024];
    const struct planner_constants k = planner_constants_default();
    (void)state;
    assert_int_equal(hardware_open(&h, &e), 0);
    for (int way = 0; way < 2; way++) {
        snprintf(text, sizeof text, "%s%s", HEAD, line);
        char *micro = strstr(text, ",1048576,1073741824");
        if (way == 1) // one sequence in a micro-batch
            memcpy(micro, ",0000001,", 9);
        assert_int_equal(read_text(&r, text, &e), 0);
        FILE *f = fopen("/dev/null", "we");
        assert_non_null(f);
        assert_int_equal(rows_predict(&r, &h, &k, f, &n, &e), 0);
        fclose(f);
        assert_int_equal(n.predicted, way);
        rows_free(&r);
    }
    hardware_free(&h);
}

static int setup_of(const char *line, struct row_setup *s, struct err *e) {
    struct hardware h;
    struct rows r;
    char text[1024];
    snprintf(text, sizeof text, "%s%s", HEAD, line);
    assert_int_equal(hardware_open(&h, e), 0);
    if (read_text(&r, text, e) != 0)
        fail_msg("%s", e->text);
    assert_int_equal(r.n, 1);
    const int rc = row_setup(&r.rows[0], &h, s, e);
    rows_free(&r);
    hardware_free(&h);
    return rc;
}

static void a_row_is_a_setup(void **state) {
    struct row_setup s;
    struct err e = {0};
    (void)state;
    if (setup_of(GOOD, &s, &e) != 0)
        fail_msg("%s", e.text);
    assert_true(s.usable && s.setup.data == 8 && s.setup.zero == 3 && s.setup.accum == 4);
    assert_int_equal(s.setup.recompute, RECOMPUTE_FULL);
    assert_int_equal(s.setup.math, PLANNER_BF16);
    assert_true(s.setup.shape.act != ACT_SWIGLU); // 6.7 billion parameters are a plain MLP
    assert_true(s.measured_s > 64 * 2048 / (2500.0 * 8) * 0.999 &&
                s.measured_s < 64 * 2048 / (2500.0 * 8) * 1.001);
    assert_string_equal(s.repository, "a/b");
}

static void rows_without_a_prediction_say_why(void **state) {
    static const struct {
        const char *line, *says;
    } cases[] = {
        {"a,fsdp,X,,,4096,32,,16384,,2048,A100,8,1,1,,8,,,,2,64,,,1,,,\n", "layers is not stated"},
        {"a,fsdp,X,,32,4096,32,,16384,,2048,A100,8,2,1,,8,,,,2,64,,,1,,,\n",
         "tp 2 x pp 1 x dp 8 x cp 1 are not 8 gpus"},
        {"a,fsdp,X,,32,4096,32,,16384,,2048,A200,8,1,1,,8,,,,2,64,,,1,,,\n",
         "no device or node 'a200'"},
        {"a,fsdp,X,,32,4096,32,,16384,,2048,A100,8,1,1,,8,,,,2,64,,NVFP4,1,,,\n",
         "fp32, fp16, bf16, fp8"},
        {"a,fsdp,X,,32,4096,32,,16384,,2048,A100,8,1,1,,8,,,,2,64,,,1,,,MoE with EP=8\n",
         "mixture of experts"},
        {"a,fsdp,X,,32,4096,32,,16384,,2048,A100,8,1,1,,8,,,,2.5,64,,,1,,,\n", "microbatch '2.5'"},
        {"a,fsdp,X,,32,1e30,32,,16384,,2048,A100,8,1,1,,8,,,,2,64,,,1,,,\n", "hidden '1e30'"},
        {"a,fsdp,X,,32,4100,32,,16384,,2048,A100,8,1,1,,8,,,,2,64,,,1,,,\n",
         "32 heads do not divide"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct row_setup s;
        struct err e = {0};
        assert_int_not_equal(setup_of(cases[i].line, &s, &e), 0);
        if (!strstr(e.text, cases[i].says))
            fail_msg("'%s' does not say '%s'", e.text, cases[i].says);
    }
}

// The same run under another name and from another source gets the same figures.
static void names_do_not_matter(void **state) {
    struct row_setup a, b;
    struct err e = {0};
    (void)state;
    assert_int_equal(setup_of(GOOD, &a, &e), 0);
    char other[512] = "z/y,fsdp,Y";
    strcat(other, strstr(GOOD, ",6.7"));
    assert_int_equal(setup_of(other, &b, &e), 0);
    memcpy(b.setup.shape.name, a.setup.shape.name, sizeof a.setup.shape.name);
    assert_memory_equal(&a.setup.shape, &b.setup.shape, sizeof a.setup.shape);
    assert_true(a.setup.zero == b.setup.zero && a.setup.micro == b.setup.micro);
}

static void predictions_are_appended(void **state) {
    struct hardware h;
    struct rows r;
    struct rows_counts n;
    struct err e = {0};
    char *out = NULL;
    size_t bytes = 0;
    const struct planner_constants k = planner_constants_default();
    (void)state;
    assert_int_equal(hardware_open(&h, &e), 0);
    assert_int_equal(read_text(&r,
                               HEAD GOOD "a,fsdp"
                                         ",,,,,,,,,,,,,,,,,,,,,,,,,,\r\n",
                               &e),
                     0);
    FILE *f = open_memstream(&out, &bytes);
    assert_int_equal(rows_predict(&r, &h, &k, f, &n, &e), 0);
    fclose(f);
    assert_true(n.rows == 2 && n.usable == 1 && n.predicted == 1 && n.usable_predicted == 1);
    // The records stand as they were, and what was written reads back.
    assert_non_null(strstr(out, "\"quoted, with \"\"quotes\"\"\","));
    assert_non_null(
        strstr(out, "predicted_step_s,low_s,high_s,predicted_mem_gb,fits,profile,reason\n"));
    struct rows again;
    assert_int_equal(read_text(&again, out, &e), 0);
    assert_int_equal(again.n, 2);
    rows_free(&again);
    free(out);
    rows_free(&r);
    hardware_free(&h);
}

// The published runs, where they are: what may be predicted is, by the printed rule.
static void published_runs_are_predicted(void **state) {
    static const char path[] = HAGGLE_SOURCE_DIR "/../shared/data/published_runs.csv";
    struct hardware h;
    struct rows r;
    struct rows_counts n;
    struct err e = {0};
    const struct planner_constants k = planner_constants_default();
    (void)state;
    if (!file_exists(path)) {
        print_message("skipped: there is no %s\n", path);
        skip();
    }
    assert_int_equal(hardware_open(&h, &e), 0);
    if (rows_read_file(&r, path, &e) != 0)
        fail_msg("%s", e.text);
    FILE *f = fopen("/dev/null", "we");
    assert_non_null(f);
    if (rows_predict(&r, &h, &k, f, &n, &e) != 0)
        fail_msg("%s", e.text);
    fclose(f);
    assert_true(n.usable > 800 && n.usable_predicted >= 0.95 * n.usable);
    rows_free(&r);
    hardware_free(&h);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hostile_files_are_refused),
        cmocka_unit_test(damaged_files_do_not_crash),
        cmocka_unit_test(huge_sizes_are_survived),
        cmocka_unit_test(a_row_is_a_setup),
        cmocka_unit_test(rows_without_a_prediction_say_why),
        cmocka_unit_test(names_do_not_matter),
        cmocka_unit_test(predictions_are_appended),
        cmocka_unit_test(published_runs_are_predicted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
