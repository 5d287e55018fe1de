// shard_task.h - shared by shard_obtain.c (looks for a shard) and shard_build.c (makes one).
#ifndef HAGGLE_DATA_SHARD_TASK_H
#define HAGGLE_DATA_SHARD_TASK_H

#include "data/shard.h"

#include <limits.h>

struct shard_task {
    const struct shard_source *source;
    const struct shard_options *o;
    const char *name; // for messages
    uint64_t of_bytes, read_bytes, tokens;
    uint64_t begin_ns, told_ns;
};

// Called between two pieces of work. Reports progress when it is due. ERR_STOPPED on request.
int shard_task_tell(struct shard_task *t, struct err *e);
// Reads until `most` or the end of the file.
int shard_task_read(const struct shard_task *t, int fd, char *to, size_t most, size_t *got,
                    struct err *e);
void shard_task_say(const struct shard_task *t, enum log_level level, const char *format, ...)
    ERR_PRINTF(3, 4);
// The path of the file that lists the bad lines of the shard at `path`.
void shard_bad_path(const char *path, char out[PATH_MAX]);
// Renders the source into a shard at `path` (NULL: in memory). *write_failed: the error comes from
// writing the shard, not from the source.
int shard_make(struct shard_task *t, const char *path, const char *key, struct shard *out,
               bool *write_failed, struct err *e);

#endif
