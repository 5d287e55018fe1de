// tune_gen.c - haggle_tune with the goal "generate": makes the formats, runs the search, writes the
// recipe and the page, and says which commands pin the choice.
#include "api/formats.h"

#include "base/file.h"
#include "base/text.h"
#include "report/gen_print.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPT_DEFAULT = 128, OUTPUT_DEFAULT = 64, CHUNK_DEFAULT = 512, BATCH_DEFAULT = 8 };
enum { COMMANDS_BYTES = 4096, NAME_BYTES = 1024 };

struct tuner {
    struct call *call;
    const struct haggle_tune *o;
    struct knobs given;
    struct formats formats;
    struct gen_desk desk;
    struct gen gen;
    struct machine machine;
    char machine_text[256], likeness[512], commands[COMMANDS_BYTES];
    const char *saved_as, *report_as;
};

// ---------------------------------------------------------------- the request

static int read_limit(const char *flag, const char *text, uint64_t *out, struct err *e) {
    if (!text)
        return 0;
    TRY(text_parse_duration_ns(text, out, e) != 0 ? err_context(e, "--%s", flag) : 0);
    return *out > 0
               ? 0
               : err_set(e, ERR_USAGE, "--%s=%s; accepted: a time above 0, as 80ms", flag, text);
}

// What belongs to the other goals would have no effect here.
static int refuse_of_training(const struct haggle_tune *o, struct err *e) {
    const char *flag = o->p50               ? "p50"
                       : o->p95             ? "p95"
                       : o->p99             ? "p99"
                       : o->respond         ? "respond"
                       : o->allow           ? "allow"
                       : o->energy          ? "energy"
                       : o->tokens_per_step ? "tokens-per-step"
                                            : NULL;
    if (flag)
        return err_set(e, ERR_USAGE,
                       "--%s with goal generate; accepted: --ttft and --itl (with --p), --memory, "
                       "--kl",
                       flag);
    if (o->store && strcmp(o->store, "none") != 0)
        return err_set(e, ERR_USAGE,
                       "--store=%s with goal generate, whose trials are not recorded; accepted: "
                       "without --store",
                       o->store);
    if (o->busy && strcmp(o->busy, "repeat") != 0 && strcmp(o->busy, "count") != 0)
        return err_set(e, ERR_USAGE, "--busy=%s; accepted: repeat, count", o->busy);
    return 0;
}

static int read_number(const char *flag, const char *text, double least, double most, double *out,
                       struct err *e) {
    if (!text)
        return 0;
    TRY(text_parse_double(text, out, e) != 0 ? err_context(e, "--%s", flag) : 0);
    return *out >= least && *out <= most
               ? 0
               : err_set(e, ERR_USAGE, "--%s=%s; accepted: %g to %g", flag, text, least, most);
}

static void put_value(struct gen_space *s, enum gen_dimension d, int64_t value, bool given) {
    for (int i = 0; i < s->n[d]; i++)
        if (s->values[d][i] == value) {
            s->given[d] = given ? i : s->given[d];
            return;
        }
    if (s->n[d] == GEN_VALUES_MOST)
        return;
    int at = s->n[d]++;
    for (; at > 0 && s->values[d][at - 1] > value; at--)
        s->values[d][at] = s->values[d][at - 1];
    if (!given && s->n[d] > 1 && at <= s->given[d])
        s->given[d]++;
    s->values[d][at] = value;
    s->given[d] = given ? at : s->given[d];
}

static void fill_space(const struct tuner *t, struct gen_request *r) {
    struct gen_space *s = &r->space;
    const bool limited = r->limit_ns[GEN_FIRST] > 0 || r->limit_ns[GEN_BETWEEN] > 0;
    const int cpus = t->machine.hw.usable_cpus;
    const int64_t batch = t->o->batch > 0 ? t->o->batch : limited ? BATCH_DEFAULT : 1;
    put_value(s, GEN_BATCH, batch, true);
    for (int64_t b = 1; t->o->batch == 0 && limited && b <= 64; b *= 2)
        put_value(s, GEN_BATCH, b, false);
    const int64_t most = r->prompt * s->values[GEN_BATCH][s->n[GEN_BATCH] - 1];
    put_value(s, GEN_CHUNK, CHUNK_DEFAULT > batch ? CHUNK_DEFAULT : batch, true);
    for (int64_t c = 16; c <= 2048; c *= 2)
        if (c / 2 < most && (c == 16 || c > s->values[GEN_BATCH][0]))
            put_value(s, GEN_CHUNK, c, false);
    // On a device the host's threads only feed it.
    put_value(s, GEN_THREADS, t->given.threads > 0 ? t->given.threads : cpus, true);
    for (int n = 1; !plan_wants_device(&t->given) && n <= cpus; n *= 2)
        put_value(s, GEN_THREADS, n, false);
    if (!plan_wants_device(&t->given))
        put_value(s, GEN_THREADS, cpus, false);
}

