// metrics.h - the numbers of a run, in one struct, and their JSON with stable keys.
//
// Place: train, bench and tune fill it from samples and trace. --json, the store and report/ read
// it.
//
// Invariants: a value that was not measured is NaN in memory and null in JSON, never 0. Throughput
// is over wall time, end to end, including the loader. The JSON keys are public: keys may be added,
// never changed.
#ifndef HAGGLE_MEASURE_METRICS_H
#define HAGGLE_MEASURE_METRICS_H

#include "base/json.h"
#include "measure/energy.h"
#include "measure/sample.h"
#include "measure/trace.h"

enum { METRICS_MAX_CLASSES = 16 };

struct metrics_class {
    const char *name; // "weights", ...; not copied, must outlive the metrics
    uint64_t bytes;
};

// What the batches of some steps took. windows and cache_windows are current values, the rest are
// sums.
struct data_use {
    uint64_t source_bytes;             // read from the source
    uint64_t cache_hits, cache_misses; // windows found in memory; windows read from the source
    uint64_t make_ns;                  // time that threads took to make the batches
    uint64_t source_wait_ns;           // part of make_ns that they waited for data.source_rate
    uint64_t windows;                  // windows of an epoch; 0: the data is endless
    uint64_t cache_windows;            // windows that fit into data.ram
};

struct run_metrics {
    uint64_t steps, tokens, real_tokens, trained_tokens; // tokens: with padding, B*T a micro-batch
    double wall_s;
    double tokens_per_s, real_tokens_per_s, trained_tokens_per_s;
    struct quantile step_p50, step_p95, step_p99; // of nanoseconds
    double ms_per_sample;                         // p50 step time x micro-batch / samples per step
    double utilization;                           // busy / wall of the steps
    struct time_split split;
    struct data_use data;
    uint64_t memory_predicted_bytes, memory_measured_bytes; // 0: not known
    struct metrics_class memory[METRICS_MAX_CLASSES];
    int n_memory;
    double loss_first, loss_last;
    double mfu, hfu; // model (hardware) FLOPs per step / step time / peak
    struct energy_use energy;
    double joules_per_token, joules_per_trained_token, watts; // NaN: no meter
};

struct metrics_input {
    struct samples *step_ns; // its scratch is used to sort
    const struct trace *trace;
    uint64_t wall_ns; // of the measured steps, first begin to last end
    uint64_t tokens, real_tokens, trained_tokens;
    struct data_use data;
    int64_t batch_micro, samples_per_step;
    double model_flops_per_step;    // without recomputation; 0: not known
    double hardware_flops_per_step; // with recomputation; 0: not known
    double peak_flops_per_s;        // of the device, as measured or stated; 0: not known
    struct energy_use energy;       // of the same steps
};

// Fills all fields. Memory and loss become "not known"; the caller sets them.
void metrics_compute(struct run_metrics *out, const struct metrics_input *in);
void data_use_add(struct data_use *sum, const struct data_use *more);
// Writes "0.012 J/token, 0.013 per trained token, 35 W by RAPL (1 package)", or "no meter: ..."
// with the reason. Returns out.
enum { METRICS_ENERGY_BYTES = ENERGY_NAME_BYTES + ENERGY_WHY_BYTES + 256 };
const char *metrics_energy_text(char out[METRICS_ENERGY_BYTES], const struct run_metrics *m);
void metrics_add_class(struct run_metrics *m, const char *name, uint64_t bytes);
// Writes members into the JSON object that the caller has begun: tokens_per_s,
// trained_tokens_per_s, step_ms {p50 ...}, time_split {...}, data {...}, memory {...}, energy {...}
// ...
void metrics_put_members(const struct run_metrics *m, struct json_writer *w);

#endif
