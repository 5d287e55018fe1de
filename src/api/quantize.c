// quantize.c - haggle_quantize: writes a model's folder with its matrices quantized.
#include "api/api.h"

#include "base/file.h"
#include "export/export.h"
#include "export/quantize_folder.h"
#include "train/checkpoint_dir.h"
#include "train/likeness.h"
#include "train/sensitive.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t SHARD_BYTES = UINT64_C(5000000000);

static bool wants_auto(const struct haggle_quantize *q) {
    return q->wider && strcmp(q->wider, "auto") == 0;
}

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
    if (q->method)
        TRY(quantize_find_method(q->method, &o->method, e));
    if (o->method != QUANTIZE_RTN && !q->data)
        return err_set(e, ERR_USAGE,
                       "--method %s looks at text: give it with --data FILE, of the kind that the "
                       "model is for",
                       quantize_method_name(o->method));
    if (q->tokens != 0 && o->method == QUANTIZE_RTN)
        return err_set(e, ERR_USAGE,
                       "--tokens is how much text awq and tuned read; rtn reads none");
    if (q->wider && !wants_auto(q) && !int4)
        return err_set(e, ERR_USAGE,
                       "--wider NAMES makes matrices of int4 int8; with int8, --keep NAMES leaves "
                       "them as they are");
    if (wants_auto(q) && !q->data)
        return err_set(e, ERR_USAGE,
                       "--wider auto chooses by what the matrices do to text: give it with --data "
                       "FILE");
    return 0;
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

// ---------------------------------------------------------------- the text

// Logits of a window are in memory as float32, of both models.
enum {
    COMPARED_SEQ = 512,
    AWQ_TOKENS = 65536, // of calibration text, unless --tokens says otherwise
    TUNED_TOKENS = 262144,
    ROUNDS = 5, // of --wider auto
    NAMES_BYTES = 8192
};
static const double KL_INT8 = 0.005, KL_INT4 = 0.1;
static const double HELD_OUT = 0.2; // of the records of --data, where there is no --eval
// What --wider auto aims at, in parts of the limit: divergences do not quite add up.
static const double AIM = 0.9, AIM_LOWER = 0.8;

struct beside {
    struct call *c;
    const struct haggle_quantize *q;
    struct knobs knobs; // of the source
    struct quantize_folder how;
    double limit;
    const char *doing; // what the live line shows
    // data: --data, divided. other: --eval. The result is compared on `other`, else on the
    // validation split of `data`.
    struct score data, other;
    struct powers powers;
    struct tuned tuned;
    struct likeness found;
    struct sensitive sensitive;
    // --wider auto
    char names[NAMES_BYTES]; // chosen so far
    int n_names, round;
    double aim;
    bool again;
};

static void show_progress(void *arg, uint64_t done, uint64_t all) {
    struct beside *b = arg;
    char line[128];
    snprintf(line, sizeof line, "%s  %.0f %%", b->doing, 100 * (double)done / (double)all);
    log_live(&b->c->log, line);
}

static void say_data(void *arg, enum log_level level, const char *text) {
    struct beside *b = arg;
    call_say(&b->c->log, level, text);
}

static int stop_asked(void *arg) {
    (void)arg;
    return *stop_flag();
}

static struct score_listener listen_to(struct beside *b, const char *doing) {
    b->doing = doing;
    return (struct score_listener){.data = {.arg = b, .say = say_data, .stop = stop_asked},
                                   .arg = b,
                                   .progress = show_progress,
                                   .stop = stop_flag()};
}

static bool compares(const struct haggle_quantize *q) {
    return q->eval != NULL || q->data != NULL;
}

static const struct score *compared(const struct beside *b) {
    return b->q->eval ? &b->other : &b->data;
}

static int knobs_for(const struct beside *b, const char *path, struct knobs *k, struct err *e) {
    struct model_shape shape;
    bool is_folder;
    *k = b->knobs;
    TRY(knobs_set_at(k, KNOB_data_path, path, SET_BY_COMMAND_LINE, e));
    TRY(model_shape_open(&shape, k->model, &is_folder, e));
    if (k->by[KNOB_seq] == SET_BY_DEFAULT)
        k->seq = COMPARED_SEQ;
    if (k->seq > model_shape_longest(&shape))
        k->seq = model_shape_longest(&shape);
    return 0;
}

