// gguf_vocab.c - a tokenizer's tables as llama.cpp reads them.
//
// llama.cpp has two kinds that a tokenizer.json of BPE can become:
//
//   gpt2   byte-level BPE: tokens as the file spells them, merges by rank, and the name of a
//          pre-tokenizer, which stands for patterns that are built into llama.cpp. A file whose
//          pre-tokenizer is none of these cannot be written.
//   llama  what SentencePiece makes: tokens of characters, where U+2581 stands for a space, and a
//          score each; tokens <0x00> to <0xFF> for other bytes. There are no merges: two
//          neighbours are joined when they are a token together, the one with the highest score
//          first. So merges can be written only if every such pair is a merge, and the merges that
//          make a token stand together. Both is checked.
//
// A byte-level file without any splitting also becomes "llama": SentencePiece vocabularies are
// sometimes spelled that way.
#include "export/gguf_parts.h"

#include "base/region.h"
#include "base/utf8.h"
#include "model/names.h"
#include "model/tokenizer_impl.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define SPACE "\xe2\x96\x81" // U+2581, which stands for a space

enum { TEXT_MOST = 1024 }; // bytes of a token of kind "llama"; bounds the search for its parts

// llama.cpp's kinds of tokens, with their numbers.
enum kind { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE };

struct tables {
    const struct gguf_vocabulary *v;
    const struct tokenizer *t;
    struct region region;
    const char **text; // by id; [v->size]
    uint32_t *bytes;   // of the text
    int32_t *kind;
    float *score;
    struct merge *merges; // by rank
    int32_t n_merges;
    struct names ids;
    int64_t partial; // tokens that hold a part of a character
    struct sentences *notes;
    struct err *e;
};

static int refuse(struct tables *b, const char *what) {
    return err_set(b->e, ERR_UNSUPPORTED,
                   "%s: llama.cpp has no such tokenizer: %s. Export the model as a Hugging Face "
                   "folder instead (haggle export RUN OUT_DIR)",
                   b->t->name, what);
}

static int no_memory(struct tables *b) {
    return err_set(b->e, ERR_MEMORY, "no memory for the tables of a tokenizer");
}

// ---------------------------------------------------------------- which kind

