// hash.c - fingerprints of data: XXH3 (128 and 64 bits) and CRC-32C.
//
// The 128-bit text is the canonical (big-endian) form. `xxh128sum FILE` prints the same digits, so
// a checkpoint can be checked without this program.
#include "base/hash.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

struct hash {
    XXH3_state_t state;
};

struct hash *hash_new(void) {
    // The state holds vectors and must be 64-byte aligned, which malloc does not guarantee.
    struct hash *h = aligned_alloc(_Alignof(struct hash), sizeof(struct hash));
    if (!h)
        return NULL;
    XXH3_INITSTATE(&h->state);
    hash_reset(h);
    return h;
}

void hash_free(struct hash *h) {
    free(h);
}

// XXH3 reset, update and digest fail only on NULL pointers, which cannot occur here.
void hash_reset(struct hash *h) {
    XXH3_128bits_reset(&h->state);
}

void hash_add(struct hash *h, const void *data, size_t bytes) {
    if (bytes)
        XXH3_128bits_update(&h->state, data, bytes);
}

static void write_text(XXH128_hash_t x, char out[HASH_TEXT_BYTES]) {
    snprintf(out, HASH_TEXT_BYTES, "%016" PRIx64 "%016" PRIx64, (uint64_t)x.high64,
             (uint64_t)x.low64);
}

void hash_text(const struct hash *h, char out[HASH_TEXT_BYTES]) {
    write_text(XXH3_128bits_digest(&h->state), out);
}

void hash_of(const void *data, size_t bytes, char out[HASH_TEXT_BYTES]) {
    write_text(XXH3_128bits(bytes ? data : "", bytes), out);
}

uint64_t hash_u64(const void *data, size_t bytes) {
    return XXH3_64bits(bytes ? data : "", bytes);
}

// CRC-32C (Castagnoli, reflected polynomial 0x82F63B78), four bits at a time: entry i of the table
// is the remainder of i. It is used for event files with a few bytes per record, where a larger
// table would only use up cache.
uint32_t hash_crc32c(const void *data, size_t bytes) {
    static const uint32_t table[16] = {
        0x00000000, 0x105EC76F, 0x20BD8EDE, 0x30E349B1, 0x417B1DBC, 0x5125DAD3,
        0x61C69362, 0x7198540D, 0x82F63B78, 0x92A8FC17, 0xA24BB5A6, 0xB21572C9,
        0xC38D26C4, 0xD3D3E1AB, 0xE330A81A, 0xF36E6F75,
    };
    const unsigned char *p = data;
    uint32_t crc = 0xFFFFFFFFu;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= p[i];
        crc = crc >> 4 ^ table[crc & 15];
        crc = crc >> 4 ^ table[crc & 15];
    }
    return ~crc;
}
