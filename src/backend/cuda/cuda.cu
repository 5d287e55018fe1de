// cuda.cu - the CUDA backend without its ops: opening, memory, streams and events, staging, graphs,
// time. The ops are in the other files; run.cu finds them.
#include "backend/cuda/cuda.cuh"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MIN_CAPABILITY = 80, SMALL_BYTES = 4096 };

// ---------------------------------------------------------------- failures

int cuda_check(struct cuda *s, cudaError_t status, const char *what, struct err *e) {
    if (status == cudaSuccess)
        return 0;
    cudaGetLastError(); // clears the error, so that the next call does not report it again
    int code = status == cudaErrorMemoryAllocation ? ERR_MEMORY : ERR_INTERNAL;
    return s->host.err_set(e, code, "%s: CUDA says %s (%s)", what, cudaGetErrorString(status),
                           cudaGetErrorName(status));
}

int cuda_launched(struct cuda *s, const struct op_call *c, struct err *e) {
    return cuda_check(s, cudaGetLastError(), s->host.op_name(c->op->kind), e);
}

static struct cuda *state_of(struct backend *b) {
    return (struct cuda *)b->state;
}

// ---------------------------------------------------------------- memory

static int arena_take(struct backend *b, uint64_t bytes, void **out, struct err *e) {
    struct cuda *s = state_of(b);
    size_t free_bytes = 0, total_bytes = 0;
    *out = NULL;
    TRY(cuda_check(s, cudaMemGetInfo(&free_bytes, &total_bytes), "memory of the device", e));
    // Asked for more than is free, cudaMalloc fails with most drivers; some would page instead.
    cudaError_t status = bytes > free_bytes ? cudaErrorMemoryAllocation
                                            : cudaMalloc(out, bytes > 0 ? (size_t)bytes : 1);
    if (status == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        *out = NULL;
        return s->host.err_set(e, ERR_MEMORY,
                               "no memory on the device for the arena: %llu bytes asked for, %llu "
                               "free of %llu",
                               (unsigned long long)bytes, (unsigned long long)free_bytes,
                               (unsigned long long)total_bytes);
    }
    TRY(cuda_check(s, status, "taking the arena", e));
    int rc = cuda_check(s, cudaMemset(*out, 0, (size_t)bytes), "clearing the arena", e);
    if (rc == 0) // cudaMemset runs on the default stream, for which the other streams do not wait
        rc = cuda_check(s, cudaDeviceSynchronize(), "clearing the arena", e);
    if (rc != 0) {
        cudaFree(*out);
        *out = NULL;
    }
    return rc;
}

static void arena_give(struct backend *b, void *arena) {
    (void)b;
    cudaDeviceSynchronize();
    cudaFree(arena);
}

// Copies of persistent tensors are rare in training (a checkpoint, hyper before a turn). They are
// enqueued on the compute stream, and the host waits for them.
static int copy_in(struct backend *b, void *device, const void *host, uint64_t bytes,
                   struct err *e) {
    struct cuda *s = state_of(b);
    cudaStream_t stream = s->stream[STREAM_COMPUTE];
    const char *what = "copy to the device";
    s->leads = false;
    if (bytes == 0)
        return 0;
    TRY(cuda_check(s, cudaMemcpyAsync(device, host, (size_t)bytes, cudaMemcpyHostToDevice, stream),
                   what, e));
    return cuda_check(s, cudaStreamSynchronize(stream), what, e);
}

// To pinned memory a copy is a single step.
static int copy_out(struct backend *b, void *host, const void *device, uint64_t bytes,
                    struct err *e) {
    struct cuda *s = state_of(b);
    cudaStream_t stream = s->stream[STREAM_COMPUTE];
    const char *what = "copy from the device";
    void *to = bytes <= SMALL_BYTES ? s->small : host;
    s->leads = false;
    if (bytes == 0)
        return 0;
    TRY(cuda_check(s, cudaMemcpyAsync(to, device, (size_t)bytes, cudaMemcpyDeviceToHost, stream),
                   what, e));
    TRY(cuda_check(s, cudaStreamSynchronize(stream), what, e));
    if (to != host)
        memcpy(host, to, (size_t)bytes);
    return 0;
}

static int clear(struct backend *b, void *device, uint64_t bytes, struct err *e) {
    struct cuda *s = state_of(b);
    cudaStream_t stream = s->stream[STREAM_COMPUTE];
    s->leads = false;
    TRY(cuda_check(s, cudaMemsetAsync(device, 0, (size_t)bytes, stream), "clearing memory", e));
    return cuda_check(s, cudaStreamSynchronize(stream), "clearing memory", e);
}

