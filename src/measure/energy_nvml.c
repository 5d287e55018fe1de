// energy_nvml.c - the few functions of NVIDIA's management library that energy.c needs, opened at
// run time.
//
// The library's header is not used. The declarations below are its documented interface, which is
// stable: functions that change get a new name with _v2, _v3.
//
// Which GPU: the first that CUDA sees. NVML counts all GPUs in bus order. CUDA counts those that
// CUDA_VISIBLE_DEVICES lists, by default the fastest first. If the GPUs differ and nothing states
// the order, a guess might measure the wrong GPU, so there is no meter.
#include "measure/energy.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct nvmlDevice_st *nvml_device; // opaque

#define NVML_LIST(X)                                                                               \
    X(init, "nvmlInit_v2", int, (void))                                                            \
    X(shutdown, "nvmlShutdown", int, (void))                                                       \
    X(error, "nvmlErrorString", const char *, (int))                                               \
    X(count, "nvmlDeviceGetCount_v2", int, (unsigned *))                                           \
    X(by_index, "nvmlDeviceGetHandleByIndex_v2", int, (unsigned, nvml_device *))                   \
    X(by_uuid, "nvmlDeviceGetHandleByUUID", int, (const char *, nvml_device *))                    \
    X(name, "nvmlDeviceGetName", int, (nvml_device, char *, unsigned))                             \
    X(power, "nvmlDeviceGetPowerUsage", int, (nvml_device, unsigned *))

struct nvml_use { // of the GPU by a process, nvmlProcessUtilizationSample_t
    unsigned pid;
    unsigned long long at_us;
    unsigned multiprocessors, memory, encoder, decoder; // per cent
};
enum {
    USES_MOST = 1024, // the driver asks for room for 72 and more
    // Reasons for low clocks that are not the program's own doing: hardware slowdown, software and
    // hardware limits of temperature, power brake. The power cap is left out: full load meets it.
    HELD_DOWN = 0x8 | 0x20 | 0x40 | 0x80
};

struct nvml {
    void *library;
#define X(member, symbol, type, args) type(*member) args;
    NVML_LIST(X)
#undef X
    int (*energy)(nvml_device, unsigned long long *); // NULL: the driver is too old
    // Any of them may be NULL.
    int (*uses)(nvml_device, struct nvml_use *, unsigned *, unsigned long long);
    int (*clocks)(nvml_device, unsigned long long *);
    int (*clock)(nvml_device, int, unsigned *), (*clock_most)(nvml_device, int, unsigned *);
    nvml_device device;
    bool started, counts;
};

static bool find_symbols(struct nvml *n, char why[ENERGY_WHY_BYTES]) {
#define X(member, symbol, type, args)                                                              \
    *(void **)&n->member = dlsym(n->library, symbol);                                              \
    if (n->member == NULL) {                                                                       \
        snprintf(why, ENERGY_WHY_BYTES, "NVML has no function %s", symbol);                        \
        return false;                                                                              \
    }
    NVML_LIST(X)
#undef X
    *(void **)&n->energy = dlsym(n->library, "nvmlDeviceGetTotalEnergyConsumption");
    *(void **)&n->uses = dlsym(n->library, "nvmlDeviceGetProcessUtilization");
    *(void **)&n->clocks = dlsym(n->library, "nvmlDeviceGetCurrentClocksThrottleReasons");
    *(void **)&n->clock = dlsym(n->library, "nvmlDeviceGetClockInfo");
    *(void **)&n->clock_most = dlsym(n->library, "nvmlDeviceGetMaxClockInfo");
    return true;
}

static bool all_alike(const struct nvml *n, unsigned count) {
    char first[96] = "", other[96];
    nvml_device d;
    for (unsigned i = 0; i < count; i++) {
        if (n->by_index(i, &d) != 0 || n->name(d, i ? other : first, sizeof other) != 0)
            return false;
        if (i > 0 && strcmp(first, other) != 0)
            return false;
    }
    return true;
}

static bool by_order(struct nvml *n, unsigned index, char why[ENERGY_WHY_BYTES]) {
    const char *order = getenv("CUDA_DEVICE_ORDER");
    unsigned count = 0;
    int rc = n->count(&count);
    if (rc == 0 && index < count && !all_alike(n, count) &&
        (order == NULL || strcmp(order, "PCI_BUS_ID") != 0)) {
        snprintf(why, ENERGY_WHY_BYTES,
                 "the GPUs differ and it is not known which one CUDA uses first; set "
                 "CUDA_DEVICE_ORDER=PCI_BUS_ID");
        return false;
    }
    if (rc == 0)
        rc = n->by_index(index, &n->device);
    if (rc != 0)
        snprintf(why, ENERGY_WHY_BYTES, "NVML has no GPU %u: %s", index, n->error(rc));
    return rc == 0;
}

