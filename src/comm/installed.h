// installed.h - what this machine has for ranks as processes, and what it takes to start them here.
#ifndef HAGGLE_COMM_INSTALLED_H
#define HAGGLE_COMM_INSTALLED_H

#include "backend/plugin.h"
#include "comm/plugin.h"

// The MPI library that the plug-in uses, in its own words. Opens the plug-in, and joins nothing.
int comm_library(char out[COMM_LIBRARY_BYTES], struct err *e);

enum comm_flavour { COMM_UNKNOWN, COMM_OPEN_MPI, COMM_MPICH };
const char *comm_flavour_text(enum comm_flavour f);

struct comm_installed {
    char plugin[PLUGIN_PATH_BYTES];
    char library[COMM_LIBRARY_BYTES]; // "": the plug-in cannot be used
    char mpirun[PLUGIN_PATH_BYTES];   // "": not in PATH
    enum comm_flavour library_is, mpirun_is;
    bool usable;                 // ranks can be started as processes
    char reason[ERR_TEXT_BYTES]; // when not
    bool root;                   // the user is root, whom Open MPI's mpirun refuses
    bool reads_others;           // a process may read another one's memory (CMA): one copy less
    int ptrace_scope;            // of Yama; -1: there is no Yama
    uint64_t shared_bytes;       // of /dev/shm; 0: there is none
};
void comm_examine(struct comm_installed *out);

// What a user's own mpirun would need here, a sentence per topic. What comm_start_of gives has it.
enum { COMM_ADVICE_MOST = 5, COMM_ADVICE_BYTES = 240 };
struct comm_advice {
    const char *topic; // "binding"
    char text[COMM_ADVICE_BYTES];
};
int comm_advise(const struct comm_installed *i, int cpus, struct comm_advice out[COMM_ADVICE_MOST]);

// What starts ranks on this machine, for the makes above. `arguments` ends with NULL and stands
// behind mpirun, before the program; environment holds "NAME=value", and "NAME=" where the value is
// a folder that the caller makes and removes.
enum { COMM_START_MOST = 20 };
struct comm_start {
    const char *arguments[COMM_START_MOST];
    const char *environment[COMM_START_MOST];
    const char *rank_variable; // in which a rank finds its number
    char ranks[16];            // what arguments point to
};
void comm_start_of(struct comm_start *out, const struct comm_installed *i, int ranks);

#endif
