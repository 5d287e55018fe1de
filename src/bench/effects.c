// effects.c - see effects.h. One observer per place; each writes its text to a stream.
#include "bench/effects.h"

#include "base/file.h"
#include "base/hash.h"
#include "data/loader.h"
#include "engine/engine.h"
#include "program/print.h"
#include "serve/requests.h"
#include "train/buffers.h"
#include "train/crew.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int effects_settings(struct knobs *out, const struct knobs *base, int id, const char *dir,
                     struct err *e) {
    static const char small[] = "seq=32 batch.micro=2 steps=4 threads=1 device=cpu sched.warmup=1 "
                                "eval.every=0 save.every=0 save.last=false generate.tokens=0 "
                                "data.cache=none run.dir={dir}/out";
    *out = *base;
    TRY(knobs_set_list(out, knob_pair_of(id)->with, dir, false, SET_BY_PLANNER, e));
    return knobs_set_list(out, small, dir, true, SET_BY_DEFAULT, e);
}

// ---------------------------------------------------------------- program

static int see_program(FILE *f, const struct knobs *k, struct err *e) {
    struct plan p;
    struct print_options full = {.full = true, .tensors = true};
    int rc = plan_run(&p, k, e);
    if (rc == 0)
        rc = program_print(plan_program(&p, PLAN_TRAIN), f, &full, e);
    plan_free(&p);
    return rc;
}

// ---------------------------------------------------------------- bytes

static int see_bytes(FILE *f, const struct knobs *k, struct err *e) {
    const struct shard_listener quiet = {0};
    struct plan p;
    struct requests *r = NULL;
    struct dataset *data = NULL;
    int rc = plan_run(&p, k, e);
    if (rc == 0)
        rc = requests_of_plan(&r, &p, NULL, NULL, &quiet, e);
    if (rc == 0)
        rc = buffers_open_data(&data, &p, &quiet, e);
    const struct buffers b = {.data = data, .request_bytes = r ? requests_plan_bytes(r) : 0};
    if (rc == 0)
        rc = buffers_count(&b, &p, e);
    if (rc == 0)
        fprintf(f, "arena %" PRIu64 " loader %" PRIu64 " saving %" PRIu64 " requests %" PRIu64 "\n",
                plan_arena_bytes(&p), p.host.loader, p.host.saving, p.host.requests);
    dataset_close(data);
    requests_close(r);
    plan_free(&p);
    return rc;
}

// ---------------------------------------------------------------- loader

static int count_name(void *arg, const char *name) {
    (void)name;
    ++*(int *)arg;
    return 0;
}

static void nap(void) {
    const struct timespec t = {.tv_nsec = 1000000};
    nanosleep(&t, NULL);
}

// The threads of this process, once their number is steady: a thread that has ended may still be
// listed for a moment.
static int count_threads(void) {
    enum { STEADY = 5, TRIES = 500 };
    int last = -1;
    for (int i = 0, steady = 0; i < TRIES && steady < STEADY; i++) {
        int n = 0;
        (void)file_list_dir("/proc/self/task", count_name, &n, NULL);
        steady = n == last ? steady + 1 : 0;
        last = n;
        nap();
    }
    return last;
}

// Waits until `wanted` batches are ready, or gives up. Returns how many are ready.
static int64_t ready_ahead(struct loader *l, int64_t wanted) {
    int64_t ready = loader_ready(l);
    for (int i = 0; i < 5000 && ready < wanted; i++) {
        nap();
        ready = loader_ready(l);
    }
    return ready;
}

static int see_batches(FILE *f, struct loader *l, struct err *e) {
    enum { BATCHES = 6 };
    struct data_use use = {0};
    uint64_t rows = 0;
    for (int i = 0; i < BATCHES; i++) {
        struct loader_batch b;
        char hash[4][HASH_TEXT_BYTES];
        TRY(loader_next(l, &b, e));
        const int32_t *const parts[4] = {b.tokens, b.targets, b.positions, b.doc_start};
        for (int p = 0; p < 4; p++)
            hash_of(parts[p], (size_t)b.tokens_count * sizeof **parts, hash[p]);
        fprintf(f, "batch %s %s %s %s real %" PRId64 " trained %" PRId64 "\n", hash[0], hash[1],
                hash[2], hash[3], b.real_tokens, b.trained_tokens);
        data_use_add(&use, &b.use);
        rows = (uint64_t)b.rows;
        loader_release(l);
    }
    fprintf(f, "rows %" PRIu64 " kept %" PRIu64 " slowed %d\n", rows, use.cache_windows,
            use.source_wait_ns > 0);
    return 0;
}

