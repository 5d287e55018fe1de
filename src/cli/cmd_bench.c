// cmd_bench.c - haggle bench train: the grid from the command line, the table on the standard
// output.
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const struct flag bench_flags[] = {
    {"repeat", 'r', "N", "rounds over all configurations, interleaved (3; tradeoffs: 5)"},
    {"steps", 'n', "N", "steps measured per round (20; tradeoffs: 10)"},
    {"warmup", 'w', "N", "steps before those, not counted (2)"},
    {"output", 'o', "FORMAT", "md, csv, json or jsonl (md)"},
    {"store", 's', "FILE", "record every trial there as it ends (haggle trials reads it)"},
    {0},
};

const char bench_help[] =
    "Measures training steps for every combination of the values given. A value list is 1,2,4; a\n"
    "range is first-last, first-last+step or first-last*factor. Each configuration runs in a\n"
    "process of its own, so its memory is its own and a crash is a row; rounds go A B C A B C, so\n"
    "that a slow minute of the machine hits all of them.\n"
    "\n"
    "A configuration that is refused or fails is a row with its reason. p99 needs 299 steps for a\n"
    "95 % bound: --steps 100 --repeat 3 has them.\n"
    "\n"
    "bench tradeoffs measures a list of strategies (micro-batch, accumulation, checkpointing,\n"
    "precision, optimizer state, loading, threads) against the recipe as given: ratios with their\n"
    "spread, beside what the usual rule of thumb says. Here knob=value changes the baseline.\n"
    "\n"
    "Examples\n"
    "  haggle bench train batch.micro=1,2,4,8\n"
    "  haggle bench tradeoffs recipes/demo.yaml batch.accum=2\n"
    "  haggle bench train recipes/demo.yaml batch.micro=1-16*2 seq=64,256 --repeat 5 -o csv\n"
    "  haggle bench train model=tiny threads=1-4+1 --json bench.json\n";

enum subject { TRAIN, TRADEOFFS };

// The words are what to measure ("train" may be left out) and perhaps a recipe; left is the recipe
// alone, as other verbs have it.
static int take_subject(struct args *a, enum subject *out, struct haggle_error *e) {
    static const char *const names[] = {"train", "tradeoffs"};
    *out = TRAIN;
    for (int i = 0; i < 2; i++)
        if (a->n_words > 0 && strcmp(a->words[0], names[i]) == 0) {
            *out = (enum subject)i;
            a->n_words--;
            memmove(a->words, a->words + 1, a->n_words * sizeof *a->words);
            return args_words(a, 1, "one recipe, then knob=value,value", e);
        }
    if (a->n_words > 0 && !strpbrk(a->words[0], "./") && access(a->words[0], F_OK) != 0)
        return cli_usage(e,
                         "'%s' cannot be measured; accepted: haggle bench train, haggle bench "
                         "tradeoffs",
                         a->words[0]);
    return args_words(a, 1, "one recipe, then knob=value,value", e);
}

// steps=N means the flag here: a benchmark has no other use for the knob.
static void take_steps(struct args *a) {
    size_t n = 0;
    for (size_t i = 0; i < a->n_knobs; i++) {
        if (strcmp(a->knobs[i].name, "steps") != 0)
            a->knobs[n++] = a->knobs[i];
        else
            for (int f = 0; a->flags[f].name; f++)
                if (strcmp(a->flags[f].name, "steps") == 0 && !a->values[f])
                    a->values[f] = a->knobs[i].value;
    }
    a->n_knobs = n;
}

// "name=value" again, in one piece: what haggle_bench.grid takes.
static char **join_grid(const struct args *a) {
    char **grid = calloc(a->n_knobs + 1, sizeof *grid);
    for (size_t i = 0; grid && i < a->n_knobs; i++) {
        size_t bytes = strlen(a->knobs[i].name) + strlen(a->knobs[i].value) + 2;
        grid[i] = malloc(bytes);
        if (!grid[i])
            break; // the NULL ends the list: cmd_bench sees that it is short
        snprintf(grid[i], bytes, "%s=%s", a->knobs[i].name, a->knobs[i].value);
    }
    return grid;
}

static int measure(struct cli *c, struct haggle_bench *b, struct haggle_error *e) {
    struct haggle_config *config = NULL;
    char **grid = join_grid(&c->args);
    int rc;
    if (!grid || (c->args.n_knobs > 0 && !grid[c->args.n_knobs - 1])) {
        cli_usage(e, "out of memory for the grid");
        rc = e->code = HAGGLE_ERR_MEMORY;
    } else {
        b->grid = (const char *const *)grid;
        b->n_grid = c->args.n_knobs;
        c->args.n_knobs = 0; // lists are no values: the config gets the recipe alone
        rc = cli_config(c, &config, e);
        if (rc == 0) {
            cli_catch_signals();
            rc = haggle_bench_train(config, b, &c->sink, e);
        }
    }
    haggle_config_free(config);
    for (size_t i = 0; grid && grid[i]; i++)
        free(grid[i]);
    free(grid);
    return rc;
}

static int measure_tradeoffs(struct cli *c, struct haggle_bench *b, struct haggle_error *e) {
    struct haggle_config *config = NULL;
    int rc = cli_config(c, &config, e);
    if (rc == 0) {
        cli_catch_signals();
        rc = haggle_bench_tradeoffs(config, b, &c->sink, e);
    }
    haggle_config_free(config);
    return rc;
}

int cmd_bench(struct cli *c) {
    struct haggle_error e = {0};
    struct haggle_bench b = {.store = args_get(&c->args, "store")};
    enum subject subject;
    int64_t rounds = 0;
    int rc = take_subject(&c->args, &subject, &e);
    if (rc == 0) {
        take_steps(&c->args);
        rc = args_number(&c->args, "repeat", 1, 1000, 0, &rounds, &e);
    }
    if (rc == 0)
        rc = args_number(&c->args, "steps", 1, 100000, 0, &b.steps, &e);
    if (rc == 0)
        rc = args_number(&c->args, "warmup", 0, 100000, -1, &b.warmup, &e);
    if (rc == 0)
        rc = cli_format(&c->args, &b.format, &e);
    if (rc == 0) {
        b.rounds = (int)rounds;
        rc = subject == TRAIN ? measure(c, &b, &e) : measure_tradeoffs(c, &b, &e);
    }
    return rc == 0 ? EXIT_OK : cli_fail(c, &e);
}