static int read_request(struct tuner *t, struct gen_request *r, struct err *e) {
    const struct haggle_tune *o = t->o;
    double p = 95;
    *r = (struct gen_request){.prompt = o->prompt_tokens > 0 ? o->prompt_tokens : PROMPT_DEFAULT,
                              .output = o->output_tokens > 0 ? o->output_tokens : OUTPUT_DEFAULT,
                              .time_ns = 180000000000,
                              .count_busy = o->busy && strcmp(o->busy, "count") == 0};
    TRY(refuse_of_training(o, e));
    TRY(read_limit("ttft", o->ttft, &r->limit_ns[GEN_FIRST], e));
    TRY(read_limit("itl", o->itl, &r->limit_ns[GEN_BETWEEN], e));
    TRY(read_limit("time", o->time, &r->time_ns, e));
    TRY(read_number("p", o->p, 1, 99.9, &p, e));
    if (o->p && !o->ttft && !o->itl)
        return err_set(e, ERR_USAGE, "--p=%s bounds nothing; accepted: with --ttft or --itl", o->p);
    r->p = p / 100;
    TRY(tune_check_outputs(o, false, e));
    fill_space(t, r);
    return 0;
}

// ---------------------------------------------------------------- progress

static void on_visit(void *arg, const struct gen *g, int i) {
    struct tuner *t = arg;
    const struct gen_setting *s = &g->settings[i];
    char line[TUNE_NAME_BYTES + 128];
    if (s->outcome == TUNE_FAILED)
        snprintf(line, sizeof line, "trial %d: %s failed", g->trials, s->name);
    else
        snprintf(line, sizeof line, "trial %d: %s, %.1f tokens/s", g->trials, s->name,
                 gen_tokens_per_s(s));
    log_live(&t->call->log, line);
}

// ---------------------------------------------------------------- what is said

static void say_likeness(struct tuner *t) {
    const struct formats *f = &t->formats;
    char *out = t->likeness;
    const size_t room = sizeof t->likeness;
    if (f->adapter)
        snprintf(
            out, room,
            "The model is an adapter, so no other format was tried: merge it first with haggle "
            "export --merge.");
    else if (f->n == 1)
        snprintf(out, room, "The model is quantized already, so no other format was tried.");
    else if (f->shape)
        snprintf(out, room,
                 "%.200s is a shape with random weights: a divergence means nothing, and formats "
                 "are a question of speed only.",
                 t->given.model);
    else if (f->own_text[0])
        snprintf(out, room,
                 "Formats were compared on text that the model made itself (--data FILE compares "
                 "on yours).");
    else
        snprintf(out, room, "Formats were compared on %.200s.", t->o->data);
}

// A word of a command. Returns out.
static const char *quoted(const char *text, char out[NAME_BYTES]) {
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-+:@,=";
    size_t n = 0;
    if (text[0] && text[strspn(text, plain)] == '\0') {
        snprintf(out, NAME_BYTES, "%s", text);
        return out;
    }
    out[n++] = '\'';
    for (; *text && n + 6 < NAME_BYTES; text++) {
        if (*text == '\'')
            n += (size_t)snprintf(out + n, NAME_BYTES - n, "'\\''");
        else
            out[n++] = *text;
    }
    out[n++] = '\'';
    out[n] = '\0';
    return out;
}

