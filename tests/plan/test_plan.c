// test_plan.c - a plan is plain data: it opens nothing, names its programs, is the same for the
// same knobs, and its parts sum to what it needs.
#include "base/file.h"
#include "base/mem.h"
#include "plan/plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { MIB = 1 << 20, PATH_BYTES = 300 };

static void assert_worked(int rc, const struct err *e) {
    if (rc != 0)
        fail_msg("unexpected error %d: %s", rc, e->text);
}

static void knobs_of(struct knobs *k, const char *text) {
    struct err e = {0};
    char copy[1024], *rest = copy;
    knobs_init(k);
    snprintf(copy, sizeof copy, "model=tiny device=cpu seq=16 noise.every=0 generate.tokens=0 %s",
             text);
    for (char *one; (one = strsep(&rest, " ")) != NULL;)
        if (*one)
            assert_worked(knobs_set_assignment(k, one, SET_BY_COMMAND_LINE, &e), &e);
}

// A hybrid run whose requests another model answers. The model's recipe is a file in a separate
// folder.
static void write_recipe(char dir[PATH_BYTES - 20], char setting[PATH_BYTES + 64]) {
    static const char text[] = "model: tiny\nseq: 24\nseed: 5\n";
    struct err e = {0};
    char path[PATH_BYTES];
    assert_worked(file_make_temp_dir(dir, PATH_BYTES - 20, "plan", &e), &e);
    snprintf(path, sizeof path, "%s/second.yaml", dir);
    assert_worked(file_write_atomic(path, text, strlen(text), &e), &e);
    snprintf(setting, PATH_BYTES + 64, "goal=hybrid batch.accum=2 interactive.recipe=%s", path);
}

static int count_name(void *arg, const char *name) {
    (void)name;
    ++*(int *)arg;
    return 0;
}

static int count_in(const char *folder) {
    int n = 0;
    assert_int_equal(file_list_dir(folder, count_name, &n, NULL), 0);
    return n;
}

// ---------------------------------------------------------------- tests

// Planning hundreds of GiB takes a few MiB and no thread, file or data.
static void test_opens_nothing(void **state) {
    static const char *const models[] = {"llama-8b", "llama-70b"};
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        struct knobs k;
        struct plan p;
        struct err e = {0};
        char text[200];
        snprintf(text, sizeof text, "model=%s seq=1024 data.path=/nowhere/data.txt eval.every=5",
                 models[i]);
        knobs_of(&k, text);
        const int files = count_in("/proc/self/fd"), threads = count_in("/proc/self/task");
        const uint64_t before = mem_process_rss_bytes();
        assert_worked(plan_run(&p, &k, &e), &e);
        const uint64_t after = mem_process_rss_bytes(), grown = after > before ? after - before : 0;
        print_message("%s: %llu GiB planned in %llu KiB\n", models[i],
                      (unsigned long long)(plan_arena_bytes(&p) >> 30),
                      (unsigned long long)(grown >> 10));
        assert_true(plan_arena_bytes(&p) > (uint64_t)100 << 30);
        assert_true(grown < 64 * MIB);
        assert_int_equal(count_in("/proc/self/fd"), files);
        assert_int_equal(count_in("/proc/self/task"), threads);
        assert_true(p.flops.model > 0 && p.flops.hardware >= p.flops.model);
        assert_int_equal(p.process_how, PLAN_UNKNOWN);
        assert_int_equal(p.process_bytes, 0);
        plan_free(&p);
    }
}

static void assert_same_plan(const struct plan *a, const struct plan *b) {
    assert_int_equal(a->n_programs, b->n_programs);
    assert_int_equal(a->layout.arena_bytes, b->layout.arena_bytes);
    assert_int_equal(a->layout.persistent_bytes, b->layout.persistent_bytes);
    assert_int_equal(a->layout.transient_bytes, b->layout.transient_bytes);
    assert_int_equal(a->layout.held_bytes, b->layout.held_bytes);
    assert_int_equal(a->layout.slack_bytes, b->layout.slack_bytes);
    assert_memory_equal(a->layout.by_class, b->layout.by_class, sizeof a->layout.by_class);
    assert_memory_equal(&a->flops, &b->flops, sizeof a->flops);
    for (int i = 0; i < a->n_programs; i++) {
        const struct program *x = a->programs[i], *y = b->programs[i];
        assert_string_equal(x->name, y->name);
        assert_int_equal(x->n_tensors, y->n_tensors);
        for (int t = 0; t < x->n_tensors; t++) {
            assert_string_equal(x->tensors[t].name, y->tensors[t].name);
            assert_memory_equal(x->tensors[t].offset, y->tensors[t].offset,
                                sizeof x->tensors[t].offset);
            assert_int_equal(x->tensors[t].bytes, y->tensors[t].bytes);
        }
    }
    assert_int_equal(!a->second, !b->second);
    if (a->second)
        assert_same_plan(a->second, b->second);
}

