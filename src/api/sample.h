// sample.h - a piece of generated text: what generate prints, and train shows at its end.
#ifndef HAGGLE_API_SAMPLE_H
#define HAGGLE_API_SAMPLE_H

#include "api/api.h"

struct sample {
    int32_t *ids; // prompt and continuation
    int64_t length;
    bool ended;     // with end of text, before all tokens were made
    double seconds; // of the continuation
};

// Continues `prompt` by at most `tokens` (and what fits the session's generate program), until end
// of text, or until budget_s seconds have passed (0: no limit).
int sample_make(struct sample *out, struct session *s, const int32_t *prompt, size_t n,
                int64_t tokens, double budget_s, struct err *e);
void sample_free(struct sample *s);
// From id `from` on: as bytes, or as numbers with commas; a newline at the end.
// Bytes are escaped where a terminal would take them for commands.
void sample_print(const struct sample *s, size_t from, bool bytes, FILE *f);
// The same as members "ids" and, for bytes, "text".
int sample_put_json(const struct sample *s, size_t from, bool bytes, struct json_writer *w,
                    struct err *e);

#endif
