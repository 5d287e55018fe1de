// again.c - see again.h.
#include "tune/again.h"

#include "tune/tune_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static int plan_nothing(void *arg, const struct knobs *k, struct tune_plan *out, struct err *e) {
    (void)arg, (void)k, (void)e;
    out->step_s = NAN;
    return 0;
}

int tune_again_begin(struct tune *t, const struct knobs *base, const struct tune_request *r,
                     struct err *e) {
    memset(t, 0, sizeof *t);
    t->request = *r;
    t->lab.plan = plan_nothing;
    t->policy = r->policy ? r->policy : &tune_policy_default;
    t->chosen = t->rival = -1;
    t->busy_most = NAN;
    int rc = tune_add(t, base, STAGE_PROFILE, e);
    return rc < 0 ? rc : 0;
}

int tune_again_add(struct tune *t, const struct knobs *k, enum tune_stage stage, struct err *e) {
    return tune_add(t, k, stage, e);
}

int tune_again_visit(struct tune *t, int i, const struct tune_measured *m, struct err *e) {
    struct tune_setting *s = &t->settings[i];
    t->trials++;
    TRY(visit_keep(t->policy, s, m, e));
    if (m->rc == 0) {
        s->outcome = TUNE_MEASURED;
        s->reason[0] = '\0'; // an earlier visit may have failed
        return 0;
    }
    s->outcome = TUNE_FAILED;
    snprintf(s->reason, sizeof s->reason, "%s", m->reason);
    return 0;
}

void tune_again_end(struct tune *t, int chosen) {
    for (int i = 0; i < t->n; i++)
        tune_learn_update(t, &t->settings[i]);
    for (int i = 0; i < t->n; i++) {
        struct tune_setting *s = &t->settings[i];
        char why[TUNE_TEXT_BYTES];
        if (i != chosen && s->n > 0 && s->outcome != TUNE_FAILED && visit_breaks_limit(t, s, why)) {
            s->outcome = TUNE_OVER;
            snprintf(s->reason, sizeof s->reason, "%s", why);
        }
    }
    if (chosen >= 0 && t->settings[chosen].n > 0) {
        t->chosen = chosen;
        finals_bounds(t);
    }
    if (t->n > 0)
        frontier_mark(t);
}
