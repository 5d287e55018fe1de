// test_tune_page.c - the page of a search: what it says about the choice, that no text in it can
// become markup, and that a search without a choice or without any setting has a page too.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/text.h"
#include "report/tune_page.h"
#include "tune/again.h"
#include "tune/tune_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static char *page_of(const struct tune *t, const struct tune_facts *facts) {
    char *out = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&out, &bytes);
    assert_non_null(f);
    assert_int_equal(tune_page(f, t, facts, NULL), 0);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(strlen(out), bytes);
    return out;
}

static int count(const char *text, const char *what) {
    int n = 0;
    for (const char *at = strstr(text, what); at; at = strstr(at + 1, what))
        n++;
    return n;
}

// Every element that is opened is closed.
static void check_form(const char *page) {
    static const char *const elements[] = {"main", "section", "figure", "table", "tbody", "tr",
                                           "svg",  "details", "ol",     "ul",    "dl",    "script"};
    for (size_t i = 0; i < sizeof elements / sizeof *elements; i++) {
        char open[16], blank[16], close[16];
        snprintf(open, sizeof open, "<%s>", elements[i]);
        snprintf(blank, sizeof blank, "<%s ", elements[i]);
        snprintf(close, sizeof close, "</%s>", elements[i]);
        assert_int_equal(count(page, open) + count(page, blank), count(page, close));
    }
    assert_int_equal(count(page, "<script"), 1);
    assert_non_null(strstr(page, "default-src 'none'"));
    assert_null(strstr(page, "http://"));
    assert_null(strstr(page, "https://"));
    assert_null(strstr(page, "nan"));
    assert_null(strstr(page, "inf "));
}

static void visit(struct tune *t, int i, double ms, size_t n) {
    double *ns = calloc(n, sizeof *ns);
    assert_non_null(ns);
    const struct knobs *k = &t->settings[i].knobs;
    struct tune_measured m = {.step_ns = ns, .n = n, .joules = NAN};
    for (size_t s = 0; s < n; s++) {
        ns[s] = 1e6 * ms * (1 + 0.01 * (double)(s % 7));
        m.wall_ns += (uint64_t)ns[s];
        m.tokens += (uint64_t)(k->batch_micro * k->batch_accum * k->seq);
    }
    m.split.ns[TIME_MATMUL] = m.split.wall_ns = m.wall_ns;
    m.split.steps = n;
    assert_int_equal(tune_again_visit(t, i, &m, NULL), 0);
    t->settings[i].need_bytes = 1000000u * (uint64_t)k->batch_micro;
    t->settings[i].predicted_s = 1.1e-3 * 1.03 * ms; // 10 % above the median
    free(ns);
}

// Micro-batches of 1, 2, 4, ...: each twice as fast as the one before.
static void search(struct tune *t, double limit_ms, int settings, size_t steps) {
    struct knobs k;
    knobs_init(&k);
    k.batch_micro = 1, k.batch_accum = 16, k.seq = 64;
    struct tune_request r = {.goal = TUNE_BULK, .time_ns = 1000000000, .cpus = 2};
    r.limit_ns[TUNE_P99] = (uint64_t)(1e6 * limit_ms);
    assert_int_equal(tune_again_begin(t, &k, &r, NULL), 0);
    for (int i = 0; i < settings; i++, k.batch_micro *= 2, k.batch_accum /= 2) {
        assert_int_equal(tune_again_add(t, &k, STAGE_SPLIT, NULL), i);
        visit(t, i, 80 / (1 << i), steps);
    }
    t->end_ns = 5000000000;
}

// Setting i ran in turns with as given, at this ratio of speeds.
static void turns(struct tune *t, int i, int rounds, double ratio, double low, double high) {
    t->settings[i].turns = (struct tune_turns){
        .rounds = rounds, .ratio = ratio, .low = low, .high = high, .tokens_per_s = NAN};
    t->settings[i].turns.tokens_per_s = 1000 * ratio;
}

// As given does 1000 tokens/s in turns. The others were measured at other times, when the machine
// was faster: all of them look faster than that.
static void compared(struct tune *t, int settings, int at, double ratio, double low, double high) {
    search(t, 0, settings, 20);
    turns(t, 0, 14, 1, NAN, NAN);
    turns(t, at, 14, ratio, low, high);
    t->rival = at;
}

