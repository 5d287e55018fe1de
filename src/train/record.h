// record.h - a trial as a row of the store, and the key it is found again by.
//
// Place: between train/trial.h, which measures, and store/store.h, which keeps; bench and tune call it
// when a trial has ended.
#ifndef HAGGLE_TRAIN_RECORD_H
#define HAGGLE_TRAIN_RECORD_H

#include "store/store.h"
#include "train/trial.h"

// The key of trials with these knobs: the model's shape, the data (its files' sizes and times, how
// they are read and packed), this machine and, where one computes, its device, this build. Opens no
// device. Fails when the model cannot be read.
int record_key(const struct knobs *k, char key[HASH_TEXT_BYTES], struct err *e);

// measured, refused, failed or killed, as far as the result says; a caller that ended the trial
// itself knows better.
enum store_outcome record_outcome(const struct trial_result *t);

struct record {
    int64_t tuning;     // 0: of none
    const char *origin; // the verb
    const char *stage;  // NULL: none
    const char *key;    // record_key's; NULL: not known, so never reused
    enum store_outcome outcome;
    double started_at;       // wall seconds
    double predicted_step_s; // NaN: not predicted
    double joules_per_token; // NaN: no meter
    double peak_flops_per_s; // for mfu and hfu; 0: not known
};

// Adds the trial and its step times; *id may be NULL.
int record_trial(struct store *s, const struct record *r, const struct knobs *k,
                 const struct trial_result *t, int64_t *id, struct err *e);

#endif
