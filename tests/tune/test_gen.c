// test_gen.c - searches for generation over a made-up machine, whose times are known: what they
// choose under budgets, what they refuse and with which figures, what they announce, and that a
// search repeats to the bit.
#include "base/rng.h"
#include "tune/gen.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { FORMATS = 4, PROMPT = 128, OUTPUT = 64 };

struct machine {
    uint64_t seed, drawn, now_ns;
    double noise;            // of a visit
    double busy;             // share of the time in which another program runs; visible
    double factor[FORMATS];  // time of a pass over the weights, as given = 1
    uint64_t bytes[FORMATS]; // of the weights
    uint64_t have_bytes;
    int fails; // format whose process dies; 0: none
    int measured;
};

static double draw(struct machine *m) {
    return rng_uniform(m->seed, 1, m->drawn++);
}

static double spread(struct machine *m) {
    return rng_normal(m->seed, 2, m->drawn++);
}

// Seconds of a turn: a pass over the weights, and work for each row.
static double turn_s(const struct machine *m, const struct gen_point *p, int64_t rows) {
    const double threads = p->threads == 1 ? 1.7 : p->threads == 4 ? 1.15 : 1;
    return (4e-3 * m->factor[p->format] + 1e-4 * (double)rows) * threads;
}

struct truth {
    double cost, first, between_slow; // seconds; of a turn that a prompt shares
    int64_t prompt_turns, turns;      // of a period, in which one text ends
};

static struct truth truth_of(const struct machine *m, const struct gen_point *p) {
    struct truth t;
    const int64_t room = p->chunk - (p->batch - 1) > 1 ? p->chunk - (p->batch - 1) : 1;
    t.prompt_turns = (PROMPT + room - 1) / room;
    t.turns = (OUTPUT + p->batch - 1) / p->batch;
    const double slow = turn_s(m, p, p->chunk), fast = turn_s(m, p, p->batch);
    const int64_t plain = t.turns - (p->batch > 1 ? t.prompt_turns : 0);
    t.cost = ((double)t.prompt_turns * slow + (double)(plain > 0 ? plain : 0) * fast) / OUTPUT;
    t.first = (double)t.prompt_turns * slow;
    t.between_slow = p->batch > 1 ? slow : fast;
    return t;
}

static double share_of_slow(const struct truth *t) {
    return fmin((double)t->prompt_turns / (double)t->turns, 1);
}

static int plan(void *arg, const struct gen_point *p, struct gen_plan *out, struct err *e) {
    const struct machine *m = arg;
    (void)e;
    out->have_bytes = m->have_bytes;
    out->need_bytes = m->bytes[p->format] + (uint64_t)p->batch * 1000;
    if (p->chunk < p->batch) {
        out->rc = ERR_USAGE;
        snprintf(out->reason, sizeof out->reason, "a chunk is smaller than the batch");
    } else if (out->need_bytes > out->have_bytes) {
        out->rc = ERR_MEMORY;
        snprintf(out->reason, sizeof out->reason, "does not fit");
    }
    return 0;
}

static void add(struct gen_measured *out, enum gen_limit l, double seconds) {
    double *wider = realloc(out->ns[l], (out->n[l] + 1) * sizeof *wider);
    assert_non_null(wider);
    wider[out->n[l]++] = 1e9 * seconds;
    out->ns[l] = wider;
}

// Spells of two seconds with and without another program, which takes a third of the time.
static bool is_busy(const struct machine *m) {
    return rng_uniform(m->seed, 3, m->now_ns / 2000000000) < m->busy;
}

