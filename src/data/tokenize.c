// tokenize.c - see tokenize.h.
#include "data/tokenize.h"

#include "base/array.h"
#include "base/json.h"
#include "base/pool.h"
#include "base/utf8.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    LINE_BYTES_MOST = 16 << 20,
    BATCH_BYTES = 1 << 20, // of lines, per thread
    BATCH_LINES = 16384,
};

struct line {
    size_t at, bytes; // in the batch's text; then in its worker's output
    int worker;       // -1: blank, prints nothing
};

struct batch {
    char *text;
    size_t bytes, capacity;
    struct line *lines;
    size_t n;
    uint64_t first; // number of its first line, from 1
};

struct worker {
    struct tokenizer_encoder *encoder;
    struct token_list ids;
    struct json_writer out;
    char *text; // decoded
    size_t text_bytes, text_capacity;
    uint64_t tokens, bytes;
    size_t failed_at; // line of the batch; SIZE_MAX: none
    struct err err;
};

struct job {
    const struct tokenizer *t;
    const struct tokenize_options *o;
    struct batch b;
    struct worker *workers;
    atomic_size_t next;
    struct tokenize_counts *counts;
};

// ---------------------------------------------------------------- one line

static int read_text(struct json_reader *r, const char **text, size_t *bytes) {
    const char *key;
    bool found = false;
    TRY(json_enter_object(r));
    while (json_next_key(r, &key)) {
        if (strcmp(key, "text") != 0) {
            json_skip(r);
            continue;
        }
        if (found)
            return json_fail(r, ERR_FORMAT, "two members 'text'");
        found = true;
        if (json_peek(r) != JSON_STRING)
            return json_fail(r, ERR_FORMAT, "the member 'text' is %s; a string is expected",
                             json_peek(r) == JSON_NULL ? "null" : "not a string");
        json_read_string(r, text, bytes);
    }
    TRY(json_finish(r));
    return found ? 0 : json_fail(r, ERR_FORMAT, "no member 'text'; accepted: {\"text\": \"...\"}");
}

static int put_bytes(struct json_writer *w, const char *s, size_t n) {
    if (!array_room(&w->buffer, w->bytes, n, &w->capacity, 1, 4096))
        return ERR_MEMORY;
    memcpy(w->buffer + w->bytes, s, n);
    w->bytes += n;
    return 0;
}

static int put_ids(struct json_writer *w, const struct token_list *l) {
    TRY(put_bytes(w, "[", 1));
    for (size_t i = 0; i < l->n; i++) {
        char digits[12];
        size_t at = sizeof digits;
        for (uint32_t x = (uint32_t)l->ids[i]; x > 0 || at == sizeof digits; x /= 10)
            digits[--at] = (char)('0' + x % 10);
        if (i > 0)
            digits[--at] = ',';
        TRY(put_bytes(w, digits + at, sizeof digits - at));
    }
    return put_bytes(w, "]\n", 2);
}

static int encode_line(const struct job *j, struct worker *w, struct json_reader *r) {
    const char *text = "";
    size_t bytes = 0;
    TRY(read_text(r, &text, &bytes));
    w->ids.n = 0;
    TRY(tokenizer_encode(w->encoder, text, bytes, j->o->plain ? 0 : TOKENIZER_SPECIAL, &w->ids,
                         &w->err));
    w->tokens += w->ids.n;
    w->bytes += bytes;
    return put_ids(&w->out, &w->ids) == 0 ? 0 : err_set(&w->err, ERR_MEMORY, "no memory for ids");
}

static int put_text(struct worker *w) {
    char *valid = malloc(3 * w->text_bytes + 1);
    const size_t n = valid ? utf8_repair(w->text, w->text_bytes, valid) : 0;
    int rc = 0;
    struct json_writer line;
    json_writer_to_buffer(&line, 0);
    json_put_object_begin(&line);
    json_put_key(&line, "text");
    json_put_string_n(&line, valid ? valid : "", n);
    json_put_object_end(&line);
    if (json_writer_finish(&line, NULL) != 0 || !valid ||
        put_bytes(&w->out, line.buffer, line.bytes) != 0 || put_bytes(&w->out, "\n", 1) != 0)
        rc = err_set(&w->err, ERR_MEMORY, "no memory for %zu bytes of text", w->text_bytes);
    free(line.buffer);
    free(valid);
    return rc;
}

