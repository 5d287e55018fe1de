// watch.c - see watch.h.
#include "report/watch.h"

#include "report/ranks_print.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "plan/second.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

// Percentiles on the live line are of the last LIVE_SAMPLES steps: a person watching wants current
// figures. The memory figure is read every MEMORY_EVERY steps.
enum { LIVE_SAMPLES = 256, MEMORY_EVERY = 16 };

// ---------------------------------------------------------------- files

// Renames log.jsonl to log.1.jsonl, or to the next free number.
static int move_aside(const char *run_dir, const char *path, struct err *e) {
    char to[PATH_MAX], name[32];
    for (int i = 1; i < 10000; i++) {
        snprintf(name, sizeof name, "log.%d.jsonl", i);
        TRY(file_join(to, sizeof to, run_dir, name, e));
        if (!file_exists(to))
            return file_rename(path, to, e);
    }
    return err_set(e, ERR_IO, "%s holds too many old logs; remove some of log.*.jsonl", run_dir);
}

void watch_init(struct watch *w, const struct knobs *k, struct log *log, void (*starts)(void *arg),
                void *starts_arg) {
    *w = (struct watch){.knobs = k,
                        .log = log,
                        .validation_first = NAN,
                        .starts = starts,
                        .starts_arg = starts_arg};
    live_init(&w->live, log, k->log_every);
}

// The second model's recipe as it was given, without the knobs for requests, which belong to the
// main recipe. A later run can use it as interactive.recipe.
static int save_second(const struct watch *w, const struct plan *p, struct err *e) {
    char path[PATH_MAX];
    struct knobs k;
    if (!p->second)
        return 0;
    second_recipe(&p->second->knobs, &k);
    TRY(file_join(path, sizeof path, w->knobs->run_dir, "interactive.yaml", e));
    return knobs_save_recipe(&k, path, e);
}

static int open_files(struct watch *w, struct err *e) {
    const struct knobs *k = w->knobs;
    char path[PATH_MAX];
    uint64_t torn = 0;
    TRY(file_make_dirs(k->run_dir, e));
    TRY(file_join(path, sizeof path, k->run_dir, "recipe.yaml", e));
    TRY(knobs_save_recipe(k, path, e));
    TRY(save_second(w, w->plan, e));
    TRY(file_join(path, sizeof path, k->run_dir, "log.jsonl", e));
    if (!k->resume && file_exists(path))
        TRY(move_aside(k->run_dir, path, e));
    TRY(jsonl_open(&w->jsonl, path, &torn, e));
    w->has_jsonl = true;
    if (torn > 0)
        log_put(w->log, LOG_WARN, "%s ended in a torn line; %llu bytes were cut off", path,
                (unsigned long long)torn);
    if (k->log_tensorboard) {
        TRY(tensorboard_open(&w->board, k->run_dir, e));
        w->has_board = true;
    }
    return 0;
}

int watch_close(struct watch *w, struct err *e) {
    int rc = 0;
    if (w->has_jsonl)
        rc = jsonl_close(&w->jsonl, e);
    if (w->has_board) {
        int board = tensorboard_close(&w->board, rc == 0 ? e : NULL);
        rc = rc != 0 ? rc : board;
    }
    w->has_jsonl = w->has_board = false;
    return rc;
}

// A log that cannot be written (a full disk) ends with a warning. Ending the run would lose the
// steps since the last checkpoint.
static void give_up_jsonl(struct watch *w, const struct err *why) {
    log_put(w->log, LOG_WARN, "%s; the log ends here, training goes on", why->text);
    jsonl_close(&w->jsonl, NULL);
    w->has_jsonl = false;
}

static void give_up_board(struct watch *w, const struct err *why) {
    log_put(w->log, LOG_WARN, "%s; TensorBoard's file ends here, training goes on", why->text);
    tensorboard_close(&w->board, NULL);
    w->has_board = false;
}

// run.dir may have been removed or moved during the run. The files that are open would then grow
// where nobody finds them, so they are begun again in the new folder.
static void find_files_again(struct watch *w) {
    struct err e = {0};
    if (!w->has_jsonl || file_is_open_as(w->jsonl.path, w->jsonl.fd))
        return;
    log_put(w->log, LOG_WARN,
            "'%s' was removed or moved during the run; another one begins in its place",
            w->jsonl.path);
    watch_close(w, NULL);
    if (open_files(w, &e) != 0)
        log_put(w->log, LOG_WARN, "%s; the log ends here", e.text);
}

