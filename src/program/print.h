// print.h - prints programs for people: what runs, in which order, on which bytes.
#ifndef HAGGLE_PROGRAM_PRINT_H
#define HAGGLE_PROGRAM_PRINT_H

#include "base/json.h"
#include "program/layout.h"

#include <stdio.h>

struct print_options {
    bool full;    // show every op; otherwise repeated layers are shown once
    bool tensors; // show a table of tensors with class, life and place
};

int program_print(const struct program *p, FILE *f, const struct print_options *o, struct err *e);
void program_print_layout(const struct layout *l, FILE *f); // bytes by class and the total
// Prints a line if a program of the set holds bytes across yield points. gap fills the space of a
// second column.
void program_print_held(const struct layout *l, FILE *f, const char *gap);
// Sizes of the program, and its segments with their ops and costs.
void program_put_json(const struct program *p, struct json_writer *w);
void program_put_layout_json(const struct layout *l, struct json_writer *w);
// Lists what the backward computes again (recompute.c). Prints nothing if nothing is recomputed.
void program_print_again(const struct program *p, FILE *f);
void program_put_again_json(const struct program *p, struct json_writer *w); // "recomputed": [...]
int program_write_ops_markdown(FILE *f, struct err *e);                      // docs/ops.md

#endif
