// dataset_files.c - turns files into pools of packed windows: shards, the split, packing.
//
//   text_list_open      finds the files and their pools
//   shard_obtain        gets each file's documents as tokens
//   make_spans          decides which documents train and which validate
//   pack_build          makes the windows
#include "data/dataset_impl.h"

#include "base/rng.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

static const uint64_t SPLIT_STREAM = 0x73706c6974; // "split"
// Number of corpus documents when a tokenizer other than bytes reads the corpus: about 6 MB of
// text.
enum { CORPUS_DOCUMENTS = 16384 };

// ---------------------------------------------------------------- shards

static int obtain(struct dataset *d, const struct dataset_options *o, struct source *s,
                  const struct shard_source *from, struct err *e) {
    const struct shard_options so = {.tokenizer = d->tokenizer,
                                     .renderer = d->renderer,
                                     .shape = o->shape,
                                     .bad = o->bad,
                                     .cache = o->cache,
                                     .threads = o->threads > 0 ? o->threads : 1,
                                     .listener = o->listener};
    return shard_obtain(&s->shard, from, &so, e);
}

static int add_sources(struct dataset *d, const struct dataset_options *o,
                       const struct text_list *list, bool validation, struct err *e) {
    const size_t pools = d->n_pools + list->n_pools, n = d->n_sources + list->n;
    struct source *sources = realloc(d->sources, n * sizeof *sources);
    if (sources != NULL)
        d->sources = sources;
    struct pool *p = realloc(d->pools, pools * sizeof *p);
    if (p != NULL)
        d->pools = p;
    if (sources == NULL || p == NULL || n > UINT32_MAX)
        return err_set(e, ERR_MEMORY, "data: no memory for %zu files", n);
    for (size_t i = 0; i < list->n_pools; i++)
        d->pools[d->n_pools + i] = (struct pool){.plain = true, .own_validation = validation};
    for (size_t i = 0; i < list->n; i++) {
        const struct text_file *f = &list->files[i];
        struct pool *pool = &d->pools[d->n_pools + f->pool];
        struct source *s = &d->sources[d->n_sources];
        *s = (struct source){.shard = {.fd = -1},
                             .path = strdup(f->path),
                             .records = f->records,
                             .pool = d->n_pools + f->pool};
        d->n_sources++;
        if (s->path == NULL)
            return err_set(e, ERR_MEMORY, "%s: no memory for its name", f->path);
        const struct shard_source from = {.path = f->path, .records = f->records};
        TRY(obtain(d, o, s, &from, e));
        if (pool->n++ == 0)
            pool->first = d->n_sources - 1;
        pool->plain = pool->plain && !f->records;
    }
    d->n_pools = pools;
    return 0;
}

static int add_paths(struct dataset *d, const struct dataset_options *o, const char *paths,
                     bool validation, struct err *e) {
    struct text_list list;
    int rc = text_list_open(&list, paths, o->shape != RENDER_AUTO, e);
    if (rc == 0)
        rc = add_sources(d, o, &list, validation, e);
    if (rc == 0 && !validation) {
        d->n_trained_pools = d->n_pools;
        rc = mix_open(&d->mix, list.weights, list.n_pools, d->seed, e);
    }
    text_list_close(&list);
    return rc;
}

static int add_corpus(struct dataset *d, const struct dataset_options *o, struct err *e) {
    static const uint64_t one = 1;
    const struct shard_source from = {.corpus_seed = d->seed, .corpus_documents = CORPUS_DOCUMENTS};
    d->sources = calloc(1, sizeof *d->sources);
    d->pools = calloc(1, sizeof *d->pools);
    if (d->sources == NULL || d->pools == NULL)
        return err_set(e, ERR_MEMORY, "data: no memory for the built-in corpus");
    d->sources[0] =
        (struct source){.shard = {.fd = -1}, .path = strdup("built-in corpus"), .records = true};
    d->pools[0] = (struct pool){.n = 1};
    d->n_sources = d->n_pools = d->n_trained_pools = 1;
    if (d->sources[0].path == NULL)
        return err_set(e, ERR_MEMORY, "data: no memory for the built-in corpus");
    TRY(obtain(d, o, &d->sources[0], &from, e));
    return mix_open(&d->mix, &one, 1, d->seed, e);
}