static int see_split(FILE *f, const struct dataset *d, enum dataset_split split,
                     const struct knobs *k, struct mem *mem, struct err *e) {
    bool trains = split == SPLIT_TRAIN;
    const struct loader_options o = {.dataset = d,
                                     .split = split,
                                     .batch = k->batch_micro,
                                     .micro_batches = trains ? k->batch_accum : 1,
                                     .replicas = (int)knobs_replicas(k),
                                     .prefetch = trains ? (int)k->data_prefetch : 0,
                                     .workers = (int)k->data_workers,
                                     .source_rate = trains ? k->data_source_rate : 0,
                                     .ram = trains ? k->data_ram : 0};
    struct loader *l = NULL;
    int before = count_threads();
    fprintf(f, "%s: %" PRIu64 " windows\n", trains ? "training" : "validation",
            dataset_windows(d, split));
    if (dataset_windows(d, split) == 0)
        return 0;
    TRY(loader_open(&l, &o, mem, e));
    fprintf(f, "threads %d ahead %" PRId64 "\n", count_threads() - before,
            ready_ahead(l, o.prefetch > 0 ? o.prefetch + 1 : 0)); // no batch is taken yet
    int rc = see_batches(f, l, e);
    loader_close(l);
    return rc;
}

static int see_loader(FILE *f, const struct knobs *k, struct err *e) {
    struct model_shape shape;
    struct dataset *d = NULL;
    struct mem *mem = NULL;
    const struct shard_listener quiet = {0};
    bool folder = false;
    TRY(model_shape_open(&shape, k->model, &folder, e));
    int rc = dataset_open_knobs(&d, k, folder ? k->model : NULL, shape.vocab, &quiet, e);
    if (rc == 0)
        rc = mem_open(&mem, e);
    for (int split = 0; split < SPLITS && rc == 0; split++)
        rc = see_split(f, d, (enum dataset_split)split, k, mem, e);
    if (mem)
        mem_close(mem);
    dataset_close(d);
    return rc;
}

// ---------------------------------------------------------------- numbers

static int write_step(void *arg, const struct train_step *s, struct err *e) {
    (void)e;
    fprintf(arg, "step %" PRId64 " loss %a lr %a norm %a scale %a skipped %d\n", s->step, s->loss,
            s->lr, s->grad_norm, s->loss_scale, s->skipped);
    return 0;
}

static int see_numbers(FILE *f, const struct knobs *k, struct err *e) {
    struct knobs quiet = *k;
    const struct trainer_options to = {.observer = {.arg = f, .on_step = write_step}};
    quiet.run_dir[0] = '\0';
    quiet.save_every = 0;
    quiet.save_last = quiet.save_best = false;
    int rc = crew_train(&quiet, &to, e);
    if (rc == ERR_NUMERIC) { // a run that diverges is an effect, not a failure of the observation
        fprintf(f, "ended: %s\n", err_name(rc));
        rc = 0;
    }
    return rc;
}

bool effects_need_device(int id) {
    return id == KNOB_device || strncmp(knob_info(id)->name, "cuda.", strlen("cuda.")) == 0;
}

// ---------------------------------------------------------------- host

struct bound {
    int cpus[64];
};

static void look_at_thread(void *arg, int thread, int threads) {
    struct bound *b = arg;
    cpu_set_t set;
    (void)threads;
    if (thread < (int)(sizeof b->cpus / sizeof *b->cpus) &&
        sched_getaffinity(0, sizeof set, &set) == 0)
        b->cpus[thread] = CPU_COUNT(&set);
}

static int see_host(FILE *f, const struct knobs *k, struct err *e) {
    struct plan p;
    struct engine *g = NULL;
    struct bound bound = {{0}};
    int rc = plan_run(&p, k, e);
    if (rc == 0)
        rc = engine_open(&g, NULL, e);
    if (rc == 0)
        rc = engine_ready(g, &p, e);
    if (rc == 0) {
        const struct backend *b = g->backend;
        pool_run(g->pool, look_at_thread, &bound);
        fprintf(f, "backend %s threads %d bound to one CPU %d graphs %d\n", b->name,
                pool_threads(g->pool), bound.cpus[0] == 1, b->info.graphs && k->cuda_graphs);
        fprintf(f, "kernels %s fp32 %s bf16 %s fp16 %s, %s\n", b->isa, b->products[DTYPE_F32],
                b->products[DTYPE_BF16], b->products[DTYPE_F16], b->info.text);
    }
    engine_close(g);
    plan_free(&p);
    return rc;
}

// ---------------------------------------------------------------- output

struct listing {
    FILE *f;
    const char *dir, *shown;
    struct err *e;
};

static int list_tree(FILE *f, const char *dir, const char *shown, struct err *e);

static int list_name(void *arg, const char *name) {
    const struct listing *l = arg;
    char path[PATH_MAX], shown[PATH_MAX];
    TRY(file_join(path, sizeof path, l->dir, name, l->e));
    TRY(file_join(shown, sizeof shown, l->shown, name, l->e));
    if (file_is_dir(path))
        return list_tree(l->f, path, shown, l->e);
    // Names of TensorBoard files contain the time and the process id.
    const char *stable = strstr(shown, "tfevents");
    fprintf(l->f, "file %s\n", stable ? "events.out.tfevents" : shown);
    return 0;
}

