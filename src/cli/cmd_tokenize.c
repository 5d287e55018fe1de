// cmd_tokenize.c - haggle tokenize.
#include "cli.h"

const struct flag tokenize_flags[] = {
    {"tokenizer", 't', "FILE", "a tokenizer.json, a model's folder, or bytes (the built-in one)"},
    {"decode", 'd', NULL, "the other way: ids in, text out"},
    {"plain", 0, NULL, "special tokens are text; with --decode they are left out"},
    {"threads", 0, "N", "threads to use; without it all CPUs"},
    {0},
};

const char tokenize_help[] =
    "Reads JSONL with a member \"text\" from the standard input (other members are ignored) and\n"
    "prints one JSON array of token ids per line, in the order of the lines. No token is added at\n"
    "the beginning or the end. Where the text spells a special token, it becomes that token, as\n"
    "Hugging Face's tokenizers do it; with --plain it is ordinary text.\n"
    "\n"
    "--decode reads one JSON array of ids per line and prints {\"text\": ...}. Special tokens are\n"
    "spelled out, with --plain they are left out. JSON holds Unicode only: bytes of the decoded "
    "text\n"
    "that are not UTF-8 (a character cut in half by the ids) are printed as U+FFFD, one for each\n"
    "broken character.\n"
    "\n"
    "Blank lines are skipped. A line that is not understood ends the command with its number and "
    "a\n"
    "non-zero status; the lines before it are printed.\n"
    "\n"
    "Examples\n"
    "  echo '{\"text\": \"Hello world\"}' | haggle tokenize --tokenizer ./my-hf-folder\n"
    "  echo '[15496, 995]' | haggle tokenize --tokenizer tokenizer.json --decode\n"
    "  haggle tokenize --tokenizer tokenizer.json --threads 2 < data.jsonl > ids.jsonl\n";

int cmd_tokenize(struct cli *c) {
    struct haggle_error e = {0};
    int64_t threads = 0;
    struct haggle_tokenize o = {.tokenizer = args_get(&c->args, "tokenizer"),
                                .decode = args_get(&c->args, "decode") != NULL,
                                .plain = args_get(&c->args, "plain") != NULL};
    int rc = args_words(&c->args, 0, "only flags; text comes from the standard input", &e);
    if (rc == 0 && c->args.n_knobs > 0)
        rc = cli_usage(&e, "%s=%s is not accepted: this verb has no knobs", c->args.knobs[0].name,
                       c->args.knobs[0].value);
    if (rc == 0 && !o.tokenizer)
        rc = cli_usage(&e, "which tokenizer? accepted: --tokenizer FILE, a tokenizer.json or a "
                           "folder with one, or bytes");
    if (rc == 0)
        rc = args_number(&c->args, "threads", 1, 1024, 0, &threads, &e);
    o.threads = (int)threads;
    if (rc == 0)
        rc = haggle_tokenize(&o, stdin, &c->sink, &e);
    return rc == 0 ? EXIT_OK : cli_fail(c, &e);
}
