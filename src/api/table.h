// table.h - rows of cells as an aligned Markdown table or as CSV.
//
// Cells are text and may come from files: what a terminal would take for a command never reaches it,
// nor does what would break a row.
#ifndef HAGGLE_API_TABLE_H
#define HAGGLE_API_TABLE_H

#include "base/region.h"

#include <stdbool.h>
#include <stdio.h>

struct table_column {
    const char *title;
    bool left; // aligned; else right
};

struct table {
    struct region region;
    const struct table_column *columns; // outlive the table
    int n_columns;
    const char ***rows; // [n][n_columns]
    size_t n, capacity;
};

void table_init(struct table *t, const struct table_column *columns, int n_columns);
void table_free(struct table *t);
// A further row, all cells empty; false without memory.
bool table_add_row(struct table *t);
// A cell of the last row; the text is copied.
bool table_put(struct table *t, int column, const char *text);
bool table_put_at(struct table *t, size_t row, int column, const char *text);
// Columns whose cells are all empty are left out.
void table_print_markdown(const struct table *t, FILE *f);
void table_print_csv(const struct table *t, FILE *f);
// Text on one line, control characters as spaces.
void table_print_text(const char *text, FILE *f);

#endif
