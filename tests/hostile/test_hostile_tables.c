// test_hostile_tables.c - files that must be refused with a message that names the file, the place
// and the reason, and unusual files that must be accepted. Every case also checks the heap limit
// and leaks (readers.h). tests/model, tests/base and tests/train test each parser further.
#include "readers.h"

#include "model/scratch.h"

#include "base/file.h"
#include "base/hash.h"
#include "model/shape.h"

#include <sys/stat.h>

struct text_case {
    const char *text, *parts; // parts of the message, separated by |; NULL: the text is valid
};

static void run_case(const struct reader *r, const char *path, const char *shown, size_t bytes,
                     const char *text, const char *parts) {
    struct err e = {0};
    int rc = reader_run(r, path, bytes, &e);
    if (parts == NULL) {
        if (rc != 0)
            fail_msg("legal, but refused: %.300s\n%s", text, e.text);
        return;
    }
    assert_failed(rc, &e, parts, text);
    assert_failed(rc, &e, shown, text);
    if (r->read(path, NULL) != rc)
        fail_msg("another code without a struct err: %.300s", text);
}

static void run_texts(const struct scratch *d, int which, const struct text_case *cases, size_t n) {
    const struct reader *r = &readers[which];
    size_t refused = 0;
    for (size_t i = 0; i < n; i++) {
        size_t bytes = strlen(cases[i].text);
        const char *path = scratch_put(d, r->file, cases[i].text, bytes);
        run_case(r, r->folder ? d->dir : path, r->file, bytes, cases[i].text, cases[i].parts);
        refused += cases[i].parts != NULL;
    }
    print_message("%s: %zu refused, %zu accepted\n", r->name, refused, n - refused);
}

// ---- safetensors ----

static const char *put_tensors(const struct scratch *d, const char *name, uint64_t length,
                               const char *header, size_t data_bytes) {
    size_t n = strlen(header);
    char *bytes = calloc(1, 8 + n + data_bytes);
    assert_non_null(bytes);
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, header, n);
    const char *path = scratch_put(d, name, bytes, 8 + n + data_bytes);
    free(bytes);
    return path;
}

#define T(name, dtype, shape, offsets)                                                             \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define A T("a", "U8", "[1]", "[0,1]")

