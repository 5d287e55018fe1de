// cli.h - the program's own types: a verb, its flags, the arguments as given, where output goes.
//
// Place in the flow: main.c finds the verb, args.c sorts its arguments, cmd_<verb>.c calls
// libhaggle, output.c turns what came back into streams and an exit status. No code here knows
// knobs, models or files. haggle.h is the only header of the project that this folder includes.
#ifndef HAGGLE_CLI_CLI_H
#define HAGGLE_CLI_CLI_H

#include <haggle.h>
#include <signal.h>
#include <sys/types.h>

// The exit statuses of all verbs. docs/ and `haggle help` list them too.
enum cli_exit {
    EXIT_OK = 0,
    EXIT_FAILED = 1,
    EXIT_USAGE = 2,
    EXIT_BUDGET = 3, // train, show: too much memory is needed; tune: no setting keeps the budgets
    EXIT_VERIFY = 4, // a figure is outside its tolerance
    // Stopped on request and saved, or (tune) the machine was too busy: EX_TEMPFAIL, which batch
    // systems requeue.
    EXIT_STOPPED = 75,
};

// Returns f's code from the calling function when it is not 0: TRY(f(x, e)).
#define TRY(call)                                                                                  \
    do {                                                                                           \
        int try_rc_ = (call);                                                                      \
        if (try_rc_ != 0)                                                                          \
            return try_rc_;                                                                        \
    } while (0)

// ---------------------------------------------------------------- arguments

struct flag {
    const char *name;  // "repeat", given as --repeat
    char letter;       // 'r' for -r; 0: none
    const char *value; // the placeholder that help prints for the value; NULL: a switch
    const char *help;
};

enum { FLAGS_MOST = 24 };

struct assignment {
    const char *name, *value;
};

struct args {
    const struct flag *flags;       // the verb's; an entry with name NULL ends the list
    const char *values[FLAGS_MOST]; // same index as `flags`; "" for a switch; NULL: not given
    struct {
        int flag;
        const char *value;
    } * each; // every flag with a value, in order: some may be given several times
    size_t n_each;
    // Flags that every verb has.
    const char *json;
    bool quiet, help;
    const char **words; // arguments that are neither a flag nor an assignment
    size_t n_words;
    struct assignment *knobs; // knob=value and --knob value, in order
    size_t n_knobs;
    char *text; // holds the names in `knobs` that were cut out of an argument
    size_t text_bytes;
};

// Sorts argv[0..n). HAGGLE_ERR_USAGE names the argument, and a similar flag if there is one.
int args_parse(struct args *a, const struct flag *flags, int n, char **argv,
               struct haggle_error *e);
void args_free(struct args *a);
// The value of one of the verb's flags; NULL when not given.
const char *args_get(const struct args *a, const char *flag);
// All values of a flag that may be given several times, in order. `out` has room for n_each.
size_t args_each(const struct args *a, const char *flag, const char **out);
// The value of a flag as a number from `least` to `most`; `otherwise` when not given.
int args_number(const struct args *a, const char *flag, int64_t least, int64_t most,
                int64_t otherwise, int64_t *out, struct haggle_error *e);
// HAGGLE_ERR_USAGE when there are more words than `most`. `what` says what is accepted.
int args_words(const struct args *a, size_t most, const char *what, struct haggle_error *e);
// HAGGLE_ERR_USAGE when a knob was given to a verb that has none. `what` says what is accepted.
int args_no_knobs(const struct args *a, const char *what, struct haggle_error *e);

// ---------------------------------------------------------------- a verb at work

struct cli {
    const struct verb *verb;
    struct args args;
    int n_given; // arguments behind the verb, as given
    char **given;
    struct haggle_sink sink;
    struct haggle_config *config; // made by cli_config; main.c frees it
    // JSON is collected in memory and written at the end, so there is exactly one object even after
    // a failure.
    char *json_text;
    size_t json_bytes;
    FILE *json_file;             // where the object goes; NULL: nowhere
    struct haggle_ranks ranks;   // as what mpirun has started this process, if it has
    struct haggle_error failure; // what ended the verb; code 0: nothing
    int status;                  // of a verb that did not fail; that of rank 0
    enum cli_exit numeric;       // status for HAGGLE_ERR_NUMERIC; EXIT_VERIFY where a verb sets it
};

