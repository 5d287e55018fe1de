// tokenizer_parts.c - the parts of a tokenizer.json around the model: normalizer, pre-tokenizer,
// decoder, post-processor.
//
// Place: tokenizer_read.c calls this when the vocabulary is known. Normalizer and pre-tokenizer
// become flat lists of steps, and so does the decoder where symbols are characters. The decoder of
// byte-level BPE is always the same, and data/ places special tokens without a post-processor: both
// are checked but not kept.
#include "model/tokenizer_read.h"

#include <string.h>

// \w+|[^\w\s]+ with Rust's \w, which includes the two joiners.
#define WHITESPACE_PATTERN "[\\p{Word}\\x{200C}\\x{200D}]+|[^\\p{Word}\\x{200C}\\x{200D}\\s]+"

static const struct field only_type[] = {{"type", FIELD_TEXT, NULL, true}, {0}};
// A ByteLevel whose settings have no effect here.
static const struct field byte_level[] = {{"type", FIELD_TEXT, NULL, true},
                                          {"add_prefix_space", FIELD_BOOL, NULL, false},
                                          {"trim_offsets", FIELD_BOOL, NULL, false},
                                          {"use_regex", FIELD_BOOL, NULL, false},
                                          {0}};

static int refuse_type(struct json_reader *r, const char *what, const char *type,
                       const char *accepted) {
    return json_fail(r, ERR_UNSUPPORTED, "%s of type '%s' is not supported; accepted: %s", what,
                     type, accepted);
}

// Reads the next object and calls `each` for the elements of its member `name`, which is an array.
static int read_sequence(struct tokenizer *t, struct json_reader *r, const char *what,
                         const char *name, int depth,
                         int (*each)(struct tokenizer *t, struct json_reader *r, int depth)) {
    struct later list = {0};
    const struct field fields[] = {
        {"type", FIELD_TEXT, NULL, true}, {name, FIELD_LATER, &list, true}, {0}};
    if (depth == READ_DEPTH_MOST)
        return json_fail(r, ERR_UNSUPPORTED, "%s: sequences nested more than %d deep", what,
                         READ_DEPTH_MOST);
    TRY(read_fields(r, what, fields));
    TRY(json_enter_array(&list.at));
    while (json_next_element(&list.at))
        TRY(each(t, &list.at, depth + 1));
    return list.at.rc;
}

static int make_pattern(struct tokenizer *t, struct json_reader *r, const char *text, size_t bytes,
                        bool literal, const struct pattern **out) {
    struct pattern *p;
    if (t->n_patterns == 3 * TOKENIZER_STEPS_MOST)
        return json_fail(r, ERR_UNSUPPORTED, "more than %d patterns", 3 * TOKENIZER_STEPS_MOST);
    struct err why = {0};
    int rc = pattern_open(&p, text, bytes, literal, &why);
    if (rc != 0)
        return json_fail(r, rc, "the pattern '%.200s' is not accepted: %s", text, why.text);
    t->patterns[t->n_patterns++] = p;
    *out = p;
    return 0;
}

// {"String": "..."} or {"Regex": "..."}
static int read_pattern(struct tokenizer *t, struct json_reader *r, const struct pattern **out,
                        const char **source) {
    struct text_value string = {0}, regex = {0};
    const struct field fields[] = {
        {"String", FIELD_TEXT, &string, false}, {"Regex", FIELD_TEXT, &regex, false}, {0}};
    TRY(read_fields(r, "pattern", fields));
    if (!string.s == !regex.s)
        return json_fail(r, ERR_FORMAT, "a pattern needs exactly one member, String or Regex");
    *source = string.s ? string.s : regex.s;
    return make_pattern(t, r, string.s ? string.s : regex.s, string.s ? string.bytes : regex.bytes,
                        string.s != NULL, out);
}

// ---------------------------------------------------------------- normalizer

static int add_normal(struct tokenizer *t, struct json_reader *r, struct normal_step s) {
    if (t->n_normal == TOKENIZER_STEPS_MOST)
        return json_fail(r, ERR_UNSUPPORTED, "more than %d normalizers", TOKENIZER_STEPS_MOST);
    t->normal[t->n_normal++] = s;
    return 0;
}

