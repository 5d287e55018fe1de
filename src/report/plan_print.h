// plan_print.h - a plan for people and as JSON: model, step, programs, memory, predicted time.
#ifndef HAGGLE_REPORT_PLAN_PRINT_H
#define HAGGLE_REPORT_PLAN_PRINT_H

#include "base/json.h"
#include "data/dataset.h"
#include "plan/plan.h"
#include "predict/predictor.h"

#include <stdio.h>

void plan_print_model(FILE *f, const struct plan *p); // a line per model
// The step and the data: how many tokens a step has, and how often the steps pass over the data.
// data NULL: it could not be opened.
void plan_print_step(FILE *f, const struct plan *p, const struct dataset *data);
// Whether the plan fits, as the engine said (engine_ready).
struct plan_check {
    bool on_device;
    struct plan_room room; // is NULL: not known
    // What the plan's bytes leave out ("the data's buffers"); NULL: nothing. With something left
    // out the plan needs at least these bytes.
    const char *missing;
};
// own: adds a column with the total bytes of each class's tensors.
void plan_print_memory(FILE *f, const struct plan *p, const struct plan_check *c, bool own);
void plan_put_model_json(const struct plan *p, struct json_writer *w);

// A plan and its predictions.
struct plan_view {
    const struct plan *plan;
    const struct dataset *data; // NULL: it could not be opened
    struct plan_check check;
    struct predictor *predictor;
    struct predicted step;
    const struct hw_device *roof;            // used when no ops were timed
    const struct predicted_answers *answers; // NULL: the run answers no requests
};
// For each program: sums per segment; or every op of a segment; or every op and tensor.
enum plan_detail { PLAN_BRIEF, PLAN_OPS, PLAN_FULL };

int plan_print(const struct plan_view *v, enum plan_detail detail, FILE *f, struct err *e);
void plan_put_json(const struct plan_view *v, struct json_writer *w); // members

#endif
