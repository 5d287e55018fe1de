// rng.h - randomness without state: a value is a function of (seed, stream, index), so
// recomputation repeats it, any thread count gives the same numbers, and a checkpoint needs to
// store nothing but counters.
#ifndef HAGGLE_BASE_RNG_H
#define HAGGLE_BASE_RNG_H

#include <stddef.h>
#include <stdint.h>

// Streams keep uses apart: init of tensor i, shuffle of epoch n, ... Names of streams are hashed by
// the caller.
uint64_t rng_u64(uint64_t seed, uint64_t stream,
                 uint64_t index); // Philox 4x32-10 (Salmon et al., SC'11)
double rng_uniform(uint64_t seed, uint64_t stream, uint64_t index); // [0, 1), 53 bits
double rng_normal(uint64_t seed, uint64_t stream,
                  uint64_t index); // Box-Muller on two draws of the same counter
uint64_t rng_below(uint64_t seed, uint64_t stream, uint64_t index,
                   uint64_t n); // [0, n), n > 0, unbiased enough (128-bit multiply)
// A keyed permutation of [0, n): element i of the shuffle, without storing it (cycle-walking
// Feistel network).
uint64_t rng_permute(uint64_t seed, uint64_t stream, uint64_t i, uint64_t n);

#endif
