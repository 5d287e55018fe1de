// figures.c - see figures.h.
#include "data/figures.h"

#include "base/clock.h"
#include "data/loader.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

// Long enough for a steady figure, short enough not to be waited for.
static const double LOADER_SECONDS = 0.1;

double figures_share(uint64_t part, uint64_t of) {
    return of > 0 ? (double)part / (double)of : 0;
}

static int compare_u64(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void add_counts(struct data_figures *f, const struct shard *s) {
    f->all.documents += s->counts.documents;
    f->all.tokens += s->counts.tokens;
    f->all.trained += s->counts.trained;
    f->all.end_trained += s->counts.end_trained;
    f->all.untrained += s->counts.untrained;
    f->all.source_bytes += s->counts.source_bytes;
    f->all.bad += s->counts.bad;
    f->all_seconds += s->seconds;
    if (s->reused)
        return;
    f->made_tokens += s->counts.tokens;
    f->made_bytes += s->counts.source_bytes;
    f->made_seconds += s->seconds;
}

static int bucket_of(uint64_t tokens) {
    int b = 0;
    while (b < FIGURES_BUCKETS - 1 && UINT64_C(1) << b < tokens)
        b++;
    return b;
}

// Nearest rank, as everywhere in this program.
static uint64_t rank_of(const uint64_t *sorted, uint64_t n, double p) {
    uint64_t rank = (uint64_t)ceil(p * (double)n);
    return sorted[rank > 0 ? rank - 1 : 0];
}

static int measure_lengths(const struct dataset *d, struct data_figures *f, struct err *e) {
    uint64_t n = 0, *lengths = malloc((f->all.documents + 1) * sizeof *lengths);
    if (lengths == NULL)
        return err_set(e, ERR_MEMORY, "out of memory for the lengths of %" PRIu64 " documents",
                       f->all.documents);
    for (size_t i = 0; i < dataset_files(d); i++) {
        const struct shard *s = dataset_file_shard(d, i);
        for (uint64_t k = 0; k < s->counts.documents; k++) {
            lengths[n] = s->offsets[k + 1] - s->offsets[k];
            f->histogram[bucket_of(lengths[n++])]++;
        }
    }
    qsort(lengths, (size_t)n, sizeof *lengths, compare_u64);
    if (n > 0) {
        f->least = lengths[0];
        f->p50 = rank_of(lengths, n, 0.50);
        f->p95 = rank_of(lengths, n, 0.95);
        f->p99 = rank_of(lengths, n, 0.99);
        f->most = lengths[n - 1];
    }
    free(lengths);
    return 0;
}

static int measure_packing(const struct dataset *d, struct data_figures *f, struct err *e) {
    static const enum data_pack modes[FIGURES_MODES] = {DATA_PACK_BEST_FIT, DATA_PACK_STREAM,
                                                        DATA_PACK_NONE};
    for (int i = 0; i < FIGURES_MODES; i++) {
        struct pack_stats s;
        uint64_t windows;
        TRY(dataset_try_pack(d, modes[i], &s, &windows, e));
        f->modes[i].mode = modes[i];
        f->modes[i].windows = windows;
        f->modes[i].padding = figures_share(s.padding, s.padding + s.used);
    }
    return 0;
}

// Windows made one after the other by one thread, as a worker of the loader makes them.
static int measure_loader(const struct dataset *d, int64_t seq, struct data_figures *f,
                          struct err *e) {
    struct mem *mem;
    struct loader *l = NULL;
    TRY(mem_open(&mem, e));
    const struct loader_options o = {.dataset = d, .batch = 1, .micro_batches = 1, .replicas = 1};
    int rc = loader_open(&l, &o, mem, e);
    const uint64_t begin = clock_ns();
    uint64_t tokens = 0;
    double seconds = 0;
    while (rc == 0 && seconds < LOADER_SECONDS) {
        struct loader_batch b;
        rc = loader_next(l, &b, e);
        if (rc == 0)
            loader_release(l);
        tokens += (uint64_t)seq;
        seconds = 1e-9 * (double)(clock_ns() - begin);
    }
    loader_close(l);
    mem_close(mem);
    f->loader_tokens_per_s = seconds > 0 ? (double)tokens / seconds : 0;
    return rc;
}

int figures_measure(struct data_figures *f, const struct dataset *d, int64_t seq, struct err *e) {
    *f = (struct data_figures){0};
    for (size_t i = 0; i < dataset_files(d); i++)
        add_counts(f, dataset_file_shard(d, i));
    f->train = dataset_stats(d, SPLIT_TRAIN);
    f->cut_documents = f->train.truncated + dataset_stats(d, SPLIT_VALIDATION).truncated;
    for (int i = 0; i < SPLITS; i++)
        f->windows[i] = dataset_windows(d, (enum dataset_split)i);
    TRY(measure_lengths(d, f, e));
    TRY(measure_packing(d, f, e));
    return measure_loader(d, seq, f, e);
}
