// knob_print.c - prints the knobs for people and for programs: a table, docs/knobs.md, JSON.
#include "knob/knob.h"

#include <inttypes.h>
#include <string.h>

static int finish(FILE *f, struct err *e) {
    if (fflush(f) != 0 || ferror(f))
        return err_set(e, ERR_IO, "the table of knobs could not be written");
    return 0;
}

// Width in columns of a terminal. UTF-8 continuation bytes take none.
static int text_width(const char *s) {
    int n = 0;
    for (; *s; s++)
        n += ((unsigned char)*s & 0xC0) != 0x80;
    return n;
}

static void print_cell(FILE *f, const char *text, int width) {
    fputs(text, f);
    fprintf(f, "%*s", width > text_width(text) ? width - text_width(text) : 0, "");
}

// ---------------------------------------------------------------- terminal

enum { COLUMNS = 5 };

struct row {
    const char *cell[COLUMNS];
    char value[KNOB_VALUE_BYTES], initial[KNOB_VALUE_BYTES], accepted[KNOB_ACCEPTED_BYTES];
};

static void fill_row(struct row *r, const struct knobs *k, int id) {
    knobs_value(k, id, r->value);
    knob_default(id, r->initial);
    r->cell[0] = knob_info(id)->name;
    r->cell[1] = *r->value ? r->value : "\"\""; // an empty string must be visible
    r->cell[2] = knob_set_by_name(k->by[id]);
    r->cell[3] = *r->initial ? r->initial : "\"\"";
    r->cell[4] = knob_accepted(id, r->accepted);
}

static void print_row(FILE *f, const char *const cell[COLUMNS], const int width[COLUMNS]) {
    for (int c = 0; c + 1 < COLUMNS; c++) {
        print_cell(f, cell[c], width[c]);
        fputs("  ", f);
    }
    fprintf(f, "%s\n", cell[COLUMNS - 1]);
}

int knobs_print(const struct knobs *k, const bool selected[KNOB_COUNT], FILE *f, struct err *e) {
    static const char *const heads[COLUMNS] = {"knob", "value", "set by", "default", "accepted"};
    // Limits each column, so that one long path does not make the whole table wide.
    static const int most[COLUMNS] = {24, 24, 12, 16, 40};
    int width[COLUMNS];
    struct row r;
    for (int c = 0; c < COLUMNS; c++)
        width[c] = text_width(heads[c]);
    for (int i = 0; i < KNOB_COUNT; i++) {
        if (!selected[i])
            continue;
        fill_row(&r, k, i);
        for (int c = 0; c < COLUMNS; c++) {
            int w = text_width(r.cell[c]);
            if (w > width[c])
                width[c] = w < most[c] ? w : most[c];
        }
    }
    print_row(f, heads, width);
    for (int i = 0; i < KNOB_COUNT; i++) {
        if (!selected[i])
            continue;
        char effect[KNOB_EFFECT_BYTES], places[KNOB_EFFECT_BYTES];
        const char *idle = knobs_idle(k, i);
        fill_row(&r, k, i);
        print_row(f, r.cell, width);
        fprintf(f, "    %s [%s; shows in %s%s]\n", knob_info(i)->help, knob_effect(i, effect),
                knob_places(i, places), knob_info(i)->flags & KNOB_TUNABLE ? "; tunable" : "");
        if (idle)
            fprintf(f, "    no effect now: %s\n", idle);
    }
    return finish(f, e);
}

// ---------------------------------------------------------------- one knob, explained

struct meaning {
    unsigned flag;
    const char *text;
};
static const struct meaning ALTERS[] = {
    {KNOB_SPEED, "speed: the time of a step"},
    {KNOB_MEMORY, "memory: the bytes that a run needs"},
    {KNOB_MATH, "math: the numbers that are trained, so another value is another experiment"},
    {KNOB_OUTPUT, "output: what is written, logged or printed"}};
static const struct meaning SEEN[] = {
    {KNOB_IN_PROGRAM, "program: the operations that 'haggle show' lists"},
    {KNOB_IN_BYTES, "bytes: the memory plan of 'haggle show' and 'haggle train'"},
    {KNOB_IN_LOADER, "loader: the batches, and how they are made"},
    {KNOB_IN_NUMBERS, "numbers: losses and learning rates in log.jsonl"},
    {KNOB_IN_HOST, "host: the kernels, libraries and threads that are used"},
    {KNOB_IN_OUTPUT, "output: files, lines on the screen, errors"}};

static void print_lines(FILE *f, const char *head, const struct meaning *m, size_t n,
                        unsigned flags) {
    for (size_t i = 0; i < n; i++)
        if (flags & m[i].flag) {
            fprintf(f, "  %-10s%s\n", head, m[i].text);
            head = "";
        }
}

void knob_explain(const struct knobs *k, int id, FILE *f) {
    const struct knob_info *info = knob_info(id);
    const char *idle = knobs_idle(k, id), *form = knob_form(id);
    struct row r;
    fill_row(&r, k, id);
    fprintf(f, "%s\n  %s\n\n", info->name, info->help);
    fprintf(f, "  %-10s%s (set by: %s)\n", "value", r.cell[1], r.cell[2]);
    fprintf(f, "  %-10s%s\n", "default", r.cell[3]);
    if (info->type == KNOB_STRING)
        fprintf(f, "  %-10s%s of text\n", "accepted", form);
    else
        fprintf(f, "  %-10s%s: %s\n", "accepted", form, r.cell[4]);
    print_lines(f, "changes", ALTERS, sizeof ALTERS / sizeof *ALTERS, info->flags);
    print_lines(f, "shows in", SEEN, sizeof SEEN / sizeof *SEEN, info->flags);
    fprintf(f, "  %-10s%s\n", "tuner",
            info->flags & KNOB_FACTOR    ? "may change it; keeps the product of all batch.* knobs"
            : info->flags & KNOB_TUNABLE ? "may change it"
                                         : "leaves it as it is set");
    if (idle)
        fprintf(f, "  %-10sno effect with the other settings as they are: %s\n", "now", idle);
}

