// dataset.c - windows of tokens: the arithmetic of samples, epochs and pools, and the corpus.
//
// The corpus in bytes is a stream  EOT d0 EOT d1 EOT d2 ...  of token ids. END_OF_TEXT opens a
// document and is also the target of the last byte of the document before. So the targets are the
// stream shifted by one, and a document begins wherever END_OF_TEXT stands.
//
// The length of a document is known only after making it. Therefore the stream is cut into blocks
// of whole windows, and each block starts with a new document. Window i needs one block, which a
// reader keeps in its scratch memory while it moves on. The last document of a block is cut short.
#include "data/dataset.h"
#include "data/dataset_impl.h"

#include "base/rng.h"
#include "data/bytes.h"
#include "data/corpus.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t SHUFFLE_STREAM = 0x73687566666c65;        // "shuffle"; the epoch is added
static const uint64_t POOL_STREAMS = UINT64_C(1) << 57;         // this is added for each pool
static const uint64_t VALIDATION_STREAM = 0x76616c;             // "val"
static const uint64_t VALIDATION_DOCUMENTS = UINT64_C(1) << 63; // corpus: its first document

// 64 KiB of ids: fits a core's L2 cache, and the one cut document is a fraction of a percent.
enum { BLOCK_TOKENS = 16384 };
static const int64_t SEQ_MAX = 1 << 24;

struct scratch { // scratch memory of a corpus reader
    uint64_t block;
    int split;     // -1: no block yet
    int32_t ids[]; // [block_windows * T + 1]
};

// ---------------------------------------------------------------- opening

static void open_corpus(struct dataset *d) {
    d->block_windows = d->seq < BLOCK_TOKENS ? BLOCK_TOKENS / d->seq : 1;
    // Enough documents to fill a block and its last target even if all have the shortest length.
    d->block_documents = d->block_windows * d->seq / (CORPUS_MIN_BYTES + 1) + 1;
    snprintf(d->description, sizeof d->description, "built-in corpus, seed %llu",
             (unsigned long long)d->seed);
    char identity[64];
    int n = snprintf(identity, sizeof identity, "haggle corpus %d seed %llu", CORPUS_VERSION,
                     (unsigned long long)d->seed);
    hash_of(identity, (size_t)n, d->fingerprint);
}

static int open_bytes(struct dataset *d, const struct dataset_options *o, struct err *e) {
    TRY(tokenizer_open_bytes(&d->own_tokenizer, e));
    const struct render_options r = {.tokenizer = d->own_tokenizer,
                                     .chat_template = "auto",
                                     .shape = o->shape,
                                     .loss = RENDER_LOSS_COMPLETION,
                                     .begin_with_end = true};
    TRY(renderer_open(&d->own_renderer, &r, e));
    d->tokenizer = d->own_tokenizer;
    d->renderer = d->own_renderer;
    return 0;
}

static int open_data(struct dataset *d, const struct dataset_options *o, struct err *e) {
    const bool corpus =
        o->paths == NULL || o->paths[0] == '\0' || strcmp(o->paths, DATASET_SYNTHETIC) == 0;
    d->tokenizer = o->tokenizer;
    d->renderer = o->renderer;
    if (o->tokenizer == NULL && corpus) {
        d->synthetic = true;
        open_corpus(d);
        return 0;
    }
    if (o->tokenizer == NULL)
        TRY(open_bytes(d, o, e));
    return dataset_open_files(d, o, corpus, e);
}

int dataset_open(struct dataset **out, const struct dataset_options *o, struct err *e) {
    *out = NULL;
    if ((o->whole || o->by_text) &&
        (o->paths == NULL || o->paths[0] == '\0' || strcmp(o->paths, DATASET_SYNTHETIC) == 0))
        return err_set(e, ERR_USAGE,
                       "the built-in corpus has no end and no files; accepted: a .txt, a .jsonl or "
                       "a folder of them");
    if (o->seq < 1 || o->seq > SEQ_MAX)
        return err_set(e, ERR_USAGE, "data: seq=%lld is not accepted; accepted: 1 to %lld",
                       (long long)o->seq, (long long)SEQ_MAX);
    if (!(o->validation_fraction >= 0 && o->validation_fraction <= 0.5))
        return err_set(e, ERR_USAGE, "data: data.val=%g is not accepted; accepted: 0 to 0.5",
                       o->validation_fraction);
    struct dataset *d = calloc(1, sizeof *d);
    if (d == NULL)
        return err_set(e, ERR_MEMORY, "data: no memory to open a dataset");
    d->seed = o->seed;
    d->seq = (uint64_t)o->seq;
    int rc = open_data(d, o, e);
    if (rc != 0) {
        dataset_close(d);
        return rc;
    }
    *out = d;
    return 0;
}

