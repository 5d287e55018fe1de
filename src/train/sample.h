// sample.h - a piece of generated text, as `generate` prints it and `train` shows it at the end,
// and the tokenizer that converts between ids and text.
#ifndef HAGGLE_TRAIN_SAMPLE_H
#define HAGGLE_TRAIN_SAMPLE_H

#include "base/json.h"
#include "data/render.h"
#include "engine/session.h"
#include "infer/texts.h"

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

// Takes rendered ids out of `d`, into memory that the caller frees.
int speech_take(const struct rendered *d, int32_t **ids, size_t *n, struct err *e);
// The ids that end a text of this model: its own, and those that its folder names. s->renderer may
// be NULL.
int speech_ends(const struct speech *s, const struct model_shape *shape,
                int32_t out[DECODER_ENDS_MOST]);

struct sample {
    struct text_job job; // ids and text without the prompt
};

// Continues `prompt` by at most `tokens` tokens, or as many as the session's caches have room for,
// sampled as the knobs generate.* say. It ends earlier at an end of text, or when budget_s seconds
// have passed.
int sample_make(struct sample *out, struct session *s, const struct speech *speech,
                const int32_t *prompt, size_t n, int64_t tokens, double budget_s, struct err *e);
uint64_t sample_plan_bytes(const struct plan *p, int64_t tokens); // what sample_make takes
void sample_free(struct sample *s);

// Prints the text, or the ids with commas if there is no text, and a newline at the end. terminal:
// as speaker_print.
void sample_print(const struct text_job *j, bool terminal, FILE *f);
// Members "ids" (the new ones) and, if it is set, "text".
void sample_put_json(const struct text_job *j, struct json_writer *w);

#endif
