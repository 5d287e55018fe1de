// fuzz_adapter.c - the folder of an adapter. The input is adapter_config.json up to its first zero
// byte (JSON has none), then adapter_model.safetensors. Without the latter the tensors are a valid
// adapter on q_proj.
#include "fuzz.h"

#include "base/err.h"
#include "base/file.h"
#include "model/adapter_file.h"
#include "model/safetensors.h"

#include <fcntl.h>
#include <math.h>

static struct {
    char dir[256];
    int config, weights;
    struct model_shape shape;
    char *valid; // tensors
    size_t valid_bytes;
} folder;

static int create(const char *name, char path[300]) {
    snprintf(path, 300, "%s/%s", folder.dir, name);
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
    free(folder.valid);
}

static int give(void *arg, const struct model_param *p, int64_t first, int64_t n, float *out,
                struct err *e) {
    (void)arg, (void)p, (void)e;
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)(first + i);
    return 0;
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    char path[300];
    const struct adapter a = {.rank = 1, .alpha = 1, .targets = "q_proj"};
    struct model_shape *s = &folder.shape;
    if (access("/dev/shm", W_OK) == 0) // faster, because each input writes two files
        FUZZ_CHECK(setenv("TMPDIR", "/dev/shm", 1) == 0);
    FUZZ_CHECK(file_make_temp_dir(folder.dir, sizeof folder.dir, "fuzz", NULL) == 0);
    atexit(clean_up);
    FUZZ_CHECK(model_shape_builtin(s, "llama-8b", NULL) == 0);
    s->vocab = 3, s->width = 4, s->heads = 2, s->kv_heads = 1, s->head_dim = 2, s->ffn = 5;
    s->layers = 1;
    s->bos_id = s->eos_id = -1;
    FUZZ_CHECK(model_shape_check(s, NULL) == 0);
    const struct adapter_save save = {.adapter = &a, .shape = s, .dtype = DTYPE_F32, .read = give};
    snprintf(path, sizeof path, "%s/" ADAPTER_FILE, folder.dir);
    FUZZ_CHECK(adapter_save_weights(&save, path, NULL, NULL, NULL) == 0);
    FUZZ_CHECK(file_read_all(path, 1 << 16, &folder.valid, &folder.valid_bytes, NULL) == 0);
    folder.weights = create(ADAPTER_FILE, path);
    folder.config = create(ADAPTER_CONFIG, path);
    return 0;
}

// What was accepted is a pair of finite matrices for every target, and nothing more.
static void check_accepted(struct adapter_file *f) {
    const struct adapter_config *c = adapter_file_config(f);
    const struct adapter *a = &c->adapter;
    struct model_param p;
    float out[64];
    struct err e = {0};
    FUZZ_CHECK(a->rank >= 1 && a->rank <= 4);
    FUZZ_CHECK(isfinite(adapter_scale(a)) && adapter_scale(a) > 0);
    FUZZ_CHECK(adapter_check(a, &folder.shape, NULL) == 0);
    FUZZ_CHECK(adapter_param_count(a, &folder.shape) > 0);
    for (int64_t i = 0; adapter_param_at(a, &folder.shape, i, &p); i++) {
        const int64_t n = p.dims[0] * p.dims[1];
        FUZZ_CHECK(n <= 64 && adapter_file_read(f, &p, 0, n, out, DTYPE_F32, &e) == 0);
        FUZZ_CHECK(dtype_first_not_finite(out, DTYPE_F32, (size_t)n) < 0);
    }
    for (int64_t i = 0; model_param_at(&folder.shape, i, &p); i++)
        if (adapter_config_replaces(c, &p))
            FUZZ_CHECK(!adapter_targets(a, &folder.shape, &p) || c->by_pattern);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    const uint8_t *zero = bytes > 0 ? memchr(data, 0, bytes) : NULL;
    const size_t config_bytes = zero != NULL ? (size_t)(zero - data) : bytes;
    struct adapter_file *f;
    struct err e = {0};
    put_bytes(folder.config, data, config_bytes);
    if (zero != NULL && config_bytes + 1 < bytes)
        put_bytes(folder.weights, zero + 1, bytes - config_bytes - 1);
    else
        put_bytes(folder.weights, folder.valid, folder.valid_bytes);
    int rc = adapter_file_open(&f, folder.dir, &folder.shape, &e);
    FUZZ_CHECK_RESULT(rc, &e);
    FUZZ_CHECK((rc == 0) == (f != NULL));
    for (const char *c = e.text; *c != '\0'; c++)
        FUZZ_CHECK((unsigned char)*c >= 0x20 && *c != 0x7f);
    if (rc == 0)
        check_accepted(f);
    adapter_file_close(f);
    return 0;
}
