// cmd_train.c - haggle train.
#include "cli.h"

#include <string.h>

const struct flag train_flags[] = {{0}};

const char train_help[] =
    "Plans the run and prints what it will need before taking it; then trains, with one live line\n"
    "on a terminal and plain lines elsewhere; then says what was learnt, how fast, and which knob\n"
    "to try first. Everything is in run.dir: log.jsonl (every step), recipe.yaml (every knob as "
    "it\n"
    "was), result.json, checkpoints/ (Hugging Face folders that also hold the optimizer);\n"
    "'haggle report' shows it.\n"
    "\n"
    "Run again to go on from the newest checkpoint; resume=false starts over. Ctrl-C or SIGTERM\n"
    "ends after the step in work, saves, and exits with 75; a second one quits at once, and so\n"
    "does the first before training begins. A run that diverges still delivers\n"
    "its result and its trace.\n"
    "\n"
    "Without a recipe the model is 'tiny' and the data a generated corpus. Short for the usual\n"
    "knobs: --model M, --data PATH, --steps N, --seq N, --lr X, --memory 6GiB.\n"
    "\n"
    "With --goal hybrid it also answers requests meanwhile, a JSON object per line on standard "
    "input\n"
    "(answers on standard output) or on a Unix socket (interactive.socket=PATH): {\"evaluate\": "
    "RECORD}\n"
    "and {\"train\": RECORD}; docs/hybrid.md. --respond 2s sets a budget from request to answer,\n"
    "interactive.recipe=FILE has a second model answer, with weights of its own.\n"
    "\n"
    "Examples\n"
    "  haggle train\n"
    "  haggle train recipes/demo.yaml steps=500\n"
    "  haggle train --model ./my-hf-folder --data notes.txt --lr 2e-5 --json result.json\n"
    "  haggle train model=gpt2-124m batch.micro=2 batch.accum=8 --memory 6GiB\n"
    "  haggle train log.trace=trace.json log.tensorboard=true\n"
    "  haggle train --goal hybrid --respond 2s batch.accum=8 interactive.socket=run.sock\n";

// Where answers go to standard output, nothing else does: what is for people goes to the other stream.
static int give_streams(struct cli *c, const struct haggle_config *config, struct haggle_error *e) {
    char goal[HAGGLE_TEXT_BYTES], asks[HAGGLE_TEXT_BYTES];
    int rc = haggle_config_get(config, "goal", goal, sizeof goal, e);
    if (rc == 0)
        rc = haggle_config_get(config, "interactive.stdin", asks, sizeof asks, e);
    if (rc != 0 || strcmp(goal, "hybrid") != 0 || strcmp(asks, "true") != 0)
        return rc;
    if (c->args.json && strcmp(c->args.json, "-") == 0)
        return cli_usage(e, "--json - is not accepted here: answers are on standard output; give "
                            "--json a file, or interactive.stdin=false");
    c->sink.in = stdin;
    c->sink.answers = stdout;
    if (c->sink.out == stdout)
        c->sink.out = stderr;
    return 0;
}

int cmd_train(struct cli *c) {
    struct haggle_error e = {0};
    struct haggle_config *config = NULL;
    int rc = args_words(&c->args, 1, "one recipe, then knob=value", &e);
    if (rc == 0)
        rc = cli_config(c, &config, &e);
    if (rc == 0)
        rc = give_streams(c, config, &e);
    if (rc == 0) {
        cli_catch_signals();
        rc = haggle_train(config, &c->sink, &e);
    }
    haggle_config_free(config);
    return rc == 0 ? EXIT_OK : cli_fail(c, &e);
}
