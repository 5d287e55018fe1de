// verdict_run.h - the verdict on a run: compares its times with the work of its ops and with the
// rates of this machine.
#ifndef HAGGLE_PREDICT_VERDICT_RUN_H
#define HAGGLE_PREDICT_VERDICT_RUN_H

#include "measure/metrics.h"
#include "measure/verdict.h"
#include "predict/machine.h"
#include "plan/plan.h"

// Explains where the time of `m` went, from the facts of this run and machine.
void verdict_run(struct verdict *out, const struct run_metrics *m, const struct knobs *k,
                 const struct step_cost *cost, const struct machine *machine);

#endif
