// ids.c - checks that the exported tokenizer.json gives the ids the model was trained with.
// It encodes fixed texts with it and with the source's tokenizer (or the built-in one, which
// bytes.c wrote as a file).
#include "train/checkpoint_dir.h"
#include "export/parts.h"

#include "base/file.h"
#include "model/tokenizer.h"

#include <stdlib.h>
#include <string.h>

// One text for each thing that tokenizers get wrong: upper and lower case, contractions, digits,
// code, runs of blanks, combining marks, scripts without spaces, emoji made of several code points,
// the spelling of special tokens.
static const char *const texts[] = {
    "The quick brown fox jumps over the lazy dog.",
    "Don't you'll WE'VE it's O'Neill's",
    "0 12 345 6789 3.14159 1,000,000 2024-12-31",
    "for (int i = 0; i < n; i++) {\n\tx[i] += 2 * y[i];\n}\n",
    "  leading,   inner    and trailing   \n\n\n \t end ",
    "na\xc3\xafve caf\xc3\xa9 / nai\xcc\x88ve cafe\xcc\x81",
    "\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e\xe3\x81\xae\xe3\x83\x86\xe3\x82\xb9\xe3\x83\x88 "
    "\xed\x95\x9c\xea\xb5\xad\xec\x96\xb4 "
    "\xd0\xa0\xd1\x83\xd1\x81\xd1\x81\xd0\xba\xd0\xb8\xd0\xb9",
    "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa7 \xf0\x9f\x8f\xb3\xef\xb8\x8f "
    "\xf0\x9f\x87\xa9\xf0\x9f\x87\xaa",
    "<|endoftext|> <|im_start|>user\n</s>[INST]<|eot_id|>",
    "a",
};
enum { TEXTS = sizeof texts / sizeof *texts };
static const char not_utf8[] = "bytes \x80\xff\xc3( that are no text";

static int encode(struct tokenizer *t, const char *text, unsigned flags, struct token_list *out,
                  struct err *e) {
    struct tokenizer_encoder *c;
    TRY(tokenizer_encoder_open(&c, t, e));
    out->n = 0;
    int rc = tokenizer_encode(c, text, strlen(text), flags, out, e);
    tokenizer_encoder_close(c);
    return rc;
}

static int compare(struct tokenizer *a, struct tokenizer *b, int64_t *differ, struct err *e) {
    struct token_list x = {0}, y = {0};
    int rc = 0;
    for (int i = 0; rc == 0 && i < 2 * (TEXTS + 1); i++) {
        const char *text = i / 2 < TEXTS ? texts[i / 2] : not_utf8;
        unsigned flags = i % 2 ? TOKENIZER_SPECIAL : 0;
        rc = encode(a, text, flags, &x, e);
        if (rc == 0)
            rc = encode(b, text, flags, &y, e);
        *differ += x.n != y.n || (x.n > 0 && memcmp(x.ids, y.ids, x.n * sizeof *x.ids) != 0);
    }
    token_list_free(&x);
    token_list_free(&y);
    return rc;
}

// *out is NULL, without error, when there is no tokenizer.json, or one of a kind that haggle does
// not read. Then only the hash of the copied file is compared.
static int open_exported(struct exporter *x, struct tokenizer **out) {
    char path[PATH_MAX];
    struct err why = {0};
    *out = NULL;
    if (x->dir[0] == '\0') // of a model without a folder
        return 0;
    TRY(file_join(path, sizeof path, x->dir, "tokenizer.json", x->e));
    if (!file_exists(path))
        return 0;
    int rc = tokenizer_open(out, path, &why);
    if (rc != ERR_UNSUPPORTED || x->bytes)
        return rc == 0 ? 0 : err_set(x->e, rc, "%s", why.text);
    checkpoint_say(&x->o->listener, LOG_WARN,
                   "token ids are not compared, only the bytes of the files: %s", why.text);
    return 0;
}

int export_check_tokens(struct exporter *x) {
    struct tokenizer *ours = NULL, *source = NULL;
    int64_t differ = 0;
    if (!x->bytes && x->tokenizer_file[0] == '\0')
        return 0;
    TRY(open_exported(x, &ours));
    if (ours == NULL)
        return 0;
    int rc = x->bytes ? tokenizer_open_bytes(&source, x->e)
                      : tokenizer_open(&source, x->tokenizer_file, x->e);
    if (rc == 0)
        rc = compare(ours, source, &differ, x->e);
    if (rc == 0)
        rc = export_add_figure(x, "fixed texts with other token ids than the run's", (double)differ,
                               0);
    tokenizer_close(source);
    tokenizer_close(ours);
    return rc;
}

int export_put_texts(struct exporter *x, struct json_writer *w) {
    struct tokenizer *t = NULL;
    struct token_list ids = {0};
    int rc = open_exported(x, &t);
    json_member_array(w, "texts");
    for (int i = 0; rc == 0 && t != NULL && i < TEXTS; i++) {
        rc = encode(t, texts[i], TOKENIZER_SPECIAL, &ids, x->e);
        json_put_object_begin(w);
        json_member_string(w, "text", texts[i]);
        json_member_array(w, "ids");
        for (size_t k = 0; k < ids.n; k++)
            json_put_i64(w, ids.ids[k]);
        json_put_array_end(w);
        json_put_object_end(w);
    }
    json_put_array_end(w);
    token_list_free(&ids);
    tokenizer_close(t);
    return rc;
}
