// test_noise_ranks.c - the gradient noise scale with several ranks: every layout measures what one
// rank measures of the same micro-batches, all ranks have the same numbers, and steps that measure
// train what others train, to the bit and in the planned bytes.
#include "ranks_job.h"

#include "train/crew.h"
#include "train/noise.h"

// ---------------------------------------------------------------- programs

// Every way in which gradients are made: whole or in windows, summed during the backward, after it,
// or after every micro-batch; once per step or never; with weights that several ranks hold.
static const struct {
    const char *words;
    int twin; // a layout before it whose bits it has; -1: none
} layouts[] = {
    {"batch.accum=4", -1},
    {"data=2 batch.accum=4", -1},
    {"data=2 batch.accum=4 zero=1", 1},
    {"data=2 batch.accum=4 zero=2", 1},
    {"data=2 batch.accum=4 zero=3", 1},
    {"data=2 batch.accum=4 late bucket=0", 1},
    {"data=2 batch.accum=4 micro", -1},
    {"data=2 batch.accum=4 micro zero=2", 6},
    {"data=4 batch.accum=1", -1},
    {"data=4 batch.accum=1 late", 8},
    {"data=4 batch.accum=1 zero=1", 8},
    {"data=4 batch.accum=1 zero=2", 8},
    {"data=4 batch.accum=1 zero=3", 8},
    {"data=4 batch.accum=1 zero=3 recompute.mode=full logits.chunk=7", -1},
    {"tensor=2 batch.accum=2", -1},
    {"tensor=2 sequence batch.accum=2", -1},
    {"tensor=4 fuse.qkv=false batch.accum=3", -1},
    {"pipe=2 batch.accum=4 schedule=gpipe", -1},
    {"pipe=2 batch.accum=4", 17},
    {"pipe=4 batch.accum=4 schedule=interleaved", -1},
    {"data=2 pipe=2 batch.accum=1", -1},
    {"data=2 pipe=2 batch.accum=1 zero=1", 20},
    {"data=2 tensor=2 sequence batch.accum=1 zero=3", -1},
    {"data=2 tensor=2 sequence pipe=2 batch.accum=2 zero=1 schedule=interleaved", -1},
    {"data=2 batch.accum=2 every=3", -1},
    {"data=2 tensor=2 batch.accum=2 every=2", -1},
};
enum { LAYOUTS = sizeof layouts / sizeof *layouts, TAKEN = 3 };

static struct job *measuring(const struct knobs *k, const char *words, const char *more) {
    char all[300];
    snprintf(all, sizeof all, "%s noise.every=1 %s", words, more);
    struct job *j = job_new(k, all, TAKEN);
    job_plan(j);
    if (job_error(j))
        fail_msg("%s is refused: %s", all, job_error(j)->text);
    job_check(j, PLAN_NOISE, all);
    job_train(j, all);
    return j;
}

// The first micro-batch's norm on a replica, times the share of the step's tokens that it has, is
// the norm of a step on that micro-batch alone.
static void check_norms(const struct knobs *k, const struct job *j, const char *words) {
    const int replicas = j->split.data;
    const double parts = (double)j->knobs.batch_accum * (j->split.every > 1 ? 1 : (double)replicas);
    for (int i = 0; i < replicas; i++) {
        char alone[64];
        snprintf(alone, sizeof alone, "batch.accum=1 as=%d of=%d", i, replicas);
        struct job *one = job_of(k, alone, 1);
        const double expected = one->norms[0][0], seen = j->first[0][0][i] * parts;
        if (!(expected > 0) || !(fabs(seen / expected - 1) <= 1e-5))
            fail_msg("%s: replica %d measured %.9g, alone the micro-batch gives %.9g", words, i,
                     seen, expected);
        if (j->split.every > 1)
            for (int s = 0; s < TAKEN; s += 2)
                assert_true(j->own[0][s][i] == j->norms[i * j->split.tensor][s]);
        job_end(one);
    }
}

// Only a weight that ranks of a replica share costs more than a few numbers: a second gradient.
static void check_cost(const struct job *j, const struct job *plain, const char *words) {
    for (int i = 0; i < j->ranks; i++) {
        const struct program *p = plan_program(&j->plans[i], PLAN_NOISE);
        const uint64_t has = j->plans[i].layout.arena_bytes,
                       had = plain->plans[i].layout.arena_bytes;
        uint64_t shared = 0;
        for (int t = 0; t < p->n_tensors; t++)
            if (strncmp(p->tensors[t].name, "noise.d.", 8) == 0)
                shared += p->tensors[t].bytes + 256;
        if (has > had + shared + 4096)
            fail_msg("%s: rank %d needs %llu bytes more", words, i,
                     (unsigned long long)(has - had));
    }
}