static bool find_device(struct nvml *n, char why[ENERGY_WHY_BYTES]) {
    char first[96];
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (visible == NULL)
        return by_order(n, 0, why);
    snprintf(first, sizeof first, "%.*s", (int)strcspn(visible, ","), visible);
    if (first[0] && strspn(first, "0123456789") == strlen(first) && strlen(first) < 6)
        return by_order(n, (unsigned)atoi(first), why);
    const int rc = n->by_uuid(first, &n->device);
    if (rc != 0)
        snprintf(why, ENERGY_WHY_BYTES, "NVML finds no GPU for CUDA_VISIBLE_DEVICES=%.96s: %s",
                 visible, n->error(rc));
    return rc == 0;
}

struct nvml *nvml_open(const char *library, char name[ENERGY_NAME_BYTES],
                       char why[ENERGY_WHY_BYTES]) {
    struct nvml *n = calloc(1, sizeof *n);
    unsigned long long mj;
    if (n == NULL) {
        snprintf(why, ENERGY_WHY_BYTES, "out of memory for NVML");
        return NULL;
    }
    n->library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (n->library == NULL)
        snprintf(why, ENERGY_WHY_BYTES, "no NVML: %s cannot be opened", library);
    bool found = n->library != NULL && find_symbols(n, why);
    if (found) {
        const int rc = n->init();
        n->started = found = rc == 0;
        if (!found)
            snprintf(why, ENERGY_WHY_BYTES, "NVML does not start: %s", n->error(rc));
    }
    if (!found || !find_device(n, why)) {
        nvml_close(n);
        return NULL;
    }
    if (n->name(n->device, name, ENERGY_NAME_BYTES) != 0)
        snprintf(name, ENERGY_NAME_BYTES, "a GPU");
    n->counts = n->energy != NULL && n->energy(n->device, &mj) == 0; // Volta and later
    return n;
}

void nvml_close(struct nvml *n) {
    if (n->started)
        n->shutdown();
    if (n->library != NULL)
        dlclose(n->library);
    free(n);
}

bool nvml_counts(const struct nvml *n) {
    return n->counts;
}

int nvml_energy_mj(const struct nvml *n, uint64_t *out) {
    unsigned long long mj = 0;
    const int rc = n->energy(n->device, &mj);
    *out = mj;
    return rc;
}

int nvml_watts(const struct nvml *n, double *out) {
    unsigned milliwatts = 0;
    const int rc = n->power(n->device, &milliwatts);
    *out = 1e-3 * milliwatts;
    return rc;
}

const char *nvml_error(const struct nvml *n, int code) {
    return n->error(code);
}

// A container may see other process ids than the driver. If this process is not in the list, its
// busiest entry stands for it.
static double used_by_others(const struct nvml_use *u, unsigned n) {
    const unsigned own = (unsigned)getpid();
    unsigned self = 0, most = 0;
    for (unsigned i = 1; i < n; i++)
        if (u[i].pid == own ||
            (u[self].pid != own && u[i].multiprocessors > u[self].multiprocessors))
            self = i;
    for (unsigned i = 0; i < n; i++) // a process may have several entries
        if (u[i].pid != u[self].pid && u[i].multiprocessors > most)
            most = u[i].multiprocessors;
    return fmin((double)most / 100, 1);
}

// The driver samples about once a second, so a short visit may have no sample of its own: those of
// the last seconds before it count, too.
static const double SAMPLES_S = 2;

double nvml_disturbed(const struct nvml *n, double since_s) {
    struct nvml_use uses[USES_MOST];
    unsigned count = USES_MOST;
    unsigned long long reasons = 0;
    const unsigned long long since_us = (unsigned long long)(1e6 * (since_s - SAMPLES_S));
    if (n->clocks && n->clocks(n->device, &reasons) == 0 && reasons & HELD_DOWN)
        return 1;
    return n->uses && n->uses(n->device, uses, &count, since_us) == 0 && count <= USES_MOST
               ? used_by_others(uses, count)
               : NAN;
}

bool nvml_clock_mhz(const struct nvml *n, unsigned *now, unsigned *most) {
    enum { MULTIPROCESSORS = 1 };
    return n->clock && n->clock_most && n->clock(n->device, MULTIPROCESSORS, now) == 0 &&
           n->clock_most(n->device, MULTIPROCESSORS, most) == 0;
}

double nvml_used(const struct nvml *n, double since_s) {
    struct nvml_use uses[USES_MOST];
    unsigned count = USES_MOST, most = 0;
    const unsigned long long since_us = (unsigned long long)(1e6 * (since_s - SAMPLES_S));
    if (!n->uses || n->uses(n->device, uses, &count, since_us) != 0 || count > USES_MOST)
        return NAN;
    for (unsigned i = 0; i < count; i++)
        most = uses[i].multiprocessors > most ? uses[i].multiprocessors : most;
    return fmin((double)most / 100, 1);
}
