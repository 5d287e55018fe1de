// plugin.h - what the program and the MPI plug-in tell each other.
//
// libmpi is not linked into the program. libhaggle_mpi.so, beside it, is opened when ranks are
// processes. It includes this header and comm.h, and calls the program only through struct
// comm_plugin_host. Its functions must compare the ABI number and the sizes before anything else.
#ifndef HAGGLE_COMM_PLUGIN_H
#define HAGGLE_COMM_PLUGIN_H

#include "comm/comm.h"

enum {
    // Raised whenever a struct that the plug-in can see changes, or the meaning of a member.
    COMM_PLUGIN_ABI = 1,
    COMM_LIBRARY_BYTES = 96,
};
#define COMM_PLUGIN_NAME    "mpi"
#define COMM_PLUGIN_OPEN    "haggle_comm_open"
#define COMM_PLUGIN_LIBRARY "haggle_comm_library"

struct comm_plugin_host {
    uint32_t abi;
    uint32_t comm_bytes, err_bytes, dtype_count; // sizeof of two structs; DTYPE_COUNT
    int (*err_set)(struct err *e, int code, const char *format, ...) ERR_PRINTF(3, 4);
    size_t (*dtype_bytes)(enum dtype t);
    int (*sum)(void *out, const void *const *in, int n_in, int64_t n, enum dtype t, bool add,
               struct err *e); // comm_sum
    // Asked in every turn of a wait, so both are cheap: whether the job is lost, and why.
    bool (*lost)(void *arg, struct err *e);
    // A wait was too long for these ranks. Returns a code and its sentence.
    int (*late)(void *arg, const int *missing, int n, uint64_t waited_ns, struct err *e);
    void *arg;
};

// Joins the ranks that a launcher has started. Fills *out but for `note` and `give_up`, which the
// program adds. *host must outlive it. A process joins once.
typedef int comm_plugin_open_fn(uint32_t abi, const struct comm_plugin_host *host,
                                uint64_t timeout_ns, struct comm *out, struct err *e);
// The MPI library and its version, in its own words: "Open MPI v4.1.4, ...". Joins nothing.
typedef int comm_plugin_library_fn(uint32_t abi, char out[COMM_LIBRARY_BYTES]);

#endif
