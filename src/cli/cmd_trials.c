// cmd_trials.c - haggle trials: the store's tunings, or the trials of one.
#include "cli.h"

const struct flag trials_flags[] = {
    {"store", 's', "FILE", "the store; otherwise haggle/trials.db in the user's data folder"},
    {"tuning", 't', "N", "the trials of this tuning, as the word N; last; all; none: of no tuning"},
    {"model", 'm', "NAME", "only of this model, as it was given"},
    {"outcome", 0, "NAME", "only trials that were measured, refused, failed, dominated, ..."},
    {"output", 'o', "FORMAT", "md, csv, json or jsonl (md)"},
    {0},
};

const char trials_help[] =
    "Lists the tunings in the store of trials, newest first, or the trials of one: what each\n"
    "measured, or why it was refused, ended early or lost. Trials that belong to no tuning (bench\n"
    "--store records some) are 'none'; 'all' lists every one.\n"
    "\n"
    "Every trial is written as it ends, so a tuning that is under way, or was killed, can be "
    "read.\n"
    "csv, json and jsonl have all columns; the raw step times are in the store itself, which is a\n"
    "SQLite file (docs/tuner.md has its tables).\n"
    "\n"
    "Examples\n"
    "  haggle trials\n"
    "  haggle trials last\n"
    "  haggle trials 3 --outcome refused\n"
    "  haggle trials all --model tiny -o csv > trials.csv\n"
    "  haggle trials none --store bench.db\n";

int cmd_trials(struct cli *c) {
    struct haggle_error e = {0};
    struct haggle_trials t = {.store = args_get(&c->args, "store"),
                              .tuning = args_get(&c->args, "tuning"),
                              .model = args_get(&c->args, "model"),
                              .outcome = args_get(&c->args, "outcome")};
    int rc =
        args_words(&c->args, t.tuning ? 0 : 1, "one tuning: its number, last, all or none", &e);
    if (rc == 0 && c->args.n_knobs > 0)
        rc = cli_usage(&e, "%s=%s has no meaning here; accepted: a tuning, --model, --outcome",
                       c->args.knobs[0].name, c->args.knobs[0].value);
    if (rc == 0)
        rc = cli_format(&c->args, &t.format, &e);
    if (rc == 0) {
        if (c->args.n_words > 0)
            t.tuning = c->args.words[0];
        rc = haggle_trials(&t, &c->sink, &e);
    }
    return rc == 0 ? EXIT_OK : cli_fail(c, &e);
}
