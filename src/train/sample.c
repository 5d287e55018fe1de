// sample.c - see sample.h.
#include "train/sample.h"

#include "base/clock.h"
#include "base/utf8.h"
#include "data/dataset.h"
#include "infer/decoder.h"
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

// The prompt is rendered as a document, without the end-of-text token. If the model's documents
// begin with no special token (GPT-2), an empty prompt is the end-of-text token alone, as after the
// end of another document.
int speech_prompt(const struct speech *s, const char *text, int32_t **ids, size_t *n,
                  struct err *e) {
    struct render_context *c;
    struct rendered d = {0};
    *ids = NULL;
    TRY(render_context_open(&c, s->renderer, e));
    int rc = render_text(c, text ? text : "", text ? strlen(text) : 0, &d, e);
    if (rc == 0 && d.tokens.n > 1 &&
        d.tokens.ids[d.tokens.n - 1] == renderer_end_of_text(s->renderer))
        d.tokens.n--;
    if (rc == 0 && d.tokens.n == 0)
        rc = err_set(e, ERR_USAGE, "the prompt is empty, and the model has no token to begin with");
    if (rc == 0 && !(*ids = malloc(d.tokens.n * sizeof **ids)))
        rc = err_set(e, ERR_MEMORY, "out of memory for a prompt of %zu tokens", d.tokens.n);
    if (rc == 0) {
        memcpy(*ids, d.tokens.ids, d.tokens.n * sizeof **ids);
        *n = d.tokens.n;
    }
    rendered_free(&d);
    render_context_close(c);
    return rc;
}

// ---------------------------------------------------------------- a sample

struct making {
    struct sample *out;
    int64_t capacity;
    double budget_s;
    uint64_t begin_ns;
};

static int take_token(void *arg, void *tag, int32_t id, enum decoder_end end, struct err *e) {
    struct making *m = arg;
    (void)tag;
    (void)e;
    if (id >= 0 && m->out->length < m->capacity)
        m->out->ids[m->out->length++] = id;
    m->out->ended |= end == DECODER_ENDED;
    m->out->seconds = 1e-9 * (double)(clock_ns() - m->begin_ns);
    return m->budget_s > 0 && m->out->seconds > m->budget_s ? DECODER_STOP : 0;
}

int sample_make(struct sample *out, struct session *s, const int32_t *prompt, size_t n,
                int64_t tokens, int32_t end, double budget_s, struct err *e) {
    const int64_t capacity = (int64_t)n + tokens;
    const struct knobs *k = &s->plan->knobs;
    struct decoder *d = NULL;
    *out = (struct sample){.ids = calloc((size_t)capacity + 1, sizeof *out->ids)};
    if (!out->ids)
        return err_set(e, ERR_MEMORY, "out of memory for %lld tokens", (long long)capacity);
    memcpy(out->ids, prompt, n * sizeof *prompt);
    out->length = out->prompt = (int64_t)n;
    struct decoder_request r = {
        .prompt = prompt, .n = (int64_t)n, .most = tokens, .how = sampling_of(k)};
    if (s->plan->shape.eos_id >= 0)
        r.ends[r.n_ends++] = (int32_t)s->plan->shape.eos_id;
    if (end >= 0)
        r.ends[r.n_ends++] = end;
    struct making m = {out, capacity, budget_s, clock_ns()};
    int rc = tokens > 0 ? decoder_open(&d, s, 1, e) : 0;
    if (rc == 0 && d)
        rc = decoder_add(d, &r, e);
    while (rc == 0 && d && decoder_busy(d))
        rc = decoder_turn(d, take_token, &m, e);
    decoder_close(d);
    return rc;
}

// A model's embedding may have more rows than its tokenizer has tokens. A half-trained model may
// choose such an id. It has no text, so it is left out.
int sample_spell(struct sample *s, const struct tokenizer *t, size_t from, struct err *e) {
    if (tokenizer_is_ids(t))
        return 0;
    size_t capacity = 0, n = 0;
    unsigned flags = 0;
    int32_t *known = malloc((size_t)s->length * sizeof *known + 1);
    if (!known)
        return err_set(e, ERR_MEMORY, "out of memory for a sample");
    for (int64_t i = (int64_t)from; i < s->length; i++)
        if (s->ids[i] >= 0 && tokenizer_has(t, s->ids[i]))
            known[n++] = s->ids[i];
    for (size_t i = 0; i < from; i++) // begin tokens are no text that is continued
        if (!tokenizer_is_special(t, s->ids[i]))
            flags = TOKENIZER_CONTINUES;
    s->text_bytes = 0;
    int rc = tokenizer_decode(t, known, n, flags, &s->text, &s->text_bytes, &capacity, e);
    free(known);
    // Tokens may end, or be cut off, inside a character.
    char *valid = rc == 0 ? malloc(3 * s->text_bytes + 1) : NULL;
    if (rc == 0 && !valid)
        rc = err_set(e, ERR_MEMORY, "out of memory for a sample");
    if (valid) {
        s->text_bytes = utf8_repair(s->text, s->text_bytes, valid);
        free(s->text);
        s->text = valid;
    }
    return rc;
}

void sample_free(struct sample *s) {
    free(s->ids);
    free(s->text);
    *s = (struct sample){0};
}

// A half-trained model may produce control characters, which must not reach a terminal.
static void print_text(const uint8_t *p, size_t n, FILE *f) {
    unsigned bytes;
    for (const uint8_t *end = p + n; p < end; p += bytes) {
        const uint32_t c = utf8_decode(p, end, &bytes);
        if (c == '\n' || c == '\t' || (c >= 0x20 && c != 0x7f && !(c >= 0x80 && c < 0xa0)))
            fwrite(p, 1, bytes, f);
        else
            fprintf(f, "\\x%02x", (unsigned)c);
    }
}

void sample_print(const struct sample *s, FILE *f) {
    if (s->text)
        print_text((const uint8_t *)s->text, s->text_bytes, f);
    for (int64_t i = s->prompt; !s->text && i < s->length; i++)
        fprintf(f, "%s%d", i > s->prompt ? "," : "", s->ids[i]);
    if (!s->text || s->text_bytes == 0 || s->text[s->text_bytes - 1] != '\n')
        fputc('\n', f);
}

void sample_put_json(const struct sample *s, struct json_writer *w) {
    json_member_array(w, "ids");
    for (int64_t i = s->prompt; i < s->length; i++)
        json_put_i64(w, s->ids[i]);
    json_put_array_end(w);
    if (!s->text)
        return;
    json_put_key(w, "text");
    json_put_string_n(w, s->text, s->text_bytes);
}
