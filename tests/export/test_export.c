// test_export.c - a run as a Hugging Face folder: every family exported and imported bit for bit,
// types, shards, tokenizers, what is refused, and that the check finds every kind of damage.
#include "export_call.h"

#include "model/load.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>

// Compares every parameter of both folders, as float32 after rounding to `type`. Returns how many
// are stored in `type` in b.
static int64_t assert_same_weights(const char *a, const char *b, enum dtype type) {
    struct err e = {0};
    struct model_shape s;
    struct model_param p;
    struct weights *x, *y;
    int64_t stored = 0;
    assert_worked(model_shape_read_config(&s, in(a, "config.json"), &e), &e);
    assert_worked(weights_open(&x, a, &e), &e);
    assert_worked(weights_open(&y, b, &e), &e);
    for (int64_t i = 0; model_param_at(&s, i, &p); i++) {
        const struct safetensors_entry *t = weights_find_param(x, &s, &p, &e);
        const struct safetensors_entry *u = weights_find_param(y, &s, &p, &e);
        assert_true(t != NULL && u != NULL);
        size_t n = (size_t)t->elements;
        float *m = malloc(n * 4), *k = malloc(n * 4);
        void *rounded = malloc(n * 8);
        assert_true(m != NULL && k != NULL && rounded != NULL);
        assert_worked(weights_read(x, t, 0, t->elements, m, DTYPE_F32, &e), &e);
        assert_worked(weights_read(y, u, 0, u->elements, k, DTYPE_F32, &e), &e);
        if (type != DTYPE_F32) {
            dtype_convert(rounded, type, m, DTYPE_F32, n);
            dtype_convert(m, DTYPE_F32, rounded, type, n);
        }
        assert_memory_equal(m, k, n * 4);
        stored += u->dtype == type;
        free(m);
        free(k);
        free(rounded);
    }
    assert_int_equal(weights_count(y), model_param_count(&s)); // a tied head is not written
    weights_close(x);
    weights_close(y);
    return stored;
}

static void assert_all_zero(const struct export_call *x) {
    assert_true(x->r.ok);
    assert_true(x->r.n_figures >= 6);
    for (size_t i = 0; i < x->r.n_figures; i++) {
        assert_true(x->r.figures[i].ok);
        assert_true(x->r.figures[i].value == 0);
        assert_true(x->r.figures[i].limit == 0);
    }
}

// ---------------------------------------------------------------- there and back

// Import, train, export, import: the same bits, and the same losses afterwards.
static int round_trip(void *arg, const char *name) {
    const struct scratch *s = arg;
    char source[1024], run_name[64], out_name[64];
    struct run r, from_export, from_checkpoint;
    struct export_call x;
    snprintf(source, sizeof source, "%s/tests/reference/%s", HAGGLE_SOURCE_DIR, name);
    if (!file_is_dir(source))
        return 0;
    snprintf(run_name, sizeof run_name, "run-%.20s", name);
    snprintf(out_name, sizeof out_name, "out-%.20s", name);
    train(&r, s, run_name, source, NULL);
    export_init(&x, s, r.dir, out_name);
    export_go(&x);
    assert_worked(x.rc, &x.e);
    assert_all_zero(&x);
    assert_int_equal(x.r.step, 3);
    assert_true(assert_same_weights(step_file(r.dir, 3, ""), x.out, DTYPE_F32) > 0);
    // With the types of the source, not a byte of the configuration changes.
    assert_same_file(in(source, "config.json"), in(x.out, "config.json"));
    export_look(&x);
    assert_worked(x.rc, &x.e);
    assert_all_zero(&x);
    snprintf(run_name, sizeof run_name, "x-%.20s", name);
    train(&from_export, s, run_name, x.out, "tokenizer=bytes");
    snprintf(run_name, sizeof run_name, "c-%.20s", name);
    train(&from_checkpoint, s, run_name, step_file(r.dir, 3, ""), "tokenizer=bytes");
    assert_memory_equal(from_export.losses, from_checkpoint.losses, 3 * sizeof *r.losses);
    export_free(&x.r);
    return 0;
}