static const struct {
    const char *header;
    size_t data_bytes;
    const char *parts;
} headers[] = {
    // valid but unusual
    {"{}", 0, NULL},
    {" \t\r\n{}", 0, NULL},
    {"{}  \n", 0, NULL},
    {"{\"__metadata__\":{}}", 0, NULL},
    {"{\"__metadata__\":{\"a\":\"b\",\"\":\"\"}," A "}", 1, NULL},
    {"{" A ",\"__metadata__\":{}}", 1, NULL},
    {"{" T("a", "F32", "[]", "[0,4]") "}", 4, NULL},
    {"{" T("a", "F32", "[0]", "[0,0]") "}", 0, NULL},
    {"{" T("a", "F32", "[3,0,9223372036854775807]", "[0,0]") "}", 0, NULL},
    {"{" T("a", "F32", "[0]", "[0,0]") "," T("b", "F32", "[0]", "[0,0]") "}", 0, NULL},
    {"{" T("b", "U8", "[1]", "[1,2]") "," A "}", 2, NULL},
    {"{" T("a", "F4", "[4]", "[0,2]") "}", 2, NULL},
    {"{" T("a", "U8", "[1,1,1,1,1,1,1,1]", "[0,1]") "}", 1, NULL},
    {"{" T(" ", "U8", "[1]", "[0,1]") "}", 1, NULL},
    // not JSON, not an object, or with something behind it
    {"xx", 0, "line 1, column 1"},
    {"[]", 0, "object"},
    {"12", 0, "object"},
    {"\"\"", 0, "object"},
    {"null", 0, "object"},
    {"{}{}", 0, "column 3"},
    {"{}\1", 0, "0x01"},
    {"{" A ",}", 1, "key"},
    {"{" A, 1, "ends"},
    {"{\"a\xff\":1}", 0, "UTF-8"},
    {"{\"a\xed\xa0\x80\":1}", 0, "UTF-8"},
    {"\xef\xbb\xbf{}", 0, "0xef"},
    {"{'a':1}", 0, "key"},
    // names
    {"{" A "," A "}", 1, "\"a\"|twice"},
    {"{" A "," T("\\u0061", "U8", "[1]", "[1,2]") "}", 2, "\"a\"|twice"},
    {"{" T("", "U8", "[1]", "[0,1]") "}", 1, "name has 0 bytes"},
    {"{" T("a\\u0000b", "U8", "[1]", "[0,1]") "}", 1, "\\u0000"},
    // fields
    {"{\"a\":[]}", 0, "\"a\"|object"},
    {"{\"a\":null}", 0, "\"a\"|object"},
    {"{\"a\":{}}", 0, "\"a\"|dtype"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "\"a\"|data_offsets"},
    {"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "\"a\"|shape"},
    {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "\"a\"|dtype"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"data_offsets\":[0,1]}}", 1,
     "data_offsets|twice"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"x\":0}}", 1, "\"x\""},
    {"{\"a\":{\"dtype\":8,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "string"},
    {"{" T("a", "u8", "[1]", "[0,1]") "}", 1, "\"u8\""},
    {"{" T("a", "U7", "[1]", "[0,1]") "}", 1, "\"U7\""},
    {"{" T("a", "U8", "1", "[0,1]") "}", 1, "array"},
    {"{" T("a", "U8", "[-1]", "[0,1]") "}", 1, "negative"},
    {"{" T("a", "U8", "[1.0]", "[0,1]") "}", 1, "whole numbers"},
    {"{" T("a", "U8", "[1e0]", "[0,1]") "}", 1, "whole numbers"},
    {"{" T("a", "U8", "[1e999]", "[0,1]") "}", 1, "whole numbers"},
    {"{" T("a", "U8", "[0x10]", "[0,1]") "}", 1, "column"},
    {"{" T("a", "U8", "[01]", "[0,1]") "}", 1, "begin with 0"},
    {"{" T("a", "U8", "[9223372036854775808]", "[0,1]") "}", 1, "64-bit"},
    {"{" T("a", "U8", "[4294967296,2147483648]", "[0,1]") "}", 1, "2^63"},
    {"{" T("a", "U8", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "[0,1]") "}", 1, "dimensions"},
    {"{" T("a", "F64", "[2305843009213693952]", "[0,1]") "}", 1, "2^64"},
    {"{" T("a", "U8", "[1]", "[0]") "}", 1, "has 1 numbers"},
    {"{" T("a", "U8", "[1]", "[0,1,1]") "}", 1, "more than two"},
    {"{" T("a", "U8", "[1]", "[-1,0]") "}", 1, "negative"},
    {"{" T("a", "U8", "[1]", "[1,0]") "}", 1, "data_offsets 1 to 0"},
    {"{" T("a", "U8", "[2]", "[0,2]") "}", 1, "1 bytes of data"},
    {"{" T("a", "U8", "[2]", "[0,1]") "}", 1, "2 bytes"},
    {"{" T("a", "F32", "[1]", "[0,3]") "}", 3, "4 bytes"},
    {"{" T("a", "F4", "[1]", "[0,1]") "}", 1, "whole bytes"},
    {"{" T("a", "F8_E4M3", "[2]", "[0,1]") "}", 1, "2 bytes"},
    // together
    {"{" A "," T("b", "U8", "[1]", "[0,1]") "}", 1, "overlap"},
    {"{" T("a", "U8", "[2]", "[0,2]") "," T("b", "U8", "[2]", "[1,3]") "}", 3, "overlap"},
    {"{" A "," T("b", "U8", "[1]", "[2,3]") "}", 3, "\"b\"|hole"},
    {"{" T("a", "U8", "[1]", "[1,2]") "}", 2, "\"a\"|hole"},
    {"{" A "}", 2, "end at byte 1"},
    {"{}", 1, "end at byte 0"},
    // metadata
    {"{\"__metadata__\":[]}", 0, "object"},
    {"{\"__metadata__\":{\"a\":1}}", 0, "strings only"},
    {"{" T("__metadata__", "U8", "[1]", "[0,1]") "}", 1, "strings only"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "twice"},
};

static void test_safetensors(void **state) {
    const struct reader *r = &readers[READ_SAFETENSORS];
    size_t refused = 0;
    for (size_t i = 0; i < sizeof headers / sizeof headers[0]; i++) {
        size_t n = strlen(headers[i].header);
        const char *path =
            put_tensors(*state, r->file, n, headers[i].header, headers[i].data_bytes);
        run_case(r, path, r->file, n, headers[i].header, headers[i].parts);
        refused += headers[i].parts != NULL;
    }
    static const uint64_t lengths[] = {0,          1,
                                       3, // one more than the file has
                                       100000001,  UINT64_C(1) << 63,
                                       UINT64_MAX, UINT64_MAX - 7};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++, refused++)
        run_case(r, put_tensors(*state, r->file, lengths[i], "{}", 0), "t.safetensors|byte 0", 2,
                 "a length", "header length");
    for (size_t n = 0; n < 8; n++, refused++)
        run_case(r, scratch_put(*state, r->file, "\2\0\0\0\0\0\0\0", n), r->file, n, "shorter",
                 "8 bytes of header length");
    // Deep nesting, and a long name.
    char *text = malloc(20000);
    assert_non_null(text);
    memset(text, '[', 20000);
    memcpy(text, "{\"a\":{\"shape\":", 14);
    text[500] = '\0';
    run_case(r, put_tensors(*state, r->file, 500, text, 0), r->file, 500, "deep", "\"a\"");
    memcpy(text, "{\"__metadata__\":{\"a\":", 21);
    run_case(r, put_tensors(*state, r->file, 500, text, 0), r->file, 500, "deep", "strings only");
    memset(text, 'n', 5000);
    memcpy(text, "{\"", 2);
    strcpy(text + 5000, "\":{}}");
    run_case(r, put_tensors(*state, r->file, strlen(text), text, 0), r->file, 5000, "name",
             "4998 bytes|4096");
    free(text);
    print_message("safetensors: %zu refused\n", refused + 3);
}

