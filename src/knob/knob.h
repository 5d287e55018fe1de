// knob.h - every setting of a run, called a knob: its value, its source, what is accepted, what it
// can change.
//
// Place in the flow: the command line and recipes come in as text, and the result is one checked
// struct. All later code (build, layout, the trainer, the tuner) reads `struct knobs` and never
// parses text. knob.def is the only list of knobs.
//
// Invariants: a `struct knobs` that knobs_init filled always holds accepted values, because a call
// that fails changes nothing. knobs_load_recipe reads what knobs_write_recipe wrote back to equal
// values.
#ifndef HAGGLE_KNOB_KNOB_H
#define HAGGLE_KNOB_KNOB_H

#include "base/err.h"
#include "base/hash.h"
#include "base/json.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { KNOB_STRING_BYTES = 1024, KNOB_VALUE_BYTES = KNOB_STRING_BYTES };

enum knob_type {
    KNOB_INT,
    KNOB_FLOAT,
    KNOB_BOOL,
    KNOB_CHOICE,
    KNOB_STRING,
    KNOB_BYTES,
    KNOB_DURATION,
    KNOB_PERIOD,
    KNOB_TYPE_COUNT
};

enum knob_flag {
    KNOB_TUNABLE = 1 << 0, // the tuner may change it
    KNOB_FACTOR = 1 << 1,  // only the product of all factors matters to the mathematics
    KNOB_SPEED = 1 << 2,   // effects: what a change can alter (see knob.def)
    KNOB_MEMORY = 1 << 3,
    KNOB_MATH = 1 << 4,
    KNOB_OUTPUT = 1 << 5,
    KNOB_EFFECTS = KNOB_SPEED | KNOB_MEMORY | KNOB_MATH | KNOB_OUTPUT,
    KNOB_IN_PROGRAM = 1 << 6, // places: where the effect shows (see knob.def)
    KNOB_IN_BYTES = 1 << 7,
    KNOB_IN_LOADER = 1 << 8,
    KNOB_IN_NUMBERS = 1 << 9,
    KNOB_IN_HOST = 1 << 10,
    KNOB_IN_OUTPUT = 1 << 11,
    KNOB_PLACES = KNOB_IN_PROGRAM | KNOB_IN_BYTES | KNOB_IN_LOADER | KNOB_IN_NUMBERS |
                  KNOB_IN_HOST | KNOB_IN_OUTPUT,
};

// The source of a value. A later call replaces the value of an earlier one, whatever the sources.
// The order of calls therefore decides which source wins.
enum set_by {
    SET_BY_DEFAULT,
    SET_BY_RECIPE,
    SET_BY_COMMAND_LINE,
    SET_BY_PLANNER,
    SET_BY_TUNER,
    SET_BY_COUNT
};

// clang-format off
// KNOB_batch_micro, ...: the index of each knob, in the order of knob.def.
enum knob_id {
#define KNOB(type, field) KNOB_##field,
#include "knob/knob_each.h"
    KNOB_COUNT
};

// enum sched_kind { SCHED_CONSTANT, ... }, ...: the values of each choice.
#define V(constant, text) constant,
#define CHOICE(field, name, initial, values, flags, help) enum field { values };
#define KNOB(type, field)
#include "knob/knob_each.h"

struct knobs {
#define INT(field, name, initial, least, most, flags, help) int64_t field;
#define FLOAT(field, name, initial, least, most, flags, help) double field;
#define BOOL(field, name, initial, flags, help) bool field;
#define CHOICE(field, name, initial, values, flags, help) enum field field;
#define STRING(field, name, initial, flags, help) char field[KNOB_STRING_BYTES];
#define BYTES(field, name, initial, least, most, flags, help) uint64_t field;
#define DURATION(field, name, initial, least, most, flags, help) uint64_t field; // ns
#define PERIOD(field, name, initial, most, flags, help) int64_t field; // steps, or -ns
#include "knob/knob_each.h"
    enum set_by by[KNOB_COUNT];
};
// clang-format on

// ---------------------------------------------------------------- setting

void knobs_init(struct knobs *k); // all defaults
// Sets a knob from text, such as "batch.micro" and "4". ERR_USAGE names the knob, the value and
// what is accepted. For a misspelt name it suggests the nearest one.
int knobs_set(struct knobs *k, const char *name, const char *value, enum set_by by, struct err *e);
int knobs_set_at(struct knobs *k, int id, const char *value, enum set_by by, struct err *e);
// The same for "batch.micro=4".
int knobs_set_assignment(struct knobs *k, const char *text, enum set_by by, struct err *e);
// Reads a YAML recipe and sets its knobs. The other knobs keep their values. An error names the
// file and the line.
int knobs_load_recipe(struct knobs *k, const char *path, struct err *e);
int knobs_load_recipe_text(struct knobs *k, const char *name, const char *text, size_t bytes,
                           struct err *e);
// Fills run.dir when it is empty: runs/ and the file name of the recipe without its extension.
// Without a recipe (NULL) it uses the name of the model.
int knobs_name_run(struct knobs *k, const char *recipe_path, struct err *e);

// ---------------------------------------------------------------- reading

