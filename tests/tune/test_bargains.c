// test_bargains.c - what searches announce, on made-up machines whose knobs have effects that are
// drawn, while other programs come and go and the CPUs move. Each answer is compared with the true
// step times.
#include "base/rng.h"
#include "tune/tune_impl.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

struct machine {
    uint64_t seed, drawn;
    uint64_t now_ns;
    double noise, tail; // relative deviation of a step; share of steps that take half as long again
    double bias;        // predicted / true step
    int planned;
    double busy;    // share of the time in which another program runs
    double spell_s; // length of a spell with or without it
    bool blind;     // the search cannot see other programs
    double moves_s; // seconds after which the CPUs may move nearer to each other or apart; 0: never
    const struct knobs *given;
    double worth; // a change that gains makes a step this many times as long
};

static uint64_t bytes_of(const struct knobs *k) {
    double kept = (double)(k->batch_micro * k->seq) * 4096;
    if (k->recompute_mode == RECOMPUTE_MODE_FULL)
        kept *= 1 - 0.8 / (double)k->recompute_every;
    if (k->recompute_mode == RECOMPUTE_MODE_SELECTIVE)
        kept *= 0.6;
    double logits = 1024.0 * (double)(k->logits_chunk ? k->logits_chunk : k->batch_micro * k->seq);
    return (uint64_t)(1e6 + kept + logits);
}

// A machine whose knobs have effects that are drawn. Most have none at all, so that many settings
// are exactly as fast as the recipe; some cost up to a third. With `worth` below 1 one value of one
// knob, or larger micro-batches, gain.
static double drawn(const struct machine *m, const struct knobs *k) {
    double s = 4e-4 * (double)(k->batch_micro * k->batch_accum);
    char value[KNOB_VALUE_BYTES];
    const bool by_batch = rng_uniform(m->seed, 3, 0) < 0.5;
    if (m->worth < 1 && by_batch && k->batch_micro > m->given->batch_micro)
        s *= m->worth;
    for (int id = 0; id < KNOB_COUNT; id++) {
        if (knobs_same(k, m->given, id) || knob_info(id)->flags & KNOB_FACTOR)
            continue;
        uint64_t hash = (uint64_t)id;
        for (const char *c = knobs_value(k, id, value); *c; c++)
            hash = hash * 31 + (uint64_t)*c;
        const double u = rng_uniform(m->seed, 4, hash);
        const bool lucky = m->worth < 1 && !by_batch && rng_uniform(m->seed, 5, hash) < 0.3;
        s *= lucky ? m->worth : u < 0.6 ? 1 : 1 + 0.3 * u;
    }
    return s;
}

// The CPUs share a cache or do not, for some moves_s at a time.
static bool is_far(const struct machine *m) {
    return m->moves_s > 0 &&
           rng_uniform(m->seed, 9, (uint64_t)((double)m->now_ns / (1e9 * m->moves_s))) < 0.5;
}

// How many times as long a step takes while they do not. Measured on a shared virtual machine:
// 1.17 times with a micro-batch of 16, 1.33 times with one of 2, so that the first is faster by 4 %
// near and by 19 % far. Other knobs gain or lose up to 8 % by it.
static double farness(const struct machine *m, const struct knobs *k) {
    double x = 1.17 * pow(16 / (double)k->batch_micro, 0.062);
    char value[KNOB_VALUE_BYTES];
    for (int id = 0; id < KNOB_COUNT; id++) {
        if (knobs_same(k, m->given, id) || knob_info(id)->flags & KNOB_FACTOR)
            continue;
        uint64_t hash = (uint64_t)id;
        for (const char *c = knobs_value(k, id, value); *c; c++)
            hash = hash * 31 + (uint64_t)*c;
        const double u = rng_uniform(m->seed, 10, hash);
        x *= u < 0.5 ? 1 : 0.92 + 0.16 * rng_uniform(m->seed, 11, hash);
    }
    return x;
}

// A look at the distance. Other programs may hide it.
static double look(struct machine *m, double company) {
    const double ns = (is_far(m) ? 380 : 43) * (1 + 0.05 * rng_normal(m->seed, 12, m->drawn++));
    return company > 1 && rng_uniform(m->seed, 12, m->drawn++) < 0.5 ? NAN : ns;
}

static int plan(void *arg, const struct knobs *k, struct tune_plan *out, struct err *e) {
    struct machine *m = arg;
    (void)e;
    m->planned++;
    m->now_ns += 1000000;
    out->need_bytes = bytes_of(k);
    out->have_bytes = 1u << 30;
    // Predictions are off by some 5 %, each by its own.
    out->step_s = drawn(m, k) * m->bias * (1 + 0.05 * sin((double)k->batch_micro)) *
                  (1 + 0.05 * rng_normal(m->seed, 6, (uint64_t)m->planned));
    return 0;
}

