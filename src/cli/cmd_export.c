// cmd_export.c - haggle export: exit status 4, as of verify, for a folder that is not what was
// trained.
#include "cli.h"

const struct flag export_flags[] = {
    {"dtype", 0, "TYPE", "fp32, bf16, fp16, or as-source (each tensor as it came; the default)"},
    {"shard-bytes", 0, "SIZE", "largest weight file: 5GB, 500MB (5GB)"},
    {"source", 0, "DIR", "the folder the run was fine-tuned from, when it has moved"},
    {"check", 0, "OUT_DIR", "only check a folder that was exported before"},
    {"probe", 0, "FILE", "what the check computed, for scripts/check_export.py"},
    {0},
};

const char export_help[] =
    "Takes the newest intact checkpoint of a run (or the checkpoint whose folder is given) and\n"
    "writes a folder that Hugging Face tools load: config.json, weights as safetensors, the\n"
    "tokenizer's files, generation_config.json, a card. A model trained on bytes gets a\n"
    "tokenizer.json that does the same.\n"
    "\n"
    "The folder is then read back: hashes of all files, every weight against the checkpoint's, "
    "loss\n"
    "and logits of both on fixed tokens, token ids of fixed texts. It appears under its name only\n"
    "when all of them agree; otherwise the exit status is 4 and nothing is left. OUT_DIR must be\n"
    "new or empty.\n"
    "\n"
    "Examples\n"
    "  haggle export runs/tiny tiny-hf\n"
    "  haggle export runs/chat chat-bf16 --dtype bf16 --shard-bytes 2GB\n"
    "  haggle export --check chat-bf16 runs/chat\n";

static int read_words(const struct args *a, struct haggle_export *x, struct haggle_error *e) {
    x->out_dir = args_get(a, "check");
    x->check = x->out_dir != NULL;
    size_t wanted = x->check ? 1 : 2;
    const char *what =
        x->check ? "haggle export --check OUT_DIR RUN_DIR" : "haggle export RUN_DIR OUT_DIR";
    int rc = args_words(a, wanted, what, e);
    if (rc != 0)
        return rc;
    if (a->n_words < wanted)
        return cli_usage(e, "%s? accepted: %s", a->n_words == 0 ? "which run" : "where to", what);
    x->run_dir = a->words[0];
    if (!x->check)
        x->out_dir = a->words[1];
    return 0;
}

int cmd_export(struct cli *c) {
    struct haggle_error e = {0};
    struct haggle_config *config = NULL;
    struct haggle_export x = {.source = args_get(&c->args, "source"),
                              .dtype = args_get(&c->args, "dtype"),
                              .shard_bytes = args_get(&c->args, "shard-bytes"),
                              .probe = args_get(&c->args, "probe")};
    int rc = read_words(&c->args, &x, &e);
    c->args.n_words = 0; // folders are no recipe
    if (rc == 0)
        rc = cli_config(c, &config, &e);
    if (rc == 0)
        rc = haggle_export(config, &x, &c->sink, &e);
    haggle_config_free(config);
    if (rc == 0)
        return EXIT_OK;
    int status = cli_fail(c, &e);
    return rc == HAGGLE_ERR_NUMERIC ? EXIT_VERIFY : status;
}
