// formats.c - see formats.h. A child sends what it found as one struct.
#include "api/formats.h"

#include "base/child.h"
#include "base/clock.h"
#include "base/file.h"
#include "infer/decoder.h"
#include "model/quantize.h"
#include "model/shape_folder.h"
#include "train/likeness.h"
#include "train/source.h"
#include "train/trial.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OWN_TEXTS = 8, OWN_TOKENS = 192, COMPARED_SEQ = 512 };
static const double KL_WIDE = 0.005, KL_INT4 = 0.1; // also those of haggle quantize

struct made { // what a child found
    int rc;
    char reason[TUNE_TEXT_BYTES];
    uint64_t bytes;
    double kl, low, high;
};

// ---------------------------------------------------------------- in a child

typedef int work_fn(struct formats *f, int i, struct made *out, struct err *e);

_Noreturn static void be_child(int fd, struct formats *f, work_fn *work, int i) {
    struct err e = {0};
    struct made m = {.kl = NAN, .low = NAN, .high = NAN};
    m.rc = work(f, i, &m, &e);
    if (m.rc != 0)
        snprintf(m.reason, sizeof m.reason, "%.*s", TUNE_TEXT_BYTES - 1,
                 e.text[0] ? e.text : err_phrase(m.rc));
    _exit(child_send(fd, &m, sizeof m) ? 0 : 1);
}

// Fails only when it was stopped or no process can be started.
static int in_child(struct formats *f, work_fn *work, int i, struct made *out, struct err *e) {
    int ends[2];
    *out = (struct made){.kl = NAN, .low = NAN, .high = NAN};
    if (pipe(ends) != 0)
        return err_set(e, ERR_IO, "cannot make a pipe: %s", strerror(errno));
    const pid_t child = child_fork(ends);
    if (child < 0)
        return err_set(e, ERR_MEMORY, "cannot start a process: %s", strerror(errno));
    if (child == 0)
        be_child(ends[1], f, work, i);
    const bool whole =
                   child_receive(ends[0], out, sizeof *out, stop_flag(), UINT64_MAX) == sizeof *out,
               stopped = *stop_flag();
    if (!whole)
        kill(child, SIGKILL);
    const int status = child_wait(child);
    close(ends[0]);
    if (stopped)
        return err_set(e, ERR_STOPPED, "stopped on request");
    out->reason[sizeof out->reason - 1] = '\0';
    if (!whole) {
        struct trial_result ended = {0};
        trial_explain(&ended, status);
        *out = (struct made){.rc = ended.rc, .kl = NAN, .low = NAN, .high = NAN};
        snprintf(out->reason, sizeof out->reason, "%.*s", TUNE_TEXT_BYTES - 1, ended.reason);
    }
    return 0;
}

// ---------------------------------------------------------------- text of the model itself

struct text_file {
    FILE *f;
    int32_t *ids[OWN_TEXTS];
    int64_t n[OWN_TEXTS];
};

static int on_token(void *arg, void *tag, int32_t id, enum decoder_end end, struct err *e) {
    struct text_file *x = arg;
    const int64_t i = (int32_t **)tag - x->ids;
    (void)end, (void)e;
    if (id >= 0)
        x->ids[i][x->n[i]++] = id;
    return 0;
}

// A token that begins a text. Without one any will do.
static int32_t first_token(const struct model_shape *s) {
    return (int32_t)(s->bos_id >= 0 ? s->bos_id : s->eos_id >= 0 ? s->eos_id : 0);
}

