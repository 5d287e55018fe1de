// split.c - how the knobs of a run share its work among ranks.
#include "plan/plan.h"

static int refuse_product(const struct knobs *k, int64_t data, struct err *e) {
    return err_set(e, ERR_USAGE,
                   "parallel.data=%lld x parallel.tensor=%lld x parallel.pipe=%lld are %lld ranks, "
                   "and ranks=%lld; accepted: ranks=%lld, or other sizes whose product is %lld",
                   (long long)data, (long long)k->parallel_tensor, (long long)k->parallel_pipe,
                   (long long)(data * k->parallel_tensor * k->parallel_pipe), (long long)k->ranks,
                   (long long)(data * k->parallel_tensor * k->parallel_pipe), (long long)k->ranks);
}

int plan_split_of(const struct knobs *k, struct plan_split *out, struct err *e) {
    static const enum apply_schedule schedules[] = {
        [PIPE_SCHEDULE_GPIPE] = SCHEDULE_GPIPE,
        [PIPE_SCHEDULE_1F1B] = SCHEDULE_1F1B,
        [PIPE_SCHEDULE_INTERLEAVED] = SCHEDULE_INTERLEAVED,
    };
    const int64_t data = knobs_replicas(k), tensor = k->parallel_tensor, pipe = k->parallel_pipe,
                  most = knob_info(KNOB_ranks)->most_int;
    if (data * tensor > most || data * tensor * pipe > most)
        return err_set(e, ERR_USAGE,
                       "parallel.data=%lld x parallel.tensor=%lld x parallel.pipe=%lld are more "
                       "than %lld ranks; accepted: a product of 1 to %lld",
                       (long long)data, (long long)tensor, (long long)pipe, (long long)most,
                       (long long)most);
    if (data * tensor * pipe != knobs_world(k))
        return refuse_product(k, data, e);
    if (knobs_world(k) > 1 && k->device == DEVICE_CUDA)
        return err_set(e, ERR_UNSUPPORTED,
                       "device=cuda: %lld ranks use the CPU, several GPUs are not there yet; "
                       "accepted: device=cpu, or one rank",
                       (long long)knobs_world(k));
    *out = (struct plan_split){.data = (int)data,
                               .tensor = (int)tensor,
                               .pipe = (int)pipe,
                               .zero = (int)k->zero_stage,
                               .schedule = schedules[k->pipe_schedule],
                               .chunks = (int)k->pipe_chunks,
                               .bucket_bytes = (int64_t)k->comm_bucket,
                               .overlap = k->comm_overlap,
                               .every_micro = k->comm_reduce == COMM_REDUCE_MICRO,
                               .prefetch = (int)k->comm_prefetch,
                               .sequence = k->parallel_sequence,
                               .every = (int)k->comm_every};
    return 0;
}
