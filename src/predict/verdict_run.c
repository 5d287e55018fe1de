// verdict_run.c - see verdict_run.h.
#include "predict/verdict_run.h"

static double share(double part, double of) {
    return of > 0 ? part / of : 0;
}

static double seconds_of(const struct time_split *s, enum time_part part) {
    return 1e-9 * (double)s->ns[part];
}

static enum dtype type_of(const struct knobs *k) {
    return k->precision == PRECISION_BF16   ? DTYPE_BF16
           : k->precision == PRECISION_FP16 ? DTYPE_F16
                                            : DTYPE_F32;
}

// ---------------------------------------------------------------- of a device

// Seconds of a step's attention at the measured rates; 0: not known. They were measured in 16 bits.
static double attention_s(const struct hw_gpu_rates *r, const struct knobs *k,
                          const struct step_cost *cost, bool backward) {
    const double forward_flops = cost->attention_forward_flops,
                 flops = backward ? cost->all[CAT_ATTENTION].flops - forward_flops : forward_flops;
    return k->precision == PRECISION_FP32
               ? 0
               : share(flops, hw_gpu_attention(r, cost->head_dim, backward));
}

// The part of a time that another rate saves; rates that are not known save nothing.
static double saved(double rate, double other) {
    return rate > 0 && other > rate ? 1 - rate / other : 0;
}

// What cuda.deterministic=true costs, as a fraction of the step: each part's time, less what it
// would take at the other rate.
static double order_of_step(const struct time_split *s, const struct knobs *k,
                            const struct step_cost *cost, const struct machine *m) {
    if (!k->cuda_deterministic || !(m->any_order.measured_at > 0))
        return 0;
    const double forward_s = attention_s(&m->gpu, k, cost, false),
                 backward_s = attention_s(&m->gpu, k, cost, true);
    const double products =
        saved(hw_gpu_products(&m->gpu, type_of(k)), hw_gpu_products(&m->any_order, type_of(k)));
    const double backward = saved(hw_gpu_attention(&m->gpu, cost->head_dim, true),
                                  hw_gpu_attention(&m->any_order, cost->head_dim, true)) *
                            share(backward_s, forward_s + backward_s);
    return (products * (double)s->ns[TIME_MATMUL] + backward * (double)s->ns[TIME_ATTENTION]) /
           (double)s->wall_ns;
}

static void add_device(struct verdict_facts *f, const struct time_split *s, const struct knobs *k,
                       const struct step_cost *cost, const struct machine *m) {
    const double steps = (double)s->steps;
    f->device = true;
    f->graphs = k->cuda_graphs;
    f->documents = cost->bounded > 0 && !knobs_idle(k, KNOB_data_pack);
    f->attention_flops_per_s =
        share(cost->all[CAT_ATTENTION].flops * steps, seconds_of(s, TIME_ATTENTION));
    f->optimizer_bytes_per_s =
        share(cost->all[CAT_OPTIMIZER].bytes * steps, seconds_of(s, TIME_OPTIMIZER));
    f->best_matmul_flops_per_s = f->best_bytes_per_s = 0;
    if (!m->has_gpu || s->wall_ns == 0)
        return;
    const double forward = attention_s(&m->gpu, k, cost, false),
                 backward = attention_s(&m->gpu, k, cost, true);
    f->best_matmul_flops_per_s = hw_gpu_products(&m->gpu, type_of(k));
    f->best_bytes_per_s = m->gpu.copy_bytes_per_s;
    if (forward > 0 && backward > 0)
        f->best_attention_flops_per_s = cost->all[CAT_ATTENTION].flops / (forward + backward);
    if (k->precision == PRECISION_FP32)
        f->best_bf16_flops_per_s = m->gpu.matmul_bf16_flops;
    f->launch_of_step =
        (double)cost->launches * m->gpu.launch_s * steps / (1e-9 * (double)s->wall_ns);
    f->order_of_step = order_of_step(s, k, cost, m);
}

// ---------------------------------------------------------------- of any run

void verdict_run(struct verdict *out, const struct run_metrics *m, const struct knobs *k,
                 const struct step_cost *cost, const struct machine *machine) {
    const struct op_cost *matmul = &cost->all[CAT_MATMUL], *other = &cost->all[CAT_OTHER];
    const double samples = (double)k->steps * (double)knobs_samples(k);
    // Ranks that share a machine share its CPUs. That they all do is the usual case.
    const int ranks = (int)knobs_world(k), cpus = machine->hw.usable_cpus / ranks;
    struct verdict_facts facts = {
        .threads = machine_threads(k),
        .cpus = cpus > 1 ? cpus : 1,
        .batch_micro = k->batch_micro,
        .micro_batches = k->batch_accum,
        .seq = k->seq,
        .logits_of_matmul = share(cost->logits[CAT_MATMUL].flops, matmul->flops),
        .logits_of_other = share(cost->logits[CAT_OTHER].bytes, other->bytes),
        .logits_chunk = k->logits_chunk,
        .data_workers = (int)k->data_workers,
        .data_prefetch = (int)k->data_prefetch,
        .data_make_ns = m->data.make_ns,
        .data_source_wait_ns = m->data.source_wait_ns,
        .data_repeats = m->data.windows > 0 && samples > (double)m->data.windows &&
                        m->data.cache_windows < m->data.windows,
        .replicas = (int)knobs_replicas(k),
        .tensor = (int)k->parallel_tensor};
    const double steps = (double)m->split.steps;
    facts.matmul_flops_per_s = share(matmul->flops * steps, seconds_of(&m->split, TIME_MATMUL));
    facts.other_bytes_per_s = share(other->bytes * steps, seconds_of(&m->split, TIME_OTHER));
    facts.matmul_flops_per_byte = share(matmul->flops, matmul->bytes);
    // 0 if the product was not measured. device.matmul_flops then holds the predictor's substitute,
    // which is no basis for a verdict.
    facts.best_matmul_flops_per_s =
        machine->has_rates ? hw_rates_products(&machine->rates, type_of(k)) : 0;
    facts.best_bytes_per_s = machine->device.memory_bytes_per_s;
    if (plan_wants_device(k))
        add_device(&facts, &m->split, k, cost, machine);
    verdict_of(out, &m->split, &facts);
}