static void test_every_family(void **state) {
    struct err e = {0};
    assert_worked(file_list_dir(HAGGLE_SOURCE_DIR "/tests/reference", round_trip, *state, &e), &e);
}

static void test_types(void **state) {
    const struct scratch *s = *state;
    static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    static const char *const configs[] = {"\"float32\"", "\"bfloat16\"", "\"float16\""};
    struct run r, again;
    struct export_call x;
    struct err e = {0};
    train(&r, s, "types", s->nano, NULL);
    for (int i = 0; i < 3; i++) {
        export_init(&x, s, r.dir, dtype_text(types[i]));
        x.o.as_source = false;
        x.o.dtype = types[i];
        export_go(&x);
        assert_worked(x.rc, &x.e);
        struct model_shape shape;
        assert_worked(model_shape_read_config(&shape, in(x.out, "config.json"), &e), &e);
        assert_int_equal(assert_same_weights(step_file(r.dir, 3, ""), x.out, types[i]),
                         model_param_count(&shape));
        char *config = text_of(in(x.out, "config.json"));
        assert_non_null(strstr(config, configs[i]));
        free(config);
        // Rounding has a visible effect below its limit. Without rounding there is none.
        assert_true(figure(&x, "weights that differ") == 0);
        assert_true(i == 0 ? figure(&x, "logits") == 0 : figure(&x, "logits") > 0);
        export_free(&x.r);
    }
    // A run that started from 16-bit weights: exported in the source's types, they have 16 bits
    // again.
    train(&again, s, "again", in(s->dir, "bf16"), "tokenizer=bytes");
    export_init(&x, s, again.dir, "as-source");
    export_go(&x);
    assert_worked(x.rc, &x.e);
    assert_true(assert_same_weights(step_file(again.dir, 3, ""), x.out, DTYPE_BF16) > 0);
    assert_same_file(in(s->dir, "bf16/config.json"), in(x.out, "config.json"));
    export_free(&x.r);
}

static void test_shards(void **state) {
    const struct scratch *s = *state;
    struct run r;
    struct export_call x;
    struct err e = {0};
    char first[128];
    train(&r, s, "shards", s->nano, NULL);
    // One byte: a file per tensor. 8 KiB: the embedding alone is larger, and small tensors share a
    // file.
    static const uint64_t sizes[] = {1, 8192};
    int64_t files[2];
    for (int i = 0; i < 2; i++) {
        export_init(&x, s, r.dir, i == 0 ? "shards-1" : "shards-8k");
        x.o.shard_bytes = sizes[i];
        export_go(&x);
        assert_worked(x.rc, &x.e);
        assert_all_zero(&x);
        files[i] = x.r.shards;
        snprintf(first, sizeof first, "model-00001-of-%05lld.safetensors", (long long)x.r.shards);
        assert_true(file_exists(in(x.out, first)));
        assert_false(file_exists(in(x.out, "model.safetensors")));
        assert_same_weights(step_file(r.dir, 3, ""), x.out, DTYPE_F32);
        export_free(&x.r);
    }
    struct model_shape shape;
    assert_worked(model_shape_read_config(&shape, in(x.out, "config.json"), &e), &e);
    assert_int_equal(files[0], model_param_count(&shape));
    assert_true(files[1] > 1 && files[1] < files[0]);
    uint64_t bytes;
    char *index = text_of(in(x.out, "model.safetensors.index.json"));
    char total[64];
    snprintf(total, sizeof total, "\"total_size\": %lld",
             (long long)model_total_elements(&shape) * 4);
    assert_non_null(strstr(index, total));
    assert_null(strstr(index, "lm_head")); // tied
    free(index);
    assert_worked(file_size(in(x.out, first), &bytes, &e), &e);
    assert_true(bytes > 8192);
}

// ---------------------------------------------------------------- what goes along

