// test_layout_free.c - checkpoints do not depend on how ranks share the work: what one layout
// saves, every other loads, and what it then saves is the same files, byte for byte. Training goes
// on from them where it was.
#include "harness.h"

#include "train/crew.h"

#include <signal.h>
#include <sys/resource.h>

static const char *const LAYOUTS[] = {
    "batch.accum=8",
    "ranks=2 batch.accum=4",
    "ranks=4 batch.accum=2 zero.stage=1",
    "ranks=2 batch.accum=4 zero.stage=2",
    "ranks=8 batch.accum=1 zero.stage=3",
    "parallel.tensor=2 batch.accum=8",
    "parallel.tensor=4 ranks=8 zero.stage=3 batch.accum=4",
    "parallel.pipe=4 batch.accum=8",
    "parallel.pipe=2 pipe.schedule=interleaved batch.accum=8 fuse.qkv=false",
    "ranks=8 parallel.tensor=2 parallel.pipe=2 zero.stage=1 batch.accum=4",
};
enum { N_LAYOUTS = sizeof LAYOUTS / sizeof *LAYOUTS };

// Weights that nothing divides, norms smaller than a block, and matrices large enough for 8 bits.
static void make_model(const struct scratch *s, const char *family, char dir[400]) {
    struct model_shape shape;
    struct err e = {0};
    assert_worked(model_shape_builtin(&shape, family, &e), &e);
    shape.vocab = 127;
    shape.layers = 5;
    shape.heads = shape.kv_heads = 8;
    shape.head_dim = 8;
    shape.width = 64;
    shape.ffn = 96;
    shape.max_positions = 64;
    shape.bos_id = shape.eos_id = 0;
    snprintf(dir, 400, "%s/%s", s->dir, family);
    write_model(dir, &shape, POISON_NONE);
}

static void set_all(struct knobs *k, const char *assignments) {
    char copy[400], *rest = copy;
    struct err e = {0};
    snprintf(copy, sizeof copy, "%s", assignments);
    for (char *one; (one = strsep(&rest, " ")) != NULL;)
        if (*one)
            assert_worked(knobs_set_assignment(k, one, SET_BY_COMMAND_LINE, &e), &e);
}

static void init(struct knobs *k, const char *model, const char *run_dir, const char *settings) {
    knobs_init(k);
    snprintf(k->model, sizeof k->model, "%s", model);
    snprintf(k->run_dir, sizeof k->run_dir, "%s", run_dir);
    set_all(k,
            "seq=16 batch.micro=1 sched.warmup=2 optim.lr=3e-3 eval.every=0 threads=1 device=cpu "
            "sched.kind=constant cpu.blas=builtin data.cache=none comm.bucket=64KiB save.every=0 "
            "comm.timeout=10m data.path=");
    snprintf(k->data_path, sizeof k->data_path, "%s/ids.jsonl", model);
    set_all(k, settings);
}

// Records of token ids: the model has no tokenizer.
static void write_ids(const char *model) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/ids.jsonl", model);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int i = 0; i < 200; i++) {
        fprintf(f, "{\"input_ids\": [");
        for (int k = 0; k < 12 + i % 7; k++)
            fprintf(f, "%s%d", k ? ", " : "", (i * 31 + k * k * 7) % 127);
        fprintf(f, "]}\n");
    }
    assert_int_equal(fclose(f), 0);
}

struct losses {
    double of[32];
    uint64_t position, tokens;
};

static int on_step(void *arg, const struct train_step *step, struct err *e) {
    struct losses *l = arg;
    (void)e;
    l->of[step->step - 1] = step->loss;
    return 0;
}

static void on_end(void *arg, const struct train_result *r) {
    struct losses *l = arg;
    l->position = r->state.position;
    l->tokens = r->state.trained_tokens;
}

