// gen.c - see gen.h: settings, visits, and the exploring that comes before the finals.
//
// Exploring climbs. From the best setting so far its neighbours are visited: every other format,
// and the values beside its own of batch, chunk and threads; then all pairs of batch and chunk,
// which trade against each other under every budget; then those that differ in two other ways.
// Settings that keep the budgets are ordered by cost, and come before those that do not, which are
// ordered by how far they are over. If none keeps a budget, exploring goes on for the least that
// can be had of it.
#include "tune/gen.h"

#include "base/array.h"
#include "measure/bound.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Shares of the time. Chosen, not measured: exploring ends in time for the finals, which need at
// least six rounds of two settings twice.
static const double EXPLORE_BY = 0.40, LEAST_BY = 0.55, RECHECK_BY = 0.46;
// Length of a visit: long enough for some dozens of tokens, short enough for some dozens of visits.
static const double VISIT_SHARE = 0.006, VISIT_LEAST_S = 0.2, VISIT_MOST_S = 10;
// A visit that was busy is repeated at most so often before the search goes on without it.
enum { BUSY_TRIES = 3 };
// Settings this near the best are visited a second time before the finals.
static const double NEAR_REL = 0.10;

const char *gen_limit_name(enum gen_limit l) {
    return l == GEN_FIRST ? "time to the first token" : "time between tokens";
}

// ---------------------------------------------------------------- figures

double gen_cost(const struct gen_setting *s) {
    double copy[CONTEST_MOST_BLOCKS];
    const size_t n = (size_t)(s->visits < CONTEST_MOST_BLOCKS ? s->visits : CONTEST_MOST_BLOCKS);
    memcpy(copy, s->cost, n * sizeof *copy);
    return sample_median(copy, n);
}

double gen_tokens_per_s(const struct gen_setting *s) {
    return 1 / gen_cost(s);
}

double gen_speed(const struct gen_setting *s) {
    return s->turns.rounds > 0 ? s->turns.tokens_per_s : gen_tokens_per_s(s);
}

struct quantile gen_quantile(const struct gen_setting *s, enum gen_limit l, double p) {
    struct quantile q = {.p = p, .value = NAN, .upper95 = NAN, .n_needed = sample_bound_needs(p)};
    double *sorted = malloc((s->n[l] + 1) * sizeof *sorted);
    if (!sorted || s->n[l] == 0) {
        free(sorted);
        return q;
    }
    struct samples copy = {
        .values = s->ns[l], .sorted = sorted, .capacity = s->n[l], .seen = s->n[l]};
    samples_quantiles(&copy, 0, &p, 1, &q);
    free(sorted);
    return q;
}

static double strain_of(const struct gen *g, const struct gen_setting *s, enum gen_limit l) {
    const uint64_t limit = g->request.limit_ns[l];
    return limit == 0 || s->n[l] == 0 ? 0 : s->percentile[l] / (double)limit;
}

double gen_strain(const struct gen *g, const struct gen_setting *s) {
    return fmax(strain_of(g, s, GEN_FIRST), strain_of(g, s, GEN_BETWEEN));
}

double gen_elapsed(const struct gen *g) {
    const uint64_t now = g->lab.clock_ns(g->lab.arg);
    return (double)(now - g->begin_ns) / (double)g->request.time_ns;
}

// ---------------------------------------------------------------- settings

static int64_t value_at(const struct gen *g, const int at[GEN_DIMENSIONS], enum gen_dimension d) {
    return g->request.space.values[d][at[d]];
}

static struct gen_point point_at(const struct gen *g, const int at[GEN_DIMENSIONS]) {
    struct gen_point p = {.format = at[GEN_FORMAT],
                          .threads = (int)value_at(g, at, GEN_THREADS),
                          .chunk = value_at(g, at, GEN_CHUNK),
                          .batch = value_at(g, at, GEN_BATCH)};
    const int64_t all = p.batch * g->request.prompt;
    p.chunk = p.chunk < all ? p.chunk : all;
    return p;
}

