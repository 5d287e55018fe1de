// cmd_knobs.c - haggle knobs.
#include "cli.h"

#include <string.h>
#include <unistd.h>

const struct flag knobs_flags[] = {
    {"changed", 0, NULL, "only knobs that are not at their default"},
    {"recipe", 0, NULL, "print a recipe, to redirect into a file"},
    {"check", 0, NULL, "measure each value against the next, and check that it has an effect"},
    {"repeat", 'r', "N", "with --check: rounds, interleaved (5)"},
    {"steps", 'n', "N", "with --check: steps measured per round (8)"},
    {0},
};

const char knobs_help[] =
    "NAME explains one knob: what it does, the values it accepts, its default, what a change "
    "trades\n"
    "and where it shows. A group such as optim lists its knobs.\n"
    "\n"
    "Without a name it lists every knob: value, where it was set, default, accepted values, and\n"
    "what a change can affect. With a recipe or knob=value, the values are those of that run.\n"
    "\n"
    "--check tests every knob, or only the knobs or groups (such as optim) that are named. It\n"
    "measures each value against the next in interleaved trials on a small model, and prints the\n"
    "difference in tokens/s (with the 95 % interval of these two values' rounds), p99, memory and\n"
    "loss, or that there is no measurable one. It also checks that two values differ in each\n"
    "place where the knob claims an effect. All knobs take about three minutes on two cores.\n"
    "\n"
    "Examples\n"
    "  haggle knobs\n"
    "  haggle knobs recompute.mode\n"
    "  haggle knobs optim\n"
    "  haggle knobs recipes/demo.yaml --changed\n"
    "  haggle knobs model=tiny steps=500 --recipe > mine.yaml\n"
    "  haggle knobs --json -\n"
    "  haggle knobs --check recompute precision model=tiny seq=128\n";

// A recipe is a file and comes first. Any other word is a knob or a group.
static bool is_recipe(const char *word) {
    return strchr(word, '/') || strstr(word, ".yaml") || strstr(word, ".yml") ||
           access(word, F_OK) == 0;
}

static int check(struct cli *c, struct haggle_check *k, struct haggle_error *e) {
    int64_t rounds;
    TRY(args_number(&c->args, "repeat", 1, 1000, 0, &rounds, e));
    TRY(args_number(&c->args, "steps", 1, 100000, 0, &k->steps, e));
    k->rounds = (int)rounds;
    cli_catch_signals(true);
    return haggle_knobs_check(c->config, k, &c->sink, e);
}

int cmd_knobs(struct cli *c, struct haggle_error *e) {
    struct args *a = &c->args;
    const size_t recipe = a->n_words > 0 && is_recipe(a->words[0]);
    struct haggle_check k = {.knobs = a->words + recipe, .n_knobs = a->n_words - recipe};
    a->n_words = recipe;
    TRY(cli_config(c, e));
    if (args_get(a, "check"))
        return check(c, &k, e);
    if (args_get(a, "recipe") || args_get(a, "changed")) {
        if (k.n_knobs > 0)
            return cli_usage(e, "'%s' is one too many; accepted: one recipe, then knob=value",
                             k.knobs[0]);
        if (args_get(a, "recipe"))
            return haggle_config_write(c->config, stdout, e);
    }
    if (k.n_knobs > 0)
        return haggle_knobs_explain(c->config, k.knobs, k.n_knobs, &c->sink, e);
    return haggle_knobs_list(c->config, args_get(a, "changed") != NULL, &c->sink, e);
}
