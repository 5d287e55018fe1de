// shard_build.c - makes a shard from a source file: read, tokenized by a team of threads, written.
//
// The file is read in waves. A wave is a number of chunks (lines, or a stretch of plain text). The
// team renders the chunks, each chunk by one member, and then they are written in order. Where
// chunks end follows from the bytes alone, so the shard is the same for any number of threads.
//
// A plain document is encoded chunk by chunk. It is cut behind a line end that is followed by
// something other than white space: patterns of published tokenizers begin a new piece there. It is
// still stored as one document.
#include "data/shard_task.h"

#include "base/array.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/pool.h"
#include "data/corpus.h"
#include "data/lines.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    CHUNK_BYTES = 256 << 10,    // of lines; one member renders a chunk in tens of milliseconds
    STRETCH_BYTES = 1 << 20,    // of plain text
    CHUNKS_PER_THREAD = 8,      // so that no member waits long for the slowest one
    NARROW_VOCAB = 1 << 16,     // the largest vocabulary whose ids fit in 16 bits
    PROGRESS_NS = 100 * 1000000 // between two reports
};

struct line {
    size_t at, bytes;
    uint64_t number;
    char *why; // why it is no record; NULL: it is one, as far as is known
};

struct document {
    size_t end; // in the chunk's tokens
    bool end_trained;
};

struct chunk {
    char *text;
    size_t bytes, capacity;
    struct line *lines;
    size_t n_lines, line_capacity;
    bool continues; // a plain document that began in an earlier chunk
    // The result
    int32_t *ids;
    unsigned char *trained;
    size_t n, id_capacity, trained_capacity;
    struct document *documents;
    size_t n_documents, document_capacity;
    int rc;
    struct err e;
};

struct member {
    struct render_context *context;
    struct tokenizer_encoder *encoder; // for plain text
    struct rendered rendered;
    struct token_list list;
};

struct build {
    struct shard_task *task;
    enum render_shape shape;
    int32_t vocab;
    // Reading
    struct lines *lines;
    int fd; // of a plain document; -1: none
    char *carry;
    size_t n_carry;
    bool reading; // the first stretch of a plain document was read
    bool at_end;
    uint64_t corpus_next;
    // Rendering
    struct pool *pool;
    struct member *members;
    struct chunk *chunks;
    int n_threads, n_chunks, n_filled;
    atomic_int next;
    // Writing
    struct shard_writer *writer;
    const char *path; // of the shard; NULL: in memory
    uint64_t n_bad;
    bool any_document;
    char *told[SHARD_BAD_TOLD]; // what is wrong with the first bad lines
    struct file_writer listing; // of all bad lines
    bool has_listing;
    bool writing;      // an error now is an error of the writer
    int32_t prefix[8]; // beginning-of-text token of a plain document, if there is one
    size_t n_prefix;
    bool begun;
};

static int no_memory(const struct build *b, struct err *e) {
    return err_set(e, ERR_MEMORY, "%s: no memory to tokenize it", b->task->name);
}

// ---------------------------------------------------------------- progress

int shard_task_tell(struct shard_task *t, struct err *e) {
    const struct shard_listener *l = &t->o->listener;
    const uint64_t now = clock_ns();
    if (l->stop != NULL && l->stop(l->arg) != 0)
        return err_set(e, ERR_STOPPED, "stopped on request while %s was tokenized", t->name);
    if (l->progress == NULL || now - t->told_ns < PROGRESS_NS)
        return 0;
    t->told_ns = now;
    l->progress(l->arg, &(struct shard_progress){.path = t->name,
                                                 .bytes = t->read_bytes,
                                                 .of_bytes = t->of_bytes,
                                                 .tokens = t->tokens,
                                                 .seconds = 1e-9 * (double)(now - t->begin_ns)});
    return 0;
}

// ---------------------------------------------------------------- reading

static bool add_text(struct chunk *c, const char *text, size_t bytes) {
    if (!array_room(&c->text, c->bytes, bytes + 1, &c->capacity, 1, 0))
        return false;
    memcpy(c->text + c->bytes, text, bytes);
    c->bytes += bytes;
    c->text[c->bytes] = '\0';
    return true;
}

static bool add_line(struct chunk *c, const char *text, size_t bytes, uint64_t number) {
    if (!array_room(&c->lines, c->n_lines, 1, &c->line_capacity, sizeof *c->lines, 16))
        return false;
    c->lines[c->n_lines++] = (struct line){c->bytes, bytes, number, NULL};
    return add_text(c, text, bytes);
}