static int memory(struct backend *b, uint64_t *free_bytes, uint64_t *total_bytes, struct err *e) {
    size_t free_now = 0, total = 0;
    TRY(cuda_check(state_of(b), cudaMemGetInfo(&free_now, &total), "memory of the device", e));
    *free_bytes = free_now;
    *total_bytes = total;
    return 0;
}

static int staging_take(struct backend *b, uint64_t bytes, void **out, struct err *e) {
    return cuda_check(state_of(b),
                      cudaHostAlloc(out, bytes > 0 ? (size_t)bytes : 1, cudaHostAllocDefault),
                      "pinned memory for batches", e);
}

static void staging_give(struct backend *b, void *staging) {
    (void)b;
    cudaFreeHost(staging);
}

static int load(struct backend *b, void *device, const void *staging, uint64_t bytes,
                struct err *e) {
    struct cuda *s = state_of(b);
    return cuda_check(s,
                      cudaMemcpyAsync(device, staging, (size_t)bytes, cudaMemcpyHostToDevice,
                                      s->stream[STREAM_COPY]),
                      "load", e);
}

// ---------------------------------------------------------------- streams and events

static int sync(struct backend *b, struct err *e) {
    struct cuda *s = state_of(b);
    for (int i = 0; i < STREAM_COUNT; i++)
        TRY(cuda_check(s, cudaStreamSynchronize(s->stream[i]), "waiting for the device", e));
    return 0;
}

// Makes all events anew: an event that was recorded in a capture of an earlier executor cannot be
// waited for outside of that capture.
static int prepare(struct backend *b, int n_events, struct err *e) {
    struct cuda *s = state_of(b);
    while (s->n_events > 0)
        cudaEventDestroy(s->events[--s->n_events]);
    if (n_events == 0)
        return 0;
    cudaEvent_t *grown = (cudaEvent_t *)realloc(s->events, (size_t)n_events * sizeof *grown);
    if (!grown)
        return s->host.err_set(e, ERR_MEMORY, "no memory for %d events", n_events);
    s->events = grown;
    while (s->n_events < n_events) {
        TRY(cuda_check(s, cudaEventCreateWithFlags(&s->events[s->n_events], cudaEventDisableTiming),
                       "making an event", e));
        s->n_events++;
    }
    return 0;
}

static int record(struct backend *b, enum op_stream stream, int event, struct err *e) {
    struct cuda *s = state_of(b);
    s->leads = false;
    return cuda_check(s, cudaEventRecord(s->events[event], s->stream[stream]), "record", e);
}

static int wait(struct backend *b, enum op_stream stream, int event, struct err *e) {
    struct cuda *s = state_of(b);
    s->leads = false;
    return cuda_check(s, cudaStreamWaitEvent(s->stream[stream], s->events[event], 0), "wait", e);
}

static int arrive(struct backend *b, int event, struct err *e) {
    struct cuda *s = state_of(b);
    return cuda_check(s, cudaEventSynchronize(s->events[event]), "waiting for a copy", e);
}

// ---------------------------------------------------------------- graphs

// The capture begins on the compute stream. The other streams join it by waiting for an event of
// it, and at the end it waits for them (join_streams). The mode is relaxed, because CUDA may load a
// kernel the first time it is captured.
static int capture_begin(struct backend *b, unsigned streams, struct err *e) {
    struct cuda *s = state_of(b);
    cudaStream_t compute = s->stream[STREAM_COMPUTE];
    TRY(cuda_check(s, cudaStreamBeginCapture(compute, cudaStreamCaptureModeRelaxed), "capture", e));
    s->capturing = true;
    s->leads = false;
    s->captured = 0;
    TRY(cuda_check(s, cudaEventRecord(s->fork, compute), "capture", e));
    for (int i = 0; i < STREAM_COUNT; i++)
        if (i != STREAM_COMPUTE && streams >> i & 1) {
            TRY(cuda_check(s, cudaStreamWaitEvent(s->stream[i], s->fork, 0), "capture", e));
            s->captured |= 1u << i;
        }
    return 0;
}