static void test_built_in_bytes(void **state) {
    const struct scratch *s = *state;
    struct run r;
    struct export_call x;
    train(&r, s, "built-in", "tiny", NULL);
    export_init(&x, s, r.dir, "tiny-hf");
    export_go(&x);
    assert_worked(x.rc, &x.e);
    assert_all_zero(&x);
    assert_true(figure(&x, "token ids") == 0); // from the file, and from the built-in tokenizer
    char *config = text_of(in(x.out, "config.json"));
    char *generation = text_of(in(x.out, "generation_config.json"));
    char *card = text_of(in(x.out, "README.md"));
    assert_non_null(strstr(config, "\"LlamaForCausalLM\""));
    assert_non_null(strstr(config, "\"model_type\": \"llama\""));
    assert_non_null(strstr(generation, "\"eos_token_id\": 256"));
    assert_non_null(strstr(card, "step 3"));
    assert_non_null(strstr(card, "| optim.lr | 0.003 |"));
    assert_null(strstr(card, s->dir)); // no path of this machine
    free(config);
    free(generation);
    free(card);
    export_free(&x.r);
}

// Tokenizer, template and terms of use are copied byte for byte, also if the run began from another
// run.
static void test_source_files(void **state) {
    const struct scratch *s = *state;
    static const char *const names[] = {
        "tokenizer.json", "tokenizer_config.json",  "chat_template.jinja", "generation_config.json",
        "LICENSE",        "special_tokens_map.json"};
    struct run r, second;
    struct export_call x;
    struct err e = {0};
    char source[512];
    // The byte tokenizer, written as a file, is a tokenizer like any other.
    train(&r, s, "bytes", s->nano, NULL);
    export_init(&x, s, r.dir, "source");
    export_go(&x);
    assert_worked(x.rc, &x.e);
    export_free(&x.r);
    snprintf(source, sizeof source, "%s", x.out);
    put_text(in(source, "chat_template.jinja"), "{{ messages }}\n");
    put_text(in(source, "LICENSE"), "as you like it\n");
    put_text(in(source, "special_tokens_map.json"), "{\"eos_token\": \"<|endoftext|>\"}\n");
    put_text(in(source, "notes.txt"), "not part of the model\n");
    train(&r, s, "first", source, NULL);
    train(&second, s, "second", step_file(r.dir, 3, ""), "tokenizer=");
    export_init(&x, s, second.dir, "chained");
    export_go(&x);
    assert_worked(x.rc, &x.e);
    assert_string_equal(x.r.source, source);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_same_file(in(source, names[i]), in(x.out, names[i]));
    assert_false(file_exists(in(x.out, "notes.txt")));
    assert_true(figure(&x, "token ids") == 0);
    export_free(&x.r);
    // The folder was moved since: the export is refused, and the advice in the message works.
    char moved[600];
    snprintf(moved, sizeof moved, "%s-moved", source);
    assert_worked(file_rename(source, moved, &e), &e);
    export_init(&x, s, second.dir, "moved-out");
    export_go(&x);
    assert_failed(x.rc, ERR_IO, &x.e, "--source|cannot be found");
    assert_nothing_left(&x);
    x.o.source = moved;
    export_go(&x);
    assert_worked(x.rc, &x.e);
    assert_same_file(in(moved, "tokenizer.json"), in(x.out, "tokenizer.json"));
    export_free(&x.r);
    // A tokenizer that was given to the run separately is exported under the name that tools
    // expect.
    char given[600], assignment[700];
    snprintf(given, sizeof given, "%s/words.json", s->dir);
    char *words = text_of(in(moved, "tokenizer.json"));
    put_text(given, words);
    free(words);
    snprintf(assignment, sizeof assignment, "tokenizer=%s", given);
    train(&r, s, "given", s->nano, assignment);
    export_init(&x, s, r.dir, "given-out");
    export_go(&x);
    assert_worked(x.rc, &x.e);
    assert_same_file(given, in(x.out, "tokenizer.json"));
    assert_true(file_exists(in(x.out, "tokenizer_config.json")));
    assert_true(figure(&x, "token ids") == 0);
    export_free(&x.r);
    assert_int_equal(unlink(given), 0);
    export_init(&x, s, r.dir, "given-lost");
    export_go(&x);
    assert_failed(x.rc, ERR_IO, &x.e, "words.json|cannot be found");
    assert_nothing_left(&x);
    // The folder of another model is refused as the source.
    export_init(&x, s, second.dir, "other-source");
    x.o.source = HAGGLE_SOURCE_DIR "/tests/reference/qwen3";
    export_go(&x);
    assert_failed(x.rc, ERR_MISMATCH, &x.e, "is not the model that the run trained|qwen3");
    assert_nothing_left(&x);
}

