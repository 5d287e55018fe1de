// record.h - writes a trial as a row of the store, and computes the key by which it is found again.
//
// Place: between train/trial.h, which measures, and store/store.h, which keeps. bench and tune call
// it when a trial has ended.
#ifndef HAGGLE_TRAIN_RECORD_H
#define HAGGLE_TRAIN_RECORD_H

#include "store/store.h"
#include "train/trial.h"

// The key of trials with these knobs: a hash of the model's shape, the data (sizes and times of its
// files, how they are read and packed), this machine, its device if the run uses one, and this
// build. Opens no device. Fails when the model cannot be read.
int record_key(const struct knobs *k, char key[HASH_TEXT_BYTES], struct err *e);

// The outcome as far as the result shows it. A caller that ended the trial itself must set a more
// exact one.
enum store_outcome record_outcome(const struct trial_result *t);

struct record {
    int64_t tuning;     // the tuning it belongs to; 0: none
    const char *origin; // the command: "bench", "tune"
    const char *stage;  // NULL: none
    const char *key;    // from record_key; NULL: not known, so the trial is never reused
    enum store_outcome outcome;
    double started_at;       // wall seconds
    double predicted_step_s; // NaN: not predicted
    double joules_per_token; // NaN: no meter
    double peak_flops_per_s; // for mfu and hfu; 0: not known
};

// Adds the trial and its step times. id may be NULL.
int record_trial(struct store *s, const struct record *r, const struct knobs *k,
                 const struct trial_result *t, int64_t *id, struct err *e);

#endif