static int decode_line(const struct job *j, struct worker *w, struct json_reader *r,
                       struct region *region) {
    size_t capacity = 0, n = 0;
    int32_t *ids = NULL;
    TRY(json_enter_array(r));
    while (json_next_element(r)) {
        int64_t id;
        TRY(json_read_i64(r, &id));
        if (id < 0 || id >= tokenizer_size(j->t))
            return json_fail(r, ERR_USAGE, "no token has the id %lld; accepted: 0 to %d",
                             (long long)id, tokenizer_size(j->t) - 1);
        ids = region_grow(region, ids, n, &capacity, sizeof *ids);
        if (!ids)
            return json_fail(r, ERR_MEMORY, "no memory for %zu ids", n);
        ids[n++] = (int32_t)id;
    }
    TRY(json_finish(r));
    w->text_bytes = 0;
    TRY(tokenizer_decode(j->t, ids, n, j->o->plain ? 0 : TOKENIZER_SPECIAL, &w->text,
                         &w->text_bytes, &w->text_capacity, &w->err));
    w->tokens += n;
    w->bytes += w->text_bytes;
    return put_text(w);
}

static bool is_blank(const char *s, size_t n) {
    while (n > 0 && (*s == ' ' || *s == '\t' || *s == '\r' || *s == '\n'))
        s++, n--;
    return n == 0;
}

static void work(void *arg, int thread, int threads) {
    struct job *j = arg;
    struct worker *w = &j->workers[thread];
    char name[64];
    (void)threads;
    w->out.bytes = 0;
    for (size_t i; (i = atomic_fetch_add(&j->next, 1)) < j->b.n;) {
        struct line *l = &j->b.lines[i];
        struct region region = {0};
        struct json_reader r;
        l->worker = -1;
        if (is_blank(j->b.text + l->at, l->bytes))
            continue;
        snprintf(name, sizeof name, "line %llu of the input", (unsigned long long)(j->b.first + i));
        json_reader_init(&r, name, j->b.text + l->at, l->bytes, &region, &w->err);
        size_t start = w->out.bytes;
        int rc = j->o->decode ? decode_line(j, w, &r, &region) : encode_line(j, w, &r);
        if (rc != 0 && r.rc == 0)
            err_context(&w->err, "%s", name);
        region_free(&region);
        if (rc != 0) {
            w->failed_at = i;
            break;
        }
        *l = (struct line){start, w->out.bytes - start, thread};
    }
}

// ---------------------------------------------------------------- batches

static int batch_room(struct batch *b, size_t more, struct err *e) {
    if (b->capacity - b->bytes >= more)
        return 0;
    size_t capacity = b->capacity ? b->capacity : 65536;
    while (capacity - b->bytes < more)
        capacity *= 2;
    char *wider = realloc(b->text, capacity);
    if (!wider)
        return err_set(e, ERR_MEMORY, "no memory for %zu bytes of lines", capacity);
    b->text = wider;
    b->capacity = capacity;
    return 0;
}

// Up to the end of a line. A line that is too long is an error before it is in memory.
static int read_line(struct batch *b, FILE *in, bool *end, struct err *e) {
    size_t start = b->bytes;
    *end = false;
    for (;;) {
        TRY(batch_room(b, 4096, e));
        // fgets cannot tell a NUL in the text from its own; the byte after its newline can.
        char *p = b->text + b->bytes;
        memset(p, '\n', 4096);
        if (!fgets(p, 4096, in)) {
            *end = true;
            break;
        }
        char *stop = memchr(p, '\n', 4096);
        bool whole = stop && stop + 1 < p + 4096 && stop[1] == '\0';
        // Without a newline of its own: full, or the end of the input; the NUL is the last one.
        size_t n = whole ? (size_t)(stop - p) + 1 : (size_t)((char *)memrchr(p, '\0', 4096) - p);
        b->bytes += n;
        if (b->bytes - start > LINE_BYTES_MOST)
            return err_set(e, ERR_FORMAT,
                           "line %llu of the input has more than %d bytes; accepted: at most that",
                           (unsigned long long)(b->first + b->n), LINE_BYTES_MOST);
        if (whole)
            break;
    }
    if (ferror(in))
        return err_set(e, ERR_IO, "the input could not be read: %s", strerror(errno));
    if (b->bytes > start)
        b->lines[b->n++] = (struct line){start, b->bytes - start, -1};
    return 0;
}