static void test_choice(void **state) {
    (void)state;
    struct tune t;
    struct tune_facts facts = {.model = "tiny", .machine = "a CPU", .verdict = "one; or half\ntwo"};
    search(&t, 50, 4, 400);
    turns(&t, 0, 14, 1, NAN, NAN);
    turns(&t, 3, 14, 8, 7.5, 8.5);
    tune_again_end(&t, 3);
    t.why = TUNE_WHY_NEEDED;
    assert_int_equal(t.settings[0].outcome, TUNE_OVER);
    char *page = page_of(&t, &facts);
    check_form(page);
    assert_non_null(strstr(page, "batch.micro=8"));
    assert_non_null(strstr(page, "because as given breaks a budget:</b> p99 is"));
    assert_non_null(strstr(page,
                           "It trains 700 % faster than as given: 650 to 750 %, 95 % sure, 14 "
                           "rounds in turns with as given."));
    assert_non_null(strstr(page, "<td>8.0 times <small>(7.5 to 8.5)</small></td>"));
    assert_non_null(strstr(page, "at most 50.0 ms<small>kept, 95 % sure; as given: over</small>"));
    assert_non_null(strstr(page, "<li>one; or half</li>"));
    assert_non_null(strstr(page, "<li>two</li>"));
    assert_non_null(strstr(page, "no meter"));
    assert_non_null(strstr(page, "n=400, at most")); // there are enough steps for p99
    assert_null(strstr(page, "provisional"));
    assert_non_null(strstr(page, "<b>10.0&thinsp;%</b>"));
    assert_non_null(strstr(page, "p99 budget 50.0 ms"));
    assert_non_null(strstr(page, "over the budget of 50 ms")); // the reason why as given is out
    assert_int_equal(count(page, "<span class=\"mark chosen\""), 3);
    free(page);
    tune_free(&t);
}

static void test_too_few_steps(void **state) {
    (void)state;
    struct tune t;
    struct tune_facts facts = {.model = "tiny"};
    search(&t, 100, 2, 20);
    tune_again_end(&t, 1);
    assert_true(t.provisional);
    char *page = page_of(&t, &facts);
    check_form(page);
    assert_non_null(strstr(page, "provisional"));
    assert_non_null(strstr(page, "n=20, unbounded: needs 299"));
    assert_non_null(strstr(page, "not proven"));
    assert_non_null(strstr(page, "Memory by class is not known"));
    free(page);
    tune_free(&t);
}

static void test_as_given_is_best(void **state) {
    (void)state;
    struct tune t;
    struct tune_facts facts = {.model = "tiny", .given = {.known = true}};
    facts.given.by_class[CLASS_WEIGHT] = 600000;
    search(&t, 100, 1, 20);
    tune_again_end(&t, 0);
    char *page = page_of(&t, &facts);
    check_form(page);
    assert_non_null(strstr(page, "Keep what you have:</b> no setting that was tried is better"));
    assert_non_null(strstr(page, "as given = chosen"));
    assert_non_null(strstr(page, "program, loader, gaps"));
    free(page);
    tune_free(&t);
}

static void test_hybrid(void **state) {
    (void)state;
    struct tune t;
    struct tune_facts facts = {.model = "tiny"};
    search(&t, 100, 2, 20);
    t.request.goal = TUNE_HYBRID;
    t.request.respond_ns = 2000000000;
    tune_again_end(&t, 1);
    char *page = page_of(&t, &facts);
    check_form(page);
    assert_non_null(strstr(page, "a request answered within 2.0 s"));
    assert_non_null(strstr(page, "<th scope=\"row\">a request waits, p95</th>"));
    assert_non_null(strstr(page, "<small>a request waits, p95</small>")); // a tile
    assert_non_null(strstr(page, "under the 2.0 s budget, not proven"));
    free(page);
    tune_free(&t);
}