struct knob_info {
    const char *name, *help;
    enum knob_type type;
    unsigned flags;
    size_t offset; // of the field in struct knobs
    // Bounds: _int for KNOB_INT and the steps of KNOB_PERIOD, _float for KNOB_FLOAT, _u64 for
    // KNOB_BYTES and KNOB_DURATION.
    int64_t least_int, most_int;
    double least_float, most_float;
    uint64_t least_u64, most_u64;
    const char *const *choices; // of KNOB_CHOICE
    int n_choices;
};

// The description of knob `id` in [0, KNOB_COUNT). An id out of range is a bug in the caller and
// gives knob 0.
const struct knob_info *knob_info(int id);
int knob_find(const char *name); // -1: none
// The id, or ERR_USAGE with a suggestion of a similar name.
int knob_find_or_suggest(const char *name, struct err *e);
// Marks the knobs and the groups ("optim") that are named; none: all. ERR_USAGE as above.
int knobs_select(const char *const *names, size_t n, bool selected[KNOB_COUNT], struct err *e);
// elsewhere.c: what a setting of another tool is called here and what to type, as a sentence in
// `out`, or NULL. value may be NULL. For SET_BY_RECIPE it is what to type in YAML.
enum { KNOB_ELSEWHERE_BYTES = 768 };
const char *knob_elsewhere(const char *name, const char *value, enum set_by by,
                           char out[KNOB_ELSEWHERE_BYTES]);
int knob_elsewhere_id(const char *name); // the knob it is here; -1: none
// The same for a value of a knob, such as device=mps.
const char *knob_value_elsewhere(int id, const char *value, char out[KNOB_ELSEWHERE_BYTES]);
const char *knob_type_name(enum knob_type t); // "int", "float", "bool", ...
const char *knob_set_by_name(enum set_by by); // "default", "recipe", "command line", ...
const char *knob_choice(int id, int value);   // KNOB_sched_kind, SCHED_WSD -> "wsd"
enum { KNOB_ACCEPTED_BYTES = 256, KNOB_EFFECT_BYTES = 64 };
const char *knob_form(int id); // "a whole number", "a size such as 6GiB or 500MB"
// "1 to 65536", "0 or more", "constant, linear, cosine, wsd"; returns out.
const char *knob_accepted(int id, char out[KNOB_ACCEPTED_BYTES]);
// "speed, memory"; returns out.
const char *knob_effect(int id, char out[KNOB_EFFECT_BYTES]);
// "program, bytes": the places where the effect shows; returns out.
const char *knob_places(int id, char out[KNOB_EFFECT_BYTES]);
const char *knob_place_name(unsigned place); // KNOB_IN_PROGRAM -> "program"
// The value as text that knobs_set reads back to the same value; returns out.
const char *knobs_value(const struct knobs *k, int id, char out[KNOB_VALUE_BYTES]);
const char *knob_default(int id, char out[KNOB_VALUE_BYTES]);
bool knobs_same(const struct knobs *a, const struct knobs *b, int id);
bool knobs_equal(const struct knobs *a, const struct knobs *b); // all values, not their sources
// Ranks of a run, and replicas of the model among them. Both are at least 1. Whether the axes give
// that number of ranks is checked by plan_split_of.
int64_t knobs_world(const struct knobs *k);
int64_t knobs_replicas(const struct knobs *k);
int64_t knobs_samples(const struct knobs *k);         // sequences of a step, over all replicas
bool knobs_saves(const struct knobs *k);              // whether the run writes checkpoints
int64_t knobs_interactive_seq(const struct knobs *k); // interactive.seq, or seq when that is 0
// Whether a sequence of the data may hold several documents. The built-in corpus does in bytes.
bool knobs_packs(const struct knobs *k);
// Why a knob has no effect with the current values of the other knobs, as half a sentence ("only
// sched.kind=wsd decays"). NULL when it has an effect.
const char *knobs_idle(const struct knobs *k, int id);
// Hash of the values of all knobs that have any of the given effects. With KNOB_MATH alone, factors
// count only by their product, because another split of the same batch trains the same numbers.
int knobs_hash(const struct knobs *k, unsigned effects, char out[HASH_TEXT_BYTES], struct err *e);

// ---------------------------------------------------------------- writing

// Writes a complete recipe: every knob, in groups, with its source as a comment.
int knobs_write_recipe(const struct knobs *k, FILE *f, struct err *e);
int knobs_save_recipe(const struct knobs *k, const char *path, struct err *e); // the same, durably
char *knobs_recipe_text(const struct knobs *k); // the same, malloc'd; NULL: no memory
// A table for people of the selected knobs: name, value, source, default, accepted, effect, help.
int knobs_print(const struct knobs *k, const bool selected[KNOB_COUNT], FILE *f, struct err *e);
void knob_explain(const struct knobs *k, int id, FILE *f); // one knob, in sentences
int knobs_write_markdown(FILE *f, struct err *e);          // docs/knobs.md
// Writes one object: {"batch.micro": 4, ...}.
void knobs_put_json(const struct knobs *k, struct json_writer *w);
// Writes one array with an object per knob, which has all the columns of knobs_print.
void knobs_put_json_table(const struct knobs *k, const bool selected[KNOB_COUNT],
                          struct json_writer *w);

#endif
