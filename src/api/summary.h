// summary.h - what came of a training run, for people and for programs.
#ifndef HAGGLE_API_SUMMARY_H
#define HAGGLE_API_SUMMARY_H

#include "api/api.h"
#include "api/sample.h"
#include "train/trainer.h"

struct summary {
    const struct knobs *knobs;
    struct train_result result;
    struct machine machine;
    struct verdict verdict;
    struct sample sample;    // length 0: none
    double predicted_step_s; // 0: not known
    bool calibrated;         // from ops timed here; else by the roofline
    bool past_roof;          // faster than this machine was measured to be: no MFU
    struct step_flops step_flops;
    struct step_cost cost;
    double validation_first; // of this process; NaN: none
    int validations;         // of this process
};

void summary_print(const struct summary *s, FILE *f);
// Members: machine, rates, run, metrics, verdict, sample.
void summary_put_json(const struct summary *s, struct json_writer *w);

#endif
