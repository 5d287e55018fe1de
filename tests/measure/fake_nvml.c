// fake_nvml.c - a fake management library for test_energy.c. Environment variables control its GPU.
//
// FAKE_NVML is a list of words: "down": it does not start. "power": it has no energy counter.
// "blind": it has neither energy nor power. "two": it has two GPUs that differ. "hot": its clocks
// are held down. FAKE_MJ is the counter in mJ, FAKE_MW the power in mW, FAKE_MHZ the clock.
// FAKE_OTHERS is the share of another process in per cent, beside this one or ("strange") beside
// one with an unknown number.
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

static int said(const char *word) {
    const char *text = getenv("FAKE_NVML");
    return text != NULL && strstr(text, word) != NULL;
}
static unsigned long long number(const char *name) {
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : 0;
}

EXPORT int nvmlInit_v2(void);
EXPORT int nvmlShutdown(void);
EXPORT const char *nvmlErrorString(int code);
EXPORT int nvmlDeviceGetCount_v2(unsigned *out);
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out);
EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, void **out);
EXPORT int nvmlDeviceGetName(void *device, char *out, unsigned bytes);
EXPORT int nvmlDeviceGetPowerUsage(void *device, unsigned *out);
EXPORT int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *out);
EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *out);
EXPORT int nvmlDeviceGetClockInfo(void *device, int kind, unsigned *out);
EXPORT int nvmlDeviceGetMaxClockInfo(void *device, int kind, unsigned *out);
struct use {
    unsigned pid;
    unsigned long long at_us;
    unsigned multiprocessors, memory, encoder, decoder;
};
EXPORT int nvmlDeviceGetProcessUtilization(void *device, struct use *out, unsigned *n,
                                           unsigned long long since_us);

static int gpus[2];

int nvmlInit_v2(void) {
    return said("down") ? 9 : 0;
}
int nvmlShutdown(void) {
    return 0;
}
const char *nvmlErrorString(int code) {
    return code == 9 ? "Driver Not Loaded" : code == 3 ? "Not Supported" : "Not Found";
}
int nvmlDeviceGetCount_v2(unsigned *out) {
    *out = said("two") ? 2 : 1;
    return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) {
    if (index >= (said("two") ? 2u : 1u))
        return 6;
    *out = &gpus[index];
    return 0;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **out) {
    *out = &gpus[0];
    return strcmp(uuid, "GPU-1234") == 0 ? 0 : 6;
}
int nvmlDeviceGetName(void *device, char *out, unsigned bytes) {
    snprintf(out, bytes, "Fake %s", device == &gpus[1] ? "B" : "A");
    return 0;
}
int nvmlDeviceGetPowerUsage(void *device, unsigned *out) {
    (void)device;
    *out = (unsigned)number("FAKE_MW");
    return said("blind") ? 3 : 0;
}
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *out) {
    *out = number("FAKE_MJ") + (device == &gpus[1] ? 500000 : 0);
    return said("power") || said("blind") ? 3 : 0;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *out) {
    (void)device;
    *out = said("hot") ? 0x40 : 0x4; // 0x4: the power cap
    return 0;
}
int nvmlDeviceGetClockInfo(void *device, int kind, unsigned *out) {
    (void)device;
    *out = kind == 1 ? (unsigned)number("FAKE_MHZ") : 0;
    return *out ? 0 : 3;
}
int nvmlDeviceGetMaxClockInfo(void *device, int kind, unsigned *out) {
    (void)device;
    *out = 1980;
    return kind == 1 ? 0 : 3;
}
int nvmlDeviceGetProcessUtilization(void *device, struct use *out, unsigned *n,
                                    unsigned long long since_us) {
    (void)device;
    if (*n < 2)
        return 7;
    out[0] = (struct use){
        .pid = 1, .at_us = since_us, .multiprocessors = (unsigned)number("FAKE_OTHERS")};
    out[1] = (struct use){.pid = said("strange") ? 7 : (unsigned)getpid(), .multiprocessors = 90};
    *n = 2;
    return 0;
}
