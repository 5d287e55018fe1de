// cases.h - one table of op cases for every test of a backend: results, gradients, speed, support.
//
// A case is an op with sizes and switches. case_open gives it operands: seeded random inputs and
// poisoned outputs. A backend runs its op_call. case_check_bounds says whether anything outside the
// op's elements changed. Inputs are the same numbers in every float type, because they are drawn as
// float32.
//
// tests/CMakeLists.txt makes a program of each test_*.c alone, so a test includes cases.c.
#ifndef HAGGLE_TESTS_BACKEND_CASES_H
#define HAGGLE_TESTS_BACKEND_CASES_H

#include "backend/backend.h"

#include <stdbool.h>

enum case_option {
    CASE_PAD = 1 << 0,       // rows further apart than they are long (case_pad)
    CASE_BARE = 1 << 1,      // without the optional operands (bias, second output, documents);
                             // cast: to float32 instead of bfloat16
    CASE_DOCS = 1 << 2,      // several documents per sequence
    CASE_PACKED = 1 << 3,    // q k v (and their gradients) are columns of one tensor
    CASE_IN_PLACE = 1 << 4,  // output is the input's memory
    CASE_UNTRAINED = 1 << 5, // some targets and ids are negative
    CASE_MASTER = 1 << 7,    // adamw only: a weight of full precision beside w
    CASE_NOT_FINITE = 1 << 6,
    CASE_SKEWED = 1 << 8, // most ids are the same
};

struct backend_case {
    enum op_kind kind;
    unsigned flags, options;
    int64_t m, n, k;
    int64_t batch, seq, heads, kv_heads, head_dim;
    int act;
};

size_t case_count(void);
const struct backend_case *case_at(size_t i);
void case_name(const struct backend_case *c, char *out,
               size_t bytes); // "matmul m=7 n=31 k=5 flags=2 options=1"

// The gap between rows of so many elements: rows that begin at multiples of 16 elements still do,
// so that kernels for such rows meet gaps, too.
static inline int64_t case_pad(int64_t columns) {
    return columns % 16 == 0 ? 16 : 5;
}

// One operand: `rows` x `columns` elements, rows `ld` apart. It owns its memory unless it is a view
// or uses the memory of an input.
struct case_operand {
    int64_t rows, columns, ld, first_column;
    char type; // as in program/ops.def
    int fill;  // enum of cases.c
    int64_t limit;
    int view_of; // operand of the same list whose memory this is a part of; -1: none
    int same_as; // for an output: the input whose memory it uses; -1: none
    bool absent;
    enum dtype dtype;
    void *memory, *before; // all elements with gaps, and a copy of them as they were before the run
    size_t bytes;
};

struct case_run {
    struct op op;
    struct op_call call;
    struct case_operand in[OP_MAX_IN], out[OP_MAX_OUT];
    int n_in, n_out;
};

// Makes the operands of the case in float_type (fp32, fp64, bf16 or fp16). Inputs that are the
// result of another op (statistics, lse, a rotary table) are made by `reference`, in float64.
int case_open(struct case_run *r, const struct backend_case *c, enum dtype float_type,
              uint64_t seed, struct backend *reference, struct err *e);
// The same with the inputs of `like`, an open case of another float type, because drawing numbers
// costs more than most ops.
int case_open_like(struct case_run *r, const struct backend_case *c, enum dtype float_type,
                   const struct case_run *like, struct err *e);
// For ops that join two, where the second reads what the first has stored: the result of the second
// in float64, from the first output of `got` (and its weights). The caller must close the case.
bool case_is_joined(enum op_kind kind);
int case_run_second(struct case_run *r, const struct backend_case *c, const struct case_run *got,
                    struct backend *reference, struct err *e);
void case_close(struct case_run *r);
// Element (row, column) of an operand, as double.
double case_get(const struct case_operand *o, int64_t row, int64_t column);
void case_set(struct case_operand *o, int64_t row, int64_t column, double value);
// False, with a reason, when an output is further from the truth than float32 sums explain.
bool case_agree(const struct case_operand *got, const struct case_operand *want, char *why,
                size_t why_bytes);
// False, with a reason, when an element of a 16-bit output is further from the truth than that many
// roundings and float32 sums explain.
bool case_is_rounded(const struct case_operand *got, const struct case_operand *want, int times,
                     char *why, size_t why_bytes);
// False, with a reason, when the run changed an input, a gap between rows, or a neighbour of a
// view.
bool case_check_bounds(const struct case_run *r, char *why, size_t why_bytes);

#endif
