// cmd_eval.c - haggle eval.
#include "cli.h"

const struct flag eval_flags[] = {
    {"data", 'd', "FILE", "text to measure on: .txt, .jsonl, a folder (data.path)"},
    {"best", 0, NULL, "of a run, take the checkpoint of the best validation, not the newest"},
    {"adapter", 0, "FOLDER", "use the last model with this adapter (lora.from)"},
    {0},
};

const char eval_help[] =
    "Measures how well models predict data: loss per token in nats, perplexity, bits per byte of\n"
    "text, each with a 95 % interval. FOLDER is a run's folder (its newest checkpoint is used), a\n"
    "checkpoint or a Hugging Face folder. A run that trained an adapter is used with its base;\n"
    "--adapter takes one that PEFT or haggle export wrote.\n"
    "\n"
    "The data is read as training reads it: shapes of records, chat templates, and which tokens\n"
    "are trained, which are scored here. The other tokens, a prompt's, are context; data.loss=all\n"
    "scores them too. Each record is read on its own and cut to seq tokens (the model's context,\n"
    "at most 2048); data.long=split reads all of it, in pieces. A plain text is read in sequences\n"
    "of seq tokens.\n"
    "\n"
    "The tokens of a record are alike, so records are the unit that the interval counts. Further\n"
    "models are compared with the first one record by record. Two models are called different\n"
    "only when the interval of their difference leaves out 0. Models that read other tokens are\n"
    "compared by bits per byte: on the records that both read whole, and on stretches of plain\n"
    "text.\n"
    "\n"
    "Examples\n"
    "  haggle eval runs/chat --data test.jsonl\n"
    "  haggle eval ./base runs/chat --data test.jsonl --json result.json\n"
    "  haggle eval ./base ./base --adapter ./my-adapter --data test.jsonl precision=bf16\n"
    "  haggle eval ./my-hf-folder --data book.txt seq=1024\n";

int cmd_eval(struct cli *c, struct haggle_error *e) {
    const struct haggle_eval eval = {.models = c->args.words,
                                     .n_models = c->args.n_words,
                                     .data = args_get(&c->args, "data"),
                                     .adapter = args_get(&c->args, "adapter"),
                                     .best = args_get(&c->args, "best") != NULL};
    c->args.n_words = 0; // the words are folders, not a recipe
    TRY(cli_config(c, e));
    cli_catch_signals(true);
    return haggle_eval(c->config, &eval, &c->sink, e);
}
