// bench_tuner.c - how good is the choice of `haggle tune`, and how quickly is it found? Compares it
// with a grid that is measured exhaustively, and with other ways to search the same grid.
//
// In one run:
//   1. Every setting of the grid is measured, in rounds that alternate in direction (tuner_grid.c).
//      Settings that may be among the best are measured in --again more rounds. Those that still
//      may be get five times as many rounds. They are judged by these later rounds only. Every
//      other pair of the last rounds is not used for that: part 3 draws from it too.
//   2. For each goal the tuner searches the same settings on the machine. It gets SHARE of the time
//      that part 1 took and no earlier knowledge, so calibrating its predictor counts. Before that
//      the grid's best few run in turns, to find the best one that keeps the target at that moment.
//      That setting then runs in turns with itself, which shows the noise, and with the tuner's
//      choice: the median ratio is the regret. Turns are short, because load from other programs
//      lasts for seconds and should affect both. Costs are those of a typical step (tune_typical in
//      tune/tune.h).
//   3. The record is searched again without the machine, many times with other draws of the same
//      samples: by the tuner (whose seconds include calibrating), at random, and by a Parzen
//      estimator (tuner_search.c).
//
// usage: bench_tuner [--rounds N] [--again N] [--visit SECONDS] [--pairs N] [--seeds N]
//                    [--samples N] [--curves FILE]
//                    [--record FILE | --reuse FILE | --replay FILE]
//                    [--goal bulk|interactive|hybrid]... [knob=value,value ...]
// Without knobs: 240 settings of the built-in model. --samples: sequences of a step. --record
// writes the measurements to a file. --reuse reads them from such a file (of the same machine and
// build). --replay runs only part 3, on any machine.
#include "base/clock.h"
#include "base/file.h"
#include "tuner_search.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PAIRS_MOST = 64 };
static const double SHARE = 0.145, NEAR = 0.03;
// Settings within CLOSE of the best may be the best: two visits of one setting nearly always differ
// by less. CLOSER is the same after --again visits. A quarter of those settings decides which are
// near the best, so they get many more visits.
static const double CLOSE = 0.15, CLOSER = 0.06;
enum { CLOSER_TIMES = 5, AGAIN_MOST = GRID_ROUNDS_MOST / (1 + CLOSER_TIMES) };

// The knobs that a person would try on one device.
static const char *const AXES[] = {
    "seq=64",
    "batch.micro=1,2,4,8,16",
    "recompute.mode=none,selective,full",
    "threads=0,1",
    "logits.chunk=0,32",
    "cpu.pin=false,true",
    "fuse.optim=true,false",
};

struct options {
    bool goals[TUNE_GOALS];
    int pairs, seeds, rounds, again;
    int64_t samples;
    double visit_s;
    const char *curves, *record, *reuse, *replay;
    const char *const *axes;
    size_t n_axes;
};

// ---------------------------------------------------------------- a laboratory without knowledge

struct place {
    struct lab *lab;
    struct tune_lab table;
    char cache[256]; // an empty cache folder, without op times of earlier runs
};

static void place_close(struct place *p) {
    lab_close(p->lab);
    if (p->cache[0])
        file_remove_tree(p->cache, NULL); // if this fails, a temporary folder is left
}

static int place_open_lab(struct place *p, const struct knobs *k, double time_s, struct err *e) {
    const struct lab_options lo = {.knobs = k, .time_s = time_s};
    TRY(lab_open(&p->lab, &lo, e));
    p->table = lab_table(p->lab);
    return 0;
}

// For a search of this length; 0: ops are not timed.
static int place_open(struct place *p, const struct knobs *k, double time_s, struct err *e) {
    *p = (struct place){0};
    TRY(file_make_temp_dir(p->cache, sizeof p->cache, "tuner", e));
    if (setenv("XDG_CACHE_HOME", p->cache, 1) != 0)
        return err_set(e, ERR_MEMORY, "no memory for a variable of the environment");
    return place_open_lab(p, k, time_s, e);
}

// The seconds that a search without earlier knowledge spends before its first trial: on timing ops
// (how much longer opening takes than with known times) and on planning all settings.
static int learn(struct record *r, struct err *e) {
    const struct knobs *k = &r->points[0].knobs;
    const double time_s = SHARE * r->seconds;
    struct place p;
    uint64_t at_ns[5] = {clock_ns()};
    int rc = place_open(&p, k, time_s, e);
    at_ns[1] = clock_ns();
    if (rc == 0)
        rc = record_predict(r, &p.table, e);
    at_ns[2] = clock_ns();
    lab_close(p.lab);
    p.lab = NULL;
    at_ns[3] = clock_ns();
    if (rc == 0)
        rc = place_open_lab(&p, k, time_s, e);
    at_ns[4] = clock_ns();
    place_close(&p);
    r->timing_s = 1e-9 * ((double)(at_ns[1] - at_ns[0]) - (double)(at_ns[4] - at_ns[3]));
    r->planning_s = 1e-9 * (double)(at_ns[2] - at_ns[1]);
    return rc;
}

