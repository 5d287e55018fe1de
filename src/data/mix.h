// mix.h - draws from several pools by weight, without state.
//
// Place: dataset.c asks which pool a sample comes from and which of the pool's samples it is.
//
// Samples are dealt in rounds. W is the sum of the weights, which are whole numbers. A round of W
// samples has exactly weight[p] samples of pool p, in an order drawn from (seed, round). Round r of
// pool p uses the pool's samples r * weight[p] + [0, weight[p]). So any sample is found by
// arithmetic, the shares are exact over every round, and each sample of a pool is used once before
// any is used again.
#ifndef HAGGLE_DATA_MIX_H
#define HAGGLE_DATA_MIX_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

struct mix {
    size_t n;
    uint64_t *until; // [n]: sums of the weights up to and including each
    uint64_t seed;
};

// weights: each above 0; their sum must fit (ERR_USAGE).
int mix_open(struct mix *m, const uint64_t *weights, size_t n, uint64_t seed, struct err *e);
void mix_close(struct mix *m);
void mix_find(const struct mix *m, uint64_t sample, size_t *pool, uint64_t *index);
double mix_share(const struct mix *m, size_t pool);

#endif