void dataset_close(struct dataset *d) {
    if (d == NULL)
        return;
    dataset_close_files(d);
    if (d->own_renderer != NULL)
        renderer_close(d->own_renderer);
    tokenizer_close(d->own_tokenizer);
    free(d);
}

int64_t dataset_seq(const struct dataset *d) {
    return (int64_t)d->seq;
}
int32_t dataset_vocab(const struct dataset *d) {
    return d->synthetic ? BYTES_VOCAB : tokenizer_size(d->tokenizer);
}
uint64_t dataset_windows(const struct dataset *d, enum dataset_split split) {
    return d->synthetic ? DATASET_ENDLESS : d->windows[split];
}
const char *dataset_describe(const struct dataset *d) {
    return d->description;
}
const char *dataset_fingerprint(const struct dataset *d) {
    return d->fingerprint;
}
const struct tokenizer *dataset_tokenizer(const struct dataset *d) {
    return d->tokenizer;
}
const struct renderer *dataset_renderer(const struct dataset *d) {
    return d->renderer;
}

// ---------------------------------------------------------------- windows of files

struct place {
    const struct pack *pack;
    const struct pack_window *window;
    uint64_t number; // counted over all pools of the split
};

static struct place find_training(const struct dataset *d, uint64_t sample) {
    size_t pool;
    uint64_t index;
    mix_find(&d->mix, sample, &pool, &index);
    const struct pack *p = &d->pools[pool].packs[SPLIT_TRAIN];
    const uint64_t stream = SHUFFLE_STREAM + pool * POOL_STREAMS + index / p->n_windows;
    uint64_t window = rng_permute(d->seed, stream, index % p->n_windows, p->n_windows);
    uint64_t before = 0;
    for (size_t i = 0; i < pool; i++)
        before += d->pools[i].packs[SPLIT_TRAIN].n_windows;
    return (struct place){p, &p->windows[window], before + window};
}

// The order is the same in every validation. It is shuffled because packed windows begin with the
// longest documents: a validation of a few batches would see nothing else.
static struct place find_validation(const struct dataset *d, uint64_t sample) {
    const uint64_t n = d->windows[SPLIT_VALIDATION];
    uint64_t at = sample % n;
    if (!d->ordered_validation)
        at = rng_permute(d->seed, VALIDATION_STREAM, at, n);
    const uint64_t number = at;
    for (size_t i = 0; i + 1 < d->n_pools; i++) {
        const struct pack *p = &d->pools[i].packs[SPLIT_VALIDATION];
        if (at < p->n_windows)
            return (struct place){p, &p->windows[at], number};
        at -= p->n_windows;
    }
    const struct pack *last = &d->pools[d->n_pools - 1].packs[SPLIT_VALIDATION];
    return (struct place){last, &last->windows[at], number};
}

static struct place find(const struct dataset *d, enum dataset_split split, uint64_t sample) {
    return split == SPLIT_TRAIN ? find_training(d, sample) : find_validation(d, sample);
}

static void put_piece(const struct shard *s, const struct pack_piece *piece, uint32_t column,
                      const struct dataset_window *out) {
    int32_t next = shard_id(s, piece->at);
    for (uint32_t i = 0; i < piece->columns; i++) {
        const uint64_t target = piece->at + i + 1; // a document has one more token than columns
        const uint32_t t = column + i;
        out->tokens[t] = next;
        next = shard_id(s, target);
        out->targets[t] = shard_is_trained(s, target) ? next : DATASET_NOT_TRAINED;
        out->doc_start[t] = (int32_t)column;
        out->positions[t] = (int32_t)i;
    }
}