// While another program runs, every step takes this many times as long.
static double company(const struct machine *m) {
    const uint64_t window = m->now_ns / (uint64_t)(1e9 * m->spell_s);
    return rng_uniform(m->seed, 2, window) < m->busy ? 1.6 : 1;
}

static int measure(void *arg, const struct knobs *k, const struct tune_order *o,
                   struct tune_measured *out, struct err *e) {
    struct machine *m = arg;
    out->step_ns = calloc((size_t)o->steps, sizeof *out->step_ns);
    if (!out->step_ns)
        return err_set(e, ERR_MEMORY, "out of memory");
    uint64_t looked_ns = m->now_ns;
    double lost_ns = 0;
    for (int64_t i = -o->warmup; i < o->steps; i++) {
        double ns = 1e9 * drawn(m, k) * (1 + m->noise * rng_normal(m->seed, 0, m->drawn++));
        if (rng_uniform(m->seed, 1, m->drawn++) < m->tail)
            ns *= 1.5;
        ns *= company(m) * (is_far(m) ? farness(m, k) : 1);
        if (i == 0 && m->moves_s > 0)
            apart_add(&out->cpus, look(m, company(m)));
        m->now_ns += (uint64_t)ns;
        if (i < 0)
            continue;
        if (m->moves_s > 0 && m->now_ns - looked_ns > 100000000) {
            apart_add(&out->cpus, look(m, company(m)));
            looked_ns = m->now_ns;
        }
        lost_ns += ns * (1 - 1 / company(m));
        out->step_ns[out->n++] = ns;
        out->wall_ns += (uint64_t)ns;
        out->tokens += (uint64_t)(k->batch_micro * k->batch_accum * k->seq);
        if (o->judge(o->judge_arg, out->step_ns, out->n) != TUNE_GO_ON)
            break;
    }
    if (m->moves_s > 0)
        apart_add(&out->cpus, look(m, company(m)));
    out->split.wall_ns = out->split.ns[TIME_MATMUL] = out->wall_ns;
    out->split.steps = out->n;
    out->busy = m->blind ? NAN : lost_ns / (double)out->wall_ns;
    out->joules = NAN;
    return 0;
}

static uint64_t now(void *arg) {
    return ((struct machine *)arg)->now_ns;
}

static void run(struct tune *t, struct machine *m, const struct tune_request *r) {
    const struct tune_lab lab = {.arg = m, .plan = plan, .measure = measure, .clock_ns = now};
    struct err e = {0};
    if (tune_run(t, m->given, r, &lab, &e) != 0)
        fail_msg("%s", e.text);
}

// Where the CPUs move, a gain must be there at each distance that the answer speaks of, and the
// interval must hold it.
struct bargains {
    int searches, announced, false_gains, chances, taken, too_busy, covered, intervals, idle, both;
    double widths[1024];
};

static double true_gain(const struct machine *m, const struct knobs *k, bool far) {
    const double apart = far ? farness(m, m->given) / farness(m, k) : 1;
    return drawn(m, m->given) / drawn(m, k) * apart;
}

// The least gain, at the distances that the answer speaks of, or with NULL at all there are.
static double least_gain(const struct machine *m, const struct knobs *k,
                         const struct tune_turns *of) {
    double least = INFINITY;
    for (int far = 0; far <= (m->moves_s > 0); far++) {
        bool named = !of || m->moves_s == 0;
        for (int s = 0; of && s < of->n_states; s++)
            named |= (of->states[s].apart_ns > 120) == far;
        if (named)
            least = fmin(least, true_gain(m, k, far));
    }
    return least;
}

static bool is_held(const struct machine *m, const struct knobs *k, const struct tune_turns *of) {
    bool held = true;
    for (int s = 0; s < of->n_states; s++) {
        const double gain = true_gain(m, k, m->moves_s > 0 && of->states[s].apart_ns > 120);
        held &= of->low <= gain && gain <= of->high && of->states[s].low >= of->low &&
                of->states[s].high <= of->high;
    }
    return held && of->n_states > 0;
}

// The same, whatever the search says of distances: the interval holds the gain at each distance at
// which at least three of the last visits were made, those of the duel.
static bool is_held_where_it_ran(const struct machine *m, const struct tune_setting *s) {
    int visits[2] = {0};
    bool held = true;
    for (int i = s->n_blocks - s->turns.rounds; i < s->n_blocks; i++)
        if (i >= 0 && !s->blocks[i].busy &&
            (s->blocks[i].apart_ns < 90 || s->blocks[i].apart_ns > 200))
            visits[s->blocks[i].apart_ns > 200]++;
    for (int far = 0; far < 2; far++) {
        const double gain = true_gain(m, &s->knobs, far);
        held &= visits[far] < 3 || (s->turns.low <= gain && gain <= s->turns.high);
    }
    return held;
}

