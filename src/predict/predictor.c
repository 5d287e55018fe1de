// predictor.c - see predictor.h.
#include "predict/predictor.h"

#include "base/build.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/text.h"
#include "measure/sample.h"
#include "predict/machine.h"
#include "predict/predict.h"
#include "store/store.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TABLES_MOST = 64, FILES_MOST = 128, KEY_TEXT_BYTES = 2048 };
// Kinds of ops with a smaller share of a step are noise.
static const double SHARE_LEAST = 0.002;
// Relative differences between trials of the same setting, which no table knows: turbo, other
// programs, pages.
static const double SPREAD_STEP = 0.03;
// Timing ops on a busy machine is not worse than not timing them (the roofline's spread, costs.c).
static const double SPREAD_MOST = 0.7;
// The largest accepted interquartile range of a trial's steps, relative to the median.
static const double NOISE_MOST = 0.3;

struct table {
    char key[HASH_TEXT_BYTES];
    char about[160];
    bool device;
    int threads;
    struct costs costs;
    bool changed;
    bool nominal;  // its roofline was not measured
    bool borrowed; // its ops are those of another table until it is calibrated; they are not stored
};

struct predictor {
    struct hw_machine machine;
    char dir[HW_PATH_BYTES];    // "": tables are not kept
    char build[BUILD_ID_BYTES]; // part of a table's key, because kernels are part of the build
    char gpus[HW_GPUS_BYTES];   // GPUs and driver; "": none
    struct hw_device roof;      // set by the caller; matmul_flops 0: not set
    struct table *tables[TABLES_MOST];
    int n_tables;
};

// ---------------------------------------------------------------- finding a table

// Uses the machine as read at the start: pool_machine_cpus would read half a dozen files for every
// setting.
static int threads_of(const struct predictor *p, const struct knobs *k) {
    const int cpus = p->machine.usable_cpus / (int)knobs_world(k);
    return k->threads > 0 ? (int)k->threads : cpus > 1 ? cpus : 1;
}

static void describe_table(const struct predictor *p, const struct knobs *k, struct table *t) {
    char text[KEY_TEXT_BYTES], machine[HW_FINGERPRINT_BYTES];
    const int threads = threads_of(p, k);
    const bool device = plan_wants_device(k);
    t->device = device;
    t->threads = threads;
    if (device) {
        hw_fingerprint(&p->machine, 0, machine);
        snprintf(t->about, sizeof t->about, "cuda, graphs %s", k->cuda_graphs ? "on" : "off");
    } else {
        hw_fingerprint(&p->machine, threads, machine);
        snprintf(t->about, sizeof t->about, "%.80s, %d threads%s, cpu.isa=%s, cpu.blas=%s",
                 p->machine.cpu, threads, k->cpu_pin ? " pinned" : "",
                 knob_choice(KNOB_cpu_isa, (int)k->cpu_isa),
                 knob_choice(KNOB_cpu_blas, (int)k->cpu_blas));
    }
    snprintf(text, sizeof text, "%s|%s|%s|%s", p->build, machine, t->about, device ? p->gpus : "");
    hash_of(text, strlen(text), t->key);
}

static bool table_path(const struct predictor *p, const struct table *t, char out[HW_PATH_BYTES]) {
    char name[HASH_TEXT_BYTES + 8];
    out[0] = '\0';
    snprintf(name, sizeof name, "%s.json", t->key);
    return p->dir[0] && file_join(out, HW_PATH_BYTES, p->dir, name, NULL) == 0;
}

// The roofline of a table: the caller's, else from the stored rates, else nominal.
static struct hw_device device_of(const struct predictor *p, const struct knobs *k, bool *nominal) {
    char path[HW_PATH_BYTES], key[HW_FINGERPRINT_BYTES];
    struct hw_rates rates;
    struct hw_gpu_rates gpu;
    struct hw_device d = p->roof;
    const bool device = plan_wants_device(k);
    *nominal = false;
    if (d.matmul_flops > 0)
        return d;
    hw_fingerprint(&p->machine, threads_of(p, k), key);
    *nominal = device
                   ? !machine_gpu_known(&gpu, &p->machine, k)
                   : hw_rates_path(path, NULL) != 0 || hw_rates_load(&rates, path, key, NULL) != 0;
    if (*nominal)
        return predict_nominal_device(device);
    if (device)
        hw_device_from_gpu(&d, &gpu);
    else
        hw_device_from_rates(&d, &p->machine, &rates);
    return d;
}

