// tokenizer_read.c - reads a tokenizer.json into tables: the top level, the BPE model, added
// tokens.
//
// Place: called by tokenizer_open. The file is untrusted input. It is checked that ids have no gaps
// and no duplicates, that merges name existing tokens, and that every member is known. Members are
// read in a fixed order (vocabulary, added tokens, merges, the other parts), whatever their order
// in the file.
#include "model/tokenizer_read.h"

#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------- objects

static int read_value(struct json_reader *r, const struct field *f) {
    if (f->type == FIELD_LATER) {
        struct later *l = f->out;
        l->at = *r;
        l->there = json_peek(r) != JSON_NULL;
        return json_skip(r);
    }
    if (json_peek(r) == JSON_NULL && !f->required)
        return json_read_null(r);
    struct text_value ignored_text, *text = f->out ? f->out : &ignored_text;
    bool ignored_bool;
    int64_t ignored_number;
    switch (f->type) {
    case FIELD_BOOL:
        return json_read_bool(r, f->out ? f->out : &ignored_bool);
    case FIELD_TEXT:
        return json_read_string(r, &text->s, &text->bytes);
    default:
        return json_read_i64(r, f->out ? f->out : &ignored_number);
    }
}

static int refuse_member(struct json_reader *r, const char *what, const char *key,
                         const struct field *fields) {
    char known[256] = "";
    size_t n = 0;
    for (; fields->name; fields++) {
        size_t length = strlen(fields->name);
        if (n + length + 3 < sizeof known)
            n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", n ? ", " : "", fields->name);
    }
    return json_fail(r, ERR_UNSUPPORTED, "%s has an unknown member '%.64s'; accepted: %s", what,
                     key, known);
}

int read_fields(struct json_reader *r, const char *what, const struct field *fields) {
    const char *key;
    unsigned seen = 0;
    TRY(json_enter_object(r));
    while (json_next_key(r, &key)) {
        int i = 0;
        while (fields[i].name && strcmp(fields[i].name, key) != 0)
            i++;
        if (!fields[i].name)
            return refuse_member(r, what, key, fields);
        if (seen >> i & 1)
            return json_fail(r, ERR_FORMAT, "%s has two members '%s'", what, key);
        seen |= 1u << i;
        TRY(read_value(r, &fields[i]));
    }
    TRY(r->rc);
    for (int i = 0; fields[i].name; i++)
        if (fields[i].required && !(seen >> i & 1))
            return json_fail(r, ERR_FORMAT, "%s has no member '%s'", what, fields[i].name);
    return 0;
}

int read_type(struct json_reader *r, char out[64]) {
    struct json_reader look = *r;
    const char *key, *type;
    out[0] = '\0';
    if (json_enter_object(&look) != 0)
        return r->rc = look.rc;
    while (json_next_key(&look, &key)) {
        if (strcmp(key, "type") != 0 || json_peek(&look) != JSON_STRING) {
            json_skip(&look);
            continue;
        }
        if (json_read_string(&look, &type, NULL) == 0)
            snprintf(out, 64, "%.63s", type);
        break;
    }
    return r->rc = look.rc;
}

// ---------------------------------------------------------------- vocabulary

struct entry {
    const char *spelled;
    uint32_t bytes;
    int32_t id;
    uint8_t flags;
};
struct entries {
    struct entry *list;
    size_t n, capacity;
};

static int add_entry(struct json_reader *r, struct entries *l, struct entry x) {
    if (l->n == l->capacity) {
        size_t capacity = l->capacity ? 2 * l->capacity : 1024;
        struct entry *wider = realloc(l->list, capacity * sizeof *wider);
        if (!wider)
            return json_fail(r, ERR_MEMORY, "no memory for %zu tokens", capacity);
        l->list = wider;
        l->capacity = capacity;
    }
    l->list[l->n++] = x;
    return 0;
}

static int check_id(struct json_reader *r, int64_t id, const char *token) {
    if (id < 0 || id >= TOKENIZER_IDS_MOST)
        return json_fail(r, ERR_FORMAT, "the token '%.64s' has the id %lld; accepted: 0 to %d",
                         token, (long long)id, TOKENIZER_IDS_MOST - 1);
    return 0;
}

