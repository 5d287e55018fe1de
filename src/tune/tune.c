// tune.c - the settings of a search and their figures.
#include "tune/tune_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------- names

const char *tune_goal_name(enum tune_goal g) {
    static const char *const names[TUNE_GOALS] = {"bulk", "interactive", "hybrid"};
    return (int)g >= 0 && g < TUNE_GOALS ? names[g] : "?";
}

const char *tune_allow_name(enum tune_allow a) {
    static const char *const names[ALLOW_COUNT] = {
#define X(name, text) text,
        TUNE_ALLOW_LIST(X)
#undef X
    };
    return (int)a >= 0 && a < ALLOW_COUNT ? names[a] : "?";
}

const char *tune_stage_name(enum tune_stage s) {
    static const char *const names[STAGE_COUNT] = {
#define X(name, text) text,
        TUNE_STAGE_LIST(X)
#undef X
    };
    return (int)s >= 0 && s < STAGE_COUNT ? names[s] : "?";
}

const char *tune_outcome_name(enum tune_outcome o) {
    static const char *const names[TUNE_OUTCOMES] = {"planned", "measured",    "refused",
                                                     "slower",  "over budget", "failed"};
    return (int)o >= 0 && o < TUNE_OUTCOMES ? names[o] : "?";
}

const char *tune_why_name(enum tune_why w) {
    static const char *const names[TUNE_WHYS] = {
#define X(name, text) text,
        TUNE_WHY_LIST(X)
#undef X
    };
    return (int)w >= 0 && w < TUNE_WHYS ? names[w] : "?";
}

double tune_percentile_of(enum tune_percentile p) {
    return p == TUNE_P50 ? 0.5 : p == TUNE_P95 ? 0.95 : 0.99;
}

bool tune_has_limits(const struct tune_request *r) {
    for (int p = 0; p < TUNE_PERCENTILES; p++)
        if (r->limit_ns[p] > 0)
            return true;
    return false;
}

// ---------------------------------------------------------------- figures

int64_t tune_samples_per_step(const struct knobs *k) {
    return k->batch_micro * k->batch_accum;
}

double tune_tokens_per_s(const struct tune_setting *s) {
    uint64_t tokens = 0, wall_ns = 0;
    if (s->turns.rounds > 0)
        return s->turns.tokens_per_s;
    for (int i = 0; i < s->n_blocks; i++)
        if (s->quiet == 0 || !s->blocks[i].busy)
            tokens += s->blocks[i].tokens, wall_ns += s->blocks[i].wall_ns;
    return wall_ns > 0 ? (double)tokens / (1e-9 * (double)wall_ns) : NAN;
}

struct quantile tune_quantile(const struct tune_setting *s, double p) {
    struct quantile q = {.p = p, .value = NAN, .upper95 = NAN, .n_needed = sample_bound_needs(p)};
    struct samples copy;
    if (s->n == 0 || samples_open(&copy, s->n, NULL) != 0)
        return q;
    for (size_t i = 0; i < s->n; i++)
        samples_add(&copy, s->step_ns[i]);
    samples_quantiles(&copy, 0, &p, 1, &q);
    samples_close(&copy);
    return q;
}

double tune_ms_per_sample(const struct tune_setting *s) {
    return 1e-6 * tune_quantile(s, 0.5).value / (double)s->knobs.batch_accum;
}

double tune_joules_per_token(const struct tune_setting *s) {
    return s->joule_tokens > 0 && s->joule_ns >= TUNE_METERED_LEAST_NS && s->joules > 0
               ? s->joules / (double)s->joule_tokens
               : NAN;
}

// The share of a step's micro-batches that a request may have to wait for: one, and on a device
// also the next one, which the host sends before it looks for requests.
static double stretch_of(const struct tune_request *r, const struct knobs *k) {
    return fmin(r->on_device ? 2.0 : 1.0, (double)k->batch_accum) / (double)k->batch_accum;
}

double tune_wait_of(const struct tune_request *r, const struct knobs *k, double step_s) {
    const double update_s = fmin(r->update_s, step_s), rest_s = step_s - update_s,
                 sample_s = rest_s / (double)tune_samples_per_step(k);
    return update_s + rest_s * stretch_of(r, k) +
           (r->answer_s > 0 ? r->answer_s : fmax(sample_s, r->turn_s));
}

// The longest step with which a request is answered in time: tune_wait_of solved for the step. The
// wait is the larger of two straight lines over the step's length (with the predicted turn, and
// with a turn that grows with the step), so the answer is the smaller of two solutions.
static double longest_step_s(const struct tune_request *r, const struct knobs *k) {
    const bool second = r->answer_s > 0;
    const double slope = stretch_of(r, k), room_s = 1e-9 * (double)r->respond_ns - r->update_s,
                 known_s = (room_s - (second ? r->answer_s : r->turn_s)) / slope,
                 grown_s = room_s / (slope + (second ? 0 : 1 / (double)tune_samples_per_step(k)));
    return r->update_s + fmin(known_s, grown_s);
}