static void name_setting(const struct gen *g, struct gen_setting *s) {
    const struct gen_point given = point_at(g, g->request.space.given), *p = &s->point;
    size_t n = 0;
    s->name[0] = '\0';
#define PART(differs, ...)                                                                         \
    if (differs) {                                                                                 \
        if (n > 0)                                                                                 \
            n += (size_t)snprintf(s->name + n, sizeof s->name - n, ", ");                          \
        n += (size_t)snprintf(s->name + n, sizeof s->name - n, __VA_ARGS__);                       \
    }
    PART(p->format != given.format, "%s", g->request.formats[p->format].name)
    PART(p->batch != given.batch, "batch %lld", (long long)p->batch)
    PART(p->chunk != given.chunk, "chunk %lld", (long long)p->chunk)
    PART(p->threads != given.threads, "threads %d", p->threads)
#undef PART
    if (n == 0)
        snprintf(s->name, sizeof s->name, "as given");
}

static bool same_point(const struct gen_point *a, const struct gen_point *b) {
    return a->format == b->format && a->threads == b->threads && a->chunk == b->chunk &&
           a->batch == b->batch;
}

static int plan_setting(struct gen *g, struct gen_setting *s, struct err *e) {
    const struct gen_format *f = &g->request.formats[s->point.format];
    struct gen_plan p = {0};
    if (f->refused[0] == '\0')
        TRY(g->lab.plan(g->lab.arg, &s->point, &p, e));
    s->need_bytes = p.need_bytes;
    s->have_bytes = p.have_bytes;
    if (f->refused[0] != '\0' || p.rc != 0) {
        s->outcome = TUNE_REFUSED;
        snprintf(s->reason, sizeof s->reason, "%s", p.rc != 0 ? p.reason : f->refused);
        if (p.rc != 0 && g->why_rc == 0)
            g->why_rc = p.rc;
    }
    return 0;
}

int gen_add(struct gen *g, const int at[GEN_DIMENSIONS], struct err *e) {
    struct gen_setting s = {.point = point_at(g, at)};
    for (int i = 0; i < g->n; i++)
        if (same_point(&g->settings[i].point, &s.point))
            return i;
    memcpy(s.at, at, sizeof s.at);
    name_setting(g, &s);
    TRY(plan_setting(g, &s, e));
    if (g->n == g->capacity) {
        const int wider = g->capacity ? 2 * g->capacity : 32;
        struct gen_setting *moved = realloc(g->settings, (size_t)wider * sizeof *moved);
        if (!moved)
            return err_set(e, ERR_MEMORY, "out of memory for %d settings", wider);
        g->settings = moved;
        g->capacity = wider;
    }
    g->settings[g->n] = s;
    if (s.need_bytes > 0 && (g->leanest < 0 || s.need_bytes < g->settings[g->leanest].need_bytes))
        g->leanest = g->n;
    return g->n++;
}

// ---------------------------------------------------------------- visits

static int keep_samples(struct gen_setting *s, const struct gen_measured *m, struct err *e) {
    for (int l = 0; l < GEN_LIMITS; l++) {
        if (!array_room(&s->ns[l], s->n[l], m->n[l], &s->capacity[l], sizeof(double), 64))
            return err_set(e, ERR_MEMORY, "out of memory for the times of tokens");
        if (m->n[l] > 0)
            memcpy(s->ns[l] + s->n[l], m->ns[l], m->n[l] * sizeof(double));
        s->n[l] += m->n[l];
    }
    return 0;
}

// Whether a budget is certainly broken.
static bool is_over(const struct gen *g, struct gen_setting *s) {
    for (int l = 0; l < GEN_LIMITS; l++) {
        const uint64_t limit = g->request.limit_ns[l];
        size_t over = 0;
        for (size_t i = 0; limit > 0 && i < s->n[l]; i++)
            over += s->ns[l][i] > (double)limit;
        if (limit == 0 ||
            sample_bound_watch(s->n[l], over, g->request.p, g->policy->confidence).state !=
                BOUND_OVER)
            continue;
        snprintf(s->reason, sizeof s->reason, "%s: p%g is %.3g ms, over %.3g ms",
                 gen_limit_name((enum gen_limit)l), 100 * g->request.p, 1e-6 * s->percentile[l],
                 1e-6 * (double)limit);
        return true;
    }
    return false;
}

static void note_least(struct gen *g, int i) {
    for (int l = 0; l < GEN_LIMITS; l++) {
        const int now = g->least[l];
        const struct gen_setting *s = &g->settings[i];
        if (s->n[l] > 0 && (now < 0 || s->percentile[l] < g->settings[now].percentile[l]))
            g->least[l] = i;
    }
}