static int64_t most_observed(const struct costs *c) {
    int64_t n = 0;
    for (int i = 0; i < c->n_models; i++)
        for (int k = 0; k < OP_COUNT; k++)
            for (int t = 0; t <= DTYPE_COUNT; t++) {
                const int64_t count = c->models[i]->ratios[k][t].count;
                n = count > n ? count : n;
            }
    return n;
}

// ---------------------------------------------------------------- borrowing from another table

// Not all work is shared by threads: 2 threads made steps of small models 1.6 to 1.8 times as fast.
static const double THREADS_GAIN = 0.8, SPREAD_BORROWED = 0.2;

static double threads_apart(const struct table *a, const struct table *b) {
    return fabs(log((double)a->threads / b->threads));
}

static const struct table *relative_of(const struct predictor *p, const struct table *t) {
    const struct table *best = NULL;
    for (int i = 0; i < p->n_tables; i++) {
        const struct table *x = p->tables[i];
        if (x->device == t->device && x->costs.n > 0 && !x->borrowed &&
            (!best || threads_apart(x, t) < threads_apart(best, t)))
            best = x;
    }
    return best;
}

// Times with other threads, pinning or another library are closer to the truth than any roofline.
static void borrow(const struct predictor *p, struct table *t) {
    const struct table *from = relative_of(p, t);
    if (!from || t->costs.n > 0)
        return;
    const double factor = t->device ? 1 : pow((double)from->threads / t->threads, THREADS_GAIN);
    for (int i = 0; i < from->costs.n; i++) {
        struct cost_point point = from->costs.points[i];
        point.seconds *= factor;
        point.spread += SPREAD_BORROWED;
        (void)costs_add(&t->costs, &point, NULL); // a point that fails is only left out
    }
    for (int i = 0; i < from->costs.n_models; i++) {
        struct cost_model *m = costs_observed_model(&t->costs, from->costs.models[i]->name);
        if (m)
            *m = *from->costs.models[i];
    }
    t->borrowed = true;
}

// Drops borrowed times, before this table gets times of its own.
static void give_back(const struct predictor *p, const struct knobs *k, struct table *t) {
    const struct hw_device device = device_of(p, k, &t->nominal);
    if (!t->borrowed)
        return;
    costs_forget_ops(&t->costs, &device);
    t->borrowed = false;
}

static int table_of(struct predictor *p, const struct knobs *k, struct table **out, struct err *e) {
    struct table found;
    char path[HW_PATH_BYTES];
    describe_table(p, k, &found);
    for (int i = 0; i < p->n_tables; i++)
        if (strcmp(p->tables[i]->key, found.key) == 0) {
            *out = p->tables[i];
            borrow(p, *out);
            return 0;
        }
    if (p->n_tables == TABLES_MOST)
        return err_set(e, ERR_USAGE,
                       "predictions for more than %d combinations of device, threads and kernels",
                       TABLES_MOST);
    struct table *t = calloc(1, sizeof *t);
    if (!t)
        return err_set(e, ERR_MEMORY, "out of memory for the times of ops");
    describe_table(p, k, t);
    const struct hw_device device = device_of(p, k, &t->nominal);
    costs_init(&t->costs, &device);
    if (table_path(p, t, path))
        (void)costs_load(&t->costs, path, t->key, NULL);
    borrow(p, t);
    *out = p->tables[p->n_tables++] = t;
    return 0;
}

// ---------------------------------------------------------------- open, close, store

int predictor_open(struct predictor **out, const char *dir, struct err *e) {
    struct predictor *p = *out = calloc(1, sizeof *p);
    if (!p)
        return err_set(e, ERR_MEMORY, "out of memory for the times of ops");
    hw_machine_read(&p->machine, "");
    build_id(p->build);
    hw_gpus_read(p->gpus);
    if (dir)
        snprintf(p->dir, sizeof p->dir, "%s", dir);
    else if (file_user_path(p->dir, sizeof p->dir, FILE_CACHE, "ops", NULL) != 0)
        p->dir[0] = '\0';
    return 0;
}

