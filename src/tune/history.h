// history.h - a search in the store. Every trial is written when it ends, so that a search that was
// killed can continue, and a later search need not measure the same again.
//
// Place: the laboratory (lab.c) looks here before it measures and adds what it measured. tuning.c
// opens and finishes it. A history without a store does nothing.
#ifndef HAGGLE_TUNE_HISTORY_H
#define HAGGLE_TUNE_HISTORY_H

#include "base/hash.h"
#include "predict/machine.h"
#include "store/store.h"
#include "train/trial.h"
#include "tune/tune.h"

struct history {
    struct store *store; // NULL: nothing is recorded
    char key[HASH_TEXT_BYTES];
    int64_t id;              // of the search in the store
    const struct tune *tune; // the search whose settings are recorded
    struct machine machine;  // for the utilization of each trial
    bool metered;            // only trials with a known energy can be reused
    struct err unrecorded;   // why recording ended; code 0: all is recorded
    struct err unread;       // the last row that could not be read; code 0: none
    double stage_began_at;
    enum tune_stage stage;
    int64_t *used; // trials in the store that this search has reused or written
    size_t n_used, used_capacity;
};

// Replaces *path, as given by the user, by the file's path: NULL becomes the user's store (in
// `own`), "none" becomes NULL.
int history_path(const char **path, char own[STORE_PATH_BYTES], struct err *e);
// Refuses a store that exists and cannot be used, before any work is done. Creates nothing.
int history_check(const char *path, struct err *e);
// Begins a search, or continues an unfinished one with the same recipe and budgets (*resumed). The
// caller has set h->tune and h->machine.
int history_open(struct history *h, const char *path, const struct knobs *base,
                 const struct tune_request *r, bool *resumed, struct err *e);
void history_close(struct history *h);

// Finds an earlier trial of this setting. Each trial is used once. out->n stays 0 if there is none.
int history_recall(struct history *h, const struct knobs *k, const struct tune_order *o,
                   struct tune_measured *out, struct err *e);
// Records a trial that has ended. `ended` says what ended it early (TUNE_GO_ON: nothing).
void history_add(struct history *h, const struct knobs *k, const struct trial_result *r,
                 enum tune_go ended);
// Records a stage that has ended.
void history_stage(struct history *h, int stage);
// rc: the result of the search. A search that failed or was stopped can be continued. verdict: one
// sentence per line.
void history_finish(struct history *h, int rc, const char *verdict);
// Fills the figures of a trial from its row. Step times and outcome are left to the caller.
void history_figures(const struct store_trial *row, size_t steps, struct tune_measured *out);

#endif
