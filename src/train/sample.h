// sample.h - a piece of generated text, as `generate` prints it and `train` shows it at the end,
// and the tokenizer that converts between ids and text.
#ifndef HAGGLE_TRAIN_SAMPLE_H
#define HAGGLE_TRAIN_SAMPLE_H

#include "base/json.h"
#include "data/render.h"
#include "engine/session.h"

#include <stdio.h>

// Reads and writes a model's text: with the tokenizer of its folder, or as bytes.
struct speech {
    struct tokenizer *tokenizer;
    struct renderer *renderer;
};

// For k->model, which may be a checkpoint. Then the tokenizer is that of its source (source.h).
int speech_open(struct speech *s, const struct knobs *k, struct err *e);
void speech_close(struct speech *s);
// The ids at the beginning of a document that begins with `text` (NULL is like ""). The caller
// frees *ids.
int speech_prompt(const struct speech *s, const char *text, int32_t **ids, size_t *n,
                  struct err *e);

struct sample {
    int32_t *ids; // prompt and continuation
    int64_t length, prompt;
    bool ended;     // an end-of-text token came before all requested tokens were made
    double seconds; // time of the continuation
    char *text;     // set by sample_spell; NULL: not yet
    size_t text_bytes;
};

// Continues `prompt` by at most `tokens` tokens, or as many as the session's caches have room for,
// sampled as the knobs generate.* say. It ends earlier at an end of text (the model's id, or `end`
// if that is not negative), or when budget_s seconds have passed (0: no limit).
int sample_make(struct sample *out, struct session *s, const int32_t *prompt, size_t n,
                int64_t tokens, int32_t end, double budget_s, struct err *e);
// Sets `text` to the text of the ids from index `from` on, without special tokens. Without a
// tokenizer it stays NULL.
int sample_spell(struct sample *s, const struct tokenizer *t, size_t from, struct err *e);
void sample_free(struct sample *s);
// Prints the text, or the new ids with commas if there is no text, and a newline at the end.
// Control characters are escaped, so that they do not act on a terminal.
void sample_print(const struct sample *s, FILE *f);
// Members "ids" (the new ones) and, if it is set, "text".
void sample_put_json(const struct sample *s, struct json_writer *w);

#endif
