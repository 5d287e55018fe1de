// dataset.c - windows of tokens from documents: the arithmetic of samples, epochs and splits.
//
// Both kinds of data are a stream  EOT d0 EOT d1 EOT d2 ...  of token ids. Because END_OF_TEXT both
// opens a document and is the target of the last byte of the one before, targets are the stream one
// later, and a document begins wherever END_OF_TEXT stands: window_finish needs nothing else.
//
// Text is one stream of known length; a window is found by division. The corpus' documents have
// lengths that only making them tells, so its stream is cut in blocks of whole windows, each
// starting with a document of its own: window i needs one block, which a reader keeps in its
// scratch while it moves on. The last document of a block is cut short.
#include "data/dataset.h"

#include "base/rng.h"
#include "base/text.h"
#include "data/bytes.h"
#include "data/corpus.h"
#include "data/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t SHUFFLE_STREAM = 0x73687566666c65;        // "shuffle"; the epoch is added
static const uint64_t VALIDATION_DOCUMENTS = UINT64_C(1) << 63; // corpus: first index of that split

// 64 KiB of ids: stays in a core's L2, and the one cut document in it is a fraction of a percent.
enum { BLOCK_TOKENS = 16384 };
static const int64_t SEQ_MAX = 1 << 24;

struct part { // of the text's stream
    uint64_t begin, tokens, windows;
};

struct dataset {
    bool synthetic;
    uint64_t seed;
    uint64_t seq;
    // Text
    struct text_files text;
    uint64_t *starts; // [documents + 1]: place in the stream of each document's END_OF_TEXT
    struct part parts[2];
    // Corpus
    uint64_t block_windows, block_documents;
    char description[128];
    char fingerprint[HASH_TEXT_BYTES];
};

struct scratch { // of a corpus reader
    uint64_t block;
    int split;     // -1: no block yet
    int32_t ids[]; // [block_windows * T + 1]
};

// ---------------------------------------------------------------- opening

static uint64_t windows_of(uint64_t tokens, uint64_t seq) {
    return (tokens + seq - 1) / seq;
}

static int open_text(struct dataset *d, const struct dataset_options *o, struct err *e) {
    TRY(text_files_open(&d->text, o->paths, e));
    const size_t n = d->text.count;
    d->starts = malloc((n + 1) * sizeof *d->starts);
    if (d->starts == NULL)
        return err_set(e, ERR_MEMORY, "data: no memory for the index of %zu files", n);
    d->starts[0] = 0;
    for (size_t i = 0; i < n; i++)
        d->starts[i + 1] = d->starts[i] + d->text.documents[i].bytes + 1;
    const uint64_t total = d->starts[n];

    // Validation is rounded up to one window: five percent of a short text would otherwise be too
    // few.
    uint64_t kept = 0;
    if (o->validation_fraction > 0) {
        kept = (uint64_t)(o->validation_fraction * (double)total);
        kept = kept < d->seq ? d->seq : kept;
    }
    if (total < d->seq)
        return err_set(e, ERR_USAGE,
                       "%s: has %llu tokens, fewer than one window of seq=%llu; give more text or "
                       "lower seq",
                       o->paths, (unsigned long long)total, (unsigned long long)d->seq);
    if (total - d->seq < kept)
        return err_set(e, ERR_USAGE,
                       "%s: has %llu tokens, too few for one training and one validation window of "
                       "seq=%llu; give more text, lower seq or set data.val=0",
                       o->paths, (unsigned long long)total, (unsigned long long)d->seq);
    const uint64_t trained = total - kept;
    d->parts[SPLIT_TRAIN] = (struct part){0, trained, windows_of(trained, d->seq)};
    d->parts[SPLIT_VALIDATION] = (struct part){trained, kept, windows_of(kept, d->seq)};
    char size[TEXT_UNIT_BYTES];
    snprintf(d->description, sizeof d->description, "%zu document%s, %s", n, n == 1 ? "" : "s",
             text_bytes(size, d->text.bytes));
    return text_files_fingerprint(&d->text, d->fingerprint, e);
}

static void open_corpus(struct dataset *d) {
    d->block_windows = d->seq < BLOCK_TOKENS ? BLOCK_TOKENS / d->seq : 1;
    // Enough documents to fill a block even if all were of the shortest length, and its last
    // target.
    d->block_documents = d->block_windows * d->seq / (CORPUS_MIN_BYTES + 1) + 1;
    snprintf(d->description, sizeof d->description, "built-in corpus, seed %llu",
             (unsigned long long)d->seed);
    char identity[64];
    int n = snprintf(identity, sizeof identity, "haggle corpus %d seed %llu", CORPUS_VERSION,
                     (unsigned long long)d->seed);
    hash_of(identity, (size_t)n, d->fingerprint);
}

