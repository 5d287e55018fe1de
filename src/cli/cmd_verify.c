// cmd_verify.c - haggle verify. The exit status is 4 when a figure is outside its tolerance.
#include "cli.h"

const struct flag verify_flags[] = {
    {"reference", 0, NULL, "use the plain backend instead of the fast one"},
    {"adapter", 0, "FOLDER", "compare the model with this adapter; the reference is in FOLDER"},
    {"checking", 0, NULL, "check what every op writes, and that it reads no dead tensor (slow)"},
    {0},
};

const char verify_help[] =
    "Each folder is a Hugging Face checkpoint with ref.json and ref.safetensors, which hold what "
    "a\n"
    "correct engine computes on it. Compares loss, logits, gradients, some optimizer steps and\n"
    "greedy text. Prints each figure with its tolerance. With --ranks N (and parallel.*, "
    "zero.stage,\n"
    "pipe.schedule) the model is computed by several ranks; batch.accum then says how many\n"
    "micro-batches the reference's sequences are.\n"
    "\n"
    "Examples\n"
    "  haggle verify fixtures/gpt2-tiny fixtures/llama-tiny\n"
    "  haggle verify fixtures/gpt2-tiny --reference --json -\n"
    "  haggle verify fixtures/llama-tiny --adapter fixtures/llama-tiny/adapter\n"
    "  haggle verify fixtures/llama-tiny --ranks 4 parallel.tensor=2 parallel.pipe=2\n";

int cmd_verify(struct cli *c, struct haggle_error *e) {
    const char *const *folders = c->args.words;
    size_t n = c->args.n_words;
    unsigned how = 0;
    if (n == 0)
        return cli_usage(e, "which folder? accepted: haggle verify FOLDER ...");
    c->args.n_words = 0; // the words are folders, not a recipe
    c->numeric = EXIT_VERIFY;
    if (args_get(&c->args, "reference"))
        how |= HAGGLE_VERIFY_REFERENCE;
    if (args_get(&c->args, "checking"))
        how |= HAGGLE_VERIFY_CHECKING;
    TRY(cli_config(c, e));
    if (args_get(&c->args, "adapter"))
        TRY(haggle_config_set(c->config, "lora.from", args_get(&c->args, "adapter"), e));
    return haggle_verify(c->config, folders, n, how, &c->sink, e);
}