// Marks a line that is no record. Anything else that failed is an error of the build.
static int mark_bad(const struct build *b, struct line *l, int rc, const struct err *why,
                    struct err *e) {
    if (rc != ERR_FORMAT)
        return rc;
    l->why = strdup(why->text);
    return l->why != NULL ? 0 : no_memory(b, e);
}

static bool is_blank(const char *text, size_t bytes) {
    while (bytes > 0 && (*text == ' ' || *text == '\t' || *text == '\r'))
        text++, bytes--;
    return bytes == 0;
}

static int fill_lines(struct build *b, struct chunk *c, struct err *e) {
    while (c->bytes < CHUNK_BYTES) {
        const char *text;
        size_t bytes;
        uint64_t number;
        TRY(lines_next(b->lines, &text, &bytes, &number, e));
        b->task->read_bytes = lines_offset(b->lines);
        b->at_end = text == NULL;
        if (b->at_end)
            return 0;
        if (is_blank(text, bytes))
            continue;
        struct err why = {0};
        int rc = b->shape != RENDER_AUTO ? 0
                                         : render_detect(b->members[0].context, b->task->name,
                                                         number, text, bytes, &b->shape, &why);
        if (rc != 0)
            b->shape = RENDER_AUTO; // a line of several shapes may have set it
        if (!add_line(c, text, bytes, number))
            return no_memory(b, e);
        rc = mark_bad(b, &c->lines[c->n_lines - 1], rc, &why, e);
        if (rc != 0)
            return err_set(e, rc, "%s", why.text);
    }
    return 0;
}

static int fill_corpus(struct build *b, struct chunk *c, struct err *e) {
    char text[CORPUS_MAX_BYTES];
    while (c->bytes < CHUNK_BYTES && b->corpus_next < b->task->source->corpus_documents) {
        size_t bytes = corpus_write(b->task->source->corpus_seed, b->corpus_next++, text);
        if (!add_line(c, text, bytes, b->corpus_next))
            return no_memory(b, e);
    }
    b->at_end = b->corpus_next >= b->task->source->corpus_documents;
    return 0;
}

int shard_task_read(const struct shard_task *t, int fd, char *to, size_t most, size_t *got,
                    struct err *e) {
    *got = 0;
    while (*got < most) {
        ssize_t n = read(fd, to + *got, most - *got);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set(e, ERR_IO, "%s: cannot be read: %s", t->name, strerror(errno));
        if (n == 0)
            break;
        *got += (size_t)n;
    }
    return 0;
}

// Returns where a stretch of plain text ends, as described above. Without such a place, it ends at
// the last whole character.
static size_t stretch_end(const char *text, size_t bytes) {
    for (size_t i = bytes - 1; i > 0; i--)
        if (text[i - 1] == '\n' && !isspace((unsigned char)text[i]))
            return i;
    size_t end = bytes;
    while (end > bytes - 4 && ((unsigned char)text[end - 1] & 0xc0) == 0x80)
        end--;
    return end > bytes - 4 && (unsigned char)text[end - 1] >= 0xc0 ? end - 1 : bytes;
}

static int fill_stretch(struct build *b, struct chunk *c, struct err *e) {
    size_t got = 0, have, end;
    if (!array_room(&c->text, 0, STRETCH_BYTES + 1, &c->capacity, 1, 0))
        return no_memory(b, e);
    c->continues = b->reading;
    b->reading = true;
    memcpy(c->text, b->carry, b->n_carry);
    TRY(shard_task_read(b->task, b->fd, c->text + b->n_carry, STRETCH_BYTES - b->n_carry, &got, e));
    b->task->read_bytes += got;
    have = b->n_carry + got;
    b->at_end = have < STRETCH_BYTES;
    end = b->at_end ? have : stretch_end(c->text, have);
    b->n_carry = have - end;
    memcpy(b->carry, c->text + end, b->n_carry);
    c->bytes = end;
    c->text[end] = '\0';
    return 0;
}

static int fill_wave(struct build *b, struct err *e) {
    b->n_filled = 0;
    while (b->n_filled < b->n_chunks && !b->at_end) {
        struct chunk *c = &b->chunks[b->n_filled];
        c->bytes = c->n_lines = c->n = c->n_documents = 0;
        c->rc = 0;
        TRY(b->lines != NULL ? fill_lines(b, c, e)
            : b->fd >= 0     ? fill_stretch(b, c, e)
                             : fill_corpus(b, c, e));
        b->n_filled += c->bytes > 0;
    }
    return 0;
}

