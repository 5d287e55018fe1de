// record.c - see record.h.
#include "train/record.h"

#include "backend/plugin.h"
#include "base/build.h"
#include "base/file.h"
#include "data/text.h"
#include "hw/hw.h"
#include "measure/metrics.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

// ---------------------------------------------------------------- the key

// A file counts by its size and time. Reading gigabytes to find out that nothing changed would cost
// more than the trials it saves.
static void put_file(FILE *f, const char *path) {
    struct stat st;
    if (stat(path, &st) == 0)
        fprintf(f, "%lld %lld.%09ld\n", (long long)st.st_size, (long long)st.st_mtim.tv_sec,
                st.st_mtim.tv_nsec);
    else
        fprintf(f, "none\n");
}

// What turns text into tokens: the tokenizer and chat template that the knobs name, or those of the
// model's folder. All files lie beside each other in one folder.
static void put_rendering(FILE *f, const struct knobs *k) {
    static const char *const beside[] = {"tokenizer.json", "tokenizer_config.json",
                                         "special_tokens_map.json", "chat_template.jinja"};
    char folder[PATH_MAX], path[PATH_MAX];
    const char *named = k->tokenizer[0] ? k->tokenizer : k->model;
    fprintf(f, "tokenizer=%s\n", k->tokenizer);
    put_file(f, k->data_template); // "none" for a built-in template, which is not a file
    if (strcmp(k->tokenizer, "bytes") == 0 || strcmp(k->tokenizer, "ids") == 0)
        return;
    snprintf(folder, sizeof folder, "%s", named);
    if (k->tokenizer[0] && !file_is_dir(named)) {
        const char *slash = strrchr(named, '/');
        snprintf(folder, sizeof folder, "%.*s.", slash ? (int)(slash - named) + 1 : 0, named);
        put_file(f, named);
    }
    for (size_t i = 0; i < sizeof beside / sizeof *beside; i++)
        if (file_join(path, sizeof path, folder, beside[i], NULL) == 0)
            put_file(f, path);
}

// What determines the length of documents and how they fill sequences. The place of the files does
// not matter.
static void put_data(FILE *f, const struct knobs *k) {
    char value[KNOB_VALUE_BYTES];
    struct text_list list;
    for (int i = 0; i < KNOB_COUNT; i++) {
        const struct knob_info *info = knob_info(i);
        if (strncmp(info->name, "data.", 5) == 0 && info->flags & KNOB_MATH &&
            i != KNOB_data_path && i != KNOB_data_val_path)
            fprintf(f, "%s=%s\n", info->name, knobs_value(k, i, value));
    }
    put_rendering(f, k);
    if (!k->data_path[0]) {
        fprintf(f, "built-in, seed %lld\n", (long long)k->seed);
        return;
    }
    int rc = text_list_open(&list, k->data_path, k->data_shape != DATA_SHAPE_AUTO, NULL);
    for (size_t i = 0; rc == 0 && i < list.n; i++) {
        fprintf(f, "%llu ", (unsigned long long)list.weights[list.files[i].pool]);
        put_file(f, list.files[i].path);
    }
    if (rc != 0) // not a file: the name of the built-in corpus, or the trial will be refused
        fprintf(f, "%s\n", k->data_path);
    text_list_close(&list);
}

static void put_lines(FILE *f, const char *path, const char *beginning) {
    char line[512];
    FILE *in = fopen(path, "re");
    while (in && fgets(line, sizeof line, in))
        if (strncmp(line, beginning, strlen(beginning)) == 0)
            fputs(line, f);
    if (in)
        fclose(in);
}

static int put_gpu(void *arg, const char *name) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "/proc/driver/nvidia/gpus/%s/information", name);
    put_lines(arg, path, "Model:");
    return 0;
}

// What the driver's files say. The device is not opened here: that would take memory from the
// trials, and a process that has it open cannot fork.
static void put_device(FILE *f) {
    char path[PLUGIN_PATH_BYTES];
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    put_lines(f, "/proc/driver/nvidia/version", "");
    file_list_dir("/proc/driver/nvidia/gpus", put_gpu, f, NULL);
    fprintf(f, "%s\n", visible ? visible : "");
    plugin_find("cuda", path); // the program's build id does not cover the plug-in's code
    put_file(f, path);
}

static void put_hardware(FILE *f, const struct knobs *k) {
    struct hw_machine m;
    char fingerprint[HW_FINGERPRINT_BYTES];
    hw_machine_read(&m, "");
    hw_fingerprint(&m, 0, fingerprint); // 0: the thread count is part of the setting, not the key
    fprintf(f, "%s\n", fingerprint);
    if (plan_wants_device(k))
        put_device(f);
}

// The text that `put` writes. The caller frees it. NULL: out of memory.
static char *text_of(void (*put)(FILE *f, const struct knobs *k), const struct knobs *k) {
    char *text = NULL;
    size_t bytes;
    FILE *f = open_memstream(&text, &bytes);
    if (!f)
        return NULL;
    put(f, k);
    if (fclose(f) == 0)
        return text;
    free(text);
    return NULL;
}

