// args.c - sorts the command line into the verb's flags, knobs and words.
//
// Every knob is also a flag: --batch-micro 4, --batch.micro=4, batch.micro=4 and batch.micro = 4
// mean the same, and --cpu-pin is --cpu-pin=true. A flag of the verb wins over a knob of the same
// name.
#include "cli.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Short flags for the knobs that people use most.
static const struct {
    const char *flag, *knob;
} aliases[] = {{"data", "data.path"},
               {"lr", "optim.lr"},
               {"respond", "interactive.respond"},
               {"temperature", "generate.temperature"},
               {"top-k", "generate.top_k"},
               {"top-p", "generate.top_p"},
               {"min-p", "generate.min_p"},
               {"repeat-penalty", "generate.repeat"}};

// "batch-micro" and "batch.micro" are one name.
static bool same_name(const char *a, const char *b) {
    for (; *a && *b; a++, b++) {
        char x = *a == '-' || *a == '_' ? '.' : *a, y = *b == '-' || *b == '_' ? '.' : *b;
        if (x != y)
            return false;
    }
    return *a == *b;
}

static const char *find_knob(const char *name) {
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
        if (strcmp(name, aliases[i].flag) == 0)
            return aliases[i].knob;
    for (size_t i = 0; i < haggle_knob_count(); i++)
        if (same_name(name, haggle_knob_name(i)))
            return haggle_knob_name(i);
    return NULL;
}

static int find_flag(const struct flag *flags, const char *name) {
    for (int i = 0; flags[i].name; i++)
        if (strcmp(name, flags[i].name) == 0)
            return i;
    return -1;
}

static int find_letter(const struct flag *flags, char letter) {
    for (int i = 0; flags[i].name; i++)
        if (flags[i].letter && flags[i].letter == letter)
            return i;
    return -1;
}

static int unknown_flag(const struct flag *flags, const char *given, const char *name,
                        const char *value, struct haggle_error *e) {
    char elsewhere[HAGGLE_TEXT_BYTES];
    if (haggle_knob_elsewhere(name, value, elsewhere))
        return cli_usage(e, "%s", elsewhere);
    static const char *const common[] = {"json", "quiet", "help", "data", "lr"};
    const size_t n_common = sizeof common / sizeof *common;
    size_t n_knobs = haggle_knob_count(), n = 0;
    const char **names = malloc((n_common + FLAGS_MOST + n_knobs) * sizeof *names);
    const char *near = NULL;
    if (names) {
        for (size_t i = 0; i < n_common; i++)
            names[n++] = common[i];
        for (int i = 0; flags[i].name; i++)
            names[n++] = flags[i].name;
        for (size_t i = 0; i < n_knobs; i++)
            names[n++] = haggle_knob_name(i);
        near = haggle_suggest(name, names, n);
    }
    free(names);
    if (near)
        return cli_usage(e, "unknown flag '%s'; did you mean --%s?", given, near);
    return cli_usage(e,
                     "unknown flag '%s'; --help lists the flags, 'haggle knobs' lists the knobs, "
                     "which are flags too",
                     given);
}

// ---------------------------------------------------------------- one argument

struct cursor {
    int at, n;
    char **argv;
};

// "40 ms" is 40ms: a number takes the unit that stands alone after it and is no file.
static const char *with_unit(struct args *a, struct cursor *c, const char *value) {
    static const char *const units[] = {"ns", "us",  "ms",  "s",   "m",  "h",  "B",
                                        "K",  "M",   "G",   "T",   "KB", "MB", "GB",
                                        "TB", "KiB", "MiB", "GiB", "TiB"};
    if (!*value || value[strspn(value, "0123456789.")] || c->at >= c->n)
        return value;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (strcmp(c->argv[c->at], units[i]) == 0 && access(units[i], F_OK) != 0) {
            char *joined = a->text + a->text_bytes;
            a->text_bytes += (size_t)sprintf(joined, "%s%s", value, c->argv[c->at++]) + 1;
            return joined;
        }
    return value;
}