// The page shows the wait that the budget limits: its p95, with n and bound.
static void test_wait_of_a_request(void **state) {
    (void)state;
    struct tune t;
    struct tune_facts facts = {.model = "tiny"};
    char value[64], note[96], text[TEXT_UNIT_BYTES];
    search(&t, 0, 2, 400);
    for (size_t s = 0; s < t.settings[1].n; s++) // puts p95 and p99 far apart
        t.settings[1].step_ns[s] = s % 50 == 0 ? 4e9 : 40e6;
    t.request.goal = TUNE_HYBRID;
    t.request.respond_ns = 2000000000;
    tune_again_end(&t, 1);
    assert_int_equal(t.n_bounds, 1);
    assert_true(t.bounds[0].respond && t.bounds[0].proven);
    char *page = page_of(&t, &facts);
    check_form(page);
    const char *row = strstr(page, "<th scope=\"row\">a request waits, p95</th>");
    assert_non_null(row);
    const char *end = strstr(row, "</tr>");
    snprintf(value, sizeof value, "<td>%s<small>", text_duration(text, 1e-9 * t.bounds[0].q.value));
    snprintf(note, sizeof note, "n=400, at most %s (95 %%)",
             text_duration(text, 1e-9 * t.bounds[0].q.upper95));
    assert_true(strstr(row, value) && strstr(row, value) < end);
    assert_true(strstr(row, note) && strstr(row, note) < end);
    assert_non_null(strstr(page, "under the 2.0 s budget, 95 % sure"));
    free(page);
    tune_free(&t);
}

// Each setting is half as fast as the next and takes less energy, so all are on the frontier.
static void test_energy(void **state) {
    (void)state;
    struct tune t;
    struct tune_facts facts = {.model = "tiny"};
    search(&t, 100, 4, 400);
    t.request.joules_per_token = 0.004;
    for (int i = 0; i < 4; i++) {
        t.settings[i].need_bytes = 1000000;
        t.settings[i].joule_tokens = t.settings[i].tokens;
        t.settings[i].joule_ns = t.settings[i].wall_ns;
        t.settings[i].joules = 0.001 * (i + 1) * (double)t.settings[i].tokens;
    }
    t.settings[2].joules *= 1.5; // over its budget
    tune_again_end(&t, 1);
    for (int i = 0; i < 4; i++)
        assert_int_equal(t.settings[i].frontier, i != 2); // 3 is faster and takes less energy
    char *page = page_of(&t, &facts);
    check_form(page);
    assert_non_null(strstr(page, "speed, latency, memory and energy"));
    assert_non_null(strstr(page, "<figure id=\"energy\">"));
    assert_non_null(strstr(page, "energy, mJ per token"));
    assert_non_null(strstr(page, "budget 4 mJ per token"));
    assert_non_null(strstr(page, "&#10;0.002 J per token")); // under the cursor
    assert_non_null(strstr(page, "<th scope=\"col\">J/token</th>"));
    assert_non_null(strstr(page, "<td data-v=\"0.002\">0.002</td>"));
    assert_int_equal(count(page, "<span class=\"mark chosen\""), 4);
    free(page);
    t.settings[0].joule_tokens = 0; // not metered: energy does not count
    frontier_mark(&t);
    assert_false(t.settings[0].frontier);
    for (int i = 1; i < 4; i++)
        t.settings[i].joule_tokens = 0;
    page = page_of(&t, &facts);
    check_form(page);
    assert_null(strstr(page, "J/token"));
    assert_null(strstr(page, "id=\"energy\""));
    free(page);
    tune_free(&t);
}

static void test_second_model(void **state) {
    (void)state;
    struct tune t;
    struct tune_facts facts = {.model = "tiny",
                               .given = {.known = true, .second_bytes = 300 << 10},
                               .chosen = {.known = true, .second_bytes = 300 << 10}};
    facts.given.by_class[CLASS_WEIGHT] = facts.chosen.by_class[CLASS_WEIGHT] = 400 << 10;
    search(&t, 100, 2, 20);
    t.settings[0].need_bytes = t.settings[1].need_bytes = 800 << 10;
    tune_again_end(&t, 1);
    char *page = page_of(&t, &facts);
    check_form(page);
    assert_int_equal(count(page, "title=\"second model: 300.00 KiB\""), 2);
    assert_int_equal(count(page, "title=\"program, loader, gaps: 100.00 KiB\""), 2);
    free(page);
    tune_free(&t);
}