// ---------------------------------------------------------------- the tuner on the machine

struct within { // a laboratory that accepts only settings of the grid
    const struct record *r;
    struct tune_lab inner;
};

static int within_plan(void *arg, const struct knobs *k, struct tune_plan *out, struct err *e) {
    struct within *w = arg;
    if (record_find(w->r, k) < 0) {
        out->rc = ERR_USAGE;
        snprintf(out->reason, sizeof out->reason, "not in the grid");
        return 0;
    }
    return w->inner.plan(w->inner.arg, k, out, e);
}

static int within_measure(void *arg, const struct knobs *k, const struct tune_order *o,
                          struct tune_measured *out, struct err *e) {
    struct within *w = arg;
    return w->inner.measure(w->inner.arg, k, o, out, e);
}

static uint64_t within_clock(void *arg) {
    struct within *w = arg;
    return w->inner.clock_ns(w->inner.arg);
}

// Prints what the search saw of the grid's best setting, if it chose another one.
static void print_opinion(const struct tune *t, const struct knobs *best) {
    for (int i = 0; i < t->n; i++) {
        const struct tune_setting *s = &t->settings[i];
        if (i != t->chosen && knobs_equal(&s->knobs, best))
            printf("         of the best it says: %s, %zu steps%s%s\n",
                   tune_outcome_name(s->outcome), s->n, s->reason[0] ? ": " : "", s->reason);
    }
}

static int tune_live(const struct record *r, const struct target *g, int best, int *chosen,
                     struct err *e) {
    struct place p;
    struct tune t = {0};
    const uint64_t begin = clock_ns();
    int rc = place_open(&p, &r->points[0].knobs, SHARE * r->seconds, e);
    struct within w = {.r = r, .inner = p.table};
    const struct tune_lab table = {
        .arg = &w, .plan = within_plan, .measure = within_measure, .clock_ns = within_clock};
    const double left_s = SHARE * r->seconds - 1e-9 * (double)(clock_ns() - begin);
    struct tune_request q = {.goal = g->goal,
                             .respond_ns = g->respond_ns,
                             .on_device = plan_wants_device(&r->points[0].knobs),
                             .time_ns = (uint64_t)(1e9 * fmax(left_s, 1)),
                             .cpus = (int)sysconf(_SC_NPROCESSORS_ONLN)};
    if (rc == 0)
        rc = tune_run(&t, &r->points[0].knobs, &q, &table, e);
    const double seconds = 1e-9 * (double)(clock_ns() - begin);
    *chosen = rc == 0 && t.chosen >= 0 ? record_find(r, &t.settings[t.chosen].knobs) : -1;
    if (rc == 0)
        printf("tuner    %.1f s (%.1f %% of the grid's), %d trials: %s%s\n", seconds,
               100 * seconds / r->seconds, t.trials,
               t.chosen >= 0 ? t.settings[t.chosen].name : t.why_none,
               t.certain ? "" : " (order not certain)");
    if (rc == 0)
        print_opinion(&t, &r->points[best].knobs);
    tune_free(&t);
    place_close(&p);
    return rc;
}

// Runs two settings in turns and prints how much more the first costs.
static int compare(const char *what, const struct record *r, const struct target *g,
                   struct tune_lab *lab, const int which[2], int pairs, struct err *e) {
    double ratios[PAIRS_MOST], steps[SAMPLES_MOST];
    size_t n = 0, got = 0;
    for (; n < (size_t)pairs && n < PAIRS_MOST; n++) {
        double cost[2];
        for (int side = 0; side < 2; side++) {
            const int at = (int)(n + (size_t)side) % 2; // alternates which goes first
            const struct knobs *k = &r->points[which[at]].knobs;
            TRY(record_visit(lab, k, 2 * r->visit_s, steps, SAMPLES_MOST, &got, NULL, e));
            cost[at] = visit_cost(g, k, steps, got);
        }
        ratios[n] = cost[0] / cost[1];
    }
    const double middle = median_of(ratios, n); // sorts
    printf("%-8s %+.1f %% (median of %zu pairs, half of them %+.1f to %+.1f %%)\n", what,
           100 * (middle - 1), n, 100 * (ratios[n / 4] - 1), 100 * (ratios[3 * n / 4] - 1));
    return 0;
}

// ---------------------------------------------------------------- a goal