// A record that calibration has seen says nothing about text that it has not seen.
static int refuse_shared(const struct beside *b, struct err *e) {
    bool found;
    size_t file;
    uint64_t record;
    TRY(dataset_shared(b->data.data, b->other.data, &found, &file, &record, e));
    return found ? err_set(e, ERR_USAGE,
                           "record %llu of %.300s is also in --data %.300s: the result would be "
                           "compared on text that it was made from. Take such records out of one "
                           "of the two, or leave out --eval: a fifth of --data is then kept apart",
                           (unsigned long long)record + 1, dataset_file_path(b->other.data, file),
                           b->q->data)
                 : 0;
}

static int open_texts(struct beside *b, struct err *e) {
    const struct score_listener l = listen_to(b, "reading text");
    const struct haggle_quantize *q = b->q;
    struct knobs k;
    char text[160];
    if (q->data) {
        TRY(knobs_for(b, q->data, &k, e));
        TRY(score_open_divided(&b->data, &k, q->eval ? 0 : HELD_OUT, &l, e));
    }
    if (q->eval) {
        TRY(knobs_for(b, q->eval, &k, e));
        TRY(score_open(&b->other, &k, &l, e));
    }
    if (q->data && q->eval)
        TRY(refuse_shared(b, e));
    if (q->data && b->other.windows + b->data.windows == 0)
        return err_set(e, ERR_USAGE, "%.300s: no record can be kept apart from calibration",
                       q->data);
    if (!q->data)
        return 0;
    const struct pack_stats of = dataset_stats(b->data.data, SPLIT_TRAIN);
    snprintf(text, sizeof text, "text: %llu tokens for calibration, %llu held out",
             (unsigned long long)of.used,
             (unsigned long long)(q->eval ? b->other.stats.used : b->data.stats.used));
    call_say(&b->c->log, LOG_INFO, text);
    return 0;
}

static void close_all(struct beside *b) {
    sensitive_free(&b->sensitive);
    tuned_free(&b->tuned);
    powers_free(&b->powers);
    score_close(&b->other);
    score_close(&b->data);
}

// ---------------------------------------------------------------- calibration

static int calibrate(struct beside *b, struct err *e) {
    const enum quantize_method method = b->how.how.method;
    const uint64_t asked = (uint64_t)b->q->tokens;
    struct score_listener l = listen_to(b, "reading activations");
    struct model_shape shape;
    struct quantized stored = {0};
    int64_t matrices;
    bool is_folder;
    TRY(model_shape_open(&shape, b->knobs.model, &is_folder, e));
    if (method == QUANTIZE_RTN)
        return 0;
    const uint64_t some = asked > 0 && asked < AWQ_TOKENS ? asked : AWQ_TOKENS;
    TRY(powers_measure(&b->powers, &b->data, method == QUANTIZE_AWQ && asked ? asked : some, &l,
                       e));
    b->how.powers = &b->powers;
    if (method != QUANTIZE_TUNED)
        return 0;
    l = listen_to(b, "tuning scales");
    int rc = quantize_choose(&b->how, &shape, &stored, &matrices, e);
    const struct tuned_options o = {.data = &b->data,
                                    .stored = &stored,
                                    .powers = &b->powers,
                                    .tokens = asked ? asked : TUNED_TOKENS,
                                    .l = &l};
    if (rc == 0)
        rc = tuned_train(&b->tuned, &o, e);
    quantized_free(&stored);
    b->how.tuned = &b->tuned;
    return rc;
}

// ---------------------------------------------------------------- beside the source

// What is nearer to the source than this, where something is.
static const char *nearer(const struct quantize_options *o, char out[160]) {
    const struct storage s = o->storage;
    if (s.kind != STORAGE_INT4)
        return "";
    snprintf(out, 160, "Nearer to the source: %s%s%s--format int8. ",
             o->method != QUANTIZE_TUNED ? "--method tuned, " : "",
             s.group > 32 ? "--group 32, " : "", s.minima ? "" : "--minima, ");
    return out;
}

static bool int4(const struct beside *b) {
    return b->how.how.storage.kind == STORAGE_INT4;
}