static void test_pickles(void **state) {
    const struct scratch *d = *state;
    static const char *const names[] = {"pytorch_model.bin", "m.pt",   "m.pth", "m.pkl",
                                        "m.pickle",          "m.ckpt", "M.PKL"};
    struct err e = {0};
    struct model_shape s;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        // Opened by its name, as a model, and as the content of a folder.
        const char *path = scratch_text(d, names[i], "\x80\x02.");
        assert_failed(reader_run(&readers[READ_SAFETENSORS], path, 3, &e), &e, names[i], names[i]);
        assert_failed(e.code, &e, "pickle|safetensors", names[i]);
        assert_failed(model_shape_open(&s, path, NULL, &e), &e, "pickle|safetensors", names[i]);
        assert_failed(model_shape_open(&s, names[i], NULL, &e), &e, "pickle|safetensors", names[i]);
        if (strcmp(names[i], "M.PKL") != 0) {
            assert_failed(reader_run(&readers[READ_INDEX], d->dir, 0, &e), &e, names[i], "folder");
            assert_failed(e.code, &e, "pickle|safetensors", "folder");
        }
        assert_int_equal(unlink(path), 0);
    }
    scratch_text(d, "pytorch_model.bin.index.json", "{}");
    assert_failed(reader_run(&readers[READ_INDEX], d->dir, 0, &e), &e, "pickle|safetensors",
                  "index");
    // A pickle with another name is refused too, because its first bytes are not a valid length.
    assert_failed(reader_run(&readers[READ_SAFETENSORS],
                             scratch_put(d, "t.safetensors", "PK\3\4\24\0\0\10\10\0data.pkl", 18),
                             18, &e),
                  &e, "header length|is this a safetensors file?", "zip");
}

// ---- index.json ----

#define MAP(map)          "{\"weight_map\":{" map "}}"
#define TOTAL(total, map) "{\"metadata\":{\"total_size\":" total "},\"weight_map\":{" map "}}"
#define BOTH              "\"a\":\"a.safetensors\",\"b\":\"b.safetensors\""

static const struct text_case indexes[] = {
    {MAP(BOTH), NULL},
    {TOTAL("2", BOTH), NULL},
    {TOTAL("2.0", BOTH), NULL},
    {" \n" MAP(BOTH) "\n", NULL},
    {"{\"metadata\":{},\"weight_map\":{" BOTH "},\"more\":[1,{}]}", NULL},
    {"{\"metadata\":null,\"weight_map\":{" BOTH "}}", NULL},
    {MAP("\"a\":\"inside.safetensors\""), NULL}, // a link to a file in the same folder
    {"", "ends"},
    {"[]", "object"},
    {"{}", "weight_map"},
    {MAP(""), "weight_map"},
    {"{\"weight_map\":[]}", "object"},
    {MAP("\"a\":1"), "string"},
    {MAP("\"a\":\"a.safetensors\"") "x", "column"},
    {MAP("\"a\":\"a.safetensors\",\"a\":\"b.safetensors\""), "\"a\"|twice"},
    {"{\"weight_map\":{" BOTH "},\"weight_map\":{" BOTH "}}", "weight_map|twice"},
    {MAP("\"a\":\"/etc/passwd\""), "/etc/passwd|own folder"},
    {MAP("\"a\":\"/a.safetensors\""), "own folder"},
    {MAP("\"a\":\"../a.safetensors\""), "own folder"},
    {MAP("\"a\":\"x/../a.safetensors\""), "own folder"},
    {MAP("\"a\":\"./a.safetensors\""), "own folder"},
    {MAP("\"a\":\"sub/a.safetensors\""), "own folder"},
    {MAP("\"a\":\"..\\\\a.safetensors\""), "own folder"},
    {MAP("\"a\":\"..\""), "own folder"},
    {MAP("\"a\":\".\""), "own folder"},
    {MAP("\"a\":\"\""), "own folder"},
    {MAP("\"a\":\"a.safetensors\\u0000.x\""), "\\u0000"},
    {MAP("\"a\":\"out.safetensors\""), "out.safetensors|out of the model's folder"},
    {MAP("\"a\":\"up.safetensors\""), "up.safetensors|out of the model's folder"},
    {MAP("\"a\":\"loop.safetensors\""), "loop.safetensors"},
    {MAP("\"a\":\"none.safetensors\""), "none.safetensors|No such file"},
    {MAP("\"a\":\"pytorch_model.bin\""), "pytorch_model.bin|safetensors"},
    {MAP(BOTH ",\"c\":\"b.safetensors\""), "\"c\"|b.safetensors"},
    {MAP("\"a\":\"a.safetensors\",\"b\":\"both.safetensors\""), "\"a\"|both.safetensors"},
    {TOTAL("3", BOTH), "total_size|3|2"},
    {TOTAL("-2", BOTH), "total_size"},
    {TOTAL("1e30", BOTH), "64-bit"},
    {TOTAL("\"2\"", BOTH), "number"},
};