static void train(const char *model, const char *run_dir, const char *settings,
                  struct losses *out) {
    struct knobs k;
    struct err e = {0};
    const struct trainer_options o = {
        .observer = {.arg = out, .on_step = on_step, .on_end = on_end}};
    init(&k, model, run_dir, settings);
    if (crew_train(&k, &o, &e) != 0)
        fail_msg("%s: %s", settings, e.text);
}

// Loads the newest checkpoint of `from` under a layout and saves it in `to`.
struct passing {
    struct knobs knobs;
    const char *from, *to;
    rlim_t most; // while it saves, no file may have more bytes; 0: no such limit
};

static void limit_files(rlim_t most) {
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = most;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static int pass_rank(void *arg, struct comm *c, struct err *e) {
    const struct passing *x = arg;
    struct engine *g = NULL;
    struct plan p = {.prefix = ""};
    struct train_state state = {0};
    struct checkpoint_dir *from = NULL, *to = NULL;
    struct checkpoint_saved saved;
    char path[PATH_MAX] = "";
    int rc = plan_run_rank(&p, &x->knobs, c ? c->rank : 0, e);
    if (rc == 0)
        rc = engine_start(&g, &(struct engine_options){.comm = c}, &p, e);
    const struct checkpoint_options in = {.run_dir = x->from, .resume = true, .comm = c},
                                    out = {.run_dir = x->to,
                                           .save = true,
                                           .resume = true,
                                           .keep = 1,
                                           .comm = c};
    if (rc == 0)
        rc = checkpoint_dir_open(&from, &in, e);
    if (rc == 0)
        rc = checkpoint_load_newest(from, g->session, "", &state, NULL, path, e);
    if (rc == 0 && path[0] == '\0')
        rc = err_set(e, ERR_IO, "there is no checkpoint");
    if (rc == 0)
        rc = comm_agree(c, checkpoint_dir_open(&to, &out, e), NULL, 0, e);
    if (rc == 0 && x->most > 0 && c->rank == 0)
        limit_files(x->most);
    if (rc == 0)
        rc = comm_agree(c, 0, NULL, 0, e); // the limit is that of all
    if (rc == 0)
        rc = checkpoint_save(to, g->session, &state, NULL, NULL, &saved, e);
    if (rc != 0 && c)
        c->give_up(c, e->text);
    if (c)
        c->close(c);
    checkpoint_dir_close(from);
    checkpoint_dir_close(to);
    engine_close(g);
    plan_free(&p);
    return rc;
}

static void pass(const char *model, const char *from, const char *to, const char *settings) {
    struct passing x = {.from = from, .to = to};
    struct err e = {0};
    init(&x.knobs, model, to, settings);
    if (comm_job_run((int)knobs_world(&x.knobs), 60000000000u, pass_rank, &x, &e) != 0)
        fail_msg("from %s, %s: %s", from, settings, e.text);
}

static void test_every_layout_reads_every_other(void **state) {
    static const char *const families[] = {"tiny", "gpt2-124m", "qwen3-0.6b"},
                             *const types[] = {"", " precision=bf16 optim.state=bf16"};
    char model[400], run[400], copy[400];
    for (size_t f = 0; f < 3; f++) {
        make_model(*state, families[f], model);
        write_ids(model);
        for (int from = 0; from < N_LAYOUTS; from++) {
            char settings[400];
            struct losses losses;
            snprintf(settings, sizeof settings, "%s steps=2%s", LAYOUTS[from], types[f % 2]);
            snprintf(run, sizeof run, "%.300s/run-%d", model, from);
            train(model, run, settings, &losses);
            for (int to = 0; to < N_LAYOUTS; to++) {
                // All pairs in the long test; otherwise each layout reads three others.
                if (!getenv("HAGGLE_TEST_LONG") && (to + from * 3 + (int)f) % 3 != 0)
                    continue;
                snprintf(settings, sizeof settings, "%s%s", LAYOUTS[to], types[f % 2]);
                snprintf(copy, sizeof copy, "%.300s/copy-%d-%d", model, from, to);
                pass(model, run, copy, settings);
                assert_same_tensors(run, copy, 2);
            }
        }
    }
}

// Replicas that hold the same bits in every stage of ZeRO go on with the same bits, and the
// sequences that follow are the same in every layout.
static void test_training_goes_on(void **state) {
    static const char *const then[] = {"ranks=2 batch.accum=4 zero.stage=1",
                                       "ranks=2 batch.accum=4 zero.stage=2",
                                       "ranks=2 batch.accum=4 zero.stage=3",
                                       "ranks=4 batch.accum=2 zero.stage=3",
                                       "parallel.tensor=2 batch.accum=8",
                                       "parallel.pipe=4 batch.accum=8",
                                       "batch.accum=8"};
    char model[400], whole[400], run[400];
    struct losses all, some;
    make_model(*state, "gpt2-124m", model);
    write_ids(model);
    snprintf(whole, sizeof whole, "%.300s/whole", model);
    train(model, whole, "ranks=2 batch.accum=4 steps=6", &all);
    for (size_t i = 0; i < sizeof then / sizeof *then; i++) {
        char settings[400];
        snprintf(run, sizeof run, "%.300s/half-%d", model, (int)i);
        train(model, run, "ranks=2 batch.accum=4 steps=3", &some);
        snprintf(settings, sizeof settings, "%s steps=6", then[i]);
        train(model, run, settings, &some);
        assert_true(some.position == all.position && some.tokens == all.tokens);
        if (i >= 3)
            for (int s = 3; s < 6; s++)
                if (!(fabs(some.of[s] / all.of[s] - 1) < 1e-4))
                    fail_msg("%s: loss of step %d is %.9g; without a stop it was %.9g", then[i],
                             s + 1, some.of[s], all.of[s]);
        if (i < 3)
            assert_same_tensors(run, whole, 6);
    }
}

// Replicas that train apart are saved where they are the same again: a save that is due waits for
// such a step. What goes on from there has the bits of a run that never ended.
static void test_replicas_apart(void **state) {
    char model[400], whole[400], run[400];
    struct losses all, some;
    make_model(*state, "tiny", model);
    write_ids(model);
    snprintf(whole, sizeof whole, "%.300s/apart-whole", model);
    snprintf(run, sizeof run, "%.300s/apart", model);
    train(model, whole, "ranks=2 batch.accum=4 comm.every=3 steps=9 save.every=4", &all);
    assert_true(file_exists(step_file(whole, 6, "")) && file_exists(step_file(whole, 9, "")));
    assert_false(file_exists(step_file(whole, 4, "")) || file_exists(step_file(whole, 8, "")));
    train(model, run, "ranks=2 batch.accum=4 comm.every=3 steps=6", &some);
    assert_same_tensors(run, whole, 6);
    train(model, run, "ranks=2 batch.accum=4 comm.every=3 steps=9", &some);
    assert_same_tensors(run, whole, 9);
    train(model, run, "batch.accum=8 steps=10", &some); // one rank reads it like any other
    assert_true(isfinite(some.of[9]));
}

// Blocks of 8-bit moments that ranks would divide are kept in float32. What is saved so is read in
// any layout, with nothing lost where the moments become wider.
static void test_moments_of_other_types(void **state) {
    char model[400], run[400], wide[400], back[400];
    struct losses all, some;
    make_model(*state, "gpt2-124m", model);
    write_ids(model);
    snprintf(run, sizeof run, "%.300s/int8", model);
    snprintf(wide, sizeof wide, "%.300s/wide", model);
    snprintf(back, sizeof back, "%.300s/back", model);
    train(model, run, "batch.accum=8 optim.state=int8 steps=4", &all);
    pass(model, run, wide, "parallel.tensor=2 batch.accum=8 optim.state=int8");
    pass(model, wide, back, "batch.accum=8 optim.state=int8");
    assert_same_file(step_file(run, 4, "model.safetensors"),
                     step_file(wide, 4, "model.safetensors"));
    // A code's own value is rounded to that code again.
    assert_same_tensors(run, back, 4);
    struct err e = {0};
    struct safetensors *st;
    assert_worked(safetensors_open(&st, step_file(wide, 4, "optimizer.safetensors"), &e), &e);
    const struct safetensors_entry *divided =
        safetensors_find(st, "adam.m.transformer.h.0.attn.c_attn.weight");
    assert_non_null(divided);
    assert_int_equal(divided->dtype, DTYPE_F32);
    safetensors_close(st);
    train(model, wide,
          "ranks=4 parallel.tensor=2 batch.accum=4 optim.state=int8 zero.stage=1 steps=7", &some);
    train(model, run, "batch.accum=8 optim.state=int8 steps=7", &all);
    for (int s = 4; s < 7; s++)
        if (!(fabs(some.of[s] / all.of[s] - 1) < 2e-3))
            fail_msg("loss of step %d is %.9g and %.9g", s + 1, some.of[s], all.of[s]);
}

static int count_name(void *arg, const char *name) {
    (void)name;
    ++*(int *)arg;
    return 0;
}

// A file that cannot grow makes the save fail for all ranks. What was there before stays, and
// nothing else is left.
static void test_a_save_fails_for_all(void **state) {
    char model[400], run[400], copy[400], path[PATH_MAX];
    struct losses losses;
    struct passing x = {0};
    struct err e = {0};
    int names = 0;
    make_model(*state, "tiny", model);
    write_ids(model);
    snprintf(run, sizeof run, "%.300s/saved", model);
    snprintf(copy, sizeof copy, "%.300s/full", model);
    train(model, run, "ranks=2 batch.accum=4 zero.stage=1 steps=2", &losses);
    pass(model, run, copy, "ranks=2 batch.accum=4 zero.stage=1");
    x = (struct passing){.from = run, .to = copy, .most = 10000};
    init(&x.knobs, model, copy, "ranks=2 batch.accum=4 zero.stage=1");
    signal(SIGXFSZ, SIG_IGN);
    const int rc = comm_job_run(2, 60000000000u, pass_rank, &x, &e);
    limit_files(RLIM_INFINITY);
    assert_failed(rc, ERR_IO, &e, "File too large");
    assert_same_tensors(run, copy, 2);
    snprintf(path, sizeof path, "%s/checkpoints", copy);
    err_clear(&e);
    assert_worked(file_list_dir(path, count_name, &names, &e), &e);
    assert_int_equal(names, 1);
}

// A checkpoint that is damaged is refused by all ranks, and stays as it is.
static void test_a_load_fails_for_all(void **state) {
    char model[400], run[400], path[PATH_MAX];
    struct losses losses;
    struct passing x = {0};
    struct err e = {0};
    make_model(*state, "tiny", model);
    write_ids(model);
    snprintf(run, sizeof run, "%.300s/cut", model);
    train(model, run, "ranks=2 batch.accum=4 zero.stage=1 steps=2", &losses);
    x = (struct passing){.from = run, .to = run};
    init(&x.knobs, model, run, "ranks=2 batch.accum=4 zero.stage=1");
    snprintf(path, sizeof path, "%s", step_file(run, 2, "optimizer.safetensors"));
    assert_int_equal(truncate(path, 100), 0);
    assert_failed(comm_job_run(2, 60000000000u, pass_rank, &x, &e), ERR_FORMAT, &e,
                  "optimizer.safetensors|none of the 1 checkpoints");
    assert_true(file_exists(step_file(run, 2, "model.safetensors")));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_layout_reads_every_other),
        cmocka_unit_test(test_training_goes_on),
        cmocka_unit_test(test_replicas_apart),
        cmocka_unit_test(test_moments_of_other_types),
        cmocka_unit_test(test_a_save_fails_for_all),
        cmocka_unit_test(test_a_load_fails_for_all),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
