// check.c - measures whether every knob has an effect on this machine.
//
// Trials come first (they fork, which needs a process without threads), observations last. The
// values of a knob run in turns, round by round. Two values differ in speed if the 95 % interval of
// the ratios of their own rounds leaves out 1.
#include "bench/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------- what is tried

static void add_value(struct check_knob *k, const char *value) {
    if (k->n_values < CHECK_VALUES_MOST)
        snprintf(k->values[k->n_values++], KNOB_VALUE_BYTES, "%s", value);
}

// All values of a choice or a bool; for other knobs the two values of the pair (knob/pair.h).
static int list_values(const struct check *c, struct check_knob *k, const struct knobs *with,
                       struct err *e) {
    const struct knob_info *info = knob_info(k->id);
    char a[KNOB_VALUE_BYTES], b[KNOB_VALUE_BYTES];
    for (int i = 0; i < info->n_choices; i++)
        add_value(k, info->choices[i]);
    if (info->type == KNOB_BOOL) {
        add_value(k, "false");
        add_value(k, "true");
    }
    if (k->n_values > 0)
        return 0;
    TRY(knob_pair_values(with, k->id, c->dir.path, a, b, e));
    add_value(k, a);
    add_value(k, b);
    return 0;
}

static const char *unmeasured(const struct check *c, int id, const struct knobs *with) {
    const unsigned measured = KNOB_SPEED | KNOB_MEMORY | KNOB_MATH;
    struct knobs there = *with;
    if (effects_need_device(id) && !plan_wants_device(&c->base))
        return "there is no GPU here";
    if (!(knob_info(id)->flags & measured))
        return "it changes what is written or printed, not the steps";
    if (knob_pair_of(id)->unmeasured)
        return knob_pair_of(id)->unmeasured;
    if (!plan_wants_device(with))
        there.device = DEVICE_CPU;
    return knobs_idle(&there, id);
}

static struct bench bench_of(const struct check *c, const struct grid *g, int rounds) {
    return (struct bench){.grid = g,
                          .rounds = rounds,
                          .steps = c->steps,
                          .warmup = c->warmup,
                          .stop = c->stop,
                          .there_and_back = true};
}

static int prepare(struct check *c, struct check_knob *k, int id, struct err *e) {
    struct knobs with = c->base;
    *k = (struct check_knob){.id = id};
    TRY(knobs_set_list(&with, knob_pair_of(id)->with, c->dir.path, false, SET_BY_PLANNER, e));
    const char *why_not = unmeasured(c, id, &with);
    if (why_not) {
        snprintf(k->why_not, sizeof k->why_not, "%s", why_not);
        return 0;
    }
    TRY(list_values(c, k, &with, e));
    for (int i = 0; i < k->n_values; i++)
        k->settings[i] = (struct grid_setting){k->values[i], ""};
    grid_from_list(&k->grid, k->settings, (size_t)k->n_values);
    k->bench = bench_of(c, &k->grid, c->rounds);
    TRY(bench_open(&k->bench, &with, e));
    // The settings are empty, and values are set here: a value may contain spaces.
    for (int i = 0; i < k->n_values; i++) {
        struct err why = {0};
        int rc = knobs_set_at(&k->bench.rows[i].knobs, id, k->values[i], SET_BY_COMMAND_LINE, &why);
        if (rc != 0)
            bench_refuse(&k->bench.rows[i], rc, why.text);
    }
    return 0;
}

// ---------------------------------------------------------------- measuring

// Settings that cannot be run at all are an error, not a hundred values without figures.
static int try_base(struct check *c, struct err *e) {
    const struct trial_options o = {.warmup = 0, .steps = 1, .stop = c->stop};
    struct trial_result r;
    int rc = trial_run(&c->base, &o, &r, e);
    if (rc == 0 && r.rc != 0)
        rc = err_set(e, r.rc, "the settings as given cannot be run: %s", r.reason);
    trial_free(&r);
    return rc;
}

static void compare(struct check_knob *k) {
    for (int i = 0; i + 1 < k->n_values; i++) {
        const struct bench_row *a = &k->bench.rows[i], *b = &k->bench.rows[i + 1];
        struct check_pair *p = &k->pairs[i];
        bool both = a->n_rounds > 0 && b->n_rounds > 0;
        p->speed = bench_ratio(b, a, BENCH_SPEED);
        if (!both || !bench_busy(p->busy, b, a))
            p->busy[0] = '\0';
        p->memory_bytes = both ? bench_memory(b) - bench_memory(a) : NAN;
        p->planned_bytes =
            both ? (double)b->sum.memory_predicted_bytes - (double)a->sum.memory_predicted_bytes
                 : NAN;
        p->loss = both ? b->loss_last - a->loss_last : NAN;
    }
}