int dataset_open(struct dataset **out, const struct dataset_options *o, struct err *e) {
    *out = NULL;
    if (o->seq < 1 || o->seq > SEQ_MAX)
        return err_set(e, ERR_USAGE, "data: seq=%lld is not accepted; 1 to %lld are",
                       (long long)o->seq, (long long)SEQ_MAX);
    if (!(o->validation_fraction >= 0 && o->validation_fraction <= 0.5))
        return err_set(e, ERR_USAGE, "data: data.val=%g is not accepted; 0 to 0.5 are",
                       o->validation_fraction);
    struct dataset *d = calloc(1, sizeof *d);
    if (d == NULL)
        return err_set(e, ERR_MEMORY, "data: no memory to open a dataset");
    d->seed = o->seed;
    d->seq = (uint64_t)o->seq;
    d->synthetic =
        o->paths == NULL || o->paths[0] == '\0' || strcmp(o->paths, DATASET_SYNTHETIC) == 0;
    int rc = 0;
    if (d->synthetic)
        open_corpus(d);
    else
        rc = open_text(d, o, e);
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
    text_files_close(&d->text);
    free(d->starts);
    free(d);
}

int64_t dataset_seq(const struct dataset *d) {
    return (int64_t)d->seq;
}
int32_t dataset_vocab(const struct dataset *d) {
    (void)d;
    return BYTES_VOCAB;
}
uint64_t dataset_windows(const struct dataset *d, enum dataset_split split) {
    return d->synthetic ? DATASET_ENDLESS : d->parts[split].windows;
}
uint64_t dataset_tokens(const struct dataset *d, enum dataset_split split) {
    return d->synthetic ? DATASET_ENDLESS : d->parts[split].tokens;
}
const char *dataset_describe(const struct dataset *d) {
    return d->description;
}
const char *dataset_fingerprint(const struct dataset *d) {
    return d->fingerprint;
}

// ---------------------------------------------------------------- windows

// What follows from the ids: where documents begin, and positions in them.
static void window_finish(const struct dataset_window *w, uint64_t seq) {
    int32_t start = 0;
    for (int32_t t = 0; t < (int32_t)seq; t++) {
        if (w->tokens[t] == BYTES_END_OF_TEXT)
            start = t;
        w->doc_start[t] = start;
        w->positions[t] = t - start;
    }
}

struct place { // of a window in the text's stream
    uint64_t begin;
    uint64_t repeated; // leading columns that the window before has trained
};

static struct place place_of(const struct dataset *d, enum dataset_split split, uint64_t sample) {
    const struct part *part = &d->parts[split];
    uint64_t window = sample % part->windows;
    if (split == SPLIT_TRAIN)
        window =
            rng_permute(d->seed, SHUFFLE_STREAM + sample / part->windows, window, part->windows);
    uint64_t begin = window * d->seq, latest = part->tokens - d->seq;
    struct place p = {.begin = part->begin + begin};
    if (begin > latest) {
        p.begin = part->begin + latest;
        p.repeated = begin - latest;
    }
    return p;
}

static size_t document_at(const struct dataset *d, uint64_t at) {
    size_t low = 0, high = d->text.count - 1; // starts[low] <= at < starts[high + 1]
    while (low < high) {
        size_t middle = low + (high - low + 1) / 2;
        if (d->starts[middle] <= at)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static int fetch_text(const struct dataset *d, enum dataset_split split, uint64_t sample,
                      const struct dataset_window *out, struct err *e) {
    const struct place p = place_of(d, split, sample);
    // tokens, and one id more that is only the last target.
    uint64_t at = p.begin, done = 0;
    int32_t next = BYTES_END_OF_TEXT; // after the last document
    for (size_t doc = document_at(d, at); done <= d->seq && doc < d->text.count; doc++) {
        const struct text_document *t = &d->text.documents[doc];
        TRY(text_files_check(&d->text, doc, e));
        if (at == d->starts[doc]) {
            if (done == d->seq) {
                next = BYTES_END_OF_TEXT;
                break;
            }
            out->tokens[done++] = BYTES_END_OF_TEXT;
            at++;
        }
        const unsigned char *bytes = t->data + (at - d->starts[doc] - 1);
        uint64_t left = d->starts[doc + 1] - at, n = d->seq - done < left ? d->seq - done : left;
        for (uint64_t i = 0; i < n; i++)
            out->tokens[done + i] = bytes[i];
        done += n;
        at += n;
        if (n < left) {
            next = bytes[n];
            break;
        }
    }
    memcpy(out->targets, out->tokens + 1, (d->seq - 1) * sizeof(int32_t));
    out->targets[d->seq - 1] = next;
    for (uint64_t i = 0; i < p.repeated; i++)
        out->targets[i] = DATASET_NOT_TRAINED;
    window_finish(out, d->seq);
    return 0;
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
    if (d->parts[split].windows == 0)
        return err_set(e, ERR_USAGE, "data: there is no validation split; set data.val above 0");
    return fetch_text(d, split, sample, out, e);
}

int64_t dataset_trained(const struct dataset *d, enum dataset_split split, uint64_t sample) {
    if (d->synthetic)
        return (int64_t)d->seq;
    if (d->parts[split].windows == 0)
        return 0;
    return (int64_t)(d->seq - place_of(d, split, sample).repeated);
}
