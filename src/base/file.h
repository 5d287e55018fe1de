// file.h - files: whole reads with a ceiling, read-only maps, durable writes.
//
// Durable means: temporary file beside the target, every return checked, fsync, rename, fsync of
// the directory. A failed fsync is never retried (the kernel may have dropped the pages): the file
// is void.
#ifndef HAGGLE_BASE_FILE_H
#define HAGGLE_BASE_FILE_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Reads a regular file of at most max_bytes into malloc'd memory with a NUL after the last byte.
// ERR_IO, ERR_FORMAT (too large, not a regular file).
int file_read_all(const char *path, size_t max_bytes, char **out, size_t *out_bytes, struct err *e);

struct file_map {
    const unsigned char *data; // NULL when the file is empty
    size_t bytes;
};
int file_map_open(struct file_map *m, const char *path, struct err *e);
void file_map_close(struct file_map *m);

// Sequential durable writer. begin creates `path`.tmp; end fsyncs, closes, renames and fsyncs the
// directory; abort removes the temporary file. After any failure call abort.
struct file_writer {
    int fd;
    uint64_t bytes; // written so far
    struct hash
        *hash; // when not NULL (set by the caller after begin), every byte written is also hashed
    char path[1024], tmp[1040];
};
int file_writer_begin(struct file_writer *w, const char *path, struct err *e);
int file_writer_put(struct file_writer *w, const void *data, size_t bytes, struct err *e);
int file_writer_end(struct file_writer *w, struct err *e);
void file_writer_abort(struct file_writer *w);
int file_write_atomic(const char *path, const void *data, size_t bytes,
                      struct err *e); // begin + put + end

// A durable write puts a new file in place of what `path` names. Where that is a device, a pipe, a socket or a
// folder (or a link to one) it would be gone: ERR_USAGE says what it is. Nothing, a regular file and links to
// either are fine; of a link it is the link that is replaced.
int file_check_replaceable(const char *path, struct err *e);
// Whether two paths name the same entry of the same folder, which a second write would replace.
bool file_same_entry(const char *a, const char *b);
// Whether they name the same file, through links, too; false where one is not there.
bool file_same(const char *a, const char *b);

int file_make_dirs(const char *path, struct err *e);   // mkdir -p, mode 0777 & ~umask
int file_make_parent(const char *path, struct err *e); // the same for the folder path is in
// A new folder of this user alone below $TMPDIR (else /tmp), its path into out; "" when it fails.
int file_make_temp_dir(char *out, size_t out_bytes, const char *name, struct err *e);
enum file_place { FILE_CACHE, FILE_DATA };
// haggle/NAME in the user's folder of that kind: $XDG_CACHE_HOME, else ~/.cache; $XDG_DATA_HOME, else
// ~/.local/share. Nothing is made. ERR_UNSUPPORTED without either, and for a path that does not fit.
int file_user_path(char *out, size_t out_bytes, enum file_place place, const char *name,
                   struct err *e);
int file_sync_dir(const char *path, struct err *e);               // fsync of a directory
int file_rename(const char *from, const char *to, struct err *e); // then fsync of to's directory
// rm -r: never follows symbolic links; nothing there is success. A path whose last component is not
// a name ("/", ".", "x/..") is ERR_USAGE.
int file_remove_tree(const char *path, struct err *e);
bool file_exists(const char *path);
bool file_is_dir(const char *path);
int file_size(const char *path, uint64_t *out, struct err *e);
int file_free_bytes(const char *dir, uint64_t *out,
                    struct err *e); // statvfs, for an unprivileged user
// Joins into a caller's buffer; ERR_USAGE naming both parts when it does not fit.
int file_join(char *out, size_t out_bytes, const char *dir, const char *name, struct err *e);
// Calls fn for each entry name except . and .., sorted; fn returning non-zero stops and is
// returned.
int file_list_dir(const char *path, int (*fn)(void *arg, const char *name), void *arg,
                  struct err *e);

#endif
