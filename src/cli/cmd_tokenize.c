// cmd_tokenize.c - haggle tokenize.
#include "cli.h"

const struct flag tokenize_flags[] = {
    {"tokenizer", 't', "FILE", "a tokenizer.json, a model's folder, or bytes (the built-in one)"},
    {"decode", 'd', NULL, "read ids, print text"},
    {"plain", 0, NULL, "treat special tokens as text; with --decode: leave them out"},
    {"threads", 0, "N", "threads to use (all CPUs)"},
    {0},
};

const char tokenize_help[] =
    "Reads JSONL with a member \"text\" from the standard input (other members are ignored) and\n"
    "prints one JSON array of token ids per line, in the order of the lines. No token is added at\n"
    "the beginning or the end. Text that spells a special token becomes that token, as in Hugging\n"
    "Face's tokenizers. With --plain it stays ordinary text.\n"
    "\n"
    "--decode reads one JSON array of ids per line and prints {\"text\": ...}. Special tokens are\n"
    "spelled out, or left out with --plain. JSON holds Unicode only: a character that the ids cut\n"
    "in half is printed as U+FFFD.\n"
    "\n"
    "Blank lines are skipped. A line that is not understood ends the command with an error that\n"
    "gives its number; the lines before it are printed.\n"
    "\n"
    "Examples\n"
    "  echo '{\"text\": \"Hello world\"}' | haggle tokenize --tokenizer ./my-hf-folder\n"
    "  echo '[15496, 995]' | haggle tokenize --tokenizer tokenizer.json --decode\n"
    "  haggle tokenize --tokenizer tokenizer.json --threads 2 < data.jsonl > ids.jsonl\n";

int cmd_tokenize(struct cli *c, struct haggle_error *e) {
    int64_t threads;
    struct haggle_tokenize o = {.tokenizer = args_get(&c->args, "tokenizer"),
                                .decode = args_get(&c->args, "decode") != NULL,
                                .plain = args_get(&c->args, "plain") != NULL};
    TRY(args_words(&c->args, 0, "only flags; text comes from the standard input", e));
    TRY(args_no_knobs(&c->args, "only flags", e));
    if (!o.tokenizer)
        return cli_usage(e, "which tokenizer? accepted: --tokenizer FILE, a tokenizer.json or a "
                            "folder with one, or bytes");
    TRY(args_number(&c->args, "threads", 1, 1024, 0, &threads, e));
    o.threads = (int)threads;
    return haggle_tokenize(&o, stdin, &c->sink, e);
}
