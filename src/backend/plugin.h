// plugin.h - backends that are shared objects opened at run time: what they are given, what they
// give back, and how they are found.
//
// A plug-in includes this header and backend.h and calls the program only through struct
// plugin_host, so it links against nothing of the program. It exports one function, PLUGIN_SYMBOL,
// of type plugin_open_fn, which must compare the ABI number and the sizes before it reads anything
// else, and refuse with a sentence when they differ: struct layouts are the contract.
#ifndef HAGGLE_BACKEND_PLUGIN_H
#define HAGGLE_BACKEND_PLUGIN_H

#include "backend/backend.h"

#include <stdint.h>

// Raised whenever a struct or the meaning of a member changes that a plug-in can see.
enum {
    PLUGIN_ABI = 2,
    PLUGIN_MAX_DEVICES = 16,
    PLUGIN_TEXT_BYTES = 256,
    PLUGIN_PATH_BYTES = 1024,
};
#define PLUGIN_SYMBOL "haggle_backend_open"

struct plugin_host {
    uint32_t abi;
    uint32_t op_bytes, op_call_bytes, backend_bytes, err_bytes; // sizeof of the four structs
    uint32_t op_count;                                          // OP_COUNT: slots of backend.run
    int (*err_set)(struct err *e, int code, const char *format, ...) ERR_PRINTF(3, 4);
    void (*log)(void *arg, const char *text); // a line for people; may be NULL
    void *log_arg;
    const char *(*op_name)(enum op_kind kind);
    const char *(*dtype_text)(enum dtype type);
    // operands.h: refuses calls whose operands are missing or of the wrong type.
    int (*check_call)(const struct op_call *call, enum dtype *float_type, struct err *e);
};

struct plugin_options {
    int device; // index among the devices the plug-in sees
    bool tf32;  // matrix products of fp32 may round their inputs to 10 bits
};

typedef int plugin_open_fn(uint32_t abi, const struct plugin_host *host,
                           const struct plugin_options *o, struct backend **out, struct err *e);

// Opens a backend by plug-in name ("cuda": libhaggle_cuda.so), looked for in $HAGGLE_PLUGINS, beside
// the executable, in ../lib/haggle of its folder, then where the system looks. ERR_UNSUPPORTED, with
// the reason, when there is no such file, no device, a driver that is too old, or another ABI.
// Closing the backend leaves the shared object loaded: its libraries do not survive being unloaded.
int plugin_open(const char *name, const struct plugin_options *o, struct backend **out,
                struct err *e);

// The file that plugin_open would try first, which may not be there; opens nothing.
void plugin_find(const char *name, char out[PLUGIN_PATH_BYTES]);

// Whether this machine looks as if it had a device for the plug-in: device files only, nothing is
// loaded. What is chosen automatically must not cost machines without a device the loading of a
// library.
bool plugin_device_present(const char *name);

// For `haggle doctor`: where the plug-in is, what it says of its device, or why it cannot be used.
struct plugin_report {
    char path[PLUGIN_PATH_BYTES]; // "": not found
    char device[PLUGIN_TEXT_BYTES];
    uint64_t free_bytes, total_bytes;
    bool usable;
    char reason[ERR_TEXT_BYTES]; // when not usable
};
void plugin_examine(const char *name, struct plugin_report *out);

#endif