// The model of the choice: as named, or the folder that haggle quantize is told to write.
static void name_model(const struct tuner *t, char out[KNOB_STRING_BYTES]) {
    const struct gen_setting *s = &t->gen.settings[t->gen.chosen];
    const char *model = t->formats.shape ? "FOLDER" : t->given.model;
    size_t n = strlen(model);
    while (n > 1 && model[n - 1] == '/')
        n--;
    if (t->formats.flags[s->point.format][0] == '\0') {
        snprintf(out, KNOB_STRING_BYTES, "%s", t->given.model);
        return;
    }
    snprintf(out, KNOB_STRING_BYTES, "%.*s-%s", (int)(n < 900 ? n : 900), model,
             t->formats.list[s->point.format].name);
    for (char *c = out + n; *c; c++)
        *c = *c == ' ' ? '-' : *c;
}

static void write_commands(struct tuner *t) {
    const struct gen_setting *s = &t->gen.settings[t->gen.chosen];
    const struct gen_point *p = &s->point;
    const struct formats *f = &t->formats;
    char model[KNOB_STRING_BYTES], a[NAME_BYTES], b[NAME_BYTES], data[NAME_BYTES];
    size_t n = 0;
    name_model(t, model);
#define PUT(...)                                                                                   \
    do {                                                                                           \
        if (n < COMMANDS_BYTES)                                                                    \
            n += (size_t)snprintf(t->commands + n, COMMANDS_BYTES - n, __VA_ARGS__);               \
    } while (0)
    if (f->flags[p->format][0] && f->shape)
        PUT("# FOLDER: a trained model of the shape %s\n", t->given.model);
    if (f->flags[p->format][0])
        PUT("haggle quantize %s %s %s", quoted(f->shape ? "FOLDER" : t->given.model, a),
            quoted(model, b), f->flags[p->format]);
    if (f->flags[p->format][0] && f->looks)
        PUT(" --method %s --data %s", t->o->method, quoted(t->o->data, data));
    if (f->flags[p->format][0])
        PUT("\n");
    PUT("haggle generate %s", quoted(model, a));
    if (f->knobs[p->format].precision != PRECISION_FP32)
        PUT(" precision=%s", knob_choice(KNOB_precision, (int)f->knobs[p->format].precision));
    if (t->given.device != DEVICE_AUTO)
        PUT(" device=%s", knob_choice(KNOB_device, (int)t->given.device));
    PUT(" threads=%d --batch %lld --chunk %lld --tokens %lld", p->threads, (long long)p->batch,
        (long long)p->chunk, (long long)t->gen.request.output);
    PUT(p->batch == 1 ? " --prompt TEXT\n" : " --prompts FILE\n");
#undef PUT
}

// The knobs of the choice, with the commands above them: batch and chunk are flags of generate.
static int save_choice(struct tuner *t, struct err *e) {
    const struct gen_setting *s = &t->gen.settings[t->gen.chosen];
    struct knobs k = t->given;
    char model[KNOB_STRING_BYTES], threads[16];
    char *recipe = NULL, *text = NULL;
    size_t bytes = 0;
    name_model(t, model);
    snprintf(threads, sizeof threads, "%d", s->point.threads);
    TRY(knobs_set_at(&k, KNOB_model, model, SET_BY_TUNER, e));
    TRY(knobs_set_at(&k, KNOB_threads, threads, SET_BY_TUNER, e));
    TRY(knobs_set_at(&k, KNOB_precision,
                     knob_choice(KNOB_precision, (int)t->formats.knobs[s->point.format].precision),
                     SET_BY_TUNER, e));
    if (k.by[KNOB_run_dir] == SET_BY_DEFAULT)
        k.run_dir[0] = '\0';
    FILE *f = open_memstream(&text, &bytes);
    recipe = knobs_recipe_text(&k);
    if (f && recipe) {
        fputs("# Chosen by haggle tune --goal generate. To use it:\n", f);
        for (const char *line = t->commands; *line;) {
            const size_t n = strcspn(line, "\n");
            fprintf(f, "#   %.*s\n", (int)n, line);
            line += n + (line[n] == '\n');
        }
        fputs("# The last one also takes this file in place of the model.\n", f);
        fputs(recipe, f);
    }
    const bool whole = f && fclose(f) == 0 && recipe;
    const int rc = whole ? file_write_atomic(t->o->recipe, text, bytes, e)
                         : err_set(e, ERR_MEMORY, "out of memory for the recipe");
    free(recipe);
    free(text);
    if (rc == 0)
        t->saved_as = t->o->recipe;
    return rc;
}