static int join_streams(struct cuda *s, struct err *e) {
    for (int i = 0; i < STREAM_COUNT; i++)
        if (s->captured >> i & 1) {
            TRY(cuda_check(s, cudaEventRecord(s->join[i], s->stream[i]), "capture", e));
            TRY(cuda_check(s, cudaStreamWaitEvent(s->stream[STREAM_COMPUTE], s->join[i], 0),
                           "capture", e));
        }
    return 0;
}

static int capture_end(struct backend *b, void **out, struct err *e) {
    struct cuda *s = state_of(b);
    cudaGraph_t graph = NULL;
    cudaGraphExec_t ready = NULL;
    *out = NULL;
    if (!s->capturing)
        return s->host.err_set(e, ERR_INTERNAL, "capture: no capture is under way");
    int rc = join_streams(s, e);
    s->capturing = false;
    s->captured = 0;
    cudaError_t status = cudaStreamEndCapture(s->stream[STREAM_COMPUTE], &graph);
    if (rc == 0)
        rc = cuda_check(s, status, "capture", e);
    else
        cudaGetLastError();
    if (rc == 0)
        rc = cuda_check(s, cudaGraphInstantiate(&ready, graph, 0), "making a graph", e);
    if (graph)
        cudaGraphDestroy(graph);
    if (rc == 0)
        *out = ready;
    return rc;
}

static int graph_run(struct backend *b, void *graph, struct err *e) {
    struct cuda *s = state_of(b);
    s->leads = false;
    return cuda_check(s, cudaGraphLaunch((cudaGraphExec_t)graph, s->stream[STREAM_COMPUTE]),
                      "running a graph", e);
}

static void graph_free(struct backend *b, void *graph) {
    (void)b;
    cudaGraphExecDestroy((cudaGraphExec_t)graph);
}

// ---------------------------------------------------------------- time

static int turn_begin(struct backend *b, struct err *e) {
    struct cuda *s = state_of(b);
    s->leads = false;
    return cuda_check(s, cudaEventRecord(s->begin, s->stream[STREAM_COMPUTE]), "timing", e);
}

static int turn_end(struct backend *b, struct err *e) {
    struct cuda *s = state_of(b);
    return cuda_check(s, cudaEventRecord(s->end, s->stream[STREAM_COMPUTE]), "timing", e);
}

static int mark(struct backend *b, int index, struct err *e) {
    struct cuda *s = state_of(b);
    s->leads = false;
    while (s->n_marks <= index) {
        TRY(cuda_check(s, cudaEventCreate(&s->marks[s->n_marks]), "making an event", e));
        s->n_marks++;
    }
    return cuda_check(s, cudaEventRecord(s->marks[index], s->stream[STREAM_COMPUTE]), "timing", e);
}

static uint64_t elapsed_ns(cudaEvent_t from, cudaEvent_t to) {
    float ms = 0;
    if (cudaEventElapsedTime(&ms, from, to) != cudaSuccess) {
        cudaGetLastError();
        return 0;
    }
    return ms > 0 ? (uint64_t)((double)ms * 1e6) : 0;
}

static uint64_t mark_ns(struct backend *b, int index) {
    struct cuda *s = state_of(b);
    return elapsed_ns(s->begin, s->marks[index]);
}

static uint64_t busy_ns(struct backend *b) {
    struct cuda *s = state_of(b);
    return elapsed_ns(s->begin, s->end);
}

// ---------------------------------------------------------------- open and close

// Frees whatever exists; also called after a failed open.
static void close_backend(struct backend *b) {
    struct cuda *s = state_of(b);
    cudaDeviceSynchronize();
    cuda_products_close(s);
    cuda_cudnn_close(s);
    for (int i = 0; i < s->n_events; i++)
        cudaEventDestroy(s->events[i]);
    for (int i = 0; i < s->n_marks; i++)
        cudaEventDestroy(s->marks[i]);
    cudaEvent_t single[] = {s->fork, s->begin, s->end};
    for (cudaEvent_t event : single)
        if (event)
            cudaEventDestroy(event);
    for (int i = 0; i < STREAM_COUNT; i++) {
        if (s->join[i])
            cudaEventDestroy(s->join[i]);
        if (s->stream[i])
            cudaStreamDestroy(s->stream[i]);
    }
    if (s->small)
        cudaFreeHost(s->small);
    free(s->events);
    free(s->marks);
    free(s);
    free(b);
    cudaGetLastError();
}

