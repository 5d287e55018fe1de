// cmd_report.c - haggle report: takes folders of runs, writes one HTML page.
#include "cli.h"

const struct flag report_flags[] = {
    {"out", 'o', "FILE.html",
     "the page (one run: report.html in its folder; several: ./report.html)"},
    {"tuning", 't', "N", "show search N of haggle tune instead of runs; last: the newest"},
    {"store", 0, "FILE", "with --tuning: the file with its trials (the user's store)"},
    {0},
};

const char report_help[] =
    "Reads training runs back from their folders (log.jsonl, recipe.yaml, result.json) and writes\n"
    "one HTML page that loads nothing else. It shows the figures with their bounds, loss, "
    "learning\n"
    "rate and gradient norm, the distribution of step times and stalls, where time and memory\n"
    "went, and the settings that are not at their defaults. Up to 16 runs can be compared: curves\n"
    "in one plot, figures side by side and relative to the first run.\n"
    "\n"
    "A run that was killed or is still training is shown as far as its log goes. Damaged lines "
    "are\n"
    "left out and counted.\n"
    "\n"
    "haggle tune writes a page of its search. --tuning makes that page again from the store, with\n"
    "the measured trials only.\n"
    "\n"
    "Examples\n"
    "  haggle report runs/tiny\n"
    "  haggle report runs/a runs/b runs/c --out compare.html\n"
    "  haggle report runs/tiny --json -\n"
    "  haggle report --tuning last --out tuned.html\n";

int cmd_report(struct cli *c, struct haggle_error *e) {
    const struct args *a = &c->args;
    const char *tuning = args_get(a, "tuning"), *store = args_get(a, "store");
    if (tuning && a->n_words > 0)
        return cli_usage(e, "--tuning and '%s': a page shows a search or runs, not both",
                         a->words[0]);
    if (!tuning && store)
        return cli_usage(e, "--store %s has no meaning without --tuning N", store);
    if (!tuning && a->n_words == 0)
        return cli_usage(e, "which run? accepted: haggle report RUN_DIR ...");
    TRY(args_no_knobs(a, "folders of runs, --out FILE.html", e));
    return tuning ? haggle_report_tuning(tuning, store, args_get(a, "out"), &c->sink, e)
                  : haggle_report(a->words, a->n_words, args_get(a, "out"), &c->sink, e);
}
