// dataset_records.c - which records are equal: the hash that divides them by text, and records that
// two datasets share.
#include "data/dataset_impl.h"

#include <stdlib.h>

// Ids of both widths have one hash. The mixing is that of SplitMix64.
uint64_t dataset_record_hash(const struct shard *s, uint64_t at, uint64_t tokens) {
    uint64_t h = tokens;
    for (uint64_t i = at; i < at + tokens; i++) {
        h ^= (uint64_t)(uint32_t)shard_id(s, i) << 1 | shard_is_trained(s, i);
        h = (h + UINT64_C(0x9e3779b97f4a7c15)) * UINT64_C(0xbf58476d1ce4e5b9);
        h ^= h >> 27;
    }
    h *= UINT64_C(0x94d049bb133111eb);
    return h ^ h >> 31;
}

static bool has_records(const struct dataset *d, size_t file) {
    return d->sources[file].shard.shape != RENDER_AUTO;
}

static uint64_t hash_at(const struct shard *s, uint64_t document) {
    return dataset_record_hash(s, s->offsets[document],
                               s->offsets[document + 1] - s->offsets[document]);
}

static int by_value(const void *x, const void *y) {
    const uint64_t a = *(const uint64_t *)x, b = *(const uint64_t *)y;
    return a < b ? -1 : a > b;
}

int dataset_shared(const struct dataset *a, const struct dataset *b, bool *found, size_t *file,
                   uint64_t *document, struct err *e) {
    uint64_t n = 0;
    *found = false;
    for (size_t i = 0; i < a->n_sources; i++)
        n += has_records(a, i) ? a->sources[i].shard.counts.documents : 0;
    uint64_t *known = malloc(((size_t)n + 1) * sizeof *known), at = 0;
    if (known == NULL)
        return err_set(e, ERR_MEMORY, "data: no memory to compare %llu records",
                       (unsigned long long)n);
    for (size_t i = 0; i < a->n_sources; i++)
        for (uint64_t k = 0; has_records(a, i) && k < a->sources[i].shard.counts.documents; k++)
            known[at++] = hash_at(&a->sources[i].shard, k);
    qsort(known, (size_t)n, sizeof *known, by_value);
    for (size_t i = 0; i < b->n_sources && !*found; i++)
        for (uint64_t k = 0; has_records(b, i) && k < b->sources[i].shard.counts.documents; k++) {
            const uint64_t h = hash_at(&b->sources[i].shard, k);
            if (bsearch(&h, known, (size_t)n, sizeof *known, by_value) == NULL)
                continue;
            *found = true, *file = i, *document = k;
            break;
        }
    free(known);
    return 0;
}
