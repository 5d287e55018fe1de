// others.c - see others.h.
#include "hw/others.h"

#include "base/clock.h"

#include <ctype.h>
#include <dirent.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PATH_BYTES = 512, LINE_BYTES = 512 };

// ---------------------------------------------------------------- a moment

static FILE *open_at(const char *root, const char *path) {
    char whole[PATH_BYTES];
    const int n = snprintf(whole, sizeof whole, "%s%s", root ? root : "", path);
    return n > 0 && (size_t)n < sizeof whole ? fopen(whole, "re") : NULL;
}

static double own_seconds(void) {
    struct timespec t;
    return clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) == 0
               ? (double)t.tv_sec + 1e-9 * (double)t.tv_nsec
               : NAN;
}

// Adds the line of one CPU: user nice system idle iowait irq softirq steal, in clock ticks.
static void add_cpu(struct others_mark *m, const char *numbers) {
    double t[8] = {0};
    char *end;
    int n = 0;
    for (; n < 8; n++, numbers = end) {
        t[n] = strtod(numbers, &end);
        if (end == numbers)
            break;
    }
    if (n < 4)
        return;
    const double tick_s = 1 / (double)sysconf(_SC_CLK_TCK);
    m->busy_s += tick_s * (t[0] + t[1] + t[2] + t[5] + t[6]);
    m->stolen_s += tick_s * t[7];
    m->cpus++;
}

static void read_cpus(struct others_mark *m, const char *root) {
    FILE *f = open_at(root, "/proc/stat");
    char line[LINE_BYTES];
    cpu_set_t mine;
    const bool all = sched_getaffinity(0, sizeof mine, &mine) != 0; // more CPUs than the set holds
    while (f && fgets(line, sizeof line, f)) {
        char *end;
        if (strncmp(line, "cpu", 3) != 0 || !isdigit((unsigned char)line[3]))
            continue;
        const long cpu = strtol(line + 3, &end, 10);
        if (all || (cpu >= 0 && cpu < CPU_SETSIZE && CPU_ISSET((int)cpu, &mine)))
            add_cpu(m, end);
    }
    if (f)
        fclose(f);
    if (m->cpus == 0)
        m->busy_s = m->stolen_s = NAN;
}

// schedstat: time on a CPU, time ready to run without one, number of turns; nanoseconds.
static void read_threads(struct others_mark *m, const char *root) {
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/proc/self/task", root ? root : "");
    DIR *d = opendir(path);
    for (const struct dirent *x; d && m->n_threads < OTHERS_THREADS_MOST && (x = readdir(d));) {
        unsigned long long on, waited;
        if (!isdigit((unsigned char)x->d_name[0]))
            continue;
        snprintf(path, sizeof path, "/proc/self/task/%.16s/schedstat", x->d_name);
        FILE *f = open_at(root, path);
        if (f && fscanf(f, "%llu %llu", &on, &waited) == 2) {
            m->threads[m->n_threads].id = atoi(x->d_name);
            m->threads[m->n_threads++].waited_ns = waited;
        }
        if (f)
            fclose(f);
    }
    if (d)
        closedir(d);
}

// The time for which the quota of this process's cgroup (version 2) stopped it.
static double read_stopped(const char *root) {
    char line[LINE_BYTES], path[PATH_BYTES] = "";
    double us = NAN;
    FILE *f = open_at(root, "/proc/self/cgroup");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, "0::/", 4) == 0) {
            line[strcspn(line, "\n")] = '\0';
            snprintf(path, sizeof path, "/sys/fs/cgroup/%.400s/cpu.stat", line + 4);
        }
    if (f)
        fclose(f);
    f = path[0] ? open_at(root, path) : NULL;
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, "throttled_usec ", 15) == 0)
            us = strtod(line + 15, NULL);
    if (f)
        fclose(f);
    return 1e-6 * us;
}

void others_mark(struct others_mark *out, const char *root) {
    *out = (struct others_mark){.ns = clock_ns(), .own_s = own_seconds()};
    read_cpus(out, root);
    read_threads(out, root);
    out->stopped_s = read_stopped(root);
}

// ---------------------------------------------------------------- an interval

