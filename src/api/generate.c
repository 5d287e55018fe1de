// generate.c - haggle_generate: continues prompts, as text or as ids.
#include "api/talk.h"

#include "data/lines.h"
#include "report/plan_print.h"
#include "report/texts_print.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct prompts {
    struct text_job *jobs;
    int32_t **ids; // of each; the jobs point to them
    size_t *lengths;
    size_t n, capacity;
};

enum { PROMPTS_MOST = 65536 };

static void free_prompts(struct prompts *p) {
    for (size_t i = 0; i < p->n; i++) {
        free(p->ids[i]);
        if (p->jobs)
            text_job_free(&p->jobs[i]);
    }
    free(p->jobs);
    free(p->ids);
    free(p->lengths);
}

// ---------------------------------------------------------------- prompts

// Takes over ids.
static int add_prompt(struct talk *t, struct prompts *p, int32_t *ids, size_t n, struct err *e) {
    if (p->n == PROMPTS_MOST) {
        free(ids);
        return err_set(e, ERR_USAGE, "more than %d prompts", PROMPTS_MOST);
    }
    if (p->n == p->capacity) {
        const size_t wider = p->capacity ? 2 * p->capacity : 8;
        int32_t **moved = realloc(p->ids, wider * sizeof *moved);
        p->ids = moved ? moved : p->ids;
        size_t *lengths = moved ? realloc(p->lengths, wider * sizeof *lengths) : NULL;
        p->lengths = lengths ? lengths : p->lengths;
        if (!lengths) {
            free(ids);
            return err_set(e, ERR_MEMORY, "out of memory for %zu prompts", wider);
        }
        p->capacity = wider;
    }
    p->lengths[p->n] = n;
    p->ids[p->n++] = ids;
    return talk_check_ids(t, ids, n, e);
}

static int add_rendered(struct talk *t, struct prompts *p, const struct rendered *d,
                        struct err *e) {
    int32_t *ids;
    size_t n;
    TRY(speech_take(d, &ids, &n, e));
    return add_prompt(t, p, ids, n, e);
}

static int render(struct talk *t, const struct haggle_prompt *o, const char *text, size_t bytes,
                  struct rendered *d, struct err *e) {
    const char *system = o->system ? o->system : t->knobs.data_system;
    const struct render_turn turns[2] = {{"system", system, strlen(system)}, {"user", text, bytes}};
    if (!o->chat)
        return render_prompt(t->render, text, bytes, d, e);
    return system[0] ? render_ask(t->render, turns, 2, d, e)
                     : render_ask(t->render, turns + 1, 1, d, e);
}

static int add_text(struct talk *t, struct prompts *p, const struct haggle_prompt *o,
                    const char *text, size_t bytes, struct err *e) {
    struct rendered d = {0};
    int rc = render(t, o, text, bytes, &d, e);
    if (rc == 0)
        rc = add_rendered(t, p, &d, e);
    rendered_free(&d);
    return rc;
}

static bool ends_in(const char *path, const char *end) {
    const size_t n = strlen(path), k = strlen(end);
    return n > k && strcmp(path + n - k, end) == 0;
}

static int read_file(struct talk *t, struct prompts *p, const struct haggle_prompt *o,
                     struct err *e) {
    const bool records = ends_in(o->file, ".jsonl");
    struct lines *lines;
    const char *text;
    size_t bytes;
    uint64_t number;
    if (!records && !ends_in(o->file, ".txt"))
        return err_set(e, ERR_USAGE, "%s: accepted: a file of prompts that ends in .txt or .jsonl",
                       o->file);
    TRY(lines_open(&lines, o->file, e));
    int rc;
    while ((rc = lines_next(lines, &text, &bytes, &number, e)) == 0 && text) {
        struct rendered d = {0};
        if (bytes == 0)
            continue;
        rc = records ? render_ask_line(t->render, o->file, number, text, bytes, &d, e)
                     : render(t, o, text, bytes, &d, e);
        if (rc == 0)
            rc = add_rendered(t, p, &d, e);
        rendered_free(&d);
        if (rc != 0)
            break;
    }
    lines_close(lines);
    if (rc == 0 && p->n == 0)
        return err_set(e, ERR_USAGE, "%s holds no prompt", o->file);
    return rc;
}

