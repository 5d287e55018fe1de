// safetensors_fill.c - fills parts of a weight file that another process has reserved. What the
// file holds is read from its header, so all that write to it agree.
#include "model/names.h"
#include "model/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct safetensors_filler {
    struct safetensors *header;
    int fd;
    char *path;
};

int safetensors_filler_open(struct safetensors_filler **out, const char *unfinished,
                            struct err *e) {
    struct safetensors_filler *f = *out = calloc(1, sizeof *f);
    if (f)
        f->path = strdup(unfinished);
    if (!f || !f->path) {
        free(f);
        *out = NULL;
        return err_set(e, ERR_MEMORY, "no memory to write '%s'", unfinished);
    }
    f->fd = open(unfinished, O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY);
    int rc = f->fd >= 0 ? safetensors_open(&f->header, unfinished, e)
                        : err_set(e, ERR_IO,
                                  "cannot open '%s', which rank 0 has made: %s; ranks on several "
                                  "machines need run.dir on a disk that all of them share",
                                  unfinished, strerror(errno));
    if (rc != 0) {
        safetensors_filler_close(f, NULL);
        *out = NULL;
    }
    return rc;
}

int safetensors_filler_put(struct safetensors_filler *f, const char *name, int64_t first, int64_t n,
                           const void *data, struct err *e) {
    const struct safetensors_entry *t = safetensors_find(f->header, name);
    char quoted[NAMES_QUOTE_BYTES];
    if (!t || first < 0 || n < 0 || first > t->elements - n)
        return err_set(e, ERR_INTERNAL, "'%s' has no elements %lld to %lld of tensor %s", f->path,
                       (long long)first, (long long)(first + n), names_quote(quoted, name));
    const uint64_t width = dtype_bytes(t->dtype);
    uint64_t at = safetensors_data_start(f->header) + t->begin + (uint64_t)first * width,
             left = (uint64_t)n * width;
    for (const char *from = data; left > 0;) {
        const ssize_t put = pwrite(f->fd, from, left < 1u << 30 ? left : 1u << 30, (off_t)at);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return err_set(e, ERR_IO, "cannot write '%s': %s", f->path,
                           put < 0 ? strerror(errno) : "the device accepts no more data");
        from += put;
        at += (uint64_t)put;
        left -= (uint64_t)put;
    }
    return 0;
}

int safetensors_filler_close(struct safetensors_filler *f, struct err *e) {
    int rc = 0;
    if (!f)
        return 0;
    if (f->fd >= 0 && fsync(f->fd) != 0)
        rc = err_set(e, ERR_IO, "cannot sync '%s': %s", f->path, strerror(errno));
    if (f->fd >= 0 && close(f->fd) != 0 && errno != EINTR && rc == 0)
        rc = err_set(e, ERR_IO, "cannot close '%s': %s", f->path, strerror(errno));
    safetensors_close(f->header);
    free(f->path);
    free(f);
    return rc;
}
