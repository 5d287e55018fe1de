// table.h - rows of typed cells as a Markdown table for people or as CSV for programs, and rows as
// JSON.
//
// A column has a title for people, a name for programs, or both. A row is filled from left to right
// with one call per column, also for a column that is not shown. A number has a few decimals for
// people and all digits for programs.
//
// Cells are text and may come from files, so control characters and whatever would break a row are
// replaced.
#ifndef HAGGLE_REPORT_TABLE_H
#define HAGGLE_REPORT_TABLE_H

#include "base/err.h"
#include "base/json.h"
#include "base/region.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

// How rows are written; haggle.h has the same list for callers of the library.
enum table_format { TABLE_MARKDOWN, TABLE_CSV, TABLE_JSON, TABLE_JSONL };

enum table_side { TABLE_RIGHT, TABLE_LEFT };

struct table_column {
    const char *title;    // for people; NULL: not in Markdown
    const char *name;     // for programs; NULL: not in CSV
    enum table_side side; // where cells are aligned
};

// Columns and their cells in one list: #define ROW(X) X(title, name, side, cell) ..., where `cell`
// is one of the calls below. {ROW(TABLE_COLUMN)} are the columns; ROW(TABLE_CELL) fills a row.
#define TABLE_COLUMN(title, name, side, cell) {title, name, TABLE_##side},
#define TABLE_CELL(title, name, side, cell)   cell;

struct table_style {
    const char *unknown; // text for an unknown number, for people; programs get an empty cell
    int digits;          // of a number for programs; 0: the same as for people
    bool compact;        // Markdown without padding
    bool whole;          // Markdown also with columns whose cells are all empty
};

struct table {
    struct region region;
    const struct table_column *columns; // must outlive the table
    int n_columns;
    struct table_style style;
    bool people;        // false: for programs
    const char ***rows; // [n][n_columns]
    size_t n, capacity;
    int at;      // column of the next cell
    bool failed; // out of memory, which table_print reports
};

// format: TABLE_CSV is for programs, any other is for people.
void table_init(struct table *t, const struct table_column *columns, int n_columns,
                enum table_format format, struct table_style style);
void table_free(struct table *t);
void table_row(struct table *t); // begins a row

// The next cell of the row. Texts are copied.
void table_text(struct table *t, const char *text);
void table_put(struct table *t, const char *format, ...) ERR_PRINTF(2, 3);
void table_i64(struct table *t, int64_t x);
void table_opt(struct table *t, int64_t x);                     // 0: not known
void table_real(struct table *t, double x, int decimals);       // not finite: not known
void table_significant(struct table *t, double x, int figures); // likewise
void table_share(struct table *t, double x, int decimals);      // 0.5 is "50 %" for people
// Milliseconds. For people a percentile without a confidence bound gets a question mark.
void table_percentile(struct table *t, double ms, bool bounded);
void table_bytes(struct table *t, uint64_t bytes); // 0: not known
// For people: one text in place of all cells that are left. For programs they stay empty.
void table_rest(struct table *t, const char *format, ...) ERR_PRINTF(2, 3);
// Sets any cell of a row that was begun.
void table_set(struct table *t, size_t row, int column, const char *text);

int table_print(const struct table *t, FILE *f, struct err *e);
// Text on one line, control characters as spaces.
void table_print_text(const char *text, FILE *f);

// ---------------------------------------------------------------- rows as JSON

// Begins the object `key`, or writes null when there is nothing to show. Returns `shown`.
bool table_member_object(struct json_writer *w, const char *key, bool shown);
// 0: null.
void table_member_opt(struct json_writer *w, const char *key, int64_t x);
// Puts row i as an object.
typedef void table_object_fn(const void *arg, size_t i, struct json_writer *w);
void table_put_array(struct json_writer *w, size_t n, table_object_fn *put, const void *arg);
// An array (TABLE_JSON), or a line for each object (TABLE_JSONL).
int table_print_json(enum table_format format, size_t n, table_object_fn *put, const void *arg,
                     FILE *f, struct err *e);

#endif
