// output.c - streams and exit statuses. Results go to stdout, messages to stderr, JSON to --json.
#include "cli.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

int cli_error(struct haggle_error *e, int code, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(e->text, sizeof e->text, format, args);
    va_end(args);
    return e->code = code;
}

// --quiet still shows warnings and errors.
// With `--json -` only the object goes to stdout. The text for people goes to stderr.
int cli_sink_open(struct cli *c, struct haggle_error *e) {
    c->sink = (struct haggle_sink){.out = stdout, .log = stderr, .quiet = c->args.quiet};
    if (c->ranks.rank > 0)
        c->sink = (struct haggle_sink){.quiet = true};
    if (!c->args.json || c->ranks.rank > 0)
        return 0;
    bool alone = strcmp(c->args.json, "-") == 0;
    if (alone)
        c->sink.out = c->args.quiet ? NULL : stderr;
    // Opened before the work starts: a path that cannot be written must not cost a training run.
    c->json_file = alone ? stdout : fopen(c->args.json, "we");
    if (c->json_file)
        c->sink.json = open_memstream(&c->json_text, &c->json_bytes);
    if (c->sink.json)
        return 0;
    return cli_error(e, HAGGLE_ERR_IO, "--json %s cannot be written: %s", c->args.json,
                     strerror(errno));
}

static bool deliver_json(struct cli *c) {
    if (!c->sink.json)
        return true;
    // The library writes no error that came before its verb began, such as a misspelt knob.
    if (c->failure.code != 0 && ftell(c->sink.json) == 0)
        haggle_error_write_json(&c->failure, c->sink.json);
    bool ok = fclose(c->sink.json) == 0;
    ok = ok && fwrite(c->json_text, 1, c->json_bytes, c->json_file) == c->json_bytes;
    free(c->json_text);
    return ok;
}

int cli_sink_close(struct cli *c, int status) {
    const char *lost = deliver_json(c) ? NULL : c->args.json;
    if (c->json_file && c->json_file != stdout && fclose(c->json_file) != 0)
        lost = c->args.json;
    if (fflush(stdout) != 0 || ferror(stdout))
        lost = "the standard output";
    if (!lost)
        return status;
    fprintf(stderr, "haggle: the result could not be written whole to %s: %s\n", lost,
            strerror(errno));
    return status == EXIT_OK ? EXIT_FAILED : status;
}

void cli_sink_drop(struct cli *c) {
    if (c->sink.json)
        fclose(c->sink.json);
    if (c->json_file && c->json_file != stdout)
        fclose(c->json_file);
    free(c->json_text);
    c->json_text = NULL;
    c->json_file = c->sink.json = NULL;
}

void cli_print(const struct cli *c) {
    const struct haggle_error *e = &c->failure;
    if (e->text[0]) // else rank 0 has said it
        fprintf(stderr, "haggle%s%s: %s\n", c->verb ? " " : "", c->verb ? c->verb->name : "",
                e->text);
    if (e->code == HAGGLE_ERR_INTERNAL)
        fprintf(stderr, "haggle: this is a bug in haggle %s; please report it with the command\n",
                haggle_version());
}

static int status_of(const struct cli *c) {
    const int code = c->failure.code;
    return code == HAGGLE_ERR_USAGE                                ? EXIT_USAGE
           : code == HAGGLE_ERR_MEMORY                             ? EXIT_BUDGET
           : code == HAGGLE_ERR_STOPPED || code == HAGGLE_ERR_BUSY ? EXIT_STOPPED
           : code == HAGGLE_ERR_NUMERIC                            ? (int)c->numeric
                                                                   : EXIT_FAILED;
}

int cli_fail(const struct cli *c) {
    const int status = status_of(c);
    if (!launch_tell(&c->failure, status))
        cli_print(c);
    return status;
}

int cli_format(const struct args *a, enum haggle_format *out, struct haggle_error *e) {
    static const char *const names[] = {"md", "csv", "json", "jsonl"};
    const char *text = args_get(a, "output");
    *out = HAGGLE_MARKDOWN;
    if (!text)
        return 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(text, names[i]) == 0) {
            *out = (enum haggle_format)i;
            return 0;
        }
    return cli_usage(e, "--output=%s is not accepted; accepted: md, csv, json, jsonl", text);
}

int cli_config(struct cli *c, struct haggle_error *e) {
    TRY(haggle_config_new(&c->config, e));
    if (c->args.n_words > 0)
        TRY(haggle_config_load_recipe(c->config, c->args.words[0], e));
    for (size_t i = 0; i < c->args.n_knobs; i++)
        TRY(haggle_config_set(c->config, c->args.knobs[i].name, c->args.knobs[i].value, e));
    return 0;
}

int cli_recipe(struct cli *c, struct haggle_error *e) {
    TRY(args_words(&c->args, 1, "one recipe, then knob=value", e));
    return cli_config(c, e);
}

static bool is_recipe(const char *word) {
    const char *dot = strrchr(word, '.');
    return dot && (strcmp(dot, ".yaml") == 0 || strcmp(dot, ".yml") == 0);
}

int cli_model(struct cli *c, struct haggle_error *e) {
    const char *word = c->args.n_words > 0 ? c->args.words[0] : NULL;
    TRY(args_words(&c->args, 1, "one folder, then knob=value", e));
    if (!word || is_recipe(word))
        return cli_config(c, e);
    c->args.n_words = 0;
    TRY(cli_config(c, e));
    return haggle_config_set(c->config, "model", word, e);
}