static int read_batch(struct job *j, FILE *in, bool *end, struct err *e) {
    struct batch *b = &j->b;
    b->first += b->n;
    b->n = 0;
    b->bytes = 0;
    *end = false;
    while (!*end && b->n < BATCH_LINES && b->bytes < (size_t)j->o->threads * BATCH_BYTES)
        TRY(read_line(b, in, end, e));
    return 0;
}

static int write_batch(struct job *j, FILE *out, struct err *e) {
    size_t until = j->b.n;
    int failed = -1;
    for (int i = 0; i < j->o->threads; i++)
        if (j->workers[i].failed_at < until) {
            until = j->workers[i].failed_at;
            failed = i;
        }
    for (size_t i = 0; i < until; i++) {
        const struct line *l = &j->b.lines[i];
        j->counts->lines += l->worker >= 0;
        j->counts->blank += l->worker < 0;
        if (out && l->worker >= 0 &&
            fwrite(j->workers[l->worker].out.buffer + l->at, 1, l->bytes, out) != l->bytes)
            return err_set(e, ERR_IO, "the result could not be written: %s", strerror(errno));
    }
    if (failed < 0)
        return 0;
    *e = j->workers[failed].err;
    return e->code ? e->code : err_set(e, ERR_INTERNAL, "a line failed without a reason");
}

static int run_batches(struct job *j, FILE *in, FILE *out, struct pool *pool, struct err *e) {
    bool end = false;
    j->b.first = 1;
    while (!end) {
        // A line that cannot be read is said after those in front of it are done.
        struct err late = {0};
        int rc = read_batch(j, in, &end, &late);
        atomic_store(&j->next, 0);
        pool_run(pool, work, j);
        TRY(write_batch(j, out, e));
        if (rc != 0) {
            *e = late;
            return rc;
        }
    }
    for (int i = 0; i < j->o->threads; i++) {
        j->counts->tokens += j->workers[i].tokens;
        j->counts->bytes += j->workers[i].bytes;
    }
    return 0;
}

// ---------------------------------------------------------------- the call

static int open_workers(struct job *j, struct err *e) {
    j->workers = calloc((size_t)j->o->threads, sizeof *j->workers);
    j->b.lines = calloc(BATCH_LINES, sizeof *j->b.lines);
    if (!j->workers || !j->b.lines)
        return err_set(e, ERR_MEMORY, "no memory for %d threads", j->o->threads);
    for (int i = 0; i < j->o->threads; i++) {
        j->workers[i].failed_at = SIZE_MAX;
        TRY(tokenizer_encoder_open(&j->workers[i].encoder, j->t, e));
    }
    return 0;
}

static void close_workers(struct job *j) {
    for (int i = 0; j->workers && i < j->o->threads; i++) {
        tokenizer_encoder_close(j->workers[i].encoder);
        token_list_free(&j->workers[i].ids);
        free(j->workers[i].out.buffer);
        free(j->workers[i].text);
    }
    free(j->workers);
    free(j->b.lines);
    free(j->b.text);
}

int tokenize_lines(const struct tokenizer *t, const struct tokenize_options *o, FILE *in, FILE *out,
                   struct tokenize_counts *counts, struct err *e) {
    struct job j = {.t = t, .o = o, .counts = counts};
    struct pool *pool = NULL;
    *counts = (struct tokenize_counts){0};
    int rc = open_workers(&j, e);
    if (rc == 0)
        rc = pool_open(&pool, o->threads, 0, e);
    if (rc == 0)
        rc = run_batches(&j, in, out, pool, e);
    if (pool)
        pool_close(pool);
    close_workers(&j);
    return rc;
}
