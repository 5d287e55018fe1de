// judge.h - what the losses of a run say about it: which validation was the best, and whether the
// run has diverged.
//
// Place: trainer_care.c asks after each step and each validation. The state is part of the
// checkpoint (manifest.h), so a resumed run decides as one that was never interrupted. Everything
// here is plain arithmetic on losses that all ranks share, so all ranks decide alike.
#ifndef HAGGLE_TRAIN_JUDGE_H
#define HAGGLE_TRAIN_JUDGE_H

#include <stdbool.h>
#include <stdint.h>

// ---------------------------------------------------------------- validations

struct best_eval {
    double loss;    // the lowest so far
    int64_t step;   // where it was; 0: there was none
    int64_t waited; // validations since then
    bool kept;      // its weights stay on disk (save.best)
};

// Takes a validation. True if it is the best so far. A loss that is not finite never is.
bool best_see(struct best_eval *b, int64_t step, double loss);

// ---------------------------------------------------------------- steps

// Whether the losses of training steps are far above where they were. It is made to miss a slow
// divergence rather than to stop a sound run:
//   - The level of the losses is a mean over about 32 steps to which no step contributes more than
//     1 above or below it. So a few outliers do not move it.
//   - A loss is high when it is more than 2 above the level of the first 16 steps, or more than 3
//     above the lowest level since. In nats: 7 or 20 times the perplexity. In the first 16 steps
//     it is high when it is more than 3 above the level so far.
//   - A high loss counts 1, any other takes back 2. At 100 the run has diverged. So two of three
//     losses must be high, for at least 100 steps. A spike that recovers, a step with hard
//     documents and a warm-up with a hump do not do that.
struct loss_watch {
    double began;  // level of the first steps
    double low;    // lowest level since
    double level;  // now
    int64_t seen;  // losses so far
    int64_t high;  // count of high losses, 0 to 100; 0: nothing looks bad
    int64_t since; // step at which the count left 0
};

// Takes the loss of a step. One that is not finite is passed over.
void loss_watch_see(struct loss_watch *w, int64_t step, double loss);
double loss_watch_limit(const struct loss_watch *w); // a loss above is high; INFINITY: no loss yet
bool loss_watch_diverged(const struct loss_watch *w);

#endif
