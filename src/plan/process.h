// process.h - the memory of the process itself, measured once per build and machine, and stored.
//
// Code, libraries and thread stacks belong to no program, and their bytes can be measured only
// while a backend is open. An engine measures them and the figure is stored here. Later processes
// use it, so that they count the same bytes. A plan that is made without opening a backend (the
// settings of a search) reads it and says that an earlier process measured it.
#ifndef HAGGLE_PLAN_PROCESS_H
#define HAGGLE_PLAN_PROCESS_H

#include "plan/plan.h"

// Sets the process part of a plan (plan_set_process) to the stored figure plus the computed size of
// the executor's tables for this plan. Without a stored figure it is what is resident now, as
// PLAN_UNKNOWN. To be called before an engine is ready: its threads may be pinned, and the machine
// then looks smaller than it is.
void process_estimate(struct plan *p);
// Sets the process part to the bytes that an engine measured, with the executor's tables, as
// PLAN_MEASURED. Two measurements differ by some pages, so an earlier figure that is less than 2 %
// away stays. show, train and the summary of a run then count the same bytes.
void process_measured(struct plan *p, uint64_t bytes);
// Stores the figure of a plan that has PLAN_MEASURED and was estimated before. on_device says where
// it was measured: a run that fell back from its device to the CPU stores nothing. A failure to
// write is ignored: the next run measures again.
void process_keep(const struct plan *p, bool on_device);
// Bytes of the executor's tables for both models.
uint64_t process_table_bytes(const struct plan *p);

#endif