int tune_limits(const struct tune_request *r, const struct knobs *k,
                struct tune_limit out[TUNE_LIMITS_MOST]) {
    int n = 0;
    for (int p = 0; p < TUNE_PERCENTILES; p++)
        if (r->limit_ns[p] > 0)
            out[n++] = (struct tune_limit){(enum tune_percentile)p, false, (double)r->limit_ns[p]};
    if (r->respond_ns > 0)
        out[n++] = (struct tune_limit){TUNE_P95, true, 1e9 * longest_step_s(r, k)};
    return n;
}

void tune_learn_update(struct tune *t, const struct tune_setting *s) {
    const struct time_split *x = &s->split;
    if (t->request.update_s <= 0 && x->steps > 0)
        t->request.update_s = 1e-9 * (double)x->ns[TIME_OPTIMIZER] / (double)x->steps;
}

// Without a latency budget an interactive user waits for one sample. With one, every setting that
// keeps the budget is fast enough, and more tokens per second are better.
static bool by_sample(const struct tune_request *r) {
    return r->goal == TUNE_INTERACTIVE && !tune_has_limits(r);
}

// The p-quantile by nearest rank. Sorts the values.
static double rank_of(double *values, size_t n, double p) {
    sample_sort(values, n);
    const double rank = ceil(p * (double)n);
    return values[rank > 1 ? (size_t)rank - 1 : 0];
}

double tune_typical(const double *step_ns, const struct tune_block *visits, int n) {
    size_t room = 0;
    int quiet = 0, kept = 0;
    for (int i = 0; i < n; i++) {
        room += visits[i].n;
        quiet += visits[i].n > 0 && !visits[i].busy;
    }
    double *steps = malloc((room + 1) * sizeof *steps), *of = malloc((size_t)(n + 1) * sizeof *of);
    for (int i = 0; steps && of && i < n; i++) {
        if (visits[i].n == 0 || (visits[i].busy && quiet > 0))
            continue;
        memcpy(steps, step_ns + visits[i].first, visits[i].n * sizeof *steps);
        of[kept++] = 1e-9 * sample_median(steps, visits[i].n);
    }
    const double typical = kept > 0 ? rank_of(of, (size_t)kept, 0.25) : NAN;
    free(steps);
    free(of);
    return typical;
}

double tune_cost(const struct tune *t, const struct tune_setting *s) {
    return s->n > 0 ? tune_predicted_cost(t, &s->knobs, s->typical_s) : NAN;
}

double tune_predicted_cost(const struct tune *t, const struct knobs *k, double step_s) {
    if (by_sample(&t->request))
        return step_s / (double)k->batch_accum;
    return step_s / (double)(tune_samples_per_step(k) * k->seq);
}

double tune_elapsed(const struct tune *t) {
    double passed = (double)(t->lab.clock_ns(t->lab.arg) - t->begin_ns);
    return t->request.time_ns > 0 ? passed / (double)t->request.time_ns : 0;
}

double tune_left_s(const struct tune *t) {
    return (1 - tune_elapsed(t)) * 1e-9 * (double)t->request.time_ns;
}

// ---------------------------------------------------------------- settings

static void name_setting(struct tune_setting *s, const struct knobs *base) {
    char value[KNOB_VALUE_BYTES];
    size_t used = 0;
    for (int id = 0; id < KNOB_COUNT; id++) {
        if (knobs_same(&s->knobs, base, id))
            continue;
        int n = snprintf(s->name + used, sizeof s->name - used, "%s%s=%s", used ? " " : "",
                         knob_info(id)->name, knobs_value(&s->knobs, id, value));
        if (n < 0 || (size_t)n >= sizeof s->name - used)
            break;
        used += (size_t)n;
    }
    if (used == 0)
        snprintf(s->name, sizeof s->name, "as given");
}

static int grow(struct tune *t, struct err *e) {
    if (t->n < t->capacity)
        return 0;
    int capacity = t->capacity ? 2 * t->capacity : 64;
    struct tune_setting *more = realloc(t->settings, sizeof *more * (size_t)capacity);
    if (!more)
        return err_set(e, ERR_MEMORY, "out of memory for %d settings", capacity);
    t->settings = more;
    t->capacity = capacity;
    return 0;
}

int tune_add(struct tune *t, const struct knobs *k, enum tune_stage stage, struct err *e) {
    for (int i = 0; i < t->n; i++)
        if (knobs_equal(&t->settings[i].knobs, k))
            return i;
    TRY(grow(t, e));
    struct tune_plan plan = {.step_s = NAN};
    TRY(t->lab.plan(t->lab.arg, k, &plan, e));
    struct tune_setting *s = &t->settings[t->n];
    memset(s, 0, sizeof *s);
    s->knobs = *k;
    s->stage = stage;
    s->predicted_s = plan.step_s;
    s->guessed = plan.guessed;
    s->need_bytes = plan.need_bytes;
    s->have_bytes = plan.have_bytes;
    s->joules = NAN;
    s->outcome = plan.rc == 0 ? TUNE_PLANNED : TUNE_REFUSED;
    snprintf(s->reason, sizeof s->reason, "%s", plan.rc == 0 ? "" : plan.reason);
    name_setting(s, t->n > 0 ? &t->settings[0].knobs : k);
    return t->n++;
}

void tune_free(struct tune *t) {
    for (int i = 0; i < t->n; i++)
        free(t->settings[i].step_ns), free(t->settings[i].blocks);
    free(t->settings);
    t->settings = NULL;
    t->n = t->capacity = 0;
}
