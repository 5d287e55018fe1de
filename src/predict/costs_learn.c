// costs_learn.c - see costs.h. What trials taught a table: corrections of a model's ops, step times
// of settings, errors of predictions.
#include "predict/costs.h"

#include "measure/sample.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// No kernel is this much faster or slower inside a step than alone. A larger ratio is a wrong
// measurement and is ignored.
static const double RATIO_MOST = 8;
// The weight of a trial halves in this time. "No correction" has half the weight of a new trial.
static const double HALF_LIFE_S = 7 * 24 * 3600.0, NO_CORRECTION = 0.5;
// Nine of ten normal errors are smaller than this many standard deviations.
static const double NINE_OF_TEN = 1.64;
// No step repeats more exactly than the first. A larger error than the second is a wrong file.
static const double ERROR_LEAST = 0.01, ERROR_MOST = 7;

int cost_kept(int64_t count, int most) {
    return count < most ? (int)count : most;
}

// ---------------------------------------------------------------- corrections

const char *cost_model_name(char out[COSTS_MODEL_BYTES], const struct model_shape *m) {
    snprintf(out, COSTS_MODEL_BYTES,
             "family %d vocab %" PRId64 " width %" PRId64 " layers %" PRId64 " heads %" PRId64
             "/%" PRId64 "x%" PRId64 " ffn %" PRId64,
             (int)m->family, m->vocab, m->width, m->layers, m->heads, m->kv_heads, m->head_dim,
             m->ffn);
    return out;
}

static int find_model(const struct costs *c, const char *name) {
    for (int i = 0; i < c->n_models; i++)
        if (strcmp(c->models[i]->name, name) == 0)
            return i;
    return -1;
}

void costs_use(struct costs *c, const char *model) {
    const int at = find_model(c, model);
    c->model = at < 0 ? NULL : c->models[at];
}

struct cost_model *costs_observed_model(struct costs *c, const char *model) {
    int at = find_model(c, model);
    struct cost_model *m = at < 0 ? calloc(1, sizeof *m) : c->models[at];
    if (!m)
        return NULL;
    snprintf(m->name, sizeof m->name, "%s", model);
    if (at < 0 && c->n_models == COSTS_MOST_MODELS) {
        free(c->models[0]);
        at = 0;
    }
    if (at >= 0)
        memmove(&c->models[at], &c->models[at + 1],
                sizeof *c->models * (size_t)(--c->n_models - at));
    c->models[c->n_models++] = m;
    c->model = m;
    return m;
}

void costs_observe(struct cost_model *m, enum op_kind kind, enum dtype real, double observed,
                   double raw, double at) {
    const double ratio = observed / raw;
    if (!(observed > 0 && raw > 0 && ratio < RATIO_MOST && ratio > 1 / RATIO_MOST))
        return;
    struct cost_ratios *r = &m->ratios[kind][real];
    r->log[r->count % COSTS_RATIOS] = log(ratio);
    r->at[r->count++ % COSTS_RATIOS] = at;
}

struct weighted {
    double value, weight;
};

static int by_value(const void *a, const void *b) {
    const double x = ((const struct weighted *)a)->value, y = ((const struct weighted *)b)->value;
    return x < y ? -1 : x > y;
}

// The weighted median of the ratios and of "no correction". Old ratios count less, so in the end
// nothing is corrected.
double costs_correction(const struct costs *c, enum op_kind kind, enum dtype real) {
    const struct cost_ratios *r = c->model ? &c->model->ratios[kind][real] : NULL;
    struct weighted of[COSTS_RATIOS + 1] = {{0, NO_CORRECTION}};
    const int n = r ? cost_kept(r->count, COSTS_RATIOS) : 0;
    double all = NO_CORRECTION, below = 0;
    if (n == 0)
        return 1;
    for (int i = 0; i < n; i++) {
        const double age_s = fmax(c->now_s - r->at[i], 0);
        of[i + 1] = (struct weighted){r->log[i], exp2(-age_s / HALF_LIFE_S)};
        all += of[i + 1].weight;
    }
    qsort(of, (size_t)n + 1, sizeof *of, by_value);
    int at = 0;
    while (at < n && (below += of[at].weight) < all / 2)
        at++;
    return exp(of[at].value);
}

