// session.c - see session.h.
#include "engine/session.h"

int session_run(struct session *s, const char *program, exec_feed_fn *feed, void *arg,
                struct trace *trace, struct err *e) {
    return exec_run(s->exec, plan_find(s->plan, program), feed, arg, trace, e);
}

// ---------------------------------------------------------------- inputs and results

// Inputs and results persist: the programs of a plan share them.
static const char *trains_or_evaluates(const struct session *s) {
    static const char *const names[] = {PLAN_TRAIN, PLAN_GRADIENTS, PLAN_POWERS};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (plan_find(s->plan, names[i]) >= 0)
            return names[i];
    return PLAN_EVAL;
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