static int make_texts(struct formats *f, struct session *s, struct text_file *x, struct err *e) {
    const int32_t first = first_token(&s->plan->shape);
    struct decoder *d;
    TRY(decoder_open(&d, s, 1, e));
    int rc = 0;
    for (int i = 0; rc == 0 && i < OWN_TEXTS; i++) {
        const struct decoder_request q = {.prompt = &first,
                                          .n = 1,
                                          .most = s->plan->extend.context - 1,
                                          .how = {.temperature = 1,
                                                  .top_p = 1,
                                                  .repeat_penalty = 1,
                                                  .seed = (uint64_t)f->base.seed,
                                                  .stream = (uint64_t)i},
                                          .tag = &x->ids[i]};
        x->ids[i][x->n[i]++] = first;
        rc = decoder_add(d, &q, e);
    }
    while (rc == 0 && decoder_busy(d))
        rc = decoder_turn(d, on_token, x, e);
    decoder_close(d);
    return rc;
}

static int put_texts(const struct text_file *x, const char *path, struct err *e) {
    FILE *f = fopen(path, "we");
    if (!f)
        return err_set(e, ERR_IO, "'%.200s' cannot be written: %s", path, strerror(errno));
    for (int i = 0; i < OWN_TEXTS; i++) {
        fputs("{\"input_ids\": [", f);
        for (int64_t k = 0; k < x->n[i]; k++)
            fprintf(f, "%s%d", k ? ", " : "", x->ids[i][k]);
        fputs("]}\n", f);
    }
    return fclose(f) == 0
               ? 0
               : err_set(e, ERR_IO, "'%.200s' cannot be written: %s", path, strerror(errno));
}

static int write_own_text(struct formats *f, int i, struct made *out, struct err *e) {
    struct plan p = {.prefix = ""};
    struct engine *g = NULL;
    struct knobs k = f->base;
    struct model_shape shape;
    struct text_file x = {0};
    bool is_dir;
    (void)i, (void)out;
    TRY(model_shape_open(&shape, k.model, &is_dir, e));
    const int64_t longest = model_shape_longest(&shape);
    k.memory = 0; // the budget is for generating with the choice
    k.seq = OWN_TOKENS + 1 < longest ? OWN_TOKENS + 1 : longest;
    const struct plan_options o = {
        .knobs = &k,
        .programs = {PLAN_EXTEND},
        .extend = {.sequences = OWN_TEXTS, .context = k.seq, .rows = OWN_TEXTS},
        .real = DTYPE_F32};
    int rc = plan_make(&p, &o, e);
    for (int n = 0; n < OWN_TEXTS; n++) {
        x.ids[n] = malloc((size_t)(k.seq + 1) * sizeof **x.ids);
        if (!x.ids[n] && rc == 0)
            rc = err_set(e, ERR_MEMORY, "out of memory for texts");
    }
    if (rc == 0)
        rc = engine_start(&g, NULL, &p, e);
    if (rc == 0)
        rc = make_texts(f, g->session, &x, e);
    if (rc == 0)
        rc = put_texts(&x, f->own_text, e);
    for (int n = 0; n < OWN_TEXTS; n++)
        free(x.ids[n]);
    engine_close(g);
    plan_free(&p);
    return rc;
}

// The records of ids are all that a model without a tokenizer can be compared on.
static int set_data(const struct formats *f, struct knobs *k, struct err *e) {
    if (f->own_text[0] == '\0')
        return knobs_set_at(k, KNOB_data_path, f->order.data, SET_BY_COMMAND_LINE, e);
    TRY(knobs_set_at(k, KNOB_tokenizer, "ids", SET_BY_COMMAND_LINE, e));
    TRY(knobs_set_at(k, KNOB_data_shape, "tokens", SET_BY_COMMAND_LINE, e));
    return knobs_set_at(k, KNOB_data_path, f->own_text, SET_BY_COMMAND_LINE, e);
}

// ---------------------------------------------------------------- a quantized folder

static int read_likeness(struct json_reader *r, struct made *out) {
    const char *key;
    TRY(json_enter_object(r));
    while (json_next_key(r, &key)) {
        double *to = strcmp(key, "kl") == 0        ? &out->kl
                     : strcmp(key, "kl_low") == 0  ? &out->low
                     : strcmp(key, "kl_high") == 0 ? &out->high
                                                   : NULL;
        if (to && json_peek(r) == JSON_NUMBER)
            TRY(json_read_double(r, to));
        else
            TRY(json_skip(r));
    }
    return r->rc;
}