static int choose_device(struct cuda *s, int index, struct device_info *info, struct err *e) {
    int count = 0, driver = 0, runtime = 0;
    struct cudaDeviceProp p;
    cudaError_t status = cudaGetDeviceCount(&count);
    if (status == cudaErrorInsufficientDriver) {
        cudaGetLastError();
        cudaDriverGetVersion(&driver);
        cudaRuntimeGetVersion(&runtime);
        if (driver == 0)
            return s->host.err_set(e, ERR_UNSUPPORTED,
                                   "no NVIDIA driver is installed (libcuda.so.1 is missing)");
        return s->host.err_set(e, ERR_UNSUPPORTED,
                               "the NVIDIA driver is for CUDA %d.%d; this plug-in needs %d.%d or a "
                               "newer driver",
                               driver / 1000, driver % 1000 / 10, runtime / 1000,
                               runtime % 1000 / 10);
    }
    if (status != cudaSuccess || count == 0) {
        cudaGetLastError();
        return s->host.err_set(e, ERR_UNSUPPORTED, "no CUDA device: %s",
                               status == cudaSuccess ? "the driver sees none"
                                                     : cudaGetErrorString(status));
    }
    if (index < 0 || index >= count)
        return s->host.err_set(e, ERR_UNSUPPORTED, "there is no CUDA device %d; accepted: 0 to %d",
                               index, count - 1);
    TRY(cuda_check(s, cudaGetDeviceProperties(&p, index), "properties of the device", e));
    if (10 * p.major + p.minor < MIN_CAPABILITY)
        return s->host.err_set(e, ERR_UNSUPPORTED,
                               "%s has compute capability %d.%d; 8.0 or more is needed", p.name,
                               p.major, p.minor);
    TRY(cuda_check(s, cudaSetDevice(index), "choosing the device", e));
    s->device = index;
    s->processors = p.multiProcessorCount;
    s->shared_bytes = (int)p.sharedMemPerBlockOptin;
    s->chains = p.major >= 9;
    cudaDriverGetVersion(&driver);
    info->memory_bytes = p.totalGlobalMem;
    snprintf(info->text, sizeof info->text,
             "%.64s, sm_%d%d, %d multiprocessors, %.1f GiB, driver for CUDA %d.%d", p.name, p.major,
             p.minor, p.multiProcessorCount, (double)p.totalGlobalMem / (1024.0 * 1024 * 1024),
             driver / 1000, driver % 1000 / 10);
    return 0;
}

static void name_products(struct cuda *s, struct backend *b) {
    if (s->choice.plain) {
        b->products[DTYPE_F32] = b->products[DTYPE_BF16] = b->products[DTYPE_F16] = "plain kernels";
        return;
    }
    const size_t version = cuda_products_version();
    const char *order = s->choice.deterministic ? "" : ", sums in any order";
    snprintf(s->products_text, sizeof s->products_text, "cuBLASLt %zu.%zu.%zu%s", version / 10000,
             version / 100 % 100, version % 100, order);
    snprintf(s->products_f32, sizeof s->products_f32, "%s%s", s->products_text,
             s->tf32 ? ", inputs rounded to TF32" : "");
    b->products[DTYPE_F32] = s->products_f32;
    b->products[DTYPE_BF16] = b->products[DTYPE_F16] = s->products_text;
}

static int open_attention(struct cuda *s, const char *library, struct backend *b, struct err *e) {
    char *text = b->info.text;
    TRY(cuda_cudnn_open(s, s->choice.plain ? "none" : library ? library : "", e));
    const size_t used = strlen(text);
    snprintf(text + used, sizeof b->info.text - used, "; attention: %s", s->attention_text);
    b->note = s->note;
    return 0;
}

static int open_state(struct cuda *s, const struct plugin_options *o, struct backend *b,
                      struct err *e) {
    TRY(choose_device(s, o ? o->device : 0, &b->info, e));
    for (int i = 0; i < STREAM_COUNT; i++) {
        TRY(cuda_check(s, cudaStreamCreateWithFlags(&s->stream[i], cudaStreamNonBlocking),
                       "making a stream", e));
        TRY(cuda_check(s, cudaEventCreateWithFlags(&s->join[i], cudaEventDisableTiming),
                       "making an event", e));
    }
    TRY(cuda_check(s, cudaEventCreateWithFlags(&s->fork, cudaEventDisableTiming), "making an event",
                   e));
    TRY(cuda_check(s, cudaEventCreate(&s->begin), "making an event", e));
    TRY(cuda_check(s, cudaEventCreate(&s->end), "making an event", e));
    TRY(cuda_check(s, cudaHostAlloc(&s->small, SMALL_BYTES, cudaHostAllocDefault),
                   "pinned memory for results", e));
    s->marks = (cudaEvent_t *)calloc(CUDA_MARKS, sizeof *s->marks);
    if (!s->marks)
        return s->host.err_set(e, ERR_MEMORY, "no memory for the cuda backend");
    name_products(s, b);
    return open_attention(s, o ? o->cudnn : NULL, b, e);
}

