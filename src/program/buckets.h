// buckets.h - the buckets of buckets.c, for zero.c. Private to the two.
#ifndef HAGGLE_PROGRAM_BUCKETS_H
#define HAGGLE_PROGRAM_BUCKETS_H

#include "program/apply.h"

struct member {
    int weight;   // a root
    int chunk;    // of its first use
    int64_t at;   // first element in the bucket
    int64_t used; // elements without padding at its end
};

struct bucket {
    int chunk;
    int layer;              // ZeRO 3: the layer it is; -1: outside of layers
    bool late;              // its gradients are first summed over another group (tensor.shared)
    enum dtype type;        // of its weights
    struct member *members; // in their order in the bucket
    int n;
    int64_t elements; // with the gaps between weights
    int64_t padded;   // divisible by the number of replicas
    int first, last;  // ops of its chunk's backward that write its gradients
    int weights;      // ZeRO 1, 2: the root of its weights. ZeRO 3: of the own share. -1: none
    int gradient;     // the root of its gradients
    int sum;          // where sums go that do not stay in `gradient`; -1: there are none
};

struct buckets {
    struct program *p;
    const struct apply_ranks *r;
    struct bucket *list;
    int n;
    int replicas, me;
    int group; // the data axis
};

int64_t bucket_share(const struct buckets *b, const struct bucket *k); // elements of one rank
// Of what lies at [at, at + elements) in bucket k, this rank owns [*first, *first + *n).
void bucket_owned(const struct buckets *b, const struct bucket *k, int64_t at, int64_t elements,
                  int64_t *first, int64_t *n);

// zero.c: reads weights from windows that they are gathered into. Then only the own shares persist.
int zero_gather(struct buckets *b, const int *segments, int n_segments, struct err *e);

#endif