void predictor_set_roof(struct predictor *p, const struct hw_device *roof) {
    p->roof = *roof;
}

void predictor_close(struct predictor *p) {
    if (!p)
        return;
    for (int i = 0; i < p->n_tables; i++) {
        costs_free(&p->tables[i]->costs);
        free(p->tables[i]);
    }
    free(p);
}

// Every build has separate tables, so files pile up. Beyond FILES_MOST the one that was written
// longest ago is removed.
struct oldest {
    const char *dir;
    char path[HW_PATH_BYTES];
    struct timespec at;
    int files;
};

static int look_at(void *arg, const char *name) {
    struct oldest *o = arg;
    struct stat st;
    char path[HW_PATH_BYTES];
    const size_t n = strlen(name);
    if (n != HASH_TEXT_BYTES - 1 + strlen(".json") || strcmp(name + n - 5, ".json") != 0 ||
        file_join(path, sizeof path, o->dir, name, NULL) != 0 || stat(path, &st) != 0)
        return 0;
    bool older = st.st_mtim.tv_sec < o->at.tv_sec ||
                 (st.st_mtim.tv_sec == o->at.tv_sec && st.st_mtim.tv_nsec < o->at.tv_nsec);
    if (o->files++ == 0 || older) {
        memcpy(o->path, path, sizeof path);
        o->at = st.st_mtim;
    }
    return 0;
}

static void forget_oldest(const struct predictor *p) {
    for (;;) {
        struct oldest o = {.dir = p->dir};
        if (file_list_dir(p->dir, look_at, &o, NULL) != 0 || o.files <= FILES_MOST ||
            unlink(o.path) != 0)
            return;
    }
}

int predictor_store(struct predictor *p, struct err *e) {
    char path[HW_PATH_BYTES];
    for (int i = 0; i < p->n_tables; i++) {
        struct table *t = p->tables[i];
        if (!t->changed || !table_path(p, t, path))
            continue;
        TRY(file_make_dirs(p->dir, e));
        TRY(costs_store(&t->costs, path, t->key, t->about, !t->borrowed, e));
        t->changed = false;
        forget_oldest(p);
    }
    return 0;
}

int predictor_costs(struct predictor *p, const struct knobs *k, struct costs **out, struct err *e) {
    struct table *t;
    TRY(table_of(p, k, &t, e));
    give_back(p, k, t);
    t->changed = true;
    *out = &t->costs;
    return 0;
}

int predictor_known(struct predictor *p, const struct knobs *k, struct predictor_known *out,
                    struct err *e) {
    struct table *t;
    TRY(table_of(p, k, &t, e));
    *out = (struct predictor_known){.settings = t->costs.n_settings};
    if (!t->borrowed) {
        out->signatures = t->costs.n;
        out->steps = most_observed(&t->costs);
    }
    table_path(p, t, out->path);
    return 0;
}

// ---------------------------------------------------------------- predicting

static int training_of(const struct plan *plan, struct program **out, struct err *e) {
    *out = plan_program(plan, PLAN_TRAIN);
    return *out ? 0 : err_set(e, ERR_USAGE, "the plan to predict has no training program");
}

static void count_runs(const struct program *p, int *runs) {
    memset(runs, 0, sizeof *runs * (size_t)p->n_segments);
    for (int i = 0; i < p->n_order; i++)
        runs[p->order[i].segment]++;
}

// The table of a plan, with the corrections of its model.
static int table_for(struct predictor *p, const struct plan *plan, struct table **out,
                     struct err *e) {
    char model[COSTS_MODEL_BYTES];
    TRY(table_of(p, &plan->knobs, out, e));
    cost_model_name(model, &plan->shape);
    costs_use(&(*out)->costs, model);
    return 0;
}

struct sums {
    uint64_t ops; // a hash of all ops and their runs
    double category_s[CAT_COUNT], how_s[COST_HOWS], busy_s, spread_s, all_s;
    double raw_s[OP_COUNT][DTYPE_COUNT + 1];  // without corrections
    double roof_s[OP_COUNT][DTYPE_COUNT + 1]; // the part of raw_s that comes from a roofline
};