static void test_like_is_the_same(void **state) {
    char dir[PATH_BYTES - 20], hybrid[PATH_BYTES + 64];
    write_recipe(dir, hybrid);
    const char *const settings[] = {"",
                                    "eval.every=3 generate.tokens=5",
                                    "precision=bf16 batch.accum=4 noise.every=2",
                                    "recompute.mode=full optim.state=int8 fuse.qkv=true",
                                    "goal=hybrid batch.accum=2",
                                    hybrid};
    (void)state;
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        struct knobs k, other;
        struct plan run, like, moved, back;
        struct err e = {0};
        knobs_of(&k, settings[i]);
        assert_worked(plan_run(&run, &k, &e), &e);
        assert_worked(plan_like(&like, &run, &k, &e), &e);
        assert_same_plan(&run, &like);
        // Other knobs give another plan, and these knobs the same plan as before.
        other = k;
        other.batch_micro += 3;
        assert_worked(plan_like(&moved, &run, &other, &e), &e);
        assert_true(moved.layout.arena_bytes > run.layout.arena_bytes);
        assert_int_equal(moved.n_programs, run.n_programs);
        assert_worked(plan_like(&back, &moved, &k, &e), &e);
        assert_same_plan(&run, &back);
        plan_free(&run);
        plan_free(&like);
        plan_free(&moved);
        plan_free(&back);
    }
    assert_int_equal(file_remove_tree(dir, NULL), 0);
}

static void assert_programs(const char *text, const char *const *names, int n) {
    static const char *const all[] = {PLAN_TRAIN, PLAN_EVAL,       PLAN_EXTEND ".1",
                                      PLAN_NOISE, PLAN_GUEST_EVAL, PLAN_GUEST_TRAIN};
    struct knobs k;
    struct plan p;
    struct err e = {0};
    knobs_of(&k, text);
    assert_worked(plan_run(&p, &k, &e), &e);
    assert_int_equal(p.n_programs, n);
    int found = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const int at = plan_find(&p, all[i]);
        if (at < 0) {
            assert_null(plan_program(&p, all[i]));
            assert_int_equal(plan_tensor(&p, all[i], NAME_HYPER), -1);
            continue;
        }
        assert_string_equal(all[i], names[found++]);
        assert_ptr_equal(plan_program(&p, all[i]), p.programs[at]);
        assert_string_equal(p.programs[at]->name, all[i]);
        const int weight = plan_tensor(&p, all[i], "model.norm.weight");
        assert_true(weight >= 0);
        assert_string_equal(p.programs[at]->tensors[weight].name, "model.norm.weight");
        assert_int_equal(plan_tensor(&p, all[i], "no such tensor"), -1);
    }
    assert_int_equal(found, n);
    assert_int_equal(plan_find(&p, "second." PLAN_TRAIN), -1);
    assert_int_equal(plan_find(&p, ""), -1);
    assert_null(p.second);
    plan_free(&p);
}

static void test_names(void **state) {
    (void)state;
    assert_programs("eval.every=0", (const char *[]){PLAN_TRAIN}, 1);
    assert_programs("eval.every=3 generate.tokens=5",
                    (const char *[]){PLAN_TRAIN, PLAN_EVAL, PLAN_EXTEND ".1"}, 3);
    assert_programs("eval.every=0 noise.every=2 batch.accum=2",
                    (const char *[]){PLAN_TRAIN, PLAN_NOISE}, 2);
    assert_programs("eval.every=0 noise.every=2 batch.accum=1", (const char *[]){PLAN_TRAIN}, 1);
    assert_programs("eval.every=3 goal=hybrid batch.accum=2",
                    (const char *[]){PLAN_TRAIN, PLAN_EVAL, PLAN_GUEST_EVAL, PLAN_GUEST_TRAIN}, 4);
}

