// help.c - the text of `haggle help` and of a verb's --help.
#include "cli.h"

#include <string.h>

const struct flag help_flags[] = {{0}};
const char help_help[] = "Examples\n"
                         "  haggle help\n"
                         "  haggle help train\n";
const struct flag version_flags[] = {{0}};
const char version_help[] = "Examples\n"
                            "  haggle version\n";

static const struct flag common[] = {
    {"json", 0, "FILE",
     "write the result as JSON; with - nothing else goes to the standard output"},
    {"quiet", 'q', NULL, "only results, warnings and errors"},
    {"help", 'h', NULL, "this text"},
    {0},
};

void help_print_all(FILE *f) {
    fprintf(
        f,
        "haggle %s: fine-tunes language models, and shows what each setting costs and gains.\n\n"
        "  haggle VERB [RECIPE.yaml] [knob=value ...] [--json FILE] [--quiet]\n\n",
        haggle_version());
    for (const struct verb *v = verb_list(); v->name; v++)
        if (!v->hidden)
            fprintf(f, "  %-10s %s\n", v->name, v->what);
    fprintf(
        f,
        "\n"
        "A recipe is a YAML file of knobs (settings). knob=value or --knob value on the\n"
        "command line replaces the recipe's value; a switch needs no value: --allow-extra.\n"
        "'haggle knobs' lists all knobs, 'haggle knobs NAME' explains one, and\n"
        "'haggle VERB --help' explains a verb.\n\n"
        "Start with\n"
        "  haggle doctor\n"
        "  haggle train model=tiny steps=200\n"
        "  haggle bench train batch.micro=1,2,4,8\n\n"
        "Results go to the standard output, everything else to the standard error.\n"
        "Exit status: 0 done, 1 failed, 2 arguments not understood, 3 over the memory or\n"
        "a budget, 4 verification failed, 75 stopped on request and saved, or too busy to tell.\n");
}

static void print_flags(FILE *f, const struct flag *flags) {
    for (; flags->name; flags++) {
        char left[64], letter[8] = "";
        if (flags->letter)
            snprintf(letter, sizeof letter, "-%c, ", flags->letter);
        snprintf(left, sizeof left, "%s--%s%s%s", letter, flags->name, flags->value ? " " : "",
                 flags->value ? flags->value : "");
        fprintf(f, "  %-22s %s\n", left, flags->help);
    }
}

void help_print_verb(FILE *f, const struct verb *v) {
    fprintf(f, "haggle %s\n    %s\n\nFlags\n", v->usage, v->what);
    print_flags(f, v->flags);
    print_flags(f, common);
    fprintf(f, "\n%s", v->more);
}

int cmd_help(struct cli *c, struct haggle_error *e) {
    const struct verb *v = c->args.n_words > 0 ? verb_find(c->args.words[0], e) : NULL;
    if (v)
        help_print_verb(stdout, v);
    else if (c->args.n_words == 0)
        help_print_all(stdout);
    return e->code;
}

int cmd_version(struct cli *c, struct haggle_error *e) {
    (void)c;
    (void)e;
    printf("haggle %s\n", haggle_version());
    return 0;
}
