// cmd_knobs.c - haggle knobs.
#include "cli.h"

#include <string.h>
#include <unistd.h>

const struct flag knobs_flags[] = {
    {"changed", 0, NULL, "only those that are not at their default"},
    {"recipe", 0, NULL, "as a recipe, to redirect into a file"},
    {"check", 0, NULL, "measure each value against its neighbour, and see where it shows"},
    {"repeat", 'r', "N", "with --check: rounds, interleaved (3)"},
    {"steps", 'n', "N", "with --check: steps measured per round (8)"},
    {0},
};

const char knobs_help[] =
    "Lists every knob with its value, who set it, its default, what is accepted and what a change\n"
    "can alter. With a recipe or knob=value the values are those of that run.\n"
    "\n"
    "--check runs every knob (or those named, or a group such as optim): each value against its\n"
    "neighbour in interleaved trials on a small model, with the difference in tokens/s, p99, "
    "memory\n"
    "and loss, or that there is none beyond noise; and whether two values differ where the knob "
    "says\n"
    "that its effect shows. All of them take about two minutes on two cores.\n"
    "\n"
    "Examples\n"
    "  haggle knobs\n"
    "  haggle knobs recipes/demo.yaml --changed\n"
    "  haggle knobs model=tiny steps=500 --recipe > mine.yaml\n"
    "  haggle knobs --json -\n"
    "  haggle knobs --check recompute precision model=tiny seq=128\n";

// A recipe is a file; any other word is a knob to check. The recipe stays the first word.
static bool is_recipe(const char *word) {
    return strchr(word, '/') || strstr(word, ".yaml") || strstr(word, ".yml") ||
           access(word, F_OK) == 0;
}

static int check(struct cli *c, struct haggle_error *e) {
    struct haggle_config *config = NULL;
    struct args *a = &c->args;
    size_t recipe = a->n_words > 0 && is_recipe(a->words[0]);
    struct haggle_check k = {.knobs = a->words + recipe, .n_knobs = a->n_words - recipe};
    int64_t rounds = 0;
    int rc = args_number(a, "repeat", 1, 1000, 0, &rounds, e);
    if (rc == 0)
        rc = args_number(a, "steps", 1, 100000, 0, &k.steps, e);
    a->n_words = recipe;
    if (rc == 0)
        rc = cli_config(c, &config, e);
    if (rc == 0) {
        k.rounds = (int)rounds;
        cli_catch_signals();
        rc = haggle_knobs_check(config, &k, &c->sink, e);
    }
    haggle_config_free(config);
    return rc;
}

int cmd_knobs(struct cli *c) {
    struct haggle_error e = {0};
    struct haggle_config *config = NULL;
    if (args_get(&c->args, "check"))
        return check(c, &e) == 0 ? EXIT_OK : cli_fail(c, &e);
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
