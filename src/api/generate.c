// generate.c - haggle_generate: a prompt continued greedily, as text where text is bytes, else as
// ids.
#include "api/sample.h"

#include "base/file.h"
#include "data/bytes.h"
#include "train/checkpoint.h"

#include <stdlib.h>
#include <string.h>

static void say(void *arg, enum log_level level, const char *text) {
    log_put(arg, level, "%s", text);
}

// A run's folder stands for its newest checkpoint.
static int resolve_model(struct call *c, struct knobs *k, struct err *e) {
    char config[PATH_MAX], checkpoints[PATH_MAX], newest[PATH_MAX];
    struct checkpoint_listener listener = {&c->log, say};
    if (!file_is_dir(k->model))
        return 0;
    TRY(file_join(config, sizeof config, k->model, "config.json", e));
    TRY(file_join(checkpoints, sizeof checkpoints, k->model, "checkpoints", e));
    if (file_exists(config) || !file_is_dir(checkpoints))
        return 0;
    TRY(checkpoint_find_newest(k->model, &listener, newest, e));
    if (newest[0] == '\0')
        return err_set(e, ERR_IO, "%s holds no checkpoint yet", k->model);
    if (strlen(newest) >= sizeof k->model)
        return err_set(e, ERR_USAGE, "the checkpoint's path is longer than %zu bytes: %s",
                       sizeof k->model - 1, newest);
    strcpy(k->model, newest);
    return 0;
}

// The prompt as ids, in memory of the caller's; text begins with END_OF_TEXT, as documents do.
static int read_prompt(const struct haggle_prompt *p, bool bytes, const struct model_shape *shape,
                       int32_t **out, size_t *count, struct err *e) {
    if (p->text && !bytes)
        return err_set(e, ERR_UNSUPPORTED,
                       "%s has a tokenizer of its own or fewer ids than bytes: its text cannot be "
                       "read yet; give token ids instead",
                       shape->name);
    size_t text_bytes = p->text ? strlen(p->text) : 0;
    size_t n = p->ids ? p->n_ids : text_bytes + 1;
    int32_t first = shape->bos_id >= 0 ? (int32_t)shape->bos_id : 0;
    if (p->ids && n == 0)
        return err_set(e, ERR_USAGE, "the prompt has no ids; at least one is needed");
    int32_t *ids = malloc(n * sizeof *ids);
    if (!ids)
        return err_set(e, ERR_MEMORY, "out of memory for a prompt of %zu tokens", n);
    if (p->ids) {
        memcpy(ids, p->ids, n * sizeof *ids);
    } else {
        ids[0] = bytes ? BYTES_END_OF_TEXT : first;
        if (text_bytes)
            bytes_encode(p->text, text_bytes, ids + 1);
    }
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= shape->vocab) {
            int rc = err_set(e, ERR_USAGE, "id %d is not one of %s; accepted: 0 to %lld", ids[i],
                             shape->name, (long long)shape->vocab - 1);
            free(ids);
            return rc;
        }
    *out = ids;
    *count = n;
    return 0;
}

static int put_json(struct call *c, const struct session *s, const struct sample *sample,
                    size_t prompt, bool bytes, struct err *e) {
    struct json_writer *w = &c->json;
    call_json_begin(c, "generate", &s->knobs);
    plan_put_model_json(s, w);
    json_member_i64(w, "prompt_tokens", (int64_t)prompt);
    TRY(sample_put_json(sample, prompt, bytes, w, e));
    json_member_string(w, "ended", sample->ended ? "end of text" : "length");
    json_member_double(w, "seconds", sample->seconds);
    json_member_double(w, "tokens_per_s",
                       (double)(sample->length - (int64_t)prompt) / sample->seconds);
    json_put_object_end(w);
    return 0;
}

static int generate(struct call *c, const struct knobs *given, const struct haggle_prompt *p,
                    struct err *e) {
    struct knobs k = *given;
    struct model_shape shape;
    struct session s = {0};
    struct sample sample = {0};
    int32_t *prompt = NULL;
    size_t n = 0;
    bool from_folder = false;
    TRY(resolve_model(c, &k, e));
    TRY(model_shape_open(&shape, k.model, &from_folder, e));
    bool bytes = plan_speaks_bytes(&shape, &k, from_folder);
    int64_t tokens = p->tokens > 0 ? p->tokens : k.generate_tokens;
    int rc = read_prompt(p, bytes, &shape, &prompt, &n, e);
    if (rc == 0 && (int64_t)n >= shape.max_positions)
        rc = err_set(e, ERR_USAGE, "the prompt has %zu tokens; %s has %lld positions", n,
                     shape.name, (long long)shape.max_positions);
    if (rc == 0) {
        int64_t length = (int64_t)n + tokens;
        length = length < shape.max_positions ? length : shape.max_positions;
        k.seq = length; // the recipe's is for training
        struct session_options o = {
            .knobs = &k, .real = DTYPE_F32, .generate_batch = 1, .generate_seq = length};
        o.has[SESSION_GENERATE] = true;
        rc = session_plan(&s, &o, e);
    }
    if (rc == 0 && !from_folder)
        log_put(&c->log, LOG_WARN, "%s is a shape, not a trained model: its weights are random",
                k.model);
    if (rc == 0)
        rc = session_start(&s, e);
    if (rc == 0)
        rc = sample_make(&sample, &s, prompt, n, tokens, 0, e);
    // Text shows prompt and continuation as one piece, without END_OF_TEXT; ids only what is new.
    bool as_text = bytes && !p->ids;
    if (rc == 0 && c->out)
        sample_print(&sample, as_text ? 1 : n, as_text, c->out);
    if (rc == 0 && c->wants_json)
        rc = put_json(c, &s, &sample, n, as_text, e);
    sample_free(&sample);
    session_close(&s);
    free(prompt);
    return rc;
}

int haggle_generate(const struct haggle_config *config, const struct haggle_prompt *p,
                    const struct haggle_sink *sink, struct haggle_error *e) {
    struct call c;
    call_begin(&c, sink);
    return call_end(&c, generate(&c, &config->knobs, p, &c.err), e);
}
