// test_effects.c - every knob of knob.def has an effect, and has it where its line says: two values
// (knob/pair.h) differ at each place that the line names, and one value gives the same twice.
//
// A new knob is tested without a change here. The test fails if its line names no place, if it has
// neither a neighbour nor a line in pair.c, or if nothing differs.
#include "api/knobs_check.h"
#include "hw/hw.h"
#include "plan/plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct scratch {
    struct effects_dir files;
    const char *dir;
};

static int make_scratch(void **state) {
    struct scratch *s = calloc(1, sizeof *s);
    struct err e = {0};
    *state = s;
    if (s)
        s->dir = s->files.path;
    return s ? effects_make_files(&s->files, &e) : -1;
}

static int remove_scratch(void **state) {
    struct scratch *s = *state;
    effects_remove_files(&s->files);
    free(s);
    return 0;
}

// The reason why two values cannot be told apart here; NULL: they can. No other knob is exempt.
static const char *excuse(int id) {
    struct hw_machine m;
    struct knobs k;
    hw_machine_read(&m, "");
    knobs_init(&k);
    if (effects_need_device(id) && !plan_wants_device(&k))
        return "there is no GPU here";
    if (id == KNOB_cpu_isa && m.level == HW_GENERIC)
        return "this CPU has none but the generic kernels";
    return NULL;
}

static int observe(char **out, int id, const char *value, unsigned place, const struct scratch *s,
                   struct err *e) {
    struct knobs base, k;
    knobs_init(&base);
    TRY(effects_settings(&k, &base, id, s->dir, e));
    TRY(knobs_set_at(&k, id, value, SET_BY_COMMAND_LINE, e));
    return effects_observe(out, place, &k, s->dir, knobs_check_train, e);
}

struct sight {
    char a[KNOB_VALUE_BYTES], b[KNOB_VALUE_BYTES];
    char *one, *again, *two; // seen with a, with a again, and with b
    bool here;               // false: this machine cannot run b
};

static int look(struct sight *v, int id, unsigned place, const struct scratch *s, struct err *e) {
    struct knobs base, k;
    *v = (struct sight){.here = true};
    knobs_init(&base);
    TRY(effects_settings(&k, &base, id, s->dir, e));
    TRY(knob_pair_values(&k, id, s->dir, v->a, v->b, e));
    TRY(observe(&v->one, id, v->a, place, s, e));
    TRY(observe(&v->again, id, v->a, place, s, e));
    int rc = observe(&v->two, id, v->b, place, s, e);
    v->here = rc != ERR_UNSUPPORTED;
    return v->here ? rc : 0;
}

// 1: the two values differ at this place; 0: this machine cannot show it; -1: they do not differ.
static int judge(int id, unsigned place, const struct scratch *s) {
    struct sight v;
    struct err e = {0};
    const char *name = knob_info(id)->name, *where = knob_place_name(place);
    int rc = look(&v, id, place, s, &e), verdict = 1;
    if (rc != 0) {
        print_error("%s cannot be seen in %s: %s\n", name, where, e.text);
        verdict = -1;
    } else if (strcmp(v.one, v.again) != 0) {
        print_error("%s=%s is seen in %s in two ways:\n%.2000s\n%.2000s\n", name, v.a, where, v.one,
                    v.again);
        verdict = -1;
    } else if (!v.here) {
        print_message("%s=%s is not tested: %s\n", name, v.b, e.text);
        verdict = 0;
    } else if (strcmp(v.one, v.two) == 0) {
        print_error("%s=%s and %s=%s are the same in %s:\n%.2000s\n", name, v.a, name, v.b, where,
                    v.one);
        verdict = -1;
    }
    free(v.one);
    free(v.again);
    free(v.two);
    return verdict;
}

static void test_every_knob_shows(void **state) {
    int seen = 0, failed = 0;
    for (int id = 0; id < KNOB_COUNT; id++) {
        const char *why = excuse(id);
        unsigned places = knob_info(id)->flags & KNOB_PLACES;
        if (places == 0)
            fail_msg("%s does not say where its effect shows (KNOB_IN_... in knob.def)",
                     knob_info(id)->name);
        if (why) {
            print_message("%s is not tested: %s\n", knob_info(id)->name, why);
            continue;
        }
        for (unsigned place = KNOB_IN_PROGRAM; place <= KNOB_IN_OUTPUT; place <<= 1)
            if (places & place) {
                int verdict = judge(id, place, *state);
                seen += verdict > 0;
                failed += verdict < 0;
            }
    }
    assert_int_equal(failed, 0);
    assert_true(seen > KNOB_COUNT);
}

// Knobs that must not change the numbers do not: memory techniques and the loader.
static void test_numbers_stay(void **state) {
    static const int ids[] = {KNOB_recompute_mode, KNOB_recompute_every, KNOB_data_prefetch,
                              KNOB_data_workers};
    const struct scratch *s = *state;
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        char a[KNOB_VALUE_BYTES], b[KNOB_VALUE_BYTES], *one = NULL, *two = NULL;
        struct knobs base, k;
        struct err e = {0};
        knobs_init(&base);
        assert_int_equal(effects_settings(&k, &base, ids[i], s->dir, &e), 0);
        assert_int_equal(knob_pair_values(&k, ids[i], s->dir, a, b, &e), 0);
        assert_int_equal(observe(&one, ids[i], a, KNOB_IN_NUMBERS, s, &e), 0);
        assert_int_equal(observe(&two, ids[i], b, KNOB_IN_NUMBERS, s, &e), 0);
        assert_non_null(strstr(one, "step 4 loss"));
        assert_string_equal(one, two);
        free(one);
        free(two);
    }
}

static void test_neighbours(void **state) {
    (void)state;
    static const struct {
        const char *knob, *value, *neighbour;
    } cases[] = {
        {"batch.micro", "4", "8"},
        {"batch.micro", "65536", "32768"},
        {"optim.beta1", "0.9", "0.45"},
        {"optim.lr", "3e-4", "0.0006"},
        {"precision", "fp16", "fp32"},
        {"save.last", "true", "false"},
        {"data.ram", "0", "1"},
        {"time", "2s", "4000000000ns"},
        {"data.source_rate", "1KiB", "2048"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct knobs k;
        struct err e = {0};
        char out[KNOB_VALUE_BYTES];
        knobs_init(&k);
        assert_int_equal(knobs_set(&k, cases[i].knob, cases[i].value, SET_BY_RECIPE, &e), 0);
        assert_int_equal(knob_neighbour(&k, knob_find(cases[i].knob), out, &e), 0);
        assert_string_equal(out, cases[i].neighbour);
        assert_int_equal(knobs_set(&k, cases[i].knob, out, SET_BY_RECIPE, &e), 0);
    }
    struct knobs k;
    struct err e = {0};
    char out[KNOB_VALUE_BYTES];
    knobs_init(&k);
    assert_int_equal(knob_neighbour(&k, KNOB_data_path, out, &e), ERR_UNSUPPORTED);
    assert_int_equal(knobs_set_list(&k, "seq=8 threads=3", "/x", false, SET_BY_RECIPE, &e), 0);
    assert_int_equal(
        knobs_set_list(&k, "seq=9  data.path={dir}/a{dir}", "/x", true, SET_BY_TUNER, &e), 0);
    assert_true(k.seq == 8 && k.threads == 3);
    assert_string_equal(k.data_path, "/x/a/x");
    assert_int_equal(knobs_set_list(&k, "seq", "", false, SET_BY_RECIPE, &e), ERR_USAGE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_neighbours),
        cmocka_unit_test(test_every_knob_shows),
        cmocka_unit_test(test_numbers_stay),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
