// fuzz_encode.c - any text through a tokenizer with the same kinds of parts as published ones. The
// ids decode to the same bytes, and encoding does not depend on what was encoded before.
#include "fuzz.h"

#include "model/tokenizer.h"

// It has every byte, some merges, added tokens of every kind, and the pattern of Llama 3.
static const char frame[] =
    "{\"version\":\"1.0\",\"added_tokens\":["
    "{\"id\":264,\"content\":\"<|end|>\",\"special\":true,\"normalized\":false},"
    "{\"id\":265,\"content\":\"<l>\",\"lstrip\":false,\"normalized\":false},"
    "{\"id\":266,\"content\":\"<|\",\"single_word\":true,\"normalized\":true},"
    "{\"id\":267,\"content\":\"  \",\"normalized\":true}],"
    "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":"
    "{\"Regex\":\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,"
    "3}| "
    "?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"},"
    "\"behavior\":\"Isolated\"},{\"type\":\"Digits\",\"individual_digits\":false},"
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]},"
    "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"merges\":[\"a a\",\"aa "
    "aa\","
    "\"t h\",\"th e\",\"1 2\",\"12 1\",\"x y\",\"aa "
    "a\"],\"vocab\":{\"aa\":256,\"aaaa\":257,\"th\":258,"
    "\"the\":259,\"12\":260,\"121\":261,\"xy\":262,\"aaa\":263";

static bool prints(unsigned b) {
    return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
}

static struct tokenizer *make(void) {
    struct fuzz_file file = {0};
    struct tokenizer *t = NULL;
    struct err e = {0};
    char *text = malloc(sizeof frame + 256 * 24);
    FUZZ_CHECK(text != NULL);
    size_t n = (size_t)sprintf(text, "%s", frame);
    unsigned next = 0x100;
    for (unsigned b = 0; b < 256; b++)
        n += (size_t)sprintf(text + n, ",\"\\u%04x\":%u", prints(b) ? b : next++, b);
    n += (size_t)sprintf(text + n, "}}}");
    if (tokenizer_open(&t, fuzz_file_set(&file, text, n), &e) != 0)
        fprintf(stderr, "%s\n", e.text);
    FUZZ_CHECK(t != NULL);
    close(file.fd);
    free(text);
    return t;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static struct tokenizer *t;
    static struct tokenizer_encoder *used;
    struct tokenizer_encoder *fresh = NULL;
    struct token_list a = {0}, b = {0};
    struct err e = {0};
    char *back = NULL;
    size_t n = 0, capacity = 0;
    if (!t) {
        t = make();
        FUZZ_CHECK(tokenizer_encoder_open(&used, t, &e) == 0);
    }
    const char *text = bytes ? (const char *)data : "";
    unsigned flags = bytes % 2 ? TOKENIZER_SPECIAL : 0;
    // Only for some inputs, because a new encoder must clear a cache of two megabytes.
    bool compare = bytes % 16 == 3;
    if (compare)
        FUZZ_CHECK(tokenizer_encoder_open(&fresh, t, &e) == 0);
    FUZZ_CHECK(tokenizer_encode(compare ? fresh : used, text, bytes, flags, &a, &e) == 0);
    FUZZ_CHECK(tokenizer_encode(used, text, bytes, flags, &b, &e) == 0);
    FUZZ_CHECK(a.n == b.n && (a.n == 0 || memcmp(a.ids, b.ids, a.n * sizeof *a.ids) == 0));
    FUZZ_CHECK(tokenizer_decode(t, a.ids, a.n, TOKENIZER_SPECIAL, &back, &n, &capacity, &e) == 0);
    FUZZ_CHECK(n == bytes && (n == 0 || memcmp(back, text, n) == 0));
    free(back);
    token_list_free(&a);
    token_list_free(&b);
    tokenizer_encoder_close(fresh);
    return 0;
}
