// session.c - see session.h.
#include "engine/session.h"

#include <stdlib.h>
#include <string.h>

int session_run(struct session *s, const char *program, exec_feed_fn *feed, void *arg,
                struct trace *trace, struct err *e) {
    return exec_run(s->exec, plan_find(s->plan, program), feed, arg, trace, e);
}

// ---------------------------------------------------------------- inputs and results

// Inputs and results persist: PLAN_TRAIN and PLAN_EVAL share them.
static const char *trains_or_evaluates(const struct session *s) {
    return plan_find(s->plan, PLAN_TRAIN) >= 0 ? PLAN_TRAIN : PLAN_EVAL;
}

static int read_doubles(struct session *s, const char *program, const char *name, double *out,
                        int n, struct err *e) {
    return exec_read(s->exec, plan_find(s->plan, program), plan_tensor(s->plan, program, name), out,
                     (uint64_t)n * sizeof *out, e);
}

// A validation whose loss is computed in parts (fuse.loss=false) reads none of it.
int session_set_hyper(struct session *s, const double hyper[HYPER_COUNT], struct err *e) {
    const char *in = trains_or_evaluates(s);
    const int tensor = plan_tensor(s->plan, in, NAME_HYPER);
    if (tensor < 0 && plan_find(s->plan, PLAN_TRAIN) < 0)
        return 0;
    return exec_write(s->exec, plan_find(s->plan, in), tensor, hyper, HYPER_COUNT * sizeof *hyper,
                      e);
}

int session_get_results(struct session *s, double results[RESULT_COUNT], double clip[CLIP_COUNT],
                        struct err *e) {
    const char *in = trains_or_evaluates(s);
    TRY(read_doubles(s, in, NAME_RESULTS, results, RESULT_COUNT, e));
    return clip ? read_doubles(s, in, NAME_CLIP, clip, CLIP_COUNT, e) : 0;
}

int session_get_guest_results(struct session *s, double results[RESULT_COUNT], struct err *e) {
    return read_doubles(s, PLAN_GUEST_EVAL, NAME_GUEST NAME_RESULTS, results, RESULT_COUNT, e);
}

int session_get_row_losses(struct session *s, float *out, struct err *e) {
    const struct program *p = plan_program(s->plan, PLAN_EVAL);
    const int rows = plan_tensor(s->plan, PLAN_EVAL, NAME_ROW_LOSS);
    if (rows < 0 || !s->plan->keep_row_loss || p->tensors[rows].dtype != DTYPE_F32)
        return err_set(e, ERR_INTERNAL, "the plan does not keep the losses of rows in float32");
    return exec_read(s->exec, plan_find(s->plan, PLAN_EVAL), rows, out,
                     (uint64_t)tensor_elements(&p->tensors[rows]) * sizeof *out, e);
}

int session_get_noise(struct session *s, double *first, double *step, struct err *e) {
    const struct program *p = plan_program(s->plan, PLAN_NOISE);
    const int all = program_find(p, NAME_NOISE_ALL);
    double clip[CLIP_COUNT];
    if (all < 0) {
        TRY(read_doubles(s, PLAN_NOISE, NAME_NOISE, clip, CLIP_COUNT, e));
        *first = clip[CLIP_NORM];
        return 0;
    }
    const int replicas = (int)tensor_elements(&p->tensors[all]);
    TRY(read_doubles(s, PLAN_NOISE, NAME_NOISE_ALL, first, replicas, e));
    return program_find(p, NAME_NOISE_STEPS) < 0
               ? 0
               : read_doubles(s, PLAN_NOISE, NAME_NOISE_STEPS, step, replicas, e);
}

// ---------------------------------------------------------------- greedy generation

// The generate program recomputes the whole prefix for each token. That is simple and exact, and
// fast enough to look at a model in training. Serving has other programs with a key/value cache.
int session_generate(struct session *s, int32_t *tokens, int64_t capacity, int64_t *lengths,
                     int64_t batch, int64_t n, struct err *e) {
    const struct program *p = plan_program(s->plan, PLAN_GENERATE);
    const int x = plan_find(s->plan, PLAN_GENERATE);
    int64_t B = p->batch, T = p->seq;
    if (batch > B || capacity > T)
        return err_set(e, ERR_INTERNAL, "generation is laid out for %lld x %lld tokens",
                       (long long)B, (long long)T);
    int in_tokens = program_find(p, "gen." NAME_TOKENS),
        in_positions = program_find(p, "gen." NAME_POSITIONS);
    int in_rows = program_find(p, NAME_ROWS), out_ids = program_find(p, NAME_IDS), rc = 0;
    int32_t *buffer = calloc((size_t)(B * T + 2 * B), sizeof *buffer);
    if (!buffer)
        return err_set(e, ERR_MEMORY, "out of memory for generation");
    int32_t *rows = buffer + B * T, *ids = rows + B;
    uint64_t all = (uint64_t)(B * T) * sizeof *buffer, some = (uint64_t)B * sizeof *buffer;
    for (int64_t i = 0; i < B * T; i++)
        buffer[i] = (int32_t)(i % T);
    if (in_positions >= 0)
        rc = exec_write(s->exec, x, in_positions, buffer, all, e);
    memset(buffer, 0, all);
    for (int64_t step = 0; rc == 0 && step < n; step++) {
        for (int64_t b = 0; b < batch && rc == 0; b++) {
            if (lengths[b] < 1 || lengths[b] >= capacity)
                rc = err_set(e, ERR_USAGE,
                             "sequence %lld has %lld tokens; generation needs 1 to %lld",
                             (long long)b, (long long)lengths[b], (long long)capacity - 1);
            else
                memcpy(buffer + b * T, tokens + b * capacity, (size_t)lengths[b] * sizeof *tokens);
            rows[b] = (int32_t)(b * T + lengths[b] - 1);
        }
        if (rc == 0)
            rc = exec_write(s->exec, x, in_tokens, buffer, all, e);
        if (rc == 0)
            rc = exec_write(s->exec, x, in_rows, rows, some, e);
        if (rc == 0)
            rc = exec_run(s->exec, x, NULL, NULL, NULL, e);
        if (rc == 0)
            rc = exec_read(s->exec, x, out_ids, ids, some, e);
        for (int64_t b = 0; b < batch && rc == 0; b++)
            tokens[b * capacity + lengths[b]++] = ids[b];
    }
    free(buffer);
    return rc;
}