static int fetch_packed(const struct dataset *d, enum dataset_split split, uint64_t sample,
                        const struct dataset_window *out, struct err *e) {
    const struct place p = find(d, split, sample);
    const struct shard *checked = NULL;
    uint32_t column = 0;
    for (uint64_t i = p.window->first; i < p.window[1].first; i++) {
        const struct pack_piece *piece = &p.pack->pieces[i];
        const struct shard *s = &d->sources[piece->shard].shard;
        if (s != checked)
            TRY(shard_check(s, e));
        checked = s;
        put_piece(s, piece, column, out);
        column += piece->columns;
    }
    for (uint32_t t = 0; t < p.window->repeated; t++)
        out->targets[t] = DATASET_NOT_TRAINED;
    for (; column < d->seq; column++) {
        out->tokens[column] = d->pad_id;
        out->targets[column] = DATASET_NOT_TRAINED;
        out->doc_start[column] = (int32_t)column;
        out->positions[column] = 0;
    }
    return 0;
}

// ---------------------------------------------------------------- windows kept in memory

enum { NARROW_NOT_TRAINED = UINT16_MAX };

static bool is_narrow(const struct dataset *d) {
    return dataset_vocab(d) <= NARROW_NOT_TRAINED;
}

size_t dataset_kept_bytes(const struct dataset *d) {
    return 2 * (size_t)d->seq * (is_narrow(d) ? sizeof(uint16_t) : sizeof(int32_t));
}

void dataset_keep(const struct dataset *d, const struct dataset_window *w, void *kept) {
    if (!is_narrow(d)) {
        memcpy(kept, w->tokens, d->seq * sizeof *w->tokens);
        memcpy((int32_t *)kept + d->seq, w->targets, d->seq * sizeof *w->targets);
        return;
    }
    uint16_t *tokens = kept, *targets = tokens + d->seq;
    for (uint64_t t = 0; t < d->seq; t++) {
        tokens[t] = (uint16_t)w->tokens[t];
        targets[t] = w->targets[t] < 0 ? NARROW_NOT_TRAINED : (uint16_t)w->targets[t];
    }
}

static void widen(const struct dataset *d, const uint16_t *tokens,
                  const struct dataset_window *out) {
    const uint16_t *targets = tokens + d->seq;
    for (uint64_t t = 0; t < d->seq; t++) {
        out->tokens[t] = tokens[t];
        out->targets[t] = targets[t] == NARROW_NOT_TRAINED ? DATASET_NOT_TRAINED : targets[t];
    }
}

void dataset_fetch_kept(const struct dataset *d, enum dataset_split split, uint64_t sample,
                        const void *kept, const struct dataset_window *out) {
    const struct place p = find(d, split, sample);
    uint32_t column = 0;
    if (is_narrow(d)) {
        widen(d, kept, out);
    } else {
        memcpy(out->tokens, kept, d->seq * sizeof *out->tokens);
        memcpy(out->targets, (const int32_t *)kept + d->seq, d->seq * sizeof *out->targets);
    }
    for (uint64_t i = p.window->first; i < p.window[1].first; i++) {
        const uint32_t begin = column, end = begin + p.pack->pieces[i].columns;
        for (; column < end; column++) {
            out->doc_start[column] = (int32_t)begin;
            out->positions[column] = (int32_t)(column - begin);
        }
    }
    for (; column < d->seq; column++) {
        out->doc_start[column] = (int32_t)column;
        out->positions[column] = 0;
    }
}

// ---------------------------------------------------------------- windows of the corpus

// Derives the rest from the ids: where documents begin, and the positions in them.
static void window_finish(const struct dataset_window *w, uint64_t seq) {
    int32_t start = 0;
    for (int32_t t = 0; t < (int32_t)seq; t++) {
        if (w->tokens[t] == BYTES_END_OF_TEXT)
            start = t;
        w->doc_start[t] = start;
        w->positions[t] = t - start;
    }
}

