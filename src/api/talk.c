// talk.c - see talk.h.
#include "api/talk.h"

#include "predict/fit.h"
#include "train/adapted.h"
#include "train/source.h"

#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------- which model

int talk_open(struct talk *t, struct call *c, const struct knobs *k, bool best,
              enum talk_about about, struct err *e) {
    *t = (struct talk){.call = c, .knobs = *k};
    snprintf(t->given, sizeof t->given, "%s", k->model);
    TRY(call_find_checkpoint(c, &t->knobs, best, e));
    if (about == TALK_CHAT)
        TRY(source_template(&t->knobs, &t->of_run, e));
    TRY(call_find_adapter(&t->knobs, t->adapter, e));
    TRY(call_find_model(c, &t->knobs, e));
    TRY(model_shape_open(&t->shape, t->knobs.model, &t->from_folder, e));
    if (about != TALK_IDS) {
        TRY(speech_open(&t->speech, &t->knobs, e));
        TRY(render_context_open(&t->render, t->speech.renderer, e));
    }
    t->n_ends = speech_ends(&t->speech, &t->shape, t->ends);
    return 0;
}

void talk_close(struct talk *t) {
    texts_close(t->texts);
    engine_close(t->engine);
    plan_free(&t->plan);
    render_context_close(t->render);
    speech_close(&t->speech);
}

int talk_check_chat(const struct talk *t, struct err *e) {
    const struct render_marks marks = renderer_marks(t->speech.renderer);
    // A run without a template was trained with the plain one. A damaged one is refused with its
    // reason when it is used.
    if (strcmp(t->knobs.data_template, "auto") != 0 || marks.own || t->of_run)
        return 0;
    return err_set(e, ERR_USAGE,
                   "%.300s has no chat template, so it is not known how it writes a conversation; "
                   "accepted: data.template=NAME (chatml, llama3, ...: the one that the model was "
                   "trained with) or a file that ends in .jinja",
                   t->given);
}

int talk_check_ids(const struct talk *t, const int32_t *ids, size_t n, struct err *e) {
    const struct model_shape *shape = &t->shape;
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= shape->vocab)
            return err_set(e, ERR_USAGE, "id %d is not one of %s; accepted: 0 to %lld", ids[i],
                           shape->name, (long long)shape->vocab - 1);
    const int64_t longest = model_shape_longest(shape);
    if ((int64_t)n >= longest)
        return err_set(e, ERR_USAGE, "the prompt has %zu tokens; %s has %s%lld%s", n, shape->name,
                       longest < shape->max_positions ? "a sliding window of " : "",
                       (long long)longest, longest < shape->max_positions ? "" : " positions");
    return 0;
}

struct text_job talk_job(const struct talk *t, const int32_t *prompt, size_t n, int64_t most,
                         size_t number) {
    struct text_job j = {.prompt = prompt,
                         .n = (int64_t)n,
                         .most = most,
                         .how = sampling_of(&t->knobs),
                         .n_ends = t->n_ends};
    j.how.stream = number;
    memcpy(j.ends, t->ends, sizeof j.ends);
    return j;
}

// ---------------------------------------------------------------- memory

static struct texts_options options_of(const struct talk *t, const struct talk_size *s) {
    enum { TIMES_MOST = 1 << 20 };
    const size_t times = s->times > 0 ? s->times : s->jobs * (size_t)s->most;
    return (struct texts_options){.tokenizer = t->speech.tokenizer,
                                  .stops = s->stops,
                                  .n_stops = s->n_stops,
                                  .most = s->most,
                                  .prompt = s->prompt,
                                  .times = times < TIMES_MOST ? times : TIMES_MOST};
}

static int make_plan(struct talk *t, const struct talk_size *s, struct plan *out, struct err *e) {
    struct knobs k = t->knobs;
    k.seq = s->context; // the recipe's seq is for training
    const int64_t most = s->batch * s->context;
    const struct plan_options o = {.knobs = &k,
                                   .programs = {PLAN_EXTEND},
                                   .extend = {.sequences = s->batch,
                                              .context = s->context,
                                              .rows = s->chunk < most ? s->chunk : most},
                                   .real = DTYPE_F32};
    const struct texts_options texts = options_of(t, s);
    TRY(plan_make(out, &o, e));
    plan_set_host(out, &(struct plan_host){.texts = texts_bytes(out, &texts, s->jobs)});
    return 0;
}

static bool fits(struct talk *t, struct talk_size s, int64_t batch, int64_t context) {
    struct plan p = {0};
    s.batch = batch;
    s.context = context;
    bool ok = make_plan(t, &s, &p, NULL) == 0;
    if (ok) {
        plan_set_process(&p, t->plan.process_bytes, t->plan.process_how);
        ok = engine_need_bytes(t->engine, &p) + FIT_MARGIN_BYTES <= t->engine->room.bytes;
    }
    plan_free(&p);
    return ok;
}

// The largest value from least to most that fits, in steps; 0: none.
static int64_t search(struct talk *t, const struct talk_size *s, bool batch, int64_t step) {
    int64_t low = 0, high = (batch ? s->batch : s->context) / step;
    while (low < high) {
        const int64_t at = low + (high - low + 1) / 2;
        if (batch ? fits(t, *s, at * step, s->context) : fits(t, *s, s->batch, at * step))
            low = at;
        else
            high = at - 1;
    }
    return low * step;
}

// Adds to the refusal what would fit: each figure was planned, not guessed.
static void advise(struct talk *t, const struct talk_size *s, struct err *e) {
    enum { STEP = 16 };
    struct talk_size one = *s;
    one.batch = 1;
    const size_t at = strlen(e->text), room = sizeof e->text - at;
    char *out = e->text + at;
    if (!t->engine->backend || !t->engine->room.is) // there was no memory to open it
        return;
    const int64_t context = search(t, s, false, STEP),
                  batch = s->batch > 1 ? search(t, s, true, 1) : 0,
                  alone = s->batch > 1 && context == 0 ? search(t, &one, false, STEP) : 0;
    const char *and = "";
    int n = snprintf(out, room, ". ");
    if (context > 0) {
        n += snprintf(out + n, room - (size_t)n, "--context %lld fits", (long long)context);
        and = ", and so does ";
    }
    if (batch > 0)
        n += snprintf(out + n, room - (size_t)n, "%s--batch %lld with the same context%s", and,
                      (long long)batch, context > 0 ? "" : " fits");
    else if (alone > 0)
        n += snprintf(out + n, room - (size_t)n, "--batch 1 --context %lld fits", (long long)alone);
    if (context == 0 && batch == 0 && alone == 0)
        snprintf(out + n, room - (size_t)n,
                 "No context fits: the weights, turns of %lld tokens (--chunk) and the program "
                 "itself leave no room",
                 (long long)s->chunk);
}

int talk_start(struct talk *t, const struct talk_size *size, struct err *e) {
    const struct texts_options texts = options_of(t, size);
    TRY(make_plan(t, size, &t->plan, e));
    TRY(engine_open(&t->engine, &(struct engine_options){0}, e));
    const int rc = ready_check(t->engine, &t->plan, e);
    if (rc == ERR_MEMORY)
        advise(t, size, e);
    TRY(rc);
    TRY(engine_load(t->engine, &t->plan, e));
    if (t->adapter[0])
        TRY(adapted_fill(t->engine->session, t->adapter, e));
    return texts_open(&t->texts, t->engine->session, &texts, e);
}
