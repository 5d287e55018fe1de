// hash.h - fingerprints of data (XXH3, 128 bits) and CRC-32C (for TensorBoard files). The
// fingerprints detect damage. They do not resist an attacker.
#ifndef HAGGLE_BASE_HASH_H
#define HAGGLE_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

enum { HASH_TEXT_BYTES = 33 }; // 32 hex digits and NUL

struct hash;                 // streaming state
struct hash *hash_new(void); // NULL when out of memory
void hash_free(struct hash *h);
void hash_reset(struct hash *h);
void hash_add(struct hash *h, const void *data, size_t bytes);
void hash_text(const struct hash *h, char out[HASH_TEXT_BYTES]);
void hash_of(const void *data, size_t bytes, char out[HASH_TEXT_BYTES]);
uint64_t hash_u64(const void *data, size_t bytes); // XXH3, 64 bits, for hash tables and keys

uint32_t hash_crc32c(const void *data, size_t bytes);

#endif
