// data_samples.c - see data_samples.h.
#include "report/data_samples.h"

#include <inttypes.h>
#include <stdlib.h>

enum {
    SAMPLE_HEAD = 200, // tokens shown from the beginning of a long document
    SAMPLE_TAIL = 50,  // and from its end
};

struct sampled {
    size_t file;
    uint64_t document, at, n; // tokens of the shard
    uint64_t head, tail;      // shown: [0, head) and [tail, n)
};

// The files take turns. Returns false past the last document.
static bool find_sample(const struct dataset *d, int64_t index, struct sampled *out) {
    uint64_t round = 0;
    for (int64_t left = index;; round++) {
        bool any = false;
        for (size_t i = 0; i < dataset_files(d); i++) {
            const struct shard *s = dataset_file_shard(d, i);
            if (s->counts.documents <= round)
                continue;
            any = true;
            if (left-- > 0)
                continue;
            const uint64_t n = s->offsets[round + 1] - s->offsets[round];
            const bool whole = n <= SAMPLE_HEAD + SAMPLE_TAIL;
            *out = (struct sampled){.file = i,
                                    .document = round,
                                    .at = s->offsets[round],
                                    .n = n,
                                    .head = whole ? n : SAMPLE_HEAD,
                                    .tail = whole ? n : n - SAMPLE_TAIL};
            return true;
        }
        if (!any)
            return false;
    }
}

// The text of consecutive tokens that are all trained, or all not.
struct stretch {
    char *text;
    size_t bytes, capacity;
    bool trained;
};

static int next_stretch(const struct dataset *d, const struct sampled *x, uint64_t *from,
                        struct stretch *out, struct err *e) {
    const struct shard *s = dataset_file_shard(d, x->file);
    const uint64_t end = *from < x->head ? x->head : x->n;
    out->bytes = 0;
    out->trained = shard_is_trained(s, x->at + *from);
    int32_t ids[SAMPLE_HEAD + SAMPLE_TAIL];
    size_t n = 0;
    const unsigned flags = TOKENIZER_SPECIAL | (*from > 0 ? TOKENIZER_CONTINUES : 0);
    for (; *from < end && shard_is_trained(s, x->at + *from) == out->trained; ++*from)
        ids[n++] = shard_id(s, x->at + *from);
    return tokenizer_decode(dataset_tokenizer(d), ids, n, flags, &out->text, &out->bytes,
                            &out->capacity, e);
}

// The bytes of the well-formed UTF-8 character at `s`; 0 when there is none.
static size_t character(const unsigned char *s, size_t n) {
    size_t length = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    if (length == 0 || s[0] > 0xf4 || length > n)
        return 0;
    for (size_t i = 1; i < length; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    return length;
}

// Control characters are printed as \xNN, so that a terminal does not act on them. Indents lines.
static void print_text(FILE *f, const char *text, size_t bytes) {
    for (size_t i = 0; i < bytes;) {
        const unsigned char *c = (const unsigned char *)text + i;
        const size_t length = character(c, bytes - i);
        if (*c == '\n')
            fputs("\n    ", f);
        else if (length == 0 || (*c < 0x20 && *c != '\t') || *c == 0x7f ||
                 (*c == 0xc2 && c[1] < 0xa0)) // C1 control characters
            fprintf(f, "\\x%02x", *c);
        else
            fwrite(c, 1, length, f);
        i += *c == 0xc2 && length == 2 && c[1] < 0xa0 ? 1 : length > 0 ? length : 1;
    }
}

int data_print_sample(const struct dataset *d, int64_t index, bool color, FILE *f, struct err *e) {
    struct sampled x;
    struct stretch part = {0};
    int rc = 0;
    if (!find_sample(d, index, &x))
        return 0;
    const struct shard *s = dataset_file_shard(d, x.file);
    fprintf(f, "\n%s, document %" PRIu64 ": %" PRIu64 " tokens, %" PRIu64 " trained\n    ",
            dataset_file_path(d, x.file), x.document + 1, x.n, shard_count_trained(s, x.at, x.n));
    for (uint64_t from = 0; rc == 0 && from < x.n;) {
        if (from == x.head) {
            fprintf(f, "\n    ... %" PRIu64 " tokens ...\n    ", x.tail - x.head);
            from = x.tail;
        }
        rc = next_stretch(d, &x, &from, &part, e);
        if (rc != 0)
            break;
        if (part.trained)
            fputs(color ? "\x1b[1;32m" : "[[", f);
        print_text(f, part.text, part.bytes);
        if (part.trained)
            fputs(color ? "\x1b[0m" : "]]", f);
    }
    free(part.text);
    fputc('\n', f);
    return rc;
}

int data_put_sample(const struct dataset *d, int64_t index, struct json_writer *w, struct err *e) {
    struct sampled x;
    struct stretch part = {0};
    int rc = 0;
    if (!find_sample(d, index, &x))
        return 0;
    const struct shard *s = dataset_file_shard(d, x.file);
    json_put_object_begin(w);
    json_member_string(w, "path", dataset_file_path(d, x.file));
    json_member_i64(w, "document", (int64_t)x.document + 1);
    json_member_i64(w, "tokens", (int64_t)x.n);
    json_member_i64(w, "trained_tokens", (int64_t)shard_count_trained(s, x.at, x.n));
    json_member_array(w, "ids");
    for (uint64_t i = 0; i < x.head; i++) // only the beginning of a long document
        json_put_i64(w, shard_id(s, x.at + i));
    json_put_array_end(w);
    json_member_array(w, "parts");
    for (uint64_t from = 0; rc == 0 && from < x.head;) {
        rc = next_stretch(d, &x, &from, &part, e);
        if (rc != 0)
            break;
        json_put_object_begin(w);
        json_member_bool(w, "trained", part.trained);
        json_put_key(w, "text");
        json_put_string_n(w, part.text != NULL ? part.text : "", part.bytes);
        json_put_object_end(w);
    }
    json_put_array_end(w);
    json_put_object_end(w);
    free(part.text);
    return rc;
}
