// playbook.c - the stages of a search, in the order a careful engineer takes them: profile the
// recipe as given, see what fits, look at the latency target, change the batch, trade time for
// memory, then tune the loader, the threads and fusion, and compare the best settings at the end.
//
// Every stage ends with a sentence that says what it decided and why. A stage with nothing to do
// says so. Each stage ends by a share of the search's time (tune_policy.time), so that some is
// always left for the finalists.
#include "tune/tune_impl.h"

#include "base/text.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct stage_at {
    enum tune_stage stage;
    int trials;
    uint64_t ns;
};

static struct stage_at begin(const struct tune *t, enum tune_stage stage) {
    return (struct stage_at){stage, t->trials, t->lab.clock_ns(t->lab.arg)};
}

__attribute__((format(printf, 3, 4))) static void decide(struct tune *t, const struct stage_at *at,
                                                         const char *format, ...) {
    struct tune_decision *d = &t->stages[at->stage];
    va_list args;
    va_start(args, format);
    vsnprintf(d->text, sizeof d->text, format, args);
    va_end(args);
    d->trials = t->trials - at->trials;
    d->ns = t->lab.clock_ns(t->lab.arg) - at->ns;
    d->done = true;
    if (t->lab.on_stage)
        t->lab.on_stage(t->lab.heard_arg, t, (int)at->stage);
}

// ---------------------------------------------------------------- exploring, best first

typedef bool pick_fn(const struct tune *t, int i);

static bool pick_same_batch(const struct tune *t, int i) {
    return tune_samples_per_step(&t->settings[i].knobs) ==
           tune_samples_per_step(&t->settings[0].knobs);
}

