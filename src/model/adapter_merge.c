// adapter_merge.c - see adapter_merge.h. A row of the stored matrix gets `rank` multiples of the
// rows of the other factor: of A where matrices are stored [out, in], and of B', whose rows are
// made once for each weight, where they are stored [in, out].
#include "model/adapter_merge.h"

#include <stdlib.h>
#include <string.h>

struct adapter_merge {
    struct adapter adapter;
    struct model_shape shape;
    adapter_read_fn *base, *pair;
    void *arg;
    char weight[sizeof((struct model_param *)NULL)->name]; // whose pair is held; "": none
    float *by_row;                                         // [stored rows][rank]
    float *rows;                                           // [rank][stored columns]
    float *delta;                                          // of one row
};

int adapter_merge_open(struct adapter_merge **out, const struct adapter *a,
                       const struct model_shape *s, adapter_read_fn *base, adapter_read_fn *pair,
                       void *arg, struct err *e) {
    *out = malloc(sizeof **out);
    if (*out == NULL)
        return err_set(e, ERR_MEMORY, "no memory to merge an adapter");
    **out =
        (struct adapter_merge){.adapter = *a, .shape = *s, .base = base, .pair = pair, .arg = arg};
    return 0;
}

static void forget_pair(struct adapter_merge *m) {
    free(m->by_row);
    free(m->rows);
    free(m->delta);
    m->by_row = m->rows = m->delta = NULL;
    m->weight[0] = '\0';
}

void adapter_merge_close(struct adapter_merge *m) {
    if (m == NULL)
        return;
    forget_pair(m);
    free(m);
}

// Reads a [rows][columns] tensor and turns it into [columns][rows].
static int read_turned(struct adapter_merge *m, const struct model_param *p, float *out,
                       struct err *e) {
    const int64_t rows = p->dims[0], columns = p->dims[1];
    float *row = malloc((size_t)columns * sizeof *row);
    int rc = row != NULL ? 0 : err_set(e, ERR_MEMORY, "no memory to merge '%s'", p->name);
    for (int64_t r = 0; rc == 0 && r < rows; r++) {
        rc = m->pair(m->arg, p, r * columns, columns, row, e);
        for (int64_t c = 0; rc == 0 && c < columns; c++)
            out[c * rows + r] = row[c];
    }
    free(row);
    return rc;
}

static int read_pair(struct adapter_merge *m, const struct model_param *weight, struct err *e) {
    const size_t rank = (size_t)m->adapter.rank;
    const size_t rows = (size_t)weight->dims[0], columns = (size_t)weight->dims[1];
    struct model_param a, b;
    adapter_param(&m->adapter, &m->shape, weight, false, &a);
    adapter_param(&m->adapter, &m->shape, weight, true, &b);
    forget_pair(m);
    m->by_row = malloc(rows * rank * sizeof *m->by_row);
    m->rows = malloc(rank * columns * sizeof *m->rows);
    m->delta = malloc(columns * sizeof *m->delta);
    if (m->by_row == NULL || m->rows == NULL || m->delta == NULL)
        return err_set(e, ERR_MEMORY, "no memory to merge '%s'", weight->name);
    if (m->shape.in_out_weights) { // A' [in, rank], B' [rank, out]
        TRY(read_turned(m, &a, m->by_row, e));
        TRY(read_turned(m, &b, m->rows, e));
    } else {
        TRY(m->pair(m->arg, &b, 0, (int64_t)(rows * rank), m->by_row, e));
        TRY(m->pair(m->arg, &a, 0, (int64_t)(rank * columns), m->rows, e));
    }
    strcpy(m->weight, weight->name);
    return 0;
}

static void make_row(struct adapter_merge *m, int64_t row, int64_t columns) {
    memset(m->delta, 0, (size_t)columns * sizeof *m->delta);
    for (int64_t r = 0; r < m->adapter.rank; r++) {
        const float factor = m->by_row[row * m->adapter.rank + r];
        const float *x = m->rows + r * columns;
        for (int64_t c = 0; c < columns; c++)
            m->delta[c] += factor * x[c];
    }
}

int adapter_merge_read(struct adapter_merge *m, const struct model_param *weight, int64_t first,
                       int64_t n, float *out, struct err *e) {
    const float scale = (float)adapter_scale(&m->adapter);
    const int64_t columns = weight->dims[1];
    TRY(m->base(m->arg, weight, first, n, out, e));
    if (!adapter_targets(&m->adapter, &m->shape, weight))
        return 0;
    if (strcmp(m->weight, weight->name) != 0)
        TRY(read_pair(m, weight, e));
    for (int64_t at = 0; at < n;) {
        const int64_t row = (first + at) / columns, column = (first + at) % columns;
        int64_t run = columns - column;
        run = run < n - at ? run : n - at;
        make_row(m, row, columns);
        for (int64_t c = 0; c < run; c++)
            out[at + c] += scale * m->delta[column + c];
        at += run;
    }
    return 0;
}