int record_key(const struct knobs *k, char key[HASH_TEXT_BYTES], struct err *e) {
    struct model_shape shape;
    bool is_dir;
    char build[BUILD_ID_BYTES];
    TRY(model_shape_open(&shape, k->model, &is_dir, e));
    build_id(build);
    char *data = text_of(put_data, k), *hardware = text_of(put_hardware, k);
    struct store_key_parts parts = {&shape, data, hardware, build};
    int rc = data && hardware ? store_key(&parts, key, e)
                              : err_set(e, ERR_MEMORY, "no memory for the key of a trial");
    free(data);
    free(hardware);
    return rc;
}

// ---------------------------------------------------------------- the row

static uint64_t arena_bytes(const struct trial_result *t) {
    uint64_t sum = 0;
    for (int c = 0; c < CLASS_COUNT; c++)
        sum += t->by_class[c];
    return sum;
}

enum store_outcome record_outcome(const struct trial_result *t) {
    if (t->rc == 0)
        return OUTCOME_MEASURED;
    if (t->rc == ERR_STOPPED)
        return OUTCOME_STOPPED;
    // A process that died reported no planned bytes. One that was refused for memory has planned.
    if ((t->rc == ERR_MEMORY || t->rc == ERR_INTERNAL) && arena_bytes(t) == 0)
        return OUTCOME_KILLED;
    return t->rc == ERR_NUMERIC || t->rc == ERR_IO || t->rc == ERR_INTERNAL ? OUTCOME_FAILED
                                                                            : OUTCOME_REFUSED;
}

static void put_step_times(struct store_trial *row, const struct run_metrics *m) {
    row->step_p50_ms = m->step_p50.value / 1e6;
    row->step_p95_ms = m->step_p95.value / 1e6;
    row->step_p99_ms = m->step_p99.value / 1e6;
    row->step_p50_upper95_ms = m->step_p50.upper95 / 1e6;
    row->step_p95_upper95_ms = m->step_p95.upper95 / 1e6;
    row->step_p99_upper95_ms = m->step_p99.upper95 / 1e6;
    row->ms_per_sample = m->ms_per_sample;
}

static void put_figures(struct store_trial *row, const struct run_metrics *m) {
    row->wall_s = m->wall_s;
    row->tokens_per_s = m->tokens_per_s;
    row->trained_tokens_per_s = m->trained_tokens_per_s;
    row->utilization = m->utilization;
    row->mfu = m->mfu;
    row->hfu = m->hfu;
    put_step_times(row, m);
    for (int i = 0; i < TIME_COUNT && m->split.steps > 0; i++)
        row->split.ms[i] = (double)m->split.ns[i] / 1e6 / (double)m->split.steps;
    row->data_wait_ms = row->split.ms[TIME_DATA_WAIT];
}

// Computes the figures with measure/metrics.h, as all other code does.
static int put_measured(struct store_trial *row, const struct record *r, const struct knobs *k,
                        const struct trial_result *t, struct err *e) {
    struct samples samples;
    struct run_metrics m;
    struct trace trace = {.total = t->split};
    if (t->steps == 0)
        return 0;
    TRY(samples_open(&samples, (size_t)t->steps, e));
    for (int64_t i = 0; i < t->steps; i++)
        samples_add(&samples, t->step_ns[i]);
    struct metrics_input in = trial_metrics_input(t, k, &samples, &trace);
    in.peak_flops_per_s = r->peak_flops_per_s;
    metrics_compute(&m, &in);
    put_figures(row, &m);
    samples_close(&samples);
    return 0;
}

static void put_counts(struct store_trial *row, const struct knobs *k,
                       const struct trial_result *t) {
    // On a device both figures are about the device's memory.
    bool device = plan_wants_device(k);
    row->steps = t->steps;
    row->tokens = (int64_t)t->tokens;
    row->real_tokens = (int64_t)t->real_tokens;
    row->trained_tokens = (int64_t)t->trained_tokens;
    row->memory_predicted_bytes = (int64_t)(device ? arena_bytes(t) : t->memory_predicted_bytes);
    row->memory_measured_bytes = t->steps == 0 ? 0 : (int64_t)t->memory_measured_bytes;
    memcpy(row->by_class.bytes, t->by_class, sizeof row->by_class.bytes);
    row->loss_first = t->loss_first;
    row->loss_last = t->loss_last;
}

int record_trial(struct store *s, const struct record *r, const struct knobs *k,
                 const struct trial_result *t, int64_t *id, struct err *e) {
    struct store_trial row;
    char setting[HASH_TEXT_BYTES];
    char *knobs = NULL;
    store_trial_init(&row);
    TRY(store_setting(k, setting, e));
    TRY(store_knobs_text(k, &knobs, e));
    row.tuning = r->tuning;
    row.started_at = r->started_at;
    row.origin = r->origin;
    row.key = r->key ? r->key : "";
    row.setting = setting;
    row.knobs = knobs;
    row.model = k->model;
    row.stage = r->stage ? r->stage : "";
    row.outcome = r->outcome;
    row.reason = t->reason;
    row.warmup = t->warmup;
    row.predicted_step_ms = 1e3 * r->predicted_step_s;
    row.joules_per_token = r->joules_per_token;
    row.busy = others_share(&t->others);
    row.apart_least_ns = apart_least_ns(&t->cpus);
    row.apart_most_ns = apart_most_ns(&t->cpus);
    put_counts(&row, k, t);
    int rc = put_measured(&row, r, k, t, e);
    if (rc == 0)
        rc = store_trial_add(s, &row, t->step_ns, (size_t)t->steps, id, e);
    free(knobs);
    return rc;
}
