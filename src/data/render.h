// render.h - renders a JSONL record as what the model will see: token ids, and which of them are
// trained.
//
// Place: reads one line and applies record shapes, chat templates and loss masks. Other files of
// data/ store the result in shards and pack it into windows, and `haggle data` prints it. Nothing
// here knows about windows or batches.
//
// Shapes. They are detected from the members of a file's first record, or named by the knob
// data.shape. Every line of a file has the same shape. The last column says which tokens are
// trained.
//
//   text        {"text": ".."}                                             all tokens
//   completion  {"prompt": "..", "completion": ".."}                       the completion
//   messages    {"messages": [{"role": "user", "content": ".."}, ..]}      the assistant's turns
//   alpaca      {"instruction": "..", "input": "..", "output": ".."}       the output
//   sharegpt    {"conversations": [{"from": "human", "value": ".."}, ..]}  the turns of gpt
//   tokens      {"input_ids": [..], "labels": [..]}                        as given (-100: not)
//
// A prompt and its completion may also be lists of messages. Then the completion's assistant turns
// are trained. Content may be a list of {"type": "text", "text": ".."}. Alpaca becomes a
// conversation of two turns: instruction, blank line and input; then output. Roles of sharegpt
// become those of messages. Both go through the chat template. Roles out of order are refused
// (record.h). Without "labels" all tokens are trained. Other members are ignored. A member that
// appears twice is refused.
//
// Invariants:
//   1. The text of a record is encoded without special tokens, so it cannot forge a turn. Only the
//      template's own marks become special tokens.
//   2. The token that ends a document or a trained turn (EOS or EOT) is trained, so that a model
//      learns to stop.
//   3. trained[i] says that token i is a target: the loss predicts it from the tokens before it.
//      The first token of a document is never a target. An assistant's turn without text is not
//      trained.
//   4. A bad line is refused with file, line and reason. What was rendered before stays whole.
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
    // Folder of the model, NULL for the built-in tokenizer and the plain template. Its files
    // tokenizer_config.json, chat_template.jinja, special_tokens_map.json and config.json name the
    // template and the end-of-text token.
    const char *model_dir;
    // "auto" (the folder's template, run by the interpreter of template.h; "plain" if there is
    // none), a name of template_known.c such as "chatml" or "llama3", or a file that ends in
    // .jinja.
    const char *chat_template;
    enum render_shape shape;
    enum render_loss loss;
    const char *keys;   // renames: "prompt=question,completion=answer"; "" or NULL: none
    const char *system; // system message for conversations without one; "" or NULL: none
    // Documents also begin with the token that ends them, as in bytes.h.
    bool begin_with_end;
};

struct renderer;
// ERR_USAGE for an unknown template (the error lists the known ones), a rename of an unknown
// member, or a special token that the tokenizer does not have. A folder's template that is not
// understood is an error only when the first conversation comes (ERR_UNSUPPORTED, listing the known
// ones): plain texts do not need it.
int renderer_open(struct renderer **out, const struct render_options *o, struct err *e);
void renderer_close(struct renderer *r);
const char *renderer_template(const struct renderer *r); // the template's name, for people
int32_t renderer_end_of_text(const struct renderer *r);  // id that ends a document
struct render_marks {                                    // how texts begin and end; for export
    const char *source; // of the chat template, with `bytes`; NULL: it cannot be used
    size_t bytes;
    bool own;            // the template is the folder's
    const char *written; // the folder's template, also if it cannot be used; NULL: none
    size_t written_bytes;
    int32_t begin;         // token that documents begin with; -1: none
    int32_t turn_end;      // special token behind an assistant's turn; -1: none
    const char *tail;      // without such a token: the text that ends one; "": none
    const char *eos, *bos; // spellings; NULL: not known
};
struct render_marks renderer_marks(const struct renderer *r);
// The ids that end a generated text: the end of a text, of an assistant's turn, and those that
// generation_config.json or config.json name. Returns how many.
enum { RENDER_ENDS_MOST = 8 };
int renderer_ends(const struct renderer *r, int32_t out[RENDER_ENDS_MOST]);
// Identifies the options that change the output (not the shape, which is set per file). Shards made
// with other options are not reused.
const char *renderer_fingerprint(const struct renderer *r); // 32 hex digits

struct rendered { // starts zeroed; reused from call to call; free with rendered_free
    struct token_list tokens;
    unsigned char *trained; // [tokens.n], 0 or 1
    size_t capacity;
    size_t trained_tokens;
    bool end_trained; // the last trained token of the document is an end token (EOS or EOT)
};
void rendered_free(struct rendered *d);

// One thread's memory for rendering.
struct render_context;
int render_context_open(struct render_context **out, const struct renderer *r, struct err *e);
void render_context_close(struct render_context *c);

// Finds which shape a line has. ERR_FORMAT names the members it has and the shapes that exist.
int render_detect(struct render_context *c, const char *name, uint64_t line, const char *text,
                  size_t bytes, enum render_shape *out, struct err *e);
// Finds whether a line is a conversation, which goes through the chat template.
int render_is_chat(struct render_context *c, const char *text, size_t bytes, bool *out,
                   struct err *e);
// Renders one line of JSONL as `shape` (not AUTO). `name` and `line` are used in messages. A blank
// line gives zero tokens.
int render_line(struct render_context *c, enum render_shape shape, const char *name, uint64_t line,
                const char *text, size_t bytes, struct rendered *out, struct err *e);
// Renders a plain document: a beginning-of-text token if the model has one, the text, the end
// token.
int render_text(struct render_context *c, const char *text, size_t bytes, struct rendered *out,
                struct err *e);

// ---------------------------------------------------------------- what a model is to continue

struct render_turn {
    const char *role; // "system", "user", "assistant"
    const char *text; // any bytes; those that are no UTF-8 become U+FFFD
    size_t bytes;
};
// Renders a conversation through the chat template, which then asks for the assistant's turn.
// Nothing is trained, and no text of a turn becomes a special token.
int render_ask(struct render_context *c, const struct render_turn *turns, size_t n,
               struct rendered *out, struct err *e);
// A line of JSONL: {"messages": [..]} as above, or {"prompt": ".."}, the beginning of a document.
int render_ask_line(struct render_context *c, const char *name, uint64_t line, const char *text,
                    size_t bytes, struct rendered *out, struct err *e);
// The beginning of a document: render_text without its end. A document that begins with no token of
// its own begins, when the text is empty, as after the end of another.
int render_prompt(struct render_context *c, const char *text, size_t bytes, struct rendered *out,
                  struct err *e);

#endif