static int read_result(const char *text, size_t bytes, struct made *out, struct err *e) {
    struct region strings = {0};
    struct json_reader r;
    const char *key;
    int64_t after = 0;
    json_reader_init(&r, "the result of quantizing", text, bytes, &strings, e);
    json_enter_object(&r);
    while (json_next_key(&r, &key)) {
        if (strcmp(key, "bytes_after") == 0)
            json_read_i64(&r, &after);
        else if (strcmp(key, "compared") == 0)
            read_likeness(&r, out);
        else
            json_skip(&r);
    }
    const int rc = json_finish(&r);
    out->bytes = after > 0 ? (uint64_t)after : 0;
    region_free(&strings);
    return rc;
}

static int quantize(struct formats *f, int i, struct made *out, struct err *e) {
    struct haggle_config config = {.knobs = f->given};
    config.knobs.memory = 0; // the budget is for generating with the choice
    const bool compared = f->order.likeness && !f->shape, int4 = strstr(f->flags[i], "int4");
    const char *text_of = !compared ? NULL : f->own_text[0] ? f->own_text : f->order.data;
    // A method that looks at text gets it, and a part that it does not see is what the result is
    // compared on. Random weights are rounded.
    const bool looks = text_of && f->looks;
    struct haggle_error why = {0};
    char *text = NULL;
    size_t bytes = 0;
    const struct haggle_quantize q = {
        .source = f->source,
        .out_dir = f->knobs[i].model,
        .format = int4 ? "int4" : "int8",
        .group = int4 ? strtoll(strrchr(f->flags[i], ' '), NULL, 10) : 0,
        .method = f->shape ? NULL : f->order.method,
        .data = looks ? text_of : NULL,
        .eval = looks ? NULL : text_of,
        .kl = compared ? 1e5 : 0}; // the limit is applied here, so that the figure is known
    if (compared)
        TRY(set_data(f, &config.knobs, e));
    const struct haggle_sink sink = {.json = open_memstream(&text, &bytes)};
    if (!sink.json)
        return err_set(e, ERR_MEMORY, "out of memory for the result of quantizing");
    int rc = haggle_quantize(&config, &q, &sink, &why);
    if (rc != 0)
        err_set(e, rc, "%s", why.text);
    if (fclose(sink.json) != 0 && rc == 0)
        rc = err_set(e, ERR_MEMORY, "out of memory for the result of quantizing");
    if (rc == 0)
        rc = read_result(text, bytes, out, e);
    free(text);
    return rc;
}

// ---------------------------------------------------------------- 16 bits

// Opens the data as the model reads it.
static int open_data(const struct formats *f, struct score *data, const struct score_listener *l,
                     struct err *e) {
    struct knobs k = f->given;
    struct model_shape shape;
    bool is_dir, of_run;
    k.memory = 0; // the budget is for generating with the choice
    TRY(call_find_checkpoint(f->call, &k, false, e));
    TRY(source_template(&k, &of_run, e));
    TRY(call_find_model(f->call, &k, e));
    TRY(model_shape_open(&shape, k.model, &is_dir, e));
    TRY(set_data(f, &k, e));
    if (k.by[KNOB_seq] == SET_BY_DEFAULT)
        k.seq = COMPARED_SEQ;
    if (k.seq > model_shape_longest(&shape))
        k.seq = model_shape_longest(&shape);
    return score_open(data, &k, l, e);
}

// Data that cannot be read is the user's to mend, not a reason to admit no format.
static int check_data(struct formats *f, int i, struct made *out, struct err *e) {
    const struct score_listener l = {.stop = stop_flag()};
    struct score data = {0};
    (void)i, (void)out;
    const int rc = open_data(f, &data, &l, e);
    score_close(&data);
    return rc;
}

