// main.c - haggle VERB ...: finds the verb, sorts its arguments, runs it, exits.
//
// Nothing heavy happens before a verb asks for it: `haggle --help` reads no file, opens no library
// and starts no thread.
#include "cli.h"

#include <string.h>

#define VERB(verb, what, usage)                                                                    \
    { #verb, what, usage, verb##_help, verb##_flags, cmd_##verb, false }
#define HIDDEN(verb, what, usage)                                                                  \
    { #verb, what, usage, verb##_help, verb##_flags, cmd_##verb, true }

// In the order `haggle help` lists them.
static const struct verb verbs[] = {
    VERB(train, "fine-tune a model, or train one from a shape; resumes by itself",
         "train [RECIPE.yaml] [knob=value ...]"),
    VERB(bench, "measure a grid of configurations, or what each strategy trades",
         "bench [train|tradeoffs] [RECIPE.yaml] [knob=value,value,... ...]"),
    VERB(tune, "find the best settings under budgets for memory and latency, and say why",
         "tune [--goal GOAL] [--p99 TIME] [RECIPE.yaml] [knob=value ...]"),
    VERB(data, "what the model will see of your data: trained tokens, lengths, padding",
         "data FILE ... [knob=value ...]"),
    VERB(report, "one or several training runs as an HTML page: curves, latency, memory",
         "report RUN_DIR [RUN_DIR ...] [--out FILE.html]"),
    VERB(trials, "every trial that was recorded, with its figures or its reason",
         "trials [TUNING|last|all|none] [--store FILE]"),
    VERB(show, "the plan of a run: programs, bytes by class, predicted time",
         "show [RECIPE.yaml] [knob=value ...]"),
    VERB(verify, "compare loss, gradients, steps and text with a reference",
         "verify FOLDER ... [knob=value ...]"),
    VERB(generate, "continue a prompt with a model or a checkpoint",
         "generate [FOLDER] [--prompt TEXT] [knob=value ...]"),
    VERB(export, "a run's checkpoint as a Hugging Face folder, checked by reading it back",
         "export RUN_DIR OUT_DIR [knob=value ...]"),
    VERB(tokenize, "text to token ids and back, as a tokenizer.json says",
         "tokenize --tokenizer FILE [--decode] < LINES.jsonl"),
    VERB(knobs, "every setting: value, who set it, what is accepted, what it changes",
         "knobs [--check [KNOB ...]] [RECIPE.yaml] [knob=value ...]"),
    VERB(doctor, "this machine: what it is, how fast, what is missing for what", "doctor"),
    VERB(help, "this text, or that of a verb", "help [VERB]"),
    VERB(version, "the version", "version"),
    HIDDEN(docs, "generated documentation in Markdown", "docs knobs|ops"),
    {0},
};

const struct verb *verb_list(void) {
    return verbs;
}

const struct verb *verb_find(const char *name) {
    for (const struct verb *v = verbs; v->name; v++)
        if (strcmp(v->name, name) == 0)
            return v;
    return NULL;
}

const struct verb *verb_find_or_say(const char *name) {
    const struct verb *found = verb_find(name);
    if (found)
        return found;
    const char *names[sizeof verbs / sizeof *verbs];
    size_t n = 0;
    for (const struct verb *v = verbs; v->name; v++)
        if (!v->hidden)
            names[n++] = v->name;
    const char *near = haggle_suggest(name, names, n);
    fprintf(stderr, "haggle: unknown verb '%s'; ", name);
    if (near)
        fprintf(stderr, "did you mean %s?\n", near);
    else {
        fprintf(stderr, "accepted:");
        for (size_t i = 0; i < n; i++)
            fprintf(stderr, "%s %s", i ? "," : "", names[i]);
        fputc('\n', stderr);
    }
    return NULL;
}

static int run(const struct verb *verb, int n, char **argv) {
    struct cli c = {.verb = verb};
    struct haggle_error e = {0};
    int status;
    if (args_parse(&c.args, verb->flags, n, argv, &e) != 0 || cli_sink_open(&c, &e) != 0) {
        status = cli_fail(&c, &e);
    } else if (c.args.help) {
        help_print_verb(stdout, verb);
        status = EXIT_OK;
    } else {
        status = verb->run(&c);
    }
    status = cli_sink_close(&c, status);
    args_free(&c.args);
    return status;
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "";
    if (argc < 2) {
        help_print_all(stderr);
        return EXIT_USAGE;
    }
    // The two flags people try first.
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0)
        name = "help";
    else if (strcmp(name, "--version") == 0)
        name = "version";
    const struct verb *verb = verb_find_or_say(name);
    return verb ? run(verb, argc - 2, argv + 2) : EXIT_USAGE;
}
