// test_render_model.c - what a model's folder says: its chat template, special tokens, and wrong
// folders.
#include "test_render_fixture.h"

static void put(struct bench *b, const char *name, const char *text) {
    folder_file(b->folder, name, text, strlen(text));
}
static void drop(struct bench *b, const char *name) {
    remove(folder_path(b->folder, name));
}
static void open_folder(struct bench *b) {
    bench_open(b, (struct render_options){.model_dir = b->folder->path});
}
static void refused(struct bench *b, int code, const char *says) {
    struct render_options o = {.tokenizer = b->tokenizer, .model_dir = b->folder->path};
    bench_reset(b);
    assert_int_equal(renderer_open(&b->renderer, &o, &b->e), code);
    if (strstr(b->e.text, says) == NULL)
        fail_msg("%s: %s", says, b->e.text);
}

static const char chat[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":"
                           "\"assistant\",\"content\":\"Hello!\"}]}";
#define CHATML                                                                                     \
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + "                   \
    "message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}"        \
    "{{ '<|im_start|>assistant\\n' }}{% endif %}"
#define CHATML_JSON                                                                                \
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\\\n' + "                 \
    "message['content'] + '<|im_end|>' + '\\\\n'}}{% endfor %}{% if add_generation_prompt %}"      \
    "{{ '<|im_start|>assistant\\\\n' }}{% endif %}"
static const char chatml_shown[] =
    "[<|im_start|>]user\nHi[<|im_end|>]\n[<|im_start|>]assistant\n{Hello![<|im_end|>]}\n";

static void test_where_templates_are(void **state) {
    struct bench b;
    bench_begin(&b, state);
    put(&b, "tokenizer_config.json",
        "{\"eos_token\":\"<|im_end|>\",\"chat_template\":\"" CHATML_JSON "\"}");
    open_folder(&b);
    assert_string_equal(renderer_template(b.renderer), "chatml"); // recognised by its output
    assert_int_equal(renderer_end_of_text(b.renderer), 258);
    expect_line(&b, RENDER_MESSAGES, chat, chatml_shown);
    put(&b, "tokenizer_config.json",
        "{\"eos_token\":{\"content\":\"</s>\",\"special\":true},\"chat_template\":["
        "{\"name\":\"tool_use\",\"template\":\"x\"},"
        "{\"name\":\"default\",\"template\":\"" CHATML_JSON "\"}]}");
    open_folder(&b);
    assert_int_equal(renderer_end_of_text(b.renderer), 270);
    expect_line(&b, RENDER_MESSAGES, chat, chatml_shown);
    put(&b, "tokenizer_config.json",
        "{\"eos_token\":\"</s>\",\"chat_template\":[{\"name\":\"rag\",\"template\":\"x\"}]}");
    refused(&b, ERR_FORMAT, "is named \"default\"");
    // The separate file wins.
    put(&b, "tokenizer_config.json", "{\"eos_token\":\"</s>\",\"chat_template\":\"{{ nonsense\"}");
    put(&b, "chat_template.jinja", CHATML "\n");
    open_folder(&b);
    expect_line(&b, RENDER_MESSAGES, chat, chatml_shown);
    // Without any template: plain.
    drop(&b, "chat_template.jinja");
    put(&b, "tokenizer_config.json", "{\"eos_token\":\"</s>\",\"chat_template\":null}");
    open_folder(&b);
    assert_string_equal(renderer_template(b.renderer), "plain");
    bench_end(&b);
}

