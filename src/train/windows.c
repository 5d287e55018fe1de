// windows.c - see windows.h.
#include "train/windows.h"

#include <stdlib.h>
#include <string.h>

int windows_open(struct windows *w, const struct dataset *data, enum dataset_split split,
                 int64_t batch, int64_t columns, struct err *e) {
    const size_t seq = (size_t)dataset_seq(data);
    *w = (struct windows){.data = data, .split = split, .batch = batch, .columns = columns};
    bool all = (w->whole = calloc(seq * WINDOW_ARRAYS, sizeof *w->whole)) != NULL;
    for (int i = 0; i < WINDOW_ARRAYS; i++)
        all &= (w->arrays[i] = calloc((size_t)(batch * columns), sizeof *w->arrays[i])) != NULL;
    all &= (w->scratch = malloc(dataset_scratch_bytes(data) + 1)) != NULL;
    if (!all)
        return err_set(e, ERR_MEMORY, "out of memory for %lld windows of %lld tokens",
                       (long long)batch, (long long)columns);
    dataset_scratch_clear(data, w->scratch);
    return 0;
}

void windows_close(struct windows *w) {
    for (int i = 0; i < WINDOW_ARRAYS; i++)
        free(w->arrays[i]);
    free(w->whole);
    free(w->scratch);
    *w = (struct windows){0};
}

int windows_fetch(struct windows *w, uint64_t sample, struct err *e) {
    const int64_t seq = dataset_seq(w->data);
    int32_t *whole[WINDOW_ARRAYS];
    for (int i = 0; i < WINDOW_ARRAYS; i++)
        whole[i] = w->whole + i * seq;
    const struct dataset_window window = {whole[0], whole[1], whole[2], whole[3]};
    w->trained = 0;
    for (int64_t b = 0; b < w->batch; b++) {
        TRY(dataset_fetch(w->data, w->split, sample + (uint64_t)b, w->scratch, &window, e));
        for (int i = 0; i < WINDOW_ARRAYS; i++)
            memcpy(w->arrays[i] + b * w->columns, whole[i],
                   (size_t)w->columns * sizeof *w->arrays[i]);
        for (int64_t t = 0; t < w->columns; t++)
            w->trained += whole[1][t] >= 0;
    }
    return 0;
}

int windows_feed(void *arg, int micro, struct exec_batch *out, struct err *e) {
    const struct windows *w = arg;
    (void)micro, (void)e;
    *out = (struct exec_batch){w->arrays[0], w->arrays[1], w->arrays[2], w->arrays[3]};
    return 0;
}