static bool pick_any(const struct tune *t, int i) {
    (void)t;
    (void)i;
    return true;
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// A percentile of step times divided by their mean, as seen so far: the median over settings.
static double tail_of(const struct tune *t, double p) {
    double ratios[64];
    size_t n = 0;
    for (int i = 0; i < t->n && n < 64; i++) {
        const struct tune_setting *s = &t->settings[i];
        if (s->n >= t->policy->explore.tail_least_steps && s->wall_ns > 0 &&
            s->outcome != TUNE_FAILED)
            ratios[n++] = tune_quantile(s, p).value * (double)s->n / (double)s->wall_ns;
    }
    if (n == 0)
        return 1;
    qsort(ratios, n, sizeof *ratios, compare_doubles);
    return fmax(ratios[n / 2], t->policy->explore.tail_least_ratio);
}

// The step length with which a setting has this cost.
static double step_of_cost(const struct tune *t, const struct tune_setting *s, double cost) {
    return cost / tune_predicted_cost(t, &s->knobs, 1.0);
}

// A budget would be broken by far with steps of this length; `why` says which.
static bool hopeless(const struct tune *t, const struct tune_setting *s, double step_s,
                     char why[TUNE_TEXT_BYTES]) {
    const double wait_s = tune_wait_of(&t->request, &s->knobs, step_s),
                 respond_s = 1e-9 * (double)t->request.respond_ns,
                 over = t->policy->explore.over_limit_ratio;
    if (respond_s > 0 && wait_s > respond_s * over) {
        snprintf(why, TUNE_TEXT_BYTES,
                 "a request is predicted to wait %.4g ms, over the budget of %.4g ms; not measured",
                 1e3 * wait_s, 1e3 * respond_s);
        return true;
    }
    for (int p = 0; p < TUNE_PERCENTILES; p++) {
        const double limit_s = 1e-9 * (double)t->request.limit_ns[p];
        const double of = tune_percentile_of((enum tune_percentile)p);
        if (limit_s <= 0)
            continue;
        double at_least = step_s * tail_of(t, of);
        if (!(at_least > limit_s * over))
            continue;
        snprintf(why, TUNE_TEXT_BYTES,
                 "p%.0f is predicted to be %.4g ms, over the budget of %.4g ms; not measured",
                 100 * of, 1e3 * at_least, 1e3 * limit_s);
        return true;
    }
    return false;
}

// How close steps of this length come to the limits: the largest quotient of a predicted latency
// and its limit. Without limits it is the step itself, so that the shortest strains least.
static double strain(const struct tune *t, const struct tune_setting *s, double step_s) {
    double most = 0;
    if (t->request.respond_ns > 0)
        most =
            tune_wait_of(&t->request, &s->knobs, step_s) / (1e-9 * (double)t->request.respond_ns);
    for (int p = 0; p < TUNE_PERCENTILES; p++)
        if (t->request.limit_ns[p] > 0)
            most = fmax(most, step_s * tail_of(t, tune_percentile_of((enum tune_percentile)p)) /
                                  (1e-9 * (double)t->request.limit_ns[p]));
    return most > 0 ? most : step_s;
}

struct choice {
    int at;      // -1: no setting is worth a trial
    double gain; // expected, relative to the best
};

// Worth a visit: never measured, or only while other programs were busy and they are quiet now.
static bool is_candidate(const struct tune *t, const struct tune_setting *s) {
    if (s->n == 0)
        return s->outcome == TUNE_PLANNED;
    return s->quiet == 0 && !t->busy_now && s->n_blocks < t->policy->recheck.most_visits &&
           s->outcome != TUNE_FAILED && s->outcome != TUNE_REFUSED;
}

// The setting with the largest expected gain. Gain per second of trial would favour tiny steps, but
// trials take about equally long. While nothing keeps the budgets, the setting that strains them
// least.
static struct choice next_to_measure(const struct tune *t, const struct belief *b, pick_fn *pick) {
    struct choice c = {-1, 0};
    char why[TUNE_TEXT_BYTES];
    int best = tune_best(t);
    double best_cost = best >= 0 ? tune_cost(t, &t->settings[best]) : NAN, least = INFINITY;
    for (int i = 0; i < t->n; i++) {
        const struct tune_setting *s = &t->settings[i];
        if (!is_candidate(t, s) || !pick(t, i))
            continue;
        double step_s = step_of_cost(t, s, exp(b[i].mean));
        if (best < 0 && strain(t, s, step_s) < least) {
            least = strain(t, s, step_s);
            c = (struct choice){i, 1};
        }
        if (best < 0 || hopeless(t, s, step_s, why))
            continue;
        double gain = belief_gain(&b[i], best_cost);
        if (gain > c.gain)
            c = (struct choice){i, gain};
    }
    return c;
}

static int find_next(const struct tune *t, pick_fn *pick, struct choice *out, struct err *e) {
    struct belief *b = calloc((size_t)t->n, sizeof *b);
    if (!b)
        return err_set(e, ERR_MEMORY, "out of memory for %d settings", t->n);
    int rc = belief_update(t, b, e);
    *out = rc == 0 ? next_to_measure(t, b, pick) : (struct choice){-1, 0};
    free(b);
    return rc;
}

static int explore(struct tune *t, pick_fn *pick, double until, struct err *e) {
    const struct visit v = {.judged = true};
    // While no setting keeps the budgets, those that strain them least are tried first. If they do
    // not keep them, no other setting will.
    for (int fruitless = 0; fruitless < t->policy->explore.fruitless_most_trials;) {
        struct choice c;
        TRY(find_next(t, pick, &c, e));
        t->hurried = c.at >= 0 && c.gain >= t->policy->explore.gain_least_rel;
        const bool first = t->explored < t->policy->explore.least_settings &&
                           tune_elapsed(t) < t->policy->explore.least_by_share;
        if (!t->hurried || (tune_searched(t) >= until && !first))
            return 0;
        int before = tune_best(t);
        TRY(visit_setting(t, c.at, &v, e));
        t->explored++;
        fruitless = tune_best(t) < 0 && before < 0 ? fruitless + 1 : 0;
    }
    t->hurried = false;
    return 0;
}

// Takes all that was measured before of the planned settings: by earlier searches, or by this one
// before it was interrupted. Waiting until a setting is asked for would leave some of it unused.
static int take_up(struct tune *t, struct err *e) {
    const struct visit v = {.recalled = true};
    for (int i = 0; i < t->n && t->lab.recall; i++)
        if (t->settings[i].n == 0 && t->settings[i].outcome == TUNE_PLANNED)
            TRY(visit_setting(t, i, &v, e));
    return 0;
}

// ---------------------------------------------------------------- the stages

static bool any_measured(const struct tune *t) {
    for (int i = 0; i < t->n; i++)
        if (t->settings[i].n > 0)
            return true;
    return false;
}

static int profile(struct tune *t, struct err *e) {
    struct stage_at at = begin(t, STAGE_PROFILE);
    const struct visit v = {0};
    struct tune_setting *s = &t->settings[0];
    if (s->outcome == TUNE_REFUSED) {
        decide(t, &at, "the recipe as given cannot run: %.380s", s->reason);
        return 0;
    }
    TRY(visit_setting(t, 0, &v, e));
    s = &t->settings[0];
    // Its process died or hung. A choice needs the recipe as given to be held against.
    if (s->n == 0 && (t->failed_rc == ERR_MEMORY || t->failed_rc == ERR_INTERNAL) &&
        tune_elapsed(t) < t->policy->time.batch_by_share)
        TRY(visit_setting(t, 0, &v, e));
    if (s->n == 0) {
        decide(t, &at, "the recipe as given failed: %.380s", s->reason);
        return 0;
    }
    int part = 0;
    for (int i = 1; i < TIME_COUNT; i++)
        if (s->split.ns[i] > s->split.ns[part])
            part = i;
    char most[64] = ""; // a trial from the store may have no split
    if (s->split.wall_ns > 0)
        snprintf(most, sizeof most, ", largest part %s (%.0f %%)",
                 time_part_name((enum time_part)part),
                 100.0 * (double)s->split.ns[part] / (double)s->split.wall_ns);
    decide(t, &at, "the recipe as given: %.0f tokens/s, median step %.4g ms (n=%zu)%s%s%.200s",
           tune_tokens_per_s(s), 1e-6 * tune_quantile(s, 0.5).value, s->n, most,
           s->outcome == TUNE_OVER ? "; " : "", s->outcome == TUNE_OVER ? s->reason : "");
    return 0;
}

// The setting that needs the least memory of those that fit; -1: none fits.
static int leanest_fit(const struct tune *t) {
    int lean = -1;
    for (int i = 0; i < t->n; i++)
        if (t->settings[i].outcome != TUNE_REFUSED &&
            (lean < 0 || t->settings[i].need_bytes < t->settings[lean].need_bytes))
            lean = i;
    return lean;
}

// Plans all settings that trade time for memory. If the recipe as given cannot run, the setting
// that needs the least memory is measured first.
static int memory(struct tune *t, struct err *e) {
    struct stage_at at = begin(t, STAGE_MEMORY);
    const struct visit v = {.judged = true};
    char lean_text[TEXT_UNIT_BYTES], most_text[TEXT_UNIT_BYTES], have_text[TEXT_UNIT_BYTES];
    TRY(space_core(t, t->policy->time.plan_most_share, e));
    const int reused = t->reused;
    TRY(take_up(t, e));
    char known[64] = "";
    if (t->reused > reused)
        snprintf(known, sizeof known, " (%d were measured before)", t->reused - reused);
    const int lean = leanest_fit(t);
    int fit = 0, leanest = 0;
    uint64_t most = 0;
    for (int i = 0; i < t->n; i++) {
        const struct tune_setting *s = &t->settings[i];
        if (s->need_bytes > 0 && (t->settings[leanest].need_bytes == 0 ||
                                  s->need_bytes < t->settings[leanest].need_bytes))
            leanest = i;
        if (s->outcome == TUNE_REFUSED)
            continue;
        fit++;
        most = s->need_bytes > most ? s->need_bytes : most;
    }
    const struct tune_setting *least = &t->settings[leanest];
    if (lean < 0) {
        snprintf(
            t->why_none, sizeof t->why_none,
            "nothing fits: the setting with the least memory of %d (%.120s) needs %s, but only %s "
            "may be used; the recipe as given: %.160s",
            t->n, least->name, text_bytes(lean_text, least->need_bytes),
            text_bytes(have_text, least->have_bytes), t->settings[0].reason);
        decide(t, &at, "%s", t->why_none);
        return 0;
    }
    if (!any_measured(t))
        TRY(visit_setting(t, lean, &v, e));
    decide(t, &at, "%d setting%s planned%s, %d fit into %s and need %s to %s; least memory: %.200s",
           t->n, t->n == 1 ? "" : "s", known, fit,
           text_bytes(have_text, t->settings[lean].have_bytes),
           text_bytes(lean_text, t->settings[lean].need_bytes), text_bytes(most_text, most),
           t->settings[lean].name);
    return 0;
}

static int latency(struct tune *t, struct err *e) {
    struct stage_at at = begin(t, STAGE_LATENCY);
    char limits[TUNE_TEXT_BYTES] = "";
    size_t used = 0;
    for (int p = 0; p < TUNE_PERCENTILES; p++)
        if (t->request.limit_ns[p] > 0)
            used += (size_t)snprintf(limits + used, sizeof limits - used,
                                     "%sp%.0f of a step at most %.4g ms", used ? ", " : "",
                                     100 * tune_percentile_of((enum tune_percentile)p),
                                     1e-6 * (double)t->request.limit_ns[p]);
    if (t->request.respond_ns > 0)
        used += (size_t)snprintf(limits + used, sizeof limits - used,
                                 "%srequests answered within %.4g ms", used ? ", " : "",
                                 1e-6 * (double)t->request.respond_ns);
    if (used == 0) {
        decide(t, &at, "no latency limit was asked for (--p50, --p95, --p99, --respond)");
        return 0;
    }
    if (tune_best(t) < 0) // no measured setting keeps the budgets yet
        TRY(explore(t, pick_any, t->policy->time.batch_by_share, e));
    int best = tune_best(t);
    if (best >= 0)
        decide(t, &at, "%s; best so far: %.200s, which is not proven to break a limit (n=%zu)",
               limits, t->settings[best].name, t->settings[best].n);
    else
        decide(t, &at, "%s; no setting measured so far keeps the budgets", limits);
    return 0;
}

static int batch(struct tune *t, struct err *e) {
    struct stage_at at = begin(t, STAGE_BATCH);
    const struct knobs *base = &t->settings[0].knobs;
    long long samples = tune_samples_per_step(base), tokens = samples * base->seq;
    if (!(t->request.allow >> ALLOW_BATCH & 1)) {
        decide(t, &at,
               "tokens per step stay at %lld (%lld sequences); --allow batch lets them change",
               tokens, samples);
        return 0;
    }
    TRY(explore(t, pick_any, t->policy->time.batch_by_share, e));
    int best = tune_best(t);
    if (best < 0) {
        decide(t, &at, "no setting measured so far keeps the budgets");
        return 0;
    }
    const long long chosen = tune_samples_per_step(&t->settings[best].knobs);
    char bound[80] = "";
    if (t->request.critical_samples > 0 &&
        2 * (double)knobs_samples(&t->settings[best].knobs) > t->request.critical_samples)
        snprintf(bound, sizeof bound, "; more than %.0f are not tried (gradient noise scale)",
                 t->request.critical_samples);
    decide(t, &at, "%lld sequences per step in the recipe, %lld in the best setting so far%s",
           samples, chosen, bound);
    return 0;
}

static int explore_all(struct tune *t, double until, struct err *e) {
    return explore(t, t->request.allow >> ALLOW_BATCH & 1 ? pick_any : pick_same_batch, until, e);
}

// Measures the setting that needs the least memory. It is one end of the frontier and seldom the
// choice, so it comes last.
static int visit_leanest(struct tune *t, struct err *e) {
    const struct visit v = {.judged = true};
    const int lean = leanest_fit(t);
    const bool wanted = lean >= 0 && t->settings[lean].n == 0 &&
                        t->settings[lean].outcome != TUNE_FAILED &&
                        tune_searched(t) < t->policy->time.data_by_share;
    return wanted ? visit_setting(t, lean, &v, e) : 0;
}

static int split(struct tune *t, struct err *e) {
    struct stage_at at = begin(t, STAGE_SPLIT);
    bool forgot;
    TRY(explore_all(t, t->policy->time.split_by_share, e));
    TRY(forget_the_slow(t, &forgot, e));
    if (forgot)
        TRY(explore_all(t, t->policy->time.split_by_share, e));
    TRY(visit_leanest(t, e));
    int best = tune_best(t);
    if (best < 0) {
        decide(t, &at, "no setting measured so far keeps the budgets");
        return 0;
    }
    const struct tune_setting *s = &t->settings[best];
    const double gain = 100 * (tune_cost(t, &t->settings[0]) / tune_cost(t, s) - 1);
    char against[80] = ""; // the recipe as given may not run
    if (isfinite(gain))
        snprintf(against, sizeof against, "; by typical steps %+.1f %% against the recipe as given",
                 gain);
    decide(t, &at, "best so far: %.200s (micro-batch %lld x %lld), %.0f tokens/s%s", s->name,
           (long long)s->knobs.batch_micro, (long long)s->knobs.batch_accum, tune_tokens_per_s(s),
           against);
    return 0;
}

static int communication(struct tune *t) {
    struct stage_at at = begin(t, STAGE_COMM);
    decide(t, &at, "%s",
           knobs_world(&t->settings[0].knobs) > 1
               ? "other layouts of ranks are not tried: the recipe's stays"
               : "one rank: there is no communication to tune");
    return 0;
}

// Tries the values of one knob from setting *from. A value that gains enough becomes *from, and the
// next knobs start there.
static int flip_knob(struct tune *t, enum tune_stage stage, int id, double until, int *from,
                     struct err *e) {
    struct space_values values;
    const struct visit v = {.judged = true};
    space_values(&t->settings[*from].knobs, id, &t->request, &values);
    for (int i = 0; i < values.n && tune_searched(t) < until; i++) {
        struct knobs k = t->settings[*from].knobs;
        if (knobs_set_at(&k, id, values.text[i], SET_BY_TUNER, NULL) != 0 ||
            knobs_same(&k, &t->settings[*from].knobs, id) || knobs_idle(&k, id))
            continue;
        int at = tune_add(t, &k, stage, e);
        if (at < 0)
            return at;
        struct tune_setting *s = &t->settings[at];
        double slower = s->predicted_s / t->settings[*from].predicted_s;
        if (s->outcome != TUNE_PLANNED)
            continue;
        if (slower > (s->guessed ? t->policy->flip.guess_slower_most_ratio
                                 : t->policy->flip.slower_most_ratio)) {
            snprintf(
                s->reason, sizeof s->reason,
                "predicted to be %.0f %% slower than the setting it was derived from; not measured",
                100 * (slower - 1));
            continue;
        }
        TRY(visit_setting(t, at, &v, e));
        s = &t->settings[at];
        if (s->outcome == TUNE_MEASURED &&
            tune_cost(t, s) <
                tune_cost(t, &t->settings[*from]) * (1 - t->policy->flip.gain_least_rel))
            *from = at;
    }
    return 0;
}

// Part of a step's time that waits for data.
static double data_share(const struct tune_setting *s) {
    return s->split.wall_ns > 0 ? (double)s->split.ns[TIME_DATA_WAIT] / (double)s->split.wall_ns
                                : 0;
}

static bool of_data(int id) {
    return strncmp(knob_info(id)->name, "data.", 5) == 0;
}

static int flips(struct tune *t, enum tune_stage stage, double until, struct err *e) {
    struct stage_at at = begin(t, stage);
    int first = tune_best(t), from = first, skipped = 0, seen = 0;
    if (first < 0) {
        decide(t, &at, "no setting measured so far keeps the budgets");
        return 0;
    }
    bool data = data_share(&t->settings[first]) >= t->policy->flip.data_wait_least_rel;
    for (int id = 0; id < KNOB_COUNT; id++) {
        if (space_stage(id, &t->request) != stage)
            continue;
        seen++;
        if ((of_data(id) && !data) || tune_searched(t) > until) {
            skipped++;
            continue;
        }
        TRY(flip_knob(t, stage, id, until, &from, e));
    }
    char waits[96] = "";
    if (!data && stage == STAGE_DATA)
        snprintf(waits, sizeof waits,
                 "; data.* was not tried: less than %.0f %% of a step was seen waiting for data",
                 100 * t->policy->flip.data_wait_least_rel);
    if (seen == 0)
        decide(t, &at, "no knob of this stage has an effect here");
    else if (from == first)
        decide(t, &at, "%d of %d knobs tried, and no value gains %.0f %%%s", seen - skipped, seen,
               100 * t->policy->flip.gain_least_rel, waits);
    else
        decide(t, &at, "%.200s is %.1f %% faster than the best before this stage%s",
               t->settings[from].name,
               100 * (tune_cost(t, &t->settings[first]) / tune_cost(t, &t->settings[from]) - 1),
               waits);
    return 0;
}

// Logarithm of measured / predicted cost.
static double lateness(const struct tune *t, const struct tune_setting *s) {
    return log(tune_cost(t, s) / tune_predicted_cost(t, &s->knobs, s->predicted_s));
}

// A setting is a surprise if it was predicted to be about as good as the best, and was measured to
// be much slower or over a budget: the prediction or the measurement is wrong. Where no setting
// keeps the budgets, every setting that is not far over them is one.
static bool is_surprise(const struct tune *t, const struct tune_setting *s, int best) {
    const bool over = s->outcome == TUNE_OVER;
    if (s->n == 0 || s->outcome == TUNE_FAILED || s->outcome == TUNE_REFUSED)
        return false;
    if (best < 0)
        return over && visit_strain(t, s) < t->policy->recheck.strain_most_ratio;
    const struct tune_setting *b = &t->settings[best];
    return (over || lateness(t, s) > lateness(t, b) + t->policy->recheck.surprise_least_log) &&
           tune_predicted_cost(t, &s->knobs, s->predicted_s) <
               t->policy->recheck.predicted_most_ratio *
                   tune_predicted_cost(t, &b->knobs, b->predicted_s);
}

// A surprise may have hit a moment in which another program was busy. It is measured again later,
// while there is time. If all surprises were measured just now, the best setting is measured
// instead: time passes, and its figures become more precise.
static int second_chance(struct tune *t, struct err *e) {
    const struct visit v = {.judged = true};
    while (tune_searched(t) < t->policy->time.recheck_by_share) {
        const int best = tune_best(t);
        const uint64_t now_ns = t->lab.clock_ns(t->lab.arg);
        int next = -1;
        for (int i = 0; i < t->n; i++)
            if (t->settings[i].n_blocks < t->policy->recheck.most_visits &&
                is_surprise(t, &t->settings[i], best) &&
                (next < 0 || t->settings[i].visited_ns < t->settings[next].visited_ns))
                next = i;
        if (next < 0)
            return 0;
        if (best >= 0 && now_ns < t->settings[next].visited_ns + t->policy->recheck.after_least_ns)
            next = best;
        TRY(visit_setting(t, next, &v, e));
    }
    return 0;
}

// Finalists that turn out to break a budget are replaced by the next best settings.
static int find_choice(struct tune *t, struct err *e) {
    bool forgot;
    if (tune_searched(t) < t->policy->time.recheck_by_share)
        TRY(forget_the_slow(t, &forgot, e));
    do {
        TRY(second_chance(t, e));
        TRY(explore_all(t, t->policy->time.recheck_by_share, e));
        TRY(finals_run(t, e));
    } while (t->chosen < 0 && tune_best(t) >= 0);
    if (t->chosen < 0)
        finals_take_doubtful(t);
    return 0;
}

// Gives every setting that was never measured a reason for it.
static void explain_rest(struct tune *t) {
    struct belief *b = calloc((size_t)t->n, sizeof *b);
    int best = tune_best(t);
    bool known = b && belief_update(t, b, NULL) == 0;
    for (int i = 0; i < t->n; i++) {
        struct tune_setting *s = &t->settings[i];
        char why[TUNE_TEXT_BYTES];
        if (s->outcome != TUNE_PLANNED || s->n > 0 || s->reason[0])
            continue;
        if (known && hopeless(t, s, step_of_cost(t, s, exp(b[i].mean)), why)) {
            s->outcome = TUNE_OVER;
            snprintf(s->reason, sizeof s->reason, "%s", why);
        } else if (known && best >= 0) {
            double more = exp(b[i].mean) / tune_cost(t, &t->settings[best]) - 1;
            snprintf(s->reason, sizeof s->reason,
                     "expected to be %.1f %% %s than the best; not measured", 100 * fabs(more),
                     more > 0 ? "slower" : "faster");
        }
    }
    free(b);
}

// Milliseconds of a setting's step at a percentile, or of the wait of a request then.
static double limited_ms(const struct tune *t, int i, double p, bool respond) {
    const struct tune_setting *s = &t->settings[i];
    const double ns = tune_quantile(s, p).value;
    return respond ? 1e3 * tune_wait_of(&t->request, &s->knobs, 1e-9 * ns) : 1e-6 * ns;
}

// The setting with the least of these among those that were measured; -1: none was.
static int least_of(const struct tune *t, double p, bool respond) {
    int least = -1;
    for (int i = 0; i < t->n; i++)
        if (t->settings[i].n > 0 && t->settings[i].outcome != TUNE_FAILED &&
            (least < 0 || limited_ms(t, i, p, respond) < limited_ms(t, least, p, respond)))
            least = i;
    return least;
}

// Says of each limit what could be had instead, so that the next budget can be kept.
static void say_what_can_be_had(struct tune *t) {
    const struct tune_request *r = &t->request;
    size_t used = (size_t)snprintf(t->why_none, sizeof t->why_none,
                                   "no setting that was measured keeps the budgets");
    for (int p = 0; p <= TUNE_PERCENTILES && used < sizeof t->why_none; p++) {
        const bool respond = p == TUNE_PERCENTILES;
        const double of = respond ? 0.95 : tune_percentile_of((enum tune_percentile)p),
                     limit = respond ? (double)r->respond_ns : (double)r->limit_ns[p];
        const int i = limit > 0 ? least_of(t, of, respond) : -1;
        if (i < 0)
            continue;
        used += (size_t)snprintf(
            t->why_none + used, sizeof t->why_none - used,
            "; the least %s that was measured is %.4g ms (%.100s, n=%zu), the budget %.4g ms",
            respond         ? "wait of a request"
            : p == TUNE_P50 ? "p50 of a step"
            : p == TUNE_P95 ? "p95 of a step"
                            : "p99 of a step",
            limited_ms(t, i, of, respond), t->settings[i].name, t->settings[i].n, 1e-6 * limit);
    }
}

static void say_why_none(struct tune *t) {
    const struct tune_setting *s = &t->settings[0];
    for (int i = 1; i < t->n && !s->reason[0]; i++)
        s = &t->settings[i];
    if (any_measured(t))
        say_what_can_be_had(t);
    else
        snprintf(t->why_none, sizeof t->why_none, "no setting could be measured (%.80s: %.380s)",
                 s->name, s->reason[0] ? s->reason : "no time was left");
}

int tune_why_rc(const struct tune *t) {
    return any_measured(t) || t->failed_rc == 0 ? ERR_MEMORY : t->failed_rc;
}

// A file that is missing or malformed is so for every setting, so the search ends.
static bool is_lost(const struct tune *t) {
    return !any_measured(t) && (t->failed_rc == ERR_IO || t->failed_rc == ERR_FORMAT);
}

static int play(struct tune *t, struct err *e) {
    TRY(profile(t, e));
    if (is_lost(t)) {
        say_why_none(t);
        return 0;
    }
    TRY(memory(t, e));
    if (t->why_none[0])
        return 0;
    TRY(latency(t, e));
    TRY(batch(t, e));
    TRY(split(t, e));
    TRY(communication(t));
    TRY(flips(t, STAGE_DATA, t->policy->time.data_by_share, e));
    TRY(flips(t, STAGE_FUSION, t->policy->time.fusion_by_share, e));
    struct stage_at at = begin(t, STAGE_FINALISTS);
    TRY(find_choice(t, e));
    if (t->chosen < 0) {
        if (!t->why_none[0])
            say_why_none(t);
        decide(t, &at, "%s", t->why_none);
    } else {
        const struct tune_setting *s = &t->settings[t->chosen];
        decide(t, &at, "chosen: %.200s, %.0f tokens/s%s%s%s", s->name, tune_tokens_per_s(s),
               t->why == TUNE_WHY_TOO_BUSY ? "; others were too busy to compare anything" : "",
               t->hurried || t->unplanned
                   ? "; some promising settings were not tried, give more --time"
                   : "",
               t->provisional ? "; provisional: a budget is not proven" : "");
    }
    return 0;
}

int tune_run(struct tune *out, const struct knobs *base, const struct tune_request *r,
             const struct tune_lab *lab, struct err *e) {
    memset(out, 0, sizeof *out);
    out->request = *r;
    out->lab = *lab;
    out->policy = r->policy ? r->policy : &tune_policy_default;
    out->chosen = out->rival = -1;
    out->busy_most = NAN;
    out->begin_ns = r->begin_ns > 0 ? r->begin_ns : lab->clock_ns(lab->arg);
    int rc = tune_add(out, base, STAGE_PROFILE, e);
    if (rc >= 0)
        rc = play(out, e);
    if (out->n > 0) {
        explain_rest(out);
        frontier_mark(out);
    }
    out->end_ns = lab->clock_ns(lab->arg);
    return rc < 0 ? rc : 0;
}
