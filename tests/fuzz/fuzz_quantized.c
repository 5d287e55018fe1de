// fuzz_quantized.c - a quantized model folder: an untrusted config.json and untrusted weights. The
// input is the config.json up to its first zero byte (JSON has none), then model.safetensors. Every
// matrix that is accepted has known parts, finite scales and codes in range.
#include "fuzz.h"

#include "base/err.h"
#include "base/file.h"
#include "model/load.h"
#include "model/quantized.h"

#include <fcntl.h>
#include <math.h>

static struct {
    char dir[256], path[300];
    int config, weights;
} folder;

static int create(const char *name, char *path, size_t bytes) {
    snprintf(path, bytes, "%s/%s", folder.dir, name);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    FUZZ_CHECK(fd >= 0);
    return fd;
}

static void put_bytes(int fd, const void *data, size_t bytes) {
    FUZZ_CHECK(ftruncate(fd, 0) == 0);
    FUZZ_CHECK(bytes == 0 || pwrite(fd, data, bytes, 0) == (ssize_t)bytes);
}

static void clean_up(void) {
    file_remove_tree(folder.dir, NULL);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    char path[300];
    if (access("/dev/shm", W_OK) == 0) // faster, because each input writes two files
        FUZZ_CHECK(setenv("TMPDIR", "/dev/shm", 1) == 0);
    FUZZ_CHECK(file_make_temp_dir(folder.dir, sizeof folder.dir, "fuzz", NULL) == 0);
    atexit(clean_up);
    folder.config = create("config.json", folder.path, sizeof folder.path);
    folder.weights = create("model.safetensors", path, sizeof path);
    return 0;
}

// An accepted matrix is finite in every element.
static void check_values(struct storage s, const struct model_param *p, const void *data) {
    struct storage_parts parts;
    float row[256];
    FUZZ_CHECK(storage_layout(s, p->dims[0], p->dims[1], &parts));
    for (int64_t j = 0; j < p->dims[0]; j++)
        for (int64_t at = 0; at < p->dims[1]; at += 256) {
            const int64_t n = p->dims[1] - at < 256 ? p->dims[1] - at : 256;
            storage_read_row(s, &parts, data, j, at, n, row);
            for (int64_t i = 0; i < n; i++)
                FUZZ_CHECK(isfinite(row[i]));
        }
}

static void check_weights(const struct model_shape *shape, const struct quantized *q) {
    struct weights *w;
    struct err e = {0};
    struct model_param p;
    int rc = weights_open(&w, folder.dir, &e);
    FUZZ_CHECK_RESULT(rc, &e);
    if (rc != 0)
        return;
    rc = weights_refuse_extra(w, shape, q, &e);
    FUZZ_CHECK_RESULT(rc, &e);
    for (int64_t i = 0; i < 64 && model_param_at(shape, i, &p); i++) {
        const struct storage s = quantized_as(q, &p);
        struct storage_parts parts;
        quantized_turn(shape, &p);
        if (storage_plain(s))
            continue;
        FUZZ_CHECK(storage_layout(s, p.dims[0], p.dims[1], &parts)); // quantized_read has checked
        if (parts.bytes > 1 << 20)
            continue;
        void *data = malloc(parts.bytes + 1);
        FUZZ_CHECK(data != NULL);
        e = (struct err){0};
        rc = quantized_load(w, s, &p, data, &e);
        FUZZ_CHECK_RESULT(rc, &e);
        if (rc == 0)
            check_values(s, &p, data);
        free(data);
    }
    weights_close(w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    const uint8_t *zero = bytes > 0 ? memchr(data, 0, bytes) : NULL;
    const size_t config = zero != NULL ? (size_t)(zero - data) : bytes,
                 rest = zero != NULL ? config + 1 : bytes;
    struct model_shape shape;
    struct quantized q;
    struct err e = {0};
    put_bytes(folder.config, data, config);
    put_bytes(folder.weights, data + rest, bytes - rest);
    int rc = model_shape_read_config(&shape, folder.path, &e);
    FUZZ_CHECK_RESULT(rc, &e);
    if (rc != 0 || shape.layers > 1000)
        return 0;
    e = (struct err){0};
    rc = quantized_read(&q, folder.dir, &shape, &e);
    FUZZ_CHECK_RESULT(rc, &e);
    if (rc != 0)
        return 0;
    if (quantized_any(&q))
        check_weights(&shape, &q);
    quantized_free(&q);
    return 0;
}
