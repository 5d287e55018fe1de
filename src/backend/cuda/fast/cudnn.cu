// cudnn.cu - finds and opens cuDNN, and describes graphs to it. See cudnn.cuh.
//
// cuDNN is several files. libcudnn.so.9 loads the others when it is first used, by their bare
// names, and libcudnn_graph.so.9 can never be unloaded. So a process can hold one cuDNN only: a
// second copy would find the parts of the first, and to ask a copy for its version is to choose
// it. Therefore
// - versions are compared before anything is loaded: they are in the file's name, or in the header
//   that lies beside it;
// - a cuDNN that the process has already is the one that is used;
// - parts are loaded with their folder, because $LD_LIBRARY_PATH may lead to other ones.
// cuDNN stays loaded when the backend closes.
#include "backend/cuda/fast/cudnn.cuh"

#include <cublasLt.h>
#include <dlfcn.h>
#include <glob.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void say(struct cuda *s, const char *text) {
    snprintf(s->attention_text, sizeof s->attention_text, "%s", text);
}

#ifndef HAGGLE_CUDNN

int cuda_cudnn_open(struct cuda *s, const char *library, struct err *e) {
    if (*library && strcmp(library, "auto") != 0 && strcmp(library, "none") != 0)
        return s->host.err_set(e, ERR_USAGE,
                               "cuda.cudnn=%s: the CUDA plug-in was built without the headers of "
                               "cuDNN 9",
                               library);
    say(s, strcmp(library, "none") == 0 ? "plain kernels"
                                        : "plain kernels (built without the headers of cuDNN 9)");
    return 0;
}

void cuda_cudnn_close(struct cuda *s) {
    (void)s;
}

#else

enum { OLDEST = 91002 }; // what is older has errors in attention

// ---------------------------------------------------------------- finding

struct found {
    char path[PLUGIN_PATH_BYTES]; // "": nothing
    int version;                  // 0: not known
};

// The folder of a file, in place.
static void cut_name(char *path) {
    char *slash = strrchr(path, '/');
    if (slash)
        *slash = '\0';
}

// The version in <folder of the library>/../include/cudnn_version.h; 0: there is none.
static int version_in_header(const char *library) {
    char folder[PLUGIN_PATH_BYTES], path[PLUGIN_PATH_BYTES + 64], line[256];
    int part[3] = {0, 0, 0};
    static const char *const names[] = {"MAJOR", "MINOR", "PATCHLEVEL"};
    snprintf(folder, sizeof folder, "%s", library);
    cut_name(folder);
    snprintf(path, sizeof path, "%s/../include/cudnn_version.h", folder);
    FILE *f = fopen(path, "r");
    if (!f)
        return 0;
    while (fgets(line, sizeof line, f))
        for (int i = 0; i < 3; i++) {
            char format[64];
            snprintf(format, sizeof format, "#define CUDNN_%s %%d", names[i]);
            if (sscanf(line, format, &part[i]) == 1)
                break;
        }
    fclose(f);
    return 10000 * part[0] + 100 * part[1] + part[2];
}

static int version_of(const char *path) {
    int major, minor, patch, version = 0;
    char *real = realpath(path, NULL);
    const char *name = real ? strstr(real, "libcudnn.so.") : NULL;
    if (name && sscanf(name, "libcudnn.so.%d.%d.%d", &major, &minor, &patch) == 3)
        version = 10000 * major + 100 * minor + patch;
    else if (real)
        version = version_in_header(real);
    free(real);
    return version;
}

