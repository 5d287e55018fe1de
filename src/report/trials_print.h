// trials_print.h - rows of the store of trials, for people and for programs.
#ifndef HAGGLE_REPORT_TRIALS_PRINT_H
#define HAGGLE_REPORT_TRIALS_PRINT_H

#include "report/table.h"
#include "store/store.h"

// Rows of one kind, collected as a table, as JSON, or both.
struct trials_rows {
    bool has_table;
    struct table table;       // Markdown or CSV
    struct json_writer *json; // an open array; NULL: none
    FILE *lines;              // gets a line of JSON per row; NULL: none
    const char **knobs;       // of each row of the table, in its region
    size_t n, knobs_capacity; // n: rows so far
    bool unbounded;           // a row has a percentile without a bound
    bool failed;              // out of memory, or a line could not be written
};

enum trials_kind { TRIALS_TUNINGS, TRIALS_TRIALS };
// There is a table for TABLE_MARKDOWN and TABLE_CSV only.
void trials_rows_init(struct trials_rows *r, enum trials_kind kind, enum table_format format);
void trials_rows_free(struct trials_rows *r);
int trials_add_tuning(void *rows, const struct store_tuning *t); // store_tuning_fn
int trials_add_trial(void *rows, const struct store_trial *t);   // store_trial_fn
// Called after the last row. Knobs that all trials share are printed once, above the table.
int trials_print(struct trials_rows *r, FILE *f, struct err *e);

// A tuning and its stages, printed before its trials: for people to f, as member "tuning" to w.
// Either may be NULL. ERR_USAGE when the store has no such tuning.
int trials_put_head(struct store *s, int64_t id, FILE *f, struct json_writer *w, struct err *e);

#endif