static int read_vocab(struct json_reader *r, struct entries *l) {
    const char *key;
    if (json_peek(r) != JSON_OBJECT)
        return json_fail(r, ERR_UNSUPPORTED,
                         "model.vocab must be an object of tokens and ids, as in BPE");
    TRY(json_enter_object(r));
    while (json_next_key(r, &key)) {
        int64_t id;
        TRY(json_read_i64(r, &id));
        TRY(check_id(r, id, key));
        TRY(add_entry(
            r, l,
            (struct entry){key, (uint32_t)strlen(key), (int32_t)id, TOKEN_THERE | TOKEN_MODEL}));
    }
    return r->rc;
}

static int read_added_token(struct json_reader *r, struct entries *l) {
    int64_t id = -1;
    struct text_value content = {0};
    bool single = false, lstrip = false, rstrip = false, special = false, normalized;
    struct later normal = {0};
    const struct field fields[] = {{"id", FIELD_NUMBER, &id, true},
                                   {"content", FIELD_TEXT, &content, true},
                                   {"single_word", FIELD_BOOL, &single, false},
                                   {"lstrip", FIELD_BOOL, &lstrip, false},
                                   {"rstrip", FIELD_BOOL, &rstrip, false},
                                   {"normalized", FIELD_LATER, &normal, false},
                                   {"special", FIELD_BOOL, &special, false},
                                   {0}};
    TRY(read_fields(r, "an added token", fields));
    normalized = !special;
    if (normal.there)
        TRY(json_read_bool(&normal.at, &normalized));
    TRY(check_id(r, id, content.s));
    if (content.bytes == 0)
        return json_fail(r, ERR_FORMAT, "the added token with the id %lld has no text",
                         (long long)id);
    if (content.bytes > TOKENIZER_ADDED_BYTES_MOST)
        return json_fail(r, ERR_UNSUPPORTED, "an added token of %zu bytes; accepted: at most %d",
                         content.bytes, TOKENIZER_ADDED_BYTES_MOST);
    unsigned flags = TOKEN_THERE | TOKEN_ADDED | (special ? TOKEN_IS_SPECIAL : 0) |
                     (single ? TOKEN_SINGLE_WORD : 0) | (lstrip ? TOKEN_LSTRIP : 0) |
                     (rstrip ? TOKEN_RSTRIP : 0) | (normalized ? TOKEN_NORMALIZED : 0);
    return add_entry(
        r, l, (struct entry){content.s, (uint32_t)content.bytes, (int32_t)id, (uint8_t)flags});
}

static int read_added(struct json_reader *r, struct entries *l) {
    TRY(json_enter_array(r));
    while (json_next_element(r))
        TRY(read_added_token(r, l));
    return r->rc;
}

// Finds the bytes that a spelling stands for. A spelling with a character outside the byte-level
// alphabet stands for itself. Text can become such a token only if it is an added token.
static bool spell_bytes(const int16_t *byte_of, struct region *region, struct token *k) {
    const uint8_t *p = (const uint8_t *)k->spelled, *end = p + k->spelled_bytes;
    bool ascii = true, inside = true;
    for (unsigned n; p < end && inside; p += n) {
        uint32_t c = utf8_decode(p, end, &n);
        inside = c < 0x180 && byte_of[c] >= 0;
        ascii = ascii && c < 0x80;
    }
    k->raw = k->spelled;
    k->raw_bytes = k->spelled_bytes;
    if (!inside || ascii) {
        if (!inside)
            k->flags &= (uint8_t)~TOKEN_MODEL;
        return true;
    }
    char *raw = region_alloc(region, k->spelled_bytes);
    if (!raw)
        return false;
    k->raw = raw;
    k->raw_bytes = 0;
    p = (const uint8_t *)k->spelled;
    for (unsigned n; p < end; p += n)
        raw[k->raw_bytes++] = (char)byte_of[utf8_decode(p, end, &n)];
    return true;
}

