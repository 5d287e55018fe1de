// ref_f32.c - the reference kernels in float32 (sums are in double).
#define REAL          float
#define REF(name)     name##_f32
#define REAL_FN(name) name##f
#include "backend/cpu/plain.h"
#include "backend/cpu/ref_ops.inc"
#include "backend/cpu/ref_loss.inc"
#include "backend/cpu/ref_adamw.inc"
#include "backend/cpu/ref_attention.inc"
#include "backend/cpu/ref_table.inc"
