// cmd_docs.c - haggle docs: prints the pages of docs/ that are generated from tables in the source.
#include "cli.h"

const struct flag docs_flags[] = {{0}};

const char docs_help[] = "Examples\n"
                         "  haggle docs knobs > docs/knobs.md\n"
                         "  haggle docs ops > docs/ops.md\n";

int cmd_docs(struct cli *c, struct haggle_error *e) {
    TRY(args_words(&c->args, 1, "one page: knobs or ops", e));
    if (c->args.n_words == 0)
        return cli_usage(e, "which page? accepted: knobs, ops");
    return haggle_docs(c->args.words[0], stdout, e);
}
