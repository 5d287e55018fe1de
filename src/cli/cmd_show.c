// cmd_show.c - haggle show.
#include "cli.h"

const struct flag show_flags[] = {
    {"ops", 0, NULL, "every op; repeated layers are shown once"},
    {"full", 0, NULL, "every op of every layer, and every tensor with its address"},
    {0},
};

const char show_help[] =
    "Builds the programs of a run and plans their memory without taking it. Prints what a step\n"
    "consists of, the bytes of each class of tensors, and how long a step should take on this\n"
    "machine. If the run does not fit, it says so as 'haggle train' does and says what would fit.\n"
    "The exit status is then 3.\n"
    "\n"
    "Examples\n"
    "  haggle show model=llama-1b seq=2048 batch.micro=1\n"
    "  haggle show recipes/demo.yaml --ops\n"
    "  haggle show model=gpt2-124m --json -\n";

int cmd_show(struct cli *c, struct haggle_error *e) {
    enum haggle_detail detail = args_get(&c->args, "full")  ? HAGGLE_FULL
                                : args_get(&c->args, "ops") ? HAGGLE_OPS
                                                            : HAGGLE_BRIEF;
    TRY(cli_recipe(c, e));
    return haggle_show(c->config, detail, &c->sink, e);
}