// A template that is not understood is an error for conversations, which lists the known ones.
// Texts do not need a template.
static void test_unknown_template(void **state) {
    static const struct {
        const char *source, *says;
    } cases[] = {
        {"{% include 'x' %}", "line 1: a statement is not understood at \"include\""},
        {"{{ messages", "a tag does not end"},
        {"{% for m in messages %}{{ m.content }}", "a block does not end"},
        {"{{ frobnicate(messages) }}", "the function frobnicate is not understood"},
        {"{{ messages | shuffle }}", "the filter shuffle is not understood"},
        {"Hello", "chat_template.jinja does not write the assistant's text"},
        {"", "chat_template.jinja is empty"},
        {" \n ", "chat_template.jinja is empty"},
        {"{{ raise_exception('no') }}", "the template refuses this conversation: no"},
        {"{{ '\xff' }}", "is not valid UTF-8"},
    };
    struct bench b;
    bench_begin(&b, state);
    put(&b, "tokenizer_config.json", "{\"eos_token\":\"</s>\"}");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put(&b, "chat_template.jinja", cases[i].source);
        open_folder(&b);
        expect_line(&b, RENDER_TEXT, "{\"text\":\"ab\"}", "a{b[</s>]}");
        assert_int_equal(bench_line(&b, RENDER_MESSAGES, chat), ERR_UNSUPPORTED);
        if (strstr(b.e.text, cases[i].says) == NULL ||
            strstr(b.e.text, "plain, chatml, qwen2.5, llama3") == NULL)
            fail_msg("%s: %s", cases[i].says, b.e.text);
        // Given by name, it is an error at once.
        struct render_options o = {.tokenizer = b.tokenizer,
                                   .model_dir = b.folder->path,
                                   .chat_template = folder_path(b.folder, "chat_template.jinja")};
        bench_reset(&b);
        assert_true(renderer_open(&b.renderer, &o, &b.e) < 0);
        // Another one can be given instead.
        bench_open(&b,
                   (struct render_options){.model_dir = b.folder->path, .chat_template = "chatml"});
        expect_line(&b, RENDER_MESSAGES, chat, chatml_shown);
    }
    bench_end(&b);
}

// Finds what is trained with more complex templates.
static void test_trained_turns(void **state) {
    static const char two[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":"
        "\"a\"},{\"role\":\"user\",\"content\":\"Q\"},{\"role\":\"assistant\",\"content\":\"A\"}]}";
    static const struct {
        const char *source, *expected;
    } cases[] = {
        // The last turn has more text than earlier ones (as with thinking models).
        {"{% for m in messages %}<|im_start|>{{ m.role }}\n\n{% if loop.last and m.role == "
         "'assistant' %}{{ '<think></think>' }}{% endif %}{{ m.content }}<|im_end|>{% endfor %}"
         "{% if add_generation_prompt %}<|im_start|>assistant\n\n{% endif %}",
         "[<|im_start|>]user\n\nq[<|im_end|>][<|im_start|>]assistant\n\n{a[<|im_end|>]}"
         "[<|im_start|>]user\n\nQ[<|im_end|>][<|im_start|>]assistant\n\n"
         "{<think></think>A[<|im_end|>]}"},
        // The generation prompt has more text than the turn.
        {"{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}"
         "{% if add_generation_prompt %}<|im_start|>assistant: <think>{% endif %}",
         "[<|im_start|>]user: q[<|im_end|>][<|im_start|>]assistant: {a[<|im_end|>]}"
         "[<|im_start|>]user: Q[<|im_end|>][<|im_start|>]assistant: {A[<|im_end|>]}"},
        // No generation prompt and no turn end: the text and the end of the document are trained.
        {"{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
         "user: q\nassistant:{ a}\nuser: Q\nassistant:{ A}\n{[</s>]}"},
        // The turn end is not a special token: it is trained as text.
        {"{% for m in messages %}<turn>{{ m.role }}\n\n{{ m.content }}</turn>\n{% endfor %}"
         "{% if add_generation_prompt %}<turn>assistant\n\n{% endif %}",
         "<turn>user\n\nq</turn>\n<turn>assistant\n\n{a</turn>}\n<turn>user\n\nQ</turn>\n"
         "<turn>assistant\n\n{A</turn>}\n{[</s>]}"},
        // The template marks what the model writes.
        {"{% for m in messages %}{% if m.role == 'assistant' %}<|im_start|>{% generation %}"
         "{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}\n{% endif %}"
         "{% endfor %}",
         "q\n[<|im_start|>]{a[<|im_end|>]}Q\n[<|im_start|>]{A[<|im_end|>]}"},
        // Blanks around the text are removed, and nothing else.
        {"{% for m in messages %}<|im_start|>{{ (' ' + m.content + ' ') | trim }}<|im_end|>"
         "{% endfor %}",
         "[<|im_start|>]q[<|im_end|>][<|im_start|>]{a[<|im_end|>]}[<|im_start|>]Q[<|im_end|>]"
         "[<|im_start|>]{A[<|im_end|>]}"},
    };
    struct bench b;
    bench_begin(&b, state);
    put(&b, "tokenizer_config.json", "{\"eos_token\":\"</s>\"}");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put(&b, "chat_template.jinja", cases[i].source);
        open_folder(&b);
        expect_line(&b, RENDER_MESSAGES, two, cases[i].expected);
        assert_true(b.out.end_trained);
    }
    // The context of a completion is not trained, even if the template marks it.
    put(&b, "chat_template.jinja", cases[4].source);
    open_folder(&b);
    expect_line(&b, RENDER_COMPLETION,
                "{\"prompt\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\","
                "\"content\":\"a\"},{\"role\":\"user\",\"content\":\"Q\"}],\"completion\":[{"
                "\"role\":\"assistant\",\"content\":\"A\"}]}",
                "q\n[<|im_start|>]a[<|im_end|>]Q\n[<|im_start|>]{A[<|im_end|>]}");
    // A template that shuffles or repeats messages: the trained part is ambiguous.
    put(&b, "chat_template.jinja",
        "{% for m in messages[::-1] %}{{ m.content }}<|im_end|>{% endfor %}");
    open_folder(&b);
    assert_int_equal(bench_line(&b, RENDER_MESSAGES, two), ERR_UNSUPPORTED);
    put(&b, "chat_template.jinja",
        "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
        "{{ messages[1].content if messages | length > 1 }}");
    open_folder(&b);
    assert_int_equal(bench_line(&b, RENDER_MESSAGES, two), ERR_UNSUPPORTED);
    assert_non_null(strstr(b.e.text, "message 2 in several places"));
    bench_end(&b);
}

