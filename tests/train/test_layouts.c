// test_layouts.c - what goes together with what. Every layout of up to 8 ranks, with every stage of
// ZeRO and every schedule, trains what one rank trains. All other settings that a program depends
// on are mixed with layouts so that every two values meet. What must be equal to the bit is
// compared to the bit. Whatever is refused, is refused by a rule of the page that lists them.
//
// With HAGGLE_TEST_LONG every layout trains 20 steps instead of 8, and meets every value of every
// setting and every combination of the settings that a run is most likely to have.
#include "layout_cover.h"
#include "ranks_job.h"

#include "skips.h"
#include "train/crew.h"
#include "train/verify.h"

enum { STEPS = 20, SHORT_STEPS = 8, COVER_STEPS = 3, SAMPLES = 8, SEQ = 8, LAYERS = 17 };
static const char *const families[] = {"tiny", "gpt2-124m", "qwen3-0.6b"};
static const int64_t vocabularies[] = {17, 127, 31123};

static bool long_run(void) {
    return getenv("HAGGLE_TEST_LONG") != NULL;
}

static void model_knobs(struct knobs *k, const struct scratch *s, int family, int vocab) {
    struct model_shape shape;
    char name[80];
    base_shape(&shape, families[family], vocabularies[vocab], LAYERS);
    shape.ffn = 128;          // its matrices are large enough for 8-bit moments
    shape.tied = family != 0; // and one has a head of its own
    snprintf(name, sizeof name, "%s-%d", families[family], (int)vocabularies[vocab]);
    shape_knobs(k, s, name, &shape);
    k->seq = SEQ;
}

// ---------------------------------------------------------------- comparing

struct far {                     // relative differences: limits, or the largest ones so far
    double loss, norm;           // of step 1
    double losses, norms, valid; // of later steps; of the validation after them
};

static double off(double a, double b) {
    return fabs(a / b - 1);
}

static void note_most(double *most, double value) {
    *most = value > *most ? value : *most; // a NaN is found by the comparison with the limit
}

// How far a run of ranks is from one rank's in step s.
static bool is_near(const struct job *a, const struct job *one, int s, const struct far *limits,
                    double *loss, double *norm) {
    *loss = off(a->losses[0][s], one->losses[0][s]);
    *norm = off(a->norms[0][s], one->norms[0][s]);
    return *loss <= (s ? limits->losses : limits->loss) &&
           *norm <= (s ? limits->norms : limits->norm);
}

// A run of ranks against one rank's. Steps in 16 bits may lead away from each other. So a later
// step that is far from one rank's may be near to what one rank does in float32 (`wide`).
static void compare(const struct job *a, const struct job *one, const struct job *wide,
                    const struct far *limits, struct far *seen, const char *what) {
    for (int s = 0; s < a->steps; s++) {
        double loss, norm;
        if (!is_near(a, one, s, limits, &loss, &norm) && s > 0 && wide) {
            print_message(
                "%s: step %d is off by %.1e, its norm by %.1e; one rank by %.1e and %.1e\n", what,
                s + 1, loss, norm, off(one->losses[0][s], wide->losses[0][s]),
                off(one->norms[0][s], wide->norms[0][s]));
            is_near(a, wide, s, limits, &loss, &norm);
        }
        note_most(s ? &seen->losses : &seen->loss, loss);
        note_most(s ? &seen->norms : &seen->norm, norm);
        if (!(loss <= (s ? limits->losses : limits->loss) &&
              norm <= (s ? limits->norms : limits->norm)))
            fail_msg("%s: step %d has loss %.9g and norm %.9g, with one rank %.9g and %.9g", what,
                     s + 1, a->losses[0][s], a->norms[0][s], one->losses[0][s], one->norms[0][s]);
        assert_true(a->skipped[0][s] == one->skipped[0][s]);
    }
    if (!a->validates)
        return;
    note_most(&seen->valid, off(a->valid[0], one->valid[0]));
    if (!(off(a->valid[0], one->valid[0]) <= limits->valid))
        fail_msg("%s: validation %.9g, with one rank %.9g", what, a->valid[0], one->valid[0]);
}

