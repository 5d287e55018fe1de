// fuzz_config.c - config.json: an accepted shape obeys the rules, its parameters can be walked, and
// the config.json written from it reads back to the same shape.
#include "fuzz.h"

#include "model/shape.h"

static char *written(const struct model_shape *s, size_t *bytes) {
    char *text = NULL;
    struct err e = {0};
    FILE *f = open_memstream(&text, bytes);
    FUZZ_CHECK(f != NULL);
    FUZZ_CHECK(model_shape_write_config(s, f, &e) == 0);
    FUZZ_CHECK(fclose(f) == 0);
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static struct fuzz_file file;
    struct model_shape s, back;
    struct model_param p;
    struct err e = {0};
    int rc = model_shape_read_config(&s, fuzz_file_set(&file, data, bytes), &e);
    FUZZ_CHECK_RESULT(rc, &e);
    if (rc != 0)
        return 0;
    FUZZ_CHECK(model_shape_check(&s, &e) == 0);
    int64_t count = model_param_count(&s), elements = model_total_elements(&s);
    FUZZ_CHECK(count > 0 && elements > 0);
    for (int64_t i = 0; i < count && i < 64; i++)
        FUZZ_CHECK(model_param_at(&s, i, &p) && p.dims[0] > 0);
    FUZZ_CHECK(model_param_at(&s, count - 1, &p) && !model_param_at(&s, count, &p));
    size_t first_bytes, second_bytes;
    char *first = written(&s, &first_bytes);
    rc = model_shape_read_config(&back, fuzz_file_set(&file, first, first_bytes), &e);
    if (rc != 0)
        fprintf(stderr, "%s\n%s\n", e.text, first);
    FUZZ_CHECK(rc == 0);
    char *second = written(&back, &second_bytes);
    FUZZ_CHECK(strcmp(first, second) == 0);
    free(first);
    free(second);
    return 0;
}
