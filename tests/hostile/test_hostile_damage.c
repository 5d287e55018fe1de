// test_hostile_damage.c - valid files cut at every byte and with every bit flipped, files made to
// use as much memory as possible, and failing allocations. readers.h checks heap limits and leaks.
#include "readers.h"

#include "heap.h"
#include "model/scratch.h"

#include "base/region.h"
#include "base/yaml.h"
#include "knob/knob.h"
#include "model/shape.h"
#include "train/manifest.h"

#include <fcntl.h>
#include <time.h>

#if defined(__SANITIZE_ADDRESS__)
enum { UNDER_SANITIZER = 1 };
#else
enum { UNDER_SANITIZER = 0 };
#endif

// ---- samples ----

#define H32 "0123456789abcdef0123456789abcdef"
#define SHARD                                                                                      \
    "{\"__metadata__\":{\"format\":\"pt\"},\"b\":{\"dtype\":\"BF16\",\"shape\":[2,1],"             \
    "\"data_offsets\":[8,12]},\"a\\u00e9\":{\"dtype\":\"F32\",\"shape\":[2],"                      \
    "\"data_offsets\":[0,8]},\"e\":{\"dtype\":\"I64\",\"shape\":[0],\"data_offsets\":[12,12]},"    \
    "\"s\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[12,13]}}  "
static const char index_text[] =
    "{\n \"metadata\": {\"total_size\": 13},\n \"weight_map\": {\"a\xc3\xa9\": \"a.safetensors\","
    "\"b\": \"a.safetensors\", \"s\": \"a.safetensors\"}\n}\n";
static const char config_text[] =
    "{\"model_type\": \"llama\", \"hidden_size\": 64, \"intermediate_size\": 96,\n"
    " \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2,\n"
    " \"vocab_size\": 100, \"rms_norm_eps\": 1e-5, \"tie_word_embeddings\": true,\n"
    " \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0,\n"
    " \"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 8192},\n"
    " \"eos_token_id\": [2, 3], \"layer_types\": [\"full_attention\"], \"x\": [true, null]}\n";
static const char adapter_text[] =
    "{\"peft_type\": \"LORA\", \"task_type\": \"CAUSAL_LM\", \"r\": 16, \"lora_alpha\": 32.5,\n"
    " \"lora_dropout\": 0.05, \"target_modules\": [\"q_proj\", \"self_attn.v_proj\"],\n"
    " \"base_model_name_or_path\": \"org/b\\u00e9\", \"use_rslora\": true, \"rank_pattern\": {},\n"
    " \"modules_to_save\": [\"lm_head\"], \"bias\": \"none\", \"later\": null}\n";
static const char recipe_text[] =
    "# a recipe\nmodel: tiny\nsteps: 120 # many\nbatch:\n  micro: 4\n  accum: 12\ndata:\n"
    "  path: [one.txt, \"two.txt\"]\noptim: {lr: 3e-4, beta1: 0.90}\nrun.dir: 'runs/a b'\nseq: "
    "64\n";

struct sample {
    char bytes[4096];
    size_t count;
    size_t head; // of a GGUF file: bytes in front of the data
};

static struct sample sample_of(const struct scratch *d, int which) {
    static const char *const texts[READERS] = {[READ_INDEX] = index_text,
                                               [READ_CONFIG] = config_text,
                                               [READ_ADAPTER] = adapter_text,
                                               [READ_RECIPE] = recipe_text};
    struct sample s = {{0}, 0, 0};
    if (which == READ_SAFETENSORS) {
        uint64_t n = sizeof SHARD - 1;
        memcpy(s.bytes, &n, 8);
        memcpy(s.bytes + 8, SHARD, n);
        s.count = 8 + n + 13;
    } else if (which == READ_GGUF) {
        s.count = gguf_sample(s.bytes, sizeof s.bytes, &s.head);
    } else if (which == READ_MANIFEST) {
        s.count = manifest_sample(d->dir, s.bytes, sizeof s.bytes);
    } else {
        s.count = strlen(texts[which]);
        memcpy(s.bytes, texts[which], s.count);
    }
    return s;
}

