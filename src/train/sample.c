// sample.c - see sample.h.
#include "train/sample.h"

#include "base/clock.h"
#include "data/dataset.h"
#include "model/shape.h"
#include "train/source.h"

#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------- between ids and text

int speech_open(struct speech *s, const struct knobs *k, struct err *e) {
    struct knobs own = *k;
    char dir[PATH_MAX];
    struct model_shape shape;
    bool from_folder;
    *s = (struct speech){0};
    TRY(source_tokenizer(&own, dir, e));
    TRY(model_shape_open(&shape, k->model, &from_folder, e));
    return dataset_open_renderer(&s->tokenizer, &s->renderer, &own, dir[0] ? dir : NULL,
                                 shape.vocab, e);
}

void speech_close(struct speech *s) {
    if (s->renderer)
        renderer_close(s->renderer);
    tokenizer_close(s->tokenizer);
    *s = (struct speech){0};
}

int speech_prompt(const struct speech *s, const char *text, int32_t **ids, size_t *n,
                  struct err *e) {
    struct render_context *c;
    struct rendered d = {0};
    *ids = NULL;
    TRY(render_context_open(&c, s->renderer, e));
    int rc = render_prompt(c, text ? text : "", text ? strlen(text) : 0, &d, e);
    if (rc == 0)
        rc = speech_take(&d, ids, n, e);
    rendered_free(&d);
    render_context_close(c);
    return rc;
}

int speech_take(const struct rendered *d, int32_t **ids, size_t *n, struct err *e) {
    *ids = malloc(d->tokens.n * sizeof **ids + 1);
    if (!*ids)
        return err_set(e, ERR_MEMORY, "out of memory for a prompt of %zu tokens", d->tokens.n);
    memcpy(*ids, d->tokens.ids, d->tokens.n * sizeof **ids);
    *n = d->tokens.n;
    return 0;
}

static void add_end(int32_t ends[DECODER_ENDS_MOST], int *n, int64_t id) {
    for (int i = 0; i < *n; i++)
        if (ends[i] == id)
            return;
    if (id >= 0 && *n < DECODER_ENDS_MOST)
        ends[(*n)++] = (int32_t)id;
}

int speech_ends(const struct speech *s, const struct model_shape *shape,
                int32_t out[DECODER_ENDS_MOST]) {
    int32_t named[RENDER_ENDS_MOST];
    const int n_named = s->renderer ? renderer_ends(s->renderer, named) : 0;
    int n = 0;
    add_end(out, &n, shape->eos_id);
    for (int i = 0; i < n_named; i++)
        add_end(out, &n, named[i]);
    return n;
}

// ---------------------------------------------------------------- a sample

struct making {
    double budget_s;
    uint64_t begin_ns;
};

static int look_at_clock(void *arg, const struct text_job *j, const char *text, size_t bytes,
                         struct err *e) {
    const struct making *m = arg;
    (void)j, (void)text, (void)bytes, (void)e;
    return 1e-9 * (double)(clock_ns() - m->begin_ns) > m->budget_s ? DECODER_STOP : 0;
}

static struct texts_options sample_options(const struct speech *s, int64_t tokens, int64_t prompt) {
    return (struct texts_options){
        .tokenizer = s ? s->tokenizer : NULL, .most = tokens, .prompt = prompt, .times = 1};
}

uint64_t sample_plan_bytes(const struct plan *p, int64_t tokens) {
    const struct texts_options o = sample_options(NULL, tokens, 1);
    return tokens > 0 ? texts_bytes(p, &o, 1) : 0;
}

int sample_make(struct sample *out, struct session *s, const struct speech *speech,
                const int32_t *prompt, size_t n, int64_t tokens, double budget_s, struct err *e) {
    const struct texts_options o = sample_options(speech, tokens, (int64_t)n);
    struct texts *t = NULL;
    *out = (struct sample){.job = {.prompt = prompt,
                                   .n = (int64_t)n,
                                   .most = tokens,
                                   .how = sampling_of(&s->plan->knobs)}};
    if (tokens == 0)
        return 0;
    out->job.n_ends = speech_ends(speech, &s->plan->shape, out->job.ends);
    struct making m = {budget_s, clock_ns()};
    int rc = texts_open(&t, s, &o, e);
    if (rc == 0)
        rc = texts_make(t, &out->job, 1, look_at_clock, &m, e);
    texts_close(t);
    out->job.prompt = NULL;
    return rc;
}

void sample_free(struct sample *s) {
    text_job_free(&s->job);
    *s = (struct sample){0};
}

void sample_print(const struct text_job *j, bool terminal, FILE *f) {
    if (j->text)
        speaker_print(j->text, j->bytes, terminal, f);
    for (int64_t i = 0; !j->text && i < j->n_ids; i++)
        fprintf(f, "%s%d", i > 0 ? "," : "", j->ids[i]);
    if (!j->text || j->bytes == 0 || j->text[j->bytes - 1] != '\n')
        fputc('\n', f);
}

void sample_put_json(const struct text_job *j, struct json_writer *w) {
    json_member_array(w, "ids");
    for (int64_t i = 0; i < j->n_ids; i++)
        json_put_i64(w, j->ids[i]);
    json_put_array_end(w);
    if (!j->text)
        return;
    json_put_key(w, "text");
    json_put_string_n(w, j->text, j->bytes);
}
