// cmd_generate.c - haggle generate, haggle chat.
#include "cli.h"

#include <errno.h>
#include <stdlib.h>

const struct flag generate_flags[] = {
    {"prompt", 'p', "TEXT", "text to continue, several times for several; none: a new document"},
    {"prompts", 0, "FILE", "more prompts: .txt, one per line; .jsonl, \"prompt\" or \"messages\""},
    {"ids", 0, "N,N,...", "token ids to continue, instead of text"},
    {"chat", 0, NULL, "a prompt is what a user says: use the model's chat template"},
    {"system", 0, "TEXT", "with --chat: the system message (data.system)"},
    {"tokens", 'n', "N", "most tokens to generate for each prompt (generate.tokens)"},
    {"stop", 0, "TEXT", "end a text in front of this, several times for several"},
    {"batch", 'b', "N", "prompts side by side (all, up to 8)"},
    {"context", 0, "N", "tokens that a text and its prompt have room for (what is needed)"},
    {"chunk", 0, "N", "tokens of prompts that are computed at once (512)"},
    {"best", 0, NULL, "of a run, take the checkpoint of the best validation, not the newest"},
    {"adapter", 0, "FOLDER", "use the model with this adapter (lora.from)"},
    {0},
};

const char generate_help[] =
    "Continues prompts. FOLDER is a checkpoint of a run, a run's folder (its newest checkpoint is\n"
    "used) or a Hugging Face folder. model=FOLDER means the same. A run that trained an adapter "
    "is\n"
    "used with its base; --adapter takes one that PEFT or haggle export wrote. FILE.yaml is a\n"
    "recipe that names the model, as haggle tune --goal generate writes it.\n"
    "\n"
    "The likeliest token is taken each time, unless one of these knobs says otherwise:\n"
    "--temperature X, --top-k N, --top-p X, --min-p X, --repeat-penalty X, --seed N.\n"
    "\n"
    "Text is tokenized with the folder's tokenizer.json. A run's checkpoint uses the tokenizer of\n"
    "the folder the run started from. A model trained from a built-in shape reads bytes. With\n"
    "--ids the output is ids too.\n"
    "\n"
    "The text of one prompt is printed while it is made. The texts of several are printed at the\n"
    "end, each under the number of its prompt. Those of --chat and of records are printed without\n"
    "the prompt. Then speed and latency go to the standard error.\n"
    "\n"
    "Examples\n"
    "  haggle generate runs/tiny --prompt 'Story'\n"
    "  haggle generate ./my-hf-folder --chat -p 'Which way?' --temperature 0.8 --top-p 0.9\n"
    "  haggle generate ./my-hf-folder --prompts questions.jsonl --batch 16 --json answers.json\n"
    "  haggle generate ./my-hf-folder --ids 464,3290 --tokens 16\n";

const struct flag chat_flags[] = {
    {"system", 0, "TEXT", "the system message (data.system)"},
    {"tokens", 'n', "N", "most tokens of an answer (generate.tokens, or 512)"},
    {"context", 0, "N", "tokens that the conversation has room for (the model's, up to 4096)"},
    {"stop", 0, "TEXT", "end an answer in front of this, several times for several"},
    {"chunk", 0, "N", "tokens of the conversation that are computed at once (512)"},
    {"best", 0, NULL, "of a run, take the checkpoint of the best validation, not the newest"},
    {"adapter", 0, "FOLDER", "use the model with this adapter (lora.from)"},
    {0},
};

const char chat_help[] =
    "Talks with a model: reads what you say, a line at a time, and prints the answers while they\n"
    "are made. FOLDER is as for haggle generate, and so are the knobs (--temperature, --top-p, "
    "...).\n"
    "The conversation is written as the folder's chat template says; data.template names another.\n"
    "\n"
    "/reset begins a new conversation. /quit or the end of the input ends it. What was said "
    "before\n"
    "stays in the cache, so a turn costs by what is new. It also works in a pipe.\n"
    "\n"
    "Examples\n"
    "  haggle chat ./my-hf-folder --system 'Be brief.' --temperature 0.7\n"
    "  haggle chat runs/mine --best data.template=chatml\n"
    "  printf 'Hello\\nWhich way?\\n' | haggle chat ./my-hf-folder -q\n";

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

static int take_model(struct cli *c, struct haggle_error *e) {
    TRY(cli_model(c, e));
    if (args_get(&c->args, "adapter"))
        TRY(haggle_config_set(c->config, "lora.from", args_get(&c->args, "adapter"), e));
    return 0;
}

enum { MOST = 1048576 }; // of tokens

static int generate(struct cli *c, struct haggle_prompt *p, struct haggle_error *e) {
    const char *ids = args_get(&c->args, "ids");
    int32_t *read = NULL;
    if (ids && (p->n_texts > 0 || p->file || p->chat))
        return cli_usage(e, "--prompt and --ids both say what to continue; accepted: one of them");
    if (p->system && !p->chat)
        return cli_usage(e, "--system has no meaning without --chat");
    TRY(args_number(&c->args, "tokens", 1, MOST, 0, &p->tokens, e));
    TRY(args_number(&c->args, "batch", 1, 4096, 0, &p->batch, e));
    TRY(args_number(&c->args, "context", 1, 16 * MOST, 0, &p->context, e));
    TRY(args_number(&c->args, "chunk", 1, 65536, 0, &p->chunk, e));
    TRY(take_model(c, e));
    if (ids)
        TRY(read_ids(ids, &read, &p->n_ids, e));
    p->ids = read;
    const int rc = haggle_generate(c->config, p, &c->sink, e);
    free(read);
    return rc;
}

int cmd_generate(struct cli *c, struct haggle_error *e) {
    const size_t n = c->args.n_each + 1;
    const char **prompts = calloc(2 * n, sizeof *prompts), **stops = prompts + n;
    if (!prompts)
        return cli_error(e, HAGGLE_ERR_MEMORY, "out of memory for %zu prompts", n);
    struct haggle_prompt p = {.best = args_get(&c->args, "best") != NULL,
                              .chat = args_get(&c->args, "chat") != NULL,
                              .file = args_get(&c->args, "prompts"),
                              .system = args_get(&c->args, "system"),
                              .texts = prompts,
                              .n_texts = args_each(&c->args, "prompt", prompts),
                              .stops = stops,
                              .n_stops = args_each(&c->args, "stop", stops)};
    const int rc = generate(c, &p, e);
    free(prompts);
    return rc;
}

int cmd_chat(struct cli *c, struct haggle_error *e) {
    const char **stops = calloc(c->args.n_each + 1, sizeof *stops);
    if (!stops)
        return cli_error(e, HAGGLE_ERR_MEMORY, "out of memory for the command line");
    struct haggle_chat o = {.best = args_get(&c->args, "best") != NULL,
                            .system = args_get(&c->args, "system"),
                            .stops = stops,
                            .n_stops = args_each(&c->args, "stop", stops)};
    int rc = args_number(&c->args, "tokens", 1, MOST, 0, &o.tokens, e);
    if (rc == 0)
        rc = args_number(&c->args, "context", 1, 16 * MOST, 0, &o.context, e);
    if (rc == 0)
        rc = args_number(&c->args, "chunk", 1, 65536, 0, &o.chunk, e);
    if (rc == 0)
        rc = take_model(c, e);
    if (rc == 0)
        rc = haggle_chat(c->config, &o, stdin, &c->sink, e);
    free(stops);
    return rc;
}
