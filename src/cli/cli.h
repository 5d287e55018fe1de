// cli.h - the program's own nouns: a verb, its flags, the arguments as given, where output goes.
//
// Place in the flow: main.c finds the verb, args.c sorts its arguments, cmd_<verb>.c calls
// libhaggle, output.c turns what came back into streams and an exit status. Nothing here knows
// knobs, models or files: whatever a name means is asked of haggle.h, the only header used.
#ifndef HAGGLE_CLI_CLI_H
#define HAGGLE_CLI_CLI_H

#include <haggle.h>

// The exit statuses of every verb; docs and `haggle help` list them.
enum cli_exit {
    EXIT_OK = 0,
    EXIT_FAILED = 1,
    EXIT_USAGE = 2,
    EXIT_BUDGET = 3,   // more memory than there may be; tune: no setting keeps the budgets
    EXIT_VERIFY = 4,   // a figure is outside its tolerance
    EXIT_STOPPED = 75, // stopped on request and saved: EX_TEMPFAIL, which batch systems requeue
};

// ---------------------------------------------------------------- arguments

struct flag {
    const char *name;  // "repeat", given as --repeat
    char letter;       // 'r' for -r; 0: none
    const char *value; // what stands for the value in help; NULL: a switch
    const char *help;
};

enum { FLAGS_MOST = 16 };

struct assignment {
    const char *name, *value;
};

struct args {
    const struct flag *flags;       // of the verb; name NULL ends them
    const char *values[FLAGS_MOST]; // by index of `flags`; "" for a switch; NULL: not given
    // Flags every verb has.
    const char *json;
    bool quiet, help;
    const char **words; // neither flag nor assignment
    size_t n_words;
    struct assignment *knobs; // knob=value and --knob value, in order
    size_t n_knobs;
    char *text; // owns the names above that were cut out of arguments
    size_t text_bytes;
};

// Sorts argv[0..n). HAGGLE_ERR_USAGE names the argument, and the nearest flag when one is near.
int args_parse(struct args *a, const struct flag *flags, int n, char **argv,
               struct haggle_error *e);
void args_free(struct args *a);
// The value of a flag of the verb; NULL when not given.
const char *args_get(const struct args *a, const char *flag);
// The same as a number in [least, most]; `otherwise` when not given.
int args_number(const struct args *a, const char *flag, int64_t least, int64_t most,
                int64_t otherwise, int64_t *out, struct haggle_error *e);
// ERR_USAGE when there are more words than `most`; `what` says what a word would be.
int args_words(const struct args *a, size_t most, const char *what, struct haggle_error *e);

// ---------------------------------------------------------------- a verb at work

struct cli {
    const struct verb *verb;
    struct args args;
    struct haggle_sink sink;
    // The object is collected and delivered at the end: whatever happens there is exactly one.
    char *json_text;
    size_t json_bytes;
    FILE *json_file;             // where it goes; NULL: nowhere
    struct haggle_error failure; // as said; code 0: none
};

struct verb {
    const char *name, *what; // one line each
    const char *usage;       // after "haggle"
    const char *more;        // what it does, in a paragraph or a few, and examples
    const struct flag *flags;
    int (*run)(struct cli *c); // returns an exit status; has said why when it is not 0
    bool hidden;
};

int cmd_train(struct cli *c);
int cmd_bench(struct cli *c);
int cmd_tune(struct cli *c);
int cmd_data(struct cli *c);
int cmd_trials(struct cli *c);
int cmd_show(struct cli *c);
int cmd_report(struct cli *c);
int cmd_verify(struct cli *c);
int cmd_generate(struct cli *c);
int cmd_export(struct cli *c);
int cmd_tokenize(struct cli *c);
int cmd_knobs(struct cli *c);
int cmd_doctor(struct cli *c);
int cmd_docs(struct cli *c);
int cmd_help(struct cli *c);
int cmd_version(struct cli *c);
extern const struct flag train_flags[], bench_flags[], tune_flags[], data_flags[], report_flags[],
    trials_flags[], show_flags[], verify_flags[], generate_flags[], export_flags[],
    tokenize_flags[], knobs_flags[], doctor_flags[], docs_flags[], help_flags[], version_flags[];
extern const char train_help[], bench_help[], tune_help[], data_help[], report_help[],
    trials_help[], show_help[], verify_help[], generate_help[], export_help[], tokenize_help[],
    knobs_help[], doctor_help[], docs_help[], help_help[], version_help[];

// main.c: all verbs; name NULL ends them.
const struct verb *verb_list(void);
const struct verb *verb_find(const char *name);
// The verb, or NULL after saying that there is none of that name.
const struct verb *verb_find_or_say(const char *name);

// help.c
void help_print_all(FILE *f);
void help_print_verb(FILE *f, const struct verb *v);

// output.c
int cli_sink_open(struct cli *c, struct haggle_error *e); // opens --json
int cli_sink_close(struct cli *c, int status);            // returns status, or why it became worse
// Says the sentence on stderr and returns the exit status of its code.
int cli_fail(struct cli *c, const struct haggle_error *e);
int cli_status(int code);
int cli_usage(struct haggle_error *e, const char *format, ...)
    __attribute__((format(printf, 2, 3))); // fills *e, returns HAGGLE_ERR_USAGE
// --output of a verb that has it; Markdown when it is not given.
int cli_format(const struct args *a, enum haggle_format *out, struct haggle_error *e);
// A config from the recipe (the first word, when there is one) and all knob=value over it.
int cli_config(struct cli *c, struct haggle_config **out, struct haggle_error *e);

// signals.c: the first SIGINT or SIGTERM asks the library to stop, the second one (the first while
// a run is only planned) quits at once.
void cli_catch_signals(void);

#endif