// The pre-tokenizers that are built into llama.cpp, as files write them: steps in order, and
// whether a whole piece that is a token is taken without merging.
struct step {
    enum step_kind kind;
    const char *source;
};
static const struct {
    const char *name;
    bool ignore_merges;
    struct step steps[6];
    int n;
} built_in[] = {
#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
#define REST         "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER        "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER        "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
    {"gpt-2", false, {{STEP_PATTERN, TOKENIZER_BYTE_LEVEL_PATTERN}}, 1},
    {"llama-bpe",
     true,
     {{STEP_PATTERN, CONTRACTIONS "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}" REST}},
     1},
    {"dbrx",
     false,
     {{STEP_PATTERN, CONTRACTIONS "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}" REST}},
     1},
    {"qwen2", false, {{STEP_PATTERN, CONTRACTIONS "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" REST}}, 1},
    {"smollm", false, {{STEP_DIGITS, NULL}, {STEP_PATTERN, TOKENIZER_BYTE_LEVEL_PATTERN}}, 2},
    {"tekken",
     true,
     {{STEP_PATTERN,
       "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER
       "*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
     1},
#undef CONTRACTIONS
#undef REST
#undef UPPER
#undef LOWER
};

static const char *find_built_in(const struct tokenizer *t) {
    if (t->merges.n == 0)
        return built_in[0].name; // pieces make no difference
    for (size_t i = 0; i < sizeof built_in / sizeof *built_in; i++) {
        bool same = t->n_steps == built_in[i].n && t->ignore_merges == built_in[i].ignore_merges;
        for (int k = 0; same && k < t->n_steps; k++) {
            const struct split_step *s = &t->steps[k];
            const struct step *want = &built_in[i].steps[k];
            same = s->kind == want->kind && s->behavior == SPLIT_ISOLATED && !s->invert &&
                   !s->mapped &&
                   (want->source == NULL ||
                    (s->source != NULL && strcmp(s->source, want->source) == 0));
        }
        if (same)
            return built_in[i].name;
    }
    return NULL;
}

static int check_normal(struct tables *b) {
    for (int i = 0; i < b->t->n_normal; i++) {
        const struct normal_step *s = &b->t->normal[i];
        if (s->kind != NORMAL_FORM || s->form != UNICODE_NFC)
            return refuse(b, "its normalizer changes more than NFC does");
    }
    if (b->t->n_normal > 0)
        sentences_add(b->notes, "llama.cpp does not apply the tokenizer's normalizer NFC: text "
                                "that is not composed gets other ids");
    return 0;
}

// What a tokenizer does in front of the merges, for kind "llama".
static int find_prefix(struct tables *b, bool *prefix) {
    const struct tokenizer *t = b->t;
    const char *space = t->byte_level ? " " : SPACE;
    const struct normal_step *n = t->normal;
    int at = 0;
    bool spaces = t->byte_level;
    *prefix = false;
    if (at < t->n_normal && n[at].kind == NORMAL_PREPEND && strcmp(n[at].text, space) == 0)
        *prefix = true, at++;
    if (!spaces && at < t->n_normal && n[at].kind == NORMAL_REPLACE &&
        strcmp(n[at].source, " ") == 0 && strcmp(n[at].text, SPACE) == 0)
        spaces = true, at++;
    if (at < t->n_normal)
        return refuse(b, "its normalizer does more than to write spaces as U+2581, with one in "
                         "front");
    if (!spaces && t->n_steps == 1 && t->steps[0].kind == STEP_METASPACE && !*prefix &&
        strcmp(t->steps[0].text, SPACE) == 0) {
        *prefix = t->steps[0].prefix != PREFIX_NEVER;
        if (t->steps[0].prefix == PREFIX_FIRST)
            sentences_add(b->notes, "llama.cpp puts a space in front of text behind a special "
                                    "token, too");
        if (*prefix)
            sentences_add(b->notes, "llama.cpp also puts a space in front of text that begins "
                                    "with one");
        return 0;
    }
    if (!spaces || t->n_steps > 0)
        return refuse(b, "its pre_tokenizer does more than to write spaces as U+2581");
    return 0;
}

// ---------------------------------------------------------------- merges

static int by_rank(const void *a, const void *b) {
    const struct merge *x = a, *y = b;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

static int sort_merges(struct tables *b) {
    const struct merge_table *m = &b->t->merges;
    b->merges = calloc((size_t)m->n + 1, sizeof *b->merges);
    if (b->merges == NULL)
        return no_memory(b);
    for (size_t i = 0; m->n > 0 && i <= m->mask; i++)
        if (m->slots[i].result >= 0)
            b->merges[b->n_merges++] = m->slots[i];
    qsort(b->merges, (size_t)b->n_merges, sizeof *b->merges, by_rank);
    return 0;
}

static int32_t find_merge(const struct merge_table *m, int32_t left, int32_t right) {
    uint32_t i = merge_hash(left, right) & m->mask;
    while (m->slots[i].result >= 0 && (m->slots[i].left != left || m->slots[i].right != right))
        i = (i + 1) & m->mask;
    return m->slots[i].result;
}

// ---------------------------------------------------------------- tokens

static bool is_text(const char *s, size_t n) {
    const uint8_t *p = (const uint8_t *)s, *end = p + n;
    unsigned bytes;
    for (; p < end; p += bytes)
        if (*p == 0 || utf8_decode(p, end, &bytes) == UTF8_BAD)
            return false;
    return true;
}

static int set_text(struct tables *b, int64_t id, enum kind kind, const char *text) {
    if (text == NULL)
        return no_memory(b);
    b->text[id] = text;
    b->bytes[id] = (uint32_t)strlen(text);
    b->kind[id] = (int32_t)kind;
    return 0;
}

// The tokenizer's own texts are not ended by a NUL.
static char *copy(struct tables *b, const char *text, size_t bytes) {
    char *out = region_alloc(&b->region, bytes + 1);
    return out != NULL ? memcpy(out, text, bytes) : NULL;
}

// Bytes that are a part of a character: a name that no text becomes.
static int name_part(struct tables *b, int32_t id) {
    const struct token *k = &b->t->tokens[id];
    char name[64] = "[bytes";
    for (uint32_t i = 0; i < k->raw_bytes && i < 16; i++)
        snprintf(name + strlen(name), sizeof name - strlen(name), " %02X", (uint8_t)k->raw[i]);
    b->partial++;
    return set_text(b, id, UNUSED,
                    region_printf(&b->region, "%s%s %d]", name, k->raw_bytes > 16 ? ".." : "", id));
}

// The text of a byte-level token for kind "llama".
static int spell_characters(struct tables *b, int32_t id) {
    const struct token *k = &b->t->tokens[id];
    const uint8_t first = (uint8_t)k->raw[0];
    if (k->raw_bytes == 1 && (first == 0 || first >= 0x80))
        return set_text(b, id, BYTE, region_printf(&b->region, "<0x%02X>", first));
    char *raw = copy(b, k->raw, k->raw_bytes);
    if (raw == NULL)
        return no_memory(b);
    if (!is_text(raw, k->raw_bytes) || strstr(raw, SPACE) != NULL)
        return name_part(b, id);
    char *text = region_alloc(&b->region, (size_t)k->raw_bytes * 3 + 1), *out = text;
    for (uint32_t i = 0; text != NULL && i < k->raw_bytes; i++)
        if (raw[i] == ' ') {
            memcpy(out, SPACE, 3);
            out += 3;
        } else {
            *out++ = raw[i];
        }
    return set_text(b, id, NORMAL, text);
}

static int spell(struct tables *b, int32_t id, bool llama) {
    const struct token *k = &b->t->tokens[id];
    if (k->spelled_bytes == 0 || !is_text(k->spelled, k->spelled_bytes))
        return refuse(b, "a token is empty or holds a NUL");
    const char *text = copy(b, k->spelled, k->spelled_bytes);
    if (id == b->t->unk_id)
        return set_text(b, id, UNKNOWN, text);
    if (k->flags & TOKEN_IS_SPECIAL)
        return set_text(b, id, CONTROL, text);
    if (k->flags & TOKEN_ADDED)
        return set_text(b, id, USER_DEFINED, text);
    if (llama && b->t->byte_level)
        return spell_characters(b, id);
    bool byte = false;
    for (int i = 0; llama && i < 256; i++)
        byte = byte || b->t->fallback_id[i] == id;
    return set_text(b, id, byte ? BYTE : NORMAL, text);
}

// Every id of the model needs a text of its own. Ids without a token are padding.
static int spell_all(struct tables *b, bool llama) {
    char quoted[NAMES_QUOTE_BYTES];
    int64_t strips = 0;
    bool fresh;
    for (int32_t id = 0; id < b->t->size; id++) {
        TRY(spell(b, id, llama));
        const uint8_t flags = b->t->tokens[id].flags;
        strips += (flags & (TOKEN_LSTRIP | TOKEN_RSTRIP | TOKEN_SINGLE_WORD)) != 0;
        TRY(names_put(&b->ids, b->text[id], (uint32_t)id, &fresh, b->e));
        if (!fresh)
            return err_set(b->e, ERR_UNSUPPORTED,
                           "%s: two tokens would both be written as %s, and llama.cpp needs texts "
                           "that differ",
                           b->t->name, names_quote(quoted, b->text[id]));
    }
    for (int64_t id = b->t->size; id < b->v->size; id++) {
        const char *name = region_printf(&b->region, "[PAD%" PRId64 "]", id);
        if (name != NULL)
            TRY(names_put(&b->ids, name, (uint32_t)id, &fresh, b->e));
        if (name != NULL && !fresh)
            name = region_printf(&b->region, "[PAD%" PRId64 " of haggle]", id);
        TRY(set_text(b, id, UNUSED, name));
    }
    if (strips > 0)
        sentences_add(b->notes,
                      "%" PRId64 " added tokens are single words or take the spaces beside them; "
                      "llama.cpp does not do that",
                      strips);
    return 0;
}

// ---------------------------------------------------------------- scores

static int not_scores(struct tables *b, int32_t id, const char *why) {
    char quoted[NAMES_QUOTE_BYTES], what[NAMES_QUOTE_BYTES + 128];
    snprintf(what, sizeof what, "the merges that make the token %s %s",
             names_quote(quoted, b->text[id]), why);
    return refuse(b, what);
}

// Gives every token that is made by merges the rank of the first of them, negated.
static int set_scores(struct tables *b) {
    int32_t last = -1, group = 1;
    for (int64_t id = 0; id < b->v->size; id++)
        b->score[id] = b->kind[id] == NORMAL   ? -(float)b->n_merges - 1
                       : b->kind[id] == UNUSED ? -1e9f
                                               : 0;
    for (int32_t i = 0; i < b->n_merges; i++) {
        const struct merge *m = &b->merges[i];
        if (b->kind[m->left] != NORMAL || b->kind[m->right] != NORMAL ||
            b->kind[m->result] != NORMAL || m->result == last)
            continue; // bytes that become a character are one symbol here
        if (b->score[m->result] >= -(float)group)
            return not_scores(b, m->result, "do not stand together");
        last = m->result;
        b->score[last] = -(float)group++;
    }
    return 0;
}

// Whether each way to make a token of two others is a merge.
static int check_parts(struct tables *b, int32_t id) {
    const char *text = b->text[id];
    const uint8_t *p = (const uint8_t *)text, *end = p + b->bytes[id];
    char left[TEXT_MOST + 1];
    unsigned bytes;
    if (b->bytes[id] > TEXT_MOST)
        return refuse(b, "a token has more than 1024 bytes");
    for (utf8_decode(p, end, &bytes), p += bytes; p < end; p += bytes) {
        uint32_t a, c;
        const size_t n = (size_t)(p - (const uint8_t *)text);
        memcpy(left, text, n);
        left[n] = '\0';
        if (names_find(&b->ids, left, &a) && names_find(&b->ids, text + n, &c) &&
            b->kind[a] == NORMAL && b->kind[c] == NORMAL &&
            (b->t->merges.n == 0 || find_merge(&b->t->merges, (int32_t)a, (int32_t)c) != id))
            return not_scores(b, id, "are not all that its parts allow");
        utf8_decode(p, end, &bytes);
    }
    return 0;
}

static int check_llama(struct tables *b) {
    const struct tokenizer *t = b->t;
    const bool cut = t->n_steps > 0 && t->steps[0].split;
    for (int i = 0; i < 256; i++)
        if (t->byte_level ? t->byte_id[i] < 0 : t->fallback_id[i] < 0)
            return refuse(b, "not every byte has a token");
    if (t->ignore_merges)
        return refuse(b, "ignore_merges, without a pre_tokenizer that splits");
    for (int32_t id = 0; id < t->size; id++) {
        if (b->kind[id] != NORMAL)
            continue;
        if (cut && b->bytes[id] > 3 && strstr(b->text[id] + 1, SPACE) != NULL)
            return refuse(b, "Metaspace with split, where tokens have spaces inside");
        TRY(check_parts(b, id));
    }
    if (b->partial > 0)
        sentences_add(b->notes,
                      "%" PRId64 " tokens hold a part of a character; llama.cpp never makes them, "
                      "so rare characters get other ids",
                      b->partial);
    return set_scores(b);
}

// ---------------------------------------------------------------- writing

static void put_texts(struct gguf_head *h, const struct tables *b) {
    const uint64_t n = (uint64_t)b->v->size;
    gguf_put_array(h, "tokenizer.ggml.tokens", GGUF_STRING, n);
    for (uint64_t i = 0; i < n; i++)
        gguf_put_element_text(h, b->text[i], b->bytes[i]);
}

static int put_merges(struct gguf_head *h, struct tables *b) {
    gguf_put_array(h, "tokenizer.ggml.merges", GGUF_STRING, (uint64_t)b->n_merges);
    for (int32_t i = 0; i < b->n_merges; i++) {
        const struct token *l = &b->t->tokens[b->merges[i].left];
        const struct token *r = &b->t->tokens[b->merges[i].right];
        const size_t n = (size_t)l->spelled_bytes + 1 + r->spelled_bytes;
        if (memchr(l->spelled, ' ', l->spelled_bytes) != NULL)
            return refuse(b, "a merge of a token that is spelled with a space");
        char *both = malloc(n);
        if (both == NULL)
            return no_memory(b);
        memcpy(both, l->spelled, l->spelled_bytes);
        both[l->spelled_bytes] = ' ';
        memcpy(both + l->spelled_bytes + 1, r->spelled, r->spelled_bytes);
        gguf_put_element_text(h, both, n);
        free(both);
    }
    return 0;
}

static void put_id(struct gguf_head *h, const char *key, int32_t id) {
    if (id >= 0)
        gguf_put_u32(h, key, (uint32_t)id);
}

static void put_marks(struct gguf_head *h, const struct tables *b) {
    const struct gguf_vocabulary *v = b->v;
    put_id(h, "tokenizer.ggml.bos_token_id", v->begin);
    put_id(h, "tokenizer.ggml.eos_token_id", v->end);
    put_id(h, "tokenizer.ggml.eot_token_id", v->turn_end);
    put_id(h, "tokenizer.ggml.unknown_token_id", b->t->unk_id);
    gguf_put_bool(h, "tokenizer.ggml.add_bos_token", v->add_begin);
    gguf_put_bool(h, "tokenizer.ggml.add_eos_token", false);
    if (v->chat_template != NULL)
        gguf_put_text(h, "tokenizer.chat_template", v->chat_template, v->template_bytes);
}

static void put_name(struct gguf_head *h, const char *key, const char *text) {
    gguf_put_text(h, key, text, strlen(text));
}

static void put_kinds(struct gguf_head *h, const struct tables *b) {
    const uint64_t n = (uint64_t)b->v->size;
    gguf_put_array(h, "tokenizer.ggml.token_type", GGUF_I32, n);
    gguf_put_element(h, b->kind, n * sizeof *b->kind);
}

static int put_llama(struct gguf_head *h, struct tables *b) {
    bool prefix;
    TRY(find_prefix(b, &prefix));
    TRY(spell_all(b, true));
    TRY(check_llama(b));
    put_name(h, "tokenizer.ggml.model", "llama");
    put_name(h, "tokenizer.ggml.pre", "default");
    put_texts(h, b);
    gguf_put_array(h, "tokenizer.ggml.scores", GGUF_FLOAT, (uint64_t)b->v->size);
    gguf_put_element(h, b->score, (size_t)b->v->size * sizeof *b->score);
    put_kinds(h, b);
    gguf_put_bool(h, "tokenizer.ggml.add_space_prefix", prefix);
    put_marks(h, b);
    return 0;
}

static int put_gpt2(struct gguf_head *h, struct tables *b, const char *pre) {
    TRY(check_normal(b));
    for (int i = 0; i < 256; i++)
        if (b->t->byte_id[i] < 0)
            return refuse(b, "not every byte has a token");
    TRY(spell_all(b, false));
    put_name(h, "tokenizer.ggml.model", "gpt2");
    put_name(h, "tokenizer.ggml.pre", pre);
    put_texts(h, b);
    put_kinds(h, b);
    TRY(put_merges(h, b));
    put_marks(h, b);
    return 0;
}

static int put_tables(struct gguf_head *h, struct tables *b, const char **kind) {
    const size_t n = (size_t)b->v->size;
    b->text = calloc(n, sizeof *b->text);
    b->bytes = calloc(n, sizeof *b->bytes);
    b->kind = calloc(n, sizeof *b->kind);
    b->score = calloc(n, sizeof *b->score);
    if (b->text == NULL || b->bytes == NULL || b->kind == NULL || b->score == NULL)
        return no_memory(b);
    TRY(sort_merges(b));
    const char *pre = b->t->byte_level ? find_built_in(b->t) : NULL;
    *kind = pre != NULL ? pre : "llama";
    if (pre != NULL)
        return put_gpt2(h, b, pre);
    if (b->t->byte_level && b->t->n_steps > 0)
        return refuse(b, "its pre_tokenizer is none of gpt-2, llama-bpe, dbrx, qwen2, smollm and "
                         "tekken, which haggle can name to llama.cpp");
    return put_llama(h, b);
}

int gguf_vocab_put(struct gguf_head *h, const struct gguf_vocabulary *v, const char **kind,
                   struct sentences *notes, struct err *e) {
    struct tables b = {.v = v, .t = v->tokenizer, .notes = notes, .e = e};
    if (v->tokenizer == NULL) { // llama.cpp makes names for the ids itself
        *kind = "none";
        put_name(h, "tokenizer.ggml.model", "none");
        return 0;
    }
    if (b.t->size > v->size)
        return err_set(e, ERR_MISMATCH,
                       "%s has %d tokens, but the model has only %" PRId64
                       " ids; llama.cpp needs an id of the model for each",
                       b.t->name, b.t->size, v->size);
    const int rc = put_tables(h, &b, kind);
    region_free(&b.region);
    names_free(&b.ids);
    free(b.text);
    free(b.bytes);
    free(b.kind);
    free(b.score);
    free(b.merges);
    return rc;
}
