// talk.h - a model that is ready to make texts: what haggle_generate and haggle_chat share.
#ifndef HAGGLE_API_TALK_H
#define HAGGLE_API_TALK_H

#include "api/api.h"
#include "infer/texts.h"
#include "train/sample.h"

struct talk {
    struct call *call;
    struct knobs knobs;
    struct model_shape shape;
    char given[PATH_MAX];   // the model as named, for messages
    char adapter[PATH_MAX]; // of a model that is an adapter's base; "": none
    bool from_folder, of_run;
    struct speech speech;
    struct render_context *render; // NULL: the prompts are ids
    struct plan plan;
    struct engine *engine;
    struct texts *texts;
    int32_t ends[DECODER_ENDS_MOST];
    int n_ends;
};

enum talk_about { TALK_IDS, TALK_TEXT, TALK_CHAT };
// Finds the model of the knobs: a checkpoint, a run's newest or best one, a folder, an adapter's
// base. TEXT: opens its tokenizer. CHAT: conversations are written as its run wrote them.
int talk_open(struct talk *t, struct call *c, const struct knobs *k, bool best,
              enum talk_about about, struct err *e);
// ERR_USAGE, with what to do, when the model has no chat template that can be used.
int talk_check_chat(const struct talk *t, struct err *e);

struct talk_size {
    int64_t batch;   // texts side by side
    int64_t context; // tokens of one, with its prompt
    int64_t chunk;   // tokens of prompts in one turn
    int64_t most;    // tokens to make in one
    int64_t prompt;  // tokens of the longest prompt
    size_t jobs;     // whose texts are kept
    size_t times;    // room for times between tokens; 0: of all jobs
    const char *const *stops;
    size_t n_stops;
};
enum { TALK_CHUNK = 512, TALK_BATCH = 8 }; // without another choice
// Plans, and takes all memory. ERR_MEMORY says what would fit.
int talk_start(struct talk *t, const struct talk_size *size, struct err *e);
void talk_close(struct talk *t);

// A job for this prompt, with the sampling of the knobs. number: of the prompt.
struct text_job talk_job(const struct talk *t, const int32_t *prompt, size_t n, int64_t most,
                         size_t number);
int talk_check_ids(const struct talk *t, const int32_t *ids, size_t n, struct err *e);

#endif