static int measure(void *arg, const struct gen_point *p, double seconds, struct gen_measured *out,
                   struct err *e) {
    struct machine *m = arg;
    const struct truth t = truth_of(m, p);
    const bool busy = is_busy(m);
    const double luck = exp(m->noise * spread(m)) * (busy ? 1.5 : 1);
    const double period = t.cost * OUTPUT * luck;
    const int periods = (int)fmax(1, ceil(seconds / period));
    (void)e;
    m->measured++;
    m->now_ns += 50000000; // loading
    if (m->fails > 0 && p->format == m->fails) {
        out->rc = ERR_INTERNAL;
        snprintf(out->reason, sizeof out->reason, "the process died");
        return 0;
    }
    for (int i = 0; i < periods; i++) {
        add(out, GEN_FIRST, t.first * luck * (1 + 0.02 * draw(m)));
        for (int64_t k = 0; k < t.turns * p->batch; k++) {
            const bool slow = p->batch > 1 && draw(m) < share_of_slow(&t);
            add(out, GEN_BETWEEN,
                (slow ? t.between_slow : turn_s(m, p, p->batch)) * luck * (1 + 0.02 * draw(m)));
        }
    }
    out->tokens = (uint64_t)periods * OUTPUT;
    out->wall_ns = (uint64_t)(1e9 * periods * period);
    out->busy = busy ? 0.33 : 0.01;
    out->whole_s = periods * period + 0.05;
    out->memory_bytes = m->bytes[p->format];
    m->now_ns += out->wall_ns;
    return 0;
}

static uint64_t clock_of(void *arg) {
    return ((struct machine *)arg)->now_ns;
}

static const struct gen_format PLAIN[FORMATS] = {{.name = "as given", .kl = NAN},
                                                 {.name = "bf16", .kl = NAN},
                                                 {.name = "int8", .kl = NAN},
                                                 {.name = "int4 g32", .kl = NAN}};

static struct machine machine_of(uint64_t seed) {
    return (struct machine){.seed = seed,
                            .noise = 0.01,
                            .factor = {1, 0.7, 0.5, 0.3},
                            .bytes = {4000000, 2000000, 1000000, 600000},
                            .have_bytes = 1000000000};
}

static struct gen_request request_of(const struct gen_format *formats, int batch) {
    struct gen_request r = {
        .p = 0.95,
        .prompt = PROMPT,
        .output = OUTPUT,
        .formats = formats,
        .time_ns = 120000000000,
        .space = {.values = {{0}, {1, 2, 4, 8, 16, 32}, {16, 32, 64, 128, 512}, {1, 2, 4}},
                  .n = {FORMATS, 6, 5, 3},
                  .given = {0, 3, 4, 1}}};
    if (batch > 0)
        r.space.values[GEN_BATCH][0] = batch, r.space.n[GEN_BATCH] = 1,
        r.space.given[GEN_BATCH] = 0;
    return r;
}

static void run(struct gen *g, struct machine *m, const struct gen_request *r) {
    const struct gen_lab lab = {m, plan, measure, clock_of, NULL};
    struct err e = {0};
    assert_int_equal(gen_run(g, r, &lab, &e), 0);
    // A visit may be under way when time is up, and no more.
    assert_true(m->now_ns - g->begin_ns < r->time_ns + 12000000000);
}

// The least cost of all settings whose budgets are kept with this margin, and the least of a limit.
static double best_cost(const struct machine *m, const struct gen_request *r, double margin) {
    double best = INFINITY;
    for (int f = 0; f < FORMATS; f++)
        for (int b = 0; b < r->space.n[GEN_BATCH]; b++)
            for (int c = 0; c < r->space.n[GEN_CHUNK]; c++)
                for (int t = 0; t < r->space.n[GEN_THREADS]; t++) {
                    struct gen_point p = {.format = f,
                                          .batch = r->space.values[GEN_BATCH][b],
                                          .chunk = r->space.values[GEN_CHUNK][c],
                                          .threads = (int)r->space.values[GEN_THREADS][t]};
                    p.chunk = p.chunk < p.batch * PROMPT ? p.chunk : p.batch * PROMPT;
                    const struct truth x = truth_of(m, &p);
                    if (p.chunk < p.batch || r->formats[f].refused[0] ||
                        m->bytes[f] + (uint64_t)p.batch * 1000 > m->have_bytes)
                        continue;
                    const bool slow_counts = share_of_slow(&x) > 1 - r->p;
                    const double between = slow_counts ? x.between_slow : turn_s(m, &p, p.batch);
                    if ((r->limit_ns[GEN_FIRST] == 0 ||
                         1e9 * x.first * margin <= (double)r->limit_ns[GEN_FIRST]) &&
                        (r->limit_ns[GEN_BETWEEN] == 0 ||
                         1e9 * between * margin <= (double)r->limit_ns[GEN_BETWEEN]))
                        best = fmin(best, x.cost);
                }
    return best;
}

