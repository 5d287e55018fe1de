// rng.c - randomness without state: Philox 4x32-10 and what is drawn from it.
//
// J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC'11,
// section 3.2: ten rounds of two 32x32->64 bit products each. Between rounds, Weyl constants are
// added to the key. Here the counter is (index, stream) and the key is the seed. These mappings
// must not change: a resumed run would then draw other numbers than the run that wrote its
// checkpoint.
#include "base/rng.h"

#include <math.h>

static const uint32_t MULTIPLIER_0 = 0xD2511F53, MULTIPLIER_1 = 0xCD9E8D57;
static const uint32_t WEYL_0 = 0x9E3779B9, WEYL_1 = 0xBB67AE85; // golden ratio, sqrt(3) - 1
enum { PHILOX_ROUNDS = 10, FEISTEL_ROUNDS = 8 };

static void philox(uint64_t seed, uint64_t stream, uint64_t index, uint32_t out[4]) {
    uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32);
    uint32_t c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int i = 0; i < PHILOX_ROUNDS; i++) {
        uint64_t p0 = (uint64_t)MULTIPLIER_0 * c0, p1 = (uint64_t)MULTIPLIER_1 * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += WEYL_0;
        k1 += WEYL_1;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

static uint64_t join(uint32_t low, uint32_t high) {
    return (uint64_t)high << 32 | low;
}
static double unit_of(uint64_t x) {
    return (double)(x >> 11) * 0x1p-53;
}

uint64_t rng_u64(uint64_t seed, uint64_t stream, uint64_t index) {
    uint32_t w[4];
    philox(seed, stream, index, w);
    return join(w[0], w[1]);
}

double rng_uniform(uint64_t seed, uint64_t stream, uint64_t index) {
    return unit_of(rng_u64(seed, stream, index));
}

double rng_normal(uint64_t seed, uint64_t stream, uint64_t index) {
    uint32_t w[4];
    philox(seed, stream, index, w);
    // u is in (0, 1], because the logarithm of 0 must not occur.
    double u = unit_of(join(w[0], w[1])) + 0x1p-53;
    double v = unit_of(join(w[2], w[3]));
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586476925 * v);
}

uint64_t rng_below(uint64_t seed, uint64_t stream, uint64_t index, uint64_t n) {
    return (uint64_t)((unsigned __int128)rng_u64(seed, stream, index) * n >> 64);
}

// The finalizer of SplitMix64 (Steele, Lea, Flood, OOPSLA'14): every output bit depends on every
// input bit.
static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 31;
}

uint64_t rng_permute(uint64_t seed, uint64_t stream, uint64_t i, uint64_t n) {
    if (n < 2)
        return 0;
    i %= n; // a walk that starts outside [0, n) might never enter it
    // Two halves of `half` bits make a domain of at most 4n values. A walk therefore takes at most
    // four steps on average.
    int half = 1;
    while (half < 32 && (n - 1) >> (2 * half))
        half++;
    const uint64_t mask = (UINT64_C(1) << half) - 1;
    uint64_t keys[FEISTEL_ROUNDS];
    for (uint64_t k = 0; k < FEISTEL_ROUNDS; k += 2) {
        uint32_t w[4];
        // The keys use the top of the counter space, so that they share no block with other draws
        // of the same stream.
        philox(seed, stream, ~k, w);
        keys[k] = join(w[0], w[1]);
        keys[k + 1] = join(w[2], w[3]);
    }
    uint64_t x = i;
    do {
        uint64_t left = x >> half, right = x & mask;
        for (int round = 0; round < FEISTEL_ROUNDS; round++) {
            uint64_t next = left ^ (mix(right + keys[round]) >> 32 & mask);
            left = right;
            right = next;
        }
        x = left << half | right;
    } while (x >= n);
    return x;
}
