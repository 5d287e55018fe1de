// test_knob.c - the rules of the table in knob.def, and values to and from text.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "knob/knob.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

// The field names as written in knob.def, to compare with the dotted names.
static const char *const FIELDS[] = {
#define KNOB(type, field) #field,
#include "knob/knob_each.h"
};

static void test_fields_derive_from_names(void **state) {
    (void)state;
    for (int i = 0; i < KNOB_COUNT; i++) {
        char field[128];
        snprintf(field, sizeof field, "%s", knob_info(i)->name);
        for (char *p = field; *p; p++) {
            assert_true(islower((unsigned char)*p) || isdigit((unsigned char)*p) || *p == '.' ||
                        *p == '_');
            if (*p == '.')
                *p = '_';
        }
        assert_string_equal(field, FIELDS[i]);
        assert_int_equal(knob_find(knob_info(i)->name), i);
    }
}

// A recipe writes a group as one mapping, so the knobs of a group are neighbours and no knob has
// the name of a group.
static void test_groups_are_neighbours(void **state) {
    (void)state;
    for (int i = 0; i < KNOB_COUNT; i++) {
        const char *name = knob_info(i)->name, *dot = strchr(name, '.');
        if (!dot)
            continue;
        size_t n = (size_t)(dot - name);
        bool left = false;
        for (int j = i + 1; j < KNOB_COUNT; j++) {
            const char *other = knob_info(j)->name;
            bool inside = strncmp(other, name, n) == 0 && other[n] == '.';
            assert_false(inside && left);
            left |= !inside;
        }
        for (int j = 0; j < KNOB_COUNT; j++)
            assert_false(strlen(knob_info(j)->name) == n &&
                         memcmp(knob_info(j)->name, name, n) == 0);
    }
}

static void test_every_line_is_complete(void **state) {
    (void)state;
    struct knobs k;
    knobs_init(&k);
    for (int i = 0; i < KNOB_COUNT; i++) {
        const struct knob_info *info = knob_info(i);
        char value[KNOB_VALUE_BYTES], accepted[KNOB_ACCEPTED_BYTES];
        assert_true(strlen(info->help) >= 15);
        assert_null(strchr(info->help, '|')); // docs/knobs.md is a table
        assert_true(info->flags & KNOB_EFFECTS);
        assert_true(*knob_accepted(i, accepted));
        // A tunable knob that is also math must be a factor, or the tuner could change what is
        // trained.
        if ((info->flags & KNOB_TUNABLE) && (info->flags & KNOB_MATH))
            assert_true((info->flags & KNOB_FACTOR) && info->type == KNOB_INT);
        // The default is accepted and reads back to itself.
        knob_default(i, value);
        struct err e = {0};
        assert_int_equal(knobs_set_at(&k, i, value, SET_BY_RECIPE, &e), 0);
        struct knobs fresh;
        knobs_init(&fresh);
        assert_true(knobs_same(&k, &fresh, i));
        assert_int_equal(k.by[i], SET_BY_RECIPE);
        assert_int_equal(fresh.by[i], SET_BY_DEFAULT);
    }
}

// Two values are the same exactly when their texts are the same.
static void test_same_is_as_written(void **state) {
    (void)state;
    static const char *const values[] = {"0",    "1",      "2",    "0.1",  "0.5",  "1e-3",
                                         "true", "false",  "64",   "7",    "6GiB", "1MiB",
                                         "90s",  "10ms",   "none", "fp32", "bf16", "wsd",
                                         "full", "a text", "auto", "cuda", "int8", "-1"};
    enum { VALUES = sizeof values / sizeof *values };
    struct knobs base, a, b;
    knobs_init(&base);
    for (int id = 0; id < KNOB_COUNT; id++) {
        int differ = 0;
        for (int i = 0; i < VALUES * VALUES; i++) {
            char ta[KNOB_VALUE_BYTES], tb[KNOB_VALUE_BYTES];
            a = b = base;
            if (knobs_set_at(&a, id, values[i / VALUES], SET_BY_TUNER, NULL) != 0 ||
                knobs_set_at(&b, id, values[i % VALUES], SET_BY_TUNER, NULL) != 0)
                continue;
            const bool same = strcmp(knobs_value(&a, id, ta), knobs_value(&b, id, tb)) == 0;
            assert_int_equal(knobs_same(&a, &b, id), same);
            assert_int_equal(knobs_equal(&a, &b), same);
            differ += !same;
        }
        if (knob_info(id)->type != KNOB_CHOICE)
            assert_true(differ > 0);
        for (int i = 0; i < knob_info(id)->n_choices; i++) {
            a = b = base;
            assert_int_equal(knobs_set_at(&a, id, knob_choice(id, i), SET_BY_TUNER, NULL), 0);
            assert_int_equal(knobs_set_at(&b, id, knob_choice(id, 0), SET_BY_TUNER, NULL), 0);
            assert_int_equal(knobs_equal(&a, &b), i == 0);
        }
    }
}

