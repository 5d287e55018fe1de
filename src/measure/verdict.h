// verdict.h - one sentence about a run: where its time went, and the first knob to try. For a run
// on a device it also says how far each part is from the best rate measured there.
//
// Place: train and bench print it after the split. tune reads `knob` as its first move.
//
// Invariants: the sentence states only measured numbers. The advice comes from one table
// (verdict.c) whose rows say when they apply. The first row that applies wins. If no knob helps,
// the sentence says so.
#ifndef HAGGLE_MEASURE_VERDICT_H
#define HAGGLE_MEASURE_VERDICT_H

#include "measure/trace.h"

#include <stdbool.h>

// What the rules look at besides the split. 0 or NULL means not known: rules that need it do not
// apply.
struct verdict_facts {
    double matmul_flops_per_s;      // measured, over the matmul part
    double best_matmul_flops_per_s; // of a large matmul with all the CPUs
    double other_bytes_per_s;       // measured, over the other part (fewest bytes / time)
    double best_bytes_per_s;        // of a stream copy
    double matmul_flops_per_byte;   // of the matmul part, with the fewest bytes
    int threads, cpus;              // threads used; CPUs that may be used
    int64_t batch_micro, micro_batches, seq;
    double logits_of_matmul; // the logits' share of the FLOPs of the matmul part
    double logits_of_other;  // the logits' share of the bytes of the other part
    int64_t logits_chunk;
    int data_workers, data_prefetch; // prefetch counts only if workers is not 0
    uint64_t data_make_ns;           // time that workers took to make the batches
    uint64_t data_source_wait_ns;    // part of it that they waited for data.source_rate
    bool data_repeats;               // windows that data.ram does not hold are used more than once
    int replicas, tensor;            // ranks that sum gradients; that share every layer
    // Of a run on a device, to which another table of rules applies.
    bool device, graphs;
    double attention_flops_per_s; // over the attention part
    double best_attention_flops_per_s;
    double optimizer_bytes_per_s; // over the optimizer part (fewest bytes / time)
    double best_bf16_flops_per_s; // of a large matmul in bf16, for a run in fp32
    double launch_of_step;        // to launch each op by itself, as a fraction of the step
    double order_of_step;         // what a fixed order of all sums costs, in the same way
    bool documents;               // attention is given document boundaries
};

enum { VERDICT_TEXT_BYTES = 512 };

struct verdict {
    enum time_part dominant;
    // "compute", "memory bandwidth", "data", "optimizer", "host" or "communication"; "": nothing
    // was measured
    const char *bound;
    double fraction;  // of wall time that went to `dominant`
    const char *knob; // the first knob to try, such as "batch.micro"; NULL: none would help
    const char *why;  // what that knob is expected to do
    char text[VERDICT_TEXT_BYTES];
    size_t advice_at; // where the advice begins in text, with its separator
};

// Never fails. Without steps the text says that nothing was measured.
void verdict_of(struct verdict *out, const struct time_split *split,
                const struct verdict_facts *facts);

#endif
