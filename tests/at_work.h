// at_work.h - a plan at work in an engine of its own: what most tests of training need.
#ifndef HAGGLE_TESTS_AT_WORK_H
#define HAGGLE_TESTS_AT_WORK_H

#include "engine/engine.h"

struct at_work {
    struct plan plan;
    struct engine *engine; // NULL until it is started
    struct session *s;     // of the engine
};

static inline int at_work_plan(struct at_work *w, const struct plan_options *o, struct err *e) {
    w->engine = NULL;
    w->s = NULL;
    return plan_make(&w->plan, o, e);
}

// An engine that is EMPTY, for a trainer.
static inline int at_work_open(struct at_work *w, const struct engine_options *o, struct err *e) {
    return w->engine ? 0 : engine_open(&w->engine, o, e);
}

// An engine that is READY for the plan: nothing of what the plan needs is taken.
static inline int at_work_ready(struct at_work *w, const struct engine_options *o, struct err *e) {
    TRY(at_work_open(w, o, e));
    return engine_ready(w->engine, &w->plan, e);
}

static inline int at_work_start(struct at_work *w, const struct engine_options *o, struct err *e) {
    TRY(at_work_open(w, o, e));
    TRY(engine_load(w->engine, &w->plan, e));
    w->s = w->engine->session;
    return 0;
}

static inline void at_work_close(struct at_work *w) {
    engine_close(w->engine);
    plan_free(&w->plan);
    w->engine = NULL;
    w->s = NULL;
}

#endif
