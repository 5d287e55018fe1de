// energy.h - joules of an interval, where this machine has a meter.
//
// Place: the trainer opens a meter, laps it over the steps it measures, and hands joules to metrics.h;
// doctor opens one to say what there is.
//
// Meters, and what each of them sees:
//   RAPL   the kernel's powercap interface (Intel, and AMD under the same names): the packages, all cores
//          and caches of them with whatever else runs there; not memory modules, fans, disks
//   NVML   the library of NVIDIA's driver, opened at run time: one GPU with its memory
// A run on the CPU is measured by RAPL; one on a GPU by NVML, and RAPL is added where it can be read.
//
// Invariants: never 0 for "not known": NaN, and why in words. Part of the packages is no meter. Counters that
// start over at their range are followed, provided that they are read once per turn-around (energy_poll; at
// 500 W a range of 262 kJ lasts nine minutes). Nothing is allocated after energy_open.
#ifndef HAGGLE_MEASURE_ENERGY_H
#define HAGGLE_MEASURE_ENERGY_H

#include <stdbool.h>
#include <stdint.h>

enum { ENERGY_MAX_PACKAGES = 32, ENERGY_NAME_BYTES = 128, ENERGY_WHY_BYTES = 256 };

struct energy_package {
    int fd;
    uint64_t last_uj, range_uj; // range 0: not known; then a counter that starts over is lost
};

struct nvml; // functions and device; energy_nvml.c

struct energy_meter {
    struct energy_package packages[ENERGY_MAX_PACKAGES];
    int n_packages; // 0: no RAPL
    struct nvml *nvml;
    double joules;                // since energy_open
    uint64_t read_ns;             // when it was last read
    uint64_t every_ns;            // energy_poll reads when so much has passed
    double watts;                 // at read_ns, of a device that only tells its power
    uint64_t device_mj;           // at read_ns, of one that counts
    bool present, sound;          // there is a meter; it could always be read
    char name[ENERGY_NAME_BYTES]; // "RAPL (2 packages)", "NVML (NVIDIA H200) + RAPL (1 package)"
    char why[ENERGY_WHY_BYTES];   // why there is none, or what it lacks; "" nothing
    const char *fix;              // a command that would help; NULL: none
};

struct energy_options {
    bool device;      // the work is done by an NVIDIA GPU, the first that CUDA sees
    const char *root; // "" or NULL for this machine; tests give a folder with another's /sys
    const char *nvml; // library; NULL: libnvidia-ml.so.1
};

// Never fails: that there is no meter is an answer.
void energy_open(struct energy_meter *m, const struct energy_options *o);
void energy_close(struct energy_meter *m); // also of a zeroed one
// Joules since energy_open, read now; NaN without a meter, and for good after a read that failed.
double energy_read(struct energy_meter *m);
// Between steps: reads when it is time to, so that no turn-around is missed. Cheap else.
void energy_poll(struct energy_meter *m, uint64_t now_ns);

// What was used between begins and ends, summed up. Both may come twice in a row.
struct energy_lap {
    double joules, begin;
    bool running;
};
void energy_lap_begin(struct energy_lap *lap, struct energy_meter *m);
void energy_lap_end(struct energy_lap *lap, struct energy_meter *m);

// Result of a run: what metrics.h carries and a trial sends through a pipe.
struct energy_use {
    double joules;                 // of the measured steps; 0: it has not moved yet; NaN: no meter
    char meter[ENERGY_NAME_BYTES]; // "" none
    char why[ENERGY_WHY_BYTES];    // why none, or what it lacks
};
void energy_use_of(struct energy_use *out, const struct energy_meter *m, double joules);
double energy_per(const struct energy_use *u, double of); // NaN: not known
// Adds another trial of the same kind; NaN stays.
void energy_use_add(struct energy_use *sum, const struct energy_use *more);

// energy_nvml.c, for energy.c. open: NULL and the reason when there is no such library or device.
struct nvml *nvml_open(const char *library, char name[ENERGY_NAME_BYTES],
                       char why[ENERGY_WHY_BYTES]);
void nvml_close(struct nvml *n);
bool nvml_counts(const struct nvml *n); // energy, not only power
// 0 and the counter in mJ, or the power in W; else NVML's code.
int nvml_energy_mj(const struct nvml *n, uint64_t *out);
int nvml_watts(const struct nvml *n, double *out);
const char *nvml_error(const struct nvml *n, int code);

#endif
