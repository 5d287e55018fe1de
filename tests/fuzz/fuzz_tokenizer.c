// fuzz_tokenizer.c - model/tokenizer.h: a file is refused with a reason, or its tokenizer can
// encode and decode.
#include "fuzz.h"

#include "model/tokenizer.h"

static void use(const struct tokenizer *t) {
    static const char text[] =
        "Hello  W\xC3\xB6rld 123, <|end|>\n\xE4\xBD\xA0\xFF\xF0\x9F\x98\x80's";
    struct tokenizer_encoder *c = NULL;
    struct token_list l = {0};
    struct err e = {0};
    char *back = NULL;
    size_t bytes = 0, capacity = 0;
    FUZZ_CHECK(tokenizer_size(t) > 0);
    FUZZ_CHECK(strlen(tokenizer_fingerprint(t)) == 32);
    FUZZ_CHECK(tokenizer_encoder_open(&c, t, &e) == 0);
    for (unsigned flags = 0; flags <= TOKENIZER_SPECIAL; flags++) {
        int rc = tokenizer_encode(c, text, sizeof text - 1, flags, &l, &e);
        FUZZ_CHECK_RESULT(rc, &e);
        for (size_t i = 0; i < l.n; i++)
            FUZZ_CHECK(l.ids[i] >= 0 && l.ids[i] < tokenizer_size(t));
        FUZZ_CHECK(tokenizer_decode(t, l.ids, l.n, flags, &back, &bytes, &capacity, &e) == 0);
        e = (struct err){0};
    }
    free(back);
    token_list_free(&l);
    tokenizer_encoder_close(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static struct fuzz_file file;
    struct tokenizer *t = NULL;
    struct err e = {0};
    int rc = tokenizer_open(&t, fuzz_file_set(&file, data, bytes), &e);
    FUZZ_CHECK_RESULT(rc, &e);
    FUZZ_CHECK((rc == 0) == (t != NULL));
    if (rc == 0)
        use(t);
    tokenizer_close(t);
    return 0;
}