static double cost_of(const struct machine *m, const struct gen *g) {
    return truth_of(m, &g->settings[g->chosen].point).cost;
}

// ---------------------------------------------------------------- what is chosen

static void finds_the_least_latency_of_a_text(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 10; seed++) {
        struct machine m = machine_of(seed);
        const struct gen_request r = request_of(PLAIN, 1);
        struct gen g;
        run(&g, &m, &r);
        assert_int_equal(g.why, TUNE_WHY_FASTER);
        assert_true(cost_of(&m, &g) <= 1.03 * best_cost(&m, &r, 1));
        const struct truth given = truth_of(&m, &g.settings[0].point);
        const double true_gain = given.cost / cost_of(&m, &g);
        assert_true(g.gain.low < 1.03 * true_gain && g.gain.high > 0.97 * true_gain);
        assert_true(g.gain.low > 1);
        assert_false(g.provisional);
        gen_free(&g);
    }
}

static void finds_the_most_tokens_under_budgets(void **state) {
    (void)state;
    int near = 0;
    for (uint64_t seed = 1; seed <= 10; seed++) {
        struct machine m = machine_of(seed);
        struct gen_request r = request_of(PLAIN, 0);
        struct gen g;
        r.limit_ns[GEN_FIRST] = 120000000;
        r.limit_ns[GEN_BETWEEN] = 9000000;
        run(&g, &m, &r);
        assert_true(g.chosen >= 0);
        const struct truth t = truth_of(&m, &g.settings[g.chosen].point);
        assert_true(1e9 * t.first <= 1.02 * (double)r.limit_ns[GEN_FIRST]);
        if (share_of_slow(&t) > 0.05)
            assert_true(1e9 * t.between_slow <= 1.02 * (double)r.limit_ns[GEN_BETWEEN]);
        near += cost_of(&m, &g) <= 1.05 * best_cost(&m, &r, 1.04);
        assert_true(g.bounds[GEN_BETWEEN].asked && g.bounds[GEN_BETWEEN].proven);
        assert_true(g.bounds[GEN_BETWEEN].q.value <= (double)r.limit_ns[GEN_BETWEEN]);
        gen_free(&g);
    }
    assert_true(near >= 9);
}

// A budget that needs a percentile of prompts is not proven in the time of a few.
static void says_when_a_budget_is_not_proven(void **state) {
    (void)state;
    struct machine m = machine_of(3);
    struct gen_request r = request_of(PLAIN, 1);
    struct gen g;
    r.limit_ns[GEN_FIRST] = 400000000;
    r.p = 0.99;
    r.time_ns = 15000000000;
    run(&g, &m, &r);
    assert_true(g.chosen >= 0);
    assert_true(g.provisional);
    assert_false(g.bounds[GEN_FIRST].proven);
    assert_true(g.bounds[GEN_FIRST].asked && !g.bounds[GEN_BETWEEN].asked);
    gen_free(&g);
}

static void a_format_that_is_not_admitted_is_not_measured(void **state) {
    (void)state;
    struct machine m = machine_of(4);
    struct gen_format formats[FORMATS];
    memcpy(formats, PLAIN, sizeof formats);
    strcpy(formats[3].refused, "its divergence is over the limit");
    strcpy(formats[2].refused, "its divergence is over the limit");
    const struct gen_request r = request_of(formats, 1);
    struct gen g;
    run(&g, &m, &r);
    assert_int_equal(g.settings[g.chosen].point.format, 1);
    assert_true(cost_of(&m, &g) <= 1.03 * best_cost(&m, &r, 1));
    int listed = 0;
    for (int i = 0; i < g.n; i++)
        if (g.settings[i].point.format >= 2) {
            assert_int_equal(g.settings[i].visits, 0);
            listed += strcmp(g.settings[i].reason, formats[3].refused) == 0;
        }
    assert_true(listed > 0);
    gen_free(&g);
}

