// test_layouts.c - what goes together with what. Every layout of up to 8 ranks, with every stage of
// ZeRO and every schedule, trains what one rank trains; all other settings that a program depends on
// are mixed with layouts so that every two values meet. What must be equal to the bit is compared
// to the bit. Whatever is refused, is refused by a rule of the page that lists them.
//
// With HAGGLE_TEST_LONG every layout meets every value of every setting, and every combination of
// the settings that a run is most likely to have.
#include "layout_cover.h"
#include "ranks_job.h"

#include "train/verify.h"

enum { STEPS = 20, COVER_STEPS = 3, SEQ = 8, LAYERS = 17 };
static const char *const families[] = {"tiny", "gpt2-124m", "qwen3-0.6b"};
static const int64_t vocabularies[] = {17, 127, 31123};

static bool long_run(void) {
    return getenv("HAGGLE_TEST_LONG") != NULL;
}

static void model_knobs(struct knobs *k, const struct scratch *s, int family, int vocab) {
    struct model_shape shape;
    char name[80];
    base_shape(&shape, families[family], vocabularies[vocab], LAYERS);
    shape.ffn = 128; // its matrices are large enough for 8-bit moments
    snprintf(name, sizeof name, "%s-%d", families[family], (int)vocabularies[vocab]);
    shape_knobs(k, s, name, &shape);
    k->seq = SEQ;
}

// ---------------------------------------------------------------- comparing

struct limits { // relative
    double first, later, norm, valid;
};

struct seen { // the largest differences so far
    double first, later, norm, valid;
};

static double off(double a, double b) {
    return fabs(a / b - 1);
}

static void note_most(double *most, double value) {
    *most = value > *most ? value : *most; // a NaN is found by the comparison with the limit
}

// A run of ranks against one rank's.
static void compare(const struct job *a, const struct job *one, const struct limits *l,
                    struct seen *seen, const char *what) {
    for (int s = 0; s < a->steps; s++) {
        const double loss = off(a->losses[0][s], one->losses[0][s]),
                     norm = off(a->norms[0][s], one->norms[0][s]);
        note_most(s ? &seen->later : &seen->first, loss);
        note_most(&seen->norm, norm);
        if (!(loss <= (s ? l->later : l->first) && norm <= l->norm))
            fail_msg("%s: step %d has loss %.9g and norm %.9g, with one rank %.9g and %.9g", what,
                     s + 1, a->losses[0][s], a->norms[0][s], one->losses[0][s], one->norms[0][s]);
        assert_true(a->skipped[0][s] == one->skipped[0][s]);
    }
    if (!a->validates)
        return;
    note_most(&seen->valid, off(a->valid[0], one->valid[0]));
    if (!(off(a->valid[0], one->valid[0]) <= l->valid))
        fail_msg("%s: validation %.9g, with one rank %.9g", what, a->valid[0], one->valid[0]);
}

static void same_bits(const struct job *a, const struct job *b, const char *what,
                      const char *other) {
    char both[2 * WORDS_BYTES + 20];
    snprintf(both, sizeof both, "%s\n    and %s", what, other);
    assert_same(a, b, both);
    if (a->validates && b->validates && a->valid[0] != b->valid[0])
        fail_msg("%s: validations %.17g and %.17g", both, a->valid[0], b->valid[0]);
}

// A run that must not be refused. All programs are checked together before it.
static struct job *must_run(const struct knobs *k, const char *words, int steps) {
    struct job *j = job_new(k, words, steps);
    job_plan(j);
    if (job_error(j))
        fail_msg("%s is refused: %s", words, job_error(j)->text);
    job_check(j, PLAN_TRAIN, words);
    if (j->validates)
        job_check(j, PLAN_EVAL, words);
    job_train(j, words);
    return j;
}

// ---------------------------------------------------------------- every layout

static int count_reduced(const struct plan *p, bool *padded) {
    const struct program *train = plan_program(p, PLAN_TRAIN);
    const int group = program_group((struct program *)train, &p->ranks.mesh, MESH_DATA, "data");
    int n = 0;
    *padded = false;
    for (int s = 0; s < train->n_segments; s++)
        for (int i = 0; i < train->segments[s].n_ops; i++) {
            const struct op *op = &train->segments[s].ops[i];
            n += (op->kind == OP_ALL_REDUCE || op->kind == OP_REDUCE_SCATTER) &&
                 op->group == group && op->n > RESULT_COUNT && op->n % ADAMW_BLOCK == 0;
            *padded |= op->kind == OP_ZERO && op->n_out == 1 &&
                       strstr(train->tensors[op->out[0]].name, ".gap") != NULL;
        }
    return n;
}

