// loss.cu - cross-entropy and its gradient with one pass over memory: a block takes a row, finds
// the largest logit and the sum of exponentials together, and keeps the row in shared memory for
// the gradient. What does not fit there is read again, from the device's cache as a rule.
//
// Each thread reads again only what it has kept itself, so no thread waits for the others' copies.
#include "backend/cuda/elements.cuh"
#include "backend/cuda/fast/fast.cuh"

#include <float.h>
#include <math_constants.h>

// ---------------------------------------------------------------- asynchronous copies

static __device__ void copy_later(void *shared, const void *global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                     (unsigned)__cvta_generic_to_shared(shared)),
                 "l"(global));
}

static __device__ void end_group(void) {
    asm volatile("cp.async.commit_group;");
}

// Waits until at most N of this thread's groups are on their way.
template <int N> static __device__ void await_groups(void) {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// ---------------------------------------------------------------- the kernel

enum {
    FEW_THREADS = 512,   // where two or more blocks share a processor
    MANY_THREADS = 1024, // where a block has a processor to itself
    GROUPS = 4,          // of copies of a row
    BATCH = 4,           // reads of a thread that are under way together, of what is not kept
    SINGLES = 8,         // the same where an access is one element
};

// sum = the sum of exp(x - max) over what a thread has seen. NaN never becomes the maximum, but
// makes the sum NaN.
struct seen {
    float max, sum;
};

template <typename T, int N> static __device__ void see(struct seen *s, const float (&x)[N]) {
    float top = x[0], sum = 0;
#pragma unroll
    for (int i = 1; i < N; i++)
        top = fmaxf(top, x[i]);
    top = fmaxf(top, s->max);
#pragma unroll
    for (int i = 0; i < N; i++)
        sum += exp_for<T>(x[i] - top);
    s->sum = s->sum * exp_for<T>(s->max - top) + sum;
    s->max = top;
}

static __device__ float largest_of_block(float x) {
    __shared__ float part[WARP];
    const int warps = blockDim.x / WARP;
    for (int offset = WARP / 2; offset > 0; offset /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
    __syncthreads(); // the call before may still be reading `part`
    if (threadIdx.x % WARP == 0)
        part[threadIdx.x / WARP] = x;
    __syncthreads();
    for (int i = 0; i < warps; i++)
        x = fmaxf(x, part[i]);
    return x;
}

// A row in accesses of V elements: 16 bytes, or one element where rows begin anywhere. Thread t of
// `step` has the accesses t, t + step, ... ; those below `kept`, a multiple of `step` or all, are
// kept in shared memory. The last n % V elements are the tail.
template <typename T, int V> struct row_of {
    T *x, *room;
    int n, kept, step;

    // The thread that has the element.
    __device__ int owner(int j) const {
        const int access = j / V, whole = n / V;
        return access < whole ? access % step : j - whole * V;
    }
    __device__ void see_all(struct seen *s) const;
    // Turns each element into exp(x - max) factor.
    __device__ void scale_all(float max, float factor) const;
    __device__ void fill(float v) const;
};

template <typename T, int V> __device__ void row_of<T, V>::fill(float v) const {
    for (int j = threadIdx.x; j < n; j += step)
        x[j] = rounded<T>(v);
}

template <typename T> static __device__ void see_singles(const row_of<T, 1> &r, struct seen *s) {
    for (int first = threadIdx.x; first < r.n; first += SINGLES * r.step) {
        float v[SINGLES];
#pragma unroll
        for (int i = 0; i < SINGLES; i++) {
            const int j = first + i * r.step;
            const T element = j < r.n ? r.x[j] : rounded<T>(-CUDART_INF_F);
            if (j < r.kept)
                r.room[j] = element;
            v[i] = value(element);
        }
        see<T>(s, v);
    }
}

template <typename T>
static __device__ void scale_singles(const row_of<T, 1> &r, float max, float factor) {
    for (int first = threadIdx.x; first < r.n; first += SINGLES * r.step) {
        T v[SINGLES];
#pragma unroll
        for (int i = 0; i < SINGLES; i++) {
            const int j = first + i * r.step;
            if (j < r.n)
                v[i] = j < r.kept ? r.room[j] : r.x[j];
        }
#pragma unroll
        for (int i = 0; i < SINGLES; i++) {
            const int j = first + i * r.step;
            if (j < r.n)
                r.x[j] = rounded<T>(exp_for<T>(value(v[i]) - max) * factor);
        }
    }
}

template <typename T, int V>
static __device__ void see_wide(const row_of<T, V> &r, struct seen *s) {
    const int t = threadIdx.x, whole = r.n / V;
    const int rounds = (r.kept + r.step - 1) / r.step,
              share = (rounds + GROUPS - 1) / GROUPS * r.step;
    for (int g = 0; g < GROUPS; g++) {
        for (int k = g * share + t; k < r.kept && k < (g + 1) * share; k += r.step)
            copy_later(r.room + k * V, r.x + k * V);
        end_group();
    }
    for (int first = r.kept + t; first < whole; first += BATCH * r.step) {
        uint4 bits[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            if (first + i * r.step < whole)
                bits[i] = load16(r.x + (first + i * r.step) * V);
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            if (first + i * r.step < whole)
                see<T>(s, widen<T>(bits[i]).x);
    }
    if (t < r.n - whole * V) {
        const float v[1] = {value(r.x[whole * V + t])};
        see<T>(s, v);
    }
    auto see_group = [&](int g) {
        for (int k = g * share + t; k < r.kept && k < (g + 1) * share; k += r.step)
            see<T>(s, read_wide(r.room + k * V).x);
    };
    static_assert(GROUPS == 4, "one wait for each group");
    await_groups<3>(), see_group(0);
    await_groups<2>(), see_group(1);
    await_groups<1>(), see_group(2);
    await_groups<0>(), see_group(3);
}

template <typename T> static __device__ floats<T> scaled(floats<T> f, float max, float factor) {
#pragma unroll
    for (int i = 0; i < WIDE<T>; i++)
        f.x[i] = exp_for<T>(f.x[i] - max) * factor;
    return f;
}

template <typename T, int V>
static __device__ void scale_wide(const row_of<T, V> &r, float max, float factor) {
    const int t = threadIdx.x, whole = r.n / V;
    for (int first = r.kept + t; first < whole; first += BATCH * r.step) {
        uint4 bits[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            if (first + i * r.step < whole)
                bits[i] = load16(r.x + (first + i * r.step) * V);
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            if (first + i * r.step < whole)
                write_wide(r.x + (first + i * r.step) * V,
                           scaled<T>(widen<T>(bits[i]), max, factor));
    }
    if (t < r.n - whole * V) {
        T *at = r.x + whole * V + t;
        *at = rounded<T>(exp_for<T>(value(*at) - max) * factor);
    }
#pragma unroll 2
    for (int k = t; k < r.kept; k += r.step)
        write_wide(r.x + k * V, scaled<T>(read_wide(r.room + k * V), max, factor));
}

template <typename T, int V> __device__ void row_of<T, V>::see_all(struct seen *s) const {
    if constexpr (V == 1)
        see_singles<T>(*this, s);
    else
        see_wide<T, V>(*this, s);
}

template <typename T, int V>
__device__ void row_of<T, V>::scale_all(float max, float factor) const {
    if constexpr (V == 1)
        scale_singles<T>(*this, max, factor);
    else
        scale_wide<T, V>(*this, max, factor);
}

template <typename T, int V>
__global__ void __launch_bounds__(MANY_THREADS)
    loss_kernel(T *logits, int64_t ld, float *row_loss, const int32_t *targets, const double *hyper,
                bool with_grad, int64_t m, int n, int kept) {
    extern __shared__ uint4 room[];
    EACH_ROW(i, m) {
        const struct row_of<T, V> row = { logits + i *ld, (T *)room, n, kept, (int)blockDim.x };
        const int64_t target = targets[i];
        if (target < 0 || target >= n) { // not trained, or wrong
            const float rest = target < 0 ? 0 : CUDART_NAN_F;
            if (threadIdx.x == 0)
                row_loss[i] = rest;
            if (with_grad)
                row.fill(rest);
            continue;
        }
        const float logit = value(row.x[target]); // before any thread overwrites it
        struct seen s = {-FLT_MAX, 0};
        row.see_all(&s);
        const float max = largest_of_block(s.max);
        const float sum = block_sum(s.sum * exp_for<T>(s.max - max));
        if (threadIdx.x == 0)
            row_loss[i] = logf(sum) + (max - logit);
        if (!with_grad)
            continue;
        const float factor = (float)hyper[HYPER_LOSS_FACTOR];
        row.scale_all(max, factor / sum);
        if ((int)threadIdx.x == row.owner((int)target))
            row.x[target] = rounded<T>((exp_for<T>(logit - max) / sum - 1) * factor);
    }
}

// ---------------------------------------------------------------- launches

// Threads per block and bytes of shared memory of a row.
struct loss_plan {
    int threads, kept; // accesses
    size_t bytes;
};

template <typename T, int V>
static struct loss_plan loss_plan_of(const struct cuda *s, const struct op *op) {
    const int64_t reserved = 2048; // for the sums, and what the system takes of each block
    const int64_t most = s->shared_bytes - reserved, half = s->shared_bytes / 2 - reserved;
    const int64_t access = V * (int64_t)sizeof(T), whole = op->n / V;
    if (!(op->flags & OP_WITH_GRAD))
        return {FEW_THREADS, 0, 0};
    if (whole * access <= half)
        return {FEW_THREADS, (int)whole, (size_t)(whole * access)};
    const int64_t fit = most / access / MANY_THREADS * MANY_THREADS,
                  kept = whole * access <= most ? whole : fit;
    return {MANY_THREADS, (int)kept, (size_t)(kept * access)};
}

template <typename T, int V>
static int loss(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const struct op *op = c->op;
    const struct loss_plan plan = loss_plan_of<T, V>(s, op);
    loss_kernel<T, V><<<rows_grid(op->m), plan.threads, plan.bytes, stream>>>(
        (T *)c->out[0].data, c->out[0].ld, (float *)c->out[1].data, (const int32_t *)c->in[1].data,
        (const double *)c->in[2].data, (op->flags & OP_WITH_GRAD) != 0, op->m, (int)op->n,
        plan.kept);
    return cuda_launched(s, c, e);
}

template <typename T, int V>
static int allow_loss(struct cuda *s, struct cuda_made *made, struct err *e) {
    made->run = loss<T, V>;
    return cuda_check(s,
                      cudaFuncSetAttribute(loss_kernel<T, V>,
                                           cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           s->shared_bytes - 1024),
                      "shared memory of the loss", e);
}

template <typename T>
static int make_loss(struct cuda *s, const struct op_call *c, struct cuda_made *made,
                     struct err *e) {
    const struct op *op = c->op;
    const bool lacks_hyper = op->flags & OP_WITH_GRAD && !c->in[2].data;
    // The plain kernel says what is missing. Elements of a row are counted with 31 bits.
    if (op->m == 0 || op->n == 0 || op->n > INT32_MAX / 2 || lacks_hyper ||
        c->in[0].data != c->out[0].data)
        return 0;
    return wide_rows<T>(c->out[0].data, c->out[0].ld, op->m) ? allow_loss<T, WIDE<T>>(s, made, e)
                                                             : allow_loss<T, 1>(s, made, e);
}

// ---------------------------------------------------------------- the sum of a micro-batch

enum { SUM_THREADS = 1024, FOUR = 4 };

static __global__ void __launch_bounds__(SUM_THREADS)
    loss_sum_kernel(double *results, const float *row_loss, const int32_t *targets, int64_t m) {
    const int64_t whole = m / FOUR * FOUR;
    double sum = 0, count = 0;
#pragma unroll 4
    for (int64_t i = FOUR * (int64_t)threadIdx.x; i < whole; i += FOUR * SUM_THREADS) {
        const float4 loss = *(const float4 *)&row_loss[i];
        const int4 target = *(const int4 *)&targets[i];
        sum += ((double)loss.x + (double)loss.y) + ((double)loss.z + (double)loss.w);
        count += (target.x >= 0) + (target.y >= 0) + (target.z >= 0) + (target.w >= 0);
    }
    if (whole + threadIdx.x < m) {
        sum += (double)row_loss[whole + threadIdx.x];
        count += targets[whole + threadIdx.x] >= 0;
    }
    sum = block_sum(sum);
    count = block_sum(count);
    if (threadIdx.x == 0) {
        results[RESULT_LOSS_SUM] += sum;
        results[RESULT_TOKENS] += count;
    }
}

static int loss_sum(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    loss_sum_kernel<<<1, SUM_THREADS, 0, stream>>>((double *)c->out[0].data,
                                                   (const float *)c->in[0].data,
                                                   (const int32_t *)c->in[1].data, c->op->m);
    return cuda_launched(s, c, e);
}

static int make_loss_sum(struct cuda *s, const struct op_call *c, struct cuda_made *made,
                         struct err *e) {
    (void)s, (void)e;
    if (aligned16(c->in[0].data) && aligned16(c->in[1].data))
        made->run = loss_sum;
    return 0;
}

template <typename T> void cuda_add_fast_loss(struct cuda_table *t) {
    t->fast[OP_LOSS] = make_loss<T>;
    t->fast[OP_LOSS_SUM] = make_loss_sum;
}
template void cuda_add_fast_loss<float>(struct cuda_table *);
template void cuda_add_fast_loss<__nv_bfloat16>(struct cuda_table *);
template void cuda_add_fast_loss<__half>(struct cuda_table *);
