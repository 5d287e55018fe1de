// cmd_knobs.c - haggle knobs.
#include "cli.h"

const struct flag knobs_flags[] = {
    {"changed", 0, NULL, "only those that are not at their default"},
    {"recipe", 0, NULL, "as a recipe, to redirect into a file"},
    {0},
};

const char knobs_help[] =
    "Lists every knob with its value, who set it, its default, what is accepted and what a change\n"
    "can alter. With a recipe or knob=value the values are those of that run.\n"
    "\n"
    "Examples\n"
    "  haggle knobs\n"
    "  haggle knobs recipes/demo.yaml --changed\n"
    "  haggle knobs model=tiny steps=500 --recipe > mine.yaml\n"
    "  haggle knobs --json -\n";

int cmd_knobs(struct cli *c) {
    struct haggle_error e = {0};
    struct haggle_config *config = NULL;
    int rc = args_words(&c->args, 1, "one recipe, then knob=value", &e);
    if (rc == 0)
        rc = cli_config(c, &config, &e);
    if (rc == 0 && args_get(&c->args, "recipe"))
        rc = haggle_config_write(config, stdout, &e);
    else if (rc == 0)
        rc = haggle_knobs_list(config, args_get(&c->args, "changed") != NULL, &c->sink, &e);
    haggle_config_free(config);
    return rc == 0 ? EXIT_OK : cli_fail(c, &e);
}