// For a search from the store, the machine's memory is not known. Then the axis covers the
// settings, and a budget is drawn as a line.
static void test_memory_without_what_there_is(void **state) {
    (void)state;
    struct tune t;
    struct tune_facts facts = {.model = "tiny", .given = {.known = true}};
    double left = NAN, least = INFINITY;
    facts.given.by_class[CLASS_WEIGHT] = 1000 << 20;
    search(&t, 100, 4, 20);
    for (int i = 0; i < 4; i++)
        t.settings[i].need_bytes = (uint64_t)(1000 + i) << 20;
    tune_again_end(&t, 3);
    char *page = page_of(&t, &facts);
    check_form(page);
    const char *plot = strstr(page, "data-plot=\"memory-plot\""), *end = strstr(page, "cdf");
    assert_true(plot && end);
    for (const char *at = plot; (at = strstr(at, "<span class=\"mark ")) && at < end; at++) {
        assert_int_equal(sscanf(at, "<span class=\"mark %*[a-z ]\" style=\"left:%lf", &left), 1);
        least = fmin(least, left);
    }
    assert_true(least < 50); // not all of them at the far end
    assert_null(strstr(page, "The line is"));
    free(page);
    facts.memory_budget = (uint64_t)1010 << 20;
    page = page_of(&t, &facts);
    check_form(page);
    assert_non_null(strstr(page, ">budget 1010.00 MiB<"));
    assert_non_null(strstr(page, "The line is the budget, 1010.00 MiB."));
    assert_non_null(strstr(page, "the budget is 1010.00 MiB"));
    free(page);
    tune_free(&t);
}

static void test_a_failure_that_was_overcome(void **state) {
    (void)state;
    struct tune t;
    struct tune_facts facts = {.model = "tiny"};
    const struct tune_measured failed = {.rc = ERR_INTERNAL, .reason = "its process died"};
    search(&t, 100, 2, 20);
    assert_int_equal(tune_again_visit(&t, 1, &failed, NULL), 0);
    assert_int_equal(t.settings[1].outcome, TUNE_FAILED);
    visit(&t, 1, 40, 20);
    tune_again_end(&t, 0);
    assert_int_equal(t.settings[1].outcome, TUNE_MEASURED);
    char *page = page_of(&t, &facts);
    check_form(page);
    assert_null(strstr(page, "its process died"));
    free(page);
    tune_free(&t);
}

static void test_gain(void **state) {
    (void)state;
    struct tune t;
    struct tune_facts facts = {.model = "tiny"};
    compared(&t, 3, 1, 1.101, 1.082, 1.123);
    tune_again_end(&t, 1);
    t.why = TUNE_WHY_FASTER;
    char *page = page_of(&t, &facts);
    check_form(page);
    assert_non_null(strstr(page, "<b>train 10.1 % faster</b> than as given: 8.2 to 12.3 %, 95 % "
                                 "sure, 14 rounds in turns with as given."));
    assert_non_null(strstr(page, "as given 1000: +10.1 % (+8.2 to +12.3)")); // a tile
    assert_non_null(
        strstr(page, "<td>+10.1 % <small>(+8.2 to +12.3)</small></td>")); // what changes
    // Figures in turns agree with the ratio, whatever the visits showed.
    assert_non_null(strstr(page, "<td>1101</td>"));
    // Two sequences of 64 tokens at 1101 tokens/s, one at 1000.
    assert_non_null(strstr(page, "<b>116 ms</b><small>its micro-batch&#39;s time; as given 64 ms: "
                                 "worse, 82 % longer</small>"));
    free(page);
    t.settings[1].turns.rounds = 0; // a store of an older search does not have them
    t.why = TUNE_WHY_NONE;
    page = page_of(&t, &facts);
    check_form(page);
    assert_non_null(strstr(page, "what it gained in turns with as given is not known"));
    assert_null(strstr(page, "% faster"));
    free(page);
    t.request.goal = TUNE_INTERACTIVE; // the ratio is that of the latency
    turns(&t, 1, 14, 1.25, 1.2, 1.3);
    t.why = TUNE_WHY_FASTER;
    page = page_of(&t, &facts);
    check_form(page);
    assert_non_null(strstr(page, "<b>a sample takes 20.0 % less time</b> than as given: 16.7 to "
                                 "23.1 %, 95 % sure"));
    assert_non_null(strstr(page, "<b>51.2 ms</b><small>its micro-batch&#39;s time; as given 64 ms: "
                                 "better, 20 % shorter</small>"));
    assert_non_null(strstr(page, "latency of a sample (its micro-batch's time), ms")); // an axis
    free(page);
    tune_free(&t);
}

