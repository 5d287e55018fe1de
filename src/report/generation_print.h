// generation_print.h - the plan of generation for people and as JSON: how the weights are stored,
// the cache, memory.
//
// Place: `haggle show` of a quantized folder, which cannot be trained, so it has no step to plan.
#ifndef HAGGLE_REPORT_GENERATION_PRINT_H
#define HAGGLE_REPORT_GENERATION_PRINT_H

#include "report/plan_print.h"

// `p` has PLAN_EXTEND and nothing else.
int generation_print(const struct plan *p, const struct plan_check *c, enum plan_detail detail,
                     FILE *f, struct err *e);
void generation_put_json(const struct plan *p, const struct plan_check *c, struct json_writer *w);

#endif
