// energy.h - joules used in an interval, where this machine has a meter.
//
// Place: the trainer opens a meter, laps it over the steps it measures, and passes the joules to
// metrics.h. doctor opens one to say what exists.
//
// Meters, and what each of them sees:
//   RAPL   the kernel's powercap interface (Intel, and AMD under the same names). It sees the CPU
//          packages: all cores and caches, with everything that runs on them. It does not see
//          memory modules, fans or disks.
//   NVML   the library of NVIDIA's driver, opened at run time. It sees one GPU with its memory.
// RAPL measures a run on the CPU. NVML measures a run on a GPU, and RAPL is added if it can be
// read.
//
// Invariants: "not known" is never 0 but NaN, with the reason in words. Part of the packages does
// not count as a meter. A counter that starts over at its range is followed if it is read at least
// once per wrap-around (energy_poll). At 500 W a range of 262 kJ lasts nine minutes. Nothing is
// allocated after energy_open.
#ifndef HAGGLE_MEASURE_ENERGY_H
#define HAGGLE_MEASURE_ENERGY_H

#include <stdbool.h>
#include <stdint.h>

enum { ENERGY_MAX_PACKAGES = 32, ENERGY_NAME_BYTES = 128, ENERGY_WHY_BYTES = 256 };

struct energy_package {
    int fd;
    uint64_t last_uj, range_uj; // range 0: not known; a counter that starts over ends the meter
};

struct nvml; // functions and device; energy_nvml.c

struct energy_meter {
    struct energy_package packages[ENERGY_MAX_PACKAGES];
    int n_packages; // 0: no RAPL
    struct nvml *nvml;
    double joules;                // since energy_open
    uint64_t read_ns;             // when it was last read
    uint64_t every_ns;            // energy_poll reads when this much time has passed
    double watts;                 // at read_ns, if the device only reports power
    uint64_t device_mj;           // at read_ns, if the device counts energy
    double clock_sum, clock_most; // MHz
    int clocks;                   // samples
    uint64_t clock_ns;            // when the last one was taken
    bool present, sound;          // there is a meter; no read of it has failed
    char name[ENERGY_NAME_BYTES]; // "RAPL (2 packages)", "NVML (NVIDIA H200) + RAPL (1 package)"
    char why[ENERGY_WHY_BYTES];   // why there is no meter, or what it does not see; "": nothing
    const char *fix;              // a command that would help; NULL: none
};

struct energy_options {
    bool device;      // an NVIDIA GPU does the work, the first that CUDA sees
    const char *root; // "" or NULL for this machine; tests give a folder with another /sys
    const char *nvml; // name of the library; NULL: libnvidia-ml.so.1
};

// Never fails: "there is no meter" is a valid result.
void energy_open(struct energy_meter *m, const struct energy_options *o);
void energy_close(struct energy_meter *m); // a zeroed meter is allowed
// Joules since energy_open, read now. NaN without a meter, and always after a read that failed.
double energy_read(struct energy_meter *m);
// Call it between steps. It reads the meter when enough time has passed, so that no wrap-around is
// missed, and notes the device's clock a few times a second. Otherwise it costs almost nothing.
void energy_poll(struct energy_meter *m, uint64_t now_ns);

// How much others disturbed the device since this moment (nvml_disturbed). NaN without NVML.
double energy_device_disturbed(const struct energy_meter *m, double since_s);
// The share of the device's time that any process used, for a process that has not used it yet:
// the driver may list processes under other numbers, so that none can be told to be this one.
double energy_device_used(const struct energy_meter *m, double since_s);

// Sums the energy used between begins and ends. Repeated begins or ends are ignored.
struct energy_lap {
    double joules, begin;
    bool running;
};
void energy_lap_begin(struct energy_lap *lap, struct energy_meter *m);
void energy_lap_end(struct energy_lap *lap, struct energy_meter *m);

// The result of a run, which metrics.h carries and a trial sends through a pipe.
struct energy_use {
    double joules; // of the measured steps; 0: the counter has not moved yet; NaN: no meter
    // A device's clock during the steps, a mean of samples, and the highest there is; 0: not known.
    double clock_mhz, clock_most_mhz;
    char meter[ENERGY_NAME_BYTES]; // "": none
    char why[ENERGY_WHY_BYTES];    // why there is none, or what it does not see
};
void energy_use_of(struct energy_use *out, const struct energy_meter *m, double joules);
double energy_per(const struct energy_use *u, double of); // joules / of; NaN: not known
// Adds another trial of the same kind. If either is NaN, the sum is NaN.
void energy_use_add(struct energy_use *sum, const struct energy_use *more);

// energy_nvml.c, for energy.c. nvml_open returns NULL and the reason if there is no such library or
// device.
struct nvml *nvml_open(const char *library, char name[ENERGY_NAME_BYTES],
                       char why[ENERGY_WHY_BYTES]);
void nvml_close(struct nvml *n);
bool nvml_counts(const struct nvml *n); // it counts energy, not only power
// Return 0 and the counter in mJ, or the power in W; else NVML's error code.
int nvml_energy_mj(const struct nvml *n, uint64_t *out);
int nvml_watts(const struct nvml *n, double *out);
const char *nvml_error(const struct nvml *n, int code);
// The share of the GPU's time that other processes used since this moment (wall clock, seconds), or
// 1 if heat or a power brake holds its clocks down now. NaN: not known.
double nvml_disturbed(const struct nvml *n, double since_s);
double nvml_used(const struct nvml *n, double since_s); // by the process that used most
// The clock of the multiprocessors now, and the highest there is. False: not known.
bool nvml_clock_mhz(const struct nvml *n, unsigned *now, unsigned *most);

#endif