static void test_kept(void **state) {
    (void)state;
    static const struct {
        enum tune_why why;
        double low, high;
        const char *says[3];
    } cases[] = {
        {TUNE_WHY_EQUAL,
         0.992,
         1.036,
         {"no other setting is better beyond", "1.4 % faster (-0.8 to +3.6 %, 95 % sure, 14"}},
        {TUNE_WHY_BEST, 0.992, 1.036, {"Keep what you have:</b> every other setting is slower"}},
        {TUNE_WHY_ALONE, 0.992, 1.036, {"slower by far, breaks a budget or does not run"}},
        {TUNE_WHY_EQUAL, NAN, NAN, {"too few rounds count to show", "Give more <code>--time"}},
        {TUNE_WHY_EQUAL, 0, 0, {"too few rounds count to show", "none of its rounds counts"}},
        {TUNE_WHY_TOO_BUSY,
         NAN,
         NAN,
         {"Too busy to tell: nothing was changed.", "busy in 3 of 9 trials, with up to 40 %",
          "Try again when the machine is quiet"}}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct tune t;
        struct tune_facts facts = {.model = "tiny"};
        compared(&t, 3, 1, 1.014, cases[c].low, cases[c].high);
        tune_again_end(&t, 0);
        t.why = cases[c].why;
        if (cases[c].high == 0) // it has not run in turns at all
            t.settings[1].turns = (struct tune_turns){0};
        t.busy = 3, t.trials = 9, t.busy_most = 0.4;
        char *page = page_of(&t, &facts);
        check_form(page);
        for (int i = 0; i < 3 && cases[c].says[i]; i++)
            if (!strstr(page, cases[c].says[i]))
                fail_msg("case %zu lacks '%s'", c, cases[c].says[i]);
        free(page);
        tune_free(&t);
    }
}

// No setting looks better than the choice without a word why, in the plot and in the table.
static void test_better_than_the_choice(void **state) {
    (void)state;
    struct tune t;
    struct tune_facts facts = {.model = "tiny"};
    char text[TUNE_WORDS_BYTES];
    compared(&t, 5, 1, 1.10, 1.08, 1.12);
    turns(&t, 2, 9, 1.11, 1.07, 1.15); // within the interval of the choice
    assert_true(knobs_set_at(&t.settings[2].knobs, KNOB_threads, "7", SET_BY_TUNER, NULL) == 0);
    t.settings[4].outcome = TUNE_FAILED;
    snprintf(t.settings[4].reason, sizeof t.settings[4].reason, "its process died");
    tune_again_end(&t, 1);
    t.why = TUNE_WHY_FASTER;
    for (int i = 2; i < 5; i++)
        assert_true(tune_looks_better(&t, i) && tune_reason(text, &t, i)[0]);
    assert_false(tune_looks_better(&t, 0) || tune_looks_better(&t, 1));
    assert_true(tune_is_glance(&t, 3) && !tune_is_glance(&t, 2) && !tune_is_glance(&t, 1));
    char *page = page_of(&t, &facts);
    check_form(page);
    assert_int_equal(count(page,
                           "3 settings look faster than the choice and were not taken: 1 only "
                           "glanced at, not run in turns, 1 not surely better, 1 over a "
                           "budget or failed"),
                     1);
    // In the planes of latency and of memory, in the predictions and in the table.
    assert_int_equal(count(page, "a glance of 206 ms (n=20), not run in turns"), 4);
    assert_int_equal(count(page, "not surely better than the choice, and it changes 3 knobs, the "
                                 "choice 2"),
                     4);
    assert_int_equal(count(page, "failed: its process died"), 4);
    assert_int_equal(count(page, "a glance of 206 ms, n=20: "), 3); // with its interval
    assert_int_equal(count(page, "<span class=\"mark frontier glance\""), 3);
    assert_int_equal(count(page, "class=\"line interval glance\""), 4); // of 3 and 4, in two planes
    assert_int_equal(count(page, "class=\"line interval\""), 4);
    static const char *const order[5] = {"batch.micro=2 ", ">as given<", "batch.micro=4 ",
                                         "batch.micro=8 ", "batch.micro=16 "};
    const char *row = strstr(page, "<table class=\"trials\">");
    for (int i = 0; i < 5; i++) // the choice, as given, in turns, a glance, one that failed
        assert_non_null(row = strstr(row, order[i]));
    free(page);
    // Five steps have no interval.
    t.settings[3].blocks[0].n = 5;
    page = page_of(&t, &facts);
    assert_int_equal(count(page, "n=5: no interval"), 3);
    free(page);
    tune_free(&t);
}