static int keep(struct gen *g, int i, const struct gen_measured *m, struct err *e) {
    struct gen_setting *s = &g->settings[i];
    g->trials++;
    s->whole_s = m->whole_s;
    if (m->rc != 0) {
        s->failed++;
        s->outcome = TUNE_FAILED;
        snprintf(s->reason, sizeof s->reason, "%s", m->reason);
        if (g->why_rc == 0)
            g->why_rc = m->rc;
        return 0;
    }
    if (isfinite(m->busy))
        g->busy_most = fmax(isnan(g->busy_most) ? 0 : g->busy_most, m->busy);
    if (!g->request.count_busy && m->busy > g->policy->busy.most_rel) {
        s->busy++;
        g->busy++;
        return 0;
    }
    TRY(keep_samples(s, m, e));
    for (int l = 0; l < GEN_LIMITS; l++)
        s->percentile[l] = gen_quantile(s, (enum gen_limit)l, g->request.p).value;
    s->last = 1e-9 * (double)m->wall_ns / (double)m->tokens;
    if (s->visits < CONTEST_MOST_BLOCKS)
        s->cost[s->visits] = s->last;
    s->visits++;
    s->tokens += m->tokens;
    s->wall_ns += m->wall_ns;
    s->memory_bytes = s->memory_bytes > m->memory_bytes ? s->memory_bytes : m->memory_bytes;
    s->outcome = is_over(g, s) ? TUNE_OVER : TUNE_MEASURED;
    if (s->outcome == TUNE_MEASURED)
        s->reason[0] = '\0';
    note_least(g, i);
    return 0;
}

int gen_visit(struct gen *g, int i, struct err *e) {
    const double seconds =
        fmin(fmax(VISIT_SHARE * 1e-9 * (double)g->request.time_ns, VISIT_LEAST_S), VISIT_MOST_S);
    struct gen_measured m = {.busy = NAN};
    const struct gen_point p = g->settings[i].point;
    int rc = g->lab.measure(g->lab.arg, &p, seconds, &m, e);
    if (rc == 0)
        rc = keep(g, i, &m, e);
    for (int l = 0; l < GEN_LIMITS; l++)
        free(m.ns[l]);
    if (rc == 0 && g->lab.on_visit)
        g->lab.on_visit(g->lab.arg, g, i);
    return rc;
}

static bool can_run(const struct gen_setting *s) {
    return s->outcome != TUNE_REFUSED && s->outcome != TUNE_FAILED;
}

// Until a visit counts, or the setting cannot run, or others were busy in all tries, or time is
// over.
static int visit_first(struct gen *g, int i, int tries, double by, struct err *e) {
    for (int k = 0; k < tries && can_run(&g->settings[i]) && g->settings[i].visits == 0; k++) {
        if (k > 0 && gen_elapsed(g) >= by)
            return 0;
        TRY(gen_visit(g, i, e));
    }
    return 0;
}

// ---------------------------------------------------------------- exploring

// What exploring makes small: the cost under the budgets, or one percentile alone.
struct aim {
    bool alone;
    enum gen_limit limit;
};

// Lower is better. Settings that keep the budgets come before all others.
static double rank_of(const struct gen *g, int i, const struct aim *aim) {
    const struct gen_setting *s = &g->settings[i];
    const double far = 1e6; // more than any cost in seconds per token
    if (s->visits == 0 || s->outcome == TUNE_FAILED)
        return INFINITY;
    if (aim->alone)
        return s->n[aim->limit] > 0 ? s->percentile[aim->limit] : INFINITY;
    const double strain = gen_strain(g, s);
    return strain > 1 ? far * strain : gen_cost(s);
}

static int best_of(const struct gen *g, const struct aim *aim) {
    int best = -1;
    for (int i = 0; i < g->n; i++)
        if (isfinite(rank_of(g, i, aim)) &&
            (best < 0 || rank_of(g, i, aim) < rank_of(g, best, aim)))
            best = i;
    return best;
}

// Moves an index by `step`: of formats to any other, of values to the ones beside.
static bool moved(const struct gen_space *s, int at[GEN_DIMENSIONS], int d, int step) {
    const int to = d == GEN_FORMAT ? step : at[d] + step;
    if (to < 0 || to >= s->n[d] || to == at[d])
        return false;
    at[d] = to;
    return true;
}