static int read_replace_fields(struct tokenizer *t, struct json_reader *r, const char *what,
                               const struct pattern **pattern, struct text_value *content,
                               const char **source) {
    struct later at = {0};
    const struct field fields[] = {{"type", FIELD_TEXT, NULL, true},
                                   {"pattern", FIELD_LATER, &at, true},
                                   {"content", FIELD_TEXT, content, true},
                                   {0}};
    TRY(read_fields(r, what, fields));
    return read_pattern(t, &at.at, pattern, source);
}

static int read_replace(struct tokenizer *t, struct json_reader *r) {
    struct text_value content = {0};
    struct normal_step s = {.kind = NORMAL_REPLACE};
    TRY(read_replace_fields(t, r, "normalizer Replace", &s.pattern, &content, &s.source));
    s.text = content.s;
    s.text_bytes = content.bytes;
    return add_normal(t, r, s);
}

static int read_prepend(struct tokenizer *t, struct json_reader *r) {
    struct text_value text = {0};
    const struct field fields[] = {
        {"type", FIELD_TEXT, NULL, true}, {"prepend", FIELD_TEXT, &text, true}, {0}};
    TRY(read_fields(r, "normalizer Prepend", fields));
    return add_normal(
        t, r,
        (struct normal_step){.kind = NORMAL_PREPEND, .text = text.s, .text_bytes = text.bytes});
}

static int read_strip(struct tokenizer *t, struct json_reader *r) {
    struct normal_step s = {.kind = NORMAL_STRIP, .left = true, .right = true};
    const struct field fields[] = {{"type", FIELD_TEXT, NULL, true},
                                   {"strip_left", FIELD_BOOL, &s.left, false},
                                   {"strip_right", FIELD_BOOL, &s.right, false},
                                   {0}};
    TRY(read_fields(r, "normalizer Strip", fields));
    return add_normal(t, r, s);
}

int read_normalizer(struct tokenizer *t, struct json_reader *r, int depth) {
    static const struct {
        const char *name;
        struct normal_step step;
    } simple[] = {{"NFC", {.kind = NORMAL_FORM, .form = UNICODE_NFC}},
                  {"NFD", {.kind = NORMAL_FORM, .form = UNICODE_NFD}},
                  {"NFKC", {.kind = NORMAL_FORM, .form = UNICODE_NFKC}},
                  {"NFKD", {.kind = NORMAL_FORM, .form = UNICODE_NFKD}},
                  {"Lowercase", {.kind = NORMAL_LOWERCASE}}};
    char type[64];
    TRY(read_type(r, type));
    for (size_t i = 0; i < sizeof simple / sizeof *simple; i++)
        if (strcmp(type, simple[i].name) == 0) {
            TRY(read_fields(r, "normalizer", only_type));
            return add_normal(t, r, simple[i].step);
        }
    if (strcmp(type, "Sequence") == 0)
        return read_sequence(t, r, "normalizer", "normalizers", depth, read_normalizer);
    if (strcmp(type, "Replace") == 0)
        return read_replace(t, r);
    if (strcmp(type, "Prepend") == 0)
        return read_prepend(t, r);
    if (strcmp(type, "Strip") == 0)
        return read_strip(t, r);
    return refuse_type(r, "a normalizer", type,
                       "NFC, NFD, NFKC, NFKD, Lowercase, Replace, Prepend, Strip, Sequence");
}

// ---------------------------------------------------------------- pre-tokenizer

static int add_step(struct tokenizer *t, struct json_reader *r, struct split_step s) {
    if (t->n_steps == TOKENIZER_STEPS_MOST)
        return json_fail(r, ERR_UNSUPPORTED, "more than %d pre-tokenizers", TOKENIZER_STEPS_MOST);
    s.mapped = t->byte_level;
    t->steps[t->n_steps++] = s;
    return 0;
}

static int find_behavior(struct json_reader *r, const struct text_value *v,
                         enum step_behavior otherwise, enum step_behavior *out) {
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    *out = otherwise;
    if (!v->s)
        return 0;
    for (int i = 0; i < 5; i++)
        if (strcmp(v->s, names[i]) == 0) {
            *out = (enum step_behavior)i;
            return 0;
        }
    return json_fail(r, ERR_UNSUPPORTED,
                     "behavior '%.64s' is unknown; accepted: Removed, Isolated, "
                     "MergedWithPrevious, MergedWithNext, Contiguous",
                     v->s);
}

