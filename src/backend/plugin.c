// plugin.c - finds and opens plug-ins. See plugin.h.
#include "backend/plugin.h"
#include "backend/operands.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = PLUGIN_PATH_BYTES };

static const char *op_name(enum op_kind kind) {
    return op_info(kind)->name;
}

static const struct plugin_host host = {
    .abi = PLUGIN_ABI,
    .op_bytes = sizeof(struct op),
    .op_call_bytes = sizeof(struct op_call),
    .backend_bytes = sizeof(struct backend),
    .err_bytes = sizeof(struct err),
    .op_count = OP_COUNT,
    .err_set = err_set,
    .op_name = op_name,
    .dtype_text = dtype_text,
    .check_call = backend_check_call,
    .storage_layout = storage_layout,
    .notes_open = notes_open,
    .notes_close = notes_close,
    .notes_find = notes_find,
    .notes_add = notes_add,
    .notes_kept = notes_kept,
};

// ---------------------------------------------------------------- finding

// Folder of the running executable; "" when /proc does not say.
static void executable_folder(char out[PATH_BYTES]) {
    ssize_t n = readlink("/proc/self/exe", out, PATH_BYTES - 1);
    out[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(out, '/');
    if (slash)
        *slash = '\0';
}

static bool readable(char out[PATH_BYTES], const char *folder, const char *below,
                     const char *file) {
    int n = snprintf(out, PATH_BYTES, "%s%s/%s", folder, below, file);
    return folder[0] && n > 0 && n < PATH_BYTES && access(out, R_OK) == 0;
}

// The first place that has the file; else the bare name, which dlopen searches in the system's
// folders.
void plugin_find(const char *name, char out[PATH_BYTES]) {
    char file[128], folder[PATH_BYTES];
    const char *chosen = getenv("HAGGLE_PLUGINS");
    snprintf(file, sizeof file, "libhaggle_%s.so", name);
    if (chosen && readable(out, chosen, "", file))
        return;
    executable_folder(folder);
    if (readable(out, folder, "", file) || readable(out, folder, "/../lib/haggle", file))
        return;
    snprintf(out, PATH_BYTES, "%s", file);
}

bool plugin_device_present(const char *name) {
    // The driver's control file, and the device file of Windows Subsystem for Linux.
    return strcmp(name, "cuda") == 0 &&
           (access("/dev/nvidiactl", F_OK) == 0 || access("/dev/dxg", F_OK) == 0);
}

// ---------------------------------------------------------------- opening

static int open_at(const char *name, const char *path, const struct plugin_options *o,
                   struct backend **out, struct err *e) {
    // RTLD_LOCAL: the symbols of a plug-in's libraries must not replace the program's.
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *why = dlerror();
        if (!strchr(path, '/'))
            return err_set(e, ERR_UNSUPPORTED,
                           "no plug-in '%s': %s is not beside the program, in its ../lib/haggle, "
                           "in $HAGGLE_PLUGINS or where the system looks (%s)",
                           name, path, why ? why : "no reason given");
        return err_set(e, ERR_UNSUPPORTED, "the plug-in %s cannot be loaded: %s", path,
                       why ? why : "no reason given");
    }
    union { // ISO C has no conversion from data to function pointers
        void *data;
        plugin_open_fn *fn;
    } symbol = {.data = dlsym(library, PLUGIN_SYMBOL)};
    if (!symbol.data) {
        dlclose(library);
        return err_set(e, ERR_UNSUPPORTED,
                       "%s is not a plug-in of this program: it has no function %s", path,
                       PLUGIN_SYMBOL);
    }
    *out = NULL;
    int rc = symbol.fn(PLUGIN_ABI, &host, o, out, e);
    if (rc == 0 && !*out)
        rc = err_set(e, ERR_INTERNAL, "the plug-in %s returned no backend", path);
    return rc;
}

int plugin_open(const char *name, const struct plugin_options *o, struct backend **out,
                struct err *e) {
    char path[PATH_BYTES];
    *out = NULL;
    plugin_find(name, path);
    return open_at(name, path, o, out, e);
}

void plugin_examine(const char *name, struct plugin_report *out) {
    struct err e = {0};
    struct backend *b;
    const struct plugin_options o = {0};
    *out = (struct plugin_report){0};
    plugin_find(name, out->path);
    int rc = open_at(name, out->path, &o, &b, &e);
    if (rc == 0) {
        out->usable = true;
        snprintf(out->device, sizeof out->device, "%s", b->info.text);
        if (b->info.device)
            b->memory(b, &out->free_bytes, &out->total_bytes, &e);
        b->close(b);
    } else {
        snprintf(out->reason, sizeof out->reason, "%s", e.text);
    }
    if (!strchr(out->path, '/')) // only a bare name: dlopen does not say which file it took
        out->path[0] = '\0';
}