// ---------------------------------------------------------------- rendering

static int check_ids(const struct build *b, const struct chunk *c, size_t from, uint64_t number,
                     struct err *e) {
    for (size_t i = from; i < c->n; i++)
        if (c->ids[i] < 0 || c->ids[i] >= b->vocab)
            return err_set(e, ERR_FORMAT,
                           "%s line %llu: token id %d is outside the tokenizer's 0 to %d",
                           b->task->name, (unsigned long long)number, c->ids[i], b->vocab - 1);
    return 0;
}

static bool add_tokens(struct chunk *c, const int32_t *ids, const unsigned char *trained,
                       size_t n) {
    if (!array_room(&c->ids, c->n, n, &c->id_capacity, sizeof *c->ids, 16) ||
        !array_room(&c->trained, c->n, n, &c->trained_capacity, 1, 16))
        return false;
    memcpy(c->ids + c->n, ids, n * sizeof *ids);
    if (trained != NULL)
        memcpy(c->trained + c->n, trained, n);
    else
        memset(c->trained + c->n, 1, n);
    c->n += n;
    return true;
}

static int render_one(const struct build *b, struct member *m, struct chunk *c,
                      const struct line *l) {
    const char *text = c->text + l->at;
    struct rendered *r = &m->rendered;
    size_t from = c->n;
    if (b->task->source->path == NULL)
        TRY(render_text(m->context, text, l->bytes, r, &c->e));
    else
        TRY(render_line(m->context, b->shape, b->task->name, l->number, text, l->bytes, r, &c->e));
    if (r->tokens.n == 0)
        return 0;
    if (!add_tokens(c, r->tokens.ids, r->trained, r->tokens.n) ||
        !array_room(&c->documents, c->n_documents, 1, &c->document_capacity, sizeof *c->documents,
                    16))
        return no_memory(b, &c->e);
    c->trained[from] = 0; // no token comes before it that could predict it
    c->documents[c->n_documents++] = (struct document){c->n, r->end_trained};
    return check_ids(b, c, from, l->number, &c->e);
}

static int render_chunk(const struct build *b, struct member *m, struct chunk *c) {
    if (b->fd >= 0) {
        m->list.n = 0;
        TRY(tokenizer_encode(m->encoder, c->text, c->bytes, c->continues ? TOKENIZER_CONTINUES : 0,
                             &m->list, &c->e));
        return add_tokens(c, m->list.ids, NULL, m->list.n) ? 0 : no_memory(b, &c->e);
    }
    for (size_t i = 0; i < c->n_lines; i++) {
        const size_t n = c->n, documents = c->n_documents;
        if (c->lines[i].why != NULL)
            continue;
        TRY(mark_bad(b, &c->lines[i], render_one(b, m, c, &c->lines[i]), &c->e, &c->e));
        if (c->lines[i].why != NULL) {
            c->n = n;
            c->n_documents = documents;
        }
    }
    return 0;
}

static void render_wave(void *arg, int thread, int threads) {
    struct build *b = arg;
    (void)threads;
    for (;;) {
        int i = atomic_fetch_add(&b->next, 1);
        if (i >= b->n_filled)
            return;
        struct chunk *c = &b->chunks[i];
        c->rc = render_chunk(b, &b->members[thread], c);
    }
}

// ---------------------------------------------------------------- writing

static int write_tokens(struct build *b, const int32_t *ids, const unsigned char *trained, size_t n,
                        struct err *e) {
    b->writing = true;
    TRY(shard_writer_put(b->writer, ids, trained, n, b->vocab > NARROW_VOCAB, e));
    b->writing = false;
    b->task->tokens += n;
    return 0;
}

static int end_document(struct build *b, bool end_trained, struct err *e) {
    b->writing = true;
    TRY(shard_writer_end_document(b->writer, end_trained, e));
    b->writing = false;
    return 0;
}

static int write_stretch(struct build *b, struct chunk *c, struct err *e) {
    static const unsigned char untrained[8];
    if (!b->begun) {
        b->begun = true;
        if (b->n_prefix > 0)
            TRY(write_tokens(b, b->prefix, untrained, b->n_prefix, e));
        else if (c->n > 0)
            c->trained[0] = 0;
    }
    return write_tokens(b, c->ids, c->trained, c->n, e);
}

// ---------------------------------------------------------------- bad lines