static int list_tree(FILE *f, const char *dir, const char *shown, struct err *e) {
    struct listing l = {f, dir, shown, e};
    return file_is_dir(dir) ? file_list_dir(dir, list_name, &l, e) : 0;
}

// Prints the members of each log line that do not depend on time.
static void list_log(FILE *f, const char *run_dir) {
    static const char *const keys[] = {
        "\"event\":", "\"step\":", "\"loss\":", "\"validation_loss\":", "\"noise_scale\":"};
    char path[PATH_MAX], *text = NULL, *rest;
    size_t bytes;
    if (file_join(path, sizeof path, run_dir, "log.jsonl", NULL) != 0 ||
        file_read_all(path, 1 << 24, &text, &bytes, NULL) != 0)
        return;
    rest = text;
    for (char *line; (line = strsep(&rest, "\n")) != NULL && *line;) {
        for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
            const char *at = strstr(line, keys[i]);
            if (at)
                fprintf(f, "%.*s ", (int)strcspn(at, ",}"), at);
        }
        fputc('\n', f);
    }
    free(text);
}

static int count_lines(const char *text, const char *beginning) {
    int n = 0;
    for (const char *at = text; at; at = strchr(at, '\n'), at = at ? at + 1 : NULL)
        n += strncmp(at, beginning, strlen(beginning)) == 0;
    return n;
}

// Prints where requests come from and their budget, without the predicted times.
static void list_requests(FILE *f, const char *log) {
    const char *line = strstr(log, "requests "), *budget = line ? strstr(line, "; budget") : NULL;
    if (line)
        fprintf(f, "%.*s%.*s\n", (int)strcspn(line, ";\n"), line,
                budget ? (int)strcspn(budget, "\n") : 0, budget ? budget : "");
}

// One run as the program makes it. Its output for people goes to memory.
static int train_once(FILE *f, const struct knobs *k, effects_train_fn *train, struct err *e) {
    char *out = NULL, *log = NULL;
    size_t out_bytes, log_bytes;
    struct err why = {0};
    FILE *out_stream = open_memstream(&out, &out_bytes);
    FILE *log_stream = open_memstream(&log, &log_bytes);
    bool open = out_stream && log_stream;
    int ended = open ? train(k, out_stream, log_stream, &why) : 0;
    if (out_stream)
        fclose(out_stream);
    if (log_stream)
        fclose(log_stream);
    int rc = open ? 0 : err_set(e, ERR_MEMORY, "out of memory for a run");
    if (rc == 0) {
        const char *sample = strstr(out, "\nsample");
        fprintf(f, "ended %s, lines of steps %d%s\n", err_name(ended), count_lines(log, "step "),
                sample ? sample : "");
        list_requests(f, log);
    }
    if (ended == ERR_UNSUPPORTED || ended == ERR_IO || ended == ERR_INTERNAL)
        rc = err_set(e, ended, "%s", why.text);
    free(out);
    free(log);
    return rc;
}

// Runs the same command twice, because whether the second one resumes is part of the output.
static int see_output(FILE *f, const struct knobs *k, const char *dir, effects_train_fn *train,
                      struct err *e) {
    char out[PATH_MAX];
    TRY(file_join(out, sizeof out, dir, "out", e));
    TRY(file_remove_tree(out, e));
    TRY(file_make_dirs(out, e));
    int rc = train_once(f, k, train, e);
    if (rc == 0)
        rc = train_once(f, k, train, e);
    if (rc == 0)
        rc = list_tree(f, out, "", e);
    if (rc == 0)
        list_log(f, k->run_dir);
    (void)file_remove_tree(out, NULL);
    return rc;
}

// ---------------------------------------------------------------- any place

int effects_observe(char **out, unsigned place, const struct knobs *k, const char *dir,
                    effects_train_fn *train, struct err *e) {
    size_t bytes;
    FILE *f = open_memstream(out, &bytes);
    if (!f)
        return err_set(e, ERR_MEMORY, "out of memory for an observation: %s", strerror(errno));
    int rc = place == KNOB_IN_PROGRAM   ? see_program(f, k, e)
             : place == KNOB_IN_BYTES   ? see_bytes(f, k, e)
             : place == KNOB_IN_LOADER  ? see_loader(f, k, e)
             : place == KNOB_IN_NUMBERS ? see_numbers(f, k, e)
             : place == KNOB_IN_HOST    ? see_host(f, k, e)
             : place == KNOB_IN_OUTPUT  ? see_output(f, k, dir, train, e)
                                        : err_set(e, ERR_INTERNAL, "there is no place %u", place);
    fclose(f);
    if (rc != 0) {
        free(*out);
        *out = NULL;
    }
    return rc;
}