static struct json_writer *begin_line(struct watch *w, const char *event) {
    struct json_writer *j = jsonl_begin(&w->jsonl);
    json_member_string(j, "event", event);
    return j;
}

static void end_line(struct watch *w, struct json_writer *j) {
    struct err e = {0};
    json_member_double(j, "time", clock_wall_s());
    if (jsonl_end(&w->jsonl, &e) != 0)
        give_up_jsonl(w, &e);
}

// ---------------------------------------------------------------- events from the trainer

// Removes an earlier result.json: if this process is killed, it would describe other steps.
static int drop_result(const struct watch *w, const struct train_start *s, struct err *e) {
    char path[PATH_MAX];
    if (s->state.step >= s->steps)
        return 0;
    TRY(file_join(path, sizeof path, w->knobs->run_dir, WATCH_RESULT, e));
    if (unlink(path) != 0 && errno != ENOENT)
        return err_set(e, ERR_IO, "%s, of an earlier run, cannot be removed: %s", path,
                       strerror(errno));
    return 0;
}

static int on_start(void *arg, const struct train_start *s, struct err *e) {
    struct watch *w = arg;
    const struct plan *plan = s->session->plan;
    w->starts(w->starts_arg);
    w->plan = plan;
    TRY(open_files(w, e));
    TRY(drop_result(w, s, e));
    const struct backend *b = s->session->engine->backend;
    const char *isa = b->isa;
    const char *blas = b->info.device ? b->info.text : b->products[DTYPE_F32];
    enum dtype type = plan_real_type(plan);
    const char *products = b->info.device ? NULL : b->products[type];
    if (b->info.device)
        log_put(w->log, LOG_INFO, "computes on %s: %s", b->name, blas);
    else if (products == blas)
        log_put(w->log, LOG_INFO, "kernels for %s, matrix products: %s", isa, blas);
    else
        log_put(w->log, LOG_INFO, "kernels for %s, %s products: %s", isa, dtype_text(type),
                products);
    if (b->note && *b->note)
        log_put(w->log, LOG_WARN, "%s", b->note);
    if (s->resumed_from)
        log_put(w->log, LOG_INFO, "goes on from %s: step %lld of %lld", s->resumed_from,
                (long long)s->state.step, (long long)s->steps);
    struct json_writer *j = begin_line(w, "start");
    json_member_string(j, "haggle", HAGGLE_VERSION);
    json_member_string(j, "model", plan->shape.name);
    json_member_i64(j, "parameters", model_total_elements(&plan->shape));
    json_member_string(j, "data", dataset_describe(s->dataset));
    json_member_string(j, "device", b->name);
    json_member_string(j, "isa", isa);
    json_member_string(j, "blas", blas);
    json_member_string(j, "precision", dtype_text(type));
    if (products)
        json_member_string(j, "products", products);
    json_member_i64(j, "step", s->state.step);
    json_member_i64(j, "steps", s->steps);
    json_member_i64(j, "warmup_steps", s->warmup_steps); // not in this process's percentiles
    if (s->resumed_from)
        json_member_string(j, "resumed_from", s->resumed_from);
    json_member_i64(j, "memory_predicted_bytes", (int64_t)plan_total_bytes(plan));
    json_member_double(j, "time", clock_wall_s());
    return jsonl_end(&w->jsonl, e);
}

static int put_board(struct tensorboard *b, const struct train_step *s, struct err *e) {
    TRY(tensorboard_put(b, "train/loss", s->step, s->loss, e));
    TRY(tensorboard_put(b, "train/lr", s->step, s->lr, e));
    TRY(tensorboard_put(b, "train/grad_norm", s->step, s->grad_norm, e));
    if (s->noise != NULL && isfinite(s->noise->tokens))
        TRY(tensorboard_put(b, "train/noise_scale_tokens", s->step, s->noise->tokens, e));
    TRY(tensorboard_put(b, "perf/tokens_per_s", s->step, s->tokens_per_s, e));
    TRY(tensorboard_put(b, "perf/step_ms", s->step, (double)s->step_ns / 1e6, e));
    return tensorboard_put(b, "perf/data_wait_ms", s->step, (double)s->data_wait_ns / 1e6, e);
}