static void bargain(struct bargains *b, uint64_t seed, double worth, bool moves) {
    const double draw = rng_uniform(seed, 7, 0);
    const struct tune_request r = {.goal = TUNE_BULK, .time_ns = 60000000000, .cpus = 2};
    struct machine m = {.seed = seed, .worth = worth};
    struct knobs k;
    struct tune t;
    double best = 1;
    knobs_init(&k);
    k.batch_micro = 1 << (int)(5 * rng_uniform(seed, 7, 1)), k.batch_accum = 16, k.seq = 128;
    m.given = &k;
    m.bias = 0.8 + 0.4 * rng_uniform(seed, 7, 2);
    m.noise = 0.01 + 0.05 * rng_uniform(seed, 7, 3);
    m.tail = 0.03 * rng_uniform(seed, 7, 4);
    m.busy = draw < 0.2 ? 0 : 0.7 * draw;
    m.spell_s = 0.5 * exp(3.5 * rng_uniform(seed, 7, 5)); // to 16 s
    m.blind = rng_uniform(seed, 7, 6) < 0.3;
    m.moves_s = moves ? 5 * exp(2 * rng_uniform(seed, 7, 7)) : 0; // to 37 s
    run(&t, &m, &r);
    assert_true(t.chosen >= 0);
    const struct tune_setting *c = &t.settings[t.chosen];
    for (int i = 0; i < t.n; i++)
        if (t.settings[i].outcome != TUNE_REFUSED)
            best = fmax(best, least_gain(&m, &t.settings[i].knobs, NULL));
    const bool false_gain = t.chosen > 0 && least_gain(&m, &c->knobs, &c->turns) < 1.0001;
    b->searches++;
    b->announced += t.chosen > 0;
    b->false_gains += false_gain;
    b->chances += best >= 1.0999;
    b->taken += best >= 1.0999 && t.chosen > 0 && !false_gain;
    b->too_busy += t.why == TUNE_WHY_TOO_BUSY;
    if (t.chosen > 0 && t.why == TUNE_WHY_FASTER) {
        b->widths[b->intervals++] = c->turns.high - c->turns.low;
        b->covered += is_held(&m, &c->knobs, &c->turns) && is_held_where_it_ran(&m, c);
        b->both += c->turns.n_states > 1;
        for (int id = 0; id < KNOB_COUNT; id++) { // changes that buy nothing
            struct knobs less = c->knobs;
            char value[KNOB_VALUE_BYTES];
            if (knobs_same(&less, &k, id) || knob_info(id)->flags & KNOB_FACTOR)
                continue;
            assert_int_equal(
                knobs_set_at(&less, id, knobs_value(&k, id, value), SET_BY_TUNER, NULL), 0);
            if (less.recompute_mode == RECOMPUTE_MODE_NONE)
                less.recompute_every = k.recompute_every; // it has no effect now
            bool buys = false;
            for (int far = 0; far <= moves; far++)
                buys |= true_gain(&m, &less, far) <= 0.9999 * true_gain(&m, &c->knobs, far);
            b->idle += !buys;
        }
    }
    tune_free(&t);
}

static void hold_to_account(uint64_t searches, bool moves) {
    struct bargains b = {0};
#ifdef __SANITIZE_ADDRESS__
    searches /= 8; // each takes four times as long
#endif
    for (uint64_t seed = 1; seed <= searches; seed++)
        bargain(&b, seed, seed % 2 ? 1 : 0.7 + 0.2 * rng_uniform(seed, 8, 0), moves);
    const double width = sample_median(b.widths, (size_t)b.intervals);
    print_message(
        "%d searches%s: %d announce a gain, %d of them a false one; %d of %d true gains of "
        "10 %% or more are announced; %d too busy; %d of %d intervals hold the truth, "
        "median width %.1f %%, %d at both distances; %d changes buy nothing\n",
        b.searches, moves ? " while CPUs move" : "", b.announced, b.false_gains, b.taken, b.chances,
        b.too_busy, b.covered, b.intervals, 100 * width, b.both, b.idle);
    assert_true(b.false_gains * 20 <= b.searches);
    assert_true(b.taken * 10 >= b.chances * 9);
    assert_true(b.chances >= b.searches / 3);
    assert_true(b.covered * 20 >= b.intervals * 19);
    // Where CPUs move, a change counts as idle only if it buys nothing at either distance.
    assert_true(b.idle * (moves ? 8 : 10) <= b.announced);
    if (moves)
        assert_true(b.both * 6 >= b.intervals);
}

static void test_bargains(void **state) {
    (void)state;
    hold_to_account(500, false);
}

// The same while the CPUs move, which changes the ratios.
static void test_bargains_while_cpus_move(void **state) {
    (void)state;
    hold_to_account(getenv("HAGGLE_TEST_LONG") ? 500 : 250, true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bargains),
        cmocka_unit_test(test_bargains_while_cpus_move),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
