// quantize.c - haggle_quantize: writes a model's folder with its matrices quantized.
#include "api/api.h"

#include "base/file.h"
#include "export/export.h"
#include "export/quantize_folder.h"
#include "train/checkpoint_dir.h"
#include "train/likeness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t SHARD_BYTES = UINT64_C(5000000000);

static int read_options(const struct haggle_quantize *q, struct quantize_options *o,
                        struct err *e) {
    if (!q->source || !q->out_dir || !q->format)
        return err_set(e, ERR_USAGE, "a model, a folder to write and a format are needed");
    const bool int4 = strcmp(q->format, "int4") == 0;
    if (!int4 && strcmp(q->format, "int8") != 0)
        return err_set(e, ERR_USAGE, "--format %.64s is not accepted; accepted: int8, int4",
                       q->format);
    if (!int4 && (q->group != 0 || q->minima))
        return err_set(e, ERR_USAGE,
                       "--%s belongs to int4; int8 has one scale per row and no minima",
                       q->minima ? "minima" : "group");
    o->storage = (struct storage){.kind = int4 ? STORAGE_INT4 : STORAGE_INT8, .minima = q->minima};
    if (int4)
        o->storage.group = (uint16_t)(q->group ? q->group : 32);
    if (!storage_known(o->storage))
        return err_set(e, ERR_USAGE, "--group %lld is not accepted; accepted: 32, 64, 128",
                       (long long)q->group);
    return q->method ? quantize_find_method(q->method, &o->method, e) : 0;
}

// A run's folder, or a checkpoint's: it lacks what an export adds.
static bool is_run(const char *folder) {
    char path[PATH_MAX];
    static const char *const marks[] = {MANIFEST_NAME, CHECKPOINT_FOLDER};
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        if (file_join(path, sizeof path, folder, marks[i], NULL) == 0 && file_exists(path))
            return true;
    return false;
}

// Exports the run beside the target, because a checkpoint has no tokenizer and no chat template.
static int export_source(struct call *c, const struct knobs *k, const struct haggle_quantize *q,
                         const char *dir, struct err *e) {
    const struct export_options o = {.run_dir = q->source,
                                     .out_dir = dir,
                                     .best = q->best,
                                     .as_source = true,
                                     .shard_bytes = SHARD_BYTES,
                                     .knobs = k,
                                     .listener = {&c->log, call_say}};
    struct export_result r = {0};
    char path[PATH_MAX];
    TRY(file_remove_tree(dir, e)); // what a crash left there
    int rc = export_run(&o, &r, e);
    export_free(&r);
    if (rc == 0 && file_join(path, sizeof path, dir, "config.json", NULL) == 0 &&
        !file_exists(path))
        rc = err_set(e, ERR_UNSUPPORTED,
                     "'%.300s' trained an adapter: merge it first with haggle export --merge, and "
                     "quantize that folder",
                     q->source);
    return rc;
}

// ---------------------------------------------------------------- beside the source

// Logits of a window are in memory as float32, of both models.
enum { COMPARED_SEQ = 512 };
static const double KL_INT8 = 0.005, KL_INT4 = 0.1;

struct beside {
    struct call *c;
    const struct haggle_quantize *q;
    struct knobs knobs; // of the source
    struct quantize_options how;
    double limit;
    struct likeness found;
};

static void show_comparing(void *arg, uint64_t done, uint64_t windows) {
    struct beside *b = arg;
    char line[128];
    snprintf(line, sizeof line, "comparing with the source  %.0f %%",
             100 * (double)done / (double)windows);
    log_live(&b->c->log, line);
}

static void say_data(void *arg, enum log_level level, const char *text) {
    struct beside *b = arg;
    call_say(&b->c->log, level, text);
}

// What is nearer to the source than this format, where something is.
static const char *nearer(const struct quantize_options *o) {
    const struct storage s = o->storage;
    if (s.kind != STORAGE_INT4)
        return "";
    return s.minima && s.group == 32 ? "--format int8 is nearer to the source. "
           : s.minima || s.group > 32
               ? "--group 32 --minima and --format int8 are nearer to the source. "
               : "--minima and --format int8 are nearer to the source. ";
}

static int compare(void *arg, const char *dir, struct err *e) {
    struct beside *b = arg;
    const struct score_listener l = {.data = {.arg = b, .say = say_data},
                                     .arg = b,
                                     .progress = show_comparing,
                                     .stop = stop_flag()};
    struct knobs k = b->knobs;
    struct model_shape shape;
    struct score data = {0};
    bool is_folder;
    TRY(knobs_set_at(&k, KNOB_data_path, b->q->eval, SET_BY_COMMAND_LINE, e));
    TRY(model_shape_open(&shape, k.model, &is_folder, e));
    if (k.by[KNOB_seq] == SET_BY_DEFAULT)
        k.seq = COMPARED_SEQ;
    if (k.seq > model_shape_longest(&shape))
        k.seq = model_shape_longest(&shape);
    int rc = score_open(&data, &k, &l, e);
    if (rc == 0)
        rc = likeness_measure(&data, dir, &l, &b->found, e);
    score_close(&data);
    if (rc == 0 && b->found.kl.value > b->limit)
        rc = err_set(e, ERR_NUMERIC,
                     "the divergence from the source is %.3g nats per token, over --kl %g, so "
                     "nothing was kept. %s--keep NAMES leaves matrices as they are",
                     b->found.kl.value, b->limit, nearer(&b->how));
    return rc;
}

