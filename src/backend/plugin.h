// plugin.h - backends in shared objects that are opened at run time: what the program gives them,
// what they return, and where they are searched.
//
// A plug-in includes this header and backend.h. It calls the program only through struct
// plugin_host, so it links against nothing of the program. It exports one function, PLUGIN_SYMBOL,
// of type plugin_open_fn. That function must compare the ABI number and the sizes before it reads
// anything else, and refuse with a message when they differ, because both sides must agree on the
// layout of the structs.
#ifndef HAGGLE_BACKEND_PLUGIN_H
#define HAGGLE_BACKEND_PLUGIN_H

#include "backend/backend.h"
#include "backend/notes.h"

#include <stdint.h>

enum {
    // Raised whenever a struct that a plug-in can see changes, or the meaning of a member.
    PLUGIN_ABI = 11,
    PLUGIN_PATH_BYTES = 1024,
};
#define PLUGIN_SYMBOL "haggle_backend_open"

struct plugin_host {
    uint32_t abi;
    uint32_t op_bytes, op_call_bytes, backend_bytes, err_bytes; // sizeof of the four structs
    uint32_t op_count;                                          // OP_COUNT: slots of backend.run
    int (*err_set)(struct err *e, int code, const char *format, ...) ERR_PRINTF(3, 4);
    const char *(*op_name)(enum op_kind kind);
    const char *(*dtype_text)(enum dtype type);
    // backend_check_call (operands.h): refuses operands that are missing or of the wrong type.
    int (*check_call)(const struct op_call *call, enum dtype *float_type, struct err *e);
    // base/storage.h
    bool (*storage_layout)(struct storage s, int64_t rows, int64_t cols, struct storage_parts *out);
    // notes.h
    int (*notes_open)(struct notes **out, const char *folder, const char *name, struct err *e);
    void (*notes_close)(struct notes *n);
    const char *(*notes_find)(const struct notes *n, const char *key);
    const char *(*notes_add)(struct notes *n, const char *key, const char *value);
    bool (*notes_kept)(const struct notes *n);
};

struct plugin_options {
    int device; // index among the devices that the plug-in sees
    bool tf32;  // matrix products of fp32 may round their inputs to 10 bits of mantissa
    bool plain; // one plain kernel per op, no libraries: slow, and simple enough to be believed
    bool deterministic; // the same bits on every run, also where a faster kernel has none
    // Library for attention: "" or "auto" the newest cuDNN that is found, "none", or a file.
    const char *cudnn;
    // Folder for what was measured about the device, algorithms of matrix products; NULL: none.
    const char *cache;
};

typedef int plugin_open_fn(uint32_t abi, const struct plugin_host *host,
                           const struct plugin_options *o, struct backend **out, struct err *e);

// Opens a backend by plug-in name ("cuda": libhaggle_cuda.so). The file is searched in
// $HAGGLE_PLUGINS, beside the executable, in ../lib/haggle of the executable's folder, then where
// the system looks. ERR_UNSUPPORTED, with the reason, when there is no such file or no device, when
// the driver is too old, or when the ABI differs. Closing the backend leaves the shared object
// loaded, because its libraries do not survive being unloaded.
int plugin_open(const char *name, const struct plugin_options *o, struct backend **out,
                struct err *e);

// The file that plugin_open would try first. It may not exist; nothing is opened.
void plugin_find(const char *name, char out[PLUGIN_PATH_BYTES]);

// Whether this machine seems to have a device for the plug-in. Looks at device files only and loads
// nothing, so that device=auto does not load a library on machines without a device.
bool plugin_device_present(const char *name);

// For `haggle doctor`: where the plug-in is, which device it found, or why it cannot be used.
struct plugin_report {
    char path[PLUGIN_PATH_BYTES]; // "": not found
    char device[DEVICE_TEXT_BYTES];
    uint64_t free_bytes, total_bytes;
    bool usable;
    char reason[ERR_TEXT_BYTES]; // when not usable
};
void plugin_examine(const char *name, struct plugin_report *out);

#endif