static struct gen_facts facts_of(const struct tuner *t) {
    return (struct gen_facts){.model = t->given.model,
                              .machine = t->machine_text,
                              .likeness = t->likeness,
                              .commands = t->commands[0] ? t->commands : NULL,
                              .saved_as = t->saved_as,
                              .report_as = t->report_as,
                              .memory_budget = t->given.memory};
}

// ---------------------------------------------------------------- the verb

static int deliver(struct tuner *t, int rc, struct err *e) {
    struct call *c = t->call;
    const bool decided = rc == 0 && t->gen.chosen >= 0 && t->gen.why != TUNE_WHY_TOO_BUSY;
    struct err late = {0};
    log_live_end(&c->log);
    say_likeness(t);
    if (decided) {
        write_commands(t);
        if (t->o->recipe)
            rc = save_choice(t, e);
    } else if (rc == 0 && t->gen.chosen >= 0)
        rc = err_set(e, ERR_BUSY,
                     "the machine was too busy to tell which setting is better; nothing was "
                     "written");
    else if (rc == 0)
        rc = err_set(e, t->gen.why_rc != 0 ? t->gen.why_rc : ERR_MEMORY, "nothing was chosen: %s",
                     t->gen.why_none);
    struct gen_facts f = facts_of(t);
    if (t->o->report && (decided || !file_exists(t->o->report))) {
        if (gen_page_write(&t->gen, &f, t->o->report, &late) == 0)
            t->report_as = t->o->report;
        else
            log_put(&c->log, LOG_WARN, "no report: %s", late.text);
    }
    f = facts_of(t);
    if (c->out)
        TRY(gen_print(&t->gen, &f, (enum table_format)t->o->format, c->out, rc == 0 ? e : NULL));
    if (call_json_begin(c, "tune", &t->given)) {
        machine_put_json(&t->machine, &c->json);
        gen_put_json(&t->gen, &f, &c->json);
        if (rc != 0)
            call_json_error(&c->json, rc, e->text);
        json_put_object_end(&c->json);
    }
    return rc;
}

static int search(struct tuner *t, struct gen_request *r, double kl, struct err *e) {
    const struct formats_order order = {.data = t->o->data,
                                        .kl = kl,
                                        .method = t->o->method,
                                        .likeness = true,
                                        .context = r->prompt + r->output};
    TRY(formats_open(&t->formats, t->call, &t->given, &order, e));
    r->formats = t->formats.list;
    r->space.n[GEN_FORMAT] = t->formats.n;
    t->desk = (struct gen_desk){.prompt = r->prompt,
                                .output = r->output,
                                .seed = (uint64_t)t->given.seed,
                                .stop = stop_flag(),
                                .on_visit = on_visit,
                                .on_visit_arg = t};
    memcpy(t->desk.knobs, t->formats.knobs, sizeof t->desk.knobs);
    log_put(&t->call->log, LOG_INFO, "%d formats; measuring for %.0f s", t->formats.n,
            1e-9 * (double)r->time_ns);
    const struct gen_lab lab = gen_lab_of(&t->desk);
    const int rc = gen_run(&t->gen, r, &lab, e);
    return rc == ERR_STOPPED ? rc : deliver(t, rc, e);
}

int tune_generate(struct call *c, const struct haggle_config *config, const struct haggle_tune *o,
                  struct err *e) {
    struct gen_request r;
    char memory[TEXT_UNIT_BYTES];
    double kl = 0;
    struct tuner *t = calloc(1, sizeof *t);
    if (!t)
        return err_set(e, ERR_MEMORY, "out of memory for a search");
    t->call = c;
    t->o = o;
    t->given = config->knobs;
    int rc = machine_open(&t->machine, &t->given, MACHINE_KNOWN, e);
    snprintf(t->machine_text, sizeof t->machine_text, "%s, %d CPUs, %s%s", t->machine.hw.cpu,
             t->machine.hw.usable_cpus, text_bytes(memory, t->machine.hw.memory_bytes),
             plan_wants_device(&t->given) ? "; a GPU computes" : "");
    if (rc == 0)
        rc = read_request(t, &r, e);
    if (rc == 0)
        rc = read_number("kl", o->kl, 1e-9, 1e6, &kl, e);
    if (rc == 0)
        rc = search(t, &r, kl, e);
    formats_close(&t->formats);
    gen_free(&t->gen);
    free(t);
    return rc;
}