static int sum_ops(struct costs *c, const struct program *p, struct sums *sums, struct err *e) {
    int *runs = malloc(sizeof *runs * (size_t)(p->n_segments + 1));
    if (!runs)
        return err_set(e, ERR_MEMORY, "out of memory while predicting");
    memset(sums, 0, sizeof *sums);
    count_runs(p, runs);
    for (int i = 0; i < p->n_segments; i++)
        for (int k = 0; runs[i] > 0 && k < p->segments[i].n_ops; k++) {
            const struct op *op = &p->segments[i].ops[k];
            struct op_signature sig;
            signature_of(p, op, &sig);
            const enum dtype real = signature_real(&sig);
            const uint64_t work[2] = {signature_hash(&sig), (uint64_t)runs[i]};
            sums->ops += hash_u64(work, sizeof work);
            const struct cost_estimate raw = costs_estimate_raw(c, p, op);
            const double s = runs[i] * raw.seconds * costs_correction(c, op->kind, real);
            sums->raw_s[op->kind][real] += runs[i] * raw.seconds;
            if (raw.how == COST_ROOFLINE)
                sums->roof_s[op->kind][real] += runs[i] * raw.seconds;
            sums->category_s[op_info(op->kind)->category] += s;
            sums->how_s[raw.how] += s;
            sums->busy_s += raw.busy ? s : 0;
            sums->spread_s += s * raw.spread;
            sums->all_s += s;
        }
    free(runs);
    return 0;
}

static double corrected(void *arg, const struct program *p, const struct op *op) {
    return costs_estimate(arg, p, op).seconds;
}

// What a measured step belongs to: the ops, the knobs that speed depends on, and the data.
static int name_setting(const struct knobs *k, const struct sums *sums, char out[HASH_TEXT_BYTES],
                        struct err *e) {
    char setting[HASH_TEXT_BYTES], value[KNOB_VALUE_BYTES];
    TRY(store_setting(k, setting, e));
    struct hash *h = hash_new();
    if (!h)
        return err_set(e, ERR_MEMORY, "out of memory while predicting");
    hash_add(h, &sums->ops, sizeof sums->ops);
    hash_add(h, setting, sizeof setting);
    for (int i = 0; i < KNOB_COUNT; i++) {
        const unsigned flags = knob_info(i)->flags;
        // The knobs of batches that store_setting leaves out. Another seed draws similar batches.
        if ((flags & KNOB_IN_LOADER) && !(flags & KNOB_SPEED) && i != KNOB_seed &&
            i != KNOB_data_val && i != KNOB_data_val_path) {
            const char *text = knobs_value(k, i, value);
            hash_add(h, text, strlen(text) + 1);
        }
    }
    hash_text(h, out);
    hash_free(h);
    return 0;
}

// The step as its ops make it.
static int step_of_ops(struct table *t, const struct plan *plan, struct program *program,
                       const struct sums *sums, struct predicted *out, struct err *e) {
    struct costs *c = &t->costs;
    double ops_s = sums->all_s;
    if (plan->device) { // its streams overlap, so the sum is too long
        struct prediction turn;
        TRY(predict_programs_with(&program, 1, corrected, c, &turn, e));
        ops_s = turn.seconds;
        prediction_free(&turn);
    }
    memset(out, 0, sizeof *out);
    for (int i = 0; i < CAT_COUNT; i++)
        out->part_s[time_part_of((enum op_category)i)] += sums->category_s[i];
    out->part_s[TIME_HOST] += costs_outside(c);
    out->seconds = out->ops_s = ops_s + costs_outside(c);
    for (int i = 0; sums->all_s > 0 && i < COST_HOWS; i++)
        out->share[i] = sums->how_s[i] / sums->all_s;
    out->busy_share = sums->all_s > 0 ? sums->busy_s / sums->all_s : 0;
    out->spread =
        SPREAD_STEP + (sums->all_s > 0 ? fmin(sums->spread_s / sums->all_s, SPREAD_MOST) : 0);
    const bool timed = out->share[COST_ROOFLINE] < 0.5;
    out->calibrated = timed && !t->borrowed;
    out->borrowed = timed && t->borrowed;
    out->known = timed || !t->nominal;
    out->from = out->calibrated ? FROM_OPS : out->borrowed ? FROM_RELATIVE : FROM_ROOFLINE;
    return 0;
}

