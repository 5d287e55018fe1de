// tune_words.c - see tune_words.h.
#include "report/tune_words.h"

#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char tune_unbounded_note[] = "? = too few steps for a 95 % bound";

// ---------------------------------------------------------------- figures

bool tune_by_sample(const struct tune_request *r) {
    return r->goal == TUNE_INTERACTIVE && !tune_has_limits(r);
}

bool tune_in_turns(const struct tune_setting *s) {
    return s->turns.rounds > 0;
}

bool tune_is_glance(const struct tune *t, int i) {
    return i != t->chosen && t->settings[i].n > 0 && !tune_in_turns(&t->settings[i]);
}

bool tune_is_compared(const struct tune *t, int i) {
    return i > 0 && tune_in_turns(&t->settings[i]) && tune_in_turns(&t->settings[0]);
}

static double micro_tokens(const struct knobs *k) {
    return (double)(k->batch_micro * k->seq);
}

double tune_speed(const struct tune *t, int i) {
    const struct tune_setting *s = &t->settings[i], *given = &t->settings[0];
    if (!tune_is_compared(t, i))
        return tune_tokens_per_s(s);
    // The ratio is that of the figure which the goal compares.
    return given->turns.tokens_per_s * s->turns.ratio *
           (tune_by_sample(&t->request) ? micro_tokens(&s->knobs) / micro_tokens(&given->knobs)
                                        : 1);
}

double tune_sample_ms(const struct tune *t, int i) {
    const struct tune_setting *s = &t->settings[i];
    return tune_in_turns(s) ? 1e3 * micro_tokens(&s->knobs) / tune_speed(t, i)
           : s->n > 0       ? tune_ms_per_sample(s)
                            : NAN;
}

static bool counts(const struct tune_setting *s, const struct tune_block *b) {
    return s->quiet == 0 || !b->busy;
}

// The steps of the visits that count. The caller frees them. NULL: no memory.
static double *steps_that_count(const struct tune_setting *s, size_t *n) {
    double *steps = malloc((s->n + 1) * sizeof *steps);
    *n = 0;
    for (int b = 0; steps && b < s->n_blocks; b++)
        if (counts(s, &s->blocks[b])) {
            memcpy(steps + *n, s->step_ns + s->blocks[b].first, s->blocks[b].n * sizeof *steps);
            *n += s->blocks[b].n;
        }
    return steps;
}

void tune_range_of(const struct tune *t, int i, struct tune_range *out) {
    const struct tune_setting *s = &t->settings[i];
    const double speed = tune_speed(t, i);
    struct spread spread;
    *out = (struct tune_range){.low = NAN, .high = NAN};
    for (int b = 0; b < s->n_blocks; b++)
        out->seconds += counts(s, &s->blocks[b]) ? 1e-9 * (double)s->blocks[b].wall_ns : 0;
    double *steps = steps_that_count(s, &out->steps);
    if (tune_in_turns(s)) {
        out->low = speed * s->turns.low / s->turns.ratio;
        out->high = speed * s->turns.high / s->turns.ratio;
    } else if (steps && out->steps > 0) {
        sample_spread_of(steps, out->steps, &spread); // NaN where there are too few
        out->low = speed * spread.median / spread.high95;
        out->high = speed * spread.median / spread.low95;
    }
    free(steps);
}

// What the goal makes small, in any unit; NaN: not measured.
static double cost(const struct tune *t, int i) {
    return tune_by_sample(&t->request) ? tune_sample_ms(t, i) : 1 / tune_speed(t, i);
}

// ---------------------------------------------------------------- order

static enum tune_group group_of(const struct tune *t, int i) {
    const struct tune_setting *s = &t->settings[i];
    return i == t->chosen              ? GROUP_CHOSEN
           : i == 0                    ? GROUP_GIVEN
           : tune_in_turns(s)          ? GROUP_TURNS
           : s->n == 0                 ? s->outcome == TUNE_FAILED ? GROUP_FAILED : GROUP_UNMEASURED
           : s->outcome == TUNE_OVER   ? GROUP_OUT
           : s->outcome == TUNE_FAILED ? GROUP_OUT
                                       : GROUP_GLANCES;
}