// ---------------------------------------------------------------- the split

static uint64_t trained_of(const void *arg, uint32_t shard, uint64_t at, uint64_t columns) {
    const struct dataset *d = arg;
    return shard_count_trained(&d->sources[shard].shard, at + 1, columns);
}

struct spans {
    struct pack_span *all;
    size_t n;
};

// Lists every document of the pool that has at least one column, in order.
static int list_documents(const struct dataset *d, const struct pool *p, struct spans *out,
                          struct err *e) {
    uint64_t count = 0;
    for (size_t i = 0; i < p->n; i++)
        count += d->sources[p->first + i].shard.counts.documents;
    *out = (struct spans){
        .all = count < SIZE_MAX / sizeof *out->all ? malloc((count + 1) * sizeof *out->all) : NULL};
    if (out->all == NULL)
        return err_set(e, ERR_MEMORY, "data: no memory for the index of %llu documents",
                       (unsigned long long)count);
    for (size_t i = 0; i < p->n; i++) {
        const struct shard *s = &d->sources[p->first + i].shard;
        const bool text = s->shape == RENDER_AUTO || (s->shape == RENDER_TEXT && !d->whole);
        for (uint64_t k = 0; k < s->counts.documents; k++)
            if (s->offsets[k + 1] - s->offsets[k] > 1)
                out->all[out->n++] =
                    (struct pack_span){.at = s->offsets[k],
                                       .columns = s->offsets[k + 1] - s->offsets[k] - 1,
                                       .shard = (uint32_t)(p->first + i),
                                       .splits = text};
    }
    return 0;
}

static const char *name_of(const struct dataset *d, const struct pool *p) {
    return p->n > 0 ? d->sources[p->first].path : "data";
}

// Finds how many columns at the end of all plain text are kept for validation. In a pool of plain
// text only, the count is rounded up to one window: five percent of a short text would be too few.
static int find_tail(const struct dataset *d, const struct pool *p, uint64_t total, uint64_t *kept,
                     struct err *e) {
    *kept = (uint64_t)(d->validation_fraction * (double)total);
    if (!p->plain)
        return 0;
    if (d->validation_fraction > 0 && *kept < d->seq)
        *kept = d->seq;
    const unsigned long long t = (unsigned long long)total, s = (unsigned long long)d->seq;
    if (total < d->seq)
        return err_set(e, ERR_USAGE,
                       "%s: has %llu tokens, fewer than one window of seq=%llu; give more text or "
                       "lower seq",
                       name_of(d, p), t, s);
    if (total - d->seq < *kept)
        return err_set(e, ERR_USAGE,
                       "%s: has %llu tokens, too few for one training and one validation window of "
                       "seq=%llu; give more text, lower seq or set data.val=0",
                       name_of(d, p), t, s);
    return 0;
}

static bool is_record(const struct dataset *d, const struct pack_span *x) {
    return d->sources[x->shard].records;
}

// The random draws decide, but each split gets at least one record: the one with the nearest draw.
struct draws {
    uint64_t stream;
    size_t useful, drawn; // records with a target; how many of these are drawn for validation
    size_t least_at, most_at;
    double least, most;
};

// A number in [0, 1). By text, it is the same for records with the same tokens.
static double draw_of(const struct dataset *d, const struct draws *w, const struct pack_span *x,
                      size_t i) {
    return d->by_text
               ? (double)(dataset_record_hash(&d->sources[x->shard].shard, x->at, x->columns + 1) >>
                          11) *
                     0x1p-53
               : rng_uniform(d->seed, w->stream, i);
}