// The step as it was measured.
static double step_of_setting(const struct costs *c, const struct cost_setting *s,
                              struct predicted *out) {
    double apart, all = 0;
    out->seconds = cost_setting_seconds(s, &apart);
    for (int i = 0; i < TIME_COUNT; i++)
        all += s->part_s[i];
    for (int i = 0; all > 0 && i < TIME_COUNT; i++)
        out->part_s[i] = s->part_s[i] * out->seconds / all;
    out->from = FROM_SETTING;
    out->known = true;
    out->visits = s->count;
    out->age_s = fmax(c->now_s - s->at, 0);
    out->busy = !s->quiet;
    return fmax(fmax(costs_factor(c, FROM_SETTING, SPREAD_STEP), exp(apart)),
                s->quiet ? 1 : 1 + s->spread);
}

int predictor_step(struct predictor *p, const struct plan *plan, struct predicted *out,
                   struct err *e) {
    struct table *t;
    struct program *program;
    struct sums sums;
    char id[HASH_TEXT_BYTES];
    memset(out, 0, sizeof *out);
    TRY(training_of(plan, &program, e));
    TRY(table_for(p, plan, &t, e));
    TRY(sum_ops(&t->costs, program, &sums, e));
    TRY(step_of_ops(t, plan, program, &sums, out, e));
    TRY(name_setting(&plan->knobs, &sums, id, e));
    const struct cost_setting *seen = costs_find_setting(&t->costs, id);
    const double factor = seen ? step_of_setting(&t->costs, seen, out)
                               : costs_factor(&t->costs, out->from, out->spread);
    out->errors = cost_kept(t->costs.errors[out->from].count, COSTS_ERRORS);
    out->low_s = out->seconds / factor;
    out->high_s = out->seconds * factor;
    return 0;
}

const char *predicted_text(char out[PREDICTED_TEXT_BYTES], const struct predicted *p) {
    char age[TEXT_UNIT_BYTES], check[96] = "no such prediction was checked by a measurement yet";
    char visits[48] = "once, ";
    if (p->visits > 1)
        snprintf(visits, sizeof visits, "%" PRId64 " times, last ", p->visits);
    if (p->errors >= COSTS_ERRORS_TO_JUDGE)
        snprintf(check, sizeof check, "nine of ten of the last %" PRId64 " were that near",
                 p->errors);
    else if (p->errors > 0)
        snprintf(check, sizeof check, "%" PRId64 " such prediction%s checked so far", p->errors,
                 p->errors == 1 ? " was" : "s were");
    if (p->from == FROM_SETTING)
        snprintf(out, PREDICTED_TEXT_BYTES, "this setting was measured here %s%s ago%s", visits,
                 text_duration(age, fmax(round(p->age_s), 1)),
                 p->busy ? ", on a busy machine" : "");
    else if (p->from == FROM_OPS)
        snprintf(out, PREDICTED_TEXT_BYTES,
                 "%.0f %% of it from ops timed on this machine%s, %.0f %% from similar ones; %s",
                 100 * p->share[COST_MEASURED],
                 p->busy_share > 0.5 ? " while other programs were busy" : "",
                 100 * (1 - p->share[COST_MEASURED]), check);
    else if (p->from == FROM_RELATIVE)
        snprintf(out, PREDICTED_TEXT_BYTES,
                 "from ops timed on this machine with other threads or kernels; %s", check);
    else
        snprintf(out, PREDICTED_TEXT_BYTES,
                 "by the roofline of this machine, because its ops were not timed; %s", check);
    return out;
}

double predictor_op(struct predictor *p, const struct plan *plan, const struct program *program,
                    const struct op *op) {
    struct table *t;
    if (table_for(p, plan, &t, NULL) != 0)
        return -1;
    return costs_estimate(&t->costs, program, op).seconds;
}

// ---------------------------------------------------------------- requests

