// effects_files.c - the sample files of effects.h. They are small, and every knob of the data has
// an effect on them. Words are numbered, so that no two windows are equal.
#include "bench/effects.h"

#include "base/file.h"
#include "model/adapter_file.h"
#include "model/safetensors.h"
#include "model/shape.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DOCUMENTS = 40, LINES = 300, LONG_WORDS = 90 };

static void put_words(FILE *f, int seed, int n) {
    static const char *const words[] = {"red", "stone", "runs", "over", "the", "quiet", "river"};
    for (int i = 0; i < n; i++)
        fprintf(f, "%s%s %d", i ? " " : "", words[(seed + 3 * i) % 7], seed * 13 + i);
}

static void put_text(FILE *f, int offset) {
    for (int i = 0; i < LINES; i++) {
        put_words(f, offset + i, 4);
        fputs(".\n", f);
    }
}
static void put_one_text(FILE *f) {
    put_text(f, 0);
}
static void put_other_text(FILE *f) {
    put_text(f, 1000);
}

// Every fifth answer is longer than a sequence of an observation.
static int answer_words(int i) {
    return i % 5 == 0 ? LONG_WORDS : 1 + i % 3;
}

static void put_chats(FILE *f) {
    for (int i = 0; i < DOCUMENTS; i++) {
        fputs("{\"messages\": [{\"role\": \"user\", \"content\": \"", f);
        put_words(f, i, 2);
        fputs("\"}, {\"role\": \"assistant\", \"content\": \"", f);
        put_words(f, i + 7, answer_words(i));
        fputs("\"}]}\n", f);
    }
}

static void put_pairs(FILE *f, const char *first, const char *second) {
    for (int i = 0; i < DOCUMENTS; i++) {
        fprintf(f, "{\"text\": \"text %d\", \"%s\": \"", i, first);
        put_words(f, i, 2);
        fprintf(f, "\", \"%s\": \"", second);
        put_words(f, i + 9, answer_words(i));
        fputs("\"}\n", f);
    }
}
static void put_mixed(FILE *f) {
    put_pairs(f, "prompt", "completion");
}
static void put_bad(FILE *f) {
    put_mixed(f);
    fputs("{\"text\": null}\n", f);
}
static void put_named(FILE *f) {
    put_pairs(f, "question", "answer");
}

// One token per byte as in the built-in tokenizer, with other ids, plus the tokens that mark chats.
// Tokens are named as in byte-level BPE: a printable byte by its character, any other byte by a
// character from U+0100 on.
static void put_tokenizer(FILE *f) {
    static const char *const marks[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    int hidden = 0;
    fputs("{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, \"added_tokens\": [", f);
    for (int i = 0; i < 3; i++)
        fprintf(f,
                "%s{\"id\": %d, \"content\": \"%s\", \"special\": true, \"single_word\": false, "
                "\"lstrip\": false, \"rstrip\": false, \"normalized\": false}",
                i ? ", " : "", 256 + i, marks[i]);
    fputs("], \"normalizer\": null, \"pre_tokenizer\": {\"type\": \"ByteLevel\", "
          "\"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": true}, "
          "\"post_processor\": null, \"decoder\": {\"type\": \"ByteLevel\"}, \"model\": {\"type\": "
          "\"BPE\", \"vocab\": {",
          f);
    for (int b = 0; b < 256; b++) {
        bool shown = (b > 32 && b < 127) || (b > 160 && b != 173);
        fprintf(f, "%s\"\\u%04x\": %d", b ? ", " : "", shown ? b : 256 + hidden, 255 - b);
        hidden += !shown;
    }
    fputs("}, \"merges\": []}}\n", f);
}

static void put_second(FILE *f) {
    fputs("model: tiny\nseq: 64\n", f);
}

// A model of one layer, beside weights that hold one tensor more. All weights are zero.
static bool extra_shape(struct model_shape *s) {
    if (model_shape_builtin(s, "tiny", NULL) != 0)
        return false;
    s->layers = s->heads = s->kv_heads = 1;
    s->width = s->head_dim = s->ffn = 8;
    return true;
}