static void print_far(const char *what, const struct far *f) {
    print_message("%s: loss of step 1 off by %.1e, norm %.1e; later losses %.1e, norms %.1e; "
                  "validation %.1e\n",
                  what, f->loss, f->norm, f->losses, f->norms, f->valid);
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

// Settings that every layout is run with.
struct sweep {
    const struct knobs *k;
    const char *words; // knobs
    int steps;
    bool one_micro; // a step is one micro-batch
    const struct far *limits;
    const struct job *one; // one rank's run
    struct far *seen;
};

// A run of the sweep in a layout. A step is two micro-batches for each stage of a pipeline, else
// two: fewer ops wait for each other than with many small ones.
static struct job *run_layout(const struct sweep *s, const struct layout_case *l, const char *more,
                              char words[WORDS_BYTES]) {
    char layout[128];
    const int each = SAMPLES / l->data, two = 2 * l->pipe,
              accum = s->one_micro ? 1
                      : two < each ? two
                                   : each;
    snprintf(words, WORDS_BYTES, "validates batch.micro=%d batch.accum=%d %s %s %s", each / accum,
             accum, layout_words(l, layout), more, s->words);
    return must_run(s->k, words, s->steps);
}

// A layout with all its stages of ZeRO: against one rank, and to the bit against plain data
// parallelism. Returns the plain run.
static struct job *check_stages(const struct sweep *s, struct layout_case *l, int stages) {
    char words[WORDS_BYTES], plain_words[WORDS_BYTES];
    struct job *plain = NULL;
    for (l->zero = 0; l->zero < stages; l->zero++) {
        bool padded;
        struct job *j = run_layout(s, l, "bucket=65536", plain ? words : plain_words);
        compare(j, s->one, NULL, s->limits, s->seen, plain ? words : plain_words);
        if (l->data > 1 && (count_reduced(&j->plans[0], &padded) < 2 || !padded))
            fail_msg("%s: fewer than two buckets, or no padding", words);
        if (plain) {
            same_bits(j, plain, words, plain_words);
            job_end(j);
        } else {
            plain = j;
        }
    }
    l->zero = 0;
    return plain;
}

// Every layout; also to the bit: sums after the backward, all in one; and gpipe against 1f1b.
static void sweep_layouts(const struct sweep *s) {
    struct layout_case layouts[LAYOUTS_MOST];
    const int n = list_layouts(layouts);
    struct job *gpipe = NULL;
    for (int i = 0; i < n; i++) {
        struct layout_case l = layouts[i];
        char words[WORDS_BYTES], layout[128];
        int stages = 1;
        for (; i + 1 < n && layouts[i + 1].zero == stages; stages++)
            i++;
        struct job *plain = check_stages(s, &l, stages);
        layout_words(&l, layout);
        if (l.data > 1) {
            struct job *late = run_layout(s, &l, "bucket=0 late", words);
            same_bits(late, plain, words, layout);
            job_end(late);
        }
        if (l.pipe > 1 && l.schedule == 1)
            same_bits(plain, gpipe, layout, "gpipe");
        if (gpipe)
            job_end(gpipe);
        gpipe = plain;
    }
    job_end(gpipe);
}

static struct job *run_one(const struct knobs *k, const char *words, int steps) {
    char all[WORDS_BYTES + 40];
    snprintf(all, sizeof all, "validates batch.accum=%d %s", SAMPLES, words);
    return must_run(k, all, steps);
}

static void test_every_layout(void **state) {
    static const struct far limits = {1e-6, 1e-5, 1e-4, 1e-3, 1e-4};
    struct knobs k;
    struct far seen = {0};
    model_knobs(&k, *state, 0, 1);
    k.optim_lr = 1e-3;
    const int steps = long_run() ? STEPS : SHORT_STEPS;
    struct job *one = run_one(&k, "", steps);
    assert_true(one->norms[0][0] > k.optim_clip); // so clipping is a part of this
    sweep_layouts(&(struct sweep){
        .k = &k, .words = "", .steps = steps, .limits = &limits, .one = one, .seen = &seen});
    print_far("every layout", &seen);
    job_end(one);
}

// ---------------------------------------------------------------- every two settings

// How far ranks may be from one rank, by precision (docs/numerics.md).
static const struct far cover_limits[3] = {{1e-6, 1e-5, 1e-4, 2e-3, 1e-4},
                                           {1e-3, 1.5e-2, 4e-3, 0.25, 6e-3},
                                           {1e-4, 2e-3, 3e-3, 0.25, 2e-3}};

struct tally {
    struct far seen[3][3];
    int rows, twins;
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
    struct job *j = must_run(&k, words, COVER_STEPS), *one = must_run(&k, one_words, COVER_STEPS),
               *wide = NULL;
    double loss, norm;
    for (int s = 1; precision != PRECISION_FP32 && !wide && s < COVER_STEPS; s++)
        if (!is_near(j, one, s, &cover_limits[precision], &loss, &norm)) {
            put(one_words, "precision=fp32");
            wide = must_run(&k, one_words, COVER_STEPS);
        }
    compare(j, one, wide, &cover_limits[precision], &tally->seen[precision][narrow], words);
    if (wide)
        job_end(wide);
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
    static const char *const precisions[] = {"fp32", "bf16", "fp16"}, *const moments[] = {
                                                                          "fp32", "bf16", "int8"};
    char what[64];
    if (t->rows > 0)
        print_message("%d rows, %d of them also to the bit\n", t->rows, t->twins);
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 3; k++) {
            snprintf(what, sizeof what, "%s, moments %s", precisions[i], moments[k]);
            if (t->seen[i][k].norms > 0)
                print_far(what, &t->seen[i][k]);
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
    struct knobs k;
    static struct tally tally;
    if (!long_run())
        skip_because("HAGGLE_TEST_LONG is not set");
    model_knobs(&k, *state, 0, 1);
    for (int mask = 0; mask < 32; mask++) {
        const int precision = mask >> 1 & 1, narrow = mask & 8 ? 2 : 0;
        char words[WORDS_BYTES] = "";
        put(words, mask & 1 ? "recompute.mode=full" : "");
        put(words, precision ? "precision=bf16" : "");
        put(words, mask & 4 ? "logits.chunk=5" : "");
        put(words, narrow ? "optim.state=int8" : "");
        put(words, mask & 16 ? "whole" : "");
        struct job *one = run_one(&k, words, 2);
        for (int once = 0; once < 2; once++)
            sweep_layouts(&(struct sweep){.k = &k,
                                          .words = words,
                                          .steps = 2,
                                          .one_micro = once,
                                          .limits = &cover_limits[precision],
                                          .one = one,
                                          .seen = &tally.seen[precision][narrow]});
        job_end(one);
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

// ---------------------------------------------------------------- what moves

// Bytes that this rank sends in a step by one kind of op, in the group of these axes.
static double sent(const struct plan *plan, enum op_kind kind, unsigned axes) {
    struct program *p = plan_program(plan, PLAN_TRAIN);
    const int group = kind == OP_SEND ? -1 : program_group(p, &plan->ranks.mesh, axes, "asked");
    double bytes = 0;
    for (int i = 0; i < p->n_order; i++) {
        const struct segment *s = &p->segments[p->order[i].segment];
        for (int k = 0; k < s->n_ops; k++)
            if (s->ops[k].kind == kind && (kind == OP_SEND || s->ops[k].group == group))
                bytes += op_cost_of(p, &s->ops[k]).comm_bytes;
    }
    return bytes;
}

static void assert_sent(const struct job *j, int rank, enum op_kind kind, unsigned axes,
                        double formula, double room, const char *what) {
    const double bytes = sent(&j->plans[rank], kind, axes);
    if (!(bytes >= formula * (1 - 1e-12) && bytes <= formula + room))
        fail_msg("%s: %s sends %.0f bytes, by the formula %.0f", what, op_info(kind)->name, bytes,
                 formula);
}

// The formulas of the page, for a model that everything divides. Buckets add padding, and every
// step a few numbers: losses and norms.
static void test_formulas(void **state) {
    enum { V = 1024, L = 4, M = 4, ROWS = SEQ }; // rows of a micro-batch of one sequence
    struct model_shape shape;
    struct knobs k;
    char words[WORDS_BYTES];
    base_shape(&shape, "tiny", V, L);
    shape.head_dim = 32, shape.width = 256, shape.ffn = 512, shape.tied = false;
    shape_knobs(&k, *state, "even", &shape);
    k.seq = SEQ, k.batch_accum = M;
    const double width = (double)shape.width, all = (double)model_total_elements(&shape),
                 rows = ROWS * width * 4;
    for (int zero = 0; zero < 4; zero++) {
        snprintf(words, sizeof words, "data=4 zero=%d bucket=0", zero);
        struct job *j = job_new(&k, words, 0);
        job_plan(j);
        assert_null(job_error(j));
        const double share = 3.0 / 4, gradients = share * 4 * all,
                     gathered = zero == 3 ? M * share * 4 * (2 * all - V * width) : gradients;
        if (zero == 0)
            assert_sent(j, 1, OP_ALL_REDUCE, MESH_DATA, 2 * gradients, 0.01 * gradients, words);
        else
            assert_sent(j, 1, OP_REDUCE_SCATTER, MESH_DATA, gradients, 0.01 * gradients, words);
        if (zero > 0)
            assert_sent(j, 1, OP_ALL_GATHER, MESH_DATA, gathered, 0.01 * gathered, words);
        job_end(j);
    }
    struct job *j = job_new(&k, "tensor=4", 0);
    job_plan(j);
    assert_null(job_error(j));
    assert_sent(j, 1, OP_ALL_REDUCE, MESH_TENSOR, (4 * L + 2) * M * 2 * 3.0 / 4 * rows, 64,
                "tensor=4");
    assert_sent(j, 1, OP_ALL_GATHER, MESH_TENSOR, 12.0 * 3 * M * ROWS, 0.5, "tensor=4");
    job_end(j);
    j = job_new(&k, "pipe=4", 0);
    job_plan(j);
    assert_null(job_error(j));
    assert_sent(j, 0, OP_SEND, 0, M * rows, 0.5, "the first of four stages");
    assert_sent(j, 1, OP_SEND, 0, 2 * M * rows, 0.5, "the second of four stages");
    job_end(j);
}

// ---------------------------------------------------------------- checkpoints of others

// 20 steps of models that Hugging Face transformers made, against one rank.
static void test_fixtures(void **state) {
    static const char *const names[] = {"gpt2-tiny", "llama-tiny"};
    static const char *const settings[] = {
        "tensor=2 batch.accum=4",
        "data=4 batch.accum=1 zero=3",
        "data=2 tensor=2 batch.accum=2 zero=2",
        "pipe=3 batch.accum=4",
        "data=2 tensor=2 pipe=2 batch.accum=2 zero=1 schedule=gpipe",
    };
    static const struct far limits = {1e-6, 1e-5, 1e-4, 1e-3, 1e-4};
    struct far seen = {0};
    const char *chosen = getenv("HAGGLE_FIXTURES"),
               *folder = chosen ? chosen : HAGGLE_SOURCE_DIR "/../shared/fixtures/hf";
    if (!file_is_dir(folder))
        skip_because("no folder %s", folder);
    for (int i = 0; i < 2; i++) {
        struct knobs k;
        model_knobs(&k, *state, 0, 1);
        snprintf(k.model, sizeof k.model, "%.400s/%s", folder, names[i]);
        k.seq = 16;
        k.optim_lr = 1e-3;
        struct job *one = must_run(&k, "validates batch.accum=4", STEPS);
        for (size_t n = 0; n < sizeof settings / sizeof *settings; n++) {
            char words[WORDS_BYTES];
            snprintf(words, sizeof words, "validates %s", settings[n]);
            struct job *j = must_run(&k, words, STEPS);
            compare(j, one, NULL, &limits, &seen, words);
            job_end(j);
        }
        job_end(one);
    }
    print_far("fixtures", &seen);
}

// ---------------------------------------------------------------- what is refused

#define RULES_PAGE HAGGLE_SOURCE_DIR "/docs/ranks.md"
enum { RULES_MOST = 32 };

struct rule { // a row of the page
    char name[32], part[120];
};

static int read_rules(struct rule rules[RULES_MOST]) {
    char *text, *line, *rest;
    size_t bytes;
    int n = 0;
    struct err e = {0};
    assert_worked(file_read_all(RULES_PAGE, 1 << 20, &text, &bytes, &e), &e);
    for (rest = text; (line = strsep(&rest, "\n")) != NULL;)
        if (n < RULES_MOST &&
            sscanf(line, "| `%31[^`]` | \"%119[^\"]\" |", rules[n].name, rules[n].part) == 2)
            n++;
    free(text);
    assert_true(n > 0 && n < RULES_MOST);
    return n;
}

// Whether a rule of the page refuses with such a sentence.
static const struct rule *rule_of(const struct rule *rules, int n, const char *message) {
    for (int i = 0; i < n; i++)
        if (strstr(message, rules[i].part))
            return &rules[i];
    return NULL;
}

struct provoked {
    const char *rule, *names; // what the sentence names, separated by '|'
    const char *words;        // knobs
    int rank;
    int64_t kv_heads, ffn, vocab; // of the model, where not 0
};

static const struct provoked by_plan[] = {
    {.rule = "heads",
     .names = "parallel.tensor=3|8 heads|accepted: 1, 2, 4, 8",
     .words = "parallel.tensor=3"},
    {.rule = "kv-heads",
     .names = "parallel.tensor=4|2 key/value|accepted: 1, 2",
     .words = "parallel.tensor=4",
     .kv_heads = 2},
    {.rule = "mlp",
     .names = "parallel.tensor=8|52|accepted: 1, 2, 4",
     .words = "parallel.tensor=8",
     .ffn = 52},
    {.rule = "vocabulary",
     .names = "parallel.tensor=8| 5;|accepted: 1, 2, 4",
     .words = "parallel.tensor=8",
     .vocab = 5},
    {.rule = "zero-pipe",
     .names = "zero.stage=3|parallel.pipe=2|accepted: stage 0 or 1",
     .words = "parallel.data=2 parallel.pipe=2 zero.stage=3"},
    {.rule = "frozen",
     .names = "lora.rank|parallel.tensor|accepted: parallel.data with zero.stage 0 to 2",
     .words = "parallel.tensor=2 lora.rank=2"},
    {.rule = "frozen",
     .names = "lora.rank|zero.stage=3|accepted: parallel.data",
     .words = "parallel.data=2 zero.stage=3 lora.rank=2"},
    {.rule = "frozen",
     .names = "train.freeze|parallel.pipe|accepted: parallel.data",
     .words = "parallel.pipe=2 train.freeze=embed_tokens"},
    {.rule = "layers",
     .names = "parallel.pipe=8|24 layers|17|accepted: stages x chunks up to 17",
     .words = "parallel.pipe=8 pipe.schedule=interleaved pipe.chunks=3 batch.accum=8"},
    {.rule = "interleaved",
     .names = "parallel.pipe=4|got 6|accepted: 1, 4, 8",
     .words = "parallel.pipe=4 pipe.schedule=interleaved batch.accum=6"},
    {.rule = "product",
     .names = "parallel.tensor=2|ranks=3|accepted: ranks=2",
     .words = "ranks=3 parallel.tensor=2"},
    {.rule = "most",
     .names = "parallel.data=64|1024|accepted",
     .words = "parallel.data=64 parallel.tensor=32"},
    {.rule = "rank", .names = "rank 2|accepted: 0 to 1", .words = "parallel.pipe=2", .rank = 2},
    {.rule = "sequence",
     .names = "parallel.sequence=true|26 tokens|accepted: parallel.sequence=false",
     .words = "parallel.tensor=4 parallel.sequence=true seq=13 batch.micro=2"},
    {.rule = "average-zero",
     .names = "comm.every=3|zero.stage=1|accepted: zero.stage=0",
     .words = "parallel.data=2 comm.every=3 zero.stage=1"},
    {.rule = "average-int8",
     .names = "comm.every=3|accepted: optim.state=fp32",
     .words = "parallel.data=2 comm.every=3 optim.state=int8"},
    {.rule = "hybrid",
     .names = "goal=hybrid|accepted: goal=bulk",
     .words = "parallel.data=2 goal=hybrid"},
    {.rule = "gpus",
     .names = "device=cuda|2 ranks|accepted: device=cpu",
     .words = "parallel.data=2 device=cuda"},
};

static void set_words(struct knobs *k, const char *words) {
    char copy[WORDS_BYTES], *rest = copy;
    struct err e = {0};
    snprintf(copy, sizeof copy, "%s", words);
    for (char *one; (one = strsep(&rest, " ")) != NULL;)
        assert_worked(knobs_set_assignment(k, one, SET_BY_COMMAND_LINE, &e), &e);
}

static int provoke(const struct provoked *x, const struct scratch *s, struct err *e) {
    struct model_shape shape;
    struct knobs k;
    struct plan p;
    base_shape(&shape, "tiny", x->vocab ? x->vocab : 127, LAYERS);
    shape.kv_heads = x->kv_heads ? x->kv_heads : shape.kv_heads;
    shape.ffn = x->ffn ? x->ffn : shape.ffn;
    shape_knobs(&k, s, "refused", &shape);
    set_words(&k, x->words);
    const int rc = plan_run_rank(&p, &k, x->rank, e);
    plan_free(&p);
    return rc;
}

static int provoke_sequences(struct err *e) {
    struct knobs k;
    struct verify_result r;
    knobs_init(&k);
    k.device = DEVICE_CPU;
    set_words(&k, "parallel.data=2 batch.accum=7");
    const int rc = verify_folder(HAGGLE_SOURCE_DIR "/tests/reference/qwen2", &k, 0, &r, e);
    verify_free(&r);
    return rc;
}

// Two ranks find that each fits on the machine, and both do not.
static int be_ready(void *arg, struct comm *c, struct err *e) {
    const struct knobs *k = arg;
    const struct engine_options eo = {.comm = c};
    struct engine *g = NULL;
    struct plan p;
    int rc = plan_run_rank(&p, k, c->rank, e);
    if (rc == 0)
        rc = engine_open(&g, &eo, e);
    if (rc == 0)
        rc = engine_ready(g, &p, e);
    if (rc == 0)
        g->room = (struct plan_room){.bytes = engine_need_bytes(g, &p) * 3 / 2,
                                     .is = "what the machine has left"};
    rc = crew_ready(c, rc, NULL, g, &p, e); // threads share the data
    c->close(c);
    engine_close(g);
    plan_free(&p);
    return rc;
}

static int provoke_machine(const struct scratch *s, struct err *e) {
    struct knobs k;
    base_knobs(&k, s, "tiny", 127, 2);
    set_words(&k, "parallel.data=2 eval.every=0 generate.tokens=0");
    return comm_job_run(2, 20000000000u, be_ready, &k, e);
}

static void check_sentence(const struct rule *rules, int n, bool *met, const char *name,
                           const char *names, const struct err *e) {
    const struct rule *rule = NULL;
    for (int i = 0; i < n; i++)
        if (strcmp(rules[i].name, name) == 0) {
            rule = &rules[i];
            met[i] = true;
        }
    if (!rule)
        fail_msg("the page has no rule '%s'", name);
    if (!strstr(e->text, rule->part))
        fail_msg("rule '%s' says '%s', and the message: %s", name, rule->part, e->text);
    assert_failed(e->code, e->code, e, names);
}

// Each rule of the page refuses what it says, by a sentence with the value and what is accepted.
static void test_rules(void **state) {
    struct rule rules[RULES_MOST];
    bool met[RULES_MOST] = {0};
    const int n = read_rules(rules);
    for (size_t i = 0; i < sizeof by_plan / sizeof *by_plan; i++) {
        struct err e = {0};
        if (provoke(&by_plan[i], *state, &e) == 0)
            fail_msg("%s is not refused", by_plan[i].words);
        check_sentence(rules, n, met, by_plan[i].rule, by_plan[i].names, &e);
    }
    struct err e = {0};
    assert_int_equal(provoke_sequences(&e), ERR_USAGE);
    check_sentence(rules, n, met, "sequences", "parallel.data=2|batch.accum=7|accepted", &e);
    err_clear(&e);
    assert_int_equal(provoke_machine(*state, &e), ERR_MEMORY);
    check_sentence(rules, n, met, "machine", "2 ranks on|together|what the machine has left", &e);
    for (int i = 0; i < n; i++)
        if (!met[i])
            fail_msg("nothing provokes rule '%s'", rules[i].name);
}

// Sizes that are no powers of two run, or a rule of the page refuses them.
static void test_odd_sizes(void **state) {
    static const struct far limits = {1e-6, 1e-5, 1e-4, 1e-3, 1e-4};
    struct rule rules[RULES_MOST];
    const int n = read_rules(rules);
    struct far seen = {0};
    struct knobs k;
    int ran = 0, refused = 0;
    model_knobs(&k, *state, 0, 1);
    for (int data = 1; data <= 7; data++) {
        char words[WORDS_BYTES], layout[128];
        snprintf(words, sizeof words, "validates batch.accum=%d", 2 * data);
        struct job *one = must_run(&k, words, 2);
        for (int tensor = 1; data * tensor <= 7; tensor++)
            for (int pipe = 1; data * tensor * pipe <= 7; pipe++) {
                const struct layout_case l = {data, tensor, pipe, 3 - data % 2, data % 2};
                if (!((data & (data - 1)) | (tensor & (tensor - 1)) | (pipe & (pipe - 1))))
                    continue; // test_every_layout
                snprintf(words, sizeof words, "validates batch.accum=2 %s",
                         layout_words(&l, layout));
                struct job *j = job_new(&k, words, 2);
                job_plan(j);
                if (job_error(j)) {
                    if (!rule_of(rules, n, job_error(j)->text))
                        fail_msg("%s: refused by no rule: %s", words, job_error(j)->text);
                    refused++;
                } else {
                    job_check(j, PLAN_TRAIN, words);
                    job_check(j, PLAN_EVAL, words);
                    job_train(j, words);
                    compare(j, one, NULL, &limits, &seen, words);
                    ran++;
                }
                job_end(j);
            }
        job_end(one);
    }
    print_message("%d ran, %d were refused\n", ran, refused);
    assert_true(ran >= 8 && refused >= 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formulas),  cmocka_unit_test(test_rules),
        cmocka_unit_test(test_odd_sizes), cmocka_unit_test(test_every_layout),
        cmocka_unit_test(test_fixtures),  cmocka_unit_test(test_every_pair),
        cmocka_unit_test(test_product),   cmocka_unit_test(test_observed_rows),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