static void test_tokens_of_the_model(void **state) {
    static const char *const files[] = {"tokenizer_config.json", "special_tokens_map.json",
                                        "generation_config.json", "config.json"};
    static const struct {
        const char *text[4];
        int32_t eos;
        const char *shown; // for the text "a"
    } cases[] = {
        {{"{\"eos_token\":\"</s>\"}", NULL, NULL, "{\"eos_token_id\":258}"}, 270, "a{[</s>]}"},
        {{NULL, "{\"eos_token\":{\"content\":\"<|eot_id|>\"}}"}, 262, "a{[<|eot_id|>]}"},
        {{NULL, NULL, "{\"eos_token_id\":[262,258]}", "{\"eos_token_id\":258}"}, 262, NULL},
        {{"{\"eos_token\":null}", NULL, NULL, "{\"eos_token_id\":258}"}, 258, NULL},
        {{"{\"eos_token\":\"</s>\",\"bos_token\":\"<s>\",\"add_bos_token\":true}"},
         270,
         "[<s>]{a[</s>]}"},
        {{"{\"eos_token\":\"</s>\",\"bos_token\":\"<s>\",\"add_bos_token\":false}"},
         270,
         "a{[</s>]}"},
        {{"{\"eos_token\":\"</s>\",\"bos_token\":\"<s>\"}"}, 270, "a{[</s>]}"},
        {{"{\"eos_token\":\"</s>\",\"add_bos_token\":true}", NULL, NULL, "{\"bos_token_id\":269}"},
         270,
         "[<s>]{a[</s>]}"},
    };
    struct bench b;
    bench_begin(&b, state);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int f = 0; f < 4; f++)
            if (cases[i].text[f] != NULL)
                put(&b, files[f], cases[i].text[f]);
            else
                drop(&b, files[f]);
        open_folder(&b);
        assert_int_equal(renderer_end_of_text(b.renderer), cases[i].eos);
        if (cases[i].shown != NULL)
            expect_line(&b, RENDER_TEXT, "{\"text\":\"a\"}", cases[i].shown);
    }
    for (int f = 0; f < 4; f++)
        drop(&b, files[f]);
    refused(&b, ERR_USAGE, "the tokenizer has two candidates");
    // The tokenizer's post-processor adds a token in front, alone or in a sequence.
    static const char post[] =
        "{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
        "\"trim_offsets\":true,\"use_regex\":true},{\"type\":\"TemplateProcessing\",\"single\":[{"
        "\"SpecialToken\":{\"id\":\"<|begin_of_text|>\",\"type_id\":0}},{\"Sequence\":{\"id\":"
        "\"A\",\"type_id\":0}},{\"SpecialToken\":{\"id\":\"</s>\",\"type_id\":0}}],\"pair\":[],"
        "\"special_tokens\":{\"<|begin_of_text|>\":{\"id\":\"<|begin_of_text|>\",\"ids\":[259],"
        "\"tokens\":[\"<|begin_of_text|>\"]},\"</s>\":{\"id\":\"</s>\",\"ids\":[270],\"tokens\":["
        "\"</s>\"]}}}]}";
    write_tokenizer(b.folder, false, post);
    put(&b, "tokenizer_config.json", "{\"eos_token\":\"</s>\"}");
    open_folder(&b);
    expect_line(&b, RENDER_TEXT, "{\"text\":\"a\"}", "[<|begin_of_text|>]{a[</s>]}");
    expect_line(&b, RENDER_COMPLETION, "{\"prompt\":\"p\",\"completion\":\"c\"}",
                "[<|begin_of_text|>]p{c[</s>]}");
    bench_end(&b);
}