// A format that only loses exactness and no time is not chosen.
static void a_change_that_buys_nothing_is_not_made(void **state) {
    (void)state;
    int idle = 0;
    for (uint64_t seed = 1; seed <= 10; seed++) {
        struct machine m = machine_of(seed);
        for (int f = 1; f < FORMATS; f++)
            m.factor[f] = 1;
        struct gen_request r = request_of(PLAIN, 1);
        struct gen g;
        r.space.given[GEN_THREADS] = 0; // two threads are faster than one
        run(&g, &m, &r);
        assert_int_equal(g.why, TUNE_WHY_FASTER);
        assert_int_equal(g.settings[g.chosen].point.threads, 2);
        idle += g.settings[g.chosen].point.format != 0;
        gen_free(&g);
    }
    assert_true(idle <= 1);
}

// Of formats that are equally fast the one that is nearest to the model is chosen.
static void the_nearer_of_equal_formats_is_chosen(void **state) {
    (void)state;
    int nearest = 0;
    for (uint64_t seed = 1; seed <= 10; seed++) {
        struct machine m = machine_of(seed);
        struct gen_format formats[FORMATS];
        memcpy(formats, PLAIN, sizeof formats);
        m.factor[2] = m.factor[3] = 0.5;
        m.factor[1] = 1;
        formats[1].kl = 1e-4, formats[2].kl = 1e-3, formats[3].kl = 0.05;
        const struct gen_request r = request_of(formats, 1);
        struct gen g;
        run(&g, &m, &r);
        nearest += g.settings[g.chosen].point.format == 2;
        gen_free(&g);
    }
    assert_true(nearest >= 9);
}

static void a_format_that_dies_costs_a_trial(void **state) {
    (void)state;
    struct machine m = machine_of(5);
    m.fails = 3;
    const struct gen_request r = request_of(PLAIN, 1);
    struct gen g;
    run(&g, &m, &r);
    assert_int_equal(g.settings[g.chosen].point.format, 2);
    gen_free(&g);
}

// ---------------------------------------------------------------- what is refused

static void refuses_what_cannot_be_had_with_the_least(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 10; seed++) {
        struct machine m = machine_of(seed);
        struct gen_request r = request_of(PLAIN, 0);
        struct gen g;
        r.limit_ns[GEN_BETWEEN] = 500000;
        run(&g, &m, &r);
        assert_int_equal(g.chosen, -1);
        assert_int_equal(g.why_rc, ERR_MEMORY);
        // One text, int4, two threads: 4 x 0.3 + 0.1 ms.
        const struct gen_setting *least = &g.settings[g.least[GEN_BETWEEN]];
        assert_true(gen_quantile(least, GEN_BETWEEN, r.p).value < 1.1 * 1.3e6);
        assert_int_equal(least->point.batch, 1);
        assert_int_equal(least->point.format, 3);
        assert_non_null(strstr(g.why_none, "time between tokens of at most 0.5 ms"));
        assert_non_null(strstr(g.why_none, "the least here is 1.3"));
        assert_non_null(strstr(g.why_none, "int4 g32"));
        gen_free(&g);
    }
}

static void refuses_two_budgets_that_exclude_each_other(void **state) {
    (void)state;
    struct machine m = machine_of(6);
    struct gen_request r = request_of(PLAIN, 8);
    struct gen g;
    r.limit_ns[GEN_FIRST] = 24000000;  // needs chunks of 64
    r.limit_ns[GEN_BETWEEN] = 3500000; // needs chunks of 16
    run(&g, &m, &r);
    assert_int_equal(g.chosen, -1);
    assert_non_null(strstr(g.why_none, "each budget can be kept alone"));
    gen_free(&g);
}

static void memory_decides_what_can_be_chosen(void **state) {
    (void)state;
    struct machine m = machine_of(7);
    struct gen_request r = request_of(PLAIN, 1);
    struct gen g;
    m.have_bytes = 1500000; // as given does not fit
    run(&g, &m, &r);
    assert_int_equal(g.why, TUNE_WHY_NEEDED);
    assert_true(g.settings[g.chosen].point.format >= 2);
    assert_int_equal(g.settings[0].outcome, TUNE_REFUSED);
    gen_free(&g);
    m = machine_of(7);
    m.have_bytes = 500000;
    run(&g, &m, &r);
    assert_int_equal(g.chosen, -1);
    assert_int_equal(g.why_rc, ERR_MEMORY);
    assert_non_null(strstr(g.why_none, "int4 g32"));
    assert_int_equal(m.measured, 0);
    gen_free(&g);
}