// Keeps the newest of what is known and what the pattern finds.
static void consider(struct found *best, const char *folder, const char *below) {
    char pattern[PLUGIN_PATH_BYTES];
    glob_t list;
    if (folder[0] != '/' ||
        snprintf(pattern, sizeof pattern, "%s%s/libcudnn.so.9", folder, below) >=
            (int)sizeof pattern ||
        glob(pattern, 0, NULL, &list) != 0)
        return;
    for (size_t i = 0; i < list.gl_pathc; i++) {
        const int version = version_of(list.gl_pathv[i]);
        if (strlen(list.gl_pathv[i]) < sizeof best->path &&
            (!best->path[0] || version > best->version)) {
            strcpy(best->path, list.gl_pathv[i]);
            best->version = version;
        }
    }
    globfree(&list);
}

// Below the root of an installation of Python or of conda.
static void consider_root(struct found *best, const char *root) {
    consider(best, root, "/lib/python3*/*-packages/nvidia/cudnn/lib");
    consider(best, root, "/lib");
}

// Calls `see` with each folder of a list like $PATH, or with the folder above it.
static void each_folder(struct found *best, const char *list, bool above,
                        void (*see)(struct found *best, const char *folder)) {
    char folder[PLUGIN_PATH_BYTES];
    while (list && *list) {
        const size_t n = strcspn(list, ":");
        if (n < sizeof folder) {
            memcpy(folder, list, n);
            folder[n] = '\0';
            if (above)
                cut_name(folder);
            see(best, folder);
        }
        list += n + (list[n] == ':');
    }
}

static void consider_folder(struct found *best, const char *folder) {
    consider(best, folder, "");
}

// The folder of the file that holds a function.
static void consider_beside(struct found *best, const void *function) {
    char folder[PLUGIN_PATH_BYTES];
    Dl_info info;
    if (!dladdr(function, &info) || !info.dli_fname || strlen(info.dli_fname) >= sizeof folder)
        return;
    strcpy(folder, info.dli_fname);
    cut_name(folder);
    consider(best, folder, "");
}

static void search(struct found *best) {
    static const char *const folders[] = {"/usr/lib/*-linux-gnu", "/usr/lib64",
                                          "/usr/local/cuda/lib64"};
    static const char *const roots[] = {"VIRTUAL_ENV", "CONDA_PREFIX"};
    *best = {};
    consider_beside(best, (const void *)search);
    each_folder(best, getenv("LD_LIBRARY_PATH"), false, consider_folder);
    consider_beside(best, (const void *)cublasLtGetVersion); // the toolkit
    for (const char *folder : folders)
        consider(best, folder, "");
    each_folder(best, getenv("PATH"), true, consider_root);
    for (const char *name : roots)
        if (getenv(name))
            consider_root(best, getenv(name));
    if (getenv("HOME"))
        consider(best, getenv("HOME"), "/.local/lib/python3*/*-packages/nvidia/cudnn/lib");
}

// ---------------------------------------------------------------- opening

// Folder of an open library; "" when the loader does not say.
static void folder_of(void *library, char out[PLUGIN_PATH_BYTES]) {
    struct link_map *map = NULL;
    out[0] = '\0';
    char *real =
        dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map ? realpath(map->l_name, NULL) : NULL;
    if (real && strlen(real) < PLUGIN_PATH_BYTES) {
        strcpy(out, real);
        cut_name(out);
    }
    free(real);
}

static void load_part(const struct cudnn *c, const char *name) {
    char path[PLUGIN_PATH_BYTES + 64];
    snprintf(path, sizeof path, "%s/libcudnn_%s.so.9", c->folder, name);
    if (c->folder[0])
        dlopen(path, RTLD_LAZY | RTLD_LOCAL); // a part that is missing is told by what needs it
}

