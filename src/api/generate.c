// generate.c - haggle_generate: continues a prompt greedily, as text or as ids.
#include "api/api.h"

#include "engine/engine.h"
#include "report/plan_print.h"
#include "train/adapted.h"
#include "train/sample.h"

#include <stdlib.h>
#include <string.h>

// The prompt as ids, in memory that the caller frees.
static int read_prompt(const struct haggle_prompt *p, const struct speech *speech,
                       const struct model_shape *shape, int32_t **out, size_t *count,
                       struct err *e) {
    if (!p->ids)
        TRY(speech_prompt(speech, p->text, out, count, e));
    if (p->ids && p->n_ids == 0)
        return err_set(e, ERR_USAGE, "the prompt has no ids; at least one is needed");
    if (p->ids) {
        *count = p->n_ids;
        *out = malloc(p->n_ids * sizeof **out);
        if (!*out)
            return err_set(e, ERR_MEMORY, "out of memory for a prompt of %zu tokens", p->n_ids);
        memcpy(*out, p->ids, p->n_ids * sizeof **out);
    }
    for (size_t i = 0; i < *count; i++)
        if ((*out)[i] < 0 || (*out)[i] >= shape->vocab)
            return err_set(e, ERR_USAGE, "id %d is not one of %s; accepted: 0 to %lld", (*out)[i],
                           shape->name, (long long)shape->vocab - 1);
    const int64_t longest = model_shape_longest(shape);
    if ((int64_t)*count >= longest)
        return err_set(e, ERR_USAGE, "the prompt has %zu tokens; %s has %s%lld%s", *count,
                       shape->name, longest < shape->max_positions ? "a sliding window of " : "",
                       (long long)longest, longest < shape->max_positions ? "" : " positions");
    return 0;
}

static void put_json(struct call *c, const struct plan *p, const struct sample *sample) {
    struct json_writer *w = &c->json;
    if (!call_json_begin(c, "generate", &p->knobs))
        return;
    plan_put_model_json(p, w);
    json_member_i64(w, "prompt_tokens", sample->prompt);
    sample_put_json(sample, w);
    json_member_string(w, "ended", sample->ended ? "end of text" : "length");
    json_member_double(w, "seconds", sample->seconds);
    json_member_double(w, "tokens_per_s",
                       (double)(sample->length - sample->prompt) / sample->seconds);
    json_put_object_end(w);
}

enum { CHUNK = 512 }; // tokens of a prompt in one turn

static int start(struct plan *plan, struct engine **g, struct knobs *k,
                 const struct model_shape *shape, size_t prompt, int64_t tokens, struct err *e) {
    int64_t length = (int64_t)prompt + tokens;
    const int64_t longest = model_shape_longest(shape);
    length = length < longest ? length : longest;
    k->seq = length; // the recipe's seq is for training
    const int64_t chunk = (int64_t)prompt < CHUNK ? (int64_t)prompt : CHUNK;
    const struct plan_options o = {.knobs = k,
                                   .programs = {PLAN_EXTEND},
                                   .extend = {.context = length, .rows = chunk},
                                   .real = DTYPE_F32};
    TRY(plan_make(plan, &o, e));
    return engine_start(g, NULL, plan, e);
}

// With ids no tokenizer is needed, so a model without a readable one works too.
static int generate(struct call *c, const struct knobs *given, const struct haggle_prompt *p,
                    struct err *e) {
    struct knobs k = *given;
    struct model_shape shape;
    struct plan plan = {0};
    struct engine *engine = NULL;
    struct sample sample = {0};
    struct speech speech = {0};
    int32_t *prompt = NULL, end = -1;
    size_t n = 0;
    bool from_folder = false;
    char adapter[PATH_MAX];
    TRY(call_find_checkpoint(c, &k, p->best, e)); // first: RUN/interactive looks like ORG/NAME
    TRY(call_find_adapter(&k, adapter, e));
    TRY(call_find_model(c, &k, e));
    TRY(model_shape_open(&shape, k.model, &from_folder, e));
    int64_t tokens = p->tokens > 0 ? p->tokens : k.generate_tokens;
    int rc = p->ids ? 0 : speech_open(&speech, &k, e);
    if (rc == 0)
        rc = read_prompt(p, &speech, &shape, &prompt, &n, e);
    if (rc == 0 && !from_folder && !adapter[0])
        log_put(&c->log, LOG_WARN, "%s is a shape, not a trained model: its weights are random",
                k.model);
    if (rc == 0)
        rc = start(&plan, &engine, &k, &shape, n, tokens, e);
    if (rc == 0 && adapter[0])
        rc = adapted_fill(engine->session, adapter, e);
    if (speech.renderer)
        end = renderer_end_of_text(speech.renderer);
    if (rc == 0)
        rc = sample_make(&sample, engine->session, prompt, n, tokens, end, 0, e);
    if (rc == 0 && speech.tokenizer) // decodes prompt and continuation as one text
        rc = sample_spell(&sample, speech.tokenizer, 0, e);
    if (rc == 0 && c->out)
        sample_print(&sample, c->out);
    if (rc == 0)
        put_json(c, &plan, &sample);
    sample_free(&sample);
    engine_close(engine);
    plan_free(&plan);
    speech_close(&speech);
    free(prompt);
    return rc;
}

int haggle_generate(const struct haggle_config *config, const struct haggle_prompt *p,
                    const struct haggle_sink *sink, struct haggle_error *e) {
    struct call c;
    call_begin(&c, sink);
    return call_end(&c, generate(&c, &config->knobs, p, &c.err), e);
}