// Nothing in `host` can be trusted before the sizes are compared, not even err_set. So a host of
// another ABI gets its message through the members that come first in every version.
static int check_host(uint32_t abi, const struct plugin_host *host, struct err *e) {
    if (abi != PLUGIN_ABI || host->abi != PLUGIN_ABI || host->err_bytes != sizeof(struct err)) {
        if (e && host->err_bytes == sizeof(struct err)) {
            e->code = ERR_UNSUPPORTED;
            snprintf(e->text, sizeof e->text,
                     "the CUDA plug-in speaks ABI %u and the program %u: build both from the same "
                     "sources",
                     (unsigned)PLUGIN_ABI, (unsigned)abi);
        }
        return ERR_UNSUPPORTED;
    }
    if (host->op_bytes != sizeof(struct op) || host->op_call_bytes != sizeof(struct op_call) ||
        host->backend_bytes != sizeof(struct backend) || host->op_count != OP_COUNT)
        return host->err_set(e, ERR_UNSUPPORTED,
                             "the CUDA plug-in was built from other sources than the program "
                             "(ops %u and %u, op %u and %zu bytes): build both again",
                             host->op_count, (unsigned)OP_COUNT, host->op_bytes, sizeof(struct op));
    return 0;
}

extern "C" __attribute__((visibility("default"))) int
haggle_backend_open(uint32_t abi, const struct plugin_host *host, const struct plugin_options *o,
                    struct backend **out, struct err *e) {
    *out = NULL;
    TRY(check_host(abi, host, e));
    struct backend *b = (struct backend *)calloc(1, sizeof *b);
    struct cuda *s = (struct cuda *)calloc(1, sizeof *s);
    if (!b || !s) {
        free(b);
        free(s);
        return host->err_set(e, ERR_MEMORY, "no memory for the cuda backend");
    }
    s->host = *host;
    if (o) {
        s->choice = (struct cuda_choice){o->plain, o->deterministic, cuda_wants_cudnn(o->cudnn)};
        s->tf32 = o->tf32;
        snprintf(s->cache, sizeof s->cache, "%s", o->cache ? o->cache : "");
    }
    b->name = b->isa = "cuda";
    b->info.device = b->info.streams = b->info.graphs = true;
    b->info.types = 1u << DTYPE_F32 | 1u << DTYPE_BF16 | 1u << DTYPE_F16;
    b->info.storages = 1u << STORAGE_INT8 | 1u << STORAGE_INT4;
    b->state = s;
    b->arena_take = arena_take;
    b->arena_give = arena_give;
    b->copy_in = copy_in;
    b->clear = clear;
    b->copy_out = copy_out;
    b->sync = sync;
    b->close = close_backend;
    b->memory = memory;
    b->make = cuda_make;
    b->unmake = cuda_unmake;
    b->join = cuda_join;
    b->joins[OP_GRAD_SQNORM] = b->joins[OP_ADAMW] = !s->choice.plain;
    b->joins[OP_ADAMW_BF16] = b->joins[OP_ADAMW_INT8] = !s->choice.plain;
    b->joins[OP_MATMUL] = b->joins[OP_ROPE] = !s->choice.plain;
    b->prepare = prepare;
    b->record = record;
    b->wait = wait;
    b->arrive = arrive;
    b->staging_take = staging_take;
    b->staging_give = staging_give;
    b->load = load;
    b->capture_begin = capture_begin;
    b->capture_end = capture_end;
    b->graph_run = graph_run;
    b->graph_free = graph_free;
    b->turn_begin = turn_begin;
    b->turn_end = turn_end;
    b->marks = CUDA_MARKS;
    b->mark = mark;
    b->mark_ns = mark_ns;
    b->busy_ns = busy_ns;
    for (int kind = 0; kind < OP_COUNT; kind++)
        b->run[kind] = cuda_has((enum op_kind)kind) ? cuda_run : NULL;
    int rc = open_state(s, o, b, e);
    if (rc != 0) {
        close_backend(b);
        return rc;
    }
    *out = b;
    return 0;
}