// Opens `file`, or what is in the process already. NULL, with the reason.
static void *open_library(const char *file, char *why, size_t why_bytes) {
    char loaded[PLUGIN_PATH_BYTES], wanted[PLUGIN_PATH_BYTES];
    void *library = dlopen("libcudnn.so.9", RTLD_LAZY | RTLD_NOLOAD);
    if (library && strchr(file, '/')) {
        char *real = realpath(file, NULL);
        snprintf(wanted, sizeof wanted, "%s", real ? real : file);
        free(real);
        cut_name(wanted);
        folder_of(library, loaded);
        if (strcmp(loaded, wanted) != 0) {
            snprintf(why, why_bytes, "the process already uses the one in %.300s", loaded);
            return NULL;
        }
    }
    if (!library) {
        library = dlopen(*file ? file : "libcudnn.so.9", RTLD_LAZY | RTLD_LOCAL);
        const char *reason = library ? NULL : dlerror();
        if (!library)
            snprintf(why, why_bytes, "%s", reason ? reason : "no reason given");
    }
    return library;
}

static bool find_calls(struct cudnn *c, void *library, char *why, size_t why_bytes) {
#define FIND(name)                                                                                 \
    c->name = (decltype(c->name))dlsym(library, #name);                                            \
    if (!c->name) {                                                                                \
        snprintf(why, why_bytes, "it has no function " #name);                                     \
        return false;                                                                              \
    }
    CUDNN_CALLS(FIND)
#undef FIND
    folder_of(library, c->folder);
    load_part(c, "graph");
    c->version = c->cudnnGetVersion();
    if (c->version < OLDEST)
        snprintf(why, why_bytes, "cuDNN %zu.%zu.%zu is too old; %d.%d.%d or newer is needed",
                 c->version / 10000, c->version / 100 % 100, c->version % 100, OLDEST / 10000,
                 OLDEST / 100 % 100, OLDEST % 100);
    return c->version >= OLDEST;
}

int cuda_cudnn_open(struct cuda *s, const char *library, struct err *e) {
    char why[ERR_TEXT_BYTES / 2];
    struct found best = {};
    const bool named = *library && strcmp(library, "auto") != 0;
    if (strcmp(library, "none") == 0) {
        say(s, "plain kernels");
        return 0;
    }
    struct cudnn *c = (struct cudnn *)calloc(1, sizeof *c);
    if (!c)
        return s->host.err_set(e, ERR_MEMORY, "no memory for the cuda backend");
    if (!named)
        search(&best);
    void *file = open_library(named ? library : best.path, why, sizeof why);
    if (file && find_calls(c, file, why, sizeof why)) {
        snprintf(s->attention_text, sizeof s->attention_text, "cuDNN %zu.%zu.%zu",
                 c->version / 10000, c->version / 100 % 100, c->version % 100);
        s->cudnn = c;
        return 0;
    }
    free(c);
    if (named)
        return s->host.err_set(e, ERR_USAGE, "cuda.cudnn=%s: %s", library, why);
    if (!file && !best.path[0])
        say(s, "plain kernels (libcudnn.so.9 was not found)");
    else
        snprintf(s->attention_text, sizeof s->attention_text, "plain kernels (%.100s)", why);
    return 0;
}

void cuda_cudnn_close(struct cuda *s) {
    struct cudnn *c = s->cudnn;
    if (!c)
        return;
    cuda_attention_close(s);
    if (c->handle)
        c->cudnnDestroy(c->handle);
    free(c);
    s->cudnn = NULL;
}

const char *cudnn_ready(struct cuda *s) {
    static const char *const parts[] = {"engines_precompiled", "engines_runtime_compiled",
                                        "heuristic"};
    struct cudnn *c = s->cudnn;
    if (c->handle)
        return NULL;
    if (c->unusable)
        return "cuDNN could not be started";
    for (const char *part : parts)
        load_part(c, part);
    cudnnStatus_t status = c->cudnnCreate(&c->handle);
    if (status == CUDNN_STATUS_SUCCESS)
        status = c->cudnnSetStream(c->handle, s->stream[STREAM_COMPUTE]);
    if (status == CUDNN_STATUS_SUCCESS)
        return NULL;
    if (c->handle)
        c->cudnnDestroy(c->handle);
    c->handle = NULL;
    c->unusable = true;
    cudaGetLastError();
    return c->cudnnGetErrorString(status);
}

// ---------------------------------------------------------------- describing a graph

static descriptor make(struct graph *g, cudnnBackendDescriptorType_t type) {
    descriptor d = NULL;
    if (g->status != CUDNN_STATUS_SUCCESS)
        return NULL;
    if (g->n_all == GRAPH_DESCRIPTORS)
        g->status = CUDNN_STATUS_ALLOC_FAILED;
    else
        g->status = g->cudnn->cudnnBackendCreateDescriptor(type, &d);
    if (g->status == CUDNN_STATUS_SUCCESS)
        g->all[g->n_all++] = d;
    return d;
}

static void set(struct graph *g, descriptor d, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t n, const void *values) {
    if (g->status == CUDNN_STATUS_SUCCESS)
        g->status = g->cudnn->cudnnBackendSetAttribute(d, name, type, n, values);
}

static void set_other(struct graph *g, descriptor d, cudnnBackendAttributeName_t name,
                      descriptor other) {
    set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &other);
}

static void set_type(struct graph *g, descriptor d, cudnnBackendAttributeName_t name,
                     cudnnDataType_t type) {
    set(g, d, name, CUDNN_TYPE_DATA_TYPE, 1, &type);
}

static void finish(struct graph *g, descriptor d) {
    if (g->status == CUDNN_STATUS_SUCCESS)
        g->status = g->cudnn->cudnnBackendFinalize(d);
}

static void finish_op(struct graph *g, descriptor d) {
    finish(g, d);
    if (g->status == CUDNN_STATUS_SUCCESS && g->n_ops == GRAPH_OPS)
        g->status = CUDNN_STATUS_ALLOC_FAILED;
    if (g->status == CUDNN_STATUS_SUCCESS)
        g->ops[g->n_ops++] = d;
}

enum place { GIVEN, NUMBER, INNER };

static descriptor tensor(struct graph *g, int64_t id, cudnnDataType_t type, struct shape shape,
                         enum place place) {
    const int64_t alignment = GRAPH_ALIGNMENT;
    const bool is_virtual = place == INNER, by_value = place == NUMBER;
    descriptor d = make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    set(g, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    set_type(g, d, CUDNN_ATTR_TENSOR_DATA_TYPE, type);
    set(g, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    set(g, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, shape.size);
    set(g, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, shape.stride);
    set(g, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    if (by_value)
        set(g, d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    finish(g, d);
    return d;
}

descriptor graph_tensor(struct graph *g, int64_t id, cudnnDataType_t type, struct shape shape) {
    return tensor(g, id, type, shape, GIVEN);
}

descriptor graph_number(struct graph *g, int64_t id) {
    return tensor(g, id, CUDNN_DATA_FLOAT, {{1, 1, 1, 1}, {1, 1, 1, 1}}, NUMBER);
}

descriptor graph_inner(struct graph *g, cudnnDataType_t type, struct shape shape) {
    const int64_t first = 1000; // beyond the ids that callers choose
    return tensor(g, first + g->inner++, type, shape, INNER);
}

descriptor graph_matmul(struct graph *g, descriptor out, descriptor a, descriptor b) {
    descriptor how = make(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    set_type(g, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
    finish(g, how);
    descriptor op = make(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_other(g, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    set_other(g, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    set_other(g, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, out);
    set_other(g, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
    finish_op(g, op);
    return out;
}

descriptor graph_reduce(struct graph *g, descriptor out, cudnnReduceTensorOp_t kind, descriptor x) {
    descriptor how = make(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    set(g, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &kind);
    set_type(g, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
    finish(g, how);
    descriptor op = make(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_other(g, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    set_other(g, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, out);
    set_other(g, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
    finish_op(g, op);
    return out;
}

descriptor graph_reshape(struct graph *g, descriptor out, descriptor x) {
    descriptor op = make(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set_other(g, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    set_other(g, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, out);
    finish_op(g, op);
    return out;
}

// axis < 0: none
static descriptor pointwise(struct graph *g, descriptor out, cudnnPointwiseMode_t mode,
                            int64_t axis, descriptor x, descriptor b, descriptor t) {
    descriptor how = make(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set(g, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set_type(g, how, CUDNN_ATTR_POINTWISE_MATH_PREC,
             mode == CUDNN_POINTWISE_CMP_GE ? CUDNN_DATA_BOOLEAN
             : mode == CUDNN_POINTWISE_MIN  ? CUDNN_DATA_INT32
                                            : CUDNN_DATA_FLOAT);
    if (axis >= 0)
        set(g, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    finish(g, how);
    descriptor op = make(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_other(g, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    set_other(g, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (b)
        set_other(g, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    if (t)
        set_other(g, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
    set_other(g, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, out);
    finish_op(g, op);
    return out;
}

descriptor graph_index(struct graph *g, descriptor out, int64_t axis, descriptor x) {
    return pointwise(g, out, CUDNN_POINTWISE_GEN_INDEX, axis, x, NULL, NULL);
}

descriptor graph_pointwise(struct graph *g, descriptor out, cudnnPointwiseMode_t mode, descriptor x,
                           descriptor b, descriptor t) {
    return pointwise(g, out, mode, -1, x, b, t);
}

// ---------------------------------------------------------------- plans

// A plan of one suggestion. False: it cannot be built, or needs too much.
static bool try_plan(struct graph *g, descriptor suggestion, uint64_t workspace, uint64_t *needed) {
    int64_t bytes = 0, n;
    descriptor plan = make(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    set_other(g, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, suggestion);
    finish(g, plan);
    if (g->status == CUDNN_STATUS_SUCCESS)
        g->status = g->cudnn->cudnnBackendGetAttribute(
            plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &n, &bytes);
    if (g->status != CUDNN_STATUS_SUCCESS)
        return false;
    if ((uint64_t)bytes > workspace) {
        *needed = (uint64_t)bytes;
        return false;
    }
    g->plan = plan;
    g->workspace = bytes;
    return true;
}

bool graph_build(struct graph *g, uint64_t workspace, char *why, size_t why_bytes) {
    enum { MOST = 8 };
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    descriptor suggestions[MOST];
    int64_t n = 0;
    uint64_t needed = 0;
    descriptor graph = make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set(g, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->n_ops, g->ops);
    set(g, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->cudnn->handle);
    finish(g, graph);
    descriptor heuristic = make(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set_other(g, heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    set(g, heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    finish(g, heuristic);
    for (int i = 0; i < MOST; i++)
        suggestions[i] = make(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (g->status == CUDNN_STATUS_SUCCESS)
        g->status = g->cudnn->cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                                       CUDNN_TYPE_BACKEND_DESCRIPTOR, MOST, &n,
                                                       suggestions);
    const cudnnStatus_t described = g->status;
    for (int i = 0; described == CUDNN_STATUS_SUCCESS && i < n && i < MOST && !g->plan; i++) {
        g->status = CUDNN_STATUS_SUCCESS; // of the suggestion before
        try_plan(g, suggestions[i], workspace, &needed);
    }
    cudaGetLastError(); // what a suggestion that failed may have left
    if (needed > 0)
        snprintf(why, why_bytes, "cuDNN needs %llu bytes of scratch, and %llu were planned",
                 (unsigned long long)needed, (unsigned long long)workspace);
    else if (g->status == CUDNN_STATUS_SUCCESS)
        snprintf(why, why_bytes, "cuDNN has no kernel for it");
    else
        snprintf(why, why_bytes, "cuDNN says %s", g->cudnn->cudnnGetErrorString(g->status));
    return g->plan != NULL;
}

void graph_drop(struct graph *g) {
    while (g->n_all > 0)
        g->cudnn->cudnnBackendDestroyDescriptor(g->all[--g->n_all]);
}
#endif