// Writes the sample. The test changes it in place through *fd, because replacing thousands of files
// is slow. Returns the path for the reader.
static const char *put_sample(const struct scratch *d, int which, const struct sample *s, int *fd) {
    const struct reader *r = &readers[which];
    if (r->folder) {
        struct sample shard = sample_of(d, READ_SAFETENSORS);
        scratch_put(d, "a.safetensors", shard.bytes, shard.count);
    }
    const char *path = scratch_put(d, r->file, s->bytes, s->count);
    *fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(*fd >= 0);
    return r->folder ? d->dir : path;
}

// ---- damage ----

// The length without trailing blanks for a JSON text, where only a cut of the value is damage.
// Otherwise the whole length.
static size_t value_bytes(int which, const struct sample *s) {
    size_t n = s->count;
    if (which == READ_INDEX || which == READ_CONFIG || which == READ_ADAPTER)
        while (n > 0 && s->bytes[n - 1] != '}')
            n--;
    return n;
}

static void test_cuts(void **state) {
    for (int which = 0; which < READERS; which++) {
        struct sample s = sample_of(*state, which);
        struct err e = {0};
        int fd;
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s", put_sample(*state, which, &s, &fd));
        assert_worked(reader_run(&readers[which], path, s.count, &e), &e);
        size_t n = which == READ_RECIPE ? 0 : value_bytes(which, &s);
        assert_int_equal(ftruncate(fd, (off_t)n), 0);
        while (n-- > 0) {
            assert_int_equal(ftruncate(fd, (off_t)n), 0);
            if (reader_run(&readers[which], path, s.count, &e) == 0)
                fail_msg("%s: the first %zu of %zu bytes were accepted", readers[which].name, n,
                         s.count);
        }
        close(fd);
    }
}

// A cut recipe is refused, or has exactly its complete settings with their values in the whole
// file.
static void test_recipe_cuts(void **state) {
    (void)state;
    struct region r = {0};
    struct yaml_entry *all, *some;
    size_t all_count, some_count, accepted = 0, most = 0;
    struct err e = {0};
    const size_t bytes = sizeof recipe_text - 1;
    assert_worked(yaml_read_text("r", recipe_text, bytes, &r, &all, &all_count, &e), &e);
    assert_int_equal(all_count, 9);
    for (size_t n = 0; n < bytes; n++) {
        err_clear(&e);
        if (yaml_read_text("r", recipe_text, n, &r, &some, &some_count, &e) != 0) {
            assert_true(e.text[0] != '\0');
            continue;
        }
        accepted++;
        assert_true(some_count <= all_count);
        for (size_t i = 0; i < some_count; i++)
            if (strcmp(some[i].key, all[i].key) != 0 || strcmp(some[i].value, all[i].value) != 0)
                fail_msg("the first %zu bytes set %s to '%s'", n, some[i].key, some[i].value);
        most = some_count > most ? some_count : most;
    }
    assert_int_equal(most, all_count - 1);
    print_message("recipe: %zu of %zu prefixes are whole recipes\n", accepted, bytes);
    region_free(&r);
}

static void test_flips(void **state) {
    for (int which = 0; which < READERS; which++) {
        struct sample s = sample_of(*state, which);
        struct err e = {0};
        int fd;
        char path[PATH_MAX];
        size_t accepted = 0,
               n = which == READ_SAFETENSORS ? 8 + sizeof SHARD - 1 // the header
                   : which == READ_GGUF      ? s.head
                                             : s.count;
        snprintf(path, sizeof path, "%s", put_sample(*state, which, &s, &fd));
        for (size_t bit = 0; bit < 8 * n; bit++) {
            char byte = (char)(s.bytes[bit / 8] ^ 1 << bit % 8);
            assert_int_equal(pwrite(fd, &byte, 1, (off_t)(bit / 8)), 1);
            int rc = reader_run(&readers[which], path, s.count, &e);
            accepted += rc == 0;
            if (which == READ_MANIFEST)
                assert_int_not_equal(rc, 0);
            assert_int_equal(pwrite(fd, &s.bytes[bit / 8], 1, (off_t)(bit / 8)), 1);
        }
        // Not every flip is an error (it may change a letter of a name or a digit of a size), but
        // damage to the structure must be noticed.
        assert_true(accepted < 8 * n / 2);
        assert_worked(reader_run(&readers[which], path, s.count, &e), &e);
        print_message("%s: %zu flips, %zu read as something else\n", readers[which].name, 8 * n,
                      accepted);
        close(fd);
    }
}

// ---- size ----

struct text {
    char *at;
    size_t bytes;
};

