// speaker.h - says a text while it is made: token ids in, valid UTF-8 out.
//
// Three things are held back until it is clear what they are: bytes of a character that is not
// whole, tokens whose text may change with the next one (byte tokens of SentencePiece, which are
// one run), and text that may be the beginning of a stop string.
//
// Invariants:
//   1. All pieces together are the text of all ids decoded at once and repaired (utf8_repair), cut
//      at the first stop string that is whole: of several that end at the same byte, the longest.
//   2. A token costs the same however long the text is. The exception are tokenizers whose decoder
//      looks at the text as a whole (tokenizer_is_open): their text comes at the end.
//   3. A piece is valid UTF-8 and ends between two characters.
#ifndef HAGGLE_INFER_SPEAKER_H
#define HAGGLE_INFER_SPEAKER_H

#include "base/err.h"
#include "model/tokenizer.h"

#include <stdint.h>
#include <stdio.h>

struct speaker;

enum { SPEAKER_STOPS_MOST = 32, SPEAKER_STOP_BYTES = 4096 };
// `most`: ids of a text, with those of its prompt. ERR_USAGE for a stop string that is empty, too
// long or no UTF-8. Strings are copied; the tokenizer is not.
int speaker_open(struct speaker **out, const struct tokenizer *t, int64_t most,
                 const char *const *stops, size_t n_stops, struct err *e);
void speaker_close(struct speaker *s);
uint64_t speaker_bytes(int64_t most); // what it takes, about: stop strings are small

struct speaker_piece { // valid until the next call; not ended by a NUL
    const char *text;
    size_t bytes;
    bool stopped; // a stop string came: nothing follows
};
// A new text. flags: as of tokenizer_decode (TOKENIZER_CONTINUES).
void speaker_begin(struct speaker *s, unsigned flags);
// The next ids. Special ids and ids without a token have no text. search: whether stop strings may
// be in this part; a prompt has none.
int speaker_say(struct speaker *s, const int32_t *ids, int64_t n, bool search,
                struct speaker_piece *out, struct err *e);
// What was held back.
int speaker_finish(struct speaker *s, struct speaker_piece *out, struct err *e);

// Prints a text. On a terminal control characters are escaped: a half-trained model may make some,
// and they would act on it.
void speaker_print(const char *text, size_t bytes, bool terminal, FILE *f);

#endif