static void test_index(void **state) {
    const struct scratch *d = *state;
    char outside[PATH_MAX], linked[PATH_MAX];
    struct err e = {0};
    put_tensors(d, "a.safetensors", strlen("{" A "}"), "{" A "}", 1);
    static const char b[] = "{" T("b", "U8", "[1]", "[0,1]") "}";
    put_tensors(d, "b.safetensors", strlen(b), b, 1);
    static const char both[] = "{" A "," T("b", "U8", "[1]", "[1,2]") "}";
    put_tensors(d, "both.safetensors", strlen(both), both, 2);
    snprintf(outside, sizeof outside, "%s.safetensors", d->dir);
    snprintf(linked, sizeof linked, "%s/out.safetensors", d->dir);
    FILE *f = fopen(outside, "wb");
    assert_non_null(f);
    fclose(f);
    assert_int_equal(symlink(outside, linked), 0);
    snprintf(linked, sizeof linked, "../%s", strrchr(outside, '/') + 1);
    assert_int_equal(symlink(linked, scratch_path(d, "up.safetensors")), 0);
    assert_int_equal(symlink("loop.safetensors", scratch_path(d, "loop.safetensors")), 0);
    assert_int_equal(symlink("a.safetensors", scratch_path(d, "inside.safetensors")), 0);
    // When a shard is wrong, the message names the shard and not the index. Both have the folder.
    const struct reader *r = &readers[READ_INDEX];
    for (size_t i = 0; i < sizeof indexes / sizeof indexes[0]; i++) {
        scratch_text(d, r->file, indexes[i].text);
        run_case(r, d->dir, d->dir, strlen(indexes[i].text), indexes[i].text, indexes[i].parts);
    }
    assert_int_equal(truncate(scratch_path(d, r->file), 100000001), 0);
    assert_failed(reader_run(r, d->dir, 0, &e), &e, "index.json|100000001 bytes", "too large");
    unlink(outside);
    print_message("index: %zu cases\n", sizeof indexes / sizeof indexes[0]);
}

// ---- config.json ----

#define LLAMA(members) "{\"model_type\":\"llama\"," members "}"
#define GPT2(members)  "{\"model_type\":\"gpt2\"," members "}"

static const struct text_case configs[] = {
    {"{\"model_type\":\"gpt2\"}", NULL},
    {LLAMA("\"vocab_size\":64,\"eos_token_id\":50256") "\n", NULL}, // an id outside is ignored
    {LLAMA("\"head_dim\":null,\"rope_scaling\":null,\"unknown\":{\"x\":[[[]]]}"), NULL},
    {LLAMA("\"hidden_size\":100,\"head_dim\":8"), NULL}, // heads x head_dim may differ from width
    {LLAMA("\"num_hidden_layers\":2.0"), NULL},
    {"", "ends"},
    {"[]", "object"},
    {"{}", "model_type"},
    {"{\"model_type\":7}", "model_type"},
    {"{\"model_type\":\"bert\"}", "bert|llama"},
    {LLAMA("\"hidden_size\":64,\"hidden_size\":64"), "hidden_size|twice"},
    {LLAMA("\"hidden_size\":100,\"num_attention_heads\":3"), "hidden_size|100|3"},
    {GPT2("\"n_embd\":100,\"n_head\":3"), "n_embd|100|3"},
    {LLAMA("\"num_attention_heads\":8,\"num_key_value_heads\":3"), "8|num_key_value_heads|3"},
    {LLAMA("\"num_key_value_heads\":0"), "num_key_value_heads|0"},
    {LLAMA("\"num_attention_heads\":0"), "num_attention_heads"},
    {LLAMA("\"head_dim\":7"), "even"},
    {LLAMA("\"head_dim\":0"), "head_dim"},
    {LLAMA("\"hidden_size\":-64"), "-64"},
    {LLAMA("\"hidden_size\":1.5"), "hidden_size|whole"},
    {LLAMA("\"hidden_size\":1e300"), "hidden_size|2^53"},
    {LLAMA("\"hidden_size\":\"64\""), "hidden_size|string"},
    {LLAMA("\"hidden_size\":9007199254740993"), "hidden_size"},
    {LLAMA("\"num_hidden_layers\":0"), "num_hidden_layers|0"},
    {LLAMA("\"num_hidden_layers\":10001"), "num_hidden_layers|10001|10000"},
    {LLAMA("\"vocab_size\":0"), "vocab_size"},
    {LLAMA("\"vocab_size\":2147483648"), "vocab_size"},
    {LLAMA("\"rope_theta\":0"), "rope_theta|0"},
    {LLAMA("\"rope_theta\":-1"), "rope_theta|-1"},
    {LLAMA("\"rope_theta\":NaN"), "'N'"},
    {LLAMA("\"rope_theta\":1e999"), "too large"},
    {LLAMA("\"rope_theta\":\"x\""), "rope_theta|string"},
    {LLAMA("\"rope_scaling\":[]"), "rope_scaling|list"},
    {LLAMA("\"rope_scaling\":{\"rope_type\":\"yarn\"}"), "yarn|llama3"},
    {LLAMA("\"rope_scaling\":{\"rope_type\":7}"), "rope_type"},
    {LLAMA("\"rope_scaling\":{\"rope_type\":\"llama3\"}"), "factor"},
    {LLAMA("\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":0,\"low_freq_factor\":1,"
           "\"high_freq_factor\":4,\"original_max_position_embeddings\":8}"),
     "factor|0"},
    {LLAMA("\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,"
           "\"high_freq_factor\":4,\"original_max_position_embeddings\":8}"),
     "high_freq_factor|4"},
    {LLAMA("\"rope_scaling\":{\"factor\":1,\"factor\":1}"), "factor|twice"},
    {LLAMA("\"rope_parameters\":{\"x\":{}}"), "differ between layers"},
    {LLAMA("\"partial_rotary_factor\":0.5"), "partial_rotary_factor|0.5"},
    {LLAMA("\"rms_norm_eps\":0"), "rms_norm_eps"},
    {LLAMA("\"rms_norm_eps\":1e200"), "rms_norm_eps"},
    {LLAMA("\"initializer_range\":-1"), "initializer_range"},
    {LLAMA("\"hidden_act\":\"gelu\""), "hidden_act|gelu|silu"},
    {LLAMA("\"hidden_act\":3"), "hidden_act"},
    {LLAMA("\"hidden_act\":\"\\u001b[2J\""), "?[2J"},
    {LLAMA("\"tie_word_embeddings\":1"), "tie_word_embeddings"},
    {LLAMA("\"attention_bias\":\"no\""), "attention_bias"},
    {LLAMA("\"eos_token_id\":\"2\""), "eos_token_id"},
    {LLAMA("\"quantization_config\":{}"), "quantization_config"},
    {"{\"model_type\":\"qwen2\",\"use_sliding_window\":true}", "use_sliding_window"},
    {"{\"model_type\":\"qwen3\",\"layer_types\":[\"full_attention\",\"sliding_attention\"]}",
     "sliding_attention"},
    {GPT2("\"add_cross_attention\":true"), "add_cross_attention"},
    {GPT2("\"n_embd\":64,\"hidden_size\":65"), "n_embd|hidden_size|differ"},
    {GPT2("\"n_embd\":1048576,\"n_head\":16,\"n_layer\":10000,\"n_inner\":16777216,"
          "\"vocab_size\":16777216"),
     "multiply"},
};