static void test_nothing(void **state) {
    (void)state;
    struct tune t;
    struct tune_facts facts = {0};
    search(&t, 1, 0, 0);
    t.settings[0].outcome = TUNE_REFUSED;
    snprintf(t.settings[0].reason, sizeof t.settings[0].reason, "needs 9 GiB");
    snprintf(t.why_none, sizeof t.why_none, "nothing fits");
    tune_again_end(&t, -1);
    char *page = page_of(&t, &facts);
    check_form(page);
    assert_non_null(strstr(page, "Nothing was chosen.</b> nothing fits"));
    assert_non_null(strstr(page, "Nothing was measured"));
    assert_non_null(strstr(page, "needs 9 GiB"));
    free(page);
    tune_free(&t);
    memset(&t, 0, sizeof t); // there is not even the recipe as given
    t.chosen = -1;
    page = page_of(&t, &facts);
    check_form(page);
    free(page);
}

static void test_hostile_text(void **state) {
    (void)state;
    static const char bad[] =
        "\"><script>alert(1)</script>'<img src=x onerror=y>\n&#10;\xFF; </style>";
    struct tune t;
    struct tune_facts facts = {.model = bad,
                               .machine = bad,
                               .verdict = bad,
                               .recipe = bad,
                               .saved_as = bad,
                               .missing = bad};
    search(&t, 50, 3, 30);
    for (int i = 0; i < t.n; i++) {
        snprintf(t.settings[i].name, sizeof t.settings[i].name, "%s", bad);
        snprintf(t.settings[i].reason, sizeof t.settings[i].reason, "%s", bad);
    }
    for (int i = 0; i < STAGE_COUNT; i++) {
        snprintf(t.stages[i].text, sizeof t.stages[i].text, "%s", bad);
        t.stages[i].done = true;
    }
    tune_again_end(&t, 2);
    for (int chosen = -1; chosen < 3; chosen++) {
        t.chosen = chosen;
        snprintf(t.why_none, sizeof t.why_none, "%s", bad);
        char *page = page_of(&t, &facts);
        check_form(page);
        assert_null(strstr(page, "<img"));
        assert_null(strstr(page, "alert(1)<"));
        assert_int_equal(count(page, "</style>"), 1);
        free(page);
    }
    tune_free(&t);
}

// Extreme figures: a step that takes no time, one that takes an hour, one sample, NaN.
static void test_odd_figures(void **state) {
    (void)state;
    struct tune t;
    struct tune_facts facts = {.model = "tiny", .memory_budget = UINT64_MAX};
    search(&t, 1e-6, 4, 1);
    t.settings[1].step_ns[0] = 0;
    t.settings[1].wall_ns = 0;
    t.settings[2].step_ns[0] = 3.6e12;
    t.settings[2].predicted_s = NAN;
    t.settings[3].need_bytes = UINT64_MAX;
    t.settings[3].predicted_s = 0;
    for (int chosen = -1; chosen < 4; chosen++) {
        tune_again_end(&t, chosen);
        t.n_bounds = 0;
        char *page = page_of(&t, &facts);
        check_form(page);
        free(page);
    }
    tune_free(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choice),
        cmocka_unit_test(test_too_few_steps),
        cmocka_unit_test(test_as_given_is_best),
        cmocka_unit_test(test_nothing),
        cmocka_unit_test(test_hybrid),
        cmocka_unit_test(test_gain),
        cmocka_unit_test(test_kept),
        cmocka_unit_test(test_better_than_the_choice),
        cmocka_unit_test(test_hostile_text),
        cmocka_unit_test(test_odd_figures),
        cmocka_unit_test(test_wait_of_a_request),
        cmocka_unit_test(test_energy),
        cmocka_unit_test(test_second_model),
        cmocka_unit_test(test_memory_without_what_there_is),
        cmocka_unit_test(test_a_failure_that_was_overcome),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