// The steps of a dimension: -1, 1, or the numbers of all formats.
static int steps_of(const struct gen_space *s, int d) {
    return d == GEN_FORMAT ? s->n[d] : 2;
}

static int step_at(int d, int k) {
    return d == GEN_FORMAT ? k : k == 0 ? 1 : -1;
}

// Adds the setting at `at` and says whether it should be visited now.
static int is_new(struct gen *g, const int at[GEN_DIMENSIONS], int *out, struct err *e) {
    const int i = gen_add(g, at, e);
    *out = -1;
    if (i < 0)
        return i;
    const struct gen_setting *s = &g->settings[i];
    if (can_run(s) && s->visits == 0 && s->busy < BUSY_TRIES)
        *out = i;
    return 0;
}

// The next neighbour of setting `from` to visit; -1: all have been.
static int next_neighbour(struct gen *g, int from, int *out, struct err *e) {
    const struct gen_space *s = &g->request.space;
    int at[GEN_DIMENSIONS];
    *out = -1;
    for (int d = 0; d < GEN_DIMENSIONS; d++)
        for (int k = 0; k < steps_of(s, d); k++) {
            memcpy(at, g->settings[from].at, sizeof at);
            if (!moved(s, at, d, step_at(d, k)))
                continue;
            TRY(is_new(g, at, out, e));
            if (*out >= 0)
                return 0;
        }
    return 0;
}

// The next setting that differs from `from` in batch and chunk only, the nearest first; -1: none is
// left. The two trade against each other under every budget, so climbing alone ends in a local
// best.
static int next_in_plane(struct gen *g, int from, int *out, struct err *e) {
    const struct gen_space *s = &g->request.space;
    *out = -1;
    for (int distance = 1; distance < s->n[GEN_BATCH] + s->n[GEN_CHUNK]; distance++)
        for (int b = 0; b < s->n[GEN_BATCH]; b++)
            for (int c = 0; c < s->n[GEN_CHUNK]; c++) {
                int at[GEN_DIMENSIONS];
                memcpy(at, g->settings[from].at, sizeof at);
                if (abs(b - at[GEN_BATCH]) + abs(c - at[GEN_CHUNK]) != distance)
                    continue;
                at[GEN_BATCH] = b, at[GEN_CHUNK] = c;
                TRY(is_new(g, at, out, e));
                if (*out >= 0)
                    return 0;
            }
    return 0;
}

// The next setting that differs from `from` in two ways; -1: none is left.
static int next_pair(struct gen *g, int from, int *out, struct err *e) {
    const struct gen_space *s = &g->request.space;
    int at[GEN_DIMENSIONS];
    *out = -1;
    for (int a = 0; a < GEN_DIMENSIONS; a++)
        for (int b = a + 1; b < GEN_DIMENSIONS; b++)
            for (int k = 0; k < steps_of(s, a) * steps_of(s, b); k++) {
                memcpy(at, g->settings[from].at, sizeof at);
                if (!moved(s, at, a, step_at(a, k % steps_of(s, a))) ||
                    !moved(s, at, b, step_at(b, k / steps_of(s, a))))
                    continue;
                TRY(is_new(g, at, out, e));
                if (*out >= 0)
                    return 0;
            }
    return 0;
}

static int explore(struct gen *g, const struct aim *aim, double by, struct err *e) {
    while (gen_elapsed(g) < by) {
        const int best = best_of(g, aim);
        int next;
        if (best < 0)
            return 0;
        TRY(next_neighbour(g, best, &next, e));
        if (next < 0)
            TRY(next_in_plane(g, best, &next, e));
        if (next < 0)
            TRY(next_pair(g, best, &next, e));
        if (next < 0)
            return 0;
        TRY(visit_first(g, next, BUSY_TRIES, by, e));
    }
    return 0;
}

// A single visit may have met a bad moment. The near ones are visited again, the best first.
static int recheck(struct gen *g, struct err *e) {
    const struct aim aim = {0};
    for (bool any = true; any && gen_elapsed(g) < RECHECK_BY;) {
        const int best = best_of(g, &aim);
        any = false;
        for (int i = 0; best >= 0 && i < g->n && gen_elapsed(g) < RECHECK_BY; i++)
            if (g->settings[i].visits == 1 && can_run(&g->settings[i]) &&
                rank_of(g, i, &aim) <= (1 + NEAR_REL) * rank_of(g, best, &aim)) {
                TRY(gen_visit(g, i, e));
                any |= g->settings[i].visits > 1;
            }
    }
    return 0;
}