static int draw_records(const struct dataset *d, const struct pool *p, const struct spans *s,
                        struct draws *out, struct err *e) {
    *out =
        (struct draws){.stream = SPLIT_STREAM + (uint64_t)(p - d->pools), .least = 2, .most = -1};
    for (size_t i = 0; i < s->n; i++) {
        const struct pack_span *x = &s->all[i];
        if (!is_record(d, x) || trained_of(d, x->shard, x->at, x->columns) == 0)
            continue;
        const double draw = draw_of(d, out, x, i);
        out->useful++;
        out->drawn += draw < d->validation_fraction;
        if (draw < out->least)
            out->least = draw, out->least_at = i;
        if (draw > out->most)
            out->most = draw, out->most_at = i;
    }
    if (d->by_text && out->useful > 0 && out->least == out->most)
        return err_set(e, ERR_USAGE,
                       "%s: all its records are equal, so none can be kept apart; give more data",
                       name_of(d, p));
    if (d->validation_fraction > 0 && out->useful == 1)
        return err_set(e, ERR_USAGE,
                       "%s: has 1 document to train on, too few to keep one for validation; give "
                       "more data, data.val_path, or set data.val=0",
                       name_of(d, p));
    return 0;
}

static bool validates(const struct dataset *d, const struct draws *w, const struct spans *s,
                      size_t i) {
    const double fraction = d->validation_fraction;
    if (fraction == 0)
        return false;
    const double draw = draw_of(d, w, &s->all[i], i);
    // By text, equal records have equal draws, and stay together.
    if (w->drawn == w->useful && (i == w->most_at || (d->by_text && draw == w->most)))
        return false;
    return draw < fraction ||
           (w->drawn == 0 && (i == w->least_at || (d->by_text && draw == w->least)));
}

// Clips a span with the columns [at, at + columns) to [begin, end). False: nothing is left.
static bool clip(struct pack_span *x, uint64_t at, uint64_t begin, uint64_t end) {
    const uint64_t from = at > begin ? at : begin;
    const uint64_t to = at + x->columns < end ? at + x->columns : end;
    if (from >= to)
        return false;
    x->at += from - at;
    x->columns = to - from;
    return true;
}

// Keeps what belongs to the split: records as drawn, plain text before the border (training) or
// after it (validation).
static int split_pool(const struct dataset *d, const struct pool *p, enum dataset_split split,
                      struct spans *s, struct err *e) {
    uint64_t total = 0, kept, at = 0;
    struct draws draws;
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++)
        total += is_record(d, &s->all[i]) ? 0 : s->all[i].columns;
    TRY(find_tail(d, p, total, &kept, e));
    TRY(draw_records(d, p, s, &draws, e));
    const uint64_t border = total - kept, begin = split == SPLIT_TRAIN ? 0 : border;
    const uint64_t end = split == SPLIT_TRAIN ? border : total;
    for (size_t i = 0; i < s->n; i++) {
        struct pack_span x = s->all[i];
        const uint64_t first = at;
        if (is_record(d, &x)) {
            if (validates(d, &draws, s, i) == (split == SPLIT_VALIDATION))
                s->all[n++] = x;
            continue;
        }
        at += x.columns;
        if (clip(&x, first, begin, end))
            s->all[n++] = x;
    }
    s->n = n;
    return 0;
}

static int make_spans(const struct dataset *d, const struct pool *p, enum dataset_split split,
                      struct spans *out, struct err *e) {
    TRY(list_documents(d, p, out, e));
    if (out->n == 0 && split == SPLIT_TRAIN)
        return err_set(e, ERR_USAGE, "%s: every document is empty", name_of(d, p));
    if (p->own_validation && split == SPLIT_TRAIN)
        out->n = 0;
    if (p->own_validation || out->n == 0)
        return 0;
    return split_pool(d, p, split, out, e);
}

// ---------------------------------------------------------------- packing

static int pack_pool(const struct dataset *d, const struct pool *p, enum dataset_split split,
                     enum data_pack mode, struct pack *out, struct err *e) {
    const struct pack_options o = {
        .seq = d->seq, .mode = mode, .long_ = d->long_, .trained = trained_of, .arg = d};
    struct spans spans = {0};
    *out = (struct pack){0};
    int rc = make_spans(d, p, split, &spans, e);
    if (rc == 0)
        rc = pack_build(out, spans.all, spans.n, &o, e);
    free(spans.all);
    return rc;
}

