// texts.h - makes texts of prompts: any number of them, as many side by side as the cache has
// sequences, said while they are made.
//
// Place: joins the decoder (which makes ids) and speakers (which make text of them). haggle
// generate, haggle chat and the sample of a training run are this.
#ifndef HAGGLE_INFER_TEXTS_H
#define HAGGLE_INFER_TEXTS_H

#include "infer/decoder.h"
#include "infer/speaker.h"

struct texts;

struct texts_options {
    const struct tokenizer *tokenizer; // NULL, or one of ids: texts are ids only
    const char *const *stops;          // a text ends in front of one
    size_t n_stops;
    int64_t most;   // tokens to make in one text
    int64_t prompt; // tokens of the longest prompt
    size_t times;   // room for times between tokens
};

struct text_job {
    const int32_t *prompt; // outlives the job
    int64_t n;
    struct sampling how;
    int64_t most; // tokens to make; up to the options'
    int32_t ends[DECODER_ENDS_MOST];
    int n_ends;
    bool whole; // the text begins with that of the prompt
    bool apart; // the text begins by itself: no space in front of it
    // What was made. Freed by text_job_free.
    int32_t *ids;
    int64_t n_ids;
    char *text; // NULL without a tokenizer
    size_t bytes, capacity;
    enum decoder_end end;
    uint64_t begin_ns, end_ns;
};
void text_job_free(struct text_job *j);
const char *text_job_end(const struct text_job *j); // "end of text", "length", ...

// A part of a text. Returns 0, DECODER_STOP to end this text here, or a negative error.
typedef int texts_said_fn(void *arg, const struct text_job *j, const char *text, size_t bytes,
                          struct err *e);

int texts_open(struct texts **out, struct session *s, const struct texts_options *o, struct err *e);
void texts_close(struct texts *t);
// What texts_open takes, and the ids and texts of `jobs` jobs.
uint64_t texts_bytes(const struct plan *p, const struct texts_options *o, size_t jobs);
// said: NULL, or is called for each token, also without new text.
int texts_make(struct texts *t, struct text_job *jobs, size_t n, texts_said_fn *said, void *arg,
               struct err *e);
struct decoder_times *texts_times(struct texts *t);

#endif
