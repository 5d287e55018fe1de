// rows.h - tables of training runs, as CSV: what each line says, as a setup on a cluster.
//
// The columns are those of published tables: model, layers, hidden, heads, ffn, seq, gpu, gpus, tp,
// pp, dp, microbatch, globalbatch, ... (the names in column_names, rows.c). Their order is free,
// and so are further columns. What a line does not say is assumed by a rule, and the assumption is
// told; no rule looks at a model's or a source's name.
//
// Place in the flow: a file, which is hostile until read -> rows -> setups, which estimate.c times.
#ifndef HAGGLE_PLANNER_ROWS_H
#define HAGGLE_PLANNER_ROWS_H

#include "planner/estimate.h"

// clang-format off
#define ROWS_COLUMN_LIST(X)                                                                        \
    X(source) X(framework) X(model) X(params_b) X(layers) X(hidden) X(heads) X(kv_heads) X(ffn)    \
    X(vocab) X(seq) X(gpu) X(gpus) X(tp) X(pp) X(vp) X(dp) X(cp) X(zero) X(seqpar) X(microbatch)   \
    X(globalbatch) X(recompute) X(precision) X(step_s) X(tokens_per_s_per_gpu) X(mem_gb) X(notes)
// clang-format on

enum rows_column {
#define X(name) ROWS_##name,
    ROWS_COLUMN_LIST(X)
#undef X
        ROWS_COLUMNS
};

struct row {
    const char *text; // the record as it stands in the file, without its end of line
    size_t bytes;
    int line;
    const char *field[ROWS_COLUMNS]; // never NULL; "": not stated
};

struct rows {
    char *file;           // owns the bytes that `text` of rows point to
    struct region region; // owns the fields
    const char *head;
    size_t head_bytes;
    struct row *rows;
    int n;
    size_t capacity;
};

int rows_read_file(struct rows *r, const char *path, struct err *e);
// Takes the text, which malloc made, also when it fails.
int rows_read_text(struct rows *r, const char *name, char *text, size_t bytes, struct err *e);
void rows_free(struct rows *r);

enum { ROWS_TEXT_BYTES = 512 };
struct row_setup {
    struct planner_setup setup;
    struct cluster cluster;
    double measured_s;   // of a step; 0: not stated
    double measured_gb;  // 0: not stated
    bool failed;         // it ran out of memory
    bool usable;         // a setup, a time, and it did not fail
    bool size_open;      // the name of the device did not say its memory
    bool recompute_open; // nothing is stated about recomputation
    char repository[64];
    char assumed[ROWS_TEXT_BYTES]; // "vocab=50257, zero=1"; "": nothing
};
// ERR_UNSUPPORTED or ERR_USAGE: why the line has no prediction.
int row_setup(const struct row *r, const struct hardware *h, struct row_setup *out, struct err *e);
// What is still open is chosen so that the run fits, because it ran: the smaller device before the
// larger one, and as little recomputation as fits. The sample of that setup is returned, too.
int row_settle(struct row_setup *s, const struct hardware *h, const struct planner_constants *k,
               struct planner_sample **sample, struct estimate *x, struct err *e);
extern const char rows_rule[]; // which rows are usable and what is assumed, for people

// Writes the table with the predictions appended to each record.
struct rows_counts {
    int rows, usable, predicted, usable_predicted;
};
int rows_predict(const struct rows *r, const struct hardware *h, const struct planner_constants *k,
                 FILE *out, struct rows_counts *counts, struct err *e);

#endif