// The value of a flag: after '=', or the next argument.
static int take_value(struct args *a, struct cursor *c, const char *given, const char *after_equals,
                      const char **out, struct haggle_error *e) {
    if (!after_equals && c->at >= c->n)
        return cli_usage(e, "%s needs a value", given);
    *out = with_unit(a, c, after_equals ? after_equals : c->argv[c->at++]);
    return 0;
}

static int take_flag(struct args *a, int index, const char *given, struct cursor *c,
                     const char *after_equals, struct haggle_error *e) {
    if (a->flags[index].value) {
        TRY(take_value(a, c, given, after_equals, &a->values[index], e));
        a->each[a->n_each].flag = index;
        a->each[a->n_each++].value = a->values[index];
        return 0;
    }
    if (after_equals)
        return cli_usage(e, "%s takes no value", given);
    a->values[index] = "";
    return 0;
}

static int parse_long(struct args *a, const char *given, struct cursor *c, struct haggle_error *e) {
    enum { NAME_MOST = 64 };
    const char *equals = strchr(given, '='), *value = equals ? equals + 1 : NULL;
    size_t length = (equals ? (size_t)(equals - given) : strlen(given)) - 2;
    char name[NAME_MOST];
    if (length == 0 || length >= sizeof name)
        return cli_usage(e, "unknown flag '%.80s'", given);
    memcpy(name, given + 2, length);
    name[length] = '\0';

    int index = find_flag(a->flags, name);
    if (index >= 0)
        return take_flag(a, index, given, c, value, e);
    if (strcmp(name, "json") == 0)
        return take_value(a, c, given, value, &a->json, e);
    bool *swtch = strcmp(name, "quiet") == 0  ? &a->quiet
                  : strcmp(name, "help") == 0 ? &a->help
                                              : NULL;
    if (swtch) {
        *swtch = true;
        return value ? cli_usage(e, "%s takes no value", given) : 0;
    }
    const char *knob = find_knob(name);
    if (!knob) {
        const bool more = c->at < c->n && c->argv[c->at][0] != '-';
        return unknown_flag(a->flags, given, name, value ? value : more ? c->argv[c->at] : NULL, e);
    }
    struct assignment *set = &a->knobs[a->n_knobs++];
    *set = (struct assignment){knob, "true"};
    if (!value && haggle_knob_stands_alone(knob, c->at < c->n ? c->argv[c->at] : NULL))
        return 0;
    return take_value(a, c, given, value, &set->value, e);
}

static int parse_short(struct args *a, const char *given, struct cursor *c,
                       struct haggle_error *e) {
    // Exactly one letter: "-ofile" may be a typing error.
    if (given[2] == '\0') {
        int index = find_letter(a->flags, given[1]);
        if (index >= 0)
            return take_flag(a, index, given, c, NULL, e);
        if (given[1] == 'q' || given[1] == 'h') {
            *(given[1] == 'q' ? &a->quiet : &a->help) = true;
            return 0;
        }
    }
    return unknown_flag(a->flags, given, given + 1, NULL, e);
}

// name=value: the name is cut out of the argument into a->text.
static void add_assignment(struct args *a, struct cursor *c, const char *given, size_t length,
                           const char *value) {
    char *name = a->text + a->text_bytes;
    memcpy(name, given, length);
    name[length] = '\0';
    a->text_bytes += length + 1;
    const char *knob = find_knob(name); // NULL: haggle_config_set will suggest a name
    a->knobs[a->n_knobs++] = (struct assignment){knob ? knob : name, with_unit(a, c, value)};
}