static void show(struct watch *w, const struct train_step *s) {
    static const double p[2] = {0.50, 0.99};
    struct quantile q[2];
    struct time_split total;
    samples_quantiles(s->step_ns_samples, LIVE_SAMPLES, p, 2, q);
    trace_split(s->trace, &total);
    // The size of the process changes slowly, and reading it opens a file.
    uint64_t memory = w->numbers.memory_bytes;
    if (memory == 0 || s->step % MEMORY_EVERY == 0)
        memory = mem_process_rss_bytes();
    double slowest_ms;
    const int slowest = ranks_slowest(s, &slowest_ms);
    w->numbers = (struct live_numbers){
        .slowest_rank = slowest,
        .slowest_ms = slowest_ms,
        .ranks_wait = ranks_waiting(s),
        .step = s->step,
        .total_steps = s->steps,
        .loss = s->loss,
        .lr = s->lr,
        .grad_norm = s->grad_norm,
        .tokens_per_s = s->tokens_per_s,
        .step_p50_ms = q[0].value / 1e6,
        .step_p99_ms = q[1].value / 1e6,
        .data_wait =
            total.wall_ns > 0 ? (double)total.ns[TIME_DATA_WAIT] / (double)total.wall_ns : NAN,
        .memory_bytes = memory,
        .answered = s->answered,
        .times_of = (int64_t)q[0].n,
        .answer_p95_ms = s->answer_p95_ns / 1e6,
        .eta_s = s->step < s->steps ? s->eta_s : NAN,
        .epoch = s->epoch,
        .epochs = s->epochs,
    };
    live_show(&w->live, &w->numbers, s->begin_ns + s->step_ns);
}

// A step without an update says why. Writes the same members as jsonl_put, in the same order.
static int put_idle_step(struct jsonl *jsonl, const struct train_step *s, struct err *e) {
    struct json_writer *j = jsonl_begin(jsonl);
    json_member_i64(j, "step", s->step);
    json_member_double(j, "loss", s->loss);
    json_member_double(j, "lr", s->lr);
    json_member_double(j, "grad_norm", s->grad_norm);
    json_member_i64(j, "tokens", (int64_t)s->all_trained_tokens);
    json_member_double(j, "tokens_per_s", s->tokens_per_s);
    json_member_double(j, "step_ms", (double)s->step_ns / 1e6);
    json_member_double(j, "data_wait_ms", (double)s->data_wait_ns / 1e6);
    if (s->skipped)
        json_member_bool(j, "skipped", true);
    if (s->skipped && s->loss_scale != 1)
        json_member_double(j, "loss_scale", s->loss_scale);
    if (s->empty)
        json_member_bool(j, "empty", true);
    json_member_double(j, "time", clock_wall_s());
    return jsonl_end(jsonl, e);
}

static int put_step(struct jsonl *jsonl, const struct train_step *s, struct err *e) {
    if (s->skipped || s->empty)
        return put_idle_step(jsonl, s, e);
    const struct jsonl_record r = {
        .step = s->step,
        .loss = s->loss,
        .lr = s->lr,
        .grad_norm = s->grad_norm,
        .tokens = s->all_trained_tokens,
        .tokens_per_s = s->tokens_per_s,
        .step_ms = (double)s->step_ns / 1e6,
        .data_wait_ms = (double)s->data_wait_ns / 1e6,
        .time = clock_wall_s(),
        .validation_loss = NAN,
        .has_noise = s->noise != NULL,
        .noise_tokens = s->noise ? s->noise->tokens : NAN,
        .noise_sequences = s->noise ? s->noise->sequences : NAN,
    };
    return jsonl_put(jsonl, &r, e);
}

static int on_step(void *arg, const struct train_step *s, struct err *e) {
    struct watch *w = arg;
    (void)e;
    struct err lost = {0};
    if (w->has_jsonl && put_step(&w->jsonl, s, &lost) != 0)
        give_up_jsonl(w, &lost);
    if (w->has_board && put_board(&w->board, s, &lost) != 0)
        give_up_board(w, &lost);
    w->step_ns = s->step_ns_samples;
    show(w, s);
    return 0;
}

