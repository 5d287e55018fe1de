// summary.h - the result of a training run, for people and for programs.
#ifndef HAGGLE_REPORT_SUMMARY_H
#define HAGGLE_REPORT_SUMMARY_H

#include "base/json.h"
#include "knob/knob.h"
#include "measure/verdict.h"
#include "predict/machine.h"
#include "train/trainer.h"
#include "train/trial.h"

#include <stdio.h>

struct summary {
    const struct knobs *knobs;
    struct train_result result;
    struct machine machine;
    struct verdict verdict;
    double predicted_step_s; // 0: not known
    bool past_roof;          // faster than the measured rate of this machine: no MFU
    struct step_flops step_flops;
    struct step_cost cost;
    double validation_first; // loss of this process's first validation; NaN: none
    int validations;         // by this process
};

void summary_print(const struct summary *s, FILE *f);
// Members: machine, rates, run, metrics, verdict.
void summary_put_json(const struct summary *s, struct json_writer *w);

#endif
