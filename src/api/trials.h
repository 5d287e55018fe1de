// trials.h - rows of the store on their way to people and programs.
#ifndef HAGGLE_API_TRIALS_H
#define HAGGLE_API_TRIALS_H

#include "api/api.h"
#include "api/table.h"
#include "store/store.h"

// Rows of one kind, collected in the form that is asked for: as a table, as JSON, or as both.
struct trials_rows {
    struct table table;       // of people or of CSV
    bool has_table, raw;      // raw: CSV
    struct json_writer *json; // an array that is open; NULL: none
    FILE *lines;              // JSON lines go there; NULL: no
    const char **knobs;       // of each row of the table, in its region
    size_t n, knobs_capacity; // rows in all
    bool unbounded;           // one has a percentile without a bound
    bool failed;              // no memory
};

enum trials_kind { TRIALS_TUNINGS, TRIALS_TRIALS };
// table: with one, as CSV when raw.
void trials_rows_init(struct trials_rows *r, enum trials_kind kind, bool table, bool raw);
void trials_rows_free(struct trials_rows *r);
int trials_add_tuning(void *rows, const struct store_tuning *t); // store_tuning_fn
int trials_add_trial(void *rows, const struct store_trial *t);   // store_trial_fn
// After the last row: what all trials have in common is said once, above the table.
void trials_print(struct trials_rows *r, FILE *f);

void trials_put_tuning(struct json_writer *w, const struct store_tuning *t); // members
// The state as people see it: one that says running and whose process died is "interrupted".
const char *trials_state(const struct store_tuning *t);
enum { TRIALS_TIME_BYTES = 32 };
const char *trials_time(char out[TRIALS_TIME_BYTES], double at); // "2026-11-15 19:40"

#endif
