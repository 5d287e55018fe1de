// sample.h - a piece of generated text: what generate prints, and train shows at its end; and the
// tokenizer that stands between ids and text.
#ifndef HAGGLE_API_SAMPLE_H
#define HAGGLE_API_SAMPLE_H

#include "api/api.h"
#include "data/render.h"

// How a model's text is read and written: its folder's tokenizer, or bytes.
struct speech {
    struct tokenizer *tokenizer;
    struct renderer *renderer;
};

// For k->model, which may be a checkpoint (then the tokenizer is its source's).
int speech_open(struct speech *s, const struct knobs *k, struct err *e);
void speech_close(struct speech *s);
// The ids of a document that begins with this text (NULL or "": of one that begins). malloc'd.
int speech_prompt(const struct speech *s, const char *text, int32_t **ids, size_t *n,
                  struct err *e);

struct sample {
    int32_t *ids; // prompt and continuation
    int64_t length, prompt;
    bool ended;     // with end of text, before all tokens were made
    double seconds; // of the continuation
    char *text;     // of ids from sample_spell's `from` on; NULL: not spelled
    size_t text_bytes;
};

// Continues `prompt` by at most `tokens` (and what fits the session's generate program), until end
// of text (the model's, or `end` where that is no negative number), or until budget_s seconds have
// passed (0: no limit).
int sample_make(struct sample *out, struct session *s, const int32_t *prompt, size_t n,
                int64_t tokens, int32_t end, double budget_s, struct err *e);
// Fills `text` with what the ids from `from` on spell, special tokens left out.
int sample_spell(struct sample *s, const struct tokenizer *t, size_t from, struct err *e);
void sample_free(struct sample *s);
// The text where it was spelled, else the new ids with commas; a newline at the end. Bytes are escaped
// where a terminal would take them for commands.
void sample_print(const struct sample *s, FILE *f);
// Members "ids" (the new ones) and, where it was spelled, "text".
void sample_put_json(const struct sample *s, struct json_writer *w);

#endif
