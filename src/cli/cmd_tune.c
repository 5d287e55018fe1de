// cmd_tune.c - haggle tune: reads goal and budgets from the command line, prints what was found.
#include "cli.h"

#include <stdlib.h>
#include <string.h>

const struct flag tune_flags[] = {
    {"goal", 'g', "GOAL",
     "bulk (most tokens/s, the default), interactive (least latency of a sample), hybrid or "
     "generate"},
    {"p99", 0, "TIME", "time within which 99 of 100 steps must end, as 80ms"},
    {"p95", 0, "TIME", "time within which 95 of 100 steps must end"},
    {"p50", 0, "TIME", "time within which half of the steps must end"},
    {"respond", 0, "TIME", "hybrid: longest time from a request to its answer"},
    {"time", 't', "TIME", "time for the search (3m)"},
    {"tokens-per-step", 0, "N", "tokens per step (the recipe's: batch.micro x batch.accum x seq)"},
    {"allow", 'a', "LIST", "what else may change: precision, state (of the optimizer), batch"},
    {"energy", 0, "J", "most joules per token, if the machine has a meter"},
    {"store", 0, "FILE", "where trials are recorded (the user's store); none: nowhere"},
    {"busy", 0, "WHAT",
     "trials while other programs are at work: repeat, or count if it is never quiet (repeat)"},
    {"ttft", 0, "TIME", "generate: longest time to the first token of a text, as 200ms"},
    {"itl", 0, "TIME", "generate: longest time between two tokens of a text, as 30ms"},
    {"p", 0, "N", "generate: the percentile that --ttft and --itl bound (95)"},
    {"batch", 'b', "N", "generate: texts side by side (part of the search; without budgets 1)"},
    {"prompt-tokens", 0, "N", "generate: tokens of each prompt (128)"},
    {"output-tokens", 0, "N", "generate: tokens to make behind each prompt (64)"},
    {"kl", 0, "NATS", "generate: largest divergence of a format (0.005; of int4 0.1)"},
    {"data", 0, "FILE", "generate: data to compare formats on (text of the model itself)"},
    {"method", 0, "NAME", "generate: how matrices are quantized, as in haggle quantize"},
    {"save", 's', "FILE", "recipe to write with the chosen setting (tuned.yaml)"},
    {"report", 'r', "FILE",
     "HTML page of the search (next to the recipe: tuned.html); none: no page"},
    {"output", 'o', "FORMAT", "md, csv, json or jsonl (md)"},
    {0},
};

const char tune_help[] =
    "Finds the best settings for a goal within budgets for memory and latency. The search works "
    "as\n"
    "a careful engineer would: profile, see what fits, look at the latency target, trade\n"
    "micro-batch against accumulation and time against memory, then loader, threads and fusion.\n"
    "The best settings then run in turns with the recipe as given. A change is proposed only if "
    "it\n"
    "is better beyond the 95 % interval of these turns; otherwise the answer is to keep what you\n"
    "have. Trials while other programs are at work do not count and are repeated. All settings "
    "are\n"
    "predicted, promising ones are measured, in a process apart from the search: a crash is a row\n"
    "with its reason.\n"
    "\n"
    "The mathematics does not change: tokens per step, sequence length, optimizer and precision\n"
    "are the recipe's unless --allow says otherwise. --memory 6GiB sets the memory budget.\n"
    "\n"
    "Every trial is recorded as it ends, so after an interruption the same command goes on.\n"
    "'haggle trials' lists the trials. The choice is a complete recipe for 'haggle train'. An "
    "HTML\n"
    "page that needs no network shows the trade, the frontier and every setting with its reason.\n"
    "--goal generate MODEL chooses how a model generates: format of the weights (as given, bf16,\n"
    "int8, int4), texts side by side, tokens of prompts in a turn, and threads. MODEL is a run, a\n"
    "folder or a shape. Texts generate while prompts come in, so the time between tokens contains\n"
    "the turns that a prompt shares. A format is admitted if its divergence from the model (KL) "
    "is\n"
    "within --kl.\n"
    "\n"
    "If no setting keeps the budgets, no recipe is written and the exit status is 3. After a stop\n"
    "request, and when the machine was too busy to tell, the exit status is 75.\n"
    "\n"
    "Examples\n"
    "  haggle tune model=tiny --time 1m\n"
    "  haggle tune recipes/demo.yaml --goal interactive --p99 80ms --memory 2GiB\n"
    "  haggle tune --model gpt2-124m batch.micro=1 batch.accum=8 --allow precision --save "
    "fast.yaml\n"
    "  haggle tune --goal generate runs/chat --ttft 200ms --itl 30ms --memory 4GiB --data "
    "chat.jsonl\n";

// The recipe's path with its ending replaced by .html, or with .html added where it ends in that.
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
    t->busy = args_get(a, "busy");
    t->store = args_get(a, "store");
    t->recipe = args_get(a, "save") ? args_get(a, "save") : "tuned.yaml";
    if (args_get(a, "report"))
        snprintf(report, REPORT_BYTES, "%s", args_get(a, "report"));
    else
        name_report(t->recipe, report, REPORT_BYTES);
    t->report = strcmp(report, "none") == 0 ? NULL : report;
    t->ttft = args_get(a, "ttft");
    t->itl = args_get(a, "itl");
    t->p = args_get(a, "p");
    t->kl = args_get(a, "kl");
    t->data = args_get(a, "data");
    t->method = args_get(a, "method");
    TRY(args_number(a, "batch", 1, 4096, 0, &t->batch, e));
    TRY(args_number(a, "prompt-tokens", 1, 1 << 20, 0, &t->prompt_tokens, e));
    TRY(args_number(a, "output-tokens", 2, 1 << 20, 0, &t->output_tokens, e));
    TRY(cli_format(a, &t->format, e));
    return args_number(a, "tokens-per-step", 1, 1LL << 40, 0, &t->tokens_per_step, e);
}

int cmd_tune(struct cli *c, struct haggle_error *e) {
    struct haggle_tune t = {0};
    char report[REPORT_BYTES];
    const char *goal = args_get(&c->args, "goal");
    TRY(read_options(c, &t, report, e));
    TRY(goal && strcmp(goal, "generate") == 0 ? cli_model(c, e) : cli_recipe(c, e));
    cli_catch_signals(true);
    return haggle_tune(c->config, &t, &c->sink, e);
}