static void test_config(void **state) {
    run_texts(*state, READ_CONFIG, configs, sizeof configs / sizeof configs[0]);
}

// ---- adapter_config.json ----

#define LORA(members)                                                                              \
    "{\"peft_type\":\"LORA\",\"r\":8,\"lora_alpha\":16,\"target_modules\":[\"q_proj\"]," members "}"
#define RANK(r)                                                                                    \
    "{\"peft_type\":\"LORA\",\"lora_alpha\":1,\"target_modules\":[\"q_proj\"],\"r\":" r "}"
#define ALPHA(a)                                                                                   \
    "{\"peft_type\":\"LORA\",\"r\":8,\"target_modules\":[\"q_proj\"],\"lora_alpha\":" a "}"
#define TARGETS(names)                                                                             \
    "{\"peft_type\":\"LORA\",\"r\":8,\"lora_alpha\":1,\"target_modules\":" names "}"

static const struct text_case adapters[] = {
    {LORA("\"bias\":\"none\""), NULL},
    {LORA("\"auto_mapping\":{\"x\":[1]},\"inference_mode\":true,\"revision\":\"main\""), NULL},
    {LORA("\"use_dora\":false,\"lora_bias\":null,\"rank_pattern\":{},\"alpha_pattern\":null"),
     NULL},
    {LORA("\"later\":null,\"more\":false,\"again\":\"\",\"list\":[],\"object\":{}"), NULL},
    {LORA("\"layers_to_transform\":null,\"layers_pattern\":\"layers\""), NULL},
    {LORA("\"init_lora_weights\":\"gaussian\",\"task_type\":null,\"use_rslora\":true"), NULL},
    {LORA("\"modules_to_save\":[\"lm_head\",\"model.norm\"]"), NULL},
    {LORA("\"fan_in_fan_out\":false,\"lora_dropout\":0.5"), NULL},
    {RANK("8.0"), NULL},
    {ALPHA("0.25"), NULL},
    {TARGETS("\"all-linear\""), NULL},
    {TARGETS("\".*\\\\.(q|v)_proj\""), NULL}, // a pattern: the tensors say what it matches
    {TARGETS("[\"self_attn.q_proj\",\"gate_proj\"]"), NULL},
    {"", "ends"},
    {"[]", "object"},
    {"{}", "peft_type|missing"},
    {"{\"peft_type\":\"LORA\"}", "\"r\"|missing"},
    {RANK("8,\"r\":8"), "\"r\"|twice"},
    {"{\"peft_type\":\"LOHA\"}", "LOHA|LORA"},
    {"{\"peft_type\":null}", "string"},
    {LORA("\"task_type\":\"SEQ_CLS\""), "SEQ_CLS|CAUSAL_LM"},
    {RANK("0"), "\"r\"|0|1 or more"},
    {RANK("-8"), "-8"},
    {RANK("1.5"), "line 1"},
    {RANK("1025"), "1025|1024"},
    {RANK("65"), "65|q_proj"}, // more than the layer's features
    {RANK("9223372036854775808"), "64-bit"},
    {RANK("null"), "number"},
    {ALPHA("0"), "alpha|0"},
    {ALPHA("-1"), "alpha|-1"},
    {ALPHA("1e999"), "too large"},
    {ALPHA("NaN"), "'N'"},
    {ALPHA("\"16\""), "number"},
    {LORA("\"lora_dropout\":1"), "dropout|1"},
    {LORA("\"lora_dropout\":-0.1"), "dropout|-0.1"},
    {LORA("\"use_rslora\":1"), "true or false"},
    {LORA("\"use_dora\":true"), "use_dora|DoRA"},
    {LORA("\"bias\":\"lora_only\""), "bias|lora_only|none"},
    {LORA("\"lora_bias\":true"), "lora_bias"},
    {LORA("\"rank_pattern\":{\"q_proj\":4}"), "rank_pattern|alike"},
    {LORA("\"alpha_pattern\":{\"q_proj\":4}"), "alpha_pattern|alike"},
    {LORA("\"layers_to_transform\":[0]"), "layers_to_transform|alike"},
    {LORA("\"layers_to_transform\":0"), "layers_to_transform|alike"},
    {LORA("\"exclude_modules\":\"x\""), "exclude_modules"},
    {LORA("\"layer_replication\":[[0,2]]"), "layer_replication|does not know"},
    {LORA("\"target_parameters\":[\"x\"]"), "target_parameters|does not know"},
    {LORA("\"trainable_token_indices\":[1]"), "trainable_token_indices|does not know"},
    {LORA("\"use_qalora\":true"), "use_qalora|does not know"},
    {LORA("\"kasa_config\":{\"x\":1}"), "kasa_config|does not know"},
    {LORA("\"\\u001b[2J\":1"), "?[2J|does not know"},
    {LORA("\"init_lora_weights\":\"pissa\""), "pissa|gaussian"},
    {LORA("\"init_lora_weights\":\"olora\""), "olora|base"},
    {LORA("\"init_lora_weights\":\"\\u001b[2J\""), "?[2J"},
    {LORA("\"init_lora_weights\":3"), "true or false"},
    {LORA("\"fan_in_fan_out\":true"), "fan_in_fan_out|another family"},
    {LORA("\"base_model_name_or_path\":3"), "string"},
    {TARGETS("null"), "target_modules|null"},
    {TARGETS("[]"), "target_modules|empty"},
    {TARGETS("[1]"), "string"},
    {TARGETS("[\"\"]"), "target_modules"},
    {TARGETS("[\"all\"]"), "\"all\"|not the name of a layer"},
    {TARGETS("[\"attention\"]"), "\"attention\"|not the name of a layer"},
    {TARGETS("[\"q_proj,v_proj\"]"), "not the name of a layer"},
    {TARGETS("[\"../q_proj\"]"), "not the name of a layer"},
    {TARGETS("[\"\\u001b[2J\"]"), "?[2J|not the name of a layer"},
    {TARGETS("[\"lm_head\"]"), "lm_head|q_proj"},
    {TARGETS("[\"c_attn\"]"), "c_attn|q_proj"},
    {TARGETS("[\"layers.0.self_attn.q_proj\"]"), "layers.0.self_attn.q_proj"},
    {LORA("\"modules_to_save\":\"lm_head\""), "array"},
    {LORA("\"modules_to_save\":[\"classifier\"]"), "classifier|no such module"},
    {LORA("\"modules_to_save\":[\"q_proj\"]"), "q_proj|target_modules"},
    {LORA("\"modules_to_save\":[\"model.layers.1.self_attn.q_proj\"]"), "q_proj|target_modules"},
};