struct verb {
    const char *name, *what; // one line each
    const char *usage;       // the part after "haggle"
    const char *more;        // some paragraphs on what it does, and examples
    const struct flag *flags;
    int (*run)(struct cli *c, struct haggle_error *e); // returns 0, or a code and fills *e
    bool hidden;
};

// What cmd_<verb>.c defines for main.c.
#define VERB_PARTS(verb)                                                                           \
    int cmd_##verb(struct cli *c, struct haggle_error *e);                                         \
    extern const struct flag verb##_flags[];                                                       \
    extern const char verb##_help[]
VERB_PARTS(train);
VERB_PARTS(bench);
VERB_PARTS(tune);
VERB_PARTS(data);
VERB_PARTS(report);
VERB_PARTS(trials);
VERB_PARTS(plan);
VERB_PARTS(show);
VERB_PARTS(verify);
VERB_PARTS(eval);
VERB_PARTS(generate);
VERB_PARTS(chat);
VERB_PARTS(export);
VERB_PARTS(quantize);
VERB_PARTS(tokenize);
VERB_PARTS(knobs);
VERB_PARTS(doctor);
VERB_PARTS(help);
VERB_PARTS(version);
VERB_PARTS(docs);

// main.c: all verbs; an entry with name NULL ends the list.
const struct verb *verb_list(void);
// NULL when there is no such verb; *e then names a similar one, or all of them.
const struct verb *verb_find(const char *name, struct haggle_error *e);

// help.c
void help_print_all(FILE *f);
void help_print_verb(FILE *f, const struct verb *v);

// output.c
int cli_sink_open(struct cli *c, struct haggle_error *e); // opens --json
// Writes the JSON and flushes. Returns `status`, or EXIT_FAILED when a result is lost.
int cli_sink_close(struct cli *c, int status);
// Nothing was written to the sink, and nothing will be.
void cli_sink_drop(struct cli *c);
// Prints c->failure on stderr.
void cli_print(const struct cli *c);
// Tells c->failure and returns the exit status for its code.
int cli_fail(const struct cli *c);
// Fills *e and returns `code`.
int cli_error(struct haggle_error *e, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
#define cli_usage(e, ...) cli_error(e, HAGGLE_ERR_USAGE, __VA_ARGS__)
// The value of --output; Markdown when it is not given.
int cli_format(const struct args *a, enum haggle_format *out, struct haggle_error *e);
// Makes c->config from the recipe (the first word, if any) and then every knob=value.
int cli_config(struct cli *c, struct haggle_error *e);
// The same for a verb that takes no word but a recipe.
int cli_recipe(struct cli *c, struct haggle_error *e);
// The same for a verb whose word is a model, or a recipe that names one: FILE.yaml.
int cli_model(struct cli *c, struct haggle_error *e);

// signals.c: the first SIGINT, SIGTERM or SIGHUP asks the library to stop, the second quits at
// once. While a run is only being planned, the first one quits at once.
// speaks: says so.
void cli_catch_signals(bool speaks);

// launch.c: ranks that are processes.
// Starts the ranks of c->ranks with the command line as given, and waits for them. c->status
// becomes that of rank 0.
int launch_ranks(struct cli *c, struct haggle_error *e);
// In a process that launch_ranks has started: takes over its streams. To be called first. False: it
// has gone. In any other process nothing happens.
bool launch_join(void);
// Lets the launcher print a failure. False: there is no launcher.
bool launch_tell(const struct haggle_error *e, int status);
void launch_leave(int status); // to be called last

// mpirun.c: starts mpirun with `program` and this command line, and a process that keeps it: it
// ends mpirun after SIGTERM or with this process, and removes what the ranks leave. Returns that
// process's id, or -1 (errno). name: of the socket for launch_join; output: for mpirun's own words.
#define LAUNCH_VARIABLE "HAGGLE_LAUNCH" // "SOCKET VARIABLE": where to connect; what holds the rank
pid_t mpirun_start(const struct cli *c, char *program, const char *name, int output,
                   const sigset_t *mask);

#endif
