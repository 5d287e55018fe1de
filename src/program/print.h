// print.h - programs for people: what runs, in which order, on what bytes.
#ifndef HAGGLE_PROGRAM_PRINT_H
#define HAGGLE_PROGRAM_PRINT_H

#include "base/json.h"
#include "program/layout.h"

#include <stdio.h>

struct print_options {
    bool full;    // every op; otherwise layers that repeat are shown once
    bool tensors; // a table of tensors with class, life and place
};

int program_print(const struct program *p, FILE *f, const struct print_options *o, struct err *e);
void program_print_layout(const struct layout *l, FILE *f); // bytes by class and the total
// A line when programs of the set hold something across yield points; gap as wide as a second column.
void program_print_held(const struct layout *l, FILE *f, const char *gap);
void program_put_json(const struct program *p,
                      struct json_writer *w); // segments, ops, costs, order
void program_put_layout_json(const struct layout *l, struct json_writer *w);
// What recompute.c made the backward compute again; nothing when there is none of it.
void program_print_again(const struct program *p, FILE *f);
void program_put_again_json(const struct program *p, struct json_writer *w); // "recomputed": [...]
int program_write_ops_markdown(FILE *f, struct err *e);                      // docs/ops.md

#endif
