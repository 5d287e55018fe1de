// machine.h - what this machine is and how fast it is, for the predictor, for MFU and for doctor.
//
// Place: hw/ measures bandwidth and arithmetic alone. Matrix products are timed through the backend
// that training uses, so that predictions are about the same code.
#ifndef HAGGLE_PREDICT_MACHINE_H
#define HAGGLE_PREDICT_MACHINE_H

#include "backend/backend.h"
#include "base/json.h"
#include "hw/hw.h"
#include "knob/knob.h"

#include <limits.h>

enum machine_how {
    MACHINE_KNOWN,   // rates from the cache, or none: takes no time
    MACHINE_MEASURE, // from the cache, else measured (about a second) and stored
    MACHINE_FRESH,   // measured now
};

struct machine {
    struct hw_machine hw;
    bool has_rates, has_gpu; // of the CPU; of the GPU, where the knobs ask for one
    bool cached;             // they were measured by an earlier process
    struct hw_rates rates;   // for the thread count of the knobs
    // With the kernels of these knobs, and with those of cuda.deterministic=false; measured_at 0:
    // not known.
    struct hw_gpu_rates gpu, any_order;
    char gpu_lacks[ERR_TEXT_BYTES]; // a figure that could not be measured, and why; "": none
    struct hw_device device;        // for the predictor; matmul_flops 0: not known
    double peak_flops;              // MFU is a share of this; 0: not known
    const char *peak_is;            // how it was found: "measured in registers"
};

// Whether to measure after a run that took `seconds`: measuring must not take longer than the run
// it explains. device: it computed on one. stopped: a stop was requested, so nothing is measured.
enum machine_how machine_how_after(double seconds, bool device, bool stopped);
// With MACHINE_KNOWN it cannot fail.
int machine_open(struct machine *m, const struct knobs *k, enum machine_how how, struct err *e);
// The same for the device of an open backend. Keeps rates that are known of it; otherwise measures
// (some seconds, in half of the memory that is free) and stores them. Figures that there is no
// memory for stay unknown: gpu_lacks.
int machine_measure_device(struct machine *m, struct backend *b, const struct knobs *k,
                           struct err *e);
// What an earlier process has measured of the device that these knobs would use. No device is
// opened. False: nothing.
bool machine_gpu_known(struct hw_gpu_rates *out, const struct hw_machine *m, const struct knobs *k);
void machine_open_gpu(struct machine *m, const struct knobs *k); // takes what is known
// The peak for MFU in a precision: the fp32 rate of the vector units, or the rate of a measured
// bf16 product if the CPU has instructions for it and they are faster. On a GPU the rate of a
// measured product. 0: not known.
double machine_peak(const struct machine *m, enum precision p, const char **is);
// The knob threads of one rank, with 0 resolved: ranks share the CPUs.
int machine_threads(const struct knobs *k);
void machine_put_json(const struct machine *m, struct json_writer *w);
// Square products of this size are as large as those in a layer of a small model (2 GFLOP each).
// They are large enough for the library's full speed and small enough for a dozen trials in 0.2 s.
enum { MACHINE_NAME_BYTES = 128, MACHINE_MATMUL_SIZE = 1024 };
struct machine_blas {
    char name[MACHINE_NAME_BYTES]; // as the backend calls it: "openblas 0.3.21 (SkylakeX)"
    char path[PATH_MAX];           // of the library; "": there is none
    double flops_per_s;            // in products of MACHINE_MATMUL_SIZE, as rates.matmul_flops
};
// Measures the products of one choice of cpu.blas ("openblas", "builtin", ...) in an element type.
// `name` says how they are computed. ERR_UNSUPPORTED when the library is not installed.
int machine_measure_blas(struct machine_blas *out, const struct knobs *k, const char *choice,
                         enum dtype type, struct err *e);

#endif
