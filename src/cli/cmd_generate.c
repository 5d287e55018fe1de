// cmd_generate.c - haggle generate.
#include "cli.h"

#include <errno.h>
#include <stdlib.h>

const struct flag generate_flags[] = {
    {"prompt", 'p', "TEXT", "text to continue; without it a new document is begun"},
    {"ids", 0, "N,N,...", "token ids to continue, instead of text"},
    {"tokens", 'n', "N", "tokens to generate, at most (generate.tokens)"},
    {0},
};

const char generate_help[] =
    "Continues a prompt greedily. FOLDER is a checkpoint of a run, the run's folder (its newest\n"
    "checkpoint is taken) or a Hugging Face folder; model=FOLDER is the same.\n"
    "\n"
    "Text goes through the folder's tokenizer.json; a run's checkpoint uses that of the folder it "
    "was\n"
    "trained from, and a model trained from a built-in shape reads bytes. --ids prints ids.\n"
    "\n"
    "Examples\n"
    "  haggle generate runs/tiny --prompt 'Story'\n"
    "  haggle generate ./my-hf-folder --ids 464,3290 --tokens 16\n";

static int read_ids(const char *text, int32_t **out, size_t *count, struct haggle_error *e) {
    size_t most = 1;
    for (const char *p = text; *p; p++)
        most += *p == ',';
    int32_t *ids = malloc(most * sizeof *ids);
    if (!ids) {
        cli_usage(e, "out of memory for %zu ids", most);
        return e->code = HAGGLE_ERR_MEMORY;
    }
    size_t n = 0;
    for (const char *at = text;;) {
        char *end;
        errno = 0;
        long x = strtol(at, &end, 10);
        if (end == at || errno != 0 || x < 0 || x > INT32_MAX || (*end && *end != ',')) {
            free(ids);
            return cli_usage(e, "--ids=%s is not accepted; accepted: numbers with commas between",
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

int cmd_generate(struct cli *c) {
    struct haggle_error e = {0};
    struct haggle_config *config = NULL;
    struct haggle_prompt prompt = {.text = args_get(&c->args, "prompt")};
    const char *given = args_get(&c->args, "ids");
    const char *folder = c->args.n_words > 0 ? c->args.words[0] : NULL;
    int32_t *ids = NULL;
    int rc = args_words(&c->args, 1, "one folder, then knob=value", &e);
    if (rc == 0 && given && prompt.text)
        rc = cli_usage(&e, "--prompt and --ids both say what to continue; accepted: one of them");
    if (rc == 0)
        rc = args_number(&c->args, "tokens", 1, 1048576, 0, &prompt.tokens, &e);
    if (rc == 0 && given)
        rc = read_ids(given, &ids, &prompt.n_ids, &e);
    prompt.ids = ids;
    c->args.n_words = 0; // the folder is no recipe
    if (rc == 0)
        rc = cli_config(c, &config, &e);
    if (rc == 0 && folder)
        rc = haggle_config_set(config, "model", folder, &e);
    if (rc == 0)
        rc = haggle_generate(config, &prompt, &c->sink, &e);
    haggle_config_free(config);
    free(ids);
    return rc == 0 ? EXIT_OK : cli_fail(c, &e);
}
