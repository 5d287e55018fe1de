// mix.c - see mix.h.
#include "data/mix.h"

#include "base/checked.h"
#include "base/rng.h"

#include <stdlib.h>

static const uint64_t MIX_STREAM = 0x6d6978;          // "mix"; the round is added
static const uint64_t MIX_SPREAD = UINT64_C(1) << 40; // keeps the rounds away from other streams

int mix_open(struct mix *m, const uint64_t *weights, size_t n, uint64_t seed, struct err *e) {
    uint64_t sum = 0;
    *m = (struct mix){.n = n, .seed = seed};
    m->until = calloc(n > 0 ? n : 1, sizeof *m->until);
    if (m->until == NULL)
        return err_set(e, ERR_MEMORY, "data: no memory for %zu weights", n);
    for (size_t i = 0; i < n; i++) {
        if (weights[i] == 0 || !checked_add_u64(sum, weights[i], &sum))
            return err_set(e, ERR_USAGE, "data: the sum of the weights is too large");
        m->until[i] = sum;
    }
    return 0;
}

void mix_close(struct mix *m) {
    free(m->until);
    *m = (struct mix){0};
}

static uint64_t weight_of(const struct mix *m, size_t pool) {
    return m->until[pool] - (pool > 0 ? m->until[pool - 1] : 0);
}

void mix_find(const struct mix *m, uint64_t sample, size_t *pool, uint64_t *index) {
    if (m->n == 1) {
        *pool = 0;
        *index = sample;
        return;
    }
    const uint64_t sum = m->until[m->n - 1], round = sample / sum;
    const uint64_t place = rng_permute(m->seed, MIX_STREAM * MIX_SPREAD + round, sample % sum, sum);
    size_t low = 0, high = m->n - 1; // the first pool whose sum is above `place`
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (m->until[middle] > place)
            high = middle;
        else
            low = middle + 1;
    }
    const uint64_t weight = weight_of(m, low);
    *pool = low;
    *index = round * weight + (place - (m->until[low] - weight));
}

double mix_share(const struct mix *m, size_t pool) {
    return (double)weight_of(m, pool) / (double)m->until[m->n - 1];
}