static int compare(const void *x, const void *y) {
    const struct tune_place *a = x, *b = y;
    if (a->group != b->group)
        return (a->group > b->group) - (a->group < b->group);
    if (a->worse != b->worse)
        return (a->worse > b->worse) - (a->worse < b->worse);
    return (a->at > b->at) - (a->at < b->at);
}

struct tune_place *tune_places(const struct tune *t) {
    struct tune_place *out = calloc((size_t)t->n + 1, sizeof *out);
    for (int i = 0; out && i < t->n; i++) {
        const enum tune_group group = group_of(t, i);
        const double worse = group == GROUP_TURNS ? -t->settings[i].turns.ratio : cost(t, i);
        out[i] = (struct tune_place){i, group, isfinite(worse) ? worse : INFINITY};
    }
    if (out)
        qsort(out, (size_t)t->n, sizeof *out, compare);
    return out;
}

// ---------------------------------------------------------------- gains

// A ratio of speeds as a change in percent: of tokens/s, or of the latency where the goal is that.
static double percent(const struct tune *t, double ratio) {
    return 100 * (tune_by_sample(&t->request) ? 1 / ratio - 1 : ratio - 1);
}

// Changes from this on are given as a factor.
static const double TIMES_PERCENT = 200;

// The interval as changes in percent, the smaller one first.
static void interval(const struct tune *t, const struct tune_turns *x, double *low, double *high) {
    const double a = percent(t, x->low), b = percent(t, x->high);
    *low = fmin(a, b), *high = fmax(a, b);
}

const char *tune_against(char out[TUNE_WORDS_BYTES], const struct tune *t, int i) {
    const struct tune_turns *x = &t->settings[i].turns;
    double low, high;
    out[0] = '\0';
    if (!tune_is_compared(t, i))
        return out;
    const double mid = percent(t, x->ratio);
    interval(t, x, &low, &high);
    if (!isfinite(x->low))
        snprintf(out, TUNE_WORDS_BYTES, "%+.1f %% (%d round%s, no interval)", mid, x->rounds,
                 x->rounds == 1 ? "" : "s");
    else if (mid >= TIMES_PERCENT)
        snprintf(out, TUNE_WORDS_BYTES, "%.1f times (%.1f to %.1f)", 1 + mid / 100, 1 + low / 100,
                 1 + high / 100);
    else
        snprintf(out, TUNE_WORDS_BYTES, "%+.1f %% (%+.1f to %+.1f)", mid, low, high);
    return out;
}

const char *tune_gain(char out[TUNE_WORDS_BYTES], const struct tune *t, int i) {
    const double mid = percent(t, t->settings[i].turns.ratio);
    snprintf(out, TUNE_WORDS_BYTES, "%.*f %% %s", fabs(mid) < 100, fabs(mid),
             !tune_by_sample(&t->request) ? mid > 0 ? "faster" : "slower"
             : mid > 0                    ? "more time"
                                          : "less time");
    return out;
}

const char *tune_gain_interval(char out[TUNE_WORDS_BYTES], const struct tune *t, int i) {
    const struct tune_turns *x = &t->settings[i].turns;
    char range[96];
    double low, high;
    interval(t, x, &low, &high);
    if (!isfinite(x->low))
        snprintf(range, sizeof range, "too few for an interval");
    else if (low > 0)
        snprintf(range, sizeof range, "%.*f to %.*f %%, 95 %% sure", low < 100, low, high < 100,
                 high);
    else if (high < 0)
        snprintf(range, sizeof range, "%.1f to %.1f %%, 95 %% sure", -high, -low);
    else
        snprintf(range, sizeof range, "%+.1f to %+.1f %%, 95 %% sure", low, high);
    snprintf(out, TUNE_WORDS_BYTES, "%s, %d round%s in turns with as given", range, x->rounds,
             x->rounds == 1 ? "" : "s");
    return out;
}

// ---------------------------------------------------------------- reasons

bool tune_looks_better(const struct tune *t, int i) {
    return t->chosen >= 0 && i != t->chosen && t->settings[i].n > 0 &&
           cost(t, i) < cost(t, t->chosen);
}

// May be chosen, as far as its budgets and its process are concerned.
static bool stands(const struct tune_setting *s) {
    return !s->doubtful && s->outcome != TUNE_OVER && s->outcome != TUNE_FAILED;
}

