// gen_print.h - a search for generation (tune/gen.h) as a table for people, as JSON, and as a page.
#ifndef HAGGLE_REPORT_GEN_PRINT_H
#define HAGGLE_REPORT_GEN_PRINT_H

#include "report/table.h"
#include "tune/gen.h"

#include <stdio.h>

enum { GEN_SENTENCE_BYTES = 1024 };

struct gen_facts {         // that struct gen does not hold; a NULL pointer: there is none
    const char *model;     // as the user named it
    const char *machine;   // one line
    const char *likeness;  // one sentence: what formats were compared on, or why they were not
    const char *commands;  // lines that a person can run
    const char *saved_as;  // the recipe's file
    const char *report_as; // the page's file
    uint64_t memory_budget;
};

// The answer in a sentence. Returns out.
const char *gen_answer(char out[GEN_SENTENCE_BYTES], const struct gen *g);
// What is made best: "least latency of a text, one at a time". Returns out.
const char *gen_goal(char out[GEN_SENTENCE_BYTES], const struct gen *g);
// The budgets with what is known of them, one line each. Returns out.
const char *gen_budgets(char out[GEN_SENTENCE_BYTES], const struct gen *g);
// "chosen", "in turns", "glance" or "".
const char *gen_mark(const struct gen *g, int i);
// Setting number k of the tables: the choice, as given, what ran in turns, what was measured, the
// rest. -1: past the end.
int gen_place(const struct gen *g, int k);
const char *gen_format_name(const struct gen *g, int i);

int gen_print(const struct gen *g, const struct gen_facts *f, enum table_format format, FILE *out,
              struct err *e);
void gen_put_json(const struct gen *g, const struct gen_facts *f, struct json_writer *w);
// gen_page.c. Writes the file.
int gen_page_write(const struct gen *g, const struct gen_facts *f, const char *path, struct err *e);

#endif