static void test_adapter(void **state) {
    run_texts(*state, READ_ADAPTER, adapters, sizeof adapters / sizeof adapters[0]);
}

// ---- recipes ----

static const struct text_case recipes[] = {
    {"", NULL},
    {"# nothing\n", NULL},
    {"---\nsteps: 3\n...\n", NULL},
    {"steps: 3\r\nbatch:\r\n  micro: 2\r\n", NULL},
    {"{steps: 3, batch: {micro: 2}}", NULL},
    {"steps: 3 # three\n", NULL},
    {"data:\n  path: [a.txt, b.txt]\n", NULL},
    {"data:\n  path:\n  - a.txt\n  - b.txt\n", NULL},
    {"data:\n  path: \"a\n    b\"\n", NULL},
    {"steps: 3", "byte 8|newline"},
    {"steps: 30\nbatch:\n", "line 2|'batch:'"},
    {"steps:\n", "line 1|'steps:'"},
    {"model: |\n  tiny\n", "line 1|quotes"},
    {"model: >-\n  tiny\n", "line 1|quotes"},
    {"model: ti\n  ny\n", "line 1|quotes"},
    {"data:\n  path:\n  - |\n    a\n", "line 3|quotes"},
    {"steps: 3\nsteps: 4\n", "line 2|'steps'|twice|line 1"},
    {"batch.micro: 1\nbatch: {micro: 2}\n", "'batch.micro'|twice"},
    {"steps: &x 3\n", "line 1|anchors"},
    {"steps: *x\n", "aliases"},
    {"steps: !!int 3\n", "line 1|tags"},
    {"steps: !%1b%5b2J 3\n", "line 1|tags"},
    {"<<: {steps: 3}\n", "<<"},
    {"a: &a [x]\nb: [*a, *a]\n", "anchors"},
    {"steps: 3\n---\nsteps: 4\n", "second document"},
    {"- steps\n", "line 1|key: value"},
    {"steps\n", "key: value"},
    {"? [a]\n: 1\n", "plain word"},
    {"\"\": 1\n", "empty"},
    {"\"st\\x1beps\": 1\n", "line 1|control character"},
    {"\"st\\x85eps\": 1\n", "control character"},
    {"model: \"a\\0b\"\n", "NUL"},
    {"model: \"a\\x1b[2J\"\n", "recipe.yaml:1|model"},
    {"model: \xff\n", "byte 7"},
    {"model: \xc0\x80\n", "byte 7"},
    {"model: \xed\xa0\x80\n", "byte 7"},
    {"\xff\xfes\0t\0", "byte"},
    {"batch:\n\tmicro: 1\n", "line 2"},
    {"model: \"tiny\n", "line"},
    {"a: [1\n", "line"},
    {"a: b: c\n", "line 1"},
    {"a: [[1]]\n", "plain values only"},
    {"a: [\"1,2\"]\n", "comma"},
    {"a: {b: {c: {d: {e: {f: {g: {h: {i: 1}}}}}}}}\n", "deeper than 8"},
    {"stepps: 3\n", "recipe.yaml:1|stepps|steps"},
    {"steps: 3\nbatch:\n  micro: 0\n", "recipe.yaml:3|batch.micro|0"},
    {"steps: 1.5\n", "recipe.yaml:1|steps"},
    {"optim:\n  lr: .nan\n", "recipe.yaml:2|optim.lr"},
    {"steps: 99999999999999999999\n", "recipe.yaml:1|steps"},
};