static void make_block(const struct dataset *d, uint64_t block, enum dataset_split split,
                       struct scratch *s) {
    const uint64_t tokens = d->block_windows * d->seq + 1;
    uint64_t document = block * d->block_documents;
    if (split == SPLIT_VALIDATION)
        document += VALIDATION_DOCUMENTS;
    for (uint64_t at = 0; at < tokens; document++) {
        char text[CORPUS_MAX_BYTES];
        s->ids[at++] = BYTES_END_OF_TEXT;
        size_t bytes = corpus_write(d->seed, document, text);
        if (bytes > tokens - at)
            bytes = tokens - at;
        bytes_encode(text, bytes, s->ids + at);
        at += bytes;
    }
    s->block = block;
    s->split = (int)split;
}

static void fetch_corpus(const struct dataset *d, enum dataset_split split, uint64_t sample,
                         struct scratch *s, const struct dataset_window *out) {
    uint64_t block = sample / d->block_windows;
    if (s->split != (int)split || s->block != block)
        make_block(d, block, split, s);
    const int32_t *ids = s->ids + sample % d->block_windows * d->seq;
    memcpy(out->tokens, ids, d->seq * sizeof *ids);
    memcpy(out->targets, ids + 1, d->seq * sizeof *ids);
    window_finish(out, d->seq);
}

// ---------------------------------------------------------------- either

size_t dataset_scratch_bytes(const struct dataset *d) {
    if (!d->synthetic)
        return sizeof(struct scratch);
    return sizeof(struct scratch) + (d->block_windows * d->seq + 1) * sizeof(int32_t);
}

void dataset_scratch_clear(const struct dataset *d, void *scratch) {
    (void)d;
    struct scratch *s = scratch;
    s->block = 0;
    s->split = -1;
}

int dataset_fetch(const struct dataset *d, enum dataset_split split, uint64_t sample, void *scratch,
                  const struct dataset_window *out, struct err *e) {
    if (d->synthetic) {
        fetch_corpus(d, split, sample, scratch, out);
        return 0;
    }
    if (d->windows[split] == 0)
        return err_set(e, ERR_USAGE, "data: there is no validation split; set data.val above 0");
    return fetch_packed(d, split, sample, out, e);
}

int64_t dataset_trained(const struct dataset *d, enum dataset_split split, uint64_t sample) {
    if (d->synthetic)
        return (int64_t)d->seq;
    return d->windows[split] == 0 ? 0 : (int64_t)find(d, split, sample).window->trained;
}

struct dataset_about dataset_about(const struct dataset *d, enum dataset_split split,
                                   uint64_t sample) {
    if (d->synthetic)
        return (struct dataset_about){sample, (int64_t)d->seq, (int64_t)d->seq, d->seq + 1};
    if (d->windows[split] == 0)
        return (struct dataset_about){.window = sample};
    const struct place p = find(d, split, sample);
    struct dataset_about out = {
        .window = p.number, .trained = p.window->trained, .real = p.window->columns};
    for (uint64_t i = p.window->first; i < p.window[1].first; i++) {
        const struct pack_piece *piece = &p.pack->pieces[i];
        out.source_bytes +=
            (piece->columns + UINT64_C(1)) * (d->sources[piece->shard].shard.wide ? 4 : 2);
    }
    return out;
}

// The document that token `at` belongs to: the last one that begins at or before it.
static uint64_t document_at(const struct shard *s, uint64_t at) {
    uint64_t low = 0, high = s->counts.documents;
    while (high - low > 1) {
        const uint64_t middle = low + (high - low) / 2;
        if (s->offsets[middle] <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}

bool dataset_next_piece(const struct dataset *d, enum dataset_split split, uint64_t sample,
                        struct dataset_piece *p) {
    const struct place in = find(d, split, sample);
    const uint64_t i = in.window->first + p->next;
    if (i >= in.window[1].first)
        return false;
    const struct pack_piece *piece = &in.pack->pieces[i];
    const struct shard *s = &d->sources[piece->shard].shard;
    const uint64_t document = document_at(s, piece->at);
    *p = (struct dataset_piece){.file = piece->shard,
                                .document = document,
                                .first = piece->at - s->offsets[document],
                                .column = p->column + p->columns,
                                .columns = piece->columns,
                                .next = p->next + 1};
    return true;
}

uint64_t dataset_seed(const struct dataset *d) {
    return d->seed;
}