static void print_likeness(const struct beside *b, FILE *f) {
    const struct likeness *x = &b->found;
    fprintf(f, "  compared       %llu tokens of %s, beside the source\n",
            (unsigned long long)x->tokens, b->q->eval);
    fprintf(f, "  perplexity     %.4g, before %.4g (loss %+.4f, 95 %% interval %+.4f to %+.4f)\n",
            exp(x->loss[1].value), exp(x->loss[0].value), x->difference.value, x->difference.low,
            x->difference.high);
    fprintf(f,
            "  divergence     %.3g nats per token (KL, 95 %% interval %.3g to %.3g; limit %g); "
            "largest of a token: %.3g\n",
            x->kl.value, x->kl.low, x->kl.high, b->limit, x->kl_largest);
    fprintf(f, "  same choice    %.2f %% of the tokens have the same likeliest one\n",
            100 * x->same_top);
}

static void put_likeness(const struct beside *b, struct json_writer *w) {
    const struct likeness *x = &b->found;
    json_member_object(w, "compared");
    json_member_string(w, "data", b->q->eval);
    json_member_i64(w, "tokens", (int64_t)x->tokens);
    json_member_double(w, "loss", x->loss[1].value);
    json_member_double(w, "source_loss", x->loss[0].value);
    json_member_double(w, "loss_difference", x->difference.value);
    json_member_double(w, "kl", x->kl.value);
    json_member_double(w, "kl_low", x->kl.low);
    json_member_double(w, "kl_high", x->kl.high);
    json_member_double(w, "kl_largest", x->kl_largest);
    json_member_double(w, "kl_limit", b->limit);
    json_member_double(w, "same_top", x->same_top);
    json_put_object_end(w);
}

static int quantize(struct call *c, const struct knobs *k, const struct haggle_quantize *q,
                    struct err *e) {
    struct quantize_summary summary = {0};
    struct quantize_folder how = {.source = q->source,
                                  .out_dir = q->out_dir,
                                  .keep = q->keep,
                                  .listener = {&c->log, call_say}};
    struct knobs own = *k;
    char exported[PATH_MAX] = "";
    TRY(read_options(q, &how.how, e));
    if (strlen(q->source) >= sizeof own.model)
        return err_set(e, ERR_USAGE, "the path of the model is longer than %zu bytes",
                       sizeof own.model - 1);
    strcpy(own.model, q->source);
    const bool run = q->best || is_run(q->source);
    if (!run) {
        TRY(call_find_model(c, &own, e));
        how.source = own.model;
    }
    struct beside beside = {.c = c, .q = q, .limit = q->kl};
    if (q->eval != NULL) {
        how.check = compare, how.check_arg = &beside;
        beside.how = how.how;
        if (beside.limit == 0)
            beside.limit = how.how.storage.kind == STORAGE_INT4 ? KL_INT4 : KL_INT8;
    }
    int rc = pool_open(&how.pool, k->threads ? (int)k->threads : pool_machine_cpus(), 0, e);
    if (rc == 0 && run) {
        snprintf(exported, sizeof exported, "%.*s.tmp-source", PATH_MAX - 16, q->out_dir);
        how.source = exported;
        rc = export_source(c, k, q, exported, e);
    }
    beside.knobs = own;
    if (rc == 0 && strlen(how.source) < sizeof beside.knobs.model)
        strcpy(beside.knobs.model, how.source);
    if (rc == 0)
        rc = quantize_folder(&how, &summary, e);
    if (rc == 0 && c->out)
        quantize_print(&summary, c->out);
    if (rc == 0 && c->out && q->eval != NULL)
        print_likeness(&beside, c->out);
    if (rc == 0 && call_json_begin(c, "quantize", k)) {
        quantize_put_json(&summary, &c->json);
        if (q->eval != NULL)
            put_likeness(&beside, &c->json);
        json_put_object_end(&c->json);
    }
    quantize_free(&summary);
    pool_close(how.pool);
    if (exported[0] != '\0' && file_remove_tree(exported, rc == 0 ? e : NULL) != 0 && rc == 0)
        rc = e->code;
    return rc;
}

int haggle_quantize(const struct haggle_config *config, const struct haggle_quantize *q,
                    const struct haggle_sink *sink, struct haggle_error *e) {
    struct call c;
    call_begin(&c, sink);
    return call_end(&c, quantize(&c, &config->knobs, q, &c.err), e);
}
