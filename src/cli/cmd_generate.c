// cmd_generate.c - haggle generate.
#include "cli.h"

#include <errno.h>
#include <stdlib.h>

const struct flag generate_flags[] = {
    {"prompt", 'p', "TEXT", "text to continue; without it, starts a new document"},
    {"ids", 0, "N,N,...", "token ids to continue, instead of text"},
    {"best", 0, NULL, "of a run, take the checkpoint of the best validation, not the newest"},
    {"adapter", 0, "FOLDER", "use the model with this adapter (lora.from)"},
    {"tokens", 'n', "N", "most tokens to generate (generate.tokens)"},
    {0},
};

const char generate_help[] =
    "Continues a prompt greedily. FOLDER is a checkpoint of a run, a run's folder (its newest\n"
    "checkpoint is used) or a Hugging Face folder. model=FOLDER means the same. A run that "
    "trained\n"
    "an adapter is used with its base; --adapter takes one that PEFT or haggle export wrote.\n"
    "\n"
    "Text is tokenized with the folder's tokenizer.json. A run's checkpoint uses the tokenizer of\n"
    "the folder the run started from. A model trained from a built-in shape reads bytes. With\n"
    "--ids the output is ids too.\n"
    "\n"
    "Examples\n"
    "  haggle generate runs/tiny --prompt 'Story'\n"
    "  haggle generate runs/tiny --best --prompt 'Story'\n"
    "  haggle generate ./my-hf-folder --ids 464,3290 --tokens 16\n"
    "  haggle generate ./my-hf-folder --adapter ./my-adapter --prompt 'Story'\n";

static int read_ids(const char *text, int32_t **out, size_t *count, struct haggle_error *e) {
    size_t most = 1;
    for (const char *p = text; *p; p++)
        most += *p == ',';
    int32_t *ids = malloc(most * sizeof *ids);
    if (!ids)
        return cli_error(e, HAGGLE_ERR_MEMORY, "out of memory for %zu ids", most);
    size_t n = 0;
    for (const char *at = text;;) {
        char *end;
        errno = 0;
        long x = strtol(at, &end, 10);
        if (end == at || errno != 0 || x < 0 || x > INT32_MAX || (*end && *end != ',')) {
            free(ids);
            return cli_usage(e, "--ids=%s is not accepted; accepted: numbers separated by commas",
                             text);
        }
        ids[n++] = (int32_t)x;
        if (!*end)
            break;
        at = end + 1;
    }
    *out = ids;
    *count = n;
    return 0;
}

int cmd_generate(struct cli *c, struct haggle_error *e) {
    struct haggle_prompt prompt = {.text = args_get(&c->args, "prompt"),
                                   .best = args_get(&c->args, "best") != NULL};
    const char *given = args_get(&c->args, "ids");
    const char *folder = c->args.n_words > 0 ? c->args.words[0] : NULL;
    int32_t *ids = NULL;
    TRY(args_words(&c->args, 1, "one folder, then knob=value", e));
    if (given && prompt.text)
        return cli_usage(e, "--prompt and --ids both say what to continue; accepted: one of them");
    TRY(args_number(&c->args, "tokens", 1, 1048576, 0, &prompt.tokens, e));
    c->args.n_words = 0; // the word is a folder, not a recipe
    TRY(cli_config(c, e));
    if (folder)
        TRY(haggle_config_set(c->config, "model", folder, e));
    if (args_get(&c->args, "adapter"))
        TRY(haggle_config_set(c->config, "lora.from", args_get(&c->args, "adapter"), e));
    if (given)
        TRY(read_ids(given, &ids, &prompt.n_ids, e));
    prompt.ids = ids;
    int rc = haggle_generate(c->config, &prompt, &c->sink, e);
    free(ids);
    return rc;
}