static void test_bounds(void **state) {
    (void)state;
    struct knobs k;
    knobs_init(&k);
    for (int i = 0; i < KNOB_COUNT; i++) {
        const struct knob_info *info = knob_info(i);
        if (info->type != KNOB_INT)
            continue;
        char text[64];
        snprintf(text, sizeof text, "%lld", (long long)info->least_int);
        assert_int_equal(knobs_set_at(&k, i, text, SET_BY_TUNER, NULL), 0);
        snprintf(text, sizeof text, "%lld", (long long)info->most_int);
        assert_int_equal(knobs_set_at(&k, i, text, SET_BY_TUNER, NULL), 0);
        struct knobs before = k;
        snprintf(text, sizeof text, "%lld", (long long)info->least_int - 1);
        assert_int_equal(knobs_set_at(&k, i, text, SET_BY_RECIPE, NULL), ERR_USAGE);
        if (info->most_int != INT64_MAX) {
            snprintf(text, sizeof text, "%lld", (long long)info->most_int + 1);
            assert_int_equal(knobs_set_at(&k, i, text, SET_BY_RECIPE, NULL), ERR_USAGE);
        }
        assert_true(knobs_equal(&k, &before)); // a refusal changes nothing
        assert_int_equal(k.by[i], SET_BY_TUNER);
    }
}

static void set(struct knobs *k, const char *assignment) {
    struct err e = {0};
    if (knobs_set_assignment(k, assignment, SET_BY_COMMAND_LINE, &e) != 0)
        fail_msg("%s: %s", assignment, e.text);
}

static void test_types(void **state) {
    (void)state;
    struct knobs k;
    knobs_init(&k);
    set(&k, "batch.micro=8");
    set(&k, "optim.lr=0.00025");
    set(&k, "optim.decay_all=yes");
    set(&k, "sched.kind=wsd");
    set(&k, "data.path=my data/a=b.txt"); // the first '=' separates name and value
    set(&k, "memory=6GiB");
    set(&k, "time=90s");
    assert_int_equal(k.batch_micro, 8);
    assert_true(k.optim_lr == 0.00025);
    assert_true(k.optim_decay_all);
    assert_int_equal(k.sched_kind, SCHED_WSD);
    assert_string_equal(k.data_path, "my data/a=b.txt");
    assert_true(k.memory == (uint64_t)6 << 30);
    assert_true(k.time == UINT64_C(90000000000));
    assert_int_equal(k.by[KNOB_batch_micro], SET_BY_COMMAND_LINE);
    char value[KNOB_VALUE_BYTES];
    assert_string_equal(knobs_value(&k, KNOB_optim_lr, value), "0.00025");
    assert_string_equal(knobs_value(&k, KNOB_memory, value), "6GiB");
    assert_string_equal(knobs_value(&k, KNOB_time, value), "90s");
    assert_string_equal(knobs_value(&k, KNOB_optim_decay_all, value), "true");
    assert_string_equal(knobs_value(&k, KNOB_sched_kind, value), "wsd");
    assert_string_equal(knob_choice(KNOB_cpu_isa, CPU_ISA_AVX2), "avx2");
    assert_string_equal(knob_choice(KNOB_cpu_isa, 99), "");
    assert_string_equal(knob_choice(KNOB_seed, 0), "");
    set(&k, "memory=6000000000");
    assert_string_equal(knobs_value(&k, KNOB_memory, value), "6GB");
    set(&k, "memory=18446744073709551615");
    assert_string_equal(knobs_value(&k, KNOB_memory, value), "18446744073709551615B");
    assert_string_equal(knobs_value(&k, KNOB_save_every, value), "10m");
    set(&k, "save.every=1.5s");
    assert_true(k.save_every == -1500000000);
    assert_string_equal(knobs_value(&k, KNOB_save_every, value), "1500ms");
    set(&k, "save.every=500");
    assert_true(k.save_every == 500);
    assert_string_equal(knobs_value(&k, KNOB_save_every, value), "500");
    set(&k, "save.every=0s");
    assert_true(k.save_every == 0 && knobs_saves(&k));
    set(&k, "save.last=false");
    assert_false(knobs_saves(&k));
    static const char *const numbers[] = {"1e-8", "3e-4", "0.1",  "12.5",   "100",
                                          "0.3",  "1e50", "1000", "120000", "0.30000000000000004"};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        assert_int_equal(knobs_set(&k, "optim.clip", numbers[i], SET_BY_RECIPE, NULL), 0);
        const char *text = knobs_value(&k, KNOB_optim_clip, value);
        assert_string_equal(text, strcmp(numbers[i], "3e-4") ? numbers[i] : "0.0003");
    }
    set(&k, "optim.decay=-0.0");
    assert_string_equal(knobs_value(&k, KNOB_optim_decay, value), "0");
}

