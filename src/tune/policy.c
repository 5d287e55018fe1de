// policy.c - the default values of policy.def.
#include "tune/policy.h"

const struct tune_policy tune_policy_default = {
#define BEGIN(name)              .name = {
#define VALUE(type, name, value) .name = value,
#define END(name)                                                                                  \
    }                                                                                              \
    ,
#include "tune/policy.def"
#undef BEGIN
#undef VALUE
#undef END
};