static int read_prompts(struct talk *t, const struct haggle_prompt *o, struct prompts *p,
                        struct err *e) {
    if (o->ids) {
        if (o->n_ids == 0)
            return err_set(e, ERR_USAGE, "the prompt has no ids; at least one is needed");
        int32_t *ids = malloc(o->n_ids * sizeof *ids);
        if (!ids)
            return err_set(e, ERR_MEMORY, "out of memory for a prompt of %zu tokens", o->n_ids);
        memcpy(ids, o->ids, o->n_ids * sizeof *ids);
        return add_prompt(t, p, ids, o->n_ids, e);
    }
    if (o->chat)
        TRY(talk_check_chat(t, e));
    if (o->file)
        TRY(read_file(t, p, o, e));
    for (size_t i = 0; i < o->n_texts; i++)
        TRY(add_text(t, p, o, o->texts[i], strlen(o->texts[i]), e));
    if (o->text || p->n == 0) {
        if (o->chat && !o->text)
            return err_set(e, ERR_USAGE, "a chat needs what the user says; accepted: a prompt");
        TRY(add_text(t, p, o, o->text ? o->text : "", o->text ? strlen(o->text) : 0, e));
    }
    return 0;
}

// ---------------------------------------------------------------- sizes

static int size_of(const struct talk *t, const struct haggle_prompt *o, const struct prompts *p,
                   struct talk_size *out, struct err *e) {
    const int64_t longest = model_shape_longest(&t->shape);
    const int64_t n = (int64_t)p->n;
    *out = (struct talk_size){
        .batch = o->batch > 0     ? o->batch
                 : n < TALK_BATCH ? n
                                  : TALK_BATCH,
        .most = o->tokens > 0 ? o->tokens : t->knobs.generate_tokens,
        .chunk = o->chunk > 0 ? o->chunk : TALK_CHUNK,
        .jobs = p->n,
        .stops = o->stops,
        .n_stops = o->n_stops,
    };
    for (size_t i = 0; i < p->n; i++)
        if ((int64_t)p->lengths[i] > out->prompt)
            out->prompt = (int64_t)p->lengths[i];
    if (out->most == 0)
        return err_set(e, ERR_USAGE, "generate.tokens=0 makes no text; accepted: 1 or more");
    const int64_t needed = out->prompt + out->most;
    out->context = o->context > 0 ? o->context : needed < longest ? needed : longest;
    if (out->batch > n)
        out->batch = n;
    // A turn of prompts is no longer than all prompts.
    if (out->chunk > out->prompt * out->batch)
        out->chunk = out->prompt * out->batch;
    if (out->context > longest)
        return err_set(e, ERR_USAGE, "--context %lld: %s has %lld positions; accepted: up to that",
                       (long long)out->context, t->shape.name, (long long)longest);
    if (out->context < out->prompt)
        return err_set(e, ERR_USAGE,
                       "--context %lld: the longest prompt has %lld tokens; accepted: at least "
                       "that",
                       (long long)out->context, (long long)out->prompt);
    return 0;
}

// ---------------------------------------------------------------- output

struct listener {
    struct call *call;
    const struct haggle_prompt *prompt;
    const struct text_job *jobs;
    bool streams, terminal;
};

static int on_text(void *arg, const struct text_job *j, const char *text, size_t bytes,
                   struct err *e) {
    const struct listener *l = arg;
    (void)e;
    if (l->streams && bytes > 0) {
        speaker_print(text, bytes, l->terminal, l->call->out);
        fflush(l->call->out);
    }
    if (l->prompt->said && bytes > 0 &&
        l->prompt->said(l->prompt->said_arg, (size_t)(j - l->jobs), text, bytes) != 0)
        return DECODER_STOP;
    return *stop_flag() ? DECODER_STOP : 0;
}

static void print(const struct listener *l, const struct prompts *p) {
    FILE *f = l->call->out;
    if (!f)
        return;
    const struct text_job *only = &p->jobs[0];
    if (l->streams && only->text) { // it is there already
        if (only->bytes == 0 || only->text[only->bytes - 1] != '\n')
            fputc('\n', f);
        return;
    }
    for (size_t i = 0; i < p->n; i++) {
        if (p->n > 1)
            fprintf(f, "%s# %zu\n", i ? "\n" : "", i + 1);
        sample_print(&p->jobs[i], l->terminal, f);
    }
}