// Seconds of a turn, and of the longest time in it without a yield point.
static int turn_seconds(struct costs *c, const struct program *p, double *seconds, double *stretch,
                        struct err *e) {
    double *segment_s = calloc((size_t)p->n_segments + 1, sizeof *segment_s), since = 0;
    *seconds = *stretch = 0;
    if (!segment_s)
        return err_set(e, ERR_MEMORY, "out of memory while predicting");
    for (int i = 0; i < p->n_segments; i++)
        for (int k = 0; k < p->segments[i].n_ops; k++)
            segment_s[i] += costs_estimate(c, p, &p->segments[i].ops[k]).seconds;
    for (int i = 0; i < p->n_order; i++) {
        if (program_yields_at(p, p->order, i))
            since = 0;
        since += segment_s[p->order[i].segment];
        *seconds += segment_s[p->order[i].segment];
        *stretch = fmax(*stretch, since);
    }
    free(segment_s);
    return 0;
}

int predictor_answers(struct predictor *p, const struct plan *plan, struct predicted_answers *out,
                      struct err *e) {
    struct table *t;
    struct program *step;
    struct predicted of_step;
    const struct plan *who = plan->second ? plan->second : plan;
    const struct program *evaluate = plan_program(who, plan->second ? PLAN_EVAL : PLAN_GUEST_EVAL),
                         *train = plan_program(who, plan->second ? PLAN_TRAIN : PLAN_GUEST_TRAIN);
    double step_s, stretch_s, train_s, none;
    *out = (struct predicted_answers){0};
    TRY(training_of(plan, &step, e));
    if (!evaluate || !train)
        return err_set(e, ERR_USAGE, "the plan to predict answers no requests");
    TRY(predictor_step(p, plan, &of_step, e));
    TRY(table_for(p, plan, &t, e));
    TRY(turn_seconds(&t->costs, step, &step_s, &stretch_s, e));
    TRY(table_for(p, who, &t, e));
    TRY(turn_seconds(&t->costs, evaluate, &out->turn_s, &none, e));
    TRY(turn_seconds(&t->costs, train, &train_s, &none, e));
    if (plan->device) // the host has already sent the next micro-batch when it looks for requests
        stretch_s = fmin(2 * stretch_s, step_s);
    out->evaluate_s = stretch_s + out->turn_s;
    out->train_s = (plan->second ? stretch_s : step_s) + train_s;
    out->calibrated = of_step.calibrated;
    out->known = of_step.known;
    if (plan->second) {
        TRY(predictor_step(p, plan->second, &of_step, e));
        out->second_step_s = of_step.seconds;
    }
    return 0;
}

// ---------------------------------------------------------------- learning

int predictor_calibrate(struct predictor *p, const struct knobs *k,
                        const struct calibrate_options *o, struct calibrated *out, struct err *e) {
    struct costs *c;
    struct calibrated none;
    TRY(predictor_costs(p, k, &c, e));
    return calibrate_run(k, o, c, out ? out : &none, e);
}

int predictor_calibrate_span(struct predictor *p, const struct knobs *k, int64_t least,
                             int64_t most, struct calibrated *out, struct err *e) {
    struct calibrated sum = {0}, one;
    for (int64_t micro = least;;) {
        struct knobs at = *k;
        at.batch_micro = micro;
        TRY(predictor_calibrate(p, &at, NULL, &one, e));
        sum.signatures += one.signatures;
        sum.turns += one.turns;
        sum.layers = one.layers;
        sum.seconds += one.seconds;
        if (micro >= most)
            break;
        micro = micro < most / 4 ? micro * 4 : most;
    }
    if (out)
        *out = sum;
    return 0;
}

// The median step divided by the mean step: removes what a few slow steps added to all sums.
// spread: of the steps, relative. 0: out of memory.
static double typical(const struct observed *r, double *spread) {
    double *sorted = malloc(sizeof *sorted * (size_t)r->steps), sum = 0;
    if (!sorted)
        return 0;
    memcpy(sorted, r->step_ns, sizeof *sorted * (size_t)r->steps);
    sample_sort(sorted, (size_t)r->steps);
    for (int64_t i = 0; i < r->steps; i++)
        sum += sorted[i];
    const double middle = sorted[r->steps / 2];
    *spread = (sorted[3 * r->steps / 4] - sorted[r->steps / 4]) / fmax(middle, 1);
    free(sorted);
    return sum > 0 ? middle * (double)r->steps / sum : 0;
}