static int place(struct tokenizer *t, const struct entry *x, struct err *e) {
    struct token *k = &t->tokens[x->id];
    bool added = x->flags & TOKEN_ADDED;
    if (!k->flags) {
        *k = (struct token){x->spelled, x->spelled, x->bytes, x->bytes, x->flags};
    } else if (added && !(k->flags & TOKEN_ADDED) && k->spelled_bytes == x->bytes &&
               memcmp(k->spelled, x->spelled, x->bytes) == 0) {
        k->flags |= x->flags; // the added token is also in the vocabulary
    } else {
        return err_set(e, ERR_FORMAT, "%s: the id %d belongs to two tokens, '%.64s' and '%.64s'",
                       t->name, x->id, k->spelled, x->spelled);
    }
    t->n_added += added;
    return 0;
}

static int place_all(struct tokenizer *t, const struct entries *l, struct err *e) {
    int32_t most = -1;
    for (size_t i = 0; i < l->n; i++)
        most = l->list[i].id > most ? l->list[i].id : most;
    if ((size_t)most + 1 > l->n || l->n == 0)
        return err_set(e, ERR_FORMAT,
                       "%s: %zu tokens have ids up to %d: some ids have no token; accepted: 0, 1, "
                       "2, ... without gaps",
                       t->name, l->n, most);
    t->size = most + 1;
    t->tokens = region_alloc(&t->region, (size_t)t->size * sizeof *t->tokens);
    if (!t->tokens)
        return err_set(e, ERR_MEMORY, "%s: no memory for %d tokens", t->name, t->size);
    for (size_t i = 0; i < l->n; i++)
        TRY(place(t, &l->list[i], e));
    int16_t byte_of[0x180];
    for (uint32_t c = 0; c < 0x180; c++)
        byte_of[c] = (int16_t)tokenizer_char_byte(c);
    for (int32_t id = 0; id < t->size; id++) {
        struct token *k = &t->tokens[id];
        if (!k->flags)
            return err_set(e, ERR_FORMAT, "%s: no token has the id %d; accepted: ids without gaps",
                           t->name, id);
        if (!(k->flags & TOKEN_MODEL))
            continue;
        if (t->byte_level && !spell_bytes(byte_of, &t->region, k))
            return err_set(e, ERR_MEMORY, "%s: no memory for %d tokens", t->name, t->size);
        if ((k->flags & TOKEN_MODEL) && k->raw_bytes == 1 &&
            (t->byte_level || !(k->flags & TOKEN_IS_SPECIAL)))
            t->byte_id[(uint8_t)k->raw[0]] = id;
    }
    return token_index_build(t, &t->by_spelling, false, e);
}

// ---------------------------------------------------------------- merges

static int merge_put(struct merge_table *m, struct merge x) {
    if (4 * (uint64_t)m->n >= 3 * ((uint64_t)m->mask + 1) || !m->slots) {
        struct merge_table wider = {.mask = m->slots ? 2 * m->mask + 1 : 1023};
        wider.slots = malloc(((size_t)wider.mask + 1) * sizeof *wider.slots);
        if (!wider.slots)
            return ERR_MEMORY;
        for (size_t i = 0; i <= wider.mask; i++)
            wider.slots[i].result = -1;
        for (size_t i = 0; m->slots && i <= m->mask; i++)
            if (m->slots[i].result >= 0)
                merge_put(&wider, m->slots[i]);
        free(m->slots);
        *m = wider;
    }
    uint32_t i = merge_hash(x.left, x.right) & m->mask;
    while (m->slots[i].result >= 0 && (m->slots[i].left != x.left || m->slots[i].right != x.right))
        i = (i + 1) & m->mask;
    m->n += m->slots[i].result < 0;
    m->slots[i] = x; // if a pair appears twice, the later counts, as in the reference
    return 0;
}

struct merge_parts {
    const char *a, *b;
    size_t a_bytes, b_bytes;
    bool header; // the first line of an old merges.txt
};

