// fuzz_safetensors.c - model/safetensors.h: the tensors of an accepted file cover its data, and all
// of them can be read. The mutator mostly changes the header's text and then corrects its length,
// because a random length is refused at once.
#include "fuzz.h"

#include "base/err.h"
#include "model/safetensors.h"

enum { LENGTH_BYTES = 8 };

static void put_length(uint8_t *data, uint64_t n) {
    for (int i = 0; i < LENGTH_BYTES; i++)
        data[i] = (uint8_t)(n >> 8 * i);
}

static uint64_t get_length(const uint8_t *data) {
    uint64_t n = 0;
    for (int i = 0; i < LENGTH_BYTES; i++)
        n |= (uint64_t)data[i] << 8 * i;
    return n;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t bytes, size_t most, unsigned seed) {
    if (seed % 16 == 0 || bytes < LENGTH_BYTES || most > 1 << 20 ||
        get_length(data) > bytes - LENGTH_BYTES)
        return LLVMFuzzerMutate(data, bytes, most);
    size_t header = (size_t)get_length(data), tail = bytes - LENGTH_BYTES - header;
    uint8_t *data_part = malloc(tail + 1);
    if (data_part == NULL || most < LENGTH_BYTES + tail + 2) {
        free(data_part);
        return LLVMFuzzerMutate(data, bytes, most);
    }
    memcpy(data_part, data + LENGTH_BYTES + header, tail);
    header = LLVMFuzzerMutate(data + LENGTH_BYTES, header, most - LENGTH_BYTES - tail);
    memcpy(data + LENGTH_BYTES + header, data_part, tail);
    put_length(data, header);
    free(data_part);
    return LENGTH_BYTES + header + tail;
}

static void read_entry(struct safetensors *st, const struct safetensors_entry *t) {
    enum { PIECE = 64 };
    char out[PIECE * 8];
    struct err e = {0};
    for (int type = 0; type < DTYPE_COUNT; type++) {
        int64_t n = t->elements < PIECE ? t->elements : PIECE;
        int rc = safetensors_read(st, t, t->elements - n, n, out, (enum dtype)type, &e);
        FUZZ_CHECK(rc == 0 || rc == ERR_UNSUPPORTED);
        if ((int)t->dtype == type)
            FUZZ_CHECK(rc == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static struct fuzz_file file;
    struct safetensors *st;
    struct err e = {0};
    int rc = safetensors_open(&st, fuzz_file_set(&file, data, bytes), &e);
    FUZZ_CHECK_RESULT(rc, &e);
    FUZZ_CHECK((rc == 0) == (st != NULL));
    if (rc != 0)
        return 0;
    uint64_t at = 0;
    for (size_t i = 0; i < safetensors_count(st); i++) {
        const struct safetensors_entry *t = safetensors_at(st, i);
        FUZZ_CHECK(t->begin == at);
        FUZZ_CHECK(safetensors_find(st, t->name) == t);
        at += t->bytes;
        if (i < 16)
            read_entry(st, t);
    }
    FUZZ_CHECK(at == bytes - LENGTH_BYTES - get_length(data));
    safetensors_close(st);
    return 0;
}
