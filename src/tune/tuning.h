// tuning.h - a whole search on this machine: the laboratory, the history in the store, the gradient
// noise scale if the batch may change, and the verdict on the chosen setting.
//
// Place: api/tune.c makes a request from the command line and opens a tuning. report/ prints it.
#ifndef HAGGLE_TUNE_TUNING_H
#define HAGGLE_TUNE_TUNING_H

#include "base/log.h"
#include "base/sentences.h"
#include "measure/verdict.h"
#include "predict/machine.h"
#include "train/noise.h"
#include "tune/history.h"
#include "tune/lab.h"

struct tuning {
    struct log *log;
    struct knobs base;
    struct tune_request request;
    struct machine machine;
    struct lab *lab; // NULL: the search has not begun
    struct history history;
    struct tune tune;
    struct noise_estimate noise; // measured if the batch may change; else n is 0
    struct verdict verdict;      // of the chosen setting; "": nothing was chosen
    struct sentences sentences;  // about the choice: its bottleneck, larger micro-batches, ...
    const char *recipe_path;     // file with the choice; NULL: none was written
    const char *report_path;     // file with the report; NULL: none was written
};

struct tuning_options {
    const char *store;                 // as on the command line; NULL: the user's; "none": no store
    bool count_busy;                   // as in lab_options
    uint64_t request_bytes;            // memory for the requests of a hybrid run
    const volatile sig_atomic_t *stop; // may be NULL
};

// The caller has set log, base, request and machine. Opens the laboratory. Refuses if the request
// needs an energy meter (--energy) and the machine has none.
int tuning_open(struct tuning *t, const struct tuning_options *o, struct err *e);
// Searches, and makes the verdict. If it fails or is stopped, the results so far stay in *t.
int tuning_run(struct tuning *t, const struct tuning_options *o, struct err *e);
void tuning_close(struct tuning *t);

// tuning_verdict.c: fills sentences and verdict for the choice.
void tuning_verdict(struct tuning *t);
// For the goal hybrid, predicts how long it takes to compute an answer: a training sample of the
// second model (answer_s), else an evaluation by the bulk model (turn_s). Other goals have no
// requests.
int tuning_predict_answers(struct tune_request *r, const struct knobs *k, struct err *e);

#endif
