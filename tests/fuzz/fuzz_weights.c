// fuzz_weights.c - a model folder with an untrusted index and one untrusted shard. The input is the
// index up to its first zero byte (JSON has none), then the content of a.safetensors. Without the
// latter the shard is a valid one. No file outside the folder may be opened.
#include "fuzz.h"

#include "base/err.h"
#include "base/file.h"
#include "model/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>

static struct {
    char dir[256], outside[256];
    int index, a;
} folder;

static const char one[] = "{\"one\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
                          "\"two\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[2,3]}}";
static const char other[] = "{\"three\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}";

static int create(const char *dir, const char *name) {
    char path[300];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    FUZZ_CHECK(fd >= 0);
    return fd;
}

static void put_shard(int fd, const char *header, size_t data_bytes) {
    uint64_t n = strlen(header);
    FUZZ_CHECK(ftruncate(fd, 0) == 0);
    FUZZ_CHECK(pwrite(fd, &n, 8, 0) == 8);
    FUZZ_CHECK(pwrite(fd, header, n, 8) == (ssize_t)n);
    FUZZ_CHECK(ftruncate(fd, (off_t)(8 + n + data_bytes)) == 0);
}

static void put_bytes(int fd, const void *data, size_t bytes) {
    FUZZ_CHECK(ftruncate(fd, 0) == 0);
    FUZZ_CHECK(bytes == 0 || pwrite(fd, data, bytes, 0) == (ssize_t)bytes);
}

static void clean_up(void) {
    file_remove_tree(folder.dir, NULL);
    file_remove_tree(folder.outside, NULL);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    char link[300], target[300];
    if (access("/dev/shm", W_OK) == 0) // faster, because each input writes two files
        FUZZ_CHECK(setenv("TMPDIR", "/dev/shm", 1) == 0);
    FUZZ_CHECK(file_make_temp_dir(folder.dir, sizeof folder.dir, "fuzz", NULL) == 0);
    FUZZ_CHECK(file_make_temp_dir(folder.outside, sizeof folder.outside, "fuzz", NULL) == 0);
    atexit(clean_up);
    folder.index = create(folder.dir, "model.safetensors.index.json");
    folder.a = create(folder.dir, "a.safetensors");
    int b = create(folder.dir, "b.safetensors"), out = create(folder.outside, "o.safetensors");
    put_shard(b, other, 4);
    put_shard(out, "{\"outside\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}", 1);
    close(b);
    close(out);
    snprintf(link, sizeof link, "%s/link.safetensors", folder.dir);
    snprintf(target, sizeof target, "%s/o.safetensors", folder.outside);
    FUZZ_CHECK(symlink(target, link) == 0);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    const uint8_t *zero = bytes > 0 ? memchr(data, 0, bytes) : NULL;
    size_t index_bytes = zero != NULL ? (size_t)(zero - data) : bytes;
    put_bytes(folder.index, data, index_bytes);
    if (zero != NULL && index_bytes + 1 < bytes)
        put_bytes(folder.a, zero + 1, bytes - index_bytes - 1);
    else
        put_shard(folder.a, one, 3);
    struct weights *w;
    struct err e = {0};
    int rc = weights_open(&w, folder.dir, &e);
    FUZZ_CHECK_RESULT(rc, &e);
    FUZZ_CHECK((rc == 0) == (w != NULL));
    if (rc != 0)
        return 0;
    FUZZ_CHECK(weights_find(w, "outside") == NULL ||
               (zero != NULL && memmem(data, bytes, "outside", 7) != NULL));
    for (size_t i = 0; i < weights_count(w); i++) {
        const struct safetensors_entry *t = weights_at(w, i);
        char out[64];
        FUZZ_CHECK(weights_find(w, t->name) == t);
        if (t->dtype != DTYPE_COUNT && t->elements <= 8)
            FUZZ_CHECK(weights_read(w, t, 0, t->elements, out, t->dtype, &e) == 0);
    }
    weights_close(w);
    return 0;
}
