// others.h - what other programs took of this machine while something was measured.
//
// Place: a trial marks where its measured steps begin and end. The tuner repeats what was measured
// in a busy moment, and bench names the comparisons that were disturbed. doctor says whether others
// can be seen at all.
//
// Sources, each of which may be missing (then the figure is NaN):
//   /proc/self/task/*/schedstat   how long each thread was ready to run and had no CPU
//   /proc/stat                    how long the CPUs were busy, and how long a hypervisor held them
//   cpu.stat of the cgroup        how long a quota stopped this process
// What others do to caches and to memory bandwidth is not seen. Settings are compared in turns for
// that reason, too.
#ifndef HAGGLE_HW_OTHERS_H
#define HAGGLE_HW_OTHERS_H

#include <stdbool.h>
#include <stdint.h>

enum { OTHERS_THREADS_MOST = 256, OTHERS_TEXT_BYTES = 160 };

struct others_mark { // a moment
    uint64_t ns;
    double own_s;            // CPU time of this process
    double busy_s, stolen_s; // of the CPUs that this process may use, since the machine started
    double stopped_s;        // by the cgroup's quota
    int cpus;                // that this process may use
    int n_threads;           // 0: not known
    struct {
        int id;
        uint64_t waited_ns;
    } threads[OTHERS_THREADS_MOST];
};

struct others {     // an interval
    double seconds; // its length; 0: nothing was watched
    double waited;  // share of it that this process's unluckiest thread waited for a CPU
    double cpus;    // CPUs that other programs kept busy, on average
    double stolen;  // share of busy time that a hypervisor gave to other machines
    double stopped; // share of it that a quota stopped this process
    int of_cpus;    // CPUs that this process may use
    // The same of a device: share that other processes used, 1 if heat held its clocks down. The
    // figures above are then NaN, because the host is not what is measured.
    double device;
};

// `root` is "" or NULL for this machine; tests give a folder with another /proc and /sys.
void others_mark(struct others_mark *out, const char *root);
void others_between(struct others *out, const struct others_mark *from,
                    const struct others_mark *to);
// For an interval in which a device computed: only the device's own figure counts (NaN: not known).
void others_of_device(struct others *o, double share);
// Adds a later interval, weighted by length.
void others_add(struct others *sum, const struct others *more);
// The share of the time that was lost to others: the largest of the figures that are known. NaN:
// none is.
double others_share(const struct others *o);
bool others_notable(const struct others *o); // they took enough to disturb a measurement
// "other programs used 1.2 of 2 CPUs", or what else was lost; "others cannot be seen here".
const char *others_text(char out[OTHERS_TEXT_BYTES], const struct others *o);

#endif