// Each error names the knob, the value and what is accepted.
static void test_messages(void **state) {
    (void)state;
    static const struct {
        const char *assignment, *says[4];
    } cases[] = {
        {"batch.micro=0", {"batch.micro", "'0'", "1 to 65536"}},
        {"batch.micro=four", {"batch.micro", "'four'", "whole number"}},
        {"batch.micro=", {"batch.micro", "''", "1 to 65536"}},
        {"batch.micro=99999999999999999999", {"1 to 65536"}},
        {"optim.lr=nan", {"optim.lr", "'nan'", "0 to 100"}},
        {"optim.beta1=1", {"0 to 0.999999"}},
        {"optim.clip=-1", {"optim.clip", "0 or more"}},
        {"resume=maybe", {"resume", "true, false"}},
        {"sched.kind=cosin", {"sched.kind", "did you mean 'cosine'", "constant, linear"}},
        {"sched.kind=Q", {"constant, linear, cosine, wsd"}},
        {"memory=lots", {"memory", "6GiB"}},
        {"time=3", {"time", "3m"}},
        {"save.every=often", {"save.every", "'often'", "a number of steps or a time"}},
        {"save.every=-3", {"save.every", "0 to 1000000000 steps, or a duration"}},
        {"save.every=300y", {"save.every", "10m"}},
        {"batch.mirco=4", {"batch.mirco", "did you mean 'batch.micro'"}},
        {"batch=4", {"group", "batch.micro", "batch.accum"}},
        {"zzzzzzzz=4", {"zzzzzzzz", "haggle knobs"}},
        {"batch.micro", {"knob=value"}},
        {"=4", {"knob=value"}},
        {"", {"knob=value"}},
        {"data.path=a\nb", {"data.path", "cannot be printed"}},
        {"data.path=\xff", {"data.path", "UTF-8"}},
        {"data.path=\xe2\x82", {"UTF-8"}},
        {"data.path=\xc0\xaf", {"UTF-8"}},
        {"data.path=\xed\xa0\x80", {"UTF-8"}},
        {"data.path=\xf4\x90\x80\x80", {"UTF-8"}},
        {"data.path=\xe2\x80\xa8", {"cannot be printed"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct knobs k, before;
        struct err e = {0};
        knobs_init(&k);
        before = k;
        assert_int_equal(knobs_set_assignment(&k, cases[i].assignment, SET_BY_RECIPE, &e),
                         ERR_USAGE);
        for (int j = 0; j < 4 && cases[i].says[j]; j++)
            if (!strstr(e.text, cases[i].says[j]))
                fail_msg("%s: '%s' does not say '%s'", cases[i].assignment, e.text,
                         cases[i].says[j]);
        assert_true(knobs_equal(&k, &before));
    }
}

static void test_long_values(void **state) {
    (void)state;
    struct knobs k;
    struct err e = {0};
    knobs_init(&k);
    char text[4096];
    memset(text, 'a', sizeof text);
    text[sizeof text - 1] = '\0';
    assert_int_equal(knobs_set(&k, "data.path", text, SET_BY_RECIPE, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "longer"));
    assert_int_equal(knobs_set(&k, text, "1", SET_BY_RECIPE, &e), ERR_USAGE);
    assert_int_equal(knobs_set_assignment(&k, text, SET_BY_RECIPE, &e), ERR_USAGE);
    text[2000] = '=';
    assert_int_equal(knobs_set_assignment(&k, text, SET_BY_RECIPE, &e), ERR_USAGE);
    // The message says what is accepted, even if the value is long.
    assert_int_equal(knobs_set(&k, "seq", text, SET_BY_RECIPE, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "1 to 1048576"));
    text[KNOB_STRING_BYTES - 1] = '\0';
    assert_int_equal(knobs_set(&k, "data.path", text, SET_BY_RECIPE, &e), 0);
    assert_string_equal(k.data_path, text);
    assert_int_equal(knobs_set_at(&k, KNOB_COUNT, "1", SET_BY_RECIPE, &e), ERR_INTERNAL);
    assert_int_equal(knobs_set_at(&k, -1, "1", SET_BY_RECIPE, NULL), ERR_INTERNAL);
}

static void test_hash(void **state) {
    (void)state;
    struct knobs a, b;
    char ha[HASH_TEXT_BYTES], hb[HASH_TEXT_BYTES];
    knobs_init(&a);
    knobs_init(&b);
#define SAME(effects)                                                                              \
    (knobs_hash(&a, effects, ha, NULL) == 0 && knobs_hash(&b, effects, hb, NULL) == 0 &&           \
     strcmp(ha, hb) == 0)
    assert_true(SAME(KNOB_EFFECTS));
    set(&b, "batch.micro=4"); // the source does not matter
    assert_true(SAME(KNOB_EFFECTS));
    set(&b, "threads=1");
    assert_true(SAME(KNOB_MATH));
    assert_false(SAME(KNOB_SPEED));
    assert_false(SAME(KNOB_EFFECTS));
    knobs_init(&b);
    set(&b, "optim.lr=0.5");
    assert_false(SAME(KNOB_MATH));
    assert_true(SAME(KNOB_MEMORY));
    // Another split of the same batch has the same mathematics but another speed.
    knobs_init(&b);
    set(&a, "batch.micro=4");
    set(&a, "batch.accum=2");
    set(&b, "batch.micro=1");
    set(&b, "batch.accum=8");
    assert_true(SAME(KNOB_MATH));
    assert_false(SAME(KNOB_SPEED));
    assert_false(SAME(KNOB_MATH | KNOB_SPEED));
    set(&b, "batch.accum=4");
    assert_false(SAME(KNOB_MATH));
#undef SAME
}

static void test_idle(void **state) {
    (void)state;
    struct knobs k;
    knobs_init(&k);
    assert_non_null(knobs_idle(&k, KNOB_sched_decay));
    assert_null(knobs_idle(&k, KNOB_eval_batches));
    assert_null(knobs_idle(&k, KNOB_data_workers));
    assert_null(knobs_idle(&k, KNOB_data_ram));
    set(&k, "tokenizer=bytes");
    assert_non_null(knobs_idle(&k, KNOB_data_ram));
    set(&k, "data.path=notes.txt");
    assert_null(knobs_idle(&k, KNOB_data_ram));
    set(&k, "sched.kind=wsd");
    assert_null(knobs_idle(&k, KNOB_sched_decay));
    set(&k, "sched.kind=constant");
    set(&k, "data.val=0");
    set(&k, "data.prefetch=0");
    set(&k, "optim.decay=0");
    assert_non_null(knobs_idle(&k, KNOB_sched_min));
    assert_non_null(knobs_idle(&k, KNOB_eval_every));
    assert_non_null(knobs_idle(&k, KNOB_eval_batches));
    assert_non_null(knobs_idle(&k, KNOB_data_workers));
    assert_non_null(knobs_idle(&k, KNOB_optim_decay_all));
    set(&k, "eval.every=0");
    assert_null(knobs_idle(&k, KNOB_eval_every)); // 0 turns validation off, which is an effect
}

// steps and epochs both say how long a run is: one of them decides.
static void test_length(void **state) {
    (void)state;
    struct knobs k;
    struct err e = {0};
    for (int first = 0; first < 2; first++) {
        const char *texts[2] = {"steps=5", "epochs=2"};
        knobs_init(&k);
        set(&k, texts[first]);
        assert_int_equal(knobs_set_assignment(&k, texts[!first], SET_BY_COMMAND_LINE, &e),
                         ERR_USAGE);
        assert_non_null(strstr(e.text, "set steps or epochs, not both"));
        assert_true(first ? k.epochs == 2 && k.steps == 200 : k.steps == 5 && k.epochs == 0);
        set(&k, texts[first]); // the same one again is accepted
    }
    // A command line replaces what a recipe says.
    knobs_init(&k);
    assert_int_equal(knobs_set(&k, "epochs", "3", SET_BY_RECIPE, &e), 0);
    assert_non_null(knobs_idle(&k, KNOB_steps));
    set(&k, "steps=7");
    assert_true(k.epochs == 0 && k.steps == 7 && k.by[KNOB_epochs] == SET_BY_DEFAULT);
    knobs_init(&k);
    assert_int_equal(knobs_set(&k, "steps", "9", SET_BY_RECIPE, &e), 0);
    set(&k, "epochs=0"); // off, so that steps decides
    assert_null(knobs_idle(&k, KNOB_steps));
    set(&k, "epochs=1.5");
    assert_true(k.epochs == 1.5);
    assert_int_equal(knobs_set(&k, "epochs", "x", SET_BY_RECIPE, &e), ERR_USAGE);
}

static void test_run_name(void **state) {
    (void)state;
    static const struct {
        const char *recipe, *model, *dir;
    } cases[] = {
        {NULL, "tiny", "runs/tiny"},
        {NULL, "qwen2-0.5b", "runs/qwen2-0.5b"},
        {NULL, "/models/llama-1b/", "runs/llama-1b"},
        {NULL, "/", "runs/default"},
        {NULL, "..", "runs/default"},
        {NULL, "", "runs/default"},
        {"recipes/demo.yaml", "tiny", "runs/demo"},
        {"my.run.yaml", "tiny", "runs/my.run"},
        {".yaml", "tiny", "runs/.yaml"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct knobs k;
        knobs_init(&k);
        assert_int_equal(knobs_set(&k, "model", cases[i].model, SET_BY_RECIPE, NULL), 0);
        assert_int_equal(knobs_name_run(&k, cases[i].recipe, NULL), 0);
        assert_string_equal(k.run_dir, cases[i].dir);
        assert_int_equal(k.by[KNOB_run_dir], SET_BY_DEFAULT);
    }
    struct knobs k;
    knobs_init(&k);
    set(&k, "run.dir=here");
    assert_int_equal(knobs_name_run(&k, "x.yaml", NULL), 0);
    assert_string_equal(k.run_dir, "here");
}

// Names and values of other tools: what to type, in the form of the command line or of a recipe.
static void test_elsewhere(void **state) {
    (void)state;
    static const struct {
        const char *name, *value, *says, *in_yaml;
    } cases[] = {
        {"learning_rate", "2e-5", "is optim.lr here; write optim.lr=2e-5", "optim.lr: 2e-5"},
        {"Learning-Rate", NULL, "write optim.lr=0.0003", "optim.lr: 0.0003"},
        {"per_device_train_batch_size", "8", "write batch.micro=8", "batch.micro: 8"},
        {"gradient_accumulation_steps", "4", "write batch.accum=4", "batch.accum: 4"},
        {"max_steps", "-1", "which takes 0 to 1000000000", "steps: 200"},
        {"block_size", "256", "write seq=256", "seq: 256"},
        {"bf16", "true", "write precision=bf16", "precision: bf16"},
        {"bf16", "False", "write precision=fp32", "precision: fp32"},
        {"warmup_ratio", "0.03", "write sched.warmup=N; it is a number of steps", "warmup: N"},
        {"gradient_checkpointing", "true", "write recompute.mode=full", "recompute.mode: full"},
        {"lr_scheduler_type", "polynomial", "constant, linear, cosine, wsd", "sched.kind: cosine"},
        {"output_dir", "out", "write run.dir=out", "run.dir: out"},
        {"data", "chat.jsonl", "write data.path=chat.jsonl", "data.path: chat.jsonl"},
        {"lora_alpha", "32", "write lora.alpha=32", "lora.alpha: 32"},
        {"lora_r", "16", "write lora.rank=16", "lora.rank: 16"},
        {"use_lora", "true", "write lora.rank=16", "lora.rank: 16"},
        {"use_lora", "false", "write lora.rank=0", "lora.rank: 0"},
        {"use_rslora", "true", "write lora.rslora=true", "lora.rslora: true"},
        {"lora_target_modules", "q_proj,v_proj", "write lora.targets=q_proj,v_proj",
         "lora.targets: q_proj"},
        {"modules_to_save", "lm_head", "write train.also=lm_head", "train.also: lm_head"},
        {"qlora", "true", "8 or 4 bits are not there yet", "not there yet"},
        {"optim", "adamw_torch", "the optimizer is AdamW", "AdamW"},
    };
    char out[KNOB_ELSEWHERE_BYTES];
    struct knobs k;
    struct err e = {0};
    knobs_init(&k);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *name = cases[i].name, *value = cases[i].value;
        assert_non_null(knob_elsewhere(name, value, SET_BY_COMMAND_LINE, out));
        if (!strstr(out, cases[i].says))
            fail_msg("%s: '%s' is not in: %s", name, cases[i].says, out);
        assert_non_null(knob_elsewhere(name, value, SET_BY_RECIPE, out));
        if (!strstr(out, cases[i].in_yaml))
            fail_msg("%s: '%s' is not in: %s", name, cases[i].in_yaml, out);
        assert_int_equal(knobs_set(&k, name, value ? value : "1", SET_BY_RECIPE, &e), ERR_USAGE);
        assert_non_null(strstr(e.text, name));
    }
    // The length of a run: the knob for epochs where there is one, else steps.
    assert_non_null(knob_elsewhere("num_train_epochs", "3", SET_BY_COMMAND_LINE, out));
    assert_non_null(strstr(out, knob_find("epochs") >= 0 ? "write epochs=3" : "write steps=N"));
    assert_null(knob_elsewhere("optim.lr", "1", SET_BY_RECIPE, out));
    assert_null(knob_elsewhere("learning", "1", SET_BY_RECIPE, out));
    assert_null(knob_elsewhere("", "1", SET_BY_RECIPE, out));
    assert_non_null(knob_value_elsewhere(KNOB_device, "mps", out));
    assert_non_null(strstr(out, "Mac"));
    assert_non_null(knob_value_elsewhere(KNOB_precision, "bfloat16", out));
    assert_non_null(strstr(out, "that is 'bf16' here"));
    assert_null(knob_value_elsewhere(KNOB_device, "cpu", out));
    // The longest name and value still leave room for the sentence.
    char wide[600];
    memset(wide, 'x', sizeof wide - 1);
    wide[sizeof wide - 1] = '\0';
    assert_non_null(knob_elsewhere("output_dir", wide, SET_BY_RECIPE, out));
    assert_null(knob_elsewhere(wide, wide, SET_BY_RECIPE, out));
}

static void test_select(void **state) {
    (void)state;
    bool selected[KNOB_COUNT];
    struct err e = {0};
    const char *both[] = {"optim", "learning_rate", "seq"}, *bad[] = {"seq", "sqe"};
    assert_int_equal(knobs_select(NULL, 0, selected, &e), 0);
    assert_true(selected[0] && selected[KNOB_COUNT - 1]);
    assert_int_equal(knobs_select(both, 3, selected, &e), 0);
    assert_true(selected[KNOB_optim_lr] && selected[KNOB_optim_state] && selected[KNOB_seq]);
    assert_false(selected[KNOB_fuse_optim] || selected[KNOB_steps]);
    assert_int_equal(knobs_select(bad, 2, selected, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "did you mean 'seq'?"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fields_derive_from_names),
        cmocka_unit_test(test_groups_are_neighbours),
        cmocka_unit_test(test_every_line_is_complete),
        cmocka_unit_test(test_same_is_as_written),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_long_values),
        cmocka_unit_test(test_hash),
        cmocka_unit_test(test_idle),
        cmocka_unit_test(test_length),
        cmocka_unit_test(test_run_name),
        cmocka_unit_test(test_elsewhere),
        cmocka_unit_test(test_select),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