// The longest wait of a thread that was there at both moments.
static double longest_wait_s(const struct others_mark *from, const struct others_mark *to) {
    double most = from->n_threads > 0 && to->n_threads > 0 ? 0 : NAN;
    for (int i = 0; i < to->n_threads; i++)
        for (int j = 0; j < from->n_threads; j++)
            if (to->threads[i].id == from->threads[j].id &&
                to->threads[i].waited_ns > from->threads[j].waited_ns)
                most = fmax(most,
                            1e-9 * (double)(to->threads[i].waited_ns - from->threads[j].waited_ns));
    return most;
}

void others_between(struct others *out, const struct others_mark *from,
                    const struct others_mark *to) {
    const double seconds = 1e-9 * (double)(to->ns - from->ns), busy_s = to->busy_s - from->busy_s,
                 stolen_s = to->stolen_s - from->stolen_s;
    *out =
        (struct others){.waited = NAN, .cpus = NAN, .stolen = NAN, .stopped = NAN, .device = NAN};
    if (to->ns <= from->ns)
        return;
    out->seconds = seconds;
    out->of_cpus = to->cpus;
    out->waited = longest_wait_s(from, to) / seconds;
    if (busy_s >= 0 && stolen_s >= 0) {
        // The kernel counts in ticks, so a short interval may give less than this process used.
        out->cpus = fmax(0, busy_s - (to->own_s - from->own_s)) / seconds;
        out->stolen = busy_s + stolen_s > 0 ? stolen_s / (busy_s + stolen_s) : 0;
    }
    if (to->stopped_s >= from->stopped_s)
        out->stopped = (to->stopped_s - from->stopped_s) / seconds;
}

static double mean_of(double a, double a_s, double b, double b_s) {
    return isnan(a) ? b : isnan(b) ? a : (a * a_s + b * b_s) / (a_s + b_s);
}

void others_of_device(struct others *o, double share) {
    o->waited = o->cpus = o->stolen = o->stopped = NAN;
    o->device = share;
}

void others_add(struct others *sum, const struct others *more) {
    const double s = sum->seconds, m = more->seconds;
    if (m <= 0)
        return;
    if (s <= 0) {
        *sum = *more;
        return;
    }
    sum->waited = mean_of(sum->waited, s, more->waited, m);
    sum->cpus = mean_of(sum->cpus, s, more->cpus, m);
    sum->stolen = mean_of(sum->stolen, s, more->stolen, m);
    sum->stopped = mean_of(sum->stopped, s, more->stopped, m);
    sum->device = mean_of(sum->device, s, more->device, m);
    sum->seconds = s + m;
}

// The share of the time that a thread waited because of other programs. With more threads than CPUs
// threads wait for each other, too. But while one waits for another program, that program uses a
// CPU, so the share is no larger than the CPUs that others kept busy. Without the threads' waits,
// those CPUs stand in. That counts programs which ran beside this one without disturbing it.
static double waited_for_others(const struct others *o) {
    return isnan(o->waited) ? o->cpus / (double)(o->of_cpus > 0 ? o->of_cpus : 1)
                            : fmin(o->waited, o->cpus); // fmin and fmax pass over NaN
}

double others_share(const struct others *o) {
    if (o->seconds <= 0)
        return NAN;
    return fmax(fmax(waited_for_others(o), o->device), fmax(o->stolen, o->stopped));
}

bool others_notable(const struct others *o) {
    return others_share(o) > 0.05; // false if it is not known
}

const char *others_text(char out[OTHERS_TEXT_BYTES], const struct others *o) {
    const double share = others_share(o);
    if (isnan(share))
        snprintf(out, OTHERS_TEXT_BYTES, "other programs cannot be seen here");
    else if (share == o->device)
        snprintf(out, OTHERS_TEXT_BYTES,
                 "other processes used %.0f %% of the GPU, or heat held its clocks down",
                 100 * share);
    else if (share == o->stopped)
        snprintf(out, OTHERS_TEXT_BYTES, "a CPU quota stopped this program for %.0f %% of the time",
                 100 * share);
    else if (share == o->stolen)
        snprintf(out, OTHERS_TEXT_BYTES, "the hypervisor gave %.0f %% of the CPU time to others",
                 100 * share);
    else if (isnan(o->cpus))
        snprintf(out, OTHERS_TEXT_BYTES, "a thread waited for a CPU for %.0f %% of the time",
                 100 * share);
    else
        snprintf(out, OTHERS_TEXT_BYTES,
                 "other programs used %.1f of %d CPUs, and a thread waited for %.0f %% of the time",
                 o->cpus, o->of_cpus, 100 * share);
    return out;
}
