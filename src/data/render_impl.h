// render_impl.h - shared by the files of the renderer. render.h is the interface.
//
//   render.c        opens a renderer; a line of each shape
//   render_model.c  what a model's folder says: its chat template, its special tokens
//   render_chat.c   a conversation through its template: text, and which of it is trained
//   render_encode.c text with origins to token ids
#ifndef HAGGLE_DATA_RENDER_IMPL_H
#define HAGGLE_DATA_RENDER_IMPL_H

#include "data/record.h"
#include "data/render.h"
#include "data/template.h"

// ---- render_model.c

enum render_token { RENDER_BOS, RENDER_EOS, RENDER_UNK, RENDER_PAD, RENDER_TOKENS_NAMED };

extern const char *const render_token_names[RENDER_TOKENS_NAMED]; // as files and templates do

struct render_model { // strings live in the region; NULL: not given in the folder
    const char *token[RENDER_TOKENS_NAMED]; // spellings
    int64_t eos_id, bos_id;         // from generation_config.json or config.json; -1: not given
    int32_t ends[RENDER_ENDS_MOST]; // every eos id that these files list
    int n_ends;
    const char *chat_template; // Jinja source
    size_t chat_template_bytes;
    const char *chat_template_file; // its file, for messages
    int add_bos;                    // 1, 0, or -1: not given
};
int render_model_read(struct render_model *out, const char *dir, struct region *r, struct err *e);

// ---- render_encode.c

// Special tokens by spelling, to find them in the template's text.
struct render_special {
    const char *spelling;
    size_t n;
    int32_t id;
    bool lstrip, rstrip; // the token absorbs the blanks before or behind it
};
struct render_specials {
    struct render_special *items; // sorted by first byte, then longest first
    size_t n;
    size_t first[257]; // items[first[b] .. first[b + 1]) begin with byte b
};
int render_specials_open(struct render_specials *s, const struct tokenizer *t, struct region *r,
                         struct err *e);
// Returns the special token at `at` if all its bytes are the template's text, else NULL.
const struct render_special *render_special_at(const struct render_specials *s,
                                               const struct marked *text, size_t at);

struct render_range { // a range of bytes in a text
    size_t begin, end;
};
// Appends the ids of a text. Special tokens are recognised only in the template's text. No token
// crosses the edge of a range. What lies in a range is trained. Ranges ascend and do not overlap.
int render_encode(struct tokenizer_encoder *c, const struct render_specials *s,
                  const struct marked *text, const struct render_range *trained, size_t n_trained,
                  struct rendered *out, struct err *e);
// Appends text of a record (nothing in it is special), or one token. `flags` say what comes before
// the text (TOKENIZER_CONTINUES, TOKENIZER_INSIDE).
int render_put_text(struct tokenizer_encoder *c, const char *text, size_t bytes, unsigned flags,
                    bool trained, struct rendered *out, struct err *e);
int render_put_token(int32_t id, bool trained, struct rendered *out, struct err *e);

// ---- render_chat.c

struct render_turns {   // how a template writes an assistant turn; found at open
    const char *prompt; // text in front of the turn when the template asks for one
    size_t prompt_bytes;
    int32_t end;      // special token behind the turn; -1: none
    const char *tail; // without such a token: the text behind the turn, without blanks at its end
    size_t tail_bytes;
};
struct renderer {
    struct region region;
    const struct tokenizer *tokenizer;
    enum render_loss loss;
    const char *system;
    struct record_keys keys;
    struct render_model model;
    struct render_specials specials;
    int32_t bos, eos; // bos -1: documents do not begin with a token
    struct template *chat;
    const char *template_name;
    bool own_template;     // the folder's
    struct err chat_error; // why there is no template; reported to the first conversation
    struct render_turns turns;
    char fingerprint[HASH_TEXT_BYTES];
};
struct render_context {
    const struct renderer *r;
    struct tokenizer_encoder *encoder;
    struct region region; // memory of one line
};
// Chooses and compiles the template. An unknown name is an error. A folder's template that cannot
// be used becomes an error only when a conversation comes.
int render_chat_open(struct renderer *r, const char *name, struct err *e);
int render_chat(struct render_context *c, struct value_heap *h, const struct record *record,
                struct rendered *out);
// messages: a list of objects with role and content. The template asks for the assistant's turn.
int render_chat_ask(struct render_context *c, struct value_heap *h, const struct value *messages,
                    struct rendered *out);

#endif