static int read_split(struct tokenizer *t, struct json_reader *r) {
    struct text_value behavior = {0};
    struct later pattern = {0};
    struct split_step s = {.kind = STEP_PATTERN};
    const struct field fields[] = {{"type", FIELD_TEXT, NULL, true},
                                   {"pattern", FIELD_LATER, &pattern, true},
                                   {"behavior", FIELD_TEXT, &behavior, true},
                                   {"invert", FIELD_BOOL, &s.invert, false},
                                   {0}};
    TRY(read_fields(r, "pre_tokenizer Split", fields));
    TRY(find_behavior(r, &behavior, SPLIT_ISOLATED, &s.behavior));
    TRY(read_pattern(t, &pattern.at, &s.pattern, &s.source));
    return add_step(t, r, s);
}

static int read_digits(struct tokenizer *t, struct json_reader *r) {
    bool individual = false;
    const struct field fields[] = {{"type", FIELD_TEXT, NULL, true},
                                   {"individual_digits", FIELD_BOOL, &individual, false},
                                   {0}};
    TRY(read_fields(r, "pre_tokenizer Digits", fields));
    return add_step(
        t, r,
        (struct split_step){.kind = STEP_DIGITS,
                            .behavior = individual ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS});
}

static int read_punctuation(struct tokenizer *t, struct json_reader *r) {
    struct text_value behavior = {0};
    struct split_step s = {.kind = STEP_PUNCTUATION};
    const struct field fields[] = {
        {"type", FIELD_TEXT, NULL, true}, {"behavior", FIELD_TEXT, &behavior, false}, {0}};
    TRY(read_fields(r, "pre_tokenizer Punctuation", fields));
    TRY(find_behavior(r, &behavior, SPLIT_ISOLATED, &s.behavior));
    return add_step(t, r, s);
}

static int read_delimiter(struct tokenizer *t, struct json_reader *r) {
    struct text_value delimiter = {0};
    struct split_step s = {.kind = STEP_PATTERN, .behavior = SPLIT_REMOVED};
    const struct field fields[] = {
        {"type", FIELD_TEXT, NULL, true}, {"delimiter", FIELD_TEXT, &delimiter, true}, {0}};
    TRY(read_fields(r, "pre_tokenizer CharDelimiterSplit", fields));
    TRY(make_pattern(t, r, delimiter.s, delimiter.bytes, true, &s.pattern));
    return add_step(t, r, s);
}

static int read_byte_level(struct tokenizer *t, struct json_reader *r) {
    bool prefix = true, use_regex = true;
    const struct field fields[] = {{"type", FIELD_TEXT, NULL, true},
                                   {"add_prefix_space", FIELD_BOOL, &prefix, false},
                                   {"trim_offsets", FIELD_BOOL, NULL, false},
                                   {"use_regex", FIELD_BOOL, &use_regex, false},
                                   {0}};
    TRY(read_fields(r, "pre_tokenizer ByteLevel", fields));
    if (t->byte_level)
        return json_fail(r, ERR_UNSUPPORTED, "two ByteLevel pre-tokenizers; accepted: one");
    if (prefix)
        TRY(add_step(t, r, (struct split_step){.kind = STEP_PREFIX}));
    if (use_regex) {
        struct split_step s = {.kind = STEP_PATTERN, .behavior = SPLIT_ISOLATED};
        s.source = TOKENIZER_BYTE_LEVEL_PATTERN;
        TRY(make_pattern(t, r, TOKENIZER_BYTE_LEVEL_PATTERN,
                         sizeof TOKENIZER_BYTE_LEVEL_PATTERN - 1, false, &s.pattern));
        TRY(add_step(t, r, s));
    }
    t->byte_level = true; // later steps see the printable alphabet
    return 0;
}

static int check_char(struct json_reader *r, const char *what, const struct text_value *v) {
    unsigned bytes = 0;
    if (v->bytes > 0 &&
        utf8_decode((const uint8_t *)v->s, (const uint8_t *)v->s + v->bytes, &bytes) != UTF8_BAD &&
        bytes == v->bytes)
        return 0;
    return json_fail(r, ERR_FORMAT, "%s is '%.64s'; accepted: one character", what, v->s);
}