static int put_bad_line(struct build *b, const struct line *l, const char *text, struct err *e) {
    struct json_writer w;
    char path[PATH_MAX];
    if (!b->has_listing) {
        shard_bad_path(b->path, path);
        TRY(file_writer_begin(&b->listing, path, e));
        b->has_listing = true;
    }
    json_writer_to_buffer(&w, 0);
    json_put_object_begin(&w);
    json_member_i64(&w, "line", (int64_t)l->number);
    json_member_string(&w, "error", l->why);
    json_put_key(&w, "text");
    json_put_string_n(&w, text, l->bytes);
    json_put_object_end(&w);
    int rc = json_writer_finish(&w, e);
    if (rc == 0) {
        w.buffer[w.bytes] = '\n'; // in place of the NUL
        rc = file_writer_put(&b->listing, w.buffer, w.bytes + 1, e);
    }
    free(w.buffer);
    return rc;
}

// Takes the bad lines of a chunk out of it.
static int collect_bad(struct build *b, struct chunk *c, struct err *e) {
    for (size_t i = 0; i < c->n_lines; i++) {
        struct line *l = &c->lines[i];
        if (l->why == NULL)
            continue;
        b->writing = true;
        if (b->task->o->bad == DATA_BAD_SKIP && b->path != NULL)
            TRY(put_bad_line(b, l, c->text + l->at, e));
        b->writing = false;
        if (b->n_bad++ < SHARD_BAD_TOLD)
            b->told[b->n_bad - 1] = l->why;
        else
            free(l->why);
        l->why = NULL;
    }
    return 0;
}

// After the last line: refuses the file, or finishes the list of what is left out.
static int judge_bad(struct build *b, struct err *e) {
    const bool skip = b->task->o->bad == DATA_BAD_SKIP, all = !b->any_document;
    if (b->n_bad == 0)
        return 0;
    if (b->n_bad > 1 && (!skip || all || b->path == NULL))
        for (uint64_t i = 0; i < b->n_bad && i < SHARD_BAD_TOLD; i++)
            shard_task_say(b->task, skip && !all ? LOG_WARN : LOG_ERROR, "%s", b->told[i]);
    if (skip && !all) {
        b->writing = true;
        return b->has_listing ? file_writer_end(&b->listing, e) : 0;
    }
    char more[160] = "";
    if (b->n_bad > 1)
        snprintf(more, sizeof more, ". The file has %llu bad lines%s", (unsigned long long)b->n_bad,
                 b->n_bad > SHARD_BAD_TOLD ? "; the first 20 are listed above" : "");
    return err_set(e, ERR_FORMAT, "%s%s%s", b->told[0], more,
                   all ? ". It has no good line" : "; data.bad=skip leaves such lines out");
}

static int write_wave(struct build *b, struct err *e) {
    for (int i = 0; i < b->n_filled; i++) {
        struct chunk *c = &b->chunks[i];
        if (c->rc != 0)
            return err_set(e, c->rc, "%s", c->e.text);
        if (b->fd >= 0) {
            TRY(write_stretch(b, c, e));
            continue;
        }
        TRY(collect_bad(b, c, e));
        b->any_document = b->any_document || c->n_documents > 0;
        size_t from = 0;
        for (size_t k = 0; k < c->n_documents; k++) {
            const struct document *d = &c->documents[k];
            TRY(write_tokens(b, c->ids + from, c->trained + from, d->end - from, e));
            TRY(end_document(b, d->end_trained, e));
            from = d->end;
        }
    }
    return 0;
}

// ---------------------------------------------------------------- opening and closing

// Finds what render_text puts in front of a text, by rendering one.
static int find_prefix(struct build *b, struct err *e) {
    struct member *m = &b->members[0];
    m->list.n = 0;
    TRY(render_text(m->context, "x", 1, &m->rendered, e));
    TRY(tokenizer_encode(m->encoder, "x", 1, 0, &m->list, e));
    const struct token_list *all = &m->rendered.tokens;
    size_t n = all->n > m->list.n ? all->n - m->list.n - 1 : 0; // the end is one token
    if (n > sizeof b->prefix / sizeof *b->prefix)
        return err_set(e, ERR_INTERNAL, "%s: %zu tokens begin a text", b->task->name, n);
    memcpy(b->prefix, all->ids, n * sizeof *all->ids);
    b->n_prefix = n;
    return 0;
}