// Counts the settings for which the record does not clearly say whether they keep the budget: a few
// steps that were slowed by other programs decide.
static int in_doubt(const struct record *r, const struct target *g) {
    int n = 0;
    for (int i = 0; i < r->n; i++) {
        const struct point *p = &r->points[i];
        const double over = steps_over(g, &p->knobs, p->grid.step_ns, p->grid.n);
        n += over > 0.4 && over < 3;
    }
    return n;
}

// Chooses the time budget for requests: halfway between the waiting times of two settings, within
// the middle half of all waiting times. Takes the place where the fewest settings are in doubt
// and, among such places, the one with the widest gap.
static uint64_t find_respond_ns(const struct record *r) {
    const struct tune_request q = {.update_s = r->update_s,
                                   .on_device = plan_wants_device(&r->points[0].knobs)};
    double *waits = calloc((size_t)r->n, sizeof *waits), steps[SAMPLES_MOST];
    int n = 0, fewest = 0;
    uint64_t found = 0;
    double widest = 0;
    for (int i = 0; waits && i < r->n; i++) {
        const struct point *p = &r->points[i];
        memcpy(steps, p->grid.step_ns, p->grid.n * sizeof *steps);
        if (p->grid.n > 0)
            waits[n++] = 1e9 * tune_wait_of(&q, &p->knobs, 1e-9 * median_of(steps, p->grid.n));
    }
    if (n > 0)
        sample_sort(waits, (size_t)n);
    for (int i = n / 4; i + 1 < n - n / 4; i++) {
        const double gap = waits[i + 1] / waits[i];
        const struct target g = {TUNE_HYBRID, (uint64_t)(waits[i] * sqrt(gap)), r->update_s};
        const int doubts = in_doubt(r, &g);
        if (found == 0 || doubts < fewest || (doubts == fewest && gap > widest))
            found = g.respond_ns, fewest = doubts, widest = gap;
    }
    free(waits);
    return found;
}

static struct target target_of(const struct record *r, enum tune_goal goal) {
    return (struct target){.goal = goal,
                           .respond_ns = goal == TUNE_HYBRID ? r->respond_ns : 0,
                           .update_s = r->update_s};
}

static int judge_choice(const struct record *r, const struct target *g, struct tune_lab *lab,
                        int pairs, struct err *e) {
    char name[GRID_NAME_BYTES];
    int which[2]; // chosen, best
    TRY(record_confirm_best(r, g, lab, &which[1], e));
    if (which[1] < 0)
        return err_set(e, ERR_USAGE, "no setting of the grid keeps this target");
    TRY(tune_live(r, g, which[1], &which[0], e));
    if (which[0] >= 0 && !point_keeps(g, &r->points[which[0]]))
        printf("         by the record it does not keep the target\n");
    const struct point *best = &r->points[which[1]];
    printf("best     %s: %.4g ms per %s\n", grid_name(&r->axes, best->at, name),
           1e3 * point_cost(g, best), g->goal == TUNE_INTERACTIVE ? "sample" : "token");
    const int same[2] = {which[1], which[1]};
    TRY(compare("noise", r, g, lab, same, pairs, e));
    if (which[0] == which[1])
        printf("regret   none: the same setting\n");
    return which[0] < 0 || which[0] == which[1] ? 0 : compare("regret", r, g, lab, which, pairs, e);
}

static int judge_goal(const struct record *r, enum tune_goal goal, struct tune_lab *lab,
                      const struct options *o, FILE *curves, struct err *e) {
    const struct target g = target_of(r, goal);
    printf("\n%s", tune_goal_name(goal));
    if (g.respond_ns > 0)
        printf(", a request waits %.4g ms at most", 1e-6 * (double)g.respond_ns);
    printf("\n");
    if (!o->replay)
        TRY(judge_choice(r, &g, lab, o->pairs, e));
    const int recorded = record_best(r, &g);
    if (recorded < 0)
        return err_set(e, ERR_USAGE, "no setting of the grid keeps this target");
    const struct search_options so = {.target = &g,
                                      .best_cost = point_cost(&g, &r->points[recorded]),
                                      .time_s = SHARE * r->seconds,
                                      .near = NEAR,
                                      .seeds = o->seeds,
                                      .curves = curves,
                                      .label = tune_goal_name(goal)};
    return search_record(r, &so, e);
}