// Writes `head`, then `unit` (with a number where it has %zu) until the text has `bytes`, then
// `tail`.
static struct text repeat(const char *head, const char *unit, const char *tail, size_t bytes) {
    struct text t = {malloc(bytes + 512), 0};
    assert_non_null(t.at);
    t.bytes = (size_t)sprintf(t.at, "%s", head);
    for (size_t i = 0; t.bytes < bytes; i++) {
        // The units are literals in this file, with one conversion such as %zx each.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        t.bytes += (size_t)sprintf(t.at + t.bytes, unit, i);
#pragma GCC diagnostic pop
    }
    if (t.at[t.bytes - 1] == ',')
        t.bytes--;
    t.bytes += (size_t)sprintf(t.at + t.bytes, "%s", tail);
    return t;
}

// `parts` are the parts of the expected message. NULL accepts any result.
static void run_large(const struct scratch *d, int which, const char *what, const char *parts,
                      struct text t) {
    const struct reader *r = &readers[which];
    struct err e = {0};
    const char *path;
    if (which == READ_SAFETENSORS) {
        char *file = malloc(8 + t.bytes);
        assert_non_null(file);
        memcpy(file, &(uint64_t){t.bytes}, 8);
        memcpy(file + 8, t.at, t.bytes);
        path = scratch_put(d, r->file, file, 8 + t.bytes);
        free(file);
    } else {
        path = scratch_put(d, r->file, t.at, t.bytes);
    }
    free(t.at);
    clock_t start = clock();
    int rc = reader_run(r, r->folder ? d->dir : path, t.bytes, &e);
    double ms = 1e3 * (double)(clock() - start) / CLOCKS_PER_SEC;
    print_message("%-11s %-22s %6.1f MB, heap %5.2f x, %6.1f ms, %s\n", r->name, what,
                  (double)t.bytes / 1e6, (double)heap_peak_bytes() / (double)t.bytes, ms,
                  rc == 0 ? "accepted" : e.text);
    if (parts != NULL)
        assert_failed(rc, &e, parts, what);
}

static void test_large(void **state) {
    const struct scratch *d = *state;
    // Large enough that the constant part of the limit does not hide growth with the file.
    const size_t large = UNDER_SANITIZER ? 4u << 20 : 28u << 20, small = 1000000;
    struct sample shard = sample_of(d, READ_SAFETENSORS);
    scratch_put(d, "a.safetensors", shard.bytes, shard.count);
    run_large(d, READ_SAFETENSORS, "many empty tensors", NULL,
              repeat("{", "\"%zx\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},", "}",
                     large));
    run_large(d, READ_SAFETENSORS, "a small hole at the end", NULL,
              repeat("{", "\"%zx\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},",
                     ",\"z\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}", small));
    run_large(d, READ_SAFETENSORS, "much metadata", NULL,
              repeat("{\"__metadata__\":{", "\"%.0zx\":\"\",", "}}", large));
    run_large(d, READ_SAFETENSORS, "one long string", "4096",
              repeat("{\"", "%zx", "\":{}}", large));
    run_large(d, READ_SAFETENSORS, "brackets", NULL, repeat("{\"a\":", "[%.0zx", "}", small));
    run_large(d, READ_SAFETENSORS, "digits", NULL,
              repeat("{\"a\":{\"shape\":[", "%zu", "]}}", small));
    run_large(d, READ_INDEX, "many tensors", NULL,
              repeat("{\"weight_map\":{", "\"%zx\":\"a.safetensors\",", "}}", large / 2));
    run_large(d, READ_INDEX, "many files", "10000 files",
              repeat("{\"weight_map\":{", "\"a%zx\":\"%1$zx.safetensors\",", "}}", small));
    run_large(d, READ_INDEX, "many members", NULL, repeat("{", "\"\":%zu,", "}", large / 2));
    run_large(d, READ_INDEX, "much metadata", NULL,
              repeat("{\"metadata\":{", "\"\":%zu,", "}}", large / 2));
    run_large(d, READ_CONFIG, "many members", NULL,
              repeat("{\"model_type\":\"gpt2\",", "\"%.0zx\":1,", "}", 8u << 20));
    run_large(d, READ_CONFIG, "many layer types", NULL,
              repeat("{\"model_type\":\"gpt2\",\"layer_types\":[", "\"%.0zx\",", "]}", 8u << 20));
    run_large(d, READ_ADAPTER, "many members", NULL, repeat("{", "\"%zx\":null,", "}", small));
    run_large(d, READ_ADAPTER, "many targets", "target_modules|511 bytes",
              repeat("{\"target_modules\":[", "\"q%zx\",", "]}", small));
    run_large(d, READ_ADAPTER, "too large", "1048576", repeat("{", "\"%zx\":null,", "}", 4u << 20));
    run_large(d, READ_ADAPTER, "brackets", NULL, repeat("{\"x\":", "[%.0zx", "}", small));
    struct text t = repeat("{\"hash\":\"" H32 "\",\"knobs\":{", "\"%.0zx\":\"\",", "}}", small);
    manifest_fix_hash(t.at, t.bytes);
    run_large(d, READ_MANIFEST, "many knobs", NULL, t);
    run_large(d, READ_RECIPE, "many settings", "4096 settings", repeat("", "k%zx: 1\n", "", small));
    run_large(d, READ_RECIPE, "long keys alike", NULL,
              repeat("",
                     "kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk"
                     "kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk"
                     "kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk%zx: 1\n",
                     "", small));
    run_large(d, READ_RECIPE, "a long list", NULL,
              repeat("data: {path: [", "%zx, ", "a]}\n", small));
    run_large(d, READ_RECIPE, "brackets", NULL, repeat("a: ", "[%.0zx", "\n", small));
    run_large(d, READ_RECIPE, "questions", NULL, repeat("", "? %.0zx", "\n", small));
    run_large(d, READ_RECIPE, "a long value", NULL, repeat("model: \"", "%zx", "\"\n", small));
    if (getenv("HAGGLE_TEST_LONG") == NULL)
        return;
    run_large(d, READ_SAFETENSORS, "too many tensors", "more than 1000000 tensors",
              repeat("{", "\"%zx\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},", "}",
                     58u << 20));
    run_large(d, READ_INDEX, "too many tensors", "more than 1000000 tensors",
              repeat("{\"weight_map\":{", "\"%zx\":\"a.safetensors\",", "}}", 26u << 20));
}

