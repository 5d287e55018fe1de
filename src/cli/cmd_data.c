// cmd_data.c - haggle data: shows data as the model will see it.
#include "cli.h"

#include <string.h>

const struct flag data_flags[] = {
    {"samples", 'n', "N", "documents to show, with their trained tokens marked (2)"},
    {0},
};

const char data_help[] =
    "Reads data as training does, with the same tokenizer, template, split and packing. Prints "
    "the\n"
    "shape of each file, documents and tokens, the share of tokens that is trained, whether the\n"
    "last token of a document is trained, what seq cuts off, lengths, padding with each way of\n"
    "packing, and speed. Then shows some documents with the trained tokens marked.\n"
    "\n"
    "A FILE is a .txt (one document) or a .jsonl (a record per line: text, prompt and completion,\n"
    "messages, alpaca, sharegpt, input_ids), or a folder of them. FILE:2 gives a file weight 2\n"
    "among several. Tokens are kept in data.cache, and training reuses them. data.cache=none\n"
    "tokenizes again.\n"
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

int cmd_data(struct cli *c, struct haggle_error *e) {
    const bool recipe = c->args.n_words > 0 && is_recipe(c->args.words[0]);
    struct haggle_data data = {.files = c->args.words + recipe,
                               .n_files = c->args.n_words - recipe};
    c->args.n_words = recipe; // the other words are files
    TRY(args_number(&c->args, "samples", 0, 1000, -1, &data.samples, e));
    TRY(cli_config(c, e));
    cli_catch_signals(true);
    return haggle_data(c->config, &data, &c->sink, e);
}