static void check_layouts(const struct knobs *k) {
    struct job *jobs[LAYOUTS];
    for (int i = 0; i < LAYOUTS; i++) {
        const char *words = layouts[i].words;
        const int twin = layouts[i].twin;
        struct job *j = jobs[i] = measuring(k, words, ""), *plain = job_of(k, words, TAKEN),
                   *seen = measuring(k, words, "checking");
        assert_same(j, plain, words);
        assert_same(j, seen, words);
        check_norms(k, j, words);
        check_cost(j, plain, words);
        for (int s = 0; s < TAKEN; s++)
            assert_true((j->first[0][s][0] > 0) == (s % 2 == 0));
        assert_memory_equal(j->first[0], seen->first[0], sizeof j->first[0]);
        if (twin >= 0 && memcmp(j->first[0], jobs[twin]->first[0], sizeof j->first[0]) != 0)
            fail_msg("%s measures %.17g, and %s %.17g", words, j->first[0][0][0],
                     layouts[twin].words, jobs[twin]->first[0][0][0]);
        job_end(plain), job_end(seen);
    }
    for (int i = 0; i < LAYOUTS; i++)
        job_end(jobs[i]);
}

// A tied embedding exists on the first and the last stage.
static void test_layouts_tied(void **state) {
    struct knobs k;
    base_knobs(&k, *state, "gpt2-124m", 127, 9);
    check_layouts(&k);
}

// Norms of heads are shared by a tensor group.
static void test_layouts_heads(void **state) {
    struct knobs k;
    base_knobs(&k, *state, "qwen3-0.6b", 127, 9);
    check_layouts(&k);
}

// In 16 bits the weights that several ranks hold have wide gradients, and the loss is scaled.
static void test_narrow(void **state) {
    static const char *const words[] = {"data=2 tensor=2 pipe=2 batch.accum=2 zero=1",
                                        "data=4 batch.accum=1 zero=3"};
    struct knobs k;
    base_knobs(&k, *state, "tiny", 127, 5);
    for (int i = 0; i < 4; i++) {
        char all[200];
        snprintf(all, sizeof all, "%s scale=64 precision=%s", words[i / 2],
                 i % 2 ? "bf16" : "fp16");
        struct job *j = measuring(&k, all, ""), *plain = job_of(&k, all, TAKEN);
        assert_same(j, plain, all);
        job_end(j), job_end(plain);
    }
}

// ---------------------------------------------------------------- runs

enum { MEASURED = 6, SEQUENCES = 64 };

struct heard { // by rank 0
    struct noise_estimate noise;
    double norm[SEQUENCES], loss[SEQUENCES];
    int64_t tokens[SEQUENCES];
    int steps, told;
};

static int hear(void *arg, const struct train_step *s, struct err *e) {
    struct heard *h = arg;
    (void)e;
    h->norm[h->steps] = s->grad_norm;
    h->loss[h->steps] = s->loss;
    h->tokens[h->steps] = s->trained_tokens;
    h->told += s->noise != NULL;
    if (s->noise)
        h->noise = *s->noise;
    h->steps++;
    return 0;
}

// Records of different lengths, of which only the answers are trained: micro-batches differ in
// tokens.
static void train_knobs(struct knobs *k, const struct scratch *s, int records) {
    static const char *const words[] = {"tokenizer=bytes", "data.cache=none",  "data.pack=none",
                                        "data.val=0",      "eval.every=0",     "save.every=0",
                                        "save.last=false", "optim.lr=0",       "batch.micro=1",
                                        "seq=64",          "generate.tokens=0"};
    struct err e = {0};
    char path[320], line[200];
    snprintf(path, sizeof path, "%s/noise%d.jsonl", s->dir, records);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int i = 0; i < records; i++) {
        snprintf(line, sizeof line, "{\"prompt\": \"%d?\", \"completion\": \"%.*s\"}\n", i,
                 3 + i * 7 % 40, "an answer that is cut off somewhere, not at its end");
        fputs(line, f);
    }
    assert_int_equal(fclose(f), 0);
    base_knobs(k, s, "tiny", 300, 5);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        assert_worked(knobs_set_assignment(k, words[i], SET_BY_COMMAND_LINE, &e), &e);
    snprintf(k->data_path, sizeof k->data_path, "%s", path);
}

static void train(const struct knobs *base, const char *settings, struct heard *h) {
    struct knobs k = *base;
    char copy[300], *rest = copy;
    struct err e = {0};
    const struct trainer_options o = {.observer = {.arg = h, .on_step = hear}};
    memset(h, 0, sizeof *h);
    snprintf(copy, sizeof copy, "%s", settings);
    for (char *one; (one = strsep(&rest, " ")) != NULL;)
        assert_worked(knobs_set_assignment(&k, one, SET_BY_COMMAND_LINE, &e), &e);
    if (crew_train(&k, &o, &e) != 0)
        fail_msg("%s: %s", settings, e.text);
}

