// render.h - a JSONL record as what the model will see: token ids, and which of them are trained.
//
// Place: reads one line (record shapes, chat templates, loss masks); data/ stores the result in
// shards, packs it in windows, and `haggle data` prints it. Nothing here knows of windows or batches.
//
// Shapes (detected from the members of a file's first record, or named by the knob data.shape; every
// line of a file has the same one):
//
//   text         {"text": ".."}                                           all tokens trained
//   completion   {"prompt": "..", "completion": ".."}                     the completion
//   messages     {"messages": [{"role": "user", "content": ".."}, ..]}    the assistant's turns
//   alpaca       {"instruction": "..", "input": "..", "output": ".."}     the output
//   sharegpt     {"conversations": [{"from": "human", "value": ".."}, ..]} the turns of gpt
//   tokens       {"input_ids": [..], "labels": [..]}                      as given (-100: not trained)
//
// A prompt and its completion may also be lists of messages; the completion's assistant turns are then
// trained. Content may be a list of {"type": "text", "text": ".."}. Alpaca is a conversation of two
// turns (instruction, blank line, input; output), sharegpt's roles become those of messages: both go
// through the chat template. Roles out of order are refused (record.h). Without "labels" all tokens
// are trained. Other members are ignored; one that stands twice is refused.
//
// Invariants:
//   1. Text of a record is encoded without special tokens: it cannot forge a turn, whatever it holds.
//      Only the template's own marks are special.
//   2. The token that ends a document or a trained turn is trained (EOS or EOT), so that a model
//      learns to stop.
//   3. trained[i] says that token i is a target; the loss predicts it from the tokens before it. The
//      first token of a document never is one.
//      An assistant's turn without text is not trained.
//   4. A bad line is refused with file, line and reason; what was rendered before stays whole.
#ifndef HAGGLE_DATA_RENDER_H
#define HAGGLE_DATA_RENDER_H

#include "base/err.h"
#include "base/region.h"
#include "model/tokenizer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum render_shape {
    RENDER_AUTO,
    RENDER_TEXT,
    RENDER_COMPLETION,
    RENDER_MESSAGES,
    RENDER_ALPACA,
    RENDER_SHAREGPT,
    RENDER_TOKENS,
    RENDER_SHAPES
};
const char *render_shape_name(enum render_shape s); // "text", "completion", ...

enum render_loss { RENDER_LOSS_COMPLETION, RENDER_LOSS_ALL }; // which tokens are trained

struct render_options {
    const struct tokenizer *tokenizer; // outlives the renderer
    // Folder of the model, whose tokenizer_config.json, chat_template.jinja, special_tokens_map.json
    // and config.json say which template and which end-of-text token; NULL: the built-in tokenizer,
    // plain template.
    const char *model_dir;
    // "auto" (the folder's own, run by the interpreter of template.h; without one: "plain"), a name of
    // template_known.c such as "chatml" or "llama3", or a file that ends in .jinja.
    const char *chat_template;
    enum render_shape shape;
    enum render_loss loss;
    const char *keys;   // renames: "prompt=question,completion=answer"; "" or NULL: none
    const char *system; // system message for conversations without one; "" or NULL: none
    // Documents begin with the token that ends them, too, as bytes.h has it.
    bool begin_with_end;
};

struct renderer;
// ERR_USAGE for an unknown template (the error lists the known ones), a rename of an unknown member,
// a special token the tokenizer lacks. A folder's own template that is not understood is an error
// (ERR_UNSUPPORTED, listing the known ones) when the first conversation comes: texts do not need it.
int renderer_open(struct renderer **out, const struct render_options *o, struct err *e);
void renderer_close(struct renderer *r);
const char *renderer_template(const struct renderer *r); // the template's name, for people
int32_t renderer_end_of_text(const struct renderer *r);  // id that ends a document
// Identifies the options that change the output (not the shape, which is per file): shards made with
// other ones are not reused.
const char *renderer_fingerprint(const struct renderer *r); // 32 hex digits

struct rendered { // starts zeroed; reused from call to call; rendered_free
    struct token_list tokens;
    unsigned char *trained; // [tokens.n], 0 or 1
    size_t capacity;
    size_t trained_tokens;
    bool end_trained; // the document's last trained token is an end token (EOS or EOT)
};
void rendered_free(struct rendered *d);

// A thread's own memory for rendering.
struct render_context;
int render_context_open(struct render_context **out, const struct renderer *r, struct err *e);
void render_context_close(struct render_context *c);

// Which shape a line has; ERR_FORMAT naming the members it has and the shapes there are.
int render_detect(struct render_context *c, const char *name, uint64_t line, const char *text,
                  size_t bytes, enum render_shape *out, struct err *e);
// Renders one line of JSONL as `shape` (not AUTO). `name` and `line` are for messages. A blank line
// gives zero tokens.
int render_line(struct render_context *c, enum render_shape shape, const char *name, uint64_t line,
                const char *text, size_t bytes, struct rendered *out, struct err *e);
// Renders a plain document: beginning-of-text token where the model has one, the text, the end.
int render_text(struct render_context *c, const char *text, size_t bytes, struct rendered *out,
                struct err *e);

#endif
