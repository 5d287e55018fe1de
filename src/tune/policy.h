// policy.h - the numbers a search decides by, in one place.
//
// Place: the files of this folder read them through tune.policy. A caller that wants other values
// (a replay that tries some) copies tune_policy_default, changes the copy and names it in
// tune_request.policy. policy.def has every number with its meaning, its unit and the measurement
// or argument behind it.
#ifndef HAGGLE_TUNE_POLICY_H
#define HAGGLE_TUNE_POLICY_H

#include <stddef.h>
#include <stdint.h>

enum {
    TUNE_FINALISTS_ROOM = 16,   // finalists, the last seat included: no more ever enter
    TUNE_VISIT_STEPS_ROOM = 400 // a median of more steps counts as precise, whatever their spread
};

struct tune_policy {
#define BEGIN(name)              struct {
#define VALUE(type, name, value) type name;
#define END(name)                                                                                  \
    }                                                                                              \
    name;
#include "tune/policy.def"
#undef BEGIN
#undef VALUE
#undef END
};

extern const struct tune_policy tune_policy_default;

#endif
