// cmd_bench.c - haggle bench: reads the grid from the command line and prints a table.
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const struct flag bench_flags[] = {
    {"repeat", 'r', "N", "rounds (train: 3, interleaved over all configurations; others: 5)"},
    {"steps", 'n', "N", "steps measured per round (20; tradeoffs: 10)"},
    {"warmup", 'w', "N", "warm-up steps before those, not counted (2)"},
    {"output", 'o', "FORMAT", "md, csv, json or jsonl (md)"},
    {"only", 0, "NAME,..", "tradeoffs: only strategies whose names contain one of these"},
    {"prompt-tokens", 0, "N,N,..", "bench generate: tokens of a prompt (512)"},
    {"output-tokens", 0, "N,N,..", "bench generate: tokens of a text (128)"},
    {"batch", 'b', "N,N,..", "bench generate: texts side by side (1)"},
    {"chunk", 0, "N", "bench generate: tokens of prompts that are computed at once (512)"},
    {"store", 's', "FILE",
     "record every trial in this file (haggle trials reads it); none: nowhere"},
    {0},
};

const char bench_help[] =
    "Measures training steps for every combination of the values given. A value list is 1,2,4. A\n"
    "range is first-last, first-last+step or first-last*factor. Each configuration runs in a\n"
    "separate process, so memory is measured per configuration and a crash affects only its row.\n"
    "Rounds go A B C A B C, so that a slow minute of the machine hits all configurations.\n"
    "\n"
    "A configuration that is refused or fails is a row with the reason. A 95 % bound on p99 needs\n"
    "299 steps: --steps 100 --repeat 3 is enough.\n"
    "\n"
    "bench tradeoffs measures a list of strategies (micro-batch, accumulation, checkpointing,\n"
    "precision, optimizer state, loading, threads) against the recipe as given, which runs beside\n"
    "each of them in turns. It prints ratios with the 95 % interval of their own rounds next to\n"
    "the usual rule of thumb, and says when other programs were busy. Here knob=value changes the\n"
    "baseline. With --ranks N it also measures ways to share the work among N ranks.\n"
    "\n"
    "bench generate measures how fast texts are made: for each combination of knobs, prompt, "
    "output\n"
    "and batch the tokens/s of prompts (prefill) and of texts (decode), the time to the first "
    "token,\n"
    "percentiles between tokens, and memory. Prompts are random ids; a shape has random weights.\n"
    "All rounds of a row run before those of the next one.\n"
    "\n"
    "Examples\n"
    "  haggle bench train batch.micro=1,2,4,8\n"
    "  haggle bench tradeoffs recipes/demo.yaml batch.accum=2\n"
    "  haggle bench tradeoffs model=tiny --only recompute,unfused\n"
    "  haggle bench train recipes/demo.yaml batch.micro=1-16*2 seq=64,256 --repeat 5 -o csv\n"
    "  haggle bench train model=tiny threads=1-4+1 --json bench.json\n"
    "  haggle bench generate model=gpt2-124m --prompt-tokens 16,512 --batch 1,4 threads=1,2\n"
    "  haggle bench generate ./my-hf-folder --output-tokens 32,128 -o csv\n";

enum subject { TRAIN, TRADEOFFS, GENERATE };

// The words are what to measure ("train" may be left out) and perhaps a recipe. Removes the first,
// so that only the recipe is left, as with other verbs.
static int take_subject(struct args *a, enum subject *out, struct haggle_error *e) {
    static const char *const names[] = {"train", "tradeoffs", "generate"};
    int found = -1;
    for (int i = 0; i < 3 && a->n_words > 0; i++)
        found = strcmp(a->words[0], names[i]) == 0 ? i : found;
    *out = found > 0 ? (enum subject)found : TRAIN;
    if (found >= 0)
        memmove(a->words, a->words + 1, --a->n_words * sizeof *a->words);
    else if (a->n_words > 0 && !strpbrk(a->words[0], "./") && access(a->words[0], F_OK) != 0)
        return cli_usage(e,
                         "'%s' cannot be measured; accepted: haggle bench train, haggle bench "
                         "tradeoffs, haggle bench generate",
                         a->words[0]);
    return args_words(a, 1, "one recipe, then knob=value,value", e);
}

// steps=N means the flag --steps here: a benchmark has no other use for the knob.
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

