// tune.h - a search as api/ runs it: laboratory, store, what is printed.
#ifndef HAGGLE_API_TUNE_H
#define HAGGLE_API_TUNE_H

#include "api/api.h"
#include "store/store.h"
#include "tune/lab.h"

struct tuning {
    struct call *call;
    struct knobs base;
    struct tune_request request;
    struct lab *lab;
    struct tune_lab inner; // the laboratory, behind the one that also records
    struct tune tune;
    struct machine machine;
    struct noise_estimate noise; // measured where the batch may move; n is 0 otherwise
    struct verdict verdict;      // of the chosen setting; "" when there is none
    char words[4 * TUNE_TEXT_BYTES],
        sentences[4 * TUNE_TEXT_BYTES]; // with "; " between; a line each
    // The store: every trial as it ends, and what earlier searches measured.
    struct store *store;
    char key[HASH_TEXT_BYTES];
    int64_t id;
    struct err unrecorded; // code 0: all is recorded
    struct err unread;     // the last row of the store that could not be; code 0: none
    double stage_began_at;
    enum tune_stage stage;
    int64_t *used; // trials of the store that were taken again
    size_t n_used, used_capacity;
    const char *recipe_path; // of the choice, as written; NULL: none
    const char *report_path; // likewise
};

// tune_print.c
void tune_print(const struct tuning *t, enum haggle_format format, FILE *f);
void tune_put_json(const struct tuning *t, struct json_writer *w); // members
// Sentences about the choice: what it is bound by, where growth ends, what other settings would cost.
void tune_verdict(struct tuning *t);

// tune_trade.c
// As given against chosen, in a few rows.
void tune_print_trade(const struct tuning *t, FILE *f);

// tune_report.c
// How long a request's own turn takes, by ops timed here or the roofline: a training sample of the second
// model (answer_s), else an evaluation of the bulk's (turn_s). Of a hybrid goal; others have no requests.
int tune_predict_answers(struct tune_request *r, const struct knobs *k, struct err *e);
// Memory of the second model; 0: there is none. Fails where it cannot be planned.
int tune_second_bytes(const struct knobs *k, uint64_t *out, struct err *e);
int tune_report_write(struct tuning *t, const char *path, struct err *e);
// Writes a page of a search; *bytes becomes its size.
struct tune_facts;
int tune_report_page(const char *path, const struct tune *t, const struct tune_facts *facts,
                     uint64_t *bytes, struct err *e);
char *tune_recipe_text(const struct knobs *k); // malloc'd; NULL: no memory

// tune_store.c
// Refuses, before any work, a store that is there and cannot be used.
// *path as it was given becomes the file's: own, the user's, where none was; NULL for "none".
int tune_store_path(const char **path, char own[STORE_PATH_BYTES], struct err *e);
int tune_store_check(const char *path, struct err *e);
int tune_store_open(struct tuning *t, const char *path, struct err *e);
// Measurements of the same setting from before, once each; out->n is 0 when there is none.
int tune_store_recall(struct tuning *t, const struct knobs *k, const struct tune_order *o,
                      struct tune_measured *out, struct err *e);
void tune_store_trial(struct tuning *t, const struct knobs *k, const struct trial_result *r,
                      enum tune_go ended);
void tune_store_stage(struct tuning *t, int stage);
// rc: of the search. One that failed can be continued, as one that was stopped.
void tune_store_finish(struct tuning *t, int rc);
// What a row says of its trial, whoever wrote it; step times and outcome are the caller's.
void tune_store_figures(const struct store_trial *row, size_t steps, struct tune_measured *out);

#endif
