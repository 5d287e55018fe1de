// energy.c - RAPL through sysfs, and the sum of all meters over an interval. See energy.h.
#include "measure/energy.h"

#include "base/clock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define POWERCAP "/sys/class/powercap"

// Reading every second is often enough for any counter range (the smallest seen is 65 kJ) and costs
// nothing. Power must be sampled more often, because the power between two samples is assumed to be
// their mean.
static const uint64_t COUNTER_NS = 1000000000, POWER_NS = 20000000, CLOCK_NS = 200000000;

// ---------------------------------------------------------------- files of sysfs

// Reads a whole number. Returns 0, -errno, or 1 if the file holds anything else (then in text).
static int read_number(int fd, uint64_t *out, char text[32]) {
    ssize_t n = pread(fd, text, 31, 0);
    if (n < 0)
        return -errno;
    text[n] = '\0';
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == ' '))
        text[--n] = '\0';
    if (n == 0 || n > 19 || strspn(text, "0123456789") != (size_t)n)
        return 1;
    *out = strtoull(text, NULL, 10);
    return 0;
}

static int open_in(const char *dir, const char *zone, const char *file) {
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/%s/%s", dir, zone, file) >= (int)sizeof path)
        return -ENAMETOOLONG;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

// "intel-rapl:0" is a package or the whole platform, "intel-rapl:0:1" a part of one.
// "intel-rapl-mmio:0" is the same package a second time.
static bool is_zone(const char *name) {
    static const char prefix[] = "intel-rapl:";
    const size_t length = sizeof prefix - 1;
    return strncmp(name, prefix, length) == 0 && name[length] &&
           strspn(name + length, "0123456789") == strlen(name + length);
}

// Packages are "package-0", "package-1-die-0", ... Others ("psys") contain packages and would count
// them twice.
static bool is_package(const char *dir, const char *zone) {
    char name[32] = "";
    const int fd = open_in(dir, zone, "name");
    if (fd < 0)
        return false;
    const ssize_t n = read(fd, name, sizeof name - 1);
    close(fd);
    return n > 0 && strncmp(name, "package", 7) == 0;
}

static uint64_t range_of(const char *dir, const char *zone) {
    uint64_t range = 0;
    char text[32];
    const int fd = open_in(dir, zone, "max_energy_range_uj");
    if (fd < 0)
        return 0;
    if (read_number(fd, &range, text) != 0)
        range = 0;
    close(fd);
    return range;
}

// ---------------------------------------------------------------- RAPL

__attribute__((format(printf, 2, 3))) static bool no_meter(struct energy_meter *m,
                                                           const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(m->why, sizeof m->why, format, args);
    va_end(args);
    return false;
}

static bool add_package(struct energy_meter *m, const char *dir, const char *zone) {
    struct energy_package p = {.range_uj = range_of(dir, zone)};
    char text[32];
    if (m->n_packages == ENERGY_MAX_PACKAGES)
        return no_meter(m, "RAPL has more than %d packages", ENERGY_MAX_PACKAGES);
    p.fd = open_in(dir, zone, "energy_uj");
    if (p.fd == -EACCES || p.fd == -EPERM) {
        m->fix = "sudo chmod a+r " POWERCAP "/intel-rapl:*/energy_uj";
        return no_meter(m, "RAPL exists, but only root may read it (%s/energy_uj)", zone);
    }
    if (p.fd < 0)
        return no_meter(m, "RAPL: %s/energy_uj: %s", zone, strerror(-p.fd));
    const int rc = read_number(p.fd, &p.last_uj, text);
    if (rc != 0) {
        close(p.fd);
        return rc > 0 ? no_meter(m, "RAPL: %s/energy_uj holds '%s', not a number", zone, text)
                      : no_meter(m, "RAPL: %s/energy_uj: %s", zone, strerror(-rc));
    }
    m->packages[m->n_packages++] = p;
    return true;
}

static void close_packages(struct energy_meter *m) {
    for (int i = 0; i < m->n_packages; i++)
        close(m->packages[i].fd);
    m->n_packages = 0;
}

// All packages or none: a part of the energy would be taken for all of it.
static bool rapl_open(struct energy_meter *m, const char *root) {
    char dir[PATH_MAX];
    bool whole = true;
    snprintf(dir, sizeof dir, "%s" POWERCAP, root);
    DIR *d = opendir(dir);
    for (struct dirent *f = d ? readdir(d) : NULL; f && whole; f = readdir(d))
        if (is_zone(f->d_name) && is_package(dir, f->d_name))
            whole = add_package(m, dir, f->d_name);
    if (d)
        closedir(d);
    if (!whole)
        close_packages(m);
    else if (m->n_packages == 0)
        return no_meter(m, POWERCAP " has no RAPL packages (a virtual machine, or the "
                                    "kernel's module intel_rapl_msr is not loaded)");
    return whole;
}

static bool rapl_advance(struct energy_meter *m) {
    char text[32];
    for (int i = 0; i < m->n_packages; i++) {
        struct energy_package *p = &m->packages[i];
        uint64_t now;
        const int rc = read_number(p->fd, &now, text);
        if (rc != 0)
            return no_meter(m, "RAPL could no longer be read: %s",
                            rc < 0 ? strerror(-rc) : "not a number");
        if (now < p->last_uj && p->range_uj < p->last_uj)
            return no_meter(m, "RAPL's counter started over, and its range is not known");
        // A counter takes range + 1 values, 0 to range, before it is 0 again.
        const uint64_t used =
            now >= p->last_uj ? now - p->last_uj : p->range_uj - p->last_uj + 1 + now;
        m->joules += 1e-6 * (double)used;
        p->last_uj = now;
    }
    return true;
}

// ---------------------------------------------------------------- NVML

static bool device_advance(struct energy_meter *m, uint64_t now_ns, bool first) {
    uint64_t mj = 0;
    double watts = 0;
    const bool counts = nvml_counts(m->nvml);
    const int rc = counts ? nvml_energy_mj(m->nvml, &mj) : nvml_watts(m->nvml, &watts);
    if (rc != 0)
        return no_meter(m, "NVML %s: %s", first ? "reports neither energy nor power" : "failed",
                        nvml_error(m->nvml, rc));
    if (counts && !first && mj < m->device_mj) // 64 bits of mJ never overflow
        return no_meter(m, "NVML's counter started over: the driver was loaded again");
    if (!first)
        m->joules += counts ? 1e-3 * (double)(mj - m->device_mj)
                            : 0.5e-9 * (m->watts + watts) * (double)(now_ns - m->read_ns);
    m->device_mj = mj;
    m->watts = watts;
    return true;
}

static bool device_open(struct energy_meter *m, const char *library) {
    char device[ENERGY_NAME_BYTES];
    m->nvml = nvml_open(library, device, m->why);
    if (m->nvml == NULL)
        return false;
    if (!device_advance(m, 0, true)) {
        nvml_close(m->nvml);
        m->nvml = NULL;
        return false;
    }
    snprintf(m->name, sizeof m->name, "NVML (%.80s%s)", device,
             nvml_counts(m->nvml) ? "" : ", sampled power");
    m->every_ns = nvml_counts(m->nvml) ? COUNTER_NS : POWER_NS;
    return true;
}

double energy_device_disturbed(const struct energy_meter *m, double since_s) {
    return m && m->nvml ? nvml_disturbed(m->nvml, since_s) : NAN;
}

double energy_device_used(const struct energy_meter *m, double since_s) {
    return m && m->nvml ? nvml_used(m->nvml, since_s) : NAN;
}

// ---------------------------------------------------------------- the meter

void energy_open(struct energy_meter *m, const struct energy_options *o) {
    *m = (struct energy_meter){.every_ns = COUNTER_NS};
    const bool device = o->device && device_open(m, o->nvml ? o->nvml : "libnvidia-ml.so.1");
    if (o->device && !device)
        return; // the host's energy alone would be taken for all of it
    const bool rapl = rapl_open(m, o->root ? o->root : "");
    m->present = m->sound = device || rapl;
    m->read_ns = clock_ns();
    const size_t at = strlen(m->name);
    if (rapl)
        snprintf(m->name + at, sizeof m->name - at, "%sRAPL (%d package%s)", at ? " + " : "",
                 m->n_packages, m->n_packages == 1 ? "" : "s");
    if (rapl || !device)
        return;
    char why[ENERGY_WHY_BYTES];
    snprintf(why, sizeof why, "the GPU alone; %.200s", m->why);
    memcpy(m->why, why, sizeof why);
}

void energy_close(struct energy_meter *m) {
    close_packages(m);
    if (m->nvml != NULL)
        nvml_close(m->nvml);
    *m = (struct energy_meter){0};
}

double energy_read(struct energy_meter *m) {
    if (!m->sound)
        return NAN;
    const uint64_t now_ns = clock_ns();
    m->sound = (m->nvml == NULL || device_advance(m, now_ns, false)) && rapl_advance(m);
    m->read_ns = now_ns;
    return m->sound ? m->joules : NAN;
}

static void note_clock(struct energy_meter *m, uint64_t now_ns) {
    unsigned now, most;
    m->clock_ns = now_ns;
    if (m->nvml == NULL || !nvml_clock_mhz(m->nvml, &now, &most))
        return;
    m->clock_sum += now;
    m->clock_most = most;
    m->clocks++;
}

void energy_poll(struct energy_meter *m, uint64_t now_ns) {
    if (m->sound && now_ns - m->clock_ns >= CLOCK_NS)
        note_clock(m, now_ns);
    if (m->sound && now_ns - m->read_ns >= m->every_ns)
        energy_read(m);
}

void energy_lap_begin(struct energy_lap *lap, struct energy_meter *m) {
    if (lap->running)
        return;
    lap->begin = energy_read(m);
    lap->running = true;
}

void energy_lap_end(struct energy_lap *lap, struct energy_meter *m) {
    if (!lap->running)
        return;
    lap->joules += energy_read(m) - lap->begin;
    if (m->clocks == 0) // steps that were too short to be polled
        note_clock(m, m->read_ns);
    lap->running = false;
}

void energy_use_of(struct energy_use *out, const struct energy_meter *m, double joules) {
    *out = (struct energy_use){.joules = m->sound ? joules : NAN};
    if (m->sound)
        memcpy(out->meter, m->name, sizeof out->meter);
    if (m->clocks > 0) {
        out->clock_mhz = m->clock_sum / m->clocks;
        out->clock_most_mhz = m->clock_most;
    }
    memcpy(out->why, m->why, sizeof out->why);
    if (!m->present && !m->why[0])
        snprintf(out->why, sizeof out->why, "nothing was measured");
}

// A counter moves about every tenth of a second. After a shorter time it is still 0 and says
// nothing.
double energy_per(const struct energy_use *u, double of) {
    return u->joules > 0 && of > 0 ? u->joules / of : NAN;
}

void energy_use_add(struct energy_use *sum, const struct energy_use *more) {
    const double before = sum->joules;
    *sum = *more;
    sum->joules += before;
}