// Reads "a b" or ["a", "b"].
static int read_merge(struct json_reader *r, struct merge_parts *m) {
    if (json_peek(r) == JSON_ARRAY) {
        int n = 0;
        const char *ignored;
        size_t bytes;
        TRY(json_enter_array(r));
        for (; json_next_element(r); n++)
            TRY(json_read_string(r,
                                 n == 0   ? &m->a
                                 : n == 1 ? &m->b
                                          : &ignored,
                                 n == 0   ? &m->a_bytes
                                 : n == 1 ? &m->b_bytes
                                          : &bytes));
        TRY(r->rc);
        return n == 2 ? 0 : json_fail(r, ERR_FORMAT, "a merge has %d parts; accepted: 2", n);
    }
    const char *s;
    size_t bytes;
    TRY(json_read_string(r, &s, &bytes));
    const char *space = memchr(s, ' ', bytes);
    size_t rest = space ? bytes - (size_t)(space - s) - 1 : 0;
    if (!space || memchr(space + 1, ' ', rest))
        return json_fail(r, ERR_FORMAT, "the merge '%.64s' is not two parts with one space between",
                         s);
    *m = (struct merge_parts){s, space + 1, (size_t)(space - s), rest,
                              strncmp(s, "#version", 8) == 0};
    return 0;
}

static void note_joined(struct tokenizer *t, const struct token *k) {
    const uint8_t *p = (const uint8_t *)k->spelled, *end = p + k->spelled_bytes;
    uint32_t last = 0;
    unsigned bytes;
    for (bool first = true; p < end; p += bytes, first = false) {
        uint32_t c = utf8_decode(p, end, &bytes), bit = pair_hash(last, c);
        if (!first)
            t->joined[bit / 8] |= (uint8_t)(1 << bit % 8);
        last = c;
    }
}

static int add_merge(struct tokenizer *t, struct json_reader *r, const struct merge_parts *m,
                     int32_t rank) {
    char both[1024], *joined = both;
    int32_t left = token_index_find(t, &t->by_spelling, m->a, m->a_bytes);
    int32_t right = token_index_find(t, &t->by_spelling, m->b, m->b_bytes);
    const int a_shown = m->a_bytes < 64 ? (int)m->a_bytes : 64;
    const int b_shown = m->b_bytes < 64 ? (int)m->b_bytes : 64;
    if (left < 0 || right < 0)
        return json_fail(
            r, ERR_FORMAT, "the merge of '%.*s' and '%.*s': the vocabulary has no token '%.*s'",
            a_shown, m->a, b_shown, m->b, left < 0 ? a_shown : b_shown, left < 0 ? m->a : m->b);
    // The parts are tokens, so their length is bounded by the file. Long ones are rare.
    if (m->a_bytes + m->b_bytes > sizeof both)
        joined = malloc(m->a_bytes + m->b_bytes);
    if (!joined)
        return json_fail(r, ERR_MEMORY, "no memory for a merge");
    memcpy(joined, m->a, m->a_bytes);
    memcpy(joined + m->a_bytes, m->b, m->b_bytes);
    int32_t result = token_index_find(t, &t->by_spelling, joined, m->a_bytes + m->b_bytes);
    if (joined != both)
        free(joined);
    if (result < 0)
        return json_fail(r, ERR_FORMAT,
                         "the merge of '%.*s' and '%.*s' makes a token that the vocabulary does "
                         "not have",
                         a_shown, m->a, b_shown, m->b);
    // Special tokens are recognized by their text, which a flag can turn off. A merge must not be
    // another way to make one, so it is ignored.
    if (t->tokens[result].flags & TOKEN_IS_SPECIAL)
        return 0;
    if (merge_put(&t->merges, (struct merge){left, right, rank, result}) != 0)
        return json_fail(r, ERR_MEMORY, "no memory for %d merges", rank);
    if (t->joined)
        note_joined(t, &t->tokens[result]);
    return 0;
}

static int read_merges(struct tokenizer *t, struct json_reader *r) {
    struct region scratch = {0};
    int32_t rank = 0;
    if (!t->byte_level) {
        t->joined = region_alloc(&t->region, (1u << TOKENIZER_JOINED_BITS) / 8);
        if (!t->joined)
            return json_fail(r, ERR_MEMORY, "no memory for merges");
    }
    r->strings = &scratch;
    json_enter_array(r);
    while (json_next_element(r)) {
        struct merge_parts m = {"", "", 0, 0, false};
        if (read_merge(r, &m) != 0)
            break;
        if (!m.header && add_merge(t, r, &m, rank++) != 0)
            break;
        if (rank == TOKENIZER_IDS_MOST)
            json_fail(r, ERR_UNSUPPORTED, "more than %d merges", TOKENIZER_IDS_MOST);
        if (rank % 4096 == 0)
            region_free(&scratch);
    }
    region_free(&scratch);
    return r->rc;
}