static int measure(struct check *c, struct log *log, struct err *e) {
    for (int i = 0; i < c->n; i++) {
        struct check_knob *k = &c->knobs[i];
        if (k->why_not[0])
            continue;
        TRY(bench_measure(&k->bench, log, e));
        TRY(bench_finish(&k->bench, &c->base, 0, e)); // 0: only stored rates
        compare(k);
    }
    return 0;
}

// ---------------------------------------------------------------- observing

static int look(const struct check *c, const struct check_knob *k, struct check_place *p,
                struct err *e) {
    char value[2][KNOB_VALUE_BYTES], *seen[2] = {NULL, NULL};
    struct knobs with;
    int rc = effects_settings(&with, &c->base, k->id, c->dir.path, e);
    if (rc == 0)
        rc = knob_pair_values(&with, k->id, c->dir.path, value[0], value[1], e);
    for (int i = 0; i < 2 && rc == 0; i++) {
        struct knobs one = with;
        rc = knobs_set_at(&one, k->id, value[i], SET_BY_PLANNER, e);
        if (rc == 0)
            rc = effects_observe(&seen[i], p->place, &one, c->dir.path, c->train, e);
    }
    p->looked = rc == 0;
    p->differs = rc == 0 && strcmp(seen[0], seen[1]) != 0;
    free(seen[0]);
    free(seen[1]);
    return rc;
}

static void look_everywhere(struct check *c, struct log *log) {
    for (int i = 0; i < c->n && !(c->stop && *c->stop); i++) {
        struct check_knob *k = &c->knobs[i];
        for (unsigned place = KNOB_IN_PROGRAM; place <= KNOB_IN_OUTPUT; place <<= 1) {
            if (!(knob_info(k->id)->flags & place) || k->n_places == CHECK_PLACES)
                continue;
            struct check_place *p = &k->places[k->n_places++];
            struct err why = {0};
            char text[128];
            snprintf(text, sizeof text, "looking at %s in the %s", knob_info(k->id)->name,
                     knob_place_name(place));
            log_live(log, text);
            p->place = place;
            if (look(c, k, p, &why) != 0)
                snprintf(p->reason, sizeof p->reason, "%s", why.text);
        }
    }
    if (log->live)
        log_live_end(log);
}

// ---------------------------------------------------------------- all of it

int check_run(struct check *c, const char *const *names, size_t n_names, struct log *log,
              struct err *e) {
    bool selected[KNOB_COUNT];
    TRY(knobs_select(names, n_names, selected, e));
    TRY(effects_make_files(&c->dir, e));
    TRY(knobs_set_list(&c->base, "seq=64 batch.micro=2 data.cache=none", c->dir.path, true,
                       SET_BY_DEFAULT, e));
    c->knobs = calloc(KNOB_COUNT, sizeof *c->knobs);
    if (!c->knobs)
        return err_set(e, ERR_MEMORY, "out of memory for the knobs");
    for (int id = 0; id < KNOB_COUNT; id++)
        if (selected[id])
            TRY(prepare(c, &c->knobs[c->n++], id, e));
    log_put(log, LOG_INFO, "%d knob%s, %d rounds of %lld steps for each value", c->n,
            c->n == 1 ? "" : "s", c->rounds, (long long)c->steps);
    TRY(try_base(c, e));
    TRY(measure(c, log, e));
    look_everywhere(c, log);
    return 0;
}

void check_close(struct check *c) {
    for (int i = 0; c->knobs && i < c->n; i++) {
        bench_close(&c->knobs[i].bench);
        grid_free(&c->knobs[i].grid);
    }
    free(c->knobs);
    effects_remove_files(&c->dir);
}

void check_say_unseen(const struct check *c, struct log *log) {
    for (int i = 0; i < c->n; i++)
        for (int p = 0; p < c->knobs[i].n_places; p++)
            if (c->knobs[i].places[p].looked && !c->knobs[i].places[p].differs)
                log_put(log, LOG_WARN, "%s does not show in the %s with these settings",
                        knob_info(c->knobs[i].id)->name,
                        knob_place_name(c->knobs[i].places[p].place));
}