// The names of a second model's programs have a prefix, which callers leave out.
static void test_second_names(void **state) {
    char dir[PATH_BYTES - 20], hybrid[PATH_BYTES + 64];
    struct knobs k;
    struct plan p;
    struct err e = {0};
    (void)state;
    write_recipe(dir, hybrid);
    knobs_of(&k, hybrid);
    assert_worked(plan_run(&p, &k, &e), &e);
    assert_non_null(p.second);
    assert_int_equal(plan_find(&p, PLAN_GUEST_EVAL), -1);
    assert_true(plan_program(&p, PLAN_TRAIN)->yields);
    assert_int_equal(p.second->n_programs, 2);
    assert_string_equal(plan_program(p.second, PLAN_TRAIN)->name, "second." PLAN_TRAIN);
    assert_string_equal(plan_program(p.second, PLAN_EVAL)->name, "second." PLAN_EVAL);
    assert_false(plan_program(p.second, PLAN_TRAIN)->yields);
    assert_int_equal(plan_find(p.second, "second." PLAN_TRAIN), -1);
    assert_int_equal(p.second->knobs.seq, 24);
    assert_int_equal(p.second->knobs.seed, 5);
    assert_null(p.second->second);
    assert_int_equal(plan_second_bytes(&p), p.second->layout.arena_bytes);
    assert_int_equal(plan_arena_bytes(&p), p.layout.arena_bytes + p.second->layout.arena_bytes);
    plan_free(&p);
    assert_int_equal(file_remove_tree(dir, NULL), 0);
}

static void assert_parts(const struct plan *p, bool on_device, int beyond_arenas) {
    struct plan_part parts[PLAN_PARTS];
    uint64_t sum = 0;
    int classes = 0;
    const int n = plan_parts(p, on_device, parts);
    assert_in_range(n, 1, PLAN_PARTS);
    for (int i = 0; i < n; i++) {
        sum += parts[i].bytes;
        for (int j = 0; j < i; j++)
            assert_string_not_equal(parts[i].name, parts[j].name);
    }
    for (int c = 0; c < CLASS_COUNT; c++)
        classes += p->layout.by_class[c] > 0;
    assert_int_equal(sum, plan_need_bytes(p, on_device));
    assert_int_equal(n, classes + 1 + (p->second != NULL) + (on_device ? 0 : beyond_arenas));
}

static void test_parts_sum_up(void **state) {
    char dir[PATH_BYTES - 20], settings[2][PATH_BYTES + 64] = {"eval.every=3"};
    (void)state;
    write_recipe(dir, settings[1]);
    for (int i = 0; i < 2; i++) {
        struct knobs k;
        struct plan p;
        struct err e = {0};
        knobs_of(&k, settings[i]);
        assert_worked(plan_run(&p, &k, &e), &e);
        assert_parts(&p, false, 0);
        assert_int_equal(plan_total_bytes(&p), plan_arena_bytes(&p));
        plan_set_host(&p, &(struct plan_host){.loader = 1000, .trace = 200, .saving = 30});
        plan_set_process(&p, 4, PLAN_MEASURED);
        assert_parts(&p, false, 4);
        assert_int_equal(plan_total_bytes(&p), plan_arena_bytes(&p) + 1234);
        plan_set_host(&p,
                      &(struct plan_host){.loader = 1, .trace = 2, .saving = 3, .requests = 50000});
        assert_parts(&p, false, 5);
        assert_parts(&p, true, 5);
        assert_int_equal(plan_need_bytes(&p, false), plan_total_bytes(&p));
        assert_int_equal(plan_need_bytes(&p, true), plan_arena_bytes(&p));
        // To the byte: a budget that is enough, and one that is not.
        const uint64_t need = plan_need_bytes(&p, false);
        struct plan_room room = {.bytes = need, .is = "the room of this test"};
        assert_worked(plan_check_room(&p, false, need, &room, &e), &e);
        room.bytes--;
        assert_int_equal(plan_check_room(&p, false, need, &room, &e), ERR_MEMORY);
        assert_non_null(strstr(e.text, "the room of this test"));
        assert_non_null(strstr(e.text, "requests 48.83 KiB"));
        plan_free(&p);
    }
    assert_int_equal(file_remove_tree(dir, NULL), 0);
}