static int knobs_changed(const struct tune *t, int i) {
    int n = 0;
    for (int id = 0; id < KNOB_COUNT; id++)
        n += !knobs_same(&t->settings[i].knobs, &t->settings[0].knobs, id);
    return n;
}

// Why a setting that looks better than the choice was not taken.
static void say_not_taken(char *out, size_t bytes, const struct tune *t, int i) {
    const struct tune_setting *s = &t->settings[i], *c = &t->settings[t->chosen];
    const int n = knobs_changed(t, i), chosen = knobs_changed(t, t->chosen);
    char time[TEXT_UNIT_BYTES];
    struct tune_range range;
    tune_range_of(t, i, &range);
    if (!tune_in_turns(s))
        snprintf(out, bytes, "a glance of %s (n=%zu)%s, not run in turns",
                 text_duration(time, range.seconds), range.steps,
                 s->quiet == 0 ? " while other programs were busy" : "");
    else if (!isfinite(s->turns.low))
        snprintf(out, bytes, "too few rounds to say whether it is better");
    else if (s->turns.low > c->turns.high && t->chosen > 0)
        snprintf(out, bytes, "in rounds without the choice");
    else if (n > chosen && chosen > 0)
        snprintf(out, bytes,
                 "not surely better than the choice, and it changes %d knobs, the choice %d", n,
                 chosen);
    else
        snprintf(out, bytes, "not surely better than the choice");
}

const char *tune_reason(char out[TUNE_WORDS_BYTES], const struct tune *t, int i) {
    const struct tune_setting *s = &t->settings[i];
    // A reason for being slower, or for not being measured, says so itself.
    const bool named = s->outcome != TUNE_SLOWER && s->outcome != TUNE_PLANNED;
    size_t used = 0;
    out[0] = '\0';
    if (i == t->chosen)
        return out;
    if (s->reason[0])
        used = (size_t)snprintf(out, TUNE_WORDS_BYTES, "%s%s%.*s",
                                named ? tune_outcome_name(s->outcome) : "", named ? ": " : "",
                                TUNE_TEXT_BYTES, s->reason);
    else if (s->doubtful)
        used = (size_t)snprintf(out, TUNE_WORDS_BYTES,
                                "it probably breaks a budget: too many steps are over it");
    else if (s->outcome != TUNE_MEASURED)
        used = (size_t)snprintf(out, TUNE_WORDS_BYTES, "%s", tune_outcome_name(s->outcome));
    // The reason of the setting that was compared with as given at the end has its interval.
    if (tune_looks_better(t, i) && stands(s) && !(i == t->rival && s->reason[0])) {
        if (used > 0)
            used += (size_t)snprintf(out + used, TUNE_WORDS_BYTES - used, "; ");
        say_not_taken(out + used, TUNE_WORDS_BYTES - used, t, i);
    }
    return out;
}

const char *tune_better_line(char out[TUNE_WORDS_BYTES], const struct tune *t) {
    int n = 0, glances = 0, unsure = 0, broken = 0;
    for (int i = 0; i < t->n; i++) {
        if (!tune_looks_better(t, i))
            continue;
        n++;
        *(!stands(&t->settings[i]) ? &broken : tune_is_glance(t, i) ? &glances : &unsure) += 1;
    }
    out[0] = '\0';
    if (n == 0)
        return out;
    size_t used = (size_t)snprintf(
        out, TUNE_WORDS_BYTES, "%d setting%s look%s %s than the choice and %s not taken", n,
        n == 1 ? "" : "s", n == 1 ? "s" : "", tune_by_sample(&t->request) ? "quicker" : "faster",
        n == 1 ? "was" : "were");
    const struct {
        int n;
        const char *what;
    } parts[] = {{glances, "only glanced at, not run in turns"},
                 {unsure, "not surely better"},
                 {broken, "over a budget or failed"}};
    for (int i = 0, said = 0; i < 3; i++)
        if (parts[i].n > 0)
            used += (size_t)snprintf(out + used, TUNE_WORDS_BYTES - used, "%s %d %s",
                                     said++ ? "," : ":", parts[i].n, parts[i].what);
    return out;
}