static int open_members(struct build *b, struct err *e) {
    const struct shard_options *o = b->task->o;
    b->n_threads = o->threads > 0 ? o->threads : 1;
    // A small file is not worth a team of threads.
    uint64_t worth = b->task->of_bytes / CHUNK_BYTES + 1;
    if ((uint64_t)b->n_threads > worth)
        b->n_threads = (int)worth;
    b->n_chunks = b->n_threads * CHUNKS_PER_THREAD;
    b->members = calloc((size_t)b->n_threads, sizeof *b->members);
    b->chunks = calloc((size_t)b->n_chunks, sizeof *b->chunks);
    b->carry = malloc(STRETCH_BYTES);
    if (b->members == NULL || b->chunks == NULL || b->carry == NULL)
        return no_memory(b, e);
    TRY(pool_open(&b->pool, b->n_threads, 0, e));
    for (int i = 0; i < b->n_threads; i++) {
        TRY(render_context_open(&b->members[i].context, o->renderer, e));
        TRY(tokenizer_encoder_open(&b->members[i].encoder, o->tokenizer, e));
    }
    return 0;
}

static int open_source(struct build *b, struct err *e) {
    const struct shard_source *s = b->task->source;
    if (s->path == NULL)
        return 0;
    if (s->records)
        return lines_open(&b->lines, s->path, e);
    do {
        b->fd = open(s->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    } while (b->fd < 0 && errno == EINTR);
    if (b->fd < 0)
        return err_set(e, ERR_IO, "%s: %s", s->path, strerror(errno));
    return find_prefix(b, e);
}

static void close_build(struct build *b) {
    lines_close(b->lines);
    if (b->fd >= 0)
        close(b->fd);
    free(b->carry);
    if (b->pool != NULL)
        pool_close(b->pool);
    for (int i = 0; b->members != NULL && i < b->n_threads; i++) {
        render_context_close(b->members[i].context);
        tokenizer_encoder_close(b->members[i].encoder);
        rendered_free(&b->members[i].rendered);
        token_list_free(&b->members[i].list);
    }
    free(b->members);
    for (int i = 0; b->chunks != NULL && i < b->n_chunks; i++) {
        for (size_t k = 0; k < b->chunks[i].n_lines; k++)
            free(b->chunks[i].lines[k].why);
        free(b->chunks[i].text);
        free(b->chunks[i].lines);
        free(b->chunks[i].ids);
        free(b->chunks[i].trained);
        free(b->chunks[i].documents);
    }
    free(b->chunks);
    for (int i = 0; i < SHARD_BAD_TOLD; i++)
        free(b->told[i]);
    if (b->has_listing)
        file_writer_abort(&b->listing); // nothing is left to do after file_writer_end
    shard_writer_abort(b->writer);
}

static int run_waves(struct build *b, struct err *e) {
    while (!b->at_end) {
        TRY(fill_wave(b, e));
        atomic_store(&b->next, 0);
        if (b->n_filled > 0)
            pool_run(b->pool, render_wave, b);
        TRY(write_wave(b, e));
        TRY(shard_task_tell(b->task, e));
    }
    if (b->fd >= 0 && b->begun) {
        const int32_t end = renderer_end_of_text(b->task->o->renderer);
        TRY(write_tokens(b, &end, NULL, 1, e));
        TRY(end_document(b, true, e));
    }
    return 0;
}

static int make(struct build *b, const char *path, const char *key, struct shard *out,
                struct err *e) {
    b->path = path;
    b->writing = true;
    TRY(shard_writer_open(&b->writer, path, e));
    b->writing = false;
    TRY(open_members(b, e));
    TRY(open_source(b, e));
    TRY(run_waves(b, e));
    TRY(judge_bad(b, e));
    const struct shard_header_info info = {
        .key = key,
        .shape = b->task->source->records && b->task->source->path != NULL ? b->shape : RENDER_AUTO,
        .vocab = b->vocab,
        .source_bytes = b->task->of_bytes,
        .bad = b->n_bad};
    struct shard_writer *w = b->writer;
    b->writer = NULL;
    b->writing = true;
    return shard_writer_end(w, &info, out, e);
}

int shard_make(struct shard_task *t, const char *path, const char *key, struct shard *out,
               bool *write_failed, struct err *e) {
    struct build b = {
        .task = t, .shape = t->o->shape, .vocab = tokenizer_size(t->o->tokenizer), .fd = -1};
    t->read_bytes = t->tokens = 0;
    int rc = make(&b, path, key, out, e);
    *write_failed = rc == ERR_IO && b.writing;
    close_build(&b);
    return rc;
}