// Where documents begin is an input of programs whose sequences may hold several documents, and of
// no others.
static void test_document_boundaries(void **state) {
    static const struct {
        const char *text;
        bool packed; // the training data; requests and generation never are
    } cases[] = {{"", true},
                 {"data.pack=none", true}, // the built-in corpus is one stream
                 {"data.path=/nowhere/data.jsonl", true},
                 {"data.path=/nowhere/data.jsonl data.pack=stream", true},
                 {"data.path=/nowhere/data.jsonl data.pack=none", false}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct knobs k;
        struct plan p;
        struct err e = {0};
        char text[200];
        snprintf(text, sizeof text, "goal=hybrid generate.tokens=4 %s", cases[i].text);
        knobs_of(&k, text);
        assert_worked(plan_run(&p, &k, &e), &e);
        assert_int_equal(p.n_programs, 5);
        for (int n = 0; n < p.n_programs; n++) {
            const struct program *x = p.programs[n];
            const bool bulk = n == plan_find(&p, PLAN_TRAIN) || n == plan_find(&p, PLAN_EVAL);
            for (int t = 0; t < x->n_tensors; t++)
                if (strstr(x->tensors[t].name, NAME_DOC_START))
                    assert_true(bulk && cases[i].packed);
            assert_int_equal(program_find(x, NAME_DOC_START) >= 0, bulk && cases[i].packed);
        }
        plan_free(&p);
    }
}

// A device gets a padded vocabulary, the CPU does not, unless the knob says so. Padding is no work
// of the model.
static void test_padded_vocabulary(void **state) {
    static const struct {
        const char *text;
        int64_t columns;
        bool sums; // the gradient of the head's input sums over all columns
    } cases[] = {{"device=cpu", 50257, false},
                 {"device=cuda", 50304, true},
                 {"device=cuda logits.pad=1", 50257, false},
                 {"device=cuda logits.pad=256", 50432, true},
                 {"device=cpu logits.pad=64", 50304, false}};
    double model = 0;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct knobs k;
        struct plan p;
        struct err e = {0};
        char text[200];
        snprintf(text, sizeof text, "model=gpt2-124m generate.tokens=4 %s", cases[i].text);
        knobs_of(&k, text);
        assert_worked(plan_run(&p, &k, &e), &e);
        for (int n = 0; n < p.n_programs; n++) {
            const struct program *x = p.programs[n];
            const int logits = program_find(x, NAME_LOGITS),
                      wte = program_find(x, "transformer.wte.weight");
            assert_int_equal(x->tensors[logits].local[1], cases[i].columns);
            assert_int_equal(x->tensors[wte].local[0], 50257);
            assert_int_equal(x->tensors[program_root(x, wte)].local[0], cases[i].columns);
        }
        const struct program *x = plan_program(&p, PLAN_TRAIN);
        int products = 0;
        for (int s = 0; s < x->n_segments; s++)
            for (int o = 0; o < x->segments[s].n_ops; o++) {
                const struct op *op = &x->segments[s].ops[o];
                if (op->kind != OP_MATMUL_DX || op->n < 50257)
                    continue;
                assert_int_equal(op->n, cases[i].sums ? cases[i].columns : 50257);
                products++;
            }
        assert_true(products > 0);
        model = i == 0 ? p.flops.model : model;
        assert_true(p.flops.model == model && p.flops.hardware >= model);
        plan_free(&p);
    }
}

// A plan that failed half-way can be freed, and a freed plan is empty.
static void test_failed_plans(void **state) {
    static const struct {
        const char *text;
        int code;
    } bad[] = {{"model=no-such-model", ERR_USAGE},
               {"seq=100000", ERR_USAGE},
               {"goal=hybrid interactive.seq=100000", ERR_USAGE},
               {"goal=hybrid interactive.recipe=/nowhere/second.yaml", ERR_IO}};
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct knobs k;
        struct plan p;
        struct err e = {0};
        knobs_of(&k, bad[i].text);
        assert_int_equal(plan_run(&p, &k, &e), bad[i].code);
        assert_true(e.text[0] != '\0');
        plan_free(&p);
        plan_free(&p);
        assert_int_equal(p.n_programs, 0);
        assert_int_equal(plan_find(&p, PLAN_TRAIN), -1);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_opens_nothing),
        cmocka_unit_test(test_like_is_the_same),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_second_names),
        cmocka_unit_test(test_parts_sum_up),
        cmocka_unit_test(test_failed_plans),
        cmocka_unit_test(test_document_boundaries),
        cmocka_unit_test(test_padded_vocabulary),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