// knob=value, and the same with spaces: "knob = value" and "knob =value". What follows "knob=" may
// be a value or a recipe, so that is refused.
static int parse_word(struct args *a, const char *given, struct cursor *c, struct haggle_error *e) {
    const char *equals = strchr(given, '='), *next = c->at < c->n ? c->argv[c->at] : NULL;
    if (equals == given && a->n_words > 0) {
        const char *name = a->words[--a->n_words];
        const char *value = given[1] ? given + 1 : next;
        if (!value)
            return cli_usage(e, "%s = needs a value; write %s=VALUE", name, name);
        c->at += value == next;
        add_assignment(a, c, name, strlen(name), value);
    } else if (equals && equals > given) {
        if (!equals[1] && next && next[0] != '-' && !strchr(next, '='))
            return cli_usage(e,
                             "%s is followed by a space; write %s%s, or '%s' first if it is not "
                             "the value",
                             given, given, next, next);
        add_assignment(a, c, given, (size_t)(equals - given), equals + 1);
    } else {
        a->words[a->n_words++] = given;
    }
    return 0;
}

// ---------------------------------------------------------------- all arguments

int args_parse(struct args *a, const struct flag *flags, int n, char **argv,
               struct haggle_error *e) {
    *a = (struct args){.flags = flags};
    size_t text_bytes = 1; // names that are cut out and values with their unit: each once
    for (int i = 0; i < n; i++)
        text_bytes += 2 * strlen(argv[i]) + 2;
    a->words = malloc(((size_t)n + 1) * sizeof *a->words);
    a->knobs = malloc(((size_t)n + 1) * sizeof *a->knobs);
    a->each = malloc(((size_t)n + 1) * sizeof *a->each);
    a->text = malloc(text_bytes);
    if (!a->words || !a->knobs || !a->each || !a->text)
        return cli_error(e, HAGGLE_ERR_MEMORY, "out of memory for the command line");
    struct cursor c = {.n = n, .argv = argv};
    bool flags_over = false;
    while (c.at < n) {
        const char *given = argv[c.at++];
        if (flags_over || given[0] != '-' || given[1] == '\0') {
            TRY(parse_word(a, given, &c, e));
        } else if (strcmp(given, "--") == 0) {
            flags_over = true;
        } else {
            TRY(given[1] == '-' ? parse_long(a, given, &c, e) : parse_short(a, given, &c, e));
        }
    }
    return 0;
}

void args_free(struct args *a) {
    free(a->words);
    free(a->knobs);
    free(a->each);
    free(a->text);
    *a = (struct args){0};
}

const char *args_get(const struct args *a, const char *flag) {
    int i = find_flag(a->flags, flag);
    return i >= 0 ? a->values[i] : NULL;
}

size_t args_each(const struct args *a, const char *flag, const char **out) {
    const int index = find_flag(a->flags, flag);
    size_t n = 0;
    for (size_t i = 0; i < a->n_each; i++)
        if (a->each[i].flag == index)
            out[n++] = a->each[i].value;
    return n;
}

int args_number(const struct args *a, const char *flag, int64_t least, int64_t most,
                int64_t otherwise, int64_t *out, struct haggle_error *e) {
    const char *text = args_get(a, flag);
    *out = otherwise;
    if (!text)
        return 0;
    char *end;
    errno = 0;
    long long x = strtoll(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || x < least || x > most)
        return cli_usage(e, "--%s=%s is not accepted; accepted: a number from %lld to %lld", flag,
                         text, (long long)least, (long long)most);
    *out = x;
    return 0;
}

int args_words(const struct args *a, size_t most, const char *what, struct haggle_error *e) {
    if (a->n_words <= most)
        return 0;
    if (most == 0)
        return cli_usage(e, "unexpected '%s'; accepted: %s", a->words[0], what);
    return cli_usage(e, "'%s' is one too many; accepted: %s", a->words[most], what);
}

int args_no_knobs(const struct args *a, const char *what, struct haggle_error *e) {
    return a->n_knobs == 0 ? 0
                           : cli_usage(e, "%s=%s has no meaning here; accepted: %s",
                                       a->knobs[0].name, a->knobs[0].value, what);
}
