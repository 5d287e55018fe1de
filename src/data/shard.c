// shard.c - the file format of shards: checks existing files, writes new ones.
//
// All numbers are in the machine's byte order. On a machine with another order the header does not
// match, and the shard is made again.
#include "data/shard.h"

#include "base/clock.h"
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HEADER_BYTES = 256, STEP_BYTES = 16 << 20 };
static const char MAGIC[8] = "hgshard";

struct header {
    char magic[8];
    uint32_t version, id_bytes, vocab, shape;
    struct shard_counts counts;
    char key[40], payload[40]; // 32 hex digits each, the rest is 0
    uint64_t hash;             // of everything before
};
_Static_assert(sizeof(struct header) <= HEADER_BYTES, "the header has its room");

struct sizes {
    uint64_t ids, trained, offsets, total;
};

// Returns false when the sum might not fit in 64 bits. id_bytes is at most 4, so below the limits
// no sum comes near 2^64.
static bool sizes_of(uint64_t tokens, uint64_t documents, uint64_t id_bytes, struct sizes *s) {
    if (tokens > UINT64_MAX / 16 || documents > UINT64_MAX / 16)
        return false;
    s->ids = (tokens * id_bytes + 7) / 8 * 8;
    s->trained = (tokens + 63) / 64 * 8;
    s->offsets = (documents + 1) * 8;
    s->total = HEADER_BYTES + s->ids + s->trained + s->offsets;
    return true;
}

// ---------------------------------------------------------------- checking

static int damaged(struct err *e, const struct shard *s, const char *what) {
    return err_set(e, ERR_FORMAT, "%s: %s", s->path[0] ? s->path : "shard", what);
}

static int check_header(struct shard *s, const struct header *h, const char *key, struct err *e) {
    struct sizes sizes;
    if (memcmp(h->magic, MAGIC, sizeof MAGIC) != 0)
        return damaged(e, s, "is not a shard");
    if (h->version != SHARD_VERSION)
        return damaged(e, s, "has another format version");
    static const char zeros[HEADER_BYTES];
    if (h->hash != hash_u64(h, offsetof(struct header, hash)) ||
        memcmp((const char *)s->map + sizeof *h, zeros, HEADER_BYTES - sizeof *h) != 0)
        return damaged(e, s, "has a damaged header");
    if (strncmp(h->key, key, sizeof h->key) != 0)
        return damaged(e, s, "belongs to other data");
    if ((h->id_bytes != 2 && h->id_bytes != 4) || h->vocab < 1 || h->vocab > INT32_MAX ||
        h->shape >= RENDER_SHAPES || h->counts.documents > h->counts.tokens ||
        h->counts.untrained > h->counts.documents || h->counts.end_trained > h->counts.documents)
        return damaged(e, s, "has an invalid header");
    if (!sizes_of(h->counts.tokens, h->counts.documents, h->id_bytes, &sizes) ||
        sizes.total != s->bytes)
        return damaged(e, s, "its size does not match its header");
    s->counts = h->counts;
    s->shape = (enum render_shape)h->shape;
    s->vocab = (int32_t)h->vocab;
    s->wide = h->id_bytes == 4;
    const char *at = (const char *)s->map + HEADER_BYTES;
    s->ids = at;
    s->trained = (const uint64_t *)(const void *)(at + sizes.ids);
    s->offsets = (const uint64_t *)(const void *)(at + sizes.ids + sizes.trained);
    return 0;
}

// Works in steps and checks the file between them, because it may be truncated while it is read.
static int check_payload(const struct shard *s, const struct header *h, struct err *e) {
    char text[HASH_TEXT_BYTES];
    struct hash *hash = hash_new();
    int rc = hash == NULL ? err_set(e, ERR_MEMORY, "no memory to check a shard") : 0;
    for (size_t at = HEADER_BYTES; rc == 0 && at < s->bytes;) {
        size_t n = s->bytes - at < STEP_BYTES ? s->bytes - at : STEP_BYTES;
        rc = shard_check(s, e);
        if (rc == 0)
            hash_add(hash, (const char *)s->map + at, n);
        at += n;
    }
    if (rc == 0) {
        hash_text(hash, text);
        if (strncmp(text, h->payload, sizeof h->payload) != 0)
            rc = damaged(e, s, "its contents do not match the hash in its header");
    }
    hash_free(hash);
    return rc;
}

