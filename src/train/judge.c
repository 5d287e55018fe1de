// judge.c - see judge.h.
#include "train/judge.h"

#include <math.h>

// The level is known after so many losses, and is a mean over about so many.
enum { LEVEL_FIRST = 16, LEVEL_STEPS = 32 };
// The count that ends a run, and what a loss that is not high takes back.
enum { HIGH_MOST = 100, HIGH_BACK = 2 };
static const double OUTLIER = 1, ABOVE_BEGIN = 2, ABOVE_LOW = 3;

bool best_see(struct best_eval *b, int64_t step, double loss) {
    if (isfinite(loss) && (b->step == 0 || loss < b->loss)) {
        *b = (struct best_eval){.loss = loss, .step = step};
        return true;
    }
    b->waited++;
    return false;
}

double loss_watch_limit(const struct loss_watch *w) {
    return w->seen == 0            ? INFINITY
           : w->seen < LEVEL_FIRST ? w->level + ABOVE_LOW
                                   : fmin(w->began + ABOVE_BEGIN, w->low + ABOVE_LOW);
}

bool loss_watch_diverged(const struct loss_watch *w) {
    return w->high >= HIGH_MOST;
}

static void count(struct loss_watch *w, int64_t step, bool high) {
    if (high && w->high == 0)
        w->since = step;
    w->high += high ? 1 : -HIGH_BACK;
    w->high = w->high < 0 ? 0 : w->high > HIGH_MOST ? HIGH_MOST : w->high;
}

void loss_watch_see(struct loss_watch *w, int64_t step, double loss) {
    if (!isfinite(loss))
        return;
    count(w, step, loss > loss_watch_limit(w));
    if (w->seen == 0)
        w->level = loss;
    w->seen++;
    const double over = (double)(w->seen < LEVEL_STEPS ? w->seen : LEVEL_STEPS);
    w->level += fmax(-OUTLIER, fmin(OUTLIER, loss - w->level)) / over;
    if (w->seen == LEVEL_FIRST)
        w->began = w->low = w->level;
    if (w->seen > LEVEL_FIRST)
        w->low = fmin(w->low, w->level);
}
