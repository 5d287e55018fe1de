// tokenizer_read.h - reads the objects of a tokenizer.json by the names of their members. An
// unknown member or one that appears twice is an error.
//
// Place: tokenizer_read.c reads the top level, the model and the added tokens. tokenizer_parts.c
// reads the normalizer, pre-tokenizer, decoder and post-processor.
#ifndef HAGGLE_MODEL_TOKENIZER_READ_H
#define HAGGLE_MODEL_TOKENIZER_READ_H

#include "base/json.h"
#include "model/tokenizer_impl.h"

enum { READ_FIELDS_MOST = 16, READ_DEPTH_MOST = 4 };

enum field_type { FIELD_BOOL, FIELD_TEXT, FIELD_NUMBER, FIELD_LATER };

// A JSON string, which may contain any character, NUL included.
struct text_value {
    const char *s; // NULL: absent or null
    size_t bytes;
};

// A member of an object. FIELD_LATER keeps the place of the value in `out` (a struct later), so
// that members can be read in a fixed order.
struct field {
    const char *name;
    enum field_type type;
    void *out;     // NULL: the value is checked and dropped
    bool required; // must be present; except for FIELD_LATER it must not be null either
};
struct later {
    struct json_reader at;
    bool there; // present and not null
};

// Reads the next object. A member that is not in `fields` is an error that names it and lists the
// accepted ones.
int read_fields(struct json_reader *r, const char *what, const struct field *fields);
// The "type" of the next object, which is not consumed. "" when it has none.
int read_type(struct json_reader *r, char out[64]);

// tokenizer_parts.c
int read_normalizer(struct tokenizer *t, struct json_reader *r, int depth);
int read_pre_tokenizer(struct tokenizer *t, struct json_reader *r);
int read_decoder(struct tokenizer *t, struct json_reader *r, int depth);
int read_post_processor(struct tokenizer *t, struct json_reader *r, int depth);

#endif