static int no_target(const struct dataset *d, const struct pool *p, enum dataset_split split,
                     struct err *e) {
    const struct pack_stats *s = &p->packs[split].stats;
    return err_set(
        e, ERR_USAGE,
        "%s: none of its %llu documents has a trained token in its first seq=%llu tokens; "
        "%llu are too long and dropped, %llu have no trained token at all. Raise seq, or "
        "inspect the data with 'haggle data'",
        name_of(d, p), (unsigned long long)s->spans, (unsigned long long)d->seq,
        (unsigned long long)s->dropped, (unsigned long long)s->untrained);
}

static int check_windows(const struct dataset *d, const struct pool *p, struct err *e) {
    return p->own_validation || p->packs[SPLIT_TRAIN].n_windows > 0
               ? 0
               : no_target(d, p, SPLIT_TRAIN, e);
}

static int pack_all(struct dataset *d, enum data_pack wanted, struct err *e) {
    for (size_t i = 0; i < d->n_pools; i++) {
        struct pool *p = &d->pools[i];
        p->mode = wanted != DATA_PACK_AUTO ? wanted
                  : p->plain               ? DATA_PACK_STREAM
                                           : DATA_PACK_BEST_FIT;
        for (int split = 0; split < SPLITS; split++) {
            TRY(pack_pool(d, p, (enum dataset_split)split, p->mode, &p->packs[split], e));
            d->windows[split] += p->packs[split].n_windows;
        }
        TRY(check_windows(d, p, e));
    }
    d->ordered_validation = d->n_pools == 1 && d->pools[0].mode == DATA_PACK_STREAM;
    return 0;
}

// ---------------------------------------------------------------- all

static int fingerprint(struct dataset *d, struct err *e) {
    struct hash *h = hash_new();
    if (h == NULL)
        return err_set(e, ERR_MEMORY, "data: no memory for a hash");
    for (size_t i = 0; i < d->n_sources; i++) {
        const struct source *s = &d->sources[i];
        const uint64_t pool = s->pool, until = pool < d->mix.n ? d->mix.until[pool] : 0;
        hash_add(h, s->shard.key, sizeof s->shard.key);
        hash_add(h, &pool, sizeof pool);
        hash_add(h, &until, sizeof until);
    }
    hash_text(h, d->fingerprint);
    hash_free(h);
    return 0;
}

static void describe(struct dataset *d) {
    char tokens[TEXT_UNIT_BYTES];
    uint64_t n = 0, trained = 0, documents = 0;
    const struct pack_stats s = dataset_stats(d, SPLIT_TRAIN);
    for (size_t i = 0; i < d->n_sources; i++) {
        n += d->sources[i].shard.counts.tokens;
        trained += d->sources[i].shard.counts.trained;
        documents += d->sources[i].shard.counts.documents;
    }
    snprintf(
        d->description, sizeof d->description,
        "%zu file%s, %llu document%s, %s tokens, %.1f %% trained; %llu + %llu windows, %.1f %% "
        "padding",
        d->n_sources, d->n_sources == 1 ? "" : "s", (unsigned long long)documents,
        documents == 1 ? "" : "s", text_count(tokens, (double)n),
        n > 0 ? 100 * (double)trained / (double)n : 0.0,
        (unsigned long long)d->windows[SPLIT_TRAIN],
        (unsigned long long)d->windows[SPLIT_VALIDATION],
        s.used + s.padding > 0 ? 100 * (double)s.padding / (double)(s.used + s.padding) : 0.0);
}

// Reports what is left out: a run must not silently train on less data than it was given.
static void say_losses(const struct dataset *d, const struct shard_listener *l) {
    struct pack_stats s = dataset_stats(d, SPLIT_TRAIN);
    char text[256];
    if (l->say == NULL)
        return;
    if (s.truncated > 0) {
        snprintf(text, sizeof text,
                 "data: %llu of %llu documents are longer than seq=%llu and truncated (data.long)",
                 (unsigned long long)s.truncated, (unsigned long long)s.spans,
                 (unsigned long long)d->seq);
        l->say(l->arg, LOG_WARN, text);
    }
    if (s.dropped + s.untrained + s.untrained_pieces > 0) {
        snprintf(text, sizeof text,
                 "data: left out %llu documents that are too long, and %llu documents or pieces "
                 "without a trained token",
                 (unsigned long long)s.dropped,
                 (unsigned long long)(s.untrained + s.untrained_pieces));
        l->say(l->arg, LOG_WARN, text);
    }
}