static int refuse(struct beside *b, struct err *e) {
    char names[400] = "", text[160];
    size_t at = 0;
    const int n = sensitive_choose(&b->sensitive, b->found.kl.value, AIM * b->limit, 1);
    const int shown = n < 3 ? n : 3;
    for (int i = 0; i < shown; i++)
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", i ? "," : "",
                               b->sensitive.all[i].name);
    return err_set(e, ERR_NUMERIC,
                   "the divergence from the source is %.3g nats per token, over --kl %g, so "
                   "nothing was kept. %s%d of %d matrices would have to be wider, first of all "
                   "--%s %s%s%s",
                   b->found.kl.value, b->limit, nearer(&b->how.how, text), n, b->sensitive.n,
                   int4(b) ? "wider" : "keep", names, n > shown ? ",..." : "",
                   b->q->data ? "; --wider auto chooses them"
                              : "; with --data FILE, --wider auto chooses them");
}

// Adds the matrices that should be wider too to the names; the next round begins with them.
static int choose_wider(struct beside *b, struct err *e) {
    const int n = sensitive_choose(&b->sensitive, b->found.kl.value, b->aim * b->limit, 1);
    size_t at = strlen(b->names);
    char text[200];
    if (n == 0 || n == b->sensitive.n || b->round + 1 >= ROUNDS)
        return refuse(b, e);
    for (int i = 0; i < n; i++) {
        const size_t bytes = strlen(b->sensitive.all[i].name) + 1;
        if (at + bytes + 1 > sizeof b->names)
            return refuse(b, e);
        at += (size_t)snprintf(b->names + at, sizeof b->names - at, "%s%s", at ? "," : "",
                               b->sensitive.all[i].name);
    }
    snprintf(text, sizeof text,
             "the divergence is %.3g nats per token, over %g: %d of %d matrices become wider",
             b->found.kl.value, b->limit, n, b->sensitive.n);
    call_say(&b->c->log, LOG_INFO, text);
    b->n_names += n;
    b->aim *= AIM_LOWER;
    b->round++;
    b->again = true;
    return err_set(e, ERR_NUMERIC, "another round");
}

static int compare(void *arg, const char *dir, struct err *e) {
    struct beside *b = arg;
    struct score_listener l = listen_to(b, "comparing with the source");
    TRY(likeness_measure(compared(b), dir, &l, &b->found, e));
    const bool over = b->found.kl.value > b->limit;
    l = listen_to(b, "asking what each matrix does");
    sensitive_free(&b->sensitive);
    TRY(sensitive_measure(&b->sensitive, b->q->data ? &b->data : &b->other,
                          b->q->data ? SPLIT_TRAIN : SPLIT_VALIDATION, dir, &l, e));
    return !over ? 0 : wants_auto(b->q) ? choose_wider(b, e) : refuse(b, e);
}

static void print_likeness(const struct beside *b, FILE *f) {
    const struct likeness *x = &b->found;
    const struct sensitive *s = &b->sensitive;
    if (b->how.tuned)
        fprintf(f,
                "  tuned          %llu steps, %llu tokens, %.0f s; divergence %.3g at the "
                "beginning, %.3g at the end\n",
                (unsigned long long)b->tuned.steps, (unsigned long long)b->tuned.tokens,
                b->tuned.seconds, b->tuned.kl_first, b->tuned.kl_last);
    fprintf(f, "  compared       %llu tokens of %s%s, beside the source\n",
            (unsigned long long)x->tokens, b->q->eval ? b->q->eval : b->q->data,
            b->q->eval ? "" : " that calibration did not see");
    fprintf(f, "  perplexity     %.4g, before %.4g (loss %+.4f, 95 %% interval %+.4f to %+.4f)\n",
            exp(x->loss[1].value), exp(x->loss[0].value), x->difference.value, x->difference.low,
            x->difference.high);
    fprintf(f,
            "  divergence     %.3g nats per token (KL, 95 %% interval %.3g to %.3g; limit %g); "
            "largest of a token: %.3g\n",
            x->kl.value, x->kl.low, x->kl.high, b->limit, x->kl_largest);
    fprintf(f, "  same choice    %.2f %% of the tokens have the same likeliest one\n",
            100 * x->same_top);
    if (s->n > 0)
        fprintf(f,
                "  worst          %s: alone it makes a divergence of %.3g (%.0f %% of the sum of "
                "all %d; on %llu tokens)\n",
                s->all[0].name, s->all[0].kl, 100 * s->all[0].kl / (s->sum > 0 ? s->sum : 1), s->n,
                (unsigned long long)s->tokens);
}