// Older files have add_prefix_space instead of prepend_scheme. str_rep repeats the replacement.
static int read_metaspace_fields(struct json_reader *r, const char *what,
                                 struct text_value *replacement, enum step_prefix *prefix,
                                 bool *split) {
    static const char *const schemes[] = {"always", "first", "never"};
    struct text_value scheme = {0};
    bool add = true;
    int i = 0;
    const struct field fields[] = {{"type", FIELD_TEXT, NULL, true},
                                   {"replacement", FIELD_TEXT, replacement, true},
                                   {"prepend_scheme", FIELD_TEXT, &scheme, false},
                                   {"add_prefix_space", FIELD_BOOL, &add, false},
                                   {"split", FIELD_BOOL, split, false},
                                   {"str_rep", FIELD_TEXT, NULL, false},
                                   {0}};
    TRY(read_fields(r, what, fields));
    TRY(check_char(r, "the replacement of Metaspace", replacement));
    if (!scheme.s)
        scheme.s = add ? "always" : "never";
    while (i < 3 && strcmp(scheme.s, schemes[i]) != 0)
        i++;
    if (i == 3)
        return json_fail(r, ERR_UNSUPPORTED,
                         "prepend_scheme '%.64s' is unknown; accepted: always, first, never",
                         scheme.s);
    if (!add && i != PREFIX_NEVER)
        return json_fail(r, ERR_FORMAT,
                         "add_prefix_space is false, but prepend_scheme is '%.64s'; accepted with "
                         "it: never",
                         scheme.s);
    *prefix = (enum step_prefix)i;
    return 0;
}

static int read_metaspace(struct tokenizer *t, struct json_reader *r) {
    struct text_value text = {0};
    struct split_step s = {.kind = STEP_METASPACE, .split = true};
    TRY(read_metaspace_fields(r, "pre_tokenizer Metaspace", &text, &s.prefix, &s.split));
    if (t->byte_level)
        return json_fail(r, ERR_UNSUPPORTED, "Metaspace behind ByteLevel; accepted: before it");
    s.text = text.s;
    s.text_bytes = text.bytes;
    return add_step(t, r, s);
}

static int read_pre_part(struct tokenizer *t, struct json_reader *r, int depth) {
    char type[64];
    TRY(read_type(r, type));
    if (strcmp(type, "Sequence") == 0)
        return read_sequence(t, r, "pre_tokenizer", "pretokenizers", depth, read_pre_part);
    if (strcmp(type, "Split") == 0)
        return read_split(t, r);
    if (strcmp(type, "ByteLevel") == 0)
        return read_byte_level(t, r);
    if (strcmp(type, "Metaspace") == 0)
        return read_metaspace(t, r);
    if (strcmp(type, "Digits") == 0)
        return read_digits(t, r);
    if (strcmp(type, "Punctuation") == 0)
        return read_punctuation(t, r);
    if (strcmp(type, "CharDelimiterSplit") == 0)
        return read_delimiter(t, r);
    if (strcmp(type, "WhitespaceSplit") == 0) {
        TRY(read_fields(r, "pre_tokenizer WhitespaceSplit", only_type));
        return add_step(t, r, (struct split_step){.kind = STEP_SPACE, .behavior = SPLIT_REMOVED});
    }
    if (strcmp(type, "Whitespace") == 0) {
        struct split_step s = {.kind = STEP_PATTERN, .behavior = SPLIT_REMOVED, .invert = true};
        TRY(read_fields(r, "pre_tokenizer Whitespace", only_type));
        TRY(make_pattern(t, r, WHITESPACE_PATTERN, sizeof WHITESPACE_PATTERN - 1, false,
                         &s.pattern));
        return add_step(t, r, s);
    }
    return refuse_type(r, "a pre_tokenizer", type,
                       "Sequence, Split, ByteLevel, Metaspace, Digits, Punctuation, Whitespace, "
                       "WhitespaceSplit, CharDelimiterSplit, or null");
}

int read_pre_tokenizer(struct tokenizer *t, struct json_reader *r) {
    return json_peek(r) != JSON_NULL ? read_pre_part(t, r, 0) : 0;
}

// ---------------------------------------------------------------- decoder, post-processor

static int add_decode(struct tokenizer *t, struct json_reader *r, struct decode_step s,
                      const struct text_value *text) {
    if (t->n_decode == TOKENIZER_STEPS_MOST)
        return json_fail(r, ERR_UNSUPPORTED, "more than %d decoders", TOKENIZER_STEPS_MOST);
    s.text = text->s;
    s.text_bytes = text->bytes;
    t->decode[t->n_decode++] = s;
    return 0;
}

