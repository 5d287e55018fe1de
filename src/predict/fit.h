// fit.h - finds the cheapest changes of knobs that make a run fit its memory. Each is planned and
// predicted, none is guessed.
//
// Place: when a run was refused for memory, this plans it again with other values of the knobs that
// change memory. Those that fit are ordered by the predicted time of a step. No memory is taken,
// and nothing is run or written.
//
// Invariants: tokens per step, model, data and learning schedule stay as they are. A change that
// alters the training results in another way (an element type) is marked (fit_change.math).
#ifndef HAGGLE_PREDICT_FIT_H
#define HAGGLE_PREDICT_FIT_H

#include "hw/hw.h"
#include "plan/plan.h"

// FIT_MARGIN_BYTES: two processes never take exactly the same memory, so advice leaves this much of
// the budget free.
enum { FIT_CHANGES = 3, FIT_TEXT_BYTES = 160, FIT_MARGIN_BYTES = 1 << 20 };

struct fit_change {
    struct knobs knobs;
    char text[FIT_TEXT_BYTES]; // "recompute.mode=full logits.chunk=64"
    uint64_t bytes;            // as plan_need_bytes
    double seconds;            // of a step, predicted
    bool math;                 // changes the training results
    int knobs_changed;         // batch.micro with batch.accum counts as one
};

struct fit {
    uint64_t need, have;
    double seconds; // predicted step of the run as requested
    struct fit_change changes[FIT_CHANGES];
    int n;
    struct fit_change least; // the setting with the fewest bytes
    // Bytes that no setting avoids: the weights in fp32 (or their fp32 masters), of both models.
    // Frozen weights have no masters and may have 16 bits.
    // When they are more than `have`, no other setting is tried.
    uint64_t weights;
    uint64_t parameters;
    int64_t seq; // `least` fits with this shorter seq; -1: with none; 0: not tried
    int planned; // settings that were planned
    // The run with an adapter (lora.rank) instead: the first setting that fits, or the smallest.
    // bytes 0: not tried, because the run has one or cannot.
    struct fit_change adapter;
};

struct fit_question {
    // The run as requested, with its process measured. Of several ranks, the one that needs most.
    const struct plan *plan;
    uint64_t have_bytes;
    bool on_device;
    unsigned types;                 // element types of the backend: bits 1 << dtype
    const struct hw_device *device; // steps are predicted for this one
    // Sets the bytes that another plan takes on the host (plan_set_host), as was done for `plan`.
    int (*count)(void *arg, struct plan *p, struct err *e);
    void *count_arg;
};

// If the weights alone are too large, nothing is searched. A change of one knob is preferred. If
// fewer than three of those fit, changes of two and then three knobs are tried, and at last a
// shorter seq. Takes about a second.
int fit_find(const struct fit_question *q, struct fit *out, struct err *e);
// Text for the refusal: "It would fit with ... (5.10 GiB, step +3 %), ...". Returns out.
enum { FIT_SENTENCE_BYTES = 768 };
const char *fit_sentence(const struct fit *f, char out[FIT_SENTENCE_BYTES]);

#endif
