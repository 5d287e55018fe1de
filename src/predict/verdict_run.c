// verdict_run.c - see verdict_run.h.
#include "predict/verdict_run.h"

static double share(double part, double of) {
    return of > 0 ? part / of : 0;
}

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
    double steps = (double)m->split.steps;
    double matmul_s = 1e-9 * (double)m->split.ns[TIME_MATMUL];
    double other_s = 1e-9 * (double)m->split.ns[TIME_OTHER];
    if (matmul_s > 0)
        facts.matmul_flops_per_s = matmul->flops * steps / matmul_s;
    if (other_s > 0)
        facts.other_bytes_per_s = other->bytes * steps / other_s;
    facts.matmul_flops_per_byte = share(matmul->flops, matmul->bytes);
    // 0 if the product was not measured. device.matmul_flops then holds the predictor's substitute,
    // which is no basis for a verdict.
    facts.best_matmul_flops_per_s =
        machine->has_rates
            ? hw_rates_products(&machine->rates, k->precision == PRECISION_BF16   ? DTYPE_BF16
                                                 : k->precision == PRECISION_FP16 ? DTYPE_F16
                                                                                  : DTYPE_F32)
            : machine->device.matmul_flops;
    facts.best_bytes_per_s = machine->device.memory_bytes_per_s;
    verdict_of(out, &m->split, &facts);
}
