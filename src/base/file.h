// file.h - files: whole reads with a size limit, durable writes.
//
// A durable write goes to a temporary file beside the target, checks every return value, then does
// fsync, rename, and fsync of the directory. A failed fsync is never retried, because the kernel
// may have dropped the pages. The file then counts as lost.
#ifndef HAGGLE_BASE_FILE_H
#define HAGGLE_BASE_FILE_H

#include "base/err.h"
#include "base/hash.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Reads a regular file of at most max_bytes into malloc'd memory with a NUL after the last byte.
// Fails with ERR_IO, or with ERR_FORMAT when the file is too large or not a regular file.
int file_read_all(const char *path, size_t max_bytes, char **out, size_t *out_bytes, struct err *e);

// Opens a regular file to read it and to append to it, and creates it if it does not exist. A link,
// a pipe, a socket or a device in its place is ERR_IO and is neither followed nor waited for.
int file_open_append(const char *path, int *fd, struct err *e);
// Whether a path still names the file or folder that is open as fd.
bool file_is_open_as(const char *path, int fd);

// Sequential durable writer. begin creates `path`.tmp. end does fsync, close, rename, and fsync of
// the directory. abort removes the temporary file. After any failure the caller calls abort.
struct file_writer {
    int fd;
    uint64_t bytes; // written so far
    // May be set by the caller after begin. Every byte written is then also hashed.
    struct hash *hash;
    char path[1024], tmp[1040];
};
int file_writer_begin(struct file_writer *w, const char *path, struct err *e);
int file_writer_put(struct file_writer *w, const void *data, size_t bytes, struct err *e);
// Takes room on the disk for a file of `bytes` bytes, so that others may fill it. What was put so
// far is then on the disk. `bytes` of the writer becomes that size, and w->hash no longer counts.
int file_writer_reserve(struct file_writer *w, uint64_t bytes, struct err *e);
int file_writer_end(struct file_writer *w, struct err *e);
void file_writer_abort(struct file_writer *w);
// begin + put + end
int file_write_atomic(const char *path, const void *data, size_t bytes, struct err *e);

// A durable write replaces what `path` names with a new file. That would destroy a device, a pipe,
// a socket or a folder (or a link to one), so those fail with ERR_USAGE. A path that does not
// exist, a regular file, and links to either are accepted. When the path is a link, the link is
// replaced.
int file_check_replaceable(const char *path, struct err *e);
// Whether two paths name the same entry of the same folder, so that writing one replaces the other.
bool file_same_entry(const char *a, const char *b);
// Whether two paths name the same file, also through links. False when one does not exist.
bool file_same(const char *a, const char *b);

int file_make_dirs(const char *path, struct err *e);   // mkdir -p, mode 0777 & ~umask
int file_make_parent(const char *path, struct err *e); // the same for the folder that holds path
// Makes a new folder that only this user can access, below $TMPDIR or else /tmp. Writes its path to
// out, or "" on failure.
int file_make_temp_dir(char *out, size_t out_bytes, const char *name, struct err *e);
// The same, with a lock on the folder. Close *lock after it was removed. Folders of this name
// that a killed process left there are removed first.
int file_make_locked_dir(char *out, size_t out_bytes, const char *name, int *lock, struct err *e);
// Locks an open file or folder, until it is closed or the process ends. False when it is locked
// already, or when the filesystem has no locks.
bool file_lock(int fd);
// Removes a file or folder of this user unless it is locked: the process that made it was killed.
void file_remove_abandoned(const char *path);
enum file_place { FILE_CACHE, FILE_DATA };
// The path of haggle/NAME in the user's cache folder ($XDG_CACHE_HOME, else ~/.cache) or data
// folder ($XDG_DATA_HOME, else ~/.local/share). Creates nothing. ERR_UNSUPPORTED when neither
// variable nor HOME is set, or when the path does not fit.
int file_user_path(char *out, size_t out_bytes, enum file_place place, const char *name,
                   struct err *e);
int file_sync_dir(const char *path, struct err *e); // fsync of a directory
// Renames, then does fsync of the directory of `to`.
int file_rename(const char *from, const char *to, struct err *e);
// Like rm -r. Never follows symbolic links. A path that does not exist is a success. A path whose
// last component is not a name ("/", ".", "x/..") is ERR_USAGE.
int file_remove_tree(const char *path, struct err *e);
bool file_exists(const char *path);
// ERR_IO with both names when the path is a symbolic link to something that does not exist.
int file_refuse_dead_link(const char *path, struct err *e);
bool file_is_dir(const char *path);
int file_size(const char *path, uint64_t *out, struct err *e);
// The fingerprint (base/hash.h) of the first `bytes` bytes of an open file. ERR_FORMAT: it is
// shorter.
int file_hash(int fd, const char *path, uint64_t bytes, char out[HASH_TEXT_BYTES], struct err *e);
// Bytes that an unprivileged user can still write on the filesystem of `dir`.
int file_free_bytes(const char *dir, uint64_t *out, struct err *e);
// Joins dir and name into the caller's buffer. ERR_USAGE when the result does not fit.
int file_join(char *out, size_t out_bytes, const char *dir, const char *name, struct err *e);
// Calls fn for each entry name except . and .., in sorted order. Stops when fn returns non-zero and
// returns that value.
int file_list_dir(const char *path, int (*fn)(void *arg, const char *name), void *arg,
                  struct err *e);

#endif
