// main.c - haggle VERB ...: finds the verb, sorts its arguments, runs it, exits.
//
// main.c itself does nothing heavy: `haggle --help` reads no file, opens no library and starts no
// thread.
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define VERB(verb, what, usage)                                                                    \
    { #verb, what, usage, verb##_help, verb##_flags, cmd_##verb, false }
#define HIDDEN(verb, what, usage)                                                                  \
    { #verb, what, usage, verb##_help, verb##_flags, cmd_##verb, true }

// In the order in which `haggle help` lists them.
static const struct verb verbs[] = {
    VERB(train, "fine-tune a model, or train a new one; resumes by itself",
         "train [RECIPE.yaml] [knob=value ...]"),
    VERB(bench, "measure a grid of settings, of training or of texts, or what each trades",
         "bench [train|tradeoffs|generate] [RECIPE.yaml] [knob=value,value,... ...]"),
    VERB(tune, "find the best settings within budgets for memory and latency, and say why",
         "tune [--goal GOAL] [--p99 TIME] [RECIPE.yaml] [knob=value ...]"),
    VERB(data, "show your data as the model will see it: trained tokens, lengths, padding",
         "data FILE ... [knob=value ...]"),
    VERB(report, "write training runs as one HTML page: curves, latency, memory",
         "report RUN_DIR [RUN_DIR ...] [--out FILE.html]"),
    VERB(trials, "list recorded trials, each with its figures or why it has none",
         "trials [TUNING|last|all|none] [--store FILE]"),
    VERB(plan, "predict what to run on hardware you do not have, and what would fit",
         "plan --cluster NAME [--goal GOAL] [RECIPE.yaml] [knob=value ...]"),
    VERB(show, "show the plan of a run: programs, bytes by class, predicted time",
         "show [RECIPE.yaml] [knob=value ...]"),
    VERB(verify, "compare loss, gradients, steps and text with a reference",
         "verify FOLDER ... [knob=value ...]"),
    VERB(eval, "measure models on data: loss, perplexity, bits per byte; compare them",
         "eval FOLDER [FOLDER ...] --data FILE [knob=value ...]"),
    VERB(generate, "continue prompts with a model or a checkpoint",
         "generate [FOLDER] [--prompt TEXT] [knob=value ...]"),
    VERB(chat, "talk with a model or a checkpoint",
         "chat [FOLDER] [--system TEXT] [knob=value ...]"),
    VERB(export, "write a run's checkpoint as a Hugging Face folder, and check it",
         "export RUN_DIR OUT_DIR [knob=value ...]"),
    VERB(quantize, "make a model's weights small integers, so that it runs faster in less memory",
         "quantize RUN|FOLDER OUT_DIR --format int8|int4"),
    VERB(tokenize, "turn text into token ids, or back, with a tokenizer.json",
         "tokenize --tokenizer FILE [--decode] < LINES.jsonl"),
    VERB(knobs, "explain a setting (haggle knobs NAME), or list all: value, accepted, effect",
         "knobs [RECIPE.yaml] [NAME ...] [--check] [knob=value ...]"),
    VERB(doctor, "examine this machine: hardware, speed, missing packages", "doctor"),
    VERB(help, "print this text, or the help of a verb", "help [VERB]"),
    VERB(version, "print the version", "version"),
    HIDDEN(docs, "print generated documentation in Markdown", "docs knobs|ops"),
    {0},
};

const struct verb *verb_list(void) {
    return verbs;
}

const struct verb *verb_find(const char *name, struct haggle_error *e) {
    const char *names[sizeof verbs / sizeof *verbs];
    char all[HAGGLE_TEXT_BYTES] = "";
    size_t n = 0, at = 0;
    for (const struct verb *v = verbs; v->name; v++) {
        if (strcmp(v->name, name) == 0)
            return v;
        if (v->hidden)
            continue;
        at += (size_t)snprintf(all + at, sizeof all - at, "%s%s", n ? ", " : "", v->name);
        names[n++] = v->name;
    }
    const char *near = haggle_suggest(name, names, n);
    cli_usage(e, "unknown verb '%.80s'; %s%s%s", name,
              near ? "did you mean " : "accepted: ", near ? near : all, near ? "?" : "");
    return NULL;
}

// Several processes would each do all of the work, and write the same files.
static int refuse_ranks(const struct cli *c, struct haggle_error *e) {
    static const char *const harmless[] = {"train", "help", "version"};
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++)
        if (c->ranks.started < 2 || strcmp(c->verb->name, harmless[i]) == 0)
            return 0;
    cli_usage(e,
              "mpirun has started %d processes, and only 'haggle train' runs on several; "
              "accepted: 'haggle %s' without mpirun",
              c->ranks.started, c->verb->name);
    if (c->ranks.rank > 0) // rank 0 says it
        e->text[0] = '\0';
    return e->code;
}

static int run(const char *name, int n, char **argv) {
    struct cli c = {.numeric = EXIT_FAILED, .n_given = n, .given = argv};
    struct haggle_error *e = &c.failure;
    c.verb = verb_find(name, e);
    if (!c.verb)
        return cli_fail(&c);
    int rc = haggle_ranks(NULL, &c.ranks, e);
    if (rc == 0)
        rc = refuse_ranks(&c, e);
    if (rc == 0)
        rc = args_parse(&c.args, c.verb->flags, n, argv, e);
    if (rc == 0)
        rc = cli_sink_open(&c, e);
    if (rc == 0 && c.args.help)
        help_print_verb(stdout, c.verb);
    else if (rc == 0)
        rc = c.verb->run(&c, e);
    int status = cli_sink_close(&c, rc == 0 ? c.status : cli_fail(&c));
    haggle_config_free(c.config);
    args_free(&c.args);
    return status;
}

// If a standard stream is closed, the first file that is opened would get its number, and messages
// would be written into that file. /dev/null takes the number, opened the wrong way round: reading
// and writing fail as on a closed stream, so that a lost result is still an error.
static bool guard_streams(void) {
    bool safe = true;
    for (int fd = STDIN_FILENO; safe && fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF)
            safe = open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) == fd;
    return safe;
}

int main(int argc, char **argv) {
    if (!guard_streams() || !launch_join())
        return EXIT_FAILED;
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
    const int status = run(name, argc - 2, argv + 2);
    launch_leave(status);
    return status;
}