static void test_recipe(void **state) {
    run_texts(*state, READ_RECIPE, recipes, sizeof recipes / sizeof recipes[0]);
}

// ---- manifests ----

#define H32              "0123456789abcdef0123456789abcdef"
#define FILE_ENTRY(name) "{\"name\":\"" name "\",\"bytes\":10,\"hash\":\"" H32 "\"}"
// Changes that an attacker might make. The test corrects the hash afterwards.
static const struct {
    const char *from, *to, *parts; // parts NULL: accepted
} lies[] = {
    {"\"tokens\": 5", "\"tokens\":5", NULL},
    {"\"knobs\": {", "\"knobs\": {\"of.another.version\":\"1\",", NULL},
    {"\"seed\": \"1\"", "", NULL},
    {"}\n", "}  \n", NULL},
    {"haggle checkpoint", "other checkpoint", "format"},
    {"\"version\": ", "\"version\": 9", "version 9|reads version"},
    {"\"version\": ", "\"version\": -", "version -"},
    {"\"version\": ", "\"version\": \"1\", \"x\": ", "number"},
    {"\"step\": 120", "\"step\": -1", "-1|line"},
    {"\"step\": 120", "\"step\": 1000000001", "1000000001"},
    {"\"step\": 120", "\"step\": 9223372036854775808", "64-bit"},
    {"\"step\": 120", "\"step\": null", "number"},
    {"\"step\": 120,", "", "lacks \"step\""},
    {"\"step\": 120", "\"step\": 120,\"step\": 120", "twice"},
    {"\"step\": 120", "\"step\": 2", "more skipped steps than steps"},
    {"\"position\": 960", "\"position\": 1152921504606846977", "1152921504606846977"},
    {"\"tokens\": 5", "\"tokens\": -5", "-5"},
    {"\"seed\": 1,", "\"seed\": 1,\"world_size\":0,", "no such member"},
    {"\"seed\": 1,", "\"seed\": 1e400,", "64-bit"},
    {"\"dataset\": \"", "\"dataset\": \"G", "32 digits"},
    {"\"dataset\": \"", "\"dataset\": \"\", \"x\": \"", "32 digits"},
    {"\"model\": \"small", "\"model\": \"\\u001b[2J", "control character"},
    {"\"tool\": \"haggle", "\"tool\": \"\\u009b2J", "control character"},
    {"\"seed\": \"1\"", "\"seed\": \"\\u007f\"", "control character"},
    {"\"seed\": \"1\"", "\"seed\": 1", "string"},
    {"\"knobs\": {", "\"knobs\": {\"seed\":\"1\",", "twice"},
    {"model.safetensors", "../model.safetensors", "not part of a checkpoint"},
    {"model.safetensors", "optimizer.safetensors", "twice"},
    {"\"name\": \"config.json\"", "\"name\": \"x\"", "not part of a checkpoint"},
    {"\"files\": [", "\"files\": [],\"x\": [", "lacks model.safetensors"},
    {"\"bytes\": 10", "\"bytes\": -10", "-10"},
    {"\"bytes\": 10,", "", "lacks its name, bytes or hash"},
    {"\"bytes\": 10", "\"bytes\": 10,\"bytes\": 10", "each once"},
    {"\"files\": [", "\"files\": [[", "object"},
    {"\"files\": [", "\"files\": {", "array"},
    {"\"loss_scale\": ", "\"loss_scale\": -", "loss scale"},
    {"\"loss_scale\": ", "\"loss_scale\": 1e300, \"x\": ", "loss scale"},
    {"\"loss_scale\": ", "\"loss_scale\": 1e999, \"x\": ", "too large"},
    {"}\n", "} x\n", "nothing more"},
    {"}\n", "\n", "',' or '}'"},
    {"{\"hash\"", "{ \"hash\"", "begin with its hash"},
    {"\"files\": [", "\"files\": [" FILE_ENTRY("more.safetensors") ",", "not part of a checkpoint"},
};