static void says_that_others_are_busy(void **state) {
    (void)state;
    struct machine m = machine_of(8);
    struct gen_request r = request_of(PLAIN, 1);
    struct gen g;
    m.busy = 1;
    r.time_ns = 20000000000;
    run(&g, &m, &r);
    assert_int_equal(g.chosen, -1);
    assert_int_equal(g.why_rc, ERR_BUSY);
    gen_free(&g);
    m = machine_of(8);
    m.busy = 1;
    r.count_busy = true;
    run(&g, &m, &r);
    assert_int_equal(g.why, TUNE_WHY_FASTER);
    gen_free(&g);
}

// ---------------------------------------------------------------- what is announced

// On half of the machines nothing can be gained: formats are as fast as the one given, or slower.
static void announces_no_gain_that_is_not_there(void **state) {
    (void)state;
    enum { SEARCHES = 120 };
    int false_gains = 0, gains = 0, could = 0, held = 0;
    for (uint64_t seed = 1; seed <= SEARCHES; seed++) {
        struct machine m = machine_of(seed);
        const bool worth = seed % 2 == 0;
        m.noise = 0.01 + 0.04 * rng_uniform(seed, 9, 0);
        m.busy = seed % 3 == 0 ? 0.3 : 0;
        for (int f = 1; f < FORMATS; f++)
            m.factor[f] = rng_uniform(seed, 10, (uint64_t)f) < 0.5 ? 1 : 1.2;
        if (worth)
            m.factor[1 + seed / 2 % 3] = 0.6;
        const struct gen_request r = request_of(PLAIN, 1);
        struct gen g;
        run(&g, &m, &r);
        const bool announced = g.chosen > 0 && g.why == TUNE_WHY_FASTER;
        const double cost = g.chosen >= 0 ? cost_of(&m, &g) : NAN,
                     gain = truth_of(&m, &g.settings[0].point).cost / cost;
        could += worth;
        gains += worth && announced;
        false_gains += announced && gain < 1.001;
        held += announced && g.gain.low <= gain && gain <= g.gain.high;
        gen_free(&g);
    }
    print_message("false gains %d of %d, found %d of %d, intervals that hold %d\n", false_gains,
                  SEARCHES / 2, gains, could, held);
    assert_true(false_gains <= SEARCHES / 2 * 5 / 100);
    assert_true(gains >= could * 9 / 10);
    assert_true(held >= gains * 9 / 10);
}

static void a_search_repeats_to_the_bit(void **state) {
    (void)state;
    struct gen g[2];
    for (int i = 0; i < 2; i++) {
        struct machine m = machine_of(11);
        struct gen_request r = request_of(PLAIN, 0);
        r.limit_ns[GEN_BETWEEN] = 9000000;
        m.busy = 0.2;
        run(&g[i], &m, &r);
    }
    assert_int_equal(g[0].chosen, g[1].chosen);
    assert_int_equal(g[0].n, g[1].n);
    assert_int_equal(g[0].trials, g[1].trials);
    assert_memory_equal(&g[0].gain.ratio, &g[1].gain.ratio, sizeof(double));
    gen_free(&g[0]);
    gen_free(&g[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_the_least_latency_of_a_text),
        cmocka_unit_test(finds_the_most_tokens_under_budgets),
        cmocka_unit_test(says_when_a_budget_is_not_proven),
        cmocka_unit_test(a_format_that_is_not_admitted_is_not_measured),
        cmocka_unit_test(a_change_that_buys_nothing_is_not_made),
        cmocka_unit_test(the_nearer_of_equal_formats_is_chosen),
        cmocka_unit_test(a_format_that_dies_costs_a_trial),
        cmocka_unit_test(refuses_what_cannot_be_had_with_the_least),
        cmocka_unit_test(refuses_two_budgets_that_exclude_each_other),
        cmocka_unit_test(memory_decides_what_can_be_chosen),
        cmocka_unit_test(says_that_others_are_busy),
        cmocka_unit_test(announces_no_gain_that_is_not_there),
        cmocka_unit_test(a_search_repeats_to_the_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