static double seconds_of(const struct text_job *j) {
    return 1e-9 * (double)(j->end_ns - j->begin_ns);
}

static void put_text(const struct text_job *j, struct json_writer *w) {
    json_member_i64(w, "prompt_tokens", j->n);
    sample_put_json(j, w);
    json_member_string(w, "ended", text_job_end(j));
    json_member_double(w, "seconds", seconds_of(j));
}

static void put_json(struct talk *t, const struct talk_size *size, const struct prompts *p) {
    struct json_writer *w = &t->call->json;
    if (!call_json_begin(t->call, "generate", &t->plan.knobs))
        return;
    plan_put_model_json(&t->plan, w);
    put_text(&p->jobs[0], w); // of the first prompt, which is most often the only one
    json_member_double(w, "tokens_per_s", (double)p->jobs[0].n_ids / seconds_of(&p->jobs[0]));
    json_member_array(w, "texts");
    for (size_t i = 0; i < p->n; i++) {
        json_put_object_begin(w);
        put_text(&p->jobs[i], w);
        json_put_object_end(w);
    }
    json_put_array_end(w);
    texts_put_times(texts_times(t->texts), w);
    json_member_i64(w, "batch", size->batch);
    json_member_i64(w, "context", size->context);
    json_member_i64(w, "chunk", size->chunk);
    json_member_i64(w, "memory_planned_bytes", (int64_t)plan_total_bytes(&t->plan));
    json_member_i64(w, "text_bytes", (int64_t)t->plan.host.texts);
    json_put_object_end(w);
}

// ---------------------------------------------------------------- the verb

static int make(struct talk *t, const struct haggle_prompt *o, struct prompts *p, struct err *e) {
    struct call *c = t->call;
    struct talk_size size;
    TRY(size_of(t, o, p, &size, e));
    p->jobs = calloc(p->n, sizeof *p->jobs);
    if (!p->jobs)
        return err_set(e, ERR_MEMORY, "out of memory for %zu prompts", p->n);
    for (size_t i = 0; i < p->n; i++) {
        p->jobs[i] = talk_job(t, p->ids[i], p->lengths[i], size.most, i);
        p->jobs[i].whole = !o->chat && !o->ids && !(o->file && ends_in(o->file, ".jsonl"));
        p->jobs[i].apart = !p->jobs[i].whole;
    }
    TRY(talk_start(t, &size, e));
    const bool text = t->speech.tokenizer && !tokenizer_is_ids(t->speech.tokenizer);
    struct listener l = {.call = c,
                         .prompt = o,
                         .jobs = p->jobs,
                         .streams = c->out && text && p->n == 1,
                         .terminal = c->out && isatty(fileno(c->out))};
    TRY(texts_make(t->texts, p->jobs, p->n, on_text, &l, e));
    print(&l, p);
    if (c->out)
        fflush(c->out);
    texts_say_times(texts_times(t->texts), &c->log);
    put_json(t, &size, p);
    return 0;
}

// With ids no tokenizer is needed, so a model without a readable one works too.
static int generate(struct call *c, const struct knobs *k, const struct haggle_prompt *o,
                    struct err *e) {
    struct talk t;
    struct prompts p = {0};
    const enum talk_about about = o->ids ? TALK_IDS : o->chat || o->file ? TALK_CHAT : TALK_TEXT;
    int rc = talk_open(&t, c, k, o->best, about, e);
    if (rc == 0)
        rc = read_prompts(&t, o, &p, e);
    if (rc == 0 && !t.from_folder && !t.adapter[0])
        log_put(&c->log, LOG_WARN, "%s is a shape, not a trained model: its weights are random",
                t.knobs.model);
    if (rc == 0)
        rc = make(&t, o, &p, e);
    talk_close(&t);
    free_prompts(&p);
    return rc;
}

int haggle_generate(const struct haggle_config *config, const struct haggle_prompt *p,
                    const struct haggle_sink *sink, struct haggle_error *e) {
    struct call c;
    call_begin(&c, sink);
    return call_end(&c, generate(&c, &config->knobs, p, &c.err), e);
}