static int fill_record(struct record *r, struct place *p, const struct options *o, struct err *e) {
    TRY(record_plan(r, o->axes, o->n_axes, o->samples, e));
    if (o->replay)
        return record_load(r, o->replay, e);
    TRY(place_open(p, &r->points[0].knobs, 0, e));
    if (o->reuse)
        return record_load(r, o->reuse, e);
    TRY(record_measure(r, &p->table, e));
    TRY(learn(r, e));
    r->respond_ns = find_respond_ns(r);
    struct target targets[TUNE_GOALS];
    for (int g = 0; g < TUNE_GOALS; g++)
        targets[g] = target_of(r, (enum tune_goal)g);
    struct second_look look = {targets, TUNE_GOALS, CLOSE, o->again, false};
    TRY(record_look_again(r, &look, &p->table, e));
    look = (struct second_look){targets, TUNE_GOALS, CLOSER, CLOSER_TIMES * o->again, true};
    TRY(record_look_again(r, &look, &p->table, e));
    return o->record ? record_save(r, o->record, e) : 0;
}

static int count_again(const struct record *r) {
    int n = 0;
    for (int i = 0; i < r->n; i++)
        n += r->points[i].again.n > 0;
    return n;
}

static int run(const struct options *o, struct err *e) {
    struct record r = {.visit_s = o->visit_s, .rounds = o->rounds};
    struct place p = {0};
    FILE *curves = o->curves ? fopen(o->curves, "w") : NULL;
    if (o->curves && !curves)
        return err_set(e, ERR_IO, "%s: cannot be written", o->curves);
    if (curves)
        search_write_heading(curves);
    int rc = fill_record(&r, &p, o, e);
    if (rc == 0)
        printf("%s: %d settings measured in %.1f s (%d rounds), %d of them again; "
               "timing ops takes a search %.2f s, planning all settings %.2f s\n",
               r.points[0].knobs.model, r.n, r.seconds, r.rounds, count_again(&r), r.timing_s,
               r.planning_s);
    for (int g = 0; rc == 0 && g < TUNE_GOALS; g++) {
        fflush(stdout);
        if (o->goals[g])
            rc = judge_goal(&r, (enum tune_goal)g, &p.table, o, curves, e);
    }
    place_close(&p);
    record_free(&r);
    if (curves && fclose(curves) != 0 && rc == 0)
        rc = err_set(e, ERR_IO, "%s: cannot be written", o->curves);
    return rc;
}

static int read_goal(struct options *o, const char *text, struct err *e) {
    for (int g = 0; g < TUNE_GOALS; g++)
        if (strcmp(text, tune_goal_name((enum tune_goal)g)) == 0) {
            o->goals[g] = true;
            return 0;
        }
    return err_set(e, ERR_USAGE, "--goal %s: accepted: bulk, interactive, hybrid", text);
}

static int read_options(struct options *o, int argc, char **argv, struct err *e) {
    bool any = false;
    *o = (struct options){
        .rounds = 6, .again = 8, .pairs = 31, .seeds = 20, .samples = 16, .visit_s = 0.15};
    int i = 1;
    for (; i < argc && strncmp(argv[i], "--", 2) == 0; i += 2) {
        const char *next = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--goal") == 0) {
            any = true;
            TRY(read_goal(o, next, e));
        } else if (strcmp(argv[i], "--pairs") == 0)
            o->pairs = atoi(next);
        else if (strcmp(argv[i], "--rounds") == 0)
            o->rounds = atoi(next) < 1                  ? 1
                        : atoi(next) > GRID_ROUNDS_MOST ? GRID_ROUNDS_MOST
                                                        : atoi(next);
        else if (strcmp(argv[i], "--again") == 0)
            o->again = atoi(next) < 0 ? 0 : atoi(next) > AGAIN_MOST ? AGAIN_MOST : atoi(next);
        else if (strcmp(argv[i], "--record") == 0)
            o->record = next;
        else if (strcmp(argv[i], "--reuse") == 0)
            o->reuse = next;
        else if (strcmp(argv[i], "--replay") == 0)
            o->replay = next;
        else if (strcmp(argv[i], "--seeds") == 0)
            o->seeds = atoi(next);
        else if (strcmp(argv[i], "--samples") == 0)
            o->samples = atoi(next);
        else if (strcmp(argv[i], "--visit") == 0)
            o->visit_s = atof(next);
        else if (strcmp(argv[i], "--curves") == 0)
            o->curves = next;
        else
            return err_set(e, ERR_USAGE, "there is no flag %s", argv[i]);
    }
    for (int g = 0; !any && g < TUNE_GOALS; g++)
        o->goals[g] = true;
    o->axes = i < argc ? (const char *const *)argv + i : AXES;
    o->n_axes = i < argc ? (size_t)(argc - i) : sizeof AXES / sizeof *AXES;
    return 0;
}

int main(int argc, char **argv) {
    struct options o;
    struct err e = {0};
    int rc = read_options(&o, argc, argv, &e);
    if (rc == 0)
        rc = run(&o, &e);
    if (rc != 0)
        fprintf(stderr, "bench_tuner: %s\n", e.text);
    return rc == 0 ? 0 : 1;
}
