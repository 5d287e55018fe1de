// cmd_export.c - haggle export. As with verify, the exit status is 4 when the folder does not match
// the checkpoint.
#include "cli.h"

const struct flag export_flags[] = {
    {"dtype", 0, "TYPE",
     "fp32, bf16, fp16, or as-source (each tensor's original type; the default)"},
    {"shard-bytes", 0, "SIZE", "largest weight file: 5GB, 500MB (5GB)"},
    {"best", 0, NULL, "take the checkpoint of the best validation (save.best), not the newest"},
    {"source", 0, "DIR", "the folder the run was fine-tuned from, if it has moved"},
    {"merge", 0, NULL, "of a run that trained an adapter: write the whole model"},
    {"data", 0, "FILE", "with --merge: data to measure the loss on (the run's validation data)"},
    {"gguf", 0, "FILE", "write one GGUF file for llama.cpp instead of a folder"},
    {"type", 0, "TYPE", "with --gguf: f32, f16, bf16, q8_0 or q4_0 (f16)"},
    {"check", 0, "OUT_DIR", "only check a folder that was exported before"},
    {"probe", 0, "FILE",
     "write what the model computes, for scripts/check_export.py, check_gguf.py"},
    {0},
};

const char export_help[] =
    "Takes the newest intact checkpoint of a run (or the checkpoint whose folder is given) and\n"
    "writes a folder that Hugging Face tools load: config.json, weights as safetensors, the\n"
    "tokenizer's files, generation_config.json, a model card. A model trained on bytes gets a\n"
    "tokenizer.json that maps text to bytes.\n"
    "\n"
    "A run that trained an adapter (lora.rank) gives a folder in PEFT's format:\n"
    "adapter_config.json, adapter_model.safetensors, the tokenizer. With --merge\n"
    "the adapter is added to the weights of its base, and the loss before and after is printed.\n"
    "\n"
    "The folder is then read back and compared with the checkpoint: hashes of all files, every\n"
    "weight, loss and logits on fixed tokens, token ids of fixed texts. It gets its name only "
    "when\n"
    "all of them agree. Otherwise the exit status is 4 and the folder is removed. OUT_DIR must be\n"
    "new or empty.\n"
    "\n"
    "With --gguf the result is one file that llama.cpp and what is built on it load, with the\n"
    "tokenizer and the chat template. It may also be made from a Hugging Face folder. Norms and\n"
    "biases stay f32; with q8_0 and q4_0, matrices whose rows are no multiple of 32 stay f16, and\n"
    "the output names them. What llama.cpp cannot represent is refused. The file is read back and\n"
    "every value compared with the source before it gets its name.\n"
    "\n"
    "Examples\n"
    "  haggle export runs/tiny tiny-hf\n"
    "  haggle export runs/chat chat-best --best\n"
    "  haggle export runs/chat chat-bf16 --dtype bf16 --shard-bytes 2GB\n"
    "  haggle export --merge runs/lora lora-merged --dtype bf16\n"
    "  haggle export runs/chat --gguf chat.gguf --type q8_0\n"
    "  haggle export --merge runs/lora --gguf lora.gguf --type f16\n"
    "  haggle export --check chat-bf16 runs/chat\n";

static int read_words(const struct args *a, struct haggle_export *x, struct haggle_error *e) {
    x->out_dir = args_get(a, "check");
    x->check = x->out_dir != NULL;
    if (x->check && x->gguf != NULL)
        return cli_usage(e, "--check reads a folder; accepted: --check without --gguf");
    size_t wanted = x->check || x->gguf != NULL ? 1 : 2;
    const char *what = x->check          ? "haggle export --check OUT_DIR RUN_DIR"
                       : x->gguf != NULL ? "haggle export RUN_OR_FOLDER --gguf FILE"
                                         : "haggle export RUN_DIR OUT_DIR";
    TRY(args_words(a, wanted, what, e));
    if (a->n_words < wanted)
        return cli_usage(e, "%s? accepted: %s", a->n_words == 0 ? "which run" : "where to", what);
    x->run_dir = a->words[0];
    if (wanted == 2)
        x->out_dir = a->words[1];
    return 0;
}

int cmd_export(struct cli *c, struct haggle_error *e) {
    struct haggle_export x = {.source = args_get(&c->args, "source"),
                              .dtype = args_get(&c->args, "dtype"),
                              .shard_bytes = args_get(&c->args, "shard-bytes"),
                              .probe = args_get(&c->args, "probe"),
                              .best = args_get(&c->args, "best") != NULL,
                              .merge = args_get(&c->args, "merge") != NULL,
                              .data = args_get(&c->args, "data"),
                              .gguf = args_get(&c->args, "gguf"),
                              .type = args_get(&c->args, "type")};
    TRY(read_words(&c->args, &x, e));
    if (x.best && x.check)
        return cli_usage(e, "--check compares with the checkpoint that was exported; accepted: "
                            "--check without --best");
    c->args.n_words = 0; // the words are folders, not a recipe
    c->numeric = EXIT_VERIFY;
    TRY(cli_config(c, e));
    return haggle_export(c->config, &x, &c->sink, e);
}
