// plan_ranks.c - the place of a rank among ranks that share the work, and which ways to share it
// are refused:
//
//   heads, key/value heads, columns of the MLP   a tensor group must divide each of them
//   the vocabulary                               at least as large as a tensor group
//   rows, if a tensor group shares them          it must divide the tokens of a micro-batch
//   ZeRO 2 and 3 with a pipeline                 a stage runs its layers once per micro-batch, so
//                                                gradients and weights would be moved that often
//   ZeRO where replicas train apart              replicas share state only if they are the same
//   8-bit moments where replicas train apart     there is no mean of them
//   an adapter or frozen weights with tensor     a slice of a pair, and a stage without gradients,
//   groups, pipelines or ZeRO 3                  are not there yet
//   a hybrid run                                 needs one rank
// pipeline.c refuses more stages or chunks than layers, and interleaved chunks with a number of
// micro-batches that the stages do not divide. split.c refuses sizes that do not match.
// docs/ranks.md lists all of them with their reasons, and tests/train/test_layouts.c provokes
// each.
#include "plan/plan.h"

#include <stdio.h>

int64_t plan_samples(const struct plan *p) {
    return mesh_size(&p->ranks.mesh, AXIS_DATA) * p->knobs.batch_micro * p->knobs.batch_accum;
}

// The sizes of a tensor group that this model allows, as "1, 2, 4".
static const char *accepted(const struct model_shape *s, char *out, size_t bytes) {
    size_t used = 0;
    for (int64_t t = 1; t <= s->kv_heads && used + 24 < bytes; t++)
        if (s->heads % t == 0 && s->kv_heads % t == 0 && s->ffn % t == 0 && s->vocab >= t)
            used += (size_t)snprintf(out + used, bytes - used, "%s%lld", used ? ", " : "",
                                     (long long)t);
    return out;
}

static int check_divides(const struct plan_split *l, const struct model_shape *s, const char *what,
                         int64_t n, struct err *e) {
    char sizes[200];
    return n % l->tensor == 0
               ? 0
               : err_set(e, ERR_USAGE,
                         "parallel.tensor=%d: %d ranks of a tensor group do not divide the "
                         "model's %lld %s; accepted: %s",
                         l->tensor, l->tensor, (long long)n, what,
                         accepted(s, sizes, sizeof sizes));
}

static int check_tensor(const struct plan_split *l, const struct knobs *k,
                        const struct model_shape *s, struct err *e) {
    char sizes[200];
    TRY(check_divides(l, s, "heads", s->heads, e));
    TRY(check_divides(l, s, "key/value heads", s->kv_heads, e));
    TRY(check_divides(l, s, "columns of the MLP", s->ffn, e));
    if (s->vocab < l->tensor)
        return err_set(e, ERR_USAGE,
                       "parallel.tensor=%d: %d ranks of a tensor group are more than the model's "
                       "vocabulary of %lld; accepted: %s",
                       l->tensor, l->tensor, (long long)s->vocab, accepted(s, sizes, sizeof sizes));
    if (l->sequence && k->batch_micro * k->seq % l->tensor != 0)
        return err_set(e, ERR_USAGE,
                       "parallel.sequence=true: %d ranks of a tensor group do not divide the %lld "
                       "tokens of a micro-batch (batch.micro=%lld x seq=%lld); accepted: "
                       "parallel.sequence=false, or tokens that they divide",
                       l->tensor, (long long)(k->batch_micro * k->seq), (long long)k->batch_micro,
                       (long long)k->seq);
    return 0;
}

static int check_rules(const struct plan_split *l, const struct knobs *k, struct err *e) {
    if (l->zero > 1 && l->pipe > 1 && l->data > 1)
        return err_set(e, ERR_USAGE,
                       "zero.stage=%d does not go with parallel.pipe=%d: gradients and weights "
                       "would be moved once per micro-batch; accepted: stage 0 or 1",
                       l->zero, l->pipe);
    if (l->data > 1 && l->every > 1 && l->zero > 0)
        return err_set(e, ERR_USAGE,
                       "comm.every=%d does not go with zero.stage=%d: replicas that take steps of "
                       "their own cannot share weights or optimizer state; accepted: zero.stage=0",
                       l->every, l->zero);
    if (l->data > 1 && l->every > 1 && k->optim_state == OPTIM_STATE_INT8)
        return err_set(e, ERR_USAGE,
                       "comm.every=%d does not go with optim.state=int8: 8-bit moments of replicas "
                       "have no mean; accepted: optim.state=fp32, bf16",
                       l->every);
    if ((k->lora_rank > 0 || k->train_freeze[0]) &&
        (l->tensor > 1 || l->pipe > 1 || (l->data > 1 && l->zero == 3)))
        return err_set(e, ERR_USAGE,
                       "%s does not go with %s: frozen weights are whole on every rank; accepted: "
                       "parallel.data with zero.stage 0 to 2",
                       k->lora_rank > 0 ? "lora.rank above 0" : "train.freeze",
                       l->tensor > 1 ? "parallel.tensor"
                       : l->pipe > 1 ? "parallel.pipe"
                                     : "zero.stage=3");
    if (k->goal == GOAL_HYBRID)
        return err_set(
            e, ERR_USAGE,
            "goal=hybrid needs one rank: a request is answered between its micro-batches,"
            " and other ranks would have to stop there, too; accepted: goal=bulk, or ranks=1");
    return 0;
}

int plan_ranks(const struct plan_split *l, const struct knobs *k, const struct model_shape *shape,
               int rank, struct apply_ranks *out, struct err *e) {
    const struct mesh mesh = mesh_make(l->data, l->tensor, l->pipe, rank);
    const int world = mesh_world(&mesh);
    *out = (struct apply_ranks){.chunks = l->chunks,
                                .schedule = l->schedule,
                                .zero = l->data > 1 ? l->zero : 0,
                                .prefetch = l->prefetch,
                                .bucket_bytes = l->bucket_bytes,
                                .overlap = l->overlap,
                                .every_micro = l->every_micro,
                                .sequence = l->tensor > 1 && l->sequence,
                                .apart = l->data > 1 && l->every > 1};
    if (world == 1)
        return 0;
    if (rank < 0 || rank >= world)
        return err_set(e, ERR_USAGE, "rank %d is not accepted; accepted: 0 to %d", rank, world - 1);
    out->mesh = mesh;
    if (l->tensor > 1)
        TRY(check_tensor(l, k, shape, e));
    return check_rules(l, k, e);
}
