// cmd_show.c - haggle show.
#include "cli.h"

#include <stdlib.h>

const struct flag show_flags[] = {
    {"ops", 0, NULL, "every op; repeated layers are shown once"},
    {"full", 0, NULL, "every op of every layer, and every tensor with its address"},
    {"rank", 0, "R", "the plan of rank R, for a run of several ranks (default 0)"},
    {0},
};

const char show_help[] =
    "Builds the programs of a run and plans their memory without taking it. Prints what a step\n"
    "consists of, the bytes of each class of tensors, and how long a step should take on this\n"
    "machine. If the run does not fit, it says so as 'haggle train' does and says what would fit.\n"
    "The exit status is then 3.\n"
    "\n"
    "Of a folder that haggle quantize wrote, which cannot be trained, it shows the plan of making\n"
    "a text: how the weights are stored, the cache of a text of seq tokens, and the memory.\n"
    "\n"
    "Examples\n"
    "  haggle show model=llama-1b seq=2048 batch.micro=1\n"
    "  haggle show recipes/demo.yaml --ops\n"
    "  haggle show model=gpt2-124m parallel.tensor=2 parallel.pipe=2 --rank 3\n"
    "  haggle show model=gpt2-124m --json -\n";

static int get_rank(const struct args *a, int *out, struct haggle_error *e) {
    const char *text = args_get(a, "rank");
    char *end = NULL;
    const long n = text ? strtol(text, &end, 10) : 0;
    if (text && (!*text || *end || n < 0 || n > 1023))
        return cli_usage(e, "--rank %s is not accepted; accepted: the number of a rank, 0 or more",
                         text);
    *out = (int)n;
    return 0;
}

int cmd_show(struct cli *c, struct haggle_error *e) {
    enum haggle_detail detail = args_get(&c->args, "full")  ? HAGGLE_FULL
                                : args_get(&c->args, "ops") ? HAGGLE_OPS
                                                            : HAGGLE_BRIEF;
    int rank = 0;
    TRY(cli_recipe(c, e));
    TRY(get_rank(&c->args, &rank, e));
    return haggle_show(c->config, detail, rank, &c->sink, e);
}
