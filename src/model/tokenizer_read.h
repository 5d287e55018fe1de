// tokenizer_read.h - reading the objects of a tokenizer.json: members by name, none unknown, none twice.
//
// Place: tokenizer_read.c reads the file's frame, the model and the added tokens, tokenizer_parts.c the
// normalizer, pre-tokenizer, decoder and post-processor.
#ifndef HAGGLE_MODEL_TOKENIZER_READ_H
#define HAGGLE_MODEL_TOKENIZER_READ_H

#include "base/json.h"
#include "model/tokenizer_impl.h"

enum { READ_FIELDS_MOST = 16, READ_DEPTH_MOST = 4 };

enum field_type { FIELD_BOOL, FIELD_TEXT, FIELD_NUMBER, FIELD_LATER };

// A JSON string, which may hold any character.
struct text_value {
    const char *s; // NULL: absent or null
    size_t bytes;
};

// A member of an object. FIELD_LATER keeps the place of the value in `out` (a struct later), so that
// parts can be read in an order of our own.
struct field {
    const char *name;
    enum field_type type;
    void *out;
    bool required; // and then not null either
};
struct later {
    struct json_reader at;
    bool there; // and not null
};

// Reads the object that comes next. A member that is not listed is an error that names it and lists
// those that are.
int read_fields(struct json_reader *r, const char *what, const struct field *fields);
// The "type" of the object that comes next, which is not consumed; "" when it has none.
int read_type(struct json_reader *r, char out[64]);

// tokenizer_parts.c
int read_normalizer(struct tokenizer *t, struct json_reader *r, int depth);
int read_pre_tokenizer(struct tokenizer *t, struct json_reader *r);
int read_decoder(struct tokenizer *t, struct json_reader *r, int depth);
int read_post_processor(struct tokenizer *t, struct json_reader *r, int depth);

#endif
