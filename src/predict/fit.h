// fit.h - what to change so that a run fits its memory: the cheapest changes of its knobs, each planned
// and predicted, none guessed.
//
// Place: a run that was refused for memory (train/) is planned again here with other values of the
// knobs that change memory; what fits is ordered by the predicted time of a step. Nothing is taken,
// run or written.
//
// Invariants: tokens per step, model, data and learning schedule stay as they are. A change that
// alters the numbers trained otherwise (an element type) says so.
#ifndef HAGGLE_PREDICT_FIT_H
#define HAGGLE_PREDICT_FIT_H

#include "hw/hw.h"
#include "train/trainer.h"

// A process is not the same to the byte twice: what is advised leaves this much of the budget.
enum { FIT_CHANGES = 3, FIT_TEXT_BYTES = 160, FIT_MARGIN_BYTES = 1 << 20 };

struct fit_change {
    struct knobs knobs;
    char text[FIT_TEXT_BYTES]; // "recompute.mode=full logits.chunk=64"
    uint64_t bytes;            // as session_memory's need
    double seconds;            // of a step, predicted
    bool math;                 // trains other numbers
    int knobs_changed;         // batch.micro with batch.accum is one
};

struct fit {
    uint64_t need, have;
    double seconds; // of a step as it was asked for
    struct fit_change changes[FIT_CHANGES];
    int n;
    struct fit_change least; // the fewest bytes that were found
    int planned;             // settings that were looked at
};

// t's session is planned and its backend open (trainer_ready). One change of a knob is preferred; where
// fewer than three of those fit, two and then three together are tried. Takes about a second.
int fit_find(const struct trainer *t, const struct hw_device *device, struct fit *out,
             struct err *e);
// Half a sentence for the refusal: "It would fit with ... (5.10 GiB, step +3 %), ..."; returns out.
enum { FIT_SENTENCE_BYTES = 640 };
const char *fit_sentence(const struct fit *f, char out[FIT_SENTENCE_BYTES]);
// What to predict with where nothing was measured: only ratios of its times mean anything.
struct hw_device fit_nominal_device(bool gpu);

#endif
