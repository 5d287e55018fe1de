// forget.c - a search that began while another program used the machine, and went on after that
// program had ended.
//
// A program that disturbs for seconds is outweighed by visiting settings again (playbook.c). One
// that was there from the beginning is not. Everything measured until it ended is slow by the same
// factor, so the first setting that is measured without it looks best by far, and nothing suggests
// a second visit to the others. So the setting that was measured first is measured again at the end
// of a stage. If it is much faster now, every setting whose figures are nearer to the slow time
// than to the present loses them.
//
// A program that comes later, or comes and goes, counts as part of the machine, and so do the steps
// that it slowed down.
#include "tune/tune_impl.h"

#include <math.h>

static int first_measured(const struct tune *t) {
    int first = -1;
    for (int i = 0; i < t->n; i++)
        if (t->settings[i].n > 0 && t->settings[i].outcome != TUNE_FAILED &&
            (first < 0 || t->settings[i].first_ns < t->settings[first].first_ns))
            first = i;
    return first;
}

// Makes a setting one that was planned and never measured.
static void forget(struct tune_setting *s) {
    s->n = 0;
    s->n_blocks = s->reused = s->quiet = 0;
    s->tokens = s->wall_ns = s->joule_tokens = s->joule_ns = 0;
    s->joules = NAN;
    s->typical_s = 0;
    s->split = (struct time_split){0};
    s->doubtful = false;
    s->outcome = TUNE_PLANNED;
    s->reason[0] = '\0';
}

// How many times as long as predicted.
static double late(const struct tune_setting *s, double step_s) {
    return step_s / s->predicted_s;
}

// Steps of the second visit; 0: there is no time for it, or the last visit was just now.
static int64_t steps_of_look(const struct tune *t, const struct tune_setting *s) {
    const double all_s = 1e-9 * (double)t->request.time_ns,
                 step_s = 1e-9 * (double)s->wall_ns / (double)s->n,
                 passed_s = 1e-9 * (double)(t->lab.clock_ns(t->lab.arg) - s->visited_ns),
                 steps = fmax(t->policy->forget.look_least_steps,
                              ceil(t->policy->forget.look_least_s / step_s));
    const bool just_seen =
        passed_s < t->policy->forget.between_least_share * all_s && s->reused < s->n_blocks;
    return all_s < t->policy->forget.search_least_s || just_seen ||
                   (steps + 1) * step_s > t->policy->forget.look_most_share * all_s
               ? 0
               : (int64_t)steps;
}

// Forgets the settings whose ratio to their prediction is nearer to what that of `first` was than
// to what it is. Without a prediction nothing tells the two apart, and a setting is forgotten, too.
// Returns how many were.
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
    const double was_s = t->settings[first].typical_s,
                 faster = t->policy->forget.faster_least_ratio;
    const struct visit look = {.steps = steps_of_look(t, &t->settings[first]), .now = true};
    if (look.steps == 0)
        return 0;
    TRY(visit_setting(t, first, &look, e));
    struct tune_setting *s = &t->settings[first];
    const double is_s = s->n_blocks > 0 ? visit_typical(s, s->n_blocks - 1) : NAN;
    if (s->outcome == TUNE_FAILED || !(was_s > faster * is_s))
        return 0;
    const int forgotten = forget_like(t, first, was_s, is_s);
    // The program ended before anything else was measured. The two visits of `first` are enough.
    if (forgotten == 0)
        return 0;
    t->request.update_s *= is_s / was_s; // it was learnt from a slow step
    // Ops were timed while the program was there, too, and turns are predicted from them.
    if (t->slowed == 0 && late(s, is_s) < 1 / faster) {
        t->request.turn_s *= late(s, is_s);
        t->request.answer_s *= late(s, is_s);
    }
    t->slowed = was_s / is_s;
    t->forgotten += forgotten;
    *out = true;
    forget(s);
    return visit_setting(t, first, &(struct visit){.now = true}, e);
}