static int read_decode_strip(struct tokenizer *t, struct json_reader *r) {
    struct text_value content = {0};
    int64_t start = 0, stop = 0;
    const struct field fields[] = {{"type", FIELD_TEXT, NULL, true},
                                   {"content", FIELD_TEXT, &content, true},
                                   {"start", FIELD_NUMBER, &start, true},
                                   {"stop", FIELD_NUMBER, &stop, true},
                                   {0}};
    TRY(read_fields(r, "decoder Strip", fields));
    TRY(check_char(r, "the content of decoder Strip", &content));
    if (start < 0 || stop < 0)
        return json_fail(r, ERR_FORMAT,
                         "decoder Strip has start %lld and stop %lld; accepted: 0 "
                         "or more",
                         (long long)start, (long long)stop);
    return add_decode(
        t, r,
        (struct decode_step){.kind = DECODE_STRIP, .start = (size_t)start, .stop = (size_t)stop},
        &content);
}

static int read_decode_step(struct tokenizer *t, struct json_reader *r, const char *type) {
    struct text_value text = {0};
    struct decode_step s = {.kind = DECODE_REPLACE};
    enum step_prefix prefix;
    bool split;
    if (strcmp(type, "Strip") == 0)
        return read_decode_strip(t, r);
    if (strcmp(type, "Replace") == 0) {
        const char *source;
        TRY(read_replace_fields(t, r, "decoder Replace", &s.pattern, &text, &source));
    } else if (strcmp(type, "Metaspace") == 0) {
        s.kind = DECODE_METASPACE;
        TRY(read_metaspace_fields(r, "decoder Metaspace", &text, &prefix, &split));
        s.drop_first = prefix != PREFIX_NEVER;
    } else if (strcmp(type, "ByteFallback") == 0 || strcmp(type, "Fuse") == 0) {
        s.kind = type[0] == 'F' ? DECODE_FUSE : DECODE_BYTES;
        TRY(read_fields(r, "decoder", only_type));
    } else {
        return refuse_type(r, "a decoder", type,
                           "Replace, ByteFallback, Fuse, Strip, Metaspace, Sequence, or null "
                           "(ByteLevel only with the pre_tokenizer ByteLevel)");
    }
    return add_decode(t, r, s, &text);
}

int read_decoder(struct tokenizer *t, struct json_reader *r, int depth) {
    char type[64];
    TRY(read_type(r, type));
    if (strcmp(type, "Sequence") == 0)
        return read_sequence(t, r, "decoder", "decoders", depth, read_decoder);
    if (!t->byte_level)
        return read_decode_step(t, r, type);
    // Fuse joins the decoded tokens, which are always joined here.
    if (strcmp(type, "ByteLevel") == 0 || strcmp(type, "Fuse") == 0)
        return read_fields(r, "decoder", byte_level);
    return refuse_type(r, "a decoder", type, "ByteLevel, Fuse, Sequence, or null");
}

static int check_token(struct tokenizer *t, struct json_reader *r, const char *name, int64_t id) {
    int32_t found = tokenizer_find(t, name);
    if (found < 0)
        return json_fail(r, ERR_FORMAT,
                         "post_processor names the token '%.64s', which does not exist", name);
    if (id != found)
        return json_fail(r, ERR_FORMAT,
                         "post_processor gives the token '%.64s' the id %lld; it has %d", name,
                         (long long)id, found);
    return 0;
}

// Checks ["</s>", 2], as in the processors of Bert and Roberta.
static int check_named(struct tokenizer *t, struct later *l) {
    struct json_reader *r = &l->at;
    const char *name = "";
    int64_t id = -1;
    if (!l->there)
        return json_fail(r, ERR_FORMAT, "expected a token's name and id");
    TRY(json_enter_array(r));
    if (json_next_element(r))
        TRY(json_read_string(r, &name, NULL));
    if (json_next_element(r))
        TRY(json_read_i64(r, &id));
    if (json_next_element(r))
        return json_fail(r, ERR_FORMAT, "expected a token's name and id, and nothing more");
    TRY(r->rc);
    return check_token(t, r, name, id);
}

static int check_pair_processor(struct tokenizer *t, struct json_reader *r) {
    struct later sep = {0}, cls = {0};
    const struct field fields[] = {{"type", FIELD_TEXT, NULL, true},
                                   {"sep", FIELD_LATER, &sep, true},
                                   {"cls", FIELD_LATER, &cls, true},
                                   {"trim_offsets", FIELD_BOOL, NULL, false},
                                   {"add_prefix_space", FIELD_BOOL, NULL, false},
                                   {0}};
    TRY(read_fields(r, "post_processor", fields));
    TRY(check_named(t, &sep));
    return check_named(t, &cls);
}

