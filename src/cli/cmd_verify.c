// cmd_verify.c - haggle verify: exit status 4 is its own, for a figure outside its tolerance.
#include "cli.h"

const struct flag verify_flags[] = {
    {"reference", 0, NULL, "with the plain backend instead of the fast one"},
    {"checking", 0, NULL,
     "observe every op: what it writes, and that it reads nothing dead (slow)"},
    {0},
};

const char verify_help[] =
    "Each folder is a Hugging Face checkpoint with ref.json and ref.safetensors beside it: what a\n"
    "correct engine computes on it. Compared are loss, logits, gradients, a number of optimizer\n"
    "steps and greedy text; each figure is printed with its tolerance.\n"
    "\n"
    "Examples\n"
    "  haggle verify fixtures/gpt2-tiny fixtures/llama-tiny\n"
    "  haggle verify fixtures/gpt2-tiny --reference --json -\n";

int cmd_verify(struct cli *c) {
    struct haggle_error e = {0};
    struct haggle_config *config = NULL;
    const char *const *folders = c->args.words;
    size_t n = c->args.n_words;
    unsigned how = 0;
    int rc = n > 0 ? 0 : cli_usage(&e, "which folder? accepted: haggle verify FOLDER ...");
    c->args.n_words = 0; // folders are no recipe
    if (args_get(&c->args, "reference"))
        how |= HAGGLE_VERIFY_REFERENCE;
    if (args_get(&c->args, "checking"))
        how |= HAGGLE_VERIFY_CHECKING;
    if (rc == 0)
        rc = cli_config(c, &config, &e);
    if (rc == 0)
        rc = haggle_verify(config, folders, n, how, &c->sink, &e);
    haggle_config_free(config);
    if (rc == 0)
        return EXIT_OK;
    int status = cli_fail(c, &e);
    return rc == HAGGLE_ERR_NUMERIC ? EXIT_VERIFY : status;
}