// The hash does not protect against a forged file. So the offsets and ids, which could cause access
// out of bounds, are checked as well.
static int check_contents(const struct shard *s, struct err *e) {
    uint32_t most = 0;
    uint64_t trained = 0;
    const uint64_t n = s->counts.tokens, words = (n + 63) / 64;
    if (s->offsets[0] != 0 || s->offsets[s->counts.documents] != n)
        return damaged(e, s, "its documents do not cover its tokens");
    for (uint64_t i = 0; i < s->counts.documents; i++)
        if (s->offsets[i] >= s->offsets[i + 1])
            return damaged(e, s, "its documents are not in order");
    if (s->wide)
        for (uint64_t i = 0; i < n; i++)
            most = ((const uint32_t *)s->ids)[i] > most ? ((const uint32_t *)s->ids)[i] : most;
    else
        for (uint64_t i = 0; i < n; i++)
            most = ((const uint16_t *)s->ids)[i] > most ? ((const uint16_t *)s->ids)[i] : most;
    if (n > 0 && most >= (uint32_t)s->vocab)
        return damaged(e, s, "it has ids outside its vocabulary");
    for (uint64_t i = 0; i < words; i++)
        trained += (uint64_t)__builtin_popcountll(s->trained[i]);
    if (trained != s->counts.trained || (n % 64 != 0 && s->trained[words - 1] >> n % 64 != 0))
        return damaged(e, s, "its number of trained tokens does not match its header");
    return 0;
}

static int map_and_check(struct shard *s, const char *key, struct err *e) {
    if (fstat(s->fd, &s->identity) != 0)
        return err_set(e, ERR_IO, "%s: %s", s->path, strerror(errno));
    if (!S_ISREG(s->identity.st_mode) || s->identity.st_size < HEADER_BYTES)
        return damaged(e, s, "is shorter than a header or not a regular file");
    s->bytes = (size_t)s->identity.st_size;
    s->map = mmap(NULL, s->bytes, PROT_READ, MAP_SHARED, s->fd, 0);
    if (s->map == MAP_FAILED) {
        s->map = NULL;
        return err_set(e, ERR_IO, "%s: cannot be mapped: %s", s->path, strerror(errno));
    }
    struct header h;
    memcpy(&h, s->map, sizeof h); // copied once: the file may change after the check
    TRY(check_header(s, &h, key, e));
    TRY(check_payload(s, &h, e));
    return check_contents(s, e);
}

int shard_open(struct shard *s, const char *path, const char *key, struct err *e) {
    *s = (struct shard){.fd = -1};
    if (strlen(path) >= sizeof s->path)
        return err_set(e, ERR_USAGE, "data.cache: the path '%.80s...' is longer than %zu bytes",
                       path, sizeof s->path - 1);
    strcpy(s->path, path);
    snprintf(s->key, sizeof s->key, "%s", key);
    do { // O_NONBLOCK: do not wait for a pipe in place of the file
        s->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    } while (s->fd < 0 && errno == EINTR);
    if (s->fd < 0)
        return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    int rc = map_and_check(s, key, e);
    if (rc != 0)
        shard_close(s);
    return rc;
}

void shard_close(struct shard *s) {
    if (s->map != NULL)
        munmap(s->map, s->bytes);
    if (s->fd >= 0)
        close(s->fd);
    s->map = NULL;
    s->fd = -1;
}

int shard_check(const struct shard *s, struct err *e) {
    struct stat now;
    const struct stat *was = &s->identity;
    if (fstat(s->fd, &now) != 0)
        return err_set(e, ERR_IO, "%s: %s", s->path, strerror(errno));
    if (now.st_size != was->st_size || now.st_mtim.tv_sec != was->st_mtim.tv_sec ||
        now.st_mtim.tv_nsec != was->st_mtim.tv_nsec)
        return err_set(e, ERR_MISMATCH,
                       "%s: had %lld bytes when the run began and was changed since (%lld bytes "
                       "now); tokenized data must not change during a run",
                       s->path[0] ? s->path : "tokenized data", (long long)was->st_size,
                       (long long)now.st_size);
    return 0;
}

void shard_forget_pages(const struct shard *s) {
    if (s->map != NULL)
        madvise(s->map, s->bytes, MADV_DONTNEED); // a shared mapping loses no data by this
}

