// forget.c - a search that began while somebody else had the machine, and went on when they had left.
//
// What others do for seconds is outweighed by visiting again (playbook.c). What they did from the beginning on is
// not: everything measured until then is slow by the same factor, the first setting that is seen without them is
// the best by far, and of the rest nothing speaks for a second look. So the setting that was measured first is
// looked at again when a stage is over, and if it is much faster by now, all that lies nearer to what it was
// than to what it is has no figures any more.
//
// Company that comes later, or comes and goes, is part of the machine, and its steps count.
#include "tune/tune_impl.h"

#include <math.h>

// Others make steps half as long again and more, a machine's mood a tenth. The look must not take too long, is not
// taken twice in a row, nor in a search that has no time to explore anew.
static const double LEFT = 1.25, LOOK_MOST = 0.03, LOOK_LEAST_S = 0.1, BETWEEN = 0.03,
                    SEARCH_LEAST_S = 10;
enum { LOOK_STEPS = 5 };

static int first_measured(const struct tune *t) {
    int first = -1;
    for (int i = 0; i < t->n; i++)
        if (t->settings[i].n > 0 && t->settings[i].outcome != TUNE_FAILED &&
            (first < 0 || t->settings[i].first_ns < t->settings[first].first_ns))
            first = i;
    return first;
}

static void forget(struct tune_setting *s) {
    s->n = 0;
    s->n_blocks = s->reused = 0;
    s->tokens = s->wall_ns = s->joule_tokens = s->joule_ns = 0;
    s->joules = NAN;
    s->typical_s = 0;
    s->split = (struct time_split){0};
    s->doubtful = false;
    s->outcome = TUNE_PLANNED;
    s->reason[0] = '\0';
}

// Longer than predicted by this factor.
static double late(const struct tune_setting *s, double step_s) {
    return step_s / s->predicted_s;
}

// 0: it is not worth it, or too early.
static int64_t steps_of_look(const struct tune *t, const struct tune_setting *s) {
    const double all_s = 1e-9 * (double)t->request.time_ns,
                 step_s = 1e-9 * (double)s->wall_ns / (double)s->n,
                 passed_s = 1e-9 * (double)(t->lab.clock_ns(t->lab.arg) - s->visited_ns),
                 steps = fmax(LOOK_STEPS, ceil(LOOK_LEAST_S / step_s));
    const bool just_seen = passed_s < BETWEEN * all_s && s->reused < s->n_blocks;
    return all_s < SEARCH_LEAST_S || just_seen || (steps + 1) * step_s > LOOK_MOST * all_s
               ? 0
               : (int64_t)steps;
}

// Whoever is nearer to what `first` was than to what it is, as ratios to predictions go. Without a prediction
// nothing says whose minutes a figure is of.
static int forget_like(struct tune *t, int first, double was_s, double is_s) {
    const struct tune_setting *s = &t->settings[first];
    const double halfway = sqrt(late(s, was_s) * late(s, is_s));
    int n = 0;
    for (int i = 0; i < t->n; i++) {
        struct tune_setting *x = &t->settings[i];
        if (i == first || x->n == 0 || x->outcome == TUNE_FAILED ||
            late(x, x->typical_s) <= halfway)
            continue;
        forget(x);
        n++;
    }
    return n;
}

int forget_the_slow(struct tune *t, bool *out, struct err *e) {
    const int first = first_measured(t);
    *out = false;
    if (first < 0 || t->trials < 2)
        return 0;
    const double was_s = t->settings[first].typical_s;
    const struct visit look = {.steps = steps_of_look(t, &t->settings[first]), .now = true};
    if (look.steps == 0)
        return 0;
    TRY(visit_setting(t, first, &look, e));
    struct tune_setting *s = &t->settings[first];
    const double is_s = s->n_blocks > 0 ? visit_typical(s, s->n_blocks - 1) : NAN;
    if (s->outcome == TUNE_FAILED || !(was_s > LEFT * is_s))
        return 0;
    const int forgotten = forget_like(t, first, was_s, is_s);
    if (forgotten == 0) // they left before anything else was measured: two visits of one tell
        return 0;
    t->request.update_s *= is_s / was_s; // learnt then
    // Ops were timed then, too, and turns are predicted from them.
    if (t->slowed == 0 && late(s, is_s) < 1 / LEFT) {
        t->request.turn_s *= late(s, is_s);
        t->request.answer_s *= late(s, is_s);
    }
    t->slowed = was_s / is_s;
    t->forgotten += forgotten;
    *out = true;
    forget(s);
    return visit_setting(t, first, &(struct visit){.now = true}, e);
}