static void test_probe(void **state) {
    const struct scratch *s = *state;
    struct run r;
    struct export_call x;
    char probe[600];
    train(&r, s, "probe", s->nano, NULL);
    export_init(&x, s, r.dir, "probed");
    snprintf(probe, sizeof probe, "%s/probe.json", s->dir);
    x.o.probe = probe;
    export_go(&x);
    assert_worked(x.rc, &x.e);
    char *text = text_of(probe);
    assert_non_null(strstr(text, "\"losses\":[["));
    assert_non_null(strstr(text, "\"text\":\"The quick"));
    assert_non_null(strstr(text, "\"ids\":[84,104,101,32"));
    // Logits are the same with a padded vocabulary.
    x.knobs.cpu_blas = CPU_BLAS_BUILTIN;
    for (int i = 0; i < 2; i++) {
        char other[600];
        snprintf(other, sizeof other, "%s/probe-%d.json", s->dir, i);
        x.o.probe = other;
        x.knobs.logits_pad = i ? 48 : 1;
        export_look(&x);
        assert_worked(x.rc, &x.e);
        assert_true(figure(&x, "logits") == 0);
    }
    assert_same_file(in(s->dir, "probe-0.json"), in(s->dir, "probe-1.json"));
    free(text);
    export_free(&x.r);
}

// ---------------------------------------------------------------- damage

static int flip_weight(void *arg, const char *dir, struct err *e) {
    (void)arg;
    (void)e;
    int fd = open(in(dir, "model.safetensors"), O_RDWR);
    unsigned char byte;
    struct stat st;
    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    assert_int_equal(pread(fd, &byte, 1, st.st_size - 2), 1);
    byte ^= 1; // the lowest bit of an exponent, which is too small to see in a loss
    assert_int_equal(pwrite(fd, &byte, 1, st.st_size - 2), 1);
    close(fd);
    return 0;
}

static void test_damage_before_the_check(void **state) {
    const struct scratch *s = *state;
    struct run r;
    struct export_call x;
    train(&r, s, "damage", s->nano, NULL);
    export_init(&x, s, r.dir, "damaged");
    x.o.on_written = flip_weight;
    export_go(&x);
    assert_failed(x.rc, ERR_NUMERIC, &x.e, "model.safetensors|figures exceed their limits");
    assert_false(x.r.ok);
    assert_nothing_left(&x);
    export_free(&x.r);
}

// Writes the right size and hash of a changed file into haggle.json, as a forger would. Then only
// the content can reveal the change.
static void forge(const char *dir, const char *name) {
    struct err e = {0};
    char hash[HASH_TEXT_BYTES], entry[128];
    char *bytes, *json = text_of(in(dir, "haggle.json"));
    size_t n;
    assert_worked(file_read_all(in(dir, name), 1 << 24, &bytes, &n, &e), &e);
    hash_of(bytes, n, hash);
    free(bytes);
    snprintf(entry, sizeof entry, "\"%s\"", name);
    char *at = strstr(json, entry);
    assert_non_null(at);
    char *old_hash = strstr(at, "\"hash\": \"");
    char *old_bytes = strstr(at, "\"bytes\": ");
    assert_true(old_hash != NULL && old_bytes != NULL);
    memcpy(old_hash + strlen("\"hash\": \""), hash, strlen(hash));
    char *forged = malloc(strlen(json) + 64);
    assert_non_null(forged);
    char *rest = old_bytes + strlen("\"bytes\": ");
    sprintf(forged, "%.*s%zu%s", (int)(rest - json), json, n, rest + strspn(rest, "0123456789"));
    put_text(in(dir, "haggle.json"), forged);
    free(forged);
    free(json);
}