// The sequences of a step as micro-batches of this layout: two for each stage of a pipeline, else
// two. Fewer ops wait for each other than with many small ones.
static const char *batch_words(const struct layout_case *l, char out[64]) {
    const int each = SAMPLES / l->data, two = 2 * l->pipe, accum = two < each ? two : each;
    snprintf(out, 64, "batch.micro=%d batch.accum=%d", each / accum, accum);
    return out;
}

// One layout with all its stages of ZeRO: against one rank, and to the bit against plain data
// parallelism with one bucket and no overlap. Returns the plain run.
static struct job *check_stages(const struct knobs *k, struct layout_case *l, int stages,
                                const struct job *one, struct seen *seen) {
    static const struct limits limits = {1e-6, 1e-4, 1e-3, 1e-4};
    char layout[128], batch[64], words[WORDS_BYTES], plain_words[WORDS_BYTES];
    struct job *plain = NULL;
    for (l->zero = 0; l->zero < stages; l->zero++) {
        bool padded;
        snprintf(words, sizeof words, "validates bucket=65536 %s %s", batch_words(l, batch),
                 layout_words(l, layout));
        struct job *j = must_run(k, words, STEPS);
        compare(j, one, &limits, seen, words);
        if (l->data > 1 && (count_reduced(&j->plans[0], &padded) < 2 || !padded))
            fail_msg("%s: fewer than two buckets, or no padding", words);
        if (plain) {
            same_bits(j, plain, words, plain_words);
            job_end(j);
        } else {
            plain = j;
            snprintf(plain_words, sizeof plain_words, "%s", words);
        }
    }
    return plain;
}

static void test_every_layout(void **state) {
    struct cover c;
    struct knobs k;
    struct seen seen = {0};
    char words[WORDS_BYTES], layout[128], batch[64];
    model_knobs(&k, *state, 0, 1);
    k.optim_lr = 1e-3;
    snprintf(words, sizeof words, "validates batch.accum=%d", SAMPLES);
    struct job *one = must_run(&k, words, STEPS), *gpipe = NULL;
    assert_true(one->norms[0][0] > k.optim_clip); // so clipping is a part of this
    c.n_layouts = list_layouts(c.layouts);
    for (int i = 0; i < c.n_layouts; i++) {
        struct layout_case l = c.layouts[i];
        int stages = 1;
        for (; i + 1 < c.n_layouts && c.layouts[i + 1].zero == stages; stages++)
            i++;
        struct job *plain = check_stages(&k, &l, stages, one, &seen);
        l.zero = 0;
        layout_words(&l, layout);
        if (l.data > 1) { // sums after the backward, all in one
            snprintf(words, sizeof words, "validates bucket=0 late %s %s", batch_words(&l, batch),
                     layout);
            struct job *late = must_run(&k, words, STEPS);
            same_bits(late, plain, words, layout);
            job_end(late);
        }
        if (gpipe && l.pipe > 1 && l.schedule == 1)
            same_bits(plain, gpipe, layout, "gpipe");
        if (gpipe)
            job_end(gpipe);
        gpipe = plain;
    }
    print_message("%d layouts, %d steps: first loss off by %.1e, later ones %.1e, norms %.1e, "
                  "validation %.1e\n",
                  c.n_layouts, STEPS, seen.first, seen.later, seen.norm, seen.valid);
    job_end(gpipe), job_end(one);
}

// ---------------------------------------------------------------- every two settings

// How far ranks may be from one rank, by precision and type of the moments (docs/numerics.md).
static const struct limits cover_limits[3][3] = {
    {{1e-6, 1e-4, 1e-3, 1e-4}, {1e-6, 1e-3, 1e-2, 1e-3}, {1e-6, 1e-3, 1e-2, 1e-3}},
    {{2e-3, 1e-2, 5e-2, 1e-2}, {2e-3, 1e-2, 5e-2, 1e-2}, {2e-3, 1e-2, 5e-2, 1e-2}},
    {{5e-4, 5e-3, 2e-2, 5e-3}, {5e-4, 5e-3, 2e-2, 5e-3}, {5e-4, 5e-3, 2e-2, 5e-3}}};

struct tally {
    struct seen seen[3][3];
    int rows, ran, twins;
};