// As given may not run at all. Then exploring begins at the first setting that does: another
// format, or fewer texts at a time.
static int begin_somewhere(struct gen *g, struct err *e) {
    const struct gen_space *s = &g->request.space;
    TRY(visit_first(g, 0, INT_MAX, LEAST_BY, e)); // nothing can be said without it
    if (g->settings[0].visits > 0 || can_run(&g->settings[0]))
        return 0; // it runs, or others are too busy
    for (int b = s->given[GEN_BATCH]; b >= 0; b--)
        for (int small = 0; small < 2; small++)
            for (int f = 0; f < s->n[GEN_FORMAT]; f++) {
                int at[GEN_DIMENSIONS], i;
                memcpy(at, s->given, sizeof at);
                at[GEN_BATCH] = b, at[GEN_FORMAT] = f;
                at[GEN_CHUNK] = small ? 0 : s->given[GEN_CHUNK];
                TRY(is_new(g, at, &i, e));
                if (i >= 0)
                    TRY(visit_first(g, i, BUSY_TRIES, LEAST_BY, e));
                if (i >= 0 && g->settings[i].visits > 0)
                    return 0;
            }
    return 0;
}

// The least memory of all settings: for a refusal.
static int find_leanest(struct gen *g, struct err *e) {
    const struct gen_space *s = &g->request.space;
    int at[GEN_DIMENSIONS];
    for (int f = 0; f < s->n[GEN_FORMAT]; f++) {
        memcpy(at, s->given, sizeof at);
        at[GEN_FORMAT] = f;
        at[GEN_BATCH] = at[GEN_CHUNK] = at[GEN_THREADS] = 0;
        const int i = gen_add(g, at, e);
        TRY(i < 0 ? i : 0);
    }
    return 0;
}

static void mark_frontier(struct gen *g) {
    for (int i = 0; i < g->n; i++) {
        struct gen_setting *a = &g->settings[i];
        a->frontier = a->visits > 0;
        for (int k = 0; k < g->n; k++) {
            const struct gen_setting *b = &g->settings[k];
            const double cost = gen_speed(a) / gen_speed(b),
                         between = b->percentile[GEN_BETWEEN] / a->percentile[GEN_BETWEEN];
            if (b->visits > 0 && cost <= 1 && between <= 1 && (cost < 1 || between < 1))
                a->frontier = false;
        }
    }
}

static int search(struct gen *g, struct err *e) {
    const int given = gen_add(g, g->request.space.given, e);
    TRY(given < 0 ? given : 0);
    TRY(begin_somewhere(g, e));
    const struct aim aim = {0};
    TRY(explore(g, &aim, EXPLORE_BY, e));
    TRY(recheck(g, e));
    for (int l = 0; l < GEN_LIMITS; l++) {
        const struct aim one = {.alone = true, .limit = (enum gen_limit)l};
        const int best = best_of(g, &aim);
        if (g->request.limit_ns[l] > 0 &&
            (best < 0 || strain_of(g, &g->settings[best], (enum gen_limit)l) > 1))
            TRY(explore(g, &one, LEAST_BY, e));
    }
    TRY(gen_finals(g, e));
    if (g->chosen >= 0)
        return 0;
    TRY(find_leanest(g, e));
    gen_explain(g);
    return 0;
}

int gen_run(struct gen *out, const struct gen_request *r, const struct gen_lab *lab,
            struct err *e) {
    *out = (struct gen){.request = *r,
                        .policy = &tune_policy_default,
                        .lab = *lab,
                        .chosen = -1,
                        .rival = -1,
                        .leanest = -1,
                        .least = {-1, -1},
                        .busy_most = NAN};
    out->begin_ns = lab->clock_ns(lab->arg);
    const int rc = search(out, e);
    out->end_ns = lab->clock_ns(lab->arg);
    if (out->n > 0)
        mark_frontier(out);
    return rc;
}

void gen_free(struct gen *g) {
    for (int i = 0; i < g->n; i++)
        for (int l = 0; l < GEN_LIMITS; l++)
            free(g->settings[i].ns[l]);
    free(g->settings);
}