static void test_folders_that_lie(void **state) {
    static const struct {
        const char *file, *text;
        int code;
        const char *says;
    } cases[] = {
        {"tokenizer_config.json", "{\"eos_token\":\"<gone>\"}", ERR_USAGE, "\"<gone>\""},
        {"tokenizer_config.json", "{\"eos_token\":3}", ERR_FORMAT, "expected a token"},
        {"tokenizer_config.json", "{\"eos_token\":\"</s>\"", ERR_FORMAT, "tokenizer_config.json"},
        {"tokenizer_config.json", "[]", ERR_FORMAT, "expected an object"},
        {"tokenizer_config.json", "", ERR_FORMAT, "tokenizer_config.json"},
        {"tokenizer_config.json", "{\"eos_token\":\"</s>\",\"chat_template\":3}", ERR_FORMAT,
         "chat_template: expected"},
        {"tokenizer_config.json", "{\"eos_token\":\"</s>\",\"add_bos_token\":3}", ERR_FORMAT,
         "expected true or false"},
        {"tokenizer_config.json", "{\"eos_token\":\"</s>\",\"add_bos_token\":true}", ERR_USAGE,
         "\"bos_token\" is missing"},
        {"config.json", "{\"eos_token_id\":99999}", ERR_USAGE, "id 99999"},
        {"config.json", "{\"eos_token_id\":-1}", ERR_FORMAT, "0 or more"},
        {"config.json", "{\"eos_token_id\":\"x\"}", ERR_FORMAT, "expected a number"},
        {"generation_config.json", "{\"eos_token_id\":[]}", ERR_FORMAT, "0 or more"},
    };
    struct bench b;
    bench_begin(&b, state);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put(&b, cases[i].file, cases[i].text);
        refused(&b, cases[i].code, cases[i].says);
        drop(&b, cases[i].file);
    }
    // Every prefix of a configuration is refused.
    static const char whole[] = "{\"eos_token\":{\"content\":\"</s>\"},\"chat_template\":"
                                "[{\"name\":\"default\",\"template\":\"{{ 1 }}\"}]}";
    for (size_t n = 0; n + 1 < sizeof whole; n++) {
        struct render_options o = {.tokenizer = b.tokenizer, .model_dir = b.folder->path};
        folder_file(b.folder, "tokenizer_config.json", whole, n);
        assert_int_equal(renderer_open(&b.renderer, &o, &b.e), ERR_FORMAT);
    }
    bench_end(&b);
}

static void test_fingerprint(void **state) {
    struct bench b;
    char first[40], again[40];
    bench_begin(&b, state);
    put(&b, "tokenizer_config.json", "{\"eos_token\":\"</s>\"}");
    struct render_options base = {.model_dir = b.folder->path, .chat_template = "chatml"};
    bench_open(&b, base);
    assert_int_equal(strlen(renderer_fingerprint(b.renderer)), 32);
    strcpy(first, renderer_fingerprint(b.renderer));
    bench_open(&b, base);
    strcpy(again, renderer_fingerprint(b.renderer));
    assert_string_equal(first, again);
    struct render_options others[] = {base, base, base, base};
    others[0].chat_template = "plain";
    others[1].loss = RENDER_LOSS_ALL;
    others[2].keys = "text=body";
    others[3].system = "S";
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        bench_open(&b, others[i]);
        assert_string_not_equal(renderer_fingerprint(b.renderer), first);
    }
    base.shape = RENDER_TEXT; // belongs to the file, not to the renderer
    bench_open(&b, base);
    assert_string_equal(renderer_fingerprint(b.renderer), first);
    put(&b, "tokenizer_config.json", "{\"eos_token\":\"<|endoftext|>\"}");
    bench_open(&b, base);
    assert_string_not_equal(renderer_fingerprint(b.renderer), first);
    bench_end(&b);
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, folder_setup, folder_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_where_templates_are), TEST(test_unknown_template), TEST(test_trained_turns),
        TEST(test_tokens_of_the_model), TEST(test_folders_that_lie), TEST(test_fingerprint),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
