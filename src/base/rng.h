// rng.h - randomness without state: a value is a function of (seed, stream, index). Recomputation
// therefore repeats it, any number of threads gives the same numbers, and a checkpoint stores only
// counters.
#ifndef HAGGLE_BASE_RNG_H
#define HAGGLE_BASE_RNG_H

#include <stddef.h>
#include <stdint.h>

// Each use has a separate stream: the initial values of tensor i, the shuffle of epoch n, ... The
// caller hashes the name of the use to get the stream. The generator is Philox 4x32-10 (Salmon et
// al., SC'11).
uint64_t rng_u64(uint64_t seed, uint64_t stream, uint64_t index);
double rng_uniform(uint64_t seed, uint64_t stream, uint64_t index); // [0, 1), 53 bits
// Standard normal: Box-Muller on the two draws of one counter.
double rng_normal(uint64_t seed, uint64_t stream, uint64_t index);
// [0, n) for n > 0, by a 128-bit multiplication. The bias is negligible.
uint64_t rng_below(uint64_t seed, uint64_t stream, uint64_t index, uint64_t n);
// A keyed permutation of [0, n): element i of a shuffle, without storing the shuffle (cycle-walking
// Feistel network).
uint64_t rng_permute(uint64_t seed, uint64_t stream, uint64_t i, uint64_t n);

#endif
