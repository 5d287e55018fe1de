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
#include <stdlib.h>
#include <string.h>

// Others make steps half as long again and more, a machine's mood a tenth. The look costs LOOK_STEPS and one to
// warm up, which must not be too many, and is not taken twice in a row, nor in a search that has no time to explore
// anew.
static const double LEFT = 1.25, LOOK_MOST = 0.03, BETWEEN = 0.03, SEARCH_LEAST_S = 10;
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

// But for its last visit.
static int forget_others(const struct tune *t, struct tune_setting *s, struct err *e) {
    const struct tune_block last = s->blocks[s->n_blocks - 1];
    double *steps = malloc(last.n * sizeof *steps);
    if (!steps)
        return err_set(e, ERR_MEMORY, "out of memory for %zu samples", last.n);
    memcpy(steps, s->step_ns + last.first, last.n * sizeof *steps);
    const struct tune_measured m = {.step_ns = steps,
                                    .n = last.n,
                                    .tokens = last.tokens,
                                    .wall_ns = last.wall_ns,
                                    .joules = NAN};
    forget(s);
    int rc = visit_keep(s, &m, e);
    s->outcome = visit_breaks_limit(t, s, s->reason) ? TUNE_OVER : TUNE_MEASURED;
    free(steps);
    return rc;
}

// Longer than predicted by this factor.
static double late(const struct tune_setting *s, double step_s) {
    return step_s / s->predicted_s;
}

int forget_the_slow(struct tune *t, bool *out, struct err *e) {
    const int first = first_measured(t);
    const struct visit v = {.steps = LOOK_STEPS};
    *out = false;
    if (first < 0 || t->trials < 2)
        return 0;
    const struct tune_setting *s = &t->settings[first];
    const double was_s = s->typical_s, step_s = 1e-9 * (double)s->wall_ns / (double)s->n;
    const double all_s = 1e-9 * (double)t->request.time_ns,
                 passed_s = 1e-9 * (double)(t->lab.clock_ns(t->lab.arg) - s->visited_ns);
    if (all_s < SEARCH_LEAST_S || (LOOK_STEPS + 1) * step_s > LOOK_MOST * all_s ||
        passed_s < BETWEEN * all_s)
        return 0;
    TRY(visit_setting(t, first, &v, e));
    s = &t->settings[first];
    if (s->outcome == TUNE_FAILED || s->n_blocks < 2)
        return 0;
    const double is_s = visit_typical(s, s->n_blocks - 1);
    if (!(was_s > LEFT * is_s))
        return 0;
    // Halfway between the two, as ratios go. Without a prediction nothing says whose minutes a figure is of.
    const double halfway = sqrt(late(s, was_s) * late(s, is_s));
    for (int i = 0; i < t->n; i++) {
        struct tune_setting *x = &t->settings[i];
        if (i == first || x->n == 0 || x->outcome == TUNE_FAILED ||
            late(x, x->typical_s) <= halfway)
            continue;
        forget(x);
        t->forgotten++;
    }
    t->slowed = was_s / is_s;
    t->request.update_s = 0;        // learnt then, and learnt again
    if (late(s, is_s) < 1 / LEFT) { // ops were timed then, too, and turns are predicted from them
        t->request.turn_s *= late(s, is_s);
        t->request.answer_s *= late(s, is_s);
    }
    *out = true;
    return forget_others(t, &t->settings[first], e);
}