// The seconds of a kind of op without corrections, in all element types.
static double raw_seconds(const struct sums *sums, int kind) {
    double raw = 0;
    for (int t = 0; t <= DTYPE_COUNT; t++)
        raw += sums->raw_s[kind][t];
    return raw;
}

// Corrects a kind of op by its observed seconds. All its element types get the same ratio, because
// the seconds are known only for the kind. An estimate that comes mostly from a roofline is not
// corrected: the ratio would be wrong for the first op that is timed.
static void observe_kind(struct cost_model *m, enum op_kind kind, const struct sums *sums,
                         double seen, double least, double at) {
    const double raw = raw_seconds(sums, kind);
    if (raw < least && seen < least)
        return;
    for (int t = 0; t <= DTYPE_COUNT; t++)
        if (sums->raw_s[kind][t] > 2 * sums->roof_s[kind][t])
            costs_observe(m, kind, (enum dtype)t, seen, raw, at);
}

// Corrects the kinds of ops of a model. per_step: seconds of a step per nanosecond of the split.
static void observe_kinds(struct cost_model *m, const struct time_split *split,
                          const struct sums *sums, double per_step, double at) {
    const double least = SHARE_LEAST * (double)split->wall_ns * per_step;
    for (int part = 0; part < TIME_COUNT; part++) {
        double raw = 0;
        uint64_t timed = 0;
        for (int k = 0; k < OP_COUNT; k++)
            if (time_part_of(op_info((enum op_kind)k)->category) == (enum time_part)part) {
                timed += split->kind_ns[k];
                raw += raw_seconds(sums, k);
            }
        // A graph is timed as a whole and its time is divided by part. Then all kinds of a part get
        // the same ratio. TIME_DATA_WAIT holds both the wait for data, which is not an op, and the
        // op that copies data in, so it is always taken by kind.
        bool by_kind = timed > split->ns[part] / 2 || part == TIME_DATA_WAIT;
        for (int k = 0; k < OP_COUNT; k++) {
            if (time_part_of(op_info((enum op_kind)k)->category) != (enum time_part)part)
                continue;
            double share = raw > 0 ? raw_seconds(sums, k) / raw : 0;
            observe_kind(
                m, (enum op_kind)k, sums,
                per_step * (by_kind ? (double)split->kind_ns[k] : share * (double)split->ns[part]),
                least, at);
        }
    }
    costs_observe_outside(m, per_step * (double)split->ns[TIME_HOST]);
}

int predictor_observe(struct predictor *p, const struct plan *plan, const struct observed *seen,
                      struct err *e) {
    struct table *t;
    struct program *program;
    struct sums sums;
    struct predicted before;
    char model[COSTS_MODEL_BYTES];
    struct cost_setting visit = {.at = clock_wall_s()};
    if (seen->steps < 1 || seen->split.steps < 1)
        return 0;
    const double per_step = 1e-9 * typical(seen, &visit.spread) / (double)seen->split.steps;
    const double step_s = per_step * (double)seen->split.wall_ns;
    if (!(step_s > 0))
        return 0;
    TRY(predictor_step(p, plan, &before, e));
    TRY(training_of(plan, &program, e));
    TRY(table_for(p, plan, &t, e));
    TRY(sum_ops(&t->costs, program, &sums, e));
    TRY(name_setting(&plan->knobs, &sums, visit.id, e));
    t->changed = true;
    visit.seconds[0] = step_s;
    visit.quiet = visit.spread <= NOISE_MOST && !seen->busy;
    for (int i = 0; i < TIME_COUNT; i++)
        visit.part_s[i] = per_step * (double)seen->split.ns[i];
    TRY(costs_add_visit(&t->costs, &visit, e));
    if (!visit.quiet) // it says something about this setting, and nothing about others
        return 0;
    if (before.known) // a nominal roofline predicts nothing
        costs_add_error(&t->costs, before.from, log(step_s / before.seconds));
    cost_model_name(model, &plan->shape);
    // Ratios to borrowed times would be wrong as soon as ops are timed here.
    struct cost_model *m = t->borrowed ? NULL : costs_observed_model(&t->costs, model);
    if (m)
        observe_kinds(m, &seen->split, &sums, per_step, visit.at);
    return 0;
}
