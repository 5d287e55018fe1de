// cmd_data.c - haggle data: what the model will see.
#include "cli.h"

#include <string.h>

const struct flag data_flags[] = {
    {"samples", 'n', "N", "documents shown, their trained tokens marked (2)"},
    {0},
};

const char data_help[] =
    "Reads data as training would, with the same tokenizer, template, split and packing, and "
    "shows\n"
    "it: the shape of each file, documents and tokens, the share that is trained, whether the\n"
    "token that ends a document is, what seq cuts off, lengths, padding with each way of packing,\n"
    "speed; then documents as the model gets them, with the trained tokens marked.\n"
    "\n"
    "A FILE is a .txt (one document) or a .jsonl (a record per line: text, prompt and completion,\n"
    "messages, alpaca, sharegpt, input_ids), or a folder of them; FILE:2 has weight 2 among\n"
    "several. What was tokenized is kept in data.cache and reused, by training too;\n"
    "data.cache=none tokenizes anew.\n"
    "\n"
    "Examples\n"
    "  haggle data chat.jsonl model=./my-hf-folder seq=2048\n"
    "  haggle data a.jsonl:3 notes.txt:1 tokenizer=tokenizer.json --samples 5\n"
    "  haggle data chat.jsonl data.template=chatml data.loss=all --json -\n"
    "  haggle data recipes/mine.yaml\n";

static bool is_recipe(const char *name) {
    const char *dot = strrchr(name, '.');
    return dot && (strcmp(dot, ".yaml") == 0 || strcmp(dot, ".yml") == 0);
}

int cmd_data(struct cli *c) {
    struct haggle_error e = {0};
    struct haggle_config *config = NULL;
    const bool recipe = c->args.n_words > 0 && is_recipe(c->args.words[0]);
    struct haggle_data data = {.files = c->args.words + recipe,
                               .n_files = c->args.n_words - recipe};
    c->args.n_words = recipe; // files are no recipe
    int rc = args_number(&c->args, "samples", 0, 1000, -1, &data.samples, &e);
    if (rc == 0)
        rc = cli_config(c, &config, &e);
    if (rc == 0) {
        cli_catch_signals();
        rc = haggle_data(config, &data, &c->sink, &e);
    }
    haggle_config_free(config);
    return rc == 0 ? EXIT_OK : cli_fail(c, &e);
}