static void put_likeness(const struct beside *b, struct json_writer *w) {
    const struct likeness *x = &b->found;
    json_member_object(w, "compared");
    json_member_string(w, "data", b->q->eval ? b->q->eval : b->q->data);
    json_member_bool(w, "held_out", b->q->eval == NULL);
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
    json_member_array(w, "sensitive");
    for (int i = 0; i < b->sensitive.n; i++) {
        json_put_object_begin(w);
        json_member_string(w, "name", b->sensitive.all[i].name);
        json_member_double(w, "kl", b->sensitive.all[i].kl);
        json_put_object_end(w);
    }
    json_put_array_end(w);
    if (!b->how.tuned)
        return;
    json_member_object(w, "tuned");
    json_member_i64(w, "steps", (int64_t)b->tuned.steps);
    json_member_i64(w, "tokens", (int64_t)b->tuned.tokens);
    json_member_double(w, "seconds", b->tuned.seconds);
    json_member_double(w, "kl_first", b->tuned.kl_first);
    json_member_double(w, "kl_last", b->tuned.kl_last);
    json_put_object_end(w);
}

// ---------------------------------------------------------------- all

// Rounds until the result is near enough, or until nothing more can become wider.
static int write_folder(struct beside *b, struct quantize_summary *summary, struct err *e) {
    char kept[NAMES_BYTES + 4096];
    int rc;
    do {
        b->again = false;
        if (wants_auto(b->q) && int4(b))
            b->how.wider = b->names;
        if (wants_auto(b->q) && !int4(b) && b->names[0]) {
            const char *keep = b->q->keep ? b->q->keep : "";
            if (strlen(keep) > 4000)
                return err_set(e, ERR_USAGE, "--keep is longer than 4000 bytes");
            snprintf(kept, sizeof kept, "%s%s%s", keep, keep[0] ? "," : "", b->names);
            b->how.keep = kept;
        }
        quantize_free(summary);
        rc = quantize_folder(&b->how, summary, e);
    } while (rc != 0 && b->again);
    return rc;
}

static int make(struct beside *b, struct quantize_summary *summary, struct err *e) {
    if (compares(b->q)) {
        TRY(open_texts(b, e));
        TRY(calibrate(b, e));
        b->how.check = compare, b->how.check_arg = b;
    }
    return write_folder(b, summary, e);
}

static int quantize(struct call *c, const struct knobs *k, const struct haggle_quantize *q,
                    struct err *e) {
    struct quantize_summary summary = {0};
    struct beside b = {.c = c, .q = q, .limit = q->kl, .knobs = *k, .aim = AIM};
    struct quantize_folder *how = &b.how;
    char exported[PATH_MAX] = "";
    *how = (struct quantize_folder){.source = q->source,
                                    .out_dir = q->out_dir,
                                    .keep = q->keep,
                                    .wider = wants_auto(q) ? NULL : q->wider,
                                    .listener = {&c->log, call_say},
                                    .stop = stop_flag()};
    TRY(read_options(q, &how->how, e));
    if (strlen(q->source) >= sizeof b.knobs.model)
        return err_set(e, ERR_USAGE, "the path of the model is longer than %zu bytes",
                       sizeof b.knobs.model - 1);
    strcpy(b.knobs.model, q->source);
    const bool run = q->best || is_run(q->source);
    if (!run) {
        TRY(call_find_model(c, &b.knobs, e));
        how->source = b.knobs.model;
    }
    if (b.limit == 0)
        b.limit = int4(&b) ? KL_INT4 : KL_INT8;
    int rc = pool_open(&how->pool, k->threads ? (int)k->threads : pool_machine_cpus(), 0, e);
    if (rc == 0 && run) {
        snprintf(exported, sizeof exported, "%.*s.tmp-source", PATH_MAX - 16, q->out_dir);
        how->source = exported;
        rc = export_source(c, k, q, exported, e);
    }
    if (rc == 0 && run && strlen(how->source) < sizeof b.knobs.model)
        strcpy(b.knobs.model, how->source);
    if (rc == 0)
        rc = make(&b, &summary, e);
    if (rc == 0 && c->out)
        quantize_print(&summary, c->out);
    if (rc == 0 && c->out && compares(q))
        print_likeness(&b, c->out);
    if (rc == 0 && call_json_begin(c, "quantize", k)) {
        quantize_put_json(&summary, &c->json);
        if (compares(q))
            put_likeness(&b, &c->json);
        json_put_object_end(&c->json);
    }
    quantize_free(&summary);
    close_all(&b);
    pool_close(how->pool);
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
