// doctor.h - examines this machine: what it is, how fast it is, and what is missing.
//
// A missing part is a gap, not an error. Each gap says what the part is for and how to get it.
#ifndef HAGGLE_PREDICT_DOCTOR_H
#define HAGGLE_PREDICT_DOCTOR_H

#include "backend/plugin.h"
#include "comm/installed.h"
#include "hw/apart.h"
#include "hw/others.h"
#include "measure/energy.h"
#include "predict/machine.h"
#include "predict/predictor.h"

enum { DOCTOR_LIBRARIES = 4, DOCTOR_PRODUCTS = 2, DOCTOR_GAPS_MOST = 16 };

struct doctor_library {  // for matrix products
    const char *choice;  // value of cpu.blas
    const char *package; // Debian package that installs it; NULL: part of haggle
    bool found;
    struct machine_blas blas;
    char reason[ERR_TEXT_BYTES]; // why it was not found
};

struct doctor_products {
    enum dtype type;
    struct machine_blas blas;
};

// The op times that predictions use, for the device, threads and kernels that a run with these
// knobs would use.
struct doctor_ops {
    struct predictor_known known;
    bool now;                    // timed by this call
    char reason[ERR_TEXT_BYTES]; // why they could not be timed; "": no failure
};

// What the GPU reaches with the kernels that these knobs ask for.
struct doctor_gpu {
    struct knobs knobs; // the given ones with device=cuda
    struct machine machine;
    char note[ERR_TEXT_BYTES];   // of the backend: slow kernels ran where fast ones could; "": none
    char reason[ERR_TEXT_BYTES]; // why nothing was measured; "": no failure, or no device
};

// The energy meters of a run on the CPU and of a run on the GPU.
struct doctor_meters {
    struct energy_use cpu, gpu;
    const char *fix; // how to make the CPU's meter readable; NULL: no way known
    bool has_gpu;
};

struct doctor_gap {
    const char *what;    // what is missing or limited
    const char *purpose; // what it is needed for
    const char *fix;     // "": nothing can be installed
    const char *package; // Debian package, collected into one command; NULL: none
};

struct doctor {
    struct knobs cpu;       // the given knobs with device=cpu
    struct machine machine; // of the CPU
    struct doctor_gpu gpu;
    struct doctor_library libraries[DOCTOR_LIBRARIES];
    // Products of 16-bit elements are always the builtin ones. The instructions they use decide
    // whether precision=bf16 saves time on this machine, or only memory.
    struct doctor_products products[DOCTOR_PRODUCTS];
    struct doctor_ops ops;
    struct plugin_report cuda;
    struct comm_installed ranks; // for ranks that are processes
    struct comm_advice advice[COMM_ADVICE_MOST];
    int n_advice;
    struct doctor_meters meters;
    struct apart cpus;    // how far the CPU's threads are from each other now
    struct others others; // what other programs took during the examination
    struct doctor_gap gaps[DOCTOR_GAPS_MOST];
    int n_gaps;
};

// Takes some seconds. With `fresh` it measures again, and times the ops of the knobs' model.
int doctor_examine(struct doctor *d, const struct knobs *k, bool fresh, struct err *e);

#endif