// ---- allocations that fail ----

// Reads a manifest and writes a copy beside it. No unfinished .tmp file may be left.
static int rewrite_manifest(const char *path, struct err *e) {
    struct manifest m;
    char copy[PATH_MAX];
    snprintf(copy, sizeof copy, "%s.copy", path);
    int rc = manifest_read(&m, path, e);
    if (rc == 0)
        rc = manifest_write(&m, copy, e);
    manifest_free(&m);
    snprintf(copy, sizeof copy, "%s.copy.tmp", path);
    assert_false(file_exists(copy));
    return rc;
}

// Makes the n-th allocation fail, for every n: first only that one, then that one and all after it.
static void test_allocations(void **state) {
    static const struct reader rewriting = {"manifest, again", "manifest.json", 0,
                                            rewrite_manifest};
    for (int which = 0; which <= READERS; which++) {
        const struct reader *r = which < READERS ? &readers[which] : &rewriting;
        const int kind = which < READERS ? which : READ_MANIFEST;
        struct sample s = sample_of(*state, kind);
        struct err e = {0};
        int fd;
        char path[PATH_MAX];
        size_t points = 0;
        snprintf(path, sizeof path, "%s", put_sample(*state, kind, &s, &fd));
        close(fd);
        for (int onwards = 0; onwards < 2; onwards++) {
            for (size_t n = 1;; n++) {
                heap_fail(n, onwards);
                int rc = reader_run(r, path, s.count, &e);
                bool failed = heap_failed();
                heap_fail(0, false);
                if (!failed) {
                    assert_worked(rc, &e);
                    break;
                }
                if (rc != ERR_MEMORY)
                    fail_msg("%s: allocation %zu failed, the result is %d: %s", r->name, n, rc,
                             e.text);
                points++;
            }
        }
        assert_true(points > 0);
        print_message("%s: %zu allocations failed, each reported\n", r->name, points);
    }
    if (!heap_sees_yaml())
        print_message("libyaml's allocations were not seen\n");
}

int main(void) {
#define IN_SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_setup, scratch_teardown)
    const struct CMUnitTest tests[] = {
        IN_SCRATCH(test_cuts),  IN_SCRATCH(test_recipe_cuts), IN_SCRATCH(test_flips),
        IN_SCRATCH(test_large), IN_SCRATCH(test_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