// ---------------------------------------------------------------- model

struct model_fields {
    struct later vocab, merges, dropout;
    struct text_value unk, prefix, suffix;
    bool fuse_unk, byte_fallback, ignore_merges;
};

static int check_dropout(struct later *dropout) {
    double x = 0;
    if (!dropout->there)
        return 0;
    TRY(json_read_double(&dropout->at, &x));
    return x == 0
               ? 0
               : json_fail(&dropout->at, ERR_UNSUPPORTED,
                           "model.dropout is %g: encoding would be random; accepted: null or 0", x);
}

static int read_model(struct json_reader *r, struct model_fields *m) {
    const struct field fields[] = {{"type", FIELD_TEXT, NULL, false},
                                   {"dropout", FIELD_LATER, &m->dropout, false},
                                   {"unk_token", FIELD_TEXT, &m->unk, false},
                                   {"continuing_subword_prefix", FIELD_TEXT, &m->prefix, false},
                                   {"end_of_word_suffix", FIELD_TEXT, &m->suffix, false},
                                   {"fuse_unk", FIELD_BOOL, &m->fuse_unk, false},
                                   {"byte_fallback", FIELD_BOOL, &m->byte_fallback, false},
                                   {"ignore_merges", FIELD_BOOL, &m->ignore_merges, false},
                                   {"vocab", FIELD_LATER, &m->vocab, true},
                                   {"merges", FIELD_LATER, &m->merges, true},
                                   {0}};
    char type[64];
    TRY(read_type(r, type));
    if (type[0] && strcmp(type, "BPE") != 0)
        return json_fail(r, ERR_UNSUPPORTED, "model.type is '%s'; accepted: BPE", type);
    TRY(read_fields(r, "model", fields));
    if (m->prefix.bytes > 0 || m->suffix.bytes > 0)
        return json_fail(r, ERR_UNSUPPORTED,
                         "model has a continuing_subword_prefix or end_of_word_suffix; accepted: "
                         "none");
    return check_dropout(&m->dropout);
}

// A file may lack some of the bytes' tokens. Characters with such a byte are then unknown.
static int find_fallback(struct tokenizer *t, struct err *e) {
    int found = 0;
    for (int b = 0; b < 256; b++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", b);
        int32_t id = tokenizer_find(t, name);
        if (id >= 0 && (t->tokens[id].flags & TOKEN_MODEL))
            t->fallback_id[b] = id, found++;
    }
    return found > 0 ? 0
                     : err_set(e, ERR_FORMAT,
                               "%s: model.byte_fallback is true, but the vocabulary has none of "
                               "the tokens <0x00> to <0xFF>",
                               t->name);
}

static int read_tables(struct tokenizer *t, struct model_fields *m, struct later *added,
                       struct err *e) {
    struct entries l = {0};
    int rc = m->vocab.there ? read_vocab(&m->vocab.at, &l)
                            : json_fail(&m->vocab.at, ERR_FORMAT, "model.vocab is null");
    if (rc == 0 && added->there)
        rc = read_added(&added->at, &l);
    if (rc == 0)
        rc = place_all(t, &l, e);
    free(l.list);
    TRY(rc);
    if (!m->merges.there)
        return json_fail(&m->merges.at, ERR_FORMAT, "model.merges is null");
    TRY(read_merges(t, &m->merges.at));
    if (m->unk.s) {
        t->unk_id = token_index_find(t, &t->by_spelling, m->unk.s, m->unk.bytes);
        if (t->unk_id < 0)
            return err_set(e, ERR_FORMAT, "%s: model.unk_token '%.64s' is not in the vocabulary",
                           t->name, m->unk.s);
    }
    t->fuse_unk = m->fuse_unk;
    t->ignore_merges = m->ignore_merges;
    if (m->byte_fallback)
        TRY(find_fallback(t, e));
    return m->ignore_merges || !t->byte_level ? token_index_build(t, &t->by_bytes, true, e) : 0;
}

// ---------------------------------------------------------------- the rest of the frame

