// template.h - chat templates: programs in a subset of the Jinja language that turn a conversation
// into text.
//
// Place: render.c compiles the template of a model's folder, or a known one by name, and runs it
// for each conversation. A template is an input file: it is not trusted until it is checked.
//
// What is understood, with the options that transformers sets (trim_blocks, lstrip_blocks, loop
// controls):
//   statements   for (with if, else, loop.*, break, continue), if / elif / else, set (names, a
//                namespace's members, blocks), macro, generation, comments
//   expressions  literals, lists, tuples, dicts; + - * / // % ** ~; comparisons, in, and / or /
//                not; x if c else y; attributes, indices, slices; calls of macros, of the functions
//                range, namespace, dict, raise_exception, strftime_now, and of methods of strings
//                and dicts
//   filters and tests: see template_filter.c
// Anything else is an error. An unknown statement is an error at compile time. An unknown function,
// filter, test or method is an error when it is reached. Nothing is ignored.
//
// Invariants:
//   1. Text of a record keeps its origin (template_value.h) through every operation.
//   2. Time and memory are bounded by the heap's limits, nesting by fixed depths.
//   3. The same input gives the same text. The date is a constant, TEMPLATE_DATE. A template that
//      tests whether strftime_now is defined finds that it is not, and falls back to a date it
//      contains.
#ifndef HAGGLE_DATA_TEMPLATE_H
#define HAGGLE_DATA_TEMPLATE_H

#include "data/template_value.h"

enum { TEMPLATE_MAX_BYTES = 1 << 20 };
// 26 July 2024: the date that templates write when they cannot ask for the date.
#define TEMPLATE_DATE_YEAR  2024
#define TEMPLATE_DATE_MONTH 7
#define TEMPLATE_DATE_DAY   26

struct template;
// Compiles; `name` is for messages. ERR_UNSUPPORTED for what is not understood, with the line.
int template_open(struct template **out, const char *name, const char *source, size_t bytes,
                  struct err *e);
void template_close(struct template *t);                  // NULL is fine
bool template_marks_generation(const struct template *t); // it marks what the model writes

struct template_variable {
    const char *name;
    struct value value;
};
struct template_range { // a range of bytes in the text
    size_t begin, end;
};
struct template_output {
    const struct marked *text;               // in the heap
    const struct template_range *generation; // the text inside {% generation %}
    size_t n_generation;
};
// Runs the template. ERR_FORMAT, with the template's name and line, when it refuses the
// conversation or does something that is not possible.
int template_render(const struct template *t, const struct template_variable *variables, size_t n,
                    struct value_heap *h, struct template_output *out);

// The templates known by name.
struct template_known {
    const char *name, *about, *source;
    const char *needs[4]; // special tokens it writes, other than bos_token and eos_token
};
const struct template_known *template_known_at(size_t i); // NULL after the last one
const struct template_known *template_known_find(const char *name);

#endif