// Checks one entry of special_tokens: "<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}
static int check_special(struct tokenizer *t, struct json_reader *r) {
    struct later ids = {0}, tokens = {0};
    const struct field fields[] = {{"id", FIELD_TEXT, NULL, true},
                                   {"ids", FIELD_LATER, &ids, true},
                                   {"tokens", FIELD_LATER, &tokens, true},
                                   {0}};
    TRY(read_fields(r, "a special token of post_processor", fields));
    TRY(json_enter_array(&ids.at));
    TRY(json_enter_array(&tokens.at));
    for (;;) {
        bool more_ids = json_next_element(&ids.at), more = json_next_element(&tokens.at);
        TRY(ids.at.rc);
        TRY(tokens.at.rc);
        if (more_ids != more)
            return json_fail(&ids.at, ERR_FORMAT,
                             "a special token of post_processor has different numbers of ids and "
                             "tokens");
        if (!more)
            return 0;
        const char *token;
        int64_t id;
        TRY(json_read_i64(&ids.at, &id));
        TRY(json_read_string(&tokens.at, &token, NULL));
        TRY(check_token(t, &tokens.at, token, id));
    }
}

static bool has_member(const struct later *object, const char *name) {
    struct json_reader r = object->at;
    const char *key;
    if (json_enter_object(&r) != 0)
        return false;
    while (json_next_key(&r, &key)) {
        if (strcmp(key, name) == 0)
            return true;
        json_skip(&r);
    }
    return false;
}

// Checks [{"SpecialToken": {"id": ..., "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}].
static int check_template(struct later *list, const struct later *specials) {
    struct json_reader *r = &list->at;
    TRY(json_enter_array(r));
    while (json_next_element(r)) {
        struct later special = {0}, sequence = {0};
        struct text_value id = {0};
        const struct field piece[] = {{"SpecialToken", FIELD_LATER, &special, false},
                                      {"Sequence", FIELD_LATER, &sequence, false},
                                      {0}};
        const struct field inner[] = {
            {"id", FIELD_TEXT, &id, true}, {"type_id", FIELD_NUMBER, NULL, false}, {0}};
        TRY(read_fields(r, "a template of post_processor", piece));
        if (special.there == sequence.there)
            return json_fail(r, ERR_FORMAT, "a template's entry is a SpecialToken or a Sequence");
        TRY(read_fields(special.there ? &special.at : &sequence.at, "a template's entry", inner));
        if (special.there && !has_member(specials, id.s))
            return json_fail(r, ERR_FORMAT,
                             "a template of post_processor names the token '%.64s', which its "
                             "special_tokens do not have",
                             id.s);
        if (sequence.there && strcmp(id.s, "A") != 0 && strcmp(id.s, "B") != 0)
            return json_fail(r, ERR_FORMAT, "a template's Sequence is '%.64s'; accepted: A, B",
                             id.s);
    }
    return r->rc;
}

static int check_templates(struct tokenizer *t, struct json_reader *r) {
    struct later single = {0}, pair = {0}, specials = {0};
    const struct field fields[] = {{"type", FIELD_TEXT, NULL, true},
                                   {"single", FIELD_LATER, &single, true},
                                   {"pair", FIELD_LATER, &pair, true},
                                   {"special_tokens", FIELD_LATER, &specials, true},
                                   {0}};
    TRY(read_fields(r, "post_processor TemplateProcessing", fields));
    struct later walk = specials;
    const char *key;
    TRY(json_enter_object(&walk.at));
    while (json_next_key(&walk.at, &key))
        TRY(check_special(t, &walk.at));
    TRY(walk.at.rc);
    TRY(check_template(&single, &specials));
    return check_template(&pair, &specials);
}

int read_post_processor(struct tokenizer *t, struct json_reader *r, int depth) {
    char type[64];
    TRY(read_type(r, type));
    if (strcmp(type, "Sequence") == 0)
        return read_sequence(t, r, "post_processor", "processors", depth, read_post_processor);
    if (strcmp(type, "TemplateProcessing") == 0)
        return check_templates(t, r);
    if (strcmp(type, "RobertaProcessing") == 0 || strcmp(type, "BertProcessing") == 0)
        return check_pair_processor(t, r);
    if (strcmp(type, "ByteLevel") == 0)
        return read_fields(r, "post_processor ByteLevel", byte_level);
    return refuse_type(
        r, "a post_processor", type,
        "ByteLevel, TemplateProcessing, RobertaProcessing, BertProcessing, Sequence");
}
