// cmd_plan.c - haggle plan: what to run on hardware that is not here.
#include "cli.h"

const struct flag plan_flags[] = {
    {"cluster", 'c', "NAME", "8xa100-80g, 16x8xh100-80g (nodes of 8), 2xaws-p5, 4x2xrtx-4090@100"},
    {"goal", 'g', "GOAL", "bulk (most tokens/s, the default) or interactive (least latency)"},
    {"method", 0, "NAME", "full or lora (full)"},
    {"p99", 0, "TIME", "longest step, at the upper end of its interval, as 2s"},
    {"tokens-per-step", 0, "N", "tokens of a step (about 524288)"},
    {"framework", 0, "NAME", "profile: haggle, megatron, megatron-deepspeed, fsdp, hf (haggle)"},
    {"shape", 0, "LIST", "a model by number: layers=80,hidden=8192,heads=64,kv=8,ffn=28672"},
    {"hardware", 0, "FILE", "more lines of the catalog (docs/planner.md)"},
    {"rows", 0, "FILE.csv", "a table of runs: appends a prediction to each row (-o csv)"},
    {"explain", 0, NULL, "all layouts that fit, and why the others are not the choice"},
    {"save", 's', "FILE", "recipe to write with the choice"},
    {"output", 'o', "FORMAT", "md or csv (md)"},
    {0},
};

const char plan_help[] =
    "Predicts how a model trains on hardware that is not here: lists the layouts of ranks, prunes\n"
    "by bounds, builds the programs of what is left as the engine would, and simulates them with\n"
    "times from a catalog of devices. Prints tokens/s, the time of a step with its interval, of a\n"
    "micro-batch, MFU and memory, the choice for the goal, and the recipe that pins it. All "
    "figures\n"
    "are modelled; docs/planner.md says how far they are off.\n"
    "\n"
    "If nothing fits, it says what would: other optimizer states, LoRA, more devices. The exit\n"
    "status is then 3.\n"
    "\n"
    "Examples\n"
    "  haggle plan --model llama-70b --cluster 8xa100-80g --goal bulk\n"
    "  haggle plan --model llama-8b --cluster 2x8xh100-80g --seq 8192 --explain\n"
    "  haggle plan --shape layers=32,hidden=4096,heads=32 --cluster 8xa100-40g --p99 2s\n"
    "  haggle plan --rows runs.csv -o csv > predicted.csv\n";

int cmd_plan(struct cli *c, struct haggle_error *e) {
    const struct args *a = &c->args;
    struct haggle_plan p = {.cluster = args_get(a, "cluster"),
                            .goal = args_get(a, "goal"),
                            .method = args_get(a, "method"),
                            .p99 = args_get(a, "p99"),
                            .framework = args_get(a, "framework"),
                            .shape = args_get(a, "shape"),
                            .hardware = args_get(a, "hardware"),
                            .rows = args_get(a, "rows"),
                            .save = args_get(a, "save"),
                            .explain = args_get(a, "explain") != NULL};
    TRY(args_number(a, "tokens-per-step", 1, 1 << 30, 0, &p.tokens_per_step, e));
    TRY(cli_format(a, &p.format, e));
    TRY(cli_recipe(c, e));
    return haggle_plan(c->config, &p, &c->sink, e);
}
