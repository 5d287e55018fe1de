// evaluate.c - see evaluate.h.
#include "train/evaluate.h"

#include "base/checked.h"
#include "base/clock.h"

#include <math.h>
#include <stdlib.h>

enum { LINE_BYTES = 64, SAMPLES_MOST = 1 << 16, ARRAYS = 4 };

struct evaluator {
    struct session *s;
    struct mem *mem; // of the engine
    const struct dataset *data;
    int64_t B, T;             // sequences, tokens per sequence
    int64_t batches, windows; // of one validation, over all replicas
    int64_t replicas, replica;
    void *block;
    int32_t *arrays[ARRAYS]; // tokens, targets, positions, doc_start: [B*T] each
    void *scratch;
    evaluator_rows_fn *on_rows; // NULL: nobody asks for the losses of rows
    void *on_rows_arg;
    float *rows; // [B*T]
    struct samples batch_ns;
};

// B*T ids, rounded up so that the arrays do not share cache lines. buffers_count has checked that
// the product does not overflow.
static uint64_t array_bytes(const struct knobs *k) {
    uint64_t bytes = (uint64_t)k->batch_micro * (uint64_t)k->seq * sizeof(int32_t);
    return (bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
}

uint64_t evaluator_plan_bytes(const struct knobs *k, const struct dataset *data) {
    return ARRAYS * array_bytes(k) + dataset_scratch_bytes(data);
}

int evaluator_open(struct evaluator **out, struct session *s, const struct dataset *data,
                   struct err *e) {
    *out = NULL;
    uint64_t windows = dataset_windows(data, SPLIT_VALIDATION), wanted;
    if (windows == 0)
        return 0;
    struct evaluator *v = calloc(1, sizeof *v);
    if (v == NULL)
        return err_set(e, ERR_MEMORY, "no memory for validation");
    *v = (struct evaluator){.s = s,
                            .mem = s->engine->mem,
                            .data = data,
                            .B = s->plan->knobs.batch_micro,
                            .replicas = mesh_size(&s->plan->ranks.mesh, AXIS_DATA),
                            .replica = s->plan->ranks.mesh.at[AXIS_DATA],
                            .T = s->plan->knobs.seq};
    if (!checked_mul_u64((uint64_t)s->plan->knobs.eval_batches, (uint64_t)v->B, &wanted))
        wanted = INT64_MAX;
    v->windows = (int64_t)(wanted < windows ? wanted : windows);
    v->batches = (v->windows + v->B - 1) / v->B;
    int rc = mem_take(v->mem, "data", "validation batch",
                      (size_t)evaluator_plan_bytes(&s->plan->knobs, data), &v->block, e);
    if (rc == 0)
        rc = samples_open(&v->batch_ns,
                          (size_t)(v->batches < SAMPLES_MOST ? v->batches : SAMPLES_MOST), e);
    if (rc != 0) {
        evaluator_close(v);
        return rc;
    }
    char *at = v->block;
    for (int i = 0; i < ARRAYS; i++, at += array_bytes(&s->plan->knobs))
        v->arrays[i] = (int32_t *)(void *)at;
    v->scratch = at;
    dataset_scratch_clear(data, v->scratch);
    *out = v;
    return 0;
}

void evaluator_close(struct evaluator *v) {
    if (v == NULL)
        return;
    if (v->block != NULL)
        mem_give(v->mem, v->block);
    if (v->rows != NULL)
        mem_give(v->mem, v->rows);
    samples_close(&v->batch_ns);
    free(v);
}

int evaluator_on_rows(struct evaluator *v, evaluator_rows_fn *fn, void *arg, struct err *e) {
    void *rows = NULL;
    TRY(mem_take(v->mem, "data", "losses of rows", (size_t)(v->B * v->T) * sizeof(float), &rows,
                 e));
    v->rows = rows;
    v->on_rows = fn;
    v->on_rows_arg = arg;
    return 0;
}

static int tell_rows(struct evaluator *v, int64_t batch, struct err *e) {
    TRY(session_get_row_losses(v->s, v->rows, e));
    for (int64_t b = 0; b < v->B && batch * v->B + b < v->windows; b++)
        TRY(v->on_rows(v->on_rows_arg, (uint64_t)(batch * v->B + b), v->rows + b * v->T, e));
    return 0;
}

// The program's batch size is fixed, so rows beyond the last window repeat it, marked as not
// trained.
static int fill(struct evaluator *v, int64_t batch, struct err *e) {
    for (int64_t b = 0; b < v->B; b++) {
        int64_t sample = batch * v->B + b, at = b * v->T;
        bool beyond = sample >= v->windows;
        const struct dataset_window w = {v->arrays[0] + at, v->arrays[1] + at, v->arrays[2] + at,
                                         v->arrays[3] + at};
        TRY(dataset_fetch(v->data, SPLIT_VALIDATION, (uint64_t)(beyond ? v->windows - 1 : sample),
                          v->scratch, &w, e));
        for (int64_t t = 0; beyond && t < v->T; t++)
            w.targets[t] = DATASET_NOT_TRAINED;
    }
    return 0;
}

static int feed(void *arg, int micro, struct exec_batch *out, struct err *e) {
    const struct evaluator *v = arg;
    (void)micro;
    (void)e;
    *out = (struct exec_batch){v->arrays[0], v->arrays[1], v->arrays[2], v->arrays[3]};
    return 0;
}

int evaluator_run(struct evaluator *v, int64_t step, const volatile sig_atomic_t *stop,
                  exec_yield_fn *between, void *between_arg, struct train_eval *out,
                  struct err *e) {
    static const double P[2] = {0.50, 0.99};
    struct quantile q[2];
    double loss_sum = 0, trained = 0;
    const uint64_t begin_ns = clock_ns();
    uint64_t between_ns = 0; // spent in `between`, which is not validation
    *out = (struct train_eval){.step = step};
    samples_clear(&v->batch_ns);
    // Replicas take batches in turns. Behind the last batch they compute on one that counts
    // nothing, because weights that are dealt out are gathered from all of them.
    for (uint64_t now_ns = begin_ns; out->batches < v->batches; out->batches += v->replicas) {
        double results[RESULT_COUNT];
        if (stop != NULL && *stop)
            break;
        if (between != NULL) {
            TRY(between(between_arg, e));
            between_ns += clock_ns() - now_ns;
            now_ns = clock_ns();
        }
        TRY(fill(v, out->batches + v->replica, e));
        uint64_t filled_ns = clock_ns();
        TRY(session_run(v->s, PLAN_EVAL, feed, v, NULL, e));
        TRY(session_get_results(v->s, results, NULL, e));
        if (v->on_rows != NULL)
            TRY(tell_rows(v, out->batches, e));
        loss_sum += results[RESULT_LOSS_SUM];
        trained += results[RESULT_TOKENS];
        uint64_t end_ns = clock_ns();
        samples_add(&v->batch_ns, (double)(end_ns - now_ns));
        out->data_ns += filled_ns - now_ns;
        now_ns = end_ns;
    }
    if (out->batches > v->batches)
        out->batches = v->batches;
    samples_quantiles(&v->batch_ns, 0, P, 2, q);
    out->batch_p50 = q[0];
    out->batch_p99 = q[1];
    out->tokens = out->batches * v->B * v->T;
    out->trained_tokens = (int64_t)trained;
    out->loss = trained > 0 ? loss_sum / trained : NAN;
    out->total_ns = clock_ns() - begin_ns - between_ns;
    out->complete = out->batches == v->batches;
    return 0;
}
