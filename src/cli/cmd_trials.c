// cmd_trials.c - haggle trials: lists the tunings in the store, or the trials of one.
#include "cli.h"

const struct flag trials_flags[] = {
    {"store", 's', "FILE", "the store (haggle/trials.db in the user's data folder)"},
    {"tuning", 't', "N", "same as the word TUNING: a number, last, all or none"},
    {"model", 'm', "NAME", "only this model, spelled as it was given"},
    {"outcome", 0, "NAME", "only trials with this outcome: measured, refused, failed, ..."},
    {"output", 'o', "FORMAT", "md, csv, json or jsonl (md)"},
    {0},
};

const char trials_help[] =
    "Lists the tunings (searches of haggle tune) in the store, newest first, or the trials of "
    "one:\n"
    "what each measured, or why it was refused, ended early or lost. 'none' lists the trials that\n"
    "belong to no tuning, such as those of bench --store. 'all' lists every trial.\n"
    "\n"
    "Every trial is written as it ends, so a tuning that is running or was killed can be read.\n"
    "csv, json and jsonl have all columns. The store is a SQLite file that also holds the raw "
    "step\n"
    "times; docs/store.md describes its tables.\n"
    "\n"
    "Examples\n"
    "  haggle trials\n"
    "  haggle trials last\n"
    "  haggle trials 3 --outcome refused\n"
    "  haggle trials all --model tiny -o csv > trials.csv\n"
    "  haggle trials none --store bench.db\n";

int cmd_trials(struct cli *c, struct haggle_error *e) {
    struct haggle_trials t = {.store = args_get(&c->args, "store"),
                              .tuning = args_get(&c->args, "tuning"),
                              .model = args_get(&c->args, "model"),
                              .outcome = args_get(&c->args, "outcome")};
    TRY(args_words(&c->args, t.tuning ? 0 : 1, "one tuning: its number, last, all or none", e));
    TRY(args_no_knobs(&c->args, "a tuning, --model, --outcome", e));
    TRY(cli_format(&c->args, &t.format, e));
    if (c->args.n_words > 0)
        t.tuning = c->args.words[0];
    return haggle_trials(&t, &c->sink, e);
}