static void test_manifest(void **state) {
    const struct reader *r = &readers[READ_MANIFEST];
    char text[8192], manifest[4096];
    struct err e = {0};
    manifest_sample(((const struct scratch *)*state)->dir, manifest, sizeof manifest);
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        const char *at = strstr(manifest, lies[i].from);
        if (lies[i].from[0] == '}') // the last one
            at = manifest + strlen(manifest) - strlen(lies[i].from);
        assert_non_null(at);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - manifest), manifest, lies[i].to,
                 at + strlen(lies[i].from));
        manifest_fix_hash(text, strlen(text));
        const char *path = scratch_text(*state, r->file, text);
        run_case(r, path, r->file, strlen(text), lies[i].to, lies[i].parts);
    }
    // Texts that are longer than accepted.
    static const char *const longs[] = {"\"model\": \"", "\"seed\": \""};
    for (int i = 0; i < 2; i++) {
        const char *at = strstr(manifest, longs[i]) + strlen(longs[i]);
        snprintf(text, sizeof text, "%.*s%01500d%s", (int)(at - manifest), manifest, 0, at);
        manifest_fix_hash(text, strlen(text));
        run_case(r, scratch_text(*state, r->file, text), r->file, strlen(text), "long", "long");
    }
    manifest[sizeof "{\"hash\":\""] ^= 1; // a digit of the hash
    assert_failed(reader_run(r, scratch_text(*state, r->file, manifest), sizeof manifest, &e), &e,
                  "manifest.json|hash", "wrong hash");
    assert_failed(reader_run(r, scratch_text(*state, r->file, ""), 0, &e), &e, "manifest.json", "");
    assert_failed(reader_run(r, scratch_text(*state, r->file, "{}"), 2, &e), &e, "hash", "{}");
    assert_int_equal(truncate(scratch_path(*state, r->file), (1 << 20) + 1), 0);
    assert_failed(reader_run(r, scratch_path(*state, r->file), 0, &e), &e, "1048577", "too large");
    print_message("manifest: %zu cases\n", sizeof lies / sizeof lies[0] + 4);
}

// In place of a file there is nothing, a folder, a pipe or a device. None may block or be read.
static void test_no_file(void **state) {
    const struct scratch *d = *state;
    struct err e = {0};
    assert_int_equal(mkfifo(scratch_path(d, "pipe"), 0666), 0);
    assert_int_equal(mkdir(scratch_path(d, "folder"), 0777), 0);
    for (int i = 0; i < READERS; i++) {
        if (readers[i].folder)
            continue;
        const char *paths[] = {scratch_path(d, "none"), scratch_path(d, "folder"),
                               scratch_path(d, "pipe"), "/dev/zero"};
        for (size_t p = 0; p < 4; p++)
            assert_failed(reader_run(&readers[i], paths[p], 0, &e), &e, paths[p], readers[i].name);
    }
    // A long path leaves room for the reason in the message.
    char deep[900];
    memset(deep, 'd', sizeof deep);
    for (size_t i = 0; i < sizeof deep; i += 200)
        deep[i] = '/';
    memcpy(deep, d->dir, strlen(d->dir));
    deep[strlen(d->dir)] = '/'; // inside the folder, so that it is removed with it
    snprintf(deep + 800, 100, "/config.json");
    char *last = strrchr(deep, '/');
    *last = '\0';
    assert_worked(file_make_dirs(deep, &e), &e);
    *last = '/';
    FILE *f = fopen(deep, "wb");
    assert_non_null(f);
    fputs("{\"model_type\":}", f);
    fclose(f);
    assert_failed(reader_run(&readers[READ_CONFIG], deep, 20, &e), &e, "line 1|expected a value",
                  "a long path");
}

int main(void) {
#define IN_SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_setup, scratch_teardown)
    const struct CMUnitTest tests[] = {
        IN_SCRATCH(test_safetensors), IN_SCRATCH(test_pickles), IN_SCRATCH(test_index),
        IN_SCRATCH(test_config),      IN_SCRATCH(test_adapter), IN_SCRATCH(test_recipe),
        IN_SCRATCH(test_manifest),    IN_SCRATCH(test_no_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