// From steps of one sequence each, whose weights never change: what `replicas` measure that take
// `accum` sequences each.
static struct noise_scale expected(const struct heard *alone, const struct heard *whole,
                                   int replicas, int accum) {
    struct noise_scale n = {0};
    for (int s = 0; s < MEASURED; s++) {
        const int first = s * replicas * accum;
        struct noise_sample x = {.sequences = replicas * accum,
                                 .all_square = whole->norm[s] * whole->norm[s],
                                 .all_tokens = (double)whole->tokens[s]};
        double per = 0;
        for (int i = first; i < first + replicas; i++) {
            x.small_square += alone->norm[i] * alone->norm[i] / replicas;
            per += 1 / (double)alone->tokens[i] / replicas;
        }
        x.small_tokens = 1 / per;
        assert_true(noise_add(&n, &x));
    }
    return n;
}

static void assert_close(double a, double b, double scale, const char *settings) {
    if (!(fabs(a - b) <= 1e-5 * fabs(scale)))
        fail_msg("%s: %.9g, expected %.9g", settings, a, b);
}

static void test_mean_of_replicas(void **state) {
    static const struct {
        const char *words;
        int replicas, accum;
    } cases[] = {
        {"batch.accum=4", 1, 4},
        {"parallel.tensor=2 batch.accum=4", 1, 4},
        {"parallel.pipe=2 batch.accum=4", 1, 4},
        {"parallel.data=2 batch.accum=2", 2, 2},
        {"parallel.data=4 batch.accum=1", 4, 1},
        {"parallel.data=4 batch.accum=1 zero.stage=3", 4, 1},
        {"parallel.data=2 parallel.pipe=2 parallel.tensor=2 batch.accum=2 zero.stage=1", 2, 2},
    };
    struct knobs k;
    struct heard alone, whole, h;
    char words[200];
    train_knobs(&k, *state, SEQUENCES);
    snprintf(words, sizeof words, "steps=%d batch.accum=1", 4 * MEASURED);
    train(&k, words, &alone);
    snprintf(words, sizeof words, "steps=%d batch.accum=4", MEASURED);
    train(&k, words, &whole);
    assert_true(alone.tokens[0] != alone.tokens[1] && alone.tokens[1] != alone.tokens[2]);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(words, sizeof words, "steps=%d noise.every=1 %s", MEASURED, cases[i].words);
        train(&k, words, &h);
        const struct noise_scale n = expected(&alone, &whole, cases[i].replicas, cases[i].accum);
        struct noise_estimate x;
        noise_estimate_of(&n, &x);
        assert_int_equal(h.told, MEASURED);
        assert_int_equal(h.noise.n, MEASURED);
        assert_close(h.noise.trace, x.trace, x.trace, words);
        assert_close(h.noise.gradient_square, x.gradient_square, x.trace / x.batch_tokens, words);
        assert_close(h.noise.batch_tokens, x.batch_tokens, x.batch_tokens, words);
        assert_true(isnan(h.noise.tokens) == isnan(x.tokens));
        if (!isnan(x.tokens))
            assert_close(h.noise.sequences / h.noise.tokens, x.sequences / x.tokens,
                         x.sequences / x.tokens, words);
    }
}

// Replicas that train apart: each step of a replica is a pair of its own. With weights that never
// change its first micro-batch is one sequence, and so are the two of its step.
static void test_apart(void **state) {
    struct knobs k;
    struct heard alone, h, none;
    char words[200];
    train_knobs(&k, *state, SEQUENCES);
    snprintf(words, sizeof words, "steps=%d batch.accum=1", 4 * MEASURED);
    train(&k, words, &alone);
    snprintf(words, sizeof words,
             "steps=%d noise.every=1 parallel.data=2 batch.accum=2 comm.every=2", MEASURED);
    train(&k, words, &h);
    assert_int_equal(h.noise.n, MEASURED);
    double batch = 0, weight = 0;
    for (int s = 0; s < MEASURED; s++) { // sequences 0 and 2 are one replica's, 1 and 3 the other's
        const int64_t *t = alone.tokens + 4 * s;
        const double mean = 2 / (1 / (double)(t[0] + t[2]) + 1 / (double)(t[1] + t[3]));
        weight = 0.98 * weight + 1;
        batch += (mean - batch) / weight;
    }
    assert_close(h.noise.batch_tokens, batch, batch, words);
    // All sequences are the same: nothing varies, and the gradient is that of every step.
    train_knobs(&k, *state, 1);
    train(&k, words, &h);
    assert_int_equal(h.noise.n, MEASURED);
    assert_close(h.noise.gradient_square, h.norm[0] * h.norm[0], h.noise.gradient_square, words);
    assert_close(h.noise.trace, 0, h.noise.gradient_square * h.noise.batch_tokens, words);
    // One micro-batch is the whole step of a replica: there is nothing to compare it with.
    snprintf(words, sizeof words,
             "steps=%d noise.every=1 parallel.data=2 batch.accum=1 comm.every=2", MEASURED);
    train(&k, words, &none);
    assert_int_equal(none.told, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layouts_tied), cmocka_unit_test(test_layouts_heads),
        cmocka_unit_test(test_narrow),       cmocka_unit_test(test_mean_of_replicas),
        cmocka_unit_test(test_apart),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