static void put_extra_config(FILE *f) {
    struct model_shape s;
    if (extra_shape(&s))
        (void)model_shape_write_config(&s, f, NULL);
}

static int put_extra_weights(const char *dir, struct err *e) {
    static const int64_t one[] = {1};
    static const float zeros[4096]; // more than the largest tensor has
    char path[PATH_MAX];
    struct safetensors_writer *w;
    struct model_shape s;
    struct model_param p;
    TRY(extra_shape(&s) ? 0 : err_set(e, ERR_INTERNAL, "no shape is called tiny"));
    TRY(file_join(path, sizeof path, dir, "extra/model.safetensors", e));
    TRY(safetensors_writer_open(&w, path, e));
    int rc = safetensors_writer_declare(w, "extra", DTYPE_F32, 1, one, e);
    for (int64_t i = 0; rc == 0 && model_param_at(&s, i, &p); i++)
        rc = safetensors_writer_declare(w, p.name, DTYPE_F32, p.rank, p.dims, e);
    if (rc == 0)
        rc = safetensors_writer_put(w, zeros, sizeof *zeros, e);
    for (int64_t i = 0; rc == 0 && model_param_at(&s, i, &p); i++)
        rc = safetensors_writer_put(
            w, zeros, (size_t)(p.dims[0] * (p.rank > 1 ? p.dims[1] : 1)) * sizeof *zeros, e);
    if (rc == 0)
        rc = safetensors_writer_close(w, NULL, NULL, e);
    if (rc != 0)
        safetensors_writer_abort(w);
    return rc;
}

static int adapter_values(void *arg, const struct model_param *p, int64_t first, int64_t n,
                          float *out, struct err *e) {
    (void)arg, (void)p, (void)e;
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)((first + i) % 7 - 3) * 0.01F;
    return 0;
}

// Of the built-in tiny.
static int put_adapter(const char *dir, struct err *e) {
    const struct adapter a = {.rank = 2, .alpha = 4, .targets = "all"};
    struct model_shape s;
    const struct adapter_save save = {
        .adapter = &a, .shape = &s, .dtype = DTYPE_F32, .read = adapter_values};
    char path[PATH_MAX], *text;
    size_t bytes;
    TRY(model_shape_builtin(&s, "tiny", e));
    TRY(file_join(path, sizeof path, dir, "adapter/" ADAPTER_FILE, e));
    TRY(file_make_parent(path, e));
    TRY(adapter_save_weights(&save, path, NULL, NULL, e));
    TRY(file_join(path, sizeof path, dir, "adapter/" ADAPTER_CONFIG, e));
    TRY(adapter_save_config(&save, &text, &bytes, e));
    const int rc = file_write_atomic(path, text, bytes, e);
    free(text);
    return rc;
}

static const struct {
    const char *name;
    void (*put)(FILE *f);
} files[] = {
    {"text.txt", put_one_text},
    {"other.txt", put_other_text},
    {"chat.jsonl", put_chats},
    {"mixed.jsonl", put_mixed},
    {"named.jsonl", put_named},
    {"tokenizer.json", put_tokenizer},
    {"bad.jsonl", put_bad},
    {"second.yaml", put_second},
    {"extra/config.json", put_extra_config},
};

int effects_make_files(struct effects_dir *dir, struct err *e) {
    if (file_make_locked_dir(dir->path, sizeof dir->path, "check", &dir->lock, e) != 0)
        return err_context(e, "sample files");
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[PATH_MAX];
        TRY(file_join(path, sizeof path, dir->path, files[i].name, e));
        TRY(file_make_parent(path, e));
        FILE *f = fopen(path, "we");
        if (!f)
            return err_set(e, ERR_IO, "'%.200s' cannot be written: %s", path, strerror(errno));
        files[i].put(f);
        if (fclose(f) != 0)
            return err_set(e, ERR_IO, "'%.200s' cannot be written: %s", path, strerror(errno));
    }
    TRY(put_adapter(dir->path, e));
    return put_extra_weights(dir->path, e);
}

void effects_remove_files(struct effects_dir *dir) {
    if (dir->path[0] == '\0')
        return;
    (void)file_remove_tree(dir->path, NULL);
    close(dir->lock);
    dir->path[0] = '\0';
}