uint64_t shard_count_trained(const struct shard *s, uint64_t at, uint64_t n) {
    uint64_t sum = 0, end = at + n;
    for (; at < end && at % 64 != 0; at++)
        sum += shard_is_trained(s, at);
    for (; end - at >= 64 && at < end; at += 64)
        sum += (uint64_t)__builtin_popcountll(s->trained[at / 64]);
    for (; at < end; at++)
        sum += shard_is_trained(s, at);
    return sum;
}

// ---------------------------------------------------------------- writing

struct shard_writer {
    struct file_writer file; // in memory: only the descriptor and the name are used
    bool in_memory;
    int lock;         // keeps the file locked until it has its final name; -1: none
    char final[1024]; // final path
    struct hash *hash;
    bool wide;
    void *narrow; // buffer for 16-bit ids
    size_t narrow_ids;
    uint64_t *trained, *offsets; // written after the ids, when their lengths are known
    size_t trained_capacity, offset_capacity;
    uint64_t document_trained;
    struct shard_counts counts;
};

static int no_memory(struct err *e) {
    return err_set(e, ERR_MEMORY, "data: no memory to write tokenized data");
}

static int put(struct shard_writer *w, const void *data, size_t bytes, struct err *e) {
    return file_writer_put(&w->file, data, bytes, e);
}

// Each attempt uses a different name, because two processes may write the same shard at once.
static int open_file(struct shard_writer *w, const char *path, struct err *e) {
    char name[sizeof w->final + 64];
    if (strlen(path) >= sizeof w->final)
        return err_set(e, ERR_USAGE, "data.cache: the path '%.80s...' is longer than %zu bytes",
                       path, sizeof w->final - 1);
    strcpy(w->final, path);
    // Others remove files that are not locked, so this one may be gone before it is.
    for (int i = 0; i < 10; i++) {
        snprintf(name, sizeof name, "%s.%ld-%llx", path, (long)getpid(),
                 (unsigned long long)clock_ns() ^ (unsigned long long)(uintptr_t)w);
        TRY(file_writer_begin(&w->file, name, e));
        (void)file_lock(w->file.fd); // without locks, age decides which files are removed
        w->lock = fcntl(w->file.fd, F_DUPFD_CLOEXEC, 0);
        if (file_is_open_as(w->file.tmp, w->file.fd))
            return 0;
        file_writer_abort(&w->file);
        if (w->lock >= 0)
            close(w->lock);
        w->lock = -1;
    }
    return err_set(e, ERR_IO, "'%s.tmp' is removed by others as soon as it is made", name);
}

// file_writer_put needs only a descriptor, and a name for messages.
static int open_memory(struct shard_writer *w, struct err *e) {
    w->in_memory = true;
    w->file.fd = memfd_create("haggle shard", MFD_CLOEXEC);
    if (w->file.fd < 0)
        return err_set(e, ERR_MEMORY, "data: no memory for tokenized data: %s", strerror(errno));
    strcpy(w->file.tmp, "tokenized data in memory");
    return 0;
}

int shard_writer_open(struct shard_writer **out, const char *path, struct err *e) {
    static const char room[HEADER_BYTES];
    struct shard_writer *w = *out = calloc(1, sizeof *w);
    if (w == NULL)
        return no_memory(e);
    w->file.fd = w->lock = -1;
    int rc = path != NULL ? open_file(w, path, e) : open_memory(w, e);
    if (rc == 0)
        rc = put(w, room, sizeof room, e); // placeholder for the header
    if (rc == 0 && (w->hash = hash_new()) == NULL)
        rc = no_memory(e);
    if (rc != 0) {
        shard_writer_abort(w);
        *out = NULL;
        return rc;
    }
    w->file.hash = w->hash;
    return 0;
}

static bool reserve_words(uint64_t **array, size_t *capacity, uint64_t words) {
    if (words <= *capacity)
        return true;
    size_t wider = words > SIZE_MAX / 32 ? 0 : (size_t)words + (size_t)words / 2 + 1024;
    uint64_t *moved = wider > 0 ? realloc(*array, wider * sizeof **array) : NULL;
    if (moved == NULL)
        return false;
    memset(moved + *capacity, 0, (wider - *capacity) * sizeof *moved);
    *array = moved;
    *capacity = wider;
    return true;
}

