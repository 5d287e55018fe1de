// jsonl.c - appending to the training log, and healing it after a crash.
#include "report/jsonl.h"

#include "base/file.h"
#include "base/region.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// The end of the file is searched for a torn line. This is far longer than any line of a log.
enum { TAIL_BYTES = 1 << 16 };

static int fail(struct err *e, const struct jsonl *j, const char *what) {
    return err_set(e, ERR_IO, "%s: the log cannot be %s: %s", j->path, what, strerror(errno));
}

static int write_all(struct jsonl *j, const char *data, size_t bytes, struct err *e) {
    while (bytes > 0) {
        ssize_t n = write(j->fd, data, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail(e, j, "written");
        data += n;
        bytes -= (size_t)n;
    }
    return 0;
}

static bool is_whole(const char *line, size_t bytes) {
    struct region strings = {0};
    struct json_reader r;
    json_reader_init(&r, "log", line, bytes, &strings, NULL);
    bool object = json_peek(&r) == JSON_OBJECT;
    json_skip(&r);
    bool whole = json_finish(&r) == 0 && object;
    region_free(&strings);
    return whole;
}

// The file should end in a newline. If it does not, the write of its last line was cut short: the
// line lacks only its newline, or it is torn.
static int heal(struct jsonl *j, uint64_t *healed_bytes, struct err *e) {
    off_t end = lseek(j->fd, 0, SEEK_END);
    if (end <= 0) // 0: a new file
        return end == 0 ? 0 : fail(e, j, "examined");
    size_t bytes = end < TAIL_BYTES ? (size_t)end : TAIL_BYTES;
    char *tail = malloc(bytes);
    if (tail == NULL)
        return err_set(e, ERR_MEMORY, "%s: no memory to check the log's end", j->path);
    int rc = 0;
    size_t have = 0;
    while (have < bytes) {
        ssize_t n = pread(j->fd, tail + have, bytes - have, end - (off_t)(bytes - have));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            rc = fail(e, j, "read");
            break;
        }
        have += (size_t)n;
    }
    if (rc == 0 && tail[bytes - 1] != '\n') {
        const char *newline = memrchr(tail, '\n', bytes);
        const char *line = newline != NULL ? newline + 1 : tail;
        size_t torn = (size_t)(tail + bytes - line);
        if (is_whole(line, torn)) {
            rc = write_all(j, "\n", 1, e);
        } else if (newline == NULL && (off_t)bytes < end) {
            rc = err_set(e, ERR_FORMAT,
                         "%s: this is not a log: its last line is longer than %d bytes", j->path,
                         TAIL_BYTES);
        } else if (ftruncate(j->fd, end - (off_t)torn) != 0) {
            rc = fail(e, j, "repaired");
        } else {
            *healed_bytes = torn;
        }
    }
    free(tail);
    return rc;
}

int jsonl_open(struct jsonl *j, const char *path, uint64_t *healed_bytes, struct err *e) {
    *j = (struct jsonl){.fd = -1};
    size_t n = strlen(path);
    if (n == 0 || n >= sizeof j->path)
        return err_set(e, ERR_USAGE,
                       "log: a path of %zu characters is not accepted; accepted: 1 to %zu", n,
                       sizeof j->path - 1);
    memcpy(j->path, path, n + 1);
    uint64_t healed = 0;
    if (file_open_append(path, &j->fd, e) != 0)
        return err_context(e, "the log");
    int rc = heal(j, &healed, e);
    if (rc != 0) {
        close(j->fd);
        j->fd = -1;
        return rc;
    }
    if (healed_bytes != NULL)
        *healed_bytes = healed;
    json_writer_to_buffer(&j->line, 0);
    return 0;
}

struct json_writer *jsonl_begin(struct jsonl *j) {
    // The buffer is kept from line to line, so that lines rarely allocate.
    char *buffer = j->line.buffer;
    size_t capacity = j->line.capacity;
    json_writer_to_buffer(&j->line, 0);
    j->line.buffer = buffer;
    j->line.capacity = capacity;
    json_put_object_begin(&j->line);
    return &j->line;
}

int jsonl_end(struct jsonl *j, struct err *e) {
    struct json_writer *w = &j->line;
    json_put_object_end(w);
    TRY(json_writer_finish(w, e));
    w->buffer[w->bytes] = '\n'; // replaces the NUL, so that the line is a single write
    return write_all(j, w->buffer, w->bytes + 1, e);
}

int jsonl_put(struct jsonl *j, const struct jsonl_record *r, struct err *e) {
    struct json_writer *w = jsonl_begin(j);
    json_member_i64(w, "step", r->step);
    json_member_double(w, "loss", r->loss);
    json_member_double(w, "lr", r->lr);
    json_member_double(w, "grad_norm", r->grad_norm);
    json_member_i64(w, "tokens", (int64_t)r->tokens);
    json_member_double(w, "tokens_per_s", r->tokens_per_s);
    json_member_double(w, "step_ms", r->step_ms);
    json_member_double(w, "data_wait_ms", r->data_wait_ms);
    if (!isnan(r->validation_loss))
        json_member_double(w, "validation_loss", r->validation_loss);
    if (r->has_noise) {
        json_member_double(w, "noise_scale", r->noise_tokens);
        json_member_double(w, "noise_scale_sequences", r->noise_sequences);
    }
    json_member_double(w, "time", r->time);
    return jsonl_end(j, e);
}

int jsonl_close(struct jsonl *j, struct err *e) {
    int rc = 0;
    if (j->fd >= 0) {
        if (fsync(j->fd) != 0 && errno != EINVAL) // EINVAL: the filesystem cannot sync
            rc = fail(e, j, "saved");
        if (close(j->fd) != 0 && rc == 0)
            rc = fail(e, j, "closed");
    }
    free(j->line.buffer);
    *j = (struct jsonl){.fd = -1};
    return rc;
}