// Encoding here neither truncates nor pads, but the settings are checked.
static int check_truncation(struct json_reader *r) {
    int64_t length = -1, stride = 0;
    const struct field fields[] = {{"direction", FIELD_TEXT, NULL, false},
                                   {"max_length", FIELD_NUMBER, &length, true},
                                   {"strategy", FIELD_TEXT, NULL, false},
                                   {"stride", FIELD_NUMBER, &stride, false},
                                   {0}};
    TRY(read_fields(r, "truncation", fields));
    if (length < 1 || stride < 0 || stride >= length)
        return json_fail(r, ERR_FORMAT,
                         "truncation has max_length %lld and stride %lld; accepted: max_length of "
                         "1 or more, stride from 0 to max_length - 1",
                         (long long)length, (long long)stride);
    return 0;
}

static int check_padding(struct json_reader *r) {
    struct later strategy = {0}, multiple = {0};
    const struct field fields[] = {{"strategy", FIELD_LATER, &strategy, false},
                                   {"direction", FIELD_TEXT, NULL, false},
                                   {"pad_to_multiple_of", FIELD_LATER, &multiple, false},
                                   {"pad_id", FIELD_NUMBER, NULL, false},
                                   {"pad_type_id", FIELD_NUMBER, NULL, false},
                                   {"pad_token", FIELD_TEXT, NULL, false},
                                   {0}};
    int64_t n = 1;
    TRY(read_fields(r, "padding", fields));
    if (multiple.there)
        TRY(json_read_i64(&multiple.at, &n));
    if (n < 1)
        return json_fail(r, ERR_FORMAT, "padding.pad_to_multiple_of is %lld; accepted: 1 or more",
                         (long long)n);
    if (strategy.there && json_peek(&strategy.at) == JSON_OBJECT) {
        const struct field fixed[] = {{"Fixed", FIELD_NUMBER, &n, true}, {0}};
        TRY(read_fields(&strategy.at, "padding.strategy", fixed));
        if (n < 1)
            return json_fail(&strategy.at, ERR_FORMAT,
                             "padding.strategy is Fixed %lld; accepted: 1 or more", (long long)n);
    }
    return 0;
}

static int read_frame(struct tokenizer *t, struct json_reader *r, struct err *e) {
    struct text_value version = {0};
    struct later truncation = {0}, padding = {0}, added = {0}, normalizer = {0}, pre = {0},
                 post = {0}, decoder = {0}, model = {0};
    const struct field fields[] = {{"version", FIELD_TEXT, &version, false},
                                   {"truncation", FIELD_LATER, &truncation, false},
                                   {"padding", FIELD_LATER, &padding, false},
                                   {"added_tokens", FIELD_LATER, &added, false},
                                   {"normalizer", FIELD_LATER, &normalizer, false},
                                   {"pre_tokenizer", FIELD_LATER, &pre, true},
                                   {"post_processor", FIELD_LATER, &post, false},
                                   {"decoder", FIELD_LATER, &decoder, false},
                                   {"model", FIELD_LATER, &model, true},
                                   {0}};
    TRY(read_fields(r, "the file", fields));
    TRY(json_finish(r));
    if (version.s && strcmp(version.s, "1.0") != 0)
        return json_fail(r, ERR_UNSUPPORTED, "version is '%.64s'; accepted: 1.0", version.s);
    struct model_fields m = {0};
    TRY(read_model(&model.at, &m));
    TRY(read_pre_tokenizer(t, &pre.at)); // says what the spelling of a token means
    TRY(read_tables(t, &m, &added, e));
    if (truncation.there)
        TRY(check_truncation(&truncation.at));
    if (padding.there)
        TRY(check_padding(&padding.at));
    if (normalizer.there)
        TRY(read_normalizer(t, &normalizer.at, 0));
    t->has_decoder = decoder.there;
    if (decoder.there)
        TRY(read_decoder(t, &decoder.at, 0));
    return post.there ? read_post_processor(t, &post.at, 0) : 0;
}

int tokenizer_read(struct tokenizer *t, const char *text, size_t bytes, struct err *e) {
    struct json_reader r;
    json_reader_init(&r, t->name, text, bytes, &t->region, e);
    return read_frame(t, &r, e);
}