// ---------------------------------------------------------------- documentation

int knobs_write_markdown(FILE *f, struct err *e) {
    fputs(
        "# Knobs\n\n"
        "Generated from `src/knob/knob.def` by `haggle docs knobs`: edit that file, not this "
        "one.\n\n"
        "A knob is a setting. Set it in a recipe (`batch: {micro: 4}` or `batch.micro: 4`) or on "
        "the command line\n"
        "(`batch.micro=4`). The command line wins. `haggle knobs` shows the current values and "
        "where they come from;\n"
        "`haggle knobs batch.micro` explains one knob, `haggle knobs batch` lists a group. Names "
        "of "
        "other tools\n"
        "(`learning_rate`, `bf16`) are not accepted; the error says what to write.\n"
        "Sizes are written `6GiB` or `500MB`, durations `80ms`, `90s` or `3m`.\n\n"
        "- *Effect* says what a change can alter: *speed* (time per step), *memory* (bytes), "
        "*math* (the numbers trained),\n"
        "  *output* (what is written or printed).\n"
        "- *Shows in* names where two values can be seen to differ: the *program* (`haggle show`), "
        "planned *bytes*, the\n"
        "  *loader* (batches, and how they are made), the *numbers* trained, the *host* (kernels, "
        "libraries, threads), the\n"
        "  *output*. A test looks there for every knob. `haggle knobs --check` looks there too and "
        "measures on your machine.\n"
        "- *Tunable* knobs are the only ones that the tuner changes. It keeps the product of those "
        "that are also *math*,\n"
        "  and so the tokens per step.\n\n"
        "| knob | default | accepted | effect | shows in | tunable | what it does |\n"
        "|---|---|---|---|---|---|---|\n",
        f);
    for (int i = 0; i < KNOB_COUNT; i++) {
        const struct knob_info *info = knob_info(i);
        char initial[KNOB_VALUE_BYTES], accepted[KNOB_ACCEPTED_BYTES], effect[KNOB_EFFECT_BYTES],
            places[KNOB_EFFECT_BYTES];
        knob_default(i, initial);
        fprintf(f, "| `%s` | %s%s%s | %s | %s | %s | %s | %s |\n", info->name, *initial ? "`" : "",
                *initial ? initial : "(empty)", *initial ? "`" : "", knob_accepted(i, accepted),
                knob_effect(i, effect), knob_places(i, places),
                info->flags & KNOB_TUNABLE ? "yes" : "", info->help);
    }
    return finish(f, e);
}

// ---------------------------------------------------------------- JSON

// Bytes and durations are written as plain numbers (bytes, seconds), so that programs need not
// parse units. A period is a number of steps, or text with the unit of time.
static void put_value(const struct knobs *k, int id, struct json_writer *w) {
    const struct knob_info *info = knob_info(id);
    const char *field = (const char *)k + info->offset;
    char text[KNOB_VALUE_BYTES];
    switch (info->type) {
    case KNOB_INT:
        json_put_i64(w, *(const int64_t *)(const void *)field);
        break;
    case KNOB_PERIOD:
        if (*(const int64_t *)(const void *)field < 0)
            json_put_string(w, knobs_value(k, id, text));
        else
            json_put_i64(w, *(const int64_t *)(const void *)field);
        break;
    case KNOB_FLOAT:
        json_put_double(w, *(const double *)(const void *)field);
        break;
    case KNOB_BOOL:
        json_put_bool(w, *(const bool *)field);
        break;
    case KNOB_BYTES:
        json_put_double(w, (double)*(const uint64_t *)(const void *)field);
        break;
    case KNOB_DURATION:
        json_put_double(w, (double)*(const uint64_t *)(const void *)field / 1e9);
        break;
    default:
        json_put_string(w, knobs_value(k, id, text));
    }
}

void knobs_put_json(const struct knobs *k, struct json_writer *w) {
    json_put_object_begin(w);
    for (int i = 0; i < KNOB_COUNT; i++) {
        json_put_key(w, knob_info(i)->name);
        put_value(k, i, w);
    }
    json_put_object_end(w);
}

void knobs_put_json_table(const struct knobs *k, const bool selected[KNOB_COUNT],
                          struct json_writer *w) {
    struct knobs initial;
    char text[KNOB_ACCEPTED_BYTES];
    knobs_init(&initial);
    json_put_array_begin(w);
    for (int i = 0; i < KNOB_COUNT; i++) {
        const struct knob_info *info = knob_info(i);
        if (!selected[i])
            continue;
        json_put_object_begin(w);
        json_member_string(w, "name", info->name);
        json_put_key(w, "value");
        put_value(k, i, w);
        json_member_string(w, "set_by", knob_set_by_name(k->by[i]));
        json_put_key(w, "default");
        put_value(&initial, i, w);
        json_member_string(w, "type", knob_type_name(info->type));
        json_member_string(w, "accepted", knob_accepted(i, text));
        json_member_string(w, "effect", knob_effect(i, text));
        json_member_string(w, "shows_in", knob_places(i, text));
        json_member_bool(w, "tunable", (info->flags & KNOB_TUNABLE) != 0);
        json_member_string(w, "no_effect_because", knobs_idle(k, i)); // NULL: null
        json_member_string(w, "help", info->help);
        json_put_object_end(w);
    }
    json_put_array_end(w);
}