void costs_forget_ratios(struct costs *c, enum op_kind kind, enum dtype real) {
    for (int i = 0; i < c->n_models; i++)
        c->models[i]->ratios[kind][real].count = 0;
}

void costs_observe_outside(struct cost_model *m, double seconds) {
    if (seconds >= 0 && seconds < 1e6)
        m->outside_s[m->outside_count++ % COSTS_RATIOS] = seconds;
}

double costs_outside(const struct costs *c) {
    double sorted[COSTS_RATIOS];
    const int n = c->model ? cost_kept(c->model->outside_count, COSTS_RATIOS) : 0;
    if (n == 0)
        return 0;
    memcpy(sorted, c->model->outside_s, sizeof *sorted * (size_t)n);
    return sample_median(sorted, (size_t)n);
}

// ---------------------------------------------------------------- settings

static int find_setting(const struct costs *c, const char *id) {
    for (int i = c->n_settings - 1; i >= 0; i--)
        if (strcmp(c->settings[i].id, id) == 0)
            return i;
    return -1;
}

const struct cost_setting *costs_find_setting(const struct costs *c, const char *id) {
    const int at = find_setting(c, id);
    return at < 0 ? NULL : &c->settings[at];
}

double cost_setting_seconds(const struct cost_setting *s, double *apart) {
    double sorted[COSTS_VISITS];
    const int n = cost_kept(s->count, COSTS_VISITS);
    memcpy(sorted, s->seconds, sizeof *sorted * (size_t)n);
    const double median = sample_median(sorted, (size_t)n);
    if (apart)
        *apart = 0.5 * log(sorted[n - 1] / sorted[0]);
    return median;
}

int costs_add_visit(struct costs *c, const struct cost_setting *visit, struct err *e) {
    int found = find_setting(c, visit->id);
    struct cost_setting s = *visit;
    if (!cost_seconds_plausible(visit->seconds[0]))
        return err_set(e, ERR_NUMERIC, "a step's measured time of %g s is not plausible",
                       visit->seconds[0]);
    if (!c->settings && !(c->settings = calloc(COSTS_MOST_SETTINGS, sizeof *c->settings)))
        return err_set(e, ERR_MEMORY, "out of memory for the times of settings");
    s.count = 0;
    if (found >= 0 && c->settings[found].quiet && !visit->quiet)
        return 0;
    if (found >= 0 && c->settings[found].quiet == visit->quiet) {
        s.count = c->settings[found].count;
        memcpy(s.seconds, c->settings[found].seconds, sizeof s.seconds);
    }
    s.seconds[s.count++ % COSTS_VISITS] = visit->seconds[0];
    if (found < 0 && c->n_settings == COSTS_MOST_SETTINGS)
        found = 0; // the one that was visited longest ago is forgotten
    if (found >= 0)
        memmove(&c->settings[found], &c->settings[found + 1],
                sizeof *c->settings * (size_t)(--c->n_settings - found));
    c->settings[c->n_settings++] = s;
    return 0;
}

// ---------------------------------------------------------------- errors

void costs_add_error(struct costs *c, enum cost_from from, double log_ratio) {
    struct cost_errors *r = &c->errors[from];
    if (fabs(log_ratio) <= ERROR_MOST)
        r->log[r->count++ % COSTS_ERRORS] = fabs(log_ratio);
}

double costs_factor(const struct costs *c, enum cost_from from, double spread) {
    double sorted[COSTS_ERRORS];
    const int n = cost_kept(c->errors[from].count, COSTS_ERRORS);
    memcpy(sorted, c->errors[from].log, sizeof *sorted * (size_t)n);
    sample_sort(sorted, (size_t)n);
    if (n >= COSTS_ERRORS_TO_JUDGE)
        return exp(fmax(sorted[(9 * n + 9) / 10 - 1], ERROR_LEAST)); // nearest rank
    return fmax(1 + NINE_OF_TEN * spread, n > 0 ? exp(sorted[n - 1]) : 0);
}
