// cmd_train.c - haggle train.
#include "cli.h"

#include <string.h>
#include <unistd.h>

const struct flag train_flags[] = {{0}};

const char train_help[] =
    "Plans the run and prints the memory it needs before taking it. Then trains, with one live "
    "line\n"
    "on a terminal and plain lines elsewhere. At the end prints loss, speed, and which knob to "
    "try\n"
    "first. run.dir gets log.jsonl (every step), recipe.yaml (every knob), result.json and\n"
    "checkpoints/ (Hugging Face folders that also hold the optimizer). 'haggle report' shows it.\n"
    "\n"
    "The same command again goes on from the newest checkpoint; resume=false starts over. Ctrl-C\n"
    "or SIGTERM ends the run after the current step, saves, and exits with 75. A second signal\n"
    "quits at once, and so does the first before training begins. A run that diverges still\n"
    "writes its result and its trace.\n"
    "\n"
    "Without a recipe the model is 'tiny' and the data is a generated corpus. Flags for the usual\n"
    "knobs: --model M, --data PATH, --steps N, --seq N, --lr X, --memory 6GiB.\n"
    "\n"
    "With --goal hybrid the run also answers requests: {\"evaluate\": RECORD} and {\"train\": "
    "RECORD},\n"
    "one JSON object per line on the standard input (answers go to the standard output) or on a\n"
    "Unix socket (interactive.socket=PATH). --respond 2s sets the time budget for an answer.\n"
    "interactive.recipe=FILE lets a second model with separate weights answer. See "
    "docs/hybrid.md.\n"
    "\n"
    "Examples\n"
    "  haggle train\n"
    "  haggle train recipes/demo.yaml steps=500\n"
    "  haggle train --model ./my-hf-folder --data notes.txt --lr 2e-5 --json result.json\n"
    "  haggle train model=gpt2-124m batch.micro=2 batch.accum=8 --memory 6GiB\n"
    "  haggle train log.trace=trace.json log.tensorboard=true\n"
    "  haggle train --goal hybrid --respond 2s batch.accum=8 interactive.socket=run.sock\n";

// When answers go to the standard output, the text for people goes to the standard error.
static int give_streams(struct cli *c, struct haggle_error *e) {
    char goal[HAGGLE_TEXT_BYTES], asks[HAGGLE_TEXT_BYTES];
    TRY(haggle_config_get(c->config, "goal", goal, sizeof goal, e));
    TRY(haggle_config_get(c->config, "interactive.stdin", asks, sizeof asks, e));
    if (strcmp(goal, "hybrid") != 0 || strcmp(asks, "true") != 0)
        return 0;
    if (c->args.json && strcmp(c->args.json, "-") == 0)
        return cli_usage(e, "--json - is not accepted here: answers go to the standard output; "
                            "accepted: --json FILE, or interactive.stdin=false");
    c->sink.in = stdin;
    c->sink.answers = stdout;
    if (c->sink.out == stdout)
        c->sink.out = stderr;
    return 0;
}

// Another thread is at work, and nothing of it can be waited for.
static void on_lost(const struct haggle_error *e) {
    if (!launch_tell(e, EXIT_FAILED))
        fprintf(stderr, "haggle train: %s\n", e->text);
    _exit(EXIT_FAILED);
}

int cmd_train(struct cli *c, struct haggle_error *e) {
    TRY(cli_recipe(c, e));
    TRY(give_streams(c, e));
    TRY(haggle_ranks(c->config, &c->ranks, e));
    if (c->ranks.launch)
        return launch_ranks(c, e);
    c->sink.lost = on_lost;
    cli_catch_signals(c->ranks.rank == 0);
    const int rc = haggle_train(c->config, &c->sink, e);
    if (rc != 0) // mpirun ends the ranks with this signal, and nothing more is stopped or saved
        signal(SIGTERM, SIG_DFL);
    return rc;
}