static void replace_in(const char *path, const char *from, const char *to) {
    char *text = text_of(path), *at = strstr(text, from);
    assert_non_null(at);
    char *out = malloc(strlen(text) + strlen(to) + 1);
    assert_non_null(out);
    sprintf(out, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    put_text(path, out);
    free(out);
    free(text);
}

static void test_damage_found_later(void **state) {
    const struct scratch *s = *state;
    struct run r;
    struct export_call x;
    train(&r, s, "later", s->nano, NULL);
    export_init(&x, s, r.dir, "checked");
    export_go(&x);
    assert_worked(x.rc, &x.e);
    flip_weight(NULL, x.out, NULL);
    export_look(&x);
    assert_failed(x.rc, ERR_NUMERIC, &x.e, "model.safetensors|not as written");
    forge(x.out, "model.safetensors"); // one bit of one weight differs, and the hash matches
    export_look(&x);
    assert_failed(x.rc, ERR_NUMERIC, &x.e, "weights that differ");
    assert_true(figure(&x, "weights that differ") == 1);
    flip_weight(NULL, x.out, NULL);
    forge(x.out, "model.safetensors");
    export_look(&x);
    assert_worked(x.rc, &x.e);
    // The configuration describes another computation.
    replace_in(in(x.out, "config.json"), "\"rope_theta\": 10000", "\"rope_theta\": 20000");
    forge(x.out, "config.json");
    export_look(&x);
    assert_failed(x.rc, ERR_NUMERIC, &x.e, "figures exceed their limits");
    assert_true(figure(&x, "logits") > 1e-6);
    replace_in(in(x.out, "config.json"), "\"rope_theta\": 20000", "\"rope_theta\": 10000");
    forge(x.out, "config.json");
    // Two letters of the tokenizer are swapped.
    replace_in(in(x.out, "tokenizer.json"), "\"a\": 97", "\"a\": 98");
    replace_in(in(x.out, "tokenizer.json"), "\"b\": 98", "\"b\": 97");
    forge(x.out, "tokenizer.json");
    export_look(&x);
    assert_failed(x.rc, ERR_NUMERIC, &x.e, "token ids");
    // A file is missing.
    assert_int_equal(unlink(in(x.out, "README.md")), 0);
    export_look(&x);
    assert_failed(x.rc, ERR_NUMERIC, &x.e, "README.md|not as written");
    export_free(&x.r);
}

// Every proper prefix of haggle.json is refused, and so are names that point outside the folder.
static void test_hostile_manifest(void **state) {
    const struct scratch *s = *state;
    static const char *const bad[] = {
        "{\"export\": 1, \"step\": 3, \"weights\": \"x\", \"files\": {}}",
        "{\"export\": 9, \"step\": 3, \"files\": {}}",
        "{\"export\": 1, \"files\": {\"../../etc/passwd\": {\"bytes\": 1, \"hash\": "
        "\"00000000000000000000000000000000\"}}}",
        "{\"export\": 1, \"files\": {\"a\": {\"bytes\": -1, \"hash\": "
        "\"00000000000000000000000000000000\"}}}",
        "{\"export\": 1, \"files\": {\"a\": 3}}",
        "[]",
        "",
    };
    struct run r;
    struct export_call x;
    train(&r, s, "hostile", s->nano, NULL);
    export_init(&x, s, r.dir, "prefixes");
    export_go(&x);
    assert_worked(x.rc, &x.e);
    char *text = text_of(in(x.out, "haggle.json"));
    size_t n = strlen(text);
    for (size_t i = 0; i < n; i++) {
        struct err e = {0};
        assert_worked(unlink(in(x.out, "haggle.json")), &e);
        FILE *f = fopen(in(x.out, "haggle.json"), "w");
        assert_true(f != NULL && fwrite(text, 1, i, f) == i && fclose(f) == 0);
        export_look(&x);
        if (x.rc != ERR_FORMAT)
            fail_msg("%zu bytes of haggle.json: %d %s", i, x.rc, x.e.text);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        FILE *f = fopen(in(x.out, "haggle.json"), "w");
        assert_true(f != NULL && fputs(bad[i], f) >= 0 && fclose(f) == 0);
        export_look(&x);
        assert_true(x.rc == ERR_FORMAT || x.rc == ERR_UNSUPPORTED);
        assert_non_null(strstr(x.e.text, "haggle.json"));
    }
    free(text);
    export_free(&x.r);
}

// ---------------------------------------------------------------- refusals

static void test_checkpoints(void **state) {
    const struct scratch *s = *state;
    struct run r;
    struct export_call x;
    run_init(&r, s, "history");
    run_set(&r, "save.every=1");
    run_set(&r, "steps=3");
    run_set(&r, "save.keep=2");
    run_go(&r);
    assert_ran(&r);
    // The folder of one checkpoint can be exported directly.
    char second[PATH_MAX];
    snprintf(second, sizeof second, "%s", step_file(r.dir, 2, ""));
    export_init(&x, s, second, "second-out");
    export_go(&x);
    assert_worked(x.rc, &x.e);
    assert_int_equal(x.r.step, 2);
    // The run has gone on since, and the check still finds the checkpoint it was made from.
    x.o.run_dir = r.dir;
    export_look(&x);
    assert_worked(x.rc, &x.e);
    assert_int_equal(x.r.step, 2);
    export_free(&x.r);
    // A damaged checkpoint is skipped with a message.
    struct stat st;
    assert_int_equal(stat(step_file(r.dir, 3, "model.safetensors"), &st), 0);
    assert_int_equal(truncate(step_file(r.dir, 3, "model.safetensors"), st.st_size - 1), 0);
    export_init(&x, s, r.dir, "fallback");
    export_go(&x);
    assert_worked(x.rc, &x.e);
    assert_int_equal(x.r.step, 2);
    assert_non_null(strstr(x.said, "E the checkpoint"));
    assert_non_null(strstr(x.said, "damaged"));
    export_free(&x.r);
    // No checkpoint is intact: there is nothing to export.
    assert_int_equal(truncate(step_file(r.dir, 2, "model.safetensors"), 100), 0);
    export_init(&x, s, r.dir, "none-intact");
    export_go(&x);
    assert_failed(x.rc, ERR_FORMAT, &x.e, "none of the 2 checkpoints");
    assert_null(strstr(x.e.text, "resume")); // no advice that belongs to training
    assert_nothing_left(&x);
    snprintf(x.out, sizeof x.out, "%s/second-out", s->dir);
    export_look(&x);
    assert_true(x.rc != 0);
    // The weights of another run are not those that were exported.
    struct run other;
    train(&other, s, "other", s->nano, "seed=5");
    snprintf(second, sizeof second, "%s", step_file(other.dir, 3, ""));
    x.o.run_dir = second;
    export_look(&x);
    assert_failed(x.rc, ERR_MISMATCH, &x.e, "other weights");
    x.o.run_dir = other.dir; // that run has no step 2
    export_look(&x);
    assert_failed(x.rc, ERR_MISMATCH, &x.e, "step 2");
    export_free(&x.r);
}

static void test_refusals(void **state) {
    const struct scratch *s = *state;
    struct run r;
    struct export_call x;
    struct err e = {0};
    train(&r, s, "refusals", s->nano, NULL);
    export_init(&x, s, in(s->dir, "nowhere"), "refused");
    export_go(&x);
    assert_failed(x.rc, ERR_IO, &x.e, "nowhere|does not exist");
    x.o.run_dir = s->dir;
    export_go(&x);
    assert_failed(x.rc, ERR_IO, &x.e, "no checkpoint");
    x.o.run_dir = r.dir;
    // A file per tensor is accepted here, but a folder that is not empty is not.
    x.o.shard_bytes = 1;
    assert_worked(file_make_dirs(x.out, &e), &e);
    put_text(in(x.out, "mine.txt"), "mine");
    export_go(&x);
    assert_failed(x.rc, ERR_USAGE, &x.e, "not empty");
    char *mine = text_of(in(x.out, "mine.txt"));
    assert_string_equal(mine, "mine");
    free(mine);
    assert_int_equal(unlink(in(x.out, "mine.txt")), 0);
    export_go(&x); // an empty folder is accepted like a new one
    assert_worked(x.rc, &x.e);
    snprintf(x.out, sizeof x.out, "%s/a-file", s->dir);
    put_text(x.out, "x");
    export_go(&x);
    assert_failed(x.rc, ERR_USAGE, &x.e, "is a file");
    x.o.out_dir = ".";
    export_go(&x);
    assert_failed(x.rc, ERR_USAGE, &x.e, "does not end in a folder");
    x.o.out_dir = "";
    export_go(&x);
    assert_failed(x.rc, ERR_USAGE, &x.e, "characters");
    // A folder that was not exported.
    x.o.out_dir = s->nano;
    export_look(&x);
    assert_failed(x.rc, ERR_USAGE, &x.e, "haggle.json");
    export_free(&x.r);
}

static void test_too_large_for_fp16(void **state) {
    const struct scratch *s = *state;
    struct run r;
    struct export_call x;
    char large[512];
    snprintf(large, sizeof large, "%s/large", s->dir);
    make_nano(large, 16, POISON_NONE);
    // The weight of the last norm, which is at the end of the file, becomes 1e5.
    const float value = 1e5f;
    struct stat st;
    int fd = open(in(large, "model.safetensors"), O_RDWR);
    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    assert_int_equal(pwrite(fd, &value, sizeof value, st.st_size - 4), 4);
    close(fd);
    train(&r, s, "large-run", large, "optim.lr=0");
    export_init(&x, s, r.dir, "large-16");
    x.o.as_source = false;
    x.o.dtype = DTYPE_F16;
    export_go(&x);
    assert_failed(x.rc, ERR_NUMERIC, &x.e, "model.norm.weight|too large for fp16");
    assert_nothing_left(&x);
    x.o.dtype = DTYPE_BF16;
    export_go(&x);
    assert_worked(x.rc, &x.e);
    export_free(&x.r);
}

static void test_disk(void **state) {
    const struct scratch *s = *state;
    struct run r;
    struct export_call x;
    struct err e = {0};
    int status;
    assert_failed(export_check_space(in(s->dir, "new/deep"), UINT64_MAX, &e), ERR_IO, &e,
                  "free|takes up to");
    assert_worked(export_check_space(in(s->dir, "new/deep"), 1, &e), &e);
    train(&r, s, "disk", s->nano, NULL);
    export_init(&x, s, r.dir, "full");
    // A disk that fails in the middle of a file, which no estimate can foresee.
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct rlimit limit = {20000, 20000};
        if (signal(SIGXFSZ, SIG_IGN) == SIG_ERR || setrlimit(RLIMIT_FSIZE, &limit) != 0)
            _exit(9);
        export_go(&x);
        _exit(x.rc == ERR_IO && strstr(x.e.text, "model.safetensors") != NULL ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_nothing_left(&x);
    // What a crash left does not hinder an export. What another process is writing is left alone.
    char tmp[600];
    snprintf(tmp, sizeof tmp, "%s.tmp-export", x.out);
    assert_worked(file_make_dirs(tmp, &e), &e);
    put_text(in(tmp, "model.safetensors"), "half");
    int fd = open(tmp, O_RDONLY | O_DIRECTORY);
    assert_true(fd >= 0 && flock(fd, LOCK_EX) == 0);
    export_go(&x);
    assert_failed(x.rc, ERR_USAGE, &x.e, "another export");
    assert_true(file_exists(in(tmp, "model.safetensors")));
    close(fd);
    export_go(&x);
    assert_worked(x.rc, &x.e);
    assert_false(file_exists(tmp));
    export_free(&x.r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_family),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_shards),
        cmocka_unit_test(test_built_in_bytes),
        cmocka_unit_test(test_source_files),
        cmocka_unit_test(test_probe),
        cmocka_unit_test(test_damage_before_the_check),
        cmocka_unit_test(test_damage_found_later),
        cmocka_unit_test(test_hostile_manifest),
        cmocka_unit_test(test_checkpoints),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_too_large_for_fp16),
        cmocka_unit_test(test_disk),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