static int compare_narrow(struct formats *f, int i, struct made *out, struct err *e) {
    const struct score_listener l = {.stop = stop_flag()};
    struct model_shape shape;
    struct score data = {0};
    struct likeness found;
    bool is_dir;
    (void)i;
    TRY(model_shape_open(&shape, f->base.model, &is_dir, e));
    out->bytes = 2 * (uint64_t)model_total_elements(&shape);
    if (!f->order.likeness || f->shape)
        return 0;
    int rc = open_data(f, &data, &l, e);
    if (rc == 0)
        rc = likeness_of_precision(&data, "bf16", &l, &found, e);
    score_close(&data);
    if (rc == 0)
        out->kl = found.kl.value, out->low = found.kl.low, out->high = found.kl.high;
    return rc;
}

// ---------------------------------------------------------------- the list

static int make(struct formats *f, int i, work_fn *work, struct err *e) {
    struct gen_format *x = &f->list[i];
    struct made m;
    const uint64_t begin = clock_ns();
    char line[128];
    snprintf(line, sizeof line, "making %s", x->name);
    log_live(&f->call->log, line);
    TRY(in_child(f, work, i, &m, e));
    x->seconds = 1e-9 * (double)(clock_ns() - begin);
    x->bytes = m.bytes;
    x->kl = m.kl, x->low = m.low, x->high = m.high;
    if (m.rc != 0)
        snprintf(x->refused, sizeof x->refused, "%s", m.reason);
    else if (x->kl > x->limit)
        snprintf(x->refused, sizeof x->refused,
                 "its divergence from the model as given is %.3g nats per token, over the limit of "
                 "%g",
                 x->kl, x->limit);
    return 0;
}

static int add(struct formats *f, const char *name, const char *flags, struct err *e) {
    struct gen_format *x = &f->list[f->n];
    *x = (struct gen_format){.kl = NAN, .low = NAN, .high = NAN};
    snprintf(x->name, sizeof x->name, "%s", name);
    snprintf(f->flags[f->n], sizeof f->flags[f->n], "%s", flags);
    x->limit = f->order.kl > 0 ? f->order.kl : strncmp(name, "int4", 4) == 0 ? KL_INT4 : KL_WIDE;
    struct knobs *k = &f->knobs[f->n++];
    *k = f->base;
    if (flags[0] == '\0')
        return strcmp(name, "bf16") == 0 ? knobs_set_at(k, KNOB_precision, "bf16", SET_BY_TUNER, e)
                                         : 0;
    char path[PATH_MAX], folder[STORAGE_TEXT_BYTES];
    snprintf(folder, sizeof folder, "%s", name);
    for (char *c = folder; *c; c++)
        *c = *c == ' ' ? '-' : *c;
    TRY(file_join(path, sizeof path, f->dir, folder, e));
    return knobs_set_at(k, KNOB_model, path, SET_BY_TUNER, e);
}

static int write_shape(struct formats *f, int i, struct made *out, struct err *e) {
    struct model_shape shape;
    bool is_dir;
    (void)i, (void)out;
    TRY(model_shape_open(&shape, f->base.model, &is_dir, e));
    return shape_folder_write(&shape, (uint64_t)f->base.seed, f->source, e);
}