// The knobs as "name=value" texts, which haggle_bench.grid takes. A NULL ends the list.
static char **join_grid(const struct args *a) {
    char **grid = calloc(a->n_knobs + 1, sizeof *grid);
    for (size_t i = 0; grid && i < a->n_knobs; i++) {
        size_t bytes = strlen(a->knobs[i].name) + strlen(a->knobs[i].value) + 2;
        grid[i] = malloc(bytes);
        if (!grid[i])
            break; // out of memory: measure() sees that the list is short
        snprintf(grid[i], bytes, "%s=%s", a->knobs[i].name, a->knobs[i].value);
    }
    return grid;
}

// Takes the knobs out of the arguments: a list is not a value, so the config gets the recipe alone.
static int take_grid(struct cli *c, char ***out, size_t *n, struct haggle_error *e) {
    char **grid = *out = join_grid(&c->args);
    *n = c->args.n_knobs;
    c->args.n_knobs = 0;
    return grid && (*n == 0 || grid[*n - 1])
               ? cli_config(c, e)
               : cli_error(e, HAGGLE_ERR_MEMORY, "out of memory for the grid");
}

static void free_grid(char **grid) {
    for (size_t i = 0; grid && grid[i]; i++)
        free(grid[i]);
    free(grid);
}

static int measure(struct cli *c, struct haggle_bench *b, struct haggle_error *e) {
    char **grid;
    int rc = take_grid(c, &grid, &b->n_grid, e);
    b->grid = (const char *const *)grid;
    if (rc == 0)
        rc = haggle_bench_train(c->config, b, &c->sink, e);
    free_grid(grid);
    return rc;
}

// The word is a model's folder, or a recipe.
static int generate(struct cli *c, const struct haggle_bench *given, struct haggle_error *e) {
    struct haggle_bench_texts b = {.prompt_tokens = args_get(&c->args, "prompt-tokens"),
                                   .output_tokens = args_get(&c->args, "output-tokens"),
                                   .batch = args_get(&c->args, "batch"),
                                   .rounds = given->rounds,
                                   .format = given->format};
    struct stat info;
    const char *folder =
        c->args.n_words > 0 && stat(c->args.words[0], &info) == 0 && S_ISDIR(info.st_mode)
            ? c->args.words[0]
            : NULL;
    char **grid = NULL;
    static const char *const others[] = {"steps", "warmup", "store", "only"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (args_get(&c->args, others[i]))
            return cli_usage(e, "--%s has no meaning for bench generate; accepted: --repeat",
                             others[i]);
    TRY(args_number(&c->args, "chunk", 1, 65536, 0, &b.chunk, e));
    if (folder)
        c->args.n_words = 0;
    int rc = take_grid(c, &grid, &b.n_grid, e);
    b.grid = (const char *const *)grid;
    if (rc == 0 && folder)
        rc = haggle_config_set(c->config, "model", folder, e);
    if (rc == 0)
        rc = haggle_bench_generate(c->config, &b, &c->sink, e);
    free_grid(grid);
    return rc;
}

int cmd_bench(struct cli *c, struct haggle_error *e) {
    struct haggle_bench b = {.store = args_get(&c->args, "store"),
                             .only = args_get(&c->args, "only")};
    enum subject subject;
    int64_t rounds;
    TRY(take_subject(&c->args, &subject, e));
    take_steps(&c->args);
    TRY(args_number(&c->args, "repeat", 1, 1000, 0, &rounds, e));
    TRY(args_number(&c->args, "steps", 1, 100000, 0, &b.steps, e));
    TRY(args_number(&c->args, "warmup", 0, 100000, -1, &b.warmup, e));
    TRY(cli_format(&c->args, &b.format, e));
    b.rounds = (int)rounds;
    cli_catch_signals(true);
    if (subject == GENERATE)
        return generate(c, &b, e);
    static const char *const texts[] = {"prompt-tokens", "output-tokens", "batch", "chunk"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (args_get(&c->args, texts[i]))
            return cli_usage(e, "--%s has a meaning for bench generate only", texts[i]);
    if (subject == TRAIN && b.only)
        return cli_usage(e, "--only has a meaning for bench tradeoffs only");
    if (subject == TRAIN)
        return measure(c, &b, e);
    TRY(cli_config(c, e));
    return haggle_bench_tradeoffs(c->config, &b, &c->sink, e);
}