static void check_row(const struct cover *c, const int row[F_COUNT], const struct knobs *base,
                      struct tally *tally) {
    const int precision = row[F_PRECISION], narrow = row[F_STATE];
    char words[WORDS_BYTES], one_words[WORDS_BYTES], twin_words[WORDS_BYTES];
    struct layout_case twin;
    struct knobs k = *base;
    row_words(c, row, words);
    one_rank_words(c, row, one_words);
    put(words, "validates"), put(one_words, "validates");
    struct job *j = must_run(&k, words, COVER_STEPS), *one = must_run(&k, one_words, COVER_STEPS);
    compare(j, one, &cover_limits[precision][narrow], &tally->seen[precision][narrow], words);
    if (twin_of(c, row, &twin, twin_words)) {
        put(twin_words, "validates");
        struct job *other = must_run(&k, twin_words, COVER_STEPS);
        same_bits(j, other, words, twin_words);
        job_end(other);
        tally->twins++;
    }
    tally->rows++;
    job_end(one), job_end(j);
}

static void print_tally(const struct tally *t) {
    static const char *const precisions[] = {"fp32", "bf16", "fp16"};
    print_message("%d rows, %d of them also to the bit; largest differences from one rank:\n",
                  t->rows, t->twins);
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 3; k++) {
            const struct seen *s = &t->seen[i][k];
            print_message("  %s, moments %s: first loss %.1e, later %.1e, norm %.1e, valid %.1e\n",
                          precisions[i], (const char *[]){"fp32", "bf16", "int8"}[k], s->first,
                          s->later, s->norm, s->valid);
        }
}

static void all_models(const struct scratch *s, struct knobs k[3][3]) {
    for (int f = 0; f < 3; f++)
        for (int v = 0; v < 3; v++)
            model_knobs(&k[f][v], s, f, v);
}

static void test_every_pair(void **state) {
    static struct cover c;
    static struct knobs k[3][3];
    static struct tally tally;
    all_models(*state, k);
    cover_make(&c, long_run());
    if (c.n_open > 0)
        fail_msg("%d pairs of values are in no row", c.n_open);
    for (int i = 0; i < c.n_rows; i++)
        check_row(&c, c.rows[i], &k[c.rows[i][F_FAMILY]][c.rows[i][F_VOCAB]], &tally);
    print_tally(&tally);
}

// Every layout with every combination of what runs are most likely to have.
static void test_product(void **state) {
    static struct cover c;
    static struct knobs k[3][3];
    static struct tally tally;
    if (!long_run()) {
        print_message("skipped: HAGGLE_TEST_LONG is not set\n");
        skip();
    }
    all_models(*state, k);
    cover_make(&c, true);
    for (int l = 0; l < c.n_layouts; l++)
        for (int mask = 0; mask < 64; mask++) {
            int row[F_COUNT] = {0};
            row[F_RECOMPUTE] = mask & 1 ? 2 : 0;
            row[F_PRECISION] = mask >> 1 & 1;
            row[F_CHUNK] = mask >> 2 & 1;
            row[F_STATE] = mask & 8 ? 2 : 0;
            row[F_DOCUMENTS] = mask >> 4 & 1;
            row[F_ACCUM] = mask >> 5 & 1;
            row[F_BUCKET] = row[F_PREFETCH] = row[F_VOCAB] = 1;
            set_layout(&c, row, l);
            if (row[F_STATE])
                row[F_OPTIM] = -1;
            check_row(&c, row, &k[0][1], &tally);
        }
    print_tally(&tally);
}

// Planned bytes are written bytes on every rank, whatever the settings: rows of the cover run under
// observation.
static void test_observed_rows(void **state) {
    static struct cover c;
    static struct knobs k[3][3];
    const int wanted = long_run() ? 64 : 6;
    all_models(*state, k);
    cover_make(&c, false);
    for (int n = 0; n < wanted; n++) {
        const int *row =
            c.rows[rng_permute(9, 1, (uint64_t)n % (uint64_t)c.n_rows, (uint64_t)c.n_rows)];
        char words[WORDS_BYTES], observed[WORDS_BYTES + 20];
        row_words(&c, row, words);
        snprintf(observed, sizeof observed, "%s checking", words);
        const struct knobs *base = &k[row[F_FAMILY]][row[F_VOCAB] < 2 ? row[F_VOCAB] : 1];
        struct job *plain = must_run(base, words, 2), *seen = must_run(base, observed, 2);
        same_bits(seen, plain, observed, "the same unobserved");
        job_end(plain), job_end(seen);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_layout),
        cmocka_unit_test(test_every_pair),
        cmocka_unit_test(test_product),
        cmocka_unit_test(test_observed_rows),
    };
    if (getenv("ONLY"))
        cmocka_set_test_filter(getenv("ONLY"));
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