static int on_eval(void *arg, const struct train_eval *v, struct err *e) {
    struct watch *w = arg;
    (void)e;
    char took[TEXT_UNIT_BYTES], p50[TEXT_UNIT_BYTES], p99[TEXT_UNIT_BYTES];
    if (w->validations++ == 0)
        w->validation_first = v->loss;
    log_put(w->log, LOG_INFO,
            "step %lld  validation loss %.4g%s  (%lld batches, p50 %s, p99 %s, %s in all%s)",
            (long long)v->step, v->loss, v->best ? ", the best so far" : "", (long long)v->batches,
            text_duration(p50, 1e-9 * v->batch_p50.value),
            text_duration(p99, 1e-9 * v->batch_p99.value),
            text_duration(took, 1e-9 * (double)v->total_ns), v->complete ? "" : ", cut short");
    struct err lost = {0};
    if (w->has_board && tensorboard_put(&w->board, "eval/loss", v->step, v->loss, &lost) != 0)
        give_up_board(w, &lost);
    if (!w->has_jsonl)
        return 0;
    struct json_writer *j = begin_line(w, "eval");
    json_member_i64(j, "step", v->step);
    json_member_double(j, "validation_loss", v->loss);
    if (v->judged)
        json_member_bool(j, "best", v->best);
    json_member_i64(j, "batches", v->batches);
    json_member_i64(j, "trained_tokens", v->trained_tokens);
    json_member_double(j, "batch_ms_p50", v->batch_p50.value / 1e6);
    json_member_double(j, "batch_ms_p99", v->batch_p99.value / 1e6);
    json_member_double(j, "seconds", (double)v->total_ns / 1e9);
    end_line(w, j);
    return 0;
}

static int on_save(void *arg, const struct train_save *s, struct err *e) {
    struct watch *w = arg;
    (void)e;
    char bytes[TEXT_UNIT_BYTES], took[TEXT_UNIT_BYTES];
    find_files_again(w);
    if (s->rc == 0) // on_message has reported a failure already
        log_put(w->log, LOG_INFO, "step %lld  saved %s (%s%s, %s)", (long long)s->step, s->path,
                s->best ? "the best so far, " : "", text_bytes(bytes, s->bytes),
                text_duration(took, 1e-9 * (double)s->ns));
    if (!w->has_jsonl)
        return 0;
    struct json_writer *j = begin_line(w, "save");
    json_member_i64(j, "step", s->step);
    if (s->rc != 0)
        json_member_string(j, "error", s->error);
    else
        json_member_string(j, "path", s->path);
    if (s->best)
        json_member_bool(j, "best", true);
    json_member_i64(j, "bytes", (int64_t)s->bytes);
    json_member_double(j, "seconds", (double)s->ns / 1e9);
    end_line(w, j);
    return 0;
}

// Logs both kinds of requests, so that the log shows the order of all updates.
static void on_guest(void *arg, const struct guest_sample *x, const struct guest_answer *a) {
    struct watch *w = arg;
    if (!w->has_jsonl)
        return;
    struct json_writer *j = begin_line(w, "request");
    json_member_string(j, "kind", guest_kind_name(x->kind));
    json_member_i64(j, "step", a->step);
    if (a->own_step >= 0)
        json_member_i64(j, "own_step", a->own_step);
    json_member_double(j, "loss", a->loss);
    json_member_i64(j, "trained_tokens", x->trained_tokens);
    json_member_double(j, "waited_ms", (double)a->waited_ns / 1e6);
    json_member_double(j, "run_ms", (double)a->run_ns / 1e6);
    if (x->kind == GUEST_TRAIN) {
        json_member_double(j, "lr", a->lr);
        json_member_double(j, "grad_norm", a->grad_norm);
        json_member_bool(j, "skipped", a->skipped);
    }
    if (a->rc != 0)
        json_member_string(j, "error", a->error);
    end_line(w, j);
}

static void on_message(void *arg, enum log_level level, const char *text) {
    struct watch *w = arg;
    log_put(w->log, level, "%s", text);
}

void watch_show_progress(struct log *log, const struct shard_progress *p) {
    char line[256], tokens[TEXT_UNIT_BYTES];
    const char *name = strrchr(p->path, '/');
    const double share = p->of_bytes > 0 ? 100 * (double)p->bytes / (double)p->of_bytes : 100;
    snprintf(line, sizeof line, "tokenizing %.100s  %.0f %%  %s tokens  %.1f MB/s",
             name != NULL ? name + 1 : p->path, share, text_count(tokens, (double)p->tokens),
             p->seconds > 0 ? 1e-6 * (double)p->bytes / p->seconds : 0);
    log_live(log, line);
}

static void on_progress(void *arg, const struct shard_progress *p) {
    struct watch *w = arg;
    watch_show_progress(w->log, p);
}

static void on_end(void *arg, const struct train_result *r) {
    struct watch *w = arg;
    if (r->steps_run > 0)
        live_end(&w->live, &w->numbers);
}

struct train_observer watch_observer(struct watch *w) {
    return (struct train_observer){.arg = w,
                                   .on_start = on_start,
                                   .on_step = on_step,
                                   .on_eval = on_eval,
                                   .on_save = on_save,
                                   .on_message = on_message,
                                   .on_progress = on_progress,
                                   .on_guest = on_guest,
                                   .on_end = on_end};
}
