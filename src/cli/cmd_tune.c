// cmd_tune.c - haggle tune: goal and budgets from the command line, the bargain on the standard output.
#include "cli.h"

#include <stdlib.h>
#include <string.h>

const struct flag tune_flags[] = {
    {"goal", 'g', "GOAL",
     "bulk (most tokens/s, the default), interactive (least time per sample) or hybrid"},
    {"p99", 0, "TIME", "most that 99 of 100 steps may take, as 80ms; --p95 and --p50 likewise"},
    {"p95", 0, "TIME", "most that 95 of 100 steps may take"},
    {"p50", 0, "TIME", "most that half of the steps may take"},
    {"respond", 0, "TIME", "hybrid: most that a request may wait for its answer"},
    {"time", 't', "TIME", "for the search (3m)"},
    {"tokens-per-step", 0, "N", "tokens of a step (the recipe's: batch.micro x batch.accum x seq)"},
    {"allow", 'a', "LIST", "what else may move: precision, state (of the optimizer), batch"},
    {"energy", 0, "J", "most joules per token, where the machine has a meter"},
    {"store", 0, "FILE", "where trials are kept (the user's store); none: nowhere"},
    {"save", 's', "FILE", "recipe of the choice (tuned.yaml)"},
    {"report", 'r', "FILE",
     "the search as an HTML page (beside the recipe: tuned.html); none: no page"},
    {"output", 'o', "FORMAT", "md, csv, json or jsonl (md)"},
    {0},
};

const char tune_help[] =
    "Finds the settings that serve a goal best under budgets for memory and latency, by the "
    "playbook\n"
    "a careful engineer follows: profile, see what fits, look at the latency target, trade\n"
    "micro-batch against accumulation and time against memory, then loader, threads and fusion;\n"
    "the best then run in turns until their order is certain. Settings are predicted first and\n"
    "measured where it matters, in processes of their own: one that dies is a row with its "
    "reason.\n"
    "\n"
    "The mathematics stays: tokens per step, sequence length, optimizer and precision are the\n"
    "recipe's unless --allow says otherwise. --memory 6GiB is the memory budget.\n"
    "\n"
    "Every trial is in the store as it ends: interrupted, the same command goes on; 'haggle "
    "trials'\n"
    "shows them. The choice is a complete recipe for 'haggle train'; a page that needs no network\n"
    "shows the trade, the frontier and every setting with its reason. Where no setting keeps the\n"
    "budgets no recipe is written and the exit status is 3; stopped on request it is 75.\n"
    "\n"
    "Examples\n"
    "  haggle tune model=tiny --time 1m\n"
    "  haggle tune recipes/demo.yaml --goal interactive --p99 80ms --memory 2GiB\n"
    "  haggle tune --model gpt2-124m batch.micro=1 batch.accum=8 --allow precision --save "
    "fast.yaml\n";

// The recipe's path with .html instead of what its name ends with, or after it where that is the recipe.
static void name_report(const char *recipe, char *out, size_t bytes) {
    const char *name = strrchr(recipe, '/'), *dot = strrchr(name ? name : recipe, '.');
    size_t n = dot && dot > recipe ? (size_t)(dot - recipe) : strlen(recipe);
    snprintf(out, bytes, "%.*s.html", (int)n, recipe);
    if (strcmp(out, recipe) == 0)
        snprintf(out, bytes, "%s.html", recipe);
}

enum { REPORT_BYTES = 4096 };

static int read_options(struct cli *c, struct haggle_tune *t, char report[REPORT_BYTES],
                        struct haggle_error *e) {
    const struct args *a = &c->args;
    t->goal = args_get(a, "goal");
    t->p50 = args_get(a, "p50");
    t->p95 = args_get(a, "p95");
    t->p99 = args_get(a, "p99");
    t->respond = args_get(a, "respond");
    t->time = args_get(a, "time");
    t->allow = args_get(a, "allow");
    t->energy = args_get(a, "energy");
    t->store = args_get(a, "store");
    t->recipe = args_get(a, "save") ? args_get(a, "save") : "tuned.yaml";
    if (args_get(a, "report"))
        snprintf(report, REPORT_BYTES, "%s", args_get(a, "report"));
    else
        name_report(t->recipe, report, REPORT_BYTES);
    t->report = strcmp(report, "none") == 0 ? NULL : report;
    int rc = cli_format(a, &t->format, e);
    if (rc == 0)
        rc = args_number(a, "tokens-per-step", 1, 1LL << 40, 0, &t->tokens_per_step, e);
    return rc;
}

int cmd_tune(struct cli *c) {
    struct haggle_error e = {0};
    struct haggle_config *config = NULL;
    struct haggle_tune t = {0};
    char report[REPORT_BYTES];
    int rc = args_words(&c->args, 1, "one recipe, then knob=value", &e);
    if (rc == 0)
        rc = read_options(c, &t, report, &e);
    if (rc == 0)
        rc = cli_config(c, &config, &e);
    if (rc == 0) {
        cli_catch_signals();
        rc = haggle_tune(config, &t, &c->sink, &e);
    }
    haggle_config_free(config);
    return rc == 0 ? EXIT_OK : cli_fail(c, &e);
}