static int put_narrow(struct shard_writer *w, const int32_t *ids, size_t n, struct err *e) {
    if (n > w->narrow_ids) {
        void *wider = realloc(w->narrow, n * sizeof(uint16_t));
        if (wider == NULL)
            return no_memory(e);
        w->narrow = wider;
        w->narrow_ids = n;
    }
    uint16_t *to = w->narrow;
    for (size_t i = 0; i < n; i++)
        to[i] = (uint16_t)ids[i];
    return put(w, to, n * sizeof *to, e);
}

int shard_writer_put(struct shard_writer *w, const int32_t *ids, const unsigned char *trained,
                     size_t n, bool wide, struct err *e) {
    uint64_t at = w->counts.tokens;
    if (!reserve_words(&w->trained, &w->trained_capacity, (at + n + 63) / 64))
        return no_memory(e);
    w->wide = wide;
    for (size_t i = 0; i < n; i++, at++) {
        uint64_t bit = trained == NULL || trained[i];
        w->trained[at / 64] |= bit << at % 64;
        w->document_trained += bit;
    }
    w->counts.tokens = at;
    return wide ? put(w, ids, n * sizeof *ids, e) : put_narrow(w, ids, n, e);
}

int shard_writer_end_document(struct shard_writer *w, bool end_trained, struct err *e) {
    struct shard_counts *c = &w->counts;
    if (!reserve_words(&w->offsets, &w->offset_capacity, c->documents + 2))
        return no_memory(e);
    w->offsets[++c->documents] = c->tokens;
    c->trained += w->document_trained;
    c->untrained += w->document_trained == 0;
    c->end_trained += end_trained && w->document_trained > 0;
    w->document_trained = 0;
    return 0;
}

static int put_tail(struct shard_writer *w, struct err *e) {
    static const char zeros[8];
    struct sizes sizes;
    const uint64_t id_bytes = w->wide ? 4 : 2;
    if (!sizes_of(w->counts.tokens, w->counts.documents, id_bytes, &sizes) ||
        !reserve_words(&w->offsets, &w->offset_capacity, 1))
        return no_memory(e);
    TRY(put(w, zeros, (size_t)(sizes.ids - w->counts.tokens * id_bytes), e));
    TRY(put(w, w->trained, (size_t)sizes.trained, e));
    return put(w, w->offsets, (size_t)sizes.offsets, e);
}

static int put_header(struct shard_writer *w, const struct shard_header_info *info, struct err *e) {
    struct header h = {.version = SHARD_VERSION,
                       .id_bytes = w->wide ? 4 : 2,
                       .vocab = (uint32_t)info->vocab,
                       .shape = (uint32_t)info->shape,
                       .counts = w->counts};
    memcpy(h.magic, MAGIC, sizeof MAGIC);
    h.counts.source_bytes = info->source_bytes;
    h.counts.bad = info->bad;
    snprintf(h.key, sizeof h.key, "%s", info->key);
    hash_text(w->hash, h.payload);
    h.hash = hash_u64(&h, offsetof(struct header, hash));
    if (pwrite(w->file.fd, &h, sizeof h, 0) != (ssize_t)sizeof h)
        return err_set(e, ERR_IO, "cannot write '%s': %s", w->file.tmp, strerror(errno));
    return 0;
}

static int finish(struct shard_writer *w, const struct shard_header_info *info, struct shard *out,
                  struct err *e) {
    TRY(put_tail(w, e));
    TRY(put_header(w, info, e));
    if (w->in_memory) {
        snprintf(out->key, sizeof out->key, "%s", info->key);
        out->fd = w->file.fd;
        w->file.fd = -1;
        return map_and_check(out, info->key, e);
    }
    TRY(file_writer_end(&w->file, e));
    int rc = file_rename(w->file.path, w->final, e);
    if (rc != 0) {
        unlink(w->file.path);
        return rc;
    }
    return shard_open(out, w->final, info->key, e);
}

int shard_writer_end(struct shard_writer *w, const struct shard_header_info *info,
                     struct shard *out, struct err *e) {
    *out = (struct shard){.fd = -1};
    int rc = finish(w, info, out, e);
    if (rc != 0)
        shard_close(out);
    shard_writer_abort(w);
    return rc;
}

void shard_writer_abort(struct shard_writer *w) {
    if (w == NULL)
        return;
    if (w->in_memory) {
        if (w->file.fd >= 0)
            close(w->file.fd);
    } else {
        file_writer_abort(&w->file);
    }
    if (w->lock >= 0)
        close(w->lock);
    hash_free(w->hash);
    free(w->narrow);
    free(w->trained);
    free(w->offsets);
    free(w);
}