int dataset_open_files(struct dataset *d, const struct dataset_options *o, bool corpus,
                       struct err *e) {
    d->long_ = o->long_;
    d->whole = o->whole;
    d->by_text = o->by_text;
    d->validation_fraction = o->validation_fraction;
    d->pad_id = renderer_end_of_text(d->renderer);
    const bool own =
        !corpus && !o->whole && o->validation_paths != NULL && o->validation_paths[0] != '\0';
    if (own)
        d->validation_fraction = 0;
    TRY(corpus ? add_corpus(d, o, e) : add_paths(d, o, o->paths, o->whole, e));
    if (own)
        TRY(add_paths(d, o, o->validation_paths, true, e));
    if (d->pad_id < 0 || d->pad_id >= tokenizer_size(d->tokenizer))
        d->pad_id = 0;
    TRY(pack_all(d, o->pack, e));
    if (own && d->windows[SPLIT_VALIDATION] == 0)
        return err_set(e, ERR_USAGE, "data.val_path '%s' has no document with a trained token",
                       o->validation_paths);
    if (o->whole && d->windows[SPLIT_VALIDATION] == 0)
        return no_target(d, &d->pools[0], SPLIT_VALIDATION, e);
    for (size_t i = 0; i < d->n_sources; i++)
        shard_forget_pages(&d->sources[i].shard);
    describe(d);
    say_losses(d, &o->listener);
    return fingerprint(d, e);
}

void dataset_close_files(struct dataset *d) {
    for (size_t i = 0; i < d->n_sources; i++) {
        shard_close(&d->sources[i].shard);
        free(d->sources[i].path);
    }
    for (size_t i = 0; i < d->n_pools; i++)
        for (int split = 0; split < SPLITS; split++)
            pack_free(&d->pools[i].packs[split]);
    free(d->sources);
    free(d->pools);
    mix_close(&d->mix);
}

// ---------------------------------------------------------------- looking at it

size_t dataset_files(const struct dataset *d) {
    return d->n_sources;
}
const char *dataset_file_path(const struct dataset *d, size_t i) {
    return d->sources[i].path;
}
const struct shard *dataset_file_shard(const struct dataset *d, size_t i) {
    return &d->sources[i].shard;
}
double dataset_file_share(const struct dataset *d, size_t i) {
    const size_t pool = d->sources[i].pool;
    return pool < d->mix.n ? mix_share(&d->mix, pool) : 0;
}
bool dataset_file_validates(const struct dataset *d, size_t i) {
    return d->pools[d->sources[i].pool].own_validation;
}
enum data_pack dataset_pack_mode(const struct dataset *d, size_t file) {
    return d->pools[d->sources[file].pool].mode;
}

static void add_stats(struct pack_stats *sum, const struct pack_stats *s) {
    sum->spans += s->spans;
    sum->columns += s->columns;
    sum->trained += s->trained;
    sum->truncated += s->truncated;
    sum->cut_columns += s->cut_columns;
    sum->cut_trained += s->cut_trained;
    sum->dropped += s->dropped;
    sum->untrained += s->untrained;
    sum->untrained_pieces += s->untrained_pieces;
    sum->padding += s->padding;
    sum->used += s->used;
    sum->used_trained += s->used_trained;
}

struct pack_stats dataset_stats(const struct dataset *d, enum dataset_split split) {
    struct pack_stats sum = {0};
    for (size_t i = 0; i < d->n_pools; i++)
        add_stats(&sum, &d->pools[i].packs[split].stats);
    return sum;
}

int dataset_try_pack(const struct dataset *d, enum data_pack mode, struct pack_stats *stats,
                     uint64_t *windows, struct err *e) {
    *stats = (struct pack_stats){0};
    *windows = 0;
    for (size_t i = 0; i < d->n_trained_pools; i++) {
        struct pack p;
        int rc = pack_pool(d, &d->pools[i], SPLIT_TRAIN, mode, &p, e);
        if (rc == 0) {
            add_stats(stats, &p.stats);
            *windows += p.n_windows;
        }
        pack_free(&p);
        TRY(rc);
    }
    return 0;
}
