// cmd_show.c - haggle show.
#include "cli.h"

const struct flag show_flags[] = {
    {"ops", 0, NULL, "every op; layers that repeat the one before are shown once"},
    {"full", 0, NULL, "every op of every layer, and every tensor with its place"},
    {0},
};

const char show_help[] =
    "Builds the programs of a run and lays them out, without taking the memory: what a step\n"
    "consists of, how many bytes it needs by class, how long it should take on this machine.\n"
    "\n"
    "Examples\n"
    "  haggle show model=llama-1b seq=2048 batch.micro=1\n"
    "  haggle show recipes/demo.yaml --ops\n"
    "  haggle show model=gpt2-124m --json -\n";

int cmd_show(struct cli *c) {
    struct haggle_error e = {0};
    struct haggle_config *config = NULL;
    int rc = args_words(&c->args, 1, "one recipe, then knob=value", &e);
    if (rc == 0)
        rc = cli_config(c, &config, &e);
    if (rc == 0) {
        enum haggle_detail detail = args_get(&c->args, "full")  ? HAGGLE_FULL
                                    : args_get(&c->args, "ops") ? HAGGLE_OPS
                                                                : HAGGLE_BRIEF;
        rc = haggle_show(config, detail, &c->sink, &e);
    }
    haggle_config_free(config);
    return rc == 0 ? EXIT_OK : cli_fail(c, &e);
}
