// ref_f64.c - the reference kernels in float64, for gradient checks.
#define REAL          double
#define REF(name)     name##_f64
#define REAL_FN(name) name
#include "backend/cpu/plain.h"
#include "backend/cpu/ref_ops.inc"
#include "backend/cpu/ref_loss.inc"
#include "backend/cpu/ref_adamw.inc"
#include "backend/cpu/ref_attention.inc"
#include "backend/cpu/ref_table.inc"