// What is quantized, and what it is compared on.
static int prepare(struct formats *f, struct err *e) {
    struct made m = {0};
    if (f->shape) {
        uint64_t left = 0;
        struct model_shape shape;
        bool is_dir;
        TRY(model_shape_open(&shape, f->base.model, &is_dir, e));
        TRY(file_join(f->source, sizeof f->source, f->dir, "source", e));
        TRY(file_make_dirs(f->source, e));
        TRY(file_free_bytes(f->dir, &left, e));
        if (left < 4 * (uint64_t)model_total_elements(&shape))
            return err_set(e, ERR_IO,
                           "the disk of '%s' has no room for the weights of %s in float32; set "
                           "TMPDIR to a folder that has",
                           f->dir, shape.name);
        TRY(in_child(f, write_shape, 0, &m, e));
    } else {
        snprintf(f->source, sizeof f->source, "%s", f->given.model);
        if (!f->order.likeness)
            return 0;
        if (!f->order.data)
            TRY(file_join(f->own_text, sizeof f->own_text, f->dir, "own.jsonl", e));
        TRY(in_child(f, f->order.data ? check_data : write_own_text, 0, &m, e));
    }
    return m.rc == 0 ? 0 : err_set(e, m.rc, "%s", m.reason);
}

static uint64_t given_bytes(const struct knobs *k) {
    struct model_shape shape;
    bool is_dir;
    if (model_shape_open(&shape, k->model, &is_dir, NULL) != 0)
        return 0;
    return (k->precision == PRECISION_FP32 ? 4 : 2) * (uint64_t)model_total_elements(&shape);
}

static int fill(struct formats *f, struct err *e) {
    static const char *const NAMES[][2] = {{"int8", "--format int8"},
                                           {"int4 g32", "--format int4 --group 32"},
                                           {"int4 g128", "--format int4 --group 128"}};
    struct quantized stored = {0};
    struct model_shape shape;
    bool is_dir;
    TRY(add(f, "as given", "", e));
    f->list[0].bytes = given_bytes(&f->base);
    if (f->adapter) // its base alone would be compared and quantized
        return 0;
    TRY(model_shape_open(&shape, f->base.model, &is_dir, e));
    if (is_dir)
        TRY(quantized_read(&stored, f->base.model, &shape, e));
    const bool already = quantized_any(&stored);
    quantized_free(&stored);
    if (already) {
        f->list[0].bytes = 0;
        return 0;
    }
    TRY(prepare(f, e));
    if (f->base.precision == PRECISION_FP32) {
        TRY(add(f, "bf16", "", e));
        TRY(make(f, f->n - 1, compare_narrow, e));
    }
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        TRY(add(f, NAMES[i][0], NAMES[i][1], e));
        TRY(make(f, f->n - 1, quantize, e));
    }
    return 0;
}

int formats_open(struct formats *f, struct call *c, const struct knobs *k,
                 const struct formats_order *o, struct err *e) {
    char adapter[PATH_MAX];
    struct model_shape shape;
    bool is_dir = false;
    enum quantize_method method = QUANTIZE_RTN;
    *f = (struct formats){.call = c, .order = *o, .given = *k, .base = *k, .lock = -1};
    if (o->method)
        TRY(quantize_find_method(o->method, &method, e));
    f->looks = method != QUANTIZE_RTN;
    if (f->looks && !o->data)
        return err_set(e, ERR_USAGE,
                       "--method %s looks at text: give it with --data FILE, of the kind that the "
                       "model is for",
                       o->method);
    TRY(call_find_checkpoint(c, &f->base, false, e));
    TRY(call_find_adapter(&f->base, adapter, e));
    f->adapter = adapter[0] != '\0' || f->base.lora_from[0] != '\0';
    TRY(call_find_model(c, &f->base, e));
    TRY(model_shape_open(&shape, f->base.model, &is_dir, e));
    f->shape = !is_dir;
    if (o->context > model_shape_longest(&shape))
        return err_set(
            e, ERR_USAGE,
            "%lld tokens of prompt and text; %s has %lld positions; accepted: up to that",
            (long long)o->context, shape.name, (long long)model_shape_longest(&shape));
    TRY(file_make_locked_dir(f->dir, sizeof f->dir, "formats", &f->lock, e));
    return fill(f, e);
}

void formats_close(struct formats *f) {
    if (f->dir[0] == '\0')
        return;
    (void)file_remove_tree(f->dir, NULL);
    close(f->lock);
    f->dir[0] = '\0';
}
